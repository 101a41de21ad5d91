/* append.c: new keys and values into the pool (attention.md §4). */
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/batch.h"
#include "tests/oracle/codec.h"
#include "tests/oracle/kv.h"

/* Where a token goes: its slot, or -1. */
static attnd_status target_of(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                              int64_t *slot, attnd_err *err)
{
    int64_t t = batch->q_first[b] + i;
    if (p->slots && p->slots[t] == -1) {
        *slot = -1;
        return ATTND_OK;
    }
    if (p->q_len[b] > p->kv_len[b])
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

static int by_slot(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Fills slots[n_tokens]; sorted has room for as many. */
static attnd_status find_targets(const ora_batch *batch, const ora_problem *p, int64_t *slots,
                                 int64_t *sorted, attnd_err *err)
{
    int64_t n = 0;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++) {
            TRY(target_of(batch, p, b, i, &slots[n], err));
            n++;
        }
    memcpy(sorted, slots, (size_t)n * sizeof *slots);
    qsort(sorted, (size_t)n, sizeof *sorted, by_slot);
    for (int64_t k = 1; k < n; k++)
        if (sorted[k] >= 0 && sorted[k] == sorted[k - 1])
            return attnd_fail(err, ATTND_BAD_BLOCK, "slots = %lld: two tokens in one slot",
                              (long long)sorted[k]);
    return ATTND_OK;
}

/* One head's row: bytes as they are when the types agree, else through double. */
static void store(char *to, attnd_dtype to_dtype, const char *from, attnd_dtype from_dtype,
                  uint32_t width, double *x)
{
    if (to_dtype == from_dtype) {
        memcpy(to, from, width * ora_codec_bytes(to_dtype));
        return;
    }
    ora_decode(from_dtype, from, width, x);
    ora_encode(to_dtype, x, width, to);
}

/* Writes the rotated channels over the pass of store(). */
static void store_rotated(const ora_problem *p, char *to, const char *from, const float *cos_sin,
                          double *x)
{
    ora_decode(p->k.dtype, from, p->head_dim, x);
    ora_rope_apply(&p->rope, cos_sin, p->dtype, x);
    ora_encode(p->kv.dtype, x, p->rope.dim, to);
}

static void append_token(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                         int64_t slot, float *cos_sin, double *x)
{
    int64_t t = batch->q_first[b] + i;
    bool rotates = p->rope.pairing != ATTND_ROPE_NONE;
    if (rotates)
        ora_rope_row(batch, p, b, i, cos_sin);
    for (uint32_t g = 0; g < p->n_kv_heads; g++) {
        const char *k = (const char *)p->k.base + t * p->k.token_stride + g * p->k.head_stride;
        const char *v = (const char *)p->v.base + t * p->v.token_stride + g * p->v.head_stride;
        char *to = ora_kv_at(&p->kv, 0, g, slot);
        store(to, p->kv.dtype, k, p->k.dtype, p->head_dim, x);
        if (rotates)
            store_rotated(p, to, k, cos_sin, x);
        store(ora_kv_at(&p->kv, 1, g, slot), p->kv.dtype, v, p->v.dtype, p->head_dim_v, x);
    }
}

static attnd_status check_append(const ora_problem *p, attnd_err *err)
{
    if (!p->v.base || !ora_codec_has(p->k.dtype) || !ora_codec_has(p->v.dtype))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "v = %s %s, k = %s: both, f32, f16 or bf16",
                          p->v.base ? "given" : "none", attnd_dtype_name(p->v.dtype),
                          attnd_dtype_name(p->k.dtype));
    if (p->kv.block_size == 0 || (!p->block_ids && !p->slots))
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
    int64_t *slots = NULL;
    double *x = NULL;
    float *cos_sin = NULL;
    attnd_status status = ora_batch_init(&batch, p, err);
    if (status != ATTND_OK)
        goto out;
    slots = calloc(2 * (size_t)batch.n_tokens + 1, sizeof *slots);
    x = calloc((size_t)p->head_dim + p->head_dim_v, sizeof *x);
    cos_sin = calloc(p->head_dim, sizeof *cos_sin);
    if (!slots || !x || !cos_sin) {
        status = attnd_fail(err, ATTND_NO_ROOM, "tokens = %lld: no memory for their slots",
                            (long long)batch.n_tokens);
        goto out;
    }
    status = find_targets(&batch, p, slots, slots + batch.n_tokens, err);
    if (status != ATTND_OK)
        goto out;
    int64_t n = 0;
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (int32_t i = 0; i < p->q_len[b]; i++, n++)
            if (slots[n] >= 0)
                append_token(&batch, p, b, i, slots[n], cos_sin, x);
out:
    free(cos_sin);
    free(x);
    free(slots);
    ora_batch_fini(&batch);
    return status;
}
