/* merge_parts.c: results over disjoint keys, given by the caller → one (attention.md §12).
 *
 * Formula   m = max_i m_i,  w_i = l_i·exp(m_i - m),  O = Σ w_i·O_i / Σ w_i,  LSE = m + ln Σ w_i
 *           a part that gives lse has m_i = lse_i, l_i = 1. In the order of the parts, in fp32.
 * Floor     bytes: every part read once, the output written once
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* m and l of a part's row; l = 0: it saw no key. */
static void read_weight(const ker_merge_part *part, int64_t token, uint32_t head, float *m,
                        float *l)
{
    float pair[2] = {-INFINITY, 1};
    const ker_rows *rows = part->lse.base ? &part->lse : &part->stats;
    memcpy(pair, rows->base + token * rows->token_stride + head * rows->head_stride,
           part->lse.base ? sizeof pair[0] : sizeof pair);
    *m = pair[0];
    *l = pair[0] == -INFINITY ? 0 : pair[1];
}

static void store_f32(const ker_rows *rows, int64_t token, uint32_t head, const float *values,
                      size_t n)
{
    if (rows->base)
        memcpy(rows->base + token * rows->token_stride + head * rows->head_stride, values,
               n * sizeof *values);
}

/* acc and row have room for width floats. */
static void merge_row(const ker_merge_problem *p, int64_t token, uint32_t head, float *restrict acc,
                      float *restrict row)
{
    float top = -INFINITY, m, l;
    double sum = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        read_weight(&p->parts[i], token, head, &m, &l);
        if (l != 0 && !(m <= top)) /* a NaN stays */
            top = m;
        if (m != m)
            break;
    }
    for (uint32_t i = 0; i < p->n_parts; i++) {
        read_weight(&p->parts[i], token, head, &m, &l);
        sum += l == 0 ? 0 : l * expf(m - top);
    }
    memset(acc, 0, p->width * sizeof *acc);
    for (uint32_t i = 0; i < p->n_parts; i++) {
        const ker_rows *out = &p->parts[i].out;
        read_weight(&p->parts[i], token, head, &m, &l);
        if (l == 0)
            continue;
        /* Divided here, where it is 1 to the bit when no other part saw a key. */
        float w = (float)(l * expf(m - top) / sum);
        cpu_row_load(out->dtype, out->base + token * out->token_stride + head * out->head_stride,
                     p->width, row);
        for (uint32_t d = 0; d < p->width; d++)
            acc[d] += w * row[d];
    }
    cpu_row_store(p->out.dtype, acc, p->width,
                  p->out.base + token * p->out.token_stride + head * p->out.head_stride);
    float lse = sum == 0 ? -INFINITY : (float)(top + log(sum));
    float stats[2] = {sum == 0 ? -INFINITY : top, (float)sum};
    store_f32(&p->lse, token, head, &lse, 1);
    store_f32(&p->stats, token, head, stats, 2);
}

void cpu_merge_parts(const ker_merge_problem *problem, int64_t first, int64_t end, float *acc,
                     float *row)
{
    for (int64_t token = first; token < end; token++)
        for (uint32_t head = 0; head < problem->n_heads; head++)
            merge_row(problem, token, head, acc, row);
}
