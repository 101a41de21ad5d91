/* test_srv_capture.c: what is copied and not yet written has a bound; a folder that goes away loses
 * its files and nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/capture.h"
#include "daemon/op.h"
#include "daemon/session.h"

enum { WIDTH = 64, BOUND = 1 << 20 };

static uv_loop_t loop;
static srv_capture *capture;
static char folder[64];
static const ker_device_info device = {.backend = "cpu", .name = "a \"quoted\\ name", .isa = "x"};

static srv_engine engine; /* whose device is read */

static int setup(void **state)
{
    attnd_err err;
    ker_device_options options = {.backend = "cpu", .n_threads = 1, .n_slots = 1};
    assert_int_equal(ker_device_open(&engine.device, &options, &err), ATTND_OK);
    assert_int_equal(uv_loop_init(&loop), 0);
    strcpy(folder, "/tmp/attnd-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    assert_int_equal(srv_capture_open(&capture, &loop, folder, &device, BOUND, &err), ATTND_OK);
    return 0;
}

static int teardown(void **state)
{
    char command[96];
    srv_capture_close(capture);
    uv_run(&loop, UV_RUN_DEFAULT);
    srv_capture_free(capture);
    ker_device_close(engine.device);
    assert_int_equal(uv_loop_close(&loop), 0);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void start(uint32_t n)
{
    srv_capture_order order = {.n = n, .with_data = true, .dir = folder};
    srv_capture_counts counts;
    attnd_err err;
    assert_int_equal(srv_capture_start(capture, &order, &counts, &err), ATTND_OK);
    assert_string_equal(counts.dir, folder);
}

/* A merge of one part of so many rows. */
static void take(int64_t n_rows)
{
    float *values = calloc((size_t)n_rows * (WIDTH + 1), sizeof *values);
    ker_rows out = {.base = (char *)values,
                    .token_stride = WIDTH * 4,
                    .head_stride = WIDTH * 4,
                    .dtype = ATTND_DTYPE_F32};
    ker_rows lse = {.base = (char *)(values + n_rows * WIDTH),
                    .token_stride = 4,
                    .head_stride = 4,
                    .dtype = ATTND_DTYPE_F32};
    ker_merge_part part = {.out = out, .lse = lse};
    ker_merge_problem merge = {
        .n_tokens = n_rows, .n_heads = 1, .width = WIDTH, .parts = &part, .n_parts = 1, .out = out};
    srv_request request = {.merge = &merge, .op = srv_op_find(MSG_OP_merge), .engine = &engine};
    srv_capture_take(capture, &request);
    free(values);
}

static srv_capture_counts counts(void)
{
    srv_capture_counts out;
    srv_capture_stop(capture, &out);
    return out;
}

static void a_copy_is_written_once_the_loop_runs(void **state)
{
    char path[128];
    start(2);
    take(3);
    assert_int_equal(counts().pending, 1);
    while (counts().pending)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(counts().written, 1);
    snprintf(path, sizeof path, "ls %s | grep -q '^capture-.*-000001.json$'", folder);
    assert_int_equal(system(path), 0);
}

static void what_exceeds_the_bound_is_dropped_and_counted(void **state)
{
    start(5);
    take(3000); /* two tensors of 768,000 bytes */
    take(1500); /* 774,000 bytes in all */
    take(1500); /* the loop has not run: the first is still there */
    take(1);
    srv_capture_counts n = counts();
    assert_int_equal(n.dropped, 2);
    assert_int_equal(n.pending, 2);
    assert_int_equal(n.left, 1);
    while (counts().pending)
        uv_run(&loop, UV_RUN_ONCE);
    start(1);
    take(1500);
    assert_int_equal(counts().pending, 1); /* what is written makes room */
}

static void a_folder_that_is_gone_loses_its_files_alone(void **state)
{
    start(1);
    assert_int_equal(rmdir(folder), 0);
    take(1);
    while (counts().pending)
        uv_run(&loop, UV_RUN_ONCE);
    assert_int_equal(counts().failed, 1);
    assert_int_equal(counts().written, 0);
}

static void nothing_is_taken_when_nothing_is_to_be_recorded(void **state)
{
    take(1);
    start(1);
    take(1);
    take(1);
    assert_int_equal(counts().pending, 1);
    take(1);
    assert_int_equal(counts().pending, 1);
    assert_int_equal(counts().dropped, 0);
    srv_capture_take(NULL, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_copy_is_written_once_the_loop_runs),
        TEST(what_exceeds_the_bound_is_dropped_and_counted),
        TEST(a_folder_that_is_gone_loses_its_files_alone),
        TEST(nothing_is_taken_when_nothing_is_to_be_recorded),
    };
    return cmocka_run_group_tests_name("srv_capture", tests, NULL, NULL);
}
