/* pool.c: the blocks of one layer group, counted. */
#include "kvcache/pool.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct kv_pool {
    char name[80];
    kv_owner owner;
    uint32_t n_blocks;
    uint32_t n_free;      /* CLIENT: n_blocks */
    kv_block *free_stack; /* free_stack[0 .. n_free): last freed on top; CLIENT: NULL */
    uint32_t *refs;       /* [n_blocks], 0: free; CLIENT: NULL */
};

attnd_status kv_pool_open(kv_pool **out, const char *name, uint32_t n_blocks, kv_owner owner,
                          attnd_err *err)
{
    *out = NULL;
    if (n_blocks == 0 || n_blocks > INT32_MAX)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "n_blocks = %u: 1..%d", n_blocks, INT32_MAX);
    kv_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        goto no_room;
    snprintf(pool->name, sizeof pool->name, "%s", name);
    pool->owner = owner;
    pool->n_blocks = n_blocks;
    pool->n_free = n_blocks;
    if (owner == KV_OWNER_SERVER) {
        pool->free_stack = calloc(n_blocks, sizeof *pool->free_stack);
        pool->refs = calloc(n_blocks, sizeof *pool->refs);
        if (!pool->free_stack || !pool->refs)
            goto no_room;
        for (uint32_t i = 0; i < n_blocks; i++)
            pool->free_stack[i] = (kv_block)(n_blocks - 1 - i);
    }
    *out = pool;
    return ATTND_OK;

no_room:
    kv_pool_close(pool);
    return attnd_fail(err, ATTND_NO_ROOM, "n_blocks = %u: no memory to count them", n_blocks);
}

void kv_pool_close(kv_pool *pool)
{
    if (!pool)
        return;
    free(pool->free_stack);
    free(pool->refs);
    free(pool);
}

const char *kv_pool_name(const kv_pool *pool)
{
    return pool->name;
}

kv_owner kv_pool_owner(const kv_pool *pool)
{
    return pool->owner;
}

uint32_t kv_pool_n_blocks(const kv_pool *pool)
{
    return pool->n_blocks;
}

uint32_t kv_pool_n_free(const kv_pool *pool)
{
    return pool->n_free;
}

attnd_status kv_pool_take(kv_pool *pool, uint32_t n, kv_block *out, attnd_err *err)
{
    assert(pool->owner == KV_OWNER_SERVER);
    if (n > pool->n_free)
        return attnd_fail(err, ATTND_NO_ROOM, "blocks = %u: pool \"%s\" has %u of %u free", n,
                          pool->name, pool->n_free, pool->n_blocks);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = pool->free_stack[--pool->n_free];
        pool->refs[out[i]] = 1;
    }
    return ATTND_OK;
}

/* The count of a block that is held. */
static uint32_t *held(kv_pool *pool, kv_block block)
{
    assert(pool->owner == KV_OWNER_SERVER);
    assert(block >= 0 && (uint32_t)block < pool->n_blocks);
    assert(pool->refs[block] > 0);
    return &pool->refs[block];
}

void kv_pool_share(kv_pool *pool, const kv_block *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        ++*held(pool, blocks[i]);
}

void kv_pool_give(kv_pool *pool, const kv_block *blocks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (--*held(pool, blocks[i]) == 0)
            pool->free_stack[pool->n_free++] = blocks[i];
}

uint32_t kv_pool_refs(const kv_pool *pool, kv_block block)
{
    assert(block >= 0 && (uint32_t)block < pool->n_blocks);
    return pool->owner == KV_OWNER_SERVER ? pool->refs[block] : 0;
}
