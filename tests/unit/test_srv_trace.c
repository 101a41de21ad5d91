/* test_srv_trace.c: spans of requests of the fuzz targets' engine: they follow each other without
 * gaps, the ring forgets the oldest and says so, and nothing is noted unless it is on.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "daemon/session.h"
#include "tests/fuzz/world.h"

enum { MESSAGE = 4096, ROOM = 64 };

static void send_named(const char *name)
{
    static uint8_t bytes[MESSAGE];
    const uint8_t *at = bytes + 2;
    char path[256];
    snprintf(path, sizeof path, "tests/fuzz/corpus/request/%s", name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    assert_true(n > 2);
    n = bytes[0] | (size_t)bytes[1] << 8;
    fuzz_world_send(&at, &n, 1);
}

static srv_trace_look ask(srv_trace_verb verb, size_t room, uint64_t from)
{
    srv_trace_look look;
    assert_true(srv_trace_look_init(&look, verb, room));
    look.from = from;
    assert_int_equal(srv_trace_serve(&fuzz_engine.trace, &look), ATTND_OK);
    return look;
}

/* The answer without its memory. */
static srv_trace_look tell(srv_trace_verb verb, size_t room)
{
    srv_trace_look look = ask(verb, room, 0), told = look;
    srv_trace_look_fini(&look);
    told.ring = NULL;
    told.events = NULL;
    return told;
}

static int open_world(void **state)
{
    fuzz_world_open();
    return 0;
}

static int close_world(void **state)
{
    fuzz_world_close();
    return 0;
}

static int forget(void **state)
{
    fuzz_world_reset();
    srv_trace_fini(&fuzz_engine.trace);
    fuzz_engine.trace = (srv_trace){0};
    return 0;
}

static void nothing_is_noted_unless_it_is_on(void **state)
{
    send_named("attend");
    assert_int_equal(tell(SRV_TRACE_PAGE, 0).room, 0);
    tell(SRV_TRACE_START, ROOM);
    srv_trace_look stopped = tell(SRV_TRACE_STOP, 0);
    assert_true(stopped.was_on);
    send_named("attend");
    srv_trace_look page = tell(SRV_TRACE_PAGE, 0);
    assert_false(page.was_on);
    assert_int_equal(page.n_recorded, 0);
    assert_int_equal(page.room, ROOM);
    assert_false(tell(SRV_TRACE_STOP, 0).was_on);
}

static const srv_trace_event *find(const srv_trace_look *page, srv_trace_kind kind)
{
    for (size_t i = 0; i < page->n; i++)
        if (page->events[i].kind == kind)
            return &page->events[i];
    return NULL;
}

/* The last event is the total; the stages begin where it does and fill it. */
static void check_sum(const srv_trace_look *page)
{
    const srv_trace_event *total = find(page, SRV_TRACE_total);
    assert_non_null(total);
    uint64_t at_ns = total->begin_ns;
    for (size_t i = 0; i < page->n; i++) {
        const srv_trace_event *event = &page->events[i];
        assert_int_equal(event->request, total->request);
        assert_int_equal(event->op, total->op);
        assert_int_equal(event->lane, 0);
        if (event->kind == SRV_TRACE_kernel || event->kind == SRV_TRACE_total)
            continue;
        assert_int_equal(event->begin_ns, at_ns);
        at_ns += event->ns;
    }
    assert_int_equal(at_ns, total->begin_ns + total->ns);
}

static void stages_follow_each_other_and_add_up(void **state)
{
    static const struct {
        const char *name;
        msg_op op;
        bool launches;
    } requests[] = {
        {"ping", MSG_OP_ping, false},    {"create_plan", MSG_OP_create_plan, false},
        {"attend", MSG_OP_attend, true}, {"step", MSG_OP_step, true},
        {"merge", MSG_OP_merge, true},
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        forget(NULL);
        tell(SRV_TRACE_START, ROOM);
        send_named(requests[i].name);
        srv_trace_look page = ask(SRV_TRACE_PAGE, 0, 0);
        check_sum(&page);
        const srv_trace_event *total = find(&page, SRV_TRACE_total);
        const srv_trace_event *kernel = find(&page, SRV_TRACE_kernel);
        assert_int_equal(total->op, requests[i].op);
        assert_int_equal(total->reason, ATTND_NO_REASON);
        assert_int_equal(!!total->part, requests[i].launches);
        assert_int_equal(!!kernel, requests[i].launches);
        assert_int_equal(!!find(&page, SRV_TRACE_device), requests[i].launches);
        assert_non_null(find(&page, SRV_TRACE_run));
        if (kernel)
            assert_int_equal(!kernel->kernels[0] && !kernel->kernels[1],
                             requests[i].op == MSG_OP_merge);
        if (total->op != MSG_OP_ping)
            assert_int_equal(total->session, fuzz_engine.sessions->ordinal);
        assert_int_equal(fuzz_engine.trace.busy[0], 0);
        srv_trace_look_fini(&page);
    }
}

static void the_ring_keeps_the_newest_and_counts_the_rest(void **state)
{
    uint64_t n = 0;
    tell(SRV_TRACE_START, SRV_TRACE_LEAST);
    while (n < 10 * SRV_TRACE_LEAST) {
        fuzz_world_reset();
        send_named("attend");
        srv_trace_look page = ask(SRV_TRACE_PAGE, 0, 0);
        assert_true(page.n_recorded > n);
        n = page.n_recorded;
        uint64_t kept = n < SRV_TRACE_LEAST ? n : SRV_TRACE_LEAST;
        assert_int_equal(page.n, kept);
        assert_int_equal(page.from, n - kept);
        assert_int_equal(page.events[page.n - 1].kind, SRV_TRACE_total);
        srv_trace_look_fini(&page);
    }
    srv_trace_look last = ask(SRV_TRACE_PAGE, 0, n - 1), behind = ask(SRV_TRACE_PAGE, 0, n);
    assert_int_equal(last.n, 1);
    assert_int_equal(behind.n, 0);
    assert_int_equal(behind.from, n);
    srv_trace_look_fini(&last);
    srv_trace_look_fini(&behind);
}

static void one_at_a_time_and_a_new_one_forgets_the_last(void **state)
{
    tell(SRV_TRACE_START, ROOM);
    send_named("ping");
    uint64_t n = tell(SRV_TRACE_PAGE, 0).n_recorded;
    assert_true(n > 0);
    assert_true(tell(SRV_TRACE_START, 2 * ROOM).was_on);
    srv_trace_look page = tell(SRV_TRACE_PAGE, 0);
    assert_int_equal(page.room, ROOM);
    assert_int_equal(page.n_recorded, n);
    tell(SRV_TRACE_STOP, 0);
    assert_false(tell(SRV_TRACE_START, 2 * ROOM).was_on);
    page = tell(SRV_TRACE_PAGE, 0);
    assert_int_equal(page.room, 2 * ROOM);
    assert_int_equal(page.n_recorded, 0);
}

static void an_asker_without_memory_changes_nothing(void **state)
{
    srv_trace_look start = {.verb = SRV_TRACE_START}, page = {.verb = SRV_TRACE_PAGE};
    assert_int_equal(srv_trace_serve(&fuzz_engine.trace, &start), ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(srv_trace_serve(&fuzz_engine.trace, &page), ATTND_RESOURCE_EXHAUSTED);
    assert_false(tell(SRV_TRACE_STOP, 0).was_on);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_noted_unless_it_is_on, forget),
        cmocka_unit_test_teardown(stages_follow_each_other_and_add_up, forget),
        cmocka_unit_test_teardown(the_ring_keeps_the_newest_and_counts_the_rest, forget),
        cmocka_unit_test_teardown(one_at_a_time_and_a_new_one_forgets_the_last, forget),
        cmocka_unit_test_teardown(an_asker_without_memory_changes_nothing, forget),
    };
    return cmocka_run_group_tests_name("srv_trace", tests, open_world, close_world);
}
