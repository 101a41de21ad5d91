/* test_ora_append.c: new keys land in their slots, byte for byte, and nowhere else. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/oracle.h"

enum { BLOCKS = 6, T = 4, HKV = 2, D = 8, DV = 4 };

/* A pool of two-byte elements, [block][K, V][head][token][dim], and 3 new tokens of two sequences.
 */
typedef struct scene {
    ora_problem p;
    uint16_t pool[BLOCKS][HKV * T * (D + DV)];
    uint16_t k[3][HKV][D], v[3][HKV][DV];
    int32_t q_len[2], kv_len[2], block_ids[4];
} scene;

static void scene_make(scene *s, attnd_dtype dtype)
{
    *s = (scene){.q_len = {2, 1}, .kv_len = {5, 7}, .block_ids = {4, 0, 3, 5}};
    memset(s->pool, 0xA5, sizeof s->pool);
    ora_generate(9, "k", 0, 3 * HKV * D, 1, dtype, s->k);
    ora_generate(9, "v", 0, 3 * HKV * DV, 1, dtype, s->v);
    s->p = (ora_problem){
        .n_heads = HKV,
        .n_kv_heads = HKV,
        .head_dim = D,
        .head_dim_v = DV,
        .dtype = dtype,
        .n_seqs = 2,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .block_ids = s->block_ids,
        .k = {s->k, sizeof s->k[0], sizeof s->k[0][0], dtype},
        .v = {s->v, sizeof s->v[0], sizeof s->v[0][0], dtype},
        .kv = {.plane = {s->pool, (char *)s->pool + HKV * T * D * 2},
               .block_stride = sizeof s->pool[0],
               .head_stride = {T * D * 2, T * DV * 2},
               .token_stride = {D * 2, DV * 2},
               .n_blocks = BLOCKS,
               .block_size = T,
               .dtype = dtype},
    };
}

static uint16_t *k_at(scene *s, int block, int row, int head)
{
    return s->pool[block] + (head * T + row) * D;
}

static uint16_t *v_at(scene *s, int block, int row, int head)
{
    return s->pool[block] + HKV * T * D + (head * T + row) * DV;
}

static void appends(const scene *s)
{
    attnd_err err;
    if (ora_append(&s->p, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

/* The token's bytes in a slot; where they match, the slot gets its old bytes back. */
static void assert_token(scene *s, int token, int block, int row)
{
    for (int g = 0; g < HKV; g++) {
        assert_memory_equal(k_at(s, block, row, g), s->k[token][g], D * 2);
        assert_memory_equal(v_at(s, block, row, g), s->v[token][g], DV * 2);
        memset(k_at(s, block, row, g), 0xA5, D * 2);
        memset(v_at(s, block, row, g), 0xA5, DV * 2);
    }
}

static void assert_rest_untouched(const scene *s)
{
    const uint8_t *bytes = (const uint8_t *)s->pool;
    for (size_t i = 0; i < sizeof s->pool; i++)
        assert_int_equal(bytes[i], 0xA5);
}

static void new_tokens_are_the_last_keys_of_their_sequence(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_BF16);
    appends(&s);
    assert_token(&s, 0, 4, 3); /* key 3 of sequence 0 */
    assert_token(&s, 1, 0, 0); /* key 4 */
    assert_token(&s, 2, 5, 2); /* key 6 of sequence 1 */
    assert_rest_untouched(&s);
}

static void explicit_slots_override_the_table(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    const int32_t slots[] = {1 * T + 2, -1, 2 * T};
    s.p.slots = slots;
    s.block_ids[0] = s.block_ids[3] = -1; /* not needed for writing */
    appends(&s);
    assert_token(&s, 0, 1, 2);
    assert_token(&s, 2, 2, 0);
    assert_rest_untouched(&s);
}

static void padding_with_slot_minus_one_needs_no_key(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    const int32_t slots[] = {5, 6, -1};
    s.p.slots = slots;
    s.kv_len[1] = 0;
    appends(&s);
    assert_token(&s, 0, 1, 1);
    assert_token(&s, 1, 1, 2);
    assert_rest_untouched(&s);
}

static void nothing_given_is_nothing_stored(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    s.p.k.base = NULL;
    appends(&s);
    assert_rest_untouched(&s);
}

static void a_second_append_writes_the_same_bytes(void **state)
{
    scene once, twice;
    scene_make(&once, ATTND_DTYPE_BF16);
    once.p.rope = (ora_rope){.pairing = ATTND_ROPE_GPTJ, .dim = 6, .theta = 10000};
    appends(&once);
    scene_make(&twice, ATTND_DTYPE_BF16);
    twice.p.rope = once.p.rope;
    appends(&twice);
    appends(&twice);
    assert_memory_equal(once.pool, twice.pool, sizeof once.pool);
}

static void nan_payloads_pass_when_types_agree(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    s.k[0][0][0] = 0xFC01;
    s.v[2][1][3] = 0x7E55;
    appends(&s);
    assert_token(&s, 0, 4, 3);
    assert_token(&s, 2, 5, 2);
}

/* fp32 in, bf16 pool: one rounding, overflow to Inf, NaN to 0x7FFF. */
static void another_type_is_rounded_once(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_BF16);
    float k[HKV][D] = {{1, 1.00390625f, 1.00390637f, -0.0f, 3.4e38f, INFINITY, NAN, -NAN}};
    float v[HKV][DV] = {{1e-45f, -1.01171875f, 2, 3}};
    s.q_len[0] = 0;
    s.p.k = (ora_rows){k, sizeof k, sizeof k[0], ATTND_DTYPE_F32};
    s.p.v = (ora_rows){v, sizeof v, sizeof v[0], ATTND_DTYPE_F32};
    appends(&s);
    const uint16_t want_k[] = {0x3F80, 0x3F80, 0x3F81, 0x8000, 0x7F80, 0x7F80, 0x7FFF, 0x7FFF};
    const uint16_t want_v[] = {0, 0xBF82, 0x4000, 0x4040};
    assert_memory_equal(k_at(&s, 5, 2, 0), want_k, sizeof want_k);
    assert_memory_equal(v_at(&s, 5, 2, 0), want_v, sizeof want_v);
}

/* Rotated data is rounded to the activation type first and to the pool's type then. */
static void rotated_keys_are_rounded_twice_and_values_are_not_rotated(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_BF16);
    float k[3][HKV][D], v[3][HKV][DV];
    ora_generate(4, "k", 0, 3 * HKV * D, 1, ATTND_DTYPE_F32, k);
    ora_generate(4, "v", 0, 3 * HKV * DV, 1, ATTND_DTYPE_F32, v);
    s.p.k = (ora_rows){k, sizeof k[0], sizeof k[0][0], ATTND_DTYPE_F32};
    s.p.v = (ora_rows){v, sizeof v[0], sizeof v[0][0], ATTND_DTYPE_F32};
    s.p.dtype = ATTND_DTYPE_F16;
    s.p.rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = 6, .theta = 10000};
    const int32_t positions[] = {100, 7, 1000}, delta[] = {0, 5};
    s.p.positions = positions;
    s.p.rope_delta = delta;
    appends(&s);
    const int block[] = {4, 0, 5}, row[] = {3, 0, 2}, position[] = {100, 7, 1005};
    for (int t = 0; t < 3; t++)
        for (int g = 0; g < HKV; g++) {
            double x[D], y[DV];
            uint16_t want_k[D], want_v[DV];
            ora_decode(ATTND_DTYPE_F32, k[t][g], D, x);
            ora_decode(ATTND_DTYPE_F32, v[t][g], DV, y);
            ora_rotate(&s.p.rope, position[t], ATTND_DTYPE_F16, x);
            for (int d = 0; d < 6; d++)
                assert_true(x[d] == ora_round(ATTND_DTYPE_F16, x[d]));
            ora_encode(ATTND_DTYPE_BF16, x, D, want_k);
            ora_encode(ATTND_DTYPE_BF16, y, DV, want_v);
            assert_memory_equal(k_at(&s, block[t], row[t], g), want_k, sizeof want_k);
            assert_memory_equal(v_at(&s, block[t], row[t], g), want_v, sizeof want_v);
        }
}

static void without_positions_a_key_is_rotated_by_its_index(void **state)
{
    scene s, given;
    scene_make(&s, ATTND_DTYPE_F16);
    scene_make(&given, ATTND_DTYPE_F16);
    s.p.rope = given.p.rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000};
    const int32_t positions[] = {3, 4, 6};
    given.p.positions = positions;
    appends(&s);
    appends(&given);
    assert_memory_equal(s.pool, given.pool, sizeof s.pool);
}

static void nodes_of_a_tree_are_rotated_by_their_depth(void **state)
{
    scene s, given;
    scene_make(&s, ATTND_DTYPE_F16);
    scene_make(&given, ATTND_DTYPE_F16);
    s.p.rope = given.p.rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000};
    const uint32_t words[] = {1, 2, 1};
    const int32_t depth[] = {0, 0, 0}, positions[] = {3, 3, 6};
    s.p.mask = (ora_mask){
        .kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1, .tree_depth = depth};
    given.p.positions = positions;
    appends(&s);
    appends(&given);
    assert_memory_equal(s.pool, given.pool, sizeof s.pool);
}

static void refuses(scene *s, attnd_reason reason, const char *text)
{
    attnd_err err = {0};
    assert_int_equal(ora_append(&s->p, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.text, text);
    assert_rest_untouched(s);
}

static void what_cannot_be_appended_is_refused_before_the_first_byte(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    s.kv_len[1] = 0;
    refuses(&s, ATTND_BAD_LENGTH, "q_len[1] = 1: kv_len = 0 counts them in");
    scene_make(&s, ATTND_DTYPE_F16);
    s.block_ids[3] = -1;
    refuses(&s, ATTND_BAD_BLOCK, "block_ids[1][1] = -1: key 6 needs one of 0..5");
    scene_make(&s, ATTND_DTYPE_F16);
    s.block_ids[3] = 6;
    refuses(&s, ATTND_BAD_BLOCK, "block_ids[1][1] = 6: key 6 needs one of 0..5");
    const int32_t slots[][3] = {{24, 1, 2}, {1, -2, 2}, {3, 9, 3}};
    scene_make(&s, ATTND_DTYPE_F16);
    s.p.slots = slots[0];
    refuses(&s, ATTND_BAD_BLOCK, "slots[0] = 24: -1 or 0..23");
    s.p.slots = slots[1];
    refuses(&s, ATTND_BAD_BLOCK, "slots[1] = -2: -1 or 0..23");
    s.p.slots = slots[2];
    refuses(&s, ATTND_BAD_BLOCK, "slots = 3: two tokens in one slot");
    scene_make(&s, ATTND_DTYPE_F16);
    s.block_ids[0] = 5;
    s.kv_len[0] = 4; /* keys 2 and 3 of sequence 0 in block 5, key 6 of sequence 1 too */
    s.block_ids[2] = 5;
    refuses(&s, ATTND_BAD_BLOCK, "slots = 22: two tokens in one slot");
    scene_make(&s, ATTND_DTYPE_F16);
    s.p.v.base = NULL;
    refuses(&s, ATTND_BAD_GEOMETRY, "v = none f16, k = f16: both, f32, f16 or bf16");
    scene_make(&s, ATTND_DTYPE_F16);
    s.p.k.dtype = ATTND_DTYPE_U8;
    refuses(&s, ATTND_BAD_GEOMETRY, "v = given f16, k = u8: both, f32, f16 or bf16");
    scene_make(&s, ATTND_DTYPE_F16);
    s.p.block_ids = NULL;
    refuses(&s, ATTND_BAD_GEOMETRY, "block_ids = none: append needs a pool with tables or slots");
}

/* One page that sequence 0 uses twice (§3.5): key 4 lies where key 0 lay. */
static void a_ring_takes_a_token_where_no_row_sees_the_old_key(void **state)
{
    scene s;
    for (int32_t window = 0; window < 5; window++) {
        scene_make(&s, ATTND_DTYPE_F16);
        s.block_ids[1] = s.block_ids[0];
        s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL, .window = window};
        if (window > 0)
            s.p.mask.kinds |= ORA_MASK_WINDOW;
        if (window == 0 || window == 4) {
            refuses(&s, ATTND_BAD_BLOCK,
                    "block_ids[0][0] = 4: key 0 is still seen and token 1 of the sequence is "
                    "stored over it");
            continue;
        }
        appends(&s);
        assert_token(&s, 0, 4, 3);
        assert_token(&s, 1, 4, 0);
        assert_token(&s, 2, 5, 2);
        assert_rest_untouched(&s);
    }
}

static void no_slot_lies_over_a_key_that_is_seen(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    const int32_t slots[] = {4 * T + 3, 4 * T + 1, -1}; /* key 3 itself, and key 1 */
    s.p.slots = slots;
    refuses(&s, ATTND_BAD_BLOCK,
            "block_ids[0][0] = 4: key 1 is still seen and token 1 of the sequence is stored over "
            "it");
}

/* §3.7: sequence 1 has the page in its table that takes key 4 of sequence 0. */
static void a_page_that_another_sequence_needs_takes_no_token(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_F16);
    s.block_ids[2] = s.block_ids[1];
    refuses(&s, ATTND_BAD_BLOCK,
            "block_ids[1][0] = 0: sequence 1 reads it and sequence 0 appends to it");
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 4};
    refuses(&s, ATTND_BAD_BLOCK,
            "block_ids[1][0] = 0: sequence 1 reads it and sequence 0 appends to it");
    s.p.mask.window = 3; /* its one row sees keys 4, 5, 6 */
    appends(&s);
    assert_token(&s, 1, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_tokens_are_the_last_keys_of_their_sequence),
        cmocka_unit_test(explicit_slots_override_the_table),
        cmocka_unit_test(padding_with_slot_minus_one_needs_no_key),
        cmocka_unit_test(nothing_given_is_nothing_stored),
        cmocka_unit_test(a_second_append_writes_the_same_bytes),
        cmocka_unit_test(nan_payloads_pass_when_types_agree),
        cmocka_unit_test(another_type_is_rounded_once),
        cmocka_unit_test(rotated_keys_are_rounded_twice_and_values_are_not_rotated),
        cmocka_unit_test(without_positions_a_key_is_rotated_by_its_index),
        cmocka_unit_test(nodes_of_a_tree_are_rotated_by_their_depth),
        cmocka_unit_test(a_ring_takes_a_token_where_no_row_sees_the_old_key),
        cmocka_unit_test(no_slot_lies_over_a_key_that_is_seen),
        cmocka_unit_test(a_page_that_another_sequence_needs_takes_no_token),
        cmocka_unit_test(what_cannot_be_appended_is_refused_before_the_first_byte),
    };
    return cmocka_run_group_tests_name("ora_append", tests, NULL, NULL);
}
