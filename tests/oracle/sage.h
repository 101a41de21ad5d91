/* sage.h: Sage quantisation (attention.md §15): what becomes of a row of q, k and v. Private to the
 * oracle but for the layout of the scales.
 *
 * Scales are fp32, codes RN of fp32 quotients, means and all else double. Scales and means run over
 * every key of a sequence, visible or not.
 */
#ifndef ATTND_TESTS_ORACLE_SAGE_H
#define ATTND_TESTS_ORACLE_SAGE_H

#include "tests/oracle/batch.h"

/* Where the scale of token t of sequence b lies, and how many there are, for n sequences of len[]
 * tokens and blocks of block tokens. */
int64_t ora_sage_slot(const int32_t *len, uint32_t block, uint32_t b, int64_t t);
int64_t ora_sage_count(const int32_t *len, uint32_t n, uint32_t block);

typedef struct ora_sage_scales {
    const ora_problem *problem; /* NULL: no Sage, and nothing changes */
    int64_t n_q, n_k;           /* scales a head */
    float *q, *k;               /* [n_heads][n_q], [n_kv_heads][n_k] */
    float *v;                   /* [n_kv_heads][Dv] */
    double *mean_k;             /* [n_seqs][n_kv_heads][D]; 0 without smoothing */
    double *mean_v;             /* [n_kv_heads][Dv]; 0 without smoothing */
    float *scales;              /* the memory of q, k and v */
    double *shift;              /* [n_heads] of the row that ora_sage_q() saw last */
    double *means;              /* the memory of mean_k, mean_v and shift */
} ora_sage_scales;

/* Borrows the problem until ora_sage_fini(), which the caller calls, after a refusal too. Refuses
 * BAD_QUANT (types, blocks), BAD_COMBINATION, BAD_BLOCK (any key of [0, kv_len) without a block),
 * NO_ROOM. */
attnd_status ora_sage_init(ora_sage_scales *scales, const ora_batch *batch,
                           const ora_problem *problem, attnd_err *err);
void ora_sage_fini(ora_sage_scales *scales);

/* In place: what is used instead of q[n_heads][D] of row i; of k of key j, -1 for a block's mean,
 * whose scale is its own; of v. */
void ora_sage_q(ora_sage_scales *scales, uint32_t b, int32_t i, double *q);
void ora_sage_k(const ora_sage_scales *scales, uint32_t b, uint32_t g, int64_t j, double *k);
void ora_sage_v(const ora_sage_scales *scales, uint32_t g, double *v);

/* What every score of head h of that row is off by, before cap and bias; 0 without Sage. */
double ora_sage_shift(const ora_sage_scales *scales, uint32_t h);

#endif
