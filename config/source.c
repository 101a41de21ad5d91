/* source.c: the text of a config file: comments taken out, and where things stand. */
#include "config/source.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BYTES = 1 << 20 };

static attnd_status read_all(cfg_source *s, FILE *file, attnd_err *err)
{
    s->text = malloc(MAX_BYTES + 1);
    if (!s->text)
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory to read it", s->path);
    s->n = fread(s->text, 1, MAX_BYTES + 1, file);
    if (ferror(file))
        return attnd_fail(err, ATTND_BAD_CONFIG, "%s: %s", s->path, strerror(errno));
    if (s->n > MAX_BYTES)
        return attnd_fail(err, ATTND_BAD_CONFIG, "%s: more than %d bytes", s->path, MAX_BYTES);
    s->text[s->n] = '\0';
    return ATTND_OK;
}

/* Offset behind the string whose quote is at i; s->n when it does not end. */
static size_t behind_string(const cfg_source *s, size_t i)
{
    for (i++; i < s->n && s->text[i] != '"'; i++)
        if (s->text[i] == '\\')
            i++;
    return i < s->n ? i + 1 : s->n;
}

static bool starts(const cfg_source *s, size_t i, const char *with)
{
    return strncmp(s->text + i, with, strlen(with)) == 0;
}

/* Blanks the comment at i but for its line ends; returns the offset behind it. */
static size_t blank(cfg_source *s, size_t i, size_t end)
{
    for (; i < end; i++)
        if (s->text[i] != '\n' && s->text[i] != '\r')
            s->text[i] = ' ';
    return end;
}

/* A parser would end such a string early and say nothing. */
static attnd_status check_string(const cfg_source *s, size_t begin, size_t end, attnd_err *err)
{
    for (size_t i = begin; i < end; i++) {
        if (s->text[i] != '\\')
            continue;
        if (starts(s, i, "\\u0000"))
            return cfg_source_fail(s, i, err, "\\u0000: text without NUL");
        i++;
    }
    return ATTND_OK;
}

static attnd_status blank_comments(cfg_source *s, attnd_err *err)
{
    for (size_t i = 0; i < s->n;) {
        if (s->text[i] == '"') {
            size_t end = behind_string(s, i);
            TRY(check_string(s, i, end, err));
            i = end;
        } else if (starts(s, i, "//")) {
            i = blank(s, i, i + strcspn(s->text + i, "\n"));
        } else if (starts(s, i, "/*")) {
            const char *end = strstr(s->text + i + 2, "*/");
            if (!end)
                return cfg_source_fail(s, i, err, "/*: a comment ends with */");
            i = blank(s, i, (size_t)(end + 2 - s->text));
        } else {
            i++;
        }
    }
    return ATTND_OK;
}

attnd_status cfg_source_init(cfg_source *out, const char *path, attnd_err *err)
{
    *out = (cfg_source){.path = path};
    FILE *file = fopen(path, "rb");
    if (!file)
        return attnd_fail(err, ATTND_BAD_CONFIG, "%s: %s", path, strerror(errno));
    attnd_status status = read_all(out, file, err);
    fclose(file);
    if (status != ATTND_OK)
        return status;
    size_t nul = strlen(out->text);
    if (nul < out->n)
        return cfg_source_fail(out, nul, err, "NUL byte: a text file");
    return blank_comments(out, err);
}

void cfg_source_fini(cfg_source *source)
{
    free(source->text);
    *source = (cfg_source){0};
}

void cfg_source_place(const cfg_source *source, size_t offset, size_t *line, size_t *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < offset; i++) {
        ++*column;
        if (source->text[i] == '\n') {
            ++*line;
            *column = 1;
        }
    }
}

attnd_status cfg_source_fail(const cfg_source *source, size_t offset, attnd_err *err,
                             const char *fmt, ...)
{
    char text[ATTND_ERR_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t line, column;
    cfg_source_place(source, offset, &line, &column);
    return attnd_fail(err, ATTND_BAD_CONFIG, "%s:%zu:%zu: %s", source->path, line, column, text);
}

/* Space as cJSON takes it: every byte up to ' '. */
static bool is_space(char c)
{
    return c > 0 && c <= ' ';
}

static size_t behind_space(const cfg_source *s, size_t i)
{
    while (is_space(s->text[i]))
        i++;
    return i;
}

size_t cfg_source_begin(const cfg_source *source)
{
    return behind_space(source, starts(source, 0, "\xEF\xBB\xBF") ? 3 : 0);
}

/* Offset of the comma, brace or bracket that ends the value at i. */
static size_t behind_value(const cfg_source *s, size_t i)
{
    for (size_t depth = 0; i < s->n; i++) {
        while (s->text[i] == '"')
            i = behind_string(s, i);
        char c = s->text[i];
        if (depth == 0 && (c == ',' || c == '}' || c == ']'))
            return i;
        if (c == '{' || c == '[')
            depth++;
        if (c == '}' || c == ']')
            depth--;
    }
    return i;
}

cfg_member cfg_source_member(const cfg_source *source, size_t open, size_t n)
{
    cfg_member member = {.end = open};
    for (size_t i = 0; i <= n; i++) {
        member.name = behind_space(source, member.end + 1);
        /* Behind the name and its colon. */
        member.value = behind_space(source, behind_string(source, member.name));
        member.value = behind_space(source, member.value + 1);
        member.end = behind_value(source, member.value);
    }
    while (is_space(source->text[member.end - 1]))
        member.end--;
    return member;
}

size_t cfg_source_element(const cfg_source *source, size_t open, size_t n)
{
    size_t value = behind_space(source, open + 1);
    for (size_t i = 0; i < n; i++)
        value = behind_space(source, behind_value(source, value) + 1);
    return value;
}
