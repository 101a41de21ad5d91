/* rig.h: a problem made from a few numbers, run on a device and judged by the oracle.
 *
 * A rig holds the pool, inputs and outputs of one problem as one image of bytes: as given, as the
 * oracle leaves it, as it came back from the device. Every byte no row may see holds poison, every
 * byte no one may write a canary or what was given, and is compared. The problem is said twice: in
 * the words of kernels/, with addresses of the device, and in the oracle's, with addresses of the
 * images here.
 */
#ifndef ATTND_TESTS_KERNELS_RIG_H
#define ATTND_TESTS_KERNELS_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/near.h"
#include "tests/oracle/oracle.h"

#define RIG_MAX_SEQS 80

typedef enum rig_poison { POISON_ZERO, POISON_NAN, POISON_INF } rig_poison;

/* How q, k, v, out, lse and stats lie. */
typedef enum rig_rows {
    ROWS_APART,       /* three elements, aligned, between heads, 64 bytes between tokens */
    ROWS_PACKED,      /* no gaps */
    ROWS_HEADS_FIRST, /* [heads][tokens][width] */
    N_ROWS_LAYOUTS,
} rig_rows;

/* 0 or false where nothing is said. */
typedef struct rig_spec {
    const char *name;
    attnd_dtype dtype, kv, out; /* NONE: as dtype */
    uint32_t n_heads, n_kv_heads, d, dv;
    uint32_t block_size;
    bool nhd;
    bool gapped;      /* other layers lie between the blocks, planes lie apart */
    size_t far_bytes; /* the pool spans as many and only the blocks used are ever touched */
    bool given;       /* keys without a table */
    uint32_t n_seqs, n_contexts;
    int32_t q_len[RIG_MAX_SEQS], kv_len[RIG_MAX_SEQS];
    uint32_t kinds; /* KER_MASK_* */
    int32_t window, chunk;
    double softcap;
    bool alibi, sinks, append;
    bool slots; /* explicit: those the tables would say */
    bool skips; /* … but every third token is not stored: its key lies in the pool already */
    attnd_rope_pairing rope;
    uint32_t rope_dim;
    bool positions, deltas; /* explicit ones */
    bool cos_sin;           /* the angles of these positions, given per token */
    double amplitude;       /* of q; 0: 1 */
    bool batch_invariant;
    rig_rows rows;
    uint32_t align; /* of rows, bytes; 0: of the element */
    rig_poison poison;
    uint64_t order; /* another order of the blocks, the same data */
    uint64_t seed;
} rig_spec;

typedef struct rig {
    rig_spec spec;
    ker_problem problem; /* before the first run its addresses are those of `given` */
    ora_problem oracle;
    ora_result want_rows;
    int64_t n_tokens;
    char *given, *want, *got; /* images: pool, q, k, v, out, lse, stats, canaries between */
    size_t bytes;             /* of an image */
    size_t pool_bytes;        /* the pool begins RIG_EDGE bytes into an image */
    int64_t plane_at[2];      /* from the pool's start */
    int32_t *tables;          /* of the image; where the pool is far, the problem has its own */
    int32_t *far_tables, *far_ids; /* block i of the image is block far_ids[i] of the pool */
    int64_t n_tables, q_first[RIG_MAX_SEQS], kv_first[RIG_MAX_SEQS], block_first[RIG_MAX_SEQS];
    int32_t *slots, *start, *end, *positions, *deltas;
    float *slopes, *sinks, *cos_sin;
    double *freq;
    ker_device *device; /* that holds the memory below; NULL before the first run */
    ker_memory home, far;
    char *base; /* where the problem's image begins */
} rig;

enum { RIG_EDGE = 64, RIG_CANARY = 0xA7 };

uint64_t rig_random(uint64_t *state);

/* ---- Devices. ---------------------------------------------------------------------------------
 */

/* A CPU device of the instruction set; NULL when this CPU has it not. The best: isa NULL. */
ker_device *rig_device(const char *isa, uint32_t n_threads);

/* Every device the suites run on: the CPU's instruction sets, then "cuda". NULL where this machine,
 * or this build, has it not: rig_device_missing says why. */
#define RIG_N_DEVICES 4
extern const char *const rig_device_names[RIG_N_DEVICES];
extern ker_device *rig_devices[RIG_N_DEVICES];
extern char rig_device_missing[RIG_N_DEVICES][ATTND_ERR_TEXT];

/* Another of the same kind, to be closed by the caller. */
ker_device *rig_open(int device, uint32_t n_threads);

/* cmocka's group setup and teardown. */
int rig_open_devices(void **state);
int rig_close_devices(void **state);

/* Whether the device's backend and level are the kernel's. */
bool rig_has_level(const ker_device *device, const ker_kernel *kernel);

/* The best of the CPU's. */
ker_device *rig_best_device(void);

/* Loops over devices this machine has. */
#define EACH_DEVICE(i)                                                                             \
    for (int i = 0; i < RIG_N_DEVICES; i++)                                                        \
        if (rig_devices[i])

/* Loops over devices and the rows of the table that they can run at all. */
#define EACH_ROW(i, row)                                                                           \
    EACH_DEVICE(i)                                                                                 \
    for (size_t row = 0; row < ker_n_kernels(); row++)                                             \
        if (rig_has_level(rig_devices[i], ker_kernel_at(row)))

/* ---- Memory of a device: what differs where a device has memory of its own. -------------------
 */

void rig_alloc(ker_device *device, const char *name, size_t bytes, ker_memory *out);
void rig_upload(ker_device *device, char *to, const char *from, size_t bytes);
void rig_download(ker_device *device, char *to, const char *from, size_t bytes);

/* ---- Making. ----------------------------------------------------------------------------------
 */

size_t rig_size(attnd_dtype dtype);
void rig_make(rig *x, const rig_spec *spec);
void rig_free(rig *x);

/* Row of key j of sequence b in an image, plane 0 K and 1 V. */
char *rig_key(const rig *x, char *image, int plane, uint32_t g, uint32_t b, int64_t j);

/* Row of a token and head in an image; rows is q, append.k, …, stats of x->problem. */
char *rig_token(const rig *x, char *image, const ker_rows *rows, int64_t token, uint32_t head);

/* Fills with elements of dtype. */
void rig_fill(char *at, size_t bytes, attnd_dtype dtype, double value);

/* Key j of sequence b as given: K = 0 and V = value, in every head and channel. */
void rig_set_key(rig *x, uint32_t b, int64_t j, double value);

/* V = pos: every key that a row may see. */
void rig_set_positions(rig *x);

/* ---- Running. ---------------------------------------------------------------------------------
 */

typedef struct rig_wait {
    ker_ticket ticket; /* first: done gets its address */
    pthread_mutex_t lock;
    pthread_cond_t rang;
    bool is_done;
} rig_wait;

void rig_done(ker_ticket *ticket);
void rig_launch(ker_device *device, ker_stream *stream, const ker_plan *plan, rig_wait *wait);
void rig_join(rig_wait *wait);

/* One plan, alone, to its end. */
void rig_carry_out(ker_device *device, const ker_plan *plan);

/* A plan in memory that the caller frees. */
ker_plan *rig_plan(ker_device *device, const ker_problem *problem, uint32_t n_splits,
                   void **memory);

/* Puts the image as given on the device. Then the problem's addresses are there. */
void rig_put(rig *x, ker_device *device);

/* Brings it back into `got`. */
void rig_fetch(rig *x);

/* Put, run, fetch. The kernel carries out the phases it serves; NULL: the cheapest does. */
void rig_run(rig *x, ker_device *device, uint32_t n_splits, const ker_kernel *kernel);

/* Whether the kernel serves a phase the problem has rows in, and the others somebody does. */
bool rig_serves(const rig *x, ker_device *device, const ker_kernel *kernel);

/* ---- Judging. ---------------------------------------------------------------------------------
 */

/* The oracle's answer to the image as given, into `want` and `want_rows`. */
void rig_judge(rig *x);

/* What a run was off by, in shares of the gates of attention.md §22. */
typedef struct rig_errors {
    bool ok;
    double out, rms, lse;
    char text[2 * NEAR_TEXT];
} rig_errors;

/* All a run left behind: outputs, stored keys, and every byte it had no business with. */
rig_errors rig_errors_of(rig *x);

/* Fails the test unless all of it is right. */
void rig_check(rig *x, const char *what);

/* Fails the test unless the outputs of both have the same bits; the rigs lay rows out alike. */
void rig_same_bits(const rig *a, const rig *b, const char *what);

/* Where in a far pool a page was touched in which no used block lies; -1: nowhere, or the device's
 * memory cannot tell. */
int64_t rig_far_page(const rig *x);

double rig_out_at(const rig *x, int64_t token, uint32_t head, uint32_t channel);
double rig_lse_at(const rig *x, int64_t token, uint32_t head);

#endif
