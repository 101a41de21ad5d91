/* http.c: /metrics, /healthz, /readyz over libmicrohttpd.
 *
 * The text is written anew for each scrape: a name, its help and type, then its series, so that no
 * series stands without a type or twice. A counter or gauge of stats.h that no table below names
 * appears under its own name.
 */
#include "daemon/http.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/stats.h"

enum {
    MAX_CONNECTIONS = 32, /* one more: the oldest is closed */
    MAX_ACCEPTED = 64,    /* those included that are being closed */
    IDLE_S = 10,
    CONNECTION_BYTES = 16 << 10,
    SILENT_MS = 10000, /* a loop that has not turned for this long is held up */
    MAX_TEXT = 160,
};

/* A connection that is open. */
typedef struct seat {
    int fd;        /* -1: free, or being closed */
    uint64_t turn; /* of http->turns; 0: free */
} seat;

struct srv_http {
    struct MHD_Daemon *daemon;
    seat seats[MAX_ACCEPTED]; /* owner: the HTTP thread */
    uint64_t turns;           /* so many connections came */
    srv_http_deps deps;
    uint16_t port;
    double started_s; /* since the epoch */
};

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
    {"requests", NULL},
    {"in_flight", "requests_running"},
    {"device_errors", "errors"},
    {"disconnects", "client_disconnects"},
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

static void write_numbers(FILE *out)
{
#define X(name, help) write_counter(out, #name, help, srv_stats_counter(SRV_COUNT_##name));
    SRV_COUNTER_MAP(X)
#undef X
#define X(name, help) write_gauge(out, #name, help, srv_stats_gauge_value(SRV_GAUGE_##name));
    SRV_GAUGE_MAP(X)
#undef X
}

static void write_build(FILE *out, const srv_http_deps *deps)
{
    write_head(out, "build_info", "gauge", "1, with what was built and what it runs on.");
    fputs("attnd_build_info{", out);
    write_label(out, "version", deps->version);
    fputc(',', out);
    write_label(out, "commit", deps->commit);
    fputc(',', out);
    write_label(out, "backend", deps->device->backend);
    fputc(',', out);
    write_label(out, "device", deps->device->name);
    fputc(',', out);
    write_label(out, "isa", deps->device->isa);
    fputs("} 1\n", out);
    write_head(out, "device_threads", "gauge", "Threads that compute.");
    fprintf(out, "attnd_device_threads %u\n", deps->device->n_threads);
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

/* The whole page; the caller frees it. NULL when there is no memory. */
static char *metrics_text(const srv_http *http, size_t *n)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    if (!out)
        return NULL;
    write_build(out, &http->deps);
    write_requests(out);
    write_stages(out);
    write_sizes(out);
    write_kernels(out);
    write_numbers(out);
    write_process(out, http->started_s);
    bool is_whole = !ferror(out);
    if (fclose(out) || !is_whole) {
        free(text);
        return NULL;
    }
    return text;
}

/* ---- Answers -----------------------------------------------------------------------------------
 */

/* Takes the text (from malloc); NULL: 500 without one. */
static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type,
                              char *text, size_t n)
{
    struct MHD_Response *response =
        text ? MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE)
             : MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    if (!response) {
        free(text);
        return MHD_NO;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    enum MHD_Result result =
        MHD_queue_response(connection, text ? code : MHD_HTTP_INTERNAL_SERVER_ERROR, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer_line(struct MHD_Connection *connection, unsigned code,
                                   const char *type, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static enum MHD_Result answer_line(struct MHD_Connection *connection, unsigned code,
                                   const char *type, const char *fmt, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&text, fmt, args);
    va_end(args);
    return answer(connection, code, type, n < 0 ? NULL : text, n < 0 ? 0 : (size_t)n);
}

static const char PLAIN[] = "text/plain; charset=utf-8", JSON[] = "application/json";

static enum MHD_Result answer_metrics(srv_http *http, struct MHD_Connection *connection)
{
    size_t n = 0;
    char *text = metrics_text(http, &n);
    return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text, n);
}

static enum MHD_Result answer_health(srv_http *http, struct MHD_Connection *connection)
{
    uint64_t silent_ms = http->deps.silent_ms(http->deps.server);
    if (silent_ms < SILENT_MS)
        return answer_line(connection, MHD_HTTP_OK, JSON, "{\"healthy\":true}\n");
    return answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE, JSON,
                       "{\"healthy\":false,\"why\":\"the loop has not turned for %llu ms\"}\n",
                       (unsigned long long)silent_ms);
}

static enum MHD_Result answer_ready(srv_http *http, struct MHD_Connection *connection)
{
    char why[128];
    if (http->deps.is_ready(http->deps.server, why))
        return answer_line(connection, MHD_HTTP_OK, JSON, "{\"ready\":true}\n");
    return answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE, JSON,
                       "{\"ready\":false,\"why\":\"%s\"}\n", why);
}

/* ---- Connections. On the HTTP thread. ---------------------------------------------------------
 */

/* One too many: the oldest, whose request, if there is one, was answered at once, is hung up on.
 * libmicrohttpd would let nobody in until one of them is idle for IDLE_S. */
static void make_room(srv_http *http)
{
    seat *oldest = NULL;
    size_t n = 0;
    for (seat *s = http->seats; s < http->seats + MAX_ACCEPTED; s++) {
        if (s->fd < 0)
            continue;
        n++;
        if (!oldest || s->turn < oldest->turn)
            oldest = s;
    }
    if (n <= MAX_CONNECTIONS)
        return;
    shutdown(oldest->fd, SHUT_RDWR);
    oldest->fd = -1;
    srv_stats_add(SRV_COUNT_connections_displaced, 1);
}

static void on_connection(void *self, struct MHD_Connection *connection, void **state,
                          enum MHD_ConnectionNotificationCode code)
{
    srv_http *http = self;
    seat *s = *state;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (s)
            *s = (seat){.fd = -1};
        return;
    }
    for (s = http->seats; s < http->seats + MAX_ACCEPTED && (s->fd >= 0 || s->turn); s++)
        ;
    if (s == http->seats + MAX_ACCEPTED)
        return;
    *s = (seat){
        .fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
        .turn = ++http->turns};
    *state = s;
    make_room(http);
}

/* On the HTTP thread. */
static enum MHD_Result on_request(void *self, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **state)
{
    static const struct {
        const char *path;
        enum MHD_Result (*answer)(srv_http *http, struct MHD_Connection *connection);
    } pages[] = {
        {"/metrics", answer_metrics}, {"/healthz", answer_health}, {"/readyz", answer_ready}};
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, PLAIN, "GET and HEAD\n");
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (strcmp(url, pages[i].path) == 0)
            return pages[i].answer(self, connection);
    return answer_line(connection, MHD_HTTP_NOT_FOUND, PLAIN, "/metrics /healthz /readyz\n");
}

/* ---- The address -------------------------------------------------------------------------------
 */

typedef union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} address;

/* "127.0.0.1:9464" or "[::1]:9464"; numbers only, so that nobody is asked. */
static bool address_read(const char *text, address *out)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    if (!colon || !colon[1] || strlen(colon + 1) > 5 || colon[1 + strspn(colon + 1, "0123456789")])
        return false;
    unsigned long port = strtoul(colon + 1, NULL, 10);
    size_t n = (size_t)(colon - text);
    if (port > UINT16_MAX || n == 0 || n >= sizeof host)
        return false;
    memset(out, 0, sizeof *out);
    bool is_v6 = text[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(is_v6 ? n - 2 : n), text + is_v6);
    if (is_v6) {
        out->v6.sin6_family = AF_INET6;
        out->v6.sin6_port = htons((uint16_t)port);
        return inet_pton(AF_INET6, host, &out->v6.sin6_addr) == 1;
    }
    out->v4.sin_family = AF_INET;
    out->v4.sin_port = htons((uint16_t)port);
    return inet_pton(AF_INET, host, &out->v4.sin_addr) == 1;
}

static bool address_is_loopback(const address *a)
{
    if (a->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
    return ntohl(a->v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

static attnd_status address_get(const cfg *c, address *out, attnd_err *err)
{
    if (!address_read(c->http_address, out))
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "http.address = %.80s: a number and a port, 127.0.0.1:9464 or [::1]:9464",
                          c->http_address);
    if (!address_is_loopback(out) && !c->http_expose)
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "http.address = %.80s: not a loopback address; http.expose = true allows "
                          "it, and whoever reaches it reads the numbers",
                          c->http_address);
    return ATTND_OK;
}

attnd_status srv_http_check(const cfg *c, attnd_err *err)
{
    address unused;
    return c->http_address[0] ? address_get(c, &unused, err) : ATTND_OK;
}

/* ---- Open and close ----------------------------------------------------------------------------
 */

attnd_status srv_http_open(srv_http **out, const cfg *c, const srv_http_deps *deps, attnd_err *err)
{
    address at;
    struct timespec now;
    *out = NULL;
    if (!c->http_address[0])
        return ATTND_OK;
    TRY(address_get(c, &at, err));
    srv_http *http = calloc(1, sizeof *http);
    if (!http)
        return attnd_fail(err, ATTND_NO_ROOM, "http.address = %s: no memory", c->http_address);
    clock_gettime(CLOCK_REALTIME, &now);
    http->deps = *deps;
    for (size_t i = 0; i < MAX_ACCEPTED; i++)
        http->seats[i].fd = -1;
    http->started_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD;
    if (at.any.sa_family == AF_INET6)
        flags |= MHD_USE_IPv6;
    errno = 0;
    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, http, MHD_OPTION_SOCK_ADDR, &at.any,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_ACCEPTED, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, http, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (!http->daemon) {
        free(http);
        return attnd_fail(err, ATTND_UNREACHABLE, "http.address = %s: %s", c->http_address,
                          errno ? strerror(errno) : "cannot be listened on");
    }
    http->port = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT)->port;
    *out = http;
    return ATTND_OK;
}

uint16_t srv_http_port(const srv_http *http)
{
    return http->port;
}

void srv_http_close(srv_http *http)
{
    if (!http)
        return;
    MHD_stop_daemon(http->daemon);
    free(http);
}
