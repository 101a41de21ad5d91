/* op_attend.c: Attend: append k and v, attend, write out: a message → a checked problem. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/batch.h"
#include "daemon/op.h"
#include "daemon/tensor.h"

/* The tensors of one call, in the order their overlap is reported. */
typedef struct attend_tensors {
    srv_span spans[6];
    size_t n;
} attend_tensors;

/* What this server does not serve is refused by name. */
static attnd_status check_served(const msg_attend *msg, attnd_err *err)
{
    static const char *const MASKS[] = {"causal", "full", "variable", "custom", "tree"};
    static const char *const SYNCS[] = {"reply", "event", "doorbell"};
    if (msg->has_plan)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "plan = %" PRIu64 ": this server takes an inline batch", msg->plan);
    if (!msg->has_batch)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "batch: a call needs one");
    if (msg->sync.given && msg->sync.mode != MSG_SYNC_REPLY)
        return attnd_fail(err, ATTND_UNSUPPORTED, "sync.mode = %s: this server serves reply",
                          SYNCS[msg->sync.mode]);
    if (msg->keys != MSG_KEYS_POOL)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "keys = given: this server reads keys from the pool");
    if (msg->batch.n_sequences)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "batch.sequences = %zu entries: this server takes tables",
                          msg->batch.n_sequences);
    if (msg->batch.mask != MSG_MASK_CAUSAL && msg->batch.mask != MSG_MASK_FULL)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "batch.mask = %s: this server serves causal and full",
                          MASKS[msg->batch.mask]);
    return ATTND_OK;
}

static bool is_float(attnd_dtype dtype)
{
    return dtype == ATTND_DTYPE_F32 || dtype == ATTND_DTYPE_F16 || dtype == ATTND_DTYPE_BF16;
}

/* Activations have the pool's type. */
static attnd_status check_dtype(const msg_tensor *tensor, const char *field,
                                const ker_problem *problem, attnd_err *err)
{
    if (tensor->dtype != problem->kv.dtype)
        return attnd_fail(err, ATTND_BAD_QUANT, "%s.dtype = %s: the pool holds %s", field,
                          attnd_dtype_name(tensor->dtype), attnd_dtype_name(problem->kv.dtype));
    return ATTND_OK;
}

static attnd_status add_tensor(srv_request *request, attend_tensors *tensors,
                               const msg_tensor *tensor, const char *field, uint32_t n_heads,
                               uint32_t width, bool is_output, ker_rows *out, attnd_err *err)
{
    srv_span *span = &tensors->spans[tensors->n];
    srv_shape shape = {
        .n_tokens = request->problem.batch.n_tokens, .n_heads = n_heads, .width = width};
    TRY(srv_tensor_resolve(request, tensor, field, shape, is_output, span, err));
    *out = span->rows;
    tensors->n++;
    return ATTND_OK;
}

/* q alone and as wide as q, k and v side by side. */
static bool is_fused(const msg_attend *msg, const ker_problem *p)
{
    uint64_t width = (uint64_t)(p->n_heads + p->n_kv_heads) * p->head_dim +
                     (uint64_t)p->n_kv_heads * p->head_dim_v;
    return !msg->k.given && !msg->v.given && msg->q.n_dims == 2 && msg->q.shape[1] == width;
}

static attnd_status read_fused(srv_request *request, attend_tensors *tensors, attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    ker_problem *p = &request->problem;
    int64_t element = attnd_dtype_bits(msg->q.dtype) / 8;
    TRY(add_tensor(request, tensors, &msg->q, "q", 1, (uint32_t)msg->q.shape[1], false, &p->q,
                   err));
    p->q.head_stride = p->head_dim * element;
    p->append.k = p->q;
    p->append.k.base += (int64_t)p->n_heads * p->q.head_stride;
    p->append.v = p->append.k;
    p->append.v.base += (int64_t)p->n_kv_heads * p->q.head_stride;
    p->append.v.head_stride = p->head_dim_v * element;
    return ATTND_OK;
}

static attnd_status read_inputs(srv_request *request, attend_tensors *tensors, attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    ker_problem *p = &request->problem;
    if (!msg->q.given)
        return attnd_fail(err, ATTND_BAD_TENSOR, "q: a call needs one");
    TRY(check_dtype(&msg->q, "q", p, err));
    if (is_fused(msg, p))
        return read_fused(request, tensors, err);
    TRY(add_tensor(request, tensors, &msg->q, "q", p->n_heads, p->head_dim, false, &p->q, err));
    if (!msg->k.given)
        return ATTND_OK;
    TRY(check_dtype(&msg->k, "k", p, err));
    TRY(check_dtype(&msg->v, "v", p, err));
    TRY(add_tensor(request, tensors, &msg->k, "k", p->n_kv_heads, p->head_dim, false, &p->append.k,
                   err));
    return add_tensor(request, tensors, &msg->v, "v", p->n_kv_heads, p->head_dim_v, false,
                      &p->append.v, err);
}

/* lse and stats are fp32. */
static attnd_status check_is_f32(const msg_tensor *tensor, const char *field, attnd_err *err)
{
    if (tensor->dtype != ATTND_DTYPE_F32)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.dtype = %s: f32", field,
                          attnd_dtype_name(tensor->dtype));
    return ATTND_OK;
}

static attnd_status read_outputs(srv_request *request, attend_tensors *tensors, attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    ker_problem *p = &request->problem;
    if (!msg->out.given)
        return attnd_fail(err, ATTND_BAD_TENSOR, "out: a call needs one");
    if (!is_float(msg->out.dtype))
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "out.dtype = %s: this server writes f32, f16, bf16",
                          attnd_dtype_name(msg->out.dtype));
    TRY(add_tensor(request, tensors, &msg->out, "out", p->n_heads, p->head_dim_v, true, &p->out,
                   err));
    if (msg->lse.given) {
        TRY(check_is_f32(&msg->lse, "lse", err));
        TRY(add_tensor(request, tensors, &msg->lse, "lse", p->n_heads, 1, true, &p->lse, err));
    }
    if (msg->stats.given) {
        TRY(check_is_f32(&msg->stats, "stats", err));
        TRY(add_tensor(request, tensors, &msg->stats, "stats", p->n_heads, 2, true, &p->stats,
                       err));
    }
    return srv_spans_check(tensors->spans, tensors->n, err);
}

attnd_status srv_check_attend(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    srv_model *model;
    TRY(srv_model_get(request->session, msg->model, "model", &model, err));
    srv_model_use(model);
    request->model = model;
    if (msg->layer >= model->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "layer = %u: model \"%s\" has layers 0..%u",
                          msg->layer, model->name, model->n_layers - 1);
    const srv_layer *layer = &model->layers[msg->layer];
    TRY(check_served(msg, err));
    if (msg->k.given != msg->v.given)
        return attnd_fail(err, ATTND_BAD_COMBINATION, "%s: k and v come together",
                          msg->k.given ? "v" : "k");
    ker_problem *problem = &request->problem;
    *problem = layer->shape;
    problem->batch_invariant = msg->batch_invariant;
    if (msg->batch.mask == MSG_MASK_CAUSAL)
        problem->mask.kinds |= KER_MASK_CAUSAL;
    bool has_new_keys = msg->k.given || is_fused(msg, problem);
    TRY(srv_batch_read(engine, request, model, layer->group, has_new_keys, err));
    TRY(srv_batch_read_table(engine, request, model, layer->group, has_new_keys, err));
    attend_tensors tensors = {.n = 0};
    TRY(read_inputs(request, &tensors, err));
    TRY(read_outputs(request, &tensors, err));
    request->has_problem = true;
    return ATTND_OK;
}

void srv_run_attend(srv_engine *engine, srv_request *request)
{
    const ker_ticket *ticket = &request->ticket;
    srv_stats_add(SRV_COUNT_launches, 1);
    srv_stats_add(SRV_COUNT_query_tokens, (uint64_t)request->problem.batch.n_tokens);
    if (request->problem.append.k.base)
        srv_stats_add(SRV_COUNT_appended_tokens, (uint64_t)request->problem.batch.n_tokens);
    request->reply.attend =
        (msg_attend_reply){.queue_us = (ticket->launched_ns - request->received_ns) / 1000,
                           .device_us = (ticket->ended_ns - ticket->started_ns) / 1000};
}
