/* test_srv_tensor.c: a reference into a buffer is inside it or refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/tensor.h"

enum { BYTES = 4096, HANDLE = 7 };

typedef struct fixture {
    srv_engine engine;
    srv_session session;
    srv_buffer buffer;
    srv_request request;
    char memory[BYTES];
    attnd_err err;
} fixture;

static int open_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    attnd_err err;
    ker_device_options options = {.backend = "cpu", .n_threads = 1, .n_slots = 1};
    assert_int_equal(ker_device_open(&f->engine.device, &options, &err), ATTND_OK);
    f->request.engine = &f->engine;
    f->buffer.handle = HANDLE;
    f->buffer.session = &f->session;
    f->buffer.memory = (ker_memory){.base = f->memory, .bytes = BYTES, .fd = -1};
    srv_session *session = &f->session;
    srv_buffer *buffer = &f->buffer;
    HASH_ADD(hh, session->buffers, handle, sizeof buffer->handle, buffer);
    f->request.session = session;
    assert_int_equal(msg_arena_init(&f->request.arena, 1 << 16, &err), 0);
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    srv_session *session = &f->session;
    HASH_CLEAR(hh, session->buffers);
    msg_arena_fini(&f->request.arena);
    ker_device_close(f->engine.device);
    free(f);
    return 0;
}

static msg_tensor tensor3(uint64_t tokens, uint64_t heads, uint64_t width)
{
    return (msg_tensor){.given = true,
                        .buffer = HANDLE,
                        .dtype = ATTND_DTYPE_F32,
                        .n_dims = 3,
                        .shape = {tokens, heads, width}};
}

static attnd_status resolve(fixture *f, const msg_tensor *tensor, srv_shape shape, bool is_output,
                            srv_span *span)
{
    f->err = (attnd_err){.status = ATTND_OK};
    f->request.n_held = 0;
    return srv_tensor_resolve(&f->request, tensor, "q", shape, is_output, span, &f->err);
}

static void expect_refusal(fixture *f, const msg_tensor *tensor, srv_shape shape, bool is_output,
                           attnd_reason reason, const char *text)
{
    srv_span span;
    attnd_status status = resolve(f, tensor, shape, is_output, &span);
    assert_string_equal(f->err.text, text);
    assert_int_equal(f->err.reason, reason);
    assert_int_equal(status, attnd_reason_status(reason));
}

static void a_tensor_without_strides_has_no_gaps(void **state)
{
    fixture *f = *state;
    msg_tensor t = tensor3(4, 2, 8);
    srv_span span;
    t.offset = 16;
    assert_int_equal(resolve(f, &t, (srv_shape){4, 2, 8}, true, &span), ATTND_OK);
    assert_ptr_equal(span.rows.base, f->memory + 16);
    assert_int_equal(span.rows.token_stride, 64);
    assert_int_equal(span.rows.head_stride, 32);
    assert_int_equal(span.first, 16);
    assert_int_equal(span.end, 16 + 4 * 64);
    assert_int_equal(f->buffer.n_in_use, 1);
    assert_int_equal(f->request.n_held, 1);
}

static void two_dimensions_are_the_same_memory(void **state)
{
    fixture *f = *state;
    msg_tensor t = tensor3(4, 16, 0);
    srv_span span;
    t.n_dims = 2;
    t.n_strides = 2;
    t.strides[0] = 128;
    t.strides[1] = 4;
    assert_int_equal(resolve(f, &t, (srv_shape){4, 2, 8}, true, &span), ATTND_OK);
    assert_int_equal(span.rows.token_stride, 128);
    assert_int_equal(span.rows.head_stride, 32);
    assert_int_equal(span.end, 3 * 128 + 64);
}

static void shapes_are_the_calls(void **state)
{
    fixture *f = *state;
    srv_shape want = {4, 2, 8};
    msg_tensor t = tensor3(5, 2, 8);
    expect_refusal(f, &t, want, false, ATTND_BAD_GEOMETRY,
                   "q.shape[0] = 5: the batch has 4 tokens");
    t = tensor3(4, 3, 8);
    expect_refusal(f, &t, want, false, ATTND_BAD_GEOMETRY,
                   "q.shape[1] = 3: a token has 2 heads of 8, 16 elements");
    t = tensor3(4, 2, 8);
    t.n_dims = 5;
    expect_refusal(f, &t, want, false, ATTND_BAD_GEOMETRY,
                   "q.shape = 5 dimensions: [4][2][8] or [4][16]");
    assert_int_equal(f->buffer.n_in_use, 0);
}

static void what_leaves_the_buffer_is_refused(void **state)
{
    fixture *f = *state;
    srv_shape want = {4, 2, 8};
    msg_tensor t = tensor3(4, 2, 8);
    t.offset = BYTES - 4 * 64 + 4;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.offset = 3844: the tensor ends outside its buffer of 4096 bytes");
    t.offset = UINT64_MAX - 3;
    expect_refusal(
        f, &t, want, false, ATTND_BAD_TENSOR,
        "q.offset = 18446744073709551612: the tensor ends outside its buffer of 4096 bytes");
    t.offset = 0;
    t.n_strides = 3;
    t.strides[0] = INT64_MAX - 3;
    t.strides[1] = 32;
    t.strides[2] = 4;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.offset = 0: the tensor ends outside its buffer of 4096 bytes");
    /* Three of these are 200 bytes to whoever drops the carry. */
    t.strides[0] = 6148914691236517272;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.offset = 0: the tensor ends outside its buffer of 4096 bytes");
    t.strides[0] = 1024;
    t.strides[1] = (int64_t)1 << 62;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.offset = 0: the tensor ends outside its buffer of 4096 bytes");
}

/* B134: at the far corner alone the first of them would seem to stay inside. */
static void strides_are_whole_elements_and_not_negative(void **state)
{
    fixture *f = *state;
    srv_shape want = {2, 2, 2};
    msg_tensor t = tensor3(2, 2, 2);
    t.n_strides = 3;
    t.strides[0] = -1024;
    t.strides[1] = 2048;
    t.strides[2] = 4;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR, "q.strides[0] = -1024: not negative");
    t.strides[0] = 1022;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.strides[0] = 1022: a multiple of the element, 4 bytes");
    t.strides[0] = 1024;
    t.strides[2] = 8;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.strides[2] = 8: the innermost stride is the element, 4 bytes");
    t.n_strides = 2;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.strides = 2 entries: one for each dimension");
    t.n_strides = 0;
    t.offset = 2;
    expect_refusal(f, &t, want, false, ATTND_BAD_TENSOR,
                   "q.offset = 2: a multiple of the element, 4 bytes");
    t.offset = 0;
    t.buffer = 8;
    expect_refusal(f, &t, want, false, ATTND_NO_SUCH_HANDLE,
                   "q.buffer = 8: this session has no such buffer");
}

static void an_output_shares_no_bytes_with_itself(void **state)
{
    fixture *f = *state;
    srv_shape want = {4, 2, 8};
    msg_tensor t = tensor3(4, 2, 8);
    srv_span span;
    t.n_strides = 3;
    t.strides[0] = 0;
    t.strides[1] = 32;
    t.strides[2] = 4;
    assert_int_equal(resolve(f, &t, want, false, &span), ATTND_OK); /* an input may repeat */
    f->buffer.n_in_use = 0;
    expect_refusal(f, &t, want, true, ATTND_BAD_TENSOR,
                   "q.strides = 0 and 32: elements of an output share no bytes");
    t.strides[0] = 32;
    t.strides[1] = 128; /* heads outside, tokens inside */
    assert_int_equal(resolve(f, &t, want, true, &span), ATTND_OK);
    t.strides[1] = 96;
    expect_refusal(f, &t, want, true, ATTND_BAD_TENSOR,
                   "q.strides = 32 and 96: elements of an output share no bytes");
}

/* Spans are sorted by the check: each case starts from a fresh list. */
static attnd_status check_spans(fixture *f, uint64_t out_first, uint64_t lse_first,
                                uint64_t lse_end)
{
    srv_span spans[] = {
        {.field = "lse", .buffer = 1, .first = lse_first, .end = lse_end, .is_output = true},
        {.field = "q", .buffer = 1, .first = 0, .end = 64},
        {.field = "k", .buffer = 1, .first = 0, .end = 64},
        {.field = "out", .buffer = 1, .first = out_first, .end = 128, .is_output = true},
        {.field = "out", .buffer = 2, .first = 0, .end = 64, .is_output = true},
        {.field = "out", .buffer = 2, .first = 0, .end = 64, .is_output = true}, /* a ring */
    };
    f->err = (attnd_err){.status = ATTND_OK};
    return srv_spans_check(spans, sizeof spans / sizeof *spans, &f->err);
}

static void outputs_overlap_nothing(void **state)
{
    fixture *f = *state;
    assert_int_equal(check_spans(f, 64, 128, 192), ATTND_OK);
    assert_int_equal(check_spans(f, 63, 128, 192), ATTND_INVALID_ARGUMENT);
    assert_int_equal(f->err.reason, ATTND_BAD_TENSOR);
    assert_string_equal(f->err.text, "out.offset = 63: its bytes up to 128 overlap k, 0 to 64");
    assert_int_equal(check_spans(f, 64, 127, 192), ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text,
                        "lse.offset = 127: its bytes up to 192 overlap out, 64 to 128");
    assert_int_equal(check_spans(f, 64, 32, 40), ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "lse.offset = 32: its bytes up to 40 overlap k, 0 to 64");
    assert_int_equal(check_spans(f, 64, 80, 80), ATTND_OK); /* no bytes at all */
}

static void integers_in_a_buffer_are_copied(void **state)
{
    fixture *f = *state;
    int32_t values[] = {3, -1, 9};
    memcpy(f->memory + 8, values, sizeof values);
    msg_ints ints = {.given = true,
                     .ref = {.given = true,
                             .buffer = HANDLE,
                             .offset = 8,
                             .dtype = ATTND_DTYPE_I32,
                             .n_dims = 1,
                             .shape = {3}}};
    const int32_t *out;
    int64_t n;
    assert_int_equal(
        srv_ints_copy(&f->request, &f->request.arena, &ints, "kv_lens", 3, 8, &out, &n, &f->err),
        ATTND_OK);
    memset(f->memory, 0xff, BYTES);
    assert_int_equal(n, 3);
    assert_memory_equal(out, values, sizeof values);
    ints.ref.shape[0] = (uint64_t)1 << 40;
    assert_int_equal(
        srv_ints_copy(&f->request, &f->request.arena, &ints, "kv_lens", -1, 8, &out, &n, &f->err),
        ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "kv_lens = 1099511627776 entries: at most 8");
    ints.ref.shape[0] = 2000;
    assert_int_equal(srv_ints_copy(&f->request, &f->request.arena, &ints, "kv_lens", -1, 8000, &out,
                                   &n, &f->err),
                     ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text,
                        "kv_lens.ref.offset = 8: the tensor ends outside its buffer of 4096 bytes");
    ints.ref.dtype = ATTND_DTYPE_F32;
    assert_int_equal(
        srv_ints_copy(&f->request, &f->request.arena, &ints, "kv_lens", -1, 8, &out, &n, &f->err),
        ATTND_INVALID_ARGUMENT);
    assert_string_equal(f->err.text, "kv_lens.ref.dtype = f32: i32");
}

#define T_(name) cmocka_unit_test_setup_teardown(name, open_fixture, close_fixture)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T_(a_tensor_without_strides_has_no_gaps),
        T_(two_dimensions_are_the_same_memory),
        T_(shapes_are_the_calls),
        T_(what_leaves_the_buffer_is_refused),
        T_(strides_are_whole_elements_and_not_negative),
        T_(an_output_shares_no_bytes_with_itself),
        T_(outputs_overlap_nothing),
        T_(integers_in_a_buffer_are_copied),
    };
    return cmocka_run_group_tests_name("srv_tensor", tests, NULL, NULL);
}
