/* device.c: chooses a backend and hands on to it. */
#include <stdio.h>
#include <string.h>

#include "kernels/backend.h"

static const ker_backend *const backends[] = {
#ifdef ATTND_CUDA
    &ker_backend_cuda,
#endif
    &ker_backend_cpu,
};

enum { N_BACKENDS = sizeof backends / sizeof *backends };

/* The first backend of the list that opens; cpu is last and always there. */
static attnd_status open_best(ker_device **out, const ker_device_options *options, attnd_err *err)
{
    attnd_err why = {0}, last;
    for (int i = 0; i < N_BACKENDS; i++) {
        if (backends[i]->device_open(out, options, &last) == ATTND_OK) {
            snprintf((*out)->info.passed_over, sizeof(*out)->info.passed_over, "%s", why.text);
            return ATTND_OK;
        }
        why = last;
    }
    if (err)
        *err = last;
    return last.status;
}

attnd_status ker_device_open(ker_device **out, const ker_device_options *options, attnd_err *err)
{
    *out = NULL;
    if (!options->backend)
        return open_best(out, options, err);
    for (int i = 0; i < N_BACKENDS; i++)
        if (strcmp(options->backend, backends[i]->name) == 0)
            return backends[i]->device_open(out, options, err);
    if (strcmp(options->backend, "cuda") == 0)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "device.backend = cuda: this attnd was built without nvcc");
    return attnd_fail(err, ATTND_BAD_CONFIG, "device.backend = %s: cuda or cpu", options->backend);
}

void ker_device_close(ker_device *device)
{
    if (device)
        device->backend->device_close(device);
}

void ker_device_describe(const ker_device *device, ker_device_info *info)
{
    *info = device->info;
}

ker_level ker_device_level(const ker_device *device)
{
    return device->level;
}

attnd_status ker_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                             attnd_err *err)
{
    return device->backend->memory_make(device, name, bytes, out, err);
}

attnd_status ker_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                   ker_memory *out, attnd_err *err)
{
    return device->backend->memory_make_named(device, shm_name, bytes, out, err);
}

void ker_memory_free(ker_device *device, ker_memory *memory)
{
    device->backend->memory_free(device, memory);
}

attnd_status ker_memory_read(ker_device *device, void *to, const void *from, size_t bytes,
                             attnd_err *err)
{
    return device->backend->memory_read(device, to, from, bytes, err);
}

attnd_status ker_memory_write(ker_device *device, void *to, const void *from, size_t bytes,
                              attnd_err *err)
{
    return device->backend->memory_write(device, to, from, bytes, err);
}

attnd_status ker_stream_open(ker_device *device, ker_stream **out, attnd_err *err)
{
    return device->backend->stream_open(device, out, err);
}

void ker_stream_close(ker_stream *stream)
{
    if (stream)
        stream->device->backend->stream_close(stream);
}

void ker_launch(ker_device *device, ker_stream *stream, const ker_plan *plan, ker_ticket *ticket)
{
    device->backend->launch(device, stream, plan, ticket);
}

void ker_launch_merge(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                      ker_ticket *ticket)
{
    device->backend->launch_merge(device, stream, problem, ticket);
}
