/* plan.c: problem → work split; host arithmetic, plain data.
 *
 * An item is up to KER_TILE_ROWS rows of one sequence and kv head over a range of keys:
 *
 *     keys of one sequence
 *     ├── split 0 ──┼── split 1 ──┼── split 2 ──┤      rows of a context are cut first; splits cut
 *     │ partial row │ partial row │ partial row │      what is still too long for the threads to
 *     └─────────────┴─────────────┴─────────────┴──▶   share, and merge in this order
 *
 * The longest item of a default cut takes a quarter of a thread's share, and no more work than
 * MAX_ITEM_TILES allow: keys × rows × (D + Dv), which is what others wait for. A batch-invariant
 * cut looks at nothing but the sequence itself: contexts stay whole, generations are cut at
 * multiples of a step that grows with their own length.
 */
#include "kernels/backend.h"

enum {
    ITEMS_A_THREAD = 4,
    MIN_SPLIT_TILES = 4,   /* shorter pieces cost more to merge than they win */
    TILE_OVERHEAD = 8,     /* of one step over a tile of keys, in rows */
    MAX_ITEM_TILES = 256,  /* of KER_TILE_ROWS rows of FULL_WIDTH: a few milliseconds of a thread */
    FULL_WIDTH = 256,      /* of q·k and p·v together, D + Dv; wider heads have shorter items */
    INVARIANT_STEP = 2048, /* keys */
    INVARIANT_MAX_SPLITS = 32,
};

/* The cut of one phase. Counts when items is NULL. */
typedef struct cutter {
    const ker_problem *problem;
    uint32_t group;     /* query heads of a kv head */
    int32_t row_tokens; /* tokens of an item */
    double max_cost;    /* of a default item, in rows × tiles */
    uint32_t n_splits;  /* 0: by cost or invariant */
    ker_item *items;
    ker_merge *merges;
    int64_t n_items, n_merges, n_partials;
} cutter;

/* Up to row_tokens rows of a sequence and the keys any of them sees. */
typedef struct row_tile {
    int32_t seq;
    int32_t row_first, n_rows;
    int32_t lo, hi; /* hi ≤ lo: none */
} row_tile;

static void see_keys(const ker_problem *p, row_tile *t)
{
    const ker_batch *b = &p->batch;
    int32_t q_len = b->q_len[t->seq], kv_len = b->kv_len[t->seq], lo, hi;
    int64_t token = b->q_first[t->seq];
    int32_t last = t->row_first + t->n_rows - 1;
    if (!(p->mask.kinds & KER_MASK_VARIABLE)) {
        /* Both bounds rise with the row. */
        ker_mask_bounds(&p->mask, q_len, kv_len, t->row_first, token + t->row_first, &t->lo, &hi);
        ker_mask_bounds(&p->mask, q_len, kv_len, last, token + last, &lo, &t->hi);
        return;
    }
    t->lo = kv_len;
    t->hi = 0;
    for (int32_t i = t->row_first; i <= last; i++) {
        ker_mask_bounds(&p->mask, q_len, kv_len, i, token + i, &lo, &hi);
        if (hi <= lo)
            continue;
        t->lo = lo < t->lo ? lo : t->lo;
        t->hi = hi > t->hi ? hi : t->hi;
    }
}

static int64_t n_tiles(const row_tile *t)
{
    if (t->hi <= t->lo)
        return 0;
    return ((int64_t)t->hi - 1) / KER_TILE_KEYS - t->lo / KER_TILE_KEYS + 1;
}

static double cost_of(const cutter *c, const row_tile *t)
{
    return (double)n_tiles(t) * ((double)t->n_rows * c->group + TILE_OVERHEAD);
}

/* Keys between two cuts of a batch-invariant generation. */
static int64_t invariant_step(int32_t kv_len)
{
    int64_t step = INVARIANT_STEP;
    while (step * INVARIANT_MAX_SPLITS < kv_len)
        step *= 2;
    return step;
}

static bool is_context(const cutter *c, const row_tile *t)
{
    return (uint32_t)t->seq < c->problem->batch.n_contexts;
}

static int64_t n_splits_of(const cutter *c, const row_tile *t)
{
    int64_t tiles = n_tiles(t);
    if (tiles <= 1)
        return 1;
    if (c->n_splits)
        return c->n_splits < tiles ? c->n_splits : tiles;
    if (c->problem->batch_invariant) {
        if (is_context(c, t))
            return 1;
        int64_t step = invariant_step(c->problem->batch.kv_len[t->seq]);
        return (t->hi - 1) / step - t->lo / step + 1;
    }
    int64_t most = tiles / MIN_SPLIT_TILES > 1 ? tiles / MIN_SPLIT_TILES : 1;
    double pieces = cost_of(c, t) / c->max_cost;
    if (pieces >= (double)most)
        return most;
    return (int64_t)pieces + ((double)(int64_t)pieces < pieces);
}

/* Where split s of n starts; s = n: where the last one ends. */
static int32_t split_start(const cutter *c, const row_tile *t, int64_t s, int64_t n)
{
    if (s == 0)
        return t->lo;
    if (s == n)
        return t->hi;
    if (!c->n_splits && c->problem->batch_invariant) {
        int64_t step = invariant_step(c->problem->batch.kv_len[t->seq]);
        return (int32_t)((t->lo / step + s) * step);
    }
    return (int32_t)((t->lo / KER_TILE_KEYS + n_tiles(t) * s / n) * KER_TILE_KEYS);
}

/* One row tile of one kv head: its items, and the merge when it is split. */
static void emit(cutter *c, const row_tile *t, int32_t kv_head, int64_t n)
{
    int64_t rows = (int64_t)t->n_rows * c->group;
    for (int64_t s = 0; s < n; s++) {
        bool empty = t->hi <= t->lo;
        c->items[c->n_items++] = (ker_item){
            .seq = t->seq,
            .kv_head = kv_head,
            .row_first = t->row_first,
            .n_rows = t->n_rows,
            .kv_first = empty ? 0 : split_start(c, t, s, n),
            .kv_end = empty ? 0 : split_start(c, t, s + 1, n),
            .partial = n > 1 ? c->n_partials + s * rows : -1,
        };
    }
    if (n > 1) {
        c->merges[c->n_merges++] = (ker_merge){
            .seq = t->seq,
            .kv_head = kv_head,
            .row_first = t->row_first,
            .n_rows = t->n_rows,
            .n_splits = (int32_t)n,
            .partial = c->n_partials,
        };
        c->n_partials += n * rows;
    }
}

/* Adds the row tile's items for every kv head to the counts; false on overflow. */
static bool count(cutter *c, const row_tile *t, int64_t n)
{
    int64_t heads = c->problem->n_kv_heads, items, partials;
    if (__builtin_mul_overflow(n, heads, &items) ||
        __builtin_add_overflow(c->n_items, items, &c->n_items))
        return false;
    if (n == 1)
        return true;
    c->n_merges += heads;
    return !__builtin_mul_overflow(items, (int64_t)t->n_rows * c->group, &partials) &&
           !__builtin_add_overflow(c->n_partials, partials, &c->n_partials);
}

/* The row tile k of sequence b, counted from the end: under a causal mask the longest first. */
static row_tile tile_at(const cutter *c, int32_t b, int32_t n_row_tiles, int32_t k)
{
    int32_t first = (n_row_tiles - 1 - k) * c->row_tokens;
    int32_t left = c->problem->batch.q_len[b] - first;
    row_tile t = {.seq = b, .row_first = first};
    t.n_rows = left < c->row_tokens ? left : c->row_tokens;
    see_keys(c->problem, &t);
    return t;
}

typedef struct seq_range {
    int32_t first, end;
} seq_range;

static seq_range seqs_of(const ker_problem *p, ker_phase phase)
{
    int32_t n_contexts = (int32_t)p->batch.n_contexts;
    if (phase == KER_CONTEXT)
        return (seq_range){0, n_contexts};
    return (seq_range){n_contexts, (int32_t)p->batch.n_seqs};
}

static int32_t n_row_tiles_of(const cutter *c, int32_t b)
{
    return (int32_t)(((int64_t)c->problem->batch.q_len[b] + c->row_tokens - 1) / c->row_tokens);
}

/* Counts (items NULL) or emits one phase; false on overflow. All row tiles of a kv head follow
 * each other, so that its keys are still in the cache. */
static bool cut(cutter *c, seq_range seqs)
{
    for (int32_t b = seqs.first; b < seqs.end; b++) {
        int32_t n_row_tiles = n_row_tiles_of(c, b);
        int32_t heads = c->items ? (int32_t)c->problem->n_kv_heads : 1;
        row_tile t = {0};
        int64_t n = 0;
        for (int32_t g = 0; g < heads; g++)
            for (int32_t k = 0; k < n_row_tiles; k++) {
                /* A single row tile is the same for every kv head. */
                if (g == 0 || n_row_tiles > 1) {
                    t = tile_at(c, b, n_row_tiles, k);
                    n = n_splits_of(c, &t);
                }
                if (c->items)
                    emit(c, &t, g, n);
                else if (!count(c, &t, n))
                    return false;
            }
    }
    return true;
}

/* What the items of a phase cost together, in rows × tiles. */
static double total_cost(const cutter *c, seq_range seqs)
{
    double total = 0;
    for (int32_t b = seqs.first; b < seqs.end; b++) {
        int32_t n_row_tiles = n_row_tiles_of(c, b);
        for (int32_t k = 0; k < n_row_tiles; k++) {
            row_tile t = tile_at(c, b, n_row_tiles, k);
            total += cost_of(c, &t) * c->problem->n_kv_heads;
        }
    }
    return total;
}

/* The most a default item may cost, in rows × tiles of the problem's width. */
static double most_cost(const ker_problem *p)
{
    double width = (double)p->head_dim + p->head_dim_v;
    double most = (double)MAX_ITEM_TILES * (KER_TILE_ROWS + TILE_OVERHEAD);
    return width > FULL_WIDTH ? most * FULL_WIDTH / width : most;
}

static cutter cutter_of(const ker_device *device, const ker_problem *p, uint32_t n_splits)
{
    uint32_t group = p->n_heads / p->n_kv_heads;
    cutter c = {
        .problem = p,
        .group = group,
        .row_tokens = group < KER_TILE_ROWS ? (int32_t)(KER_TILE_ROWS / group) : 1,
        .n_splits = n_splits,
        .max_cost = most_cost(p),
    };
    if (n_splits || p->batch_invariant)
        return c;
    ker_device_info info;
    ker_device_describe(device, &info);
    double total =
        total_cost(&c, seqs_of(p, KER_CONTEXT)) + total_cost(&c, seqs_of(p, KER_GENERATION));
    double share = total / ((double)info.n_threads * ITEMS_A_THREAD);
    if (share < c.max_cost)
        c.max_cost = share;
    return c;
}

/* Both phases counted: by phase, then together. */
typedef struct counts {
    int64_t n_items[2], n_merges[2], n_partials;
} counts;

static bool count_all(cutter c, counts *out)
{
    *out = (counts){0};
    for (int phase = 0; phase < 2; phase++) {
        c.n_items = c.n_merges = 0;
        if (!cut(&c, seqs_of(c.problem, (ker_phase)phase)))
            return false;
        out->n_items[phase] = c.n_items;
        out->n_merges[phase] = c.n_merges;
    }
    out->n_partials = c.n_partials;
    return true;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Bytes of a plan: the struct, then items and merges of each phase. False on overflow. */
static bool plan_bytes(const counts *n, size_t *out)
{
    size_t total = rounded(sizeof(ker_plan));
    for (int phase = 0; phase < 2; phase++) {
        size_t items, merges;
        if (__builtin_mul_overflow((size_t)n->n_items[phase], sizeof(ker_item), &items) ||
            __builtin_mul_overflow((size_t)n->n_merges[phase], sizeof(ker_merge), &merges) ||
            items > SIZE_MAX / 8 || merges > SIZE_MAX / 8)
            return false;
        total += rounded(items) + rounded(merges);
    }
    *out = total;
    return true;
}

/* Bytes of workspace; false on overflow. */
static bool workspace_bytes(const ker_problem *p, int64_t n_partials, size_t *out)
{
    size_t angles = 0, partials;
    size_t row = (size_t)ker_partial_floats(p) * sizeof(float);
    if (ker_makes_angles(p) &&
        (__builtin_mul_overflow((size_t)p->batch.n_tokens, (size_t)p->rope.dim * 4, &angles) ||
         angles > SIZE_MAX / 8))
        return false;
    if (__builtin_mul_overflow((size_t)n_partials, row, &partials))
        return false;
    return !__builtin_add_overflow(rounded(angles), partials, out);
}

size_t ker_plan_bytes(const ker_device *device, const ker_problem *problem)
{
    cutter c = cutter_of(device, problem, 0);
    counts n;
    size_t bytes;
    return count_all(c, &n) && plan_bytes(&n, &bytes) ? bytes : SIZE_MAX;
}

/* Counts, with longer items until the workspace suffices; an unsplit cut needs least. */
static attnd_status fit(const ker_device *device, cutter *c, counts *n, size_t *workspace,
                        attnd_err *err)
{
    const ker_problem *p = c->problem;
    ker_device_info info;
    ker_device_describe(device, &info);
    for (;;) {
        bool counted = count_all(*c, n);
        if (counted && workspace_bytes(p, n->n_partials, workspace) &&
            *workspace <= info.workspace_bytes)
            return ATTND_OK;
        if (c->n_splits || p->batch_invariant || (counted && n->n_partials == 0) ||
            c->max_cost > 1e30)
            break;
        c->max_cost *= 2;
    }
    return attnd_fail(err, ATTND_TOO_LARGE,
                      "batch.tokens = %lld: their angles and %lld partial rows do not fit the %zu "
                      "bytes of workspace of a launch",
                      (long long)p->batch.n_tokens, (long long)n->n_partials, info.workspace_bytes);
}

static void *carve(char **at, size_t bytes)
{
    void *here = *at;
    *at += rounded(bytes);
    return here;
}

static bool has_rows(const ker_problem *p, ker_phase phase)
{
    seq_range seqs = seqs_of(p, phase);
    for (int32_t b = seqs.first; b < seqs.end; b++)
        if (p->batch.q_len[b] > 0)
            return true;
    return false;
}

attnd_status ker_plan_make(const ker_device *device, const ker_problem *problem, uint32_t n_splits,
                           void *memory, size_t bytes, ker_plan **out, attnd_err *err)
{
    const ker_kernel *kernel[2] = {NULL, NULL};
    for (int phase = 0; phase < 2; phase++)
        if (has_rows(problem, (ker_phase)phase))
            TRY(ker_find(device, problem, (ker_phase)phase, &kernel[phase], err));
    cutter c = cutter_of(device, problem, n_splits);
    counts n;
    size_t workspace = 0, needed;
    TRY(fit(device, &c, &n, &workspace, err));
    if (!plan_bytes(&n, &needed) || needed > bytes)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "plan.bytes = %zu: a cut of %lld items does not fit", bytes,
                          (long long)(n.n_items[0] + n.n_items[1]));
    char *at = memory;
    ker_plan *plan = carve(&at, sizeof *plan);
    *plan = (ker_plan){.problem = *problem, .workspace_bytes = workspace};
    for (int phase = 0; phase < 2; phase++) {
        c.items = carve(&at, (size_t)n.n_items[phase] * sizeof *c.items);
        c.merges = carve(&at, (size_t)n.n_merges[phase] * sizeof *c.merges);
        c.n_items = c.n_merges = 0;
        cut(&c, seqs_of(problem, (ker_phase)phase));
        plan->part[phase] = (ker_part){kernel[phase], c.items, c.n_items, c.merges, c.n_merges};
    }
    plan->n_partials = c.n_partials;
    if (device->backend->plan_check)
        TRY(device->backend->plan_check(device, plan, err));
    *out = plan;
    return ATTND_OK;
}
