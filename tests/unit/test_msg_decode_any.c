/* test_msg_decode_any.c: whatever the bytes are, nothing is allocated outside the arena, and what
 * the first pass lets through decodes; packets of the buffer socket.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "tests/support/oom.h"
#include "tests/support/request.h"

OOM_INTERPOSE

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
    oom_arm(1);
    void *volatile memory = malloc(1);
    assert_true(oom_disarm()); /* it would be seen */
    assert_null(memory);
    msg_request r;
    attnd_err err;
    msg_fd_request fd;
    msg_arena_reset(*state);
    oom_arm(1);
    attnd_status status = msg_decode(*state, b.at, b.n, &r, &err);
    attnd_status status_refused = msg_decode(*state, refused.at, refused.n, &r, &err);
    attnd_status status_fd = msg_fd_decode("\x09\x01\0\0\0\0\0\0\0", 9, &fd, &err);
    bool came = oom_disarm();
    assert_false(came);
    assert_int_equal(status, ATTND_OK);
    assert_int_equal(status_refused, ATTND_UNIMPLEMENTED);
    assert_int_equal(status_fd, ATTND_OK);
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
        cmocka_unit_test(what_the_first_pass_lets_through_protobuf_c_unpacks),
        cmocka_unit_test(nothing_is_allocated_outside_the_arena),
        cmocka_unit_test(a_packet_names_session_and_buffer),
        cmocka_unit_test(a_packet_that_is_wrong_is_refused),
    };
    return cmocka_run_group_tests_name("msg_decode_any", tests, open_arena, close_arena);
}
