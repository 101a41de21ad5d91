/* tile.c: one tile of query rows and keys: skipped, or added to the running streams. */
#include "tests/oracle/tile.h"

#include <math.h>

/* The higher one; NaN when either is. */
static double higher(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* The first item at this place or behind it: places rise along the list. */
static int64_t first_at(const ora_items *items, int64_t place)
{
    int64_t low = 0, high = items->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (items->item[middle].place < place)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The maximum of every line over its part of the tile; false: no line sees a key. */
static bool find_maxima(const ora_tile *t, ora_tile_scratch *s)
{
    bool any = false;
    for (int32_t r = 0; r < t->n_rows; r++) {
        const ora_items *items = &s->items[r];
        int64_t from = first_at(items, t->from), to = first_at(items, t->to);
        any = any || from < to;
        for (uint32_t hh = t->head; hh < t->end_head; hh++) {
            size_t line = (size_t)r * s->group + hh;
            s->x[line] = -INFINITY;
            for (int64_t n = from; n < to; n++)
                s->x[line] = higher(s->x[line], s->scores[line * s->room + n]);
        }
    }
    return any;
}

/* exp(x - M) of a line; nothing is 0 beside anything. */
static double weight_of(double x, double top)
{
    return x == -INFINITY ? 0 : exp(x - top);
}

/* §16.1: is every line's best key too light? */
static bool may_skip(const ora_tile *t, const ora_tile_scratch *s, ora_tile_counts *counts)
{
    if (t->lambda == 0 || t->is_first)
        return false;
    double heaviest = 0;
    for (int32_t r = 0; r < t->n_rows; r++)
        for (uint32_t hh = t->head; hh < t->end_head; hh++) {
            size_t line = (size_t)r * s->group + hh;
            heaviest = higher(heaviest, weight_of(s->x[line], s->top[line]) / t->lambda);
        }
    if (fabs(heaviest - 1) < counts->nearest)
        counts->nearest = fabs(heaviest - 1);
    return heaviest < 1;
}

/* §21.2: do all lines keep the maximum they have? */
static bool keeps_maxima(const ora_tile *t, const ora_tile_scratch *s)
{
    for (int32_t r = 0; r < t->n_rows; r++)
        for (uint32_t hh = t->head; hh < t->end_head; hh++) {
            size_t line = (size_t)r * s->group + hh;
            double next = higher(s->m[line], s->x[line]);
            if (next == -INFINITY)
                continue;
            if (!((next - s->m[line]) * M_LOG2E <= t->tiling->lazy_tau))
                return false;
        }
    return true;
}

/* m ← m', what was summed so far in units of it. */
static void rescale(const ora_tile *t, ora_tile_scratch *s)
{
    size_t Dv = t->p->head_dim_v;
    for (int32_t r = 0; r < t->n_rows; r++)
        for (uint32_t hh = t->head; hh < t->end_head; hh++) {
            size_t line = (size_t)r * s->group + hh;
            double next = higher(s->m[line], s->x[line]);
            if (next == -INFINITY)
                continue;
            double c = s->m[line] == -INFINITY ? 0 : exp(s->m[line] - next);
            s->m[line] = next;
            s->l[line] *= c;
            for (size_t d = 0; d < Dv; d++)
                s->o[line * Dv + d] *= c;
        }
}

static void add_keys(const ora_tile *t, ora_tile_scratch *s)
{
    size_t Dv = t->p->head_dim_v;
    for (int32_t r = 0; r < t->n_rows; r++) {
        const ora_items *items = &s->items[r];
        for (int64_t n = first_at(items, t->from); n < first_at(items, t->to); n++) {
            ora_item_load(t->p, &items->item[n], 1, t->b, t->g, s->v);
            ora_sage_v(&s->sage, t->g, s->v);
            for (uint32_t hh = t->head; hh < t->end_head; hh++) {
                size_t line = (size_t)r * s->group + hh;
                if (s->m[line] == -INFINITY)
                    continue;
                double weight = exp(s->scores[line * s->room + n] - s->m[line]);
                s->l[line] += weight;
                for (size_t d = 0; d < Dv; d++)
                    s->o[line * Dv + d] += weight * s->v[d];
            }
        }
    }
}

bool ora_tile_visit(const ora_tile *t, ora_tile_scratch *s, ora_tile_counts *counts)
{
    if (!find_maxima(t, s))
        return false;
    counts->total++;
    if (may_skip(t, s, counts)) {
        counts->skipped++;
        return true;
    }
    if (t->is_first || !keeps_maxima(t, s))
        rescale(t, s);
    add_keys(t, s);
    for (int32_t r = 0; r < t->n_rows; r++)
        for (uint32_t hh = t->head; hh < t->end_head; hh++) {
            size_t line = (size_t)r * s->group + hh;
            s->top[line] = higher(s->top[line], s->x[line]);
        }
    return true;
}
