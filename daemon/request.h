/* request.h: one request on its way down the road (road.c).
 *
 * A request lives in a slot of the transport. Each stage reads what earlier stages wrote and fills
 * its own part. Owner: the transport thread until it is posted, then the engine thread until it is
 * sent.
 */
#ifndef ATTND_DAEMON_REQUEST_H
#define ATTND_DAEMON_REQUEST_H

#include "daemon/queue.h"
#include "daemon/stats.h"
#include "daemon/trace.h"
#include "kernels/attention.h"
#include "proto/message.h"

typedef struct srv_session srv_session;
typedef struct srv_model srv_model;
typedef struct srv_buffer srv_buffer;
typedef struct srv_op srv_op;
typedef struct srv_past srv_past;
typedef struct srv_plan srv_plan;
typedef struct srv_version srv_version;
typedef struct srv_span srv_span;
typedef struct srv_request srv_request;

enum {
    SRV_MAX_HELD = 64,  /* buffers one request may name */
    SRV_MAX_GROUPS = 64 /* layer groups of one model */
};

/* One piece of work on the device. */
typedef struct srv_launch {
    ker_ticket ticket;
    srv_request *request;
} srv_launch;

struct srv_request {
    srv_event event; /* arrival, and later the completion */

    /* receive */
    const void *bytes; /* borrowed from the transport until sent */
    size_t n_bytes;
    uint32_t connection; /* the transport's number for it */
    uint32_t full_at;    /* how many there may be, and its own is one too many; 0: it is not */
    void (*send)(srv_request *request); /* hands .sent to the transport; from the engine thread */
    uint64_t received_ns;

    /* decode */
    msg_arena arena;
    msg_request msg;
    attnd_err err; /* status OK until a stage refuses */

    /* admit, order, check: validate */
    srv_engine *engine; /* whose device it is; the last launch tells it */
    const srv_op *op;
    size_t stage;             /* of road.c's list: the next to run */
    uint64_t deadline_ns;     /* of its turn */
    srv_past *past;           /* its entry in the session's history; NULL: id 0, or no session */
    srv_request *wait_next;   /* of those that wait for the request they come after */
    srv_request *repeat_next; /* of those that wait for the first reply to their id */
    bool is_parked;           /* on one of these lists */
    bool is_repeat;           /* gets the first reply to its id */
    srv_session *session;     /* NULL: none found or none needed */
    bool is_counted;          /* counts as in flight for session and engine */
    srv_model *model;         /* held until reply, NULL: none */
    srv_buffer *held[SRV_MAX_HELD];
    size_t n_held;
    srv_plan *planned; /* whose version it reads, until reply; NULL: none */
    srv_version *version;
    ker_problem *problems; /* that go through plan and device, in this order */
    size_t n_problems;
    ker_merge_problem *merge; /* or this */
    srv_span *spans;          /* the tensors of all of them */
    size_t n_spans;

    /* plan */
    const ker_plan **plans; /* [n_problems] */
    void *made;             /* what the op's make has taken, until run publishes it */

    /* launch */
    srv_launch *launches;
    size_t n_launches;

    /* reply */
    const uint8_t *sent; /* the encoded reply, n_sent bytes; for send, which copies it */
    size_t n_sent;
    msg_pool_info pools[SRV_MAX_GROUPS];
    msg_reply reply;
    uint64_t stage_ns[SRV_N_STAGES];
    uint64_t mark_ns; /* end of the stage before */
    srv_trace_mark trace;
};

#endif
