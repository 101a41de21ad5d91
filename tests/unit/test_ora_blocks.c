/* test_ora_blocks.c: rows whose elements share scales have the bytes that attention.md says, and
 * read back as what those bytes say.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/blocks.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"

enum { BLOCK = ORA_NVFP4_BLOCK };

static double e4m3_value(uint8_t code)
{
    double value;
    ora_decode(ATTND_DTYPE_E4M3, &code, 1, &value);
    return value;
}

static uint8_t e4m3(double value)
{
    uint8_t code;
    ora_encode(ATTND_DTYPE_E4M3, &value, 1, &code);
    return code;
}

/* n numbers of a 16-bit type, spread over many orders of magnitude as `spread` grows. */
static void numbers(const char *name, size_t n, double spread, double *x)
{
    for (size_t i = 0; i < n; i++) {
        double wide = ora_element(3, name, 2 * i) * exp2(spread * ora_element(3, name, 2 * i + 1));
        x[i] = ora_round(ATTND_DTYPE_BF16, wide);
    }
}

static int code_at(const uint8_t *codes, size_t i)
{
    return i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
}

/* ---- NVFP4 ---- */

static void nvfp4_has_the_published_vector(void **state)
{
    static const double x[BLOCK] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -6};
    static const double want[BLOCK] = {0, 1, 1, 2, 2, 4, 4, -6};
    uint8_t codes[BLOCK / 2], scale;
    double y[BLOCK];
    ora_nvfp4_encode(x, BLOCK, 448, codes, &scale);
    assert_int_equal(scale, 0x7E);
    assert_int_equal(codes[0], 0x20); /* element 0 in the low nibble */
    assert_int_equal(codes[3], 0xF6);
    ora_nvfp4_decode(codes, &scale, BLOCK, 1 / 448.0f, y);
    for (int i = 0; i < BLOCK; i++)
        assert_true(fabs(y[i] - want[i]) <= 1e-6 * fabs(want[i]));
}

static void a_block_of_zeros_is_zeros_and_keeps_their_signs(void **state)
{
    static const double x[BLOCK] = {[3] = -0.0};
    uint8_t codes[BLOCK / 2], scale, want[BLOCK / 2] = {0, 0x80};
    ora_nvfp4_encode(x, BLOCK, 448, codes, &scale);
    assert_int_equal(scale, 0);
    assert_memory_equal(codes, want, sizeof want);
    double y[BLOCK];
    ora_nvfp4_decode(codes, &scale, BLOCK, 1, y);
    for (int i = 0; i < BLOCK; i++)
        assert_true(y[i] == 0);
}

/* A block far above the global scale, one far below it, infinities. */
static void a_scale_byte_is_never_nan(void **state)
{
    static const double tops[] = {1e6, 1e-12, 3e38, INFINITY, 448.1 * 6, 465 * 6};
    for (size_t n = 0; n < sizeof tops / sizeof *tops; n++) {
        double x[BLOCK], y[BLOCK];
        for (int i = 0; i < BLOCK; i++)
            x[i] = ora_round(ATTND_DTYPE_F32, tops[n]);
        uint8_t codes[BLOCK / 2], scale;
        ora_nvfp4_encode(x, BLOCK, 1, codes, &scale);
        assert_int_equal(scale, tops[n] < 1 ? 0 : 0x7E);
        ora_nvfp4_decode(codes, &scale, BLOCK, 1, y);
        for (int i = 0; i < BLOCK; i++)
            assert_true(y[i] == (tops[n] < 1 ? 0 : 2688));
    }
}

/* §14.4 written down once more, its codes found by a search. */
static void check_nvfp4_block(const double *x, float gs, const uint8_t *codes, uint8_t scale)
{
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    volatile float amax = 0; /* volatile: every step is a rounding of its own */
    for (int i = 0; i < BLOCK; i++)
        if (fabs(x[i]) > amax)
            amax = (float)fabs(x[i]);
    volatile float sixth = amax / 6.0f, wanted = gs * sixth, inverse = 1.0f / gs;
    assert_int_equal(scale, e4m3(wanted));
    volatile float step = (float)e4m3_value(scale) * inverse, enc = 1.0f / step;
    if (scale == 0)
        enc = 0;
    for (int i = 0; i < BLOCK; i++) {
        volatile float scaled = (float)x[i] * enc;
        int best = 0;
        for (int c = 1; c < 8; c++) {
            double old = fabs(values[best] - fabs(scaled)), new = fabs(values[c] - fabs(scaled));
            if (new < old || (new == old &&c % 2 == 0))
                best = c;
        }
        assert_int_equal(code_at(codes, (size_t)i), best | (signbit(scaled) ? 8 : 0));
    }
}

/* Numbers where another order of the same steps gives another byte: Gs·amax/6 would be a tie that
 * goes to 28, x·(Gs/sf) the code of 2. */
static void the_steps_of_nvfp4_are_taken_in_their_order(void **state)
{
    const double scale_tie[BLOCK] = {0x1.724924p-2}, code_tie[BLOCK] = {0.0209, 0x1.9p-8};
    uint8_t codes[BLOCK / 2], scale;
    ora_nvfp4_encode(scale_tie, BLOCK, 448, codes, &scale);
    assert_int_equal(scale, e4m3(26));
    ora_nvfp4_encode(code_tie, BLOCK, 89.6f, codes, &scale);
    assert_int_equal(scale, e4m3(0.3125));
    assert_int_equal(codes[0], 0x37); /* 1.5 and 6 */
}

static void random_blocks_have_the_bytes_of_the_definition(void **state)
{
    static const float globals[] = {1, 448, 89.6f, 0.01f, 3777.25f};
    enum { N = 4096 };
    static double x[N * BLOCK];
    for (size_t k = 0; k < sizeof globals / sizeof *globals; k++) {
        numbers(k % 2 ? "narrow" : "wide", N * BLOCK, k % 2 ? 1 : 6, x);
        for (int n = 0; n < N; n++) {
            uint8_t codes[BLOCK / 2], scale;
            double y[BLOCK];
            ora_nvfp4_encode(x + n * BLOCK, BLOCK, globals[k], codes, &scale);
            check_nvfp4_block(x + n * BLOCK, globals[k], codes, scale);
            ora_nvfp4_decode(codes, &scale, BLOCK, 1 / globals[k], y);
            for (size_t i = 0; i < BLOCK; i++)
                assert_true(y[i] == ora_e2m1_value((uint8_t)code_at(codes, i)) * e4m3_value(scale) *
                                        (double)(1 / globals[k]));
        }
    }
}

/* A scale of its own range loses at most 1/16 of the block's largest number, and rounding to
 * E2M1 at most 1/6 more of it. */
static void what_nvfp4_reads_back_is_near(void **state)
{
    enum { N = 512 };
    static double x[N * BLOCK], y[N * BLOCK];
    static uint8_t codes[N * BLOCK / 2], scales[N];
    numbers("near", N * BLOCK, 0, x);
    ora_nvfp4_encode(x, N * BLOCK, 300, codes, scales);
    ora_nvfp4_decode(codes, scales, N * BLOCK, 1 / 300.0f, y);
    for (int n = 0; n < N; n++) {
        double amax = 0;
        for (int i = 0; i < BLOCK; i++)
            amax = fmax(amax, fabs(x[n * BLOCK + i]));
        for (int i = 0; i < BLOCK; i++)
            assert_true(fabs(y[n * BLOCK + i] - x[n * BLOCK + i]) <= (1 / 6.0 + 1 / 16.0) * amax);
    }
}

/* ---- A scale a row ---- */

static void a_head_scale_is_its_largest_number_over_the_largest_code(void **state)
{
    static const double x[4] = {-3.5, 1, 0, 3.5 / 448};
    uint8_t codes[4];
    float scale = ora_head_encode(ATTND_DTYPE_E4M3, x, 4, codes);
    assert_true(scale == 3.5f / 448);
    assert_int_equal(codes[0], 0xFE);
    assert_int_equal(codes[1], 0x70); /* 128 */
    assert_int_equal(codes[2], 0);
    assert_int_equal(codes[3], 0x38); /* 1 */
    scale = ora_head_encode(ATTND_DTYPE_I8, x, 4, codes);
    assert_true(scale == 3.5f / 127);
    assert_int_equal(codes[0], 0x81);
    assert_int_equal(codes[1], 36); /* 36.29 */
    assert_int_equal(codes[3], 0);  /* 0.28 */
}

static void a_row_of_zeros_has_scale_1(void **state)
{
    static const double x[3] = {0, -0.0, 0};
    uint8_t codes[3] = {9, 9, 9};
    assert_true(ora_head_encode(ATTND_DTYPE_E4M3, x, 3, codes) == 1);
    assert_int_equal(codes[0], 0);
    assert_int_equal(codes[1], 0x80);
    assert_true(ora_head_encode(ATTND_DTYPE_I8, x, 3, codes) == 1);
    assert_int_equal(codes[1], 0);
    /* amax/448 is below the smallest number of fp32: the row is as good as zero. */
    static const double tiny[1] = {0x1p-149};
    assert_true(ora_head_encode(ATTND_DTYPE_E4M3, tiny, 1, codes) == 1);
    assert_int_equal(codes[0], 0);
}

static void head_codes_are_fp32_quotients(void **state)
{
    enum { N = 64 };
    double x[N];
    uint8_t codes[N];
    for (int round = 0; round < 200; round++) {
        char name[16] = {(char)('a' + round % 26), (char)('a' + round / 26)};
        numbers(name, N, 2, x);
        for (int of = 0; of < 2; of++) {
            attnd_dtype dtype = of ? ATTND_DTYPE_I8 : ATTND_DTYPE_E4M3;
            volatile float amax = 0;
            for (int i = 0; i < N; i++)
                amax = fmaxf(amax, (float)fabs(x[i]));
            volatile float want = amax / (of ? 127.0f : 448.0f);
            assert_true(ora_head_encode(dtype, x, N, codes) == want);
            for (int i = 0; i < N; i++) {
                volatile float quotient = (float)x[i] / want;
                double value = quotient;
                uint8_t code;
                ora_encode(dtype, &value, 1, &code);
                assert_int_equal(codes[i], code);
            }
        }
    }
}

/* ---- fp8_ds_mla ---- */

static void pow2_scales_have_the_published_vectors(void **state)
{
    assert_true(ora_pow2_scale(448) == 1);
    assert_true(ora_pow2_scale(1) == 0x1p-8f);
    assert_true(ora_pow2_scale(0) == 0x1p-13f);
    assert_true(ora_pow2_scale(448.01f) == 2);
    assert_true(ora_pow2_scale(896) == 2);
    assert_true(ora_pow2_scale(1.75) == 0x1p-8f);
    assert_true(ora_pow2_scale(nextafterf(1.75f, 2)) == 0x1p-7f);
    assert_true(ora_pow2_scale(3e38f) == 0x1p120f);
    assert_true(ora_pow2_scale(INFINITY) == INFINITY);
}

static void every_e8m0_byte_is_its_power_of_two(void **state)
{
    for (int c = 0; c < 255; c++)
        assert_true(ora_e8m0_value((uint8_t)c) == pow(2, c - 127));
    assert_true(isnan(ora_e8m0_value(255)));
}

static float scale_at(const uint8_t *row, int g)
{
    float scale;
    memcpy(&scale, row + 512 + 4 * g, sizeof scale);
    return scale;
}

static void a_row_of_656_bytes_has_codes_scales_and_rope_where_they_belong(void **state)
{
    double x[576] = {0}, y[576];
    uint8_t row[656];
    x[0] = 448;
    x[1] = -17;
    x[128] = 1;
    x[256] = 896; /* group 3 is zero */
    x[512] = 3.5;
    x[575] = -1;
    ora_ds656_encode(x, true, row);
    assert_int_equal(row[0], 0x7E);
    assert_int_equal(row[1], 0xD8); /* -16 */
    assert_int_equal(row[128], 0x78);
    assert_true(scale_at(row, 0) == 1 && scale_at(row, 1) == 0x1p-8f && scale_at(row, 2) == 2 &&
                scale_at(row, 3) == 0x1p-13f);
    assert_int_equal(row[528] | row[529] << 8, 0x4060);
    assert_int_equal(row[654] | row[655] << 8, 0xBF80);
    ora_ds656_decode(row, y);
    x[1] = -16;
    for (int i = 0; i < 576; i++)
        assert_true(y[i] == x[i]);
}

static void unrounded_scales_are_the_largest_over_448_and_0_for_zeros(void **state)
{
    double x[576] = {[0] = 1, [5] = 0.5, [300] = -0.0, [400] = NAN}, y[576];
    uint8_t row[656];
    ora_ds656_encode(x, false, row);
    assert_true(scale_at(row, 0) == 1 / 448.0f);
    assert_int_equal(row[0], 0x7E);
    assert_int_equal(row[5], 0x76); /* 224 */
    assert_true(scale_at(row, 1) == 0);
    for (int i = 128; i < 384; i++)
        assert_int_equal(row[i], 0);
    ora_ds656_decode(row, y);
    assert_true(y[0] == 448 * (double)(1 / 448.0f));
    assert_true(y[130] == 0);
    assert_int_equal(row[400], 0x7F); /* of a group without numbers NaN stays NaN */
    assert_true(isnan(y[400]) && y[401] == 0);
}

static void random_656_rows_have_the_bytes_of_the_definition(void **state)
{
    double x[576], y[576];
    uint8_t row[656];
    for (int round = 0; round < 100; round++) {
        char name[16] = {'d', (char)('a' + round % 26), (char)('a' + round / 26)};
        numbers(name, 576, 3, x);
        for (int pow2 = 0; pow2 < 2; pow2++) {
            ora_ds656_encode(x, pow2, row);
            ora_ds656_decode(row, y);
            for (int i = 0; i < 512; i++) {
                volatile float quotient = (float)x[i] / scale_at(row, i / 128);
                assert_int_equal(row[i], e4m3(quotient));
                assert_true(y[i] == e4m3_value(row[i]) * (double)scale_at(row, i / 128));
                assert_true(fabs(y[i] - x[i]) <=
                            fmax(fabs(x[i]) / 16, scale_at(row, i / 128) * 0x1p-10) * 1.001);
            }
            for (int i = 512; i < 576; i++)
                assert_true(y[i] == x[i]);
        }
    }
}

static void a_row_of_584_bytes_has_seven_exponents_and_a_zero(void **state)
{
    double x[512], y[512];
    uint8_t row[576], scales[8], again[576];
    numbers("584", 512, 3, x);
    memset(x + 64, 0, 64 * sizeof *x);
    for (int i = 128; i < 192; i++)
        x[i] = 448 * 4;
    memset(scales, 0xEE, sizeof scales);
    ora_ds584_encode(x, row, scales);
    assert_int_equal(scales[1], 127 - 13);
    assert_int_equal(scales[2], 127 + 2);
    assert_int_equal(scales[7], 0);
    assert_int_equal(row[128], 0x7E);
    ora_ds584_decode(row, scales, y);
    for (int i = 0; i < 448; i++) {
        float scale = ldexpf(1, scales[i / 64] - 127);
        assert_int_equal(row[i], e4m3((float)x[i] / scale));
        assert_true(y[i] == e4m3_value(row[i]) * (double)scale);
    }
    for (int i = 448; i < 512; i++)
        assert_true(y[i] == x[i]);
    x[70] = INFINITY;
    ora_ds584_encode(x, again, scales);
    assert_int_equal(scales[1], 254);
    assert_int_equal(again[70], 0x7E);
}

/* ---- Dense FP4 MLA ---- */

static void the_residual_of_the_rope_channels_is_coded_too(void **state)
{
    enum { N = 64, R = 32 };
    const float gs = 448.0f * 6 / 30;
    double x[N], plain[N], both[N];
    uint8_t codes[(N + R) / 2], scales[(N + R) / 16];
    numbers("mla", N, 1, x);
    ora_fp4_mla_encode(x, N, R, gs, 1 / gs, codes, scales);
    ora_nvfp4_decode(codes, scales, N, 1 / gs, plain);
    ora_fp4_mla_decode(codes, scales, N, R, 1 / gs, both);
    double left[R], rest[R], error = 0, error_plain = 0;
    uint8_t rest_codes[R / 2], rest_scales[R / 16];
    for (int i = 0; i < R; i++)
        left[i] = (float)x[N - R + i] - (float)plain[N - R + i];
    ora_nvfp4_encode(left, R, gs, rest_codes, rest_scales);
    assert_memory_equal(codes + N / 2, rest_codes, sizeof rest_codes);
    assert_memory_equal(scales + N / 16, rest_scales, sizeof rest_scales);
    ora_nvfp4_decode(rest_codes, rest_scales, R, 1 / gs, rest);
    for (int i = 0; i < N - R; i++)
        assert_true(both[i] == plain[i]);
    for (int i = 0; i < R; i++) {
        assert_true(both[N - R + i] == plain[N - R + i] + rest[i]);
        error += fabs(both[N - R + i] - x[N - R + i]);
        error_plain += fabs(plain[N - R + i] - x[N - R + i]);
    }
    assert_true(error < error_plain / 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nvfp4_has_the_published_vector),
        cmocka_unit_test(a_block_of_zeros_is_zeros_and_keeps_their_signs),
        cmocka_unit_test(a_scale_byte_is_never_nan),
        cmocka_unit_test(the_steps_of_nvfp4_are_taken_in_their_order),
        cmocka_unit_test(random_blocks_have_the_bytes_of_the_definition),
        cmocka_unit_test(what_nvfp4_reads_back_is_near),
        cmocka_unit_test(a_head_scale_is_its_largest_number_over_the_largest_code),
        cmocka_unit_test(a_row_of_zeros_has_scale_1),
        cmocka_unit_test(head_codes_are_fp32_quotients),
        cmocka_unit_test(pow2_scales_have_the_published_vectors),
        cmocka_unit_test(every_e8m0_byte_is_its_power_of_two),
        cmocka_unit_test(a_row_of_656_bytes_has_codes_scales_and_rope_where_they_belong),
        cmocka_unit_test(unrounded_scales_are_the_largest_over_448_and_0_for_zeros),
        cmocka_unit_test(random_656_rows_have_the_bytes_of_the_definition),
        cmocka_unit_test(a_row_of_584_bytes_has_seven_exponents_and_a_zero),
        cmocka_unit_test(the_residual_of_the_rope_channels_is_coded_too),
    };
    return cmocka_run_group_tests_name("ora_blocks", tests, NULL, NULL);
}
