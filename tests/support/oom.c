/* oom.c: makes the n-th allocation of a test fail. */
#include "tests/support/oom.h"

#include <dlfcn.h>
#include <errno.h>

/* Owner: the arming thread. */
static _Thread_local size_t countdown; /* 0: not armed */
static _Thread_local bool came, is_paused;

void oom_arm(size_t n)
{
    countdown = n;
    came = false;
}

bool oom_disarm(void)
{
    countdown = 0;
    return came;
}

/* Of all threads; written by the one that watches. */
static _Atomic bool watches;
static _Atomic size_t n_watched;

void oom_watch(void)
{
    n_watched = 0;
    watches = true;
}

size_t oom_watched(void)
{
    watches = false;
    return n_watched;
}

void oom_pause(void)
{
    is_paused = true;
}

void oom_resume(void)
{
    is_paused = false;
}

OOM_PLAIN static bool fails(void)
{
    if (is_paused)
        return false;
    if (watches)
        n_watched++;
    if (countdown == 0 || --countdown > 0)
        return false;
    came = true;
    errno = ENOMEM;
    return true;
}

/* The allocator that the program would have had: libc's or the sanitizer's. */
OOM_PLAIN static void *next(const char *name, void **cache)
{
    if (!*cache)
        *cache = dlsym(RTLD_NEXT, name);
    return *cache;
}

void *oom_malloc(size_t bytes)
{
    static void *cache;
    return fails() ? NULL : ((void *(*)(size_t))next("malloc", &cache))(bytes);
}

void *oom_calloc(size_t n, size_t bytes)
{
    static void *cache;
    return fails() ? NULL : ((void *(*)(size_t, size_t))next("calloc", &cache))(n, bytes);
}

void *oom_realloc(void *old, size_t bytes)
{
    static void *cache;
    return fails() ? NULL : ((void *(*)(void *, size_t))next("realloc", &cache))(old, bytes);
}

void *oom_aligned_alloc(size_t align, size_t bytes)
{
    static void *cache;
    return fails() ? NULL
                   : ((void *(*)(size_t, size_t))next("aligned_alloc", &cache))(align, bytes);
}

void *oom_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    static void *cache;
    if (fails())
        return MAP_FAILED;
    return ((void *(*)(void *, size_t, int, int, int, off_t))next("mmap", &cache))(
        at, bytes, protection, flags, fd, offset);
}
