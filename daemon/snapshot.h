/* snapshot.h: what the engine thread owns, copied for those who only look.
 *
 * The loop thread posts a request; the engine thread fills it between two events and calls done.
 * Plain data; the asker frees it.
 */
#ifndef ATTND_DAEMON_SNAPSHOT_H
#define ATTND_DAEMON_SNAPSHOT_H

#include "daemon/queue.h"
#include "daemon/trace.h"
#include "kernels/attention.h"
#include "kvcache/pool.h"
#include "proto/types.h"

enum { SRV_NAME = 65 };

typedef struct srv_session_view {
    uint32_t ordinal;
    char client[SRV_NAME];
    uint64_t age_ms;
    bool leased; /* hangs on a buffer-socket connection, not on its data connections */
    uint32_t n_in_flight, n_models, n_buffers;
    uint64_t buffer_bytes, pool_bytes, n_requests;
} srv_session_view;

typedef struct srv_model_view {
    uint64_t handle;
    char name[SRV_NAME];
    uint32_t session; /* ordinal */
    uint32_t n_layers, n_pools;
} srv_model_view;

typedef struct srv_pool_view {
    uint64_t model;
    char name[SRV_NAME];
    uint32_t session; /* ordinal */
    kv_owner owner;
    uint32_t n_blocks, n_free, block_size;
    uint64_t block_bytes, bytes;
    attnd_dtype dtype;
    attnd_layout layout;
    uint32_t n_layers;
    uint32_t max_kv_len;
} srv_pool_view;

typedef struct srv_buffer_view {
    uint64_t handle;
    uint32_t session; /* ordinal */
    uint64_t bytes;
    uint32_t n_in_use; /* launches that read or write it */
    bool freed;        /* gone as soon as nobody uses it */
} srv_buffer_view;

typedef struct srv_plan_view {
    uint64_t handle, model;
    uint32_t session; /* ordinal */
    uint64_t version; /* the newest */
    uint32_t n_seqs;
    uint32_t n_versions; /* that are kept: 1, or 2 while work reads the older one */
} srv_plan_view;

/* One layer of an open model, for kernels.explain. */
typedef struct srv_layer_view {
    bool found;
    ker_problem problem; /* shapes, dtypes and strides; no batch, no tensors, no addresses */
} srv_layer_view;

typedef struct srv_snapshot srv_snapshot;
struct srv_snapshot {
    srv_event event;                      /* queue's; the asker leaves it alone */
    void (*done)(srv_snapshot *snapshot); /* on the engine thread; must not block */
    void *arg;                            /* the asker's */
    uint64_t layer_model;                 /* in: 0, or the model and layer wanted in .layer */
    uint32_t layer_index;
    srv_trace_look trace; /* in: what to do with the trace; then nothing else is filled */
    attnd_status status;  /* OK, or RESOURCE_EXHAUSTED when there was no memory */
    srv_session_view *sessions;
    size_t n_sessions;
    srv_model_view *models;
    size_t n_models;
    srv_pool_view *pools;
    size_t n_pools;
    srv_buffer_view *buffers;
    size_t n_buffers;
    srv_plan_view *plans;
    size_t n_plans;
    srv_layer_view layer;
};

/* Frees the arrays, not the snapshot. */
void srv_snapshot_fini(srv_snapshot *snapshot);

/* For a thread that may wait: a snapshot of the lists that fill made, or NULL when there is no
 * memory, the engine thread does not answer within timeout_ms, or several asked before in vain and
 * it has still not answered. One that comes later is dropped. */
srv_snapshot *srv_snapshot_take(srv_queue *engine,
                                void (*fill)(srv_engine *engine, srv_event *event),
                                uint32_t timeout_ms);
void srv_snapshot_give(srv_snapshot *snapshot); /* accepts NULL */

#endif
