/* model.c: model specs on the wire. */
#include <stdlib.h>

#include "proto/client/client.h"

/* A layer spec and its rope, a group spec: protobuf-c's structs and the pointers it wants. */
typedef struct spec_memory {
    Attnd__V1__LayerSpec *layers, **layer_list;
    Attnd__V1__Rope *ropes;
    Attnd__V1__GroupSpec *groups, **group_list;
} spec_memory;

static void spec_free(spec_memory *m)
{
    free(m->layers);
    free(m->layer_list);
    free(m->ropes);
    free(m->groups);
    free(m->group_list);
}

static bool spec_alloc(spec_memory *m, size_t n_layers, size_t n_groups)
{
    m->layers = calloc(n_layers + 1, sizeof *m->layers);
    m->layer_list = calloc(n_layers + 1, sizeof *m->layer_list);
    m->ropes = calloc(n_layers + 1, sizeof *m->ropes);
    m->groups = calloc(n_groups + 1, sizeof *m->groups);
    m->group_list = calloc(n_groups + 1, sizeof *m->group_list);
    return m->layers && m->layer_list && m->ropes && m->groups && m->group_list;
}

static void make_layer(Attnd__V1__LayerSpec *m, Attnd__V1__Rope *rope, const attnd_layer_spec *from)
{
    attnd__v1__layer_spec__init(m);
    m->kind = (Attnd__V1__LayerKind)from->kind;
    m->group = from->group;
    m->n_heads = from->n_heads;
    m->n_kv_heads = from->n_kv_heads;
    m->head_dim = from->head_dim;
    m->head_dim_v = from->head_dim_v;
    m->sm_scale = from->sm_scale;
    m->q_scaling = from->q_scaling;
    m->window = from->window;
    m->softcap = from->softcap;
    m->chunk = from->chunk;
    m->count = from->count;
    if (from->rope.pairing == ATTND_ROPE_NONE)
        return;
    attnd__v1__rope__init(rope);
    rope->pairing = (Attnd__V1__RopePairing)from->rope.pairing;
    rope->dim = from->rope.dim;
    rope->theta = from->rope.theta;
    rope->scaling = (Attnd__V1__RopeScaling)from->rope.scaling;
    m->rope = rope;
}

static void make_group(Attnd__V1__GroupSpec *m, const attnd_group_spec *from)
{
    attnd__v1__group_spec__init(m);
    if (from->name)
        m->name = (char *)from->name;
    m->block_size = from->block_size;
    m->kv_dtype = (Attnd__V1__Dtype)from->kv_dtype;
    m->layout = (Attnd__V1__Layout)from->layout;
    m->max_kv_len = from->max_kv_len;
    m->window = from->window;
    if (from->n_blocks) {
        m->size_case = ATTND__V1__GROUP_SPEC__SIZE_N_BLOCKS;
        m->n_blocks = from->n_blocks;
    } else if (from->bytes) {
        m->size_case = ATTND__V1__GROUP_SPEC__SIZE_BYTES;
        m->bytes = from->bytes;
    }
}

static void make_spec(Attnd__V1__ModelSpec *m, spec_memory *memory, const attnd_model_spec *from)
{
    attnd__v1__model_spec__init(m);
    for (size_t i = 0; i < from->n_layers; i++) {
        memory->layer_list[i] = &memory->layers[i];
        make_layer(&memory->layers[i], &memory->ropes[i], &from->layers[i]);
    }
    for (size_t i = 0; i < from->n_groups; i++) {
        memory->group_list[i] = &memory->groups[i];
        make_group(&memory->groups[i], &from->groups[i]);
    }
    if (from->name)
        m->name = (char *)from->name;
    m->n_layers = from->n_layers;
    m->layers = memory->layer_list;
    m->n_groups = from->n_groups;
    m->groups = memory->group_list;
    m->owner = (Attnd__V1__Owner)from->owner;
}

static attnd_status take_result(const Attnd__V1__OpenModelReply *from, size_t n_groups,
                                attnd_model *out, attnd_pool *pools, attnd_err *err)
{
    if (from->n_pools != n_groups)
        return attnd_fail(err, ATTND_BROKEN, "pools = %zu: %zu groups were sent", from->n_pools,
                          n_groups);
    *out = (attnd_model){from->model, from->n_layers};
    for (size_t i = 0; pools && i < n_groups; i++)
        pools[i] = (attnd_pool){from->pools[i]->n_blocks, from->pools[i]->block_size,
                                from->pools[i]->block_bytes, from->pools[i]->bytes};
    return ATTND_OK;
}

attnd_status attnd_open_model(attnd_client *client, const attnd_model_spec *spec,
                              uint32_t timeout_ms, attnd_model *out, attnd_pool *pools,
                              attnd_err *err)
{
    spec_memory memory = {0};
    if (!spec_alloc(&memory, spec->n_layers, spec->n_groups)) {
        spec_free(&memory);
        return attnd_fail(err, ATTND_NO_ROOM, "spec: no memory to send it from");
    }
    Attnd__V1__ModelSpec wire;
    make_spec(&wire, &memory, spec);
    Attnd__V1__OpenModelRequest open = ATTND__V1__OPEN_MODEL_REQUEST__INIT;
    open.spec = &wire;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_OPEN_MODEL;
    request.open_model = &open;
    Attnd__V1__Reply *reply;
    attnd_status status =
        cli_call(client, &request, cli_deadline_ms(client, timeout_ms), &reply, err);
    spec_free(&memory);
    if (status != ATTND_OK)
        return status;
    status = take_result(reply->open_model, spec->n_groups, out, pools, err);
    attnd__v1__reply__free_unpacked(reply, NULL);
    return status;
}

attnd_status attnd_close_model(attnd_client *client, uint64_t model, uint32_t timeout_ms,
                               attnd_err *err)
{
    Attnd__V1__CloseModelRequest close_model = ATTND__V1__CLOSE_MODEL_REQUEST__INIT;
    close_model.model = model;
    Attnd__V1__Request request = ATTND__V1__REQUEST__INIT;
    request.op_case = ATTND__V1__REQUEST__OP_CLOSE_MODEL;
    request.close_model = &close_model;
    Attnd__V1__Reply *reply;
    TRY(cli_call(client, &request, cli_deadline_ms(client, timeout_ms), &reply, err));
    attnd__v1__reply__free_unpacked(reply, NULL);
    return ATTND_OK;
}
