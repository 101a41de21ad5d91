/* device.c: launches on a GPU, and the only file that speaks to the CUDA runtime about more than a
 * launch.
 *
 *     ker_launch ──▶ stream, stream, …  each a queue, in order, with a CUDA stream of its own
 *                       │ the head waits for a slot
 *                       ▼
 *                    slot, slot, …      copy the plan's arrays ▸ angles ▸ append ▸ attend ▸ merge
 *                       │               all enqueued at once; then the slot's thread waits
 *                       ▼
 *                    done               in the order of the stream
 *
 * A launch that follows another of its stream is enqueued behind it without waiting; any other
 * starts when its stream is at rest, so that a deadline means something. Nothing here allocates on
 * the device or synchronises it between ker_device_open() and ker_device_close() but memory.c.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"

enum {
    MAX_SLOTS = 16,        /* each takes a workspace of device memory and a thread */
    BLOCKS_PER_SM = 2,     /* of the attention kernels */
    MIN_STAGING = 4 << 20, /* bytes of tables, lengths and work items of one launch */
    STAGING_SHARE = 8,     /* of the workspace */
};

typedef struct cuda_stream {
    ker_stream base;
    cudaStream_t stream;
    ker_ticket *head, *tail; /* launches without a slot; tail is valid with a head */
    uint32_t n_running;      /* launches with a slot, until their done has returned */
    uint64_t n_started, n_ended;
    bool is_waiting; /* for a slot */
    struct cuda_stream *next;
} cuda_stream;

/* A launch that runs. */
typedef struct slot {
    struct cuda_device *device;
    cuda_stream *stream; /* NULL: free */
    ker_ticket *ticket;
    uint64_t turn;        /* of the stream: its done comes after those before it */
    bool is_enqueued;     /* ended will come */
    char *host, *staging; /* pinned, and of the device: staging_bytes */
    char *workspace;
    cudaEvent_t started, ended;
    pthread_t thread;
    pthread_cond_t given;
} slot;

/* Owner: the lock, all but what is fixed at open. */
typedef struct cuda_device {
    ker_device base;
    size_t staging_bytes;
    slot slots[MAX_SLOTS];
    uint32_t n_threads;
    pthread_mutex_t lock;                /* guards what follows, slots and streams */
    pthread_cond_t ended;                /* a done has returned */
    cuda_stream *waiting, *waiting_tail; /* streams whose head has no slot yet */
    uint32_t n_running;
    bool ends;
} cuda_device;

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- Enqueueing a launch. ---------------------------------------------------------------------
 */

static void row_range(const ker_part *part, uint32_t group, struct cuda_launch *out)
{
    out->min_rows = INT32_MAX;
    for (int64_t i = 0; i < part->n_items; i++) {
        int32_t rows = part->items[i].n_rows * (int32_t)group;
        out->max_rows = rows > out->max_rows ? rows : out->max_rows;
        out->min_rows = rows < out->min_rows ? rows : out->min_rows;
    }
}

static cudaError_t enqueue_parts(const ker_plan *plan, const cuda_packed *packed,
                                 cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 2 && error == cudaSuccess; i++) {
        const ker_part *part = &plan->part[i];
        if (part->n_items == 0)
            continue;
        struct cuda_launch launch = {
            .problem = &packed->problem,
            .items = packed->items[i],
            .n_items = part->n_items,
            .stream = stream,
        };
        row_range(part, packed->problem.group, &launch);
        error = (cudaError_t)part->kernel->run.part(&launch);
    }
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        if (plan->part[i].n_merges > 0)
            error = cuda_merge(&packed->problem, packed->merges[i], plan->part[i].n_merges, stream);
    return error;
}

static cudaError_t enqueue_plan(slot *run, cudaStream_t stream)
{
    const ker_plan *plan = run->ticket->plan;
    const ker_problem *p = &plan->problem;
    cuda_packed packed;
    cudaError_t error = cudaSuccess;
    size_t bytes = cuda_pack_bytes(plan);
    cuda_pack(plan, run->host, run->staging, &packed);
    packed.problem.partials = (float *)(run->workspace + ker_angles_bytes(p));
    if (p->rope.pairing != ATTND_ROPE_NONE)
        packed.problem.angles =
            p->rope.cos_sin ? packed.problem.p.rope.cos_sin : (const float *)run->workspace;
    if (bytes > 0)
        error = cudaMemcpyAsync(run->staging, run->host, bytes, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess && ker_makes_angles(p))
        error = cuda_make_angles(&packed.problem, (float *)run->workspace, stream);
    if (error == cudaSuccess && p->append.k.base)
        error = cuda_append(&packed.problem, stream);
    if (error == cudaSuccess)
        error = enqueue_parts(plan, &packed, stream);
    return error;
}

static cudaError_t enqueue_merge(slot *run, cudaStream_t stream)
{
    ker_merge_problem merge = *run->ticket->merge;
    size_t bytes = merge.n_parts * sizeof *merge.parts;
    memcpy(run->host, merge.parts, bytes);
    cudaError_t error =
        cudaMemcpyAsync(run->staging, run->host, bytes, cudaMemcpyHostToDevice, stream);
    merge.parts = (const ker_merge_part *)run->staging;
    return error == cudaSuccess ? cuda_merge_parts(&merge, stream) : error;
}

static void fail_cuda(attnd_err *err, const char *what, cudaError_t error)
{
    attnd_fail(err, ATTND_KERNEL_FAILED, "%s = %s: %s", what, cudaGetErrorName(error),
               cudaGetErrorString(error));
}

static void start(slot *run)
{
    ker_ticket *ticket = run->ticket;
    cudaStream_t stream = run->stream->stream;
    ticket->started_ns = now_ns();
    ticket->err = (attnd_err){.status = ATTND_OK};
    run->is_enqueued = false;
    if (ticket->deadline_ns && ticket->started_ns > ticket->deadline_ns) {
        attnd_fail(&ticket->err, ATTND_TIMED_OUT, "launch: its time was up before it could start");
        return;
    }
    if (ticket->follows && ticket->follows->err.status != ATTND_OK) {
        ticket->err = ticket->follows->err;
        return;
    }
    cudaError_t error = cudaEventRecord(run->started, stream);
    if (error == cudaSuccess)
        error = ticket->plan ? enqueue_plan(run, stream) : enqueue_merge(run, stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(run->ended, stream);
    run->is_enqueued = error == cudaSuccess;
    if (error != cudaSuccess)
        fail_cuda(&ticket->err, "launch", error);
}

/* ---- Streams and slots, under the lock. -------------------------------------------------------
 */

static slot *free_slot(cuda_device *device)
{
    for (uint32_t i = 0; i < device->base.info.n_slots; i++)
        if (!device->slots[i].stream)
            return &device->slots[i];
    return NULL;
}

static bool may_start(const cuda_stream *stream)
{
    return stream->head && (stream->n_running == 0 || stream->head->follows);
}

static void wait_for_slot(cuda_device *device, cuda_stream *stream)
{
    if (stream->is_waiting)
        return;
    stream->is_waiting = true;
    stream->next = NULL;
    if (device->waiting)
        device->waiting_tail->next = stream;
    else
        device->waiting = stream;
    device->waiting_tail = stream;
}

/* Gives slots to the stream's launches as far as both go. */
static void advance(cuda_device *device, cuda_stream *stream)
{
    while (may_start(stream)) {
        slot *run = free_slot(device);
        if (!run) {
            wait_for_slot(device, stream);
            return;
        }
        run->stream = stream;
        run->ticket = stream->head;
        run->turn = stream->n_started++;
        stream->head = stream->head->next;
        stream->n_running++;
        device->n_running++;
        start(run);
        pthread_cond_signal(&run->given);
    }
}

static void give_back(cuda_device *device, slot *run)
{
    cuda_stream *stream = run->stream;
    run->stream = NULL;
    stream->n_running--;
    stream->n_ended++;
    device->n_running--;
    if (device->waiting) {
        cuda_stream *next = device->waiting;
        device->waiting = next->next;
        next->is_waiting = false;
        advance(device, next);
    }
    advance(device, stream);
    pthread_cond_broadcast(&device->ended);
}

/* Waits for what was enqueued. */
static void wait_for_device(slot *run)
{
    ker_ticket *ticket = run->ticket;
    float ms = 0;
    if (!run->is_enqueued) {
        ticket->ended_ns = now_ns();
        return;
    }
    cudaError_t error = cudaEventSynchronize(run->ended);
    ticket->ended_ns = now_ns();
    if (error == cudaSuccess)
        error = cudaEventElapsedTime(&ms, run->started, run->ended);
    if (error != cudaSuccess)
        fail_cuda(&ticket->err, "device", error);
    ticket->started_ns = ticket->ended_ns - (uint64_t)((double)ms * 1e6);
}

static void *run_slot(void *argument)
{
    slot *run = argument;
    cuda_device *device = run->device;
    pthread_mutex_lock(&device->lock);
    for (;;) {
        while (!run->stream && !device->ends)
            pthread_cond_wait(&run->given, &device->lock);
        if (!run->stream)
            break;
        pthread_mutex_unlock(&device->lock);
        wait_for_device(run);
        pthread_mutex_lock(&device->lock);
        while (run->stream->n_ended != run->turn)
            pthread_cond_wait(&device->ended, &device->lock);
        pthread_mutex_unlock(&device->lock);
        run->ticket->done(run->ticket);
        pthread_mutex_lock(&device->lock);
        give_back(device, run);
    }
    pthread_mutex_unlock(&device->lock);
    return NULL;
}

/* ---- Streams, for callers. --------------------------------------------------------------------
 */

static attnd_status stream_open(ker_device *device, ker_stream **out, attnd_err *err)
{
    cuda_stream *stream = calloc(1, sizeof *stream);
    *out = NULL;
    if (!stream)
        return attnd_fail(err, ATTND_NO_ROOM, "stream = %zu bytes: no memory", sizeof *stream);
    cudaError_t error = cudaStreamCreateWithFlags(&stream->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        free(stream);
        return attnd_fail(err, ATTND_NO_ROOM, "stream = %s: %s", cudaGetErrorName(error),
                          cudaGetErrorString(error));
    }
    stream->base.device = device;
    *out = &stream->base;
    return ATTND_OK;
}

static void stream_close(ker_stream *closed)
{
    cuda_stream *stream = (cuda_stream *)closed;
    cuda_device *device = (cuda_device *)closed->device;
    pthread_mutex_lock(&device->lock);
    while (stream->n_running > 0 || stream->head)
        pthread_cond_wait(&device->ended, &device->lock);
    pthread_mutex_unlock(&device->lock);
    cudaStreamDestroy(stream->stream);
    free(stream);
}

static void enqueue(ker_device *base, ker_stream *to, ker_ticket *ticket)
{
    cuda_device *device = (cuda_device *)base;
    cuda_stream *stream = (cuda_stream *)to;
    ticket->next = NULL;
    ticket->launched_ns = now_ns();
    pthread_mutex_lock(&device->lock);
    if (stream->head)
        stream->tail->next = ticket;
    else
        stream->head = ticket;
    stream->tail = ticket;
    advance(device, stream);
    pthread_mutex_unlock(&device->lock);
}

static void launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket)
{
    ticket->plan = plan;
    ticket->merge = NULL;
    enqueue(device, stream, ticket);
}

static void launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                         ker_ticket *ticket)
{
    ticket->plan = NULL;
    ticket->merge = problem;
    enqueue(device, stream, ticket);
}

static attnd_status plan_check(const ker_device *base, const ker_plan *plan, attnd_err *err)
{
    const cuda_device *device = (const cuda_device *)base;
    size_t bytes = cuda_pack_bytes(plan);
    if (bytes <= device->staging_bytes)
        return ATTND_OK;
    return attnd_fail(err, ATTND_TOO_LARGE,
                      "batch.tables = %zu bytes with the work they make: a launch takes %zu", bytes,
                      device->staging_bytes);
}

/* ---- Open and close. --------------------------------------------------------------------------
 */

static attnd_status fail_open(cudaError_t error, const char *what, attnd_err *err)
{
    attnd_reason reason = error == cudaErrorMemoryAllocation ? ATTND_NO_ROOM : ATTND_UNSUPPORTED;
    return attnd_fail(err, reason, "device.backend = cuda: %s: %s (%s)", what,
                      cudaGetErrorString(error), cudaGetErrorName(error));
}

static attnd_status open_gpu(cuda_device *device, attnd_err *err)
{
    int n = 0, driver = 0;
    struct cudaDeviceProp prop;
    /* Parked streams need connections and loaded kernels; both are read when CUDA starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaErrorInsufficientDriver) {
        cudaDriverGetVersion(&driver);
        if (driver == 0)
            return attnd_fail(err, ATTND_UNSUPPORTED, "device.backend = cuda: no NVIDIA driver");
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "device.backend = cuda: the driver serves CUDA %d.%d, older than %d.%d",
                          driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                          CUDART_VERSION % 1000 / 10);
    }
    if (error != cudaSuccess)
        return fail_open(error, "no device", err);
    if (n == 0)
        return attnd_fail(err, ATTND_UNSUPPORTED, "device.backend = cuda: no GPU");
    error = cudaSetDevice(0);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&prop, 0);
    if (error != cudaSuccess)
        return fail_open(error, "GPU 0", err);
    if (prop.major < 8)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "device.backend = cuda: %s is sm_%d%d, sm_80 is the least", prop.name,
                          prop.major, prop.minor);
    ker_device_info *info = &device->base.info;
    bool is_sm90 = prop.major == 9 && prop.minor == 0;
    device->base.level = is_sm90 ? KER_LEVEL_SM90 : KER_LEVEL_SM80;
    info->backend = "cuda";
    info->isa = ker_level_name(device->base.level);
    info->n_threads = (uint32_t)prop.multiProcessorCount * BLOCKS_PER_SM;
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, prop.name);
    error = cuda_prepare_plain();
    if (error == cudaSuccess)
        error = cuda_prepare_decode();
    if (error == cudaSuccess)
        error = cuda_prepare_prefill();
    return error == cudaSuccess ? ATTND_OK : fail_open(error, "loading kernels", err);
}

static cudaError_t open_slot(cuda_device *device, slot *run)
{
    size_t workspace = device->base.info.workspace_bytes;
    run->device = device;
    pthread_cond_init(&run->given, NULL);
    cudaError_t error = cudaMallocHost((void **)&run->host, device->staging_bytes);
    if (error == cudaSuccess)
        error = cudaMalloc((void **)&run->staging, device->staging_bytes);
    if (error == cudaSuccess && workspace > 0)
        error = cudaMalloc((void **)&run->workspace, workspace);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&run->started, cudaEventDefault);
    if (error == cudaSuccess)
        error = cudaEventCreateWithFlags(&run->ended, cudaEventBlockingSync);
    return error;
}

/* Signals go to threads of the caller, never to these. */
static attnd_status open_slots(cuda_device *device, attnd_err *err)
{
    sigset_t all, old;
    attnd_status status = ATTND_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 0; i < device->base.info.n_slots && status == ATTND_OK; i++) {
        slot *run = &device->slots[i];
        cudaError_t error = open_slot(device, run);
        if (error != cudaSuccess)
            status = fail_open(error, "workspace", err);
        else if (pthread_create(&run->thread, NULL, run_slot, run) != 0)
            status = attnd_fail(err, ATTND_NO_ROOM, "device.slots = %u: %u threads could start",
                                device->base.info.n_slots, i);
        else
            device->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return status;
}

static void device_close(ker_device *closed)
{
    cuda_device *device = (cuda_device *)closed;
    pthread_mutex_lock(&device->lock);
    while (device->n_running > 0)
        pthread_cond_wait(&device->ended, &device->lock);
    device->ends = true;
    for (uint32_t i = 0; i < device->n_threads; i++)
        pthread_cond_signal(&device->slots[i].given);
    pthread_mutex_unlock(&device->lock);
    for (uint32_t i = 0; i < device->n_threads; i++)
        pthread_join(device->slots[i].thread, NULL);
    for (uint32_t i = 0; i < device->base.info.n_slots; i++) {
        slot *run = &device->slots[i];
        if (!run->device)
            continue;
        if (run->started)
            cudaEventDestroy(run->started);
        if (run->ended)
            cudaEventDestroy(run->ended);
        cudaFree(run->workspace);
        cudaFree(run->staging);
        cudaFreeHost(run->host);
        pthread_cond_destroy(&run->given);
    }
    pthread_cond_destroy(&device->ended);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static attnd_status device_open(ker_device **out, const ker_device_options *options, attnd_err *err)
{
    *out = NULL;
    if (options->n_slots == 0)
        return attnd_fail(err, ATTND_BAD_CONFIG, "device.slots = 0: at least 1");
    cuda_device *device = calloc(1, sizeof *device);
    if (!device)
        return attnd_fail(err, ATTND_NO_ROOM, "device = %zu bytes: no memory", sizeof *device);
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->ended, NULL);
    device->base.backend = &ker_backend_cuda;
    ker_device_info *info = &device->base.info;
    info->n_slots = options->n_slots < MAX_SLOTS ? options->n_slots : MAX_SLOTS;
    info->workspace_bytes = options->workspace_bytes / 64 * 64;
    device->staging_bytes = info->workspace_bytes / STAGING_SHARE;
    if (device->staging_bytes < MIN_STAGING)
        device->staging_bytes = MIN_STAGING;
    attnd_status status = open_gpu(device, err);
    if (status == ATTND_OK)
        status = open_slots(device, err);
    if (status != ATTND_OK) {
        device_close(&device->base);
        return status;
    }
    *out = &device->base;
    return ATTND_OK;
}

const ker_backend ker_backend_cuda = {
    .name = "cuda",
    .device_open = device_open,
    .device_close = device_close,
    .memory_make = cuda_memory_make,
    .memory_make_named = cuda_memory_make_named,
    .memory_free = cuda_memory_free,
    .memory_read = cuda_memory_read,
    .memory_write = cuda_memory_write,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .plan_check = plan_check,
    .launch = launch,
    .launch_merge = launch_merge,
};
