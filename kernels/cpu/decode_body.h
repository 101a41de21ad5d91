/* decode_body.h: few rows over paged K and V, each key read where it lies.
 *
 * Formula   as attend_body.h; s_j = Σ over lanes of products of LANES channels, then the lanes
 * Tiling    one item per (sequence, kv head, split); a block of 4 rows × LANES/4 keys (2 × LANES/2,
 *           1 × LANES) keeps LANES vector sums, reduced together by a transposing tree
 * Floor     bytes = Σ_b kv_len·Hkv·(D + Dv)·size of kv; flops = Σ_b kv_len·Hq·2(D + Dv)
 * Measured  16 × 2048, Hq 32, Hkv 8, D 128, 2 threads: f32 19.4 GB/s, 99 % of the read ceiling of
 *           the same run; f16 18.9 GB/s, 83 %         a shared Xeon with AVX-512, 2026-11-30
 *           weakest: keys that fit the last cache (1 × 4096, bf16: 39 %), where arithmetic decides
 * Serves    rows of kernels.def named decode_*; keys stay in place where a width is whole vectors
 *           and few rows share them, else a tile is widened to fp32 first
 */
#include "kernels/cpu/attend_body.h"

/* More rows than this share a tile: it pays to widen it once. */
enum { IN_PLACE_ROWS = 8 };

/* Scores of LANES / n_rows keys from slot j on for n_rows rows; width is whole vectors. */
WORD void dots(attnd_dtype dtype, const char *const *at, uint32_t width, const float *q, size_t dp,
               float *score, const int n_rows)
{
    const int n_keys = LANES / n_rows;
    vf sum[LANES] = {0};
    for (uint32_t c = 0; c < width; c += LANES) {
        vf x[BLOCK_ROWS];
        for (int r = 0; r < n_rows; r++)
            x[r] = load_f32(q + r * dp + c);
        for (int j = 0; j < n_keys; j++) {
            vf k = load_as(dtype, at[j], c);
            for (int r = 0; r < n_rows; r++)
                sum[r * n_keys + j] += x[r] * k;
        }
    }
    vf all = sum_each(sum);
    for (int r = 0; r < n_rows; r++)
        memcpy(score + r * KER_TILE_KEYS, (const float *)&all + r * n_keys,
               (size_t)n_keys * sizeof *score);
}

/* Scores of n_rows rows from r on, at least of the slots any of them sees. */
WORD void score_rows_as(attnd_dtype dtype, const pass *x, const tile *t, const tile *next,
                        int32_t r, const int n_rows)
{
    const int n_keys = LANES / n_rows;
    uint32_t size = attnd_dtype_bits(x->p->kv.dtype) / 8;
    int from = KER_TILE_KEYS, to = 0;
    for (int i = 0; i < n_rows; i++) {
        const row_state *row = &x->row[r + i];
        if (row->to <= row->from)
            continue;
        from = row->from < from ? row->from : from;
        to = row->to > to ? row->to : to;
    }
    for (int j = from / n_keys * n_keys; j < to; j += n_keys) {
        if (next && r == 0)
            for (int i = 0; i < n_keys; i++) {
                fetch(next->k[j + i], x->p->head_dim * size);
                fetch(next->v[j + i], x->p->head_dim_v * size);
            }
        dots(dtype, t->k + j, x->dp, x->s.q + (size_t)r * x->dp, x->dp,
             x->s.score + (size_t)r * KER_TILE_KEYS + j, n_rows);
    }
}

WORD void decode_tile_as(attnd_dtype dtype, pass *x, const tile *t, const tile *next)
{
#define SCORE(r, n) score_rows_as(dtype, x, t, next, r, n)
    EACH_BLOCK(x->n_rows, SCORE);
#undef SCORE
    for (int32_t r = 0; r < x->n_rows; r++)
        if (x->row[r].from < x->row[r].to)
            soften(x, &x->row[r], t, x->s.score + (size_t)r * KER_TILE_KEYS,
                   x->s.acc + (size_t)r * x->dvp);
#define ADD(r, n) add_values_as(dtype, x, t, r, n)
    EACH_BLOCK(x->n_rows, ADD);
#undef ADD
}

TARGET static void decode_tile(pass *x, tile *t, const tile *next)
{
    const ker_problem *p = x->p;
    attnd_dtype dtype = p->kv.dtype;
    bool whole = p->head_dim % 16 == 0 && p->head_dim_v % 16 == 0;
    if (!whole || (dtype != ATTND_DTYPE_F32 && x->n_rows > IN_PLACE_ROWS)) {
        widen(dtype, t->k, p->head_dim, x->dp, x->s.k);
        widen(dtype, t->v, p->head_dim_v, x->dvp, x->s.v);
        dtype = ATTND_DTYPE_F32;
    }
    if (dtype == ATTND_DTYPE_F32)
        decode_tile_as(ATTND_DTYPE_F32, x, t, next);
    else if (dtype == ATTND_DTYPE_BF16)
        decode_tile_as(ATTND_DTYPE_BF16, x, t, next);
    else
        decode_tile_as(ATTND_DTYPE_F16, x, t, next);
}

TARGET static void decode_item(ker_worker *worker, const ker_plan *plan, const ker_item *item,
                               char *workspace)
{
    run_item(worker, plan, item, workspace, decode_tile);
}
