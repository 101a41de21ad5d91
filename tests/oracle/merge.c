/* merge.c: partial results (attention.md §12). */
#include <math.h>

#include "tests/oracle/oracle.h"

void ora_merge(uint32_t n, const double *m, const double *l, const double *o, uint32_t width,
               double *m_out, double *l_out, double *o_out)
{
    *m_out = -INFINITY;
    *l_out = 0;
    for (uint32_t d = 0; d < width; d++)
        o_out[d] = 0;
    for (uint32_t part = 0; part < n; part++) {
        if (l[part] == 0 || m[part] == -INFINITY)
            continue;
        if (*m_out == -INFINITY) {
            *m_out = m[part];
            *l_out = l[part];
            for (uint32_t d = 0; d < width; d++)
                o_out[d] = o[part * (size_t)width + d];
            continue;
        }
        double top = fmax(*m_out, m[part]);
        double w1 = *l_out * exp(*m_out - top), w2 = l[part] * exp(m[part] - top);
        *m_out = top;
        *l_out = w1 + w2;
        for (uint32_t d = 0; d < width; d++)
            o_out[d] = (w1 * o_out[d] + w2 * o[part * (size_t)width + d]) / (w1 + w2);
    }
}

void ora_apply_sink(double m, double l, double sink, double *o, uint32_t width)
{
    if (m == -INFINITY)
        return;
    double share = l / (l + exp(sink - m));
    for (uint32_t d = 0; d < width; d++)
        o[d] *= share;
}
