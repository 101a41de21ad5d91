/* mask_bounds.h: the arithmetic of mask.c, for both sides of a GPU. Private to kernels/. */
#ifndef ATTND_KERNELS_MASK_BOUNDS_H
#define ATTND_KERNELS_MASK_BOUNDS_H

#include "kernels/attention.h"

#ifdef __CUDACC__
#define KER_BOTH_SIDES __host__ __device__
#else
#define KER_BOTH_SIDES
#endif

static inline KER_BOTH_SIDES int64_t ker_clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* The lowest key of the row at key index a under window and chunk. */
static inline KER_BOTH_SIDES int64_t ker_lowest_at(const ker_mask *mask, int64_t a)
{
    int64_t lo = 0;
    if (mask->kinds & KER_MASK_WINDOW && a - mask->window + 1 > lo)
        lo = a - mask->window + 1;
    if (mask->kinds & KER_MASK_CHUNK && a >= 0 && a - a % mask->chunk > lo)
        lo = a - a % mask->chunk;
    return lo;
}

/* ker_mask_bounds. */
static inline KER_BOTH_SIDES void ker_bounds_of(const ker_mask *mask, int32_t q_len, int32_t kv_len,
                                                int32_t i, int64_t token, int32_t *lo, int32_t *hi)
{
    int64_t a = (int64_t)kv_len - q_len + i, first = 0, end = kv_len;
    if (mask->kinds & KER_MASK_VARIABLE) {
        first = mask->start[token];
        end = (int64_t)mask->end[token] + 1;
    } else {
        first = ker_lowest_at(mask, a);
        if (mask->kinds & KER_MASK_CAUSAL)
            end = a + 1;
    }
    *lo = (int32_t)ker_clamp(first, 0, kv_len);
    *hi = (int32_t)ker_clamp(end, 0, kv_len);
}

#endif
