/* cp.h: which rank owns which key under context parallelism (attention.md §18). */
#ifndef ATTND_TESTS_ORACLE_CP_H
#define ATTND_TESTS_ORACLE_CP_H

#include <stdint.h>

/* Of n_ranks ranks with pages of block_size tokens; g and p are global positions. */
uint32_t ora_cp_owner(int64_t p, uint32_t block_size, uint32_t n_ranks);
int64_t ora_cp_slot(int64_t p, uint32_t block_size, uint32_t n_ranks);
int64_t ora_cp_position(int64_t slot, uint32_t block_size, uint32_t n_ranks, uint32_t rank);

/* Tokens among the first g that rank owns. */
int64_t ora_cp_local_len(int64_t g, uint32_t block_size, uint32_t n_ranks, uint32_t rank);

/* §18.3: slots[n] (-1: another rank's) and bounds[n] of a verify group at positions first .. . */
void ora_cp_group(int64_t first, int32_t n, uint32_t block_size, uint32_t n_ranks, uint32_t rank,
                  int32_t *slots, int32_t *bounds);

/* §18.6: the gathered row of global row k of sequence b in a chunk that covers [from[b], from[b] +
 * len[b]) of each of n_seqs sequences; rows are rank-major. */
int64_t ora_cp_gathered_row(const int64_t *from, const int64_t *len, uint32_t n_seqs,
                            uint32_t block_size, uint32_t n_ranks, uint32_t b, int64_t k);

#endif
