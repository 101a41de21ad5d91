/* device.c: threads that carry out launches.
 *
 *     ker_launch ──▶ stream, stream, …  each a queue, in order
 *                       │ the head of an idle stream waits for a slot, first come first served
 *                       ▼
 *                    slot, slot, …      a launch that runs: append ──▶ attend ──▶ merge ──▶ done
 *                       │ units of its stage
 *                       ▼
 *                    workers            take some units of one slot, then of the next
 *
 * A worker takes about GRAB_COST of work at a time and goes on to another running launch, so that
 * one of milliseconds is not held up by one of minutes. A stage begins when every unit of the one
 * before is done. Nothing here allocates or waits after ker_device_open() but the workers
 * themselves.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"

enum {
    GRAB_COST = 1 << 22, /* multiply-adds: a tenth of a millisecond or so */
    GRAB_UNITS = 64,
    GRAB_SHARE = 4, /* never more than a fourth of a thread's share of what is left */
};

typedef struct cpu_stream {
    ker_stream base;
    ker_ticket *head, *tail; /* launches that have not started; tail is valid with a head */
    bool is_running;         /* one has a slot or waits for it, until its done has returned */
    struct cpu_stream *next; /* of the streams that wait for a slot */
} cpu_stream;

typedef enum stage { STAGE_APPEND, STAGE_ATTEND, STAGE_MERGE, N_STAGES } stage;

/* A launch that runs. */
typedef struct slot {
    cpu_stream *stream; /* NULL: free */
    ker_ticket *ticket;
    const ker_plan *plan;           /* NULL: a merge of given parts */
    const ker_merge_problem *merge; /* NULL: a plan */
    char *workspace;                /* fixed at open */
    stage stage;
    int64_t n_units, n_taken, n_done; /* of the stage */
} slot;

typedef struct thread {
    ker_worker worker;
    struct cpu_device *device;
    pthread_t id;
} thread;

/* Owner: the lock, all but what is fixed at open. */
typedef struct cpu_device {
    ker_device base;
    thread *threads; /* [info.n_threads] */
    uint32_t n_started;
    slot *slots; /* [info.n_slots] */
    char *workspaces;
    _Atomic uint64_t mapped; /* of memory.c; not under the lock */

    pthread_mutex_t lock; /* guards what follows, slots and streams; no other lock under it */
    pthread_cond_t work;  /* a stage with units began, or the end */
    pthread_cond_t idle;  /* a stream came to rest */
    cpu_stream *waiting, *waiting_tail; /* streams whose head has no slot yet */
    uint32_t n_running;                 /* streams */
    uint32_t turn;                      /* the slot to look at first */
    bool ends;
} cpu_device;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Units of a stage. ------------------------------------------------------------------------
 */

static int64_t n_units(const slot *run, stage s)
{
    const ker_plan *plan = run->plan;
    if (run->merge)
        return s == STAGE_MERGE ? (run->merge->n_tokens + CPU_MERGE_TOKENS - 1) / CPU_MERGE_TOKENS
                                : 0;
    const ker_problem *p = &plan->problem;
    switch (s) {
    case STAGE_APPEND:
        if (!ker_makes_angles(p) && !p->append.k.base)
            return 0;
        return (p->batch.n_tokens + CPU_APPEND_TOKENS - 1) / CPU_APPEND_TOKENS;
    case STAGE_ATTEND:
        return plan->part[0].n_items + plan->part[1].n_items;
    case STAGE_MERGE:
        return plan->part[0].n_merges + plan->part[1].n_merges;
    case N_STAGES:
        break;
    }
    return 0;
}

static void attend_unit(ker_worker *worker, const ker_plan *plan, int64_t unit, char *workspace)
{
    const ker_part *part = &plan->part[0];
    if (unit >= part->n_items) {
        unit -= part->n_items;
        part++;
    }
    part->kernel->run.item(worker, plan, &part->items[unit], workspace);
}

static void merge_unit(ker_worker *worker, const ker_plan *plan, int64_t unit, char *workspace)
{
    const ker_part *part = &plan->part[0];
    if (unit >= part->n_merges) {
        unit -= part->n_merges;
        part++;
    }
    cpu_merge_run(plan, &part->merges[unit], workspace, worker->scratch.total);
}

static void append_unit(const ker_plan *plan, int64_t unit, char *workspace)
{
    int64_t first = unit * CPU_APPEND_TOKENS, left = plan->problem.batch.n_tokens - first;
    cpu_append_tokens(plan, first, first + (left < CPU_APPEND_TOKENS ? left : CPU_APPEND_TOKENS),
                      workspace);
}

static void merge_parts_unit(ker_worker *worker, const ker_merge_problem *merge, int64_t unit)
{
    int64_t first = unit * CPU_MERGE_TOKENS, left = merge->n_tokens - first;
    cpu_merge_parts(merge, first, first + (left < CPU_MERGE_TOKENS ? left : CPU_MERGE_TOKENS),
                    worker->scratch.total, worker->scratch.acc);
}

static void run_units(ker_worker *worker, const slot *run, stage s, int64_t first, int64_t end)
{
    for (int64_t unit = first; unit < end; unit++) {
        if (run->merge)
            merge_parts_unit(worker, run->merge, unit);
        else if (s == STAGE_APPEND)
            append_unit(run->plan, unit, run->workspace);
        else if (s == STAGE_ATTEND)
            attend_unit(worker, run->plan, unit, run->workspace);
        else
            merge_unit(worker, run->plan, unit, run->workspace);
    }
}

static double cost_of(const slot *run, stage s, int64_t unit)
{
    const ker_plan *plan = run->plan;
    if (run->merge)
        return (double)CPU_MERGE_TOKENS * run->merge->n_heads * run->merge->width *
               (run->merge->n_parts + 1.0);
    const ker_problem *p = &plan->problem;
    double widths = (double)p->head_dim + p->head_dim_v;
    if (s == STAGE_APPEND)
        return CPU_APPEND_TOKENS * widths * (p->n_kv_heads + 32.0);
    if (s == STAGE_MERGE)
        return GRAB_COST / 8.0;
    const ker_part *part = &plan->part[unit >= plan->part[0].n_items];
    const ker_item *item = &part->items[part == plan->part ? unit : unit - plan->part[0].n_items];
    double rows = (double)item->n_rows * (p->n_heads / p->n_kv_heads);
    return (rows + 8) * widths * ((double)item->kv_end - item->kv_first + 8);
}

/* How many units to take at once. */
static int64_t n_to_grab(const cpu_device *device, const slot *run)
{
    int64_t left = run->n_units - run->n_taken, n = 1;
    int64_t most = left / ((int64_t)device->base.info.n_threads * GRAB_SHARE);
    most = most < GRAB_UNITS ? most : GRAB_UNITS;
    double cost = cost_of(run, run->stage, run->n_taken);
    while (n < most && (cost += cost_of(run, run->stage, run->n_taken + n)) < GRAB_COST)
        n++;
    return n;
}

/* ---- Streams and slots, under the lock. -------------------------------------------------------
 */

/* Moves to the next stage that has units, from `from` on. A launch without any still ends on a
 * worker: its last stage is one unit of nothing. */
static void enter_stage(cpu_device *device, slot *run, stage from)
{
    run->stage = from;
    while (run->stage < N_STAGES && n_units(run, run->stage) == 0)
        run->stage++;
    run->n_units = run->stage < N_STAGES ? n_units(run, run->stage) : 1;
    run->n_taken = run->n_done = 0;
    if (run->n_units > 1)
        pthread_cond_broadcast(&device->work);
    else
        pthread_cond_signal(&device->work);
}

static void start(cpu_device *device, slot *run, cpu_stream *stream)
{
    run->stream = stream;
    run->ticket = stream->head;
    run->plan = stream->head->plan;
    run->merge = stream->head->merge;
    stream->head = stream->head->next;
    ker_ticket *ticket = run->ticket;
    ticket->started_ns = now_ns();
    ticket->err = (attnd_err){.status = ATTND_OK};
    bool is_late = ticket->deadline_ns && ticket->started_ns > ticket->deadline_ns;
    if (is_late)
        attnd_fail(&ticket->err, ATTND_TIMED_OUT, "launch: its time was up before it could start");
    else if (ticket->follows)
        ticket->err = ticket->follows->err;
    enter_stage(device, run, ticket->err.status == ATTND_OK ? STAGE_APPEND : N_STAGES);
}

static slot *free_slot(cpu_device *device)
{
    for (uint32_t i = 0; i < device->base.info.n_slots; i++)
        if (!device->slots[i].stream)
            return &device->slots[i];
    return NULL;
}

/* Gives a stream with a launch a slot, or a place in the queue for one. */
static void ready(cpu_device *device, cpu_stream *stream)
{
    slot *run = free_slot(device);
    stream->is_running = true;
    device->n_running++;
    if (run) {
        start(device, run, stream);
        return;
    }
    stream->next = NULL;
    if (device->waiting)
        device->waiting_tail->next = stream;
    else
        device->waiting = stream;
    device->waiting_tail = stream;
}

/* Tells the owner, without the lock, that a launch is done; then lets the next one in. The stream
 * counts as running until done has returned: its next launch must not be done before. */
static void finish(cpu_device *device, slot *run)
{
    cpu_stream *stream = run->stream;
    ker_ticket *ticket = run->ticket;
    pthread_mutex_unlock(&device->lock);
    ticket->ended_ns = now_ns();
    ticket->done(ticket);
    pthread_mutex_lock(&device->lock);
    run->stream = NULL;
    stream->is_running = false;
    device->n_running--;
    if (device->waiting) {
        cpu_stream *next = device->waiting;
        device->waiting = next->next;
        start(device, run, next);
    }
    if (stream->head)
        ready(device, stream);
    else
        pthread_cond_broadcast(&device->idle);
}

/* A running launch with units left, after the one that was served last. */
static slot *pick(cpu_device *device)
{
    for (uint32_t i = 0; i < device->base.info.n_slots; i++) {
        uint32_t at = (device->turn + i) % device->base.info.n_slots;
        slot *run = &device->slots[at];
        if (!run->stream || run->n_taken == run->n_units)
            continue;
        device->turn = at + 1;
        return run;
    }
    return NULL;
}

static void *work(void *argument)
{
    thread *self = argument;
    cpu_device *device = self->device;
    pthread_mutex_lock(&device->lock);
    for (;;) {
        slot *run = pick(device);
        if (!run) {
            if (device->ends)
                break;
            pthread_cond_wait(&device->work, &device->lock);
            continue;
        }
        if (run->stage == N_STAGES) {
            run->n_taken = 1;
            finish(device, run);
            continue;
        }
        int64_t first = run->n_taken, n = n_to_grab(device, run);
        run->n_taken += n;
        pthread_mutex_unlock(&device->lock);
        run_units(&self->worker, run, run->stage, first, first + n);
        pthread_mutex_lock(&device->lock);
        run->n_done += n;
        if (run->n_done < run->n_units)
            continue;
        enter_stage(device, run, run->stage + 1);
        if (run->stage == N_STAGES) {
            run->n_taken = 1;
            finish(device, run);
        }
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- Streams, for callers. --------------------------------------------------------------------
 */

static attnd_status stream_open(ker_device *device, ker_stream **out, attnd_err *err)
{
    cpu_stream *stream = calloc(1, sizeof *stream);
    *out = NULL;
    if (!stream)
        return attnd_fail(err, ATTND_NO_ROOM, "stream = %zu bytes: no memory", sizeof *stream);
    stream->base.device = device;
    *out = &stream->base;
    return ATTND_OK;
}

static void stream_close(ker_stream *closed)
{
    cpu_stream *stream = (cpu_stream *)closed;
    cpu_device *device = (cpu_device *)closed->device;
    pthread_mutex_lock(&device->lock);
    while (stream->is_running)
        pthread_cond_wait(&device->idle, &device->lock);
    pthread_mutex_unlock(&device->lock);
    free(stream);
}

static void enqueue(cpu_device *device, cpu_stream *stream, ker_ticket *ticket)
{
    ticket->next = NULL;
    ticket->launched_ns = now_ns();
    pthread_mutex_lock(&device->lock);
    if (stream->head)
        stream->tail->next = ticket;
    else
        stream->head = ticket;
    stream->tail = ticket;
    if (!stream->is_running)
        ready(device, stream);
    pthread_mutex_unlock(&device->lock);
}

static void launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket)
{
    ticket->plan = plan;
    ticket->merge = NULL;
    enqueue((cpu_device *)device, (cpu_stream *)stream, ticket);
}

static void launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                         ker_ticket *ticket)
{
    assert(problem->width <= KER_MAX_DIM);
    ticket->plan = NULL;
    ticket->merge = problem;
    enqueue((cpu_device *)device, (cpu_stream *)stream, ticket);
}

/* ---- Open and close. --------------------------------------------------------------------------
 */

static uint32_t n_cpus(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* The CPU's own name, or its architecture. */
static void name_cpu(char *to, size_t size)
{
    char line[256];
    struct utsname machine;
    uname(&machine);
    snprintf(to, size, "%.*s", (int)size - 1, machine.machine);
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " ");
        value[strcspn(value, "\n")] = 0;
        snprintf(to, size, "%.*s", (int)size - 1, value);
        break;
    }
    fclose(file);
}

/* Memory that costs address space until it is touched; NULL: none. */
static char *map(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static bool open_scratch(cpu_scratch *s)
{
    enum { ROWS = KER_TILE_ROWS * KER_MAX_DIM, KEYS = KER_TILE_KEYS * KER_MAX_DIM };
    s->bytes = (3 * ROWS + 3 * KEYS + KER_TILE_ROWS * KER_TILE_KEYS) * sizeof(float);
    s->memory = map(s->bytes);
    if (!s->memory)
        return false;
    s->q = (float *)s->memory;
    s->acc = s->q + ROWS;
    s->total = s->acc + ROWS;
    s->k = s->total + ROWS;
    s->kt = s->k + KEYS;
    s->v = s->kt + KEYS;
    s->score = s->v + KEYS;
    return true;
}

/* Signals go to threads of the caller, never to these. */
static attnd_status start_threads(cpu_device *device, attnd_err *err)
{
    sigset_t all, old;
    int failed = 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 0; i < device->base.info.n_threads && !failed; i++) {
        thread *t = &device->threads[i];
        t->device = device;
        t->worker.level = cpu_isa_bodies(device->base.level);
        failed = open_scratch(&t->worker.scratch) ? 0 : ENOMEM;
        if (!failed)
            failed = pthread_create(&t->id, NULL, work, t);
        if (failed)
            break;
        pthread_setname_np(t->id, "attnd-kernel");
        device->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed)
        return attnd_fail(err, ATTND_NO_ROOM, "device.threads = %u: %u could be started: %s",
                          device->base.info.n_threads, device->n_started, strerror(failed));
    return ATTND_OK;
}

static attnd_status open_slots(cpu_device *device, attnd_err *err)
{
    size_t bytes = device->base.info.workspace_bytes, all;
    uint32_t n = device->base.info.n_slots;
    if (n == 0)
        return attnd_fail(err, ATTND_BAD_CONFIG, "device.slots = 0: at least 1");
    if (!__builtin_mul_overflow(bytes, (size_t)n, &all) && all > 0)
        device->workspaces = map(all);
    device->slots = calloc(n, sizeof *device->slots);
    device->threads = calloc(device->base.info.n_threads, sizeof *device->threads);
    if ((bytes > 0 && !device->workspaces) || !device->slots || !device->threads)
        return attnd_fail(err, ATTND_NO_ROOM, "device.workspace = %zu: no memory for it %u times",
                          bytes, n);
    for (uint32_t i = 0; i < n; i++)
        device->slots[i].workspace = device->workspaces + i * bytes;
    return ATTND_OK;
}

static void device_close(ker_device *closed)
{
    cpu_device *device = (cpu_device *)closed;
    pthread_mutex_lock(&device->lock);
    while (device->n_running > 0)
        pthread_cond_wait(&device->idle, &device->lock);
    device->ends = true;
    pthread_cond_broadcast(&device->work);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < device->n_started; i++)
        pthread_join(device->threads[i].id, NULL);
    for (uint32_t i = 0; device->threads && i < device->base.info.n_threads; i++)
        if (device->threads[i].worker.scratch.memory)
            munmap(device->threads[i].worker.scratch.memory,
                   device->threads[i].worker.scratch.bytes);
    if (device->workspaces)
        munmap(device->workspaces, device->base.info.workspace_bytes * device->base.info.n_slots);
    pthread_cond_destroy(&device->idle);
    pthread_cond_destroy(&device->work);
    pthread_mutex_destroy(&device->lock);
    free(device->threads);
    free(device->slots);
    free(device);
}

static attnd_status device_open(ker_device **out, const ker_device_options *options, attnd_err *err)
{
    *out = NULL;
    cpu_device *device = calloc(1, sizeof *device);
    if (!device)
        return attnd_fail(err, ATTND_NO_ROOM, "device = %zu bytes: no memory", sizeof *device);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->work, NULL);
    pthread_cond_init(&device->idle, NULL);
    device->base.backend = &ker_backend_cpu;
    ker_device_info *info = &device->base.info;
    info->backend = "cpu";
    info->n_threads = options->n_threads ? options->n_threads : n_cpus();
    info->n_slots = options->n_slots;
    info->workspace_bytes = options->workspace_bytes / 64 * 64;
    name_cpu(info->name, sizeof info->name);
    attnd_status status = cpu_isa_find(options->isa, &device->base.level, err);
    if (status != ATTND_OK)
        goto fail;
    info->isa = ker_level_name(device->base.level);
    status = open_slots(device, err);
    if (status != ATTND_OK)
        goto fail;
    status = start_threads(device, err);
    if (status != ATTND_OK)
        goto fail;
    *out = &device->base;
    return ATTND_OK;
fail:
    device_close(&device->base);
    return status;
}

_Atomic uint64_t *cpu_device_mapped(ker_device *device)
{
    return &((cpu_device *)device)->mapped;
}

const ker_backend ker_backend_cpu = {
    .name = "cpu",
    .device_open = device_open,
    .device_close = device_close,
    .memory_make = cpu_memory_make,
    .memory_make_named = cpu_memory_make_named,
    .memory_free = cpu_memory_free,
    .memory_read = cpu_memory_copy,
    .memory_write = cpu_memory_copy,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .launch = launch,
    .launch_merge = launch_merge,
};
