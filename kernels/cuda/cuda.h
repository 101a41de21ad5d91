/* cuda.h: what the files of the CUDA backend share: device.c, which gcc compiles, and the kernels.
 * Private to kernels/cuda/.
 */
#ifndef ATTND_KERNELS_CUDA_CUDA_H
#define ATTND_KERNELS_CUDA_CUDA_H

#include <cuda_runtime_api.h>

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A plan's problem as kernels take it: every address is one of the device. */
typedef struct cuda_problem {
    ker_problem p;
    const float *angles;    /* [tokens][r/2][2]; NULL without rope */
    float *partials;        /* rows of partial_floats: m, l, O[Dv] at KER_PARTIAL_O */
    int64_t partial_floats; /* of one row */
    uint32_t group;         /* Hq / Hkv */
} cuda_problem;

/* One part of a plan. */
struct cuda_launch {
    const cuda_problem *problem;
    const ker_item *items; /* of the device */
    int64_t n_items;
    int32_t min_rows, max_rows; /* of an item, times group: those of fewer are left alone */
    cudaStream_t stream;
};

/* ---- Stages of a launch that are not items. Each enqueues and returns the error of its launch.
 */

/* Angles of every token into angles[]. */
cudaError_t cuda_make_angles(const cuda_problem *problem, float *angles, cudaStream_t stream);

/* Keys and values of every token into the pool. */
cudaError_t cuda_append(const cuda_problem *problem, cudaStream_t stream);

/* Partial rows → outputs; merges[n] of the device. */
cudaError_t cuda_merge(const cuda_problem *problem, const ker_merge *merges, int64_t n,
                       cudaStream_t stream);

/* Given parts → outputs; merge->parts is of the device. */
cudaError_t cuda_merge_parts(const ker_merge_problem *merge, cudaStream_t stream);

/* Asks for the shared memory each kernel of a file needs; so each is loaded. */
cudaError_t cuda_prepare_plain(void);
cudaError_t cuda_prepare_decode(void);
cudaError_t cuda_prepare_prefill(void);

/* ---- Packing (pack.c): what a launch needs of host memory, in one piece. -----------------------
 */

typedef struct cuda_packed {
    cuda_problem problem;
    ker_item *items[2]; /* of the device, by phase */
    ker_merge *merges[2];
} cuda_packed;

/* Bytes of the arrays of a plan. */
size_t cuda_pack_bytes(const ker_plan *plan);

/* Copies them to host[cuda_pack_bytes()] and fills *out with addresses as if host lay at device. */
void cuda_pack(const ker_plan *plan, char *host, char *device, cuda_packed *out);

/* ---- Memory (memory.c): ker_memory_* of this backend. -----------------------------------------
 */

attnd_status cuda_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                              attnd_err *err);
attnd_status cuda_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                    ker_memory *out, attnd_err *err);
void cuda_memory_free(ker_device *device, ker_memory *memory);
attnd_status cuda_memory_read(ker_device *device, void *to, const void *from, size_t bytes,
                              attnd_err *err);
attnd_status cuda_memory_write(ker_device *device, void *to, const void *from, size_t bytes,
                               attnd_err *err);

#ifdef __cplusplus
}
#endif

#endif
