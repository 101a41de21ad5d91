/* test_ker_plan.c: a cut holds every row and every visible key exactly once, in any shape. */
#include "kernels/registry.h"
#include "tests/kernels/rig.h"

static ker_device *device; /* 4 threads, 16 MiB of workspace */

static int open_device(void **state)
{
    ker_device_options options = {.n_threads = 4, .n_slots = 1, .workspace_bytes = 16 << 20};
    return ker_device_open(&device, &options, NULL);
}

static int close_device(void **state)
{
    ker_device_close(device);
    return 0;
}

enum { MAX_SEQS = 65537 };

/* A problem without any memory behind its addresses: planning reads none. */
typedef struct shape {
    ker_problem problem;
    int32_t q_len[MAX_SEQS], kv_len[MAX_SEQS];
    int64_t q_first[MAX_SEQS];
    int32_t *start, *end;
} shape;

static shape *make_shape(uint32_t n_seqs, uint32_t n_contexts, uint32_t group, uint32_t n_kv_heads)
{
    static const int32_t no_blocks[1];
    static const int64_t no_first[1];
    static char byte;
    shape *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->problem = (ker_problem){
        .n_heads = group * n_kv_heads,
        .n_kv_heads = n_kv_heads,
        .head_dim = 128,
        .head_dim_v = 128,
        .dtype = ATTND_DTYPE_BF16,
        .kv = {.block_size = 16, .dtype = ATTND_DTYPE_BF16},
        .out = {.base = &byte},
        .mask = {.kinds = KER_MASK_CAUSAL},
        .batch = {.n_seqs = n_seqs,
                  .n_contexts = n_contexts,
                  .q_len = s->q_len,
                  .kv_len = s->kv_len,
                  .q_first = s->q_first,
                  .block_ids = no_blocks,
                  .block_first = no_first},
    };
    return s;
}

/* Sums after the lengths are set. */
static void settle(shape *s)
{
    s->problem.batch.n_tokens = 0;
    for (uint32_t b = 0; b < s->problem.batch.n_seqs; b++) {
        s->q_first[b] = s->problem.batch.n_tokens;
        s->problem.batch.n_tokens += s->q_len[b];
    }
}

/* The keys that rows of an item's tile see, from the bounds of each row. */
static void keys_of(const ker_problem *p, const ker_item *item, int32_t *lo, int32_t *hi)
{
    *lo = INT32_MAX;
    *hi = 0;
    for (int32_t i = item->row_first; i < item->row_first + item->n_rows; i++) {
        int32_t from, to, b = item->seq;
        ker_mask_bounds(&p->mask, p->batch.q_len[b], p->batch.kv_len[b], i, p->batch.q_first[b] + i,
                        &from, &to);
        if (to <= from)
            continue;
        *lo = from < *lo ? from : *lo;
        *hi = to > *hi ? to : *hi;
    }
}

/* Splits of one row tile follow each other in the plan: checks them, returns how many. */
static int64_t check_tile(const ker_plan *plan, const ker_part *part, int64_t at, int64_t *partial)
{
    const ker_problem *p = &plan->problem;
    const ker_item *item = &part->items[at];
    int64_t rows = (int64_t)item->n_rows * (p->n_heads / p->n_kv_heads), n = 1;
    while (at + n < part->n_items && item[n].seq == item->seq && item[n].kv_head == item->kv_head &&
           item[n].row_first == item->row_first)
        n++;
    int32_t lo, hi;
    keys_of(p, item, &lo, &hi);
    if (hi <= lo) {
        assert_int_equal(n, 1);
        assert_int_equal(item->kv_first, item->kv_end);
    } else {
        assert_true(item[0].kv_first <= lo);
        assert_true(p->mask.kinds & KER_MASK_CAUSAL ? item[n - 1].kv_end == hi
                                                    : item[n - 1].kv_end >= hi);
    }
    for (int64_t s = 0; s < n; s++) {
        assert_int_equal(item[s].n_rows, item->n_rows);
        if (n > 1)
            assert_true(item[s].kv_first < item[s].kv_end);
        if (s > 0) {
            assert_int_equal(item[s].kv_first, item[s - 1].kv_end);
            assert_int_equal(item[s].kv_first % KER_TILE_KEYS, 0);
        }
        assert_int_equal(item[s].partial, n > 1 ? *partial + s * rows : -1);
    }
    if (n > 1)
        *partial += n * rows;
    return n;
}

static void check_merges(const ker_part *part)
{
    int64_t at = 0;
    for (int64_t m = 0; m < part->n_merges; m++) {
        const ker_merge *merge = &part->merges[m];
        while (part->items[at].partial != merge->partial)
            at++;
        assert_int_equal(part->items[at].seq, merge->seq);
        assert_int_equal(part->items[at].kv_head, merge->kv_head);
        assert_int_equal(part->items[at].row_first, merge->row_first);
        assert_int_equal(part->items[at].n_rows, merge->n_rows);
        at += merge->n_splits;
    }
    int64_t n_split = 0, n_merged = 0;
    for (int64_t i = 0; i < part->n_items; i++)
        n_split += part->items[i].partial >= 0;
    for (int64_t m = 0; m < part->n_merges; m++)
        n_merged += part->merges[m].n_splits;
    assert_int_equal(n_split, n_merged);
}

/* Every row of every kv head once, each with all its keys. */
static void check_plan(const ker_plan *plan)
{
    const ker_problem *p = &plan->problem;
    int64_t rows_done = 0, partial = 0;
    unsigned char *seen = calloc((size_t)p->batch.n_tokens * p->n_kv_heads + 1, 1);
    assert_non_null(seen);
    for (int phase = 0; phase < 2; phase++) {
        const ker_part *part = &plan->part[phase];
        assert_true((part->n_items > 0) == (part->kernel != NULL));
        for (int64_t at = 0; at < part->n_items;) {
            const ker_item *item = &part->items[at];
            assert_true(((uint32_t)item->seq < p->batch.n_contexts) == (phase == KER_CONTEXT));
            for (int32_t i = item->row_first; i < item->row_first + item->n_rows; i++) {
                int64_t token = p->batch.q_first[item->seq] + i;
                unsigned char *mark = &seen[token * p->n_kv_heads + item->kv_head];
                assert_int_equal(*mark, 0);
                *mark = 1;
                rows_done++;
            }
            at += check_tile(plan, part, at, &partial);
        }
        check_merges(part);
    }
    assert_int_equal(rows_done, p->batch.n_tokens * p->n_kv_heads);
    assert_int_equal(partial, plan->n_partials);
    assert_true(plan->workspace_bytes >=
                (size_t)(plan->n_partials * ker_partial_floats(p)) * sizeof(float));
    free(seen);
}

/* Plans into exactly as many bytes as the header promises, checks, and again: the same plan. */
static ker_plan *plan_and_check(const ker_problem *p, uint32_t n_splits, void **memory)
{
    size_t bytes = ker_plan_bytes(device, p) * (n_splits ? n_splits + 1 : 1);
    char *twice = aligned_alloc(64, 2 * ((bytes + 63) / 64 * 64));
    ker_plan *plan, *again;
    attnd_err err = {0};
    assert_non_null(twice);
    memset(twice, 0, 2 * ((bytes + 63) / 64 * 64));
    if (ker_plan_make(device, p, n_splits, twice, bytes, &plan, &err))
        fail_msg("no plan: %s", err.text);
    check_plan(plan);
    assert_int_equal(
        ker_plan_make(device, p, n_splits, twice + (bytes + 63) / 64 * 64, bytes, &again, &err),
        ATTND_OK);
    for (int phase = 0; phase < 2; phase++) {
        const ker_part *a = &plan->part[phase], *b = &again->part[phase];
        assert_int_equal(a->n_items, b->n_items);
        assert_int_equal(a->n_merges, b->n_merges);
        assert_int_equal(memcmp(a->items, b->items, (size_t)a->n_items * sizeof *a->items), 0);
        assert_int_equal(memcmp(a->merges, b->merges, (size_t)a->n_merges * sizeof *a->merges), 0);
    }
    *memory = twice;
    return plan;
}

static void every_tile_is_cut_exactly_once(void **state)
{
    static const uint32_t groups[] = {1, 4, 7, 64, 71, 130};
    static const uint32_t kinds[] = {0, KER_MASK_CAUSAL, KER_MASK_CAUSAL | KER_MASK_WINDOW,
                                     KER_MASK_CAUSAL | KER_MASK_CHUNK, KER_MASK_VARIABLE};
    static const uint32_t splits[] = {0, 1, 2, 7, 8, 1000};
    ker_device *small = device;
    ker_device_options options = {.n_threads = 5, .n_slots = 1, .workspace_bytes = 4ul << 30};
    assert_int_equal(ker_device_open(&device, &options, NULL), ATTND_OK);
    for (uint64_t seed = 0; seed < 240; seed++) {
        uint64_t r = seed * 7919 + 13;
        shape *s = make_shape(1 + rig_random(&r) % 12, 0, groups[seed % 6],
                              (uint32_t)(1 + rig_random(&r) % 4));
        ker_problem *p = &s->problem;
        p->batch.n_contexts = (uint32_t)(rig_random(&r) % (p->batch.n_seqs + 1));
        for (uint32_t b = 0; b < p->batch.n_seqs; b++) {
            bool is_context = b < p->batch.n_contexts;
            s->q_len[b] = (int32_t)(rig_random(&r) % (is_context ? 300 : 4));
            s->kv_len[b] = (int32_t)(rig_random(&r) % (b % 3 ? 400 : 40000));
        }
        settle(s);
        p->mask = (ker_mask){.kinds = kinds[seed % 5], .window = 100, .chunk = 300};
        int32_t *bounds = calloc((size_t)p->batch.n_tokens * 2 + 1, sizeof *bounds);
        assert_non_null(bounds);
        for (int64_t t = 0; t < 2 * p->batch.n_tokens; t++)
            bounds[t] = (int32_t)(rig_random(&r) % 50000);
        p->mask.start = bounds;
        p->mask.end = bounds + p->batch.n_tokens;
        p->batch_invariant = seed % 7 == 0;
        void *memory;
        plan_and_check(p, splits[seed / 5 % 6], &memory);
        free(memory);
        free(bounds);
        free(s);
    }
    ker_device_close(device);
    device = small;
}

static void a_long_sequence_among_short_ones_is_shared_by_the_threads(void **state)
{
    shape *s = make_shape(9, 0, 4, 1);
    for (int b = 0; b < 9; b++) {
        s->q_len[b] = 1;
        s->kv_len[b] = b == 4 ? 100000 : 20;
    }
    settle(s);
    void *memory;
    ker_plan *plan = plan_and_check(&s->problem, 0, &memory);
    assert_int_equal(plan->part[KER_GENERATION].n_merges, 1);
    assert_in_range(plan->part[KER_GENERATION].merges[0].n_splits, 12, 20);
    free(memory);
    free(s);
}

static void what_fills_the_threads_is_not_split(void **state)
{
    shape *s = make_shape(64, 0, 4, 8);
    for (int b = 0; b < 64; b++) {
        s->q_len[b] = 1;
        s->kv_len[b] = 1024;
    }
    settle(s);
    void *memory;
    ker_plan *plan = plan_and_check(&s->problem, 0, &memory);
    assert_int_equal(plan->part[KER_GENERATION].n_items, 64 * 8);
    assert_int_equal(plan->n_partials, 0);
    free(memory);
    free(s);
}

/* Multiplications of the item that has most: keys × rows × (D + Dv). */
static double longest_item(const ker_plan *plan)
{
    const ker_problem *p = &plan->problem;
    double longest = 0;
    for (int phase = 0; phase < 2; phase++)
        for (int64_t i = 0; i < plan->part[phase].n_items; i++) {
            const ker_item *item = &plan->part[phase].items[i];
            double keys = item->kv_end - item->kv_first;
            double rows = (double)item->n_rows * (p->n_heads / p->n_kv_heads);
            double work = keys * rows * ((double)p->head_dim + p->head_dim_v);
            longest = work > longest ? work : longest;
        }
    return longest;
}

/* A context and a generation, both of them far longer than an item may be. */
static ker_plan *plan_of_width(uint32_t group, uint32_t head_dim, uint32_t head_dim_v,
                               void **memory)
{
    shape *s = make_shape(2, 1, group, 2);
    s->q_len[0] = (int32_t)(512 / group);
    s->q_len[1] = 1;
    s->kv_len[0] = s->kv_len[1] = 1 << 18;
    s->problem.head_dim = head_dim;
    s->problem.head_dim_v = head_dim_v;
    s->problem.mask.kinds = 0;
    settle(s);
    ker_plan *plan = plan_and_check(&s->problem, 0, memory);
    free(s);
    return plan;
}

static void items_of_wide_heads_take_no_more_work_than_those_of_narrow_ones(void **state)
{
    static const uint32_t widths[][2] = {{192, 128}, {256, 256}, {576, 512}, {1024, 1024}};
    static const uint32_t groups[] = {1, 8, 128};
    ker_device *small = device;
    ker_device_options options = {.n_threads = 4, .n_slots = 1, .workspace_bytes = 4ul << 30};
    assert_int_equal(ker_device_open(&device, &options, NULL), ATTND_OK);
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        void *memory, *wide_memory;
        double narrow = longest_item(plan_of_width(groups[g], 128, 128, &memory));
        /* The narrow ones are as long as an item may be: this problem has more than enough work. */
        assert_true(narrow > 0.7 * 256 * KER_TILE_KEYS * KER_TILE_ROWS * 256);
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            double wide =
                longest_item(plan_of_width(groups[g], widths[w][0], widths[w][1], &wide_memory));
            /* Cuts lie between tiles: each may be one off. */
            double rows = groups[g] > KER_TILE_ROWS ? groups[g] : KER_TILE_ROWS;
            double off = KER_TILE_KEYS * rows * (256.0 + widths[w][0] + widths[w][1]);
            if (wide > narrow + off)
                fail_msg("group %u, width %u + %u: %.3g is more than %.3g", groups[g], widths[w][0],
                         widths[w][1], wide, narrow);
            free(wide_memory);
        }
        /* Common heads are cut as ever: by rows and keys alone. */
        ker_plan *half = plan_of_width(groups[g], 64, 64, &wide_memory);
        assert_true(longest_item(half) == narrow / 2);
        free(wide_memory);
        free(memory);
    }
    ker_device_close(device);
    device = small;
}

static void empty_sequences_have_an_item_that_writes_them(void **state)
{
    shape *s = make_shape(4, 2, 2, 3);
    static const int32_t q_len[] = {4, 0, 1, 0}, kv_len[] = {0, 8, 0, 5};
    memcpy(s->q_len, q_len, sizeof q_len);
    memcpy(s->kv_len, kv_len, sizeof kv_len);
    settle(s);
    void *memory;
    ker_plan *plan = plan_and_check(&s->problem, 0, &memory);
    assert_int_equal(plan->part[KER_CONTEXT].n_items, 3);
    assert_int_equal(plan->part[KER_GENERATION].n_items, 3);
    free(memory);
    s->q_len[0] = s->q_len[2] = 0;
    settle(s);
    plan = plan_and_check(&s->problem, 0, &memory);
    assert_null(plan->part[0].kernel);
    assert_null(plan->part[1].kernel);
    free(memory);
    free(s);
}

static void the_longest_sequences_are_planned(void **state)
{
    shape *s = make_shape(3, 0, 8, 2);
    for (int b = 0; b < 3; b++) {
        s->q_len[b] = 1;
        s->kv_len[b] = INT32_MAX;
    }
    settle(s);
    void *memory;
    plan_and_check(&s->problem, 0, &memory);
    free(memory);
    plan_and_check(&s->problem, 8, &memory);
    free(memory);
    s->problem.batch_invariant = true;
    ker_plan *plan = plan_and_check(&s->problem, 0, &memory);
    assert_in_range(plan->part[KER_GENERATION].merges[0].n_splits, 16, 32);
    free(memory);
    free(s);
}

static void sixty_five_thousand_sequences_are_planned(void **state)
{
    shape *s = make_shape(MAX_SEQS, 0, 1, 1);
    for (int b = 0; b < MAX_SEQS; b++)
        s->q_len[b] = s->kv_len[b] = 1;
    settle(s);
    void *memory;
    ker_plan *plan = plan_and_check(&s->problem, 0, &memory);
    assert_int_equal(plan->part[KER_GENERATION].n_items, MAX_SEQS);
    free(memory);
    free(s);
}

static void a_default_cut_splits_less_where_the_workspace_is_small(void **state)
{
    ker_device *big = device;
    ker_device_options options = {.n_threads = 64, .n_slots = 1, .workspace_bytes = 64 << 10};
    shape *s = make_shape(1, 1, 4, 1);
    s->q_len[0] = 1000;
    s->kv_len[0] = 100000;
    settle(s);
    assert_int_equal(ker_device_open(&device, &options, NULL), ATTND_OK);
    void *memory;
    ker_plan *plan = plan_and_check(&s->problem, 0, &memory);
    assert_true(plan->workspace_bytes <= 64 << 10);
    free(memory);
    ker_device_close(device);
    device = big;
    plan = plan_and_check(&s->problem, 0, &memory);
    assert_true(plan->workspace_bytes > 64 << 10);
    free(memory);
    free(s);
}

static void more_workspace_than_there_is_is_refused(void **state)
{
    static const double freq[64];
    shape *s = make_shape(1, 1, 4, 8);
    ker_problem *p = &s->problem;
    s->q_len[0] = s->kv_len[0] = 50000;
    settle(s);
    p->rope = (ker_rope){.pairing = ATTND_ROPE_NEOX, .dim = 128, .freq = freq, .amplitude = 1};
    size_t bytes = ker_plan_bytes(device, p);
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    ker_plan *plan = NULL;
    attnd_err err = {0};
    assert_int_equal(ker_plan_make(device, p, 0, memory, bytes, &plan, &err),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_TOO_LARGE);
    assert_string_equal(err.text, "batch.tokens = 50000: their angles and 0 partial rows do not "
                                  "fit the 16777216 bytes of workspace of a launch");
    assert_null(plan);
    p->batch.n_tokens = INT64_MAX / 2;
    assert_int_equal(ker_plan_make(device, p, 0, memory, bytes, &plan, &err),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_TOO_LARGE);
    free(memory);
    free(s);
}

static void memory_that_is_too_small_is_refused(void **state)
{
    shape *s = make_shape(2, 0, 4, 8);
    for (int b = 0; b < 2; b++) {
        s->q_len[b] = 1;
        s->kv_len[b] = 10000;
    }
    settle(s);
    size_t bytes = ker_plan_bytes(device, &s->problem);
    void *memory = aligned_alloc(64, bytes);
    ker_plan *plan = NULL;
    attnd_err err = {0};
    char text[128];
    memset(memory, 0x5A, bytes);
    assert_int_equal(ker_plan_make(device, &s->problem, 100, memory, bytes, &plan, &err),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_TOO_LARGE);
    snprintf(text, sizeof text, "plan.bytes = %zu: a cut of 1600 items does not fit", bytes);
    assert_string_equal(err.text, text);
    assert_null(plan);
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((unsigned char *)memory)[i], 0x5A);
    free(memory);
    free(s);
}

static void what_no_kernel_serves_is_not_planned(void **state)
{
    shape *s = make_shape(1, 0, 1, 1);
    s->q_len[0] = s->kv_len[0] = 1;
    settle(s);
    s->problem.mask.kinds = KER_MASK_TOPK;
    char memory[4096] __attribute__((aligned(64)));
    ker_plan *plan = NULL;
    attnd_err err = {0};
    assert_int_equal(ker_plan_make(device, &s->problem, 0, memory, sizeof memory, &plan, &err),
                     ATTND_UNIMPLEMENTED);
    assert_int_equal(err.reason, ATTND_UNSUPPORTED);
    assert_int_equal(strncmp(err.text, "mask = topk: ", 13), 0);
    assert_null(plan);
    free(s);
}

/* The items of one sequence, moved to sequence 0. */
static int64_t items_of(const ker_plan *plan, int32_t seq, ker_item *out)
{
    int64_t n = 0;
    for (int phase = 0; phase < 2; phase++)
        for (int64_t i = 0; i < plan->part[phase].n_items; i++)
            if (plan->part[phase].items[i].seq == seq) {
                out[n] = plan->part[phase].items[i];
                out[n].seq = 0;
                out[n].partial = 0;
                n++;
            }
    return n;
}

static void a_batch_invariant_cut_looks_at_its_sequence_alone(void **state)
{
    static ker_item alone[4096], among[4096];
    for (int32_t kv_len = 1; kv_len < 300000; kv_len = kv_len * 3 + 1) {
        shape *s = make_shape(1, 0, 4, 2);
        s->problem.batch_invariant = true;
        s->q_len[0] = 1;
        s->kv_len[0] = kv_len;
        settle(s);
        void *memory;
        int64_t n = items_of(plan_and_check(&s->problem, 0, &memory), 0, alone);
        free(memory);
        s->problem.batch.n_seqs = 40;
        for (int b = 0; b < 40; b++) {
            s->q_len[b] = 1 + b % 3;
            s->kv_len[b] = b * 977 + 3;
        }
        s->q_len[17] = 1;
        s->kv_len[17] = kv_len;
        settle(s);
        assert_int_equal(items_of(plan_and_check(&s->problem, 0, &memory), 17, among), n);
        assert_int_equal(memcmp(alone, among, (size_t)n * sizeof *alone), 0);
        free(memory);
        free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_is_cut_exactly_once),
        cmocka_unit_test(a_long_sequence_among_short_ones_is_shared_by_the_threads),
        cmocka_unit_test(what_fills_the_threads_is_not_split),
        cmocka_unit_test(items_of_wide_heads_take_no_more_work_than_those_of_narrow_ones),
        cmocka_unit_test(empty_sequences_have_an_item_that_writes_them),
        cmocka_unit_test(the_longest_sequences_are_planned),
        cmocka_unit_test(sixty_five_thousand_sequences_are_planned),
        cmocka_unit_test(a_default_cut_splits_less_where_the_workspace_is_small),
        cmocka_unit_test(more_workspace_than_there_is_is_refused),
        cmocka_unit_test(memory_that_is_too_small_is_refused),
        cmocka_unit_test(what_no_kernel_serves_is_not_planned),
        cmocka_unit_test(a_batch_invariant_cut_looks_at_its_sequence_alone),
    };
    return cmocka_run_group_tests_name("ker_plan", tests, open_device, close_device);
}
