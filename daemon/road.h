/* road.h: receive ▶ decode ▶ validate ▶ plan ▶ launch ▶ reply. */
#ifndef ATTND_DAEMON_ROAD_H
#define ATTND_DAEMON_ROAD_H

#include "daemon/request.h"

/* On a transport thread: bytes, n_bytes, connection and send are filled. Decodes and posts. */
void srv_road_arrive(srv_queue *engine, srv_request *request);

/* CLOCK_MONOTONIC. */
uint64_t srv_now_ns(void);

#endif
