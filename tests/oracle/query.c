/* query.c: the rows of q that the evaluator uses. */
#include "tests/oracle/query.h"

#include <math.h>

#include "tests/oracle/codec.h"

attnd_status ora_q_check(const ora_problem *p, attnd_err *err)
{
    if (!ora_codec_has(p->q.dtype) && p->q.dtype != ATTND_DTYPE_E4M3)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "q.dtype = %s: f32, f16, bf16 or e4m3",
                          attnd_dtype_name(p->q.dtype));
    if (!(p->quant.q_quant_orig >= 0) || isinf(p->quant.q_quant_orig))
        return attnd_fail(err, ATTND_BAD_QUANT, "quant.q_quant_orig = %g: finite, above 0",
                          p->quant.q_quant_orig);
    if (!(p->quant.q_orig_quant >= 0) || isinf(p->quant.q_orig_quant))
        return attnd_fail(err, ATTND_BAD_QUANT, "quant.q_orig_quant = %g: finite, above 0",
                          p->quant.q_orig_quant);
    return ATTND_OK;
}

/* §11.4: to E4M3 and back. */
static void quantise(const ora_problem *p, double factor, double *q)
{
    for (uint32_t d = 0; d < p->head_dim; d++) {
        double x = ora_round(p->dtype, q[d]);
        uint8_t code;
        ora_encode_scaled(ATTND_DTYPE_E4M3, &x, 1, p->quant.q_orig_quant, &code);
        ora_decode(ATTND_DTYPE_E4M3, &code, 1, &q[d]);
        q[d] *= factor;
    }
}

void ora_q_load(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i, float *cos_sin,
                double *q)
{
    int64_t t = batch->q_first[b] + i;
    double factor = p->quant.q_quant_orig == 0 ? 1 : p->quant.q_quant_orig;
    bool rotates = p->rope.pairing != ATTND_ROPE_NONE;
    if (rotates)
        ora_rope_row(batch, p, b, i, cos_sin);
    for (uint32_t h = 0; h < p->n_heads; h++, q += p->head_dim) {
        const char *at = (const char *)p->q.base + t * p->q.token_stride + h * p->q.head_stride;
        ora_decode(p->q.dtype, at, p->head_dim, q);
        if (p->q.dtype == ATTND_DTYPE_E4M3)
            for (uint32_t d = 0; d < p->head_dim; d++)
                q[d] *= factor;
        if (rotates)
            ora_rope_apply(&p->rope, cos_sin, p->dtype, q);
        if (p->quant.q_orig_quant > 0)
            quantise(p, factor, q);
    }
}
