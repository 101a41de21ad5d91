/* capture_record.c: one request, copied on the engine thread. */
#include "daemon/capture_record.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/op.h"
#include "daemon/plan.h"

/* What a copy is being made with. */
typedef struct copying {
    srv_record *record;
    ker_device *device;
    attnd_err *err;
} copying;

static void *take(const copying *c, size_t n, size_t bytes)
{
    size_t total;
    if (__builtin_mul_overflow(n, bytes, &total))
        return NULL;
    void *memory = msg_arena_take(&c->record->arena, total + 1);
    if (memory)
        memset(memory, 0, total + 1);
    return memory;
}

static attnd_status no_room(const copying *c)
{
    return attnd_fail(c->err, ATTND_TOO_LARGE, "capture: the request takes more than %zu bytes",
                      c->record->arena.reserved);
}

static size_t element_bytes(attnd_dtype dtype)
{
    return attnd_dtype_bits(dtype) / 8;
}

/* Reads n_outer · n_inner pieces that lie strides apart into `to`, in few reads where they lie side
 * by side. */
static attnd_status read_pieces(const copying *c, char *to, const char *from, int64_t n_outer,
                                int64_t outer_stride, int64_t n_inner, int64_t inner_stride,
                                size_t piece)
{
    int64_t run = 1; /* pieces in one read */
    if (inner_stride == (int64_t)piece)
        run = n_inner;
    if (run == n_inner && outer_stride == n_inner * (int64_t)piece) {
        run *= n_outer;
        n_outer = n_outer > 0;
        n_inner = run;
    }
    for (int64_t i = 0; i < n_outer; i++)
        for (int64_t j = 0; j < n_inner; j += run, to += (size_t)run * piece)
            TRY(ker_memory_read(c->device, to, from + i * outer_stride + j * inner_stride,
                                (size_t)run * piece, c->err));
    return ATTND_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------
 */

static attnd_status copy_rows(const copying *c, const ker_rows *rows, int64_t n_rows,
                              uint32_t n_heads, uint32_t width, srv_copy *out)
{
    size_t head = width * element_bytes(rows->dtype);
    if (!rows->base)
        return ATTND_OK;
    *out = (srv_copy){.dtype = rows->dtype, .n_rows = n_rows, .n_heads = n_heads, .width = width};
    out->n_bytes = (size_t)n_rows * n_heads * head;
    out->bytes = msg_arena_take(&c->record->arena, out->n_bytes + 1);
    if (!out->bytes)
        return no_room(c);
    return read_pieces(c, out->bytes, rows->base, n_rows, rows->token_stride, n_heads,
                       rows->head_stride, head);
}

static attnd_status copy_ints(const copying *c, const int32_t *from, size_t n, const int32_t **out)
{
    int32_t *to = NULL;
    if (from) {
        to = take(c, n, sizeof *to);
        if (!to)
            return no_room(c);
        memcpy(to, from, n * sizeof *to);
    }
    *out = to;
    return ATTND_OK;
}

/* ---- Blocks -----------------------------------------------------------------------------------
 */

static int64_t blocks_for(int64_t tokens, uint32_t block_size)
{
    return (tokens + block_size - 1) / block_size;
}

/* Keys of a sequence that lay in the pool before the call: those stored through slots may lie
 * anywhere and count as old. */
static int64_t old_keys(const ker_problem *p, uint32_t b)
{
    bool appends = p->append.k.base && !p->append.slots;
    return p->batch.kv_len[b] - (appends ? p->batch.q_len[b] : 0);
}

/* Calls each(arg, block, rows) for every block of the pool that the problem touches, with the rows
 * that lay in it before. */
static void each_block(const ker_problem *p, void (*each)(void *arg, int32_t block, uint32_t rows),
                       void *arg)
{
    uint32_t T = p->kv.block_size;
    for (uint32_t b = 0; b < p->batch.n_seqs; b++) {
        if (p->batch.q_len[b] == 0)
            continue;
        int64_t lowest = ker_mask_lowest_key(&p->mask, p->batch.q_len[b], p->batch.kv_len[b]) / T;
        int64_t old = old_keys(p, b), end = blocks_for(p->batch.kv_len[b], T);
        for (int64_t n = lowest; n < end; n++) {
            int64_t rows = old - n * T;
            rows = rows < 0 ? 0 : rows > T ? T : rows;
            each(arg, p->batch.block_ids[p->batch.block_first[b] + n], (uint32_t)rows);
        }
    }
    for (int64_t t = 0; p->append.slots && t < p->batch.n_tokens; t++)
        if (p->append.slots[t] >= 0)
            each(arg, p->append.slots[t] / (int32_t)T, 0);
}

/* Rows seen of each block of a pool, by its old number; -1: not touched. */
typedef struct tally {
    int32_t *rows;
    int64_t n_blocks;
} tally;

static void count_block(void *arg, int32_t block, uint32_t rows)
{
    tally *t = arg;
    if (block >= 0 && block < t->n_blocks && (int32_t)rows > t->rows[block])
        t->rows[block] = (int32_t)rows;
}

/* Two problems are of one pool when their blocks are as far apart and their layers within one. */
static bool is_same_pool(const srv_seen *seen, const ker_problem *p)
{
    return seen->block_size == p->kv.block_size && seen->dtype == p->kv.dtype &&
           p->kv.plane[0] >= seen->base && p->kv.plane[0] < seen->base + p->kv.block_stride;
}

/* Full blocks first: they are written as one sequence. */
static attnd_status number_blocks(const copying *c, srv_seen *seen, const tally *t)
{
    uint32_t n = 0;
    for (int64_t x = 0; x < t->n_blocks; x++)
        seen->n_blocks += t->rows[x] >= 0;
    seen->ids = take(c, seen->n_blocks, sizeof *seen->ids);
    seen->rows = take(c, seen->n_blocks, sizeof *seen->rows);
    seen->numbers = take(c, (size_t)t->n_blocks, sizeof *seen->numbers);
    if (!seen->ids || !seen->rows || !seen->numbers)
        return no_room(c);
    memset(seen->numbers, 0xFF, (size_t)t->n_blocks * sizeof *seen->numbers);
    for (int full = 1; full >= 0; full--)
        for (int64_t x = 0; x < t->n_blocks; x++)
            if (t->rows[x] >= 0 && (t->rows[x] == (int32_t)seen->block_size) == full) {
                seen->ids[n] = (int32_t)x;
                seen->numbers[x] = (int32_t)n;
                seen->rows[n++] = (uint32_t)t->rows[x];
            }
    return ATTND_OK;
}

/* The pools that the problems touch, and their blocks. */
static attnd_status find_pools(const copying *c, const srv_request *request)
{
    srv_record *r = c->record;
    r->seen = take(c, request->n_problems, sizeof *r->seen);
    if (!r->seen)
        return no_room(c);
    for (size_t i = 0; i < request->n_problems; i++) {
        const ker_problem *p = &request->problems[i];
        uint32_t s = 0;
        while (s < r->n_seen && !is_same_pool(&r->seen[s], p))
            s++;
        r->taken[i].pool = s;
        if (s < r->n_seen)
            continue;
        r->n_seen++;
        r->seen[s] = (srv_seen){.base = p->kv.plane[0],
                                .block_size = p->kv.block_size,
                                .dtype = p->kv.dtype,
                                .is_nhd = p->kv.head_stride[0] < p->kv.token_stride[0]};
    }
    for (uint32_t s = 0; s < r->n_seen; s++) {
        tally t = {0};
        for (size_t i = 0; i < request->n_problems; i++)
            if (r->taken[i].pool == s)
                t.n_blocks = request->problems[i].kv.n_blocks;
        t.rows = malloc((size_t)t.n_blocks * sizeof *t.rows + 1);
        if (!t.rows)
            return no_room(c);
        memset(t.rows, 0xFF, (size_t)t.n_blocks * sizeof *t.rows);
        for (size_t i = 0; i < request->n_problems; i++)
            if (r->taken[i].pool == s)
                each_block(&request->problems[i], count_block, &t);
        attnd_status status = number_blocks(c, &r->seen[s], &t);
        free(t.rows);
        TRY(status);
    }
    return ATTND_OK;
}

static attnd_status copy_table(const copying *c, const srv_seen *seen, const ker_problem *p,
                               srv_taken *out)
{
    uint32_t T = seen->block_size;
    for (uint32_t b = 0; b < p->batch.n_seqs; b++)
        out->n_table += blocks_for(p->batch.kv_len[b], T);
    out->table = take(c, (size_t)out->n_table, sizeof *out->table);
    if (!out->table)
        return no_room(c);
    for (uint32_t b = 0, at = 0; b < p->batch.n_seqs; b++) {
        int64_t lowest = ker_mask_lowest_key(&p->mask, p->batch.q_len[b], p->batch.kv_len[b]) / T;
        for (int64_t n = 0; n < blocks_for(p->batch.kv_len[b], T); n++, at++)
            out->table[at] = n < lowest || !p->batch.q_len[b]
                                 ? -1
                                 : seen->numbers[p->batch.block_ids[p->batch.block_first[b] + n]];
    }
    if (!p->append.slots)
        return ATTND_OK;
    out->slots = take(c, (size_t)p->batch.n_tokens, sizeof *out->slots);
    if (!out->slots)
        return no_room(c);
    for (int64_t t = 0; t < p->batch.n_tokens; t++) {
        int32_t slot = p->append.slots[t];
        out->slots[t] =
            slot < 0 ? -1 : seen->numbers[slot / (int32_t)T] * (int32_t)T + slot % (int32_t)T;
    }
    return ATTND_OK;
}

/* Rows of one layer that lay in the blocks before. */
static attnd_status copy_pool(const copying *c, const srv_seen *seen, const ker_problem *p,
                              int plane, uint32_t width, srv_copy *out)
{
    size_t head = width * element_bytes(seen->dtype);
    int64_t n_rows = 0;
    for (uint32_t n = 0; n < seen->n_blocks; n++)
        n_rows += seen->rows[n];
    *out = (srv_copy){.dtype = seen->dtype,
                      .n_rows = n_rows,
                      .n_heads = p->n_kv_heads,
                      .width = width,
                      .n_bytes = (size_t)n_rows * p->n_kv_heads * head};
    out->bytes = msg_arena_take(&c->record->arena, out->n_bytes + 1);
    if (!out->bytes)
        return no_room(c);
    char *to = out->bytes;
    for (uint32_t n = 0; n < seen->n_blocks; n++) {
        const char *block = p->kv.plane[plane] + seen->ids[n] * p->kv.block_stride;
        TRY(read_pieces(c, to, block, seen->rows[n], p->kv.token_stride[plane], p->n_kv_heads,
                        p->kv.head_stride[plane], head));
        to += seen->rows[n] * p->n_kv_heads * head;
    }
    return ATTND_OK;
}

/* ---- Problems ---------------------------------------------------------------------------------
 */

/* θ of frequencies θ^(-2n/r), free of the last digits' noise. */
static double theta_of(const ker_rope *rope)
{
    char digits[32];
    if (rope->pairing == ATTND_ROPE_NONE || rope->dim < 4 || !rope->freq)
        return 10000;
    snprintf(digits, sizeof digits, "%.12g", pow(rope->freq[1], -(double)rope->dim / 2));
    return strtod(digits, NULL);
}

static attnd_status copy_problem(const copying *c, const ker_problem *p, srv_taken *out)
{
    const srv_seen *seen = &c->record->seen[out->pool];
    size_t n_seqs = p->batch.n_seqs, n_tokens = (size_t)p->batch.n_tokens;
    out->problem = *p;
    out->theta = theta_of(&p->rope);
    TRY(copy_table(c, seen, p, out));
    TRY(copy_ints(c, p->batch.q_len, n_seqs, &out->problem.batch.q_len));
    TRY(copy_ints(c, p->batch.kv_len, n_seqs, &out->problem.batch.kv_len));
    TRY(copy_ints(c, p->batch.positions, n_tokens, &out->problem.batch.positions));
    TRY(copy_rows(c, &p->q, p->batch.n_tokens, p->n_heads, p->head_dim, &out->q));
    TRY(copy_rows(c, &p->append.k, p->batch.n_tokens, p->n_kv_heads, p->head_dim, &out->k));
    TRY(copy_rows(c, &p->append.v, p->batch.n_tokens, p->n_kv_heads, p->head_dim_v, &out->v));
    TRY(copy_rows(c, &p->out, p->batch.n_tokens, p->n_heads, p->head_dim_v, &out->out));
    TRY(copy_rows(c, &p->lse, p->batch.n_tokens, p->n_heads, 1, &out->lse));
    TRY(copy_rows(c, &p->stats, p->batch.n_tokens, p->n_heads, 2, &out->stats));
    if (!c->record->with_data)
        return ATTND_OK;
    TRY(copy_pool(c, seen, p, 0, p->head_dim, &out->pool_k));
    return copy_pool(c, seen, p, 1, p->head_dim_v, &out->pool_v);
}

static attnd_status copy_merge(const copying *c, const ker_merge_problem *m)
{
    srv_record *r = c->record;
    r->parts = take(c, m->n_parts, sizeof *r->parts);
    if (!r->parts)
        return no_room(c);
    r->n_parts = m->n_parts;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        const ker_merge_part *part = &m->parts[i];
        TRY(copy_rows(c, &part->out, m->n_tokens, m->n_heads, m->width, &r->parts[i][0]));
        TRY(copy_rows(c, &part->lse, m->n_tokens, m->n_heads, 1, &r->parts[i][1]));
        TRY(copy_rows(c, &part->stats, m->n_tokens, m->n_heads, 2, &r->parts[i][2]));
    }
    TRY(copy_rows(c, &m->out, m->n_tokens, m->n_heads, m->width, &r->merged[0]));
    TRY(copy_rows(c, &m->lse, m->n_tokens, m->n_heads, 1, &r->merged[1]));
    return copy_rows(c, &m->stats, m->n_tokens, m->n_heads, 2, &r->merged[2]);
}

static attnd_status copy_request(const copying *c, const srv_request *request)
{
    srv_record *r = c->record;
    if (request->merge)
        return copy_merge(c, request->merge);
    r->taken = take(c, request->n_problems, sizeof *r->taken);
    if (!r->taken)
        return no_room(c);
    r->n_taken = (uint32_t)request->n_problems;
    TRY(find_pools(c, request));
    for (uint32_t i = 0; i < r->n_taken; i++)
        TRY(copy_problem(c, &request->problems[i], &r->taken[i]));
    return ATTND_OK;
}

attnd_status srv_record_make(srv_record **out, const srv_request *request, bool with_data,
                             uint64_t most, attnd_err *err)
{
    srv_record *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r)
        return attnd_fail(err, ATTND_NO_ROOM, "capture: no memory");
    r->with_data = with_data;
    r->session = request->session ? request->session->ordinal : 0;
    r->request = request->msg.id;
    r->op = request->op->name;
    copying c = {r, request->engine->device, err};
    attnd_status status = msg_arena_init(&r->arena, (size_t)most, err);
    if (status == ATTND_OK)
        status = copy_request(&c, request);
    if (status != ATTND_OK) {
        srv_record_free(r);
        return status;
    }
    *out = r;
    return ATTND_OK;
}

void srv_record_free(srv_record *record)
{
    if (!record)
        return;
    msg_arena_fini(&record->arena);
    free(record);
}
