/* test_msg_decode.c: bytes become the request they say.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/request.h"

static void the_envelope_is_read(void **state)
{
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    Attnd__V1__PingRequest ping = ATTND__V1__PING_REQUEST__INIT;
    request.id = 5;
    request.session = 6;
    request.after = 7;
    request.timeout_ms = 4000000000u;
    request.op_case = ATTND__V1__REQUEST__OP_PING;
    request.ping = &ping;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    assert_int_equal(r.id, 5);
    assert_int_equal(r.session, 6);
    assert_int_equal(r.after, 7);
    assert_int_equal(r.timeout_ms, 4000000000u);
    assert_int_equal(r.op, MSG_OP_ping);
}

static void the_envelope_may_come_in_any_order(void **state)
{
    bytes b = {.n = 0};
    put(&b, MSG_OP_ping, &(bytes){.n = 0});
    put_number(&b, 4, 17);
    put_fixed64(&b, 2, REQUEST_SESSION);
    put_fixed64(&b, 1, 3);
    put_fixed64(&b, 1, 4); /* said twice: the last holds */
    msg_request r = decoded(*state, &b);
    assert_int_equal(r.op, MSG_OP_ping);
    assert_int_equal(r.timeout_ms, 17);
    assert_int_equal(r.session, REQUEST_SESSION);
    assert_int_equal(r.id, 4);
}

static void small_ops_are_filled(void **state)
{
    bytes m = {.n = 0};
    put_number(&m, 1, 1);
    put_bytes(&m, 2,
              "sch\xc3\xa4"
              "fer",
              8);
    bytes b = request_of(MSG_OP_hello, &m);
    msg_request r = decoded(*state, &b);
    assert_int_equal(r.hello.protocol, 1);
    assert_string_equal(r.hello.client, "sch\xc3\xa4"
                                        "fer");

    b = request_of(MSG_OP_hello, &(bytes){.n = 0});
    r = decoded(*state, &b);
    assert_int_equal(r.hello.protocol, 0);
    assert_string_equal(r.hello.client, "");

    m.n = 0;
    put_number(&m, 1, UINT64_MAX);
    put_number(&m, 2, 1);
    b = request_of(MSG_OP_create_buffer, &m);
    r = decoded(*state, &b);
    assert_true(r.create_buffer.bytes == UINT64_MAX);
    assert_int_equal(r.create_buffer.kind, 1);
    assert_false(r.create_buffer.named);
    put_number(&m, 3, 1);
    b = request_of(MSG_OP_create_buffer, &m);
    assert_true(decoded(*state, &b).create_buffer.named);

    m.n = 0;
    put_fixed64(&m, 1, 77);
    b = request_of(MSG_OP_free_buffer, &m);
    assert_int_equal(decoded(*state, &b).free_buffer, 77);
    b = request_of(MSG_OP_close_model, &m);
    assert_int_equal(decoded(*state, &b).close_model, 77);
    b = request_of(MSG_OP_goodbye, &(bytes){.n = 0});
    assert_int_equal(decoded(*state, &b).op, MSG_OP_goodbye);
}

static void a_model_is_filled(void **state)
{
    Attnd__V1__Rope rope = ATTND__V1__ROPE__INIT;
    rope.pairing = ATTND__V1__ROPE_PAIRING__ROPE_GPTJ;
    rope.dim = 64;
    rope.theta = 500000;
    rope.scaling = ATTND__V1__ROPE_SCALING__ROPE_SCALING_YARN;
    Attnd__V1__LayerSpec layers[2] = {ATTND__V1__LAYER_SPEC__INIT, ATTND__V1__LAYER_SPEC__INIT};
    layers[0].kind = ATTND__V1__LAYER_KIND__LAYER_CROSS;
    layers[0].group = 1;
    layers[0].n_heads = 32;
    layers[0].n_kv_heads = 8;
    layers[0].head_dim = 128;
    layers[0].head_dim_v = 64;
    layers[0].sm_scale = 0.5f;
    layers[0].q_scaling = 2;
    layers[0].window = 4096;
    layers[0].rope = &rope;
    layers[0].softcap = 30;
    layers[0].chunk = 8192;
    layers[0].count = 12;
    Attnd__V1__GroupSpec groups[2] = {ATTND__V1__GROUP_SPEC__INIT, ATTND__V1__GROUP_SPEC__INIT};
    groups[0].name = "main";
    groups[0].block_size = 16;
    groups[0].kv_dtype = ATTND__V1__DTYPE__DTYPE_BF16;
    groups[0].layout = ATTND__V1__LAYOUT__LAYOUT_NHD;
    groups[0].size_case = ATTND__V1__GROUP_SPEC__SIZE_N_BLOCKS;
    groups[0].n_blocks = 90000;
    groups[0].max_kv_len = 65536;
    groups[0].window = 100;
    groups[1].size_case = ATTND__V1__GROUP_SPEC__SIZE_BYTES;
    groups[1].bytes = 1ull << 40;
    Attnd__V1__ModelSpec spec = ATTND__V1__MODEL_SPEC__INIT;
    spec.name = "llama";
    spec.n_layers = 2;
    spec.layers = (Attnd__V1__LayerSpec *[]){&layers[0], &layers[1]};
    spec.n_groups = 2;
    spec.groups = (Attnd__V1__GroupSpec *[]){&groups[0], &groups[1]};
    spec.owner = ATTND__V1__OWNER__OWNER_SERVER;
    Attnd__V1__OpenModelRequest open = ATTND__V1__OPEN_MODEL_REQUEST__INIT;
    open.spec = &spec;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_OPEN_MODEL;
    request.open_model = &open;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    assert_true(r.open_model.given);
    const msg_model_spec *s = &r.open_model.spec;
    assert_string_equal(s->name, "llama");
    assert_int_equal(s->owner, MSG_OWNER_SERVER);
    assert_int_equal(s->n_layers, 2);
    const msg_layer_spec *l = &s->layers[0];
    assert_int_equal(l->kind, ATTND_LAYER_CROSS);
    assert_int_equal(l->group, 1);
    assert_int_equal(l->n_heads, 32);
    assert_int_equal(l->n_kv_heads, 8);
    assert_int_equal(l->head_dim, 128);
    assert_int_equal(l->head_dim_v, 64);
    assert_true(l->sm_scale == 0.5f);
    assert_true(l->q_scaling == 2);
    assert_int_equal(l->window, 4096);
    assert_int_equal(l->chunk, 8192);
    assert_true(l->softcap == 30);
    assert_int_equal(l->count, 12);
    assert_true(l->rope.given);
    assert_int_equal(l->rope.pairing, ATTND_ROPE_GPTJ);
    assert_int_equal(l->rope.dim, 64);
    assert_true(l->rope.theta == 500000);
    assert_int_equal(l->rope.scaling, 5);
    assert_false(s->layers[1].rope.given);
    assert_int_equal(s->layers[1].n_heads, 0);
    assert_int_equal(s->n_groups, 2);
    const msg_group_spec *g = s->groups;
    assert_string_equal(g[0].name, "main");
    assert_int_equal(g[0].block_size, 16);
    assert_int_equal(g[0].kv_dtype, ATTND_DTYPE_BF16);
    assert_int_equal(g[0].layout, ATTND_LAYOUT_NHD);
    assert_int_equal(g[0].n_blocks, 90000);
    assert_int_equal(g[0].bytes, 0);
    assert_int_equal(g[0].max_kv_len, 65536);
    assert_int_equal(g[0].window, 100);
    assert_string_equal(g[1].name, "");
    assert_int_equal(g[1].n_blocks, 0);
    assert_true(g[1].bytes == 1ull << 40);

    b = request_of(MSG_OP_open_model, &(bytes){.n = 0});
    assert_false(decoded(*state, &b).open_model.given);
}

static void an_attend_is_filled(void **state)
{
    Attnd__V1__Tensor q = ATTND__V1__TENSOR__INIT, ref = ATTND__V1__TENSOR__INIT;
    q.buffer = 9;
    q.offset = 256;
    q.dtype = ATTND__V1__DTYPE__DTYPE_F16;
    q.n_shape = 5;
    q.shape = (uint64_t[]){1, 2, 3, 4, 5};
    q.n_strides = 2;
    q.strides = (int64_t[]){-64, 2};
    ref.buffer = 3;
    Attnd__V1__Ints q_lens, kv_lens, ids, empty;
    attnd__v1__ints__init(&q_lens);
    attnd__v1__ints__init(&kv_lens);
    attnd__v1__ints__init(&ids);
    attnd__v1__ints__init(&empty);
    q_lens.from_case = ATTND__V1__INTS__FROM_DATA;
    q_lens.data = (ProtobufCBinaryData){4, (uint8_t[]){1, 0, 0, 0}};
    kv_lens.from_case = ATTND__V1__INTS__FROM_REF;
    kv_lens.ref = &ref;
    ids.from_case = ATTND__V1__INTS__FROM_DATA;
    ids.data = (ProtobufCBinaryData){0, NULL};
    Attnd__V1__Table table = ATTND__V1__TABLE__INIT;
    table.group = 2;
    table.width = 3;
    table.block_ids = &ids;
    table.version = 4;
    Attnd__V1__Batch batch = ATTND__V1__BATCH__INIT;
    batch.n_contexts = 1;
    batch.q_lens = &q_lens;
    batch.kv_lens = &kv_lens;
    batch.n_tables = 1;
    batch.tables = (Attnd__V1__Table *[]){&table};
    batch.n_sequences = 2;
    batch.sequences = (uint64_t[]){11, 12};
    batch.positions = &empty;
    batch.mask = ATTND__V1__MASK__MASK_TREE;
    Attnd__V1__Word in = ATTND__V1__WORD__INIT;
    in.buffer = 21;
    in.offset = 64;
    in.value = 22;
    Attnd__V1__Sync sync = ATTND__V1__SYNC__INIT;
    sync.mode = ATTND__V1__SYNC_MODE__SYNC_DOORBELL;
    sync.in = &in;
    sync.in_event = 23;
    sync.out_event = 24;
    Attnd__V1__AttendRequest attend = ATTND__V1__ATTEND_REQUEST__INIT;
    attend.model = 31;
    attend.layer = 32;
    attend.work_case = ATTND__V1__ATTEND_REQUEST__WORK_BATCH;
    attend.batch = &batch;
    attend.q = &q;
    attend.out = &ref;
    attend.keys = ATTND__V1__KEYS__KEYS_GIVEN;
    attend.sync = &sync;
    attend.batch_invariant = 1;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_ATTEND;
    request.attend = &attend;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    const msg_attend *a = &r.attend;
    assert_int_equal(a->model, 31);
    assert_int_equal(a->layer, 32);
    assert_true(a->has_batch);
    assert_false(a->has_plan);
    assert_int_equal(a->keys, MSG_KEYS_GIVEN);
    assert_true(a->batch_invariant);
    assert_true(a->q.given);
    assert_int_equal(a->q.buffer, 9);
    assert_int_equal(a->q.offset, 256);
    assert_int_equal(a->q.dtype, ATTND_DTYPE_F16);
    assert_int_equal(a->q.n_dims, 5);
    assert_int_equal(a->q.shape[3], 4);
    assert_int_equal(a->q.n_strides, 2);
    assert_int_equal(a->q.strides[0], -64);
    assert_false(a->k.given);
    assert_false(a->v.given);
    assert_true(a->out.given);
    assert_false(a->lse.given);
    assert_false(a->stats.given);
    assert_true(a->sync.given);
    assert_int_equal(a->sync.mode, MSG_SYNC_DOORBELL);
    assert_true(a->sync.in.given);
    assert_int_equal(a->sync.in.buffer, 21);
    assert_int_equal(a->sync.in.offset, 64);
    assert_int_equal(a->sync.in.value, 22);
    assert_false(a->sync.out.given);
    assert_int_equal(a->sync.in_event, 23);
    assert_int_equal(a->sync.out_event, 24);
    const msg_batch *m = &a->batch;
    assert_int_equal(m->n_contexts, 1);
    assert_int_equal(m->q_lens.bytes, 4);
    assert_int_equal(m->q_lens.data[0], 1);
    assert_true(m->kv_lens.given);
    assert_null(m->kv_lens.data);
    assert_true(m->kv_lens.ref.given);
    assert_int_equal(m->kv_lens.ref.buffer, 3);
    assert_int_equal(m->n_tables, 1);
    assert_int_equal(m->tables[0].group, 2);
    assert_int_equal(m->tables[0].width, 3);
    assert_int_equal(m->tables[0].version, 4);
    assert_true(m->tables[0].block_ids.given);
    assert_non_null(m->tables[0].block_ids.data); /* none, but inline */
    assert_int_equal(m->tables[0].block_ids.bytes, 0);
    assert_int_equal(m->n_sequences, 2);
    assert_int_equal(m->sequences[1], 12);
    assert_false(m->slots.given);
    assert_true(m->positions.given);
    assert_non_null(m->positions.data);
    assert_int_equal(m->mask, MSG_MASK_TREE);
}

static Attnd__V1__Ints inline_ints(const void *data, size_t n)
{
    Attnd__V1__Ints ints;
    attnd__v1__ints__init(&ints);
    ints.from_case = ATTND__V1__INTS__FROM_DATA;
    ints.data = (ProtobufCBinaryData){n, (uint8_t *)data};
    return ints;
}

static void plans_are_filled(void **state)
{
    Attnd__V1__Ints lens = inline_ints("\x07\0\0\0", 4);
    Attnd__V1__Table table = ATTND__V1__TABLE__INIT;
    table.group = 1;
    Attnd__V1__Batch batch = ATTND__V1__BATCH__INIT;
    batch.n_contexts = 2;
    batch.kv_lens = &lens;
    batch.n_tables = 1;
    batch.tables = (Attnd__V1__Table *[]){&table};
    Attnd__V1__CreatePlanRequest create = ATTND__V1__CREATE_PLAN_REQUEST__INIT;
    create.model = 1ull << 63;
    create.batch = &batch;
    create.batch_invariant = 1;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_CREATE_PLAN;
    request.create_plan = &create;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    assert_true(r.create_plan.model == 1ull << 63);
    assert_true(r.create_plan.has_batch);
    assert_true(r.create_plan.batch_invariant);
    assert_int_equal(r.create_plan.batch.n_contexts, 2);
    assert_int_equal(r.create_plan.batch.kv_lens.data[0], 7);
    assert_false(r.create_plan.batch.q_lens.given);
    assert_int_equal(r.create_plan.batch.n_tables, 1);
    assert_int_equal(r.create_plan.batch.tables[0].group, 1);

    b = request_of(MSG_OP_create_plan, &(bytes){.n = 0});
    r = decoded(*state, &b);
    assert_false(r.create_plan.has_batch);
    assert_int_equal(r.create_plan.model, 0);
    assert_false(r.create_plan.batch_invariant);

    bytes m = {.n = 0};
    put_fixed64(&m, 1, 78);
    b = request_of(MSG_OP_drop_plan, &m);
    assert_int_equal(decoded(*state, &b).drop_plan, 78);
}

static void a_plan_update_is_filled(void **state)
{
    Attnd__V1__Tensor ref = ATTND__V1__TENSOR__INIT;
    ref.buffer = 5;
    Attnd__V1__Ints q_lens = inline_ints("\x01\0\0\0", 4);
    Attnd__V1__Ints ids = inline_ints("\x09\0\0\0\x0a\0\0\0", 8);
    Attnd__V1__Ints slots = inline_ints("\x0b\0\0\0", 4);
    Attnd__V1__Ints positions = inline_ints("", 0), kv_lens;
    attnd__v1__ints__init(&kv_lens);
    kv_lens.from_case = ATTND__V1__INTS__FROM_REF;
    kv_lens.ref = &ref;
    Attnd__V1__Table appended[2] = {ATTND__V1__TABLE__INIT, ATTND__V1__TABLE__INIT};
    appended[1].group = 3;
    appended[1].width = 1;
    appended[1].block_ids = &ids;
    Attnd__V1__PlanUpdate update = ATTND__V1__PLAN_UPDATE__INIT;
    update.plan = 41;
    update.version = 1ull << 50;
    update.q_lens = &q_lens;
    update.kv_lens = &kv_lens;
    update.n_appended = 2;
    update.appended = (Attnd__V1__Table *[]){&appended[0], &appended[1]};
    update.slots = &slots;
    update.positions = &positions;
    Attnd__V1__UpdatePlanRequest op = ATTND__V1__UPDATE_PLAN_REQUEST__INIT;
    op.update = &update;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_UPDATE_PLAN;
    request.update_plan = &op;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    const msg_plan_update *u = &r.update_plan;
    assert_true(u->given);
    assert_int_equal(u->plan, 41);
    assert_true(u->version == 1ull << 50);
    assert_int_equal(u->q_lens.bytes, 4);
    assert_int_equal(u->q_lens.data[0], 1);
    assert_null(u->kv_lens.data);
    assert_int_equal(u->kv_lens.ref.buffer, 5);
    assert_int_equal(u->n_appended, 2);
    assert_false(u->appended[0].block_ids.given);
    assert_int_equal(u->appended[1].group, 3);
    assert_int_equal(u->appended[1].width, 1);
    assert_int_equal(u->appended[1].block_ids.bytes, 8);
    assert_int_equal(u->appended[1].block_ids.data[4], 10);
    assert_int_equal(u->slots.data[0], 11);
    assert_true(u->positions.given);
    assert_int_equal(u->positions.bytes, 0);

    bytes m = {.n = 0};
    put(&m, 1, &(bytes){.n = 0});
    b = request_of(MSG_OP_update_plan, &m);
    r = decoded(*state, &b);
    assert_true(r.update_plan.given);
    assert_int_equal(r.update_plan.n_appended, 0);
    assert_false(r.update_plan.q_lens.given);
    b = request_of(MSG_OP_update_plan, &(bytes){.n = 0});
    assert_false(decoded(*state, &b).update_plan.given);
}

static void a_step_is_filled(void **state)
{
    Attnd__V1__Tensor first = ATTND__V1__TENSOR__INIT;
    first.buffer = 9;
    first.n_shape = 2;
    first.shape = (uint64_t[]){4, 512};
    Attnd__V1__LayerTensor q, k, v, out, lse;
    attnd__v1__layer_tensor__init(&q);
    attnd__v1__layer_tensor__init(&k);
    attnd__v1__layer_tensor__init(&v);
    attnd__v1__layer_tensor__init(&out);
    attnd__v1__layer_tensor__init(&lse);
    q.first = &first;
    q.layer_stride = 1ll << 40;
    k.layer_stride = -4;
    v.ring = 2;
    out.first = &first;
    out.ring = 3;
    Attnd__V1__PlanUpdate update = ATTND__V1__PLAN_UPDATE__INIT;
    update.plan = 41;
    update.version = 6;
    Attnd__V1__Word word = ATTND__V1__WORD__INIT;
    word.value = 77;
    Attnd__V1__Sync sync = ATTND__V1__SYNC__INIT;
    sync.mode = ATTND__V1__SYNC_MODE__SYNC_DOORBELL;
    sync.out = &word;
    Attnd__V1__StepRequest op = ATTND__V1__STEP_REQUEST__INIT;
    op.plan = 42;
    op.update = &update;
    op.first_layer = 2;
    op.n_layers = 30;
    op.q = &q;
    op.k = &k;
    op.v = &v;
    op.out = &out;
    op.lse = &lse;
    op.keys = ATTND__V1__KEYS__KEYS_GIVEN;
    op.sync = &sync;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_STEP;
    request.step = &op;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    const msg_step *s = &r.step;
    assert_int_equal(s->plan, 42);
    assert_true(s->update.given);
    assert_int_equal(s->update.plan, 41);
    assert_int_equal(s->update.version, 6);
    assert_int_equal(s->first_layer, 2);
    assert_int_equal(s->n_layers, 30);
    assert_true(s->q.given && s->k.given && s->v.given && s->out.given && s->lse.given);
    assert_true(s->q.first.given);
    assert_int_equal(s->q.first.buffer, 9);
    assert_int_equal(s->q.first.n_dims, 2);
    assert_int_equal(s->q.first.shape[1], 512);
    assert_true(s->q.layer_stride == 1ll << 40);
    assert_int_equal(s->q.ring, 0);
    assert_false(s->k.first.given);
    assert_true(s->k.layer_stride == -4);
    assert_int_equal(s->v.ring, 2);
    assert_true(s->out.first.given);
    assert_int_equal(s->out.ring, 3);
    assert_int_equal(s->keys, MSG_KEYS_GIVEN);
    assert_int_equal(s->sync.mode, MSG_SYNC_DOORBELL);
    assert_int_equal(s->sync.out.value, 77);
    assert_false(s->sync.in.given);

    b = request_of(MSG_OP_step, &(bytes){.n = 0});
    r = decoded(*state, &b);
    assert_false(r.step.update.given);
    assert_false(r.step.q.given || r.step.k.given || r.step.v.given || r.step.out.given ||
                 r.step.lse.given);
    assert_false(r.step.sync.given);
    assert_int_equal(r.step.keys, MSG_KEYS_POOL);
}

static void a_merge_is_filled(void **state)
{
    Attnd__V1__Tensor t[3] = {ATTND__V1__TENSOR__INIT, ATTND__V1__TENSOR__INIT,
                              ATTND__V1__TENSOR__INIT};
    for (uint64_t i = 0; i < 3; i++)
        t[i].buffer = i + 1;
    Attnd__V1__Partial partials[2] = {ATTND__V1__PARTIAL__INIT, ATTND__V1__PARTIAL__INIT};
    partials[0].out = &t[0];
    partials[0].lse = &t[1];
    partials[1].stats = &t[2];
    Attnd__V1__MergeRequest op = ATTND__V1__MERGE_REQUEST__INIT;
    op.n_partials = 2;
    op.partials = (Attnd__V1__Partial *[]){&partials[0], &partials[1]};
    op.out = &t[2];
    op.stats = &t[1];
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_MERGE;
    request.merge = &op;
    bytes b = request_with(&request);
    msg_request r = decoded(*state, &b);
    const msg_merge *m = &r.merge;
    assert_int_equal(m->n_partials, 2);
    assert_int_equal(m->partials[0].out.buffer, 1);
    assert_int_equal(m->partials[0].lse.buffer, 2);
    assert_false(m->partials[0].stats.given);
    assert_false(m->partials[1].out.given);
    assert_false(m->partials[1].lse.given);
    assert_int_equal(m->partials[1].stats.buffer, 3);
    assert_int_equal(m->out.buffer, 3);
    assert_false(m->lse.given);
    assert_int_equal(m->stats.buffer, 2);

    b = request_of(MSG_OP_merge, &(bytes){.n = 0});
    r = decoded(*state, &b);
    assert_int_equal(r.merge.n_partials, 0);
    assert_false(r.merge.out.given);
}

static void the_last_of_a_oneof_holds(void **state)
{
    bytes batch = {.n = 0}, m = {.n = 0};
    put_number(&batch, 1, 3);
    put(&m, 4, &batch);
    put_fixed64(&m, 3, 55);
    bytes b = request_of(MSG_OP_attend, &m);
    msg_request r = decoded(*state, &b);
    assert_true(r.attend.has_plan);
    assert_false(r.attend.has_batch);
    assert_int_equal(r.attend.plan, 55);
}

static void ops_nobody_serves_give_their_number_whatever_they_carry(void **state)
{
    static const msg_op unserved[] = {
        MSG_OP_import_buffer,    MSG_OP_gather_latents, MSG_OP_move_tokens,
        MSG_OP_create_sequences, MSG_OP_fork_sequences, MSG_OP_update_sequences,
        MSG_OP_free_sequences,   MSG_OP_copy_blocks,    MSG_OP_swap_blocks,
        MSG_OP_export_blocks,    MSG_OP_import_blocks,  MSG_OP_match_prefix,
        MSG_OP_detach_session,   MSG_OP_attach_session, MSG_OP_open_ring,
    };
    bytes m = {.n = 0};
    put_number(&m, 500, 1);
    put_raw(&m, "\xff\xff", 2);
    for (size_t i = 0; i < sizeof unserved / sizeof *unserved; i++) {
        bytes b = request_of(unserved[i], &m);
        msg_request r = decoded(*state, &b);
        assert_int_equal(r.op, unserved[i]);
        assert_string_not_equal(msg_op_name(r.op), "?");
        assert_true(r.id == REQUEST_ID);
    }
}

static void names_of_ops_are_those_of_the_protocol(void **state)
{
    for (int op = 0; op <= MSG_OP_END; op++) {
        const ProtobufCFieldDescriptor *d =
            protobuf_c_message_descriptor_get_field(&attnd__v1__request__descriptor, (unsigned)op);
        bool is_op = d && d->type == PROTOBUF_C_TYPE_MESSAGE;
        assert_string_equal(msg_op_name((msg_op)op), is_op ? d->name : "?");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_envelope_is_read),
        cmocka_unit_test(the_envelope_may_come_in_any_order),
        cmocka_unit_test(small_ops_are_filled),
        cmocka_unit_test(a_model_is_filled),
        cmocka_unit_test(an_attend_is_filled),
        cmocka_unit_test(plans_are_filled),
        cmocka_unit_test(a_plan_update_is_filled),
        cmocka_unit_test(a_step_is_filled),
        cmocka_unit_test(a_merge_is_filled),
        cmocka_unit_test(the_last_of_a_oneof_holds),
        cmocka_unit_test(ops_nobody_serves_give_their_number_whatever_they_carry),
        cmocka_unit_test(names_of_ops_are_those_of_the_protocol),
    };
    return cmocka_run_group_tests_name("msg_decode", tests, open_arena, close_arena);
}
