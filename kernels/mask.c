/* mask.c: which keys a row sees, where every active kind is bounds (attention.md §6). */
#include "kernels/attention.h"

static int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* The lowest key of the row at key index a under window and chunk. */
static int64_t lowest_at(const ker_mask *mask, int64_t a)
{
    int64_t lo = 0;
    if (mask->kinds & KER_MASK_WINDOW && a - mask->window + 1 > lo)
        lo = a - mask->window + 1;
    if (mask->kinds & KER_MASK_CHUNK && a >= 0 && a - a % mask->chunk > lo)
        lo = a - a % mask->chunk;
    return lo;
}

int64_t ker_mask_lowest_key(const ker_mask *mask, int32_t q_len, int32_t kv_len)
{
    if (q_len == 0)
        return kv_len;
    ker_mask bounds = *mask;
    if (mask->kinds & KER_MASK_VARIABLE)
        bounds.kinds = 0;
    else if (mask->kinds & (KER_MASK_BYTES | KER_MASK_BITS))
        bounds.kinds &= ~(uint32_t)KER_MASK_CHUNK;
    return lowest_at(&bounds, (int64_t)kv_len - q_len);
}

void ker_mask_bounds(const ker_mask *mask, int32_t q_len, int32_t kv_len, int32_t i, int64_t token,
                     int32_t *lo, int32_t *hi)
{
    int64_t a = (int64_t)kv_len - q_len + i, first = 0, end = kv_len;
    if (mask->kinds & KER_MASK_VARIABLE) {
        first = mask->start[token];
        end = (int64_t)mask->end[token] + 1;
    } else {
        first = lowest_at(mask, a);
        if (mask->kinds & KER_MASK_CAUSAL)
            end = a + 1;
    }
    *lo = (int32_t)clamp(first, 0, kv_len);
    *hi = (int32_t)clamp(end, 0, kv_len);
}
