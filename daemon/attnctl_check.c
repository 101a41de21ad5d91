/* attnctl_check.c: attnctl check: case files against a running daemon, or the evaluator alone. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/attnctl.h"
#include "daemon/attnctl_target.h"

enum { TIMEOUT_MS = 120000, MAX_FILE = 1 << 30 };

typedef struct check {
    const ctl_options *o;
    ctl_target target;
    bool has_target;
    cJSON *rows; /* of the table; NULL: printed one by one */
    size_t n[3]; /* by ora_verdict */
} check;

/* ---- Files ------------------------------------------------------------------------------------
 */

/* The whole text, which the caller frees; NULL with errno. */
static char *read_text(const char *path)
{
    struct stat about;
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    if (!file)
        return NULL;
    if (fstat(fileno(file), &about) == 0 && about.st_size >= 0 && about.st_size < MAX_FILE)
        text = malloc((size_t)about.st_size + 1);
    if (text) {
        size_t n = fread(text, 1, (size_t)about.st_size, file);
        text[n] = '\0';
    }
    fclose(file);
    return text;
}

/* "b001_poison" of "tests/cases/b001_poison.json". */
static void name_of(const char *path, char *name, size_t bytes)
{
    const char *slash = strrchr(path, '/');
    snprintf(name, bytes, "%s", slash ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot && strcmp(dot, ".json") == 0)
        *dot = '\0';
}

/* ---- Rows -------------------------------------------------------------------------------------
 */

static void add_share(cJSON *row, const char *name, double share)
{
    char text[32];
    snprintf(text, sizeof text, "%.3g", share);
    cJSON_AddItemToObject(row, name, share < 0 ? cJSON_CreateNull() : cJSON_CreateRaw(text));
}

static void add_row(check *c, const char *name, const ora_report *report)
{
    static const char *const words[] = {"ok", "failed", "skipped"};
    cJSON *row = cJSON_CreateObject();
    c->n[report->verdict]++;
    cJSON_AddStringToObject(row, "case", name);
    cJSON_AddStringToObject(row, "variant", report->variant);
    cJSON_AddStringToObject(row, "verdict", words[report->verdict]);
    add_share(row, "out", report->out);
    add_share(row, "lse", report->lse);
    cJSON_AddStringToObject(row, "message", report->text);
    if (c->rows) {
        cJSON_AddItemToArray(c->rows, row);
        return;
    }
    ctl_print_json_line(row);
    fflush(stdout);
    cJSON_Delete(row);
}

static void add_failure(check *c, const char *name, const char *text)
{
    ora_report report = {.verdict = ORA_CASE_FAILED, .out = -1, .lse = -1};
    snprintf(report.text, sizeof report.text, "%s", text);
    add_row(c, name, &report);
}

/* ---- Cases ------------------------------------------------------------------------------------
 */

static _Noreturn void leave(const attnd_err *err)
{
    fprintf(stderr, "attnctl: %s\n", err->text);
    exit(err->status == ATTND_DEADLINE_EXCEEDED ? CTL_TIMED_OUT : CTL_NO_DAEMON);
}

static void connect_target(check *c)
{
    attnd_err err;
    uint32_t timeout_ms = c->o->timeout_ms < 0 ? TIMEOUT_MS : (uint32_t)c->o->timeout_ms;
    if (ctl_target_open(&c->target, c->o->dir, timeout_ms, &err) != ATTND_OK)
        leave(&err);
    c->has_target = true;
}

/* A daemon that a case has taken down is asked for again, so that the others still say something.
 */
static void stay_connected(check *c)
{
    attnd_err err;
    if (!c->has_target || attnd_ping(c->target.client, 0, &err) == ATTND_OK)
        return;
    ctl_target_close(&c->target);
    connect_target(c);
}

static void run_file(check *c, const char *path)
{
    char name[256];
    ora_case_file *file;
    attnd_err err = {0};
    ora_run_options options = {.plans = c->o->plans, .exact = c->o->exact};
    struct stat about;
    name_of(path, name, sizeof name);
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode)) {
        add_failure(c, name, "neither a file nor a directory");
        return;
    }
    char *text = read_text(path);
    if (!text) {
        add_failure(c, name, strerror(errno ? errno : EFBIG));
        return;
    }
    ora_bits *bits = ora_bits_make();
    if (!bits || ora_case_file_open(&file, text, &err) != ATTND_OK) {
        add_failure(c, name, bits ? err.text : "no memory");
        ora_bits_free(bits);
        free(text);
        return;
    }
    for (size_t i = 0; i < ora_case_n_variants(file); i++) {
        ora_report report;
        stay_connected(c);
        ora_case_run(file, i, c->has_target ? &c->target.target : NULL, &options, bits, &report);
        add_row(c, name, &report);
    }
    ora_case_file_close(file);
    ora_bits_free(bits);
    free(text);
}

static int is_case(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return entry->d_name[0] != '.' && n > 5 && strcmp(entry->d_name + n - 5, ".json") == 0;
}

/* The case files of a directory in the order of their names, or the file itself. */
static void run_word(check *c, const char *word)
{
    struct dirent **entries;
    struct stat about;
    if (stat(word, &about) != 0 || !S_ISDIR(about.st_mode)) {
        run_file(c, word);
        return;
    }
    int n = scandir(word, &entries, is_case, alphasort);
    if (n <= 0)
        add_failure(c, word, n < 0 ? strerror(errno) : "no case file, *.json, in it");
    for (int i = 0; i < n; i++) {
        char *path;
        if (asprintf(&path, "%s/%s", word, entries[i]->d_name) >= 0) {
            run_file(c, path);
            free(path);
        }
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

int ctl_run_check(ctl_options *o)
{
    check c = {.o = o};
    if (o->n_words == 0)
        ctl_usage("check: a case file is missing, or a directory of them");
    if (o->socket)
        ctl_usage("--socket = %s: check wants the daemon's directory, --dir", o->socket);
    if (!o->oracle)
        connect_target(&c);
    c.rows = o->json ? NULL : cJSON_CreateArray();
    for (size_t i = 0; i < o->n_words; i++)
        run_word(&c, o->words[i]);
    if (c.rows) {
        ctl_print_table(c.rows, 0);
        printf("\n%zu ok, %zu failed, %zu skipped\n", c.n[ORA_CASE_OK], c.n[ORA_CASE_FAILED],
               c.n[ORA_CASE_SKIPPED]);
    }
    cJSON_Delete(c.rows);
    if (c.has_target)
        ctl_target_close(&c.target);
    return c.n[ORA_CASE_FAILED] ? CTL_REFUSED : CTL_OK;
}
