/* test_ora_score.c: cap, biases, sinks. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b037_b038_soft_cap_comes_after_the_scale_and_before_the_mask),
        cmocka_unit_test(a_sink_takes_its_share_and_leaves_lse_alone),
        cmocka_unit_test(one_key_against_a_sink_of_0_is_halved),
        cmocka_unit_test(alibi_slopes_are_those_of_the_paper),
        cmocka_unit_test(alibi_adds_slope_times_distance_to_the_rows_own_key),
    };
    return cmocka_run_group_tests_name("ora_score", tests, NULL, NULL);
}
