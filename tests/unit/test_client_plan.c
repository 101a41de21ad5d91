/* test_client_plan.c: plans, steps and merges arrive at the daemon as they are given, and what it
 * answers comes back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/fake_client.h"

static const int32_t ONE[] = {1}, LENS[] = {17, 40}, IDS[] = {-1, 2, 70000};

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

static fake_action not_as_sent(msg_reply *reply)
{
    attnd_fail(&reply->err, ATTND_BROKEN, "request: not as it was sent");
    return FAKE_REPLY;
}

/* ---- Plans ---- */

static fake_action look_at_plan(fake_server *server, const msg_request *request, msg_reply *reply)
{
    const msg_create_plan *c = &request->create_plan;
    if (request->op == MSG_OP_create_plan &&
        !(c->model == 77 && c->has_batch && c->batch_invariant && c->batch.n_contexts == 1 &&
          is_inline(&c->batch.q_lens, 1, ONE) && is_inline(&c->batch.kv_lens, 2, LENS) &&
          c->batch.n_tables == 2 && c->batch.tables[1].group == 1 &&
          is_inline(&c->batch.tables[1].block_ids, 3, IDS) && !c->batch.slots.given &&
          c->batch.mask == MSG_MASK_FULL))
        return not_as_sent(reply);
    if (request->op == MSG_OP_drop_plan && request->drop_plan != 66)
        attnd_fail(&reply->err, ATTND_NO_SUCH_HANDLE, "plan = %llu: no such plan",
                   (unsigned long long)request->drop_plan);
    return fake_answer(server, request, reply);
}

static void a_plan_is_made_and_dropped(void **state)
{
    fake_server server = {.answer = look_at_plan};
    attnd_client *client = connected(&server);
    const attnd_table tables[] = {{0}, {.group = 1, .block_ids = {IDS, 3, {0}}}};
    const attnd_batch batch = {.n_contexts = 1,
                               .q_lens = {.values = ONE, .n = 1},
                               .kv_lens = {.values = LENS, .n = 2},
                               .tables = tables,
                               .n_tables = 2,
                               .mask = ATTND_MASK_FULL};
    attnd_plan plan;
    attnd_err err = {0};
    assert_int_equal(attnd_create_plan(client, 77, &batch, true, 0, &plan, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(plan.plan, 66);
    assert_int_equal(plan.version, 1);
    assert_int_equal(attnd_drop_plan(client, 66, 0, &err), ATTND_OK);
    assert_int_equal(attnd_drop_plan(client, 67, 0, &err), ATTND_NOT_FOUND);
    assert_string_equal(err.text, "plan = 67: no such plan");
    leave(client, &server);
}

static fake_action refuse_plans(fake_server *server, const msg_request *request, msg_reply *reply)
{
    fake_action action = fake_answer(server, request, reply);
    if (request->op == MSG_OP_create_plan)
        attnd_fail(&reply->err, ATTND_BAD_LENGTH, "batch.kv_lens[0] = -1: at least 0");
    if (request->op == MSG_OP_update_plan || request->op == MSG_OP_step)
        attnd_fail(&reply->err, ATTND_STALE, "update.version = 1: the plan is at 3");
    return action;
}

static void a_refused_plan_fills_nothing(void **state)
{
    fake_server server = {.answer = refuse_plans};
    attnd_client *client = connected(&server);
    attnd_plan plan = {1, 2};
    uint64_t version = 3;
    attnd_timing timing = {4, 5, 6};
    attnd_err err;
    assert_int_equal(attnd_create_plan(client, 77, &(attnd_batch){0}, false, 0, &plan, &err),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_LENGTH);
    assert_string_equal(err.text, "batch.kv_lens[0] = -1: at least 0");
    assert_int_equal(plan.plan, 1);
    assert_int_equal(plan.version, 2);
    attnd_plan_update update = {.version = 1};
    assert_int_equal(attnd_update_plan(client, 66, &update, 0, &version, &err),
                     ATTND_FAILED_PRECONDITION);
    assert_int_equal(err.reason, ATTND_STALE);
    assert_int_equal(version, 3);
    attnd_pending *pending;
    assert_int_equal(attnd_update_plan_start(client, 66, &update, 0, 0, &pending, &err), ATTND_OK);
    assert_int_equal(attnd_wait(pending, &timing, &err), ATTND_FAILED_PRECONDITION);
    assert_string_equal(err.text, "update.version = 1: the plan is at 3");
    assert_int_equal(timing.version, 6);
    attnd_step_request step = {.plan = 66, .update = &update};
    assert_int_equal(attnd_step(client, &step, 0, &timing, &err), ATTND_FAILED_PRECONDITION);
    assert_string_equal(err.text, "update.version = 1: the plan is at 3");
    assert_int_equal(timing.version, 6);
    leave(client, &server);
}

static bool is_update(const msg_plan_update *u)
{
    return u->given && u->plan == 66 && u->version == 4 && is_inline(&u->q_lens, 1, ONE) &&
           u->kv_lens.given && is_tensor(&u->kv_lens.ref, ATTND_DTYPE_I32, 8, 1) &&
           u->n_appended == 2 && u->appended[1].group == 1 && u->appended[1].width == 2 &&
           is_inline(&u->appended[1].block_ids, 3, IDS) && !u->appended[0].block_ids.given &&
           is_inline(&u->slots, 2, LENS) && !u->positions.given;
}

static unsigned n_after_7; /* updates behind request 7 */

static fake_action look_at_update(fake_server *server, const msg_request *request, msg_reply *reply)
{
    n_after_7 += request->op == MSG_OP_update_plan && request->after == 7;
    if (request->op == MSG_OP_update_plan && !is_update(&request->update_plan))
        return not_as_sent(reply);
    const msg_step *s = &request->step;
    if (request->op == MSG_OP_step &&
        !(request->after == 3 && s->plan == 66 && is_update(&s->update) && s->first_layer == 2 &&
          s->n_layers == 30 && s->q.given && is_tensor(&s->q.first, ATTND_DTYPE_BF16, 64, 3) &&
          s->q.layer_stride == 1ll << 33 && s->q.ring == 0 && !s->k.given && s->v.given &&
          s->v.ring == 2 && s->out.given && is_tensor(&s->out.first, ATTND_DTYPE_F32, 0, 2) &&
          s->out.first.strides[0] == 512 && s->lse.given && s->lse.layer_stride == 4 &&
          s->keys == MSG_KEYS_GIVEN && !s->sync.given))
        return not_as_sent(reply);
    return fake_answer(server, request, reply);
}

static void updates_and_steps_arrive_as_they_are_given(void **state)
{
    fake_server server = {.answer = look_at_update};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = made_buffer(client);
    const attnd_table appended[] = {{0}, {.group = 1, .width = 2, .block_ids = {IDS, 3, {0}}}};
    const attnd_plan_update update = {
        .version = 4,
        .q_lens = {.values = ONE, .n = 1},
        .kv_lens = {.tensor = {.buffer = buffer,
                               .offset = 8,
                               .dtype = ATTND_DTYPE_I32,
                               .n_dims = 1,
                               .shape = {2}}},
        .appended = appended,
        .n_appended = 2,
        .slots = {.values = LENS, .n = 2},
    };
    uint64_t version;
    attnd_err err = {0};
    assert_int_equal(attnd_update_plan(client, 66, &update, 0, &version, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(version, 5);
    assert_int_equal(attnd_update_plan(client, 66, &update, 0, NULL, &err), ATTND_OK);
    attnd_pending *pending;
    attnd_timing timing = {.queue_us = 1, .device_us = 1};
    assert_int_equal(attnd_update_plan_start(client, 66, &update, 7, 0, &pending, &err), ATTND_OK);
    assert_true(attnd_pending_id(pending) > 0);
    assert_int_equal(attnd_wait(pending, &timing, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(timing.version, 5);
    assert_int_equal(timing.queue_us, 0);
    assert_int_equal(timing.device_us, 0);
    assert_int_equal(n_after_7, 1);

    const attnd_step_request step = {
        .plan = 66,
        .update = &update,
        .first_layer = 2,
        .n_layers = 30,
        .q = {.first = {buffer, 64, ATTND_DTYPE_BF16, 3, {5, 16, 128}, 0, {0}},
              .layer_stride = 1ll << 33},
        .v = {.first = {.buffer = buffer}, .ring = 2},
        .keys = ATTND_KEYS_GIVEN,
        .out = {.first = {buffer, 0, ATTND_DTYPE_F32, 2, {5, 16}, 2, {512, 4}}},
        .lse = {.first = {.buffer = buffer}, .layer_stride = 4},
        .after = 3,
    };
    assert_int_equal(attnd_step(client, &step, 0, &timing, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(timing.queue_us, 7);
    assert_int_equal(timing.device_us, 8);
    assert_int_equal(timing.version, 9);
    assert_int_equal(attnd_step_start(client, &step, 0, &pending, &err), ATTND_OK);
    assert_true(attnd_pending_id(pending) > 0);
    assert_int_equal(attnd_wait(pending, NULL, &err), ATTND_OK);
    leave(client, &server);
}

static fake_action look_at_bare_step(fake_server *server, const msg_request *request,
                                     msg_reply *reply)
{
    const msg_step *s = &request->step;
    if (request->op == MSG_OP_step &&
        (s->update.given || s->q.given || s->lse.given || request->after || s->plan != 66))
        return not_as_sent(reply);
    const msg_attend *a = &request->attend;
    if (request->op == MSG_OP_attend &&
        !(a->has_plan && !a->has_batch && a->plan == 66 && a->model == 77 && a->layer == 3))
        return not_as_sent(reply);
    return fake_answer(server, request, reply);
}

static void a_step_without_update_and_an_attend_of_a_plan_name_the_plan_alone(void **state)
{
    fake_server server = {.answer = look_at_bare_step};
    attnd_client *client = connected(&server);
    attnd_err err = {0};
    attnd_step_request step = {.plan = 66, .n_layers = 1};
    assert_int_equal(attnd_step(client, &step, 0, NULL, &err), ATTND_OK);
    /* The batch is not looked at. */
    attnd_attend_request attend = {
        .model = 77, .layer = 3, .plan = 66, .batch = {.n_contexts = 9, .n_tables = 5}};
    assert_int_equal(attnd_attend(client, &attend, 0, NULL, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    leave(client, &server);
}

/* ---- Merging ---- */

static fake_action look_at_merge(fake_server *server, const msg_request *request, msg_reply *reply)
{
    const msg_merge *m = &request->merge;
    if (request->op == MSG_OP_merge &&
        !(request->after == 4 && m->n_partials == 2 &&
          is_tensor(&m->partials[0].out, ATTND_DTYPE_F32, 0, 2) &&
          is_tensor(&m->partials[0].lse, ATTND_DTYPE_F32, 64, 0) && !m->partials[0].stats.given &&
          is_tensor(&m->partials[1].stats, ATTND_DTYPE_F32, 128, 0) && !m->partials[1].lse.given &&
          is_tensor(&m->out, ATTND_DTYPE_BF16, 192, 0) && !m->lse.given &&
          is_tensor(&m->stats, ATTND_DTYPE_F32, 256, 0)))
        return not_as_sent(reply);
    return fake_answer(server, request, reply);
}

static void a_merge_arrives_as_it_is_given(void **state)
{
    fake_server server = {.answer = look_at_merge};
    attnd_client *client = connected(&server);
    attnd_buffer *buffer = made_buffer(client);
    const attnd_partial partials[] = {
        {.out = {.buffer = buffer, .dtype = ATTND_DTYPE_F32, .n_dims = 2},
         .lse = {.buffer = buffer, .dtype = ATTND_DTYPE_F32, .offset = 64}},
        {.stats = {.buffer = buffer, .dtype = ATTND_DTYPE_F32, .offset = 128}},
    };
    const attnd_merge_request merge = {
        .partials = partials,
        .n_partials = 2,
        .out = {.buffer = buffer, .dtype = ATTND_DTYPE_BF16, .offset = 192},
        .stats = {.buffer = buffer, .dtype = ATTND_DTYPE_F32, .offset = 256},
        .after = 4,
    };
    attnd_timing timing;
    attnd_err err = {0};
    assert_int_equal(attnd_merge(client, &merge, 0, &timing, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    assert_int_equal(timing.queue_us, 10);
    assert_int_equal(timing.device_us, 11);
    assert_int_equal(timing.version, 0);
    leave(client, &server);
}

/* ---- What cannot be read ---- */

typedef struct too_wide {
    attnd_tensor *tensor;
    const char *name;
} too_wide;

/* Each tensor in turn claims more than its arrays hold, and call() refuses it by name. */
static void assert_refused_by_name(attnd_buffer *buffer, const too_wide *cases, size_t n,
                                   attnd_status (*call)(void *arg, attnd_err *err), void *arg)
{
    for (size_t i = 0; i < n; i++) {
        attnd_err err;
        char text[128];
        *cases[i].tensor = (attnd_tensor){.buffer = buffer, .n_dims = 5};
        assert_int_equal(call(arg, &err), ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_TENSOR);
        snprintf(text, sizeof text, "%s.n_dims = 5: at most 4", cases[i].name);
        assert_string_equal(err.text, text);
        *cases[i].tensor = (attnd_tensor){.buffer = buffer, .n_strides = 6};
        assert_int_equal(call(arg, &err), ATTND_INVALID_ARGUMENT);
        snprintf(text, sizeof text, "%s.n_strides = 6: at most 4", cases[i].name);
        assert_string_equal(err.text, text);
        *cases[i].tensor = (attnd_tensor){0};
    }
}

static attnd_client *client_now;

static attnd_status create(void *batch, attnd_err *err)
{
    attnd_plan plan;
    return attnd_create_plan(client_now, 77, batch, false, 0, &plan, err);
}

static attnd_status update(void *arg, attnd_err *err)
{
    return attnd_update_plan(client_now, 66, arg, 0, NULL, err);
}

static attnd_status update_start(void *arg, attnd_err *err)
{
    attnd_pending *pending = (attnd_pending *)arg;
    attnd_status status = attnd_update_plan_start(client_now, 66, arg, 0, 0, &pending, err);
    assert_null(pending);
    return status;
}

static attnd_status step(void *arg, attnd_err *err)
{
    return attnd_step(client_now, arg, 0, NULL, err);
}

static attnd_status merge(void *arg, attnd_err *err)
{
    return attnd_merge(client_now, arg, 0, NULL, err);
}

static void more_dimensions_than_a_tensor_holds_are_refused(void **state)
{
    fake_server server = {0};
    client_now = connected(&server);
    attnd_buffer *buffer = made_buffer(client_now);
    attnd_table tables[2] = {{0}};
    attnd_batch b = {.tables = tables, .n_tables = 2};
    const too_wide of_batch[] = {
        {&b.q_lens.tensor, "batch.q_lens"},
        {&b.kv_lens.tensor, "batch.kv_lens"},
        {&b.slots.tensor, "batch.slots"},
        {&b.positions.tensor, "batch.positions"},
        {&tables[1].block_ids.tensor, "batch.tables[1].block_ids"},
    };
    assert_refused_by_name(buffer, of_batch, 5, create, &b);
    attnd_plan_update u = {.appended = tables, .n_appended = 2};
    const too_wide of_update[] = {
        {&u.q_lens.tensor, "update.q_lens"},
        {&u.kv_lens.tensor, "update.kv_lens"},
        {&u.slots.tensor, "update.slots"},
        {&u.positions.tensor, "update.positions"},
        {&tables[1].block_ids.tensor, "update.appended[1].block_ids"},
    };
    assert_refused_by_name(buffer, of_update, 5, update, &u);
    assert_refused_by_name(buffer, of_update, 5, update_start, &u);
    attnd_step_request s = {.update = &u};
    assert_refused_by_name(buffer, of_update, 5, step, &s);
    const too_wide of_step[] = {
        {&s.q.first, "q.first"},     {&s.k.first, "k.first"},     {&s.v.first, "v.first"},
        {&s.out.first, "out.first"}, {&s.lse.first, "lse.first"},
    };
    assert_refused_by_name(buffer, of_step, 5, step, &s);
    attnd_partial partials[2] = {0};
    attnd_merge_request m = {.partials = partials, .n_partials = 2};
    const too_wide of_merge[] = {
        {&partials[0].out, "partials[0].out"},
        {&partials[1].lse, "partials[1].lse"},
        {&partials[1].stats, "partials[1].stats"},
        {&m.out, "out"},
        {&m.lse, "lse"},
        {&m.stats, "stats"},
    };
    assert_refused_by_name(buffer, of_merge, 6, merge, &m);
    assert_int_equal(fake_n_requests(&server, MSG_OP_create_plan), 0);
    assert_int_equal(fake_n_requests(&server, MSG_OP_update_plan), 0);
    assert_int_equal(fake_n_requests(&server, MSG_OP_step), 0);
    assert_int_equal(fake_n_requests(&server, MSG_OP_merge), 0);
    attnd_close(client_now);
    fake_close(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_made_and_dropped),
        cmocka_unit_test(a_refused_plan_fills_nothing),
        cmocka_unit_test(updates_and_steps_arrive_as_they_are_given),
        cmocka_unit_test(a_step_without_update_and_an_attend_of_a_plan_name_the_plan_alone),
        cmocka_unit_test(a_merge_arrives_as_it_is_given),
        cmocka_unit_test(more_dimensions_than_a_tensor_holds_are_refused),
    };
    return cmocka_run_group_tests_name("client_plan", tests, NULL, NULL);
}
