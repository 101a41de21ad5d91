/* kv.h: how a row of a pool is coded (attention.md §14), and which pool holds a key (§17). Private
 * to the oracle.
 *
 * A slot is block·T + row; of given keys (block_size 0) the row itself. Plane 0 is K and 1 is V.
 * When both planes are one (plane[0] == plane[1]: latent rows), a value is the first Dv channels of
 * the key's row: its codes, scales and factors.
 */
#ifndef ATTND_TESTS_ORACLE_KV_H
#define ATTND_TESTS_ORACLE_KV_H

#include "tests/oracle/batch.h"

/* Do the pools of a problem and its factors fit their formats? Refuses BAD_GEOMETRY, BAD_QUANT. */
attnd_status ora_kv_check(const ora_problem *problem, attnd_err *err);

/* Where a key lies. */
typedef struct ora_place {
    const ora_kv *kv; /* problem.kv or problem.high */
    int64_t slot;
} ora_place;

/* Key j of sequence b: in the high pool if its page is held there, else in the normal one. Refuses
 * BAD_BLOCK. */
attnd_status ora_kv_find(const ora_batch *batch, const ora_problem *problem, uint32_t b, int64_t j,
                         ora_place *place, attnd_err *err);

/* The slot of key j in the high pool; -1: its page is not held there. Refuses BAD_BLOCK. */
attnd_status ora_kv_find_high(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                              int64_t j, int64_t *slot, attnd_err *err);

/* Are both planes one? */
bool ora_kv_is_latent(const ora_kv *kv);

/* Bytes of a row, and of its scales. */
char *ora_kv_at(const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot);
char *ora_kv_scales_at(const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot);

/* A row as numbers, x[head_dim] of plane 0 and x[head_dim_v] of plane 1. b picks the factors per
 * sequence. */
void ora_kv_load(const ora_problem *problem, const ora_kv *kv, int plane, uint32_t b,
                 uint32_t kv_head, int64_t slot, double *x);

/* Encodes a row of numbers in place; of a latent row plane 0 is all there is to store. */
void ora_kv_store(const ora_problem *problem, const ora_kv *kv, int plane, uint32_t kv_head,
                  int64_t slot, const double *x);

#endif
