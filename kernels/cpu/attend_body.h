/* attend_body.h: what decode and prefill do alike: rows in, keys found, softmax, values, rows out.
 *
 * Formula   o = Σ_j p_j v_j / l,  p_j = exp(s_j - m),  s_j = scale · q·k_j, capped, biased; j over
 *           the row's visible keys (attention.md §1, streamed as in §21.1)
 *
 * A pass is up to KER_TILE_ROWS rows over the keys of an item, tile by tile:
 *
 *            keys of one sequence, tiles at multiples of KER_TILE_KEYS
 *            ├── tile ──┼── tile ──┼── … ──┤
 *     rows   │ scores   │          │       │   decode_body.h, prefill_body.h: s = q·kᵀ
 *     of q   │ softmax  │          │       │   here, p of keys outside lo .. hi-1 of a row is never
 *            │ values   │          │       │   computed with: o += p·v runs over lo .. hi-1 only
 *            └──────────┴──────────┴───────┴──▶ output, or partial row
 *
 * Every SEGMENT_TILES tiles the running sum is folded into a total, so that a long context does not
 * lose its small weights against a large sum. A row's bits depend on its own keys and the item's
 * cut, never on the rows beside it.
 */
#ifndef ATTND_KERNELS_CPU_ATTEND_BODY_H
#define ATTND_KERNELS_CPU_ATTEND_BODY_H

#include "kernels/cpu/words.h"

enum {
    SEGMENT_TILES = 16,
    /* Rows and vectors of a block that stays in registers: LANES sums at most. */
    BLOCK_ROWS = 4,
    BLOCK_VECTORS = LANES == 16  ? 4
                    : LANES == 8 ? 2
                                 : 1,
};

/* One row of a pass. Keys count from the tile's first where it says so. */
typedef struct row_state {
    int32_t lo, hi;   /* keys of the sequence that it sees */
    int32_t from, to; /* the same within the tile; from = to: none */
    int64_t a;        /* its own key index */
    float m, total_m; /* -inf: nothing yet */
    double l, total_l;
    float slope; /* ALiBi */
} row_state;

typedef struct pass {
    const ker_problem *p;
    cpu_scratch s;
    int32_t seq, kv_head;
    int64_t first_row; /* of the item, in rows */
    int32_t n_rows;
    int32_t kv_first, kv_end;
    uint32_t group;
    uint32_t dp, dvp; /* widths rounded up to 16 */
    row_state row[KER_TILE_ROWS];
} pass;

/* Where the keys and values of a tile lie. Slots the item has no key for point to one that it has:
 * they are read and thrown away. */
typedef struct tile {
    int32_t first;    /* key of slot 0 */
    int32_t from, to; /* slots of the item's keys */
    const char *k[KER_TILE_KEYS], *v[KER_TILE_KEYS];
} tile;

/* ---- Rows in. ---------------------------------------------------------------------------------
 */

TARGET static void load_row(pass *x, const ker_plan *plan, const ker_item *item,
                            const char *workspace, int32_t r)
{
    const ker_problem *p = x->p;
    row_state *row = &x->row[r];
    int64_t i = item->row_first + (x->first_row + r) / x->group;
    uint32_t head = (uint32_t)x->kv_head * x->group + (uint32_t)((x->first_row + r) % x->group);
    int32_t q_len = p->batch.q_len[x->seq], kv_len = p->batch.kv_len[x->seq];
    int64_t token = p->batch.q_first[x->seq] + i;
    ker_mask_bounds(&p->mask, q_len, kv_len, (int32_t)i, token, &row->lo, &row->hi);
    row->a = (int64_t)kv_len - q_len + i;
    row->m = row->total_m = -INFINITY;
    row->l = row->total_l = 0;
    row->slope = p->bias.alibi_slopes ? p->bias.alibi_slopes[head] : 0;

    float *q = x->s.q + (size_t)r * x->dp;
    cpu_row_load(p->dtype, p->q.base + token * p->q.token_stride + head * p->q.head_stride,
                 p->head_dim, q);
    const float *angles = cpu_row_angles(plan, workspace, token);
    if (angles)
        cpu_row_rotate(&p->rope, angles, p->dtype, q);
    for (uint32_t d = 0; d < p->head_dim; d++)
        q[d] *= p->sm_scale;
    memset(q + p->head_dim, 0, (x->dp - p->head_dim) * sizeof *q);
    memset(x->s.acc + (size_t)r * x->dvp, 0, x->dvp * sizeof *x->s.acc);
}

/* ---- Keys found. ------------------------------------------------------------------------------
 */

TARGET static void locate_plane(const pass *x, const tile *t, int plane, const char *at[])
{
    const ker_problem *p = x->p;
    const ker_batch *batch = &p->batch;
    const char *head = p->kv.plane[plane] + x->kv_head * p->kv.head_stride[plane];
    int64_t step = p->kv.token_stride[plane], key = t->first + t->from;
    if (!batch->block_ids) {
        const char *from = head + (batch->kv_first[x->seq] + key) * step;
        for (int32_t j = t->from; j < t->to; j++, from += step)
            at[j] = from;
    } else {
        const int32_t *blocks = batch->block_ids + batch->block_first[x->seq];
        int shift = __builtin_ctz(p->kv.block_size);
        int64_t last = p->kv.block_size - 1;
        for (int32_t j = t->from; j < t->to;) {
            int64_t row = key & last;
            const char *from = head + blocks[key >> shift] * p->kv.block_stride + row * step;
            for (; row <= last && j < t->to; row++, j++, key++, from += step)
                at[j] = from;
        }
    }
    for (int32_t j = 0; j < t->from; j++)
        at[j] = at[t->from];
    for (int32_t j = t->to; j < KER_TILE_KEYS; j++)
        at[j] = at[t->to - 1];
}

/* The tile that holds key `first`, a multiple of the tile; false past the item's end. */
TARGET static bool locate(const pass *x, int64_t first, tile *t)
{
    if (first >= x->kv_end)
        return false;
    int64_t left = x->kv_end - first;
    t->first = (int32_t)first;
    t->from = x->kv_first > first ? (int32_t)(x->kv_first - first) : 0;
    t->to = left < KER_TILE_KEYS ? (int32_t)left : KER_TILE_KEYS;
    locate_plane(x, t, 0, t->k);
    locate_plane(x, t, 1, t->v);
    return true;
}

/* Asks for a row of the next tile while this one is worked on, a few rows at a time: in one burst
 * they hold up the loads of this one. */
WORD void fetch(const char *row, uint32_t bytes)
{
    for (uint32_t c = 0; c < bytes; c += 64)
        __builtin_prefetch(row + c, 0, 2);
}

/* Rows of dtype as fp32, [KER_TILE_KEYS][padded] with zeros behind the width; at[] then points
 * there. */
WORD void widen_as(attnd_dtype dtype, const char *at[], uint32_t width, uint32_t padded, float *to)
{
    uint32_t whole = width / LANES * LANES;
    for (int j = 0; j < KER_TILE_KEYS; j++) {
        float *row = to + (size_t)j * padded;
        for (uint32_t c = 0; c < whole; c += LANES)
            store_f32(row + c, load_as(dtype, at[j], c));
        if (whole < padded) {
            size_t size = dtype == ATTND_DTYPE_F32 ? 4 : 2;
            cpu_row_load(dtype, at[j] + whole * size, width - whole, row + whole);
            memset(row + width, 0, (padded - width) * sizeof *row);
        }
        at[j] = (const char *)row;
    }
}

TARGET static void widen(attnd_dtype dtype, const char *at[], uint32_t width, uint32_t padded,
                         float *to)
{
    if (dtype == ATTND_DTYPE_F32)
        widen_as(ATTND_DTYPE_F32, at, width, padded, to);
    else if (dtype == ATTND_DTYPE_BF16)
        widen_as(ATTND_DTYPE_BF16, at, width, padded, to);
    else
        widen_as(ATTND_DTYPE_F16, at, width, padded, to);
}

/* ---- Σ over rows: out[r][c] (+)= w[r][j] · row_j[c]. --------------------------------------------
 */

/* A block of n_rows × n_vectors sums in registers, over j in from .. to-1, in order of j: any
 * blocking gives the same bits. fresh: out is not read, the sum begins at 0. */
WORD void weigh_block(attnd_dtype dtype, const char *const *at, const float *w, size_t w_step,
                      int from, int to, float *out, size_t out_step, uint32_t c, const int n_rows,
                      const int n_vectors, const bool fresh)
{
    vf sum[BLOCK_ROWS][8];
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < n_vectors; v++)
            sum[r][v] = fresh ? splat(0) : load_f32(out + r * out_step + c + v * LANES);
    for (int j = from; j < to; j++) {
        vf x[8];
        for (int v = 0; v < n_vectors; v++)
            x[v] = load_as(dtype, at[j], c + (uint32_t)v * LANES);
        for (int r = 0; r < n_rows; r++) {
            vf p = splat(w[r * w_step + j]);
            for (int v = 0; v < n_vectors; v++)
                sum[r][v] += p * x[v];
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (int v = 0; v < n_vectors; v++)
            store_f32(out + r * out_step + c + v * LANES, sum[r][v]);
}

WORD void weigh_rows(attnd_dtype dtype, const char *const *at, const float *w, size_t w_step,
                     int from, int to, float *out, size_t out_step, uint32_t width,
                     const int n_rows, const bool fresh)
{
    const int wide = n_rows == BLOCK_ROWS ? BLOCK_VECTORS : LANES == 16 ? 8 : 4;
    uint32_t c = 0;
    for (; c + (uint32_t)wide * LANES <= width; c += (uint32_t)wide * LANES)
        weigh_block(dtype, at, w, w_step, from, to, out, out_step, c, n_rows, wide, fresh);
    for (; c < width; c += LANES)
        weigh_block(dtype, at, w, w_step, from, to, out, out_step, c, n_rows, 1, fresh);
}

/* ---- Softmax. ---------------------------------------------------------------------------------
 */

/* Cap and ALiBi of the scores at slots c .. c + LANES-1 of a tile that starts at key first. */
WORD vf shaped(const ker_bias *bias, const row_state *row, int32_t first, int c, vf s)
{
    if (bias->softcap > 0)
        s = tanh_of(s * (1 / bias->softcap)) * bias->softcap;
    if (bias->alibi_slopes)
        s += __builtin_convertvector(count_up((int32_t)(first + c - row->a)), vf) * row->slope;
    return s;
}

/* Whether a row that has no maximum yet has a NaN among its scores. */
TARGET static bool has_nan(const row_state *row, const float *score)
{
    for (int j = row->from; j < row->to; j++)
        if (isnan(score[j]))
            return true;
    return false;
}

/* Scores of slots from .. to-1 → p, m and l of the row moved on, its sum rescaled. */
TARGET static void soften(pass *x, row_state *row, const tile *t, float *score, float *acc)
{
    const ker_bias *bias = &x->p->bias;
    int begin = row->from / LANES * LANES;
    bool is_shaped = bias->softcap > 0 || bias->alibi_slopes;
    vf top = splat(-INFINITY);
    for (int c = begin; c < row->to; c += LANES) {
        vf s = load_f32(score + c);
        if (is_shaped)
            s = shaped(bias, row, t->first, c, s);
        if (c < row->from || c + LANES > row->to) {
            vi slot = count_up(c);
            s = choose((slot >= row->from) & (slot < row->to), s, splat(-INFINITY));
        }
        top = MAX_OF(s, top);
        store_f32(score + c, s);
    }
    float m = max_lanes(top);
    m = m > row->m ? m : row->m;
    /* Only -inf so far: (-inf) - (-inf) is NaN on a row that sees nothing. A NaN score finds its
     * own way into l and the sum, it only needs an m. */
    if (m == -INFINITY) {
        if (!has_nan(row, score)) {
            row->to = row->from;
            return;
        }
        m = 0;
    }
    vf sum = {0};
    for (int c = begin; c < row->to; c += LANES) {
        vf p = exp_down(load_f32(score + c) - m);
        store_f32(score + c, p);
        sum += p;
    }
    if (m != row->m && row->l != 0) {
        float shrink = expf(row->m - m);
        row->l *= shrink;
        for (uint32_t c = 0; c < x->dvp; c += LANES)
            store_f32(acc + c, load_f32(acc + c) * shrink);
    }
    row->m = m;
    row->l += sum_lanes(sum);
}

/* ---- Values. ----------------------------------------------------------------------------------
 */

WORD void weigh_values_as(attnd_dtype dtype, const pass *x, const tile *t, int32_t r, int from,
                          int to, const int n_rows)
{
    if (from < to)
        weigh_rows(dtype, t->v, x->s.score + (size_t)r * KER_TILE_KEYS, KER_TILE_KEYS, from, to,
                   x->s.acc + (size_t)r * x->dvp, x->dvp, x->dvp, n_rows, false);
}

/* n_rows rows from r on: what all of them see together, what each sees before and after alone. */
WORD void add_values_as(attnd_dtype dtype, const pass *x, const tile *t, int32_t r,
                        const int n_rows)
{
    const row_state *row = x->row + r;
    int from = row[0].from, to = row[0].to;
    for (int i = 1; i < n_rows; i++) {
        from = row[i].from > from ? row[i].from : from;
        to = row[i].to < to ? row[i].to : to;
    }
    bool together = n_rows > 1 && from < to;
    for (int i = 0; i < n_rows; i++)
        weigh_values_as(dtype, x, t, r + i, row[i].from, together ? from : row[i].to, 1);
    if (!together)
        return;
    weigh_values_as(dtype, x, t, r, from, to, n_rows);
    for (int i = 0; i < n_rows; i++)
        weigh_values_as(dtype, x, t, r + i, to, row[i].to, 1);
}

/* Calls name(args…, r, n) for all rows in blocks of 4, 2 and 1, n constant in each call. */
#define EACH_BLOCK(n_rows, call)                                                                   \
    do {                                                                                           \
        int32_t r = 0;                                                                             \
        for (; r + 4 <= (n_rows); r += 4)                                                          \
            call(r, 4);                                                                            \
        if (r + 2 <= (n_rows)) {                                                                   \
            call(r, 2);                                                                            \
            r += 2;                                                                                \
        }                                                                                          \
        if (r < (n_rows))                                                                          \
            call(r, 1);                                                                            \
    } while (0)

/* ---- Segments, rows out. ----------------------------------------------------------------------
 */

/* Adds the segment to the total and begins a new one. */
TARGET static void fold_row(const pass *x, row_state *row, int32_t r)
{
    float *acc = x->s.acc + (size_t)r * x->dvp, *total = x->s.total + (size_t)r * x->dvp;
    if (row->l == 0)
        return;
    if (row->total_l == 0) {
        memcpy(total, acc, x->dvp * sizeof *total);
        row->total_m = row->m;
        row->total_l = row->l;
    } else {
        float m = row->m > row->total_m ? row->m : row->total_m;
        float old = expf(row->total_m - m), new = expf(row->m - m);
        for (uint32_t c = 0; c < x->dvp; c += LANES)
            store_f32(total + c, load_f32(total + c) * old + load_f32(acc + c) * new);
        row->total_l = row->total_l * old + row->l * new;
        row->total_m = m;
    }
    memset(acc, 0, x->dvp * sizeof *acc);
    row->m = -INFINITY;
    row->l = 0;
}

TARGET static void finish_row(const pass *x, const ker_item *item, char *workspace, int32_t r)
{
    const ker_problem *p = x->p;
    const row_state *row = &x->row[r];
    const float *o = x->s.total + (size_t)r * x->dvp;
    int64_t r_item = x->first_row + r;
    if (item->partial < 0) {
        int64_t token = p->batch.q_first[x->seq] + item->row_first + r_item / x->group;
        uint32_t head = (uint32_t)x->kv_head * x->group + (uint32_t)(r_item % x->group);
        cpu_row_finish(p, token, head, row->total_m, row->total_l, o);
        return;
    }
    float *partial = (float *)(workspace + ker_angles_bytes(p)) +
                     (item->partial + r_item) * ker_partial_floats(p);
    partial[0] = row->total_m;
    partial[1] = (float)row->total_l;
    if (row->total_l != 0)
        memcpy(partial + KER_PARTIAL_O, o, p->head_dim_v * sizeof *o);
}

/* ---- An item. ---------------------------------------------------------------------------------
 */

/* What each row sees of the tile; false when none sees any. */
TARGET static bool clip_rows(pass *x, const tile *t)
{
    bool any = false;
    for (int32_t r = 0; r < x->n_rows; r++) {
        row_state *row = &x->row[r];
        int64_t from = (int64_t)row->lo - t->first, to = (int64_t)row->hi - t->first;
        from = from < 0 ? 0 : from;
        to = to > KER_TILE_KEYS ? KER_TILE_KEYS : to;
        row->from = to > from ? (int32_t)from : 0;
        row->to = to > from ? (int32_t)to : 0;
        any |= to > from;
    }
    return any;
}

/* One tile: decode or prefill. next is NULL behind the last one. */
typedef void tile_fn(pass *x, tile *t, const tile *next);

WORD void run_pass(pass *x, const ker_plan *plan, const ker_item *item, char *workspace,
                   tile_fn *run_tile)
{
    for (int32_t r = 0; r < x->n_rows; r++)
        load_row(x, plan, item, workspace, r);
    tile tiles[2];
    int64_t first = x->kv_first - x->kv_first % KER_TILE_KEYS;
    bool more = x->kv_first < x->kv_end && locate(x, first, &tiles[0]);
    for (int now = 0; more; now ^= 1, first += KER_TILE_KEYS) {
        tile *t = &tiles[now];
        more = locate(x, first + KER_TILE_KEYS, &tiles[now ^ 1]);
        if (clip_rows(x, t))
            run_tile(x, t, more ? &tiles[now ^ 1] : NULL);
        if (!more || first / KER_TILE_KEYS % SEGMENT_TILES == SEGMENT_TILES - 1)
            for (int32_t r = 0; r < x->n_rows; r++)
                fold_row(x, &x->row[r], r);
    }
    for (int32_t r = 0; r < x->n_rows; r++)
        finish_row(x, item, workspace, r);
}

WORD void run_item(ker_worker *worker, const ker_plan *plan, const ker_item *item, char *workspace,
                   tile_fn *run_tile)
{
    const ker_problem *p = &plan->problem;
    pass x = {
        .p = p,
        .s = worker->scratch,
        .seq = item->seq,
        .kv_head = item->kv_head,
        .kv_first = item->kv_first,
        .kv_end = item->kv_end,
        .group = p->n_heads / p->n_kv_heads,
        .dp = (p->head_dim + 15) / 16 * 16,
        .dvp = (p->head_dim_v + 15) / 16 * 16,
    };
    int64_t rows = (int64_t)item->n_rows * x.group;
    for (; x.first_row < rows; x.first_row += KER_TILE_ROWS) {
        int64_t left = rows - x.first_row;
        x.n_rows = left < KER_TILE_ROWS ? (int32_t)left : KER_TILE_ROWS;
        run_pass(&x, plan, item, workspace, run_tile);
    }
}

#endif
