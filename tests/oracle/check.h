/* check.h: what is no problem (attention.md §24). Private to the oracle. */
#ifndef ATTND_TESTS_ORACLE_CHECK_H
#define ATTND_TESTS_ORACLE_CHECK_H

#include "tests/oracle/batch.h"

/* What can be said before the batch is laid out, and what only then. */
attnd_status ora_check(const ora_problem *problem, attnd_err *err);
attnd_status ora_check_batch(const ora_batch *batch, const ora_problem *problem, attnd_err *err);

/* Of masks (mask.c), rotation (rope.c) and lists (sparse.c): BAD_MASK, BAD_ROPE, BAD_COMBINATION,
 * BAD_GEOMETRY. */
attnd_status ora_mask_check(const ora_batch *batch, const ora_problem *problem, attnd_err *err);
attnd_status ora_rope_check(const ora_batch *batch, const ora_problem *problem, attnd_err *err);
attnd_status ora_sparse_check(const ora_problem *problem, attnd_err *err);

#endif
