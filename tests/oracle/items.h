/* items.h: the keys that one row and kv head see, as a list (attention.md §23.3). Private to the
 * oracle.
 *
 * Keys come from a sequence's pages or the given rows, a list of tokens, a head's own pages, a
 * second pool, or stand for a block that was left out.
 */
#ifndef ATTND_TESTS_ORACLE_ITEMS_H
#define ATTND_TESTS_ORACLE_ITEMS_H

#include "tests/oracle/kv.h"

typedef struct ora_item {
    const ora_kv *kv; /* NULL: the means of block `slot` (§16.2) */
    int64_t slot;
    int64_t place; /* rises along the list: key index or entry of a list, then blocks left out, then
                      the second pool; key_from, key_to and tiles count places */
    int64_t key;   /* its index for masks and biases; -1: it has none */
    double extra;  /* on its score */
} ora_item;

typedef struct ora_items {
    ora_item *item;
    int64_t n, room;
} ora_items;

/* An empty list with room for any row of the problem. Refuses NO_ROOM. ora_items_close() accepts
 * what is all zero. */
attnd_status ora_items_open(ora_items *items, const ora_problem *problem, attnd_err *err);
void ora_items_close(ora_items *items);

/* Fills in what row i of sequence b and kv head g sees. Refuses BAD_BLOCK, BAD_LENGTH. */
attnd_status ora_items_find(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                            int32_t i, uint32_t g, ora_items *items, attnd_err *err);

/* May the list differ from kv head to kv head? */
bool ora_items_per_head(const ora_problem *problem);

/* Its key or value as numbers. */
void ora_item_load(const ora_problem *problem, const ora_item *item, int plane, uint32_t b,
                   uint32_t g, double *x);

/* Adds one unless its place is outside key_from .. key_to. For items.c and sparse.c. */
void ora_items_add(ora_items *items, const ora_problem *problem, ora_item item);

/* Adds key j of sequence b at a place, through beams, tables and high pages. */
attnd_status ora_items_add_key(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                               int64_t j, int64_t place, ora_items *items, attnd_err *err);

/* sparse.c: is key j of sequence b in a selected block and valid (§16.2)? */
bool ora_sparse_allows(const ora_problem *problem, uint32_t b, int32_t i, uint32_t g, int64_t j);

/* sparse.c: adds the tokens of §16.3, the pages of §16.4, the blocks left out of §16.2, the second
 * pool of §16.5, whose places start at first. */
attnd_status ora_sparse_topk(const ora_batch *batch, const ora_problem *problem, uint32_t b,
                             int32_t i, uint32_t g, ora_items *items, attnd_err *err);
attnd_status ora_sparse_pages(const ora_problem *problem, uint32_t b, uint32_t g, ora_items *items,
                              attnd_err *err);
void ora_sparse_proxies(const ora_problem *problem, uint32_t b, int32_t i, uint32_t g,
                        int64_t first, ora_items *items);
void ora_sparse_second(const ora_batch *batch, const ora_problem *problem, uint32_t b, int32_t i,
                       int64_t first, ora_items *items);

#endif
