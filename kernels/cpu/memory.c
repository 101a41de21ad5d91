/* memory.c: memory that can be handed to another process: by a descriptor, a sealed memfd, or by
 * name, a POSIX shared memory object.
 *
 * Pages appear when they are touched, so what fits is judged beforehand: by what the system, or the
 * control group, says is free, less what was promised earlier and is not touched yet.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

/* Huge pages pay from here on. */
#define HUGE_BYTES (2u << 20)

/* The number behind name in a file of "name number" lines, or the only number of a file (name "").
 * False: no such file, no such number ("max"). */
static bool read_number(const char *path, const char *name, uint64_t *out)
{
    char line[256], format[64];
    snprintf(format, sizeof format, "%s%%lu", name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    unsigned long number;
    bool found = false;
    while (!found && fgets(line, sizeof line, file))
        found = sscanf(line, format, &number) == 1;
    fclose(file);
    if (found)
        *out = number;
    return found;
}

static uint64_t group_free(const char *limit_path, const char *used_path)
{
    uint64_t limit, used;
    if (!read_number(limit_path, "", &limit) || !read_number(used_path, "", &used))
        return UINT64_MAX;
    return used < limit ? limit - used : 0;
}

/* Of the bytes this device has mapped, those that have no page yet. */
static uint64_t untouched_bytes(uint64_t mapped)
{
    uint64_t kib = 0;
    read_number("/proc/self/status", "RssShmem: ", &kib);
    return mapped > kib * 1024 ? mapped - kib * 1024 : 0;
}

/* Bytes that may still be promised. */
static uint64_t free_bytes(uint64_t mapped)
{
    uint64_t kib, least = UINT64_MAX, untouched = untouched_bytes(mapped);
    if (read_number("/proc/meminfo", "MemAvailable: ", &kib))
        least = kib * 1024;
    uint64_t v2 = group_free("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current");
    uint64_t v1 = group_free("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                             "/sys/fs/cgroup/memory/memory.usage_in_bytes");
    least = v2 < least ? v2 : least;
    least = v1 < least ? v1 : least;
    return untouched < least ? least - untouched : 0;
}

static attnd_status fail_system(size_t bytes, const char *call, attnd_err *err)
{
    return attnd_fail(err, ATTND_NO_ROOM, "bytes = %zu: %s: %s", bytes, call, strerror(errno));
}

/* Sizes for bytes that fit. */
static attnd_status measure(ker_device *device, size_t bytes, ker_memory *out, attnd_err *err)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint64_t room = free_bytes(*cpu_device_mapped(device));
    *out = (ker_memory){.fd = -1};
    if (bytes > room || bytes > SIZE_MAX / 2)
        return attnd_fail(err, ATTND_NO_ROOM, "bytes = %zu: %.1f GiB; %.1f GiB are free", bytes,
                          (double)bytes / 0x1p30, (double)room / 0x1p30);
    out->bytes = bytes;
    out->mapped = (bytes / page + (bytes % page != 0)) * page;
    if (out->mapped == 0)
        out->mapped = page;
    return ATTND_OK;
}

/* Maps what memory->fd names; takes the descriptor, for refusal too. */
static attnd_status map(ker_device *device, ker_memory *memory, attnd_err *err)
{
    memory->base = mmap(NULL, memory->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (memory->base == MAP_FAILED) {
        attnd_status status = fail_system(memory->bytes, "mmap", err);
        close(memory->fd);
        *memory = (ker_memory){.fd = -1};
        return status;
    }
    /* A wish: not every system grants it. */
    if (memory->bytes >= HUGE_BYTES)
        madvise(memory->base, memory->mapped, MADV_HUGEPAGE);
    *cpu_device_mapped(device) += memory->mapped;
    return ATTND_OK;
}

attnd_status cpu_memory_make(ker_device *device, const char *name, size_t bytes, ker_memory *out,
                             attnd_err *err)
{
    ker_memory memory;
    *out = (ker_memory){.fd = -1};
    TRY(measure(device, bytes, &memory, err));
    memory.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory.fd < 0)
        return fail_system(bytes, "memfd_create", err);
    attnd_status status = ATTND_OK;
    if (ftruncate(memory.fd, (off_t)memory.mapped) != 0)
        status = fail_system(bytes, "ftruncate", err);
    else if (fcntl(memory.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        status = fail_system(bytes, "seal", err);
    if (status != ATTND_OK) {
        close(memory.fd);
        return status;
    }
    TRY(map(device, &memory, err));
    *out = memory;
    return ATTND_OK;
}

/* A new object that we hold locked. Whoever cleans up after dead owners takes the lock first, and
 * may do so between our two calls: then the object has lost its name, and another is made. */
static int open_locked(const char *shm_name)
{
    for (;;) {
        struct stat at;
        int fd = shm_open(shm_name, O_RDWR | O_CREAT | O_EXCL, 0600);
        if (fd < 0)
            return -1;
        if (flock(fd, LOCK_EX) || fstat(fd, &at)) {
            close(fd);
            return -1;
        }
        if (at.st_nlink)
            return fd;
        close(fd);
    }
}

attnd_status cpu_memory_make_named(ker_device *device, const char *shm_name, size_t bytes,
                                   ker_memory *out, attnd_err *err)
{
    ker_memory memory;
    *out = (ker_memory){.fd = -1};
    TRY(measure(device, bytes, &memory, err));
    memory.fd = open_locked(shm_name);
    if (memory.fd < 0)
        return fail_system(bytes, "shm_open", err);
    /* The file system may be smaller than memory is: a page it has not got kills who touches it. */
    struct statvfs system;
    uint64_t room = UINT64_MAX;
    if (!fstatvfs(memory.fd, &system) && system.f_blocks)
        room = (uint64_t)system.f_bavail * system.f_frsize;
    errno = memory.mapped > room ? ENOSPC : posix_fallocate(memory.fd, 0, (off_t)memory.mapped);
    attnd_status status = ATTND_OK;
    if (errno) {
        status = fail_system(bytes, "room for shared memory", err);
        close(memory.fd);
    } else {
        status = map(device, &memory, err);
    }
    if (status != ATTND_OK) {
        shm_unlink(shm_name);
        return status;
    }
    *out = memory;
    return ATTND_OK;
}

void cpu_memory_free(ker_device *device, ker_memory *memory)
{
    if (memory->base) {
        munmap(memory->base, memory->mapped);
        close(memory->fd);
        *cpu_device_mapped(device) -= memory->mapped;
    }
    *memory = (ker_memory){.fd = -1};
}

attnd_status cpu_memory_copy(ker_device *device, void *to, const void *from, size_t bytes,
                             attnd_err *err)
{
    memcpy(to, from, bytes);
    return ATTND_OK;
}
