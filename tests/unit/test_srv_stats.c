/* test_srv_stats.c: counts add up, quantiles are within 1.6 %, a reset leaves the gauges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

#include "daemon/stats.h"

enum { N = 20000 };

static int reset(void **state)
{
    srv_stats_reset();
    return 0;
}

static void record(msg_op op, attnd_status status, srv_stage stage, uint64_t ns)
{
    uint64_t stages[SRV_N_STAGES] = {0};
    stages[stage] = ns;
    srv_stats_request(op, status, stages);
}

static void counters_add_and_gauges_go_both_ways(void **state)
{
    int64_t before = srv_stats_gauge_value(SRV_GAUGE_sessions);
    srv_stats_add(SRV_COUNT_requests, 2);
    srv_stats_add(SRV_COUNT_requests, 3);
    srv_stats_add(SRV_COUNT_received_bytes, UINT64_MAX - 10);
    srv_stats_gauge(SRV_GAUGE_sessions, 5);
    srv_stats_gauge(SRV_GAUGE_sessions, -7);
    assert_int_equal(srv_stats_counter(SRV_COUNT_requests), 5);
    assert_true(srv_stats_counter(SRV_COUNT_received_bytes) == UINT64_MAX - 10);
    assert_int_equal(srv_stats_gauge_value(SRV_GAUGE_sessions), before - 2);
    srv_stats_reset();
    assert_int_equal(srv_stats_counter(SRV_COUNT_requests), 0);
    assert_int_equal(srv_stats_gauge_value(SRV_GAUGE_sessions), before - 2);
    srv_stats_gauge(SRV_GAUGE_sessions, 2);
}

static void a_request_counts_under_its_op_and_status(void **state)
{
    record(MSG_OP_attend, ATTND_OK, SRV_STAGE_TOTAL, 1000);
    record(MSG_OP_attend, ATTND_OK, SRV_STAGE_PLAN, 1000);
    record(MSG_OP_attend, ATTND_UNAVAILABLE, SRV_STAGE_TOTAL, 1000);
    record(MSG_OP_open_ring, ATTND_UNIMPLEMENTED, SRV_STAGE_TOTAL, 1000);
    record(MSG_OP_NONE, ATTND_INVALID_ARGUMENT, SRV_STAGE_DECODE, 1000);
    assert_int_equal(srv_stats_op_status(MSG_OP_attend, ATTND_OK), 2);
    assert_int_equal(srv_stats_op_status(MSG_OP_attend, ATTND_UNAVAILABLE), 1);
    assert_int_equal(srv_stats_op_status(MSG_OP_attend, ATTND_INTERNAL), 0);
    assert_int_equal(srv_stats_op_status(MSG_OP_open_ring, ATTND_UNIMPLEMENTED), 1);
    assert_int_equal(srv_stats_op_status(MSG_OP_NONE, ATTND_INVALID_ARGUMENT), 1);
    assert_int_equal(srv_stats_op_status(MSG_OP_ping, ATTND_OK), 0);
    assert_int_equal(srv_stats_op(MSG_OP_attend, SRV_STAGE_TOTAL).count, 2);
    assert_int_equal(srv_stats_op(MSG_OP_attend, SRV_STAGE_PLAN).count, 1);
    assert_int_equal(srv_stats_op(MSG_OP_attend, SRV_STAGE_LAUNCH).count, 0);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void assert_near(double got_us, uint64_t wanted_ns, const char *what)
{
    double wanted_us = (double)wanted_ns / 1e3;
    if (fabs(got_us - wanted_us) > 0.0161 * wanted_us + 1e-9)
        fail_msg("%s = %.6f us: %.6f within 1.6 %%", what, got_us, wanted_us);
}

static void quantiles_are_within_their_error(void **state)
{
    static uint64_t ns[N];
    unsigned seed = 20240607;
    double sum_us = 0;
    print_message("# seed %u\n", seed);
    srand(seed);
    for (size_t i = 0; i < N; i++) {
        /* 12 octaves up to half an hour, evenly in the exponent. */
        ns[i] = (uint64_t)exp2(1 + 39.5 * rand() / RAND_MAX);
        sum_us += (double)ns[i] / 1e3;
        record(MSG_OP_ping, ATTND_OK, SRV_STAGE_TOTAL, ns[i]);
    }
    qsort(ns, N, sizeof *ns, by_value);
    srv_quantiles q = srv_stats_op(MSG_OP_ping, SRV_STAGE_TOTAL);
    assert_int_equal(q.count, N);
    assert_true(fabs(q.sum_us - sum_us) < 1e-6 * sum_us);
    assert_near(q.p50_us, ns[N / 2 - 1], "p50");
    assert_near(q.p90_us, ns[N * 9 / 10 - 1], "p90");
    assert_near(q.p99_us, ns[N * 99 / 100 - 1], "p99");
    assert_true(q.max_us == (double)ns[N - 1] / 1e3);
}

static void one_value_is_every_quantile(void **state)
{
    static const uint64_t values[] = {1, 2, 63, 64, 65, 127, 128, 1000, 123456789, 1ull << 45};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        srv_stats_reset();
        record(MSG_OP_ping, ATTND_OK, SRV_STAGE_TOTAL, values[i]);
        srv_quantiles q = srv_stats_op(MSG_OP_ping, SRV_STAGE_TOTAL);
        assert_int_equal(q.count, 1);
        assert_near(q.p50_us, values[i], "p50");
        assert_near(q.p99_us, values[i], "p99");
        assert_true(q.p99_us <= q.max_us);
        assert_true(q.max_us == (double)values[i] / 1e3);
    }
}

static void what_is_beyond_the_last_bucket_shows_as_the_maximum(void **state)
{
    record(MSG_OP_ping, ATTND_OK, SRV_STAGE_TOTAL, 1ull << 60);
    srv_quantiles q = srv_stats_op(MSG_OP_ping, SRV_STAGE_TOTAL);
    assert_int_equal(q.count, 1);
    assert_true(q.p50_us == (double)(1ull << 60) / 1e3);
}

static void nothing_recorded_is_all_zero(void **state)
{
    srv_quantiles q = srv_stats_op(MSG_OP_step, SRV_STAGE_TOTAL);
    assert_int_equal(q.count, 0);
    assert_true(q.sum_us == 0 && q.p50_us == 0 && q.p99_us == 0 && q.max_us == 0);
}

static void a_launch_counts_for_the_kernel_of_each_phase(void **state)
{
    const ker_kernel *both[2] = {ker_kernel_at(1), ker_kernel_at(0)};
    const ker_kernel *one[2] = {NULL, ker_kernel_at(0)};
    srv_stats_launch(both, 2000, (ker_floor){.bytes = 1e18, .flops = 3});
    srv_stats_launch(one, 4000, (ker_floor){.bytes = 1e18, .flops = 4});
    srv_kernel_stats first = srv_stats_kernel(0), second = srv_stats_kernel(1);
    assert_int_equal(first.launches, 2);
    assert_true(first.bytes == 2e18 && first.flops == 7);
    assert_int_equal(first.device.count, 2);
    assert_near(first.device.max_us, 4000, "max");
    assert_int_equal(second.launches, 1);
    assert_true(second.bytes == 1e18 && second.flops == 3);
    srv_stats_reset();
    assert_int_equal(srv_stats_kernel(0).launches, 0);
    assert_true(srv_stats_kernel(0).bytes == 0);
    assert_int_equal(srv_stats_kernel(0).device.count, 0);
}

static void a_kernel_of_both_phases_counts_once(void **state)
{
    const ker_kernel *same[2] = {ker_kernel_at(1), ker_kernel_at(1)};
    srv_stats_launch(same, 1000, (ker_floor){.bytes = 5, .flops = 5});
    assert_int_equal(srv_stats_kernel(1).launches, 1);
    assert_int_equal(srv_stats_kernel(0).launches, 0);
}

static void stages_have_the_names_of_the_source(void **state)
{
    static const char *const names[] = {"decode", "queue", "validate", "plan",
                                        "launch", "reply", "total"};
    for (int i = 0; i < SRV_N_STAGES; i++)
        assert_string_equal(srv_stage_name((srv_stage)i), names[i]);
}

static void *add_many(void *arg)
{
    for (int i = 0; i < N; i++)
        srv_stats_add(SRV_COUNT_requests, 1);
    return NULL;
}

static void no_count_is_lost_between_threads(void **state)
{
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(srv_stats_counter(SRV_COUNT_requests), 4 * N);
}

static void a_curve_counts_what_lies_at_or_below_each_bound(void **state)
{
    static const uint64_t bounds[] = {1000, 50000, 1000000};
    uint64_t upto[3];
    const uint64_t values[] = {10, 500, 2000, 49000, 60000, 5000000};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        record(MSG_OP_attend, ATTND_OK, SRV_STAGE_TOTAL, values[i]);
    srv_curve curve = srv_stats_op_curve(MSG_OP_attend, SRV_STAGE_TOTAL, bounds, 3, upto);
    assert_int_equal(curve.count, 6);
    assert_true(fabs(curve.sum - 5111510e-9) < 1e-12);
    assert_int_equal(upto[0], 2);
    assert_int_equal(upto[1], 4);
    assert_int_equal(upto[2], 5);
    curve = srv_stats_op_curve(MSG_OP_attend, SRV_STAGE_PLAN, bounds, 3, upto);
    assert_int_equal(curve.count, 0);
    assert_int_equal(upto[2], 0);
}

static void sizes_are_counted_exactly_at_their_bounds(void **state)
{
    uint64_t upto[SRV_N_SIZES];
    assert_int_equal(srv_stats_size_bound(0), 1);
    assert_int_equal(srv_stats_size_bound(1), 8);
    assert_int_equal(srv_stats_size_bound(SRV_N_SIZES - 1), 16384);
    srv_stats_batch(1, 16384);
    srv_stats_batch(8, 16385);
    srv_stats_batch(9, 2);
    srv_curve rows = srv_stats_size_curve(SRV_SIZE_ROWS, upto);
    assert_int_equal(rows.count, 3);
    assert_true(rows.sum == 18);
    assert_int_equal(upto[0], 1);
    assert_int_equal(upto[1], 2);
    assert_int_equal(upto[2], 3);
    srv_curve tokens = srv_stats_size_curve(SRV_SIZE_TOKENS, upto);
    assert_int_equal(tokens.count, 3);
    assert_int_equal(upto[SRV_N_SIZES - 2], 1);
    assert_int_equal(upto[SRV_N_SIZES - 1], 2);
    srv_stats_reset();
    assert_int_equal(srv_stats_size_curve(SRV_SIZE_TOKENS, upto).count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(counters_add_and_gauges_go_both_ways, reset),
        cmocka_unit_test_setup(a_request_counts_under_its_op_and_status, reset),
        cmocka_unit_test_setup(quantiles_are_within_their_error, reset),
        cmocka_unit_test_setup(one_value_is_every_quantile, reset),
        cmocka_unit_test_setup(what_is_beyond_the_last_bucket_shows_as_the_maximum, reset),
        cmocka_unit_test_setup(nothing_recorded_is_all_zero, reset),
        cmocka_unit_test_setup(a_launch_counts_for_the_kernel_of_each_phase, reset),
        cmocka_unit_test_setup(a_kernel_of_both_phases_counts_once, reset),
        cmocka_unit_test_setup(a_curve_counts_what_lies_at_or_below_each_bound, reset),
        cmocka_unit_test_setup(sizes_are_counted_exactly_at_their_bounds, reset),
        cmocka_unit_test_setup(stages_have_the_names_of_the_source, reset),
        cmocka_unit_test_setup(no_count_is_lost_between_threads, reset),
    };
    return cmocka_run_group_tests_name("srv_stats", tests, NULL, NULL);
}
