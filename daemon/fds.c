/* fds.c: the buffer socket: descriptors out, a connection is a lease. */
#include "daemon/fds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/session.h"
#include "daemon/socket.h"
#include "proto/message.h"

enum {
    MAX_CONNECTIONS = 1024,
    MAX_SURPLUS = 64, /* more, that are only told so */
    SHARE = 8,        /* of the descriptors that the process may have, for connections */
    FD_NONE = 0,
    FD_MEMFD = 1,
    FD_CUDA_VMM = 2,
};

/* One client. It asks the engine thread one thing at a time; while that is out its socket is not
 * read. */
typedef struct holder {
    srv_fds *fds;
    struct holder *next, **link; /* fds->holders */
    uv_poll_t poll;
    int socket;
    bool is_closed;  /* the loop has let go of the handle */
    bool is_asking;  /* the engine thread has the event */
    bool is_ended;   /* the peer has gone, or shall go */
    bool is_surplus; /* one too many: its first packet is answered with a refusal */

    uint64_t session; /* whose lease this is; 0: nobody's yet */

    /* Owner while asking: the engine thread. */
    srv_event event;
    msg_fd_request request;
    msg_fd_reply reply;
    int fd;                  /* a duplicate to send, -1: none */
    struct holder *answered; /* fds->answered */
} holder;

struct srv_fds {
    srv_engine *engine;
    uv_poll_t poll;
    uv_async_t async;
    int socket;
    int spare; /* srv_socket_accept's */
    char path[108];
    bool is_closing;
    int n_handles;            /* of ours, not yet closed */
    int n_holders, n_surplus; /* the latter are of the former */
    int room;                 /* for those that are not surplus */
    holder *holders;
    pthread_mutex_t lock; /* guards answered */
    holder *answered;
};

static void on_handle_closed(uv_handle_t *handle)
{
    srv_fds *fds = handle->data;
    if (--fds->n_handles)
        return;
    pthread_mutex_destroy(&fds->lock);
    free(fds);
}

/* The last client has gone from a socket that closes: nobody answers through async any more. */
static void close_async(srv_fds *fds)
{
    if (fds->is_closing && !fds->holders && !uv_is_closing((uv_handle_t *)&fds->async))
        uv_close((uv_handle_t *)&fds->async, on_handle_closed);
}

/* ---- Engine thread ----------------------------------------------------------------------------
 */

static void answer(holder *h)
{
    srv_fds *fds = h->fds;
    pthread_mutex_lock(&fds->lock);
    h->answered = fds->answered;
    fds->answered = h;
    /* Under the lock: the loop cannot free the handle before it has taken what is answered. */
    uv_async_send(&fds->async);
    pthread_mutex_unlock(&fds->lock);
}

static attnd_status look_up(srv_engine *engine, holder *h, attnd_err *err)
{
    srv_session *session;
    srv_buffer *buffer;
    TRY(srv_session_get(engine, h->request.session, &session, err));
    if (!h->session) {
        srv_session_lease(session);
        h->session = h->request.session;
    }
    if (!h->request.buffer)
        return ATTND_OK;
    TRY(srv_buffer_get(session, h->request.buffer, "buffer", &buffer, err));
    bool is_host = strcmp(engine->device_info.backend, "cpu") == 0;
    h->fd = fcntl(buffer->memory.fd, F_DUPFD_CLOEXEC, 0);
    if (h->fd < 0)
        return attnd_fail(err, ATTND_NO_ROOM, "buffer: no descriptor: %s", strerror(errno));
    h->reply.kind = is_host ? FD_MEMFD : FD_CUDA_VMM;
    h->reply.bytes = buffer->memory.bytes;
    return ATTND_OK;
}

static void on_asked(srv_engine *engine, srv_event *event)
{
    holder *h = (holder *)((char *)event - offsetof(holder, event));
    look_up(engine, h, &h->reply.err);
    answer(h);
}

static void on_ended(srv_engine *engine, srv_event *event)
{
    holder *h = (holder *)((char *)event - offsetof(holder, event));
    srv_session *session;
    if (srv_session_get(engine, h->session, &session, NULL) == ATTND_OK)
        srv_session_release(engine, session);
    h->session = 0;
    answer(h);
}

/* ---- Loop thread: clients ---------------------------------------------------------------------
 */

static void ask(holder *h, void (*run)(srv_engine *, srv_event *))
{
    h->is_asking = true;
    h->event.run = run;
    srv_queue_post(&h->fds->engine->queue, &h->event);
}

static void holder_free(holder *h)
{
    srv_fds *fds = h->fds;
    *h->link = h->next;
    if (h->next)
        h->next->link = h->link;
    fds->n_holders--;
    fds->n_surplus -= h->is_surplus;
    close(h->socket);
    free(h);
    close_async(fds);
}

static void on_holder_closed(uv_handle_t *handle)
{
    holder *h = handle->data;
    h->is_closed = true;
    if (!h->is_asking)
        holder_free(h);
}

/* The client goes: its lease is given back first, then the handle. */
static void end(holder *h)
{
    h->is_ended = true;
    if (h->is_asking)
        return;
    if (h->session)
        ask(h, on_ended);
    if (!uv_is_closing((uv_handle_t *)&h->poll))
        uv_close((uv_handle_t *)&h->poll, on_holder_closed);
}

static bool send_reply(holder *h)
{
    uint8_t packet[MSG_FD_PACKET];
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec io = {.iov_base = packet, .iov_len = msg_fd_encode(&h->reply, packet)};
    struct msghdr message = {.msg_iov = &io, .msg_iovlen = 1};
    if (h->fd >= 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &h->fd, sizeof(int));
    }
    ssize_t n = sendmsg(h->socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (h->fd >= 0)
        close(h->fd);
    h->fd = -1;
    return n == (ssize_t)io.iov_len;
}

static void on_packet(uv_poll_t *poll, int status, int events)
{
    holder *h = poll->data;
    srv_fds *fds = h->fds;
    uint8_t packet[MSG_FD_PACKET];
    if (h->is_asking || h->is_ended)
        return;
    ssize_t n = status < 0 ? 0 : recv(h->socket, packet, sizeof packet, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end(h);
        return;
    }
    memset(&h->reply, 0, sizeof h->reply);
    attnd_err *err = &h->reply.err;
    if (h->is_surplus && fds->n_holders - fds->n_surplus < fds->room) {
        h->is_surplus = false;
        fds->n_surplus--;
    }
    if (h->is_surplus) {
        attnd_fail(err, ATTND_NO_ROOM, "connections = %d: the most at once on the buffer socket",
                   fds->room);
        send_reply(h);
        end(h);
        return;
    }
    if ((size_t)n > sizeof packet)
        attnd_fail(err, ATTND_BAD_MESSAGE, "packet = %zd bytes: at most %zu", n, sizeof packet);
    else
        msg_fd_decode(packet, (size_t)n, &h->request, err);
    if (err->status == ATTND_OK && h->session && h->session != h->request.session)
        attnd_fail(err, ATTND_BAD_MESSAGE, "session: this connection is another session's lease");
    if (err->status == ATTND_OK) {
        uv_poll_stop(&h->poll);
        ask(h, on_asked);
    } else if (!send_reply(h)) {
        end(h);
    }
}

static void on_answered(uv_async_t *async)
{
    srv_fds *fds = async->data;
    pthread_mutex_lock(&fds->lock);
    holder *h = fds->answered;
    fds->answered = NULL;
    pthread_mutex_unlock(&fds->lock);
    while (h) {
        holder *next = h->answered;
        h->is_asking = false;
        if (h->is_closed) {
            if (h->session)
                ask(h, on_ended);
            else
                holder_free(h);
        } else if (h->is_ended || !send_reply(h)) {
            end(h);
        } else {
            uv_poll_start(&h->poll, UV_READABLE | UV_DISCONNECT, on_packet);
        }
        h = next;
    }
}

/* ---- Loop thread: the listener ----------------------------------------------------------------
 */

/* Closes the one that was let in first of those that are nobody's lease and have said nothing;
 * false: there is none. */
static bool displace(const srv_fds *fds, bool is_surplus)
{
    holder *oldest = NULL;
    for (holder *h = fds->holders; h; h = h->next)
        if (h->is_surplus == is_surplus && !h->is_ended && !h->is_asking && !h->session &&
            !srv_socket_has_unread(h->socket))
            oldest = h;
    if (!oldest)
        return false;
    srv_log(SRV_INFO, "buffer connection makes room  open=%d", fds->n_holders);
    srv_stats_add(SRV_COUNT_connections_displaced, 1);
    end(oldest);
    return true;
}

static void on_client(uv_poll_t *poll, int status, int events)
{
    srv_fds *fds = poll->data;
    int fd = srv_socket_accept(fds->socket, &fds->spare);
    if (fd < 0)
        return;
    holder *h = calloc(1, sizeof *h);
    bool is_surplus = fds->n_holders - fds->n_surplus >= fds->room && !displace(fds, false);
    bool is_shut_out = is_surplus && fds->n_surplus >= MAX_SURPLUS && !displace(fds, true);
    if (!h || is_shut_out || uv_poll_init(poll->loop, &h->poll, fd)) {
        srv_log(SRV_WARN, "buffer connection refused  open=%d", fds->n_holders);
        srv_stats_add(SRV_COUNT_connections_refused, 1);
        free(h);
        close(fd);
        return;
    }
    h->fds = fds;
    h->socket = fd;
    h->fd = -1;
    h->poll.data = h;
    h->next = fds->holders;
    h->link = &fds->holders;
    if (h->next)
        h->next->link = &h->next;
    fds->holders = h;
    fds->n_holders++;
    fds->n_surplus += h->is_surplus = is_surplus;
    uv_poll_start(&h->poll, UV_READABLE | UV_DISCONNECT, on_packet);
}

attnd_status srv_fds_open(srv_fds **out, uv_loop_t *loop, const char *path, srv_engine *engine,
                          attnd_err *err)
{
    *out = NULL;
    srv_fds *fds = calloc(1, sizeof *fds);
    if (!fds)
        return attnd_fail(err, ATTND_NO_ROOM, "buffer socket: no memory");
    fds->engine = engine;
    fds->spare = -1;
    fds->room = (int)srv_socket_room(MAX_CONNECTIONS, SHARE);
    attnd_status status = srv_socket_listen(&fds->socket, SOCK_SEQPACKET, path, err);
    if (status != ATTND_OK) {
        free(fds);
        return status;
    }
    strcpy(fds->path, path);
    pthread_mutex_init(&fds->lock, NULL);
    uv_poll_init(loop, &fds->poll, fds->socket);
    uv_async_init(loop, &fds->async, on_answered);
    fds->poll.data = fds->async.data = fds;
    fds->n_handles = 2;
    uv_poll_start(&fds->poll, UV_READABLE, on_client);
    *out = fds;
    return ATTND_OK;
}

void srv_fds_close(srv_fds *fds)
{
    if (!fds)
        return;
    holder *next;
    fds->is_closing = true;
    unlink(fds->path);
    uv_close((uv_handle_t *)&fds->poll, on_handle_closed);
    for (holder *h = fds->holders; h; h = next) {
        next = h->next;
        end(h);
    }
    close(fds->socket);
    if (fds->spare >= 0)
        close(fds->spare);
    close_async(fds);
}
