/* words.h: the vector words that the bodies are written in.
 *
 * Included by one small file per instruction set, which defines
 *     LANES            floats of a vector: 16, 8 or 4
 *     TARGET           the attribute that turns the instructions on
 * and, where C does not say it well, all of
 *     WIDEN_BF16(h), WIDEN_F16(h)  LANES halves → LANES floats, exactly
 *     MAX_OF(a, b)                 the larger; b where one is NaN
 *     ZERO_BELOW(x, limit, y)      0 where x < limit, else y, where x is NaN too
 * Everything else is the compiler's vector extension: a·b + c becomes a fused multiply-add where
 * the target has one.
 */
#ifndef ATTND_KERNELS_CPU_WORDS_H
#define ATTND_KERNELS_CPU_WORDS_H

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef float vf __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));
typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef uint16_t vh __attribute__((vector_size(LANES * 2)));

/* A word. */
#define WORD TARGET static inline __attribute__((always_inline))

WORD vf splat(float x)
{
    return x - (vf){0};
}

WORD vf load_f32(const float *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

WORD void store_f32(float *to, vf x)
{
    memcpy(to, &x, sizeof x);
}

WORD vf choose(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

#ifndef WIDEN_F16
WORD vf widen_f16(vh h)
{
    vu magnitude = __builtin_convertvector(h & 0x7FFF, vu) << 13;
    vu sign = __builtin_convertvector(h & 0x8000, vu) << 16;
    /* The exponent is 112 too low; the multiplication also normalises subnormals. */
    vu finite = (vu)((vf)magnitude * 0x1p112f);
    vu special = (vu)(magnitude >= 0x7C00u << 13);
    return (vf)(sign | (special & (magnitude | 0x7F800000u)) | (~special & finite));
}
#define WIDEN_F16(h) widen_f16(h)
#define WIDEN_BF16(h) ((vf)(__builtin_convertvector(h, vu) << 16))
#define MAX_OF(a, b) choose((a) > (b), a, b)
#define ZERO_BELOW(x, limit, y) ((vf)(~((x) < (limit)) & (vi)(y)))
#endif

/* Elements c .. c + LANES-1 of a row of dtype, which is constant where this is inlined. */
WORD vf load_as(attnd_dtype dtype, const char *row, uint32_t c)
{
    if (dtype == ATTND_DTYPE_F32)
        return load_f32((const float *)row + c);
    vh h;
    memcpy(&h, row + (size_t)c * 2, sizeof h);
    if (dtype == ATTND_DTYPE_F16)
        return WIDEN_F16(h);
    return WIDEN_BF16(h);
}

WORD vi count_up(int32_t from)
{
    vi x;
    for (int i = 0; i < LANES; i++)
        x[i] = from + i;
    return x;
}

/* LOW_d(x, y): lane l is x[l], or y[l ^ d] where l has bit d; HIGH_d: x[l ^ d], or y[l]. */
#if LANES == 16
#define LOW_8(x, y)                                                                                \
    __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH_8(x, y)                                                                               \
    __builtin_shufflevector(x, y, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOW_4(x, y)                                                                                \
    __builtin_shufflevector(x, y, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH_4(x, y)                                                                               \
    __builtin_shufflevector(x, y, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW_2(x, y)                                                                                \
    __builtin_shufflevector(x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH_2(x, y)                                                                               \
    __builtin_shufflevector(x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW_1(x, y)                                                                                \
    __builtin_shufflevector(x, y, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH_1(x, y)                                                                               \
    __builtin_shufflevector(x, y, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#elif LANES == 8
#define LOW_4(x, y) __builtin_shufflevector(x, y, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_4(x, y) __builtin_shufflevector(x, y, 4, 5, 6, 7, 12, 13, 14, 15)
#define LOW_2(x, y) __builtin_shufflevector(x, y, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH_2(x, y) __builtin_shufflevector(x, y, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW_1(x, y) __builtin_shufflevector(x, y, 0, 8, 2, 10, 4, 12, 6, 14)
#define HIGH_1(x, y) __builtin_shufflevector(x, y, 1, 9, 3, 11, 5, 13, 7, 15)
#else
#define LOW_2(x, y) __builtin_shufflevector(x, y, 0, 1, 4, 5)
#define HIGH_2(x, y) __builtin_shufflevector(x, y, 2, 3, 6, 7)
#define LOW_1(x, y) __builtin_shufflevector(x, y, 0, 4, 2, 6)
#define HIGH_1(x, y) __builtin_shufflevector(x, y, 1, 5, 3, 7)
#endif

#if LANES == 16
#define EACH_DISTANCE(X) X(8) X(4) X(2) X(1)
#elif LANES == 8
#define EACH_DISTANCE(X) X(4) X(2) X(1)
#else
#define EACH_DISTANCE(X) X(2) X(1)
#endif

/* Lane i of the result is the sum of x[i]'s lanes, added in the same order for every i. */
WORD vf sum_each(vf x[LANES])
{
#define X(d)                                                                                       \
    for (int i = 0; i < d; i++)                                                                    \
        x[i] = LOW_##d(x[i], x[i + d]) + HIGH_##d(x[i], x[i + d]);
    EACH_DISTANCE(X)
#undef X
    return x[0];
}

WORD float sum_lanes(vf x)
{
#define X(d) x = LOW_##d(x, x) + HIGH_##d(x, x);
    EACH_DISTANCE(X)
#undef X
    return x[0];
}

/* NaN where there is no number but NaN is not kept: callers look for NaN themselves. */
WORD float max_lanes(vf x)
{
#define X(d)                                                                                       \
    {                                                                                              \
        vf a = LOW_##d(x, x), b = HIGH_##d(x, x);                                                  \
        x = MAX_OF(a, b);                                                                          \
    }
    EACH_DISTANCE(X)
#undef X
    return x[0];
}

/* x[i][j] → x[j][i]. */
WORD void transpose(vf x[LANES])
{
#define X(d)                                                                                       \
    for (int i = 0; i < LANES; i++)                                                                \
        if (!(i & d)) {                                                                            \
            vf low = LOW_##d(x[i], x[i + d]);                                                      \
            x[i + d] = HIGH_##d(x[i], x[i + d]);                                                   \
            x[i] = low;                                                                            \
        }
    EACH_DISTANCE(X)
#undef X
}

/* exp(x), x ≤ 0: 2^n · 2^f with n the nearest integer. 2^f is right to 2e-7, relative, and exactly
 * 1 at 0, so that one key gives its value back. 0 below -87; NaN stays NaN. */
WORD vf exp_down(vf x)
{
    const float log2_e = 1.44269504f;
    const float to_int = 12582912; /* 1.5 · 2^23: the sum's low bits are n */
    vf given = x;
    x = MAX_OF(splat(-87), x);
    vf shifted = x * log2_e + to_int;
    vf f = x * log2_e - (shifted - to_int);
    vf p = f * 0.0013264727f + 0.009671513f;
    p = p * f + 0.055507336f;
    p = p * f + 0.24022242f;
    p = p * f + 0.693147f;
    p = p * f + 1;
    vf scale = (vf)(((vu)shifted << 23) + (127u << 23));
    return ZERO_BELOW(given, splat(-87), p * scale);
}

/* tanh(x): odd polynomial near 0, where 1 - 2/(e^2x + 1) would cancel. */
WORD vf tanh_of(vf x)
{
    vf square = x * x;
    vf small = square * (float)(-1382.0 / 155925) + (float)(62.0 / 2835);
    small = small * square - (float)(17.0 / 315);
    small = small * square + (float)(2.0 / 15);
    small = small * square - (float)(1.0 / 3);
    small = small * square * x + x;
    vi negative = x < splat(0);
    vf magnitude = choose(negative, -x, x);
    vf e = exp_down(magnitude * -2);
    vf large = (1 - e) / (1 + e);
    large = choose(negative, -large, large);
    return choose(magnitude < splat(0.4f), small, large);
}

#endif
