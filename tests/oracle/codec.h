/* codec.h: F32, F16 and BF16 as bytes and as double, exactly (attention.md §0).
 *
 * Rounds once, nearest-even; overflows to ±Inf; every NaN of a 16-bit format is stored as 0x7FFF,
 * of fp32 as 0x7FFFFFFF. Bytes are little-endian and need no alignment. Other dtypes are not
 * numbers here: callers ask ora_codec_has() first.
 */
#ifndef ATTND_TESTS_ORACLE_CODEC_H
#define ATTND_TESTS_ORACLE_CODEC_H

#include <stdbool.h>

#include "proto/types.h"

bool ora_codec_has(attnd_dtype dtype);

/* Bytes of one element. */
size_t ora_codec_bytes(attnd_dtype dtype);

/* The value of n elements that follow each other. */
void ora_decode(attnd_dtype dtype, const void *bytes, size_t n, double *out);

/* RN of n values, as bytes. */
void ora_encode(attnd_dtype dtype, const double *values, size_t n, void *bytes);

/* RN of one value, as a double. */
double ora_round(attnd_dtype dtype, double value);

/* Distance of neighbours at |value|: the smallest step for 0 and subnormals. */
double ora_ulp(attnd_dtype dtype, double value);

#endif
