/* client.c: requests and replies over nng. Each request in flight has a REQ context of its own. */
#include "proto/client/client.h"

#include <errno.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REPLY = 16 << 20 }; /* bytes; attnd's are far smaller */

struct attnd_pending {
    cli_wire *wire;
    attnd_client *client;
    nng_ctx ctx;
    nng_aio *aio;
    uint64_t id;
    uint32_t op;
    int64_t deadline_ms;
    bool may_repeat;
    uint8_t *bytes; /* [n_bytes] of the request */
    size_t n_bytes, n_room;
    attnd_pending *next;      /* wire->all */
    attnd_pending *next_free; /* wire->unused */
    /* Under lock: */
    bool is_in_flight; /* sent, and not received yet */
    bool is_cut;       /* it was, and a repeat could not be sent */
    bool is_sending;   /* it is being repeated, and aio is that thread's */
    bool is_repeated;  /* over a new connection: once */
    bool is_lost;      /* no repeat could be sent in time */
    unsigned n_tries;  /* of repeating it and what this struct was before */
};

struct cli_wire {
    nng_socket socket;
    char *path;
    atomic_int n_pipes;
    atomic_uint n_breaks; /* connections that ended */
    pthread_mutex_t lock; /* guards what follows; no other lock is taken under it */
    pthread_cond_t changed;
    attnd_pending *all, *unused;
    unsigned n_breaks_seen; /* what was cut off by these is repeated */
    bool is_given_up; /* no connection came for CLI_RECONNECT_MS: others that wait wait no more */
};

int64_t cli_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void cli_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool cli_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ms)
{
    struct timespec until = {deadline_ms / 1000, deadline_ms % 1000 * 1000000};
    return pthread_cond_timedwait(cond, lock, &until) == 0;
}

static nng_duration left_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms - cli_now_ms();
    return left < 1 ? 1 : left > INT32_MAX ? INT32_MAX : (nng_duration)left;
}

/* ---- The connection ---- */

typedef struct dialing {
    nng_dialer dialer;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t over;
    bool is_over;
    int error; /* of nng */
} dialing;

static void *dial(void *arg)
{
    dialing *d = arg;
    int error = nng_dialer_start(d->dialer, 0);
    pthread_mutex_lock(&d->lock);
    d->error = error;
    d->is_over = true;
    pthread_cond_signal(&d->over);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* nng's own wait for a peer's greeting has no limit that could be set, so a thread of its own
 * waits, and closing the socket ends that. */
static attnd_status dial_until(cli_wire *wire, nng_dialer dialer, int64_t deadline_ms,
                               attnd_err *err)
{
    dialing d = {.dialer = dialer, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread;
    cli_cond_init(&d.over);
    if (pthread_create(&thread, NULL, dial, &d) != 0) {
        pthread_cond_destroy(&d.over);
        return attnd_fail(err, ATTND_NO_ROOM, "data = %s: no thread to connect with", wire->path);
    }
    pthread_mutex_lock(&d.lock);
    bool in_time = true;
    while (!d.is_over && in_time)
        in_time = cli_cond_wait(&d.over, &d.lock, deadline_ms);
    bool is_late = !d.is_over;
    pthread_mutex_unlock(&d.lock);
    if (is_late)
        nng_close(wire->socket);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&d.over);
    if (is_late)
        return attnd_fail(err, ATTND_TIMED_OUT, "data = %s: nobody greets there", wire->path);
    if (d.error)
        return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: %s; is attnd running?", wire->path,
                          nng_strerror(d.error));
    return ATTND_OK;
}

static void count_pipe(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    cli_wire *wire = arg;
    if (event == NNG_PIPE_EV_REM_POST)
        atomic_fetch_add(&wire->n_breaks, 1);
    atomic_fetch_add(&wire->n_pipes, event == NNG_PIPE_EV_ADD_POST ? 1 : -1);
}

static int open_socket(cli_wire *wire, nng_dialer *dialer)
{
    char url[256];
    snprintf(url, sizeof url, "ipc://%s", wire->path);
    int error = nng_req0_open(&wire->socket);
    if (error)
        return error;
    /* By default nng sends a request again by itself, after a minute or over a new connection. */
    error = nng_socket_set_ms(wire->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (!error)
        error = nng_pipe_notify(wire->socket, NNG_PIPE_EV_ADD_POST, count_pipe, wire);
    if (!error)
        error = nng_pipe_notify(wire->socket, NNG_PIPE_EV_REM_POST, count_pipe, wire);
    if (!error)
        error = nng_dialer_create(dialer, wire->socket, url);
    if (!error)
        error = nng_dialer_set_size(*dialer, NNG_OPT_RECVMAXSZ, MAX_REPLY);
    if (!error)
        error = nng_dialer_set_ms(*dialer, NNG_OPT_RECONNMINT, 10);
    if (!error)
        error = nng_dialer_set_ms(*dialer, NNG_OPT_RECONNMAXT, 200);
    return error;
}

attnd_status cli_wire_open(cli_wire **out, const char *path, int64_t deadline_ms, attnd_err *err)
{
    *out = NULL;
    if (access(path, F_OK) != 0) /* nng calls this refused */
        return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: %s; is attnd running?", path,
                          strerror(errno));
    cli_wire *wire = calloc(1, sizeof *wire);
    if (!wire || !(wire->path = strdup(path))) {
        free(wire);
        return attnd_fail(err, ATTND_NO_ROOM, "data = %s: no memory to connect with", path);
    }
    pthread_mutex_init(&wire->lock, NULL);
    pthread_cond_init(&wire->changed, NULL);
    nng_dialer dialer;
    int error = open_socket(wire, &dialer);
    attnd_status status =
        error ? attnd_fail(err, ATTND_UNREACHABLE, "data = %s: %s", path, nng_strerror(error))
              : dial_until(wire, dialer, deadline_ms, err);
    if (status == ATTND_OK)
        *out = wire;
    else
        cli_wire_close(wire);
    return status;
}

void cli_wire_close(cli_wire *wire)
{
    if (!wire)
        return;
    nng_close(wire->socket); /* an error if it is closed already, and nothing else */
    while (wire->all) {
        attnd_pending *p = wire->all;
        wire->all = p->next;
        nng_aio_stop(p->aio);
        if (nng_aio_get_msg(p->aio))
            nng_msg_free(nng_aio_get_msg(p->aio));
        nng_aio_free(p->aio);
        free(p->bytes);
        free(p);
    }
    pthread_cond_destroy(&wire->changed);
    pthread_mutex_destroy(&wire->lock);
    free(wire->path);
    free(wire);
}

/* ---- One request ---- */

static attnd_pending *make_pending(cli_wire *wire)
{
    attnd_pending *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->wire = wire;
    if (nng_aio_alloc(&p->aio, NULL, NULL) != 0) {
        free(p);
        return NULL;
    }
    if (nng_ctx_open(&p->ctx, wire->socket) != 0) {
        nng_aio_free(p->aio);
        free(p);
        return NULL;
    }
    pthread_mutex_lock(&wire->lock);
    p->next = wire->all;
    wire->all = p;
    pthread_mutex_unlock(&wire->lock);
    return p;
}

static attnd_pending *take_pending(cli_wire *wire)
{
    pthread_mutex_lock(&wire->lock);
    attnd_pending *p = wire->unused;
    if (p)
        wire->unused = p->next_free;
    pthread_mutex_unlock(&wire->lock);
    return p ? p : make_pending(wire);
}

static void give_pending(attnd_pending *p)
{
    pthread_mutex_lock(&p->wire->lock);
    p->is_in_flight = false;
    p->next_free = p->wire->unused;
    p->wire->unused = p;
    pthread_mutex_unlock(&p->wire->lock);
}

/* The request's bytes, kept for a repeat. */
static bool pack(attnd_pending *p, const Attnd__V1__Request *request)
{
    size_t n = attnd__v1__request__get_packed_size(request);
    if (n > p->n_room) {
        uint8_t *bytes = realloc(p->bytes, n);
        if (!bytes)
            return false;
        p->bytes = bytes;
        p->n_room = n;
    }
    p->n_bytes = attnd__v1__request__pack(request, p->bytes);
    return true;
}

/* Sends, and begins to receive, once a connection has taken it: receiving sooner crashes nng 1.5.2.
 * Returns nng's error. */
static int send_bytes(attnd_pending *p, int64_t until_ms)
{
    cli_wire *wire = p->wire;
    nng_msg *msg;
    int error = nng_msg_alloc(&msg, p->n_bytes);
    if (error)
        return error;
    memcpy(nng_msg_body(msg), p->bytes, p->n_bytes);
    nng_aio_set_msg(p->aio, msg);
    /* Of whoever is connected and does not read there is more patience than of nobody. */
    int64_t next_ms = cli_now_ms() + CLI_RECONNECT_MS;
    do {
        nng_aio_set_timeout(p->aio, left_ms(next_ms < until_ms ? next_ms : until_ms));
        next_ms = until_ms;
        nng_ctx_send(p->ctx, p->aio);
        nng_aio_wait(p->aio);
        error = nng_aio_result(p->aio);
    } while (error == NNG_ETIMEDOUT && atomic_load(&wire->n_pipes) > 0 && cli_now_ms() < until_ms);
    nng_aio_set_msg(p->aio, NULL);
    if (error) {
        nng_msg_free(msg);
        return error;
    }
    nng_aio_set_timeout(p->aio, left_ms(p->deadline_ms));
    nng_ctx_recv(p->ctx, p->aio);
    return 0;
}

/* Why it could not be sent. */
static attnd_status unsent(const attnd_pending *p, int error, attnd_err *err)
{
    const cli_wire *wire = p->wire;
    if (error == NNG_ENOMEM)
        return attnd_fail(err, ATTND_NO_ROOM, "request = %zu bytes: no memory to send it from",
                          p->n_bytes);
    if (error != NNG_ETIMEDOUT)
        return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: %s", wire->path, nng_strerror(error));
    if (atomic_load(&wire->n_pipes) > 0)
        return attnd_fail(err, ATTND_TIMED_OUT, "data = %s: attnd does not read", wire->path);
    return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: no connection; is attnd running?",
                      wire->path);
}

/* ---- Repeats ----------------------------------------------------------------------------------
 *
 * When the connection breaks, nng ends the receives of all that was sent over it with ECONNRESET
 * and dials anew by itself. Whoever notices first, a thread that waits or one that sends something
 * new, repeats what was in flight; a send that went through proves that the new connection is there
 * and that nng is done with the old one. The others find their request sent once more and wait on.
 */

/* In flight over a connection that broke, and not repeated yet. Under lock. */
static bool is_cut_off(const attnd_pending *p)
{
    return p->is_in_flight && p->may_repeat && !p->is_repeated && !p->is_sending &&
           (p->is_cut || nng_aio_result(p->aio) == NNG_ECONNRESET);
}

/* False when it could not be sent. Under lock, which is given while it sends. */
static bool repeat(attnd_pending *p, int64_t until_ms)
{
    cli_wire *wire = p->wire;
    p->is_sending = true;
    pthread_mutex_unlock(&wire->lock);
    int error = send_bytes(p, until_ms < p->deadline_ms ? until_ms : p->deadline_ms);
    pthread_mutex_lock(&wire->lock);
    p->is_sending = false;
    p->is_repeated = error == 0;
    wire->is_given_up = wire->is_given_up && error;
    p->is_cut = error != 0;
    p->n_tries++;
    pthread_cond_broadcast(&wire->changed);
    return error == 0;
}

static attnd_pending *first_cut_off(cli_wire *wire)
{
    attnd_pending *first = NULL;
    for (attnd_pending *p = wire->all; p; p = p->next)
        if (is_cut_off(p) && (!first || p->id < first->id))
            first = p;
    return first;
}

/* The connection has just taken something. What cannot be sent is left to the thread that waits
 * for it. Under lock, which is given while it sends. */
static void repeat_all(cli_wire *wire, int64_t until_ms)
{
    wire->n_breaks_seen = atomic_load(&wire->n_breaks);
    attnd_pending *p;
    while ((p = first_cut_off(wire)))
        if (!repeat(p, until_ms))
            return;
}

attnd_status cli_wire_send(cli_wire *wire, attnd_client *client, const Attnd__V1__Request *request,
                           bool may_repeat, int64_t deadline_ms, attnd_pending **out,
                           attnd_err *err)
{
    *out = NULL;
    attnd_pending *p = take_pending(wire);
    if (!p || !pack(p, request)) {
        if (p)
            give_pending(p);
        return attnd_fail(err, ATTND_NO_ROOM, "request = %zu bytes: no memory to send it from",
                          attnd__v1__request__get_packed_size(request));
    }
    p->client = client;
    p->id = request->id;
    p->op = request->op_case;
    p->deadline_ms = deadline_ms;
    p->may_repeat = may_repeat;
    p->is_repeated = p->is_cut = p->is_lost = false;
    int error = send_bytes(p, deadline_ms);
    if (error) {
        attnd_status status = unsent(p, error, err);
        give_pending(p);
        return status;
    }
    pthread_mutex_lock(&wire->lock);
    p->is_in_flight = true;
    if (wire->n_breaks_seen != atomic_load(&wire->n_breaks))
        repeat_all(wire, deadline_ms);
    pthread_mutex_unlock(&wire->lock);
    *out = p;
    return ATTND_OK;
}

/* Until the reply, or the reason why there is none, is there for good. */
static void settle(attnd_pending *p)
{
    cli_wire *wire = p->wire;
    pthread_mutex_lock(&wire->lock);
    while (!p->is_lost) {
        while (p->is_sending) /* no longer than until its own deadline */
            pthread_cond_wait(&wire->changed, &wire->lock);
        unsigned n_tries = p->n_tries;
        pthread_mutex_unlock(&wire->lock);
        nng_aio_wait(p->aio);
        pthread_mutex_lock(&wire->lock);
        if (p->is_sending || p->n_tries != n_tries) /* another thread repeats it */
            continue;
        if (!is_cut_off(p))
            break;
        bool is_in_vain = wire->is_given_up && atomic_load(&wire->n_pipes) == 0;
        p->is_lost = is_in_vain || !repeat(p, p->deadline_ms);
        if (!p->is_lost)
            repeat_all(wire, p->deadline_ms);
        else if (cli_now_ms() < p->deadline_ms)
            wire->is_given_up = true;
    }
    p->is_in_flight = false;
    pthread_mutex_unlock(&wire->lock);
}

static attnd_status take_reply(attnd_pending *p, Attnd__V1__Reply **out, attnd_err *err)
{
    int error = nng_aio_result(p->aio);
    if (error == NNG_ETIMEDOUT && !p->is_lost)
        return attnd_fail(err, ATTND_TIMED_OUT, "data = %s: no reply in time", p->wire->path);
    if (error || p->is_lost)
        return attnd_fail(err, ATTND_RESTARTED,
                          "data = %s: the connection broke before the reply came", p->wire->path);
    nng_msg *msg = nng_aio_get_msg(p->aio);
    size_t n = nng_msg_len(msg);
    Attnd__V1__Reply *reply = attnd__v1__reply__unpack(NULL, n, nng_msg_body(msg));
    nng_msg_free(msg);
    nng_aio_set_msg(p->aio, NULL);
    if (!reply || reply->id != p->id) {
        attnd__v1__reply__free_unpacked(reply, NULL);
        return attnd_fail(err, ATTND_BROKEN, "reply = %zu bytes: not the reply to request %llu", n,
                          (unsigned long long)p->id);
    }
    *out = reply;
    return ATTND_OK;
}

attnd_status cli_wire_receive(attnd_pending *pending, Attnd__V1__Reply **out, attnd_err *err)
{
    *out = NULL;
    settle(pending);
    attnd_status status = take_reply(pending, out, err);
    give_pending(pending);
    return status;
}

attnd_client *cli_pending_client(const attnd_pending *pending)
{
    return pending->client;
}

uint32_t cli_pending_op(const attnd_pending *pending)
{
    return pending->op;
}

int64_t cli_pending_deadline_ms(const attnd_pending *pending)
{
    return pending->deadline_ms;
}

uint64_t attnd_pending_id(const attnd_pending *pending)
{
    return pending->id;
}
