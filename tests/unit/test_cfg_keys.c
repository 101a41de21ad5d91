/* test_cfg_keys.c: defaults, flags, variables, what is printed, and checks of more than one key. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "config/keys.h"
#include "config/value.h"

static int fresh(void **state)
{
    *state = malloc(sizeof(cfg));
    if (!*state)
        return -1;
    cfg_defaults(*state);
    return 0;
}

static int drop(void **state)
{
    free(*state);
    return 0;
}

static void sets(cfg *c, const char *key, const char *text)
{
    attnd_err err;
    if (cfg_set(c, key, text, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

static void refuses(cfg *c, const char *key, const char *text, const char *want)
{
    attnd_err err = {0};
    cfg before = *c;
    assert_int_equal(cfg_set(c, key, text, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, want);
    assert_memory_equal(c, &before, sizeof before);
}

static void every_default_is_within_its_own_range(void **state)
{
    cfg *c = *state;
    attnd_err err;
    for (size_t i = 0; i < cfg_n_keys; i++) {
        char text[CFG_VALUE_TEXT];
        assert_true(cfg_get(c, cfg_keys[i].name, text, sizeof text));
        cfg before = *c;
        if (cfg_set(c, cfg_keys[i].name, text, &err) != ATTND_OK)
            fail_msg("%s", err.text);
        assert_memory_equal(c, &before, sizeof before);
    }
    assert_int_equal(cfg_check(c, &err), ATTND_OK);
}

static void names_are_distinct_and_end_with_null(void **state)
{
    size_t n = 0;
    for (; cfg_key_at(n); n++)
        for (size_t i = 0; i < n; i++)
            assert_string_not_equal(cfg_key_at(n), cfg_key_at(i));
    assert_int_equal(n, cfg_n_keys);
    assert_null(cfg_key_at(n));
    assert_null(cfg_key_at(n + 5));
}

static void distance_counts_single_letters(void **state)
{
    assert_int_equal(cfg_key_distance("", ""), 0);
    assert_int_equal(cfg_key_distance("", "abc"), 3);
    assert_int_equal(cfg_key_distance("abc", ""), 3);
    assert_int_equal(cfg_key_distance("abc", "abc"), 0);
    assert_int_equal(cfg_key_distance("abc", "abd"), 1);
    assert_int_equal(cfg_key_distance("abc", "xabc"), 1);
    assert_int_equal(cfg_key_distance("abc", "ab"), 1);
    assert_int_equal(cfg_key_distance("kitten", "sitting"), 3);
    assert_int_equal(cfg_key_distance("sitting", "kitten"), 3);
    char a[200], b[200];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    a[199] = b[199] = '\0';
    assert_int_equal(cfg_key_distance(a, b), 64);
}

static void units_are_read(void **state)
{
    cfg *c = *state;
    sets(c, "data.max_message", "65536");
    assert_int_equal(c->data_max_message, 65536);
    sets(c, "data.max_message", "64KiB");
    assert_int_equal(c->data_max_message, 65536);
    sets(c, "data.max_message", "64 K");
    assert_int_equal(c->data_max_message, 65536);
    sets(c, "data.max_message", "2M");
    assert_int_equal(c->data_max_message, 2 << 20);
    sets(c, "session.max_pool", "3GiB");
    assert_int_equal(c->session_max_pool, 3ll << 30);
    sets(c, "session.max_pool", "16T");
    assert_int_equal(c->session_max_pool, 1ll << 44);
    sets(c, "data.send_timeout", "250");
    assert_int_equal(c->data_send_timeout, 250);
    sets(c, "data.send_timeout", "250ms");
    assert_int_equal(c->data_send_timeout, 250);
    sets(c, "data.send_timeout", "2s");
    assert_int_equal(c->data_send_timeout, 2000);
    sets(c, "data.send_timeout", "10min");
    assert_int_equal(c->data_send_timeout, 600000);
    sets(c, "log.slow", "24h");
    assert_int_equal(c->log_slow, 86400000);
    sets(c, "device.isa", "avx2");
    assert_string_equal(c->device_isa, "avx2");
}

static void what_is_no_value_is_refused_with_what_would_be_right(void **state)
{
    cfg *c = *state;
    const char *bytes = "bytes (65536 or \"64KiB\"), 4KiB..256MiB";
    const char *const wrong[] = {"",
                                 "KiB",
                                 "64kb",
                                 "64KB",
                                 "1.5MiB",
                                 "0x1000",
                                 "-1",
                                 "64  K",
                                 " 64",
                                 "1KiB",
                                 "1GiB",
                                 "9223372036854775808",
                                 "9223372036854775807GiB",
                                 "64K ",
                                 "+4096"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char want[ATTND_ERR_TEXT];
        snprintf(want, sizeof want, "data.max_message = %s: %s", wrong[i], bytes);
        refuses(c, "data.max_message", wrong[i], want);
    }
    refuses(c, "data.contexts", "8K", "data.contexts = 8K: a whole number, 4..4096");
    refuses(c, "device.isa", "avx", "device.isa = avx: auto | avx512 | avx2 | portable");
    refuses(c, "device.isa", "", "device.isa = : auto | avx512 | avx2 | portable");
    refuses(c, "device.isa", "auto|avx512",
            "device.isa = auto|avx512: auto | avx512 | avx2 | portable");
    refuses(c, "log.slow", "2d", "log.slow = 2d: milliseconds (250, \"250ms\" or \"2s\"), 0..24h");
}

static void an_unknown_key_names_the_nearest(void **state)
{
    refuses(*state, "data.contxts", "3", "data.contxts = 3: no such key, nearest is data.contexts");
    refuses(*state, "", "3", " = 3: no such key, nearest is log.slow");
}

static void flags_are_true_or_false(void **state)
{
    cfg *c = *state;
    attnd_err err;
    char text[CFG_VALUE_TEXT];
    const cfg_key key = {.name = "test.flag",
                         .type = CFG_TYPE_FLAG,
                         .offset = offsetof(cfg, runtime_dir),
                         .number = 1};
    cfg_value_default(c, &key);
    cfg_value_text(c, &key, text);
    assert_string_equal(text, "true");
    assert_int_equal(cfg_value_set(c, &key, key.name, "false", &err), ATTND_OK);
    cfg_value_text(c, &key, text);
    assert_string_equal(text, "false");
    assert_int_equal(cfg_value_set(c, &key, key.name, "yes", &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "test.flag = yes: true | false");
}

static void values_are_written_with_their_largest_whole_unit(void **state)
{
    cfg *c = *state;
    char text[64];
    c->data_max_message = 4097;
    assert_true(cfg_get(c, "data.max_message", text, sizeof text));
    assert_string_equal(text, "4097");
    c->data_max_message = 6 << 10;
    assert_true(cfg_get(c, "data.max_message", text, sizeof text));
    assert_string_equal(text, "6KiB");
    c->log_slow = 0;
    assert_true(cfg_get(c, "log.slow", text, sizeof text));
    assert_string_equal(text, "0");
    c->log_slow = 1500;
    assert_true(cfg_get(c, "log.slow", text, sizeof text));
    assert_string_equal(text, "1500ms");
    assert_true(cfg_get(c, "log.level", text, sizeof text));
    assert_string_equal(text, "info");
    assert_false(cfg_get(c, "log.levl", text, sizeof text));
    assert_true(cfg_get(c, "log.level", text, 3));
    assert_string_equal(text, "in");
}

static void variables_set_keys_and_others_are_left_alone(void **state)
{
    cfg *c = *state;
    attnd_err err;
    char *const env[] = {"HOME=/x",
                         "ATTND_DATA_MAX_MESSAGE=64KiB",
                         "ATTND_LOG_LEVEL=warn",
                         "ATTND_TEST_SLOW=1",
                         "ATTND_BUILD=build/release",
                         "XATTND_NO=1",
                         "ATTND_RUNTIME_DIR=/run/x",
                         NULL};
    assert_int_equal(cfg_read_env(c, env, &err), ATTND_OK);
    assert_int_equal(c->data_max_message, 65536);
    assert_string_equal(c->log_level, "warn");
    assert_string_equal(c->runtime_dir, "/run/x");
}

static void a_wrong_variable_is_refused_by_its_own_name_and_sets_nothing(void **state)
{
    cfg *c = *state, before = *c;
    attnd_err err;
    char *const unknown[] = {"ATTND_LOG_LEVEL=warn", "ATTND_DATA_CONTEXT=9", NULL};
    assert_int_equal(cfg_read_env(c, unknown, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text,
                        "ATTND_DATA_CONTEXT = 9: no such variable, nearest is ATTND_DATA_CONTEXTS");
    assert_int_equal(attnd_err_field_len(&err), strlen("ATTND_DATA_CONTEXT"));
    char *const wrong[] = {"ATTND_LOG_LEVEL=warn", "ATTND_DATA_CONTEXTS=3", NULL};
    assert_int_equal(cfg_read_env(c, wrong, &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "ATTND_DATA_CONTEXTS = 3: a whole number, 4..4096");
    assert_memory_equal(c, &before, sizeof before);
}

static void refuses_all(const cfg *c, const char *want)
{
    attnd_err err;
    assert_int_equal(cfg_check(c, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, want);
}

static void one_session_must_not_take_every_context(void **state)
{
    cfg *c = *state;
    attnd_err err;
    c->data_contexts = 20;
    refuses_all(c, "session.max_in_flight = 16: at most 15, three quarters of data.contexts = 20; "
                   "the rest is kept for Ping and Hello");
    c->session_max_in_flight = 15;
    assert_int_equal(cfg_check(c, &err), ATTND_OK);
}

static void the_workspace_must_hold_the_angles_of_the_largest_call(void **state)
{
    cfg *c = *state;
    attnd_err err;
    c->limits_max_tokens = 65537;
    refuses_all(c, "device.workspace = 268435456: the angles of limits.max_tokens = 65537 times "
                   "limits.max_head_dim = 1024 take 268439552 bytes");
    c->limits_max_head_dim = 1023;
    assert_int_equal(cfg_check(c, &err), ATTND_OK);
}

static void the_file_in_the_tree_is_the_printed_defaults(void **state)
{
    char *printed = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&printed, &n);
    assert_non_null(memory);
    cfg_print_defaults(memory);
    assert_int_equal(fclose(memory), 0);
    FILE *file = fopen("config/attnd.json", "rb");
    assert_non_null(file);
    char *kept = calloc(1, n + 2);
    assert_non_null(kept);
    size_t n_kept = fread(kept, 1, n + 1, file);
    fclose(file);
    if (n_kept != n || memcmp(kept, printed, n) != 0)
        fail_msg("config/attnd.json is not what keys.def prints:\n%s", printed);
    free(kept);
    free(printed);
}

static void the_file_in_the_tree_reads_back_as_the_defaults(void **state)
{
    cfg *c = *state, defaults = *c;
    attnd_err err;
    c->data_contexts = 5;
    snprintf(c->log_level, sizeof c->log_level, "error");
    if (cfg_read_file(c, "config/attnd.json", &err) != ATTND_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < cfg_n_keys; i++) {
        char want[CFG_VALUE_TEXT], got[CFG_VALUE_TEXT];
        cfg_value_text(&defaults, &cfg_keys[i], want);
        cfg_value_text(c, &cfg_keys[i], got);
        assert_string_equal(got, want);
    }
}

/* Both pages: no line beyond 100 columns, every key there. */
static void pages_fit_100_columns_and_name_every_key(void **state)
{
    void (*const pages[])(FILE *) = {cfg_help, cfg_print_defaults};
    for (int page = 0; page < 2; page++) {
        char *text = NULL;
        size_t n = 0;
        FILE *memory = open_memstream(&text, &n);
        assert_non_null(memory);
        pages[page](memory);
        assert_int_equal(fclose(memory), 0);
        for (size_t i = 0; i < cfg_n_keys; i++) {
            char name[CFG_TEXT];
            if (page == 0)
                snprintf(name, sizeof name, "  --%s=", cfg_keys[i].name);
            else
                snprintf(name, sizeof name,
                         "        \"%s\": ", cfg_keys[i].name + cfg_keys[i].n_section + 1);
            assert_non_null(strstr(text, name));
        }
        for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
            if (strcspn(line, "\n") > 100)
                fail_msg("%.*s", (int)strcspn(line, "\n"), line);
        free(text);
    }
}

static void the_runtime_directory_follows_its_order(void **state)
{
    cfg *c = *state;
    cfg_text dir, tmp;
    setenv("RUNTIME_DIRECTORY", "/run/a:/run/b", 1);
    setenv("XDG_RUNTIME_DIR", "/run/user/9", 1);
    snprintf(c->runtime_dir, sizeof c->runtime_dir, "/my/own");
    cfg_runtime_dir(c, dir);
    assert_string_equal(dir, "/my/own");
    c->runtime_dir[0] = '\0';
    cfg_runtime_dir(c, dir);
    assert_string_equal(dir, "/run/a");
    setenv("RUNTIME_DIRECTORY", "", 1);
    cfg_runtime_dir(c, dir);
    assert_string_equal(dir, "/run/user/9/attnd");
    unsetenv("RUNTIME_DIRECTORY");
    unsetenv("XDG_RUNTIME_DIR");
    cfg_runtime_dir(c, dir);
    snprintf(tmp, sizeof tmp, "/tmp/attnd-%u", (unsigned)getuid());
    bool own = access("/run/attnd", W_OK) == 0 || access("/run", W_OK) == 0;
    assert_string_equal(dir, own ? "/run/attnd" : tmp);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fresh, drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_default_is_within_its_own_range),
        TEST(names_are_distinct_and_end_with_null),
        TEST(distance_counts_single_letters),
        TEST(units_are_read),
        TEST(what_is_no_value_is_refused_with_what_would_be_right),
        TEST(an_unknown_key_names_the_nearest),
        TEST(flags_are_true_or_false),
        TEST(values_are_written_with_their_largest_whole_unit),
        TEST(variables_set_keys_and_others_are_left_alone),
        TEST(a_wrong_variable_is_refused_by_its_own_name_and_sets_nothing),
        TEST(one_session_must_not_take_every_context),
        TEST(the_workspace_must_hold_the_angles_of_the_largest_call),
        TEST(the_file_in_the_tree_is_the_printed_defaults),
        TEST(the_file_in_the_tree_reads_back_as_the_defaults),
        TEST(pages_fit_100_columns_and_name_every_key),
        TEST(the_runtime_directory_follows_its_order),
    };
    return cmocka_run_group_tests_name("cfg_keys", tests, NULL, NULL);
}
