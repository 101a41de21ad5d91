/* ceiling.h: what the machine can do at most, measured: how fast all threads together read memory.
 */
#ifndef ATTND_TESTS_BENCH_CEILING_H
#define ATTND_TESTS_BENCH_CEILING_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CEILING_MAX_THREADS 256

static inline double bench_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double bench_median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, bench_by_value);
    return values[n / 2];
}

typedef struct ceiling_part {
    const char *const *blocks; /* to read, in this order */
    int64_t n_blocks;
    size_t block_bytes; /* a multiple of 64 */
    uint64_t sum;
} ceiling_part;

typedef uint64_t ceiling_words __attribute__((vector_size(64)));

static inline void *ceiling_read(void *argument)
{
    ceiling_part *part = argument;
    ceiling_words sum[4] = {0};
    for (int64_t i = 0; i < part->n_blocks; i++)
        for (size_t at = 0; at + 256 <= part->block_bytes; at += 256)
            for (int lane = 0; lane < 4; lane++) {
                ceiling_words words;
                __builtin_prefetch(part->blocks[i] + at + 2048 + lane * 64, 0, 2);
                memcpy(&words, part->blocks[i] + at + (size_t)lane * 64, sizeof words);
                sum[lane] += words;
            }
    sum[0] += sum[1] + sum[2] + sum[3];
    for (int lane = 0; lane < 8; lane++)
        part->sum += sum[0][lane];
    return NULL;
}

/* Seconds to read all blocks once by n_threads, the threads' start included. */
static inline double ceiling_sweep(const char *const *blocks, int64_t n_blocks, size_t block_bytes,
                                   uint32_t n_threads)
{
    pthread_t ids[CEILING_MAX_THREADS];
    ceiling_part parts[CEILING_MAX_THREADS];
    if (n_threads > CEILING_MAX_THREADS)
        n_threads = CEILING_MAX_THREADS;
    double begin = bench_seconds();
    for (uint32_t i = 0; i < n_threads; i++) {
        int64_t first = n_blocks * i / n_threads, end = n_blocks * (i + 1) / n_threads;
        parts[i] = (ceiling_part){blocks + first, end - first, block_bytes, 0};
        if (pthread_create(&ids[i], NULL, ceiling_read, &parts[i]) != 0) {
            fprintf(stderr, "no thread to read memory with\n");
            exit(1);
        }
    }
    static volatile uint64_t sink;
    for (uint32_t i = 0; i < n_threads; i++) {
        pthread_join(ids[i], NULL);
        sink += parts[i].sum;
    }
    return bench_seconds() - begin;
}

#endif
