/* cuda.h: memory of a GPU that the daemon made, mapped here: the only part of this library that
 * speaks CUDA. Private to proto/client/.
 *
 * The driver is opened when the first such buffer is mapped, in the primary context of GPU 0, which
 * the CUDA runtime of this process uses too. Nothing is built or linked against CUDA.
 */
#ifndef ATTND_PROTO_CLIENT_CUDA_H
#define ATTND_PROTO_CLIENT_CUDA_H

#include <stddef.h>
#include <stdint.h>

#include "proto/err.h"

/* A mapping; address 0: none. */
typedef struct cli_cuda {
    uint64_t address; /* of the GPU */
    size_t mapped;    /* bytes, rounded up to the granularity */
} cli_cuda;

/* Maps bytes of what the descriptor names, which stays the caller's. Refuses UNSUPPORTED (no
 * driver, no GPU), NO_ROOM (what the driver refuses). */
attnd_status cli_cuda_map(cli_cuda *out, uint64_t bytes, int fd, attnd_err *err);

/* Waits for nothing; accepts what is not mapped. */
void cli_cuda_unmap(cli_cuda *mapped);

/* Copies and waits for the copy. KERNEL_FAILED. */
attnd_status cli_cuda_read(void *to, uint64_t from, size_t bytes, attnd_err *err);
attnd_status cli_cuda_write(uint64_t to, const void *from, size_t bytes, attnd_err *err);

#endif
