/* prefill_sm80.cu: many rows over paged or given keys, by mma.sync.
 *
 * Formula   o = Σ_j exp(s_j - m) v_j / l,   s_j = scale · q·k_j,   j over the row's visible keys
 *           (attention.md §1, §21.1)
 * Tiling    a block for 64 rows (tokens × heads of the group) of an item, 16 a warp, over tiles of 64
 *           keys (32 of wide heads), two stages in shared memory
 *
 *            keys of one sequence, through its block table
 *            ├─ tile 0 ─┼─ tile 1 ─┼─ …        stage t mod 2; tile t+1 is copied while t is used
 *     16 rows│ s = q·kᵀ │          │   warp 0
 *     16 rows│ o += p·v │          │   warp 1  …
 *
 * Floor     flops = Σ pairs·Hq·2(D+Dv); keys are read once per 64 rows, from the L2 cache mostly
 * Serves    what its rows in kernels.def say: widths up to D in steps of 8, addresses and strides of
 *           q and of the keys in steps of 16 bytes
 */
#include "kernels/cuda/mma.cuh"

enum { THREADS = 128, ROWS = 64 };

template <int D> struct tiles {
    static constexpr int KEYS = D <= 128 ? 64 : 32;
    uint16_t q[ROWS][D + PAD];
    uint16_t k[2][KEYS][D + PAD];
    uint16_t v[2][KEYS][D + PAD];
    int64_t offset[2][2][KEYS]; /* by stage and plane: of the key in its plane, -1 behind the end */
    uint64_t wild;              /* keys of the tile whose value is not finite */
    int32_t lo, hi;             /* keys that every row sees */
};

/* Where the keys of tile t lie: a thread a key and plane. */
template <int D>
static __device__ __forceinline__ void find_keys(const cuda_problem &c, const ker_item &item,
                                                 int32_t t, tiles<D> &sh)
{
    constexpr int KEYS = tiles<D>::KEYS;
    int plane = threadIdx.x / KEYS, k = threadIdx.x % KEYS;
    int32_t j = item.kv_first + t * KEYS + k;
    if (plane < 2)
        sh.offset[t % 2][plane][k] =
            j < item.kv_end ? key_offset(c.p, item.seq, item.kv_head, j, plane) : -1;
}

template <int D>
static __device__ __forceinline__ void copy_plane(const ker_problem &p, int plane,
                                                  const int64_t *offset, uint32_t width,
                                                  uint16_t (*to)[D + PAD])
{
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int at = threadIdx.x; at < tiles<D>::KEYS * PIECES; at += THREADS) {
        int k = at / PIECES;
        uint32_t d = at % PIECES * 8;
        bool there = offset[k] >= 0 && d < width;
        copy_async(&to[k][d], there ? p.kv.plane[plane] + offset[k] + d * 2 : NULL,
                   p.kv.plane[plane]);
    }
}

template <int D>
static __device__ __forceinline__ void copy_tile(const cuda_problem &c, int32_t t, tiles<D> &sh)
{
    copy_plane<D>(c.p, 0, sh.offset[t % 2][0], c.p.head_dim, sh.k[t % 2]);
    copy_plane<D>(c.p, 1, sh.offset[t % 2][1], c.p.head_dim_v, sh.v[t % 2]);
    copies_commit();
}

/* The keys that all rows of the item see: lo .. hi-1. */
template <int D>
static __device__ __forceinline__ void find_common_keys(const two_rows &rows, int32_t n_rows,
                                                        int32_t first, uint32_t lane, tiles<D> &sh)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (lane % 4 == 0 && first + (int32_t)lane / 4 + 8 * half < n_rows) {
            atomicMax(&sh.lo, rows.row[half].lo);
            atomicMin(&sh.hi, rows.row[half].hi);
        }
}

/* Adds values that are not finite and clears their rows. All threads; first is the key of row 0 of
 * v. */
template <typename T, int D>
static __device__ __forceinline__ void tame_values(warp_rows<D> &w, const two_rows &rows,
                                                   float (&p)[tiles<D>::KEYS / 8][4],
                                                   int32_t first, uint16_t (*v)[D + PAD],
                                                   uint64_t *wild, uint32_t lane)
{
    constexpr int SHARE = THREADS / tiles<D>::KEYS; /* threads of a key */
    int k = threadIdx.x / SHARE, from = threadIdx.x % SHARE * (D / SHARE);
    bool found = false;
    for (int d = from; d < from + D / SHARE; d += 2)
        found |= is_wild<T>(*(const uint32_t *)&v[k][d]);
    if (found)
        atomicOr((unsigned long long *)wild, 1ull << k);
    __syncthreads();
    uint64_t all = *wild;
    if (!all)
        return;
    for (uint64_t bits = all; bits; bits &= bits - 1) {
        int column = __ffsll((long long)bits) - 1;
        add_wild_value<T, D>(w, rows, p, column, first + column, v[column], lane);
    }
    __syncthreads();
    if (all >> k & 1)
        for (int d = from; d < from + D / SHARE; d += 2)
            *(uint32_t *)&v[k][d] = 0;
    if (threadIdx.x == 0)
        *wild = 0;
    __syncthreads();
}

template <typename T, int D>
static __device__ __forceinline__ void attend_tile(const cuda_problem &c, const ker_item &item,
                                                   const two_rows &rows, int32_t t, int32_t first,
                                                   uint32_t lane, warp_rows<D> &w, tiles<D> &sh)
{
    constexpr int KEYS = tiles<D>::KEYS;
    float s[KEYS / 8][4];
    int32_t j = item.kv_first + t * KEYS, end = min(j + KEYS, item.kv_end);
    /* Keys behind the end are zeros: they need the edge, but cannot be wild. */
    bool all_see = sh.lo <= j && end <= sh.hi, has_edge = !all_see || end < j + KEYS;
    multiply_keys<T, D>(s, sh.q[first], sh.k[t % 2][0], lane);
    score_keys(c.p, rows, s, j, has_edge, lane);
    soften(w, s);
    if (!all_see)
        tame_values<T, D>(w, rows, s, j, sh.v[t % 2], &sh.wild, lane);
    add_values<T, D>(w, s, sh.v[t % 2][0], lane);
}

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS, D <= 128 ? 2 : 1)
    prefill_kernel(const __grid_constant__ cuda_problem c, const ker_item *items, int32_t min_rows)
{
    extern __shared__ __align__(16) char memory[];
    tiles<D> &sh = *(tiles<D> *)memory;
    const ker_item item = items[blockIdx.x];
    uint32_t lane = threadIdx.x % 32;
    /* Groups wider than ROWS take several blocks. */
    int32_t tile = blockIdx.y * ROWS, first = threadIdx.x / 32 * 16;
    int32_t n_rows = item.n_rows * (int32_t)c.group;
    if (n_rows < min_rows || n_rows <= tile)
        return;
    int32_t n_tiles = (item.kv_end - item.kv_first + tiles<D>::KEYS - 1) / tiles<D>::KEYS;
    if (threadIdx.x == 0) {
        sh.wild = 0;
        sh.lo = INT32_MIN;
        sh.hi = INT32_MAX;
    }
    if (n_tiles > 0)
        find_keys(c, item, 0, sh);
    load_q_tile<T, D, ROWS>(c, item, tile, n_rows, sh.q[0]);
    __syncthreads();
    two_rows rows = rows_of_thread(c, item, n_rows, tile + first, lane);
    find_common_keys(rows, n_rows, tile + first, lane, sh);
    warp_rows<D> w;
    clear_rows(w);
    if (n_tiles > 0)
        copy_tile(c, 0, sh);
    if (n_tiles > 1)
        find_keys(c, item, 1, sh);
    for (int32_t t = 0; t < n_tiles; t++) {
        copies_wait<0>();
        /* Tile t is there for all, and nobody reads tile t-1 or the offsets of t any more. */
        __syncthreads();
        if (t + 1 < n_tiles)
            copy_tile(c, t + 1, sh);
        if (t + 2 < n_tiles)
            find_keys(c, item, t + 2, sh);
        attend_tile<T, D>(c, item, rows, t, first, lane, w, sh);
    }
    w.l[0] = quad_sum(w.l[0]);
    w.l[1] = quad_sum(w.l[1]);
    store_warp_rows(c, item, rows, n_rows, tile + first, w, lane);
}

template <typename T, int D> static cudaError_t prepare()
{
    return cudaFuncSetAttribute(prefill_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                sizeof(tiles<D>));
}

template <typename T, int D> static cudaError_t launch_items(const struct cuda_launch *launch)
{
    dim3 grid((uint32_t)launch->n_items, (uint32_t)(launch->max_rows + ROWS - 1) / ROWS);
    prefill_kernel<T, D><<<grid, THREADS, sizeof(tiles<D>), launch->stream>>>(
        *launch->problem, launch->items, launch->min_rows);
    return cudaGetLastError();
}

/*  X(type, D) */
#define INSTANCES(X)                                                                               \
    X(bf16, 64) X(bf16, 96) X(bf16, 128) X(bf16, 192) X(bf16, 256)                                 \
    X(f16, 64) X(f16, 96) X(f16, 128) X(f16, 192) X(f16, 256)

#define X(T, D)                                                                                    \
    extern "C" int ker_prefill_##T##_d##D##_sm80(const struct cuda_launch *launch)                 \
    {                                                                                              \
        return launch_items<T, D>(launch);                                                         \
    }
INSTANCES(X)
#undef X

extern "C" cudaError_t cuda_prepare_prefill(void)
{
    cudaError_t error = cudaSuccess;
#define X(T, D)                                                                                    \
    if (error == cudaSuccess)                                                                      \
        error = prepare<T, D>();
    INSTANCES(X)
#undef X
    return error;
}
