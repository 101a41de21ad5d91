/* attnd.h: libattnd, the C client of the attention server attnd.
 *
 *     attnd_err err;
 *     attnd_client *client;
 *     if (attnd_connect(&client, NULL, "my scheduler", 0, &err) != ATTND_OK)
 *         return puts(err.text), 1;
 *     attnd_layer_spec layer = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .count = 32};
 *     attnd_group_spec group = {.block_size = 16, .kv_dtype = ATTND_DTYPE_BF16, .n_blocks = 4096};
 *     attnd_model_spec spec = {.name = "m", .layers = &layer, .n_layers = 1,
 *                              .groups = &group, .n_groups = 1};
 *     attnd_model model;
 *     attnd_open_model(client, &spec, 0, &model, NULL, &err);
 *     attnd_buffer *buffer;
 *     attnd_create_buffer(client, 1 << 20, 0, &buffer, &err);
 *     … write q, k and v to attnd_buffer_data(buffer) …
 *     attnd_attend(client, &request, 0, NULL, &err);
 *     … the output lies in the buffer …
 *     attnd_close(client);
 *
 * A client is one session of one daemon. Tensors lie in buffers, memory that this process and the
 * daemon both map; a request carries block tables and lengths and says where the tensors are.
 *
 * Refusals. What can refuse returns attnd_status, ATTND_OK being 0, and fills *err (which may be
 * NULL) when it refuses: err->reason is a label to switch on, err->text is for people and starts
 * with the path of the offending value, attnd_err_field_len() bytes long. A reason this library
 * does not know arrives as ATTND_NO_REASON beside its status. A refused call has changed nothing,
 * but for UNAVAILABLE and for DEADLINE_EXCEEDED, after which nobody knows whether it ran. Any call
 * may refuse with
 *
 *     UNAVAILABLE, UNREACHABLE          nobody answers at the path that the text names
 *     UNAVAILABLE, RESTARTED            the connection broke and the call was not answered over
 *                                       another one either; or the session has ended: then every
 *                                       later call refuses so too, at once; close, connect anew
 *     DEADLINE_EXCEEDED, TIMED_OUT      no answer within the timeout
 *     RESOURCE_EXHAUSTED, NO_ROOM       no memory; or the daemon has none: the text says of what
 *     INTERNAL, BROKEN                  the daemon answered something that makes no sense
 *
 * and with what its own comment adds.
 *
 * Broken connections. The daemon lets a session linger, for 2 s unless configured, after its last
 * connection has broken. A call that meets a broken connection tries for 1 s, within its timeout,
 * to make another; then the same session goes on, and what was in flight is sent once more under
 * the same number. A number that the daemon has seen gets the first answer again and is not carried
 * out twice. Another daemon, one that was started again, knows nothing of the session: it has
 * ended.
 *
 * Timeouts. timeout_ms is in milliseconds; 0 is the client's, given to attnd_connect. Every call
 * returns within it. The daemon gets the same deadline, up to 100 ms earlier, so that its own
 * answer, which says more, comes first.
 *
 * Threads. Any thread may make any call on a client at any time; only attnd_close and
 * attnd_free_buffer must be the last to use what they end. The library starts no thread and catches
 * no signal. A client belongs to the process that made it: after fork() the child must not use it.
 *
 * Numbers. Sizes and offsets are bytes, lengths tokens, unless said otherwise. Zero in a struct is
 * what its comment says or the absence of the value, so that a designated initialiser names what
 * it needs. Handles are numbers that are never used twice.
 */
#ifndef ATTND_H
#define ATTND_H

#include <stdbool.h>

#include "proto/types.h"

#include "proto/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attnd_client attnd_client;
typedef struct attnd_buffer attnd_buffer;
typedef struct attnd_pending attnd_pending;

/* ---- Sessions ---- */

/* Connects and opens a session. dir is the daemon's runtime directory; NULL: the first of
 * $RUNTIME_DIRECTORY, $XDG_RUNTIME_DIR/attnd, /run/attnd and /tmp/attnd-UID that holds a socket
 * named "data". name stands in the daemon's logs and lists, at most 64 bytes of printable UTF-8.
 * timeout_ms holds for this call and for every later one that gives 0; 0: 30000.
 *
 * The caller closes *out; it is NULL on refusal. Refuses UNREACHABLE with the paths tried. */
ATTND_API attnd_status attnd_connect(attnd_client **out, const char *dir, const char *name,
                                     uint32_t timeout_ms, attnd_err *err);

/* Ends the session with all its models, buffers and requests, and frees the client; buffers and
 * pending requests of it must not be used any more. Returns within two seconds, also when the
 * daemon is gone. Accepts NULL. */
ATTND_API void attnd_close(attnd_client *client);

/* One round trip. */
ATTND_API attnd_status attnd_ping(attnd_client *client, uint32_t timeout_ms, attnd_err *err);

/* A model of the daemon's config file. */
typedef struct attnd_named_model {
    uint64_t model; /* handle */
    const char *name;
} attnd_named_model;

/* What the daemon said of itself when the session was opened. */
typedef struct attnd_info {
    const char *version;      /* of the daemon */
    const char *backend;      /* "cpu" */
    const char *device;       /* its name, for people */
    uint32_t n_threads;       /* that compute */
    uint32_t session_ordinal; /* the session as logs and lists show it */
    uint64_t instance;        /* of the daemon; another number after it was started again */
    uint32_t max_message_bytes;
    uint32_t max_tokens;         /* query tokens of one call */
    uint32_t max_sequences;      /* of one call */
    uint32_t max_in_flight;      /* requests of one session without an answer */
    uint64_t max_buffer_bytes;   /* of one session, all its buffers */
    uint64_t max_pool_bytes;     /* of one session, all its models */
    uint32_t max_head_dim;       /* channels */
    uint32_t default_timeout_ms; /* of requests that give none; this library always gives one */
    const char *const *features; /* [n_features] names of ops and variants served */
    size_t n_features;
    const attnd_named_model *models; /* [n_models] */
    size_t n_models;
} attnd_info;

/* Valid until the client is closed. */
ATTND_API const attnd_info *attnd_get_info(const attnd_client *client);

/* ---- Models ---- */

typedef enum attnd_rope_scaling {
    ATTND_ROPE_SCALING_NONE = 0,
    ATTND_ROPE_SCALING_LINEAR = 1,
    ATTND_ROPE_SCALING_DYNAMIC_ALPHA = 2,
    ATTND_ROPE_SCALING_DYNAMIC_NTK = 3,
    ATTND_ROPE_SCALING_LLAMA3 = 4,
    ATTND_ROPE_SCALING_YARN = 5,
    ATTND_ROPE_SCALING_LONGROPE = 6,
    ATTND_ROPE_SCALING_MROPE = 7,
} attnd_rope_scaling;

/* Rotation of q and k; ATTND_ROPE_NONE: they are used as given. */
typedef struct attnd_rope {
    attnd_rope_pairing pairing;
    uint32_t dim; /* channels that rotate, even; 0: head_dim */
    double theta; /* > 0; 0: 10000 */
    attnd_rope_scaling scaling;
} attnd_rope;

typedef struct attnd_layer_spec {
    attnd_layer_kind kind;
    uint32_t group;      /* index into the model's groups */
    uint32_t n_heads;    /* query heads, a multiple of n_kv_heads */
    uint32_t n_kv_heads; /* 0: n_heads */
    uint32_t head_dim;   /* channels of q and k */
    uint32_t head_dim_v; /* channels of v and out; 0: head_dim */
    float sm_scale;      /* factor on q·k; 0: 1 / (q_scaling · sqrt(head_dim)) */
    float q_scaling;     /* 0: 1 */
    uint32_t window;     /* keys a row sees, its own included; 0: the group's, else no window */
    uint32_t chunk;      /* tokens of a chunk; 0: none */
    float softcap;       /* 0: none */
    attnd_rope rope;
    uint32_t count; /* this many equal layers in a row; 0: 1 */
} attnd_layer_spec;

/* Layers of a group share block ids and have one pool. */
typedef struct attnd_group_spec {
    const char *name;     /* for messages and lists, at most 64 bytes; NULL: "group<i>" */
    uint32_t block_size;  /* tokens of a block, a power of two, 1 .. 1024 */
    attnd_dtype kv_dtype; /* F32, F16, BF16 */
    attnd_layout layout;
    uint32_t n_blocks;   /* 1 .. 2^31-1; 0: as many as fit into bytes */
    uint64_t bytes;      /* looked at only when n_blocks is 0 */
    uint32_t max_kv_len; /* tokens a sequence may reach; 0: 2^31-1 */
    uint32_t window;     /* for layers that give none; 0: none */
} attnd_group_spec;

/* Who hands out a model's block ids. */
typedef enum attnd_owner {
    ATTND_OWNER_CLIENT = 0, /* the session names any block; nobody else sees the pools */
    ATTND_OWNER_SERVER = 1,
} attnd_owner;

typedef struct attnd_model_spec {
    const char *name;               /* for messages and lists, at most 64 bytes; NULL: none */
    const attnd_layer_spec *layers; /* [n_layers] */
    size_t n_layers;
    const attnd_group_spec *groups; /* [n_groups] */
    size_t n_groups;
    attnd_owner owner;
} attnd_model_spec;

typedef struct attnd_model {
    uint64_t model;    /* handle */
    uint32_t n_layers; /* counts multiplied out */
} attnd_model;

/* The pool of one group. Block ids are 0 .. n_blocks-1. */
typedef struct attnd_pool {
    uint32_t n_blocks;
    uint32_t block_size; /* tokens */
    uint64_t block_bytes;
    uint64_t bytes;
} attnd_pool;

/* Opens a model. Borrows spec for the call; fills *out and, unless it is NULL,
 * pools[spec->n_groups]. Refuses BAD_GEOMETRY, BAD_ROPE, BAD_MASK, BAD_MESSAGE, TOO_LARGE,
 * UNSUPPORTED with paths as "spec.layers[0].head_dim". */
ATTND_API attnd_status attnd_open_model(attnd_client *client, const attnd_model_spec *spec,
                                        uint32_t timeout_ms, attnd_model *out, attnd_pool *pools,
                                        attnd_err *err);

/* Closes a model of this session: its blocks are gone. Refuses NO_SUCH_HANDLE. */
ATTND_API attnd_status attnd_close_model(attnd_client *client, uint64_t model, uint32_t timeout_ms,
                                         attnd_err *err);

/* ---- Buffers ---- */

/* Creates bytes of shared memory, zeroed, and maps them here; memory
 * of the GPU when the daemon computes on one, which UNSUPPORTED refuses where this process has no
 * NVIDIA driver. The caller frees *out; it is NULL on
 * refusal. May take 200 ms more than its timeout, to give back what it could not map in time.
 * Refuses TOO_LARGE. */
ATTND_API attnd_status attnd_create_buffer(attnd_client *client, uint64_t bytes,
                                           uint32_t timeout_ms, attnd_buffer **out, attnd_err *err);

/* As attnd_create_buffer, and with a name, for processes that cannot take a descriptor: the buffer
 * is also a POSIX shared memory object, over which this library maps it, and so may any process of
 * the same user: shm_open(attnd_buffer_name(buffer), O_RDWR, 0), then mmap. The daemon unlinks it
 * when the buffer is freed; nobody else may, or truncate it: the next access to a page that is gone
 * kills whoever makes it, the daemon included. It does not outlive an engine that is started again.
 * Refuses UNREACHABLE where this process does not see the daemon's objects. */
ATTND_API attnd_status attnd_create_named_buffer(attnd_client *client, uint64_t bytes,
                                                 uint32_t timeout_ms, attnd_buffer **out,
                                                 attnd_err *err);

/* The name, with its leading '/'; NULL: the buffer has none. Valid until it is freed. */
ATTND_API const char *attnd_buffer_name(const attnd_buffer *buffer);

/* The first byte; for reading and writing until the buffer is freed. When the daemon computes on a
 * GPU it is an address of that GPU, for CUDA and not for the CPU, mapped in the primary context of
 * GPU 0 of this process. */
ATTND_API void *attnd_buffer_data(const attnd_buffer *buffer);

/* Is that an address of a GPU? */
ATTND_API bool attnd_buffer_is_device(const attnd_buffer *buffer);

/* Copy bytes from offset on to memory of this process, or from there; of a GPU too. Done when they
 * return. Refuse BAD_LENGTH (outside the buffer), KERNEL_FAILED. */
ATTND_API attnd_status attnd_buffer_read(const attnd_buffer *buffer, uint64_t offset, void *to,
                                         uint64_t bytes, attnd_err *err);
ATTND_API attnd_status attnd_buffer_write(attnd_buffer *buffer, uint64_t offset, const void *from,
                                          uint64_t bytes, attnd_err *err);

/* As asked for. */
ATTND_API uint64_t attnd_buffer_bytes(const attnd_buffer *buffer);

/* The handle, as refusals and attnd's lists show it. */
ATTND_API uint64_t attnd_buffer_id(const attnd_buffer *buffer);

/* Unmaps and frees the buffer, in any case; requests that name it and have been sent are finished
 * first by the daemon. What is returned is the daemon's answer. Accepts NULL: OK. */
ATTND_API attnd_status attnd_free_buffer(attnd_buffer *buffer, uint32_t timeout_ms, attnd_err *err);

/* ---- Attention ---- */

#define ATTND_MAX_DIMS 4

/* Values in a buffer. The innermost stride is the element, none is negative. */
typedef struct attnd_tensor {
    const attnd_buffer *buffer; /* NULL: no tensor is given */
    uint64_t offset;            /* bytes, a multiple of the element */
    attnd_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[ATTND_MAX_DIMS];  /* [n_dims] */
    uint32_t n_strides;              /* n_dims, or 0: no gaps */
    int64_t strides[ATTND_MAX_DIMS]; /* bytes, multiples of the element */
} attnd_tensor;

/* An array of integers, here or in a buffer. All zero: it is absent. */
typedef struct attnd_ints {
    const int32_t *values; /* [n], copied into the request; NULL: see tensor */
    size_t n;
    attnd_tensor tensor; /* ATTND_DTYPE_I32, one dimension; read when the request is carried out */
} attnd_ints;

/* The block ids of every sequence for one group. */
typedef struct attnd_table {
    uint32_t group;
    uint32_t width;       /* entries a sequence; 0: ceil(kv_len / block_size) each */
    attnd_ints block_ids; /* -1: not held */
} attnd_table;

typedef enum attnd_mask {
    ATTND_MASK_CAUSAL = 0,
    ATTND_MASK_FULL = 1,
    ATTND_MASK_VARIABLE = 2,
    ATTND_MASK_CUSTOM = 3,
    ATTND_MASK_TREE = 4,
} attnd_mask;

/* Sequences: contexts first, then generations; their tokens packed in the same order. */
typedef struct attnd_batch {
    uint32_t n_contexts; /* sequences with many new tokens */
    attnd_ints q_lens;   /* [sequences] query tokens of each, ≥ 0 */
    attnd_ints kv_lens;  /* [sequences] keys visible at most, those appended here included, ≥ 0 */
    const attnd_table *tables; /* [n_tables], one a group that the call touches */
    size_t n_tables;
    attnd_ints slots; /* [tokens] block · block_size + row where k and v are stored, -1: nowhere;
                       * absent: the tables say */
    attnd_ints positions; /* [tokens] rotary positions, ≥ 0; absent: past + i */
    attnd_mask mask;
} attnd_batch;

/* Where keys come from. */
typedef enum attnd_keys {
    ATTND_KEYS_POOL = 0,  /* the pool; k and v, when given, are appended first */
    ATTND_KEYS_GIVEN = 1, /* k and v; nothing is stored */
} attnd_keys;

/* One layer: append k and v, attend, write out. Dv is head_dim_v. */
typedef struct attnd_attend_request {
    uint64_t model;
    uint32_t layer;    /* 0 .. n_layers-1 */
    uint64_t plan;     /* of attnd_create_plan: its newest version; 0: batch says */
    attnd_batch batch; /* looked at only when plan is 0 */
    attnd_tensor q;    /* [tokens][n_heads][head_dim]; or fused: q alone, [tokens][q | k | v] */
    attnd_tensor k, v; /* [tokens][n_kv_heads][head_dim or Dv]; absent both: nothing is appended */
    attnd_keys keys;
    attnd_tensor out;     /* [tokens][n_heads][Dv]; overlaps no input */
    attnd_tensor lse;     /* [tokens][n_heads] F32; may be absent */
    attnd_tensor stats;   /* [tokens][n_heads][2] F32, (m, l); may be absent */
    bool batch_invariant; /* a row's bits do not depend on the other rows of the batch */
    uint64_t after; /* attnd_pending_id of a request that must have been launched before; 0: none.
                     * STALE when that one was refused, or is older than the last 64 requests */
} attnd_attend_request;

typedef struct attnd_timing {
    uint64_t queue_us;  /* from receipt to launch */
    uint64_t device_us; /* from the start on the device to completion */
    uint64_t version;   /* of the plan that a step ran with or an update made; 0: it was neither */
} attnd_timing;

/* Attends and waits until the outputs lie in their buffers. Borrows request for the call. timing
 * may be NULL. Refuses what the daemon refuses, with paths as "batch.tables[1].block_ids[7]" or
 * "q.shape[0]": BAD_TENSOR, BAD_GEOMETRY, BAD_LENGTH, BAD_BLOCK, BAD_PHASE, BAD_MASK, BAD_ROPE,
 * BAD_QUANT, BAD_COMBINATION, BAD_MESSAGE, TOO_LARGE, KV_LEN_EXCEEDS_POOL, NO_SUCH_HANDLE,
 * UNSUPPORTED, KERNEL_FAILED. After DEADLINE_EXCEEDED or UNAVAILABLE the outputs may still be
 * written for as long as the session lives. */
ATTND_API attnd_status attnd_attend(attnd_client *client, const attnd_attend_request *request,
                                    uint32_t timeout_ms, attnd_timing *timing, attnd_err *err);

/* As attnd_attend, but returns when the request is sent: many can be in flight, up to
 * max_in_flight. Requests in flight together have no order but that of their after. The timeout
 * runs from here to the end of attnd_wait. Borrows request for the call, the buffers it names until
 * attnd_wait returns. The caller waits for *out; it is NULL on refusal. */
ATTND_API attnd_status attnd_attend_start(attnd_client *client, const attnd_attend_request *request,
                                          uint32_t timeout_ms, attnd_pending **out, attnd_err *err);

/* The request's number, for another one's after. */
ATTND_API uint64_t attnd_pending_id(const attnd_pending *pending);

/* Waits for the answer, until the request's deadline, and frees pending in any case. timing may be
 * NULL. Refuses as attnd_attend, attnd_update_plan, attnd_step or attnd_merge. */
ATTND_API attnd_status attnd_wait(attnd_pending *pending, attnd_timing *timing, attnd_err *err);

/* ---- Plans ---- */

/* A batch that the daemon has checked once and keeps for all layers and for the steps that follow.
 */
typedef struct attnd_plan {
    uint64_t plan;    /* handle */
    uint64_t version; /* the newest */
} attnd_plan;

/* Makes a plan of a batch: for all layers of the groups that its tables name. batch_invariant as in
 * attnd_attend_request. Borrows batch for the call; fills *out, version 1. Refuses as attnd_attend
 * does, with paths as "batch.kv_lens[3]". The plan lives until it is dropped, or with the session.
 */
ATTND_API attnd_status attnd_create_plan(attnd_client *client, uint64_t model,
                                         const attnd_batch *batch, bool batch_invariant,
                                         uint32_t timeout_ms, attnd_plan *out, attnd_err *err);

/* The next call of the same sequences. Lengths are absolute. */
typedef struct attnd_plan_update {
    uint64_t version;            /* the one it starts from: the newest; the new one is one higher */
    attnd_ints q_lens;           /* [sequences]; absent: as they were */
    attnd_ints kv_lens;          /* [sequences]; absent: as they were */
    const attnd_table *appended; /* [n_appended] new blocks only. width 0: for each sequence as many
                                  * as its kv_len needs more than before; else width entries a
                                  * sequence, of which so many count */
    size_t n_appended;
    attnd_ints slots;     /* as in attnd_batch; a plan made with slots needs them anew */
    attnd_ints positions; /* as in attnd_batch; a plan made with positions needs them anew */
} attnd_plan_update;

/* Makes the plan's next version and, unless version is NULL, fills it. Work that was accepted with
 * an older one goes on with that; a plan keeps two versions, so that an update that would need a
 * third waits for the oldest work. Borrows update for the call. Refuses STALE when update->version
 * is not the newest, NO_SUCH_HANDLE, and as attnd_attend does, with paths as
 * "update.appended[0].block_ids[7]"; then the plan is as it was. */
ATTND_API attnd_status attnd_update_plan(attnd_client *client, uint64_t plan,
                                         const attnd_plan_update *update, uint32_t timeout_ms,
                                         uint64_t *version, attnd_err *err);

/* As attnd_update_plan, but returns when the request is sent, as attnd_attend_start does; the new
 * version is attnd_timing's, of attnd_wait. after is attnd_pending_id of a request that must have
 * been launched before, 0: none. Work that is to run with the new version before the answer is here
 * names the update in its own after, and so does the next update: without it either may overtake
 * this one, and then the work runs with the version before, and the update is refused as STALE. */
ATTND_API attnd_status attnd_update_plan_start(attnd_client *client, uint64_t plan,
                                               const attnd_plan_update *update, uint64_t after,
                                               uint32_t timeout_ms, attnd_pending **out,
                                               attnd_err *err);

/* Drops a plan; work that was accepted with it goes on. Refuses NO_SUCH_HANDLE. */
ATTND_API attnd_status attnd_drop_plan(attnd_client *client, uint64_t plan, uint32_t timeout_ms,
                                       attnd_err *err);

/* ---- Steps ---- */

/* A tensor for each layer of a step: layer i, counted from the step's first, lies layer_stride · i
 * behind the first one, or with a ring layer_stride · (i mod ring). */
typedef struct attnd_layer_tensor {
    attnd_tensor first;   /* of the first layer; without a buffer: none is given */
    int64_t layer_stride; /* bytes, not negative, a multiple of the element */
    uint32_t ring;        /* 0: no ring */
} attnd_layer_tensor;

/* Layers first_layer .. first_layer + n_layers - 1 of a plan, in order, as attnd_attend would do
 * one by one. Shapes as in attnd_attend_request. */
typedef struct attnd_step_request {
    uint64_t plan;
    const attnd_plan_update *update; /* applied first, as attnd_update_plan does; NULL: none */
    uint32_t first_layer, n_layers;
    attnd_layer_tensor q;
    attnd_layer_tensor k, v; /* absent both: nothing is appended */
    attnd_keys keys;
    attnd_layer_tensor out;
    attnd_layer_tensor lse; /* may be absent */
    uint64_t after;         /* as in attnd_attend_request */
} attnd_step_request;

/* Steps and waits until all layers' outputs lie in their buffers. Borrows request and its update
 * for the call. timing may be NULL; its version is the one to start the next update from. Refuses
 * as attnd_attend and attnd_update_plan do, with paths as "q.first.shape[0]" or
 * "update.kv_lens[3]"; then no layer ran and the plan is as it was, but for KERNEL_FAILED. */
ATTND_API attnd_status attnd_step(attnd_client *client, const attnd_step_request *request,
                                  uint32_t timeout_ms, attnd_timing *timing, attnd_err *err);

/* As attnd_step, but returns when the request is sent, as attnd_attend_start does. */
ATTND_API attnd_status attnd_step_start(attnd_client *client, const attnd_step_request *request,
                                        uint32_t timeout_ms, attnd_pending **out, attnd_err *err);

/* ---- Merging ---- */

/* Attention of the same rows over one part of their keys, with lse or stats, one of them. A row
 * whose lse is -inf (whose l is 0) saw no key: its out is not read. */
typedef struct attnd_partial {
    attnd_tensor out;   /* [tokens][n_heads][width] F32, F16 or BF16 */
    attnd_tensor lse;   /* [tokens][n_heads] F32, natural log */
    attnd_tensor stats; /* [tokens][n_heads][2] F32, (m, l) */
} attnd_partial;

/* Parts over disjoint keys become attention over all of them, merged in their order. */
typedef struct attnd_merge_request {
    const attnd_partial *partials; /* [n_partials], 1 .. 1024, of one shape */
    size_t n_partials;
    attnd_tensor out;   /* [tokens][n_heads][width]; overlaps no input */
    attnd_tensor lse;   /* may be absent */
    attnd_tensor stats; /* may be absent */
    uint64_t after;     /* as in attnd_attend_request */
} attnd_merge_request;

/* Merges and waits until the outputs lie in their buffers. Borrows request for the call. timing may
 * be NULL. Refuses BAD_TENSOR, BAD_GEOMETRY, BAD_COMBINATION, NO_SUCH_HANDLE, TOO_LARGE with paths
 * as "partials[3].lse". */
ATTND_API attnd_status attnd_merge(attnd_client *client, const attnd_merge_request *request,
                                   uint32_t timeout_ms, attnd_timing *timing, attnd_err *err);

/* As attnd_merge, but returns when the request is sent, as attnd_attend_start does. */
ATTND_API attnd_status attnd_merge_start(attnd_client *client, const attnd_merge_request *request,
                                         uint32_t timeout_ms, attnd_pending **out, attnd_err *err);

#ifdef __cplusplus
}
#endif

#endif
