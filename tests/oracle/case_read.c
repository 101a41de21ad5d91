/* case_read.c: a variant's JSON tree into the structs of case.h. */
#include "tests/oracle/case_read.h"

#include <stdio.h>
#include <string.h>

static const char *const PAIRINGS[] = {"none", "neox", "gptj", NULL};
static const char *const SCALINGS[] = {"none", "linear",   "dynamic_alpha", "dynamic_ntk", "llama3",
                                       "yarn", "longrope", "mrope",         NULL};
static const char *const LAYOUTS[] = {"hnd", "nhd", NULL};
static const char *const OWNERS[] = {"client", "server", NULL};
static const char *const MASKS[] = {"causal", "full", "variable", "custom", "tree", NULL};
static const char *const KEYS[] = {"pool", "given", NULL};
static const char *const ORDERS[] = {"", "ascending", "descending", "shuffled", NULL};
static const char *const POOLS[] = {"", "oracle", "unchanged", NULL};
static const char *const KINDS[] = {
#define X(name, number, text) [number] = text,
    ATTND_LAYER_KIND_MAP(X)
#undef X
        NULL};
/* ---- Models -----------------------------------------------------------------------------------
 */

static const ora_json_field ROPE_FIELDS[] = {
    WORD(ora_case_rope, pairing, PAIRINGS),
    COUNT(ora_case_rope, dim),
    REAL(ora_case_rope, theta),
    WORD(ora_case_rope, scaling, SCALINGS),
    END,
};

static attnd_status read_rope(const ora_json *json, void *place, attnd_err *err)
{
    *(ora_case_rope *)place = (ora_case_rope){.pairing = ATTND_ROPE_NEOX};
    return ora_json_object(json, ROPE_FIELDS, place, err);
}

static attnd_status read_sinks(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_layer *l = place;
    if (!cJSON_IsNumber(json->at))
        return ora_json_list(json, sizeof *l->sinks, ora_read_real, (void **)&l->sinks, &l->n_sinks,
                             err);
    l->n_sinks = 1;
    l->sinks = ora_arena_take(json->arena, 1, sizeof *l->sinks);
    if (!l->sinks)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", json->path);
    return ora_json_real(json, l->sinks, err);
}

static const ora_json_field LAYER_FIELDS[] = {
    WORD(ora_case_layer, kind, KINDS), COUNT(ora_case_layer, group),
    COUNT(ora_case_layer, n_heads),    COUNT(ora_case_layer, n_kv_heads),
    COUNT(ora_case_layer, head_dim),   COUNT(ora_case_layer, head_dim_v),
    REAL(ora_case_layer, sm_scale),    REAL(ora_case_layer, q_scaling),
    COUNT(ora_case_layer, window),     READ(ora_case_layer, rope, read_rope),
    REAL(ora_case_layer, softcap),     COUNT(ora_case_layer, chunk),
    COUNT(ora_case_layer, count),      WHOLE("sinks", read_sinks),
    FLAG(ora_case_layer, alibi),       END,
};

static attnd_status read_layer(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, LAYER_FIELDS, place, err);
}

static const ora_json_field GROUP_FIELDS[] = {
    NAME(ora_case_group, name),
    COUNT(ora_case_group, block_size),
    WORD(ora_case_group, kv_dtype, ORA_READ_DTYPES),
    WORD(ora_case_group, layout, LAYOUTS),
    COUNT(ora_case_group, n_blocks),
    WIDE(ora_case_group, bytes),
    COUNT(ora_case_group, max_kv_len),
    COUNT(ora_case_group, window),
    END,
};

static attnd_status read_group(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, GROUP_FIELDS, place, err);
}

static attnd_status read_layers(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_spec *s = place;
    return ora_json_list(json, sizeof *s->layers, read_layer, (void **)&s->layers, &s->n_layers,
                         err);
}

static attnd_status read_groups(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_spec *s = place;
    return ora_json_list(json, sizeof *s->groups, read_group, (void **)&s->groups, &s->n_groups,
                         err);
}

static const ora_json_field SPEC_FIELDS[] = {
    NAME(ora_case_spec, name),
    WHOLE("layers", read_layers),
    WHOLE("groups", read_groups),
    WORD(ora_case_spec, owner, OWNERS),
    END,
};

/* ---- Batches ----------------------------------------------------------------------------------
 */

static attnd_status read_order(const ora_json *json, void *place, attnd_err *err);

static const ora_json_field BLOCKS_FIELDS[] = {
    READ(ora_case_blocks, order, read_order),
    WIDE(ora_case_blocks, seed),
    COUNT(ora_case_blocks, tokens),
    COUNT(ora_case_blocks, sequence),
    READ(ora_case_blocks, ids, ora_read_ints),
    END,
};

static attnd_status read_order(const ora_json *json, void *place, attnd_err *err)
{
    const char *text = cJSON_GetStringValue(json->at);
    for (uint32_t i = 1; text && ORDERS[i]; i++)
        if (strcmp(text, ORDERS[i]) == 0) {
            *(ora_case_order *)place = (ora_case_order)i;
            return ATTND_OK;
        }
    return ora_json_fail(json, err, "ascending | descending | shuffled");
}

/* As integers, or {"order": "shuffled", "seed": 1, "tokens": 300}. */
static attnd_status read_blocks(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_blocks *out = place;
    if (!cJSON_GetObjectItemCaseSensitive(json->at, "order"))
        return ora_read_ints(json, &out->ids, err);
    TRY(ora_json_object(json, BLOCKS_FIELDS, out, err));
    if (out->tokens == 0)
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "%s.tokens = 0: how many a sequence may reach, at least 1", json->path);
    return ATTND_OK;
}

static const ora_json_field TABLE_FIELDS[] = {
    COUNT(ora_case_table, group),
    COUNT(ora_case_table, width),
    READ(ora_case_table, block_ids, read_blocks),
    END,
};

static attnd_status read_table(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, TABLE_FIELDS, place, err);
}

static attnd_status read_tables(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_batch *b = place;
    return ora_json_list(json, sizeof *b->tables, read_table, (void **)&b->tables, &b->n_tables,
                         err);
}

static const ora_json_field BATCH_FIELDS[] = {
    COUNT(ora_case_batch, n_contexts),
    READ(ora_case_batch, q_lens, ora_read_ints),
    READ(ora_case_batch, kv_lens, ora_read_ints),
    WHOLE("tables", read_tables),
    READ(ora_case_batch, slots, ora_read_ints),
    READ(ora_case_batch, positions, ora_read_ints),
    WORD(ora_case_batch, mask, MASKS),
    READ(ora_case_batch, starts, ora_read_ints),
    READ(ora_case_batch, ends, ora_read_ints),
    READ(ora_case_batch, custom, ora_read_ints),
    READ(ora_case_batch, parents, ora_read_ints),
    END,
};

static attnd_status read_appended(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_update *u = place;
    return ora_json_list(json, sizeof *u->appended, read_table, (void **)&u->appended,
                         &u->n_appended, err);
}

static const ora_json_field UPDATE_FIELDS[] = {
    NAME(ora_case_update, plan),
    WIDE(ora_case_update, version),
    READ(ora_case_update, q_lens, ora_read_ints),
    READ(ora_case_update, kv_lens, ora_read_ints),
    WHOLE("appended", read_appended),
    READ(ora_case_update, slots, ora_read_ints),
    READ(ora_case_update, positions, ora_read_ints),
    END,
};

/* ---- Steps ------------------------------------------------------------------------------------
 */

static attnd_status read_call_batch(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_call *call = place;
    call->has_batch = true;
    return ora_json_object(json, BATCH_FIELDS, &call->batch, err);
}

static attnd_status read_call_update(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_call *call = place;
    call->has_update = true;
    return ora_json_object(json, UPDATE_FIELDS, &call->update, err);
}

static const ora_json_field ATTEND_FIELDS[] = {
    COUNT(ora_case_call, layer),
    NAME(ora_case_call, plan),
    WHOLE("batch", read_call_batch),
    READ(ora_case_call, q, ora_read_tensor),
    READ(ora_case_call, k, ora_read_tensor),
    READ(ora_case_call, v, ora_read_tensor),
    WORD(ora_case_call, keys, KEYS),
    READ(ora_case_call, out, ora_read_tensor),
    READ(ora_case_call, lse, ora_read_tensor),
    READ(ora_case_call, stats, ora_read_tensor),
    FLAG(ora_case_call, fused),
    FLAG(ora_case_call, batch_invariant),
    END,
};

static const ora_json_field STEP_FIELDS[] = {
    NAME(ora_case_call, plan),
    WHOLE("update", read_call_update),
    {"first_layer", ORA_JSON_COUNT, offsetof(ora_case_call, layer), 0, NULL, NULL},
    COUNT(ora_case_call, n_layers),
    READ(ora_case_call, q, ora_read_tensor),
    READ(ora_case_call, k, ora_read_tensor),
    READ(ora_case_call, v, ora_read_tensor),
    READ(ora_case_call, out, ora_read_tensor),
    READ(ora_case_call, lse, ora_read_tensor),
    WORD(ora_case_call, keys, KEYS),
    END,
};

static const ora_json_field CREATE_PLAN_FIELDS[] = {
    WHOLE("batch", read_call_batch),
    FLAG(ora_case_call, batch_invariant),
    END,
};

/* q, out and lse are there unless a case says otherwise. */
static void preset_call(ora_case_call *call)
{
    *call = (ora_case_call){
        .n_layers = 1, .q = ORA_READ_THERE, .out = ORA_READ_THERE, .lse = ORA_READ_THERE};
}

static attnd_status read_attend(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_ATTEND;
    preset_call(&s->call);
    return ora_json_object(json, ATTEND_FIELDS, &s->call, err);
}

static attnd_status read_step_op(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_STEP;
    preset_call(&s->call);
    return ora_json_object(json, STEP_FIELDS, &s->call, err);
}

static attnd_status read_create_plan(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_CREATE_PLAN;
    return ora_json_object(json, CREATE_PLAN_FIELDS, &s->call, err);
}

static attnd_status read_inner_update(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, UPDATE_FIELDS, place, err);
}

static const ora_json_field UPDATE_PLAN_FIELDS[] = {WHOLE("update", read_inner_update), END};

static attnd_status read_update_plan(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_UPDATE_PLAN;
    return ora_json_object(json, UPDATE_PLAN_FIELDS, &s->update, err);
}

static const ora_json_field DROP_PLAN_FIELDS[] = {NAME(ora_case_step, plan), END};

static attnd_status read_drop_plan(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_DROP_PLAN;
    return ora_json_object(json, DROP_PLAN_FIELDS, s, err);
}

static attnd_status read_spec(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, SPEC_FIELDS, place, err);
}

static const ora_json_field OPEN_MODEL_FIELDS[] = {READ(ora_case_step, spec, read_spec), END};

static attnd_status read_open_model(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_OPEN_MODEL;
    return ora_json_object(json, OPEN_MODEL_FIELDS, s, err);
}

static const ora_json_field NO_FIELDS[] = {END};

static attnd_status read_close_model(const ora_json *json, void *place, attnd_err *err)
{
    ((ora_case_step *)place)->op = ORA_CASE_CLOSE_MODEL;
    return ora_json_object(json, NO_FIELDS, place, err);
}

static attnd_status read_write_layer(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_write *w = place;
    int64_t layer = 0;
    TRY(ora_json_int(json, 0, UINT32_MAX, &layer, err));
    w->layer = (uint32_t)layer;
    w->one_layer = true;
    return ATTND_OK;
}

static attnd_status read_write_blocks(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_write *w = place;
    w->has_blocks = true;
    return read_blocks(json, &w->block_ids, err);
}

static const ora_json_field WRITE_FIELDS[] = {
    WHOLE("layer", read_write_layer),
    COUNT(ora_case_write, group),
    WHOLE("block_ids", read_write_blocks),
    COUNT(ora_case_write, first),
    COUNT(ora_case_write, kv_len),
    READ(ora_case_write, k, ora_read_tensor),
    READ(ora_case_write, v, ora_read_tensor),
    END,
};

static attnd_status read_write(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_WRITE;
    s->write.k = s->write.v = ORA_READ_THERE;
    return ora_json_object(json, WRITE_FIELDS, &s->write, err);
}

static const ora_json_field PARTIAL_FIELDS[] = {
    NAME(ora_case_partial, step),
    FLAG(ora_case_partial, use_stats),
    READ(ora_case_partial, out, ora_read_tensor),
    READ(ora_case_partial, lse, ora_read_tensor),
    READ(ora_case_partial, stats, ora_read_tensor),
    END,
};

static attnd_status read_partial(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, PARTIAL_FIELDS, place, err);
}

static attnd_status read_partials(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_merge *m = place;
    return ora_json_list(json, sizeof *m->partials, read_partial, (void **)&m->partials,
                         &m->n_partials, err);
}

static const ora_json_field MERGE_FIELDS[] = {
    WHOLE("partials", read_partials),
    COUNT(ora_case_merge, n_tokens),
    COUNT(ora_case_merge, n_heads),
    COUNT(ora_case_merge, width),
    READ(ora_case_merge, out, ora_read_tensor),
    READ(ora_case_merge, lse, ora_read_tensor),
    READ(ora_case_merge, stats, ora_read_tensor),
    END,
};

static attnd_status read_merge(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_MERGE;
    s->merge.out = s->merge.lse = ORA_READ_THERE;
    return ora_json_object(json, MERGE_FIELDS, &s->merge, err);
}

/* ---- Expectations -----------------------------------------------------------------------------
 */

static const ora_json_field SAME_FIELDS[] = {
    NAME(ora_case_same, step),
    READ(ora_case_same, rows, ora_read_ints),
    READ(ora_case_same, of, ora_read_ints),
    REAL(ora_case_same, within),
    END,
};

static attnd_status read_same(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_same *same = place;
    ora_json_field step = SAME_FIELDS[0];
    if (!cJSON_IsString(json->at))
        return ora_json_object(json, SAME_FIELDS, same, err);
    if (strlen(json->at->valuestring) >= step.width)
        return ora_json_fail(json, err, "the name of a step");
    memcpy(same->step, json->at->valuestring, strlen(json->at->valuestring) + 1);
    return ATTND_OK;
}

/* One, or a list of them. */
static attnd_status read_same_as(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_expect *e = place;
    if (cJSON_IsArray(json->at))
        return ora_json_list(json, sizeof *e->same_as, read_same, (void **)&e->same_as, &e->n_same,
                             err);
    e->same_as = ora_arena_take(json->arena, 1, sizeof *e->same_as);
    if (!e->same_as)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", json->path);
    e->n_same = 1;
    return read_same(json, e->same_as, err);
}

static attnd_status read_one_name(const ora_json *json, void *place, attnd_err *err)
{
    const char *text = cJSON_GetStringValue(json->at);
    if (!text || strlen(text) >= ORA_CASE_NAME)
        return ora_json_fail(json, err, "a name");
    memcpy(place, text, strlen(text) + 1);
    return ATTND_OK;
}

static attnd_status read_across(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_expect *e = place;
    return ora_json_list(json, ORA_CASE_NAME, read_one_name, (void **)&e->same_across, &e->n_across,
                         err);
}

static const ora_json_field ERROR_FIELDS[] = {
    NAME(ora_case_error, code),
    NAME(ora_case_error, reason),
    NAME(ora_case_error, field),
    NAME(ora_case_error, message),
    END,
};

static attnd_status read_error(const ora_json *json, void *place, attnd_err *err)
{
    ((ora_case_error *)place)->given = true;
    return ora_json_object(json, ERROR_FIELDS, place, err);
}

static attnd_status read_oracle_word(const ora_json *json, void *place, attnd_err *err)
{
    if (!cJSON_IsBool(json->at))
        return ora_json_fail(json, err, "true or false");
    ((ora_case_expect *)place)->skip_oracle = cJSON_IsFalse(json->at);
    return ATTND_OK;
}

static const ora_json_field EXACT_FIELDS[] = {
    {"out", ORA_JSON_NAME, offsetof(ora_case_expect, exact_out), sizeof(ora_case_hash), NULL, NULL},
    {"lse", ORA_JSON_NAME, offsetof(ora_case_expect, exact_lse), sizeof(ora_case_hash), NULL, NULL},
    END,
};

static attnd_status read_exact(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, EXACT_FIELDS, place, err);
}

static const ora_json_field EXPECT_FIELDS[] = {
    WHOLE("oracle", read_oracle_word),
    READ(ora_case_expect, out, ora_read_tensor),
    READ(ora_case_expect, lse, ora_read_tensor),
    READ(ora_case_expect, stats, ora_read_tensor),
    WORD(ora_case_expect, pool, POOLS),
    WHOLE("same_as", read_same_as),
    NAME(ora_case_expect, differs_from),
    WHOLE("same_across", read_across),
    READ(ora_case_expect, error, read_error),
    READ(ora_case_expect, may_refuse, read_error),
    WHOLE("exact", read_exact),
    END,
};

static attnd_status read_expect(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_object(json, EXPECT_FIELDS, place, err);
}

/* ---- Cases ------------------------------------------------------------------------------------
 */

static const ora_json_field STEP_OBJECT_FIELDS[] = {
    NAME(ora_case_step, name),
    NOTE("about"),
    COUNT(ora_case_step, repeat),
    WHOLE("write", read_write),
    WHOLE("open_model", read_open_model),
    WHOLE("close_model", read_close_model),
    WHOLE("attend", read_attend),
    WHOLE("create_plan", read_create_plan),
    WHOLE("update_plan", read_update_plan),
    WHOLE("drop_plan", read_drop_plan),
    WHOLE("step", read_step_op),
    WHOLE("merge", read_merge),
    READ(ora_case_step, expect, read_expect),
    END,
};

static attnd_status read_one_step(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    size_t n_ops = 0;
    s->repeat = 1;
    TRY(ora_json_object(json, STEP_OBJECT_FIELDS, s, err));
    for (const ora_json_field *f = STEP_OBJECT_FIELDS; f->name; f++)
        n_ops += f->type == ORA_JSON_READ && f->offset == 0 &&
                 cJSON_GetObjectItemCaseSensitive(json->at, f->name);
    if (n_ops != 1)
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "%s: one of write, open_model, close_model, attend, create_plan, "
                          "update_plan, drop_plan, step, merge",
                          json->path);
    if (!s->name[0])
        snprintf(s->name, sizeof s->name, "%.60s", json->path);
    s->repeat = s->repeat ? s->repeat : 1;
    return ATTND_OK;
}

static attnd_status read_steps(const ora_json *json, void *place, attnd_err *err)
{
    ora_case *c = place;
    return ora_json_list(json, sizeof *c->steps, read_one_step, (void **)&c->steps, &c->n_steps,
                         err);
}

static attnd_status read_needs(const ora_json *json, void *place, attnd_err *err)
{
    ora_case *c = place;
    return ora_json_list(json, ORA_CASE_NAME, read_one_name, (void **)&c->needs, &c->n_needs, err);
}

static attnd_status read_case_spec(const ora_json *json, void *place, attnd_err *err)
{
    ora_case *c = place;
    c->has_spec = true;
    return ora_json_object(json, SPEC_FIELDS, &c->spec, err);
}

static attnd_status read_about(const ora_json *json, void *place, attnd_err *err)
{
    ora_case *c = place;
    const char *text = cJSON_GetStringValue(json->at);
    if (!text)
        return ora_json_fail(json, err, "text");
    c->about = ora_arena_take(json->arena, strlen(text) + 1, 1);
    if (!c->about)
        return attnd_fail(err, ATTND_NO_ROOM, "about: no memory");
    memcpy(c->about, text, strlen(text));
    return ATTND_OK;
}

static const ora_json_field CASE_FIELDS[] = {
    WHOLE("about", read_about), NOTE("captured"),
    WIDE(ora_case, seed),       WORD(ora_case, dtype, ORA_READ_DTYPES),
    WHOLE("needs", read_needs), FLAG(ora_case, oracle),
    NOTE("variants"),           WHOLE("spec", read_case_spec),
    WHOLE("steps", read_steps), END,
};

attnd_status ora_case_read_json(const cJSON *json, ora_case *out, attnd_err *err)
{
    *out = (ora_case){.dtype = ATTND_DTYPE_F32, .arena = ora_arena_make()};
    if (!out->arena)
        return attnd_fail(err, ATTND_NO_ROOM, "case: no memory");
    ora_json top = {.at = json, .arena = out->arena};
    attnd_status status = ora_json_object(&top, CASE_FIELDS, out, err);
    if (status == ATTND_OK && out->n_steps == 0)
        status = attnd_fail(err, ATTND_BAD_CONFIG, "steps = none: a case has at least one");
    if (status != ATTND_OK)
        ora_case_fini(out);
    return status;
}

void ora_case_fini(ora_case *c)
{
    ora_arena_free(c->arena);
    *c = (ora_case){0};
}
