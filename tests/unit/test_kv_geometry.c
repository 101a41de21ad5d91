/* test_kv_geometry.c: slabs do not overlap, are aligned, fill the block, and stay below 2^40. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "kvcache/geometry.h"

static void makes(kv_geometry *g, uint32_t block_size, attnd_dtype dtype, attnd_layout layout,
                  const kv_layer_shape *layers, uint32_t n, kv_layer_place *places)
{
    attnd_err err;
    if (kv_geometry_make(g, block_size, dtype, layout, layers, n, places, &err) != ATTND_OK)
        fail_msg("%s", err.text);
}

static void hnd_puts_tokens_of_a_head_together(void **state)
{
    const kv_layer_shape layers[] = {{8, 128, 128}, {8, 128, 128}};
    kv_layer_place places[2];
    kv_geometry g;
    makes(&g, 16, ATTND_DTYPE_BF16, ATTND_LAYOUT_HND, layers, 2, places);
    assert_int_equal(g.block_bytes, 2 * 2 * 8 * 16 * 128 * 2);
    assert_int_equal(places[1].plane_offset[0], 2 * 8 * 16 * 128 * 2);
    assert_int_equal(places[1].plane_offset[1], 3 * 8 * 16 * 128 * 2);
    assert_int_equal(places[1].head_stride[0], 16 * 128 * 2);
    assert_int_equal(places[1].token_stride[0], 128 * 2);
}

static void nhd_puts_heads_of_a_token_together(void **state)
{
    const kv_layer_shape layer = {8, 192, 128};
    kv_layer_place place;
    kv_geometry g;
    makes(&g, 16, ATTND_DTYPE_F32, ATTND_LAYOUT_NHD, &layer, 1, &place);
    assert_int_equal(place.head_stride[0], 192 * 4);
    assert_int_equal(place.token_stride[0], 8 * 192 * 4);
    assert_int_equal(place.head_stride[1], 128 * 4);
    assert_int_equal(place.token_stride[1], 8 * 128 * 4);
    assert_int_equal(place.plane_offset[1], 16 * 8 * 192 * 4);
    assert_int_equal(g.block_bytes, 16 * 8 * (192 + 128) * 4);
}

/* Every element of every layer of a block has bytes of its own, and slabs start at 128. */
static void layers_of_differing_widths_do_not_overlap(void **state)
{
    const kv_layer_shape layers[] = {{1, 1, 1}, {3, 5, 7}, {2, 80, 96}, {8, 64, 64}, {1, 576, 512}};
    enum { N = sizeof layers / sizeof layers[0] };
    for (int layout = 0; layout < 2; layout++)
        for (uint32_t T = 1; T <= 32; T *= 4) {
            kv_layer_place places[N];
            kv_geometry g;
            makes(&g, T, ATTND_DTYPE_F16, (attnd_layout)layout, layers, N, places);
            assert_int_equal(g.block_bytes % 128, 0);
            uint8_t *owner = calloc(1, (size_t)g.block_bytes);
            assert_non_null(owner);
            for (uint32_t i = 0; i < N; i++)
                for (int p = 0; p < 2; p++) {
                    uint32_t width = p ? layers[i].head_dim_v : layers[i].head_dim;
                    assert_int_equal(places[i].plane_offset[p] % 128, 0);
                    for (uint32_t h = 0; h < layers[i].n_kv_heads; h++)
                        for (uint32_t t = 0; t < T; t++) {
                            int64_t at = places[i].plane_offset[p] + h * places[i].head_stride[p] +
                                         t * places[i].token_stride[p];
                            assert_true(at >= 0 && at + 2 * (int64_t)width <= g.block_bytes);
                            for (uint32_t d = 0; d < 2 * width; d++)
                                assert_int_equal(owner[at + d]++, 0);
                        }
                }
            free(owner);
        }
}

static void places_may_be_left_out(void **state)
{
    const kv_layer_shape layer = {2, 64, 64};
    kv_geometry g;
    makes(&g, 1, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, &layer, 1, NULL);
    assert_int_equal(g.block_bytes, 2 * 2 * 64 * 2);
    assert_int_equal(g.n_layers, 1);
}

static void refuses(uint32_t block_size, attnd_dtype dtype, attnd_layout layout,
                    const kv_layer_shape *layers, uint32_t n, attnd_reason reason, const char *text)
{
    attnd_err err = {0};
    kv_layer_place places[2];
    kv_geometry g, before;
    memset(&g, 0x5A, sizeof g);
    before = g;
    assert_int_equal(kv_geometry_make(&g, block_size, dtype, layout, layers, n, places, &err),
                     ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, reason);
    assert_string_equal(err.text, text);
    assert_memory_equal(&g, &before, sizeof g);
}

static void what_is_no_geometry_is_refused(void **state)
{
    const kv_layer_shape ok[] = {{2, 64, 64}, {2, 64, 64}};
    const attnd_layout hnd = ATTND_LAYOUT_HND;
    const attnd_dtype f16 = ATTND_DTYPE_F16;
    const attnd_reason bad = ATTND_BAD_GEOMETRY;
    refuses(0, f16, hnd, ok, 2, bad, "block_size = 0: a power of two, 1..1024");
    refuses(3, f16, hnd, ok, 2, bad, "block_size = 3: a power of two, 1..1024");
    refuses(480, f16, hnd, ok, 2, bad, "block_size = 480: a power of two, 1..1024");
    refuses(2048, f16, hnd, ok, 2, bad, "block_size = 2048: a power of two, 1..1024");
    refuses(16, ATTND_DTYPE_I32, hnd, ok, 2, bad, "kv_dtype = i32: a pool holds f32, f16 or bf16");
    refuses(16, ATTND_DTYPE_NONE, hnd, ok, 2, bad,
            "kv_dtype = none: a pool holds f32, f16 or bf16");
    refuses(16, (attnd_dtype)999, hnd, ok, 2, bad, "kv_dtype = ?: a pool holds f32, f16 or bf16");
    refuses(16, f16, (attnd_layout)2, ok, 2, bad, "layout = 2: 0 (HND) or 1 (NHD)");
    refuses(16, f16, hnd, ok, 0, bad, "n_layers = 0: a group has at least 1 layer");
    const kv_layer_shape zero[][2] = {
        {{2, 64, 64}, {0, 64, 64}}, {{2, 64, 64}, {2, 0, 64}}, {{2, 64, 64}, {2, 64, 0}}};
    refuses(16, f16, hnd, zero[0], 2, bad, "layers[1].n_kv_heads = 0: at least 1");
    refuses(16, f16, hnd, zero[1], 2, bad, "layers[1].head_dim = 0: at least 1");
    refuses(16, f16, hnd, zero[2], 2, bad, "layers[1].head_dim_v = 0: at least 1");
}

static void a_block_of_2_to_the_40_is_refused_however_it_comes_about(void **state)
{
    const attnd_layout hnd = ATTND_LAYOUT_HND;
    const attnd_dtype f32 = ATTND_DTYPE_F32;
    const attnd_reason large = ATTND_TOO_LARGE;
    /* 2^32 heads of 2^32 channels: the product passes 2^64 and would look small. */
    const kv_layer_shape wraps = {UINT32_MAX, UINT32_MAX, 1};
    refuses(1024, f32, hnd, &wraps, 1, large,
            "layers[0].head_dim = 4294967295: 4294967295 kv heads of 1024 tokens make a block of "
            "2^40 bytes or more");
    const kv_layer_shape wraps_v = {1u << 30, 1, 1u << 30};
    refuses(1, f32, hnd, &wraps_v, 1, large,
            "layers[0].head_dim_v = 1073741824: 1073741824 kv heads of 1 tokens make a block of "
            "2^40 bytes or more");
    /* Two slabs of half the bound: exactly 2^40. */
    const kv_layer_shape exact = {1, 1u << 27, 1u << 27};
    refuses(1024, f32, hnd, &exact, 1, large,
            "layers[0].head_dim_v = 134217728: 1 kv heads of 1024 tokens make a block of 2^40 "
            "bytes or more");
    const kv_layer_shape below = {1, 1u << 27, (1u << 27) - 1};
    kv_geometry g;
    makes(&g, 1024, f32, hnd, &below, 1, NULL);
    assert_int_equal(g.block_bytes, (1ll << 40) - 4096);
}

static void tokens_need_whole_blocks(void **state)
{
    const kv_layer_shape layer = {1, 1, 1};
    kv_geometry g;
    makes(&g, 16, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, &layer, 1, NULL);
    const int64_t tokens[] = {0, 1, 15, 16, 17, 32, 33, INT64_MAX};
    const int64_t blocks[] = {0, 1, 1, 1, 2, 2, 3, 1ll << 59};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        assert_int_equal(kv_geometry_blocks(&g, tokens[i]), blocks[i]);
}

static void a_pool_has_one_block_more_and_ends_at_2_to_the_47(void **state)
{
    const kv_layer_shape layer = {1, 64, 64};
    kv_geometry g;
    attnd_err err;
    uint64_t bytes = 0;
    makes(&g, 1, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, &layer, 1, NULL);
    assert_int_equal(g.block_bytes, 256);
    assert_int_equal(kv_geometry_pool_bytes(&g, 10, &bytes, &err), ATTND_OK);
    assert_int_equal(bytes, 11 * 256);
    assert_int_equal(kv_geometry_pool_bytes(&g, UINT32_MAX, &bytes, &err), ATTND_OK);
    assert_true(bytes == 256ull << 32);

    g.block_bytes = 1ll << 37;
    assert_int_equal(kv_geometry_pool_bytes(&g, 1023, &bytes, &err), ATTND_OK);
    assert_true(bytes == 1ull << 47);
    assert_int_equal(kv_geometry_pool_bytes(&g, 1024, &bytes, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_TOO_LARGE);
    assert_string_equal(err.text, "n_blocks = 1024: 137438953472 bytes a block and one block more "
                                  "pass 2^47 bytes");
    assert_true(bytes == 1ull << 47);
    assert_int_equal(kv_geometry_pool_bytes(&g, UINT32_MAX, &bytes, &err), ATTND_INVALID_ARGUMENT);
}

static void what_fits_leaves_room_for_the_guard_block(void **state)
{
    const kv_layer_shape layer = {1, 64, 64};
    kv_geometry g;
    makes(&g, 1, ATTND_DTYPE_F16, ATTND_LAYOUT_HND, &layer, 1, NULL);
    assert_int_equal(kv_geometry_fit(&g, 0), 0);
    assert_int_equal(kv_geometry_fit(&g, 256), 0);
    assert_int_equal(kv_geometry_fit(&g, 511), 0);
    assert_int_equal(kv_geometry_fit(&g, 512), 1);
    assert_int_equal(kv_geometry_fit(&g, 256 * 1000), 999);
    assert_int_equal(kv_geometry_fit(&g, UINT64_MAX), INT32_MAX);
    for (uint64_t bytes = 256; bytes < 10000; bytes += 37) {
        uint64_t need;
        attnd_err err;
        uint32_t n = kv_geometry_fit(&g, bytes);
        assert_int_equal(kv_geometry_pool_bytes(&g, n, &need, &err), ATTND_OK);
        assert_true(need <= bytes);
        assert_int_equal(kv_geometry_pool_bytes(&g, n + 1, &need, &err), ATTND_OK);
        assert_true(need > bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hnd_puts_tokens_of_a_head_together),
        cmocka_unit_test(nhd_puts_heads_of_a_token_together),
        cmocka_unit_test(layers_of_differing_widths_do_not_overlap),
        cmocka_unit_test(places_may_be_left_out),
        cmocka_unit_test(what_is_no_geometry_is_refused),
        cmocka_unit_test(a_block_of_2_to_the_40_is_refused_however_it_comes_about),
        cmocka_unit_test(tokens_need_whole_blocks),
        cmocka_unit_test(a_pool_has_one_block_more_and_ends_at_2_to_the_47),
        cmocka_unit_test(what_fits_leaves_room_for_the_guard_block),
    };
    return cmocka_run_group_tests_name("kv_geometry", tests, NULL, NULL);
}
