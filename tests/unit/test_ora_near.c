/* test_ora_near.c: the gates let through what attention.md lets through, and nothing more. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/near.h"

/* Two tokens of two heads, two channels: made by hand, rows t·2 + h. */
static double out[8], lse[4], m[4], l[4], vmax[4];
static int64_t n_visible[4];
static const ora_result want = {2, 2, 2, out, lse, m, l, vmax, n_visible, NULL};
static float got[2][2][2], stats[2][2][2], got_lse[2][2];
static const ora_rows got_out = {got, sizeof got[0], sizeof got[0][0], ATTND_DTYPE_F32};
static const ora_rows lse_rows = {got_lse, sizeof got_lse[0], 4, ATTND_DTYPE_F32};
static const ora_rows stat_rows = {stats, sizeof stats[0], sizeof stats[0][0], ATTND_DTYPE_F32};

/* Everything as the oracle says. */
static int agree(void **state)
{
    for (int i = 0; i < 8; i++)
        ((float *)got)[i] = (float)(out[i] = 0.1 * (i + 1));
    for (int i = 0; i < 4; i++) {
        m[i] = 0.5;
        l[i] = 2 + i;
        vmax[i] = 1;
        n_visible[i] = 3;
        ((float *)got_lse)[i] = (float)(lse[i] = 0.5 + log(2 + i));
        ((float *)stats)[2 * i] = 1.5f; /* another maximum, the same pair */
        ((float *)stats)[2 * i + 1] = (float)((2 + i) * exp(-1));
    }
    return 0;
}

static bool near(double widen, bool sinks, near_report *r)
{
    return near_out(&got_out, &want, NEAR_F32, widen, sinks, r);
}

static void what_agrees_passes_and_says_so(void **state)
{
    near_report r;
    assert_true(near(1, false, &r));
    assert_true(r.ok && r.e_inf < 1e-7 && r.e_rms < 1e-7);
    assert_true(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    assert_true(near_stats(&stat_rows, &want, NEAR_CPU, &r));
}

static void the_worst_row_is_named(void **state)
{
    near_report r;
    got[0][1][0] += 3e-5f;
    got[1][0][1] += 5e-5f;
    assert_false(near(1, false, &r));
    assert_int_equal(r.token, 1);
    assert_int_equal(r.head, 0);
    assert_true(r.e_inf > 4.9e-5 && r.e_inf < 5.1e-5);
    assert_non_null(strstr(r.text, "out[token 1][head 0][1] = 0.60005"));
}

static void the_gate_grows_with_the_values_of_the_row(void **state)
{
    near_report r;
    got[1][1][0] += 3e-5f;
    assert_false(near(1, false, &r));
    vmax[3] = 2;
    assert_false(near(1, false, &r)); /* one element in a row: e_rms has its own gate */
    for (int i = 0; i < 8; i++)
        out[i] *= 2, ((float *)got)[i] *= 2;
    got[1][1][0] = (float)(out[6] + 3e-5);
    assert_true(near(1, false, &r));
    got[1][1][0] = (float)(out[6] + 5e-5);
    assert_false(near(1, false, &r));
    assert_true(near(1.5, false, &r));
}

static void e_rms_has_its_own_gate(void **state)
{
    near_report r;
    for (int i = 0; i < 4; i++)
        vmax[i] = 100; /* every element is within e_inf of it */
    for (int i = 0; i < 8; i++)
        ((float *)got)[i] += 1e-3f;
    assert_false(near(1, false, &r));
    assert_true(r.e_rms > 1e-3);
}

static void nan_fails_unless_the_oracle_has_it_too(void **state)
{
    near_report r;
    got[0][0][1] = NAN;
    assert_false(near(1, false, &r));
    assert_int_equal(r.token, 0);
    out[1] = NAN;
    assert_true(near(1, false, &r));
    got[0][0][1] = 0;
    assert_false(near(1, false, &r));
    got_lse[1][1] = NAN;
    assert_false(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    assert_int_equal(r.head, 1);
    stats[0][0][1] = NAN;
    assert_false(near_stats(&stat_rows, &want, NEAR_CPU, &r));
}

static void infinity_is_never_near_a_number(void **state)
{
    near_report r;
    got[0][0][0] = INFINITY;
    assert_false(near(1e6, false, &r));
    out[0] = INFINITY;
    assert_true(near(1, false, &r));
    out[0] = -INFINITY;
    assert_false(near(1, false, &r));
}

static void an_empty_row_is_0_and_minus_infinity_exactly(void **state)
{
    near_report r;
    out[2] = out[3] = 0;
    lse[1] = m[1] = -INFINITY;
    l[1] = 0;
    vmax[1] = 0;
    n_visible[1] = 0;
    got[0][1][0] = got[0][1][1] = 0;
    assert_true(near(1, false, &r));
    got[0][1][1] = 1e-30f;
    assert_false(near(1, false, &r));
    assert_int_equal(r.head, 1);

    assert_false(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    got_lse[0][1] = -INFINITY;
    assert_true(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    got_lse[0][0] = -INFINITY;
    assert_false(near_lse(&lse_rows, &want, NEAR_CPU, &r));

    stats[0][1][0] = -INFINITY;
    stats[0][1][1] = 0;
    assert_true(near_stats(&stat_rows, &want, NEAR_CPU, &r));
    stats[0][1][1] = 1e-30f;
    assert_false(near_stats(&stat_rows, &want, NEAR_CPU, &r));
    stats[0][1][0] = -3e38f;
    stats[0][1][1] = 0;
    assert_false(near_stats(&stat_rows, &want, NEAR_CPU, &r));
}

static void one_key_without_a_sink_is_that_value_rounded_once(void **state)
{
    near_report r;
    n_visible[0] = 1;
    assert_true(near(1, false, &r));
    got[0][0][0] = nextafterf(got[0][0][0], 1);
    assert_false(near(1, false, &r));
    assert_true(near(1, true, &r));
}

static void a_16_bit_output_may_be_off_by_its_own_step(void **state)
{
    near_report r;
    uint16_t half[2][2][2];
    const ora_rows rows = {half, sizeof half[0], sizeof half[0][0], ATTND_DTYPE_BF16};
    for (int i = 0; i < 8; i++)
        out[i] *= 100;
    ora_encode(ATTND_DTYPE_BF16, out, 8, half);
    assert_true(near_out(&rows, &want, NEAR_BF16, 1, false, &r));
    assert_true(near_out(&rows, &want, NEAR_F16, 10, false, &r)); /* right once rounded */
    half[1][1][1]++;
    assert_true(near_out(&rows, &want, NEAR_BF16, 1, false, &r));
    half[1][1][1]++;
    assert_false(near_out(&rows, &want, NEAR_BF16, 1, false, &r));
    assert_int_equal(r.token, 1);
}

static void lse_has_a_gate_for_each_backend(void **state)
{
    near_report r;
    got_lse[0][1] += 2e-4f;
    assert_false(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    assert_int_equal(r.head, 1);
    assert_true(near_lse(&lse_rows, &want, NEAR_GPU, &r));
    got_lse[0][1] += 2e-3f;
    assert_false(near_lse(&lse_rows, &want, NEAR_GPU, &r));
    lse[1] = 720000;
    got_lse[0][1] = 720001.4f;
    assert_true(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    got_lse[0][1] = 720001.6f;
    assert_false(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    stats[1][0][1] *= 1.0002f;
    lse[1] = 0.5 + log(3);
    assert_false(near_stats(&stat_rows, &want, NEAR_CPU, &r));
    assert_int_equal(r.token, 1);
}

static void rows_of_no_sequence_are_passed_over(void **state)
{
    near_report r;
    n_visible[1] = n_visible[2] = -1;
    got[0][1][0] = got[1][0][0] = NAN;
    got_lse[0][1] = got_lse[1][0] = NAN;
    stats[0][1][0] = stats[1][0][0] = NAN;
    assert_true(near(1, false, &r));
    assert_true(near_lse(&lse_rows, &want, NEAR_CPU, &r));
    assert_true(near_stats(&stat_rows, &want, NEAR_CPU, &r));
}

static void bytes_are_equal_or_within_steps(void **state)
{
    near_report r;
    const uint16_t a[] = {0x3C00, 0x0000, 0x8001, 0x7E00}, same[] = {0x3C00, 0, 0x8001, 0x7E00};
    assert_true(near_bytes(ATTND_DTYPE_F16, a, same, 4, 0, &r));
    const uint16_t step[] = {0x3C01, 0x8000, 0x8000, 0x7E00};
    assert_false(near_bytes(ATTND_DTYPE_F16, a, step, 4, 0, &r));
    assert_int_equal(r.token, 0);
    assert_true(near_bytes(ATTND_DTYPE_F16, a, step, 4, 1, &r));
    const uint16_t across[] = {0x3C00, 0, 0x0001, 0x7E00};
    assert_false(near_bytes(ATTND_DTYPE_F16, a, across, 4, 1, &r));
    assert_int_equal(r.token, 2);
    assert_true(near_bytes(ATTND_DTYPE_F16, a, across, 4, 2, &r));
    const uint16_t payload[] = {0x3C00, 0, 0x8001, 0x7E01};
    assert_false(near_bytes(ATTND_DTYPE_F16, a, payload, 4, 1, &r));
    assert_int_equal(r.token, 3);
}

static void paths_follow_from_the_types(void **state)
{
    const attnd_dtype f32 = ATTND_DTYPE_F32, f16 = ATTND_DTYPE_F16, bf16 = ATTND_DTYPE_BF16;
    assert_int_equal(near_path_for(f32, f32, f32), NEAR_F32);
    assert_int_equal(near_path_for(f16, f16, f16), NEAR_F16);
    assert_int_equal(near_path_for(f16, f16, f32), NEAR_F16);
    assert_int_equal(near_path_for(f32, f16, f32), NEAR_F16);
    assert_int_equal(near_path_for(bf16, bf16, bf16), NEAR_BF16);
    assert_int_equal(near_path_for(bf16, bf16, f32), NEAR_BF16_F32);
    assert_int_equal(near_path_for(f32, bf16, f32), NEAR_BF16_F32);
    assert_int_equal(near_path_for(f16, bf16, f16), NEAR_BF16);
    assert_true(near_gate_of(NEAR_F32).e_inf == 2e-5 && near_gate_of(NEAR_F32).e_rms == 1.5e-5);
    assert_true(near_gate_of(NEAR_BF16).e_inf == 8e-3 && near_gate_of(NEAR_BF16).e_rms == 5e-3);
}

#define TEST(name) cmocka_unit_test_setup(name, agree)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_agrees_passes_and_says_so),
        TEST(the_worst_row_is_named),
        TEST(the_gate_grows_with_the_values_of_the_row),
        TEST(e_rms_has_its_own_gate),
        TEST(nan_fails_unless_the_oracle_has_it_too),
        TEST(infinity_is_never_near_a_number),
        TEST(an_empty_row_is_0_and_minus_infinity_exactly),
        TEST(one_key_without_a_sink_is_that_value_rounded_once),
        TEST(a_16_bit_output_may_be_off_by_its_own_step),
        TEST(lse_has_a_gate_for_each_backend),
        TEST(rows_of_no_sequence_are_passed_over),
        TEST(bytes_are_equal_or_within_steps),
        TEST(paths_follow_from_the_types),
    };
    return cmocka_run_group_tests_name("ora_near", tests, NULL, NULL);
}
