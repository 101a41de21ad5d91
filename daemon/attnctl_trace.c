/* attnctl_trace.c: the command trace-export: pages of trace.export → one file that Perfetto and
 * chrome://tracing open.
 */
#include "daemon/attnctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *part; /* of a file that is not whole yet; NULL: none */

static void remove_part(void)
{
    if (part)
        unlink(part);
}

static _Noreturn void leave(const char *path, const char *why)
{
    fprintf(stderr, "attnctl: %s: %s\n", path, why);
    exit(CTL_REFUSED);
}

/* Under another name first: a file of its own name is whole. 0600. */
static FILE *open_part(const char *path)
{
    if (asprintf(&part, "%s.XXXXXX", path) < 0)
        leave(path, "no memory");
    int fd = mkstemp(part);
    if (fd < 0) {
        int error = errno;
        free(part);
        part = NULL;
        leave(path, strerror(error));
    }
    atexit(remove_part);
    FILE *file = fdopen(fd, "w");
    if (!file)
        leave(path, strerror(errno));
    return file;
}

static void close_part(FILE *file, const char *path)
{
    bool is_whole = fflush(file) == 0 && !ferror(file) && fsync(fileno(file)) == 0;
    if (fclose(file) != 0 || !is_whole || rename(part, path) != 0)
        leave(path, strerror(errno));
    free(part);
    part = NULL;
}

static uint64_t number_at(const cJSON *object, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));
    return text ? strtoull(text, NULL, 10) : 0;
}

static void print_item(FILE *file, const cJSON *item, const char *path)
{
    char *text = cJSON_PrintUnformatted(item);
    if (!text)
        leave(path, "no memory");
    fputs(text, file);
    cJSON_free(text);
}

/* One answer of trace.export, or the process ends with why there is none. */
static cJSON *get_page(ctl_connection *c, const ctl_options *o, uint64_t from)
{
    char digits[24];
    cJSON *params = cJSON_CreateObject();
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)from);
    cJSON_AddStringToObject(params, "from", digits);
    cJSON *answer = ctl_call(c, o, "trace.export", params);
    cJSON *page = cJSON_DetachItemFromObjectCaseSensitive(answer, "result");
    if (!page)
        exit(ctl_print_error(o, c, cJSON_GetObjectItemCaseSensitive(answer, "error")));
    cJSON_Delete(answer);
    return page;
}

static int64_t print_events(FILE *file, const cJSON *page, bool is_first, const char *path)
{
    int64_t n = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, cJSON_GetObjectItemCaseSensitive(page, "traceEvents"))
    {
        fputs(is_first && n == 0 ? "\n" : ",\n", file);
        print_item(file, event, path);
        n++;
    }
    return n;
}

/* What is recorded while the file is written is not waited for. */
int ctl_run_trace_export(ctl_options *o)
{
    ctl_connection c;
    uint64_t next = 0, end = 0, started_ns = 0, dropped = 0;
    int64_t n = 0;
    if (o->n_words == 0)
        ctl_usage("trace-export: a file is missing");
    const char *path = o->words[0];
    ctl_open(&c, o);
    FILE *file = open_part(path);
    for (bool is_first = true; is_first || next < end; is_first = false) {
        cJSON *page = get_page(&c, o, next);
        const cJSON *other = cJSON_GetObjectItemCaseSensitive(page, "otherData");
        if (is_first) {
            end = number_at(other, "recorded");
            started_ns = number_at(other, "started_ns");
            fputs("{\"displayTimeUnit\":\"ns\",\"otherData\":", file);
            print_item(file, other, path);
            fputs(",\"traceEvents\":[", file);
        }
        if (number_at(other, "started_ns") != started_ns || number_at(page, "next") < next)
            leave(path, "another trace was started meanwhile");
        n += print_events(file, page, is_first, path);
        dropped = number_at(other, "dropped");
        next = number_at(page, "next");
        cJSON_Delete(page);
    }
    fputs("\n]}\n", file);
    close_part(file, path);
    ctl_close(&c);
    cJSON *result = cJSON_CreateObject();
    cJSON_AddStringToObject(result, "file", path);
    cJSON_AddNumberToObject(result, "events", (double)n);
    cJSON_AddNumberToObject(result, "dropped", (double)dropped);
    if (o->json)
        ctl_print_json(result);
    else
        ctl_print_human(o->command, result);
    cJSON_Delete(result);
    return CTL_OK;
}
