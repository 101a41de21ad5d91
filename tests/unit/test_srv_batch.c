/* test_srv_batch.c: a batch's lengths, slots and tables are refused by name or become the
 * problem's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/batch.h"

enum { N_BLOCKS = 8, T = 4 };

/* One session, one model with one group of N_BLOCKS blocks of T tokens, one request. */
typedef struct fixture {
    srv_engine engine;
    srv_session session;
    srv_model model;
    srv_group group;
    srv_request request;
    msg_batch msg;
    msg_table table;
    ker_mask mask;
    srv_batch batch;
    attnd_err err;
} fixture;

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    attnd_err err;
    f->engine.limits = (msg_limits){.max_tokens = 64, .max_sequences = 16};
    assert_int_equal(kv_pool_open(&f->group.pool, "main", N_BLOCKS, KV_OWNER_CLIENT, &err), 0);
    strcpy(f->group.name, "main");
    kv_layer_shape shape = {1, 8, 8};
    assert_int_equal(kv_geometry_make(&f->group.geometry, T, ATTND_DTYPE_F32, ATTND_LAYOUT_HND,
                                      &shape, 1, NULL, &err),
                     0);
    f->group.n_blocks = N_BLOCKS;
    f->group.max_kv_len = 100;
    f->group.marks = calloc(N_BLOCKS, sizeof *f->group.marks);
    f->model.groups = &f->group;
    f->model.n_groups = 1;
    f->request.session = &f->session;
    f->mask.kinds = KER_MASK_CAUSAL;
    assert_int_equal(msg_arena_init(&f->request.arena, 1 << 20, &err), 0);
    f->msg.tables = &f->table;
    f->msg.n_tables = 1;
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    kv_pool_close(f->group.pool);
    free(f->group.marks);
    msg_arena_fini(&f->request.arena);
    free(f);
    return 0;
}

static msg_ints inline_ints(const int32_t *values, size_t n)
{
    return (msg_ints){.given = true, .data = (const uint8_t *)values, .bytes = n * sizeof *values};
}

#define INTS(...)                                                                                  \
    inline_ints((const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

/* Reads the batch; with_keys: k and v come with the call. */
static attnd_status read_batch(fixture *f, bool with_keys)
{
    f->err = (attnd_err){.status = ATTND_OK};
    msg_arena *arena = &f->request.arena;
    TRY(srv_batch_read(&f->engine, &f->request, arena, &f->msg, &f->model, 0, &f->batch, &f->err));
    return srv_batch_check(&f->engine, arena, &f->batch, &f->model, 0, &f->mask, with_keys,
                           &f->err);
}

static void expect_refusal(fixture *f, bool with_keys, attnd_reason reason, const char *text)
{
    attnd_status status = read_batch(f, with_keys);
    assert_string_equal(f->err.text, text);
    assert_int_equal(f->err.reason, reason);
    assert_int_equal(status, attnd_reason_status(reason));
}

static void a_good_batch_becomes_the_problems(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->n_contexts = 1;
    batch->q_lens = INTS(5, 1);
    batch->kv_lens = INTS(5, 4);
    f->table.block_ids = INTS(7, 0, 3);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    ker_problem problem = {.n_heads = 1};
    srv_batch_fill(&f->batch, 0, &problem);
    const ker_batch *b = &problem.batch;
    assert_int_equal(b->n_seqs, 2);
    assert_int_equal(b->n_contexts, 1);
    assert_int_equal(b->n_tokens, 6);
    assert_int_equal(b->q_first[1], 5);
    assert_int_equal(b->block_first[1], 2);
    assert_int_equal(b->block_ids[2], 3);
    assert_null(b->positions);
    assert_int_equal(problem.mask.kinds, KER_MASK_CAUSAL);
}

static void lengths_are_checked(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(1, -1);
    batch->kv_lens = INTS(1, 1);
    expect_refusal(f, false, ATTND_BAD_LENGTH, "batch.q_lens[1] = -1: not negative");
    batch->q_lens = INTS(1, 1);
    batch->kv_lens = INTS(1, -2147483647 - 1);
    expect_refusal(f, false, ATTND_BAD_LENGTH, "batch.kv_lens[1] = -2147483648: not negative");
    batch->kv_lens = INTS(1);
    expect_refusal(f, false, ATTND_BAD_LENGTH, "batch.kv_lens = 1 entries: 2 are needed");
    batch->kv_lens = INTS(1, 101);
    expect_refusal(f, false, ATTND_KV_LEN_EXCEEDS_POOL,
                   "batch.kv_lens[1] = 101: pool \"main\" holds sequences of at most 100");
    batch->kv_lens = INTS(1, 2147483647);
    expect_refusal(f, false, ATTND_KV_LEN_EXCEEDS_POOL,
                   "batch.kv_lens[1] = 2147483647: pool \"main\" holds sequences of at most 100");
    batch->q_lens = INTS(60, 60);
    batch->kv_lens = INTS(60, 60);
    expect_refusal(f, false, ATTND_TOO_LARGE,
                   "batch.q_lens[1] = 60: a call has at most 64 tokens (limits.max_tokens)");
    batch->q_lens = INTS(2147483647, 2147483647);
    expect_refusal(
        f, false, ATTND_TOO_LARGE,
        "batch.q_lens[0] = 2147483647: a call has at most 64 tokens (limits.max_tokens)");
    batch->q_lens.bytes = 7;
    expect_refusal(f, false, ATTND_BAD_LENGTH,
                   "batch.q_lens = 7 bytes: int32 values, four bytes each");
    batch->q_lens = INTS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    expect_refusal(f, false, ATTND_TOO_LARGE, "batch.q_lens = 17 entries: at most 16");
    batch->q_lens = INTS(2);
    batch->kv_lens = INTS(1);
    expect_refusal(f, false, ATTND_BAD_LENGTH,
                   "batch.kv_lens[0] = 1: a generation sees at least its own 2 tokens");
    batch->n_contexts = 1;
    f->table.block_ids = INTS(0);
    expect_refusal(f, true, ATTND_BAD_LENGTH,
                   "batch.kv_lens[0] = 1: it counts the 2 tokens this call appends");
    batch->n_contexts = 2;
    expect_refusal(f, false, ATTND_BAD_PHASE, "batch.n_contexts = 2: the batch has 1 sequences");
}

static void a_context_may_have_more_queries_than_keys_when_it_stores_nothing(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->n_contexts = 1;
    batch->q_lens = INTS(5);
    batch->kv_lens = INTS(2);
    f->table.block_ids = INTS(1);
    assert_int_equal(read_batch(f, false), ATTND_OK);
}

static void a_padding_row_needs_no_table(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(1, 1);
    batch->kv_lens = INTS(3, 0);
    batch->slots = INTS(2, -1);
    f->table.block_ids = INTS(0);
    assert_int_equal(read_batch(f, true), ATTND_OK);
}

static void needed_entries_name_blocks_of_the_pool(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(1, 1);
    batch->kv_lens = INTS(4, 8);
    f->table.block_ids = INTS(0, 1, 8);
    expect_refusal(
        f, false, ATTND_BAD_BLOCK,
        "batch.tables[0].block_ids[2] = 8: sequence 1 needs it, pool \"main\" has blocks "
        "0..7");
    f->table.block_ids = INTS(0, -1, 2);
    expect_refusal(f, false, ATTND_BAD_BLOCK,
                   "batch.tables[0].block_ids[1] = -1: sequence 1 needs it, pool \"main\" has "
                   "blocks 0..7");
    f->table.block_ids = INTS(0, 1);
    expect_refusal(f, false, ATTND_BAD_LENGTH,
                   "batch.tables[0].block_ids = 2 entries: 3 are needed");
    f->table.width = 1;
    expect_refusal(f, false, ATTND_KV_LEN_EXCEEDS_POOL,
                   "batch.kv_lens[1] = 8: a table of width 1 holds 4 tokens");
    f->table = (msg_table){.group = 1};
    expect_refusal(f, false, ATTND_BAD_GEOMETRY,
                   "batch.tables[0].group = 1: the layer lies in group 0");
    batch->n_tables = 0;
    expect_refusal(f, false, ATTND_BAD_GEOMETRY, "batch.tables: the layer's group 0 has none");
}

static void entries_behind_a_window_may_be_anything(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    f->mask.kinds |= KER_MASK_WINDOW;
    f->mask.window = 4;
    batch->q_lens = INTS(1);
    batch->kv_lens = INTS(12);
    f->table.block_ids = INTS(-1, 2147483647, 3);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    f->mask.window = 5;
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.tables[0].block_ids[1] = 2147483647: sequence 0 needs it, pool \"main\" "
                   "has blocks 0..7");
}

static void two_tokens_never_share_a_slot(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(1, 1);
    batch->kv_lens = INTS(1, 1);
    f->table.block_ids = INTS(5, 5);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.tables[0].block_ids[1] = 5: tokens 0 and 1 of this call would be stored "
                   "in one slot");
    batch->slots = INTS(9, 9);
    f->table.block_ids = INTS(5, 6);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.slots[1] = 9: tokens 0 and 1 of this call would be stored in one slot");
    batch->slots = INTS(9, 32);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.slots[1] = 32: pool \"main\" has slots 0..31, -1 for nowhere");
    batch->slots = INTS(9, -2);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.slots[1] = -2: pool \"main\" has slots 0..31, -1 for nowhere");
}

static void the_first_token_that_meets_another_is_named(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(4, 4);
    batch->kv_lens = INTS(4, 4);
    f->table.block_ids = INTS(0, 1);
    batch->slots = INTS(31, 20, 9, -1, 20, 31, 31, -1);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.slots[4] = 20: tokens 1 and 4 of this call would be stored in one slot");
    batch->slots = INTS(31, 20, 9, -1, 8, 10, 9, -1);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.slots[6] = 9: tokens 2 and 6 of this call would be stored in one slot");
    batch->slots = (msg_ints){0};
    batch->q_lens = INTS(1, 3);
    batch->kv_lens = INTS(7, 5);
    f->table.block_ids = INTS(0, 1, 1, 1);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.tables[0].block_ids[2] = 1: tokens 0 and 1 of this call would be stored "
                   "in one slot");
    f->table.block_ids = INTS(0, 1, 2, 1);
    batch->kv_lens = INTS(5, 5);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.tables[0].block_ids[3] = 1: tokens 0 and 3 of this call would be stored "
                   "in one slot");
}

/* CPU time of a thread, in seconds. */
static double cpu_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Multiples of a power of two, and those that a usual multiplicative hash puts in a few places,
 * take about as long as slots in a row. */
static void no_choice_of_slots_is_slow(void **state)
{
    enum { TOKENS = 1 << 15, BIG_T = 256, BIG_BLOCKS = 1 << 21 };
    fixture *f = *state;
    srv_group *group = &f->group;
    int32_t n_tokens = TOKENS, *slots = calloc(TOKENS, sizeof *slots);
    int32_t *blocks = calloc(TOKENS / BIG_T, sizeof *blocks);
    double took[3];
    free(group->marks);
    group->marks = calloc(BIG_BLOCKS, sizeof *group->marks);
    group->n_blocks = BIG_BLOCKS;
    group->geometry.block_size = BIG_T;
    group->max_kv_len = TOKENS;
    f->engine.limits.max_tokens = TOKENS;
    msg_arena_fini(&f->request.arena);
    assert_int_equal(msg_arena_init(&f->request.arena, 64 << 20, &f->err), 0);
    for (int32_t n = 0; n < TOKENS / BIG_T; n++)
        blocks[n] = BIG_BLOCKS - 1 - n;
    f->msg.n_contexts = 1;
    f->msg.q_lens = f->msg.kv_lens = inline_ints(&n_tokens, 1);
    f->table.block_ids = inline_ints(blocks, TOKENS / BIG_T);
    f->msg.slots = inline_ints(slots, TOKENS);
    for (int kind = 0; kind < 3; kind++) {
        int32_t n = 0;
        for (int64_t slot = 0; n < TOKENS; slot += kind == 1 ? 1 << 13 : 1) {
            uint64_t place = (uint64_t)slot * 0x9E3779B97F4A7C15u >> 20 & 0xFFFF;
            if (kind != 2 || place < 32)
                slots[n++] = (int32_t)slot;
        }
        double start = cpu_s();
        assert_int_equal(read_batch(f, true), ATTND_OK);
        took[kind] = cpu_s() - start;
        msg_arena_reset(&f->request.arena);
    }
    /* A quadratic search takes hundreds of times as long. */
    assert_true(took[1] < 20 * took[0] + 0.05);
    assert_true(took[2] < 20 * took[0] + 0.05);
    free(slots);
    free(blocks);
}

static void a_shared_block_is_read_but_not_appended_to(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(1, 1);
    batch->kv_lens = INTS(5, 5);
    f->table.block_ids = INTS(0, 1, 0, 2);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    batch->kv_lens = INTS(5, 2);
    f->table.block_ids = INTS(0, 1, 1);
    expect_refusal(f, true, ATTND_BAD_BLOCK,
                   "batch.tables[0].block_ids[1] = 1: sequence 0 reads it and another sequence of "
                   "this call appends to it");
    assert_int_equal(read_batch(f, false), ATTND_OK);
}

static void a_ring_may_overwrite_only_what_no_row_sees(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    f->mask.kinds |= KER_MASK_WINDOW;
    f->mask.window = 8; /* two blocks hold the window */
    batch->q_lens = INTS(1);
    batch->kv_lens = INTS(9);
    f->table.block_ids = INTS(0, 1, 0);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    f->mask.window = 9; /* key 0 is still seen */
    expect_refusal(
        f, true, ATTND_BAD_BLOCK,
        "batch.tables[0].block_ids[0] = 0: key 0 of sequence 0 is still seen and token 0 "
        "would be stored over it");
    f->mask.window = 4;
    batch->q_lens = INTS(5); /* P·T = 8 holds W + q_len - 1 = 8 */
    assert_int_equal(read_batch(f, true), ATTND_OK);
}

static void positions_are_not_negative(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    batch->q_lens = INTS(2);
    batch->kv_lens = INTS(2);
    batch->positions = INTS(7, -1);
    f->table.block_ids = INTS(0);
    expect_refusal(f, true, ATTND_BAD_ROPE, "batch.positions[1] = -1: not negative");
    batch->positions = INTS(7);
    expect_refusal(f, true, ATTND_BAD_LENGTH, "batch.positions = 1 entries: 2 are needed");
}

/* Reads an update on top of what was read. */
static attnd_status read_update(fixture *f, const msg_plan_update *update, bool with_keys,
                                srv_batch *out)
{
    f->err = (attnd_err){.status = ATTND_OK};
    msg_arena *arena = &f->request.arena;
    TRY(srv_batch_update(&f->engine, &f->request, arena, update, &f->model, &f->batch, out,
                         &f->err));
    return srv_batch_check(&f->engine, arena, out, &f->model, 0, &f->mask, with_keys, &f->err);
}

static void an_update_adds_the_new_blocks(void **state)
{
    fixture *f = *state;
    srv_batch next;
    msg_table appended = {.block_ids = INTS(6)};
    f->msg.q_lens = INTS(5, 1);
    f->msg.kv_lens = INTS(5, 4);
    f->msg.n_contexts = 1;
    f->table.block_ids = INTS(7, 0, 3);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    msg_plan_update update = {
        .q_lens = INTS(1, 1), .kv_lens = INTS(6, 5), .appended = &appended, .n_appended = 1};
    assert_int_equal(read_update(f, &update, true, &next), ATTND_OK);
    assert_int_equal(next.lengths.n_tokens, 2);
    assert_int_equal(next.lengths.n_contexts, 1);
    const int32_t want[] = {7, 0, 3, 6};
    assert_memory_equal(next.table[0].ids, want, sizeof want);
    assert_int_equal(next.table[0].first[1], 2);
    /* The batch it started from is as it was. */
    assert_int_equal(f->batch.lengths.kv_len[0], 5);
    assert_int_equal(f->batch.table[0].length[1], 1);
}

static void an_update_counts_from_the_blocks_not_from_a_rows_width(void **state)
{
    fixture *f = *state;
    srv_batch next;
    msg_table appended = {.width = 1, .block_ids = INTS(-1, 6)};
    f->msg.q_lens = INTS(1, 1);
    f->msg.kv_lens = INTS(9, 4);
    f->table.width = 3;
    f->table.block_ids = INTS(7, 0, 2, 3, -1, -1);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    msg_plan_update update = {.kv_lens = INTS(10, 5), .appended = &appended, .n_appended = 1};
    assert_int_equal(read_update(f, &update, true, &next), ATTND_OK);
    const int32_t want[] = {7, 0, 2, 3, 6};
    assert_memory_equal(next.table[0].ids, want, sizeof want);
    appended = (msg_table){.block_ids = INTS(6)};
    assert_int_equal(read_update(f, &update, true, &next), ATTND_OK);
    assert_memory_equal(next.table[0].ids, want, sizeof want);
    /* What lay behind kv_len was never checked, so it is not taken for a block. */
    update.n_appended = 0;
    assert_int_equal(read_update(f, &update, true, &next), ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "update.appended: group 0 needs 1 more blocks");
}

static void an_update_may_shrink_a_sequence(void **state)
{
    fixture *f = *state;
    srv_batch next;
    f->msg.q_lens = INTS(1, 1);
    f->msg.kv_lens = INTS(9, 4);
    f->table.block_ids = INTS(7, 0, 2, 3);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    msg_plan_update update = {.kv_lens = INTS(4, 3)};
    assert_int_equal(read_update(f, &update, true, &next), ATTND_OK);
    const int32_t want[] = {7, 3};
    assert_memory_equal(next.table[0].ids, want, sizeof want);
}

static void an_update_is_checked_as_a_batch_is(void **state)
{
    fixture *f = *state;
    srv_batch next;
    msg_table appended = {.block_ids = INTS(8)};
    f->msg.q_lens = INTS(1, 1);
    f->msg.kv_lens = INTS(4, 4);
    f->table.block_ids = INTS(7, 3);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    const struct {
        msg_plan_update update;
        attnd_reason reason;
        const char *text;
    } rows[] = {
        {{.kv_lens = INTS(5, 4), .appended = &appended, .n_appended = 1},
         ATTND_BAD_BLOCK,
         "update.appended[0].block_ids[0] = 8: sequence 0 needs it, pool \"main\" has blocks 0..7"},
        {{.kv_lens = INTS(5, 4)}, ATTND_BAD_LENGTH, "update.appended: group 0 needs 1 more blocks"},
        {{.kv_lens = INTS(5, 5), .appended = &appended, .n_appended = 1},
         ATTND_BAD_LENGTH,
         "update.appended[0].block_ids = 1 entries: 2 are needed"},
        {{.kv_lens = INTS(5)}, ATTND_BAD_LENGTH, "update.kv_lens = 1 entries: 2 are needed"},
        {{.kv_lens = INTS(5, -1)}, ATTND_BAD_LENGTH, "update.kv_lens[1] = -1: not negative"},
        {{.q_lens = INTS(65, 1)},
         ATTND_TOO_LARGE,
         "update.q_lens[0] = 65: a call has at most 64 tokens (limits.max_tokens)"},
        {{.kv_lens = INTS(101, 4)},
         ATTND_KV_LEN_EXCEEDS_POOL,
         "update.kv_lens[0] = 101: pool \"main\" holds sequences of at most 100"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        attnd_status status = read_update(f, &rows[i].update, true, &next);
        assert_string_equal(f->err.text, rows[i].text);
        assert_int_equal(status, attnd_reason_status(rows[i].reason));
    }
    appended = (msg_table){.group = 1, .block_ids = INTS(8)};
    msg_plan_update update = {.kv_lens = INTS(5, 4), .appended = &appended, .n_appended = 1};
    assert_int_equal(read_update(f, &update, true, &next), ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "update.appended[0].group = 1: the plan has no table of it");
}

static void what_a_plan_was_made_with_an_update_brings_anew(void **state)
{
    fixture *f = *state;
    srv_batch next;
    f->msg.q_lens = INTS(1);
    f->msg.kv_lens = INTS(2);
    f->table.block_ids = INTS(7);
    f->msg.slots = INTS(29);
    f->msg.positions = INTS(1);
    assert_int_equal(read_batch(f, true), ATTND_OK);
    msg_plan_update update = {.kv_lens = INTS(3)};
    assert_int_equal(read_update(f, &update, true, &next), ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "update.slots: the plan was made with slots");
    update.slots = INTS(30);
    assert_int_equal(read_update(f, &update, true, &next), ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "update.positions: the plan was made with positions");
    update.positions = INTS(2);
    assert_int_equal(read_update(f, &update, true, &next), ATTND_OK);
    assert_int_equal(next.slots[0], 30);
}

static void a_batch_larger_than_the_arena_is_refused(void **state)
{
    fixture *f = *state;
    msg_batch *batch = &f->msg;
    static int32_t ids[300000];
    f->group.max_kv_len = INT32_MAX;
    batch->q_lens = INTS(1);
    batch->kv_lens = INTS(1200000);
    f->table.block_ids = inline_ints(ids, 300000);
    expect_refusal(f, false, ATTND_TOO_LARGE,
                   "batch.tables[0].block_ids = 300000 entries: more than a request may use");
}

#define T_(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T_(a_good_batch_becomes_the_problems),
        T_(lengths_are_checked),
        T_(a_context_may_have_more_queries_than_keys_when_it_stores_nothing),
        T_(a_padding_row_needs_no_table),
        T_(needed_entries_name_blocks_of_the_pool),
        T_(entries_behind_a_window_may_be_anything),
        T_(two_tokens_never_share_a_slot),
        T_(the_first_token_that_meets_another_is_named),
        T_(no_choice_of_slots_is_slow),
        T_(a_shared_block_is_read_but_not_appended_to),
        T_(a_ring_may_overwrite_only_what_no_row_sees),
        T_(positions_are_not_negative),
        T_(an_update_adds_the_new_blocks),
        T_(an_update_counts_from_the_blocks_not_from_a_rows_width),
        T_(an_update_may_shrink_a_sequence),
        T_(an_update_is_checked_as_a_batch_is),
        T_(what_a_plan_was_made_with_an_update_brings_anew),
        T_(a_batch_larger_than_the_arena_is_refused),
    };
    return cmocka_run_group_tests_name("srv_batch", tests, NULL, NULL);
}
