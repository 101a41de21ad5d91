/* kv.c: how a row of a pool is coded. */
#include "tests/oracle/kv.h"

#include <math.h>
#include <string.h>

#include "tests/oracle/blocks.h"
#include "tests/oracle/codec.h"

/* Widest row that is decoded whole for its first channels. */
enum { MAX_LATENT = 1024 };

bool ora_kv_is_latent(const ora_kv *kv)
{
    return kv->plane[0] && kv->plane[0] == kv->plane[1];
}

/* ---- Checks ---- */

static bool has_dtype(const ora_kv *kv)
{
    switch (kv->format) {
    case ORA_PLAIN:
        return ora_codec_is_number(kv->dtype);
    case ORA_HEAD:
        return kv->dtype == ATTND_DTYPE_E4M3 || kv->dtype == ATTND_DTYPE_I8;
    case ORA_NVFP4:
    case ORA_FP4_MLA:
        return kv->dtype == ATTND_DTYPE_NVFP4;
    case ORA_DS_POW2:
    case ORA_DS_FREE:
    case ORA_DS_584:
        return kv->dtype == ATTND_DTYPE_E4M3;
    }
    return false;
}

static const char *dtypes_of(ora_format format)
{
    switch (format) {
    case ORA_PLAIN:
        return "f32, f16, bf16, e4m3, e5m2 or i8";
    case ORA_HEAD:
        return "e4m3 or i8 with a scale a head";
    case ORA_NVFP4:
    case ORA_FP4_MLA:
        return "nvfp4 in blocks";
    case ORA_DS_POW2:
    case ORA_DS_FREE:
    case ORA_DS_584:
        return "e4m3 in rows of fp8_ds_mla";
    }
    return "a known format";
}

static attnd_status check_factor(const char *name, float factor, attnd_err *err)
{
    if (!(factor >= 0) || isinf(factor))
        return attnd_fail(err, ATTND_BAD_QUANT, "quant.%s = %g: finite, above 0", name, factor);
    return ATTND_OK;
}

static attnd_status check_factors(const ora_problem *p, const char *name, const float *factors,
                                  attnd_err *err)
{
    if (!factors)
        return ATTND_OK;
    if (p->kv.format != ORA_PLAIN || ora_codec_has(p->kv.dtype))
        return attnd_fail(err, ATTND_BAD_QUANT,
                          "quant.%s = given: a plain pool of e4m3, e5m2 or i8 takes them", name);
    size_t n = (size_t)p->n_kv_heads * (p->quant.factors_per_seq ? p->n_seqs : 1);
    for (size_t i = 0; i < n; i++)
        if (!(factors[i] > 0) || isinf(factors[i]))
            return attnd_fail(err, ATTND_BAD_QUANT, "quant.%s[%zu] = %g: finite, above 0", name, i,
                              factors[i]);
    return ATTND_OK;
}

static attnd_status check_quant(const ora_problem *p, attnd_err *err)
{
    const ora_quant *quant = &p->quant;
    TRY(check_factor("k_orig_quant", quant->k_orig_quant, err));
    TRY(check_factor("v_orig_quant", quant->v_orig_quant, err));
    TRY(check_factor("k_quant_orig", quant->k_quant_orig, err));
    TRY(check_factor("v_quant_orig", quant->v_quant_orig, err));
    TRY(check_factors(p, "k_factors", quant->k_factors, err));
    return check_factors(p, "v_factors", quant->v_factors, err);
}

static attnd_status check_blocks(const ora_problem *p, const ora_kv *kv, attnd_err *err)
{
    uint32_t v = ora_kv_is_latent(kv) ? 0 : p->head_dim_v;
    if (p->head_dim % ORA_NVFP4_BLOCK != 0 || v % ORA_NVFP4_BLOCK != 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "head_dim = %u, head_dim_v = %u: multiples of 16 for nvfp4", p->head_dim,
                          p->head_dim_v);
    return ATTND_OK;
}

static attnd_status check_latent(const ora_problem *p, const ora_kv *kv, const char *name,
                                 uint32_t width, attnd_err *err)
{
    if (!(ora_kv_is_latent(kv) || p->latent.flat) || p->n_kv_heads != 1)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "%s.format = latent: one kv head, whose K and V are one row", name);
    if (width > 0 && p->head_dim != width)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "head_dim = %u: %u channels a row", p->head_dim,
                          width);
    return ATTND_OK;
}

static attnd_status check_fp4_mla(const ora_problem *p, const ora_kv *kv, const char *name,
                                  attnd_err *err)
{
    TRY(check_blocks(p, kv, err));
    TRY(check_latent(p, kv, name, 0, err));
    uint32_t r = kv->residual;
    if (r == 0 || r % ORA_NVFP4_BLOCK != 0 || r > p->head_dim)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "%s.residual = %u: a multiple of 16 up to head_dim = %u", name, r,
                          p->head_dim);
    if (p->head_dim > MAX_LATENT)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "head_dim = %u: at most %d in dense FP4 MLA",
                          p->head_dim, MAX_LATENT);
    if (p->block_ids && kv->block_size != 128)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "%s.block_size = %u: 128 for dense FP4 MLA",
                          name, kv->block_size);
    if (p->dtype == ATTND_DTYPE_F32)
        return attnd_fail(err, ATTND_BAD_QUANT, "dtype = f32: f16 or bf16 for dense FP4 MLA");
    if (p->rope.pairing != ATTND_ROPE_NONE && p->rope.table && !p->rope.table_duplicated)
        return attnd_fail(err, ATTND_BAD_QUANT,
                          "rope.table = plain: dense FP4 MLA takes a duplicated one");
    return ATTND_OK;
}

static bool stores_scales(ora_format format)
{
    return format == ORA_HEAD || format == ORA_NVFP4 || format == ORA_FP4_MLA ||
           format == ORA_DS_584;
}

static attnd_status check_format(const ora_problem *p, const ora_kv *kv, const char *name,
                                 attnd_err *err)
{
    if (!has_dtype(kv))
        return attnd_fail(err, ATTND_BAD_QUANT, "%s.dtype = %s: %s", name,
                          attnd_dtype_name(kv->dtype), dtypes_of(kv->format));
    if (stores_scales(kv->format) && (!kv->scales[0] || (!kv->scales[1] && !ora_kv_is_latent(kv))))
        return attnd_fail(err, ATTND_BAD_QUANT, "%s.scales = none: its rows store scales", name);
    if (ora_kv_is_latent(kv) && p->head_dim_v > p->head_dim)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "head_dim_v = %u: at most head_dim = %u where K and V are one row",
                          p->head_dim_v, p->head_dim);
    switch (kv->format) {
    case ORA_NVFP4:
        return check_blocks(p, kv, err);
    case ORA_FP4_MLA:
        return check_fp4_mla(p, kv, name, err);
    case ORA_DS_POW2:
    case ORA_DS_FREE:
        return check_latent(p, kv, name, ORA_DS656_WIDTH, err);
    case ORA_DS_584:
        return check_latent(p, kv, name, ORA_DS584_WIDTH, err);
    default:
        return ATTND_OK;
    }
}

static attnd_status check_high(const ora_problem *p, attnd_err *err)
{
    if (p->high && (p->high->format != ORA_PLAIN || !ora_codec_has(p->high->dtype)))
        return attnd_fail(err, ATTND_BAD_QUANT, "high.dtype = %s: f32, f16 or bf16",
                          attnd_dtype_name(p->high->dtype));
    return ATTND_OK;
}

attnd_status ora_kv_check(const ora_problem *p, attnd_err *err)
{
    TRY(check_format(p, &p->kv, "kv", err));
    if (p->sparse.second)
        TRY(check_format(p, p->sparse.second, "sparse.second", err));
    TRY(check_quant(p, err));
    return check_high(p, err);
}

/* ---- Where ---- */

attnd_status ora_kv_find_high(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t j,
                              int64_t *slot, attnd_err *err)
{
    *slot = -1;
    if (!p->high)
        return ATTND_OK;
    int64_t size = p->high->block_size;
    int32_t block = p->high_ids[batch->block_first[b] + j / size];
    if (block < -1 || block >= p->high->n_blocks)
        return attnd_fail(err, ATTND_BAD_BLOCK, "high_ids[%u][%lld] = %d: -1 or 0..%lld", b,
                          (long long)(j / size), block, (long long)p->high->n_blocks - 1);
    if (block >= 0)
        *slot = block * size + j % size;
    return ATTND_OK;
}

attnd_status ora_kv_find(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t j,
                         ora_place *place, attnd_err *err)
{
    place->kv = p->high;
    TRY(ora_kv_find_high(batch, p, b, j, &place->slot, err));
    if (place->slot >= 0)
        return ATTND_OK;
    place->kv = &p->kv;
    return ora_batch_slot(batch, p, b, j, &place->slot, err);
}

static char *at(const ora_kv *kv, void *base, int64_t head, int64_t token, uint32_t kv_head,
                int64_t slot)
{
    int64_t block = 0;
    if (kv->block_size > 0) {
        block = slot / kv->block_size;
        slot %= kv->block_size;
    }
    return (char *)base + block * kv->block_stride + kv_head * head + slot * token;
}

char *ora_kv_at(const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot)
{
    return at(kv, kv->plane[plane], kv->head_stride[plane], kv->token_stride[plane], kv_head, slot);
}

char *ora_kv_scales_at(const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot)
{
    return at(kv, kv->scales[plane], kv->scale_head_stride[plane], kv->scale_token_stride[plane],
              kv_head, slot);
}

/* ---- Factors ---- */

static float orig_quant(const ora_problem *p, const ora_kv *kv, int plane)
{
    float given = plane == 0 ? p->quant.k_orig_quant : p->quant.v_orig_quant;
    if (given > 0)
        return given;
    return kv->format == ORA_FP4_MLA ? 448.0f * 6 / 30 : 1;
}

static float quant_orig(const ora_problem *p, const ora_kv *kv, int plane)
{
    float given = plane == 0 ? p->quant.k_quant_orig : p->quant.v_quant_orig;
    if (given > 0)
        return given;
    return kv->dtype == ATTND_DTYPE_NVFP4 ? 1 / orig_quant(p, kv, plane) : 1;
}

static float load_factor(const ora_problem *p, const ora_kv *kv, int plane, uint32_t b,
                         uint32_t kv_head)
{
    const float *factors = plane == 0 ? p->quant.k_factors : p->quant.v_factors;
    if (!factors)
        return quant_orig(p, kv, plane);
    return factors[(p->quant.factors_per_seq ? (size_t)b * p->n_kv_heads : 0) + kv_head];
}

/* ---- Rows ---- */

static void scale_by(double factor, size_t n, double *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= factor;
}

static void load_plain(const ora_problem *p, const ora_kv *kv, int plane, uint32_t b,
                       uint32_t kv_head, int64_t slot, uint32_t width, double *x)
{
    ora_decode(kv->dtype, ora_kv_at(kv, plane, kv_head, slot), width, x);
    if (!ora_codec_has(kv->dtype))
        scale_by(load_factor(p, kv, plane, b, kv_head), width, x);
}

static void load_coded(const ora_problem *p, const ora_kv *kv, int plane, uint32_t kv_head,
                       int64_t slot, uint32_t width, double *x)
{
    const uint8_t *codes = (const uint8_t *)ora_kv_at(kv, plane, kv_head, slot);
    const uint8_t *scales = NULL;
    if (stores_scales(kv->format))
        scales = (const uint8_t *)ora_kv_scales_at(kv, plane, kv_head, slot);
    float scale;
    switch (kv->format) {
    case ORA_PLAIN:
        return;
    case ORA_HEAD:
        memcpy(&scale, scales, sizeof scale);
        ora_decode(kv->dtype, codes, width, x);
        scale_by(scale, width, x);
        return;
    case ORA_NVFP4:
        ora_nvfp4_decode(codes, scales, width, quant_orig(p, kv, plane), x);
        return;
    case ORA_FP4_MLA:
        ora_fp4_mla_decode(codes, scales, width, kv->residual, quant_orig(p, kv, plane), x);
        return;
    case ORA_DS_POW2:
    case ORA_DS_FREE:
        ora_ds656_decode(codes, x);
        return;
    case ORA_DS_584:
        ora_ds584_decode(codes, scales, x);
        return;
    }
}

static bool is_whole(ora_format format)
{
    return format == ORA_FP4_MLA || format == ORA_DS_POW2 || format == ORA_DS_FREE ||
           format == ORA_DS_584;
}

void ora_kv_load(const ora_problem *p, const ora_kv *kv, int plane, uint32_t b, uint32_t kv_head,
                 int64_t slot, double *x)
{
    uint32_t width = plane == 0 ? p->head_dim : p->head_dim_v;
    if (ora_kv_is_latent(kv))
        plane = 0;
    if (kv->format == ORA_PLAIN) {
        load_plain(p, kv, plane, b, kv_head, slot, width, x);
    } else if (is_whole(kv->format)) {
        double row[MAX_LATENT];
        load_coded(p, kv, plane, kv_head, slot, p->head_dim, row);
        memcpy(x, row, width * sizeof *x);
    } else {
        load_coded(p, kv, plane, kv_head, slot, width, x);
    }
}

static void store_coded(const ora_problem *p, const ora_kv *kv, int plane, uint32_t kv_head,
                        int64_t slot, uint32_t width, const double *x)
{
    uint8_t *codes = (uint8_t *)ora_kv_at(kv, plane, kv_head, slot), *scales = NULL;
    if (stores_scales(kv->format))
        scales = (uint8_t *)ora_kv_scales_at(kv, plane, kv_head, slot);
    float scale;
    switch (kv->format) {
    case ORA_PLAIN:
        ora_encode_scaled(kv->dtype, x, width, orig_quant(p, kv, plane), codes);
        return;
    case ORA_HEAD:
        scale = ora_head_encode(kv->dtype, x, width, codes);
        memcpy(scales, &scale, sizeof scale);
        return;
    case ORA_NVFP4:
        ora_nvfp4_encode(x, width, orig_quant(p, kv, plane), codes, scales);
        return;
    case ORA_FP4_MLA:
        ora_fp4_mla_encode(x, width, kv->residual, orig_quant(p, kv, plane),
                           quant_orig(p, kv, plane), codes, scales);
        return;
    case ORA_DS_POW2:
    case ORA_DS_FREE:
        ora_ds656_encode(x, kv->format == ORA_DS_POW2, codes);
        return;
    case ORA_DS_584:
        ora_ds584_encode(x, codes, scales);
        return;
    }
}

void ora_kv_store(const ora_problem *p, const ora_kv *kv, int plane, uint32_t kv_head, int64_t slot,
                  const double *x)
{
    uint32_t width = plane == 0 ? p->head_dim : p->head_dim_v;
    if (kv->format == ORA_PLAIN && ora_codec_has(kv->dtype))
        ora_encode(kv->dtype, x, width, ora_kv_at(kv, plane, kv_head, slot));
    else
        store_coded(p, kv, plane, kv_head, slot, width, x);
}
