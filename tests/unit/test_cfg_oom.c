/* test_cfg_oom.c: whichever allocation fails, a config file is refused and sets nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <string.h>

#include "config/config.h"
#include "tests/support/oom.h"

OOM_INTERPOSE

static void a_file_without_memory_is_refused_and_sets_nothing(void **state)
{
    cfg c, before;
    attnd_err err;
    attnd_status status;
    size_t n_refused = 0;
    cfg_defaults(&before);
    before.data_contexts = 17;
    OOM_EACH(n, failed, (c = before, status = cfg_read_file(&c, "config/attnd.json", &err)), {
        if (status != ATTND_OK) {
            assert_true(failed);
            assert_memory_equal(&c, &before, sizeof c);
            assert_non_null(strstr(err.text, "config/attnd.json: "));
            n_refused++;
        }
        if (!failed)
            assert_int_equal(status, ATTND_OK);
    });
    assert_true(n_refused > 50); /* a file, a text, and a node and a name for every key */
    assert_int_not_equal(c.data_contexts, 17);
}

static void models_without_memory_are_refused_and_leave_nothing_behind(void **state)
{
    cfg c;
    cfg_models models;
    attnd_err err;
    attnd_status status;
    size_t n_refused = 0;
    cfg_defaults(&c);
    OOM_EACH(n, failed,
             (status = cfg_read_models(&c, &models, "config/presets/t5-base.json", &err)), {
                 if (status != ATTND_OK) {
                     assert_true(failed);
                     assert_non_null(strstr(err.text, "config/presets/t5-base.json: "));
                     n_refused++;
                 } else {
                     assert_int_equal(models.n_models, 1);
                 }
                 cfg_models_fini(&models);
             });
    assert_true(n_refused > 50);
}

static void a_refusal_for_memory_says_so(void **state)
{
    cfg c;
    attnd_err err;
    cfg_defaults(&c);
    oom_arm(8);
    attnd_status status = cfg_read_file(&c, "config/attnd.json", &err);
    assert_true(oom_disarm());
    assert_int_equal(status, ATTND_RESOURCE_EXHAUSTED);
    assert_int_equal(err.reason, ATTND_NO_ROOM);
    assert_string_equal(err.text, "config/attnd.json: no memory to parse it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_memory_is_refused_and_sets_nothing),
        cmocka_unit_test(models_without_memory_are_refused_and_leave_nothing_behind),
        cmocka_unit_test(a_refusal_for_memory_says_so),
    };
    return cmocka_run_group_tests_name("cfg_oom", tests, NULL, NULL);
}
