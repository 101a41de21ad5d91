/* control.c: the control socket: its connections and what each waits for; JSON-RPC is in
 * control_rpc.c, the methods are in control_methods.c.
 *
 * A client's line is answered before its next one is read, so that whoever does not read his
 * replies holds one of them and no more. What a method needs from the engine thread comes as a
 * snapshot; meanwhile only this client waits.
 *
 *   read ─▶ line ─▶ message ─▶ call … call ─▶ reply ─▶ write ─▶ read
 *                              └─▶ engine ─┘
 */
#include "daemon/control.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/control_rpc.h"
#include "daemon/log.h"
#include "daemon/socket.h"
#include "daemon/stats.h"

enum {
    MAX_LINE = 1 << 20,
    MAX_CLIENTS = 64,
    LINE_TIMEOUT_MS = 10000, /* from the first byte of a line to its end */
    STUCK_MS = 1000,         /* a reply that is not read for as long may be given up for another */
    MAX_BATCH = 64,          /* calls of one message */
    MAX_REPLY = 16 << 20,    /* bytes; calls of a batch beyond it are refused */
    MAX_LOOKS = 128,         /* snapshots asked for and not back */
    READ_CHUNK = 16 << 10,   /* bytes */
    ENGINE_TIMEOUT_MS = 2000,
    BACKLOG = 64,
};

typedef struct client client;
typedef struct look look;

/* A snapshot under way. Outlives its client when that one gives up. */
struct look {
    srv_snapshot snapshot; /* the engine's until is_back */
    srv_control *control;
    client *asker; /* NULL: gave up */
    look *next;
    bool is_back; /* guarded by control->lock */
};

struct client {
    uv_pipe_t pipe;
    uv_timer_t timer; /* of the line's end, then of the engine's answer, then of the write */
    uv_write_t write;
    srv_control *control;
    client *prev, *next;
    int n_handles; /* not closed yet */
    bool is_closing;
    bool has_ended;    /* end of file seen: what is buffered is still answered */
    bool is_busy;      /* a message is in work or its reply is being written */
    bool is_skipping;  /* the rest of a line that was too long */
    bool has_asked;    /* a message of it was answered */
    bool stays;        /* it asked the daemon to leave and waits for that */
    uint64_t since_ms; /* it connected, was answered, or its reply began to be written */

    srv_lines lines; /* received */

    cJSON *message;   /* in work */
    cJSON *next_call; /* not run yet; NULL: none left */
    const cJSON *id;  /* of the call in work; NULL: a notification */
    bool is_batch;    /* the message is an array */
    const srv_method *method;
    srv_call call;
    look *look; /* the engine's answer that the call waits for */
    char *out;  /* the reply so far */
    size_t out_end, out_bytes;
    bool out_failed;
    void (*after_reply)(void *server);
};

struct srv_control {
    uv_loop_t *loop;
    uv_pipe_t listener;
    uv_async_t returned; /* a snapshot is back */
    char path[sizeof((struct sockaddr_un *)0)->sun_path];
    srv_control_deps deps;
    uint64_t opened_ms;
    client seats[MAX_CLIENTS + 1]; /* the last one is for telling who comes too many */
    client *free_seats;            /* by next */
    bool is_full;                  /* a connection waits for a seat */
    client *clients;
    unsigned n_clients;
    look *looks;
    unsigned n_looks;
    int n_handles; /* of the control socket and its clients, not closed yet */
    bool is_closing;
    pthread_mutex_t lock; /* guards look.is_back; no other lock is taken under it */
};

/* ---- The reply --------------------------------------------------------------------------------
 */

static void out_add(client *c, const char *text, size_t n)
{
    if (c->out_failed)
        return;
    if (c->out_end + n > c->out_bytes) {
        size_t bytes = 2 * (c->out_end + n);
        char *grown = realloc(c->out, bytes);
        if (!grown) {
            c->out_failed = true;
            return;
        }
        c->out = grown;
        c->out_bytes = bytes;
    }
    memcpy(c->out + c->out_end, text, n);
    c->out_end += n;
}

/* Adds {jsonrpc, id, name: item} to the reply; takes item. */
static void out_add_answer(client *c, const char *name, cJSON *item)
{
    char *text = srv_rpc_answer(c->id, name, item);
    if (text) {
        if (c->is_batch)
            out_add(c, c->out_end ? "," : "[", 1);
        out_add(c, text, strlen(text));
    } else {
        c->out_failed = true;
    }
    cJSON_free(text);
}

/* ---- One call ---------------------------------------------------------------------------------
 */

/* The call is over: with its result, or with the error that code is not 0 for. Notifications and
 * only they stay without an answer; a request that is none is told so all the same. */
static void call_close(client *c, int code, const attnd_err *err)
{
    bool is_told = c->id || code == SRV_RPC_PARSE_ERROR || code == SRV_RPC_INVALID_REQUEST;
    if (code == 0 && srv_json_failed()) {
        attnd_err no_room;
        attnd_fail(&no_room, ATTND_NO_ROOM, "result = too large: no memory");
        cJSON_Delete(c->call.result);
        c->call.result = NULL;
        if (is_told)
            out_add_answer(c, "error", srv_rpc_error(SRV_RPC_REFUSED, &no_room));
        return;
    }
    if (code == 0 && is_told) {
        out_add_answer(c, "result", c->call.result);
        c->call.result = NULL;
    } else if (is_told) {
        out_add_answer(c, "error", srv_rpc_error(code, err));
    }
    cJSON_Delete(c->call.result);
    c->call.result = NULL;
    if (code == 0 && c->call.after_reply)
        c->after_reply = c->call.after_reply;
}

/* Runs the method; snapshot NULL when it asked for none. */
static void call_run(client *c, const srv_snapshot *snapshot)
{
    attnd_err err;
    int code = 0;
    srv_json_begin();
    c->call.snapshot = snapshot;
    c->call.result = cJSON_CreateObject();
    if (c->method->run(&c->call, &err) != ATTND_OK)
        code = err.reason == ATTND_BAD_MESSAGE ? SRV_RPC_INVALID_PARAMS : SRV_RPC_REFUSED;
    call_close(c, code, &err);
}

static void client_resume(client *c);

/* ---- Snapshots --------------------------------------------------------------------------------
 */

/* On the engine thread. The lock is held over the send: whoever sees is_back may close the async.
 */
static void look_done(srv_snapshot *snapshot)
{
    look *l = snapshot->arg;
    pthread_mutex_lock(&l->control->lock);
    l->is_back = true;
    uv_async_send(&l->control->returned);
    pthread_mutex_unlock(&l->control->lock);
}

/* Takes the looks that are back out of the list. */
static look *looks_take(srv_control *control)
{
    look *back = NULL, **at = &control->looks;
    pthread_mutex_lock(&control->lock);
    while (*at) {
        look *l = *at;
        if (!l->is_back) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        l->next = back;
        back = l;
        control->n_looks--;
    }
    pthread_mutex_unlock(&control->lock);
    return back;
}

/* The call goes on with what the engine filled. */
static void look_deliver(look *l)
{
    client *c = l->asker;
    attnd_err err;
    c->look = NULL;
    uv_timer_stop(&c->timer);
    if (l->snapshot.status == ATTND_OK) {
        call_run(c, &l->snapshot);
        return;
    }
    attnd_fail(&err, ATTND_NO_ROOM, "snapshot = too large: no memory");
    call_close(c, SRV_RPC_REFUSED, &err);
}

static void control_free_if_closed(srv_control *control);

static void on_returned(uv_async_t *handle)
{
    srv_control *control = handle->data;
    for (look *l = looks_take(control), *next; l; l = next) {
        client *c = l->asker;
        next = l->next;
        if (c)
            look_deliver(l);
        srv_snapshot_fini(&l->snapshot);
        free(l);
        if (c)
            client_resume(c);
    }
    control_free_if_closed(control);
}

static void on_engine_timeout(uv_timer_t *timer)
{
    client *c = timer->data;
    attnd_err err;
    c->look->asker = NULL;
    c->look = NULL;
    attnd_fail(&err, ATTND_TIMED_OUT, "engine = silent: no answer in %d ms; it is held up",
               ENGINE_TIMEOUT_MS);
    call_close(c, SRV_RPC_REFUSED, &err);
    client_resume(c);
}

/* Posts the snapshot wanted to the engine; takes what is in it. */
static void look_open(client *c, srv_snapshot *wanted)
{
    srv_control *control = c->control;
    attnd_err err;
    look *l = control->n_looks < MAX_LOOKS ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        attnd_fail(&err, ATTND_NO_ROOM,
                   "snapshots = %u: the engine does not answer those asked for", control->n_looks);
        srv_snapshot_fini(wanted);
        call_close(c, SRV_RPC_REFUSED, &err);
        return;
    }
    l->snapshot = *wanted;
    l->snapshot.event.run = control->deps.snapshot_fill;
    l->snapshot.done = look_done;
    l->snapshot.arg = l;
    l->control = control;
    l->asker = c;
    l->next = control->looks;
    control->looks = l;
    control->n_looks++;
    c->look = l;
    uv_timer_start(&c->timer, on_engine_timeout, ENGINE_TIMEOUT_MS, 0);
    srv_queue_post(control->deps.engine, &l->snapshot.event);
}

/* ---- One message ------------------------------------------------------------------------------
 */

static void call_begin(client *c, const cJSON *request)
{
    attnd_err err;
    srv_snapshot wanted = {0};
    c->call = (srv_call){.deps = &c->control->deps, .opened_ms = c->control->opened_ms};
    srv_json_begin();
    srv_rpc_request r;
    int code = srv_rpc_read(request, &r, &err);
    c->id = r.id;
    c->method = r.method;
    c->call.params = r.params;
    if (code == 0 && c->out_end > MAX_REPLY) {
        attnd_fail(&err, ATTND_TOO_LARGE, "reply = %zu bytes: a batch is answered up to %d",
                   c->out_end, MAX_REPLY);
        code = SRV_RPC_REFUSED;
    }
    if (code)
        call_close(c, code, &err);
    else if (c->method->ask(&c->call, &wanted))
        look_open(c, &wanted);
    else
        call_run(c, NULL);
}

/* A line that is no message at all. */
static void message_refuse(client *c, int code, const attnd_err *err)
{
    c->id = NULL;
    c->is_batch = false;
    c->call.result = NULL;
    call_close(c, code, err);
}

/* Parses a line into c->message. */
static void message_open(client *c, const char *line, size_t n)
{
    attnd_err err;
    c->message = srv_rpc_parse(line, n, &err);
    if (!c->message) {
        message_refuse(c, SRV_RPC_PARSE_ERROR, &err);
        return;
    }
    c->is_batch = cJSON_IsArray(c->message);
    int n_calls = c->is_batch ? cJSON_GetArraySize(c->message) : 1;
    if (n_calls < 1 || n_calls > MAX_BATCH) {
        attnd_fail(&err, ATTND_BAD_MESSAGE, "batch = %d calls: 1..%d", n_calls, MAX_BATCH);
        message_refuse(c, SRV_RPC_INVALID_REQUEST, &err);
        return;
    }
    c->next_call = c->is_batch ? c->message->child : c->message;
}

static void client_close(client *c);

static void on_write_timeout(uv_timer_t *timer)
{
    client *c = timer->data;
    srv_log(SRV_WARN, "control client closed  reason=\"does not read its replies\"");
    client_close(c);
}

static void message_written(client *c)
{
    void (*after_reply)(void *) = c->after_reply;
    uv_timer_stop(&c->timer);
    c->is_busy = false;
    c->has_asked = true;
    c->since_ms = uv_now(c->control->loop);
    c->out_end = 0;
    c->after_reply = NULL;
    if (c->out_bytes > READ_CHUNK) {
        free(c->out);
        c->out = NULL;
        c->out_bytes = 0;
    }
    c->stays |= after_reply != NULL;
    if (after_reply)
        after_reply(c->control->deps.server);
}

static void on_written(uv_write_t *write, int status)
{
    client *c = write->data;
    if (c->is_closing)
        return;
    if (status < 0) {
        client_close(c);
        return;
    }
    message_written(c);
    client_resume(c);
}

/* Every call is over: the reply goes out. */
static void message_close(client *c)
{
    static const char no_memory[] =
        "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32603,\"message\":\"reply = lost: "
        "no "
        "memory\",\"data\":{\"code\":\"RESOURCE_EXHAUSTED\",\"reason\":\"NO_ROOM\",\"field\":"
        "\"reply\",\"hint\":\"no memory\"}}}\n";
    cJSON_Delete(c->message);
    c->message = NULL;
    c->id = NULL;
    if (c->out_end && c->is_batch)
        out_add(c, "]", 1);
    if (c->out_end)
        out_add(c, "\n", 1);
    uv_buf_t buf = uv_buf_init(c->out, (unsigned)c->out_end);
    if (c->out_failed)
        buf = uv_buf_init((char *)no_memory, sizeof no_memory - 1);
    c->out_failed = false;
    if (buf.len == 0) {
        message_written(c);
        return;
    }
    c->write.data = c;
    c->since_ms = uv_now(c->control->loop);
    uv_timer_start(&c->timer, on_write_timeout,
                   (uint64_t)c->control->deps.config->data_send_timeout, 0);
    if (uv_write(&c->write, (uv_stream_t *)&c->pipe, &buf, 1, on_written) < 0)
        client_close(c);
}

/* ---- Lines ------------------------------------------------------------------------------------
 */

static bool is_blank(const char *line, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r", line[i]) || !line[i])
            return false;
    return true;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    client *c = handle->data;
    char *at = NULL;
    size_t n = 0;
    if (!srv_lines_make_room(&c->lines, &at, &n))
        n = 0;
    *buf = uv_buf_init(at, (unsigned)n);
}

/* A line beyond the limit is answered once and its rest thrown away as it comes. */
static void line_refuse(client *c)
{
    attnd_err err;
    attnd_fail(&err, ATTND_TOO_LARGE, "line = more than %d bytes: a message has at most that many",
               MAX_LINE);
    message_refuse(c, SRV_RPC_INVALID_REQUEST, &err);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    client *c = stream->data;
    if (n == UV_EOF)
        c->has_ended = true;
    else if (n < 0) {
        client_close(c);
        return;
    }
    if (n > 0)
        c->lines.end += (size_t)n;
    client_resume(c);
}

/* Starts the next message that is there; false when there is none. */
static bool client_next(client *c)
{
    const char *line;
    size_t n;
    while (srv_lines_take(&c->lines, c->has_ended, &line, &n)) {
        bool is_rest = c->is_skipping;
        c->is_skipping = false;
        if (is_rest || is_blank(line, n))
            continue;
        c->is_busy = true;
        if (n > MAX_LINE)
            line_refuse(c);
        else
            message_open(c, line, n);
        return true;
    }
    size_t held = srv_lines_held(&c->lines);
    if (held <= MAX_LINE && !c->is_skipping)
        return false;
    srv_lines_drop(&c->lines);
    if (c->is_skipping)
        return false;
    c->is_skipping = c->is_busy = true;
    line_refuse(c);
    return true;
}

static void client_dismiss(client *c, const attnd_err *err);

static void on_line_timeout(uv_timer_t *timer)
{
    client *c = timer->data;
    attnd_err err;
    attnd_fail(&err, ATTND_TIMED_OUT, "line = %zu bytes: it has not ended in %d ms",
               srv_lines_held(&c->lines), LINE_TIMEOUT_MS);
    client_dismiss(c, &err);
}

/* Goes on wherever the client stands, until it waits for something. */
static void client_resume(client *c)
{
    while (!c->is_closing) {
        if (c->look) {
            uv_read_stop((uv_stream_t *)&c->pipe);
            return;
        }
        if (c->next_call) {
            const cJSON *request = c->next_call;
            c->next_call = c->is_batch ? c->next_call->next : NULL;
            call_begin(c, request);
        } else if (c->is_busy) {
            message_close(c);
            if (c->is_busy) {
                uv_read_stop((uv_stream_t *)&c->pipe);
                return;
            }
        } else if (!client_next(c)) {
            break;
        }
    }
    if (c->is_closing)
        return;
    if (c->has_ended) {
        client_close(c);
        return;
    }
    if (srv_lines_held(&c->lines) == 0 && !c->is_skipping)
        uv_timer_stop(&c->timer);
    else if (!uv_is_active((uv_handle_t *)&c->timer))
        uv_timer_start(&c->timer, on_line_timeout, LINE_TIMEOUT_MS, 0);
    uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
}

/* ---- Clients ----------------------------------------------------------------------------------
 */

static void on_connection(uv_stream_t *listener, int status);

static void seat_give(srv_control *control, client *c)
{
    free(c->lines.in);
    free(c->out);
    *c = (client){.next = control->free_seats};
    control->free_seats = c;
    if (!control->is_full || control->is_closing)
        return;
    control->is_full = false;
    on_connection((uv_stream_t *)&control->listener, 0);
}

static void on_client_handle_closed(uv_handle_t *handle)
{
    client *c = handle->data;
    srv_control *control = c->control;
    control->n_handles--;
    if (--c->n_handles == 0)
        seat_give(control, c);
    control_free_if_closed(control);
}

static void client_close(client *c)
{
    void (*after_reply)(void *) = c->after_reply;
    srv_control *control = c->control;
    if (c->is_closing)
        return;
    c->is_closing = true;
    c->after_reply = NULL;
    if (c->look)
        c->look->asker = NULL;
    c->look = NULL;
    cJSON_Delete(c->message);
    c->message = c->next_call = NULL;
    if (c->prev)
        c->prev->next = c->next;
    else
        control->clients = c->next;
    if (c->next)
        c->next->prev = c->prev;
    control->n_clients--;
    uv_close((uv_handle_t *)&c->pipe, on_client_handle_closed);
    uv_close((uv_handle_t *)&c->timer, on_client_handle_closed);
    /* Asked for is asked for, though nobody hears the answer. */
    if (after_reply && !control->is_closing)
        after_reply(control->deps.server);
}

static bool peer_is_ours(const uv_pipe_t *pipe)
{
    uv_os_fd_t fd;
    return uv_fileno((const uv_handle_t *)pipe, &fd) == 0 && srv_socket_is_ours(fd);
}

/* Says why in a message of its own, and hangs up. */
static void client_dismiss(client *c, const attnd_err *err)
{
    c->is_busy = c->has_ended = true;
    message_refuse(c, SRV_RPC_INVALID_REQUEST, err);
    if (c->out_end && !c->out_failed) {
        uv_buf_t bufs[2] = {uv_buf_init(c->out, (unsigned)c->out_end),
                            uv_buf_init((char *)"\n", 1)};
        uv_try_write((uv_stream_t *)&c->pipe, bufs, 2);
    }
    client_close(c);
}

/* ---- Room for one more ------------------------------------------------------------------------
 */

/* How much is lost with a client, least first; KEPT: it is not closed for another one. */
typedef enum worth {
    SILENT,    /* has asked nothing yet */
    BEGINNING, /* nor has this one, but it has sent something just now */
    IDLE,      /* has its answer and asks nothing now */
    STUCK,     /* does not read its reply */
    TALKING,   /* has its answer and has asked again */
    KEPT,
} worth;

static worth client_worth(const client *c, uint64_t now_ms)
{
    uv_os_fd_t fd;
    if (c->stays || c->look)
        return KEPT;
    if (c->is_busy)
        return now_ms - c->since_ms >= STUCK_MS ? STUCK : KEPT;
    if (uv_fileno((const uv_handle_t *)&c->pipe, &fd) == 0 && srv_socket_has_unread(fd))
        return c->has_asked ? TALKING : BEGINNING;
    return c->has_asked ? IDLE : SILENT;
}

/* Closes the client that is worth least, of those the one that has been so for longest, but not
 * spared. False: all are kept. */
static bool room_make(srv_control *control, const client *spared)
{
    uint64_t now_ms = uv_now(control->loop);
    client *least = NULL;
    worth least_worth = KEPT;
    for (client *c = control->clients; c; c = c->next) {
        worth is = c == spared ? KEPT : client_worth(c, now_ms);
        if (is < least_worth || (is == least_worth && least && c->since_ms <= least->since_ms)) {
            least = c;
            least_worth = is;
        }
    }
    if (!least)
        return false;
    unsigned long long idle_ms = now_ms - least->since_ms;
    srv_stats_add(SRV_COUNT_connections_displaced, 1);
    srv_log(SRV_INFO, "control client makes room  idle_ms=%llu", idle_ms);
    attnd_err err;
    attnd_fail(&err, ATTND_NO_ROOM,
               "clients = %d: the most at once; of them this one was idle for longest, %llu ms",
               MAX_CLIENTS, idle_ms);
    if (least_worth == STUCK)
        client_close(least);
    else
        client_dismiss(least, &err);
    return true;
}

/* What has come with the connection is read before the next one may need its seat. */
static void client_begin(client *c)
{
    uv_os_fd_t fd;
    char *at;
    size_t n;
    if (uv_fileno((const uv_handle_t *)&c->pipe, &fd) == 0 &&
        srv_lines_make_room(&c->lines, &at, &n)) {
        ssize_t got = recv(fd, at, n, MSG_DONTWAIT);
        c->lines.end += got > 0 ? (size_t)got : 0;
    }
    client_resume(c);
}

static void on_connection(uv_stream_t *listener, int status)
{
    srv_control *control = listener->data;
    if (status < 0) {
        srv_log(SRV_ERROR, "control accept failed  error=\"%s\"", uv_strerror(status));
        return;
    }
    client *c = control->free_seats;
    if (!c) {
        /* libuv accepts no further connection before this one is taken over: by seat_give. */
        control->is_full = true;
        return;
    }
    control->free_seats = c->next;
    c->control = control;
    c->pipe.data = c->timer.data = c;
    uv_pipe_init(control->loop, &c->pipe, 0);
    uv_timer_init(control->loop, &c->timer);
    c->n_handles = 2;
    control->n_handles += 2;
    c->next = control->clients;
    if (c->next)
        c->next->prev = c;
    control->clients = c;
    control->n_clients++;
    c->since_ms = uv_now(control->loop);
    if (uv_accept(listener, (uv_stream_t *)&c->pipe) < 0 || !peer_is_ours(&c->pipe))
        client_close(c);
    else if (control->n_clients > MAX_CLIENTS && !room_make(control, c)) {
        attnd_err err;
        attnd_fail(&err, ATTND_NO_ROOM, "clients = %d: the most at once, and all are at work",
                   MAX_CLIENTS);
        srv_stats_add(SRV_COUNT_connections_refused, 1);
        client_dismiss(c, &err);
    } else {
        client_begin(c);
    }
}

static void on_control_handle_closed(uv_handle_t *handle);

/* ---- The socket -------------------------------------------------------------------------------
 */

/* The engine thread sends to control->returned as long as a snapshot is out. */
static void control_free_if_closed(srv_control *control)
{
    if (!control->is_closing)
        return;
    if (control->n_looks == 0 && !uv_is_closing((uv_handle_t *)&control->returned))
        uv_close((uv_handle_t *)&control->returned, on_control_handle_closed);
    if (control->n_handles > 0)
        return;
    pthread_mutex_destroy(&control->lock);
    free(control);
}

static void on_control_handle_closed(uv_handle_t *handle)
{
    srv_control *control = handle->data;
    control->n_handles--;
    control_free_if_closed(control);
}

attnd_status srv_control_open(srv_control **out, uv_loop_t *loop, const char *path,
                              const srv_control_deps *deps, attnd_err *err)
{
    int fd = -1;
    *out = NULL;
    /* Not by libuv, which cuts a path that is too long. */
    TRY(srv_socket_listen(&fd, SOCK_STREAM, path, err));
    srv_control *control = calloc(1, sizeof *control);
    if (!control) {
        close(fd);
        return attnd_fail(err, ATTND_NO_ROOM, "control = %zu bytes: no memory", sizeof *control);
    }
    control->loop = loop;
    control->deps = *deps;
    control->opened_ms = uv_hrtime() / 1000000;
    for (size_t i = 0; i <= MAX_CLIENTS; i++)
        seat_give(control, &control->seats[i]);
    memcpy(control->path, path, strlen(path) + 1);
    pthread_mutex_init(&control->lock, NULL);
    control->listener.data = control->returned.data = control;
    int error = uv_async_init(loop, &control->returned, on_returned);
    if (error < 0) {
        close(fd);
        unlink(path);
        free(control);
        return attnd_fail(err, ATTND_UNREACHABLE, "control = %s: %s", path, uv_strerror(error));
    }
    uv_pipe_init(loop, &control->listener, 0);
    control->n_handles = 2;
    error = uv_pipe_open(&control->listener, fd);
    if (error < 0)
        close(fd);
    else
        error = uv_listen((uv_stream_t *)&control->listener, BACKLOG, on_connection);
    if (error < 0) {
        srv_control_close(control);
        return attnd_fail(err, ATTND_UNREACHABLE, "control = %s: %s", path, uv_strerror(error));
    }
    *out = control;
    return ATTND_OK;
}

void srv_control_close(srv_control *control)
{
    if (!control)
        return;
    control->is_closing = true;
    unlink(control->path);
    uv_close((uv_handle_t *)&control->listener, on_control_handle_closed);
    for (client *c = control->clients, *next; c; c = next) {
        next = c->next;
        client_close(c);
    }
    control_free_if_closed(control);
}
