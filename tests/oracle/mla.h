/* mla.h: multi-head latent attention around the core (attention.md §11).
 *
 * The absorbed form is an ora_problem with one kv head, D = C+R and Dv = C (kv.plane[0] ==
 * kv.plane[1]); here are what leads to it and away from it.
 */
#ifndef ATTND_TESTS_ORACLE_MLA_H
#define ATTND_TESTS_ORACLE_MLA_H

#include "tests/oracle/oracle.h"

/* Widths: C latent, R rope, dn non-rope and dv value channels of a head, H heads. */
typedef struct ora_mla {
    uint32_t rank, rope_dim, nope_dim, v_dim, n_heads;
    const double *w_uk; /* [H][dn][C] */
    const double *w_uv; /* [H][dv][C] */
} ora_mla;

/* §11.2: n latent rows [c (C) | k_pe (R)] → k [n][H][dn+R], v [n][H][dv]. */
void ora_mla_expand(const ora_mla *mla, const double *latents, int64_t n, double *k, double *v);

/* §11.3: q [n][H][dn+R] → q' [n][H][C+R]; out' [n][H][C] → out [n][H][dv]. */
void ora_mla_absorb(const ora_mla *mla, const double *q, int64_t n, double *absorbed);
void ora_mla_project(const ora_mla *mla, const double *absorbed_out, int64_t n, double *out);

/* §11.6: the greedy plan of a buffer of chunk_tokens (U) keys. Arrays [n_loops][n_seqs], op
 * [n_loops + 1][n_seqs], cu [n_loops][n_seqs + 1], max [n_loops]. off is 0 where len is. */
typedef struct ora_chunks {
    uint32_t n_loops, n_seqs;
    int32_t *len, *off, *cu, *max;
    uint8_t *op; /* 0 leave, 1 merge, 2 overwrite */
} ora_chunks;

/* Refuses BAD_LENGTH (a negative length, chunk_tokens 0), NO_ROOM. The caller calls
 * ora_chunks_fini(). */
attnd_status ora_chunks_make(const int32_t *cached, uint32_t n_seqs, int64_t chunk_tokens,
                             ora_chunks *out, attnd_err *err);
void ora_chunks_fini(ora_chunks *chunks);

/* §11.7: rows first .. first+n-1 of sequence seq, dequantised: c [n][rank], k_pe [n][head_dim -
 * rank]. Refuses BAD_GEOMETRY, BAD_LENGTH (beyond kv_len), BAD_BLOCK, NO_ROOM. */
attnd_status ora_gather(const ora_problem *problem, uint32_t rank, uint32_t seq, int64_t first,
                        int64_t n, double *c, double *k_pe, attnd_err *err);

#endif
