/* tile.h: one tile of query rows and keys (attention.md §16.1, §21): what a stream does with it.
 * Private to the oracle.
 */
#ifndef ATTND_TESTS_ORACLE_TILE_H
#define ATTND_TESTS_ORACLE_TILE_H

#include "tests/oracle/score.h"
#include "tests/oracle/tiles.h"

/* R query rows and the heads of one kv head. A line is one (row, head): row·group + head. */
typedef struct ora_tile_scratch {
    uint32_t group, n_splits;
    int32_t rows;     /* R, no more than a sequence has */
    ora_items *items; /* [R] */
    int64_t room;     /* of each */
    ora_sage_scales sage;
    double *memory; /* of what follows */
    double *q;      /* [n_heads][D] of one row */
    double *k, *v;  /* [D], [Dv] */
    double *scores; /* [R·group][room] */
    double *m, *l, *o,
        *x;      /* the running stream: [R·group], o [R·group][Dv]; x: maximum of a tile */
    double *top; /* [R·group] maximum before the tile; m lags behind it when lazy */
    double *part_m, *part_l, *part_o; /* [R·group][n_splits], o [R·group][n_splits][Dv] */
    float *cos_sin;                   /* [D/2][2] */
} ora_tile_scratch;

/* Which lines of the scratch share a decision, and what of their lists is in the tile. */
typedef struct ora_tile {
    const ora_problem *p;
    const ora_tiling *tiling;
    uint32_t b, g;
    int32_t n_rows;
    uint32_t head, end_head; /* of the group */
    int64_t from, to;        /* places */
    double lambda;
    bool is_first; /* of its stream */
} ora_tile;

/* Skips the tile or adds its keys to the running streams of its lines. False: pruned, no line of it
 * sees a key. */
bool ora_tile_visit(const ora_tile *tile, ora_tile_scratch *scratch, ora_tile_counts *counts);

#endif
