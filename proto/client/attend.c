/* attend.c: batches and tensors on the wire. */
#include <assert.h>
#include <stdlib.h>

#include "proto/client/client.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "int32 arrays are sent as they lie");

typedef struct ints_memory {
    Attnd__V1__Ints ints;
    Attnd__V1__Tensor tensor;
} ints_memory;

typedef struct table_memory {
    Attnd__V1__Table table;
    ints_memory block_ids;
} table_memory;

/* All that a request points to but its tables. */
typedef struct attend_memory {
    Attnd__V1__Request request;
    Attnd__V1__AttendRequest attend;
    Attnd__V1__Batch batch;
    ints_memory q_lens, kv_lens, slots, positions;
    Attnd__V1__Tensor q, k, v, out, lse, stats;
} attend_memory;

/* NULL when there is none. */
static Attnd__V1__Tensor *make_tensor(Attnd__V1__Tensor *m, const attnd_tensor *from)
{
    if (!from->buffer)
        return NULL;
    attnd__v1__tensor__init(m);
    m->buffer = attnd_buffer_id(from->buffer);
    m->offset = from->offset;
    m->dtype = (Attnd__V1__Dtype)from->dtype;
    m->n_shape = from->n_dims;
    m->shape = (uint64_t *)from->shape;
    m->n_strides = from->n_strides;
    m->strides = (int64_t *)from->strides;
    return m;
}

/* NULL when they are absent. */
static Attnd__V1__Ints *make_ints(ints_memory *m, const attnd_ints *from)
{
    attnd__v1__ints__init(&m->ints);
    if (from->values) {
        m->ints.from_case = ATTND__V1__INTS__FROM_DATA;
        m->ints.data.data = (uint8_t *)from->values;
        m->ints.data.len = from->n * sizeof *from->values;
        return &m->ints;
    }
    if (!from->tensor.buffer)
        return NULL;
    m->ints.from_case = ATTND__V1__INTS__FROM_REF;
    m->ints.ref = make_tensor(&m->tensor, &from->tensor);
    return &m->ints;
}

static Attnd__V1__Table *make_table(table_memory *m, const attnd_table *from)
{
    attnd__v1__table__init(&m->table);
    m->table.group = from->group;
    m->table.width = from->width;
    m->table.block_ids = make_ints(&m->block_ids, &from->block_ids);
    return &m->table;
}

static Attnd__V1__Batch *make_batch(attend_memory *m, const attnd_batch *from,
                                    Attnd__V1__Table **tables)
{
    attnd__v1__batch__init(&m->batch);
    m->batch.n_contexts = from->n_contexts;
    m->batch.q_lens = make_ints(&m->q_lens, &from->q_lens);
    m->batch.kv_lens = make_ints(&m->kv_lens, &from->kv_lens);
    m->batch.n_tables = from->n_tables;
    m->batch.tables = tables;
    m->batch.slots = make_ints(&m->slots, &from->slots);
    m->batch.positions = make_ints(&m->positions, &from->positions);
    m->batch.mask = (Attnd__V1__Mask)from->mask;
    return &m->batch;
}

static void make_request(attend_memory *m, const attnd_attend_request *from,
                         Attnd__V1__Table **tables)
{
    attnd__v1__request__init(&m->request);
    attnd__v1__attend_request__init(&m->attend);
    m->attend.model = from->model;
    m->attend.layer = from->layer;
    m->attend.work_case = ATTND__V1__ATTEND_REQUEST__WORK_BATCH;
    m->attend.batch = make_batch(m, &from->batch, tables);
    m->attend.q = make_tensor(&m->q, &from->q);
    m->attend.k = make_tensor(&m->k, &from->k);
    m->attend.v = make_tensor(&m->v, &from->v);
    m->attend.keys = (Attnd__V1__Keys)from->keys;
    m->attend.out = make_tensor(&m->out, &from->out);
    m->attend.lse = make_tensor(&m->lse, &from->lse);
    m->attend.stats = make_tensor(&m->stats, &from->stats);
    m->attend.batch_invariant = from->batch_invariant;
    m->request.after = from->after;
    m->request.op_case = ATTND__V1__REQUEST__OP_ATTEND;
    m->request.attend = &m->attend;
}

/* A tensor's arrays hold ATTND_MAX_DIMS: what claims more cannot be read, so the daemon cannot be
 * asked. */
static attnd_status check_tensor(const attnd_tensor *t, const char *name, attnd_err *err)
{
    if (t->n_dims > ATTND_MAX_DIMS)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.n_dims = %u: at most %d", name, t->n_dims,
                          ATTND_MAX_DIMS);
    if (t->n_strides > ATTND_MAX_DIMS)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.n_strides = %u: at most %d", name,
                          t->n_strides, ATTND_MAX_DIMS);
    return ATTND_OK;
}

static attnd_status check(const attnd_attend_request *r, attnd_err *err)
{
    TRY(check_tensor(&r->q, "q", err));
    TRY(check_tensor(&r->k, "k", err));
    TRY(check_tensor(&r->v, "v", err));
    TRY(check_tensor(&r->out, "out", err));
    TRY(check_tensor(&r->lse, "lse", err));
    TRY(check_tensor(&r->stats, "stats", err));
    TRY(check_tensor(&r->batch.q_lens.tensor, "batch.q_lens", err));
    TRY(check_tensor(&r->batch.kv_lens.tensor, "batch.kv_lens", err));
    TRY(check_tensor(&r->batch.slots.tensor, "batch.slots", err));
    TRY(check_tensor(&r->batch.positions.tensor, "batch.positions", err));
    for (size_t i = 0; i < r->batch.n_tables; i++) {
        attnd_status status = check_tensor(&r->batch.tables[i].block_ids.tensor, "block_ids", err);
        if (status != ATTND_OK) {
            attnd_err_prefix(err, "batch.tables[%zu].", i);
            return status;
        }
    }
    return ATTND_OK;
}

attnd_status attnd_attend_start(attnd_client *client, const attnd_attend_request *request,
                                uint32_t timeout_ms, attnd_pending **out, attnd_err *err)
{
    int64_t deadline_ms = cli_deadline_ms(client, timeout_ms);
    *out = NULL;
    TRY(check(request, err));
    size_t n = request->batch.n_tables;
    table_memory *tables = calloc(n + 1, sizeof *tables);
    Attnd__V1__Table **list = calloc(n + 1, sizeof *list);
    attnd_status status;
    if (tables && list) {
        for (size_t i = 0; i < n; i++)
            list[i] = make_table(&tables[i], &request->batch.tables[i]);
        attend_memory memory;
        make_request(&memory, request, list);
        status = cli_start(client, &memory.request, deadline_ms, out, err);
    } else {
        status = attnd_fail(err, ATTND_NO_ROOM, "batch.tables: no memory to send %zu from", n);
    }
    free(tables);
    free(list);
    return status;
}

attnd_status attnd_wait(attnd_pending *pending, attnd_timing *timing, attnd_err *err)
{
    Attnd__V1__Reply *reply;
    TRY(cli_finish(pending, &reply, err));
    if (timing)
        *timing = (attnd_timing){reply->attend->queue_us, reply->attend->device_us};
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}

attnd_status attnd_attend(attnd_client *client, const attnd_attend_request *request,
                          uint32_t timeout_ms, attnd_timing *timing, attnd_err *err)
{
    attnd_pending *pending;
    TRY(attnd_attend_start(client, request, timeout_ms, &pending, err));
    return attnd_wait(pending, timing, err);
}
