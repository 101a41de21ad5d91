/* backend.h: what a backend does for device.c, which hands on every call of attention.h. Private to
 * kernels/.
 */
#ifndef ATTND_KERNELS_BACKEND_H
#define ATTND_KERNELS_BACKEND_H

#include "kernels/registry.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each function is that of attention.h with its name. */
typedef struct ker_backend {
    const char *name;
    attnd_status (*device_open)(ker_device **out, const ker_device_options *options,
                                attnd_err *err);
    void (*device_close)(ker_device *device);
    attnd_status (*memory_make)(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                                attnd_err *err);
    attnd_status (*memory_make_named)(ker_device *device, const char *shm_name, size_t bytes,
                                      ker_memory *out, attnd_err *err);
    void (*memory_free)(ker_device *device, ker_memory *memory);
    attnd_status (*memory_read)(ker_device *device, void *to, const void *from, size_t bytes,
                                attnd_err *err);
    attnd_status (*memory_write)(ker_device *device, void *to, const void *from, size_t bytes,
                                 attnd_err *err);
    attnd_status (*stream_open)(ker_device *device, ker_stream **out, attnd_err *err);
    void (*stream_close)(ker_stream *stream);
    /* Whether a plan that was made can be launched: TOO_LARGE. NULL: it can. */
    attnd_status (*plan_check)(const ker_device *device, const ker_plan *plan, attnd_err *err);
    void (*launch)(ker_device *device, ker_stream *stream, const ker_plan *plan,
                   ker_ticket *ticket);
    void (*launch_merge)(ker_device *device, ker_stream *stream, const ker_merge_problem *problem,
                         ker_ticket *ticket);
} ker_backend;

extern const ker_backend ker_backend_cpu;
extern const ker_backend ker_backend_cuda; /* where ATTND_CUDA is defined */

/* The head of every backend's device and stream. */
struct ker_device {
    const ker_backend *backend;
    ker_device_info info;
    ker_level level;
};

struct ker_stream {
    ker_device *device;
};

#ifdef __cplusplus
}
#endif

#endif
