/* case_tensor.h: descriptions of tensors and tables into bytes and ids. Private to the oracle. */
#ifndef ATTND_TESTS_ORACLE_CASE_TENSOR_H
#define ATTND_TESTS_ORACLE_CASE_TENSOR_H

#include "tests/oracle/case_run.h"

/* What a call makes of a tensor: its logical shape, and what it takes a case's word for. */
typedef struct ora_want {
    const char *field; /* name of the generator */
    attnd_dtype dtype; /* when the tensor says none */
    uint64_t seed;
    int64_t rows; /* of one layer */
    uint32_t n_layers;
    uint32_t heads, width;
    const int64_t *positions; /* [rows]; NULL: 0, 1, 2 … */
    bool is_flat;             /* [rows][heads] on the wire: lse */
    bool is_output;           /* all bytes 0xFF */
} ora_want;

/* Fills *out, whose memory is the arena's; nothing when t is not given. Refuses BAD_CONFIG (values
 * of another shape, bytes of another length) and NO_ROOM, naming want->field. */
attnd_status ora_tensor_make(ora_arena *arena, const ora_case_tensor *t, const ora_want *want,
                             ora_bytes *out, attnd_err *err);

/* packed from what a call left in the region. */
void ora_tensor_gather(ora_bytes *tensor);

/* Every element as a double, [rows][heads][width]. */
attnd_status ora_tensor_values(ora_arena *arena, const ora_case_tensor *t, const ora_want *want,
                               double **out, attnd_err *err);

/* Row b of a table: entries first[b] .. first[b] + n[b] of its sequence, one row behind the other.
 * What is a list stays as it is. */
attnd_status ora_blocks_make(ora_arena *arena, const ora_case_blocks *blocks, uint32_t block_size,
                             uint32_t n_blocks, size_t n_seqs, const int64_t *first,
                             const int64_t *n, ora_case_ints *out, attnd_err *err);

#endif
