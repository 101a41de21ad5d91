/* world.c: an engine without threads, and a session that has something of everything. */
#include "tests/fuzz/world.h"

#include <string.h>

#include "attnd.pb-c.h"
#include "daemon/log.h"
#include "daemon/plan.h"
#include "daemon/road.h"
#include "daemon/session.h"

enum { REPLY_BYTES = 1 << 14, HEADS = 2, DIM = 8, T = 4, BLOCKS = 8, MOST_TURNS = 64, SEQS = 2 };

srv_engine fuzz_engine;
void (*fuzz_on_the_road)(bool is);

static cfg config;

/* A request in flight. */
typedef struct flight {
    srv_request request;
    bool is_sent;
    uint8_t reply[REPLY_BYTES];
    size_t n_reply;
} flight;

static flight flights[FUZZ_REQUESTS];
static srv_session *session;
static int32_t ints[FUZZ_BUFFER_BYTES / 4];

/* ---- Replies ---- */

static void keep_reply(srv_request *request)
{
    flight *f = (flight *)((char *)request - offsetof(flight, request));
    FUZZ_CHECK(!f->is_sent);
    f->is_sent = true;
    f->n_reply = request->n_sent;
    FUZZ_CHECK(request->n_sent && request->n_sent <= sizeof f->reply);
    memcpy(f->reply, request->sent, request->n_sent);
    msg_arena_reset(&request->arena);
}

attnd_status fuzz_check_reply(const uint8_t *bytes, size_t n)
{
    uint8_t *exact = malloc(n ? n : 1); /* so that a read behind it is seen */
    memcpy(exact, bytes, n);
    Attnd__V1__Reply *reply = attnd__v1__reply__unpack(NULL, n, exact);
    free(exact);
    FUZZ_CHECK(reply && reply->status);
    const Attnd__V1__Status *status = reply->status;
    attnd_status code = (attnd_status)status->code;
    FUZZ_CHECK(reply->instance == fuzz_engine.instance);
    if (code == ATTND_OK) {
        FUZZ_CHECK(reply->result_case && !*status->message && !*status->reason);
    } else {
        FUZZ_CHECK(!reply->result_case && *status->message && *status->reason);
        FUZZ_CHECK(attnd_status_mender(code) != ATTND_MENDER_US);
        FUZZ_CHECK(!strncmp(status->field, status->message, strlen(status->field)));
    }
    attnd__v1__reply__free_unpacked(reply, NULL);
    return code;
}

/* ---- Sending ---- */

static void arrive(flight *f, const uint8_t *bytes, size_t n)
{
    f->is_sent = false;
    f->request.bytes = bytes;
    f->request.n_bytes = n;
    f->request.connection = FUZZ_CONNECTION;
    f->request.received_ns = srv_now_ns();
    f->request.send = keep_reply;
    srv_road_arrive(&fuzz_engine.queue, &f->request);
}

static bool all_sent(size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!flights[i].is_sent)
            return false;
    return true;
}

void fuzz_run_out_of_time(void)
{
    for (srv_request *r = fuzz_engine.waiting; r; r = r->wait_next)
        r->deadline_ns = 1;
    fuzz_engine.has_news = true;
}

static void on_the_road(bool is)
{
    if (fuzz_on_the_road)
        fuzz_on_the_road(is);
}

attnd_reason fuzz_world_reason(size_t i)
{
    return flights[i].request.reply.err.reason;
}

void fuzz_world_send(const uint8_t *const *bytes, const size_t *n_bytes, size_t n)
{
    static uint8_t before[2][BLOCKS * 1024];
    srv_model *model = session->models;
    for (size_t g = 0; g < 2; g++) {
        FUZZ_CHECK(model->groups[g].memory.bytes <= sizeof before[g]);
        memcpy(before[g], model->groups[g].memory.base, model->groups[g].memory.bytes);
    }
    on_the_road(true);
    for (size_t i = 0; i < n; i++)
        arrive(&flights[i], bytes[i], n_bytes[i]);
    on_the_road(false);
    for (int turn = 0; !all_sent(n); turn++) {
        FUZZ_CHECK(turn < MOST_TURNS);
        on_the_road(true);
        srv_engine_turn(&fuzz_engine, false);
        on_the_road(false);
        if (!fuzz_device_run(fuzz_engine.device) && !all_sent(n))
            fuzz_run_out_of_time();
    }
    bool all_refused = true;
    for (size_t i = 0; i < n; i++)
        all_refused &= fuzz_check_reply(flights[i].reply, flights[i].n_reply) != ATTND_OK;
    FUZZ_CHECK(!fuzz_engine.n_in_flight && !fuzz_engine.waiting);
    if (!all_refused)
        return;
    FUZZ_CHECK(fuzz_engine.sessions == session && session->models == model);
    for (size_t g = 0; g < 2; g++)
        FUZZ_CHECK(!memcmp(before[g], model->groups[g].memory.base, model->groups[g].memory.bytes));
}

/* ---- The session ---- */

static uint64_t send_one(Attnd__V1__Request *request)
{
    uint8_t bytes[1024];
    request->session = FUZZ_SESSION;
    size_t n = attnd__v1__request__pack(request, bytes);
    arrive(&flights[0], bytes, n);
    srv_engine_turn(&fuzz_engine, false);
    FUZZ_CHECK(all_sent(1) && fuzz_check_reply(flights[0].reply, flights[0].n_reply) == ATTND_OK);
    return fuzz_engine.last_handle;
}

static void open_model(void)
{
    Attnd__V1__Rope rope = ATTND__V1__ROPE__INIT;
    Attnd__V1__LayerSpec layer[3] = {ATTND__V1__LAYER_SPEC__INIT, ATTND__V1__LAYER_SPEC__INIT,
                                     ATTND__V1__LAYER_SPEC__INIT};
    Attnd__V1__GroupSpec group[2] = {ATTND__V1__GROUP_SPEC__INIT, ATTND__V1__GROUP_SPEC__INIT};
    Attnd__V1__ModelSpec spec = ATTND__V1__MODEL_SPEC__INIT;
    Attnd__V1__OpenModelRequest open = ATTND__V1__OPEN_MODEL_REQUEST__INIT;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    for (int i = 0; i < 3; i++) {
        layer[i].n_heads = HEADS;
        layer[i].n_kv_heads = 1;
        layer[i].head_dim = DIM;
    }
    rope.pairing = ATTND__V1__ROPE_PAIRING__ROPE_NEOX;
    layer[1].group = 1;
    layer[1].window = 6;
    layer[1].rope = &rope;
    for (int i = 0; i < 2; i++) {
        group[i].block_size = T;
        group[i].kv_dtype = ATTND__V1__DTYPE__DTYPE_F32;
        group[i].size_case = ATTND__V1__GROUP_SPEC__SIZE_N_BLOCKS;
        group[i].n_blocks = BLOCKS;
    }
    spec.n_layers = 3;
    spec.layers = (Attnd__V1__LayerSpec *[]){&layer[0], &layer[1], &layer[2]};
    spec.n_groups = 2;
    spec.groups = (Attnd__V1__GroupSpec *[]){&group[0], &group[1]};
    open.spec = &spec;
    request.op_case = ATTND__V1__REQUEST__OP_OPEN_MODEL;
    request.open_model = &open;
    FUZZ_CHECK(send_one(&request) == FUZZ_MODEL);
}

static void create_buffer(uint64_t handle)
{
    Attnd__V1__CreateBufferRequest create = ATTND__V1__CREATE_BUFFER_REQUEST__INIT;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    create.bytes = FUZZ_BUFFER_BYTES;
    request.op_case = ATTND__V1__REQUEST__OP_CREATE_BUFFER;
    request.create_buffer = &create;
    FUZZ_CHECK(send_one(&request) == handle);
}

static Attnd__V1__Ints ints_of(const int32_t *values, size_t n)
{
    Attnd__V1__Ints out;
    attnd__v1__ints__init(&out);
    out.from_case = ATTND__V1__INTS__FROM_DATA;
    out.data = (ProtobufCBinaryData){n * sizeof *values, (uint8_t *)values};
    return out;
}

static void create_plan(uint64_t handle, size_t n_tables, bool with_slots)
{
    static const int32_t ones[SEQS] = {1, 1}, lens[SEQS] = {6, 3}, ids[] = {1, 2, 5},
                         where[SEQS] = {9, 22};
    Attnd__V1__Ints q_lens = ints_of(ones, SEQS), kv_lens = ints_of(lens, SEQS),
                    blocks = ints_of(ids, 3), slots = ints_of(where, SEQS),
                    positions = ints_of(lens, SEQS);
    Attnd__V1__Table table[2] = {ATTND__V1__TABLE__INIT, ATTND__V1__TABLE__INIT};
    Attnd__V1__Batch batch = ATTND__V1__BATCH__INIT;
    Attnd__V1__CreatePlanRequest create = ATTND__V1__CREATE_PLAN_REQUEST__INIT;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    table[1].group = 1;
    table[0].block_ids = table[1].block_ids = &blocks;
    batch.q_lens = &q_lens;
    batch.kv_lens = &kv_lens;
    batch.n_tables = n_tables;
    batch.tables = (Attnd__V1__Table *[]){&table[0], &table[1]};
    if (with_slots) {
        batch.slots = &slots;
        batch.positions = &positions;
    }
    create.model = FUZZ_MODEL;
    create.batch = &batch;
    request.op_case = ATTND__V1__REQUEST__OP_CREATE_PLAN;
    request.create_plan = &create;
    FUZZ_CHECK(send_one(&request) == handle);
}

static void open_session(void)
{
    attnd_err err;
    FUZZ_CHECK(srv_session_make(&fuzz_engine, "fuzz", &session, &err) == ATTND_OK);
    HASH_DEL(fuzz_engine.sessions, session);
    session->number = FUZZ_SESSION;
    HASH_ADD(hh, fuzz_engine.sessions, number, sizeof session->number, session);
    srv_session_open(&fuzz_engine, session, FUZZ_CONNECTION);
    srv_session_leave(&fuzz_engine, session);
    fuzz_engine.last_handle = 0;
    open_model();
    create_buffer(FUZZ_BUFFER);
    create_buffer(FUZZ_INTS);
    srv_buffer *buffer;
    uint64_t handle = FUZZ_INTS;
    HASH_FIND(hh, session->buffers, &handle, sizeof handle, buffer);
    FUZZ_CHECK(buffer);
    memcpy(buffer->memory.base, ints, sizeof ints);
    create_plan(FUZZ_PLAN, 2, false);
    create_plan(FUZZ_SLOTS, 1, true);
}

static bool is_connected(void *self, uint32_t connection)
{
    return connection == FUZZ_CONNECTION;
}

void fuzz_world_open(void)
{
    attnd_err err;
    srv_log_set_level("error");
    cfg_defaults(&config);
    config.limits_max_tokens = 64;
    config.limits_max_sequences = 16;
    config.limits_max_head_dim = 64;
    config.limits_max_layers = 8;
    config.session_max_pool = config.session_max_buffer = 1 << 16;
    config.session_max_models = config.session_max_plans = config.session_max_buffers = 3;
    config.data_default_timeout = 86400000;
    fuzz_engine.config = &config;
    fuzz_engine.instance = 1;
    fuzz_engine.arena_bytes = 1 << 20;
    fuzz_engine.transport = (srv_transport){.is_connected = is_connected};
    fuzz_engine.device = fuzz_device_open(1 << 20);
    srv_engine_init(&fuzz_engine);
    for (size_t i = 0; i < FUZZ_REQUESTS; i++)
        FUZZ_CHECK(msg_arena_init(&flights[i].request.arena, 1 << 20, &err) == ATTND_OK);
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        ints[i] = (int32_t)i % BLOCKS;
    open_session();
}

bool fuzz_world_is_as_opened(void)
{
    if (fuzz_engine.sessions != session || session->hh.next || session->n_leases ||
        session->n_in_flight || session->buffer_bytes != 2 * FUZZ_BUFFER_BYTES ||
        HASH_COUNT(session->models) != 1 || HASH_COUNT(session->buffers) != 2 ||
        HASH_COUNT(session->plans) != 2)
        return false;
    for (srv_plan *plan = session->plans; plan; plan = plan->hh.next)
        if (srv_plan_newest(plan)->number != 1)
            return false;
    return true;
}

void fuzz_world_close(void)
{
    srv_session *next;
    HASH_ITER(hh, fuzz_engine.sessions, session, next)
    {
        srv_session_end(&fuzz_engine, session, "fuzz");
    }
    for (size_t i = 0; i < FUZZ_REQUESTS; i++)
        msg_arena_fini(&flights[i].request.arena);
    srv_queue_fini(&fuzz_engine.queue);
    ker_device_close(fuzz_engine.device);
}

void fuzz_world_reset(void)
{
    srv_session *next;
    if (fuzz_world_is_as_opened() && fuzz_engine.last_handle == FUZZ_HANDLES &&
        !session->history.n_arrived) {
        srv_buffer *buffer;
        uint64_t handle = FUZZ_INTS;
        HASH_FIND(hh, session->buffers, &handle, sizeof handle, buffer);
        FUZZ_CHECK(buffer);
        memcpy(buffer->memory.base, ints, sizeof ints);
        return;
    }
    HASH_ITER(hh, fuzz_engine.sessions, session, next)
    {
        srv_session_end(&fuzz_engine, session, "fuzz");
    }
    fuzz_engine.has_news = false;
    fuzz_engine.lingers_ns = 0;
    open_session();
}
