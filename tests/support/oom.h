/* oom.h: makes the n-th allocation of a test fail.
 *
 * A test program that wants it writes OOM_INTERPOSE once, outside any function: malloc, calloc and
 * realloc of that program, its libraries' included, then count while armed; with
 * OOM_INTERPOSE_MORE so do aligned_alloc and mmap.
 * Works under the address and thread sanitizers too, whose own malloc is the next one. oom_arm()
 * concerns its own thread alone.
 */
#ifndef ATTND_TESTS_SUPPORT_OOM_H
#define ATTND_TESTS_SUPPORT_OOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The thread sanitizer allocates before it can be told that a function is entered. */
#define OOM_PLAIN __attribute__((no_sanitize_thread))

/* Allocation n from now on (1: the next) fails with ENOMEM, once. */
void oom_arm(size_t n);

/* Ends it. Says whether the allocation came and failed; false: fewer were made. */
bool oom_disarm(void);

/* Counts the allocations of every thread from now on. */
void oom_watch(void);

/* How many there were; ends it. */
size_t oom_watched(void);

OOM_PLAIN void *oom_malloc(size_t bytes);
OOM_PLAIN void *oom_calloc(size_t n, size_t bytes);
OOM_PLAIN void *oom_realloc(void *old, size_t bytes);
OOM_PLAIN void *oom_aligned_alloc(size_t align, size_t bytes);
OOM_PLAIN void *oom_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

/* Between the two, this thread's allocations neither fail nor count: the test's own. */
void oom_pause(void);
void oom_resume(void);

#define OOM_INTERPOSE                                                                              \
    OOM_PLAIN void *malloc(size_t size)                                                            \
    {                                                                                              \
        return oom_malloc(size);                                                                   \
    }                                                                                              \
    OOM_PLAIN void *calloc(size_t n, size_t size)                                                  \
    {                                                                                              \
        return oom_calloc(n, size);                                                                \
    }                                                                                              \
    OOM_PLAIN void *realloc(void *old, size_t size)                                                \
    {                                                                                              \
        return oom_realloc(old, size);                                                             \
    }

#define OOM_INTERPOSE_MORE                                                                         \
    OOM_PLAIN void *aligned_alloc(size_t align, size_t bytes)                                      \
    {                                                                                              \
        return oom_aligned_alloc(align, bytes);                                                    \
    }                                                                                              \
    OOM_PLAIN void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)  \
    {                                                                                              \
        return oom_mmap(at, bytes, protection, flags, fd, offset);                                 \
    }

/* Runs `call` with allocation 1, 2, … failing until none fails any more; before each run `n` is the
 * allocation that will fail. `check` runs after every run, with `n` and `failed` to look at. */
#define OOM_EACH(n, failed, call, check)                                                           \
    for (size_t n = 1;; n++) {                                                                     \
        oom_arm(n);                                                                                \
        call;                                                                                      \
        bool failed = oom_disarm();                                                                \
        check;                                                                                     \
        if (!failed)                                                                               \
            break;                                                                                 \
    }

#endif
