/* metrics.c: the text of /metrics.
 *
 * It is written anew for each scrape: a name, its help and type, then its series, so that no series
 * stands without a type or twice. A counter or gauge of stats.h that no table below names appears
 * under its own name.
 */
#include "daemon/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/stats.h"

enum { MAX_TEXT = 160, MAX_POOL_ROWS = 1000 /* names come from clients */ };

/* ---- The text: names and series ----------------------------------------------------------------
 */

static void write_head(FILE *out, const char *name, const char *type, const char *help)
{
    fprintf(out, "# HELP attnd_%s %s\n# TYPE attnd_%s %s\n", name, help, name, type);
}

/* A label's value in quotes: backslash, quote and line end are escaped. */
static void write_label(FILE *out, const char *name, const char *value)
{
    fprintf(out, "%s=\"", name);
    for (; *value; value++) {
        if (*value == '\n')
            fputs("\\n", out);
        else if (*value == '\\' || *value == '"')
            fprintf(out, "\\%c", *value);
        else
            fputc(*value, out);
    }
    fputc('"', out);
}

/* 1-2.5-5 from 5 µs to 10 s. */
static const uint64_t BOUNDS_NS[] = {5000,      10000,      25000,      50000,      100000,
                                     250000,    500000,     1000000,    2500000,    5000000,
                                     10000000,  25000000,   50000000,   100000000,  250000000,
                                     500000000, 1000000000, 2500000000, 5000000000, 10000000000};

enum { N_BOUNDS = sizeof BOUNDS_NS / sizeof *BOUNDS_NS };

/* One histogram of a name: label is "op" or "kernel", or NULL for none. */
static void write_curve(FILE *out, const char *name, const char *label, const char *value,
                        const double *bounds, size_t n, const uint64_t *upto, srv_curve curve)
{
    for (size_t i = 0; i <= n; i++) {
        fprintf(out, "attnd_%s_bucket{", name);
        if (label) {
            write_label(out, label, value);
            fputc(',', out);
        }
        if (i < n)
            fprintf(out, "le=\"%.10g\"} %llu\n", bounds[i], (unsigned long long)upto[i]);
        else
            fprintf(out, "le=\"+Inf\"} %llu\n", (unsigned long long)curve.count);
    }
    static const char *const parts[] = {"_sum", "_count"};
    for (int i = 0; i < 2; i++) {
        fprintf(out, "attnd_%s%s", name, parts[i]);
        if (label) {
            fputc('{', out);
            write_label(out, label, value);
            fputc('}', out);
        }
        if (i == 0)
            fprintf(out, " %.9g\n", curve.sum);
        else
            fprintf(out, " %llu\n", (unsigned long long)curve.count);
    }
}

static void write_duration(FILE *out, const char *name, const char *label, const char *value,
                           const uint64_t *upto, srv_curve curve)
{
    double bounds[N_BOUNDS];
    for (size_t i = 0; i < N_BOUNDS; i++)
        bounds[i] = (double)BOUNDS_NS[i] / 1e9;
    write_curve(out, name, label, value, bounds, N_BOUNDS, upto, curve);
}

/* ---- Requests ----------------------------------------------------------------------------------
 */

static const struct {
    msg_op op;
    const char *name;
} OPS[] = {{MSG_OP_NONE, "none"},
#define X(name, number, Name) {MSG_OP_##name, #name},
           MSG_OP_MAP(X)
#undef X
};

static const attnd_status STATUSES[] = {
#define X(name, number, mender, text) ATTND_##name,
    ATTND_STATUS_MAP(X)
#undef X
};

enum { N_OPS = sizeof OPS / sizeof *OPS, N_STATUSES = sizeof STATUSES / sizeof *STATUSES };

static void write_requests(FILE *out)
{
    write_head(out, "requests_total", "counter", "Requests answered.");
    for (size_t i = 0; i < N_OPS; i++)
        for (size_t j = 0; j < N_STATUSES; j++) {
            uint64_t n = srv_stats_op_status(OPS[i].op, STATUSES[j]);
            if (n)
                fprintf(out, "attnd_requests_total{op=\"%s\",code=\"%s\"} %llu\n", OPS[i].name,
                        attnd_status_name(STATUSES[j]), (unsigned long long)n);
        }
}

static void write_stages(FILE *out)
{
    static const struct {
        srv_stage stage;
        const char *name, *help;
    } rows[] = {
        {SRV_STAGE_TOTAL, "request_duration_seconds", "From receipt to reply."},
        {SRV_STAGE_QUEUE, "queue_duration_seconds", "From decoded to taken by the engine thread."},
        {SRV_STAGE_PLAN, "plan_duration_seconds", "Choosing a kernel and splitting the work."},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        write_head(out, rows[r].name, "histogram", rows[r].help);
        for (size_t i = 0; i < N_OPS; i++) {
            uint64_t upto[N_BOUNDS];
            srv_curve curve =
                srv_stats_op_curve(OPS[i].op, rows[r].stage, BOUNDS_NS, N_BOUNDS, upto);
            if (curve.count)
                write_duration(out, rows[r].name, "op", OPS[i].name, upto, curve);
        }
    }
}

static void write_sizes(FILE *out)
{
    static const char *const names[] = {
        [SRV_SIZE_TOKENS] = "batch_tokens", [SRV_SIZE_ROWS] = "batch_rows"};
    static const char *const helps[] = {[SRV_SIZE_TOKENS] = "Query tokens of a launch.",
                                        [SRV_SIZE_ROWS] = "Sequences of a launch."};
    double bounds[SRV_N_SIZES];
    for (size_t i = 0; i < SRV_N_SIZES; i++)
        bounds[i] = (double)srv_stats_size_bound(i);
    for (int size = 0; size < SRV_N_SIZE_KINDS; size++) {
        uint64_t upto[SRV_N_SIZES];
        srv_curve curve = srv_stats_size_curve((srv_size)size, upto);
        write_head(out, names[size], "histogram", helps[size]);
        write_curve(out, names[size], NULL, NULL, bounds, SRV_N_SIZES, upto, curve);
    }
}

/* ---- Kernels -----------------------------------------------------------------------------------
 */

typedef enum kernel_number {
    LAUNCHES,
    FLOOR_BYTES,
    FLOOR_OPERATIONS,
    N_KERNEL_NUMBERS
} kernel_number;

static double kernel_value(const srv_kernel_stats *stats, kernel_number number)
{
    if (number == LAUNCHES)
        return (double)stats->launches;
    return number == FLOOR_BYTES ? stats->bytes : stats->flops;
}

static void write_kernels(FILE *out)
{
    static const char *const names[] = {"kernel_launches_total", "kernel_floor_bytes_total",
                                        "kernel_floor_operations_total"};
    static const char *const helps[] = {
        "Launches in which the kernel took part.",
        "Bytes those launches could not do without, both phases of each.",
        "Floating-point operations those launches could not do without, both phases of each."};
    for (kernel_number number = 0; number < N_KERNEL_NUMBERS; number++) {
        write_head(out, names[number], "counter", helps[number]);
        for (size_t i = 0; i < ker_n_kernels(); i++) {
            srv_kernel_stats stats = srv_stats_kernel(i);
            if (stats.launches)
                fprintf(out, "attnd_%s{kernel=\"%s\"} %.17g\n", names[number],
                        ker_kernel_name(ker_kernel_at(i)), kernel_value(&stats, number));
        }
    }
    write_head(out, "kernel_duration_seconds", "histogram",
               "On the device, of the launches in which the kernel took part.");
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        uint64_t upto[N_BOUNDS];
        srv_curve curve = srv_stats_kernel_curve(i, BOUNDS_NS, N_BOUNDS, upto);
        if (curve.count)
            write_duration(out, "kernel_duration_seconds", "kernel",
                           ker_kernel_name(ker_kernel_at(i)), upto, curve);
    }
}

/* ---- Plain numbers -----------------------------------------------------------------------------
 */

/* Counters and gauges whose name for Prometheus is not their own; NULL: said elsewhere. */
static const struct {
    const char *name, *metric;
} RENAMED[] = {
    {"requests", NULL}, {"in_flight", NULL},         {"queued", NULL},
    {"parked", NULL},   {"device_errors", "errors"}, {"disconnects", "client_disconnects"},
};

static const char *metric_of(const char *name)
{
    for (size_t i = 0; i < sizeof RENAMED / sizeof *RENAMED; i++)
        if (strcmp(RENAMED[i].name, name) == 0)
            return RENAMED[i].metric;
    return name;
}

static void write_counter(FILE *out, const char *name, const char *help, uint64_t value)
{
    char text[MAX_TEXT], words[MAX_TEXT];
    const char *metric = metric_of(name);
    if (!metric)
        return;
    snprintf(text, sizeof text, "%s_total", metric);
    snprintf(words, sizeof words, "Counts %s.", help);
    write_head(out, text, "counter", words);
    fprintf(out, "attnd_%s %llu\n", text, (unsigned long long)value);
}

static void write_gauge(FILE *out, const char *name, const char *help, int64_t value)
{
    char words[MAX_TEXT];
    const char *metric = metric_of(name);
    if (!metric)
        return;
    snprintf(words, sizeof words, "Now: %s.", help);
    write_head(out, metric, "gauge", words);
    fprintf(out, "attnd_%s %lld\n", metric, (long long)value);
}

/* Those in flight that are parked run no more than those in the queue do. */
static void write_load(FILE *out)
{
    int64_t in_flight = srv_stats_gauge_value(SRV_GAUGE_in_flight);
    int64_t parked = srv_stats_gauge_value(SRV_GAUGE_parked);
    int64_t queued = srv_stats_gauge_value(SRV_GAUGE_queued);
    int64_t running = in_flight > parked ? in_flight - parked : 0, waiting = queued + parked;
    write_head(out, "requests_running", "gauge",
               "Requests accepted and not answered, those that wait and Ping and Hello aside.");
    fprintf(out, "attnd_requests_running %lld\n", (long long)running);
    write_head(out, "requests_waiting", "gauge",
               "Requests in the queue of the engine thread, or that wait for other requests.");
    fprintf(out, "attnd_requests_waiting %lld\n", (long long)waiting);
}

static void write_numbers(FILE *out)
{
#define X(name, help) write_counter(out, #name, help, srv_stats_counter(SRV_COUNT_##name));
    SRV_COUNTER_MAP(X)
#undef X
#define X(name, help) write_gauge(out, #name, help, srv_stats_gauge_value(SRV_GAUGE_##name));
    SRV_GAUGE_MAP(X)
#undef X
}

static void write_build(FILE *out, const srv_metrics *m)
{
    write_head(out, "build_info", "gauge", "1, with what was built and what it runs on.");
    fputs("attnd_build_info{", out);
    write_label(out, "version", m->version);
    fputc(',', out);
    write_label(out, "commit", m->commit);
    fputc(',', out);
    write_label(out, "backend", m->device->backend);
    fputc(',', out);
    write_label(out, "device", m->device->name);
    fputc(',', out);
    write_label(out, "isa", m->device->isa);
    fputs("} 1\n", out);
    write_head(out, "device_threads", "gauge", "Threads that compute.");
    fprintf(out, "attnd_device_threads %u\n", m->device->n_threads);
}

/* ---- Pools -------------------------------------------------------------------------------------
 */

/* Pools of the same names, of whatever sessions, are one series. */
typedef struct pool_row {
    const char *model, *name;
    uint64_t client, free, used, bytes; /* blocks; client: of pools whose client hands them out */
} pool_row;

static const char *model_name(const srv_snapshot *s, uint64_t handle)
{
    for (size_t i = 0; i < s->n_models; i++)
        if (s->models[i].handle == handle)
            return s->models[i].name;
    return "";
}

static int compare_rows(const void *a, const void *b)
{
    const pool_row *x = a, *y = b;
    int by_model = strcmp(x->model, y->model);
    return by_model ? by_model : strcmp(x->name, y->name);
}

/* Fills rows[n_pools] in the order of their names; how many there are. */
static size_t pool_rows(const srv_snapshot *s, pool_row *rows)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n_pools; i++) {
        const srv_pool_view *p = &s->pools[i];
        bool is_clients = p->owner == KV_OWNER_CLIENT;
        rows[i] = (pool_row){.model = model_name(s, p->model),
                             .name = p->name,
                             .client = is_clients ? p->n_blocks : 0,
                             .free = is_clients ? 0 : p->n_free,
                             .used = is_clients ? 0 : p->n_blocks - p->n_free,
                             .bytes = p->bytes};
    }
    qsort(rows, s->n_pools, sizeof *rows, compare_rows);
    for (size_t i = 0; i < s->n_pools; i++) {
        if (n == 0 || compare_rows(&rows[n - 1], &rows[i]) != 0) {
            rows[n++] = rows[i];
            continue;
        }
        rows[n - 1].client += rows[i].client;
        rows[n - 1].free += rows[i].free;
        rows[n - 1].used += rows[i].used;
        rows[n - 1].bytes += rows[i].bytes;
    }
    return n;
}

/* Its labels, the last one left to the caller. */
static void write_pool(FILE *out, const char *name, const pool_row *row)
{
    fprintf(out, "attnd_%s{", name);
    write_label(out, "model", row->model);
    fputc(',', out);
    write_label(out, "pool", row->name);
}

static void write_pool_rows(FILE *out, const pool_row *rows, size_t n)
{
    write_head(out, "kv_blocks", "gauge",
               "Blocks of the pools of these names, together all: free, used, or handed out by the "
               "client, who alone knows which he uses.");
    for (const pool_row *r = rows; r < rows + n; r++) {
        const uint64_t blocks[] = {r->client, r->free, r->used};
        static const char *const states[] = {"client", "free", "used"};
        for (int i = 0; i < 3; i++) {
            write_pool(out, "kv_blocks", r);
            fprintf(out, ",state=\"%s\"} %llu\n", states[i], (unsigned long long)blocks[i]);
        }
    }
    write_head(out, "kv_pool_bytes", "gauge", "Bytes of the pools of these names.");
    for (const pool_row *r = rows; r < rows + n; r++) {
        write_pool(out, "kv_pool_bytes", r);
        fprintf(out, "} %llu\n", (unsigned long long)r->bytes);
    }
    write_head(out, "kv_cache_usage_ratio", "gauge",
               "Blocks used of those that the server hands out, 0 to 1.");
    for (const pool_row *r = rows; r < rows + n; r++) {
        if (r->free + r->used == 0)
            continue;
        write_pool(out, "kv_cache_usage_ratio", r);
        fprintf(out, "} %.9g\n", (double)r->used / (double)(r->free + r->used));
    }
}

static void write_pools(FILE *out, const srv_snapshot *s)
{
    write_head(
        out, "engine_up", "gauge",
        "1: the engine thread answered this scrape; 0: it is held up, and pools are left out.");
    fprintf(out, "attnd_engine_up %d\n", s != NULL);
    pool_row *rows = s ? malloc((s->n_pools + 1) * sizeof *rows) : NULL;
    if (!rows)
        return;
    size_t n = pool_rows(s, rows);
    write_head(out, "kv_pools", "gauge",
               "Open pools. Those of the first 1000 names have series of their own.");
    fprintf(out, "attnd_kv_pools %zu\n", s->n_pools);
    write_pool_rows(out, rows, n < MAX_POOL_ROWS ? n : MAX_POOL_ROWS);
    free(rows);
}

/* ---- The process -------------------------------------------------------------------------------
 */

static void write_process_number(FILE *out, const char *name, const char *type, const char *help,
                                 double value)
{
    fprintf(out, "# HELP process_%s %s\n# TYPE process_%s %s\nprocess_%s %.17g\n", name, help, name,
            type, name, value);
}

/* Open descriptors, but for the one that looks. */
static double n_open_fds(void)
{
    double n = -3; /* ".", ".." and the folder itself */
    DIR *folder = opendir("/proc/self/fd");
    if (!folder)
        return 0;
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* Pages of the address space and of memory. */
static void read_pages(double *all, double *resident)
{
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file || fscanf(file, "%lf %lf", all, resident) != 2)
        *all = *resident = 0;
    if (file)
        fclose(file);
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static void write_process(FILE *out, double started_s)
{
    struct rusage used;
    struct rlimit files;
    double all, resident, page = (double)sysconf(_SC_PAGESIZE);
    read_pages(&all, &resident);
    getrusage(RUSAGE_SELF, &used);
    getrlimit(RLIMIT_NOFILE, &files);
    write_process_number(out, "cpu_seconds_total", "counter", "User and system time.",
                         seconds_of(used.ru_utime) + seconds_of(used.ru_stime));
    write_process_number(out, "resident_memory_bytes", "gauge", "Memory in use, pools included.",
                         resident * page);
    write_process_number(out, "virtual_memory_bytes", "gauge", "Address space in use.", all * page);
    write_process_number(out, "open_fds", "gauge", "Open file descriptors.", n_open_fds());
    write_process_number(out, "max_fds", "gauge", "The most there may be.", (double)files.rlim_cur);
    write_process_number(out, "start_time_seconds", "gauge", "When it started, since the epoch.",
                         started_s);
}

char *srv_metrics_text(const srv_metrics *m, size_t *n)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    if (!out)
        return NULL;
    write_build(out, m);
    write_requests(out);
    write_stages(out);
    write_sizes(out);
    write_kernels(out);
    write_load(out);
    write_numbers(out);
    write_pools(out, m->snapshot);
    write_process(out, m->started_s);
    bool is_whole = !ferror(out);
    if (fclose(out) || !is_whole) {
        free(text);
        return NULL;
    }
    return text;
}
