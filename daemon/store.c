/* store.c: both ends of the store of named descriptors.
 *
 * The engine asks, the keeper answers: one packet each way, the descriptor beside whichever packet
 * carries one. Reading the store is asking for one place after the other, so that neither side ever
 * holds more than one packet of the other's.
 */
#include "daemon/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MAX_KEPT = 4096, ANSWER_TIMEOUT_S = 5 };

typedef enum store_verb { VERB_PUT = 1, VERB_DROP, VERB_GET, VERB_TELL } store_verb;

/* Both ends are one executable: no byte order, no version. */
typedef struct ask_packet {
    uint32_t number; /* the answer repeats it: a late answer is told from the wanted one */
    uint32_t verb;
    uint32_t place; /* GET: 0 .. count-1; TELL: srv_news */
    char name[SRV_STORE_NAME];
} ask_packet;

typedef struct answer_packet {
    uint32_t number;
    uint32_t reason; /* attnd_reason; NO_REASON when done */
    uint32_t count;  /* names kept */
    char name[SRV_STORE_NAME];
} answer_packet;

/* ---- Packets ---- */

/* fd -1: none goes along. False with errno set. */
static bool packet_send(int socket, const void *packet, size_t bytes, int fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vec = {.iov_base = (void *)packet, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &vec, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.room;
        msg.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(socket, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)bytes;
}

/* Bytes of the packet, 0 at end of file, -1 with errno. *fd is the caller's, -1: none came. */
static ssize_t packet_receive(int socket, void *packet, size_t bytes, int *fd)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec vec = {.iov_base = packet, .iov_len = bytes};
    struct msghdr msg = {.msg_iov = &vec,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         /* Not the padded size: a second descriptor would fit into it. */
                         .msg_controllen = CMSG_LEN(sizeof(int))};
    *fd = -1;
    ssize_t n;
    do
        n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n;
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return n;
}

/* ---- The engine's side ---- */

struct srv_store {
    int socket;
    uint32_t number;      /* of the last packet asked */
    pthread_mutex_t lock; /* held from a packet to its answer; no other lock is taken under it */
};

attnd_status srv_store_open(srv_store **out, int socket, attnd_err *err)
{
    *out = NULL;
    struct timeval patience = {.tv_sec = ANSWER_TIMEOUT_S};
    int type = 0;
    socklen_t n = sizeof type;
    if (getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_SEQPACKET)
        return attnd_fail(err, ATTND_UNREACHABLE,
                          "engine-socket = %d: not the keeper's seqpacket socket", socket);
    if (setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0 ||
        fcntl(socket, F_SETFD, FD_CLOEXEC) < 0)
        return attnd_fail(err, ATTND_UNREACHABLE, "engine-socket = %d: %s", socket,
                          strerror(errno));
    srv_store *store = calloc(1, sizeof *store);
    if (!store)
        return attnd_fail(err, ATTND_NO_ROOM, "store = %zu bytes: no memory", sizeof *store);
    store->socket = socket;
    pthread_mutex_init(&store->lock, NULL);
    *out = store;
    return ATTND_OK;
}

void srv_store_close(srv_store *store)
{
    if (!store)
        return;
    close(store->socket);
    pthread_mutex_destroy(&store->lock);
    free(store);
}

/* The lock is held. */
static attnd_status exchange(srv_store *store, ask_packet *ask, int fd, answer_packet *answer,
                             int *got_fd, attnd_err *err)
{
    ask->number = ++store->number;
    if (!packet_send(store->socket, ask, sizeof *ask, fd))
        return attnd_fail(err, ATTND_UNREACHABLE, "keeper = gone: %s",
                          errno == EPIPE || errno == ECONNRESET ? "its socket was closed"
                                                                : strerror(errno));
    for (;;) {
        ssize_t n = packet_receive(store->socket, answer, sizeof *answer, got_fd);
        if (n == 0)
            return attnd_fail(err, ATTND_UNREACHABLE, "keeper = gone: its socket was closed");
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return attnd_fail(err, ATTND_UNREACHABLE, "keeper = silent: no answer in %d s",
                              ANSWER_TIMEOUT_S);
        if (n < 0)
            return attnd_fail(err, ATTND_UNREACHABLE, "keeper = gone: %s", strerror(errno));
        if (n == sizeof *answer && answer->number == ask->number)
            return ATTND_OK;
        if (*got_fd >= 0)
            close(*got_fd);
    }
}

/* One packet there, one back. fd goes along unless -1; *got_fd is the caller's, -1: none came. */
static attnd_status store_ask(srv_store *store, ask_packet *ask, int fd, answer_packet *answer,
                              int *got_fd, attnd_err *err)
{
    pthread_mutex_lock(&store->lock);
    attnd_status status = exchange(store, ask, fd, answer, got_fd, err);
    pthread_mutex_unlock(&store->lock);
    return status;
}

static attnd_status store_ask_by_name(srv_store *store, store_verb verb, const char *name, int fd,
                                      answer_packet *answer, attnd_err *err)
{
    ask_packet ask = {.verb = verb};
    size_t n = strlen(name);
    if (n == 0 || n >= SRV_STORE_NAME)
        return attnd_fail(err, ATTND_BROKEN, "name = %zu bytes: the store takes 1..%d", n,
                          SRV_STORE_NAME - 1);
    memcpy(ask.name, name, n + 1);
    int got_fd;
    TRY(store_ask(store, &ask, fd, answer, &got_fd, err));
    if (got_fd >= 0)
        close(got_fd);
    return ATTND_OK;
}

attnd_status srv_store_put(srv_store *store, const char *name, int fd, attnd_err *err)
{
    answer_packet answer;
    TRY(store_ask_by_name(store, VERB_PUT, name, fd, &answer, err));
    if (answer.reason != ATTND_NO_REASON)
        return attnd_fail(err, ATTND_NO_ROOM,
                          "store = %u descriptors: the keeper takes no more (at most %d, and no "
                          "more than its own limit of open files)",
                          answer.count, MAX_KEPT);
    return ATTND_OK;
}

attnd_status srv_store_drop(srv_store *store, const char *name, attnd_err *err)
{
    answer_packet answer;
    return store_ask_by_name(store, VERB_DROP, name, -1, &answer, err);
}

attnd_status srv_store_get_all(srv_store *store, void (*each)(void *arg, const char *name, int fd),
                               void *arg, attnd_err *err)
{
    answer_packet answer = {.count = 1};
    for (uint32_t place = 0; place < answer.count; place++) {
        ask_packet ask = {.verb = VERB_GET, .place = place};
        int fd;
        TRY(store_ask(store, &ask, -1, &answer, &fd, err));
        if (place >= answer.count)
            break;
        if (fd < 0)
            return attnd_fail(err, ATTND_NO_ROOM,
                              "store = %u descriptors: this process may open no more files",
                              answer.count);
        answer.name[SRV_STORE_NAME - 1] = '\0';
        each(arg, answer.name, fd);
    }
    return ATTND_OK;
}

attnd_status srv_store_tell(srv_store *store, srv_news news, attnd_err *err)
{
    ask_packet ask = {.verb = VERB_TELL, .place = (uint32_t)news};
    answer_packet answer;
    int fd;
    TRY(store_ask(store, &ask, -1, &answer, &fd, err));
    if (fd >= 0)
        close(fd);
    return ATTND_OK;
}

/* ---- The keeper's side ---- */

typedef struct kept {
    int fd;
    char name[SRV_STORE_NAME];
} kept;

struct srv_shelf {
    uint32_t count;
    kept items[MAX_KEPT]; /* items[0 .. count), in the order of their first put */
};

attnd_status srv_shelf_open(srv_shelf **out, attnd_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return attnd_fail(err, ATTND_NO_ROOM, "store = %zu bytes: no memory", sizeof **out);
    return ATTND_OK;
}

void srv_shelf_close(srv_shelf *shelf)
{
    if (!shelf)
        return;
    srv_shelf_clear(shelf);
    free(shelf);
}

void srv_shelf_clear(srv_shelf *shelf)
{
    for (uint32_t i = 0; i < shelf->count; i++)
        close(shelf->items[i].fd);
    shelf->count = 0;
}

size_t srv_shelf_count(const srv_shelf *shelf)
{
    return shelf->count;
}

/* Place of a name, count when there is none. */
static uint32_t shelf_find(const srv_shelf *shelf, const char *name)
{
    uint32_t i = 0;
    while (i < shelf->count && strcmp(shelf->items[i].name, name) != 0)
        i++;
    return i;
}

/* Takes fd in any case. */
static attnd_reason shelf_put(srv_shelf *shelf, const char *name, int fd)
{
    if (fd < 0)
        return ATTND_NO_ROOM; /* this process may open no more files: the kernel dropped it */
    uint32_t i = shelf_find(shelf, name);
    if (i == MAX_KEPT) {
        close(fd);
        return ATTND_NO_ROOM;
    }
    if (i < shelf->count)
        close(shelf->items[i].fd);
    else
        shelf->count++;
    shelf->items[i].fd = fd;
    memcpy(shelf->items[i].name, name, SRV_STORE_NAME);
    return ATTND_NO_REASON;
}

static void shelf_drop(srv_shelf *shelf, const char *name)
{
    uint32_t i = shelf_find(shelf, name);
    if (i == shelf->count)
        return;
    close(shelf->items[i].fd);
    shelf->count--;
    memmove(&shelf->items[i], &shelf->items[i + 1], (shelf->count - i) * sizeof(kept));
}

bool srv_shelf_answer(srv_shelf *shelf, int socket, void (*hear)(void *arg, srv_news news),
                      void *arg)
{
    ask_packet ask;
    int fd;
    ssize_t n = packet_receive(socket, &ask, sizeof ask, &fd);
    if (n != sizeof ask) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    ask.name[SRV_STORE_NAME - 1] = '\0';
    answer_packet answer = {.number = ask.number, .reason = ATTND_NO_REASON};
    int back = -1;
    if (ask.verb == VERB_PUT) {
        answer.reason = shelf_put(shelf, ask.name, fd);
        fd = -1;
    } else if (ask.verb == VERB_DROP) {
        shelf_drop(shelf, ask.name);
    } else if (ask.verb == VERB_GET && ask.place < shelf->count) {
        back = shelf->items[ask.place].fd;
        memcpy(answer.name, shelf->items[ask.place].name, SRV_STORE_NAME);
    } else if (ask.verb == VERB_TELL) {
        hear(arg, (srv_news)ask.place);
    }
    if (fd >= 0)
        close(fd);
    answer.count = shelf->count;
    return packet_send(socket, &answer, sizeof answer, back);
}
