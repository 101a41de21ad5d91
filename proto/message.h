/* message.h: requests and replies as plain structs.
 *
 * decode.c makes a msg_request out of bytes; encode.c makes bytes out of a msg_reply. No policy:
 * what a value means and whether it is right is asked further on. Everything a msg_request points
 * to lies in the request's arena or, for inline integers, in the received bytes.
 */
#ifndef ATTND_PROTO_MESSAGE_H
#define ATTND_PROTO_MESSAGE_H

#include <stdbool.h>

#include "proto/arena.h"
#include "proto/err.h"

/*  X(name in the proto, oneof number, message name). Every op of the protocol, served or not. */
#define MSG_OP_MAP(X)                                                                              \
    X(ping, 16, Ping)                                                                              \
    X(hello, 17, Hello)                                                                            \
    X(goodbye, 18, Goodbye)                                                                        \
    X(open_model, 19, OpenModel)                                                                   \
    X(close_model, 20, CloseModel)                                                                 \
    X(create_buffer, 21, CreateBuffer)                                                             \
    X(import_buffer, 22, ImportBuffer)                                                             \
    X(free_buffer, 23, FreeBuffer)                                                                 \
    X(create_plan, 24, CreatePlan)                                                                 \
    X(update_plan, 25, UpdatePlan)                                                                 \
    X(drop_plan, 26, DropPlan)                                                                     \
    X(attend, 27, Attend)                                                                          \
    X(step, 28, Step)                                                                              \
    X(merge, 29, Merge)                                                                            \
    X(gather_latents, 30, GatherLatents)                                                           \
    X(move_tokens, 31, MoveTokens)                                                                 \
    X(create_sequences, 32, CreateSequences)                                                       \
    X(update_sequences, 33, UpdateSequences)                                                       \
    X(fork_sequences, 34, ForkSequences)                                                           \
    X(free_sequences, 35, FreeSequences)                                                           \
    X(copy_blocks, 36, CopyBlocks)                                                                 \
    X(swap_blocks, 37, SwapBlocks)                                                                 \
    X(export_blocks, 38, ExportBlocks)                                                             \
    X(import_blocks, 39, ImportBlocks)                                                             \
    X(match_prefix, 40, MatchPrefix)                                                               \
    X(detach_session, 41, DetachSession)                                                           \
    X(attach_session, 42, AttachSession)                                                           \
    X(open_ring, 43, OpenRing)

typedef enum msg_op {
    MSG_OP_NONE = 0,
#define X(name, number, Name) MSG_OP_##name = number,
    MSG_OP_MAP(X)
#undef X
        MSG_OP_END, /* one behind the last */
} msg_op;

/* "attend"; "?" for a number that is none of the list. */
const char *msg_op_name(msg_op op);

/* How many of the n bytes at text, from its start, are whole characters of UTF-8 other than NUL: n
 * when all are. */
size_t msg_utf8_bytes(const void *text, size_t n);

enum { MSG_MAX_DIMS = 4 };

typedef struct msg_tensor {
    bool given;
    uint64_t buffer;
    uint64_t offset; /* bytes */
    attnd_dtype dtype;
    uint32_t n_dims; /* as sent, may be more than MSG_MAX_DIMS: then shape is cut */
    uint64_t shape[MSG_MAX_DIMS];
    uint32_t n_strides;            /* 0: no gaps */
    int64_t strides[MSG_MAX_DIMS]; /* bytes */
} msg_tensor;

typedef struct msg_ints {
    bool given;
    const uint8_t *data; /* inline bytes, not aligned; NULL: in ref */
    size_t bytes;
    msg_tensor ref;
} msg_ints;

typedef struct msg_table {
    uint32_t group;
    uint32_t width;
    msg_ints block_ids;
    uint64_t version;
} msg_table;

typedef enum msg_mask {
    MSG_MASK_CAUSAL = 0,
    MSG_MASK_FULL = 1,
    MSG_MASK_VARIABLE = 2,
    MSG_MASK_CUSTOM = 3,
    MSG_MASK_TREE = 4,
} msg_mask;

typedef struct msg_batch {
    uint32_t n_contexts;
    msg_ints q_lens, kv_lens;
    const msg_table *tables;
    size_t n_tables;
    const uint64_t *sequences;
    size_t n_sequences;
    msg_ints slots, positions;
    msg_mask mask;
} msg_batch;

typedef struct msg_word {
    bool given;
    uint64_t buffer, offset;
    uint32_t value;
} msg_word;

typedef enum msg_sync_mode {
    MSG_SYNC_REPLY = 0,
    MSG_SYNC_EVENT = 1,
    MSG_SYNC_DOORBELL = 2
} msg_sync_mode;

typedef struct msg_sync {
    bool given;
    msg_sync_mode mode;
    msg_word in, out;
    uint64_t in_event, out_event;
} msg_sync;

typedef struct msg_rope {
    bool given;
    attnd_rope_pairing pairing;
    uint32_t dim;
    double theta;
    uint32_t scaling; /* RopeScaling; 0: none */
} msg_rope;

typedef struct msg_layer_spec {
    attnd_layer_kind kind;
    uint32_t group;
    uint32_t n_heads, n_kv_heads, head_dim, head_dim_v;
    float sm_scale, q_scaling;
    uint32_t window, chunk;
    float softcap;
    uint32_t count;
    msg_rope rope;
} msg_layer_spec;

typedef struct msg_group_spec {
    const char *name;
    uint32_t block_size;
    attnd_dtype kv_dtype;
    attnd_layout layout;
    uint32_t n_blocks; /* 0: bytes says */
    uint64_t bytes;    /* 0: n_blocks says */
    uint32_t max_kv_len;
    uint32_t window;
} msg_group_spec;

typedef enum msg_owner { MSG_OWNER_CLIENT = 0, MSG_OWNER_SERVER = 1 } msg_owner;

typedef struct msg_model_spec {
    const char *name;
    const msg_layer_spec *layers;
    size_t n_layers;
    const msg_group_spec *groups;
    size_t n_groups;
    msg_owner owner;
} msg_model_spec;

typedef struct msg_hello {
    uint32_t protocol;
    const char *client;
} msg_hello;

typedef struct msg_open_model {
    bool given;
    msg_model_spec spec;
} msg_open_model;

typedef struct msg_create_buffer {
    uint64_t bytes;
    uint32_t kind; /* BufferKind */
    bool named;
} msg_create_buffer;

typedef enum msg_keys { MSG_KEYS_POOL = 0, MSG_KEYS_GIVEN = 1 } msg_keys;

typedef struct msg_attend {
    uint64_t model;
    uint32_t layer;
    bool has_plan, has_batch;
    uint64_t plan;
    msg_batch batch;
    msg_tensor q, k, v;
    msg_keys keys;
    msg_tensor out, lse, stats;
    msg_sync sync;
    bool batch_invariant;
} msg_attend;

typedef struct msg_create_plan {
    uint64_t model;
    bool has_batch;
    msg_batch batch;
    bool batch_invariant;
} msg_create_plan;

typedef struct msg_plan_update {
    bool given;
    uint64_t plan, version;
    msg_ints q_lens, kv_lens;
    const msg_table *appended;
    size_t n_appended;
    msg_ints slots, positions;
} msg_plan_update;

typedef struct msg_layer_tensor {
    bool given;
    msg_tensor first; /* first.given is false for a LayerTensor without one */
    int64_t layer_stride;
    uint32_t ring;
} msg_layer_tensor;

typedef struct msg_step {
    uint64_t plan;
    msg_plan_update update;
    uint32_t first_layer, n_layers;
    msg_layer_tensor q, k, v, out, lse;
    msg_keys keys;
    msg_sync sync;
} msg_step;

typedef struct msg_partial {
    msg_tensor out, lse, stats;
} msg_partial;

typedef struct msg_merge {
    const msg_partial *partials;
    size_t n_partials;
    msg_tensor out, lse, stats;
} msg_merge;

/* Only the op's own member is filled; ops that no one serves have none. */
typedef struct msg_request {
    uint64_t id, session, after;
    uint32_t timeout_ms;
    msg_op op;
    union {
        msg_hello hello;
        msg_open_model open_model;
        uint64_t close_model; /* model */
        msg_create_buffer create_buffer;
        uint64_t free_buffer; /* buffer */
        msg_create_plan create_plan;
        msg_plan_update update_plan;
        uint64_t drop_plan; /* plan */
        msg_attend attend;
        msg_step step;
        msg_merge merge;
    };
} msg_request;

typedef struct msg_named {
    uint64_t handle;
    const char *name;
} msg_named;

typedef struct msg_limits {
    uint32_t max_message_bytes, max_tokens, max_sequences, max_in_flight;
    uint64_t max_buffer_bytes, max_pool_bytes;
    uint32_t max_head_dim, default_timeout_ms;
} msg_limits;

typedef struct msg_hello_reply {
    uint64_t session;
    const char *version;
    const char *backend, *device_name;
    uint32_t n_threads;
    msg_limits limits;
    const char *const *features;
    size_t n_features;
    const msg_named *models;
    size_t n_models;
    uint32_t ordinal;
} msg_hello_reply;

typedef struct msg_pool_info {
    const char *name;
    uint32_t n_blocks, block_size;
    uint64_t block_bytes, bytes;
} msg_pool_info;

typedef struct msg_open_model_reply {
    uint64_t model;
    const msg_pool_info *pools;
    size_t n_pools;
    uint32_t n_layers;
} msg_open_model_reply;

typedef struct msg_create_buffer_reply {
    uint64_t buffer, bytes;
    const char *shm_name; /* NULL: it has no name */
} msg_create_buffer_reply;

typedef struct msg_attend_reply {
    uint64_t queue_us, device_us;
} msg_attend_reply;

typedef struct msg_create_plan_reply {
    uint64_t plan, version;
} msg_create_plan_reply;

typedef struct msg_step_reply {
    uint64_t queue_us, device_us, version;
} msg_step_reply;

typedef struct msg_reply {
    uint64_t id, instance;
    attnd_err err; /* status, reason and text of a refusal; status OK: result */
    msg_op op;     /* whose result; MSG_OP_NONE: none */
    union {
        msg_hello_reply hello;
        msg_open_model_reply open_model;
        msg_create_buffer_reply create_buffer;
        msg_create_plan_reply create_plan;
        uint64_t update_plan; /* version */
        msg_attend_reply attend;
        msg_step_reply step;
        msg_attend_reply merge;
    };
} msg_reply;

/* Decodes bytes into *out. Refuses BAD_MESSAGE (does not decode, unknown op, enum out of range: the
 * text names the field where bytes decode to one), TOO_LARGE (arena full) and UNSUPPORTED (a field
 * this server does not know, by path and number). id, session and op are filled as far as they
 * could be read, so that a refusal can be answered. Borrows bytes until the arena is reset. */
attnd_status msg_decode(msg_arena *arena, const void *bytes, size_t n, msg_request *out,
                        attnd_err *err);

/* Bytes the reply takes on the wire. */
size_t msg_encoded_bytes(const msg_reply *reply);

/* Writes msg_encoded_bytes() bytes. Allocates nothing but on the stack and in the arena; the arena
 * may be NULL for a reply without a result. Refuses TOO_LARGE when the arena is full. */
attnd_status msg_encode(msg_arena *arena, const msg_reply *reply, void *bytes, size_t n,
                        attnd_err *err);

/* The buffer socket's packets. */
typedef struct msg_fd_request {
    uint64_t session, buffer;
} msg_fd_request;

typedef struct msg_fd_reply {
    attnd_err err;
    uint32_t kind; /* FdKind: 0 none, 1 memfd */
    uint64_t bytes, offset;
} msg_fd_reply;

enum { MSG_FD_PACKET = 1024 }; /* largest packet either way */

attnd_status msg_fd_decode(const void *bytes, size_t n, msg_fd_request *out, attnd_err *err);

/* Returns the bytes written to packet. */
size_t msg_fd_encode(const msg_fd_reply *reply, uint8_t packet[MSG_FD_PACKET]);

#endif
