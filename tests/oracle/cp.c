/* cp.c: which rank owns which key (attention.md §18). */
#include "tests/oracle/cp.h"

#include <stdbool.h>

uint32_t ora_cp_owner(int64_t p, uint32_t block_size, uint32_t n_ranks)
{
    return (uint32_t)(p / block_size % n_ranks);
}

int64_t ora_cp_slot(int64_t p, uint32_t block_size, uint32_t n_ranks)
{
    return p / ((int64_t)block_size * n_ranks) * block_size + p % block_size;
}

int64_t ora_cp_position(int64_t slot, uint32_t block_size, uint32_t n_ranks, uint32_t rank)
{
    return (slot / block_size * n_ranks + rank) * block_size + slot % block_size;
}

int64_t ora_cp_local_len(int64_t g, uint32_t block_size, uint32_t n_ranks, uint32_t rank)
{
    int64_t round = (int64_t)block_size * n_ranks;
    int64_t rest = g % round - (int64_t)rank * block_size;
    rest = rest < 0 ? 0 : rest > block_size ? block_size : rest;
    return g / round * block_size + rest;
}

void ora_cp_group(int64_t first, int32_t n, uint32_t block_size, uint32_t n_ranks, uint32_t rank,
                  int32_t *slots, int32_t *bounds)
{
    for (int32_t i = 0; i < n; i++) {
        bool owned = ora_cp_owner(first + i, block_size, n_ranks) == rank;
        slots[i] = owned ? (int32_t)ora_cp_slot(first + i, block_size, n_ranks) : -1;
        bounds[i] = (int32_t)ora_cp_local_len(first + i + 1, block_size, n_ranks, rank);
    }
}

/* Tokens of a sequence's chunk [from, from + len) that rank owns. */
static int64_t share_of(int64_t from, int64_t len, uint32_t block_size, uint32_t n_ranks,
                        uint32_t rank)
{
    return ora_cp_local_len(from + len, block_size, n_ranks, rank) -
           ora_cp_local_len(from, block_size, n_ranks, rank);
}

int64_t ora_cp_gathered_row(const int64_t *from, const int64_t *len, uint32_t n_seqs,
                            uint32_t block_size, uint32_t n_ranks, uint32_t b, int64_t k)
{
    int64_t g = from[b] + k, row = 0;
    uint32_t owner = ora_cp_owner(g, block_size, n_ranks);
    for (uint32_t rank = 0; rank < owner; rank++)
        for (uint32_t seq = 0; seq < n_seqs; seq++)
            row += share_of(from[seq], len[seq], block_size, n_ranks, rank);
    for (uint32_t seq = 0; seq < b; seq++)
        row += share_of(from[seq], len[seq], block_size, n_ranks, owner);
    return row + ora_cp_slot(g, block_size, n_ranks) -
           ora_cp_local_len(from[b], block_size, n_ranks, owner);
}
