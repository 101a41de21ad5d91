/* level_portable.c: the bodies with 4 lanes, in nothing but C: SSE2, NEON or what there is. */
#define LANES 4
#define TARGET
#include "kernels/cpu/decode_body.h"
#include "kernels/cpu/prefill_body.h"

const cpu_level cpu_level_portable = {decode_item, prefill_item};
