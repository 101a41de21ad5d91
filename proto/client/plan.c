/* plan.c: plans: a batch that the daemon has checked and keeps. */
#include "proto/client/parts.h"

static attnd_status make_plan(attnd_client *client, cli_batch *batch, uint64_t model,
                              bool batch_invariant, int64_t deadline_ms, attnd_plan *out,
                              attnd_err *err)
{
    Attnd__V1__CreatePlanRequest create = ATTND__V1__CREATE_PLAN_REQUEST__INIT;
    create.model = model;
    create.batch = &batch->batch;
    create.batch_invariant = batch_invariant;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_CREATE_PLAN;
    request.create_plan = &create;
    Attnd__V1__Reply *reply;
    TRY(cli_call(client, &request, deadline_ms, &reply, err));
    *out = (attnd_plan){reply->create_plan->plan, reply->create_plan->version};
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}

attnd_status attnd_create_plan(attnd_client *client, uint64_t model, const attnd_batch *batch,
                               bool batch_invariant, uint32_t timeout_ms, attnd_plan *out,
                               attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    cli_batch m;
    attnd_status status = cli_make_batch(&m, batch, err);
    if (status == ATTND_OK)
        status = make_plan(client, &m, model, batch_invariant, deadline_ms, out, err);
    cli_free_tables(&m.tables);
    return status;
}

static attnd_status send_update(attnd_client *client, cli_update *m, uint64_t after,
                                int64_t deadline_ms, attnd_pending **out, attnd_err *err)
{
    Attnd__V1__UpdatePlanRequest update = ATTND__V1__UPDATE_PLAN_REQUEST__INIT;
    update.update = &m->update;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_UPDATE_PLAN;
    request.update_plan = &update;
    request.after = after;
    return cli_start(client, &request, deadline_ms, out, err);
}

attnd_status attnd_update_plan_start(attnd_client *client, uint64_t plan,
                                     const attnd_plan_update *update, uint64_t after,
                                     uint32_t timeout_ms, attnd_pending **out, attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    *out = NULL;
    cli_update m;
    attnd_status status = cli_make_update(&m, plan, update, err);
    if (status == ATTND_OK)
        status = send_update(client, &m, after, deadline_ms, out, err);
    cli_free_tables(&m.appended);
    return status;
}

attnd_status attnd_update_plan(attnd_client *client, uint64_t plan, const attnd_plan_update *update,
                               uint32_t timeout_ms, uint64_t *version, attnd_err *err)
{
    attnd_pending *pending;
    attnd_timing timing;
    TRY(attnd_update_plan_start(client, plan, update, 0, timeout_ms, &pending, err));
    TRY(attnd_wait(pending, &timing, err));
    if (version)
        *version = timing.version;
    return ATTND_OK;
}

attnd_status attnd_drop_plan(attnd_client *client, uint64_t plan, uint32_t timeout_ms,
                             attnd_err *err)
{
    Attnd__V1__DropPlanRequest drop = ATTND__V1__DROP_PLAN_REQUEST__INIT;
    drop.plan = plan;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_DROP_PLAN;
    request.drop_plan = &drop;
    Attnd__V1__Reply *reply;
    TRY(cli_call(client, &request, cli_deadline_ms(client, timeout_ms), &reply, err));
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}
