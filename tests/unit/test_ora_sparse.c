/* test_ora_sparse.c: keys chosen by blocks, tokens, pages, and out of a second pool. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/support/scene.h"

/* ---- Tokens (§16.3) ---- */

/* One row over kv keys of K=0, V=pos. */
static void open_row(scene *s, int32_t kv_len)
{
    scene_open(s,
               &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {kv_len}},
               SCENE_POSITIONS);
    s->p.mask.kinds = 0;
}

static void assert_topk(scene *s, const int32_t *entries, uint32_t width, double o, double lse)
{
    s->p.sparse.topk = entries;
    s->p.sparse.topk_width = width;
    ora_result r = scene_attend(&s->p);
    assert_row(&r, 0, o, lse);
    ora_result_fini(&r);
}

static void b085_lists_of_tokens_have_gaps_ends_and_doubles(void **state)
{
    scene s;
    open_row(&s, 5);
    const int32_t gaps[] = {4, -1, 0, -1}, doubles[] = {0, 0, 4, 4}, outside[] = {5}, two = 2;
    assert_topk(&s, gaps, 4, 2, log(2));
    assert_topk(&s, doubles, 4, 2, log(4));
    assert_topk(&s, outside, 1, 0, -INFINITY);
    s.p.sparse.topk_len = &two;
    assert_topk(&s, gaps, 4, 4, 0);
    const int32_t none = 0, many = 99;
    s.p.sparse.topk_len = &none;
    assert_topk(&s, gaps, 4, 0, -INFINITY);
    s.p.sparse.topk_len = &many;
    assert_topk(&s, gaps, 4, 2, log(2));
    scene_close(&s);
}

/* Every row's list is all of its keys, shuffled; causal by the list's own rule or by the mask. */
static void all_tokens_are_dense_attention(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    int32_t entries[22][50], slots[22][50];
    int t = 0, first_block = 0;
    for (int b = 0; b < 3; first_block += (s.kv_len[b++] + 7) / 8)
        for (int i = 0; i < s.q_len[b]; i++, t++)
            for (int n = 0; n < 50; n++) {
                int j = (n * 7 + t) % 50;
                entries[t][n] = j; /* beyond kv_len: ignored */
                int a = s.kv_len[b] - s.q_len[b] + i;
                slots[t][n] = j <= a ? s.block_ids[first_block + j / 8] * 8 + j % 8 : -1;
            }
    ora_problem p = s.p;
    p.sparse = (ora_sparse){.topk = entries[0], .topk_width = 50};
    assert_problems_same(&s.p, &p, 1e-12);
    p.mask.kinds = 0;
    p.sparse.topk_causal = true;
    assert_problems_same(&s.p, &p, 1e-12);
    p.sparse = (ora_sparse){.topk = slots[0], .topk_width = 50, .topk_is_slots = true};
    assert_problems_same(&s.p, &p, 1e-12);
    p.block_ids = NULL; /* slots need no table */
    assert_problems_same(&s.p, &p, 1e-12);
    s.p.mask.kinds = 0; /* nor is a causal rule added unasked */
    p = s.p;
    p.sparse = (ora_sparse){.topk = entries[0], .topk_width = 50};
    assert_problems_same(&s.p, &p, 1e-12);
    scene_close(&s);
}

static void tokens_obey_window_and_bias_by_their_index(void **state)
{
    scene s;
    open_row(&s, 9);
    const int32_t entries[] = {8, 2, 6, 7};
    const float slope = 0.5f;
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 3};
    s.p.bias.alibi_slopes = &slope;
    double w6 = exp(-1), w7 = exp(-0.5), l = 1 + w6 + w7;
    assert_topk(&s, entries, 4, (8 + 6 * w6 + 7 * w7) / l, log(l));
    scene_close(&s);
}

static void slots_outside_the_pool_are_ignored(void **state)
{
    scene s;
    open_row(&s, 5);
    const int32_t slots[] = {-1, SCENE_BLOCKS * 4, INT32_MIN, s.block_ids[1] * 4, INT32_MAX};
    s.p.sparse.topk_is_slots = true;
    assert_topk(&s, slots, 5, 4, 0);
    scene_close(&s);
}

/* ---- Blocks (§16.2) ---- */

static void b086_the_last_block_has_the_keys_it_has(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {70}},
               SCENE_POSITIONS);
    for (int32_t j = 0; j < 70; j++)
        for (int d = 0; d < 8; d++)
            ((float *)scene_key(&s, 0, j, 0, 1))[d] = 1;
    const int32_t indptr[] = {0, 2}, indices[] = {0, 1};
    s.p.sparse = (ora_sparse){.block_q = 1,
                              .block_kv = 64,
                              .n_heads = 1,
                              .n_q_blocks = 1,
                              .indptr = indptr,
                              .indices = indices};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 1, log(70));
    ora_result_fini(&r);
    scene_close(&s);
}

/* Blocks of SCENE_MIXED: 5 rows × 8 keys; selected at random, for each pattern head apart. */
enum { BLOCK_Q = 5, BLOCK_KV = 8, N_Q = 4, N_KV = 7 };

typedef struct pattern {
    bool on[3][2][N_Q][N_KV];
    int32_t indptr[3][2][N_Q + 1], indices[3 * 2 * N_Q * N_KV];
    uint32_t bits[3][2][N_Q][1];
} pattern;

/* n_heads 1: the rows of head 0 alone, packed. */
static void make_pattern(pattern *x, const scene *s, uint32_t n_heads, int percent,
                         ora_sparse *lists, ora_sparse *bits)
{
    int32_t n = 0;
    int32_t *indptr = x->indptr[0][0];
    uint32_t *words = x->bits[0][0][0];
    memset(x, 0, sizeof *x);
    for (uint32_t b = 0; b < 3; b++)
        for (uint32_t head = 0; head < n_heads; head++, indptr++) {
            for (int q = 0; q < N_Q; q++, words++) {
                *indptr++ = n;
                for (int k = 0; k < (s->kv_len[b] + BLOCK_KV - 1) / BLOCK_KV; k++) {
                    uint64_t i = ((b * 2 + head) * N_Q + (uint64_t)q) * N_KV + (uint64_t)k;
                    bool on = ora_fnv1a64((char[]){(char)(i + 1), 0}) / 7 % 100 < (uint64_t)percent;
                    x->on[b][head][q][k] = on;
                    if (on)
                        x->indices[n++] = k;
                    *words |= (uint32_t)on << k;
                }
            }
            *indptr = n;
        }
    *lists = (ora_sparse){.block_q = BLOCK_Q,
                          .block_kv = BLOCK_KV,
                          .n_heads = n_heads,
                          .n_q_blocks = N_Q,
                          .indptr = x->indptr[0][0],
                          .indices = x->indices};
    *bits = *lists;
    bits->indptr = bits->indices = NULL;
    bits->block_bits = x->bits[0][0][0];
    bits->block_words = 1;
}

static void all_blocks_are_dense_attention(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    static pattern x;
    for (uint32_t n_heads = 1; n_heads <= 2; n_heads++) {
        ora_problem lists = s.p, bits = s.p;
        make_pattern(&x, &s, n_heads, 100, &lists.sparse, &bits.sparse);
        assert_problems_same(&s.p, &lists, 0);
        assert_problems_same(&s.p, &bits, 0);
    }
    scene_close(&s);
}

/* The other witness: the same pattern as a byte for each pair, head by head. */
static void blocks_are_a_mask_by_the_byte(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    static pattern x;
    static uint8_t bytes[17 * 50 + 33 + 16];
    for (uint32_t n_heads = 1; n_heads <= 2; n_heads++) {
        ora_problem lists = s.p, bits = s.p;
        make_pattern(&x, &s, n_heads, 60, &lists.sparse, &bits.sparse);
        assert_problems_same(&lists, &bits, 0);
        ora_result sparse = scene_attend(&lists);
        for (uint32_t g = 0; g < 2; g++) {
            ora_problem masked = s.p;
            uint8_t *byte = bytes;
            for (int b = 0; b < 3; b++)
                for (int i = 0; i < s.q_len[b]; i++)
                    for (int j = 0; j < s.kv_len[b]; j++)
                        *byte++ = j <= s.kv_len[b] - s.q_len[b] + i &&
                                  x.on[b][n_heads > 1 ? g : 0][i / BLOCK_Q][j / BLOCK_KV];
            masked.mask = (ora_mask){.kinds = ORA_MASK_BYTES, .custom = bytes};
            ora_result r = scene_attend(&masked);
            for (int line = 0; line < 22 * 6; line++)
                if (line % 6 / 3 == (int)g) {
                    assert_int_equal(sparse.n_visible[line], r.n_visible[line]);
                    assert_true(sparse.lse[line] == r.lse[line]);
                    assert_memory_equal(sparse.out + line * 40, r.out + line * 40, 320);
                }
            ora_result_fini(&r);
        }
        ora_result dense = scene_attend(&s.p);
        int n_cut = 0;
        for (int line = 0; line < 22 * 6; line++)
            n_cut += sparse.n_visible[line] < dense.n_visible[line];
        assert_true(n_cut > 60);
        ora_result_fini(&dense);
        ora_result_fini(&sparse);
    }
    scene_close(&s);
}

static void keys_that_are_not_valid_are_not_there(void **state)
{
    scene s;
    open_row(&s, 40);
    const uint32_t valid[] = {0x80000002u, 0xF1}; /* 1, 31, 32, 36, 37, 38, 39 */
    s.p.sparse = (ora_sparse){.valid_bits = valid, .valid_words = 2};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, (1 + 31 + 32 + 36 + 37 + 38 + 39) / 7.0, log(7));
    ora_result_fini(&r);
    const uint32_t blocks = 1 << 1 | 1 << 3; /* 10..19 and 30..39 */
    s.p.sparse.block_q = s.p.sparse.n_heads = s.p.sparse.n_q_blocks = s.p.sparse.block_words = 1;
    s.p.sparse.block_kv = 10;
    s.p.sparse.block_bits = &blocks;
    r = scene_attend(&s.p);
    assert_row(&r, 0, (31 + 32 + 36 + 37 + 38 + 39) / 6.0, log(6));
    ora_result_fini(&r);
    scene_close(&s);
}

/* 5 given keys in blocks of 2; block 1 is selected, 0 and 2 are their means. */
static void blocks_left_out_weigh_as_many_keys_as_they_have(void **state)
{
    float k[5] = {0}, v[5] = {0, 1, 2, 3, 4};
    const float q = 1, minus = -2;
    const double proxy_k[] = {0, NAN, 0}, proxy_v[] = {0.5, NAN, 4};
    const int32_t one = 1, five = 5;
    const uint32_t blocks = 1 << 1, valid = 0x1B; /* key 2 is not */
    ora_problem p = {.n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 1,
                     .head_dim_v = 1,
                     .sm_scale = 1,
                     .dtype = ATTND_DTYPE_F32,
                     .n_seqs = 1,
                     .q_len = &one,
                     .kv_len = &five,
                     .q = {&q, 4, 4, ATTND_DTYPE_F32},
                     .kv = {.plane = {k, v}, .token_stride = {4, 4}, .dtype = ATTND_DTYPE_F32},
                     .sparse = {.block_q = 1,
                                .block_kv = 2,
                                .n_heads = 1,
                                .n_q_blocks = 1,
                                .block_bits = &blocks,
                                .block_words = 1,
                                .proxy_k = proxy_k,
                                .proxy_v = proxy_v,
                                .n_kv_blocks = 3}};
    ora_result r = scene_attend(&p);
    assert_row(&r, 0, 2, log(5));
    assert_int_equal(r.n_visible[0], 4);
    ora_result_fini(&r);
    p.sparse.valid_bits = &valid; /* of no matter to the means */
    p.sparse.valid_words = 1;
    r = scene_attend(&p);
    assert_row(&r, 0, (2 * 0.5 + 3 + 4) / 4, log(4));
    ora_result_fini(&r);
    /* The means go through scale and cap like any key; ln n_c comes on top. */
    const double turned[] = {-2, NAN, 3};
    p.sparse.valid_bits = NULL;
    p.sparse.proxy_k = turned;
    p.sm_scale = 2;
    p.bias.softcap = 3;
    k[3] = minus;
    r = scene_attend(&p);
    double w0 = 2 * exp(3 * tanh(-4 / 3.0)), w2 = exp(3 * tanh(6 / 3.0)),
           w3 = exp(3 * tanh(-4 / 3.0)), l = w0 + 1 + w3 + w2;
    assert_row(&r, 0, (w0 * 0.5 + 2 + 3 * w3 + 4 * w2) / l, log(l));
    ora_result_fini(&r);
    /* They stand behind the keys: places 5 .. 7. */
    double m[2], lsum[2], o[2], m_all, l_all, o_all;
    for (int n = 0; n < 2; n++) {
        p.key_from = n ? 5 : 0;
        p.key_to = n ? 100 : 5;
        r = scene_attend(&p);
        assert_int_equal(r.n_visible[0], 2);
        m[n] = r.m[0];
        lsum[n] = r.l[0];
        o[n] = r.out[0];
        ora_result_fini(&r);
    }
    ora_merge(2, m, lsum, o, 1, &m_all, &l_all, &o_all);
    assert_near(m_all + log(l_all), log(l), 1e-12);
    /* A second pool stands behind them, from place 8 on. */
    float far = 50, zero = 0;
    const ora_kv second = {
        .plane = {&zero, &far}, .n_blocks = 1, .block_size = 1, .dtype = ATTND_DTYPE_F32};
    const int32_t slot = 0;
    p.sparse.second = &second;
    p.sparse.second_slots = &slot;
    p.sparse.second_width = 1;
    p.key_from = 8;
    r = scene_attend(&p);
    assert_row(&r, 0, 50, 0);
    ora_result_fini(&r);
}

/* ---- Pages of a head (§16.4) ---- */

static void each_head_has_pages_of_its_own(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 4, 2, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 2}, {9, 12}},
               SCENE_POSITIONS);
    const int32_t *ids = s.block_ids; /* sequence 0: 0 to 2, sequence 1: 3 to 5 */
    const int32_t pages[2][2][3] = {{{ids[2], ids[0], -1}, {ids[1], -1, -1}},
                                    {{-1, -1, -1}, {ids[5], ids[4], ids[3]}}};
    const int32_t keys[2][2] = {{1, 3}, {0, 12}};
    s.p.mask.kinds = 0;
    s.p.sparse = (ora_sparse){.pages = pages[0][0], .page_keys = keys[0], .pages_width = 3};
    ora_result r = scene_attend(&s.p);
    for (int h = 0; h < 2; h++) {
        assert_row(&r, h, 8, 0);          /* key 8, the first of page 2 */
        assert_row(&r, 2 + h, 5, log(3)); /* 4, 5, 6 */
        assert_row(&r, 4 + h, 0, -INFINITY);
        assert_row(&r, 6 + h, 5.5, log(12));
        assert_row(&r, 8 + h, 0, -INFINITY);
        assert_row(&r, 10 + h, 5.5, log(12));
    }
    ora_result_fini(&r);
    scene_close(&s);
}

static void pages_in_order_are_dense_attention(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    int32_t pages[3][2][7], keys[3][2];
    for (int b = 0, first = 0; b < 3; first += (s.kv_len[b++] + 7) / 8)
        for (int g = 0; g < 2; g++) {
            keys[b][g] = s.kv_len[b];
            for (int n = 0; n < 7; n++)
                pages[b][g][n] = s.block_ids[first + n];
        }
    s.p.mask.kinds = 0;
    ora_problem p = s.p;
    p.block_ids = NULL;
    p.sparse = (ora_sparse){.pages = pages[0][0], .page_keys = keys[0], .pages_width = 7};
    assert_problems_same(&s.p, &p, 0);
    scene_close(&s);
}

/* ---- A second pool (§16.5) ---- */

static void a_second_pool_joins_the_softmax(void **state)
{
    scene s;
    open_row(&s, 5);
    float k[2][4][8] = {{{0}}}, v[2][4][8];
    for (int n = 0; n < 8; n++)
        for (int d = 0; d < 8; d++)
            v[n / 4][n % 4][d] = (float)(100 + n);
    const ora_kv second = {.plane = {k, v},
                           .block_stride = sizeof k[0],
                           .token_stride = {32, 32},
                           .n_blocks = 2,
                           .block_size = 4,
                           .dtype = ATTND_DTYPE_F32};
    const int32_t slots[] = {6, -1, 0, 8, 6}, entries[] = {1, 4}, two = 2;
    s.p.sparse = (ora_sparse){.second = &second, .second_slots = slots, .second_width = 5};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, (0 + 1 + 2 + 3 + 4 + 106 + 100 + 106) / 8.0, log(8));
    ora_result_fini(&r);
    s.p.sparse.topk = entries;
    s.p.sparse.topk_width = 2;
    r = scene_attend(&s.p);
    assert_row(&r, 0, (1 + 4 + 106 + 100 + 106) / 5.0, log(5));
    ora_result_fini(&r);
    s.p.sparse.second_len = &two;
    const float sink = 0;
    s.p.bias.sinks = &sink;
    r = scene_attend(&s.p);
    assert_row(&r, 0, (1 + 4 + 106) / 4.0, log(3));
    ora_result_fini(&r);
    /* Places: entries 0 and 1 of the list, then the second pool. */
    s.p.bias.sinks = NULL;
    s.p.key_from = 2;
    s.p.key_to = 100;
    r = scene_attend(&s.p);
    assert_row(&r, 0, 106, 0);
    ora_result_fini(&r);
    scene_close(&s);
}

/* Split the keys between two pools: as one. */
static void two_pools_are_as_one(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    int32_t slots[22][50], upper[22][50];
    int t = 0, first_block = 0;
    for (int b = 0; b < 3; first_block += (s.kv_len[b++] + 7) / 8)
        for (int i = 0; i < s.q_len[b]; i++, t++)
            for (int j = 0; j < 50; j++) {
                bool is_there = j <= s.kv_len[b] - s.q_len[b] + i;
                int32_t slot = is_there ? s.block_ids[first_block + j / 8] * 8 + j % 8 : -1;
                slots[t][j] = j % 3 ? slot : -1;
                upper[t][j] = j % 3 ? -1 : slot;
            }
    ora_problem p = s.p;
    p.mask.kinds = 0;
    p.sparse = (ora_sparse){.topk = slots[0],
                            .topk_width = 50,
                            .topk_is_slots = true,
                            .second = &s.p.kv,
                            .second_slots = upper[0],
                            .second_width = 50};
    assert_problems_same(&s.p, &p, 1e-12);
    scene_close(&s);
}

/* ---- Refusals ---- */

static void what_is_no_choice_is_refused(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    static pattern x;
    ora_sparse lists, bits;
    make_pattern(&x, &s, 1, 100, &lists, &bits);
    const int32_t entries[22 * 2] = {0}, keys[6] = {1, 2, 3, 4, 17, 6}, twice[] = {0, 0, 0};
    const int32_t falling[] = {0, 2, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    const int32_t beyond[] = {0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, seven = 7;
    const float slopes[6] = {0};
    const double means[1] = {0};
    const ora_problem good = s.p;
    ora_problem p;
#define WITH(change, reason, text)                                                                 \
    p = good;                                                                                      \
    change;                                                                                        \
    assert_refused(&p, ATTND_##reason, text)
    const ora_sparse slots = {.topk = entries, .topk_width = 2, .topk_is_slots = true},
                     pages = {.pages = entries, .page_keys = keys, .pages_width = 2},
                     second = {.second = &s.p.kv, .second_slots = entries, .second_width = 2};
    WITH(p.sparse = slots, BAD_COMBINATION,
         "sparse.topk_is_slots = given: its keys have no index for masks, blocks, bounds, beams or "
         "high pages");
    WITH(p.sparse = pages, BAD_COMBINATION,
         "sparse.pages = given: its keys have no index for masks, blocks, bounds, beams or high "
         "pages");
    WITH((p.sparse = slots, p.mask.kinds = 0, p.sparse.topk_causal = true), BAD_COMBINATION,
         "sparse.topk_is_slots = given: its keys have no index for masks, blocks, bounds, beams or "
         "high pages");
    WITH((p.sparse = slots, p.mask.kinds = 0, p.bias.alibi_slopes = slopes), BAD_COMBINATION,
         "sparse.topk_is_slots = given: its keys have no index for a bias");
    WITH((p.sparse = second, p.bias.alibi_slopes = slopes), BAD_COMBINATION,
         "sparse.second = given: its keys have no index for a bias");
    WITH((p.sparse = second, p.sparse.second_slots = NULL), BAD_COMBINATION,
         "sparse.second = given: a pool, with second_slots");
    WITH((p.sparse = slots, p.mask.kinds = 0, p.block_ids = NULL, p.kv.block_size = 0),
         BAD_COMBINATION, "sparse.topk_is_slots = given: not with given keys");
    WITH((p.sparse = pages, p.mask.kinds = 0, p.sparse.topk = entries), BAD_COMBINATION,
         "sparse.pages = given: with page_keys, without topk");
    WITH((p.sparse = pages, p.mask.kinds = 0), BAD_LENGTH,
         "sparse.page_keys[2][0] = 17: what 2 pages hold");
    WITH((p.sparse = pages, p.mask.kinds = 0, p.sparse.pages_width = 3, p.kv.n_blocks = 0),
         BAD_BLOCK, "sparse.pages[0][0][0] = 0: one of 0..-1");
    WITH((p.sparse = lists, p.sparse.block_q = 0), BAD_MASK, "sparse.block_q = 0: at least 1");
    WITH((p.sparse = lists, p.sparse.n_heads = 3), BAD_MASK,
         "sparse.n_heads = 3: 1 or n_kv_heads = 2");
    WITH((p.sparse = lists, p.sparse.indices = NULL), BAD_MASK,
         "sparse.indices = none: or block_bits");
    WITH((p.sparse = lists, p.sparse.n_q_blocks = 3), BAD_MASK,
         "sparse.n_q_blocks = 3: q_len[0] = 17 needs 4");
    WITH((p.sparse = bits, p.sparse.block_words = 0), BAD_MASK,
         "sparse.block_words = 0: kv_len[0] = 50 needs 1");
    WITH((p.sparse = lists, p.sparse.indptr = falling, p.sparse.indices = twice), BAD_MASK,
         "sparse.indices[1] = 0: above the one before it in row [0][0][0], below 7");
    WITH((p.sparse = lists, p.sparse.indptr = falling + 1, p.sparse.indices = twice), BAD_MASK,
         "sparse.indptr[0][0][0] = -1 blocks: 0 or more");
    WITH((p.sparse = lists, p.sparse.indptr = beyond, p.sparse.indices = &seven), BAD_MASK,
         "sparse.indices[0] = 7: above the one before it in row [0][0][0], below 7");
    WITH((p.sparse.valid_bits = x.bits[0][0][0], p.sparse.valid_words = 1), BAD_MASK,
         "sparse.valid_words = 1: kv_len[0] = 50 needs 2");
    WITH((p.sparse = lists, p.sparse.proxy_k = p.sparse.proxy_v = means), BAD_COMBINATION,
         "sparse.proxy_k = given: with proxy_v, blocks, given keys and a full mask alone");
    WITH((p.sparse = lists, p.mask.kinds = 0, p.block_ids = NULL, p.kv.block_size = 0,
          p.sparse.proxy_k = p.sparse.proxy_v = means, p.sparse.n_kv_blocks = 6),
         BAD_MASK, "sparse.n_kv_blocks = 6: kv_len[0] = 50 needs 7");
#undef WITH
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b085_lists_of_tokens_have_gaps_ends_and_doubles),
        cmocka_unit_test(all_tokens_are_dense_attention),
        cmocka_unit_test(tokens_obey_window_and_bias_by_their_index),
        cmocka_unit_test(slots_outside_the_pool_are_ignored),
        cmocka_unit_test(b086_the_last_block_has_the_keys_it_has),
        cmocka_unit_test(all_blocks_are_dense_attention),
        cmocka_unit_test(blocks_are_a_mask_by_the_byte),
        cmocka_unit_test(keys_that_are_not_valid_are_not_there),
        cmocka_unit_test(blocks_left_out_weigh_as_many_keys_as_they_have),
        cmocka_unit_test(each_head_has_pages_of_its_own),
        cmocka_unit_test(pages_in_order_are_dense_attention),
        cmocka_unit_test(a_second_pool_joins_the_softmax),
        cmocka_unit_test(two_pools_are_as_one),
        cmocka_unit_test(what_is_no_choice_is_refused),
    };
    return cmocka_run_group_tests_name("ora_sparse", tests, NULL, NULL);
}
