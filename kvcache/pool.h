/* pool.h: the blocks of one layer group, counted.
 *
 * A pool deals in block ids and never touches the memory behind them, so all of it is tested
 * without a device. Who hands out the blocks is fixed when it is opened: CLIENT (the opening
 * session names any id, nothing is counted but use) or SERVER (blocks are taken and given here,
 * each with a count of references). Owner: the engine thread. Nothing here allocates after
 * kv_pool_open(). What must outlive the engine is ids and counts only, never a pointer.
 */
#ifndef ATTND_KVCACHE_POOL_H
#define ATTND_KVCACHE_POOL_H

#include <stdbool.h>

#include "proto/err.h"

typedef struct kv_pool kv_pool;
typedef int32_t kv_block; /* -1: not held */

typedef enum kv_owner { KV_OWNER_CLIENT, KV_OWNER_SERVER } kv_owner;

/* Opens a pool of n_blocks (1 .. 2^31-1) free blocks; the caller closes it. *out is NULL on
 * refusal: BAD_GEOMETRY, NO_ROOM. name (copied, at most 79 bytes) stands in messages. */
attnd_status kv_pool_open(kv_pool **out, const char *name, uint32_t n_blocks, kv_owner owner,
                          attnd_err *err);

/* Accepts NULL. */
void kv_pool_close(kv_pool *pool);

const char *kv_pool_name(const kv_pool *pool);
kv_owner kv_pool_owner(const kv_pool *pool);
uint32_t kv_pool_n_blocks(const kv_pool *pool);

/* SERVER: blocks without a reference. CLIENT: n_blocks. What is marked SERVER below is a broken
 * promise (an assertion) on a CLIENT pool, and so is a block that is not held. */
uint32_t kv_pool_n_free(const kv_pool *pool);

/* SERVER. Takes n blocks, one reference each, or none: NO_ROOM when fewer are free. */
attnd_status kv_pool_take(kv_pool *pool, uint32_t n, kv_block *out, attnd_err *err);

/* SERVER. One more reference to each of n held blocks. */
void kv_pool_share(kv_pool *pool, const kv_block *blocks, uint32_t n);

/* SERVER. Drops one reference to each of n blocks; the last reference frees a block at once. */
void kv_pool_give(kv_pool *pool, const kv_block *blocks, uint32_t n);

/* SERVER: references to a block. CLIENT: 0. */
uint32_t kv_pool_refs(const kv_pool *pool, kv_block block);

#endif
