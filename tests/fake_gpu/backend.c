/* backend.c: the backend "cuda" of a daemon without a GPU: the CPU's, but that its memory has
 * addresses nobody may touch. A daemon that takes one for host memory dies.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/backend.h"

enum { MAX_MEMORIES = 4096 };

/* Owner: the lock. */
static struct memory {
    char *device; /* NULL: free */
    ker_memory host;
} memories[MAX_MEMORIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards memories */

/* Where the CPU finds what lies at an address of the device; NULL for what is none. */
static void *host_of(const void *address)
{
    const char *at = address;
    void *host = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_MEMORIES && !host; i++) {
        const struct memory *m = &memories[i];
        if (m->device && at >= m->device && at < m->device + m->host.mapped)
            host = (char *)m->host.base + (at - m->device);
    }
    pthread_mutex_unlock(&lock);
    return host;
}

static attnd_status device_open(ker_device **out, const ker_device_options *options, attnd_err *err)
{
    ker_device_options own = *options;
    *out = NULL;
    if (getenv("FAKE_GPU_NONE"))
        return attnd_fail(err, ATTND_UNSUPPORTED, "device.backend = cuda: no NVIDIA driver");
    TRY(ker_backend_cpu.device_open(out, &own, err));
    (*out)->backend = &ker_backend_cuda;
    (*out)->info.backend = "cuda";
    snprintf((*out)->info.name, sizeof(*out)->info.name, "a GPU that is none");
    return ATTND_OK;
}

static attnd_status memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                                attnd_err *err)
{
    ker_memory host;
    *out = (ker_memory){.fd = -1};
    TRY(ker_backend_cpu.memory_make(device, name, bytes, &host, err));
    void *at =
        mmap(NULL, host.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_MEMORIES && !out->base && at != MAP_FAILED; i++)
        if (!memories[i].device) {
            memories[i] = (struct memory){at, host};
            *out = host;
            out->base = at;
        }
    pthread_mutex_unlock(&lock);
    if (out->base)
        return ATTND_OK;
    ker_backend_cpu.memory_free(device, &host);
    return attnd_fail(err, ATTND_NO_ROOM, "bytes = %zu: no address for it", bytes);
}

static attnd_status memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                      ker_memory *out, attnd_err *err)
{
    *out = (ker_memory){.fd = -1};
    return attnd_fail(err, ATTND_UNSUPPORTED,
                      "named = true: memory of a GPU has no name; fetch its descriptor");
}

static void memory_free(ker_device *device, ker_memory *memory)
{
    struct memory freed = {0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_MEMORIES && memory->base; i++)
        if (memories[i].device == memory->base) {
            freed = memories[i];
            memories[i].device = NULL;
        }
    pthread_mutex_unlock(&lock);
    if (freed.device) {
        munmap(freed.device, freed.host.mapped);
        ker_backend_cpu.memory_free(device, &freed.host);
    }
    *memory = (ker_memory){.fd = -1};
}

static attnd_status memory_read(ker_device *device, void *to, const void *from, size_t bytes,
                                attnd_err *err)
{
    return ker_backend_cpu.memory_read(device, to, host_of(from), bytes, err);
}

static attnd_status memory_write(ker_device *device, void *to, const void *from, size_t bytes,
                                 attnd_err *err)
{
    return ker_backend_cpu.memory_write(device, host_of(to), from, bytes, err);
}

/* ---- Launches: copies of what was given, with addresses that the CPU finds. -------------------
 */

typedef struct launched {
    ker_ticket ticket; /* the CPU's */
    ker_ticket *given;
    ker_plan plan;
    ker_merge_problem merge;
    ker_merge_part parts[];
} launched;

static void done(ker_ticket *ticket)
{
    launched *l = (launched *)ticket;
    ker_ticket *given = l->given;
    given->err = ticket->err;
    given->launched_ns = ticket->launched_ns;
    given->started_ns = ticket->started_ns;
    given->ended_ns = ticket->ended_ns;
    free(l);
    given->done(given);
}

static launched *take(ker_ticket *given, uint32_t n_parts)
{
    launched *l = calloc(1, sizeof *l + n_parts * sizeof *l->parts);
    if (!l)
        abort();
    l->given = given;
    l->ticket =
        (ker_ticket){.done = done, .follows = given->follows, .deadline_ns = given->deadline_ns};
    return l;
}

static void move(ker_rows *rows)
{
    rows->base = host_of(rows->base);
}

static void launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket)
{
    launched *l = take(ticket, 0);
    l->plan = *plan;
    ker_problem *p = &l->plan.problem;
    ker_rows *rows[] = {&p->q, &p->append.k, &p->append.v, &p->out, &p->lse, &p->stats};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        move(rows[i]);
    for (int i = 0; i < 2; i++)
        p->kv.plane[i] = host_of(p->kv.plane[i]);
    ker_backend_cpu.launch(device, stream, &l->plan, &l->ticket);
}

static void launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                         ker_ticket *ticket)
{
    launched *l = take(ticket, problem->n_parts);
    l->merge = *problem;
    l->merge.parts = l->parts;
    for (uint32_t i = 0; i < problem->n_parts; i++) {
        l->parts[i] = problem->parts[i];
        move(&l->parts[i].out);
        move(&l->parts[i].lse);
        move(&l->parts[i].stats);
    }
    move(&l->merge.out);
    move(&l->merge.lse);
    move(&l->merge.stats);
    ker_backend_cpu.launch_merge(device, stream, &l->merge, &l->ticket);
}

static void device_close(ker_device *device)
{
    ker_backend_cpu.device_close(device);
}

static attnd_status stream_open(ker_device *device, ker_stream **out, attnd_err *err)
{
    return ker_backend_cpu.stream_open(device, out, err);
}

static void stream_close(ker_stream *stream)
{
    ker_backend_cpu.stream_close(stream);
}

const ker_backend ker_backend_cuda = {
    .name = "cuda",
    .device_open = device_open,
    .device_close = device_close,
    .memory_make = memory_make,
    .memory_make_named = memory_make_named,
    .memory_free = memory_free,
    .memory_read = memory_read,
    .memory_write = memory_write,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .launch = launch,
    .launch_merge = launch_merge,
};
