/* test_ora_codec.c: every code of every 16-bit format reads right, and every value between two
 * codes rounds to the right one.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"

/* The definition, written down: sign, exponent, mantissa. */
static double value_of(uint32_t code, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = code & ((1u << mantissa_bits) - 1);
    double sign = code >> (exponent_bits + mantissa_bits) ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return mantissa == 0 ? sign * INFINITY : NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp(1 + ldexp(mantissa, -mantissa_bits), exponent - bias);
}

static uint16_t encoded(attnd_dtype dtype, double value)
{
    uint16_t code;
    ora_encode(dtype, &value, 1, &code);
    return code;
}

static void check_all_codes(attnd_dtype dtype, int exponent_bits, int mantissa_bits)
{
    for (uint32_t c = 0; c < 65536; c++) {
        uint16_t code = (uint16_t)c;
        double want = value_of(c, exponent_bits, mantissa_bits), got;
        ora_decode(dtype, &code, 1, &got);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_int_equal(encoded(dtype, got), 0x7FFF);
        } else {
            assert_true(got == want && signbit(got) == signbit(want));
            assert_int_equal(encoded(dtype, got), code);
            assert_true(ora_round(dtype, got) == got);
        }
    }
}

/* Between neighbours c and c + 1 of one sign: a tie goes to the even code, the rest to the nearer.
 */
static void check_all_ties(attnd_dtype dtype, int exponent_bits, int mantissa_bits)
{
    uint32_t infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    for (uint32_t c = 0; c < infinity; c++) {
        double low = value_of(c, exponent_bits, mantissa_bits);
        double high = value_of(c + 1, exponent_bits, mantissa_bits);
        if (c + 1 == infinity) /* what the next power of two would be */
            high = ldexp(1, (1 << (exponent_bits - 1)));
        double middle = low / 2 + high / 2;
        uint16_t even = (uint16_t)(c & 1 ? c + 1 : c);
        assert_int_equal(encoded(dtype, middle), even);
        assert_int_equal(encoded(dtype, -middle), even | 0x8000);
        assert_int_equal(encoded(dtype, nextafter(middle, 0)), c);
        assert_int_equal(encoded(dtype, nextafter(middle, INFINITY)), c + 1);
        assert_true(ora_ulp(dtype, low) == high - low);
        assert_true(ora_ulp(dtype, -low) == high - low);
    }
}

static void every_f16_code_reads_and_writes_itself(void **state)
{
    check_all_codes(ATTND_DTYPE_F16, 5, 10);
}

static void every_bf16_code_reads_and_writes_itself(void **state)
{
    check_all_codes(ATTND_DTYPE_BF16, 8, 7);
}

static void between_f16_codes_the_nearest_or_even_one_is_taken(void **state)
{
    check_all_ties(ATTND_DTYPE_F16, 5, 10);
}

static void between_bf16_codes_the_nearest_or_even_one_is_taken(void **state)
{
    check_all_ties(ATTND_DTYPE_BF16, 8, 7);
}

static void overflow_is_infinity_and_nan_loses_its_sign(void **state)
{
    assert_int_equal(encoded(ATTND_DTYPE_F16, 65504), 0x7BFF);
    assert_int_equal(encoded(ATTND_DTYPE_F16, 65519.99), 0x7BFF);
    assert_int_equal(encoded(ATTND_DTYPE_F16, 65520), 0x7C00);
    assert_int_equal(encoded(ATTND_DTYPE_F16, -1e300), 0xFC00);
    assert_int_equal(encoded(ATTND_DTYPE_BF16, 3.4e38), 0x7F80);
    assert_int_equal(encoded(ATTND_DTYPE_BF16, -INFINITY), 0xFF80);
    assert_int_equal(encoded(ATTND_DTYPE_F16, -NAN), 0x7FFF);
    assert_int_equal(encoded(ATTND_DTYPE_BF16, -NAN), 0x7FFF);
    assert_int_equal(encoded(ATTND_DTYPE_F16, -0.0), 0x8000);
    assert_true(ora_ulp(ATTND_DTYPE_F16, -INFINITY) == 32);
    assert_true(ora_ulp(ATTND_DTYPE_BF16, 1e300) == 0x1p120);
}

/* The compiler's own conversion is the other witness: 2^16 patterns spread over all exponents. */
static void f32_is_the_machines_own_rounding(void **state)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bits = i * 65537u ^ i << 7, back;
        float single;
        memcpy(&single, &bits, sizeof single);
        double value;
        ora_decode(ATTND_DTYPE_F32, &bits, 1, &value);
        if (isnan(single)) {
            assert_true(isnan(value));
            ora_encode(ATTND_DTYPE_F32, &value, 1, &back);
            assert_int_equal(back, 0x7FFFFFFF);
            continue;
        }
        assert_true(value == single);
        double near = value * (1 + i * 0x1p-40);
        ora_encode(ATTND_DTYPE_F32, &near, 1, &back);
        float want = (float)near;
        assert_memory_equal(&back, &want, sizeof want);
    }
    assert_true(ora_round(ATTND_DTYPE_F32, 1e39) == INFINITY);
    assert_true(ora_ulp(ATTND_DTYPE_F32, 1) == 0x1p-23);
    assert_true(ora_ulp(ATTND_DTYPE_F32, 0) == 0x1p-149);
}

static void only_the_three_formats_are_its_own(void **state)
{
#define X(name, number, bits, text)                                                                \
    assert_int_equal(ora_codec_has(ATTND_DTYPE_##name), number >= 1 && number <= 3);
    ATTND_DTYPE_MAP(X)
#undef X
    assert_int_equal(ora_codec_bytes(ATTND_DTYPE_F32), 4);
    assert_int_equal(ora_codec_bytes(ATTND_DTYPE_BF16), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_code_reads_and_writes_itself),
        cmocka_unit_test(every_bf16_code_reads_and_writes_itself),
        cmocka_unit_test(between_f16_codes_the_nearest_or_even_one_is_taken),
        cmocka_unit_test(between_bf16_codes_the_nearest_or_even_one_is_taken),
        cmocka_unit_test(overflow_is_infinity_and_nan_loses_its_sign),
        cmocka_unit_test(f32_is_the_machines_own_rounding),
        cmocka_unit_test(only_the_three_formats_are_its_own),
    };
    return cmocka_run_group_tests_name("ora_codec", tests, NULL, NULL);
}
