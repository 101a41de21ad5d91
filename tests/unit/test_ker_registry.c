/* test_ker_registry.c: what no row serves is refused by name, and the reasons say what would be
 * right.
 */
#include "kernels/registry.h"
#include "tests/kernels/rig.h"

static ker_device *device;

static int open_device(void **state)
{
    device = rig_device("portable", 2);
    return 0;
}

static int close_device(void **state)
{
    ker_device_close(device);
    return 0;
}

static const int32_t one = 1, blocks[1] = {0};
static const int64_t zero = 0;

/* One generation that every row for generations serves. */
static ker_problem plain(void)
{
    static char byte;
    return (ker_problem){
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 64,
        .head_dim_v = 64,
        .sm_scale = 1,
        .dtype = ATTND_DTYPE_BF16,
        .batch = {.n_seqs = 1,
                  .n_tokens = 1,
                  .q_len = &one,
                  .kv_len = &one,
                  .q_first = &zero,
                  .block_ids = blocks,
                  .block_first = &zero},
        .q = {.base = &byte, .dtype = ATTND_DTYPE_BF16},
        .kv = {.block_size = 16, .dtype = ATTND_DTYPE_BF16},
        .mask = {.kinds = KER_MASK_CAUSAL},
        .out = {.base = &byte, .dtype = ATTND_DTYPE_BF16},
    };
}

static size_t row_of(const char *name)
{
    size_t row = 0;
    while (strcmp(ker_kernel_name(ker_kernel_at(row)), name) != 0)
        row++;
    return row;
}

/* The problem is refused as UNSUPPORTED with this text, for generations. */
static void refused(const ker_problem *p, const char *text)
{
    const ker_kernel *kernel = ker_kernel_at(0);
    attnd_err err = {0};
    assert_int_equal(ker_find(device, p, KER_GENERATION, &kernel, &err), ATTND_UNIMPLEMENTED);
    assert_int_equal(err.reason, ATTND_UNSUPPORTED);
    assert_string_equal(err.text, text);
    assert_null(kernel);
}

static void a_plain_problem_is_served_by_every_row_of_the_backend(void **state)
{
    ker_problem p = plain();
    ker_verdict verdicts[64];
    size_t n = 0;
    assert_true(ker_n_kernels() <= 64);
    size_t n_serving = ker_judge(device, &p, KER_GENERATION, verdicts);
    for (size_t i = 0; i < ker_n_kernels(); i++) {
        assert_ptr_equal(verdicts[i].kernel, ker_kernel_at(i));
        if (ker_kernel_at(i)->needs >= KER_N_CPU_LEVELS) {
            assert_false(verdicts[i].serves);
            assert_string_equal(verdicts[i].reason, "device.backend = cpu: needs cuda");
            continue;
        }
        n++;
        assert_true(verdicts[i].serves);
        assert_true(verdicts[i].cost > 0);
        assert_string_equal(verdicts[i].reason, "");
    }
    assert_int_equal(n_serving, n);
}

static void a_refusal_names_the_field_and_what_each_row_takes(void **state)
{
    ker_problem p = plain();
    p.head_dim = 2048;
    refused(&p, "head_dim = 2048: decode_portable takes up to 1024; prefill_portable takes up to "
                "1024");
    p = plain();
    p.head_dim_v = 1025;
    refused(&p, "head_dim_v = 1025: decode_portable takes up to 1024; prefill_portable takes up to "
                "1024");
    ker_verdict verdicts[64];
    ker_judge(device, &p, KER_GENERATION, verdicts);
    assert_string_equal(verdicts[row_of("decode_portable")].reason,
                        "head_dim_v = 1025: takes up to 1024");
}

static void a_row_that_refuses_something_else_says_what(void **state)
{
    ker_problem p = plain();
    const ker_kernel *kernel;
    attnd_err err = {0};
    p.mask.kinds = KER_MASK_TREE;
    assert_int_equal(ker_find(device, &p, KER_CONTEXT, &kernel, &err), ATTND_UNIMPLEMENTED);
    assert_string_equal(err.text,
                        "mask = tree: decode_portable takes generations (phase = context); "
                        "prefill_portable takes full, causal, window, chunk, variable");
    assert_int_equal(attnd_err_field_len(&err), strlen("mask"));
}

static void every_mask_that_is_no_bounds_is_refused_by_name(void **state)
{
    static const struct {
        uint32_t kind;
        const char *name;
    } masks[] = {{KER_MASK_BYTES, "bytes"},   {KER_MASK_BITS, "bits"}, {KER_MASK_TREE, "tree"},
                 {KER_MASK_BLOCKS, "blocks"}, {KER_MASK_TOPK, "topk"}, {1u << 20, "unknown"}};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        ker_problem p = plain();
        char text[256];
        p.mask.kinds = KER_MASK_WINDOW | masks[i].kind;
        p.mask.window = 3;
        snprintf(text, sizeof text,
                 "mask = %s: decode_portable takes full, causal, window, chunk, variable; "
                 "prefill_portable takes full, causal, window, chunk, variable",
                 masks[i].name);
        refused(&p, text);
    }
}

static void mla_is_refused(void **state)
{
    ker_problem p = plain();
    p.kind = ATTND_LAYER_MLA;
    refused(&p, "kind = mla: decode_portable takes gqa, cross, encoder; prefill_portable takes "
                "gqa, cross, encoder");
    p.kind = ATTND_LAYER_CROSS;
    const ker_kernel *kernel;
    assert_int_equal(ker_find(device, &p, KER_GENERATION, &kernel, NULL), ATTND_OK);
}

static void every_type_that_is_no_float_is_refused(void **state)
{
    static const attnd_dtype types[] = {ATTND_DTYPE_E4M3, ATTND_DTYPE_E5M2, ATTND_DTYPE_I8,
                                        ATTND_DTYPE_NVFP4, ATTND_DTYPE_NONE};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char text[256];
        ker_problem p = plain();
        p.kv.dtype = types[i];
        snprintf(text, sizeof text,
                 "kv.dtype = %s: decode_portable takes f32, f16, bf16; prefill_portable takes "
                 "f32, f16, bf16",
                 attnd_dtype_name(types[i]));
        refused(&p, text);
    }
    ker_problem p = plain();
    p.out.dtype = ATTND_DTYPE_E4M3;
    refused(&p, "out.dtype = e4m3: decode_portable takes f32, f16, bf16; prefill_portable takes "
                "f32, f16, bf16");
    p = plain();
    p.dtype = ATTND_DTYPE_E4M3;
    refused(&p, "dtype = e4m3: decode_portable takes f32, f16, bf16; prefill_portable takes f32, "
                "f16, bf16");
    p = plain();
    p.q.dtype = ATTND_DTYPE_F16;
    refused(&p, "q.dtype = f16: decode_portable takes the layer's bf16; prefill_portable takes "
                "the layer's bf16");
}

static void factors_that_change_something_are_refused(void **state)
{
    const float half = 0.5f, whole = 1;
    ker_problem p = plain();
    p.quant = (ker_quant){.k_orig_quant = 1,
                          .v_orig_quant = 1,
                          .q_quant_orig = 1,
                          .out_orig_quant = 1,
                          .k_quant_orig = &whole,
                          .v_quant_orig = &whole};
    const ker_kernel *kernel;
    assert_int_equal(ker_find(device, &p, KER_GENERATION, &kernel, NULL), ATTND_OK);
    static const char *const names[] = {"k_orig_quant", "v_orig_quant", "q_quant_orig",
                                        "out_orig_quant"};
    for (int i = 0; i < 4; i++) {
        char text[128];
        p = plain();
        float *factors[] = {&p.quant.k_orig_quant, &p.quant.v_orig_quant, &p.quant.q_quant_orig,
                            &p.quant.out_orig_quant};
        *factors[i] = 0.5f;
        snprintf(text, sizeof text,
                 "quant.%s = 0.5: decode_portable takes 1; prefill_portable takes 1", names[i]);
        refused(&p, text);
    }
    p = plain();
    p.quant.v_quant_orig = &half;
    refused(&p, "quant.v_quant_orig = 0.5: decode_portable takes 1; prefill_portable takes 1");
    p.quant.quant_orig_per = 1;
    refused(&p, "quant.v_quant_orig = per head: decode_portable takes 1; prefill_portable takes 1");
    p = plain();
    p.quant.stored_head_scales = true;
    refused(&p, "quant.stored_head_scales = true: decode_portable takes keys without scales; "
                "prefill_portable takes keys without scales");
}

static void relative_bias_and_half_an_append_are_refused(void **state)
{
    static char bytes[64];
    const float table[4] = {0};
    ker_problem p = plain();
    p.bias.relative = table;
    refused(&p, "bias.relative = given: decode_portable takes none; prefill_portable takes none");
    p = plain();
    p.append.k = (ker_rows){.base = bytes, .dtype = ATTND_DTYPE_BF16};
    refused(&p, "append.v = none: decode_portable takes k and v together; prefill_portable takes k "
                "and v together");
    p.append.v = p.append.k;
    p.append.k.base = NULL;
    refused(&p, "append.k = none: decode_portable takes k and v together; prefill_portable takes k "
                "and v together");
    p.append.k.base = bytes;
    p.batch.block_ids = NULL;
    refused(&p, "append = given: decode_portable takes it with a block table; prefill_portable "
                "takes it with a block table");
    p = plain();
    p.append.k = p.append.v = (ker_rows){.base = bytes, .dtype = ATTND_DTYPE_F32};
    refused(&p, "append.k.dtype = f32: decode_portable takes the layer's bf16; prefill_portable "
                "takes the layer's bf16");
}

/* A row of our own that serves less than any of the table. */
static void a_row_without_extras_refuses_each(void **state)
{
    const float numbers[4] = {0};
    ker_kernel row = *ker_kernel_at(row_of("decode_portable"));
    ker_reason reason;
    row.extras = 0;
    ker_problem p = plain();
    assert_true(ker_kernel_serves(&row, KER_LEVEL_PORTABLE, &p, KER_GENERATION, &reason));
    assert_string_equal(reason.subject, "");
    p.bias.softcap = 30;
    assert_false(ker_kernel_serves(&row, KER_LEVEL_PORTABLE, &p, KER_GENERATION, &reason));
    assert_string_equal(reason.subject, "bias.softcap = 30");
    assert_string_equal(reason.wants, "takes none");
    p = plain();
    p.bias.alibi_slopes = numbers;
    assert_false(ker_kernel_serves(&row, KER_LEVEL_PORTABLE, &p, KER_GENERATION, &reason));
    assert_string_equal(reason.subject, "bias.alibi = given");
    p = plain();
    p.bias.sinks = numbers;
    assert_false(ker_kernel_serves(&row, KER_LEVEL_PORTABLE, &p, KER_GENERATION, &reason));
    assert_string_equal(reason.subject, "bias.sinks = given");
    p = plain();
    p.batch.block_ids = NULL;
    assert_false(ker_kernel_serves(&row, KER_LEVEL_PORTABLE, &p, KER_GENERATION, &reason));
    assert_string_equal(reason.subject, "keys = given");
    assert_string_equal(reason.wants, "takes a block table");
}

static void a_row_that_needs_more_than_the_device_has_says_so(void **state)
{
    ker_kernel row = *ker_kernel_at(row_of("decode_portable"));
    ker_reason reason;
    ker_problem p = plain();
    row.needs = KER_LEVEL_AVX512;
    assert_true(ker_kernel_serves(&row, KER_LEVEL_AVX512, &p, KER_GENERATION, &reason));
    assert_false(ker_kernel_serves(&row, KER_LEVEL_AVX2, &p, KER_GENERATION, &reason));
    assert_string_equal(reason.subject, "device.isa = avx2");
    assert_string_equal(reason.wants, "needs avx512");
}

static void few_rows_go_to_decode_and_many_to_prefill(void **state)
{
    const ker_kernel *kernel;
    int32_t q_len = 1, kv_len = 1000;
    ker_problem p = plain();
    p.batch.q_len = &q_len;
    p.batch.kv_len = &kv_len;
    assert_int_equal(ker_find(device, &p, KER_GENERATION, &kernel, NULL), ATTND_OK);
    assert_string_equal(ker_kernel_name(kernel), "decode_portable");
    q_len = p.batch.n_tokens = 16;
    assert_int_equal(ker_find(device, &p, KER_GENERATION, &kernel, NULL), ATTND_OK);
    assert_string_equal(ker_kernel_name(kernel), "prefill_portable");
    p.batch_invariant = true;
    assert_int_equal(ker_find(device, &p, KER_GENERATION, &kernel, NULL), ATTND_OK);
    assert_string_equal(ker_kernel_name(kernel), "decode_portable");
}

static void a_row_describes_itself_as_the_table_spells_it(void **state)
{
    const char *keys[8], *values[8];
    assert_int_equal(ker_kernel_describe(ker_kernel_at(row_of("decode_portable")), keys, values, 8),
                     7);
    static const char *const names[] = {"family", "rows", "kv", "dims", "masks", "extras", "needs"};
    for (int i = 0; i < 7; i++)
        assert_string_equal(keys[i], names[i]);
    assert_string_equal(values[0], "decode");
    assert_string_equal(values[2], "F32 | F16 | BF16");
    assert_string_equal(values[6], "NOTHING");
    assert_int_equal(
        ker_kernel_describe(ker_kernel_at(row_of("prefill_portable")), keys, values, 2), 2);
    assert_string_equal(values[1], "CTX | GEN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_problem_is_served_by_every_row_of_the_backend),
        cmocka_unit_test(a_refusal_names_the_field_and_what_each_row_takes),
        cmocka_unit_test(a_row_that_refuses_something_else_says_what),
        cmocka_unit_test(every_mask_that_is_no_bounds_is_refused_by_name),
        cmocka_unit_test(mla_is_refused),
        cmocka_unit_test(every_type_that_is_no_float_is_refused),
        cmocka_unit_test(factors_that_change_something_are_refused),
        cmocka_unit_test(relative_bias_and_half_an_append_are_refused),
        cmocka_unit_test(a_row_without_extras_refuses_each),
        cmocka_unit_test(a_row_that_needs_more_than_the_device_has_says_so),
        cmocka_unit_test(few_rows_go_to_decode_and_many_to_prefill),
        cmocka_unit_test(a_row_describes_itself_as_the_table_spells_it),
    };
    return cmocka_run_group_tests_name("ker_registry", tests, open_device, close_device);
}
