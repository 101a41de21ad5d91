/* case_run.c: a case against a target, step by step. */
#include "tests/oracle/case_run.h"

#include <stdio.h>
#include <string.h>

#include "tests/oracle/case_judge.h"
#include "tests/oracle/case_steps.h"
#include "tests/oracle/case_tensor.h"

/* ---- Models -----------------------------------------------------------------------------------
 */

static attnd_status close_model(ora_run *r, attnd_err *err)
{
    if (!r->is_open)
        return ATTND_OK;
    r->is_open = false;
    ora_shadow_fini(&r->shadow);
    return r->target ? r->target->close_model(r->target->self, r->model, err) : ATTND_OK;
}

static attnd_status open_model(ora_run *r, const ora_case_spec *spec, attnd_err *err)
{
    uint32_t *n_blocks = ora_arena_take(r->arena, spec->n_groups + 1, sizeof *n_blocks);
    uint64_t model = 0;
    if (!n_blocks)
        return ora_run_no_memory(err);
    if (r->target)
        TRY(r->target->open_model(r->target->self, spec, &model, n_blocks, err));
    TRY(close_model(r, err));
    r->model = model;
    r->is_open = true;
    return ora_shadow_init(&r->shadow, r->arena, spec, r->target ? n_blocks : NULL, err);
}

/* ---- Steps ------------------------------------------------------------------------------------
 */

/* Attend, and Step with its update. */
static attnd_status run_attention(ora_run *r, size_t at, const ora_case_step *s, attnd_err *err)
{
    const ora_case_call *c = &s->call;
    const ora_shadow_layer *layer = NULL;
    ora_case_batch batch = {0};
    ora_case_update update;
    ora_run_plan *p = NULL;
    bool is_step = s->op == ORA_CASE_STEP, refused = s->expect.error.given;
    ora_call call = {.model = r->model,
                     .layer = c->layer,
                     .n_layers = is_step ? c->n_layers : 0,
                     .keys = c->keys,
                     .batch_invariant = c->batch_invariant};
    TRY(ora_run_layer_of(r, c->layer, &layer, err));
    if (*c->plan) {
        TRY(ora_run_find_plan(r, c->plan, &p, err));
        batch = p->batch;
        call.plan = p->handle;
    } else if (c->has_batch) {
        TRY(ora_run_list_batch(r, &c->batch, &batch, err));
        call.batch = &batch;
    }
    ora_run_plan next = p ? *p : (ora_run_plan){0};
    if (p && c->has_update) {
        TRY(ora_run_list_update(r, &c->update, p, &update, err));
        call.update = &update;
        if (!s->expect.error.given) {
            next.batch.tables =
                ora_arena_take(r->arena, p->batch.n_tables + 1, sizeof *next.batch.tables);
            if (!next.batch.tables)
                return ora_run_no_memory(err);
            memcpy(next.batch.tables, p->batch.tables,
                   p->batch.n_tables * sizeof *next.batch.tables);
            TRY(ora_run_apply_update(r, &next, &update, err));
            batch = next.batch;
        }
    }
    TRY(ora_run_make_tensors(r, c, &batch, &layer->spec, is_step, refused, &call, err));
    ora_call sent = call;
    if (c->fused)
        TRY(ora_run_fuse(r, &sent, err));
    uint64_t before = s->expect.pool == 2 ? ora_shadow_hash(&r->shadow) : 0;
    ora_outcome *o = &r->outcomes[at];
    if (r->target)
        TRY(ora_run_call(r, s, &sent, &call, o, &refused, err));
    else
        *o = (ora_outcome){.ran = !s->expect.skip_oracle && !refused,
                           .out = call.out,
                           .lse = call.lse,
                           .stats = call.stats};
    if (!refused) {
        if (p && c->has_update)
            *p = next;
        TRY(ora_run_judge_layers(r, s, &call, &batch, o, err));
        if (o->ran)
            TRY(ora_run_judge_others(r, at, o, err));
    }
    if (s->expect.pool == 2 && before != ora_shadow_hash(&r->shadow))
        return attnd_fail(err, ATTND_BROKEN, "pool: the step stores something");
    return s->expect.pool ? ora_run_read_back(r, err) : ATTND_OK;
}

static attnd_status make_partial(ora_run *r, size_t at, const ora_case_merge *m,
                                 const ora_case_partial *part, ora_merge_part *out, attnd_err *err)
{
    if (*part->step) {
        int64_t from = ora_run_find_step(r, part->step, at);
        if (from < 0 || !r->outcomes[from].ran)
            return attnd_fail(err, ATTND_BAD_CONFIG, "partials: %s: no step before wrote",
                              part->step);
        const ora_outcome *o = &r->outcomes[from];
        TRY(ora_run_copy_bytes(r, &o->out, &out->out, err));
        return part->use_stats ? ora_run_copy_bytes(r, &o->stats, &out->stats, err)
                               : ora_run_copy_bytes(r, &o->lse, &out->lse, err);
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

static attnd_status make_merged(ora_run *r, const ora_case_merge *m, const ora_bytes *like,
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

static attnd_status judge_merge(ora_run *r, const ora_case_step *s, const ora_merge_call *call,
                                ora_outcome *o, attnd_err *err)
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

static attnd_status run_merge(ora_run *r, size_t at, const ora_case_step *s, attnd_err *err)
{
    const ora_case_merge *m = &s->merge;
    ora_merge_part *parts = ora_arena_take(r->arena, m->n_partials + 1, sizeof *parts);
    ora_merge_call call = {.parts = parts, .n_parts = m->n_partials};
    ora_outcome *o = &r->outcomes[at];
    bool refused = s->expect.error.given;
    if (!parts)
        return ora_run_no_memory(err);
    for (size_t i = 0; i < m->n_partials; i++)
        TRY(make_partial(r, at, m, &m->partials[i], &parts[i], err));
    TRY(make_merged(r, m, &parts[0].out, &call, err));
    for (uint32_t i = 0; r->target && i < s->repeat; i++) {
        attnd_err got = {0};
        uint64_t first = i ? ora_run_hash_of(o) : 0;
        ora_run_poison(&call.out);
        ora_run_poison(&call.lse);
        ora_run_poison(&call.stats);
        attnd_status status = r->target->merge(r->target->self, &call, &got);
        TRY(ora_run_judge_refusal(&s->expect, status, &got, &refused, err));
        if (refused) {
            TRY(ora_run_check_untouched(&call.out, "out", err));
            return ora_run_check_untouched(&call.lse, "lse", err);
        }
        ora_tensor_gather(&call.out);
        ora_tensor_gather(&call.lse);
        ora_tensor_gather(&call.stats);
        *o = (ora_outcome){.ran = true, .out = call.out, .lse = call.lse, .stats = call.stats};
        if (i && first != ora_run_hash_of(o))
            return attnd_fail(err, ATTND_BROKEN, "repeat = %u: run %u has other bits", s->repeat,
                              i + 1);
    }
    if (refused)
        return ATTND_OK;
    *o = (ora_outcome){.ran = true, .out = call.out, .lse = call.lse, .stats = call.stats};
    TRY(judge_merge(r, s, &call, o, err));
    return ora_run_judge_others(r, at, o, err);
}

static attnd_status run_open_model(ora_run *r, const ora_case_step *s, attnd_err *err)
{
    attnd_err got = {0};
    bool refused;
    if (!r->target && s->expect.error.given)
        return ATTND_OK;
    attnd_status status = open_model(r, &s->spec, &got);
    return ora_run_judge_refusal(&s->expect, status, &got, &refused, err);
}

static attnd_status run_step(ora_run *r, size_t at, attnd_err *err)
{
    const ora_case_step *s = &r->c->steps[at];
    switch (s->op) {
    case ORA_CASE_WRITE:
        return ora_run_write(r, &s->write, err);
    case ORA_CASE_OPEN_MODEL:
        return run_open_model(r, s, err);
    case ORA_CASE_CLOSE_MODEL:
        return close_model(r, err);
    case ORA_CASE_ATTEND:
    case ORA_CASE_STEP:
        return run_attention(r, at, s, err);
    case ORA_CASE_CREATE_PLAN:
        return ora_run_create_plan(r, at, s, err);
    case ORA_CASE_UPDATE_PLAN:
        return ora_run_update_plan(r, s, err);
    case ORA_CASE_DROP_PLAN:
        return ora_run_drop_plan(r, s, err);
    case ORA_CASE_MERGE:
        return run_merge(r, at, s, err);
    }
    return ATTND_OK;
}
/* ---- Cases ------------------------------------------------------------------------------------
 */

static attnd_status run_steps(ora_run *r, attnd_err *err)
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

static void run_variant(ora_run *r, attnd_err *err)
{
    attnd_err ignored;
    const char *lacking = lacks(r->c, r->target);
    if (r->c->oracle || lacking)
        r->target = NULL;
    r->plans = ora_arena_take(r->arena, r->c->n_steps, sizeof *r->plans);
    r->outcomes = ora_arena_take(r->arena, r->c->n_steps, sizeof *r->outcomes);
    attnd_status status = r->plans && r->outcomes ? run_steps(r, err) : ora_run_no_memory(err);
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
    ora_run r = {.c = &c,
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
