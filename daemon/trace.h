/* trace.h: where requests spend their time, span by span, in a ring of bounded memory.
 *
 * Owner of srv_trace and of the ring in it: the engine thread, which neither locks nor allocates
 * for a span. Others look through a srv_trace_look that travels as a snapshot does. Off until
 * somebody asks; then a request costs one comparison a stage.
 */
#ifndef ATTND_DAEMON_TRACE_H
#define ATTND_DAEMON_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/attention.h"
#include "proto/message.h"

typedef struct srv_request srv_request;

/*  X(name, thread that is busy with it). The stages but total and kernel follow each other without
 * gaps: their spans of one request add up to its total. */
#define SRV_TRACE_MAP(X)                                                                           \
    X(decode, TRANSPORT)                                                                           \
    X(queue, NONE)                                                                                 \
    X(admit, ENGINE)                                                                               \
    X(order, ENGINE)                                                                               \
    X(check, ENGINE)                                                                               \
    X(plan, ENGINE)                                                                                \
    X(parked, NONE) /* waits for another request */                                                \
    X(launch, ENGINE)                                                                              \
    X(device, NONE) /* from enqueued until the engine thread takes up the completion */            \
    X(run, ENGINE)  /* the op's own: what it made is published, the reply filled */                \
    X(reply, ENGINE)                                                                               \
    X(total, NONE)  /* from receipt to the reply handed to the transport */                        \
    X(kernel, NONE) /* one launch on the device */

typedef enum srv_trace_kind {
#define X(name, thread) SRV_TRACE_##name,
    SRV_TRACE_MAP(X)
#undef X
} srv_trace_kind;

/* The least and most that a ring may hold, and what it holds unless told. */
enum { SRV_TRACE_LEAST = 16, SRV_TRACE_MOST = 1 << 20, SRV_TRACE_DEFAULT = 1 << 16 };

typedef struct srv_trace_event {
    uint64_t begin_ns, ns;        /* CLOCK_MONOTONIC, and how long */
    uint64_t request;             /* its id */
    const ker_kernel *kernels[2]; /* kernel: of each phase; NULL: none, as of a merge */
    uint32_t session;             /* ordinal; 0: none */
    uint32_t lane;                /* that no other request has meanwhile */
    uint32_t part;                /* kernel: which launch; total: how many */
    uint16_t op;                  /* msg_op */
    uint16_t reason;              /* total: attnd_reason of the refusal */
    uint16_t kind;                /* srv_trace_kind */
} srv_trace_event;

typedef struct srv_trace_ring {
    size_t room;
    uint64_t started_ns;      /* requests received before are not traced */
    uint64_t n_recorded;      /* ever; the last `room` of them are there */
    srv_trace_event events[]; /* [room] the i-th recorded at i mod room */
} srv_trace_ring;

enum { SRV_TRACE_LANES = 4096 /* data.contexts at most */ };

typedef struct srv_trace {
    srv_trace_ring *ring; /* of the last trace; NULL: there was none */
    bool is_on;
    uint32_t number; /* of the last trace; 0: there was none */
    uint64_t busy[SRV_TRACE_LANES / 64];
} srv_trace;

/* In a request. */
typedef struct srv_trace_mark {
    uint32_t number; /* of the trace that it is part of; 0: of none */
    uint32_t lane;
    uint64_t from_ns; /* end of its last span */
} srv_trace_mark;

/* ---- The road's hooks: the engine thread ---- */

/* It has arrived: decode and queue. */
void srv_trace_begin(srv_trace *trace, srv_request *request);

/* What it did since its last span. */
void srv_trace_span(srv_trace *trace, srv_request *request, srv_trace_kind kind);

/* Its launches are completed: device, and a span of each that did not fail. */
void srv_trace_device(srv_trace *trace, srv_request *request);

/* It is about to be sent: reply and total. */
void srv_trace_end(srv_trace *trace, srv_request *request);

/* Frees the ring. */
void srv_trace_fini(srv_trace *trace);

/* ---- Looking: the asker makes it, the engine thread answers, the asker frees ---- */

typedef enum srv_trace_verb {
    SRV_TRACE_NOTHING,
    SRV_TRACE_START, /* unless it is on */
    SRV_TRACE_STOP,
    SRV_TRACE_PAGE,
} srv_trace_verb;

enum { SRV_TRACE_PAGE_EVENTS = 1024 };

typedef struct srv_trace_look {
    srv_trace_verb verb;
    srv_trace_ring *ring;    /* START: hands over; comes back: the one before, or the same */
    srv_trace_event *events; /* PAGE: [SRV_TRACE_PAGE_EVENTS], filled */
    uint64_t from;           /* PAGE: of the first event wanted; comes back: of the first there */
    size_t n;                /* events filled */
    /* Of the trace as it was then: */
    bool was_on;
    size_t room; /* 0: there was no trace yet */
    uint64_t started_ns, n_recorded;
} srv_trace_look;

/* Memory for START (all of it touched, so that no span waits for the system) and for PAGE. False:
 * there is none. Fini frees both, NULL or not. */
bool srv_trace_look_init(srv_trace_look *look, srv_trace_verb verb, size_t room);
void srv_trace_look_fini(srv_trace_look *look);

/* Engine thread. RESOURCE_EXHAUSTED when the asker had no memory. */
attnd_status srv_trace_serve(srv_trace *trace, srv_trace_look *look);

#endif
