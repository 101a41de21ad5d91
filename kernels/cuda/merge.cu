/* merge.cu: partial rows, or given parts, → outputs (attention.md §12).
 *
 * Formula   m = max_s m_s,  w_s = exp(m_s - m),  l = Σ w_s·l_s,  O = Σ w_s·O_s / (l + sink); of the
 *           planner's splits O_s is not yet divided by l_s, of given parts it is
 * Tiling    a warp a row, lanes over its channels; splits in their order, not finishing order
 * Floor     bytes: every partial row read once
 * Serves    everything
 */
#include "kernels/cuda/rows.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

static __device__ void merge_row(const cuda_problem &c, const ker_merge &merge, int32_t r,
                                 uint32_t lane)
{
    const ker_problem &p = c.p;
    int64_t rows = (int64_t)merge.n_rows * c.group;
    const float *parts = partial_of(c, merge.partial + r);
    int64_t step = rows * c.partial_floats;
    float m = -INFINITY, l = 0;
    for (int32_t s = 0; s < merge.n_splits; s++)
        if (parts[s * step + 1] != 0)
            m = fmaxf(m, parts[s * step]);
    for (int32_t s = 0; s < merge.n_splits; s++)
        if (parts[s * step + 1] != 0)
            l += expf(parts[s * step] - m) * parts[s * step + 1];
    int64_t token = p.batch.q_first[merge.seq] + merge.row_first + r / (int32_t)c.group;
    uint32_t head = merge.kv_head * c.group + r % c.group;
    float scale = normaliser(p, head, m, l);
    char *out = out_of(p, token, head);
    for (uint32_t d = lane; d < p.head_dim_v; d += 32) {
        float acc = 0;
        for (int32_t s = 0; s < merge.n_splits; s++)
            if (parts[s * step + 1] != 0)
                acc += expf(parts[s * step] - m) * parts[s * step + KER_PARTIAL_O + d];
        store_float(out_dtype(p), out, d, l == 0 ? 0 : acc * scale);
    }
    if (lane == 0)
        store_statistics(p, token, head, m, l);
}

static __global__ void merge_kernel(const __grid_constant__ cuda_problem c, const ker_merge *merges)
{
    const ker_merge merge = merges[blockIdx.x];
    for (int32_t r = threadIdx.x / 32; r < merge.n_rows * (int32_t)c.group; r += WARPS)
        merge_row(c, merge, r, threadIdx.x % 32);
}

cudaError_t cuda_merge(const cuda_problem *c, const ker_merge *merges, int64_t n,
                       cudaStream_t stream)
{
    merge_kernel<<<(uint32_t)n, THREADS, 0, stream>>>(*c, merges);
    return cudaGetLastError();
}

/* ---- Given parts. -----------------------------------------------------------------------------
 */

static __device__ const float *at(const ker_rows &rows, int64_t token, uint32_t head)
{
    return (const float *)(rows.base + token * rows.token_stride + head * rows.head_stride);
}

/* A part's m and l of a row; its lse is m with l = 1. */
static __device__ void weigh(const ker_merge_part &part, int64_t token, uint32_t head, float *m,
                             float *l)
{
    const float *from = at(part.lse.base ? part.lse : part.stats, token, head);
    *m = from[0];
    *l = part.lse.base ? 1 : from[1];
    if (*m == -INFINITY)
        *l = 0;
}

static __global__ void merge_parts_kernel(const __grid_constant__ ker_merge_problem p)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
    if (row >= p.n_tokens * p.n_heads)
        return;
    int64_t token = row / p.n_heads;
    uint32_t head = row % p.n_heads;
    float m = -INFINITY, l = 0, m_s, l_s;
    for (uint32_t s = 0; s < p.n_parts; s++) {
        weigh(p.parts[s], token, head, &m_s, &l_s);
        if (l_s != 0)
            m = m_s > m || isnan(m_s) ? m_s : m;
    }
    for (uint32_t s = 0; s < p.n_parts; s++) {
        weigh(p.parts[s], token, head, &m_s, &l_s);
        if (l_s != 0)
            l += expf(m_s - m) * l_s;
    }
    char *out = p.out.base + token * p.out.token_stride + head * p.out.head_stride;
    for (uint32_t d = lane; d < p.width; d += 32) {
        float acc = 0;
        for (uint32_t s = 0; s < p.n_parts; s++) {
            const ker_merge_part &part = p.parts[s];
            weigh(part, token, head, &m_s, &l_s);
            if (l_s != 0)
                /* Divided here, where it is 1 to the bit when no other part saw a key. */
                acc += expf(m_s - m) * l_s / l *
                       load_float(part.out.dtype, (const char *)at(part.out, token, head), d);
        }
        store_float(p.out.dtype, out, d, acc);
    }
    if (lane != 0)
        return;
    if (p.lse.base)
        *(float *)at(p.lse, token, head) = l == 0 ? -INFINITY : m + logf(l);
    if (p.stats.base) {
        float *stats = (float *)at(p.stats, token, head);
        stats[0] = l == 0 ? -INFINITY : m;
        stats[1] = l;
    }
}

cudaError_t cuda_merge_parts(const ker_merge_problem *merge, cudaStream_t stream)
{
    int64_t n = merge->n_tokens * merge->n_heads;
    if (n == 0)
        return cudaSuccess;
    merge_parts_kernel<<<(uint32_t)((n + WARPS - 1) / WARPS), THREADS, 0, stream>>>(*merge);
    return cudaGetLastError();
}
