/* op_plan.c: CreatePlan, UpdatePlan, DropPlan: a batch validated once for all layers. */
#include <inttypes.h>

#include "daemon/op.h"
#include "daemon/plan.h"
#include "daemon/road.h"
#include "daemon/update.h"

/* ---- CreatePlan -------------------------------------------------------------------------------
 */

attnd_status srv_check_create_plan(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_create_plan *msg = &request->msg.create_plan;
    srv_model *model;
    TRY(srv_model_get(request->session, msg->model, "model", &model, err));
    if (!msg->has_batch)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "batch: a plan needs one");
    unsigned n = HASH_COUNT(request->session->plans);
    if (n >= (uint64_t)engine->config->session_max_plans)
        return attnd_fail(err, ATTND_NO_ROOM, "plans = %u: the most a session may have", n);
    return ATTND_OK;
}

attnd_status srv_make_create_plan(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_create_plan *msg = &request->msg.create_plan;
    srv_model *model;
    srv_plan *plan;
    TRY(srv_model_get(request->session, msg->model, "model", &model, err));
    TRY(srv_plan_make(engine, request->session, model, &plan, err));
    srv_version *version = srv_plan_newest(plan);
    plan->batch_invariant = msg->batch_invariant;
    attnd_status status = srv_batch_read(engine, request, &version->arena, &msg->batch, model, -1,
                                         &version->batch, err);
    if (status == ATTND_OK)
        status = srv_version_check(engine, &request->arena, model, version, err);
    if (status == ATTND_OK) {
        HASH_ADD(hh, request->session->plans, handle, sizeof plan->handle, plan);
        if (!plan->hh.tbl)
            status = attnd_fail(err, ATTND_NO_ROOM, "batch: no memory for a plan");
    }
    if (status != ATTND_OK) {
        srv_plan_free(engine, plan);
        return status;
    }
    request->made = plan;
    return ATTND_OK;
}

void srv_run_create_plan(srv_engine *engine, srv_request *request)
{
    srv_plan *plan = request->made;
    srv_plan_newest(plan)->number = 1;
    srv_stats_gauge(SRV_GAUGE_plans, 1);
    request->reply.create_plan = (msg_create_plan_reply){.plan = plan->handle, .version = 1};
}

/* ---- UpdatePlan -------------------------------------------------------------------------------
 */

attnd_status srv_check_update_plan(srv_engine *engine, srv_request *request, attnd_err *err)
{
    const msg_plan_update *msg = &request->msg.update_plan;
    srv_plan *plan;
    if (!msg->given)
        return attnd_fail(err, ATTND_BAD_MESSAGE, "update: there is none");
    TRY(srv_plan_get(request->session, msg->plan, "update.plan", &plan, err));
    return srv_update_build(engine, request, plan, msg, err);
}

void srv_run_update_plan(srv_engine *engine, srv_request *request)
{
    request->reply.update_plan = request->version->number;
}

/* ---- DropPlan ---------------------------------------------------------------------------------
 */

attnd_status srv_check_drop_plan(srv_engine *engine, srv_request *request, attnd_err *err)
{
    srv_plan *plan;
    return srv_plan_get(request->session, request->msg.drop_plan, "plan", &plan, err);
}

void srv_run_drop_plan(srv_engine *engine, srv_request *request)
{
    srv_plan *plan;
    HASH_FIND(hh, request->session->plans, &request->msg.drop_plan, sizeof(uint64_t), plan);
    srv_plan_drop(engine, plan);
}
