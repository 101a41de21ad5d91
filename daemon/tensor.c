/* tensor.c: what a message says about a buffer → checked addresses. */
#include "daemon/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attnd_status hold_buffer(srv_request *request, uint64_t handle, const char *field,
                                srv_buffer **out, attnd_err *err)
{
    char name[96];
    snprintf(name, sizeof name, "%s.buffer", field);
    TRY(srv_buffer_get(request->session, handle, name, out, err));
    for (size_t i = 0; i < request->n_held; i++)
        if (request->held[i] == *out)
            return ATTND_OK;
    if (request->n_held == SRV_MAX_HELD)
        return attnd_fail(err, ATTND_TOO_LARGE, "%s: a request names at most %d buffers", field,
                          SRV_MAX_HELD);
    request->held[request->n_held++] = *out;
    srv_buffer_use(*out);
    return ATTND_OK;
}

/* Strides of [tokens][heads][width] out of two or three dimensions. */
static attnd_status read_strides(const msg_tensor *tensor, const char *field, srv_shape shape,
                                 int64_t element, int64_t *token_stride, int64_t *head_stride,
                                 attnd_err *err)
{
    uint64_t row = (uint64_t)shape.n_heads * shape.width;
    bool is_flat = tensor->n_dims == 2 && tensor->shape[1] == row;
    bool is_full =
        tensor->n_dims == 3 && tensor->shape[1] == shape.n_heads && tensor->shape[2] == shape.width;
    if (tensor->n_dims != 2 && tensor->n_dims != 3)
        return attnd_fail(
            err, ATTND_BAD_GEOMETRY,
            "%s.shape = %u dimensions: [%" PRId64 "][%u][%u] or [%" PRId64 "][%" PRIu64 "]", field,
            tensor->n_dims, shape.n_tokens, shape.n_heads, shape.width, shape.n_tokens, row);
    if (tensor->shape[0] != (uint64_t)shape.n_tokens)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "%s.shape[0] = %" PRIu64 ": the batch has %" PRId64 " tokens", field,
                          tensor->shape[0], shape.n_tokens);
    int wrong = tensor->n_dims == 3 && tensor->shape[1] == shape.n_heads ? 2 : 1;
    if (!is_flat && !is_full)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "%s.shape[%d] = %" PRIu64 ": a token has %u heads of %u, %" PRIu64
                          " elements",
                          field, wrong, tensor->shape[wrong], shape.n_heads, shape.width, row);
    *head_stride = (int64_t)shape.width * element;
    *token_stride = (int64_t)row * element;
    if (!tensor->n_strides)
        return ATTND_OK;
    if (tensor->n_strides != tensor->n_dims)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.strides = %u entries: one for each dimension",
                          field, tensor->n_strides);
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        int64_t stride = tensor->strides[i];
        if (stride < 0)
            return attnd_fail(err, ATTND_BAD_TENSOR, "%s.strides[%u] = %" PRId64 ": not negative",
                              field, i, stride);
        if (stride % element)
            return attnd_fail(err, ATTND_BAD_TENSOR,
                              "%s.strides[%u] = %" PRId64 ": a multiple of the element, %" PRId64
                              " bytes",
                              field, i, stride, element);
    }
    if (tensor->strides[tensor->n_dims - 1] != element)
        return attnd_fail(err, ATTND_BAD_TENSOR,
                          "%s.strides[%u] = %" PRId64
                          ": the innermost stride is the element, %" PRId64 " bytes",
                          field, tensor->n_dims - 1, tensor->strides[tensor->n_dims - 1], element);
    *token_stride = tensor->strides[0];
    if (is_full)
        *head_stride = tensor->strides[1];
    return ATTND_OK;
}

/* Bytes from the first element to behind the last; false on overflow. */
static bool extent(srv_shape shape, int64_t element, int64_t token_stride, int64_t head_stride,
                   uint64_t *out)
{
    uint64_t tokens, heads;
    if (!shape.n_tokens) {
        *out = 0;
        return true;
    }
    if (__builtin_mul_overflow((uint64_t)shape.n_tokens - 1, (uint64_t)token_stride, &tokens) ||
        __builtin_mul_overflow((uint64_t)shape.n_heads - 1, (uint64_t)head_stride, &heads) ||
        __builtin_add_overflow(tokens, heads, out))
        return false;
    return !__builtin_add_overflow(*out, (uint64_t)shape.width * (uint64_t)element, out);
}

/* No two elements of an output may share bytes: rows nest in one order or the other. Called after
 * extent: nothing overflows here. */
static bool has_distinct_elements(srv_shape shape, int64_t element, int64_t token_stride,
                                  int64_t head_stride)
{
    int64_t width = shape.width * element;
    int64_t heads = ((int64_t)shape.n_heads - 1) * head_stride + width;
    int64_t tokens = (shape.n_tokens - 1) * token_stride + width;
    bool one_head = shape.n_heads == 1, one_token = shape.n_tokens <= 1;
    return ((one_head || head_stride >= width) && (one_token || token_stride >= heads)) ||
           ((one_token || token_stride >= width) && (one_head || head_stride >= tokens));
}

attnd_status srv_tensor_resolve(srv_request *request, const msg_tensor *tensor, const char *field,
                                srv_shape shape, bool is_output, srv_span *out, attnd_err *err)
{
    int64_t element = attnd_dtype_bits(tensor->dtype) / 8, token_stride = 0, head_stride = 0;
    srv_buffer *buffer;
    uint64_t bytes, end;
    TRY(read_strides(tensor, field, shape, element, &token_stride, &head_stride, err));
    if (tensor->offset % (uint64_t)element)
        return attnd_fail(err, ATTND_BAD_TENSOR,
                          "%s.offset = %" PRIu64 ": a multiple of the element, %" PRId64 " bytes",
                          field, tensor->offset, element);
    TRY(hold_buffer(request, tensor->buffer, field, &buffer, err));
    if (!extent(shape, element, token_stride, head_stride, &bytes) ||
        __builtin_add_overflow(bytes, tensor->offset, &end) || end > buffer->memory.bytes)
        return attnd_fail(err, ATTND_BAD_TENSOR,
                          "%s.offset = %" PRIu64
                          ": the tensor ends outside its buffer of %zu bytes",
                          field, tensor->offset, buffer->memory.bytes);
    if (is_output && !has_distinct_elements(shape, element, token_stride, head_stride))
        return attnd_fail(err, ATTND_BAD_TENSOR,
                          "%s.strides = %" PRId64 " and %" PRId64
                          ": elements of an output share no bytes",
                          field, token_stride, head_stride);
    *out = (srv_span){.rows = {.base = (char *)buffer->memory.base + tensor->offset,
                               .token_stride = token_stride,
                               .head_stride = head_stride,
                               .dtype = tensor->dtype},
                      .buffer = tensor->buffer,
                      .first = tensor->offset,
                      .end = tensor->offset + bytes,
                      .is_output = is_output};
    snprintf(out->field, sizeof out->field, "%s", field);
    return ATTND_OK;
}

/* By place, then by name. */
static int by_place(const void *left, const void *right)
{
    const srv_span *a = left, *b = right;
    if (a->buffer != b->buffer)
        return a->buffer < b->buffer ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    if (a->end != b->end)
        return a->end < b->end ? -1 : 1;
    return strcmp(a->field, b->field);
}

static attnd_status overlap(const srv_span *a, const srv_span *b, attnd_err *err)
{
    const srv_span *output = b->is_output ? b : a, *other = b->is_output ? a : b;
    return attnd_fail(
        err, ATTND_BAD_TENSOR,
        "%s.offset = %" PRIu64 ": its bytes up to %" PRIu64 " overlap %s, %" PRIu64 " to %" PRIu64,
        output->field, output->first, output->end, other->field, other->first, other->end);
}

attnd_status srv_spans_check(srv_span *spans, size_t n, attnd_err *err)
{
    const srv_span *last = NULL, *last_output = NULL; /* those that end last so far */
    qsort(spans, n, sizeof *spans, by_place);
    for (size_t i = 0; i < n; i++) {
        const srv_span *s = &spans[i];
        if (s->first == s->end || (i && !by_place(s, s - 1)))
            continue;
        if (last && last->buffer != s->buffer)
            last = last_output = NULL;
        const srv_span *before = s->is_output ? last : last_output;
        if (before && before->end > s->first)
            return overlap(before, s, err);
        if (!last || s->end > last->end)
            last = s;
        if (s->is_output && (!last_output || s->end > last_output->end))
            last_output = s;
    }
    return ATTND_OK;
}

bool srv_dtype_is_float(attnd_dtype dtype)
{
    return dtype == ATTND_DTYPE_F32 || dtype == ATTND_DTYPE_F16 || dtype == ATTND_DTYPE_BF16;
}

attnd_status srv_ints_copy(srv_request *request, msg_arena *arena, const msg_ints *ints,
                           const char *field, int64_t wanted, int64_t most, const int32_t **out,
                           int64_t *n, attnd_err *err)
{
    const void *from = ints->data;
    uint64_t count = ints->bytes / sizeof(int32_t);
    bool in_buffer = !ints->data;
    *n = 0;
    if (in_buffer && ints->ref.given) {
        if (ints->ref.dtype != ATTND_DTYPE_I32)
            return attnd_fail(err, ATTND_BAD_LENGTH, "%s.ref.dtype = %s: i32", field,
                              attnd_dtype_name(ints->ref.dtype));
        if (ints->ref.n_dims != 1)
            return attnd_fail(err, ATTND_BAD_LENGTH, "%s.ref.shape = %u dimensions: one", field,
                              ints->ref.n_dims);
        if (ints->ref.n_strides)
            return attnd_fail(err, ATTND_BAD_TENSOR, "%s.ref.strides = %u entries: none", field,
                              ints->ref.n_strides);
        count = ints->ref.shape[0];
    } else if (ints->bytes % sizeof(int32_t)) {
        return attnd_fail(err, ATTND_BAD_LENGTH, "%s = %zu bytes: int32 values, four bytes each",
                          field, ints->bytes);
    }
    if (wanted >= 0 && count != (uint64_t)wanted)
        return attnd_fail(err, ATTND_BAD_LENGTH, "%s = %" PRIu64 " entries: %" PRId64 " are needed",
                          field, count, wanted);
    if (count > (uint64_t)most)
        return attnd_fail(err, ATTND_TOO_LARGE, "%s = %" PRIu64 " entries: at most %" PRId64, field,
                          count, most);
    if (in_buffer && count) {
        char name[96];
        srv_span span;
        msg_tensor flat = ints->ref;
        flat.n_dims = 2;
        flat.shape[1] = 1;
        snprintf(name, sizeof name, "%s.ref", field);
        srv_shape shape = {.n_tokens = (int64_t)count, .n_heads = 1, .width = 1};
        TRY(srv_tensor_resolve(request, &flat, name, shape, false, &span, err));
        from = span.rows.base;
    }
    int32_t *copy = msg_arena_take(arena, count * sizeof *copy);
    if (!copy)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "%s = %" PRIu64 " entries: more than a request may use", field, count);
    if (in_buffer && count)
        TRY(ker_memory_read(request->engine->device, copy, from, count * sizeof *copy, err));
    else if (count)
        memcpy(copy, from, count * sizeof *copy);
    *out = copy;
    *n = (int64_t)count;
    return ATTND_OK;
}
