/* batch.h: a message's batch → plain arrays, every index checked (attention.md §2, §3, §24).
 *
 * Reading copies what the message says into an arena and checks counts and limits; checking asks
 * what the numbers mean for the layers of one group. A plan's update is read on top of the batch it
 * starts from. Refusals name the field of the message the numbers came in.
 */
#ifndef ATTND_DAEMON_BATCH_H
#define ATTND_DAEMON_BATCH_H

#include "daemon/session.h"

/* The table of one group. Row b is ids[first[b] .. first[b] + length[b]). */
typedef struct srv_table {
    bool given;
    const int32_t *ids;
    const int64_t *first;  /* [n_seqs] */
    const int64_t *length; /* [n_seqs] of its blocks, ceil(kv_len / block_size) at most */
    size_t index;          /* of the message's list: "batch.tables[index]" */
    const int64_t *n_kept; /* [n_seqs] entries of a row that an update took over; NULL: none */
    const int64_t *n_sent; /* [n_seqs] where the row's new entries begin in the message */
} srv_table;

/* A batch as read. Arrays lie in the arena it was read into. */
typedef struct srv_batch {
    ker_batch lengths;    /* no tables */
    const int32_t *slots; /* [n_tokens]; NULL: the tables say */
    msg_mask mask;
    bool is_update;
    srv_table table[SRV_MAX_GROUPS]; /* by group */
} srv_batch;

/* Reads a batch of model's groups. only_group < 0: tables of any groups, one each; else of this
 * one, which must be there. Refuses BAD_LENGTH, BAD_PHASE, BAD_GEOMETRY, BAD_ROPE, TOO_LARGE,
 * KV_LEN_EXCEEDS_POOL, and UNSUPPORTED what the batch asks for by name. */
attnd_status srv_batch_read(srv_engine *engine, srv_request *request, msg_arena *arena,
                            const msg_batch *msg, const srv_model *model, int only_group,
                            srv_batch *out, attnd_err *err);

/* Reads an update on top of old, whose arrays are copied. */
attnd_status srv_batch_update(srv_engine *engine, srv_request *request, msg_arena *arena,
                              const msg_plan_update *msg, const srv_model *model,
                              const srv_batch *old, srv_batch *out, attnd_err *err);

/* What the batch means for layers of one group that see through mask: needed entries name blocks of
 * the pool; with_keys: what is appended has slots of its own and overwrites nothing a row sees.
 * Refuses BAD_LENGTH, KV_LEN_EXCEEDS_POOL, BAD_BLOCK. Scratch comes from the arena. */
attnd_status srv_batch_check(srv_engine *engine, msg_arena *arena, const srv_batch *batch,
                             srv_model *model, uint32_t group, const ker_mask *mask, bool with_keys,
                             attnd_err *err);

/* The batch as a kernel sees it through the table of a group; slots only with keys. */
void srv_batch_fill(const srv_batch *batch, uint32_t group, ker_problem *problem);

#endif
