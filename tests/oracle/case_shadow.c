/* case_shadow.c: the evaluator's copy of a model: its pools, and calls on them. */
#include "tests/oracle/case_shadow.h"

#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case_json.h"
#include "tests/oracle/codec.h"

/* ---- Pools ------------------------------------------------------------------------------------
 */

static bool is_mla(const ora_shadow_layer *layer)
{
    return layer->spec.kind == ATTND_LAYER_MLA;
}

static void fill_defaults(ora_case_layer *l, const ora_case_group *group)
{
    if (!l->n_kv_heads)
        l->n_kv_heads = l->kind == ATTND_LAYER_MLA ? 1 : l->n_heads;
    if (!l->head_dim_v)
        l->head_dim_v = l->head_dim;
    if (!l->window)
        l->window = group->window;
    if (!l->rope.dim)
        l->rope.dim = l->head_dim;
    if (l->rope.theta == 0)
        l->rope.theta = 10000;
}

static attnd_status open_layer(ora_shadow *shadow, ora_arena *arena, ora_shadow_layer *layer,
                               const ora_case_layer *spec, attnd_err *err)
{
    layer->spec = *spec;
    if (spec->group >= shadow->n_groups)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "spec.layers: group = %u: there are %zu",
                          spec->group, shadow->n_groups);
    const ora_case_group *group = &shadow->groups[spec->group];
    ora_case_layer *l = &layer->spec;
    fill_defaults(l, group);
    if (!l->n_heads || !l->head_dim || l->n_heads % l->n_kv_heads)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "spec.layers: n_heads = %u: a multiple of n_kv_heads = %u", l->n_heads,
                          l->n_kv_heads);
    layer->sm_scale = l->sm_scale != 0 ? l->sm_scale : ora_sm_scale(l->q_scaling, l->head_dim);
    if (!ora_codec_has(group->kv_dtype))
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "spec.groups: kv_dtype = %s: the evaluator has no pools of it",
                          attnd_dtype_name(group->kv_dtype));
    size_t rows = (size_t)group->block_size * l->n_kv_heads;
    size_t element = ora_codec_bytes(group->kv_dtype);
    layer->k_bytes = rows * l->head_dim * element;
    layer->block_bytes = layer->k_bytes + (is_mla(layer) ? 0 : rows * l->head_dim_v * element);
    layer->pool_bytes = layer->block_bytes * shadow->n_blocks[l->group];
    /* Not of the arena: of a large pool only what is written takes memory. */
    layer->pool = calloc(1, layer->pool_bytes + 1);
    if (!layer->pool)
        return attnd_fail(err, ATTND_NO_ROOM, "spec.groups: no memory for %zu bytes",
                          layer->pool_bytes);
    if (l->n_sinks) {
        layer->sinks = ora_arena_take(arena, l->n_heads, sizeof *layer->sinks);
        for (uint32_t h = 0; layer->sinks && h < l->n_heads; h++)
            layer->sinks[h] = (float)l->sinks[h % l->n_sinks];
    }
    if (l->alibi) {
        layer->slopes = ora_arena_take(arena, l->n_heads, sizeof *layer->slopes);
        for (uint32_t h = 0; layer->slopes && h < l->n_heads; h++)
            layer->slopes[h] = (float)ora_alibi_slope(h, l->n_heads);
    }
    if ((l->n_sinks && !layer->sinks) || (l->alibi && !layer->slopes))
        return attnd_fail(err, ATTND_NO_ROOM, "spec.layers: no memory");
    return ATTND_OK;
}

/* Blocks that fit into the group's bytes. */
static uint32_t blocks_of(const ora_case_spec *spec, uint32_t g)
{
    const ora_case_group *group = &spec->groups[g];
    uint64_t bytes = 0;
    if (group->n_blocks)
        return group->n_blocks;
    for (size_t l = 0; l < spec->n_layers; l++) {
        ora_case_layer layer = spec->layers[l];
        fill_defaults(&layer, group);
        if (layer.group == g)
            bytes += (uint64_t)(layer.count ? layer.count : 1) * layer.n_kv_heads *
                     group->block_size * (layer.head_dim + layer.head_dim_v) *
                     attnd_dtype_bits(group->kv_dtype) / 8;
    }
    return bytes ? (uint32_t)(group->bytes / bytes) : 0;
}

attnd_status ora_shadow_init(ora_shadow *shadow, ora_arena *arena, const ora_case_spec *spec,
                             const uint32_t *n_blocks, attnd_err *err)
{
    size_t n = 0;
    for (size_t l = 0; l < spec->n_layers; l++)
        n += spec->layers[l].count ? spec->layers[l].count : 1;
    *shadow = (ora_shadow){.groups = spec->groups, .n_groups = spec->n_groups};
    shadow->n_blocks = ora_arena_take(arena, spec->n_groups + 1, sizeof *shadow->n_blocks);
    shadow->layers = ora_arena_take(arena, n + 1, sizeof *shadow->layers);
    if (!shadow->n_blocks || !shadow->layers)
        return attnd_fail(err, ATTND_NO_ROOM, "spec: no memory");
    for (uint32_t g = 0; g < spec->n_groups; g++)
        shadow->n_blocks[g] = n_blocks ? n_blocks[g] : blocks_of(spec, g);
    for (size_t l = 0; l < spec->n_layers; l++)
        for (uint32_t i = 0; i < (spec->layers[l].count ? spec->layers[l].count : 1); i++)
            TRY(open_layer(shadow, arena, &shadow->layers[shadow->n_layers++], &spec->layers[l],
                           err));
    return ATTND_OK;
}

void ora_shadow_fini(ora_shadow *shadow)
{
    for (uint32_t l = 0; l < shadow->n_layers; l++)
        free(shadow->layers[l].pool);
    *shadow = (ora_shadow){0};
}

uint64_t ora_hash_bytes(const void *bytes, size_t n, uint64_t hash)
{
    const unsigned char *at = bytes;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ at[i]) * 0x100000001B3u;
    return hash;
}

uint64_t ora_shadow_hash(const ora_shadow *shadow)
{
    uint64_t hash = ORA_HASH_EMPTY;
    for (uint32_t l = 0; l < shadow->n_layers; l++)
        hash = ora_hash_bytes(shadow->layers[l].pool, shadow->layers[l].pool_bytes, hash);
    return hash;
}

/* ---- Calls ------------------------------------------------------------------------------------
 */

static ora_rows rows_of(const ora_bytes *b, uint32_t layer)
{
    int64_t element = attnd_dtype_bits(b->dtype) / 8;
    if (!b->given)
        return (ora_rows){0};
    return (ora_rows){.base = b->packed + (int64_t)layer * b->rows * b->heads * b->width * element,
                      .token_stride = (int64_t)b->heads * b->width * element,
                      .head_stride = (int64_t)b->width * element,
                      .dtype = b->dtype};
}

static ora_kv kv_of(const ora_shadow *shadow, const ora_shadow_layer *layer)
{
    const ora_case_layer *l = &layer->spec;
    const ora_case_group *group = &shadow->groups[l->group];
    int64_t element = (int64_t)ora_codec_bytes(group->kv_dtype), T = group->block_size;
    ora_kv kv = {.n_blocks = shadow->n_blocks[l->group],
                 .block_size = group->block_size,
                 .dtype = group->kv_dtype,
                 .plane = {layer->pool, layer->pool + (is_mla(layer) ? 0 : layer->k_bytes)},
                 .block_stride = (int64_t)layer->block_bytes};
    uint32_t widths[2] = {l->head_dim, is_mla(layer) ? l->head_dim : l->head_dim_v};
    for (int p = 0; p < 2; p++) {
        kv.token_stride[p] = widths[p] * element;
        kv.head_stride[p] = T * widths[p] * element;
    }
    return kv;
}

static const ora_case_table *table_of(const ora_case_batch *batch, uint32_t group)
{
    for (size_t i = 0; i < batch->n_tables; i++)
        if (batch->tables[i].group == group)
            return &batch->tables[i];
    return NULL;
}

/* Where the row of each sequence starts. Refuses a table that is too short for what it must hold.
 */
static attnd_status find_rows(ora_arena *arena, const ora_case_batch *batch,
                              const ora_case_table *table, uint32_t block_size,
                              const int64_t **first, attnd_err *err)
{
    size_t n = batch->kv_lens.n;
    int64_t *out = ora_arena_take(arena, n + 1, sizeof *out), at = 0;
    if (!out)
        return attnd_fail(err, ATTND_NO_ROOM, "batch: no memory");
    for (size_t b = 0; b < n; b++) {
        int64_t needed = ((int64_t)batch->kv_lens.values[b] + block_size - 1) / block_size;
        out[b] = at;
        at += table->width ? table->width : needed;
        if ((table->width && needed > table->width) || at > (int64_t)table->block_ids.ids.n)
            return attnd_fail(err, ATTND_BAD_LENGTH,
                              "batch.tables: %zu block ids: sequence %zu needs more",
                              table->block_ids.ids.n, b);
    }
    *first = out;
    return ATTND_OK;
}

/* Words and depths of trees from the parents of their nodes (attention.md §6.7, §13.2). */
static attnd_status make_tree(ora_arena *arena, const ora_case_batch *batch, ora_problem *p,
                              attnd_err *err)
{
    size_t n_tokens = 0, n_nodes = 0, at = 0, t = 0;
    uint32_t widest = 0;
    for (uint32_t b = 0; b < p->n_seqs; b++) {
        n_tokens += (size_t)p->q_len[b];
        if (b < p->n_contexts)
            continue;
        n_nodes += (size_t)p->q_len[b];
        if ((uint32_t)p->q_len[b] > widest)
            widest = (uint32_t)p->q_len[b];
    }
    if (batch->parents.n != n_nodes)
        return attnd_fail(err, ATTND_BAD_MASK, "batch.parents = %zu: there are %zu nodes",
                          batch->parents.n, n_nodes);
    uint32_t width = (widest + 31) / 32;
    uint32_t *words = ora_arena_take(arena, n_nodes * width + 1, sizeof *words);
    int32_t *depth = ora_arena_take(arena, n_tokens + 1, sizeof *depth);
    if (!words || !depth)
        return attnd_fail(err, ATTND_NO_ROOM, "batch: no memory");
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++, t++) {
            if (b < p->n_contexts) {
                depth[t] = i;
                continue;
            }
            uint32_t *row = words + at * width;
            int32_t parent = batch->parents.values[at++];
            if (parent >= i || parent < -1)
                return attnd_fail(err, ATTND_BAD_MASK, "batch.parents[%zu] = %d: -1..%d", at - 1,
                                  parent, i - 1);
            if (parent >= 0)
                memcpy(row, row - (size_t)(i - parent) * width, width * sizeof *row);
            row[i / 32] |= 1u << (i % 32);
            depth[t] = parent < 0 ? 0 : depth[t - (size_t)(i - parent)] + 1;
        }
    p->mask.tree_words = words;
    p->mask.tree_width = width;
    p->mask.tree_depth = depth;
    return ATTND_OK;
}

static attnd_status make_mask(ora_arena *arena, const ora_case_layer *l,
                              const ora_case_batch *batch, ora_problem *p, attnd_err *err)
{
    ora_mask *mask = &p->mask;
    static const uint32_t kinds[] = {ORA_MASK_CAUSAL, 0, ORA_MASK_VARIABLE, ORA_MASK_BYTES,
                                     ORA_MASK_TREE};
    mask->kinds = kinds[batch->mask];
    if (l->window) {
        mask->kinds |= ORA_MASK_WINDOW;
        mask->window = l->window > INT32_MAX ? INT32_MAX : (int32_t)l->window;
    }
    if (l->chunk) {
        mask->kinds |= ORA_MASK_CHUNK;
        mask->chunk = (int32_t)l->chunk;
    }
    if (batch->mask == ORA_CASE_VARIABLE) {
        mask->start = batch->starts.values;
        mask->end = batch->ends.values;
    }
    if (batch->mask == ORA_CASE_CUSTOM) {
        uint8_t *bytes = ora_arena_take(arena, batch->custom.n + 1, 1);
        if (!bytes)
            return attnd_fail(err, ATTND_NO_ROOM, "batch: no memory");
        for (size_t i = 0; i < batch->custom.n; i++)
            bytes[i] = batch->custom.values[i] != 0;
        mask->custom = bytes;
    }
    return batch->mask == ORA_CASE_TREE ? make_tree(arena, batch, p, err) : ATTND_OK;
}

static ora_rope rope_of(const ora_case_layer *l)
{
    return (ora_rope){.pairing = l->rope.pairing,
                      .dim = l->rope.dim,
                      .theta = l->rope.theta,
                      .scaling = (ora_scaling)l->rope.scaling};
}

static attnd_status make_problem(const ora_shadow *shadow, ora_arena *arena, const ora_call *call,
                                 const ora_case_batch *batch, uint32_t i, ora_problem *p,
                                 attnd_err *err)
{
    if (call->layer + i >= shadow->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "layer = %u: there are %u", call->layer + i,
                          shadow->n_layers);
    const ora_shadow_layer *layer = &shadow->layers[call->layer + i];
    const ora_case_layer *l = &layer->spec;
    *p = (ora_problem){
        .n_heads = l->n_heads,
        .n_kv_heads = l->n_kv_heads,
        .head_dim = l->head_dim,
        .head_dim_v = l->head_dim_v,
        .sm_scale = layer->sm_scale,
        .dtype = call->q.dtype,
        .n_seqs = (uint32_t)batch->q_lens.n,
        .n_contexts = batch->n_contexts,
        .q_len = batch->q_lens.values,
        .kv_len = batch->kv_lens.values,
        .positions = batch->positions.given ? batch->positions.values : NULL,
        .q = rows_of(&call->q, i),
        .k = rows_of(&call->k, i),
        .v = rows_of(&call->v, i),
        .slots = batch->slots.given ? batch->slots.values : NULL,
        .kv = kv_of(shadow, layer),
        .rope = rope_of(l),
        .bias = {.softcap = l->softcap, .sinks = layer->sinks, .alibi_slopes = layer->slopes}};
    TRY(make_mask(arena, l, batch, p, err));
    if (is_mla(layer))
        p->latent.appends = true;
    return ATTND_OK;
}

/* Keys that come with the call instead of a pool. */
static void give_keys(ora_problem *p)
{
    p->kv = (ora_kv){.plane = {(void *)p->k.base, (void *)p->v.base},
                     .head_stride = {p->k.head_stride, p->v.head_stride},
                     .token_stride = {p->k.token_stride, p->v.token_stride},
                     .dtype = p->k.dtype};
    p->k = p->v = (ora_rows){0};
}

attnd_status ora_shadow_attend(ora_shadow *shadow, ora_arena *arena, const ora_call *call,
                               const ora_case_batch *batch, uint32_t i, ora_result *out,
                               attnd_err *err)
{
    ora_problem p;
    if (batch->q_lens.n != batch->kv_lens.n)
        return attnd_fail(err, ATTND_BAD_LENGTH, "batch.kv_lens = %zu: q_lens has %zu",
                          batch->kv_lens.n, batch->q_lens.n);
    TRY(make_problem(shadow, arena, call, batch, i, &p, err));
    if (call->keys) {
        give_keys(&p);
    } else {
        const ora_shadow_layer *layer = &shadow->layers[call->layer + i];
        const ora_case_table *table = table_of(batch, layer->spec.group);
        if (!table)
            return attnd_fail(err, ATTND_BAD_BLOCK, "batch.tables: none of group %u",
                              layer->spec.group);
        TRY(find_rows(arena, batch, table, p.kv.block_size, &p.block_first, err));
        p.block_ids = table->block_ids.ids.values;
        TRY(ora_append(&p, err));
    }
    return out ? ora_attend(&p, out, err) : ATTND_OK;
}
