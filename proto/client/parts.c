/* parts.c: tensors, integers, tables and batches on the wire: what several requests are made of. */
#include <assert.h>
#include <stdlib.h>

#include "proto/client/parts.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "int32 arrays are sent as they lie");

Attnd__V1__Tensor *cli_make_tensor(Attnd__V1__Tensor *m, const attnd_tensor *from)
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

Attnd__V1__LayerTensor *cli_make_layer_tensor(cli_layer_tensor *m, const attnd_layer_tensor *from)
{
    attnd__v1__layer_tensor__init(&m->layers);
    m->layers.first = cli_make_tensor(&m->first, &from->first);
    m->layers.layer_stride = from->layer_stride;
    m->layers.ring = from->ring;
    return m->layers.first ? &m->layers : NULL;
}

Attnd__V1__Ints *cli_make_ints(cli_ints *m, const attnd_ints *from)
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
    m->ints.ref = cli_make_tensor(&m->tensor, &from->tensor);
    return &m->ints;
}

/* ---- Tables ---- */

struct cli_table {
    Attnd__V1__Table table;
    cli_ints block_ids;
};

static attnd_status make_tables(cli_tables *m, const attnd_table *from, size_t n, const char *name,
                                attnd_err *err)
{
    *m = (cli_tables){.n = n};
    if (n == 0)
        return ATTND_OK;
    m->memory = calloc(n, sizeof *m->memory);
    m->list = calloc(n, sizeof *m->list);
    if (!m->memory || !m->list) {
        cli_free_tables(m);
        return attnd_fail(err, ATTND_NO_ROOM, "%s: no memory to send %zu from", name, n);
    }
    for (size_t i = 0; i < n; i++) {
        Attnd__V1__Table *table = &m->memory[i].table;
        attnd__v1__table__init(table);
        table->group = from[i].group;
        table->width = from[i].width;
        table->block_ids = cli_make_ints(&m->memory[i].block_ids, &from[i].block_ids);
        m->list[i] = table;
    }
    return ATTND_OK;
}

void cli_free_tables(cli_tables *m)
{
    free(m->memory);
    free(m->list);
    *m = (cli_tables){0};
}

/* ---- What cannot be read ---- */

attnd_status cli_check_tensor(const attnd_tensor *t, const char *name, attnd_err *err)
{
    if (t->n_dims > ATTND_MAX_DIMS)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.n_dims = %u: at most %d", name, t->n_dims,
                          ATTND_MAX_DIMS);
    if (t->n_strides > ATTND_MAX_DIMS)
        return attnd_fail(err, ATTND_BAD_TENSOR, "%s.n_strides = %u: at most %d", name,
                          t->n_strides, ATTND_MAX_DIMS);
    return ATTND_OK;
}

static attnd_status check_tables(const attnd_table *tables, size_t n, const char *name,
                                 attnd_err *err)
{
    for (size_t i = 0; i < n; i++) {
        attnd_status status = cli_check_tensor(&tables[i].block_ids.tensor, "block_ids", err);
        if (status != ATTND_OK) {
            attnd_err_prefix(err, "%s[%zu].", name, i);
            return status;
        }
    }
    return ATTND_OK;
}

/* ---- Batches and updates ---- */

attnd_status cli_make_batch(cli_batch *m, const attnd_batch *from, attnd_err *err)
{
    m->tables = (cli_tables){0};
    TRY(cli_check_tensor(&from->q_lens.tensor, "batch.q_lens", err));
    TRY(cli_check_tensor(&from->kv_lens.tensor, "batch.kv_lens", err));
    TRY(cli_check_tensor(&from->slots.tensor, "batch.slots", err));
    TRY(cli_check_tensor(&from->positions.tensor, "batch.positions", err));
    TRY(check_tables(from->tables, from->n_tables, "batch.tables", err));
    TRY(make_tables(&m->tables, from->tables, from->n_tables, "batch.tables", err));
    attnd__v1__batch__init(&m->batch);
    m->batch.n_contexts = from->n_contexts;
    m->batch.q_lens = cli_make_ints(&m->q_lens, &from->q_lens);
    m->batch.kv_lens = cli_make_ints(&m->kv_lens, &from->kv_lens);
    m->batch.n_tables = m->tables.n;
    m->batch.tables = m->tables.list;
    m->batch.slots = cli_make_ints(&m->slots, &from->slots);
    m->batch.positions = cli_make_ints(&m->positions, &from->positions);
    m->batch.mask = (Attnd__V1__Mask)from->mask;
    return ATTND_OK;
}

attnd_status cli_make_update(cli_update *m, uint64_t plan, const attnd_plan_update *from,
                             attnd_err *err)
{
    m->appended = (cli_tables){0};
    TRY(cli_check_tensor(&from->q_lens.tensor, "update.q_lens", err));
    TRY(cli_check_tensor(&from->kv_lens.tensor, "update.kv_lens", err));
    TRY(cli_check_tensor(&from->slots.tensor, "update.slots", err));
    TRY(cli_check_tensor(&from->positions.tensor, "update.positions", err));
    TRY(check_tables(from->appended, from->n_appended, "update.appended", err));
    TRY(make_tables(&m->appended, from->appended, from->n_appended, "update.appended", err));
    attnd__v1__plan_update__init(&m->update);
    m->update.plan = plan;
    m->update.version = from->version;
    m->update.q_lens = cli_make_ints(&m->q_lens, &from->q_lens);
    m->update.kv_lens = cli_make_ints(&m->kv_lens, &from->kv_lens);
    m->update.n_appended = m->appended.n;
    m->update.appended = m->appended.list;
    m->update.slots = cli_make_ints(&m->slots, &from->slots);
    m->update.positions = cli_make_ints(&m->positions, &from->positions);
    return ATTND_OK;
}
