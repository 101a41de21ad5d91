/* case_run.c: a case against a target, step by step. */
#include "tests/oracle/case_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case_json.h"
#include "tests/oracle/case_judge.h"
#include "tests/oracle/case_shadow.h"
#include "tests/oracle/case_tensor.h"

enum {
    MAX_ROWS = 1 << 22,    /* of a call that must succeed */
    WRITE_TOKENS = 16384,  /* of one append of a write */
    READ_BACK = 1 << 16,   /* rows of a pool that is read back */
    MAX_WRITE_RUNS = 65536 /* blocks of one write */
};

/* ---- What outlives a variant ------------------------------------------------------------------
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

/* ---- One run ----------------------------------------------------------------------------------
 */

typedef struct plan {
    const char *name;
    uint64_t handle, version;
    ora_case_batch batch; /* tables list exactly the blocks of kv_lens; width 0 */
    bool is_open;
} plan;

/* What a step wrote. */
typedef struct outcome {
    bool ran;
    ora_bytes out, lse, stats;
} outcome;

typedef struct run {
    const ora_case *c;
    const ora_case_file *file;
    size_t variant;
    const ora_target *target; /* NULL: the evaluator alone */
    const ora_run_options *options;
    ora_bits *bits;
    ora_report *report;
    ora_arena *arena;
    ora_shadow shadow;
    bool is_open;
    uint64_t model;
    plan *plans;       /* [n_steps], by step */
    outcome *outcomes; /* [n_steps], by step */
} run;

static attnd_status no_memory(attnd_err *err)
{
    return attnd_fail(err, ATTND_NO_ROOM, "case: no memory");
}

/* The step of that name among those before i, or -1. */
static int64_t find_step(const run *r, const char *name, size_t i)
{
    for (size_t s = 0; s < i; s++)
        if (strcmp(r->c->steps[s].name, name) == 0)
            return (int64_t)s;
    return -1;
}

static attnd_status find_plan(run *r, const char *name, plan **out, attnd_err *err)
{
    int64_t at = find_step(r, name, r->c->n_steps);
    if (at < 0 || r->c->steps[at].op != ORA_CASE_CREATE_PLAN)
        return attnd_fail(err, ATTND_BAD_CONFIG, "plan = %s: no step of that name makes one", name);
    *out = &r->plans[at];
    return ATTND_OK;
}

/* ---- Models -----------------------------------------------------------------------------------
 */

static attnd_status close_model(run *r, attnd_err *err)
{
    if (!r->is_open)
        return ATTND_OK;
    r->is_open = false;
    ora_shadow_fini(&r->shadow);
    return r->target ? r->target->close_model(r->target->self, r->model, err) : ATTND_OK;
}

static attnd_status open_model(run *r, const ora_case_spec *spec, attnd_err *err)
{
    uint32_t *n_blocks = ora_arena_take(r->arena, spec->n_groups + 1, sizeof *n_blocks);
    uint64_t model = 0;
    if (!n_blocks)
        return no_memory(err);
    if (r->target)
        TRY(r->target->open_model(r->target->self, spec, &model, n_blocks, err));
    TRY(close_model(r, err));
    r->model = model;
    r->is_open = true;
    return ora_shadow_init(&r->shadow, r->arena, spec, r->target ? n_blocks : NULL, err);
}

/* The layer a call is of; one that is not there has the shape of the first. */
static attnd_status layer_of(const run *r, uint32_t layer, const ora_shadow_layer **out,
                             attnd_err *err)
{
    if (!r->is_open || !r->shadow.n_layers)
        return attnd_fail(err, ATTND_BAD_CONFIG, "spec = none: no model is open");
    *out = &r->shadow.layers[layer < r->shadow.n_layers ? layer : 0];
    return ATTND_OK;
}

/* ---- Batches ----------------------------------------------------------------------------------
 */

static int64_t blocks_for(int64_t kv_len, uint32_t block_size)
{
    return kv_len > 0 ? (kv_len + block_size - 1) / block_size : 0;
}

/* Lists the block ids of tables; entries of row b: from[b] on, NULL: from the first. */
static attnd_status list_tables(run *r, const ora_case_table *tables, size_t n,
                                const ora_case_ints *kv_lens, const ora_case_ints *old_lens,
                                ora_case_table **out, attnd_err *err)
{
    int64_t *first = ora_arena_take(r->arena, kv_lens->n + 1, sizeof *first);
    int64_t *count = ora_arena_take(r->arena, kv_lens->n + 1, sizeof *count);
    *out = ora_arena_take(r->arena, n + 1, sizeof **out);
    if (!first || !count || !*out)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        (*out)[i] = tables[i];
        uint32_t group = tables[i].group;
        if (group >= r->shadow.n_groups)
            continue; /* there for its refusal */
        uint32_t block_size = r->shadow.groups[group].block_size;
        for (size_t b = 0; b < kv_lens->n; b++) {
            int64_t end = blocks_for(kv_lens->values[b], block_size);
            first[b] =
                old_lens && b < old_lens->n ? blocks_for(old_lens->values[b], block_size) : 0;
            count[b] = tables[i].width ? tables[i].width : end > first[b] ? end - first[b] : 0;
        }
        TRY(ora_blocks_make(r->arena, &tables[i].block_ids, block_size, r->shadow.n_blocks[group],
                            kv_lens->n, first, count, &(*out)[i].block_ids.ids, err));
    }
    return ATTND_OK;
}

static attnd_status list_batch(run *r, const ora_case_batch *batch, ora_case_batch *out,
                               attnd_err *err)
{
    *out = *batch;
    return list_tables(r, batch->tables, batch->n_tables, &batch->kv_lens, NULL, &out->tables, err);
}

static int64_t count_tokens(const ora_case_ints *lens)
{
    int64_t n = 0;
    for (size_t i = 0; i < lens->n; i++)
        n += lens->values[i] > 0 ? lens->values[i] : 0;
    return n;
}

/* Key indices of the rows of q (and of what is appended), or of given keys. */
static attnd_status list_positions(run *r, const ora_case_batch *batch, bool of_keys, int64_t n,
                                   int64_t **out, attnd_err *err)
{
    int64_t at = 0;
    *out = ora_arena_take(r->arena, (size_t)n + 1, sizeof **out);
    if (!*out)
        return no_memory(err);
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

static void poison(ora_bytes *b)
{
    if (!b->given)
        return;
    memset(b->region, 0xFF, b->n_region);
    memset(b->packed, 0xFF, b->n_packed);
}

/* A refusal has written nothing. */
static attnd_status check_untouched(const ora_bytes *b, const char *what, attnd_err *err)
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
static attnd_status judge_refusal(const ora_case_expect *e, attnd_status status,
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
static attnd_status fuse(run *r, ora_call *call, attnd_err *err)
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
        return no_memory(err);
    for (size_t row = 0; row < rows; row++)
        for (size_t p = 0, at = row * width; p < 3; at += widths[p++])
            memcpy(fused.region + at, parts[p]->packed + row * widths[p], widths[p]);
    call->q = fused;
    call->k.given = call->v.given = false;
    return ATTND_OK;
}

/* The tensors of a call over a batch of layers like `layer`. */
static attnd_status make_tensors(run *r, const ora_case_call *c, const ora_case_batch *batch,
                                 const ora_case_layer *l, bool is_step, bool may_fail,
                                 ora_call *call, attnd_err *err)
{
    int64_t n = count_tokens(&batch->q_lens), n_keys = n, *positions, *key_positions;
    if (c->keys)
        n_keys = count_tokens(&batch->kv_lens);
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
static attnd_status judge_layers(run *r, const ora_case_step *s, const ora_call *call,
                                 const ora_case_batch *batch, outcome *o, attnd_err *err)
{
    for (uint32_t i = 0; i < call->out.n_layers; i++) {
        const ora_shadow_layer *layer = NULL;
        ora_result want = {0};
        bool evaluates = !s->expect.skip_oracle;
        TRY(layer_of(r, call->layer + i, &layer, err));
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

static attnd_status copy_bytes(run *r, const ora_bytes *from, ora_bytes *to, attnd_err *err)
{
    *to = *from;
    if (!from->given)
        return ATTND_OK;
    to->packed = to->region = ora_arena_take(r->arena, from->n_packed + 1, 1);
    if (!to->packed)
        return no_memory(err);
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
static attnd_status send_call(run *r, const ora_call *call, attnd_err *err)
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

static attnd_status run_call(run *r, const ora_case_step *s, const ora_call *sent, ora_call *call,
                             outcome *o, bool *refused, attnd_err *err)
{
    outcome first = {0};
    for (uint32_t i = 0; i < s->repeat; i++) {
        attnd_err got = {0};
        poison(&call->out);
        poison(&call->lse);
        poison(&call->stats);
        attnd_status status = send_call(r, sent, &got);
        TRY(judge_refusal(&s->expect, status, &got, refused, err));
        if (*refused) {
            TRY(check_untouched(&call->out, "out", err));
            TRY(check_untouched(&call->lse, "lse", err));
            return check_untouched(&call->stats, "stats", err);
        }
        ora_tensor_gather(&call->out);
        ora_tensor_gather(&call->lse);
        ora_tensor_gather(&call->stats);
        *o = (outcome){.ran = true, .out = call->out, .lse = call->lse, .stats = call->stats};
        if (i == 0 && s->repeat > 1) {
            TRY(copy_bytes(r, &o->out, &first.out, err));
            TRY(copy_bytes(r, &o->lse, &first.lse, err));
        } else if (i > 0 && (!same_bytes(&o->out, &first.out) || !same_bytes(&o->lse, &first.lse)))
            return attnd_fail(err, ATTND_BROKEN, "repeat = %u: run %u has other bits", s->repeat,
                              i + 1);
    }
    return ATTND_OK;
}

/* ---- Beyond one call --------------------------------------------------------------------------
 */

static uint64_t hash_of(const outcome *o)
{
    uint64_t hash = ORA_HASH_EMPTY;
    if (o->out.given)
        hash = ora_hash_bytes(o->out.packed, o->out.n_packed, hash);
    return o->lse.given ? ora_hash_bytes(o->lse.packed, o->lse.n_packed, hash) : hash;
}

static attnd_status judge_exact(const run *r, const ora_bytes *got, const ora_case_hash *wanted,
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

static attnd_status judge_others(run *r, size_t at, const outcome *o, attnd_err *err)
{
    const ora_case_expect *e = &r->c->steps[at].expect;
    for (size_t i = 0; i < e->n_same; i++) {
        int64_t other = find_step(r, e->same_as[i].step, at);
        if (other < 0 || !r->outcomes[other].ran)
            return attnd_fail(err, ATTND_BAD_CONFIG, "same_as = %s: no step before this one wrote",
                              e->same_as[i].step);
        TRY(ora_judge_same(&e->same_as[i], &o->out, &r->outcomes[other].out, "out", err));
        TRY(ora_judge_same(&e->same_as[i], &o->lse, &r->outcomes[other].lse, "lse", err));
    }
    if (*e->differs_from) {
        int64_t other = find_step(r, e->differs_from, at);
        if (other < 0 || !r->outcomes[other].ran)
            return attnd_fail(err, ATTND_BAD_CONFIG, "differs_from = %s: no step before wrote",
                              e->differs_from);
        if (same_bytes(&o->out, &r->outcomes[other].out))
            return attnd_fail(err, ATTND_BROKEN, "out: the same bits as %s", e->differs_from);
    }
    for (size_t i = 0; i < e->n_across; i++) {
        char key[sizeof((bits_entry *)0)->key], name[ORA_VARIANT_NAME];
        uint64_t first = 0;
        ora_case_variant_name(r->file, r->variant, e->same_across[i], name, sizeof name);
        snprintf(key, sizeof key, "%zu %s %s", at, e->same_across[i], name);
        TRY(first_seen(r->bits, key, hash_of(o), &first, err));
        if (first != hash_of(o))
            return attnd_fail(err, ATTND_BROKEN, "out: other bits than another %s gave",
                              e->same_across[i]);
    }
    /* Inputs that only their hashes are known of are others here. */
    if (r->c->steps[at].call.q.has_hash)
        return ATTND_OK;
    TRY(judge_exact(r, &o->out, &e->exact_out, "out", err));
    return judge_exact(r, &o->lse, &e->exact_lse, "lse", err);
}

/* ---- Pools through the target -----------------------------------------------------------------
 */

static attnd_status fill_ints(ora_arena *arena, ora_case_ints *out, size_t n, int32_t value,
                              attnd_err *err)
{
    *out = (ora_case_ints){.given = true, .n = n};
    out->values = ora_arena_take(arena, n + 1, sizeof *out->values);
    if (!out->values)
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        out->values[i] = value;
    return ATTND_OK;
}

/* Rows first .. end-1 of one block. */
typedef struct piece {
    int32_t block;
    uint32_t first, end;
} piece;

/* A batch of one sequence a piece: it sees its block's rows below end, and its last rows are new.
 */
static attnd_status make_pieces(run *r, const piece *pieces, size_t n, uint32_t group,
                                bool zero_positions, ora_case_batch *out, attnd_err *err)
{
    *out = (ora_case_batch){.n_contexts = (uint32_t)n, .n_tables = 1};
    TRY(fill_ints(r->arena, &out->q_lens, n, 0, err));
    TRY(fill_ints(r->arena, &out->kv_lens, n, 0, err));
    out->tables = ora_arena_take(r->arena, 1, sizeof *out->tables);
    if (!out->tables)
        return no_memory(err);
    out->tables->group = group;
    TRY(fill_ints(r->arena, &out->tables->block_ids.ids, n, 0, err));
    for (size_t i = 0; i < n; i++) {
        out->q_lens.values[i] = (int32_t)(pieces[i].end - pieces[i].first);
        out->kv_lens.values[i] = (int32_t)pieces[i].end;
        out->tables->block_ids.ids.values[i] = pieces[i].block;
    }
    size_t n_tokens = (size_t)count_tokens(&out->q_lens);
    return zero_positions ? fill_ints(r->arena, &out->positions, n_tokens, 0, err) : ATTND_OK;
}

/* Zero rows of q, no output that anybody looks at. */
static const ora_case_call SILENT = {
    .q = {.given = true, .source = ORA_CASE_VALUES, .n_dims = 1, .dims = {1, 1, 1}, .repeat = true},
    .out = {.given = true},
};

/* Rows of a slab in the order of their pieces, all layers, appended layer by layer. */
static attnd_status append_pieces(run *r, const ora_case_write *w, const piece *pieces, size_t n,
                                  int64_t n_rows, int64_t row, const ora_bytes kv[2],
                                  uint32_t layer, uint32_t index, attnd_err *err)
{
    static double zero;
    const ora_shadow_layer *shape = NULL;
    ora_case_batch batch;
    ora_case_call c = SILENT;
    ora_call call = {.model = r->model, .layer = layer, .batch = &batch};
    c.q.values = &zero;
    TRY(layer_of(r, layer, &shape, err));
    bool rotates = shape->spec.rope.pairing != ATTND_ROPE_NONE;
    TRY(make_pieces(r, pieces, n, shape->spec.group, rotates, &batch, err));
    TRY(make_tensors(r, &c, &batch, &shape->spec, false, false, &call, err));
    int64_t n_new = count_tokens(&batch.q_lens);
    ora_bytes *to[2] = {&call.k, &call.v};
    for (int p = 0; p < 2; p++) {
        if (!kv[p].given)
            continue;
        int64_t bytes = (int64_t)kv[p].heads * kv[p].width * (attnd_dtype_bits(kv[p].dtype) / 8);
        *to[p] = kv[p];
        to[p]->rows = n_new;
        to[p]->shape[0] = (uint64_t)n_new;
        to[p]->n_layers = 1;
        to[p]->packed = to[p]->region = kv[p].packed + (index * n_rows + row) * bytes;
        to[p]->n_packed = to[p]->n_region = (size_t)(n_new * bytes);
    }
    if (r->target)
        TRY(r->target->attend(r->target->self, &call, err));
    return ora_shadow_attend(&r->shadow, r->arena, &call, &batch, 0, NULL, err);
}

/* The blocks and rows that a write names. */
static attnd_status list_pieces(run *r, const ora_case_write *w, uint32_t group, piece **out,
                                size_t *n, attnd_err *err)
{
    uint32_t T = r->shadow.groups[group].block_size, n_blocks = r->shadow.n_blocks[group];
    int64_t none = 0, count = w->has_blocks ? blocks_for(w->kv_len, T) : n_blocks;
    ora_case_ints ids;
    *n = 0;
    *out = ora_arena_take(r->arena, (size_t)count + 1, sizeof **out);
    if (!*out)
        return no_memory(err);
    if (count > MAX_WRITE_RUNS)
        return attnd_fail(err, ATTND_BAD_CONFIG, "write: %lld blocks: at most %d", (long long)count,
                          MAX_WRITE_RUNS);
    if (w->has_blocks)
        TRY(ora_blocks_make(r->arena, &w->block_ids, T, n_blocks, 1, &none, &count, &ids, err));
    if (w->has_blocks && ids.n < (size_t)count)
        return attnd_fail(err, ATTND_BAD_CONFIG, "write.block_ids = %zu: kv_len = %u needs %lld",
                          ids.n, w->kv_len, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = i * T, end = first + T;
        if (w->has_blocks) {
            first = first < w->first ? w->first : first;
            end = end > w->kv_len ? w->kv_len : end;
        }
        if (first < end)
            (*out)[(*n)++] = (piece){w->has_blocks ? ids.values[i] : (int32_t)i,
                                     (uint32_t)(first - i * T), (uint32_t)(end - i * T)};
    }
    return ATTND_OK;
}

static attnd_status make_written(run *r, const ora_case_write *w, const ora_case_layer *l,
                                 attnd_dtype dtype, int64_t n_rows, uint32_t n_layers,
                                 ora_bytes kv[2], attnd_err *err)
{
    int64_t *positions = ora_arena_take(r->arena, (size_t)n_rows + 1, sizeof *positions);
    if (!positions)
        return no_memory(err);
    for (int64_t i = 0; i < n_rows; i++)
        positions[i] = i + (w->has_blocks ? w->first : 0);
    ora_want want = {.field = "k",
                     .dtype = dtype,
                     .seed = r->c->seed,
                     .rows = n_rows,
                     .n_layers = n_layers,
                     .heads = l->kind == ATTND_LAYER_MLA ? 1 : l->n_kv_heads,
                     .width = l->head_dim,
                     .positions = positions};
    TRY(ora_tensor_make(r->arena, &w->k, &want, &kv[0], err));
    kv[1] = (ora_bytes){0};
    want.field = "v";
    want.width = l->head_dim_v;
    return l->kind == ATTND_LAYER_MLA ? ATTND_OK
                                      : ora_tensor_make(r->arena, &w->v, &want, &kv[1], err);
}

static attnd_status run_write(run *r, const ora_case_write *w, attnd_err *err)
{
    const ora_shadow_layer *shape = NULL;
    TRY(layer_of(r, w->one_layer ? w->layer : 0, &shape, err));
    uint32_t group = w->one_layer ? shape->spec.group : w->group, n_layers = 0;
    if (group >= r->shadow.n_groups)
        return attnd_fail(err, ATTND_BAD_CONFIG, "write.group = %u: there are %zu", group,
                          r->shadow.n_groups);
    for (uint32_t l = 0; l < r->shadow.n_layers; l++)
        if (r->shadow.layers[l].spec.group == group) {
            if (!w->one_layer && !n_layers)
                shape = &r->shadow.layers[l];
            n_layers++;
        }
    piece *pieces;
    size_t n;
    int64_t n_rows = 0;
    ora_bytes kv[2];
    TRY(list_pieces(r, w, group, &pieces, &n, err));
    for (size_t i = 0; i < n; i++)
        n_rows += pieces[i].end - pieces[i].first;
    TRY(make_written(r, w, &shape->spec, r->c->dtype, n_rows, w->one_layer ? 1 : n_layers, kv,
                     err));
    for (uint32_t l = 0, index = 0; l < r->shadow.n_layers; l++) {
        if (r->shadow.layers[l].spec.group != group || (w->one_layer && l != w->layer))
            continue;
        for (size_t i = 0, row = 0; i < n;) {
            size_t m = 0, rows = 0;
            while (i + m < n &&
                   (m == 0 || rows + pieces[i + m].end - pieces[i + m].first <= WRITE_TOKENS)) {
                rows += pieces[i + m].end - pieces[i + m].first;
                m++;
            }
            TRY(append_pieces(r, w, pieces + i, m, n_rows, (int64_t)row, kv, l, index, err));
            i += m;
            row += rows;
        }
        index++;
    }
    return ATTND_OK;
}

/* Every row of every block of every layer through attention, against the evaluator's copy. */
static attnd_status read_back(run *r, attnd_err *err)
{
    static const ora_case_tensor THERE = {
        .given = true, .amplitude = 1, .seed = ORA_CASE_NO_SEED, .name = "read back"};
    static const ora_case_step READER = {.repeat = 1,
                                         .call = {.q = THERE, .out = THERE, .lse = THERE}};
    for (uint32_t l = 0; r->target && l < r->shadow.n_layers; l++) {
        const ora_shadow_layer *layer = &r->shadow.layers[l];
        uint32_t group = layer->spec.group, T = r->shadow.groups[group].block_size;
        ora_case_write everything = {.group = group};
        ora_case_batch batch;
        ora_call call = {.model = r->model, .layer = l, .batch = &batch};
        outcome o;
        piece *pieces;
        size_t n;
        bool refused;
        TRY(list_pieces(r, &everything, group, &pieces, &n, err));
        if (n * T > READ_BACK)
            return attnd_fail(err, ATTND_BAD_CONFIG, "pool: %zu rows: at most %d are read back",
                              n * T, READ_BACK);
        TRY(make_pieces(r, pieces, n, group, false, &batch, err));
        TRY(make_tensors(r, &READER.call, &batch, &layer->spec, false, false, &call, err));
        TRY(run_call(r, &READER, &call, &call, &o, &refused, err));
        attnd_status status = judge_layers(r, &READER, &call, &batch, &o, err);
        if (status != ATTND_OK) {
            attnd_err_prefix(err, "pool of layer %u, %u rows a block: ", l, T);
            return status;
        }
    }
    return ATTND_OK;
}

/* ---- Steps ------------------------------------------------------------------------------------
 */

static attnd_status list_update(run *r, const ora_case_update *u, const plan *p,
                                ora_case_update *out, attnd_err *err)
{
    const ora_case_ints *kv_lens = u->kv_lens.given ? &u->kv_lens : &p->batch.kv_lens;
    *out = *u;
    out->version = u->version ? u->version : p->version;
    return list_tables(r, u->appended, u->n_appended, kv_lens, &p->batch.kv_lens, &out->appended,
                       err);
}

/* Rows of the plan's table with the new entries behind them. */
static attnd_status append_table(run *r, plan *p, const ora_case_update *u,
                                 const ora_case_ints *kv_lens, ora_case_table *table,
                                 attnd_err *err)
{
    uint32_t T = r->shadow.groups[table->group].block_size;
    const ora_case_table *more = NULL;
    for (size_t i = 0; i < u->n_appended; i++)
        if (u->appended[i].group == table->group)
            more = &u->appended[i];
    int64_t total = 0, from = 0, added = 0;
    for (size_t b = 0; b < kv_lens->n; b++)
        total += blocks_for(kv_lens->values[b], T);
    ora_case_ints old = table->block_ids.ids, ids = {.given = true};
    ids.values = ora_arena_take(r->arena, (size_t)total + 1, sizeof *ids.values);
    if (!ids.values)
        return no_memory(err);
    for (size_t b = 0; b < kv_lens->n; b++) {
        int64_t had = blocks_for(p->batch.kv_lens.values[b], T);
        int64_t has = blocks_for(kv_lens->values[b], T), row = added;
        for (int64_t i = 0; i < has; i++) {
            bool is_new = i >= had;
            int64_t at = is_new ? row + i - had : from + i;
            const ora_case_ints *source = is_new && more ? &more->block_ids.ids : &old;
            if ((is_new && !more) || at >= (int64_t)source->n)
                return attnd_fail(err, ATTND_BAD_CONFIG,
                                  "update.appended: sequence %zu needs entry %lld", b,
                                  (long long)i);
            ids.values[ids.n++] = source->values[at];
        }
        from += had;
        added += more && more->width ? more->width : has > had ? has - had : 0;
    }
    table->block_ids.ids = ids;
    table->width = 0;
    return ATTND_OK;
}

/* The plan as the update leaves it. */
static attnd_status apply_update(run *r, plan *p, const ora_case_update *u, attnd_err *err)
{
    const ora_case_ints *kv_lens = u->kv_lens.given ? &u->kv_lens : &p->batch.kv_lens;
    if (kv_lens->n != p->batch.kv_lens.n)
        return attnd_fail(err, ATTND_BAD_CONFIG, "update.kv_lens = %zu: the plan has %zu",
                          kv_lens->n, p->batch.kv_lens.n);
    for (size_t i = 0; i < p->batch.n_tables; i++)
        TRY(append_table(r, p, u, kv_lens, &p->batch.tables[i], err));
    if (u->q_lens.given)
        p->batch.q_lens = u->q_lens;
    p->batch.kv_lens = *kv_lens;
    if (u->slots.given)
        p->batch.slots = u->slots;
    if (u->positions.given)
        p->batch.positions = u->positions;
    p->version++;
    return ATTND_OK;
}

/* A plan's table lists what kv_lens need, whatever its width was. */
static attnd_status trim_tables(run *r, ora_case_batch *batch, attnd_err *err)
{
    for (size_t i = 0; i < batch->n_tables; i++) {
        ora_case_table *t = &batch->tables[i];
        ora_case_ints ids = {.given = true}, wide = t->block_ids.ids;
        if (!t->width || t->group >= r->shadow.n_groups)
            continue;
        ids.values = ora_arena_take(r->arena, wide.n + 1, sizeof *ids.values);
        if (!ids.values)
            return no_memory(err);
        for (size_t b = 0; b < batch->kv_lens.n; b++) {
            int64_t n = blocks_for(batch->kv_lens.values[b], r->shadow.groups[t->group].block_size);
            for (int64_t k = 0; k < n && b * t->width + (size_t)k < wide.n; k++)
                ids.values[ids.n++] = wide.values[b * t->width + (size_t)k];
        }
        t->block_ids.ids = ids;
        t->width = 0;
    }
    return ATTND_OK;
}

static attnd_status run_create_plan(run *r, size_t at, const ora_case_step *s, attnd_err *err)
{
    plan *p = &r->plans[at];
    attnd_err got = {0};
    bool refused = false;
    *p = (plan){.name = s->name, .version = 1};
    TRY(list_batch(r, &s->call.batch, &p->batch, err));
    if (r->target) {
        attnd_status status = r->target->create_plan(r->target->self, r->model, &p->batch,
                                                     s->call.batch_invariant, &p->handle, &got);
        TRY(judge_refusal(&s->expect, status, &got, &refused, err));
    }
    p->is_open = !refused;
    return refused ? ATTND_OK : trim_tables(r, &p->batch, err);
}

static attnd_status run_update_plan(run *r, const ora_case_step *s, attnd_err *err)
{
    plan *p;
    ora_case_update u;
    attnd_err got = {0};
    bool refused = s->expect.error.given;
    TRY(find_plan(r, s->update.plan, &p, err));
    TRY(list_update(r, &s->update, p, &u, err));
    if (r->target) {
        attnd_status status = r->target->update_plan(r->target->self, p->handle, &u, &got);
        TRY(judge_refusal(&s->expect, status, &got, &refused, err));
    }
    return refused ? ATTND_OK : apply_update(r, p, &u, err);
}

static attnd_status run_drop_plan(run *r, const ora_case_step *s, attnd_err *err)
{
    plan *p;
    attnd_err got = {0};
    bool refused;
    TRY(find_plan(r, s->plan, &p, err));
    p->is_open = false;
    if (!r->target)
        return ATTND_OK;
    attnd_status status = r->target->drop_plan(r->target->self, p->handle, &got);
    return judge_refusal(&s->expect, status, &got, &refused, err);
}

/* Attend, and Step with its update. */
static attnd_status run_attention(run *r, size_t at, const ora_case_step *s, attnd_err *err)
{
    const ora_case_call *c = &s->call;
    const ora_shadow_layer *layer = NULL;
    ora_case_batch batch = {0};
    ora_case_update update;
    plan *p = NULL;
    bool is_step = s->op == ORA_CASE_STEP, refused = s->expect.error.given;
    ora_call call = {.model = r->model,
                     .layer = c->layer,
                     .n_layers = is_step ? c->n_layers : 0,
                     .keys = c->keys,
                     .batch_invariant = c->batch_invariant};
    TRY(layer_of(r, c->layer, &layer, err));
    if (*c->plan) {
        TRY(find_plan(r, c->plan, &p, err));
        batch = p->batch;
        call.plan = p->handle;
    } else if (c->has_batch) {
        TRY(list_batch(r, &c->batch, &batch, err));
        call.batch = &batch;
    }
    plan next = p ? *p : (plan){0};
    if (p && c->has_update) {
        TRY(list_update(r, &c->update, p, &update, err));
        call.update = &update;
        if (!s->expect.error.given) {
            next.batch.tables =
                ora_arena_take(r->arena, p->batch.n_tables + 1, sizeof *next.batch.tables);
            if (!next.batch.tables)
                return no_memory(err);
            memcpy(next.batch.tables, p->batch.tables,
                   p->batch.n_tables * sizeof *next.batch.tables);
            TRY(apply_update(r, &next, &update, err));
            batch = next.batch;
        }
    }
    TRY(make_tensors(r, c, &batch, &layer->spec, is_step, refused, &call, err));
    ora_call sent = call;
    if (c->fused)
        TRY(fuse(r, &sent, err));
    uint64_t before = s->expect.pool == 2 ? ora_shadow_hash(&r->shadow) : 0;
    outcome *o = &r->outcomes[at];
    if (r->target)
        TRY(run_call(r, s, &sent, &call, o, &refused, err));
    else
        *o = (outcome){.ran = !s->expect.skip_oracle && !refused,
                       .out = call.out,
                       .lse = call.lse,
                       .stats = call.stats};
    if (!refused) {
        if (p && c->has_update)
            *p = next;
        TRY(judge_layers(r, s, &call, &batch, o, err));
        if (o->ran)
            TRY(judge_others(r, at, o, err));
    }
    if (s->expect.pool == 2 && before != ora_shadow_hash(&r->shadow))
        return attnd_fail(err, ATTND_BROKEN, "pool: the step stores something");
    return s->expect.pool ? read_back(r, err) : ATTND_OK;
}

static attnd_status make_partial(run *r, size_t at, const ora_case_merge *m,
                                 const ora_case_partial *part, ora_merge_part *out, attnd_err *err)
{
    if (*part->step) {
        int64_t from = find_step(r, part->step, at);
        if (from < 0 || !r->outcomes[from].ran)
            return attnd_fail(err, ATTND_BAD_CONFIG, "partials: %s: no step before wrote",
                              part->step);
        const outcome *o = &r->outcomes[from];
        TRY(copy_bytes(r, &o->out, &out->out, err));
        return part->use_stats ? copy_bytes(r, &o->stats, &out->stats, err)
                               : copy_bytes(r, &o->lse, &out->lse, err);
    }
    ora_want want = {.field = "out",
                     .dtype = r->c->dtype,
                     .seed = r->c->seed,
                     .rows = m->n_tokens,
                     .n_layers = 1,
                     .heads = m->n_heads,
                     .width = m->width};
    TRY(ora_tensor_make(r->arena, &part->out, &want, &out->out, err));
    want.dtype = ATTND_DTYPE_F32;
    want.field = "stats";
    want.width = 2;
    TRY(ora_tensor_make(r->arena, &part->stats, &want, &out->stats, err));
    want.field = "lse";
    want.width = 1;
    want.is_flat = true;
    return ora_tensor_make(r->arena, &part->lse, &want, &out->lse, err);
}

static attnd_status make_merged(run *r, const ora_case_merge *m, const ora_bytes *like,
                                ora_merge_call *call, attnd_err *err)
{
    ora_want want = {.field = "out",
                     .dtype = like->dtype,
                     .rows = like->rows * like->n_layers,
                     .n_layers = 1,
                     .heads = like->heads,
                     .width = like->width,
                     .is_output = true};
    TRY(ora_tensor_make(r->arena, &m->out, &want, &call->out, err));
    want.dtype = ATTND_DTYPE_F32;
    want.field = "stats";
    want.width = 2;
    TRY(ora_tensor_make(r->arena, &m->stats, &want, &call->stats, err));
    want.field = "lse";
    want.width = 1;
    want.is_flat = true;
    return ora_tensor_make(r->arena, &m->lse, &want, &call->lse, err);
}

static attnd_status judge_merge(run *r, const ora_case_step *s, const ora_merge_call *call,
                                outcome *o, attnd_err *err)
{
    ora_result want;
    TRY(ora_judge_merge(call, &want, err));
    if (!r->target)
        ora_judge_write(&want, 0, &o->out, &o->lse, &o->stats);
    attnd_dtype parts = call->parts[0].out.dtype;
    ora_judged j = {.expect = &s->expect,
                    .out = &o->out,
                    .lse = &o->lse,
                    .stats = &o->stats,
                    .want = &want,
                    .path = near_path_for(parts, parts, o->out.dtype),
                    .widen = 1,
                    .backend = r->target ? r->target->backend : NEAR_CPU,
                    .arena = r->arena,
                    .worst_out = &r->report->out,
                    .worst_lse = &r->report->lse};
    attnd_status status = ora_judge(&j, err);
    ora_result_fini(&want);
    return status;
}

static attnd_status run_merge(run *r, size_t at, const ora_case_step *s, attnd_err *err)
{
    const ora_case_merge *m = &s->merge;
    ora_merge_part *parts = ora_arena_take(r->arena, m->n_partials + 1, sizeof *parts);
    ora_merge_call call = {.parts = parts, .n_parts = m->n_partials};
    outcome *o = &r->outcomes[at];
    bool refused = s->expect.error.given;
    if (!parts)
        return no_memory(err);
    for (size_t i = 0; i < m->n_partials; i++)
        TRY(make_partial(r, at, m, &m->partials[i], &parts[i], err));
    TRY(make_merged(r, m, &parts[0].out, &call, err));
    for (uint32_t i = 0; r->target && i < s->repeat; i++) {
        attnd_err got = {0};
        uint64_t first = i ? hash_of(o) : 0;
        poison(&call.out);
        poison(&call.lse);
        poison(&call.stats);
        attnd_status status = r->target->merge(r->target->self, &call, &got);
        TRY(judge_refusal(&s->expect, status, &got, &refused, err));
        if (refused) {
            TRY(check_untouched(&call.out, "out", err));
            return check_untouched(&call.lse, "lse", err);
        }
        ora_tensor_gather(&call.out);
        ora_tensor_gather(&call.lse);
        ora_tensor_gather(&call.stats);
        *o = (outcome){.ran = true, .out = call.out, .lse = call.lse, .stats = call.stats};
        if (i && first != hash_of(o))
            return attnd_fail(err, ATTND_BROKEN, "repeat = %u: run %u has other bits", s->repeat,
                              i + 1);
    }
    if (refused)
        return ATTND_OK;
    *o = (outcome){.ran = true, .out = call.out, .lse = call.lse, .stats = call.stats};
    TRY(judge_merge(r, s, &call, o, err));
    return judge_others(r, at, o, err);
}

static attnd_status run_open_model(run *r, const ora_case_step *s, attnd_err *err)
{
    attnd_err got = {0};
    bool refused;
    if (!r->target && s->expect.error.given)
        return ATTND_OK;
    attnd_status status = open_model(r, &s->spec, &got);
    return judge_refusal(&s->expect, status, &got, &refused, err);
}

static attnd_status run_step(run *r, size_t at, attnd_err *err)
{
    const ora_case_step *s = &r->c->steps[at];
    switch (s->op) {
    case ORA_CASE_WRITE:
        return run_write(r, &s->write, err);
    case ORA_CASE_OPEN_MODEL:
        return run_open_model(r, s, err);
    case ORA_CASE_CLOSE_MODEL:
        return close_model(r, err);
    case ORA_CASE_ATTEND:
    case ORA_CASE_STEP:
        return run_attention(r, at, s, err);
    case ORA_CASE_CREATE_PLAN:
        return run_create_plan(r, at, s, err);
    case ORA_CASE_UPDATE_PLAN:
        return run_update_plan(r, s, err);
    case ORA_CASE_DROP_PLAN:
        return run_drop_plan(r, s, err);
    case ORA_CASE_MERGE:
        return run_merge(r, at, s, err);
    }
    return ATTND_OK;
}

/* ---- Cases ------------------------------------------------------------------------------------
 */

static attnd_status run_steps(run *r, attnd_err *err)
{
    if (r->c->has_spec)
        TRY(open_model(r, &r->c->spec, err));
    for (size_t i = 0; i < r->c->n_steps; i++) {
        const char *name = r->c->steps[i].name;
        attnd_status status = run_step(r, i, err);
        if (status != ATTND_OK && strncmp(name, "steps[", 6) == 0)
            attnd_err_prefix(err, "%s: ", name);
        else if (status != ATTND_OK)
            attnd_err_prefix(err, "steps[%zu] %s: ", i, name);
        TRY(status);
        r->report->n_steps++;
    }
    return ATTND_OK;
}

/* What the target lacks of a case's needs; NULL: nothing. */
static const char *lacks(const ora_case *c, const ora_target *target)
{
    for (size_t i = 0; target && i < c->n_needs; i++)
        if (!target->has(target->self, c->needs[i]))
            return c->needs[i];
    return NULL;
}

static void run_variant(run *r, attnd_err *err)
{
    attnd_err ignored;
    const char *lacking = lacks(r->c, r->target);
    if (r->c->oracle || lacking)
        r->target = NULL;
    r->plans = ora_arena_take(r->arena, r->c->n_steps, sizeof *r->plans);
    r->outcomes = ora_arena_take(r->arena, r->c->n_steps, sizeof *r->outcomes);
    attnd_status status = r->plans && r->outcomes ? run_steps(r, err) : no_memory(err);
    for (size_t i = 0; r->plans && r->target && i < r->c->n_steps; i++)
        if (r->plans[i].is_open)
            r->target->drop_plan(r->target->self, r->plans[i].handle, &ignored);
    if (status == ATTND_OK)
        status = close_model(r, err);
    else
        close_model(r, &ignored);
    if (lacking && (status == ATTND_OK || err->status == ATTND_UNIMPLEMENTED)) {
        r->report->verdict = ORA_CASE_SKIPPED;
        snprintf(r->report->text, sizeof r->report->text, "needs %s%s", lacking,
                 status == ATTND_OK ? "; the evaluator is right" : "; the evaluator lacks it too");
    } else if (status != ATTND_OK) {
        r->report->verdict = ORA_CASE_FAILED;
        snprintf(r->report->text, sizeof r->report->text, "%s", err->text);
    }
}

void ora_case_run(const ora_case_file *file, size_t i, const ora_target *target,
                  const ora_run_options *options, ora_bits *bits, ora_report *report)
{
    ora_case c;
    attnd_err err = {0};
    *report = (ora_report){.out = -1, .lse = -1};
    ora_case_variant_name(file, i, NULL, report->variant, sizeof report->variant);
    attnd_status status = ora_case_read(file, i, &c, &err);
    run r = {.c = &c,
             .file = file,
             .variant = i,
             .target = target,
             .options = options,
             .bits = bits,
             .report = report,
             .arena = status == ATTND_OK ? ora_arena_make() : NULL};
    if (r.arena) {
        run_variant(&r, &err);
    } else {
        report->verdict = ORA_CASE_FAILED;
        snprintf(report->text, sizeof report->text, "%s",
                 status == ATTND_OK ? "case: no memory" : err.text);
    }
    ora_arena_free(r.arena);
    ora_case_fini(&c);
}
