/* ceiling_gpu.cu: the read rate of a GPU over the blocks of a pool, and its copy rate.
 *
 * Reading is cut as decode cuts it: a block of threads takes a range of the table for one kv head
 * and walks it in pieces of 4 KiB, four of K and four of V in flight per thread. Sweeps go from
 * layer to layer, so that a small layer does not stay in L2.
 */
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "tests/bench/ceiling_gpu.h"

enum {
    THREADS = 256,
    PIECE = THREADS * 16, /* bytes */
    LOADS = 4,
    BLOCKS_PER_SM = 4,
    N_WARM = 8,
    N_TIMED = 40,
};

struct sweep {
    const char *base; /* of the layer */
    int64_t block_stride, plane_stride, head_stride;
    const int32_t *ids; /* [n_ids], of the device */
    int32_t n_pieces;   /* of a head: n_ids << shift */
    int32_t n_heads, shift;
    uint4 *sink;
};

static __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    read_blocks(const __grid_constant__ sweep s)
{
    int32_t head = (int32_t)blockIdx.x % s.n_heads, part = (int32_t)blockIdx.x / s.n_heads;
    int64_t n_parts = gridDim.x / (uint32_t)s.n_heads;
    int32_t first = (int32_t)(s.n_pieces * (int64_t)part / n_parts);
    int32_t end = (int32_t)(s.n_pieces * (int64_t)(part + 1) / n_parts);
    const char *base = s.base + head * s.head_stride + threadIdx.x * 16;
    uint4 sum = {0, 0, 0, 0};
    for (int32_t at = first; at < end; at += LOADS) {
        uint4 got[2 * LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int32_t piece = at + i;
            got[2 * i] = got[2 * i + 1] = uint4{0, 0, 0, 0};
            if (piece < end) {
                const char *run = base + s.ids[piece >> s.shift] * s.block_stride +
                                  (piece & ((1 << s.shift) - 1)) * PIECE;
                got[2 * i] = __ldcs((const uint4 *)run);
                got[2 * i + 1] = __ldcs((const uint4 *)(run + s.plane_stride));
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * LOADS; i++) {
            sum.x ^= got[i].x;
            sum.y += got[i].y;
            sum.z ^= got[i].z;
            sum.w += got[i].w;
        }
    }
    /* Practically never, but the compiler cannot know: else nothing would be read. */
    if (sum.x == 0x9E3779B9 && sum.y == 0x7F4A7C15 && sum.z == 1 && sum.w == 2)
        *s.sink = sum;
}

static __device__ uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

/* The sum of four even numbers of 16 bits has variance 65536^2 / 3. */
static __device__ __nv_bfloat16 nearly_normal(uint64_t random)
{
    int sum = (int)(random & 0xFFFF) + (int)(random >> 16 & 0xFFFF) + (int)(random >> 32 & 0xFFFF) +
              (int)(random >> 48);
    return __float2bfloat16((float)(sum - 2 * 65535) * (1.7320508f / 65536));
}

static __global__ void fill_random(uint4 *base, size_t n, uint64_t seed)
{
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        union {
            uint4 whole;
            __nv_bfloat16 part[8];
        } word;
#pragma unroll
        for (int j = 0; j < 8; j++)
            word.part[j] = nearly_normal(mix(seed ^ (i * 8 + j)));
        base[i] = word.whole;
    }
}

static const char *text_of(cudaError_t error)
{
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

static int n_sms(void)
{
    int n = 1;
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0);
    return n;
}

const char *gpu_fill(void *base, size_t bytes, uint64_t seed)
{
    fill_random<<<n_sms() * 8, 256>>>((uint4 *)base, bytes / 16, seed);
    cudaError_t error = cudaGetLastError();
    return text_of(error == cudaSuccess ? cudaDeviceSynchronize() : error);
}

/* ---- Timing: events between calls that are enqueued without waiting. --------------------------
 */

typedef cudaError_t enqueue_call(const void *what, int turn, cudaStream_t stream);

static cudaError_t median_of_calls(enqueue_call *call, const void *what, double *out)
{
    cudaEvent_t events[N_WARM + N_TIMED + 1] = {};
    float ms[N_TIMED];
    cudaStream_t stream = NULL;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    for (int i = 0; i <= N_WARM + N_TIMED && error == cudaSuccess; i++)
        error = cudaEventCreate(&events[i]);
    for (int i = 0; i < N_WARM + N_TIMED && error == cudaSuccess; i++) {
        error = cudaEventRecord(events[i], stream);
        if (error == cudaSuccess)
            error = call(what, i, stream);
    }
    if (error == cudaSuccess)
        error = cudaEventRecord(events[N_WARM + N_TIMED], stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    for (int i = 0; i < N_TIMED && error == cudaSuccess; i++)
        error = cudaEventElapsedTime(&ms[i], events[N_WARM + i], events[N_WARM + i + 1]);
    for (cudaEvent_t event : events)
        if (event)
            cudaEventDestroy(event);
    if (stream)
        cudaStreamDestroy(stream);
    if (error != cudaSuccess)
        return error;
    std::sort(ms, ms + N_TIMED);
    *out = ms[N_TIMED / 2] * 1e-3;
    return cudaSuccess;
}

struct sweeps {
    const gpu_blocks *blocks;
    sweep first; /* of layer 0 */
    unsigned n_ctas;
};

static cudaError_t enqueue_sweep(const void *what, int turn, cudaStream_t stream)
{
    const sweeps *all = (const sweeps *)what;
    sweep s = all->first;
    s.base += turn % all->blocks->n_layers * all->blocks->layer_stride;
    read_blocks<<<all->n_ctas, THREADS, 0, stream>>>(s);
    return cudaGetLastError();
}

const char *gpu_read_seconds(const gpu_blocks *b, double *out)
{
    sweeps all = {b, {b->base, b->block_stride, b->plane_stride, b->head_stride}, 0};
    sweep *s = &all.first;
    int32_t *ids = NULL;
    size_t bytes = (size_t)b->n_ids * sizeof *ids;
    if (b->run_bytes % PIECE)
        return "a run is no multiple of 4096 bytes";
    while (((size_t)PIECE << s->shift) < b->run_bytes)
        s->shift++;
    s->n_pieces = b->n_ids << s->shift;
    s->n_heads = b->n_heads;
    all.n_ctas = (unsigned)(n_sms() * BLOCKS_PER_SM / b->n_heads * b->n_heads);
    cudaError_t error = cudaMalloc((void **)&ids, bytes);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&s->sink, sizeof *s->sink);
    if (error == cudaSuccess)
        error = cudaMemcpy(ids, b->ids, bytes, cudaMemcpyHostToDevice);
    s->ids = ids;
    if (error == cudaSuccess)
        error = median_of_calls(enqueue_sweep, &all, out);
    cudaFree(s->sink);
    cudaFree(ids);
    return text_of(error);
}

struct copying {
    char *from, *to;
    size_t bytes;
};

static cudaError_t enqueue_copy(const void *what, int turn, cudaStream_t stream)
{
    const copying *c = (const copying *)what;
    return cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice, stream);
}

const char *gpu_copy_seconds(size_t bytes, double *out)
{
    copying c = {NULL, NULL, bytes};
    cudaError_t error = cudaMalloc((void **)&c.from, bytes);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&c.to, bytes);
    const char *text = text_of(error);
    if (!text)
        text = gpu_fill(c.from, bytes, 7);
    if (!text)
        text = text_of(median_of_calls(enqueue_copy, &c, out));
    cudaFree(c.from);
    cudaFree(c.to);
    return text;
}
