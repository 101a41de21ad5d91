/* fuzz_control.c: lines into the control socket: every one is answered in JSON-RPC, or its client
 * is hung up on.
 *
 * The loop turns on the fuzzer's own thread; snapshots are of fuzz_engine.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "daemon/control.h"
#include "daemon/log.h"
#include "tests/fuzz/world.h"

enum { ROOM = 1 << 20, MOST_TURNS = 10000 };

static uv_loop_t loop;
static srv_control *control;
static char path[64];
static int client = -1;
static char answer[ROOM];

static bool is_ready(void *server, char why[128])
{
    strcpy(why, "fuzzing");
    return false;
}

static attnd_status reload(void *server, srv_change_fn *each, void *arg, attnd_err *err)
{
    each(arg, "log.slow", true, "1s", "2s");
    return ATTND_OK;
}

static void nothing(void *server)
{
}

/* Only the name of the socket is ours to remove. */
static void remove_socket(void)
{
    unlink(path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    attnd_err err;
    fuzz_world_open();
    static srv_control_deps deps;
    deps = (srv_control_deps){.config = fuzz_engine.config,
                              .device = fuzz_engine.device,
                              .instance = 1,
                              .runtime_dir = "/",
                              .engine = &fuzz_engine.queue,
                              .snapshot_fill = srv_engine_snapshot,
                              .is_ready = is_ready,
                              .reload = reload,
                              .drain = nothing,
                              .shutdown = nothing};
    snprintf(path, sizeof path, "/tmp/attnd-fuzz-control-%d", (int)getpid());
    FUZZ_CHECK(!uv_loop_init(&loop));
    FUZZ_CHECK(srv_control_open(&control, &loop, path, &deps, &err) == ATTND_OK);
    atexit(remove_socket);
    return 0;
}

static void connect_client(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    strcpy(at.sun_path, path);
    client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FUZZ_CHECK(!connect(client, (struct sockaddr *)&at, sizeof at));
    FUZZ_CHECK(!fcntl(client, F_SETFL, O_NONBLOCK));
}

static void turn(void)
{
    uv_run(&loop, UV_RUN_NOWAIT);
    srv_engine_turn(&fuzz_engine, false);
}

/* Sends all of it, turning the loop; false: hung up on. */
static bool send_all(const char *data, size_t n)
{
    while (n) {
        ssize_t sent = send(client, data, n, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            return false;
        data += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t)sent : 0;
        turn();
    }
    return true;
}

/* What a line is answered with: an object or an array of them. */
static void check_line(const char *line, size_t n)
{
    cJSON *all = cJSON_ParseWithLength(line, n);
    FUZZ_CHECK(all);
    for (const cJSON *one = cJSON_IsArray(all) ? all->child : all; one;
         one = cJSON_IsArray(all) ? one->next : NULL) {
        const cJSON *error = cJSON_GetObjectItemCaseSensitive(one, "error");
        FUZZ_CHECK(!error != !cJSON_GetObjectItemCaseSensitive(one, "result"));
        FUZZ_CHECK(cJSON_HasObjectItem(one, "id"));
        const cJSON *data = cJSON_GetObjectItemCaseSensitive(error, "data");
        if (error)
            FUZZ_CHECK(*cJSON_GetStringValue(cJSON_GetObjectItem(data, "reason")) &&
                       *cJSON_GetStringValue(cJSON_GetObjectItem(data, "hint")));
    }
    cJSON_Delete(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char last[] =
        "\n{\"jsonrpc\":\"2.0\",\"id\":\"last\",\"method\":\"server.ping\"}\n";
    static const char is_last[] = "\"id\":\"last\",\"result\"";
    if (client < 0)
        connect_client();
    bool is_on = send_all((const char *)data, n) && send_all(last, sizeof last - 1);
    size_t n_answer = 0, from = 0;
    for (int i = 0; is_on; i++) {
        FUZZ_CHECK(i < MOST_TURNS);
        turn();
        ssize_t got = recv(client, answer + n_answer, sizeof answer - n_answer, 0);
        is_on = got > 0 || (got < 0 && errno == EAGAIN);
        n_answer += got > 0 ? (size_t)got : 0;
        for (char *end; (end = memchr(answer + from, '\n', n_answer - from));) {
            size_t n_line = (size_t)(end - answer) - from;
            check_line(answer + from, n_line);
            bool was_last = memmem(answer + from, n_line, is_last, sizeof is_last - 1);
            from += n_line + 1;
            if (was_last && from == n_answer)
                goto done;
        }
        if (from) {
            memmove(answer, answer + from, n_answer - from);
            n_answer -= from;
            from = 0;
        }
        FUZZ_CHECK(n_answer < sizeof answer);
    }
    close(client);
    client = -1;
    for (int i = 0; i < 4; i++)
        turn();
done:
    srv_log_set_level("error");
    return 0;
}
