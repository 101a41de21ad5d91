/* encode.c: struct msg_reply → bytes; no policy.
 *
 * The size is asked for before there is memory for protobuf-c's structs of a list's entries, so it
 * is added up entry by entry; packing needs them all at once and takes them from the arena.
 */
#include <assert.h>
#include <string.h>

#include "attnd.pb-c.h"
#include "proto/message.h"

/* A Status and the memory of its strings. */
typedef struct status_memory {
    Attnd__V1__Status message;
    char field[ATTND_ERR_TEXT];
    char text[ATTND_ERR_TEXT];
} status_memory;

/* A text may hold a client's own words, cut anywhere: what is no UTF-8 becomes '?', for readers
 * refuse a reply that carries it. */
static void copy_text(char *to, const char *from, size_t n)
{
    memcpy(to, from, n);
    for (size_t good = 0; (good += msg_utf8_bytes(to + good, n - good)) < n;)
        to[good] = '?';
    to[n] = 0;
}

static Attnd__V1__Status *make_status(status_memory *s, const attnd_err *err, size_t field_max)
{
    attnd__v1__status__init(&s->message);
    if (err->status == ATTND_OK)
        return &s->message;
    size_t n = strnlen(err->text, sizeof s->text - 1);
    size_t n_field = attnd_err_field_len(err);
    copy_text(s->text, err->text, n);
    copy_text(s->field, err->text, n_field > field_max ? 0 : n_field);
    s->message.code = (Attnd__V1__Code)err->status;
    s->message.reason = (char *)attnd_reason_name(err->reason);
    s->message.field = s->field;
    s->message.message = s->text;
    return &s->message;
}

/* ---- Results ---- */

/* A result and the parts it points to; lists are left to add_lists. */
typedef struct result_memory {
    union {
        ProtobufCMessage base;
        Attnd__V1__PingReply ping;
        Attnd__V1__HelloReply hello;
        Attnd__V1__GoodbyeReply goodbye;
        Attnd__V1__OpenModelReply open_model;
        Attnd__V1__CloseModelReply close_model;
        Attnd__V1__CreateBufferReply create_buffer;
        Attnd__V1__FreeBufferReply free_buffer;
        Attnd__V1__CreatePlanReply create_plan;
        Attnd__V1__UpdatePlanReply update_plan;
        Attnd__V1__DropPlanReply drop_plan;
        Attnd__V1__AttendReply attend;
        Attnd__V1__StepReply step;
        Attnd__V1__MergeReply merge;
    };
    Attnd__V1__Device device;
    Attnd__V1__Limits limits;
} result_memory;

static void make_hello(result_memory *m, const msg_hello_reply *from)
{
    attnd__v1__hello_reply__init(&m->hello);
    attnd__v1__device__init(&m->device);
    attnd__v1__limits__init(&m->limits);
    m->device.backend = (char *)from->backend;
    m->device.name = (char *)from->device_name;
    m->device.n_threads = from->n_threads;
    m->limits.max_message_bytes = from->limits.max_message_bytes;
    m->limits.max_tokens = from->limits.max_tokens;
    m->limits.max_sequences = from->limits.max_sequences;
    m->limits.max_in_flight = from->limits.max_in_flight;
    m->limits.max_buffer_bytes = from->limits.max_buffer_bytes;
    m->limits.max_pool_bytes = from->limits.max_pool_bytes;
    m->limits.max_head_dim = from->limits.max_head_dim;
    m->limits.default_timeout_ms = from->limits.default_timeout_ms;
    m->hello.session = from->session;
    m->hello.protocol = 1;
    m->hello.version = (char *)from->version;
    m->hello.device = &m->device;
    m->hello.limits = &m->limits;
    m->hello.n_features = from->n_features;
    m->hello.features = (char **)from->features;
    m->hello.ordinal = from->ordinal;
}

/* False when the op has no result to encode. */
static bool make_result(result_memory *m, const msg_reply *from)
{
    if (from->err.status != ATTND_OK)
        return false;
    switch (from->op) {
    case MSG_OP_ping:
        attnd__v1__ping_reply__init(&m->ping);
        return true;
    case MSG_OP_hello:
        make_hello(m, &from->hello);
        return true;
    case MSG_OP_goodbye:
        attnd__v1__goodbye_reply__init(&m->goodbye);
        return true;
    case MSG_OP_open_model:
        attnd__v1__open_model_reply__init(&m->open_model);
        m->open_model.model = from->open_model.model;
        m->open_model.n_layers = from->open_model.n_layers;
        return true;
    case MSG_OP_close_model:
        attnd__v1__close_model_reply__init(&m->close_model);
        return true;
    case MSG_OP_create_buffer:
        attnd__v1__create_buffer_reply__init(&m->create_buffer);
        m->create_buffer.buffer = from->create_buffer.buffer;
        m->create_buffer.bytes = from->create_buffer.bytes;
        if (from->create_buffer.shm_name)
            m->create_buffer.shm_name = (char *)from->create_buffer.shm_name;
        return true;
    case MSG_OP_free_buffer:
        attnd__v1__free_buffer_reply__init(&m->free_buffer);
        return true;
    case MSG_OP_create_plan:
        attnd__v1__create_plan_reply__init(&m->create_plan);
        m->create_plan.plan = from->create_plan.plan;
        m->create_plan.version = from->create_plan.version;
        return true;
    case MSG_OP_update_plan:
        attnd__v1__update_plan_reply__init(&m->update_plan);
        m->update_plan.version = from->update_plan;
        return true;
    case MSG_OP_drop_plan:
        attnd__v1__drop_plan_reply__init(&m->drop_plan);
        return true;
    case MSG_OP_attend:
        attnd__v1__attend_reply__init(&m->attend);
        m->attend.queue_us = from->attend.queue_us;
        m->attend.device_us = from->attend.device_us;
        return true;
    case MSG_OP_step:
        attnd__v1__step_reply__init(&m->step);
        m->step.queue_us = from->step.queue_us;
        m->step.device_us = from->step.device_us;
        m->step.version = from->step.version;
        return true;
    case MSG_OP_merge:
        attnd__v1__merge_reply__init(&m->merge);
        m->merge.queue_us = from->merge.queue_us;
        m->merge.device_us = from->merge.device_us;
        return true;
    default:
        return false;
    }
}

static void make_model(Attnd__V1__OpenModel *m, const msg_named *from)
{
    attnd__v1__open_model__init(m);
    m->model = from->handle;
    m->name = (char *)from->name;
}

static void make_pool(Attnd__V1__Pool *m, const msg_pool_info *from)
{
    attnd__v1__pool__init(m);
    m->name = (char *)from->name;
    m->n_blocks = from->n_blocks;
    m->block_size = from->block_size;
    m->block_bytes = from->block_bytes;
    m->bytes = from->bytes;
}

/* ---- Size ---- */

/* Bytes of a field that holds n bytes: tag, length, the bytes. */
static size_t field_bytes(uint32_t number, size_t n)
{
    size_t bytes = n + (number < 16 ? 2 : 3);
    for (size_t rest = n >> 7; rest; rest >>= 7)
        bytes++;
    return bytes;
}

static size_t lists_bytes(const msg_reply *reply)
{
    size_t bytes = 0;
    if (reply->op == MSG_OP_hello)
        for (size_t i = 0; i < reply->hello.n_models; i++) {
            Attnd__V1__OpenModel m;
            make_model(&m, &reply->hello.models[i]);
            bytes += field_bytes(7, attnd__v1__open_model__get_packed_size(&m));
        }
    if (reply->op == MSG_OP_open_model)
        for (size_t i = 0; i < reply->open_model.n_pools; i++) {
            Attnd__V1__Pool m;
            make_pool(&m, &reply->open_model.pools[i]);
            bytes += field_bytes(2, attnd__v1__pool__get_packed_size(&m));
        }
    return bytes;
}

static void make_envelope(Attnd__V1__Reply *m, status_memory *s, const msg_reply *from)
{
    attnd__v1__reply__init(m);
    m->id = from->id;
    m->instance = from->instance;
    m->status = make_status(s, &from->err, ATTND_ERR_TEXT);
}

size_t msg_encoded_bytes(const msg_reply *reply)
{
    status_memory status;
    Attnd__V1__Reply envelope;
    make_envelope(&envelope, &status, reply);
    size_t bytes = attnd__v1__reply__get_packed_size(&envelope);
    result_memory result;
    if (!make_result(&result, reply))
        return bytes;
    size_t n = protobuf_c_message_get_packed_size(&result.base) + lists_bytes(reply);
    return bytes + field_bytes(reply->op, n);
}

/* ---- Bytes ---- */

/* n messages of the size in one piece, and pointers to them as protobuf-c wants them. */
static void **take_list(msg_arena *arena, size_t n, size_t bytes)
{
    void **list = msg_arena_take(arena, n * sizeof *list);
    char *messages = msg_arena_take(arena, n * bytes);
    if (!list || !messages)
        return NULL;
    for (size_t i = 0; i < n; i++)
        list[i] = messages + i * bytes;
    return list;
}

/* False when the arena is full. */
static bool add_lists(msg_arena *arena, result_memory *m, const msg_reply *from)
{
    if (from->op == MSG_OP_hello && from->hello.n_models) {
        m->hello.n_models = from->hello.n_models;
        m->hello.models =
            (Attnd__V1__OpenModel **)take_list(arena, m->hello.n_models, sizeof **m->hello.models);
        for (size_t i = 0; m->hello.models && i < m->hello.n_models; i++)
            make_model(m->hello.models[i], &from->hello.models[i]);
        return m->hello.models != NULL;
    }
    if (from->op == MSG_OP_open_model && from->open_model.n_pools) {
        m->open_model.n_pools = from->open_model.n_pools;
        m->open_model.pools = (Attnd__V1__Pool **)take_list(arena, m->open_model.n_pools,
                                                            sizeof **m->open_model.pools);
        for (size_t i = 0; m->open_model.pools && i < m->open_model.n_pools; i++)
            make_pool(m->open_model.pools[i], &from->open_model.pools[i]);
        return m->open_model.pools != NULL;
    }
    return true;
}

attnd_status msg_encode(msg_arena *arena, const msg_reply *reply, void *bytes, size_t n,
                        attnd_err *err)
{
    status_memory status;
    Attnd__V1__Reply envelope;
    make_envelope(&envelope, &status, reply);
    result_memory result;
    if (make_result(&result, reply)) {
        if (!add_lists(arena, &result, reply))
            return attnd_fail(err, ATTND_TOO_LARGE, "reply = %zu bytes: making it passes %zu bytes",
                              n, arena->bytes);
        envelope.result_case = (Attnd__V1__Reply__ResultCase)reply->op;
        envelope.ping = &result.ping; /* a pointer of any of the union's members */
    }
    size_t packed = attnd__v1__reply__pack(&envelope, bytes);
    assert(packed == n);
    return ATTND_OK;
}

/* ---- The buffer socket ---- */

/* A field's name longer than this is left out; it stands at the start of the message all the same.
 */
enum { FD_FIELD = 255 };

static_assert(FD_FIELD + ATTND_ERR_TEXT + 128 <= MSG_FD_PACKET, "any refusal fits a packet");

size_t msg_fd_encode(const msg_fd_reply *reply, uint8_t packet[MSG_FD_PACKET])
{
    status_memory status;
    Attnd__V1__FdReply m;
    attnd__v1__fd_reply__init(&m);
    m.status = make_status(&status, &reply->err, FD_FIELD);
    m.kind = (Attnd__V1__FdKind)reply->kind;
    m.bytes = reply->bytes;
    m.offset = reply->offset;
    return attnd__v1__fd_reply__pack(&m, packet);
}
