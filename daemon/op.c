/* op.c: the ops as a table, made of ops.def. */
#include "daemon/op.h"

enum {
    NOTHING = SRV_OP_NEEDS_NOTHING,
    SESSION = SRV_OP_NEEDS_SESSION,
    ROOM = SRV_OP_NEEDS_ROOM,
};

static const srv_op OPS[MSG_OP_END] = {
#define SERVED(op, ops_needs)                                                                      \
    [MSG_OP_##                                                                                     \
        op] = {.name = #op, .needs = (ops_needs), .check = srv_check_##op, .run = srv_run_##op},
#define MAKES(op, ops_needs)                                                                       \
    [MSG_OP_##op] = {.name = #op,                                                                  \
                     .needs = (ops_needs),                                                         \
                     .check = srv_check_##op,                                                      \
                     .make = srv_make_##op,                                                        \
                     .run = srv_run_##op},
#define UNSERVED(op) [MSG_OP_##op] = {.name = #op},
#include "daemon/ops.def"
#undef SERVED
#undef MAKES
#undef UNSERVED
};

const srv_op *srv_op_find(msg_op op)
{
    return (unsigned)op < MSG_OP_END && OPS[op].name ? &OPS[op] : NULL;
}
