/* snapshot.c: takes and frees what the engine thread copied. */
#include "daemon/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_ABANDONED = 8 };

void srv_snapshot_fini(srv_snapshot *snapshot)
{
    free(snapshot->sessions);
    free(snapshot->models);
    free(snapshot->pools);
    free(snapshot->buffers);
    free(snapshot->plans);
    snapshot->sessions = NULL;
    snapshot->models = NULL;
    snapshot->pools = NULL;
    snapshot->buffers = NULL;
    snapshot->plans = NULL;
    snapshot->n_sessions = snapshot->n_models = snapshot->n_pools = snapshot->n_buffers = 0;
    snapshot->n_plans = 0;
    srv_trace_look_fini(&snapshot->trace);
}

/* ---- For who waits ----------------------------------------------------------------------------
 */

typedef struct look {
    srv_snapshot snapshot; /* the engine's until is_back */
    pthread_mutex_t lock;  /* guards what follows; no other lock is taken under it */
    pthread_cond_t back;
    bool is_back, is_abandoned;
} look;

static atomic_int n_abandoned;

static void look_free(look *l)
{
    pthread_cond_destroy(&l->back);
    pthread_mutex_destroy(&l->lock);
    srv_snapshot_fini(&l->snapshot);
    free(l);
}

/* On the engine thread. */
static void look_done(srv_snapshot *snapshot)
{
    look *l = (look *)snapshot;
    pthread_mutex_lock(&l->lock);
    bool is_abandoned = l->is_abandoned;
    l->is_back = true;
    pthread_cond_signal(&l->back);
    pthread_mutex_unlock(&l->lock);
    if (!is_abandoned)
        return;
    look_free(l);
    n_abandoned--;
}

srv_snapshot *srv_snapshot_take(srv_queue *engine,
                                void (*fill)(srv_engine *engine, srv_event *event),
                                uint32_t timeout_ms)
{
    struct timespec end;
    pthread_condattr_t monotonic;
    look *l = n_abandoned < MAX_ABANDONED ? calloc(1, sizeof *l) : NULL;
    if (!l)
        return NULL;
    pthread_mutex_init(&l->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->back, &monotonic);
    pthread_condattr_destroy(&monotonic);
    l->snapshot.event.run = fill;
    l->snapshot.done = look_done;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (end.tv_nsec + timeout_ms * 1000000ll) / 1000000000;
    end.tv_nsec = (end.tv_nsec + timeout_ms * 1000000ll) % 1000000000;
    srv_queue_post(engine, &l->snapshot.event);
    pthread_mutex_lock(&l->lock);
    while (!l->is_back && pthread_cond_timedwait(&l->back, &l->lock, &end) != ETIMEDOUT)
        ;
    bool is_back = l->is_back;
    l->is_abandoned = !is_back;
    n_abandoned += !is_back;
    pthread_mutex_unlock(&l->lock);
    if (is_back && l->snapshot.status != ATTND_OK) {
        look_free(l);
        return NULL;
    }
    return is_back ? &l->snapshot : NULL;
}

void srv_snapshot_give(srv_snapshot *snapshot)
{
    if (snapshot)
        look_free((look *)snapshot);
}
