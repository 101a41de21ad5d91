/* kv.c: how a row of a pool is coded. */
#include "tests/oracle/kv.h"

#include "tests/oracle/codec.h"

attnd_status ora_kv_check(const ora_problem *p, attnd_err *err)
{
    if (!ora_codec_has(p->kv.dtype))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "kv.dtype = %s: f32, f16 or bf16",
                          attnd_dtype_name(p->kv.dtype));
    return ATTND_OK;
}

attnd_status ora_kv_find(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t j,
                         ora_place *place, attnd_err *err)
{
    place->kv = &p->kv;
    if (p->high && p->high_ids) {
        int64_t n = j / p->high->block_size;
        int32_t block = p->high_ids[batch->block_first[b] + n];
        if (block >= p->high->n_blocks)
            return attnd_fail(err, ATTND_BAD_BLOCK, "high_ids[%u][%lld] = %d: -1 or 0..%lld", b,
                              (long long)n, block, (long long)p->high->n_blocks - 1);
        if (block >= 0) {
            place->kv = p->high;
            place->slot = (int64_t)block * p->high->block_size + j % p->high->block_size;
            return ATTND_OK;
        }
    }
    return ora_batch_slot(batch, p, b, j, &place->slot, err);
}

char *ora_kv_at(const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot)
{
    int64_t block = 0;
    if (kv->block_size > 0) {
        block = slot / kv->block_size;
        slot %= kv->block_size;
    }
    return (char *)kv->plane[plane] + block * kv->block_stride + kv_head * kv->head_stride[plane] +
           slot * kv->token_stride[plane];
}

void ora_kv_load(const ora_problem *p, const ora_kv *kv, int plane, uint32_t b, uint32_t kv_head,
                 int64_t slot, double *x)
{
    (void)b;
    ora_decode(kv->dtype, ora_kv_at(kv, plane, kv_head, slot),
               plane == 0 ? p->head_dim : p->head_dim_v, x);
}

void ora_kv_store(const ora_problem *p, const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot,
                  const double *x)
{
    ora_encode(kv->dtype, x, plane == 0 ? p->head_dim : p->head_dim_v,
               ora_kv_at(kv, plane, kv_head, slot));
}
