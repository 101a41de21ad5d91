/* generate.c: the data of case files. */
#include "tests/oracle/generate.h"

#include <math.h>

#include "tests/oracle/codec.h"

uint64_t ora_fnv1a64(const char *text)
{
    uint64_t hash = 0xCBF29CE484222325u;
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 0x100000001B3u;
    return hash;
}

/* Draw n of SplitMix64, its top 53 bits as a number in [0, 1). */
static double draw(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

static double element(uint64_t seed, uint64_t i)
{
    double sum = draw(seed, 4 * i);
    sum += draw(seed, 4 * i + 1);
    sum += draw(seed, 4 * i + 2);
    sum += draw(seed, 4 * i + 3);
    return (sum - 2) * sqrt(3);
}

double ora_element(uint64_t seed, const char *name, uint64_t i)
{
    return element(seed ^ ora_fnv1a64(name), i);
}

void ora_generate(uint64_t seed, const char *name, uint64_t first, size_t n, double amplitude,
                  attnd_dtype dtype, void *bytes)
{
    uint64_t own_seed = seed ^ ora_fnv1a64(name);
    size_t size = ora_codec_bytes(dtype);
    for (size_t i = 0; i < n; i++) {
        double value = (float)(element(own_seed, first + i) * amplitude);
        ora_encode(dtype, &value, 1, (char *)bytes + i * size);
    }
}
