/* generate.h: the data of case files, to the bit (design of case files: SplitMix64 and FNV1a64).
 *
 * Element i, row-major in the logical shape, depends on seed, name and i alone.
 */
#ifndef ATTND_TESTS_ORACLE_GENERATE_H
#define ATTND_TESTS_ORACLE_GENERATE_H

#include "proto/types.h"

uint64_t ora_fnv1a64(const char *text);

/* Element i of the tensor called name: mean 0, variance 1, |x| ≤ 2·sqrt(3). */
double ora_element(uint64_t seed, const char *name, uint64_t i);

/* n elements from first on, times amplitude, rounded to fp32 and then to dtype (F32, F16, BF16),
 * gapless at bytes. */
void ora_generate(uint64_t seed, const char *name, uint64_t first, size_t n, double amplitude,
                  attnd_dtype dtype, void *bytes);

#endif
