/* receive.c: the data socket: bytes in and out.
 *
 * It speaks the wire of nng's REP over ipc, so that every client of that family is served, but not
 * through nng: the listener of nng 1.5.2 stops for good when a peer closes ungreeted, and its
 * reaper can hang when connections are cut.
 *
 *     transport thread: accept, greet, frames ──▶ slot ──▶ decode ──▶ engine's queue
 *     engine thread:    reply ──▶ send at once, or what is left of it ──▶ transport thread
 */
#include "daemon/receive.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#define HASH_NONFATAL_OOM 1 /* then an element's hh.tbl is NULL */
#include <uthash.h>
#include <uv.h>

#include "daemon/log.h"
#include "daemon/road.h"
#include "daemon/session.h"
#include "daemon/socket.h"

enum {
    MAX_CONNECTIONS = 4096,
    MAX_SURPLUS = 64, /* more, that are only told so */
    SHARE = 2,        /* of the descriptors that the process may have, for connections */
    HELLO_BYTES = 8,
    HEAD_BYTES = 9,        /* 1, and the payload's length in 64 bits, big-endian */
    MAX_HOPS = 8,          /* 32-bit words before the payload; the last one has its top bit set */
    KEEP_BYTES = 64 << 10, /* of a buffer between messages */
    UNSENT_BYTES = 256 << 10, /* of replies; a connection with more is not read */
    FRAMES_A_TURN = 16,
    TICK_MS = 1000,
    HELLO_TIMEOUT_MS = 10000,
};

static const uint8_t HELLO_REQ[6] = {0, 'S', 'P', 0, 0, 0x30};
static const uint8_t HELLO_REP[HELLO_BYTES] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

/* Bytes that grow. */
typedef struct bytes {
    uint8_t *at;
    size_t n, room;
} bytes;

/* A client. Owner: the transport thread, but for what says otherwise. */
typedef struct connection {
    srv_receive *receive;
    srv_event closed; /* tells the engine thread */
    uint32_t id;
    uv_poll_t poll;
    uint64_t opened_ms;
    bool is_greeted;
    bool has_asked;  /* a whole request of it was taken */
    bool is_surplus; /* one too many: its requests are refused, then it is hung up on */
    bool is_starved; /* has a whole message and no slot for it */
    bytes in;        /* what has come of a hello or a frame */
    struct connection *next_starved;
    UT_hash_handle hh; /* receive->connections, by id */

    /* Guarded by receive->lock. */
    int socket;        /* -1: closed */
    int refs;          /* the handle, the event, each slot */
    bytes unsent;      /* replies that did not go at once */
    uint64_t stuck_ms; /* since when nothing of them has gone; 0: nothing is unsent */
    bool wants_turn;   /* is on receive->turns */
    struct connection *next_turn;
} connection;

typedef struct slot {
    connection *client; /* NULL: free */
    bytes message;      /* the frame: its head, hops, payload */
    size_t n_hops;      /* bytes of them */
    struct slot *next_free;
    srv_request request;
} slot;

struct srv_receive {
    srv_engine *engine;
    uv_loop_t loop;
    uv_async_t async; /* turns are wanted, slots are free, or the end */
    uv_timer_t tick;
    uv_poll_t listener;
    int listening; /* -1: not */
    int spare;     /* srv_socket_accept's */
    char path[108];
    pthread_t thread;
    bool has_thread;
    int64_t n_slots;
    slot *slots;
    uint32_t last_id;
    uint32_t room;      /* for connections that are not surplus */
    uint32_t n_surplus; /* of connections */

    connection *starved, **starved_end; /* transport thread */

    pthread_mutex_t
        lock; /* guards what follows, and what connections say; no other lock under it */
    connection *connections;
    connection *turns; /* whose unsent replies the transport thread shall send */
    slot *free_slots;
    int64_t n_busy;  /* slots, and connections with unsent replies */
    int64_t n_alive; /* connections not freed */
    bool is_deaf, ends;
    bool listens; /* a socket waits in .listening to be polled */
};

static uint64_t now_ms(void)
{
    return srv_now_ns() / 1000000u;
}

/* Room for n bytes in all; false without memory. */
static bool make_room(bytes *b, size_t n)
{
    if (n <= b->room)
        return true;
    size_t room = b->room ? b->room : 512;
    while (room < n)
        room *= 2;
    uint8_t *at = realloc(b->at, room);
    if (!at)
        return false;
    b->at = at;
    b->room = room;
    return true;
}

static void empty(bytes *b)
{
    b->n = 0;
    if (b->room <= KEEP_BYTES)
        return;
    free(b->at);
    *b = (bytes){0};
}

/* ---- Connections
 * -----------------------------------------------------------------------------------
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

/* The lock is held. */
static void unref(connection *c)
{
    if (--c->refs)
        return;
    c->receive->n_alive--;
    free(c->in.at);
    free(c->unsent.at);
    free(c);
}

/* On the engine thread. */
static void on_closed(srv_engine *engine, srv_event *event)
{
    connection *c = (connection *)((char *)event - offsetof(connection, closed));
    srv_receive *receive = c->receive;
    srv_sessions_disconnect(engine, c->id);
    pthread_mutex_lock(&receive->lock);
    unref(c);
    pthread_mutex_unlock(&receive->lock);
}

static void on_poll_closed(uv_handle_t *handle)
{
    connection *c = handle->data;
    srv_receive *receive = c->receive;
    pthread_mutex_lock(&receive->lock);
    unref(c);
    pthread_mutex_unlock(&receive->lock);
}

static void forget_starved(connection *c)
{
    srv_receive *receive = c->receive;
    connection **at = &receive->starved;
    while (*at && *at != c)
        at = &(*at)->next_starved;
    if (*at)
        *at = c->next_starved;
    receive->starved_end = &receive->starved;
    while (*receive->starved_end)
        receive->starved_end = &(*receive->starved_end)->next_starved;
    c->is_starved = false;
}

static void hang_up(connection *c)
{
    srv_receive *receive = c->receive;
    if (uv_is_closing((uv_handle_t *)&c->poll))
        return;
    if (c->is_starved)
        forget_starved(c);
    receive->n_surplus -= c->is_surplus;
    pthread_mutex_lock(&receive->lock);
    HASH_DEL(receive->connections, c);
    if (c->unsent.n)
        receive->n_busy--;
    c->unsent.n = 0;
    c->refs++; /* the event */
    uv_poll_stop(&c->poll);
    close(c->socket);
    c->socket = -1;
    pthread_mutex_unlock(&receive->lock);
    uv_close((uv_handle_t *)&c->poll, on_poll_closed);
    srv_stats_add(SRV_COUNT_disconnects, 1);
    c->closed.run = on_closed;
    srv_queue_post(&receive->engine->queue, &c->closed);
}

static void on_io(uv_poll_t *poll, int status, int events);

/* Reads while its replies go and there is a slot for what it has sent; writes while there is
 * something. */
static void watch(connection *c)
{
    srv_receive *receive = c->receive;
    pthread_mutex_lock(&receive->lock);
    bool reads = !c->is_starved && !receive->is_deaf && c->unsent.n <= UNSENT_BYTES;
    int events = UV_DISCONNECT | (reads ? UV_READABLE : 0) | (c->unsent.n ? UV_WRITABLE : 0);
    pthread_mutex_unlock(&receive->lock);
    if (!uv_is_closing((uv_handle_t *)&c->poll))
        uv_poll_start(&c->poll, events, on_io);
}

/* ---- Replies
 * ---------------------------------------------------------------------------------------
 */

/* Sends what is unsent as far as it goes; false when the peer is gone. The lock is held. */
static bool send_unsent(connection *c)
{
    while (c->unsent.n) {
        ssize_t n = send(c->socket, c->unsent.at, c->unsent.n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        memmove(c->unsent.at, c->unsent.at + n, c->unsent.n - (size_t)n);
        c->unsent.n -= (size_t)n;
        c->stuck_ms = now_ms();
    }
    empty(&c->unsent);
    c->stuck_ms = 0;
    c->receive->n_busy--;
    return true;
}

/* The lock is held. */
static void ask_for_turn(connection *c)
{
    if (c->wants_turn)
        return;
    c->wants_turn = true;
    c->refs++;
    c->next_turn = c->receive->turns;
    c->receive->turns = c;
}

/* Frame, hops and payload: at once if nothing is before it, the rest later. The lock is held. */
static void put_reply(slot *s, const srv_request *request)
{
    connection *c = s->client;
    uint8_t head[HEAD_BYTES + 4 * MAX_HOPS] = {1};
    uint64_t n = s->n_hops + request->n_sent;
    for (int i = 0; i < 8; i++)
        head[1 + i] = (uint8_t)(n >> (56 - 8 * i));
    memcpy(head + HEAD_BYTES, s->message.at + HEAD_BYTES, s->n_hops);
    size_t n_head = HEAD_BYTES + s->n_hops, gone = 0, all = n_head + request->n_sent;
    if (!c->unsent.n) {
        struct iovec parts[2] = {{head, n_head}, {(void *)request->sent, request->n_sent}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t sent = sendmsg(c->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        gone = sent > 0 ? (size_t)sent : 0;
        if (gone == all)
            return;
        c->receive->n_busy++;
        c->stuck_ms = now_ms();
    }
    if (!make_room(&c->unsent, c->unsent.n + all - gone)) {
        shutdown(c->socket, SHUT_RDWR); /* a client must not wait for what never comes */
        srv_log(SRV_ERROR, "reply lost  request=%" PRIu64 " bytes=%zu", request->msg.id,
                request->n_sent);
        if (!c->unsent.n)
            c->receive->n_busy--;
        return;
    }
    for (size_t i = gone; i < n_head; i++)
        c->unsent.at[c->unsent.n++] = head[i];
    size_t from = gone > n_head ? gone - n_head : 0;
    memcpy(c->unsent.at + c->unsent.n, request->sent + from, request->n_sent - from);
    c->unsent.n += request->n_sent - from;
    ask_for_turn(c);
}

/* From the engine thread. The request's slot is free afterwards. */
static void send_reply(srv_request *request)
{
    slot *s = (slot *)((char *)request - offsetof(slot, request));
    connection *c = s->client;
    srv_receive *receive = c->receive;
    pthread_mutex_lock(&receive->lock);
    if (c->socket >= 0 && request->n_sent) {
        srv_stats_add(SRV_COUNT_sent_bytes, request->n_sent);
        put_reply(s, request);
        if (c->is_surplus)
            shutdown(c->socket, SHUT_RDWR); /* what is sent already is still read */
    } else if (c->socket >= 0) {
        shutdown(c->socket, SHUT_RDWR);
    }
    msg_arena_reset(&request->arena);
    empty(&s->message);
    s->client = NULL;
    bool wakes = !receive->ends && (!receive->free_slots || receive->turns);
    s->next_free = receive->free_slots;
    receive->free_slots = s;
    receive->n_busy--;
    unref(c);
    pthread_mutex_unlock(&receive->lock);
    if (wakes)
        uv_async_send(&receive->async);
}

/* ---- Requests
 * --------------------------------------------------------------------------------------
 */

/* The message in c->in goes to the engine; false: there is no slot for it. */
static bool hand_over(connection *c, size_t n_hops)
{
    srv_receive *receive = c->receive;
    pthread_mutex_lock(&receive->lock);
    slot *s = receive->free_slots;
    if (s) {
        receive->free_slots = s->next_free;
        receive->n_busy++;
        c->refs++;
    }
    pthread_mutex_unlock(&receive->lock);
    if (!s)
        return false;
    if (c->is_surplus && HASH_COUNT(receive->connections) - receive->n_surplus < receive->room) {
        c->is_surplus = false;
        receive->n_surplus--;
    }
    bytes spare = s->message;
    s->message = c->in;
    c->in = spare;
    c->in.n = 0;
    s->client = c;
    s->n_hops = n_hops;
    s->request.bytes = s->message.at + HEAD_BYTES + n_hops;
    s->request.n_bytes = s->message.n - HEAD_BYTES - n_hops;
    s->request.connection = c->id;
    s->request.full_at = c->is_surplus ? receive->room : 0;
    c->has_asked = true;
    s->request.received_ns = srv_now_ns();
    srv_road_arrive(&receive->engine->queue, &s->request);
    return true;
}

/* Bytes of the words before the payload; 0: they do not end. */
static size_t count_hops(const uint8_t *payload, size_t n)
{
    for (size_t i = 0; i < MAX_HOPS && 4 * (i + 1) <= n; i++)
        if (payload[4 * i] & 0x80)
            return 4 * (i + 1);
    return 0;
}

/* How many bytes a whole hello or frame has, as far as is known; 0: it is none. */
static size_t frame_bytes(const connection *c)
{
    uint64_t n = 0;
    if (!c->is_greeted)
        return HELLO_BYTES;
    if (c->in.n < HEAD_BYTES)
        return HEAD_BYTES;
    for (int i = 0; i < 8; i++)
        n = n << 8 | c->in.at[1 + i];
    if (c->in.at[0] != 1 || n > (uint64_t)c->receive->engine->config->data_max_message)
        return 0;
    return HEAD_BYTES + (size_t)n;
}

/* A whole hello or frame has come; false: the peer is none of ours. */
static bool take_frame(connection *c)
{
    srv_receive *receive = c->receive;
    if (!c->is_greeted) {
        c->is_greeted = !memcmp(c->in.at, HELLO_REQ, sizeof HELLO_REQ);
        c->in.n = 0;
        return c->is_greeted;
    }
    size_t n_hops = count_hops(c->in.at + HEAD_BYTES, c->in.n - HEAD_BYTES);
    if (!n_hops)
        return false;
    if (hand_over(c, n_hops))
        return true;
    c->is_starved = true;
    c->next_starved = NULL;
    *receive->starved_end = c;
    receive->starved_end = &c->next_starved;
    return true;
}

/* Reads until nothing is there, some frames have come, or none can be taken; false: it is over. */
static bool read_frames(connection *c)
{
    for (int frames = 0; frames < FRAMES_A_TURN && !c->is_starved;) {
        size_t whole = frame_bytes(c);
        if (!whole)
            return false;
        if (c->in.n == whole && whole != HEAD_BYTES) {
            if (!take_frame(c))
                return false;
            frames++;
            continue;
        }
        if (c->in.n == whole) /* a frame of nothing */
            return false;
        /* Room as bytes come, not as they are promised. */
        size_t wants = whole - c->in.n < KEEP_BYTES ? whole - c->in.n : KEEP_BYTES;
        if (!make_room(&c->in, c->in.n + wants))
            return false;
        ssize_t n = recv(c->socket, c->in.at + c->in.n, wants, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0)
            return false;
        c->in.n += (size_t)n;
    }
    return true;
}

static void on_io(uv_poll_t *poll, int status, int events)
{
    connection *c = poll->data;
    bool goes_on = status >= 0;
    if (goes_on && events & UV_WRITABLE) {
        pthread_mutex_lock(&c->receive->lock);
        goes_on = !c->unsent.n || send_unsent(c);
        pthread_mutex_unlock(&c->receive->lock);
    }
    if (goes_on && events & UV_READABLE)
        goes_on = read_frames(c);
    else if (goes_on && events & UV_DISCONNECT)
        goes_on = false;
    if (goes_on)
        watch(c);
    else
        hang_up(c);
}

/* ---- The transport thread
 * --------------------------------------------------------------------------
 */

/* Hangs up on the first of those that have asked nothing; false: there is none. */
static bool displace(srv_receive *receive, bool is_surplus)
{
    connection *c, *next;
    HASH_ITER(hh, receive->connections, c, next)
    {
        if (c->is_surplus != is_surplus || c->has_asked || c->is_starved ||
            srv_socket_has_unread(c->socket))
            continue;
        srv_log(SRV_INFO, "connection makes room  open=%u", HASH_COUNT(receive->connections));
        srv_stats_add(SRV_COUNT_connections_displaced, 1);
        hang_up(c);
        return true;
    }
    return false;
}

/* False without memory. */
static bool file_under_id(srv_receive *receive, connection *c)
{
    pthread_mutex_lock(&receive->lock);
    c->id = ++receive->last_id;
    HASH_ADD(hh, receive->connections, id, sizeof c->id, c);
    receive->n_alive += c->hh.tbl != NULL;
    pthread_mutex_unlock(&receive->lock);
    return c->hh.tbl;
}

static void take_out(srv_receive *receive, connection *c)
{
    pthread_mutex_lock(&receive->lock);
    HASH_DEL(receive->connections, c);
    receive->n_alive--;
    pthread_mutex_unlock(&receive->lock);
}

/* Its id and its handle; false: there is no memory, or no descriptor to watch it with. */
static bool let_in(srv_receive *receive, connection *c, int fd)
{
    if (!file_under_id(receive, c))
        return false;
    if (!uv_poll_init(&receive->loop, &c->poll, fd))
        return true;
    take_out(receive, c);
    return false;
}

static void on_client(uv_poll_t *poll, int status, int events)
{
    srv_receive *receive = poll->data;
    int fd = srv_socket_accept(receive->listening, &receive->spare);
    if (fd < 0)
        return;
    connection *c = calloc(1, sizeof *c);
    bool is_surplus = HASH_COUNT(receive->connections) - receive->n_surplus >= receive->room &&
                      !displace(receive, false);
    bool is_shut_out = is_surplus && receive->n_surplus >= MAX_SURPLUS && !displace(receive, true);
    if (!c || is_shut_out || !let_in(receive, c, fd)) {
        srv_log(SRV_WARN, "connection refused  open=%u", HASH_COUNT(receive->connections));
        srv_stats_add(SRV_COUNT_connections_refused, 1);
        free(c);
        close(fd);
        return;
    }
    srv_stats_add(SRV_COUNT_connections, 1);
    c->receive = receive;
    c->poll.data = c;
    c->socket = fd;
    c->refs = 1;
    c->opened_ms = now_ms();
    receive->n_surplus += c->is_surplus = is_surplus;
    /* It fits into a fresh socket's buffer; a peer that is gone already is noticed by its poll. */
    if (send(fd, HELLO_REP, sizeof HELLO_REP, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof HELLO_REP)
        hang_up(c);
    else
        watch(c);
}

/* The next connection whose replies wait to be sent, with the reference of its turn; NULL: none. */
static connection *take_turn(srv_receive *receive)
{
    pthread_mutex_lock(&receive->lock);
    connection *c = receive->turns;
    if (c) {
        receive->turns = c->next_turn;
        c->wants_turn = false;
    }
    pthread_mutex_unlock(&receive->lock);
    return c;
}

static void serve_turns(srv_receive *receive)
{
    for (connection *c; (c = take_turn(receive));) {
        watch(c);
        pthread_mutex_lock(&receive->lock);
        unref(c);
        pthread_mutex_unlock(&receive->lock);
    }
}

/* Those who came first are served first. */
static void serve_starved(srv_receive *receive)
{
    while (receive->starved) {
        connection *c = receive->starved;
        size_t n_hops = count_hops(c->in.at + HEAD_BYTES, c->in.n - HEAD_BYTES);
        if (!hand_over(c, n_hops))
            return;
        forget_starved(c);
        watch(c);
    }
}

static void close_listener(srv_receive *receive)
{
    if (receive->listening < 0)
        return;
    uv_close((uv_handle_t *)&receive->listener, NULL);
    close(receive->listening);
    if (receive->spare >= 0)
        close(receive->spare);
    receive->listening = receive->spare = -1;
    unlink(receive->path);
}

static void on_async(uv_async_t *async)
{
    srv_receive *receive = async->data;
    pthread_mutex_lock(&receive->lock);
    bool listens = receive->listens, is_deaf = receive->is_deaf, ends = receive->ends;
    receive->listens = false;
    pthread_mutex_unlock(&receive->lock);
    if (listens && !uv_poll_init(&receive->loop, &receive->listener, receive->listening)) {
        receive->listener.data = receive;
        uv_poll_start(&receive->listener, UV_READABLE, on_client);
    }
    serve_turns(receive);
    serve_starved(receive);
    connection *c, *next;
    if (is_deaf) {
        close_listener(receive);
        HASH_ITER(hh, receive->connections, c, next)
        {
            watch(c);
        }
    }
    if (!ends)
        return;
    HASH_ITER(hh, receive->connections, c, next)
    {
        hang_up(c);
    }
    uv_close((uv_handle_t *)&receive->async, NULL);
    uv_close((uv_handle_t *)&receive->tick, NULL);
}

/* Once a second: who has not greeted, and who does not read. */
static void on_tick(uv_timer_t *timer)
{
    srv_receive *receive = timer->data;
    uint64_t now = now_ms(), patience = (uint64_t)receive->engine->config->data_send_timeout;
    connection *c, *next;
    HASH_ITER(hh, receive->connections, c, next)
    {
        pthread_mutex_lock(&receive->lock);
        bool is_stuck = c->stuck_ms && now - c->stuck_ms > patience;
        pthread_mutex_unlock(&receive->lock);
        if (is_stuck)
            srv_stats_add(SRV_COUNT_send_timeouts, 1);
        if (is_stuck || (!c->is_greeted && now - c->opened_ms > HELLO_TIMEOUT_MS))
            hang_up(c);
    }
}

static void *run(void *arg)
{
    srv_receive *receive = arg;
    pthread_setname_np(pthread_self(), "transport");
    uv_run(&receive->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* ---- Opening and closing
 * ---------------------------------------------------------------------------
 */

attnd_status srv_receive_open(srv_receive **out, srv_engine *engine, attnd_err *err)
{
    *out = NULL;
    srv_receive *receive = calloc(1, sizeof *receive);
    slot *slots = calloc((size_t)engine->config->data_contexts, sizeof *slots);
    if (!receive || !slots || uv_loop_init(&receive->loop)) {
        free(receive);
        free(slots);
        return attnd_fail(err, ATTND_NO_ROOM, "data.contexts: no memory");
    }
    receive->engine = engine;
    receive->slots = slots;
    receive->listening = receive->spare = -1;
    receive->room = (uint32_t)srv_socket_room(MAX_CONNECTIONS, SHARE);
    receive->starved_end = &receive->starved;
    pthread_mutex_init(&receive->lock, NULL);
    uv_async_init(&receive->loop, &receive->async, on_async);
    uv_timer_init(&receive->loop, &receive->tick);
    receive->async.data = receive->tick.data = receive;
    uv_timer_start(&receive->tick, on_tick, TICK_MS, TICK_MS);
    attnd_status status = ATTND_OK;
    while (status == ATTND_OK && receive->n_slots < engine->config->data_contexts) {
        slot *s = &slots[receive->n_slots];
        status = msg_arena_init(&s->request.arena, engine->arena_bytes, err);
        s->request.send = send_reply;
        s->next_free = receive->free_slots;
        receive->free_slots = s;
        receive->n_slots++;
    }
    if (status == ATTND_OK && pthread_create(&receive->thread, NULL, run, receive))
        status = attnd_fail(err, ATTND_NO_ROOM, "data socket: no thread");
    else if (status == ATTND_OK)
        receive->has_thread = true;
    if (status != ATTND_OK) {
        srv_receive_close(receive, 0);
        return status;
    }
    *out = receive;
    return ATTND_OK;
}

attnd_status srv_receive_listen(srv_receive *receive, const char *path, attnd_err *err)
{
    int fd;
    TRY(srv_socket_listen(&fd, SOCK_STREAM, path, err));
    strcpy(receive->path, path);
    pthread_mutex_lock(&receive->lock);
    receive->listening = fd;
    receive->listens = true;
    pthread_mutex_unlock(&receive->lock);
    uv_async_send(&receive->async);
    return ATTND_OK;
}

/* Waits until a count that the lock guards is 0; false: not within timeout_ms. */
static bool wait_for_none(srv_receive *receive, const int64_t *count, int timeout_ms)
{
    for (;; usleep(1000)) {
        pthread_mutex_lock(&receive->lock);
        bool is_none = *count == 0;
        pthread_mutex_unlock(&receive->lock);
        if (is_none || timeout_ms-- <= 0)
            return is_none;
    }
}

static void tell(srv_receive *receive, bool ends)
{
    pthread_mutex_lock(&receive->lock);
    receive->is_deaf = true;
    receive->ends = ends;
    pthread_mutex_unlock(&receive->lock);
    uv_async_send(&receive->async);
}

void srv_receive_close(srv_receive *receive, int timeout_ms)
{
    if (!receive)
        return;
    if (receive->has_thread)
        tell(receive, false);
    wait_for_none(receive, &receive->n_busy, timeout_ms);
    tell(receive, true);
    if (receive->has_thread)
        pthread_join(receive->thread, NULL);
    else
        uv_run(&receive->loop, UV_RUN_DEFAULT);
    uv_loop_close(&receive->loop);
    /* The engine thread still reads what it has not answered or heard the end of. */
    if (!wait_for_none(receive, &receive->n_alive, timeout_ms))
        return;
    pthread_mutex_destroy(&receive->lock);
    for (int64_t i = 0; i < receive->n_slots; i++) {
        free(receive->slots[i].message.at);
        msg_arena_fini(&receive->slots[i].request.arena);
    }
    free(receive->slots);
    free(receive);
}
