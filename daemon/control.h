/* control.h: JSON-RPC 2.0, one message a line, on an AF_UNIX stream socket (0600). On the loop
 * thread.
 *
 * Methods and their parameters are the rows of methods.def. Handles, the instance, bytes and FLOPs
 * are strings of digits (they may pass 2^53), every other number is a number. At most a line of
 * 1 MiB that ends within 10 s, 64 calls in a batch; a client's line is answered before its next one
 * is read. At most 64 clients: one more is let in for the one that has asked nothing yet, or else
 * not for longest, unless a call of each is in work. The process ignores SIGPIPE.
 */
#ifndef ATTND_DAEMON_CONTROL_H
#define ATTND_DAEMON_CONTROL_H

#include <uv.h>

#include "config/config.h"
#include "daemon/capture.h"
#include "daemon/reload.h"
#include "daemon/snapshot.h"

typedef struct srv_control srv_control;

/* What the methods act on. */
typedef struct srv_control_deps {
    const cfg *config;
    const ker_device *device; /* may be described from any thread; kernels are judged against it */
    uint64_t instance;
    const char *runtime_dir;
    srv_queue *engine;                                           /* snapshots go here */
    void (*snapshot_fill)(srv_engine *engine, srv_event *event); /* event.run of a snapshot */
    srv_capture *capture;                                        /* NULL: nothing can be recorded */
    void *server;
    /* Ready, or false with the reason in why ("draining"). */
    bool (*is_ready)(void *server, char why[128]);
    /* As srv_reload_run. */
    attnd_status (*reload)(void *server, srv_change_fn *each, void *arg, attnd_err *err);
    /* Begins to drain; the process leaves with 0 when nothing is in flight, or after the grace. */
    void (*drain)(void *server);
    /* Leaves now, without waiting for work in flight. */
    void (*shutdown)(void *server);
} srv_control_deps;

/* Listens on path (0600; peers of another uid are refused). Refuses UNREACHABLE with errno's text.
 * Borrows deps' pointers until closed. */
attnd_status srv_control_open(srv_control **out, uv_loop_t *loop, const char *path,
                              const srv_control_deps *deps, attnd_err *err);

/* Closes the handles and frees itself once the loop has run their close callbacks and no snapshot
 * is outstanding, so the engine must still take events. Accepts NULL. */
void srv_control_close(srv_control *control);

#endif
