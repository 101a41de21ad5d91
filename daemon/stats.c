/* stats.c: counters, gauges and log-linear histograms in static memory; nothing here allocates. */
#include "daemon/stats.h"

#include <assert.h>
#include <stdatomic.h>

/* Buckets of a histogram over nanoseconds: values below 64 have one each, above them every power of
 * two is cut into 32, so a bucket's middle is at most 1.6 % off. The last bucket takes all from
 * 2^46 ns (19.5 hours) on. */
enum {
    SUB_BITS = 5,
    SUB = 1 << SUB_BITS,
    TOP_BIT = 46,
    N_BUCKETS = SUB * (TOP_BIT - SUB_BITS + 1)
};

typedef struct histogram {
    _Atomic uint64_t bucket[N_BUCKETS];
    _Atomic uint64_t sum_ns, max_ns;
} histogram;

enum {
    N_OPS = MSG_OP_END - MSG_OP_ping + 1, /* 0 is MSG_OP_NONE */
    N_STATUSES = ATTND_UNAVAILABLE + 1,
#define KERNEL(...) +1
    N_KERNELS = 0
#include "kernels/kernels.def"
#undef KERNEL
};

typedef struct kernel_cell {
    _Atomic uint64_t launches;
    _Atomic double bytes, flops;
    histogram device;
} kernel_cell;

/* cell[i]: values above bound i-1, up to bound i; the last one takes the rest. */
typedef struct size_cells {
    _Atomic uint64_t cell[SRV_N_SIZES + 1];
    _Atomic uint64_t sum;
} size_cells;

static _Atomic uint64_t counters[SRV_N_COUNTERS];
static _Atomic int64_t gauges[SRV_N_GAUGES];
static _Atomic uint64_t op_statuses[N_OPS][N_STATUSES];
static histogram op_stages[N_OPS][SRV_N_STAGES];
static kernel_cell kernel_cells[N_KERNELS];
static size_cells sizes[SRV_N_SIZE_KINDS];

static void bump(_Atomic uint64_t *cell, uint64_t n)
{
    atomic_fetch_add_explicit(cell, n, memory_order_relaxed);
}

static uint64_t read_cell(_Atomic uint64_t *cell)
{
    return atomic_load_explicit(cell, memory_order_relaxed);
}

static void add_double(_Atomic double *cell, double n)
{
    double old = atomic_load_explicit(cell, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(cell, &old, old + n, memory_order_relaxed,
                                                  memory_order_relaxed))
        ;
}

static size_t bucket_of(uint64_t ns)
{
    if (ns < 2 * SUB)
        return (size_t)ns;
    unsigned top = 63 - (unsigned)__builtin_clzll(ns);
    if (top >= TOP_BIT)
        return N_BUCKETS - 1;
    unsigned shift = top - SUB_BITS;
    return (size_t)SUB * shift + (size_t)(ns >> shift);
}

/* The middle of a bucket, in ns. */
static double bucket_middle(size_t i)
{
    if (i < 2 * SUB)
        return (double)i;
    unsigned shift = (unsigned)(i / SUB) - 1;
    uint64_t low = (uint64_t)(SUB + i % SUB) << shift;
    return (double)low + (double)((1ull << shift) - 1) / 2;
}

static void histogram_add(histogram *h, uint64_t ns)
{
    bump(&h->bucket[bucket_of(ns)], 1);
    bump(&h->sum_ns, ns);
    uint64_t max = read_cell(&h->max_ns);
    while (ns > max && !atomic_compare_exchange_weak_explicit(
                           &h->max_ns, &max, ns, memory_order_relaxed, memory_order_relaxed))
        ;
}

static double histogram_quantile(histogram *h, uint64_t count, double q)
{
    uint64_t rank = (uint64_t)(q * (double)count), seen = 0;
    if ((double)rank < q * (double)count || rank == 0)
        rank++;
    double max = (double)read_cell(&h->max_ns);
    for (size_t i = 0; i < N_BUCKETS - 1; i++) {
        seen += read_cell(&h->bucket[i]);
        if (seen >= rank)
            return bucket_middle(i) < max ? bucket_middle(i) : max;
    }
    return max;
}

static srv_quantiles histogram_read(histogram *h)
{
    srv_quantiles out = {0};
    for (size_t i = 0; i < N_BUCKETS; i++)
        out.count += read_cell(&h->bucket[i]);
    if (out.count == 0)
        return out;
    out.sum_us = (double)read_cell(&h->sum_ns) / 1e3;
    out.max_us = (double)read_cell(&h->max_ns) / 1e3;
    out.p50_us = histogram_quantile(h, out.count, 0.50) / 1e3;
    out.p90_us = histogram_quantile(h, out.count, 0.90) / 1e3;
    out.p99_us = histogram_quantile(h, out.count, 0.99) / 1e3;
    return out;
}

static srv_curve histogram_curve(histogram *h, const uint64_t *bounds_ns, size_t n, uint64_t *upto)
{
    srv_curve out = {.sum = (double)read_cell(&h->sum_ns) / 1e9};
    size_t at = 0;
    for (size_t i = 0; i < N_BUCKETS; i++) {
        for (; at < n && bucket_middle(i) > (double)bounds_ns[at]; at++)
            upto[at] = out.count;
        out.count += read_cell(&h->bucket[i]);
    }
    for (; at < n; at++)
        upto[at] = out.count;
    return out;
}

static void histogram_reset(histogram *h)
{
    for (size_t i = 0; i < N_BUCKETS; i++)
        /* Most buckets were never touched: reading them keeps their pages unwritten. */
        if (read_cell(&h->bucket[i]))
            atomic_store_explicit(&h->bucket[i], 0, memory_order_relaxed);
    atomic_store_explicit(&h->sum_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&h->max_ns, 0, memory_order_relaxed);
}

/* Row of an op in the tables; a number that is none of the list counts as no op. */
static size_t op_row(msg_op op)
{
    return op >= MSG_OP_ping && op < MSG_OP_END ? (size_t)(op - MSG_OP_ping + 1) : 0;
}

const char *srv_stage_name(srv_stage stage)
{
    static const char *const names[SRV_N_STAGES] = {
        [SRV_STAGE_DECODE] = "decode",     [SRV_STAGE_QUEUE] = "queue",
        [SRV_STAGE_VALIDATE] = "validate", [SRV_STAGE_PLAN] = "plan",
        [SRV_STAGE_LAUNCH] = "launch",     [SRV_STAGE_REPLY] = "reply",
        [SRV_STAGE_TOTAL] = "total",
    };
    return names[stage];
}

void srv_stats_add(srv_counter counter, uint64_t n)
{
    bump(&counters[counter], n);
}

void srv_stats_gauge(srv_gauge gauge, int64_t delta)
{
    atomic_fetch_add_explicit(&gauges[gauge], delta, memory_order_relaxed);
}

int64_t srv_stats_gauge_value(srv_gauge gauge)
{
    return atomic_load_explicit(&gauges[gauge], memory_order_relaxed);
}

void srv_stats_request(msg_op op, attnd_status status, const uint64_t stage_ns[SRV_N_STAGES])
{
    size_t row = op_row(op);
    assert((size_t)status < N_STATUSES);
    bump(&op_statuses[row][status], 1);
    for (size_t i = 0; i < SRV_N_STAGES; i++)
        if (stage_ns[i])
            histogram_add(&op_stages[row][i], stage_ns[i]);
}

void srv_stats_launch(const ker_kernel *const kernels[2], uint64_t device_ns, ker_floor floor)
{
    for (size_t i = 0; i < N_KERNELS; i++) {
        const ker_kernel *kernel = ker_kernel_at(i);
        if (kernel != kernels[0] && kernel != kernels[1])
            continue;
        bump(&kernel_cells[i].launches, 1);
        add_double(&kernel_cells[i].bytes, floor.bytes);
        add_double(&kernel_cells[i].flops, floor.flops);
        histogram_add(&kernel_cells[i].device, device_ns);
    }
}

uint64_t srv_stats_size_bound(size_t i)
{
    return i ? (uint64_t)4 << i : 1;
}

static void size_add(size_cells *s, uint64_t n)
{
    size_t i = 0;
    while (i < SRV_N_SIZES && n > srv_stats_size_bound(i))
        i++;
    bump(&s->cell[i], 1);
    bump(&s->sum, n);
}

void srv_stats_batch(uint64_t n_rows, uint64_t n_tokens)
{
    size_add(&sizes[SRV_SIZE_ROWS], n_rows);
    size_add(&sizes[SRV_SIZE_TOKENS], n_tokens);
}

srv_curve srv_stats_size_curve(srv_size size, uint64_t upto[SRV_N_SIZES])
{
    size_cells *s = &sizes[size];
    srv_curve out = {.sum = (double)read_cell(&s->sum)};
    for (size_t i = 0; i < SRV_N_SIZES; i++)
        upto[i] = out.count += read_cell(&s->cell[i]);
    out.count += read_cell(&s->cell[SRV_N_SIZES]);
    return out;
}

srv_curve srv_stats_op_curve(msg_op op, srv_stage stage, const uint64_t *bounds_ns, size_t n,
                             uint64_t *upto)
{
    return histogram_curve(&op_stages[op_row(op)][stage], bounds_ns, n, upto);
}

srv_curve srv_stats_kernel_curve(size_t kernel, const uint64_t *bounds_ns, size_t n, uint64_t *upto)
{
    assert(kernel < N_KERNELS);
    return histogram_curve(&kernel_cells[kernel].device, bounds_ns, n, upto);
}

uint64_t srv_stats_counter(srv_counter counter)
{
    return read_cell(&counters[counter]);
}

srv_quantiles srv_stats_op(msg_op op, srv_stage stage)
{
    return histogram_read(&op_stages[op_row(op)][stage]);
}

uint64_t srv_stats_op_status(msg_op op, attnd_status status)
{
    return (size_t)status < N_STATUSES ? read_cell(&op_statuses[op_row(op)][status]) : 0;
}

srv_kernel_stats srv_stats_kernel(size_t kernel)
{
    assert(kernel < N_KERNELS);
    kernel_cell *cell = &kernel_cells[kernel];
    return (srv_kernel_stats){
        .launches = read_cell(&cell->launches),
        .bytes = atomic_load_explicit(&cell->bytes, memory_order_relaxed),
        .flops = atomic_load_explicit(&cell->flops, memory_order_relaxed),
        .device = histogram_read(&cell->device),
    };
}

void srv_stats_reset(void)
{
    for (size_t i = 0; i < SRV_N_COUNTERS; i++)
        atomic_store_explicit(&counters[i], 0, memory_order_relaxed);
    for (size_t op = 0; op < N_OPS; op++) {
        for (size_t i = 0; i < N_STATUSES; i++)
            atomic_store_explicit(&op_statuses[op][i], 0, memory_order_relaxed);
        for (size_t i = 0; i < SRV_N_STAGES; i++)
            histogram_reset(&op_stages[op][i]);
    }
    for (size_t kind = 0; kind < SRV_N_SIZE_KINDS; kind++) {
        for (size_t i = 0; i <= SRV_N_SIZES; i++)
            atomic_store_explicit(&sizes[kind].cell[i], 0, memory_order_relaxed);
        atomic_store_explicit(&sizes[kind].sum, 0, memory_order_relaxed);
    }
    for (size_t i = 0; i < N_KERNELS; i++) {
        atomic_store_explicit(&kernel_cells[i].launches, 0, memory_order_relaxed);
        atomic_store_explicit(&kernel_cells[i].bytes, 0, memory_order_relaxed);
        atomic_store_explicit(&kernel_cells[i].flops, 0, memory_order_relaxed);
        histogram_reset(&kernel_cells[i].device);
    }
}
