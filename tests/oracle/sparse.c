/* sparse.c: keys chosen by lists and blocks (attention.md §16.2-§16.5). */
#include <math.h>
#include <stdlib.h>

#include "tests/oracle/check.h"
#include "tests/oracle/items.h"

/* ---- Blocks (§16.2) ---- */

static int64_t n_blocks_of(const ora_problem *p, uint32_t b)
{
    return ((int64_t)p->kv_len[b] + p->sparse.block_kv - 1) / p->sparse.block_kv;
}

/* Row of the pattern. */
static size_t pattern_row(const ora_problem *p, uint32_t b, uint32_t head, uint32_t q_block)
{
    return ((size_t)b * p->sparse.n_heads + head) * p->sparse.n_q_blocks + q_block;
}

/* Its part of indices: each (sequence, head) has a closing entry of its own in indptr. */
static const int32_t *row_indices(const ora_problem *p, uint32_t b, uint32_t head, uint32_t q_block,
                                  int64_t *n)
{
    const int32_t *from = p->sparse.indptr + pattern_row(p, b, head, q_block) +
                          ((size_t)b * p->sparse.n_heads + head);
    *n = (int64_t)from[1] - from[0];
    return p->sparse.indices + from[0];
}

static int by_value(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static bool is_selected(const ora_problem *p, uint32_t b, int32_t i, uint32_t g, int64_t block)
{
    const ora_sparse *sparse = &p->sparse;
    uint32_t head = sparse->n_heads > 1 ? g : 0, q_block = (uint32_t)i / sparse->block_q;
    if (sparse->block_bits) {
        const uint32_t *row =
            sparse->block_bits + pattern_row(p, b, head, q_block) * sparse->block_words;
        return row[block / 32] >> (block % 32) & 1;
    }
    int64_t n;
    const int32_t *row = row_indices(p, b, head, q_block, &n);
    int32_t wanted = (int32_t)block;
    return n > 0 && bsearch(&wanted, row, (size_t)n, sizeof *row, by_value);
}

bool ora_sparse_allows(const ora_problem *p, uint32_t b, int32_t i, uint32_t g, int64_t j)
{
    const ora_sparse *sparse = &p->sparse;
    if (sparse->block_kv > 0 && !is_selected(p, b, i, g, j / sparse->block_kv))
        return false;
    if (!sparse->valid_bits)
        return true;
    return sparse->valid_bits[(size_t)b * sparse->valid_words + (size_t)j / 32] >> (j % 32) & 1;
}

void ora_sparse_proxies(const ora_problem *p, uint32_t b, int32_t i, uint32_t g, int64_t first,
                        ora_items *items)
{
    const ora_sparse *sparse = &p->sparse;
    if (!sparse->proxy_k)
        return;
    for (int64_t block = 0; block < n_blocks_of(p, b); block++) {
        if (is_selected(p, b, i, g, block))
            continue;
        int64_t rest = p->kv_len[b] - block * sparse->block_kv;
        double n_tokens = rest < sparse->block_kv ? (double)rest : sparse->block_kv;
        ora_items_add(
            items, p,
            (ora_item){.slot = block, .place = first + block, .key = -1, .extra = log(n_tokens)});
    }
}

/* ---- Lists (§16.3-§16.5) ---- */

static int64_t list_length(const int32_t *lengths, uint32_t width, int64_t t)
{
    return lengths && lengths[t] < (int64_t)width ? lengths[t] : (int64_t)width;
}

attnd_status ora_sparse_topk(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                             uint32_t g, ora_items *items, attnd_err *err)
{
    const ora_sparse *sparse = &p->sparse;
    int64_t t = batch->q_first[b] + i, a = ora_batch_row_index(batch, p, b, i);
    const int32_t *entries = sparse->topk + t * sparse->topk_width;
    for (int64_t n = 0; n < list_length(sparse->topk_len, sparse->topk_width, t); n++) {
        int64_t entry = entries[n];
        if (sparse->topk_is_slots) {
            if (entry >= 0 && entry < p->kv.n_blocks * p->kv.block_size)
                ora_items_add(items, p,
                              (ora_item){.kv = &p->kv, .slot = entry, .place = n, .key = -1});
            continue;
        }
        if (entry < 0 || entry >= p->kv_len[b])
            continue;
        if (sparse->topk_causal && ora_batch_key_index(p, entry) > a)
            continue;
        if (ora_batch_sees(batch, p, b, i, entry) && ora_sparse_allows(p, b, i, g, entry))
            TRY(ora_items_add_key(batch, p, b, entry, n, items, err));
    }
    return ATTND_OK;
}

attnd_status ora_sparse_pages(const ora_problem *p, uint32_t b, uint32_t g, ora_items *items,
                              attnd_err *err)
{
    const ora_sparse *sparse = &p->sparse;
    size_t list = (size_t)b * p->n_kv_heads + g;
    for (int64_t n = 0; n < sparse->page_keys[list]; n++) {
        int64_t page = n / p->kv.block_size;
        int32_t block = sparse->pages[list * sparse->pages_width + (size_t)page];
        if (block < 0 || block >= p->kv.n_blocks)
            return attnd_fail(err, ATTND_BAD_BLOCK,
                              "sparse.pages[%u][%u][%lld] = %d: one of 0..%lld", b, g,
                              (long long)page, block, (long long)p->kv.n_blocks - 1);
        int64_t slot = (int64_t)block * p->kv.block_size + n % p->kv.block_size;
        ora_items_add(items, p, (ora_item){.kv = &p->kv, .slot = slot, .place = n, .key = -1});
    }
    return ATTND_OK;
}

void ora_sparse_second(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                       int64_t first, ora_items *items)
{
    const ora_sparse *sparse = &p->sparse;
    if (!sparse->second)
        return;
    int64_t t = batch->q_first[b] + i;
    int64_t n_slots = sparse->second->n_blocks * sparse->second->block_size;
    for (int64_t n = 0; n < list_length(sparse->second_len, sparse->second_width, t); n++) {
        int64_t slot = sparse->second_slots[t * sparse->second_width + n];
        if (slot >= 0 && slot < n_slots)
            ora_items_add(
                items, p,
                (ora_item){.kv = sparse->second, .slot = slot, .place = first + n, .key = -1});
    }
}

/* ---- Refusals ---- */

/* Strictly increasing and below the sequence's blocks. */
static attnd_status check_row(const ora_problem *p, uint32_t b, uint32_t head, uint32_t q_block,
                              attnd_err *err)
{
    int64_t n;
    const int32_t *row = row_indices(p, b, head, q_block, &n);
    if (n < 0)
        return attnd_fail(err, ATTND_BAD_MASK, "sparse.indptr[%u][%u][%u] = %lld blocks: 0 or more",
                          b, head, q_block, (long long)n);
    for (int64_t k = 0; k < n; k++)
        if (row[k] < 0 || row[k] >= n_blocks_of(p, b) || (k > 0 && row[k] <= row[k - 1]))
            return attnd_fail(err, ATTND_BAD_MASK,
                              "sparse.indices[%lld] = %d: above the one before it in row [%u][%u]"
                              "[%u], below %lld",
                              (long long)(row - p->sparse.indices + k), row[k], b, head, q_block,
                              (long long)n_blocks_of(p, b));
    return ATTND_OK;
}

static attnd_status check_pattern(const ora_problem *p, uint32_t b, attnd_err *err)
{
    const ora_sparse *sparse = &p->sparse;
    uint32_t q_blocks = ((uint32_t)p->q_len[b] + sparse->block_q - 1) / sparse->block_q;
    if (q_blocks > sparse->n_q_blocks)
        return attnd_fail(err, ATTND_BAD_MASK, "sparse.n_q_blocks = %u: q_len[%u] = %d needs %u",
                          sparse->n_q_blocks, b, p->q_len[b], q_blocks);
    if (sparse->block_bits && n_blocks_of(p, b) > 32 * (int64_t)sparse->block_words)
        return attnd_fail(
            err, ATTND_BAD_MASK, "sparse.block_words = %u: kv_len[%u] = %d needs %lld",
            sparse->block_words, b, p->kv_len[b], (long long)(n_blocks_of(p, b) + 31) / 32);
    if (sparse->proxy_k && n_blocks_of(p, b) > sparse->n_kv_blocks)
        return attnd_fail(err, ATTND_BAD_MASK,
                          "sparse.n_kv_blocks = %u: kv_len[%u] = %d needs %lld",
                          sparse->n_kv_blocks, b, p->kv_len[b], (long long)n_blocks_of(p, b));
    for (uint32_t head = 0; !sparse->block_bits && head < sparse->n_heads; head++)
        for (uint32_t q_block = 0; q_block < q_blocks; q_block++)
            TRY(check_row(p, b, head, q_block, err));
    return ATTND_OK;
}

static attnd_status check_blocks(const ora_problem *p, attnd_err *err)
{
    const ora_sparse *sparse = &p->sparse;
    if (sparse->valid_bits)
        for (uint32_t b = 0; b < p->n_seqs; b++)
            if (p->kv_len[b] > 32 * (int64_t)sparse->valid_words)
                return attnd_fail(err, ATTND_BAD_MASK,
                                  "sparse.valid_words = %u: kv_len[%u] = %d needs %d",
                                  sparse->valid_words, b, p->kv_len[b], (p->kv_len[b] + 31) / 32);
    if (sparse->proxy_k && (p->mask.kinds || p->block_ids || !sparse->proxy_v || !sparse->block_kv))
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "sparse.proxy_k = given: with proxy_v, blocks, given keys and a full "
                          "mask alone");
    if (sparse->block_kv == 0)
        return ATTND_OK;
    if (sparse->block_q == 0)
        return attnd_fail(err, ATTND_BAD_MASK, "sparse.block_q = 0: at least 1");
    if (sparse->n_heads != 1 && sparse->n_heads != p->n_kv_heads)
        return attnd_fail(err, ATTND_BAD_MASK, "sparse.n_heads = %u: 1 or n_kv_heads = %u",
                          sparse->n_heads, p->n_kv_heads);
    if (!sparse->block_bits && (!sparse->indptr || !sparse->indices))
        return attnd_fail(err, ATTND_BAD_MASK, "sparse.indices = none: or block_bits");
    for (uint32_t b = 0; b < p->n_seqs; b++)
        TRY(check_pattern(p, b, err));
    return ATTND_OK;
}

static attnd_status check_pages(const ora_problem *p, attnd_err *err)
{
    const ora_sparse *sparse = &p->sparse;
    if (!sparse->page_keys || sparse->topk)
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "sparse.pages = given: with page_keys, without topk");
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (uint32_t g = 0; g < p->n_kv_heads; g++) {
            int32_t n = sparse->page_keys[(size_t)b * p->n_kv_heads + g];
            if (n < 0 || n > (int64_t)sparse->pages_width * p->kv.block_size)
                return attnd_fail(err, ATTND_BAD_LENGTH,
                                  "sparse.page_keys[%u][%u] = %d: what %u pages hold", b, g, n,
                                  sparse->pages_width);
        }
    return ATTND_OK;
}

/* Entries that are slots or pages have no key index: nothing that needs one fits to them. */
static attnd_status check_lists(const ora_problem *p, attnd_err *err)
{
    const ora_sparse *sparse = &p->sparse;
    const char *name = sparse->pages                           ? "pages"
                       : sparse->topk && sparse->topk_is_slots ? "topk_is_slots"
                                                               : NULL;
    if (name && p->kv.block_size == 0)
        return attnd_fail(err, ATTND_BAD_COMBINATION, "sparse.%s = given: not with given keys",
                          name);
    if (name && (p->mask.kinds || sparse->topk_causal || sparse->block_kv || sparse->valid_bits ||
                 p->cp.bounds || p->beams.width || p->high))
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "sparse.%s = given: its keys have no index for masks, blocks, bounds, "
                          "beams or high pages",
                          name);
    if (!name && sparse->second)
        name = "second";
    if (name && (p->bias.alibi_slopes || p->bias.relative))
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "sparse.%s = given: its keys have no index for a bias", name);
    if (sparse->second && (!sparse->second_slots || sparse->second->block_size == 0))
        return attnd_fail(err, ATTND_BAD_COMBINATION,
                          "sparse.second = given: a pool, with second_slots");
    return sparse->pages ? check_pages(p, err) : ATTND_OK;
}

attnd_status ora_sparse_check(const ora_problem *p, attnd_err *err)
{
    TRY(check_lists(p, err));
    return check_blocks(p, err);
}
