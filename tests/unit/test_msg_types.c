/* test_msg_types.c: the shared words have the wire's numbers; refusals are written and cut right;
 * an arena only grows and is empty after a reset.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "attnd.pb-c.h"
#include "proto/arena.h"
#include "proto/err.h"

typedef struct word {
    const char *name;
    int number;
} word;

/* The two lists hold the same names with the same numbers. */
static void assert_same_words(const ProtobufCEnumDescriptor *wire, const char *prefix,
                              const word *ours, size_t n)
{
    assert_int_equal(wire->n_values, n);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", prefix, ours[i].name);
        const ProtobufCEnumValue *value = protobuf_c_enum_descriptor_get_value_by_name(wire, name);
        if (!value)
            fail_msg("attnd.proto has no %s", name);
        assert_int_equal(value->value, ours[i].number);
    }
}

static void statuses_have_the_numbers_of_the_wire(void **state)
{
    const word ours[] = {
#define X(name, number, mender, text) {#name, number},
        ATTND_STATUS_MAP(X)
#undef X
    };
    assert_same_words(&attnd__v1__code__descriptor, "", ours, sizeof ours / sizeof ours[0]);
}

static void dtypes_have_the_numbers_of_the_wire(void **state)
{
    const word ours[] = {
#define X(name, number, bits, text) {#name, number},
        ATTND_DTYPE_MAP(X)
#undef X
    };
    assert_same_words(&attnd__v1__dtype__descriptor, "DTYPE_", ours, sizeof ours / sizeof ours[0]);
}

static void layer_kinds_have_the_numbers_of_the_wire(void **state)
{
    const word ours[] = {
#define X(name, number, text) {#name, number},
        ATTND_LAYER_KIND_MAP(X)
#undef X
    };
    assert_same_words(&attnd__v1__layer_kind__descriptor, "LAYER_", ours,
                      sizeof ours / sizeof ours[0]);
}

static void layouts_and_pairings_have_the_numbers_of_the_wire(void **state)
{
    const word layouts[] = {{"HND", ATTND_LAYOUT_HND}, {"NHD", ATTND_LAYOUT_NHD}};
    const word pairings[] = {
        {"NONE", ATTND_ROPE_NONE}, {"NEOX", ATTND_ROPE_NEOX}, {"GPTJ", ATTND_ROPE_GPTJ}};
    assert_same_words(&attnd__v1__layout__descriptor, "LAYOUT_", layouts, 2);
    assert_same_words(&attnd__v1__rope_pairing__descriptor, "ROPE_", pairings, 3);
}

static void every_word_has_its_name_and_a_stranger_has_none(void **state)
{
#define X(name, number, mender, text) assert_string_equal(attnd_status_name(ATTND_##name), #name);
    ATTND_STATUS_MAP(X)
#undef X
#define X(name, number, status)                                                                    \
    assert_string_equal(attnd_reason_name(ATTND_##name), #name);                                   \
    assert_int_equal(attnd_reason_status(ATTND_##name), ATTND_##status);
    ATTND_REASON_MAP(X)
#undef X
#define X(name, number, bits, text)                                                                \
    assert_string_equal(attnd_dtype_name(ATTND_DTYPE_##name), text);                               \
    assert_int_equal(attnd_dtype_bits(ATTND_DTYPE_##name), bits);                                  \
    assert_int_equal(attnd_dtype_named(text), ATTND_DTYPE_##name);
    ATTND_DTYPE_MAP(X)
#undef X
#define X(name, number, text) assert_string_equal(attnd_layer_kind_name(ATTND_LAYER_##name), text);
    ATTND_LAYER_KIND_MAP(X)
#undef X
    assert_string_equal(attnd_status_name((attnd_status)1), "?");
    assert_string_equal(attnd_reason_name((attnd_reason)999), "?");
    assert_string_equal(attnd_dtype_name((attnd_dtype)-1), "?");
    assert_string_equal(attnd_layer_kind_name((attnd_layer_kind)4), "?");
    assert_int_equal(attnd_reason_status((attnd_reason)999), ATTND_INTERNAL);
    assert_int_equal(attnd_dtype_bits((attnd_dtype)999), 0);
    assert_int_equal(attnd_dtype_named("F32"), ATTND_DTYPE_NONE);
    assert_int_equal(attnd_dtype_named(""), ATTND_DTYPE_NONE);
}

static void a_status_says_who_can_mend_it(void **state)
{
    assert_int_equal(attnd_status_mender(ATTND_OK), ATTND_MENDER_NOBODY);
    assert_int_equal(attnd_status_mender(ATTND_INVALID_ARGUMENT), ATTND_MENDER_CALLER);
    assert_int_equal(attnd_status_mender(ATTND_RESOURCE_EXHAUSTED), ATTND_MENDER_WAIT);
    assert_int_equal(attnd_status_mender(ATTND_INTERNAL), ATTND_MENDER_US);
    assert_int_equal(attnd_status_mender((attnd_status)2), ATTND_MENDER_US);
}

static void a_refusal_carries_status_reason_and_text(void **state)
{
    attnd_err err;
    assert_int_equal(attnd_fail(&err, ATTND_BAD_BLOCK, "tables[%d] = %d: 0..9", 1, 12),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.status, ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_BLOCK);
    assert_string_equal(err.text, "tables[1] = 12: 0..9");
    assert_int_equal(attnd_fail(NULL, ATTND_NO_ROOM, "x"), ATTND_RESOURCE_EXHAUSTED);
}

static void a_text_that_is_too_long_is_cut(void **state)
{
    attnd_err err;
    attnd_fail(&err, ATTND_BROKEN, "%01000d", 7);
    assert_int_equal(strlen(err.text), ATTND_ERR_TEXT - 1);
    attnd_err_prefix(&err, "batch.");
    assert_int_equal(strlen(err.text), ATTND_ERR_TEXT - 1);
    assert_memory_equal(err.text, "batch.000", 9);
    attnd_err_prefix(&err, "%0600d", 1);
    assert_int_equal(strlen(err.text), ATTND_ERR_TEXT - 1);
}

static void a_prefix_goes_before_the_text(void **state)
{
    attnd_err err;
    attnd_fail(&err, ATTND_BAD_LENGTH, "kv_lens[2] = -1: at least 0");
    attnd_err_prefix(&err, "batch%s.", "es[0]");
    assert_string_equal(err.text, "batches[0].kv_lens[2] = -1: at least 0");
    assert_int_equal(err.reason, ATTND_BAD_LENGTH);
    attnd_err_prefix(NULL, "x");
}

static void the_field_is_what_stands_before_the_value(void **state)
{
    attnd_err err;
    attnd_fail(&err, ATTND_BAD_BLOCK, "batch.tables[1].block_ids[7] = 4096: 0..4095: pool = main");
    assert_int_equal(attnd_err_field_len(&err), strlen("batch.tables[1].block_ids[7]"));
    attnd_fail(&err, ATTND_STALE, "plan: passed by");
    assert_int_equal(attnd_err_field_len(&err), 4);
    attnd_fail(&err, ATTND_BROKEN, "the device failed: code = 3");
    assert_int_equal(attnd_err_field_len(&err), 0);
    attnd_fail(&err, ATTND_BROKEN, "no field at all");
    assert_int_equal(attnd_err_field_len(&err), 0);
    attnd_fail(&err, ATTND_BROKEN, " = 3: nameless");
    assert_int_equal(attnd_err_field_len(&err), 0);
}

static void an_arena_hands_out_aligned_memory_up_to_its_bound(void **state)
{
    msg_arena arena;
    assert_int_equal(msg_arena_init(&arena, 10000, NULL), ATTND_OK);
    assert_int_equal(arena.bytes, 12288); /* whole pages */
    char *a = msg_arena_take(&arena, 1), *b = msg_arena_take(&arena, 100);
    assert_non_null(a);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal(b - a, 64);
    assert_null(msg_arena_take(&arena, 12288));
    assert_null(msg_arena_take(&arena, SIZE_MAX));
    char *rest = msg_arena_take(&arena, 12288 - 192);
    assert_int_equal(rest - a, 192);
    memset(rest, 1, 12288 - 192);
    assert_null(msg_arena_take(&arena, 1));
    msg_arena_reset(&arena);
    assert_ptr_equal(msg_arena_take(&arena, 12288), a);
    msg_arena_fini(&arena);
    assert_null(arena.base);
    assert_null(msg_arena_take(&arena, 1));
    msg_arena_fini(&arena);
}

static void a_reset_gives_memory_beyond_a_megabyte_back(void **state)
{
    msg_arena arena;
    size_t bytes = 8 << 20;
    assert_int_equal(msg_arena_init(&arena, bytes, NULL), ATTND_OK);
    char *all = msg_arena_take(&arena, bytes);
    memset(all, 1, bytes);
    msg_arena_reset(&arena);
    all = msg_arena_take(&arena, bytes);
    assert_int_equal(all[0], 1);
    for (size_t i = 1 << 20; i < bytes; i += 4096)
        assert_int_equal(all[i], 0);
    msg_arena_fini(&arena);
}

static void an_arena_of_no_possible_size_is_refused(void **state)
{
    msg_arena arena;
    attnd_err err;
    assert_int_equal(msg_arena_init(&arena, (size_t)1 << 60, &err), ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, ATTND_NO_ROOM);
    assert_string_equal(err.text,
                        "arena = 1152921504606846976 bytes: the system has no address space");
    assert_null(arena.base);
    assert_null(msg_arena_take(&arena, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statuses_have_the_numbers_of_the_wire),
        cmocka_unit_test(dtypes_have_the_numbers_of_the_wire),
        cmocka_unit_test(layer_kinds_have_the_numbers_of_the_wire),
        cmocka_unit_test(layouts_and_pairings_have_the_numbers_of_the_wire),
        cmocka_unit_test(every_word_has_its_name_and_a_stranger_has_none),
        cmocka_unit_test(a_status_says_who_can_mend_it),
        cmocka_unit_test(a_refusal_carries_status_reason_and_text),
        cmocka_unit_test(a_text_that_is_too_long_is_cut),
        cmocka_unit_test(a_prefix_goes_before_the_text),
        cmocka_unit_test(the_field_is_what_stands_before_the_value),
        cmocka_unit_test(an_arena_hands_out_aligned_memory_up_to_its_bound),
        cmocka_unit_test(a_reset_gives_memory_beyond_a_megabyte_back),
        cmocka_unit_test(an_arena_of_no_possible_size_is_refused),
    };
    return cmocka_run_group_tests_name("msg_types", tests, NULL, NULL);
}
