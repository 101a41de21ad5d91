/* loop.c: the libuv loop of the engine process. */
#include "daemon/loop.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/keeper.h"
#include "daemon/log.h"

static const int SIGNALS[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

enum { N_SIGNALS = sizeof SIGNALS / sizeof *SIGNALS, TURN_MS = 500 };

/* The grace is over: what still runs is not waited for, its clients learn it from their
 * connections. */
static void on_grace(uv_timer_t *timer)
{
    srv_loop *loop = timer->data;
    srv_log(SRV_WARN, "drain cut short  in_flight=%lld",
            (long long)srv_stats_gauge_value(SRV_GAUGE_in_flight));
    _exit(loop->is_draining ? 0 : 1);
}

static void on_drained(uv_async_t *async)
{
    srv_loop *loop = async->data;
    uv_stop(&loop->uv);
}

/* From the engine thread. */
static void engine_drained(void *arg)
{
    srv_loop *loop = arg;
    uv_async_send(&loop->drained);
}

void srv_loop_drain(void *self)
{
    srv_loop *loop = self;
    if (loop->is_draining)
        return;
    loop->is_draining = true;
    uv_timer_start(&loop->grace, on_grace, (uint64_t)loop->engine->config->drain_grace, 0);
    srv_engine_drain(loop->engine);
}

void srv_loop_shutdown(void *self)
{
    srv_loop *loop = self;
    loop->is_draining = true;
    uv_timer_start(&loop->grace, on_grace, 0, 0);
}

bool srv_loop_is_ready(void *self, char why[128])
{
    srv_loop *loop = self;
    const char *reason = "";
    if (!loop->is_ready)
        reason = "starting";
    if (loop->is_draining)
        reason = "draining";
    snprintf(why, 128, "%s", reason);
    return !*reason;
}

static uint64_t now_ms(void)
{
    return uv_hrtime() / 1000000;
}

uint64_t srv_loop_silent_ms(void *self)
{
    srv_loop *loop = self;
    return now_ms() - loop->turned_ms;
}

static void on_turn(uv_timer_t *timer)
{
    srv_loop *loop = timer->data;
    loop->turned_ms = now_ms();
    srv_log_flush(false);
}

attnd_status srv_loop_reload(void *self, srv_change_fn *each, void *arg, attnd_err *err)
{
    srv_loop *loop = self;
    return srv_reload_run(&loop->reload, each, arg, err);
}

static void on_signal(uv_signal_t *handle, int number)
{
    srv_loop *loop = handle->data;
    if (number == SIGHUP) {
        attnd_err err; /* logged by srv_reload_run */
        srv_loop_reload(loop, NULL, NULL, &err);
        return;
    }
    if (number != SIGTERM && number != SIGINT) {
        srv_log(SRV_INFO, "signal ignored  number=%d", number);
        return;
    }
    uint64_t now = uv_now(&loop->uv);
    if (loop->signalled_ms && now - loop->signalled_ms < SRV_SAME_SIGNAL_MS)
        return;
    srv_log(SRV_INFO, "signal  number=%d", number);
    if (loop->signalled_ms && !loop->engine->store)
        _exit(128 + number);
    loop->signalled_ms = now ? now : 1;
    srv_loop_drain(loop);
}

attnd_status srv_loop_init(srv_loop *loop, srv_engine *engine, attnd_err *err)
{
    loop->engine = engine;
    int failed = uv_loop_init(&loop->uv);
    if (failed)
        return attnd_fail(err, ATTND_BROKEN, "loop: %s", uv_strerror(failed));
    for (int i = 0; i < N_SIGNALS; i++) {
        uv_signal_init(&loop->uv, &loop->signals[i]);
        loop->signals[i].data = loop;
        uv_signal_start(&loop->signals[i], on_signal, SIGNALS[i]);
    }
    uv_async_init(&loop->uv, &loop->drained, on_drained);
    uv_timer_init(&loop->uv, &loop->grace);
    uv_timer_init(&loop->uv, &loop->turn);
    loop->drained.data = loop->grace.data = loop->turn.data = loop;
    loop->turned_ms = now_ms();
    uv_timer_start(&loop->turn, on_turn, TURN_MS, TURN_MS);
    engine->drained = engine_drained;
    engine->drained_arg = loop;
    return ATTND_OK;
}

void srv_loop_run(srv_loop *loop)
{
    uv_run(&loop->uv, UV_RUN_DEFAULT);
}

void srv_loop_fini(srv_loop *loop)
{
    for (int i = 0; i < N_SIGNALS; i++)
        uv_close((uv_handle_t *)&loop->signals[i], NULL);
    uv_close((uv_handle_t *)&loop->drained, NULL);
    uv_close((uv_handle_t *)&loop->grace, NULL);
    uv_close((uv_handle_t *)&loop->turn, NULL);
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    uv_loop_close(&loop->uv);
}
