/* pack.c: the arrays of a plan lie in host memory, each where its owner keeps it; here they are
 * put behind each other, to cross to the device in one copy.
 */
#include <string.h>

#include "kernels/cuda/cuda.h"

/* Counts when host is NULL. */
typedef struct packer {
    char *host, *device;
    size_t at;
} packer;

/* Where the array lies on the device; NULL stays NULL. */
static void *put(packer *to, const void *array, size_t bytes)
{
    if (!array)
        return NULL;
    size_t at = to->at;
    to->at += (bytes + 63) / 64 * 64;
    if (!to->host)
        return NULL;
    memcpy(to->host + at, array, bytes);
    return to->device + at;
}

#define PUT(field, n) out->field = put(to, in->field, (size_t)(n) * sizeof *in->field)

/* One behind the last packed token of any sequence. */
static int64_t n_rows_of(const ker_batch *b)
{
    int64_t n = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++)
        if (b->q_len[s] > 0 && b->q_first[s] + b->q_len[s] > n)
            n = b->q_first[s] + b->q_len[s];
    return n;
}

/* Entries of all tables that any sequence may need. */
static int64_t n_entries_of(const ker_problem *p)
{
    const ker_batch *b = &p->batch;
    int64_t n = 0;
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        int64_t end =
            b->block_first[s] + ((int64_t)b->kv_len[s] + p->kv.block_size - 1) / p->kv.block_size;
        if (b->kv_len[s] > 0 && end > n)
            n = end;
    }
    return n;
}

static void pack_batch(packer *to, const ker_problem *p, int64_t n_rows, ker_batch *out)
{
    const ker_batch *in = &p->batch;
    PUT(q_len, in->n_seqs);
    PUT(kv_len, in->n_seqs);
    PUT(q_first, in->n_seqs);
    PUT(kv_first, in->n_seqs);
    PUT(block_first, in->n_seqs);
    if (in->block_ids)
        PUT(block_ids, n_entries_of(p));
    PUT(positions, n_rows);
    PUT(rope_delta, in->n_seqs);
}

static void pack_rest(packer *to, const ker_problem *in, int64_t n_rows, ker_problem *out)
{
    PUT(append.slots, n_rows);
    if (in->rope.pairing != ATTND_ROPE_NONE) {
        PUT(rope.freq, in->rope.dim / 2);
        PUT(rope.cos_sin, n_rows * in->rope.dim);
    }
    if (in->mask.kinds & KER_MASK_VARIABLE) {
        PUT(mask.start, n_rows);
        PUT(mask.end, n_rows);
    }
    PUT(bias.alibi_slopes, in->n_heads);
    PUT(bias.sinks, in->n_heads);
}

/* Either pass. out is scratch when nothing is written. */
static void pack(packer *to, const ker_plan *plan, cuda_packed *out)
{
    const ker_problem *p = &plan->problem;
    int64_t n_rows = n_rows_of(&p->batch);
    out->problem = (cuda_problem){
        .p = *p, .group = p->n_heads / p->n_kv_heads, .partial_floats = ker_partial_floats(p)};
    pack_batch(to, p, n_rows, &out->problem.p.batch);
    pack_rest(to, p, n_rows, &out->problem.p);
    for (int i = 0; i < 2; i++) {
        const ker_part *part = &plan->part[i];
        out->items[i] = put(to, part->items, (size_t)part->n_items * sizeof *part->items);
        out->merges[i] = put(to, part->merges, (size_t)part->n_merges * sizeof *part->merges);
    }
}

size_t cuda_pack_bytes(const ker_plan *plan)
{
    packer to = {0};
    cuda_packed unused;
    pack(&to, plan, &unused);
    return to.at;
}

void cuda_pack(const ker_plan *plan, char *host, char *device, cuda_packed *out)
{
    packer to = {.host = host, .device = device};
    pack(&to, plan, out);
}
