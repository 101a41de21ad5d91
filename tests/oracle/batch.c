/* batch.c: where the rows, keys and slots of a problem lie. */
#include "tests/oracle/batch.h"

#include <stdlib.h>
#include <string.h>

#include "tests/oracle/check.h"
#include "tests/oracle/cp.h"

static int64_t custom_bytes(const ora_problem *p, uint32_t b)
{
    int64_t pairs = (int64_t)p->q_len[b] * p->kv_len[b];
    return p->mask.kinds & ORA_MASK_BITS ? (pairs + 7) / 8 : pairs;
}

static void lay_out(ora_batch *batch, const ora_problem *p)
{
    int64_t q = 0, kv = 0, block = 0, custom = 0, tree = 0;
    for (uint32_t b = 0; b < p->n_seqs; b++) {
        batch->q_first[b] = p->q_first ? p->q_first[b] : q;
        batch->kv_first[b] = p->kv_first ? p->kv_first[b] : kv;
        batch->block_first[b] = p->block_first ? p->block_first[b] : block;
        batch->custom_first[b] = p->mask.custom_first ? p->mask.custom_first[b] : custom;
        batch->tree_first[b] = p->mask.tree_first ? p->mask.tree_first[b] : tree;
        q += p->q_len[b];
        kv += p->kv_len[b];
        if (p->block_ids)
            block += ((int64_t)p->kv_len[b] + p->kv.block_size - 1) / p->kv.block_size;
        custom += custom_bytes(p, b);
        if (batch->q_first[b] + p->q_len[b] > batch->n_tokens)
            batch->n_tokens = batch->q_first[b] + p->q_len[b];
        if (b >= p->n_contexts)
            tree += (int64_t)p->q_len[b] * p->mask.tree_width;
    }
}

attnd_status ora_batch_init(ora_batch *batch, const ora_problem *p, attnd_err *err)
{
    *batch = (ora_batch){0};
    TRY(ora_check(p, err));
    batch->memory = calloc(5 * (size_t)p->n_seqs + 1, sizeof *batch->memory);
    if (!batch->memory)
        return attnd_fail(err, ATTND_NO_ROOM, "n_seqs = %u: no memory for their offsets",
                          p->n_seqs);
    batch->q_first = batch->memory;
    batch->kv_first = batch->q_first + p->n_seqs;
    batch->block_first = batch->kv_first + p->n_seqs;
    batch->custom_first = batch->block_first + p->n_seqs;
    batch->tree_first = batch->custom_first + p->n_seqs;
    lay_out(batch, p);
    return ora_check_batch(batch, p, err);
}

void ora_batch_fini(ora_batch *batch)
{
    free(batch->memory);
    *batch = (ora_batch){0};
}

int64_t ora_batch_position(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                           uint32_t section)
{
    int64_t t = batch->q_first[b] + i, past = (int64_t)p->kv_len[b] - p->q_len[b];
    int64_t delta = p->rope_delta ? p->rope_delta[b] : 0;
    if (p->positions3)
        return p->positions3[3 * t + section] + delta;
    return (p->positions ? p->positions[t] : past + ora_batch_offset(batch, p, b, i)) + delta;
}

int64_t ora_batch_row_index(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i)
{
    if (p->cp.n_ranks > 0)
        return p->positions[batch->q_first[b] + i];
    return (int64_t)p->kv_len[b] - p->q_len[b] + i;
}

int64_t ora_batch_key_index(const ora_problem *p, int64_t j)
{
    if (p->cp.n_ranks == 0)
        return j;
    return ora_cp_position(j, p->kv.block_size, p->cp.n_ranks, p->cp.rank);
}

attnd_status ora_batch_slot(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t j,
                            int64_t *slot, attnd_err *err)
{
    if (!p->block_ids) {
        *slot = batch->kv_first[b] + j;
        return ATTND_OK;
    }
    int64_t n = j / p->kv.block_size;
    int32_t block = p->block_ids[batch->block_first[b] + n];
    if (block < 0 || block >= p->kv.n_blocks)
        return attnd_fail(err, ATTND_BAD_BLOCK,
                          "block_ids[%u][%lld] = %d: key %lld needs one of 0..%lld", b,
                          (long long)n, block, (long long)j, (long long)p->kv.n_blocks - 1);
    *slot = (int64_t)block * p->kv.block_size + j % p->kv.block_size;
    return ATTND_OK;
}

attnd_status ora_result_make(ora_result *r, const ora_problem *p, int64_t n_tokens, attnd_err *err)
{
    size_t rows = (size_t)n_tokens * p->n_heads, width = p->head_dim_v;
    *r = (ora_result){.n_tokens = n_tokens, .n_heads = p->n_heads, .head_dim_v = p->head_dim_v};
    r->memory = calloc(rows * (width + 4) + 1, sizeof *r->memory);
    r->n_visible = calloc(rows + 1, sizeof *r->n_visible);
    if (!r->memory || !r->n_visible) {
        ora_result_fini(r);
        return attnd_fail(err, ATTND_NO_ROOM, "tokens = %lld: no memory for their results",
                          (long long)n_tokens);
    }
    r->out = r->memory;
    r->lse = r->out + rows * width;
    r->m = r->lse + rows;
    r->l = r->m + rows;
    r->vmax = r->l + rows;
    memset(r->n_visible, -1, rows * sizeof *r->n_visible);
    return ATTND_OK;
}

void ora_result_fini(ora_result *result)
{
    free(result->memory);
    free(result->n_visible);
    *result = (ora_result){0};
}
