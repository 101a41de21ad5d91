/* mutate.c: one field of a message is changed, everything around it is written anew. */
#include "tests/fuzz/mutate.h"

#include <stdbool.h>
#include <string.h>

#include "tests/fuzz/world.h"

enum { VARINT = 0, BITS64 = 1, BYTES = 2, BITS32 = 5, ROOM = 1 << 14, DEPTH = 8 };

typedef struct writer {
    uint8_t *at;
    size_t n, room;
    bool is_full;
} writer;

typedef struct change {
    unsigned target; /* fields to go */
    unsigned random;
    bool is_done;
} change;

static void put(writer *w, const void *from, size_t n)
{
    if (n > w->room - w->n) {
        w->is_full = true;
        return;
    }
    memcpy(w->at + w->n, from, n);
    w->n += n;
}

static void put_varint(writer *w, uint64_t value)
{
    for (; value > 127; value >>= 7)
        put(w, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put(w, &(uint8_t){(uint8_t)value}, 1);
}

static bool take_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

static uint64_t other_number(uint64_t value, unsigned random)
{
    static const uint64_t edges[] = {0,         1,          2,          3,          4,
                                     5,         7,          8,          16,         63,
                                     64,        INT32_MAX,  1u << 31,   UINT32_MAX, 1ull << 32,
                                     INT64_MAX, 1ull << 63, UINT64_MAX, 4096,       4095};
    switch (random % 4) {
    case 0:
        return value + 1;
    case 1:
        return value - 1;
    case 2:
        return value ^ 1ull << (random >> 2) % 64;
    default:
        return edges[(random >> 2) % (sizeof edges / sizeof *edges)];
    }
}

/* Other bytes: as integers, or as the fuzzer likes. */
static size_t other_bytes(uint8_t *data, size_t n, size_t room, unsigned random)
{
    if (random % 4 || n < 4)
        return LLVMFuzzerMutate(data, n, room);
    size_t at = (random >> 2) % (n / 4) * 4;
    int32_t value;
    memcpy(&value, data + at, 4);
    value = (int32_t)other_number((uint64_t)value, random >> 12);
    memcpy(data + at, &value, 4);
    return n;
}

static void copy(const ProtobufCMessageDescriptor *type, const uint8_t *at, const uint8_t *end,
                 writer *w, change *c, int depth);

static void copy_body(const ProtobufCFieldDescriptor *field, uint64_t tag, const uint8_t *at,
                      size_t n, writer *w, change *c, bool is_target, int depth)
{
    static uint8_t rooms[DEPTH][ROOM];
    writer inner = {.at = rooms[depth], .room = ROOM};
    bool is_message = field && field->type == PROTOBUF_C_TYPE_MESSAGE;
    if (is_message && !is_target && depth + 1 < DEPTH) {
        copy(field->descriptor, at, at + n, &inner, c, depth + 1);
    } else {
        put(&inner, at, n);
        if (is_target && !inner.is_full)
            inner.n = other_bytes(inner.at, inner.n, ROOM < w->room ? ROOM : w->room, c->random);
    }
    w->is_full |= inner.is_full;
    put_varint(w, tag);
    put_varint(w, inner.n);
    put(w, inner.at, inner.n);
}

/* A field that was not there, of a kind the message has. */
static void add_field(const ProtobufCMessageDescriptor *type, writer *w, unsigned random)
{
    if (!type || !type->n_fields)
        return;
    const ProtobufCFieldDescriptor *f = &type->fields[random % type->n_fields];
    uint64_t value = other_number(1, random >> 8);
    uint32_t wire = f->type == PROTOBUF_C_TYPE_FIXED64 || f->type == PROTOBUF_C_TYPE_DOUBLE ? BITS64
                    : f->type == PROTOBUF_C_TYPE_FLOAT                                      ? BITS32
                    : f->type >= PROTOBUF_C_TYPE_STRING                                     ? BYTES
                                                        : VARINT;
    put_varint(w, (uint64_t)f->id << 3 | wire);
    if (wire == VARINT)
        put_varint(w, value);
    else if (wire == BYTES)
        put_varint(w, 0);
    else
        put(w, &value, wire == BITS64 ? 8 : 4);
}

static void copy(const ProtobufCMessageDescriptor *type, const uint8_t *at, const uint8_t *end,
                 writer *w, change *c, int depth)
{
    while (at < end) {
        const uint8_t *begin = at;
        uint64_t tag, value = 0;
        bool is_target = !c->is_done && c->target-- == 0, read = take_varint(&at, end, &tag);
        c->is_done |= is_target;
        uint32_t wire = tag & 7;
        size_t fixed = wire == BITS64 ? 8 : 4;
        if (read && (wire == VARINT || wire == BYTES))
            read = take_varint(&at, end, &value);
        else if (read && (wire == BITS64 || wire == BITS32) && (size_t)(end - at) >= fixed)
            memcpy(&value, at, fixed);
        else
            read = false;
        if (!read || (wire == BYTES && value > (uint64_t)(end - at))) {
            put(w, begin, (size_t)(end - begin)); /* no message from here on */
            return;
        }
        const uint8_t *body = at;
        at += wire == BYTES ? value : wire == VARINT ? 0 : fixed;
        unsigned action = is_target ? c->random % 8 : 0;
        c->random = is_target ? c->random >> 3 : c->random;
        if (action == 1) /* dropped */
            continue;
        if (action == 2) /* said twice */
            put(w, begin, (size_t)(at - begin));
        if (action == 3)
            add_field(type, w, c->random);
        bool is_changed = is_target && (action == 0 || action > 3);
        const ProtobufCFieldDescriptor *field =
            type ? protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3)) : NULL;
        if (wire == BYTES) {
            copy_body(field, tag, body, (size_t)value, w, c, is_changed, depth);
            continue;
        }
        put_varint(w, tag);
        value = is_changed ? other_number(value, c->random) : value;
        if (wire == VARINT)
            put_varint(w, value);
        else
            put(w, &value, fixed);
    }
}

static unsigned count_fields(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t n)
{
    static uint8_t nowhere[ROOM];
    writer w = {.at = nowhere, .room = ROOM};
    change c = {.target = UINT32_MAX};
    copy(type, data, data + n, &w, &c, 0);
    return UINT32_MAX - c.target;
}

size_t fuzz_mutate_message(const ProtobufCMessageDescriptor *type, uint8_t *data, size_t n,
                           size_t room, unsigned seed)
{
    static uint8_t out[ROOM];
    writer w = {.at = out, .room = room < ROOM ? room : ROOM};
    unsigned n_fields = count_fields(type, data, n);
    if (!n_fields || n > ROOM)
        return n;
    change c = {.target = seed % n_fields, .random = seed * 2654435761u};
    copy(type, data, data + n, &w, &c, 0);
    if (w.is_full)
        return n;
    memcpy(data, out, w.n);
    return w.n;
}
