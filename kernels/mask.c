/* mask.c: which keys a row sees, where every active kind is bounds (attention.md §6). */
#include "kernels/mask_bounds.h"

int64_t ker_mask_lowest_key(const ker_mask *mask, int32_t q_len, int32_t kv_len)
{
    if (q_len == 0)
        return kv_len;
    ker_mask bounds = *mask;
    if (mask->kinds & KER_MASK_VARIABLE)
        bounds.kinds = 0;
    else if (mask->kinds & (KER_MASK_BYTES | KER_MASK_BITS))
        bounds.kinds &= ~(uint32_t)KER_MASK_CHUNK;
    return ker_lowest_at(&bounds, (int64_t)kv_len - q_len);
}

void ker_mask_bounds(const ker_mask *mask, int32_t q_len, int32_t kv_len, int32_t i, int64_t token,
                     int32_t *lo, int32_t *hi)
{
    ker_bounds_of(mask, q_len, kv_len, i, token, lo, hi);
}
