/* plan.c: a checked batch plus its work split, kept under a handle and a version. */
#include "daemon/plan.h"

#include <inttypes.h>
#include <stdlib.h>

#include "daemon/road.h"

/* The mask of a group's layer that sees farthest back. */
static ker_mask widest_mask(const srv_model *model, uint32_t group, msg_mask mask)
{
    ker_mask widest = {.kinds = 0};
    bool is_first = true;
    for (uint32_t l = 0; l < model->n_layers; l++) {
        const ker_mask *layer = &model->layers[l].shape.mask;
        if (model->layers[l].group != group)
            continue;
        if (is_first)
            widest = *layer;
        widest.kinds &= layer->kinds;
        widest.window = layer->window > widest.window ? layer->window : widest.window;
        widest.chunk = layer->chunk > widest.chunk ? layer->chunk : widest.chunk;
        is_first = false;
    }
    if (mask == MSG_MASK_CAUSAL)
        widest.kinds |= KER_MASK_CAUSAL;
    return widest;
}

attnd_status srv_version_check(srv_engine *engine, msg_arena *scratch, srv_model *model,
                               srv_version *version, attnd_err *err)
{
    for (uint32_t g = 0; g < model->n_groups; g++) {
        attnd_err why;
        if (!version->batch.table[g].given)
            continue;
        ker_mask mask = widest_mask(model, g, version->batch.mask);
        TRY(srv_batch_check(engine, scratch, &version->batch, model, g, &mask, false, err));
        version->append_err[g] = NULL;
        if (srv_batch_check(engine, scratch, &version->batch, model, g, &mask, true, &why) ==
            ATTND_OK)
            continue;
        attnd_err *kept = msg_arena_take(&version->arena, sizeof *kept);
        if (!kept)
            return attnd_fail(err, ATTND_TOO_LARGE, "batch: more than a plan may use");
        *kept = why;
        version->append_err[g] = kept;
    }
    return ATTND_OK;
}

attnd_status srv_plan_make(srv_engine *engine, srv_session *session, srv_model *model,
                           srv_plan **out, attnd_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return attnd_fail(err, ATTND_NO_ROOM, "batch: no memory for a plan");
    (*out)->handle = ++engine->last_handle;
    (*out)->session = session;
    (*out)->model = model;
    srv_model_use(model);
    attnd_status status = ATTND_OK;
    for (int i = 0; i < 2 && status == ATTND_OK; i++)
        status = msg_arena_init(&(*out)->version[i].arena, engine->arena_bytes, err);
    if (status != ATTND_OK) {
        srv_plan_free(engine, *out);
        *out = NULL;
    }
    return status;
}

void srv_plan_free(srv_engine *engine, srv_plan *plan)
{
    for (int i = 0; i < 2; i++)
        msg_arena_fini(&plan->version[i].arena);
    srv_model_leave(engine, plan->model);
    free(plan);
}

attnd_status srv_plan_get(srv_session *session, uint64_t handle, const char *field, srv_plan **out,
                          attnd_err *err)
{
    HASH_FIND(hh, session->plans, &handle, sizeof handle, *out);
    if (!*out || (*out)->is_dropped)
        return attnd_fail(err, ATTND_NO_SUCH_HANDLE,
                          "%s = %" PRIu64 ": this session has no such plan", field, handle);
    return ATTND_OK;
}

srv_version *srv_plan_newest(srv_plan *plan)
{
    return &plan->version[plan->newest];
}

srv_version *srv_plan_next(srv_plan *plan)
{
    srv_version *version = &plan->version[1 - plan->newest];
    return version->n_in_use ? NULL : version;
}

static void free_if_unused(srv_engine *engine, srv_plan *plan)
{
    if (!plan->is_dropped || plan->version[0].n_in_use || plan->version[1].n_in_use)
        return;
    HASH_DEL(plan->session->plans, plan);
    srv_stats_gauge(SRV_GAUGE_plans, -1);
    srv_plan_free(engine, plan);
}

void srv_plan_drop(srv_engine *engine, srv_plan *plan)
{
    plan->is_dropped = true;
    free_if_unused(engine, plan);
}

void srv_version_use(srv_version *version)
{
    version->n_in_use++;
}

void srv_version_leave(srv_engine *engine, srv_plan *plan, srv_version *version)
{
    version->n_in_use--;
    engine->has_news = true; /* an update may wait for it */
    free_if_unused(engine, plan);
}

attnd_status srv_version_problem(const srv_plan *plan, const srv_version *version, uint32_t layer,
                                 bool with_keys, ker_problem *out, attnd_err *err)
{
    const srv_model *model = plan->model;
    if (layer >= model->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "layer = %u: model \"%s\" has layers 0..%u",
                          layer, model->name, model->n_layers - 1);
    uint32_t group = model->layers[layer].group;
    if (!version->batch.table[group].given)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "layer = %u: it lies in group %u, of which the plan has no table", layer,
                          group);
    if (with_keys && version->append_err[group]) {
        *err = *version->append_err[group];
        return err->status;
    }
    *out = model->layers[layer].shape;
    out->batch_invariant = plan->batch_invariant;
    srv_batch_fill(&version->batch, group, out);
    return ATTND_OK;
}

bool srv_splits_alike(const ker_problem *a, const ker_problem *b)
{
    return a->kind == b->kind && a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads &&
           a->head_dim == b->head_dim && a->head_dim_v == b->head_dim_v && a->dtype == b->dtype &&
           a->kv.dtype == b->kv.dtype && a->kv.block_size == b->kv.block_size &&
           a->mask.kinds == b->mask.kinds && a->mask.window == b->mask.window &&
           a->mask.chunk == b->mask.chunk && a->rope.pairing == b->rope.pairing &&
           a->rope.dim == b->rope.dim && a->bias.softcap == b->bias.softcap &&
           a->batch_invariant == b->batch_invariant && a->q.dtype == b->q.dtype &&
           a->out.dtype == b->out.dtype && !a->append.k.base == !b->append.k.base;
}
