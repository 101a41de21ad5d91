/* geometry.c: where the K and V of a token lie. */
#include "kvcache/geometry.h"

#include <stdbool.h>

enum { SLAB_ALIGN = 128, MAX_BLOCK_SIZE = 1024 };

static const uint64_t BLOCK_END = 1ull << 40, POOL_MAX = 1ull << 47;

static attnd_status check_group(uint32_t block_size, attnd_dtype dtype, attnd_layout layout,
                                uint32_t n_layers, attnd_err *err)
{
    if (block_size == 0 || block_size > MAX_BLOCK_SIZE || (block_size & (block_size - 1)) != 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "block_size = %u: a power of two, 1..%d",
                          block_size, MAX_BLOCK_SIZE);
    if (dtype != ATTND_DTYPE_F32 && dtype != ATTND_DTYPE_F16 && dtype != ATTND_DTYPE_BF16)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "kv_dtype = %s: a pool holds f32, f16 or bf16",
                          attnd_dtype_name(dtype));
    if (layout != ATTND_LAYOUT_HND && layout != ATTND_LAYOUT_NHD)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "layout = %u: 0 (HND) or 1 (NHD)",
                          (unsigned)layout);
    if (n_layers == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "n_layers = 0: a group has at least 1 layer");
    return ATTND_OK;
}

static attnd_status check_layer(const kv_layer_shape *layer, uint32_t i, attnd_err *err)
{
    const char *zero = NULL;
    if (layer->n_kv_heads == 0)
        zero = "n_kv_heads";
    else if (layer->head_dim == 0)
        zero = "head_dim";
    else if (layer->head_dim_v == 0)
        zero = "head_dim_v";
    if (zero)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "layers[%u].%s = 0: at least 1", i, zero);
    return ATTND_OK;
}

/* Adds a slab of heads·tokens·width elements to *end, its end rounded up; false at 2^40. */
static bool add_slab(uint64_t *end, uint64_t heads, uint64_t row_bytes, uint64_t tokens)
{
    uint64_t bytes;
    if (__builtin_mul_overflow(heads, row_bytes, &bytes) ||
        __builtin_mul_overflow(bytes, tokens, &bytes) ||
        __builtin_add_overflow(bytes, *end + SLAB_ALIGN - 1, &bytes))
        return false;
    *end = bytes & ~(uint64_t)(SLAB_ALIGN - 1);
    return *end < BLOCK_END;
}

attnd_status kv_geometry_make(kv_geometry *out, uint32_t block_size, attnd_dtype dtype,
                              attnd_layout layout, const kv_layer_shape *layers, uint32_t n_layers,
                              kv_layer_place *places, attnd_err *err)
{
    TRY(check_group(block_size, dtype, layout, n_layers, err));
    uint64_t element = attnd_dtype_bits(dtype) / 8, end = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        const kv_layer_shape *layer = &layers[i];
        TRY(check_layer(layer, i, err));
        const uint64_t row_bytes[2] = {layer->head_dim * element, layer->head_dim_v * element};
        kv_layer_place place;
        for (int p = 0; p < 2; p++) {
            place.plane_offset[p] = (int64_t)end;
            if (!add_slab(&end, layer->n_kv_heads, row_bytes[p], block_size))
                return attnd_fail(err, ATTND_TOO_LARGE,
                                  "layers[%u].head_dim%s = %u: %u kv heads of %u tokens make a "
                                  "block of 2^40 bytes or more",
                                  i, p ? "_v" : "", p ? layer->head_dim_v : layer->head_dim,
                                  layer->n_kv_heads, block_size);
            bool hnd = layout == ATTND_LAYOUT_HND;
            place.head_stride[p] = (int64_t)(row_bytes[p] * (hnd ? block_size : 1));
            place.token_stride[p] = (int64_t)(row_bytes[p] * (hnd ? 1 : layer->n_kv_heads));
        }
        if (places)
            places[i] = place;
    }
    *out = (kv_geometry){block_size, dtype, layout, n_layers, (int64_t)end};
    return ATTND_OK;
}

int64_t kv_geometry_blocks(const kv_geometry *geometry, int64_t n_tokens)
{
    return n_tokens / geometry->block_size + (n_tokens % geometry->block_size != 0);
}

attnd_status kv_geometry_pool_bytes(const kv_geometry *geometry, uint32_t n_blocks, uint64_t *out,
                                    attnd_err *err)
{
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)n_blocks + 1, (uint64_t)geometry->block_bytes, &bytes) ||
        bytes > POOL_MAX)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "n_blocks = %u: %lld bytes a block and one block more pass 2^47 bytes",
                          n_blocks, (long long)geometry->block_bytes);
    *out = bytes;
    return ATTND_OK;
}

uint32_t kv_geometry_fit(const kv_geometry *geometry, uint64_t bytes)
{
    uint64_t n_blocks = bytes / (uint64_t)geometry->block_bytes;
    if (n_blocks == 0)
        return 0;
    return n_blocks - 1 < INT32_MAX ? (uint32_t)(n_blocks - 1) : INT32_MAX;
}
