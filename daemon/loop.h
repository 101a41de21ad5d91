/* loop.h: the libuv loop of the engine process: signals and timers; never touches the device.
 *
 * TERM and INT drain and leave with 0; a second one, a moment later, leaves at once with 128 + its
 * number, but under a keeper, which kills by itself. HUP reads the config again. USR1 and USR2 are
 * taken and do nothing but say so.
 */
#ifndef ATTND_DAEMON_LOOP_H
#define ATTND_DAEMON_LOOP_H

#include <uv.h>

#include "daemon/engine.h"
#include "daemon/reload.h"

typedef struct srv_loop {
    uv_loop_t uv;
    srv_engine *engine;
    uv_signal_t signals[5];
    uv_async_t drained;
    uv_timer_t grace;
    uv_timer_t turn;            /* says that the loop turns */
    _Atomic uint64_t turned_ms; /* CLOCK_MONOTONIC of its last turn */
    _Atomic bool is_draining;
    uint64_t signalled_ms;
    /* when the first of TERM and INT came; 0: none did */ /* set by the loop thread */
    _Atomic bool is_ready;
    srv_reload reload; /* filled by whoever runs the loop */
} srv_loop;

/* Blocks nothing and starts nothing but handles. Refuses BROKEN. */
attnd_status srv_loop_init(srv_loop *loop, srv_engine *engine, attnd_err *err);

/* Returns when drained or told to stop. */
void srv_loop_run(srv_loop *loop);

/* Closes its handles; runs the loop until all handles, of others too, are closed. */
void srv_loop_fini(srv_loop *loop);

/* For the control socket and HTTP; self is the srv_loop. The first two from any thread. */
bool srv_loop_is_ready(void *self, char why[128]);
uint64_t srv_loop_silent_ms(void *self); /* since the loop turned last; it does so twice a second */
attnd_status srv_loop_reload(void *self, srv_change_fn *each, void *arg, attnd_err *err);
void srv_loop_drain(void *self);
void srv_loop_shutdown(void *self);

#endif
