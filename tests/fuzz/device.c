/* device.c: a device of the fuzz targets, in place of kernels/cpu/device.c and memory.c.
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

#include "kernels/cpu/cpu.h"
#include "tests/fuzz/world.h"

enum { MOST_BYTES = 1 << 20 };

struct ker_stream {
    ker_device *device;
};

struct ker_device {
    ker_device_info info;
    ker_worker worker;
    char *workspace;
    ker_ticket *first, **last; /* launches not carried out, in order */
    int fd;                    /* of all memory; nothing is behind it */
    _Atomic uint64_t mapped;
};

static float *floats(size_t n)
{
    return calloc(n, sizeof(float));
}

attnd_status ker_device_open(ker_device **out, const ker_device_options *options, attnd_err *err)
{
    enum { ROWS = KER_TILE_ROWS * KER_MAX_DIM, KEYS = KER_TILE_KEYS * KER_MAX_DIM };
    ker_device *device = calloc(1, sizeof *device);
    device->info = (ker_device_info){.backend = "cpu",
                                     .name = "none",
                                     .isa = "portable",
                                     .n_threads = 1,
                                     .n_slots = 1,
                                     .workspace_bytes = options->workspace_bytes};
    device->worker.level = cpu_isa_bodies(KER_LEVEL_PORTABLE);
    cpu_scratch *s = &device->worker.scratch;
    *s = (cpu_scratch){.q = floats(ROWS),
                       .acc = floats(ROWS),
                       .total = floats(ROWS),
                       .k = floats(KEYS),
                       .kt = floats(KEYS),
                       .v = floats(KEYS),
                       .score = floats(KER_TILE_ROWS * KER_TILE_KEYS)};
    device->workspace = aligned_alloc(64, options->workspace_bytes);
    device->fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    device->last = &device->first;
    *out = device;
    return ATTND_OK;
}

void ker_device_close(ker_device *device)
{
    cpu_scratch *s = &device->worker.scratch;
    float *all[] = {s->q, s->acc, s->total, s->k, s->kt, s->v, s->score};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    close(device->fd);
    free(device->workspace);
    free(device);
}

void ker_device_describe(const ker_device *device, ker_device_info *info)
{
    *info = device->info;
}

ker_level ker_device_level(const ker_device *device)
{
    return KER_LEVEL_PORTABLE;
}

_Atomic uint64_t *cpu_device_mapped(ker_device *device)
{
    return &device->mapped;
}

/* ---- Memory ---- */

attnd_status ker_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                             attnd_err *err)
{
    void *base = NULL;
    *out = (ker_memory){.fd = -1};
    if (bytes > MOST_BYTES || posix_memalign(&base, 64, bytes))
        return attnd_fail(err, ATTND_NO_ROOM, "bytes = %zu: at most %d here", bytes, MOST_BYTES);
    memset(base, 0, bytes);
    *out = (ker_memory){.base = base, .bytes = bytes, .mapped = bytes};
    out->fd = device->fd;
    return ATTND_OK;
}

attnd_status ker_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                   ker_memory *out, attnd_err *err)
{
    return ker_memory_make(device, shm_name, bytes, out, err);
}

void ker_memory_free(ker_device *device, ker_memory *memory)
{
    free(memory->base);
    *memory = (ker_memory){.fd = -1};
}

/* ---- Launches ---- */

attnd_status ker_stream_open(ker_device *device, ker_stream **out, attnd_err *err)
{
    *out = calloc(1, sizeof **out);
    (*out)->device = device;
    return ATTND_OK;
}

void ker_stream_close(ker_stream *stream)
{
    free(stream);
}

static void enqueue(ker_device *device, ker_ticket *ticket)
{
    ticket->next = NULL;
    ticket->launched_ns = ticket->started_ns = ticket->ended_ns = 1;
    *device->last = ticket;
    device->last = &ticket->next;
}

void ker_launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket)
{
    ticket->plan = plan;
    ticket->merge = NULL;
    enqueue(device, ticket);
}

void ker_launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                      ker_ticket *ticket)
{
    ticket->plan = NULL;
    ticket->merge = problem;
    enqueue(device, ticket);
}

static void run_plan(ker_device *device, const ker_plan *plan)
{
    ker_worker *worker = &device->worker;
    FUZZ_CHECK(plan->workspace_bytes <= device->info.workspace_bytes);
    /* As long as the plan says it is: what a kernel uses beyond it is seen. */
    char *workspace = plan->workspace_bytes ? malloc(plan->workspace_bytes) : device->workspace;
    if (ker_makes_angles(&plan->problem) || plan->problem.append.k.base)
        cpu_append_tokens(plan, 0, plan->problem.batch.n_tokens, workspace);
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < plan->part[part].n_items; i++)
            plan->part[part].kernel->run(worker, plan, &plan->part[part].items[i], workspace);
    for (int part = 0; part < 2; part++)
        for (int64_t i = 0; i < plan->part[part].n_merges; i++)
            cpu_merge_run(plan, &plan->part[part].merges[i], workspace, worker->scratch.total);
    if (workspace != device->workspace)
        free(workspace);
}

bool fuzz_device_run(ker_device *device)
{
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
