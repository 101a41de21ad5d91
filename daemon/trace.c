/* trace.c: a ring of spans, written by the engine thread. */
#include "daemon/trace.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/road.h"
#include "daemon/session.h"

/* ---- Recording --------------------------------------------------------------------------------
 */

static bool is_traced(const srv_trace *trace, const srv_request *request)
{
    return request->trace.number && request->trace.number == trace->number;
}

/* The next place of the ring, filled with what every span of the request says. */
static srv_trace_event *record(srv_trace *trace, const srv_request *request, srv_trace_kind kind,
                               uint64_t begin_ns, uint64_t end_ns)
{
    srv_trace_ring *ring = trace->ring;
    srv_trace_event *event = &ring->events[ring->n_recorded++ % ring->room];
    *event = (srv_trace_event){.begin_ns = begin_ns,
                               .ns = end_ns - begin_ns,
                               .request = request->msg.id,
                               .session = request->session ? request->session->ordinal : 0,
                               .lane = request->trace.lane,
                               .op = (uint16_t)request->msg.op,
                               .kind = (uint16_t)kind};
    return event;
}

/* The lowest that is free; with more requests than lanes the last is shared. */
static uint32_t take_lane(srv_trace *trace)
{
    for (uint32_t i = 0; i < SRV_TRACE_LANES / 64; i++) {
        if (trace->busy[i] == UINT64_MAX)
            continue;
        uint32_t bit = (uint32_t)__builtin_ctzll(~trace->busy[i]);
        trace->busy[i] |= (uint64_t)1 << bit;
        return 64 * i + bit;
    }
    return SRV_TRACE_LANES - 1;
}

static void advance(srv_trace *trace, srv_request *request, srv_trace_kind kind, uint64_t now_ns)
{
    if (trace->is_on)
        record(trace, request, kind, request->trace.from_ns, now_ns);
    request->trace.from_ns = now_ns;
}

void srv_trace_begin(srv_trace *trace, srv_request *request)
{
    request->trace.number = 0;
    if (!trace->is_on || request->received_ns < trace->ring->started_ns)
        return;
    request->trace = (srv_trace_mark){
        .number = trace->number, .lane = take_lane(trace), .from_ns = request->received_ns};
    advance(trace, request, SRV_TRACE_decode,
            request->received_ns + request->stage_ns[SRV_STAGE_DECODE]);
    advance(trace, request, SRV_TRACE_queue, srv_now_ns());
}

void srv_trace_span(srv_trace *trace, srv_request *request, srv_trace_kind kind)
{
    if (is_traced(trace, request))
        advance(trace, request, kind, srv_now_ns());
}

void srv_trace_device(srv_trace *trace, srv_request *request)
{
    if (!is_traced(trace, request))
        return;
    advance(trace, request, SRV_TRACE_device, srv_now_ns());
    for (size_t i = 0; i < request->n_launches && trace->is_on; i++) {
        const ker_ticket *ticket = &request->launches[i].ticket;
        if (ticket->err.status != ATTND_OK)
            return;
        srv_trace_event *event =
            record(trace, request, SRV_TRACE_kernel, ticket->started_ns, ticket->ended_ns);
        event->part = (uint32_t)i;
        for (int phase = 0; phase < 2 && !request->merge; phase++)
            event->kernels[phase] = request->plans[i]->part[phase].kernel;
    }
}

void srv_trace_end(srv_trace *trace, srv_request *request)
{
    if (!is_traced(trace, request))
        return;
    uint32_t lane = request->trace.lane;
    uint64_t now_ns = srv_now_ns();
    advance(trace, request, SRV_TRACE_reply, now_ns);
    if (trace->is_on) {
        srv_trace_event *event =
            record(trace, request, SRV_TRACE_total, request->received_ns, now_ns);
        event->part = (uint32_t)request->n_launches;
        event->reason = (uint16_t)request->reply.err.reason;
    }
    trace->busy[lane / 64] &= ~((uint64_t)1 << lane % 64);
    request->trace.number = 0;
}

/* ---- Rings ------------------------------------------------------------------------------------
 */

static size_t ring_bytes(size_t room)
{
    return sizeof(srv_trace_ring) + room * sizeof(srv_trace_event);
}

static srv_trace_ring *ring_open(size_t room)
{
    srv_trace_ring *ring = mmap(NULL, ring_bytes(room), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (ring == MAP_FAILED)
        return NULL;
    ring->room = room;
    return ring;
}

static void ring_close(srv_trace_ring *ring)
{
    if (ring)
        munmap(ring, ring_bytes(ring->room));
}

void srv_trace_fini(srv_trace *trace)
{
    ring_close(trace->ring);
    trace->ring = NULL;
    trace->is_on = false;
}

/* ---- Looking ----------------------------------------------------------------------------------
 */

bool srv_trace_look_init(srv_trace_look *look, srv_trace_verb verb, size_t room)
{
    *look = (srv_trace_look){.verb = verb};
    if (verb == SRV_TRACE_START)
        look->ring = ring_open(room);
    if (verb == SRV_TRACE_PAGE)
        look->events = calloc(SRV_TRACE_PAGE_EVENTS, sizeof *look->events);
    return verb == SRV_TRACE_STOP || look->ring || look->events;
}

void srv_trace_look_fini(srv_trace_look *look)
{
    ring_close(look->ring);
    free(look->events);
    *look = (srv_trace_look){0};
}

static void start(srv_trace *trace, srv_trace_look *look)
{
    srv_trace_ring *before = trace->ring;
    look->ring->started_ns = srv_now_ns();
    trace->ring = look->ring;
    look->ring = before;
    trace->is_on = true;
    trace->number += trace->number == UINT32_MAX ? 2 : 1;
    memset(trace->busy, 0, sizeof trace->busy);
}

static void copy_page(const srv_trace_ring *ring, srv_trace_look *look)
{
    uint64_t n = ring->n_recorded, oldest = n > ring->room ? n - ring->room : 0;
    if (look->from < oldest)
        look->from = oldest;
    while (look->n < SRV_TRACE_PAGE_EVENTS && look->from + look->n < n) {
        look->events[look->n] = ring->events[(look->from + look->n) % ring->room];
        look->n++;
    }
}

attnd_status srv_trace_serve(srv_trace *trace, srv_trace_look *look)
{
    if ((look->verb == SRV_TRACE_START && !look->ring) ||
        (look->verb == SRV_TRACE_PAGE && !look->events))
        return ATTND_RESOURCE_EXHAUSTED;
    look->was_on = trace->is_on;
    if (look->verb == SRV_TRACE_START && !trace->is_on)
        start(trace, look);
    if (look->verb == SRV_TRACE_STOP)
        trace->is_on = false;
    if (!trace->ring)
        return ATTND_OK;
    if (look->verb == SRV_TRACE_PAGE)
        copy_page(trace->ring, look);
    look->room = trace->ring->room;
    look->started_ns = trace->ring->started_ns;
    look->n_recorded = trace->ring->n_recorded;
    return ATTND_OK;
}
