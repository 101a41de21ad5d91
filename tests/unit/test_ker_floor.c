/* test_ker_floor.c: the floor counts what every row sees, and each byte once. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include "kernels/attention.h"

static ker_floor floor_of(uint32_t kinds, int32_t window, int32_t chunk, int32_t q_len,
                          int32_t kv_len)
{
    int64_t first = 0;
    ker_problem p = {.n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 1,
                     .head_dim_v = 1,
                     .dtype = ATTND_DTYPE_F32,
                     .kv = {.dtype = ATTND_DTYPE_F32},
                     .mask = {.kinds = kinds, .window = window, .chunk = chunk},
                     .batch = {.n_seqs = 1,
                               .n_contexts = 1,
                               .n_tokens = q_len,
                               .q_len = &q_len,
                               .kv_len = &kv_len,
                               .q_first = &first}};
    return ker_problem_floor(&p);
}

/* Four operations a pair at these widths. */
static void pairs_are_those_of_the_bounds(void **state)
{
    static const int32_t lens[] = {0, 1, 2, 7, 64, 100};
    for (uint32_t kinds = 0; kinds < 8; kinds++)
        for (int q = 0; q < 6; q++)
            for (int k = 0; k < 6; k++) {
                ker_mask mask = {.kinds = kinds, .window = 5, .chunk = 8};
                double pairs = 0;
                for (int32_t i = 0; i < lens[q]; i++) {
                    int32_t lo, hi;
                    ker_mask_bounds(&mask, lens[q], lens[k], i, i, &lo, &hi);
                    pairs += hi > lo ? hi - lo : 0;
                }
                ker_floor floor = floor_of(kinds, 5, 8, lens[q], lens[k]);
                assert_true(floor.flops == 4 * pairs);
            }
}

static void each_byte_counts_once(void **state)
{
    int32_t q_len[] = {1, 2}, kv_len[] = {100, 50};
    int64_t first[] = {0, 1};
    char byte;
    ker_problem p = {
        .n_heads = 8,
        .n_kv_heads = 2,
        .head_dim = 64,
        .head_dim_v = 32,
        .dtype = ATTND_DTYPE_BF16,
        .kv = {.dtype = ATTND_DTYPE_F16},
        .out = {.dtype = ATTND_DTYPE_F32},
        .mask = {.kinds = KER_MASK_CAUSAL | KER_MASK_WINDOW, .window = 10},
        .batch = {.n_seqs = 2, .n_tokens = 3, .q_len = q_len, .kv_len = kv_len, .q_first = first}};
    double keys = 10 + 11, kv = 2 * (64 + 32) * 2;
    double rows = 3 * 8 * (64 * 2 + 32 * 4);
    assert_true(ker_problem_floor(&p).bytes == keys * kv + rows);
    assert_true(ker_problem_floor(&p).flops == 30.0 * 8 * 2 * (64 + 32));
    p.append.k.base = p.append.v.base = p.lse.base = p.stats.base = &byte;
    assert_true(ker_problem_floor(&p).bytes == keys * kv + rows + 3 * 2 * kv + 3 * 8 * 12);
}

static void the_largest_lengths_do_not_overflow(void **state)
{
    ker_floor floor = floor_of(KER_MASK_CAUSAL, 0, 0, INT32_MAX, INT32_MAX);
    double n = INT32_MAX;
    assert_true(floor.flops / (2 * n * (n + 1)) > 0.999999);
    assert_true(floor.flops / (2 * n * (n + 1)) < 1.000001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_those_of_the_bounds),
        cmocka_unit_test(each_byte_counts_once),
        cmocka_unit_test(the_largest_lengths_do_not_overflow),
    };
    return cmocka_run_group_tests_name("ker_floor", tests, NULL, NULL);
}
