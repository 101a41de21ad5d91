/* floor.c: bytes and operations that a problem cannot do without.
 *
 * Bounds are counted exactly; the kinds that are no bounds (bits, lists) count as if they let
 * every key of the bounds through.
 */
#include "kernels/registry.h"

/* Σ over i < n of clamp(first + i, 0, top). */
static double sum_clamped(int64_t first, int64_t n, int64_t top)
{
    int64_t zeros = first < 0 ? (-first < n ? -first : n) : 0;
    first += zeros;
    n -= zeros;
    int64_t rising = first < top ? (top - first < n ? top - first : n) : 0;
    return (double)rising * (double)first + (double)rising * (double)(rising - 1) / 2 +
           (double)(n - rising) * (double)top;
}

/* (row, visible key) pairs of sequence b. */
static double pairs_of(const ker_problem *p, uint32_t b)
{
    const ker_mask *mask = &p->mask;
    int64_t q_len = p->batch.q_len[b], kv_len = p->batch.kv_len[b], past = kv_len - q_len;
    if (!(mask->kinds & (KER_MASK_VARIABLE | KER_MASK_CHUNK))) {
        double ends = mask->kinds & KER_MASK_CAUSAL ? sum_clamped(past + 1, q_len, kv_len)
                                                    : (double)q_len * (double)kv_len;
        return mask->kinds & KER_MASK_WINDOW
                   ? ends - sum_clamped(past + 1 - mask->window, q_len, kv_len)
                   : ends;
    }
    double pairs = 0;
    for (int32_t i = 0; i < q_len; i++) {
        int32_t lo, hi;
        ker_mask_bounds(mask, (int32_t)q_len, (int32_t)kv_len, i, p->batch.q_first[b] + i, &lo,
                        &hi);
        pairs += hi > lo ? hi - lo : 0;
    }
    return pairs;
}

/* Keys between the lowest and the highest that a row of sequence b sees. */
static int64_t keys_of(const ker_problem *p, uint32_t b)
{
    int32_t q_len = p->batch.q_len[b], kv_len = p->batch.kv_len[b];
    int64_t token = p->batch.q_first[b];
    int32_t first = 0, end = 0, low, high;
    if (q_len == 0)
        return 0;
    if (!(p->mask.kinds & KER_MASK_VARIABLE)) {
        ker_mask_bounds(&p->mask, q_len, kv_len, 0, token, &first, &high);
        ker_mask_bounds(&p->mask, q_len, kv_len, q_len - 1, token + q_len - 1, &low, &end);
        return end > first ? end - first : 0;
    }
    first = kv_len;
    for (int32_t i = 0; i < q_len; i++) {
        ker_mask_bounds(&p->mask, q_len, kv_len, i, token + i, &low, &high);
        if (high <= low)
            continue;
        first = low < first ? low : first;
        end = high > end ? high : end;
    }
    return end > first ? end - first : 0;
}

ker_work ker_phase_work(const ker_problem *p, ker_phase phase)
{
    ker_work work = {0};
    uint32_t group = p->n_heads / p->n_kv_heads;
    uint32_t first = phase == KER_CONTEXT ? 0 : p->batch.n_contexts;
    uint32_t end = phase == KER_CONTEXT ? p->batch.n_contexts : p->batch.n_seqs;
    for (uint32_t b = first; b < end; b++) {
        double rows = (double)p->batch.q_len[b] * group;
        double pairs = pairs_of(p, b);
        double keys = (double)keys_of(p, b);
        work.tokens += p->batch.q_len[b];
        work.pairs += pairs;
        work.keys += keys;
        work.passes += rows <= KER_TILE_ROWS ? keys : pairs * group / KER_TILE_ROWS;
    }
    return work;
}

ker_floor ker_problem_floor(const ker_problem *p)
{
    ker_work context = ker_phase_work(p, KER_CONTEXT);
    ker_work generation = ker_phase_work(p, KER_GENERATION);
    double tokens = context.tokens + generation.tokens;
    double widths = (double)p->head_dim + p->head_dim_v;
    /* One latent row is both key and value. */
    double kv_width = p->kind == ATTND_LAYER_MLA ? p->head_dim : widths;
    double kv_row = p->n_kv_heads * kv_width * attnd_dtype_bits(p->kv.dtype) / 8;
    double new_row = p->n_kv_heads * kv_width * attnd_dtype_bits(p->dtype) / 8;
    ker_floor floor = {0};
    floor.bytes = (context.keys + generation.keys) * kv_row;
    floor.bytes +=
        tokens * p->n_heads * p->head_dim * attnd_dtype_bits(ker_rows_dtype(p, &p->q)) / 8;
    floor.bytes +=
        tokens * p->n_heads * p->head_dim_v * attnd_dtype_bits(ker_rows_dtype(p, &p->out)) / 8;
    if (p->append.k.base)
        floor.bytes += tokens * (new_row + kv_row);
    if (p->lse.base)
        floor.bytes += tokens * p->n_heads * 4;
    if (p->stats.base)
        floor.bytes += tokens * p->n_heads * 8;
    floor.flops = (context.pairs + generation.pairs) * p->n_heads * 2 * widths;
    return floor;
}
