/* test_ker_mask.c: bounds of rows, and the lowest key of a sequence (attention.md §3.4, §6). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include "kernels/attention.h"

static void sees(const ker_mask *mask, int32_t q_len, int32_t kv_len, int32_t i, int32_t lo,
                 int32_t hi)
{
    int32_t got_lo, got_hi;
    ker_mask_bounds(mask, q_len, kv_len, i, i, &got_lo, &got_hi);
    assert_int_equal(got_lo, lo);
    assert_int_equal(got_hi, hi);
}

static void full_sees_all_keys(void **state)
{
    ker_mask mask = {0};
    sees(&mask, 1, 10, 0, 0, 10);
    sees(&mask, 5, 2, 0, 0, 2);
    sees(&mask, 1, INT32_MAX, 0, 0, INT32_MAX);
}

static void causal_is_aligned_at_the_last_key(void **state)
{
    ker_mask mask = {.kinds = KER_MASK_CAUSAL};
    sees(&mask, 3, 128, 0, 0, 126);
    sees(&mask, 3, 128, 2, 0, 128);
    sees(&mask, 3, 2, 0, 0, 0);
    sees(&mask, 3, 2, 1, 0, 1);
    sees(&mask, 3, 2, 2, 0, 2);
    sees(&mask, INT32_MAX, INT32_MAX, INT32_MAX - 1, 0, INT32_MAX);
}

static void a_window_counts_its_own_key(void **state)
{
    ker_mask mask = {.kinds = KER_MASK_CAUSAL | KER_MASK_WINDOW, .window = 3};
    sees(&mask, 2, 5, 0, 1, 4);
    sees(&mask, 2, 5, 1, 2, 5);
    mask.window = INT32_MAX;
    sees(&mask, 2, 5, 1, 0, 5);
    mask.kinds = KER_MASK_WINDOW;
    mask.window = 3;
    sees(&mask, 2, 5, 0, 1, 5);
}

static void a_chunk_is_the_querys_own(void **state)
{
    ker_mask mask = {.kinds = KER_MASK_CAUSAL | KER_MASK_CHUNK, .chunk = 4};
    sees(&mask, 2, 5, 0, 0, 4);
    sees(&mask, 2, 5, 1, 4, 5);
    sees(&mask, 9, 5, 0, 0, 0);
    mask.kinds |= KER_MASK_WINDOW;
    mask.window = 2;
    sees(&mask, 1, 8, 0, 6, 8);
}

static void variable_bounds_replace_the_others_and_are_clamped(void **state)
{
    const int32_t start[] = {-5, 3, 4, 9, INT32_MIN}, end[] = {2, 3, 2, 20, INT32_MAX};
    ker_mask mask = {.kinds = KER_MASK_VARIABLE | KER_MASK_CAUSAL | KER_MASK_WINDOW,
                     .window = 1,
                     .start = start,
                     .end = end};
    sees(&mask, 5, 10, 0, 0, 3);
    sees(&mask, 5, 10, 1, 3, 4);
    sees(&mask, 5, 10, 3, 9, 10);
    sees(&mask, 5, 10, 4, 0, 10);
    int32_t lo, hi;
    ker_mask_bounds(&mask, 5, 10, 2, 2, &lo, &hi);
    assert_true(hi <= lo);
}

static void the_lowest_key_is_that_of_the_first_row(void **state)
{
    ker_mask mask = {.kinds = KER_MASK_CAUSAL};
    assert_int_equal(ker_mask_lowest_key(&mask, 4, 100), 0);
    mask.kinds |= KER_MASK_WINDOW;
    mask.window = 10;
    assert_int_equal(ker_mask_lowest_key(&mask, 4, 100), 87);
    assert_int_equal(ker_mask_lowest_key(&mask, 4, 5), 0);
    mask.kinds |= KER_MASK_CHUNK;
    mask.chunk = 32;
    assert_int_equal(ker_mask_lowest_key(&mask, 4, 100), 96);
    assert_int_equal(ker_mask_lowest_key(&mask, 0, 100), 100);
    mask.kinds |= KER_MASK_BITS; /* replaces the chunk, not the window */
    assert_int_equal(ker_mask_lowest_key(&mask, 4, 100), 87);
    mask.kinds |= KER_MASK_VARIABLE;
    assert_int_equal(ker_mask_lowest_key(&mask, 4, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_sees_all_keys),
        cmocka_unit_test(causal_is_aligned_at_the_last_key),
        cmocka_unit_test(a_window_counts_its_own_key),
        cmocka_unit_test(a_chunk_is_the_querys_own),
        cmocka_unit_test(variable_bounds_replace_the_others_and_are_clamped),
        cmocka_unit_test(the_lowest_key_is_that_of_the_first_row),
    };
    return cmocka_run_group_tests_name("ker_mask", tests, NULL, NULL);
}
