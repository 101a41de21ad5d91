/* append.c: new keys and values into the pool (attention.md §4). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/batch.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/kv.h"

/* Where a token goes: a slot of the pool, or a row of the flat target; -1: nowhere. */
typedef struct target {
    int64_t slot;
    int64_t high; /* its slot in the high pool (§17) */
    uint32_t b;
    int32_t i;
} target;

typedef struct targets {
    target *of;     /* [n] in the order of their sequences */
    target *sorted; /* [n] by slot */
    int64_t n;
} targets;

/* §11.8. */
static attnd_status flat_row_of(const ora_problem *p, int64_t t, int64_t *row, attnd_err *err)
{
    *row = p->latent.flat_rows[t];
    if (*row < -1)
        return attnd_fail(err, ATTND_BAD_BLOCK, "latent.flat_rows[%lld] = %lld: -1 or a row",
                          (long long)t, (long long)*row);
    return ATTND_OK;
}

static attnd_status slot_of(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                            int64_t *slot, attnd_err *err)
{
    int64_t t = batch->q_first[b] + i;
    if (p->latent.flat)
        return flat_row_of(p, t, slot, err);
    if (p->slots && p->slots[t] == -1) {
        *slot = -1;
        return ATTND_OK;
    }
    bool is_local = p->slots && p->cp.n_ranks > 0; /* §18: kv_len is this rank's */
    if (p->q_len[b] > p->kv_len[b] && !is_local)
        return attnd_fail(err, ATTND_BAD_LENGTH, "q_len[%u] = %d: kv_len = %d counts them in", b,
                          p->q_len[b], p->kv_len[b]);
    if (!p->slots)
        return ora_batch_slot(batch, p, b, (int64_t)p->kv_len[b] - p->q_len[b] + i, slot, err);
    int64_t n_slots = p->kv.n_blocks * p->kv.block_size;
    if (p->slots[t] < 0 || p->slots[t] >= n_slots)
        return attnd_fail(err, ATTND_BAD_BLOCK, "slots[%lld] = %d: -1 or 0..%lld", (long long)t,
                          p->slots[t], (long long)n_slots - 1);
    *slot = p->slots[t];
    return ATTND_OK;
}

static int by_number(int64_t x, int64_t y)
{
    return (x > y) - (x < y);
}

static int by_slot(const void *a, const void *b)
{
    return by_number(((const target *)a)->slot, ((const target *)b)->slot);
}

static int by_high(const void *a, const void *b)
{
    return by_number(((const target *)a)->high, ((const target *)b)->high);
}

static attnd_status two_in_one(const char *name, int64_t slot, attnd_err *err)
{
    return attnd_fail(err, ATTND_BAD_BLOCK, "%s = %lld: two tokens in one slot", name,
                      (long long)slot);
}

/* Leaves sorted[] sorted by slot. */
static attnd_status check_distinct(const ora_problem *p, targets *to, attnd_err *err)
{
    const target *t = to->sorted;
    memcpy(to->sorted, to->of, (size_t)to->n * sizeof *t);
    qsort(to->sorted, (size_t)to->n, sizeof *t, by_high);
    for (int64_t k = 1; k < to->n; k++)
        if (t[k].high >= 0 && t[k].high == t[k - 1].high)
            return two_in_one("high_ids", t[k].high, err);
    qsort(to->sorted, (size_t)to->n, sizeof *t, by_slot);
    for (int64_t k = 1; k < to->n; k++)
        if (t[k].slot >= 0 && t[k].slot == t[k - 1].slot)
            return two_in_one(p->latent.flat ? "latent.flat_rows" : "slots", t[k].slot, err);
    return ATTND_OK;
}

static bool is_seen(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t j)
{
    for (int32_t i = p->q_len[b] - 1; i >= 0; i--)
        if (ora_batch_sees(batch, p, b, i, j))
            return true;
    return false;
}

/* §3.4: does sequence b need entry n of its table? */
static bool is_needed(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t n)
{
    for (int64_t j = 0; j < (n + 1) * p->kv.block_size && j < p->kv_len[b]; j++)
        if (is_seen(batch, p, b, j))
            return true;
    return false;
}

/* The key of its sequence that a token is: in a verify group over ranks its bound counts it. */
static int64_t key_of(const ora_batch *batch, const ora_problem *p, const target *t)
{
    if (p->cp.n_ranks > 0 && p->cp.bounds)
        return (int64_t)p->cp.bounds[batch->q_first[t->b] + t->i] - 1;
    return (int64_t)p->kv_len[t->b] - p->q_len[t->b] + t->i;
}

/* A token in the block of entry n of sequence b: the block is then of no other sequence (§3.7), and
 * no row of b sees a key that the token overwrites (§3.5). */
static attnd_status check_token(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t n,
                                const target *t, attnd_err *err)
{
    int32_t block = p->block_ids[batch->block_first[b] + n];
    int64_t j = n * p->kv.block_size + t->slot % p->kv.block_size;
    if (t->b != b) {
        if (!is_needed(batch, p, b, n))
            return ATTND_OK;
        return attnd_fail(err, ATTND_BAD_BLOCK,
                          "block_ids[%u][%lld] = %d: sequence %u reads it and sequence %u appends "
                          "to it",
                          b, (long long)n, block, b, t->b);
    }
    if (j >= p->kv_len[b] || j == key_of(batch, p, t) || !is_seen(batch, p, b, j))
        return ATTND_OK;
    return attnd_fail(err, ATTND_BAD_BLOCK,
                      "block_ids[%u][%lld] = %d: key %lld is still seen and token %d of the "
                      "sequence is stored over it",
                      b, (long long)n, block, (long long)j, t->i);
}

/* The first of sorted[] at a slot or behind it. */
static int64_t first_from(const targets *to, int64_t slot)
{
    int64_t low = 0, high = to->n;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (to->sorted[middle].slot < slot)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static attnd_status check_read(const ora_batch *batch, const ora_problem *p, const targets *to,
                               attnd_err *err)
{
    if (!p->block_ids || p->latent.flat)
        return ATTND_OK;
    int64_t size = p->kv.block_size;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int64_t n = 0; n * size < p->kv_len[b]; n++) {
            int64_t block = p->block_ids[batch->block_first[b] + n];
            int64_t k = block < 0 ? to->n : first_from(to, block * size);
            for (; k < to->n && to->sorted[k].slot < (block + 1) * size; k++)
                TRY(check_token(batch, p, b, n, &to->sorted[k], err));
        }
    return ATTND_OK;
}

static attnd_status find_targets(const ora_batch *batch, const ora_problem *p, targets *to,
                                 attnd_err *err)
{
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++) {
            target *t = &to->of[to->n++];
            *t = (target){.high = -1, .b = b, .i = i};
            TRY(slot_of(batch, p, b, i, &t->slot, err));
            if (t->slot >= 0)
                TRY(ora_kv_find_high(batch, p, b, (int64_t)p->kv_len[b] - p->q_len[b] + i, &t->high,
                                     err));
        }
    TRY(check_distinct(p, to, err));
    return check_read(batch, p, to, err);
}

/* A run of channels that the append itself computed. */
typedef struct run {
    uint32_t first, n;
} run;

/* One row as it was given and as numbers: of a head's k, or of its v. */
typedef struct row {
    const char *given;
    attnd_dtype dtype;
    double *x;
    run computed[2];
} row;

/* Of the same type a row's bytes stay as they are, but for what was computed. */
static void store(const ora_problem *p, const ora_kv *kv, int plane, uint32_t g, int64_t slot,
                  const row *r)
{
    if (kv->format != ORA_PLAIN || kv->dtype != r->dtype) {
        ora_kv_store(p, kv, plane, g, slot, r->x);
        return;
    }
    size_t size = ora_codec_bytes(kv->dtype);
    char *to = ora_kv_at(kv, plane, g, slot);
    memcpy(to, r->given, (plane == 0 ? p->head_dim : p->head_dim_v) * size);
    for (int n = 0; n < 2; n++)
        ora_encode(kv->dtype, r->x + r->computed[n].first, r->computed[n].n,
                   to + r->computed[n].first * size);
}

static row take(const ora_rows *rows, int64_t t, uint32_t g, uint32_t width, double *x)
{
    row r = {.dtype = rows->dtype, .x = x};
    r.given = (const char *)rows->base + t * rows->token_stride + g * rows->head_stride;
    ora_decode(rows->dtype, r.given, width, x);
    return r;
}

static uint32_t norm_width(const ora_problem *p)
{
    return p->latent.norm_width > 0 ? p->latent.norm_width : p->head_dim;
}

/* §11.5. */
static void normalise(const ora_problem *p, double *x)
{
    double sum = 0;
    for (uint32_t d = 0; d < norm_width(p); d++)
        sum += x[d] * x[d];
    double root = sqrt(sum / norm_width(p) + p->latent.norm_eps);
    for (uint32_t d = 0; d < norm_width(p); d++)
        x[d] = ora_round(p->dtype, x[d] * p->latent.norm_weight[d] / root);
}

/* The k of a token as it is stored: normalised, then rotated. */
static row take_k(const ora_problem *p, int64_t t, uint32_t g, const float *cos_sin, double *x)
{
    row k = take(&p->k, t, g, p->head_dim, x);
    if (p->latent.norm_weight) {
        normalise(p, x);
        k.computed[0] = (run){0, norm_width(p)};
    }
    if (p->rope.pairing != ATTND_ROPE_NONE) {
        ora_rope_apply(&p->rope, cos_sin, p->dtype, x);
        k.computed[1] = (run){p->rope.first, p->rope.dim};
    }
    return k;
}

/* The pool, or the flat target as one. */
static ora_kv target_kv(const ora_problem *p)
{
    ora_kv kv = p->kv;
    if (p->latent.flat) {
        kv.plane[0] = kv.plane[1] = p->latent.flat;
        kv.block_size = 0;
        kv.token_stride[0] = kv.token_stride[1] = p->latent.flat_stride;
    }
    return kv;
}

static void append_token(const ora_batch *batch, const ora_problem *p, const target *to,
                         float *cos_sin, double *x)
{
    int64_t t = batch->q_first[to->b] + to->i;
    ora_kv kv = target_kv(p);
    if (p->rope.pairing != ATTND_ROPE_NONE)
        ora_rope_row(batch, p, to->b, to->i, cos_sin);
    for (uint32_t g = 0; g < p->n_kv_heads; g++) {
        row k = take_k(p, t, g, cos_sin, x);
        store(p, &kv, 0, g, to->slot, &k);
        if (to->high >= 0)
            store(p, p->high, 0, g, to->high, &k);
        if (p->latent.appends)
            continue;
        row v = take(&p->v, t, g, p->head_dim_v, x);
        store(p, &kv, 1, g, to->slot, &v);
        if (to->high >= 0)
            store(p, p->high, 1, g, to->high, &v);
    }
}

static attnd_status check_latent(const ora_problem *p, attnd_err *err)
{
    const ora_latent *latent = &p->latent;
    if (!latent->appends) {
        if (latent->norm_weight || latent->flat || ora_kv_is_latent(&p->kv))
            return attnd_fail(err, ATTND_BAD_GEOMETRY,
                              "latent.appends = false: a norm, a flat target and a pool whose K "
                              "and V are one row take latent rows");
        return ATTND_OK;
    }
    if (p->n_kv_heads != 1 || !(ora_kv_is_latent(&p->kv) || latent->flat))
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "latent.appends = true: one kv head, whose K and V are one row");
    if (latent->norm_width > p->head_dim)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "latent.norm_width = %u: at most head_dim = %u",
                          latent->norm_width, p->head_dim);
    if (!latent->flat)
        return ATTND_OK;
    if (latent->norm_weight)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "latent.flat = given: not with a norm of the rows");
    if (p->cp.bounds)
        return attnd_fail(err, ATTND_BAD_CP, "latent.flat = given: not with verify groups");
    if (p->high ||
        (p->kv.format != ORA_PLAIN && p->kv.format != ORA_DS_POW2 && p->kv.format != ORA_DS_FREE))
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "latent.flat = given: no room for scales or high pages");
    if (!latent->flat_rows)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "latent.flat_rows = none: the target needs them");
    return ATTND_OK;
}

static attnd_status check_append(const ora_problem *p, attnd_err *err)
{
    TRY(check_latent(p, err));
    bool needs_v = !p->latent.appends;
    if (needs_v ? !p->v.base || !ora_codec_has(p->v.dtype) || !ora_codec_has(p->k.dtype)
                : !ora_codec_has(p->k.dtype))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "v = %s %s, k = %s: both, f32, f16 or bf16",
                          p->v.base ? "given" : "none", attnd_dtype_name(p->v.dtype),
                          attnd_dtype_name(p->k.dtype));
    if (!p->latent.flat && (p->kv.block_size == 0 || (!p->block_ids && !p->slots)))
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "block_ids = none: append needs a pool with "
                          "tables or slots");
    return ATTND_OK;
}

attnd_status ora_append(const ora_problem *p, attnd_err *err)
{
    if (!p->k.base)
        return ATTND_OK;
    TRY(check_append(p, err));
    ora_batch batch;
    targets to = {0};
    double *x = NULL;
    float *cos_sin = NULL;
    attnd_status status = ora_batch_init(&batch, p, err);
    if (status != ATTND_OK)
        goto out;
    x = calloc((size_t)p->head_dim + p->head_dim_v, sizeof *x);
    cos_sin = calloc(p->head_dim, sizeof *cos_sin);
    to.of = calloc(2 * (size_t)batch.n_tokens + 1, sizeof *to.of);
    if (!to.of || !x || !cos_sin) {
        status = attnd_fail(err, ATTND_NO_ROOM, "tokens = %lld: no memory for their slots",
                            (long long)batch.n_tokens);
        goto out;
    }
    to.sorted = to.of + batch.n_tokens;
    status = find_targets(&batch, p, &to, err);
    for (int64_t n = 0; n < to.n && status == ATTND_OK; n++)
        if (to.of[n].slot >= 0)
            append_token(&batch, p, &to.of[n], cos_sin, x);
out:
    free(cos_sin);
    free(x);
    free(to.of);
    ora_batch_fini(&batch);
    return status;
}
