/* test_ora_case.c: a case file is read field by field, its variants are counted and named, and what
 * it does not know is refused with its path.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/oracle/case.h"

#define MODEL                                                                                      \
    "\"spec\": {\"layers\": [{\"n_heads\": 4, \"head_dim\": 8, \"rope\": {\"theta\": 1e6}}], "     \
    "\"groups\": [{\"block_size\": 16, \"kv_dtype\": \"bf16\", \"n_blocks\": 4}]}"
#define ATTEND(more) "{" MODEL ", \"steps\": [{\"attend\": {" more "}}]}"

static void read_variant(const char *text, size_t i, ora_case *out)
{
    ora_case_file *file;
    attnd_err err = {0};
    if (ora_case_file_open(&file, text, &err) != ATTND_OK ||
        ora_case_read(file, i, out, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    ora_case_file_close(file);
}

static void assert_refused(const char *text, const char *wanted)
{
    ora_case_file *file;
    ora_case c;
    attnd_err err = {0};
    attnd_status status = ora_case_file_open(&file, text, &err);
    if (status == ATTND_OK)
        status = ora_case_read(file, 0, &c, &err);
    assert_int_equal(status, ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    assert_string_equal(err.text, wanted);
    ora_case_file_close(file);
}

static void a_case_has_the_fields_of_the_wire(void **state)
{
    ora_case c;
    read_variant(ATTEND("\"layer\": 2, \"batch\": {\"n_contexts\": 1, \"q_lens\": [3, 1], "
                        "\"kv_lens\": {\"repeat\": [5], \"n\": 2}, \"mask\": \"full\", "
                        "\"tables\": [{\"width\": 2, \"block_ids\": {\"values\": [0, -1], "
                        "\"ref\": true}}]}, \"keys\": \"given\", \"lse\": false"),
                 0, &c);
    assert_int_equal(c.spec.layers[0].n_heads, 4);
    assert_int_equal(c.spec.layers[0].rope.pairing, ATTND_ROPE_NEOX);
    assert_true(c.spec.layers[0].rope.theta == 1e6);
    assert_int_equal(c.spec.groups[0].kv_dtype, ATTND_DTYPE_BF16);
    const ora_case_call *call = &c.steps[0].call;
    assert_int_equal(c.steps[0].op, ORA_CASE_ATTEND);
    assert_string_equal(c.steps[0].name, "steps[0]");
    assert_int_equal(call->layer, 2);
    assert_int_equal(call->keys, 1);
    assert_int_equal(call->batch.n_contexts, 1);
    assert_int_equal(call->batch.q_lens.values[0], 3);
    assert_int_equal(call->batch.kv_lens.n, 2);
    assert_int_equal(call->batch.kv_lens.values[1], 5);
    assert_int_equal(call->batch.mask, ORA_CASE_FULL);
    assert_int_equal(call->batch.tables[0].width, 2);
    assert_true(call->batch.tables[0].block_ids.ids.is_ref);
    assert_int_equal(call->batch.tables[0].block_ids.ids.values[1], -1);
    assert_true(call->q.given && call->out.given && !call->k.given && !call->lse.given);
    ora_case_fini(&c);
}

static void a_tensor_is_written_in_the_shortest_way(void **state)
{
    ora_case c;
    read_variant(ATTEND("\"q\": \"nan\", \"k\": [1, 2], \"v\": {\"values\": [[[1, 2, 3]], [[4]]], "
                        "\"patch\": [{\"row\": 1, \"fill\": \"-inf\"}]}, \"out\": \"position\", "
                        "\"stats\": {\"base64\": \"AAEC/w==\"}"),
                 0, &c);
    const ora_case_call *call = &c.steps[0].call;
    assert_int_equal(call->q.source, ORA_CASE_VALUES);
    assert_true(isnan(call->q.values[0]));
    assert_int_equal(call->k.dims[0], 2);
    assert_int_equal(call->k.dims[2], 1);
    assert_int_equal(call->v.dims[0], 2);
    assert_int_equal(call->v.dims[2], 3);
    assert_true(call->v.values[3] == 4 && call->v.values[4] == 0);
    assert_int_equal(call->v.patches[0].n, 1);
    assert_true(call->v.patches[0].fill == -INFINITY);
    assert_int_equal(call->out.source, ORA_CASE_POSITION);
    assert_int_equal(call->stats.n_bytes, 4);
    assert_memory_equal(call->stats.bytes, "\x00\x01\x02\xff", 4);
    ora_case_fini(&c);
}

static void variants_multiply_and_stand_in_for_their_names(void **state)
{
    static const char text[] =
        "{\"variants\": {\"block\": [{\"size\": 1, \"n\": 9}, {\"size\": 4, \"n\": 3}], "
        "\"poison\": [0, \"nan\", \"inf\"]}, "
        "\"spec\": {\"groups\": [{\"block_size\": \"$size\", \"n_blocks\": \"$n\"}]}, "
        "\"steps\": [{\"write\": {\"k\": \"$poison\"}}]}";
    ora_case_file *file;
    ora_case c;
    char name[64];
    assert_int_equal(ora_case_file_open(&file, text, NULL), ATTND_OK);
    assert_int_equal(ora_case_n_variants(file), 6);
    ora_case_variant_name(file, 4, NULL, name, sizeof name);
    assert_string_equal(name, "block=4 poison=nan");
    ora_case_variant_name(file, 4, "poison", name, sizeof name);
    assert_string_equal(name, "block=4");
    assert_int_equal(ora_case_read(file, 4, &c, NULL), ATTND_OK);
    assert_int_equal(c.spec.groups[0].block_size, 4);
    assert_int_equal(c.spec.groups[0].n_blocks, 3);
    assert_true(isnan(c.steps[0].write.k.values[0]));
    ora_case_fini(&c);
    ora_case_file_close(file);
}

static void expectations_are_read(void **state)
{
    ora_case c;
    read_variant("{" MODEL
                 ", \"steps\": [{\"name\": \"a\", \"repeat\": 3, \"attend\": {}, \"expect\": "
                 "{\"out\": {\"rows\": [1], \"within\": 0.5}, \"same_as\": [\"b\", {\"step\": "
                 "\"c\", \"rows\": [0], \"of\": [2]}], \"same_across\": [\"poison\"], \"pool\": "
                 "\"unchanged\", \"error\": {\"reason\": \"BAD_BLOCK\"}}}]}",
                 0, &c);
    const ora_case_expect *e = &c.steps[0].expect;
    assert_int_equal(c.steps[0].repeat, 3);
    assert_true(e->out.given && e->out.within == 0.5);
    assert_int_equal(e->n_same, 2);
    assert_string_equal(e->same_as[0].step, "b");
    assert_int_equal(e->same_as[1].of.values[0], 2);
    assert_string_equal(e->same_across[0], "poison");
    assert_int_equal(e->pool, 2);
    assert_string_equal(e->error.reason, "BAD_BLOCK");
    ora_case_fini(&c);
}

static void what_the_format_does_not_know_is_refused_with_its_path(void **state)
{
    assert_refused("{\n\"steps\": [}", "line 2: no JSON from here on");
    assert_refused("{\"stes\": []}", "stes: no such field, nearest is steps");
    assert_refused("{\"seed\": 1}", "steps = none: a case has at least one");
    assert_refused(ATTEND("\"q\": {\"amplitud\": 2}"),
                   "steps[0].attend.q.amplitud: no such field, nearest is amplitude");
    assert_refused(ATTEND("\"q\": {\"fill\": 2, \"rows\": [1]}"),
                   "steps[0].attend.q.rows: fill says what is in it already");
    assert_refused(ATTEND("\"layer\": -1"),
                   "steps[0].attend.layer = -1: a whole number, 0..4294967295");
    assert_refused(ATTEND("\"layer\": 1, \"layer\": 2"), "steps[0].attend.layer: given twice");
    assert_refused(ATTEND("\"keys\": \"both\""), "steps[0].attend.keys = \"both\": pool | given");
    assert_refused(ATTEND("\"batch\": {\"q_lens\": [1.5]}"),
                   "steps[0].attend.batch.q_lens[0] = 1.5: a whole number, "
                   "-2147483648..2147483647");
    assert_refused("{\"steps\": [{\"attend\": {}, \"merge\": {}}]}",
                   "steps[0]: one of write, open_model, close_model, attend, create_plan, "
                   "update_plan, drop_plan, step, merge");
    assert_refused("{\"variants\": {\"a\": []}, \"steps\": []}", "variants.a: a list of values");
    assert_refused("{\"steps\": [\"$a\"]}", "$a: no axis of variants has that name");
    assert_refused(ATTEND("\"q\": {\"base64\": \"A*==\"}"),
                   "steps[0].attend.q.base64 = \"A*==\": bytes in base64");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_case_has_the_fields_of_the_wire),
        cmocka_unit_test(a_tensor_is_written_in_the_shortest_way),
        cmocka_unit_test(variants_multiply_and_stand_in_for_their_names),
        cmocka_unit_test(expectations_are_read),
        cmocka_unit_test(what_the_format_does_not_know_is_refused_with_its_path),
    };
    return cmocka_run_group_tests_name("ora_case", tests, NULL, NULL);
}
