/* chunks.c: cached prefixes in pieces (attention.md §11.6). */
#include <stdlib.h>

#include "tests/oracle/mla.h"

static bool make_room(ora_chunks *x)
{
    size_t n = (size_t)x->n_loops * x->n_seqs;
    x->len = calloc(n + 1, sizeof *x->len);
    x->off = calloc(n + 1, sizeof *x->off);
    x->cu = calloc(n + x->n_loops + 1, sizeof *x->cu);
    x->max = calloc((size_t)x->n_loops + 1, sizeof *x->max);
    x->op = calloc(n + x->n_seqs + 1, sizeof *x->op);
    return x->len && x->off && x->cu && x->max && x->op;
}

/* Walks the sequences in order and fills one buffer after the other. */
static void fill(ora_chunks *x, const int32_t *cached, int64_t chunk_tokens)
{
    uint32_t loop = 0;
    int64_t space = chunk_tokens;
    for (uint32_t b = 0; b < x->n_seqs; b++)
        for (int32_t done = 0; done < cached[b];) {
            if (space == 0) {
                loop++;
                space = chunk_tokens;
            }
            int32_t rest = cached[b] - done, n = rest < space ? rest : (int32_t)space;
            x->len[(size_t)loop * x->n_seqs + b] = n;
            x->off[(size_t)loop * x->n_seqs + b] = done;
            done += n;
            space -= n;
        }
}

static void sum_up(ora_chunks *x, const int32_t *cached)
{
    for (uint32_t loop = 0; loop < x->n_loops; loop++) {
        const int32_t *len = x->len + (size_t)loop * x->n_seqs;
        int32_t *cu = x->cu + (size_t)loop * (x->n_seqs + 1);
        uint8_t *op = x->op + (size_t)loop * x->n_seqs;
        for (uint32_t b = 0; b < x->n_seqs; b++) {
            cu[b + 1] = cu[b] + len[b];
            x->max[loop] = len[b] > x->max[loop] ? len[b] : x->max[loop];
            bool is_first = loop == 0 || *(len + b - x->n_seqs) == 0;
            op[b] = len[b] == 0 ? 0 : is_first ? 2 : 1;
        }
    }
    for (uint32_t b = 0; b < x->n_seqs; b++)
        x->op[(size_t)x->n_loops * x->n_seqs + b] = cached[b] == 0 ? 2 : 1;
}

attnd_status ora_chunks_make(const int32_t *cached, uint32_t n_seqs, int64_t chunk_tokens,
                             ora_chunks *out, attnd_err *err)
{
    *out = (ora_chunks){.n_seqs = n_seqs};
    if (chunk_tokens < 1)
        return attnd_fail(err, ATTND_BAD_LENGTH, "chunk_tokens = %lld: at least 1",
                          (long long)chunk_tokens);
    int64_t sum = 0;
    for (uint32_t b = 0; b < n_seqs; b++) {
        if (cached[b] < 0)
            return attnd_fail(err, ATTND_BAD_LENGTH, "cached[%u] = %d: at least 0", b, cached[b]);
        sum += cached[b];
    }
    out->n_loops = (uint32_t)((sum + chunk_tokens - 1) / chunk_tokens);
    if (!make_room(out)) {
        ora_chunks_fini(out);
        return attnd_fail(err, ATTND_NO_ROOM, "cached = %lld: no memory for their loops",
                          (long long)sum);
    }
    fill(out, cached, chunk_tokens);
    sum_up(out, cached);
    return ATTND_OK;
}

void ora_chunks_fini(ora_chunks *x)
{
    free(x->len);
    free(x->off);
    free(x->cu);
    free(x->max);
    free(x->op);
    *x = (ora_chunks){0};
}
