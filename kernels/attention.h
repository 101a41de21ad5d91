/* attention.h: the contract of kernels/: problem, kernel, plan, device.
 *
 * A problem says what is to be computed, in the words and symbols of attention.md, as plain
 * pointers and byte strides. It knows no request, session or pool object: own pools, imported ones
 * and rows given by the caller are the same to it. A kernel is a row of kernels.def. A plan is a
 * problem with a kernel chosen and the work cut into pieces. A device carries plans out.
 */
#ifndef ATTND_KERNELS_ATTENTION_H
#define ATTND_KERNELS_ATTENTION_H

#include <stdbool.h>

#include "proto/err.h"
#include "proto/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The problem ------------------------------------------------------------------------------
 */

/* A tensor [tokens][heads][width]; strides in bytes, the innermost stride is the element.
 * base NULL: not given. */
typedef struct ker_rows {
    char *base;
    int64_t token_stride;
    int64_t head_stride;
    attnd_dtype dtype;
} ker_rows;

/* Where the keys and values of one layer lie (attention.md §3). Row r of block x and kv head g is
 * at plane[p] + x·block_stride + g·head_stride[p] + r·token_stride[p], p = 0 for K and 1 for V; D
 * (Dv) elements follow each other. The layer's own offset is already in plane[]. MLA: both planes
 * are one.
 *
 * Without a table (ker_batch.block_ids NULL) block_stride is unused and row r counts from
 * ker_batch.kv_first of its sequence: keys given by the caller, packed. */
typedef struct ker_kv {
    char *plane[2];
    int64_t block_stride;
    int64_t head_stride[2];
    int64_t token_stride[2];
    int64_t n_blocks;
    uint32_t block_size; /* T, tokens; a power of two */
    attnd_dtype dtype;
} ker_kv;

/* The sequences of the call, contexts first (attention.md §2). Arrays are borrowed until the ticket
 * is done; whoever made the problem has checked them (attention.md §24). */
typedef struct ker_batch {
    uint32_t n_seqs;
    uint32_t n_contexts;  /* sequences 0 .. n_contexts-1 have many new tokens */
    int64_t n_tokens;     /* Σ q_len */
    const int32_t *q_len; /* [n_seqs] */
    const int32_t
        *kv_len; /* [n_seqs], keys visible at most, those appended by this call included */
    const int64_t *q_first;     /* [n_seqs], first packed token row of the sequence; ascending */
    const int64_t *kv_first;    /* [n_seqs], first row of given keys; NULL when block_ids is not */
    const int32_t *block_ids;   /* all tables, one behind the other; NULL: keys are given */
    const int64_t *block_first; /* [n_seqs], where the table of the sequence starts in block_ids */
    const int32_t *positions;   /* [n_tokens] rotary positions; NULL: past + i */
    const int32_t *rope_delta;  /* [n_seqs], added to every position (mrope); NULL: 0 */
} ker_batch;

/* What is stored before attention (attention.md §4). k.base NULL: nothing. */
typedef struct ker_append {
    ker_rows k, v;        /* [n_tokens][n_kv_heads][D, Dv], packed like q */
    const int32_t *slots; /* [n_tokens] block·T + row, -1: do not store; NULL: the tables say */
} ker_append;

/* Rotation of q and of appended k (attention.md §5). Angles, cosine and sine in double, times
 * amplitude, rounded once to fp32; the rotated value rounded once to the activation type. */
typedef struct ker_rope {
    attnd_rope_pairing pairing; /* ATTND_ROPE_NONE: q and k are used as given */
    uint32_t dim;               /* r, even, 2 .. D: channels ≥ r pass through */
    const double *freq;   /* [r/2] angle per position (f'_n of §5.3), scaling already in it */
    double amplitude;     /* A; 1 for most */
    const float *cos_sin; /* [n_tokens][r/2][2] given by the client; NULL: from freq */
} ker_rope;

/* Every mask is bounds, bits or a list (attention.md §6, §16). */
enum {
    KER_MASK_CAUSAL = 1u << 0,   /* j ≤ a */
    KER_MASK_WINDOW = 1u << 1,   /* j ≥ a - window + 1 */
    KER_MASK_CHUNK = 1u << 2,    /* j ≥ chunk·⌊a/chunk⌋ */
    KER_MASK_VARIABLE = 1u << 3, /* start[t] ≤ j ≤ end[t]; replaces causal, window, chunk */
    KER_MASK_BYTES = 1u << 4,    /* custom, a byte per (row, key); replaces causal and chunk */
    KER_MASK_BITS = 1u << 5,     /* custom, packed bits, LSB first */
    KER_MASK_TREE = 1u << 6,     /* words over the last q_len keys; replaces causal */
    KER_MASK_BLOCKS = 1u << 7,   /* list of admitted key blocks (§16.2) */
    KER_MASK_TOPK = 1u << 8,     /* list of admitted keys per token (§16.3) */
    KER_MASK_BOUNDS = KER_MASK_CAUSAL | KER_MASK_WINDOW | KER_MASK_CHUNK | KER_MASK_VARIABLE,
};

typedef struct ker_mask {
    uint32_t kinds;              /* KER_MASK_*; 0: full */
    int32_t window;              /* W ≥ 1, keys, own key included */
    int32_t chunk;               /* c ≥ 1 */
    const int32_t *start, *end;  /* [n_tokens], inclusive */
    const uint8_t *custom;       /* bytes or bits */
    const int64_t *custom_first; /* [n_seqs], first byte of the sequence */
    const uint32_t *tree_words;  /* row i of generation b at tree_first[b] + i·tree_width */
    const int64_t *tree_first;   /* [n_seqs] */
    uint32_t tree_width;         /* Wd, words a row */
    const int32_t *list;         /* blocks or keys */
    const int64_t *list_first; /* blocks: per (sequence, pattern head, q block); keys: per token */
    const int32_t *list_len;
    uint32_t list_block_q, list_block_kv; /* §16.2, tokens */
    uint32_t list_heads;                  /* pattern heads: 1 or n_kv_heads */
    bool list_is_slots;                   /* §16.3: entries are slots, not key indices */
} ker_mask;

/* Additions to the scaled score (attention.md §7). */
typedef struct ker_bias {
    float softcap;             /* 0: none */
    const float *alibi_slopes; /* [n_heads]; NULL: none */
    const float *relative;  /* dense [n_heads][size][size], or T5 [n_heads][buckets]; NULL: none */
    uint32_t relative_size; /* size, or buckets */
    uint32_t relative_max_distance; /* > 0: T5 buckets */
    bool relative_bidirectional;
    const float *sinks; /* [n_heads] logits; NULL: none */
} ker_bias;

/* Factors of quantised tensors (attention.md §14.1): x_q = RN(x·orig_quant), x ≈ x_q·quant_orig. 0
 * and 1 say the same. */
typedef struct ker_quant {
    float k_orig_quant, v_orig_quant; /* on store; 1 when unquantised */
    const float *k_quant_orig;        /* on load */
    const float *v_quant_orig;
    uint32_t quant_orig_per; /* 0: one number; 1: per kv head; 2: per (sequence, kv head) */
    bool stored_head_scales; /* the pool keeps a scale per (token, kv head) */
    int64_t scale_offset[2]; /* from a slab's start to its scale plane */
    float q_quant_orig;
    float out_orig_quant;
} ker_quant;

typedef struct ker_problem {
    attnd_layer_kind kind;
    uint32_t n_heads;    /* Hq */
    uint32_t n_kv_heads; /* Hkv, divides Hq */
    uint32_t head_dim;   /* D, of q and k */
    uint32_t head_dim_v; /* Dv, of v and out */
    float sm_scale;      /* the whole factor on q·k before the cap */
    attnd_dtype dtype;   /* activation type: q, k, v to append, and out unless out says otherwise */
    ker_batch batch;
    ker_rows q;
    ker_append append;
    ker_kv kv;
    ker_rope rope;
    ker_mask mask;
    ker_bias bias;
    ker_quant quant;
    ker_rows out; /* [n_tokens][n_heads][Dv] */
    ker_rows
        lse; /* [n_tokens][n_heads] fp32, natural log, sink excluded; base NULL: not asked for */
    ker_rows stats;       /* [n_tokens][n_heads][2] fp32 (m, l); base NULL: not asked for */
    bool batch_invariant; /* a row's bits do not depend on the other rows */
} ker_problem;

/* The lowest key any row of a sequence can see (attention.md §3.4): table entries below its block
 * are never read. */
int64_t ker_mask_lowest_key(const ker_mask *mask, int32_t q_len, int32_t kv_len);

/* Bounds of row i: keys lo .. hi-1 (hi ≤ lo: none) when all active kinds are bounds. */
void ker_mask_bounds(const ker_mask *mask, int32_t q_len, int32_t kv_len, int32_t i, int64_t token,
                     int32_t *lo, int32_t *hi);

/* ---- What a problem cannot do without (floor.c) ----------------------------------------------
 */

typedef struct ker_floor {
    double bytes; /* read and written at least once, KV once per kv head */
    double flops; /* multiply and add count two; masked pairs do not count */
} ker_floor;

ker_floor ker_problem_floor(const ker_problem *problem);

/* ---- Kernels (registry.c, kernels.def) -------------------------------------------------------
 */

typedef struct ker_device ker_device;
typedef struct ker_kernel ker_kernel;
typedef struct ker_plan ker_plan;

/* Which sequences of a problem a kernel can serve. */
typedef enum ker_phase {
    KER_CONTEXT,    /* sequences 0 .. n_contexts-1 */
    KER_GENERATION, /* the rest */
} ker_phase;

#define KER_REASON_TEXT 160

/* One row of kernels.def against one problem. */
typedef struct ker_verdict {
    const ker_kernel *kernel;
    bool serves;
    double cost;                  /* seconds expected, when it serves */
    char reason[KER_REASON_TEXT]; /* why it does not: "head_dim = 96: takes 128" */
} ker_verdict;

size_t ker_n_kernels(void);
const ker_kernel *ker_kernel_at(size_t i); /* in the order of kernels.def */
const char *ker_kernel_name(const ker_kernel *kernel);

/* What the row serves, for people: {"family", "rows", "kv", "dims", "masks", "extras", "needs"} in
 * that order; returns the count written (at most n). */
size_t ker_kernel_describe(const ker_kernel *kernel, const char *keys[], const char *values[],
                           size_t n);

/* Judges every row; verdicts[ker_n_kernels()]. Returns how many serve. */
size_t ker_judge(const ker_device *device, const ker_problem *problem, ker_phase phase,
                 ker_verdict *verdicts);

/* The cheapest row that serves the phase, or UNSUPPORTED with every row's reason in the text. */
attnd_status ker_find(const ker_device *device, const ker_problem *problem, ker_phase phase,
                      const ker_kernel **out, attnd_err *err);

/* ---- Plans (plan.c): host arithmetic, plain data ---------------------------------------------
 */

/* One piece of work: rows of one sequence and kv head over a range of keys. */
typedef struct ker_item {
    int32_t seq;
    int32_t kv_head;
    int32_t row_first, n_rows; /* query tokens of the sequence; all heads of the group go along */
    int32_t kv_first, kv_end;  /* keys; a multiple of the kernel's tile but at the ends */
    int64_t partial; /* first partial row in the workspace, -1: writes the output itself */
} ker_item;

/* One reduction: the partials of a range of rows, in split order. */
typedef struct ker_merge {
    int32_t seq;
    int32_t kv_head;
    int32_t row_first, n_rows;
    int32_t n_splits;
    int64_t partial; /* first partial row; split s starts at partial + s·n_rows·group */
} ker_merge;

typedef struct ker_part {
    const ker_kernel *kernel; /* NULL: the phase has no sequence */
    ker_item *items;
    int64_t n_items;
    ker_merge *merges;
    int64_t n_merges;
} ker_part;

struct ker_plan {
    ker_problem problem; /* its arrays stay borrowed */
    ker_part part[2];    /* by ker_phase */
    int64_t n_partials;  /* rows of (m, l, O[Dv]) fp32 in the workspace */
    size_t workspace_bytes;
};

/* Bytes that ker_plan_make may need for this problem at most when n_splits is 0; else n_splits + 1
 * times as many. SIZE_MAX when they cannot be counted. */
size_t ker_plan_bytes(const ker_device *device, const ker_problem *problem);

/* Chooses kernels and cuts the work. Fills memory (bytes of it, 64-byte aligned) and points *out
 * into it; borrows the problem's arrays. Refuses UNSUPPORTED (no kernel), TOO_LARGE (more workspace
 * than the device has at all, or more memory than bytes). Same problem and device: same plan.
 * n_splits 0: the planner decides; else that many pieces for every sequence long enough (tests,
 * explain). */
attnd_status ker_plan_make(const ker_device *device, const ker_problem *problem, uint32_t n_splits,
                           void *memory, size_t bytes, ker_plan **out, attnd_err *err);

/* ---- The device (device.c) ---------------------------------------------------------------
 */

typedef struct ker_device_options {
    const char *backend;    /* "cuda", "cpu"; NULL: the best that opens */
    uint32_t n_threads;     /* cpu: threads that compute; 0: one per CPU this process may use */
    uint32_t n_slots;       /* launches that may run at once, each with a workspace of its own */
    size_t workspace_bytes; /* per slot */
    const char *isa; /* NULL: the best of this CPU; "avx512", "avx2", "portable" to force one */
} ker_device_options;

typedef struct ker_device_info {
    const char *backend; /* "cuda", "cpu" */
    char name[96];       /* for people */
    const char *isa;     /* "avx512" …, "sm_90" … */
    uint32_t n_threads;  /* pieces of work that run at once: threads, or blocks of threads */
    char passed_over[ATTND_ERR_TEXT]; /* why a better backend did not open; "": none was tried */
    size_t workspace_bytes;           /* per slot */
    uint32_t n_slots;
} ker_device_info;

/* Memory of the device that can be handed to another process by a file descriptor. */
typedef struct ker_memory {
    void *base;    /* mapped here; an address of the device */
    size_t bytes;  /* as asked for */
    size_t mapped; /* rounded up to the granularity */
    int fd;        /* closed by ker_memory_free */
} ker_memory;

/* Work carried out in the order of its launches; different streams run side by side. */
typedef struct ker_stream ker_stream;

/* Embedded by the caller; filled by ker_launch, completed once. */
typedef struct ker_ticket ker_ticket;
typedef struct ker_merge_problem ker_merge_problem;
struct ker_ticket {
    void (*done)(ker_ticket *ticket); /* from a device thread, exactly once; must not block */
    attnd_err err; /* valid in done: OK, KERNEL_FAILED, or TIMED_OUT: it was not started */
    const ker_ticket
        *follows;         /* in: of the same stream; not started when that one was not, or failed */
    uint64_t deadline_ns; /* in: not started later than this, CLOCK_MONOTONIC; 0: whenever */
    uint64_t launched_ns, started_ns, ended_ns; /* CLOCK_MONOTONIC */
    ker_ticket *next;                           /* the device's while the work is queued */
    const ker_plan *plan;
    const ker_merge_problem *merge; /* or this */
};

/* Refuses NO_ROOM (memory, threads), UNSUPPORTED (an isa this CPU has not), BAD_CONFIG (no such
 * isa, no slot). The caller closes it; *out is NULL on refusal. */
attnd_status ker_device_open(ker_device **out, const ker_device_options *options, attnd_err *err);

/* Waits for work in flight. Accepts NULL. */
void ker_device_close(ker_device *device);
void ker_device_describe(const ker_device *device, ker_device_info *info);

/* Zero-filled memory named for /proc (memfd on the CPU), sealed against shrinking and growing.
 * Refuses NO_ROOM with both numbers, "bytes = 188978561024: 176.0 GiB; 131.2 GiB are free"; memory
 * made before and not yet touched is not free. */
attnd_status ker_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                             attnd_err *err);

/* The same as a new POSIX shared memory object, which nothing seals: whoever may open it may also
 * truncate it, and the next access kills. All of it is allocated. Locked (flock) as long as this
 * process lives; the caller unlinks the name. */
attnd_status ker_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                   ker_memory *out, attnd_err *err);
void ker_memory_free(ker_device *device, ker_memory *memory);

/* Copies between memory of the device and the caller's; returns when it is done. Not ordered with
 * launches: what they write is read after their done. KERNEL_FAILED when the device fails. */
attnd_status ker_memory_read(ker_device *device, void *to, const void *from, size_t bytes,
                             attnd_err *err);
attnd_status ker_memory_write(ker_device *device, void *to, const void *from, size_t bytes,
                              attnd_err *err);

attnd_status ker_stream_open(ker_device *device, ker_stream **out, attnd_err *err);

/* Must be idle: every done was called. Not from within done. Accepts NULL. */
void ker_stream_close(ker_stream *stream);

/* Enqueues a plan: rope, append, attention, merge, in that order. Returns at once; borrows the
 * plan, what it points to and the ticket until ticket->done. Never refuses for room: what cannot
 * run yet waits in the stream. */
void ker_launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket);

/* ---- Merge of partial results (attention.md §12) ----------------------------------------------
 */

/* Attention of the same rows over disjoint sets of keys. Each part gives lse, or stats when
 * lse.base is NULL. A part whose weight is 0 in a row is not read there. */
typedef struct ker_merge_part {
    ker_rows out, lse, stats;
} ker_merge_part;

struct ker_merge_problem {
    int64_t n_tokens;
    uint32_t n_heads, width;
    const ker_merge_part *parts; /* [n_parts], borrowed until the ticket is done */
    uint32_t n_parts;
    ker_rows out;        /* f32, f16, bf16 */
    ker_rows lse, stats; /* fp32; base NULL: not asked for */
};

/* As ker_launch: enqueues the merge, in the order of the parts, in fp32. width is at most that of a
 * head a kernel serves. */
void ker_launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                      ker_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
