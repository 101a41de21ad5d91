/* loop.h: the libuv loop of the engine process: signals and timers; never touches the device.
 *
 * TERM and INT drain and leave with 0; a second one leaves at once with 128 + its number. HUP, USR1
 * and USR2 are taken and do nothing yet but say so.
 */
#ifndef ATTND_DAEMON_LOOP_H
#define ATTND_DAEMON_LOOP_H

#include <uv.h>

#include "daemon/engine.h"

typedef struct srv_loop {
    uv_loop_t uv;
    srv_engine *engine;
    uv_signal_t signals[5];
    uv_async_t drained;
    uv_timer_t grace;
    bool is_draining; /* loop thread */
    _Atomic bool is_ready;
} srv_loop;

/* Blocks nothing and starts nothing but handles. Refuses BROKEN. */
attnd_status srv_loop_init(srv_loop *loop, srv_engine *engine, attnd_err *err);

/* Returns when drained or told to stop. */
void srv_loop_run(srv_loop *loop);

/* Closes its handles; runs the loop until all handles, of others too, are closed. */
void srv_loop_fini(srv_loop *loop);

/* For the control socket; self is the srv_loop. */
bool srv_loop_is_ready(void *self, char why[128]);
void srv_loop_drain(void *self);
void srv_loop_shutdown(void *self);

#endif
