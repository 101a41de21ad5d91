/* batch.c: where the rows, keys and slots of a problem lie. */
#include "tests/oracle/batch.h"

#include <stdlib.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/kv.h"

static attnd_status check_counts(const ora_problem *p, attnd_err *err)
{
    if (p->n_kv_heads == 0 || p->n_heads == 0 || p->n_heads % p->n_kv_heads != 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "n_heads = %u: a positive multiple of n_kv_heads = %u", p->n_heads,
                          p->n_kv_heads);
    if (p->head_dim == 0 || p->head_dim_v == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "head_dim = %u, head_dim_v = %u: at least 1",
                          p->head_dim, p->head_dim_v);
    if (!ora_codec_has(p->dtype))
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "dtype = %s: f32, f16 or bf16",
                          attnd_dtype_name(p->dtype));
    if (p->block_ids && p->kv.block_size == 0)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "kv.block_size = 0: at least 1 with tables");
    return ora_kv_check(p, err);
}

static attnd_status check_mask(const ora_problem *p, attnd_err *err)
{
    const ora_mask *mask = &p->mask;
    if ((mask->kinds & ORA_MASK_WINDOW) && mask->window < 1)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.window = %d: at least 1", mask->window);
    if ((mask->kinds & ORA_MASK_CHUNK) && mask->chunk < 1)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.chunk = %d: at least 1", mask->chunk);
    if ((mask->kinds & ORA_MASK_VARIABLE) && (!mask->start || !mask->end))
        return attnd_fail(err, ATTND_BAD_MASK, "mask.%s = none: both ends are needed",
                          mask->start ? "end" : "start");
    if ((mask->kinds & (ORA_MASK_BYTES | ORA_MASK_BITS)) && !mask->custom)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.custom = none: a custom mask needs it");
    if ((mask->kinds & ORA_MASK_TREE) && !mask->tree_words)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.tree_words = none: a tree needs them");
    return ATTND_OK;
}

static attnd_status check_lengths(const ora_problem *p, attnd_err *err)
{
    for (uint32_t b = 0; b < p->n_seqs; b++) {
        if (p->q_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "q_len[%u] = %d: at least 0", b, p->q_len[b]);
        if (p->kv_len[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "kv_len[%u] = %d: at least 0", b,
                              p->kv_len[b]);
        uint64_t width = 32ull * p->mask.tree_width;
        if ((p->mask.kinds & ORA_MASK_TREE) && b >= p->n_contexts && (uint64_t)p->q_len[b] > width)
            return attnd_fail(err, ATTND_BAD_MASK, "mask.tree_width = %u: q_len[%u] = %d needs %d",
                              p->mask.tree_width, b, p->q_len[b], (p->q_len[b] + 31) / 32);
    }
    return ATTND_OK;
}

static int64_t custom_bytes(const ora_problem *p, uint32_t b)
{
    int64_t pairs = (int64_t)p->q_len[b] * p->kv_len[b];
    return p->mask.kinds & ORA_MASK_BITS ? (pairs + 7) / 8 : pairs;
}

attnd_status ora_batch_init(ora_batch *batch, const ora_problem *p, attnd_err *err)
{
    *batch = (ora_batch){0};
    TRY(check_counts(p, err));
    TRY(check_mask(p, err));
    TRY(check_lengths(p, err));
    batch->memory = calloc(5 * (size_t)p->n_seqs + 1, sizeof *batch->memory);
    if (!batch->memory)
        return attnd_fail(err, ATTND_NO_ROOM, "n_seqs = %u: no memory for their offsets",
                          p->n_seqs);
    batch->q_first = batch->memory;
    batch->kv_first = batch->q_first + p->n_seqs;
    batch->block_first = batch->kv_first + p->n_seqs;
    batch->custom_first = batch->block_first + p->n_seqs;
    batch->tree_first = batch->custom_first + p->n_seqs;
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
    return ora_rope_check(batch, p, err);
}

void ora_batch_fini(ora_batch *batch)
{
    free(batch->memory);
    *batch = (ora_batch){0};
}

static bool has_tree(const ora_problem *p, uint32_t b)
{
    return (p->mask.kinds & ORA_MASK_TREE) && b >= p->n_contexts;
}

/* §13.2: depth of a node, or its row in a chain. */
static int64_t offset_of(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i)
{
    return has_tree(p, b) && p->mask.tree_depth ? p->mask.tree_depth[batch->q_first[b] + i] : i;
}

int64_t ora_batch_position(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                           uint32_t section)
{
    int64_t t = batch->q_first[b] + i, past = (int64_t)p->kv_len[b] - p->q_len[b];
    int64_t delta = p->rope_delta ? p->rope_delta[b] : 0;
    if (p->positions3)
        return p->positions3[3 * t + section] + delta;
    return (p->positions ? p->positions[t] : past + offset_of(batch, p, b, i)) + delta;
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

/* Lowest key that window and chunk leave to a row at key index a; they both must hold. */
static int64_t lowest_key(const ora_mask *mask, int64_t a)
{
    int64_t lowest = 0;
    if ((mask->kinds & ORA_MASK_WINDOW) && a - mask->window + 1 > lowest)
        lowest = a - mask->window + 1;
    /* a < 0 rounds towards 0 here and not down: no key is below 0 either way. */
    if ((mask->kinds & ORA_MASK_CHUNK) && a / mask->chunk * mask->chunk > lowest)
        lowest = a / mask->chunk * mask->chunk;
    return lowest;
}

static bool custom_allows(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                          int64_t j)
{
    int64_t n = (int64_t)i * p->kv_len[b] + j;
    const uint8_t *mask = p->mask.custom + batch->custom_first[b];
    return p->mask.kinds & ORA_MASK_BITS ? mask[n / 8] >> (n % 8) & 1 : mask[n] != 0;
}

static bool tree_allows(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                        int64_t j)
{
    int64_t past = (int64_t)p->kv_len[b] - p->q_len[b];
    if (j < past)
        return j >= lowest_key(&p->mask, past + offset_of(batch, p, b, i));
    const uint32_t *words =
        p->mask.tree_words + batch->tree_first[b] + (int64_t)i * p->mask.tree_width;
    int64_t t = j - past;
    return words[t / 32] >> (t % 32) & 1;
}

bool ora_batch_sees(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i, int64_t j)
{
    const ora_mask *mask = &p->mask;
    int64_t a = (int64_t)p->kv_len[b] - p->q_len[b] + i;
    int64_t t = batch->q_first[b] + i;
    bool custom = mask->kinds & (ORA_MASK_BYTES | ORA_MASK_BITS);
    if (custom && !custom_allows(batch, p, b, i, j))
        return false;
    if (mask->kinds & ORA_MASK_VARIABLE)
        return mask->start[t] <= j && j <= mask->end[t];
    if (has_tree(p, b))
        return tree_allows(batch, p, b, i, j);
    if (custom)
        return !(mask->kinds & ORA_MASK_WINDOW) || j >= a - mask->window + 1;
    if ((mask->kinds & (ORA_MASK_CAUSAL | ORA_MASK_TREE)) && j > a)
        return false;
    return j >= lowest_key(mask, a);
}
