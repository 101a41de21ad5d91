/* test_far.c: addresses that do not fit 32 bits, signed or not, in bytes or in elements.
 *
 * Pools are sparse: their blocks lie at both ends and between, and no page without one is ever
 * touched, by the kernel neither. What is read and stored is judged as in any other pool.
 */
#include "tests/kernels/rig.h"

/* Room for the pool, or the test is skipped with the reason. */
static void needs(size_t bytes)
{
    ker_memory memory;
    attnd_err err = {0};
    if (ker_memory_make(rig_best_device(), "room", bytes, &memory, &err) != ATTND_OK) {
        print_message("# SKIP %s\n", err.text);
        skip();
    }
    ker_memory_free(rig_best_device(), &memory);
}

/* Contexts and generations that append, then more of them that only read. */
static void far_blocks(const char *name, attnd_dtype dtype, uint32_t d, uint32_t dv,
                       uint32_t block_size, size_t bytes)
{
    needs(bytes);
    for (uint32_t i = 0; i < 4; i++) {
        rig_spec s = {.name = name,
                      .dtype = dtype,
                      .n_heads = 2,
                      .n_kv_heads = i & 1 ? 2 : 1,
                      .d = d,
                      .dv = dv,
                      .block_size = block_size,
                      .nhd = i & 1,
                      .far_bytes = bytes,
                      .n_seqs = 3,
                      .n_contexts = 1,
                      .q_len = {9, 1, 3},
                      .kv_len = {(int32_t)block_size + 12, 2 * (int32_t)block_size, 5},
                      .kinds = KER_MASK_CAUSAL,
                      .append = i < 2,
                      .poison = POISON_NAN,
                      .seed = 49 + i};
        rig x;
        rig_make(&x, &s);
        rig_judge(&x);
        EACH_ROW(device, row)
        {
            if (!rig_serves(&x, rig_devices[device], ker_kernel_at(row)))
                continue;
            rig_run(&x, rig_devices[device], i, ker_kernel_at(row));
            rig_check(&x, rig_device_names[device]);
            assert_int_equal(rig_far_page(&x), -1);
        }
        rig_free(&x);
    }
}

/* K and V of 576 channels, 512 tokens a block: 589,824 elements of two bytes; the last blocks begin
 * past element 2^32. */
static void b049_elements_past_2_31_and_2_32(void **state)
{
    far_blocks("B049", ATTND_DTYPE_F16, 576, 576, 512, (size_t)7283 * 512 * 2304);
}

/* 36,864 bytes a block: block 116,509 begins past byte 2^32. */
static void b050_bytes_past_2_32(void **state)
{
    far_blocks("B050", ATTND_DTYPE_BF16, 144, 144, 64, (size_t)116510 * 36864);
}

static void fp32_elements_past_2_31(void **state)
{
    far_blocks("fp32", ATTND_DTYPE_F32, 128, 64, 16, (size_t)9 << 30);
}

static void blocks_of_one_token_past_2_32_bytes(void **state)
{
    far_blocks("tokens", ATTND_DTYPE_F32, 64, 64, 1, (size_t)5 << 30);
}

/* A page a kernel should not have read is found. */
static void a_touched_page_is_seen(void **state)
{
    needs((size_t)5 << 30);
    rig_spec s = {.name = "touched",
                  .dtype = ATTND_DTYPE_F32,
                  .n_heads = 1,
                  .n_kv_heads = 1,
                  .d = 64,
                  .far_bytes = (size_t)5 << 30,
                  .n_seqs = 1,
                  .q_len = {1},
                  .kv_len = {40}};
    rig x;
    rig_make(&x, &s);
    rig_put(&x, rig_devices[0]);
    assert_true(rig_far_page(&x) < 0);
    volatile char *byte = (char *)x.far.base + ((size_t)1 << 30);
    (void)*byte;
    assert_true(rig_far_page(&x) == (int64_t)1 << 30);
    rig_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(b049_elements_past_2_31_and_2_32),
        cmocka_unit_test(b050_bytes_past_2_32),
        cmocka_unit_test(fp32_elements_past_2_31),
        cmocka_unit_test(blocks_of_one_token_past_2_32_bytes),
        cmocka_unit_test(a_touched_page_is_seen),
    };
    return cmocka_run_group_tests_name("far", tests, rig_open_devices, rig_close_devices);
}
