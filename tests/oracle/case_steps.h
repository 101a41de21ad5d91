/* case_steps.h: one run of a case, and what its steps are made of: calls (case_call.c), rows of a
 * pool (case_pool.c), plans (case_plan.c). Private to the oracle.
 */
#ifndef ATTND_TESTS_ORACLE_CASE_STEPS_H
#define ATTND_TESTS_ORACLE_CASE_STEPS_H

#include "tests/oracle/case_json.h"
#include "tests/oracle/case_shadow.h"

typedef struct ora_run_plan {
    const char *name;
    uint64_t handle, version;
    ora_case_batch batch; /* tables list exactly the blocks of kv_lens; width 0 */
    bool is_open;
} ora_run_plan;

/* What a step wrote. */
typedef struct ora_outcome {
    bool ran;
    ora_bytes out, lse, stats;
} ora_outcome;

typedef struct ora_run {
    const ora_case *c;
    const ora_case_file *file;
    size_t variant;
    const ora_target *target; /* NULL: the evaluator alone */
    const ora_run_options *options;
    ora_bits *bits;
    ora_report *report;
    ora_arena *arena;
    ora_shadow shadow;
    bool is_open;
    uint64_t model;
    ora_run_plan *plans;   /* [n_steps], by step */
    ora_outcome *outcomes; /* [n_steps], by step */
} ora_run;

/* ---- Calls: case_call.c ---- */

/* NO_ROOM. */
attnd_status ora_run_no_memory(attnd_err *err);

/* The step of that name among those before i, or -1. */
int64_t ora_run_find_step(const ora_run *r, const char *name, size_t i);

/* The plan that the step of that name makes. BAD_CONFIG. */
attnd_status ora_run_find_plan(ora_run *r, const char *name, ora_run_plan **out, attnd_err *err);

/* The layer a call is of; one that is not there has the shape of the first. */
attnd_status ora_run_layer_of(const ora_run *r, uint32_t layer, const ora_shadow_layer **out,
                              attnd_err *err);

/* Blocks that hold so many tokens. */
int64_t ora_run_blocks_for(int64_t kv_len, uint32_t block_size);

/* Lists the block ids of tables; entries of row b: from[b] on, NULL: from the first. */
attnd_status ora_run_list_tables(ora_run *r, const ora_case_table *tables, size_t n,
                                 const ora_case_ints *kv_lens, const ora_case_ints *old_lens,
                                 ora_case_table **out, attnd_err *err);

/* A batch whose tables list their ids. */
attnd_status ora_run_list_batch(ora_run *r, const ora_case_batch *batch, ora_case_batch *out,
                                attnd_err *err);

/* What all of them add up to, negative ones left out. */
int64_t ora_run_count_tokens(const ora_case_ints *lens);

/* All of an output is 0xFF. */
void ora_run_poison(ora_bytes *b);

/* A refusal has written nothing. */
attnd_status ora_run_check_untouched(const ora_bytes *b, const char *what, attnd_err *err);

/* What a step's refusal, or its success, means. *refused: it ran, and was rightly refused. */
attnd_status ora_run_judge_refusal(const ora_case_expect *e, attnd_status status,
                                   const attnd_err *got, bool *refused, attnd_err *err);

/* q, k and v as one tensor [q | k | v]. */
attnd_status ora_run_fuse(ora_run *r, ora_call *call, attnd_err *err);

/* The tensors of a call over a batch of layers like `layer`. */
attnd_status ora_run_make_tensors(ora_run *r, const ora_case_call *c, const ora_case_batch *batch,
                                  const ora_case_layer *l, bool is_step, bool may_fail,
                                  ora_call *call, attnd_err *err);

/* The evaluator does what the call says, and its result is compared with what the target wrote; the
 * evaluator alone writes itself. */
attnd_status ora_run_judge_layers(ora_run *r, const ora_case_step *s, const ora_call *call,
                                  const ora_case_batch *batch, ora_outcome *o, attnd_err *err);

/* Keeps what a call wrote: gapless, of the run's memory. */
attnd_status ora_run_copy_bytes(ora_run *r, const ora_bytes *from, ora_bytes *to, attnd_err *err);

/* Sends a call as often as the step says, the same bits each time. *refused: rightly; else *o is
 * what it wrote. */
attnd_status ora_run_call(ora_run *r, const ora_case_step *s, const ora_call *sent, ora_call *call,
                          ora_outcome *o, bool *refused, attnd_err *err);

/* FNV1a64 of out and lse. */
uint64_t ora_run_hash_of(const ora_outcome *o);

/* Against other steps, other variants, and what was captured. */
attnd_status ora_run_judge_others(ora_run *r, size_t at, const ora_outcome *o, attnd_err *err);

/* ---- Rows of a pool: case_pool.c ---- */

/* A step `write`, and so on below. */
attnd_status ora_run_write(ora_run *r, const ora_case_write *w, attnd_err *err);

/* Every row of every block of every layer through attention, against the evaluator's copy. */
attnd_status ora_run_read_back(ora_run *r, attnd_err *err);

/* ---- Plans: case_plan.c ---- */

/* An update whose tables list their ids and that names its version. */
attnd_status ora_run_list_update(ora_run *r, const ora_case_update *u, const ora_run_plan *p,
                                 ora_case_update *out, attnd_err *err);

/* The plan as the update leaves it. */
attnd_status ora_run_apply_update(ora_run *r, ora_run_plan *p, const ora_case_update *u,
                                  attnd_err *err);

/* Steps of plans. */
attnd_status ora_run_create_plan(ora_run *r, size_t at, const ora_case_step *s, attnd_err *err);

attnd_status ora_run_update_plan(ora_run *r, const ora_case_step *s, attnd_err *err);

attnd_status ora_run_drop_plan(ora_run *r, const ora_case_step *s, attnd_err *err);

#endif
