/* attnctl_options.c: argv → one checked struct, by the tables of commands.
 */
#include "daemon/attnctl.h"

#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INTERVAL_MS = 1000 };

_Noreturn void ctl_usage(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "attnctl: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "; see attnctl --help\n");
    va_end(args);
    exit(CTL_USAGE);
}

static int64_t read_seconds(const char *flag, const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds > 0 && seconds <= 86400))
        ctl_usage("--%s = %s: seconds, more than 0 and at most 86400", flag, text);
    return (int64_t)ceil(seconds * 1000);
}

static int64_t read_count(const char *text)
{
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 9 || text[n] || atoi(text) == 0)
        ctl_usage("--count = %s: how often, 1 .. 999999999", text);
    return atoi(text);
}

/* A whole number as JSON; the daemon says whether it is in range. */
static cJSON *read_number(const char *name, const char *text, size_t n)
{
    char digits[16];
    if (n == 0 || n >= sizeof digits || strspn(text, "0123456789") < n)
        ctl_usage("--%s = %s: a whole number%s", name, text, strchr(text, ',') ? "s list" : "");
    snprintf(digits, sizeof digits, "%.*s", (int)n, text);
    return cJSON_CreateRaw(digits);
}

static cJSON *read_list(const char *name, const char *text)
{
    cJSON *list = cJSON_CreateArray();
    for (const char *s = text;; s++) {
        size_t n = strcspn(s, ",");
        cJSON_AddItemToArray(list, read_number(name, s, n));
        s += n;
        if (!*s)
            return list;
    }
}

static void set_param(ctl_options *o, const ctl_param *p, const char *text)
{
    cJSON *value;
    if (cJSON_GetObjectItemCaseSensitive(o->params, p->name))
        ctl_usage("--%s = %s: given twice", p->name, text);
    if (p->type == INT)
        value = read_number(p->name, text, strlen(text));
    else if (p->type == INTS)
        value = read_list(p->name, text);
    else
        value = cJSON_CreateString(text);
    cJSON_AddItemToObject(o->params, p->name, value);
}

/* A flag that is none of the command's parameters. */
static void set_flag(ctl_options *o, int flag, ctl_command_id id)
{
    switch (flag) {
    case CTL_FLAG_SOCKET:
        o->socket = optarg;
        break;
    case CTL_FLAG_DIR:
        o->dir = optarg;
        break;
    case CTL_FLAG_JSON:
        o->json = true;
        break;
    case CTL_FLAG_TIMEOUT:
        o->timeout_ms = read_seconds("timeout", optarg);
        break;
    case CTL_FLAG_WATCH:
        o->watch = true;
        o->has_interval = optarg != NULL;
        if (optarg)
            o->interval_ms = read_seconds("watch", optarg);
        break;
    case CTL_FLAG_INTERVAL:
        o->interval_ms = read_seconds("interval", optarg);
        break;
    case CTL_FLAG_COUNT:
        o->count = read_count(optarg);
        break;
    case CTL_FLAG_MAN:
        ctl_print_man();
        exit(CTL_OK);
    case CTL_FLAG_RESET:
        o->reset = true;
        break;
    case CTL_FLAG_WAIT:
        o->wait = true;
        break;
    case CTL_FLAG_PLANS:
        o->plans = true;
        break;
    case CTL_FLAG_EXACT:
        o->exact = true;
        break;
    case CTL_FLAG_ORACLE:
        o->oracle = true;
        break;
    case 'h':
        if (id == CTL_N_COMMANDS)
            ctl_print_help();
        else
            ctl_print_command_help(id);
        exit(CTL_OK);
    }
}

/* Reads flags up to the first other word; id CTL_N_COMMANDS: those before the command. Returns the
 * place of that word. */
static int read_flags(ctl_options *o, int argc, char **argv, ctl_command_id id)
{
    static const struct option own[] = {{"socket", required_argument, NULL, CTL_FLAG_SOCKET},
                                        {"dir", required_argument, NULL, CTL_FLAG_DIR},
                                        {"json", no_argument, NULL, CTL_FLAG_JSON},
                                        {"timeout", required_argument, NULL, CTL_FLAG_TIMEOUT},
                                        {"print-man", no_argument, NULL, CTL_FLAG_MAN},
                                        {"help", no_argument, NULL, 'h'}};
    enum { N_OWN = sizeof own / sizeof *own };
    struct option longs[N_OWN + CTL_N_PARAMS + CTL_N_FLAGS + 1] = {{0}};
    size_t n = N_OWN;
    memcpy(longs, own, sizeof own);
    for (size_t i = 0; i < CTL_N_PARAMS; i++)
        if (ctl_params[i].command == id)
            longs[n++] = (struct option){ctl_params[i].name, required_argument, NULL, (int)i};
    for (size_t i = 0; i < CTL_N_FLAGS; i++)
        if (ctl_flags[i].command == id)
            longs[n++] =
                (struct option){ctl_flags[i].name, ctl_flags[i].value, NULL, ctl_flags[i].id};
    optind = 0;
    opterr = 0;
    /* "+": the first word that is no flag ends them. */
    for (int found; (found = getopt_long(argc, argv, "+h", longs, NULL)) != -1;) {
        if (found >= 0 && found < CTL_N_PARAMS)
            set_param(o, &ctl_params[found], optarg);
        else if (found == '?')
            ctl_usage("%s: unknown option, or its value is missing", argv[optind - 1]);
        else
            set_flag(o, found, id);
    }
    return optind;
}

static ctl_command_id find_command(const char *name)
{
    for (size_t i = 0; i < CTL_N_COMMANDS; i++)
        if (*ctl_commands[i].name && strcmp(ctl_commands[i].name, name) == 0)
            return (ctl_command_id)i;
    ctl_usage("%s: no such command", name);
}

/* A word without a flag: the command's own, or its next parameter that is not given yet. */
static void set_word(ctl_options *o, const char *word)
{
    if (o->n_words < ctl_commands[o->command].max_words) {
        o->words[o->n_words++] = word;
        return;
    }
    /* "--watch 2": getopt takes an optional value only behind "=". */
    if (o->watch && !o->has_interval) {
        o->interval_ms = read_seconds("watch", word);
        o->has_interval = true;
        return;
    }
    for (size_t i = 0; i < CTL_N_PARAMS; i++)
        if (ctl_params[i].command == o->command &&
            !cJSON_GetObjectItemCaseSensitive(o->params, ctl_params[i].name)) {
            set_param(o, &ctl_params[i], word);
            return;
        }
    ctl_usage("%s: %s takes no more arguments", word, ctl_commands[o->command].name);
}

void ctl_read_options(ctl_options *o, int argc, char **argv)
{
    *o = (ctl_options){.timeout_ms = -1,
                       .interval_ms = INTERVAL_MS,
                       .words = calloc((size_t)argc, sizeof *o->words),
                       .params = cJSON_CreateObject()};
    if (!o->words || !o->params)
        ctl_usage("arguments = %d: no memory", argc);
    int at = read_flags(o, argc, argv, CTL_N_COMMANDS);
    if (at >= argc)
        ctl_usage("a command is missing");
    o->command = find_command(argv[at]);
    while (at < argc) {
        /* argv[at] stands where getopt expects the program's name. */
        at += read_flags(o, argc - at, argv + at, o->command);
        if (at < argc)
            set_word(o, argv[at]);
    }
    if (o->command == CTL_stats_get && o->count && !o->watch)
        ctl_usage("--count = %lld: goes with --watch", (long long)o->count);
    if (o->reset && o->watch)
        ctl_usage("--reset = given: not with --watch");
    if (o->reset)
        o->command = CTL_stats_reset;
}
