/* test_client_attend.c: what a scheduler puts into structs arrives at the daemon, for models and
 * for attention, one at a time and many in flight.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fake_client.h"

/* ---- Models ---- */

static fake_action look_at_model(fake_server *server, const msg_request *request, msg_reply *reply)
{
    if (request->op == MSG_OP_open_model) {
        const msg_model_spec *s = &request->open_model.spec;
        bool is_as_sent = request->open_model.given && strcmp(s->name, "m") == 0 &&
                          s->n_layers == 2 && s->n_groups == 2 && s->owner == MSG_OWNER_SERVER &&
                          s->layers[0].kind == ATTND_LAYER_MLA && s->layers[0].group == 1 &&
                          s->layers[0].n_heads == 32 && s->layers[0].n_kv_heads == 8 &&
                          s->layers[0].head_dim == 128 && s->layers[0].head_dim_v == 64 &&
                          s->layers[0].sm_scale == 0.25f && s->layers[0].q_scaling == 2 &&
                          s->layers[0].window == 9 && s->layers[0].chunk == 10 &&
                          s->layers[0].softcap == 11 && s->layers[0].count == 12 &&
                          s->layers[0].rope.given && s->layers[0].rope.pairing == ATTND_ROPE_GPTJ &&
                          s->layers[0].rope.dim == 32 && s->layers[0].rope.theta == 5e5 &&
                          s->layers[0].rope.scaling == 5 && !s->layers[1].rope.given &&
                          strcmp(s->groups[0].name, "g") == 0 && s->groups[0].block_size == 16 &&
                          s->groups[0].kv_dtype == ATTND_DTYPE_BF16 &&
                          s->groups[0].layout == ATTND_LAYOUT_NHD && s->groups[0].n_blocks == 100 &&
                          s->groups[0].bytes == 0 && s->groups[0].max_kv_len == 13 &&
                          s->groups[0].window == 14 && s->groups[1].n_blocks == 0 &&
                          s->groups[1].bytes == 1ull << 40 && strcmp(s->groups[1].name, "") == 0;
        if (!is_as_sent)
            attnd_fail(&reply->err, ATTND_BROKEN, "spec: not as it was sent");
    }
    if (request->op == MSG_OP_close_model && request->close_model != 77)
        attnd_fail(&reply->err, ATTND_NO_SUCH_HANDLE, "model = %llu: no such model",
                   (unsigned long long)request->close_model);
    return fake_answer(server, request, reply);
}

static void a_model_arrives_as_it_is_given(void **state)
{
    fake_server server = {.answer = look_at_model};
    attnd_client *client = connected(&server);
    const attnd_layer_spec layers[] = {
        {.kind = ATTND_LAYER_MLA,
         .group = 1,
         .n_heads = 32,
         .n_kv_heads = 8,
         .head_dim = 128,
         .head_dim_v = 64,
         .sm_scale = 0.25f,
         .q_scaling = 2,
         .window = 9,
         .chunk = 10,
         .softcap = 11,
         .count = 12,
         .rope = {ATTND_ROPE_GPTJ, 32, 5e5, ATTND_ROPE_SCALING_YARN}},
        {.n_heads = 1},
    };
    const attnd_group_spec groups[] = {
        {"g", 16, ATTND_DTYPE_BF16, ATTND_LAYOUT_NHD, 100, 999, 13, 14},
        {.bytes = 1ull << 40},
    };
    const attnd_model_spec spec = {"m", layers, 2, groups, 2, ATTND_OWNER_SERVER};
    attnd_model model;
    attnd_pool pools[2];
    attnd_err err = {0};
    assert_int_equal(attnd_open_model(client, &spec, 0, &model, pools, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(model.model, 77);
    assert_int_equal(model.n_layers, 12);
    assert_int_equal(pools[1].n_blocks, 11);
    assert_int_equal(pools[1].block_size, 16);
    assert_int_equal(pools[1].block_bytes, 100);
    assert_int_equal(pools[1].bytes, 1000);
    assert_int_equal(attnd_open_model(client, &spec, 0, &model, NULL, &err), ATTND_OK);
    assert_int_equal(attnd_close_model(client, 77, 0, &err), ATTND_OK);
    assert_int_equal(attnd_close_model(client, 78, 0, &err), ATTND_NOT_FOUND);
    assert_string_equal(err.text, "model = 78: no such model");
    leave(client, &server);
}

static fake_action refuse_model(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_answer(server, request, reply);
    if (request->op == MSG_OP_open_model && request->open_model.spec.n_layers)
        attnd_fail(&reply->err, ATTND_BAD_GEOMETRY, "spec.layers[0].n_heads = 0: at least 1");
    reply->open_model.n_pools = request->op == MSG_OP_open_model ? 1 : 0;
    return FAKE_REPLY;
}

static void a_refused_model_fills_nothing(void **state)
{
    fake_server server = {.answer = refuse_model};
    attnd_client *client = connected(&server);
    const attnd_layer_spec layer = {0};
    attnd_model_spec spec = {.layers = &layer, .n_layers = 1};
    attnd_model model = {1, 2};
    attnd_err err;
    assert_int_equal(attnd_open_model(client, &spec, 0, &model, NULL, &err),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_GEOMETRY);
    assert_string_equal(err.text, "spec.layers[0].n_heads = 0: at least 1");
    spec.n_layers = 0;
    assert_int_equal(attnd_open_model(client, &spec, 0, &model, NULL, &err), ATTND_INTERNAL);
    assert_int_equal(err.reason, ATTND_BROKEN);
    assert_string_equal(err.text, "pools = 1: 0 groups were sent");
    assert_int_equal(model.model, 1);
    assert_int_equal(model.n_layers, 2);
    leave(client, &server);
}

/* ---- Attention ---- */

static bool is_tensor(const msg_tensor *t, attnd_dtype dtype, uint64_t offset, uint32_t n_dims)
{
    return t->given && t->buffer == 55 && t->dtype == dtype && t->offset == offset &&
           t->n_dims == n_dims;
}

static bool is_inline(const msg_ints *ints, size_t n, const int32_t *values)
{
    return ints->given && ints->data && ints->bytes == 4 * n &&
           memcmp(ints->data, values, 4 * n) == 0;
}

static fake_action look_at_attend(fake_server *server, const msg_request *request, msg_reply *reply)
{
    if (request->op == MSG_OP_attend) {
        const msg_attend *a = &request->attend;
        const msg_batch *b = &a->batch;
        bool is_as_sent = request->after == 5 && a->model == 77 && a->layer == 3 && a->has_batch &&
                          !a->has_plan && a->keys == MSG_KEYS_GIVEN && a->batch_invariant &&
                          !a->sync.given && is_tensor(&a->q, ATTND_DTYPE_BF16, 64, 3) &&
                          a->q.shape[2] == 128 && a->q.n_strides == 3 && a->q.strides[0] == 4096 &&
                          a->q.strides[2] == 2 && is_tensor(&a->k, ATTND_DTYPE_F16, 0, 1) &&
                          !a->v.given && is_tensor(&a->out, ATTND_DTYPE_F32, 0, 4) &&
                          a->out.n_strides == 0 && is_tensor(&a->lse, ATTND_DTYPE_F32, 1, 0) &&
                          is_tensor(&a->stats, 0, 2, 0) && b->n_contexts == 1 &&
                          is_inline(&b->q_lens, 2, (int32_t[]){4, 1}) && b->kv_lens.given &&
                          !b->kv_lens.data && is_tensor(&b->kv_lens.ref, ATTND_DTYPE_I32, 8, 1) &&
                          b->n_tables == 2 && b->tables[1].group == 1 && b->tables[1].width == 6 &&
                          is_inline(&b->tables[1].block_ids, 3, (int32_t[]){-1, 2, 70000}) &&
                          !b->tables[0].block_ids.given && !b->slots.given &&
                          is_inline(&b->positions, 0, (int32_t[]){0}) && b->mask == MSG_MASK_TREE &&
                          b->n_sequences == 0;
        if (!is_as_sent)
            attnd_fail(&reply->err, ATTND_BROKEN, "attend: not as it was sent");
    }
    return fake_answer(server, request, reply);
}

static void an_attend_arrives_as_it_is_given(void **state)
{
    fake_server server = {.answer = look_at_attend};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = made_buffer(client);
    const int32_t q_lens[] = {4, 1}, ids[] = {-1, 2, 70000};
    const attnd_table tables[] = {{0}, {.group = 1, .width = 6, .block_ids = {ids, 3, {0}}}};
    const attnd_attend_request request = {
        .model = 77,
        .layer = 3,
        .batch = {.n_contexts = 1,
                  .q_lens = {.values = q_lens, .n = 2},
                  .kv_lens = {.tensor = {.buffer = buffer,
                                         .offset = 8,
                                         .dtype = ATTND_DTYPE_I32,
                                         .n_dims = 1,
                                         .shape = {2}}},
                  .tables = tables,
                  .n_tables = 2,
                  .positions = {.values = ids, .n = 0},
                  .mask = ATTND_MASK_TREE},
        .q = {buffer, 64, ATTND_DTYPE_BF16, 3, {5, 16, 128}, 3, {4096, 256, 2}},
        .k = {.buffer = buffer, .dtype = ATTND_DTYPE_F16, .n_dims = 1},
        .keys = ATTND_KEYS_GIVEN,
        .out = {.buffer = buffer, .dtype = ATTND_DTYPE_F32, .n_dims = 4},
        .lse = {.buffer = buffer, .dtype = ATTND_DTYPE_F32, .offset = 1},
        .stats = {.buffer = buffer, .offset = 2},
        .batch_invariant = true,
        .after = 5,
    };
    attnd_timing timing;
    attnd_err err = {0};
    assert_int_equal(attnd_attend(client, &request, 0, &timing, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(timing.queue_us, 5);
    assert_int_equal(timing.device_us, 6);
    assert_int_equal(timing.version, 0);
    assert_int_equal(attnd_attend(client, &request, 0, NULL, NULL), ATTND_OK);
    leave(client, &server);
}

static void more_dimensions_than_a_tensor_holds_are_refused(void **state)
{
    fake_server server = {0};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = made_buffer(client);
    attnd_table tables[2] = {{0}};
    attnd_attend_request r = {.batch = {.tables = tables, .n_tables = 2}};
    const struct {
        attnd_tensor *tensor;
        const char *name;
    } cases[] = {
        {&r.q, "q"},
        {&r.k, "k"},
        {&r.v, "v"},
        {&r.out, "out"},
        {&r.lse, "lse"},
        {&r.stats, "stats"},
        {&r.batch.q_lens.tensor, "batch.q_lens"},
        {&r.batch.kv_lens.tensor, "batch.kv_lens"},
        {&r.batch.slots.tensor, "batch.slots"},
        {&r.batch.positions.tensor, "batch.positions"},
        {&tables[1].block_ids.tensor, "batch.tables[1].block_ids"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attnd_err err;
        char text[128];
        *cases[i].tensor = (attnd_tensor){.buffer = buffer, .n_dims = 5};
        assert_int_equal(attnd_attend(client, &r, 0, NULL, &err), ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_TENSOR);
        snprintf(text, sizeof text, "%s.n_dims = 5: at most 4", cases[i].name);
        assert_string_equal(err.text, text);
        *cases[i].tensor = (attnd_tensor){.buffer = buffer, .n_strides = 6};
        assert_int_equal(attnd_attend(client, &r, 0, NULL, &err), ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_TENSOR);
        snprintf(text, sizeof text, "%s.n_strides = 6: at most 4", cases[i].name);
        assert_string_equal(err.text, text);
        *cases[i].tensor = (attnd_tensor){0};
    }
    assert_int_equal(fake_n_requests(&server, MSG_OP_attend), 0);
    assert_int_equal(attnd_attend(client, &r, 0, NULL, NULL), ATTND_OK);
    leave(client, &server);
}

/* ---- Many in flight ---- */

static fake_action answer_last_first(fake_server *server, const msg_request *request,
                                     msg_reply *reply)
{
    fake_answer(server, request, reply);
    if (request->op != MSG_OP_attend)
        return FAKE_REPLY;
    reply->attend = (msg_attend_reply){request->attend.layer, 0};
    if (request->attend.layer == 3)
        attnd_fail(&reply->err, ATTND_BAD_LENGTH, "batch.kv_lens[0] = -1: at least 0");
    return server->n_requests[MSG_OP_attend] < 8 ? FAKE_HOLD : FAKE_REPLY;
}

static void every_request_gets_its_own_answer(void **state)
{
    fake_server server = {.answer = answer_last_first};
    attnd_client *client = connected(&server);
    attnd_pending *pending[8];
    attnd_err err;
    for (uint32_t i = 0; i < 8; i++) {
        attnd_attend_request request = {.layer = i};
        assert_int_equal(attnd_attend_start(client, &request, 0, &pending[i], &err), ATTND_OK);
        for (uint32_t k = 0; k < i; k++)
            assert_true(attnd_pending_id(pending[i]) != attnd_pending_id(pending[k]));
    }
    for (uint32_t i = 0; i < 8; i++) {
        attnd_timing timing = {99, 99, 99};
        attnd_status status = attnd_wait(pending[i], &timing, &err);
        if (i == 3) {
            assert_int_equal(status, ATTND_INVALID_ARGUMENT);
            assert_int_equal(err.reason, ATTND_BAD_LENGTH);
            assert_string_equal(err.text, "batch.kv_lens[0] = -1: at least 0");
            assert_int_equal(timing.queue_us, 99);
        } else {
            assert_int_equal(status, ATTND_OK);
            assert_int_equal(timing.queue_us, i);
        }
    }
    leave(client, &server);
}

static fake_action never_attend(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_action action = fake_answer(server, request, reply);
    return request->op == MSG_OP_attend ? FAKE_SILENT : action;
}

static void waiting_ends_at_the_deadline_given_at_the_start(void **state)
{
    fake_server server = {.answer = never_attend};
    attnd_client *client = connected(&server);
    attnd_attend_request request = {0};
    attnd_pending *pending;
    attnd_err err;
    int64_t begin = now_ms();
    assert_int_equal(attnd_attend_start(client, &request, 300, &pending, &err), ATTND_OK);
    assert_true(now_ms() - begin < 250);
    assert_int_equal(attnd_wait(pending, NULL, &err), ATTND_DEADLINE_EXCEEDED);
    int64_t took = now_ms() - begin;
    assert_true(took >= 290 && took < 1500);
    assert_int_equal(err.reason, ATTND_TIMED_OUT);
    assert_int_equal(attnd_ping(client, 0, NULL), ATTND_OK); /* the client goes on */
    leave(client, &server);
}

/* The fourth breaks the connection; what comes again is answered with its layer. */
static fake_action break_attend(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_action action = fake_answer(server, request, reply);
    if (request->op != MSG_OP_attend)
        return action;
    reply->attend.queue_us = request->attend.layer;
    unsigned n = server->n_requests[MSG_OP_attend];
    return n < 4 ? FAKE_SILENT : n == 4 ? FAKE_BREAK : FAKE_REPLY;
}

static void all_in_flight_are_repeated_when_the_connection_breaks(void **state)
{
    for (int last_first = 0; last_first < 2; last_first++) {
        fake_server server = {.answer = break_attend};
        attnd_client *client = connected(&server);
        attnd_pending *pending[4];
        attnd_err err = {0};
        int64_t begin = now_ms();
        for (uint32_t i = 0; i < 4; i++) {
            attnd_attend_request request = {.layer = i};
            assert_int_equal(attnd_attend_start(client, &request, 5000, &pending[i], &err),
                             ATTND_OK);
        }
        attnd_timing timing;
        uint32_t first = last_first ? 3 : 0;
        assert_int_equal(attnd_wait(pending[first], &timing, &err), ATTND_OK);
        assert_string_equal(err.text, "");
        assert_int_equal(timing.queue_us, first);
        for (int i = 0; i < 200 && fake_n_requests(&server, MSG_OP_attend) < 8; i++)
            usleep(10000); /* all, though nobody waits for them yet */
        assert_int_equal(fake_n_requests(&server, MSG_OP_attend), 8);
        for (uint32_t i = 0; i < 4; i++) {
            if (i == first)
                continue;
            assert_int_equal(attnd_wait(pending[i], &timing, &err), ATTND_OK);
            assert_int_equal(timing.queue_us, i);
        }
        assert_true(now_ms() - begin < 4000);
        uint64_t ids[FAKE_MAX], *sent = ids + 1, *again = sent + 4; /* behind hello */
        assert_int_equal(fake_copy_ids(&server, ids), 9);
        for (int i = 0; i < 4; i++) {
            int n_same = 0;
            for (int k = 0; k < 4; k++)
                n_same += again[k] == sent[i];
            assert_int_equal(n_same, 1);
        }
        leave(client, &server);
    }
}

/* Who sends something new repeats what was cut off: the new one may come after it. */
static void a_new_request_takes_those_along_that_were_cut_off(void **state)
{
    fake_server server = {.answer = break_attend};
    attnd_client *client = connected(&server);
    attnd_pending *pending[4];
    attnd_err err;
    for (uint32_t i = 0; i < 4; i++) {
        attnd_attend_request request = {.layer = i};
        assert_int_equal(attnd_attend_start(client, &request, 5000, &pending[i], &err), ATTND_OK);
    }
    for (int i = 0; i < 200 && fake_n_requests(&server, MSG_OP_attend) < 4; i++)
        usleep(10000);
    usleep(100000); /* the connection breaks, and another is made */
    assert_int_equal(attnd_ping(client, 5000, &err), ATTND_OK);
    for (int i = 0; i < 200 && fake_n_requests(&server, MSG_OP_attend) < 8; i++)
        usleep(10000);
    assert_int_equal(fake_n_requests(&server, MSG_OP_attend), 8);
    for (int i = 0; i < 4; i++)
        assert_int_equal(attnd_wait(pending[i], NULL, &err), ATTND_OK);
    leave(client, &server);
}

typedef struct waiter {
    pthread_t thread;
    attnd_pending *pending;
    attnd_status status;
} waiter;

static void *wait_for_one(void *arg)
{
    waiter *w = arg;
    w->status = attnd_wait(w->pending, NULL, NULL);
    return NULL;
}

static void threads_that_wait_share_the_repeats(void **state)
{
    fake_server server = {.answer = break_attend};
    attnd_client *client = connected(&server);
    attnd_attend_request request = {0};
    waiter waiters[4] = {{0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(attnd_attend_start(client, &request, 5000, &waiters[i].pending, NULL),
                         ATTND_OK);
        pthread_create(&waiters[i].thread, NULL, wait_for_one, &waiters[i]);
    }
    usleep(50000);
    assert_int_equal(attnd_attend_start(client, &request, 5000, &waiters[3].pending, NULL),
                     ATTND_OK);
    pthread_create(&waiters[3].thread, NULL, wait_for_one, &waiters[3]);
    for (int i = 0; i < 4; i++) {
        pthread_join(waiters[i].thread, NULL);
        assert_int_equal(waiters[i].status, ATTND_OK);
    }
    assert_int_equal(fake_n_requests(&server, MSG_OP_attend), 8);
    leave(client, &server);
}

static fake_action die_at_attend(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_action action = fake_answer(server, request, reply);
    return request->op != MSG_OP_attend            ? action
           : server->n_requests[MSG_OP_attend] < 4 ? FAKE_SILENT
                                                   : FAKE_DIE;
}

static void all_in_flight_hear_of_a_dead_daemon(void **state)
{
    fake_server server = {.answer = die_at_attend};
    attnd_client *client = connected(&server);
    attnd_attend_request request = {0};
    attnd_pending *pending[4];
    attnd_err err;
    int64_t begin = now_ms();
    for (int i = 0; i < 4; i++)
        assert_int_equal(attnd_attend_start(client, &request, 30000, &pending[i], &err), ATTND_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(attnd_wait(pending[i], NULL, &err), ATTND_UNAVAILABLE);
        assert_int_equal(err.reason, ATTND_RESTARTED);
    }
    attnd_close(client);
    assert_true(now_ms() - begin < 3000);
    fake_close(&server);
}

static void closing_ends_what_nobody_waited_for(void **state)
{
    fake_server server = {.answer = never_attend};
    attnd_client *client = connected(&server);
    attnd_attend_request request = {0};
    attnd_pending *pending[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(attnd_attend_start(client, &request, 0, &pending[i], NULL), ATTND_OK);
    int64_t begin = now_ms();
    attnd_close(client);
    assert_true(now_ms() - begin < 2000);
    fake_close(&server);
    server = (fake_server){0}; /* answered, but not waited for */
    client = connected(&server);
    assert_int_equal(attnd_attend_start(client, &request, 0, &pending[0], NULL), ATTND_OK);
    assert_int_equal(attnd_ping(client, 0, NULL), ATTND_OK);
    leave(client, &server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_arrives_as_it_is_given),
        cmocka_unit_test(a_refused_model_fills_nothing),
        cmocka_unit_test(an_attend_arrives_as_it_is_given),
        cmocka_unit_test(more_dimensions_than_a_tensor_holds_are_refused),
        cmocka_unit_test(every_request_gets_its_own_answer),
        cmocka_unit_test(waiting_ends_at_the_deadline_given_at_the_start),
        cmocka_unit_test(all_in_flight_are_repeated_when_the_connection_breaks),
        cmocka_unit_test(a_new_request_takes_those_along_that_were_cut_off),
        cmocka_unit_test(threads_that_wait_share_the_repeats),
        cmocka_unit_test(all_in_flight_hear_of_a_dead_daemon),
        cmocka_unit_test(closing_ends_what_nobody_waited_for),
    };
    return cmocka_run_group_tests_name("client_attend", tests, NULL, NULL);
}
