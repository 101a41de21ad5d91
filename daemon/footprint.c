/* footprint.c: what a model of a config file takes, by the arithmetic of kvcache/. */
#include "daemon/footprint.h"

#include <inttypes.h>
#include <stdlib.h>

#include "kvcache/geometry.h"

/* "8.00 GiB", "576 B". */
static void bytes_text(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(out, 32, value == (double)(uint64_t)value ? "%.0f %s" : "%.2f %s", value, units[unit]);
}

/* A row of MLA is one plane of latent and rotated channels; its values are part of it. As two
 * planes of slabs it has the same bytes. */
static kv_layer_shape shape_of(const cfg_layer *layer)
{
    bool is_mla = layer->kind == ATTND_LAYER_MLA;
    return (kv_layer_shape){
        .n_kv_heads = layer->n_kv_heads,
        .head_dim = is_mla ? layer->head_dim_v : layer->head_dim,
        .head_dim_v = is_mla ? layer->head_dim - layer->head_dim_v : layer->head_dim_v,
    };
}

/* The shapes of a group's layers, counts multiplied out; the caller frees them. */
static kv_layer_shape *shapes_of(const cfg_model *model, size_t g, uint32_t *n_out)
{
    kv_layer_shape *shapes = NULL;
    uint32_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (size_t l = 0; l < model->n_layers; l++) {
            const cfg_layer *layer = &model->layers[l];
            if (layer->group != g || layer->kind == ATTND_LAYER_ENCODER)
                continue;
            for (uint32_t i = 0; i < layer->count; i++, n++)
                if (shapes)
                    shapes[n] = shape_of(layer);
        }
        if (pass == 0)
            shapes = calloc(n + 1, sizeof *shapes);
        if (!shapes)
            return NULL;
    }
    *n_out = n;
    return shapes;
}

static attnd_status measure(const cfg_model *model, size_t g, kv_geometry *geometry,
                            uint32_t *n_blocks, uint64_t *pool_bytes, attnd_err *err)
{
    const cfg_group *group = &model->groups[g];
    uint32_t n;
    kv_layer_shape *shapes = shapes_of(model, g, &n);
    if (!shapes)
        return attnd_fail(err, ATTND_NO_ROOM, "n_layers: no memory");
    attnd_status status =
        kv_geometry_make(geometry, group->block_size, (attnd_dtype)group->kv_dtype,
                         (attnd_layout)group->layout, shapes, n, NULL, err);
    free(shapes);
    TRY(status);
    *n_blocks = group->n_blocks ? group->n_blocks : kv_geometry_fit(geometry, group->bytes);
    if (!*n_blocks)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "bytes = %" PRIu64 ": one block and its guard take %" PRIu64,
                          group->bytes, 2 * (uint64_t)geometry->block_bytes);
    return kv_geometry_pool_bytes(geometry, *n_blocks, pool_bytes, err);
}

static attnd_status print_group(FILE *out, const cfg_model *model, size_t g, attnd_err *err)
{
    const cfg_group *group = &model->groups[g];
    kv_geometry geometry;
    uint32_t n_blocks = 0;
    uint64_t pool_bytes = 0;
    char block[32], token[32], pool[32];
    TRY(measure(model, g, &geometry, &n_blocks, &pool_bytes, err));
    bytes_text((uint64_t)geometry.block_bytes, block);
    bytes_text((uint64_t)geometry.block_bytes / group->block_size, token);
    bytes_text(pool_bytes, pool);
    fprintf(out,
            "  group %s: %u layers, %s, %u tokens a block: %s a block, %s a token; %u blocks hold "
            "%" PRIu64 " tokens in %s (%" PRIu64 " bytes, the guard block included)\n",
            group->name, geometry.n_layers, attnd_dtype_name(geometry.dtype), group->block_size,
            block, token, n_blocks, (uint64_t)n_blocks * group->block_size, pool, pool_bytes);
    return ATTND_OK;
}

attnd_status srv_footprint_print(FILE *out, const cfg_model *model, size_t m, attnd_err *err)
{
    uint32_t n_layers = 0, n_encoders = 0;
    for (size_t l = 0; l < model->n_layers; l++) {
        n_layers += model->layers[l].count;
        if (model->layers[l].kind == ATTND_LAYER_ENCODER)
            n_encoders += model->layers[l].count;
    }
    fprintf(out, "model %s: %u layers", model->name, n_layers);
    fprintf(out, n_encoders ? ", %u of them encoder layers that keep nothing\n" : "\n", n_encoders);
    for (size_t g = 0; g < model->n_groups; g++)
        if (print_group(out, model, g, err) != ATTND_OK) {
            attnd_err_prefix(err, "models[%zu].groups[%zu].", m, g);
            return err->status;
        }
    return ATTND_OK;
}
