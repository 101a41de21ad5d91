/* rope.c: rotary embedding (attention.md §5). */
#include <math.h>
#include <stdlib.h>

#include "tests/oracle/batch.h"
#include "tests/oracle/codec.h"

/* cos and sin of pair n, rounded to fp32 from double (§5.6). */
static void cos_sin_of(const ora_rope *rope, int64_t position, uint32_t n, float out[2])
{
    double frequency = pow(rope->theta, -2.0 * n / rope->dim);
    if (rope->scaling == ORA_SCALING_LINEAR)
        frequency /= rope->factor;
    double angle = (double)position * frequency;
    out[0] = (float)cos(angle);
    out[1] = (float)sin(angle);
}

void ora_rope_table(const ora_rope *rope, int64_t position, float *cos_sin)
{
    for (uint32_t n = 0; n < rope->dim / 2; n++)
        cos_sin_of(rope, position, n, cos_sin + 2 * n);
}

static void rotate_pair(const ora_rope *rope, uint32_t n, const float cos_sin[2], attnd_dtype dtype,
                        double *x)
{
    bool neox = rope->pairing == ATTND_ROPE_NEOX;
    double *first = x + (neox ? n : 2 * n);
    double *second = x + (neox ? n + rope->dim / 2 : 2 * n + 1);
    double a = *first, b = *second;
    *first = ora_round(dtype, a * cos_sin[0] - b * cos_sin[1]);
    *second = ora_round(dtype, b * cos_sin[0] + a * cos_sin[1]);
}

void ora_rope_apply(const ora_rope *rope, const float *cos_sin, attnd_dtype dtype, double *x)
{
    for (uint32_t n = 0; n < rope->dim / 2; n++)
        rotate_pair(rope, n, cos_sin + 2 * n, dtype, x);
}

void ora_rotate(const ora_rope *rope, int64_t position, attnd_dtype dtype, double *x)
{
    if (rope->pairing == ATTND_ROPE_NONE)
        return;
    float cos_sin[2];
    for (uint32_t n = 0; n < rope->dim / 2; n++) {
        cos_sin_of(rope, position, n, cos_sin);
        rotate_pair(rope, n, cos_sin, dtype, x);
    }
}
