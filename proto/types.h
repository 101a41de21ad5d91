/* types.h: the words every folder shares: statuses, reasons, dtypes, layer kinds, phases.
 *
 * Standard headers only. Each list is written once here and makes the enum, the names and the
 * wire numbers; proto/attnd.proto repeats the numbers and a test keeps the two equal.
 */
#ifndef ATTND_TYPES_H
#define ATTND_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What libattnd.so shows to its users; all else in it is hidden. */
#define ATTND_API __attribute__((visibility("default")))

/* Who can mend a refusal: NOBODY (nothing is wrong), CALLER (send something else), WAIT (send it
 * again later), US (our own promise was broken). It decides the log level and what may be retried.
 */
typedef enum attnd_mender {
    ATTND_MENDER_NOBODY,
    ATTND_MENDER_CALLER,
    ATTND_MENDER_WAIT,
    ATTND_MENDER_US,
} attnd_mender;

/*  X(name, number, who can mend it, text). Numbers are on the wire (the canonical codes of gRPC):
 *  add, never reuse. */
#define ATTND_STATUS_MAP(X)                                                                        \
    X(OK, 0, NOBODY, "ok")                                                                         \
    X(INVALID_ARGUMENT, 3, CALLER, "a field is wrong")                                             \
    X(DEADLINE_EXCEEDED, 4, WAIT, "the deadline passed")                                           \
    X(NOT_FOUND, 5, CALLER, "no such thing")                                                       \
    X(RESOURCE_EXHAUSTED, 8, WAIT, "no room now")                                                  \
    X(FAILED_PRECONDITION, 9, CALLER, "the state has moved on")                                    \
    X(UNIMPLEMENTED, 12, CALLER, "nobody serves this")                                             \
    X(INTERNAL, 13, US, "our own promise was broken")                                              \
    X(UNAVAILABLE, 14, WAIT, "not now, not here")

typedef enum attnd_status {
#define X(name, number, mender, text) ATTND_##name = number,
    ATTND_STATUS_MAP(X)
#undef X
} attnd_status;

/*  X(name, number, its one status). The label of a refusal: it never changes, a client may switch
 *  on it. */
#define ATTND_REASON_MAP(X)                                                                        \
    X(NO_REASON, 0, OK)                                                                            \
    X(BAD_MESSAGE, 1, INVALID_ARGUMENT)                                                            \
    X(BAD_TENSOR, 2, INVALID_ARGUMENT)                                                             \
    X(TOO_LARGE, 3, INVALID_ARGUMENT)                                                              \
    X(NO_ROOM, 4, RESOURCE_EXHAUSTED)                                                              \
    X(NO_SUCH_HANDLE, 5, NOT_FOUND)                                                                \
    X(UNREGISTERED, 6, NOT_FOUND)                                                                  \
    X(STALE, 7, FAILED_PRECONDITION)                                                               \
    X(UNSUPPORTED, 8, UNIMPLEMENTED)                                                               \
    X(TIMED_OUT, 9, DEADLINE_EXCEEDED)                                                             \
    X(DRAINING, 10, UNAVAILABLE)                                                                   \
    X(RESTARTED, 11, UNAVAILABLE)                                                                  \
    X(KERNEL_FAILED, 12, INTERNAL)                                                                 \
    X(BAD_GEOMETRY, 20, INVALID_ARGUMENT)                                                          \
    X(BAD_LENGTH, 21, INVALID_ARGUMENT)                                                            \
    X(KV_LEN_EXCEEDS_POOL, 22, INVALID_ARGUMENT)                                                   \
    X(BAD_BLOCK, 23, INVALID_ARGUMENT)                                                             \
    X(BAD_PHASE, 24, INVALID_ARGUMENT)                                                             \
    X(BAD_MASK, 25, INVALID_ARGUMENT)                                                              \
    X(BAD_ROPE, 26, INVALID_ARGUMENT)                                                              \
    X(BAD_QUANT, 27, INVALID_ARGUMENT)                                                             \
    X(BAD_CP, 28, INVALID_ARGUMENT)                                                                \
    X(BAD_COMBINATION, 29, INVALID_ARGUMENT)                                                       \
    X(BAD_CONFIG, 30, INVALID_ARGUMENT)                                                            \
    X(UNREACHABLE, 31, UNAVAILABLE)                                                                \
    X(BROKEN, 32, INTERNAL)

typedef enum attnd_reason {
#define X(name, number, status) ATTND_##name = number,
    ATTND_REASON_MAP(X)
#undef X
} attnd_reason;

/*  X(name, number, bits of one element, the name people write). */
#define ATTND_DTYPE_MAP(X)                                                                         \
    X(NONE, 0, 0, "none")                                                                          \
    X(F32, 1, 32, "f32")                                                                           \
    X(F16, 2, 16, "f16")                                                                           \
    X(BF16, 3, 16, "bf16")                                                                         \
    X(E4M3, 4, 8, "e4m3")                                                                          \
    X(E5M2, 5, 8, "e5m2")                                                                          \
    X(I8, 6, 8, "i8")                                                                              \
    X(NVFP4, 7, 4, "nvfp4")                                                                        \
    X(I32, 8, 32, "i32")                                                                           \
    X(U8, 9, 8, "u8")

typedef enum attnd_dtype {
#define X(name, number, bits, text) ATTND_DTYPE_##name = number,
    ATTND_DTYPE_MAP(X)
#undef X
} attnd_dtype;

/*  X(name, number, the name people write). MHA, GQA and MQA are one kind: they differ in counts. */
#define ATTND_LAYER_KIND_MAP(X)                                                                    \
    X(GQA, 0, "gqa")                                                                               \
    X(MLA, 1, "mla")                                                                               \
    X(CROSS, 2, "cross")                                                                           \
    X(ENCODER, 3, "encoder")

typedef enum attnd_layer_kind {
#define X(name, number, text) ATTND_LAYER_##name = number,
    ATTND_LAYER_KIND_MAP(X)
#undef X
} attnd_layer_kind;

/* Inner order of a slab (attention.md §3.1): HND [kv_head][token][dim], NHD [token][kv_head][dim].
 */
typedef enum attnd_layout {
    ATTND_LAYOUT_HND = 0,
    ATTND_LAYOUT_NHD = 1,
} attnd_layout;

/* Which channels are rotated together (attention.md §5.2). */
typedef enum attnd_rope_pairing {
    ATTND_ROPE_NONE = 0,
    ATTND_ROPE_NEOX = 1, /* (x_n, x_{n+r/2}) */
    ATTND_ROPE_GPTJ = 2, /* (x_{2n}, x_{2n+1}) */
} attnd_rope_pairing;

/* Names for people; "?" for a number that is none of the list. Never NULL. */
ATTND_API const char *attnd_status_name(attnd_status status);
ATTND_API const char *attnd_reason_name(attnd_reason reason);
ATTND_API const char *attnd_dtype_name(attnd_dtype dtype);
ATTND_API const char *attnd_layer_kind_name(attnd_layer_kind kind);

/* The one status of a reason; INTERNAL for a number that is none of the list. */
ATTND_API attnd_status attnd_reason_status(attnd_reason reason);
ATTND_API attnd_mender attnd_status_mender(attnd_status status);

/* Bits of one element; 0 for NONE and for a number that is none of the list. */
ATTND_API uint32_t attnd_dtype_bits(attnd_dtype dtype);

/* The dtype people write as text ("bf16"), or NONE. */
ATTND_API attnd_dtype attnd_dtype_named(const char *text);

#ifdef __cplusplus
}
#endif

#endif
