/* loop.h: libuv and sockets without a kernel, for a source file of the daemon that is compiled into
 * its fuzz target: include this, then the source file, then "tests/fuzz/loop_end.h".
 *
 * One client, whose socket is FUZZ_SOCKET. What it sends lies in fuzz_sent; what it is sent goes
 * into fuzz_heard, whose room is that of a socket's buffer. Handles turn by fuzz_loop_turn().
 */
#ifndef ATTND_TESTS_FUZZ_LOOP_H
#define ATTND_TESTS_FUZZ_LOOP_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/socket.h"
#include "tests/fuzz/world.h"

enum { FUZZ_SOCKET = 1000, FUZZ_DESCRIPTOR, FUZZ_ROOM = 1 << 18 };

/* ---- The client's socket ---- */

static struct {
    const uint8_t *at;
    size_t n;       /* bytes that can be read now */
    bool has_ended; /* and then there is the end */
    bool is_packet; /* read as one */
} fuzz_sent;

static struct {
    uint8_t at[FUZZ_ROOM];
    size_t n, room;
    int n_descriptors; /* that came beside it */
} fuzz_heard;

static bool fuzz_is_open;      /* the daemon's side */
static int fuzz_n_descriptors; /* duplicates that are open */

static inline ssize_t fuzz_recv(int socket, void *to, size_t n, int flags)
{
    FUZZ_CHECK(socket == FUZZ_SOCKET && fuzz_is_open);
    if (!fuzz_sent.n && fuzz_sent.has_ended)
        return 0;
    if (!fuzz_sent.n && !fuzz_sent.is_packet) {
        errno = EAGAIN;
        return -1;
    }
    size_t size = fuzz_sent.n, taken = size < n ? size : n;
    memcpy(to, fuzz_sent.at, taken);
    fuzz_sent.at += fuzz_sent.is_packet ? size : taken;
    fuzz_sent.n -= fuzz_sent.is_packet ? size : taken;
    bool tells_all = fuzz_sent.is_packet && flags & MSG_TRUNC;
    fuzz_sent.is_packet = false;
    return (ssize_t)(tells_all ? size : taken);
}

static inline ssize_t fuzz_sendmsg(int socket, const struct msghdr *message, int flags)
{
    size_t sent = 0;
    FUZZ_CHECK(socket == FUZZ_SOCKET && fuzz_is_open);
    for (size_t i = 0; i < message->msg_iovlen; i++) {
        const struct iovec *part = &message->msg_iov[i];
        size_t room = fuzz_heard.room - fuzz_heard.n;
        size_t n = part->iov_len < room ? part->iov_len : room;
        if (n)
            memcpy(fuzz_heard.at + fuzz_heard.n, part->iov_base, n);
        fuzz_heard.n += n;
        sent += n;
    }
    if (message->msg_controllen)
        fuzz_heard.n_descriptors++;
    if (sent)
        return (ssize_t)sent;
    errno = EAGAIN;
    return -1;
}

static inline ssize_t fuzz_send(int socket, const void *from, size_t n, int flags)
{
    struct iovec part = {.iov_base = (void *)from, .iov_len = n};
    return fuzz_sendmsg(socket, &(struct msghdr){.msg_iov = &part, .msg_iovlen = 1}, flags);
}

static inline int fuzz_close(int fd)
{
    if (fd == FUZZ_SOCKET) {
        FUZZ_CHECK(fuzz_is_open);
        fuzz_is_open = false;
        return 0;
    }
    FUZZ_CHECK(fd == FUZZ_DESCRIPTOR && fuzz_n_descriptors > 0);
    fuzz_n_descriptors--;
    return 0;
}

static inline int fuzz_shutdown(int socket, int how)
{
    fuzz_sent.has_ended = true;
    return 0;
}

static inline int fuzz_fcntl(int fd, int command, int from)
{
    FUZZ_CHECK(command == F_DUPFD_CLOEXEC);
    fuzz_n_descriptors++;
    return FUZZ_DESCRIPTOR;
}

/* ---- The loop ---- */

enum { FUZZ_CLOSING = 1 << 30 };

static uv_poll_t *fuzz_poll;        /* the client's, while it is watched */
static uv_handle_t *fuzz_closed[4]; /* to be told */
static uv_close_cb fuzz_close_cb[4];
static size_t fuzz_n_closed;
static uv_async_t *fuzz_async;
static bool fuzz_is_called;

static inline int fuzz_poll_init(uv_loop_t *loop, uv_poll_t *poll, int fd)
{
    poll->loop = loop;
    poll->flags = 0;
    return 0;
}

static inline int fuzz_poll_start(uv_poll_t *poll, int events, uv_poll_cb call)
{
    poll->poll_cb = call;
    poll->io_watcher.pevents = (unsigned)events;
    fuzz_poll = poll;
    return 0;
}

static inline int fuzz_poll_stop(uv_poll_t *poll)
{
    if (fuzz_poll == poll)
        fuzz_poll = NULL;
    return 0;
}

static inline int fuzz_is_closing(const uv_handle_t *handle)
{
    return handle->flags & FUZZ_CLOSING;
}

static inline void fuzz_close_handle(uv_handle_t *handle, uv_close_cb call)
{
    FUZZ_CHECK(!fuzz_is_closing(handle) && fuzz_n_closed < 4);
    handle->flags |= FUZZ_CLOSING;
    if (fuzz_poll == (uv_poll_t *)handle)
        fuzz_poll = NULL;
    fuzz_close_cb[fuzz_n_closed] = call;
    fuzz_closed[fuzz_n_closed++] = handle;
}

static inline int fuzz_async_init(uv_loop_t *loop, uv_async_t *async, uv_async_cb call)
{
    async->async_cb = call;
    fuzz_async = async;
    return 0;
}

static inline int fuzz_async_send(uv_async_t *async)
{
    fuzz_is_called = true;
    return 0;
}

/* What the loop would call; whether it called anything. */
static bool fuzz_loop_turn(void)
{
    bool happened = fuzz_is_called || fuzz_n_closed;
    if (fuzz_is_called) {
        fuzz_is_called = false;
        fuzz_async->async_cb(fuzz_async);
    }
    if (fuzz_poll) {
        int wanted = (int)fuzz_poll->io_watcher.pevents, events = 0;
        if (fuzz_sent.n || fuzz_sent.is_packet || fuzz_sent.has_ended)
            events |= UV_READABLE;
        if (fuzz_heard.n < fuzz_heard.room)
            events |= UV_WRITABLE;
        if (fuzz_sent.has_ended)
            events |= UV_DISCONNECT;
        if (events & wanted) {
            happened = true;
            fuzz_poll->poll_cb(fuzz_poll, 0, events & wanted);
        }
    }
    while (fuzz_n_closed) {
        uv_close_cb call = fuzz_close_cb[--fuzz_n_closed];
        if (call)
            call(fuzz_closed[fuzz_n_closed]);
    }
    return happened;
}

#define recv fuzz_recv
#define send(socket, from, n, flags) fuzz_send(socket, from, n, flags)
#define sendmsg fuzz_sendmsg
#define close fuzz_close
#define shutdown fuzz_shutdown
#define fcntl fuzz_fcntl
#define srv_socket_accept(listener, spare) (fuzz_is_open = true, FUZZ_SOCKET)
#define pthread_create(id, attr, run, arg) ((void)(run), 0)
#define uv_poll_init fuzz_poll_init
#define uv_poll_start fuzz_poll_start
#define uv_poll_stop fuzz_poll_stop
#define uv_is_closing fuzz_is_closing
#define uv_close fuzz_close_handle
#define uv_async_init fuzz_async_init
#define uv_async_send fuzz_async_send
#define uv_timer_init(loop, timer) ((void)0)
#define uv_timer_start(timer, call, first, every) ((void)(call))
#define uv_loop_init(loop) 0

#endif
