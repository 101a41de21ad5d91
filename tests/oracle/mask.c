/* mask.c: which keys a row sees (attention.md §6). */
#include "tests/oracle/check.h"

enum { CUSTOM = ORA_MASK_BYTES | ORA_MASK_BITS };

bool ora_batch_has_tree(const ora_problem *p, uint32_t b)
{
    return (p->mask.kinds & ORA_MASK_TREE) && b >= p->n_contexts;
}

int64_t ora_batch_offset(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i)
{
    bool has_depth = ora_batch_has_tree(p, b) && p->mask.tree_depth;
    return has_depth ? p->mask.tree_depth[batch->q_first[b] + i] : i;
}

static bool custom_allows(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                          int64_t j)
{
    int64_t n = (int64_t)i * p->kv_len[b] + j;
    const uint8_t *mask = p->mask.custom + batch->custom_first[b];
    return p->mask.kinds & ORA_MASK_BITS ? mask[n / 8] >> (n % 8) & 1 : mask[n] != 0;
}

/* Window and chunk of a row at key index a; they both must hold. */
static bool bounds_allow(const ora_mask *mask, int64_t a, int64_t j)
{
    if (mask->kinds & ORA_MASK_VARIABLE)
        return true;
    if ((mask->kinds & ORA_MASK_WINDOW) && j < a - mask->window + 1)
        return false;
    /* a < 0 rounds towards 0 here and not down: no key is below 0 either way. */
    return !(mask->kinds & ORA_MASK_CHUNK) || (mask->kinds & CUSTOM) ||
           j >= a / mask->chunk * mask->chunk;
}

static const uint32_t *tree_row(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i)
{
    return p->mask.tree_words + batch->tree_first[b] + (int64_t)i * p->mask.tree_width;
}

/* §6.7: drafts obey only their bits; window and chunk of the node's depth bound the past. */
static bool tree_allows(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                        int64_t j)
{
    int64_t past = (int64_t)p->kv_len[b] - p->q_len[b], t = j - past;
    if (t < 0)
        return bounds_allow(&p->mask, past + ora_batch_offset(batch, p, b, i), j);
    return tree_row(batch, p, b, i)[t / 32] >> (t % 32) & 1;
}

bool ora_batch_sees(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i, int64_t j)
{
    const ora_mask *mask = &p->mask;
    int64_t t = batch->q_first[b] + i;
    if (p->cp.n_ranks > 0 && p->cp.bounds && j >= p->cp.bounds[t])
        return false;
    if ((mask->kinds & CUSTOM) && !custom_allows(batch, p, b, i, j))
        return false;
    int64_t a = ora_batch_row_index(batch, p, b, i);
    j = ora_batch_key_index(p, j);
    if ((mask->kinds & ORA_MASK_VARIABLE) && (j < mask->start[t] || j > mask->end[t]))
        return false;
    if (ora_batch_has_tree(p, b))
        return tree_allows(batch, p, b, i, j);
    bool is_causal = (mask->kinds & (ORA_MASK_CAUSAL | ORA_MASK_TREE)) &&
                     !(mask->kinds & (ORA_MASK_VARIABLE | CUSTOM));
    return !(is_causal && j > a) && bounds_allow(mask, a, j);
}

/* ---- Refusals ---- */

static attnd_status check_tree(const ora_batch *batch, const ora_problem *p, uint32_t b,
                               attnd_err *err)
{
    int32_t width = p->q_len[b];
    if ((uint64_t)width > 32ull * p->mask.tree_width)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.tree_width = %u: q_len[%u] = %d needs %d",
                          p->mask.tree_width, b, width, (width + 31) / 32);
    for (int32_t i = 0; i < width; i++)
        for (uint32_t bit = (uint32_t)width; bit < 32 * p->mask.tree_width; bit++)
            if (tree_row(batch, p, b, i)[bit / 32] >> bit % 32 & 1)
                return attnd_fail(err, ATTND_BAD_MASK,
                                  "mask.tree_words = bit %u in row %d of sequence %u: it has %d "
                                  "rows",
                                  bit, i, b, width);
    return ATTND_OK;
}

attnd_status ora_mask_check(const ora_batch *batch, const ora_problem *p, attnd_err *err)
{
    const ora_mask *mask = &p->mask;
    if (mask->kinds >= 2 * ORA_MASK_TREE)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.kinds = %#x: bits up to %#x", mask->kinds,
                          ORA_MASK_TREE);
    if ((mask->kinds & CUSTOM) == CUSTOM)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.kinds = %#x: bytes or bits, not both",
                          mask->kinds);
    if ((mask->kinds & ORA_MASK_WINDOW) && mask->window < 1)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.window = %d: at least 1", mask->window);
    if ((mask->kinds & ORA_MASK_CHUNK) && mask->chunk < 1)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.chunk = %d: at least 1", mask->chunk);
    if ((mask->kinds & ORA_MASK_VARIABLE) && (!mask->start || !mask->end))
        return attnd_fail(err, ATTND_BAD_MASK, "mask.%s = none: both ends are needed",
                          mask->start ? "end" : "start");
    if ((mask->kinds & CUSTOM) && !mask->custom)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.custom = none: a custom mask needs it");
    if (!(mask->kinds & ORA_MASK_TREE))
        return ATTND_OK;
    if (!mask->tree_words)
        return attnd_fail(err, ATTND_BAD_MASK, "mask.tree_words = none: a tree needs them");
    for (uint32_t b = p->n_contexts; b < p->n_seqs; b++)
        TRY(check_tree(batch, p, b, err));
    return ATTND_OK;
}
