/* test_ora_check.c: what is no problem is refused, with the field's name. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "tests/support/scene.h"

static void what_is_no_problem_is_refused(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    ora_problem p;
#define WITH(change, reason, text)                                                                 \
    p = s.p;                                                                                       \
    change;                                                                                        \
    assert_refused(&p, ATTND_##reason, text)
    WITH(p.n_heads = 7, BAD_GEOMETRY, "n_heads = 7: a positive multiple of n_kv_heads = 2");
    WITH(p.n_kv_heads = 0, BAD_GEOMETRY, "n_heads = 6: a positive multiple of n_kv_heads = 0");
    WITH(p.head_dim = 0, BAD_GEOMETRY, "head_dim = 0, head_dim_v = 40: at least 1");
    WITH(p.dtype = ATTND_DTYPE_E4M3, BAD_GEOMETRY, "dtype = e4m3: f32, f16 or bf16");
    WITH(p.kv.dtype = ATTND_DTYPE_NVFP4, BAD_QUANT,
         "kv.dtype = nvfp4: f32, f16, bf16, e4m3, e5m2 or i8");
    WITH(p.q.dtype = ATTND_DTYPE_I32, BAD_GEOMETRY, "q.dtype = i32: f32, f16, bf16 or e4m3");
    WITH(p.kv.block_size = 0, BAD_GEOMETRY, "kv.block_size = 0: at least 1 with tables");
    WITH(p.rope = ((ora_rope){.pairing = ATTND_ROPE_GPTJ, .dim = 7, .theta = 1e4}), BAD_ROPE,
         "rope.dim = 7: even, 2 .. head_dim = 24");
    WITH(p.rope = ((ora_rope){.pairing = ATTND_ROPE_GPTJ, .dim = 0, .theta = 1e4}), BAD_ROPE,
         "rope.dim = 0: even, 2 .. head_dim = 24");
    WITH(p.rope = ((ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = 26, .theta = 1e4}), BAD_ROPE,
         "rope.dim = 26: even, 2 .. head_dim = 24");
    WITH(p.rope = ((ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = 24, .theta = 0}), BAD_ROPE,
         "rope.theta = 0: above 0");
    WITH(p.mask.kinds = ORA_MASK_WINDOW, BAD_MASK, "mask.window = 0: at least 1");
    WITH(p.mask.kinds = ORA_MASK_CHUNK, BAD_MASK, "mask.chunk = 0: at least 1");
    WITH(p.mask.kinds = ORA_MASK_VARIABLE, BAD_MASK, "mask.start = none: both ends are needed");
    WITH((p.mask.kinds = ORA_MASK_VARIABLE, p.mask.start = s.q_len), BAD_MASK,
         "mask.end = none: both ends are needed");
    WITH(p.mask.kinds = ORA_MASK_BITS, BAD_MASK, "mask.custom = none: a custom mask needs it");
    WITH(p.mask.kinds = ORA_MASK_TREE, BAD_MASK, "mask.tree_words = none: a tree needs them");
    const uint32_t words[1] = {0};
    WITH((p.mask.kinds = ORA_MASK_TREE, p.mask.tree_words = words), BAD_MASK,
         "mask.tree_width = 0: q_len[0] = 17 needs 1");
#undef WITH
    s.q_len[1] = -1;
    assert_refused(&s.p, ATTND_BAD_LENGTH, "q_len[1] = -1: at least 0");
    s.q_len[1] = 1;
    s.kv_len[2] = -5;
    assert_refused(&s.p, ATTND_BAD_LENGTH, "kv_len[2] = -5: at least 0");
    s.kv_len[2] = 4;
    s.block_ids[7 + 4] = -1; /* block 4 of sequence 1 */
    assert_refused(&s.p, ATTND_BAD_BLOCK, "block_ids[1][4] = -1: key 32 needs one of 0..256");
    s.block_ids[7 + 4] = SCENE_BLOCKS;
    assert_refused(&s.p, ATTND_BAD_BLOCK, "block_ids[1][4] = 257: key 32 needs one of 0..256");
    scene_close(&s);
}

static void a_mask_that_is_none_is_refused(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2, 3}, {5, 6}},
               SCENE_RANDOM);
    const uint32_t words[3] = {1, 3, 1 << 3 | 7}, wide[3][2] = {{1, 0}, {3, 0}, {7, 1u << 31}};
    const uint8_t custom[28] = {0};
    const ora_problem good = s.p;
    ora_problem p;
#define WITH(change, text)                                                                         \
    p = good;                                                                                      \
    change;                                                                                        \
    assert_refused(&p, ATTND_BAD_MASK, text)
    WITH(p.mask.kinds = 1u << 7, "mask.kinds = 0x80: bits up to 0x40");
    WITH((p.mask.kinds = ORA_MASK_BYTES | ORA_MASK_BITS, p.mask.custom = custom),
         "mask.kinds = 0x30: bytes or bits, not both");
    p = good;
    p.n_contexts = 1;
    p.mask = (ora_mask){.kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1};
    assert_refused(&p, ATTND_BAD_MASK,
                   "mask.tree_words = bit 3 in row 2 of sequence 1: it has 3 rows");
    p.mask.tree_words = wide[0];
    p.mask.tree_width = 2;
    assert_refused(&p, ATTND_BAD_MASK,
                   "mask.tree_words = bit 63 in row 2 of sequence 1: it has 3 rows");
#undef WITH
    scene_close(&s);
}

static void rows_of_a_cross_layer_have_no_key_index(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               SCENE_RANDOM);
    const float numbers[25] = {0};
    const uint32_t words[] = {1, 3},
                   kinds[] = {ORA_MASK_CAUSAL, ORA_MASK_WINDOW, ORA_MASK_CHUNK, ORA_MASK_TREE};
    s.p.kind = ATTND_LAYER_CROSS;
    for (int n = 0; n < 4; n++) {
        char text[96];
        s.p.mask = (ora_mask){
            .kinds = kinds[n], .window = 3, .chunk = 2, .tree_words = words, .tree_width = 1};
        snprintf(text, sizeof text,
                 "mask.kinds = %#x: rows of a cross layer have no key index for %#x", kinds[n],
                 kinds[n]);
        assert_refused(&s.p, ATTND_BAD_COMBINATION, text);
    }
    s.p.mask.kinds = 0;
    s.p.bias.alibi_slopes = numbers;
    assert_refused(&s.p, ATTND_BAD_COMBINATION,
                   "bias.alibi_slopes = given: rows of a cross layer have no key index");
    s.p.bias = (ora_bias){.relative = numbers, .relative_size = 5};
    assert_refused(&s.p, ATTND_BAD_COMBINATION,
                   "bias.relative = given: rows of a cross layer have no key index");
    scene_close(&s);
}

static void an_encoders_keys_are_its_rows(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {5}},
               SCENE_RANDOM);
    ora_problem p = s.p;
    p.kind = ATTND_LAYER_ENCODER;
    assert_problems_same(&s.p, &p, 0);
    s.kv_len[0] = 4;
    assert_refused(&p, ATTND_BAD_LENGTH, "kv_len[0] = 4: an encoder's is q_len = 5");
    scene_close(&s);
}

static void a_bias_that_is_none_is_refused(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {5}},
               SCENE_RANDOM);
    const float table[32] = {0};
    const ora_bias all = {.relative = table, .relative_size = 32, .relative_max_distance = 128};
#define WITH(change, text)                                                                         \
    s.p.bias = all;                                                                                \
    change;                                                                                        \
    assert_refused(&s.p, ATTND_BAD_GEOMETRY, text)
    WITH(s.p.bias.softcap = -1, "bias.softcap = -1: 0 or above");
    WITH(s.p.bias.softcap = NAN, "bias.softcap = nan: 0 or above");
    WITH(s.p.bias.relative_size = 0, "bias.relative_size = 0: at least 1");
    WITH(s.p.bias.relative_size = 1, "bias.relative_size = 1: at least 2 buckets");
    WITH((s.p.bias.relative_size = 31, s.p.bias.relative_bidirectional = true),
         "bias.relative_size = 31: even and at least 4 with two sides");
    WITH(s.p.bias.relative_max_distance = 16,
         "bias.relative_max_distance = 16: above the 16 that have buckets of their own");
#undef WITH
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_problem_is_refused),
        cmocka_unit_test(a_mask_that_is_none_is_refused),
        cmocka_unit_test(rows_of_a_cross_layer_have_no_key_index),
        cmocka_unit_test(an_encoders_keys_are_its_rows),
        cmocka_unit_test(a_bias_that_is_none_is_refused),
    };
    return cmocka_run_group_tests_name("ora_check", tests, NULL, NULL);
}
