/* test_msg_decode_refused.c: bytes that say nothing right become a refusal that names the field.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "tests/support/request.h"

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
    assert_true(r.id == REQUEST_ID);
    assert_true(r.session == REQUEST_SESSION);
    assert_int_equal(r.op, op);
}

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
        assert_true(r.id == (n >= 9 ? REQUEST_ID : 0));
        assert_true(r.session == (n >= 18 ? REQUEST_SESSION : 0));
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
        assert_true(r.id == REQUEST_ID);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests_name("msg_decode_refused", tests, open_arena, close_arena);
}
