/* decode.c: bytes → struct msg_request; no policy.
 *
 * Two passes over the bytes. The first walks them beside the message descriptors and takes nothing:
 * it refuses what protobuf-c would let pass or could not name (unknown fields; enum values out of
 * range; numbers cut to 32 bits; strings that are no text; a message in two parts). The second is
 * protobuf-c's own, into the arena; after the first it refuses for room alone. Only the op is
 * unpacked: the envelope is read by hand, so that a refusal can be answered.
 */
#include <stdalign.h>
#include <string.h>

#include "attnd.pb-c.h"
#include "proto/message.h"

#define ENTRY(name) [MSG_OP_##name] = &attnd__v1__##name##_request__descriptor

/* Ops somebody serves; what an op nobody serves carries is not looked at. */
static const ProtobufCMessageDescriptor *const served[MSG_OP_END] = {
    ENTRY(ping),        ENTRY(hello),         ENTRY(goodbye),     ENTRY(open_model),
    ENTRY(close_model), ENTRY(create_buffer), ENTRY(free_buffer), ENTRY(create_plan),
    ENTRY(update_plan), ENTRY(drop_plan),     ENTRY(attend),      ENTRY(step),
    ENTRY(merge),
};

/* ---- The first pass --------------------------------------------------------------------------
 *
 * Texts grow from the inside out, each level puts its name before them: " = 999: Dtype has 0 .. 9",
 * ".dtype = 999: …", ".q.dtype = 999: …". What is wrong with a message as a whole starts with ": ".
 */

typedef struct span {
    const uint8_t *at, *end;
} span;

enum { VARINT = 0, BITS64 = 1, BYTES = 2, BITS32 = 5 };

typedef struct field {
    uint32_t number;
    uint32_t wire;
    uint64_t value; /* of VARINT, BITS64 and BITS32 */
    span body;      /* of BYTES */
} field;

static bool read_varint(span *from, size_t max_bytes, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < max_bytes && from->at < from->end; i++) {
        uint8_t byte = *from->at++;
        if (i == 9 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool read_little_endian(span *from, size_t bytes, uint64_t *out)
{
    if ((size_t)(from->end - from->at) < bytes)
        return false;
    *out = 0;
    for (size_t i = 0; i < bytes; i++)
        *out |= (uint64_t)from->at[i] << (8 * i);
    from->at += bytes;
    return true;
}

static bool read_bytes(span *from, span *out)
{
    uint64_t n;
    if (!read_varint(from, 5, &n) || n > (uint64_t)(from->end - from->at))
        return false;
    *out = (span){from->at, from->at + n};
    from->at += n;
    return true;
}

static attnd_status read_field(span *from, field *out, attnd_err *err)
{
    uint64_t tag;
    if (!read_varint(from, 5, &tag) || tag >> 3 == 0 || tag >> 3 >= 1u << 29)
        return attnd_fail(err, ATTND_BAD_MESSAGE, ": the tag of a field does not decode");
    *out = (field){.number = (uint32_t)(tag >> 3), .wire = tag & 7};
    bool read = false;
    switch (out->wire) {
    case VARINT:
        read = read_varint(from, 10, &out->value);
        break;
    case BITS64:
        read = read_little_endian(from, 8, &out->value);
        break;
    case BITS32:
        read = read_little_endian(from, 4, &out->value);
        break;
    case BYTES:
        read = read_bytes(from, &out->body);
        break;
    default:
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          ": field %u has wire type %u; 0, 1, 2 and 5 are taken", out->number,
                          out->wire);
    }
    return read ? ATTND_OK
                : attnd_fail(err, ATTND_BAD_MESSAGE, ": field %u does not decode", out->number);
}

static uint32_t wire_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return BITS32;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return BITS64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return BYTES;
    default:
        return VARINT;
    }
}

static attnd_status check_number(const ProtobufCFieldDescriptor *d, uint64_t value, attnd_err *err)
{
    if (d->type == PROTOBUF_C_TYPE_UINT32 && value > UINT32_MAX)
        return attnd_fail(err, ATTND_BAD_MESSAGE, " = %llu: at most %u", (unsigned long long)value,
                          UINT32_MAX);
    if (d->type != PROTOBUF_C_TYPE_ENUM)
        return ATTND_OK;
    const ProtobufCEnumDescriptor *e = d->descriptor;
    if (value > INT32_MAX || !protobuf_c_enum_descriptor_get_value(e, (int)value))
        return attnd_fail(err, ATTND_BAD_MESSAGE, " = %lld: %s has %d .. %d", (long long)value,
                          e->short_name, e->values[0].value, e->values[e->n_values - 1].value);
    return ATTND_OK;
}

static attnd_status check_packed(const ProtobufCFieldDescriptor *d, span body, attnd_err *err)
{
    uint32_t wire = wire_of(d->type);
    while (body.at < body.end) {
        uint64_t value;
        bool read = wire == VARINT ? read_varint(&body, 10, &value)
                                   : read_little_endian(&body, wire == BITS64 ? 8 : 4, &value);
        if (!read)
            return attnd_fail(err, ATTND_BAD_MESSAGE, ": the last value does not decode");
        TRY(check_number(d, value, err));
    }
    return ATTND_OK;
}

static attnd_status check_message(const ProtobufCMessageDescriptor *d, span bytes, attnd_err *err);

static bool is_list(const ProtobufCFieldDescriptor *d)
{
    return d->label == PROTOBUF_C_LABEL_REPEATED;
}

static attnd_status check_field(const ProtobufCFieldDescriptor *d, const field *f, attnd_err *err)
{
    uint32_t wire = wire_of(d->type);
    if (f->wire == BYTES && wire != BYTES && is_list(d))
        return check_packed(d, f->body, err);
    if (f->wire != wire)
        return attnd_fail(err, ATTND_BAD_MESSAGE, ": wire type %u where %u is right", f->wire,
                          wire);
    if (wire != BYTES)
        return check_number(d, f->value, err);
    if (d->type == PROTOBUF_C_TYPE_MESSAGE)
        return check_message(d->descriptor, f->body, err);
    size_t n = (size_t)(f->body.end - f->body.at);
    size_t n_text = msg_utf8_bytes(f->body.at, n);
    if (d->type == PROTOBUF_C_TYPE_STRING && n_text < n)
        return attnd_fail(err, ATTND_BAD_MESSAGE, ": byte %zu, 0x%02x, is no text in UTF-8", n_text,
                          f->body.at[n_text]);
    return ATTND_OK;
}

/* How many fields of that number lie in bytes. */
static size_t count_fields(span bytes, uint32_t number)
{
    size_t n = 0;
    field f;
    while (bytes.at < bytes.end && read_field(&bytes, &f, NULL) == ATTND_OK)
        n += f.number == number;
    return n;
}

/* Two parts of one message would have to be merged, in which protobuf-c loses numbers. */
static attnd_status check_once(const ProtobufCFieldDescriptor *d, span before, attnd_err *err)
{
    if (d->type != PROTOBUF_C_TYPE_MESSAGE || is_list(d) || !count_fields(before, d->id))
        return ATTND_OK;
    return attnd_fail(err, ATTND_BAD_MESSAGE, ": stands there twice");
}

static attnd_status check_message(const ProtobufCMessageDescriptor *d, span bytes, attnd_err *err)
{
    span rest = bytes;
    while (rest.at < rest.end) {
        span before = {bytes.at, rest.at};
        field f;
        TRY(read_field(&rest, &f, err));
        const ProtobufCFieldDescriptor *known =
            protobuf_c_message_descriptor_get_field(d, f.number);
        if (!known)
            return attnd_fail(err, ATTND_UNSUPPORTED, ": field %u is none this server knows",
                              f.number);
        attnd_status status = check_field(known, &f, err);
        if (status == ATTND_OK)
            status = check_once(known, before, err);
        if (status == ATTND_OK)
            continue;
        if (known->type == PROTOBUF_C_TYPE_MESSAGE && is_list(known))
            attnd_err_prefix(err, "[%zu]", count_fields(before, f.number));
        attnd_err_prefix(err, ".%s", known->name);
        return status;
    }
    return ATTND_OK;
}

/* check_message for the outermost message; what is wrong with it as a whole carries its name. */
static attnd_status check_outermost(const ProtobufCMessageDescriptor *d, const char *name,
                                    span bytes, attnd_err *err)
{
    attnd_status status = check_message(d, bytes, err);
    if (status == ATTND_OK)
        return status;
    if (err->text[0] == '.')
        memmove(err->text, err->text + 1, strlen(err->text));
    else
        attnd_err_prefix(err, "%s", name);
    return status;
}

/* ---- The second pass ---- */

static void *take(void *arena, size_t bytes)
{
    return msg_arena_take(arena, bytes);
}

static void give_nothing(void *arena, void *memory)
{
}

/* NULL when the arena is full. */
static void *unpack(msg_arena *arena, const ProtobufCMessageDescriptor *d, span bytes)
{
    ProtobufCAllocator allocator = {take, give_nothing, arena};
    return protobuf_c_message_unpack(d, &allocator, (size_t)(bytes.end - bytes.at), bytes.at);
}

/* ---- protobuf-c's structs → ours ---- */

static msg_tensor tensor(const Attnd__V1__Tensor *from)
{
    if (!from)
        return (msg_tensor){0};
    msg_tensor t = {.given = true,
                    .buffer = from->buffer,
                    .offset = from->offset,
                    .dtype = (attnd_dtype)from->dtype,
                    .n_dims = (uint32_t)from->n_shape,
                    .n_strides = (uint32_t)from->n_strides};
    for (size_t i = 0; i < MSG_MAX_DIMS && i < from->n_shape; i++)
        t.shape[i] = from->shape[i];
    for (size_t i = 0; i < MSG_MAX_DIMS && i < from->n_strides; i++)
        t.strides[i] = from->strides[i];
    return t;
}

static msg_ints ints(const Attnd__V1__Ints *from)
{
    if (!from)
        return (msg_ints){0};
    if (from->from_case == ATTND__V1__INTS__FROM_REF)
        return (msg_ints){.given = true, .ref = tensor(from->ref)};
    static const uint8_t none[1];
    if (from->from_case != ATTND__V1__INTS__FROM_DATA || !from->data.len)
        return (msg_ints){.given = true, .data = none};
    return (msg_ints){.given = true, .data = from->data.data, .bytes = from->data.len};
}

static attnd_status full(const msg_arena *arena, size_t n, attnd_err *err)
{
    return attnd_fail(err, ATTND_TOO_LARGE, "request = %zu bytes: decoded it passes %zu bytes", n,
                      arena->bytes);
}

/* NULL when the arena is full. */
static const msg_table *tables(msg_arena *arena, Attnd__V1__Table *const *from, size_t n)
{
    msg_table *out = msg_arena_take(arena, n * sizeof *out);
    for (size_t i = 0; out && i < n; i++)
        out[i] = (msg_table){.group = from[i]->group,
                             .width = from[i]->width,
                             .block_ids = ints(from[i]->block_ids),
                             .version = from[i]->version};
    return out;
}

/* False when the arena is full, as of all that fill something below. */
static bool batch(msg_arena *arena, const Attnd__V1__Batch *from, msg_batch *out)
{
    *out = (msg_batch){.n_contexts = from->n_contexts,
                       .q_lens = ints(from->q_lens),
                       .kv_lens = ints(from->kv_lens),
                       .tables = tables(arena, from->tables, from->n_tables),
                       .n_tables = from->n_tables,
                       .sequences = from->sequences,
                       .n_sequences = from->n_sequences,
                       .slots = ints(from->slots),
                       .positions = ints(from->positions),
                       .mask = (msg_mask)from->mask};
    return out->tables != NULL;
}

static msg_word word(const Attnd__V1__Word *from)
{
    return from ? (msg_word){true, from->buffer, from->offset, from->value} : (msg_word){0};
}

static msg_sync sync_fields(const Attnd__V1__Sync *from)
{
    if (!from)
        return (msg_sync){0};
    return (msg_sync){.given = true,
                      .mode = (msg_sync_mode)from->mode,
                      .in = word(from->in),
                      .out = word(from->out),
                      .in_event = from->in_event,
                      .out_event = from->out_event};
}

static bool attend(msg_arena *arena, const Attnd__V1__AttendRequest *from, msg_attend *out)
{
    *out = (msg_attend){.model = from->model,
                        .layer = from->layer,
                        .q = tensor(from->q),
                        .k = tensor(from->k),
                        .v = tensor(from->v),
                        .keys = (msg_keys)from->keys,
                        .out = tensor(from->out),
                        .lse = tensor(from->lse),
                        .stats = tensor(from->stats),
                        .sync = sync_fields(from->sync),
                        .batch_invariant = from->batch_invariant};
    out->has_plan = from->work_case == ATTND__V1__ATTEND_REQUEST__WORK_PLAN;
    out->has_batch = from->work_case == ATTND__V1__ATTEND_REQUEST__WORK_BATCH;
    if (out->has_plan)
        out->plan = from->plan;
    return !out->has_batch || batch(arena, from->batch, &out->batch);
}

static bool create_plan(msg_arena *arena, const Attnd__V1__CreatePlanRequest *from,
                        msg_create_plan *out)
{
    *out = (msg_create_plan){.model = from->model,
                             .has_batch = from->batch != NULL,
                             .batch_invariant = from->batch_invariant};
    return !from->batch || batch(arena, from->batch, &out->batch);
}

static bool plan_update(msg_arena *arena, const Attnd__V1__PlanUpdate *from, msg_plan_update *out)
{
    *out = (msg_plan_update){.given = from != NULL};
    if (!from)
        return true;
    out->plan = from->plan;
    out->version = from->version;
    out->q_lens = ints(from->q_lens);
    out->kv_lens = ints(from->kv_lens);
    out->appended = tables(arena, from->appended, from->n_appended);
    out->n_appended = from->n_appended;
    out->slots = ints(from->slots);
    out->positions = ints(from->positions);
    return out->appended != NULL;
}

static msg_layer_tensor layer_tensor(const Attnd__V1__LayerTensor *from)
{
    return from ? (msg_layer_tensor){true, tensor(from->first), from->layer_stride, from->ring}
                : (msg_layer_tensor){0};
}

static bool step(msg_arena *arena, const Attnd__V1__StepRequest *from, msg_step *out)
{
    *out = (msg_step){.plan = from->plan,
                      .first_layer = from->first_layer,
                      .n_layers = from->n_layers,
                      .q = layer_tensor(from->q),
                      .k = layer_tensor(from->k),
                      .v = layer_tensor(from->v),
                      .out = layer_tensor(from->out),
                      .lse = layer_tensor(from->lse),
                      .keys = (msg_keys)from->keys,
                      .sync = sync_fields(from->sync)};
    return plan_update(arena, from->update, &out->update);
}

static bool merge(msg_arena *arena, const Attnd__V1__MergeRequest *from, msg_merge *out)
{
    msg_partial *partials = msg_arena_take(arena, from->n_partials * sizeof *partials);
    for (size_t i = 0; partials && i < from->n_partials; i++)
        partials[i] = (msg_partial){tensor(from->partials[i]->out), tensor(from->partials[i]->lse),
                                    tensor(from->partials[i]->stats)};
    *out = (msg_merge){.partials = partials,
                       .n_partials = from->n_partials,
                       .out = tensor(from->out),
                       .lse = tensor(from->lse),
                       .stats = tensor(from->stats)};
    return partials != NULL;
}

static msg_layer_spec layer_spec(const Attnd__V1__LayerSpec *from)
{
    msg_layer_spec s = {.kind = (attnd_layer_kind)from->kind,
                        .group = from->group,
                        .n_heads = from->n_heads,
                        .n_kv_heads = from->n_kv_heads,
                        .head_dim = from->head_dim,
                        .head_dim_v = from->head_dim_v,
                        .sm_scale = from->sm_scale,
                        .q_scaling = from->q_scaling,
                        .window = from->window,
                        .chunk = from->chunk,
                        .softcap = from->softcap,
                        .count = from->count};
    if (from->rope)
        s.rope = (msg_rope){.given = true,
                            .pairing = (attnd_rope_pairing)from->rope->pairing,
                            .dim = from->rope->dim,
                            .theta = from->rope->theta,
                            .scaling = from->rope->scaling};
    return s;
}

static msg_group_spec group_spec(const Attnd__V1__GroupSpec *from)
{
    bool has_blocks = from->size_case == ATTND__V1__GROUP_SPEC__SIZE_N_BLOCKS;
    bool has_bytes = from->size_case == ATTND__V1__GROUP_SPEC__SIZE_BYTES;
    return (msg_group_spec){.name = from->name,
                            .block_size = from->block_size,
                            .kv_dtype = (attnd_dtype)from->kv_dtype,
                            .layout = (attnd_layout)from->layout,
                            .n_blocks = has_blocks ? from->n_blocks : 0,
                            .bytes = has_bytes ? from->bytes : 0,
                            .max_kv_len = from->max_kv_len,
                            .window = from->window};
}

static bool open_model(msg_arena *arena, const Attnd__V1__OpenModelRequest *from,
                       msg_open_model *out)
{
    *out = (msg_open_model){.given = from->spec != NULL};
    if (!from->spec)
        return true;
    const Attnd__V1__ModelSpec *spec = from->spec;
    msg_layer_spec *layers = msg_arena_take(arena, spec->n_layers * sizeof *layers);
    msg_group_spec *groups = msg_arena_take(arena, spec->n_groups * sizeof *groups);
    if (!layers || !groups)
        return false;
    for (size_t i = 0; i < spec->n_layers; i++)
        layers[i] = layer_spec(spec->layers[i]);
    for (size_t i = 0; i < spec->n_groups; i++)
        groups[i] = group_spec(spec->groups[i]);
    out->spec = (msg_model_spec){spec->name, layers,         spec->n_layers,
                                 groups,     spec->n_groups, (msg_owner)spec->owner};
    return true;
}

static bool fill(msg_arena *arena, const void *from, msg_request *out)
{
    switch (out->op) {
    case MSG_OP_hello: {
        const Attnd__V1__HelloRequest *m = from;
        out->hello = (msg_hello){m->protocol, m->client};
        return true;
    }
    case MSG_OP_open_model:
        return open_model(arena, from, &out->open_model);
    case MSG_OP_close_model:
        out->close_model = ((const Attnd__V1__CloseModelRequest *)from)->model;
        return true;
    case MSG_OP_create_buffer: {
        const Attnd__V1__CreateBufferRequest *m = from;
        out->create_buffer = (msg_create_buffer){m->bytes, m->kind, m->named};
        return true;
    }
    case MSG_OP_free_buffer:
        out->free_buffer = ((const Attnd__V1__FreeBufferRequest *)from)->buffer;
        return true;
    case MSG_OP_create_plan:
        return create_plan(arena, from, &out->create_plan);
    case MSG_OP_update_plan:
        return plan_update(arena, ((const Attnd__V1__UpdatePlanRequest *)from)->update,
                           &out->update_plan);
    case MSG_OP_drop_plan:
        out->drop_plan = ((const Attnd__V1__DropPlanRequest *)from)->plan;
        return true;
    case MSG_OP_attend:
        return attend(arena, from, &out->attend);
    case MSG_OP_step:
        return step(arena, from, &out->step);
    case MSG_OP_merge:
        return merge(arena, from, &out->merge);
    default:
        return true; /* Ping and Goodbye carry nothing. */
    }
}

/* ---- The envelope ---- */

enum { ID = 1, SESSION = 2, AFTER = 3, TIMEOUT_MS = 4 };

typedef struct envelope {
    span op;          /* bytes of the op's message */
    uint32_t unknown; /* number of a field that is none of the envelope's; 0: none */
} envelope;

static attnd_status take_envelope_field(const field *f, msg_request *out, envelope *e,
                                        attnd_err *err)
{
    const ProtobufCFieldDescriptor *d =
        protobuf_c_message_descriptor_get_field(&attnd__v1__request__descriptor, f->number);
    if (!d) {
        e->unknown = f->number;
        return ATTND_OK;
    }
    if (d->type == PROTOBUF_C_TYPE_MESSAGE && f->wire == BYTES) {
        if (out->op)
            return attnd_fail(err, ATTND_BAD_MESSAGE, "op: both %s and %s; one request holds one",
                              msg_op_name(out->op), d->name);
        out->op = (msg_op)f->number;
        e->op = f->body;
        return ATTND_OK;
    }
    attnd_status status = check_field(d, f, err);
    if (status != ATTND_OK) {
        attnd_err_prefix(err, "%s", d->name);
        return status;
    }
    switch (f->number) {
    case ID:
        out->id = f->value;
        break;
    case SESSION:
        out->session = f->value;
        break;
    case AFTER:
        out->after = f->value;
        break;
    case TIMEOUT_MS:
        out->timeout_ms = (uint32_t)f->value;
        break;
    }
    return ATTND_OK;
}

static attnd_status read_envelope(span bytes, msg_request *out, envelope *e, attnd_err *err)
{
    while (bytes.at < bytes.end) {
        field f;
        attnd_status status = read_field(&bytes, &f, err);
        if (status != ATTND_OK) {
            attnd_err_prefix(err, "request");
            return status;
        }
        TRY(take_envelope_field(&f, out, e, err));
    }
    if (!out->op && e->unknown)
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "op: none is set; field %u is none this server knows", e->unknown);
    if (!out->op)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "op: none is set");
    if (e->unknown)
        return attnd_fail(err, ATTND_UNSUPPORTED, "request: field %u is none this server knows",
                          e->unknown);
    return ATTND_OK;
}

static span span_of(const void *bytes, size_t n)
{
    static const uint8_t none[1];
    const uint8_t *at = n ? bytes : none;
    return (span){at, at + n};
}

attnd_status msg_decode(msg_arena *arena, const void *bytes, size_t n, msg_request *out,
                        attnd_err *err)
{
    attnd_err unread;
    err = err ? err : &unread;
    *out = (msg_request){0};
    envelope e = {0};
    TRY(read_envelope(span_of(bytes, n), out, &e, err));
    const ProtobufCMessageDescriptor *d = served[out->op];
    if (!d)
        return ATTND_OK;
    TRY(check_outermost(d, msg_op_name(out->op), e.op, err));
    if (d->n_fields == 0)
        return ATTND_OK;
    void *op = unpack(arena, d, e.op);
    if (!op || !fill(arena, op, out))
        return full(arena, n, err);
    return ATTND_OK;
}

attnd_status msg_fd_decode(const void *bytes, size_t n, msg_fd_request *out, attnd_err *err)
{
    attnd_err unread;
    err = err ? err : &unread;
    *out = (msg_fd_request){0};
    span packet = span_of(bytes, n);
    TRY(check_outermost(&attnd__v1__fd_request__descriptor, "packet", packet, err));
    /* A legal packet may say the same fields many times, so what it takes has no bound but this. */
    alignas(64) char memory[4096];
    msg_arena arena = {.base = memory, .bytes = sizeof memory};
    const Attnd__V1__FdRequest *m = unpack(&arena, &attnd__v1__fd_request__descriptor, packet);
    if (!m)
        return attnd_fail(err, ATTND_TOO_LARGE, "packet = %zu bytes: decoded it passes %zu bytes",
                          n, sizeof memory);
    *out = (msg_fd_request){m->session, m->buffer};
    return ATTND_OK;
}
