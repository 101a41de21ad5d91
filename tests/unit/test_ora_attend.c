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
#include "tests/support/scene.h"

/* ---- Answers worked out by hand ---- */

static void b001_slack_of_a_block_may_be_nan(void **state)
{
    scene s;
    scene_open(
        &s, &(scene_shape){2, 1, 1, 64, 64, 4, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, {1, 1}, {1, 3}},
        SCENE_POSITIONS);
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 0, 0);
    assert_row(&r, 1, 1, log(3));
    ora_result_fini(&r);
    s.p.mask.kinds = 0; /* full: the end of the keys bounds it, not the mask */
    r = scene_attend(&s.p);
    assert_row(&r, 1, 1, log(3));
    ora_result_fini(&r);
    scene_close(&s);
}

static void b014_more_queries_than_keys_leave_the_first_rows_empty(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {5}, {2}},
               SCENE_POSITIONS);
    ora_result r = scene_attend(&s.p);
    for (int i = 0; i < 3; i++)
        assert_row(&r, i, 0, -INFINITY);
    assert_row(&r, 3, 0, 0);
    assert_row(&r, 4, 0.5, log(2));
    ora_result_fini(&r);
    s.p.mask.kinds = 0;
    r = scene_attend(&s.p);
    for (int i = 0; i < 5; i++)
        assert_row(&r, i, 0.5, log(2));
    ora_result_fini(&r);
    scene_close(&s);
}

static void b011_sequences_without_rows_or_keys_are_no_matter(void **state)
{
    scene s;
    scene_open(
        &s,
        &(scene_shape){
            4, 6, 2, 64, 64, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_NHD, {0, 1, 0, 1}, {0, 3, 0, 5}},
        SCENE_POSITIONS);
    ora_result r = scene_attend(&s.p);
    assert_int_equal(r.n_tokens, 2);
    for (int h = 0; h < 6; h++) {
        assert_row(&r, h, 1, log(3));
        assert_row(&r, 6 + h, 2, log(5));
    }
    ora_result_fini(&r);
    s.kv_len[1] = 0;
    s.kv_len[3] = 0;
    r = scene_attend(&s.p);
    for (int i = 0; i < 12; i++)
        assert_row(&r, i, 0, -INFINITY);
    ora_result_fini(&r);
    s.p.n_seqs = 0;
    r = scene_attend(&s.p);
    assert_int_equal(r.n_tokens, 0);
    ora_result_fini(&r);
    scene_close(&s);
}

static void b013_very_negative_scores_are_scores(void **state)
{
    scene s;
    scene_open(
        &s, &(scene_shape){2, 1, 1, 64, 1, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {1, 1}, {2, 0}},
        SCENE_POSITIONS);
    double q[64] = {-256, -1}, k[2][64] = {{234}, {234, 1}}, v[2] = {1, 2};
    ora_encode(ATTND_DTYPE_BF16, q, 64, s.q);
    for (int32_t j = 0; j < 2; j++) {
        ora_encode(ATTND_DTYPE_BF16, k[j], 64, scene_key(&s, 0, j, 0, 0));
        ora_encode(ATTND_DTYPE_BF16, &v[j], 1, scene_key(&s, 0, j, 0, 1));
    }
    s.p.sm_scale = 1;
    ora_result r = scene_attend(&s.p);
    assert_near(r.out[0], 1.268941, 1e-6);
    assert_near(r.lse[0], -59903.6867, 1e-8);
    assert_row(&r, 1, 0, -INFINITY);
    ora_result_fini(&r);
    scene_close(&s);
}

static void heads_of_a_group_read_their_own_kv_head(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 6, 3, 8, 2, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_NHD, {1}, {1}},
               SCENE_RANDOM);
    ora_result r = scene_attend(&s.p);
    for (uint32_t h = 0; h < 6; h++) {
        float v[2];
        memcpy(v, scene_key(&s, 0, 0, h / 2, 1), sizeof v);
        assert_true(r.out[h * 2] == v[0] && r.out[h * 2 + 1] == v[1]);
        assert_true(r.vmax[h] == fmax(fabs(v[0]), fabs(v[1])));
    }
    ora_result_fini(&r);
    scene_close(&s);
}

static void nan_stays_in_the_rows_and_channels_it_belongs_to(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 2, 2, 4, 4, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {3, 3}},
               SCENE_RANDOM);
    ora_result clean = scene_attend(&s.p);
    memset(s.q, 0xFF, 4);                           /* q of sequence 0, head 0 */
    memset(scene_key(&s, 1, 1, 1, 1) + 4, 0xFF, 4); /* v of sequence 1, key 1, head 1, channel 1 */
    ora_result r = scene_attend(&s.p);
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
    memset(scene_key(&s, 1, 2, 0, 0), 0xFF, 4); /* k of sequence 1, key 2, head 0 */
    r = scene_attend(&s.p);
    for (int row = 0; row < 4; row++)
        assert_int_equal(isnan(r.lse[row]), row == 2);
    ora_result_fini(&r);
    ora_result_fini(&clean);
    scene_close(&s);
}

static void only_scores_of_minus_infinity_are_an_empty_row(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 1, 1, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {2}},
               SCENE_RANDOM);
    const float minus = -INFINITY, one = 1;
    memcpy(s.q, &one, 4);
    memcpy(scene_key(&s, 0, 0, 0, 0), &minus, 4);
    memcpy(scene_key(&s, 0, 1, 0, 0), &minus, 4);
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 0, -INFINITY);
    ora_result_fini(&r);
    scene_close(&s);
}

static void b107_large_scores_do_not_overflow(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 64, 1, 4, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, {1}, {2}},
               SCENE_RANDOM);
    double ones[64], v[] = {0, 2};
    for (int d = 0; d < 64; d++)
        ones[d] = 300;
    ora_encode(ATTND_DTYPE_F16, ones, 64, s.q);
    for (int32_t j = 0; j < 2; j++) {
        ora_encode(ATTND_DTYPE_F16, ones, 64, scene_key(&s, 0, j, 0, 0));
        ora_encode(ATTND_DTYPE_F16, &v[j], 1, scene_key(&s, 0, j, 0, 1));
    }
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 1, 720000 + log(2));
    ora_result_fini(&r);
    scene_close(&s);
}

/* ---- The oracle against itself ---- */

/* The other witness: §1 written straight down, in long double, for every head of every row. */
static void random_data_gives_what_the_definition_gives(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    float sinks[6], slopes[6];
    ora_generate(1, "sinks", 0, 6, 1, ATTND_DTYPE_F32, sinks);
    ora_generate(1, "slopes", 0, 6, 0.1, ATTND_DTYPE_F32, slopes);
    s.p.bias.sinks = sinks;
    s.p.bias.alibi_slopes = slopes;
    s.p.bias.softcap = 3;
    ora_result r = scene_attend(&s.p);
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
                    ora_decode(ATTND_DTYPE_BF16, scene_key(&s, b, j, h / 3, 0), 24, k);
                    ora_decode(ATTND_DTYPE_BF16, scene_key(&s, b, j, h / 3, 1), 40, v);
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

static void b026_chunked_prefill_gives_the_rows_of_one_shot(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_NEOX, .dim = 16, .theta = 10000};
    const float slopes[] = {0.5f, 0.25f};
    scene whole;
    scene_open(&whole,
               &(scene_shape){1, 2, 1, 24, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {12}, {12}},
               SCENE_RANDOM);
    const int32_t splits[][13] = {
        {5, 7, 0}, {11, 1, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, {4, 4, 4, 0}};
    for (int window = 0; window <= 5; window += 5)
        for (size_t split = 0; split < sizeof splits / sizeof splits[0]; split++) {
            ora_problem p = whole.p;
            p.rope = rope;
            p.bias.alibi_slopes = slopes;
            p.mask.window = window;
            if (window)
                p.mask.kinds |= ORA_MASK_WINDOW;
            ora_result all = scene_attend(&p);
            int32_t done = 0;
            for (const int32_t *n = splits[split]; *n; n++) {
                int32_t q_len = *n, kv_len = done + *n;
                ora_problem part = p;
                part.q_len = &q_len;
                part.kv_len = &kv_len;
                part.q.base = (const char *)p.q.base + done * p.q.token_stride;
                ora_result r = scene_attend(&part);
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

static void parts_of_the_keys_merge_to_the_whole(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    float sinks[6];
    ora_generate(1, "sinks", 0, 6, 1, ATTND_DTYPE_F32, sinks);
    const int32_t cuts[][4] = {{0, 50}, {0, 7, 50}, {0, 1, 33, 50}, {0, 40, 41, 50}};
    for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
        s.p.bias.sinks = sinks;
        s.p.key_to = 0;
        ora_result whole = scene_attend(&s.p), part[3];
        s.p.bias.sinks = NULL;
        uint32_t n = 0;
        for (; n < 3 && cuts[c][n] < 50; n++) {
            s.p.key_from = cuts[c][n];
            s.p.key_to = cuts[c][n + 1];
            part[n] = scene_attend(&s.p);
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
    scene_open(&base, &SCENE_MIXED, SCENE_RANDOM);
    for (uint32_t T = 1; T <= 32; T *= 2)
        for (int layout = 0; layout < 2; layout++) {
            scene_shape other = SCENE_MIXED;
            other.T = T;
            other.layout = (attnd_layout)layout;
            scene s;
            scene_open(&s, &other, SCENE_RANDOM);
            assert_problems_same(&base.p, &s.p, 0);
            scene_close(&s);
        }
    scene_close(&base);
}

static void given_keys_are_the_same_as_paged_ones(void **state)
{
    scene s;
    scene_open(&s, &SCENE_MIXED, SCENE_RANDOM);
    ora_problem p = s.p;
    int64_t k_row = 2 * 24 * 2, v_row = 2 * 40 * 2, row = 0;
    char *k = malloc(87 * (size_t)k_row), *v = malloc(87 * (size_t)v_row);
    assert_true(k && v);
    for (uint32_t b = 0; b < 3; b++)
        for (int32_t j = 0; j < s.kv_len[b]; j++, row++)
            for (uint32_t g = 0; g < 2; g++) {
                memcpy(k + row * k_row + g * 48, scene_key(&s, b, j, g, 0), 48);
                memcpy(v + row * v_row + g * 80, scene_key(&s, b, j, g, 1), 80);
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

static void b028_blocks_no_row_sees_are_never_asked_for(void **state)
{
    scene s;
    scene_open(&s, &(scene_shape){1, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1}, {13}},
               SCENE_POSITIONS);
    s.p.mask.kinds |= ORA_MASK_WINDOW;
    s.p.mask.window = 6; /* keys 7..12: block 0 is out */
    s.block_ids[0] = -1;
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, 9.5, log(6));
    ora_result_fini(&r);
    s.block_ids[0] = INT32_MAX;
    r = scene_attend(&s.p);
    assert_row(&r, 0, 9.5, log(6));
    ora_result_fini(&r);
    scene_close(&s);
}

static void rows_may_lie_apart(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {3, 5}},
               SCENE_RANDOM);
    ora_result near = scene_attend(&s.p);
    const int64_t first[] = {3, 0};
    char q[4 * 32];
    memset(q, 0xFF, sizeof q);
    memcpy(q + 96, s.q, 32);
    memcpy(q, s.q + 32, 32);
    s.p.q.base = q;
    s.p.q_first = first;
    ora_result apart = scene_attend(&s.p);
    assert_int_equal(apart.n_tokens, 4);
    assert_true(apart.lse[3] == near.lse[0] && apart.lse[0] == near.lse[1]);
    assert_memory_equal(apart.out + 24, near.out, 8 * sizeof(double));
    assert_int_equal(apart.n_visible[3], 3);
    assert_int_equal(apart.n_visible[1], -1);
    ora_result_fini(&near);
    ora_result_fini(&apart);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b001_slack_of_a_block_may_be_nan),
        cmocka_unit_test(b014_more_queries_than_keys_leave_the_first_rows_empty),
        cmocka_unit_test(b011_sequences_without_rows_or_keys_are_no_matter),
        cmocka_unit_test(b013_very_negative_scores_are_scores),
        cmocka_unit_test(heads_of_a_group_read_their_own_kv_head),
        cmocka_unit_test(nan_stays_in_the_rows_and_channels_it_belongs_to),
        cmocka_unit_test(only_scores_of_minus_infinity_are_an_empty_row),
        cmocka_unit_test(b107_large_scores_do_not_overflow),
        cmocka_unit_test(random_data_gives_what_the_definition_gives),
        cmocka_unit_test(b026_chunked_prefill_gives_the_rows_of_one_shot),
        cmocka_unit_test(parts_of_the_keys_merge_to_the_whole),
        cmocka_unit_test(layout_block_size_and_block_ids_change_nothing),
        cmocka_unit_test(given_keys_are_the_same_as_paged_ones),
        cmocka_unit_test(b028_blocks_no_row_sees_are_never_asked_for),
        cmocka_unit_test(rows_may_lie_apart),
    };
    return cmocka_run_group_tests_name("ora_attend", tests, NULL, NULL);
}
