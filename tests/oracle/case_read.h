/* case_read.h: a variant's JSON tree into the structs of case.h. Private to the oracle. */
#ifndef ATTND_TESTS_ORACLE_CASE_READ_H
#define ATTND_TESTS_ORACLE_CASE_READ_H

#include "tests/oracle/case_json.h"

/* The caller calls ora_case_fini(); *out is empty after a refusal. */
attnd_status ora_case_read_json(const cJSON *json, ora_case *out, attnd_err *err);

/* ---- Parts of it, for tables of fields: case_read_tensor.c ---- */

attnd_status ora_read_ints(const ora_json *json, void *place, attnd_err *err); /* ora_case_ints */
attnd_status ora_read_real(const ora_json *json, void *place, attnd_err *err); /* double */
attnd_status ora_read_tensor(const ora_json *json, void *place,
                             attnd_err *err); /* ora_case_tensor */

extern const char *const ORA_READ_DTYPES[];

/* A tensor that is there and of which nothing is said. */
#define ORA_READ_THERE                                                                             \
    ((ora_case_tensor){.given = true, .amplitude = 1, .scale = 1, .seed = ORA_CASE_NO_SEED})

/* Rows of tables of fields. */
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

#endif
