/* test_cfg_file.c: a config file is read whole or refused with file, line and column. */
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

static char path[] = "/tmp/attnd_test_cfg_XXXXXX";

static int make_path(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int drop_path(void **state)
{
    return unlink(path);
}

static void write_bytes(const char *text, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void reads(cfg *c, const char *text)
{
    attnd_err err = {0};
    write_bytes(text, strlen(text));
    cfg_defaults(c);
    if (cfg_read_file(c, path, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

/* Refused with "path" + rest, and nothing is set. */
static void refuses_bytes(const char *text, size_t n, const char *rest)
{
    attnd_err err = {0};
    cfg c, before;
    write_bytes(text, n);
    cfg_defaults(&c);
    c.session_max_buffers = 77;
    before = c;
    assert_int_equal(cfg_read_file(&c, path, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    char want[ATTND_ERR_TEXT];
    snprintf(want, sizeof want, "%s%s", path, rest);
    assert_string_equal(err.text, want);
    assert_memory_equal(&c, &before, sizeof c);
}

static void refuses(const char *text, const char *rest)
{
    refuses_bytes(text, strlen(text), rest);
}

static void what_the_file_names_is_set_and_the_rest_stays(void **state)
{
    cfg c, defaults;
    cfg_defaults(&defaults);
    reads(&c,
          "{\"data\": {\"max_message\": \"8MiB\", \"contexts\": 100, \"send_timeout\": \"2s\"},\n"
          " \"log\": {\"level\": \"debug\"}, \"runtime\": {\"dir\": \"/run/x\"}}\n");
    assert_int_equal(c.data_max_message, 8 << 20);
    assert_int_equal(c.data_contexts, 100);
    assert_int_equal(c.data_send_timeout, 2000);
    assert_string_equal(c.log_level, "debug");
    assert_string_equal(c.runtime_dir, "/run/x");
    assert_int_equal(c.session_max_sessions, defaults.session_max_sessions);
    reads(&c, "{}");
    assert_memory_equal(&c, &defaults, sizeof c);
}

static void a_file_goes_over_what_is_there(void **state)
{
    cfg c;
    attnd_err err;
    cfg_defaults(&c);
    c.data_contexts = 99;
    write_bytes("{\"data\": {}, \"device\": {\"threads\": 3}}", 38);
    assert_int_equal(cfg_read_file(&c, path, &err), ATTND_OK);
    assert_int_equal(c.data_contexts, 99);
    assert_int_equal(c.device_threads, 3);
}

static void comments_may_stand_anywhere_and_strings_keep_theirs(void **state)
{
    cfg c;
    reads(&c, "// a file\n/* of\n two */{ // open\n\"runtime\" /**/ : /* // */ {\n"
              "\"dir\": \"/a//b/*c*/ \\\" // d\" // ends\n}\n}//");
    assert_string_equal(c.runtime_dir, "/a//b/*c*/ \" // d");
}

static void a_byte_order_mark_is_no_matter(void **state)
{
    cfg c;
    reads(&c, "\xEF\xBB\xBF{\"device\": {\"threads\": 7}}");
    assert_int_equal(c.device_threads, 7);
    refuses("\xEF\xBB\xBF{\"device\": {\"threads\": -1}}",
            ":1:27: device.threads = -1: a whole number, 0..4096");
}

static void control_bytes_are_space_to_the_parser_and_to_us(void **state)
{
    cfg c;
    reads(&c, "\v{\f\"device\"\x01:\b{\a\"threads\"\x1F: 7\v}\f}\x02");
    assert_int_equal(c.device_threads, 7);
    refuses("\x01{\v\"device\" \f: {\"threads\" :\v-1\v}\x02}",
            ":1:29: device.threads = -1: a whole number, 0..4096");
}

static void an_unknown_section_names_the_nearest(void **state)
{
    refuses("{\n  \"dat\": {}\n}", ":2:3: dat: no such section, nearest is data");
    refuses("{\"Data\": {}}", ":1:2: Data: no such section, nearest is data");
    refuses("{\"data.contexts\": 3}", ":1:2: data.contexts: no such section, nearest is data");
}

static void models_of_the_file_are_refused_as_unserved(void **state)
{
    static const char text[] = "{\n  \"models\": [{\"name\": \"m\"}]\n}";
    attnd_err err = {0};
    cfg c;
    char want[ATTND_ERR_TEXT];
    write_bytes(text, strlen(text));
    cfg_defaults(&c);
    assert_int_equal(cfg_read_file(&c, path, &err), ATTND_UNIMPLEMENTED);
    assert_int_equal(err.reason, ATTND_UNSUPPORTED);
    snprintf(want, sizeof want,
             "%s:2:3: models: this server opens no models from its file, a client opens its own",
             path);
    assert_string_equal(err.text, want);
}

static void an_unknown_key_names_the_nearest(void **state)
{
    refuses("{\n  \"data\": {\n    // size\n    \"max_mesage\": 1\n  }\n}",
            ":4:5: data.max_mesage: no such key, nearest is data.max_message");
    refuses("{\"data\": {\"MAX_MESSAGE\": 65536}}",
            ":1:11: data.MAX_MESSAGE: no such key, nearest is data.max_message");
}

static void a_name_given_twice_is_refused(void **state)
{
    refuses("{\"data\": {\"contexts\": 8,\n\"contexts\": 9}}",
            ":2:1: contexts: line 1 has it already");
    refuses("{\"data\": {},\n \"log\": {}, \"data\": {}}", ":2:13: data: line 1 has it already");
    refuses(
        "{\"data\": {}, /* one\n two */ // three\r\n\"log\": {},\n \"device\": {}, \"log\": {}}",
        ":4:16: log: line 3 has it already");
}

static void a_wrong_type_says_which_is_right(void **state)
{
    refuses("{\"data\": {\"contexts\": \"8\"}}",
            ":1:23: data.contexts = \"8\": a whole number, 4..4096");
    refuses("{\"data\": {\"contexts\": null }}",
            ":1:23: data.contexts = null: a whole number, 4..4096");
    refuses("{\"data\": {\"max_message\": [1, {\"a\": 2}] , \"contexts\": 8}}",
            ":1:26: data.max_message = [1, {\"a\": 2}]: bytes (65536 or \"64KiB\"), 4KiB..256MiB");
    refuses(
        "{\"data\": {\"send_timeout\": true}}",
        ":1:27: data.send_timeout = true: milliseconds (250, \"250ms\" or \"2s\"), 10ms..10min");
    refuses("{\"log\": {\"level\": 3}}", ":1:19: log.level = 3: error | warn | info | debug");
    refuses("{\"runtime\": {\"dir\": 3}}", ":1:21: runtime.dir = 3: text of at most 255 bytes");
    refuses("{\"data\": 3}", ":1:10: data = 3}: a section, {...}");
    refuses("\n [1]", ":2:2: file = [1]: an object of sections, {\"data\": {...}}");
}

static void a_value_out_of_range_says_the_range(void **state)
{
    refuses("{\"data\": {\"contexts\": 4097}}",
            ":1:23: data.contexts = 4097: a whole number, 4..4096");
    refuses("{\"data\": {\"contexts\": 8.5}}",
            ":1:23: data.contexts = 8.5: a whole number, 4..4096");
    refuses("{\"data\": {\"contexts\": 1e1}}",
            ":1:23: data.contexts = 1e1: a whole number, 4..4096");
    /* A double or an int would have made something else of these. */
    refuses("{\"session\": {\"max_pool\": 9007199254740993}}",
            ":1:26: session.max_pool = 9007199254740993: bytes (65536 or \"64KiB\"), 4KiB..16TiB");
    refuses("{\"session\": {\"max_pool\": 18446744073709551616000}}",
            ":1:26: session.max_pool = 18446744073709551616000: bytes (65536 or \"64KiB\"), "
            "4KiB..16TiB");
    refuses("{\"device\": {\"threads\": 4294967297}}",
            ":1:24: device.threads = 4294967297: a whole number, 0..4096");
    refuses("{\"log\": {\"level\": \"loud\"}}",
            ":1:19: log.level = loud: error | warn | info | debug");
}

static void large_numbers_keep_every_digit(void **state)
{
    cfg c;
    reads(&c, "{\"session\": {\"max_pool\": 17592186044415, \"max_buffer\": 4294967297}}");
    assert_int_equal(c.session_max_pool, 17592186044415);
    assert_int_equal(c.session_max_buffer, 4294967297);
}

static void broken_json_says_where(void **state)
{
    refuses("{\n  \"data\": {\n    \"contexts\": 8,\n  }\n}",
            ":4:3: }: JSON, with // and /* */ comments");
    refuses("{\"data\": {\"contexts\": 8} \"log\": {}}",
            ":1:26: \"log\": {}}: JSON, with // and /* */ comments");
    refuses("{ bad: 1}", ":1:3: bad: 1}: JSON, with // and /* */ comments");
    refuses("{\"data\": {\"contexts\": }}", ":1:23: }}: JSON, with // and /* */ comments");
    refuses("{\"data\": {\"contexts", ":1:11: \"contexts: JSON, with // and /* */ comments");
    refuses("{} trailing", ":1:4: trailing: JSON, with // and /* */ comments");
    refuses("{\"data\": {", ":1:11: the file ends: JSON that is closed");
    refuses("", ":1:1: the file ends: JSON that is closed");
    refuses("{ /* never\n closed", ":1:3: /*: a comment ends with */");
    refuses("{\"runtime\": {\"dir\": \"/a\\u0000b\"}}", ":1:24: \\u0000: text without NUL");
    refuses_bytes("{}\0{", 4, ":1:3: NUL byte: a text file");
}

static void deep_nesting_is_refused_and_not_followed(void **state)
{
    enum { DEEP = 100000 };
    char *text = malloc(DEEP);
    assert_non_null(text);
    memset(text, '[', DEEP);
    attnd_err err;
    cfg c;
    write_bytes(text, DEEP);
    free(text);
    cfg_defaults(&c);
    assert_int_equal(cfg_read_file(&c, path, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
}

static void a_file_that_cannot_be_read_says_why(void **state)
{
    attnd_err err;
    cfg c, before;
    cfg_defaults(&c);
    before = c;
    assert_int_equal(cfg_read_file(&c, "/nowhere/attnd.json", &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "/nowhere/attnd.json: No such file or directory");
    assert_int_equal(cfg_read_file(&c, "/tmp", &err), ATTND_INVALID_ARGUMENT);
    assert_string_equal(err.text, "/tmp: Is a directory");
    char *text = malloc(2 << 20);
    assert_non_null(text);
    memset(text, ' ', 2 << 20);
    write_bytes(text, 2 << 20);
    free(text);
    assert_int_equal(cfg_read_file(&c, path, &err), ATTND_INVALID_ARGUMENT);
    char want[ATTND_ERR_TEXT];
    snprintf(want, sizeof want, "%s: more than 1048576 bytes", path);
    assert_string_equal(err.text, want);
    assert_memory_equal(&c, &before, sizeof c);
}

static void a_text_of_256_bytes_is_refused_and_255_are_kept(void **state)
{
    char text[400];
    cfg c;
    snprintf(text, sizeof text, "{\"runtime\": {\"dir\": \"/%0254d\"}}", 0);
    reads(&c, text);
    assert_int_equal(strlen(c.runtime_dir), 255);
    attnd_err err;
    snprintf(text, sizeof text, "{\"runtime\": {\"dir\": \"/%0255d\"}}", 0);
    write_bytes(text, strlen(text));
    assert_int_equal(cfg_read_file(&c, path, &err), ATTND_INVALID_ARGUMENT);
    assert_non_null(strstr(err.text, ": text of at most 255 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_file_names_is_set_and_the_rest_stays),
        cmocka_unit_test(a_file_goes_over_what_is_there),
        cmocka_unit_test(comments_may_stand_anywhere_and_strings_keep_theirs),
        cmocka_unit_test(a_byte_order_mark_is_no_matter),
        cmocka_unit_test(control_bytes_are_space_to_the_parser_and_to_us),
        cmocka_unit_test(an_unknown_section_names_the_nearest),
        cmocka_unit_test(models_of_the_file_are_refused_as_unserved),
        cmocka_unit_test(an_unknown_key_names_the_nearest),
        cmocka_unit_test(a_name_given_twice_is_refused),
        cmocka_unit_test(a_wrong_type_says_which_is_right),
        cmocka_unit_test(a_value_out_of_range_says_the_range),
        cmocka_unit_test(large_numbers_keep_every_digit),
        cmocka_unit_test(broken_json_says_where),
        cmocka_unit_test(deep_nesting_is_refused_and_not_followed),
        cmocka_unit_test(a_file_that_cannot_be_read_says_why),
        cmocka_unit_test(a_text_of_256_bytes_is_refused_and_255_are_kept),
    };
    return cmocka_run_group_tests_name("cfg_file", tests, make_path, drop_path);
}
