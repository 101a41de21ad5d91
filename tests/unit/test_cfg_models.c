/* test_cfg_models.c: models of a file are read whole, with what they leave out filled in, or
 * refused with file, line and column. */
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

static char path[] = "/tmp/attnd_test_models_XXXXXX";

static int make_path(void **state)
{
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int drop_path(void **state)
{
    return unlink(path);
}

static attnd_status read_text(const char *text, cfg *c, cfg_models *models, attnd_err *err)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    cfg_defaults(c);
    return cfg_read_models(c, models, path, err);
}

static void refuses(const char *text, const char *rest)
{
    attnd_err err = {0};
    cfg c, before;
    cfg_models models;
    char want[ATTND_ERR_TEXT];
    cfg_defaults(&before);
    assert_int_equal(read_text(text, &c, &models, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_CONFIG);
    snprintf(want, sizeof want, "%s%s", path, rest);
    assert_string_equal(err.text, want);
    assert_memory_equal(&c, &before, sizeof c);
    cfg_models_fini(&models);
}

/* One model on one line: its members. */
#define MODEL(members) "{\"models\": [{\"name\": \"m\", " members "}]}"
#define LAYER(members) MODEL("\"layers\": [{" members "}], \"groups\": [" GROUP "]")
#define GROUPS(group) MODEL("\"layers\": [" GOOD "], \"groups\": [{" group "}]")
#define GROUP "{\"block_size\": 16, \"kv_dtype\": \"f16\", \"n_blocks\": 8}"
#define GOOD "{\"n_heads\": 4, \"head_dim\": 64}"

static void what_a_spec_leaves_out_is_filled_in(void **state)
{
    attnd_err err;
    cfg c;
    cfg_models models;
    assert_int_equal(read_text("{\"data\": {\"contexts\": 99},\n"
                               " \"models\": [{\"name\": \"a\", \"layers\": [\n"
                               "   {\"n_heads\": 8, \"head_dim\": 64, \"rope\": {}},\n"
                               "   {\"n_heads\": 8, \"n_kv_heads\": 2, \"head_dim\": 64, "
                               "\"head_dim_v\": 32, \"window\": 5, \"count\": 3, \"group\": 1, "
                               "\"rope\": {\"pairing\": \"gptj\", \"dim\": 32, \"theta\": 5e5, "
                               "\"scaling\": \"yarn\"}, \"softcap\": 30.5, \"q_scaling\": 2}],\n"
                               "   \"groups\": [{\"block_size\": 16, \"kv_dtype\": \"bf16\", "
                               "\"n_blocks\": 8, \"window\": 7},\n"
                               "   {\"name\": \"far\", \"block_size\": 1, \"kv_dtype\": \"f32\", "
                               "\"bytes\": 1048576, \"layout\": \"nhd\", \"max_kv_len\": 99}]},\n"
                               " {\"name\": \"b\", \"owner\": \"server\", \"layers\": [{\"kind\": "
                               "\"encoder\", \"n_heads\": 12, \"head_dim\": 64}]}]}",
                               &c, &models, &err),
                     ATTND_OK);
    assert_int_equal(c.data_contexts, 99);
    assert_int_equal(models.n_models, 2);
    const cfg_model *a = &models.models[0], *b = &models.models[1];
    assert_string_equal(a->name, "a");
    assert_int_equal(a->owner, 0);
    assert_int_equal(a->n_layers, 2);
    assert_int_equal(a->n_groups, 2);
    const cfg_layer *l = &a->layers[0];
    assert_int_equal(l->kind, ATTND_LAYER_GQA);
    assert_int_equal(l->n_kv_heads, 8);
    assert_int_equal(l->head_dim_v, 64);
    assert_int_equal(l->count, 1);
    assert_int_equal(l->window, 7);
    assert_int_equal(l->rope.pairing, ATTND_ROPE_NEOX);
    assert_int_equal(l->rope.dim, 64);
    assert_true(l->rope.theta == 10000 && l->q_scaling == 1 && l->softcap == 0);
    l = &a->layers[1];
    assert_int_equal(l->n_kv_heads, 2);
    assert_int_equal(l->head_dim_v, 32);
    assert_int_equal(l->count, 3);
    assert_int_equal(l->window, 5);
    assert_int_equal(l->rope.pairing, ATTND_ROPE_GPTJ);
    assert_int_equal(l->rope.dim, 32);
    assert_int_equal(l->rope.scaling, 5);
    assert_true(l->rope.theta == 5e5 && l->q_scaling == 2 && l->softcap == 30.5);
    assert_string_equal(a->groups[0].name, "group0");
    assert_int_equal(a->groups[0].kv_dtype, ATTND_DTYPE_BF16);
    assert_int_equal(a->groups[0].max_kv_len, INT32_MAX);
    assert_int_equal(a->groups[0].n_blocks, 8);
    assert_string_equal(a->groups[1].name, "far");
    assert_int_equal(a->groups[1].kv_dtype, ATTND_DTYPE_F32);
    assert_int_equal(a->groups[1].layout, ATTND_LAYOUT_NHD);
    assert_int_equal(a->groups[1].bytes, 1048576);
    assert_int_equal(a->groups[1].n_blocks, 0);
    assert_int_equal(b->owner, 1);
    assert_int_equal(b->layers[0].kind, ATTND_LAYER_ENCODER);
    assert_int_equal(b->n_groups, 0);
    cfg_models_fini(&models);
    assert_int_equal(models.n_models, 0);
}

static void a_latent_layer_has_one_kv_head(void **state)
{
    attnd_err err;
    cfg c;
    cfg_models models;
    assert_int_equal(read_text(LAYER("\"kind\": \"mla\", \"n_heads\": 128, \"head_dim\": 576, "
                                     "\"head_dim_v\": 512"),
                               &c, &models, &err),
                     ATTND_OK);
    assert_int_equal(models.models[0].layers[0].n_kv_heads, 1);
    cfg_models_fini(&models);
}

static void what_is_no_model_is_refused(void **state)
{
    refuses("{\"models\": {}}", ":1:12: models = {}}: an array of model specs");
    refuses("{\"models\": [7]}", ":1:13: models[0]: an object, {...}");
    refuses("{\"models\": [{}]}", ":1:13: models[0].name = absent: a model of a file has one");
    refuses("{\"models\": [{\"name\": \"\"}]}",
            ":1:22: models[0].name = \"\": text of 1..64 bytes");
    refuses("{\"models\": [{\"name\": \"m\"}]}",
            ":1:13: models[0].layers = none: a model has at least one");
    refuses(MODEL("\"layers\": []"), ":1:37: models[0].layers = none: a model has at least one");
    refuses(MODEL("\"layers\": 3"), ":1:37: models[0].layers = none: a model has at least one");
    refuses(MODEL("\"layers\": [3]"), ":1:38: models[0].layers[0]: an object, {...}");
    refuses(MODEL("\"layers\": [" GOOD "], \"groups\": 5"),
            ":1:81: models[0].groups: an array of at most 64 objects");
    refuses("{\"models\": [\n  {\"name\": \"m\", \"layers\": [" GOOD "], \"groups\": [" GROUP
            "]},\n  {\"name\": \"m\", \"layers\": [" GOOD "], \"groups\": [" GROUP "]}]}",
            ":3:3: models[1].name = m: models[0] has it already");
}

static void an_unknown_field_names_the_nearest_and_none_is_given_twice(void **state)
{
    refuses(MODEL("\"layer\": []"), ":1:27: models[0].layer: no such field, nearest is layers");
    refuses(LAYER("\"n_head\": 4"),
            ":1:39: models[0].layers[0].n_head: no such field, nearest is n_heads");
    refuses(LAYER("\"n_heads\": 4, \"head_dim\": 64, \"rope\": {\"teta\": 1}"),
            ":1:78: models[0].layers[0].rope.teta: no such field, nearest is theta");
    refuses(GROUPS("\"blocks\": 4"),
            ":1:83: models[0].groups[0].blocks: no such field, nearest is n_blocks");
    refuses(LAYER("\"n_heads\": 4,\n \"n_heads\": 8"), ":2:2: n_heads: line 1 has it already");
}

static void a_value_that_does_not_fit_is_told_what_would(void **state)
{
    refuses(LAYER("\"n_heads\": 0"),
            ":1:50: models[0].layers[0].n_heads = 0: a whole number, 1..65535");
    refuses(LAYER("\"n_heads\": 4.5"),
            ":1:50: models[0].layers[0].n_heads = 4.5: a whole number, 1..65535");
    refuses(LAYER("\"n_heads\": \"4\""),
            ":1:50: models[0].layers[0].n_heads = \"4\": a whole number, 1..65535");
    refuses(LAYER("\"head_dim\": 4097"),
            ":1:51: models[0].layers[0].head_dim = 4097: a whole number, 1..4096");
    refuses(LAYER("\"kind\": \"gqq\""),
            ":1:47: models[0].layers[0].kind = \"gqq\": gqa | mla | cross | encoder");
    refuses(LAYER("\"rope\": 1"), ":1:47: models[0].layers[0].rope = 1: an object, {\"pairing\": "
                                  "\"neox\", \"theta\": 10000}");
    refuses(LAYER("\"softcap\": -1"),
            ":1:50: models[0].layers[0].softcap = -1: a number, 0..1e+06");
    refuses(GROUPS("\"kv_dtype\": \"\""),
            ":1:95: models[0].groups[0].kv_dtype = \"\": f32 | f16 | bf16");
    refuses(GROUPS("\"layout\": \"HND\""),
            ":1:93: models[0].groups[0].layout = \"HND\": hnd | nhd");
    refuses(GROUPS("\"bytes\": 140737488355329"),
            ":1:92: models[0].groups[0].bytes = 140737488355329: a whole number, "
            "1..140737488355328");
}

static void what_fields_say_together_is_checked(void **state)
{
    refuses(LAYER("\"n_heads\": 4"),
            ":1:38: models[0].layers[0].head_dim = absent: a layer needs it");
    refuses(LAYER("\"head_dim\": 4"),
            ":1:38: models[0].layers[0].n_heads = absent: a layer needs it");
    refuses(LAYER("\"n_heads\": 6, \"n_kv_heads\": 4, \"head_dim\": 8"),
            ":1:38: models[0].layers[0].n_heads = 6: a multiple of n_kv_heads = 4");
    refuses(LAYER("\"n_heads\": 4, \"head_dim\": 8, \"group\": 1"),
            ":1:38: models[0].layers[0].group = 1: the model has 1 groups");
    refuses(MODEL("\"layers\": [" GOOD "]"),
            ":1:38: models[0].layers[0].group = 0: the model has 0 groups");
    refuses(LAYER("\"n_heads\": 4, \"head_dim\": 8, \"rope\": {\"dim\": 10}"),
            ":1:38: models[0].layers[0].rope.dim = 10: an even number up to head_dim = 8");
    refuses(LAYER("\"n_heads\": 4, \"head_dim\": 9, \"rope\": {}"),
            ":1:38: models[0].layers[0].rope.dim = 9: an even number up to head_dim = 9");
    refuses(
        LAYER("\"kind\": \"mla\", \"n_heads\": 4, \"head_dim\": 64"),
        ":1:38: models[0].layers[0].head_dim_v = 0: mla has one kv head, whose row of head_dim = "
        "64 is head_dim_v latent channels and then the rotated ones");
    refuses(LAYER("\"n_heads\": 4, \"head_dim\": 8, \"count\": 65536}, {\"n_heads\": 4, "
                  "\"head_dim\": 8"),
            ":1:85: models[0].layers[1].count = 1: at most 65536 layers");
    refuses(GROUPS("\"block_size\": 24, \"kv_dtype\": \"f16\", \"n_blocks\": 8"),
            ":1:82: models[0].groups[0].block_size = 24: a power of two, 1..1024");
    refuses(GROUPS("\"block_size\": 16, \"n_blocks\": 8"),
            ":1:82: models[0].groups[0].kv_dtype = absent: f32 | f16 | bf16");
    refuses(GROUPS("\"block_size\": 16, \"kv_dtype\": \"f16\""),
            ":1:82: models[0].groups[0].n_blocks = 0: give n_blocks or bytes, one of them");
    refuses(GROUPS("\"block_size\": 16, \"kv_dtype\": \"f16\", \"n_blocks\": 8, \"bytes\": 9"),
            ":1:82: models[0].groups[0].n_blocks = 8: give n_blocks or bytes, one of them");
    refuses(MODEL("\"layers\": [" GOOD "], \"groups\": [" GROUP ", " GROUP "]"),
            ":1:136: models[0].groups[1]: no layer keeps anything in it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_spec_leaves_out_is_filled_in),
        cmocka_unit_test(a_latent_layer_has_one_kv_head),
        cmocka_unit_test(what_is_no_model_is_refused),
        cmocka_unit_test(an_unknown_field_names_the_nearest_and_none_is_given_twice),
        cmocka_unit_test(a_value_that_does_not_fit_is_told_what_would),
        cmocka_unit_test(what_fields_say_together_is_checked),
    };
    return cmocka_run_group_tests_name("cfg_models", tests, make_path, drop_path);
}
