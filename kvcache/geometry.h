/* geometry.h: where the K and V of a token lie; bytes per block; no state.
 *
 * Block-major (design of the pool):  [block][layer][K,V][slab],
 *     HND slab [kv_head][token][dim],  NHD slab [token][kv_head][dim].
 * Layers of a group may differ in heads and widths, so every layer has an offset of its own inside
 * the block. Slabs start at multiples of 128 bytes.
 */
#ifndef ATTND_KVCACHE_GEOMETRY_H
#define ATTND_KVCACHE_GEOMETRY_H

#include "proto/err.h"

typedef struct kv_layer_shape {
    uint32_t n_kv_heads;
    uint32_t head_dim;   /* channels of K */
    uint32_t head_dim_v; /* channels of V */
} kv_layer_shape;

/* Bytes; plane 0 is K, 1 is V. */
typedef struct kv_layer_place {
    int64_t plane_offset[2]; /* from the block's start */
    int64_t head_stride[2];
    int64_t token_stride[2];
} kv_layer_place;

typedef struct kv_geometry {
    uint32_t block_size; /* tokens, a power of two */
    attnd_dtype dtype;
    attnd_layout layout;
    uint32_t n_layers;
    int64_t block_bytes; /* = block stride, a multiple of 128 */
} kv_geometry;

/* Bytes of one block for these layers, and where each layer lies: fills places[n_layers] (may be
 * NULL). Refuses BAD_GEOMETRY (block_size not a power of two in 1..1024, a zero count, a dtype no
 * pool holds) and TOO_LARGE (a block of 2^40 bytes or more); *out is then as before, places hold
 * nothing of use. */
attnd_status kv_geometry_make(kv_geometry *out, uint32_t block_size, attnd_dtype dtype,
                              attnd_layout layout, const kv_layer_shape *layers, uint32_t n_layers,
                              kv_layer_place *places, attnd_err *err);

/* Blocks that hold n_tokens ≥ 0. */
int64_t kv_geometry_blocks(const kv_geometry *geometry, int64_t n_tokens);

/* Bytes of n_blocks blocks and the guard block behind them; TOO_LARGE beyond 2^47. */
attnd_status kv_geometry_pool_bytes(const kv_geometry *geometry, uint32_t n_blocks, uint64_t *out,
                                    attnd_err *err);

/* Blocks that fit into bytes with the guard block; may be 0. At most 2^31-1. */
uint32_t kv_geometry_fit(const kv_geometry *geometry, uint64_t bytes);

#endif
