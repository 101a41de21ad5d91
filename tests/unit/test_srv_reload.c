/* test_srv_reload.c: live keys are in force after a reload, others wait, a refusal changes nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/reload.h"

typedef struct fixture {
    cfg file; /* what read finds */
    cfg config;
    srv_engine engine; /* its queue and its own config are all that is used */
    srv_reload reload;
    bool is_broken;
    char told[1024];
} fixture;

static attnd_status read_again(void *arg, cfg *out, attnd_err *err)
{
    fixture *f = arg;
    if (f->is_broken)
        return attnd_fail(err, ATTND_BAD_CONFIG, "attnd.json:3:5: log.slow = x: milliseconds");
    *out = f->file;
    return ATTND_OK;
}

static void tell(void *arg, const char *key, bool is_applied, const char *was, const char *now)
{
    fixture *f = arg;
    size_t n = strlen(f->told);
    snprintf(f->told + n, sizeof f->told - n, "%s %s: %s -> %s\n", is_applied ? "now" : "later",
             key, was, now);
}

static fixture f;

static int setup(void **state)
{
    memset(&f, 0, sizeof f);
    cfg_defaults(&f.config);
    snprintf(f.config.log_level, sizeof f.config.log_level, "error");
    srv_log_set_level("error");
    f.file = f.engine.own = f.config;
    f.engine.config = &f.engine.own;
    srv_queue_init(&f.engine.queue);
    f.reload =
        (srv_reload){.read = read_again, .arg = &f, .config = &f.config, .engine = &f.engine};
    return 0;
}

static int teardown(void **state)
{
    srv_queue_fini(&f.engine.queue);
    return 0;
}

/* What the engine thread does with its events; how many there were. */
static int run_events(void)
{
    int n = 0;
    for (srv_event *event = srv_queue_take(&f.engine.queue, 1), *next; event; event = next, n++) {
        next = event->next;
        event->run(&f.engine, event);
    }
    return n;
}

static void live_keys_are_in_force_and_others_are_told(void **state)
{
    attnd_err err;
    f.file.session_linger = 7000;
    f.file.log_slow = 5;
    f.file.data_contexts = 80;
    strcpy(f.file.log_level, "warn");
    assert_int_equal(srv_reload_run(&f.reload, tell, &f, &err), ATTND_OK);
    assert_string_equal(f.told, "later data.contexts: 72 -> 80\n"
                                "now session.linger: 2s -> 7s\n"
                                "now log.level: error -> warn\n"
                                "now log.slow: 1s -> 5ms\n");
    assert_int_equal(srv_log_level(), SRV_WARN);
    assert_int_equal(f.config.session_linger, 7000);
    assert_int_equal(f.config.data_contexts, 72);
    /* The engine thread's copy is its own: unchanged until it takes the event. */
    assert_int_equal(f.engine.own.session_linger, 2000);
    assert_int_equal(run_events(), 1);
    assert_int_equal(f.engine.own.session_linger, 7000);
    assert_int_equal(f.engine.own.log_slow, 5);
    assert_int_equal(f.engine.own.data_contexts, 72);
    srv_log_set_level("error");
}

static void what_is_as_before_is_not_told_and_what_waits_is_told_again(void **state)
{
    attnd_err err;
    f.file.limits_max_layers = 7;
    f.file.log_slow = 5;
    assert_int_equal(srv_reload_run(&f.reload, NULL, NULL, &err), ATTND_OK);
    assert_int_equal(srv_reload_run(&f.reload, tell, &f, &err), ATTND_OK);
    assert_string_equal(f.told, "later limits.max_layers: 512 -> 7\n");
    assert_int_equal(run_events(), 2);
}

static void a_level_that_a_method_set_gives_way_to_the_files(void **state)
{
    attnd_err err;
    srv_log_set_level("debug");
    assert_int_equal(srv_reload_run(&f.reload, tell, &f, &err), ATTND_OK);
    assert_string_equal(f.told, "now log.level: debug -> error\n");
    assert_int_equal(srv_log_level(), SRV_ERROR);
    assert_int_equal(run_events(), 1);
}

static void a_config_that_is_refused_changes_nothing(void **state)
{
    attnd_err err;
    cfg before = f.config;
    f.is_broken = true;
    f.file.log_slow = 5;
    assert_int_equal(srv_reload_run(&f.reload, tell, &f, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, "attnd.json:3:5: log.slow = x: milliseconds");
    assert_memory_equal(&f.config, &before, sizeof before);
    assert_memory_equal(&f.engine.own, &before, sizeof before);
    assert_string_equal(f.told, "");
    assert_int_equal(run_events(), 0);
}

/* ---- What the service manager hears ---- */

static int manager; /* its socket */

/* What it has heard since it was asked last: "RELOADING" or "READY" each, "" for nothing. */
static const char *heard(void)
{
    static char all[256];
    char text[128];
    size_t n = 0;
    all[0] = '\0';
    for (ssize_t got; (got = recv(manager, text, sizeof text - 1, MSG_DONTWAIT)) > 0;) {
        text[got] = '\0';
        n += (size_t)snprintf(all + n, sizeof all - n, "%s ", text);
    }
    /* The time is checked where it is heard by a process. */
    char *at = strstr(all, "\nMONOTONIC_USEC=");
    if (at)
        *at = '\0';
    return all;
}

static attnd_status read_while_heard(void *arg, cfg *out, attnd_err *err)
{
    assert_string_equal(heard(), "RELOADING=1");
    return read_again(arg, out, err);
}

static void the_manager_hears_of_it_before_it_is_read_and_after_it_is_in_force(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    attnd_err err;
    snprintf(at.sun_path, sizeof at.sun_path, "/tmp/attnd-notify-%d", (int)getpid());
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    unlink(at.sun_path);
    assert_int_equal(bind(manager, (struct sockaddr *)&at, sizeof at), 0);
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    f.reload.read = read_while_heard;
    f.file.log_slow = 5;
    assert_int_equal(srv_reload_run(&f.reload, tell, &f, &err), ATTND_OK);
    assert_string_equal(heard(), "");
    assert_int_equal(run_events(), 1);
    assert_int_equal(f.engine.own.log_slow, 5);
    assert_string_equal(heard(), "READY=1 ");
    f.is_broken = true;
    assert_int_equal(srv_reload_run(&f.reload, tell, &f, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(heard(), "READY=1 ");
    unsetenv("NOTIFY_SOCKET");
    unlink(at.sun_path);
    close(manager);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(live_keys_are_in_force_and_others_are_told, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_is_as_before_is_not_told_and_what_waits_is_told_again,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_level_that_a_method_set_gives_way_to_the_files, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_config_that_is_refused_changes_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(
            the_manager_hears_of_it_before_it_is_read_and_after_it_is_in_force, setup, teardown),
    };
    return cmocka_run_group_tests_name("srv_reload", tests, NULL, NULL);
}
