/* test_ora_generate.c: generated data is the same to the bit wherever it is made. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"

static void the_three_check_values_come_out(void **state)
{
    assert_true(ora_element(0, "q", 0) == 0.67114533736070281);
    assert_true(ora_element(0, "q", 1) == -0.74981146954373834);
    assert_true(ora_element(7, "k", 1000000) == -0.92199369480204763);
}

static void fnv1a64_is_the_published_one(void **state)
{
    assert_true(ora_fnv1a64("") == 0xCBF29CE484222325u);
    assert_true(ora_fnv1a64("a") == 0xAF63DC4C8601EC8Cu);
    assert_true(ora_fnv1a64("foobar") == 0x85944171F73967E8u);
    assert_true(ora_fnv1a64("\xC3\xA9") != ora_fnv1a64("\xE9"));
}

static void an_element_depends_on_its_index_alone(void **state)
{
    float whole[100], part[40];
    ora_generate(3, "v", 0, 100, 1, ATTND_DTYPE_F32, whole);
    ora_generate(3, "v", 60, 40, 1, ATTND_DTYPE_F32, part);
    assert_memory_equal(whole + 60, part, sizeof part);
    for (int i = 0; i < 100; i++)
        assert_true(whole[i] == (float)ora_element(3, "v", (uint64_t)i));
}

static void amplitude_comes_before_the_rounding_to_fp32_and_then_to_the_type(void **state)
{
    uint16_t half[256], want;
    ora_generate(1, "k", 0, 256, 8, ATTND_DTYPE_BF16, half);
    for (uint64_t i = 0; i < 256; i++) {
        double value = (float)(ora_element(1, "k", i) * 8);
        ora_encode(ATTND_DTYPE_BF16, &value, 1, &want);
        assert_int_equal(half[i], want);
    }
}

static void the_draws_have_mean_0_and_variance_1(void **state)
{
    double sum = 0, squares = 0;
    int n = 100000;
    for (int i = 0; i < n; i++) {
        double x = ora_element(42, "out", (uint64_t)i);
        assert_true(fabs(x) <= 2 * sqrt(3));
        sum += x;
        squares += x * x;
    }
    assert_true(fabs(sum / n) < 0.015);
    assert_true(fabs(squares / n - 1) < 0.015);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_check_values_come_out),
        cmocka_unit_test(fnv1a64_is_the_published_one),
        cmocka_unit_test(an_element_depends_on_its_index_alone),
        cmocka_unit_test(amplitude_comes_before_the_rounding_to_fp32_and_then_to_the_type),
        cmocka_unit_test(the_draws_have_mean_0_and_variance_1),
    };
    return cmocka_run_group_tests_name("ora_generate", tests, NULL, NULL);
}
