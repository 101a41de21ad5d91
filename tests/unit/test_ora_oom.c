/* test_ora_oom.c: whichever allocation fails, the oracle refuses and leaves nothing behind. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <string.h>

#include "tests/oracle/mla.h"
#include "tests/oracle/tiles.h"
#include "tests/support/oom.h"

OOM_INTERPOSE

static const int32_t q_len = 2, kv_len = 3, block_ids = 0;
static float rows[2][4], pool[2][4][4];
static const ora_problem problem = {
    .n_heads = 1,
    .n_kv_heads = 1,
    .head_dim = 4,
    .head_dim_v = 4,
    .dtype = ATTND_DTYPE_F32,
    .n_seqs = 1,
    .q_len = &q_len,
    .kv_len = &kv_len,
    .block_ids = &block_ids,
    .q = {rows, 16, 16, ATTND_DTYPE_F32},
    .k = {rows, 16, 16, ATTND_DTYPE_F32},
    .v = {rows, 16, 16, ATTND_DTYPE_F32},
    .kv = {.plane = {pool[0], pool[1]},
           .token_stride = {16, 16},
           .n_blocks = 1,
           .block_size = 4,
           .dtype = ATTND_DTYPE_F32},
};

static void attend_without_memory_gives_no_answer(void **state)
{
    ora_result r;
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    OOM_EACH(n, failed, status = ora_attend(&problem, &r, &err), {
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        if (failed) {
            assert_int_equal(err.reason, ATTND_NO_ROOM);
            assert_non_null(strstr(err.text, ": no memory for their "));
            assert_null(r.memory);
            assert_null(r.n_visible);
            n_failed++;
        }
    });
    ora_result_fini(&r);
    assert_int_equal(n_failed, 6);
}

static void sage_without_memory_gives_no_answer(void **state)
{
    ora_problem sage = problem;
    sage.sage = (ora_sage){.qk_dtype = ATTND_DTYPE_I8, .q_block = 1, .k_block = 1};
    ora_result r;
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    OOM_EACH(n, failed, status = ora_attend(&sage, &r, &err), {
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        if (failed) {
            assert_int_equal(err.reason, ATTND_NO_ROOM);
            assert_non_null(strstr(err.text, ": no memory for their "));
            assert_null(r.memory);
            n_failed++;
        }
    });
    ora_result_fini(&r);
    assert_int_equal(n_failed, 10);
}

static void append_without_memory_writes_nothing(void **state)
{
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    memset(rows, 0x11, sizeof rows);
    OOM_EACH(n, failed, (memset(pool, 0, sizeof pool), status = ora_append(&problem, &err)), {
        static const float zeros[2][4][4];
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        if (failed) {
            assert_int_equal(err.reason, ATTND_NO_ROOM);
            assert_memory_equal(pool, zeros, sizeof pool);
            n_failed++;
        }
    });
    assert_memory_equal(pool[0][1], rows[0], sizeof rows[0]);
    assert_int_equal(n_failed, 4);
}

static void tiles_without_memory_give_no_answer(void **state)
{
    const ora_tiling tiling = {.rows = 2, .keys = 2};
    ora_result r;
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    OOM_EACH(n, failed, status = ora_attend_tiles(&problem, &tiling, &r, NULL, &err), {
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        if (failed) {
            assert_int_equal(err.reason, ATTND_NO_ROOM);
            assert_non_null(strstr(err.text, ": no memory for their "));
            assert_null(r.memory);
            n_failed++;
        }
    });
    ora_result_fini(&r);
    assert_int_equal(n_failed, 8);
}

static void chunks_without_memory_are_empty(void **state)
{
    const int32_t cached[] = {3, 0, 6};
    ora_chunks chunks;
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    OOM_EACH(n, failed, status = ora_chunks_make(cached, 3, 4, &chunks, &err), {
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        if (failed) {
            assert_int_equal(err.reason, ATTND_NO_ROOM);
            assert_string_equal(err.text, "cached = 9: no memory for their loops");
            assert_null(chunks.len);
            assert_null(chunks.op);
            n_failed++;
        }
    });
    ora_chunks_fini(&chunks);
    assert_int_equal(n_failed, 5);
}

static void what_gathers_and_moves_needs_memory_first(void **state)
{
    const int32_t src = 2, dst = 1;
    double c[2], k_pe[2];
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    OOM_EACH(n, failed, status = ora_gather(&problem, 2, 0, 0, 1, c, k_pe, &err), {
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        n_failed += failed;
    });
    assert_int_equal(n_failed, 2);
    n_failed = 0;
    pool[0][2][0] = 7;
    OOM_EACH(n, failed, (pool[0][1][0] = 5, status = ora_move(&problem, 0, &src, &dst, 1, &err)), {
        assert_int_equal(status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        assert_true(pool[0][1][0] == (failed ? 5 : 7));
        n_failed += failed;
    });
    assert_int_equal(n_failed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attend_without_memory_gives_no_answer),
        cmocka_unit_test(sage_without_memory_gives_no_answer),
        cmocka_unit_test(append_without_memory_writes_nothing),
        cmocka_unit_test(tiles_without_memory_give_no_answer),
        cmocka_unit_test(chunks_without_memory_are_empty),
        cmocka_unit_test(what_gathers_and_moves_needs_memory_first),
    };
    return cmocka_run_group_tests_name("ora_oom", tests, NULL, NULL);
}
