/* attend.c: attention, row by row (attention.md §1, §23). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/kv.h"
#include "tests/oracle/query.h"

/* What one row needs; arrays hold the longest sequence. */
typedef struct scratch {
    int64_t *keys, *slots; /* [n_visible] visible keys in index order, and where they lie */
    int64_t n_visible;
    uint32_t group; /* query heads of one kv head */
    double *scores; /* [group][max_kv] */
    double *q;      /* [n_heads][D] */
    double *k, *v;  /* [D], [Dv] */
    float *cos_sin; /* [D/2][2] */
    int64_t max_kv;
} scratch;

static void scratch_free(scratch *s)
{
    free(s->keys);
    free(s->slots);
    free(s->scores);
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->cos_sin);
}

static bool scratch_alloc(scratch *s, const ora_problem *p)
{
    *s = (scratch){.group = p->n_heads / p->n_kv_heads, .max_kv = 1};
    for (uint32_t b = 0; b < p->n_seqs; b++)
        if (p->kv_len[b] > s->max_kv)
            s->max_kv = p->kv_len[b];
    size_t n = (size_t)s->max_kv;
    s->keys = calloc(n, sizeof *s->keys);
    s->slots = calloc(n, sizeof *s->slots);
    s->scores = calloc(s->group * n, sizeof *s->scores);
    s->q = calloc((size_t)p->n_heads * p->head_dim, sizeof *s->q);
    s->k = calloc(p->head_dim, sizeof *s->k);
    s->v = calloc(p->head_dim_v, sizeof *s->v);
    s->cos_sin = calloc(p->head_dim, sizeof *s->cos_sin);
    return s->keys && s->slots && s->scores && s->q && s->k && s->v && s->cos_sin;
}

static bool result_alloc(ora_result *r, const ora_problem *p, int64_t n_tokens)
{
    size_t rows = (size_t)n_tokens * p->n_heads, width = p->head_dim_v;
    *r = (ora_result){.n_tokens = n_tokens, .n_heads = p->n_heads, .head_dim_v = p->head_dim_v};
    r->memory = calloc(rows * (width + 4) + 1, sizeof *r->memory);
    r->n_visible = calloc(rows + 1, sizeof *r->n_visible);
    if (!r->memory || !r->n_visible) {
        ora_result_fini(r);
        return false;
    }
    r->out = r->memory;
    r->lse = r->out + rows * width;
    r->m = r->lse + rows;
    r->l = r->m + rows;
    r->vmax = r->l + rows;
    memset(r->n_visible, -1, rows * sizeof *r->n_visible);
    return true;
}

void ora_result_fini(ora_result *result)
{
    free(result->memory);
    free(result->n_visible);
    *result = (ora_result){0};
}

/* The visible keys of row i of sequence b. */
static attnd_status find_keys(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                              scratch *s, attnd_err *err)
{
    int64_t end = p->kv_len[b];
    if (p->key_to > 0 && p->key_to < end)
        end = p->key_to;
    s->n_visible = 0;
    for (int64_t j = p->key_from > 0 ? p->key_from : 0; j < end; j++) {
        if (!ora_batch_sees(batch, p, b, i, j))
            continue;
        TRY(ora_batch_slot(batch, p, b, j, &s->slots[s->n_visible], err));
        s->keys[s->n_visible++] = j;
    }
    return ATTND_OK;
}

/* s_j of §1: scale, cap, bias. */
static double score(const ora_problem *p, uint32_t h, int64_t a, int64_t j, const double *q,
                    const double *k)
{
    double r = 0;
    for (uint32_t d = 0; d < p->head_dim; d++)
        r += q[d] * k[d];
    double s = p->sm_scale * r;
    if (p->bias.softcap > 0)
        s = p->bias.softcap * tanh(s / p->bias.softcap);
    if (p->bias.alibi_slopes)
        s += p->bias.alibi_slopes[h] * (double)(j - a);
    return s;
}

/* Scores of every visible key for the query heads of kv head g. */
static void score_group(const ora_problem *p, uint32_t b, uint32_t g, int64_t a, scratch *s)
{
    for (int64_t n = 0; n < s->n_visible; n++) {
        ora_kv_load(p, &p->kv, 0, b, g, s->slots[n], s->k);
        for (uint32_t hh = 0; hh < s->group; hh++) {
            uint32_t h = g * s->group + hh;
            s->scores[hh * s->max_kv + n] =
                score(p, h, a, s->keys[n], s->q + (size_t)h * p->head_dim, s->k);
        }
    }
}

/* m and l of one head, its scores turned into exp(s - m). NaN when any score is. */
static void normalise(double *scores, int64_t n, double *m, double *l)
{
    *m = -INFINITY;
    *l = 0;
    for (int64_t j = 0; j < n; j++)
        if (isnan(scores[j]) || scores[j] > *m) {
            *m = scores[j];
            if (isnan(*m))
                break;
        }
    if (*m == -INFINITY)
        return;
    for (int64_t j = 0; j < n; j++) {
        scores[j] = exp(scores[j] - *m);
        *l += scores[j];
    }
}

/* O, LSE, m, l of the query heads of kv head g at packed row t. */
static void attend_group(const ora_problem *p, uint32_t b, uint32_t g, int64_t t, scratch *s,
                         ora_result *out)
{
    size_t row = (size_t)t * p->n_heads + (size_t)g * s->group, width = p->head_dim_v;
    for (uint32_t hh = 0; hh < s->group; hh++) {
        normalise(s->scores + hh * s->max_kv, s->n_visible, &out->m[row + hh], &out->l[row + hh]);
        out->lse[row + hh] = out->m[row + hh] + log(out->l[row + hh]);
        out->n_visible[row + hh] = s->n_visible;
    }
    for (int64_t n = 0; n < s->n_visible; n++) {
        ora_kv_load(p, &p->kv, 1, b, g, s->slots[n], s->v);
        for (uint32_t hh = 0; hh < s->group; hh++) {
            if (out->m[row + hh] == -INFINITY)
                continue;
            double *o = out->out + (row + hh) * width, weight = s->scores[hh * s->max_kv + n];
            for (size_t d = 0; d < width; d++) {
                o[d] += weight * s->v[d];
                out->vmax[row + hh] = fmax(out->vmax[row + hh], fabs(s->v[d]));
            }
        }
    }
    for (uint32_t hh = 0; hh < s->group; hh++) {
        double z = out->l[row + hh], *o = out->out + (row + hh) * width;
        if (out->m[row + hh] == -INFINITY)
            continue;
        if (p->bias.sinks)
            z += exp(p->bias.sinks[g * s->group + hh] - out->m[row + hh]);
        for (size_t d = 0; d < width; d++)
            o[d] /= z;
    }
}

static attnd_status attend_rows(const ora_batch *batch, const ora_problem *p, scratch *s,
                                ora_result *out, attnd_err *err)
{
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++) {
            int64_t a = (int64_t)p->kv_len[b] - p->q_len[b] + i;
            TRY(find_keys(batch, p, b, i, s, err));
            ora_q_load(batch, p, b, i, s->cos_sin, s->q);
            for (uint32_t g = 0; g < p->n_kv_heads; g++) {
                score_group(p, b, g, a, s);
                attend_group(p, b, g, batch->q_first[b] + i, s, out);
            }
        }
    return ATTND_OK;
}

attnd_status ora_attend(const ora_problem *p, ora_result *out, attnd_err *err)
{
    *out = (ora_result){0};
    TRY(ora_q_check(p, err));
    ora_batch batch;
    scratch s = {0};
    attnd_status status = ora_batch_init(&batch, p, err);
    if (status == ATTND_OK && !(scratch_alloc(&s, p) && result_alloc(out, p, batch.n_tokens)))
        status = attnd_fail(err, ATTND_NO_ROOM, "tokens = %lld: no memory for their results",
                            (long long)batch.n_tokens);
    if (status == ATTND_OK)
        status = attend_rows(&batch, p, &s, out, err);
    if (status != ATTND_OK)
        ora_result_fini(out);
    scratch_free(&s);
    ora_batch_fini(&batch);
    return status;
}

double ora_sm_scale(double q_scaling, uint32_t dim)
{
    return 1 / ((q_scaling == 0 ? 1 : q_scaling) * sqrt(dim));
}

double ora_alibi_slope(uint32_t h, uint32_t n_heads)
{
    uint32_t n = 1;
    while (2 * n <= n_heads)
        n *= 2;
    return h < n ? exp2(-8.0 * (h + 1) / n) : exp2(-4.0 * (2 * (h - n) + 1) / n);
}
