/* cover.c: few rows that hold every pair of levels of any two factors.
 *
 * Greedy: a row starts from a pair not held yet, and each further factor, in random order, takes
 * the level that makes the most new pairs with those chosen; of several such rows the best stays.
 */
#include "tests/kernels/cover.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { N_CANDIDATES = 6 };

typedef struct search {
    const cover *c;
    uint64_t random;
    /* open[f][a][g]: bit b is set while level a of f and level b of g, f < g, are in no row. */
    uint32_t open[COVER_MAX_FACTORS][COVER_MAX_LEVELS][COVER_MAX_FACTORS];
    size_t n_open;
} search;

static uint32_t any_below(search *s, uint32_t n)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((s->random >> 33) % n);
}

static bool fits(const cover *c, const int *row)
{
    return !c->fits || c->fits(c->context, row);
}

static bool is_open(const search *s, int f, int a, int g, int b)
{
    return f < g ? s->open[f][a][g] >> b & 1 : s->open[g][b][f] >> a & 1;
}

static void open_pairs(search *s)
{
    const cover *c = s->c;
    int row[COVER_MAX_FACTORS];
    memset(row, -1, sizeof row);
    for (int f = 0; f < c->n_factors; f++)
        for (int g = f + 1; g < c->n_factors; g++) {
            for (int a = 0; a < c->n_levels[f]; a++)
                for (int b = 0; b < c->n_levels[g]; b++) {
                    row[f] = a;
                    row[g] = b;
                    if (!fits(c, row))
                        continue;
                    s->open[f][a][g] |= 1u << b;
                    s->n_open++;
                }
            row[f] = row[g] = -1;
        }
}

/* New pairs of level a of factor f with what the row holds. */
static size_t gain(const search *s, const int *row, int f, int a)
{
    size_t n = 0;
    for (int g = 0; g < s->c->n_factors; g++)
        n += g != f && row[g] >= 0 && is_open(s, f, a, g, row[g]);
    return n;
}

/* The n-th open pair, into the row. */
static void start_with(search *s, int *row)
{
    size_t n = any_below(s, (uint32_t)s->n_open);
    for (int f = 0; f < s->c->n_factors; f++)
        for (int a = 0; a < s->c->n_levels[f]; a++)
            for (int g = f + 1; g < s->c->n_factors; g++) {
                size_t here = (size_t)__builtin_popcount(s->open[f][a][g]);
                if (n >= here) {
                    n -= here;
                    continue;
                }
                uint32_t bits = s->open[f][a][g];
                while (n--)
                    bits &= bits - 1;
                row[f] = a;
                row[g] = __builtin_ctz(bits);
                return;
            }
}

/* Fills a row; returns its new pairs. */
static size_t fill(search *s, int *row)
{
    const cover *c = s->c;
    int order[COVER_MAX_FACTORS];
    size_t total = 1;
    memset(row, -1, COVER_MAX_FACTORS * sizeof *row);
    start_with(s, row);
    for (int i = 0; i < c->n_factors; i++) {
        int j = (int)any_below(s, (uint32_t)i + 1);
        order[i] = i;
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < c->n_factors; i++) {
        int f = order[i], best = -1, first = (int)any_below(s, (uint32_t)c->n_levels[f]);
        size_t most = 0;
        if (row[f] >= 0)
            continue;
        for (int k = 0; k < c->n_levels[f]; k++) {
            int a = (first + k) % c->n_levels[f];
            row[f] = a;
            size_t n = fits(c, row) ? gain(s, row, f, a) + 1 : 0;
            if (n > most) {
                most = n;
                best = a;
            }
        }
        row[f] = best;
        if (best < 0)
            return 0;
        total += most - 1;
    }
    return total;
}

/* Closes the pairs of a row. */
static size_t close_pairs(search *s, const int *row)
{
    size_t n = 0;
    for (int f = 0; f < s->c->n_factors; f++)
        for (int g = f + 1; g < s->c->n_factors; g++)
            if (is_open(s, f, row[f], g, row[g])) {
                s->open[f][row[f]][g] &= ~(1u << row[g]);
                n++;
            }
    return n;
}

cover_rows cover_make(const cover *c, uint64_t seed)
{
    cover_rows rows = {0};
    search *s = calloc(1, sizeof *s);
    if (!s)
        return rows;
    *s = (search){.c = c, .random = seed};
    open_pairs(s);
    rows.n_pairs = s->n_open;
    while (s->n_open) {
        int best[COVER_MAX_FACTORS], row[COVER_MAX_FACTORS];
        size_t most = 0;
        for (int i = 0; i < N_CANDIDATES || most == 0; i++) {
            assert(i < 10000); /* fits() leaves no way on */
            size_t n = fill(s, row);
            if (n > most) {
                most = n;
                memcpy(best, row, sizeof best);
            }
        }
        void *grown = realloc(rows.row, (rows.n + 1) * sizeof *rows.row);
        if (!grown)
            break;
        rows.row = grown;
        memcpy(rows.row[rows.n++], best, sizeof best);
        s->n_open -= close_pairs(s, best);
    }
    free(s);
    return rows;
}

void cover_free(cover_rows *rows)
{
    free(rows->row);
    *rows = (cover_rows){0};
}
