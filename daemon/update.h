/* update.h: the next version of a plan: built in the check, seen by others from the launch on. */
#ifndef ATTND_DAEMON_UPDATE_H
#define ATTND_DAEMON_UPDATE_H

#include "daemon/plan.h"

/* Builds the version after the plan's newest from an update and makes it the request's. Parks the
 * request while older work still reads the memory: then request->is_parked, and it is called again.
 * Refuses STALE (another version), TIMED_OUT, and what the batch's checks refuse. */
attnd_status srv_update_build(srv_engine *engine, srv_request *request, srv_plan *plan,
                              const msg_plan_update *msg, attnd_err *err);

/* Makes the plan's newest version the request's. */
void srv_update_none(srv_request *request, srv_plan *plan);

/* The built version becomes the plan's newest. */
void srv_update_publish(srv_request *request);

/* The request reads its version no more. */
void srv_update_leave(srv_engine *engine, srv_request *request);

#endif
