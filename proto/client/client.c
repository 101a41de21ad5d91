/* client.c: requests and replies over the data socket, in nng's SP framing (protocol.md §2).
 *
 * Any thread may send and wait. One at a time has the turn to send, and one at a time of those that
 * wait reads, for all. No thread of its own.
 *
 * When the connection breaks, whoever notices makes another and sends once more what was in flight,
 * unchanged: the daemon answers an id that it has seen from memory.
 */
#include "proto/client/client.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_REPLY = 16 << 20, /* bytes; attnd's are far smaller */
    HEADER = 13,          /* 1, bytes that follow (8), number (4) */
    BEFORE_NUMBER = 9,
    ROOM = 4096, /* for bytes received, at first */
};

static const uint8_t GREETING[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
static const uint8_t GREETED[] = {0, 'S', 'P', 0, 0, 0x31, 0, 0};

struct attnd_pending {
    cli_wire *wire;
    attnd_client *client;
    uint64_t id;
    uint32_t op;
    int64_t deadline_ms;
    bool may_repeat;
    uint32_t number;          /* of its frame: the reply's too */
    uint8_t *frame;           /* [n_frame], kept for a repeat */
    size_t n_frame, room;     /* bytes */
    attnd_pending *next;      /* wire->all */
    attnd_pending *next_free; /* wire->unused */
    /* Under lock: */
    bool is_in_flight;
    bool is_repeated;
    unsigned connection; /* the one it was sent over */
    bool is_answered;
    uint8_t *reply; /* [n_reply], without header */
    size_t n_reply, reply_room;
};

struct cli_wire {
    char *path;
    pthread_mutex_t lock; /* guards what follows; no other lock is taken under it */
    pthread_cond_t changed;
    attnd_pending *all, *unused;
    int fd;
    unsigned connection; /* how many there were */
    bool is_broken;      /* fd is shut down */
    bool is_given_up; /* there was no other for CLI_RECONNECT_MS: who waits for a reply is told */
    bool is_sending;  /* a thread has the turn: it alone sends, connects and closes fd */
    bool is_reading;  /* a thread reads fd; what follows is that thread's */
    uint32_t last_number;
    uint8_t *received; /* [n_received] the start of a frame */
    size_t n_received, received_room;
};

/* ---- Time ---- */

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

bool cli_poll(int fd, short events, int64_t deadline_ms)
{
    for (;;) {
        int64_t left = deadline_ms - cli_now_ms();
        struct pollfd polled = {.fd = fd, .events = events};
        if (poll(&polled, 1, left < 0 ? 0 : left > INT32_MAX ? INT32_MAX : (int)left) > 0)
            return true;
        if (left <= 0)
            return false;
    }
}

bool cli_rest(int64_t until_ms)
{
    enum { REST_MS = 20 };
    int64_t left = until_ms - cli_now_ms();
    if (left > 0)
        usleep((useconds_t)(left < REST_MS ? left : REST_MS) * 1000);
    return left > 0;
}

/* ---- One connection ---- */

attnd_status cli_connect(const char *field, const char *path, int type, int64_t deadline_ms,
                         int *out, attnd_err *err)
{
    *out = -1;
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return attnd_fail(err, ATTND_NO_ROOM, "%s = %s: %s", field, path, strerror(errno));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    assert(strlen(path) < sizeof address.sun_path);
    memcpy(address.sun_path, path, strlen(path));
    int64_t left = deadline_ms - cli_now_ms();
    if (left < 1)
        left = 1;
    /* How long connect() waits while the daemon's backlog is full, and send() later. */
    struct timeval wait = {left / 1000, left % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0) {
        *out = fd;
        return ATTND_OK;
    }
    int error = errno;
    close(fd);
    if (error == EAGAIN || error == EINPROGRESS)
        return attnd_fail(err, ATTND_TIMED_OUT, "%s = %s: attnd does not accept", field, path);
    return attnd_fail(err, ATTND_UNREACHABLE, "%s = %s: %s; is attnd running?", field, path,
                      strerror(error));
}

static attnd_status greet(const char *path, int fd, int64_t deadline_ms, attnd_err *err)
{
    uint8_t got[sizeof GREETED];
    size_t n = 0;
    send(fd, GREETING, sizeof GREETING, MSG_NOSIGNAL);
    while (n < sizeof got) {
        if (!cli_poll(fd, POLLIN, deadline_ms))
            return attnd_fail(err, ATTND_TIMED_OUT, "data = %s: nobody greets there", path);
        ssize_t more = recv(fd, got + n, sizeof got - n, MSG_DONTWAIT);
        if (more < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (more <= 0)
            return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: closed before its greeting",
                              path);
        n += (size_t)more;
    }
    if (memcmp(got, GREETED, sizeof got) != 0)
        return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: greets as no SP REP socket", path);
    return ATTND_OK;
}

static attnd_status connect_and_greet(const char *path, int64_t deadline_ms, int *out,
                                      attnd_err *err)
{
    TRY(cli_connect("data", path, SOCK_STREAM, deadline_ms, out, err));
    attnd_status status = greet(path, *out, deadline_ms, err);
    if (status == ATTND_OK)
        return ATTND_OK;
    close(*out);
    *out = -1;
    return status;
}

attnd_status cli_wire_open(cli_wire **out, const char *path, int64_t deadline_ms, attnd_err *err)
{
    *out = NULL;
    cli_wire *wire = calloc(1, sizeof *wire);
    if (!wire || !(wire->path = strdup(path)) || !(wire->received = malloc(ROOM))) {
        if (wire)
            free(wire->path);
        free(wire);
        return attnd_fail(err, ATTND_NO_ROOM, "data = %s: no memory to connect with", path);
    }
    wire->received_room = ROOM;
    pthread_mutex_init(&wire->lock, NULL);
    cli_cond_init(&wire->changed);
    attnd_status status = connect_and_greet(path, deadline_ms, &wire->fd, err);
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
    if (wire->fd >= 0)
        close(wire->fd);
    while (wire->all) {
        attnd_pending *p = wire->all;
        wire->all = p->next;
        free(p->frame);
        free(p->reply);
        free(p);
    }
    pthread_cond_destroy(&wire->changed);
    pthread_mutex_destroy(&wire->lock);
    free(wire->received);
    free(wire->path);
    free(wire);
}

/* Under lock. The descriptor stays until nobody reads it. */
static void break_off(cli_wire *wire)
{
    if (!wire->is_broken)
        shutdown(wire->fd, SHUT_RDWR);
    wire->is_broken = true;
    pthread_cond_broadcast(&wire->changed);
}

/* ---- Requests ---- */

static attnd_pending *take_pending(cli_wire *wire)
{
    pthread_mutex_lock(&wire->lock);
    attnd_pending *p = wire->unused;
    if (p)
        wire->unused = p->next_free;
    else
        p = calloc(1, sizeof *p);
    if (p && !p->wire) {
        p->wire = wire;
        p->next = wire->all;
        wire->all = p;
    }
    pthread_mutex_unlock(&wire->lock);
    return p;
}

static void give_pending(attnd_pending *p)
{
    pthread_mutex_lock(&p->wire->lock);
    p->is_in_flight = false;
    p->next_free = p->wire->unused;
    p->wire->unused = p;
    pthread_mutex_unlock(&p->wire->lock);
}

/* Room for n bytes at *bytes; what was there is kept. False when there is no memory. */
static bool make_room(uint8_t **bytes, size_t *room, size_t n)
{
    if (n <= *room)
        return true;
    uint8_t *more = realloc(*bytes, n);
    if (!more)
        return false;
    *bytes = more;
    *room = n;
    return true;
}

static void put_big_endian(uint8_t *at, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        at[i] = (uint8_t)(value >> (8 * (n_bytes - 1 - i)));
}

static uint64_t big_endian(const uint8_t *at, int n_bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++)
        value = value << 8 | at[i];
    return value;
}

/* The number comes when it is sent. */
static bool make_frame(attnd_pending *p, const Attnd__V1__Request *request)
{
    size_t n = attnd__v1__request__get_packed_size(request);
    if (!make_room(&p->frame, &p->room, HEADER + n))
        return false;
    p->frame[0] = 1;
    put_big_endian(p->frame + 1, n + 4, 8);
    attnd__v1__request__pack(request, p->frame + HEADER);
    p->n_frame = HEADER + n;
    return true;
}

/* ---- The turn ---- */

/* False at the deadline. */
static bool take_turn(cli_wire *wire, int64_t deadline_ms)
{
    bool in_time = true;
    while (wire->is_sending && in_time)
        in_time = cli_cond_wait(&wire->changed, &wire->lock, deadline_ms);
    if (wire->is_sending)
        return false;
    wire->is_sending = true;
    return true;
}

static void give_turn(cli_wire *wire)
{
    wire->is_sending = false;
    pthread_cond_broadcast(&wire->changed);
}

/* Bytes of the frame that were sent until the deadline or until the connection broke, which *broke
 * says. */
static size_t send_bytes(int fd, const uint8_t *frame, size_t n_frame, int64_t deadline_ms,
                         bool *broke)
{
    size_t n = 0;
    *broke = false;
    while (n < n_frame) {
        ssize_t more = send(fd, frame + n, n_frame - n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (more > 0)
            n += (size_t)more;
        else if (errno != EAGAIN && errno != EINTR)
            *broke = true;
        else if (cli_poll(fd, POLLOUT, deadline_ms))
            continue;
        if (*broke || more <= 0)
            break;
    }
    return n;
}

/* Sends p over the connection there is; false when it was not sent whole by the deadline. It may
 * break the connection. In turn and under lock, which is given meanwhile. */
static bool send_in_turn(attnd_pending *p, int64_t deadline_ms)
{
    cli_wire *wire = p->wire;
    bool broke;
    p->connection = wire->connection;
    p->is_in_flight = true; /* the reply may be there before send() returns */
    pthread_mutex_unlock(&wire->lock);
    size_t n = send_bytes(wire->fd, p->frame, p->n_frame, deadline_ms, &broke);
    pthread_mutex_lock(&wire->lock);
    bool is_late = !broke && n < p->n_frame;
    if (is_late)
        p->is_in_flight = false;
    /* The rest cannot follow later: the next frame would be read as its tail. */
    if (broke || (is_late && n))
        break_off(wire);
    return !is_late;
}

static bool is_cut_off(const attnd_pending *p)
{
    const cli_wire *wire = p->wire;
    return p->is_in_flight && !p->is_answered &&
           (wire->is_broken || p->connection != wire->connection);
}

/* The one that was sent first of those that may be repeated. */
static attnd_pending *first_to_repeat(cli_wire *wire)
{
    attnd_pending *first = NULL;
    for (attnd_pending *p = wire->all; p; p = p->next)
        if (is_cut_off(p) && p->may_repeat && !p->is_repeated && (!first || p->id < first->id))
            first = p;
    return first;
}

/* In turn and under lock, as all below. */
static void repeat_all(cli_wire *wire, int64_t deadline_ms)
{
    attnd_pending *p;
    while (!wire->is_broken && (p = first_to_repeat(wire))) {
        p->is_repeated = true;
        if (!send_in_turn(p, deadline_ms)) {
            p->is_in_flight = true;
            break_off(wire); /* nobody reads at the other end */
        }
    }
}

/* Makes another connection if this one is broken, and repeats what was in flight. Refuses
 * UNREACHABLE, TIMED_OUT. */
static attnd_status mend_in_turn(cli_wire *wire, int64_t deadline_ms, attnd_err *err)
{
    if (!wire->is_broken)
        return ATTND_OK;
    while (wire->is_reading) /* it was shut down: not for long */
        pthread_cond_wait(&wire->changed, &wire->lock);
    pthread_mutex_unlock(&wire->lock);
    int64_t until_ms = cli_now_ms() + CLI_RECONNECT_MS;
    bool is_late = deadline_ms < until_ms;
    attnd_status status;
    int fd;
    do
        status = connect_and_greet(wire->path, deadline_ms, &fd, err);
    while (status == ATTND_UNAVAILABLE && cli_rest(is_late ? deadline_ms : until_ms));
    pthread_mutex_lock(&wire->lock);
    if (status != ATTND_OK) {
        wire->is_given_up = status == ATTND_UNAVAILABLE && !is_late;
        pthread_cond_broadcast(&wire->changed);
        return status;
    }
    close(wire->fd);
    wire->fd = fd;
    wire->connection++;
    wire->is_broken = wire->is_given_up = false;
    wire->n_received = 0;
    pthread_cond_broadcast(&wire->changed);
    repeat_all(wire, deadline_ms);
    return ATTND_OK;
}

static attnd_status send_first(attnd_pending *p, attnd_err *err)
{
    cli_wire *wire = p->wire;
    TRY(mend_in_turn(wire, p->deadline_ms, err));
    p->number = 0x80000000u | ++wire->last_number;
    put_big_endian(p->frame + BEFORE_NUMBER, p->number, 4);
    if (!send_in_turn(p, p->deadline_ms))
        return attnd_fail(err, ATTND_TIMED_OUT, "data = %s: attnd does not read", wire->path);
    return ATTND_OK;
}

attnd_status cli_wire_send(cli_wire *wire, attnd_client *client, const Attnd__V1__Request *request,
                           bool may_repeat, int64_t deadline_ms, attnd_pending **out,
                           attnd_err *err)
{
    *out = NULL;
    attnd_pending *p = take_pending(wire);
    if (!p || !make_frame(p, request)) {
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
    attnd_status status;
    pthread_mutex_lock(&wire->lock);
    p->is_repeated = p->is_answered = false;
    if (take_turn(wire, deadline_ms)) {
        status = send_first(p, err);
        give_turn(wire);
    } else {
        status = attnd_fail(err, ATTND_TIMED_OUT, "data = %s: another request is still being sent",
                            wire->path);
    }
    pthread_mutex_unlock(&wire->lock);
    if (status == ATTND_OK)
        *out = p;
    else
        give_pending(p);
    return status;
}

/* ---- Replies ---- */

/* Under lock. */
static attnd_pending *find_in_flight(const cli_wire *wire, uint32_t number)
{
    for (attnd_pending *p = wire->all; p; p = p->next)
        if (p->is_in_flight && p->number == number)
            return p;
    return NULL;
}

/* Hands on the whole frames in received; false when it is none that SP knows. Under lock. */
static bool take_frames(cli_wire *wire)
{
    size_t done = 0;
    while (wire->n_received - done >= HEADER) {
        const uint8_t *at = wire->received + done;
        uint64_t length = big_endian(at + 1, 8);
        if (at[0] != 1 || length < 4 || length > MAX_REPLY)
            return false;
        size_t n = BEFORE_NUMBER + (size_t)length;
        if (wire->n_received - done < n) {
            if (!make_room(&wire->received, &wire->received_room, done + n))
                return false;
            break;
        }
        /* A reply nobody waits for any more is nobody's. */
        attnd_pending *p = find_in_flight(wire, (uint32_t)big_endian(at + BEFORE_NUMBER, 4));
        if (p && !p->is_answered) {
            if (!make_room(&p->reply, &p->reply_room, n))
                return false;
            p->n_reply = n - HEADER;
            memcpy(p->reply, at + HEADER, p->n_reply);
            p->is_answered = true;
        }
        done += n;
    }
    wire->n_received -= done;
    memmove(wire->received, wire->received + done, wire->n_received);
    return true;
}

/* Reads once for all who wait. Under lock, which is given meanwhile. */
static void read_some(cli_wire *wire, int64_t deadline_ms)
{
    wire->is_reading = true;
    pthread_mutex_unlock(&wire->lock);
    ssize_t n = -1;
    bool is_idle = !cli_poll(wire->fd, POLLIN, deadline_ms);
    if (!is_idle) {
        n = recv(wire->fd, wire->received + wire->n_received,
                 wire->received_room - wire->n_received, MSG_DONTWAIT);
        is_idle = n < 0 && (errno == EAGAIN || errno == EINTR);
    }
    pthread_mutex_lock(&wire->lock);
    wire->is_reading = false;
    if (n > 0)
        wire->n_received += (size_t)n;
    if (!is_idle && (n <= 0 || !take_frames(wire)))
        break_off(wire);
    pthread_cond_broadcast(&wire->changed);
}

/* False when p, whose connection broke, is not to be answered over another. Under lock. */
static bool mend(attnd_pending *p)
{
    cli_wire *wire = p->wire;
    if (!p->may_repeat || p->is_repeated || wire->is_given_up || !take_turn(wire, p->deadline_ms))
        return false;
    bool is_whole = mend_in_turn(wire, p->deadline_ms, NULL) == ATTND_OK;
    give_turn(wire);
    return is_whole;
}

/* Waits until p is answered. Refuses RESTARTED, TIMED_OUT. Under lock. */
static attnd_status await(attnd_pending *p, attnd_err *err)
{
    cli_wire *wire = p->wire;
    bool has_looked = false; /* a deadline that has passed takes what has come */
    while (!p->is_answered) {
        if (is_cut_off(p)) {
            if (!mend(p) && !p->is_answered)
                return attnd_fail(err, ATTND_RESTARTED,
                                  "data = %s: the connection broke before the reply came",
                                  wire->path);
            continue;
        }
        if (has_looked && cli_now_ms() >= p->deadline_ms)
            return attnd_fail(err, ATTND_TIMED_OUT, "data = %s: no reply in time", wire->path);
        has_looked = true;
        if (wire->is_reading)
            cli_cond_wait(&wire->changed, &wire->lock, p->deadline_ms);
        else
            read_some(wire, p->deadline_ms);
    }
    return ATTND_OK;
}

static attnd_status decode(const attnd_pending *p, Attnd__V1__Reply **out, attnd_err *err)
{
    Attnd__V1__Reply *reply = attnd__v1__reply__unpack(NULL, p->n_reply, p->reply);
    if (reply && reply->id == p->id) {
        *out = reply;
        return ATTND_OK;
    }
    attnd__v1__reply__free_unpacked(reply, NULL);
    return attnd_fail(err, ATTND_BROKEN, "reply = %zu bytes: not the reply to request %llu",
                      p->n_reply, (unsigned long long)p->id);
}

attnd_status cli_wire_receive(attnd_pending *pending, Attnd__V1__Reply **out, attnd_err *err)
{
    *out = NULL;
    pthread_mutex_lock(&pending->wire->lock);
    attnd_status status = await(pending, err);
    pthread_mutex_unlock(&pending->wire->lock);
    if (status == ATTND_OK)
        status = decode(pending, out, err);
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
