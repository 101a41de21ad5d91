/* batch.h: where the rows, keys and slots of a problem lie: what append and attend share. Private
 * to the oracle.
 */
#ifndef ATTND_TESTS_ORACLE_BATCH_H
#define ATTND_TESTS_ORACLE_BATCH_H

#include <stdbool.h>

#include "tests/oracle/oracle.h"

/* The arrays of a problem that may be NULL, filled in. */
typedef struct ora_batch {
    int64_t n_tokens; /* one behind the last row of any sequence */
    int64_t *q_first, *kv_first, *block_first, *custom_first, *tree_first; /* [n_seqs] */
    int64_t *memory;
} ora_batch;

/* Refuses what is no problem (check.h), then lays out. The caller calls ora_batch_fini(), after a
 * refusal too. */
attnd_status ora_batch_init(ora_batch *batch, const ora_problem *problem, attnd_err *err);
void ora_batch_fini(ora_batch *batch);

/* §5.5: the rotary position of row i of sequence b; of three (§5.4) that of section 0, 1 or 2. */
int64_t ora_batch_position(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                           int32_t i, uint32_t section);

/* a(b,i), and the index of key j: what masks and biases see. Over ranks both are global (§18.3). */
int64_t ora_batch_row_index(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                            int32_t i);
int64_t ora_batch_key_index(const ora_problem *problem, int64_t j);

/* §3.2: block·T + row of key j of sequence b through its table; without tables the row of the given
 * key. Refuses BAD_BLOCK. */
attnd_status ora_batch_slot(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                            int64_t j, int64_t *slot, attnd_err *err);

/* Is row i of sequence b in a tree; §13.2: the depth of its node, or i in a chain. */
bool ora_batch_has_tree(const ora_problem *problem, uint32_t b);
int64_t ora_batch_offset(const ora_batch *batch, const ora_problem *problem, uint32_t b, int32_t i);

/* §6: does row i of sequence b see key j, 0 ≤ j < kv_len? */
bool ora_batch_sees(const ora_batch *batch, const ora_problem *problem, uint32_t b, int32_t i,
                    int64_t j);

/* cos and sin that turn row i of sequence b, its q and its new k: [dim/2][2]. */
void ora_rope_row(const ora_batch *batch, const ora_problem *problem, uint32_t b, int32_t i,
                  float *cos_sin);

/* Rotates x by a table and rounds its rotated channels to dtype. */
void ora_rope_apply(const ora_rope *rope, const float *cos_sin, attnd_dtype dtype, double *x);

/* Room for the rows of a batch; no sequence has any yet (n_visible -1). Refuses NO_ROOM. */
attnd_status ora_result_make(ora_result *result, const ora_problem *problem, int64_t n_tokens,
                             attnd_err *err);

#endif
