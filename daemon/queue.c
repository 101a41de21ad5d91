/* queue.c: the engine thread's inbox. */
#include "daemon/queue.h"

#include <time.h>

void srv_queue_init(srv_queue *queue)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->filled, &attr);
    pthread_condattr_destroy(&attr);
    queue->first = NULL;
    queue->last = &queue->first;
}

void srv_queue_fini(srv_queue *queue)
{
    pthread_cond_destroy(&queue->filled);
    pthread_mutex_destroy(&queue->lock);
}

void srv_queue_post(srv_queue *queue, srv_event *event)
{
    event->next = NULL;
    pthread_mutex_lock(&queue->lock);
    *queue->last = event;
    queue->last = &event->next;
    pthread_cond_signal(&queue->filled);
    pthread_mutex_unlock(&queue->lock);
}

srv_event *srv_queue_take(srv_queue *queue, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    pthread_mutex_lock(&queue->lock);
    while (!queue->first && deadline_ns != SRV_QUEUE_NOW) {
        if (!deadline_ns)
            pthread_cond_wait(&queue->filled, &queue->lock);
        else if (pthread_cond_timedwait(&queue->filled, &queue->lock, &until))
            break;
    }
    srv_event *all = queue->first;
    queue->first = NULL;
    queue->last = &queue->first;
    pthread_mutex_unlock(&queue->lock);
    return all;
}
