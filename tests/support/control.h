/* control.h: a control socket on a real loop before an engine that is played, and a client of it.
 * Included by the tests of daemon/control*.c.
 */
#ifndef ATTND_TESTS_SUPPORT_CONTROL_H
#define ATTND_TESTS_SUPPORT_CONTROL_H

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

static inline void *copy(const void *views, size_t bytes)
{
    void *out = malloc(bytes);
    assert_non_null(out);
    memcpy(out, views, bytes);
    return out;
}

static inline void fill_layer(srv_snapshot *s)
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

static inline void fill(srv_engine *engine, srv_event *event)
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

static inline void *engine_main(void *arg)
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

static inline bool is_ready(void *server, char why[128])
{
    fixture *f = server;
    snprintf(why, 128, "draining");
    return f->is_ready;
}

static inline attnd_status reload(void *server, srv_change_fn *each, void *arg, attnd_err *err)
{
    fixture *f = server;
    if (f->config_is_broken)
        return attnd_fail(err, ATTND_BAD_CONFIG, "attnd.json:3:5: log.slow = x: milliseconds");
    each(arg, "log.slow", true, "1s", "5ms");
    each(arg, "data.contexts", false, "72", "80");
    return ATTND_OK;
}

static inline void drain(void *server)
{
    ((fixture *)server)->n_drains++;
}

static inline void leave(void *server)
{
    ((fixture *)server)->n_shutdowns++;
}

static inline void on_stop(uv_async_t *handle)
{
    fixture *f = handle->data;
    srv_control_close(f->control);
    uv_close((uv_handle_t *)handle, NULL);
}

static inline void *loop_main(void *arg)
{
    uv_run(arg, UV_RUN_DEFAULT);
    return NULL;
}

static inline void *open_fixture(void)
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
static inline void serve(fixture *f)
{
    attnd_err err;
    srv_stats_reset();
    srv_log_set_level("error");
    assert_int_equal(srv_control_open(&f->control, &f->loop, f->path, &f->deps, &err), ATTND_OK);
    assert_int_equal(pthread_create(&f->engine_thread, NULL, engine_main, f), 0);
    assert_int_equal(pthread_create(&f->loop_thread, NULL, loop_main, &f->loop), 0);
}

static inline int setup(void **state)
{
    *state = open_fixture();
    serve(*state);
    return 0;
}

static inline int teardown(void **state)
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

static inline int dial(const fixture *f)
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

static inline void say(int fd, const char *text)
{
    size_t n = strlen(text);
    assert_int_equal(send(fd, text, n, MSG_NOSIGNAL), n);
}

/* The next line without its newline; "" at the end of file. */
static inline const char *hear(int fd)
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
static inline const char *ask(fixture *f, const char *line)
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
static inline void assert_refused(fixture *f, const char *line, int code, const char *status,
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
static inline cJSON *result_of(fixture *f, const char *line, cJSON **json)
{
    const char *answer = ask(f, line);
    *json = cJSON_Parse(answer);
    cJSON *result = cJSON_GetObjectItemCaseSensitive(*json, "result");
    if (!result)
        fail_msg("%s\nis answered with %s", line, answer);
    return result;
}

static inline const char *text_at(const cJSON *at, const char *name)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(at, name));
    if (!text)
        fail_msg("no text %s", name);
    return text;
}

static inline double number_at(const cJSON *at, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(at, name);
    if (!cJSON_IsNumber(item))
        fail_msg("no number %s", name);
    return item->valuedouble;
}

/* A row of a test list: with the socket served. */
#define SERVED(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
