/* level_avx2.c: the bodies with 8 lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WIDEN_F16(h) ((vf)_mm256_cvtph_ps((__m128i)(h)))
#include "kernels/cpu/decode_body.h"
#include "kernels/cpu/prefill_body.h"

const cpu_level cpu_level_avx2 = {decode_item, prefill_item};
#endif
