/* test_srv_control_oom.c: whichever allocation fails, a line is answered whole, refused or hung up
 * on, and the next client is served.
 *
 * The loop turns on the test's own thread, so that its allocations are the counted ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/control.h"
#include "daemon/log.h"
#include "tests/support/oom.h"

OOM_INTERPOSE

enum { LINE = 1 << 16 };

typedef struct fixture {
    char dir[64], path[128];
    cfg config;
    ker_device *device;
    srv_queue queue;
    srv_control_deps deps;
    uv_loop_t loop;
    srv_control *control;
} fixture;

static bool is_ready(void *server, char why[128])
{
    return true;
}

/* The engine answers at once, on the same thread. */
static void fill(srv_engine *engine, srv_event *event)
{
    srv_snapshot *s = (srv_snapshot *)event;
    s->status = ATTND_OK;
    s->sessions = calloc(2, sizeof *s->sessions);
    s->n_sessions = 2;
    if (!s->sessions) {
        s->status = ATTND_RESOURCE_EXHAUSTED;
        s->n_sessions = 0;
    }
    s->done(s);
}

static int setup(void **state)
{
    static fixture f;
    attnd_err err;
    const ker_device_options options = {
        .n_threads = 1, .n_slots = 1, .workspace_bytes = 1 << 20, .isa = "portable"};
    memset(&f, 0, sizeof f);
    strcpy(f.dir, "/tmp/attnd-control-XXXXXX");
    assert_non_null(mkdtemp(f.dir));
    snprintf(f.path, sizeof f.path, "%s/control", f.dir);
    cfg_defaults(&f.config);
    assert_int_equal(ker_device_open(&f.device, &options, &err), ATTND_OK);
    srv_queue_init(&f.queue);
    assert_int_equal(uv_loop_init(&f.loop), 0);
    f.deps = (srv_control_deps){.config = &f.config,
                                .device = f.device,
                                .instance = 1,
                                .runtime_dir = f.dir,
                                .engine = &f.queue,
                                .snapshot_fill = fill,
                                .is_ready = is_ready};
    assert_int_equal(srv_control_open(&f.control, &f.loop, f.path, &f.deps, &err), ATTND_OK);
    srv_log_set_level("error");
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    srv_control_close(f->control);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    srv_queue_fini(&f->queue);
    ker_device_close(f->device);
    return rmdir(f->dir);
}

/* Turns the loop and the engine until an answer or the end of file is there: its bytes, 0: hung up
 * on, -1: nothing came. */
static ssize_t turn_until_answered(fixture *f, int fd, char *line, size_t bytes)
{
    size_t n = 0;
    for (int i = 0; i < 2000; i++) {
        uv_run(&f->loop, UV_RUN_NOWAIT);
        for (srv_event *e = srv_queue_take(&f->queue, 1), *next; e; e = next) {
            next = e->next;
            e->run(NULL, e);
        }
        ssize_t got = recv(fd, line + n, bytes - n - 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return 0;
        n += got > 0 ? (size_t)got : 0;
        line[n] = '\0';
        if (n && line[n - 1] == '\n')
            return (ssize_t)n;
    }
    return -1;
}

static ssize_t ask(fixture *f, const char *request, char *line, size_t bytes)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strcpy(address.sun_path, f->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    ssize_t n = turn_until_answered(f, fd, line, bytes);
    close(fd);
    /* It sees that the client has left. */
    for (int i = 0; i < 10; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
    return n;
}

static void every_allocation_of_a_call_may_fail(void **state)
{
    fixture *f = *state;
    static const char *const requests[] = {
        "{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"server.info\"}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"sessions.list\",\"params\":{}}\n",
        "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"kernels.list\"},{\"jsonrpc\":\"2.0\",\"id\":2,"
        "\"method\":\"server.ping\"}]\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"kernels.explain\",\"params\":{\"n_heads\":4,"
        "\"head_dim\":64,\"dtype\":\"f32\",\"q_lens\":[5,1],\"kv_lens\":[5,9]}}\n",
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"no.such\"}\n",
        "{\"jsonrpc\":\n",
    };
    static char whole[LINE], line[LINE], after[LINE];
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        size_t n_refused = 0, n_hung_up = 0, n_tries = 0;
        ssize_t n_whole = ask(f, requests[i], whole, sizeof whole), got;
        assert_true(n_whole > 0);
        if (strstr(whole, "uptime_ms"))
            *strstr(whole, "uptime_ms") = '\0'; /* differs from call to call */
        OOM_EACH(n, failed, got = ask(f, requests[i], line, sizeof line), {
            if (got < 0)
                fail_msg("allocation %zu: no answer to %s", n, requests[i]);
            bool is_whole = got > 0 && strncmp(line, whole, strlen(whole)) == 0;
            bool is_refused = got > 0 && (strstr(line, "\"NO_ROOM\"") || strstr(line, "-32700"));
            if (got > 0 && !is_whole && !is_refused)
                fail_msg("allocation %zu of %s is answered with %s", n, requests[i], line);
            n_refused += is_refused && !is_whole;
            n_hung_up += got == 0;
            n_tries = n;
            assert_true(failed || is_whole);
            assert_true(ask(f, requests[i], after, sizeof after) == n_whole ||
                        strstr(after, "uptime_ms"));
        });
        assert_true(n_tries > 4 && n_refused + n_hung_up > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_allocation_of_a_call_may_fail, setup, teardown),
    };
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests_name("srv_control_oom", tests, NULL, NULL);
}
