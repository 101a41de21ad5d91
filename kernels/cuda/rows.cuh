/* rows.cuh: one row of q, of the keys, of the outputs, as every kernel of the backend reads and
 * writes it. Letters are those of attention.md.
 */
#ifndef ATTND_KERNELS_CUDA_ROWS_CUH
#define ATTND_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/mask_bounds.h"

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* Element i of a row of floats. */
static __device__ __forceinline__ float load_float(attnd_dtype dtype, const char *row, uint32_t i)
{
    if (dtype == ATTND_DTYPE_F32)
        return ((const float *)row)[i];
    uint32_t bits = ((const uint16_t *)row)[i];
    if (dtype == ATTND_DTYPE_BF16)
        return __uint_as_float(bits << 16);
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)bits));
    return x;
}

static __device__ __forceinline__ uint16_t to_bf16(float x)
{
    uint16_t bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

static __device__ __forceinline__ uint16_t to_f16(float x)
{
    uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

/* Rounds once. */
static __device__ __forceinline__ void store_float(attnd_dtype dtype, char *row, uint32_t i, float x)
{
    if (dtype == ATTND_DTYPE_F32)
        ((float *)row)[i] = x;
    else
        ((uint16_t *)row)[i] = dtype == ATTND_DTYPE_BF16 ? to_bf16(x) : to_f16(x);
}

/* RN of x. On the way to 16 bits the float is the odd one of x's two neighbours: the nearest would
 * make a tie of what is none, and x would be rounded twice. */
static __device__ __forceinline__ float round_to(attnd_dtype dtype, double x)
{
    if (dtype == ATTND_DTYPE_F32)
        return (float)x;
    float f = __double2float_rz(x);
    if (f != x)
        f = __uint_as_float(__float_as_uint(f) | 1);
    if (dtype == ATTND_DTYPE_BF16)
        return __uint_as_float((uint32_t)to_bf16(f) << 16);
    uint16_t bits = to_f16(f);
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
}

/* Element d of a row after rotation by cos_sin [r/2][2] (NULL: none), rounded to the activation
 * type where it was turned. */
static __device__ __forceinline__ float load_rotated(const ker_problem &p, const char *row,
                                                     const float *cos_sin, uint32_t d)
{
    float x = load_float(p.dtype, row, d);
    if (!cos_sin || d >= p.rope.dim)
        return x;
    uint32_t half = p.rope.dim / 2, n, other;
    bool first;
    if (p.rope.pairing == ATTND_ROPE_NEOX) {
        first = d < half;
        n = first ? d : d - half;
        other = first ? d + half : n;
    } else {
        first = d % 2 == 0;
        n = d / 2;
        other = d ^ 1;
    }
    double y = load_float(p.dtype, row, other), c = cos_sin[2 * n], s = cos_sin[2 * n + 1];
    return round_to(p.dtype, first ? x * c - y * s : x * c + y * s);
}

static __device__ __forceinline__ const float *angles_of(const cuda_problem &c, int64_t token)
{
    return c.angles ? c.angles + token * c.p.rope.dim : NULL;
}

/* Row r of an item: token head fastest, and the keys of the item that it sees. */
struct item_row {
    int64_t token;
    int32_t i; /* in its sequence */
    uint32_t head;
    int32_t lo, hi; /* hi ≤ lo: none */
};

static __device__ __forceinline__ item_row row_of(const cuda_problem &c, const ker_item &item,
                                                  int32_t r)
{
    item_row row;
    row.i = item.row_first + r / (int32_t)c.group;
    row.head = item.kv_head * c.group + r % c.group;
    row.token = c.p.batch.q_first[item.seq] + row.i;
    ker_bounds_of(&c.p.mask, c.p.batch.q_len[item.seq], c.p.batch.kv_len[item.seq], row.i,
                  row.token, &row.lo, &row.hi);
    row.lo = max(row.lo, item.kv_first);
    row.hi = min(row.hi, item.kv_end);
    return row;
}

static __device__ __forceinline__ const char *q_of(const cuda_problem &c, const item_row &row)
{
    return c.p.q.base + row.token * c.p.q.token_stride + row.head * c.p.q.head_stride;
}

/* Byte offset of key j of a sequence in plane p, kv head included. Blocks are powers of two. */
static __device__ __forceinline__ int64_t key_offset(const ker_problem &p, int32_t seq,
                                                     int32_t kv_head, int32_t j, int plane)
{
    int64_t head = kv_head * p.kv.head_stride[plane];
    if (!p.batch.block_ids)
        return head + (p.batch.kv_first[seq] + j) * p.kv.token_stride[plane];
    uint32_t shift = 31 - __clz(p.kv.block_size);
    int64_t block = p.batch.block_ids[p.batch.block_first[seq] + (j >> shift)];
    return head + block * p.kv.block_stride +
           (j & (p.kv.block_size - 1)) * p.kv.token_stride[plane];
}

/* s_j of attention.md §1 from q·k; distance is j - a. */
static __device__ __forceinline__ float score_of(const ker_problem &p, float dot, uint32_t head,
                                                 int32_t distance)
{
    float s = dot * p.sm_scale;
    if (p.bias.softcap > 0)
        s = p.bias.softcap * tanhf(s / p.bias.softcap);
    if (p.bias.alibi_slopes)
        s += p.bias.alibi_slopes[head] * (float)distance;
    return s;
}

/* What O is multiplied with: 1 / (l + sink), 0 for a row that saw nothing. */
static __device__ __forceinline__ float normaliser(const ker_problem &p, uint32_t head, float m,
                                                   float l)
{
    if (l == 0)
        return 0;
    float z = l;
    if (p.bias.sinks)
        z += expf(p.bias.sinks[head] - m);
    return 1 / z;
}

/* lse and stats of a row, by one thread. */
static __device__ __forceinline__ void store_statistics(const ker_problem &p, int64_t token,
                                                        uint32_t head, float m, float l)
{
    bool empty = l == 0;
    if (p.lse.base)
        *(float *)(p.lse.base + token * p.lse.token_stride + head * p.lse.head_stride) =
            empty ? -INFINITY : m + logf(l);
    if (p.stats.base) {
        float *at =
            (float *)(p.stats.base + token * p.stats.token_stride + head * p.stats.head_stride);
        at[0] = empty ? -INFINITY : m;
        at[1] = l;
    }
}

static __device__ __forceinline__ attnd_dtype out_dtype(const ker_problem &p)
{
    return p.out.dtype == ATTND_DTYPE_NONE ? p.dtype : p.out.dtype;
}

static __device__ __forceinline__ char *out_of(const ker_problem &p, int64_t token, uint32_t head)
{
    return p.out.base + token * p.out.token_stride + head * p.out.head_stride;
}

static __device__ __forceinline__ float *partial_of(const cuda_problem &c, int64_t row)
{
    return c.partials + row * c.partial_floats;
}

static __device__ __forceinline__ float warp_sum(float x)
{
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

#endif
