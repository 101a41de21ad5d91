/* blocks.h: rows whose elements share scales, as bytes and as numbers (attention.md §14.2,
 * §14.4-§14.6).
 *
 * Numbers are doubles that fp32 holds; codes come of fp32 arithmetic, every step rounded. A maximum
 * passes over NaN.
 */
#ifndef ATTND_TESTS_ORACLE_BLOCKS_H
#define ATTND_TESTS_ORACLE_BLOCKS_H

#include <stdbool.h>

#include "proto/types.h"

enum {
    ORA_NVFP4_BLOCK = 16,
    ORA_DS656_WIDTH = 576,
    ORA_DS656_BYTES = 656,
    ORA_DS584_WIDTH = 512,
    ORA_DS584_BYTES = 576,
    ORA_DS584_SCALES = 8,
};

/* §14.4: n, a multiple of 16, numbers ↔ codes[n/2], element 2m in the low nibble, and
 * scales[n/16]. orig_quant is Gs; the value of a code is code · scale · quant_orig. */
void ora_nvfp4_encode(const double *x, size_t n, float orig_quant, uint8_t *codes, uint8_t *scales);
void ora_nvfp4_decode(const uint8_t *codes, const uint8_t *scales, size_t n, float quant_orig,
                      double *x);

/* §14.2, stored scales: E4M3 or I8 codes of n numbers; returns their scale, 1 when amax/X is 0. */
float ora_head_encode(attnd_dtype dtype, const double *x, size_t n, void *codes);

/* §14.5: [512 e4m3 | 4 fp32 scales | 64 bf16]. */
void ora_ds656_encode(const double x[ORA_DS656_WIDTH], bool pow2, uint8_t row[ORA_DS656_BYTES]);
void ora_ds656_decode(const uint8_t row[ORA_DS656_BYTES], double x[ORA_DS656_WIDTH]);

/* §14.5, 584 bytes: [448 e4m3 | 64 bf16] and [7 E8M0 | 0]. */
void ora_ds584_encode(const double x[ORA_DS584_WIDTH], uint8_t row[ORA_DS584_BYTES],
                      uint8_t scales[ORA_DS584_SCALES]);
void ora_ds584_decode(const uint8_t row[ORA_DS584_BYTES], const uint8_t scales[ORA_DS584_SCALES],
                      double x[ORA_DS584_WIDTH]);

/* §14.6: NVFP4 of n numbers, then of what it leaves of the last `residual` of them: codes[(n +
 * residual)/2], scales[(n + residual)/16]. Both are multiples of 16. */
void ora_fp4_mla_encode(const double *x, size_t n, size_t residual, float orig_quant,
                        float quant_orig, uint8_t *codes, uint8_t *scales);
void ora_fp4_mla_decode(const uint8_t *codes, const uint8_t *scales, size_t n, size_t residual,
                        float quant_orig, double *x);

/* 2^(code - 127); NaN for 255. */
double ora_e8m0_value(uint8_t code);

/* The pow2 rule: max(amax/448, 1e-4) rounded up to a power of two. */
float ora_pow2_scale(float amax);

#endif
