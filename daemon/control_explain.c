/* control_explain.c: kernels.explain: parameters → a problem without addresses → what the registry
 * and the planner make of it. Runs nothing.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/control_methods.h"
#include "kvcache/geometry.h"

enum { MAX_HEADS = UINT16_MAX, MAX_PLAN_BYTES = 64 << 20 };

bool srv_explain_ask(const srv_call *call, srv_snapshot *snapshot)
{
    snapshot->layer_model = srv_call_handle(call, "model", 0);
    snapshot->layer_index = (uint32_t)srv_call_int(call, "layer", 0);
    return srv_call_has(call, "model");
}

/* ---- The layer --------------------------------------------------------------------------------
 */

static attnd_status read_model_layer(const srv_call *call, ker_problem *problem, attnd_err *err)
{
    static const char *const explicit_names[] = {"n_heads", "n_kv_heads", "head_dim",  "head_dim_v",
                                                 "dtype",   "kv_dtype",   "block_size"};
    for (size_t i = 0; i < sizeof explicit_names / sizeof *explicit_names; i++)
        if (srv_call_has(call, explicit_names[i]))
            return attnd_fail(err, ATTND_BAD_MESSAGE,
                              "params.%s = given: the model says it; leave one of the two out",
                              explicit_names[i]);
    if (!call->snapshot->layer.found)
        return attnd_fail(err, ATTND_NO_SUCH_HANDLE,
                          "params.model = %llu: no open model has this handle and a layer %u; "
                          "models.list has those that are open",
                          (unsigned long long)call->snapshot->layer_model,
                          call->snapshot->layer_index);
    *problem = call->snapshot->layer.problem;
    return ATTND_OK;
}

static attnd_status read_dtype(const srv_call *call, const char *name, attnd_dtype absent,
                               attnd_dtype *out, attnd_err *err)
{
    const char *text = srv_call_text(call, name, NULL);
    *out = text ? attnd_dtype_named(text) : absent;
    if (*out == ATTND_DTYPE_NONE)
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.%s = %.48s: f32, f16, bf16, e4m3, e5m2, i8", name, text);
    return ATTND_OK;
}

static attnd_status read_count(const srv_call *call, const char *name, int64_t absent, int64_t most,
                               uint32_t *out, attnd_err *err)
{
    int64_t value = srv_call_int(call, name, absent);
    if (value < 1 || value > most)
        return attnd_fail(err, ATTND_BAD_GEOMETRY, "params.%s = %lld: 1..%lld", name,
                          (long long)value, (long long)most);
    *out = (uint32_t)value;
    return ATTND_OK;
}

static attnd_status read_explicit_layer(const srv_call *call, ker_problem *p, attnd_err *err)
{
    int64_t most = call->deps->config->limits_max_head_dim;
    uint32_t block_size = 0;
    kv_geometry geometry;
    kv_layer_place place;
    if (srv_call_has(call, "layer"))
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.layer = given: it needs a model");
    if (!srv_call_has(call, "n_heads") || !srv_call_has(call, "head_dim"))
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.%s = absent: give a model, or n_heads and head_dim",
                          srv_call_has(call, "n_heads") ? "head_dim" : "n_heads");
    TRY(read_count(call, "n_heads", 0, MAX_HEADS, &p->n_heads, err));
    TRY(read_count(call, "n_kv_heads", p->n_heads, MAX_HEADS, &p->n_kv_heads, err));
    TRY(read_count(call, "head_dim", 0, most, &p->head_dim, err));
    TRY(read_count(call, "head_dim_v", p->head_dim, most, &p->head_dim_v, err));
    TRY(read_count(call, "block_size", 16, 1024, &block_size, err));
    TRY(read_dtype(call, "dtype", ATTND_DTYPE_BF16, &p->dtype, err));
    TRY(read_dtype(call, "kv_dtype", p->dtype, &p->kv.dtype, err));
    if (p->n_heads % p->n_kv_heads)
        return attnd_fail(err, ATTND_BAD_GEOMETRY,
                          "params.n_heads = %u: a multiple of n_kv_heads = %u", p->n_heads,
                          p->n_kv_heads);
    const kv_layer_shape shape = {p->n_kv_heads, p->head_dim, p->head_dim_v};
    if (kv_geometry_make(&geometry, block_size, p->kv.dtype, ATTND_LAYOUT_HND, &shape, 1, &place,
                         err) != ATTND_OK) {
        attnd_err_prefix(err, "params.");
        return err->status;
    }
    p->kind = ATTND_LAYER_GQA;
    p->sm_scale = (float)(1 / sqrt(p->head_dim));
    p->quant =
        (ker_quant){.k_orig_quant = 1, .v_orig_quant = 1, .q_quant_orig = 1, .out_orig_quant = 1};
    p->kv.block_size = block_size;
    p->kv.block_stride = geometry.block_bytes;
    memcpy(p->kv.head_stride, place.head_stride, sizeof place.head_stride);
    memcpy(p->kv.token_stride, place.token_stride, sizeof place.token_stride);
    return ATTND_OK;
}

static attnd_status read_mask(const srv_call *call, ker_mask *mask, attnd_err *err)
{
    const char *text = srv_call_text(call, "mask", "causal");
    if (strcmp(text, "causal") == 0)
        mask->kinds |= KER_MASK_CAUSAL;
    else if (strcmp(text, "full") == 0)
        mask->kinds &= ~(uint32_t)KER_MASK_CAUSAL;
    else
        return attnd_fail(err, ATTND_BAD_MESSAGE, "params.mask = %.48s: causal or full", text);
    if (!srv_call_has(call, "window"))
        return ATTND_OK;
    mask->window = (int32_t)srv_call_int(call, "window", 0);
    mask->kinds &= ~(uint32_t)KER_MASK_WINDOW;
    if (mask->window)
        mask->kinds |= KER_MASK_WINDOW;
    return ATTND_OK;
}

/* ---- The batch --------------------------------------------------------------------------------
 */

/* The arrays that the problem points to. */
typedef struct explain_batch {
    int32_t *q_len, *kv_len;
    int64_t *q_first, *block_first;
} explain_batch;

static void batch_fini(explain_batch *batch)
{
    free(batch->q_len);
    free(batch->kv_len);
    free(batch->q_first);
    free(batch->block_first);
}

static attnd_status batch_init(explain_batch *batch, size_t n, attnd_err *err)
{
    batch->q_len = calloc(n, sizeof *batch->q_len);
    batch->kv_len = calloc(n, sizeof *batch->kv_len);
    batch->q_first = calloc(n, sizeof *batch->q_first);
    batch->block_first = calloc(n, sizeof *batch->block_first);
    if (!batch->q_len || !batch->kv_len || !batch->q_first || !batch->block_first)
        return attnd_fail(err, ATTND_NO_ROOM, "params.q_lens = %zu sequences: no memory", n);
    return ATTND_OK;
}

static void copy_ints(int32_t *out, const cJSON *array)
{
    const cJSON *item;
    int64_t value = 0;
    cJSON_ArrayForEach(item, array)
    {
        srv_json_whole(item, 0, INT32_MAX, &value);
        *out++ = (int32_t)value;
    }
}

/* How many sequences, and that their lengths are given one way. */
static attnd_status count_sequences(const srv_call *call, int64_t *n, attnd_err *err)
{
    const cJSON *q_lens = srv_call_ints(call, "q_lens"), *kv_lens = srv_call_ints(call, "kv_lens");
    static const char *const equal_names[] = {"n_seqs", "q_len", "kv_len"};
    int64_t most = call->deps->config->limits_max_sequences;
    if (!q_lens != !kv_lens)
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.%s = absent: q_lens and kv_lens go together",
                          q_lens ? "kv_lens" : "q_lens");
    if (!q_lens && !srv_call_has(call, "kv_len"))
        return attnd_fail(err, ATTND_BAD_MESSAGE,
                          "params.kv_len = absent: give kv_len, or q_lens and kv_lens");
    for (size_t i = 0; q_lens && i < sizeof equal_names / sizeof *equal_names; i++)
        if (srv_call_has(call, equal_names[i]))
            return attnd_fail(err, ATTND_BAD_MESSAGE,
                              "params.%s = given: q_lens says it; leave one of the two out",
                              equal_names[i]);
    *n = q_lens ? cJSON_GetArraySize(q_lens) : srv_call_int(call, "n_seqs", 1);
    if (q_lens && cJSON_GetArraySize(kv_lens) != *n)
        return attnd_fail(err, ATTND_BAD_LENGTH, "params.kv_lens = %d entries: q_lens has %lld",
                          cJSON_GetArraySize(kv_lens), (long long)*n);
    if (*n < 1 || *n > most)
        return attnd_fail(err, *n < 1 ? ATTND_BAD_LENGTH : ATTND_TOO_LARGE,
                          "params.%s = %lld%s: 1..%lld sequences (limits.max_sequences)",
                          q_lens ? "q_lens" : "n_seqs", (long long)*n, q_lens ? " entries" : "",
                          (long long)most);
    return ATTND_OK;
}

static attnd_status check_lengths(const srv_call *call, const ker_batch *b, attnd_err *err)
{
    int64_t most = call->deps->config->limits_max_tokens;
    if (b->n_tokens > most)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "params.q_lens = %lld tokens: at most %lld (limits.max_tokens)",
                          (long long)b->n_tokens, (long long)most);
    for (uint32_t i = b->n_contexts; i < b->n_seqs; i++)
        if (b->kv_len[i] > 0 && b->kv_len[i] < b->q_len[i])
            return attnd_fail(
                err, ATTND_BAD_LENGTH,
                "params.kv_lens[%u] = %d: a generation of %d query tokens sees them at "
                "least",
                i, b->kv_len[i], b->q_len[i]);
    return ATTND_OK;
}

static attnd_status read_batch(const srv_call *call, explain_batch *arrays, ker_batch *b,
                               attnd_err *err)
{
    static const int32_t no_block =
        0; /* says "through a table"; no plan reads the table's entries */
    int64_t n = 0;
    TRY(count_sequences(call, &n, err));
    TRY(batch_init(arrays, (size_t)n, err));
    if (srv_call_has(call, "q_lens")) {
        copy_ints(arrays->q_len, srv_call_ints(call, "q_lens"));
        copy_ints(arrays->kv_len, srv_call_ints(call, "kv_lens"));
    }
    uint32_t leading = 0;
    *b = (ker_batch){.n_seqs = (uint32_t)n,
                     .q_len = arrays->q_len,
                     .kv_len = arrays->kv_len,
                     .q_first = arrays->q_first,
                     .block_ids = &no_block,
                     .block_first = arrays->block_first};
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        if (!srv_call_has(call, "q_lens")) {
            arrays->q_len[i] = (int32_t)srv_call_int(call, "q_len", 1);
            arrays->kv_len[i] = (int32_t)srv_call_int(call, "kv_len", 0);
        }
        arrays->q_first[i] = b->n_tokens;
        b->n_tokens += arrays->q_len[i];
        leading += leading == i && arrays->q_len[i] > 1;
    }
    int64_t n_contexts = srv_call_int(call, "n_contexts", leading);
    if (n_contexts > n)
        return attnd_fail(err, ATTND_BAD_PHASE,
                          "params.n_contexts = %lld: there are %lld sequences",
                          (long long)n_contexts, (long long)n);
    b->n_contexts = (uint32_t)n_contexts;
    return check_lengths(call, b, err);
}

/* Packed rows without an address. */
static ker_rows rows_without_address(uint32_t n_heads, uint32_t width, attnd_dtype dtype)
{
    int64_t head = (int64_t)width * attnd_dtype_bits(dtype) / 8;
    return (ker_rows){.head_stride = head, .token_stride = head * n_heads, .dtype = dtype};
}

static attnd_status read_problem(const srv_call *call, explain_batch *arrays, ker_problem *p,
                                 attnd_err *err)
{
    TRY(call->snapshot ? read_model_layer(call, p, err) : read_explicit_layer(call, p, err));
    TRY(read_mask(call, &p->mask, err));
    TRY(read_batch(call, arrays, &p->batch, err));
    p->q = rows_without_address(p->n_heads, p->head_dim, p->dtype);
    p->out = rows_without_address(p->n_heads, p->head_dim_v, p->dtype);
    int64_t n_blocks = 0;
    for (uint32_t i = 0; i < p->batch.n_seqs; i++)
        n_blocks += ((int64_t)p->batch.kv_len[i] + p->kv.block_size - 1) / p->kv.block_size;
    p->kv.n_blocks = n_blocks;
    return ATTND_OK;
}

/* ---- The answer -------------------------------------------------------------------------------
 */

static void add_problem(cJSON *result, const ker_problem *p)
{
    cJSON *at = srv_json_object(result, "problem");
    srv_json_count(at, "n_heads", p->n_heads);
    srv_json_count(at, "n_kv_heads", p->n_kv_heads);
    srv_json_count(at, "head_dim", p->head_dim);
    srv_json_count(at, "head_dim_v", p->head_dim_v);
    srv_json_text(at, "dtype", attnd_dtype_name(p->dtype));
    srv_json_text(at, "kv_dtype", attnd_dtype_name(p->kv.dtype));
    srv_json_count(at, "block_size", p->kv.block_size);
    srv_json_text(at, "mask", p->mask.kinds & KER_MASK_CAUSAL ? "causal" : "full");
    srv_json_count(at, "window", p->mask.kinds & KER_MASK_WINDOW ? p->mask.window : 0);
    srv_json_count(at, "n_seqs", p->batch.n_seqs);
    srv_json_count(at, "n_contexts", p->batch.n_contexts);
    srv_json_count(at, "n_tokens", p->batch.n_tokens);
    srv_json_count(at, "n_blocks", p->kv.n_blocks);
    ker_floor floor = ker_problem_floor(p);
    at = srv_json_object(result, "floor");
    srv_json_wide_real(at, "bytes", floor.bytes);
    srv_json_wide_real(at, "flops", floor.flops);
}

/* Most pieces that one range of rows is cut into. */
static int64_t most_splits(const ker_part *part)
{
    int64_t most = part->n_items > 0;
    for (int64_t i = 0; i < part->n_merges; i++)
        if (part->merges[i].n_splits > most)
            most = part->merges[i].n_splits;
    return most;
}

/* One phase: the kernel chosen and its split (none when part is NULL or has no rows), and every
 * kernel's verdict. */
static attnd_status add_phase(const srv_call *call, cJSON *list, const ker_problem *p,
                              ker_phase phase, const ker_part *part, attnd_err *err)
{
    size_t n = ker_n_kernels();
    ker_verdict *verdicts = calloc(n, sizeof *verdicts);
    if (!verdicts)
        return attnd_fail(err, ATTND_NO_ROOM, "kernels = %zu: no memory", n);
    ker_judge(call->deps->device, p, phase, verdicts);
    cJSON *at = srv_json_object(list, NULL);
    srv_json_text(at, "phase", phase == KER_CONTEXT ? "context" : "generation");
    srv_json_count(at, "n_seqs",
                   phase == KER_CONTEXT ? p->batch.n_contexts
                                        : p->batch.n_seqs - p->batch.n_contexts);
    if (part && part->kernel) { /* a phase without rows has none */
        srv_json_text(at, "kernel", ker_kernel_name(part->kernel));
        srv_json_count(at, "n_items", part->n_items);
        srv_json_count(at, "n_splits", most_splits(part));
        srv_json_count(at, "n_merges", part->n_merges);
    }
    cJSON *all = srv_json_array(at, "kernels");
    for (size_t i = 0; i < n; i++) {
        cJSON *o = srv_json_object(all, NULL);
        srv_json_text(o, "kernel", ker_kernel_name(verdicts[i].kernel));
        srv_json_flag(o, "serves", verdicts[i].serves);
        if (verdicts[i].serves)
            srv_json_real(o, "cost_us", verdicts[i].cost * 1e6);
        else
            srv_json_take(o, "cost_us", cJSON_CreateNull());
        srv_json_text(o, "reason", verdicts[i].reason);
    }
    free(verdicts);
    return ATTND_OK;
}

/* Plans into *memory (the caller frees it). A refusal is part of the answer: *plan is then NULL. */
static attnd_status make_plan(const srv_call *call, const ker_problem *p, void **memory,
                              ker_plan **plan, attnd_err *err)
{
    attnd_err refused;
    size_t bytes = ker_plan_bytes(call->deps->device, p);
    *plan = NULL;
    if (bytes > MAX_PLAN_BYTES)
        return attnd_fail(err, ATTND_TOO_LARGE,
                          "params.q_lens = a plan of %zu bytes: at most %d are explained", bytes,
                          MAX_PLAN_BYTES);
    *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (!*memory)
        return attnd_fail(err, ATTND_NO_ROOM, "params.q_lens = a plan of %zu bytes: no memory",
                          bytes);
    if (ker_plan_make(call->deps->device, p, (uint32_t)srv_call_int(call, "n_splits", 0), *memory,
                      bytes, plan, &refused) == ATTND_OK)
        return ATTND_OK;
    *plan = NULL;
    cJSON *at = srv_json_object(call->result, "refused");
    srv_json_text(at, "code", attnd_status_name(refused.status));
    srv_json_text(at, "reason", attnd_reason_name(refused.reason));
    srv_json_text(at, "message", refused.text);
    return ATTND_OK;
}

static attnd_status add_answer(const srv_call *call, const ker_problem *p, const ker_plan *plan,
                               attnd_err *err)
{
    if (plan) {
        srv_json_wide(call->result, "workspace_bytes", plan->workspace_bytes);
        srv_json_count(call->result, "n_partials", plan->n_partials);
    }
    cJSON *phases = srv_json_array(call->result, "phases");
    if (p->batch.n_contexts)
        TRY(add_phase(call, phases, p, KER_CONTEXT, plan ? &plan->part[KER_CONTEXT] : NULL, err));
    if (p->batch.n_contexts < p->batch.n_seqs)
        TRY(add_phase(call, phases, p, KER_GENERATION, plan ? &plan->part[KER_GENERATION] : NULL,
                      err));
    return ATTND_OK;
}

attnd_status srv_explain_run(srv_call *call, attnd_err *err)
{
    explain_batch arrays = {0};
    ker_problem problem = {0};
    void *memory = NULL;
    ker_plan *plan;
    attnd_status status = read_problem(call, &arrays, &problem, err);
    if (status == ATTND_OK) {
        add_problem(call->result, &problem);
        status = make_plan(call, &problem, &memory, &plan, err);
    }
    if (status == ATTND_OK)
        status = add_answer(call, &problem, plan, err);
    free(memory);
    batch_fini(&arrays);
    return status;
}
