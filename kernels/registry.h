/* registry.h: a row of kernels.def as a struct, and what registry, plan and device share about it.
 * Private to kernels/.
 */
#ifndef ATTND_KERNELS_REGISTRY_H
#define ATTND_KERNELS_REGISTRY_H

#include "kernels/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What every kernel of the table cuts its work into: rows of q (tokens times the heads of a group)
 * that share a pass over the keys, and keys of one step. Items start and end at multiples of the
 * tile but at the ends of what their rows see. */
enum {
    KER_TILE_ROWS = 64,
    KER_TILE_KEYS = 64,
    KER_MAX_DIM = 1024, /* D_ANY of kernels.def */
};

/* Instruction sets; within a backend each includes those before it. */
typedef enum ker_level {
    KER_LEVEL_PORTABLE,
    KER_LEVEL_AVX2,
    KER_LEVEL_AVX512,
    KER_N_CPU_LEVELS,
    KER_LEVEL_SM80 = KER_N_CPU_LEVELS,
    KER_LEVEL_SM90,
    KER_N_LEVELS,
} ker_level;

/* "portable", "avx2", "avx512", "sm_80", "sm_90". */
const char *ker_level_name(ker_level level);

/* The level a device was opened with. */
ker_level ker_device_level(const ker_device *device);

/* One thread of a device and its scratch memory. */
typedef struct ker_worker ker_worker;

/* cpu: carries out one item: writes outputs, or partial rows into the workspace. */
typedef void ker_run_item(ker_worker *worker, const ker_plan *plan, const ker_item *item,
                          char *workspace);

/* cuda: enqueues all items of a part; a cudaError_t. */
struct cuda_launch;
typedef int ker_run_part(const struct cuda_launch *launch);

/* Rows of the problem's phase, counted over the sequences (floor.c). */
typedef struct ker_work {
    double tokens; /* Σ q_len */
    double pairs;  /* (row, visible key) of one head */
    double keys;   /* visible to any row, of one kv head */
    double passes; /* keys read over all passes of at most KER_TILE_ROWS rows, of one kv head */
} ker_work;

ker_work ker_phase_work(const ker_problem *problem, ker_phase phase);

typedef struct ker_family {
    const char *name;
    double (*cost)(const ker_kernel *kernel, const ker_problem *problem,
                   const ker_work *work); /* seconds of one thread, or block of threads */
    uint32_t step;                        /* head widths are multiples of it */
    uint32_t align; /* bytes: addresses and strides of q and of the keys are multiples of it */
    bool one_type;  /* activations are of the keys' type */
} ker_family;

struct ker_kernel {
    const char *name;
    const ker_family *family;
    uint32_t rows;   /* bit 1 << ker_phase */
    uint32_t kv;     /* bit 1 << attnd_dtype */
    uint32_t dims;   /* the widest head */
    uint32_t masks;  /* KER_MASK_* */
    uint32_t extras; /* KER_EXTRA_* */
    ker_level needs;
    union {
        ker_run_item *item; /* cpu */
        ker_run_part *part; /* cuda */
    } run;
    const char *words[6]; /* rows, kv, dims, masks, extras, needs as the table spells them */
};

enum {
    KER_EXTRA_CAP = 1u << 0,
    KER_EXTRA_ALIBI = 1u << 1,
    KER_EXTRA_SINKS = 1u << 2,
    KER_EXTRA_GIVEN = 1u << 3,
};

/* Why a row does not serve: "subject: wants"; serves: both empty. */
typedef struct ker_reason {
    char subject[KER_REASON_TEXT / 2 - 2]; /* "head_dim = 2048" */
    char wants[KER_REASON_TEXT / 2 - 2];   /* "takes up to 1024" */
} ker_reason;

/* Whether a row serves a phase of the problem on a device of that level; fills *reason. */
bool ker_kernel_serves(const ker_kernel *kernel, ker_level level, const ker_problem *problem,
                       ker_phase phase, ker_reason *reason);

/* The activation type unless the rows say their own. */
static inline attnd_dtype ker_rows_dtype(const ker_problem *problem, const ker_rows *rows)
{
    return rows->dtype == ATTND_DTYPE_NONE ? problem->dtype : rows->dtype;
}

/* ---- The workspace of a launch: angles of every token, then partial rows. --------------------
 */

/* A partial row: m, l, then O[Dv] not yet divided by l, at KER_PARTIAL_O floats. */
enum { KER_PARTIAL_O = 16 };

/* Floats from one partial row to the next: a multiple of 64 bytes. */
static inline int64_t ker_partial_floats(const ker_problem *problem)
{
    return KER_PARTIAL_O + ((int64_t)problem->head_dim_v + 15) / 16 * 16;
}

/* Whether the launch makes cosines and sines itself. */
static inline bool ker_makes_angles(const ker_problem *problem)
{
    return problem->rope.pairing != ATTND_ROPE_NONE && !problem->rope.cos_sin;
}

/* Bytes of [n_tokens][r/2][2] fp32, rounded up to 64; of a problem whose plan was made. */
static inline int64_t ker_angles_bytes(const ker_problem *problem)
{
    if (!ker_makes_angles(problem))
        return 0;
    return (problem->batch.n_tokens * (int64_t)problem->rope.dim * 4 + 63) / 64 * 64;
}

#ifdef __cplusplus
}
#endif

#endif
