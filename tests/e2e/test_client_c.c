/* test_client_c.c: libattnd and a real daemon: attention through shared buffers, refusals by name,
 * and a daemon that dies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/client/attnd.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 64, BLOCK = 16, BLOCKS = 32 };

typedef struct daemon_process {
    char dir[64];
    pid_t pid;
} daemon_process;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void start(daemon_process *d)
{
    const char *build = getenv("ATTND_BUILD");
    assert_non_null(build);
    char program[4096], flag[128];
    snprintf(program, sizeof program, "%s/bin/attnd", build);
    snprintf(d->dir, sizeof d->dir, "/tmp/attnd-client-XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    snprintf(flag, sizeof flag, "--runtime.dir=%s", d->dir);
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when an assertion leaves it behind */
        execl(program, program, "--no-keeper", "--device.backend=cpu", flag, "--log.level=error",
              (char *)NULL);
        _exit(127);
    }
}

static void stop(daemon_process *d, int signal)
{
    int status;
    kill(d->pid, signal);
    assert_int_equal(waitpid(d->pid, &status, 0), d->pid);
    if (signal == SIGTERM)
        assert_int_equal(status, 0);
    static const char *const names[] = {"data", "buf", "control", "lock"};
    for (int i = 0; i < 4; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", d->dir, names[i]);
        unlink(path);
    }
    rmdir(d->dir);
}

/* Connects as soon as the daemon is up. */
static attnd_client *connected(const daemon_process *d)
{
    attnd_client *client = NULL;
    attnd_err err = {0};
    int64_t end = now_ms() + 20000;
    while (attnd_connect(&client, d->dir, "test_client_c", 20000, &err) != ATTND_OK &&
           now_ms() < end)
        usleep(20000);
    if (!client)
        fail_msg("%s", err.text);
    return client;
}

static uint64_t opened_model(attnd_client *client)
{
    const attnd_layer_spec layer = {
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .count = 2};
    const attnd_group_spec group = {
        .name = "main", .block_size = BLOCK, .kv_dtype = ATTND_DTYPE_F32, .n_blocks = BLOCKS};
    const attnd_model_spec spec = {
        .name = "m", .layers = &layer, .n_layers = 1, .groups = &group, .n_groups = 1};
    attnd_model model;
    attnd_pool pool;
    attnd_err err = {0};
    attnd_open_model(client, &spec, 0, &model, &pool, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(model.n_layers, 2);
    assert_int_equal(pool.n_blocks, BLOCKS);
    assert_int_equal(pool.block_size, BLOCK);
    assert_true(pool.block_bytes == 2ull * 2 * KV_HEADS * BLOCK * DIM * sizeof(float));
    return model.model;
}

/* A sequence of up to 3 blocks, its q, k, v and out in one buffer, and what is right. */
enum { MAX_TOKENS = 3 * BLOCK };

typedef struct sequence {
    attnd_buffer *buffer;
    float *q, *k, *v, *out; /* [MAX_TOKENS][heads][DIM] */
    int32_t blocks[3];
    uint64_t model;
} sequence;

enum {
    Q_FLOATS = MAX_TOKENS * HEADS * DIM,
    KV_FLOATS = MAX_TOKENS * KV_HEADS * DIM,
    FLOATS = 2 * (Q_FLOATS + KV_FLOATS),
};

static sequence made_sequence(attnd_client *client, uint64_t model, int32_t block, uint32_t seed)
{
    sequence s = {.blocks = {block, block + 2, block + 1}, .model = model};
    attnd_err err = {0};
    attnd_create_buffer(client, FLOATS * sizeof(float), 0, &s.buffer, &err);
    assert_string_equal(err.text, "");
    s.q = attnd_buffer_data(s.buffer);
    s.k = s.q + Q_FLOATS;
    s.v = s.k + KV_FLOATS;
    s.out = s.v + KV_FLOATS;
    for (int i = 0; i < FLOATS - Q_FLOATS; i++) {
        seed = seed * 1664525 + 1013904223;
        s.q[i] = (float)(seed >> 8) / (1 << 23) - 1;
    }
    for (int i = 0; i < Q_FLOATS; i++)
        s.out[i] = NAN;
    return s;
}

static attnd_tensor tensor_of(const sequence *s, const float *first, uint32_t n_tokens,
                              uint32_t n_heads)
{
    return (attnd_tensor){.buffer = s->buffer,
                          .offset = (uint64_t)(first - s->q) * sizeof(float),
                          .dtype = ATTND_DTYPE_F32,
                          .n_dims = 3,
                          .shape = {n_tokens, n_heads, DIM}};
}

/* Tokens first .. end-1 of the sequence are new. lens and table are the caller's memory. */
static attnd_attend_request request_of(const sequence *s, int32_t first, int32_t end,
                                       int32_t lens[2], attnd_table *table)
{
    uint32_t n = (uint32_t)(end - first);
    lens[0] = (int32_t)n;
    lens[1] = end;
    *table = (attnd_table){.width = 3, .block_ids = {.values = s->blocks, .n = 3}};
    return (attnd_attend_request){
        .model = s->model,
        .layer = 1,
        .batch = {.n_contexts = n > 1,
                  .q_lens = {.values = &lens[0], .n = 1},
                  .kv_lens = {.values = &lens[1], .n = 1},
                  .tables = table,
                  .n_tables = 1},
        .q = tensor_of(s, s->q + first * HEADS * DIM, n, HEADS),
        .k = tensor_of(s, s->k + first * KV_HEADS * DIM, n, KV_HEADS),
        .v = tensor_of(s, s->v + first * KV_HEADS * DIM, n, KV_HEADS),
        .out = tensor_of(s, s->out + first * HEADS * DIM, n, HEADS),
    };
}

/* o = Σ softmax(q·k / sqrt(D)) v over the keys up to the token's own, in double. */
static void assert_right(const sequence *s, int first, int end)
{
    for (int t = first; t < end; t++)
        for (int h = 0; h < HEADS; h++) {
            const float *q = s->q + (t * HEADS + h) * DIM;
            double out[DIM] = {0}, sum = 0;
            for (int j = 0; j <= t; j++) {
                int at = (j * KV_HEADS + h / (HEADS / KV_HEADS)) * DIM;
                double dot = 0;
                for (int d = 0; d < DIM; d++)
                    dot += (double)q[d] * s->k[at + d];
                double p = exp(dot / sqrt(DIM));
                sum += p;
                for (int d = 0; d < DIM; d++)
                    out[d] += p * s->v[at + d];
            }
            for (int d = 0; d < DIM; d++) {
                double got = s->out[(t * HEADS + h) * DIM + d];
                if (!(fabs(got - out[d] / sum) < 1e-5))
                    fail_msg("token %d head %d channel %d: %g, not %g", t, h, d, got, out[d] / sum);
            }
        }
}

/* ---- Fixture ---- */

static int start_daemon(void **state)
{
    static daemon_process d;
    start(&d);
    *state = &d;
    return 0;
}

static int stop_daemon(void **state)
{
    stop(*state, SIGTERM);
    return 0;
}

/* ---- Tests ---- */

static void a_prefill_and_decode_steps_attend(void **state)
{
    attnd_client *client = connected(*state);
    assert_string_equal(attnd_get_info(client)->backend, "cpu");
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 7, 1);
    int32_t lens[2];
    attnd_table table;
    attnd_err err = {0};
    attnd_attend_request request = request_of(&s, 0, 30, lens, &table);
    attnd_timing timing = {.device_us = UINT64_MAX};
    attnd_attend(client, &request, 0, &timing, &err);
    assert_string_equal(err.text, "");
    assert_true(timing.device_us < 20000000);
    assert_right(&s, 0, 30);
    for (int t = 30; t < 36; t++) {
        request = request_of(&s, t, t + 1, lens, &table);
        attnd_attend(client, &request, 0, NULL, &err);
        assert_string_equal(err.text, "");
        assert_right(&s, t, t + 1);
    }
    assert_true(isnan(s.out[36 * HEADS * DIM]));
    assert_int_equal(attnd_free_buffer(s.buffer, 0, &err), ATTND_OK);
    assert_int_equal(attnd_close_model(client, model, 0, &err), ATTND_OK);
    attnd_close(client);
}

static void many_in_flight_are_all_right(void **state)
{
    enum { N = 8 };
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s[N];
    attnd_pending *pending[N];
    attnd_err err = {0};
    for (int i = 0; i < N; i++)
        s[i] = made_sequence(client, model, 3 * i, (uint32_t)i + 100);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            int32_t lens[2];
            attnd_table table;
            attnd_attend_request request = request_of(&s[i], 0, 20 + i, lens, &table);
            attnd_attend_start(client, &request, 0, &pending[i], &err);
            assert_string_equal(err.text, "");
        }
        for (int i = 0; i < N; i++) {
            attnd_wait(pending[i], NULL, &err);
            assert_string_equal(err.text, "");
            assert_right(&s[i], 0, 20 + i);
            for (int f = 0; f < Q_FLOATS; f++)
                s[i].out[f] = NAN;
        }
    }
    attnd_close(client);
}

static void refusals_name_the_value_and_change_nothing(void **state)
{
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 0, 5);
    int32_t lens[2];
    attnd_table table;
    attnd_err err = {0};
    attnd_attend_request request = request_of(&s, 0, 20, lens, &table);
    s.blocks[1] = BLOCKS;
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_BLOCK);
    assert_memory_equal(err.text, "batch.tables[0].block_ids[1] = 32: ", 35);
    s.blocks[1] = 2;
    request.q.dtype = (attnd_dtype)99;
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_MESSAGE);
    assert_string_equal(err.text, "q.dtype = 99: Dtype has 0 .. 9");
    request.q.dtype = ATTND_DTYPE_F32;
    request.model = 123456;
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_NOT_FOUND);
    assert_int_equal(err.reason, ATTND_NO_SUCH_HANDLE);
    for (int f = 0; f < Q_FLOATS; f++)
        assert_true(isnan(s.out[f]));
    request.model = model;
    /* More bytes than a message may have: the daemon would hang up. */
    const size_t n_ids = attnd_get_info(client)->max_message_bytes / sizeof(int32_t);
    const attnd_table sent = table;
    int32_t *ids = calloc(n_ids, sizeof *ids);
    assert_non_null(ids);
    table.block_ids.values = ids;
    table.block_ids.n = n_ids;
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_TOO_LARGE);
    assert_memory_equal(err.text, "request = 41", 12);
    free(ids);
    table = sent;
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_OK);
    assert_right(&s, 0, 20);
    attnd_close(client);
}

/* ---- Plans, steps, merging ---- */

static void a_plan_serves_attends_and_steps_with_updates(void **state)
{
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 7, 5);
    int32_t lens[2];
    attnd_table table;
    attnd_plan plan;
    attnd_err err = {0};
    attnd_attend_request request = request_of(&s, 0, 30, lens, &table);
    attnd_create_plan(client, model, &request.batch, false, 0, &plan, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(plan.version, 1);
    request.plan = plan.plan;
    request.batch = (attnd_batch){.n_contexts = 99};
    attnd_attend(client, &request, 0, NULL, &err);
    assert_string_equal(err.text, "");
    assert_right(&s, 0, 30);

    for (int t = 30; t < 36; t++) {
        const int32_t one = 1, kv_len = t + 1;
        const attnd_table appended = {.block_ids = {.values = &s.blocks[t / BLOCK], .n = 1}};
        const attnd_plan_update update = {.version = plan.version,
                                          .q_lens = {.values = &one, .n = 1},
                                          .kv_lens = {.values = &kv_len, .n = 1},
                                          .appended = &appended,
                                          .n_appended = t % BLOCK == 0};
        request = request_of(&s, t, t + 1, lens, &table);
        const attnd_step_request step = {.plan = plan.plan,
                                         .update = &update,
                                         .first_layer = 1,
                                         .n_layers = 1,
                                         .q = {.first = request.q},
                                         .k = {.first = request.k},
                                         .v = {.first = request.v},
                                         .out = {.first = request.out}};
        attnd_timing timing;
        attnd_step(client, &step, 0, &timing, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(timing.version, plan.version + 1);
        plan.version = timing.version;
        assert_right(&s, t, t + 1);
    }
    const attnd_plan_update stale = {.version = 1};
    uint64_t version = 0;
    assert_int_equal(attnd_update_plan(client, plan.plan, &stale, 0, &version, &err),
                     ATTND_FAILED_PRECONDITION);
    assert_int_equal(err.reason, ATTND_STALE);
    assert_int_equal(attnd_err_field_len(&err), strlen("update.version"));
    assert_int_equal(attnd_drop_plan(client, plan.plan, 0, &err), ATTND_OK);
    assert_int_equal(attnd_drop_plan(client, plan.plan, 0, &err), ATTND_NOT_FOUND);
    assert_int_equal(err.reason, ATTND_NO_SUCH_HANDLE);
    attnd_close(client);
}

/* Updates that nobody waits for, and a step by each: what after orders. */
static void updates_in_flight_are_in_order_by_after(void **state)
{
    enum { FIRST = 30, N = 7 }; /* pairs: fewer than a session may have in flight */
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 7, 8);
    int32_t lens[2], kv_lens[N];
    attnd_table table;
    attnd_plan plan;
    attnd_err err = {0};
    attnd_pending *updates[N], *steps[N];
    attnd_attend_request request = request_of(&s, 0, FIRST, lens, &table);
    attnd_attend(client, &request, 0, NULL, &err);
    assert_string_equal(err.text, "");
    request = request_of(&s, FIRST - 1, FIRST, lens, &table); /* version 1 stores nothing new */
    attnd_create_plan(client, model, &request.batch, false, 0, &plan, &err);
    assert_string_equal(err.text, "");
    uint64_t after = 0;
    for (int i = 0; i < N; i++) {
        int t = FIRST + i;
        kv_lens[i] = t + 1;
        const attnd_table appended = {.block_ids = {.values = &s.blocks[t / BLOCK], .n = 1}};
        const attnd_plan_update update = {.version = plan.version + (uint64_t)i,
                                          .kv_lens = {.values = &kv_lens[i], .n = 1},
                                          .appended = &appended,
                                          .n_appended = t % BLOCK == 0};
        attnd_update_plan_start(client, plan.plan, &update, after, 0, &updates[i], &err);
        assert_string_equal(err.text, "");
        request = request_of(&s, t, t + 1, lens, &table);
        const attnd_step_request step = {.plan = plan.plan,
                                         .first_layer = 1,
                                         .n_layers = 1,
                                         .q = {.first = request.q},
                                         .k = {.first = request.k},
                                         .v = {.first = request.v},
                                         .out = {.first = request.out},
                                         .after = attnd_pending_id(updates[i])};
        attnd_step_start(client, &step, 0, &steps[i], &err);
        assert_string_equal(err.text, "");
        after = attnd_pending_id(steps[i]);
    }
    for (int i = 0; i < N; i++) {
        attnd_timing made = {0}, ran = {0};
        attnd_wait(updates[i], &made, &err);
        assert_string_equal(err.text, "");
        attnd_wait(steps[i], &ran, &err);
        assert_string_equal(err.text, "");
        assert_int_equal(made.version, 2 + i);
        assert_int_equal(ran.version, 2 + i);
    }
    assert_right(&s, 0, FIRST + N);
    attnd_close(client);
}

static void attention_goes_through_a_buffer_with_a_name(void **state)
{
    attnd_client *client = connected(*state);
    attnd_client *other = connected(*state);
    sequence s = made_sequence(client, opened_model(client), 7, 3);
    attnd_buffer *named;
    attnd_err err = {0};
    attnd_create_named_buffer(client, FLOATS * sizeof(float), 0, &named, &err);
    assert_string_equal(err.text, "");
    char name[64];
    snprintf(name, sizeof name, "%s", attnd_buffer_name(named));
    memcpy(attnd_buffer_data(named), s.q, FLOATS * sizeof(float));
    float *plain = s.q;
    s.q = attnd_buffer_data(named);
    s.k = s.q + (s.k - plain);
    s.v = s.q + (s.v - plain);
    s.out = s.q + (s.out - plain);
    s.buffer = named;
    int32_t lens[2];
    attnd_table table;
    attnd_attend_request request = request_of(&s, 0, 30, lens, &table);
    attnd_attend(client, &request, 0, NULL, &err);
    assert_string_equal(err.text, "");
    assert_right(&s, 0, 30);
    /* Anyone of this user may map it, and closing another client leaves it alone. */
    int fd = shm_open(name, O_RDWR, 0);
    assert_true(fd >= 0);
    attnd_close(other);
    float out;
    assert_int_equal(pread(fd, &out, sizeof out, (s.out - s.q) * (off_t)sizeof(float)), sizeof out);
    assert_true(out == s.out[0]);
    close(fd);
    assert_int_equal(attnd_free_buffer(named, 0, &err), ATTND_OK);
    assert_int_equal(shm_open(name, O_RDWR, 0), -1);
    attnd_create_named_buffer(client, 64, 0, &named, &err);
    assert_string_equal(err.text, "");
    snprintf(name, sizeof name, "%s", attnd_buffer_name(named));
    attnd_close(client); /* frees the buffer with the session */
    assert_int_equal(shm_open(name, O_RDWR, 0), -1);
}

static void two_halves_of_the_keys_merge_to_the_whole(void **state)
{
    enum { ROWS = BLOCK, N = ROWS * HEADS };
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 0, 6);
    int32_t lens[2];
    attnd_table table;
    attnd_err err = {0};
    attnd_attend_request request = request_of(&s, 0, 2 * BLOCK, lens, &table);
    attnd_attend(client, &request, 0, NULL, &err);
    assert_string_equal(err.text, "");

    /* The first rows over block 0, block 1 and both, nothing appended, everything seen. */
    attnd_buffer *buffer;
    attnd_create_buffer(client, 4 * (N * DIM + N) * sizeof(float), 0, &buffer, &err);
    float *floats = attnd_buffer_data(buffer);
    attnd_partial parts[4];
    for (int i = 0; i < 4; i++) {
        uint64_t out = (uint64_t)i * (N * DIM + N) * sizeof(float);
        parts[i] = (attnd_partial){
            .out = {buffer, out, ATTND_DTYPE_F32, 3, {ROWS, HEADS, DIM}, 0, {0}},
            .lse =
                {buffer, out + N * DIM * sizeof(float), ATTND_DTYPE_F32, 2, {ROWS, HEADS}, 0, {0}},
        };
        if (i == 3)
            break;
        int32_t q_len = ROWS, kv_len = i == 2 ? 2 * BLOCK : BLOCK;
        attnd_table part = {.block_ids = {.values = &s.blocks[i % 2], .n = i == 2 ? 2 : 1}};
        attnd_attend_request ask = {.model = model,
                                    .layer = 1,
                                    .batch = {.n_contexts = 1,
                                              .q_lens = {.values = &q_len, .n = 1},
                                              .kv_lens = {.values = &kv_len, .n = 1},
                                              .tables = &part,
                                              .n_tables = 1,
                                              .mask = ATTND_MASK_FULL},
                                    .q = tensor_of(&s, s.q, ROWS, HEADS),
                                    .out = parts[i].out,
                                    .lse = parts[i].lse};
        attnd_attend(client, &ask, 0, NULL, &err);
        assert_string_equal(err.text, "");
    }
    const attnd_merge_request merge = {
        .partials = parts, .n_partials = 2, .out = parts[3].out, .lse = parts[3].lse};
    attnd_timing timing = {.device_us = UINT64_MAX, .version = 1};
    attnd_merge(client, &merge, 0, &timing, &err);
    assert_string_equal(err.text, "");
    assert_true(timing.device_us < 20000000);
    assert_int_equal(timing.version, 0);
    const float *whole = floats + 2 * (N * DIM + N), *merged = floats + 3 * (N * DIM + N);
    for (int i = 0; i < N * DIM + N; i++)
        if (!(fabsf(merged[i] - whole[i]) < 1e-5f))
            fail_msg("float %d: %g, not %g", i, merged[i], whole[i]);
    attnd_close(client);
}

/* ---- Connections that break ---- */

/* Ends this process's connections of a type to the daemon's sockets; how many there were. */
static int cut(const daemon_process *d, int type)
{
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        struct sockaddr_un peer = {0};
        socklen_t size = sizeof peer, n_type = sizeof type;
        int got;
        if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0 &&
            strncmp(peer.sun_path, d->dir, strlen(d->dir)) == 0 &&
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &got, &n_type) == 0 && got == type)
            n += shutdown(fd, SHUT_RDWR) == 0;
    }
    return n;
}

enum { DATA = SOCK_STREAM, BUF = SOCK_SEQPACKET };

static void a_session_goes_on_over_new_connections(void **state)
{
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 3, 9);
    int32_t lens[2];
    attnd_table table;
    attnd_err err = {0};
    attnd_attend_request request = request_of(&s, 0, 20, lens, &table);
    attnd_attend(client, &request, 0, NULL, &err);
    assert_string_equal(err.text, "");
    for (int round = 0; round < 12; round++) {
        if (round % 3 != 1)
            assert_int_equal(cut(*state, DATA), 1);
        if (round % 3 != 0)
            assert_int_equal(cut(*state, BUF), 1);
        int t = 20 + round;
        request = request_of(&s, t, t + 1, lens, &table);
        attnd_attend(client, &request, 0, NULL, &err);
        assert_string_equal(err.text, "");
        assert_right(&s, t, t + 1);
    }
    attnd_buffer *buffer;
    assert_int_equal(attnd_create_buffer(client, 64, 0, &buffer, &err), ATTND_OK);
    attnd_close(client);
}

static void what_is_in_flight_when_connections_break_is_answered(void **state)
{
    enum { N = 8 };
    attnd_client *client = connected(*state);
    uint64_t model = opened_model(client);
    sequence s[N];
    attnd_pending *pending[N];
    attnd_err err = {0};
    for (int i = 0; i < N; i++)
        s[i] = made_sequence(client, model, 3 * i, (uint32_t)i + 100);
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            int32_t lens[2];
            attnd_table table;
            attnd_attend_request request = request_of(&s[i], 0, 20 + i, lens, &table);
            attnd_attend_start(client, &request, 0, &pending[i], &err);
            assert_string_equal(err.text, "");
            if (i == round % N)
                cut(*state, DATA);
        }
        if (round % 2)
            cut(*state, BUF);
        for (int i = 0; i < N; i++) {
            attnd_wait(pending[round % 2 ? i : N - 1 - i], NULL, &err);
            assert_string_equal(err.text, "");
        }
        for (int i = 0; i < N; i++)
            assert_right(&s[i], 0, 20 + i);
    }
    attnd_close(client);
}

static void *live_and_leave(void *arg)
{
    size_t n_ok = 0;
    for (int i = 0; i < 10; i++) {
        attnd_client *client;
        if (attnd_connect(&client, arg, "short", 20000, NULL) != ATTND_OK)
            continue;
        attnd_buffer *buffer;
        if (attnd_create_buffer(client, 1 << 20, 0, &buffer, NULL) == ATTND_OK) {
            memset(attnd_buffer_data(buffer), 1, 1 << 20);
            n_ok += attnd_ping(client, 0, NULL) == ATTND_OK;
        }
        attnd_close(client);
    }
    return (void *)n_ok;
}

static void clients_come_and_go_beside_each_other(void **state)
{
    daemon_process *d = *state;
    attnd_close(connected(d)); /* it is up */
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, live_and_leave, d->dir), 0);
    for (int i = 0; i < 4; i++) {
        void *n_ok;
        pthread_join(threads[i], &n_ok);
        assert_int_equal((size_t)n_ok, 10);
    }
}

/* B128. */
static void a_killed_daemon_is_noticed_and_left_within_two_seconds(void **state)
{
    daemon_process d;
    start(&d);
    attnd_client *client = connected(&d);
    uint64_t model = opened_model(client);
    sequence s = made_sequence(client, model, 0, 9);
    int32_t lens[2];
    attnd_table table;
    attnd_err err = {0};
    attnd_attend_request request = request_of(&s, 0, 20, lens, &table);
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_OK);
    stop(&d, SIGKILL);
    int64_t begin = now_ms();
    assert_int_equal(attnd_attend(client, &request, 0, NULL, &err), ATTND_UNAVAILABLE);
    assert_int_equal(err.reason, ATTND_RESTARTED);
    assert_right(&s, 0, 20); /* what was mapped stays readable */
    attnd_close(client);
    assert_true(now_ms() - begin < 2000);
}

static void a_stopped_daemon_holds_nobody_up(void **state)
{
    daemon_process d;
    start(&d);
    attnd_client *client = connected(&d);
    attnd_client *other;
    attnd_err err = {0};
    int status;
    kill(d.pid, SIGSTOP);
    assert_int_equal(waitpid(d.pid, &status, WUNTRACED), d.pid);
    assert_true(WIFSTOPPED(status));
    int64_t begin = now_ms();
    assert_int_equal(attnd_ping(client, 300, &err), ATTND_DEADLINE_EXCEEDED);
    assert_int_equal(err.reason, ATTND_TIMED_OUT);
    assert_true(now_ms() - begin < 1500);
    begin = now_ms();
    assert_int_equal(attnd_connect(&other, d.dir, "x", 300, &err), ATTND_DEADLINE_EXCEEDED);
    assert_int_equal(err.reason, ATTND_TIMED_OUT);
    assert_null(other);
    assert_true(now_ms() - begin < 1500);
    begin = now_ms();
    attnd_close(client);
    assert_true(now_ms() - begin < 2000);
    kill(d.pid, SIGCONT);
    stop(&d, SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefill_and_decode_steps_attend),
        cmocka_unit_test(many_in_flight_are_all_right),
        cmocka_unit_test(refusals_name_the_value_and_change_nothing),
        cmocka_unit_test(a_plan_serves_attends_and_steps_with_updates),
        cmocka_unit_test(updates_in_flight_are_in_order_by_after),
        cmocka_unit_test(attention_goes_through_a_buffer_with_a_name),
        cmocka_unit_test(two_halves_of_the_keys_merge_to_the_whole),
        cmocka_unit_test(a_session_goes_on_over_new_connections),
        cmocka_unit_test(what_is_in_flight_when_connections_break_is_answered),
        cmocka_unit_test(clients_come_and_go_beside_each_other),
        cmocka_unit_test(a_killed_daemon_is_noticed_and_left_within_two_seconds),
        cmocka_unit_test(a_stopped_daemon_holds_nobody_up),
    };
    return cmocka_run_group_tests_name("client_c", tests, start_daemon, stop_daemon);
}
