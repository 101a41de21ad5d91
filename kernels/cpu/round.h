/* round.h: the three float types of the CPU backend, one value at a time: RN of attention.md §0.
 *
 * Baseline C that the compiler vectorises over a row; the kernels' inner loops have words of their
 * own in words.h.
 */
#ifndef ATTND_KERNELS_CPU_ROUND_H
#define ATTND_KERNELS_CPU_ROUND_H

#include <stdint.h>
#include <string.h>

static inline uint32_t cpu_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float cpu_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float cpu_from_bf16(uint16_t h)
{
    return cpu_float((uint32_t)h << 16);
}

static inline uint16_t cpu_to_bf16(float x)
{
    uint32_t bits = cpu_bits(x);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7FFFFFFF) > 0x7F800000 ? 0x7FFF : rounded);
}

static inline float cpu_from_f16(uint16_t h)
{
    uint32_t magnitude = h & 0x7FFFu;
    /* The exponent is 112 too low; the multiplication also normalises subnormals. */
    uint32_t finite = cpu_bits(cpu_float(magnitude << 13) * 0x1p112f);
    uint32_t special = magnitude << 13 | 0x7F800000u;
    uint32_t bits = magnitude >= 0x7C00 ? special : finite;
    return cpu_float(bits | (uint32_t)(h & 0x8000u) << 16);
}

static inline uint16_t cpu_to_f16(float x)
{
    uint32_t bits = cpu_bits(x), magnitude = bits & 0x7FFFFFFF;
    /* Below 2^-14 the sum's own rounding leaves multiples of 2^-24 in the low bits. */
    uint32_t subnormal = cpu_bits(cpu_float(magnitude) + 0.5f) - cpu_bits(0.5f);
    uint32_t normal = (magnitude - (112u << 23) + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    uint32_t half = magnitude < 113u << 23 ? subnormal : normal;
    half = magnitude >= 0x477FF000 ? 0x7C00 : half;
    half |= bits >> 16 & 0x8000;
    return (uint16_t)(magnitude > 0x7F800000 ? 0x7FFF : half);
}

#endif
