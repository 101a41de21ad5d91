/* op_attend.c: Attend: one layer, over a plan or a batch that comes with the call. */
#include "daemon/attend.h"
#include "daemon/op.h"
#include "daemon/update.h"

static srv_call call_of(const msg_attend *msg)
{
    return (srv_call){.q = msg->q,
                      .k = msg->k,
                      .v = msg->v,
                      .out = msg->out,
                      .lse = msg->lse,
                      .stats = msg->stats,
                      .suffix = ""};
}

static attnd_status check_planned(srv_request *request, const srv_model *model, attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    srv_call call = call_of(msg);
    srv_plan *plan;
    TRY(srv_plan_get(request->session, msg->plan, "plan", &plan, err));
    if (plan->model != model)
        return attnd_fail(err, ATTND_BAD_COMBINATION, "plan = %llu: it is of another model",
                          (unsigned long long)msg->plan);
    srv_update_none(request, plan);
    return srv_call_add(request, plan, msg->layer, &call, err);
}

static attnd_status check_inline(srv_engine *engine, srv_request *request, srv_model *model,
                                 attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    const srv_layer *layer = &model->layers[msg->layer];
    srv_call call = call_of(msg);
    bool has_keys;
    srv_batch *batch = msg_arena_take(&request->arena, sizeof *batch);
    if (!batch)
        return attnd_fail(err, ATTND_TOO_LARGE, "batch: more than a request may use");
    TRY(srv_call_has_keys(&call, &layer->shape, &has_keys, err));
    TRY(srv_batch_read(engine, request, &request->arena, &msg->batch, model, (int)layer->group,
                       batch, err));
    if (batch->slots && !has_keys)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "batch.slots: the call brings no k and v to store");
    ker_problem shape = layer->shape;
    shape.batch_invariant = msg->batch_invariant;
    srv_batch_fill(batch, layer->group, &shape);
    TRY(srv_batch_check(engine, &request->arena, batch, model, layer->group, &shape.mask, has_keys,
                        err));
    return srv_call_add_problem(request, &shape, &call, err);
}

attnd_status srv_check_attend(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_attend *msg = &request->msg.attend;
    srv_model *model;
    TRY(srv_model_get(request->session, msg->model, "model", &model, err));
    srv_model_use(model);
    request->model = model;
    if (msg->layer >= model->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "layer = %u: model \"%s\" has layers 0..%u",
                          msg->layer, model->name, model->n_layers - 1);
    TRY(srv_call_check_served(msg->keys, &msg->sync, err));
    if (!msg->has_plan && !msg->has_batch)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "batch: a call needs one, or a plan");
    TRY(srv_calls_begin(request, 1, err));
    TRY(msg->has_plan ? check_planned(request, model, err)
                      : check_inline(engine, request, model, err));
    return srv_calls_end(request, err);
}

void srv_run_attend(srv_engine *engine, srv_request *request)
{
    srv_calls_count(request);
    request->reply.attend = (msg_attend_reply){.queue_us = srv_calls_queue_us(request),
                                               .device_us = srv_calls_device_us(request)};
}
