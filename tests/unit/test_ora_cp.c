/* test_ora_cp.c: keys shared out over ranks; what the ranks find, combined, is dense attention. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/cp.h"
#include "tests/oracle/generate.h"
#include "tests/support/scene.h"

enum { MAX_RANKS = 4, HEADS = 4, WIDTH = 8, MAX_KEYS = 64 };

/* ---- Ownership (§18.1) ---- */

static void positions_have_owners_and_slots(void **state)
{
    const uint32_t owner[] = {0, 0, 1, 1, 0, 0, 1, 1, 0, 0};
    const int64_t slot[] = {0, 1, 0, 1, 2, 3, 2, 3, 4, 5};
    const int64_t len[2][10] = {{0, 1, 2, 2, 2, 3, 4, 4, 4, 5}, {0, 0, 0, 1, 2, 2, 2, 3, 4, 4}};
    for (int64_t p = 0; p < 10; p++) {
        assert_int_equal(ora_cp_owner(p, 2, 2), owner[p]);
        assert_int_equal(ora_cp_slot(p, 2, 2), slot[p]);
        for (uint32_t r = 0; r < 2; r++)
            assert_int_equal(ora_cp_local_len(p, 2, 2, r), len[r][p]);
    }
}

static void slots_lead_back_to_positions(void **state)
{
    for (uint32_t T = 1; T <= 8; T *= 2)
        for (uint32_t ranks = 1; ranks <= 5; ranks++) {
            int64_t n_owned[5] = {0};
            for (int64_t p = 0; p < 100; p++) {
                uint32_t r = ora_cp_owner(p, T, ranks);
                for (uint32_t other = 0; other < ranks; other++)
                    assert_int_equal(ora_cp_local_len(p, T, ranks, other), n_owned[other]);
                assert_int_equal(ora_cp_slot(p, T, ranks), n_owned[r]++);
                assert_int_equal(ora_cp_position(ora_cp_slot(p, T, ranks), T, ranks, r), p);
            }
        }
}

static void a_verify_group_has_slots_and_bounds(void **state)
{
    const int32_t slots[2][3] = {{-1, 2, 3}, {1, -1, -1}}, bounds[2][3] = {{2, 3, 4}, {2, 2, 2}};
    for (uint32_t r = 0; r < 2; r++) {
        int32_t s[3], b[3];
        ora_cp_group(3, 3, 2, 2, r, s, b);
        assert_memory_equal(s, slots[r], sizeof s);
        assert_memory_equal(b, bounds[r], sizeof b);
    }
}

/* The rows as they come: rank by rank, sequence by sequence, in the order of the rank's slots. */
static void gathered_rows_are_rank_major(void **state)
{
    const int64_t from[] = {3, 0, 17}, len[] = {11, 0, 6};
    for (uint32_t T = 1; T <= 4; T *= 2)
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            int64_t row = 0;
            for (uint32_t r = 0; r < ranks; r++)
                for (uint32_t b = 0; b < 3; b++)
                    for (int64_t k = 0; k < len[b]; k++)
                        if (ora_cp_owner(from[b] + k, T, ranks) == r)
                            assert_int_equal(ora_cp_gathered_row(from, len, 3, T, ranks, b, k),
                                             row++);
            assert_int_equal(row, 17);
        }
}

/* ---- Attention over ranks ---- */

/* One sequence, its rows the last of its positions. */
static scene_shape dense(int32_t q_len, int32_t kv_len)
{
    return (scene_shape){.n_seqs = 1,
                         .n_heads = HEADS,
                         .n_kv_heads = 2,
                         .D = WIDTH,
                         .Dv = WIDTH,
                         .T = 2,
                         .dtype = ATTND_DTYPE_F32,
                         .layout = ATTND_LAYOUT_HND,
                         .q_len = {q_len},
                         .kv_len = {kv_len}};
}

/* The keys of a dense scene that a rank owns, in blocks of its own. */
typedef struct shard {
    ora_problem p;
    float pool[2][MAX_KEYS][2][WIDTH];
    int32_t block_ids[MAX_KEYS], kv_len, bounds[MAX_KEYS], slots[MAX_KEYS], positions[MAX_KEYS];
} shard;

static void shard_make(shard *x, const scene *s, uint32_t n_ranks, uint32_t rank)
{
    int32_t q_len = s->q_len[0], first = s->kv_len[0] - q_len, T = (int32_t)s->p.kv.block_size;
    memset(x, 0xFF, sizeof *x);
    x->p = s->p;
    for (int32_t n = 0; n < MAX_KEYS / T; n++)
        x->block_ids[n] = MAX_KEYS / T - 1 - n;
    for (int32_t i = 0; i < q_len; i++)
        x->positions[i] = first + i;
    ora_cp_group(first, q_len, (uint32_t)T, n_ranks, rank, x->slots, x->bounds);
    x->kv_len = x->bounds[q_len - 1];
    for (int32_t p = 0; p < s->kv_len[0]; p++) {
        if (ora_cp_owner(p, (uint32_t)T, n_ranks) != rank)
            continue;
        int64_t slot = ora_cp_slot(p, (uint32_t)T, n_ranks);
        int64_t row = x->block_ids[slot / T] * T + slot % T;
        for (int plane = 0; plane < 2; plane++)
            for (uint32_t g = 0; g < 2; g++)
                memcpy(x->pool[plane][row][g], scene_key(s, 0, p, g, plane), WIDTH * 4);
    }
    x->p.kv_len = &x->kv_len;
    x->p.block_ids = x->block_ids;
    x->p.positions = x->positions;
    x->p.cp = (ora_cp){.n_ranks = n_ranks, .rank = rank, .bounds = x->bounds};
    x->p.kv = (ora_kv){.plane = {x->pool[0], x->pool[1]},
                       .block_stride = T * (int64_t)sizeof x->pool[0][0],
                       .head_stride = {WIDTH * 4, WIDTH * 4},
                       .token_stride = {sizeof x->pool[0][0], sizeof x->pool[0][0]},
                       .n_blocks = MAX_KEYS / T,
                       .block_size = (uint32_t)T,
                       .dtype = ATTND_DTYPE_F32};
}

/* Every rank's part, merged in their order, is the dense answer. has_bounds: by §18.3's local
 * rule, else by global positions. */
static void assert_combines(const scene *s, uint32_t n_ranks, bool has_bounds)
{
    ora_result whole = scene_attend(&s->p), part[MAX_RANKS];
    for (uint32_t r = 0; r < n_ranks; r++) {
        shard x;
        shard_make(&x, s, n_ranks, r);
        if (!has_bounds)
            x.p.cp.bounds = NULL;
        part[r] = scene_attend(&x.p);
    }
    for (int64_t line = 0; line < whole.n_tokens * HEADS; line++) {
        double m[MAX_RANKS], l[MAX_RANKS], o[MAX_RANKS * WIDTH], m_all, l_all, o_all[WIDTH];
        int64_t n_visible = 0;
        for (uint32_t r = 0; r < n_ranks; r++) {
            m[r] = part[r].m[line];
            l[r] = part[r].l[line];
            memcpy(o + r * WIDTH, part[r].out + line * WIDTH, WIDTH * sizeof *o);
            n_visible += part[r].n_visible[line];
        }
        ora_merge(n_ranks, m, l, o, WIDTH, &m_all, &l_all, o_all);
        assert_int_equal(n_visible, whole.n_visible[line]);
        assert_near(m_all + log(l_all), whole.lse[line], 1e-12);
        for (int d = 0; d < WIDTH; d++)
            assert_near(o_all[d], whole.out[line * WIDTH + d], 1e-12);
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        ora_result_fini(&part[r]);
    ora_result_fini(&whole);
}

static void ranks_combine_to_dense_attention(void **state)
{
    const int32_t lens[][2] = {{1, 1}, {1, 2}, {1, 9}, {3, 3}, {3, 23}, {5, 30}, {1, 40}};
    const float slopes[] = {0.5f, 0.25f, 0.125f, 0.0625f};
    float relative[HEADS * 64 * 64];
    ora_generate(1, "relative", 0, HEADS * 64 * 64, 1, ATTND_DTYPE_F32, relative);
    for (size_t n = 0; n < sizeof lens / sizeof lens[0]; n++)
        for (uint32_t n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++)
            for (int how = 0; how < 5; how++) {
                scene_shape shape = dense(lens[n][0], lens[n][1]);
                scene s;
                scene_open(&s, &shape, SCENE_RANDOM);
                s.p.rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = WIDTH, .theta = 10000};
                if (how == 1)
                    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_WINDOW, .window = 6};
                if (how == 2)
                    s.p.mask = (ora_mask){.kinds = ORA_MASK_CAUSAL | ORA_MASK_CHUNK, .chunk = 4};
                if (how == 3)
                    s.p.bias.alibi_slopes = slopes;
                if (how == 4) {
                    s.p.bias.relative = relative;
                    s.p.bias.relative_size = 64;
                }
                assert_combines(&s, n_ranks, true);
                assert_combines(&s, n_ranks, false);
                scene_close(&s);
            }
}

/* §18.2: what a decode step appends on its owner is what the rank then finds. */
static void only_the_owner_appends(void **state)
{
    scene_shape shape = dense(1, 9);
    scene s;
    scene_open(&s, &shape, SCENE_RANDOM);
    float k[2][WIDTH], v[2][WIDTH];
    ora_generate(9, "k", 0, 2 * WIDTH, 1, ATTND_DTYPE_F32, k);
    ora_generate(9, "v", 0, 2 * WIDTH, 1, ATTND_DTYPE_F32, v);
    uint32_t n_changed = 0;
    for (uint32_t r = 0; r < 3; r++) {
        shard x, before;
        shard_make(&x, &s, 3, r);
        before = x;
        x.p.k = (ora_rows){k, sizeof k, sizeof k[0], ATTND_DTYPE_F32};
        x.p.v = (ora_rows){v, sizeof v, sizeof v[0], ATTND_DTYPE_F32};
        int32_t slot = x.slots[0]; /* local; through the table it is a slot of the pool */
        if (slot >= 0)
            x.slots[0] = x.block_ids[slot / 2] * 2 + slot % 2;
        x.p.slots = x.slots;
        attnd_err err;
        if (ora_append(&x.p, &err) != ATTND_OK)
            fail_msg("%s", err.text);
        if (memcmp((char *)x.pool, (char *)before.pool, sizeof x.pool) != 0) {
            assert_int_equal(r, ora_cp_owner(8, 2, 3));
            assert_memory_equal(x.pool[0][x.slots[0]], k, sizeof k);
            assert_memory_equal(x.pool[1][x.slots[0]], v, sizeof v);
            n_changed++;
        }
    }
    assert_int_equal(n_changed, 1);
    scene_close(&s);
}

static void b089_ranks_without_keys_weigh_nothing(void **state)
{
    for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
        scene_shape shape = dense(1, 1);
        scene s;
        scene_open(&s, &shape, SCENE_RANDOM);
        double m[MAX_RANKS], l[MAX_RANKS], o[MAX_RANKS * WIDTH], m_all, l_all, o_all[WIDTH];
        ora_result whole = scene_attend(&s.p);
        for (int any = 0; any < 2; any++) {
            for (uint32_t r = 0; r < n_ranks; r++) {
                shard x;
                shard_make(&x, &s, n_ranks, r);
                if (!any)
                    x.kv_len = 0;
                ora_result part = scene_attend(&x.p);
                m[r] = part.m[0];
                l[r] = part.l[0];
                memcpy(o + r * WIDTH, part.out, WIDTH * sizeof *o);
                if (r > 0 || !any)
                    assert_row(&part, 0, 0, -INFINITY);
                ora_result_fini(&part);
            }
            ora_merge(n_ranks, m, l, o, WIDTH, &m_all, &l_all, o_all);
            assert_true(m_all == (any ? whole.m[0] : -INFINITY));
            for (int d = 0; d < WIDTH; d++)
                assert_true(o_all[d] == (any ? whole.out[d] : 0));
        }
        ora_result_fini(&whole);
        scene_close(&s);
    }
}

static void b091_the_causal_edge_is_global(void **state)
{
    const int32_t lens[][2] = {{3, 11}, {1, 3}};
    const double want[][3] = {{4, 4.5, 5}, {1}};
    for (int n = 0; n < 2; n++) {
        scene_shape shape = dense(lens[n][0], lens[n][1]);
        shape.T = 1; /* round-robin keys */
        scene s;
        scene_open(&s, &shape, SCENE_POSITIONS);
        assert_combines(&s, 4, true);
        ora_result r = scene_attend(&s.p);
        for (int32_t i = 0; i < lens[n][0]; i++)
            assert_near(r.out[i * HEADS * WIDTH], want[n][i], 1e-12);
        ora_result_fini(&r);
        scene_close(&s);
    }
}

/* ---- Refusals ---- */

static void what_ranks_cannot_do_is_refused(void **state)
{
    scene_shape shape = dense(3, 11);
    scene s;
    scene_open(&s, &shape, SCENE_RANDOM);
    shard x;
    shard_make(&x, &s, 2, 1);
    const uint32_t words[] = {1, 3, 7};
    const uint8_t custom[33] = {0};
    const int32_t two[] = {3, 2}, lens[] = {5, 5}, entries[8] = {0};
    const ora_problem good = x.p;
    ora_problem p;
#define WITH(change, text)                                                                         \
    p = good;                                                                                      \
    change;                                                                                        \
    assert_refused(&p, ATTND_BAD_CP, text)
    WITH(p.cp.rank = 2, "cp.rank = 2: one of 2");
    WITH(p.positions = NULL, "positions = none: ranks need the global ones");
    WITH((p.block_ids = NULL, p.kv.block_size = 0),
         "kv.block_size = 0: ranks own keys by the page");
    WITH((p.mask = (ora_mask){.kinds = ORA_MASK_TREE, .tree_words = words, .tree_width = 1}),
         "mask.kinds = 0x40: no tree and no custom mask over ranks");
    WITH((p.mask = (ora_mask){.kinds = ORA_MASK_BYTES, .custom = custom}),
         "mask.kinds = 0x10: no tree and no custom mask over ranks");
    WITH((p.sparse.block_kv = 4), "sparse = blocks: not over ranks");
    WITH((p.beams = (ora_beams){.width = 1, .ind = entries, .prompt_len = entries}),
         "beams.width = given: not over ranks");
    WITH((p.n_seqs = 2, p.q_len = two, p.kv_len = lens),
         "q_len[1] = 2: groups of a batch have one width");
#undef WITH
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(positions_have_owners_and_slots),
        cmocka_unit_test(slots_lead_back_to_positions),
        cmocka_unit_test(a_verify_group_has_slots_and_bounds),
        cmocka_unit_test(gathered_rows_are_rank_major),
        cmocka_unit_test(ranks_combine_to_dense_attention),
        cmocka_unit_test(only_the_owner_appends),
        cmocka_unit_test(b089_ranks_without_keys_weigh_nothing),
        cmocka_unit_test(b091_the_causal_edge_is_global),
        cmocka_unit_test(what_ranks_cannot_do_is_refused),
    };
    return cmocka_run_group_tests_name("ora_cp", tests, NULL, NULL);
}
