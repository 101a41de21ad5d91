/* case_read.h: a variant's JSON tree into the structs of case.h. Private to the oracle. */
#ifndef ATTND_TESTS_ORACLE_CASE_READ_H
#define ATTND_TESTS_ORACLE_CASE_READ_H

#include "tests/oracle/case_json.h"

/* The caller calls ora_case_fini(); *out is empty after a refusal. */
attnd_status ora_case_read_json(const cJSON *json, ora_case *out, attnd_err *err);

#endif
