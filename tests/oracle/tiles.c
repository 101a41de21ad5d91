/* tiles.c: attention tile by tile, as a kernel visits them. */
#include "tests/oracle/tiles.h"

#include <math.h>
#include <stdlib.h>

#include "tests/oracle/query.h"
#include "tests/oracle/tile.h"

static void scratch_close(ora_tile_scratch *s)
{
    for (int32_t r = 0; s->items && r < s->rows; r++)
        ora_items_close(&s->items[r]);
    free(s->items);
    ora_sage_fini(&s->sage);
    free(s->memory);
    free(s->cos_sin);
}

static double *cut(double **rest, size_t n)
{
    double *piece = *rest;
    *rest += n;
    return piece;
}

static attnd_status open_lists(ora_tile_scratch *s, const ora_problem *p, attnd_err *err)
{
    s->items = calloc((size_t)s->rows, sizeof *s->items);
    if (!s->items)
        return attnd_fail(err, ATTND_NO_ROOM, "rows = %d: no memory for their lists", s->rows);
    for (int32_t r = 0; r < s->rows; r++)
        TRY(ora_items_open(&s->items[r], p, err));
    s->room = s->items[0].room;
    return ATTND_OK;
}

static attnd_status scratch_open(ora_tile_scratch *s, const ora_batch *batch, const ora_problem *p,
                                 const ora_tiling *tiling, attnd_err *err)
{
    s->group = p->n_heads / p->n_kv_heads;
    s->n_splits = tiling->split_ends ? tiling->n_splits : 1;
    s->rows = 1;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        if (p->q_len[b] > s->rows)
            s->rows = p->q_len[b];
    if (tiling->rows < (uint32_t)s->rows)
        s->rows = (int32_t)tiling->rows;
    TRY(open_lists(s, p, err));
    TRY(ora_sage_init(&s->sage, batch, p, err));
    size_t D = p->head_dim, Dv = p->head_dim_v, lines = (size_t)s->rows * s->group;
    size_t row = (size_t)s->room + 4 + Dv + s->n_splits * (2 + Dv);
    s->memory = calloc(p->n_heads * D + D + Dv + lines * row, sizeof *s->memory);
    s->cos_sin = calloc(D, sizeof *s->cos_sin);
    if (!s->memory || !s->cos_sin)
        return attnd_fail(err, ATTND_NO_ROOM, "rows = %d: no memory for their tile", s->rows);
    double *rest = s->memory;
    s->q = cut(&rest, p->n_heads * D);
    s->k = cut(&rest, D);
    s->v = cut(&rest, Dv);
    s->scores = cut(&rest, lines * (size_t)s->room);
    s->m = cut(&rest, lines);
    s->l = cut(&rest, lines);
    s->x = cut(&rest, lines);
    s->top = cut(&rest, lines);
    s->o = cut(&rest, lines * Dv);
    s->part_m = cut(&rest, lines * s->n_splits);
    s->part_l = cut(&rest, lines * s->n_splits);
    s->part_o = cut(&rest, lines * s->n_splits * Dv);
    return ATTND_OK;
}

/* ---- A stream of tiles ---- */

/* Leaves the lines' (m, l, O) of split n in part_*. */
static void run_stream(ora_tile t, uint32_t n, int64_t from, int64_t to, ora_tile_scratch *s,
                       ora_tile_counts *counts)
{
    size_t Dv = t.p->head_dim_v;
    int64_t size = t.tiling->keys, first = from / size;
    int64_t end = from < to ? (to + size - 1) / size : first;
    for (int32_t r = 0; r < t.n_rows; r++)
        for (uint32_t hh = t.head; hh < t.end_head; hh++) {
            size_t line = (size_t)r * s->group + hh;
            s->m[line] = s->top[line] = -INFINITY;
            s->l[line] = 0;
            for (size_t d = 0; d < Dv; d++)
                s->o[line * Dv + d] = 0;
        }
    t.is_first = true;
    for (int64_t k = first; k < end; k++) {
        int64_t c = t.tiling->backwards ? end - 1 - (k - first) : k;
        t.from = c * size;
        t.to = (c + 1) * size < to ? (c + 1) * size : to;
        if (ora_tile_visit(&t, s, counts))
            t.is_first = false;
    }
    for (int32_t r = 0; r < t.n_rows; r++)
        for (uint32_t hh = t.head; hh < t.end_head; hh++) {
            size_t line = (size_t)r * s->group + hh, part = line * s->n_splits + n;
            s->part_m[part] = s->m[line];
            s->part_l[part] = s->l[line];
            for (size_t d = 0; d < Dv; d++)
                s->part_o[part * Dv + d] =
                    s->m[line] == -INFINITY ? 0 : s->o[line * Dv + d] / s->l[line];
        }
}

/* Every split of the tile's heads; the last goes on to the end of the longest list. */
static void run_splits(ora_tile t, ora_tile_scratch *s, ora_tile_counts *counts)
{
    int64_t end = 0, from = 0;
    for (int32_t r = 0; r < t.n_rows; r++) {
        const ora_items *items = &s->items[r];
        if (items->n > 0 && items->item[items->n - 1].place >= end)
            end = items->item[items->n - 1].place + 1;
    }
    for (uint32_t n = 0; n < s->n_splits; n++) {
        int64_t to = n + 1 < s->n_splits ? t.tiling->split_ends[n] : end;
        run_stream(t, n, from, to, s, counts);
        from = to;
    }
}

/* ---- The whole ---- */

static void finish(const ora_tile *t, int64_t token, int32_t r, ora_tile_scratch *s,
                   ora_result *out)
{
    const ora_problem *p = t->p;
    size_t Dv = p->head_dim_v, row = (size_t)token * p->n_heads + (size_t)t->g * s->group;
    double vmax = 0;
    for (int64_t n = 0; n < s->items[r].n; n++) {
        ora_item_load(p, &s->items[r].item[n], 1, t->b, t->g, s->v);
        ora_sage_v(&s->sage, t->g, s->v);
        for (size_t d = 0; d < Dv; d++)
            vmax = fmax(vmax, fabs(s->v[d]));
    }
    for (uint32_t hh = 0; hh < s->group; hh++) {
        size_t part = ((size_t)r * s->group + hh) * s->n_splits;
        double *o = out->out + (row + hh) * Dv, m, l;
        ora_merge(s->n_splits, s->part_m + part, s->part_l + part, s->part_o + part * Dv,
                  p->head_dim_v, &m, &l, o);
        if (p->bias.sinks)
            ora_apply_sink(m, l, p->bias.sinks[t->g * s->group + hh], o, p->head_dim_v);
        out->m[row + hh] = m;
        out->l[row + hh] = l;
        out->lse[row + hh] = m + log(l);
        out->n_visible[row + hh] = s->items[r].n;
        out->vmax[row + hh] = m == -INFINITY ? 0 : vmax;
    }
}

/* Rows first .. first+n_rows-1 of sequence b and kv head g. */
static attnd_status attend_tile(const ora_batch *batch, ora_tile t, int32_t first,
                                ora_tile_scratch *s, ora_result *out, ora_tile_counts *counts,
                                attnd_err *err)
{
    for (int32_t r = 0; r < t.n_rows; r++) {
        int32_t i = first + r;
        ora_q_load(batch, t.p, t.b, i, s->cos_sin, s->q);
        ora_sage_q(&s->sage, t.b, i, s->q);
        TRY(ora_items_find(batch, t.p, t.b, i, t.g, &s->items[r], err));
        TRY(ora_scores(batch, t.p, t.b, i, t.g, &s->items[r], &s->sage, s->q, s->k,
                       s->scores + (size_t)r * s->group * s->room, s->room, err));
    }
    uint32_t step = t.tiling->heads_apart ? 1 : s->group;
    for (t.head = 0; t.head < s->group; t.head += step) {
        t.end_head = t.head + step;
        run_splits(t, s, counts);
    }
    for (int32_t r = 0; r < t.n_rows; r++)
        finish(&t, batch->q_first[t.b] + first + r, r, s, out);
    return ATTND_OK;
}

static attnd_status attend_all(const ora_batch *batch, const ora_problem *p,
                               const ora_tiling *tiling, ora_tile_scratch *s, ora_result *out,
                               ora_tile_counts *counts, attnd_err *err)
{
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t first = 0; first < p->q_len[b]; first += s->rows)
            for (uint32_t g = 0; g < p->n_kv_heads; g++) {
                int32_t rest = p->q_len[b] - first;
                ora_tile t = {.p = p,
                              .tiling = tiling,
                              .b = b,
                              .g = g,
                              .n_rows = rest < s->rows ? rest : s->rows,
                              .lambda =
                                  p->kv_len[b] ? fmin(1, tiling->skip_factor / p->kv_len[b]) : 0};
                TRY(attend_tile(batch, t, first, s, out, counts, err));
            }
    return ATTND_OK;
}

static attnd_status check_tiling(const ora_tiling *tiling, attnd_err *err)
{
    if (tiling->rows == 0 || tiling->keys == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "tiling.%s = 0: at least 1",
                          tiling->rows ? "keys" : "rows");
    if (!(tiling->skip_factor >= 0) || !(tiling->lazy_tau >= 0))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "tiling.%s = %g: 0 or above",
                          tiling->skip_factor >= 0 ? "lazy_tau" : "skip_factor",
                          tiling->skip_factor >= 0 ? tiling->lazy_tau : tiling->skip_factor);
    if (!tiling->split_ends)
        return ATTND_OK;
    if (tiling->n_splits == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "tiling.n_splits = 0: at least 1");
    for (uint32_t n = 0; n + 1 < tiling->n_splits; n++)
        if (tiling->split_ends[n] % (int64_t)tiling->keys != 0 || tiling->split_ends[n] < 0 ||
            tiling->split_ends[n] > tiling->split_ends[n + 1])
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "tiling.split_ends[%u] = %d: a multiple of keys = %u, ascending", n,
                              tiling->split_ends[n], tiling->keys);
    return ATTND_OK;
}

attnd_status ora_attend_tiles(const ora_problem *p, const ora_tiling *tiling, ora_result *out,
                              ora_tile_counts *counts, attnd_err *err)
{
    *out = (ora_result){0};
    ora_tile_counts own = {.nearest = INFINITY};
    TRY(ora_q_check(p, err));
    TRY(check_tiling(tiling, err));
    ora_batch batch;
    ora_tile_scratch s = {0};
    attnd_status status = ora_batch_init(&batch, p, err);
    if (status == ATTND_OK)
        status = scratch_open(&s, &batch, p, tiling, err);
    if (status == ATTND_OK)
        status = ora_result_make(out, p, batch.n_tokens, err);
    if (status == ATTND_OK)
        status = attend_all(&batch, p, tiling, &s, out, &own, err);
    if (status != ATTND_OK)
        ora_result_fini(out);
    else if (counts)
        *counts = own;
    scratch_close(&s);
    ora_batch_fini(&batch);
    return status;
}
