/* case_pool.c: rows of a pool through the ops of the wire: written by appends, read by attention.
 */
#include <string.h>

#include "tests/oracle/case_steps.h"
#include "tests/oracle/case_tensor.h"

enum {
    WRITE_TOKENS = 16384,  /* of one append of a write */
    READ_BACK = 1 << 16,   /* rows of a pool that is read back */
    MAX_WRITE_RUNS = 65536 /* blocks of one write */
};

static attnd_status fill_ints(ora_arena *arena, ora_case_ints *out, size_t n, int32_t value,
                              attnd_err *err)
{
    *out = (ora_case_ints){.given = true, .n = n};
    out->values = ora_arena_take(arena, n + 1, sizeof *out->values);
    if (!out->values)
        return ora_run_no_memory(err);
    for (size_t i = 0; i < n; i++)
        out->values[i] = value;
    return ATTND_OK;
}

/* Rows first .. end-1 of one block. */
typedef struct piece {
    int32_t block;
    uint32_t first, end;
} piece;

/* A batch of one sequence a piece: it sees its block's rows below end, and its last rows are new.
 */
static attnd_status make_pieces(ora_run *r, const piece *pieces, size_t n, uint32_t group,
                                bool zero_positions, ora_case_batch *out, attnd_err *err)
{
    *out = (ora_case_batch){.n_contexts = (uint32_t)n, .n_tables = 1};
    TRY(fill_ints(r->arena, &out->q_lens, n, 0, err));
    TRY(fill_ints(r->arena, &out->kv_lens, n, 0, err));
    out->tables = ora_arena_take(r->arena, 1, sizeof *out->tables);
    if (!out->tables)
        return ora_run_no_memory(err);
    out->tables->group = group;
    TRY(fill_ints(r->arena, &out->tables->block_ids.ids, n, 0, err));
    for (size_t i = 0; i < n; i++) {
        out->q_lens.values[i] = (int32_t)(pieces[i].end - pieces[i].first);
        out->kv_lens.values[i] = (int32_t)pieces[i].end;
        out->tables->block_ids.ids.values[i] = pieces[i].block;
    }
    size_t n_tokens = (size_t)ora_run_count_tokens(&out->q_lens);
    return zero_positions ? fill_ints(r->arena, &out->positions, n_tokens, 0, err) : ATTND_OK;
}

/* Zero rows of q, no output that anybody looks at. */
static const ora_case_call SILENT = {
    .q = {.given = true, .source = ORA_CASE_VALUES, .n_dims = 1, .dims = {1, 1, 1}, .repeat = true},
    .out = {.given = true},
};

/* Rows of a slab in the order of their pieces, all layers, appended layer by layer. */
static attnd_status append_pieces(ora_run *r, const ora_case_write *w, const piece *pieces,
                                  size_t n, int64_t n_rows, int64_t row, const ora_bytes kv[2],
                                  uint32_t layer, uint32_t index, attnd_err *err)
{
    static double zero;
    const ora_shadow_layer *shape = NULL;
    ora_case_batch batch;
    ora_case_call c = SILENT;
    ora_call call = {.model = r->model, .layer = layer, .batch = &batch};
    c.q.values = &zero;
    TRY(ora_run_layer_of(r, layer, &shape, err));
    bool rotates = shape->spec.rope.pairing != ATTND_ROPE_NONE;
    TRY(make_pieces(r, pieces, n, shape->spec.group, rotates, &batch, err));
    TRY(ora_run_make_tensors(r, &c, &batch, &shape->spec, false, false, &call, err));
    int64_t n_new = ora_run_count_tokens(&batch.q_lens);
    ora_bytes *to[2] = {&call.k, &call.v};
    for (int p = 0; p < 2; p++) {
        if (!kv[p].given)
            continue;
        int64_t bytes = (int64_t)kv[p].heads * kv[p].width * (attnd_dtype_bits(kv[p].dtype) / 8);
        *to[p] = kv[p];
        to[p]->rows = n_new;
        to[p]->shape[0] = (uint64_t)n_new;
        to[p]->n_layers = 1;
        to[p]->packed = to[p]->region = kv[p].packed + (index * n_rows + row) * bytes;
        to[p]->n_packed = to[p]->n_region = (size_t)(n_new * bytes);
    }
    if (r->target)
        TRY(r->target->attend(r->target->self, &call, err));
    return ora_shadow_attend(&r->shadow, r->arena, &call, &batch, 0, NULL, err);
}

/* The blocks and rows that a write names. */
static attnd_status list_pieces(ora_run *r, const ora_case_write *w, uint32_t group, piece **out,
                                size_t *n, attnd_err *err)
{
    uint32_t T = r->shadow.groups[group].block_size, n_blocks = r->shadow.n_blocks[group];
    int64_t none = 0, count = w->has_blocks ? ora_run_blocks_for(w->kv_len, T) : n_blocks;
    ora_case_ints ids;
    *n = 0;
    *out = ora_arena_take(r->arena, (size_t)count + 1, sizeof **out);
    if (!*out)
        return ora_run_no_memory(err);
    if (count > MAX_WRITE_RUNS)
        return attnd_fail(err, ATTND_BAD_CONFIG, "write: %lld blocks: at most %d", (long long)count,
                          MAX_WRITE_RUNS);
    if (w->has_blocks)
        TRY(ora_blocks_make(r->arena, &w->block_ids, T, n_blocks, 1, &none, &count, &ids, err));
    if (w->has_blocks && ids.n < (size_t)count)
        return attnd_fail(err, ATTND_BAD_CONFIG, "write.block_ids = %zu: kv_len = %u needs %lld",
                          ids.n, w->kv_len, (long long)count);
    for (int64_t i = 0; i < count; i++) {
        int64_t first = i * T, end = first + T;
        if (w->has_blocks) {
            first = first < w->first ? w->first : first;
            end = end > w->kv_len ? w->kv_len : end;
        }
        if (first < end)
            (*out)[(*n)++] = (piece){w->has_blocks ? ids.values[i] : (int32_t)i,
                                     (uint32_t)(first - i * T), (uint32_t)(end - i * T)};
    }
    return ATTND_OK;
}

static attnd_status make_written(ora_run *r, const ora_case_write *w, const ora_case_layer *l,
                                 attnd_dtype dtype, int64_t n_rows, uint32_t n_layers,
                                 ora_bytes kv[2], attnd_err *err)
{
    int64_t *positions = ora_arena_take(r->arena, (size_t)n_rows + 1, sizeof *positions);
    if (!positions)
        return ora_run_no_memory(err);
    for (int64_t i = 0; i < n_rows; i++)
        positions[i] = i + (w->has_blocks ? w->first : 0);
    ora_want want = {.field = "k",
                     .dtype = dtype,
                     .seed = r->c->seed,
                     .rows = n_rows,
                     .n_layers = n_layers,
                     .heads = l->kind == ATTND_LAYER_MLA ? 1 : l->n_kv_heads,
                     .width = l->head_dim,
                     .positions = positions};
    TRY(ora_tensor_make(r->arena, &w->k, &want, &kv[0], err));
    kv[1] = (ora_bytes){0};
    want.field = "v";
    want.width = l->head_dim_v;
    return l->kind == ATTND_LAYER_MLA ? ATTND_OK
                                      : ora_tensor_make(r->arena, &w->v, &want, &kv[1], err);
}

attnd_status ora_run_write(ora_run *r, const ora_case_write *w, attnd_err *err)
{
    const ora_shadow_layer *shape = NULL;
    TRY(ora_run_layer_of(r, w->one_layer ? w->layer : 0, &shape, err));
    uint32_t group = w->one_layer ? shape->spec.group : w->group, n_layers = 0;
    if (group >= r->shadow.n_groups)
        return attnd_fail(err, ATTND_BAD_CONFIG, "write.group = %u: there are %zu", group,
                          r->shadow.n_groups);
    for (uint32_t l = 0; l < r->shadow.n_layers; l++)
        if (r->shadow.layers[l].spec.group == group) {
            if (!w->one_layer && !n_layers)
                shape = &r->shadow.layers[l];
            n_layers++;
        }
    piece *pieces;
    size_t n;
    int64_t n_rows = 0;
    ora_bytes kv[2] = {0};
    TRY(list_pieces(r, w, group, &pieces, &n, err));
    for (size_t i = 0; i < n; i++)
        n_rows += pieces[i].end - pieces[i].first;
    TRY(make_written(r, w, &shape->spec, r->c->dtype, n_rows, w->one_layer ? 1 : n_layers, kv,
                     err));
    for (uint32_t l = 0, index = 0; l < r->shadow.n_layers; l++) {
        if (r->shadow.layers[l].spec.group != group || (w->one_layer && l != w->layer))
            continue;
        for (size_t i = 0, row = 0; i < n;) {
            size_t m = 0, rows = 0;
            while (i + m < n &&
                   (m == 0 || rows + pieces[i + m].end - pieces[i + m].first <= WRITE_TOKENS)) {
                rows += pieces[i + m].end - pieces[i + m].first;
                m++;
            }
            TRY(append_pieces(r, w, pieces + i, m, n_rows, (int64_t)row, kv, l, index, err));
            i += m;
            row += rows;
        }
        index++;
    }
    return ATTND_OK;
}

/* Every row of every block of every layer through attention, against the evaluator's copy. */
attnd_status ora_run_read_back(ora_run *r, attnd_err *err)
{
    const ora_case_tensor there = {
        .given = true, .amplitude = 1, .seed = ORA_CASE_NO_SEED, .name = "read back"};
    const ora_case_step reader = {.repeat = 1, .call = {.q = there, .out = there, .lse = there}};
    for (uint32_t l = 0; r->target && l < r->shadow.n_layers; l++) {
        const ora_shadow_layer *layer = &r->shadow.layers[l];
        uint32_t group = layer->spec.group, T = r->shadow.groups[group].block_size;
        ora_case_write everything = {.group = group};
        ora_case_batch batch;
        ora_call call = {.model = r->model, .layer = l, .batch = &batch};
        ora_outcome o;
        piece *pieces;
        size_t n;
        bool refused;
        TRY(list_pieces(r, &everything, group, &pieces, &n, err));
        if (n * T > READ_BACK)
            return attnd_fail(err, ATTND_BAD_CONFIG, "pool: %zu rows: at most %d are read back",
                              n * T, READ_BACK);
        TRY(make_pieces(r, pieces, n, group, false, &batch, err));
        TRY(ora_run_make_tensors(r, &reader.call, &batch, &layer->spec, false, false, &call, err));
        TRY(ora_run_call(r, &reader, &call, &call, &o, &refused, err));
        attnd_status status = ora_run_judge_layers(r, &reader, &call, &batch, &o, err);
        if (status != ATTND_OK) {
            attnd_err_prefix(err, "pool of layer %u, %u rows a block: ", l, T);
            return status;
        }
    }
    return ATTND_OK;
}
