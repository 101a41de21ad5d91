/* oom.c: makes the n-th allocation of a test fail. */
#include "tests/support/oom.h"

#include <dlfcn.h>
#include <errno.h>

/* Owner: the arming thread. */
static _Thread_local size_t countdown; /* 0: not armed */
static _Thread_local bool came;

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

OOM_PLAIN static bool fails(void)
{
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
