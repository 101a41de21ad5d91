/* attend.h: what Attend and Step do alike: tensors of a layer → a checked problem; many of them, in
 * order.
 */
#ifndef ATTND_DAEMON_ATTEND_H
#define ATTND_DAEMON_ATTEND_H

#include "daemon/plan.h"
#include "daemon/tensor.h"

/* The tensors of one layer's call. */
typedef struct srv_call {
    msg_tensor q, k, v, out, lse, stats;
    const char *suffix; /* of their fields in the message: "", or ".first" */
} srv_call;

/* UNSUPPORTED for what this server does not serve. */
attnd_status srv_call_check_served(msg_keys keys, const msg_sync *sync, attnd_err *err);

/* Whether the call brings new keys: k and v, or a fused q. Refuses BAD_COMBINATION for one of two.
 */
attnd_status srv_call_has_keys(const srv_call *call, const ker_problem *shape, bool *out,
                               attnd_err *err);

/* Room for n problems of the request. TOO_LARGE. */
attnd_status srv_calls_begin(srv_request *request, uint32_t n, attnd_err *err);

/* Adds the problem of a layer over a plan's version, which the request reads. */
attnd_status srv_call_add(srv_request *request, const srv_plan *plan, uint32_t layer,
                          const srv_call *call, attnd_err *err);

/* Adds a problem whose batch is filled already. Refuses BAD_TENSOR, BAD_GEOMETRY, BAD_QUANT,
 * NO_SUCH_HANDLE, UNSUPPORTED. */
attnd_status srv_call_add_problem(srv_request *request, const ker_problem *shape,
                                  const srv_call *call, attnd_err *err);

/* No output overlaps another tensor of the request. BAD_TENSOR. */
attnd_status srv_calls_end(srv_request *request, attnd_err *err);

/* After completion. */
void srv_calls_count(const srv_request *request);
uint64_t srv_calls_queue_us(const srv_request *request);
uint64_t srv_calls_device_us(const srv_request *request);

#endif
