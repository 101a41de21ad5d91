/* test_ora_kv.c: attention over a pool of any format is attention over the numbers its bytes stand
 * for, whoever wrote them, with the factors of the layer, the head or the sequence.
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

enum { N_SEQS = 2, HKV = 2, HQ = 4, D = 32, DV = 16, T = 4, BLOCKS = 8, KEYS = 12, TOKENS = 3 };

/* Two sequences of 5 and 7 keys, of which 2 and 1 are rows of q; a block is [K codes | K scales | V
 * codes | V scales], each [head][token]. */
typedef struct scene {
    ora_problem p;
    uint8_t pool[BLOCKS * 2 * HKV * T * D * 4];
    uint16_t k[KEYS][HKV][D], v[KEYS][HKV][DV], q[TOKENS][HQ][D];
    int32_t q_len[N_SEQS], kv_len[N_SEQS], block_ids[4];
} scene;

static const struct {
    ora_format format;
    attnd_dtype dtype;
} formats[] = {
    {ORA_PLAIN, ATTND_DTYPE_F32},  {ORA_PLAIN, ATTND_DTYPE_F16},  {ORA_PLAIN, ATTND_DTYPE_BF16},
    {ORA_PLAIN, ATTND_DTYPE_E4M3}, {ORA_PLAIN, ATTND_DTYPE_E5M2}, {ORA_PLAIN, ATTND_DTYPE_I8},
    {ORA_HEAD, ATTND_DTYPE_E4M3},  {ORA_HEAD, ATTND_DTYPE_I8},    {ORA_NVFP4, ATTND_DTYPE_NVFP4},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static size_t code_bytes(const ora_kv *kv, size_t width)
{
    return width * attnd_dtype_bits(kv->dtype) / 8;
}

static size_t scale_bytes(const ora_kv *kv, size_t width)
{
    return kv->format == ORA_HEAD ? 4 : kv->format == ORA_NVFP4 ? width / 16 : 0;
}

/* A pool of one format in memory[]. */
static ora_kv pool_of(uint8_t *memory, ora_format format, attnd_dtype dtype)
{
    ora_kv kv = {.n_blocks = BLOCKS, .block_size = T, .dtype = dtype, .format = format};
    size_t at = 0;
    for (int plane = 0; plane < 2; plane++) {
        size_t width = plane ? DV : D;
        kv.plane[plane] = memory + at;
        kv.token_stride[plane] = (int64_t)code_bytes(&kv, width);
        kv.head_stride[plane] = T * kv.token_stride[plane];
        at += HKV * T * code_bytes(&kv, width);
        kv.scales[plane] = memory + at;
        kv.scale_token_stride[plane] = (int64_t)scale_bytes(&kv, width);
        kv.scale_head_stride[plane] = T * kv.scale_token_stride[plane];
        at += HKV * T * scale_bytes(&kv, width);
    }
    kv.block_stride = (int64_t)at;
    return kv;
}

static void scene_make(scene *s, ora_format format, attnd_dtype dtype)
{
    *s = (scene){.q_len = {2, 1}, .kv_len = {5, 7}, .block_ids = {6, 1, 3, 5}};
    memset(s->pool, 0xFF, sizeof s->pool);
    ora_generate(11, "k", 0, KEYS * HKV * D, 1, ATTND_DTYPE_BF16, s->k);
    ora_generate(11, "v", 0, KEYS * HKV * DV, 1, ATTND_DTYPE_BF16, s->v);
    ora_generate(11, "q", 0, TOKENS * HQ * D, 1, ATTND_DTYPE_BF16, s->q);
    s->p = (ora_problem){
        .n_heads = HQ,
        .n_kv_heads = HKV,
        .head_dim = D,
        .head_dim_v = DV,
        .sm_scale = ora_sm_scale(0, D),
        .dtype = ATTND_DTYPE_BF16,
        .n_seqs = N_SEQS,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .block_ids = s->block_ids,
        .q = {s->q, sizeof s->q[0], sizeof s->q[0][0], ATTND_DTYPE_BF16},
        .kv = pool_of(s->pool, format, dtype),
        .mask = {.kinds = ORA_MASK_CAUSAL},
        .quant = {.k_orig_quant = 20, .k_quant_orig = 0.05f, .v_orig_quant = 24},
    };
    if (format == ORA_NVFP4)
        s->p.quant = (ora_quant){.k_orig_quant = 700, .v_orig_quant = 600, .v_quant_orig = 0.0017f};
    else
        s->p.quant.v_quant_orig = 1 / 24.0f;
}

/* Stores every key of both sequences, as one call that appends them all. */
static void fill(scene *s)
{
    attnd_err err;
    ora_problem p = s->p;
    p.q_len = s->kv_len;
    p.k = (ora_rows){s->k, sizeof s->k[0], sizeof s->k[0][0], ATTND_DTYPE_BF16};
    p.v = (ora_rows){s->v, sizeof s->v[0], sizeof s->v[0][0], ATTND_DTYPE_BF16};
    if (ora_append(&p, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

static void attends(const scene *s, ora_result *r)
{
    attnd_err err;
    if (ora_attend(&s->p, r, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

/* Key n of all (sequence 1 starts at 5) as the bytes of a pool say, times factor where the format
 * has one. */
static void read_row(const scene *s, const ora_kv *kv, int plane, int n, int g, double factor,
                     double *x)
{
    int seq = n >= 5, j = seq ? n - 5 : n;
    int64_t block = s->block_ids[seq * 2 + j / T] * kv->block_stride;
    const uint8_t *codes =
        (const uint8_t *)kv->plane[plane] + block + (g * T + j % T) * kv->token_stride[plane];
    const uint8_t *scales = (const uint8_t *)kv->scales[plane] + block +
                            (g * T + j % T) * kv->scale_token_stride[plane];
    size_t width = plane ? DV : D;
    float scale = (float)factor;
    if (kv->format == ORA_NVFP4) {
        ora_nvfp4_decode(codes, scales, width, scale, x);
        return;
    }
    if (kv->format == ORA_HEAD)
        memcpy(&scale, scales, sizeof scale);
    ora_decode(kv->dtype, codes, width, x);
    for (size_t d = 0; d < width; d++)
        x[d] *= scale;
}

/* Does the pool of every key, with factors [seq][g], give what numbers do? rows[plane][n][g]. */
static void assert_attends(const scene *s, double (*k)[HKV][D], double (*v)[HKV][DV])
{
    ora_result r;
    attends(s, &r);
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HQ; h++) {
            int first = t < 2 ? 0 : 5, n_keys = t == 0 ? 4 : t == 1 ? 5 : 7, g = h / (HQ / HKV);
            double q[D], score[7], m = -INFINITY, l = 0, o[DV] = {0};
            ora_decode(ATTND_DTYPE_BF16, s->q[t][h], D, q);
            for (int j = 0; j < n_keys; j++) {
                score[j] = 0;
                for (int d = 0; d < D; d++)
                    score[j] += q[d] * k[first + j][g][d];
                score[j] *= s->p.sm_scale;
                m = fmax(m, score[j]);
            }
            for (int j = 0; j < n_keys; j++) {
                l += exp(score[j] - m);
                for (int d = 0; d < DV; d++)
                    o[d] += exp(score[j] - m) * v[first + j][g][d];
            }
            assert_true(fabs(r.lse[t * HQ + h] - (m + log(l))) <= 1e-12 * fmax(1, fabs(m)));
            for (int d = 0; d < DV; d++)
                assert_true(fabs(r.out[(t * HQ + h) * DV + d] - o[d] / l) <= 1e-12);
        }
    ora_result_fini(&r);
}

static void read_all(const scene *s, const ora_kv *kv, double k_factor, double v_factor,
                     double (*k)[HKV][D], double (*v)[HKV][DV])
{
    for (int n = 0; n < KEYS; n++)
        for (int g = 0; g < HKV; g++) {
            read_row(s, kv, 0, n, g, k_factor, k[n][g]);
            read_row(s, kv, 1, n, g, v_factor, v[n][g]);
        }
}

static double k_factor_of(const ora_kv *kv)
{
    return kv->format == ORA_NVFP4 ? 1 / 700.0f : ora_codec_has(kv->dtype) ? 1 : 0.05f;
}

static double v_factor_of(const ora_kv *kv)
{
    return kv->format == ORA_NVFP4 ? 0.0017f : ora_codec_has(kv->dtype) ? 1 : 1 / 24.0f;
}

static void a_pool_is_the_numbers_its_bytes_stand_for(void **state)
{
    static double k[KEYS][HKV][D], v[KEYS][HKV][DV];
    for (int f = 0; f < N_FORMATS; f++) {
        scene s;
        scene_make(&s, formats[f].format, formats[f].dtype);
        fill(&s);
        read_all(&s, &s.p.kv, k_factor_of(&s.p.kv), v_factor_of(&s.p.kv), k, v);
        for (int n = 0; n < KEYS; n++)
            for (int g = 0; g < HKV; g++)
                for (int d = 0; d < D; d++) {
                    double want;
                    ora_decode(ATTND_DTYPE_BF16, &s.k[n][g][d], 1, &want);
                    assert_true(fabs(k[n][g][d] - want) <= (f < 3 ? 0.01 : 0.6));
                }
        assert_attends(&s, k, v);
    }
}

/* Bytes nobody's append wrote: the reader alone, over every code there is. */
static void any_bytes_are_read(void **state)
{
    static double k[KEYS][HKV][D], v[KEYS][HKV][DV];
    static const int finite[] = {3, 5, 6, 7, 8};
    for (size_t f = 0; f < sizeof finite / sizeof *finite; f++) {
        scene s;
        scene_make(&s, formats[finite[f]].format, formats[finite[f]].dtype);
        for (size_t i = 0; i < sizeof s.pool; i++) {
            s.pool[i] = (uint8_t)(i * 167 + i / 256);
            if ((s.pool[i] & 0x7F) == 0x7F) /* NaN of E4M3 */
                s.pool[i] = 0x3C;
        }
        for (int x = 0; s.p.kv.format == ORA_HEAD && x < BLOCKS; x++)
            for (int plane = 0; plane < 2; plane++)
                for (int row = 0; row < HKV * T; row++) {
                    float scale = 0.01f * (float)(1 + x + row);
                    memcpy((char *)s.p.kv.scales[plane] + x * s.p.kv.block_stride + row * 4, &scale,
                           sizeof scale);
                }
        s.p.sm_scale = 1e-5;
        s.p.quant.v_quant_orig = 1e-3f;
        bool plain = s.p.kv.format == ORA_PLAIN || s.p.kv.format == ORA_NVFP4;
        read_all(&s, &s.p.kv, k_factor_of(&s.p.kv), plain ? 1e-3f : 1, k, v);
        assert_attends(&s, k, v);
    }
}

static void an_fp8_pool_is_its_dequantised_pool(void **state)
{
    static scene fp8, f32;
    scene_make(&fp8, ORA_PLAIN, ATTND_DTYPE_E4M3);
    fp8.p.quant = (ora_quant){.k_orig_quant = 16,
                              .v_orig_quant = 32,
                              .k_quant_orig = 1 / 16.0f,
                              .v_quant_orig = 1 / 32.0f};
    fill(&fp8);
    scene_make(&f32, ORA_PLAIN, ATTND_DTYPE_F32);
    for (int n = 0; n < KEYS; n++)
        for (int g = 0; g < HKV; g++)
            for (int plane = 0; plane < 2; plane++) {
                double x[D];
                int seq = n >= 5, j = seq ? n - 5 : n, width = plane ? DV : D;
                read_row(&fp8, &fp8.p.kv, plane, n, g, plane ? 1 / 32.0f : 1 / 16.0f, x);
                ora_encode(ATTND_DTYPE_F32, x, (size_t)width,
                           (char *)f32.p.kv.plane[plane] +
                               f32.block_ids[seq * 2 + j / T] * f32.p.kv.block_stride +
                               (g * T + j % T) * f32.p.kv.token_stride[plane]);
            }
    ora_result a, b;
    attends(&fp8, &a);
    attends(&f32, &b);
    for (int i = 0; i < TOKENS * HQ * DV; i++)
        assert_true(a.out[i] == b.out[i]);
    for (int i = 0; i < TOKENS * HQ; i++)
        assert_true(a.lse[i] == b.lse[i] && a.vmax[i] == b.vmax[i]);
    ora_result_fini(&a);
    ora_result_fini(&b);
}

static void factors_of_a_head_or_a_sequence_replace_those_of_the_layer_on_load(void **state)
{
    static double k[KEYS][HKV][D], v[KEYS][HKV][DV];
    static const float kf[N_SEQS * HKV] = {0.05f, 0.07f, 0.02f, 0.11f};
    static const float vf[N_SEQS * HKV] = {0.3f, 0.1f, 0.25f, 0.9f};
    static const attnd_dtype dtypes[] = {ATTND_DTYPE_E4M3, ATTND_DTYPE_E5M2, ATTND_DTYPE_I8};
    for (int n = 0; n < 6; n++) {
        bool per_seq = n % 2;
        scene s;
        scene_make(&s, ORA_PLAIN, dtypes[n / 2]);
        fill(&s);
        s.p.quant.k_factors = kf;
        s.p.quant.v_factors = vf;
        s.p.quant.factors_per_seq = per_seq;
        for (int j = 0; j < KEYS; j++)
            for (int g = 0; g < HKV; g++) {
                int at = per_seq && j >= 5 ? HKV + g : g;
                read_row(&s, &s.p.kv, 0, j, g, kf[at], k[j][g]);
                read_row(&s, &s.p.kv, 1, j, g, vf[at], v[j][g]);
            }
        assert_attends(&s, k, v);
    }
}

/* Factors change what is read and never what is stored. */
static void stores_keep_the_layers_factor(void **state)
{
    static const float other[HKV] = {7, 9};
    scene a, b;
    scene_make(&a, ORA_PLAIN, ATTND_DTYPE_E4M3);
    scene_make(&b, ORA_PLAIN, ATTND_DTYPE_E4M3);
    b.p.quant.k_factors = b.p.quant.v_factors = other;
    b.p.quant.k_quant_orig = 100;
    fill(&a);
    fill(&b);
    assert_memory_equal(a.pool, b.pool, sizeof a.pool);
}

static void a_second_append_writes_the_same_bytes_in_every_format(void **state)
{
    for (int f = 0; f < N_FORMATS; f++) {
        scene once, twice;
        scene_make(&once, formats[f].format, formats[f].dtype);
        scene_make(&twice, formats[f].format, formats[f].dtype);
        fill(&once);
        fill(&twice);
        fill(&twice);
        assert_memory_equal(once.pool, twice.pool, sizeof once.pool);
    }
}

/* Only codes and scales of the 12 keys change: of each plane and head of a block. */
static void an_append_touches_its_rows_alone(void **state)
{
    for (int f = 0; f < N_FORMATS; f++) {
        scene s;
        scene_make(&s, formats[f].format, formats[f].dtype);
        memset(s.pool, 0xA5, sizeof s.pool);
        fill(&s);
        const ora_kv *kv = &s.p.kv;
        for (int n = 0; n < KEYS; n++)
            for (int g = 0; g < HKV; g++)
                for (int plane = 0; plane < 2; plane++) {
                    int seq = n >= 5, j = seq ? n - 5 : n, width = plane ? DV : D;
                    int64_t block = s.block_ids[seq * 2 + j / T] * kv->block_stride;
                    memset((char *)kv->plane[plane] + block +
                               (g * T + j % T) * kv->token_stride[plane],
                           0xA5, code_bytes(kv, (size_t)width));
                    memset((char *)kv->scales[plane] + block +
                               (g * T + j % T) * kv->scale_token_stride[plane],
                           0xA5, scale_bytes(kv, (size_t)width));
                }
        for (size_t i = 0; i < sizeof s.pool; i++)
            assert_int_equal(s.pool[i], 0xA5);
    }
}

/* A finite, an infinite and no number into FP8 (case B046). */
static void outliers_saturate_and_nan_is_7f(void **state)
{
    static const uint8_t want[8] = {0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x00, 0x7E, 0x7F};
    static const double x[8] = {448, 464, 465, 1000, -1000, 0x1p-10, INFINITY, NAN};
    scene s;
    scene_make(&s, ORA_PLAIN, ATTND_DTYPE_E4M3);
    s.p.quant = (ora_quant){0};
    float given[D] = {0};
    for (int d = 0; d < 8; d++)
        given[d] = (float)x[d];
    int32_t one = 1;
    s.p.n_seqs = 1;
    s.p.q_len = s.p.kv_len = &one;
    s.p.n_kv_heads = 1;
    s.p.k = s.p.v = (ora_rows){given, sizeof given, 0, ATTND_DTYPE_F32};
    attnd_err err;
    assert_int_equal(ora_append(&s.p, &err), ATTND_OK);
    assert_memory_equal(s.pool + s.block_ids[0] * s.p.kv.block_stride, want, sizeof want);
}

/* One key with K = 0 and V = 1, sink 2 (case B035). */
static void a_sink_takes_its_share_in_every_format(void **state)
{
    for (int f = 0; f < N_FORMATS; f++) {
        static const float sinks[HQ] = {2, 2, 2, 2};
        scene s;
        scene_make(&s, formats[f].format, formats[f].dtype);
        int32_t ones[] = {1, 1};
        double zero[D] = {0}, one = 1;
        for (int g = 0; g < HKV; g++) {
            ora_encode(ATTND_DTYPE_BF16, zero, D, s.k[0][g]);
            ora_encode(ATTND_DTYPE_BF16, zero, D, s.k[1][g]);
            for (int d = 0; d < DV; d++) {
                ora_encode(ATTND_DTYPE_BF16, &one, 1, &s.v[0][g][d]);
                ora_encode(ATTND_DTYPE_BF16, &one, 1, &s.v[1][g][d]);
            }
        }
        memcpy(s.q_len, ones, sizeof ones);
        memcpy(s.kv_len, ones, sizeof ones);
        s.p.bias.sinks = sinks;
        fill(&s);
        ora_result r;
        attends(&s, &r);
        for (int i = 0; i < 2 * HQ * DV; i++)
            assert_true(fabs(r.out[i] - 0.119203) <= 1e-2);
        for (int i = 0; i < 2 * HQ; i++)
            assert_true(r.lse[i] == 0);
        ora_result_fini(&r);
    }
}

/* ---- High pages (§17) ---- */

typedef struct mixed {
    scene s;
    uint8_t memory[BLOCKS * 2 * HKV * T * D * 4];
    ora_kv high;
    int32_t ids[4];
} mixed;

static void mixed_make(mixed *m, const int32_t ids[4])
{
    scene_make(&m->s, ORA_PLAIN, ATTND_DTYPE_E4M3);
    memset(m->memory, 0xFF, sizeof m->memory);
    memcpy(m->ids, ids, sizeof m->ids);
    m->high = pool_of(m->memory, ORA_PLAIN, ATTND_DTYPE_BF16);
    m->s.p.high = &m->high;
    m->s.p.high_ids = m->ids;
    fill(&m->s);
}

static void assert_same_answers(const scene *a, const scene *b)
{
    ora_result x, y;
    attends(a, &x);
    attends(b, &y);
    for (int i = 0; i < TOKENS * HQ * DV; i++)
        assert_true(x.out[i] == y.out[i]);
    for (int i = 0; i < TOKENS * HQ; i++)
        assert_true(x.lse[i] == y.lse[i]);
    ora_result_fini(&x);
    ora_result_fini(&y);
}

static void with_every_page_held_only_the_high_pool_counts(void **state)
{
    static mixed m;
    static const int32_t ids[4] = {6, 1, 3, 5};
    mixed_make(&m, ids);
    memset(m.s.pool, 0xFF, sizeof m.s.pool);
    scene alone;
    scene_make(&alone, ORA_PLAIN, ATTND_DTYPE_BF16);
    fill(&alone);
    assert_memory_equal(m.memory, alone.pool, BLOCKS * (size_t)m.high.block_stride);
    assert_same_answers(&m.s, &alone);
}

static void with_no_page_held_only_the_normal_pool_counts(void **state)
{
    static mixed m;
    static const int32_t ids[4] = {-1, -1, -1, -1};
    mixed_make(&m, ids);
    for (size_t i = 0; i < sizeof m.memory; i++)
        assert_int_equal(m.memory[i], 0xFF);
    scene alone;
    scene_make(&alone, ORA_PLAIN, ATTND_DTYPE_E4M3);
    fill(&alone);
    assert_memory_equal(m.s.pool, alone.pool, sizeof alone.pool);
    assert_same_answers(&m.s, &alone);
}

/* The first page of sequence 0 and the last of sequence 1; the normal pool has every key, of the
 * same activations. */
static void a_page_is_read_where_it_is_held(void **state)
{
    static mixed m;
    static const int32_t ids[4] = {2, -1, -1, 7};
    static double k[KEYS][HKV][D], v[KEYS][HKV][DV];
    mixed_make(&m, ids);
    scene alone;
    scene_make(&alone, ORA_PLAIN, ATTND_DTYPE_E4M3);
    fill(&alone);
    assert_memory_equal(m.s.pool, alone.pool, sizeof alone.pool);
    read_all(&m.s, &m.s.p.kv, 0.05f, 1 / 24.0f, k, v);
    for (int n = 0; n < KEYS; n++)
        if (n < 4 || n >= 9)
            for (int g = 0; g < HKV; g++) {
                ora_decode(ATTND_DTYPE_BF16, m.s.k[n][g], D, k[n][g]);
                ora_decode(ATTND_DTYPE_BF16, m.s.v[n][g], DV, v[n][g]);
            }
    assert_attends(&m.s, k, v);
}

/* Prefill of 3 and 6 keys, then a call with 2 and 1: the bytes of both pools are those of one call.
 */
static void later_tokens_find_their_pages_in_both_pools(void **state)
{
    static mixed once, twice;
    static const int32_t ids[4] = {-1, 4, 0, 7};
    static const int64_t prefill[N_SEQS] = {0, 5}, decode[N_SEQS] = {3, 11};
    mixed_make(&once, ids);
    mixed_make(&twice, ids);
    memset(twice.s.pool, 0xFF, sizeof twice.s.pool);
    memset(twice.memory, 0xFF, sizeof twice.memory);
    int32_t first_len[N_SEQS] = {3, 6};
    const int64_t tables[N_SEQS] = {0, 2};
    attnd_err err;
    ora_problem p = twice.s.p;
    p.k = (ora_rows){twice.s.k, sizeof twice.s.k[0], sizeof twice.s.k[0][0], ATTND_DTYPE_BF16};
    p.v = (ora_rows){twice.s.v, sizeof twice.s.v[0], sizeof twice.s.v[0][0], ATTND_DTYPE_BF16};
    p.block_first = tables;
    p.q_first = prefill;
    p.q_len = p.kv_len = first_len;
    assert_int_equal(ora_append(&p, &err), ATTND_OK);
    p.q_first = decode;
    p.q_len = twice.s.q_len;
    p.kv_len = twice.s.kv_len;
    assert_int_equal(ora_append(&p, &err), ATTND_OK);
    assert_memory_equal(once.s.pool, twice.s.pool, sizeof once.s.pool);
    assert_memory_equal(once.memory, twice.memory, sizeof once.memory);
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

#define WITH(format, dtype, change, reason, text)                                                  \
    do {                                                                                           \
        scene_make(&s, format, ATTND_DTYPE_##dtype);                                               \
        s.change;                                                                                  \
        refuses(&s, ATTND_##reason, text);                                                         \
    } while (0)

static void scales_that_are_none_are_refused(void **state)
{
    static const float zero[HKV] = {1, 0}, negative[HKV * N_SEQS] = {1, 1, 1, -1},
                       infinite[HKV] = {INFINITY, 1}, one[HKV] = {1, 1};
    scene s;
    WITH(ORA_PLAIN, E4M3, p.quant.k_orig_quant = -1, BAD_QUANT,
         "quant.k_orig_quant = -1: finite, above 0");
    WITH(ORA_PLAIN, E4M3, p.quant.v_orig_quant = INFINITY, BAD_QUANT,
         "quant.v_orig_quant = inf: finite, above 0");
    WITH(ORA_NVFP4, NVFP4, p.quant.k_quant_orig = NAN, BAD_QUANT,
         "quant.k_quant_orig = nan: finite, above 0");
    WITH(ORA_PLAIN, I8, p.quant.v_quant_orig = -0.5f, BAD_QUANT,
         "quant.v_quant_orig = -0.5: finite, above 0");
    WITH(ORA_PLAIN, E4M3, p.quant.k_factors = zero, BAD_QUANT,
         "quant.k_factors[1] = 0: finite, above 0");
    WITH(ORA_PLAIN, E4M3, p.quant = ((ora_quant){.v_factors = negative, .factors_per_seq = true}),
         BAD_QUANT, "quant.v_factors[3] = -1: finite, above 0");
    WITH(ORA_PLAIN, I8, p.quant.k_factors = infinite, BAD_QUANT,
         "quant.k_factors[0] = inf: finite, above 0");
    WITH(ORA_HEAD, E4M3, p.quant.v_factors = one, BAD_QUANT,
         "quant.v_factors = given: a plain pool of e4m3, e5m2 or i8 takes them");
    WITH(ORA_PLAIN, BF16, p.quant.k_factors = one, BAD_QUANT,
         "quant.k_factors = given: a plain pool of e4m3, e5m2 or i8 takes them");
    WITH(ORA_PLAIN, BF16, p.quant.q_quant_orig = -2, BAD_QUANT,
         "quant.q_quant_orig = -2: finite, above 0");
    WITH(ORA_PLAIN, BF16, p.quant.q_orig_quant = NAN, BAD_QUANT,
         "quant.q_orig_quant = nan: finite, above 0");
}

static void a_pool_has_the_type_and_scales_of_its_format(void **state)
{
    scene s;
    WITH(ORA_PLAIN, NVFP4, p.n_seqs = 1, BAD_QUANT,
         "kv.dtype = nvfp4: f32, f16, bf16, e4m3, e5m2 or i8");
    WITH(ORA_HEAD, E5M2, p.n_seqs = 1, BAD_QUANT,
         "kv.dtype = e5m2: e4m3 or i8 with a scale a head");
    WITH(ORA_NVFP4, E4M3, p.n_seqs = 1, BAD_QUANT, "kv.dtype = e4m3: nvfp4 in blocks");
    WITH(ORA_DS_584, BF16, p.n_seqs = 1, BAD_QUANT, "kv.dtype = bf16: e4m3 in rows of fp8_ds_mla");
    WITH(ORA_HEAD, I8, p.kv.scales[1] = NULL, BAD_QUANT, "kv.scales = none: its rows store scales");
    WITH(ORA_NVFP4, NVFP4, p.kv.scales[0] = NULL, BAD_QUANT,
         "kv.scales = none: its rows store scales");
    WITH(ORA_NVFP4, NVFP4, p.head_dim = 24, BAD_GEOMETRY,
         "head_dim = 24, head_dim_v = 16: multiples of 16 for nvfp4");
    WITH(ORA_NVFP4, NVFP4, p.head_dim_v = 8, BAD_GEOMETRY,
         "head_dim = 32, head_dim_v = 8: multiples of 16 for nvfp4");
    WITH(ORA_PLAIN, F16, p.kv.plane[1] = s.p.kv.plane[0];
         s.p.head_dim_v = 48, BAD_GEOMETRY,
         "head_dim_v = 48: at most head_dim = 32 where K and V are one row");
}

static void a_second_pool_has_a_format_of_its_own(void **state)
{
    ora_kv second = {.format = ORA_HEAD, .dtype = ATTND_DTYPE_BF16};
    scene s;
    scene_make(&s, ORA_PLAIN, ATTND_DTYPE_BF16);
    s.p.sparse.second = &second;
    refuses(&s, ATTND_BAD_QUANT, "sparse.second.dtype = bf16: e4m3 or i8 with a scale a head");
    second.dtype = ATTND_DTYPE_I8;
    refuses(&s, ATTND_BAD_QUANT, "sparse.second.scales = none: its rows store scales");
}

static void high_pages_are_of_a_16_bit_pool_and_exist(void **state)
{
    static mixed m;
    static const int32_t ids[4] = {2, -1, -1, BLOCKS};
    scene *s = &m.s;
    scene_make(s, ORA_PLAIN, ATTND_DTYPE_E4M3);
    m.high = pool_of(m.memory, ORA_PLAIN, ATTND_DTYPE_I8);
    s->p.high = &m.high;
    s->p.high_ids = ids;
    refuses(s, ATTND_BAD_QUANT, "high.dtype = i8: f32, f16 or bf16");
    m.high.dtype = ATTND_DTYPE_BF16;
    refuses(s, ATTND_BAD_BLOCK, "high_ids[1][1] = 8: -1 or 0..7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_is_the_numbers_its_bytes_stand_for),
        cmocka_unit_test(any_bytes_are_read),
        cmocka_unit_test(an_fp8_pool_is_its_dequantised_pool),
        cmocka_unit_test(factors_of_a_head_or_a_sequence_replace_those_of_the_layer_on_load),
        cmocka_unit_test(stores_keep_the_layers_factor),
        cmocka_unit_test(a_second_append_writes_the_same_bytes_in_every_format),
        cmocka_unit_test(an_append_touches_its_rows_alone),
        cmocka_unit_test(outliers_saturate_and_nan_is_7f),
        cmocka_unit_test(a_sink_takes_its_share_in_every_format),
        cmocka_unit_test(with_every_page_held_only_the_high_pool_counts),
        cmocka_unit_test(with_no_page_held_only_the_normal_pool_counts),
        cmocka_unit_test(a_page_is_read_where_it_is_held),
        cmocka_unit_test(later_tokens_find_their_pages_in_both_pools),
        cmocka_unit_test(scales_that_are_none_are_refused),
        cmocka_unit_test(a_pool_has_the_type_and_scales_of_its_format),
        cmocka_unit_test(a_second_pool_has_a_format_of_its_own),
        cmocka_unit_test(high_pages_are_of_a_16_bit_pool_and_exist),
    };
    return cmocka_run_group_tests_name("ora_kv", tests, NULL, NULL);
}
