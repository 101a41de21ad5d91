/* batch.c: a message's batch → the problem's batch, every index checked. */
#include "daemon/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/tensor.h"

/* ---- Lengths ----------------------------------------------------------------------------------
 */

/* Whether a sequence stores a token: not when all its slots say nowhere. */
static bool appends(const ker_problem *problem, uint32_t b)
{
    const int32_t *slots = problem->append.slots;
    int64_t first = problem->batch.q_first[b];
    if (!slots)
        return true;
    for (int32_t i = 0; i < problem->batch.q_len[b]; i++)
        if (slots[first + i] >= 0)
            return true;
    return false;
}

static attnd_status check_lengths(const ker_problem *problem, const srv_group *group,
                                  bool has_new_keys, attnd_err *err)
{
    const ker_batch *batch = &problem->batch;
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        int32_t q_len = batch->q_len[b], kv_len = batch->kv_len[b];
        if (kv_len < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "batch.kv_lens[%u] = %d: not negative", b,
                              kv_len);
        if ((uint32_t)kv_len > group->max_kv_len)
            return attnd_fail(err, ATTND_KV_LEN_EXCEEDS_POOL,
                              "batch.kv_lens[%u] = %d: pool \"%s\" holds sequences of at most %u",
                              b, kv_len, group->name, group->max_kv_len);
        if (q_len > kv_len && has_new_keys && appends(problem, b))
            return attnd_fail(err, ATTND_BAD_LENGTH,
                              "batch.kv_lens[%u] = %d: it counts the %d tokens this call appends",
                              b, kv_len, q_len);
        if (b >= batch->n_contexts && kv_len && q_len > kv_len)
            return attnd_fail(
                err, ATTND_BAD_LENGTH,
                "batch.kv_lens[%u] = %d: a generation sees at least its own %d tokens", b, kv_len,
                q_len);
    }
    return ATTND_OK;
}

/* q_first, and the sum of q_lens within limits. */
static attnd_status sum_tokens(srv_engine *engine, srv_request *request, attnd_err *err)
{
    ker_batch *batch = &request->problem.batch;
    int64_t most = engine->limits.max_tokens, n = 0;
    int64_t *first = msg_arena_take(&request->arena, batch->n_seqs * sizeof *first);
    if (!first)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "batch.q_lens = %u entries: more than a request may use", batch->n_seqs);
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        if (batch->q_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "batch.q_lens[%u] = %d: not negative", b,
                              batch->q_len[b]);
        first[b] = n;
        n += batch->q_len[b];
        if (n > most)
            return attnd_fail(err, ATTND_TOO_LARGE,
                              "batch.q_lens[%u] = %d: a call has at most %" PRId64
                              " tokens (limits.max_tokens)",
                              b, batch->q_len[b], most);
    }
    batch->q_first = first;
    batch->n_tokens = n;
    return ATTND_OK;
}

attnd_status srv_batch_read(srv_engine *engine, srv_request *request, const srv_model *model,
                            uint32_t group_index, bool has_new_keys, attnd_err *err)
{
    const msg_batch *msg = &request->msg.attend.batch;
    const srv_group *group = &model->groups[group_index];
    ker_problem *problem = &request->problem;
    ker_batch *batch = &problem->batch;
    int64_t n, most = engine->limits.max_sequences;
    TRY(srv_ints_copy(request, &msg->q_lens, "batch.q_lens", -1, most, &batch->q_len, &n, err));
    batch->n_seqs = (uint32_t)n;
    batch->n_contexts = msg->n_contexts;
    if (msg->n_contexts > batch->n_seqs)
        return attnd_fail(err, ATTND_BAD_PHASE, "batch.n_contexts = %u: the batch has %u sequences",
                          msg->n_contexts, batch->n_seqs);
    TRY(srv_ints_copy(request, &msg->kv_lens, "batch.kv_lens", n, most, &batch->kv_len, &n, err));
    TRY(sum_tokens(engine, request, err));
    if (msg->slots.given && !has_new_keys)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "batch.slots: the call brings no k and v to store");
    if (msg->slots.given) {
        TRY(srv_ints_copy(request, &msg->slots, "batch.slots", batch->n_tokens, batch->n_tokens,
                          &problem->append.slots, &n, err));
        int64_t n_slots = (int64_t)group->n_blocks * group->geometry.block_size;
        for (int64_t t = 0; t < n; t++)
            if (problem->append.slots[t] < -1 || problem->append.slots[t] >= n_slots)
                return attnd_fail(err, ATTND_BAD_BLOCK,
                                  "batch.slots[%" PRId64 "] = %d: pool \"%s\" has slots 0..%" PRId64
                                  ", -1 for nowhere",
                                  t, problem->append.slots[t], group->name, n_slots - 1);
    }
    if (msg->positions.given) {
        TRY(srv_ints_copy(request, &msg->positions, "batch.positions", batch->n_tokens,
                          batch->n_tokens, &batch->positions, &n, err));
        for (int64_t t = 0; t < n; t++)
            if (batch->positions[t] < 0)
                return attnd_fail(err, ATTND_BAD_ROPE,
                                  "batch.positions[%" PRId64 "] = %d: not negative", t,
                                  batch->positions[t]);
    }
    return check_lengths(problem, group, has_new_keys, err);
}

/* ---- Tables -----------------------------------------------------------------------------------
 */

/* Slots that this call appends to → the token that does: open addressing, at most half full. */
typedef struct slot_map {
    int64_t mask;
    struct {
        int64_t slot; /* -1: empty */
        int64_t token;
    } * at;
} slot_map;

static bool slot_map_make(msg_arena *arena, int64_t n, slot_map *out)
{
    int64_t size = 8;
    while (size < 2 * n)
        size *= 2;
    out->mask = size - 1;
    out->at = msg_arena_take(arena, (size_t)size * sizeof *out->at);
    if (out->at)
        for (int64_t i = 0; i < size; i++)
            out->at[i].slot = -1;
    return out->at;
}

/* Where the slot is, or where it would go. */
static int64_t slot_map_place(const slot_map *map, int64_t slot)
{
    int64_t i = (int64_t)((uint64_t)slot * 0x9E3779B97F4A7C15u >> 20) & map->mask;
    while (map->at[i].slot >= 0 && map->at[i].slot != slot)
        i = (i + 1) & map->mask;
    return i;
}

/* What the checks below look at. */
typedef struct table_check {
    const ker_problem *problem;
    uint64_t stamp; /* of this request */
    srv_group *group;
    char field[48]; /* "batch.tables[0].block_ids" */
    slot_map slots;
} table_check;

static int64_t table_length(const table_check *c, const msg_table *table, uint32_t b)
{
    return table->width ? table->width
                        : kv_geometry_blocks(&c->group->geometry, c->problem->batch.kv_len[b]);
}

/* Entries that are read: lo's block up to the last. */
static void needed_entries(const table_check *c, uint32_t b, int64_t *first, int64_t *end)
{
    const ker_batch *batch = &c->problem->batch;
    *first = *end = 0;
    if (!batch->q_len[b])
        return;
    *end = kv_geometry_blocks(&c->group->geometry, batch->kv_len[b]);
    *first = ker_mask_lowest_key(&c->problem->mask, batch->q_len[b], batch->kv_len[b]) /
             c->group->geometry.block_size;
}

static attnd_status check_entries(const table_check *c, uint32_t b, attnd_err *err)
{
    const ker_batch *batch = &c->problem->batch;
    const int32_t *ids = batch->block_ids + batch->block_first[b];
    int64_t first, end;
    needed_entries(c, b, &first, &end);
    for (int64_t n = first; n < end; n++)
        if (ids[n] < 0 || (uint32_t)ids[n] >= c->group->n_blocks)
            return attnd_fail(err, ATTND_BAD_BLOCK,
                              "%s[%" PRId64
                              "] = %d: sequence %u needs it, pool \"%s\" has blocks 0..%u",
                              c->field, batch->block_first[b] + n, ids[n], b, c->group->name,
                              c->group->n_blocks - 1);
    return ATTND_OK;
}

/* Where token i of sequence b is stored; -1: nowhere. */
static int64_t slot_of(const table_check *c, uint32_t b, int32_t i)
{
    const ker_batch *batch = &c->problem->batch;
    int64_t size = c->group->geometry.block_size;
    if (c->problem->append.slots)
        return c->problem->append.slots[batch->q_first[b] + i];
    int64_t j = (int64_t)batch->kv_len[b] - batch->q_len[b] + i;
    return (int64_t)batch->block_ids[batch->block_first[b] + j / size] * size + j % size;
}

/* Stamps the blocks that sequence b appends to and files its slots; slots are distinct. */
static attnd_status file_appends(table_check *c, uint32_t b, attnd_err *err)
{
    const ker_batch *batch = &c->problem->batch;
    for (int32_t i = 0; i < batch->q_len[b]; i++) {
        int64_t slot = slot_of(c, b, i), token = batch->q_first[b] + i;
        if (slot < 0)
            continue;
        int64_t place = slot_map_place(&c->slots, slot);
        if (c->slots.at[place].slot >= 0)
            return attnd_fail(err, ATTND_BAD_BLOCK,
                              "%s = %" PRId64 ": tokens %" PRId64 " and %" PRId64
                              " of this call would be stored in one slot",
                              c->problem->append.slots ? "batch.slots" : c->field, slot,
                              c->slots.at[place].token, token);
        c->slots.at[place].slot = slot;
        c->slots.at[place].token = token;
        srv_block_mark *mark = &c->group->marks[slot / c->group->geometry.block_size];
        bool is_ours = mark->stamp == c->stamp;
        mark->seq = is_ours && mark->seq != b ? -1 : (int64_t)b;
        mark->stamp = c->stamp;
    }
    return ATTND_OK;
}

/* A block that sequence b reads and this call appends to: it is b's alone (§3.7), and no key that b
 * sees is overwritten but by the token whose key it is (§3.5). */
static attnd_status check_marked(const table_check *c, uint32_t b, int64_t n, attnd_err *err)
{
    const ker_batch *batch = &c->problem->batch;
    int64_t size = c->group->geometry.block_size, entry = batch->block_first[b] + n;
    int64_t block = batch->block_ids[entry];
    if (c->group->marks[block].seq != (int64_t)b)
        return attnd_fail(err, ATTND_BAD_BLOCK,
                          "%s[%" PRId64 "] = %" PRId64
                          ": sequence %u reads it and another sequence of this call appends to it",
                          c->field, entry, block, b);
    int64_t lowest = ker_mask_lowest_key(&c->problem->mask, batch->q_len[b], batch->kv_len[b]);
    for (int64_t row = 0; row < size; row++) {
        int64_t j = n * size + row, slot = block * size + row;
        if (j < lowest || j >= batch->kv_len[b])
            continue;
        int64_t place = slot_map_place(&c->slots, slot);
        int64_t own = batch->q_first[b] + j - ((int64_t)batch->kv_len[b] - batch->q_len[b]);
        if (c->slots.at[place].slot == slot && c->slots.at[place].token != own)
            return attnd_fail(err, ATTND_BAD_BLOCK,
                              "%s[%" PRId64 "] = %" PRId64 ": key %" PRId64
                              " of sequence %u is still seen and token %" PRId64
                              " would be stored over it",
                              c->field, entry, block, j, b, c->slots.at[place].token);
    }
    return ATTND_OK;
}

static attnd_status check_appends(srv_engine *engine, srv_request *request, table_check *c,
                                  attnd_err *err)
{
    const ker_batch *batch = &c->problem->batch;
    if (!slot_map_make(&request->arena, batch->n_tokens, &c->slots))
        return attnd_fail(err, ATTND_TOO_LARGE, "batch.q_lens: more tokens than a request may use");
    c->stamp = ++engine->last_stamp;
    for (uint32_t b = 0; b < batch->n_seqs; b++)
        TRY(file_appends(c, b, err));
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        int64_t first, end;
        needed_entries(c, b, &first, &end);
        for (int64_t n = first; n < end; n++) {
            const int32_t block = batch->block_ids[batch->block_first[b] + n];
            if (c->group->marks[block].stamp == c->stamp)
                TRY(check_marked(c, b, n, err));
        }
    }
    return ATTND_OK;
}

/* The table of the group; one, and of no other group. */
static attnd_status find_table(const msg_batch *msg, uint32_t group, const msg_table **out,
                               size_t *index, attnd_err *err)
{
    *out = NULL;
    for (size_t i = 0; i < msg->n_tables; i++) {
        if (msg->tables[i].group != group)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "batch.tables[%zu].group = %u: the layer lies in group %u", i,
                              msg->tables[i].group, group);
        if (*out)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "batch.tables[%zu].group = %u: a group has one table", i, group);
        *out = &msg->tables[i];
        *index = i;
    }
    if (!*out)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "batch.tables: the layer's group %u has none",
                          group);
    return ATTND_OK;
}

attnd_status srv_batch_read_table(srv_engine *engine, srv_request *request, srv_model *model,
                                  uint32_t group, bool has_new_keys, attnd_err *err)
{
    ker_batch *batch = &request->problem.batch;
    table_check c = {.problem = &request->problem, .group = &model->groups[group]};
    const msg_table *table;
    size_t index;
    TRY(find_table(&request->msg.attend.batch, group, &table, &index, err));
    snprintf(c.field, sizeof c.field, "batch.tables[%zu].block_ids", index);
    int64_t *first = msg_arena_take(&request->arena, batch->n_seqs * sizeof *first);
    if (!first)
        return attnd_fail(err, ATTND_TOO_LARGE, "%s: more sequences than a request may use",
                          c.field);
    int64_t n = 0;
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        int64_t length = table_length(&c, table, b);
        int64_t blocks = kv_geometry_blocks(&c.group->geometry, batch->kv_len[b]);
        if (batch->q_len[b] && length < blocks)
            return attnd_fail(
                err, ATTND_KV_LEN_EXCEEDS_POOL,
                "batch.kv_lens[%u] = %d: a table of width %u holds %" PRId64 " tokens", b,
                batch->kv_len[b], table->width, length * c.group->geometry.block_size);
        first[b] = n;
        n += length;
    }
    batch->block_first = first;
    TRY(srv_ints_copy(request, &table->block_ids, c.field, n, INT64_MAX / 8, &batch->block_ids, &n,
                      err));
    for (uint32_t b = 0; b < batch->n_seqs; b++)
        TRY(check_entries(&c, b, err));
    return has_new_keys ? check_appends(engine, request, &c, err) : ATTND_OK;
}
