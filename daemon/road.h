/* road.h: receive ▶ decode ▶ validate ▶ plan ▶ launch ▶ reply. */
#ifndef ATTND_DAEMON_ROAD_H
#define ATTND_DAEMON_ROAD_H

#include "daemon/request.h"

/* On a transport thread: bytes, n_bytes, connection and send are filled. Decodes and posts. */
void srv_road_arrive(srv_queue *engine, srv_request *request);

/* On the engine thread, after events: what waited for a request goes on, or is told that it never
 * will. */
void srv_road_look_again(srv_engine *engine);

/* Parks a request until something is launched, refused or given back; its stage then runs again.
 * TIMED_OUT when its deadline has passed, NO_ROOM and DRAINING as for new work of any op. */
attnd_status srv_road_wait(srv_engine *engine, srv_request *request, attnd_err *err);

/* When a waiting request's time is up, CLOCK_MONOTONIC; 0: none waits. */
uint64_t srv_road_next_deadline(const srv_engine *engine);

/* CLOCK_MONOTONIC. */
uint64_t srv_now_ns(void);

#endif
