/* oracle.h: attention in float64, the judge of every backend.
 *
 * Follows attention.md alone and shares no code with any kernel: per row a list of the visible
 * keys, then §1 in index order. A problem here says the same as a problem of a kernel in words of
 * its own; what is zero is not there.
 *
 * codec.h and blocks.h have the number formats, sage.h the scales of §15, mla.h the projections,
 * chunks and latent rows of §11, cp.h the ownership of §18, tiles.h the evaluators that follow a
 * kernel's tiles (§16.1, §21.2), generate.h the data of case files.
 */
#ifndef ATTND_TESTS_ORACLE_ORACLE_H
#define ATTND_TESTS_ORACLE_ORACLE_H

#include <stdbool.h>

#include "proto/err.h"

/* A tensor [tokens][heads][width]; strides in bytes, elements follow each other. */
typedef struct ora_rows {
    const void *base; /* NULL: not given */
    int64_t token_stride;
    int64_t head_stride;
    attnd_dtype dtype; /* F32, F16, BF16; E4M3 where §14 allows */
} ora_rows;

/* How a row of the pool is coded (§14). */
typedef enum ora_format {
    ORA_PLAIN,   /* numbers of dtype; E4M3, E5M2 and I8 times a factor of ora_quant */
    ORA_HEAD,    /* E4M3 or I8 codes, an fp32 scale stored per (token, kv head) (§14.2) */
    ORA_NVFP4,   /* E2M1 codes, an E4M3 scale stored per 16 channels (§14.4) */
    ORA_DS_POW2, /* latent rows of 656 bytes, 512 + 64 channels, scales powers of two (§14.5) */
    ORA_DS_FREE, /* the same, scales unrounded */
    ORA_DS_584,  /* latent rows of 576 + 8 bytes, 448 + 64 channels (§14.5) */
    ORA_FP4_MLA, /* NVFP4 latent rows with a residual of the rope channels (§14.6) */
} ora_format;

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
    attnd_dtype dtype;   /* PLAIN: F32, F16, BF16, E4M3, E5M2, I8; HEAD: E4M3, I8; ORA_NVFP4 and
                            ORA_FP4_MLA: NVFP4; ORA_DS_*: E4M3 */
    ora_format format;
    uint32_t residual; /* ORA_FP4_MLA: R, the last channels of the row, coded twice */
    /* ORA_HEAD, ORA_NVFP4, ORA_FP4_MLA, ORA_DS_584: scales of row r of block x and kv head g at
     * scales[p] + x·block_stride + g·scale_head_stride[p] + r·scale_token_stride[p]. */
    void *scales[2];
    int64_t scale_head_stride[2];
    int64_t scale_token_stride[2];
} ora_kv;

typedef enum ora_scaling {
    ORA_SCALING_NONE,
    ORA_SCALING_LINEAR,        /* factor */
    ORA_SCALING_DYNAMIC_ALPHA, /* factor is α */
    ORA_SCALING_DYNAMIC_NTK,   /* factor, original_max; Lc is the sequence's kv_len */
    ORA_SCALING_LLAMA3,        /* factor, low, high, original_max */
    ORA_SCALING_YARN,          /* factor, original_max, beta_fast, beta_slow, mscale, mscale_all */
    ORA_SCALING_LONGROPE,      /* short_factors, long_factors, max_positions, original_max */
} ora_scaling;

/* §5. Angles and their cosine and sine in double, rounded once to fp32; the rotated value in
 * double, rounded once to the activation type. */
typedef struct ora_rope {
    attnd_rope_pairing pairing; /* ATTND_ROPE_NONE: q and k are used as given */
    uint32_t dim;               /* r, even, 2 .. D */
    uint32_t first;             /* channel where the rotated part starts: C for MLA, else 0 */
    double theta;
    ora_scaling scaling;
    double factor;       /* F or α */
    double original_max; /* M0, positions */
    double max_positions;
    double low, high; /* llama3 */
    double beta_fast, beta_slow, mscale, mscale_all;
    bool no_truncate;                           /* yarn without floor and ceil */
    const double *short_factors, *long_factors; /* [r/2] */
    double short_amplitude, long_amplitude;     /* replace A of longrope; 0: not given */
    uint32_t sections[3]; /* mrope (§5.4), Σ = r/2; all 0: one position a token */
    bool interleaved;     /* mrope's second form */
    const float *table;   /* uploaded [table_rows][r/2][2], or [table_rows][r][2] duplicated */
    int64_t table_rows;   /* a position beyond is BAD_ROPE */
    bool table_duplicated;
    const float *cos_sin; /* [tokens][r/2][2] per token; NULL: from the above */
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

/* §7.2, §7.3. */
typedef struct ora_bias {
    double softcap;               /* 0: none */
    const float *alibi_slopes;    /* [n_heads]; NULL: none */
    double scale_after_alibi;     /* on the capped score and the slope; 0: 1 */
    const float *relative;        /* [n_heads][size][size], with T5 [n_heads][size]; NULL: none */
    uint32_t relative_size;       /* positions, or buckets */
    double relative_max_distance; /* > 0: T5 buckets */
    bool relative_bidirectional;
    const float *sinks; /* [n_heads]; NULL: none */
} ora_bias;

/* §14.1, §14.2: factors as given, none derived from another; 0 is 1 (NVFP4: quant_orig 0 is
 * 1/orig_quant; ORA_FP4_MLA: orig_quant 0 is 448·6/30). NVFP4: orig_quant is Gs. Pools of F32, F16,
 * BF16 and formats that store all their scales (HEAD, DS) use none. Where K and V are one row (§11)
 * the factors of K are those of both. */
typedef struct ora_quant {
    float k_orig_quant, v_orig_quant;   /* on store */
    float k_quant_orig, v_quant_orig;   /* on load */
    const float *k_factors, *v_factors; /* instead on load, of PLAIN E4M3, E5M2, I8; NULL: none */
    bool factors_per_seq;               /* [n_seqs][n_kv_heads]; else [n_kv_heads] */
    float q_quant_orig;                 /* of an E4M3 q */
    float q_orig_quant; /* > 0: q, after rotation, is rounded to the activation type and then to
                           E4M3 times this; q_quant_orig undoes it (§11.4) */
} ora_quant;

/* §15. Scales and means run over every key of a sequence: each needs a block. Not with keys named
 * by slot or page, with beams, with ranks. */
typedef struct ora_sage {
    attnd_dtype qk_dtype;      /* I8 or E4M3; NONE: no Sage */
    uint32_t q_block, k_block; /* tokens a scale, powers of two */
    bool smooth_k, smooth_v;
} ora_sage;

/* §16.2-§16.5, intersected with the mask; what is NULL is not there. Keys that are named by slot or
 * page have no key index: with them the mask is full and there is no positional bias. */
typedef struct ora_sparse {
    /* Tokens of §16.3: entries of packed token t at topk[t·topk_width]. */
    const int32_t *topk;
    const int32_t *topk_len; /* [tokens]; NULL: all */
    uint32_t topk_width;     /* K */
    bool topk_is_slots;
    bool topk_causal; /* also j ≤ a */
    /* Blocks of §16.2: pattern row (b, pattern head, query block), n_q_blocks a (b, pattern head).
     */
    uint32_t block_q, block_kv; /* tokens; block_kv 0: no blocks */
    uint32_t n_heads;           /* pattern heads: 1 or n_kv_heads */
    uint32_t n_q_blocks;        /* of every sequence */
    const int32_t *indptr;      /* [n_seqs][n_heads][n_q_blocks + 1] into indices */
    const int32_t *indices;     /* strictly increasing within a row */
    const uint32_t *block_bits; /* instead [n_seqs][n_heads][n_q_blocks][block_words] */
    uint32_t block_words;
    const uint32_t *valid_bits; /* [n_seqs][valid_words] */
    uint32_t valid_words;
    const double *proxy_k, *proxy_v; /* [n_seqs][n_kv_heads][n_kv_blocks][D, Dv] means */
    uint32_t n_kv_blocks;
    /* Pages of §16.4: list of (sequence b, kv head g) at pages[(b·n_kv_heads + g)·pages_width]. */
    const int32_t *pages;
    const int32_t *page_keys; /* [n_seqs][n_kv_heads] keys of the list */
    uint32_t pages_width;
    /* Second pool of §16.5: its tokens as slots, -1 ignored. */
    const struct ora_kv *second;
    const int32_t *second_slots; /* [tokens][second_width] */
    const int32_t *second_len;   /* [tokens]; NULL: all */
    uint32_t second_width;
} ora_sparse;

/* §18: kv_len, tables and lists of keys are this rank's; positions, which must be given, are
 * global, and so are the indices that masks and biases see. n_ranks 0: none. */
typedef struct ora_cp {
    uint32_t n_ranks, rank;
    const int32_t *bounds; /* [tokens] local keys the token sees (§18.3); NULL: all of kv_len */
} ora_cp;

/* §20: sequence b is beam b mod width of request b / width. width 0: none. */
typedef struct ora_beams {
    uint32_t width;
    uint32_t max_len;
    const int32_t *ind;        /* [n_seqs / width][width][max_len] */
    const int32_t *prompt_len; /* [n_seqs / width] */
} ora_beams;

/* §11.4, §11.5, §11.8: latent rows. C + R is head_dim, kv.plane[0] == kv.plane[1]. */
typedef struct ora_latent {
    bool appends;             /* k is [tokens][1][C+R]: appended whole, v is not read */
    const float *norm_weight; /* [norm_width]; NULL: no norm */
    uint32_t norm_width;      /* channels that the mean runs over and the weight scales; 0: C+R */
    double norm_eps;
    void *flat;          /* rows are stored here, PLAIN or ORA_DS_POW2 or ORA_DS_FREE, instead of
                            the pool: row flat_rows[t], -1: not */
    int64_t flat_stride; /* bytes */
    const int32_t *flat_rows; /* [tokens] */
} ora_latent;

/* One call on one layer. Everything is borrowed for the length of the call; arrays of n_seqs or of
 * tokens (Σ q_len) may be NULL where it says so. */
typedef struct ora_problem {
    attnd_layer_kind kind; /* CROSS: rows have no key index (§19); ENCODER: kv_len is q_len */
    uint32_t n_heads;      /* Hq */
    uint32_t n_kv_heads;   /* Hkv, divides Hq */
    uint32_t head_dim;     /* D */
    uint32_t head_dim_v;   /* Dv */
    double sm_scale;       /* factor on q·k; ora_sm_scale() has the default */
    attnd_dtype dtype;     /* activation type: rotated q and k are rounded to it */

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
    const int32_t *positions3;  /* [tokens][3] for mrope; NULL: positions three times */
    const int32_t *rope_delta;  /* [n_seqs], added to positions; NULL: 0 */

    ora_rows q;
    ora_rows k, v;        /* to append, packed like q; base NULL: nothing */
    const int32_t *slots; /* [tokens] block·T + row, -1: do not store; NULL: the tables say */
    ora_kv kv;
    ora_rope rope;
    ora_mask mask;
    ora_bias bias;
    ora_quant quant;
    ora_sage sage;
    ora_sparse sparse;
    ora_cp cp;
    ora_beams beams;
    ora_latent latent;
    const ora_kv *high;      /* §17: same heads and widths as kv, its own block ids; NULL: none */
    const int32_t *high_ids; /* tables like block_ids (block_first): -1 not held */

    /* Only keys in [key_from, key_to) take part; key_to 0: all. With a list of tokens or pages
     * these count its entries. Blocks left out (§16.2) and then the second pool (§16.5) stand
     * behind. */
    int32_t key_from, key_to;
} ora_problem;

/* Row t and head h at [t·n_heads + h]. */
typedef struct ora_result {
    int64_t n_tokens;
    uint32_t n_heads, head_dim_v;
    double *out;        /* [tokens][n_heads][Dv] O, sink included */
    double *lse;        /* sink excluded; lse2 is lse·log2(e); -inf for a row that sees no key */
    double *m, *l;      /* sink excluded; (-inf, 0) for a row that sees no key */
    double *vmax;       /* max |v| over the visible keys; 0 without one */
    int64_t *n_visible; /* keys; -1: no sequence has this row */
    double *memory;     /* all of the above */
} ora_result;

/* §4: rotates, rounds and stores k and v into kv.plane, nothing else changes there. Refuses before
 * the first write: BAD_GEOMETRY (counts, dtypes), BAD_LENGTH (q_len > kv_len), BAD_BLOCK (a slot
 * that is no slot, two tokens in one slot or over a key that a row sees, a block that another
 * sequence reads), NO_ROOM. Without k: OK and nothing happens. */
attnd_status ora_append(const ora_problem *problem, attnd_err *err);

/* §1 for every row and head, from what lies in kv.plane: append first. Table entries and slots of
 * invisible keys are never touched. Refuses what §24 says with its label; what has no label there:
 * BAD_MASK (a block pattern that is none), BAD_LENGTH (beyond a dense relative bias, beyond
 * beams.max_len), BAD_BLOCK (a beam that is none); NO_ROOM. *out is then empty. The caller frees it
 * with ora_result_fini(). Phases are not judged: a row may be longer than its keys, a generation
 * may have any mask. */
attnd_status ora_attend(const ora_problem *problem, ora_result *out, attnd_err *err);

void ora_result_fini(ora_result *result);

/* §14.7: the bytes of an output: E4M3 of O·out_scale at bytes[tokens][n_heads·Dv]; O is rounded to
 * fp32 first, here and below. */
void ora_output_e4m3(const ora_result *result, float out_scale, uint8_t *bytes);

/* §14.7: NVFP4 codes [tokens][n_heads·Dv/2] with Gs = out_scale, and their scales in the swizzled
 * order, ora_swizzle_bytes() of them. n_heads·Dv is a multiple of 16. */
void ora_output_nvfp4(const ora_result *result, float out_scale, uint8_t *codes, uint8_t *scales);
size_t ora_swizzle_bytes(int64_t rows, int64_t columns);
int64_t ora_swizzle_offset(int64_t row, int64_t column, int64_t columns);

/* §13.6: rows src[n] → dst[n] of one sequence's table, in increasing dst order, K and V (and
 * scales), high pages too. Refuses before the first write: BAD_BLOCK, BAD_LENGTH (src < dst, src ≥
 * kv_len, dst not increasing), UNSUPPORTED (only one of the two pages is held high). */
attnd_status ora_move(const ora_problem *problem, uint32_t seq, const int32_t *src,
                      const int32_t *dst, uint32_t n, attnd_err *err);

/* §8: 1 / (q_scaling · sqrt(dim)); q_scaling 0 is 1. */
double ora_sm_scale(double q_scaling, uint32_t dim);

/* §8: the scales a kernel works with, of dequantisation factors of q, k, v and the factor of an
 * E4M3 output; a factor of 0 is 1. */
double ora_score_scale(double sm_scale, double q_quant_orig, double k_quant_orig);
double ora_value_scale(double v_quant_orig, double out_orig_quant);

/* §7.2: the slope of head h of n_heads. */
double ora_alibi_slope(uint32_t h, uint32_t n_heads);

/* §7.3: the bucket of distance δ = j - a. */
int32_t ora_t5_bucket(int64_t delta, uint32_t n_buckets, double max_distance, bool bidirectional);

/* §5.3: angles per position f'[dim/2] and the amplitude A. kv_len: Lc of dynamic-ntk. rope is one
 * that ora_attend() takes. */
void ora_rope_frequencies(const ora_rope *rope, int64_t kv_len, double *frequencies,
                          double *amplitude);

/* §5.2: rotates one head's row x[D] in place and rounds its rotated channels to dtype. All sections
 * are at the one position; with dynamic-ntk the sequence is a short one (Lc ≤ M0). */
void ora_rotate(const ora_rope *rope, int64_t position, attnd_dtype dtype, double *x);

/* §12: n parts over disjoint keys, o[n][width] normalised without sink, in index order. A part
 * with l = 0 or m = -inf is not read. m_out, l_out and o_out[width] must not overlap the parts. */
void ora_merge(uint32_t n, const double *m, const double *l, const double *o, uint32_t width,
               double *m_out, double *l_out, double *o_out);

/* §12: the sink, applied once after the last merge: O ← O · l / (l + exp(sink − m)). */
void ora_apply_sink(double m, double l, double sink, double *o, uint32_t width);

#endif
