/* test_ora_move.c: rows of an accepted path move to their places, whatever they are coded in. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/oracle/oracle.h"

enum { D = 32, T = 4, BLOCKS = 4, G = 2, KEYS = 14 };

/* A pool of random bytes: moving asks nothing of them. */
typedef struct pool {
    ora_problem p;
    ora_kv high;
    int32_t q_len, kv_len, block_ids[BLOCKS], high_ids[BLOCKS];
    size_t bytes;
    char *now, *before;
} pool;

/* Rows of row bytes and scale bytes, K and V (or both one) of each head, K's rows first. */
static void pool_open(pool *x, attnd_dtype dtype, ora_format format, size_t row, size_t scale,
                      bool is_latent)
{
    *x = (pool){.q_len = 1, .kv_len = KEYS, .block_ids = {2, 0, 3, 1}};
    size_t heads = is_latent ? 1 : G, planes = is_latent ? 1 : 2;
    size_t slab = T * (row + scale), block = planes * heads * slab;
    x->bytes = BLOCKS * block;
    x->now = malloc(x->bytes);
    x->before = malloc(x->bytes);
    assert_true(x->now && x->before);
    for (size_t n = 0; n < x->bytes; n++)
        x->now[n] = (char)(n * 2654435761u >> 13);
    memcpy(x->before, x->now, x->bytes);
    x->p = (ora_problem){
        .n_heads = G,
        .n_kv_heads = (uint32_t)heads,
        .head_dim = D,
        .head_dim_v = D,
        .dtype = ATTND_DTYPE_BF16,
        .n_seqs = 1,
        .q_len = &x->q_len,
        .kv_len = &x->kv_len,
        .block_ids = x->block_ids,
        .kv = {.block_stride = (int64_t)block,
               .n_blocks = BLOCKS,
               .block_size = T,
               .dtype = dtype,
               .format = format},
    };
    for (size_t plane = 0; plane < 2; plane++) {
        size_t at = plane % planes * heads * slab;
        x->p.kv.plane[plane] = x->now + at;
        x->p.kv.head_stride[plane] = (int64_t)slab;
        x->p.kv.token_stride[plane] = (int64_t)row;
        x->p.kv.scales[plane] = scale ? x->now + at + T * row : NULL;
        x->p.kv.scale_head_stride[plane] = (int64_t)slab;
        x->p.kv.scale_token_stride[plane] = (int64_t)scale;
    }
}

static void pool_close(pool *x)
{
    free(x->now);
    free(x->before);
}

/* What the pool is to be: key dst of before is key src of before, byte by byte. */
static void move_by_hand(const pool *x, const ora_kv *kv, char *now, const char *before,
                         const int32_t *ids, int32_t src, int32_t dst, size_t row, size_t scale)
{
    for (int plane = 0; plane < 2; plane++)
        for (uint32_t g = 0; g < x->p.n_kv_heads; g++) {
            int64_t plane_at = (char *)kv->plane[plane] - x->now;
            int64_t from = plane_at + ids[src / T] * kv->block_stride + g * kv->head_stride[plane];
            int64_t to = plane_at + ids[dst / T] * kv->block_stride + g * kv->head_stride[plane];
            memcpy(now + to + dst % T * (int64_t)row, before + from + src % T * (int64_t)row, row);
            memcpy(now + to + T * (int64_t)row + dst % T * (int64_t)scale,
                   before + from + T * (int64_t)row + src % T * (int64_t)scale, scale);
        }
}

static void every_format_moves_its_rows_and_scales(void **state)
{
    const struct {
        attnd_dtype dtype;
        ora_format format;
        uint32_t width, residual;
        size_t row, scale;
        bool is_latent;
    } cases[] = {
        {ATTND_DTYPE_F32, ORA_PLAIN, D, 0, 4 * D, 0, false},
        {ATTND_DTYPE_BF16, ORA_PLAIN, D, 0, 2 * D, 0, false},
        {ATTND_DTYPE_E4M3, ORA_PLAIN, D, 0, D, 0, true},
        {ATTND_DTYPE_I8, ORA_HEAD, D, 0, D, 4, false},
        {ATTND_DTYPE_NVFP4, ORA_NVFP4, D, 0, D / 2, D / 16, false},
        {ATTND_DTYPE_E4M3, ORA_DS_POW2, 576, 0, 656, 0, true},
        {ATTND_DTYPE_E4M3, ORA_DS_FREE, 576, 0, 656, 0, true},
        {ATTND_DTYPE_E4M3, ORA_DS_584, 512, 0, 576, 8, true},
    };
    const int32_t src[] = {9, 13, 12}, dst[] = {9, 10, 11};
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        pool x;
        pool_open(&x, cases[n].dtype, cases[n].format, cases[n].row, cases[n].scale,
                  cases[n].is_latent);
        x.p.head_dim = x.p.head_dim_v = cases[n].width;
        attnd_err err;
        if (ora_move(&x.p, 0, src, dst, 3, &err) != ATTND_OK)
            fail_msg("case %zu: %s", n, err.text);
        char *want = malloc(x.bytes);
        assert_non_null(want);
        memcpy(want, x.before, x.bytes);
        for (int k = 0; k < 3; k++)
            move_by_hand(&x, &x.p.kv, want, x.before, x.block_ids, src[k], dst[k], cases[n].row,
                         cases[n].scale);
        assert_memory_equal(x.now, want, x.bytes);
        assert_int_not_equal(memcmp(x.now, x.before, x.bytes), 0);
        free(want);
        pool_close(&x);
    }
}

/* Dense FP4 MLA has pages of 128 tokens, so its rows have a test of their own. */
static void rows_of_dense_fp4_move_with_their_residual(void **state)
{
    enum { ROW = (64 + 32) / 2, SCALE = (64 + 32) / 16, PAGE = 128 };
    static char now[PAGE * (ROW + SCALE)], want[sizeof now];
    for (size_t n = 0; n < sizeof now; n++)
        now[n] = (char)(n * 2654435761u >> 13);
    memcpy(want, now, sizeof now);
    const int32_t q_len = 1, kv_len = 100, block = 0, src = 90, dst = 80;
    const ora_problem p = {
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = 64,
        .head_dim_v = 32,
        .dtype = ATTND_DTYPE_BF16,
        .n_seqs = 1,
        .q_len = &q_len,
        .kv_len = &kv_len,
        .block_ids = &block,
        .kv = {.plane = {now, now},
               .token_stride = {ROW, ROW},
               .n_blocks = 1,
               .block_size = PAGE,
               .dtype = ATTND_DTYPE_NVFP4,
               .format = ORA_FP4_MLA,
               .residual = 32,
               .scales = {now + PAGE * ROW, now + PAGE * ROW},
               .scale_token_stride = {SCALE, SCALE}},
    };
    attnd_err err;
    if (ora_move(&p, 0, &src, &dst, 1, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    memcpy(want + 80 * ROW, want + 90 * ROW, ROW);
    memcpy(want + PAGE * ROW + 80 * SCALE, want + PAGE * ROW + 90 * SCALE, SCALE);
    assert_memory_equal(now, want, sizeof now);
}

/* A row may be read where an earlier one was just read from, and written where none is read any
 * more: increasing dst, src ≥ dst. */
static void rows_that_step_down_one_by_one_arrive_whole(void **state)
{
    const int32_t src[] = {10, 11, 12, 13}, dst[] = {9, 10, 11, 12};
    pool x;
    pool_open(&x, ATTND_DTYPE_BF16, ORA_PLAIN, 2 * D, 0, false);
    attnd_err err;
    assert_int_equal(ora_move(&x.p, 0, src, dst, 4, &err), ATTND_OK);
    char *want = malloc(x.bytes);
    assert_non_null(want);
    memcpy(want, x.before, x.bytes);
    for (int k = 0; k < 4; k++)
        move_by_hand(&x, &x.p.kv, want, x.before, x.block_ids, src[k], dst[k], 2 * D, 0);
    assert_memory_equal(x.now, want, x.bytes);
    free(want);
    pool_close(&x);
}

static void high_pages_move_too(void **state)
{
    const int32_t src = 13, dst = 12, far = 6;
    pool x;
    pool_open(&x, ATTND_DTYPE_BF16, ORA_PLAIN, 2 * D, 0, false);
    static float high[2][G][T][D];
    for (size_t n = 0; n < sizeof high / sizeof(float); n++)
        (&high[0][0][0][0])[n] = (float)n;
    x.high = (ora_kv){.plane = {high[0], high[1]},
                      .head_stride = {sizeof high[0][0], sizeof high[0][0]},
                      .token_stride = {sizeof high[0][0][0], sizeof high[0][0][0]},
                      .n_blocks = 1,
                      .block_size = T,
                      .dtype = ATTND_DTYPE_F32};
    memcpy(x.high_ids, (const int32_t[]){-1, -1, -1, 0}, sizeof x.high_ids);
    x.p.high = &x.high;
    x.p.high_ids = x.high_ids;
    attnd_err err = {0};
    if (ora_move(&x.p, 0, &src, &dst, 1, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    assert_memory_equal(high[1][1][0], high[1][1][1], sizeof high[1][1][1]);
    assert_int_not_equal(memcmp(x.now, x.before, x.bytes), 0);
    assert_int_equal(ora_move(&x.p, 0, &src, &far, 1, &err), ATTND_UNIMPLEMENTED);
    assert_int_equal(err.reason, ATTND_UNSUPPORTED);
    assert_string_equal(err.text, "src[0] = 13: its page and that of dst = 6 are both held high or "
                                  "neither");
    pool_close(&x);
}

static void what_is_no_path_is_refused_and_nothing_moves(void **state)
{
    pool x;
    pool_open(&x, ATTND_DTYPE_BF16, ORA_PLAIN, 2 * D, 0, false);
    const struct {
        int32_t src[2], dst[2];
        attnd_reason reason;
        const char *text;
    } cases[] = {
        {{10, 11}, {9, 12}, ATTND_BAD_LENGTH, "src[1] = 11: from dst = 12 up to 13"},
        {{10, 14}, {9, 10}, ATTND_BAD_LENGTH, "src[1] = 14: from dst = 10 up to 13"},
        {{10, 11}, {9, 9}, ATTND_BAD_LENGTH, "dst[1] = 9: above the one before it"},
        {{10, 11}, {-1, 9}, ATTND_BAD_LENGTH, "dst[0] = -1: above the one before it"},
        {{10, 13}, {9, 10}, ATTND_BAD_BLOCK, "block_ids[0][3] = 4: key 13 needs one of 0..3"},
    };
    x.block_ids[3] = 4;
    for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
        attnd_err err = {0};
        assert_int_equal(ora_move(&x.p, 0, cases[n].src, cases[n].dst, 2, &err),
                         ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, cases[n].reason);
        assert_string_equal(err.text, cases[n].text);
        assert_memory_equal(x.now, x.before, x.bytes);
    }
    attnd_err err = {0};
    assert_int_equal(ora_move(&x.p, 1, NULL, NULL, 0, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "seq = 1: one of 1");
    pool_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_moves_its_rows_and_scales),
        cmocka_unit_test(rows_of_dense_fp4_move_with_their_residual),
        cmocka_unit_test(rows_that_step_down_one_by_one_arrive_whole),
        cmocka_unit_test(high_pages_move_too),
        cmocka_unit_test(what_is_no_path_is_refused_and_nothing_moves),
    };
    return cmocka_run_group_tests_name("ora_move", tests, NULL, NULL);
}
