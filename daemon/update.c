/* update.c: the next version of a plan. */
#include "daemon/update.h"

#include <inttypes.h>

#include "daemon/road.h"

static void read_version(srv_request *request, srv_plan *plan, srv_version *version)
{
    request->planned = plan;
    request->version = version;
    srv_version_use(version);
}

attnd_status srv_update_build(srv_engine *engine, srv_request *request, srv_plan *plan,
                              const msg_plan_update *msg, attnd_err *err)
{
    srv_version *newest = srv_plan_newest(plan), *next = srv_plan_next(plan);
    if (msg->version != newest->number)
        return attnd_fail(err, ATTND_STALE,
                          "update.version = %" PRIu64 ": the plan's newest is %" PRIu64,
                          msg->version, newest->number);
    if (!next)
        return srv_road_wait(engine, request, err);
    msg_arena_reset(&next->arena);
    next->number = 0;
    next->n_splits = 0;
    read_version(request, plan, next);
    TRY(srv_batch_update(engine, request, &next->arena, msg, plan->model, &newest->batch,
                         &next->batch, err));
    return srv_version_check(engine, &request->arena, plan->model, next, err);
}

void srv_update_none(srv_request *request, srv_plan *plan)
{
    read_version(request, plan, srv_plan_newest(plan));
}

void srv_update_publish(srv_request *request)
{
    srv_plan *plan = request->planned;
    if (!plan || request->version->number)
        return;
    request->version->number = srv_plan_newest(plan)->number + 1;
    plan->newest = 1 - plan->newest;
}

void srv_update_leave(srv_engine *engine, srv_request *request)
{
    if (request->planned)
        srv_version_leave(engine, request->planned, request->version);
}
