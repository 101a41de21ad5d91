/* cuda.c: memory of a GPU that the daemon made, mapped here through the driver. */
#include "proto/client/cuda.h"

#include <dlfcn.h>
#include <pthread.h>

/* What of cuda.h is used here, as the driver's binary interface has it. */
typedef int result; /* CUresult; 0: done */
typedef struct CUctx_st *context;
typedef uint64_t device_pointer; /* CUdeviceptr */

typedef struct location {
    int type; /* 1: a device */
    int id;
} location;

/* CUmemAllocationProp */
typedef struct memory_kind {
    int type;         /* 1: pinned */
    int handle_types; /* 1: POSIX file descriptor */
    location where;
    void *win32;
    unsigned char flags[8];
} memory_kind;

/* CUmemAccessDesc */
typedef struct access_right {
    location where;
    int flags; /* 3: read and write */
} access_right;

enum { FILE_DESCRIPTOR = 1, PINNED = 1, ON_DEVICE = 1, READ_WRITE = 3, RECOMMENDED = 1 };

/*  X(call, symbol, parameters) */
#define DRIVER_CALLS(X)                                                                            \
    X(cuInit, "cuInit", (unsigned flags))                                                          \
    X(cuDeviceGet, "cuDeviceGet", (int *device, int ordinal))                                      \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (context * out, int device))           \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (context))                                          \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (context * out))                                      \
    X(cuGetErrorName, "cuGetErrorName", (result, const char **out))                                \
    X(cuMemGetAllocationGranularity, "cuMemGetAllocationGranularity",                              \
      (size_t * out, const memory_kind *kind, int option))                                         \
    X(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle",                            \
      (uint64_t * handle, void *fd, int type))                                                     \
    X(cuMemAddressReserve, "cuMemAddressReserve",                                                  \
      (device_pointer * out, size_t bytes, size_t alignment, device_pointer hint, uint64_t flags)) \
    X(cuMemAddressFree, "cuMemAddressFree", (device_pointer, size_t bytes))                        \
    X(cuMemMap, "cuMemMap",                                                                        \
      (device_pointer, size_t bytes, size_t offset, uint64_t handle, uint64_t flags))              \
    X(cuMemUnmap, "cuMemUnmap", (device_pointer, size_t bytes))                                    \
    X(cuMemSetAccess, "cuMemSetAccess",                                                            \
      (device_pointer, size_t bytes, const access_right *rights, size_t n))                        \
    X(cuMemRelease, "cuMemRelease", (uint64_t handle))                                             \
    X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (device_pointer to, const void *from, size_t bytes))        \
    X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void *to, device_pointer from, size_t bytes))              \
    X(cuStreamSynchronize, "cuStreamSynchronize", (void *stream))

/* Owner: whoever holds the lock, until is_open; then nobody writes it again. */
static struct {
#define X(call, symbol, parameters) result(*call) parameters;
    DRIVER_CALLS(X)
#undef X
    context context; /* the primary one of GPU 0 */
    int is_open;
} driver;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the opening of driver */

static attnd_status fail(attnd_reason reason, const char *call, result why, attnd_err *err)
{
    const char *name = NULL;
    driver.cuGetErrorName(why, &name);
    return attnd_fail(err, reason, "kind = FD_CUDA_VMM: %s: %s (%d)", call, name ? name : "unknown",
                      why);
}

static attnd_status open_driver(attnd_err *err)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return attnd_fail(err, ATTND_UNSUPPORTED,
                          "kind = FD_CUDA_VMM: no NVIDIA driver in this process: libcuda.so.1");
#define X(call, symbol, parameters)                                                                \
    *(void **)&driver.call = dlsym(library, symbol);                                               \
    if (!driver.call)                                                                              \
        return attnd_fail(err, ATTND_UNSUPPORTED,                                                  \
                          "kind = FD_CUDA_VMM: this NVIDIA driver has no " symbol);
    DRIVER_CALLS(X)
#undef X
    int device;
    result why = driver.cuInit(0);
    if (!why)
        why = driver.cuDeviceGet(&device, 0);
    if (!why)
        why = driver.cuDevicePrimaryCtxRetain(&driver.context, device);
    if (why)
        return fail(ATTND_UNSUPPORTED, "no GPU", why, err);
    driver.is_open = 1;
    return ATTND_OK;
}

static attnd_status need_driver(attnd_err *err)
{
    pthread_mutex_lock(&lock);
    attnd_status status = driver.is_open ? ATTND_OK : open_driver(err);
    pthread_mutex_unlock(&lock);
    return status;
}

static result map_handle(cli_cuda *out, uint64_t handle)
{
    const access_right right = {.where = {.type = ON_DEVICE}, .flags = READ_WRITE};
    device_pointer at;
    result why = driver.cuMemAddressReserve(&at, out->mapped, 0, 0, 0);
    if (why)
        return why;
    why = driver.cuMemMap(at, out->mapped, 0, handle, 0);
    if (why) {
        driver.cuMemAddressFree(at, out->mapped);
        return why;
    }
    out->address = at;
    why = driver.cuMemSetAccess(at, out->mapped, &right, 1);
    if (why) {
        driver.cuMemUnmap(at, out->mapped);
        driver.cuMemAddressFree(at, out->mapped);
        out->address = 0;
    }
    return why;
}

attnd_status cli_cuda_map(cli_cuda *out, uint64_t bytes, int fd, attnd_err *err)
{
    const memory_kind kind = {
        .type = PINNED, .handle_types = FILE_DESCRIPTOR, .where = {.type = ON_DEVICE}};
    uint64_t handle;
    size_t unit;
    context popped;
    *out = (cli_cuda){0};
    TRY(need_driver(err));
    result why = driver.cuCtxPushCurrent(driver.context);
    if (why)
        return fail(ATTND_NO_ROOM, "cuCtxPushCurrent", why, err);
    why = driver.cuMemGetAllocationGranularity(&unit, &kind, RECOMMENDED);
    if (!why)
        why = driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, FILE_DESCRIPTOR);
    if (!why) {
        out->mapped = (bytes + unit - 1) / unit * unit;
        why = map_handle(out, handle);
        driver.cuMemRelease(handle); /* the mapping holds the memory from here on */
    }
    driver.cuCtxPopCurrent(&popped);
    return why ? fail(ATTND_NO_ROOM, "cannot be mapped", why, err) : ATTND_OK;
}

void cli_cuda_unmap(cli_cuda *mapped)
{
    if (!mapped->address)
        return;
    driver.cuMemUnmap(mapped->address, mapped->mapped);
    driver.cuMemAddressFree(mapped->address, mapped->mapped);
    *mapped = (cli_cuda){0};
}

attnd_status cli_cuda_read(void *to, uint64_t from, size_t bytes, attnd_err *err)
{
    context popped;
    result why = driver.cuCtxPushCurrent(driver.context);
    if (!why) {
        why = driver.cuMemcpyDtoH(to, from, bytes);
        driver.cuCtxPopCurrent(&popped);
    }
    return why ? fail(ATTND_KERNEL_FAILED, "cuMemcpyDtoH", why, err) : ATTND_OK;
}

attnd_status cli_cuda_write(uint64_t to, const void *from, size_t bytes, attnd_err *err)
{
    context popped;
    result why = driver.cuCtxPushCurrent(driver.context);
    if (!why) {
        why = driver.cuMemcpyHtoD(to, from, bytes);
        /* It returns once the bytes are staged: another process might not see them yet. */
        if (!why)
            why = driver.cuStreamSynchronize(NULL);
        driver.cuCtxPopCurrent(&popped);
    }
    return why ? fail(ATTND_KERNEL_FAILED, "cuMemcpyHtoD", why, err) : ATTND_OK;
}
