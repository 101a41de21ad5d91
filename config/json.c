/* json.c: the text of a file as a JSON tree, and what cJSON alone would let pass. */
#include "config/json.h"

#include <ctype.h>
#include <errno.h>
#include <string.h>

/* Where the text stops being JSON. cJSON points one byte too far when a name was wanted: behind an
 * opening brace or a comma. */
static size_t error_offset(const cfg_source *source, const char *end)
{
    size_t offset = end ? (size_t)(end - source->text) : 0;
    if (offset < 2 || isspace((unsigned char)source->text[offset - 1]))
        return offset;
    size_t before = offset - 2;
    while (before > 0 && isspace((unsigned char)source->text[before]))
        before--;
    return source->text[before] == '{' || source->text[before] == ',' ? offset - 1 : offset;
}

/* cJSON takes text behind the value unless it is asked to look for the end. */
attnd_status cfg_json_parse(const cfg_source *source, cJSON **out, attnd_err *err)
{
    const char *end = NULL;
    errno = 0;
    *out = cJSON_ParseWithLengthOpts(source->text, source->n + 1, &end, true);
    if (*out)
        return ATTND_OK;
    if (errno == ENOMEM)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory to parse it", source->path);
    size_t offset = error_offset(source, end);
    if (offset >= source->n)
        return cfg_source_fail(source, source->n, err, "the file ends: JSON that is closed");
    size_t line = strcspn(source->text + offset, "\r\n");
    return cfg_source_fail(source, offset, err, "%.*s: JSON, with // and /* */ comments",
                           line < 20 ? (int)line : 20, source->text + offset);
}

static const cJSON *twin_before(const cJSON *object, const cJSON *member, size_t *n)
{
    *n = 0;
    for (const cJSON *other = object->child; other != member; other = other->next, ++*n)
        if (strcmp(other->string, member->string) == 0)
            return other;
    return NULL;
}

attnd_status cfg_json_once(const cfg_source *source, const cJSON *object, size_t open,
                           const cJSON *member, cfg_member place, attnd_err *err)
{
    size_t n, line, column;
    if (!twin_before(object, member, &n))
        return ATTND_OK;
    cfg_source_place(source, cfg_source_member(source, open, n).name, &line, &column);
    return cfg_source_fail(source, place.name, err, "%.80s: line %zu has it already",
                           member->string, line);
}
