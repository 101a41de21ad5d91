/* buffer.c: memory that this process and the daemon both map, and the socket its descriptors come
 * over, which is the session's lease.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/client/client.h"
#include "proto/client/cuda.h"

enum { PACKET = 1024, MAX_FDS = 8 }; /* of a packet; all descriptors but the first are closed */

/* What could not be fetched in time is given back in this time more, or with the session. */
enum { GIVE_BACK_MS = 200 };

struct attnd_buffer {
    attnd_client *client;
    uint64_t handle;
    uint64_t bytes;
    char *name;   /* of its shared memory object; NULL: it has none */
    char *mapped; /* from a page on; the buffer's first byte lies skip bytes behind it */
    size_t skip;
    cli_cuda cuda;      /* or here, skip bytes behind its address */
    attnd_buffer *next; /* client->buffers */
};

/* ---- The buffer socket ---- */

void cli_lease_init(cli_lease *lease)
{
    *lease = (cli_lease){.fd = -1};
    pthread_mutex_init(&lease->lock, NULL);
    cli_cond_init(&lease->idle);
}

void cli_lease_fini(cli_lease *lease)
{
    if (lease->fd >= 0)
        close(lease->fd);
    pthread_mutex_destroy(&lease->lock);
    pthread_cond_destroy(&lease->idle);
}

/* Waits until no exchange is on and begins one; false at the deadline. */
static bool take_turn(cli_lease *lease, int64_t deadline_ms)
{
    pthread_mutex_lock(&lease->lock);
    bool in_time = true;
    while (lease->is_busy && in_time)
        in_time = cli_cond_wait(&lease->idle, &lease->lock, deadline_ms);
    bool taken = !lease->is_busy;
    lease->is_busy = true;
    pthread_mutex_unlock(&lease->lock);
    return taken;
}

static void give_turn(cli_lease *lease)
{
    pthread_mutex_lock(&lease->lock);
    lease->is_busy = false;
    pthread_cond_signal(&lease->idle);
    pthread_mutex_unlock(&lease->lock);
}

/* Waits for one packet; its first descriptor, or -1, goes to *fd. Returns its bytes, 0 when the
 * connection has ended, -1 at the deadline. */
static ssize_t receive_packet(int socket, uint8_t packet[PACKET], int *fd, int64_t deadline_ms)
{
    *fd = -1;
    if (!cli_poll(socket, POLLIN, deadline_ms))
        return -1;
    union {
        char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec data = {packet, PACKET};
    struct msghdr msg = {.msg_iov = &data,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof control};
    ssize_t n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n_fds; i++) {
            int got;
            memcpy(&got, CMSG_DATA(c) + i * sizeof got, sizeof got);
            if (*fd < 0)
                *fd = got;
            else
                close(got);
        }
    }
    return n < 0 ? 0 : n;
}

static attnd_status exchange_in_turn(cli_lease *lease, const Attnd__V1__FdRequest *request,
                                     Attnd__V1__FdReply **out, int *fd, int64_t deadline_ms,
                                     attnd_err *err)
{
    uint8_t packet[PACKET];
    size_t n_request = attnd__v1__fd_request__pack(request, packet);
    ssize_t n = 0;
    if (send(lease->fd, packet, n_request, MSG_NOSIGNAL) == (ssize_t)n_request)
        n = receive_packet(lease->fd, packet, fd, deadline_ms);
    if (n > 0) {
        *out = attnd__v1__fd_reply__unpack(NULL, (size_t)n, packet);
        if (*out)
            return ATTND_OK;
        return attnd_fail(err, ATTND_BROKEN, "buf = %s: sent no FdReply", lease->path);
    }
    /* A late reply would be taken for the next one's. */
    shutdown(lease->fd, SHUT_RDWR);
    if (n < 0)
        return attnd_fail(err, ATTND_TIMED_OUT, "buf = %s: no reply in time", lease->path);
    return attnd_fail(err, ATTND_RESTARTED, "buf = %s: attnd closed the connection or is gone",
                      lease->path);
}

/* One packet out, one in. On refusal there is neither *out nor *fd; else the caller frees *out and
 * closes *fd unless it is -1. The caller has the turn. */
static attnd_status ask_in_turn(cli_lease *lease, uint64_t session, uint64_t buffer,
                                int64_t deadline_ms, Attnd__V1__FdReply **out, int *fd,
                                attnd_err *err)
{
    Attnd__V1__FdRequest request = ATTND__V1__FD_REQUEST__INIT;
    request.session = session;
    request.buffer = buffer;
    *out = NULL;
    *fd = -1;
    attnd_status status = exchange_in_turn(lease, &request, out, fd, deadline_ms, err);
    if (status == ATTND_OK)
        status = cli_refusal((*out)->status, err);
    if (status == ATTND_OK)
        return ATTND_OK;
    attnd__v1__fd_reply__free_unpacked(*out, NULL);
    *out = NULL;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return status;
}

/* ask_in_turn() when it is our turn. */
static attnd_status ask_for(cli_lease *lease, uint64_t session, uint64_t buffer,
                            int64_t deadline_ms, Attnd__V1__FdReply **out, int *fd, attnd_err *err)
{
    *out = NULL;
    *fd = -1;
    if (!take_turn(lease, deadline_ms))
        return attnd_fail(err, ATTND_TIMED_OUT, "buf = %s: another buffer is still asked for",
                          lease->path);
    attnd_status status = ask_in_turn(lease, session, buffer, deadline_ms, out, fd, err);
    give_turn(lease);
    return status;
}

/* The caller has the turn. Puts a new connection at lease->fd, whatever was there. */
static attnd_status connect_in_turn(cli_lease *lease, uint64_t session, int64_t deadline_ms,
                                    attnd_err *err)
{
    int fd;
    TRY(cli_connect("buf", lease->path, SOCK_SEQPACKET, deadline_ms, &fd, err));
    if (lease->fd >= 0) {
        dup3(fd, lease->fd, O_CLOEXEC);
        close(fd);
    } else {
        lease->fd = fd;
    }
    Attnd__V1__FdReply *reply;
    TRY(ask_in_turn(lease, session, 0, deadline_ms, &reply, &fd, err));
    attnd__v1__fd_reply__free_unpacked(reply, NULL);
    if (fd >= 0)
        close(fd);
    return ATTND_OK;
}

attnd_status cli_lease_open(cli_lease *lease, const char *path, uint64_t session,
                            int64_t deadline_ms, attnd_err *err)
{
    lease->path = path;
    return connect_in_turn(lease, session, deadline_ms, err);
}

bool cli_lease_is_gone(const cli_lease *lease)
{
    char byte;
    if (lease->fd < 0)
        return false;
    ssize_t n = recv(lease->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

attnd_status cli_lease_hold(cli_lease *lease, uint64_t session, int64_t deadline_ms, attnd_err *err)
{
    int64_t reconnect_ms = cli_now_ms() + CLI_RECONNECT_MS;
    int64_t until_ms = deadline_ms < reconnect_ms ? deadline_ms : reconnect_ms;
    attnd_err why;
    if (!cli_lease_is_gone(lease))
        return ATTND_OK;
    if (!take_turn(lease, deadline_ms))
        return attnd_fail(err, ATTND_TIMED_OUT, "buf = %s: another thread takes the lease again",
                          lease->path);
    attnd_status status = ATTND_OK;
    bool is_wanted = cli_lease_is_gone(lease); /* no other thread took it meanwhile */
    while (is_wanted) {
        status = connect_in_turn(lease, session, deadline_ms, &why);
        if (status != ATTND_OK)
            shutdown(lease->fd, SHUT_RDWR); /* it leases nothing */
        is_wanted = status == ATTND_UNAVAILABLE && cli_rest(until_ms);
    }
    give_turn(lease);
    if (status == ATTND_UNAVAILABLE)
        return attnd_fail(err, ATTND_RESTARTED,
                          "buf = %s: the connection broke and is not to be had again", lease->path);
    return status == ATTND_OK ? ATTND_OK : cli_hand_on(&why, err);
}

/* ---- Buffers ---- */

/* Maps bytes from offset on of what the descriptor names; closes it in any case. */
static attnd_status map(attnd_buffer *buffer, uint64_t bytes, uint64_t offset, int fd,
                        attnd_err *err)
{
    buffer->skip = offset % (size_t)sysconf(_SC_PAGESIZE);
    buffer->bytes = bytes;
    void *at = mmap(NULL, buffer->skip + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                    (off_t)(offset - buffer->skip));
    int why = errno;
    close(fd);
    if (at == MAP_FAILED)
        return attnd_fail(err, ATTND_NO_ROOM, "bytes = %llu: cannot be mapped: %s",
                          (unsigned long long)bytes, strerror(why));
    buffer->mapped = at;
    return ATTND_OK;
}

/* As map, of memory of a GPU. */
static attnd_status map_cuda(attnd_buffer *buffer, uint64_t bytes, uint64_t offset, int fd,
                             attnd_err *err)
{
    uint64_t end;
    buffer->skip = offset;
    buffer->bytes = bytes;
    attnd_status status = __builtin_add_overflow(offset, bytes, &end) || end > INT64_MAX
                              ? attnd_fail(err, ATTND_BROKEN, "offset = %llu: no buffer lies there",
                                           (unsigned long long)offset)
                              : cli_cuda_map(&buffer->cuda, end, fd, err);
    close(fd);
    return status;
}

/* Maps the buffer by its name. */
static attnd_status map_named(attnd_buffer *buffer, uint64_t bytes, attnd_err *err)
{
    struct stat at;
    if (!buffer->name)
        return attnd_fail(err, ATTND_NO_ROOM, "shm_name: no memory for it");
    if (!*buffer->name)
        return attnd_fail(err, ATTND_BROKEN, "shm_name: attnd gave the buffer none");
    int fd = shm_open(buffer->name, O_RDWR, 0);
    if (fd < 0)
        return attnd_fail(err, errno == EMFILE ? ATTND_NO_ROOM : ATTND_UNREACHABLE,
                          "shm_name = %s: cannot be opened here: %s", buffer->name,
                          strerror(errno));
    /* What lies behind its end would kill us when it is touched. */
    if (fstat(fd, &at) != 0 || (uint64_t)at.st_size < bytes) {
        close(fd);
        return attnd_fail(err, ATTND_BROKEN, "shm_name = %s: shorter than its %llu bytes",
                          buffer->name, (unsigned long long)bytes);
    }
    return map(buffer, bytes, 0, fd, err);
}

static attnd_status fetch(attnd_buffer *buffer, int64_t deadline_ms, attnd_err *err)
{
    attnd_client *client = buffer->client;
    cli_lease *lease = &client->lease;
    Attnd__V1__FdReply *reply;
    int fd;
    attnd_err why;
    attnd_status status =
        ask_for(lease, client->session, buffer->handle, deadline_ms, &reply, &fd, &why);
    if (status == ATTND_UNAVAILABLE) { /* it broke, and asking twice does no harm */
        TRY(cli_hold(client, deadline_ms, err));
        status = ask_for(lease, client->session, buffer->handle, deadline_ms, &reply, &fd, &why);
    }
    if (status != ATTND_OK)
        return cli_hand_on(&why, err);
    if (fd >= 0 && reply->kind == ATTND__V1__FD_KIND__FD_MEMFD) {
        status = map(buffer, reply->bytes, reply->offset, fd, err);
    } else if (fd >= 0 && reply->kind == ATTND__V1__FD_KIND__FD_CUDA_VMM) {
        status = map_cuda(buffer, reply->bytes, reply->offset, fd, err);
    } else {
        status = attnd_fail(err, ATTND_UNSUPPORTED,
                            "kind = %d: this library maps FD_MEMFD (1) and FD_CUDA_VMM (2)",
                            reply->kind);
        if (fd >= 0)
            close(fd);
    }
    attnd__v1__fd_reply__free_unpacked(reply, NULL);
    return status;
}

/* Fills handle and, if it is to have one, name: NULL when there is no memory for it. */
static attnd_status ask(attnd_buffer *buffer, uint64_t bytes, bool named, int64_t deadline_ms,
                        attnd_err *err)
{
    Attnd__V1__CreateBufferRequest create = ATTND__V1__CREATE_BUFFER_REQUEST__INIT;
    create.bytes = bytes;
    create.named = named;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_CREATE_BUFFER;
    request.create_buffer = &create;
    Attnd__V1__Reply *reply;
    TRY(cli_call(buffer->client, &request, deadline_ms, &reply, err));
    buffer->handle = reply->create_buffer->buffer;
    if (named)
        buffer->name = strdup(reply->create_buffer->shm_name);
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}

static attnd_status give_back(attnd_client *client, uint64_t handle, int64_t deadline_ms,
                              attnd_err *err)
{
    Attnd__V1__FreeBufferRequest free_buffer = ATTND__V1__FREE_BUFFER_REQUEST__INIT;
    free_buffer.buffer = handle;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_FREE_BUFFER;
    request.free_buffer = &free_buffer;
    Attnd__V1__Reply *reply;
    TRY(cli_call(client, &request, deadline_ms, &reply, err));
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}

static void unmap(attnd_buffer *buffer)
{
    if (buffer->mapped)
        munmap(buffer->mapped, buffer->skip + buffer->bytes);
    cli_cuda_unmap(&buffer->cuda);
    free(buffer->name);
    free(buffer);
}

static attnd_status create(attnd_client *client, uint64_t bytes, bool named, uint32_t timeout_ms,
                           attnd_buffer **out, attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    *out = NULL;
    attnd_buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        return attnd_fail(err, ATTND_NO_ROOM, "buffer: no memory for its handle");
    buffer->client = client;
    attnd_status status = ask(buffer, bytes, named, deadline_ms, err);
    if (status == ATTND_OK) {
        status = named ? map_named(buffer, bytes, err) : fetch(buffer, deadline_ms, err);
        if (status != ATTND_OK) {
            int64_t a_little = cli_now_ms() + GIVE_BACK_MS;
            give_back(client, buffer->handle, deadline_ms < a_little ? a_little : deadline_ms,
                      NULL);
        }
    }
    if (status != ATTND_OK) {
        unmap(buffer);
        return status;
    }
    pthread_mutex_lock(&client->buffers_lock);
    buffer->next = client->buffers;
    client->buffers = buffer;
    pthread_mutex_unlock(&client->buffers_lock);
    *out = buffer;
    return ATTND_OK;
}

attnd_status attnd_create_buffer(attnd_client *client, uint64_t bytes, uint32_t timeout_ms,
                                 attnd_buffer **out, attnd_err *err)
{
    return create(client, bytes, false, timeout_ms, out, err);
}

attnd_status attnd_create_named_buffer(attnd_client *client, uint64_t bytes, uint32_t timeout_ms,
                                       attnd_buffer **out, attnd_err *err)
{
    return create(client, bytes, true, timeout_ms, out, err);
}

attnd_status attnd_free_buffer(attnd_buffer *buffer, uint32_t timeout_ms, attnd_err *err)
{
    if (!buffer)
        return ATTND_OK;
    attnd_client *client = buffer->client;
    pthread_mutex_lock(&client->buffers_lock);
    attnd_buffer **at = &client->buffers;
    while (*at != buffer)
        at = &(*at)->next;
    *at = buffer->next;
    pthread_mutex_unlock(&client->buffers_lock);
    uint64_t handle = buffer->handle;
    unmap(buffer);
    return give_back(client, handle, cli_deadline_ms(client, timeout_ms), err);
}

void cli_buffers_close(attnd_client *client)
{
    while (client->buffers) {
        attnd_buffer *buffer = client->buffers;
        client->buffers = buffer->next;
        unmap(buffer);
    }
}

void *attnd_buffer_data(const attnd_buffer *buffer)
{
    char *at = buffer->mapped ? buffer->mapped : (char *)(uintptr_t)buffer->cuda.address;
    return at + buffer->skip;
}

bool attnd_buffer_is_device(const attnd_buffer *buffer)
{
    return buffer->cuda.address != 0;
}

static attnd_status check_bounds(const attnd_buffer *buffer, uint64_t offset, uint64_t bytes,
                                 attnd_err *err)
{
    if (offset <= buffer->bytes && bytes <= buffer->bytes - offset)
        return ATTND_OK;
    return attnd_fail(err, ATTND_BAD_LENGTH,
                      "offset = %llu: %llu bytes from there end outside the buffer of %llu",
                      (unsigned long long)offset, (unsigned long long)bytes,
                      (unsigned long long)buffer->bytes);
}

attnd_status attnd_buffer_read(const attnd_buffer *buffer, uint64_t offset, void *to,
                               uint64_t bytes, attnd_err *err)
{
    TRY(check_bounds(buffer, offset, bytes, err));
    const char *from = (const char *)attnd_buffer_data(buffer) + offset;
    if (buffer->cuda.address && bytes)
        return cli_cuda_read(to, (uintptr_t)from, bytes, err);
    if (bytes)
        memcpy(to, from, bytes);
    return ATTND_OK;
}

attnd_status attnd_buffer_write(attnd_buffer *buffer, uint64_t offset, const void *from,
                                uint64_t bytes, attnd_err *err)
{
    TRY(check_bounds(buffer, offset, bytes, err));
    char *to = (char *)attnd_buffer_data(buffer) + offset;
    if (buffer->cuda.address && bytes)
        return cli_cuda_write((uintptr_t)to, from, bytes, err);
    if (bytes)
        memcpy(to, from, bytes);
    return ATTND_OK;
}

uint64_t attnd_buffer_bytes(const attnd_buffer *buffer)
{
    return buffer->bytes;
}

uint64_t attnd_buffer_id(const attnd_buffer *buffer)
{
    return buffer->handle;
}

const char *attnd_buffer_name(const attnd_buffer *buffer)
{
    return buffer->name;
}
