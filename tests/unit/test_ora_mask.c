/* test_ora_mask.c: which keys a row sees. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/support/scene.h"

/* ---- Bounds ---- */

static void b025_the_causal_edge_is_at_the_bottom_right(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {3}, {128}},
               SCENE_POSITIONS);
    ora_result r = scene_attend(&s.p);
    for (int i = 0; i < 3; i++)
        assert_row(&r, i, 62.5 + i * 0.5, log(126 + i));
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_window_counts_the_rows_own_key(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               SCENE_POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW;
    s.p.mask.window = 3;
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 2, log(3)); /* keys 1..3 */
    assert_row(&r, 1, 3, log(3)); /* keys 2..4 */
    ora_result_fini(&r);
    s.p.mask.kinds = ORA_MASK_WINDOW; /* with full: bounds the lower side alone */
    r = scene_attend(&s.p);
    assert_row(&r, 0, 2.5, log(4)); /* keys 1..4 */
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_chunk_is_the_rows_own_aligned_one(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               SCENE_POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK;
    s.p.mask.chunk = 4;
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 1.5, log(4)); /* a = 3: 0..3 */
    assert_row(&r, 1, 4, 0);        /* a = 4: 4 */
    ora_result_fini(&r);
    scene_close(&s);
}

static void window_and_chunk_must_both_hold(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {14}, {14}},
               SCENE_POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK | ORA_MASK_WINDOW;
    s.p.mask.chunk = 8;
    s.p.mask.window = 3;
    ora_result r = scene_attend(&s.p);
    for (int a = 0; a < 14; a++) {
        int low = a / 8 * 8 > a - 2 ? a / 8 * 8 : a - 2;
        low = low < 0 ? 0 : low;
        assert_row(&r, a, (low + a) / 2.0, log(a - low + 1));
    }
    ora_result_fini(&r);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK;
    r = scene_attend(&s.p);
    assert_row(&r, 13, 10.5, log(6));
    assert_row(&r, 7, 3.5, log(8));
    assert_row(&r, 8, 8, 0);
    ora_result_fini(&r);
    scene_close(&s);
}

static void bounds_per_row_replace_causal_window_and_chunk(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {6}, {10}},
               SCENE_POSITIONS);
    const int32_t start[] = {0, 2, 5, 10, -7, 3}, end[] = {9, 4, 4, 99, -1, 99};
    s.p.mask =
        (ora_mask){.kinds = ORA_MASK_VARIABLE | ORA_MASK_CAUSAL | ORA_MASK_WINDOW | ORA_MASK_CHUNK,
                   .window = 1,
                   .chunk = 1,
                   .start = start,
                   .end = end};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 4.5, log(10));
    assert_row(&r, 1, 3, log(3));
    assert_row(&r, 2, 0, -INFINITY); /* start > end */
    assert_row(&r, 3, 0, -INFINITY); /* start ≥ kv_len */
    assert_row(&r, 4, 0, -INFINITY); /* end < 0 */
    assert_row(&r, 5, 6, log(7));    /* clamped */
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_window_or_chunk_of_all_keys_is_none(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    ora_problem p = s.p;
    p.mask.kinds |= ORA_MASK_WINDOW;
    p.mask.window = 50;
    assert_problems_same(&s.p, &p, 0);
    p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK;
    p.mask.chunk = 50;
    assert_problems_same(&s.p, &p, 0);
    scene_close(&s);
}

/* Causal with a window, written in every other kind of mask. */
static void every_kind_of_mask_can_say_causal(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 9};
    int32_t start[22], end[22], depth[22];
    uint8_t bytes[17 * 50 + 33 + 16], bits[17 * 50 / 8 + 1 + 5 + 2] = {0};
    uint32_t words[22];
    int64_t byte = 0, bit_first = 0;
    int t = 0;
    for (int b = 0; b < 3; b++) {
        for (int i = 0; i < s.q_len[b]; i++, t++) {
            int a = s.kv_len[b] - s.q_len[b] + i;
            start[t] = a - 8;
            end[t] = a;
            depth[t] = i;
            words[t] = (2u << i) - 1;
            for (int j = 0; j < s.kv_len[b]; j++, byte++) {
                bytes[byte] = j <= a ? 0x80 : 0; /* any bit is yes */
                int64_t n = (int64_t)i * s.kv_len[b] + j;
                bits[bit_first + n / 8] |= (uint8_t)((j <= a) << n % 8);
            }
        }
        bit_first += ((int64_t)s.q_len[b] * s.kv_len[b] + 7) / 8;
    }
    assert_int_equal(bit_first, sizeof bits);
    ora_problem p = s.p;
    p.mask = (ora_mask){.kinds = ORA_MASK_VARIABLE, .start = start, .end = end};
    assert_problems_same(&s.p, &p, 0);
    p.mask = (ora_mask){.kinds = ORA_MASK_BYTES | ORA_MASK_WINDOW, .window = 9, .custom = bytes};
    assert_problems_same(&s.p, &p, 0);
    p.mask = (ora_mask){.kinds = ORA_MASK_BITS | ORA_MASK_WINDOW, .window = 9, .custom = bits};
    assert_problems_same(&s.p, &p, 0);
    /* Drafts obey only their bits, so a window cuts a tree's past alone: none is cut here. */
    s.p.mask.window = p.mask.window = 64;
    p.mask = (ora_mask){.kinds = ORA_MASK_TREE | ORA_MASK_WINDOW,
                        .window = 64,
                        .tree_words = words,
                        .tree_width = 1,
                        .tree_depth = depth};
    assert_problems_same(&s.p, &p, 0);
    scene_close(&s);
}

static void b022_a_window_of_3_is_not_one_of_4(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {10}},
               SCENE_POSITIONS);
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 3};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 8, log(3));
    ora_result_fini(&r);
    scene_close(&s);
}

/* Rows first .. kv_len-1 in one call: each is the mean of its last min(W, t+1) positions. */
static void assert_windows(scene *s, int32_t first, int32_t kv_len, int32_t window)
{
    s->q_len[0] = kv_len - first;
    s->kv_len[0] = kv_len;
    s->p.mask.window = window;
    ora_result r = scene_attend(&s->p);
    for (int32_t t = first; t < kv_len; t++) {
        int32_t n = window < t + 1 ? window : t + 1;
        assert_row(&r, t - first, t - (n - 1) / 2.0, log(n));
    }
    ora_result_fini(&r);
}

static void b023_prefill_and_decode_agree_about_a_window(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {10}, {10}},
               SCENE_POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW;
    const int32_t windows[] = {1, 2, 3, 4, 16};
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        assert_windows(&s, 0, 10, windows[w]);
        assert_windows(&s, 0, 6, windows[w]);
        for (int32_t t = 0; t < 10; t++)
            assert_windows(&s, t, t + 1, windows[w]);
    }
    scene_close(&s);
}

static void b029_a_chunk_ends_where_the_keys_do(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {14}},
               SCENE_POSITIONS);
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK, .chunk = 8};
    const double want[][3] = {{14, 10.5, 6}, {8, 3.5, 8}, {9, 8, 1}};
    for (int n = 0; n < 3; n++) {
        s.kv_len[0] = (int32_t)want[n][0];
        ora_result r = scene_attend(&s.p);
        assert_row(&r, 0, want[n][1], log(want[n][2]));
        ora_result_fini(&r);
    }
    scene_close(&s);
}

/* Not causal, so that what it replaces shows; bit and byte forms agree. */
static void a_custom_mask_replaces_causal_and_chunk_but_not_the_window(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               SCENE_POSITIONS);
    const uint8_t bytes[] = {1, 0, 1, 0, 1, 1, 1, 0, 0, 0}, bits[] = {0x75, 0};
    for (int form = 0; form < 2; form++) {
        uint32_t kind = form ? ORA_MASK_BITS : ORA_MASK_BYTES;
        s.p.mask = (ora_mask){.kinds = kind | ORA_MASK_CAUSAL | ORA_MASK_CHUNK,
                              .chunk = 4,
                              .custom = form ? bits : bytes};
        ora_result r = scene_attend(&s.p);
        assert_row(&r, 0, 2, log(3));   /* 0, 2, 4 although a = 3 */
        assert_row(&r, 1, 0.5, log(2)); /* 0, 1 although the chunk is 4.. */
        ora_result_fini(&r);
        s.p.mask.kinds |= ORA_MASK_WINDOW;
        s.p.mask.window = 2;
        r = scene_attend(&s.p);
        assert_row(&r, 0, 3, log(2)); /* 2, 4 */
        assert_row(&r, 1, 0, -INFINITY);
        ora_result_fini(&r);
    }
    scene_close(&s);
}

static void padding_rows_read_nothing_and_change_nothing(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 2, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {5, 9}},
               SCENE_RANDOM);
    ora_result real = scene_attend(&s.p);
    char q[4 * 64];
    memset(q, 0xFF, sizeof q);
    memcpy(q, s.q, 128);
    s.p.q.base = q;
    s.p.n_seqs = 4;
    s.q_len[2] = s.q_len[3] = 1;
    const int64_t first[] = {0, 1, INT64_MAX / 8, INT64_MAX / 8};
    s.p.block_first = first;
    ora_result r = scene_attend(&s.p);
    assert_memory_equal(r.out, real.out, 4 * 8 * sizeof(double));
    assert_memory_equal(r.lse, real.lse, 4 * sizeof(double));
    for (int row = 4; row < 8; row++)
        assert_row(&r, row, 0, -INFINITY);
    ora_result_fini(&r);
    ora_result_fini(&real);
    scene_close(&s);
}

/* §10: each token of a group as a row of its own. */
static void the_expanded_form_of_a_group_is_the_grouped_one(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 4, 2, 16, 8, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {4}, {19}},
               SCENE_RANDOM);
    const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0625f};
    const int32_t one[] = {1, 1, 1, 1}, kv_len[] = {16, 17, 18, 19};
    const int64_t same[4] = {0};
    s.p.rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = 16, .theta = 10000};
    s.p.bias.alibi_slopes = slopes;
    const uint32_t kinds[] = {ORA_MASK_CAUSAL, ORA_MASK_CAUSAL | ORA_MASK_WINDOW,
                              ORA_MASK_CAUSAL | ORA_MASK_CHUNK};
    for (int k = 0; k < 3; k++) {
        s.p.mask = (ora_mask){.kinds = kinds[k], .window = 5, .chunk = 8};
        ora_problem p = s.p;
        p.n_seqs = 4;
        p.q_len = one;
        p.kv_len = kv_len;
        p.block_first = same;
        assert_problems_same(&s.p, &p, 0);
    }
    scene_close(&s);
}

/* ---- Trees ---- */

static void contexts_beside_a_tree_are_causal(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    /* Words of sequences 1 and 2 alone. */
    const uint32_t words[] = {1, 1, 3, 7, 15};
    ora_problem p = s.p;
    p.n_contexts = 1;
    p.mask = (ora_mask){.kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1};
    assert_problems_same(&s.p, &p, 0);
    scene_close(&s);
}

static void chain_words_of_wide_groups_are_causal(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {40}, {60}},
               SCENE_RANDOM);
    uint32_t words[40][2];
    for (int i = 0; i < 40; i++) {
        words[i][0] = i < 31 ? (2u << i) - 1 : 0xFFFFFFFFu;
        words[i][1] = i < 32 ? 0 : (2u << (i - 32)) - 1;
    }
    assert_int_equal(words[31][1], 0);
    assert_int_equal(words[32][1], 1);
    assert_int_equal(words[39][1], 0xFF);
    ora_problem p = s.p;
    p.mask = (ora_mask){.kinds = ORA_MASK_TREE, .tree_words = words[0], .tree_width = 2};
    assert_problems_same(&s.p, &p, 0);
    s.q_len[0] = 32; /* as wide as one word */
    uint32_t narrow[32];
    for (int i = 0; i < 32; i++)
        narrow[i] = words[i][0];
    p.mask.tree_words = narrow;
    p.mask.tree_width = 1;
    assert_problems_same(&s.p, &p, 0);
    scene_close(&s);
}

/* Root 0, its children 1 and 2, 3 below 1; past 5. */
static void a_tree_shows_a_node_its_ancestors_and_the_past(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {4}, {9}},
               SCENE_POSITIONS);
    const uint32_t words[] = {1, 3, 5, 11};
    const int32_t depth[] = {0, 1, 1, 2};
    s.p.mask = (ora_mask){
        .kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1, .tree_depth = depth};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 15 / 6.0, log(6));
    assert_row(&r, 1, (10 + 5 + 6) / 7.0, log(7));
    assert_row(&r, 2, (10 + 5 + 7) / 7.0, log(7));
    assert_row(&r, 3, (10 + 5 + 6 + 8) / 8.0, log(8));
    ora_result_fini(&r);
    /* The window ends at the node's depth: past + depth - 2 and above, of the past alone. */
    s.p.mask.kinds |= ORA_MASK_WINDOW;
    s.p.mask.window = 3;
    r = scene_attend(&s.p);
    assert_row(&r, 0, (3 + 4 + 5) / 3.0, log(3));
    assert_row(&r, 1, (4 + 5 + 6) / 3.0, log(3));
    assert_row(&r, 2, (4 + 5 + 7) / 3.0, log(3));
    assert_row(&r, 3, (5 + 6 + 8) / 3.0, log(3));
    ora_result_fini(&r);
    scene_close(&s);
}

/* Nodes of a tree as its words and depths, parents before children. */
static void make_tree(const int *parents, int n, uint32_t *words, int32_t *depth)
{
    for (int i = 0; i < n; i++) {
        words[i] = 1u << i | (parents[i] < 0 ? 0 : words[parents[i]]);
        depth[i] = parents[i] < 0 ? 0 : depth[parents[i]] + 1;
    }
}

static void b080_siblings_of_a_tree_do_not_see_each_other(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {8}},
               SCENE_POSITIONS);
    uint32_t words[5];
    int32_t depth[5];
    make_tree((const int[]){-1, 0, 0, 1, 2}, 5, words, depth);
    s.p.mask = (ora_mask){.kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1};
    ora_result r = scene_attend(&s.p);
    const double want[] = {1.5, 2, 2.2, 16 / 6.0, 3}, n_seen[] = {4, 5, 5, 6, 6};
    for (int i = 0; i < 5; i++)
        assert_row(&r, i, want[i], log(n_seen[i]));
    ora_result_fini(&r);
    scene_close(&s);
}

/* Each path from the root is a chain: its keys, rotated alike, lie one behind the other. */
static void b082_a_trees_paths_are_chains(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 8, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {8}},
               SCENE_RANDOM);
    uint32_t words[5];
    int32_t depth[5];
    make_tree((const int[]){-1, 0, 0, 2, 1}, 5, words, depth);
    for (int i = 0; i < 5; i++)
        assert_int_equal(3 + depth[i], ((const int[]){3, 4, 4, 5, 5})[i]);
    s.p.mask = (ora_mask){
        .kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1, .tree_depth = depth};
    s.p.rope = (ora_rope){.pairing = ATTND_ROPE_GPTJ, .dim = 8, .theta = 10000};
    ora_result tree = scene_attend(&s.p);
    const int paths[][3] = {{0, 2, 3}, {0, 1, 4}};
    for (int k = 0; k < 2; k++) {
        char pool[2][6 * 32], q[3 * 32];
        for (int j = 0; j < 6; j++)
            for (int plane = 0; plane < 2; plane++)
                memcpy(pool[plane] + j * 32,
                       scene_key(&s, 0, j < 3 ? j : 3 + paths[k][j - 3], 0, plane), 32);
        for (int i = 0; i < 3; i++)
            memcpy(q + i * 32, s.q + paths[k][i] * 32, 32);
        const int32_t three = 3, six = 6;
        ora_problem p = s.p;
        p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL};
        p.q_len = &three;
        p.kv_len = &six;
        p.block_ids = NULL;
        p.q.base = q;
        p.kv = (ora_kv){
            .plane = {pool[0], pool[1]}, .token_stride = {32, 32}, .dtype = ATTND_DTYPE_F32};
        ora_result chain = scene_attend(&p);
        for (int i = 0; i < 3; i++) {
            assert_near(chain.lse[i], tree.lse[paths[k][i]], 1e-12);
            for (int d = 0; d < 8; d++)
                assert_near(chain.out[i * 8 + d], tree.out[paths[k][i] * 8 + d], 1e-12);
        }
        ora_result_fini(&chain);
    }
    ora_result_fini(&tree);
    scene_close(&s);
}

static void a_trees_chunk_bounds_the_past_by_depth(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {4}, {9}},
               SCENE_POSITIONS);
    uint32_t words[4];
    int32_t depth[4];
    make_tree((const int[]){-1, 0, 0, 1}, 4, words, depth);
    s.p.mask = (ora_mask){.kinds = ORA_MASK_TREE | ORA_MASK_CHUNK,
                          .chunk = 3,
                          .tree_words = words,
                          .tree_width = 1,
                          .tree_depth = depth};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, (3 + 4 + 5) / 3.0, log(3)); /* chunk of 5: 3.. */
    assert_row(&r, 1, (5 + 6) / 2.0, log(2));     /* chunk of 6: no past key */
    assert_row(&r, 2, (5 + 7) / 2.0, log(2));
    assert_row(&r, 3, (5 + 6 + 8) / 3.0, log(3));
    ora_result_fini(&r);
    scene_close(&s);
}

/* Two groups of 3 and 2 rows: dense, padded to 40 rows of 2 words, ragged, and one static tree. */
static void storage_forms_of_a_tree_agree(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 2, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {3, 2}, {10, 7}},
               SCENE_RANDOM);
    const uint32_t ragged[] = {1, 3, 5, 1, 2};
    uint32_t dense[2][3] = {{1, 3, 5}, {1, 2, 0}}, padded[2][40][2] = {{{0}}};
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 3; i++)
            padded[b][i][0] = dense[b][i];
    const int64_t dense_first[] = {0, 3}, padded_first[] = {0, 80}, one_first[] = {0, 0};
    s.p.mask = (ora_mask){.kinds = ORA_MASK_TREE, .tree_words = ragged, .tree_width = 1};
    ora_problem p = s.p;
    p.mask.tree_words = dense[0];
    p.mask.tree_first = dense_first;
    assert_problems_same(&s.p, &p, 0);
    p.mask.tree_words = padded[0][0];
    p.mask.tree_first = padded_first;
    p.mask.tree_width = 2;
    assert_problems_same(&s.p, &p, 0);
    dense[1][1] = 3; /* what the static tree says */
    p.mask.tree_words = dense[0];
    p.mask.tree_first = dense_first;
    p.mask.tree_width = 1;
    ora_problem one = p;
    one.mask.tree_first = one_first;
    assert_problems_same(&p, &one, 0);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b025_the_causal_edge_is_at_the_bottom_right),
        cmocka_unit_test(a_window_counts_the_rows_own_key),
        cmocka_unit_test(a_chunk_is_the_rows_own_aligned_one),
        cmocka_unit_test(window_and_chunk_must_both_hold),
        cmocka_unit_test(bounds_per_row_replace_causal_window_and_chunk),
        cmocka_unit_test(a_window_or_chunk_of_all_keys_is_none),
        cmocka_unit_test(every_kind_of_mask_can_say_causal),
        cmocka_unit_test(contexts_beside_a_tree_are_causal),
        cmocka_unit_test(chain_words_of_wide_groups_are_causal),
        cmocka_unit_test(a_tree_shows_a_node_its_ancestors_and_the_past),
        cmocka_unit_test(b022_a_window_of_3_is_not_one_of_4),
        cmocka_unit_test(b023_prefill_and_decode_agree_about_a_window),
        cmocka_unit_test(b029_a_chunk_ends_where_the_keys_do),
        cmocka_unit_test(a_custom_mask_replaces_causal_and_chunk_but_not_the_window),
        cmocka_unit_test(padding_rows_read_nothing_and_change_nothing),
        cmocka_unit_test(the_expanded_form_of_a_group_is_the_grouped_one),
        cmocka_unit_test(b080_siblings_of_a_tree_do_not_see_each_other),
        cmocka_unit_test(b082_a_trees_paths_are_chains),
        cmocka_unit_test(a_trees_chunk_bounds_the_past_by_depth),
        cmocka_unit_test(storage_forms_of_a_tree_agree),
    };
    return cmocka_run_group_tests_name("ora_mask", tests, NULL, NULL);
}
