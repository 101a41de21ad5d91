/* attend.c: attention, row by row (attention.md §1, §23). */
#include <math.h>
#include <stdlib.h>

#include "tests/oracle/query.h"
#include "tests/oracle/score.h"

/* What one row needs. */
typedef struct scratch {
    ora_items items;
    ora_sage_scales sage;
    double *memory; /* of what follows */
    double *q;      /* [n_heads][D] */
    double *k, *v;  /* [D], [Dv] */
    double *scores; /* [group][items.room] */
    float *cos_sin; /* [D/2][2] */
} scratch;

static void scratch_close(scratch *s)
{
    ora_items_close(&s->items);
    ora_sage_fini(&s->sage);
    free(s->memory);
    free(s->cos_sin);
}

static attnd_status scratch_open(scratch *s, const ora_batch *batch, const ora_problem *p,
                                 attnd_err *err)
{
    TRY(ora_items_open(&s->items, p, err));
    TRY(ora_sage_init(&s->sage, batch, p, err));
    size_t D = p->head_dim, q = p->n_heads * D, group = p->n_heads / p->n_kv_heads;
    s->memory = calloc(q + D + p->head_dim_v + group * (size_t)s->items.room, sizeof *s->memory);
    s->cos_sin = calloc(D, sizeof *s->cos_sin);
    if (!s->memory || !s->cos_sin)
        return attnd_fail(err, ATTND_NO_ROOM, "head_dim = %u: no memory for their rows",
                          p->head_dim);
    s->q = s->memory;
    s->k = s->q + q;
    s->v = s->k + D;
    s->scores = s->v + p->head_dim_v;
    return ATTND_OK;
}

/* m and l of one head, its scores turned into exp(s - m). NaN when any score is. */
static void normalise(double *scores, int64_t n, double *m, double *l)
{
    *m = -INFINITY;
    *l = 0;
    for (int64_t j = 0; j < n; j++)
        if (isnan(scores[j]) || scores[j] > *m) /* nothing is above NaN */
            *m = scores[j];
    if (*m == -INFINITY)
        return;
    for (int64_t j = 0; j < n; j++) {
        scores[j] = exp(scores[j] - *m);
        *l += scores[j];
    }
}

/* O, LSE, m, l of the query heads of kv head g at packed row t, from their scores. */
static void attend_group(const ora_problem *p, uint32_t b, uint32_t g, int64_t t, scratch *s,
                         ora_result *out)
{
    uint32_t group = p->n_heads / p->n_kv_heads;
    size_t row = (size_t)t * p->n_heads + (size_t)g * group, width = p->head_dim_v;
    for (uint32_t hh = 0; hh < group; hh++) {
        normalise(s->scores + hh * s->items.room, s->items.n, &out->m[row + hh], &out->l[row + hh]);
        out->lse[row + hh] = out->m[row + hh] + log(out->l[row + hh]);
        out->n_visible[row + hh] = s->items.n;
    }
    for (int64_t n = 0; n < s->items.n; n++) {
        ora_item_load(p, &s->items.item[n], 1, b, g, s->v);
        ora_sage_v(&s->sage, g, s->v);
        for (uint32_t hh = 0; hh < group; hh++) {
            if (out->m[row + hh] == -INFINITY)
                continue;
            double *o = out->out + (row + hh) * width, weight = s->scores[hh * s->items.room + n];
            for (size_t d = 0; d < width; d++) {
                o[d] += weight * s->v[d];
                out->vmax[row + hh] = fmax(out->vmax[row + hh], fabs(s->v[d]));
            }
        }
    }
    for (uint32_t hh = 0; hh < group; hh++) {
        double z = out->l[row + hh], *o = out->out + (row + hh) * width;
        if (out->m[row + hh] == -INFINITY)
            continue;
        if (p->bias.sinks)
            z += exp(p->bias.sinks[g * group + hh] - out->m[row + hh]);
        for (size_t d = 0; d < width; d++)
            o[d] /= z;
    }
}

static attnd_status attend_rows(const ora_batch *batch, const ora_problem *p, scratch *s,
                                ora_result *out, attnd_err *err)
{
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++) {
            ora_q_load(batch, p, b, i, s->cos_sin, s->q);
            ora_sage_q(&s->sage, b, i, s->q);
            for (uint32_t g = 0; g < p->n_kv_heads; g++) {
                if (g == 0 || ora_items_per_head(p))
                    TRY(ora_items_find(batch, p, b, i, g, &s->items, err));
                TRY(ora_scores(batch, p, b, i, g, &s->items, &s->sage, s->q, s->k, s->scores,
                               s->items.room, err));
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
    if (status == ATTND_OK)
        status = scratch_open(&s, &batch, p, err);
    if (status == ATTND_OK)
        status = ora_result_make(out, p, batch.n_tokens, err);
    if (status == ATTND_OK)
        status = attend_rows(&batch, p, &s, out, err);
    if (status != ATTND_OK)
        ora_result_fini(out);
    scratch_close(&s);
    ora_batch_fini(&batch);
    return status;
}
