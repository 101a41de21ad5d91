/* level_avx512.c: the bodies with 16 lanes. */
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define WIDEN_F16(h) ((vf)_mm512_cvtph_ps((__m256i)(h)))
#include "kernels/cpu/decode_body.h"
#include "kernels/cpu/prefill_body.h"

const cpu_level cpu_level_avx512 = {decode_item, prefill_item};
#endif
