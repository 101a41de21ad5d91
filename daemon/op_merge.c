/* op_merge.c: Merge: attention over parts of the keys → attention over all of them (attention.md
 * §12). */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/attend.h"
#include "daemon/op.h"

enum { MAX_PARTIALS = 1024 };

/* Shape of the output, [tokens][heads][width], within the limits of a call. */
static attnd_status read_shape(const srv_engine *engine, const msg_tensor *out, srv_shape *shape,
                               attnd_err *err)
{
    if (!out->given)
        return attnd_fail(err, ATTND_BAD_TENSOR, "out: a merge needs one");
    if (!srv_dtype_is_float(out->dtype))
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "out.dtype = %s: this server writes f32, f16, bf16",
                          attnd_dtype_name(out->dtype));
    if (out->n_dims != 3)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "out.shape = %u dimensions: [tokens][n_heads][width]", out->n_dims);
    if (out->shape[0] > engine->limits.max_tokens)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "out.shape[0] = %" PRIu64
                          ": a call has at most %u tokens (limits.max_tokens)",
                          out->shape[0], engine->limits.max_tokens);
    if (!out->shape[1] || out->shape[1] > UINT16_MAX)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "out.shape[1] = %" PRIu64 ": 1..%d heads",
                          out->shape[1], UINT16_MAX);
    if (!out->shape[2] || out->shape[2] > engine->limits.max_head_dim)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "out.shape[2] = %" PRIu64 ": 1..%u elements (limits.max_head_dim)",
                          out->shape[2], engine->limits.max_head_dim);
    *shape = (srv_shape){.n_tokens = (int64_t)out->shape[0],
                         .n_heads = (uint32_t)out->shape[1],
                         .width = (uint32_t)out->shape[2]};
    return ATTND_OK;
}

/* A tensor of the request with the merge's tokens and heads. */
static attnd_status add(srv_request *request, const msg_tensor *tensor, const char *field,
                        srv_shape shape, uint32_t width, bool is_f32, bool is_output, ker_rows *out,
                        attnd_err *err)
{
    srv_span *span = &request->spans[request->n_spans];
    shape.width = width;
    if (is_f32 && tensor->dtype != ATTND_DTYPE_F32)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.dtype = %s: f32", field,
                          attnd_dtype_name(tensor->dtype));
    if (!is_f32 && !srv_dtype_is_float(tensor->dtype))
        return attnd_fail(err, ATTND_UNSUPPORTED, "%s.dtype = %s: this server reads f32, f16, bf16",
                          field, attnd_dtype_name(tensor->dtype));
    TRY(srv_tensor_resolve(request, tensor, field, shape, is_output, span, err));
    *out = span->rows;
    request->n_spans++;
    return ATTND_OK;
}

static attnd_status read_part(srv_request *request, size_t i, srv_shape shape, ker_merge_part *out,
                              attnd_err *err)
{
    const msg_partial *msg = &request->msg.merge.partials[i];
    char field[40];
    if (!msg->out.given)
        return attnd_fail(err, ATTND_BAD_TENSOR, "partials[%zu].out: there is none", i);
    if (msg->lse.given == msg->stats.given)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "partials[%zu].lse: lse or stats, one of them", i);
    snprintf(field, sizeof field, "partials[%zu].out", i);
    TRY(add(request, &msg->out, field, shape, shape.width, false, false, &out->out, err));
    if (msg->lse.given) {
        snprintf(field, sizeof field, "partials[%zu].lse", i);
        return add(request, &msg->lse, field, shape, 1, true, false, &out->lse, err);
    }
    snprintf(field, sizeof field, "partials[%zu].stats", i);
    return add(request, &msg->stats, field, shape, 2, true, false, &out->stats, err);
}

attnd_status srv_check_merge(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_merge *msg = &request->msg.merge;
    srv_shape shape;
    if (!msg->n_partials || msg->n_partials > MAX_PARTIALS)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "partials = %zu: 1..%d", msg->n_partials,
                          MAX_PARTIALS);
    TRY(read_shape(engine, &msg->out, &shape, err));
    ker_merge_problem *merge = msg_arena_take(&request->arena, sizeof *merge);
    ker_merge_part *parts = msg_arena_take(&request->arena, msg->n_partials * sizeof *parts);
    request->spans =
        msg_arena_take(&request->arena, (2 * msg->n_partials + 3) * sizeof *request->spans);
    request->n_spans = 0;
    if (!merge || !parts || !request->spans)
        return attnd_fail(err, ATTND_TOO_LARGE, "partials = %zu: more than a request may use",
                          msg->n_partials);
    *merge = (ker_merge_problem){.n_tokens = shape.n_tokens,
                                 .n_heads = shape.n_heads,
                                 .width = shape.width,
                                 .parts = parts,
                                 .n_parts = (uint32_t)msg->n_partials};
    for (size_t i = 0; i < msg->n_partials; i++) {
        parts[i] = (ker_merge_part){0};
        TRY(read_part(request, i, shape, &parts[i], err));
    }
    TRY(add(request, &msg->out, "out", shape, shape.width, false, true, &merge->out, err));
    if (msg->lse.given)
        TRY(add(request, &msg->lse, "lse", shape, 1, true, true, &merge->lse, err));
    if (msg->stats.given)
        TRY(add(request, &msg->stats, "stats", shape, 2, true, true, &merge->stats, err));
    request->merge = merge;
    return srv_calls_end(request, err);
}

void srv_run_merge(srv_engine *engine, srv_request *request)
{
    request->reply.merge = (msg_attend_reply){.queue_us = srv_calls_queue_us(request),
                                              .device_us = srv_calls_device_us(request)};
}
