/* case_file.c: the text of a case file, and the variants it stands for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/case_read.h"

enum { MAX_VARIANTS = 4096 };

struct ora_case_file {
    cJSON *json;
    const cJSON *axes; /* object of lists; NULL: none */
    size_t n_variants;
};

static attnd_status count_variants(ora_case_file *file, attnd_err *err)
{
    file->n_variants = 1;
    file->axes = cJSON_GetObjectItemCaseSensitive(file->json, "variants");
    if (file->axes && !cJSON_IsObject(file->axes))
        return attnd_fail(err, ATTND_BAD_CONFIG,
                          "variants: an object, {\"block_size\": [1, 16], ...}");
    for (const cJSON *axis = file->axes ? file->axes->child : NULL; axis; axis = axis->next) {
        size_t n = cJSON_IsArray(axis) ? (size_t)cJSON_GetArraySize(axis) : 0;
        if (n == 0 || n > MAX_VARIANTS)
            return attnd_fail(err, ATTND_BAD_CONFIG, "variants.%.60s: a list of values",
                              axis->string);
        file->n_variants *= n;
        if (file->n_variants > MAX_VARIANTS)
            return attnd_fail(err, ATTND_BAD_CONFIG, "variants: more than %d of them",
                              MAX_VARIANTS);
    }
    return ATTND_OK;
}

/* "line 3" of where the text stops being JSON. */
static attnd_status refuse_text(const char *text, const char *end, attnd_err *err)
{
    size_t line = 1;
    for (const char *at = text; end && at < end; at++)
        line += *at == '\n';
    return attnd_fail(err, ATTND_BAD_CONFIG, "line %zu: no JSON from here on", line);
}

attnd_status ora_case_file_open(ora_case_file **out, const char *text, attnd_err *err)
{
    const char *end = NULL;
    ora_case_file *file = calloc(1, sizeof *file);
    attnd_status status = ATTND_OK;
    *out = NULL;
    if (!file)
        return attnd_fail(err, ATTND_NO_ROOM, "case: no memory");
    file->json = cJSON_ParseWithOpts(text, &end, true);
    if (!file->json)
        status = refuse_text(text, end, err);
    else if (!cJSON_IsObject(file->json))
        status = attnd_fail(err, ATTND_BAD_CONFIG, "case: an object, {...}");
    else
        status = count_variants(file, err);
    if (status != ATTND_OK) {
        ora_case_file_close(file);
        return status;
    }
    *out = file;
    return ATTND_OK;
}

void ora_case_file_close(ora_case_file *file)
{
    if (!file)
        return;
    cJSON_Delete(file->json);
    free(file);
}

size_t ora_case_n_variants(const ora_case_file *file)
{
    return file->n_variants;
}

bool ora_case_has_axis(const ora_case_file *file, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(file->axes, name) != NULL;
}

/* The value of an axis in variant i; the last axis changes fastest. *i is divided by it. */
static const cJSON *value_of(const ora_case_file *file, const cJSON *axis, size_t i)
{
    size_t below = 1;
    for (const cJSON *next = axis->next; next; next = next->next)
        below *= (size_t)cJSON_GetArraySize(next);
    return cJSON_GetArrayItem(axis, (int)(i / below % (size_t)cJSON_GetArraySize(axis)));
}

void ora_case_variant_name(const ora_case_file *file, size_t i, const char *but, char *name,
                           size_t bytes)
{
    size_t n = 0;
    *name = '\0';
    for (const cJSON *axis = file->axes ? file->axes->child : NULL; axis; axis = axis->next) {
        if (but && strcmp(but, axis->string) == 0)
            continue;
        const cJSON *value = value_of(file, axis, i);
        /* Of several members the first names the value. */
        const cJSON *shown = cJSON_IsObject(value) && value->child ? value->child : value;
        char *text =
            cJSON_IsString(shown) ? strdup(shown->valuestring) : cJSON_PrintUnformatted(shown);
        int added =
            snprintf(name + n, bytes - n, "%s%s=%s", n ? " " : "", axis->string, text ? text : "?");
        free(text);
        n += (size_t)added;
        if (n >= bytes)
            return;
    }
}

/* What "$name" stands for in variant i, or NULL. */
static const cJSON *find_variable(const ora_case_file *file, size_t i, const char *name)
{
    for (const cJSON *axis = file->axes ? file->axes->child : NULL; axis; axis = axis->next) {
        const cJSON *value = value_of(file, axis, i);
        if (cJSON_IsObject(value)) {
            const cJSON *member = cJSON_GetObjectItemCaseSensitive(value, name);
            if (member)
                return member;
        } else if (strcmp(axis->string, name) == 0) {
            return value;
        }
    }
    return NULL;
}

/* Puts what it stands for in the place of every text that begins with $. */
static attnd_status substitute(const ora_case_file *file, size_t i, cJSON *parent, attnd_err *err)
{
    for (cJSON *item = parent->child, *next; item; item = next) {
        next = item->next;
        const char *text = cJSON_GetStringValue(item);
        if (!text || text[0] != '$') {
            TRY(substitute(file, i, item, err));
            continue;
        }
        const cJSON *value = find_variable(file, i, text + 1);
        cJSON *copy = value ? cJSON_Duplicate(value, true) : NULL;
        if (!value)
            return attnd_fail(err, ATTND_BAD_CONFIG, "%.60s: no axis of variants has that name",
                              text);
        if (!copy)
            return attnd_fail(err, ATTND_NO_ROOM, "case: no memory");
        if (item->string) {
            cJSON_free(copy->string); /* a member's own name, which is not this one's */
            copy->string = strdup(item->string);
        }
        cJSON_ReplaceItemViaPointer(parent, item, copy);
    }
    return ATTND_OK;
}

attnd_status ora_case_read(const ora_case_file *file, size_t i, ora_case *out, attnd_err *err)
{
    *out = (ora_case){0};
    cJSON *json = cJSON_Duplicate(file->json, true);
    if (!json)
        return attnd_fail(err, ATTND_NO_ROOM, "case: no memory");
    cJSON_DeleteItemFromObjectCaseSensitive(json, "variants");
    attnd_status status = substitute(file, i, json, err);
    if (status == ATTND_OK)
        status = ora_case_read_json(json, out, err);
    cJSON_Delete(json);
    return status;
}
