/* test_ora_query.c: q in FP8 is what its codes stand for, whoever quantised it. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/oracle.h"
#include "tests/oracle/query.h"

enum { D = 16, HQ = 2, KEYS = 2 };

/* One row of two heads over two given keys of one kv head. */
typedef struct scene {
    ora_problem p;
    uint16_t k[KEYS][D], v[KEYS][D], q[HQ * D];
    uint8_t q8[HQ * D];
    int32_t q_len, kv_len, position;
} scene;

static void scene_make(scene *s)
{
    *s = (scene){.q_len = 1, .kv_len = KEYS, .position = 7};
    ora_generate(2, "k", 0, KEYS * D, 1, ATTND_DTYPE_BF16, s->k);
    ora_generate(2, "v", 0, KEYS * D, 1, ATTND_DTYPE_BF16, s->v);
    ora_generate(2, "q", 0, HQ * D, 3, ATTND_DTYPE_BF16, s->q);
    s->p = (ora_problem){
        .n_heads = HQ,
        .n_kv_heads = 1,
        .head_dim = D,
        .head_dim_v = D,
        .sm_scale = 0.25,
        .dtype = ATTND_DTYPE_BF16,
        .n_seqs = 1,
        .q_len = &s->q_len,
        .kv_len = &s->kv_len,
        .positions = &s->position,
        .q = {s->q, sizeof s->q, sizeof s->q / HQ, ATTND_DTYPE_BF16},
        .kv = {.plane = {s->k, s->v},
               .token_stride = {sizeof s->k[0], sizeof s->v[0]},
               .dtype = ATTND_DTYPE_BF16},
    };
}

static void loads(const scene *s, double *q)
{
    ora_batch batch;
    attnd_err err;
    float cos_sin[D];
    if (ora_batch_init(&batch, &s->p, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    ora_q_load(&batch, &s->p, 0, 0, cos_sin, q);
    ora_batch_fini(&batch);
}

static double e4m3_of(double x, float factor)
{
    volatile float product = (float)x * factor;
    return ora_round(ATTND_DTYPE_E4M3, product);
}

static void a_q_of_e4m3_is_its_codes_times_its_factor(void **state)
{
    scene s;
    scene_make(&s);
    double x[HQ * D], q[HQ * D];
    for (int i = 0; i < HQ * D; i++)
        s.q8[i] = (uint8_t)(i * 7);
    s.p.q = (ora_rows){s.q8, sizeof s.q8, D, ATTND_DTYPE_E4M3};
    s.p.quant.q_quant_orig = 0.3f;
    ora_decode(ATTND_DTYPE_E4M3, s.q8, HQ * D, x);
    loads(&s, q);
    for (int i = 0; i < HQ * D; i++)
        assert_true(q[i] == x[i] * (double)0.3f);
    s.p.quant.q_quant_orig = 0;
    loads(&s, q);
    for (int i = 0; i < HQ * D; i++)
        assert_true(q[i] == x[i]);
}

/* §11.4: rotated, rounded to the activation type, then to E4M3 times the factor. */
static void a_q_that_the_call_quantises_is_rotated_first(void **state)
{
    scene s;
    scene_make(&s);
    s.p.rope = (ora_rope){.pairing = ATTND_ROPE_GPTJ, .dim = 8, .first = 8, .theta = 1e4};
    double plain[HQ * D], q[HQ * D];
    loads(&s, plain);
    s.p.quant.q_orig_quant = 37;
    s.p.quant.q_quant_orig = 0.027f; /* not 1/37: the two numbers are used as given */
    loads(&s, q);
    int n_changed = 0;
    for (int i = 0; i < HQ * D; i++) {
        double raw;
        ora_decode(ATTND_DTYPE_BF16, &s.q[i], 1, &raw);
        n_changed += plain[i] != raw;
        assert_true(plain[i] == ora_round(ATTND_DTYPE_BF16, plain[i]));
        assert_true(q[i] == e4m3_of(plain[i], 37) * (double)0.027f);
    }
    assert_true(n_changed > HQ * 4 && n_changed <= HQ * 8);
}

static void a_wide_q_is_rounded_to_the_activation_type_on_its_way_to_fp8(void **state)
{
    scene s;
    scene_make(&s);
    /* 17.04 is 17 in bf16, a tie that goes to 16; unrounded it would be 18. */
    float q32[HQ * D];
    for (int i = 0; i < HQ * D; i++)
        q32[i] = 17.04f;
    double q[HQ * D];
    s.p.q = (ora_rows){q32, sizeof q32, sizeof q32 / HQ, ATTND_DTYPE_F32};
    s.p.quant.q_orig_quant = 1;
    loads(&s, q);
    for (int i = 0; i < HQ * D; i++)
        assert_true(q[i] == 16);
    s.p.dtype = ATTND_DTYPE_F32;
    loads(&s, q);
    assert_true(q[0] == 18);
}

/* Q = 1, K = 2 and 0, scale 1/4, factor 1/2 of K: the logit is 4 (case B041). */
static void an_fp8_q_does_not_lose_the_factors_of_the_pool(void **state)
{
    for (int fp8_q = 0; fp8_q < 2; fp8_q++) {
        scene s;
        scene_make(&s);
        double one[HQ * D], two[D], zero[D] = {0}, v[KEYS * D];
        uint8_t k8[KEYS][D], v8[KEYS][D];
        for (int i = 0; i < HQ * D; i++) {
            one[i] = 1;
            two[i % D] = 2;
            v[i] = i < D;
        }
        ora_encode(ATTND_DTYPE_E4M3, two, D, k8[0]);
        ora_encode(ATTND_DTYPE_E4M3, zero, D, k8[1]);
        ora_encode(ATTND_DTYPE_E4M3, v, KEYS * D, v8);
        ora_encode(ATTND_DTYPE_BF16, one, HQ * D, s.q);
        ora_encode(ATTND_DTYPE_E4M3, one, HQ * D, s.q8);
        if (fp8_q)
            s.p.q = (ora_rows){s.q8, sizeof s.q8, D, ATTND_DTYPE_E4M3};
        s.p.quant = (ora_quant){.q_quant_orig = 1, .k_quant_orig = 0.5f, .v_quant_orig = 1};
        s.p.kv = (ora_kv){.plane = {k8, v8}, .token_stride = {D, D}, .dtype = ATTND_DTYPE_E4M3};
        ora_result r;
        attnd_err err;
        assert_int_equal(ora_attend(&s.p, &r, &err), ATTND_OK);
        for (int i = 0; i < HQ * D; i++)
            assert_true(fabs(r.out[i] - 1 / (1 + exp(-4.0))) < 1e-12);
        ora_result_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_q_of_e4m3_is_its_codes_times_its_factor),
        cmocka_unit_test(a_q_that_the_call_quantises_is_rotated_first),
        cmocka_unit_test(a_wide_q_is_rounded_to_the_activation_type_on_its_way_to_fp8),
        cmocka_unit_test(an_fp8_q_does_not_lose_the_factors_of_the_pool),
    };
    return cmocka_run_group_tests_name("ora_query", tests, NULL, NULL);
}
