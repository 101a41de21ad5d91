/* cpu.h: what the files of the CPU backend share. Private to kernels/cpu/. */
#ifndef ATTND_KERNELS_CPU_CPU_H
#define ATTND_KERNELS_CPU_CPU_H

#include "kernels/registry.h"

/* ---- Levels: the same bodies, compiled for each instruction set. ------------------------------
 */

typedef struct cpu_level {
    ker_run_item *decode;
    ker_run_item *prefill;
} cpu_level;

extern const cpu_level cpu_level_portable;
#if defined(__x86_64__)
extern const cpu_level cpu_level_avx2;
extern const cpu_level cpu_level_avx512;
#endif

/* The highest level this CPU has, or the one named. Refuses UNSUPPORTED (this CPU has less),
 * BAD_CONFIG (no such level). */
attnd_status cpu_isa_find(const char *name, ker_level *out, attnd_err *err);

/* The bodies of a level this CPU has. */
const cpu_level *cpu_isa_bodies(ker_level level);

/* ---- Workers. ---------------------------------------------------------------------------------
 */

/* Memory of one thread; dp and dvp are the head widths rounded up to 16. */
typedef struct cpu_scratch {
    float *q;     /* [KER_TILE_ROWS][dp] scaled */
    float *acc;   /* [KER_TILE_ROWS][dvp] Σ p·v of the running segment */
    float *total; /* [KER_TILE_ROWS][dvp] of the segments before it */
    float *k;     /* [KER_TILE_KEYS][dp] */
    float *kt;    /* [dp][KER_TILE_KEYS] */
    float *v;     /* [KER_TILE_KEYS][dvp] */
    float *score; /* [KER_TILE_ROWS][KER_TILE_KEYS] */
    char *memory;
    size_t bytes;
} cpu_scratch;

struct ker_worker {
    const cpu_level *level;
    cpu_scratch scratch;
};

/* ---- Memory (memory.c): ker_memory_* of this backend. -----------------------------------------
 */

/* Bytes of ker_memory that are mapped now. */
_Atomic uint64_t *cpu_device_mapped(ker_device *device);

attnd_status cpu_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                             attnd_err *err);
attnd_status cpu_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                   ker_memory *out, attnd_err *err);
void cpu_memory_free(ker_device *device, ker_memory *memory);
attnd_status cpu_memory_copy(ker_device *device, void *to, const void *from, size_t bytes,
                             attnd_err *err);

/* ---- Rows (rows.c): loading, rotating, storing one head of one token. -------------------------
 */

/* Numbers of a float dtype, exactly. */
void cpu_row_load(attnd_dtype dtype, const char *from, uint32_t n, float *to);

/* Rounds once. */
void cpu_row_store(attnd_dtype dtype, const float *from, uint32_t n, char *to);

/* Turns x[0 .. rope.dim) by cos_sin [dim/2][2] and rounds it to dtype. */
void cpu_row_rotate(const ker_rope *rope, const float *cos_sin, attnd_dtype dtype, float *x);

/* cos and sin of a token: the client's or those of the workspace; NULL without rope. */
const float *cpu_row_angles(const ker_plan *plan, const char *workspace, int64_t token);

/* Writes out, lse and stats of one row: o[Dv] not yet divided by l. */
void cpu_row_finish(const ker_problem *problem, int64_t token, uint32_t head, float m, double l,
                    const float *o);

/* ---- Stages of a launch that are not items. ---------------------------------------------------
 */

/* Tokens of one unit of cpu_append_tokens. */
enum { CPU_APPEND_TOKENS = 16 };

/* Angles of tokens [first, end) into the workspace, then their keys and values into the pool. */
void cpu_append_tokens(const ker_plan *plan, int64_t first, int64_t end, char *workspace);

/* Reduces the partial rows of one merge, in split order, and writes its outputs. acc[Dv] is
 * scratch. */
void cpu_merge_run(const ker_plan *plan, const ker_merge *merge, const char *workspace, float *acc);

/* Tokens of one unit of cpu_merge_parts. */
enum { CPU_MERGE_TOKENS = 8 };

/* Tokens [first, end) of a merge of given parts. acc and row have room for its width. */
void cpu_merge_parts(const ker_merge_problem *problem, int64_t first, int64_t end, float *acc,
                     float *row);

#endif
