/* test_ora_items.c: where keys come from: beams, shared pages, high pages, an encoder. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/support/scene.h"

/* ---- Beams (§20) ---- */

enum { BEAM_LEN = 12 };

/* Two requests of two beams, 8 and 5 prompt keys among 11 and 9. */
static const scene_shape BEAMS = {
    4, 2, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1, 1, 1}, {11, 11, 9, 9}};

static void beams_of_their_own_are_plain_sequences(void **state)
{
    scene s;
    scene_open(&s, &BEAMS, SCENE_RANDOM);
    const int32_t none[] = {0, 0};
    int32_t ind[2][2][BEAM_LEN];
    for (int n = 0; n < 4; n++)
        for (int j = 0; j < BEAM_LEN; j++)
            ind[n / 2][n % 2][j] = n % 2;
    ora_problem p = s.p;
    p.beams = (ora_beams){.width = 2, .max_len = BEAM_LEN, .ind = ind[0][0], .prompt_len = none};
    assert_problems_same(&s.p, &p, 0);
    scene_close(&s);
}

/* The other witness: the keys of each beam gathered by hand, one behind the other. */
static void a_key_comes_from_the_beam_that_wrote_it(void **state)
{
    scene s;
    scene_open(&s, &BEAMS, SCENE_RANDOM);
    const int32_t prompt[] = {8, 5};
    int32_t ind[2][2][BEAM_LEN];
    static float given[2][4][BEAM_LEN][8];
    const int64_t first[] = {0, BEAM_LEN, 2 * BEAM_LEN, 3 * BEAM_LEN};
    for (int n = 0; n < 4; n++)
        for (int32_t j = 0; j < s.kv_len[n]; j++) {
            /* In the prompt it may say what it likes. */
            ind[n / 2][n % 2][j] = j < prompt[n / 2] ? 77 : (j * 5 + n) / 3 % 2;
            uint32_t beam = j < prompt[n / 2] ? 0 : (uint32_t)((j * 5 + n) / 3 % 2);
            for (int plane = 0; plane < 2; plane++)
                memcpy(given[plane][n][j], scene_key(&s, (uint32_t)n / 2 * 2 + beam, j, 0, plane),
                       32);
        }
    ora_problem p = s.p, q = s.p;
    p.beams = (ora_beams){.width = 2, .max_len = BEAM_LEN, .ind = ind[0][0], .prompt_len = prompt};
    q.block_ids = NULL;
    q.kv_first = first;
    q.kv =
        (ora_kv){.plane = {given[0], given[1]}, .token_stride = {32, 32}, .dtype = ATTND_DTYPE_F32};
    assert_problems_same(&p, &q, 0);
    scene_close(&s);
}

/* Prompt of 3 keys with V=0; at key 3 the beams wrote 1 and 2; both went on from beam 0, with 10
 * and 20. The second request's values are 100 higher. */
static void b094_a_beam_follows_its_parent(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){
                   4, 1, 1, 8, 8, 2, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1, 1, 1}, {5, 5, 5, 5}},
               SCENE_POSITIONS);
    const float values[2][5] = {{0, 0, 0, 1, 10}, {0, 0, 0, 2, 20}};
    for (uint32_t n = 0; n < 4; n++)
        for (int32_t j = 0; j < 5; j++)
            for (int d = 0; d < 8; d++)
                ((float *)scene_key(&s, n, j, 0, 1))[d] = values[n % 2][j] + (n < 2 ? 0 : 100);
    const int32_t ind[2][2][5] = {{{0, 0, 0, 0, 0}, {0, 0, 0, 0, 1}},
                                  {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 1}}};
    const int32_t prompt[] = {3, 3};
    s.p.beams = (ora_beams){.width = 2, .max_len = 5, .ind = ind[0][0], .prompt_len = prompt};
    ora_result r = scene_attend(&s.p);
    const double want[] = {2.2, 4.2, 102.2, 104.2};
    for (int n = 0; n < 4; n++)
        assert_row(&r, n, want[n], log(5));
    ora_result_fini(&r);
    scene_close(&s);
}

static void what_are_no_beams_is_refused(void **state)
{
    scene s;
    scene_open(&s, &BEAMS, SCENE_RANDOM);
    int32_t ind[2][2][BEAM_LEN] = {{{0}}}, prompt[] = {0, 0};
    s.p.beams =
        (ora_beams){.width = 2, .max_len = BEAM_LEN, .ind = ind[0][0], .prompt_len = prompt};
    ora_problem p = s.p;
    p.beams.width = 3;
    assert_refused(&p, ATTND_BAD_GEOMETRY, "n_seqs = 4: a multiple of beams.width = 3");
    p = s.p;
    p.beams.ind = NULL;
    assert_refused(&p, ATTND_BAD_GEOMETRY, "beams.ind = none: beams need it");
    p = s.p;
    p.beams.max_len = 10;
    assert_refused(&p, ATTND_BAD_LENGTH, "kv_len[0] = 11: beams.max_len is 10");
    ind[1][0][6] = 2;
    assert_refused(&s.p, ATTND_BAD_BLOCK, "beams.ind[1][0][6] = 2: one of 2 beams");
    ind[1][0][6] = -1;
    assert_refused(&s.p, ATTND_BAD_BLOCK, "beams.ind[1][0][6] = -1: one of 2 beams");
    ind[1][0][6] = 0;
    ind[0][0][10] = 1;
    s.kv_len[1] = 10;
    s.kv_len[0] = 11;
    assert_refused(&s.p, ATTND_BAD_BLOCK, "beams.ind[0][0][10] = 1: it has 10 keys");
    ind[0][0][10] = 0;
    s.p.mask.kinds |= ORA_MASK_WINDOW;
    s.p.mask.window = 4;
    ora_result r = scene_attend(&s.p);
    ora_result_fini(&r);
    s.block_ids[4] = s.block_ids[3];
    assert_refused(&s.p, ATTND_BAD_COMBINATION,
                   "block_ids[1] = a ring: beams need every page of a window");
    scene_close(&s);
}

/* ---- Pages ---- */

/* Prefix of 7 keys in pages of 4, shared but for its last page, of which each branch has a copy. */
static void b083_branches_have_a_tail_of_their_own(void **state)
{
    float pool[2][4][4][8] = {{{{0}}}}, k[8] = {0}, v[2][8], before[2][2][4][8];
    const int32_t one[] = {1, 1}, kv_len[] = {8, 8}, tables[] = {0, 1, 0, 2};
    for (int d = 0; d < 8; d++) {
        v[0][d] = 100;
        v[1][d] = 200;
    }
    for (int plane = 0; plane < 2; plane++)
        memcpy(before[plane], pool[plane], sizeof before[plane]);
    ora_problem p = {.n_heads = 1,
                     .n_kv_heads = 1,
                     .head_dim = 8,
                     .head_dim_v = 8,
                     .sm_scale = 1,
                     .dtype = ATTND_DTYPE_F32,
                     .n_seqs = 2,
                     .q_len = one,
                     .kv_len = kv_len,
                     .block_ids = tables,
                     .q = {k, 0, 0, ATTND_DTYPE_F32},
                     .k = {k, 0, 0, ATTND_DTYPE_F32},
                     .v = {v, sizeof v[0], 0, ATTND_DTYPE_F32},
                     .kv = {.plane = {pool[0], pool[1]},
                            .block_stride = sizeof pool[0][0],
                            .token_stride = {32, 32},
                            .n_blocks = 4,
                            .block_size = 4,
                            .dtype = ATTND_DTYPE_F32}};
    attnd_err err;
    assert_int_equal(ora_append(&p, &err), ATTND_OK);
    ora_result r = scene_attend(&p);
    assert_row(&r, 0, 12.5, log(8));
    assert_row(&r, 1, 25, log(8));
    assert_memory_equal(pool[0][0], before[0][0], sizeof before[0][0]);
    assert_memory_equal(pool[1][0], before[1][0], sizeof before[1][0]);
    ora_result_fini(&r);
}

/* §17: which pool a key is read from shows by its value; the other one holds NaN there. */
static void high_pages_are_read_instead(void **state)
{
    scene s;
    scene_open(
        &s, &(scene_shape){2, 1, 1, 8, 8, 4, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, {1, 1}, {10, 7}},
        SCENE_POSITIONS);
    static float high[2][3][4][8];
    memset(high, 0xFF, sizeof high);
    /* Pages 0 and 2 of sequence 0, page 1 of sequence 1. */
    const int32_t ids[] = {2, -1, 0, -1, 1};
    const int32_t first_key[] = {8, 4, 0}; /* of high page 0, 1, 2 */
    for (int page = 0; page < 3; page++)
        for (int row = 0; row < 4; row++)
            for (int d = 0; d < 8; d++) {
                high[0][page][row][d] = 0;
                high[1][page][row][d] = 1000 + first_key[page] + (float)row;
            }
    for (int n = 0; n < 3; n++) {
        uint32_t b = n == 2;
        int32_t page = n == 0 ? 0 : n == 1 ? 2 : 1;
        for (int32_t row = 0; row < 4 && page * 4 + row < s.kv_len[b]; row++)
            for (int plane = 0; plane < 2; plane++)
                memset(scene_key(&s, b, page * 4 + row, 0, plane), 0xFF, 16);
    }
    const ora_kv pool = {.plane = {high[0], high[1]},
                         .block_stride = sizeof high[0][0],
                         .token_stride = {32, 32},
                         .n_blocks = 3,
                         .block_size = 4,
                         .dtype = ATTND_DTYPE_F32};
    s.p.high = &pool;
    s.p.high_ids = ids;
    ora_result r = scene_attend(&s.p);
    assert_row(&r, 0, (4 * 1000 + 6 + 22 + 2 * 1000 + 17) / 10.0, log(10));
    assert_row(&r, 1, (6 + 3 * 1000 + 15) / 7.0, log(7));
    ora_result_fini(&r);
    scene_close(&s);
}

/* ---- Cross attention, encoders (§19) ---- */

/* Encoder of 6 keys over 2 pages, decoder of 3 in a page of its own. */
static void b095_a_cross_layer_reads_the_encoders_keys(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {6, 3}},
               SCENE_POSITIONS);
    s.p.n_seqs = 1;
    ora_problem cross = s.p, own = s.p;
    cross.kind = ATTND_LAYER_CROSS;
    cross.mask.kinds = 0;
    own.kv_len = &s.kv_len[1];
    own.block_ids = s.block_ids + 2;
    ora_result r = scene_attend(&cross);
    assert_row(&r, 0, 2.5, log(6));
    ora_result_fini(&r);
    r = scene_attend(&own);
    assert_row(&r, 0, 1, log(3));
    ora_result_fini(&r);
    const int32_t many = 9; /* rows have nothing to do with keys */
    char q[9 * 32] = {0};
    cross.q_len = &many;
    cross.q.base = q;
    r = scene_attend(&cross);
    for (int i = 0; i < 9; i++)
        assert_row(&r, i, 2.5, log(6));
    ora_result_fini(&r);
    s.kv_len[0] = 0;
    r = scene_attend(&cross);
    assert_row(&r, 8, 0, -INFINITY);
    ora_result_fini(&r);
    s.kv_len[0] = 6;
    cross.kv.n_blocks = 6; /* a table in units of tokens: 0, 4, 8 */
    const int32_t tokens[] = {4, 8};
    cross.block_ids = tokens;
    assert_refused(&cross, ATTND_BAD_BLOCK, "block_ids[0][1] = 8: key 4 needs one of 0..5");
    scene_close(&s);
}

static void all_beams_share_the_encoders_keys(void **state)
{
    scene s;
    scene_open(&s,
               &(scene_shape){2, 1, 1, 8, 8, 4, ATTND_DTYPE_F32, ATTND_LAYOUT_HND, {1, 1}, {6, 6}},
               SCENE_RANDOM);
    const int64_t same[] = {0, 0};
    s.p.kind = ATTND_LAYER_CROSS;
    s.p.mask.kinds = 0;
    s.p.block_first = same;
    memcpy(s.q + 32, s.q, 32);
    ora_result r = scene_attend(&s.p);
    assert_memory_equal(r.out, r.out + 8, 64);
    ora_result_fini(&r);
    scene_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beams_of_their_own_are_plain_sequences),
        cmocka_unit_test(a_key_comes_from_the_beam_that_wrote_it),
        cmocka_unit_test(b094_a_beam_follows_its_parent),
        cmocka_unit_test(what_are_no_beams_is_refused),
        cmocka_unit_test(b083_branches_have_a_tail_of_their_own),
        cmocka_unit_test(high_pages_are_read_instead),
        cmocka_unit_test(b095_a_cross_layer_reads_the_encoders_keys),
        cmocka_unit_test(all_beams_share_the_encoders_keys),
    };
    return cmocka_run_group_tests_name("ora_items", tests, NULL, NULL);
}
