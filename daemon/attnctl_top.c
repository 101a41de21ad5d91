/* attnctl_top.c: what happened between two looks at a daemon, as rates, every second.
 */
#include "daemon/attnctl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* One look: results of stats.get and sessions.list. */
typedef struct look {
    cJSON *stats, *sessions;
    double at_s; /* CLOCK_MONOTONIC */
} look;

/* A number, or one that is written as a string of digits; absent: 0. */
static double number_at(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? strtod(item->valuestring, NULL) : item ? item->valuedouble : 0;
}

static double grown(const cJSON *before, const cJSON *after, const char *name)
{
    double was = number_at(before, name), is = number_at(after, name);
    return is >= was ? is - was : is;
}

/* Three decimals are kept. */
static void add_real(cJSON *at, const char *name, double value)
{
    cJSON_AddNumberToObject(at, name, round(value * 1000) / 1000);
}

/* The row of a list whose key is what it is in row; NULL: there is none. */
static const cJSON *same_row(const cJSON *list, const cJSON *row, const char *key)
{
    const cJSON *wanted = cJSON_GetObjectItemCaseSensitive(row, key), *other;
    cJSON_ArrayForEach(other, list) if (cJSON_Compare(cJSON_GetObjectItemCaseSensitive(other, key),
                                                      wanted, true)) return other;
    return NULL;
}

static const cJSON *part(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static void copy(cJSON *to, const cJSON *from, const char *name, const char *as)
{
    cJSON *item = cJSON_Duplicate(part(from, name), true);
    if (item)
        cJSON_AddItemToObject(to, as, item);
}

/* Of times: the mean of those between the looks; quantiles are since the start. */
static void add_times(cJSON *at, const cJSON *before, const cJSON *after)
{
    double n = grown(before, after, "count");
    add_real(at, "mean_us", n > 0 ? grown(before, after, "sum") / n : 0);
    copy(at, after, "p50", "p50_us");
    copy(at, after, "p99", "p99_us");
}

static void add_ops(cJSON *out, const look *before, const look *after, double seconds)
{
    cJSON *list = cJSON_AddArrayToObject(out, "ops");
    const cJSON *row;
    cJSON_ArrayForEach(row, part(after->stats, "ops"))
    {
        const cJSON *was = same_row(part(before->stats, "ops"), row, "op");
        const cJSON *codes = part(row, "codes"), *had = part(was, "codes");
        double n = grown(was, row, "count");
        if (n == 0)
            continue;
        cJSON *at = cJSON_CreateObject();
        copy(at, row, "op", "op");
        add_real(at, "per_s", n / seconds);
        add_real(at, "refused_per_s", (n - grown(had, codes, "OK")) / seconds);
        add_times(at, part(was, "total_us"), part(row, "total_us"));
        cJSON_AddItemToArray(list, at);
    }
}

static void add_kernels(cJSON *out, const look *before, const look *after, double seconds)
{
    cJSON *list = cJSON_AddArrayToObject(out, "kernels");
    const cJSON *row;
    cJSON_ArrayForEach(row, part(after->stats, "kernels"))
    {
        const cJSON *was = same_row(part(before->stats, "kernels"), row, "kernel");
        const cJSON *times = part(row, "device_us"), *had = part(was, "device_us");
        double n = grown(was, row, "launches");
        if (n == 0)
            continue;
        cJSON *at = cJSON_CreateObject();
        copy(at, row, "kernel", "kernel");
        add_real(at, "per_s", n / seconds);
        add_real(at, "gb_per_s", grown(was, row, "bytes") / seconds / 1e9);
        add_real(at, "gflop_per_s", grown(was, row, "flops") / seconds / 1e9);
        add_real(at, "busy", grown(had, times, "sum") / 1e6 / seconds);
        add_times(at, had, times);
        cJSON_AddItemToArray(list, at);
    }
}

static void add_sessions(cJSON *out, const look *before, const look *after, double seconds)
{
    static const char *const names[] = {"n_in_flight", "n_models", "n_buffers", "pool_bytes",
                                        "buffer_bytes"};
    cJSON *list = cJSON_AddArrayToObject(out, "sessions");
    const cJSON *row;
    cJSON_ArrayForEach(row, part(after->sessions, "sessions"))
    {
        const cJSON *was = same_row(part(before->sessions, "sessions"), row, "session");
        cJSON *at = cJSON_CreateObject();
        copy(at, row, "session", "session");
        copy(at, row, "client", "client");
        add_real(at, "per_s", grown(was, row, "n_requests") / seconds);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            copy(at, row, names[i], names[i]);
        cJSON_AddItemToArray(list, at);
    }
}

/* An object that the caller deletes: interval_s, rates (a second), gauges (as they are), and lists
 * ops, kernels and sessions, without the ops and kernels that did nothing meanwhile. A number that
 * fell was set to zero in between and counts from there. */
static cJSON *rates_between(const look *before, const look *after)
{
    static const char *const names[] = {"requests", "refused", "query_tokens", "received_bytes",
                                        "sent_bytes"};
    const cJSON *was = part(before->stats, "counters"), *is = part(after->stats, "counters");
    double seconds = after->at_s - before->at_s;
    cJSON *out = cJSON_CreateObject();
    add_real(out, "interval_s", seconds);
    cJSON *rates = cJSON_AddObjectToObject(out, "rates");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add_real(rates, names[i], grown(was, is, names[i]) / seconds);
    copy(out, after->stats, "gauges", "gauges");
    add_ops(out, before, after, seconds);
    add_kernels(out, before, after, seconds);
    add_sessions(out, before, after, seconds);
    return out;
}

/* ---- The view --------------------------------------------------------------------------------
 */

static look look_open(ctl_connection *c, const ctl_options *o)
{
    look out = {.stats = ctl_get(c, o, "stats.get"), .sessions = ctl_get(c, o, "sessions.list")};
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    out.at_s = (double)t.tv_sec + (double)t.tv_nsec / 1e9;
    return out;
}

static void look_fini(look *l)
{
    cJSON_Delete(l->stats);
    cJSON_Delete(l->sessions);
}

/* "attnd 0.1.0  cpu avx2  2 threads  ready  up 75 s". */
static void print_daemon(const cJSON *info)
{
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(info, "device");
    const cJSON *why = cJSON_GetObjectItemCaseSensitive(info, "why");
    const char *waits = cJSON_GetStringValue(why);
    char version[64], backend[32], isa[32], threads[32], uptime[32];
    ctl_cell_text(cJSON_GetObjectItemCaseSensitive(info, "version"), version, sizeof version);
    ctl_cell_text(cJSON_GetObjectItemCaseSensitive(device, "backend"), backend, sizeof backend);
    ctl_cell_text(cJSON_GetObjectItemCaseSensitive(device, "isa"), isa, sizeof isa);
    ctl_cell_text(cJSON_GetObjectItemCaseSensitive(device, "n_threads"), threads, sizeof threads);
    ctl_cell_text(cJSON_GetObjectItemCaseSensitive(info, "uptime_ms"), uptime, sizeof uptime);
    printf("attnd %s  %s %s  %s threads  %s  up %lld s\n", version, backend, isa, threads,
           waits && *waits ? waits : "ready", strtoll(uptime, NULL, 10) / 1000);
}

/* Members side by side: "requests/s 20.1  refused/s 0". */
static void print_pairs(const cJSON *object, const char *suffix)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        char cell[64];
        ctl_cell_text(item, cell, sizeof cell);
        printf("%s%s%s %s", item == object->child ? "" : "  ", item->string, suffix, cell);
    }
    printf("\n");
}

static void print_top(const cJSON *info, const cJSON *view)
{
    static const char *const lists[] = {"ops", "kernels", "sessions"};
    print_daemon(info);
    print_pairs(cJSON_GetObjectItemCaseSensitive(view, "rates"), "/s");
    print_pairs(cJSON_GetObjectItemCaseSensitive(view, "gauges"), "");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(view, lists[i]);
        printf("\n");
        if (list->child)
            ctl_print_table(list, 0);
        else
            printf("no %s\n", lists[i]);
    }
}

int ctl_run_top(ctl_options *o)
{
    ctl_connection c;
    ctl_open(&c, o);
    look before = look_open(&c, o);
    for (int64_t round = 0; !o->count || round < o->count; round++) {
        ctl_sleep_ms(o->interval_ms);
        look after = look_open(&c, o);
        cJSON *info = ctl_get(&c, o, "server.info"), *view = rates_between(&before, &after);
        ctl_begin_round(o, round);
        if (o->json)
            ctl_print_json_line(view);
        else
            print_top(info, view);
        cJSON_Delete(view);
        cJSON_Delete(info);
        look_fini(&before);
        before = after;
    }
    look_fini(&before);
    ctl_close(&c);
    return CTL_OK;
}
