/* test_ora_codec.c: every code of every format of at most 16 bits reads right, and every value
 * between two codes rounds to the right one.
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

/* ---- Formats of 8 and 4 bits, by a search through all their numbers ---- */

/* What the formats hold: the value of every code, NAN where there is none. */
typedef struct slow {
    double value[256];
    int n_codes, sign;
} slow;

static slow slow_e4m3(void)
{
    slow s = {.n_codes = 256, .sign = 0x80};
    for (int c = 0; c < 256; c++) {
        int exponent = c >> 3 & 15, mantissa = c & 7;
        double sign = c & 0x80 ? -1 : 1;
        s.value[c] = exponent == 15 && mantissa == 7 ? NAN
                     : exponent == 0                 ? sign * mantissa / 512
                                     : sign * (8 + mantissa) / 8 * pow(2, exponent - 7);
    }
    return s;
}

static slow slow_e5m2(void)
{
    slow s = {.n_codes = 256, .sign = 0x80};
    for (int c = 0; c < 256; c++)
        s.value[c] = value_of((uint32_t)c, 5, 2);
    return s;
}

static slow slow_e2m1(void)
{
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    slow s = {.n_codes = 16, .sign = 8};
    for (int c = 0; c < 16; c++)
        s.value[c] = c & 8 ? -values[c & 7] : values[c & 7];
    return s;
}

/* The finite code of x's sign that lies nearest; of two the even one. */
static int slow_code(const slow *s, double x)
{
    int first = signbit(x) ? s->sign : 0, best = first;
    x = fmin(fmax(x, -0x1p20), 0x1p20); /* beyond all formats; the differences are exact */
    for (int c = first; c < first + s->sign; c++) {
        if (!isfinite(s->value[c]))
            continue;
        double old = fabs(s->value[best] - x), new = fabs(s->value[c] - x);
        if (new < old || (new == old &&c % 2 == 0))
            best = c;
    }
    return best;
}

static uint8_t byte_of(attnd_dtype dtype, double value)
{
    uint8_t code;
    ora_encode(dtype, &value, 1, &code);
    return code;
}

static void check_every_byte(attnd_dtype dtype, const slow *s)
{
    for (int c = 0; c < 256; c++) {
        uint8_t code = (uint8_t)c;
        double got;
        ora_decode(dtype, &code, 1, &got);
        if (isnan(s->value[c])) {
            assert_true(isnan(got));
            assert_int_equal(byte_of(dtype, got), 0x7F);
        } else if (isinf(s->value[c])) {
            assert_true(got == s->value[c]);
            assert_int_equal(byte_of(dtype, got), code - 1); /* saturates */
        } else {
            assert_true(got == s->value[c] && signbit(got) == signbit(s->value[c]));
            assert_int_equal(byte_of(dtype, got), code);
        }
    }
}

/* All values of F16 and of BF16, and what lies just beside the middle of two codes. */
static void check_every_half(attnd_dtype dtype, const slow *s)
{
    for (uint32_t c = 0; c < 65536; c++)
        for (int of = 0; of < 2; of++) {
            uint16_t half = (uint16_t)c;
            double x;
            ora_decode(of ? ATTND_DTYPE_F16 : ATTND_DTYPE_BF16, &half, 1, &x);
            if (isnan(x)) {
                assert_int_equal(byte_of(dtype, x), 0x7F);
                continue;
            }
            int want = slow_code(s, x);
            assert_int_equal(byte_of(dtype, x), want);
            assert_true(ora_round(dtype, x) == s->value[want]);
        }
    for (int c = 0; isfinite(s->value[c + 1]); c++) {
        double middle = (s->value[c] + s->value[c + 1]) / 2;
        assert_int_equal(byte_of(dtype, middle), c % 2 ? c + 1 : c);
        assert_int_equal(byte_of(dtype, nextafter(middle, 0)), c);
        assert_int_equal(byte_of(dtype, nextafter(middle, INFINITY)), c + 1);
        assert_true(ora_ulp(dtype, s->value[c]) == s->value[c + 1] - s->value[c]);
    }
}

static void every_e4m3_byte_reads_and_writes_itself(void **state)
{
    slow s = slow_e4m3();
    check_every_byte(ATTND_DTYPE_E4M3, &s);
}

static void every_e5m2_byte_reads_and_writes_itself_but_infinity(void **state)
{
    slow s = slow_e5m2();
    check_every_byte(ATTND_DTYPE_E5M2, &s);
}

static void every_half_becomes_the_nearest_e4m3(void **state)
{
    slow s = slow_e4m3();
    check_every_half(ATTND_DTYPE_E4M3, &s);
}

static void every_half_becomes_the_nearest_e5m2(void **state)
{
    slow s = slow_e5m2();
    check_every_half(ATTND_DTYPE_E5M2, &s);
}

static void every_half_becomes_the_nearest_e2m1(void **state)
{
    slow s = slow_e2m1();
    for (uint32_t c = 0; c < 65536; c++)
        for (int of = 0; of < 2; of++) {
            uint16_t half = (uint16_t)c;
            double x;
            ora_decode(of ? ATTND_DTYPE_F16 : ATTND_DTYPE_BF16, &half, 1, &x);
            if (!isnan(x))
                assert_int_equal(ora_e2m1(x), slow_code(&s, x));
        }
    for (int c = 0; c < 16; c++)
        assert_true(ora_e2m1_value((uint8_t)c) == s.value[c] &&
                    signbit(ora_e2m1_value((uint8_t)c)) == signbit(s.value[c]));
}

static void e4m3_has_the_published_vectors(void **state)
{
    static const struct {
        double x;
        uint8_t code;
        double value;
    } want[] = {
        {0x1p-10, 0x00, 0},    {1.01 * 0x1p-10, 0x01, 0x1p-9},
        {17, 0x58, 16},        {19, 0x5A, 20},
        {448, 0x7E, 448},      {464, 0x7E, 448},
        {465, 0x7E, 448},      {1000, 0x7E, 448},
        {-1000, 0xFE, -448},   {1e9, 0x7E, 448},
        {INFINITY, 0x7E, 448}, {-INFINITY, 0xFE, -448},
        {-0.0, 0x80, -0.0},    {0x1p-6, 0x08, 0x1p-6},
    };
    for (size_t n = 0; n < sizeof want / sizeof *want; n++) {
        assert_int_equal(byte_of(ATTND_DTYPE_E4M3, want[n].x), want[n].code);
        assert_true(ora_round(ATTND_DTYPE_E4M3, want[n].x) == want[n].value);
    }
    assert_int_equal(byte_of(ATTND_DTYPE_E4M3, -NAN), 0x7F);
    assert_int_equal(byte_of(ATTND_DTYPE_E5M2, -NAN), 0x7F);
    assert_int_equal(byte_of(ATTND_DTYPE_E5M2, INFINITY), 0x7B);
    assert_true(ora_round(ATTND_DTYPE_E5M2, -1e9) == -57344);
    assert_true(ora_ulp(ATTND_DTYPE_E4M3, INFINITY) == 32);
}

static void i8_is_nearest_even_and_saturates_at_127(void **state)
{
    static const struct {
        double x;
        uint8_t code;
    } want[] = {{0.5, 0},     {1.5, 2},        {-0.5, 0},         {-2.5, 0xFE},
                {126.5, 126}, {127.5, 127},    {1e9, 127},        {-127.4, 0x81},
                {-128, 0x81}, {INFINITY, 127}, {-INFINITY, 0x81}, {NAN, 0}};
    for (size_t n = 0; n < sizeof want / sizeof *want; n++)
        assert_int_equal(byte_of(ATTND_DTYPE_I8, want[n].x), want[n].code);
    for (int c = 0; c < 256; c++) {
        uint8_t code = (uint8_t)c;
        double x;
        ora_decode(ATTND_DTYPE_I8, &code, 1, &x);
        assert_true(x == (c < 128 ? c : c - 256));
    }
    assert_true(ora_ulp(ATTND_DTYPE_I8, 100) == 1);
}

/* 19·(1 - 2^-26) lies below the middle of 18 and 20, but rounds to 19 in fp32, and 19 is a tie. */
static void a_scaled_value_is_rounded_to_fp32_before_it_is_coded(void **state)
{
    double x = 19 * (1 - 0x1p-13);
    uint8_t code;
    ora_encode_scaled(ATTND_DTYPE_E4M3, &x, 1, 1 + 0x1p-13f, &code);
    assert_int_equal(code, byte_of(ATTND_DTYPE_E4M3, 20));
    assert_int_equal(byte_of(ATTND_DTYPE_E4M3, x * (1 + 0x1p-13)), byte_of(ATTND_DTYPE_E4M3, 18));
}

static void it_knows_its_formats(void **state)
{
#define X(name, number, bits, text)                                                                \
    assert_int_equal(ora_codec_has(ATTND_DTYPE_##name), number >= 1 && number <= 3);               \
    assert_int_equal(ora_codec_is_number(ATTND_DTYPE_##name), number >= 1 && number <= 6);
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
        cmocka_unit_test(every_e4m3_byte_reads_and_writes_itself),
        cmocka_unit_test(every_e5m2_byte_reads_and_writes_itself_but_infinity),
        cmocka_unit_test(every_half_becomes_the_nearest_e4m3),
        cmocka_unit_test(every_half_becomes_the_nearest_e5m2),
        cmocka_unit_test(every_half_becomes_the_nearest_e2m1),
        cmocka_unit_test(e4m3_has_the_published_vectors),
        cmocka_unit_test(i8_is_nearest_even_and_saturates_at_127),
        cmocka_unit_test(a_scaled_value_is_rounded_to_fp32_before_it_is_coded),
        cmocka_unit_test(it_knows_its_formats),
    };
    return cmocka_run_group_tests_name("ora_codec", tests, NULL, NULL);
}
