/* batch.c: a message's batch → plain arrays, every index checked. */
#include "daemon/batch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/tensor.h"

/* ---- Reading: counts and limits
 * ------------------------------------------------------------------ */

/* Where the numbers came in, for refusals. */
static const char *message_of(const srv_batch *batch)
{
    return batch->is_update ? "update" : "batch";
}

static void *take(msg_arena *arena, uint64_t n, size_t size, const char *field, attnd_err *err)
{
    void *memory = n <= SIZE_MAX / size ? msg_arena_take(arena, n * size) : NULL;
    if (!memory)
        attnd_fail(err, ATTND_TOO_LARGE, "%s = %" PRIu64 " entries: more than a request may use",
                   field, n);
    return memory;
}

static attnd_status read_ints(srv_request *request, msg_arena *arena, const srv_batch *batch,
                              const msg_ints *ints, const char *name, int64_t wanted, int64_t most,
                              const int32_t **out, int64_t *n, attnd_err *err)
{
    char field[48];
    snprintf(field, sizeof field, "%s.%s", message_of(batch), name);
    return srv_ints_copy(request, arena, ints, field, wanted, most, out, n, err);
}

/* q_first, and the sum of q_lens within limits. */
static attnd_status sum_tokens(srv_engine *engine, msg_arena *arena, srv_batch *batch,
                               attnd_err *err)
{
    ker_batch *lengths = &batch->lengths;
    int64_t most = engine->limits.max_tokens, n = 0;
    int64_t *first = take(arena, lengths->n_seqs, sizeof *first, "batch.q_lens", err);
    if (!first)
        return err->status;
    for (uint32_t b = 0; b < lengths->n_seqs; b++) {
        if (lengths->q_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "%s.q_lens[%u] = %d: not negative",
                              message_of(batch), b, lengths->q_len[b]);
        if (lengths->kv_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "%s.kv_lens[%u] = %d: not negative",
                              message_of(batch), b, lengths->kv_len[b]);
        first[b] = n;
        n += lengths->q_len[b];
        if (n > most)
            return attnd_fail(err, ATTND_TOO_LARGE,
                              "%s.q_lens[%u] = %d: a call has at most %" PRId64
                              " tokens (limits.max_tokens)",
                              message_of(batch), b, lengths->q_len[b], most);
        if (b >= lengths->n_contexts && lengths->kv_len[b] &&
            lengths->q_len[b] > lengths->kv_len[b])
            return attnd_fail(err, ATTND_BAD_LENGTH,
                              "%s.kv_lens[%u] = %d: a generation sees at least its own %d tokens",
                              message_of(batch), b, lengths->kv_len[b], lengths->q_len[b]);
    }
    lengths->q_first = first;
    lengths->n_tokens = n;
    return ATTND_OK;
}

/* Slots and positions, one for each token. */
static attnd_status read_tokens(srv_request *request, msg_arena *arena, const msg_ints *slots,
                                const msg_ints *positions, srv_batch *batch, attnd_err *err)
{
    ker_batch *lengths = &batch->lengths;
    int64_t n, n_tokens = lengths->n_tokens;
    if (slots->given)
        TRY(read_ints(request, arena, batch, slots, "slots", n_tokens, n_tokens, &batch->slots, &n,
                      err));
    if (!positions->given)
        return ATTND_OK;
    TRY(read_ints(request, arena, batch, positions, "positions", n_tokens, n_tokens,
                  &lengths->positions, &n, err));
    for (int64_t t = 0; t < n; t++)
        if (lengths->positions[t] < 0)
            return attnd_fail(err, ATTND_BAD_ROPE, "%s.positions[%" PRId64 "] = %d: not negative",
                              message_of(batch), t, lengths->positions[t]);
    return ATTND_OK;
}

/* Every sequence within what its pool, and its row of the table, can hold. */
static attnd_status check_fits(const srv_batch *batch, const srv_group *group,
                               const srv_table *table, attnd_err *err)
{
    const ker_batch *lengths = &batch->lengths;
    for (uint32_t b = 0; b < lengths->n_seqs; b++) {
        int64_t holds = table->length[b] * group->geometry.block_size;
        int32_t kv_len = lengths->kv_len[b];
        if ((uint32_t)kv_len > group->max_kv_len)
            return attnd_fail(err, ATTND_KV_LEN_EXCEEDS_POOL,
                              "%s.kv_lens[%u] = %d: pool \"%s\" holds sequences of at most %u",
                              message_of(batch), b, kv_len, group->name, group->max_kv_len);
        if (lengths->q_len[b] && kv_len > holds)
            return attnd_fail(err, ATTND_KV_LEN_EXCEEDS_POOL,
                              "%s.kv_lens[%u] = %d: a table of width %" PRId64 " holds %" PRId64
                              " tokens",
                              message_of(batch), b, kv_len, table->length[b], holds);
    }
    return ATTND_OK;
}

static attnd_status read_table(srv_request *request, msg_arena *arena, const msg_table *msg,
                               const srv_group *group, srv_batch *batch, srv_table *table,
                               attnd_err *err)
{
    char field[48];
    snprintf(field, sizeof field, "batch.tables[%zu].block_ids", table->index);
    uint32_t n_seqs = batch->lengths.n_seqs;
    int64_t n = 0;
    int64_t *first = take(arena, n_seqs, sizeof *first, field, err);
    int64_t *length = first ? take(arena, n_seqs, sizeof *length, field, err) : NULL;
    if (!length)
        return err->status;
    for (uint32_t b = 0; b < n_seqs; b++) {
        first[b] = n;
        length[b] = msg->width ? msg->width
                               : kv_geometry_blocks(&group->geometry, batch->lengths.kv_len[b]);
        n += length[b];
    }
    table->first = first;
    table->length = length;
    table->given = true;
    TRY(check_fits(batch, group, table, err));
    /* An update counts new blocks from here on: what a wide row has behind them is padding. */
    for (uint32_t b = 0; b < n_seqs; b++) {
        int64_t blocks = kv_geometry_blocks(&group->geometry, batch->lengths.kv_len[b]);
        length[b] = length[b] < blocks ? length[b] : blocks;
    }
    return srv_ints_copy(request, arena, &msg->block_ids, field, n, INT64_MAX / 8, &table->ids, &n,
                         err);
}

static attnd_status read_tables(srv_request *request, msg_arena *arena, const msg_batch *msg,
                                const srv_model *model, int only_group, srv_batch *batch,
                                attnd_err *err)
{
    for (size_t i = 0; i < msg->n_tables; i++) {
        uint32_t group = msg->tables[i].group;
        if (only_group >= 0 && group != (uint32_t)only_group)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "batch.tables[%zu].group = %u: the layer lies in group %d", i, group,
                              only_group);
        if (group >= model->n_groups)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "batch.tables[%zu].group = %u: the model has groups 0..%u", i, group,
                              model->n_groups - 1);
        if (msg->tables[i].version)
            return attnd_fail(err, ATTND_UNSUPPORTED,
                              "batch.tables[%zu].version = %" PRIu64
                              ": this server keeps no tables",
                              i, msg->tables[i].version);
        srv_table *table = &batch->table[group];
        if (table->given)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "batch.tables[%zu].group = %u: a group has one table", i, group);
        table->index = i;
        TRY(read_table(request, arena, &msg->tables[i], &model->groups[group], batch, table, err));
    }
    if (only_group >= 0 && !batch->table[only_group].given)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "batch.tables: the layer's group %d has none",
                          only_group);
    if (!msg->n_tables)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "batch.tables: a plan needs one for each group");
    return ATTND_OK;
}

/* What this server does not serve is refused by name. */
static attnd_status check_served(const msg_batch *msg, attnd_err *err)
{
    static const char *const MASKS[] = {"causal", "full", "variable", "custom", "tree"};
    if (msg->n_sequences)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "batch.sequences = %zu entries: this server takes tables",
                          msg->n_sequences);
    if (msg->mask != MSG_MASK_CAUSAL && msg->mask != MSG_MASK_FULL)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "batch.mask = %s: this server serves causal and full", MASKS[msg->mask]);
    return ATTND_OK;
}

attnd_status srv_batch_read(srv_engine *engine, srv_request *request, msg_arena *arena,
                            const msg_batch *msg, const srv_model *model, int only_group,
                            srv_batch *out, attnd_err *err)
{
    int64_t n, most = engine->limits.max_sequences;
    ker_batch *lengths = &out->lengths;
    memset(out, 0, sizeof *out);
    TRY(check_served(msg, err));
    out->mask = msg->mask;
    TRY(read_ints(request, arena, out, &msg->q_lens, "q_lens", -1, most, &lengths->q_len, &n, err));
    lengths->n_seqs = (uint32_t)n;
    lengths->n_contexts = msg->n_contexts;
    if (msg->n_contexts > lengths->n_seqs)
        return attnd_fail(err, ATTND_BAD_PHASE, "batch.n_contexts = %u: the batch has %u sequences",
                          msg->n_contexts, lengths->n_seqs);
    TRY(read_ints(request, arena, out, &msg->kv_lens, "kv_lens", n, most, &lengths->kv_len, &n,
                  err));
    TRY(sum_tokens(engine, arena, out, err));
    TRY(read_tokens(request, arena, &msg->slots, &msg->positions, out, err));
    return read_tables(request, arena, msg, model, only_group, out, err);
}

/* ---- Reading an update
 * --------------------------------------------------------------------------- */

/* The lengths of an update, or those that were. */
static attnd_status read_lengths(srv_request *request, msg_arena *arena, const msg_ints *ints,
                                 const char *name, const int32_t *old, srv_batch *batch,
                                 const int32_t **out, attnd_err *err)
{
    int64_t n = batch->lengths.n_seqs;
    if (ints->given)
        return read_ints(request, arena, batch, ints, name, n, n, out, &n, err);
    int32_t *copy = take(arena, (uint64_t)n, sizeof *copy, "update", err);
    if (!copy)
        return err->status;
    memcpy(copy, old, (size_t)n * sizeof *copy);
    *out = copy;
    return ATTND_OK;
}

/* The entries a row keeps, those it takes from the message (width 0: just those it lacks), and
 * their sum. */
static attnd_status plan_rows(msg_arena *arena, const msg_table *msg, const kv_geometry *geometry,
                              const srv_table *old, const srv_batch *batch, srv_table *table,
                              int64_t *n_ids, int64_t *n_sent, attnd_err *err)
{
    uint32_t n_seqs = batch->lengths.n_seqs;
    int64_t *rows = take(arena, 4 * (uint64_t)n_seqs, sizeof *rows, "update.appended", err);
    if (!rows)
        return err->status;
    int64_t *first = rows, *length = rows + n_seqs, *kept = length + n_seqs, *sent = kept + n_seqs;
    *n_ids = *n_sent = 0;
    for (uint32_t b = 0; b < n_seqs; b++) {
        int64_t blocks = kv_geometry_blocks(geometry, batch->lengths.kv_len[b]);
        first[b] = *n_ids;
        length[b] = blocks;
        kept[b] = old->length[b] < blocks ? old->length[b] : blocks;
        sent[b] = *n_sent;
        int64_t lacks = blocks - kept[b];
        if (msg && msg->width && msg->width < lacks)
            return attnd_fail(err, ATTND_KV_LEN_EXCEEDS_POOL,
                              "update.appended[%zu].width = %u: sequence %u needs %" PRId64
                              " more blocks",
                              table->index, msg->width, b, lacks);
        *n_ids += blocks;
        *n_sent += msg && msg->width ? msg->width : lacks;
    }
    table->first = first;
    table->length = length;
    table->n_kept = kept;
    table->n_sent = sent;
    return ATTND_OK;
}

static attnd_status extend_table(srv_request *request, msg_arena *arena, const msg_table *msg,
                                 const srv_model *model, uint32_t group, const srv_table *old,
                                 srv_batch *batch, attnd_err *err)
{
    srv_table *table = &batch->table[group];
    int64_t n_ids = 0, n_sent = 0, n;
    const int32_t *sent = NULL;
    char field[48];
    TRY(plan_rows(arena, msg, &model->groups[group].geometry, old, batch, table, &n_ids, &n_sent,
                  err));
    TRY(check_fits(batch, &model->groups[group], table, err));
    snprintf(field, sizeof field, "update.appended[%zu].block_ids", table->index);
    if (msg)
        TRY(srv_ints_copy(request, arena, &msg->block_ids, field, n_sent, INT64_MAX / 8, &sent, &n,
                          err));
    else if (n_sent)
        return attnd_fail(err, ATTND_BAD_LENGTH,
                          "update.appended: group %u needs %" PRId64 " more blocks", group, n_sent);
    int32_t *ids = take(arena, (uint64_t)n_ids, sizeof *ids, field, err);
    if (!ids)
        return err->status;
    for (uint32_t b = 0; b < batch->lengths.n_seqs; b++) {
        int32_t *row = ids + table->first[b];
        int64_t kept = table->n_kept[b];
        memcpy(row, old->ids + old->first[b], (size_t)kept * sizeof *row);
        if (sent)
            memcpy(row + kept, sent + table->n_sent[b],
                   (size_t)(table->length[b] - kept) * sizeof *row);
    }
    table->ids = ids;
    table->given = true;
    return ATTND_OK;
}

static attnd_status extend_tables(srv_request *request, msg_arena *arena,
                                  const msg_plan_update *msg, const srv_model *model,
                                  const srv_batch *old, srv_batch *batch, attnd_err *err)
{
    const msg_table *appended[SRV_MAX_GROUPS] = {NULL};
    for (size_t i = 0; i < msg->n_appended; i++) {
        uint32_t group = msg->appended[i].group;
        if (group >= model->n_groups || !old->table[group].given)
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "update.appended[%zu].group = %u: the plan has no table of it", i,
                              group);
        if (appended[group])
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "update.appended[%zu].group = %u: a group has one table", i, group);
        appended[group] = &msg->appended[i];
        batch->table[group].index = i;
    }
    for (uint32_t g = 0; g < model->n_groups; g++)
        if (old->table[g].given)
            TRY(extend_table(request, arena, appended[g], model, g, &old->table[g], batch, err));
    return ATTND_OK;
}

attnd_status srv_batch_update(srv_engine *engine, srv_request *request, msg_arena *arena,
                              const msg_plan_update *msg, const srv_model *model,
                              const srv_batch *old, srv_batch *out, attnd_err *err)
{
    memset(out, 0, sizeof *out);
    out->is_update = true;
    out->mask = old->mask;
    out->lengths.n_seqs = old->lengths.n_seqs;
    out->lengths.n_contexts = old->lengths.n_contexts;
    if (old->slots && !msg->slots.given)
        return attnd_fail(err, ATTND_BAD_LENGTH, "update.slots: the plan was made with slots");
    if (old->lengths.positions && !msg->positions.given)
        return attnd_fail(err, ATTND_BAD_LENGTH,
                          "update.positions: the plan was made with positions");
    TRY(read_lengths(request, arena, &msg->q_lens, "q_lens", old->lengths.q_len, out,
                     &out->lengths.q_len, err));
    TRY(read_lengths(request, arena, &msg->kv_lens, "kv_lens", old->lengths.kv_len, out,
                     &out->lengths.kv_len, err));
    TRY(sum_tokens(engine, arena, out, err));
    TRY(read_tokens(request, arena, &msg->slots, &msg->positions, out, err));
    return extend_tables(request, arena, msg, model, old, out, err);
}

/* ---- Checking: what the numbers mean
 * ------------------------------------------------------------- */

/* What the checks below look at. */
typedef struct batch_check {
    const srv_batch *batch;
    const ker_batch *lengths;
    const srv_table *table;
    const ker_mask *mask;
    srv_group *group;
    uint64_t stamp; /* of this check */
} batch_check;

/* Whether a sequence stores a token: not when all its slots say nowhere. */
static bool appends(const batch_check *c, uint32_t b)
{
    int64_t first = c->lengths->q_first[b];
    if (!c->batch->slots)
        return true;
    for (int32_t i = 0; i < c->lengths->q_len[b]; i++)
        if (c->batch->slots[first + i] >= 0)
            return true;
    return false;
}

static attnd_status check_lengths(const batch_check *c, bool with_keys, attnd_err *err)
{
    for (uint32_t b = 0; b < c->lengths->n_seqs; b++) {
        int32_t q_len = c->lengths->q_len[b], kv_len = c->lengths->kv_len[b];
        if (q_len > kv_len && with_keys && appends(c, b))
            return attnd_fail(err, ATTND_BAD_LENGTH,
                              "%s.kv_lens[%u] = %d: it counts the %d tokens this call appends",
                              message_of(c->batch), b, kv_len, q_len);
    }
    return ATTND_OK;
}

static attnd_status check_slots(const batch_check *c, attnd_err *err)
{
    int64_t n_slots = (int64_t)c->group->n_blocks * c->group->geometry.block_size;
    for (int64_t t = 0; t < c->lengths->n_tokens; t++)
        if (c->batch->slots[t] < -1 || c->batch->slots[t] >= n_slots)
            return attnd_fail(
                err, ATTND_BAD_BLOCK,
                "%s.slots[%" PRId64 "] = %d: pool \"%s\" has slots 0..%" PRId64 ", -1 for nowhere",
                message_of(c->batch), t, c->batch->slots[t], c->group->name, n_slots - 1);
    return ATTND_OK;
}

/* The path of entry n of sequence b in the message it came in. */
static const char *entry_field(const batch_check *c, uint32_t b, int64_t n, char out[64])
{
    const srv_table *t = c->table;
    if (!c->batch->is_update)
        snprintf(out, 64, "batch.tables[%zu].block_ids[%" PRId64 "]", t->index, t->first[b] + n);
    else if (n < t->n_kept[b])
        snprintf(out, 64, "update.kv_lens[%u]", b);
    else
        snprintf(out, 64, "update.appended[%zu].block_ids[%" PRId64 "]", t->index,
                 t->n_sent[b] + n - t->n_kept[b]);
    return out;
}

/* Entries that are read: the lowest visible key's block up to the last. */
static void needed_entries(const batch_check *c, uint32_t b, int64_t *first, int64_t *end)
{
    *first = *end = 0;
    if (!c->lengths->q_len[b])
        return;
    *end = kv_geometry_blocks(&c->group->geometry, c->lengths->kv_len[b]);
    *first = ker_mask_lowest_key(c->mask, c->lengths->q_len[b], c->lengths->kv_len[b]) /
             c->group->geometry.block_size;
}

static attnd_status check_entries(const batch_check *c, uint32_t b, attnd_err *err)
{
    const int32_t *ids = c->table->ids + c->table->first[b];
    int64_t first, end;
    char field[64];
    needed_entries(c, b, &first, &end);
    for (int64_t n = first; n < end; n++)
        if (ids[n] < 0 || (uint32_t)ids[n] >= c->group->n_blocks)
            return attnd_fail(
                err, ATTND_BAD_BLOCK, "%s = %d: sequence %u needs it, pool \"%s\" has blocks 0..%u",
                entry_field(c, b, n, field), ids[n], b, c->group->name, c->group->n_blocks - 1);
    return ATTND_OK;
}

/* ---- Checking: what is appended
 * ------------------------------------------------------------------ */

/* A token that this call stores, and where. */
typedef struct stored {
    int64_t slot, token;
} stored;

/* n tokens by slot, those of one slot in their order; the result lies in one of the two. Digit by
 * digit: a client chooses its slots, and no choice of them takes longer than another. */
static const stored *sort_stored(stored *from, stored *to, int64_t n, int64_t n_slots)
{
    for (int shift = 0; shift <= 56 && n_slots >> shift; shift += 8) {
        int64_t at[257] = {0};
        for (int64_t i = 0; i < n; i++)
            at[(from[i].slot >> shift & 255) + 1]++;
        for (int d = 0; d < 256; d++)
            at[d + 1] += at[d];
        for (int64_t i = 0; i < n; i++)
            to[at[from[i].slot >> shift & 255]++] = from[i];
        stored *sorted = to;
        to = from;
        from = sorted;
    }
    return from;
}

/* Where token i of sequence b is stored; -1: nowhere. */
static int64_t slot_of(const batch_check *c, uint32_t b, int32_t i)
{
    int64_t size = c->group->geometry.block_size;
    if (c->batch->slots)
        return c->batch->slots[c->lengths->q_first[b] + i];
    int64_t j = (int64_t)c->lengths->kv_len[b] - c->lengths->q_len[b] + i;
    return (int64_t)c->table->ids[c->table->first[b] + j / size] * size + j % size;
}

/* Stamps the blocks that sequence b appends to, and lists what is stored behind the n that are. */
static int64_t file_appends(const batch_check *c, uint32_t b, stored *list, int64_t n)
{
    int64_t size = c->group->geometry.block_size;
    for (int32_t i = 0; i < c->lengths->q_len[b]; i++) {
        int64_t slot = slot_of(c, b, i), token = c->lengths->q_first[b] + i;
        if (slot < 0)
            continue;
        list[n++] = (stored){slot, token};
        srv_block_mark *mark = &c->group->marks[slot / size];
        bool is_ours = mark->stamp == c->stamp;
        mark->seq = is_ours && mark->seq != b ? -1 : (int64_t)b;
        mark->first = is_ours ? mark->first : token;
        mark->last = token;
        mark->stamp = c->stamp;
    }
    return n;
}

/* No two of what is stored, sorted, have one slot; else the first token that meets another is
 * named. */
static attnd_status check_distinct(const batch_check *c, const stored *sorted, int64_t n,
                                   attnd_err *err)
{
    char field[64];
    const stored *twice = NULL;
    for (int64_t i = 1; i < n; i++)
        if (sorted[i].slot == sorted[i - 1].slot && (!twice || sorted[i].token < twice->token))
            twice = &sorted[i];
    if (!twice)
        return ATTND_OK;
    uint32_t b = 0;
    while (b + 1 < c->lengths->n_seqs && c->lengths->q_first[b + 1] <= twice->token)
        b++;
    int64_t size = c->group->geometry.block_size, i = twice->token - c->lengths->q_first[b];
    if (c->batch->slots)
        snprintf(field, sizeof field, "%s.slots[%" PRId64 "]", message_of(c->batch), twice->token);
    else
        entry_field(c, b, (c->lengths->kv_len[b] - c->lengths->q_len[b] + i) / size, field);
    return attnd_fail(err, ATTND_BAD_BLOCK,
                      "%s = %" PRId64 ": tokens %" PRId64 " and %" PRId64
                      " of this call would be stored in one slot",
                      field, c->batch->slots ? twice->slot : twice->slot / size, twice[-1].token,
                      twice->token);
}

/* A block that sequence b reads and this call appends to: it is b's alone (§3.7), and no key that b
 * sees is overwritten but by the token whose key it is (§3.5). */
static attnd_status check_marked(const batch_check *c, uint32_t b, int64_t n, attnd_err *err)
{
    char field[64];
    int64_t size = c->group->geometry.block_size;
    int64_t block = c->table->ids[c->table->first[b] + n];
    int32_t q_len = c->lengths->q_len[b], kv_len = c->lengths->kv_len[b];
    if (c->group->marks[block].seq != (int64_t)b)
        return attnd_fail(err, ATTND_BAD_BLOCK,
                          "%s = %" PRId64
                          ": sequence %u reads it and another sequence of this call appends to it",
                          entry_field(c, b, n, field), block, b);
    int64_t lowest = ker_mask_lowest_key(c->mask, q_len, kv_len), q_first = c->lengths->q_first[b];
    const srv_block_mark *mark = &c->group->marks[block];
    for (int64_t token = mark->first; token <= mark->last; token++) {
        int64_t slot = slot_of(c, b, (int32_t)(token - q_first));
        if (slot < 0 || slot / size != block)
            continue;
        int64_t j = n * size + slot % size, own = q_first + j - ((int64_t)kv_len - q_len);
        if (j >= lowest && j < kv_len && token != own)
            return attnd_fail(err, ATTND_BAD_BLOCK,
                              "%s = %" PRId64 ": key %" PRId64
                              " of sequence %u is still seen and token %" PRId64
                              " would be stored over it",
                              entry_field(c, b, n, field), block, j, b, token);
    }
    return ATTND_OK;
}

static attnd_status check_appends(msg_arena *arena, const batch_check *c, attnd_err *err)
{
    int64_t n_stored = 0, n_slots = (int64_t)c->group->n_blocks * c->group->geometry.block_size;
    uint64_t n_tokens = (uint64_t)c->lengths->n_tokens;
    stored *list = msg_arena_take(arena, n_tokens * sizeof *list);
    stored *other = list ? msg_arena_take(arena, n_tokens * sizeof *other) : NULL;
    if (!other)
        return attnd_fail(err, ATTND_TOO_LARGE, "%s.q_lens: more tokens than a request may use",
                          message_of(c->batch));
    for (uint32_t b = 0; b < c->lengths->n_seqs; b++)
        n_stored = file_appends(c, b, list, n_stored);
    TRY(check_distinct(c, sort_stored(list, other, n_stored, n_slots), n_stored, err));
    for (uint32_t b = 0; b < c->lengths->n_seqs; b++) {
        int64_t first, end;
        const int32_t *ids = c->table->ids + c->table->first[b];
        needed_entries(c, b, &first, &end);
        for (int64_t n = first; n < end; n++)
            if (c->group->marks[ids[n]].stamp == c->stamp)
                TRY(check_marked(c, b, n, err));
    }
    return ATTND_OK;
}

attnd_status srv_batch_check(srv_engine *engine, msg_arena *arena, const srv_batch *batch,
                             srv_model *model, uint32_t group, const ker_mask *mask, bool with_keys,
                             attnd_err *err)
{
    batch_check c = {.batch = batch,
                     .lengths = &batch->lengths,
                     .table = &batch->table[group],
                     .mask = mask,
                     .group = &model->groups[group],
                     .stamp = ++engine->last_stamp};
    TRY(check_lengths(&c, with_keys, err));
    if (batch->slots)
        TRY(check_slots(&c, err));
    for (uint32_t b = 0; b < c.lengths->n_seqs; b++)
        TRY(check_entries(&c, b, err));
    return with_keys ? check_appends(arena, &c, err) : ATTND_OK;
}

void srv_batch_fill(const srv_batch *batch, uint32_t group, ker_problem *problem)
{
    problem->batch = batch->lengths;
    problem->batch.block_ids = batch->table[group].ids;
    problem->batch.block_first = batch->table[group].first;
    problem->append.slots = batch->slots;
    if (batch->mask == MSG_MASK_CAUSAL)
        problem->mask.kinds |= KER_MASK_CAUSAL;
}
