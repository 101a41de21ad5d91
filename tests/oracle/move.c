/* move.c: rows of an accepted tree path to their places (attention.md §13.6). */
#include <string.h>

#include "tests/oracle/blocks.h"
#include "tests/oracle/kv.h"

static size_t row_bytes(const ora_problem *p, const ora_kv *kv, int plane)
{
    size_t width = plane ? p->head_dim_v : p->head_dim;
    switch (kv->format) {
    case ORA_PLAIN:
    case ORA_HEAD:
    case ORA_NVFP4:
        return width * attnd_dtype_bits(kv->dtype) / 8;
    case ORA_DS_POW2:
    case ORA_DS_FREE:
        return ORA_DS656_BYTES;
    case ORA_DS_584:
        return ORA_DS584_BYTES;
    case ORA_FP4_MLA:
        return (width + kv->residual) / 2;
    }
    return 0;
}

static size_t scale_bytes(const ora_problem *p, const ora_kv *kv, int plane)
{
    size_t width = plane ? p->head_dim_v : p->head_dim;
    switch (kv->format) {
    case ORA_PLAIN:
    case ORA_DS_POW2:
    case ORA_DS_FREE:
        return 0;
    case ORA_HEAD:
        return sizeof(float);
    case ORA_NVFP4:
        return width / ORA_NVFP4_BLOCK;
    case ORA_DS_584:
        return ORA_DS584_SCALES;
    case ORA_FP4_MLA:
        return (width + kv->residual) / ORA_NVFP4_BLOCK;
    }
    return 0;
}

static void copy_row(const ora_problem *p, const ora_kv *kv, int64_t src, int64_t dst)
{
    for (int plane = 0; plane < (ora_kv_is_latent(kv) ? 1 : 2); plane++)
        for (uint32_t g = 0; g < p->n_kv_heads; g++) {
            memmove(ora_kv_at(kv, plane, g, dst), ora_kv_at(kv, plane, g, src),
                    row_bytes(p, kv, plane));
            if (scale_bytes(p, kv, plane) > 0)
                memmove(ora_kv_scales_at(kv, plane, g, dst), ora_kv_scales_at(kv, plane, g, src),
                        scale_bytes(p, kv, plane));
        }
}

/* Slots of a key in the normal pool and in the high one, there -1: not held. */
typedef struct two_slots {
    int64_t normal, high;
} two_slots;

static attnd_status find_slots(const ora_batch *batch, const ora_problem *p, uint32_t seq,
                               int64_t j, two_slots *slots, attnd_err *err)
{
    slots->high = -1;
    TRY(ora_batch_slot(batch, p, seq, j, &slots->normal, err));
    return p->high ? ora_kv_find_high(batch, p, seq, j, &slots->high, err) : ATTND_OK;
}

static attnd_status check_moves(const ora_batch *batch, const ora_problem *p, uint32_t seq,
                                const int32_t *src, const int32_t *dst, uint32_t n, attnd_err *err)
{
    for (uint32_t k = 0; k < n; k++) {
        if (dst[k] < 0 || (k > 0 && dst[k] <= dst[k - 1]))
            return attnd_fail(err, ATTND_BAD_LENGTH, "dst[%u] = %d: above the one before it", k,
                              dst[k]);
        if (src[k] < dst[k] || src[k] >= p->kv_len[seq])
            return attnd_fail(err, ATTND_BAD_LENGTH, "src[%u] = %d: from dst = %d up to %d", k,
                              src[k], dst[k], p->kv_len[seq] - 1);
        two_slots from, to;
        TRY(find_slots(batch, p, seq, src[k], &from, err));
        TRY(find_slots(batch, p, seq, dst[k], &to, err));
        if ((from.high < 0) != (to.high < 0))
            return attnd_fail(err, ATTND_UNSUPPORTED,
                              "src[%u] = %d: its page and that of dst = %d are both held high or "
                              "neither",
                              k, src[k], dst[k]);
    }
    return ATTND_OK;
}

static attnd_status move_rows(const ora_batch *batch, const ora_problem *p, uint32_t seq,
                              const int32_t *src, const int32_t *dst, uint32_t n, attnd_err *err)
{
    TRY(check_moves(batch, p, seq, src, dst, n, err));
    for (uint32_t k = 0; k < n; k++) {
        two_slots from, to;
        TRY(find_slots(batch, p, seq, src[k], &from, err));
        TRY(find_slots(batch, p, seq, dst[k], &to, err));
        copy_row(p, &p->kv, from.normal, to.normal);
        if (from.high >= 0)
            copy_row(p, p->high, from.high, to.high);
    }
    return ATTND_OK;
}

attnd_status ora_move(const ora_problem *p, uint32_t seq, const int32_t *src, const int32_t *dst,
                      uint32_t n, attnd_err *err)
{
    if (seq >= p->n_seqs)
        return attnd_fail(err, ATTND_BAD_LENGTH, "seq = %u: one of %u", seq, p->n_seqs);
    ora_batch batch;
    attnd_status status = ora_batch_init(&batch, p, err);
    if (status == ATTND_OK)
        status = move_rows(&batch, p, seq, src, dst, n, err);
    ora_batch_fini(&batch);
    return status;
}
