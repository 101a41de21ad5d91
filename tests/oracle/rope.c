/* rope.c: rotary embedding (attention.md §5). */
#include <math.h>

#include "tests/oracle/check.h"
#include "tests/oracle/codec.h"

/* ---- Frequencies and amplitude (§5.3) ---- */

static double base_frequency(double theta, uint32_t n, uint32_t dim)
{
    return pow(theta, -2.0 * n / dim);
}

/* What θ grows to. dim 2 has one pair, whose frequency is 1 whatever θ is. */
static double grown_theta(const ora_rope *rope, double by)
{
    return rope->dim > 2 ? rope->theta * pow(by, rope->dim / (rope->dim - 2.0)) : rope->theta;
}

static double ntk_theta(const ora_rope *rope, int64_t kv_len)
{
    if ((double)kv_len <= rope->original_max)
        return rope->theta;
    double by = rope->factor * (double)kv_len / rope->original_max - (rope->factor - 1);
    return grown_theta(rope, by);
}

static double llama3_frequency(const ora_rope *rope, double f)
{
    double wavelength = 2 * M_PI / f;
    if (wavelength < rope->original_max / rope->high)
        return f;
    if (wavelength > rope->original_max / rope->low)
        return f / rope->factor;
    double share = (rope->original_max / wavelength - rope->low) / (rope->high - rope->low);
    return (1 - share) * f / rope->factor + share * f;
}

/* x(β): the pair that turns β times over the original length. */
static double yarn_pair(const ora_rope *rope, double beta)
{
    return rope->dim * log(rope->original_max / (2 * M_PI * beta)) / (2 * log(rope->theta));
}

static double yarn_frequency(const ora_rope *rope, uint32_t n, double f)
{
    double low = yarn_pair(rope, rope->beta_fast), high = yarn_pair(rope, rope->beta_slow);
    if (!rope->no_truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(0, low);
    high = fmin(rope->dim - 1.0, high);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax((n - low) / (high - low), 0), 1);
    return ramp * f / rope->factor + (1 - ramp) * f;
}

static bool is_long(const ora_rope *rope)
{
    return rope->max_positions == 0 || rope->max_positions > rope->original_max;
}

static double frequency_of(const ora_rope *rope, int64_t kv_len, uint32_t n)
{
    double f = base_frequency(rope->theta, n, rope->dim);
    switch (rope->scaling) {
    case ORA_SCALING_NONE:
        return f;
    case ORA_SCALING_LINEAR:
        return f / rope->factor;
    case ORA_SCALING_DYNAMIC_ALPHA:
        return base_frequency(grown_theta(rope, rope->factor), n, rope->dim);
    case ORA_SCALING_DYNAMIC_NTK:
        return base_frequency(ntk_theta(rope, kv_len), n, rope->dim);
    case ORA_SCALING_LLAMA3:
        return llama3_frequency(rope, f);
    case ORA_SCALING_YARN:
        return yarn_frequency(rope, n, f);
    case ORA_SCALING_LONGROPE:
        return f / (is_long(rope) ? rope->long_factors : rope->short_factors)[n];
    }
    return NAN;
}

static double yarn_mu(const ora_rope *rope, double x)
{
    return rope->factor <= 1 ? 1 : 0.1 * x * log(rope->factor) + 1;
}

static double longrope_amplitude(const ora_rope *rope)
{
    double given = is_long(rope) ? rope->long_amplitude : rope->short_amplitude;
    if (given != 0)
        return given;
    if (rope->max_positions <= rope->original_max)
        return 1;
    return sqrt(1 + log(rope->max_positions / rope->original_max) / log(rope->original_max));
}

static double amplitude_of(const ora_rope *rope)
{
    if (rope->scaling == ORA_SCALING_YARN)
        return yarn_mu(rope, rope->mscale) / yarn_mu(rope, rope->mscale_all);
    return rope->scaling == ORA_SCALING_LONGROPE ? longrope_amplitude(rope) : 1;
}

void ora_rope_frequencies(const ora_rope *rope, int64_t kv_len, double *frequencies,
                          double *amplitude)
{
    for (uint32_t n = 0; n < rope->dim / 2; n++)
        frequencies[n] = frequency_of(rope, kv_len, n);
    *amplitude = amplitude_of(rope);
}

/* ---- Cosine and sine of a row ---- */

/* §5.4: which of the three positions turns pair n. */
static uint32_t section_of(const ora_rope *rope, uint32_t n)
{
    const uint32_t *s = rope->sections;
    if (s[0] + s[1] + s[2] == 0)
        return 0;
    if (rope->interleaved)
        return n % 3 != 0 && n < 3 * s[n % 3] ? n % 3 : 0;
    return n < s[0] ? 0 : n < s[0] + s[1] ? 1 : 2;
}

/* §5.6: angle and product with A in double, then one rounding to fp32. */
static void make_pair(const ora_rope *rope, int64_t position, int64_t kv_len, uint32_t n,
                      float out[2])
{
    if (rope->table) {
        size_t pairs = rope->table_duplicated ? rope->dim : rope->dim / 2;
        const float *pair = rope->table + 2 * ((size_t)position * pairs + n);
        out[0] = pair[0];
        out[1] = pair[1];
        return;
    }
    double angle = (double)position * frequency_of(rope, kv_len, n);
    out[0] = (float)(amplitude_of(rope) * cos(angle));
    out[1] = (float)(amplitude_of(rope) * sin(angle));
}

void ora_rope_row(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                  float *cos_sin)
{
    const ora_rope *rope = &p->rope;
    int64_t t = batch->q_first[b] + i;
    for (uint32_t n = 0; n < rope->dim / 2; n++) {
        if (rope->cos_sin) {
            cos_sin[2 * n] = rope->cos_sin[t * rope->dim + 2 * n];
            cos_sin[2 * n + 1] = rope->cos_sin[t * rope->dim + 2 * n + 1];
            continue;
        }
        int64_t position = ora_batch_position(batch, p, b, i, section_of(rope, n));
        make_pair(rope, position, p->kv_len[b], n, cos_sin + 2 * n);
    }
}

/* ---- Rotation (§5.2) ---- */

static void rotate_pair(const ora_rope *rope, uint32_t n, const float cos_sin[2], attnd_dtype dtype,
                        double *x)
{
    bool neox = rope->pairing == ATTND_ROPE_NEOX;
    double *first = x + rope->first + (neox ? n : 2 * n);
    double *second = x + rope->first + (neox ? n + rope->dim / 2 : 2 * n + 1);
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
        make_pair(rope, position, 0, n, cos_sin);
        rotate_pair(rope, n, cos_sin, dtype, x);
    }
}

/* ---- Refusals ---- */

static attnd_status check_scaling(const ora_rope *rope, attnd_err *err)
{
    ora_scaling scaling = rope->scaling;
    if (scaling == ORA_SCALING_NONE)
        return ATTND_OK;
    if (scaling != ORA_SCALING_LONGROPE && !(rope->factor > 0))
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.factor = %g: above 0", rope->factor);
    if (scaling == ORA_SCALING_LINEAR || scaling == ORA_SCALING_DYNAMIC_ALPHA)
        return ATTND_OK;
    if (!(rope->original_max > 0))
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.original_max = %g: above 0",
                          rope->original_max);
    if (scaling == ORA_SCALING_LLAMA3 && !(rope->low > 0 && rope->high > rope->low))
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.high = %g: above low = %g, which is above 0",
                          rope->high, rope->low);
    if (scaling == ORA_SCALING_YARN && !(rope->beta_fast > 0 && rope->beta_slow > 0))
        return attnd_fail(err, ATTND_BAD_ROPE,
                          "rope.beta_fast = %g: above 0, as beta_slow = %g is to be",
                          rope->beta_fast, rope->beta_slow);
    bool is_missing = is_long(rope) ? !rope->long_factors : !rope->short_factors;
    if (scaling == ORA_SCALING_LONGROPE && is_missing)
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.%s_factors = none: longrope needs them",
                          is_long(rope) ? "long" : "short");
    return ATTND_OK;
}

static attnd_status check_geometry(const ora_problem *p, attnd_err *err)
{
    const ora_rope *rope = &p->rope;
    if (rope->dim < 2 || rope->dim % 2 != 0 || rope->dim > p->head_dim)
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.dim = %u: even, 2 .. head_dim = %u", rope->dim,
                          p->head_dim);
    if (rope->first > p->head_dim - rope->dim)
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.first = %u: %u channels behind it, of %u",
                          rope->first, rope->dim, p->head_dim);
    uint64_t sum = (uint64_t)rope->sections[0] + rope->sections[1] + rope->sections[2];
    if (sum != 0 && sum != rope->dim / 2)
        return attnd_fail(err, ATTND_BAD_ROPE,
                          "rope.sections = %u, %u, %u: their sum is dim/2 = %u", rope->sections[0],
                          rope->sections[1], rope->sections[2], rope->dim / 2);
    if (sum == 0 && p->positions3)
        return attnd_fail(err, ATTND_BAD_ROPE,
                          "positions3 = given: one position a token without rope.sections");
    if (rope->table || rope->cos_sin)
        return ATTND_OK;
    if (!(rope->theta > 0))
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.theta = %g: above 0", rope->theta);
    return check_scaling(rope, err);
}

attnd_status ora_rope_check(const ora_batch *batch, const ora_problem *p, attnd_err *err)
{
    const ora_rope *rope = &p->rope;
    if (rope->pairing == ATTND_ROPE_NONE)
        return ATTND_OK;
    TRY(check_geometry(p, err));
    if (!rope->table || rope->cos_sin)
        return ATTND_OK;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++)
            for (uint32_t section = 0; section < 3; section++) {
                int64_t position = ora_batch_position(batch, p, b, i, section);
                if (position < 0 || position >= rope->table_rows)
                    return attnd_fail(err, ATTND_BAD_ROPE,
                                      "rope.table_rows = %lld: row %d of sequence %u is at "
                                      "position %lld",
                                      (long long)rope->table_rows, i, b, (long long)position);
            }
    return ATTND_OK;
}
