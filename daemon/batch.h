/* batch.h: a message's batch → the problem's batch, every index checked (attention.md §2, §3, §24).
 */
#ifndef ATTND_DAEMON_BATCH_H
#define ATTND_DAEMON_BATCH_H

#include "daemon/session.h"

/* Lengths, positions and slots: fills problem->batch but for the tables, and append.slots. Refuses
 * BAD_LENGTH, KV_LEN_EXCEEDS_POOL, TOO_LARGE, BAD_ROPE, BAD_BLOCK. has_new_keys: k and v come with
 * the call. */
attnd_status srv_batch_read(srv_engine *engine, srv_request *request, const srv_model *model,
                            uint32_t group, bool has_new_keys, attnd_err *err);

/* The tables: needed entries name blocks of the pool, what is appended has slots of its own and
 * overwrites nothing a row sees. Needs problem->mask. Refuses BAD_BLOCK, BAD_LENGTH,
 * KV_LEN_EXCEEDS_POOL. */
attnd_status srv_batch_read_table(srv_engine *engine, srv_request *request, srv_model *model,
                                  uint32_t group, bool has_new_keys, attnd_err *err);

#endif
