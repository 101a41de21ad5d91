/* case_run.h: a case against a target: a daemon, or nobody but the evaluator.
 *
 * The runner keeps the evaluator's own copy of every pool. It hands the target what the wire would
 * carry, lets the evaluator do the same, and compares.
 */
#ifndef ATTND_TESTS_ORACLE_CASE_RUN_H
#define ATTND_TESTS_ORACLE_CASE_RUN_H

#include "tests/oracle/case.h"
#include "tests/oracle/near.h"

/* A tensor as the wire has it, and its values without gaps. */
typedef struct ora_bytes {
    bool given;
    attnd_dtype dtype;
    uint32_t n_dims;
    uint64_t shape[ORA_CASE_DIMS]; /* of one layer */
    uint32_t n_strides;
    int64_t strides[ORA_CASE_DIMS]; /* bytes */
    int64_t layer_stride;           /* bytes from layer to layer of a step */
    uint64_t offset;                /* of the tensor in its region, bytes */
    char *region;                   /* [n_region] */
    size_t n_region;
    bool is_alone; /* the case gives the region's size: a buffer of its own */
    char *packed;  /* [n_packed] the logical shape without gaps; may be the region */
    size_t n_packed;
    int64_t rows; /* of one layer */
    uint32_t n_layers, heads, width;
} ora_bytes;

/* Attend; with n_layers Step. */
typedef struct ora_call {
    uint64_t model;
    uint32_t layer, n_layers;
    uint64_t plan;                 /* 0: batch */
    const ora_case_batch *batch;   /* block ids of its tables are listed */
    const ora_case_update *update; /* of a step, with the version it starts from; NULL: none */
    ora_bytes q, k, v, out, lse, stats;
    uint32_t keys;
    bool batch_invariant;
} ora_call;

typedef struct ora_merge_part {
    ora_bytes out, lse, stats;
} ora_merge_part;

typedef struct ora_merge_call {
    const ora_merge_part *parts;
    size_t n_parts;
    ora_bytes out, lse, stats;
} ora_merge_call;

/* Whom a case is run against. Each call borrows what it is given, fills the regions of outputs and
 * refuses as attnd does. */
typedef struct ora_target {
    void *self;
    near_backend backend;
    bool (*has)(void *self, const char *feature);
    attnd_status (*open_model)(void *self, const ora_case_spec *spec, uint64_t *model,
                               uint32_t *n_blocks /* [n_groups] */, attnd_err *err);
    attnd_status (*close_model)(void *self, uint64_t model, attnd_err *err);
    attnd_status (*attend)(void *self, const ora_call *call, attnd_err *err);
    attnd_status (*step)(void *self, const ora_call *call, attnd_err *err);
    attnd_status (*create_plan)(void *self, uint64_t model, const ora_case_batch *batch,
                                bool batch_invariant, uint64_t *plan, attnd_err *err);
    attnd_status (*update_plan)(void *self, uint64_t plan, const ora_case_update *update,
                                attnd_err *err);
    attnd_status (*drop_plan)(void *self, uint64_t plan, attnd_err *err);
    attnd_status (*merge)(void *self, const ora_merge_call *call, attnd_err *err);
} ora_target;

typedef struct ora_run_options {
    bool plans; /* every attend with a batch goes through a plan */
    bool exact; /* compare what a case captured, bit for bit */
} ora_run_options;

typedef enum ora_verdict { ORA_CASE_OK, ORA_CASE_FAILED, ORA_CASE_SKIPPED } ora_verdict;

enum { ORA_REPORT_TEXT = 512, ORA_VARIANT_NAME = 160 };

typedef struct ora_report {
    ora_verdict verdict;
    char variant[ORA_VARIANT_NAME];
    double out, lse; /* worst error in parts of its gate; -1: not compared */
    uint32_t n_steps;
    char text[ORA_REPORT_TEXT]; /* why it failed or was skipped; "" when ok */
} ora_report;

/* What variants of one file must have in common: the bits along their axes. */
typedef struct ora_bits ora_bits;
ora_bits *ora_bits_make(void); /* NULL: no memory */
void ora_bits_free(ora_bits *bits);

/* Runs variant i of a file; target NULL: the evaluator alone. Fills *report, never refuses. */
void ora_case_run(const ora_case_file *file, size_t i, const ora_target *target,
                  const ora_run_options *options, ora_bits *bits, ora_report *report);

#endif
