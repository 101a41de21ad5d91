/* case_read.c: a variant's JSON tree into the structs of case.h. */
#include "tests/oracle/case_read.h"

#include <stdio.h>
#include <string.h>

#define FIELD(owner, member, kind, ...)                                                            \
    {                                                                                              \
        .name = #member, .type = ORA_JSON_##kind, .offset = offsetof(owner, member), __VA_ARGS__   \
    }
#define NAME(owner, member) FIELD(owner, member, NAME, .width = sizeof((owner *)0)->member)
#define COUNT(owner, member) FIELD(owner, member, COUNT, .width = 0)
#define WIDE(owner, member) FIELD(owner, member, WIDE, .width = 0)
#define REAL(owner, member) FIELD(owner, member, REAL, .width = 0)
#define FLAG(owner, member) FIELD(owner, member, FLAG, .width = 0)
#define WORD(owner, member, list) FIELD(owner, member, WORD, .words = list)
#define READ(owner, member, reader) FIELD(owner, member, READ, .read = reader)
/* The reader gets the whole struct: it fills more than one member. */
#define WHOLE(text, reader)                                                                        \
    {                                                                                              \
        .name = text, .type = ORA_JSON_READ, .read = reader                                        \
    }
#define NOTE(text)                                                                                 \
    {                                                                                              \
        .name = text, .type = ORA_JSON_NOTE                                                        \
    }
#define END                                                                                        \
    {                                                                                              \
        0                                                                                          \
    }

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
static const char *const DTYPES[] = {
#define X(name, number, bits, text) [number] = text,
    ATTND_DTYPE_MAP(X)
#undef X
        NULL};

/* ---- Integers ---------------------------------------------------------------------------------
 */

static attnd_status read_int(const ora_json *json, void *place, attnd_err *err)
{
    int64_t value = 0;
    TRY(ora_json_int(json, INT32_MIN, INT32_MAX, &value, err));
    *(int32_t *)place = (int32_t)value;
    return ATTND_OK;
}

typedef struct ints_words {
    void *values, *repeat;
    size_t n_values, n_repeat;
    uint32_t n;
    bool ref;
} ints_words;

static attnd_status read_values_list(const ora_json *json, void *place, attnd_err *err)
{
    ints_words *w = place;
    return ora_json_list(json, sizeof(int32_t), read_int, &w->values, &w->n_values, err);
}

static attnd_status read_repeat_list(const ora_json *json, void *place, attnd_err *err)
{
    ints_words *w = place;
    return ora_json_list(json, sizeof(int32_t), read_int, &w->repeat, &w->n_repeat, err);
}

static const ora_json_field INTS_FIELDS[] = {
    WHOLE("values", read_values_list),
    WHOLE("repeat", read_repeat_list),
    COUNT(ints_words, n),
    FLAG(ints_words, ref),
    END,
};

/* [1, 2] or {"values": [1, 2], "ref": true} or {"repeat": [1], "n": 1000}. */
static attnd_status read_ints(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_ints *out = place;
    ints_words w = {0};
    *out = (ora_case_ints){.given = true};
    if (cJSON_IsArray(json->at))
        TRY(read_values_list(json, &w, err));
    else
        TRY(ora_json_object(json, INTS_FIELDS, &w, err));
    out->is_ref = w.ref;
    out->values = w.values;
    out->n = w.n_values;
    if (!w.repeat)
        return ATTND_OK;
    if (w.values || !w.n_repeat)
        return ora_json_fail(json, err, "values, or a list to repeat and n");
    out->n = w.n;
    out->values = ora_arena_take(json->arena, (size_t)w.n + 1, sizeof *out->values);
    if (!out->values)
        return attnd_fail(err, ATTND_NO_ROOM, "%s.n = %u: no memory", json->path, w.n);
    for (size_t i = 0; i < out->n; i++)
        out->values[i] = ((int32_t *)w.repeat)[i % w.n_repeat];
    return ATTND_OK;
}

static attnd_status read_i64(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_int(json, -(1ll << 53), 1ll << 53, place, err);
}

/* ---- Tensors ----------------------------------------------------------------------------------
 */

static attnd_status read_real(const ora_json *json, void *place, attnd_err *err)
{
    return ora_json_real(json, place, err);
}

/* values as they are nested. The last list may be shorter than the widest: padded with 0. */
static attnd_status count_dims(const ora_json *json, const cJSON *at, uint32_t depth,
                               uint32_t n_dims, size_t dims[3], attnd_err *err)
{
    size_t n = (size_t)cJSON_GetArraySize(at);
    if (depth + 1 < n_dims && dims[depth] && dims[depth] != n)
        return ora_json_fail(json, err, "lists of one length");
    if (n > dims[depth])
        dims[depth] = n;
    for (const cJSON *item = at->child; item && depth + 1 < n_dims; item = item->next) {
        if (!cJSON_IsArray(item))
            return ora_json_fail(json, err, "lists of one depth");
        TRY(count_dims(json, item, depth + 1, n_dims, dims, err));
    }
    return ATTND_OK;
}

static attnd_status copy_values(const ora_json *json, const cJSON *at, uint32_t left,
                                const size_t *dims, double *out, attnd_err *err)
{
    size_t i = 0, step = 1;
    for (uint32_t d = 1; d < left; d++)
        step *= dims[d];
    for (const cJSON *item = at->child; item; item = item->next, i++) {
        ora_json element = ora_json_element(json, item, i);
        if (left > 1)
            TRY(copy_values(&element, item, left - 1, dims + 1, out + i * step, err));
        else
            TRY(ora_json_real(&element, &out[i], err));
    }
    return ATTND_OK;
}

static attnd_status read_values(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    const cJSON *inner = json->at;
    size_t dims[3] = {0};
    t->source = ORA_CASE_VALUES;
    for (t->n_dims = 0; cJSON_IsArray(inner) && inner->child; inner = inner->child)
        t->n_dims++;
    if (t->n_dims < 1 || t->n_dims > 3)
        return ora_json_fail(json, err, "numbers in lists, 1 to 3 deep");
    TRY(count_dims(json, json->at, 0, t->n_dims, dims, err));
    size_t n = 1;
    for (uint32_t d = 0; d < t->n_dims; d++)
        n *= dims[d];
    t->values = ora_arena_take(json->arena, n, sizeof *t->values);
    if (!t->values)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory for %zu numbers", json->path, n);
    TRY(copy_values(json, json->at, t->n_dims, dims, t->values, err));
    t->dims[0] = dims[0];
    t->dims[1] = t->n_dims == 3 ? dims[1] : 1;
    t->dims[2] = t->n_dims == 1 ? 1 : dims[t->n_dims - 1];
    return ATTND_OK;
}

/* One value for each element of the dimension `along`, the same over the others. */
static attnd_status read_along(const ora_json *json, uint32_t along, ora_case_tensor *t,
                               attnd_err *err)
{
    size_t n = 0;
    t->source = ORA_CASE_VALUES;
    t->n_dims = 3;
    TRY(ora_json_list(json, sizeof *t->values, read_real, (void **)&t->values, &n, err));
    for (uint32_t d = 0; d < 3; d++)
        t->dims[d] = d == along ? n : 1;
    return ATTND_OK;
}

static attnd_status read_rows(const ora_json *json, void *place, attnd_err *err)
{
    return read_along(json, 0, place, err);
}

static attnd_status read_heads(const ora_json *json, void *place, attnd_err *err)
{
    return read_along(json, 1, place, err);
}

static attnd_status read_fill(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    t->source = ORA_CASE_VALUES;
    t->n_dims = 3;
    t->dims[0] = t->dims[1] = t->dims[2] = 1;
    t->values = ora_arena_take(json->arena, 1, sizeof *t->values);
    if (!t->values)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", json->path);
    return ora_json_real(json, t->values, err);
}

static const ora_json_field POSITION_FIELDS[] = {
    REAL(ora_case_tensor, scale),
    REAL(ora_case_tensor, plus),
    END,
};

static attnd_status read_position(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    t->source = ORA_CASE_POSITION;
    return cJSON_IsTrue(json->at) ? ATTND_OK : ora_json_object(json, POSITION_FIELDS, t, err);
}

static attnd_status read_one_hot(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    t->source = ORA_CASE_ONE_HOT;
    return cJSON_IsTrue(json->at) ? ATTND_OK : ora_json_fail(json, err, "true");
}

static int sextet(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static attnd_status read_base64(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    const char *text = cJSON_GetStringValue(json->at);
    size_t n = text ? strlen(text) : 1;
    uint32_t bits = 0;
    t->source = ORA_CASE_BYTES;
    t->bytes = ora_arena_take(json->arena, n / 4 * 3 + 1, 1);
    if (!t->bytes)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", json->path);
    while (n > 0 && text && text[n - 1] == '=')
        n--;
    for (size_t i = 0; i < n; i++) {
        int value = text ? sextet(text[i]) : -1;
        if (value < 0 || n % 4 == 1)
            return ora_json_fail(json, err, "bytes in base64");
        bits = bits << 6 | (uint32_t)value;
        if (i % 4 != 0)
            t->bytes[t->n_bytes++] = (uint8_t)(bits >> (6 - 2 * (i % 4)));
    }
    return ATTND_OK;
}

static attnd_status read_hash(const ora_json *json, void *place, attnd_err *err)
{
    ((ora_case_tensor *)place)->has_hash = true;
    return cJSON_IsString(json->at) ? ATTND_OK : ora_json_fail(json, err, "a hash in hex");
}

static const ora_json_field PATCH_FIELDS[] = {
    COUNT(ora_case_patch, row),
    COUNT(ora_case_patch, n),
    REAL(ora_case_patch, fill),
    END,
};

static attnd_status read_patch(const ora_json *json, void *place, attnd_err *err)
{
    *(ora_case_patch *)place = (ora_case_patch){.n = 1};
    return ora_json_object(json, PATCH_FIELDS, place, err);
}

static attnd_status read_patches(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    return ora_json_list(json, sizeof *t->patches, read_patch, (void **)&t->patches, &t->n_patches,
                         err);
}

static attnd_status read_sizes(const ora_json *json, void *out, uint32_t *n, attnd_err *err)
{
    size_t count = 0;
    void *values;
    TRY(ora_json_list(json, sizeof(int64_t), read_i64, &values, &count, err));
    if (count > ORA_CASE_DIMS)
        return ora_json_fail(json, err, "at most 4 numbers");
    memcpy(out, values, count * sizeof(int64_t));
    *n = (uint32_t)count;
    return ATTND_OK;
}

static attnd_status read_shape(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    return read_sizes(json, t->shape, &t->n_shape, err);
}

static attnd_status read_strides(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    return read_sizes(json, t->strides, &t->n_strides, err);
}

static const ora_json_field TENSOR_FIELDS[] = {
    WORD(ora_case_tensor, dtype, DTYPES),
    NAME(ora_case_tensor, name),
    REAL(ora_case_tensor, amplitude),
    WIDE(ora_case_tensor, seed),
    COUNT(ora_case_tensor, first),
    READ(ora_case_tensor, take, read_ints),
    WHOLE("fill", read_fill),
    WHOLE("rows", read_rows),
    WHOLE("heads", read_heads),
    WHOLE("values", read_values),
    FLAG(ora_case_tensor, repeat),
    WHOLE("position", read_position),
    WHOLE("one_hot", read_one_hot),
    WHOLE("base64", read_base64),
    WHOLE("hash", read_hash),
    WHOLE("patch", read_patches),
    WHOLE("shape", read_shape),
    WHOLE("strides", read_strides),
    WIDE(ora_case_tensor, offset),
    WIDE(ora_case_tensor, region),
    REAL(ora_case_tensor, within),
    REAL(ora_case_tensor, relative),
    END,
};

static attnd_status check_sources(const ora_json *json, attnd_err *err)
{
    static const char *const SOURCES[] = {"fill",    "rows",   "heads", "values", "position",
                                          "one_hot", "base64", "hash",  NULL};
    const char *first = NULL;
    for (size_t i = 0; SOURCES[i]; i++) {
        if (!cJSON_GetObjectItemCaseSensitive(json->at, SOURCES[i]))
            continue;
        if (first)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s.%s: %s says what is in it already",
                              json->path, SOURCES[i], first);
        first = SOURCES[i];
    }
    return ATTND_OK;
}

#define THERE                                                                                      \
    ((ora_case_tensor){.given = true, .amplitude = 1, .scale = 1, .seed = ORA_CASE_NO_SEED})

/* An object; 1.5, "nan": all of it; [1, 2]: a value a row; "position", "one_hot"; true: generated;
 * false: not given. */
static attnd_status read_tensor(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    const char *text = cJSON_GetStringValue(json->at);
    *t = THERE;
    if (cJSON_IsArray(json->at))
        return read_rows(json, t, err);
    if (text && strcmp(text, "position") == 0)
        t->source = ORA_CASE_POSITION;
    else if (text && strcmp(text, "one_hot") == 0)
        t->source = ORA_CASE_ONE_HOT;
    else if (text || cJSON_IsNumber(json->at))
        return read_fill(json, t, err);
    else if (cJSON_IsBool(json->at))
        t->skip = !(t->given = cJSON_IsTrue(json->at));
    else {
        TRY(check_sources(json, err));
        return ora_json_object(json, TENSOR_FIELDS, t, err);
    }
    return ATTND_OK;
}

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
        return ora_json_list(json, sizeof *l->sinks, read_real, (void **)&l->sinks, &l->n_sinks,
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
    WORD(ora_case_group, kv_dtype, DTYPES),
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
    READ(ora_case_blocks, order, read_order), WIDE(ora_case_blocks, seed),
    COUNT(ora_case_blocks, tokens),           COUNT(ora_case_blocks, sequence),
    READ(ora_case_blocks, ids, read_ints),    END,
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
        return read_ints(json, &out->ids, err);
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
    COUNT(ora_case_batch, n_contexts),        READ(ora_case_batch, q_lens, read_ints),
    READ(ora_case_batch, kv_lens, read_ints), WHOLE("tables", read_tables),
    READ(ora_case_batch, slots, read_ints),   READ(ora_case_batch, positions, read_ints),
    WORD(ora_case_batch, mask, MASKS),        READ(ora_case_batch, starts, read_ints),
    READ(ora_case_batch, ends, read_ints),    READ(ora_case_batch, custom, read_ints),
    READ(ora_case_batch, parents, read_ints), END,
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
    READ(ora_case_update, q_lens, read_ints),
    READ(ora_case_update, kv_lens, read_ints),
    WHOLE("appended", read_appended),
    READ(ora_case_update, slots, read_ints),
    READ(ora_case_update, positions, read_ints),
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
    READ(ora_case_call, q, read_tensor),
    READ(ora_case_call, k, read_tensor),
    READ(ora_case_call, v, read_tensor),
    WORD(ora_case_call, keys, KEYS),
    READ(ora_case_call, out, read_tensor),
    READ(ora_case_call, lse, read_tensor),
    READ(ora_case_call, stats, read_tensor),
    FLAG(ora_case_call, fused),
    FLAG(ora_case_call, batch_invariant),
    END,
};

static const ora_json_field STEP_FIELDS[] = {
    NAME(ora_case_call, plan),
    WHOLE("update", read_call_update),
    {"first_layer", ORA_JSON_COUNT, offsetof(ora_case_call, layer), 0, NULL, NULL},
    COUNT(ora_case_call, n_layers),
    READ(ora_case_call, q, read_tensor),
    READ(ora_case_call, k, read_tensor),
    READ(ora_case_call, v, read_tensor),
    READ(ora_case_call, out, read_tensor),
    READ(ora_case_call, lse, read_tensor),
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
    *call = (ora_case_call){.n_layers = 1, .q = THERE, .out = THERE, .lse = THERE};
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
    WHOLE("layer", read_write_layer),      COUNT(ora_case_write, group),
    WHOLE("block_ids", read_write_blocks), COUNT(ora_case_write, first),
    COUNT(ora_case_write, kv_len),         READ(ora_case_write, k, read_tensor),
    READ(ora_case_write, v, read_tensor),  END,
};

static attnd_status read_write(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_WRITE;
    s->write.k = s->write.v = THERE;
    return ora_json_object(json, WRITE_FIELDS, &s->write, err);
}

static const ora_json_field PARTIAL_FIELDS[] = {
    NAME(ora_case_partial, step),
    FLAG(ora_case_partial, use_stats),
    READ(ora_case_partial, out, read_tensor),
    READ(ora_case_partial, lse, read_tensor),
    READ(ora_case_partial, stats, read_tensor),
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
    WHOLE("partials", read_partials),         COUNT(ora_case_merge, n_tokens),
    COUNT(ora_case_merge, n_heads),           COUNT(ora_case_merge, width),
    READ(ora_case_merge, out, read_tensor),   READ(ora_case_merge, lse, read_tensor),
    READ(ora_case_merge, stats, read_tensor), END,
};

static attnd_status read_merge(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_step *s = place;
    s->op = ORA_CASE_MERGE;
    s->merge.out = s->merge.lse = THERE;
    return ora_json_object(json, MERGE_FIELDS, &s->merge, err);
}

/* ---- Expectations -----------------------------------------------------------------------------
 */

static const ora_json_field SAME_FIELDS[] = {
    NAME(ora_case_same, step),
    READ(ora_case_same, rows, read_ints),
    READ(ora_case_same, of, read_ints),
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
    READ(ora_case_expect, out, read_tensor),
    READ(ora_case_expect, lse, read_tensor),
    READ(ora_case_expect, stats, read_tensor),
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
    WIDE(ora_case, seed),       WORD(ora_case, dtype, DTYPES),
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
