/* mma.cuh: the tensor core and copy instructions of sm_80, and what the kernels made of them share.
 *
 * Tiles lie in shared memory row by row, [row][D] of 16-bit floats, each row PAD elements longer:
 * an odd number of 16-byte pieces, so that eight rows of one column fall into eight bank groups.
 */
#ifndef ATTND_KERNELS_CUDA_MMA_CUH
#define ATTND_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/rows.cuh"

enum { PAD = 8 };

/* ---- Element types. ---------------------------------------------------------------------------
 */

struct bf16 {
    static constexpr attnd_dtype dtype = ATTND_DTYPE_BF16;
    static constexpr uint32_t exponent = 0x7f80;
};

struct f16 {
    static constexpr attnd_dtype dtype = ATTND_DTYPE_F16;
    static constexpr uint32_t exponent = 0x7c00;
};

template <typename T> static __device__ __forceinline__ uint16_t narrow(float x)
{
    return T::dtype == ATTND_DTYPE_BF16 ? to_bf16(x) : to_f16(x);
}

template <typename T> static __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t bits;
    if (T::dtype == ATTND_DTYPE_BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

template <typename T> static __device__ __forceinline__ float widen(uint16_t bits)
{
    return load_float(T::dtype, (const char *)&bits, 0);
}

/* Whether either half of a word is Inf or NaN. */
template <typename T> static __device__ __forceinline__ bool is_wild(uint32_t word)
{
    return (word & T::exponent) == T::exponent ||
           (word >> 16 & T::exponent) == T::exponent;
}

/* ---- Instructions. ----------------------------------------------------------------------------
 */

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* c += a·b: a is 16 rows × 16, b 16 × 8. */
template <typename T>
static __device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1)
{
    if (T::dtype == ATTND_DTYPE_BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 × 8 matrices; lane i names row i mod 8 of matrix i / 8. */
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

static __device__ __forceinline__ void load_transposed(uint32_t (&r)[4], const uint16_t *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* 16 bytes, zeros where the source is not there (NULL). */
static __device__ __forceinline__ void copy_async(uint16_t *to, const char *from,
                                                  const char *somewhere)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from ? from : somewhere), "r"(from ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most N groups are under way. */
template <int N> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the four lanes that share a row of an accumulator. */
static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* ---- Sixteen rows of a warp. ------------------------------------------------------------------
 *
 * A thread holds elements of two rows, g = lane / 4 and g + 8: channels 2·(lane mod 4) and the next
 * of every eight.
 */

template <int D> struct warp_rows {
    float o[D / 8][4];
    float m[2], l[2]; /* m in log2 units; l of this thread's columns alone */
};

/* What a thread must know of its two rows. */
struct two_rows {
    item_row row[2];
    int32_t past; /* kv_len - q_len */
};

template <int D> static __device__ __forceinline__ void clear_rows(warp_rows<D> &w)
{
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        w.o[n][0] = w.o[n][1] = w.o[n][2] = w.o[n][3] = 0;
    w.m[0] = w.m[1] = -INFINITY;
    w.l[0] = w.l[1] = 0;
}

/* s[N][4] = q·k of the warp's 16 rows and 8·N keys. q and k point at their first rows. */
template <typename T, int D, int N>
static __device__ __forceinline__ void multiply_keys(float (&s)[N][4], const uint16_t *q,
                                                     const uint16_t *k, uint32_t lane)
{
    constexpr int STRIDE = D + PAD;
    const uint16_t *q_at = q + lane % 16 * STRIDE + lane / 16 * 8;
    const uint16_t *k_at = k + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < N; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t a[4], b[4];
        load_matrices(a, q_at + step * 16);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            load_matrices(b, k_at + n * 8 * STRIDE + step * 16);
            mma<T>(s[n], a, b[0], b[1]);
            mma<T>(s[n + 1], a, b[2], b[3]);
        }
    }
}

/* Scores in log2 units, -inf where a row does not see the key. first is the key of column 0; a tile
 * that every row sees whole has no edge. */
template <int N>
static __device__ __forceinline__ void score_keys(const ker_problem &p, const two_rows &rows,
                                                  float (&s)[N][4], int32_t first, bool has_edge,
                                                  uint32_t lane)
{
    bool is_plain = p.bias.softcap == 0 && !p.bias.alibi_slopes;
    float scale = p.sm_scale * LOG2E;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const item_row &row = rows.row[e / 2];
            int32_t j = first + n * 8 + lane % 4 * 2 + e % 2;
            if (is_plain)
                s[n][e] *= scale;
            else
                s[n][e] = score_of(p, s[n][e], row.head, j - rows.past - row.i) * LOG2E;
            if (has_edge && (j < row.lo || j >= row.hi))
                s[n][e] = -INFINITY;
        }
}

/* Online softmax (attention.md §21.1): s becomes p, o and l are brought to the new m. */
template <int D, int N>
static __device__ __forceinline__ void soften(warp_rows<D> &w, float (&s)[N][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = w.m[half], sum = 0;
#pragma unroll
        for (int n = 0; n < N; n++)
            top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        top = quad_max(top);
        /* Finite: (-inf) - (-inf) is NaN on a row that has seen no key. */
        float base = top == -INFINITY ? 0 : top, old = exp2_fast(w.m[half] - base);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                s[n][2 * half + e] = exp2_fast(s[n][2 * half + e] - base);
                sum += s[n][2 * half + e];
            }
        w.l[half] = w.l[half] * old + sum;
        w.m[half] = top;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            w.o[n][2 * half] *= old;
            w.o[n][2 * half + 1] *= old;
        }
    }
}

/* o += p·v over 8·N keys. */
template <typename T, int D, int N>
static __device__ __forceinline__ void add_values(warp_rows<D> &w, const float (&p)[N][4],
                                                  const uint16_t *v, uint32_t lane)
{
    constexpr int STRIDE = D + PAD;
    const uint16_t *v_at = v + (lane / 8 % 2 * 8 + lane % 8) * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int step = 0; step < N / 2; step++) {
        uint32_t a[4] = {pack<T>(p[2 * step][0], p[2 * step][1]),
                         pack<T>(p[2 * step][2], p[2 * step][3]),
                         pack<T>(p[2 * step + 1][0], p[2 * step + 1][1]),
                         pack<T>(p[2 * step + 1][2], p[2 * step + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4];
            load_transposed(b, v_at + step * 16 * STRIDE + n * 8);
            mma<T>(w.o[n], a, b[0], b[1]);
            mma<T>(w.o[n + 1], a, b[2], b[3]);
        }
    }
}

/* A key whose value is Inf or NaN must not reach rows that do not see it, and 0·NaN is NaN: its
 * part is added here, one row at a time, and p is cleared of it. column is the key's, 0 .. 8·N-1;
 * v is its row. */
template <typename T, int D, int N>
static __device__ __forceinline__ void add_wild_value(warp_rows<D> &w, const two_rows &rows,
                                                      float (&p)[N][4], int column, int32_t j,
                                                      const uint16_t *v, uint32_t lane)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float weight = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float here = column % 2 ? p[n][2 * half + 1] : p[n][2 * half];
            weight = n == column / 8 ? here : weight;
            /* A choice each, or the compiler makes an array of p, in memory, of them all. */
            asm("" : "+f"(weight));
        }
        weight = __shfl_sync(0xffffffffu, weight, lane / 4 * 4 + column % 8 / 2);
        if (j < rows.row[half].lo || j >= rows.row[half].hi)
            continue;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                w.o[n][2 * half + e] += weight * widen<T>(v[n * 8 + lane % 4 * 2 + e]);
    }
}

/* q of ROWS rows of an item into shared memory, rotated, zeros behind the last; by all threads of a
 * block. */
template <typename T, int D, int ROWS>
static __device__ __forceinline__ void load_q_tile(const cuda_problem &c, const ker_item &item,
                                                   int32_t first, int32_t n_rows, uint16_t *to)
{
    constexpr int PIECES = D / 8;
    for (int at = threadIdx.x; at < ROWS * PIECES; at += blockDim.x) {
        int32_t r = at / PIECES;
        uint32_t d = at % PIECES * 8;
        uint4 piece = {0, 0, 0, 0};
        if (first + r < n_rows && d < c.p.head_dim) {
            item_row row = row_of(c, item, first + r);
            const char *q = q_of(c, row);
            const float *cos_sin = angles_of(c, row.token);
            if (!cos_sin || d >= c.p.rope.dim) {
                piece = *(const uint4 *)(q + d * 2);
            } else {
                uint16_t *half = (uint16_t *)&piece;
#pragma unroll
                for (int e = 0; e < 8; e++)
                    half[e] = narrow<T>(load_rotated(c.p, q, cos_sin, d + e));
            }
        }
        *(uint4 *)(to + r * (D + PAD) + d) = piece;
    }
}

/* The two rows of this thread: first + lane / 4 and 8 more; rows behind the item's last see no
 * key. */
static __device__ __forceinline__ two_rows rows_of_thread(const cuda_problem &c,
                                                          const ker_item &item, int32_t n_rows,
                                                          int32_t first, uint32_t lane)
{
    two_rows rows;
    rows.past = c.p.batch.kv_len[item.seq] - c.p.batch.q_len[item.seq];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t r = first + (int32_t)lane / 4 + 8 * half;
        rows.row[half] = row_of(c, item, min(r, n_rows - 1));
        if (r >= n_rows)
            rows.row[half].lo = rows.row[half].hi = 0;
    }
    return rows;
}

/* Writes two rows of a warp: outputs, or a partial row each. l is whole. */
template <int D>
static __device__ __forceinline__ void store_warp_rows(const cuda_problem &c, const ker_item &item,
                                                       const two_rows &rows, int32_t n_rows,
                                                       int32_t first, const warp_rows<D> &w,
                                                       uint32_t lane)
{
    const ker_problem &p = c.p;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t r = first + (int32_t)lane / 4 + 8 * half;
        if (r >= n_rows)
            continue;
        const item_row &row = rows.row[half];
        float m = w.m[half] * LN2, l = w.l[half];
        bool whole = item.partial < 0;
        float *partial = whole ? NULL : partial_of(c, item.partial + r);
        char *out = whole ? out_of(p, row.token, row.head) : NULL;
        float scale = whole ? normaliser(p, row.head, m, l) : 1;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                uint32_t d = n * 8 + lane % 4 * 2 + e;
                if (d >= p.head_dim_v)
                    continue;
                float x = w.o[n][2 * half + e];
                if (whole)
                    store_float(out_dtype(p), out, d, l == 0 ? 0 : x * scale);
                else
                    partial[KER_PARTIAL_O + d] = x;
            }
        if (lane % 4 != 0)
            continue;
        if (whole) {
            store_statistics(p, row.token, row.head, m, l);
        } else {
            partial[0] = m;
            partial[1] = l;
        }
    }
}

#endif
