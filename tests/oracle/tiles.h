/* tiles.h: evaluators that follow a kernel's tiles where the result depends on them: skip-softmax
 * (attention.md §16.1) and lazy rescale (§21.2), in float64.
 */
#ifndef ATTND_TESTS_ORACLE_TILES_H
#define ATTND_TESTS_ORACLE_TILES_H

#include "tests/oracle/oracle.h"

typedef struct ora_tiling {
    uint32_t rows;    /* R: query rows (tokens of a sequence) of a tile, all heads of a group */
    uint32_t keys;    /* N */
    bool heads_apart; /* a tile has the rows of one query head, not of the group */
    /* [n_splits] ascending multiples of keys; the last takes all the rest; NULL: one stream */
    const int32_t *split_ends;
    uint32_t n_splits;
    bool backwards;     /* tiles of a stream are visited from the last to the first */
    double skip_factor; /* §16.1, λ = min(1, factor / kv_len); 0: none */
    double lazy_tau;    /* §21.2, log2 units; 0: every tile */
} ora_tiling;

typedef struct ora_tile_counts {
    uint64_t total, skipped;
    /* Least |exp(x_r - M_r)/λ - 1| that decided a tile: counters are compared above 1e-3 only. */
    double nearest;
} ora_tile_counts;

/* As ora_attend, tile by tile: tiles lie at multiples of N from key 0 on, of lists from their first
 * entry on. n_visible and vmax count skipped keys too. counts may be NULL. Refuses also what is no
 * tiling: BAD_GEOMETRY. */
attnd_status ora_attend_tiles(const ora_problem *problem, const ora_tiling *tiling, ora_result *out,
                              ora_tile_counts *counts, attnd_err *err);

#endif
