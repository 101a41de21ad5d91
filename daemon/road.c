/* road.c: the stages of a request, as a list.
 *
 *   receive ──▶ decode ──▶ validate ──▶ plan ──▶ launch ──▶ reply
 *   bytes       message    problem      plan     ticket     bytes
 *   └────── may refuse, writes nothing ─────┘    └─ may write ──┘
 *
 * Validate is three: admit (whose is it, did it come before, is there room), order (it waits for
 * the request it comes after) and check (the op's own).
 *
 * Nobody walks back: a stage that refuses fills request->err and the road goes on with reply.
 */
#include "daemon/road.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "daemon/capture.h"
#include "daemon/log.h"
#include "daemon/op.h"
#include "daemon/session.h"
#include "daemon/update.h"

/* Memory a decoded message may take: so many times its bytes, and as many more for small ones. */
enum { DECODED_TIMES = 3, DECODED_MORE = 256 << 10 };

uint64_t srv_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void mark(srv_request *request, srv_stage stage)
{
    uint64_t now = srv_now_ns();
    request->stage_ns[stage] += now - request->mark_ns;
    request->mark_ns = now;
}

static void unpark(srv_engine *engine, srv_request *request)
{
    if (request->is_parked) {
        srv_stats_gauge(SRV_GAUGE_parked, -1);
        srv_trace_span(&engine->trace, request, SRV_TRACE_parked);
    }
    request->is_parked = false;
}

/* ---- Admit ------------------------------------------------------------------------------------
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
    engine->n_in_flight++;
    request->is_counted = true;
    srv_stats_gauge(SRV_GAUGE_in_flight, 1);
    return ATTND_OK;
}

static attnd_status time_out(const srv_request *request, attnd_err *err)
{
    return attnd_fail(err, ATTND_TIMED_OUT,
                      "timeout_ms = %" PRIu64 ": the request waited %" PRIu64 " ms for its turn",
                      (request->deadline_ns - request->received_ns) / 1000000u,
                      (srv_now_ns() - request->received_ns) / 1000000u);
}

static attnd_status check_deadline(const srv_request *request, attnd_err *err)
{
    return srv_now_ns() > request->deadline_ns ? time_out(request, err) : ATTND_OK;
}

/* A request whose id was seen gets the first reply again, now or when there is one. */
static attnd_status repeat(srv_engine *engine, srv_request *request, srv_past *past, attnd_err *err)
{
    request->is_repeat = true;
    srv_stats_add(SRV_COUNT_repeats, 1);
    if (past->is_answered) {
        request->sent = past->reply;
        request->n_sent = past->n_reply;
        return ATTND_OK;
    }
    TRY(check_room(engine, request, err));
    request->is_parked = true;
    request->repeat_next = past->repeats;
    past->repeats = request;
    return ATTND_OK;
}

static attnd_status remember(srv_engine *engine, srv_request *request, attnd_err *err)
{
    srv_history *history = &request->session->history;
    uint64_t id = request->msg.id;
    srv_past *past = srv_history_find(history, id);
    if (past)
        return repeat(engine, request, past, err);
    if (srv_history_is_too_old(history, id))
        return attnd_fail(err, ATTND_STALE,
                          "id = %" PRIu64
                          ": lower than the last %d of this session, it may have run",
                          id, SRV_HISTORY);
    request->past = srv_history_add(history, id);
    if (!request->past)
        return attnd_fail(err, ATTND_NO_ROOM, "id = %" PRIu64 ": %d requests are on their way", id,
                          SRV_HISTORY);
    return ATTND_OK;
}

/* Whose it is, whether it came before, and whether there is room for it. */
static attnd_status admit(srv_engine *engine, srv_request *request, attnd_err *err)
{
    uint64_t timeout_ms =
        request->msg.timeout_ms ? request->msg.timeout_ms : engine->limits.default_timeout_ms;
    request->deadline_ns = request->received_ns + timeout_ms * 1000000u;
    request->op = srv_op_find(request->msg.op);
    if (!request->op || !request->op->run)
        return attnd_fail(err, ATTND_UNSUPPORTED, "op = %s: this server does not serve it",
                          msg_op_name(request->msg.op));
    if (request->full_at)
        return attnd_fail(err, ATTND_NO_ROOM,
                          "connections = %u: the most at once on the data socket",
                          request->full_at);
    if (request->op->needs & SRV_OP_NEEDS_SESSION) {
        TRY(srv_session_get(engine, request->msg.session, &request->session, err));
        srv_session_enter(request->session);
        request->session->n_requests++;
        TRY(srv_session_connect(engine, request->session, request->connection, err));
        if (request->msg.id)
            TRY(remember(engine, request, err));
        if (request->is_repeat)
            return ATTND_OK;
    }
    TRY(check_deadline(request, err));
    return request->op->needs & SRV_OP_NEEDS_ROOM ? check_room(engine, request, err) : ATTND_OK;
}

/* ---- Order ------------------------------------------------------------------------------------
 */

attnd_status srv_road_wait(srv_engine *engine, srv_request *request, attnd_err *err)
{
    TRY(check_deadline(request, err));
    /* Whatever its op: what waits holds a context. */
    if (!request->is_counted)
        TRY(check_room(engine, request, err));
    request->is_parked = true;
    request->wait_next = engine->waiting;
    engine->waiting = request;
    return ATTND_OK;
}

/* A request that names another in `after` waits until that one is launched. */
static attnd_status order(srv_engine *engine, srv_request *request, attnd_err *err)
{
    uint64_t after = request->msg.after;
    if (!after)
        return ATTND_OK;
    if (!request->session)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "after = %" PRIu64 ": %s belongs to no session",
                          after, request->op->name);
    if (after == request->msg.id)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "after = %" PRIu64 ": it is the request's own id",
                          after);
    const srv_past *past = srv_history_find(&request->session->history, after);
    if (past && past->progress == SRV_PROGRESS_LAUNCHED)
        return ATTND_OK;
    if (past && past->progress == SRV_PROGRESS_REFUSED)
        return attnd_fail(err, ATTND_STALE, "after = %" PRIu64 ": that request was refused", after);
    if (!past && srv_history_is_too_old(&request->session->history, after))
        return attnd_fail(err, ATTND_STALE,
                          "after = %" PRIu64 ": lower than the last %d of this session", after,
                          SRV_HISTORY);
    if (!past && engine->is_draining)
        return attnd_fail(err, ATTND_DRAINING,
                          "after = %" PRIu64 ": the server drains and takes no new work", after);
    return srv_road_wait(engine, request, err);
}

/* ---- Check ------------------------------------------------------------------------------------
 */

static attnd_status check(srv_engine *engine, srv_request *request, attnd_err *err)
{
    return request->op->check(engine, request, err);
}

/* ---- Plan -------------------------------------------------------------------------------------
 */

/* The work split of a problem, made for it or for one like it over the same batch. */
static attnd_status find_split(srv_engine *engine, srv_request *request, const ker_problem *problem,
                               const ker_plan **out, attnd_err *err)
{
    srv_version *version = request->version;
    for (size_t i = 0; version && i < version->n_splits; i++)
        if (srv_splits_alike(&version->split[i]->problem, problem)) {
            *out = version->split[i];
            return ATTND_OK;
        }
    msg_arena *arena = &request->arena;
    if (version && version->n_splits < SRV_PLAN_SHAPES)
        arena = &version->arena;
    size_t bytes = ker_plan_bytes(engine->device, problem);
    void *memory = msg_arena_take(arena, bytes);
    ker_plan *plan;
    if (!memory)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "batch: its plan takes %zu bytes, more than a request may use", bytes);
    TRY(ker_plan_make(engine->device, problem, 0, memory, bytes, &plan, err));
    if (arena != &request->arena)
        version->split[version->n_splits++] = plan;
    *out = plan;
    return ATTND_OK;
}

static attnd_status make_plans(srv_engine *engine, srv_request *request, attnd_err *err)
{
    if (request->op->make)
        return request->op->make(engine, request, err);
    size_t n = request->merge ? 1 : request->n_problems;
    if (!n)
        return ATTND_OK;
    request->launches = msg_arena_take(&request->arena, n * sizeof *request->launches);
    request->plans = msg_arena_take(&request->arena, n * sizeof *request->plans);
    ker_plan *plans = msg_arena_take(&request->arena, request->n_problems * sizeof *plans);
    if (!request->launches || !request->plans || !plans)
        return attnd_fail(err, ATTND_TOO_LARGE, "n_layers = %zu: more than a request may use", n);
    request->n_launches = n;
    for (size_t i = 0; i < request->n_problems; i++) {
        const ker_plan *split = NULL;
        TRY(find_split(engine, request, &request->problems[i], &split, err));
        plans[i] = *split;
        plans[i].problem = request->problems[i];
        request->plans[i] = &plans[i];
    }
    return ATTND_OK;
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
    srv_log(
        is_slow ? SRV_INFO : SRV_DEBUG,
        "%s ok  request=%" PRIu64 " session=%u sequences=%u decode_us=%" PRIu64 " queue_us=%" PRIu64
        " validate_us=%" PRIu64 " plan_us=%" PRIu64 " launch_us=%" PRIu64 " total_us=%" PRIu64,
        op, request->msg.id, ordinal, request->n_problems ? request->problems[0].batch.n_seqs : 0,
        ns[SRV_STAGE_DECODE] / 1000, ns[SRV_STAGE_QUEUE] / 1000, ns[SRV_STAGE_VALIDATE] / 1000,
        ns[SRV_STAGE_PLAN] / 1000, ns[SRV_STAGE_LAUNCH] / 1000, ns[SRV_STAGE_TOTAL] / 1000);
}

/* The reply as bytes in the arena; n_sent 0 when even a refusal does not fit. */
static void encode(srv_request *request)
{
    for (int tries = 0; tries < 2; tries++) {
        size_t n = msg_encoded_bytes(&request->reply);
        uint8_t *bytes = msg_arena_take(&request->arena, n);
        attnd_err err;
        request->sent = bytes;
        request->n_sent = n;
        if (bytes && msg_encode(&request->arena, &request->reply, bytes, n, &err) == ATTND_OK)
            return;
        msg_arena_reset(&request->arena); /* nothing of the request is needed for a refusal */
        attnd_fail(&request->reply.err, ATTND_BROKEN, "reply: it does not fit into the arena");
        request->reply.op = MSG_OP_NONE;
    }
    request->n_sent = 0;
}

/* Gives back what the request held, counts it and sends what is encoded. */
static void leave(srv_engine *engine, srv_request *request)
{
    unpark(engine, request);
    srv_trace_end(&engine->trace, request);
    srv_update_leave(engine, request);
    for (size_t i = 0; i < request->n_held; i++)
        srv_buffer_leave(engine, request->held[i]);
    if (request->model)
        srv_model_leave(engine, request->model);
    if (request->is_counted) {
        engine->n_in_flight--;
        srv_stats_gauge(SRV_GAUGE_in_flight, -1);
    }
    /* What an ended session held is free when its client reads so; but a repeat's reply is the
     * session's own memory. */
    srv_session *session = request->session;
    bool leaves_first = session && !request->is_repeat;
    if (leaves_first)
        srv_session_leave(engine, session);
    request->send(request); /* the transport's again: nothing of it is read below */
    if (session && !leaves_first)
        srv_session_leave(engine, session);
    srv_engine_left(engine);
}

/* The reply becomes what repeats of the id get, those that wait for it at once. */
static void file_reply(srv_engine *engine, srv_request *request)
{
    srv_past *past = request->past;
    bool is_refused = request->err.status != ATTND_OK && past->progress != SRV_PROGRESS_LAUNCHED;
    past->progress = is_refused ? SRV_PROGRESS_REFUSED : SRV_PROGRESS_LAUNCHED;
    srv_request *repeats = past->repeats;
    past->repeats = NULL;
    if (!srv_history_answer(past, request->sent, request->n_sent))
        srv_log(SRV_WARN, "reply not kept  request=%" PRIu64 " bytes=%zu", request->msg.id,
                request->n_sent);
    while (repeats) {
        srv_request *next = repeats->repeat_next;
        repeats->sent = request->sent;
        repeats->n_sent = request->n_sent;
        leave(engine, repeats);
        repeats = next;
    }
    engine->has_news = true;
}

static void reply(srv_engine *engine, srv_request *request)
{
    if (request->is_repeat && request->err.status == ATTND_OK) {
        leave(engine, request);
        return;
    }
    uint64_t begin_ns = srv_now_ns();
    request->reply.id = request->msg.id;
    request->reply.instance = engine->instance;
    request->reply.err = request->err;
    encode(request);
    if (request->past)
        file_reply(engine, request);
    uint64_t end_ns = srv_now_ns();
    request->stage_ns[SRV_STAGE_REPLY] = end_ns - begin_ns;
    request->stage_ns[SRV_STAGE_TOTAL] = end_ns - request->received_ns;
    log_request(engine, request);
    if (request->err.status != ATTND_OK)
        srv_stats_add(SRV_COUNT_refused, 1);
    srv_stats_request(request->msg.op, request->err.status, request->stage_ns);
    leave(engine, request);
}

static void succeed(srv_engine *engine, srv_request *request)
{
    request->op->run(engine, request);
    srv_capture_take(engine->capture, request);
    srv_trace_span(&engine->trace, request, SRV_TRACE_run);
    request->reply.op = request->msg.op;
    reply(engine, request);
}

/* ---- Launch -----------------------------------------------------------------------------------
 */

/* Counts what the device did; the first failure is the request's. */
static void settle(srv_request *request)
{
    const attnd_err *first = &request->launches[0].ticket.err;
    if (first->status == ATTND_DEADLINE_EXCEEDED) {
        time_out(request, &request->err);
        return;
    }
    for (size_t i = 0; i < request->n_launches; i++) {
        const ker_ticket *ticket = &request->launches[i].ticket;
        if (ticket->err.status != ATTND_OK) {
            srv_stats_add(SRV_COUNT_device_errors, 1);
            request->err = ticket->err;
            return;
        }
        if (request->merge)
            continue;
        const ker_part *part = request->plans[i]->part;
        const ker_kernel *kernels[2] = {part[0].kernel, part[1].kernel};
        const ker_batch *batch = &request->problems[i].batch;
        srv_stats_launch(kernels, ticket->ended_ns - ticket->started_ns,
                         ker_problem_floor(&request->problems[i]));
        srv_stats_batch(batch->n_seqs, (uint64_t)batch->n_tokens);
    }
}

/* On the engine thread: the device is done. */
static void completed(srv_engine *engine, srv_event *event)
{
    srv_request *request = (srv_request *)((char *)event - offsetof(srv_request, event));
    mark(request, SRV_STAGE_LAUNCH);
    srv_trace_device(&engine->trace, request);
    settle(request);
    if (request->err.status == ATTND_OK)
        succeed(engine, request);
    else
        reply(engine, request);
}

/* On a device thread: a launch of a request is done, others follow in the stream. */
static void part_done(ker_ticket *ticket)
{
}

/* On a device thread: the last one is done. */
static void all_done(ker_ticket *ticket)
{
    srv_request *request = ((srv_launch *)((char *)ticket - offsetof(srv_launch, ticket)))->request;
    request->event.run = completed;
    srv_queue_post(&request->engine->queue, &request->event);
}

static void launch(srv_engine *engine, srv_request *request)
{
    srv_update_publish(request);
    if (request->past) {
        request->past->progress = SRV_PROGRESS_LAUNCHED;
        engine->has_news = true;
    }
    if (!request->n_launches) {
        succeed(engine, request);
        return;
    }
    ker_stream *stream = request->session->stream;
    for (size_t i = 0, n = request->n_launches; i < n; i++) {
        srv_launch *l = &request->launches[i];
        l->request = request;
        l->ticket = (ker_ticket){.done = i + 1 < n ? part_done : all_done};
        if (i) /* what has begun is finished: part of a step is worth nothing */
            l->ticket.follows = &l[-1].ticket;
        else
            l->ticket.deadline_ns = request->deadline_ns;
        if (request->merge)
            ker_launch_merge(engine->device, stream, request->merge, &l->ticket);
        else
            ker_launch(engine->device, stream, request->plans[i], &l->ticket);
    }
    srv_trace_span(&engine->trace, request, SRV_TRACE_launch);
}

/* ---- The road ---------------------------------------------------------------------------------
 */

typedef attnd_status stage_fn(srv_engine *engine, srv_request *request, attnd_err *err);

/* What runs on the engine thread and may refuse. */
static const struct {
    srv_stage counts_as;
    srv_trace_kind traced_as;
    stage_fn *run;
} STAGES[] = {
    {SRV_STAGE_VALIDATE, SRV_TRACE_admit, admit},
    {SRV_STAGE_VALIDATE, SRV_TRACE_order, order},
    {SRV_STAGE_VALIDATE, SRV_TRACE_check, check},
    {SRV_STAGE_PLAN, SRV_TRACE_plan, make_plans},
};

enum { N_STAGES = sizeof STAGES / sizeof *STAGES };

/* From request->stage on, until it is launched, refused or parked. */
static void go(srv_engine *engine, srv_request *request)
{
    unpark(engine, request);
    if (request->session && request->session->is_ended)
        attnd_fail(&request->err, ATTND_UNREGISTERED,
                   "session: it has ended while the request waited for its turn");
    while (request->stage < N_STAGES && request->err.status == ATTND_OK) {
        size_t at = request->stage;
        attnd_status status = STAGES[at].run(engine, request, &request->err);
        mark(request, STAGES[at].counts_as);
        srv_trace_span(&engine->trace, request, STAGES[at].traced_as);
        if (status != ATTND_OK && request->err.status == ATTND_OK)
            attnd_fail(&request->err, ATTND_BROKEN, "server: a stage refused without a reason");
        if (request->is_parked && request->err.status == ATTND_OK) {
            srv_stats_gauge(SRV_GAUGE_parked, 1);
            return;
        }
        request->is_parked = false;
        if (request->is_repeat)
            break;
        request->stage++;
    }
    if (request->err.status == ATTND_OK && !request->is_repeat)
        launch(engine, request);
    else
        reply(engine, request);
}

/* On the engine thread: a request has arrived. */
static void arrived(srv_engine *engine, srv_event *event)
{
    srv_request *request = (srv_request *)((char *)event - offsetof(srv_request, event));
    request->engine = engine;
    mark(request, SRV_STAGE_QUEUE);
    srv_trace_begin(&engine->trace, request);
    srv_stats_gauge(SRV_GAUGE_queued, -1);
    go(engine, request);
}

void srv_road_look_again(srv_engine *engine)
{
    while (engine->has_news) {
        srv_request *waiting = engine->waiting;
        engine->waiting = NULL;
        engine->has_news = false;
        while (waiting) {
            srv_request *next = waiting->wait_next;
            go(engine, waiting); /* parks again what still waits */
            waiting = next;
        }
    }
}

uint64_t srv_road_next_deadline(const srv_engine *engine)
{
    uint64_t first = 0;
    for (const srv_request *r = engine->waiting; r; r = r->wait_next)
        if (!first || r->deadline_ns < first)
            first = r->deadline_ns + 1;
    return first;
}

void srv_road_arrive(srv_queue *engine, srv_request *request)
{
    request->mark_ns = request->received_ns;
    request->err = (attnd_err){.status = ATTND_OK};
    request->op = NULL;
    request->stage = 0;
    request->past = NULL;
    request->is_repeat = false;
    request->session = NULL;
    request->is_counted = false;
    request->model = NULL;
    request->n_held = 0;
    request->planned = NULL;
    request->version = NULL;
    request->merge = NULL;
    request->n_problems = request->n_spans = request->n_launches = 0;
    memset(&request->reply, 0, sizeof request->reply);
    memset(request->stage_ns, 0, sizeof request->stage_ns);
    srv_stats_add(SRV_COUNT_requests, 1);
    srv_stats_add(SRV_COUNT_received_bytes, request->n_bytes);
    /* Anybody may send bytes: what they become is bounded by how many there are. */
    msg_arena_bound(&request->arena, DECODED_TIMES * request->n_bytes + DECODED_MORE);
    msg_decode(&request->arena, request->bytes, request->n_bytes, &request->msg, &request->err);
    msg_arena_bound(&request->arena, 0);
    mark(request, SRV_STAGE_DECODE);
    request->event.run = arrived;
    srv_stats_gauge(SRV_GAUGE_queued, 1);
    srv_queue_post(engine, &request->event);
}
