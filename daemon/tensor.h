/* tensor.h: what a message says about a buffer → checked addresses.
 *
 * Every reference is bounds-checked against its buffer with checked arithmetic and the buffer held
 * until the reply. Integers are copied into the request's arena before anyone looks at them: a
 * client may change shared memory after the check.
 */
#ifndef ATTND_DAEMON_TENSOR_H
#define ATTND_DAEMON_TENSOR_H

#include "daemon/session.h"

/* What a tensor must look like: [tokens][heads][width], or [tokens][heads·width]. */
typedef struct srv_shape {
    int64_t n_tokens;
    uint32_t n_heads;
    uint32_t width;
} srv_shape;

/* A checked tensor. */
struct srv_span {
    char field[40];
    ker_rows rows;
    uint64_t buffer;
    uint64_t first,
        end; /* bytes of the buffer from its first element to behind its last; equal: none */
    bool is_output;
};

/* Refuses NO_SUCH_HANDLE (buffer), BAD_GEOMETRY (shape), BAD_TENSOR (strides, alignment, bounds; an
 * output whose own elements share bytes). Does not look at dtype but for its size: the caller has.
 * field is borrowed by the span. */
attnd_status srv_tensor_resolve(srv_request *request, const msg_tensor *tensor, const char *field,
                                srv_shape shape, bool is_output, srv_span *out, attnd_err *err);

/* Refuses BAD_TENSOR when an output shares bytes with another tensor. One that lies where it lay
 * before, the same tensor of another layer, is no other. Sorts the spans. */
attnd_status srv_spans_check(srv_span *spans, size_t n, attnd_err *err);

/* f32, f16 or bf16. */
bool srv_dtype_is_float(attnd_dtype dtype);

/* Copies int32 values into the arena: *out of *n values. Refuses BAD_LENGTH (not whole int32
 * values, or not the wanted count; wanted < 0: any), TOO_LARGE (more than most, or than the arena
 * holds), and what srv_tensor_resolve refuses; KERNEL_FAILED when the device cannot be read. */
attnd_status srv_ints_copy(srv_request *request, msg_arena *arena, const msg_ints *ints,
                           const char *field, int64_t wanted, int64_t most, const int32_t **out,
                           int64_t *n, attnd_err *err);

#endif
