/* attend.c: Attend, Step and Merge on the wire: work on the device; and the wait for what is sent.
 */
#include <stdlib.h>

#include "proto/client/parts.h"

static attnd_status start(attnd_client *client, Attnd__V1__Request *request, uint64_t after,
                          int64_t deadline_ms, attnd_pending **out, attnd_err *err)
{
    request->after = after;
    return cli_start(client, request, deadline_ms, out, err);
}

/* ---- Attend ---- */

/* All that a request points to. */
typedef struct attend_memory {
    Attnd__V1__Request request;
    Attnd__V1__AttendRequest attend;
    cli_batch batch;
    Attnd__V1__Tensor q, k, v, out, lse, stats;
} attend_memory;

static attnd_status check_attend(const attnd_attend_request *r, attnd_err *err)
{
    TRY(cli_check_tensor(&r->q, "q", err));
    TRY(cli_check_tensor(&r->k, "k", err));
    TRY(cli_check_tensor(&r->v, "v", err));
    TRY(cli_check_tensor(&r->out, "out", err));
    TRY(cli_check_tensor(&r->lse, "lse", err));
    return cli_check_tensor(&r->stats, "stats", err);
}

static attnd_status make_attend(attend_memory *m, const attnd_attend_request *from, attnd_err *err)
{
    attnd__v1__request__init(&m->request);
    attnd__v1__attend_request__init(&m->attend);
    m->batch.tables = (cli_tables){0};
    m->attend.model = from->model;
    m->attend.layer = from->layer;
    if (from->plan) {
        m->attend.work_case = ATTND__V1__ATTEND_REQUEST__WORK_PLAN;
        m->attend.plan = from->plan;
    } else {
        TRY(cli_make_batch(&m->batch, &from->batch, err));
        m->attend.work_case = ATTND__V1__ATTEND_REQUEST__WORK_BATCH;
        m->attend.batch = &m->batch.batch;
    }
    m->attend.q = cli_make_tensor(&m->q, &from->q);
    m->attend.k = cli_make_tensor(&m->k, &from->k);
    m->attend.v = cli_make_tensor(&m->v, &from->v);
    m->attend.keys = (Attnd__V1__Keys)from->keys;
    m->attend.out = cli_make_tensor(&m->out, &from->out);
    m->attend.lse = cli_make_tensor(&m->lse, &from->lse);
    m->attend.stats = cli_make_tensor(&m->stats, &from->stats);
    m->attend.batch_invariant = from->batch_invariant;
    m->request.op_case = ATTND__V1__REQUEST__OP_ATTEND;
    m->request.attend = &m->attend;
    return ATTND_OK;
}

attnd_status attnd_attend_start(attnd_client *client, const attnd_attend_request *request,
                                uint32_t timeout_ms, attnd_pending **out, attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    *out = NULL;
    TRY(check_attend(request, err));
    attend_memory m;
    attnd_status status = make_attend(&m, request, err);
    if (status == ATTND_OK)
        status = start(client, &m.request, request->after, deadline_ms, out, err);
    cli_free_tables(&m.batch.tables);
    return status;
}

attnd_status attnd_attend(attnd_client *client, const attnd_attend_request *request,
                          uint32_t timeout_ms, attnd_timing *timing, attnd_err *err)
{
    attnd_pending *pending;
    TRY(attnd_attend_start(client, request, timeout_ms, &pending, err));
    return attnd_wait(pending, timing, err);
}

/* ---- Step ---- */

typedef struct step_memory {
    Attnd__V1__Request request;
    Attnd__V1__StepRequest step;
    cli_update update;
    cli_layer_tensor q, k, v, out, lse;
} step_memory;

static attnd_status check_step(const attnd_step_request *r, attnd_err *err)
{
    TRY(cli_check_tensor(&r->q.first, "q.first", err));
    TRY(cli_check_tensor(&r->k.first, "k.first", err));
    TRY(cli_check_tensor(&r->v.first, "v.first", err));
    TRY(cli_check_tensor(&r->out.first, "out.first", err));
    return cli_check_tensor(&r->lse.first, "lse.first", err);
}

static attnd_status make_step(step_memory *m, const attnd_step_request *from, attnd_err *err)
{
    attnd__v1__request__init(&m->request);
    attnd__v1__step_request__init(&m->step);
    m->update.appended = (cli_tables){0};
    m->step.plan = from->plan;
    if (from->update) {
        TRY(cli_make_update(&m->update, from->plan, from->update, err));
        m->step.update = &m->update.update;
    }
    m->step.first_layer = from->first_layer;
    m->step.n_layers = from->n_layers;
    m->step.q = cli_make_layer_tensor(&m->q, &from->q);
    m->step.k = cli_make_layer_tensor(&m->k, &from->k);
    m->step.v = cli_make_layer_tensor(&m->v, &from->v);
    m->step.out = cli_make_layer_tensor(&m->out, &from->out);
    m->step.lse = cli_make_layer_tensor(&m->lse, &from->lse);
    m->step.keys = (Attnd__V1__Keys)from->keys;
    m->request.op_case = ATTND__V1__REQUEST__OP_STEP;
    m->request.step = &m->step;
    return ATTND_OK;
}

attnd_status attnd_step_start(attnd_client *client, const attnd_step_request *request,
                              uint32_t timeout_ms, attnd_pending **out, attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    *out = NULL;
    TRY(check_step(request, err));
    step_memory m;
    attnd_status status = make_step(&m, request, err);
    if (status == ATTND_OK)
        status = start(client, &m.request, request->after, deadline_ms, out, err);
    cli_free_tables(&m.update.appended);
    return status;
}

attnd_status attnd_step(attnd_client *client, const attnd_step_request *request,
                        uint32_t timeout_ms, attnd_timing *timing, attnd_err *err)
{
    attnd_pending *pending;
    TRY(attnd_step_start(client, request, timeout_ms, &pending, err));
    return attnd_wait(pending, timing, err);
}

/* ---- Merge ---- */

typedef struct partial_memory {
    Attnd__V1__Partial partial;
    Attnd__V1__Tensor out, lse, stats;
} partial_memory;

static attnd_status check_merge(const attnd_merge_request *r, attnd_err *err)
{
    for (size_t i = 0; i < r->n_partials; i++) {
        const attnd_partial *part = &r->partials[i];
        attnd_status status = cli_check_tensor(&part->out, "out", err);
        if (status == ATTND_OK)
            status = cli_check_tensor(&part->lse, "lse", err);
        if (status == ATTND_OK)
            status = cli_check_tensor(&part->stats, "stats", err);
        if (status != ATTND_OK) {
            attnd_err_prefix(err, "partials[%zu].", i);
            return status;
        }
    }
    TRY(cli_check_tensor(&r->out, "out", err));
    TRY(cli_check_tensor(&r->lse, "lse", err));
    return cli_check_tensor(&r->stats, "stats", err);
}

static Attnd__V1__Partial *make_partial(partial_memory *m, const attnd_partial *from)
{
    attnd__v1__partial__init(&m->partial);
    m->partial.out = cli_make_tensor(&m->out, &from->out);
    m->partial.lse = cli_make_tensor(&m->lse, &from->lse);
    m->partial.stats = cli_make_tensor(&m->stats, &from->stats);
    return &m->partial;
}

static attnd_status start_merge(attnd_client *client, const attnd_merge_request *from,
                                partial_memory *memory, Attnd__V1__Partial **list,
                                int64_t deadline_ms, attnd_pending **out, attnd_err *err)
{
    Attnd__V1__MergeRequest merge = ATTND__V1__MERGE_REQUEST__INIT;
    Attnd__V1__Tensor merged, lse, stats;
    for (size_t i = 0; i < from->n_partials; i++)
        list[i] = make_partial(&memory[i], &from->partials[i]);
    merge.n_partials = from->n_partials;
    merge.partials = list;
    merge.out = cli_make_tensor(&merged, &from->out);
    merge.lse = cli_make_tensor(&lse, &from->lse);
    merge.stats = cli_make_tensor(&stats, &from->stats);
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_MERGE;
    request.merge = &merge;
    return start(client, &request, from->after, deadline_ms, out, err);
}

attnd_status attnd_merge_start(attnd_client *client, const attnd_merge_request *request,
                               uint32_t timeout_ms, attnd_pending **out, attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    size_t n = request->n_partials;
    *out = NULL;
    TRY(check_merge(request, err));
    partial_memory *memory = calloc(n + 1, sizeof *memory);
    Attnd__V1__Partial **list = calloc(n + 1, sizeof *list);
    attnd_status status =
        memory && list ? start_merge(client, request, memory, list, deadline_ms, out, err)
                       : attnd_fail(err, ATTND_NO_ROOM, "partials: no memory to send %zu from", n);
    free(memory);
    free(list);
    return status;
}

attnd_status attnd_merge(attnd_client *client, const attnd_merge_request *request,
                         uint32_t timeout_ms, attnd_timing *timing, attnd_err *err)
{
    attnd_pending *pending;
    TRY(attnd_merge_start(client, request, timeout_ms, &pending, err));
    return attnd_wait(pending, timing, err);
}

/* ---- The wait ---- */

static attnd_timing timing_of(const Attnd__V1__Reply *reply)
{
    switch (reply->result_case) {
    case ATTND__V1__REPLY__RESULT_STEP:
        return (attnd_timing){reply->step->queue_us, reply->step->device_us, reply->step->version};
    case ATTND__V1__REPLY__RESULT_MERGE:
        return (attnd_timing){reply->merge->queue_us, reply->merge->device_us, 0};
    case ATTND__V1__REPLY__RESULT_UPDATE_PLAN:
        return (attnd_timing){.version = reply->update_plan->version};
    default:
        return (attnd_timing){reply->attend->queue_us, reply->attend->device_us, 0};
    }
}

attnd_status attnd_wait(attnd_pending *pending, attnd_timing *timing, attnd_err *err)
{
    Attnd__V1__Reply *reply;
    TRY(cli_finish(pending, &reply, err));
    if (timing)
        *timing = timing_of(reply);
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}
