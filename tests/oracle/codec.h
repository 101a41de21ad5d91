/* codec.h: numbers of a few bytes and their values, exactly (attention.md §0, §14.2, §14.3).
 *
 * Rounds once, nearest-even. F32, F16 and BF16 overflow to ±Inf; E4M3, E5M2, I8 and E2M1 saturate,
 * ±Inf included, at 448, 57344, 127 and 6. Every NaN is stored as 0x7FFFFFFF, 0x7FFF or 0x7F; I8
 * has none and takes 0, E2M1 takes 6. Bytes are little-endian and need no alignment.
 *
 * blocks.h has the formats whose elements share a scale.
 */
#ifndef ATTND_TESTS_ORACLE_CODEC_H
#define ATTND_TESTS_ORACLE_CODEC_H

#include <stdbool.h>

#include "proto/types.h"

/* The types of activations: F32, F16, BF16. */
bool ora_codec_has(attnd_dtype dtype);

/* Those whose elements are numbers by themselves: E4M3, E5M2 and I8 too. The functions below take
 * these. */
bool ora_codec_is_number(attnd_dtype dtype);

/* Bytes of one element. */
size_t ora_codec_bytes(attnd_dtype dtype);

/* The value of n elements that follow each other. */
void ora_decode(attnd_dtype dtype, const void *bytes, size_t n, double *out);

/* RN of n values, as bytes. */
void ora_encode(attnd_dtype dtype, const double *values, size_t n, void *bytes);

/* RN of one value, as a double. */
double ora_round(attnd_dtype dtype, double value);

/* Distance of neighbours at |value|: the smallest step for 0 and subnormals, the largest beyond the
 * largest number. */
double ora_ulp(attnd_dtype dtype, double value);

/* The rule of a scale (§14.1): RN of value · factor, the product rounded to fp32 first. */
void ora_encode_scaled(attnd_dtype dtype, const double *values, size_t n, float factor,
                       void *bytes);

/* E2M1: codes 0 .. 15. */
uint8_t ora_e2m1(double value);
double ora_e2m1_value(uint8_t code);

#endif
