/* test_srv_http.c: the three pages, what is asked wrongly, and addresses that are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/http.h"
#include "daemon/stats.h"

static _Atomic bool ready;
static _Atomic uint64_t silent;
static srv_http *http;
static cfg config;
static ker_device_info device = {
    .backend = "cpu", .name = "a \"quoted\\ name", .isa = "portable", .n_threads = 3};

static bool is_ready(void *server, char why[128])
{
    snprintf(why, 128, "%s", ready ? "" : "draining");
    return ready;
}

static uint64_t silent_ms(void *server)
{
    return silent;
}

/* ---- The played engine: three pools of two models, or silence ---- */

static srv_queue queue;
static pthread_t engine;
static _Atomic bool engine_is_silent, engine_leaves, engine_has_no_memory;

static void *copy(const void *views, size_t bytes)
{
    void *out = malloc(bytes);
    assert_non_null(out);
    return memcpy(out, views, bytes);
}

static void fill(srv_engine *unused, srv_event *event)
{
    static const srv_model_view models[] = {
        {.handle = 7, .name = "a \"b\\"}, {.handle = 8, .name = "m"}, {.handle = 9, .name = "m"}};
    static const srv_pool_view pools[] = {{.model = 8,
                                           .name = "main",
                                           .owner = KV_OWNER_SERVER,
                                           .n_blocks = 100,
                                           .n_free = 90,
                                           .bytes = 1000},
                                          {.model = 7,
                                           .name = "x\ny",
                                           .owner = KV_OWNER_CLIENT,
                                           .n_blocks = 5,
                                           .n_free = 5,
                                           .bytes = 1ull << 60},
                                          {.model = 9,
                                           .name = "main",
                                           .owner = KV_OWNER_SERVER,
                                           .n_blocks = 10,
                                           .n_free = 1,
                                           .bytes = 24}};
    srv_snapshot *s = (srv_snapshot *)event;
    s->status = engine_has_no_memory ? ATTND_RESOURCE_EXHAUSTED : ATTND_OK;
    s->models = copy(models, sizeof models);
    s->pools = copy(pools, sizeof pools);
    s->n_models = s->n_pools = 3;
    s->done(s);
}

static void *engine_main(void *arg)
{
    while (!engine_leaves) {
        if (engine_is_silent) {
            usleep(1000);
            continue;
        }
        srv_event *next, *event = srv_queue_take(&queue, SRV_QUEUE_NOW);
        for (; event; event = next) {
            next = event->next;
            event->run(NULL, event);
        }
        usleep(1000);
    }
    return NULL;
}

static int engine_starts(void **state)
{
    srv_queue_init(&queue);
    return pthread_create(&engine, NULL, engine_main, NULL);
}

static int engine_ends(void **state)
{
    engine_leaves = true;
    pthread_join(engine, NULL);
    srv_queue_fini(&queue);
    return 0;
}

static const srv_http_deps deps = {.version = "1.2",
                                   .commit = "abc",
                                   .device = &device,
                                   .engine = &queue,
                                   .snapshot_fill = fill,
                                   .is_ready = is_ready,
                                   .silent_ms = silent_ms};

static int setup(void **state)
{
    attnd_err err;
    cfg_defaults(&config);
    strcpy(config.http_address, "127.0.0.1:0");
    ready = true;
    silent = 0;
    srv_stats_reset();
    assert_int_equal(srv_http_open(&http, &config, &deps, &err), ATTND_OK);
    assert_non_null(http);
    return 0;
}

static int teardown(void **state)
{
    srv_http_close(http);
    http = NULL;
    return 0;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* The whole answer to one request. */
static const char *ask(const char *method, const char *path)
{
    static char text[1 << 17];
    char request[256];
    int fd = connect_to(srv_http_port(http));
    assert_true(fd >= 0);
    int n = snprintf(request, sizeof request,
                     "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", method, path);
    assert_int_equal(send(fd, request, (size_t)n, MSG_NOSIGNAL), n);
    size_t end = 0;
    for (ssize_t got; (got = recv(fd, text + end, sizeof text - 1 - end, 0)) > 0;)
        end += (size_t)got;
    text[end] = '\0';
    close(fd);
    return text;
}

static void answers(const char *path, const char *status, const char *body)
{
    const char *text = ask("GET", path);
    assert_memory_equal(text, status, strlen(status));
    const char *end = strstr(text, "\r\n\r\n");
    assert_non_null(end);
    assert_string_equal(end + 4, body);
}

static void healthz_says_whether_the_loop_turns(void **state)
{
    answers("/healthz", "HTTP/1.1 200", "{\"healthy\":true}\n");
    silent = 9999;
    answers("/healthz", "HTTP/1.1 200", "{\"healthy\":true}\n");
    silent = 12345;
    answers("/healthz", "HTTP/1.1 503",
            "{\"healthy\":false,\"why\":\"the loop has not turned for 12345 ms\"}\n");
}

static void readyz_names_what_is_not_ready(void **state)
{
    answers("/readyz", "HTTP/1.1 200", "{\"ready\":true}\n");
    ready = false;
    answers("/readyz", "HTTP/1.1 503", "{\"ready\":false,\"why\":\"draining\"}\n");
    assert_non_null(strstr(ask("GET", "/readyz"), "Content-Type: application/json\r\n"));
}

static void metrics_are_prometheus_text(void **state)
{
    uint64_t stages[SRV_N_STAGES] = {[SRV_STAGE_TOTAL] = 70000, [SRV_STAGE_QUEUE] = 6000};
    srv_stats_request(MSG_OP_ping, ATTND_OK, stages);
    srv_stats_batch(3, 20000);
    const char *text = ask("GET", "/metrics");
    assert_non_null(strstr(text, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    assert_non_null(strstr(text,
                           "\nattnd_build_info{version=\"1.2\",commit=\"abc\",backend=\"cpu\","
                           "device=\"a \\\"quoted\\\\ name\",isa=\"portable\"} 1\n"));
    assert_non_null(strstr(text, "\nattnd_requests_total{op=\"ping\",code=\"OK\"} 1\n"));
    assert_non_null(strstr(text,
                           "\nattnd_request_duration_seconds_bucket{op=\"ping\",le=\"5e-05\"} 0\n"
                           "attnd_request_duration_seconds_bucket{op=\"ping\",le=\"0.0001\"} 1\n"));
    assert_non_null(strstr(text, "\nattnd_request_duration_seconds_sum{op=\"ping\"} 7e-05\n"
                                 "attnd_request_duration_seconds_count{op=\"ping\"} 1\n"));
    assert_non_null(strstr(text, "\nattnd_batch_rows_bucket{le=\"1\"} 0\n"
                                 "attnd_batch_rows_bucket{le=\"8\"} 1\n"));
    assert_non_null(strstr(text, "\nattnd_batch_tokens_bucket{le=\"16384\"} 0\n"
                                 "attnd_batch_tokens_bucket{le=\"+Inf\"} 1\n"
                                 "attnd_batch_tokens_sum 20000\n"));
    assert_non_null(strstr(text, "\n# TYPE attnd_errors_total counter\nattnd_errors_total 0\n"));
}

static void has_lines(const char *text, const char *const *lines)
{
    for (; *lines; lines++)
        if (!strstr(text, *lines))
            fail_msg("%s\nis not in\n%s", *lines, text);
}

static void pools_of_the_same_names_are_one_series_and_names_are_escaped(void **state)
{
    static const char *const lines[] = {
        "\nattnd_engine_up 1\n",
        "\nattnd_kv_pools 3\n",
        "\n# TYPE attnd_kv_blocks gauge\n"
        "attnd_kv_blocks{model=\"a \\\"b\\\\\",pool=\"x\\ny\",state=\"client\"} 5\n"
        "attnd_kv_blocks{model=\"a \\\"b\\\\\",pool=\"x\\ny\",state=\"free\"} 0\n"
        "attnd_kv_blocks{model=\"a \\\"b\\\\\",pool=\"x\\ny\",state=\"used\"} 0\n"
        "attnd_kv_blocks{model=\"m\",pool=\"main\",state=\"client\"} 0\n"
        "attnd_kv_blocks{model=\"m\",pool=\"main\",state=\"free\"} 91\n"
        "attnd_kv_blocks{model=\"m\",pool=\"main\",state=\"used\"} 19\n# HELP",
        "\nattnd_kv_pool_bytes{model=\"a \\\"b\\\\\",pool=\"x\\ny\"} 1152921504606846976\n"
        "attnd_kv_pool_bytes{model=\"m\",pool=\"main\"} 1024\n# HELP",
        "\n# TYPE attnd_kv_cache_usage_ratio gauge\n"
        "attnd_kv_cache_usage_ratio{model=\"m\",pool=\"main\"} 0.172727273\n# HELP",
        NULL};
    has_lines(ask("GET", "/metrics"), lines);
}

static void what_waits_does_not_run(void **state)
{
    static const char *const lines[] = {"\n# TYPE attnd_requests_running gauge\n"
                                        "attnd_requests_running 3\n",
                                        "\n# TYPE attnd_requests_waiting gauge\n"
                                        "attnd_requests_waiting 6\n",
                                        NULL};
    srv_stats_gauge(SRV_GAUGE_in_flight, 5);
    srv_stats_gauge(SRV_GAUGE_parked, 2);
    srv_stats_gauge(SRV_GAUGE_queued, 4);
    has_lines(ask("GET", "/metrics"), lines);
    srv_stats_gauge(SRV_GAUGE_in_flight, -5);
    srv_stats_gauge(SRV_GAUGE_parked, -2);
    srv_stats_gauge(SRV_GAUGE_queued, -4);
}

/* It is not waited for long, however often, and what it says too late is dropped. */
static void an_engine_that_is_held_up_costs_its_pools_only(void **state)
{
    static const char *const up[] = {"\nattnd_engine_up 1\n", "\nattnd_kv_pools 3\n", NULL};
    static const char *const down[] = {"\nattnd_engine_up 0\n", "\nattnd_pool_bytes ", NULL};
    struct timespec begin, end;
    engine_is_silent = true;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < 20; i++) {
        const char *text = ask("GET", "/metrics");
        has_lines(text, down);
        assert_null(strstr(text, "attnd_kv_"));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    /* Eight of half a second each; after those nothing is asked of it any more. */
    assert_in_range(end.tv_sec - begin.tv_sec, 3, 8);
    answers("/healthz", "HTTP/1.1 200", "{\"healthy\":true}\n");
    engine_is_silent = false;
    usleep(50000);
    has_lines(ask("GET", "/metrics"), up);
    engine_has_no_memory = true;
    has_lines(ask("GET", "/metrics"), down);
    engine_has_no_memory = false;
}

static void what_is_asked_wrongly_is_told_what_is_right(void **state)
{
    answers("/", "HTTP/1.1 404", "/metrics /healthz /readyz\n");
    answers("/metrics/", "HTTP/1.1 404", "/metrics /healthz /readyz\n");
    const char *text = ask("DELETE", "/metrics");
    assert_memory_equal(text, "HTTP/1.1 405", 12);
    assert_non_null(strstr(text, "Allow: GET, HEAD\r\n"));
    text = ask("HEAD", "/healthz");
    assert_memory_equal(text, "HTTP/1.1 200", 12);
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\n");
}

/* Whoever connects and says nothing holds up nobody else. */
static void a_silent_connection_holds_up_nobody(void **state)
{
    int fd = connect_to(srv_http_port(http));
    assert_true(fd >= 0);
    assert_int_equal(send(fd, "GET /met", 8, MSG_NOSIGNAL), 8);
    answers("/readyz", "HTTP/1.1 200", "{\"ready\":true}\n");
    close(fd);
}

static void a_closed_one_is_gone(void **state)
{
    uint16_t port = srv_http_port(http);
    teardown(state);
    assert_int_equal(connect_to(port), -1);
}

static void nothing_is_opened_without_an_address(void **state)
{
    attnd_err err;
    srv_http *none = (srv_http *)&err;
    cfg_defaults(&config);
    assert_int_equal(srv_http_check(&config, &err), ATTND_OK);
    assert_int_equal(srv_http_open(&none, &config, &deps, &err), ATTND_OK);
    assert_null(none);
    srv_http_close(NULL);
}

static void refuses(const char *address, const char *text)
{
    attnd_err err = {0};
    srv_http *none;
    cfg_defaults(&config);
    snprintf(config.http_address, sizeof config.http_address, "%s", address);
    assert_int_equal(srv_http_check(&config, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, text);
    assert_int_equal(srv_http_open(&none, &config, &deps, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, text);
    assert_null(none);
}

static void what_is_no_address_is_refused(void **state)
{
    static const char *const wrong[] = {
        "9464",           "127.0.0.1",        "127.0.0.1:",      "127.0.0.1:x", "127.0.0.1:65536",
        "localhost:9464", "::1:9464",         "[::1]",           "[::1:9464",   "127.0.0.1:-1",
        ":9464",          "[127.0.0.1]:9464", "127.0.0.1:946400"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "http.address = %s: a number and a port, 127.0.0.1:9464 or [::1]:9464", wrong[i]);
        refuses(wrong[i], text);
    }
}

static void the_network_is_refused_without_a_word_that_allows_it(void **state)
{
    attnd_err err;
    refuses(
        "0.0.0.0:9464",
        "http.address = 0.0.0.0:9464: not a loopback address; http.expose = true allows it, and "
        "whoever reaches it reads the numbers");
    refuses("[::]:9464",
            "http.address = [::]:9464: not a loopback address; http.expose = true allows it, and "
            "whoever reaches it reads the numbers");
    config.http_expose = true;
    assert_int_equal(srv_http_check(&config, &err), ATTND_OK);
    strcpy(config.http_address, "127.8.9.1:1");
    config.http_expose = false;
    assert_int_equal(srv_http_check(&config, &err), ATTND_OK);
    strcpy(config.http_address, "[::1]:1");
    assert_int_equal(srv_http_check(&config, &err), ATTND_OK);
}

static void a_port_in_use_is_refused_with_its_reason(void **state)
{
    attnd_err err;
    srv_http *second;
    snprintf(config.http_address, sizeof config.http_address, "127.0.0.1:%u", srv_http_port(http));
    assert_int_equal(srv_http_open(&second, &config, &deps, &err), ATTND_UNAVAILABLE);
    assert_int_equal(err.reason, ATTND_UNREACHABLE);
    char text[128];
    snprintf(text, sizeof text, "http.address = 127.0.0.1:%u: Address already in use",
             srv_http_port(http));
    assert_string_equal(err.text, text);
    assert_null(second);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVED(healthz_says_whether_the_loop_turns),
        SERVED(readyz_names_what_is_not_ready),
        SERVED(metrics_are_prometheus_text),
        SERVED(pools_of_the_same_names_are_one_series_and_names_are_escaped),
        SERVED(what_waits_does_not_run),
        SERVED(an_engine_that_is_held_up_costs_its_pools_only),
        SERVED(what_is_asked_wrongly_is_told_what_is_right),
        SERVED(a_silent_connection_holds_up_nobody),
        SERVED(a_closed_one_is_gone),
        cmocka_unit_test(nothing_is_opened_without_an_address),
        cmocka_unit_test(what_is_no_address_is_refused),
        cmocka_unit_test(the_network_is_refused_without_a_word_that_allows_it),
        SERVED(a_port_in_use_is_refused_with_its_reason),
    };
    return cmocka_run_group_tests_name("srv_http", tests, engine_starts, engine_ends);
}
