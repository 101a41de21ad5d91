/* ceilings.c: the read rate of this machine.
 *
 * Blocks of 64 KiB in a random order out of 1 GiB, all threads; the same for one thread. The
 * fastest of several sweeps.
 */
#include <sched.h>
#include <sys/mman.h>

#include "tests/bench/ceiling.h"

enum { BLOCK = 65536, N_BLOCKS = 16384, N_TIMES = 7 };

static double read_rate(const char *const *blocks, uint32_t n_threads)
{
    double best = 1e9;
    for (int i = 0; i < N_TIMES; i++) {
        double seconds = ceiling_sweep(blocks, N_BLOCKS, BLOCK, n_threads);
        best = seconds < best ? seconds : best;
    }
    return (double)N_BLOCKS * BLOCK / best * 1e-9;
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    if (!strstr("ceilings", filter))
        return 0;
    size_t bytes = (size_t)N_BLOCKS * BLOCK;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const char **blocks = calloc(N_BLOCKS, sizeof *blocks);
    if (memory == MAP_FAILED || !blocks) {
        fprintf(stderr, "ceilings: no memory for %zu bytes\n", bytes);
        return 1;
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    srand(1);
    for (int i = 0; i < N_BLOCKS; i++) {
        int j = rand() % (i + 1);
        blocks[i] = blocks[j];
        blocks[j] = memory + (size_t)i * BLOCK;
    }
    cpu_set_t cpus;
    uint32_t n = 1;
    if (sched_getaffinity(0, sizeof cpus, &cpus) == 0)
        n = (uint32_t)CPU_COUNT(&cpus);
    printf("%-24s %10.1f GB/s, %u threads\n", "ceilings read", read_rate(blocks, n), n);
    printf("%-24s %10.1f GB/s, 1 thread\n", "ceilings read", read_rate(blocks, 1));
    free(blocks);
    munmap(memory, bytes);
    return 0;
}
