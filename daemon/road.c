/* road.c: the stages of a request, as a list.
 *
 *   receive ──▶ decode ──▶ validate ──▶ plan ──▶ launch ──▶ reply
 *   bytes       message    problem      plan     ticket     bytes
 *   └────── may refuse, writes nothing ─────┘    └─ may write ──┘
 *
 * Nobody walks back: a stage that refuses fills request->err and the road goes on with reply.
 */
#include "daemon/road.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "daemon/log.h"
#include "daemon/op.h"
#include "daemon/session.h"

uint64_t srv_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void mark(srv_request *request, srv_stage stage)
{
    uint64_t now = srv_now_ns();
    request->stage_ns[stage] = now - request->mark_ns;
    request->mark_ns = now;
}

/* ---- Validate ---------------------------------------------------------------------------------
 */

static attnd_status check_room(srv_engine *engine, srv_request *request, attnd_err *err)
{
    if (engine->is_draining)
        return attnd_fail(err, ATTND_DRAINING, "op = %s: the server drains and takes no new work",
                          request->op->name);
    if (request->session && request->session->n_in_flight > engine->limits.max_in_flight)
        return attnd_fail(err, ATTND_NO_ROOM,
                          "session: %u requests in flight, the most a session may have",
                          request->session->n_in_flight - 1);
    /* A quarter of the contexts is left for Ping, Hello and refusals. */
    uint32_t most = (uint32_t)engine->config->data_contexts * 3 / 4;
    if (engine->n_in_flight >= most)
        return attnd_fail(err, ATTND_NO_ROOM,
                          "server: %u requests in flight, the most it takes at once",
                          engine->n_in_flight);
    return ATTND_OK;
}

static attnd_status check_deadline(srv_engine *engine, srv_request *request, attnd_err *err)
{
    uint64_t timeout_ms =
        request->msg.timeout_ms ? request->msg.timeout_ms : engine->limits.default_timeout_ms;
    uint64_t waited_ms = (srv_now_ns() - request->received_ns) / 1000000u;
    if (waited_ms > timeout_ms)
        return attnd_fail(err, ATTND_TIMED_OUT,
                          "timeout_ms = %" PRIu64 ": the request waited %" PRIu64
                          " ms for its turn",
                          timeout_ms, waited_ms);
    return ATTND_OK;
}

static attnd_status validate(srv_engine *engine, srv_request *request, attnd_err *err)
{
    request->op = srv_op_find(request->msg.op);
    if (!request->op || !request->op->run)
        return attnd_fail(err, ATTND_UNSUPPORTED, "op = %s: this server does not serve it",
                          msg_op_name(request->msg.op));
    if (request->op->needs & SRV_OP_NEEDS_SESSION) {
        TRY(srv_session_get(engine, request->msg.session, &request->session, err));
        srv_session_enter(request->session);
        request->session->n_requests++;
        TRY(srv_session_connect(engine, request->session, request->connection, err));
    }
    if (request->msg.after)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "after = %" PRIu64 ": this server does not order requests by it",
                          request->msg.after);
    TRY(check_deadline(engine, request, err));
    if (request->op->needs & SRV_OP_NEEDS_ROOM) {
        TRY(check_room(engine, request, err));
        engine->n_in_flight++;
        request->is_counted = true;
        srv_stats_gauge(SRV_GAUGE_in_flight, 1);
    }
    return request->op->check(engine, request, err);
}

/* ---- Plan -------------------------------------------------------------------------------------
 */

static attnd_status make_plan(srv_engine *engine, srv_request *request, attnd_err *err)
{
    if (request->op->make)
        return request->op->make(engine, request, err);
    if (!request->has_problem)
        return ATTND_OK;
    size_t bytes = ker_plan_bytes(engine->device, &request->problem);
    void *memory = msg_arena_take(&request->arena, bytes);
    if (!memory)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "batch: its plan takes %zu bytes, more than a request may use", bytes);
    return ker_plan_make(engine->device, &request->problem, 0, memory, bytes, &request->plan, err);
}

/* ---- Reply ------------------------------------------------------------------------------------
 */

static void log_request(const srv_engine *engine, const srv_request *request)
{
    const attnd_err *err = &request->reply.err;
    unsigned ordinal = request->session ? request->session->ordinal : 0;
    const char *op = msg_op_name(request->msg.op);
    if (err->status != ATTND_OK) {
        size_t n = attnd_err_field_len(err);
        srv_level level =
            attnd_status_mender(err->status) == ATTND_MENDER_US ? SRV_ERROR : SRV_INFO;
        srv_log(level,
                "refused  op=%s request=%" PRIu64 " session=%u code=%s reason=%s field=%.*s \"%s\"",
                op, request->msg.id, ordinal, attnd_status_name(err->status),
                attnd_reason_name(err->reason), (int)n, err->text, err->text + n);
        return;
    }
    const uint64_t *ns = request->stage_ns;
    uint64_t slow_ns = (uint64_t)engine->config->log_slow * 1000000u;
    bool is_slow = slow_ns && ns[SRV_STAGE_TOTAL] > slow_ns;
    if (!is_slow && srv_log_level() < SRV_DEBUG)
        return;
    srv_log(is_slow ? SRV_INFO : SRV_DEBUG,
            "%s ok  request=%" PRIu64 " session=%u sequences=%u decode_us=%" PRIu64
            " queue_us=%" PRIu64 " validate_us=%" PRIu64 " plan_us=%" PRIu64 " launch_us=%" PRIu64
            " total_us=%" PRIu64,
            op, request->msg.id, ordinal, request->problem.batch.n_seqs,
            ns[SRV_STAGE_DECODE] / 1000, ns[SRV_STAGE_QUEUE] / 1000, ns[SRV_STAGE_VALIDATE] / 1000,
            ns[SRV_STAGE_PLAN] / 1000, ns[SRV_STAGE_LAUNCH] / 1000, ns[SRV_STAGE_TOTAL] / 1000);
}

/* Gives back what the request held, counts it and sends it. */
static void reply(srv_engine *engine, srv_request *request)
{
    request->reply.id = request->msg.id;
    request->reply.instance = engine->instance;
    request->reply.err = request->err;
    for (size_t i = 0; i < request->n_held; i++)
        srv_buffer_leave(engine, request->held[i]);
    if (request->model)
        srv_model_leave(engine, request->model);
    request->stage_ns[SRV_STAGE_TOTAL] = srv_now_ns() - request->received_ns;
    log_request(engine, request);
    if (request->err.status != ATTND_OK)
        srv_stats_add(SRV_COUNT_refused, 1);
    if (request->is_counted) {
        engine->n_in_flight--;
        srv_stats_gauge(SRV_GAUGE_in_flight, -1);
    }
    srv_session *session = request->session;
    msg_op op = request->msg.op;
    attnd_status status = request->err.status;
    uint64_t stage_ns[SRV_N_STAGES];
    memcpy(stage_ns, request->stage_ns, sizeof stage_ns);
    uint64_t begin_ns = srv_now_ns();
    request->send(request); /* the transport's again: nothing of it is read below */
    stage_ns[SRV_STAGE_REPLY] = srv_now_ns() - begin_ns;
    stage_ns[SRV_STAGE_TOTAL] += stage_ns[SRV_STAGE_REPLY];
    srv_stats_request(op, status, stage_ns);
    if (session)
        srv_session_leave(engine, session);
    srv_engine_left(engine);
}

static void succeed(srv_engine *engine, srv_request *request)
{
    request->op->run(engine, request);
    request->reply.op = request->msg.op;
    reply(engine, request);
}

/* ---- Launch -----------------------------------------------------------------------------------
 */

/* On the engine thread: the device is done. */
static void completed(srv_engine *engine, srv_event *event)
{
    srv_request *request = (srv_request *)((char *)event - offsetof(srv_request, event));
    mark(request, SRV_STAGE_LAUNCH);
    const ker_ticket *ticket = &request->ticket;
    const ker_kernel *kernels[2] = {request->plan->part[0].kernel, request->plan->part[1].kernel};
    srv_stats_launch(kernels, ticket->ended_ns - ticket->started_ns,
                     ker_problem_floor(&request->problem));
    if (ticket->err.status == ATTND_OK) {
        succeed(engine, request);
        return;
    }
    srv_stats_add(SRV_COUNT_device_errors, 1);
    request->err = ticket->err;
    reply(engine, request);
}

/* On a device thread. */
static void ticket_done(ker_ticket *ticket)
{
    srv_request *request = (srv_request *)((char *)ticket - offsetof(srv_request, ticket));
    srv_engine *engine = request->ticket_engine;
    request->event.run = completed;
    srv_queue_post(&engine->queue, &request->event);
}

static void launch(srv_engine *engine, srv_request *request)
{
    if (!request->has_problem) {
        succeed(engine, request);
        return;
    }
    request->ticket = (ker_ticket){.done = ticket_done};
    request->ticket_engine = engine;
    ker_launch(engine->device, request->session->stream, request->plan, &request->ticket);
}

/* ---- The road ---------------------------------------------------------------------------------
 */

typedef attnd_status stage_fn(srv_engine *engine, srv_request *request, attnd_err *err);

/* What runs on the engine thread and may refuse. */
static const struct {
    srv_stage stage;
    stage_fn *run;
} STAGES[] = {
    {SRV_STAGE_VALIDATE, validate},
    {SRV_STAGE_PLAN, make_plan},
};

/* On the engine thread: a request has arrived. */
static void go(srv_engine *engine, srv_event *event)
{
    srv_request *request = (srv_request *)((char *)event - offsetof(srv_request, event));
    mark(request, SRV_STAGE_QUEUE);
    for (size_t i = 0; i < sizeof STAGES / sizeof *STAGES && request->err.status == ATTND_OK; i++) {
        attnd_status status = STAGES[i].run(engine, request, &request->err);
        mark(request, STAGES[i].stage);
        if (status != ATTND_OK && request->err.status == ATTND_OK)
            attnd_fail(&request->err, ATTND_BROKEN, "server: a stage refused without a reason");
    }
    if (request->err.status == ATTND_OK)
        launch(engine, request);
    else
        reply(engine, request);
}

void srv_road_arrive(srv_queue *engine, srv_request *request)
{
    request->mark_ns = request->received_ns;
    request->err = (attnd_err){.status = ATTND_OK};
    request->op = NULL;
    request->session = NULL;
    request->is_counted = false;
    request->model = NULL;
    request->n_held = 0;
    request->has_problem = false;
    request->problem.batch.n_seqs = 0;
    request->plan = NULL;
    memset(&request->reply, 0, sizeof request->reply);
    memset(request->stage_ns, 0, sizeof request->stage_ns);
    srv_stats_add(SRV_COUNT_requests, 1);
    srv_stats_add(SRV_COUNT_received_bytes, request->n_bytes);
    msg_decode(&request->arena, request->bytes, request->n_bytes, &request->msg, &request->err);
    mark(request, SRV_STAGE_DECODE);
    request->event.run = go;
    srv_queue_post(engine, &request->event);
}
