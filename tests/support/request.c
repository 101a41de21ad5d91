/* request.c: requests made byte by byte. */
#include "tests/support/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

void put_raw(bytes *b, const void *from, size_t n)
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

void put_number(bytes *b, uint32_t field, uint64_t value)
{
    put_varint(b, (uint64_t)field << 3);
    put_varint(b, value);
}

void put_fixed64(bytes *b, uint32_t field, uint64_t value)
{
    put_varint(b, (uint64_t)field << 3 | 1);
    for (int i = 0; i < 8; i++)
        put_raw(b, &(uint8_t){(uint8_t)(value >> (8 * i))}, 1);
}

void put_bytes(bytes *b, uint32_t field, const void *from, size_t n)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, n);
    put_raw(b, from, n);
}

void put(bytes *b, uint32_t field, const bytes *message)
{
    put_bytes(b, field, message->at, message->n);
}

bytes request_of(msg_op op, const bytes *message)
{
    bytes b = {.n = 0};
    put_fixed64(&b, 1, REQUEST_ID);
    put_fixed64(&b, 2, REQUEST_SESSION);
    put(&b, op, message);
    return b;
}

bytes request_with(const Attnd__V1__Request *request)
{
    bytes b;
    assert_true(attnd__v1__request__get_packed_size(request) <= sizeof b.at);
    b.n = attnd__v1__request__pack(request, b.at);
    return b;
}

msg_request decoded(msg_arena *arena, const bytes *b)
{
    msg_request r;
    attnd_err err = {0};
    msg_arena_reset(arena);
    attnd_status status = msg_decode(arena, b->at, b->n, &r, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(status, ATTND_OK);
    return r;
}

int open_arena(void **state)
{
    static msg_arena arena;
    *state = &arena;
    return msg_arena_init(&arena, 1 << 20, NULL);
}

int close_arena(void **state)
{
    msg_arena_fini(*state);
    return 0;
}
