/* case_plan.c: plans of a case, and the evaluator's idea of them. */
#include <string.h>

#include "tests/oracle/case_steps.h"
#include "tests/oracle/case_tensor.h"

attnd_status ora_run_list_update(ora_run *r, const ora_case_update *u, const ora_run_plan *p,
                                 ora_case_update *out, attnd_err *err)
{
    const ora_case_ints *kv_lens = u->kv_lens.given ? &u->kv_lens : &p->batch.kv_lens;
    *out = *u;
    out->version = u->version ? u->version : p->version;
    return ora_run_list_tables(r, u->appended, u->n_appended, kv_lens, &p->batch.kv_lens,
                               &out->appended, err);
}

/* Rows of the plan's table with the new entries behind them. */
static attnd_status append_table(ora_run *r, ora_run_plan *p, const ora_case_update *u,
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
        total += ora_run_blocks_for(kv_lens->values[b], T);
    ora_case_ints old = table->block_ids.ids, ids = {.given = true};
    ids.values = ora_arena_take(r->arena, (size_t)total + 1, sizeof *ids.values);
    if (!ids.values)
        return ora_run_no_memory(err);
    for (size_t b = 0; b < kv_lens->n; b++) {
        int64_t had = ora_run_blocks_for(p->batch.kv_lens.values[b], T);
        int64_t has = ora_run_blocks_for(kv_lens->values[b], T), row = added;
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
attnd_status ora_run_apply_update(ora_run *r, ora_run_plan *p, const ora_case_update *u,
                                  attnd_err *err)
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
static attnd_status trim_tables(ora_run *r, ora_case_batch *batch, attnd_err *err)
{
    for (size_t i = 0; i < batch->n_tables; i++) {
        ora_case_table *t = &batch->tables[i];
        ora_case_ints ids = {.given = true}, wide = t->block_ids.ids;
        if (!t->width || t->group >= r->shadow.n_groups)
            continue;
        ids.values = ora_arena_take(r->arena, wide.n + 1, sizeof *ids.values);
        if (!ids.values)
            return ora_run_no_memory(err);
        for (size_t b = 0; b < batch->kv_lens.n; b++) {
            int64_t n =
                ora_run_blocks_for(batch->kv_lens.values[b], r->shadow.groups[t->group].block_size);
            for (int64_t k = 0; k < n && b * t->width + (size_t)k < wide.n; k++)
                ids.values[ids.n++] = wide.values[b * t->width + (size_t)k];
        }
        t->block_ids.ids = ids;
        t->width = 0;
    }
    return ATTND_OK;
}

attnd_status ora_run_create_plan(ora_run *r, size_t at, const ora_case_step *s, attnd_err *err)
{
    ora_run_plan *p = &r->plans[at];
    attnd_err got = {0};
    bool refused = false;
    *p = (ora_run_plan){.name = s->name, .version = 1};
    TRY(ora_run_list_batch(r, &s->call.batch, &p->batch, err));
    if (r->target) {
        attnd_status status = r->target->create_plan(r->target->self, r->model, &p->batch,
                                                     s->call.batch_invariant, &p->handle, &got);
        TRY(ora_run_judge_refusal(&s->expect, status, &got, &refused, err));
    }
    p->is_open = !refused;
    return refused ? ATTND_OK : trim_tables(r, &p->batch, err);
}

attnd_status ora_run_update_plan(ora_run *r, const ora_case_step *s, attnd_err *err)
{
    ora_run_plan *p;
    ora_case_update u;
    attnd_err got = {0};
    bool refused = s->expect.error.given;
    TRY(ora_run_find_plan(r, s->update.plan, &p, err));
    TRY(ora_run_list_update(r, &s->update, p, &u, err));
    if (r->target) {
        attnd_status status = r->target->update_plan(r->target->self, p->handle, &u, &got);
        TRY(ora_run_judge_refusal(&s->expect, status, &got, &refused, err));
    }
    return refused ? ATTND_OK : ora_run_apply_update(r, p, &u, err);
}

attnd_status ora_run_drop_plan(ora_run *r, const ora_case_step *s, attnd_err *err)
{
    ora_run_plan *p;
    attnd_err got = {0};
    bool refused;
    TRY(ora_run_find_plan(r, s->plan, &p, err));
    p->is_open = false;
    if (!r->target)
        return ATTND_OK;
    attnd_status status = r->target->drop_plan(r->target->self, p->handle, &got);
    return ora_run_judge_refusal(&s->expect, status, &got, &refused, err);
}
