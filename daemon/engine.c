/* engine.c: the thread that owns the device. */
#include "daemon/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/log.h"
#include "daemon/plan.h"
#include "daemon/road.h"
#include "daemon/session.h"

/* ---- Draining ---------------------------------------------------------------------------------
 */

void srv_engine_left(srv_engine *engine)
{
    if (engine->is_draining && !engine->n_in_flight && engine->drained) {
        void (*drained)(void *arg) = engine->drained;
        engine->drained = NULL;
        drained(engine->drained_arg);
    }
}

static void begin_drain(srv_engine *engine, srv_event *event)
{
    engine->is_draining = true;
    engine->has_news = true;
    srv_log(SRV_INFO, "drain  in_flight=%u", engine->n_in_flight);
    srv_engine_left(engine);
}

void srv_engine_drain(srv_engine *engine)
{
    engine->drain_event.run = begin_drain;
    srv_queue_post(&engine->queue, &engine->drain_event);
}

/* ---- Snapshots --------------------------------------------------------------------------------
 */

typedef struct view_counts {
    size_t sessions, models, pools, buffers, plans;
} view_counts;

static view_counts count_views(const srv_engine *engine)
{
    view_counts n = {0};
    for (srv_session *s = engine->sessions; s; s = s->hh.next) {
        n.sessions++;
        n.buffers += HASH_COUNT(s->buffers);
        n.plans += HASH_COUNT(s->plans);
        for (srv_model *m = s->models; m; m = m->hh.next) {
            n.models++;
            n.pools += m->n_groups;
        }
    }
    return n;
}

static void view_model(srv_snapshot *snapshot, const srv_session *s, const srv_model *m)
{
    srv_model_view *model = &snapshot->models[snapshot->n_models++];
    *model = (srv_model_view){.handle = m->handle,
                              .session = s->ordinal,
                              .n_layers = m->n_layers,
                              .n_pools = m->n_groups};
    memcpy(model->name, m->name, sizeof model->name);
    for (uint32_t g = 0; g < m->n_groups; g++) {
        const srv_group *group = &m->groups[g];
        srv_pool_view *pool = &snapshot->pools[snapshot->n_pools++];
        *pool = (srv_pool_view){.model = m->handle,
                                .session = s->ordinal,
                                .owner = kv_pool_owner(group->pool),
                                .n_blocks = group->n_blocks,
                                .n_free = kv_pool_n_free(group->pool),
                                .block_size = group->geometry.block_size,
                                .block_bytes = (uint64_t)group->geometry.block_bytes,
                                .bytes = group->memory.bytes,
                                .dtype = group->geometry.dtype,
                                .layout = group->geometry.layout,
                                .n_layers = group->geometry.n_layers,
                                .max_kv_len = group->max_kv_len};
        memcpy(pool->name, group->name, sizeof pool->name);
    }
    if (m->handle == snapshot->layer_model && snapshot->layer_index < m->n_layers) {
        snapshot->layer =
            (srv_layer_view){.found = true, .problem = m->layers[snapshot->layer_index].shape};
        /* The frequencies are the model's, which may be closed before the asker looks. */
        snapshot->layer.problem.rope.freq = NULL;
    }
}

static void view_session(srv_snapshot *snapshot, const srv_session *s)
{
    srv_session_view *view = &snapshot->sessions[snapshot->n_sessions++];
    *view = (srv_session_view){.ordinal = s->ordinal,
                               .age_ms = (srv_now_ns() - s->opened_ns) / 1000000u,
                               .leased = s->was_leased,
                               .n_in_flight = s->n_in_flight,
                               .n_models = HASH_COUNT(s->models),
                               .n_buffers = HASH_COUNT(s->buffers),
                               .buffer_bytes = s->buffer_bytes,
                               .pool_bytes = s->pool_bytes,
                               .n_requests = s->n_requests};
    memcpy(view->client, s->client, sizeof view->client);
    for (srv_buffer *b = s->buffers; b; b = b->hh.next)
        snapshot->buffers[snapshot->n_buffers++] = (srv_buffer_view){.handle = b->handle,
                                                                     .session = s->ordinal,
                                                                     .bytes = b->memory.bytes,
                                                                     .n_in_use = b->n_in_use,
                                                                     .freed = b->is_freed};
    for (srv_model *m = s->models; m; m = m->hh.next)
        view_model(snapshot, s, m);
    for (srv_plan *p = s->plans; p; p = p->hh.next) {
        const srv_version *newest = srv_plan_newest(p);
        snapshot->plans[snapshot->n_plans++] =
            (srv_plan_view){.handle = p->handle,
                            .model = p->model->handle,
                            .session = s->ordinal,
                            .version = newest->number,
                            .n_seqs = newest->batch.lengths.n_seqs,
                            .n_versions = srv_plan_next(p) ? 1 : 2};
    }
}

void srv_engine_snapshot(srv_engine *engine, srv_event *event)
{
    srv_snapshot *snapshot = (srv_snapshot *)((char *)event - offsetof(srv_snapshot, event));
    if (snapshot->trace.verb) {
        snapshot->status = srv_trace_serve(&engine->trace, &snapshot->trace);
        snapshot->done(snapshot);
        return;
    }
    view_counts n = count_views(engine);
    snapshot->sessions = calloc(n.sessions + 1, sizeof *snapshot->sessions);
    snapshot->models = calloc(n.models + 1, sizeof *snapshot->models);
    snapshot->pools = calloc(n.pools + 1, sizeof *snapshot->pools);
    snapshot->buffers = calloc(n.buffers + 1, sizeof *snapshot->buffers);
    snapshot->plans = calloc(n.plans + 1, sizeof *snapshot->plans);
    snapshot->n_sessions = snapshot->n_models = snapshot->n_pools = snapshot->n_buffers = 0;
    snapshot->n_plans = 0;
    snapshot->layer.found = false;
    snapshot->status = ATTND_RESOURCE_EXHAUSTED;
    if (snapshot->sessions && snapshot->models && snapshot->pools && snapshot->buffers &&
        snapshot->plans) {
        for (srv_session *s = engine->sessions; s; s = s->hh.next)
            view_session(snapshot, s);
        snapshot->status = ATTND_OK;
    }
    snapshot->done(snapshot);
}

/* ---- The thread -------------------------------------------------------------------------------
 */

static void stop(srv_engine *engine, srv_event *event)
{
    engine->is_stopping = true;
}

void srv_engine_turn(srv_engine *engine, bool waits)
{
    uint64_t turn_ns = srv_road_next_deadline(engine);
    if (!turn_ns || (engine->lingers_ns && engine->lingers_ns < turn_ns))
        turn_ns = engine->lingers_ns;
    srv_event *event = srv_queue_take(&engine->queue, waits ? turn_ns : SRV_QUEUE_NOW);
    while (event) {
        srv_event *next = event->next; /* run may post the event again */
        event->run(engine, event);
        event = next;
    }
    if (turn_ns && srv_now_ns() >= turn_ns) {
        srv_sessions_expire(engine);
        engine->has_news = true;
    }
    srv_road_look_again(engine);
}

static void *run(void *arg)
{
    srv_engine *engine = arg;
    pthread_setname_np(pthread_self(), "engine");
    while (!engine->is_stopping)
        srv_engine_turn(engine, true);
    srv_session *session, *next;
    HASH_ITER(hh, engine->sessions, session, next)
    {
        srv_session_end(engine, session, "the server stops");
    }
    return NULL;
}

void srv_engine_init(srv_engine *engine)
{
    const cfg *c = engine->config;
    ker_device_describe(engine->device, &engine->device_info);
    engine->limits = (msg_limits){
        .max_message_bytes = (uint32_t)c->data_max_message,
        .max_tokens = (uint32_t)c->limits_max_tokens,
        .max_sequences = (uint32_t)c->limits_max_sequences,
        .max_in_flight = (uint32_t)c->session_max_in_flight,
        .max_buffer_bytes = (uint64_t)c->session_max_buffer,
        .max_pool_bytes = (uint64_t)c->session_max_pool,
        .max_head_dim = (uint32_t)c->limits_max_head_dim,
        .default_timeout_ms = (uint32_t)c->data_default_timeout,
    };
    srv_queue_init(&engine->queue);
}

attnd_status srv_engine_start(srv_engine *engine, attnd_err *err)
{
    srv_engine_init(engine);
    if (pthread_create(&engine->thread, NULL, run, engine)) {
        srv_queue_fini(&engine->queue);
        return attnd_fail(err, ATTND_NO_ROOM, "engine: no thread");
    }
    return ATTND_OK;
}

void srv_engine_stop(srv_engine *engine)
{
    engine->stop_event.run = stop;
    srv_queue_post(&engine->queue, &engine->stop_event);
    pthread_join(engine->thread, NULL);
    srv_trace_fini(&engine->trace);
    srv_queue_fini(&engine->queue);
}
