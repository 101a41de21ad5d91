/* check.c: what is no problem (attention.md §24), but for masks, rotation, lists and formats, whose
 * files have checks of their own.
 */
#include "tests/oracle/check.h"

#include <math.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/kv.h"

static attnd_status check_counts(const ora_problem *p, attnd_err *err)
{
    if (p->n_kv_heads == 0 || p->n_heads == 0 || p->n_heads % p->n_kv_heads != 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "n_heads = %u: a positive multiple of n_kv_heads = %u", p->n_heads,
                          p->n_kv_heads);
    if (p->head_dim == 0 || p->head_dim_v == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "head_dim = %u, head_dim_v = %u: at least 1",
                          p->head_dim, p->head_dim_v);
    if (!ora_codec_has(p->dtype))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "dtype = %s: f32, f16 or bf16",
                          attnd_dtype_name(p->dtype));
    if (p->block_ids && p->kv.block_size == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "kv.block_size = 0: at least 1 with tables");
    return ora_kv_check(p, err);
}

static attnd_status check_lengths(const ora_problem *p, attnd_err *err)
{
    for (uint32_t b = 0; b < p->n_seqs; b++) {
        if (p->q_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "q_len[%u] = %d: at least 0", b, p->q_len[b]);
        if (p->kv_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "kv_len[%u] = %d: at least 0", b,
                              p->kv_len[b]);
        if (p->kind == ATTND_LAYER_ENCODER && p->kv_len[b] != p->q_len[b])
            return attnd_fail(err, ATTND_BAD_LENGTH, "kv_len[%u] = %d: an encoder's is q_len = %d",
                              b, p->kv_len[b], p->q_len[b]);
    }
    return ATTND_OK;
}

static attnd_status check_cross(const ora_problem *p, attnd_err *err)
{
    if (p->kind != ATTND_LAYER_CROSS)
        return ATTND_OK;
    uint32_t kinds =
        p->mask.kinds & (ORA_MASK_CAUSAL | ORA_MASK_WINDOW | ORA_MASK_CHUNK | ORA_MASK_TREE);
    if (kinds)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "mask.kinds = %#x: rows of a cross layer have no key index for %#x",
                          p->mask.kinds, kinds);
    if (p->bias.alibi_slopes || p->bias.relative)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "bias.%s = given: rows of a cross layer have no key index",
                          p->bias.alibi_slopes ? "alibi_slopes" : "relative");
    return ATTND_OK;
}

static attnd_status check_bias(const ora_problem *p, attnd_err *err)
{
    const ora_bias *bias = &p->bias;
    if (!(bias->softcap >= 0) || isinf(bias->softcap))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "bias.softcap = %g: 0 or above", bias->softcap);
    if (!bias->relative)
        return ATTND_OK;
    if (bias->relative_size == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "bias.relative_size = 0: at least 1");
    if (!(bias->relative_max_distance > 0))
        return ATTND_OK;
    uint32_t sides = bias->relative_bidirectional ? 2 : 1;
    uint32_t exact = bias->relative_size / sides / 2;
    if (bias->relative_size % sides != 0 || exact == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "bias.relative_size = %u: %s",
                          bias->relative_size,
                          sides == 2 ? "even and at least 4 with two sides" : "at least 2 buckets");
    if (bias->relative_max_distance <= exact)
        return attnd_fail(
            err, ATTND_BAD_GEOMETRY,
            "bias.relative_max_distance = %g: above the %u that have buckets of their "
            "own",
            bias->relative_max_distance, exact);
    return ATTND_OK;
}

/* ---- Ranks (§18) ---- */

static attnd_status check_ranks(const ora_problem *p, attnd_err *err)
{
    const ora_cp *cp = &p->cp;
    if (cp->n_ranks == 0)
        return ATTND_OK;
    if (cp->rank >= cp->n_ranks)
        return attnd_fail(err, ATTND_BAD_CP, "cp.rank = %u: one of %u", cp->rank, cp->n_ranks);
    if (p->kv.block_size == 0)
        return attnd_fail(err, ATTND_BAD_CP, "kv.block_size = 0: ranks own keys by the page");
    if (!p->positions)
        return attnd_fail(err, ATTND_BAD_CP, "positions = none: ranks need the global ones");
    if (p->mask.kinds & (ORA_MASK_TREE | ORA_MASK_BYTES | ORA_MASK_BITS))
        return attnd_fail(err, ATTND_BAD_CP,
                          "mask.kinds = %#x: no tree and no custom mask over ranks", p->mask.kinds);
    if (p->sparse.block_kv > 0 || p->sparse.valid_bits || p->beams.width > 0)
        return attnd_fail(err, ATTND_BAD_CP, "%s: not over ranks",
                          p->beams.width > 0 ? "beams.width = given" : "sparse = blocks");
    int32_t width = 0;
    for (uint32_t b = p->n_contexts; b < p->n_seqs; b++) {
        if (width > 0 && p->q_len[b] > 0 && p->q_len[b] != width)
            return attnd_fail(err, ATTND_BAD_CP, "q_len[%u] = %d: groups of a batch have one width",
                              b, p->q_len[b]);
        if (p->q_len[b] > 0)
            width = p->q_len[b];
    }
    return ATTND_OK;
}

/* ---- Beams (§20) ---- */

/* Does a table name a block twice? */
static bool has_ring(const ora_problem *p, const ora_batch *batch, uint32_t b)
{
    int64_t n = ((int64_t)p->kv_len[b] + p->kv.block_size - 1) / p->kv.block_size;
    const int32_t *ids = p->block_ids + batch->block_first[b];
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++)
            if (ids[i] == ids[j] && ids[i] >= 0)
                return true;
    return false;
}

static attnd_status check_beams(const ora_batch *batch, const ora_problem *p, attnd_err *err)
{
    const ora_beams *beams = &p->beams;
    if (beams->width == 0)
        return ATTND_OK;
    if (p->n_seqs % beams->width != 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "n_seqs = %u: a multiple of beams.width = %u",
                          p->n_seqs, beams->width);
    if (!beams->ind || !beams->prompt_len)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "beams.%s = none: beams need it",
                          beams->ind ? "prompt_len" : "ind");
    for (uint32_t b = 0; b < p->n_seqs; b++) {
        if ((uint32_t)p->kv_len[b] > beams->max_len)
            return attnd_fail(err, ATTND_BAD_LENGTH, "kv_len[%u] = %d: beams.max_len is %u", b,
                              p->kv_len[b], beams->max_len);
        if ((p->mask.kinds & ORA_MASK_WINDOW) && p->block_ids && has_ring(p, batch, b))
            return attnd_fail(err, ATTND_BAD_COMBINATION,
                              "block_ids[%u] = a ring: beams need every page of a window", b);
    }
    return ATTND_OK;
}

attnd_status ora_check(const ora_problem *p, attnd_err *err)
{
    TRY(check_counts(p, err));
    TRY(check_lengths(p, err));
    TRY(check_cross(p, err));
    TRY(check_bias(p, err));
    return check_ranks(p, err);
}

attnd_status ora_check_batch(const ora_batch *batch, const ora_problem *p, attnd_err *err)
{
    TRY(ora_mask_check(batch, p, err));
    TRY(ora_rope_check(batch, p, err));
    TRY(check_beams(batch, p, err));
    return ora_sparse_check(p, err);
}
