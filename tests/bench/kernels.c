/* kernels.c: every row of kernels.def on the shapes of its family: time, rate, fraction of the read
 * ceiling measured over the same blocks in the same run. On the CPU; gpu.c has the GPU's.
 *
 * Warm, median of many, inputs random, pools larger than the caches where the shape is.
 */
#include "kernels/attention.h"

#include <math.h>
#include <sched.h>
#include <time.h>

#include "tests/bench/ceiling.h"

enum { HQ = 32, HKV = 8, D = 128, BLOCK = 16 };

typedef struct shape {
    const char *family;
    ker_phase phase;
    uint32_t n_seqs;
    int32_t q_len, kv_len;
    attnd_dtype dtype;
} shape;

static const shape shapes[] = {
    {"decode", KER_GENERATION, 1, 1, 4096, ATTND_DTYPE_BF16},
    {"decode", KER_GENERATION, 16, 1, 2048, ATTND_DTYPE_BF16},
    {"decode", KER_GENERATION, 64, 1, 1024, ATTND_DTYPE_BF16},
    {"decode", KER_GENERATION, 16, 1, 2048, ATTND_DTYPE_F16},
    {"decode", KER_GENERATION, 16, 1, 2048, ATTND_DTYPE_F32},
    {"prefill", KER_CONTEXT, 1, 512, 512, ATTND_DTYPE_BF16},
    {"prefill", KER_CONTEXT, 1, 2048, 2048, ATTND_DTYPE_BF16},
    {"prefill", KER_CONTEXT, 1, 2048, 2048, ATTND_DTYPE_F32},
};

typedef struct done_flag {
    ker_ticket ticket; /* first: done gets its address */
    pthread_mutex_t lock;
    pthread_cond_t rang;
    int is_done;
} done_flag;

static void ring(ker_ticket *ticket)
{
    done_flag *flag = (done_flag *)ticket;
    pthread_mutex_lock(&flag->lock);
    flag->is_done = 1;
    pthread_cond_signal(&flag->rang);
    pthread_mutex_unlock(&flag->lock);
}

/* Seconds from the launch to its end as the caller sees it. */
static double time_launch(ker_device *device, ker_stream *stream, const ker_plan *plan)
{
    done_flag flag = {
        .ticket.done = ring, .lock = PTHREAD_MUTEX_INITIALIZER, .rang = PTHREAD_COND_INITIALIZER};
    double begin = bench_seconds();
    ker_launch(device, stream, plan, &flag.ticket);
    pthread_mutex_lock(&flag.lock);
    while (!flag.is_done)
        pthread_cond_wait(&flag.rang, &flag.lock);
    pthread_mutex_unlock(&flag.lock);
    return bench_seconds() - begin;
}

static void *take(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory) {
        fprintf(stderr, "kernels: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

/* Numbers of about unit size: exponents near 0, random mantissas and signs. */
static void fill(char *at, size_t bytes, attnd_dtype dtype)
{
    uint32_t state = 12345;
    for (size_t i = 0; i < bytes; i += 4) {
        state = state * 1664525 + 1013904223;
        uint32_t r = state >> 4, word;
        if (dtype == ATTND_DTYPE_F32)
            word = (r & 0x80FFFFFF) | 0x3E000000;
        else if (dtype == ATTND_DTYPE_BF16)
            word = (r & 0x80FF80FF) | 0x3E003E00;
        else
            word = (r & 0x87FF87FF) | 0x30003000;
        memcpy(at + i, &word, 4);
    }
}

/* A problem of one shape with memory of its own. */
typedef struct setup {
    ker_problem problem;
    ker_memory pool;
    int32_t *q_len, *kv_len, *tables;
    int64_t *q_first, *block_first;
    char *q, *out;
    const char **blocks;
    int64_t n_blocks;
    size_t block_bytes;
} setup;

static void set_up(setup *x, ker_device *device, const shape *s)
{
    size_t size = attnd_dtype_bits(s->dtype) / 8, row = D * size;
    int64_t tokens = (int64_t)s->n_seqs * s->q_len;
    int32_t a_table = (s->kv_len + BLOCK - 1) / BLOCK;
    x->n_blocks = (int64_t)a_table * s->n_seqs;
    x->block_bytes = 2 * HKV * BLOCK * row;
    attnd_err err;
    if (ker_memory_make(device, "bench", (size_t)x->n_blocks * x->block_bytes, &x->pool, &err)) {
        fprintf(stderr, "kernels: %s\n", err.text);
        exit(1);
    }
    fill(x->pool.base, x->pool.bytes, s->dtype);
    x->q_len = take(s->n_seqs * sizeof *x->q_len);
    x->kv_len = take(s->n_seqs * sizeof *x->kv_len);
    x->q_first = take(s->n_seqs * sizeof *x->q_first);
    x->block_first = take(s->n_seqs * sizeof *x->block_first);
    x->tables = take((size_t)x->n_blocks * sizeof *x->tables);
    x->blocks = take((size_t)x->n_blocks * sizeof *x->blocks);
    x->q = take((size_t)tokens * HQ * row);
    x->out = take((size_t)tokens * HQ * row);
    fill(x->q, (size_t)tokens * HQ * row, s->dtype);
    srand(2);
    for (int32_t i = 0; i < x->n_blocks; i++) {
        int32_t j = rand() % (i + 1);
        x->tables[i] = x->tables[j];
        x->tables[j] = i;
    }
    for (int64_t i = 0; i < x->n_blocks; i++)
        x->blocks[i] = (const char *)x->pool.base + x->tables[i] * (int64_t)x->block_bytes;
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        x->q_len[b] = s->q_len;
        x->kv_len[b] = s->kv_len;
        x->q_first[b] = (int64_t)b * s->q_len;
        x->block_first[b] = (int64_t)b * a_table;
    }
    ker_rows rows = {
        .token_stride = (int64_t)(HQ * row), .head_stride = (int64_t)row, .dtype = s->dtype};
    x->problem = (ker_problem){
        .n_heads = HQ,
        .n_kv_heads = HKV,
        .head_dim = D,
        .head_dim_v = D,
        .sm_scale = 1 / sqrtf(D),
        .dtype = s->dtype,
        .batch = {.n_seqs = s->n_seqs,
                  .n_contexts = s->phase == KER_CONTEXT ? s->n_seqs : 0,
                  .n_tokens = tokens,
                  .q_len = x->q_len,
                  .kv_len = x->kv_len,
                  .q_first = x->q_first,
                  .block_ids = x->tables,
                  .block_first = x->block_first},
        .kv = {.plane = {x->pool.base, (char *)x->pool.base + x->block_bytes / 2},
               .block_stride = (int64_t)x->block_bytes,
               .head_stride = {(int64_t)(BLOCK * row), (int64_t)(BLOCK * row)},
               .token_stride = {(int64_t)row, (int64_t)row},
               .n_blocks = x->n_blocks,
               .block_size = BLOCK,
               .dtype = s->dtype},
        .mask = {.kinds = KER_MASK_CAUSAL},
        .q = rows,
        .out = rows,
    };
    x->problem.q.base = x->q;
    x->problem.out.base = x->out;
}

static void tear_down(setup *x, ker_device *device)
{
    ker_memory_free(device, &x->pool);
    free(x->q_len);
    free(x->kv_len);
    free(x->q_first);
    free(x->block_first);
    free(x->tables);
    free(x->blocks);
    free(x->q);
    free(x->out);
}

/* The fastest read of the shape's blocks: a ceiling is what nothing passed. */
static double best_sweep(const setup *x, uint32_t n_threads, double budget)
{
    double best = 1e9, end = bench_seconds() + budget;
    for (int i = 0; i < 5 || bench_seconds() < end; i++) {
        double seconds = ceiling_sweep(x->blocks, x->n_blocks, x->block_bytes, n_threads);
        best = seconds < best ? seconds : best;
    }
    return best;
}

static void measure(ker_device *device, ker_stream *stream, const shape *s,
                    const ker_kernel *kernel)
{
    enum { MOST = 200 };
    const double budget = 1.5; /* seconds a line, the ceiling's share aside */
    static double times[MOST];
    setup x;
    ker_device_info info;
    attnd_err err;
    ker_plan *plan;
    ker_device_describe(device, &info);
    set_up(&x, device, s);
    size_t bytes = ker_plan_bytes(device, &x.problem);
    void *memory = take(bytes);
    double before = bench_seconds();
    if (ker_plan_make(device, &x.problem, 0, memory, bytes, &plan, &err)) {
        fprintf(stderr, "kernels: %s\n", err.text);
        exit(1);
    }
    double plan_us = (bench_seconds() - before) * 1e6;
    plan->part[s->phase].kernel = kernel;
    int n = 0;
    double sweep = best_sweep(&x, info.n_threads, budget / 5);
    for (int i = 0; i < 3; i++)
        time_launch(device, stream, plan);
    double end = bench_seconds() + budget;
    while (n < MOST && (n < 5 || bench_seconds() < end))
        times[n++] = time_launch(device, stream, plan);
    double again = best_sweep(&x, info.n_threads, budget / 5);
    sweep = again < sweep ? again : sweep;
    double seconds = bench_median(times, n);
    ker_floor floor = ker_problem_floor(&x.problem);
    double ceiling = (double)x.pool.bytes / sweep;
    printf("%-18s %3u x %5d q %4d %-5s %10.0f us %8.1f GB/s %8.1f GFLOP/s  %5.1f %% of read "
           "ceiling %5.1f GB/s  plan %5.1f us\n",
           ker_kernel_name(kernel), s->n_seqs, s->kv_len, s->q_len, attnd_dtype_name(s->dtype),
           seconds * 1e6, floor.bytes / seconds * 1e-9, floor.flops / seconds * 1e-9,
           100 * floor.bytes / seconds / ceiling, ceiling * 1e-9, plan_us);
    fflush(stdout);
    free(memory);
    tear_down(&x, device);
}

/* The row's family, as the table describes it. */
static const char *family_of(const ker_kernel *kernel)
{
    const char *keys[8], *values[8];
    size_t n = ker_kernel_describe(kernel, keys, values, 8);
    for (size_t i = 0; i < n; i++)
        if (strcmp(keys[i], "family") == 0)
            return values[i];
    return "";
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    ker_device_options options = {
        .backend = "cpu", .n_slots = 1, .workspace_bytes = 256u << 20, .isa = getenv("ISA")};
    ker_device *device;
    ker_stream *stream;
    attnd_err err;
    ker_device_info info;
    bool has_header = false;
    if (ker_device_open(&device, &options, &err) || ker_stream_open(device, &stream, &err)) {
        fprintf(stderr, "kernels: %s\n", err.text);
        return 1;
    }
    ker_device_describe(device, &info);
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        const ker_kernel *kernel = ker_kernel_at(i);
        if (!strstr(ker_kernel_name(kernel), filter))
            continue;
        if (!has_header) {
            char date[32];
            time_t now = time(NULL);
            strftime(date, sizeof date, "%F", localtime(&now));
            printf("%s, %s, %u threads, %s; Hq %d Hkv %d D %d, blocks of %d, shuffled\n", info.name,
                   info.isa, info.n_threads, date, HQ, HKV, D, BLOCK);
            has_header = true;
        }
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            if (strcmp(shapes[k].family, family_of(kernel)) == 0)
                measure(device, stream, &shapes[k], kernel);
    }
    ker_stream_close(stream);
    ker_device_close(device);
    return 0;
}
