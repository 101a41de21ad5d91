/* test_msg_encode.c: a reply becomes the bytes that say it, as many as were announced. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attnd.pb-c.h"
#include "proto/message.h"

static int open_arena(void **state)
{
    static msg_arena arena;
    *state = &arena;
    return msg_arena_init(&arena, 1 << 20, NULL);
}

static int close_arena(void **state)
{
    msg_arena_fini(*state);
    return 0;
}

/* Encodes, and reads back what a client would see; the caller frees it. */
static Attnd__V1__Reply *sent(msg_arena *arena, const msg_reply *reply)
{
    size_t n = msg_encoded_bytes(reply);
    uint8_t *bytes = malloc(n + 16);
    memset(bytes, 0xA5, n + 16);
    attnd_err err = {0};
    assert_int_equal(msg_encode(arena, reply, bytes, n, &err), ATTND_OK);
    assert_string_equal(err.text, "");
    for (size_t i = n; i < n + 16; i++)
        assert_int_equal(bytes[i], 0xA5);
    Attnd__V1__Reply *m = attnd__v1__reply__unpack(NULL, n, bytes);
    free(bytes);
    assert_non_null(m);
    assert_non_null(m->status);
    assert_true(m->id == reply->id);
    assert_true(m->instance == reply->instance);
    assert_int_equal(m->status->code, reply->err.status);
    return m;
}

static void gone(Attnd__V1__Reply *m)
{
    attnd__v1__reply__free_unpacked(m, NULL);
}

static void replies_without_content_carry_their_op(void **state)
{
    static const msg_op ops[] = {MSG_OP_ping, MSG_OP_goodbye, MSG_OP_close_model,
                                 MSG_OP_free_buffer, MSG_OP_drop_plan};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        msg_reply reply = {.id = 1, .instance = UINT64_MAX, .op = ops[i]};
        Attnd__V1__Reply *m = sent(NULL, &reply);
        assert_int_equal(m->result_case, ops[i]);
        assert_non_null(m->ping);
        assert_string_equal(m->status->message, "");
        gone(m);
    }
}

static void the_bytes_of_a_ping_reply_are_these(void **state)
{
    msg_reply reply = {.id = 1, .instance = 2, .op = MSG_OP_ping};
    uint8_t bytes[64];
    size_t n = msg_encoded_bytes(&reply);
    assert_int_equal(n, 23);
    assert_int_equal(msg_encode(NULL, &reply, bytes, n, NULL), ATTND_OK);
    assert_memory_equal(bytes,
                        "\x09\x01\0\0\0\0\0\0\0"
                        "\x11\x02\0\0\0\0\0\0\0"
                        "\x1a\0"
                        "\x82\x01\0",
                        23);
}

static void a_refusal_carries_code_reason_field_and_text(void **state)
{
    msg_reply reply = {.id = 7, .op = MSG_OP_attend};
    attnd_fail(&reply.err, ATTND_BAD_BLOCK,
               "batch.tables[1].block_ids[7] = 4096: pool \"main\" has blocks 0..4095");
    Attnd__V1__Reply *m = sent(NULL, &reply);
    assert_int_equal(m->result_case, ATTND__V1__REPLY__RESULT__NOT_SET);
    assert_int_equal(m->status->code, ATTND__V1__CODE__INVALID_ARGUMENT);
    assert_string_equal(m->status->reason, "BAD_BLOCK");
    assert_string_equal(m->status->field, "batch.tables[1].block_ids[7]");
    assert_string_equal(m->status->message, reply.err.text);
    gone(m);
    attnd_fail(&reply.err, ATTND_DRAINING, "the server is draining");
    m = sent(NULL, &reply);
    assert_string_equal(m->status->field, "");
    assert_string_equal(m->status->message, "the server is draining");
    gone(m);
}

static void every_status_and_reason_reaches_the_wire(void **state)
{
#define X(name, number, code_)                                                                     \
    if (ATTND_##name != ATTND_NO_REASON) {                                                         \
        msg_reply reply = {0};                                                                     \
        attnd_fail(&reply.err, ATTND_##name, "x = 1: other");                                      \
        Attnd__V1__Reply *m = sent(NULL, &reply);                                                  \
        assert_string_equal(m->status->reason, #name);                                             \
        gone(m);                                                                                   \
    }
    ATTND_REASON_MAP(X)
#undef X
#define X(name, number, mender, text)                                                              \
    assert_non_null(                                                                               \
        protobuf_c_enum_descriptor_get_value(&attnd__v1__code__descriptor, ATTND_##name));         \
    assert_int_equal(                                                                              \
        protobuf_c_enum_descriptor_get_value_by_name(&attnd__v1__code__descriptor, #name)->value,  \
        number);
    ATTND_STATUS_MAP(X)
#undef X
}

static void shared_words_have_the_numbers_of_the_wire(void **state)
{
    const ProtobufCEnumValue *value;
#define X(name, number, bits, text)                                                                \
    value = protobuf_c_enum_descriptor_get_value_by_name(&attnd__v1__dtype__descriptor,            \
                                                         "DTYPE_" #name);                          \
    assert_non_null(value);                                                                        \
    assert_int_equal(value->value, ATTND_DTYPE_##name);
    ATTND_DTYPE_MAP(X)
#undef X
#define X(name, number, text)                                                                      \
    value = protobuf_c_enum_descriptor_get_value_by_name(&attnd__v1__layer_kind__descriptor,       \
                                                         "LAYER_" #name);                          \
    assert_non_null(value);                                                                        \
    assert_int_equal(value->value, ATTND_LAYER_##name);
    ATTND_LAYER_KIND_MAP(X)
#undef X
    assert_int_equal(ATTND__V1__LAYOUT__LAYOUT_HND, ATTND_LAYOUT_HND);
    assert_int_equal(ATTND__V1__LAYOUT__LAYOUT_NHD, ATTND_LAYOUT_NHD);
    assert_int_equal(ATTND__V1__ROPE_PAIRING__ROPE_NONE, ATTND_ROPE_NONE);
    assert_int_equal(ATTND__V1__ROPE_PAIRING__ROPE_NEOX, ATTND_ROPE_NEOX);
    assert_int_equal(ATTND__V1__ROPE_PAIRING__ROPE_GPTJ, ATTND_ROPE_GPTJ);
    assert_int_equal(ATTND__V1__OWNER__OWNER_CLIENT, MSG_OWNER_CLIENT);
    assert_int_equal(ATTND__V1__OWNER__OWNER_SERVER, MSG_OWNER_SERVER);
    assert_int_equal(ATTND__V1__MASK__MASK_CAUSAL, MSG_MASK_CAUSAL);
    assert_int_equal(ATTND__V1__MASK__MASK_FULL, MSG_MASK_FULL);
    assert_int_equal(ATTND__V1__MASK__MASK_VARIABLE, MSG_MASK_VARIABLE);
    assert_int_equal(ATTND__V1__MASK__MASK_CUSTOM, MSG_MASK_CUSTOM);
    assert_int_equal(ATTND__V1__MASK__MASK_TREE, MSG_MASK_TREE);
    assert_int_equal(ATTND__V1__KEYS__KEYS_POOL, MSG_KEYS_POOL);
    assert_int_equal(ATTND__V1__KEYS__KEYS_GIVEN, MSG_KEYS_GIVEN);
    assert_int_equal(ATTND__V1__SYNC_MODE__SYNC_REPLY, MSG_SYNC_REPLY);
    assert_int_equal(ATTND__V1__SYNC_MODE__SYNC_EVENT, MSG_SYNC_EVENT);
    assert_int_equal(ATTND__V1__SYNC_MODE__SYNC_DOORBELL, MSG_SYNC_DOORBELL);
}

/* A reader of proto3 refuses a string that is no UTF-8, and the text is cut at a byte. */
static void text_that_is_no_utf8_goes_out_mended(void **state)
{
    msg_reply reply = {0};
    char text[ATTND_ERR_TEXT + 8] = "abcd = ";
    memset(text + 7, 'x', ATTND_ERR_TEXT - 9);
    strcpy(text + ATTND_ERR_TEXT - 2, "\xe2\x82\xac");
    attnd_fail(&reply.err, ATTND_BAD_MESSAGE, "%s", text);
    size_t n = strlen(reply.err.text);
    assert_int_equal(n, ATTND_ERR_TEXT - 1);
    Attnd__V1__Reply *m = sent(NULL, &reply);
    assert_int_equal(strlen(m->status->message), n);
    assert_int_equal(msg_utf8_bytes(m->status->message, n), n);
    assert_int_equal(m->status->message[n - 1], '?');
    gone(m);
    attnd_fail(&reply.err, ATTND_BAD_MESSAGE, "a\xff = 1: \xc3\xa4\x80");
    m = sent(NULL, &reply);
    assert_string_equal(m->status->field, "a?");
    assert_string_equal(m->status->message, "a? = 1: \xc3\xa4?");
    gone(m);
}

static void hello_carries_everything(void **state)
{
    static const char *const features[] = {"attend", "hello"};
    char long_name[301];
    memset(long_name, 'm', 300);
    long_name[300] = 0;
    const msg_named models[] = {{11, "one"}, {12, long_name}, {UINT64_MAX, ""}};
    msg_reply reply = {.op = MSG_OP_hello,
                       .hello = {.session = 1ull << 63,
                                 .version = "0.1.0",
                                 .backend = "cpu",
                                 .device_name = "a machine",
                                 .n_threads = 4,
                                 .limits = {1, 2, 3, 4, 5ull << 40, 6ull << 40, 7, 8},
                                 .features = features,
                                 .n_features = 2,
                                 .models = models,
                                 .n_models = 3,
                                 .ordinal = 9}};
    Attnd__V1__Reply *m = sent(*state, &reply);
    assert_int_equal(m->result_case, ATTND__V1__REPLY__RESULT_HELLO);
    const Attnd__V1__HelloReply *h = m->hello;
    assert_true(h->session == 1ull << 63);
    assert_int_equal(h->protocol, 1);
    assert_string_equal(h->version, "0.1.0");
    assert_string_equal(h->device->backend, "cpu");
    assert_string_equal(h->device->name, "a machine");
    assert_int_equal(h->device->n_threads, 4);
    assert_int_equal(h->limits->max_message_bytes, 1);
    assert_int_equal(h->limits->max_tokens, 2);
    assert_int_equal(h->limits->max_sequences, 3);
    assert_int_equal(h->limits->max_in_flight, 4);
    assert_true(h->limits->max_buffer_bytes == 5ull << 40);
    assert_true(h->limits->max_pool_bytes == 6ull << 40);
    assert_int_equal(h->limits->max_head_dim, 7);
    assert_int_equal(h->limits->default_timeout_ms, 8);
    assert_int_equal(h->n_features, 2);
    assert_string_equal(h->features[1], "hello");
    assert_int_equal(h->n_models, 3);
    assert_int_equal(h->models[0]->model, 11);
    assert_string_equal(h->models[0]->name, "one");
    assert_string_equal(h->models[1]->name, long_name);
    assert_true(h->models[2]->model == UINT64_MAX);
    assert_int_equal(h->ordinal, 9);
    gone(m);
    reply.hello.n_models = 0;
    m = sent(NULL, &reply);
    assert_int_equal(m->hello->n_models, 0);
    gone(m);
}

static void the_other_results_carry_everything(void **state)
{
    const msg_pool_info pools[] = {{"main", 10, 16, 1ull << 33, 1ull << 36}, {"", 0, 0, 0, 0}};
    msg_reply reply = {.op = MSG_OP_open_model,
                       .open_model = {.model = 5, .pools = pools, .n_pools = 2, .n_layers = 32}};
    Attnd__V1__Reply *m = sent(*state, &reply);
    assert_int_equal(m->open_model->model, 5);
    assert_int_equal(m->open_model->n_layers, 32);
    assert_int_equal(m->open_model->n_pools, 2);
    assert_string_equal(m->open_model->pools[0]->name, "main");
    assert_int_equal(m->open_model->pools[0]->n_blocks, 10);
    assert_int_equal(m->open_model->pools[0]->block_size, 16);
    assert_true(m->open_model->pools[0]->block_bytes == 1ull << 33);
    assert_true(m->open_model->pools[0]->bytes == 1ull << 36);
    gone(m);
    reply = (msg_reply){.op = MSG_OP_create_buffer,
                        .create_buffer = {.buffer = 6, .bytes = 1ull << 50}};
    m = sent(NULL, &reply);
    assert_int_equal(m->create_buffer->buffer, 6);
    assert_true(m->create_buffer->bytes == 1ull << 50);
    assert_string_equal(m->create_buffer->shm_name, "");
    gone(m);
    reply.create_buffer.shm_name = "/attnd-shm-1";
    m = sent(NULL, &reply);
    assert_string_equal(m->create_buffer->shm_name, "/attnd-shm-1");
    gone(m);
    reply = (msg_reply){.op = MSG_OP_attend, .attend = {70, 80}};
    m = sent(NULL, &reply);
    assert_int_equal(m->attend->queue_us, 70);
    assert_int_equal(m->attend->device_us, 80);
    gone(m);
    reply = (msg_reply){.op = MSG_OP_create_plan, .create_plan = {1ull << 62, 1}};
    m = sent(NULL, &reply);
    assert_int_equal(m->result_case, ATTND__V1__REPLY__RESULT_CREATE_PLAN);
    assert_true(m->create_plan->plan == 1ull << 62);
    assert_int_equal(m->create_plan->version, 1);
    gone(m);
    reply = (msg_reply){.op = MSG_OP_update_plan, .update_plan = 1ull << 40};
    m = sent(NULL, &reply);
    assert_int_equal(m->result_case, ATTND__V1__REPLY__RESULT_UPDATE_PLAN);
    assert_true(m->update_plan->version == 1ull << 40);
    gone(m);
    reply = (msg_reply){.op = MSG_OP_step, .step = {71, 1ull << 33, 3}};
    m = sent(NULL, &reply);
    assert_int_equal(m->result_case, ATTND__V1__REPLY__RESULT_STEP);
    assert_int_equal(m->step->queue_us, 71);
    assert_true(m->step->device_us == 1ull << 33);
    assert_int_equal(m->step->version, 3);
    gone(m);
    reply = (msg_reply){.op = MSG_OP_merge, .merge = {72, 82}};
    m = sent(NULL, &reply);
    assert_int_equal(m->result_case, ATTND__V1__REPLY__RESULT_MERGE);
    assert_int_equal(m->merge->queue_us, 72);
    assert_int_equal(m->merge->device_us, 82);
    gone(m);
}

static void a_reply_that_passes_its_arena_is_refused(void **state)
{
    const msg_named models[] = {{11, "one"}, {12, "two"}};
    msg_reply hello = {
        .op = MSG_OP_hello,
        .hello = {
            .version = "", .backend = "", .device_name = "", .models = models, .n_models = 2}};
    const msg_pool_info pools[] = {{"main", 10, 16, 1, 2}};
    msg_reply open = {.op = MSG_OP_open_model, .open_model = {.pools = pools, .n_pools = 1}};
    const msg_reply *replies[] = {&hello, &open};
    for (int i = 0; i < 2; i++) {
        uint8_t bytes[256] = {0};
        size_t n = msg_encoded_bytes(replies[i]);
        msg_arena small = {.base = ((msg_arena *)*state)->base, .bytes = 64};
        attnd_err err;
        assert_int_equal(msg_encode(&small, replies[i], bytes, n, &err), ATTND_INVALID_ARGUMENT);
        assert_int_equal(err.reason, ATTND_TOO_LARGE);
        char text[128];
        snprintf(text, sizeof text, "reply = %zu bytes: making it passes 64 bytes", n);
        assert_string_equal(err.text, text);
        for (size_t k = 0; k < sizeof bytes; k++)
            assert_int_equal(bytes[k], 0);
    }
}

static void the_size_is_right_at_every_length(void **state)
{
    char name[20000];
    memset(name, 'n', sizeof name);
    for (size_t n = 0; n < sizeof name; n += n < 300 ? 1 : 1013) {
        name[n] = 0;
        const msg_named model = {1, name};
        msg_reply reply = {.op = MSG_OP_hello,
                           .hello = {.version = "v",
                                     .backend = "cpu",
                                     .device_name = "d",
                                     .models = &model,
                                     .n_models = 1}};
        msg_arena_reset(*state);
        Attnd__V1__Reply *m = sent(*state, &reply);
        assert_int_equal(strlen(m->hello->models[0]->name), n);
        gone(m);
        name[n] = 'n';
    }
}

static void a_packet_carries_kind_bytes_and_offset(void **state)
{
    uint8_t packet[MSG_FD_PACKET];
    msg_fd_reply reply = {.kind = 1, .bytes = 1ull << 40, .offset = 4096};
    size_t n = msg_fd_encode(&reply, packet);
    Attnd__V1__FdReply *m = attnd__v1__fd_reply__unpack(NULL, n, packet);
    assert_non_null(m);
    assert_int_equal(m->status->code, ATTND__V1__CODE__OK);
    assert_int_equal(m->kind, ATTND__V1__FD_KIND__FD_MEMFD);
    assert_true(m->bytes == 1ull << 40);
    assert_int_equal(m->offset, 4096);
    attnd__v1__fd_reply__free_unpacked(m, NULL);
}

static void the_longest_refusal_fits_a_packet(void **state)
{
    uint8_t packet[MSG_FD_PACKET];
    char name[ATTND_ERR_TEXT];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    for (size_t n = 0; n < 500; n += 5) {
        msg_fd_reply reply = {.bytes = UINT64_MAX, .offset = UINT64_MAX, .kind = 2};
        attnd_fail(&reply.err, ATTND_KV_LEN_EXCEEDS_POOL, "%.*s = 1: %s", (int)n, name, name);
        size_t bytes = msg_fd_encode(&reply, packet);
        assert_true(bytes <= sizeof packet);
        Attnd__V1__FdReply *m = attnd__v1__fd_reply__unpack(NULL, bytes, packet);
        assert_non_null(m);
        assert_string_equal(m->status->message, reply.err.text);
        assert_int_equal(strlen(m->status->field), n > 255 ? 0 : n);
        assert_string_equal(m->status->reason, "KV_LEN_EXCEEDS_POOL");
        attnd__v1__fd_reply__free_unpacked(m, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replies_without_content_carry_their_op),
        cmocka_unit_test(the_bytes_of_a_ping_reply_are_these),
        cmocka_unit_test(a_refusal_carries_code_reason_field_and_text),
        cmocka_unit_test(every_status_and_reason_reaches_the_wire),
        cmocka_unit_test(shared_words_have_the_numbers_of_the_wire),
        cmocka_unit_test(text_that_is_no_utf8_goes_out_mended),
        cmocka_unit_test(hello_carries_everything),
        cmocka_unit_test(the_other_results_carry_everything),
        cmocka_unit_test(a_reply_that_passes_its_arena_is_refused),
        cmocka_unit_test(the_size_is_right_at_every_length),
        cmocka_unit_test(a_packet_carries_kind_bytes_and_offset),
        cmocka_unit_test(the_longest_refusal_fits_a_packet),
    };
    return cmocka_run_group_tests_name("msg_encode", tests, open_arena, close_arena);
}
