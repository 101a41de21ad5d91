/* registry.c: the cheapest row of kernels.def that serves a problem, and why each other does not.
 */
#include "kernels/registry.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Families: what a row costs. --------------------------------------------------------------
 *
 * Multiply-adds a second of one thread, and what bringing one element of a key or value into place
 * costs as multiply-adds. Only their ratio chooses.
 */

static double seconds(const ker_problem *p, const ker_work *work, double rate, double per_element)
{
    double widths = (double)p->head_dim + p->head_dim_v;
    double pairs = work->pairs * p->n_heads, passes = work->passes * p->n_kv_heads;
    return widths * (pairs + passes * per_element) / rate;
}

static double decode_cost(const ker_kernel *kernel, const ker_problem *p, const ker_work *work)
{
    return seconds(p, work, 30e9, 0);
}

static double prefill_cost(const ker_kernel *kernel, const ker_problem *p, const ker_work *work)
{
    return seconds(p, work, 47e9, 6);
}

static const ker_family decode = {"decode", decode_cost, 1, 1, false};
static const ker_family prefill = {"prefill", prefill_cost, 1, 1, false};

#ifdef ATTND_CUDA
/* Heads are padded to the width of the kernel. */
static double mma_cost(const ker_kernel *kernel, const ker_work *work, const ker_problem *p,
                       double rate)
{
    double pairs = work->pairs * p->n_heads, passes = work->passes * p->n_kv_heads;
    return 2.0 * kernel->dims * (pairs + passes * 32) / rate;
}

static double decode_mma_cost(const ker_kernel *kernel, const ker_problem *p, const ker_work *work)
{
    return mma_cost(kernel, work, p, 2e12);
}

static double prefill_mma_cost(const ker_kernel *kernel, const ker_problem *p, const ker_work *work)
{
    return mma_cost(kernel, work, p, 1e12);
}

static double plain_cost(const ker_kernel *kernel, const ker_problem *p, const ker_work *work)
{
    return seconds(p, work, 1e10, 0);
}

static const ker_family decode_mma = {"decode_mma", decode_mma_cost, 8, 16, true};
static const ker_family prefill_mma = {"prefill_mma", prefill_mma_cost, 8, 16, true};
static const ker_family plain = {"plain", plain_cost, 1, 1, false};
#endif

/* ---- The table. -------------------------------------------------------------------------------
 */

/* The words of kernels.def. */
enum {
    CTX = 1u << KER_CONTEXT,
    GEN = 1u << KER_GENERATION,
    F32 = 1u << ATTND_DTYPE_F32,
    F16 = 1u << ATTND_DTYPE_F16,
    BF16 = 1u << ATTND_DTYPE_BF16,
    D64 = 64,
    D96 = 96,
    D128 = 128,
    D192 = 192,
    D256 = 256,
    D_ANY = KER_MAX_DIM,
    BOUNDS = KER_MASK_BOUNDS,
    CAP = KER_EXTRA_CAP,
    ALIBI = KER_EXTRA_ALIBI,
    SINKS = KER_EXTRA_SINKS,
    GIVEN = KER_EXTRA_GIVEN,
    ALL = CAP | ALIBI | SINKS | GIVEN,
};

/* What a row needs also says what its symbol is. */
#define LEVEL_NOTHING KER_LEVEL_PORTABLE
#define LEVEL_AVX2 KER_LEVEL_AVX2
#define LEVEL_AVX512 KER_LEVEL_AVX512
#define LEVEL_SM80 KER_LEVEL_SM80
#define LEVEL_SM90 KER_LEVEL_SM90
#define RUN_NOTHING item
#define RUN_AVX2 item
#define RUN_AVX512 item
#define RUN_SM80 part
#define RUN_SM90 part
#define TYPE_OF(run) TYPE_OF_(run)
#define TYPE_OF_(run) ker_run_##run
#define RUN(run, symbol) RUN_(run, symbol)
#define RUN_(run, symbol)                                                                          \
    {                                                                                              \
        .run = symbol                                                                              \
    }

#define KERNEL(name, family, rows, kv, dims, masks, extras, needs)                                 \
    extern TYPE_OF(RUN_##needs) ker_##name;
#include "kernels/kernels.def"
#undef KERNEL

static const ker_kernel kernels[] = {
#define KERNEL(name, family, rows, kv, dims, masks, extras, needs)                                 \
    {#name,                                                                                        \
     &family,                                                                                      \
     rows,                                                                                         \
     kv,                                                                                           \
     dims,                                                                                         \
     masks,                                                                                        \
     extras,                                                                                       \
     LEVEL_##needs,                                                                                \
     RUN(RUN_##needs, ker_##name),                                                                 \
     {#rows, #kv, #dims, #masks, #extras, #needs}},
#include "kernels/kernels.def"
#undef KERNEL
};

enum { N_KERNELS = sizeof kernels / sizeof *kernels };

size_t ker_n_kernels(void)
{
    return N_KERNELS;
}

const ker_kernel *ker_kernel_at(size_t i)
{
    return &kernels[i];
}

const char *ker_kernel_name(const ker_kernel *kernel)
{
    return kernel->name;
}

size_t ker_kernel_describe(const ker_kernel *kernel, const char *keys[], const char *values[],
                           size_t n)
{
    static const char *const names[] = {"family", "rows", "kv", "dims", "masks", "extras", "needs"};
    size_t i = 0;
    for (; i < n && i < sizeof names / sizeof *names; i++) {
        keys[i] = names[i];
        values[i] = i == 0 ? kernel->family->name : kernel->words[i - 1];
    }
    return i;
}

const char *ker_level_name(ker_level level)
{
    static const char *const names[KER_N_LEVELS] = {"portable", "avx2", "avx512", "sm_80", "sm_90"};
    return names[level];
}

/* ---- What a row does not serve. ---------------------------------------------------------------
 */

/* Appends to a list, with commas. */
static void add_word(char *list, size_t size, const char *word)
{
    size_t n = strlen(list);
    snprintf(list + n, size - n, "%s%s", n ? ", " : "", word);
}

static bool differ(ker_reason *reason, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Fills the reason from "subject: wants"; false, so that a check returns it. */
static bool differ(ker_reason *reason, const char *fmt, ...)
{
    char text[KER_REASON_TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    char *colon = strstr(text, ": ");
    *colon = 0;
    snprintf(reason->subject, sizeof reason->subject, "%.*s", (int)sizeof reason->subject - 1,
             text);
    snprintf(reason->wants, sizeof reason->wants, "%.*s", (int)sizeof reason->wants - 1, colon + 2);
    return false;
}

static bool serves_dtype(uint32_t set, const char *field, attnd_dtype dtype, ker_reason *reason)
{
    if (set & 1u << dtype)
        return true;
    char list[64] = "";
    for (uint32_t i = 0; i < 32; i++)
        if (set & 1u << i)
            add_word(list, sizeof list, attnd_dtype_name((attnd_dtype)i));
    return differ(reason, "%s = %s: takes %s", field, attnd_dtype_name(dtype), list);
}

/* The layer's own type, unless the rows are floats of another. */
static bool serves_rows(const ker_problem *p, const char *field, const ker_rows *rows,
                        ker_reason *reason)
{
    attnd_dtype dtype = ker_rows_dtype(p, rows);
    if (!rows->base || dtype == p->dtype)
        return true;
    return differ(reason, "%s = %s: takes the layer's %s", field, attnd_dtype_name(dtype),
                  attnd_dtype_name(p->dtype));
}

static bool serves_one_type(const ker_kernel *kernel, const ker_problem *p, ker_reason *reason)
{
    return !kernel->family->one_type || p->dtype == p->kv.dtype ||
           differ(reason, "dtype = %s: takes the keys' %s", attnd_dtype_name(p->dtype),
                  attnd_dtype_name(p->kv.dtype));
}

static bool serves_types(const ker_kernel *kernel, const ker_problem *p, ker_reason *reason)
{
    const uint32_t floats = F32 | F16 | BF16;
    return serves_dtype(floats, "dtype", p->dtype, reason) &&
           serves_dtype(kernel->kv, "kv.dtype", p->kv.dtype, reason) &&
           serves_one_type(kernel, p, reason) &&
           serves_dtype(floats, "out.dtype", ker_rows_dtype(p, &p->out), reason) &&
           serves_rows(p, "q.dtype", &p->q, reason) &&
           serves_rows(p, "append.k.dtype", &p->append.k, reason) &&
           serves_rows(p, "append.v.dtype", &p->append.v, reason);
}

static bool serves_dim(const ker_kernel *kernel, const char *field, uint32_t dim,
                       ker_reason *reason)
{
    uint32_t step = kernel->family->step;
    if (dim <= kernel->dims && dim % step == 0)
        return true;
    if (step == 1)
        return differ(reason, "%s = %u: takes up to %u", field, dim, kernel->dims);
    return differ(reason, "%s = %u: takes multiples of %u up to %u", field, dim, step,
                  kernel->dims);
}

static bool is_aligned(const ker_kernel *kernel, const char *field, int64_t value,
                       ker_reason *reason)
{
    int64_t align = kernel->family->align;
    return value % align == 0 || differ(reason, "%s = %lld: takes multiples of %lld bytes", field,
                                        (long long)value, (long long)align);
}

static bool serves_strides(const ker_kernel *kernel, const ker_problem *p, ker_reason *reason)
{
    if (kernel->family->align == 1)
        return true;
    static const char *const fields[2][3] = {
        {"kv.plane[0]", "kv.head_stride[0]", "kv.token_stride[0]"},
        {"kv.plane[1]", "kv.head_stride[1]", "kv.token_stride[1]"},
    };
    for (int plane = 0; plane < 2; plane++) {
        int64_t values[] = {(int64_t)(uintptr_t)p->kv.plane[plane], p->kv.head_stride[plane],
                            p->kv.token_stride[plane]};
        for (int i = 0; i < 3; i++)
            if (!is_aligned(kernel, fields[plane][i], values[i], reason))
                return false;
    }
    return (!p->batch.block_ids ||
            is_aligned(kernel, "kv.block_stride", p->kv.block_stride, reason)) &&
           is_aligned(kernel, "q.base", (int64_t)(uintptr_t)p->q.base, reason) &&
           is_aligned(kernel, "q.token_stride", p->q.token_stride, reason) &&
           is_aligned(kernel, "q.head_stride", p->q.head_stride, reason);
}

/* The kinds of attention.md §6 in the order of their bits. */
static const char *const mask_words[] = {"causal", "window", "chunk",  "variable", "bytes",
                                         "bits",   "tree",   "blocks", "topk"};

static bool serves_mask(const ker_kernel *kernel, const ker_problem *p, ker_reason *reason)
{
    const uint32_t n = sizeof mask_words / sizeof *mask_words;
    uint32_t other = p->mask.kinds & ~kernel->masks;
    if (!other)
        return true;
    uint32_t bit = (uint32_t)__builtin_ctz(other);
    char list[96] = "full";
    for (uint32_t i = 0; i < n; i++)
        if (kernel->masks & 1u << i)
            add_word(list, sizeof list, mask_words[i]);
    return differ(reason, "mask = %s: takes %s", bit < n ? mask_words[bit] : "unknown", list);
}

/* Factors that change nothing: 1, or 0 where a problem names none. */
static bool serves_factor(const char *field, float factor, ker_reason *reason)
{
    return factor == 0 || factor == 1 ||
           differ(reason, "quant.%s = %g: takes 1", field, (double)factor);
}

static bool serves_scales(const char *field, const ker_quant *quant, const float *scales,
                          ker_reason *reason)
{
    if (!scales)
        return true;
    if (quant->quant_orig_per == 0)
        return serves_factor(field, *scales, reason);
    return differ(reason, "quant.%s = per head: takes 1", field);
}

static bool serves_quant(const ker_problem *p, ker_reason *reason)
{
    const ker_quant *quant = &p->quant;
    if (quant->stored_head_scales)
        return differ(reason, "quant.stored_head_scales = true: takes keys without scales");
    return serves_factor("k_orig_quant", quant->k_orig_quant, reason) &&
           serves_factor("v_orig_quant", quant->v_orig_quant, reason) &&
           serves_scales("k_quant_orig", quant, quant->k_quant_orig, reason) &&
           serves_scales("v_quant_orig", quant, quant->v_quant_orig, reason) &&
           serves_factor("q_quant_orig", quant->q_quant_orig, reason) &&
           serves_factor("out_orig_quant", quant->out_orig_quant, reason);
}

static bool serves_extras(const ker_kernel *kernel, const ker_problem *p, ker_reason *reason)
{
    uint32_t extras = kernel->extras;
    if (p->bias.softcap != 0 && !(extras & KER_EXTRA_CAP))
        return differ(reason, "bias.softcap = %g: takes none", (double)p->bias.softcap);
    if (p->bias.alibi_slopes && !(extras & KER_EXTRA_ALIBI))
        return differ(reason, "bias.alibi = given: takes none");
    if (p->bias.sinks && !(extras & KER_EXTRA_SINKS))
        return differ(reason, "bias.sinks = given: takes none");
    if (p->bias.relative)
        return differ(reason, "bias.relative = given: takes none");
    if (!p->batch.block_ids && !(extras & KER_EXTRA_GIVEN))
        return differ(reason, "keys = given: takes a block table");
    return true;
}

static bool serves_append(const ker_problem *p, ker_reason *reason)
{
    if (!p->append.k.base && !p->append.v.base)
        return true;
    if (!p->append.k.base || !p->append.v.base)
        return differ(reason, "append.%s = none: takes k and v together",
                      p->append.k.base ? "v" : "k");
    if (!p->batch.block_ids)
        return differ(reason, "append = given: takes it with a block table");
    return true;
}

static bool is_of_backend(const ker_kernel *kernel, ker_level level)
{
    return (kernel->needs >= KER_N_CPU_LEVELS) == (level >= KER_N_CPU_LEVELS);
}

bool ker_kernel_serves(const ker_kernel *kernel, ker_level level, const ker_problem *p,
                       ker_phase phase, ker_reason *reason)
{
    *reason = (ker_reason){0};
    bool is_cpu = level < KER_N_CPU_LEVELS;
    if (!is_of_backend(kernel, level))
        return differ(reason, "device.backend = %s: needs %s", is_cpu ? "cpu" : "cuda",
                      is_cpu ? "cuda" : "cpu");
    if (kernel->needs > level)
        return differ(reason, "device.isa = %s: needs %s", ker_level_name(level),
                      ker_level_name(kernel->needs));
    if (!(kernel->rows & 1u << phase))
        return differ(reason, "phase = %s: takes %s",
                      phase == KER_CONTEXT ? "context" : "generation",
                      phase == KER_CONTEXT ? "generations" : "contexts");
    if (p->kind == ATTND_LAYER_MLA)
        return differ(reason, "kind = %s: takes gqa, cross, encoder",
                      attnd_layer_kind_name(p->kind));
    return serves_types(kernel, p, reason) && serves_dim(kernel, "head_dim", p->head_dim, reason) &&
           serves_dim(kernel, "head_dim_v", p->head_dim_v, reason) &&
           serves_mask(kernel, p, reason) && serves_extras(kernel, p, reason) &&
           serves_append(p, reason) && serves_quant(p, reason) && serves_strides(kernel, p, reason);
}

/* ---- Choosing. --------------------------------------------------------------------------------
 */

size_t ker_judge(const ker_device *device, const ker_problem *problem, ker_phase phase,
                 ker_verdict *verdicts)
{
    ker_device_info info;
    ker_device_describe(device, &info);
    ker_work work = ker_phase_work(problem, phase);
    size_t n = 0;
    for (size_t i = 0; i < N_KERNELS; i++) {
        ker_verdict *verdict = &verdicts[i];
        ker_reason reason;
        *verdict = (ker_verdict){.kernel = &kernels[i]};
        verdict->serves =
            ker_kernel_serves(&kernels[i], ker_device_level(device), problem, phase, &reason);
        if (verdict->serves) {
            verdict->cost = kernels[i].family->cost(&kernels[i], problem, &work) / info.n_threads;
            n++;
        } else {
            snprintf(verdict->reason, sizeof verdict->reason, "%s: %s", reason.subject,
                     reason.wants);
        }
    }
    return n;
}

/* Where there is no room for every row. */
#define AND_MORE "; and others: explain tells"

/* "head_dim = 2048: a takes up to 1024; b takes up to 1024": what the last and most general row
 * does not serve comes first, rows that say no to something else say to what. Rows of another
 * backend are left out. */
static attnd_status refuse(const ker_device *device, const ker_problem *problem, ker_phase phase,
                           attnd_err *err)
{
    ker_level level = ker_device_level(device);
    ker_reason reasons[N_KERNELS];
    const char *subject = "";
    for (size_t i = 0; i < N_KERNELS; i++) {
        ker_kernel_serves(&kernels[i], level, problem, phase, &reasons[i]);
        if (is_of_backend(&kernels[i], level))
            subject = reasons[i].subject;
    }
    char text[ATTND_ERR_TEXT];
    size_t n = (size_t)snprintf(text, sizeof text, "%s:", subject), start = n;
    for (size_t i = 0; i < N_KERNELS; i++) {
        if (!is_of_backend(&kernels[i], level))
            continue;
        char row[KER_REASON_TEXT + 64];
        bool same = strcmp(reasons[i].subject, subject) == 0;
        int bytes = snprintf(row, sizeof row, "%s %s %s%s%s%s", n > start ? ";" : "",
                             kernels[i].name, reasons[i].wants, same ? "" : " (",
                             same ? "" : reasons[i].subject, same ? "" : ")");
        if (n + (size_t)bytes + sizeof AND_MORE > sizeof text) {
            snprintf(text + n, sizeof text - n, AND_MORE);
            break;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", row);
    }
    return attnd_fail(err, ATTND_UNSUPPORTED, "%s", text);
}

/* A batch-invariant problem may not choose by its rows: the first that serves, in the order of the
 * table. */
attnd_status ker_find(const ker_device *device, const ker_problem *problem, ker_phase phase,
                      const ker_kernel **out, attnd_err *err)
{
    ker_verdict verdicts[N_KERNELS];
    *out = NULL;
    if (ker_judge(device, problem, phase, verdicts) == 0)
        return refuse(device, problem, phase, err);
    double best = 0;
    for (size_t i = 0; i < N_KERNELS; i++)
        if (verdicts[i].serves &&
            (!*out || (!problem->batch_invariant && verdicts[i].cost < best))) {
            *out = verdicts[i].kernel;
            best = verdicts[i].cost;
        }
    return ATTND_OK;
}
