/* driver.c: a libcuda.so.1 without a GPU, of the calls that attnd's clients make: device memory is
 * a memfd, and its addresses are of a reservation that nobody may touch, so that whoever takes one
 * for host memory dies.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, NO_CONTEXT = 201 };
enum { UNIT = 1 << 16, MAX_MAPPINGS = 1024 };

typedef struct mapping {
    uint64_t device; /* address; 0: free */
    size_t bytes;
    char *host;  /* NULL: reserved */
    int is_open; /* access was set */
} mapping;

/* Owner: the lock. */
static mapping mappings[MAX_MAPPINGS];
static int is_initialized;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of this file */
static _Thread_local int n_contexts;
static struct CUctx_st {
    int unused;
} primary;

typedef struct location {
    int type, id;
} location;

typedef struct memory_kind {
    int type, handle_types;
    location where;
    void *win32;
    unsigned char flags[8];
} memory_kind;

typedef struct access_right {
    location where;
    int flags;
} access_right;

static mapping *find(uint64_t device, size_t bytes)
{
    for (int i = 0; i < MAX_MAPPINGS; i++) {
        mapping *m = &mappings[i];
        if (m->device && device >= m->device && bytes <= m->bytes &&
            device - m->device <= m->bytes - bytes)
            return m;
    }
    return NULL;
}

API int cuInit(unsigned flags)
{
    is_initialized = 1;
    return getenv("FAKE_GPU_NONE") ? NO_DEVICE : OK;
}

API int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return !is_initialized ? NOT_INITIALIZED : ordinal ? INVALID_VALUE : OK;
}

API int cuDevicePrimaryCtxRetain(struct CUctx_st **out, int device)
{
    *out = &primary;
    return OK;
}

API int cuCtxPushCurrent_v2(struct CUctx_st *context)
{
    if (context != &primary)
        return INVALID_VALUE;
    n_contexts++;
    return OK;
}

API int cuCtxPopCurrent_v2(struct CUctx_st **out)
{
    if (!n_contexts)
        return NO_CONTEXT;
    n_contexts--;
    *out = &primary;
    return OK;
}

API int cuGetErrorName(int error, const char **out)
{
    *out = error == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
    return OK;
}

API int cuMemGetAllocationGranularity(size_t *out, const memory_kind *kind, int option)
{
    *out = UNIT;
    return kind->type == 1 && kind->handle_types == 1 && kind->where.type == 1 ? OK : INVALID_VALUE;
}

API int cuMemImportFromShareableHandle(uint64_t *handle, void *fd, int type)
{
    int own = dup((int)(intptr_t)fd);
    *handle = (uint64_t)own;
    return type == 1 && own >= 0 ? OK : INVALID_VALUE;
}

API int cuMemRelease(uint64_t handle)
{
    return close((int)handle) ? INVALID_VALUE : OK;
}

API int cuMemAddressReserve(uint64_t *out, size_t bytes, size_t alignment, uint64_t hint,
                            uint64_t flags)
{
    int code = INVALID_VALUE;
    void *at = bytes % UNIT ? MAP_FAILED
                            : mmap(NULL, bytes, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_MAPPINGS && code && at != MAP_FAILED; i++)
        if (!mappings[i].device) {
            mappings[i] = (mapping){.device = (uint64_t)(uintptr_t)at, .bytes = bytes};
            *out = mappings[i].device;
            code = OK;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

API int cuMemAddressFree(uint64_t device, size_t bytes)
{
    pthread_mutex_lock(&lock);
    mapping *m = find(device, bytes);
    int is_free = m && m->device == device && m->bytes == bytes && !m->host;
    if (is_free) {
        munmap((void *)(uintptr_t)device, bytes);
        m->device = 0;
    }
    pthread_mutex_unlock(&lock);
    return is_free ? OK : INVALID_VALUE;
}

API int cuMemMap(uint64_t device, size_t bytes, size_t offset, uint64_t handle, uint64_t flags)
{
    void *host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, (int)handle, (off_t)offset);
    pthread_mutex_lock(&lock);
    mapping *m = find(device, bytes);
    int is_mapped = m && !m->host && host != MAP_FAILED;
    if (is_mapped)
        m->host = host;
    pthread_mutex_unlock(&lock);
    return is_mapped ? OK : INVALID_VALUE;
}

API int cuMemSetAccess(uint64_t device, size_t bytes, const access_right *rights, size_t n)
{
    pthread_mutex_lock(&lock);
    mapping *m = find(device, bytes);
    int is_right = m && m->host && n == 1 && rights->where.type == 1 && rights->flags == 3;
    if (is_right)
        m->is_open = 1;
    pthread_mutex_unlock(&lock);
    return is_right ? OK : INVALID_VALUE;
}

API int cuMemUnmap(uint64_t device, size_t bytes)
{
    pthread_mutex_lock(&lock);
    mapping *m = find(device, bytes);
    int is_mapped = m && m->host;
    if (is_mapped) {
        munmap(m->host, m->bytes);
        m->host = NULL;
        m->is_open = 0;
    }
    pthread_mutex_unlock(&lock);
    return is_mapped ? OK : INVALID_VALUE;
}

/* Where the CPU finds bytes of device memory; NULL: nowhere. */
static char *host_of(uint64_t device, size_t bytes)
{
    pthread_mutex_lock(&lock);
    mapping *m = find(device, bytes);
    char *at = m && m->is_open ? m->host + (device - m->device) : NULL;
    pthread_mutex_unlock(&lock);
    return n_contexts ? at : NULL;
}

/* A copy to the device has arrived when a later call of the stream needs it, not when it returns:
 * at most this many bytes are under way. */
enum { STAGED = 64 << 10 };
static struct {
    char bytes[STAGED];
    char *to;
    size_t n;
} staged; /* under the lock */

/* Takes the lock. */
static void arrive(void)
{
    pthread_mutex_lock(&lock);
    if (staged.n)
        memcpy(staged.to, staged.bytes, staged.n);
    staged.n = 0;
    pthread_mutex_unlock(&lock);
}

API int cuStreamSynchronize(void *stream)
{
    arrive();
    return OK;
}

API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    char *at = host_of(to, bytes);
    if (!at)
        return INVALID_VALUE;
    arrive();
    if (bytes > STAGED) {
        memcpy(at, from, bytes);
        return OK;
    }
    pthread_mutex_lock(&lock);
    memcpy(staged.bytes, from, bytes);
    staged.to = at;
    staged.n = bytes;
    pthread_mutex_unlock(&lock);
    return OK;
}

API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    char *at = host_of(from, bytes);
    arrive();
    if (at)
        memcpy(to, at, bytes);
    return at ? OK : INVALID_VALUE;
}
