/* case_read_tensor.c: integers and tensors of a case. */
#include <string.h>

#include "tests/oracle/case_read.h"

const char *const ORA_READ_DTYPES[] = {
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
attnd_status ora_read_ints(const ora_json *json, void *place, attnd_err *err)
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

attnd_status ora_read_real(const ora_json *json, void *place, attnd_err *err)
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
    TRY(ora_json_list(json, sizeof *t->values, ora_read_real, (void **)&t->values, &n, err));
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
    WORD(ora_case_tensor, dtype, ORA_READ_DTYPES),
    NAME(ora_case_tensor, name),
    REAL(ora_case_tensor, amplitude),
    WIDE(ora_case_tensor, seed),
    COUNT(ora_case_tensor, first),
    READ(ora_case_tensor, take, ora_read_ints),
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

/* An object; 1.5, "nan": all of it; [1, 2]: a value a row; "position", "one_hot"; true: generated;
 * false: not given. */
attnd_status ora_read_tensor(const ora_json *json, void *place, attnd_err *err)
{
    ora_case_tensor *t = place;
    const char *text = cJSON_GetStringValue(json->at);
    *t = ORA_READ_THERE;
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
