/* case_judge.h: what a call wrote against the evaluator and against a case's own numbers. Private
 * to the oracle.
 */
#ifndef ATTND_TESTS_ORACLE_CASE_JUDGE_H
#define ATTND_TESTS_ORACLE_CASE_JUDGE_H

#include "tests/oracle/case_run.h"
#include "tests/oracle/oracle.h"

/* One layer of a call. */
typedef struct ora_judged {
    const ora_case_expect *expect;
    const ora_bytes *out, *lse, *stats; /* what was written; given: it is compared */
    uint32_t layer;                     /* of the call: 0 .. n_layers-1 */
    const ora_result *want;             /* NULL: the case's numbers alone decide */
    near_path path;
    double widen; /* of the gates */
    bool sinks;
    near_backend backend;
    ora_arena *arena;
    double *worst_out, *worst_lse; /* raised */
} ora_judged;

/* Refuses BROKEN with where and by how much it is off, and BAD_CONFIG when a case's numbers are not
 * the evaluator's. */
attnd_status ora_judge(const ora_judged *j, attnd_err *err);

/* The result as a backend would have written it. */
void ora_judge_write(const ora_result *result, uint32_t layer, ora_bytes *out, ora_bytes *lse,
                     ora_bytes *stats);

/* Merged parts as a result, which the caller frees. Refuses NO_ROOM. */
attnd_status ora_judge_merge(const ora_merge_call *call, ora_result *out, attnd_err *err);

/* Rows of a call against rows of another, bit for bit or within a distance. */
attnd_status ora_judge_same(const ora_case_same *same, const ora_bytes *got, const ora_bytes *of,
                            const char *what, attnd_err *err);

#endif
