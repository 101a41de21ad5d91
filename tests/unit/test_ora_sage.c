/* test_ora_sage.c: Sage in the evaluator is attention.md §15, written down a second time. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/sage.h"

enum { N_SEQS = 2, HKV = 2, HQ = 4, D = 16, DV = 8, KEYS = 25, TOKENS = 9, MOST_KEYS = 20 };

/* Given keys of two sequences, 20 and 5, and 6 and 3 rows of q. */
typedef struct scene {
    ora_problem p;
    float k[KEYS][HKV][D], v[KEYS][HKV][DV], q[TOKENS][HQ][D];
    int32_t q_len[N_SEQS], kv_len[N_SEQS];
} scene;

static const int first_key[N_SEQS] = {0, 20}, first_row[N_SEQS] = {0, 6};

static void scene_make(scene *s, attnd_dtype dtype, bool smooth_k, bool smooth_v)
{
    *s = (scene){.q_len = {6, 3}, .kv_len = {20, 5}};
    ora_generate(6, "k", 0, KEYS * HKV * D, 1, ATTND_DTYPE_F32, s->k);
    ora_generate(6, "v", 0, KEYS * HKV * DV, 1, ATTND_DTYPE_F32, s->v);
    ora_generate(6, "q", 0, TOKENS * HQ * D, 2, ATTND_DTYPE_F32, s->q);
    for (int n = 0; n < KEYS; n++)
        for (int g = 0; g < HKV; g++)
            for (int d = 0; d < D; d++) {
                s->k[n][g][d] += (float)(n < 20 ? 3 : -2) * (float)(d % 3 - 1);
                s->v[n][g][d % DV] += 0.25f;
            }
    s->p = (ora_problem){
        .n_heads = HQ,
        .n_kv_heads = HKV,
        .head_dim = D,
        .head_dim_v = DV,
        .sm_scale = 0.3,
        .dtype = ATTND_DTYPE_F32,
        .n_seqs = N_SEQS,
        .n_contexts = N_SEQS,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .q = {s->q, sizeof s->q[0], sizeof s->q[0][0], ATTND_DTYPE_F32},
        .kv = {.plane = {s->k, s->v},
               .token_stride = {sizeof s->k[0], sizeof s->v[0]},
               .head_stride = {sizeof s->k[0][0], sizeof s->v[0][0]},
               .dtype = ATTND_DTYPE_F32},
        .mask = {.kinds = ORA_MASK_CAUSAL},
        .sage = {.qk_dtype = dtype,
                 .q_block = 4,
                 .k_block = 16,
                 .smooth_k = smooth_k,
                 .smooth_v = smooth_v},
    };
}

static void attends(const scene *s, ora_result *r)
{
    attnd_err err;
    if (ora_attend(&s->p, r, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

/* ---- The layout of the scales ---- */

static void slots_have_the_published_vectors(void **state)
{
    static const int32_t len[] = {20, 5};
    assert_int_equal(ora_sage_slot(len, 16, 0, 0), 0);
    assert_int_equal(ora_sage_slot(len, 16, 0, 15), 0);
    assert_int_equal(ora_sage_slot(len, 16, 0, 16), 1);
    assert_int_equal(ora_sage_slot(len, 16, 0, 19), 1);
    assert_int_equal(ora_sage_slot(len, 16, 1, 0), 2);
    assert_int_equal(ora_sage_slot(len, 16, 1, 4), 2);
    assert_int_equal(ora_sage_count(len, 2, 16), 3);
}

static void no_two_sequences_share_a_slot(void **state)
{
    for (uint32_t block = 1; block <= 64; block *= 4)
        for (int seed = 0; seed < 50; seed++) {
            int32_t len[6];
            for (int b = 0; b < 6; b++)
                len[b] = (int32_t)((seed * 31 + b * b * 17) % 70);
            int64_t count = ora_sage_count(len, 6, block), last = -1;
            for (uint32_t b = 0; b < 6; b++)
                for (int64_t t = 0; t < len[b]; t++) {
                    int64_t slot = ora_sage_slot(len, block, b, t);
                    assert_true(t % block ? slot == last : slot > last);
                    assert_true(slot < count);
                    last = slot;
                }
        }
}

/* ---- The definition, once more ---- */

typedef struct twin {
    double mean_k[N_SEQS][HKV][D], mean_v[HKV][DV];
    float sq[TOKENS][HQ], sk[KEYS][HKV], sv[HKV][DV];           /* the scale of each row */
    double q[TOKENS][HQ][D], k[KEYS][HKV][D], v[KEYS][HKV][DV]; /* codes */
} twin;

static double code_of(attnd_dtype dtype, double x, float scale)
{
    volatile float quotient = (float)x / scale;
    return ora_round(dtype, quotient);
}

static float limit_of(const scene *s)
{
    return s->p.sage.qk_dtype == ATTND_DTYPE_I8 ? 127 : 448;
}

static void twin_keys(const scene *s, twin *w)
{
    for (int g = 0; g < HKV; g++) {
        for (int n = 0; n < KEYS; n++) {
            for (int d = 0; d < D && s->p.sage.smooth_k; d++)
                w->mean_k[n >= 20][g][d] += s->k[n][g][d] / (n < 20 ? 20.0 : 5.0);
            for (int d = 0; d < DV && s->p.sage.smooth_v; d++)
                w->mean_v[g][d] += s->v[n][g][d] / (double)KEYS;
        }
        for (int d = 0; d < DV; d++) {
            float amax = 1e-3f;
            for (int n = 0; n < KEYS; n++)
                amax = fmaxf(amax, (float)fabs(s->v[n][g][d] - w->mean_v[g][d]));
            w->sv[g][d] = amax / 448;
        }
        for (int n = 0; n < KEYS; n++) {
            /* Blocks of 16 keys: 0..15, 16..19 and 20..24. */
            int from = n < 16 ? 0 : n < 20 ? 16 : 20, to = n < 16 ? 16 : n < 20 ? 20 : 25;
            float amax = 1e-3f;
            for (int m = from; m < to; m++)
                for (int d = 0; d < D; d++)
                    amax = fmaxf(amax, (float)fabs(s->k[m][g][d] - w->mean_k[n >= 20][g][d]));
            w->sk[n][g] = amax / limit_of(s);
            for (int d = 0; d < D; d++)
                w->k[n][g][d] = code_of(s->p.sage.qk_dtype,
                                        s->k[n][g][d] - w->mean_k[n >= 20][g][d], w->sk[n][g]);
            for (int d = 0; d < DV; d++)
                w->v[n][g][d] =
                    code_of(ATTND_DTYPE_E4M3, s->v[n][g][d] - w->mean_v[g][d], w->sv[g][d]);
        }
    }
}

static void twin_queries(const scene *s, twin *w)
{
    for (int h = 0; h < HQ; h++)
        for (int t = 0; t < TOKENS; t++) {
            /* Blocks of 4 rows: 0..3, 4..5 and 6..8. */
            int from = t < 4 ? 0 : t < 6 ? 4 : 6, to = t < 4 ? 4 : t < 6 ? 6 : 9;
            float amax = 1e-3f;
            for (int m = from; m < to; m++)
                for (int d = 0; d < D; d++)
                    amax = fmaxf(amax, fabsf(s->q[m][h][d]));
            w->sq[t][h] = amax / limit_of(s);
            for (int d = 0; d < D; d++)
                w->q[t][h][d] = code_of(s->p.sage.qk_dtype, s->q[t][h][d], w->sq[t][h]);
        }
}

/* Row t and head h as §15 has it: codes summed first, scales and means after. */
static void assert_row(const scene *s, const twin *w, const ora_result *r, int t, int h)
{
    int b = t >= first_row[1], g = h / (HQ / HKV), first = first_key[b];
    int n_keys = s->kv_len[b] - s->q_len[b] + t - first_row[b] + 1;
    double score[MOST_KEYS], m = -INFINITY, l = 0, shift = 0, sum[DV] = {0};
    for (int d = 0; d < D; d++)
        shift += s->p.sm_scale * s->q[t][h][d] * w->mean_k[b][g][d];
    for (int j = 0; j < n_keys; j++) {
        double dot = 0;
        for (int d = 0; d < D; d++)
            dot += w->q[t][h][d] * w->k[first + j][g][d];
        score[j] = s->p.sm_scale * w->sq[t][h] * w->sk[first + j][g] * dot;
        m = fmax(m, score[j]);
    }
    for (int j = 0; j < n_keys; j++) {
        l += exp(score[j] - m);
        for (int d = 0; d < DV; d++)
            sum[d] += exp(score[j] - m) * w->v[first + j][g][d];
    }
    double z = l;
    if (s->p.bias.sinks)
        z += exp(s->p.bias.sinks[h] - (m + shift));
    assert_true(fabs(r->m[t * HQ + h] - (m + shift)) <= 1e-12 * (1 + fabs(m)));
    assert_true(fabs(r->lse[t * HQ + h] - (m + shift + log(l))) <= 1e-12 * (1 + fabs(m)));
    for (int d = 0; d < DV; d++) {
        double o = sum[d] / z * w->sv[g][d] + l / z * w->mean_v[g][d];
        assert_true(fabs(r->out[(t * HQ + h) * DV + d] - o) <= 1e-12);
    }
}

static void the_evaluator_is_the_definition(void **state)
{
    static const float sinks[HQ] = {-3, 0, 2, 9};
    for (int n = 0; n < 16; n++) {
        scene s;
        scene_make(&s, n & 1 ? ATTND_DTYPE_E4M3 : ATTND_DTYPE_I8, n & 2, n & 4);
        if (n & 8)
            s.p.bias.sinks = sinks;
        twin w = {0};
        twin_keys(&s, &w);
        twin_queries(&s, &w);
        ora_result r;
        attends(&s, &r);
        for (int t = 0; t < TOKENS; t++)
            for (int h = 0; h < HQ; h++)
                assert_row(&s, &w, &r, t, h);
        ora_result_fini(&r);
    }
}

static void its_scales_lie_in_the_flat_layout(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_I8, true, true);
    twin w = {0};
    twin_keys(&s, &w);
    twin_queries(&s, &w);
    ora_batch batch;
    ora_sage_scales scales;
    attnd_err err;
    assert_int_equal(ora_batch_init(&batch, &s.p, &err), ATTND_OK);
    assert_int_equal(ora_sage_init(&scales, &batch, &s.p, &err), ATTND_OK);
    assert_int_equal(scales.n_q, 4);
    assert_int_equal(scales.n_k, 3);
    for (int h = 0; h < HQ; h++)
        for (int t = 0; t < TOKENS; t++)
            assert_true(scales.q[h * 4 + (t < 4 ? 0 : t < 6 ? 1 : 2)] == w.sq[t][h]);
    for (int g = 0; g < HKV; g++) {
        for (int n = 0; n < KEYS; n++)
            assert_true(scales.k[g * 3 + (n < 16 ? 0 : n < 20 ? 1 : 2)] == w.sk[n][g]);
        for (int d = 0; d < DV; d++)
            assert_true(scales.v[g * DV + d] == w.sv[g][d]);
    }
    ora_sage_fini(&scales);
    ora_batch_fini(&batch);
}

static void the_smallest_scale_is_a_thousandth_of_a_code(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_I8, false, false);
    memset(s.k, 0, sizeof s.k);
    memset(s.v, 0, sizeof s.v);
    s.k[3][1][2] = 1e-3f;
    s.v[3][1][2] = 1e-4f;
    ora_result r;
    attends(&s, &r);
    ora_batch batch;
    ora_sage_scales scales;
    attnd_err err;
    assert_int_equal(ora_batch_init(&batch, &s.p, &err), ATTND_OK);
    assert_int_equal(ora_sage_init(&scales, &batch, &s.p, &err), ATTND_OK);
    assert_true(scales.k[0] == 1e-3f / 127 && scales.k[3] == 1e-3f / 127);
    assert_true(scales.v[0] == 1e-3f / 448 && scales.v[DV + 2] == 1e-3f / 448);
    double k[D] = {[2] = 1e-3f};
    ora_sage_k(&scales, 0, 1, 3, k);
    assert_true(k[2] == 127 * (double)(1e-3f / 127));
    ora_sage_fini(&scales);
    ora_batch_fini(&batch);
    ora_result_fini(&r);
}

/* Over a K that is one large vector plus a little, smoothing keeps what quantisation would lose,
 * and the dense LSE comes back. */
static void a_smoothed_k_is_nearer_to_dense_and_keeps_its_lse(void **state)
{
    double error[2] = {0}, lse_error[2] = {0};
    for (int smooth = 0; smooth < 2; smooth++) {
        scene s, dense;
        scene_make(&s, ATTND_DTYPE_I8, smooth, false);
        for (int n = 0; n < KEYS; n++)
            for (int g = 0; g < HKV; g++)
                for (int d = 0; d < D; d++)
                    s.k[n][g][d] = 40 * (float)(d % 2) + s.k[n][g][d] / 8;
        dense = s;
        dense.p.q.base = dense.q;
        dense.p.kv.plane[0] = dense.k;
        dense.p.kv.plane[1] = dense.v;
        dense.p.sage = (ora_sage){0};
        ora_result a, b;
        attends(&s, &a);
        attends(&dense, &b);
        for (int i = 0; i < TOKENS * HQ * DV; i++)
            error[smooth] = fmax(error[smooth], fabs(a.out[i] - b.out[i]));
        for (int i = 0; i < TOKENS * HQ; i++)
            lse_error[smooth] = fmax(lse_error[smooth], fabs(a.lse[i] - b.lse[i]));
        ora_result_fini(&a);
        ora_result_fini(&b);
    }
    assert_true(error[1] < 0.1 && error[1] < error[0] / 3);
    assert_true(lse_error[1] < 0.1 && lse_error[1] < lse_error[0] / 3);
}

/* Scales and means are of all keys, whatever part of them is asked for. */
static void parts_merge_to_the_whole(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_E4M3, true, true);
    ora_result whole, part[2];
    attends(&s, &whole);
    s.p.key_to = 9;
    attends(&s, &part[0]);
    s.p.key_from = 9;
    s.p.key_to = 100;
    attends(&s, &part[1]);
    for (int i = 0; i < TOKENS * HQ; i++) {
        double m[2], l[2], o[2][DV], m_out, l_out, o_out[DV];
        for (int n = 0; n < 2; n++) {
            m[n] = part[n].m[i];
            l[n] = part[n].l[i];
            memcpy(o[n], part[n].out + i * DV, sizeof o[n]);
        }
        ora_merge(2, m, l, o[0], DV, &m_out, &l_out, o_out);
        assert_true(fabs(m_out + log(l_out) - whole.lse[i]) <= 1e-12 * (1 + fabs(m_out)));
        for (int d = 0; d < DV; d++)
            assert_true(fabs(o_out[d] - whole.out[i * DV + d]) <= 1e-12);
    }
    ora_result_fini(&whole);
    ora_result_fini(&part[0]);
    ora_result_fini(&part[1]);
}

/* Block 0 of each sequence stands for its keys alone: one pseudo-key with a scale of its own. */
static void the_mean_of_a_block_is_a_key_with_its_own_scale(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_I8, true, true);
    static double proxy_k[N_SEQS][HKV][1][D], proxy_v[N_SEQS][HKV][1][DV];
    for (int i = 0; i < N_SEQS * HKV * D; i++)
        proxy_k[i / D / HKV][i / D % HKV][0][i % D] = (float)ora_element(1, "pk", (uint64_t)i);
    for (int i = 0; i < N_SEQS * HKV * DV; i++)
        proxy_v[i / DV / HKV][i / DV % HKV][0][i % DV] = (float)ora_element(1, "pv", (uint64_t)i);
    static const uint32_t none[N_SEQS];
    s.p.mask.kinds = 0;
    s.p.sparse = (ora_sparse){.block_q = 64,
                              .block_kv = 64,
                              .n_heads = 1,
                              .n_q_blocks = 1,
                              .block_bits = none,
                              .block_words = 1,
                              .proxy_k = proxy_k[0][0][0],
                              .proxy_v = proxy_v[0][0][0],
                              .n_kv_blocks = 1};
    twin w = {0};
    twin_keys(&s, &w);
    twin_queries(&s, &w);
    ora_result r;
    attends(&s, &r);
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HQ; h++) {
            int b = t >= first_row[1], g = h / (HQ / HKV);
            float amax = 1e-3f;
            for (int d = 0; d < D; d++)
                amax = fmaxf(amax, (float)fabs(proxy_k[b][g][0][d] - w.mean_k[b][g][d]));
            double score = log(s.kv_len[b]);
            for (int d = 0; d < D; d++) {
                double k =
                    code_of(ATTND_DTYPE_I8, proxy_k[b][g][0][d] - w.mean_k[b][g][d], amax / 127);
                score += s.p.sm_scale * w.sq[t][h] * (amax / 127) * w.q[t][h][d] * k;
                score += s.p.sm_scale * s.q[t][h][d] * w.mean_k[b][g][d];
            }
            assert_true(fabs(r.lse[t * HQ + h] - score) <= 1e-12 * (1 + fabs(score)));
            for (int d = 0; d < DV; d++) {
                double v =
                    code_of(ATTND_DTYPE_E4M3, proxy_v[b][g][0][d] - w.mean_v[g][d], w.sv[g][d]);
                assert_true(fabs(r.out[(t * HQ + h) * DV + d] -
                                 (v * w.sv[g][d] + w.mean_v[g][d])) <= 1e-12);
            }
        }
    ora_result_fini(&r);
}

/* ---- Refusals ---- */

static void refuses(const scene *s, attnd_reason reason, const char *text)
{
    attnd_err err;
    ora_result r;
    assert_int_equal(ora_attend(&s->p, &r, &err), attnd_reason_status(reason));
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.text, text);
    assert_null(r.memory);
}

#define WITH(change, reason, text)                                                                 \
    do {                                                                                           \
        scene_make(&s, ATTND_DTYPE_I8, true, true);                                                \
        change;                                                                                    \
        refuses(&s, ATTND_##reason, text);                                                         \
    } while (0)

static void what_sage_cannot_be_is_refused(void **state)
{
    static const int32_t topk[TOKENS] = {0}, page_keys[N_SEQS * HKV] = {1, 1, 1, 1},
                         pages[N_SEQS * HKV] = {0};
    scene s;
    WITH(s.p.sage.qk_dtype = ATTND_DTYPE_BF16, BAD_QUANT, "sage.qk_dtype = bf16: i8 or e4m3");
    WITH(s.p.sage.q_block = 3, BAD_QUANT, "sage.q_block = 3: a power of two");
    WITH(s.p.sage.k_block = 0, BAD_QUANT, "sage.k_block = 0: a power of two");
    WITH(s.p.bias.softcap = 30, BAD_COMBINATION,
         "sage.smooth_k = true: a soft cap does not pass a shift of the scores on");
    WITH((s.p.sparse.topk = topk, s.p.sparse.topk_width = 1, s.p.sparse.topk_is_slots = true,
          s.p.kv.block_size = 4, s.p.kv.n_blocks = 1, s.p.mask.kinds = 0),
         BAD_COMBINATION, "sage.qk_dtype = i8: not with sparse.topk_is_slots");
    WITH((s.p.sparse.pages = pages, s.p.sparse.pages_width = 1, s.p.sparse.page_keys = page_keys,
          s.p.kv.block_size = 4, s.p.kv.n_blocks = 1, s.p.mask.kinds = 0),
         BAD_COMBINATION, "sage.qk_dtype = i8: not with sparse.pages");
}

static void a_soft_cap_without_smoothing_is_served(void **state)
{
    scene s;
    scene_make(&s, ATTND_DTYPE_I8, false, true);
    s.p.bias.softcap = 30;
    ora_result r;
    attends(&s, &r);
    ora_result_fini(&r);
}

static void every_key_needs_a_block(void **state)
{
    scene s;
    static const int32_t ids[] = {0, -1, 1};
    scene_make(&s, ATTND_DTYPE_I8, false, false);
    s.p.block_ids = ids;
    s.p.kv.block_size = 16;
    s.p.kv.block_stride = 16 * sizeof s.k[0];
    s.p.kv.n_blocks = 1;
    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 1};
    refuses(&s, ATTND_BAD_BLOCK, "block_ids[0][1] = -1: key 16 needs one of 0..0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_have_the_published_vectors),
        cmocka_unit_test(no_two_sequences_share_a_slot),
        cmocka_unit_test(the_evaluator_is_the_definition),
        cmocka_unit_test(its_scales_lie_in_the_flat_layout),
        cmocka_unit_test(the_smallest_scale_is_a_thousandth_of_a_code),
        cmocka_unit_test(a_smoothed_k_is_nearer_to_dense_and_keeps_its_lse),
        cmocka_unit_test(parts_merge_to_the_whole),
        cmocka_unit_test(the_mean_of_a_block_is_a_key_with_its_own_scale),
        cmocka_unit_test(what_sage_cannot_be_is_refused),
        cmocka_unit_test(a_soft_cap_without_smoothing_is_served),
        cmocka_unit_test(every_key_needs_a_block),
    };
    return cmocka_run_group_tests_name("ora_sage", tests, NULL, NULL);
}
