/* test_srv_road_oom.c: whichever allocation of a request fails, it is refused for want of room and
 * nothing has changed, or it is done all the same; then it can be sent again. And a decode step of
 * a session that is warm allocates nothing, traced or not.
 *
 * Every malloc, calloc, realloc, aligned_alloc and mmap counts that is made, by us or for us by a
 * library, while the daemon's code runs for a request: from its bytes to those of its reply. The
 * device is that of the fuzz targets, whose work does not count.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "attnd.pb-c.h"
#include "daemon/plan.h"
#include "tests/fuzz/world.h"
#include "tests/support/oom.h"

OOM_INTERPOSE
OOM_INTERPOSE_MORE

enum { MESSAGE = 4096, WARM = 80, STEPS = 200 };

/* A request of the fuzzers' corpus: the first of its file. */
typedef struct bytes {
    uint8_t at[MESSAGE];
    size_t n;
} bytes;

static bytes read_request(const char *name)
{
    bytes out;
    char path[256];
    snprintf(path, sizeof path, "tests/fuzz/corpus/request/%s", name);
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    out.n = fread(out.at, 1, sizeof out.at, file);
    fclose(file);
    assert_true(out.n > 2);
    out.n = out.at[0] | (size_t)out.at[1] << 8;
    memmove(out.at, out.at + 2, out.n);
    return out;
}

static attnd_reason send_request(const bytes *request)
{
    const uint8_t *at = request->at;
    fuzz_world_send(&at, &request->n, 1);
    return fuzz_world_reason(0);
}

static void count_ours(bool is_on_the_road)
{
    if (is_on_the_road)
        oom_resume();
    else
        oom_pause();
}

static int open_world(void **state)
{
    fuzz_world_open();
    return 0;
}

static int close_world(void **state)
{
    fuzz_on_the_road = NULL;
    fuzz_world_close();
    return 0;
}

static void every_allocation_of_a_request_may_fail(void **state)
{
    static const struct {
        const char *name;
        size_t at_least; /* allocations it makes */
    } requests[] = {
        {"ping", 0},
        {"hello", 2},
        {"open_model", 7},
        {"open_model_rich", 12},
        {"create_buffer", 1},
        {"create_named", 1},
        {"create_plan", 3},
        {"create_plan_refs", 3},
        {"update_plan_grows", 0},
        {"attend", 0},
        {"attend_context", 0},
        {"attend_plan", 0},
        {"step", 0},
        {"step_update", 0},
        {"merge", 0},
        {"drop_plan", 0},
        {"free_buffer", 0},
        {"close_model", 0},
        {"goodbye", 0},
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        bytes request = read_request(requests[i].name);
        size_t n_refused = 0;
        fuzz_on_the_road = count_ours;
        attnd_reason reason;
        OOM_EACH(
            n, failed,
            {
                oom_pause();
                reason = send_request(&request);
                oom_resume();
            },
            {
                if (reason != ATTND_NO_REASON && reason != ATTND_NO_ROOM)
                    fail_msg("allocation %zu of %s: %s", n, requests[i].name,
                             attnd_reason_name(reason));
                n_refused += reason == ATTND_NO_ROOM;
                if (reason == ATTND_NO_ROOM && !fuzz_world_is_as_opened())
                    fail_msg("allocation %zu of %s changed something", n, requests[i].name);
                assert_true(failed || reason == ATTND_NO_REASON);
                fuzz_on_the_road = NULL;
                fuzz_world_reset();
                assert_int_equal(send_request(&request), ATTND_NO_REASON);
                fuzz_world_reset();
                fuzz_on_the_road = count_ours;
            });
        fuzz_on_the_road = NULL;
        if (n_refused < requests[i].at_least)
            fail_msg("%s: %zu allocations failed, %zu at least are made", requests[i].name,
                     n_refused, requests[i].at_least);
    }
}

/* A request of the corpus in the name of another session, over its own model. */
static bytes in_name_of(const srv_session *session, const char *name)
{
    bytes from = read_request(name), out;
    Attnd__V1__Request *m = attnd__v1__request__unpack(NULL, from.n, from.at);
    m->session = session->number;
    if (m->op_case == ATTND__V1__REQUEST__OP_CREATE_PLAN)
        m->create_plan->model = session->models->handle;
    if (m->op_case == ATTND__V1__REQUEST__OP_OPEN_MODEL)
        m->open_model->spec->groups[0]->n_blocks = 8; /* those of the plan */
    out.n = attnd__v1__request__pack(m, out.at);
    attnd__v1__request__free_unpacked(m, NULL);
    return out;
}

static void the_first_of_a_session_needs_a_table_too(void **state)
{
    static const char *const names[] = {"create_buffer", "open_model", "create_plan"};
    bytes hello = read_request("hello");
    fuzz_world_reset();
    assert_int_equal(send_request(&hello), ATTND_NO_REASON);
    srv_session *session = fuzz_engine.sessions->hh.next;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bytes request = in_name_of(session, names[i]);
        unsigned before =
            HASH_COUNT(session->buffers) + HASH_COUNT(session->models) + HASH_COUNT(session->plans);
        size_t n_refused = 0;
        attnd_reason reason;
        fuzz_on_the_road = count_ours;
        OOM_EACH(
            n, failed,
            {
                oom_pause();
                reason = send_request(&request);
                oom_resume();
            },
            {
                unsigned now = HASH_COUNT(session->buffers) + HASH_COUNT(session->models) +
                               HASH_COUNT(session->plans);
                assert_int_equal(reason, failed ? ATTND_NO_ROOM : ATTND_NO_REASON);
                assert_int_equal(now, before + !failed);
                n_refused += failed;
            });
        fuzz_on_the_road = NULL;
        assert_true(n_refused >= 3); /* the thing, the table and its buckets */
    }
    fuzz_world_reset();
}

static void keep(srv_snapshot *snapshot)
{
}

static void every_allocation_of_a_snapshot_may_fail(void **state)
{
    size_t n_refused = 0;
    srv_snapshot snapshot = {.done = keep};
    OOM_EACH(n, failed, srv_engine_snapshot(&fuzz_engine, &snapshot.event), {
        assert_int_equal(snapshot.status, failed ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK);
        n_refused += failed;
        srv_snapshot_fini(&snapshot);
    });
    assert_true(n_refused >= 5);
}

/* ---- Steady state ---- */

/* The request as it is sent the n-th time: a new id, the version that the plan has then, and the
 * blocks that the first one has brought already. */
static bytes again(const bytes *request, uint64_t n)
{
    bytes out;
    Attnd__V1__Request *m = attnd__v1__request__unpack(NULL, request->n, request->at);
    Attnd__V1__PlanUpdate *update = NULL;
    m->id = 1000 + n;
    if (m->op_case == ATTND__V1__REQUEST__OP_STEP)
        update = m->step->update;
    if (m->op_case == ATTND__V1__REQUEST__OP_UPDATE_PLAN)
        update = m->update_plan->update;
    size_t n_appended = update ? update->n_appended : 0;
    if (update) {
        update->version = n;
        update->n_appended = n == 1 ? n_appended : 0;
    }
    out.n = attnd__v1__request__pack(m, out.at);
    if (update)
        update->n_appended = n_appended;
    attnd__v1__request__free_unpacked(m, NULL);
    return out;
}

static void check_steady_state(void)
{
    static const char *const requests[] = {"attend",      "attend_plan", "attend_context", "step",
                                           "step_update", "update_plan", "merge"};
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        bytes request = read_request(requests[i]);
        fuzz_world_reset();
        for (uint64_t n = 1; n <= WARM + STEPS; n++) {
            bytes now = again(&request, n);
            fuzz_on_the_road = count_ours;
            oom_watch();
            oom_pause();
            attnd_reason reason = send_request(&now);
            oom_resume();
            size_t n_allocations = oom_watched();
            fuzz_on_the_road = NULL;
            assert_int_equal(reason, ATTND_NO_REASON);
            if (n > WARM && n_allocations)
                fail_msg("%s, the %zuth time: %zu allocations", requests[i], (size_t)n,
                         n_allocations);
        }
    }
}

static void steady_state(void **state)
{
    check_steady_state();
}

static void steady_state_while_it_is_traced(void **state)
{
    srv_trace_look look;
    assert_true(srv_trace_look_init(&look, SRV_TRACE_START, SRV_TRACE_LEAST));
    assert_int_equal(srv_trace_serve(&fuzz_engine.trace, &look), ATTND_OK);
    srv_trace_look_fini(&look);
    check_steady_state();
    assert_true(fuzz_engine.trace.ring->n_recorded > (uint64_t)7 * (WARM + STEPS) * 8);
    srv_trace_fini(&fuzz_engine.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_request_may_fail),
        cmocka_unit_test(the_first_of_a_session_needs_a_table_too),
        cmocka_unit_test(every_allocation_of_a_snapshot_may_fail),
        cmocka_unit_test(steady_state),
        cmocka_unit_test(steady_state_while_it_is_traced),
    };
    return cmocka_run_group_tests_name("srv_road_oom", tests, open_world, close_world);
}
