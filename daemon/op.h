/* op.h: the ops as a table, made of ops.def. */
#ifndef ATTND_DAEMON_OP_H
#define ATTND_DAEMON_OP_H

#include "daemon/request.h"

enum {
    SRV_OP_NEEDS_NOTHING = 0,
    SRV_OP_NEEDS_SESSION = 1u << 0,
    SRV_OP_NEEDS_ROOM = 1u << 1,
};

/* All on the engine thread. An op with problems, or a merge, runs after completion. A check may
 * park the request (road.h) and is then called again. */
struct srv_op {
    const char *name;
    unsigned needs;
    attnd_status (*check)(srv_engine *engine, srv_request *request, attnd_err *err);
    attnd_status (*make)(srv_engine *engine, srv_request *request, attnd_err *err); /* or NULL */
    void (*run)(srv_engine *engine, srv_request *request); /* NULL: unserved */
};

/* NULL for a number that is none of the protocol's. */
const srv_op *srv_op_find(msg_op op);

#define SERVED(op, ops_needs)                                                                      \
    attnd_status srv_check_##op(srv_engine *engine, srv_request *request, attnd_err *err);         \
    void srv_run_##op(srv_engine *engine, srv_request *request);
#define MAKES(op, ops_needs)                                                                       \
    SERVED(op, ops_needs)                                                                          \
    attnd_status srv_make_##op(srv_engine *engine, srv_request *request, attnd_err *err);
#define UNSERVED(op)
#include "daemon/ops.def"
#undef SERVED
#undef MAKES
#undef UNSERVED

#endif
