/* session.c: a client from attnd_connect to attnd_close, and the envelope of its requests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/client/client.h"

enum { PROTOCOL = 1, TIMEOUT_MS = 30000, GOODBYE_MS = 1000 };

/* ---- Requests ---- */

int64_t cli_deadline_ms(const attnd_client *client, uint32_t timeout_ms)
{
    return cli_now_ms() + (timeout_ms ? timeout_ms : client->timeout_ms);
}

/* The daemon's deadline comes a little earlier than ours, so that its answer comes before we give
 * up. */
static uint32_t daemon_timeout_ms(int64_t deadline_ms)
{
    int64_t left = deadline_ms - cli_now_ms();
    left -= left > 1000 ? 100 : left / 10;
    return left < 1 ? 1 : (uint32_t)left;
}

/* Every later call refuses at once. */
static attnd_status end_session(attnd_client *client, const char *why, attnd_err *err)
{
    atomic_store(&client->is_over, true);
    return attnd_fail(err, ATTND_RESTARTED, "%s", why);
}

attnd_status cli_hold(attnd_client *client, int64_t deadline_ms, attnd_err *err)
{
    if (!client->session)
        return ATTND_OK;
    if (atomic_load(&client->is_over))
        return attnd_fail(err, ATTND_RESTARTED,
                          "session: it has ended; a new client makes another");
    bool is_in_time = deadline_ms - cli_now_ms() > CLI_RECONNECT_MS;
    attnd_err why;
    attnd_status status = cli_lease_hold(&client->lease, client->session, deadline_ms, &why);
    if (status == ATTND_OK)
        return ATTND_OK;
    if (why.reason == ATTND_UNREGISTERED || (why.reason == ATTND_RESTARTED && is_in_time))
        return end_session(client, why.text, err);
    return cli_hand_on(&why, err);
}

attnd_status cli_start(attnd_client *client, Attnd__V1__Request *request, int64_t deadline_ms,
                       attnd_pending **out, attnd_err *err)
{
    *out = NULL;
    TRY(cli_hold(client, deadline_ms, err));
    request->id = atomic_fetch_add(&client->last_id, 1) + 1;
    request->session = client->session;
    request->timeout_ms = daemon_timeout_ms(deadline_ms);
    /* The daemon hangs up on more, which would look as if it were gone. The frame has a number of
     * four bytes. 0: it has not said yet. */
    uint64_t most = client->info.max_message_bytes;
    size_t n = attnd__v1__request__get_packed_size(request);
    if (most && n + 4 > most)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "request = %zu bytes: at most %llu (data.max_message); integers may lie "
                          "in a buffer",
                          n, (unsigned long long)most - 4);
    return cli_wire_send(client->wire, client, request, client->session != 0, deadline_ms, out,
                         err);
}

attnd_status cli_hand_on(const attnd_err *why, attnd_err *err)
{
    if (err)
        *err = *why;
    return why->status;
}

attnd_status cli_refusal(const Attnd__V1__Status *status, attnd_err *err)
{
    if (!status)
        return attnd_fail(err, ATTND_BROKEN, "status: the reply has none");
    if (status->code == ATTND__V1__CODE__OK)
        return ATTND_OK;
    attnd_reason reason = ATTND_NO_REASON;
#define X(name, number, status_)                                                                   \
    if (strcmp(status->reason, #name) == 0)                                                        \
        reason = ATTND_##name;
    ATTND_REASON_MAP(X)
#undef X
    attnd_fail(err, reason, "%s", status->message);
    if (err)
        err->status = (attnd_status)status->code;
    return (attnd_status)status->code;
}

static attnd_status check_reply(attnd_client *client, uint32_t op, const Attnd__V1__Reply *reply,
                                attnd_err *err)
{
    if (client->session && reply->instance != client->info.instance) {
        char why[ATTND_ERR_TEXT];
        snprintf(why, sizeof why, "instance = %016llx: the session was of %016llx",
                 (unsigned long long)reply->instance, (unsigned long long)client->info.instance);
        return end_session(client, why, err);
    }
    attnd_err refusal;
    attnd_status status = cli_refusal(reply->status, &refusal);
    if (status != ATTND_OK && client->session && refusal.reason == ATTND_UNREGISTERED)
        return end_session(client, refusal.text, err);
    if (status != ATTND_OK)
        return cli_hand_on(&refusal, err);
    if ((uint32_t)reply->result_case != op)
        return attnd_fail(err, ATTND_BROKEN, "result = %d: %u was asked for", reply->result_case,
                          op);
    return ATTND_OK;
}

attnd_status cli_finish(attnd_pending *pending, Attnd__V1__Reply **out, attnd_err *err)
{
    attnd_client *client = cli_pending_client(pending);
    uint32_t op = cli_pending_op(pending);
    int64_t deadline_ms = cli_pending_deadline_ms(pending);
    attnd_err why = {0};
    attnd_status status = cli_wire_receive(pending, out, &why);
    /* Both connections are gone and the time to make them anew is up. */
    if (why.reason == ATTND_RESTARTED && cli_lease_is_gone(&client->lease) &&
        cli_now_ms() < deadline_ms)
        return end_session(client, why.text, err);
    if (status != ATTND_OK)
        return cli_hand_on(&why, err);
    status = check_reply(client, op, *out, err);
    if (status == ATTND_OK)
        return ATTND_OK;
    attnd__v1__reply__free_unpacked(*out, NULL);
    *out = NULL;
    return status;
}

attnd_status cli_call(attnd_client *client, Attnd__V1__Request *request, int64_t deadline_ms,
                      Attnd__V1__Reply **out, attnd_err *err)
{
    attnd_pending *pending;
    *out = NULL;
    TRY(cli_start(client, request, deadline_ms, &pending, err));
    return cli_finish(pending, out, err);
}

attnd_status attnd_ping(attnd_client *client, uint32_t timeout_ms, attnd_err *err)
{
    Attnd__V1__PingRequest ping = ATTND__V1__PING_REQUEST__INIT;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_PING;
    request.ping = &ping;
    Attnd__V1__Reply *reply;
    TRY(cli_call(client, &request, cli_deadline_ms(client, timeout_ms), &reply, err));
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}

/* ---- Where the daemon is ---- */

enum { PATH = 4096, N_PLACES = 4 };

/* Appends to text[0 .. PATH), cut when it is full. */
static void append(char text[PATH], const char *more)
{
    size_t n = strlen(text);
    snprintf(text + n, PATH - n, "%s", more);
}

/* The directories a daemon may have made its own, in order; empty ones are none. */
static void list_places(char places[N_PLACES][PATH])
{
    const char *own = getenv("RUNTIME_DIRECTORY"), *xdg = getenv("XDG_RUNTIME_DIR");
    snprintf(places[0], PATH, "%s", own ? own : "");
    snprintf(places[1], PATH, "%s%s", xdg ? xdg : "", xdg && *xdg ? "/attnd" : "");
    snprintf(places[2], PATH, "/run/attnd");
    snprintf(places[3], PATH, "/tmp/attnd-%u", (unsigned)getuid());
}

static attnd_status find_dir(char dir[PATH], attnd_err *err)
{
    char places[N_PLACES][PATH], tried[PATH] = "";
    list_places(places);
    for (int i = 0; i < N_PLACES; i++) {
        if (!*places[i])
            continue;
        memcpy(dir, places[i], PATH);
        append(places[i], "/data");
        if (access(places[i], F_OK) == 0)
            return ATTND_OK;
        append(tried, *tried ? ", " : "");
        append(tried, places[i]);
    }
    return attnd_fail(err, ATTND_UNREACHABLE, "data = %s: no such socket; is attnd running?",
                      tried);
}

/* ---- The session ---- */

static attnd_status say_hello(attnd_client *client, const char *name, int64_t deadline_ms,
                              attnd_err *err)
{
    Attnd__V1__HelloRequest hello = ATTND__V1__HELLO_REQUEST__INIT;
    hello.protocol = PROTOCOL;
    hello.client = (char *)(name ? name : "");
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_HELLO;
    request.hello = &hello;
    TRY(cli_call(client, &request, deadline_ms, &client->hello, err));
    const Attnd__V1__HelloReply *h = client->hello->hello;
    if (!h->device || !h->limits || !h->session)
        return attnd_fail(err, ATTND_BROKEN, "hello: without session, device or limits");
    client->models = calloc(h->n_models + 1, sizeof *client->models);
    if (!client->models)
        return attnd_fail(err, ATTND_NO_ROOM, "models = %zu: no memory to list them", h->n_models);
    for (size_t i = 0; i < h->n_models; i++)
        client->models[i] = (attnd_named_model){h->models[i]->model, h->models[i]->name};
    client->info = (attnd_info){.version = h->version,
                                .backend = h->device->backend,
                                .device = h->device->name,
                                .n_threads = h->device->n_threads,
                                .session_ordinal = h->ordinal,
                                .instance = client->hello->instance,
                                .max_message_bytes = h->limits->max_message_bytes,
                                .max_tokens = h->limits->max_tokens,
                                .max_sequences = h->limits->max_sequences,
                                .max_in_flight = h->limits->max_in_flight,
                                .max_buffer_bytes = h->limits->max_buffer_bytes,
                                .max_pool_bytes = h->limits->max_pool_bytes,
                                .max_head_dim = h->limits->max_head_dim,
                                .default_timeout_ms = h->limits->default_timeout_ms,
                                .features = (const char *const *)h->features,
                                .n_features = h->n_features,
                                .models = client->models,
                                .n_models = h->n_models};
    client->session = h->session;
    return ATTND_OK;
}

static attnd_status open_session(attnd_client *client, const char *dir, const char *name,
                                 attnd_err *err)
{
    char found[PATH];
    if (!dir)
        TRY(find_dir(found, err));
    if (asprintf(&client->data_path, "%s/data", dir ? dir : found) < 0 ||
        asprintf(&client->buf_path, "%s/buf", dir ? dir : found) < 0)
        return attnd_fail(err, ATTND_NO_ROOM, "client: no memory for it");
    size_t longest = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    if (strlen(client->data_path) > longest) /* the other path is shorter */
        return attnd_fail(err, ATTND_UNREACHABLE,
                          "data = %s: a socket's path has at most %zu bytes", client->data_path,
                          longest);
    int64_t deadline_ms = cli_deadline_ms(client, 0);
    TRY(cli_wire_open(&client->wire, client->data_path, deadline_ms, err));
    TRY(say_hello(client, name, deadline_ms, err));
    return cli_lease_open(&client->lease, client->buf_path, client->session, deadline_ms, err);
}

attnd_status attnd_connect(attnd_client **out, const char *dir, const char *name,
                           uint32_t timeout_ms, attnd_err *err)
{
    *out = NULL;
    attnd_client *client = calloc(1, sizeof *client);
    if (!client)
        return attnd_fail(err, ATTND_NO_ROOM, "client: no memory for it");
    client->timeout_ms = timeout_ms ? timeout_ms : TIMEOUT_MS;
    cli_lease_init(&client->lease);
    pthread_mutex_init(&client->buffers_lock, NULL);
    attnd_status status = open_session(client, dir, name, err);
    if (status == ATTND_OK)
        *out = client;
    else
        attnd_close(client);
    return status;
}

static void say_goodbye(attnd_client *client)
{
    Attnd__V1__GoodbyeRequest goodbye = ATTND__V1__GOODBYE_REQUEST__INIT;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_GOODBYE;
    request.goodbye = &goodbye;
    Attnd__V1__Reply *reply;
    uint32_t timeout_ms = client->timeout_ms < GOODBYE_MS ? client->timeout_ms : GOODBYE_MS;
    cli_call(client, &request, cli_deadline_ms(client, timeout_ms), &reply, NULL);
    attnd__v1__reply__free_unpacked(reply, NULL);
}

void attnd_close(attnd_client *client)
{
    if (!client)
        return;
    /* Without its lease the session ends by itself. */
    if (client->session && !client->is_over && !cli_lease_is_gone(&client->lease))
        say_goodbye(client);
    cli_lease_fini(&client->lease);
    cli_wire_close(client->wire);
    cli_buffers_close(client);
    pthread_mutex_destroy(&client->buffers_lock);
    attnd__v1__reply__free_unpacked(client->hello, NULL);
    free(client->models);
    free(client->data_path);
    free(client->buf_path);
    free(client);
}

const attnd_info *attnd_get_info(const attnd_client *client)
{
    return &client->info;
}
