/* items.c: the keys that one row and kv head see, as a list. */
#include "tests/oracle/items.h"

#include <stdlib.h>
#include <string.h>

/* Places before those of the blocks left out and of the second pool. */
static int64_t list_length(const ora_problem *p, uint32_t b, uint32_t g)
{
    const ora_sparse *sparse = &p->sparse;
    if (sparse->pages)
        return sparse->page_keys[(size_t)b * p->n_kv_heads + g];
    return sparse->topk ? (int64_t)sparse->topk_width : p->kv_len[b];
}

attnd_status ora_items_open(ora_items *items, const ora_problem *p, attnd_err *err)
{
    *items = (ora_items){.room = 1};
    for (uint32_t b = 0; b < p->n_seqs; b++)
        for (uint32_t g = 0; g < p->n_kv_heads; g++) {
            int64_t n = list_length(p, b, g) + p->sparse.n_kv_blocks + p->sparse.second_width;
            items->room = n > items->room ? n : items->room;
        }
    items->item = calloc((size_t)items->room, sizeof *items->item);
    if (!items->item)
        return attnd_fail(err, ATTND_NO_ROOM, "kv_len = %lld: no memory for their list",
                          (long long)items->room);
    return ATTND_OK;
}

void ora_items_close(ora_items *items)
{
    free(items->item);
    *items = (ora_items){0};
}

bool ora_items_per_head(const ora_problem *p)
{
    return p->sparse.pages || (p->sparse.block_kv > 0 && p->sparse.n_heads > 1);
}

void ora_items_add(ora_items *items, const ora_problem *p, ora_item item)
{
    if (item.place >= p->key_from && (p->key_to == 0 || item.place < p->key_to))
        items->item[items->n++] = item;
}

/* §20: the sequence whose page list holds key j of beam b. */
static attnd_status beam_of(const ora_problem *p, uint32_t b, int64_t j, uint32_t *source,
                            attnd_err *err)
{
    const ora_beams *beams = &p->beams;
    *source = b;
    if (beams->width == 0)
        return ATTND_OK;
    uint32_t request = b / beams->width;
    int32_t beam = j < beams->prompt_len[request] ? 0 : beams->ind[(size_t)b * beams->max_len + j];
    if (beam < 0 || (uint32_t)beam >= beams->width)
        return attnd_fail(err, ATTND_BAD_BLOCK, "beams.ind[%u][%u][%lld] = %d: one of %u beams",
                          request, b % beams->width, (long long)j, beam, beams->width);
    *source = request * beams->width + (uint32_t)beam;
    if (j >= p->kv_len[*source])
        return attnd_fail(err, ATTND_BAD_BLOCK, "beams.ind[%u][%u][%lld] = %d: it has %d keys",
                          request, b % beams->width, (long long)j, beam, p->kv_len[*source]);
    return ATTND_OK;
}

attnd_status ora_items_add_key(const ora_batch *batch, const ora_problem *p, uint32_t b, int64_t j,
                               int64_t place, ora_items *items, attnd_err *err)
{
    if (place < p->key_from || (p->key_to > 0 && place >= p->key_to))
        return ATTND_OK;
    uint32_t source;
    ora_place at;
    TRY(beam_of(p, b, j, &source, err));
    TRY(ora_kv_find(batch, p, source, j, &at, err));
    ora_items_add(
        items, p,
        (ora_item){.kv = at.kv, .slot = at.slot, .place = place, .key = ora_batch_key_index(p, j)});
    return ATTND_OK;
}

static attnd_status add_every_key(const ora_batch *batch, const ora_problem *p, uint32_t b,
                                  int32_t i, uint32_t g, ora_items *items, attnd_err *err)
{
    for (int64_t j = 0; j < p->kv_len[b]; j++)
        if (ora_batch_sees(batch, p, b, i, j) && ora_sparse_allows(p, b, i, g, j))
            TRY(ora_items_add_key(batch, p, b, j, j, items, err));
    return ATTND_OK;
}

attnd_status ora_items_find(const ora_batch *batch, const ora_problem *p, uint32_t b, int32_t i,
                            uint32_t g, ora_items *items, attnd_err *err)
{
    items->n = 0;
    if (p->sparse.pages)
        TRY(ora_sparse_pages(p, b, g, items, err));
    else if (p->sparse.topk)
        TRY(ora_sparse_topk(batch, p, b, i, g, items, err));
    else
        TRY(add_every_key(batch, p, b, i, g, items, err));
    int64_t first = list_length(p, b, g);
    ora_sparse_proxies(p, b, i, g, first, items);
    ora_sparse_second(batch, p, b, i, first + p->sparse.n_kv_blocks, items);
    return ATTND_OK;
}

void ora_item_load(const ora_problem *p, const ora_item *item, int plane, uint32_t b, uint32_t g,
                   double *x)
{
    if (item->kv) {
        ora_kv_load(p, item->kv, plane, b, g, item->slot, x);
        return;
    }
    size_t width = plane ? p->head_dim_v : p->head_dim;
    size_t row = ((size_t)b * p->n_kv_heads + g) * p->sparse.n_kv_blocks + (size_t)item->slot;
    memcpy(x, (plane ? p->sparse.proxy_v : p->sparse.proxy_k) + row * width, width * sizeof *x);
}
