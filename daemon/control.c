/* control.c: the control socket: connections, lines, JSON-RPC envelopes; the methods are in
 * control_methods.c.
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

#include "daemon/control_methods.h"
#include "daemon/log.h"
#include "daemon/socket.h"
#include "daemon/stats.h"

enum {
    MAX_LINE = 1 << 20,
    MAX_CLIENTS = 64,
    MAX_BATCH = 64,        /* calls of one message */
    MAX_REPLY = 16 << 20,  /* bytes; calls of a batch beyond it are refused */
    MAX_LOOKS = 128,       /* snapshots asked for and not back */
    READ_CHUNK = 16 << 10, /* bytes */
    ENGINE_TIMEOUT_MS = 2000,
    BACKLOG = 64,
};

/* The codes of JSON-RPC 2.0, and one for what a method itself refuses. */
enum {
    RPC_PARSE_ERROR = -32700,
    RPC_INVALID_REQUEST = -32600,
    RPC_METHOD_NOT_FOUND = -32601,
    RPC_INVALID_PARAMS = -32602,
    RPC_INTERNAL_ERROR = -32603,
    RPC_REFUSED = -32000,
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
    uv_timer_t timer; /* of the engine's answer, then of the write */
    uv_write_t write;
    srv_control *control;
    client *prev, *next;
    int n_handles; /* not closed yet */
    bool is_closing;
    bool has_ended;   /* end of file seen: what is buffered is still answered */
    bool is_busy;     /* a message is in work or its reply is being written */
    bool is_skipping; /* the rest of a line that was too long */

    char *in; /* received: in[in_first .. in_end), searched for a newline up to in_seen */
    size_t in_first, in_seen, in_end, in_bytes;

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
    cJSON *answer = cJSON_CreateObject();
    const char *id = cJSON_GetStringValue(c->id);
    int64_t number;
    srv_json_text(answer, "jsonrpc", "2.0");
    if (id)
        srv_json_text(answer, "id", id);
    else if (srv_json_whole(c->id, INT64_MIN, INT64_MAX, &number))
        srv_json_count(answer, "id", number);
    else
        srv_json_take(answer, "id", cJSON_CreateNull());
    srv_json_take(answer, name, item);
    char *text = srv_json_failed() ? NULL : cJSON_PrintUnformatted(answer);
    if (text) {
        if (c->is_batch)
            out_add(c, c->out_end ? "," : "[", 1);
        out_add(c, text, strlen(text));
    } else {
        c->out_failed = true;
    }
    cJSON_free(text);
    cJSON_Delete(answer);
}

/* Adds an error to the reply, in the words of the data socket. */
static void out_add_error(client *c, int code, const attnd_err *err)
{
    char field[ATTND_ERR_TEXT];
    const char *hint = strstr(err->text, ": ");
    snprintf(field, sizeof field, "%.*s", (int)attnd_err_field_len(err), err->text);
    srv_json_begin();
    cJSON *error = cJSON_CreateObject();
    srv_json_count(error, "code", code);
    srv_json_text(error, "message", err->text);
    cJSON *data = srv_json_object(error, "data");
    srv_json_text(data, "code", attnd_status_name(err->status));
    srv_json_text(data, "reason", attnd_reason_name(err->reason));
    srv_json_text(data, "field", field);
    srv_json_text(data, "hint", hint ? hint + 2 : "");
    out_add_answer(c, "error", error);
}

/* ---- One call ---------------------------------------------------------------------------------
 */

/* Members of a request, in the order of their names below; NULL: absent. */
typedef enum member { JSONRPC, ID, METHOD, PARAMS, N_MEMBERS } member;

/* Sorts the members of a request; INVALID_REQUEST for one that is unknown or there twice. */
static int envelope_read(const cJSON *request, const cJSON *found[N_MEMBERS], attnd_err *err)
{
    static const char *const names[N_MEMBERS] = {"jsonrpc", "id", "method", "params"};
    const cJSON *item;
    char brief[64];
    if (!cJSON_IsObject(request)) {
        srv_json_brief(request, brief, sizeof brief);
        attnd_fail(err, ATTND_BAD_MESSAGE, "request = %s: an object", brief);
        return RPC_INVALID_REQUEST;
    }
    cJSON_ArrayForEach(item, request)
    {
        size_t i = 0;
        while (i < N_MEMBERS && strcmp(names[i], item->string) != 0)
            i++;
        if (i == N_MEMBERS || found[i]) {
            attnd_fail(err, ATTND_BAD_MESSAGE,
                       "%.48s = given%s: a request has jsonrpc, id, method, params", item->string,
                       i == N_MEMBERS ? "" : " twice");
            return RPC_INVALID_REQUEST;
        }
        found[i] = item;
    }
    return 0;
}

/* Each member has the type it should; *id is set as soon as it is known to be one. */
static int envelope_check(const cJSON *const found[N_MEMBERS], const cJSON **id, attnd_err *err)
{
    const char *version = cJSON_GetStringValue(found[JSONRPC]);
    char brief[64];
    int64_t number;
    if (found[ID] && !cJSON_IsString(found[ID]) && !cJSON_IsNull(found[ID]) &&
        !srv_json_whole(found[ID], INT64_MIN, INT64_MAX, &number)) {
        srv_json_brief(found[ID], brief, sizeof brief);
        attnd_fail(err, ATTND_BAD_MESSAGE,
                   "id = %s: a string, null or a whole number between -2^53 and 2^53", brief);
        return RPC_INVALID_REQUEST;
    }
    *id = found[ID];
    if (!version || strcmp(version, "2.0") != 0) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "jsonrpc = %s: \"2.0\"",
                   found[JSONRPC] ? "other" : "absent");
        return RPC_INVALID_REQUEST;
    }
    if (!cJSON_IsString(found[METHOD])) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "method = %s: a string",
                   found[METHOD] ? "other" : "absent");
        return RPC_INVALID_REQUEST;
    }
    if (found[PARAMS] && !cJSON_IsObject(found[PARAMS]) && !cJSON_IsArray(found[PARAMS])) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "params = other: an object");
        return RPC_INVALID_REQUEST;
    }
    return 0;
}

/* Who asks, what, with what: fills c->id, c->method and the call's parameters. 0, or the code of
 * the error. */
static int call_open(client *c, const cJSON *request, attnd_err *err)
{
    const cJSON *found[N_MEMBERS] = {NULL};
    const char *nearest;
    c->id = NULL;
    int code = envelope_read(request, found, err);
    if (code == 0)
        code = envelope_check(found, &c->id, err);
    if (code)
        return code;
    const char *name = cJSON_GetStringValue(found[METHOD]);
    c->method = srv_method_find(name, &nearest);
    if (!c->method) {
        attnd_fail(err, ATTND_UNSUPPORTED,
                   "method = %.48s: there is none of this name; the nearest is %s", name, nearest);
        return RPC_METHOD_NOT_FOUND;
    }
    if (cJSON_IsArray(found[PARAMS]) && cJSON_GetArraySize(found[PARAMS])) {
        attnd_fail(err, ATTND_BAD_MESSAGE, "params = an array: an object, by name");
        return RPC_INVALID_PARAMS;
    }
    c->call.params = cJSON_IsObject(found[PARAMS]) ? found[PARAMS] : NULL;
    return srv_method_check(c->method, c->call.params, err) == ATTND_OK ? 0 : RPC_INVALID_PARAMS;
}

/* The call is over: with its result, or with the error that code is not 0 for. Notifications and
 * only they stay without an answer; a request that is none is told so all the same. */
static void call_close(client *c, int code, const attnd_err *err)
{
    bool is_told = c->id || code == RPC_PARSE_ERROR || code == RPC_INVALID_REQUEST;
    if (code == 0 && srv_json_failed()) {
        attnd_err no_room;
        attnd_fail(&no_room, ATTND_NO_ROOM, "result = too large: no memory");
        cJSON_Delete(c->call.result);
        c->call.result = NULL;
        if (is_told)
            out_add_error(c, RPC_REFUSED, &no_room);
        return;
    }
    if (code == 0 && is_told) {
        out_add_answer(c, "result", c->call.result);
        c->call.result = NULL;
    } else if (is_told) {
        out_add_error(c, code, err);
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
        code = err.reason == ATTND_BAD_MESSAGE ? RPC_INVALID_PARAMS : RPC_REFUSED;
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
    call_close(c, RPC_REFUSED, &err);
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
    call_close(c, RPC_REFUSED, &err);
    client_resume(c);
}

/* Posts the snapshot wanted to the engine. */
static void look_open(client *c, const srv_snapshot *wanted)
{
    srv_control *control = c->control;
    attnd_err err;
    look *l = control->n_looks < MAX_LOOKS ? calloc(1, sizeof *l) : NULL;
    if (!l) {
        attnd_fail(&err, ATTND_NO_ROOM,
                   "snapshots = %u: the engine does not answer those asked for", control->n_looks);
        call_close(c, RPC_REFUSED, &err);
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
    int code = call_open(c, request, &err);
    if (code == 0 && c->out_end > MAX_REPLY) {
        attnd_fail(&err, ATTND_TOO_LARGE, "reply = %zu bytes: a batch is answered up to %d",
                   c->out_end, MAX_REPLY);
        code = RPC_REFUSED;
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
    const char *end = NULL;
    if (!srv_json_is_clean(line, n)) {
        attnd_fail(&err, ATTND_BAD_MESSAGE,
                   "line = %zu bytes: not UTF-8, or a zero character stands in it", n);
        message_refuse(c, RPC_PARSE_ERROR, &err);
        return;
    }
    c->message = cJSON_ParseWithLengthOpts(line, n, &end, false);
    while (c->message && end < line + n && strchr(" \t\r", *end))
        end++;
    if (!c->message || end < line + n) {
        cJSON_Delete(c->message);
        c->message = NULL;
        attnd_fail(&err, ATTND_BAD_MESSAGE, "line = %zu bytes: not JSON from byte %zu on", n,
                   end ? (size_t)(end - line) : 0);
        message_refuse(c, RPC_PARSE_ERROR, &err);
        return;
    }
    c->is_batch = cJSON_IsArray(c->message);
    int n_calls = c->is_batch ? cJSON_GetArraySize(c->message) : 1;
    if (n_calls < 1 || n_calls > MAX_BATCH) {
        attnd_fail(&err, ATTND_BAD_MESSAGE, "batch = %d calls: 1..%d", n_calls, MAX_BATCH);
        message_refuse(c, RPC_INVALID_REQUEST, &err);
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
    c->out_end = 0;
    c->after_reply = NULL;
    if (c->out_bytes > READ_CHUNK) {
        free(c->out);
        c->out = NULL;
        c->out_bytes = 0;
    }
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

/* Takes the next whole line out of what was received; at the end of file its rest is one. False:
 * there is none yet. */
static bool line_take(client *c, const char **line, size_t *n)
{
    char *newline = NULL;
    if (c->in_seen < c->in_end)
        newline = memchr(c->in + c->in_seen, '\n', c->in_end - c->in_seen);
    c->in_seen = c->in_end;
    if (!newline && !(c->has_ended && c->in_first < c->in_end))
        return false;
    size_t end = newline ? (size_t)(newline - c->in) : c->in_end;
    *line = c->in + c->in_first;
    *n = end - c->in_first;
    c->in_first = c->in_seen = newline ? end + 1 : end;
    return true;
}

/* Makes room behind what was received; what was consumed goes away. */
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    client *c = handle->data;
    size_t kept = c->in_end - c->in_first;
    if (c->in_first) {
        c->in_end = kept;
        memmove(c->in, c->in + c->in_first, kept);
        c->in_seen -= c->in_first;
        c->in_first = 0;
    }
    if (kept == 0 && c->in_bytes > 4 * READ_CHUNK) {
        /* A long line has gone by. */
        free(c->in);
        c->in = NULL;
        c->in_bytes = 0;
    }
    if (c->in_bytes - kept < READ_CHUNK) {
        size_t bytes = 2 * (kept + READ_CHUNK);
        char *grown = realloc(c->in, bytes);
        if (!grown) {
            *buf = uv_buf_init(NULL, 0);
            return;
        }
        c->in = grown;
        c->in_bytes = bytes;
    }
    *buf = uv_buf_init(c->in + c->in_end, (unsigned)(c->in_bytes - c->in_end));
}

/* A line beyond the limit is answered once and its rest thrown away as it comes. */
static void line_refuse(client *c)
{
    attnd_err err;
    attnd_fail(&err, ATTND_TOO_LARGE, "line = more than %d bytes: a message has at most that many",
               MAX_LINE);
    message_refuse(c, RPC_INVALID_REQUEST, &err);
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
        c->in_end += (size_t)n;
    client_resume(c);
}

/* Starts the next message that is there; false when there is none. */
static bool client_next(client *c)
{
    const char *line;
    size_t n;
    while (line_take(c, &line, &n)) {
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
    size_t held = c->in_end - c->in_first;
    if (held <= MAX_LINE && !c->is_skipping)
        return false;
    c->in_first = c->in_seen = c->in_end = 0;
    if (c->is_skipping)
        return false;
    c->is_skipping = c->is_busy = true;
    line_refuse(c);
    return true;
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
    if (c->has_ended)
        client_close(c);
    else
        uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
}

/* ---- Clients ----------------------------------------------------------------------------------
 */

static void on_connection(uv_stream_t *listener, int status);

static void seat_give(srv_control *control, client *c)
{
    free(c->in);
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

/* Says that there is no room, in a message of its own, and hangs up. */
static void client_turn_away(client *c)
{
    attnd_err err;
    c->is_busy = c->has_ended = true;
    attnd_fail(&err, ATTND_NO_ROOM, "clients = %d: the most at once", MAX_CLIENTS);
    message_refuse(c, RPC_INVALID_REQUEST, &err);
    if (c->out_end && !c->out_failed) {
        uv_buf_t bufs[2] = {uv_buf_init(c->out, (unsigned)c->out_end),
                            uv_buf_init((char *)"\n", 1)};
        uv_try_write((uv_stream_t *)&c->pipe, bufs, 2);
    }
    client_close(c);
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
    if (uv_accept(listener, (uv_stream_t *)&c->pipe) < 0 || !peer_is_ours(&c->pipe))
        client_close(c);
    else if (control->n_clients > MAX_CLIENTS)
        client_turn_away(c);
    else
        client_resume(c);
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
