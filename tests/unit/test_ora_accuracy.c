/* test_ora_accuracy.c: what quantised caches and Sage cost against dense attention on the numbers
 * before quantisation stays within 1.5 of attention.md §22.4.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "tests/oracle/generate.h"
#include "tests/oracle/oracle.h"

enum { D = 128, KEYS = 512, ROWS = 16 };

typedef struct scene {
    ora_problem p;
    float k[KEYS][D], v[KEYS][D], q[ROWS][D];
    uint8_t pool[2][KEYS][D * 4 + 16];
    int32_t q_len, kv_len, block_id;
} scene;

/* One sequence of one head over one block; all rows see all keys. */
static scene *scene_new(double amplitude)
{
    scene *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->q_len = ROWS;
    s->kv_len = KEYS;
    ora_generate(8, "k", 0, KEYS * D, 1, ATTND_DTYPE_F32, s->k);
    ora_generate(8, "v", 0, KEYS * D, 1, ATTND_DTYPE_F32, s->v);
    ora_generate(8, "q", 0, ROWS * D, amplitude, ATTND_DTYPE_F32, s->q);
    s->p = (ora_problem){
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = D,
        .head_dim_v = D,
        .sm_scale = ora_sm_scale(0, D),
        .dtype = ATTND_DTYPE_F32,
        .n_seqs = 1,
        .q_len = &s->q_len,
        .kv_len = &s->kv_len,
        .block_ids = &s->block_id,
        .q = {s->q, sizeof s->q[0], 0, ATTND_DTYPE_F32},
        .kv = {.plane = {s->pool[0], s->pool[1]},
               .token_stride = {sizeof s->pool[0][0], sizeof s->pool[0][0]},
               .scales = {s->pool[0][0] + D, s->pool[1][0] + D},
               .scale_token_stride = {sizeof s->pool[0][0], sizeof s->pool[0][0]},
               .n_blocks = 1,
               .block_size = KEYS,
               .dtype = ATTND_DTYPE_F32},
    };
    return s;
}

static void run(scene *s, ora_result *r)
{
    attnd_err err;
    ora_problem p = s->p;
    p.q_len = &s->kv_len;
    p.k = (ora_rows){s->k, sizeof s->k[0], 0, ATTND_DTYPE_F32};
    p.v = (ora_rows){s->v, sizeof s->v[0], 0, ATTND_DTYPE_F32};
    if (ora_append(&p, &err) != ATTND_OK || ora_attend(&s->p, r, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

/* e_rms of a scene whose p the caller changed; it is freed. */
static double error_of(scene *s, double amplitude)
{
    scene *dense = scene_new(amplitude);
    ora_result got, want;
    run(dense, &want);
    run(s, &got);
    double square = 0, norm = 0;
    for (int i = 0; i < ROWS * D; i++) {
        square += (got.out[i] - want.out[i]) * (got.out[i] - want.out[i]);
        norm += want.out[i] * want.out[i];
    }
    ora_result_fini(&got);
    ora_result_fini(&want);
    free(dense);
    free(s);
    return sqrt(square / norm);
}

/* Within 1.5 of what is published, and far from nothing: something was quantised. */
static void assert_costs(double error, double published)
{
    assert_true(error <= 1.5 * published);
    assert_true(error >= 0.1 * published);
}

static void an_fp8_cache_costs_what_is_published(void **state)
{
    for (int n = 0; n < 2; n++) {
        double amplitude = n ? 8 : 1;
        scene *s = scene_new(amplitude);
        s->p.kv.dtype = ATTND_DTYPE_E4M3;
        assert_costs(error_of(s, amplitude), n ? 0.10 : 0.04);
    }
}

static void scales_a_head_cost_no_more_than_one_a_layer(void **state)
{
    for (int n = 0; n < 2; n++) {
        double amplitude = n ? 8 : 1;
        scene *s = scene_new(amplitude);
        s->p.kv.dtype = ATTND_DTYPE_E4M3;
        s->p.kv.format = ORA_HEAD;
        assert_costs(error_of(s, amplitude), n ? 0.10 : 0.04);
    }
}

static void an_nvfp4_cache_costs_what_is_published(void **state)
{
    for (int n = 0; n < 2; n++) {
        double amplitude = n ? 8 : 1;
        scene *s = scene_new(amplitude);
        s->p.kv.dtype = ATTND_DTYPE_NVFP4;
        s->p.kv.format = ORA_NVFP4;
        s->p.quant.k_orig_quant = s->p.quant.v_orig_quant = 448 * 6 / 3.4641016f; /* 2·√3 at most */
        assert_costs(error_of(s, amplitude), n ? 0.32 : 0.14);
    }
}

static void sage_costs_what_is_published(void **state)
{
    for (int n = 0; n < 4; n++) {
        double amplitude = n % 2 ? 8 : 1;
        scene *s = scene_new(amplitude);
        s->p.sage = (ora_sage){.qk_dtype = ATTND_DTYPE_I8,
                               .q_block = 16,
                               .k_block = 64,
                               .smooth_k = n / 2,
                               .smooth_v = n / 2};
        assert_costs(error_of(s, amplitude), n % 2 ? 0.04 : 0.03);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_fp8_cache_costs_what_is_published),
        cmocka_unit_test(scales_a_head_cost_no_more_than_one_a_layer),
        cmocka_unit_test(an_nvfp4_cache_costs_what_is_published),
        cmocka_unit_test(sage_costs_what_is_published),
    };
    return cmocka_run_group_tests_name("ora_accuracy", tests, NULL, NULL);
}
