/* test_kv_oom.c: whichever allocation fails, a pool is refused whole. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include "kvcache/pool.h"
#include "tests/support/oom.h"

OOM_INTERPOSE

static void a_pool_without_memory_is_refused_and_leaves_nothing(void **state)
{
    kv_pool *pool;
    attnd_err err;
    attnd_status status;
    size_t n_failed = 0;
    OOM_EACH(n, failed, status = kv_pool_open(&pool, "main", 100, KV_OWNER_SERVER, &err), {
        if (failed) {
            assert_int_equal(status, ATTND_RESOURCE_EXHAUSTED);
            assert_int_equal(err.reason, ATTND_NO_ROOM);
            assert_string_equal(err.text, "n_blocks = 100: no memory to count them");
            assert_null(pool);
            n_failed++;
        } else {
            assert_int_equal(status, ATTND_OK);
            kv_pool_close(pool);
        }
    });
    assert_int_equal(n_failed, 3);
}

static void nothing_allocates_after_open(void **state)
{
    kv_pool *pool;
    kv_block got[100];
    assert_int_equal(kv_pool_open(&pool, "main", 100, KV_OWNER_SERVER, NULL), ATTND_OK);
    oom_arm(1);
    assert_int_equal(kv_pool_take(pool, 100, got, NULL), ATTND_OK);
    kv_pool_share(pool, got, 50);
    kv_pool_give(pool, got, 100);
    assert_int_equal(kv_pool_take(pool, 51, got, NULL), ATTND_RESOURCE_EXHAUSTED);
    assert_false(oom_disarm());
    kv_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_without_memory_is_refused_and_leaves_nothing),
        cmocka_unit_test(nothing_allocates_after_open),
    };
    return cmocka_run_group_tests_name("kv_oom", tests, NULL, NULL);
}
