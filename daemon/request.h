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
#include "kernels/attention.h"
#include "proto/message.h"

typedef struct srv_session srv_session;
typedef struct srv_model srv_model;
typedef struct srv_buffer srv_buffer;
typedef struct srv_op srv_op;
typedef struct srv_request srv_request;

enum {
    SRV_MAX_HELD = 16,  /* tensors one request may name */
    SRV_MAX_GROUPS = 64 /* layer groups of one model */
};

struct srv_request {
    srv_event event; /* arrival, and later the completion */

    /* receive */
    const void *bytes; /* borrowed from the transport until sent */
    size_t n_bytes;
    uint32_t connection;                /* the transport's number for it */
    void (*send)(srv_request *request); /* hands reply to the transport; from the engine thread */
    uint64_t received_ns;

    /* decode */
    msg_arena arena;
    msg_request msg;
    attnd_err err; /* status OK until a stage refuses */

    /* validate */
    const srv_op *op;
    srv_session *session; /* NULL: none found or none needed */
    bool is_counted;      /* counts as in flight for session and engine */
    srv_model *model;     /* held until reply, NULL: none */
    srv_buffer *held[SRV_MAX_HELD];
    size_t n_held;
    bool has_problem; /* goes through plan and device */
    ker_problem problem;

    /* plan */
    ker_plan *plan;
    void *made; /* what the op's make has taken, until run publishes it */

    /* launch */
    ker_ticket ticket;
    srv_engine *ticket_engine; /* whom the ticket tells */

    /* reply */
    msg_pool_info pools[SRV_MAX_GROUPS];
    msg_reply reply;
    uint64_t stage_ns[SRV_N_STAGES];
    uint64_t mark_ns; /* end of the stage before */
};

#endif
