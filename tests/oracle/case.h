/* case.h: a case file as plain structs: a model, steps, and what must hold.
 *
 * The format is tests/cases/format.md; what has a field in attnd.proto has its name here. Reading
 * refuses what the format does not know, with the path and the nearest name. Whoever runs a case
 * (case_run.h) turns descriptions of tensors and tables into bytes.
 */
#ifndef ATTND_TESTS_ORACLE_CASE_H
#define ATTND_TESTS_ORACLE_CASE_H

#include <stdbool.h>

#include "proto/err.h"

enum { ORA_CASE_NAME = 65, ORA_CASE_DIMS = 4 };

/* No file can write it: text of a seed has at most 19 digits. */
#define ORA_CASE_NO_SEED UINT64_MAX

/* int32 values: a list, or a list repeated until there are n. */
typedef struct ora_case_ints {
    bool given;
    bool is_ref; /* travels in a buffer, its last value at the buffer's end */
    int32_t *values;
    size_t n;
} ora_case_ints;

typedef enum ora_case_source {
    ORA_CASE_GENERATED, /* by name, seed, amplitude; also what has a hash alone */
    ORA_CASE_VALUES,
    ORA_CASE_POSITION, /* the key index of the row, in every channel */
    ORA_CASE_ONE_HOT,  /* 1 in channel (key index mod width), else 0 */
    ORA_CASE_BYTES,
} ora_case_source;

/* Rows [row, row + n) become one value. */
typedef struct ora_case_patch {
    uint32_t row, n;
    double fill;
} ora_case_patch;

/* The logical shape, [rows][heads][width], comes from the call that uses it. */
typedef struct ora_case_tensor {
    bool given;
    attnd_dtype dtype; /* NONE: the case's */
    ora_case_source source;
    char name[ORA_CASE_NAME]; /* "": the name of the field */
    double amplitude;
    uint64_t seed;      /* ORA_CASE_NO_SEED: the case's */
    uint32_t first;     /* row 0 is row first of what is generated */
    ora_case_ints take; /* or row t is row take[t] */
    double scale, plus; /* of a position: position · scale + plus */
    double *values;     /* row-major, dims[0] × dims[1] × dims[2] */
    size_t dims[3];     /* 1: the same for all; dims[2] short: padded with 0. n_dims 1: flat */
    uint32_t n_dims;    /* 1 flat, 2 [row][channel], 3 [row][head][channel] */
    bool repeat;        /* flat values, again and again */
    uint8_t *bytes;
    size_t n_bytes;
    bool has_hash; /* nothing but a hash is known */
    ora_case_patch *patches;
    size_t n_patches;
    /* What is said on the wire instead of a gapless tensor of the logical shape. */
    uint64_t shape[ORA_CASE_DIMS];
    uint32_t n_shape;
    int64_t strides[ORA_CASE_DIMS]; /* bytes */
    uint32_t n_strides;
    uint64_t offset;
    uint64_t region; /* bytes of memory it lies in; 0: what it needs */
    bool skip;       /* an output that is not asked for */
    double within,
        relative; /* an expectation: |x - want| ≤ within + relative·|want|; both 0: gate */
} ora_case_tensor;

/* ---- Models -----------------------------------------------------------------------------------
 */

typedef struct ora_case_rope {
    attnd_rope_pairing pairing;
    uint32_t dim;
    double theta;
    uint32_t scaling; /* number of RopeScaling in attnd.proto */
} ora_case_rope;

typedef struct ora_case_layer {
    uint32_t kind; /* attnd_layer_kind */
    uint32_t group;
    uint32_t n_heads, n_kv_heads, head_dim, head_dim_v;
    double sm_scale, q_scaling, softcap;
    uint32_t window, chunk, count;
    ora_case_rope rope;
    double *sinks; /* [n_sinks], one a query head or one for all */
    size_t n_sinks;
    bool alibi; /* slopes of attention.md §7.2 */
} ora_case_layer;

typedef struct ora_case_group {
    char name[ORA_CASE_NAME];
    uint32_t block_size, kv_dtype, layout, n_blocks, max_kv_len, window;
    uint64_t bytes;
} ora_case_group;

typedef struct ora_case_spec {
    char name[ORA_CASE_NAME];
    ora_case_layer *layers;
    size_t n_layers;
    ora_case_group *groups;
    size_t n_groups;
    uint32_t owner; /* number of Owner in attnd.proto */
} ora_case_spec;

/* ---- Steps ------------------------------------------------------------------------------------
 */

typedef enum ora_case_order {
    ORA_CASE_LIST,
    ORA_CASE_ASCENDING,
    ORA_CASE_DESCENDING,
    ORA_CASE_SHUFFLED,
} ora_case_order;

/* Block ids, listed or laid out: sequence b has entries b·m .. b·m + m-1 of an order of all blocks
 * of the pool, m = ceil(tokens / block_size). */
typedef struct ora_case_blocks {
    ora_case_ints ids;
    ora_case_order order;
    uint64_t seed;     /* of a shuffled order */
    uint32_t tokens;   /* a sequence may reach */
    uint32_t sequence; /* the first row is this sequence's */
} ora_case_blocks;

typedef struct ora_case_table {
    uint32_t group, width;
    ora_case_blocks block_ids;
} ora_case_table;

typedef enum ora_case_mask {
    ORA_CASE_CAUSAL,
    ORA_CASE_FULL,
    ORA_CASE_VARIABLE,
    ORA_CASE_CUSTOM,
    ORA_CASE_TREE,
} ora_case_mask;

typedef struct ora_case_batch {
    uint32_t n_contexts;
    ora_case_ints q_lens, kv_lens, slots, positions;
    ora_case_table *tables;
    size_t n_tables;
    uint32_t mask;        /* ora_case_mask */
    ora_case_ints starts; /* variable: [tokens], both ends inclusive */
    ora_case_ints ends;
    ora_case_ints custom;  /* custom: 0 or 1 for each (row, key), sequences one behind the other */
    ora_case_ints parents; /* tree: for each token of a generation its parent's row, -1: none */
} ora_case_batch;

typedef struct ora_case_update {
    char plan[ORA_CASE_NAME]; /* name of the step that made it; in a step: "" */
    uint64_t version;         /* 0: the newest */
    ora_case_ints q_lens, kv_lens, slots, positions;
    ora_case_table *appended;
    size_t n_appended;
} ora_case_update;

/* Attend and Step. */
typedef struct ora_case_call {
    uint32_t layer, n_layers; /* a step: first_layer and n_layers */
    char plan[ORA_CASE_NAME]; /* name of the step that made it; "": batch */
    bool has_batch;
    ora_case_batch batch;
    bool has_update;
    ora_case_update update;
    ora_case_tensor q, k, v, out, lse, stats;
    uint32_t keys; /* 0 pool, 1 given */
    bool fused;    /* q, k and v travel as one tensor [q | k | v] */
    bool batch_invariant;
} ora_case_call;

/* Rows put into a pool by appends that nobody looks at. */
typedef struct ora_case_write {
    bool one_layer; /* else every layer of the group */
    uint32_t layer, group;
    bool has_blocks; /* else every row of every block */
    ora_case_blocks block_ids;
    uint32_t first, kv_len; /* rows first .. kv_len-1 of the sequence */
    ora_case_tensor k, v;
} ora_case_write;

typedef struct ora_case_partial {
    char step[ORA_CASE_NAME]; /* its out and lse (or stats); "": the tensors */
    bool use_stats;
    ora_case_tensor out, lse, stats;
} ora_case_partial;

typedef struct ora_case_merge {
    ora_case_partial *partials;
    size_t n_partials;
    uint32_t n_tokens, n_heads, width; /* of tensors */
    ora_case_tensor out, lse, stats;
} ora_case_merge;

/* Rows of this step are rows of another: rows[i] is of[i], bit for bit or within a distance. */
typedef struct ora_case_same {
    char step[ORA_CASE_NAME];
    ora_case_ints rows, of;
    double within;
} ora_case_same;

typedef struct ora_case_error {
    bool given;
    char code[32], reason[32]; /* "": any */
    char field[96];
    char message[160]; /* stands somewhere in the text */
} ora_case_error;

typedef struct ora_case_hash {
    char hash[24]; /* FNV1a64 of the gapless bytes, in hex; "": none */
} ora_case_hash;

typedef struct ora_case_expect {
    bool skip_oracle; /* given values alone decide */
    ora_case_tensor out, lse, stats;
    uint32_t pool; /* 0: not looked at, 1: as the oracle's, 2: and as before the step */
    ora_case_same *same_as;
    size_t n_same;
    char differs_from[ORA_CASE_NAME];
    char (*same_across)[ORA_CASE_NAME]; /* axes of variants that change no bit */
    size_t n_across;
    ora_case_error error, may_refuse;
    ora_case_hash exact_out, exact_lse; /* of the backend that was captured */
} ora_case_expect;

typedef enum ora_case_op {
    ORA_CASE_WRITE,
    ORA_CASE_OPEN_MODEL,
    ORA_CASE_CLOSE_MODEL,
    ORA_CASE_ATTEND,
    ORA_CASE_CREATE_PLAN,
    ORA_CASE_UPDATE_PLAN,
    ORA_CASE_DROP_PLAN,
    ORA_CASE_STEP,
    ORA_CASE_MERGE,
} ora_case_op;

typedef struct ora_case_step {
    char name[ORA_CASE_NAME]; /* "": "steps[i]" */
    ora_case_op op;
    uint32_t repeat; /* runs, all with the same bits; at least 1 */
    ora_case_write write;
    ora_case_spec spec;       /* open_model */
    ora_case_call call;       /* attend, step, create_plan: model's batch, batch_invariant */
    ora_case_update update;   /* update_plan */
    char plan[ORA_CASE_NAME]; /* drop_plan */
    ora_case_merge merge;
    ora_case_expect expect;
} ora_case_step;

typedef struct ora_arena ora_arena;

/* One variant of a file. */
typedef struct ora_case {
    char *about;
    uint64_t seed;
    attnd_dtype dtype;            /* of tensors that say none */
    char (*needs)[ORA_CASE_NAME]; /* features a daemon must have */
    size_t n_needs;
    bool oracle; /* judged by the oracle alone */
    bool has_spec;
    ora_case_spec spec;
    ora_case_step *steps;
    size_t n_steps;
    ora_arena *arena;
} ora_case;

/* ---- Files ------------------------------------------------------------------------------------
 */

/* A file's text, and the variants it stands for. */
typedef struct ora_case_file ora_case_file;

/* Parses text, which is borrowed for the call. Refuses BAD_CONFIG (no JSON, an axis that is none)
 * and NO_ROOM; *out is then NULL. */
attnd_status ora_case_file_open(ora_case_file **out, const char *text, attnd_err *err);
void ora_case_file_close(ora_case_file *file); /* accepts NULL */

size_t ora_case_n_variants(const ora_case_file *file); /* at least 1 */
bool ora_case_has_axis(const ora_case_file *file, const char *name);

/* "block_size=16 poison=nan" of variant i, in name[bytes]; without the axis `but` unless it is
 * NULL. */
void ora_case_variant_name(const ora_case_file *file, size_t i, const char *but, char *name,
                           size_t bytes);

/* Reads variant i. Refuses BAD_CONFIG with "steps[1].attend.q.amplitud: no such field, nearest is
 * amplitude"; *out is then empty. The caller calls ora_case_fini(). */
attnd_status ora_case_read(const ora_case_file *file, size_t i, ora_case *out, attnd_err *err);
void ora_case_fini(ora_case *c);

#endif
