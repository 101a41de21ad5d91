/* test_ora_mla.c: latent attention: absorbed, expanded and in chunks it is one thing. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/mla.h"
#include "tests/support/scene.h"

enum { C = 8, R = 4, DN = 6, DV = 5, H = 3, SEQS = 3, MAX_KEYS = 24, MAX_ROWS = 8 };

/* Eighths up to 4, so that every product and sum below is a number of fp32. */
static double dyadic(const char *name, uint64_t i)
{
    return nearbyint(8 * ora_element(3, name, i)) / 8;
}

static void to_f32(const double *x, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (float)x[i];
        assert_true(out[i] == x[i]);
    }
}

/* Keys of SEQS sequences one behind the other, and rows of q, in both forms. */
typedef struct latent {
    ora_mla mla;
    double w_uk[H * DN * C], w_uv[H * DV * C];
    double rows[MAX_KEYS * (C + R)], q[MAX_ROWS * H * (DN + R)];
    float pool[MAX_KEYS * (C + R)], k[MAX_KEYS * H * (DN + R)], v[MAX_KEYS * H * DV];
    float q_expanded[MAX_ROWS * H * (DN + R)], q_absorbed[MAX_ROWS * H * (C + R)];
    int32_t q_len[SEQS], kv_len[SEQS];
    ora_problem expanded, absorbed;
} latent;

static void latent_make(latent *x, const int32_t *q_len, const int32_t *kv_len)
{
    *x = (latent){.mla = {.rank = C, .rope_dim = R, .nope_dim = DN, .v_dim = DV, .n_heads = H}};
    for (size_t i = 0; i < H * DN * C; i++)
        x->w_uk[i] = dyadic("w_uk", i);
    for (size_t i = 0; i < H * DV * C; i++)
        x->w_uv[i] = dyadic("w_uv", i);
    for (size_t i = 0; i < MAX_KEYS * (C + R); i++)
        x->rows[i] = dyadic("rows", i);
    for (size_t i = 0; i < MAX_ROWS * H * (DN + R); i++)
        x->q[i] = dyadic("q", i);
    memcpy(x->q_len, q_len, sizeof x->q_len);
    memcpy(x->kv_len, kv_len, sizeof x->kv_len);
    x->mla.w_uk = x->w_uk;
    x->mla.w_uv = x->w_uv;
    double k[MAX_KEYS * H * (DN + R)], v[MAX_KEYS * H * DV], q[MAX_ROWS * H * (C + R)];
    ora_mla_expand(&x->mla, x->rows, MAX_KEYS, k, v);
    ora_mla_absorb(&x->mla, x->q, MAX_ROWS, q);
    to_f32(x->rows, MAX_KEYS * (C + R), x->pool);
    to_f32(k, MAX_KEYS * H * (DN + R), x->k);
    to_f32(v, MAX_KEYS * H * DV, x->v);
    to_f32(x->q, MAX_ROWS * H * (DN + R), x->q_expanded);
    to_f32(q, MAX_ROWS * H * (C + R), x->q_absorbed);
    x->expanded = (ora_problem){
        .n_heads = H,
        .n_kv_heads = H,
        .head_dim = DN + R,
        .head_dim_v = DV,
        .sm_scale = ora_sm_scale(0, DN + R) / 8, /* scores of a few units */
        .dtype = ATTND_DTYPE_F32,
        .n_seqs = SEQS,
        .q_len = x->q_len,
        .kv_len = x->kv_len,
        .q = {x->q_expanded, H * (DN + R) * 4, (DN + R) * 4, ATTND_DTYPE_F32},
        .kv = {.plane = {x->k, x->v},
               .head_stride = {(DN + R) * 4, DV * 4},
               .token_stride = {H * (DN + R) * 4, H * DV * 4},
               .dtype = ATTND_DTYPE_F32},
        .mask.kinds = ORA_MASK_CAUSAL,
    };
    x->absorbed = x->expanded;
    x->absorbed.kind = ATTND_LAYER_MLA;
    x->absorbed.n_kv_heads = 1;
    x->absorbed.head_dim = C + R;
    x->absorbed.head_dim_v = C;
    x->absorbed.q = (ora_rows){x->q_absorbed, H * (C + R) * 4, (C + R) * 4, ATTND_DTYPE_F32};
    x->absorbed.kv = (ora_kv){.plane = {x->pool, x->pool},
                              .token_stride = {(C + R) * 4, (C + R) * 4},
                              .dtype = ATTND_DTYPE_F32};
}

static void expansion_is_two_products_and_a_copy(void **state)
{
    const double w_uk[2 * 1 * 2] = {1, 2, 3, 4}, w_uv[2 * 2 * 2] = {1, 0, 0, 1, 5, 6, 7, 8};
    const ora_mla mla = {
        .rank = 2, .rope_dim = 1, .nope_dim = 1, .v_dim = 2, .n_heads = 2, w_uk, w_uv};
    const double row[] = {10, 100, -1}, q[] = {2, 9, 3, 8}, o[] = {1, 2, 3, 4};
    double k[4], v[4], absorbed[6], out[4];
    ora_mla_expand(&mla, row, 1, k, v);
    assert_memory_equal(k, ((const double[]){210, -1, 430, -1}), sizeof k);
    assert_memory_equal(v, ((const double[]){10, 100, 650, 870}), sizeof v);
    ora_mla_absorb(&mla, q, 1, absorbed);
    assert_memory_equal(absorbed, ((const double[]){2, 4, 9, 9, 12, 8}), sizeof absorbed);
    ora_mla_project(&mla, o, 1, out);
    assert_memory_equal(out, ((const double[]){1, 2, 39, 53}), sizeof out);
}

static void the_absorbed_form_is_the_expanded_one(void **state)
{
    latent x;
    latent_make(&x, (const int32_t[]){2, 1, 4}, (const int32_t[]){9, 3, 4});
    ora_result expanded = scene_attend(&x.expanded), absorbed = scene_attend(&x.absorbed);
    double out[MAX_ROWS * H * DV];
    ora_mla_project(&x.mla, absorbed.out, expanded.n_tokens, out);
    for (int64_t n = 0; n < expanded.n_tokens * H; n++) {
        assert_near(absorbed.lse[n], expanded.lse[n], 1e-12);
        assert_int_equal(absorbed.n_visible[n], expanded.n_visible[n]);
    }
    double spread = 0;
    for (int64_t n = 0; n < expanded.n_tokens * H * DV; n++) {
        assert_near(out[n], expanded.out[n], 1e-12);
        spread = fmax(spread, fabs(out[n] - out[0]));
    }
    assert_true(spread > 1);
    ora_result_fini(&expanded);
    ora_result_fini(&absorbed);
}

static void a_value_may_be_the_whole_latent_row(void **state)
{
    latent x;
    latent_make(&x, (const int32_t[]){2, 1, 4}, (const int32_t[]){9, 3, 4});
    ora_result narrow = scene_attend(&x.absorbed);
    x.absorbed.head_dim_v = C + R;
    ora_result whole = scene_attend(&x.absorbed);
    for (int64_t n = 0; n < narrow.n_tokens * H; n++)
        assert_memory_equal(whole.out + n * (C + R), narrow.out + n * C, C * sizeof(double));
    assert_true(whole.out[C] != 0);
    ora_result_fini(&narrow);
    ora_result_fini(&whole);
}

/* Latent 512 + 64, q·k0 = 48 and q·k1 = 0, latents 1 and 0. */
static void b074_the_scale_is_the_models_not_the_latent_rows(void **state)
{
    static float q[576], rows[2][576];
    const int32_t q_len = 1, kv_len = 2;
    q[1] = 48;
    rows[0][0] = rows[0][1] = 1;
    ora_problem p = {.kind = ATTND_LAYER_MLA,
                     .n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 576,
                     .head_dim_v = 512,
                     .sm_scale = 1 / 16.0,
                     .dtype = ATTND_DTYPE_F32,
                     .n_seqs = 1,
                     .q_len = &q_len,
                     .kv_len = &kv_len,
                     .q = {q, sizeof q, sizeof q, ATTND_DTYPE_F32},
                     .kv = {.plane = {rows, rows},
                            .token_stride = {sizeof rows[0], sizeof rows[0]},
                            .dtype = ATTND_DTYPE_F32}};
    ora_result r = scene_attend(&p);
    assert_near(r.out[0], 0.952574, 1e-6);
    ora_result_fini(&r);
}

static void b076_a_scale_shows_with_two_keys(void **state)
{
    const float q = 1, k[] = {8, 0}, v[] = {1, 0};
    const int32_t q_len = 1;
    for (int32_t kv_len = 1; kv_len <= 2; kv_len++)
        for (int wrong = 0; wrong < 2; wrong++) {
            ora_problem p = {.n_heads = 1,
                             .n_kv_heads = 1,
                             .head_dim = 1,
                             .head_dim_v = 1,
                             .sm_scale = wrong ? 0.125 * 1.1 : 0.125,
                             .dtype = ATTND_DTYPE_F32,
                             .n_seqs = 1,
                             .q_len = &q_len,
                             .kv_len = &kv_len,
                             .q = {&q, 4, 4, ATTND_DTYPE_F32},
                             .kv = {.plane = {(void *)k, (void *)v},
                                    .token_stride = {4, 4},
                                    .dtype = ATTND_DTYPE_F32}};
            ora_result r = scene_attend(&p);
            bool is_right = fabs(r.out[0] - (kv_len == 1 ? 1 : 0.731059)) < 1e-6;
            assert_int_equal(is_right, kv_len == 1 || !wrong);
            ora_result_fini(&r);
        }
}

/* ---- Chunks (§11.6) ---- */

static void assert_chunks(const int32_t *cached, uint32_t n_seqs, int64_t U, uint32_t n_loops,
                          const int32_t *len, const uint8_t *op)
{
    ora_chunks x;
    attnd_err err;
    assert_int_equal(ora_chunks_make(cached, n_seqs, U, &x, &err), ATTND_OK);
    assert_int_equal(x.n_loops, n_loops);
    assert_int_equal(x.n_seqs, n_seqs);
    assert_memory_equal(x.len, len, n_loops * n_seqs * sizeof *len);
    assert_memory_equal(x.op, op, (n_loops + 1) * n_seqs);
    int32_t done[8] = {0};
    for (uint32_t loop = 0; loop < n_loops; loop++) {
        int32_t sum = 0, max = 0;
        for (uint32_t b = 0; b < n_seqs; b++) {
            int32_t n = x.len[loop * n_seqs + b];
            assert_int_equal(x.cu[loop * (n_seqs + 1) + b], sum);
            if (n > 0)
                assert_int_equal(x.off[loop * n_seqs + b], done[b]);
            done[b] += n;
            sum += n;
            max = n > max ? n : max;
        }
        assert_int_equal(x.cu[loop * (n_seqs + 1) + n_seqs], sum);
        assert_int_equal(x.max[loop], max);
        assert_true(sum <= U && (sum == U || loop + 1 == n_loops));
    }
    assert_memory_equal(done, cached, n_seqs * sizeof *cached);
    ora_chunks_fini(&x);
    assert_null(x.len);
}

static void prefixes_fill_one_buffer_after_the_other(void **state)
{
    const int32_t three[] = {3, 0, 6}, two[] = {4, 4}, one[] = {10}, none[] = {0, 0};
    assert_chunks(three, 3, 4, 3, (const int32_t[]){3, 0, 1, 0, 0, 4, 0, 0, 1},
                  (const uint8_t[]){2, 0, 2, 0, 0, 1, 0, 0, 1, 1, 2, 1});
    assert_chunks(two, 2, 4, 2, (const int32_t[]){4, 0, 0, 4}, (const uint8_t[]){2, 0, 0, 2, 1, 1});
    assert_chunks(one, 1, 4, 3, (const int32_t[]){4, 4, 2}, (const uint8_t[]){2, 1, 1, 1});
    assert_chunks(none, 2, 4, 0, NULL, (const uint8_t[]){2, 2});
    ora_chunks x;
    attnd_err err;
    assert_int_equal(ora_chunks_make(three, 3, 4, &x, &err), ATTND_OK);
    assert_int_equal(x.off[0 * 3 + 2], 0);
    assert_int_equal(x.off[1 * 3 + 2], 1);
    assert_int_equal(x.off[2 * 3 + 2], 5);
    ora_chunks_fini(&x);
}

static void what_is_no_plan_is_refused(void **state)
{
    const int32_t cached[] = {3, -1};
    ora_chunks x;
    attnd_err err = {0};
    assert_int_equal(ora_chunks_make(cached, 2, 0, &x, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_LENGTH);
    assert_string_equal(err.text, "chunk_tokens = 0: at least 1");
    assert_int_equal(ora_chunks_make(cached, 2, 4, &x, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_LENGTH);
    assert_string_equal(err.text, "cached[1] = -1: at least 0");
    assert_null(x.len);
}

/* A running (m, l, O) of every line. */
typedef struct pair {
    double m[MAX_ROWS * H], l[MAX_ROWS * H], o[MAX_ROWS * H * DV];
} pair;

/* op 2 overwrites, 1 merges, 0 leaves. */
static void fold(pair *run, const ora_result *part, int64_t line, uint8_t op)
{
    double *o = run->o + line * DV;
    if (op == 2) {
        run->m[line] = part->m[line];
        run->l[line] = part->l[line];
        memcpy(o, part->out + line * DV, DV * sizeof *o);
    } else if (op == 1) {
        double m[] = {run->m[line], part->m[line]}, l[] = {run->l[line], part->l[line]};
        double both[2 * DV];
        memcpy(both, o, DV * sizeof *o);
        memcpy(both + DV, part->out + line * DV, DV * sizeof *o);
        ora_merge(2, m, l, both, DV, &run->m[line], &run->l[line], o);
    }
}

static void fold_all(pair *run, const ora_problem *p, const uint8_t *op)
{
    ora_result part = scene_attend(p);
    int64_t line = 0;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b] * H; i++)
            fold(run, &part, line++, op[b]);
    ora_result_fini(&part);
}

/* Cached prefixes in buffers of U keys, then the new keys: as one call. B016 is among them. */
static void chunks_of_a_prefix_merge_to_the_whole(void **state)
{
    const int32_t q_len[] = {2, 3, 1}, cached[] = {3, 0, 6};
    latent x;
    latent_make(&x, q_len, (const int32_t[]){5, 3, 7});
    ora_result whole = scene_attend(&x.expanded);
    for (int64_t U = 1; U <= 10; U++) {
        pair run;
        memset(&run, 0xFF, sizeof run); /* NaN: what op 0 leaves is never read */
        ora_chunks plan;
        attnd_err err;
        assert_int_equal(ora_chunks_make(cached, SEQS, U, &plan, &err), ATTND_OK);
        ora_problem p = x.expanded;
        int64_t first[SEQS];
        p.kv_first = first;
        p.mask.kinds = 0;
        for (uint32_t loop = 0; loop < plan.n_loops; loop++) {
            for (int b = 0, start = 0; b < SEQS; start += x.kv_len[b++])
                first[b] = start + plan.off[loop * SEQS + b];
            p.kv_len = plan.len + loop * SEQS;
            fold_all(&run, &p, plan.op + loop * SEQS);
        }
        for (int b = 0, start = 0; b < SEQS; start += x.kv_len[b++])
            first[b] = start + cached[b];
        p.kv_len = q_len;
        p.mask.kinds = ORA_MASK_CAUSAL;
        fold_all(&run, &p, plan.op + plan.n_loops * SEQS);
        for (int64_t line = 0; line < 6 * H; line++) {
            assert_near(run.m[line] + log(run.l[line]), whole.lse[line], 1e-12);
            for (int d = 0; d < DV; d++)
                assert_near(run.o[line * DV + d], whole.out[line * DV + d], 1e-12);
        }
        ora_chunks_fini(&plan);
    }
    ora_result_fini(&whole);
}

/* ---- Gather (§11.7) ---- */

static void gathered_rows_are_the_pools(void **state)
{
    scene s;
    scene_open(
        &s, &(scene_shape){2, 1, 1, 12, 8, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {1, 1}, {6, 11}},
        SCENE_RANDOM);
    s.p.kv.plane[1] = s.p.kv.plane[0];
    double c[5][8], k_pe[5][4], row[12];
    attnd_err err = {0};
    assert_int_equal(ora_gather(&s.p, 8, 1, 3, 5, c[0], k_pe[0], &err), ATTND_OK);
    for (int n = 0; n < 5; n++) {
        ora_decode(ATTND_DTYPE_BF16, scene_key(&s, 1, 3 + n, 0, 0), 12, row);
        assert_memory_equal(c[n], row, sizeof c[n]);
        assert_memory_equal(k_pe[n], row + 8, sizeof k_pe[n]);
    }
    assert_int_equal(ora_gather(&s.p, 8, 1, 11, 0, NULL, NULL, &err), ATTND_OK);
    assert_int_equal(ora_gather(&s.p, 8, 1, 7, 5, c[0], k_pe[0], &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_LENGTH);
    assert_string_equal(err.text, "first = 7, n = 5: keys of sequence 1");
    assert_int_equal(ora_gather(&s.p, 13, 1, 3, 5, c[0], k_pe[0], &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_GEOMETRY);
    assert_string_equal(err.text, "rank = 13: up to 12, of one kv head");
    s.block_ids[2 + 1] = -1;
    assert_int_equal(ora_gather(&s.p, 8, 1, 3, 5, c[0], k_pe[0], &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_BLOCK);
    assert_string_equal(err.text, "block_ids[1][1] = -1: key 4 needs one of 0..256");
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expansion_is_two_products_and_a_copy),
        cmocka_unit_test(the_absorbed_form_is_the_expanded_one),
        cmocka_unit_test(a_value_may_be_the_whole_latent_row),
        cmocka_unit_test(b074_the_scale_is_the_models_not_the_latent_rows),
        cmocka_unit_test(b076_a_scale_shows_with_two_keys),
        cmocka_unit_test(prefixes_fill_one_buffer_after_the_other),
        cmocka_unit_test(what_is_no_plan_is_refused),
        cmocka_unit_test(chunks_of_a_prefix_merge_to_the_whole),
        cmocka_unit_test(gathered_rows_are_the_pools),
    };
    return cmocka_run_group_tests_name("ora_mla", tests, NULL, NULL);
}
