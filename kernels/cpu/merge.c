/* merge.c: partial rows → outputs (attention.md §12).
 *
 * Formula   m = max_s m_s,  w_s = exp(m_s - m),  l = Σ w_s·l_s,  O = Σ w_s·O_s / (l + sink)
 *           with O_s not yet divided by l_s. Splits that saw nothing are not read.
 * Floor     bytes: every partial row read once
 */
#include <math.h>

#include "kernels/cpu/cpu.h"

/* One row: split s is at parts + s·step floats. In split order, not finishing order: the same plan
 * gives the same bits. */
static void merge_row(const float *parts, int64_t step, int32_t n_splits, uint32_t width,
                      float *restrict acc, float *m_out, double *l_out)
{
    float m = -INFINITY;
    double l = 0;
    for (int32_t s = 0; s < n_splits; s++)
        if (parts[s * step + 1] != 0 && parts[s * step] > m)
            m = parts[s * step];
    for (uint32_t d = 0; d < width; d++)
        acc[d] = 0;
    for (int32_t s = 0; s < n_splits; s++) {
        const float *part = parts + s * step, *o = part + KER_PARTIAL_O;
        if (part[1] == 0)
            continue;
        float w = expf(part[0] - m);
        l += (double)w * part[1];
        for (uint32_t d = 0; d < width; d++)
            acc[d] += w * o[d];
    }
    *m_out = m;
    *l_out = l;
}

void cpu_merge_run(const ker_plan *plan, const ker_merge *merge, const char *workspace, float *acc)
{
    const ker_problem *p = &plan->problem;
    uint32_t group = p->n_heads / p->n_kv_heads;
    int64_t rows = (int64_t)merge->n_rows * group, stride = ker_partial_floats(p);
    const float *parts = (const float *)(workspace + ker_angles_bytes(p)) + merge->partial * stride;
    for (int64_t r = 0; r < rows; r++) {
        float m;
        double l;
        merge_row(parts + r * stride, rows * stride, merge->n_splits, p->head_dim_v, acc, &m, &l);
        int64_t token = p->batch.q_first[merge->seq] + merge->row_first + r / group;
        cpu_row_finish(p, token, (uint32_t)merge->kv_head * group + (uint32_t)(r % group), m, l,
                       acc);
    }
}
