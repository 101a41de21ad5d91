/* case_json.c: JSON objects into structs by tables of their fields. */
#include "tests/oracle/case_json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Memory -----------------------------------------------------------------------------------
 */

/* A list of pieces, the newest first; each begins with the pointer to the next. */
struct ora_arena {
    void **newest;
};

ora_arena *ora_arena_make(void)
{
    return calloc(1, sizeof(ora_arena));
}

void *ora_arena_take(ora_arena *arena, size_t n, size_t bytes)
{
    enum { HEAD = 16 }; /* what follows stays aligned */
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total) || total > SIZE_MAX - HEAD)
        return NULL;
    void **piece = calloc(1, HEAD + total);
    if (!piece)
        return NULL;
    *piece = arena->newest;
    arena->newest = piece;
    return (char *)piece + HEAD;
}

void ora_arena_free(ora_arena *arena)
{
    if (!arena)
        return;
    for (void **piece = arena->newest, **next; piece; piece = next) {
        next = *piece;
        free(piece);
    }
    free(arena);
}

/* ---- Refusals ---------------------------------------------------------------------------------
 */

attnd_status ora_json_fail(const ora_json *json, attnd_err *err, const char *expected)
{
    char *text = cJSON_PrintUnformatted(json->at);
    attnd_fail(err, ATTND_BAD_CONFIG, "%s = %.60s%s: %s", json->path, text ? text : "?",
               text && strlen(text) > 60 ? "..." : "", expected);
    cJSON_free(text);
    return ATTND_INVALID_ARGUMENT;
}

/* Steps that make one name of the other: a letter more, less or other. */
static size_t distance(const char *a, const char *b)
{
    enum { MOST = 64 };
    size_t row[MOST + 1], n = strlen(b);
    if (n > MOST || strlen(a) > MOST)
        return MOST;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = corner + (a[i - 1] != b[j - 1]);
            size_t least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            corner = row[j];
            row[j] = change < least ? change : least;
        }
    }
    return row[n];
}

static const ora_json_field *find(const ora_json_field *fields, const char *name,
                                  const char **nearest)
{
    size_t least = SIZE_MAX;
    for (; fields->name; fields++) {
        size_t d = distance(name, fields->name);
        if (d == 0)
            return fields;
        if (d < least) {
            least = d;
            *nearest = fields->name;
        }
    }
    return NULL;
}

/* ---- Values -----------------------------------------------------------------------------------
 */

ora_json ora_json_member(const ora_json *json, const char *name)
{
    ora_json out = {.at = cJSON_GetObjectItemCaseSensitive(json->at, name), .arena = json->arena};
    snprintf(out.path, sizeof out.path, "%.120s%s%.32s", json->path, *json->path ? "." : "", name);
    return out;
}

ora_json ora_json_element(const ora_json *json, const cJSON *item, size_t i)
{
    ora_json out = {.at = item, .arena = json->arena};
    snprintf(out.path, sizeof out.path, "%.140s[%zu]", json->path, i);
    return out;
}

attnd_status ora_json_real(const ora_json *json, double *out, attnd_err *err)
{
    const char *text = cJSON_GetStringValue(json->at);
    if (cJSON_IsNumber(json->at))
        *out = json->at->valuedouble;
    else if (text && strcmp(text, "nan") == 0)
        *out = NAN;
    else if (text && strcmp(text, "inf") == 0)
        *out = INFINITY;
    else if (text && strcmp(text, "-inf") == 0)
        *out = -INFINITY;
    else
        return ora_json_fail(json, err, "a number, \"nan\", \"inf\" or \"-inf\"");
    return ATTND_OK;
}

attnd_status ora_json_int(const ora_json *json, int64_t lo, int64_t hi, int64_t *out,
                          attnd_err *err)
{
    double number = json->at->valuedouble;
    if (!cJSON_IsNumber(json->at) || !(number >= (double)lo && number <= (double)hi) ||
        number != floor(number)) {
        char expected[80];
        snprintf(expected, sizeof expected, "a whole number, %lld..%lld", (long long)lo,
                 (long long)hi);
        return ora_json_fail(json, err, expected);
    }
    *out = (int64_t)number;
    return ATTND_OK;
}

static attnd_status read_wide(const ora_json *json, uint64_t *out, attnd_err *err)
{
    const char *text = cJSON_GetStringValue(json->at);
    if (!text) {
        int64_t number = 0;
        TRY(ora_json_int(json, 0, 1ll << 53, &number, err));
        *out = (uint64_t)number;
        return ATTND_OK;
    }
    size_t n = strspn(text, "0123456789");
    if (n == 0 || n > 19 || text[n])
        return ora_json_fail(json, err, "a whole number, or text of its digits");
    *out = strtoull(text, NULL, 10);
    return ATTND_OK;
}

static attnd_status read_word(const ora_json *json, const char *const *words, uint32_t *out,
                              attnd_err *err)
{
    const char *text = cJSON_GetStringValue(json->at);
    char expected[200] = "";
    size_t n = 0;
    for (uint32_t i = 0; words[i]; i++) {
        if (!*words[i])
            continue;
        if (text && strcmp(words[i], text) == 0) {
            *out = i;
            return ATTND_OK;
        }
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%s", n ? " | " : "", words[i]);
    }
    return ora_json_fail(json, err, expected);
}

static attnd_status read_name(const ora_json *json, size_t width, char *out, attnd_err *err)
{
    const char *text = cJSON_GetStringValue(json->at);
    char expected[60];
    snprintf(expected, sizeof expected, "text of at most %zu bytes", width - 1);
    if (!text || strlen(text) >= width)
        return ora_json_fail(json, err, expected);
    memcpy(out, text, strlen(text) + 1);
    return ATTND_OK;
}

static attnd_status read_field(const ora_json *json, const ora_json_field *f, void *place,
                               attnd_err *err)
{
    int64_t number = 0;
    switch (f->type) {
    case ORA_JSON_COUNT:
        TRY(ora_json_int(json, 0, UINT32_MAX, &number, err));
        *(uint32_t *)place = (uint32_t)number;
        return ATTND_OK;
    case ORA_JSON_WIDE:
        return read_wide(json, place, err);
    case ORA_JSON_REAL:
        return ora_json_real(json, place, err);
    case ORA_JSON_FLAG:
        if (!cJSON_IsBool(json->at))
            return ora_json_fail(json, err, "true or false");
        *(bool *)place = cJSON_IsTrue(json->at);
        return ATTND_OK;
    case ORA_JSON_NAME:
        return read_name(json, f->width, place, err);
    case ORA_JSON_WORD:
        return read_word(json, f->words, place, err);
    case ORA_JSON_READ:
        return f->read(json, place, err);
    case ORA_JSON_NOTE:
        return ATTND_OK;
    }
    return ATTND_OK;
}

/* ---- Objects and lists ------------------------------------------------------------------------
 */

attnd_status ora_json_object(const ora_json *json, const ora_json_field *fields, void *out,
                             attnd_err *err)
{
    if (!cJSON_IsObject(json->at))
        return ora_json_fail(json, err, "an object, {...}");
    for (const cJSON *item = json->at->child; item; item = item->next) {
        const char *nearest = "";
        ora_json member = ora_json_member(json, item->string);
        if (member.at != item)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s: given twice", member.path);
        const ora_json_field *f = find(fields, item->string, &nearest);
        if (!f)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%s: no such field, nearest is %s",
                              member.path, nearest);
        TRY(read_field(&member, f, (char *)out + f->offset, err));
    }
    return ATTND_OK;
}

attnd_status ora_json_list(const ora_json *json, size_t bytes,
                           attnd_status (*read)(const ora_json *json, void *place, attnd_err *err),
                           void **out, size_t *n, attnd_err *err)
{
    if (!cJSON_IsArray(json->at))
        return ora_json_fail(json, err, "a list, [...]");
    size_t count = (size_t)cJSON_GetArraySize(json->at), i = 0;
    *out = ora_arena_take(json->arena, count + 1, bytes);
    *n = count;
    if (!*out)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory", json->path);
    for (const cJSON *item = json->at->child; item; item = item->next, i++) {
        ora_json element = ora_json_element(json, item, i);
        TRY(read(&element, (char *)*out + i * bytes, err));
    }
    return ATTND_OK;
}
