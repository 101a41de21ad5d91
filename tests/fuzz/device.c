/* device.c: a backend of the fuzz targets, in place of kernels/cpu/device.c and memory.c.
 *
 * It has no thread: launches wait until fuzz_device_run() carries them out on the caller's, with
 * the portable kernels. Its memory is the heap's, of just the bytes asked for, so that the address
 * sanitizer sees the first byte outside a pool or a buffer.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "tests/fuzz/world.h"

enum { MOST_BYTES = 1 << 20 };

typedef struct fuzz_device {
    ker_device base;
    ker_worker worker;
    char *workspace;
    ker_ticket *first, **last; /* launches not carried out, in order */
    int fd;                    /* of all memory; nothing is behind it */
} fuzz_device;

static float *floats(size_t n)
{
    return calloc(n, sizeof(float));
}

static void device_close(ker_device *base)
{
    fuzz_device *device = (fuzz_device *)base;
    cpu_scratch *s = &device->worker.scratch;
    float *all[] = {s->q, s->acc, s->total, s->k, s->kt, s->v, s->score};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    close(device->fd);
    free(device->workspace);
    free(device);
}

/* ---- Memory ---- */

static attnd_status memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                                attnd_err *err)
{
    void *base = NULL;
    *out = (ker_memory){.fd = -1};
    if (bytes > MOST_BYTES || posix_memalign(&base, 64, bytes))
        return attnd_fail(err, ATTND_NO_ROOM, "bytes = %zu: at most %d here", bytes, MOST_BYTES);
    memset(base, 0, bytes);
    *out = (ker_memory){.base = base, .bytes = bytes, .mapped = bytes};
    out->fd = ((fuzz_device *)device)->fd;
    return ATTND_OK;
}

static attnd_status memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                      ker_memory *out, attnd_err *err)
{
    return memory_make(device, shm_name, bytes, out, err);
}

static attnd_status memory_copy(ker_device *base, void *to, const void *from, size_t bytes,
                                attnd_err *err)
{
    memcpy(to, from, bytes);
    return ATTND_OK;
}

static void memory_free(ker_device *device, ker_memory *memory)
{
    free(memory->base);
    *memory = (ker_memory){.fd = -1};
}

/* ---- Launches ---- */

static attnd_status stream_open(ker_device *device, ker_stream **out, attnd_err *err)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return attnd_fail(err, ATTND_NO_ROOM, "stream: no memory");
    (*out)->device = device;
    return ATTND_OK;
}

static void stream_close(ker_stream *stream)
{
    free(stream);
}

static void enqueue(ker_device *base, ker_ticket *ticket)
{
    fuzz_device *device = (fuzz_device *)base;
    ticket->next = NULL;
    ticket->launched_ns = ticket->started_ns = ticket->ended_ns = 1;
    *device->last = ticket;
    device->last = &ticket->next;
}

static void launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket)
{
    ticket->plan = plan;
    ticket->merge = NULL;
    enqueue(device, ticket);
}

static void launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                         ker_ticket *ticket)
{
    ticket->plan = NULL;
    ticket->merge = problem;
    enqueue(device, ticket);
}

static void run_plan(fuzz_device *device, const ker_plan *plan)
{
    ker_worker *worker = &device->worker;
    FUZZ_CHECK(plan->workspace_bytes <= device->base.info.workspace_bytes);
    /* As long as the plan says it is: what a kernel uses beyond it is seen. */
    char *workspace = plan->workspace_bytes ? malloc(plan->workspace_bytes) : device->workspace;
    if (ker_makes_angles(&plan->problem) || plan->problem.append.k.base)
        cpu_append_tokens(plan, 0, plan->problem.batch.n_tokens, workspace);
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < plan->part[part].n_items; i++)
            plan->part[part].kernel->run.item(worker, plan, &plan->part[part].items[i], workspace);
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < plan->part[part].n_merges; i++)
            cpu_merge_run(plan, &plan->part[part].merges[i], workspace, worker->scratch.total);
    if (workspace != device->workspace)
        free(workspace);
}

bool fuzz_device_run(ker_device *base)
{
    fuzz_device *device = (fuzz_device *)base;
    ker_ticket *ticket = device->first;
    bool ran = ticket;
    device->first = NULL;
    device->last = &device->first;
    for (ker_ticket *next; ticket; ticket = next) {
        next = ticket->next;
        ticket->err = (attnd_err){.status = ATTND_OK};
        if (ticket->plan)
            run_plan(device, ticket->plan);
        else
            cpu_merge_parts(ticket->merge, 0, ticket->merge->n_tokens, device->worker.scratch.total,
                            device->worker.scratch.acc);
        ticket->done(ticket);
    }
    return ran;
}

/* ---- The backend ---- */

static const ker_backend backend = {.name = "fuzz",
                                    .device_close = device_close,
                                    .memory_make = memory_make,
                                    .memory_make_named = memory_make_named,
                                    .memory_free = memory_free,
                                    .memory_read = memory_copy,
                                    .memory_write = memory_copy,
                                    .stream_open = stream_open,
                                    .stream_close = stream_close,
                                    .launch = launch,
                                    .launch_merge = launch_merge};

ker_device *fuzz_device_open(size_t workspace_bytes)
{
    enum { ROWS = KER_TILE_ROWS * KER_MAX_DIM, KEYS = KER_TILE_KEYS * KER_MAX_DIM };
    fuzz_device *device = calloc(1, sizeof *device);
    FUZZ_CHECK(device);
    device->base = (ker_device){.backend = &backend,
                                .level = KER_LEVEL_PORTABLE,
                                .info = {.backend = "cpu",
                                         .name = "none",
                                         .isa = "portable",
                                         .n_threads = 1,
                                         .n_slots = 1,
                                         .workspace_bytes = workspace_bytes}};
    device->worker.level = cpu_isa_bodies(KER_LEVEL_PORTABLE);
    device->worker.scratch = (cpu_scratch){.q = floats(ROWS),
                                           .acc = floats(ROWS),
                                           .total = floats(ROWS),
                                           .k = floats(KEYS),
                                           .kt = floats(KEYS),
                                           .v = floats(KEYS),
                                           .score = floats(KER_TILE_ROWS * KER_TILE_KEYS)};
    device->workspace = aligned_alloc(64, workspace_bytes);
    device->fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    device->last = &device->first;
    return &device->base;
}
