/* case_json.h: JSON objects into structs by tables of their fields. Private to the oracle.
 *
 * Every refusal is BAD_CONFIG and names the path: "steps[0].attend.layer = -1: a whole number,
 * 0..4294967295".
 */
#ifndef ATTND_TESTS_ORACLE_CASE_JSON_H
#define ATTND_TESTS_ORACLE_CASE_JSON_H

#include <cjson/cJSON.h>

#include "tests/oracle/case.h"

enum { ORA_JSON_PATH = 160 };

/* Memory that lives until the arena is freed, zeroed; NULL: there is none. */
ora_arena *ora_arena_make(void);
void *ora_arena_take(ora_arena *arena, size_t n, size_t bytes);
void ora_arena_free(ora_arena *arena); /* accepts NULL */

/* A value and where it stands. */
typedef struct ora_json {
    const cJSON *at;
    ora_arena *arena;
    char path[ORA_JSON_PATH];
} ora_json;

typedef enum ora_json_type {
    ORA_JSON_COUNT, /* uint32_t */
    ORA_JSON_WIDE,  /* uint64_t; text of digits too */
    ORA_JSON_REAL,  /* double; "nan", "inf", "-inf" too */
    ORA_JSON_FLAG,  /* bool */
    ORA_JSON_NAME,  /* char[width] */
    ORA_JSON_WORD,  /* uint32_t, the number of one of words */
    ORA_JSON_READ,  /* read says */
    ORA_JSON_NOTE,  /* for people: anything */
} ora_json_type;

typedef struct ora_json_field {
    const char *name;
    ora_json_type type;
    size_t offset;
    size_t width;             /* of a name */
    const char *const *words; /* NULL ends them; "" is a number nobody may write */
    attnd_status (*read)(const ora_json *json, void *place, attnd_err *err);
} ora_json_field;

/* Every member of an object into out by the field of its name; a NULL name ends the table. */
attnd_status ora_json_object(const ora_json *json, const ora_json_field *fields, void *out,
                             attnd_err *err);

/* Puts "path = value: expected" into err. */
attnd_status ora_json_fail(const ora_json *json, attnd_err *err, const char *expected);

/* A member, or an element, and its path; at is NULL when there is none. */
ora_json ora_json_member(const ora_json *json, const char *name);
ora_json ora_json_element(const ora_json *json, const cJSON *item, size_t i);

attnd_status ora_json_real(const ora_json *json, double *out, attnd_err *err);
attnd_status ora_json_int(const ora_json *json, int64_t lo, int64_t hi, int64_t *out,
                          attnd_err *err);

/* A list of `bytes` each by read, into *out of *n, which the arena keeps. */
attnd_status ora_json_list(const ora_json *json, size_t bytes,
                           attnd_status (*read)(const ora_json *json, void *place, attnd_err *err),
                           void **out, size_t *n, attnd_err *err);

#endif
