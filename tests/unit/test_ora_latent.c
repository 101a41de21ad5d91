/* test_ora_latent.c: latent rows are normalised, rotated, coded and stored where they belong, and
 * attention reads key and value from the one row.
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

enum { MAX_D = 576, T = 128, BLOCKS = 3, TOKENS = 3, HQ = 2, BLOCK_BYTES = T * MAX_D * 4 };

/* Three new tokens at positions 126..128 of one sequence, in blocks 2 and 0. */
typedef struct scene {
    ora_problem p;
    uint16_t k[TOKENS][MAX_D], q[TOKENS][HQ][MAX_D];
    int32_t q_len, kv_len, block_ids[2];
} scene;

static uint8_t pool[BLOCKS][BLOCK_BYTES], other[BLOCKS][BLOCK_BYTES];

static void scene_make(scene *s, uint32_t dim, uint32_t dim_v)
{
    *s = (scene){.q_len = TOKENS, .kv_len = 129, .block_ids = {2, 0}};
    memset(pool, 0xA5, sizeof pool);
    memset(other, 0xA5, sizeof other);
    ora_generate(4, "k", 0, TOKENS * MAX_D, 1, ATTND_DTYPE_BF16, s->k);
    ora_generate(4, "q", 0, TOKENS * HQ * MAX_D, 1, ATTND_DTYPE_BF16, s->q);
    s->p = (ora_problem){
        .n_heads = HQ,
        .n_kv_heads = 1,
        .head_dim = dim,
        .head_dim_v = dim_v,
        .sm_scale = ora_sm_scale(0, 192),
        .dtype = ATTND_DTYPE_BF16,
        .n_seqs = 1,
        .q_len = &s->q_len,
        .kv_len = &s->kv_len,
        .block_ids = s->block_ids,
        .q = {s->q, sizeof s->q[0], sizeof s->q[0][0], ATTND_DTYPE_BF16},
        .k = {s->k, sizeof s->k[0], 0, ATTND_DTYPE_BF16},
        .kv = {.plane = {pool, pool},
               .block_stride = BLOCK_BYTES,
               .token_stride = {dim * 2, dim * 2},
               .n_blocks = BLOCKS,
               .block_size = T,
               .dtype = ATTND_DTYPE_BF16},
        /* Only the new keys are there. */
        .mask = {.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 1},
        .latent = {.appends = true},
    };
}

/* The format of a scene's pool; its scales lie behind the rows of a block. */
static void set_format(scene *s, ora_format format, int64_t row, int64_t scales)
{
    ora_kv *kv = &s->p.kv;
    kv->format = format;
    kv->dtype = format == ORA_NVFP4 || format == ORA_FP4_MLA ? ATTND_DTYPE_NVFP4 : ATTND_DTYPE_E4M3;
    kv->token_stride[0] = kv->token_stride[1] = row;
    kv->scales[0] = kv->scales[1] = pool[0] + T * row;
    kv->scale_token_stride[0] = kv->scale_token_stride[1] = scales;
}

static void appends(const scene *s)
{
    attnd_err err;
    if (ora_append(&s->p, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

static uint8_t *row_of(const scene *s, int token)
{
    static const int block[] = {2, 2, 0}, row[] = {126, 127, 0};
    return pool[block[token]] + row[token] * s->p.kv.token_stride[0];
}

static uint8_t *scales_of(const scene *s, int token)
{
    static const int block[] = {2, 2, 0}, row[] = {126, 127, 0};
    return (uint8_t *)s->p.kv.scales[0] + block[token] * BLOCK_BYTES +
           row[token] * s->p.kv.scale_token_stride[0];
}

static void numbers_of(const scene *s, int token, double *x)
{
    ora_decode(ATTND_DTYPE_BF16, s->k[token], s->p.head_dim, x);
}

/* With one visible key the output is its value, and LSE its score. */
static void assert_reads(const scene *s, int token, const double *row)
{
    ora_result r;
    attnd_err err;
    if (ora_attend(&s->p, &r, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    for (int h = 0; h < HQ; h++) {
        double q[MAX_D], score = 0;
        ora_decode(ATTND_DTYPE_BF16, s->q[token][h], s->p.head_dim, q);
        for (uint32_t d = 0; d < s->p.head_dim; d++)
            score += q[d] * row[d];
        assert_true(fabs(r.lse[token * HQ + h] - s->p.sm_scale * score) <= 1e-12 * fabs(score));
        for (uint32_t d = 0; d < s->p.head_dim_v; d++)
            assert_true(r.out[(size_t)(token * HQ + h) * s->p.head_dim_v + d] == row[d]);
    }
    ora_result_fini(&r);
}

static void a_latent_row_is_key_and_value(void **state)
{
    static const uint32_t widths[] = {32, 48};
    for (int n = 0; n < 2; n++) {
        scene s;
        scene_make(&s, 48, widths[n]);
        appends(&s);
        for (int t = 0; t < TOKENS; t++) {
            double x[MAX_D];
            assert_memory_equal(row_of(&s, t), s.k[t], 48 * 2);
            numbers_of(&s, t, x);
            assert_reads(&s, t, x);
            memset(row_of(&s, t), 0xA5, 48 * 2);
        }
        assert_memory_equal(pool, other, sizeof pool); /* nothing else changed */
    }
}

static void rows_of_fp8_have_the_factor_of_k_for_both(void **state)
{
    scene s;
    scene_make(&s, 48, 32);
    set_format(&s, ORA_PLAIN, 48, 0);
    s.p.quant = (ora_quant){
        .k_orig_quant = 30, .k_quant_orig = 0.03f, .v_orig_quant = 7, .v_quant_orig = 9};
    appends(&s);
    for (int t = 0; t < TOKENS; t++) {
        double x[MAX_D];
        uint8_t codes[MAX_D];
        numbers_of(&s, t, x);
        ora_encode_scaled(ATTND_DTYPE_E4M3, x, 48, 30, codes);
        assert_memory_equal(row_of(&s, t), codes, 48);
        ora_decode(ATTND_DTYPE_E4M3, codes, 48, x);
        for (int d = 0; d < 48; d++)
            x[d] *= 0.03f;
        assert_reads(&s, t, x);
    }
}

static void rows_of_fp8_ds_mla_are_read_whole_for_their_values(void **state)
{
    static const uint32_t widths[] = {512, 576};
    for (int n = 0; n < 4; n++) {
        scene s;
        scene_make(&s, 576, widths[n / 2]);
        set_format(&s, n % 2 ? ORA_DS_POW2 : ORA_DS_FREE, 656, 0);
        appends(&s);
        for (int t = 0; t < TOKENS; t++) {
            double x[MAX_D];
            uint8_t row[656];
            numbers_of(&s, t, x);
            ora_ds656_encode(x, n % 2, row);
            assert_memory_equal(row_of(&s, t), row, sizeof row);
            ora_ds656_decode(row, x);
            /* Readers accept both: the format of the writer does not matter. */
            s.p.kv.format = n % 2 ? ORA_DS_FREE : ORA_DS_POW2;
            assert_reads(&s, t, x);
        }
    }
}

static void rows_of_584_bytes_keep_their_scales_behind_the_page(void **state)
{
    scene s;
    scene_make(&s, 512, 512);
    set_format(&s, ORA_DS_584, 576, 8);
    appends(&s);
    for (int t = 0; t < TOKENS; t++) {
        double x[MAX_D];
        uint8_t row[576], scales[8];
        numbers_of(&s, t, x);
        ora_ds584_encode(x, row, scales);
        assert_memory_equal(row_of(&s, t), row, sizeof row);
        assert_memory_equal(scales_of(&s, t), scales, sizeof scales);
        ora_ds584_decode(row, scales, x);
        assert_reads(&s, t, x);
    }
}

static void head_scales_of_latent_rows_are_those_of_the_whole_row(void **state)
{
    scene s;
    scene_make(&s, 48, 32);
    set_format(&s, ORA_HEAD, 48, 4);
    s.p.kv.scales[1] = NULL; /* there is no row of V */
    appends(&s);
    for (int t = 0; t < TOKENS; t++) {
        double x[MAX_D];
        uint8_t codes[48];
        numbers_of(&s, t, x);
        float scale = ora_head_encode(ATTND_DTYPE_E4M3, x, 48, codes);
        assert_memory_equal(row_of(&s, t), codes, sizeof codes);
        assert_memory_equal(scales_of(&s, t), &scale, sizeof scale);
        ora_decode(ATTND_DTYPE_E4M3, codes, 48, x);
        for (int d = 0; d < 48; d++)
            x[d] *= scale;
        assert_reads(&s, t, x);
    }
}

static void dense_fp4_rows_have_a_residual_of_their_rope_channels(void **state)
{
    static const float given[] = {0, 120};
    for (int n = 0; n < 2; n++) {
        scene s;
        scene_make(&s, 576, 512);
        set_format(&s, ORA_FP4_MLA, (512 + 128) / 2, (512 + 128) / 16);
        s.p.kv.residual = 64;
        s.p.quant.k_orig_quant = given[n];
        float gs = n ? 120 : 448.0f * 6 / 30;
        appends(&s);
        for (int t = 0; t < TOKENS; t++) {
            double x[MAX_D];
            uint8_t codes[320], scales[40];
            numbers_of(&s, t, x);
            ora_fp4_mla_encode(x, 576, 64, gs, 1 / gs, codes, scales);
            assert_memory_equal(row_of(&s, t), codes, sizeof codes);
            assert_memory_equal(scales_of(&s, t), scales, sizeof scales);
            ora_fp4_mla_decode(codes, scales, 576, 64, 1 / gs, x);
            assert_reads(&s, t, x);
        }
    }
}

/* §4: the rotation is rounded to the activation type before the pool's. */
static void a_rotated_row_is_rounded_twice(void **state)
{
    scene s;
    scene_make(&s, 576, 512);
    set_format(&s, ORA_PLAIN, 576, 0);
    s.p.rope = (ora_rope){.pairing = ATTND_ROPE_GPTJ, .dim = 64, .first = 512, .theta = 1e4};
    appends(&s);
    int n_turned = 0;
    for (int t = 0; t < TOKENS; t++) {
        double x[MAX_D], before[MAX_D];
        uint8_t codes[MAX_D];
        numbers_of(&s, t, x);
        memcpy(before, x, sizeof x);
        for (int n = 0; n < 32; n++) {
            double angle = (126 + t) * pow(1e4, -n / 32.0), a = x[512 + 2 * n], b = x[513 + 2 * n];
            double c = (float)cos(angle), sine = (float)sin(angle);
            x[512 + 2 * n] = ora_round(ATTND_DTYPE_BF16, a * c - b * sine);
            x[513 + 2 * n] = ora_round(ATTND_DTYPE_BF16, b * c + a * sine);
        }
        for (int d = 0; d < 576; d++)
            n_turned += x[d] != before[d];
        ora_encode(ATTND_DTYPE_E4M3, x, 576, codes);
        assert_memory_equal(row_of(&s, t), codes, sizeof codes);
    }
    assert_true(n_turned > TOKENS * 48 && n_turned <= TOKENS * 64);
}

/* ---- Norm (§11.5) ---- */

static void a_norm_runs_over_its_channels_and_is_rounded_before_the_rotation(void **state)
{
    static const uint32_t widths[] = {0, 48, 32};
    float g[48];
    for (int d = 0; d < 48; d++)
        g[d] = 0.5f + (float)d / 32;
    for (int n = 0; n < 3; n++)
        for (int rotates = 0; rotates < 2; rotates++) {
            int width = n == 2 ? 32 : 48;
            scene s;
            scene_make(&s, 48, 32);
            s.p.latent.norm_weight = g;
            s.p.latent.norm_width = widths[n];
            s.p.latent.norm_eps = 1e-3;
            ora_rope rope = {.pairing = ATTND_ROPE_GPTJ, .dim = 16, .first = 32, .theta = 100};
            if (rotates)
                s.p.rope = rope;
            appends(&s);
            for (int t = 0; t < TOKENS; t++) {
                double x[MAX_D], sum = 0;
                uint16_t want[48];
                numbers_of(&s, t, x);
                for (int d = 0; d < width; d++)
                    sum += x[d] * x[d];
                for (int d = 0; d < width; d++)
                    x[d] = ora_round(ATTND_DTYPE_BF16, x[d] * g[d] / sqrt(sum / width + 1e-3));
                if (rotates)
                    ora_rotate(&rope, 126 + t, ATTND_DTYPE_BF16, x);
                ora_encode(ATTND_DTYPE_BF16, x, 48, want);
                assert_memory_equal(row_of(&s, t), want, sizeof want);
            }
        }
}

/* ---- Flat target (§11.8) ---- */

static void flat_rows_take_the_place_of_the_pool(void **state)
{
    static const int32_t rows[TOKENS] = {4, -1, 1};
    for (int ds = 0; ds < 2; ds++) {
        scene s;
        scene_make(&s, 576, 512);
        int64_t row = ds ? 656 : 576 * 2;
        if (ds)
            set_format(&s, ORA_DS_POW2, row, 0);
        s.p.latent.flat = other;
        s.p.latent.flat_stride = row + 16;
        s.p.latent.flat_rows = rows;
        s.p.block_ids = NULL;
        s.p.kv.plane[0] = s.p.kv.plane[1] = NULL; /* there may be no pool at all */
        appends(&s);
        for (size_t i = 0; i < sizeof pool; i++)
            assert_int_equal(((uint8_t *)pool)[i], 0xA5);
        for (int t = 0; t < TOKENS; t += 2) {
            double x[MAX_D];
            uint8_t want[656], *at = (uint8_t *)other + rows[t] * (row + 16);
            numbers_of(&s, t, x);
            ora_ds656_encode(x, true, want);
            assert_memory_equal(at, ds ? (void *)want : (void *)s.k[t], (size_t)row);
            memset(at, 0xA5, (size_t)row);
        }
        assert_memory_equal(other, pool, sizeof other);
    }
}

/* ---- Refusals ---- */

static void refuses(const scene *s, attnd_reason reason, const char *text)
{
    attnd_err err;
    assert_int_equal(ora_append(&s->p, &err), attnd_reason_status(reason));
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.text, text);
    for (size_t i = 0; i < sizeof pool; i++)
        assert_int_equal(((uint8_t *)pool)[i], 0xA5);
}

#define WITH(dim, dim_v, change, reason, text)                                                     \
    do {                                                                                           \
        scene_make(&s, dim, dim_v);                                                                \
        change;                                                                                    \
        refuses(&s, ATTND_##reason, text);                                                         \
    } while (0)

static void what_is_no_latent_row_is_refused(void **state)
{
    static const float g[48] = {1};
    static const int32_t rows[TOKENS] = {4, 4, 1}, below[TOKENS] = {0, 1, -2};
    scene s;
    ora_latent *latent = &s.p.latent;
    WITH(48, 32, latent->appends = false, BAD_GEOMETRY,
         "latent.appends = false: a norm, a flat target and a pool whose K and V are one row take "
         "latent rows");
    WITH(48, 32, s.p.kv.plane[1] = other, BAD_GEOMETRY,
         "latent.appends = true: one kv head, whose K and V are one row");
    WITH(48, 32, (latent->norm_weight = g, latent->norm_width = 49), BAD_GEOMETRY,
         "latent.norm_width = 49: at most head_dim = 48");
    WITH(48, 32, (latent->flat = other, latent->flat_rows = rows, latent->norm_weight = g),
         BAD_COMBINATION, "latent.flat = given: not with a norm of the rows");
    WITH(48, 32, (latent->flat = other, latent->flat_rows = rows, s.p.cp.bounds = rows), BAD_CP,
         "latent.flat = given: not with verify groups");
    WITH(48, 32, (latent->flat = other, set_format(&s, ORA_HEAD, 48, 4)), BAD_COMBINATION,
         "latent.flat = given: no room for scales or high pages");
    WITH(48, 32, latent->flat = other, BAD_GEOMETRY,
         "latent.flat_rows = none: the target needs them");
    WITH(48, 32, (latent->flat = other, latent->flat_rows = rows), BAD_BLOCK,
         "latent.flat_rows = 4: two tokens in one slot");
    WITH(48, 32, (latent->flat = other, latent->flat_rows = below), BAD_BLOCK,
         "latent.flat_rows[2] = -2: -1 or a row");
}

static void latent_formats_have_their_widths(void **state)
{
    scene s;
    WITH(512, 512, set_format(&s, ORA_DS_POW2, 656, 0), BAD_GEOMETRY,
         "head_dim = 512: 576 channels a row");
    WITH(576, 512, set_format(&s, ORA_DS_584, 576, 8), BAD_GEOMETRY,
         "head_dim = 576: 512 channels a row");
    WITH(576, 512, (set_format(&s, ORA_FP4_MLA, 320, 40), s.p.kv.residual = 24), BAD_GEOMETRY,
         "kv.residual = 24: a multiple of 16 up to head_dim = 576");
    WITH(576, 512,
         (set_format(&s, ORA_FP4_MLA, 320, 40), s.p.kv.residual = 64, s.p.kv.block_size = 64),
         BAD_GEOMETRY, "kv.block_size = 64: 128 for dense FP4 MLA");
    WITH(576, 512,
         (set_format(&s, ORA_FP4_MLA, 320, 40), s.p.kv.residual = 64, s.p.dtype = ATTND_DTYPE_F32),
         BAD_QUANT, "dtype = f32: f16 or bf16 for dense FP4 MLA");
    static const float table[128 * 32 * 2];
    WITH(576, 512,
         (set_format(&s, ORA_FP4_MLA, 320, 40), s.p.kv.residual = 64,
          s.p.rope = (ora_rope){.pairing = ATTND_ROPE_GPTJ,
                                .dim = 64,
                                .first = 512,
                                .theta = 1e4,
                                .table = table,
                                .table_rows = 128}),
         BAD_QUANT, "rope.table = plain: dense FP4 MLA takes a duplicated one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_latent_row_is_key_and_value),
        cmocka_unit_test(rows_of_fp8_have_the_factor_of_k_for_both),
        cmocka_unit_test(rows_of_fp8_ds_mla_are_read_whole_for_their_values),
        cmocka_unit_test(rows_of_584_bytes_keep_their_scales_behind_the_page),
        cmocka_unit_test(head_scales_of_latent_rows_are_those_of_the_whole_row),
        cmocka_unit_test(dense_fp4_rows_have_a_residual_of_their_rope_channels),
        cmocka_unit_test(a_rotated_row_is_rounded_twice),
        cmocka_unit_test(a_norm_runs_over_its_channels_and_is_rounded_before_the_rotation),
        cmocka_unit_test(flat_rows_take_the_place_of_the_pool),
        cmocka_unit_test(what_is_no_latent_row_is_refused),
        cmocka_unit_test(latent_formats_have_their_widths),
    };
    return cmocka_run_group_tests_name("ora_latent", tests, NULL, NULL);
}
