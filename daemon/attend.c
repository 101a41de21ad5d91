/* attend.c: tensors of a layer → a checked problem. */
#include "daemon/attend.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS_A_CALL = 6 };

attnd_status srv_call_check_served(msg_keys keys, const msg_sync *sync, attnd_err *err)
{
    static const char *const SYNCS[] = {"reply", "event", "doorbell"};
    if (sync->given && sync->mode != MSG_SYNC_REPLY)
        return attnd_fail(err, ATTND_UNSUPPORTED, "sync.mode = %s: this server serves reply",
                          SYNCS[sync->mode]);
    if (keys != MSG_KEYS_POOL)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "keys = given: this server reads keys from the pool");
    return ATTND_OK;
}

/* q alone and as wide as q, k and v side by side. */
static bool is_fused(const srv_call *call, const ker_problem *p)
{
    uint64_t width = (uint64_t)(p->n_heads + p->n_kv_heads) * p->head_dim +
                     (uint64_t)p->n_kv_heads * p->head_dim_v;
    return !call->k.given && !call->v.given && call->q.n_dims == 2 && call->q.shape[1] == width;
}

attnd_status srv_call_has_keys(const srv_call *call, const ker_problem *shape, bool *out,
                               attnd_err *err)
{
    if (call->k.given != call->v.given)
        return attnd_fail(err, ATTND_BAD_COMBINATION, "%s: k and v come together",
                          call->k.given ? "v" : "k");
    *out = call->k.given || is_fused(call, shape);
    return ATTND_OK;
}

attnd_status srv_calls_begin(srv_request *request, uint32_t n, attnd_err *err)
{
    request->problems = msg_arena_take(&request->arena, n * sizeof *request->problems);
    request->spans =
        msg_arena_take(&request->arena, (size_t)n * TENSORS_A_CALL * sizeof *request->spans);
    request->n_problems = request->n_spans = 0;
    if (!request->problems || !request->spans)
        return attnd_fail(err, ATTND_TOO_LARGE, "n_layers = %u: more than a request may use", n);
    return ATTND_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------
 */

/* The tensor that is being read. */
typedef struct reading {
    srv_request *request;
    const srv_call *call;
    ker_problem *problem;
    attnd_err *err;
} reading;

static attnd_status add(const reading *r, const msg_tensor *tensor, const char *name,
                        uint32_t n_heads, uint32_t width, bool is_output, ker_rows *out)
{
    char field[24];
    srv_span *span = &r->request->spans[r->request->n_spans];
    srv_shape shape = {.n_tokens = r->problem->batch.n_tokens, .n_heads = n_heads, .width = width};
    snprintf(field, sizeof field, "%s%s", name, r->call->suffix);
    TRY(srv_tensor_resolve(r->request, tensor, field, shape, is_output, span, r->err));
    *out = span->rows;
    r->request->n_spans++;
    return ATTND_OK;
}

/* Activations have the pool's type. */
static attnd_status check_dtype(const reading *r, const msg_tensor *tensor, const char *name)
{
    attnd_dtype holds = r->problem->kv.dtype;
    if (tensor->dtype != holds)
        return attnd_fail(r->err, ATTND_BAD_QUANT, "%s%s.dtype = %s: the pool holds %s", name,
                          r->call->suffix, attnd_dtype_name(tensor->dtype),
                          attnd_dtype_name(holds));
    return ATTND_OK;
}

static attnd_status read_fused(const reading *r)
{
    ker_problem *p = r->problem;
    const msg_tensor *q = &r->call->q;
    int64_t element = attnd_dtype_bits(q->dtype) / 8;
    TRY(add(r, q, "q", 1, (uint32_t)q->shape[1], false, &p->q));
    p->q.head_stride = p->head_dim * element;
    p->append.k = p->q;
    p->append.k.base += (int64_t)p->n_heads * p->q.head_stride;
    p->append.v = p->append.k;
    p->append.v.base += (int64_t)p->n_kv_heads * p->q.head_stride;
    p->append.v.head_stride = p->head_dim_v * element;
    return ATTND_OK;
}

static attnd_status read_inputs(const reading *r)
{
    const srv_call *call = r->call;
    ker_problem *p = r->problem;
    if (!call->q.given)
        return attnd_fail(r->err, ATTND_BAD_TENSOR, "q: a call needs one");
    TRY(check_dtype(r, &call->q, "q"));
    if (is_fused(call, p))
        return read_fused(r);
    TRY(add(r, &call->q, "q", p->n_heads, p->head_dim, false, &p->q));
    if (!call->k.given)
        return ATTND_OK;
    TRY(check_dtype(r, &call->k, "k"));
    TRY(check_dtype(r, &call->v, "v"));
    TRY(add(r, &call->k, "k", p->n_kv_heads, p->head_dim, false, &p->append.k));
    return add(r, &call->v, "v", p->n_kv_heads, p->head_dim_v, false, &p->append.v);
}

/* lse and stats are fp32. */
static attnd_status check_is_f32(const reading *r, const msg_tensor *tensor, const char *name)
{
    if (tensor->dtype != ATTND_DTYPE_F32)
        return attnd_fail(r->err, ATTND_BAD_TENSOR, "%s%s.dtype = %s: f32", name, r->call->suffix,
                          attnd_dtype_name(tensor->dtype));
    return ATTND_OK;
}

static attnd_status read_outputs(const reading *r)
{
    const srv_call *call = r->call;
    ker_problem *p = r->problem;
    if (!call->out.given)
        return attnd_fail(r->err, ATTND_BAD_TENSOR, "out: a call needs one");
    if (!srv_dtype_is_float(call->out.dtype))
        return attnd_fail(r->err, ATTND_UNSUPPORTED,
                          "out%s.dtype = %s: this server writes f32, f16, bf16", call->suffix,
                          attnd_dtype_name(call->out.dtype));
    TRY(add(r, &call->out, "out", p->n_heads, p->head_dim_v, true, &p->out));
    if (call->lse.given) {
        TRY(check_is_f32(r, &call->lse, "lse"));
        TRY(add(r, &call->lse, "lse", p->n_heads, 1, true, &p->lse));
    }
    if (call->stats.given) {
        TRY(check_is_f32(r, &call->stats, "stats"));
        TRY(add(r, &call->stats, "stats", p->n_heads, 2, true, &p->stats));
    }
    return ATTND_OK;
}

attnd_status srv_call_add_problem(srv_request *request, const ker_problem *shape,
                                  const srv_call *call, attnd_err *err)
{
    ker_problem *problem = &request->problems[request->n_problems];
    reading r = {.request = request, .call = call, .problem = problem, .err = err};
    *problem = *shape;
    TRY(read_inputs(&r));
    TRY(read_outputs(&r));
    request->n_problems++;
    return ATTND_OK;
}

attnd_status srv_call_add(srv_request *request, const srv_plan *plan, uint32_t layer,
                          const srv_call *call, attnd_err *err)
{
    ker_problem shape;
    bool has_keys;
    if (layer < plan->model->n_layers)
        TRY(srv_call_has_keys(call, &plan->model->layers[layer].shape, &has_keys, err));
    else
        has_keys = false; /* srv_version_problem refuses the layer */
    if (srv_version_problem(plan, request->version, layer, has_keys, &shape, err) != ATTND_OK) {
        bool is_about_keys = layer < plan->model->n_layers && has_keys &&
                             request->version->append_err[plan->model->layers[layer].group];
        if (is_about_keys && request->version->number) /* it names a field of an earlier request */
            attnd_err_prefix(err, "%s = given: over this plan nothing can be appended, ",
                             call->k.given ? "k" : "q");
        return err->status;
    }
    if (shape.append.slots && !has_keys)
        shape.append.slots = NULL;
    return srv_call_add_problem(request, &shape, call, err);
}

attnd_status srv_calls_end(srv_request *request, attnd_err *err)
{
    return srv_spans_check(request->spans, request->n_spans, err);
}

/* ---- After completion -------------------------------------------------------------------------
 */

void srv_calls_count(const srv_request *request)
{
    srv_stats_add(SRV_COUNT_launches, request->n_problems);
    for (size_t i = 0; i < request->n_problems; i++) {
        const ker_problem *p = &request->problems[i];
        srv_stats_add(SRV_COUNT_query_tokens, (uint64_t)p->batch.n_tokens);
        if (p->append.k.base)
            srv_stats_add(SRV_COUNT_appended_tokens, (uint64_t)p->batch.n_tokens);
    }
}

uint64_t srv_calls_queue_us(const srv_request *request)
{
    return (request->launches[0].ticket.launched_ns - request->received_ns) / 1000;
}

uint64_t srv_calls_device_us(const srv_request *request)
{
    const ker_ticket *first = &request->launches[0].ticket;
    const ker_ticket *last = &request->launches[request->n_launches - 1].ticket;
    return (last->ended_ns - first->started_ns) / 1000;
}
