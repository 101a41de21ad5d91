/* http.c: /metrics, /healthz, /readyz over libmicrohttpd. The text of /metrics is metrics.c's.
 */
#include "daemon/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/metrics.h"
#include "daemon/stats.h"

enum {
    MAX_CONNECTIONS = 32, /* one more: the oldest is closed */
    MAX_ACCEPTED = 64,    /* those included that are being closed */
    IDLE_S = 10,
    CONNECTION_BYTES = 16 << 10,
    SILENT_MS = 10000, /* a loop that has not turned for this long is held up */
    LOOK_MS = 500,     /* the engine thread may take for what it owns */
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
    const srv_http_deps *deps = &http->deps;
    srv_snapshot *snapshot = srv_snapshot_take(deps->engine, deps->snapshot_fill, LOOK_MS);
    srv_metrics metrics = {.version = deps->version,
                           .commit = deps->commit,
                           .device = deps->device,
                           .started_s = http->started_s,
                           .snapshot = snapshot};
    char *text = srv_metrics_text(&metrics, &n);
    srv_snapshot_give(snapshot);
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
