/* plan.h: a checked batch plus its work split, kept under a handle and a version.
 *
 * A plan keeps two versions: the newest, and the one before it for as long as work reads it. Each
 * has an arena of its own, so that an update allocates nothing. Work split for one layer serves
 * every layer of the same shape. Owner: the engine thread.
 */
#ifndef ATTND_DAEMON_PLAN_H
#define ATTND_DAEMON_PLAN_H

#include "daemon/batch.h"

enum { SRV_PLAN_SHAPES = 16 }; /* shapes of layers whose split a version remembers */

struct srv_version {
    uint64_t number; /* 0: empty */
    msg_arena arena;
    srv_batch batch;
    const attnd_err
        *append_err[SRV_MAX_GROUPS]; /* why k and v may not be appended; NULL: they may */
    const ker_plan *split[SRV_PLAN_SHAPES];
    size_t n_splits;
    uint32_t n_in_use; /* requests on the road that read it */
};

struct srv_plan {
    uint64_t handle;
    srv_session *session;
    srv_model *model; /* used as long as the plan is there */
    bool batch_invariant;
    srv_version version[2];
    uint32_t newest; /* index */
    bool is_dropped;
    UT_hash_handle hh; /* session->plans, by handle */
};

/* Checks a read batch for every group it has a table of, as its widest-seeing layer sees, and
 * remembers whether its tokens may be appended. Refuses what srv_batch_check refuses. */
attnd_status srv_version_check(srv_engine *engine, msg_arena *scratch, srv_model *model,
                               srv_version *version, attnd_err *err);

/* NO_ROOM: no address space. The caller frees it with srv_plan_free. */
attnd_status srv_plan_make(srv_engine *engine, srv_session *session, srv_model *model,
                           srv_plan **out, attnd_err *err);
void srv_plan_free(srv_engine *engine, srv_plan *plan); /* also one half built */

attnd_status srv_plan_get(srv_session *session, uint64_t handle, const char *field, srv_plan **out,
                          attnd_err *err);
srv_version *srv_plan_newest(srv_plan *plan);

/* The version an update may be built in; NULL while work still reads it. */
srv_version *srv_plan_next(srv_plan *plan);

/* No request finds it any more; freed with its last use. */
void srv_plan_drop(srv_engine *engine, srv_plan *plan);

/* A request on the road reads a version. leave may free a dropped plan. */
void srv_version_use(srv_version *version);
void srv_version_leave(srv_engine *engine, srv_plan *plan, srv_version *version);

/* The layer's problem over the version's batch; no tensors. Refuses BAD_GEOMETRY (the plan has no
 * table of its group) and, with_keys, why nothing may be appended. */
attnd_status srv_version_problem(const srv_plan *plan, const srv_version *version, uint32_t layer,
                                 bool with_keys, ker_problem *out, attnd_err *err);

/* Whether the work split of one problem is that of the other, over the same batch. */
bool srv_splits_alike(const ker_problem *a, const ker_problem *b);

#endif
