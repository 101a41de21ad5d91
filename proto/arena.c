/* arena.c: memory of one request. */
#include "proto/arena.h"

#include <sys/mman.h>

enum { ALIGN = 64, KEEP = 1 << 20 };

attnd_status msg_arena_init(msg_arena *arena, size_t bytes, attnd_err *err)
{
    bytes = (bytes + 4095) & ~(size_t)4095;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *arena = (msg_arena){0};
    if (base == MAP_FAILED)
        return attnd_fail(err, ATTND_NO_ROOM, "arena = %zu bytes: the system has no address space",
                          bytes);
    arena->base = base;
    arena->bytes = arena->reserved = bytes;
    return ATTND_OK;
}

void msg_arena_fini(msg_arena *arena)
{
    if (arena->base)
        munmap(arena->base, arena->reserved);
    *arena = (msg_arena){0};
}

void *msg_arena_take(msg_arena *arena, size_t bytes)
{
    size_t start = (arena->used + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (start > arena->bytes || bytes > arena->bytes - start)
        return NULL;
    arena->used = start + bytes;
    return arena->base + start;
}

void msg_arena_bound(msg_arena *arena, size_t bytes)
{
    arena->bytes = bytes && bytes < arena->reserved ? bytes : arena->reserved;
}

void msg_arena_reset(msg_arena *arena)
{
    if (arena->used > KEEP)
        madvise(arena->base + KEEP, arena->reserved - KEEP, MADV_DONTNEED);
    arena->used = 0;
}
