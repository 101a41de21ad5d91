/* source.h: the text of a config file: comments taken out, and where things stand. Private to
 * config/.
 *
 * Comments become spaces, so that every offset stays what it was in the file. What a parser found
 * to be JSON is walked here once more only to say where a member stands.
 */
#ifndef ATTND_CONFIG_SOURCE_H
#define ATTND_CONFIG_SOURCE_H

#include "config/config.h"

typedef struct cfg_source {
    const char *path;
    char *text; /* text[n] is 0 */
    size_t n;
} cfg_source;

/* Where one member of an object stands: offsets of its name and of the value's first byte and of
 * the byte behind it. */
typedef struct cfg_member {
    size_t name, value, end;
} cfg_member;

/* Reads the file and blanks its comments. Refuses BAD_CONFIG (cannot be read, too large, a NUL
 * byte, \u0000, a comment without end) and NO_ROOM. The caller calls cfg_source_fini(), after a
 * refusal too. */
attnd_status cfg_source_init(cfg_source *out, const char *path, attnd_err *err);
void cfg_source_fini(cfg_source *source);

/* Refuses with "path:line:column: " before the text. */
attnd_status cfg_source_fail(const cfg_source *source, size_t offset, attnd_err *err,
                             const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* Line and column, from 1; columns are bytes. */
void cfg_source_place(const cfg_source *source, size_t offset, size_t *line, size_t *column);

/* Offset of the first byte that is no space, behind a byte order mark. */
size_t cfg_source_begin(const cfg_source *source);

/* Member n (there is one) of the object whose brace is at `open`, in a text that is JSON. */
cfg_member cfg_source_member(const cfg_source *source, size_t open, size_t n);

/* Where element n (there is one) of the array whose bracket is at `open` begins. */
size_t cfg_source_element(const cfg_source *source, size_t open, size_t n);

#endif
