/* score.c: scale, cap, bias: s_j of attention.md §1. */
#include "tests/oracle/score.h"

#include <math.h>

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

/* ⌊x⌋ of a number that rounding may have put just below the whole it is. */
static double floor_of(double x)
{
    return fabs(x - nearbyint(x)) < 1e-9 ? nearbyint(x) : floor(x);
}

int32_t ora_t5_bucket(int64_t delta, uint32_t n_buckets, double max_distance, bool bidirectional)
{
    int64_t n = delta < 0 ? -delta : 0, side = 0;
    uint32_t own = n_buckets;
    if (bidirectional) {
        own /= 2;
        side = delta > 0 ? own : 0;
        n = delta < 0 ? -delta : delta;
    }
    uint32_t exact = own / 2;
    if (n < exact)
        return (int32_t)(side + n);
    double far = log((double)n / exact) / log(max_distance / exact) * (own - exact);
    return (int32_t)(side + fmin(own - 1, exact + floor_of(far)));
}

static bool is_dense(const ora_bias *bias)
{
    return bias->relative && !(bias->relative_max_distance > 0);
}

static double relative_bias(const ora_bias *bias, uint32_t h, int64_t a, int64_t j)
{
    int64_t size = bias->relative_size;
    if (is_dense(bias))
        return bias->relative[(h * size + a) * size + j];
    int32_t bucket = ora_t5_bucket(j - a, bias->relative_size, bias->relative_max_distance,
                                   bias->relative_bidirectional);
    return bias->relative[h * size + bucket];
}

/* The score of a scaled one. Keys without an index have no bias but their own. */
static double score(const ora_bias *bias, double t, uint32_t h, int64_t a, const ora_item *item)
{
    double s = t, after = bias->scale_after_alibi == 0 ? 1 : bias->scale_after_alibi;
    if (bias->softcap > 0)
        s = bias->softcap * tanh(s / bias->softcap);
    s *= after;
    if (bias->alibi_slopes && item->key >= 0)
        s += after * bias->alibi_slopes[h] * (double)(item->key - a);
    if (bias->relative && item->key >= 0)
        s += relative_bias(bias, h, a, item->key);
    return s + item->extra;
}

static attnd_status check_dense(const ora_problem *p, uint32_t b, int32_t i, int64_t a,
                                const ora_items *items, attnd_err *err)
{
    int64_t size = p->bias.relative_size;
    if (!is_dense(&p->bias))
        return ATTND_OK;
    if (a >= size || (a < 0 && items->n > 0))
        return attnd_fail(err, ATTND_BAD_LENGTH,
                          "bias.relative_size = %lld: row %d of sequence %u is at key index %lld",
                          (long long)size, i, b, (long long)a);
    for (int64_t n = 0; n < items->n; n++)
        if (items->item[n].key >= size)
            return attnd_fail(err, ATTND_BAD_LENGTH,
                              "bias.relative_size = %lld: row %d of sequence %u sees key %lld",
                              (long long)size, i, b, (long long)items->item[n].key);
    return ATTND_OK;
}

attnd_status ora_scores(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                        uint32_t g, const ora_items *items, const ora_sage_scales *sage,
                        const double *q, double *k, double *scores, int64_t stride, attnd_err *err)
{
    uint32_t group = p->n_heads / p->n_kv_heads;
    int64_t a = ora_batch_row_index(batch, p, b, i);
    TRY(check_dense(p, b, i, a, items, err));
    for (int64_t n = 0; n < items->n; n++) {
        ora_item_load(p, &items->item[n], 0, b, g, k);
        ora_sage_k(sage, b, g, items->item[n].key, k);
        for (uint32_t hh = 0; hh < group; hh++) {
            uint32_t h = g * group + hh;
            double r = 0;
            for (uint32_t d = 0; d < p->head_dim; d++)
                r += q[(size_t)h * p->head_dim + d] * k[d];
            scores[hh * stride + n] =
                score(&p->bias, p->sm_scale * r + ora_sage_shift(sage, h), h, a, &items->item[n]);
        }
    }
    return ATTND_OK;
}
