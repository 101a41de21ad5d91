/* scene.c: a paged call made of a few numbers. */
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
#include "tests/support/scene.h"

const scene_shape SCENE_MIXED = {
    3, 6, 2, 24, 40, 8, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {17, 1, 4}, {50, 33, 4}};

char *scene_key(const scene *s, uint32_t b, int32_t j, uint32_t g, int plane)
{
    const ora_kv *kv = &s->p.kv;
    int32_t first = 0, T = (int32_t)kv->block_size;
    for (uint32_t other = 0; other < b; other++)
        first += (s->kv_len[other] + T - 1) / T;
    return (char *)kv->plane[plane] + s->block_ids[first + j / T] * kv->block_stride +
           g * kv->head_stride[plane] + j % T * kv->token_stride[plane];
}

static void fill_key(scene *s, scene_fill how, uint32_t b, int32_t j, uint32_t g)
{
    uint64_t n = ((uint64_t)b * 100000 + (uint64_t)j) * 16 + g;
    for (int plane = 0; plane < 2; plane++) {
        uint32_t width = plane ? s->p.head_dim_v : s->p.head_dim;
        char *at = scene_key(s, b, j, g, plane);
        double position[1024];
        for (uint32_t d = 0; d < width; d++)
            position[d] = plane ? j : 0;
        if (how == SCENE_POSITIONS)
            ora_encode(s->p.kv.dtype, position, width, at);
        else
            ora_generate(1, plane ? "v" : "k", n * width, width, 1, s->p.kv.dtype, at);
    }
}

void scene_open(scene *s, const scene_shape *a, scene_fill how)
{
    *s = (scene){0};
    size_t e = ora_codec_bytes(a->dtype), n_tokens = 0;
    bool hnd = a->layout == ATTND_LAYOUT_HND;
    int64_t slab_k = (int64_t)(a->n_kv_heads * a->T * a->D * e);
    int64_t slab_v = (int64_t)(a->n_kv_heads * a->T * a->Dv * e);
    s->pool_bytes = (size_t)(SCENE_BLOCKS * (slab_k + slab_v));
    s->pool = malloc(s->pool_bytes);
    assert_non_null(s->pool);
    memset(s->pool, 0xFF, s->pool_bytes);
    for (uint32_t b = 0; b < a->n_seqs; b++) {
        s->q_len[b] = a->q_len[b];
        s->kv_len[b] = a->kv_len[b];
        n_tokens += (size_t)a->q_len[b];
    }
    for (int32_t n = 0; n < SCENE_BLOCKS; n++)
        s->block_ids[n] = (n * 101 + 7) % SCENE_BLOCKS;
    size_t q_bytes = n_tokens * a->n_heads * a->D * e;
    s->q = calloc(1, q_bytes + 1);
    assert_non_null(s->q);
    if (how == SCENE_RANDOM)
        ora_generate(1, "q", 0, n_tokens * a->n_heads * a->D, 1, a->dtype, s->q);
    s->p = (ora_problem){
        .n_heads = a->n_heads,
        .n_kv_heads = a->n_kv_heads,
        .head_dim = a->D,
        .head_dim_v = a->Dv,
        .sm_scale = ora_sm_scale(0, a->D),
        .dtype = a->dtype,
        .n_seqs = a->n_seqs,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .block_ids = s->block_ids,
        .q = {s->q, (int64_t)(a->n_heads * a->D * e), (int64_t)(a->D * e), a->dtype},
        .kv = {.plane = {s->pool, s->pool + slab_k},
               .block_stride = slab_k + slab_v,
               .head_stride = {(int64_t)(a->D * e * (hnd ? a->T : 1)),
                               (int64_t)(a->Dv * e * (hnd ? a->T : 1))},
               .token_stride = {(int64_t)(a->D * e * (hnd ? 1 : a->n_kv_heads)),
                                (int64_t)(a->Dv * e * (hnd ? 1 : a->n_kv_heads))},
               .n_blocks = SCENE_BLOCKS,
               .block_size = a->T,
               .dtype = a->dtype},
        .mask.kinds = ORA_MASK_CAUSAL,
    };
    for (uint32_t b = 0; b < a->n_seqs; b++)
        for (int32_t j = 0; j < a->kv_len[b]; j++)
            for (uint32_t g = 0; g < a->n_kv_heads; g++)
                fill_key(s, how, b, j, g);
}

void scene_close(scene *s)
{
    free(s->pool);
    free(s->q);
}

ora_result scene_attend(const ora_problem *p)
{
    ora_result r;
    attnd_err err;
    if (ora_attend(p, &r, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    return r;
}

void assert_near(double got, double want, double relative)
{
    if (got == want || (isnan(got) && isnan(want)))
        return;
    if (!(fabs(got - want) <= relative * fmax(1, fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

void assert_row(const ora_result *r, int64_t row, double o, double lse)
{
    for (uint32_t d = 0; d < r->head_dim_v; d++)
        assert_near(r->out[row * r->head_dim_v + d], o, 1e-6);
    assert_near(r->lse[row], lse, 1e-6);
    if (lse == -INFINITY) {
        assert_true(r->m[row] == -INFINITY && r->l[row] == 0);
        assert_true(r->out[row * r->head_dim_v] == 0);
    } else {
        assert_near(r->m[row] + log(r->l[row]), lse, 1e-6);
    }
}

void assert_same(const ora_result *a, const ora_result *b, double relative)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    size_t rows = (size_t)a->n_tokens * a->n_heads;
    for (size_t i = 0; i < rows * a->head_dim_v; i++)
        assert_near(a->out[i], b->out[i], relative);
    for (size_t i = 0; i < rows; i++) {
        assert_near(a->lse[i], b->lse[i], relative);
        assert_int_equal(a->n_visible[i], b->n_visible[i]);
    }
}

void assert_identical(const ora_result *a, const ora_result *b)
{
    size_t rows = (size_t)a->n_tokens * a->n_heads;
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->memory, b->memory, rows * (a->head_dim_v + 4) * sizeof(double));
    assert_memory_equal(a->n_visible, b->n_visible, rows * sizeof(int64_t));
}

void assert_problems_same(const ora_problem *a, const ora_problem *b, double relative)
{
    ora_result x = scene_attend(a), y = scene_attend(b);
    if (relative == 0)
        assert_identical(&x, &y);
    else
        assert_same(&x, &y, relative);
    ora_result_fini(&x);
    ora_result_fini(&y);
}

void assert_refused(const ora_problem *p, attnd_reason reason, const char *text)
{
    attnd_err err = {0};
    ora_result r;
    assert_int_equal(ora_attend(p, &r, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.text, text);
    assert_null(r.memory);
    assert_null(r.n_visible);
}
