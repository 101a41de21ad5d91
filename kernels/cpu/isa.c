/* isa.c: which instruction set the bodies of the CPU kernels run with. */
#include <string.h>

#include "kernels/cpu/cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The builtins also ask whether the system saves the wide registers; they do not know F16C. */
static ker_level best_level(void)
{
#if defined(__x86_64__)
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return KER_LEVEL_PORTABLE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return KER_LEVEL_AVX2;
    return KER_LEVEL_AVX512;
#else
    return KER_LEVEL_PORTABLE;
#endif
}

attnd_status cpu_isa_find(const char *name, ker_level *out, attnd_err *err)
{
    ker_level best = best_level();
    *out = best;
    if (!name)
        return ATTND_OK;
    int level = 0;
    while (level < KER_N_CPU_LEVELS && strcmp(name, ker_level_name((ker_level)level)) != 0)
        level++;
    if (level == KER_N_CPU_LEVELS)
        return attnd_fail(err, ATTND_BAD_CONFIG, "device.isa = %s: avx512, avx2 or portable", name);
    if (level > (int)best)
        return attnd_fail(err, ATTND_UNSUPPORTED, "device.isa = %s: this CPU has %s", name,
                          ker_level_name(best));
    *out = (ker_level)level;
    return ATTND_OK;
}

const cpu_level *cpu_isa_bodies(ker_level level)
{
#if defined(__x86_64__)
    if (level == KER_LEVEL_AVX512)
        return &cpu_level_avx512;
    if (level == KER_LEVEL_AVX2)
        return &cpu_level_avx2;
#endif
    return &cpu_level_portable;
}

/* ---- The rows of kernels.def that run here. ---------------------------------------------------
 */

ker_run_item ker_decode_portable, ker_prefill_portable;

void ker_decode_portable(ker_worker *worker, const ker_plan *plan, const ker_item *item,
                         char *workspace)
{
    worker->level->decode(worker, plan, item, workspace);
}

void ker_prefill_portable(ker_worker *worker, const ker_plan *plan, const ker_item *item,
                          char *workspace)
{
    worker->level->prefill(worker, plan, item, workspace);
}
