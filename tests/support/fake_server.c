/* fake_server.c: a daemon for tests of the client. */
#include "tests/support/fake_server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

typedef struct fake_connection fake_connection;

struct fake_connection {
    fake_connection *next;
    int fd;
    bool is_lease;
    bool is_over;
    size_t n;
    uint8_t bytes[1 << 20];
};

/* A reply on its way, for the connection that still has that descriptor. */
struct fake_frame {
    fake_frame *next;
    fake_connection *to;
    size_t n;
    uint8_t bytes[];
};

static int listen_at(const char *dir, const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", dir, name);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    int error = bind(fd, (struct sockaddr *)&address, sizeof address);
    assert(fd >= 0 && !error);
    error = listen(fd, 16);
    assert(!error);
    return fd;
}

/* ---- Answers ---- */

fake_action fake_answer(fake_server *server, const msg_request *request, msg_reply *reply)
{
    static const char *const features[] = {"ping", "attend"};
    static const msg_named models[] = {{900, "ready"}};
    static msg_pool_info pools[FAKE_MAX];
    switch (request->op) {
    case MSG_OP_hello:
        reply->hello = (msg_hello_reply){.session = FAKE_SESSION,
                                         .version = "9.8.7",
                                         .backend = "cpu",
                                         .device_name = "a fake",
                                         .n_threads = 2,
                                         .limits = {16 << 20, 2, 3, 4, 5, 6, 7, 8},
                                         .features = features,
                                         .n_features = 2,
                                         .models = models,
                                         .n_models = 1,
                                         .ordinal = FAKE_ORDINAL};
        break;
    case MSG_OP_open_model:
        for (size_t i = 0; i < request->open_model.spec.n_groups; i++)
            pools[i] = (msg_pool_info){"p", (uint32_t)i + 10, 16, 100, 1000};
        reply->open_model =
            (msg_open_model_reply){77, pools, request->open_model.spec.n_groups, 12};
        break;
    case MSG_OP_create_buffer:
        if (server->memory >= 0)
            close(server->memory);
        server->memory = memfd_create("fake", MFD_CLOEXEC);
        server->memory_bytes = request->create_buffer.bytes;
        int error = ftruncate(server->memory, (off_t)server->memory_bytes + 8192);
        assert(!error);
        reply->create_buffer =
            (msg_create_buffer_reply){.buffer = 55, .bytes = server->memory_bytes};
        break;
    case MSG_OP_create_plan:
        reply->create_plan = (msg_create_plan_reply){66, 1};
        break;
    case MSG_OP_update_plan:
        reply->update_plan = request->update_plan.version + 1;
        break;
    case MSG_OP_attend:
        reply->attend = (msg_attend_reply){5, 6};
        break;
    case MSG_OP_step:
        reply->step = (msg_step_reply){7, 8, 9};
        break;
    case MSG_OP_merge:
        reply->merge = (msg_attend_reply){10, 11};
        break;
    default:
        break;
    }
    return FAKE_REPLY;
}

fake_action fake_fd_answer(fake_server *server, const msg_fd_request *request, msg_fd_reply *reply)
{
    if (request->buffer)
        *reply = (msg_fd_reply){.kind = 1, .bytes = server->memory_bytes};
    return FAKE_REPLY;
}

/* ---- The data socket ---- */

static void send_all(int fd, const void *bytes, size_t n)
{
    for (const char *at = bytes; n;) {
        ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        at += sent;
        n -= (size_t)sent;
    }
}

static fake_frame *make_frame(fake_connection *to, const uint8_t id[4], msg_arena *arena,
                              const msg_reply *reply, bool is_garbage)
{
    size_t n = is_garbage ? 5 : msg_encoded_bytes(reply);
    fake_frame *frame = malloc(sizeof *frame + 13 + n);
    *frame = (fake_frame){.to = to, .n = 13 + n};
    frame->bytes[0] = 1;
    for (int i = 0; i < 8; i++)
        frame->bytes[1 + i] = (uint8_t)((uint64_t)(n + 4) >> (56 - 8 * i));
    memcpy(frame->bytes + 9, id, 4);
    memset(frame->bytes + 13, 0xff, n);
    if (!is_garbage)
        msg_encode(arena, reply, frame->bytes + 13, n, NULL);
    return frame;
}

static void send_frame(const fake_server *server, const fake_frame *frame)
{
    size_t piece = server->piece ? server->piece : frame->n;
    for (size_t done = 0; done < frame->n; done += piece)
        send_all(frame->to->fd, frame->bytes + done,
                 frame->n - done < piece ? frame->n - done : piece);
}

static void send_held(fake_server *server)
{
    while (server->held) {
        fake_frame *frame = server->held;
        server->held = frame->next;
        if (!frame->to->is_over)
            send_frame(server, frame);
        free(frame);
    }
}

static void die(fake_server *server)
{
    for (fake_connection *c = server->connections; c; c = c->next)
        c->is_over = true;
    for (int i = 0; i < 2; i++) {
        if (server->listeners[i] >= 0)
            close(server->listeners[i]);
        server->listeners[i] = -1;
    }
    server->is_dead = true;
}

/* One request: id and message. */
static void take_request(fake_server *server, fake_connection *c, const uint8_t *bytes, size_t n)
{
    msg_request request;
    attnd_err err;
    msg_reply reply = {.instance = FAKE_INSTANCE};
    msg_arena_reset(&server->arena);
    if (msg_decode(&server->arena, bytes + 4, n - 4, &request, &err) != ATTND_OK)
        fprintf(stderr, "fake server: %s\n", err.text);
    server->n_requests[request.op]++;
    server->last_timeout_ms = request.timeout_ms;
    if (server->n_ids < FAKE_MAX)
        server->ids[server->n_ids++] = request.id;
    reply.id = request.id;
    reply.op = request.op;
    fake_action action = server->answer(server, &request, &reply);
    if (action == FAKE_SILENT)
        return;
    if (action == FAKE_BREAK)
        c->is_over = true;
    if (action == FAKE_DIE)
        die(server);
    if (c->is_over)
        return;
    if (action == FAKE_JUNK) {
        send_all(c->fd, "HTTP/1.1 400 Bad Request", 24);
        return;
    }
    fake_frame *frame = make_frame(c, bytes, &server->arena, &reply, action == FAKE_GARBAGE);
    frame->next = server->held;
    server->held = frame;
    if (action != FAKE_HOLD)
        send_held(server);
}

static void take_bytes(fake_server *server, fake_connection *c)
{
    ssize_t n = recv(c->fd, c->bytes + c->n, sizeof c->bytes - c->n, MSG_DONTWAIT);
    if (n <= 0) {
        c->is_over = true;
        return;
    }
    if (server->is_mute)
        return;
    c->n += (size_t)n;
    while (c->n >= 8 && !c->is_over) {
        bool is_greeting = c->bytes[0] == 0;
        uint64_t length = 0;
        if (!is_greeting && c->n < 9)
            return;
        for (int i = 0; i < 8; i++)
            length = length << 8 | c->bytes[1 + i];
        size_t whole = is_greeting ? 8 : 9 + length;
        if (whole > sizeof c->bytes) { /* more than it takes, as from a daemon's max_message on */
            c->is_over = true;
            return;
        }
        if (c->n < whole)
            return;
        if (!is_greeting)
            take_request(server, c, c->bytes + 9, length);
        memmove(c->bytes, c->bytes + whole, c->n - whole);
        c->n -= whole;
    }
}

/* ---- The buffer socket ---- */

static void send_packet(fake_server *server, int to, const msg_fd_reply *reply)
{
    uint8_t packet[MSG_FD_PACKET];
    struct iovec data = {packet, msg_fd_encode(reply, packet)};
    union {
        char bytes[CMSG_SPACE(4 * sizeof(int))];
        struct cmsghdr aligned;
    } control = {{0}};
    struct msghdr msg = {.msg_iov = &data, .msg_iovlen = 1};
    if (reply->kind) {
        size_t n_fds = 1 + server->n_extra_fds;
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        for (size_t i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &server->memory, sizeof(int));
    }
    sendmsg(to, &msg, MSG_NOSIGNAL);
}

static void take_packet(fake_server *server, fake_connection *c)
{
    uint8_t packet[MSG_FD_PACKET];
    ssize_t n = recv(c->fd, packet, sizeof packet, MSG_DONTWAIT);
    if (n <= 0) {
        c->is_over = true;
        return;
    }
    msg_fd_request request;
    msg_fd_reply reply = {0};
    server->n_fd_requests++;
    if (msg_fd_decode(packet, (size_t)n, &request, &reply.err) != ATTND_OK)
        fprintf(stderr, "fake server: %s\n", reply.err.text);
    fake_action action = server->fd_answer(server, &request, &reply);
    if (action == FAKE_REPLY)
        send_packet(server, c->fd, &reply);
    if (action == FAKE_GARBAGE)
        send(c->fd, "\xff\xff", 2, MSG_NOSIGNAL);
    if (action == FAKE_BREAK)
        c->is_over = true;
}

/* ---- The thread ---- */

static void accept_one(fake_server *server, int which)
{
    fake_connection *c = calloc(1, sizeof *c);
    c->fd = accept4(server->listeners[which], NULL, NULL, SOCK_CLOEXEC);
    assert(c->fd >= 0);
    c->is_lease = which == 1;
    c->next = server->connections;
    server->connections = c;
    if (c->is_lease)
        server->n_leases++;
    else
        server->n_connections++;
    if (!c->is_lease && !server->is_mute)
        send_all(c->fd, "\0SP\0\0\x31\0\0", 8);
}

static void drop_over(fake_server *server, bool drop_all)
{
    for (fake_connection **at = &server->connections; *at;) {
        fake_connection *c = *at;
        if (!c->is_over && !drop_all) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        server->n_leases -= c->is_lease;
        for (fake_frame **f = &server->held; *f;) {
            fake_frame *frame = *f;
            if (frame->to != c) {
                f = &frame->next;
                continue;
            }
            *f = frame->next;
            free(frame);
        }
        close(c->fd);
        free(c);
    }
}

static bool serve(fake_server *server)
{
    struct pollfd fds[3 + FAKE_MAX] = {{server->wake[0], POLLIN, 0},
                                       {server->listeners[0], POLLIN, 0},
                                       {server->listeners[1], POLLIN, 0}};
    fake_connection *of[FAKE_MAX];
    nfds_t n = 3;
    for (fake_connection *c = server->connections; c && n < 3 + FAKE_MAX; c = c->next, n++) {
        of[n - 3] = c;
        fds[n] = (struct pollfd){c->fd, POLLIN, 0};
    }
    pthread_mutex_unlock(&server->lock);
    poll(fds, n, -1);
    pthread_mutex_lock(&server->lock);
    char order = 0;
    if (fds[0].revents && read(server->wake[0], &order, 1) == 1 && order == 'q')
        return false;
    for (nfds_t i = 3; i < n; i++) {
        fake_connection *c = of[i - 3];
        if (order == 'l' && c->is_lease)
            c->is_over = true;
        else if (fds[i].revents && !c->is_over)
            (c->is_lease ? take_packet : take_bytes)(server, c);
    }
    for (int i = 0; i < 2; i++)
        if (fds[1 + i].revents && server->listeners[i] >= 0)
            accept_one(server, i);
    drop_over(server, false);
    return true;
}

static void *run(void *arg)
{
    fake_server *server = arg;
    pthread_mutex_lock(&server->lock);
    while (serve(server))
        ;
    drop_over(server, true);
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

void fake_open(fake_server *server)
{
    if (!server->answer)
        server->answer = fake_answer;
    if (!server->fd_answer)
        server->fd_answer = fake_fd_answer;
    server->memory = -1;
    pthread_mutex_init(&server->lock, NULL);
    snprintf(server->dir, sizeof server->dir, "/tmp/attnd-fake-XXXXXX");
    char *made = mkdtemp(server->dir);
    int error = pipe2(server->wake, O_CLOEXEC);
    assert(made && !error);
    attnd_status status = msg_arena_init(&server->arena, 1 << 24, NULL);
    assert(status == ATTND_OK);
    server->listeners[0] = listen_at(server->dir, "data", SOCK_STREAM);
    server->listeners[1] = -1;
    if (!server->is_unleased)
        server->listeners[1] = listen_at(server->dir, "buf", SOCK_SEQPACKET);
    error = pthread_create(&server->thread, NULL, run, server);
    assert(!error);
}

static void order(fake_server *server, char what)
{
    ssize_t n = write(server->wake[1], &what, 1);
    assert(n == 1);
}

void fake_close(fake_server *server)
{
    order(server, 'q');
    pthread_join(server->thread, NULL);
    die(server);
    if (server->memory >= 0)
        close(server->memory);
    close(server->wake[0]);
    close(server->wake[1]);
    msg_arena_fini(&server->arena);
    char path[80];
    static const char *const names[] = {"data", "buf"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", server->dir, names[i]);
        unlink(path);
    }
    rmdir(server->dir);
    pthread_mutex_destroy(&server->lock);
}

static unsigned read_count(fake_server *server, const unsigned *count)
{
    pthread_mutex_lock(&server->lock);
    unsigned n = *count;
    pthread_mutex_unlock(&server->lock);
    return n;
}

unsigned fake_n_requests(fake_server *server, msg_op op)
{
    return read_count(server, &server->n_requests[op]);
}

unsigned fake_n_fd_requests(fake_server *server)
{
    return read_count(server, &server->n_fd_requests);
}

unsigned fake_n_connections(fake_server *server)
{
    return read_count(server, &server->n_connections);
}

unsigned fake_copy_ids(fake_server *server, uint64_t ids[FAKE_MAX])
{
    pthread_mutex_lock(&server->lock);
    unsigned n = server->n_ids;
    memcpy(ids, server->ids, n * sizeof *ids);
    pthread_mutex_unlock(&server->lock);
    return n;
}

bool fake_wait_leases(fake_server *server, unsigned n)
{
    for (int i = 0; i < 200 && read_count(server, &server->n_leases) != n; i++)
        usleep(10000);
    return read_count(server, &server->n_leases) == n;
}

void fake_end_leases(fake_server *server)
{
    order(server, 'l');
}
