/* test_ora_output.c: outputs in fewer bits have the bytes of attention.md §14.7, scales where the
 * swizzle puts them.
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
#include "tests/oracle/oracle.h"

static void the_swizzle_has_the_published_vectors(void **state)
{
    assert_int_equal(ora_swizzle_offset(0, 0, 8), 0);
    assert_int_equal(ora_swizzle_offset(1, 0, 8), 16);
    assert_int_equal(ora_swizzle_offset(32, 0, 8), 4);
    assert_int_equal(ora_swizzle_offset(0, 4, 8), 512);
    assert_int_equal(ora_swizzle_offset(33, 5, 8), 533);
    assert_int_equal(ora_swizzle_offset(128, 0, 8), 1024);
}

/* Each place of the padded matrix has a byte of its own. */
static void the_swizzle_is_one_to_one(void **state)
{
    static const int64_t shapes[][2] = {{1, 1}, {128, 4}, {129, 5}, {300, 24}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        int64_t rows = (shapes[s][0] + 127) / 128 * 128, columns = (shapes[s][1] + 3) / 4 * 4;
        uint8_t seen[384 * 24] = {0};
        assert_int_equal(ora_swizzle_bytes(shapes[s][0], shapes[s][1]), rows * columns);
        for (int64_t m = 0; m < rows; m++)
            for (int64_t n = 0; n < columns; n++) {
                int64_t at = ora_swizzle_offset(m, n, shapes[s][1]);
                assert_true(at >= 0 && at < rows * columns);
                assert_int_equal(seen[at]++, 0);
            }
    }
}

static void an_e4m3_output_is_scaled_in_fp32(void **state)
{
    double out[] = {1, -3, 0.1, 1e9, 0, -0.0, 19 * (1 - 0x1p-13) / 448};
    ora_result r = {.n_tokens = 1, .n_heads = 1, .head_dim_v = 7, .out = out};
    uint8_t bytes[7];
    ora_output_e4m3(&r, 448, bytes);
    for (int i = 0; i < 7; i++) {
        volatile float single = (float)out[i], product = single * 448.0f;
        double value = product;
        uint8_t want;
        ora_encode(ATTND_DTYPE_E4M3, &value, 1, &want);
        assert_int_equal(bytes[i], want);
    }
    assert_int_equal(bytes[0], 0x7E);
    assert_int_equal(bytes[1], 0xFE);
    assert_int_equal(bytes[5], 0x80);
}

static void an_nvfp4_output_has_linear_codes_and_swizzled_scales(void **state)
{
    enum { ROWS = 130, HEADS = 3, DV = 32, WIDTH = HEADS * DV, COLUMNS = WIDTH / 16 };
    static double out[ROWS * WIDTH], row[WIDTH];
    static uint8_t codes[ROWS * WIDTH / 2], scales[256 * 8], seen[256 * 8];
    for (int i = 0; i < ROWS * WIDTH; i++)
        out[i] = ora_element(1, "out", (uint64_t)i) * (1 + i / WIDTH);
    ora_result r = {.n_tokens = ROWS, .n_heads = HEADS, .head_dim_v = DV, .out = out};
    memset(scales, 0xEE, sizeof scales);
    assert_int_equal(ora_swizzle_bytes(ROWS, COLUMNS), sizeof scales);
    ora_output_nvfp4(&r, 5, codes, scales);
    for (int m = 0; m < ROWS; m++) {
        uint8_t want_codes[WIDTH / 2], want_scales[COLUMNS], linear[COLUMNS];
        ora_nvfp4_encode(out + m * WIDTH, WIDTH, 5, want_codes, want_scales);
        assert_memory_equal(codes + m * WIDTH / 2, want_codes, sizeof want_codes);
        for (int n = 0; n < COLUMNS; n++) {
            int64_t at = ora_swizzle_offset(m, n, COLUMNS);
            linear[n] = scales[at];
            seen[at] = 1;
        }
        assert_memory_equal(linear, want_scales, sizeof linear);
        ora_nvfp4_decode(codes + m * WIDTH / 2, linear, WIDTH, 1 / 5.0f, row);
        for (int i = 0; i < WIDTH; i++)
            assert_true(fabs(row[i] - out[m * WIDTH + i]) <= 0.25 * 4 * (1 + m));
    }
    for (size_t at = 0; at < sizeof scales; at++)
        if (!seen[at])
            assert_int_equal(scales[at], 0);
}

static void scales_multiply_and_what_is_not_given_is_one(void **state)
{
    assert_true(ora_score_scale(0.125, 0, 0) == 0.125);
    assert_true(ora_score_scale(0.125, 0.5, 3) == 0.1875);
    assert_true(ora_value_scale(0, 0) == 1);
    assert_true(ora_value_scale(0.25, 8) == 2);
    /* FP8 latent rows, one factor s for q, k and v: [s²·sm_scale, s]. */
    double s = 0.3, sm_scale = ora_sm_scale(0, 192);
    assert_true(fabs(ora_score_scale(sm_scale, s, s) - s * s * sm_scale) < 1e-17);
    assert_true(ora_value_scale(s, 0) == s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_swizzle_has_the_published_vectors),
        cmocka_unit_test(the_swizzle_is_one_to_one),
        cmocka_unit_test(an_e4m3_output_is_scaled_in_fp32),
        cmocka_unit_test(an_nvfp4_output_has_linear_codes_and_swizzled_scales),
        cmocka_unit_test(scales_multiply_and_what_is_not_given_is_one),
    };
    return cmocka_run_group_tests_name("ora_output", tests, NULL, NULL);
}
