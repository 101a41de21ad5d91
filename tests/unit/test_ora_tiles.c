/* test_ora_tiles.c: tiles that skip and tiles that keep their maximum, counted and summed by hand.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/generate.h"
#include "tests/oracle/tiles.h"
#include "tests/support/scene.h"

static ora_result attend_tiles(const ora_problem *p, const ora_tiling *tiling,
                               ora_tile_counts *counts)
{
    ora_result r;
    attnd_err err;
    if (ora_attend_tiles(p, tiling, &r, counts, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    return r;
}

static void assert_plain(const ora_problem *p, const ora_tiling *tiling)
{
    ora_result plain = scene_attend(p), tiled = attend_tiles(p, tiling, NULL);
    assert_same(&tiled, &plain, 1e-12);
    for (int64_t row = 0; row < plain.n_tokens * plain.n_heads; row++) {
        assert_true(tiled.vmax[row] == plain.vmax[row]);
        if (tiling->lazy_tau == 0)
            assert_near(tiled.m[row], plain.m[row], 0);
    }
    ora_result_fini(&plain);
    ora_result_fini(&tiled);
}

/* One head of width 1, q = 1: scores[j] is the score of key j, its value is j. */
static void open_scores(scene *s, int32_t kv_len, const float *scores)
{
    scene_open(s,
               &(scene_shape){1, 1, 1, 1, 1, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {kv_len}},
               SCENE_POSITIONS);
    *(float *)s->q = 1;
    s->p.sm_scale = 1;
    for (int32_t j = 0; j < kv_len; j++)
        memcpy(scene_key(s, 0, j, 0, 0), &scores[j], 4);
}

/* ---- Without skipping ---- */

static const int32_t SPLITS[] = {0, 16, 16, 64, 1000};

static void tiles_that_skip_nothing_are_plain_attention(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    float sinks[6];
    ora_generate(1, "sinks", 0, 6, 1, ATTND_DTYPE_F32, sinks);
    s.p.bias.sinks = sinks;
    s.p.rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = 24, .theta = 10000};
    const uint32_t rows[] = {1, 3, 128}, keys[] = {1, 16, 64};
    for (int n = 0; n < 36; n++) {
        uint32_t N = keys[n / 3 % 3];
        s.p.mask.kinds = n % 2 ? ORA_MASK_CAUSAL : ORA_MASK_CAUSAL | ORA_MASK_WINDOW;
        s.p.mask.window = 5;
        assert_plain(&s.p, &(ora_tiling){.rows = rows[n % 3],
                                         .keys = N,
                                         .heads_apart = n & 1,
                                         .backwards = n & 2,
                                         .split_ends = n % 5 && N <= 16 ? SPLITS : NULL,
                                         .n_splits = 5});
    }
    scene_close(&s);
}

static void lists_and_quantised_rows_come_in_tiles_too(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    const ora_tiling tiling = {.rows = 4, .keys = 8, .split_ends = SPLITS, .n_splits = 5};
    ora_problem p = s.p;
    p.sage = (ora_sage){.qk_dtype = ATTND_DTYPE_I8,
                        .q_block = 4,
                        .k_block = 16,
                        .smooth_k = true,
                        .smooth_v = true};
    assert_plain(&p, &tiling);
    int32_t entries[22][60], pages[3][2][7], keys[3][2];
    for (int t = 0; t < 22; t++)
        for (int n = 0; n < 60; n++)
            entries[t][n] = (n * 11 + t) % 55 - 2;
    p = s.p;
    p.sparse = (ora_sparse){.topk = entries[0], .topk_width = 60};
    assert_plain(&p, &tiling);
    for (int b = 0, first = 0; b < 3; first += (s.kv_len[b++] + 7) / 8)
        for (int g = 0; g < 2; g++) {
            keys[b][g] = s.kv_len[b] - g;
            for (int n = 0; n < 7; n++)
                pages[b][g][n] = s.block_ids[first + n];
        }
    p.mask.kinds = 0;
    p.sparse = (ora_sparse){.pages = pages[0][0], .page_keys = keys[0], .pages_width = 7};
    assert_plain(&p, &tiling);
    scene_close(&s);
}

static void a_lazy_maximum_changes_no_result(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    s.p.sm_scale = 3; /* scores far apart */
    const double taus[] = {0.5, 8, 100};
    for (int n = 0; n < 12; n++)
        assert_plain(&s.p, &(ora_tiling){.rows = 4,
                                         .keys = 8,
                                         .heads_apart = n & 1,
                                         .split_ends = n & 2 ? SPLITS : NULL,
                                         .n_splits = 5,
                                         .lazy_tau = taus[n / 4]});
    scene_close(&s);
}

static void a_maximum_is_kept_while_it_lags_by_no_more_than_tau(void **state)
{
    const float scores[] = {0, 1, 2, 3};
    scene s;
    open_scores(&s, 4, scores);
    ora_result r = attend_tiles(&s.p, &(ora_tiling){.rows = 1, .keys = 1, .lazy_tau = 2}, NULL);
    assert_true(r.m[0] == 2); /* 1 lags 0 by 1.44 and is no new maximum, 2 by 2.89 and is one */
    assert_near(r.l[0], exp(-2) + exp(-1) + 1 + exp(1), 1e-14);
    ora_result_fini(&r);
    scene_close(&s);
}

/* Two heads, the second with half the scores: one decision for both, or one each. */
static void rows_of_a_tile_keep_their_maxima_together(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 2, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {2}},
               SCENE_POSITIONS);
    const float q[] = {1, 0.5f}, two = 2;
    memcpy(s.q, q, sizeof q);
    memcpy(scene_key(&s, 0, 1, 0, 0), &two, 4);
    s.p.sm_scale = 1;
    for (int apart = 0; apart < 2; apart++) {
        const ora_tiling tiling = {.rows = 1, .keys = 1, .heads_apart = apart, .lazy_tau = 2};
        ora_result r = attend_tiles(&s.p, &tiling, NULL);
        assert_true(r.m[0] == 2 && r.m[1] == (apart ? 0 : 1));
        assert_near(r.lse[1], log(1 + exp(1)), 1e-14);
        ora_result_fini(&r);
    }
    scene_close(&s);
}

/* ---- Skipping (§16.1) ---- */

static void a_tile_far_below_the_maximum_is_skipped(void **state)
{
    const float scores[] = {0, -5, -20, 1};
    scene s;
    open_scores(&s, 4, scores);
    ora_tile_counts counts;
    ora_tiling tiling = {.rows = 1, .keys = 1, .skip_factor = 0.04}; /* λ = 0.01, e⁻⁵ = 0.0067 */
    ora_result r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.total, 4);
    assert_int_equal(counts.skipped, 2);
    assert_near(counts.nearest, 1 - exp(-5) / 0.01, 1e-12);
    assert_near(r.l[0], 1 + exp(-1), 1e-14);
    assert_near(r.out[0], 3 / (1 + exp(-1)), 1e-14);
    assert_int_equal(r.n_visible[0], 4);
    ora_result_fini(&r);
    /* Backwards the maximum comes first, and all others are below it: e⁻⁶, e⁻²¹, and e⁻¹ is kept.
     */
    tiling.backwards = true;
    r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.total, 4);
    assert_int_equal(counts.skipped, 2);
    ora_result_fini(&r);
    tiling.skip_factor = 4; /* λ = 1 */
    r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.skipped, 3);
    assert_true(r.out[0] == 3 && r.l[0] == 1);
    ora_result_fini(&r);
    tiling.skip_factor = 400; /* no more than 1: a tile as high as the maximum stays */
    const float same = 1;
    memcpy(scene_key(&s, 0, 0, 0, 0), &same, 4);
    r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.skipped, 2);
    assert_true(r.out[0] == 1.5 && r.l[0] == 2);
    assert_true(counts.nearest == 0);
    ora_result_fini(&r);
    scene_close(&s);
}

static void lambda_is_the_factor_over_the_keys(void **state)
{
    float scores[1000] = {0};
    scores[500] = -11.6f; /* λ = 1e-5 = e^-11.513 */
    scores[501] = -11.4f;
    scene s;
    open_scores(&s, 1000, scores);
    ora_tile_counts counts;
    const ora_tiling tiling = {.rows = 1, .keys = 1, .skip_factor = 0.01};
    ora_result r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.total, 1000);
    assert_int_equal(counts.skipped, 1);
    assert_near(r.l[0], 998 + exp(-11.4f), 1e-14);
    ora_result_fini(&r);
    scene_close(&s);
}

/* Two rows; the first sees key 0 high, the second low. */
static void all_rows_of_a_tile_must_let_it_go(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {2}, {4}},
               SCENE_POSITIONS);
    const float q[] = {1, -1}, k[] = {0, 0, 9, 0};
    memcpy(s.q, q, sizeof q);
    for (int32_t j = 0; j < 4; j++)
        memcpy(scene_key(&s, 0, j, 0, 0), &k[j], 4);
    s.p.sm_scale = 1;
    s.p.mask.kinds = 0;
    ora_tile_counts counts;
    ora_tiling tiling = {.rows = 1, .keys = 1, .skip_factor = 0.004};
    ora_result r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.total, 8);
    assert_int_equal(counts.skipped, 2); /* row 0: key 3 behind 9; row 1: key 2 is -9 */
    assert_near(r.l[1], 3, 1e-14);
    ora_result_fini(&r);
    tiling.rows = 2;
    r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.total, 4);
    assert_int_equal(counts.skipped, 0);
    assert_near(r.l[1], 3 + exp(-9), 1e-14);
    ora_result_fini(&r);
    scene_close(&s);
}

/* The maximum of what was seen, not the one that sums are in units of: e^(-4-1) < 0.01 < e^-4. */
static void skipping_asks_for_the_true_maximum(void **state)
{
    const float scores[] = {0, 1, -4};
    scene s;
    open_scores(&s, 3, scores);
    ora_tile_counts counts;
    const ora_tiling tiling = {.rows = 1, .keys = 1, .skip_factor = 0.03, .lazy_tau = 2};
    ora_result r = attend_tiles(&s.p, &tiling, &counts);
    assert_true(r.m[0] == 0);
    assert_int_equal(counts.skipped, 1);
    assert_near(r.l[0], 1 + exp(1), 1e-14);
    ora_result_fini(&r);
    scene_close(&s);
}

static void tiles_that_no_row_sees_are_not_counted(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {9}},
               SCENE_POSITIONS);
    const struct {
        uint32_t rows, keys, kinds;
        uint64_t total;
    } cases[] = {
        {1, 2, ORA_MASK_CAUSAL, 3 + 3 + 4 + 4 + 5}, /* a = 4 .. 8 */
        {2, 2, ORA_MASK_CAUSAL, 3 + 4 + 5},
        {5, 2, ORA_MASK_CAUSAL, 5},
        {1, 2, 0, 5 * 5},
        {1, 2, ORA_MASK_CAUSAL | ORA_MASK_WINDOW, 2 + 1 + 2 + 1 + 2}, /* keys a-1, a */
        {3, 2, ORA_MASK_CAUSAL | ORA_MASK_WINDOW, 3 + 2},             /* keys 3-6, 6-8 */
        {8, 100, ORA_MASK_CAUSAL, 1},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        s.p.mask = (ora_mask){.kinds = cases[n].kinds, .window = 2};
        ora_tile_counts counts;
        const ora_tiling tiling = {.rows = cases[n].rows, .keys = cases[n].keys};
        ora_result r = attend_tiles(&s.p, &tiling, &counts);
        assert_int_equal(counts.total, cases[n].total);
        assert_int_equal(counts.skipped, 0);
        assert_true(counts.nearest == INFINITY);
        ora_result_fini(&r);
    }
    scene_close(&s);
}

static void every_split_has_a_first_tile_of_its_own(void **state)
{
    const float scores[] = {0, -20, -20, -21};
    const int32_t ends[] = {2, 4};
    scene s;
    open_scores(&s, 4, scores);
    ora_tile_counts counts;
    ora_tiling tiling = {.rows = 1, .keys = 1, .skip_factor = 0.004};
    ora_result r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.skipped, 3);
    ora_result_fini(&r);
    tiling.split_ends = ends;
    tiling.n_splits = 2;
    r = attend_tiles(&s.p, &tiling, &counts);
    assert_int_equal(counts.total, 4);
    assert_int_equal(counts.skipped, 1); /* key 1; key 3 is near its split's maximum */
    assert_near(r.l[0], 1 + exp(-20) + exp(-21), 1e-14);
    ora_result_fini(&r);
    scene_close(&s);
}

static void what_is_skipped_is_bounded_by_the_factor(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    s.p.sm_scale = 1;
    uint64_t n_skipped = 0;
    const double factors[] = {0.01, 0.03, 0.1, 0.3, 1};
    for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
        double factor = factors[f];
        ora_tile_counts counts;
        const ora_tiling tiling = {
            .rows = 1, .keys = 4, .heads_apart = true, .skip_factor = factor};
        ora_result plain = scene_attend(&s.p), r = attend_tiles(&s.p, &tiling, &counts);
        n_skipped += counts.skipped;
        for (int64_t row = 0; row < r.n_tokens * r.n_heads; row++)
            for (uint32_t d = 0; d < r.head_dim_v; d++) {
                int64_t n = row * r.head_dim_v + d;
                assert_true(fabs(r.out[n] - plain.out[n]) <= 2 * factor * plain.vmax[row]);
            }
        ora_result_fini(&plain);
        ora_result_fini(&r);
    }
    assert_true(n_skipped > 100);
    scene_close(&s);
}

static void a_sink_comes_after_the_last_split(void **state)
{
    const float scores[] = {0, 0, 0, 0}, sink = 0;
    const int32_t ends[] = {1, 2, 4};
    scene s;
    open_scores(&s, 4, scores);
    s.p.bias.sinks = &sink;
    ora_result r = attend_tiles(
        &s.p, &(ora_tiling){.rows = 1, .keys = 1, .split_ends = ends, .n_splits = 3}, NULL);
    assert_near(r.out[0], 6 / 5.0, 1e-14);
    assert_near(r.lse[0], log(4), 1e-14);
    ora_result_fini(&r);
    scene_close(&s);
}

static void nan_and_rows_without_keys_are_as_in_plain_attention(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 2, 1, 4, 4, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {4}, {2}},
               SCENE_RANDOM);
    memset(scene_key(&s, 0, 1, 0, 0), 0xFF, 4); /* the last row alone sees it */
    assert_plain(&s.p, &(ora_tiling){.rows = 4, .keys = 1, .skip_factor = 0});
    ora_result r =
        attend_tiles(&s.p, &(ora_tiling){.rows = 4, .keys = 1, .skip_factor = 0.1}, NULL);
    for (int row = 0; row < 8; row++)
        assert_int_equal(isnan(r.lse[row]), row >= 6);
    assert_row(&r, 0, 0, -INFINITY);
    ora_result_fini(&r);
    scene_close(&s);
}

static void what_is_no_tiling_is_refused(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    const int32_t odd[] = {3, 50}, falling[] = {16, 8, 50};
    const struct {
        ora_tiling tiling;
        const char *text;
    } cases[] = {
        {{.keys = 4}, "tiling.rows = 0: at least 1"},
        {{.rows = 4}, "tiling.keys = 0: at least 1"},
        {{.rows = 1, .keys = 4, .skip_factor = -1}, "tiling.skip_factor = -1: 0 or above"},
        {{.rows = 1, .keys = 4, .lazy_tau = NAN}, "tiling.lazy_tau = nan: 0 or above"},
        {{.rows = 1, .keys = 4, .split_ends = odd}, "tiling.n_splits = 0: at least 1"},
        {{.rows = 1, .keys = 4, .split_ends = odd, .n_splits = 2},
         "tiling.split_ends[0] = 3: a multiple of keys = 4, ascending"},
        {{.rows = 1, .keys = 4, .split_ends = falling, .n_splits = 3},
         "tiling.split_ends[0] = 16: a multiple of keys = 4, ascending"},
    };
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        ora_result r;
        attnd_err err = {0};
        assert_int_equal(ora_attend_tiles(&s.p, &cases[n].tiling, &r, NULL, &err),
                         ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_GEOMETRY);
        assert_string_equal(err.text, cases[n].text);
        assert_null(r.memory);
    }
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_that_skip_nothing_are_plain_attention),
        cmocka_unit_test(lists_and_quantised_rows_come_in_tiles_too),
        cmocka_unit_test(a_lazy_maximum_changes_no_result),
        cmocka_unit_test(a_maximum_is_kept_while_it_lags_by_no_more_than_tau),
        cmocka_unit_test(rows_of_a_tile_keep_their_maxima_together),
        cmocka_unit_test(a_tile_far_below_the_maximum_is_skipped),
        cmocka_unit_test(lambda_is_the_factor_over_the_keys),
        cmocka_unit_test(all_rows_of_a_tile_must_let_it_go),
        cmocka_unit_test(skipping_asks_for_the_true_maximum),
        cmocka_unit_test(tiles_that_no_row_sees_are_not_counted),
        cmocka_unit_test(every_split_has_a_first_tile_of_its_own),
        cmocka_unit_test(what_is_skipped_is_bounded_by_the_factor),
        cmocka_unit_test(a_sink_comes_after_the_last_split),
        cmocka_unit_test(nan_and_rows_without_keys_are_as_in_plain_attention),
        cmocka_unit_test(what_is_no_tiling_is_refused),
    };
    return cmocka_run_group_tests_name("ora_tiles", tests, NULL, NULL);
}
