/* attnctl_target.c: a running daemon as what case files are run against.
 *
 * All tensors of a call lie in one buffer, 0xFF between them; one whose case gives the size of its
 * memory, and integers that travel by reference, have a buffer of their own.
 */
#include "daemon/attnctl_target.h"

#include <stdlib.h>
#include <string.h>

enum { GAP = 64, MAX_TABLES = 64 };

/* ---- Memory of a call -------------------------------------------------------------------------
 */

/* A tensor on its way, or one that lies alone. */
typedef struct placed {
    ora_bytes *bytes; /* NULL: integers */
    attnd_buffer *buffer;
    uint64_t offset; /* of the region in the buffer */
    bool is_output;
} placed;

typedef struct parcel {
    ctl_target *t;
    placed *items;
    size_t n, room;
    uint64_t total; /* bytes of the shared buffer */
} parcel;

static attnd_status no_memory(attnd_err *err)
{
    attnd_fail(err, ATTND_NO_ROOM, "attnctl: no memory");
    return ATTND_RESOURCE_EXHAUSTED;
}

static uint64_t up(uint64_t bytes)
{
    return (bytes + GAP - 1) / GAP * GAP;
}

static attnd_status add(parcel *p, placed item, attnd_err *err)
{
    if (p->n == p->room) {
        size_t room = p->room * 2 + 8;
        placed *grown = realloc(p->items, room * sizeof *grown);
        if (!grown)
            return no_memory(err);
        p->items = grown;
        p->room = room;
    }
    p->items[p->n++] = item;
    return ATTND_OK;
}

static attnd_status put(parcel *p, const ora_bytes *bytes, bool is_output, attnd_err *err)
{
    placed item = {.bytes = (ora_bytes *)bytes, .is_output = is_output};
    if (!bytes->given)
        return ATTND_OK;
    if (bytes->is_alone) {
        attnd_status status =
            attnd_create_buffer(p->t->client, bytes->n_region, p->t->timeout_ms, &item.buffer, err);
        if (status != ATTND_OK)
            return status;
    } else {
        item.offset = p->total + GAP;
        p->total = item.offset + up(bytes->n_region);
    }
    return add(p, item, err);
}

/* Copies regions into their buffers; what lies between them is 0xFF. */
static attnd_status load(parcel *p, attnd_err *err)
{
    ctl_target *t = p->t;
    p->total += GAP;
    if (!t->buffer || attnd_buffer_bytes(t->buffer) < p->total) {
        attnd_free_buffer(t->buffer, t->timeout_ms, NULL);
        t->buffer = NULL;
        attnd_status status =
            attnd_create_buffer(t->client, p->total, t->timeout_ms, &t->buffer, err);
        if (status != ATTND_OK)
            return status;
    }
    char *image = malloc(p->total);
    if (!image)
        return no_memory(err);
    memset(image, 0xFF, p->total);
    attnd_status status = ATTND_OK;
    for (size_t i = 0; status == ATTND_OK && i < p->n; i++) {
        placed *item = &p->items[i];
        if (!item->bytes)
            continue;
        if (item->buffer) {
            status = attnd_buffer_write(item->buffer, 0, item->bytes->region, item->bytes->n_region,
                                        err);
        } else {
            item->buffer = t->buffer;
            memcpy(image + item->offset, item->bytes->region, item->bytes->n_region);
        }
    }
    if (status == ATTND_OK)
        status = attnd_buffer_write(t->buffer, 0, image, p->total, err);
    free(image);
    return status;
}

/* A tensor's region as it is now; NULL without memory or when it cannot be read. The caller frees
 * it unless it lies in image, that of the shared buffer. */
static unsigned char *region_now(const parcel *p, const placed *item, unsigned char *image,
                                 attnd_err *err)
{
    if (item->buffer == p->t->buffer)
        return image + item->offset;
    unsigned char *copy = malloc(item->bytes->n_region + 1);
    if (!copy) {
        no_memory(err);
        return NULL;
    }
    if (attnd_buffer_read(item->buffer, 0, copy, item->bytes->n_region, err) == ATTND_OK)
        return copy;
    free(copy);
    return NULL;
}

static attnd_status unload_image(parcel *p, unsigned char *base, attnd_status status,
                                 attnd_err *err)
{
    uint64_t end = 0;
    for (size_t i = 0; i < p->n; i++) {
        placed *item = &p->items[i];
        if (!item->bytes)
            continue;
        unsigned char *from = region_now(p, item, base, err);
        if (!from)
            return err->status;
        bool changed = memcmp(from, item->bytes->region, item->bytes->n_region) != 0;
        if (item->is_output)
            memcpy(item->bytes->region, from, item->bytes->n_region);
        if (item->buffer != p->t->buffer)
            free(from);
        if (!item->is_output && changed && status == ATTND_OK)
            return attnd_fail(err, ATTND_BROKEN, "tensor %zu: the call wrote to an input", i);
        if (item->buffer != p->t->buffer)
            continue;
        for (; end < item->offset; end++)
            if (base[end] != 0xFF)
                return attnd_fail(err, ATTND_BROKEN,
                                  "tensor %zu: %llu bytes before it were written", i,
                                  (unsigned long long)(item->offset - end));
        end = item->offset + item->bytes->n_region;
    }
    for (; end < p->total; end++)
        if (base[end] != 0xFF)
            return attnd_fail(err, ATTND_BROKEN, "tensors: bytes behind the last were written");
    return status;
}

/* Copies outputs back. Refuses BROKEN when something else was written. */
static attnd_status unload(parcel *p, attnd_status status, attnd_err *err)
{
    attnd_err why;
    unsigned char *image = malloc(p->total);
    attnd_status read =
        image ? attnd_buffer_read(p->t->buffer, 0, image, p->total, &why) : no_memory(&why);
    if (read != ATTND_OK && status == ATTND_OK)
        *err = why;
    if (read == ATTND_OK)
        read = unload_image(p, image, status, err);
    else if (status != ATTND_OK)
        read = status;
    free(image);
    return read;
}

static void drop(parcel *p)
{
    for (size_t i = 0; i < p->n; i++)
        if (p->items[i].buffer && p->items[i].buffer != p->t->buffer)
            attnd_free_buffer(p->items[i].buffer, p->t->timeout_ms, NULL);
    free(p->items);
}

static attnd_tensor tensor_of(const parcel *p, const ora_bytes *bytes)
{
    attnd_tensor out = {0};
    for (size_t i = 0; i < p->n; i++) {
        const placed *item = &p->items[i];
        if (item->bytes != bytes)
            continue;
        out.buffer = item->buffer;
        out.offset = item->offset + bytes->offset;
        out.dtype = bytes->dtype;
        out.n_dims = bytes->n_dims;
        out.n_strides = bytes->n_strides;
        memcpy(out.shape, bytes->shape, sizeof out.shape);
        memcpy(out.strides, bytes->strides, sizeof out.strides);
    }
    return out;
}

static attnd_layer_tensor layers_of(const parcel *p, const ora_bytes *bytes)
{
    return (attnd_layer_tensor){.first = tensor_of(p, bytes),
                                .layer_stride = bytes->given ? bytes->layer_stride : 0};
}

/* ---- Integers and batches ---------------------------------------------------------------------
 */

static attnd_status ints_of(parcel *p, const ora_case_ints *ints, attnd_ints *out, attnd_err *err)
{
    static const int32_t none;
    placed item = {0};
    *out = (attnd_ints){0};
    if (!ints->given)
        return ATTND_OK;
    if (!ints->is_ref || !ints->n) {
        *out = (attnd_ints){.values = ints->n ? ints->values : &none, .n = ints->n};
        return ATTND_OK;
    }
    size_t bytes = ints->n * sizeof *ints->values;
    attnd_status status =
        attnd_create_buffer(p->t->client, bytes, p->t->timeout_ms, &item.buffer, err);
    if (status != ATTND_OK)
        return status;
    status = attnd_buffer_write(item.buffer, 0, ints->values, bytes, err);
    if (status != ATTND_OK) {
        attnd_free_buffer(item.buffer, p->t->timeout_ms, NULL);
        return status;
    }
    out->tensor = (attnd_tensor){
        .buffer = item.buffer, .dtype = ATTND_DTYPE_I32, .n_dims = 1, .shape = {ints->n}};
    return add(p, item, err);
}

static attnd_status tables_of(parcel *p, const ora_case_table *tables, size_t n, attnd_table *out,
                              attnd_err *err)
{
    if (n > MAX_TABLES)
        return attnd_fail(err, ATTND_TOO_LARGE, "tables = %zu: attnctl sends at most %d", n,
                          MAX_TABLES);
    for (size_t i = 0; i < n; i++) {
        out[i].group = tables[i].group;
        out[i].width = tables[i].width;
        TRY(ints_of(p, &tables[i].block_ids.ids, &out[i].block_ids, err));
    }
    return ATTND_OK;
}

static attnd_status batch_of(parcel *p, const ora_case_batch *b, attnd_table *tables,
                             attnd_batch *out, attnd_err *err)
{
    *out = (attnd_batch){.n_contexts = b->n_contexts,
                         .tables = tables,
                         .n_tables = b->n_tables,
                         .mask = (attnd_mask)b->mask};
    TRY(ints_of(p, &b->q_lens, &out->q_lens, err));
    TRY(ints_of(p, &b->kv_lens, &out->kv_lens, err));
    TRY(ints_of(p, &b->slots, &out->slots, err));
    TRY(ints_of(p, &b->positions, &out->positions, err));
    return tables_of(p, b->tables, b->n_tables, tables, err);
}

static attnd_status update_of(parcel *p, const ora_case_update *u, attnd_table *tables,
                              attnd_plan_update *out, attnd_err *err)
{
    *out =
        (attnd_plan_update){.version = u->version, .appended = tables, .n_appended = u->n_appended};
    TRY(ints_of(p, &u->q_lens, &out->q_lens, err));
    TRY(ints_of(p, &u->kv_lens, &out->kv_lens, err));
    TRY(ints_of(p, &u->slots, &out->slots, err));
    TRY(ints_of(p, &u->positions, &out->positions, err));
    return tables_of(p, u->appended, u->n_appended, tables, err);
}

/* ---- Models -----------------------------------------------------------------------------------
 */

static bool has(void *self, const char *feature)
{
    const attnd_info *info = attnd_get_info(((ctl_target *)self)->client);
    for (size_t i = 0; i < info->n_features; i++)
        if (strcmp(info->features[i], feature) == 0)
            return true;
    return false;
}

static attnd_layer_spec layer_of(const ora_case_layer *l)
{
    return (attnd_layer_spec){
        .kind = (attnd_layer_kind)l->kind,
        .group = l->group,
        .n_heads = l->n_heads,
        .n_kv_heads = l->n_kv_heads,
        .head_dim = l->head_dim,
        .head_dim_v = l->head_dim_v,
        .sm_scale = (float)l->sm_scale,
        .q_scaling = (float)l->q_scaling,
        .window = l->window,
        .chunk = l->chunk,
        .softcap = (float)l->softcap,
        .rope = {l->rope.pairing, l->rope.dim, l->rope.theta, (attnd_rope_scaling)l->rope.scaling},
        .count = l->count};
}

static attnd_group_spec group_of(const ora_case_group *g)
{
    return (attnd_group_spec){.name = *g->name ? g->name : NULL,
                              .block_size = g->block_size,
                              .kv_dtype = (attnd_dtype)g->kv_dtype,
                              .layout = (attnd_layout)g->layout,
                              .n_blocks = g->n_blocks,
                              .bytes = g->bytes,
                              .max_kv_len = g->max_kv_len,
                              .window = g->window};
}

static attnd_status check_carried(const ora_case_spec *spec, attnd_err *err)
{
    for (size_t i = 0; i < spec->n_layers; i++)
        if (spec->layers[i].n_sinks || spec->layers[i].alibi)
            return attnd_fail(err, ATTND_UNSUPPORTED,
                              "spec.layers[%zu].%s: the wire does not carry it", i,
                              spec->layers[i].alibi ? "alibi" : "sinks");
    return ATTND_OK;
}

static attnd_status open_model(void *self, const ora_case_spec *spec, uint64_t *model,
                               uint32_t *n_blocks, attnd_err *err)
{
    ctl_target *t = self;
    attnd_model opened;
    TRY(check_carried(spec, err));
    attnd_layer_spec *layers = calloc(spec->n_layers + 1, sizeof *layers);
    attnd_group_spec *groups = calloc(spec->n_groups + 1, sizeof *groups);
    attnd_pool *pools = calloc(spec->n_groups + 1, sizeof *pools);
    attnd_status status = ATTND_OK;
    if (!layers || !groups || !pools)
        status = no_memory(err);
    for (size_t i = 0; status == ATTND_OK && i < spec->n_layers; i++)
        layers[i] = layer_of(&spec->layers[i]);
    for (size_t g = 0; status == ATTND_OK && g < spec->n_groups; g++)
        groups[g] = group_of(&spec->groups[g]);
    attnd_model_spec sent = {.name = *spec->name ? spec->name : NULL,
                             .layers = layers,
                             .n_layers = spec->n_layers,
                             .groups = groups,
                             .n_groups = spec->n_groups,
                             .owner = (attnd_owner)spec->owner};
    if (status == ATTND_OK)
        status = attnd_open_model(t->client, &sent, t->timeout_ms, &opened, pools, err);
    for (size_t g = 0; status == ATTND_OK && g < spec->n_groups; g++)
        n_blocks[g] = pools[g].n_blocks;
    if (status == ATTND_OK)
        *model = opened.model;
    free(layers);
    free(groups);
    free(pools);
    return status;
}

static attnd_status close_model(void *self, uint64_t model, attnd_err *err)
{
    ctl_target *t = self;
    return attnd_close_model(t->client, model, t->timeout_ms, err);
}

/* ---- Calls ------------------------------------------------------------------------------------
 */

static attnd_status put_call(parcel *p, const ora_call *call, attnd_err *err)
{
    const ora_bytes *inputs[3] = {&call->q, &call->k, &call->v};
    const ora_bytes *outputs[3] = {&call->out, &call->lse, &call->stats};
    for (int i = 0; i < 3; i++)
        TRY(put(p, inputs[i], false, err));
    for (int i = 0; i < 3; i++)
        TRY(put(p, outputs[i], true, err));
    return load(p, err);
}

static attnd_status attend_parcel(parcel *p, const ora_call *call, attnd_err *err)
{
    attnd_table tables[MAX_TABLES] = {0};
    TRY(put_call(p, call, err));
    attnd_attend_request request = {.model = call->model,
                                    .layer = call->layer,
                                    .plan = call->plan,
                                    .q = tensor_of(p, &call->q),
                                    .k = tensor_of(p, &call->k),
                                    .v = tensor_of(p, &call->v),
                                    .keys = (attnd_keys)call->keys,
                                    .out = tensor_of(p, &call->out),
                                    .lse = tensor_of(p, &call->lse),
                                    .stats = tensor_of(p, &call->stats),
                                    .batch_invariant = call->batch_invariant};
    if (call->batch)
        TRY(batch_of(p, call->batch, tables, &request.batch, err));
    attnd_status status = attnd_attend(p->t->client, &request, p->t->timeout_ms, NULL, err);
    return unload(p, status, err);
}

static attnd_status attend(void *self, const ora_call *call, attnd_err *err)
{
    parcel p = {.t = self};
    attnd_status status = attend_parcel(&p, call, err);
    drop(&p);
    return status;
}

static attnd_status step_parcel(parcel *p, const ora_call *call, attnd_err *err)
{
    attnd_table tables[MAX_TABLES] = {0};
    attnd_plan_update update;
    TRY(put_call(p, call, err));
    attnd_step_request request = {.plan = call->plan,
                                  .first_layer = call->layer,
                                  .n_layers = call->n_layers,
                                  .q = layers_of(p, &call->q),
                                  .k = layers_of(p, &call->k),
                                  .v = layers_of(p, &call->v),
                                  .keys = (attnd_keys)call->keys,
                                  .out = layers_of(p, &call->out),
                                  .lse = layers_of(p, &call->lse)};
    if (call->update) {
        TRY(update_of(p, call->update, tables, &update, err));
        request.update = &update;
    }
    attnd_status status = attnd_step(p->t->client, &request, p->t->timeout_ms, NULL, err);
    return unload(p, status, err);
}

static attnd_status step(void *self, const ora_call *call, attnd_err *err)
{
    parcel p = {.t = self};
    attnd_status status = step_parcel(&p, call, err);
    drop(&p);
    return status;
}

static attnd_status create_plan(void *self, uint64_t model, const ora_case_batch *batch,
                                bool batch_invariant, uint64_t *plan, attnd_err *err)
{
    ctl_target *t = self;
    parcel p = {.t = t};
    attnd_table tables[MAX_TABLES] = {0};
    attnd_batch sent;
    attnd_plan made = {0};
    attnd_status status = batch_of(&p, batch, tables, &sent, err);
    if (status == ATTND_OK)
        status =
            attnd_create_plan(t->client, model, &sent, batch_invariant, t->timeout_ms, &made, err);
    *plan = made.plan;
    drop(&p);
    return status;
}

static attnd_status update_plan(void *self, uint64_t plan, const ora_case_update *update,
                                attnd_err *err)
{
    ctl_target *t = self;
    parcel p = {.t = t};
    attnd_table tables[MAX_TABLES] = {0};
    attnd_plan_update sent;
    attnd_status status = update_of(&p, update, tables, &sent, err);
    if (status == ATTND_OK)
        status = attnd_update_plan(t->client, plan, &sent, t->timeout_ms, NULL, err);
    drop(&p);
    return status;
}

static attnd_status drop_plan(void *self, uint64_t plan, attnd_err *err)
{
    ctl_target *t = self;
    return attnd_drop_plan(t->client, plan, t->timeout_ms, err);
}

static attnd_status merge_parcel(parcel *p, const ora_merge_call *call, attnd_partial *parts,
                                 attnd_err *err)
{
    for (size_t i = 0; i < call->n_parts; i++) {
        TRY(put(p, &call->parts[i].out, false, err));
        TRY(put(p, &call->parts[i].lse, false, err));
        TRY(put(p, &call->parts[i].stats, false, err));
    }
    TRY(put(p, &call->out, true, err));
    TRY(put(p, &call->lse, true, err));
    TRY(put(p, &call->stats, true, err));
    TRY(load(p, err));
    for (size_t i = 0; i < call->n_parts; i++)
        parts[i] = (attnd_partial){.out = tensor_of(p, &call->parts[i].out),
                                   .lse = tensor_of(p, &call->parts[i].lse),
                                   .stats = tensor_of(p, &call->parts[i].stats)};
    attnd_merge_request request = {.partials = parts,
                                   .n_partials = call->n_parts,
                                   .out = tensor_of(p, &call->out),
                                   .lse = tensor_of(p, &call->lse),
                                   .stats = tensor_of(p, &call->stats)};
    attnd_status status = attnd_merge(p->t->client, &request, p->t->timeout_ms, NULL, err);
    return unload(p, status, err);
}

static attnd_status merge(void *self, const ora_merge_call *call, attnd_err *err)
{
    parcel p = {.t = self};
    attnd_partial *parts = calloc(call->n_parts + 1, sizeof *parts);
    attnd_status status = parts ? merge_parcel(&p, call, parts, err) : no_memory(err);
    free(parts);
    drop(&p);
    return status;
}

/* ---- The connection ---------------------------------------------------------------------------
 */

attnd_status ctl_target_open(ctl_target *t, const char *dir, uint32_t timeout_ms, attnd_err *err)
{
    *t = (ctl_target){.timeout_ms = timeout_ms};
    TRY(attnd_connect(&t->client, dir, "attnctl check", timeout_ms, err));
    bool is_cpu = strcmp(attnd_get_info(t->client)->backend, "cpu") == 0;
    t->target = (ora_target){.self = t,
                             .backend = is_cpu ? NEAR_CPU : NEAR_GPU,
                             .has = has,
                             .open_model = open_model,
                             .close_model = close_model,
                             .attend = attend,
                             .step = step,
                             .create_plan = create_plan,
                             .update_plan = update_plan,
                             .drop_plan = drop_plan,
                             .merge = merge};
    return ATTND_OK;
}

void ctl_target_close(ctl_target *t)
{
    attnd_free_buffer(t->buffer, t->timeout_ms, NULL);
    attnd_close(t->client);
    *t = (ctl_target){0};
}
