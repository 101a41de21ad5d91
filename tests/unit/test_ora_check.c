/* test_ora_check.c: what is no problem is refused, with the field's name. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_problem_is_refused),
    };
    return cmocka_run_group_tests_name("ora_check", tests, NULL, NULL);
}
