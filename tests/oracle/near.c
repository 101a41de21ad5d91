/* near.c: is an output near enough? */
#include "tests/oracle/near.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/codec.h"

near_gate near_gate_of(near_path path)
{
    static const near_gate gates[NEAR_N_PATHS] = {
#define X(name, e_inf, e_rms, what) {what, e_inf, e_rms},
        NEAR_PATH_MAP(X)
#undef X
    };
    return gates[path];
}

near_path near_path_for(attnd_dtype activation, attnd_dtype kv, attnd_dtype out)
{
    if (activation == ATTND_DTYPE_BF16 || kv == ATTND_DTYPE_BF16 || out == ATTND_DTYPE_BF16)
        return out == ATTND_DTYPE_F32 ? NEAR_BF16_F32 : NEAR_BF16;
    if (activation == ATTND_DTYPE_F16 || kv == ATTND_DTYPE_F16 || out == ATTND_DTYPE_F16)
        return NEAR_F16;
    return NEAR_F32;
}

/* The worst element so far: how many times its tolerance it is off. */
typedef struct worst {
    double times;
    int64_t token;
    uint32_t head, channel;
    double got, want, tolerance;
} worst;

/* How many times the tolerance: 0 when equal, also for NaN and Inf; infinite where only one of them
 * is a number. */
static double times_off(double got, double want, double tolerance)
{
    if (got == want || (isnan(got) && isnan(want)))
        return 0;
    double off = fabs(got - want);
    if (isnan(off) || isinf(off) || tolerance == 0)
        return INFINITY;
    return off / tolerance;
}

static void consider(worst *w, int64_t token, uint32_t head, uint32_t channel, double got,
                     double want, double tolerance)
{
    double times = times_off(got, want, tolerance);
    if (times > w->times || w->token < 0)
        *w = (worst){times, token, head, channel, got, want, tolerance};
}

static bool settle(const worst *w, const char *what, bool ok, near_report *report)
{
    report->ok = ok && !(w->times > 1);
    report->times = w->token < 0 ? 0 : fmax(report->times, w->times);
    report->token = w->token;
    report->head = w->head;
    if (w->token < 0)
        snprintf(report->text, NEAR_TEXT, "%s: no rows", what);
    else
        snprintf(report->text, NEAR_TEXT,
                 "%s[token %lld][head %u][%u] = %.9g: %.9g within %.3g (e_inf %.3g, e_rms %.3g)",
                 what, (long long)w->token, w->head, w->channel, w->got, w->want, w->tolerance,
                 report->e_inf, report->e_rms);
    return report->ok;
}

static const char *row_at(const ora_rows *rows, int64_t token, uint32_t head)
{
    return (const char *)rows->base + token * rows->token_stride + head * rows->head_stride;
}

/* Sums for e_rms, and the largest share of vmax. */
typedef struct sums {
    double off2, want2, e_inf;
} sums;

static void compare_row(const double *got, attnd_dtype dtype, const ora_result *want, int64_t t,
                        uint32_t h, double gate, bool exact, worst *w, sums *sum)
{
    size_t row = (size_t)t * want->n_heads + h;
    bool empty = want->lse[row] == -INFINITY;
    for (uint32_t d = 0; d < want->head_dim_v; d++) {
        double o = want->out[row * want->head_dim_v + d];
        double tolerance = empty || exact ? 0 : gate * want->vmax[row] + ora_ulp(dtype, o);
        /* What the one rounding of the output makes of O is right however far it is from O. */
        bool rounded = got[d] == ora_round(dtype, o);
        consider(w, t, h, d, got[d], rounded ? got[d] : o, tolerance);
        if (!isfinite(got[d]) || !isfinite(o))
            continue;
        sum->off2 += (got[d] - o) * (got[d] - o);
        sum->want2 += o * o;
        if (want->vmax[row] > 0)
            sum->e_inf = fmax(sum->e_inf, fabs(got[d] - o) / want->vmax[row]);
    }
}

bool near_out(const ora_rows *got, const ora_result *want, near_path path, double widen, bool sinks,
              near_report *report)
{
    near_gate gate = near_gate_of(path);
    worst w = {.token = -1};
    sums sum = {0};
    *report = (near_report){0};
    double *row = calloc(want->head_dim_v + 1, sizeof *row);
    if (!row) {
        snprintf(report->text, NEAR_TEXT, "out: no memory for a row");
        return false;
    }
    for (int64_t t = 0; t < want->n_tokens; t++)
        for (uint32_t h = 0; h < want->n_heads; h++) {
            int64_t n_visible = want->n_visible[t * want->n_heads + h];
            if (n_visible < 0)
                continue;
            bool exact = !sinks && n_visible == 1;
            ora_decode(got->dtype, row_at(got, t, h), want->head_dim_v, row);
            compare_row(row, got->dtype, want, t, h, gate.e_inf * widen, exact, &w, &sum);
        }
    free(row);
    report->e_inf = sum.e_inf;
    report->e_rms = sum.off2 > 0 ? sqrt(sum.off2 / sum.want2) : 0;
    report->times = report->e_rms / (gate.e_rms * widen);
    return settle(&w, "out", report->e_rms <= gate.e_rms * widen, report);
}

static double lse_tolerance(double lse, near_backend backend)
{
    if (isinf(lse))
        return 0;
    return backend == NEAR_CPU ? 1e-4 + 2e-6 * fabs(lse) : 1e-3 + 1e-5 * fabs(lse);
}

bool near_lse(const ora_rows *got, const ora_result *want, near_backend backend,
              near_report *report)
{
    worst w = {.token = -1};
    *report = (near_report){0};
    for (int64_t t = 0; t < want->n_tokens; t++)
        for (uint32_t h = 0; h < want->n_heads; h++) {
            if (want->n_visible[t * want->n_heads + h] < 0)
                continue;
            double lse = want->lse[t * want->n_heads + h], value;
            ora_decode(ATTND_DTYPE_F32, row_at(got, t, h), 1, &value);
            consider(&w, t, h, 0, value, lse, lse_tolerance(lse, backend));
        }
    return settle(&w, "lse", true, report);
}

bool near_stats(const ora_rows *got, const ora_result *want, near_backend backend,
                near_report *report)
{
    worst w = {.token = -1};
    *report = (near_report){0};
    for (int64_t t = 0; t < want->n_tokens; t++)
        for (uint32_t h = 0; h < want->n_heads; h++) {
            if (want->n_visible[t * want->n_heads + h] < 0)
                continue;
            double lse = want->lse[t * want->n_heads + h], pair[2];
            ora_decode(ATTND_DTYPE_F32, row_at(got, t, h), 2, pair);
            if (lse == -INFINITY) {
                consider(&w, t, h, 0, pair[0], -INFINITY, 0);
                consider(&w, t, h, 1, pair[1], 0, 0);
            } else {
                consider(&w, t, h, 0, pair[0] + log(pair[1]), lse, lse_tolerance(lse, backend));
            }
        }
    return settle(&w, "stats", true, report);
}

/* Codes of a format in the order of their values; ±0 are one. */
static int64_t order_of(attnd_dtype dtype, const char *bytes)
{
    uint32_t bits = 0;
    memcpy(&bits, bytes, ora_codec_bytes(dtype));
    uint32_t sign = 1u << (attnd_dtype_bits(dtype) - 1);
    return (bits & sign) ? -(int64_t)(bits & ~sign) : (int64_t)bits;
}

bool near_bytes(attnd_dtype dtype, const void *got, const void *want, size_t n, uint32_t ulps,
                near_report *report)
{
    size_t size = ora_codec_bytes(dtype);
    *report = (near_report){.ok = true, .token = -1};
    for (size_t i = 0; i < n; i++) {
        const char *a = (const char *)got + i * size, *b = (const char *)want + i * size;
        if (memcmp(a, b, size) == 0)
            continue;
        double x, y;
        ora_decode(dtype, a, 1, &x);
        ora_decode(dtype, b, 1, &y);
        int64_t steps = llabs(order_of(dtype, a) - order_of(dtype, b));
        if (ulps > 0 && !isnan(x) && !isnan(y) && steps <= (int64_t)ulps)
            continue;
        report->ok = false;
        report->token = (int64_t)i;
        snprintf(report->text, NEAR_TEXT, "element %zu = %.9g: %.9g within %u steps of %s", i, x, y,
                 ulps, attnd_dtype_name(dtype));
        return false;
    }
    snprintf(report->text, NEAR_TEXT, "%zu elements within %u steps of %s", n, ulps,
             attnd_dtype_name(dtype));
    return true;
}
