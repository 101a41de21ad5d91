/* test_ora_attend.c: the oracle against answers worked out by hand, and against itself. */
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
#include "tests/oracle/oracle.h"

enum { MAX_SEQS = 4, MAX_KEYS = 64, MAX_BLOCKS = 257 };

/* One paged call. Keys lie in shuffled blocks of a pool that is NaN wherever no key is. */
typedef struct scene {
    ora_problem p;
    int32_t q_len[MAX_SEQS], kv_len[MAX_SEQS];
    int32_t block_ids[MAX_BLOCKS];
    char *pool;
    char *q;
    size_t pool_bytes;
} scene;

typedef struct shape {
    uint32_t n_seqs, n_heads, n_kv_heads, D, Dv, T;
    attnd_dtype dtype;
    attnd_layout layout;
    int32_t q_len[MAX_SEQS], kv_len[MAX_SEQS];
} shape;

/* What a key holds: the generated number, or 0 for K and the position for V ("K=0, V=pos"). */
typedef enum fill { RANDOM, POSITIONS } fill;

static char *key_at(const scene *s, uint32_t b, int32_t j, uint32_t g, int plane)
{
    const ora_kv *kv = &s->p.kv;
    int32_t first = 0, T = (int32_t)kv->block_size;
    for (uint32_t other = 0; other < b; other++)
        first += (s->kv_len[other] + T - 1) / T;
    return (char *)kv->plane[plane] + s->block_ids[first + j / T] * kv->block_stride +
           g * kv->head_stride[plane] + j % T * kv->token_stride[plane];
}

static void fill_key(scene *s, fill how, uint32_t b, int32_t j, uint32_t g)
{
    uint64_t n = ((uint64_t)b * 100000 + (uint64_t)j) * 16 + g;
    for (int plane = 0; plane < 2; plane++) {
        uint32_t width = plane ? s->p.head_dim_v : s->p.head_dim;
        char *at = key_at(s, b, j, g, plane);
        double position[1024];
        for (uint32_t d = 0; d < width; d++)
            position[d] = plane ? j : 0;
        if (how == POSITIONS)
            ora_encode(s->p.kv.dtype, position, width, at);
        else
            ora_generate(1, plane ? "v" : "k", n * width, width, 1, s->p.kv.dtype, at);
    }
}

static void scene_open(scene *s, const shape *a, fill how)
{
    *s = (scene){0};
    size_t e = ora_codec_bytes(a->dtype), n_tokens = 0;
    bool hnd = a->layout == ATTND_LAYOUT_HND;
    int64_t slab_k = (int64_t)(a->n_kv_heads * a->T * a->D * e);
    int64_t slab_v = (int64_t)(a->n_kv_heads * a->T * a->Dv * e);
    s->pool_bytes = (size_t)(MAX_BLOCKS * (slab_k + slab_v));
    s->pool = malloc(s->pool_bytes);
    assert_non_null(s->pool);
    memset(s->pool, 0xFF, s->pool_bytes);
    for (uint32_t b = 0; b < a->n_seqs; b++) {
        s->q_len[b] = a->q_len[b];
        s->kv_len[b] = a->kv_len[b];
        n_tokens += (size_t)a->q_len[b];
    }
    for (int32_t n = 0; n < MAX_BLOCKS; n++)
        s->block_ids[n] = (n * 101 + 7) % MAX_BLOCKS;
    size_t q_bytes = n_tokens * a->n_heads * a->D * e;
    s->q = calloc(1, q_bytes + 1);
    assert_non_null(s->q);
    if (how == RANDOM)
        ora_generate(1, "q", 0, n_tokens * a->n_heads * a->D, 1, a->dtype, s->q);
    s->p = (ora_problem){
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->D,
        .head_dim_v = a->Dv,
        .sm_scale = ora_sm_scale(0, a->D),
        .dtype = a->dtype,
        .n_seqs = a->n_seqs,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .block_ids = s->block_ids,
        .q = {s->q, (int64_t)(a->n_heads * a->D * e), (int64_t)(a->D * e), a->dtype},
        .kv = {.plane = {s->pool, s->pool + slab_k},
               .block_stride = slab_k + slab_v,
               .head_stride = {(int64_t)(a->D * e * (hnd ? a->T : 1)),
                               (int64_t)(a->Dv * e * (hnd ? a->T : 1))},
               .token_stride = {(int64_t)(a->D * e * (hnd ? 1 : a->n_kv_heads)),
                                (int64_t)(a->Dv * e * (hnd ? 1 : a->n_kv_heads))},
               .n_blocks = MAX_BLOCKS,
               .block_size = a->T,
               .dtype = a->dtype},
        .mask.kinds = ORA_MASK_CAUSAL,
    };
    for (uint32_t b = 0; b < a->n_seqs; b++)
        for (int32_t j = 0; j < a->kv_len[b]; j++)
            for (uint32_t g = 0; g < a->n_kv_heads; g++)
                fill_key(s, how, b, j, g);
}

static void scene_close(scene *s)
{
    free(s->pool);
    free(s->q);
}

static ora_result attends(const ora_problem *p)
{
    ora_result r;
    attnd_err err;
    if (ora_attend(p, &r, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    return r;
}

static void assert_near(double got, double want, double relative)
{
    if (got == want || (isnan(got) && isnan(want)))
        return;
    if (!(fabs(got - want) <= relative * fmax(1, fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

static void assert_row(const ora_result *r, int64_t row, double o, double lse)
{
    for (uint32_t d = 0; d < r->head_dim_v; d++)
        assert_near(r->out[row * r->head_dim_v + d], o, 1e-6);
    assert_near(r->lse[row], lse, 1e-6);
    if (lse == -INFINITY) {
        assert_true(r->m[row] == -INFINITY && r->l[row] == 0);
        assert_true(r->out[row * r->head_dim_v] == 0);
    } else {
        assert_near(r->m[row] + log(r->l[row]), lse, 1e-6);
    }
}

static void assert_same(const ora_result *a, const ora_result *b, double relative)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    size_t rows = (size_t)a->n_tokens * a->n_heads;
    for (size_t i = 0; i < rows * a->head_dim_v; i++)
        assert_near(a->out[i], b->out[i], relative);
    for (size_t i = 0; i < rows; i++) {
        assert_near(a->lse[i], b->lse[i], relative);
        assert_int_equal(a->n_visible[i], b->n_visible[i]);
    }
}

/* Bitwise. */
static void assert_identical(const ora_result *a, const ora_result *b)
{
    size_t rows = (size_t)a->n_tokens * a->n_heads;
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->memory, b->memory, rows * (a->head_dim_v + 4) * sizeof(double));
    assert_memory_equal(a->n_visible, b->n_visible, rows * sizeof(int64_t));
}

static void assert_problems_same(const ora_problem *a, const ora_problem *b, double relative)
{
    ora_result x = attends(a), y = attends(b);
    if (relative == 0)
        assert_identical(&x, &y);
    else
        assert_same(&x, &y, relative);
    ora_result_fini(&x);
    ora_result_fini(&y);
}

/* ---- Answers worked out by hand ----------------------------------------------------------------
 */

static void slack_of_a_block_may_be_nan(void **state)
{
    scene s;
    scene_open(&s, &(shape){2, 1, 1, 64, 64, 4, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, {1, 1}, {1, 3}},
               POSITIONS);
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 0, 0);
    assert_row(&r, 1, 1, log(3));
    ora_result_fini(&r);
    s.p.mask.kinds = 0; /* full: the end of the keys bounds it, not the mask */
    r = attends(&s.p);
    assert_row(&r, 1, 1, log(3));
    ora_result_fini(&r);
    scene_close(&s);
}

static void more_queries_than_keys_leave_the_first_rows_empty(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {2}},
               POSITIONS);
    ora_result r = attends(&s.p);
    for (int i = 0; i < 3; i++)
        assert_row(&r, i, 0, -INFINITY);
    assert_row(&r, 3, 0, 0);
    assert_row(&r, 4, 0.5, log(2));
    ora_result_fini(&r);
    s.p.mask.kinds = 0;
    r = attends(&s.p);
    for (int i = 0; i < 5; i++)
        assert_row(&r, i, 0.5, log(2));
    ora_result_fini(&r);
    scene_close(&s);
}

static void sequences_without_rows_or_keys_are_no_matter(void **state)
{
    scene s;
    scene_open(
        &s,
        &(shape){
            4, 6, 2, 64, 64, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_NHD, {0, 1, 0, 1}, {0, 3, 0, 5}},
        POSITIONS);
    ora_result r = attends(&s.p);
    assert_int_equal(r.n_tokens, 2);
    for (int h = 0; h < 6; h++) {
        assert_row(&r, h, 1, log(3));
        assert_row(&r, 6 + h, 2, log(5));
    }
    ora_result_fini(&r);
    s.kv_len[1] = 0;
    s.kv_len[3] = 0;
    r = attends(&s.p);
    for (int i = 0; i < 12; i++)
        assert_row(&r, i, 0, -INFINITY);
    ora_result_fini(&r);
    s.p.n_seqs = 0;
    r = attends(&s.p);
    assert_int_equal(r.n_tokens, 0);
    ora_result_fini(&r);
    scene_close(&s);
}

static void the_causal_edge_is_at_the_bottom_right(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {3}, {128}},
               POSITIONS);
    ora_result r = attends(&s.p);
    for (int i = 0; i < 3; i++)
        assert_row(&r, i, 62.5 + i * 0.5, log(126 + i));
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_window_counts_the_rows_own_key(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW;
    s.p.mask.window = 3;
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 2, log(3)); /* keys 1..3 */
    assert_row(&r, 1, 3, log(3)); /* keys 2..4 */
    ora_result_fini(&r);
    s.p.mask.kinds = ORA_MASK_WINDOW; /* with full: bounds the lower side alone */
    r = attends(&s.p);
    assert_row(&r, 0, 2.5, log(4)); /* keys 1..4 */
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_chunk_is_the_rows_own_aligned_one(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK;
    s.p.mask.chunk = 4;
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 1.5, log(4)); /* a = 3: 0..3 */
    assert_row(&r, 1, 4, 0);        /* a = 4: 4 */
    ora_result_fini(&r);
    scene_close(&s);
}

static void window_and_chunk_must_both_hold(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {14}, {14}},
               POSITIONS);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK | ORA_MASK_WINDOW;
    s.p.mask.chunk = 8;
    s.p.mask.window = 3;
    ora_result r = attends(&s.p);
    for (int a = 0; a < 14; a++) {
        int low = a / 8 * 8 > a - 2 ? a / 8 * 8 : a - 2;
        low = low < 0 ? 0 : low;
        assert_row(&r, a, (low + a) / 2.0, log(a - low + 1));
    }
    ora_result_fini(&r);
    s.p.mask.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK;
    r = attends(&s.p);
    assert_row(&r, 13, 10.5, log(6));
    assert_row(&r, 7, 3.5, log(8));
    assert_row(&r, 8, 8, 0);
    ora_result_fini(&r);
    scene_close(&s);
}

static void bounds_per_row_replace_causal_window_and_chunk(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {6}, {10}},
               POSITIONS);
    const int32_t start[] = {0, 2, 5, 10, -7, 3}, end[] = {9, 4, 4, 99, -1, 99};
    s.p.mask =
        (ora_mask){.kinds = ORA_MASK_VARIABLE | ORA_MASK_CAUSAL | ORA_MASK_WINDOW | ORA_MASK_CHUNK,
                   .window = 1,
                   .chunk = 1,
                   .start = start,
                   .end = end};
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 4.5, log(10));
    assert_row(&r, 1, 3, log(3));
    assert_row(&r, 2, 0, -INFINITY); /* start > end */
    assert_row(&r, 3, 0, -INFINITY); /* start ≥ kv_len */
    assert_row(&r, 4, 0, -INFINITY); /* end < 0 */
    assert_row(&r, 5, 6, log(7));    /* clamped */
    ora_result_fini(&r);
    scene_close(&s);
}

static void soft_cap_comes_after_the_scale_and_before_the_mask(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {3}},
               POSITIONS);
    const float keys[] = {50, 0, 0}, values[] = {1, 0, 1000};
    for (int32_t j = 0; j < 3; j++) {
        memcpy(key_at(&s, 0, j, 0, 0), &keys[j], 4);
        memcpy(key_at(&s, 0, j, 0, 1), &values[j], 4);
    }
    *(float *)s.q = 1;
    s.p.sm_scale = 2; /* scores 100, 0 */
    s.p.bias.softcap = 5;
    const int32_t start = 0, end = 1;
    s.p.mask = (ora_mask){.kinds = ORA_MASK_VARIABLE, .start = &start, .end = &end};
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 0.993307, 5.006715);
    ora_result_fini(&r);
    s.p.bias.softcap = 2;
    s.p.sm_scale = 0.2; /* scores 10, 0 */
    r = attends(&s.p);
    assert_near(r.out[0], 0.880778, 1e-6);
    ora_result_fini(&r);
    scene_close(&s);
}

static void very_negative_scores_are_scores(void **state)
{
    scene s;
    scene_open(&s, &(shape){2, 1, 1, 64, 1, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {1, 1}, {2, 0}},
               POSITIONS);
    double q[64] = {-256, -1}, k[2][64] = {{234}, {234, 1}}, v[2] = {1, 2};
    ora_encode(ATTND_DTYPE_BF16, q, 64, s.q);
    for (int32_t j = 0; j < 2; j++) {
        ora_encode(ATTND_DTYPE_BF16, k[j], 64, key_at(&s, 0, j, 0, 0));
        ora_encode(ATTND_DTYPE_BF16, &v[j], 1, key_at(&s, 0, j, 0, 1));
    }
    s.p.sm_scale = 1;
    ora_result r = attends(&s.p);
    assert_near(r.out[0], 1.268941, 1e-6);
    assert_near(r.lse[0], -59903.6867, 1e-8);
    assert_row(&r, 1, 0, -INFINITY);
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_sink_takes_its_share_and_leaves_lse_alone(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 4, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {2}},
               POSITIONS);
    ora_result plain = attends(&s.p);
    const float sinks[] = {0, -INFINITY, INFINITY, 2};
    s.p.bias.sinks = sinks;
    ora_result r = attends(&s.p);
    assert_row(&r, 4, 1.0 / 3, log(2)); /* keys V = 0 and 1, the sink weighs 1 */
    assert_row(&r, 6, 0, log(2));
    assert_row(&r, 7, 1 / (2 + exp(2)), log(2));
    assert_memory_equal(&r.out[5 * 8], &plain.out[5 * 8], 8 * sizeof(double));
    for (int i = 0; i < 8; i++)
        assert_near(r.lse[i], plain.lse[i], 0);
    ora_result_fini(&r);
    s.kv_len[0] = 0;
    r = attends(&s.p);
    for (int i = 0; i < 8; i++)
        assert_row(&r, i, 0, -INFINITY);
    ora_result_fini(&r);
    ora_result_fini(&plain);
    scene_close(&s);
}

static void one_key_against_a_sink_of_0_is_halved(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {1}}, RANDOM);
    memset(s.q, 0, 32);
    const float sink = 0;
    ora_result plain = attends(&s.p);
    s.p.bias.sinks = &sink;
    ora_result r = attends(&s.p);
    for (int d = 0; d < 8; d++) {
        float v;
        memcpy(&v, key_at(&s, 0, 0, 0, 1) + 4 * d, 4);
        assert_true(plain.out[d] == v); /* one key: v itself */
        assert_true(r.out[d] == v / 2.0);
    }
    assert_true(r.lse[0] == 0 && r.n_visible[0] == 1);
    ora_result_fini(&plain);
    ora_result_fini(&r);
    scene_close(&s);
}

static void alibi_slopes_are_those_of_the_paper(void **state)
{
    for (uint32_t h = 0; h < 8; h++)
        assert_true(ora_alibi_slope(h, 8) == exp2(-(double)(h + 1)));
    for (uint32_t h = 0; h < 8; h++)
        assert_true(ora_alibi_slope(h, 12) == exp2(-(double)(h + 1)));
    for (uint32_t h = 8; h < 12; h++)
        assert_true(ora_alibi_slope(h, 12) == exp2(-(0.5 + (h - 8))));
    assert_true(ora_alibi_slope(0, 1) == exp2(-8));
}

static void alibi_adds_slope_times_distance_to_the_rows_own_key(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 2, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               POSITIONS);
    const float slopes[] = {0.5f, 0.25f};
    s.p.bias.alibi_slopes = slopes;
    ora_result r = attends(&s.p);
    for (int i = 0; i < 2; i++)
        for (int h = 0; h < 2; h++) {
            int a = 3 + i;
            double l = 0, o = 0;
            for (int j = 0; j <= a; j++) {
                l += exp((double)slopes[h] * (j - a));
                o += j * exp((double)slopes[h] * (j - a));
            }
            assert_row(&r, i * 2 + h, o / l, log(l));
            assert_true(r.m[i * 2 + h] == 0);
        }
    ora_result_fini(&r);
    scene_close(&s);
}

static void heads_of_a_group_read_their_own_kv_head(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 6, 3, 8, 2, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_NHD, {1}, {1}}, RANDOM);
    ora_result r = attends(&s.p);
    for (uint32_t h = 0; h < 6; h++) {
        float v[2];
        memcpy(v, key_at(&s, 0, 0, h / 2, 1), sizeof v);
        assert_true(r.out[h * 2] == v[0] && r.out[h * 2 + 1] == v[1]);
        assert_true(r.vmax[h] == fmax(fabs(v[0]), fabs(v[1])));
    }
    ora_result_fini(&r);
    scene_close(&s);
}

static void nan_stays_in_the_rows_and_channels_it_belongs_to(void **state)
{
    scene s;
    scene_open(&s, &(shape){2, 2, 2, 4, 4, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {3, 3}},
               RANDOM);
    ora_result clean = attends(&s.p);
    memset(s.q, 0xFF, 4);                        /* q of sequence 0, head 0 */
    memset(key_at(&s, 1, 1, 1, 1) + 4, 0xFF, 4); /* v of sequence 1, key 1, head 1, channel 1 */
    ora_result r = attends(&s.p);
    for (int row = 0; row < 4; row++) {
        assert_int_equal(isnan(r.lse[row]), row == 0);
        for (int d = 0; d < 4; d++) {
            bool hit = row == 0 || (row == 3 && d == 1);
            assert_int_equal(isnan(r.out[row * 4 + d]), hit);
            if (!hit)
                assert_true(r.out[row * 4 + d] == clean.out[row * 4 + d]);
        }
    }
    ora_result_fini(&r);
    memset(s.q, 0, 32);
    memset(key_at(&s, 1, 2, 0, 0), 0xFF, 4); /* k of sequence 1, key 2, head 0 */
    r = attends(&s.p);
    for (int row = 0; row < 4; row++)
        assert_int_equal(isnan(r.lse[row]), row == 2);
    ora_result_fini(&r);
    ora_result_fini(&clean);
    scene_close(&s);
}

static void only_scores_of_minus_infinity_are_an_empty_row(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {2}}, RANDOM);
    const float minus = -INFINITY, one = 1;
    memcpy(s.q, &one, 4);
    memcpy(key_at(&s, 0, 0, 0, 0), &minus, 4);
    memcpy(key_at(&s, 0, 1, 0, 0), &minus, 4);
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 0, -INFINITY);
    ora_result_fini(&r);
    scene_close(&s);
}

static void large_scores_do_not_overflow(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 64, 1, 4, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, {1}, {2}},
               RANDOM);
    double ones[64], v[] = {0, 2};
    for (int d = 0; d < 64; d++)
        ones[d] = 300;
    ora_encode(ATTND_DTYPE_F16, ones, 64, s.q);
    for (int32_t j = 0; j < 2; j++) {
        ora_encode(ATTND_DTYPE_F16, ones, 64, key_at(&s, 0, j, 0, 0));
        ora_encode(ATTND_DTYPE_F16, &v[j], 1, key_at(&s, 0, j, 0, 1));
    }
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 1, 720000 + log(2));
    ora_result_fini(&r);
    scene_close(&s);
}

/* ---- The oracle against itself -----------------------------------------------------------------
 */

static const shape MIXED = {
    3, 6, 2, 24, 40, 8, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {17, 1, 4}, {50, 33, 4}};

/* The other witness: §1 written straight down, in long double, for every head of every row. */
static void random_data_gives_what_the_definition_gives(void **state)
{
    scene s;
    scene_open(&s, &MIXED, RANDOM);
    float sinks[6], slopes[6];
    ora_generate(1, "sinks", 0, 6, 1, ATTND_DTYPE_F32, sinks);
    ora_generate(1, "slopes", 0, 6, 0.1, ATTND_DTYPE_F32, slopes);
    s.p.bias.sinks = sinks;
    s.p.bias.alibi_slopes = slopes;
    s.p.bias.softcap = 3;
    ora_result r = attends(&s.p);
    int64_t t = 0;
    for (uint32_t b = 0; b < 3; b++)
        for (int32_t i = 0; i < s.q_len[b]; i++, t++)
            for (uint32_t h = 0; h < 6; h++) {
                int32_t a = s.kv_len[b] - s.q_len[b] + i;
                double q[24], k[24], v[40];
                long double l = 0, o[40] = {0};
                ora_decode(ATTND_DTYPE_BF16, s.q + (t * 6 + h) * 48, 24, q);
                for (int32_t j = 0; j <= a; j++) {
                    long double dot = 0;
                    ora_decode(ATTND_DTYPE_BF16, key_at(&s, b, j, h / 3, 0), 24, k);
                    ora_decode(ATTND_DTYPE_BF16, key_at(&s, b, j, h / 3, 1), 40, v);
                    for (int d = 0; d < 24; d++)
                        dot += (long double)q[d] * k[d];
                    long double w =
                        expl(3 * tanhl(dot / sqrtl(24) / 3) + (long double)slopes[h] * (j - a));
                    l += w;
                    for (int d = 0; d < 40; d++)
                        o[d] += w * v[d];
                }
                assert_near(r.lse[t * 6 + h], (double)logl(l), 1e-13);
                assert_int_equal(r.n_visible[t * 6 + h], a + 1);
                for (int d = 0; d < 40; d++)
                    assert_near(r.out[(t * 6 + h) * 40 + d], (double)(o[d] / (l + expl(sinks[h]))),
                                1e-13);
            }
    ora_result_fini(&r);
    scene_close(&s);
}

static void chunked_prefill_gives_the_rows_of_one_shot(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_NEOX, .dim = 16, .theta = 10000};
    const float slopes[] = {0.5f, 0.25f};
    scene whole;
    scene_open(&whole, &(shape){1, 2, 1, 24, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {12}, {12}},
               RANDOM);
    const int32_t splits[][MAX_KEYS] = {
        {5, 7, 0}, {11, 1, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, {4, 4, 4, 0}};
    for (int window = 0; window <= 5; window += 5)
        for (size_t split = 0; split < sizeof splits / sizeof splits[0]; split++) {
            ora_problem p = whole.p;
            p.rope = rope;
            p.bias.alibi_slopes = slopes;
            p.mask.window = window;
            if (window)
                p.mask.kinds |= ORA_MASK_WINDOW;
            ora_result all = attends(&p);
            int32_t done = 0;
            for (const int32_t *n = splits[split]; *n; n++) {
                int32_t q_len = *n, kv_len = done + *n;
                ora_problem part = p;
                part.q_len = &q_len;
                part.kv_len = &kv_len;
                part.q.base = (const char *)p.q.base + done * p.q.token_stride;
                ora_result r = attends(&part);
                for (int64_t i = 0; i < q_len * 2; i++) {
                    assert_near(r.lse[i], all.lse[done * 2 + i], 1e-12);
                    for (int d = 0; d < 8; d++)
                        assert_near(r.out[i * 8 + d], all.out[(done * 2 + i) * 8 + d], 1e-12);
                }
                ora_result_fini(&r);
                done += q_len;
            }
            assert_int_equal(done, 12);
            ora_result_fini(&all);
        }
    scene_close(&whole);
}

static void a_window_or_chunk_of_all_keys_is_none(void **state)
{
    scene s;
    scene_open(&s, &MIXED, RANDOM);
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
    scene_open(&s, &MIXED, RANDOM);
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

static void contexts_beside_a_tree_are_causal(void **state)
{
    scene s;
    scene_open(&s, &MIXED, RANDOM);
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
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {40}, {60}},
               RANDOM);
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
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {4}, {9}},
               POSITIONS);
    const uint32_t words[] = {1, 3, 5, 11};
    const int32_t depth[] = {0, 1, 1, 2};
    s.p.mask = (ora_mask){
        .kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1, .tree_depth = depth};
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 15 / 6.0, log(6));
    assert_row(&r, 1, (10 + 5 + 6) / 7.0, log(7));
    assert_row(&r, 2, (10 + 5 + 7) / 7.0, log(7));
    assert_row(&r, 3, (10 + 5 + 6 + 8) / 8.0, log(8));
    ora_result_fini(&r);
    /* The window ends at the node's depth: past + depth - 2 and above, of the past alone. */
    s.p.mask.kinds |= ORA_MASK_WINDOW;
    s.p.mask.window = 3;
    r = attends(&s.p);
    assert_row(&r, 0, (3 + 4 + 5) / 3.0, log(3));
    assert_row(&r, 1, (4 + 5 + 6) / 3.0, log(3));
    assert_row(&r, 2, (4 + 5 + 7) / 3.0, log(3));
    assert_row(&r, 3, (5 + 6 + 8) / 3.0, log(3));
    ora_result_fini(&r);
    scene_close(&s);
}

static void parts_of_the_keys_merge_to_the_whole(void **state)
{
    scene s;
    scene_open(&s, &MIXED, RANDOM);
    float sinks[6];
    ora_generate(1, "sinks", 0, 6, 1, ATTND_DTYPE_F32, sinks);
    const int32_t cuts[][4] = {{0, 50}, {0, 7, 50}, {0, 1, 33, 50}, {0, 40, 41, 50}};
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        s.p.bias.sinks = sinks;
        s.p.key_to = 0;
        ora_result whole = attends(&s.p), part[3];
        s.p.bias.sinks = NULL;
        uint32_t n = 0;
        for (; n < 3 && cuts[c][n] < 50; n++) {
            s.p.key_from = cuts[c][n];
            s.p.key_to = cuts[c][n + 1];
            part[n] = attends(&s.p);
        }
        s.p.key_from = 0;
        for (size_t row = 0; row < 22 * 6; row++) {
            double m[3], l[3], o[3 * 40], m_all, l_all, o_all[40];
            for (uint32_t k = 0; k < n; k++) {
                m[k] = part[k].m[row];
                l[k] = part[k].l[row];
                memcpy(o + k * 40, part[k].out + row * 40, 40 * sizeof(double));
            }
            ora_merge(n, m, l, o, 40, &m_all, &l_all, o_all);
            ora_apply_sink(m_all, l_all, sinks[row % 6], o_all, 40);
            assert_near(m_all + log(l_all), whole.lse[row], 1e-12);
            for (int d = 0; d < 40; d++)
                assert_near(o_all[d], whole.out[row * 40 + d], 1e-12);
        }
        for (uint32_t k = 0; k < n; k++)
            ora_result_fini(&part[k]);
        ora_result_fini(&whole);
    }
    scene_close(&s);
}

static void layout_block_size_and_block_ids_change_nothing(void **state)
{
    scene base;
    scene_open(&base, &MIXED, RANDOM);
    for (uint32_t T = 1; T <= 32; T *= 2)
        for (int layout = 0; layout < 2; layout++) {
            shape other = MIXED;
            other.T = T;
            other.layout = (attnd_layout)layout;
            scene s;
            scene_open(&s, &other, RANDOM);
            assert_problems_same(&base.p, &s.p, 0);
            scene_close(&s);
        }
    scene_close(&base);
}

static void given_keys_are_the_same_as_paged_ones(void **state)
{
    scene s;
    scene_open(&s, &MIXED, RANDOM);
    ora_problem p = s.p;
    int64_t k_row = 2 * 24 * 2, v_row = 2 * 40 * 2, row = 0;
    char *k = malloc(87 * (size_t)k_row), *v = malloc(87 * (size_t)v_row);
    assert_true(k && v);
    for (uint32_t b = 0; b < 3; b++)
        for (int32_t j = 0; j < s.kv_len[b]; j++, row++)
            for (uint32_t g = 0; g < 2; g++) {
                memcpy(k + row * k_row + g * 48, key_at(&s, b, j, g, 0), 48);
                memcpy(v + row * v_row + g * 80, key_at(&s, b, j, g, 1), 80);
            }
    p.block_ids = NULL;
    p.kv = (ora_kv){.plane = {k, v},
                    .head_stride = {48, 80},
                    .token_stride = {k_row, v_row},
                    .dtype = ATTND_DTYPE_BF16};
    assert_problems_same(&s.p, &p, 0);
    /* Sequence 2's keys are its own: rows 83 to 86. */
    const int64_t first[] = {0, 50, 83};
    p.kv_first = first;
    assert_problems_same(&s.p, &p, 0);
    free(k);
    free(v);
    scene_close(&s);
}

static void blocks_no_row_sees_are_never_asked_for(void **state)
{
    scene s;
    scene_open(&s, &(shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {13}},
               POSITIONS);
    s.p.mask.kinds |= ORA_MASK_WINDOW;
    s.p.mask.window = 6; /* keys 7..12: block 0 is out */
    s.block_ids[0] = -1;
    ora_result r = attends(&s.p);
    assert_row(&r, 0, 9.5, log(6));
    ora_result_fini(&r);
    s.block_ids[0] = INT32_MAX;
    r = attends(&s.p);
    assert_row(&r, 0, 9.5, log(6));
    ora_result_fini(&r);
    scene_close(&s);
}

static void rows_may_lie_apart(void **state)
{
    scene s;
    scene_open(&s, &(shape){2, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {3, 5}},
               RANDOM);
    ora_result near = attends(&s.p);
    const int64_t first[] = {3, 0};
    char q[4 * 32];
    memset(q, 0xFF, sizeof q);
    memcpy(q + 96, s.q, 32);
    memcpy(q, s.q + 32, 32);
    s.p.q.base = q;
    s.p.q_first = first;
    ora_result apart = attends(&s.p);
    assert_int_equal(apart.n_tokens, 4);
    assert_true(apart.lse[3] == near.lse[0] && apart.lse[0] == near.lse[1]);
    assert_memory_equal(apart.out + 24, near.out, 8 * sizeof(double));
    assert_int_equal(apart.n_visible[3], 3);
    assert_int_equal(apart.n_visible[1], -1);
    ora_result_fini(&near);
    ora_result_fini(&apart);
    scene_close(&s);
}

/* ---- Refusals
 * ------------------------------------------------------------------------------------ */

static void refuses(const ora_problem *p, attnd_reason reason, const char *text)
{
    attnd_err err = {0};
    ora_result r;
    assert_int_equal(ora_attend(p, &r, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.text, text);
    assert_null(r.memory);
    assert_null(r.n_visible);
}

static void what_is_no_problem_is_refused(void **state)
{
    scene s;
    scene_open(&s, &MIXED, RANDOM);
    ora_problem p;
#define WITH(change, reason, text)                                                                 \
    p = s.p;                                                                                       \
    change;                                                                                        \
    refuses(&p, ATTND_##reason, text)
    WITH(p.n_heads = 7, BAD_GEOMETRY, "n_heads = 7: a positive multiple of n_kv_heads = 2");
    WITH(p.n_kv_heads = 0, BAD_GEOMETRY, "n_heads = 6: a positive multiple of n_kv_heads = 0");
    WITH(p.head_dim = 0, BAD_GEOMETRY, "head_dim = 0, head_dim_v = 40: at least 1");
    WITH(p.dtype = ATTND_DTYPE_E4M3, BAD_GEOMETRY, "dtype = e4m3: f32, f16 or bf16");
    WITH(p.kv.dtype = ATTND_DTYPE_NVFP4, BAD_QUANT, "kv.dtype = nvfp4: f32, f16, bf16, e4m3, e5m2 or i8");
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
    refuses(&s.p, ATTND_BAD_LENGTH, "q_len[1] = -1: at least 0");
    s.q_len[1] = 1;
    s.kv_len[2] = -5;
    refuses(&s.p, ATTND_BAD_LENGTH, "kv_len[2] = -5: at least 0");
    s.kv_len[2] = 4;
    s.block_ids[7 + 4] = -1; /* block 4 of sequence 1 */
    refuses(&s.p, ATTND_BAD_BLOCK, "block_ids[1][4] = -1: key 32 needs one of 0..256");
    s.block_ids[7 + 4] = MAX_BLOCKS;
    refuses(&s.p, ATTND_BAD_BLOCK, "block_ids[1][4] = 257: key 32 needs one of 0..256");
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slack_of_a_block_may_be_nan),
        cmocka_unit_test(more_queries_than_keys_leave_the_first_rows_empty),
        cmocka_unit_test(sequences_without_rows_or_keys_are_no_matter),
        cmocka_unit_test(the_causal_edge_is_at_the_bottom_right),
        cmocka_unit_test(a_window_counts_the_rows_own_key),
        cmocka_unit_test(a_chunk_is_the_rows_own_aligned_one),
        cmocka_unit_test(window_and_chunk_must_both_hold),
        cmocka_unit_test(bounds_per_row_replace_causal_window_and_chunk),
        cmocka_unit_test(soft_cap_comes_after_the_scale_and_before_the_mask),
        cmocka_unit_test(very_negative_scores_are_scores),
        cmocka_unit_test(a_sink_takes_its_share_and_leaves_lse_alone),
        cmocka_unit_test(one_key_against_a_sink_of_0_is_halved),
        cmocka_unit_test(alibi_slopes_are_those_of_the_paper),
        cmocka_unit_test(alibi_adds_slope_times_distance_to_the_rows_own_key),
        cmocka_unit_test(heads_of_a_group_read_their_own_kv_head),
        cmocka_unit_test(nan_stays_in_the_rows_and_channels_it_belongs_to),
        cmocka_unit_test(only_scores_of_minus_infinity_are_an_empty_row),
        cmocka_unit_test(large_scores_do_not_overflow),
        cmocka_unit_test(random_data_gives_what_the_definition_gives),
        cmocka_unit_test(chunked_prefill_gives_the_rows_of_one_shot),
        cmocka_unit_test(a_window_or_chunk_of_all_keys_is_none),
        cmocka_unit_test(every_kind_of_mask_can_say_causal),
        cmocka_unit_test(contexts_beside_a_tree_are_causal),
        cmocka_unit_test(chain_words_of_wide_groups_are_causal),
        cmocka_unit_test(a_tree_shows_a_node_its_ancestors_and_the_past),
        cmocka_unit_test(parts_of_the_keys_merge_to_the_whole),
        cmocka_unit_test(layout_block_size_and_block_ids_change_nothing),
        cmocka_unit_test(given_keys_are_the_same_as_paged_ones),
        cmocka_unit_test(blocks_no_row_sees_are_never_asked_for),
        cmocka_unit_test(rows_may_lie_apart),
        cmocka_unit_test(what_is_no_problem_is_refused),
    };
    return cmocka_run_group_tests_name("ora_attend", tests, NULL, NULL);
}
