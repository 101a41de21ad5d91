/* test_ora_score.c: cap, biases, sinks. */
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

/* ---- Cap and sinks ---- */

static void b037_b038_soft_cap_comes_after_the_scale_and_before_the_mask(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {3}},
               SCENE_POSITIONS);
    const float keys[] = {50, 0, 0}, values[] = {1, 0, 1000};
    for (int32_t j = 0; j < 3; j++) {
        memcpy(scene_key(&s, 0, j, 0, 0), &keys[j], 4);
        memcpy(scene_key(&s, 0, j, 0, 1), &values[j], 4);
    }
    *(float *)s.q = 1;
    s.p.sm_scale = 2; /* scores 100, 0 */
    s.p.bias.softcap = 5;
    const int32_t start = 0, end = 1;
    s.p.mask = (ora_mask){.kinds = ORA_MASK_VARIABLE, .start = &start, .end = &end};
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 0.993307, 5.006715);
    ora_result_fini(&r);
    s.p.bias.softcap = 2;
    s.p.sm_scale = 0.2; /* scores 10, 0 */
    r = scene_attend(&s.p);
    assert_near(r.out[0], 0.880778, 1e-6);
    ora_result_fini(&r);
    scene_close(&s);
}

static void a_sink_takes_its_share_and_leaves_lse_alone(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 4, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {2}},
               SCENE_POSITIONS);
    ora_result plain = scene_attend(&s.p);
    const float sinks[] = {0, -INFINITY, INFINITY, 2};
    s.p.bias.sinks = sinks;
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 4, 1.0 / 3, log(2)); /* keys V = 0 and 1, the sink weighs 1 */
    assert_row(&r, 6, 0, log(2));
    assert_row(&r, 7, 1 / (2 + exp(2)), log(2));
    assert_memory_equal(&r.out[5 * 8], &plain.out[5 * 8], 8 * sizeof(double));
    for (int i = 0; i < 8; i++)
        assert_near(r.lse[i], plain.lse[i], 0);
    ora_result_fini(&r);
    s.kv_len[0] = 0;
    r = scene_attend(&s.p);
    for (int i = 0; i < 8; i++)
        assert_row(&r, i, 0, -INFINITY);
    ora_result_fini(&r);
    ora_result_fini(&plain);
    scene_close(&s);
}

static void one_key_against_a_sink_of_0_is_halved(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {1}},
               SCENE_RANDOM);
    memset(s.q, 0, 32);
    const float sink = 0;
    ora_result plain = scene_attend(&s.p);
    s.p.bias.sinks = &sink;
    ora_result r = scene_attend(&s.p);
    for (int d = 0; d < 8; d++) {
        float v;
        memcpy(&v, scene_key(&s, 0, 0, 0, 1) + 4 * d, 4);
        assert_true(plain.out[d] == v); /* one key: v itself */
        assert_true(r.out[d] == v / 2.0);
    }
    assert_true(r.lse[0] == 0 && r.n_visible[0] == 1);
    ora_result_fini(&plain);
    ora_result_fini(&r);
    scene_close(&s);
}

/* Cut in two or eight by keys, the sink once at the end (an empty part counts none). */
static void b032_an_empty_part_has_no_share_of_the_sink(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){1, 1, 1, 8, 8, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {1024}},
               SCENE_POSITIONS);
    for (int32_t j = 0; j < 1024; j++)
        for (int d = 0; d < 8; d++)
            ((float *)scene_key(&s, 0, j, 0, 1))[d] = 1;
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 64};
    const int n_parts[] = {1, 2, 8, 16};
    for (int c = 0; c < 4; c++) {
        double m[16], l[16], o[16 * 8], m_all, l_all, o_all[8];
        for (int n = 0; n < n_parts[c]; n++) {
            s.p.key_from = 1024 / n_parts[c] * n;
            s.p.key_to = 1024 / n_parts[c] * (n + 1);
            ora_result r = scene_attend(&s.p);
            m[n] = r.m[0];
            l[n] = r.l[0];
            memcpy(o + 8 * n, r.out, 8 * sizeof *o);
            ora_result_fini(&r);
        }
        ora_merge((uint32_t)n_parts[c], m, l, o, 8, &m_all, &l_all, o_all);
        ora_apply_sink(m_all, l_all, 0, o_all, 8);
        assert_near(o_all[0], 64 / 65.0, 1e-15);
        assert_near(m_all + log(l_all), log(64), 1e-15);
    }
    const float sink = 0;
    s.p.key_from = s.p.key_to = 0;
    s.p.bias.sinks = &sink;
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 64 / 65.0, log(64));
    ora_result_fini(&r);
    scene_close(&s);
}

/* A dropped sink cannot pass: every row differs, and by the logistic function of §7.4. */
static void b034_a_sink_is_the_logistic_function_of_the_rest(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){1, 8, 2, 64, 64, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {3}, {700}},
               SCENE_RANDOM);
    float sinks[8];
    ora_generate(2, "sinks", 0, 8, 1, ATTND_DTYPE_F32, sinks);
    for (int h = 0; h < 8; h++)
        sinks[h] += 7;
    ora_result plain = scene_attend(&s.p);
    s.p.bias.sinks = sinks;
    ora_result r = scene_attend(&s.p);
    for (int row = 0; row < 3 * 8; row++) {
        double share = 1 / (1 + exp(sinks[row % 8] - plain.lse[row])), difference = 0;
        for (int d = 0; d < 64; d++) {
            assert_near(r.out[row * 64 + d], share * plain.out[row * 64 + d], 1e-12);
            difference = fmax(difference, fabs(r.out[row * 64 + d] - plain.out[row * 64 + d]));
        }
        assert_true(difference > 1e-2);
        assert_true(r.lse[row] == plain.lse[row] && r.m[row] == plain.m[row]);
    }
    ora_result_fini(&plain);
    ora_result_fini(&r);
    scene_close(&s);
}

static void b035_a_sink_is_there_in_every_format(void **state)
{
    const int32_t one = 1, block = 0;
    const float sink = 2;
    static const float q[16];
    static const struct {
        attnd_dtype dtype;
        ora_format format;
        uint8_t v, scale;
    } formats[] = {
        {ATTND_DTYPE_E4M3, ORA_PLAIN, 0x38, 0},
        {ATTND_DTYPE_I8, ORA_PLAIN, 1, 0},
        {ATTND_DTYPE_NVFP4, ORA_NVFP4, 0x22, 0x38},
    };
    for (int n = 0; n < 3; n++) {
        uint8_t k[16] = {0}, v[16], scales[2] = {formats[n].scale, formats[n].scale};
        memset(v, formats[n].v, sizeof v);
        ora_problem p = {.n_heads = 1,
                         .n_kv_heads = 1,
                         .head_dim = 16,
                         .head_dim_v = 16,
                         .sm_scale = 1,
                         .dtype = ATTND_DTYPE_F32,
                         .n_seqs = 1,
                         .q_len = &one,
                         .kv_len = &one,
                         .block_ids = &block,
                         .q = {q, 64, 64, ATTND_DTYPE_F32},
                         .kv = {.plane = {k, v},
                                .n_blocks = 1,
                                .block_size = 1,
                                .dtype = formats[n].dtype,
                                .format = formats[n].format,
                                .scales = {&scales[0], &scales[1]}},
                         .quant = {.k_orig_quant = 1, .v_orig_quant = 1},
                         .bias.sinks = &sink};
        ora_result r = scene_attend(&p);
        for (int d = 0; d < 16; d++)
            assert_near(r.out[d], 1 / (1 + exp(2)), 1e-12); /* 0.119203 */
        ora_result_fini(&r);
    }
}

static void a_sink_of_infinity_leaves_nothing(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    float sinks[6] = {INFINITY, INFINITY, INFINITY, -INFINITY, -INFINITY, -INFINITY};
    ora_result plain = scene_attend(&s.p);
    s.p.bias.sinks = sinks;
    ora_result r = scene_attend(&s.p);
    for (int row = 0; row < 22 * 6; row++)
        for (int d = 0; d < 40; d++)
            assert_true(r.out[row * 40 + d] == (row % 6 < 3 ? 0 : plain.out[row * 40 + d]));
    assert_memory_equal(r.lse, plain.lse, 22 * 6 * sizeof(double));
    ora_result_fini(&plain);
    ora_result_fini(&r);
    scene_close(&s);
}

/* ---- ALiBi ---- */

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
    scene_open(&s, &(scene_shape){1, 2, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {5}},
               SCENE_POSITIONS);
    const float slopes[] = {0.5f, 0.25f};
    s.p.bias.alibi_slopes = slopes;
    ora_result r = scene_attend(&s.p);
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

/* A shard's heads are the model's heads 8 .. 11 of 12: slopes are given, so it has those. */
static void slopes_of_a_shard_are_those_of_its_heads(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 4, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {3}},
               SCENE_POSITIONS);
    float slopes[4];
    for (uint32_t h = 0; h < 4; h++)
        slopes[h] = (float)ora_alibi_slope(8 + h, 12);
    s.p.bias.alibi_slopes = slopes;
    ora_result r = scene_attend(&s.p);
    for (int h = 0; h < 4; h++) {
        double w = exp(-(double)(float)exp2(-0.5 - h));
        assert_row(&r, h, (w + 2) / (w * w + w + 1), log(w * w + w + 1));
    }
    ora_result_fini(&r);
    scene_close(&s);
}

/* The multiplier is on the capped score and the slope. */
static void the_scale_after_alibi_is_on_both(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {2}},
               SCENE_POSITIONS);
    const float q = 1, k[] = {3, 1}, slope = 0.5f, relative[] = {0, 0, 0.25f, 0.75f};
    memcpy(s.q, &q, 4);
    for (int32_t j = 0; j < 2; j++)
        memcpy(scene_key(&s, 0, j, 0, 0), &k[j], 4);
    s.p.sm_scale = 2;
    s.p.bias = (ora_bias){.softcap = 4,
                          .alibi_slopes = &slope,
                          .scale_after_alibi = 0.5,
                          .relative = relative,
                          .relative_size = 2};
    ora_result r = scene_attend(&s.p);
    double s0 = 0.5 * (4 * tanh(6 / 4.0) - 0.5) + 0.25, s1 = 0.5 * 4 * tanh(2 / 4.0) + 0.75;
    assert_row(&r, 0, exp(s1) / (exp(s0) + exp(s1)), log(exp(s0) + exp(s1)));
    ora_result_fini(&r);
    scene_close(&s);
}

/* ---- Relative bias (§7.3) ---- */

static void buckets_are_those_of_t5(void **state)
{
    const int32_t far[][2] = {{0, 0},   {1, 1},   {15, 15},  {16, 16},  {17, 16},
                              {32, 21}, {64, 26}, {127, 31}, {128, 31}, {9999, 31}};
    for (size_t n = 0; n < sizeof far / sizeof far[0]; n++)
        assert_int_equal(ora_t5_bucket(-far[n][0], 32, 128, false), far[n][1]);
    assert_int_equal(ora_t5_bucket(5, 32, 128, false), 0);
    const int32_t both[][2] = {{-200, 15}, {-20, 10}, {-8, 8},  {-1, 1},  {0, 0},
                               {1, 17},    {8, 24},   {20, 26}, {200, 31}};
    for (size_t n = 0; n < sizeof both / sizeof both[0]; n++)
        assert_int_equal(ora_t5_bucket(both[n][0], 32, 128, true), both[n][1]);
}

/* Where ln(n/e)/ln(M/e)·k is a whole number no rounding takes it below: 8·2^(k/2) at even k. */
static void buckets_change_exactly_at_powers(void **state)
{
    for (int k = 0; k <= 6; k += 2) {
        int64_t n = 8 << k / 2;
        assert_int_equal(ora_t5_bucket(-n, 32, 128, true), 8 + k);
        assert_int_equal(ora_t5_bucket(-n + 1, 32, 128, true), 8 + k - 1);
    }
    /* 4·2^k of 9 buckets: rounding alone says 0.9999999999999999 of k = 1. */
    for (int k = 0; k < 5; k++)
        assert_int_equal(ora_t5_bucket(-(4 << k), 9, 128, false), 4 + k);
    /* 3^k: e = 3 of 6 buckets, M = 81, so 9 is e·3 and 27 is e·9. */
    assert_int_equal(ora_t5_bucket(-8, 6, 81, false), 3);
    assert_int_equal(ora_t5_bucket(-9, 6, 81, false), 4);
    assert_int_equal(ora_t5_bucket(-26, 6, 81, false), 4);
    assert_int_equal(ora_t5_bucket(-27, 6, 81, false), 5);
}

static void a_dense_table_is_read_by_row_and_key(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 2, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {3}},
               SCENE_POSITIONS);
    float table[2][3][3];
    ora_generate(1, "table", 0, 18, 1, ATTND_DTYPE_F32, table);
    s.p.bias.relative = table[0][0];
    s.p.bias.relative_size = 3;
    ora_result r = scene_attend(&s.p);
    for (int i = 0; i < 2; i++)
        for (int h = 0; h < 2; h++) {
            double l = 0, o = 0;
            for (int j = 0; j <= 1 + i; j++) {
                l += exp(table[h][1 + i][j]);
                o += j * exp(table[h][1 + i][j]);
            }
            assert_row(&r, i * 2 + h, o / l, log(l));
        }
    ora_result_fini(&r);
    scene_close(&s);
}

static void buckets_are_a_dense_table_made_of_them(void **state)
{
    enum { SIZE = 50, BUCKETS = 8 };
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    float buckets[6][BUCKETS], *dense = malloc(6 * SIZE * SIZE * sizeof *dense);
    assert_non_null(dense);
    ora_generate(1, "buckets", 0, 6 * BUCKETS, 1, ATTND_DTYPE_F32, buckets);
    for (int both = 0; both < 2; both++) {
        for (int h = 0; h < 6; h++)
            for (int a = 0; a < SIZE; a++)
                for (int j = 0; j < SIZE; j++)
                    dense[(h * SIZE + a) * SIZE + j] =
                        buckets[h][ora_t5_bucket(j - a, BUCKETS, 20, both)];
        ora_problem p = s.p;
        p.mask.kinds = both ? 0 : ORA_MASK_CAUSAL;
        ora_problem q = p;
        p.bias = (ora_bias){.relative = buckets[0],
                            .relative_size = BUCKETS,
                            .relative_max_distance = 20,
                            .relative_bidirectional = both};
        q.bias = (ora_bias){.relative = dense, .relative_size = SIZE};
        assert_problems_same(&p, &q, 0);
    }
    free(dense);
    scene_close(&s);
}

static void a_row_or_key_beyond_a_dense_table_is_refused(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {3}, {5}},
               SCENE_POSITIONS);
    const float table[16] = {0};
    s.q_len[0] = 2;
    s.p.bias.relative = table;
    s.p.bias.relative_size = 4;
    assert_refused(&s.p, ATTND_BAD_LENGTH,
                   "bias.relative_size = 4: row 1 of sequence 0 is at key index 4");
    const int32_t start[] = {0, 0}, end[] = {4, 4};
    s.q_len[0] = 1;
    s.p.mask = (ora_mask){.kinds = ORA_MASK_VARIABLE, .start = start, .end = end};
    assert_refused(&s.p, ATTND_BAD_LENGTH,
                   "bias.relative_size = 4: row 0 of sequence 0 is at key index 4");
    s.q_len[0] = 2;
    s.p.mask.kinds = 0; /* a = 3 sees key 4 */
    assert_refused(&s.p, ATTND_BAD_LENGTH,
                   "bias.relative_size = 4: row 0 of sequence 0 sees key 4");
    s.q_len[0] = 3;
    s.kv_len[0] = 2; /* a = -1 */
    assert_refused(&s.p, ATTND_BAD_LENGTH,
                   "bias.relative_size = 4: row 0 of sequence 0 is at key index -1");
    s.p.mask.kinds = ORA_MASK_CAUSAL; /* now it sees nothing */
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 0, -INFINITY);
    assert_row(&r, 1, 0, 0);
    ora_result_fini(&r);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b037_b038_soft_cap_comes_after_the_scale_and_before_the_mask),
        cmocka_unit_test(a_sink_takes_its_share_and_leaves_lse_alone),
        cmocka_unit_test(one_key_against_a_sink_of_0_is_halved),
        cmocka_unit_test(alibi_slopes_are_those_of_the_paper),
        cmocka_unit_test(alibi_adds_slope_times_distance_to_the_rows_own_key),
        cmocka_unit_test(b032_an_empty_part_has_no_share_of_the_sink),
        cmocka_unit_test(b034_a_sink_is_the_logistic_function_of_the_rest),
        cmocka_unit_test(b035_a_sink_is_there_in_every_format),
        cmocka_unit_test(a_sink_of_infinity_leaves_nothing),
        cmocka_unit_test(slopes_of_a_shard_are_those_of_its_heads),
        cmocka_unit_test(the_scale_after_alibi_is_on_both),
        cmocka_unit_test(buckets_are_those_of_t5),
        cmocka_unit_test(buckets_change_exactly_at_powers),
        cmocka_unit_test(a_dense_table_is_read_by_row_and_key),
        cmocka_unit_test(buckets_are_a_dense_table_made_of_them),
        cmocka_unit_test(a_row_or_key_beyond_a_dense_table_is_refused),
    };
    return cmocka_run_group_tests_name("ora_score", tests, NULL, NULL);
}
