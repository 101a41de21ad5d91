/* codec.c: numbers of a few bytes and their values. */
#include "tests/oracle/codec.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A binary format: explicit bits of the mantissa, bits of the exponent, exponents of its normal
 * numbers. One that saturates says where. */
typedef struct format {
    int mantissa, exponent_bits, min_exponent, max_exponent;
    double largest; /* 0: overflows to infinity, which has the highest exponent and no mantissa */
} format;

static const format E4M3 = {3, 4, -6, 8, 448};
static const format E5M2 = {2, 5, -14, 15, 57344};
static const format E2M1 = {1, 2, 0, 2, 6};

static format format_of(attnd_dtype dtype)
{
    switch (dtype) {
    case ATTND_DTYPE_F32:
        return (format){23, 8, -126, 127, 0};
    case ATTND_DTYPE_F16:
        return (format){10, 5, -14, 15, 0};
    case ATTND_DTYPE_BF16:
        return (format){7, 8, -126, 127, 0};
    case ATTND_DTYPE_E4M3:
        return E4M3;
    case ATTND_DTYPE_E5M2:
        return E5M2;
    default:
        assert(!"a dtype of this codec");
        return (format){0};
    }
}

bool ora_codec_has(attnd_dtype dtype)
{
    return dtype == ATTND_DTYPE_F32 || dtype == ATTND_DTYPE_F16 || dtype == ATTND_DTYPE_BF16;
}

bool ora_codec_is_number(attnd_dtype dtype)
{
    return ora_codec_has(dtype) || dtype == ATTND_DTYPE_E4M3 || dtype == ATTND_DTYPE_E5M2 ||
           dtype == ATTND_DTYPE_I8;
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

/* The value of a code whose exponent is not the highest one. */
static double number_of(const format *f, uint32_t code)
{
    uint32_t mantissa = code & ((1u << f->mantissa) - 1);
    int exponent = (int)(code >> f->mantissa) & ((1 << f->exponent_bits) - 1);
    double sign = code >> (f->mantissa + f->exponent_bits) & 1 ? -1 : 1;
    double steps = exponent == 0 ? mantissa : mantissa + (1u << f->mantissa);
    if (exponent > 0)
        exponent--;
    return sign * ldexp(steps, exponent + f->min_exponent - f->mantissa);
}

static double from_f16(uint32_t bits)
{
    static const format f16 = {10, 5, -14, 15, 0};
    if ((bits >> 10 & 0x1F) == 0x1F)
        return from_f32((bits & 0x8000) << 16 | 0x7F800000u | (bits & 0x3FF) << 13);
    return number_of(&f16, bits);
}

static double from_e4m3(uint8_t code)
{
    return (code & 0x7F) == 0x7F ? NAN : number_of(&E4M3, code);
}

static double from_e5m2(uint8_t code)
{
    if ((code & 0x7F) > 0x7C)
        return NAN;
    return (code & 0x7F) == 0x7C ? (code & 0x80 ? -INFINITY : INFINITY) : number_of(&E5M2, code);
}

static double element(attnd_dtype dtype, const char *at)
{
    uint32_t word;
    uint16_t half;
    switch (dtype) {
    case ATTND_DTYPE_F32:
        memcpy(&word, at, sizeof word);
        return from_f32(word);
    case ATTND_DTYPE_F16:
        memcpy(&half, at, sizeof half);
        return from_f16(half);
    case ATTND_DTYPE_BF16:
        memcpy(&half, at, sizeof half);
        return from_f32((uint32_t)half << 16);
    case ATTND_DTYPE_E4M3:
        return from_e4m3((uint8_t)*at);
    case ATTND_DTYPE_E5M2:
        return from_e5m2((uint8_t)*at);
    case ATTND_DTYPE_I8:
        return (int8_t)*at;
    default:
        assert(!"a dtype of this codec");
        return NAN;
    }
}

void ora_decode(attnd_dtype dtype, const void *bytes, size_t n, double *out)
{
    size_t size = ora_codec_bytes(dtype);
    for (size_t i = 0; i < n; i++)
        out[i] = element(dtype, (const char *)bytes + i * size);
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

static double nearest(const format *f, double value)
{
    if (isnan(value) || value == 0)
        return value;
    if (f->largest > 0 && fabs(value) >= f->largest)
        return copysign(f->largest, value);
    if (isinf(value))
        return value;
    int step = step_exponent(f, value);
    double rounded = ldexp(nearbyint(ldexp(value, -step)), step);
    if (fabs(rounded) >= ldexp(1, f->max_exponent + 1))
        return copysign(INFINITY, value);
    return rounded;
}

static double nearest_i8(double value)
{
    return isnan(value) ? 0 : nearbyint(fmin(fmax(value, -127), 127));
}

double ora_round(attnd_dtype dtype, double value)
{
    if (dtype == ATTND_DTYPE_I8)
        return nearest_i8(value);
    format f = format_of(dtype);
    return nearest(&f, value);
}

double ora_ulp(attnd_dtype dtype, double value)
{
    if (dtype == ATTND_DTYPE_I8)
        return 1;
    format f = format_of(dtype);
    double largest = f.largest > 0 ? f.largest : ldexp(2 - ldexp(1, -f.mantissa), f.max_exponent);
    return ldexp(1, step_exponent(&f, fmin(fabs(value), largest)));
}

/* Bits of RN of a value; NaN is all ones behind a zero. */
static uint32_t bits_of(const format *f, double value)
{
    value = nearest(f, value);
    uint32_t sign = (uint32_t)(signbit(value) != 0) << (f->mantissa + f->exponent_bits);
    uint32_t infinity = ((1u << f->exponent_bits) - 1) << f->mantissa;
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
    size_t size = ora_codec_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        if (dtype == ATTND_DTYPE_I8) {
            bits = (uint32_t)(int32_t)nearest_i8(values[i]);
        } else {
            format f = format_of(dtype);
            bits = bits_of(&f, values[i]);
        }
        memcpy((char *)bytes + i * size, &bits, size);
    }
}

void ora_encode_scaled(attnd_dtype dtype, const double *values, size_t n, float factor, void *bytes)
{
    for (size_t i = 0; i < n; i++) {
        double product = (float)values[i] * factor;
        ora_encode(dtype, &product, 1, (char *)bytes + i * ora_codec_bytes(dtype));
    }
}

uint8_t ora_e2m1(double value)
{
    return (uint8_t)bits_of(&E2M1, value);
}

double ora_e2m1_value(uint8_t code)
{
    return number_of(&E2M1, code);
}
