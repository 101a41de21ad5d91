/* prefill_body.h: many rows over paged K and V; a tile of keys is transposed once for all of them.
 *
 * Formula   as attend_body.h; s_j = Σ_d q_d k_jd in order of d
 * Tiling    one item per (sequence, kv head, KER_TILE_ROWS rows, split); both products are blocks
 *           of 4 rows × BLOCK_VECTORS vectors in registers: scores over d from kᵀ, output over j
 *           from v
 * Floor     flops = Σ_rows visible keys·Hq·2(D + Dv); bytes matter below some 16 rows
 * Measured  2048 causal, Hq 32, Hkv 8, D 128, 2 threads: bf16 191 GFLOP/s, f32 187 GFLOP/s
 *           a shared Xeon with AVX-512, 2026-11-30
 * Serves    rows of kernels.def named prefill_*
 */
#include "kernels/cpu/attend_body.h"

/* k [KER_TILE_KEYS][dp] → kt [dp][KER_TILE_KEYS]; dp is a multiple of 16. */
TARGET static void transpose_keys(const float *k, uint32_t dp, float *kt)
{
    for (uint32_t c = 0; c < dp; c += LANES)
        for (int j = 0; j < KER_TILE_KEYS; j += LANES) {
            vf x[LANES];
            for (int i = 0; i < LANES; i++)
                x[i] = load_f32(k + (size_t)(j + i) * dp + c);
            transpose(x);
            for (int i = 0; i < LANES; i++)
                store_f32(kt + (size_t)(c + (uint32_t)i) * KER_TILE_KEYS + j, x[i]);
        }
}

/* Scores of n_rows rows from r on, of all slots, unless none of them sees any. */
WORD void score_all(const pass *x, const char *const *channels, int32_t r, const int n_rows)
{
    bool seen = false;
    for (int i = 0; i < n_rows; i++)
        seen |= x->row[r + i].from < x->row[r + i].to;
    if (seen)
        weigh_rows(ATTND_DTYPE_F32, channels, x->s.q + (size_t)r * x->dp, x->dp, 0, (int)x->dp,
                   x->s.score + (size_t)r * KER_TILE_KEYS, KER_TILE_KEYS, KER_TILE_KEYS, n_rows,
                   true);
}

TARGET static void prefill_tile(pass *x, tile *t, const tile *next)
{
    const ker_problem *p = x->p;
    const char *channels[KER_MAX_DIM];
    widen(p->kv.dtype, t->k, p->head_dim, x->dp, x->s.k);
    widen(p->kv.dtype, t->v, p->head_dim_v, x->dvp, x->s.v);
    transpose_keys(x->s.k, x->dp, x->s.kt);
    for (uint32_t c = 0; c < x->dp; c++)
        channels[c] = (const char *)(x->s.kt + (size_t)c * KER_TILE_KEYS);
#define SCORE(r, n) score_all(x, channels, r, n)
    EACH_BLOCK(x->n_rows, SCORE);
#undef SCORE
    for (int32_t r = 0; r < x->n_rows; r++)
        if (x->row[r].from < x->row[r].to)
            soften(x, &x->row[r], t, x->s.score + (size_t)r * KER_TILE_KEYS,
                   x->s.acc + (size_t)r * x->dvp);
#define ADD(r, n) add_values_as(ATTND_DTYPE_F32, x, t, r, n)
    EACH_BLOCK(x->n_rows, ADD);
#undef ADD
}

TARGET static void prefill_item(ker_worker *worker, const ker_plan *plan, const ker_item *item,
                                char *workspace)
{
    run_item(worker, plan, item, workspace, prefill_tile);
}
