/* codec.c: F32, F16 and BF16 as bytes and as double. */
#include "tests/oracle/codec.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A binary format: explicit bits of the mantissa, exponents of its normal numbers. */
typedef struct format {
    int mantissa, min_exponent, max_exponent;
} format;

static format format_of(attnd_dtype dtype)
{
    switch (dtype) {
    case ATTND_DTYPE_F32:
        return (format){23, -126, 127};
    case ATTND_DTYPE_F16:
        return (format){10, -14, 15};
    case ATTND_DTYPE_BF16:
        return (format){7, -126, 127};
    default:
        assert(!"a dtype of this codec");
        return (format){0};
    }
}

bool ora_codec_has(attnd_dtype dtype)
{
    return dtype == ATTND_DTYPE_F32 || dtype == ATTND_DTYPE_F16 || dtype == ATTND_DTYPE_BF16;
}

size_t ora_codec_bytes(attnd_dtype dtype)
{
    return attnd_dtype_bits(dtype) / 8;
}

static double from_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double from_f16(uint32_t bits)
{
    uint32_t exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
    uint32_t sign = (bits & 0x8000) << 16;
    if (exponent == 0x1F)
        return from_f32(sign | 0x7F800000u | mantissa << 13);
    if (exponent > 0)
        return from_f32(sign | (exponent + 112) << 23 | mantissa << 13);
    return sign ? -(double)mantissa * 0x1p-24 : (double)mantissa * 0x1p-24;
}

void ora_decode(attnd_dtype dtype, const void *bytes, size_t n, double *out)
{
    const char *in = bytes;
    uint32_t word;
    uint16_t half;
    switch (dtype) {
    case ATTND_DTYPE_F32:
        for (size_t i = 0; i < n; i++) {
            memcpy(&word, in + 4 * i, sizeof word);
            out[i] = from_f32(word);
        }
        return;
    case ATTND_DTYPE_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, in + 2 * i, sizeof half);
            out[i] = from_f16(half);
        }
        return;
    case ATTND_DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, in + 2 * i, sizeof half);
            out[i] = from_f32((uint32_t)half << 16);
        }
        return;
    default:
        assert(!"a dtype of this codec");
    }
}

/* Exponent of the step between neighbours at a finite value. */
static int step_exponent(const format *f, double value)
{
    int exponent = f->min_exponent;
    if (value != 0)
        exponent = ilogb(value);
    if (exponent < f->min_exponent)
        exponent = f->min_exponent;
    return exponent - f->mantissa;
}

double ora_round(attnd_dtype dtype, double value)
{
    format f = format_of(dtype);
    if (isnan(value) || isinf(value) || value == 0)
        return value;
    int step = step_exponent(&f, value);
    double rounded = ldexp(nearbyint(ldexp(value, -step)), step);
    if (fabs(rounded) >= ldexp(1, f.max_exponent + 1))
        return copysign(INFINITY, value);
    return rounded;
}

double ora_ulp(attnd_dtype dtype, double value)
{
    format f = format_of(dtype);
    double largest = ldexp(2 - ldexp(1, -f.mantissa), f.max_exponent);
    return ldexp(1, step_exponent(&f, fmin(fabs(value), largest)));
}

/* Bits of a value that the format holds exactly; NaN is all ones behind a zero. */
static uint32_t bits_of(const format *f, double value)
{
    int exponent_bits = f->max_exponent == 15 ? 5 : 8;
    uint32_t sign = (uint32_t)(signbit(value) != 0) << (f->mantissa + exponent_bits);
    uint32_t infinity = ((1u << exponent_bits) - 1) << f->mantissa;
    if (isnan(value))
        return infinity | ((1u << f->mantissa) - 1);
    if (isinf(value))
        return sign | infinity;
    int step = step_exponent(f, value);
    uint32_t steps = (uint32_t)ldexp(fabs(value), -step);
    /* Subnormals have exponent 0; the hidden bit of a normal adds 1 to the exponent. */
    return sign | (((uint32_t)(step + f->mantissa - f->min_exponent) << f->mantissa) + steps);
}

void ora_encode(attnd_dtype dtype, const double *values, size_t n, void *bytes)
{
    format f = format_of(dtype);
    size_t size = ora_codec_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(&f, ora_round(dtype, values[i]));
        memcpy((char *)bytes + i * size, &bits, size);
    }
}
