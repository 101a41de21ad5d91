/* query.h: the rows of q that the evaluator uses (attention.md §5, §11.4). Private to the oracle.
 */
#ifndef ATTND_TESTS_ORACLE_QUERY_H
#define ATTND_TESTS_ORACLE_QUERY_H

#include "tests/oracle/batch.h"

/* BAD_GEOMETRY, BAD_QUANT: can the q of a problem be read and quantised? */
attnd_status ora_q_check(const ora_problem *problem, attnd_err *err);

/* Row i of sequence b: q[n_heads][head_dim], dequantised, rotated and, where the problem says so,
 * through E4M3. cos_sin has room for head_dim numbers. */
void ora_q_load(const ora_batch *batch, const ora_problem *problem, uint32_t b, int32_t i,
                float *cos_sin, double *q);

#endif
