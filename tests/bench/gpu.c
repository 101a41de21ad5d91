/* gpu.c: decode and prefill on a GPU over the shapes that other kernels are compared at: time,
 * rate, fraction of a ceiling measured in the same run.
 *
 *   gpu [PART OF A NAME] [--tsv FILE] [--commit C] [--matmul TFLOPS]
 *
 * One layer out of a pool of N_LAYERS, block by block with all layers of a block together, filled
 * with random numbers; the blocks of a shape are spread over the whole pool. Launches follow each
 * other without waiting and go from layer to layer, so that what is small does not stay in L2. A
 * time is that between the events of one launch: the copy of the plan's arrays, attention, merge.
 * Outputs are compared with those of the plain kernel. --matmul: what the matrix units reach, the
 * ceiling of prefill. The name of a kernel as the filter times that kernel, chosen or not.
 */
#include "kernels/attention.h"

#include <getopt.h>
#include <math.h>

#include "tests/bench/ceiling.h"
#include "tests/bench/ceiling_gpu.h"

enum {
    HQ = 32,
    HKV = 8,
    D = 128,
    ROW = D * 2, /* bytes, bf16 */
    N_LAYERS = 8,
    MAX_SEQS = 256,
    TOKEN_BYTES = N_LAYERS * 2 * HKV * ROW, /* of the pool */
    POOL_TOKENS = 512 * 1024 + 64 * 64,     /* the largest shape; blocks begun by ragged ones */
    MAX_ROWS = 16384,                       /* new tokens of a shape */
    N_WARM = 8,
    N_TIMED = 48,
    N_CHAIN = N_WARM + N_TIMED,
    RAGGED = 16384, /* lengths are 1 to this many */
};

typedef struct shape {
    const char *name;
    ker_phase phase;
    uint32_t n_seqs;
    int32_t q_len, kv_len; /* kv_len 0: ragged */
    uint32_t kinds;        /* KER_MASK_* */
} shape;

static const shape shapes[] = {
    {"1x8192 q1 bf16", KER_GENERATION, 1, 1, 8192, KER_MASK_CAUSAL},
    {"1x131072 q1 bf16", KER_GENERATION, 1, 1, 131072, KER_MASK_CAUSAL},
    {"16x8192 q1 bf16", KER_GENERATION, 16, 1, 8192, KER_MASK_CAUSAL},
    {"64x8192 q1 bf16", KER_GENERATION, 64, 1, 8192, KER_MASK_CAUSAL},
    {"128x4096 q1 bf16", KER_GENERATION, 128, 1, 4096, KER_MASK_CAUSAL},
    {"256x1024 q1 bf16", KER_GENERATION, 256, 1, 1024, KER_MASK_CAUSAL},
    {"64xragged q1 bf16", KER_GENERATION, 64, 1, 0, KER_MASK_CAUSAL},
    {"16x1024 causal bf16", KER_CONTEXT, 16, 1024, 1024, KER_MASK_CAUSAL},
    {"4x4096 causal bf16", KER_CONTEXT, 4, 4096, 4096, KER_MASK_CAUSAL},
    {"1x16384 causal bf16", KER_CONTEXT, 1, 16384, 16384, KER_MASK_CAUSAL},
    {"16x1024 full bf16", KER_CONTEXT, 16, 1024, 1024, 0},
    {"4x4096 full bf16", KER_CONTEXT, 4, 4096, 4096, 0},
    {"1x16384 full bf16", KER_CONTEXT, 1, 16384, 16384, 0},
};

static const int32_t block_sizes[] = {16, 64};

static struct {
    const char *filter, *commit;
    double matmul; /* FLOP/s; 0: not known */
    FILE *tsv;
} options = {.filter = "", .commit = "unknown"};

/* Owner: the main thread. */
static struct {
    ker_device *device;
    ker_stream *stream;
    ker_device_info info;
    ker_memory pool, q, out, plain_out;
    int32_t *blocks; /* of the pool, in random order */
    char date[32];
    int n_wrong;
} bench;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "gpu: %s: %s\n", what, why);
    exit(1);
}

static void *take(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory)
        die("memory", "none");
    return memory;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* ---- A shape as a problem. --------------------------------------------------------------------
 */

typedef struct setup {
    ker_problem problem; /* of layer 0 */
    gpu_blocks blocks;
    int32_t q_len[MAX_SEQS], kv_len[MAX_SEQS];
    int64_t q_first[MAX_SEQS], block_first[MAX_SEQS];
} setup;

static void set_lengths(setup *x, const shape *s, int32_t block_size)
{
    uint64_t state = 1;
    int64_t n_blocks = 0;
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        x->q_len[b] = s->q_len;
        x->kv_len[b] = s->kv_len ? s->kv_len : 1 + (int32_t)(next_random(&state) % RAGGED);
        x->q_first[b] = (int64_t)b * s->q_len;
        x->block_first[b] = n_blocks;
        n_blocks += (x->kv_len[b] + block_size - 1) / block_size;
    }
    if (n_blocks > POOL_TOKENS / block_size)
        die(s->name, "the pool is too small");
    x->blocks.n_ids = (int32_t)n_blocks;
}

static void shuffle_blocks(int32_t n)
{
    uint64_t state = 2;
    for (int32_t i = 0; i < n; i++) {
        int32_t j = (int32_t)(next_random(&state) % (uint32_t)(i + 1));
        bench.blocks[i] = bench.blocks[j];
        bench.blocks[j] = i;
    }
}

static void set_up(setup *x, const shape *s, int32_t block_size)
{
    int64_t run = (int64_t)block_size * ROW, plane = HKV * run;
    *x = (setup){0};
    set_lengths(x, s, block_size);
    shuffle_blocks(POOL_TOKENS / block_size);
    x->blocks.base = bench.pool.base;
    x->blocks.layer_stride = 2 * plane;
    x->blocks.block_stride = N_LAYERS * 2 * plane;
    x->blocks.plane_stride = plane;
    x->blocks.head_stride = run;
    x->blocks.ids = bench.blocks;
    x->blocks.n_heads = HKV;
    x->blocks.n_layers = N_LAYERS;
    x->blocks.run_bytes = (size_t)run;
    ker_rows rows = {.token_stride = HQ * ROW, .head_stride = ROW, .dtype = ATTND_DTYPE_BF16};
    x->problem = (ker_problem){
        .n_heads = HQ,
        .n_kv_heads = HKV,
        .head_dim = D,
        .head_dim_v = D,
        .sm_scale = 1 / sqrtf(D),
        .dtype = ATTND_DTYPE_BF16,
        .batch = {.n_seqs = s->n_seqs,
                  .n_contexts = s->phase == KER_CONTEXT ? s->n_seqs : 0,
                  .n_tokens = (int64_t)s->n_seqs * s->q_len,
                  .q_len = x->q_len,
                  .kv_len = x->kv_len,
                  .q_first = x->q_first,
                  .block_ids = bench.blocks,
                  .block_first = x->block_first},
        .kv = {.plane = {bench.pool.base, (char *)bench.pool.base + plane},
               .block_stride = x->blocks.block_stride,
               .head_stride = {run, run},
               .token_stride = {ROW, ROW},
               .n_blocks = POOL_TOKENS / block_size,
               .block_size = (uint32_t)block_size,
               .dtype = ATTND_DTYPE_BF16},
        .mask = {.kinds = s->kinds},
        .q = rows,
        .out = rows,
    };
    x->problem.q.base = bench.q.base;
    x->problem.out.base = bench.out.base;
}

static ker_plan *make_plan(const setup *x, int layer, char *out, void **memory, double *seconds)
{
    ker_problem p = x->problem;
    ker_plan *plan;
    attnd_err err;
    size_t bytes = ker_plan_bytes(bench.device, &p);
    p.out.base = out;
    for (int i = 0; i < 2; i++)
        p.kv.plane[i] += layer * x->blocks.layer_stride;
    *memory = take(bytes);
    memset(*memory, 0, bytes);
    double before = bench_seconds();
    if (ker_plan_make(bench.device, &p, 0, *memory, bytes, &plan, &err))
        die("plan", err.text);
    *seconds = bench_seconds() - before;
    return plan;
}

/* ---- Launches. --------------------------------------------------------------------------------
 */

/* Launches that follow each other on one stream. */
typedef struct chain {
    ker_ticket tickets[N_CHAIN];
    pthread_mutex_t lock; /* guards n_done */
    pthread_cond_t rang;
    int n_done;
} chain;

static chain running = {.lock = PTHREAD_MUTEX_INITIALIZER, .rang = PTHREAD_COND_INITIALIZER};

static void ring(ker_ticket *ticket)
{
    pthread_mutex_lock(&running.lock);
    running.n_done++;
    pthread_cond_signal(&running.rang);
    pthread_mutex_unlock(&running.lock);
}

/* n launches, one plan after the other in turn; returns when all have ended. */
static void run_chain(ker_plan *const *plans, int n_plans, int n)
{
    running.n_done = 0;
    for (int i = 0; i < n; i++) {
        running.tickets[i] =
            (ker_ticket){.done = ring, .follows = i > 0 ? &running.tickets[i - 1] : NULL};
        ker_launch(bench.device, bench.stream, plans[i % n_plans], &running.tickets[i]);
    }
    pthread_mutex_lock(&running.lock);
    while (running.n_done < n)
        pthread_cond_wait(&running.rang, &running.lock);
    pthread_mutex_unlock(&running.lock);
    for (int i = 0; i < n; i++)
        if (running.tickets[i].err.status)
            die("launch", running.tickets[i].err.text);
}

static double median_launch(ker_plan *const *plans)
{
    double times[N_TIMED];
    run_chain(plans, N_LAYERS, N_CHAIN);
    for (int i = 0; i < N_TIMED; i++) {
        const ker_ticket *ticket = &running.tickets[N_WARM + i];
        times[i] = (double)(ticket->ended_ns - ticket->started_ns) * 1e-9;
    }
    return bench_median(times, N_TIMED);
}

/* ---- Outputs, compared. -----------------------------------------------------------------------
 */

static const char *family_of(const ker_kernel *kernel)
{
    const char *keys[8], *values[8];
    size_t n = ker_kernel_describe(kernel, keys, values, 8);
    for (size_t i = 0; i < n; i++)
        if (strcmp(keys[i], "family") == 0)
            return values[i];
    return "";
}

/* The row that serves and is of the family, or has the name; NULL: there is none. */
static const ker_kernel *find_row(const ker_problem *problem, ker_phase phase, const char *family,
                                  const char *name)
{
    const ker_kernel *found = NULL;
    size_t n = ker_n_kernels();
    ker_verdict *verdicts = take(n * sizeof *verdicts);
    ker_judge(bench.device, problem, phase, verdicts);
    for (size_t i = 0; i < n && !found; i++)
        if (verdicts[i].serves &&
            ((family && strcmp(family_of(verdicts[i].kernel), family) == 0) ||
             (name && strcmp(ker_kernel_name(verdicts[i].kernel), name) == 0)))
            found = verdicts[i].kernel;
    free(verdicts);
    return found;
}

static float value_of(uint16_t bf16)
{
    uint32_t bits = (uint32_t)bf16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Root of the mean square of the difference, over that of b. */
static double difference(const uint16_t *a, const uint16_t *b, size_t n)
{
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)value_of(a[i]), y = (double)value_of(b[i]);
        off += (x - y) * (x - y);
        all += y * y;
    }
    return sqrt(off / all);
}

/* Layer 0 by the kernel and by the plain one. Both round their output to bf16, by 2^-9 of a value
 * at most, and the kernel p as well. */
static void compare_with_plain(const setup *x, const shape *s, ker_plan *plan)
{
    const double gate = 0x1p-7;
    const ker_kernel *plain = find_row(&x->problem, s->phase, "plain", NULL);
    size_t n = (size_t)x->problem.batch.n_tokens * HQ * D;
    double seconds;
    void *memory;
    if (!plain)
        die(s->name, "no plain kernel to compare with");
    ker_plan *other = make_plan(x, 0, bench.plain_out.base, &memory, &seconds);
    other->part[s->phase].kernel = plain;
    run_chain(&plan, 1, 1);
    run_chain(&other, 1, 1);
    uint16_t *a = take(n * 2), *b = take(n * 2);
    attnd_err err;
    if (ker_memory_read(bench.device, a, bench.out.base, n * 2, &err) ||
        ker_memory_read(bench.device, b, bench.plain_out.base, n * 2, &err))
        die("read", err.text);
    double off = difference(a, b, n);
    if (!(off < gate)) {
        printf("WRONG: %s, blocks of %u, %s: off by %.2e of the plain kernel's rms, gate %.2e\n",
               s->name, x->problem.kv.block_size, ker_kernel_name(plan->part[s->phase].kernel), off,
               gate);
        bench.n_wrong++;
    }
    free(a);
    free(b);
    free(memory);
}

/* ---- Rows of the table. -----------------------------------------------------------------------
 */

static void print_row(const char *what, const char *of, double seconds, double rate,
                      const char *unit, double ceiling, const char *ceiling_name)
{
    char part[96] = "-", ratio[16] = "-";
    if (ceiling > 0) {
        snprintf(part, sizeof part, "%s %.1f %s", ceiling_name, ceiling, unit);
        snprintf(ratio, sizeof ratio, "%.3f", rate / ceiling);
    }
    printf("%-24s %-24s %10.1f us %9.1f %-8s %6s of %s\n", what, of, seconds * 1e6, rate, unit,
           ratio, part);
    fflush(stdout);
    if (options.tsv)
        fprintf(options.tsv, "%s\t%s\t%.1f\t%.1f %s\t%s\t%s\t%s %s\t%s\t%s\n", what, of,
                seconds * 1e6, rate, unit, ratio, part, bench.info.name, bench.info.isa, bench.date,
                options.commit);
}

/* Bytes a second that the shape's own blocks can be read at. */
static double read_rate(const gpu_blocks *b)
{
    double seconds;
    const char *why = gpu_read_seconds(b, &seconds);
    if (why)
        die("read ceiling", why);
    return 2.0 * b->n_heads * (double)b->run_bytes * b->n_ids / seconds;
}

/* The planner's choice, or the row that the filter names. NULL: not asked for. */
static const ker_kernel *choose(const setup *x, const shape *s)
{
    const ker_kernel *kernel = find_row(&x->problem, s->phase, NULL, options.filter);
    attnd_err err;
    if (kernel)
        return kernel;
    if (ker_find(bench.device, &x->problem, s->phase, &kernel, &err))
        die(s->name, err.text);
    return strstr(ker_kernel_name(kernel), options.filter) || strstr(s->name, options.filter)
               ? kernel
               : NULL;
}

static void measure(const shape *s, int32_t block_size)
{
    static setup x;
    void *memory[N_LAYERS];
    ker_plan *plans[N_LAYERS];
    double plan_s[N_LAYERS];
    char name[64];
    set_up(&x, s, block_size);
    const ker_kernel *kernel = choose(&x, s);
    if (!kernel)
        return;
    for (int i = 0; i < N_LAYERS; i++) {
        plans[i] = make_plan(&x, i, bench.out.base, &memory[i], &plan_s[i]);
        plans[i]->part[s->phase].kernel = kernel;
    }
    compare_with_plain(&x, s, plans[0]);
    ker_floor floor = ker_problem_floor(&x.problem);
    bool is_decode = s->phase == KER_GENERATION;
    double before = is_decode ? read_rate(&x.blocks) : 0;
    double seconds = median_launch(plans);
    double after = is_decode ? read_rate(&x.blocks) : 0;
    snprintf(name, sizeof name, "%s p%d", s->name, block_size);
    if (is_decode)
        print_row(ker_kernel_name(kernel), name, seconds, floor.bytes / seconds * 1e-9, "GB/s",
                  fmax(before, after) * 1e-9, "read ceiling");
    else
        print_row(ker_kernel_name(kernel), name, seconds, floor.flops / seconds * 1e-12, "TFLOP/s",
                  options.matmul * 1e-12, "matrix product");
    printf("%-24s %-24s %10.1f us\n", "  plan", name, bench_median(plan_s, N_LAYERS) * 1e6);
    for (int i = 0; i < N_LAYERS; i++)
        free(memory[i]);
}

static void measure_copy(void)
{
    const size_t bytes = (size_t)2 << 30;
    double seconds;
    if (!strstr("ceilings", options.filter))
        return;
    const char *why = gpu_copy_seconds(bytes, &seconds);
    if (why)
        die("copy", why);
    print_row("copy", "2 GiB", seconds, 2 * (double)bytes / seconds * 1e-9, "GB/s", 0, "");
}

/* ---- Open and close. --------------------------------------------------------------------------
 */

static void make_memory(const char *name, size_t bytes, ker_memory *out)
{
    attnd_err err;
    if (ker_memory_make(bench.device, name, bytes, out, &err))
        die(name, err.text);
    const char *why = gpu_fill(out->base, bytes, bytes);
    if (why)
        die(name, why);
}

/* False: no GPU. */
static bool open_bench(void)
{
    const ker_device_options device = {
        .backend = "cuda", .n_slots = 16, .workspace_bytes = 128u << 20};
    attnd_err err;
    time_t now = time(NULL);
    if (ker_device_open(&bench.device, &device, &err)) {
        printf("gpu: skipped: %s\n", err.text);
        return false;
    }
    if (ker_stream_open(bench.device, &bench.stream, &err))
        die("stream", err.text);
    ker_device_describe(bench.device, &bench.info);
    strftime(bench.date, sizeof bench.date, "%F", localtime(&now));
    make_memory("pool", (size_t)POOL_TOKENS * TOKEN_BYTES, &bench.pool);
    make_memory("q", (size_t)MAX_ROWS * HQ * ROW, &bench.q);
    make_memory("out", (size_t)MAX_ROWS * HQ * ROW, &bench.out);
    make_memory("plain out", (size_t)MAX_ROWS * HQ * ROW, &bench.plain_out);
    bench.blocks = take(POOL_TOKENS / 16 * sizeof *bench.blocks);
    printf("%s, %s, %s; Hq %d Hkv %d D %d, one of %d layers, shuffled blocks, median of %d\n",
           bench.info.name, bench.info.isa, bench.date, HQ, HKV, D, N_LAYERS, N_TIMED);
    return true;
}

static void close_bench(void)
{
    ker_memory_free(bench.device, &bench.pool);
    ker_memory_free(bench.device, &bench.q);
    ker_memory_free(bench.device, &bench.out);
    ker_memory_free(bench.device, &bench.plain_out);
    ker_stream_close(bench.stream);
    ker_device_close(bench.device);
    free(bench.blocks);
}

static void read_options(int argc, char **argv)
{
    static const struct option known[] = {{"tsv", required_argument, NULL, 't'},
                                          {"commit", required_argument, NULL, 'c'},
                                          {"matmul", required_argument, NULL, 'm'},
                                          {0}};
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (o == 't' && !(options.tsv = fopen(optarg, "a")))
            die(optarg, "cannot be written");
        else if (o == 'c')
            options.commit = optarg;
        else if (o == 'm')
            options.matmul = atof(optarg) * 1e12;
        else if (o == '?')
            exit(2);
    }
    if (optind < argc)
        options.filter = argv[optind];
}

int main(int argc, char **argv)
{
    read_options(argc, argv);
    if (!open_bench())
        return 0;
    measure_copy();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t k = 0; k < sizeof block_sizes / sizeof *block_sizes; k++)
            measure(&shapes[i], block_sizes[k]);
    close_bench();
    if (options.tsv && fclose(options.tsv) != 0)
        die("tsv", "cannot be written");
    return bench.n_wrong > 0;
}
