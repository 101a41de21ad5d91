/* conform.h: problems made from what a row of kernels.def claims, run and judged.
 *
 * A claim (phases, types, widths, masks, extras) is a list of levels; levels that every row must
 * serve (groups, block sizes, layouts, lengths, splits, …) join them, and a covering array holds
 * every pair. Where two levels together are too large to judge, lengths shrink. Nothing here knows
 * a kernel.
 */
#ifndef ATTND_TESTS_KERNELS_CONFORM_H
#define ATTND_TESTS_KERNELS_CONFORM_H

#include "tests/kernels/cover.h"
#include "tests/kernels/rig.h"

/*  X(name, factor) */
#define CONFORM_FACTORS(X)                                                                         \
    X(PHASE, "phase")                                                                              \
    X(TYPES, "types")                                                                              \
    X(DIMS, "dims")                                                                                \
    X(HEADS, "heads")                                                                              \
    X(BLOCK, "block")                                                                              \
    X(LAYOUT, "layout")                                                                            \
    X(SOURCE, "keys")                                                                              \
    X(MASK, "mask")                                                                                \
    X(WINDOW, "window")                                                                            \
    X(CHUNK, "chunk")                                                                              \
    X(CAP, "cap")                                                                                  \
    X(ALIBI, "alibi")                                                                              \
    X(SINKS, "sinks")                                                                              \
    X(ROPE, "rope")                                                                                \
    X(POSITION, "position")                                                                        \
    X(LENGTHS, "kv_len")                                                                           \
    X(QUERIES, "q_len")                                                                            \
    X(SPLITS, "splits")                                                                            \
    X(INVARIANT, "invariant")                                                                      \
    X(AMPLITUDE, "amplitude")                                                                      \
    X(ROWS, "rows")                                                                                \
    X(POISON, "poison")

typedef enum conform_factor {
#define X(name, text) CONFORM_##name,
    CONFORM_FACTORS(X)
#undef X
        CONFORM_N_FACTORS,
} conform_factor;

/* What a kernel claims, as levels. */
typedef struct conform {
    const ker_kernel *kernel;
    cover levels;
    int phase[3], source[5];
    attnd_dtype types[COVER_MAX_LEVELS][3]; /* activation, keys, output */
    uint32_t dims[COVER_MAX_LEVELS][2];     /* D, Dv */
    uint32_t masks[COVER_MAX_LEVELS];       /* KER_MASK_* */
    char unknown[128];                      /* a claim that no problem is made of; empty: none */
} conform;

void conform_make(conform *c, const ker_kernel *kernel);

/* What the table is about: a type path, or a feature a problem has. */
#define CONFORM_FEATURES(X)                                                                        \
    X(WINDOW, "window", s->kinds &KER_MASK_WINDOW)                                                 \
    X(CHUNK, "chunk", s->kinds &KER_MASK_CHUNK)                                                    \
    X(VARIABLE, "variable", s->kinds &KER_MASK_VARIABLE)                                           \
    X(CAP, "cap", s->softcap > 0)                                                                  \
    X(ALIBI, "alibi", s->alibi)                                                                    \
    X(SINKS, "sinks", s->sinks)                                                                    \
    X(GIVEN, "given", s->given)                                                                    \
    X(APPEND, "append", s->append)                                                                 \
    X(ROPE, "rope", s->rope != ATTND_ROPE_NONE)                                                    \
    X(SPLITS, "splits", n_splits > 1)                                                              \
    X(INVARIANT, "invariant", s->batch_invariant)

enum {
#define X(name, text, has) CONFORM_HAS_##name,
    CONFORM_FEATURES(X)
#undef X
        CONFORM_N_FEATURES,
    CONFORM_N_LINES = NEAR_N_PATHS + CONFORM_N_FEATURES,
};

/* Of one kernel on one device. */
typedef struct conform_table {
    struct {
        uint64_t n_runs;
        double worst; /* error of out, its rms or LSE, in shares of the gate */
    } line[CONFORM_N_LINES];
    uint64_t n_cases, n_runs;
    double seconds;
} conform_table;

#define CONFORM_TEXT 1024

/* Runs every problem of the covering array of this seed (only: just the one, -1: all) on every
 * device that has the kernel's level and adds to table[RIG_N_DEVICES]. Stops at the first that is
 * wrong: false, and text says what it was and how to see it again. */
bool conform_run(const conform *c, uint64_t seed, long only, conform_table *table, char *text);

const char *conform_line_name(int line);

#endif
