/* queue.h: the engine thread's inbox: many threads post, one takes.
 *
 * An event is embedded in what it is about, so posting allocates nothing and the queue is bounded
 * by what exists: request slots, tickets, connections, snapshots.
 */
#ifndef ATTND_DAEMON_QUEUE_H
#define ATTND_DAEMON_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct srv_engine srv_engine;
typedef struct srv_event srv_event;

struct srv_event {
    srv_event *next;
    void (*run)(srv_engine *engine, srv_event *event); /* on the engine thread */
};

typedef struct srv_queue {
    pthread_mutex_t lock; /* guards the list; no other lock is taken under it */
    pthread_cond_t filled;
    srv_event *first, **last;
} srv_queue;

void srv_queue_init(srv_queue *queue);
void srv_queue_fini(srv_queue *queue);

/* From any thread. An event is in the queue at most once. */
void srv_queue_post(srv_queue *queue, srv_event *event);

/* A deadline that has passed. */
enum { SRV_QUEUE_NOW = 1 };

/* Takes all that is there, in order, as a list; waits while there is nothing, at most until
 * CLOCK_MONOTONIC deadline_ns (0: for ever; SRV_QUEUE_NOW: not at all). NULL at the deadline. */
srv_event *srv_queue_take(srv_queue *queue, uint64_t deadline_ns);

#endif
