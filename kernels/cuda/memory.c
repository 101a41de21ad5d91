/* memory.c: device memory that another process can map: VMM allocations with a POSIX descriptor.
 *
 * Driver calls are looked up, so that nothing links to libcuda.
 */
#include <cuda.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"

/*  X(name, version): PFN of the driver call as of that version. */
#define DRIVER_CALLS(X)                                                                            \
    X(cuMemAddressFree, 10020)                                                                     \
    X(cuMemAddressReserve, 10020)                                                                  \
    X(cuMemCreate, 10020)                                                                          \
    X(cuMemExportToShareableHandle, 10020)                                                         \
    X(cuMemGetAllocationGranularity, 10020)                                                        \
    X(cuMemMap, 10020)                                                                             \
    X(cuMemRelease, 10020)                                                                         \
    X(cuMemSetAccess, 10020)                                                                       \
    X(cuMemUnmap, 10020)

typedef struct driver {
#define X(name, version) __typeof__(&name) name;
    DRIVER_CALLS(X)
#undef X
} driver;

static cudaError_t find_driver(driver *out)
{
    enum cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaSetDevice(0); /* the driver's calls ask for a context of this thread */
#define X(name, version)                                                                           \
    if (error == cudaSuccess)                                                                      \
        error = cudaGetDriverEntryPointByVersion(#name, (void **)&out->name, version,              \
                                                 cudaEnableDefault, &found);                       \
    if (error == cudaSuccess && found != cudaDriverEntryPointSuccess)                              \
        error = cudaErrorSymbolNotFound;
    DRIVER_CALLS(X)
#undef X
    return error;
}

static CUmemAllocationProp kind_of_memory(void)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    };
}

/* Maps a new allocation of out->mapped bytes; what was done is undone on failure. */
static CUresult make(const driver *d, const CUmemAllocationProp *prop, ker_memory *out)
{
    const CUmemAccessDesc access = {prop->location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr at = 0;
    CUresult result = d->cuMemCreate(&handle, out->mapped, prop, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = d->cuMemAddressReserve(&at, out->mapped, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        goto release;
    result = d->cuMemMap(at, out->mapped, 0, handle, 0);
    if (result != CUDA_SUCCESS)
        goto free_address;
    result = d->cuMemSetAccess(at, out->mapped, &access, 1);
    if (result == CUDA_SUCCESS)
        result = d->cuMemExportToShareableHandle(&out->fd, handle,
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == CUDA_SUCCESS) {
        /* The mapping and the descriptor hold the memory from here on. */
        d->cuMemRelease(handle);
        out->base = (void *)at;
        return CUDA_SUCCESS;
    }
    d->cuMemUnmap(at, out->mapped);
free_address:
    d->cuMemAddressFree(at, out->mapped);
release:
    d->cuMemRelease(handle);
    return result;
}

static attnd_status no_room(size_t bytes, attnd_err *err)
{
    size_t room = 0, all;
    cudaMemGetInfo(&room, &all);
    return attnd_fail(err, ATTND_NO_ROOM, "bytes = %zu: %.1f GiB; %.1f GiB are free", bytes,
                      (double)bytes / 0x1p30, (double)room / 0x1p30);
}

attnd_status cuda_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                              attnd_err *err)
{
    driver d;
    size_t unit = 0;
    *out = (ker_memory){.fd = -1};
    cudaError_t error = find_driver(&d);
    if (error != cudaSuccess)
        return attnd_fail(err, ATTND_UNSUPPORTED, "driver = %s: VMM calls are needed",
                          cudaGetErrorName(error));
    CUmemAllocationProp prop = kind_of_memory();
    CUresult result =
        d.cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    if (result != CUDA_SUCCESS)
        return attnd_fail(err, ATTND_KERNEL_FAILED, "cuMemGetAllocationGranularity = %d: 0",
                          (int)result);
    if (bytes > SIZE_MAX / 2)
        return no_room(bytes, err);
    ker_memory memory = {.fd = -1, .bytes = bytes, .mapped = (bytes + unit - 1) / unit * unit};
    if (memory.mapped == 0)
        memory.mapped = unit;
    result = make(&d, &prop, &memory);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return no_room(bytes, err);
    if (result != CUDA_SUCCESS)
        return attnd_fail(err, ATTND_KERNEL_FAILED, "cuMemCreate = %d: 0", (int)result);
    error = cudaMemset(memory.base, 0, memory.mapped);
    /* Streams of launches do not wait for this one. */
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(0);
    if (error != cudaSuccess) {
        cuda_memory_free(device, &memory);
        return attnd_fail(err, ATTND_KERNEL_FAILED, "cudaMemset = %s: cudaSuccess",
                          cudaGetErrorName(error));
    }
    *out = memory;
    return ATTND_OK;
}

attnd_status cuda_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                    ker_memory *out, attnd_err *err)
{
    *out = (ker_memory){.fd = -1};
    return attnd_fail(err, ATTND_UNSUPPORTED,
                      "named = true: memory of a GPU has no name; fetch its descriptor");
}

void cuda_memory_free(ker_device *device, ker_memory *memory)
{
    driver d;
    if (memory->base && find_driver(&d) == cudaSuccess) {
        d.cuMemUnmap((CUdeviceptr)memory->base, memory->mapped);
        d.cuMemAddressFree((CUdeviceptr)memory->base, memory->mapped);
        close(memory->fd);
    }
    *memory = (ker_memory){.fd = -1};
}

static attnd_status copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                         attnd_err *err)
{
    cudaError_t error = cudaMemcpy(to, from, bytes, kind);
    /* A copy from pageable memory returns once it is staged, before it is on the device, and
     * streams of launches do not wait for it. */
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(0);
    if (error == cudaSuccess)
        return ATTND_OK;
    return attnd_fail(err, ATTND_KERNEL_FAILED, "copy = %s: %s", cudaGetErrorName(error),
                      cudaGetErrorString(error));
}

attnd_status cuda_memory_read(ker_device *device, void *to, const void *from, size_t bytes,
                              attnd_err *err)
{
    return copy(to, from, bytes, cudaMemcpyDeviceToHost, err);
}

attnd_status cuda_memory_write(ker_device *device, void *to, const void *from, size_t bytes,
                               attnd_err *err)
{
    return copy(to, from, bytes, cudaMemcpyHostToDevice, err);
}
