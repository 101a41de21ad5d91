/* test_srv_log.c: one event is one line, whatever a client's text holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"

/* What srv_log wrote between begin and end. */
static int old_stderr, pipe_ends[2];

static void begin(void)
{
    assert_int_equal(pipe(pipe_ends), 0);
    old_stderr = dup(STDERR_FILENO);
    dup2(pipe_ends[1], STDERR_FILENO);
}

static const char *end(void)
{
    static char text[65536];
    dup2(old_stderr, STDERR_FILENO);
    close(old_stderr);
    close(pipe_ends[1]);
    ssize_t n = read(pipe_ends[0], text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(pipe_ends[0]);
    return text;
}

static void a_line_is_its_level_and_its_text(void **state)
{
    srv_log_set_level("debug");
    begin();
    srv_log(SRV_ERROR, "kernel failed  request=%d", 7);
    srv_log(SRV_WARN, "w");
    srv_log(SRV_INFO, "i");
    srv_log(SRV_DEBUG, "d");
    assert_string_equal(end(), "error kernel failed  request=7\nwarn  w\ninfo  i\ndebug d\n");
}

static void what_is_below_the_level_is_not_written(void **state)
{
    srv_log_set_level("warn");
    begin();
    srv_log(SRV_INFO, "quiet");
    srv_log(SRV_WARN, "loud");
    assert_string_equal(end(), "warn  loud\n");
}

static void a_level_has_a_name_and_an_unknown_name_changes_nothing(void **state)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    for (int i = 0; i < 4; i++) {
        assert_true(srv_log_set_level(names[i]));
        assert_int_equal(srv_log_level(), i);
        assert_string_equal(srv_log_level_name((srv_level)i), names[i]);
        assert_false(srv_log_set_level("Warn"));
        assert_false(srv_log_set_level(""));
        assert_int_equal(srv_log_level(), i);
    }
}

static void a_text_cannot_forge_a_line_or_speak_to_the_terminal(void **state)
{
    srv_log_set_level("info");
    begin();
    srv_log(SRV_INFO, "client=\"%s\"", "a\nerror forged\r\x1b[2J\x7f\t\xc2\x9b é");
    assert_string_equal(end(),
                        "info  client=\"a\\x0aerror forged\\x0d\\x1b[2J\\x7f\\x09\\xc2\x9b é\"\n");
}

static void a_long_text_is_cut_between_characters(void **state)
{
    char text[8192];
    srv_log_set_level("info");
    memset(text, 'x', sizeof text);
    for (size_t shift = 0; shift < 4; shift++) {
        for (size_t i = shift; i + 3 < sizeof text; i += 3)
            memcpy(text + i, "\xe2\x82\xac", 3);
        text[sizeof text - 1] = '\0';
        begin();
        srv_log(SRV_INFO, "%s", text);
        const char *line = end();
        size_t n = strlen(line);
        assert_in_range(n, 2000, 2048);
        assert_string_equal(line + n - 4, "...\n");
        assert_int_equal(line[n - 5] & 0xff, 0xac);
        assert_ptr_equal(strchr(line, '\n'), line + n - 1);
    }
}

/* How often line stands in text. */
static size_t count(const char *text, const char *line)
{
    size_t n = 0;
    for (const char *s = text; (s = strstr(s, line)); s += strlen(line))
        n++;
    return n;
}

/* Every test uses kinds of its own: a kind's second may still run. */
static void a_flood_is_written_up_to_its_rate_and_the_rest_is_counted(void **state)
{
    srv_log_set_level("info");
    srv_log_set_rate(3);
    begin();
    for (int i = 0; i < 1000; i++)
        srv_log(SRV_INFO, "flood  request=%d", i);
    srv_log(SRV_INFO, "other  request=1");
    srv_log_flush(true);
    const char *text = end();
    assert_int_equal(count(text, "flood  request="), 3);
    assert_int_equal(count(text, "other  request=1\n"), 1);
    assert_int_equal(count(text, "warn  lines left out  n=997 kind=\"flood\" in_ms="), 1);
    assert_int_equal(count(text, "left out"), 1);
    srv_log_set_rate(0);
}

static void what_was_left_out_is_said_once_and_not_before_its_second_is_over(void **state)
{
    srv_log_set_level("info");
    srv_log_set_rate(1);
    begin();
    srv_log(SRV_WARN, "burst  n=1");
    srv_log(SRV_WARN, "burst  n=2");
    srv_log_flush(false);
    assert_string_equal(end(), "warn  burst  n=1\n");
    usleep(1050000);
    begin();
    srv_log_flush(false);
    srv_log_flush(false);
    srv_log(SRV_WARN, "burst  n=3");
    const char *text = end();
    assert_int_equal(count(text, "lines left out  n=1 kind=\"burst\" in_ms="), 1);
    assert_int_equal(count(text, "burst  n=3\n"), 1);
    assert_int_equal(count(text, "\n"), 2);
    srv_log_set_rate(0);
}

static void a_new_second_says_first_what_the_last_one_left_out(void **state)
{
    srv_log_set_level("info");
    srv_log_set_rate(1);
    begin();
    srv_log(SRV_INFO, "again  n=1");
    srv_log(SRV_INFO, "again  n=2");
    usleep(1050000);
    srv_log(SRV_INFO, "again  n=3");
    const char *text = end(), *told = strstr(text, "warn  lines left out  n=1 kind=\"again\"");
    assert_non_null(told);
    assert_non_null(strstr(told, "info  again  n=3\n"));
    assert_null(strstr(text, "n=2"));
    srv_log_set_rate(0);
}

static void debug_lines_and_a_rate_of_0_leave_nothing_out(void **state)
{
    srv_log_set_level("debug");
    srv_log_set_rate(1);
    begin();
    for (int i = 0; i < 10; i++)
        srv_log(SRV_DEBUG, "every  n=%d", i);
    srv_log_set_rate(0);
    for (int i = 0; i < 10; i++)
        srv_log(SRV_INFO, "all  n=%d", i);
    srv_log_flush(true);
    const char *text = end();
    assert_int_equal(count(text, "every  n="), 10);
    assert_int_equal(count(text, "all  n="), 10);
    assert_int_equal(count(text, "\n"), 20);
}

static void more_kinds_than_there_is_room_for_share_one(void **state)
{
    srv_log_set_level("info");
    srv_log_set_rate(1);
    begin();
    for (int i = 0; i < 200; i++)
        srv_log(SRV_INFO, "kind%d  x=1", i);
    srv_log_flush(true);
    const char *text = end();
    size_t n_written = count(text, "  x=1\n");
    assert_in_range(n_written, 2, 64);
    char told[64];
    snprintf(told, sizeof told, "lines left out  n=%zu kind=\"others\"", 200 - n_written);
    assert_int_equal(count(text, told), 1);
    srv_log_set_rate(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_its_level_and_its_text),
        cmocka_unit_test(what_is_below_the_level_is_not_written),
        cmocka_unit_test(a_level_has_a_name_and_an_unknown_name_changes_nothing),
        cmocka_unit_test(a_text_cannot_forge_a_line_or_speak_to_the_terminal),
        cmocka_unit_test(a_long_text_is_cut_between_characters),
        cmocka_unit_test(a_flood_is_written_up_to_its_rate_and_the_rest_is_counted),
        cmocka_unit_test(what_was_left_out_is_said_once_and_not_before_its_second_is_over),
        cmocka_unit_test(a_new_second_says_first_what_the_last_one_left_out),
        cmocka_unit_test(debug_lines_and_a_rate_of_0_leave_nothing_out),
        cmocka_unit_test(more_kinds_than_there_is_room_for_share_one),
    };
    return cmocka_run_group_tests_name("srv_log", tests, NULL, NULL);
}
