/* session.c: one client: its models, buffers and connections. */
#include "daemon/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "daemon/log.h"
#include "daemon/plan.h"
#include "daemon/road.h"

/* Where the store's names come from: "pool/7/0", "buffer/12/0". */
static void memory_name(char name[SRV_STORE_NAME], const char *kind, uint64_t handle, uint32_t part)
{
    snprintf(name, SRV_STORE_NAME, "%s/%" PRIu64 "/%" PRIu32, kind, handle, part);
}

attnd_status srv_memory_make(srv_engine *engine, const char *kind, uint64_t handle, uint32_t part,
                             uint64_t bytes, ker_memory *out, attnd_err *err)
{
    char name[SRV_STORE_NAME];
    memory_name(name, kind, handle, part);
    TRY(ker_memory_make(engine->device, name, bytes, out, err));
    attnd_status status =
        engine->store ? srv_store_put(engine->store, name, out->fd, err) : ATTND_OK;
    if (status != ATTND_OK)
        ker_memory_free(engine->device, out);
    return status;
}

void srv_memory_free(srv_engine *engine, const char *kind, uint64_t handle, uint32_t part,
                     ker_memory *memory)
{
    if (!memory->base)
        return;
    char name[SRV_STORE_NAME];
    memory_name(name, kind, handle, part);
    attnd_err err;
    if (engine->store && srv_store_drop(engine->store, name, &err) != ATTND_OK)
        srv_log(SRV_WARN, "store drop failed  name=%s why=\"%s\"", name, err.text);
    ker_memory_free(engine->device, memory);
}

/* ---- Buffers ----------------------------------------------------------------------------------
 */

attnd_status srv_buffer_get(srv_session *session, uint64_t handle, const char *field,
                            srv_buffer **out, attnd_err *err)
{
    HASH_FIND(hh, session->buffers, &handle, sizeof handle, *out);
    if (!*out || (*out)->is_freed)
        return attnd_fail(err, ATTND_NO_SUCH_HANDLE,
                          "%s = %" PRIu64 ": this session has no such buffer", field, handle);
    return ATTND_OK;
}

static void buffer_destroy(srv_engine *engine, srv_buffer *buffer)
{
    srv_session *session = buffer->session;
    session->buffer_bytes -= buffer->memory.bytes;
    srv_stats_gauge(SRV_GAUGE_buffers, -1);
    srv_stats_gauge(SRV_GAUGE_buffer_bytes, -(int64_t)buffer->memory.bytes);
    HASH_DEL(session->buffers, buffer);
    if (buffer->shm_name[0]) {
        srv_shm_unlink(buffer->shm_name);
        ker_memory_free(engine->device, &buffer->memory);
    } else {
        srv_memory_free(engine, "buffer", buffer->handle, 0, &buffer->memory);
    }
    free(buffer);
}

void srv_buffer_free(srv_engine *engine, srv_buffer *buffer)
{
    buffer->is_freed = true;
    if (!buffer->n_in_use)
        buffer_destroy(engine, buffer);
}

void srv_buffer_use(srv_buffer *buffer)
{
    buffer->n_in_use++;
}

void srv_buffer_leave(srv_engine *engine, srv_buffer *buffer)
{
    buffer->n_in_use--;
    if (buffer->is_freed && !buffer->n_in_use)
        buffer_destroy(engine, buffer);
}

/* ---- Models -----------------------------------------------------------------------------------
 */

attnd_status srv_model_get(srv_session *session, uint64_t handle, const char *field,
                           srv_model **out, attnd_err *err)
{
    HASH_FIND(hh, session->models, &handle, sizeof handle, *out);
    if (!*out || (*out)->is_closed)
        return attnd_fail(err, ATTND_NO_SUCH_HANDLE,
                          "%s = %" PRIu64 ": this session has no such model", field, handle);
    return ATTND_OK;
}

void srv_model_free(srv_engine *engine, srv_model *model)
{
    for (uint32_t g = 0; g < model->n_groups; g++) {
        srv_group *group = &model->groups[g];
        srv_memory_free(engine, "pool", model->handle, g, &group->memory);
        kv_pool_close(group->pool);
        free(group->marks);
    }
    for (uint32_t l = 0; l < model->n_layers; l++)
        free(model->layers[l].rope_freq);
    free(model->groups);
    free(model->layers);
    free(model);
}

static void model_destroy(srv_engine *engine, srv_model *model)
{
    srv_session *session = model->session;
    session->pool_bytes -= model->pool_bytes;
    srv_stats_gauge(SRV_GAUGE_models, -1);
    srv_stats_gauge(SRV_GAUGE_pool_bytes, -(int64_t)model->pool_bytes);
    HASH_DEL(session->models, model);
    srv_model_free(engine, model);
}

void srv_model_close(srv_engine *engine, srv_model *model)
{
    model->is_closed = true;
    if (!model->n_in_use)
        model_destroy(engine, model);
}

void srv_model_use(srv_model *model)
{
    model->n_in_use++;
}

void srv_model_leave(srv_engine *engine, srv_model *model)
{
    model->n_in_use--;
    if (model->is_closed && !model->n_in_use)
        model_destroy(engine, model);
}

/* ---- Sessions ---------------------------------------------------------------------------------
 */

/* C0, DEL, or C1 in UTF-8. */
static bool is_control(const unsigned char *at)
{
    return *at < 0x20 || *at == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0);
}

attnd_status srv_name_check(const char *field, const char *name, attnd_err *err)
{
    size_t n = strlen(name);
    if (n >= SRV_NAME)
        return attnd_fail(err, ATTND_TOO_LARGE, "%s = %zu bytes: a name has at most %d", field, n,
                          SRV_NAME - 1);
    for (size_t i = 0; i < n; i++)
        if (is_control((const unsigned char *)name + i))
            return attnd_fail(err, ATTND_BAD_MESSAGE,
                              "%s = byte 0x%02x at %zu: a name has no control characters", field,
                              (unsigned char)name[i], i);
    return ATTND_OK;
}

/* A random number that names no session yet; 0 names none. */
static attnd_status draw_number(srv_engine *engine, uint64_t *number, attnd_err *err)
{
    srv_session *taken;
    do {
        if (getrandom(number, sizeof *number, 0) != sizeof *number)
            return attnd_fail(err, ATTND_NO_ROOM, "session: no random number: %s", strerror(errno));
        HASH_FIND(hh, engine->sessions, number, sizeof *number, taken);
    } while (!*number || taken);
    return ATTND_OK;
}

attnd_status srv_session_make(srv_engine *engine, const char *client, srv_session **out,
                              attnd_err *err)
{
    unsigned n = HASH_COUNT(engine->sessions);
    if (n >= (uint64_t)engine->config->session_max_sessions)
        return attnd_fail(err, ATTND_NO_ROOM, "session: %u of %u sessions are open", n, n);
    uint64_t number;
    TRY(draw_number(engine, &number, err));
    srv_session *session = calloc(1, sizeof *session);
    if (!session)
        return attnd_fail(err, ATTND_NO_ROOM, "session: no memory");
    attnd_status status = ker_stream_open(engine->device, &session->stream, err);
    if (status != ATTND_OK) {
        free(session);
        return status;
    }
    session->number = number;
    HASH_ADD(hh, engine->sessions, number, sizeof session->number, session);
    if (!session->hh.tbl) {
        ker_stream_close(session->stream);
        free(session);
        return attnd_fail(err, ATTND_NO_ROOM, "session: no memory");
    }
    session->opened_ns = srv_now_ns();
    snprintf(session->client, sizeof session->client, "%s", client);
    *out = session;
    return ATTND_OK;
}

/* Nothing is left that holds the session: from now on it lingers. */
static void linger_if_abandoned(srv_engine *engine, srv_session *session)
{
    if (session->n_leases || session->over_ns || (!session->was_leased && session->n_connections))
        return;
    session->over_ns = srv_now_ns() + (uint64_t)engine->config->session_linger * 1000000u;
    session->was_leased = false; /* whatever connection names it next holds it */
    session->n_connections = 0;
    if (!engine->lingers_ns || session->over_ns < engine->lingers_ns)
        engine->lingers_ns = session->over_ns;
    srv_log(SRV_INFO, "session lingers  session=%u", session->ordinal);
}

void srv_session_open(srv_engine *engine, srv_session *session, uint32_t connection)
{
    session->ordinal = ++engine->last_ordinal;
    srv_stats_add(SRV_COUNT_sessions_opened, 1);
    srv_stats_gauge(SRV_GAUGE_sessions, 1);
    srv_log(SRV_INFO, "session open  session=%u client=\"%s\"", session->ordinal, session->client);
    srv_session_enter(session); /* the request that opens it */
    srv_session_connect(engine, session, connection, NULL);
    linger_if_abandoned(engine, session); /* its client may be gone already */
}

attnd_status srv_session_get(srv_engine *engine, uint64_t number, srv_session **out, attnd_err *err)
{
    HASH_FIND(hh, engine->sessions, &number, sizeof number, *out);
    if (!*out)
        return attnd_fail(err, ATTND_UNREGISTERED,
                          "session: there is no such session, or it has ended");
    return ATTND_OK;
}

/* The session has ended and nothing of it is in flight. */
static void session_destroy(srv_engine *engine, srv_session *session)
{
    srv_plan *plan, *next_plan;
    HASH_ITER(hh, session->plans, plan, next_plan)
    {
        srv_plan_drop(engine, plan);
    }
    srv_model *model, *next_model;
    HASH_ITER(hh, session->models, model, next_model)
    {
        model_destroy(engine, model);
    }
    srv_buffer *buffer, *next_buffer;
    HASH_ITER(hh, session->buffers, buffer, next_buffer)
    {
        buffer_destroy(engine, buffer);
    }
    ker_stream_close(session->stream);
    srv_history_fini(&session->history);
    free(session);
}

void srv_session_end(srv_engine *engine, srv_session *session, const char *why)
{
    srv_log(SRV_INFO, "session end  session=%u why=\"%s\" in_flight=%u", session->ordinal, why,
            session->n_in_flight);
    srv_stats_add(SRV_COUNT_sessions_ended, 1);
    srv_stats_gauge(SRV_GAUGE_sessions, -1);
    HASH_DEL(engine->sessions, session);
    session->is_ended = true;
    engine->has_news = true;
    if (!session->n_in_flight)
        session_destroy(engine, session);
}

void srv_session_enter(srv_session *session)
{
    session->n_in_flight++;
}

void srv_session_leave(srv_engine *engine, srv_session *session)
{
    session->n_in_flight--;
    if (session->is_ended && !session->n_in_flight)
        session_destroy(engine, session);
}

attnd_status srv_session_connect(srv_engine *engine, srv_session *session, uint32_t connection,
                                 attnd_err *err)
{
    for (uint32_t i = 0; i < session->n_connections; i++)
        if (session->connections[i] == connection)
            return ATTND_OK;
    if (session->n_connections == SRV_MAX_CONNECTIONS)
        return attnd_fail(err, ATTND_NO_ROOM,
                          "session: it uses %d data connections already, the most it may",
                          SRV_MAX_CONNECTIONS);
    /* A connection that is gone by now was reported before we hung on it, or will be after this. */
    session->connections[session->n_connections] = connection;
    if (engine->transport.is_connected(engine->transport.self, connection)) {
        session->n_connections++;
        session->over_ns = 0;
    }
    return ATTND_OK;
}

void srv_sessions_disconnect(srv_engine *engine, uint32_t connection)
{
    srv_session *session, *next;
    HASH_ITER(hh, engine->sessions, session, next)
    {
        for (uint32_t i = 0; i < session->n_connections; i++)
            if (session->connections[i] == connection)
                session->connections[i--] = session->connections[--session->n_connections];
        linger_if_abandoned(engine, session);
    }
}

void srv_session_lease(srv_session *session)
{
    session->n_leases++;
    session->was_leased = true;
    session->over_ns = 0;
}

void srv_session_release(srv_engine *engine, srv_session *session)
{
    session->n_leases--;
    linger_if_abandoned(engine, session);
}

void srv_sessions_expire(srv_engine *engine)
{
    uint64_t now = srv_now_ns();
    srv_session *session, *next;
    engine->lingers_ns = 0;
    HASH_ITER(hh, engine->sessions, session, next)
    {
        if (!session->over_ns)
            continue;
        if (session->over_ns <= now)
            srv_session_end(engine, session, "nobody held it any more");
        else if (!engine->lingers_ns || session->over_ns < engine->lingers_ns)
            engine->lingers_ns = session->over_ns;
    }
}
