/* level_avx512.c: the bodies with 16 lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define WIDEN_BF16(h) ((vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)(h)), 16))
#define WIDEN_F16(h) ((vf)_mm512_cvtph_ps((__m256i)(h)))
#define MAX_OF(a, b) ((vf)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define ZERO_BELOW(x, limit, y)                                                                    \
    ((vf)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)(x), (__m512)(limit), _CMP_NLT_UQ),        \
                             (__m512)(y)))
#include "kernels/cpu/decode_body.h"
#include "kernels/cpu/prefill_body.h"

const cpu_level cpu_level_avx512 = {decode_item, prefill_item};
#endif
