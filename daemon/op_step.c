/* op_step.c: Step: a range of layers of one plan, in order. */
#include <inttypes.h>
#include <string.h>

#include "daemon/attend.h"
#include "daemon/op.h"
#include "daemon/update.h"

/* Where the tensor of the step's layer i lies: a tensor of its own. The farthest is checked with
 * it, so that no sum overflows further on. */
static attnd_status at_layer(const msg_layer_tensor *tensor, const char *field, uint32_t i,
                             msg_tensor *out, attnd_err *err)
{
    uint32_t slot = tensor->ring ? i % tensor->ring : i;
    uint64_t moved;
    *out = tensor->first;
    if (!tensor->given)
        return ATTND_OK;
    if (!tensor->first.given)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.first: there is none", field);
    if (tensor->layer_stride < 0)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.layer_stride = %" PRId64 ": not negative",
                          field, tensor->layer_stride);
    if (__builtin_mul_overflow((uint64_t)tensor->layer_stride, (uint64_t)slot, &moved) ||
        __builtin_add_overflow(moved, out->offset, &out->offset))
        return attnd_fail(err, ATTND_BAD_TENSOR,
                          "%s.layer_stride = %" PRId64 ": layer %u would lie outside its buffer",
                          field, tensor->layer_stride, i);
    return ATTND_OK;
}

/* The call of one layer, as Attend would say it. */
static attnd_status read_layer(const msg_step *msg, uint32_t i, srv_call *call, attnd_err *err)
{
    const struct {
        const msg_layer_tensor *from;
        const char *field;
        msg_tensor *to;
    } tensors[] = {
        {&msg->q, "q", &call->q},       {&msg->k, "k", &call->k},       {&msg->v, "v", &call->v},
        {&msg->out, "out", &call->out}, {&msg->lse, "lse", &call->lse},
    };
    memset(call, 0, sizeof *call);
    call->suffix = ".first";
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
        TRY(at_layer(tensors[t].from, tensors[t].field, i, tensors[t].to, err));
    return ATTND_OK;
}

/* Which layers, and what nobody serves. */
static attnd_status check_range(const msg_step *msg, srv_plan *plan, attnd_err *err)
{
    const srv_model *model = plan->model;
    const srv_batch *batch = &srv_plan_newest(plan)->batch;
    TRY(srv_call_check_served(msg->keys, &msg->sync, err));
    if (!msg->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "n_layers = 0: a step has at least one");
    if (msg->first_layer >= model->n_layers)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "first_layer = %u: model \"%s\" has layers 0..%u", msg->first_layer,
                          model->name, model->n_layers - 1);
    if (msg->n_layers > model->n_layers - msg->first_layer)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "n_layers = %u: model \"%s\" has %u from layer %u on", msg->n_layers,
                          model->name, model->n_layers - msg->first_layer, msg->first_layer);
    for (uint32_t i = 0; i < msg->n_layers; i++) {
        uint32_t layer = msg->first_layer + i, group = model->layers[layer].group;
        if (!batch->table[group].given)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "%s = %u: layer %u lies in group %u, of which the plan has no table",
                              i ? "n_layers" : "first_layer", i ? msg->n_layers : msg->first_layer,
                              layer, group);
    }
    return ATTND_OK;
}

attnd_status srv_check_step(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_step *msg = &request->msg.step;
    srv_plan *plan;
    TRY(srv_plan_get(request->session, msg->plan, "plan", &plan, err));
    TRY(check_range(msg, plan, err));
    if (msg->update.given && msg->update.plan != msg->plan)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "update.plan = %" PRIu64 ": the step is of plan %" PRIu64,
                          msg->update.plan, msg->plan);
    if (msg->update.given)
        TRY(srv_update_build(engine, request, plan, &msg->update, err));
    else
        srv_update_none(request, plan);
    if (request->is_parked)
        return ATTND_OK;
    TRY(srv_calls_begin(request, msg->n_layers, err));
    for (uint32_t i = 0; i < msg->n_layers; i++) {
        srv_call call;
        TRY(read_layer(msg, i, &call, err));
        if (srv_call_add(request, plan, msg->first_layer + i, &call, err) != ATTND_OK) {
            if (i && msg->n_layers > 1) /* the message names a tensor of the first layer */
                attnd_err_suffix(err, " (layer %u of the step)", i);
            return err->status;
        }
    }
    return srv_calls_end(request, err);
}

void srv_run_step(srv_engine *engine, srv_request *request)
{
    srv_calls_count(request);
    request->reply.step = (msg_step_reply){.queue_us = srv_calls_queue_us(request),
                                           .device_us = srv_calls_device_us(request),
                                           .version = request->version->number};
}
