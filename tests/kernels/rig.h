/* rig.h: a problem made from a few numbers, run on a device and judged by the oracle.
 *
 * A rig holds the pool, tables, inputs and outputs of one problem twice: in the words of kernels/
 * and in the oracle's. Every byte no row may see holds poison, every byte no one may write holds a
 * canary. Included by the tests of kernels/.
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

#include "kernels/attention.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/near.h"
#include "tests/oracle/oracle.h"

#define RIG_MAX_SEQS 80
#define RIG_CANARY 0xA7

typedef enum rig_poison { POISON_ZERO, POISON_NAN, POISON_INF } rig_poison;

/* 0 or false where nothing is said. */
typedef struct rig_spec {
    const char *name;
    attnd_dtype dtype, kv, out; /* NONE: as dtype */
    uint32_t n_heads, n_kv_heads, d, dv;
    uint32_t block_size;
    bool nhd;
    bool given; /* keys without a table */
    uint32_t n_seqs, n_contexts;
    int32_t q_len[RIG_MAX_SEQS], kv_len[RIG_MAX_SEQS];
    uint32_t kinds; /* KER_MASK_* */
    int32_t window, chunk;
    double softcap;
    bool alibi, sinks, append, slots;
    attnd_rope_pairing rope;
    uint32_t rope_dim;
    double amplitude; /* of q; 0: 1 */
    bool batch_invariant;
    rig_poison poison;
    uint64_t seed;
} rig_spec;

typedef struct rig {
    rig_spec spec;
    ker_problem problem;
    ora_problem oracle;
    ora_result want;
    int64_t n_tokens;
    char *pool, *pool_want; /* as given; as the oracle leaves it */
    char *pool_run;         /* what the kernels work on */
    size_t pool_bytes;
    int32_t *tables;
    int64_t q_first[RIG_MAX_SEQS], kv_first[RIG_MAX_SEQS], block_first[RIG_MAX_SEQS];
    char *q, *k, *v;
    int32_t *slots, *start, *end;
    float *slopes, *sinks;
    double *freq;
    char *out, *lse, *stats; /* with canaries between rows and around */
    size_t out_bytes, lse_bytes, stats_bytes;
} rig;

static inline uint64_t rig_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline void *rig_alloc(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

/* ---- Making. ----------------------------------------------------------------------------------
 */

static inline size_t rig_size(attnd_dtype dtype)
{
    return attnd_dtype_bits(dtype) / 8;
}

static inline void rig_poison_fill(char *at, size_t bytes, attnd_dtype dtype, rig_poison poison)
{
    static const double values[] = {0, NAN, INFINITY};
    char one[4];
    ora_encode(dtype, &values[poison], 1, one);
    for (size_t i = 0; i < bytes; i += rig_size(dtype))
        memcpy(at + i, one, rig_size(dtype));
}

/* Keys that lie in the pool before the call. */
static inline int32_t rig_cached(const rig *x, uint32_t b)
{
    return x->spec.append ? x->spec.kv_len[b] - x->spec.q_len[b] : x->spec.kv_len[b];
}

static inline char *rig_row(const rig *x, char *pool, int plane, uint32_t g, uint32_t b, int64_t j)
{
    const ker_kv *kv = &x->problem.kv;
    char *at = pool + (kv->plane[plane] - x->pool_run) + g * kv->head_stride[plane];
    if (x->spec.given)
        return at + (x->kv_first[b] + j) * kv->token_stride[plane];
    int64_t block = x->tables[x->block_first[b] + j / kv->block_size];
    return at + block * kv->block_stride + j % kv->block_size * kv->token_stride[plane];
}

/* Bytes of one row and where rows lie in a block (or, given, in one run of tokens). */
static inline void rig_lay_out_pool(rig *x)
{
    const rig_spec *s = &x->spec;
    ker_kv *kv = &x->problem.kv;
    size_t size = rig_size(kv->dtype);
    int64_t n_rows[RIG_MAX_SEQS], total_rows = 0, n_tables = 0;
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        n_rows[b] = s->kv_len[b];
        x->kv_first[b] = total_rows;
        total_rows += n_rows[b];
        x->block_first[b] = n_tables;
        n_tables += (n_rows[b] + s->block_size - 1) / s->block_size;
    }
    int64_t widths[2] = {(int64_t)(s->d * size), (int64_t)(s->dv * size)};
    int64_t tokens = s->given ? total_rows : s->block_size;
    int64_t plane_bytes[2];
    for (int plane = 0; plane < 2; plane++) {
        plane_bytes[plane] = tokens * s->n_kv_heads * widths[plane];
        kv->head_stride[plane] = s->nhd ? widths[plane] : tokens * widths[plane];
        kv->token_stride[plane] = s->nhd ? s->n_kv_heads * widths[plane] : widths[plane];
    }
    kv->n_blocks = s->given ? 1 : n_tables + 3;
    kv->block_size = s->block_size;
    kv->block_stride = plane_bytes[0] + plane_bytes[1];
    x->pool_bytes = (size_t)(kv->n_blocks * kv->block_stride);
    x->pool = rig_alloc(x->pool_bytes);
    x->pool_want = rig_alloc(x->pool_bytes);
    x->pool_run = rig_alloc(x->pool_bytes);
    kv->plane[0] = x->pool_run;
    kv->plane[1] = x->pool_run + plane_bytes[0];
    x->tables = rig_alloc((size_t)n_tables * sizeof *x->tables);
    /* Ids in a random order, three of the pool's unused. */
    int32_t *ids = rig_alloc((size_t)kv->n_blocks * sizeof *ids);
    uint64_t state = s->seed + 99;
    for (int32_t i = 0; i < kv->n_blocks; i++) {
        int64_t j = (int64_t)(rig_random(&state) % (uint64_t)(i + 1));
        ids[i] = ids[j];
        ids[j] = i;
    }
    if (!s->given)
        memcpy(x->tables, ids, (size_t)n_tables * sizeof *ids);
    free(ids);
}

static inline void rig_fill_pool(rig *x)
{
    const rig_spec *s = &x->spec;
    attnd_dtype kv = x->problem.kv.dtype;
    rig_poison_fill(x->pool, x->pool_bytes, kv, s->poison);
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        int64_t low = ker_mask_lowest_key(&x->problem.mask, s->q_len[b], s->kv_len[b]);
        for (int64_t j = low; j < rig_cached(x, b); j++)
            for (uint32_t g = 0; g < s->n_kv_heads; g++) {
                uint64_t row = ((uint64_t)b << 40) + (uint64_t)j * s->n_kv_heads + g;
                ora_generate(s->seed, "k", row * s->d, s->d, 1, kv,
                             rig_row(x, x->pool, 0, g, b, j));
                ora_generate(s->seed, "v", row * s->dv, s->dv, 1, kv,
                             rig_row(x, x->pool, 1, g, b, j));
            }
        /* Entries below the lowest key are never read. */
        if (!s->given)
            for (int64_t n = 0; n < low / s->block_size; n++)
                x->tables[x->block_first[b] + n] = -1;
    }
}

/* Rows with gaps of canaries between heads and tokens, and around. */
static inline char *rig_rows(ker_rows *rows, attnd_dtype dtype, int64_t n_tokens, uint32_t heads,
                             uint32_t width, size_t *bytes)
{
    size_t size = rig_size(dtype);
    rows->dtype = dtype;
    rows->head_stride = (int64_t)(width * size + 3 * size);
    rows->token_stride = heads * rows->head_stride + 64;
    *bytes = (size_t)(n_tokens * rows->token_stride + 128);
    char *memory = rig_alloc(*bytes);
    memset(memory, RIG_CANARY, *bytes);
    rows->base = memory + 64;
    return memory;
}

static inline char *rig_inputs(const rig *x, ker_rows *rows, const char *name, uint32_t heads,
                               uint32_t width, double amplitude)
{
    size_t bytes;
    char *memory = rig_rows(rows, x->spec.dtype, x->n_tokens, heads, width, &bytes);
    for (int64_t t = 0; t < x->n_tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            ora_generate(x->spec.seed, name, ((uint64_t)t * heads + h) * width, width, amplitude,
                         x->spec.dtype,
                         rows->base + t * rows->token_stride + h * rows->head_stride);
    return memory;
}

/* Explicit slots: those the tables would say. */
static inline void rig_make_slots(rig *x)
{
    x->slots = rig_alloc((size_t)x->n_tokens * sizeof *x->slots);
    for (uint32_t b = 0; b < x->spec.n_seqs; b++)
        for (int32_t i = 0; i < x->spec.q_len[b]; i++) {
            int64_t t = x->q_first[b] + i, j = rig_cached(x, b) + i;
            uint32_t size = x->spec.block_size;
            x->slots[t] =
                (int32_t)(x->tables[x->block_first[b] + j / size] * (int64_t)size + j % size);
        }
    x->problem.append.slots = x->slots;
}

static inline void rig_make_mask(rig *x)
{
    const rig_spec *s = &x->spec;
    uint64_t state = s->seed + 7;
    x->start = rig_alloc((size_t)x->n_tokens * sizeof *x->start);
    x->end = rig_alloc((size_t)x->n_tokens * sizeof *x->end);
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int32_t i = 0; i < s->q_len[b]; i++) {
            int64_t t = x->q_first[b] + i, span = s->kv_len[b] + 4;
            x->start[t] = (int32_t)(rig_random(&state) % (uint64_t)span) - 2;
            x->end[t] = x->start[t] + (int32_t)(rig_random(&state) % (uint64_t)span) - 2;
        }
    x->problem.mask = (ker_mask){.kinds = s->kinds, .window = s->window, .chunk = s->chunk};
    if (s->kinds & KER_MASK_VARIABLE) {
        x->problem.mask.start = x->start;
        x->problem.mask.end = x->end;
    }
}

static inline void rig_mirror(rig *x)
{
    const ker_problem *p = &x->problem;
    const rig_spec *s = &x->spec;
    x->oracle = (ora_problem){
        .n_heads = p->n_heads,
        .n_kv_heads = p->n_kv_heads,
        .head_dim = p->head_dim,
        .head_dim_v = p->head_dim_v,
        .sm_scale = (double)p->sm_scale,
        .dtype = p->dtype,
        .n_seqs = p->batch.n_seqs,
        .n_contexts = p->batch.n_contexts,
        .q_len = p->batch.q_len,
        .kv_len = p->batch.kv_len,
        .q_first = p->batch.q_first,
        .kv_first = p->batch.kv_first,
        .block_ids = p->batch.block_ids,
        .block_first = p->batch.block_first,
        .q = {p->q.base, p->q.token_stride, p->q.head_stride, p->q.dtype},
        .slots = p->append.slots,
        .kv = {.plane = {x->pool_want + (p->kv.plane[0] - x->pool_run),
                         x->pool_want + (p->kv.plane[1] - x->pool_run)},
               .block_stride = p->kv.block_stride,
               .head_stride = {p->kv.head_stride[0], p->kv.head_stride[1]},
               .token_stride = {p->kv.token_stride[0], p->kv.token_stride[1]},
               .n_blocks = p->kv.n_blocks,
               /* 0 tells the oracle that rows are not in blocks. */
               .block_size = s->given ? 0 : p->kv.block_size,
               .dtype = p->kv.dtype},
        .rope = {.pairing = p->rope.pairing, .dim = p->rope.dim, .theta = 10000},
        .mask = {.kinds = p->mask.kinds,
                 .window = p->mask.window,
                 .chunk = p->mask.chunk,
                 .start = p->mask.start,
                 .end = p->mask.end},
        .bias.softcap = s->softcap,
        .bias.alibi_slopes = p->bias.alibi_slopes,
        .bias.sinks = p->bias.sinks,
    };
    if (s->append) {
        const ker_rows *k = &p->append.k, *v = &p->append.v;
        x->oracle.k = (ora_rows){k->base, k->token_stride, k->head_stride, k->dtype};
        x->oracle.v = (ora_rows){v->base, v->token_stride, v->head_stride, v->dtype};
    }
}

static inline void rig_make(rig *x, const rig_spec *spec)
{
    *x = (rig){.spec = *spec};
    rig_spec *s = &x->spec;
    s->kv = s->kv ? s->kv : s->dtype;
    s->out = s->out ? s->out : s->dtype;
    s->dv = s->dv ? s->dv : s->d;
    s->block_size = s->block_size ? s->block_size : 16;
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        x->q_first[b] = x->n_tokens;
        x->n_tokens += s->q_len[b];
    }
    ker_problem *p = &x->problem;
    *p = (ker_problem){
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->d,
        .head_dim_v = s->dv,
        .sm_scale = (float)ora_sm_scale(0, s->d),
        .dtype = s->dtype,
        .kv = {.dtype = s->kv},
        .bias = {.softcap = (float)s->softcap},
        .batch_invariant = s->batch_invariant,
    };
    p->batch = (ker_batch){.n_seqs = s->n_seqs,
                           .n_contexts = s->n_contexts,
                           .n_tokens = x->n_tokens,
                           .q_len = s->q_len,
                           .kv_len = s->kv_len,
                           .q_first = x->q_first};
    rig_make_mask(x);
    rig_lay_out_pool(x);
    if (s->given) {
        p->batch.kv_first = x->kv_first;
    } else {
        p->batch.block_ids = x->tables;
        p->batch.block_first = x->block_first;
    }
    rig_fill_pool(x);
    x->q = rig_inputs(x, &p->q, "q", s->n_heads, s->d, s->amplitude > 0 ? s->amplitude : 1);
    if (s->append) {
        x->k = rig_inputs(x, &p->append.k, "new_k", s->n_kv_heads, s->d, 1);
        x->v = rig_inputs(x, &p->append.v, "new_v", s->n_kv_heads, s->dv, 1);
    }
    if (s->slots)
        rig_make_slots(x);
    x->slopes = rig_alloc(s->n_heads * sizeof *x->slopes);
    x->sinks = rig_alloc(s->n_heads * sizeof *x->sinks);
    for (uint32_t h = 0; h < s->n_heads; h++) {
        x->slopes[h] = (float)ora_alibi_slope(h, s->n_heads);
        x->sinks[h] = (float)ora_element(s->seed, "sinks", h);
    }
    p->bias.alibi_slopes = s->alibi ? x->slopes : NULL;
    p->bias.sinks = s->sinks ? x->sinks : NULL;
    if (s->rope) {
        x->freq = rig_alloc(s->rope_dim / 2 * sizeof *x->freq);
        for (uint32_t n = 0; n < s->rope_dim / 2; n++)
            x->freq[n] = pow(10000, -2.0 * n / s->rope_dim);
        p->rope =
            (ker_rope){.pairing = s->rope, .dim = s->rope_dim, .freq = x->freq, .amplitude = 1};
    }
    x->out = rig_rows(&p->out, s->out, x->n_tokens, s->n_heads, s->dv, &x->out_bytes);
    x->lse = rig_rows(&p->lse, ATTND_DTYPE_F32, x->n_tokens, s->n_heads, 1, &x->lse_bytes);
    x->stats = rig_rows(&p->stats, ATTND_DTYPE_F32, x->n_tokens, s->n_heads, 2, &x->stats_bytes);
    rig_mirror(x);
}

static inline void rig_free(rig *x)
{
    void *all[] = {x->pool, x->pool_want, x->pool_run, x->tables, x->q,      x->k,
                   x->v,    x->slots,     x->start,    x->end,    x->slopes, x->sinks,
                   x->freq, x->out,       x->lse,      x->stats};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    ora_result_fini(&x->want);
}

/* The oracle's answer, from the pool as it is given. */
static inline void rig_judge(rig *x)
{
    attnd_err err = {0};
    memcpy(x->pool_want, x->pool, x->pool_bytes);
    ora_result_fini(&x->want);
    if (ora_append(&x->oracle, &err) != ATTND_OK || ora_attend(&x->oracle, &x->want, &err))
        fail_msg("%s: the oracle refuses: %s", x->spec.name, err.text);
}

/* ---- Running. ---------------------------------------------------------------------------------
 */

typedef struct rig_wait {
    ker_ticket ticket; /* first: done gets its address */
    pthread_mutex_t lock;
    pthread_cond_t rang;
    bool is_done;
} rig_wait;

static inline void rig_done(ker_ticket *ticket)
{
    rig_wait *wait = (rig_wait *)ticket;
    pthread_mutex_lock(&wait->lock);
    wait->is_done = true;
    pthread_cond_broadcast(&wait->rang);
    pthread_mutex_unlock(&wait->lock);
}

static inline void rig_launch(ker_device *device, ker_stream *stream, const ker_plan *plan,
                              rig_wait *wait)
{
    *wait = (rig_wait){.ticket.done = rig_done};
    pthread_mutex_init(&wait->lock, NULL);
    pthread_cond_init(&wait->rang, NULL);
    ker_launch(device, stream, plan, &wait->ticket);
}

static inline void rig_join(rig_wait *wait)
{
    pthread_mutex_lock(&wait->lock);
    while (!wait->is_done)
        pthread_cond_wait(&wait->rang, &wait->lock);
    pthread_mutex_unlock(&wait->lock);
    pthread_cond_destroy(&wait->rang);
    pthread_mutex_destroy(&wait->lock);
    assert_int_equal(wait->ticket.err.status, ATTND_OK);
}

/* One plan, alone, to its end. */
static inline void rig_carry_out(ker_device *device, const ker_plan *plan)
{
    ker_stream *stream;
    rig_wait wait;
    assert_int_equal(ker_stream_open(device, &stream, NULL), ATTND_OK);
    rig_launch(device, stream, plan, &wait);
    rig_join(&wait);
    ker_stream_close(stream);
}

/* Memory for a plan of the problem and any number of splits up to n; the caller frees it. */
static inline ker_plan *rig_plan(ker_device *device, const ker_problem *problem, uint32_t n_splits,
                                 void **memory)
{
    attnd_err err = {0};
    ker_plan *plan = NULL;
    size_t bytes = ker_plan_bytes(device, problem) * (n_splits ? n_splits + 1 : 1);
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(*memory);
    if (ker_plan_make(device, problem, n_splits, *memory, bytes, &plan, &err) != ATTND_OK)
        fail_msg("no plan: %s", err.text);
    return plan;
}

/* Runs from the pool as given into fresh outputs. kernel NULL: the cheapest. */
static inline void rig_run(rig *x, ker_device *device, uint32_t n_splits, const ker_kernel *kernel)
{
    void *memory;
    memcpy(x->pool_run, x->pool, x->pool_bytes);
    memset(x->out, RIG_CANARY, x->out_bytes);
    memset(x->lse, RIG_CANARY, x->lse_bytes);
    memset(x->stats, RIG_CANARY, x->stats_bytes);
    ker_plan *plan = rig_plan(device, &x->problem, n_splits, &memory);
    for (int phase = 0; kernel && phase < 2; phase++)
        if (plan->part[phase].kernel)
            plan->part[phase].kernel = kernel;
    rig_carry_out(device, plan);
    free(memory);
}

/* Whether a row serves every phase the problem has rows in. */
static inline bool rig_serves(const rig *x, ker_device *device, size_t i)
{
    ker_verdict verdicts[16];
    bool serves = ker_n_kernels() <= 16;
    for (int phase = 0; phase < 2; phase++) {
        uint32_t n = phase == 0 ? x->spec.n_contexts : x->spec.n_seqs - x->spec.n_contexts;
        ker_judge(device, &x->problem, (ker_phase)phase, verdicts);
        serves &= n == 0 || verdicts[i].serves;
    }
    return serves;
}

/* ---- Judging. ---------------------------------------------------------------------------------
 */

/* Bytes outside the rows still hold the canary. */
static inline bool rig_is_clean(const ker_rows *rows, const char *memory, size_t bytes,
                                int64_t n_tokens, uint32_t heads, size_t row_bytes)
{
    char *copy = rig_alloc(bytes);
    memcpy(copy, memory, bytes);
    for (int64_t t = 0; t < n_tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            memset(copy + 64 + t * rows->token_stride + h * rows->head_stride, RIG_CANARY,
                   row_bytes);
    bool clean = true;
    for (size_t i = 0; i < bytes; i++)
        clean &= (unsigned char)copy[i] == RIG_CANARY;
    free(copy);
    return clean;
}

/* Only appended rows of the pool differ from what was given, and those by `ulps` at most. */
static inline bool rig_pool_is_right(const rig *x, uint32_t ulps, near_report *report)
{
    const rig_spec *s = &x->spec;
    attnd_dtype kv = x->problem.kv.dtype;
    if (ulps == 0)
        return near_bytes(kv, x->pool_run, x->pool_want, x->pool_bytes / rig_size(kv), 0, report);
    if (!near_bytes(kv, x->pool_run, x->pool_want, x->pool_bytes / rig_size(kv), ulps, report))
        return false;
    /* Values and channels that are not rotated are exact. */
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int64_t j = rig_cached(x, b); j < s->kv_len[b]; j++)
            for (uint32_t g = 0; g < s->n_kv_heads; g++) {
                size_t turned = s->rope_dim * rig_size(kv);
                if (!near_bytes(kv, rig_row(x, x->pool_run, 1, g, b, j),
                                rig_row(x, x->pool_want, 1, g, b, j), s->dv, 0, report) ||
                    !near_bytes(kv, rig_row(x, x->pool_run, 0, g, b, j) + turned,
                                rig_row(x, x->pool_want, 0, g, b, j) + turned, s->d - s->rope_dim,
                                0, report))
                    return false;
            }
    return true;
}

/* Everything of §22 that a run left behind; fails the test with `what` in the text. */
static inline void rig_check(rig *x, const char *what)
{
    const rig_spec *s = &x->spec;
    const ker_problem *p = &x->problem;
    near_report report = {.ok = true};
    ora_rows out = {p->out.base, p->out.token_stride, p->out.head_stride, p->out.dtype};
    ora_rows lse = {p->lse.base, p->lse.token_stride, p->lse.head_stride, ATTND_DTYPE_F32};
    ora_rows stats = {p->stats.base, p->stats.token_stride, p->stats.head_stride, ATTND_DTYPE_F32};
    near_path path = near_path_for(s->dtype, p->kv.dtype, s->out);
    if (!near_out(&out, &x->want, path, s->softcap > 0 ? 1.5 : 1, s->sinks, &report) ||
        !near_lse(&lse, &x->want, NEAR_CPU, &report) ||
        !near_stats(&stats, &x->want, NEAR_CPU, &report) ||
        !rig_pool_is_right(x, s->rope ? 1 : 0, &report))
        fail_msg("%s, %s, seed %llu: %s", s->name, what, (unsigned long long)s->seed, report.text);
    if (!rig_is_clean(&p->out, x->out, x->out_bytes, x->n_tokens, s->n_heads,
                      s->dv * rig_size(s->out)) ||
        !rig_is_clean(&p->lse, x->lse, x->lse_bytes, x->n_tokens, s->n_heads, 4) ||
        !rig_is_clean(&p->stats, x->stats, x->stats_bytes, x->n_tokens, s->n_heads, 8))
        fail_msg("%s, %s: bytes between the rows were written", s->name, what);
}

/* Opens a device of an instruction set; NULL when this CPU has it not. */
static inline ker_device *rig_device(const char *isa, uint32_t n_threads)
{
    ker_device *device;
    attnd_err err = {0};
    ker_device_options options = {
        .n_threads = n_threads, .n_slots = 3, .workspace_bytes = 64 << 20, .isa = isa};
    attnd_status status = ker_device_open(&device, &options, &err);
    if (status == ATTND_UNIMPLEMENTED)
        return NULL;
    if (status != ATTND_OK)
        fail_msg("no device: %s", err.text);
    return device;
}

#endif
