/* level_avx2.c: the bodies with 8 lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8
#define TARGET __attribute__((target("avx2,fma,f16c")))
#define WIDEN_BF16(h) ((vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)(h)), 16))
#define WIDEN_F16(h) ((vf)_mm256_cvtph_ps((__m128i)(h)))
#define MAX_OF(a, b) ((vf)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define ZERO_BELOW(x, limit, y)                                                                    \
    ((vf)_mm256_and_ps(_mm256_cmp_ps((__m256)(x), (__m256)(limit), _CMP_NLT_UQ), (__m256)(y)))
#include "kernels/cpu/decode_body.h"
#include "kernels/cpu/prefill_body.h"

const cpu_level cpu_level_avx2 = {decode_item, prefill_item};
#endif
