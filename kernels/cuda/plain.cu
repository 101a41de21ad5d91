/* plain.cu: attention in fp32 on ordinary cores, for what no matrix kernel serves.
 *
 * Formula   o = Σ_j exp(s_j - m) v_j / l,   s_j = scale · q·k_j,   j over the row's visible keys
 *           (attention.md §1, §21.1)
 * Tiling    a block an item; a warp takes ROWS rows of it at a time and walks their keys one by
 *           one, lanes over the channels. A key is read once for ROWS rows.
 * Floor     flops = Σ pairs·2(D+Dv) in fp32; meant to be right, not fast
 * Serves    every float type and mix of types, every width up to KER_MAX_DIM, every stride
 */
#include "kernels/cuda/rows.cuh"

enum { THREADS = 128, WARPS = THREADS / 32 };

template <int CHUNKS, int ROWS> struct state {
    item_row row[ROWS];
    float q[ROWS][CHUNKS], acc[ROWS][CHUNKS];
    float m[ROWS], l[ROWS];
};

template <int CHUNKS, int ROWS>
static __device__ void load_rows(const cuda_problem &c, const ker_item &item, int32_t first,
                                 int32_t n_rows, uint32_t lane, state<CHUNKS, ROWS> &st)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        st.row[r] = row_of(c, item, min(first + r, n_rows - 1));
        if (first + r >= n_rows)
            st.row[r].hi = st.row[r].lo;
        const char *q = q_of(c, st.row[r]);
        const float *cos_sin = angles_of(c, st.row[r].token);
        st.m[r] = -INFINITY;
        st.l[r] = 0;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            uint32_t d = lane + 32 * i;
            st.q[r][i] = d < c.p.head_dim ? load_rotated(c.p, q, cos_sin, d) : 0;
            st.acc[r][i] = 0;
        }
    }
}

/* One key's part in a row that sees it. */
template <int CHUNKS, int ROWS>
static __device__ void add_key(state<CHUNKS, ROWS> &st, int r, float s, const float (&v)[CHUNKS])
{
    if (s == -INFINITY)
        return;
    float p = 1, old = 1;
    if (s > st.m[r]) {
        old = expf(st.m[r] - s);
        st.m[r] = s;
    } else {
        p = expf(s - st.m[r]);
    }
    st.l[r] = st.l[r] * old + p;
#pragma unroll
    for (int i = 0; i < CHUNKS; i++)
        st.acc[r][i] = st.acc[r][i] * old + p * v[i];
}

template <int CHUNKS, int ROWS>
static __device__ void walk_keys(const cuda_problem &c, const ker_item &item, uint32_t lane,
                                 state<CHUNKS, ROWS> &st)
{
    const ker_problem &p = c.p;
    int32_t lo = INT32_MAX, hi = 0;
    int32_t past = p.batch.kv_len[item.seq] - p.batch.q_len[item.seq];
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (st.row[r].lo < st.row[r].hi) {
            lo = min(lo, st.row[r].lo);
            hi = max(hi, st.row[r].hi);
        }
    for (int32_t j = lo; j < hi; j++) {
        const char *k = p.kv.plane[0] + key_offset(p, item.seq, item.kv_head, j, 0);
        const char *v_row = p.kv.plane[1] + key_offset(p, item.seq, item.kv_head, j, 1);
        float dot[ROWS] = {}, v[CHUNKS];
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            uint32_t d = lane + 32 * i;
            float x = d < p.head_dim ? load_float(p.kv.dtype, k, d) : 0;
            v[i] = d < p.head_dim_v ? load_float(p.kv.dtype, v_row, d) : 0;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                dot[r] += st.q[r][i] * x;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float s = score_of(p, warp_sum(dot[r]), st.row[r].head, j - past - st.row[r].i);
            if (st.row[r].lo <= j && j < st.row[r].hi)
                add_key(st, r, s, v);
        }
    }
}

template <int CHUNKS, int ROWS>
static __device__ void store_rows(const cuda_problem &c, const ker_item &item, int32_t first,
                                  int32_t n_rows, uint32_t lane, const state<CHUNKS, ROWS> &st)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (first + r >= n_rows)
            return;
        const item_row &row = st.row[r];
        bool whole = item.partial < 0;
        float *partial = whole ? NULL : partial_of(c, item.partial + first + r);
        char *out = whole ? out_of(c.p, row.token, row.head) : NULL;
        float scale = whole ? normaliser(c.p, row.head, st.m[r], st.l[r]) : 1;
#pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            uint32_t d = lane + 32 * i;
            if (d >= c.p.head_dim_v)
                continue;
            if (whole)
                store_float(out_dtype(c.p), out, d, st.l[r] == 0 ? 0 : st.acc[r][i] * scale);
            else
                partial[KER_PARTIAL_O + d] = st.acc[r][i];
        }
        if (lane == 0 && whole)
            store_statistics(c.p, row.token, row.head, st.m[r], st.l[r]);
        if (lane == 0 && !whole) {
            partial[0] = st.m[r];
            partial[1] = st.l[r];
        }
    }
}

template <int CHUNKS, int ROWS>
static __global__ void __launch_bounds__(THREADS, 2)
    plain_kernel(const __grid_constant__ cuda_problem c, const ker_item *items)
{
    const ker_item item = items[blockIdx.x];
    uint32_t lane = threadIdx.x % 32;
    int32_t n_rows = item.n_rows * (int32_t)c.group;
    for (int32_t first = threadIdx.x / 32 * ROWS; first < n_rows; first += WARPS * ROWS) {
        state<CHUNKS, ROWS> st;
        load_rows(c, item, first, n_rows, lane, st);
        walk_keys(c, item, lane, st);
        store_rows(c, item, first, n_rows, lane, st);
    }
}

/* A kernel for each number of 32-channel chunks of the wider of D and Dv. */
#define WIDTHS(X) X(2, 8) X(4, 4) X(8, 4) X(16, 2) X(32, 1)

extern "C" int ker_plain_sm80(const struct cuda_launch *launch)
{
    const ker_problem &p = launch->problem->p;
    uint32_t width = max(p.head_dim, p.head_dim_v);
#define X(CHUNKS, ROWS)                                                                            \
    if (width <= 32 * CHUNKS) {                                                                    \
        plain_kernel<CHUNKS, ROWS><<<(uint32_t)launch->n_items, THREADS, 0, launch->stream>>>(     \
            *launch->problem, launch->items);                                                      \
        return cudaGetLastError();                                                                 \
    }
    WIDTHS(X)
#undef X
    return cudaErrorInvalidValue;
}

extern "C" cudaError_t cuda_prepare_plain(void)
{
    struct cudaFuncAttributes attributes;
    cudaError_t error = cudaSuccess;
#define X(CHUNKS, ROWS)                                                                            \
    if (error == cudaSuccess)                                                                      \
        error = cudaFuncGetAttributes(&attributes, plain_kernel<CHUNKS, ROWS>);
    WIDTHS(X)
#undef X
    return error;
}
