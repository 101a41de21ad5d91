/* receive.c: the data socket: bytes in and out. */
#include "daemon/receive.h"

#include <inttypes.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <uthash.h>

#include "daemon/log.h"
#include "daemon/road.h"
#include "daemon/session.h"
#include "daemon/stale.h"

/* A decoded request and its plan may take this many times the largest message. */
enum { ARENA_TIMES = 32, PATH_BYTES = 256 };

/* A connection that is open. Made and removed by nng's callbacks. */
typedef struct connection {
    srv_event closed; /* tells the engine thread, which frees it */
    uint32_t id;
    UT_hash_handle hh;
} connection;

typedef enum slot_state { SLOT_RECEIVING, SLOT_WITH_ENGINE, SLOT_SENDING } slot_state;

typedef struct slot {
    srv_receive *receive;
    nng_ctx context;
    nng_aio *aio;
    nng_msg *message; /* the request; its bytes are read until the reply is sent */
    slot_state state;
    srv_request request;
} slot;

struct srv_receive {
    srv_engine *engine;
    nng_socket socket;
    nng_listener listener;
    char path[PATH_BYTES];
    int64_t n_slots;
    slot *slots;
    _Atomic int n_sending;
    _Atomic bool is_closing;
    pthread_mutex_t lock; /* guards connections; nng holds its socket's lock when it is taken */
    connection *connections;
};

/* ---- Connections ------------------------------------------------------------------------------
 */

bool srv_receive_is_connected(void *self, uint32_t id)
{
    srv_receive *receive = self;
    connection *found;
    pthread_mutex_lock(&receive->lock);
    HASH_FIND(hh, receive->connections, &id, sizeof id, found);
    pthread_mutex_unlock(&receive->lock);
    return found;
}

/* On the engine thread. */
static void connection_closed(srv_engine *engine, srv_event *event)
{
    connection *c = (connection *)((char *)event - offsetof(connection, closed));
    srv_sessions_disconnect(engine, c->id);
    free(c);
}

/* nng holds its socket's lock here: no call of it but on the pipe itself. */
static void pipe_event(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    srv_receive *receive = arg;
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    connection *c;
    if (event == NNG_PIPE_EV_ADD_PRE) {
        uint64_t uid = UINT64_MAX;
        c = calloc(1, sizeof *c);
        if (!c || nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &uid) ||
            (uid != geteuid() && uid != 0)) {
            srv_stats_add(SRV_COUNT_connections_refused, 1);
            free(c);
            nng_pipe_close(pipe);
            return;
        }
        c->id = id;
        pthread_mutex_lock(&receive->lock);
        HASH_ADD(hh, receive->connections, id, sizeof c->id, c);
        pthread_mutex_unlock(&receive->lock);
        srv_stats_add(SRV_COUNT_connections, 1);
    } else if (event == NNG_PIPE_EV_REM_POST) {
        pthread_mutex_lock(&receive->lock);
        HASH_FIND(hh, receive->connections, &id, sizeof id, c);
        if (c)
            HASH_DEL(receive->connections, c);
        pthread_mutex_unlock(&receive->lock);
        if (!c)
            return;
        srv_stats_add(SRV_COUNT_disconnects, 1);
        if (receive->is_closing) {
            free(c);
            return;
        }
        c->closed.run = connection_closed;
        srv_queue_post(&receive->engine->queue, &c->closed);
    }
}

/* ---- Requests and replies ---------------------------------------------------------------------
 */

static void receive_next(slot *s)
{
    s->state = SLOT_RECEIVING;
    nng_aio_set_timeout(s->aio, NNG_DURATION_INFINITE);
    nng_ctx_recv(s->context, s->aio);
}

/* The request is over, with or without a reply. */
static void finish(slot *s)
{
    nng_msg_free(s->message);
    s->message = NULL;
    msg_arena_reset(&s->request.arena);
    receive_next(s);
}

/* From the engine thread: encodes the reply and hands it to nng. */
static void send_reply(srv_request *request)
{
    slot *s = (slot *)((char *)request - offsetof(slot, request));
    srv_receive *receive = s->receive;
    nng_msg *message = NULL;
    attnd_err err;
    size_t bytes = msg_encoded_bytes(&request->reply);
    if (nng_msg_alloc(&message, bytes) ||
        msg_encode(&request->arena, &request->reply, nng_msg_body(message), bytes, &err)) {
        /* A client must not wait for what never comes. */
        srv_log(SRV_ERROR, "reply lost  request=%" PRIu64 " bytes=%zu", request->msg.id, bytes);
        nng_msg_free(message);
        nng_pipe_close(nng_msg_get_pipe(s->message));
        finish(s);
        return;
    }
    srv_stats_add(SRV_COUNT_sent_bytes, bytes);
    atomic_fetch_add(&receive->n_sending, 1);
    s->state = SLOT_SENDING;
    nng_aio_set_timeout(s->aio, (nng_duration)receive->engine->config->data_send_timeout);
    nng_aio_set_msg(s->aio, message);
    nng_ctx_send(s->context, s->aio);
}

static void sent(slot *s, int result)
{
    if (result) {
        nng_msg_free(nng_aio_get_msg(s->aio));
        nng_aio_set_msg(s->aio, NULL);
    }
    if (result == NNG_ETIMEDOUT) {
        srv_stats_add(SRV_COUNT_send_timeouts, 1);
        nng_pipe_close(nng_msg_get_pipe(s->message));
    }
    atomic_fetch_sub(&s->receive->n_sending, 1);
    if (!s->receive->is_closing)
        finish(s);
}

static void received(slot *s)
{
    srv_receive *receive = s->receive;
    s->message = nng_aio_get_msg(s->aio);
    nng_aio_set_msg(s->aio, NULL);
    s->state = SLOT_WITH_ENGINE;
    s->request.bytes = nng_msg_body(s->message);
    s->request.n_bytes = nng_msg_len(s->message);
    s->request.connection = (uint32_t)nng_pipe_id(nng_msg_get_pipe(s->message));
    s->request.received_ns = srv_now_ns();
    srv_road_arrive(&receive->engine->queue, &s->request);
}

/* On a transport thread: what the slot asked for has happened. */
static void slot_event(void *arg)
{
    slot *s = arg;
    int result = nng_aio_result(s->aio);
    if (s->state == SLOT_SENDING)
        sent(s, result);
    else if (!result)
        received(s);
    else if (!s->receive->is_closing && result != NNG_ECLOSED)
        receive_next(s);
}

/* ---- Opening and closing ----------------------------------------------------------------------
 */

static attnd_status open_slot(srv_receive *receive, slot *s, attnd_err *err)
{
    size_t bytes = (size_t)receive->engine->config->data_max_message * ARENA_TIMES;
    s->receive = receive;
    s->request.send = send_reply;
    TRY(msg_arena_init(&s->request.arena, bytes, err));
    int failed = nng_aio_alloc(&s->aio, slot_event, s);
    if (!failed)
        failed = nng_ctx_open(&s->context, receive->socket);
    if (failed)
        return attnd_fail(err, ATTND_NO_ROOM, "data.contexts = %lld: %s",
                          (long long)receive->n_slots, nng_strerror(failed));
    return ATTND_OK;
}

attnd_status srv_receive_open(srv_receive **out, srv_engine *engine, attnd_err *err)
{
    *out = NULL;
    srv_receive *receive = calloc(1, sizeof *receive);
    slot *slots = calloc((size_t)engine->config->data_contexts, sizeof *slots);
    if (!receive || !slots) {
        free(receive);
        free(slots);
        return attnd_fail(err, ATTND_NO_ROOM, "data.contexts: no memory");
    }
    receive->engine = engine;
    receive->slots = slots;
    pthread_mutex_init(&receive->lock, NULL);
    int failed = nng_rep0_open(&receive->socket);
    attnd_status status = ATTND_OK;
    if (failed)
        status = attnd_fail(err, ATTND_BROKEN, "data socket: %s", nng_strerror(failed));
    if (!failed) {
        nng_pipe_notify(receive->socket, NNG_PIPE_EV_ADD_PRE, pipe_event, receive);
        nng_pipe_notify(receive->socket, NNG_PIPE_EV_REM_POST, pipe_event, receive);
    }
    while (status == ATTND_OK && receive->n_slots < engine->config->data_contexts)
        status = open_slot(receive, &slots[receive->n_slots++], err);
    if (status != ATTND_OK) {
        srv_receive_close(receive, 0);
        return status;
    }
    for (int64_t i = 0; i < receive->n_slots; i++)
        receive_next(&slots[i]);
    *out = receive;
    return ATTND_OK;
}

attnd_status srv_receive_listen(srv_receive *receive, const char *path, attnd_err *err)
{
    char url[PATH_BYTES + 8];
    snprintf(receive->path, sizeof receive->path, "%s", path);
    snprintf(url, sizeof url, "ipc://%s", path);
    TRY(srv_stale_remove(path, err));
    int failed = nng_listener_create(&receive->listener, receive->socket, url);
    if (!failed)
        failed = nng_listener_set_int(receive->listener, NNG_OPT_IPC_PERMISSIONS, 0600);
    if (!failed)
        failed = nng_listener_set_size(receive->listener, NNG_OPT_RECVMAXSZ,
                                       (size_t)receive->engine->config->data_max_message);
    if (!failed)
        failed = nng_listener_start(receive->listener, 0);
    if (failed)
        return attnd_fail(err, ATTND_UNREACHABLE, "%s: %s", path, nng_strerror(failed));
    return ATTND_OK;
}

attnd_status srv_receive_relisten(srv_receive *receive, attnd_err *err)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s", receive->path);
    nng_listener_close(receive->listener);
    srv_stats_add(SRV_COUNT_listener_restarts, 1);
    return srv_receive_listen(receive, path, err);
}

void srv_receive_close(srv_receive *receive, int timeout_ms)
{
    if (!receive)
        return;
    receive->is_closing = true;
    nng_listener_close(receive->listener);
    while (atomic_load(&receive->n_sending) && timeout_ms-- > 0)
        usleep(1000);
    for (int64_t i = 0; i < receive->n_slots; i++) {
        if (receive->slots[i].aio)
            nng_aio_stop(receive->slots[i].aio);
        nng_ctx_close(receive->slots[i].context);
    }
    nng_close(receive->socket);
    for (int64_t i = 0; i < receive->n_slots; i++) {
        slot *s = &receive->slots[i];
        if (s->aio)
            nng_aio_free(s->aio);
        if (s->message)
            nng_msg_free(s->message);
        msg_arena_fini(&s->request.arena);
    }
    connection *c, *next;
    HASH_ITER(hh, receive->connections, c, next)
    {
        HASH_DEL(receive->connections, c);
        free(c);
    }
    nng_fini();
    pthread_mutex_destroy(&receive->lock);
    free(receive->slots);
    free(receive);
}
