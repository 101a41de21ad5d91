/* oracle.h: attention in float64, the judge of every backend.
 *
 * Follows attention.md alone and shares no code with any kernel: per row a list of the visible
 * keys, then §1 in index order. A problem here says the same as a problem of a kernel in words of
 * its own. Covers §1-§4, rope of §5 (neox, gptj, partial; no scaling, linear), the masks of §6,
 * soft cap, ALiBi and sinks of §7, §8-§10 and merging of §12. Not covered: MLA's projections,
 * quantised pools, sparse lists.
 *
 * codec.h has the number formats, generate.h the data of case files.
 */
#ifndef ATTND_TESTS_ORACLE_ORACLE_H
#define ATTND_TESTS_ORACLE_ORACLE_H

#include "proto/err.h"

/* A tensor [tokens][heads][width]; strides in bytes, elements follow each other. */
typedef struct ora_rows {
    const void *base; /* NULL: not given */
    int64_t token_stride;
    int64_t head_stride;
    attnd_dtype dtype; /* F32, F16, BF16 */
} ora_rows;

/* Keys and values of one layer (§3): row r of block x and kv head g lies at
 * plane[p] + x·block_stride + g·head_stride[p] + r·token_stride[p], p = 0 for K and 1 for V; the
 * layer's own offset is in plane[]. HND and NHD differ in strides only.
 *
 * Without tables (ora_problem.block_ids NULL) keys are given: row r counts from kv_first[b], and
 * block_stride, n_blocks and block_size are unused. */
typedef struct ora_kv {
    void *plane[2]; /* ora_append() writes here: the caller makes the copy */
    int64_t block_stride;
    int64_t head_stride[2];
    int64_t token_stride[2];
    int64_t n_blocks;
    uint32_t block_size; /* T */
    attnd_dtype dtype;   /* F32, F16, BF16 */
} ora_kv;

/* §5. Angles and their cosine and sine in double, rounded once to fp32; the rotated value in
 * double, rounded once to the activation type. */
typedef struct ora_rope {
    attnd_rope_pairing pairing; /* ATTND_ROPE_NONE: q and k are used as given */
    uint32_t dim;               /* r, even, 2 .. D */
    double theta;
    double linear; /* F of linear scaling; 0: none */
} ora_rope;

/* §6; no kind is FULL. */
enum {
    ORA_MASK_CAUSAL = 1u << 0,
    ORA_MASK_WINDOW = 1u << 1,
    ORA_MASK_CHUNK = 1u << 2,
    ORA_MASK_VARIABLE = 1u << 3, /* replaces causal, window, chunk */
    ORA_MASK_BYTES = 1u << 4,    /* replaces causal and chunk */
    ORA_MASK_BITS = 1u << 5,     /* replaces causal and chunk */
    ORA_MASK_TREE = 1u << 6,     /* replaces causal */
};

typedef struct ora_mask {
    uint32_t kinds;             /* ORA_MASK_* */
    int32_t window;             /* W ≥ 1 */
    int32_t chunk;              /* c ≥ 1 */
    const int32_t *start, *end; /* [tokens], both ends inclusive */
    const uint8_t *custom;      /* bytes or bits of §6.6 */
    const int64_t
        *custom_first; /* [n_seqs] first byte of the sequence; NULL: one behind the other */
    const uint32_t *tree_words; /* row i of sequence b at tree_first[b] + i·tree_width */
    const int64_t *tree_first;  /* [n_seqs]; NULL: rows of generations one behind the other */
    uint32_t tree_width;        /* words of a row */
    const int32_t *tree_depth;  /* [tokens] offsets of §13.2: bound windows and chunks; NULL: i */
} ora_mask;

/* One call on one layer. Everything is borrowed for the length of the call; arrays of n_seqs or of
 * tokens (Σ q_len) may be NULL where it says so. */
typedef struct ora_problem {
    uint32_t n_heads;    /* Hq */
    uint32_t n_kv_heads; /* Hkv, divides Hq */
    uint32_t head_dim;   /* D */
    uint32_t head_dim_v; /* Dv */
    double sm_scale;     /* factor on q·k; ora_sm_scale() has the default */
    attnd_dtype dtype;   /* activation type: rotated q and k are rounded to it */

    uint32_t n_seqs;
    uint32_t n_contexts;        /* sequences 0 .. n_contexts-1 have no tree: they are causal */
    const int32_t *q_len;       /* [n_seqs] */
    const int32_t *kv_len;      /* [n_seqs], those appended by this call included */
    const int64_t *q_first;     /* [n_seqs] first packed row; NULL: one behind the other */
    const int64_t *kv_first;    /* [n_seqs] first row of given keys; NULL: one behind the other */
    const int32_t *block_ids;   /* all tables; NULL: keys are given */
    const int64_t *block_first; /* [n_seqs] where the sequence's table starts; NULL: one behind the
                                   other, ceil(kv_len/T) entries each */
    const int32_t *positions;   /* [tokens] rotary; NULL: past + i (past + tree_depth) */
    const int32_t *rope_delta;  /* [n_seqs], added to positions; NULL: 0 */

    ora_rows q;
    ora_rows k, v;        /* to append, packed like q; base NULL: nothing */
    const int32_t *slots; /* [tokens] block·T + row, -1: do not store; NULL: the tables say */
    ora_kv kv;
    ora_rope rope;
    ora_mask mask;
    double softcap;            /* 0: none */
    const float *alibi_slopes; /* [n_heads]; NULL: none */
    const float *sinks;        /* [n_heads]; NULL: none */

    int32_t key_from, key_to; /* only keys in [key_from, key_to) take part; key_to 0: all */
} ora_problem;

/* Row t and head h at [t·n_heads + h]. */
typedef struct ora_result {
    int64_t n_tokens;
    uint32_t n_heads, head_dim_v;
    double *out;        /* [tokens][n_heads][Dv] O, sink included */
    double *lse;        /* sink excluded; -inf for a row that sees no key */
    double *m, *l;      /* sink excluded; (-inf, 0) for a row that sees no key */
    double *vmax;       /* max |v| over the visible keys; 0 without one */
    int64_t *n_visible; /* keys; -1: no sequence has this row */
    double *memory;     /* all of the above */
} ora_result;

/* §4: rotates, rounds and stores k and v into kv.plane, nothing else changes there. Refuses before
 * the first write: BAD_GEOMETRY (counts, dtypes), BAD_LENGTH (q_len > kv_len), BAD_BLOCK (a slot
 * that is no slot, two tokens in one slot), NO_ROOM. Without k: OK and nothing happens. */
attnd_status ora_append(const ora_problem *problem, attnd_err *err);

/* §1 for every row and head, from what lies in kv.plane: append first. Table entries and slots of
 * invisible keys are never touched. Refuses BAD_GEOMETRY, BAD_LENGTH (negative), BAD_MASK,
 * BAD_BLOCK (a visible key without a block), NO_ROOM; *out is then empty. The caller frees it with
 * ora_result_fini(). */
attnd_status ora_attend(const ora_problem *problem, ora_result *out, attnd_err *err);

void ora_result_fini(ora_result *result);

/* §8: 1 / (q_scaling · sqrt(dim)); q_scaling 0 is 1. */
double ora_sm_scale(double q_scaling, uint32_t dim);

/* §7.2: the slope of head h of n_heads. */
double ora_alibi_slope(uint32_t h, uint32_t n_heads);

/* §5.2: rotates one head's row x[D] in place and rounds its rotated channels to dtype. */
void ora_rotate(const ora_rope *rope, int64_t position, attnd_dtype dtype, double *x);

/* §12: n parts over disjoint keys, o[n][width] normalised without sink, in index order. A part
 * with l = 0 or m = -inf is not read. m_out, l_out and o_out[width] must not overlap the parts. */
void ora_merge(uint32_t n, const double *m, const double *l, const double *o, uint32_t width,
               double *m_out, double *l_out, double *o_out);

/* §12: the sink, applied once after the last merge: O ← O · l / (l + exp(sink − m)). */
void ora_apply_sink(double m, double l, double sink, double *o, uint32_t width);

#endif
