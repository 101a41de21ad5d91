/* test_msg_decode.c: bytes become the request they say, or a refusal that names the field; nothing
 * is allocated outside the arena.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attnd.pb-c.h"
#include "proto/message.h"

/* ---- Allocations of the whole program, counted ---- */

static volatile size_t n_allocations; /* volatile: the compiler knows what malloc leaves alone */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
int __sanitizer_install_malloc_and_free_hooks(void (*taken)(const volatile void *, size_t),
                                              void (*given)(const volatile void *));

static void taken(const volatile void *memory, size_t bytes)
{
    n_allocations++;
}

static void given(const volatile void *memory)
{
}

static void count_allocations(void)
{
    __sanitizer_install_malloc_and_free_hooks(taken, given);
}
#else
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

void *malloc(size_t bytes)
{
    n_allocations++;
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    n_allocations++;
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    n_allocations++;
    return __libc_realloc(memory, bytes);
}

static void count_allocations(void)
{
}
#endif

/* ---- Bytes by hand ---- */

typedef struct bytes {
    uint8_t at[4096];
    size_t n;
} bytes;

static void put_raw(bytes *b, const void *from, size_t n)
{
    assert_true(b->n + n <= sizeof b->at);
    memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_varint(bytes *b, uint64_t value)
{
    for (; value > 127; value >>= 7)
        put_raw(b, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put_raw(b, &(uint8_t){(uint8_t)value}, 1);
}

static void put_number(bytes *b, uint32_t field, uint64_t value)
{
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, value);
}

static void put_fixed64(bytes *b, uint32_t field, uint64_t value)
{
    put_varint(b, (uint64_t)field << 3 | 1);
    for (int i = 0; i < 8; i++)
        put_raw(b, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

static void put_bytes(bytes *b, uint32_t field, const void *from, size_t n)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, n);
    put_raw(b, from, n);
}

static void put(bytes *b, uint32_t field, const bytes *message)
{
    put_bytes(b, field, message->at, message->n);
}

static const uint64_t ID = 0x1122334455667788, SESSION = 0x99;

/* A request whose op holds the message. */
static bytes request_of(msg_op op, const bytes *message)
{
    bytes b = {.n = 0};
    put_fixed64(&b, 1, ID);
    put_fixed64(&b, 2, SESSION);
    put(&b, op, message);
    return b;
}

static bytes request_with(const Attnd__V1__Request *request)
{
    bytes b;
    assert_true(attnd__v1__request__get_packed_size(request) <= sizeof b.at);
    b.n = attnd__v1__request__pack(request, b.at);
    return b;
}

/* ---- Fixture ---- */

static int open_arena(void **state)
{
    static msg_arena arena;
    *state = &arena;
    return msg_arena_init(&arena, 1 << 20, NULL);
}

static int close_arena(void **state)
{
    msg_arena_fini(*state);
    return 0;
}

static void assert_refused(msg_arena *arena, const bytes *b, attnd_reason reason, const char *field,
                           const char *text)
{
    msg_request r;
    attnd_err err = {0};
    msg_arena_reset(arena);
    attnd_status status = msg_decode(arena, b->at, b->n, &r, &err);
    assert_string_equal(err.text, text);
    assert_int_equal(status, attnd_reason_status(reason));
    assert_int_equal(err.reason, reason);
    assert_int_equal(attnd_err_field_len(&err), strlen(field));
    assert_memory_equal(err.text, field, strlen(field));
}

/* As assert_refused, and the envelope was read so that the refusal can be answered. */
static void assert_op_refused(msg_arena *arena, msg_op op, const bytes *message,
                              attnd_reason reason, const char *field, const char *text)
{
    bytes b = request_of(op, message);
    assert_refused(arena, &b, reason, field, text);
    msg_request r;
    msg_decode(arena, b.at, b.n, &r, NULL);
    assert_true(r.id == ID);
    assert_true(r.session == SESSION);
    assert_int_equal(r.op, op);
}

static msg_request decoded(msg_arena *arena, const bytes *b)
{
    msg_request r;
    attnd_err err = {0};
    msg_arena_reset(arena);
    attnd_status status = msg_decode(arena, b->at, b->n, &r, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, ATTND_OK);
    return r;
}

/* ---- What is right ---- */

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
    put_fixed64(&b, 2, SESSION);
    put_fixed64(&b, 1, 3);
    put_fixed64(&b, 1, 4); /* said twice: the last holds */
    msg_request r = decoded(*state, &b);
    assert_int_equal(r.op, MSG_OP_ping);
    assert_int_equal(r.timeout_ms, 17);
    assert_int_equal(r.session, SESSION);
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
        assert_true(r.id == ID);
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

/* ---- What is refused ---- */

static void a_request_without_an_op_is_refused(void **state)
{
    bytes b = {.n = 0};
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "op", "op: none is set");
    put_fixed64(&b, 1, 7);
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "op", "op: none is set");
    put(&b, 44, &(bytes){.n = 0});
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "op",
                   "op: none is set; field 44 is none this server knows");
    msg_request r;
    msg_decode(*state, b.at, b.n, &r, NULL);
    assert_int_equal(r.id, 7);
    assert_int_equal(r.op, MSG_OP_NONE);
}

static void a_request_with_two_ops_is_refused(void **state)
{
    bytes b = request_of(MSG_OP_ping, &(bytes){.n = 0});
    put(&b, MSG_OP_goodbye, &(bytes){.n = 0});
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "op",
                   "op: both ping and goodbye; one request holds one");
}

static void an_unknown_field_is_refused_wherever_it_is(void **state)
{
    bytes b = request_of(MSG_OP_ping, &(bytes){.n = 0});
    put_number(&b, 5, 1);
    assert_refused(*state, &b, ATTND_UNSUPPORTED, "request",
                   "request: field 5 is none this server knows");

    bytes unknown = {.n = 0};
    put_number(&unknown, 17, 1);
    assert_op_refused(*state, MSG_OP_ping, &unknown, ATTND_UNSUPPORTED, "ping",
                      "ping: field 17 is none this server knows");
    assert_op_refused(*state, MSG_OP_attend, &unknown, ATTND_UNSUPPORTED, "attend",
                      "attend: field 17 is none this server knows");

    bytes known = {.n = 0}, batch = {.n = 0}, m = {.n = 0};
    put_number(&known, 1, 1);
    put(&batch, 4, &known);
    put(&batch, 4, &known);
    put(&batch, 4, &unknown);
    put(&m, 4, &batch);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_UNSUPPORTED, "batch.tables[2]",
                      "batch.tables[2]: field 17 is none this server knows");
}

/* Each op is looked into as deep as its messages go. */
static void plans_steps_and_merges_are_refused_by_path(void **state)
{
    bytes t = {.n = 0}, unknown = {.n = 0}, one = {.n = 0}, two = {.n = 0}, m = {.n = 0};
    put_number(&unknown, 77, 1);
    assert_op_refused(*state, MSG_OP_drop_plan, &unknown, ATTND_UNSUPPORTED, "drop_plan",
                      "drop_plan: field 77 is none this server knows");
    assert_op_refused(*state, MSG_OP_update_plan, &unknown, ATTND_UNSUPPORTED, "update_plan",
                      "update_plan: field 77 is none this server knows");
    assert_op_refused(*state, MSG_OP_create_plan, &unknown, ATTND_UNSUPPORTED, "create_plan",
                      "create_plan: field 77 is none this server knows");

    put_number(&one, 8, 5); /* batch.mask */
    put(&m, 2, &one);
    assert_op_refused(*state, MSG_OP_create_plan, &m, ATTND_BAD_MESSAGE, "batch.mask",
                      "batch.mask = 5: Mask has 0 .. 4");

    one.n = m.n = 0;
    put_number(&t, 3, 5); /* appended[1].block_ids as a number */
    put(&one, 5, &(bytes){.n = 0});
    put(&one, 5, &t);
    put(&m, 1, &one);
    assert_op_refused(*state, MSG_OP_update_plan, &m, ATTND_BAD_MESSAGE,
                      "update.appended[1].block_ids",
                      "update.appended[1].block_ids: wire type 0 where 2 is right");
    two.n = 0;
    put(&two, 2, &one); /* the same of a step */
    assert_op_refused(*state, MSG_OP_step, &two, ATTND_BAD_MESSAGE, "update.appended[1].block_ids",
                      "update.appended[1].block_ids: wire type 0 where 2 is right");

    m.n = one.n = 0;
    put(&one, 3, &(bytes){.n = 0});
    put(&one, 3, &(bytes){.n = 0});
    put(&m, 2, &one);
    assert_op_refused(*state, MSG_OP_step, &m, ATTND_BAD_MESSAGE, "update.q_lens",
                      "update.q_lens: stands there twice");
    m.n = one.n = 0;
    put(&m, 1, &(bytes){.n = 0});
    put(&m, 1, &(bytes){.n = 0});
    assert_op_refused(*state, MSG_OP_update_plan, &m, ATTND_BAD_MESSAGE, "update",
                      "update: stands there twice");

    m.n = one.n = two.n = 0;
    put_bytes(&one, 4, "\x01\x80", 2);
    put(&two, 1, &one);
    put(&m, 5, &two);
    assert_op_refused(*state, MSG_OP_step, &m, ATTND_BAD_MESSAGE, "q.first.shape",
                      "q.first.shape: the last value does not decode");
    m.n = two.n = 0;
    put_number(&two, 3, 1ull << 32);
    put(&m, 9, &two);
    assert_op_refused(*state, MSG_OP_step, &m, ATTND_BAD_MESSAGE, "lse.ring",
                      "lse.ring = 4294967296: at most 4294967295");
    m.n = 0;
    put(&m, 8, &(bytes){.n = 0});
    put(&m, 8, &(bytes){.n = 0});
    assert_op_refused(*state, MSG_OP_step, &m, ATTND_BAD_MESSAGE, "out", "out: stands there twice");
    m.n = 0;
    put_number(&m, 10, 2);
    assert_op_refused(*state, MSG_OP_step, &m, ATTND_BAD_MESSAGE, "keys",
                      "keys = 2: Keys has 0 .. 1");

    m.n = one.n = two.n = 0;
    put_number(&one, 3, 10);
    put(&two, 3, &one);
    put(&m, 1, &(bytes){.n = 0});
    put(&m, 1, &two);
    assert_op_refused(*state, MSG_OP_merge, &m, ATTND_BAD_MESSAGE, "partials[1].stats.dtype",
                      "partials[1].stats.dtype = 10: Dtype has 0 .. 9");
    m.n = 0;
    put(&m, 1, &unknown);
    assert_op_refused(*state, MSG_OP_merge, &m, ATTND_UNSUPPORTED, "partials[0]",
                      "partials[0]: field 77 is none this server knows");
}

static void a_message_in_two_parts_is_refused(void **state)
{
    bytes buffer = {.n = 0}, offset = {.n = 0}, batch = {.n = 0}, m = {.n = 0};
    put_fixed64(&buffer, 1, 8);
    put_number(&offset, 2, 16);
    put(&m, 5, &buffer);
    put(&m, 5, &offset);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "q", "q: stands there twice");
    m.n = 0;
    put(&batch, 2, &(bytes){.n = 0});
    put(&batch, 4, &(bytes){.n = 0}); /* a list's entries stand there as often as they like */
    put(&batch, 4, &(bytes){.n = 0});
    put(&batch, 2, &(bytes){.n = 0});
    put(&m, 4, &batch);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "batch.q_lens",
                      "batch.q_lens: stands there twice");
}

static void an_enum_value_out_of_range_is_refused_by_name(void **state)
{
    bytes t = {.n = 0}, m = {.n = 0};
    put_number(&t, 3, 999);
    put(&m, 5, &t);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "q.dtype",
                      "q.dtype = 999: Dtype has 0 .. 9");
    t.n = m.n = 0;
    put_number(&t, 3, UINT64_MAX);
    put(&m, 6, &t);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "k.dtype",
                      "k.dtype = -1: Dtype has 0 .. 9");
    m.n = 0;
    put_number(&m, 8, 2);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "keys",
                      "keys = 2: Keys has 0 .. 1");
    m.n = 0;
    put_number(&m, 2, (1ull << 32) + 1); /* 1 when cut to 32 bits */
    assert_op_refused(*state, MSG_OP_create_buffer, &m, ATTND_BAD_MESSAGE, "kind",
                      "kind = 4294967297: BufferKind has 0 .. 1");

    bytes layer = {.n = 0}, rope = {.n = 0}, spec = {.n = 0};
    put_number(&rope, 4, 8);
    put(&layer, 10, &rope);
    put(&spec, 2, &(bytes){.n = 0});
    put(&spec, 2, &layer);
    m.n = 0;
    put(&m, 1, &spec);
    assert_op_refused(*state, MSG_OP_open_model, &m, ATTND_BAD_MESSAGE,
                      "spec.layers[1].rope.scaling",
                      "spec.layers[1].rope.scaling = 8: RopeScaling has 0 .. 7");
}

static void a_number_beyond_its_type_is_refused(void **state)
{
    bytes batch = {.n = 0}, m = {.n = 0};
    put_number(&batch, 1, 1ull << 32);
    put(&m, 4, &batch);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "batch.n_contexts",
                      "batch.n_contexts = 4294967296: at most 4294967295");
    bytes b = {.n = 0};
    put_fixed64(&b, 1, 9);
    put_number(&b, 4, UINT64_MAX);
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "timeout_ms",
                   "timeout_ms = 18446744073709551615: at most 4294967295");
}

static void a_wrong_wire_type_is_refused(void **state)
{
    bytes m = {.n = 0};
    put_number(&m, 5, 1);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "q",
                      "q: wire type 0 where 2 is right");
    m.n = 0;
    put_bytes(&m, 1, "12345678", 8);
    assert_op_refused(*state, MSG_OP_free_buffer, &m, ATTND_BAD_MESSAGE, "buffer",
                      "buffer: wire type 2 where 1 is right");
    m.n = 0;
    put_raw(&m, "\x0b\x0c", 2);
    assert_op_refused(*state, MSG_OP_free_buffer, &m, ATTND_BAD_MESSAGE, "free_buffer",
                      "free_buffer: field 1 has wire type 3; 0, 1, 2 and 5 are taken");
    bytes b = {.n = 0};
    put_number(&b, 1, 5);
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "id", "id: wire type 0 where 1 is right");
    b.n = 0;
    put_number(&b, MSG_OP_ping, 5);
    assert_refused(*state, &b, ATTND_BAD_MESSAGE, "ping", "ping: wire type 0 where 2 is right");
}

static void text_that_is_no_utf8_is_refused(void **state)
{
    static const struct {
        const char *text;
        size_t n;
        const char *refusal;
    } cases[] = {
        {"a\xff", 2, "client: byte 1, 0xff, is no text in UTF-8"},
        {"a\0b", 3, "client: byte 1, 0x00, is no text in UTF-8"},
        {"\xc3", 1, "client: byte 0, 0xc3, is no text in UTF-8"},                 /* cut off */
        {"\xc0\xaf", 2, "client: byte 0, 0xc0, is no text in UTF-8"},             /* too long */
        {"\xe0\x80\xaf", 3, "client: byte 0, 0xe0, is no text in UTF-8"},         /* too long */
        {"ab\xed\xa0\x80", 5, "client: byte 2, 0xed, is no text in UTF-8"},       /* surrogate */
        {"\xf4\x90\x80\x80", 4, "client: byte 0, 0xf4, is no text in UTF-8"},     /* > 10ffff */
        {"\xf8\x88\x80\x80\x80", 5, "client: byte 0, 0xf8, is no text in UTF-8"}, /* 5 bytes */
        {"\xe2\x28\xa1", 3, "client: byte 0, 0xe2, is no text in UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes m = {.n = 0};
        put_bytes(&m, 2, cases[i].text, cases[i].n);
        assert_op_refused(*state, MSG_OP_hello, &m, ATTND_BAD_MESSAGE, "client", cases[i].refusal);
    }
    bytes m = {.n = 0};
    put_bytes(&m, 2, "\xf4\x8f\xbf\xbf\xe2\x82\xac\xc2\x80", 9);
    bytes b = request_of(MSG_OP_hello, &m);
    assert_string_equal(decoded(*state, &b).hello.client, "\xf4\x8f\xbf\xbf\xe2\x82\xac\xc2\x80");
}

static void packed_values_that_end_in_the_middle_are_refused(void **state)
{
    bytes batch = {.n = 0}, m = {.n = 0}, t = {.n = 0};
    put_bytes(&batch, 5, "123456789", 9);
    put(&m, 4, &batch);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "batch.sequences",
                      "batch.sequences: the last value does not decode");
    put_bytes(&t, 4, "\x01\x80", 2);
    m.n = 0;
    put(&m, 5, &t);
    assert_op_refused(*state, MSG_OP_attend, &m, ATTND_BAD_MESSAGE, "q.shape",
                      "q.shape: the last value does not decode");
}

static void bytes_that_do_not_decode_are_refused(void **state)
{
    static const struct {
        const char *at;
        size_t n;
        const char *field, *text;
    } cases[] = {
        {"\x80", 1, "request", "request: the tag of a field does not decode"},
        {"\x80\x80\x80\x80\x80\x01", 6, "request", "request: the tag of a field does not decode"},
        {"\x00\x01", 2, "request", "request: the tag of a field does not decode"},
        {"\xff\xff\xff\xff\x7f", 5, "request", "request: the tag of a field does not decode"},
        {"\x09\x01", 2, "request", "request: field 1 does not decode"},
        {"\x25\x01", 2, "request", "request: field 4 does not decode"},
        {"\x82\x01\x05\x00", 4, "request", "request: field 16 does not decode"},
        {"\x82\x01\xff\xff\xff\xff\xff\x01", 8, "request", "request: field 16 does not decode"},
        {"\x20\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", 11, "request",
         "request: field 4 does not decode"},
        {"\x20\x80", 2, "request", "request: field 4 does not decode"},
        {"\x27", 1, "request", "request: field 4 has wire type 7; 0, 1, 2 and 5 are taken"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes b = {.n = cases[i].n};
        memcpy(b.at, cases[i].at, b.n);
        assert_refused(*state, &b, ATTND_BAD_MESSAGE, cases[i].field, cases[i].text);
    }
    bytes m = {.n = 0};
    put_raw(&m, "\x09\x01", 2);
    assert_op_refused(*state, MSG_OP_close_model, &m, ATTND_BAD_MESSAGE, "close_model",
                      "close_model: field 1 does not decode");
}

static void a_request_cut_short_still_gives_its_id(void **state)
{
    bytes b = request_of(MSG_OP_hello, &(bytes){.at = {0x08, 0x01}, .n = 2});
    for (size_t n = 0; n < b.n; n++) {
        msg_request r;
        attnd_err err;
        assert_int_equal(msg_decode(*state, b.at, n, &r, &err), ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_MESSAGE);
        assert_true(r.id == (n >= 9 ? ID : 0));
        assert_true(r.session == (n >= 18 ? SESSION : 0));
    }
}

/* Decodes at every bound below what b takes. */
static void assert_too_large(msg_arena *arena, const bytes *b)
{
    msg_request r = decoded(arena, b);
    size_t needed = arena->used;
    assert_true(needed > 1000 * sizeof(void *));
    for (size_t bound = 0; bound < needed; bound += 997) {
        msg_arena small = {.base = arena->base, .bytes = bound};
        attnd_err err;
        assert_int_equal(msg_decode(&small, b->at, b->n, &r, &err), ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_TOO_LARGE);
        char text[128];
        snprintf(text, sizeof text, "request = %zu bytes: decoded it passes %zu bytes", b->n,
                 bound);
        assert_string_equal(err.text, text);
        assert_int_equal(attnd_err_field_len(&err), strlen("request"));
        assert_true(r.id == ID);
    }
}

static void a_request_that_passes_its_arena_is_refused(void **state)
{
    bytes batch = {.n = 0}, update = {.n = 0}, merge = {.n = 0}, m = {.n = 0};
    for (int i = 0; i < 1000; i++) {
        put(&batch, 4, &(bytes){.n = 0});
        put(&update, 5, &(bytes){.n = 0});
        put(&merge, 1, &(bytes){.n = 0});
    }
    put(&m, 4, &batch);
    bytes b = request_of(MSG_OP_attend, &m);
    assert_int_equal(decoded(*state, &b).attend.batch.n_tables, 1000);
    assert_too_large(*state, &b);
    m.n = 0;
    put(&m, 2, &batch);
    b = request_of(MSG_OP_create_plan, &m);
    assert_int_equal(decoded(*state, &b).create_plan.batch.n_tables, 1000);
    assert_too_large(*state, &b);
    m.n = 0;
    put(&m, 1, &update);
    b = request_of(MSG_OP_update_plan, &m);
    assert_int_equal(decoded(*state, &b).update_plan.n_appended, 1000);
    assert_too_large(*state, &b);
    m.n = 0;
    put(&m, 2, &update);
    b = request_of(MSG_OP_step, &m);
    assert_int_equal(decoded(*state, &b).step.update.n_appended, 1000);
    assert_too_large(*state, &b);
    b = request_of(MSG_OP_merge, &merge);
    assert_int_equal(decoded(*state, &b).merge.n_partials, 1000);
    assert_too_large(*state, &b);
}

/* ---- All bytes ---- */

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    return *seed ^= *seed << 17;
}

static bool looked_into(msg_op op)
{
    return op == MSG_OP_hello || op == MSG_OP_open_model || op == MSG_OP_create_plan ||
           op == MSG_OP_update_plan || op == MSG_OP_attend || op == MSG_OP_step ||
           op == MSG_OP_merge;
}

/* The claim that the second pass refuses for room alone rests on this. */
static void what_the_first_pass_lets_through_protobuf_c_unpacks(void **state)
{
    bytes seeds[7] = {{.n = 0}};
    bytes t = {.n = 0}, table = {.n = 0}, batch = {.n = 0}, m = {.n = 0}, ids = {.n = 0};
    put_fixed64(&t, 1, 1);
    put_number(&t, 2, 256);
    put_number(&t, 3, 3);
    put_bytes(&t, 4, "\x04\x08\x80\x01", 4);
    put_bytes(&t, 5, "\x80\x04\x02", 3);
    put_bytes(&ids, 1, "\0\0\0\0", 4);
    put_number(&table, 1, 0);
    put(&table, 3, &ids);
    put(&batch, 2, &ids);
    put(&batch, 3, &ids);
    put(&batch, 4, &table);
    put_bytes(&batch, 5, "12345678", 8);
    put(&m, 4, &batch);
    put(&m, 5, &t);
    put(&m, 9, &t);
    put(&m, 12, &(bytes){.n = 0});
    seeds[0] = request_of(MSG_OP_attend, &m);
    bytes layer = {.n = 0}, spec = {.n = 0};
    put_number(&layer, 3, 8);
    put(&layer, 10, &(bytes){.n = 0});
    put_bytes(&spec, 1, "name", 4);
    put(&spec, 2, &layer);
    put(&spec, 2, &layer);
    put_bytes(&spec, 3, "\x0a\x01g\x10\x10\x28\x20", 7);
    m.n = 0;
    put(&m, 1, &spec);
    seeds[1] = request_of(MSG_OP_open_model, &m);
    m.n = 0;
    put_bytes(&m, 2, "client", 6);
    seeds[2] = request_of(MSG_OP_hello, &m);
    m.n = 0;
    put(&m, 2, &batch);
    seeds[3] = request_of(MSG_OP_create_plan, &m);
    bytes update = {.n = 0}, layers = {.n = 0};
    put(&update, 4, &ids);
    put(&update, 5, &table);
    put(&update, 5, &table);
    m.n = 0;
    put(&m, 1, &update);
    seeds[4] = request_of(MSG_OP_update_plan, &m);
    put(&layers, 1, &t);
    put_number(&layers, 2, 4096);
    m.n = 0;
    put(&m, 2, &update);
    put(&m, 5, &layers);
    put(&m, 8, &layers);
    seeds[5] = request_of(MSG_OP_step, &m);
    layers.n = m.n = 0;
    put(&layers, 1, &t);
    put(&layers, 2, &t);
    put(&m, 1, &layers);
    put(&m, 1, &layers);
    seeds[6] = request_of(MSG_OP_merge, &m);

    uint64_t first = 0x9E3779B97F4A7C15, seed = first;
    size_t n_ok = 0;
    for (int i = 0; i < 500000; i++) {
        bytes b = seeds[next(&seed) % 7];
        for (uint64_t k = next(&seed) % 3 + 1; k; k--) {
            size_t at = next(&seed) % b.n;
            if (next(&seed) % 4)
                b.at[at] = (uint8_t)next(&seed);
            else
                b.n = at + 1;
        }
        msg_request r;
        attnd_err err = {0};
        msg_arena_reset(*state);
        attnd_status status = msg_decode(*state, b.at, b.n, &r, &err);
        if (status != ATTND_OK) {
            if (err.reason != ATTND_BAD_MESSAGE && err.reason != ATTND_UNSUPPORTED)
                fail_msg("seed %llx, round %d: %s", (unsigned long long)first, i, err.text);
            assert_true(attnd_err_field_len(&err) > 0);
            continue;
        }
        n_ok++;
        Attnd__V1__Request *whole = attnd__v1__request__unpack(NULL, b.n, b.at);
        if (!whole && looked_into(r.op))
            fail_msg("seed %llx, round %d: protobuf-c refuses", (unsigned long long)first, i);
        if (whole)
            attnd__v1__request__free_unpacked(whole, NULL);
    }
    assert_true(n_ok > 1000);
}

static void nothing_is_allocated_outside_the_arena(void **state)
{
    bytes table = {.n = 0}, batch = {.n = 0}, m = {.n = 0}, bad = {.n = 0};
    put_number(&table, 1, 1);
    for (int i = 0; i < 300; i++)
        put(&batch, 4, &table);
    put_bytes(&batch, 5, "1234567812345678", 16);
    put(&m, 4, &batch);
    bytes b = request_of(MSG_OP_attend, &m);
    put_number(&bad, 77, 1);
    put(&m, 12, &bad);
    bytes refused = request_of(MSG_OP_attend, &m);
    count_allocations();
    size_t before = n_allocations;
    void *volatile memory = malloc(1);
    free(memory);
    assert_true(n_allocations > before); /* the counter counts */
    msg_request r;
    attnd_err err;
    before = n_allocations;
    msg_arena_reset(*state);
    attnd_status status = msg_decode(*state, b.at, b.n, &r, &err);
    attnd_status status_refused = msg_decode(*state, refused.at, refused.n, &r, &err);
    msg_fd_request fd;
    attnd_status status_fd = msg_fd_decode("\x09\x01\0\0\0\0\0\0\0", 9, &fd, &err);
    size_t after = n_allocations;
    assert_int_equal(status, ATTND_OK);
    assert_int_equal(status_refused, ATTND_UNIMPLEMENTED);
    assert_int_equal(status_fd, ATTND_OK);
    assert_int_equal(after - before, 0);
    assert_true(((msg_arena *)*state)->used > 0);
}

/* ---- The buffer socket ---- */

static void a_packet_names_session_and_buffer(void **state)
{
    bytes b = {.n = 0};
    put_fixed64(&b, 1, 0x8000000000000001);
    put_fixed64(&b, 2, 7);
    msg_fd_request r;
    attnd_err err;
    assert_int_equal(msg_fd_decode(b.at, b.n, &r, &err), ATTND_OK);
    assert_true(r.session == 0x8000000000000001);
    assert_int_equal(r.buffer, 7);
    assert_int_equal(msg_fd_decode(NULL, 0, &r, &err), ATTND_OK);
    assert_int_equal(r.session, 0);
    assert_int_equal(r.buffer, 0);
}

static void a_packet_that_is_wrong_is_refused(void **state)
{
    bytes unknown = {.n = 0}, wire = {.n = 0}, many = {.n = 0};
    msg_fd_request r = {1, 1};
    attnd_err err;
    put_number(&unknown, 3, 1);
    assert_int_equal(msg_fd_decode(unknown.at, unknown.n, &r, &err), ATTND_UNIMPLEMENTED);
    assert_string_equal(err.text, "packet: field 3 is none this server knows");
    assert_int_equal(err.reason, ATTND_UNSUPPORTED);
    assert_int_equal(r.session, 0);
    put_number(&wire, 1, 1);
    assert_int_equal(msg_fd_decode(wire.at, wire.n, &r, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "session: wire type 0 where 1 is right");
    assert_int_equal(err.reason, ATTND_BAD_MESSAGE);
    assert_int_equal(msg_fd_decode("\x09\x01", 2, &r, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "packet: field 1 does not decode");
    for (int i = 0; i < 300; i++)
        put_fixed64(&many, 1, 1);
    assert_int_equal(msg_fd_decode(many.at, many.n, &r, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "packet = 2700 bytes: decoded it passes 4096 bytes");
    assert_int_equal(err.reason, ATTND_TOO_LARGE);
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
        cmocka_unit_test(a_request_without_an_op_is_refused),
        cmocka_unit_test(a_request_with_two_ops_is_refused),
        cmocka_unit_test(an_unknown_field_is_refused_wherever_it_is),
        cmocka_unit_test(plans_steps_and_merges_are_refused_by_path),
        cmocka_unit_test(a_message_in_two_parts_is_refused),
        cmocka_unit_test(an_enum_value_out_of_range_is_refused_by_name),
        cmocka_unit_test(a_number_beyond_its_type_is_refused),
        cmocka_unit_test(a_wrong_wire_type_is_refused),
        cmocka_unit_test(text_that_is_no_utf8_is_refused),
        cmocka_unit_test(packed_values_that_end_in_the_middle_are_refused),
        cmocka_unit_test(bytes_that_do_not_decode_are_refused),
        cmocka_unit_test(a_request_cut_short_still_gives_its_id),
        cmocka_unit_test(a_request_that_passes_its_arena_is_refused),
        cmocka_unit_test(what_the_first_pass_lets_through_protobuf_c_unpacks),
        cmocka_unit_test(nothing_is_allocated_outside_the_arena),
        cmocka_unit_test(a_packet_names_session_and_buffer),
        cmocka_unit_test(a_packet_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests_name("msg_decode", tests, open_arena, close_arena);
}
