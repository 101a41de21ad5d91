/* test_kv_pool.c: blocks are taken all or none, are distinct, and come back. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvcache/pool.h"

enum { N = 10 };

static int open_pool(void **state)
{
    return kv_pool_open((kv_pool **)state, "main", N, KV_OWNER_SERVER, NULL) == ATTND_OK ? 0 : -1;
}

static int close_pool(void **state)
{
    kv_pool_close(*state);
    return 0;
}

static void takes(kv_pool *pool, uint32_t n, kv_block *out)
{
    attnd_err err;
    if (kv_pool_take(pool, n, out, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

static void a_fresh_pool_is_all_free(void **state)
{
    kv_pool *pool = *state;
    assert_string_equal(kv_pool_name(pool), "main");
    assert_int_equal(kv_pool_owner(pool), KV_OWNER_SERVER);
    assert_int_equal(kv_pool_n_blocks(pool), N);
    assert_int_equal(kv_pool_n_free(pool), N);
    for (kv_block b = 0; b < N; b++)
        assert_int_equal(kv_pool_refs(pool, b), 0);
}

static void blocks_are_distinct_and_all_of_them_usable(void **state)
{
    kv_pool *pool = *state;
    kv_block got[N];
    bool seen[N] = {false};
    takes(pool, 4, got);
    takes(pool, N - 4, got + 4);
    for (int i = 0; i < N; i++) {
        assert_in_range(got[i], 0, N - 1);
        assert_false(seen[got[i]]);
        seen[got[i]] = true;
        assert_int_equal(kv_pool_refs(pool, got[i]), 1);
    }
    assert_int_equal(kv_pool_n_free(pool), 0);
}

/* B145. */
static void a_take_too_large_takes_nothing(void **state)
{
    kv_pool *pool = *state;
    kv_block got[N + 1], before[N + 1];
    attnd_err err;
    takes(pool, 8, got);
    memcpy(before, got, sizeof got);
    assert_int_equal(kv_pool_take(pool, 3, got + 8, &err), ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, ATTND_NO_ROOM);
    assert_string_equal(err.text, "blocks = 3: pool \"main\" has 2 of 10 free");
    assert_int_equal(kv_pool_n_free(pool), 2);
    assert_memory_equal(got, before, 8 * sizeof got[0]);
    takes(pool, 2, got + 8);
    assert_int_equal(kv_pool_n_free(pool), 0);
    assert_int_equal(kv_pool_take(pool, UINT32_MAX, got, NULL), ATTND_RESOURCE_EXHAUSTED);
}

static void taking_none_is_no_refusal(void **state)
{
    kv_pool *pool = *state;
    kv_block all[N];
    takes(pool, N, all);
    takes(pool, 0, NULL);
    assert_int_equal(kv_pool_n_free(pool), 0);
}

static void a_shared_block_is_free_after_its_last_giver(void **state)
{
    kv_pool *pool = *state;
    kv_block got[3];
    takes(pool, 3, got);
    kv_pool_share(pool, got, 2);
    kv_pool_share(pool, got, 1);
    assert_int_equal(kv_pool_refs(pool, got[0]), 3);
    assert_int_equal(kv_pool_refs(pool, got[1]), 2);
    kv_pool_give(pool, got, 3);
    assert_int_equal(kv_pool_n_free(pool), N - 2);
    assert_int_equal(kv_pool_refs(pool, got[2]), 0);
    kv_pool_give(pool, got, 2);
    assert_int_equal(kv_pool_n_free(pool), N - 1);
    kv_pool_give(pool, got, 1);
    assert_int_equal(kv_pool_n_free(pool), N);
}

static void one_block_may_be_named_twice_in_one_share_or_give(void **state)
{
    kv_pool *pool = *state;
    kv_block got;
    takes(pool, 1, &got);
    const kv_block twice[] = {got, got};
    kv_pool_share(pool, twice, 2);
    assert_int_equal(kv_pool_refs(pool, got), 3);
    kv_pool_give(pool, twice, 2);
    assert_int_equal(kv_pool_refs(pool, got), 1);
}

/* 10,000 random takes, shares and gives against a plain array of counts. */
static void counts_always_add_up(void **state)
{
    kv_pool *pool = *state;
    uint32_t refs[N] = {0}, seed = 12345;
    for (int step = 0; step < 10000; step++) {
        seed = seed * 1664525u + 1013904223u;
        kv_block b = (kv_block)(seed >> 16) % N;
        if (refs[b] > 0 && (seed >> 8 & 1)) {
            kv_pool_give(pool, &b, 1);
            refs[b]--;
        } else if (refs[b] > 0) {
            kv_pool_share(pool, &b, 1);
            refs[b]++;
        } else if (kv_pool_take(pool, 1, &b, NULL) == ATTND_OK) {
            assert_int_equal(refs[b]++, 0);
        }
        uint32_t n_free = 0;
        for (kv_block i = 0; i < N; i++) {
            assert_int_equal(kv_pool_refs(pool, i), refs[i]);
            n_free += refs[i] == 0;
        }
        assert_int_equal(kv_pool_n_free(pool), n_free);
    }
}

static void a_client_pool_only_names_its_blocks(void **state)
{
    kv_pool *pool;
    assert_int_equal(kv_pool_open(&pool, "client", INT32_MAX, KV_OWNER_CLIENT, NULL), ATTND_OK);
    assert_int_equal(kv_pool_owner(pool), KV_OWNER_CLIENT);
    assert_int_equal(kv_pool_n_blocks(pool), INT32_MAX);
    assert_int_equal(kv_pool_n_free(pool), INT32_MAX);
    assert_int_equal(kv_pool_refs(pool, INT32_MAX - 1), 0);
    kv_pool_close(pool);
}

static void a_pool_of_no_blocks_or_too_many_is_refused(void **state)
{
    const uint32_t wrong[] = {0, 1u << 31, UINT32_MAX};
    const char *const text[] = {"n_blocks = 0: 1..2147483647",
                                "n_blocks = 2147483648: 1..2147483647",
                                "n_blocks = 4294967295: 1..2147483647"};
    for (int i = 0; i < 3; i++) {
        kv_pool *pool = (kv_pool *)&pool;
        attnd_err err;
        assert_int_equal(kv_pool_open(&pool, "x", wrong[i], KV_OWNER_SERVER, &err),
                         ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_BAD_GEOMETRY);
        assert_string_equal(err.text, text[i]);
        assert_null(pool);
    }
    kv_pool_close(NULL);
}

static void take_client(kv_pool *server, kv_pool *client)
{
    kv_block got;
    kv_pool_take(client, 1, &got, NULL);
}

static void give_client(kv_pool *server, kv_pool *client)
{
    kv_pool_give(client, &(kv_block){0}, 1);
}

static void give_free(kv_pool *server, kv_pool *client)
{
    kv_pool_give(server, &(kv_block){3}, 1);
}

static void share_free(kv_pool *server, kv_pool *client)
{
    kv_pool_share(server, &(kv_block){3}, 1);
}

static void give_stranger(kv_pool *server, kv_pool *client)
{
    kv_pool_give(server, &(kv_block){-1}, 1);
}

static void ask_stranger(kv_pool *server, kv_pool *client)
{
    kv_pool_refs(server, N);
}

static void broken_promises_abort(void **state)
{
    void (*const broken[])(kv_pool *, kv_pool *) = {take_client, give_client,   give_free,
                                                    share_free,  give_stranger, ask_stranger};
    kv_pool *client;
    assert_int_equal(kv_pool_open(&client, "client", N, KV_OWNER_CLIENT, NULL), ATTND_OK);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(STDERR_FILENO);
            signal(SIGABRT, SIG_DFL);
            broken[i](*state, client);
            _exit(0);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    }
    kv_pool_close(client);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_pool, close_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_fresh_pool_is_all_free),
        TEST(blocks_are_distinct_and_all_of_them_usable),
        TEST(a_take_too_large_takes_nothing),
        TEST(taking_none_is_no_refusal),
        TEST(a_shared_block_is_free_after_its_last_giver),
        TEST(one_block_may_be_named_twice_in_one_share_or_give),
        TEST(counts_always_add_up),
        cmocka_unit_test(a_client_pool_only_names_its_blocks),
        cmocka_unit_test(a_pool_of_no_blocks_or_too_many_is_refused),
        TEST(broken_promises_abort),
    };
    return cmocka_run_group_tests_name("kv_pool", tests, NULL, NULL);
}
