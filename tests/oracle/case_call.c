/* case_call.c: one call of a case: its tensors, its way to the target, what came of it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case_judge.h"
#include "tests/oracle/case_steps.h"
#include "tests/oracle/case_tensor.h"

enum { MAX_ROWS = 1 << 22 }; /* of a call that must succeed */

attnd_status ora_run_no_memory(attnd_err *err)
{
    return attnd_fail(err, ATTND_NO_ROOM, "case: no memory");
}

/* The step of that name among those before i, or -1. */
int64_t ora_run_find_step(const ora_run *r, const char *name, size_t i)
{
    for (size_t s = 0; s < i; s++)
        if (strcmp(r->c->steps[s].name, name) == 0)
            return (int64_t)s;
    return -1;
}

attnd_status ora_run_find_plan(ora_run *r, const char *name, ora_run_plan **out, attnd_err *err)
{
    int64_t at = ora_run_find_step(r, name, r->c->n_steps);
    if (at < 0 || r->c->steps[at].op != ORA_CASE_CREATE_PLAN)
        return attnd_fail(err, ATTND_BAD_CONFIG, "plan = %s: no step of that name makes one", name);
    *out = &r->plans[at];
    return ATTND_OK;
}
/* The layer a call is of; one that is not there has the shape of the first. */
attnd_status ora_run_layer_of(const ora_run *r, uint32_t layer, const ora_shadow_layer **out,
                              attnd_err *err)
{
    if (!r->is_open || !r->shadow.n_layers)
        return attnd_fail(err, ATTND_BAD_CONFIG, "spec = none: no model is open");
    *out = &r->shadow.layers[layer < r->shadow.n_layers ? layer : 0];
    return ATTND_OK;
}
/* ---- Batches ----------------------------------------------------------------------------------
 */

int64_t ora_run_blocks_for(int64_t kv_len, uint32_t block_size)
{
    return kv_len > 0 ? (kv_len + block_size - 1) / block_size : 0;
}

/* Lists the block ids of tables; entries of row b: from[b] on, NULL: from the first. */
attnd_status ora_run_list_tables(ora_run *r, const ora_case_table *tables, size_t n,
                                 const ora_case_ints *kv_lens, const ora_case_ints *old_lens,
                                 ora_case_table **out, attnd_err *err)
{
    int64_t *first = ora_arena_take(r->arena, kv_lens->n + 1, sizeof *first);
    int64_t *count = ora_arena_take(r->arena, kv_lens->n + 1, sizeof *count);
    *out = ora_arena_take(r->arena, n + 1, sizeof **out);
    if (!first || !count || !*out)
        return ora_run_no_memory(err);
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = tables[i];
        uint32_t group = tables[i].group;
        if (group >= r->shadow.n_groups)
            continue; /* there for its refusal */
        uint32_t block_size = r->shadow.groups[group].block_size;
        for (size_t b = 0; b < kv_lens->n; b++) {
            int64_t end = ora_run_blocks_for(kv_lens->values[b], block_size);
            first[b] = old_lens && b < old_lens->n
                           ? ora_run_blocks_for(old_lens->values[b], block_size)
                           : 0;
            count[b] = tables[i].width ? tables[i].width : end > first[b] ? end - first[b] : 0;
        }
        TRY(ora_blocks_make(r->arena, &tables[i].block_ids, block_size, r->shadow.n_blocks[group],
                            kv_lens->n, first, count, &(*out)[i].block_ids.ids, err));
    }
    return ATTND_OK;
}

attnd_status ora_run_list_batch(ora_run *r, const ora_case_batch *batch, ora_case_batch *out,
                                attnd_err *err)
{
    *out = *batch;
    return ora_run_list_tables(r, batch->tables, batch->n_tables, &batch->kv_lens, NULL,
                               &out->tables, err);
}

int64_t ora_run_count_tokens(const ora_case_ints *lens)
{
    int64_t n = 0;
    for (size_t i = 0; i < lens->n; i++)
        n += lens->values[i] > 0 ? lens->values[i] : 0;
    return n;
}

/* Key indices of the rows of q (and of what is appended), or of given keys. */
static attnd_status list_positions(ora_run *r, const ora_case_batch *batch, bool of_keys, int64_t n,
                                   int64_t **out, attnd_err *err)
{
    int64_t at = 0;
    *out = ora_arena_take(r->arena, (size_t)n + 1, sizeof **out);
    if (!*out)
        return ora_run_no_memory(err);
    for (size_t b = 0; b < batch->q_lens.n && b < batch->kv_lens.n; b++) {
        int64_t kv_len = batch->kv_lens.values[b], q_len = batch->q_lens.values[b];
        int64_t rows = of_keys ? kv_len : q_len, first = of_keys ? 0 : kv_len - q_len;
        for (int64_t i = 0; i < rows && at < n; i++)
            (*out)[at++] = first + i;
    }
    return ATTND_OK;
}
/* ---- Calls ------------------------------------------------------------------------------------
 */

void ora_run_poison(ora_bytes *b)
{
    if (!b->given)
        return;
    memset(b->region, 0xFF, b->n_region);
    memset(b->packed, 0xFF, b->n_packed);
}

/* A refusal has written nothing. */
attnd_status ora_run_check_untouched(const ora_bytes *b, const char *what, attnd_err *err)
{
    for (size_t i = 0; b->given && i < b->n_region; i++)
        if ((unsigned char)b->region[i] != 0xFF)
            return attnd_fail(err, ATTND_BROKEN, "%s: a refused call wrote byte %zu", what, i);
    return ATTND_OK;
}

static bool is_refusal(const ora_case_error *wanted, const attnd_err *err)
{
    size_t n = attnd_err_field_len(err);
    return wanted->given &&
           (!*wanted->code || strcmp(wanted->code, attnd_status_name(err->status)) == 0) &&
           (!*wanted->reason || strcmp(wanted->reason, attnd_reason_name(err->reason)) == 0) &&
           (!*wanted->field ||
            (strlen(wanted->field) == n && strncmp(wanted->field, err->text, n) == 0)) &&
           (!*wanted->message || strstr(err->text, wanted->message));
}

/* What a step's refusal, or its success, means. *refused: it ran, and was rightly refused. */
attnd_status ora_run_judge_refusal(const ora_case_expect *e, attnd_status status,
                                   const attnd_err *got, bool *refused, attnd_err *err)
{
    *refused = status != ATTND_OK;
    if (status == ATTND_OK) {
        if (!e->error.given)
            return ATTND_OK;
        return attnd_fail(err, ATTND_BROKEN, "OK: %s %s %s is expected", e->error.code,
                          e->error.reason, e->error.field);
    }
    if (is_refusal(&e->error, got) || (!e->error.given && is_refusal(&e->may_refuse, got)))
        return ATTND_OK;
    return attnd_fail(err, ATTND_BROKEN, "%s %s \"%.200s\": %s %s %s is expected",
                      attnd_status_name(got->status), attnd_reason_name(got->reason), got->text,
                      e->error.given ? e->error.code : "OK", e->error.reason, e->error.field);
}

/* q, k and v as one tensor [q | k | v]. */
attnd_status ora_run_fuse(ora_run *r, ora_call *call, attnd_err *err)
{
    const ora_bytes *parts[3] = {&call->q, &call->k, &call->v};
    size_t size = attnd_dtype_bits(call->q.dtype) / 8, rows = (size_t)call->q.rows, widths[3];
    size_t width = 0;
    for (int p = 0; p < 3; p++)
        width += widths[p] = (size_t)parts[p]->heads * parts[p]->width * size;
    ora_bytes fused = {.given = true,
                       .dtype = call->q.dtype,
                       .n_dims = 2,
                       .shape = {rows, width / size},
                       .n_region = rows * width,
                       .rows = call->q.rows,
                       .n_layers = 1,
                       .heads = 1,
                       .width = (uint32_t)(width / size)};
    fused.region = fused.packed = ora_arena_take(r->arena, rows * width + 1, 1);
    if (!fused.region)
        return ora_run_no_memory(err);
    for (size_t row = 0; row < rows; row++)
        for (size_t p = 0, at = row * width; p < 3; at += widths[p++])
            memcpy(fused.region + at, parts[p]->packed + row * widths[p], widths[p]);
    call->q = fused;
    call->k.given = call->v.given = false;
    return ATTND_OK;
}

/* The tensors of a call over a batch of layers like `layer`. */
attnd_status ora_run_make_tensors(ora_run *r, const ora_case_call *c, const ora_case_batch *batch,
                                  const ora_case_layer *l, bool is_step, bool may_fail,
                                  ora_call *call, attnd_err *err)
{
    int64_t n = ora_run_count_tokens(&batch->q_lens), n_keys = n, *positions, *key_positions;
    if (c->keys)
        n_keys = ora_run_count_tokens(&batch->kv_lens);
    if (n > MAX_ROWS || n_keys > MAX_ROWS) {
        if (!may_fail)
            return attnd_fail(err, ATTND_BAD_CONFIG, "batch.q_lens = %lld tokens: at most %d",
                              (long long)n, MAX_ROWS);
        n = n_keys = 1; /* the refusal is about the lengths */
    }
    TRY(list_positions(r, batch, false, n, &positions, err));
    TRY(list_positions(r, batch, c->keys, n_keys, &key_positions, err));
    bool mla = l->kind == ATTND_LAYER_MLA;
    ora_want want = {.dtype = r->c->dtype,
                     .seed = r->c->seed,
                     .rows = n,
                     .n_layers = is_step ? c->n_layers : 1,
                     .heads = l->n_heads,
                     .width = l->head_dim,
                     .positions = positions};
    want.field = "q";
    TRY(ora_tensor_make(r->arena, &c->q, &want, &call->q, err));
    want.heads = mla ? 1 : l->n_kv_heads;
    want.rows = n_keys;
    want.positions = key_positions;
    want.field = "k";
    TRY(ora_tensor_make(r->arena, &c->k, &want, &call->k, err));
    want.width = l->head_dim_v;
    want.field = "v";
    TRY(ora_tensor_make(r->arena, &c->v, &want, &call->v, err));
    want.heads = l->n_heads;
    want.rows = n;
    want.positions = positions;
    want.is_output = true;
    want.dtype = call->q.given ? call->q.dtype : r->c->dtype;
    want.field = "out";
    TRY(ora_tensor_make(r->arena, &c->out, &want, &call->out, err));
    want.dtype = ATTND_DTYPE_F32;
    want.width = 2;
    want.field = "stats";
    TRY(ora_tensor_make(r->arena, &c->stats, &want, &call->stats, err));
    want.width = 1;
    want.is_flat = true;
    want.field = "lse";
    return ora_tensor_make(r->arena, &c->lse, &want, &call->lse, err);
}

/* The evaluator does what the call says, and its result is compared with what the target wrote; the
 * evaluator alone writes itself. */
attnd_status ora_run_judge_layers(ora_run *r, const ora_case_step *s, const ora_call *call,
                                  const ora_case_batch *batch, ora_outcome *o, attnd_err *err)
{
    for (uint32_t i = 0; i < call->out.n_layers; i++) {
        const ora_shadow_layer *layer = NULL;
        ora_result want = {0};
        bool evaluates = !s->expect.skip_oracle;
        TRY(ora_run_layer_of(r, call->layer + i, &layer, err));
        TRY(ora_shadow_attend(&r->shadow, r->arena, call, batch, i, evaluates ? &want : NULL, err));
        if (!r->target && evaluates)
            ora_judge_write(&want, i, &o->out, &o->lse, &o->stats);
        attnd_dtype kv = call->keys ? call->k.dtype : r->shadow.groups[layer->spec.group].kv_dtype;
        ora_judged j = {.expect = &s->expect,
                        .out = &o->out,
                        .lse = &o->lse,
                        .stats = &o->stats,
                        .layer = i,
                        .want = evaluates ? &want : NULL,
                        .path = near_path_for(call->q.dtype, kv, o->out.dtype),
                        .widen = layer->spec.softcap > 0 ? 1.5 : 1,
                        .sinks = layer->spec.n_sinks > 0,
                        .backend = r->target ? r->target->backend : NEAR_CPU,
                        .arena = r->arena,
                        .worst_out = &r->report->out,
                        .worst_lse = &r->report->lse};
        attnd_status status = evaluates || r->target ? ora_judge(&j, err) : ATTND_OK;
        ora_result_fini(&want);
        if (status != ATTND_OK && call->out.n_layers > 1)
            attnd_err_prefix(err, "layer %u: ", call->layer + i);
        TRY(status);
    }
    return ATTND_OK;
}

attnd_status ora_run_copy_bytes(ora_run *r, const ora_bytes *from, ora_bytes *to, attnd_err *err)
{
    *to = *from;
    if (!from->given)
        return ATTND_OK;
    to->packed = to->region = ora_arena_take(r->arena, from->n_packed + 1, 1);
    if (!to->packed)
        return ora_run_no_memory(err);
    to->n_region = to->n_packed;
    to->n_strides = 0;
    to->offset = 0;
    memcpy(to->packed, from->packed, from->n_packed);
    return ATTND_OK;
}

static bool same_bytes(const ora_bytes *a, const ora_bytes *b)
{
    return a->given == b->given && (!a->given || (a->n_packed == b->n_packed &&
                                                  memcmp(a->packed, b->packed, a->n_packed) == 0));
}

/* One call through the target, with a plan of its own where the options want it. */
static attnd_status send_call(ora_run *r, const ora_call *call, attnd_err *err)
{
    const ora_target *t = r->target;
    if (call->n_layers)
        return t->step(t->self, call, err);
    if (!r->options->plans || call->plan || call->keys)
        return t->attend(t->self, call, err);
    ora_call planned = *call;
    attnd_err ignored;
    TRY(t->create_plan(t->self, call->model, call->batch, call->batch_invariant, &planned.plan,
                       err));
    attnd_status status = t->attend(t->self, &planned, err);
    t->drop_plan(t->self, planned.plan, status == ATTND_OK ? err : &ignored);
    return status;
}

attnd_status ora_run_call(ora_run *r, const ora_case_step *s, const ora_call *sent, ora_call *call,
                          ora_outcome *o, bool *refused, attnd_err *err)
{
    ora_outcome first = {0};
    for (uint32_t i = 0; i < s->repeat; i++) {
        attnd_err got = {0};
        ora_run_poison(&call->out);
        ora_run_poison(&call->lse);
        ora_run_poison(&call->stats);
        attnd_status status = send_call(r, sent, &got);
        TRY(ora_run_judge_refusal(&s->expect, status, &got, refused, err));
        if (*refused) {
            TRY(ora_run_check_untouched(&call->out, "out", err));
            TRY(ora_run_check_untouched(&call->lse, "lse", err));
            return ora_run_check_untouched(&call->stats, "stats", err);
        }
        ora_tensor_gather(&call->out);
        ora_tensor_gather(&call->lse);
        ora_tensor_gather(&call->stats);
        *o = (ora_outcome){.ran = true, .out = call->out, .lse = call->lse, .stats = call->stats};
        if (i == 0 && s->repeat > 1) {
            TRY(ora_run_copy_bytes(r, &o->out, &first.out, err));
            TRY(ora_run_copy_bytes(r, &o->lse, &first.lse, err));
        } else if (i > 0 && (!same_bytes(&o->out, &first.out) || !same_bytes(&o->lse, &first.lse)))
            return attnd_fail(err, ATTND_BROKEN, "repeat = %u: run %u has other bits", s->repeat,
                              i + 1);
    }
    return ATTND_OK;
}
/* ---- What variants have in common
 * ------------------------------------------------------------------
 */

typedef struct bits_entry {
    char key[2 * ORA_VARIANT_NAME + 80];
    uint64_t hash;
} bits_entry;

struct ora_bits {
    bits_entry *entries;
    size_t n;
};

ora_bits *ora_bits_make(void)
{
    return calloc(1, sizeof(ora_bits));
}

void ora_bits_free(ora_bits *bits)
{
    if (!bits)
        return;
    free(bits->entries);
    free(bits);
}

/* The hash first seen under a key: this one, when it is new. */
static attnd_status first_seen(ora_bits *bits, const char *key, uint64_t hash, uint64_t *out,
                               attnd_err *err)
{
    for (size_t i = 0; i < bits->n; i++)
        if (strcmp(bits->entries[i].key, key) == 0) {
            *out = bits->entries[i].hash;
            return ATTND_OK;
        }
    bits_entry *grown = realloc(bits->entries, (bits->n + 1) * sizeof *grown);
    if (!grown)
        return attnd_fail(err, ATTND_NO_ROOM, "same_across: no memory");
    bits->entries = grown;
    snprintf(grown[bits->n].key, sizeof grown->key, "%s", key);
    grown[bits->n++].hash = hash;
    *out = hash;
    return ATTND_OK;
}
/* ---- Beyond one call --------------------------------------------------------------------------
 */

uint64_t ora_run_hash_of(const ora_outcome *o)
{
    uint64_t hash = ORA_HASH_EMPTY;
    if (o->out.given)
        hash = ora_hash_bytes(o->out.packed, o->out.n_packed, hash);
    return o->lse.given ? ora_hash_bytes(o->lse.packed, o->lse.n_packed, hash) : hash;
}

static attnd_status judge_exact(const ora_run *r, const ora_bytes *got, const ora_case_hash *wanted,
                                const char *what, attnd_err *err)
{
    char hash[24];
    if (!r->options->exact || !r->target || !*wanted->hash || !got->given)
        return ATTND_OK;
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)ora_hash_bytes(got->packed, got->n_packed, ORA_HASH_EMPTY));
    if (strcmp(hash, wanted->hash) == 0)
        return ATTND_OK;
    return attnd_fail(err, ATTND_BROKEN, "%s = %s: %s was captured", what, hash, wanted->hash);
}

attnd_status ora_run_judge_others(ora_run *r, size_t at, const ora_outcome *o, attnd_err *err)
{
    const ora_case_expect *e = &r->c->steps[at].expect;
    for (size_t i = 0; i < e->n_same; i++) {
        int64_t other = ora_run_find_step(r, e->same_as[i].step, at);
        if (other < 0 || !r->outcomes[other].ran)
            return attnd_fail(err, ATTND_BAD_CONFIG, "same_as = %s: no step before this one wrote",
                              e->same_as[i].step);
        TRY(ora_judge_same(&e->same_as[i], &o->out, &r->outcomes[other].out, "out", err));
        TRY(ora_judge_same(&e->same_as[i], &o->lse, &r->outcomes[other].lse, "lse", err));
    }
    if (*e->differs_from) {
        int64_t other = ora_run_find_step(r, e->differs_from, at);
        if (other < 0 || !r->outcomes[other].ran)
            return attnd_fail(err, ATTND_BAD_CONFIG, "differs_from = %s: no step before wrote",
                              e->differs_from);
        if (same_bytes(&o->out, &r->outcomes[other].out))
            return attnd_fail(err, ATTND_BROKEN, "out: the same bits as %s", e->differs_from);
    }
    for (size_t i = 0; i < e->n_across; i++) {
        char key[sizeof((bits_entry *)0)->key], name[ORA_VARIANT_NAME];
        uint64_t first = 0;
        if (!ora_case_has_axis(r->file, e->same_across[i]))
            return attnd_fail(err, ATTND_BAD_CONFIG,
                              "same_across = %s: no axis of variants has that name",
                              e->same_across[i]);
        ora_case_variant_name(r->file, r->variant, e->same_across[i], name, sizeof name);
        snprintf(key, sizeof key, "%zu %s %s", at, e->same_across[i], name);
        TRY(first_seen(r->bits, key, ora_run_hash_of(o), &first, err));
        if (first != ora_run_hash_of(o))
            return attnd_fail(err, ATTND_BROKEN, "out: other bits than another %s gave",
                              e->same_across[i]);
    }
    /* Inputs that only their hashes are known of are others here. */
    if (r->c->steps[at].call.q.has_hash)
        return ATTND_OK;
    TRY(judge_exact(r, &o->out, &e->exact_out, "out", err));
    return judge_exact(r, &o->lse, &e->exact_lse, "lse", err);
}
