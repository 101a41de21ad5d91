/* test_srv_control.c: a line in, a line out: envelopes, refusals, lists, and clients that behave
 * badly, against a control socket on a real loop and an engine that is played.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cjson/cJSON.h"
#include "daemon/control.h"
#include "daemon/log.h"
#include "daemon/stats.h"

enum { LINE = 1 << 20 };

typedef struct fixture {
    char dir[64], path[128];
    cfg config;
    ker_device *device;
    srv_queue queue;
    srv_control_deps deps;
    pthread_t loop_thread, engine_thread;
    uv_loop_t loop;
    uv_async_t stop;
    srv_control *control;
    /* What the played engine does. */
    atomic_bool engine_is_silent, engine_leaves;
    atomic_int n_filled;
    _Atomic attnd_status fill_status;
    /* What the methods did. */
    atomic_bool is_ready, config_is_broken;
    atomic_int n_drains, n_shutdowns;
} fixture;

static fixture *current; /* snapshot_fill knows no more than the engine it is given */

/* ---- The played engine ---- */

static void *copy(const void *views, size_t bytes)
{
    void *out = malloc(bytes);
    assert_non_null(out);
    memcpy(out, views, bytes);
    return out;
}

static void fill_layer(srv_snapshot *s)
{
    s->layer.found = s->layer_model == UINT64_MAX && s->layer_index == 3;
    s->layer.problem = (ker_problem){.kind = ATTND_LAYER_GQA,
                                     .n_heads = 8,
                                     .n_kv_heads = 2,
                                     .head_dim = 64,
                                     .head_dim_v = 64,
                                     .sm_scale = 0.125f,
                                     .dtype = ATTND_DTYPE_F32,
                                     .kv = {.block_stride = 32768,
                                            .head_stride = {4096, 4096},
                                            .token_stride = {256, 256},
                                            .block_size = 16,
                                            .dtype = ATTND_DTYPE_F32},
                                     .mask = {.kinds = KER_MASK_WINDOW, .window = 128}};
}

static void fill(srv_engine *engine, srv_event *event)
{
    srv_snapshot *s = (srv_snapshot *)event;
    static const srv_session_view session = {.ordinal = 7,
                                             .client = "bench",
                                             .age_ms = 1234,
                                             .leased = true,
                                             .n_in_flight = 1,
                                             .n_models = 1,
                                             .n_buffers = 2,
                                             .buffer_bytes = UINT64_MAX,
                                             .pool_bytes = 4096,
                                             .n_requests = 99};
    static const srv_model_view model = {
        .handle = UINT64_MAX, .name = "m", .session = 7, .n_layers = 4, .n_pools = 1};
    static const srv_pool_view pool = {.model = UINT64_MAX,
                                       .name = "main",
                                       .session = 7,
                                       .owner = KV_OWNER_CLIENT,
                                       .n_blocks = 100,
                                       .n_free = 90,
                                       .block_size = 16,
                                       .block_bytes = 65536,
                                       .bytes = (uint64_t)1 << 60,
                                       .dtype = ATTND_DTYPE_BF16,
                                       .layout = ATTND_LAYOUT_HND,
                                       .n_layers = 4,
                                       .max_kv_len = 2147483647};
    static const srv_buffer_view buffer = {
        .handle = 12, .session = 7, .bytes = 4096, .n_in_use = 1, .freed = true};
    static const srv_plan_view plan = {.handle = UINT64_MAX,
                                       .model = UINT64_MAX - 1,
                                       .session = 7,
                                       .version = 41,
                                       .n_seqs = 3,
                                       .n_versions = 2};
    s->status = current->fill_status;
    if (s->status == ATTND_OK) {
        s->sessions = copy(&session, sizeof session);
        s->models = copy(&model, sizeof model);
        s->pools = copy(&pool, sizeof pool);
        s->buffers = copy(&buffer, sizeof buffer);
        s->plans = copy(&plan, sizeof plan);
        s->n_sessions = s->n_models = s->n_pools = s->n_buffers = s->n_plans = 1;
        fill_layer(s);
    }
    current->n_filled++;
    s->done(s);
}

static void *engine_main(void *arg)
{
    fixture *f = arg;
    for (;;) {
        srv_event *event = srv_queue_take(&f->queue, (uint64_t)uv_hrtime() + 2000000);
        while (event && f->engine_is_silent)
            usleep(1000);
        for (srv_event *next; event; event = next) {
            next = event->next;
            event->run(NULL, event);
        }
        if (f->engine_leaves)
            return NULL;
    }
}

/* ---- The loop ---- */

static bool is_ready(void *server, char why[128])
{
    fixture *f = server;
    snprintf(why, 128, "draining");
    return f->is_ready;
}

static attnd_status reload(void *server, srv_change_fn *each, void *arg, attnd_err *err)
{
    fixture *f = server;
    if (f->config_is_broken)
        return attnd_fail(err, ATTND_BAD_CONFIG, "attnd.json:3:5: log.slow = x: milliseconds");
    each(arg, "log.slow", true, "1s", "5ms");
    each(arg, "data.contexts", false, "72", "80");
    return ATTND_OK;
}

static void drain(void *server)
{
    ((fixture *)server)->n_drains++;
}

static void leave(void *server)
{
    ((fixture *)server)->n_shutdowns++;
}

static void on_stop(uv_async_t *handle)
{
    fixture *f = handle->data;
    srv_control_close(f->control);
    uv_close((uv_handle_t *)handle, NULL);
}

static void *loop_main(void *arg)
{
    uv_run(arg, UV_RUN_DEFAULT);
    return NULL;
}

static void *open_fixture(void)
{
    fixture *f = calloc(1, sizeof *f);
    attnd_err err;
    const ker_device_options options = {
        .n_threads = 1, .n_slots = 1, .workspace_bytes = 1 << 20, .isa = "portable"};
    strcpy(f->dir, "/tmp/attnd-control-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof f->path, "%s/control", f->dir);
    cfg_defaults(&f->config);
    assert_int_equal(ker_device_open(&f->device, &options, &err), ATTND_OK);
    srv_queue_init(&f->queue);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    uv_async_init(&f->loop, &f->stop, on_stop);
    f->stop.data = f;
    f->is_ready = true;
    f->deps = (srv_control_deps){.config = &f->config,
                                 .device = f->device,
                                 .instance = UINT64_MAX - 1,
                                 .runtime_dir = f->dir,
                                 .engine = &f->queue,
                                 .snapshot_fill = fill,
                                 .server = f,
                                 .is_ready = is_ready,
                                 .reload = reload,
                                 .drain = drain,
                                 .shutdown = leave};
    current = f;
    return f;
}

/* What its threads read stands in it already. */
static void serve(fixture *f)
{
    attnd_err err;
    srv_stats_reset();
    srv_log_set_level("error");
    assert_int_equal(srv_control_open(&f->control, &f->loop, f->path, &f->deps, &err), ATTND_OK);
    assert_int_equal(pthread_create(&f->engine_thread, NULL, engine_main, f), 0);
    assert_int_equal(pthread_create(&f->loop_thread, NULL, loop_main, &f->loop), 0);
}

static int setup(void **state)
{
    *state = open_fixture();
    serve(*state);
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    uv_async_send(&f->stop);
    f->engine_is_silent = false;
    pthread_join(f->loop_thread, NULL);
    f->engine_leaves = true;
    pthread_join(f->engine_thread, NULL);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    srv_queue_fini(&f->queue);
    ker_device_close(f->device);
    assert_int_equal(access(f->path, F_OK), -1);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
    return 0;
}

/* ---- A client ---- */

static int dial(const fixture *f)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval patience = {.tv_sec = 10};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strcpy(address.sun_path, f->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    return fd;
}

static void say(int fd, const char *text)
{
    size_t n = strlen(text);
    assert_int_equal(send(fd, text, n, MSG_NOSIGNAL), n);
}

/* The next line without its newline; "" at the end of file. */
static const char *hear(int fd)
{
    static char line[LINE];
    size_t n = 0;
    while (n < sizeof line - 1) {
        ssize_t got = recv(fd, line + n, 1, 0);
        if (got < 0)
            fail_msg("no answer: %s", strerror(errno));
        if (got == 0 || line[n] == '\n')
            break;
        n++;
    }
    line[n] = '\0';
    return line;
}

/* One line there, one back. */
static const char *ask(fixture *f, const char *line)
{
    int fd = dial(f);
    say(fd, line);
    say(fd, "\n");
    const char *got = hear(fd);
    close(fd);
    return got;
}

#define PING(id) "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"method\":\"server.ping\"}"
#define PONG(id)                                                                                   \
    "{\"jsonrpc\":\"2.0\",\"id\":" id ",\"result\":{\"instance\":\"18446744073709551614\"}}"
#define CALL(method, params)                                                                       \
    "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"" method "\",\"params\":" params "}"

/* The error of an answer, checked word by word. */
static void assert_refused(fixture *f, const char *line, int code, const char *status,
                           const char *reason, const char *field, const char *text)
{
    const char *answer = ask(f, line);
    cJSON *json = cJSON_Parse(answer);
    cJSON *error = cJSON_GetObjectItemCaseSensitive(json, "error");
    cJSON *data = cJSON_GetObjectItemCaseSensitive(error, "data");
    if (!data)
        fail_msg("%s\nis answered with %s", line, answer);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(error, "message")->valuestring, text);
    assert_int_equal(cJSON_GetObjectItemCaseSensitive(error, "code")->valuedouble, code);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(data, "code")->valuestring, status);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(data, "reason")->valuestring, reason);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(data, "field")->valuestring, field);
    assert_string_equal(cJSON_GetObjectItemCaseSensitive(data, "hint")->valuestring,
                        strstr(text, ": ") + 2);
    cJSON_Delete(json);
}

/* The result of a call; the caller deletes what *json is. */
static cJSON *result_of(fixture *f, const char *line, cJSON **json)
{
    const char *answer = ask(f, line);
    *json = cJSON_Parse(answer);
    cJSON *result = cJSON_GetObjectItemCaseSensitive(*json, "result");
    if (!result)
        fail_msg("%s\nis answered with %s", line, answer);
    return result;
}

static const char *text_at(const cJSON *at, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(at, name));
    if (!text)
        fail_msg("no text %s", name);
    return text;
}

static double number_at(const cJSON *at, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(at, name);
    if (!cJSON_IsNumber(item))
        fail_msg("no number %s", name);
    return item->valuedouble;
}

/* ---- Envelopes ---- */

static void an_id_comes_back_as_it_was(void **state)
{
    fixture *f = *state;
    static const char *const ids[] = {
        "1",    "0",   "-7", "9007199254740992", "-9007199254740992", "\"a\\u00e9\\\"b\"",
        "\"\"", "null"};
    static const char *const back[] = {
        "1", "0", "-7", "9007199254740992", "-9007199254740992", "\"aé\\\"b\"", "\"\"", "null"};
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        char line[256], wanted[256];
        snprintf(line, sizeof line, PING("%s"), ids[i]);
        snprintf(wanted, sizeof wanted, PONG("%s"), back[i]);
        assert_string_equal(ask(f, line), wanted);
    }
}

static void a_line_that_is_no_request_is_told_so(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *line, *field, *text;
        int code;
    } cases[] = {
        {"{", "line", "line = 1 bytes: not JSON from byte 0 on", -32700},
        {"{} x", "line", "line = 4 bytes: not JSON from byte 3 on", -32700},
        {"{\"a\":\"\\u0000\"}", "line",
         "line = 14 bytes: not UTF-8, or a zero character stands in it", -32700},
        {"\"\xff\"", "line", "line = 3 bytes: not UTF-8, or a zero character stands in it", -32700},
        {"\"\xed\xa0\x80\"", "line", "line = 5 bytes: not UTF-8, or a zero character stands in it",
         -32700},
        {"[]", "batch", "batch = 0 calls: 1..64", -32600},
        {"7", "request", "request = 7: an object", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\",\"parms\":{}}", "parms",
         "parms = given: a request has jsonrpc, id, method, params", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"server.ping\"}", "id",
         "id = given twice: a request has jsonrpc, id, method, params", -32600},
        {"{\"id\":1,\"method\":\"server.ping\"}", "jsonrpc", "jsonrpc = absent: \"2.0\"", -32600},
        {"{\"jsonrpc\":\"1.0\",\"method\":\"server.ping\"}", "jsonrpc", "jsonrpc = other: \"2.0\"",
         -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1}", "method", "method = absent: a string", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":7}", "method", "method = other: a string",
         -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\",\"params\":7}", "params",
         "params = other: an object", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1.5,\"method\":\"server.ping\"}", "id",
         "id = 1.5: a string, null or a whole number between -2^53 and 2^53", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"server.ping\"}", "id",
         "id = [1]: a string, null or a whole number between -2^53 and 2^53", -32600},
        {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server.ping\",\"params\":[1]}", "params",
         "params = an array: an object, by name", -32602},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(f, cases[i].line, cases[i].code, "INVALID_ARGUMENT", "BAD_MESSAGE",
                       cases[i].field, cases[i].text);
}

static void an_unknown_method_is_answered_with_the_nearest(void **state)
{
    assert_refused(*state, CALL("server.pingg", "{}"), -32601, "UNIMPLEMENTED", "UNSUPPORTED",
                   "method",
                   "method = server.pingg: there is none of this name; the nearest is server.ping");
    assert_refused(*state, CALL("Stats.get", "{}"), -32601, "UNIMPLEMENTED", "UNSUPPORTED",
                   "method",
                   "method = Stats.get: there is none of this name; the nearest is stats.get");
}

static void parameters_are_strict(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *line, *field, *text;
    } cases[] = {
        {CALL("server.ping", "{\"x\":1}"), "params.x",
         "params.x = given: server.ping takes no parameters"},
        {CALL("log.level", "{\"levle\":\"info\"}"), "params.levle",
         "params.levle = given: log.level takes none of this name; the nearest is level"},
        {CALL("log.level", "{\"level\":\"info\",\"level\":\"debug\"}"), "params.level",
         "params.level = given twice: once is right"},
        {CALL("log.level", "{\"level\":7}"), "params.level", "params.level = 7: a string"},
        {CALL("log.level", "{\"level\":\"loud\"}"), "params.level",
         "params.level = loud: error, warn, info or debug"},
        {CALL("config.get", "{\"key\":\"log.leval\"}"), "params.key",
         "params.key = log.leval: no such key; the nearest is log.level"},
        {CALL("kernels.explain", "{\"model\":\"12x\"}"), "params.model",
         "params.model = \"12x\": a 64-bit number as a string of digits"},
        {CALL("kernels.explain", "{\"model\":\"18446744073709551616\"}"), "params.model",
         "params.model = \"18446744073709551616\": a 64-bit number as a string of digits"},
        {CALL("kernels.explain", "{\"layer\":2147483648}"), "params.layer",
         "params.layer = 2147483648: a whole number, 0 .. 2147483647"},
        {CALL("kernels.explain", "{\"layer\":-1}"), "params.layer",
         "params.layer = -1: a whole number, 0 .. 2147483647"},
        {CALL("kernels.explain", "{\"q_lens\":3}"), "params.q_lens",
         "params.q_lens = 3: an array of whole numbers, 0 .. 2147483647"},
        {CALL("kernels.explain", "{\"q_lens\":[1,null]}"), "params.q_lens[1]",
         "params.q_lens[1] = null: a whole number, 0 .. 2147483647"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(f, cases[i].line, -32602, "INVALID_ARGUMENT", "BAD_MESSAGE", cases[i].field,
                       cases[i].text);
    assert_int_equal(srv_log_level(), SRV_ERROR);
}

static void a_text_that_is_cut_stays_utf8(void **state)
{
    /* The 48th byte falls into the two bytes of an e with an accent. */
    assert_string_equal(
        ask(*state, CALL("log.level", "{\"level\":\"12345678901234567890123456789012345678901234567"
                                      "éé\"}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32602,\"message\":\"params.level = "
        "12345678901234567890123456789012345678901234567?: error, warn, info or debug\",\"data\":{"
        "\"code\":\"INVALID_ARGUMENT\",\"reason\":\"BAD_MESSAGE\",\"field\":\"params.level\","
        "\"hint\":\"error, warn, info or debug\"}}}");
}

static void a_batch_is_answered_in_one_line_without_its_notifications(void **state)
{
    fixture *f = *state;
    assert_string_equal(
        ask(f, "[" PING("1") ",{\"jsonrpc\":\"2.0\",\"method\":\"server.ping\"},"
                             "{\"jsonrpc\":\"2.0\",\"id\":\"l\",\"method\":"
                             "\"buffers.list\"}," PING("2") ",7]"),
        "[" PONG("1") ",{\"jsonrpc\":\"2.0\",\"id\":\"l\",\"result\":{\"buffers\":"
                      "[{\"buffer\":\"12\",\"session\":7,\"bytes\":\"4096\","
                      "\"n_in_use\":1,\"freed\":true}]}}," PONG(
                          "2") ",{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,"
                               "\"message\":\"request = 7: an object\",\"data\":{\"code\":"
                               "\"INVALID_ARGUMENT\",\"reason\":\"BAD_MESSAGE\",\"field\":"
                               "\"request\",\"hint\":\"an object\"}}}]");
    char line[65 * 3 + 2] = "[";
    for (int i = 0; i < 65; i++)
        strcat(line, i ? ",{}" : "{}");
    strcat(line, "]");
    assert_refused(f, line, -32600, "INVALID_ARGUMENT", "BAD_MESSAGE", "batch",
                   "batch = 65 calls: 1..64");
}

static void a_notification_is_carried_out_and_not_answered(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    say(fd, "{\"jsonrpc\":\"2.0\",\"method\":\"log.level\",\"params\":{\"level\":\"debug\"}}\n"
            "{\"jsonrpc\":\"2.0\",\"method\":\"no.such\"}\n"
            "{\"jsonrpc\":\"2.0\",\"method\":\"pools.list\"}\n"
            "[{\"jsonrpc\":\"2.0\",\"method\":\"server.ping\"}]\n"
            "  \n\r\n" PING("9") "\r\n");
    assert_string_equal(hear(fd), PONG("9"));
    assert_int_equal(srv_log_level(), SRV_DEBUG);
    assert_int_equal(f->n_filled, 1);
    close(fd);
}

/* ---- Lines ---- */

static void answers_come_in_order_however_the_bytes_arrive(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    const char *text = PING("1") "\n" PING("2") "\n";
    for (const char *s = text; *s; s++)
        assert_int_equal(send(fd, s, 1, MSG_NOSIGNAL), 1);
    say(fd, PING("3") "\n" CALL("models.list", "{}") "\n" PING("4") "\n");
    assert_string_equal(hear(fd), PONG("1"));
    assert_string_equal(hear(fd), PONG("2"));
    assert_string_equal(hear(fd), PONG("3"));
    assert_non_null(strstr(hear(fd), "\"models\""));
    assert_string_equal(hear(fd), PONG("4"));
    close(fd);
}

static void a_peer_that_has_ended_its_side_still_gets_its_answers(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    say(fd, CALL("pools.list", "{}") "\n" PING("2")); /* the last line has no newline */
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    assert_non_null(strstr(hear(fd), "\"pools\""));
    assert_string_equal(hear(fd), PONG("2"));
    assert_string_equal(hear(fd), "");
    close(fd);
}

static void a_line_of_a_mebibyte_is_read_and_a_longer_one_is_refused_once(void **state)
{
    fixture *f = *state;
    int fd = dial(f);
    char *line = malloc(3 * LINE + 1);
    size_t n = strlen(PING("1"));
    memset(line, ' ', LINE);
    memcpy(line + LINE - n, PING("1"), n);
    line[LINE] = '\n';
    line[LINE + 1] = '\0';
    say(fd, line);
    assert_string_equal(hear(fd), PONG("1"));
    memset(line, 'x', 3 * LINE);
    line[3 * LINE] = '\0';
    say(fd, line);
    say(fd, "\n" PING("2") "\n");
    assert_string_equal(
        hear(fd), "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":"
                  "\"line = more than 1048576 bytes: a message has at most that many\","
                  "\"data\":{\"code\":\"INVALID_ARGUMENT\",\"reason\":\"TOO_LARGE\",\"field\":"
                  "\"line\",\"hint\":\"a message has at most that many\"}}}");
    assert_string_equal(hear(fd), PONG("2"));
    close(fd);
    free(line);
}

/* ---- Clients that behave badly ---- */

/* Whether a client that was let in still is. */
static bool is_served(int fd)
{
    ssize_t n = send(fd, PING("2") "\n", strlen(PING("2") "\n"), MSG_NOSIGNAL);
    return n > 0 && strcmp(hear(fd), PONG("2")) == 0;
}

static void assert_told(int fd, const char *what)
{
    const char *line = hear(fd);
    if (!strstr(line, what))
        fail_msg("%s\nis not in %s", what, line);
    assert_string_equal(hear(fd), "");
}

static void silent_clients_shut_nobody_out(void **state)
{
    fixture *f = *state;
    enum { N_SILENT = 64, N_ASKED = 20 };
    int silent[N_SILENT], asked[N_ASKED];
    for (int i = 0; i < N_ASKED; i++) {
        asked[i] = dial(f);
        say(asked[i], PING("1") "\n");
        assert_string_equal(hear(asked[i]), PONG("1"));
    }
    for (int i = 0; i < N_SILENT; i++) {
        silent[i] = dial(f);
        say(silent[i], i % 2 ? "{" : "\n\n");
    }
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    /* Who has asked stays, however long ago it was; the oldest of the others went. */
    for (int i = 0; i < N_ASKED; i++)
        assert_true(is_served(asked[i]));
    assert_told(silent[0],
                "\"clients = 64: the most at once; of them this one was idle for longest");
    say(silent[N_SILENT - 2], PING("2") "\n");
    assert_string_equal(hear(silent[N_SILENT - 2]), PONG("2"));
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_displaced), N_ASKED + 1);
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 0);
    for (int i = 0; i < N_SILENT; i++)
        close(silent[i]);
    for (int i = 0; i < N_ASKED; i++)
        close(asked[i]);
}

static void among_idle_clients_the_longest_idle_makes_room(void **state)
{
    fixture *f = *state;
    int fds[64];
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], PING("1") "\n");
        assert_string_equal(hear(fds[i]), PONG("1"));
    }
    usleep(5000);
    assert_true(is_served(fds[0]));
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    assert_told(fds[1], "idle for longest");
    for (int i = 0; i < 64; i++) {
        assert_true(i == 1 || is_served(fds[i]));
        close(fds[i]);
    }
}

static void one_too_many_is_told_so_while_all_others_are_at_work(void **state)
{
    fixture *f = *state;
    int fds[64];
    f->engine_is_silent = true;
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], CALL("pools.list", "{}") "\n");
    }
    for (int i = 0; i < 20; i++) {
        int fd = dial(f);
        assert_string_equal(
            hear(fd), "{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":-32600,\"message\":"
                      "\"clients = 64: the most at once, and all are at work\",\"data\":{\"code\":"
                      "\"RESOURCE_EXHAUSTED\",\"reason\":\"NO_ROOM\",\"field\":\"clients\","
                      "\"hint\":\"the most at once, and all are at work\"}}}");
        assert_string_equal(hear(fd), "");
        close(fd);
    }
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 20);
    f->engine_is_silent = false;
    for (int i = 0; i < 64; i++) {
        assert_non_null(strstr(hear(fds[i]), "\"main\""));
        close(fds[i]);
    }
}

/* 64 clients that read none of their replies are given up for one that does, after a second. */
static void who_does_not_read_makes_room_too(void **state)
{
    fixture *f = *state;
    int fds[64];
    char line[64 * 64 + 8] = "[";
    for (int i = 0; i < 64; i++)
        strcat(line, i ? ",{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}"
                       : "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}");
    strcat(line, "]\n");
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], line);
    }
    const char *answer = "";
    for (int i = 0; i < 300 && strcmp(answer, PONG("1")) != 0; i++) {
        usleep(10000);
        int fd = dial(f);
        if (send(fd, PING("1") "\n", strlen(PING("1") "\n"), MSG_NOSIGNAL) > 0)
            answer = hear(fd);
        close(fd);
    }
    assert_string_equal(answer, PONG("1"));
    for (int i = 0; i < 64; i++)
        close(fds[i]);
}

static void who_waits_for_the_end_keeps_its_place(void **state)
{
    fixture *f = *state;
    int waits = dial(f), fds[64];
    say(waits, CALL("server.drain", "{}") "\n");
    assert_non_null(strstr(hear(waits), "\"result\""));
    usleep(5000);
    for (int i = 0; i < 64; i++) {
        fds[i] = dial(f);
        say(fds[i], PING("2") "\n");
        assert_string_equal(hear(fds[i]), PONG("2"));
    }
    assert_true(is_served(waits));
    close(waits);
    for (int i = 0; i < 64; i++)
        close(fds[i]);
}

static int short_timeout(void **state)
{
    fixture *f = *state = open_fixture();
    f->config.data_send_timeout = 100;
    serve(f);
    return 0;
}

static void who_does_not_read_is_hung_up_on_and_holds_up_nobody(void **state)
{
    fixture *f = *state;
    int fd = dial(f), n_written = 0;
    char line[64 * 64 + 8] = "[";
    for (int i = 0; i < 64; i++)
        strcat(line, i ? ",{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}"
                       : "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"rpc.discover\"}");
    strcat(line, "]\n");
    /* Its lines are taken only as its answers leave: soon there is no room to send another. */
    while (n_written < 1000 && send(fd, line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line))
        n_written++;
    assert_true(n_written < 1000);
    assert_true(errno == EPIPE || errno == ECONNRESET);
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    close(fd);
}

static void a_client_that_leaves_while_the_engine_works_harms_nothing(void **state)
{
    fixture *f = *state;
    f->engine_is_silent = true;
    for (int i = 0; i < 20; i++) {
        int fd = dial(f);
        say(fd, CALL("sessions.list", "{}") "\n" PING("1") "\n");
        close(fd);
    }
    usleep(20000);
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    f->engine_is_silent = false;
    assert_non_null(strstr(ask(f, CALL("sessions.list", "{}")), "\"bench\""));
}

static void a_silent_engine_is_said_so_and_the_socket_answers_on(void **state)
{
    fixture *f = *state;
    f->engine_is_silent = true;
    int fd = dial(f);
    say(fd, CALL("pools.list", "{}") "\n");
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    assert_string_equal(hear(fd),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":"
                        "\"engine = silent: no answer in 2000 ms; it is held up\",\"data\":{"
                        "\"code\":\"DEADLINE_EXCEEDED\",\"reason\":\"TIMED_OUT\",\"field\":"
                        "\"engine\",\"hint\":\"no answer in 2000 ms; it is held up\"}}}");
    say(fd, PING("2") "\n");
    assert_string_equal(hear(fd), PONG("2"));
    f->engine_is_silent = false; /* the late answer finds nobody */
    say(fd, CALL("pools.list", "{}") "\n");
    assert_non_null(strstr(hear(fd), "\"main\""));
    close(fd);
}

static void an_engine_without_memory_is_said_so(void **state)
{
    fixture *f = *state;
    f->fill_status = ATTND_RESOURCE_EXHAUSTED;
    assert_refused(f, CALL("pools.list", "{}"), -32000, "RESOURCE_EXHAUSTED", "NO_ROOM", "snapshot",
                   "snapshot = too large: no memory");
}

static void another_user_is_hung_up_on(void **state)
{
    fixture *f = *state;
    int status;
    if (geteuid() != 0) {
        print_message("# only root can become another user\n");
        skip();
    }
    /* The mode would keep him out already: it is opened to see the second door. */
    assert_int_equal(chmod(f->dir, 0711), 0);
    assert_int_equal(chmod(f->path, 0666), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        if (setresuid(65534, 65534, 65534) < 0)
            _exit(2);
        int fd = dial(f);
        send(fd, PING("1") "\n", strlen(PING("1") "\n"), MSG_NOSIGNAL);
        _exit(recv(fd, &byte, 1, 0) > 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(srv_stats_counter(SRV_COUNT_connections_refused), 1);
    assert_string_equal(ask(f, PING("1")), PONG("1"));
}

/* ---- Methods ---- */

static void ready_says_why_not(void **state)
{
    fixture *f = *state;
    assert_string_equal(ask(f, CALL("server.ready", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"ready\":true,\"why\":\"\"}}");
    f->is_ready = false;
    assert_string_equal(
        ask(f, CALL("server.ready", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"ready\":false,\"why\":\"draining\"}}");
}

static void info_tells_who_answers(void **state)
{
    fixture *f = *state;
    cJSON *json, *result = result_of(f, CALL("server.info", "{}"), &json);
    ker_device_info info;
    ker_device_describe(f->device, &info);
    assert_true(strlen(text_at(result, "version")) > 0);
    assert_string_equal(text_at(result, "instance"), "18446744073709551614");
    assert_string_equal(text_at(result, "runtime_dir"), f->dir);
    assert_int_equal(number_at(result, "pid"), getpid());
    assert_true(number_at(result, "uptime_ms") < 60000);
    const cJSON *device = cJSON_GetObjectItemCaseSensitive(result, "device");
    assert_string_equal(text_at(device, "backend"), info.backend);
    assert_string_equal(text_at(device, "isa"), info.isa);
    assert_string_equal(text_at(device, "workspace_bytes"), "1048576");
    assert_int_equal(number_at(device, "n_slots"), 1);
    const cJSON *ops = cJSON_GetObjectItemCaseSensitive(result, "ops");
    assert_string_equal(cJSON_GetArrayItem(ops, 0)->valuestring, "ping");
    cJSON_Delete(json);
}

static void drain_and_shutdown_act_once_their_answer_is_out(void **state)
{
    fixture *f = *state;
    assert_string_equal(ask(f, CALL("server.drain", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"draining\":true}}");
    assert_string_equal(ask(f, CALL("server.shutdown", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"leaving\":true}}");
    assert_string_equal(ask(f, PING("1")), PONG("1"));
    for (int i = 0; i < 1000 && !f->n_shutdowns; i++)
        usleep(1000);
    assert_int_equal(f->n_drains, 1);
    assert_int_equal(f->n_shutdowns, 1);
    int fd = dial(f);
    say(fd, "{\"jsonrpc\":\"2.0\",\"method\":\"server.drain\"}\n" PING("2") "\n");
    assert_string_equal(hear(fd), PONG("2"));
    assert_int_equal(f->n_drains, 2);
    close(fd);
    assert_refused(f, CALL("server.drain", "{\"now\":1}"), -32602, "INVALID_ARGUMENT",
                   "BAD_MESSAGE", "params.now",
                   "params.now = given: server.drain takes no parameters");
    assert_int_equal(f->n_drains, 2);
}

static void discover_lists_every_method_with_its_parameters(void **state)
{
    cJSON *json, *result = result_of(*state, CALL("rpc.discover", "{}"), &json);
    const cJSON *methods = cJSON_GetObjectItemCaseSensitive(result, "methods"), *method;
    int n = 0, n_levels = 0;
    cJSON_ArrayForEach(method, methods)
    {
        n++;
        assert_true(strchr(text_at(method, "name"), '.') != NULL);
        assert_true(strlen(text_at(method, "summary")) > 0);
        const cJSON *params = cJSON_GetObjectItemCaseSensitive(method, "params");
        if (strcmp(text_at(method, "name"), "log.level") != 0)
            continue;
        n_levels++;
        assert_int_equal(cJSON_GetArraySize(params), 1);
        assert_string_equal(text_at(cJSON_GetArrayItem(params, 0), "name"), "level");
        assert_string_equal(text_at(cJSON_GetArrayItem(params, 0), "type"), "text");
    }
    int rows = 0;
#define METHOD(id, name, command, ask, summary) rows++;
#define PARAM(id, name, type, presence, summary)
#include "daemon/methods.def"
#undef METHOD
#undef PARAM
    assert_int_equal(n, rows);
    assert_int_equal(n_levels, 1);
    cJSON_Delete(json);
}

static void lists_show_what_the_engine_owns_with_wide_numbers_as_strings(void **state)
{
    fixture *f = *state;
    assert_string_equal(
        ask(f, CALL("sessions.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"sessions\":[{\"session\":7,\"client\":"
        "\"bench\",\"age_ms\":1234,\"leased\":true,\"n_requests\":99,\"n_in_flight\":1,"
        "\"n_models\":1,\"n_buffers\":2,\"buffer_bytes\":\"18446744073709551615\",\"pool_bytes\":"
        "\"4096\"}]}}");
    assert_string_equal(
        ask(f, CALL("models.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"models\":[{\"model\":"
        "\"18446744073709551615\",\"name\":\"m\",\"session\":7,\"n_layers\":4,\"n_pools\":1}]}}");
    assert_string_equal(
        ask(f, CALL("pools.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"pools\":[{\"model\":\"18446744073709551615\","
        "\"name\":\"main\",\"session\":7,\"owner\":\"client\",\"dtype\":\"bf16\",\"layout\":"
        "\"hnd\",\"n_layers\":4,\"block_size\":16,\"n_blocks\":100,\"n_free\":90,\"max_kv_len\":"
        "2147483647,\"block_bytes\":\"65536\",\"bytes\":\"1152921504606846976\"}]}}");
}

static void stats_count_and_reset(void **state)
{
    fixture *f = *state;
    uint64_t stages[SRV_N_STAGES] = {0};
    cJSON *json, *result;
    stages[SRV_STAGE_TOTAL] = 50000;
    srv_stats_add(SRV_COUNT_requests, 3);
    srv_stats_add(SRV_COUNT_received_bytes, (uint64_t)1 << 60);
    srv_stats_request(MSG_OP_attend, ATTND_OK, stages);
    srv_stats_request(MSG_OP_attend, ATTND_INVALID_ARGUMENT, stages);
    srv_stats_gauge(SRV_GAUGE_buffer_bytes, 4096);
    result = result_of(f, CALL("stats.get", "{}"), &json);
    const cJSON *at = cJSON_GetObjectItemCaseSensitive(result, "counters");
    assert_int_equal(number_at(at, "requests"), 3);
    assert_string_equal(text_at(at, "received_bytes"), "1152921504606846976");
    at = cJSON_GetObjectItemCaseSensitive(result, "gauges");
    assert_string_equal(text_at(at, "buffer_bytes"), "4096");
    at = cJSON_GetObjectItemCaseSensitive(result, "ops");
    assert_int_equal(cJSON_GetArraySize(at), 1);
    at = cJSON_GetArrayItem(at, 0);
    assert_string_equal(text_at(at, "op"), "attend");
    assert_int_equal(number_at(at, "count"), 2);
    const cJSON *codes = cJSON_GetObjectItemCaseSensitive(at, "codes");
    assert_int_equal(cJSON_GetArraySize(codes), 2);
    assert_int_equal(number_at(codes, "INVALID_ARGUMENT"), 1);
    const cJSON *total = cJSON_GetObjectItemCaseSensitive(at, "total_us");
    assert_int_equal(number_at(total, "count"), 2);
    assert_true(number_at(total, "p50") > 49 && number_at(total, "p50") <= 50);
    assert_null(cJSON_GetObjectItemCaseSensitive(at, "plan_us"));
    cJSON_Delete(json);
    assert_string_equal(ask(f, CALL("stats.reset", "{}")),
                        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"reset\":true}}");
    result = result_of(f, CALL("stats.get", "{}"), &json);
    assert_int_equal(number_at(cJSON_GetObjectItemCaseSensitive(result, "counters"), "requests"),
                     0);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(result, "ops")), 0);
    assert_string_equal(text_at(cJSON_GetObjectItemCaseSensitive(result, "gauges"), "buffer_bytes"),
                        "4096");
    cJSON_Delete(json);
    srv_stats_gauge(SRV_GAUGE_buffer_bytes, -4096);
}

static void plans_are_listed_with_their_versions(void **state)
{
    assert_string_equal(
        ask(*state, CALL("plans.list", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"plans\":[{\"plan\":\"18446744073709551615\","
        "\"model\":\"18446744073709551614\",\"session\":7,\"version\":41,\"n_seqs\":3,"
        "\"n_versions\":2}]}}");
}

static void a_reload_lists_what_is_in_force_and_what_waits(void **state)
{
    fixture *f = *state;
    assert_string_equal(
        ask(f, CALL("config.reload", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"applied\":[{\"key\":\"log.slow\",\"was\":"
        "\"1s\",\"now\":\"5ms\"}],\"needs_restart\":[{\"key\":\"data.contexts\",\"was\":\"72\","
        "\"now\":\"80\"}]}}");
    f->config_is_broken = true;
    assert_string_equal(
        ask(f, CALL("config.reload", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32000,\"message\":\"attnd.json:3:5: "
        "log.slow = x: milliseconds\",\"data\":{\"code\":\"INVALID_ARGUMENT\",\"reason\":"
        "\"BAD_CONFIG\",\"field\":\"\",\"hint\":\"log.slow = x: "
        "milliseconds\"}}}");
}

static void config_and_log_level_tell_what_is_in_force(void **state)
{
    fixture *f = *state;
    cJSON *json, *result;
    assert_string_equal(
        ask(f, CALL("log.level", "{\"level\":\"warn\"}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"level\":\"warn\",\"was\":\"error\"}}");
    assert_string_equal(
        ask(f, CALL("log.level", "{}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"level\":\"warn\",\"was\":\"warn\"}}");
    assert_string_equal(
        ask(f, CALL("config.get", "{\"key\":\"log.level\"}")),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"config\":{\"log.level\":\"warn\"}}}");
    result = result_of(f, CALL("config.get", "{}"), &json);
    const cJSON *all = cJSON_GetObjectItemCaseSensitive(result, "config");
    int n = 0;
    while (cfg_key_at((size_t)n))
        n++;
    assert_int_equal(cJSON_GetArraySize(all), n);
    assert_string_equal(text_at(all, "device.slots"), "64");
    cJSON_Delete(json);
}

static void kernels_are_listed_with_what_they_serve(void **state)
{
    cJSON *json, *result = result_of(*state, CALL("kernels.list", "{}"), &json);
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(result, "kernels");
    assert_int_equal(cJSON_GetArraySize(list), ker_n_kernels());
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        const cJSON *at = cJSON_GetArrayItem(list, (int)i);
        assert_string_equal(text_at(at, "kernel"), ker_kernel_name(ker_kernel_at(i)));
        assert_true(strlen(text_at(at, "family")) > 0);
        assert_true(strlen(text_at(at, "needs")) > 0);
    }
    cJSON_Delete(json);
}

/* ---- kernels.explain ---- */

static const cJSON *phase_at(const cJSON *result, int i)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(result, "phases"), i);
}

static void explain_chooses_a_kernel_and_says_why_not_the_others(void **state)
{
    cJSON *json,
        *result =
            result_of(*state,
                      CALL("kernels.explain",
                           "{\"n_heads\":8,\"n_kv_heads\":2,\"head_dim\":64,\"dtype\":\"f32\","
                           "\"block_size\":16,\"q_lens\":[32,1,1],\"kv_lens\":[32,100,7]}"),
                      &json);
    const cJSON *problem = cJSON_GetObjectItemCaseSensitive(result, "problem");
    assert_int_equal(number_at(problem, "n_contexts"), 1);
    assert_int_equal(number_at(problem, "n_tokens"), 34);
    assert_int_equal(number_at(problem, "n_blocks"), 2 + 7 + 1);
    const cJSON *floor = cJSON_GetObjectItemCaseSensitive(result, "floor");
    /* K and V of 139 keys, 2 kv heads, 64 channels, and q and out of 34 tokens, 8 heads, in fp32.
     */
    assert_true(strtoull(text_at(floor, "bytes"), NULL, 10) >=
                (139 * 2 * 64 * 2 + 34 * 8 * 64 * 2) * 4);
    /* Visible pairs: 32·33/2 + 100 + 7. */
    assert_true(strtoull(text_at(floor, "flops"), NULL, 10) >= (528 + 107) * 8 * 2 * 128);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(result, "phases")), 2);
    for (int i = 0; i < 2; i++) {
        const cJSON *phase = phase_at(result, i), *verdict;
        const cJSON *all = cJSON_GetObjectItemCaseSensitive(phase, "kernels");
        const char *chosen = text_at(phase, "kernel");
        bool chosen_serves = false;
        assert_string_equal(text_at(phase, "phase"), i ? "generation" : "context");
        assert_int_equal(number_at(phase, "n_seqs"), i ? 2 : 1);
        assert_true(number_at(phase, "n_items") > 0);
        assert_true(number_at(phase, "n_splits") >= 1);
        assert_int_equal(cJSON_GetArraySize(all), ker_n_kernels());
        cJSON_ArrayForEach(verdict, all)
        {
            bool serves = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(verdict, "serves"));
            chosen_serves |= serves && strcmp(text_at(verdict, "kernel"), chosen) == 0;
            if (serves)
                assert_true(number_at(verdict, "cost_us") >= 0);
            else
                assert_true(strlen(text_at(verdict, "reason")) > 0);
        }
        assert_true(chosen_serves);
    }
    cJSON_Delete(json);
}

static void explain_takes_a_layer_of_an_open_model(void **state)
{
    cJSON *json, *result = result_of(*state,
                                     CALL("kernels.explain",
                                          "{\"model\":\"18446744073709551615\",\"layer\":3,"
                                          "\"n_seqs\":4,\"kv_len\":4096,\"n_splits\":4}"),
                                     &json);
    const cJSON *problem = cJSON_GetObjectItemCaseSensitive(result, "problem");
    assert_int_equal(number_at(problem, "n_heads"), 8);
    assert_string_equal(text_at(problem, "kv_dtype"), "f32");
    assert_int_equal(number_at(problem, "window"), 128);
    assert_int_equal(number_at(problem, "n_seqs"), 4);
    assert_int_equal(number_at(problem, "n_contexts"), 0);
    assert_string_equal(text_at(phase_at(result, 0), "phase"), "generation");
    cJSON_Delete(json);
    assert_refused(*state,
                   CALL("kernels.explain", "{\"model\":\"18446744073709551615\",\"layer\":4,"
                                           "\"kv_len\":1}"),
                   -32000, "NOT_FOUND", "NO_SUCH_HANDLE", "params.model",
                   "params.model = 18446744073709551615: no open model has this handle and a layer "
                   "4; models.list has those that are open");
}

static void explain_says_what_no_kernel_serves(void **state)
{
    cJSON *json, *result = result_of(*state,
                                     CALL("kernels.explain",
                                          "{\"n_heads\":2,\"head_dim\":64,\"dtype\":\"i8\","
                                          "\"kv_dtype\":\"f32\",\"kv_len\":10}"),
                                     &json);
    const cJSON *refused = cJSON_GetObjectItemCaseSensitive(result, "refused");
    assert_string_equal(text_at(refused, "code"), "UNIMPLEMENTED");
    assert_string_equal(text_at(refused, "reason"), "UNSUPPORTED");
    const cJSON *phase = phase_at(result, 0), *verdict;
    assert_null(cJSON_GetObjectItemCaseSensitive(phase, "kernel"));
    cJSON_ArrayForEach(verdict, cJSON_GetObjectItemCaseSensitive(phase, "kernels"))
        assert_true(strlen(text_at(verdict, "reason")) > 0);
    cJSON_Delete(json);
}

static void a_wrong_problem_is_refused_by_name(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *params, *reason, *text;
        int code;
    } cases[] = {
        {"{\"kv_len\":1}", "BAD_MESSAGE",
         "params.n_heads = absent: give a model, or n_heads and head_dim", -32602},
        {"{\"n_heads\":1,\"kv_len\":1}", "BAD_MESSAGE",
         "params.head_dim = absent: give a model, or n_heads and head_dim", -32602},
        {"{\"n_heads\":0,\"head_dim\":8,\"kv_len\":1}", "BAD_GEOMETRY",
         "params.n_heads = 0: 1..65535", -32000},
        {"{\"n_heads\":1,\"head_dim\":4097,\"kv_len\":1}", "BAD_GEOMETRY",
         "params.head_dim = 4097: 1..1024", -32000},
        {"{\"n_heads\":3,\"n_kv_heads\":2,\"head_dim\":8,\"kv_len\":1}", "BAD_GEOMETRY",
         "params.n_heads = 3: a multiple of n_kv_heads = 2", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"dtype\":\"f64\",\"kv_len\":1}", "BAD_MESSAGE",
         "params.dtype = f64: f32, f16, bf16, e4m3, e5m2, i8", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"layer\":1,\"kv_len\":1}", "BAD_MESSAGE",
         "params.layer = given: it needs a model", -32602},
        {"{\"model\":\"1\",\"head_dim\":8,\"kv_len\":1}", "BAD_MESSAGE",
         "params.head_dim = given: the model says it; leave one of the two out", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"mask\":\"tree\",\"kv_len\":1}", "BAD_MESSAGE",
         "params.mask = tree: causal or full", -32602},
        {"{\"n_heads\":1,\"head_dim\":8}", "BAD_MESSAGE",
         "params.kv_len = absent: give kv_len, or q_lens and kv_lens", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[1]}", "BAD_MESSAGE",
         "params.kv_lens = absent: q_lens and kv_lens go together", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"kv_lens\":[1]}", "BAD_MESSAGE",
         "params.q_lens = absent: q_lens and kv_lens go together", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[1],\"kv_lens\":[1],\"n_seqs\":1}",
         "BAD_MESSAGE", "params.n_seqs = given: q_lens says it; leave one of the two out", -32602},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[1,1],\"kv_lens\":[1]}", "BAD_LENGTH",
         "params.kv_lens = 1 entries: q_lens has 2", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_lens\":[],\"kv_lens\":[]}", "BAD_LENGTH",
         "params.q_lens = 0 entries: 1..65536 sequences (limits.max_sequences)", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"n_seqs\":65537,\"kv_len\":1}", "TOO_LARGE",
         "params.n_seqs = 65537: 1..65536 sequences (limits.max_sequences)", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_len\":65537,\"kv_len\":65537}", "TOO_LARGE",
         "params.q_lens = 65537 tokens: at most 65536 (limits.max_tokens)", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"kv_len\":1,\"n_contexts\":2}", "BAD_PHASE",
         "params.n_contexts = 2: there are 1 sequences", -32000},
        {"{\"n_heads\":1,\"head_dim\":8,\"q_len\":3,\"kv_len\":2,\"n_contexts\":0}", "BAD_LENGTH",
         "params.kv_lens[0] = 2: a generation of 3 query tokens sees them at least", -32000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[512], field[64];
        snprintf(line, sizeof line, CALL("kernels.explain", "%s"), cases[i].params);
        snprintf(field, sizeof field, "%.*s", (int)strcspn(cases[i].text, " "), cases[i].text);
        assert_refused(f, line, cases[i].code, "INVALID_ARGUMENT", cases[i].reason, field,
                       cases[i].text);
    }
}

static void a_block_size_that_no_pool_has_is_refused(void **state)
{
    const char *answer = ask(*state, CALL("kernels.explain", "{\"n_heads\":1,\"head_dim\":8,"
                                                             "\"block_size\":3,\"kv_len\":1}"));
    assert_non_null(strstr(answer, "\"params.block_size = 3: "));
    assert_non_null(strstr(answer, "\"BAD_GEOMETRY\""));
}

/* ---- The socket ---- */

static void the_socket_is_the_users_own_and_replaces_a_stale_one(void **state)
{
    fixture *f = open_fixture();
    attnd_err err;
    struct stat st;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    strcpy(address.sun_path, f->path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    assert_int_equal(srv_control_open(&f->control, &f->loop, f->path, &f->deps, &err), ATTND_OK);
    assert_int_equal(stat(f->path, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(pthread_create(&f->engine_thread, NULL, engine_main, f), 0);
    assert_int_equal(pthread_create(&f->loop_thread, NULL, loop_main, &f->loop), 0);
    *state = f;
    teardown(state);
}

static void a_path_that_cannot_be_bound_is_refused(void **state)
{
    fixture *f = open_fixture();
    attnd_err err;
    char path[256], wanted[512];
    snprintf(path, sizeof path, "%s/%0100d", f->dir, 0);
    snprintf(wanted, sizeof wanted, "socket = %s: a socket's path has at most 107 bytes", path);
    assert_int_equal(srv_control_open(&f->control, &f->loop, path, &f->deps, &err),
                     ATTND_UNAVAILABLE);
    assert_null(f->control);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    assert_string_equal(err.text, wanted);
    snprintf(wanted, sizeof wanted, "socket = %s: is there and is no socket; it is left alone",
             f->path);
    int fd = open(f->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(srv_control_open(&f->control, &f->loop, f->path, &f->deps, &err),
                     ATTND_UNAVAILABLE);
    assert_null(f->control);
    assert_string_equal(err.text, wanted);
    assert_int_equal(unlink(f->path), 0);
    snprintf(path, sizeof path, "%s/none/control", f->dir);
    snprintf(wanted, sizeof wanted, "socket = %s: No such file or directory", path);
    assert_int_equal(srv_control_open(&f->control, &f->loop, path, &f->deps, &err),
                     ATTND_UNAVAILABLE);
    assert_null(f->control);
    assert_string_equal(err.text, wanted);
    uv_close((uv_handle_t *)&f->stop, NULL);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    srv_control_close(NULL);
    srv_queue_fini(&f->queue);
    ker_device_close(f->device);
    assert_int_equal(rmdir(f->dir), 0);
    free(f);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(an_id_comes_back_as_it_was),
        SERVED(a_line_that_is_no_request_is_told_so),
        SERVED(an_unknown_method_is_answered_with_the_nearest),
        SERVED(parameters_are_strict),
        SERVED(a_text_that_is_cut_stays_utf8),
        SERVED(a_batch_is_answered_in_one_line_without_its_notifications),
        SERVED(a_notification_is_carried_out_and_not_answered),
        SERVED(answers_come_in_order_however_the_bytes_arrive),
        SERVED(a_peer_that_has_ended_its_side_still_gets_its_answers),
        SERVED(a_line_of_a_mebibyte_is_read_and_a_longer_one_is_refused_once),
        SERVED(silent_clients_shut_nobody_out),
        SERVED(among_idle_clients_the_longest_idle_makes_room),
        SERVED(one_too_many_is_told_so_while_all_others_are_at_work),
        SERVED(who_does_not_read_makes_room_too),
        SERVED(who_waits_for_the_end_keeps_its_place),
        cmocka_unit_test_setup_teardown(who_does_not_read_is_hung_up_on_and_holds_up_nobody,
                                        short_timeout, teardown),
        SERVED(a_client_that_leaves_while_the_engine_works_harms_nothing),
        SERVED(a_silent_engine_is_said_so_and_the_socket_answers_on),
        SERVED(an_engine_without_memory_is_said_so),
        SERVED(another_user_is_hung_up_on),
        SERVED(ready_says_why_not),
        SERVED(info_tells_who_answers),
        SERVED(drain_and_shutdown_act_once_their_answer_is_out),
        SERVED(discover_lists_every_method_with_its_parameters),
        SERVED(lists_show_what_the_engine_owns_with_wide_numbers_as_strings),
        SERVED(stats_count_and_reset),
        SERVED(plans_are_listed_with_their_versions),
        SERVED(a_reload_lists_what_is_in_force_and_what_waits),
        SERVED(config_and_log_level_tell_what_is_in_force),
        SERVED(kernels_are_listed_with_what_they_serve),
        SERVED(explain_chooses_a_kernel_and_says_why_not_the_others),
        SERVED(explain_takes_a_layer_of_an_open_model),
        SERVED(explain_says_what_no_kernel_serves),
        SERVED(a_wrong_problem_is_refused_by_name),
        SERVED(a_block_size_that_no_pool_has_is_refused),
        cmocka_unit_test(the_socket_is_the_users_own_and_replaces_a_stale_one),
        cmocka_unit_test(a_path_that_cannot_be_bound_is_refused),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("srv_control", tests, NULL, NULL);
}
