/* snapshot.c: frees what the engine thread copied. */
#include "daemon/snapshot.h"

#include <stdlib.h>

void srv_snapshot_fini(srv_snapshot *snapshot)
{
    free(snapshot->sessions);
    free(snapshot->models);
    free(snapshot->pools);
    free(snapshot->buffers);
    free(snapshot->plans);
    snapshot->sessions = NULL;
    snapshot->models = NULL;
    snapshot->pools = NULL;
    snapshot->buffers = NULL;
    snapshot->plans = NULL;
    snapshot->n_sessions = snapshot->n_models = snapshot->n_pools = snapshot->n_buffers = 0;
    snapshot->n_plans = 0;
}
