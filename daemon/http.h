/* http.h: /metrics (Prometheus text 0.0.4), /healthz and /readyz, for who scrapes and probes.
 *
 * A thread of its own answers; it reads counters, gauges and what deps say, and asks the engine
 * thread for the pools, which it waits for at most half a second. GET and HEAD only, at most 32
 * connections, each idle for at most 10 s; one more is let in for the oldest. A connection ends
 * with its answer. Off unless http.address is set.
 *
 *   /healthz   200 while the loop turns, 503 when it has been silent for 10 s
 *   /readyz    200 when new work is taken, 503 with what is not ready
 *
 * The body of both is one line of JSON.
 */
#ifndef ATTND_DAEMON_HTTP_H
#define ATTND_DAEMON_HTTP_H

#include "config/config.h"
#include "daemon/snapshot.h"
#include "kernels/attention.h"

typedef struct srv_http srv_http;

typedef struct srv_http_deps {
    const char *version, *commit;
    const ker_device_info *device;                               /* does not change any more */
    srv_queue *engine;                                           /* snapshots go here */
    void (*snapshot_fill)(srv_engine *engine, srv_event *event); /* event.run of a snapshot */
    void *server;
    /* From any thread. */
    bool (*is_ready)(void *server, char why[128]);
    uint64_t (*silent_ms)(void *server); /* since the loop turned last */
} srv_http_deps;

/* Whether http.address can be listened on, or is empty: refuses BAD_CONFIG what is no address and
 * port, and what is not loopback without http.expose. Opens nothing. */
attnd_status srv_http_check(const cfg *c, attnd_err *err);

/* Listens and starts the thread; *out is NULL without http.address. The caller closes it. Refuses
 * as srv_http_check, and UNREACHABLE with errno's text. Borrows deps' pointers until closed. */
attnd_status srv_http_open(srv_http **out, const cfg *c, const srv_http_deps *deps, attnd_err *err);

/* The port it listens on, which the system chose for port 0. */
uint16_t srv_http_port(const srv_http *http);

/* Ends the thread. Accepts NULL. */
void srv_http_close(srv_http *http);

#endif
