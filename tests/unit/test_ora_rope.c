/* test_ora_rope.c: pairs rotate by position times frequency, and nothing else moves. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <complex.h>
#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/oracle.h"

enum { D = 16 };

static void make_row(double *x)
{
    for (uint64_t d = 0; d < D; d++)
        x[d] = ora_element(5, "x", d);
}

static double complex pair_of(const double *x, const ora_rope *rope, uint32_t n)
{
    return rope->pairing == ATTND_ROPE_NEOX ? x[n] + I * x[n + rope->dim / 2]
                                            : x[2 * n] + I * x[2 * n + 1];
}

/* The other witness: a pair is a complex number times e^(iφ). */
static void each_pair_is_turned_by_its_angle(void **state)
{
    const attnd_rope_pairing pairings[] = {ATTND_ROPE_NEOX, ATTND_ROPE_GPTJ};
    const int64_t positions[] = {0, 1, 2, 77, 131071, -3};
    for (int k = 0; k < 2; k++)
        for (uint32_t dim = 2; dim <= D; dim += 2)
            for (size_t i = 0; i < sizeof positions / sizeof positions[0]; i++) {
                const ora_rope rope = {.pairing = pairings[k], .dim = dim, .theta = 500000};
                double x[D], y[D];
                make_row(x);
                memcpy(y, x, sizeof x);
                ora_rotate(&rope, positions[i], ATTND_DTYPE_F32, y);
                for (uint32_t n = 0; n < dim / 2; n++) {
                    double phi = (double)positions[i] * pow(500000, -2.0 * n / dim);
                    double complex want = pair_of(x, &rope, n) * cexp(I * phi);
                    assert_true(cabs(pair_of(y, &rope, n) - want) < 1e-6);
                }
                for (uint32_t d = dim; d < D; d++)
                    assert_true(y[d] == x[d]);
            }
}

static void position_0_changes_nothing_but_the_type(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000};
    double x[D], y[D];
    make_row(x);
    memcpy(y, x, sizeof x);
    ora_rotate(&rope, 0, ATTND_DTYPE_BF16, y);
    for (int d = 0; d < D; d++)
        assert_true(y[d] == ora_round(ATTND_DTYPE_BF16, x[d]));
}

static void no_pairing_changes_nothing(void **state)
{
    double x[D], y[D];
    make_row(x);
    memcpy(y, x, sizeof x);
    ora_rotate(&(ora_rope){0}, 9, ATTND_DTYPE_BF16, y);
    assert_memory_equal(x, y, sizeof x);
}

static void linear_scaling_divides_the_position(void **state)
{
    const ora_rope plain = {.pairing = ATTND_ROPE_GPTJ, .dim = D, .theta = 10000},
                   scaled = {.pairing = ATTND_ROPE_GPTJ,
                             .dim = D,
                             .theta = 10000,
                             .scaling = ORA_SCALING_LINEAR,
                             .factor = 4};
    double x[D], y[D];
    make_row(x);
    make_row(y);
    ora_rotate(&plain, 25, ATTND_DTYPE_F32, x);
    ora_rotate(&scaled, 100, ATTND_DTYPE_F32, y);
    assert_memory_equal(x, y, sizeof x);
}

static void a_score_depends_on_the_distance_alone(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000};
    double want = 0;
    for (int64_t shift = 0; shift < 5000; shift += 613) {
        double q[D], k[D], r = 0;
        make_row(q);
        for (uint64_t d = 0; d < D; d++)
            k[d] = ora_element(6, "k", d);
        ora_rotate(&rope, 40 + shift, ATTND_DTYPE_F32, q);
        ora_rotate(&rope, 13 + shift, ATTND_DTYPE_F32, k);
        for (int d = 0; d < D; d++)
            r += q[d] * k[d];
        if (shift == 0)
            want = r;
        assert_true(fabs(r - want) < 1e-5);
    }
}

/* attend rotates q by its position, appended keys by theirs: as if both had been rotated before. */
static void attend_rotates_q_like_append_rotates_k(void **state)
{
    const int32_t q_len = 3, kv_len = 7, block = 0;
    float k[7][D], v[7][D], q[3][D], pool[2][8][D], turned_q[3][D], turned_pool[2][8][D] = {{{0}}};
    ora_generate(2, "k", 0, 7 * D, 1, ATTND_DTYPE_F32, k);
    ora_generate(2, "v", 0, 7 * D, 1, ATTND_DTYPE_F32, v);
    ora_generate(2, "q", 0, 3 * D, 1, ATTND_DTYPE_F32, q);
    ora_problem p = {.n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = D,
                     .head_dim_v = D,
                     .sm_scale = 0.25,
                     .dtype = ATTND_DTYPE_F32,
                     .n_seqs = 1,
                     .kv_len = &kv_len,
                     .block_ids = &block,
                     .k = {k, sizeof k[0], 0, ATTND_DTYPE_F32},
                     .v = {v, sizeof v[0], 0, ATTND_DTYPE_F32},
                     .kv = {.plane = {pool[0], pool[1]},
                            .token_stride = {sizeof k[0], sizeof k[0]},
                            .n_blocks = 1,
                            .block_size = 8,
                            .dtype = ATTND_DTYPE_F32},
                     .rope = {.pairing = ATTND_ROPE_NEOX, .dim = 2, .theta = 10000},
                     .mask.kinds = ORA_MASK_CAUSAL};
    attnd_err err;
    p.q_len = &kv_len; /* the whole of k is new */
    assert_int_equal(ora_append(&p, &err), ATTND_OK);
    for (int t = 0; t < 7; t++) {
        double x[D];
        ora_decode(ATTND_DTYPE_F32, k[t], D, x);
        ora_rotate(&p.rope, t, ATTND_DTYPE_F32, x);
        ora_encode(ATTND_DTYPE_F32, x, D, turned_pool[0][t]);
        memcpy(turned_pool[1][t], v[t], sizeof v[t]);
    }
    assert_memory_equal(pool[0], turned_pool[0], 7 * sizeof k[0]);
    for (int i = 0; i < 3; i++) {
        double x[D];
        ora_decode(ATTND_DTYPE_F32, q[i], D, x);
        ora_rotate(&p.rope, 4 + i, ATTND_DTYPE_F32, x);
        ora_encode(ATTND_DTYPE_F32, x, D, turned_q[i]);
    }
    p.q_len = &q_len;
    p.q = (ora_rows){q, sizeof q[0], 0, ATTND_DTYPE_F32};
    ora_result inside, before;
    assert_int_equal(ora_attend(&p, &inside, &err), ATTND_OK);
    p.rope = (ora_rope){0};
    p.q.base = turned_q;
    assert_int_equal(ora_attend(&p, &before, &err), ATTND_OK);
    assert_memory_equal(inside.memory, before.memory, 3 * (D + 4) * sizeof(double));
    ora_result_fini(&inside);
    ora_result_fini(&before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_pair_is_turned_by_its_angle),
        cmocka_unit_test(position_0_changes_nothing_but_the_type),
        cmocka_unit_test(no_pairing_changes_nothing),
        cmocka_unit_test(linear_scaling_divides_the_position),
        cmocka_unit_test(a_score_depends_on_the_distance_alone),
        cmocka_unit_test(attend_rotates_q_like_append_rotates_k),
    };
    return cmocka_run_group_tests_name("ora_rope", tests, NULL, NULL);
}
