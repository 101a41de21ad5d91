/* near.h: is an output near enough? The gates of attention.md §22, as one table.
 *
 * Compares what a backend wrote (any float dtype, byte strides) with the oracle's doubles. NaN
 * fails wherever the oracle has none, -inf must match exactly, a row that sees nothing is 0
 * exactly, a row that sees one key and has no sink is that value rounded once.
 */
#ifndef ATTND_TESTS_ORACLE_NEAR_H
#define ATTND_TESTS_ORACLE_NEAR_H

#include <stdbool.h>

#include "tests/oracle/oracle.h"

/*  X(name, e_inf, e_rms, what) */
#define NEAR_PATH_MAP(X)                                                                           \
    X(F32, 2e-5, 1.5e-5, "fp32 in and out")                                                        \
    X(F16, 1e-3, 8e-4, "fp16 in, fp16 P, fp16 out")                                                \
    X(BF16, 8e-3, 5e-3, "bf16 in, bf16 P, bf16 out")                                               \
    X(BF16_F32, 4e-3, 3e-3, "bf16 in, bf16 P, fp32 out")                                           \
    X(E4M3_BF16, 8e-3, 5e-3, "e4m3 q, k, v, fp32 P, bf16 out")                                     \
    X(E4M3_P, 6e-2, 5e-2, "e4m3 q, k, v, P, bf16 out")                                             \
    X(BF16_PARTS2, 1e-2, 6e-3, "bf16 with 2 bf16-rounded partials")                                \
    X(BF16_PARTS8, 1.6e-2, 9e-3, "bf16 with 8 bf16-rounded partials")

typedef enum near_path {
#define X(name, e_inf, e_rms, what) NEAR_##name,
    NEAR_PATH_MAP(X)
#undef X
        NEAR_N_PATHS,
} near_path;

typedef struct near_gate {
    const char *name;
    double e_inf, e_rms;
} near_gate;

near_gate near_gate_of(near_path path);

/* The row of the table for what is read (activation and kv type) and written. */
near_path near_path_for(attnd_dtype activation, attnd_dtype kv, attnd_dtype out);

typedef enum near_backend { NEAR_CPU, NEAR_GPU } near_backend;

#define NEAR_TEXT 320

typedef struct near_report {
    bool ok;
    double e_inf, e_rms; /* of the whole tensor */
    double times;        /* the worst of all, in parts of what is allowed: 1 is the gate */
    int64_t token;       /* the worst row; -1: none */
    uint32_t head;
    char text[NEAR_TEXT]; /* the worst row in words, whether it passed or not */
} near_report;

/* O of every row. widen multiplies the gates: 1, or 1.5 with a soft cap (§22.5). sinks says whether
 * the problem had sinks: then rows of one key are not exact. Returns report->ok. */
bool near_out(const ora_rows *got, const ora_result *want, near_path path, double widen, bool sinks,
              near_report *report);

/* LSE, [tokens][heads] fp32: got->head_stride steps from head to head. */
bool near_lse(const ora_rows *got, const ora_result *want, near_backend backend,
              near_report *report);

/* (m, l), [tokens][heads][2] fp32: m + ln l at the gate of LSE; an empty row is (-inf, 0). */
bool near_stats(const ora_rows *got, const ora_result *want, near_backend backend,
                near_report *report);

/* n elements, gapless: equal bytes but for at most `ulps` steps of dtype (rotated values; 0:
 * exact). report->token is the first element that is not. */
bool near_bytes(attnd_dtype dtype, const void *got, const void *want, size_t n, uint32_t ulps,
                near_report *report);

#endif
