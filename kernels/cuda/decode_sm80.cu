/* decode_sm80.cu: up to 16 rows that share every key, by mma.sync.
 *
 * Formula   o = Σ_j exp(s_j - m) v_j / l,   s_j = scale · q·k_j,   j over the row's visible keys
 *           (attention.md §1, §21.1)
 * Tiling    a block an item: 16 rows (tokens × heads of the group); its four warps each take 16 of
 *           every 64 keys, copy them for themselves and keep a state of their own
 *
 *            keys of one item, through its block table
 *            ├ w0 ┼ w1 ┼ w2 ┼ w3 ┼ w0 ┼ w1 ┼ …     STAGES pieces of a warp under way at once
 *     16 rows│ s = q·kᵀ, o += p·v, m, l            four states, merged at the end in the order of
 *            └────┴────┴────┴────┴─▶               the warps
 *
 * Floor     bytes = Σ_b kv_len·Hkv·(D+Dv)·2 (+ q, o): every key once
 * Serves    what its rows in kernels.def say: widths up to D in steps of 8, addresses and strides of
 *           q and of the keys in steps of 16 bytes. Items of more rows go to prefill_sm80.cu.
 */
#include "kernels/cuda/mma.cuh"

enum { THREADS = 128, WARPS = THREADS / 32, ROWS = 16, KEYS = 16, STEP = WARPS * KEYS };

template <int D> struct tiles {
    static constexpr int STAGES = D <= 128 ? 3 : 2;
    uint16_t q[ROWS][D + PAD];
    union {
        uint16_t kv[WARPS][STAGES][2][KEYS][D + PAD];
        float o[WARPS][ROWS][D + 4];
    };
    float m[WARPS][ROWS], l[WARPS][ROWS];
};

/* Byte offset of a key of the warp in its plane: K's by lanes 0-15, V's by 16-31; -1 behind the
 * end. first is the warp's first key. */
static __device__ __forceinline__ int64_t find_key(const cuda_problem &c, const ker_item &item,
                                                   int32_t first, uint32_t lane)
{
    int32_t j = first + (int32_t)lane % KEYS;
    return j < item.kv_end ? key_offset(c.p, item.seq, item.kv_head, j, lane / KEYS) : -1;
}

template <int D>
static __device__ __forceinline__ void copy_keys(const ker_problem &p, int64_t offset,
                                                 uint32_t lane, uint16_t (*to)[KEYS][D + PAD])
{
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int plane = 0; plane < 2; plane++) {
        uint32_t width = plane ? p.head_dim_v : p.head_dim;
#pragma unroll
        for (int i = 0; i < KEYS * PIECES / 32; i++) {
            int k = (i * 32 + lane) / PIECES;
            uint32_t d = (i * 32 + lane) % PIECES * 8;
            int64_t at = __shfl_sync(0xffffffffu, offset, plane * KEYS + k);
            copy_async(&to[plane][k][d],
                       at >= 0 && d < width ? p.kv.plane[plane] + at + d * 2 : NULL,
                       p.kv.plane[plane]);
        }
    }
}

/* The keys that all rows of the item see. */
static __device__ __forceinline__ void find_common_keys(const two_rows &rows, int32_t n_rows,
                                                        uint32_t lane, int32_t *lo, int32_t *hi)
{
    *lo = INT32_MIN;
    *hi = INT32_MAX;
#pragma unroll
    for (int half = 0; half < 2; half++)
        if ((int32_t)lane / 4 + 8 * half < n_rows) {
            *lo = max(*lo, rows.row[half].lo);
            *hi = min(*hi, rows.row[half].hi);
        }
#pragma unroll
    for (int step = 16; step >= 4; step /= 2) {
        *lo = max(*lo, __shfl_xor_sync(0xffffffffu, *lo, step));
        *hi = min(*hi, __shfl_xor_sync(0xffffffffu, *hi, step));
    }
}

/* Adds values that are not finite and clears their rows; the warp alone. */
template <typename T, int D>
static __device__ __forceinline__ void tame_values(warp_rows<D> &w, const two_rows &rows,
                                                   float (&p)[KEYS / 8][4], int32_t first,
                                                   uint16_t (*v)[D + PAD], uint32_t lane)
{
    int k = lane / 2, from = lane % 2 * (D / 2);
    bool found = false;
    for (int d = from; d < from + D / 2; d += 2)
        found |= is_wild<T>(*(const uint32_t *)&v[k][d]);
    uint32_t all = __ballot_sync(0xffffffffu, found);
    for (int column = 0; column < KEYS; column++)
        if (all >> 2 * column & 3)
            add_wild_value<T, D>(w, rows, p, column, first + column, v[column], lane);
    __syncwarp();
    if (all >> 2 * k & 3)
        for (int d = from; d < from + D / 2; d += 2)
            *(uint32_t *)&v[k][d] = 0;
    __syncwarp();
}

/* All keys of the warp. */
template <typename T, int D>
static __device__ __forceinline__ void walk_keys(const cuda_problem &c, const ker_item &item,
                                                 int32_t n_rows, uint32_t lane, int warp,
                                                 warp_rows<D> &w, tiles<D> &sh)
{
    constexpr int STAGES = tiles<D>::STAGES;
    two_rows rows = rows_of_thread(c, item, n_rows, 0, lane);
    int32_t lo, hi, first = item.kv_first + warp * KEYS;
    int32_t n_steps = (item.kv_end - item.kv_first + STEP - 1) / STEP;
    find_common_keys(rows, n_rows, lane, &lo, &hi);
    int64_t next = find_key(c, item, first, lane);
#pragma unroll
    for (int t = 0; t < STAGES - 1; t++) {
        copy_keys<D>(c.p, next, lane, sh.kv[warp][t]);
        copies_commit();
        next = find_key(c, item, first + (t + 1) * STEP, lane);
    }
    for (int32_t t = 0; t < n_steps; t++) {
        copies_wait<STAGES - 2>();
        /* Piece t is there, and no lane reads the one before any more. */
        __syncwarp();
        copy_keys<D>(c.p, next, lane, sh.kv[warp][(t + STAGES - 1) % STAGES]);
        copies_commit();
        next = find_key(c, item, first + (t + STAGES) * STEP, lane);
        float s[KEYS / 8][4];
        uint16_t (*kv)[KEYS][D + PAD] = sh.kv[warp][t % STAGES];
        int32_t j = first + t * STEP, end = min(j + KEYS, item.kv_end);
        bool all_see = j >= end || (lo <= j && end <= hi);
        multiply_keys<T, D>(s, sh.q[0], kv[0][0], lane);
        score_keys(c.p, rows, s, j, !all_see || end < j + KEYS, lane);
        soften(w, s);
        if (!all_see)
            tame_values<T, D>(w, rows, s, j, kv[1], lane);
        add_values<T, D>(w, s, kv[1][0], lane);
    }
    copies_wait<0>();
}

/* A warp's state into shared memory. */
template <int D>
static __device__ __forceinline__ void put_state(const warp_rows<D> &w, uint32_t lane, int warp,
                                                 tiles<D> &sh)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = lane / 4 + 8 * half;
        float l = quad_sum(w.l[half]);
        if (lane % 4 == 0) {
            sh.m[warp][r] = w.m[half];
            sh.l[warp][r] = l;
        }
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            sh.o[warp][r][n * 8 + lane % 4 * 2] = w.o[n][2 * half];
            sh.o[warp][r][n * 8 + lane % 4 * 2 + 1] = w.o[n][2 * half + 1];
        }
    }
}

/* Merges the four states of a row and writes it; a warp a row. */
template <int D>
static __device__ __forceinline__ void store_row(const cuda_problem &c, const ker_item &item, int r,
                                                 uint32_t lane, const tiles<D> &sh)
{
    const ker_problem &p = c.p;
    float m = -INFINITY, l = 0, weight[WARPS];
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        m = fmaxf(m, sh.m[i][r]);
    float base = m == -INFINITY ? 0 : m;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        weight[i] = exp2_fast(sh.m[i][r] - base);
        l += weight[i] * sh.l[i][r];
    }
    item_row row = row_of(c, item, r);
    m *= LN2;
    bool whole = item.partial < 0;
    float *partial = whole ? NULL : partial_of(c, item.partial + r);
    char *out = whole ? out_of(p, row.token, row.head) : NULL;
    float scale = whole ? normaliser(p, row.head, m, l) : 1;
    for (uint32_t d = lane; d < p.head_dim_v; d += 32) {
        float x = 0;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            x += weight[i] * sh.o[i][r][d];
        if (whole)
            store_float(out_dtype(p), out, d, l == 0 ? 0 : x * scale);
        else
            partial[KER_PARTIAL_O + d] = x;
    }
    if (lane == 0 && whole)
        store_statistics(p, row.token, row.head, m, l);
    if (lane == 0 && !whole) {
        partial[0] = m;
        partial[1] = l;
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS, D <= 128 ? 2 : 1)
    decode_kernel(const __grid_constant__ cuda_problem c, const ker_item *items)
{
    extern __shared__ __align__(16) char memory[];
    tiles<D> &sh = *(tiles<D> *)memory;
    const ker_item item = items[blockIdx.x];
    uint32_t lane = threadIdx.x % 32;
    int warp = threadIdx.x / 32;
    int32_t n_rows = item.n_rows * (int32_t)c.group;
    if (n_rows > ROWS)
        return;
    load_q_tile<T, D, ROWS>(c, item, 0, n_rows, sh.q[0]);
    __syncthreads();
    warp_rows<D> w;
    clear_rows(w);
    walk_keys<T, D>(c, item, n_rows, lane, warp, w, sh);
    /* The states take the place of the keys. */
    __syncthreads();
    put_state(w, lane, warp, sh);
    __syncthreads();
    for (int r = warp; r < n_rows; r += WARPS)
        store_row(c, item, r, lane, sh);
}

template <typename T, int D> static cudaError_t prepare()
{
    return cudaFuncSetAttribute(decode_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(tiles<D>));
}

template <typename T, int D>
static cudaError_t launch_items(const struct cuda_launch *launch, ker_run_part *more_rows)
{
    if (launch->min_rows <= ROWS) {
        decode_kernel<T, D>
            <<<(uint32_t)launch->n_items, THREADS, sizeof(tiles<D>), launch->stream>>>(
                *launch->problem, launch->items);
        cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess)
            return error;
    }
    if (launch->max_rows <= ROWS)
        return cudaSuccess;
    struct cuda_launch rest = *launch;
    rest.min_rows = ROWS + 1;
    return (cudaError_t)more_rows(&rest);
}

/*  X(type, D) */
#define INSTANCES(X)                                                                               \
    X(bf16, 64) X(bf16, 96) X(bf16, 128) X(bf16, 192) X(bf16, 256)                                 \
    X(f16, 64) X(f16, 96) X(f16, 128) X(f16, 192) X(f16, 256)

#define X(T, D)                                                                                    \
    extern "C" ker_run_part ker_prefill_##T##_d##D##_sm80;                                         \
    extern "C" int ker_decode_##T##_d##D##_sm80(const struct cuda_launch *launch)                  \
    {                                                                                              \
        return launch_items<T, D>(launch, ker_prefill_##T##_d##D##_sm80);                          \
    }
INSTANCES(X)
#undef X

extern "C" cudaError_t cuda_prepare_decode(void)
{
    cudaError_t error = cudaSuccess;
#define X(T, D)                                                                                    \
    if (error == cudaSuccess)                                                                      \
        error = prepare<T, D>();
    INSTANCES(X)
#undef X
    return error;
}
