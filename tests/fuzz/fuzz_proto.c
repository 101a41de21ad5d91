/* fuzz_proto.c: bytes → request, and a reply made of the same bytes → bytes → reply.
 *
 * What msg_decode takes, protobuf-c takes too, and what that writes is the same request to it. What
 * an op carries that nobody serves is not looked at.
 */
#include <string.h>

#include "daemon/op.h"
#include "proto/message.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/world.h"

enum { ARENA = 1 << 20 };

static msg_arena arenas[2];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    attnd_err err;
    for (int i = 0; i < 2; i++)
        FUZZ_CHECK(msg_arena_init(&arenas[i], ARENA, &err) == ATTND_OK);
    return 0;
}

static attnd_status decode(int i, const uint8_t *data, size_t n, msg_request *out)
{
    attnd_err err = {.status = ATTND_OK};
    msg_arena_reset(&arenas[i]);
    attnd_status status = msg_decode(&arenas[i], data, n, out, &err);
    FUZZ_CHECK(status == err.status);
    if (status != ATTND_OK)
        FUZZ_CHECK(err.text[0] && attnd_reason_status(err.reason) == status &&
                   attnd_status_mender(status) == ATTND_MENDER_CALLER);
    return status;
}

static void round_trip(const uint8_t *data, size_t n)
{
    msg_request first, second;
    if (decode(0, data, n, &first) != ATTND_OK || !srv_op_find(first.op)->run)
        return;
    Attnd__V1__Request *request = attnd__v1__request__unpack(NULL, n, data);
    FUZZ_CHECK(request && (msg_op)request->op_case == first.op);
    size_t n_again = attnd__v1__request__get_packed_size(request);
    uint8_t *again = malloc(n_again ? n_again : 1);
    FUZZ_CHECK(attnd__v1__request__pack(request, again) == n_again);
    FUZZ_CHECK(decode(1, again, n_again, &second) == ATTND_OK);
    FUZZ_CHECK(first.id == second.id && first.session == second.session &&
               first.after == second.after && first.timeout_ms == second.timeout_ms &&
               first.op == second.op);
    const msg_attend *a = &first.attend, *b = &second.attend;
    if (first.op == MSG_OP_attend)
        FUZZ_CHECK(a->q.offset == b->q.offset && a->q.n_dims == b->q.n_dims &&
                   a->q.dtype == b->q.dtype && a->q.shape[0] == b->q.shape[0] &&
                   a->has_batch == b->has_batch && a->batch.n_tables == b->batch.n_tables &&
                   a->batch.q_lens.bytes == b->batch.q_lens.bytes && a->plan == b->plan);
    free(again);
    attnd__v1__request__free_unpacked(request, NULL);
}

/* Numbers out of the input; 0 when it is used up. */
typedef struct source {
    const uint8_t *at;
    size_t n;
} source;

static uint64_t draw(source *s)
{
    uint64_t value = 0;
    size_t n = s->n < 8 ? s->n : 8;
    memcpy(&value, s->at, n);
    s->at += n;
    s->n -= n;
    return value;
}

/* Text without NUL and control, at most room - 1 bytes. */
static const char *draw_text(source *s, char *out, size_t room)
{
    size_t n = draw(s) % room;
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(' ' + draw(s) % 90);
    out[n] = 0;
    return out;
}

static void encode_reply(const uint8_t *data, size_t n)
{
    source s = {data, n};
    msg_reply reply = {.id = draw(&s), .instance = draw(&s)};
    msg_pool_info pools[4] = {0};
    char names[5][80];
    switch (draw(&s) % 5) {
    case 0:
        attnd_fail(&reply.err, ATTND_BAD_BLOCK, "%s", draw_text(&s, names[0], sizeof names[0]));
        break;
    case 1:
        reply.op = MSG_OP_open_model;
        reply.open_model = (msg_open_model_reply){
            .model = draw(&s), .pools = pools, .n_pools = draw(&s) % 5, .n_layers = 3};
        for (size_t i = 0; i < reply.open_model.n_pools; i++)
            pools[i] = (msg_pool_info){.name = draw_text(&s, names[i], sizeof names[i]),
                                       .n_blocks = (uint32_t)draw(&s),
                                       .block_size = (uint32_t)draw(&s),
                                       .block_bytes = draw(&s),
                                       .bytes = draw(&s)};
        break;
    case 2:
        reply.op = MSG_OP_create_buffer;
        reply.create_buffer = (msg_create_buffer_reply){.buffer = draw(&s), .bytes = draw(&s)};
        if (draw(&s) % 2)
            reply.create_buffer.shm_name = draw_text(&s, names[0], sizeof names[0]);
        break;
    case 3:
        reply.op = MSG_OP_step;
        reply.step = (msg_step_reply){draw(&s), draw(&s), draw(&s)};
        break;
    default:
        reply.op = MSG_OP_ping;
    }
    attnd_err err;
    size_t n_bytes = msg_encoded_bytes(&reply);
    uint8_t *bytes = malloc(n_bytes ? n_bytes : 1);
    msg_arena_reset(&arenas[0]);
    FUZZ_CHECK(msg_encode(&arenas[0], &reply, bytes, n_bytes, &err) == ATTND_OK);
    Attnd__V1__Reply *got = attnd__v1__reply__unpack(NULL, n_bytes, bytes);
    FUZZ_CHECK(got && got->id == reply.id && got->instance == reply.instance && got->status);
    FUZZ_CHECK((attnd_status)got->status->code == reply.err.status);
    FUZZ_CHECK((int)got->result_case == (int)reply.op);
    if (reply.op == MSG_OP_open_model)
        for (size_t i = 0; i < reply.open_model.n_pools; i++)
            FUZZ_CHECK(got->open_model->n_pools == reply.open_model.n_pools && pools[i].name &&
                       !strcmp(got->open_model->pools[i]->name, pools[i].name) &&
                       got->open_model->pools[i]->bytes == pools[i].bytes);
    if (reply.op == MSG_OP_step)
        FUZZ_CHECK(got->step->version == reply.step.version);
    if (reply.err.status != ATTND_OK)
        FUZZ_CHECK(!strcmp(got->status->message, reply.err.text) &&
                   !strcmp(got->status->reason, "BAD_BLOCK"));
    attnd__v1__reply__free_unpacked(got, NULL);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    round_trip(data, n);
    encode_reply(data, n);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t n, size_t room, unsigned seed)
{
    if (seed % 4 == 0)
        return LLVMFuzzerMutate(data, n, room);
    return fuzz_mutate_message(&attnd__v1__request__descriptor, data, n, room, seed / 4);
}
