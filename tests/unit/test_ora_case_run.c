/* test_ora_case_run.c: a case is green against a target that is right, and red against one that is
 * wrong in any one way; steps, variants and expectations mean what the format says.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/oracle/case_json.h"
#include "tests/oracle/case_judge.h"
#include "tests/oracle/case_run.h"
#include "tests/oracle/case_shadow.h"

/* How a target is wrong. */
typedef enum fault {
    NONE,
    OUT_OFF,       /* an output by more than its gate */
    OUT_NAN,       /* one element of one row */
    LSE_OFF,       /* by a thousandth */
    LSE_LOG2,      /* to the base of 2 */
    LATE_BITS,     /* the second run of a call has other last bits */
    UNWRITTEN,     /* a row of the output is left */
    WRONG_SLOT,    /* stores one row further */
    STORES_MINUS,  /* slot -1 is row 0 */
    ACCEPTS,       /* what must be refused */
    REFUSES_LATE,  /* with an output half written */
    OTHER_REASON,  /* for a refusal */
    FORGETS_PLANS, /* an update changes nothing */
} fault;

static struct {
    fault fault;
    ora_shadow shadow;
    ora_arena *arena;
    uint32_t n_calls, n_reads, n_opened, n_plans;
    ora_case_batch planned;
    const char *lacks;
} fake;

static attnd_status fake_open(void *self, const ora_case_spec *spec, uint64_t *model,
                              uint32_t *n_blocks, attnd_err *err)
{
    if (spec->layers[0].n_heads == 33 && fake.fault != ACCEPTS)
        return attnd_fail(err, fake.fault == OTHER_REASON ? ATTND_NO_ROOM : ATTND_BAD_GEOMETRY,
                          "spec.layers[0].n_heads = 33: a multiple of 2");
    ora_shadow_fini(&fake.shadow);
    *model = 7;
    fake.n_opened++;
    for (size_t g = 0; g < spec->n_groups; g++)
        n_blocks[g] = spec->groups[g].n_blocks;
    if (spec->layers[0].n_heads == 33)
        return ATTND_OK;
    return ora_shadow_init(&fake.shadow, fake.arena, spec, n_blocks, err);
}

static attnd_status fake_close(void *self, uint64_t model, attnd_err *err)
{
    assert_int_equal(model, 7);
    fake.n_opened--;
    return ATTND_OK;
}

static bool fake_has(void *self, const char *feature)
{
    return !fake.lacks || strcmp(feature, fake.lacks) != 0;
}

static float *floats(const ora_bytes *b)
{
    return (float *)b->region;
}

static void spoil(const ora_call *call)
{
    size_t row = (size_t)call->out.heads * call->out.width;
    float *out = floats(&call->out), *lse = floats(&call->lse);
    size_t n_lse = call->lse.n_packed / 4;
    switch (fake.fault) {
    case OUT_OFF:
        out[row + 1] += 1e-3f;
        break;
    case OUT_NAN:
        out[row + 1] = NAN;
        break;
    case LSE_OFF:
        lse[1] += 1e-3f;
        break;
    case LSE_LOG2:
        for (size_t i = 0; i < n_lse; i++)
            lse[i] *= 1.442695f;
        break;
    case LATE_BITS:
        if (++fake.n_reads % 2 == 0)
            out[1] = nextafterf(out[1], INFINITY);
        break;
    case UNWRITTEN:
        memset(out + row, 0xFF, row * 4);
        break;
    default:
        break;
    }
}

static bool is_bad(const ora_case_batch *batch)
{
    for (size_t i = 0; i < batch->tables->block_ids.ids.n; i++)
        if (batch->tables->block_ids.ids.values[i] == 99)
            return true;
    return false;
}

static attnd_status fake_attend(void *self, const ora_call *call, attnd_err *err)
{
    ora_result result;
    ora_call mine = *call;
    ora_case_batch batch = call->plan ? fake.planned : *call->batch;
    int32_t slots[64];
    fake.n_calls++;
    if (is_bad(&batch)) {
        if (fake.fault == REFUSES_LATE)
            floats(&call->out)[0] = 1;
        if (fake.fault != ACCEPTS)
            return attnd_fail(err, ATTND_BAD_BLOCK, "batch.tables[0].block_ids[0] = 99: 0..3");
        batch.tables->block_ids.ids.values[0] = 0;
    }
    if (batch.slots.given) {
        for (size_t i = 0; i < batch.slots.n; i++) {
            slots[i] = batch.slots.values[i];
            if (fake.fault == WRONG_SLOT && slots[i] >= 0)
                slots[i]++;
            if (fake.fault == STORES_MINUS && slots[i] < 0)
                slots[i] = 0;
        }
        batch.slots.values = slots;
    }
    attnd_status status =
        ora_shadow_attend(&fake.shadow, fake.arena, &mine, &batch, 0, &result, err);
    if (status != ATTND_OK)
        return status;
    ora_judge_write(&result, 0, &mine.out, &mine.lse, &mine.stats);
    ora_result_fini(&result);
    if (!call->k.given)
        spoil(call);
    return ATTND_OK;
}

static attnd_status fake_create_plan(void *self, uint64_t model, const ora_case_batch *batch,
                                     bool batch_invariant, uint64_t *plan, attnd_err *err)
{
    fake.planned = *batch;
    *plan = ++fake.n_plans;
    return ATTND_OK;
}

static attnd_status fake_update_plan(void *self, uint64_t plan, const ora_case_update *update,
                                     attnd_err *err)
{
    if (update->version == 7)
        return attnd_fail(err, ATTND_STALE, "update.version = 7: 1 is the newest");
    if (fake.fault != FORGETS_PLANS)
        fake.planned.kv_lens = update->kv_lens;
    return ATTND_OK;
}

static attnd_status fake_drop_plan(void *self, uint64_t plan, attnd_err *err)
{
    fake.n_plans--;
    return ATTND_OK;
}

static const ora_target target = {.backend = NEAR_CPU,
                                  .has = fake_has,
                                  .open_model = fake_open,
                                  .close_model = fake_close,
                                  .attend = fake_attend,
                                  .create_plan = fake_create_plan,
                                  .update_plan = fake_update_plan,
                                  .drop_plan = fake_drop_plan};

static ora_report report;

/* Every variant, until one fails. */
static ora_verdict run_with(fault how, const char *text, const ora_run_options *options)
{
    ora_case_file *file;
    attnd_err err = {0};
    ora_bits *bits = ora_bits_make();
    memset(&fake, 0, sizeof fake);
    fake.fault = how;
    fake.arena = ora_arena_make();
    if (ora_case_file_open(&file, text, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < ora_case_n_variants(file); i++) {
        ora_case_run(file, i, &target, options, bits, &report);
        assert_int_equal(fake.n_opened, 0);
        assert_int_equal(fake.n_plans, 0);
        if (report.verdict != ORA_CASE_OK)
            break;
    }
    ora_case_file_close(file);
    ora_bits_free(bits);
    ora_shadow_fini(&fake.shadow);
    ora_arena_free(fake.arena);
    return report.verdict;
}

static const ora_run_options plain = {0};

static void assert_found(fault how, const char *text, const char *message)
{
    assert_int_equal(run_with(NONE, text, &plain), ORA_CASE_OK);
    assert_int_equal(run_with(how, text, &plain), ORA_CASE_FAILED);
    if (!strstr(report.text, message))
        fail_msg("\"%s\" has no \"%s\"", report.text, message);
}

#define SPEC                                                                                       \
    "\"spec\": {\"layers\": [{\"n_heads\": 2, \"head_dim\": 8}], \"groups\": [{\"block_size\": "   \
    "4, "                                                                                          \
    "\"kv_dtype\": \"f32\", \"n_blocks\": 4}]}"
#define FILL "{\"write\": {}}, "
#define TWO                                                                                        \
    "\"batch\": {\"q_lens\": [1, 1], \"kv_lens\": [7, 5], \"tables\": [{\"block_ids\": [3, 1, 0, " \
    "2]}]}"
#define RANDOM "{" SPEC ", \"steps\": [" FILL "{\"attend\": {" TWO "}}]}"

static void wrong_numbers_are_found(void **state)
{
    assert_found(OUT_OFF, RANDOM, "steps[1]: out[token 1][head 0][1]");
    assert_found(OUT_NAN, RANDOM, "steps[1]: out[token 1][head 0][1] = nan");
    assert_found(UNWRITTEN, RANDOM, "out[token 1][head 0][0] = -nan");
    assert_found(LSE_OFF, RANDOM, "steps[1]: lse[token 0][head 1]");
    assert_found(LSE_LOG2, RANDOM, "lse[token");
}

static void the_worst_error_is_told_in_parts_of_its_gate(void **state)
{
    assert_int_equal(run_with(NONE, RANDOM, &plain), ORA_CASE_OK);
    assert_true(report.out > 0 && report.out < 0.1);
    assert_int_equal(run_with(OUT_OFF, RANDOM, &plain), ORA_CASE_FAILED);
    assert_true(report.out > 2);
}

static void given_values_must_be_the_evaluators(void **state)
{
    assert_int_equal(run_with(NONE,
                              "{" SPEC ", \"steps\": [{\"write\": {\"k\": 0, \"v\": \"position\"}},"
                              " {\"attend\": {" TWO "}, \"expect\": {\"out\": [1, 2]}}]}",
                              &plain),
                     ORA_CASE_FAILED);
    assert_non_null(strstr(report.text, "the evaluator's out[row 0][0] = 9.85714286: 1 within"));
    /* And decide alone where the case says so. */
    const char *alone =
        "{" SPEC ", \"steps\": [{\"write\": {\"k\": 0, \"v\": 2}}, {\"attend\": {" TWO
        "}, \"expect\": {\"oracle\": false, \"out\": 2, \"lse\": [1.9459101, "
        "1.6094379]}}]}";
    assert_found(OUT_OFF, alone, "out[token 1][head 0][1]");
    assert_found(LSE_OFF, alone, "lse[token 0][head 1]");
}

static void other_bits_are_found(void **state)
{
    assert_found(LATE_BITS,
                 "{" SPEC ", \"steps\": [" FILL "{\"repeat\": 2, \"attend\": {" TWO "}}]}",
                 "repeat = 2: run 2 has other bits");
    assert_found(LATE_BITS,
                 "{" SPEC ", \"steps\": [" FILL "{\"name\": \"a\", \"attend\": {" TWO
                 "}}, {\"attend\": {" TWO "}, \"expect\": {\"same_as\": \"a\"}}]}",
                 "steps[2]: out[row 0][1]");
    const char *across =
        "{\"variants\": {\"poison\": [0, \"nan\"]}, " SPEC
        ", \"steps\": [{\"write\": {\"k\": \"$poison\", \"v\": \"$poison\"}}, {\"write\": "
        "{\"block_ids\": [3, 1], \"kv_len\": 7}}, {\"write\": {\"block_ids\": [0, 2], \"kv_len\": "
        "5}}"
        ", {\"attend\": {" TWO "}, \"expect\": {\"same_across\": [\"poison\"]}}]}";
    assert_found(LATE_BITS, across, "out: other bits than another poison gave");
}

static void assert_refused(const char *text, const char *message)
{
    assert_int_equal(run_with(NONE, text, &plain), ORA_CASE_FAILED);
    if (!strstr(report.text, message))
        fail_msg("\"%s\" has no \"%s\"", report.text, message);
}

static void what_can_not_be_looked_at_is_not_right(void **state)
{
    assert_refused("{" SPEC ", \"steps\": [" FILL "{\"attend\": {" TWO
                   "}, \"expect\": {\"same_across\": [\"poison\"]}}]}",
                   "same_across = poison: no axis of variants has that name");
}

/* Sums of strides and products of shapes beyond 64 bits are no small numbers. */
static void sizes_beyond_memory_are_refused(void **state)
{
    assert_refused("{" SPEC ", \"steps\": [{\"attend\": {\"q\": {\"shape\": [2049, 2, 8], "
                   "\"strides\": [9007199254740992, 32, 4]}, " TWO "}}]}",
                   "q: more bytes than memory has addresses");
    assert_refused("{" SPEC ", \"steps\": [{\"merge\": {\"partials\": [{\"out\": 1, \"lse\": 1}], "
                   "\"n_tokens\": 1073741824, \"n_heads\": 1073741824, \"width\": 16}}]}",
                   "more bytes than memory has addresses");
}

static void the_same_rows_elsewhere_are_compared(void **state)
{
    const char *text =
        "{" SPEC ", \"steps\": [" FILL
        "{\"name\": \"a\", \"attend\": {\"batch\": {\"q_lens\": [1], "
        "\"kv_lens\": [5], \"tables\": [{\"block_ids\": [0, 2]}]}, \"q\": {\"first\": 1}}}, "
        "{\"attend\": {" TWO "}, \"expect\": {\"same_as\": {\"step\": \"a\", \"rows\": [%d], "
        "\"of\": [0]}}}]}";
    char right[1024], wrong[1024];
    snprintf(right, sizeof right, text, 1);
    snprintf(wrong, sizeof wrong, text, 0);
    assert_int_equal(run_with(NONE, right, &plain), ORA_CASE_OK);
    assert_int_equal(run_with(NONE, wrong, &plain), ORA_CASE_FAILED);
    assert_int_equal(run_with(NONE,
                              "{" SPEC ", \"steps\": [" FILL "{\"name\": \"a\", \"attend\": {" TWO
                              "}}, {\"attend\": {" TWO
                              "}, \"expect\": {\"differs_from\": \"a\"}}]}",
                              &plain),
                     ORA_CASE_FAILED);
}

static void rows_stored_elsewhere_are_found(void **state)
{
    const char *slots =
        "{" SPEC ", \"steps\": [" FILL
        "{\"attend\": {\"batch\": {\"q_lens\": [2], \"kv_lens\": [2], \"tables\": [{\"block_ids\": "
        "[3]}], \"slots\": [5, -1]}, \"k\": {\"seed\": 1}, \"v\": {\"seed\": 1}}, \"expect\": "
        "{\"pool\": \"oracle\"}}]}";
    assert_found(WRONG_SLOT, slots, "pool of layer 0, 4 rows a block: ");
    assert_found(STORES_MINUS, slots, "pool of layer 0, 4 rows a block: ");
    assert_int_equal(run_with(NONE,
                              "{" SPEC ", \"steps\": [" FILL
                              "{\"attend\": {\"batch\": {\"q_lens\": "
                              "[1], \"kv_lens\": [1], \"tables\": [{\"block_ids\": [3]}]}, \"k\": "
                              "{\"seed\": 1}, \"v\": {}}, \"expect\": {\"pool\": \"unchanged\"}}]}",
                              &plain),
                     ORA_CASE_FAILED);
    assert_string_equal(report.text, "steps[1]: pool: the step stores something");
}

static void refusals_are_judged(void **state)
{
    const char *call = "{" SPEC ", \"steps\": [" FILL
                       "{\"attend\": {\"batch\": {\"q_lens\": [1], \"kv_lens\": [1], \"tables\": "
                       "[{\"block_ids\": [99]}]}}, \"expect\": {\"error\": {\"code\": "
                       "\"INVALID_ARGUMENT\", \"reason\": \"BAD_BLOCK\", \"field\": "
                       "\"batch.tables[0].block_ids[0]\", \"message\": \"0..3\"}}}]}";
    assert_found(ACCEPTS, call, "OK: INVALID_ARGUMENT BAD_BLOCK batch.tables[0].block_ids[0] is");
    assert_found(REFUSES_LATE, call, "out: a refused call wrote byte");
    const char *model = "{\"steps\": [{\"open_model\": {\"spec\": {\"layers\": [{\"n_heads\": 33, "
                        "\"n_kv_heads\": 2, \"head_dim\": 8}]}}, \"expect\": {\"error\": "
                        "{\"reason\": \"BAD_GEOMETRY\", \"field\": \"spec.layers[0].n_heads\"}}}]}";
    assert_found(OTHER_REASON, model, "RESOURCE_EXHAUSTED NO_ROOM");
    assert_int_equal(
        run_with(NONE,
                 "{" SPEC ", \"steps\": [{\"attend\": {\"batch\": {\"q_lens\": [1], "
                 "\"kv_lens\": [1], \"tables\": [{\"block_ids\": [99]}]}}, \"expect\": "
                 "{\"may_refuse\": {\"reason\": \"BAD_BLOCK\"}}}]}",
                 &plain),
        ORA_CASE_OK);
}

static void plans_take_their_updates(void **state)
{
    const char *text =
        "{" SPEC ", \"steps\": [" FILL
        "{\"name\": \"p\", \"create_plan\": {\"batch\": {\"q_lens\": [1, 1], \"kv_lens\": [3, 5], "
        "\"tables\": [{\"block_ids\": [3, 0, 2]}]}}}, {\"attend\": {\"plan\": \"p\"}}, "
        "{\"update_plan\": {\"update\": {\"plan\": \"p\", \"version\": 7, \"kv_lens\": [4, 6]}}, "
        "\"expect\": {\"error\": {\"reason\": \"STALE\"}}}, {\"update_plan\": {\"update\": "
        "{\"plan\": \"p\", \"kv_lens\": [4, 6]}}}, {\"attend\": {\"plan\": \"p\"}}]}";
    assert_found(FORGETS_PLANS, text, "steps[5]: ");
    const ora_run_options plans = {.plans = true};
    assert_int_equal(run_with(NONE, RANDOM, &plans), ORA_CASE_OK);
    assert_int_equal(run_with(OUT_OFF, RANDOM, &plans), ORA_CASE_FAILED);
}

static void captured_bits_count_when_asked_for(void **state)
{
    const char *text = "{" SPEC ", \"steps\": [" FILL "{\"attend\": {" TWO
                       "}, \"expect\": {\"exact\": {\"out\": \"0123456789abcdef\"}}}]}";
    const ora_run_options exact = {.exact = true};
    assert_int_equal(run_with(NONE, text, &plain), ORA_CASE_OK);
    assert_int_equal(run_with(NONE, text, &exact), ORA_CASE_FAILED);
    assert_non_null(strstr(report.text, "0123456789abcdef was captured"));
}

static void what_a_target_lacks_is_skipped_and_judged_by_the_evaluator_alone(void **state)
{
    ora_case_file *file;
    ora_bits *bits = ora_bits_make();
    const char *text =
        "{\"needs\": [\"sinks\"], \"spec\": {\"layers\": [{\"n_heads\": 1, "
        "\"head_dim\": 8, \"sinks\": 0}], \"groups\": [{\"block_size\": 4, "
        "\"kv_dtype\": \"f32\", \"n_blocks\": 1}]}, \"steps\": [{\"write\": {\"k\": 0, "
        "\"v\": 3}}, {\"attend\": {\"batch\": {\"q_lens\": [1], \"kv_lens\": [1], "
        "\"tables\": [{\"block_ids\": [0]}]}}, \"expect\": {\"out\": %s}}]}";
    char right[1024], wrong[1024];
    snprintf(right, sizeof right, text, "1.5");
    snprintf(wrong, sizeof wrong, text, "3");
    memset(&fake, 0, sizeof fake);
    fake.lacks = "sinks";
    assert_int_equal(ora_case_file_open(&file, right, NULL), ATTND_OK);
    ora_case_run(file, 0, &target, &plain, bits, &report);
    assert_int_equal(report.verdict, ORA_CASE_SKIPPED);
    assert_string_equal(report.text, "needs sinks; the evaluator is right");
    assert_int_equal(fake.n_calls, 0);
    ora_case_file_close(file);
    assert_int_equal(ora_case_file_open(&file, wrong, NULL), ATTND_OK);
    ora_case_run(file, 0, &target, &plain, bits, &report);
    assert_int_equal(report.verdict, ORA_CASE_FAILED);
    ora_case_file_close(file);
    ora_bits_free(bits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_numbers_are_found),
        cmocka_unit_test(the_worst_error_is_told_in_parts_of_its_gate),
        cmocka_unit_test(given_values_must_be_the_evaluators),
        cmocka_unit_test(other_bits_are_found),
        cmocka_unit_test(what_can_not_be_looked_at_is_not_right),
        cmocka_unit_test(sizes_beyond_memory_are_refused),
        cmocka_unit_test(the_same_rows_elsewhere_are_compared),
        cmocka_unit_test(rows_stored_elsewhere_are_found),
        cmocka_unit_test(refusals_are_judged),
        cmocka_unit_test(plans_take_their_updates),
        cmocka_unit_test(captured_bits_count_when_asked_for),
        cmocka_unit_test(what_a_target_lacks_is_skipped_and_judged_by_the_evaluator_alone),
    };
    return cmocka_run_group_tests_name("ora_case_run", tests, NULL, NULL);
}
