/* session.h: one client: its models, buffers and connections.
 *
 * Owner: the engine thread. A session is named by a random number that nobody else may learn; logs
 * and lists show its ordinal. It lives as long as its connection to the buffer socket or, when it
 * never had one, as its last data connection. What work in flight still reads is freed when that
 * work is done.
 */
#ifndef ATTND_DAEMON_SESSION_H
#define ATTND_DAEMON_SESSION_H

/* A table without memory for one more says so in the element's hh.tbl: NULL. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#include "daemon/engine.h"
#include "daemon/history.h"
#include "daemon/shm.h"
#include "kvcache/geometry.h"
#include "kvcache/pool.h"

enum { SRV_MAX_CONNECTIONS = 64 }; /* data connections of one session */

struct srv_buffer {
    uint64_t handle;
    srv_session *session;
    ker_memory memory;
    char shm_name[SRV_SHM_NAME]; /* "": it has none, and the keeper has its descriptor */
    uint32_t n_in_use;           /* requests on the road that name it */
    bool is_freed;               /* no request finds it any more; gone with the last use */
    UT_hash_handle hh;           /* session->buffers, by handle */
};

typedef struct srv_layer {
    uint32_t group;
    ker_problem
        shape; /* shapes, dtypes, strides, mask and rope of the layer; no batch, no addresses */
    int64_t plane_offset[2]; /* of the layer in a block, bytes */
    double *rope_freq;       /* [rope.dim/2], NULL without rotation */
} srv_layer;

/* Who appends to a block in the request that stamped it. */
typedef struct srv_block_mark {
    uint64_t stamp;
    int64_t seq;         /* -1: several */
    int64_t first, last; /* tokens of the call among which those are that it appends */
} srv_block_mark;

typedef struct srv_group {
    char name[SRV_NAME];
    kv_pool *pool;
    kv_geometry geometry;
    ker_memory memory;
    uint32_t n_blocks;
    uint32_t max_kv_len;
    srv_block_mark *marks; /* [n_blocks] */
} srv_group;

struct srv_model {
    uint64_t handle;
    srv_session *session;
    char name[SRV_NAME];
    srv_layer *layers;
    uint32_t n_layers;
    srv_group *groups;
    uint32_t n_groups;
    uint64_t pool_bytes;
    uint32_t n_in_use;
    bool is_closed;
    UT_hash_handle hh; /* session->models, by handle */
};

struct srv_session {
    uint64_t number;
    uint32_t ordinal;
    char client[SRV_NAME];
    uint64_t opened_ns;
    ker_stream *stream;
    srv_model *models;
    srv_buffer *buffers;
    srv_plan *plans;
    uint64_t pool_bytes, buffer_bytes; /* what is closed but still in use counts */
    uint32_t n_in_flight;
    uint64_t n_requests;
    uint32_t n_leases; /* connections of the buffer socket */
    bool was_leased;
    uint32_t connections[SRV_MAX_CONNECTIONS];
    uint32_t n_connections;
    uint64_t over_ns; /* it lingers until then; 0: it is held by a connection */
    srv_history history;
    bool is_ended;
    UT_hash_handle hh; /* engine->sessions, by number */
};

/* A name for logs and lists: at most SRV_NAME-1 bytes, no control characters. TOO_LARGE,
 * BAD_MESSAGE. */
attnd_status srv_name_check(const char *field, const char *name, attnd_err *err);

/* NO_ROOM when there are too many sessions or no memory. Filed under its number; the same event
 * goes on with srv_session_open. */
attnd_status srv_session_make(srv_engine *engine, const char *client, srv_session **out,
                              attnd_err *err);

/* It hangs on the connection from now on and is entered by the request that opens it.
 * Ends at once, to be freed when that request leaves, if the connection is gone already. */
void srv_session_open(srv_engine *engine, srv_session *session, uint32_t connection);

/* UNREGISTERED when there is none. */
attnd_status srv_session_get(srv_engine *engine, uint64_t number, srv_session **out,
                             attnd_err *err);

/* Nobody finds it any more; freed when nothing of it is in flight. why stands in the log. */
void srv_session_end(srv_engine *engine, srv_session *session, const char *why);

/* A request of the session is on the road, or has left it. leave may free an ended session. */
void srv_session_enter(srv_session *session);
void srv_session_leave(srv_engine *engine, srv_session *session);

/* The session used this data connection. NO_ROOM beyond SRV_MAX_CONNECTIONS. */
attnd_status srv_session_connect(srv_engine *engine, srv_session *session, uint32_t connection,
                                 attnd_err *err);

/* A data connection is gone: sessions that hung on it alone begin to linger. */
void srv_sessions_disconnect(srv_engine *engine, uint32_t connection);

/* A connection of the buffer socket takes, or gives back, a lease. */
void srv_session_lease(srv_session *session);
void srv_session_release(srv_engine *engine, srv_session *session);

/* Ends the sessions that have lingered long enough. */
void srv_sessions_expire(srv_engine *engine);

/* Handles. get refuses NO_SUCH_HANDLE naming field. */
attnd_status srv_model_get(srv_session *session, uint64_t handle, const char *field,
                           srv_model **out, attnd_err *err);
void srv_model_close(srv_engine *engine, srv_model *model); /* freed with its last use */
void srv_model_use(srv_model *model);
void srv_model_leave(srv_engine *engine, srv_model *model);
void srv_model_free(srv_engine *engine, srv_model *model); /* also one half built */

attnd_status srv_buffer_get(srv_session *session, uint64_t handle, const char *field,
                            srv_buffer **out, attnd_err *err);
void srv_buffer_free(srv_engine *engine, srv_buffer *buffer); /* gone with its last use */
void srv_buffer_use(srv_buffer *buffer);
void srv_buffer_leave(srv_engine *engine, srv_buffer *buffer);

/* Memory with a name in the keeper's store. Refuses NO_ROOM. */
attnd_status srv_memory_make(srv_engine *engine, const char *kind, uint64_t handle, uint32_t part,
                             uint64_t bytes, ker_memory *out, attnd_err *err);
void srv_memory_free(srv_engine *engine, const char *kind, uint64_t handle, uint32_t part,
                     ker_memory *memory);

#endif
