/* case_judge.c: what a call wrote against the evaluator and against a case's own numbers. */
#include "tests/oracle/case_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case_json.h"
#include "tests/oracle/case_tensor.h"
#include "tests/oracle/codec.h"

/* Digits a case gives of a number: the evaluator need not agree further. */
static const double DIGITS = 2e-6;

static ora_rows rows_of(const ora_bytes *b, uint32_t layer)
{
    int64_t element = attnd_dtype_bits(b->dtype) / 8;
    return (ora_rows){.base = b->packed + (int64_t)layer * b->rows * b->heads * b->width * element,
                      .token_stride = (int64_t)b->heads * b->width * element,
                      .head_stride = (int64_t)b->width * element,
                      .dtype = b->dtype};
}

/* A case's numbers for one layer of a tensor like b. */
static attnd_status given_values(const ora_judged *j, const ora_case_tensor *t, const ora_bytes *b,
                                 const char *field, double **out, attnd_err *err)
{
    ora_want want = {.field = field,
                     .dtype = b->dtype,
                     .rows = b->rows,
                     .n_layers = b->n_layers,
                     .heads = b->heads,
                     .width = b->width};
    TRY(ora_tensor_values(j->arena, t, &want, out, err));
    *out += (size_t)j->layer * (size_t)b->rows * b->heads * b->width;
    return ATTND_OK;
}

static bool is_off(double got, double want, double within, double relative)
{
    if (got == want || (isnan(got) && isnan(want)))
        return false;
    double off = fabs(got - want);
    return !(off <= within + relative * fabs(want)) || isinf(want);
}

static attnd_status compare_values(const char *what, const double *got, const double *want,
                                   size_t n, size_t row, double within, double relative,
                                   attnd_reason reason, attnd_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (is_off(got[i], want[i], within, relative))
            return attnd_fail(err, reason, "%s[row %zu][%zu] = %.9g: %.9g within %.3g", what,
                              i / row, i % row, got[i], want[i], within + relative * fabs(want[i]));
    return ATTND_OK;
}

/* The evaluator must say what the case says. */
static attnd_status check_oracle(const ora_judged *j, attnd_err *err)
{
    const ora_case_expect *e = j->expect;
    const ora_result *r = j->want;
    size_t heads = r->n_heads, rows = (size_t)r->n_tokens * heads;
    double *given;
    if (e->out.given) {
        bool is_wide = e->out.within > 0 || e->out.relative > 0;
        TRY(given_values(j, &e->out, j->out, "expect.out", &given, err));
        TRY(compare_values("the evaluator's out", r->out, given, rows * r->head_dim_v,
                           heads * r->head_dim_v, is_wide ? e->out.within : DIGITS,
                           is_wide ? e->out.relative : DIGITS, ATTND_BAD_CONFIG, err));
    }
    if (e->lse.given && j->lse->given) {
        bool is_wide = e->lse.within > 0 || e->lse.relative > 0;
        TRY(given_values(j, &e->lse, j->lse, "expect.lse", &given, err));
        TRY(compare_values("the evaluator's lse", r->lse, given, rows, heads,
                           is_wide ? e->lse.within : DIGITS, is_wide ? e->lse.relative : DIGITS,
                           ATTND_BAD_CONFIG, err));
    }
    return ATTND_OK;
}

/* The case's numbers as if the evaluator had said them. */
static attnd_status given_result(const ora_judged *j, ora_result *r, attnd_err *err)
{
    const ora_case_expect *e = j->expect;
    size_t rows = (size_t)j->out->rows * j->out->heads, width = j->out->width;
    double *values;
    *r = (ora_result){
        .n_tokens = j->out->rows, .n_heads = j->out->heads, .head_dim_v = j->out->width};
    r->memory = calloc(rows * (width + 4) + 1, sizeof *r->memory);
    r->n_visible = calloc(rows + 1, sizeof *r->n_visible);
    if (!r->memory || !r->n_visible)
        return attnd_fail(err, ATTND_NO_ROOM, "expect: no memory");
    r->out = r->memory;
    r->lse = r->out + rows * width;
    r->m = r->lse + rows;
    r->l = r->m + rows;
    r->vmax = r->l + rows;
    if (e->out.given) {
        TRY(given_values(j, &e->out, j->out, "expect.out", &values, err));
        memcpy(r->out, values, rows * width * sizeof *values);
    }
    if (e->lse.given && j->lse->given) {
        TRY(given_values(j, &e->lse, j->lse, "expect.lse", &values, err));
        memcpy(r->lse, values, rows * sizeof *values);
    }
    for (size_t row = 0; row < rows; row++) {
        r->n_visible[row] = 2;
        for (size_t d = 0; d < width; d++)
            r->vmax[row] = fmax(r->vmax[row], fabs(r->out[row * width + d]));
    }
    return ATTND_OK;
}

static void raise(double *worst, double value)
{
    if (value > *worst)
        *worst = value;
}

static attnd_status check_near(const ora_judged *j, const ora_result *want, bool out, bool lse,
                               attnd_err *err)
{
    near_report report;
    if (out && j->out->given) {
        ora_rows rows = rows_of(j->out, j->layer);
        bool ok = near_out(&rows, want, j->path, j->widen, j->sinks, &report);
        raise(j->worst_out, report.times);
        if (!ok)
            return attnd_fail(err, ATTND_BROKEN, "%s", report.text);
    }
    if (lse && j->lse->given) {
        ora_rows rows = rows_of(j->lse, j->layer);
        bool ok = near_lse(&rows, want, j->backend, &report);
        raise(j->worst_lse, report.times);
        if (!ok)
            return attnd_fail(err, ATTND_BROKEN, "%s", report.text);
    }
    if (lse && j->stats->given) {
        ora_rows rows = rows_of(j->stats, j->layer);
        bool ok = near_stats(&rows, want, j->backend, &report);
        raise(j->worst_lse, report.times);
        if (!ok)
            return attnd_fail(err, ATTND_BROKEN, "%s", report.text);
    }
    return ATTND_OK;
}

/* Numbers that come with a distance of their own. */
static attnd_status check_within(const ora_judged *j, const ora_case_tensor *t, const ora_bytes *b,
                                 const char *what, attnd_err *err)
{
    double *given;
    size_t n = (size_t)b->rows * b->heads * b->width;
    double *got = ora_arena_take(j->arena, n + 1, sizeof *got);
    if (!got)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", what);
    TRY(given_values(j, t, b, what, &given, err));
    ora_rows rows = rows_of(b, j->layer);
    ora_decode(b->dtype, rows.base, n, got);
    return compare_values(what, got, given, n, (size_t)b->heads * b->width, t->within, t->relative,
                          ATTND_BROKEN, err);
}

static attnd_status check_given(const ora_judged *j, attnd_err *err)
{
    const ora_case_expect *e = j->expect;
    bool out_gate = e->out.given, lse_gate = e->lse.given;
    ora_result r;
    if (e->out.given && (e->out.within > 0 || e->out.relative > 0)) {
        out_gate = false;
        TRY(check_within(j, &e->out, j->out, "out", err));
    }
    if (e->lse.given && j->lse->given && (e->lse.within > 0 || e->lse.relative > 0)) {
        lse_gate = false;
        TRY(check_within(j, &e->lse, j->lse, "lse", err));
    }
    attnd_status status = given_result(j, &r, err);
    if (status == ATTND_OK)
        status = check_near(j, &r, out_gate, lse_gate, err);
    ora_result_fini(&r);
    return status;
}

attnd_status ora_judge(const ora_judged *j, attnd_err *err)
{
    if (j->expect->stats.given && j->stats->given)
        TRY(check_within(j, &j->expect->stats, j->stats, "stats", err));
    if (!j->want)
        return check_given(j, err);
    TRY(check_oracle(j, err));
    return check_near(j, j->want, true, true, err);
}

/* ---- Results as bytes -------------------------------------------------------------------------
 */

void ora_judge_write(const ora_result *result, uint32_t layer, ora_bytes *out, ora_bytes *lse,
                     ora_bytes *stats)
{
    size_t n = (size_t)result->n_tokens * result->n_heads;
    if (out->given)
        ora_encode(out->dtype, result->out, n * result->head_dim_v,
                   (char *)rows_of(out, layer).base);
    if (lse->given)
        ora_encode(ATTND_DTYPE_F32, result->lse, n, (char *)rows_of(lse, layer).base);
    for (size_t row = 0; stats->given && row < n; row++) {
        double pair[2] = {result->m[row], result->l[row]};
        ora_encode(ATTND_DTYPE_F32, pair, 2, (char *)rows_of(stats, layer).base + 8 * row);
    }
}

/* (m, l) of row and part. */
static void weight_of(const ora_merge_part *part, size_t row, double *m, double *l)
{
    double pair[2];
    *l = 1;
    if (part->lse.given) {
        ora_decode(ATTND_DTYPE_F32, part->lse.packed + 4 * row, 1, m);
        return;
    }
    ora_decode(ATTND_DTYPE_F32, part->stats.packed + 8 * row, 2, pair);
    *m = pair[0];
    *l = pair[1];
}

static void merge_row(const ora_merge_call *call, size_t row, double *m, double *l, double *o,
                      ora_result *out)
{
    size_t width = out->head_dim_v;
    for (size_t part = 0; part < call->n_parts; part++) {
        const ora_bytes *from = &call->parts[part].out;
        weight_of(&call->parts[part], row, &m[part], &l[part]);
        ora_decode(from->dtype, from->packed + row * width * attnd_dtype_bits(from->dtype) / 8,
                   width, o + part * width);
        if (m[part] == -INFINITY || l[part] == 0)
            continue;
        for (size_t d = 0; d < width; d++)
            out->vmax[row] = fmax(out->vmax[row], fabs(o[part * width + d]));
    }
    ora_merge((uint32_t)call->n_parts, m, l, o, out->head_dim_v, &out->m[row], &out->l[row],
              out->out + row * width);
    out->lse[row] = out->m[row] + log(out->l[row]);
    out->n_visible[row] = 2;
}

attnd_status ora_judge_merge(const ora_merge_call *call, ora_result *out, attnd_err *err)
{
    const ora_bytes *first = &call->parts[0].out;
    size_t rows = (size_t)first->rows * first->heads, width = first->width, n = call->n_parts;
    *out =
        (ora_result){.n_tokens = first->rows, .n_heads = first->heads, .head_dim_v = first->width};
    out->memory = calloc(rows * (width + 4) + 1, sizeof *out->memory);
    out->n_visible = calloc(rows + 1, sizeof *out->n_visible);
    double *scratch = calloc(n * (2 + width) + 1, sizeof *scratch);
    if (!out->memory || !out->n_visible || !scratch) {
        free(scratch);
        ora_result_fini(out);
        return attnd_fail(err, ATTND_NO_ROOM, "partials: no memory");
    }
    out->out = out->memory;
    out->lse = out->out + rows * width;
    out->m = out->lse + rows;
    out->l = out->m + rows;
    out->vmax = out->l + rows;
    for (size_t row = 0; row < rows; row++)
        merge_row(call, row, scratch, scratch + n, scratch + 2 * n, out);
    free(scratch);
    return ATTND_OK;
}

/* ---- Calls against calls ----------------------------------------------------------------------
 */

static attnd_status compare_row(const ora_case_same *same, const ora_bytes *got,
                                const ora_bytes *of, int64_t row, int64_t of_row, const char *what,
                                attnd_err *err)
{
    size_t width = (size_t)got->heads * got->width, size = attnd_dtype_bits(got->dtype) / 8;
    const char *a = got->packed + (size_t)row * width * size,
               *b = of->packed + (size_t)of_row * width * (attnd_dtype_bits(of->dtype) / 8);
    for (size_t i = 0; i < width; i++) {
        double x, y;
        ora_decode(got->dtype, a + i * size, 1, &x);
        ora_decode(of->dtype, b + i * (attnd_dtype_bits(of->dtype) / 8), 1, &y);
        bool equal = same->within > 0
                         ? !is_off(x, y, same->within, 0)
                         : got->dtype == of->dtype && memcmp(a + i * size, b + i * size, size) == 0;
        if (!equal)
            return attnd_fail(err, ATTND_BROKEN,
                              "%s[row %lld][%zu] = %.9g: %.9g as in row %lld of %s", what,
                              (long long)row, i, x, y, (long long)of_row, same->step);
    }
    return ATTND_OK;
}

attnd_status ora_judge_same(const ora_case_same *same, const ora_bytes *got, const ora_bytes *of,
                            const char *what, attnd_err *err)
{
    int64_t n_got = got->rows * got->n_layers, n_of = of->rows * of->n_layers;
    size_t n = same->rows.given ? same->rows.n : same->of.given ? same->of.n : (size_t)n_got;
    if (!got->given && !of->given)
        return ATTND_OK;
    if (got->given != of->given || got->heads != of->heads || got->width != of->width ||
        (same->rows.given && same->of.given && same->rows.n != same->of.n))
        return attnd_fail(err, ATTND_BAD_CONFIG, "same_as: %s of %s has another shape", what,
                          same->step);
    for (size_t i = 0; i < n; i++) {
        int64_t row = same->rows.given ? same->rows.values[i] : (int64_t)i;
        int64_t of_row = same->of.given ? same->of.values[i] : row;
        if (row < 0 || row >= n_got || of_row < 0 || of_row >= n_of)
            return attnd_fail(err, ATTND_BAD_CONFIG, "same_as: row %lld, row %lld of %s",
                              (long long)row, (long long)of_row, same->step);
        TRY(compare_row(same, got, of, row, of_row, what, err));
    }
    return ATTND_OK;
}
