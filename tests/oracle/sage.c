/* sage.c: Sage quantisation. */
#include "tests/oracle/sage.h"

#include <math.h>
#include <stdlib.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/kv.h"
#include "tests/oracle/query.h"

int64_t ora_sage_slot(const int32_t *len, uint32_t block, uint32_t b, int64_t t)
{
    int64_t before = 0;
    for (uint32_t s = 0; s < b; s++)
        before += len[s];
    return before / block + b + t / block;
}

int64_t ora_sage_count(const int32_t *len, uint32_t n, uint32_t block)
{
    int64_t total = 0;
    for (uint32_t s = 0; s < n; s++)
        total += len[s];
    return (total + block - 1) / block + n - 1;
}

/* ---- Refusals ---- */

static bool is_power_of_two(uint32_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Keys of lists without an index have no block of k_block tokens, those of other beams and ranks
 * another mean. */
static const char *stranger_of(const ora_problem *p)
{
    if (p->sparse.topk && p->sparse.topk_is_slots)
        return "sparse.topk_is_slots";
    if (p->sparse.pages)
        return "sparse.pages";
    if (p->sparse.second)
        return "sparse.second";
    if (p->beams.width > 0)
        return "beams";
    return p->cp.n_ranks > 0 ? "cp" : NULL;
}

static attnd_status check(const ora_problem *p, attnd_err *err)
{
    const ora_sage *sage = &p->sage;
    const char *dtype = attnd_dtype_name(sage->qk_dtype), *stranger = stranger_of(p);
    if (sage->qk_dtype != ATTND_DTYPE_I8 && sage->qk_dtype != ATTND_DTYPE_E4M3)
        return attnd_fail(err, ATTND_BAD_QUANT, "sage.qk_dtype = %s: i8 or e4m3", dtype);
    if (!is_power_of_two(sage->q_block))
        return attnd_fail(err, ATTND_BAD_QUANT, "sage.q_block = %u: a power of two", sage->q_block);
    if (!is_power_of_two(sage->k_block))
        return attnd_fail(err, ATTND_BAD_QUANT, "sage.k_block = %u: a power of two", sage->k_block);
    if (sage->smooth_k && p->bias.softcap > 0)
        return attnd_fail(
            err, ATTND_BAD_COMBINATION,
            "sage.smooth_k = true: a soft cap does not pass a shift of the scores on");
    if (stranger)
        return attnd_fail(err, ATTND_BAD_COMBINATION, "sage.qk_dtype = %s: not with %s", dtype,
                          stranger);
    return ATTND_OK;
}

/* ---- Scales and means ---- */

static float code_limit(const ora_problem *p)
{
    return p->sage.qk_dtype == ATTND_DTYPE_I8 ? 127 : 448;
}

static float scale_of(double amax, float limit)
{
    return fmaxf((float)amax, 1e-3f) / limit;
}

static float *q_scale(const ora_sage_scales *s, uint32_t b, uint32_t h, int64_t i)
{
    return s->q + h * s->n_q + ora_sage_slot(s->problem->q_len, s->problem->sage.q_block, b, i);
}

static float *k_scale(const ora_sage_scales *s, uint32_t b, uint32_t g, int64_t j)
{
    return s->k + g * s->n_k + ora_sage_slot(s->problem->kv_len, s->problem->sage.k_block, b, j);
}

static double *mean_k(const ora_sage_scales *s, uint32_t b, uint32_t g)
{
    return s->mean_k + ((size_t)b * s->problem->n_kv_heads + g) * s->problem->head_dim;
}

static double *mean_v(const ora_sage_scales *s, uint32_t g)
{
    return s->mean_v + (size_t)g * s->problem->head_dim_v;
}

/* What the passes over all rows share. */
typedef struct pass {
    ora_sage_scales *scales;
    const ora_batch *batch;
    const ora_problem *p;
    double *x;      /* room for the q of a row, or one k or v */
    float *cos_sin; /* [D] */
} pass;

static attnd_status load(const pass *a, int plane, uint32_t b, uint32_t g, int64_t j,
                         attnd_err *err)
{
    ora_place place;
    TRY(ora_kv_find(a->batch, a->p, b, j, &place, err));
    ora_kv_load(a->p, place.kv, plane, b, g, place.slot, a->x);
    return ATTND_OK;
}

/* Amax of a block, its running value kept where the scale will be. */
static void raise(float *amax, double value)
{
    *amax = fmaxf(*amax, fabsf((float)value));
}

static attnd_status add_means(const pass *a, attnd_err *err)
{
    const ora_problem *p = a->p;
    int64_t n_keys = 0;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        n_keys += p->kv_len[b];
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int64_t j = 0; j < p->kv_len[b]; j++)
            for (uint32_t g = 0; g < p->n_kv_heads; g++) {
                TRY(load(a, 0, b, g, j, err));
                for (uint32_t d = 0; p->sage.smooth_k && d < p->head_dim; d++)
                    mean_k(a->scales, b, g)[d] += a->x[d] / p->kv_len[b];
                TRY(load(a, 1, b, g, j, err));
                for (uint32_t d = 0; p->sage.smooth_v && d < p->head_dim_v; d++)
                    mean_v(a->scales, g)[d] += a->x[d] / (double)n_keys;
            }
    return ATTND_OK;
}

static attnd_status raise_keys(const pass *a, attnd_err *err)
{
    const ora_problem *p = a->p;
    ora_sage_scales *s = a->scales;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int64_t j = 0; j < p->kv_len[b]; j++)
            for (uint32_t g = 0; g < p->n_kv_heads; g++) {
                TRY(load(a, 0, b, g, j, err));
                for (uint32_t d = 0; d < p->head_dim; d++)
                    raise(k_scale(s, b, g, j), a->x[d] - mean_k(s, b, g)[d]);
                TRY(load(a, 1, b, g, j, err));
                for (uint32_t d = 0; d < p->head_dim_v; d++)
                    raise(s->v + (size_t)g * p->head_dim_v + d, a->x[d] - mean_v(s, g)[d]);
            }
    return ATTND_OK;
}

static void raise_queries(const pass *a)
{
    const ora_problem *p = a->p;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++) {
            ora_q_load(a->batch, p, b, i, a->cos_sin, a->x);
            for (uint32_t h = 0; h < p->n_heads; h++)
                for (uint32_t d = 0; d < p->head_dim; d++)
                    raise(q_scale(a->scales, b, h, i), a->x[(size_t)h * p->head_dim + d]);
        }
}

static attnd_status fill(const pass *a, attnd_err *err)
{
    ora_sage_scales *s = a->scales;
    TRY(add_means(a, err));
    TRY(raise_keys(a, err));
    raise_queries(a);
    for (int64_t n = 0; n < s->n_q * a->p->n_heads; n++)
        s->q[n] = scale_of(s->q[n], code_limit(a->p));
    for (int64_t n = 0; n < s->n_k * a->p->n_kv_heads; n++)
        s->k[n] = scale_of(s->k[n], code_limit(a->p));
    for (size_t n = 0; n < (size_t)a->p->n_kv_heads * a->p->head_dim_v; n++)
        s->v[n] = scale_of(s->v[n], 448);
    return ATTND_OK;
}

static bool alloc(ora_sage_scales *s, const ora_problem *p)
{
    s->n_q = ora_sage_count(p->q_len, p->n_seqs, p->sage.q_block);
    s->n_k = ora_sage_count(p->kv_len, p->n_seqs, p->sage.k_block);
    size_t q = (size_t)s->n_q * p->n_heads, k = (size_t)s->n_k * p->n_kv_heads;
    size_t v = (size_t)p->n_kv_heads * p->head_dim_v;
    size_t keys = (size_t)p->n_seqs * p->n_kv_heads * p->head_dim;
    s->scales = calloc(q + k + v, sizeof *s->scales);
    s->means = calloc(keys + v + p->n_heads, sizeof *s->means);
    if (!s->scales || !s->means)
        return false;
    s->q = s->scales;
    s->k = s->q + q;
    s->v = s->k + k;
    s->mean_k = s->means;
    s->mean_v = s->mean_k + keys;
    s->shift = s->mean_v + v;
    return true;
}

attnd_status ora_sage_init(ora_sage_scales *s, const ora_batch *batch, const ora_problem *p,
                           attnd_err *err)
{
    *s = (ora_sage_scales){0};
    if (p->sage.qk_dtype == ATTND_DTYPE_NONE || p->n_seqs == 0)
        return ATTND_OK;
    TRY(check(p, err));
    s->problem = p;
    size_t widest = (size_t)p->n_heads * p->head_dim;
    pass a = {.scales = s, .batch = batch, .p = p};
    a.x = calloc(widest > p->head_dim_v ? widest : p->head_dim_v, sizeof *a.x);
    a.cos_sin = calloc(p->head_dim, sizeof *a.cos_sin);
    attnd_status status;
    if (alloc(s, p) && a.x && a.cos_sin)
        status = fill(&a, err);
    else
        status = attnd_fail(err, ATTND_NO_ROOM, "sage = given: no memory for their scales");
    free(a.cos_sin);
    free(a.x);
    return status;
}

void ora_sage_fini(ora_sage_scales *s)
{
    free(s->scales);
    free(s->means);
    *s = (ora_sage_scales){0};
}

/* ---- Rows ---- */

static double coded(attnd_dtype dtype, double x, float scale)
{
    return ora_round(dtype, (float)x / scale) * scale;
}

void ora_sage_q(ora_sage_scales *s, uint32_t b, int32_t i, double *q)
{
    const ora_problem *p = s->problem;
    if (!p)
        return;
    for (uint32_t h = 0; h < p->n_heads; h++, q += p->head_dim) {
        const double *mean = mean_k(s, b, h / (p->n_heads / p->n_kv_heads));
        double dot = 0;
        for (uint32_t d = 0; d < p->head_dim; d++) {
            dot += q[d] * mean[d];
            q[d] = coded(p->sage.qk_dtype, q[d], *q_scale(s, b, h, i));
        }
        s->shift[h] = p->sm_scale * dot;
    }
}

double ora_sage_shift(const ora_sage_scales *s, uint32_t h)
{
    return s->problem ? s->shift[h] : 0;
}

void ora_sage_k(const ora_sage_scales *s, uint32_t b, uint32_t g, int64_t j, double *k)
{
    const ora_problem *p = s->problem;
    if (!p)
        return;
    float amax = 0;
    for (uint32_t d = 0; d < p->head_dim; d++) {
        k[d] -= mean_k(s, b, g)[d];
        raise(&amax, k[d]);
    }
    float scale = j >= 0 ? *k_scale(s, b, g, j) : scale_of(amax, code_limit(p));
    for (uint32_t d = 0; d < p->head_dim; d++)
        k[d] = coded(p->sage.qk_dtype, k[d], scale);
}

void ora_sage_v(const ora_sage_scales *s, uint32_t g, double *v)
{
    const ora_problem *p = s->problem;
    if (!p)
        return;
    for (uint32_t d = 0; d < p->head_dim_v; d++) {
        double mean = mean_v(s, g)[d];
        float scale = s->v[(size_t)g * p->head_dim_v + d];
        v[d] = coded(ATTND_DTYPE_E4M3, v[d] - mean, scale) + mean;
    }
}
