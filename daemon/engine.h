/* engine.h: the thread that owns the device: sessions, pools, plans and streams; no lock on any of
 * it.
 */
#ifndef ATTND_DAEMON_ENGINE_H
#define ATTND_DAEMON_ENGINE_H

#include "config/config.h"
#include "daemon/queue.h"
#include "daemon/request.h"
#include "daemon/snapshot.h"
#include "daemon/store.h"
#include "kernels/attention.h"

typedef struct srv_transport {
    /* Is the connection still there? From any thread. */
    bool (*is_connected)(void *self, uint32_t connection);
    void *self;
} srv_transport;

struct srv_engine {
    /* Set before the thread starts, read by any. */
    const cfg *config; /* its live keys by the engine thread only, see own */
    ker_device *device;
    ker_device_info device_info;
    msg_limits limits;
    uint64_t instance;
    size_t arena_bytes; /* bound of a request's memory, and of a plan's version */
    srv_store *store;   /* NULL without a keeper */
    srv_transport transport;
    struct srv_capture *capture; /* records what is done; NULL: nothing can be */
    void (*drained)(void *arg);  /* nothing is in flight any more; from the engine thread, once */
    void *drained_arg;

    srv_queue queue; /* the only door for other threads */
    pthread_t thread;

    /* Owner: the engine thread. */
    srv_trace trace;
    cfg own; /* what config points to in a daemon: a reload sets its live keys, in an event */
    srv_session *sessions; /* uthash by number */
    uint64_t last_handle;  /* handles are never used twice */
    uint32_t last_ordinal;
    uint64_t last_stamp; /* of the last request that marked blocks */
    uint32_t n_in_flight;
    srv_request *waiting; /* for the request they come after, by wait_next */
    bool has_news; /* something was launched or refused, a session ended, we drain: look at waiting
                    */
    uint64_t lingers_ns; /* the first moment a lingering session may be over; 0: none lingers */
    bool is_draining;
    bool is_stopping;
    srv_event drain_event, stop_event;
};

/* ---- What the thread is made of; tests are the thread themselves. ---- */

/* Fills limits, device_info and the queue from config and device. */
void srv_engine_init(srv_engine *engine);

/* Runs the events that are there, and what they let go on or end. waits: for the first one, at most
 * until somebody's time is up. */
void srv_engine_turn(srv_engine *engine, bool waits);

/* ---- */

/* Fills *engine and starts the thread. Borrows everything until srv_engine_stop. Refuses NO_ROOM.
 */
attnd_status srv_engine_start(srv_engine *engine, attnd_err *err);

/* From any thread: no new work; drained() when what runs is done. At most once. */
void srv_engine_drain(srv_engine *engine);

/* Ends the thread and every session. The transport must not post any more. */
void srv_engine_stop(srv_engine *engine);

/* event.run of a srv_snapshot. */
void srv_engine_snapshot(srv_engine *engine, srv_event *event);

/* A request left: counts, and looks whether draining is over. Engine thread. */
void srv_engine_left(srv_engine *engine);

#endif
