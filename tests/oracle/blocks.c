/* blocks.c: rows whose elements share scales, as bytes and as numbers. */
#include "tests/oracle/blocks.h"

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"

static float amax_of(const double *x, size_t n)
{
    float amax = 0;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf((float)x[i]));
    return amax;
}

static uint8_t e4m3(double value)
{
    uint8_t code;
    ora_encode(ATTND_DTYPE_E4M3, &value, 1, &code);
    return code;
}

static double e4m3_value(uint8_t code)
{
    double value;
    ora_decode(ATTND_DTYPE_E4M3, &code, 1, &value);
    return value;
}

/* ---- NVFP4 ---- */

static uint8_t nvfp4_block(const double *x, float orig_quant, uint8_t *codes)
{
    float sixth = amax_of(x, ORA_NVFP4_BLOCK) / 6;
    float wanted = orig_quant * sixth;
    uint8_t scale = e4m3(wanted);
    float sf = (float)e4m3_value(scale);
    float inverse = 1 / orig_quant;
    float step = sf * inverse;
    float enc = sf == 0 ? 0 : 1 / step;
    for (int i = 0; i < ORA_NVFP4_BLOCK; i++) {
        float scaled = (float)x[i] * enc;
        uint8_t code = ora_e2m1(scaled);
        codes[i / 2] = (uint8_t)(i % 2 == 0 ? code : codes[i / 2] | code << 4);
    }
    return scale;
}

void ora_nvfp4_encode(const double *x, size_t n, float orig_quant, uint8_t *codes, uint8_t *scales)
{
    for (size_t i = 0; i < n; i += ORA_NVFP4_BLOCK)
        scales[i / ORA_NVFP4_BLOCK] = nvfp4_block(x + i, orig_quant, codes + i / 2);
}

void ora_nvfp4_decode(const uint8_t *codes, const uint8_t *scales, size_t n, float quant_orig,
                      double *x)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
        x[i] = ora_e2m1_value(code) * e4m3_value(scales[i / ORA_NVFP4_BLOCK]) * quant_orig;
    }
}

/* ---- A scale a row ---- */

float ora_head_encode(attnd_dtype dtype, const double *x, size_t n, void *codes)
{
    float scale = amax_of(x, n) / (dtype == ATTND_DTYPE_I8 ? 127.0f : 448.0f);
    if (scale == 0)
        scale = 1;
    for (size_t i = 0; i < n; i++) {
        double code = (float)x[i] / scale;
        ora_encode(dtype, &code, 1, (char *)codes + i);
    }
    return scale;
}

/* ---- fp8_ds_mla ---- */

enum {
    DS656_LATENT = 512,
    DS656_GROUP = 128,
    DS584_LATENT = 448,
    DS584_GROUP = 64,
    DS_ROPE = 64,
};

float ora_pow2_scale(float amax)
{
    float least = fmaxf(amax / 448, 1e-4f);
    int exponent;
    return isinf(least) || frexpf(least, &exponent) == 0.5f ? least : ldexpf(1, exponent);
}

static void ds_group(const double *x, size_t n, float scale, uint8_t *codes)
{
    for (size_t i = 0; i < n; i++)
        codes[i] = scale == 0 && x[i] == 0 ? 0 : e4m3((float)x[i] / scale);
}

void ora_ds656_encode(const double x[ORA_DS656_WIDTH], bool pow2, uint8_t row[ORA_DS656_BYTES])
{
    for (int g = 0; g < DS656_LATENT / DS656_GROUP; g++) {
        const double *group = x + g * DS656_GROUP;
        float amax = amax_of(group, DS656_GROUP);
        float scale = pow2 ? ora_pow2_scale(amax) : amax / 448;
        ds_group(group, DS656_GROUP, scale, row + g * DS656_GROUP);
        memcpy(row + DS656_LATENT + g * sizeof scale, &scale, sizeof scale);
    }
    ora_encode(ATTND_DTYPE_BF16, x + DS656_LATENT, DS_ROPE, row + (ORA_DS656_BYTES - 2 * DS_ROPE));
}

void ora_ds656_decode(const uint8_t row[ORA_DS656_BYTES], double x[ORA_DS656_WIDTH])
{
    for (int g = 0; g < DS656_LATENT / DS656_GROUP; g++) {
        float scale;
        memcpy(&scale, row + DS656_LATENT + g * sizeof scale, sizeof scale);
        for (int i = g * DS656_GROUP; i < (g + 1) * DS656_GROUP; i++)
            x[i] = e4m3_value(row[i]) * scale;
    }
    ora_decode(ATTND_DTYPE_BF16, row + (ORA_DS656_BYTES - 2 * DS_ROPE), DS_ROPE, x + DS656_LATENT);
}

double ora_e8m0_value(uint8_t code)
{
    return code == 255 ? NAN : ldexp(1, code - 127);
}

void ora_ds584_encode(const double x[ORA_DS584_WIDTH], uint8_t row[ORA_DS584_BYTES],
                      uint8_t scales[ORA_DS584_SCALES])
{
    memset(scales, 0, ORA_DS584_SCALES);
    for (int g = 0; g < DS584_LATENT / DS584_GROUP; g++) {
        const double *group = x + g * DS584_GROUP;
        /* An infinity takes the largest exponent: 255 would read as NaN. */
        float scale = fminf(ora_pow2_scale(amax_of(group, DS584_GROUP)), 0x1p127f);
        ds_group(group, DS584_GROUP, scale, row + g * DS584_GROUP);
        scales[g] = (uint8_t)(ilogbf(scale) + 127);
    }
    ora_encode(ATTND_DTYPE_BF16, x + DS584_LATENT, DS_ROPE, row + DS584_LATENT);
}

void ora_ds584_decode(const uint8_t row[ORA_DS584_BYTES], const uint8_t scales[ORA_DS584_SCALES],
                      double x[ORA_DS584_WIDTH])
{
    for (int i = 0; i < DS584_LATENT; i++)
        x[i] = e4m3_value(row[i]) * ora_e8m0_value(scales[i / DS584_GROUP]);
    ora_decode(ATTND_DTYPE_BF16, row + DS584_LATENT, DS_ROPE, x + DS584_LATENT);
}

/* ---- Dense FP4 MLA ---- */

void ora_fp4_mla_encode(const double *x, size_t n, size_t residual, float orig_quant,
                        float quant_orig, uint8_t *codes, uint8_t *scales)
{
    ora_nvfp4_encode(x, n, orig_quant, codes, scales);
    for (size_t i = n - residual; i < n; i += ORA_NVFP4_BLOCK) {
        double block[ORA_NVFP4_BLOCK];
        ora_nvfp4_decode(codes + i / 2, scales + i / ORA_NVFP4_BLOCK, ORA_NVFP4_BLOCK, quant_orig,
                         block);
        for (int m = 0; m < ORA_NVFP4_BLOCK; m++)
            block[m] = (float)x[i + (size_t)m] - (float)block[m];
        ora_nvfp4_encode(block, ORA_NVFP4_BLOCK, orig_quant, codes + (i + residual) / 2,
                         scales + (i + residual) / ORA_NVFP4_BLOCK);
    }
}

void ora_fp4_mla_decode(const uint8_t *codes, const uint8_t *scales, size_t n, size_t residual,
                        float quant_orig, double *x)
{
    ora_nvfp4_decode(codes, scales, n, quant_orig, x);
    for (size_t i = n - residual; i < n; i += ORA_NVFP4_BLOCK) {
        double block[ORA_NVFP4_BLOCK];
        ora_nvfp4_decode(codes + (i + residual) / 2, scales + (i + residual) / ORA_NVFP4_BLOCK,
                         ORA_NVFP4_BLOCK, quant_orig, block);
        for (int m = 0; m < ORA_NVFP4_BLOCK; m++)
            x[i + (size_t)m] += block[m];
    }
}
