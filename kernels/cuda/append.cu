/* append.cu: new keys and values into the pool (attention.md §4, §5).
 *
 * Formula   K[slot] ← rope(k), V[slot] ← v; angles, cosine and sine in double, rounded once to fp32
 * Tiling    a warp a row: one plane, kv head and token
 * Floor     bytes = Σ tokens·Hkv·(D+Dv)·(activation + pool bytes)
 * Serves    every float type, every width
 */
#include "kernels/cuda/rows.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

/* The sequence of a packed token: the last that starts at or before it and is not empty. */
static __device__ int32_t seq_of(const ker_batch &batch, int64_t token)
{
    uint32_t low = 0, high = batch.n_seqs;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (batch.q_first[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    while (token >= batch.q_first[low] + batch.q_len[low])
        low++;
    return (int32_t)low;
}

static __global__ void angles_kernel(const __grid_constant__ cuda_problem c, float *angles)
{
    const ker_problem &p = c.p;
    const ker_batch &batch = p.batch;
    uint32_t half = p.rope.dim / 2;
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= batch.n_tokens * half)
        return;
    int64_t token = at / half;
    uint32_t n = at % half;
    int32_t seq = seq_of(batch, token);
    int64_t position = batch.positions ? batch.positions[token]
                                       : (int64_t)batch.kv_len[seq] - batch.q_len[seq] + token -
                                             batch.q_first[seq];
    if (batch.rope_delta)
        position += batch.rope_delta[seq];
    double s, co;
    sincos((double)position * p.rope.freq[n], &s, &co);
    angles[2 * at] = (float)(co * p.rope.amplitude);
    angles[2 * at + 1] = (float)(s * p.rope.amplitude);
}

/* block·T + row of a new token, or -1. */
static __device__ int64_t slot_of(const ker_problem &p, int64_t token)
{
    const ker_batch &batch = p.batch;
    if (p.append.slots)
        return p.append.slots[token];
    int32_t seq = seq_of(batch, token);
    int64_t key = (int64_t)batch.kv_len[seq] - batch.q_len[seq] + token - batch.q_first[seq];
    int64_t block = batch.block_ids[batch.block_first[seq] + key / p.kv.block_size];
    return block * p.kv.block_size + key % p.kv.block_size;
}

static __global__ void append_kernel(const __grid_constant__ cuda_problem c)
{
    const ker_problem &p = c.p;
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
    if (row >= p.batch.n_tokens * p.n_kv_heads * 2)
        return;
    int plane = row % 2;
    uint32_t g = row / 2 % p.n_kv_heads;
    int64_t token = row / 2 / p.n_kv_heads, slot = slot_of(p, token);
    if (slot < 0)
        return;
    const ker_rows &rows = plane ? p.append.v : p.append.k;
    const char *from = rows.base + token * rows.token_stride + g * rows.head_stride;
    char *to = p.kv.plane[plane] + slot / p.kv.block_size * p.kv.block_stride +
               g * p.kv.head_stride[plane] + slot % p.kv.block_size * p.kv.token_stride[plane];
    const float *cos_sin = plane ? NULL : angles_of(c, token);
    uint32_t width = plane ? p.head_dim_v : p.head_dim, turned = cos_sin ? p.rope.dim : 0;
    for (uint32_t d = lane; d < width; d += 32) {
        /* The bytes as they are when the types agree: a NaN keeps its payload. */
        if (d >= turned && p.kv.dtype == p.dtype) {
            if (p.dtype == ATTND_DTYPE_F32)
                ((uint32_t *)to)[d] = ((const uint32_t *)from)[d];
            else
                ((uint16_t *)to)[d] = ((const uint16_t *)from)[d];
        } else {
            store_float(p.kv.dtype, to, d, load_rotated(p, from, cos_sin, d));
        }
    }
}

static uint32_t blocks_for(int64_t n, int64_t per_block)
{
    return (uint32_t)((n + per_block - 1) / per_block);
}

cudaError_t cuda_make_angles(const cuda_problem *c, float *angles, cudaStream_t stream)
{
    int64_t n = c->p.batch.n_tokens * (c->p.rope.dim / 2);
    if (n == 0)
        return cudaSuccess;
    angles_kernel<<<blocks_for(n, THREADS), THREADS, 0, stream>>>(*c, angles);
    return cudaGetLastError();
}

cudaError_t cuda_append(const cuda_problem *c, cudaStream_t stream)
{
    int64_t n = c->p.batch.n_tokens * c->p.n_kv_heads * 2;
    if (n == 0)
        return cudaSuccess;
    append_kernel<<<blocks_for(n, WARPS), THREADS, 0, stream>>>(*c);
    return cudaGetLastError();
}
