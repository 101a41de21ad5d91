/* op_model.c: OpenModel, CloseModel: layer specs and the pools that hold their keys and values. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op.h"
#include "daemon/plan.h"
#include "daemon/session.h"

enum { ROPE_SCALING_NONE = 0 };

/* A layer of the spec with its defaults filled in, for the words of attention.md. */
static uint32_t n_kv_heads_of(const msg_layer_spec *layer)
{
    return layer->n_kv_heads ? layer->n_kv_heads : layer->n_heads;
}

static uint32_t head_dim_v_of(const msg_layer_spec *layer)
{
    return layer->head_dim_v ? layer->head_dim_v : layer->head_dim;
}

static uint32_t count_of(const msg_layer_spec *layer)
{
    return layer->count ? layer->count : 1;
}

/* ---- Check ------------------------------------------------------------------------------------
 */

static attnd_status check_rope(const msg_layer_spec *layer, attnd_err *err)
{
    const msg_rope *rope = &layer->rope;
    if (rope->pairing == ATTND_ROPE_NONE && (rope->dim || rope->theta != 0 || rope->scaling))
        return attnd_fail(err, ATTND_BAD_ROPE,
                          "rope.pairing = none: dim, theta and scaling then mean nothing");
    if (!rope->given || rope->pairing == ATTND_ROPE_NONE)
        return ATTND_OK;
    if (rope->scaling != ROPE_SCALING_NONE)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "rope.scaling = %u: this server rotates without scaling", rope->scaling);
    if (rope->dim % 2)
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.dim = %u: channels rotate in pairs",
                          rope->dim);
    uint32_t dim = rope->dim ? rope->dim : layer->head_dim;
    if (dim > layer->head_dim || dim % 2)
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.dim = %u: an even number up to head_dim = %u",
                          dim, layer->head_dim);
    if (!isfinite(rope->theta) || rope->theta < 0)
        return attnd_fail(err, ATTND_BAD_ROPE, "rope.theta = %g: a positive number", rope->theta);
    return ATTND_OK;
}

static attnd_status check_layer(const srv_engine *engine, const msg_model_spec *spec,
                                const msg_layer_spec *layer, attnd_err *err)
{
    uint32_t n_kv_heads = n_kv_heads_of(layer), most = engine->limits.max_head_dim;
    if (layer->kind != ATTND_LAYER_GQA)
        return attnd_fail(err, ATTND_UNSUPPORTED, "kind = %s: this server serves gqa",
                          attnd_layer_kind_name(layer->kind));
    if (layer->group >= spec->n_groups)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "group = %u: the model has groups 0..%zu",
                          layer->group, spec->n_groups - 1);
    if (!layer->n_heads || layer->n_heads % n_kv_heads)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "n_heads = %u: a multiple of n_kv_heads = %u, at least that many",
                          layer->n_heads, n_kv_heads);
    if (layer->n_heads > UINT16_MAX)
        return attnd_fail(err, ATTND_TOO_LARGE, "n_heads = %u: at most %d", layer->n_heads,
                          UINT16_MAX);
    if (!layer->head_dim || layer->head_dim > most)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "head_dim = %u: 1..%u (limits.max_head_dim)",
                          layer->head_dim, most);
    if (layer->head_dim_v > most)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "head_dim_v = %u: 1..%u (limits.max_head_dim)",
                          layer->head_dim_v, most);
    if (!isfinite(layer->sm_scale))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "sm_scale = %g: a finite number",
                          (double)layer->sm_scale);
    if (!isfinite(layer->q_scaling))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "q_scaling = %g: a finite number",
                          (double)layer->q_scaling);
    if (!isfinite(layer->softcap) || layer->softcap < 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "softcap = %g: a positive number, 0 for none",
                          (double)layer->softcap);
    if (layer->window > INT32_MAX)
        return attnd_fail(err, ATTND_BAD_MASK, "window = %u: at most %d", layer->window, INT32_MAX);
    if (layer->chunk > INT32_MAX)
        return attnd_fail(err, ATTND_BAD_MASK, "chunk = %u: at most %d", layer->chunk, INT32_MAX);
    return check_rope(layer, err);
}

static attnd_status check_group(const msg_group_spec *group, attnd_err *err)
{
    if (group->kv_dtype != ATTND_DTYPE_F32 && group->kv_dtype != ATTND_DTYPE_F16 &&
        group->kv_dtype != ATTND_DTYPE_BF16)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "kv_dtype = %s: this server serves f32, f16, bf16",
                          attnd_dtype_name(group->kv_dtype));
    if (!group->block_size || group->block_size > 1024 ||
        (group->block_size & (group->block_size - 1)))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "block_size = %u: a power of two, 1..1024",
                          group->block_size);
    if (!group->n_blocks && !group->bytes)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "n_blocks = 0: give n_blocks or bytes");
    if (group->n_blocks > INT32_MAX)
        return attnd_fail(err, ATTND_TOO_LARGE, "n_blocks = %u: at most %d", group->n_blocks,
                          INT32_MAX);
    if (group->max_kv_len > INT32_MAX)
        return attnd_fail(err, ATTND_TOO_LARGE, "max_kv_len = %u: at most %d", group->max_kv_len,
                          INT32_MAX);
    if (group->window > INT32_MAX)
        return attnd_fail(err, ATTND_BAD_MASK, "window = %u: at most %d", group->window, INT32_MAX);
    return srv_name_check("name", group->name, err);
}

attnd_status srv_check_open_model(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_model_spec *spec = &request->msg.open_model.spec;
    if (!request->msg.open_model.given)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "spec: a model needs one");
    TRY(srv_name_check("spec.name", spec->name, err));
    if (spec->owner != MSG_OWNER_CLIENT)
        return attnd_fail(
            err, ATTND_UNSUPPORTED,
            "spec.owner = SERVER: this server serves pools whose blocks the client names");
    if (!spec->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "spec.layers = 0: a model has at least one");
    if (!spec->n_groups || spec->n_groups > SRV_MAX_GROUPS)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "spec.groups = %zu: 1..%d", spec->n_groups,
                          SRV_MAX_GROUPS);
    for (size_t g = 0; g < spec->n_groups; g++)
        if (check_group(&spec->groups[g], err) != ATTND_OK) {
            attnd_err_prefix(err, "spec.groups[%zu].", g);
            return err->status;
        }
    uint64_t n_layers = 0, most = (uint64_t)engine->config->limits_max_layers, named = 0;
    for (size_t l = 0; l < spec->n_layers; l++) {
        if (check_layer(engine, spec, &spec->layers[l], err) != ATTND_OK) {
            attnd_err_prefix(err, "spec.layers[%zu].", l);
            return err->status;
        }
        named |= UINT64_C(1) << spec->layers[l].group;
        n_layers += count_of(&spec->layers[l]);
        if (n_layers > most)
            return attnd_fail(err, ATTND_TOO_LARGE,
                              "spec.layers[%zu].count = %u: a model has at most %" PRIu64
                              " layers (limits.max_layers)",
                              l, spec->layers[l].count, most);
    }
    static_assert(SRV_MAX_GROUPS <= 64, "a bit of named each");
    for (size_t g = 0; g < spec->n_groups; g++)
        if (!(named >> g & 1))
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "spec.groups[%zu]: no layer names this group", g);
    unsigned n_models = HASH_COUNT(request->session->models);
    if (n_models >= (uint64_t)engine->config->session_max_models)
        return attnd_fail(err, ATTND_NO_ROOM, "models = %u: the most a session may open", n_models);
    return ATTND_OK;
}

/* ---- Make -------------------------------------------------------------------------------------
 */

/* What the layer is to a kernel, all but the batch, the tensors and the addresses. */
static attnd_status make_layer(srv_layer *out, const msg_layer_spec *layer,
                               const msg_group_spec *group, attnd_err *err)
{
    double q_scaling = layer->q_scaling != 0 ? (double)layer->q_scaling : 1;
    uint32_t window = layer->window ? layer->window : group->window;
    *out = (srv_layer){.group = layer->group};
    ker_problem *shape = &out->shape;
    shape->kind = layer->kind;
    shape->n_heads = layer->n_heads;
    shape->n_kv_heads = n_kv_heads_of(layer);
    shape->head_dim = layer->head_dim;
    shape->head_dim_v = head_dim_v_of(layer);
    shape->sm_scale = layer->sm_scale != 0
                          ? layer->sm_scale
                          : (float)(1 / (q_scaling * sqrt((double)layer->head_dim)));
    shape->dtype = group->kv_dtype;
    shape->kv.block_size = group->block_size;
    shape->kv.dtype = group->kv_dtype;
    shape->bias.softcap = layer->softcap;
    shape->quant =
        (ker_quant){.k_orig_quant = 1, .v_orig_quant = 1, .q_quant_orig = 1, .out_orig_quant = 1};
    shape->mask = (ker_mask){.window = (int32_t)window, .chunk = (int32_t)layer->chunk};
    if (window)
        shape->mask.kinds |= KER_MASK_WINDOW;
    if (layer->chunk)
        shape->mask.kinds |= KER_MASK_CHUNK;
    if (!layer->rope.given || layer->rope.pairing == ATTND_ROPE_NONE)
        return ATTND_OK;
    uint32_t dim = layer->rope.dim ? layer->rope.dim : layer->head_dim;
    double theta = layer->rope.theta != 0 ? layer->rope.theta : 10000;
    out->rope_freq = malloc(dim / 2 * sizeof *out->rope_freq);
    if (!out->rope_freq)
        return attnd_fail(err, ATTND_NO_ROOM, "spec.layers: no memory");
    for (uint32_t n = 0; n < dim / 2; n++)
        out->rope_freq[n] = pow(theta, -2.0 * n / dim); /* attention.md §5.1 */
    shape->rope = (ker_rope){
        .pairing = layer->rope.pairing, .dim = dim, .freq = out->rope_freq, .amplitude = 1};
    return ATTND_OK;
}

static attnd_status make_layers(srv_model *model, const msg_model_spec *spec, attnd_err *err)
{
    uint32_t n = 0;
    for (size_t l = 0; l < spec->n_layers; l++)
        n += count_of(&spec->layers[l]);
    model->layers = calloc(n, sizeof *model->layers);
    if (!model->layers)
        return attnd_fail(err, ATTND_NO_ROOM, "spec.layers: no memory for %u", n);
    for (size_t l = 0; l < spec->n_layers; l++)
        for (uint32_t i = 0; i < count_of(&spec->layers[l]); i++) {
            srv_layer *layer = &model->layers[model->n_layers++];
            TRY(make_layer(layer, &spec->layers[l], &spec->groups[spec->layers[l].group], err));
        }
    return ATTND_OK;
}

/* The byte strides of the group's layers. */
static attnd_status make_geometry(srv_model *model, uint32_t g, const msg_group_spec *spec,
                                  attnd_err *err)
{
    uint32_t n = 0;
    kv_layer_shape *shapes = calloc(model->n_layers, sizeof *shapes);
    kv_layer_place *places = calloc(model->n_layers, sizeof *places);
    attnd_status status = ATTND_OK;
    if (!shapes || !places)
        status = attnd_fail(err, ATTND_NO_ROOM, "layers: no memory");
    for (uint32_t l = 0; l < model->n_layers && status == ATTND_OK; l++) {
        const ker_problem *shape = &model->layers[l].shape;
        if (model->layers[l].group == g)
            shapes[n++] = (kv_layer_shape){shape->n_kv_heads, shape->head_dim, shape->head_dim_v};
    }
    srv_group *group = &model->groups[g];
    if (status == ATTND_OK)
        status = kv_geometry_make(&group->geometry, spec->block_size, spec->kv_dtype, spec->layout,
                                  shapes, n, places, err);
    n = 0;
    for (uint32_t l = 0; l < model->n_layers && status == ATTND_OK; l++) {
        srv_layer *layer = &model->layers[l];
        if (layer->group != g)
            continue;
        const kv_layer_place *place = &places[n++];
        layer->shape.kv.block_stride = group->geometry.block_bytes;
        for (int p = 0; p < 2; p++) {
            layer->plane_offset[p] = place->plane_offset[p];
            layer->shape.kv.head_stride[p] = place->head_stride[p];
            layer->shape.kv.token_stride[p] = place->token_stride[p];
        }
    }
    free(shapes);
    free(places);
    return status;
}

/* How many blocks, within the session's quota. */
static attnd_status size_group(srv_engine *engine, srv_session *session, srv_model *model,
                               srv_group *group, const msg_group_spec *spec, uint64_t *bytes,
                               attnd_err *err)
{
    uint64_t most = (uint64_t)engine->config->session_max_pool;
    uint64_t block_bytes = (uint64_t)group->geometry.block_bytes;
    group->n_blocks =
        spec->n_blocks ? spec->n_blocks : kv_geometry_fit(&group->geometry, spec->bytes);
    if (!group->n_blocks)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "bytes = %" PRIu64 ": one block and its guard take %" PRIu64, spec->bytes,
                          2 * block_bytes);
    TRY(kv_geometry_pool_bytes(&group->geometry, group->n_blocks, bytes, err));
    uint64_t held = session->pool_bytes + model->pool_bytes;
    if (*bytes > most || *bytes > most - held)
        return attnd_fail(err, *bytes > most ? ATTND_TOO_LARGE : ATTND_NO_ROOM,
                          "%s = %" PRIu64 ": %u blocks, %" PRIu64 " bytes at %" PRIu64
                          " a block; session.max_pool allows %" PRIu64 ", %" PRIu64 " are taken",
                          spec->n_blocks ? "n_blocks" : "bytes",
                          spec->n_blocks ? spec->n_blocks : spec->bytes, group->n_blocks, *bytes,
                          block_bytes, most, held);
    return ATTND_OK;
}

static attnd_status make_group(srv_engine *engine, srv_session *session, srv_model *model,
                               uint32_t g, const msg_group_spec *spec, attnd_err *err)
{
    srv_group *group = &model->groups[g];
    uint64_t bytes;
    if (*spec->name)
        snprintf(group->name, sizeof group->name, "%s", spec->name);
    else
        snprintf(group->name, sizeof group->name, "group%u", g);
    TRY(make_geometry(model, g, spec, err));
    TRY(size_group(engine, session, model, group, spec, &bytes, err));
    group->max_kv_len = spec->max_kv_len ? spec->max_kv_len : INT32_MAX;
    group->marks = calloc(group->n_blocks, sizeof *group->marks);
    if (!group->marks)
        return attnd_fail(err, ATTND_NO_ROOM, "n_blocks = %u: no memory", group->n_blocks);
    TRY(kv_pool_open(&group->pool, group->name, group->n_blocks, KV_OWNER_CLIENT, err));
    attnd_status status =
        srv_memory_make(engine, "pool", model->handle, g, bytes, &group->memory, err);
    if (status != ATTND_OK) {
        if (spec->n_blocks)
            attnd_err_prefix(err, "n_blocks = %u: ", group->n_blocks);
        return status;
    }
    model->pool_bytes += bytes;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        srv_layer *layer = &model->layers[l];
        if (layer->group != g)
            continue;
        layer->shape.kv.n_blocks = group->n_blocks;
        for (int p = 0; p < 2; p++)
            layer->shape.kv.plane[p] = (char *)group->memory.base + layer->plane_offset[p];
    }
    return ATTND_OK;
}

/* A layer that no kernel serves is refused now, not at its first call. */
static attnd_status check_kernels(srv_engine *engine, const srv_model *model, attnd_err *err)
{
    for (uint32_t l = 0; l < model->n_layers; l++)
        for (ker_phase phase = KER_CONTEXT; phase <= KER_GENERATION; phase++) {
            ker_problem problem = model->layers[l].shape;
            const ker_kernel *kernel;
            int32_t one = 1;
            int64_t first = 0;
            int32_t block = 0;
            problem.mask.kinds |= KER_MASK_CAUSAL;
            problem.batch = (ker_batch){.n_seqs = 1,
                                        .n_contexts = phase == KER_CONTEXT,
                                        .n_tokens = 1,
                                        .q_len = &one,
                                        .kv_len = &one,
                                        .q_first = &first,
                                        .block_ids = &block,
                                        .block_first = &first};
            problem.q.dtype = problem.out.dtype = problem.dtype;
            if (ker_find(engine->device, &problem, phase, &kernel, err) != ATTND_OK) {
                attnd_err_prefix(err, "spec.layers: layer %u: ", l);
                return err->status;
            }
        }
    return ATTND_OK;
}

static attnd_status fill_model(srv_engine *engine, srv_session *session, srv_model *model,
                               const msg_model_spec *spec, attnd_err *err)
{
    snprintf(model->name, sizeof model->name, "%s", spec->name);
    TRY(make_layers(model, spec, err));
    model->groups = calloc(spec->n_groups, sizeof *model->groups);
    if (!model->groups)
        return attnd_fail(err, ATTND_NO_ROOM, "spec.groups: no memory");
    for (uint32_t g = 0; g < spec->n_groups; g++) {
        model->n_groups = g + 1;
        if (make_group(engine, session, model, g, &spec->groups[g], err) != ATTND_OK) {
            attnd_err_prefix(err, "spec.groups[%u].", g);
            return err->status;
        }
    }
    return check_kernels(engine, model, err);
}

attnd_status srv_make_open_model(srv_engine *engine, srv_request *request, attnd_err *err)
{
    srv_model *model = calloc(1, sizeof *model);
    if (!model)
        return attnd_fail(err, ATTND_NO_ROOM, "spec: no memory");
    model->handle = ++engine->last_handle;
    model->session = request->session;
    HASH_ADD(hh, request->session->models, handle, sizeof model->handle, model);
    if (!model->hh.tbl) {
        free(model);
        return attnd_fail(err, ATTND_NO_ROOM, "spec: no memory");
    }
    attnd_status status =
        fill_model(engine, request->session, model, &request->msg.open_model.spec, err);
    if (status != ATTND_OK) {
        HASH_DEL(request->session->models, model);
        srv_model_free(engine, model);
        return status;
    }
    request->made = model;
    return ATTND_OK;
}

/* ---- Run --------------------------------------------------------------------------------------
 */

void srv_run_open_model(srv_engine *engine, srv_request *request)
{
    srv_session *session = request->session;
    srv_model *model = request->made;
    session->pool_bytes += model->pool_bytes;
    srv_stats_gauge(SRV_GAUGE_models, 1);
    srv_stats_gauge(SRV_GAUGE_pool_bytes, (int64_t)model->pool_bytes);
    for (uint32_t g = 0; g < model->n_groups; g++) {
        const srv_group *group = &model->groups[g];
        request->pools[g] = (msg_pool_info){.name = group->name,
                                            .n_blocks = group->n_blocks,
                                            .block_size = group->geometry.block_size,
                                            .block_bytes = (uint64_t)group->geometry.block_bytes,
                                            .bytes = group->memory.bytes};
    }
    request->reply.open_model = (msg_open_model_reply){.model = model->handle,
                                                       .pools = request->pools,
                                                       .n_pools = model->n_groups,
                                                       .n_layers = model->n_layers};
}

attnd_status srv_check_close_model(srv_engine *engine, srv_request *request, attnd_err *err)
{
    srv_model *model;
    return srv_model_get(request->session, request->msg.close_model, "model", &model, err);
}

void srv_run_close_model(srv_engine *engine, srv_request *request)
{
    srv_model *model;
    srv_plan *plan, *next;
    HASH_FIND(hh, request->session->models, &request->msg.close_model, sizeof(uint64_t), model);
    HASH_ITER(hh, request->session->plans, plan, next)
    {
        if (plan->model == model)
            srv_plan_drop(engine, plan);
    }
    srv_model_close(engine, model);
}
