/* case_shadow.h: the evaluator's copy of a model: its pools, and calls on them. Private to the
 * oracle.
 */
#ifndef ATTND_TESTS_ORACLE_CASE_SHADOW_H
#define ATTND_TESTS_ORACLE_CASE_SHADOW_H

#include "tests/oracle/case_run.h"
#include "tests/oracle/oracle.h"

typedef struct ora_shadow_layer {
    ora_case_layer spec; /* defaults filled in */
    double sm_scale;
    char *pool; /* [n_blocks][K, V][n_kv_heads][block_size][width]; mla: no V */
    size_t pool_bytes, block_bytes, k_bytes; /* k_bytes: of a block's keys */
    float *sinks, *slopes;                   /* [n_heads]; NULL: none */
} ora_shadow_layer;

typedef struct ora_shadow {
    ora_shadow_layer *layers; /* counts multiplied out */
    uint32_t n_layers;
    const ora_case_group *groups;
    uint32_t *n_blocks; /* [n_groups] */
    size_t n_groups;
} ora_shadow;

/* n_blocks[n_groups] of the pools, or NULL: what the spec says. Refuses BAD_GEOMETRY, BAD_QUANT,
 * NO_ROOM. The caller calls fini, after a refusal too. */
attnd_status ora_shadow_init(ora_shadow *shadow, ora_arena *arena, const ora_case_spec *spec,
                             const uint32_t *n_blocks, attnd_err *err);
void ora_shadow_fini(ora_shadow *shadow);

/* Layer i of a call (of its plan: batch): appends, then attends into *out unless out is NULL, which
 * the caller frees with ora_result_fini(). */
attnd_status ora_shadow_attend(ora_shadow *shadow, ora_arena *arena, const ora_call *call,
                               const ora_case_batch *batch, uint32_t i, ora_result *out,
                               attnd_err *err);

/* FNV1a64 of all pools. */
uint64_t ora_shadow_hash(const ora_shadow *shadow);

uint64_t ora_hash_bytes(const void *bytes, size_t n, uint64_t hash);
#define ORA_HASH_EMPTY 0xCBF29CE484222325u

#endif
