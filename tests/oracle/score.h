/* score.h: s_j of attention.md §1. Private to the oracle. */
#ifndef ATTND_TESTS_ORACLE_SCORE_H
#define ATTND_TESTS_ORACLE_SCORE_H

#include "tests/oracle/items.h"
#include "tests/oracle/sage.h"

/* Scores of a list of row i of sequence b for the query heads of kv head g: scores[hh·stride + n]
 * of head g·group + hh and item n. q is [n_heads][D], k room for [D]; sage has seen q. Refuses
 * BAD_LENGTH: a row or a visible key beyond a dense relative bias (§7.3). */
attnd_status ora_scores(const ora_batch *batch, const ora_problem *problem, uint32_t b, int32_t i,
                        uint32_t g, const ora_items *items, const ora_sage_scales *sage,
                        const double *q, double *k, double *scores, int64_t stride, attnd_err *err);

#endif
