/* ceiling_gpu.h: what a GPU can do at most, measured, and random keys for its pools.
 *
 * Every function returns NULL, or the text of the failure.
 */
#ifndef ATTND_TESTS_BENCH_CEILING_GPU_H
#define ATTND_TESTS_BENCH_CEILING_GPU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The keys and values of a problem, as ker_kv has them; strides in bytes. */
typedef struct gpu_blocks {
    const char *base;     /* of the device: block 0, K, of layer 0 */
    int64_t layer_stride; /* times the number of the sweep, modulo n_layers */
    int64_t block_stride, plane_stride, head_stride;
    const int32_t *ids; /* [n_ids], here: blocks in the order they are read */
    int32_t n_ids, n_heads, n_layers;
    size_t run_bytes; /* of one head, plane and block: 4096 times a power of two */
} gpu_blocks;

/* Fills with bf16 numbers near a normal distribution of variance 1; bytes is a multiple of 16. */
const char *gpu_fill(void *base, size_t bytes, uint64_t seed);

/* Median seconds of a kernel that reads every run of one layer once and does nothing else. */
const char *gpu_read_seconds(const gpu_blocks *blocks, double *out);

/* Median seconds of a copy of bytes on the device. */
const char *gpu_copy_seconds(size_t bytes, double *out);

#ifdef __cplusplus
}
#endif

#endif
