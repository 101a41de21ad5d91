/* test_srv_history.c: the last 64 ids are remembered with their replies; what is older is known to
 * be. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/history.h"

static int open_history(void **state)
{
    *state = calloc(1, sizeof(srv_history));
    return *state ? 0 : -1;
}

static int close_history(void **state)
{
    srv_history_fini(*state);
    free(*state);
    return 0;
}

static srv_past *add_answered(srv_history *history, uint64_t id)
{
    srv_past *past = srv_history_add(history, id);
    assert_non_null(past);
    assert_true(srv_history_answer(past, (const uint8_t *)&id, sizeof id));
    return past;
}

static void a_reply_is_kept_as_it_was(void **state)
{
    srv_history *history = *state;
    uint8_t reply[SRV_HISTORY_INLINE + 100];
    memset(reply, 7, sizeof reply);
    for (size_t n = 0; n <= sizeof reply; n += SRV_HISTORY_INLINE / 2) {
        srv_past *past = srv_history_add(history, n + 1);
        assert_true(srv_history_answer(past, reply, n));
        assert_ptr_equal(srv_history_find(history, n + 1), past);
        assert_int_equal(past->n_reply, n);
        assert_memory_equal(past->reply, reply, n);
    }
}

static void sixty_four_are_remembered(void **state)
{
    srv_history *history = *state;
    for (uint64_t id = 1; id <= SRV_HISTORY; id++) {
        assert_false(srv_history_is_too_old(history, id));
        add_answered(history, id);
    }
    assert_non_null(srv_history_find(history, 1));
    add_answered(history, SRV_HISTORY + 1);
    assert_null(srv_history_find(history, 1));
    assert_non_null(srv_history_find(history, 2));
    assert_non_null(srv_history_find(history, SRV_HISTORY + 1));
}

static void an_id_lower_than_all_is_too_old(void **state)
{
    srv_history *history = *state;
    for (uint64_t id = 100; id < 100 + SRV_HISTORY - 1; id++)
        add_answered(history, id);
    assert_false(srv_history_is_too_old(history, 5)); /* nothing was forgotten yet */
    add_answered(history, 500);
    assert_true(srv_history_is_too_old(history, 99));
    assert_false(srv_history_is_too_old(history, 100));
    assert_false(srv_history_is_too_old(history, 450)); /* one that was overtaken */
}

static void what_is_not_answered_is_not_forgotten(void **state)
{
    srv_history *history = *state;
    srv_past *first = srv_history_add(history, 1);
    for (uint64_t id = 2; id < 1000; id++)
        add_answered(history, id);
    assert_ptr_equal(srv_history_find(history, 1), first);
    assert_false(first->is_answered);
    assert_int_equal(first->progress, SRV_PROGRESS_ACCEPTED);
}

static void more_on_the_road_than_are_remembered_are_refused(void **state)
{
    srv_history *history = *state;
    for (uint64_t id = 1; id <= SRV_HISTORY; id++)
        assert_non_null(srv_history_add(history, id));
    assert_null(srv_history_add(history, SRV_HISTORY + 1));
    assert_true(srv_history_answer(srv_history_find(history, 9), NULL, 0));
    assert_non_null(srv_history_add(history, SRV_HISTORY + 1));
    assert_null(srv_history_find(history, 9));
}

#define T_(name) cmocka_unit_test_setup_teardown(name, open_history, close_history)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T_(a_reply_is_kept_as_it_was),
        T_(sixty_four_are_remembered),
        T_(an_id_lower_than_all_is_too_old),
        T_(what_is_not_answered_is_not_forgotten),
        T_(more_on_the_road_than_are_remembered_are_refused),
    };
    return cmocka_run_group_tests_name("srv_history", tests, NULL, NULL);
}
