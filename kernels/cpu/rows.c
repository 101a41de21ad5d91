/* rows.c: one head of one token: loaded, rotated, stored; and the append stage made of that
 * (attention.md §4, §5).
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/round.h"

void cpu_row_load(attnd_dtype dtype, const char *from, uint32_t n, float *restrict to)
{
    const uint16_t *halves = (const uint16_t *)from;
    if (dtype == ATTND_DTYPE_F32)
        memcpy(to, from, n * sizeof *to);
    else if (dtype == ATTND_DTYPE_BF16)
        for (uint32_t i = 0; i < n; i++)
            to[i] = cpu_from_bf16(halves[i]);
    else
        for (uint32_t i = 0; i < n; i++)
            to[i] = cpu_from_f16(halves[i]);
}

void cpu_row_store(attnd_dtype dtype, const float *restrict from, uint32_t n, char *to)
{
    uint16_t *restrict halves = (uint16_t *)to;
    if (dtype == ATTND_DTYPE_F32)
        memcpy(to, from, n * sizeof *from);
    else if (dtype == ATTND_DTYPE_BF16)
        for (uint32_t i = 0; i < n; i++)
            halves[i] = cpu_to_bf16(from[i]);
    else
        for (uint32_t i = 0; i < n; i++)
            halves[i] = cpu_to_f16(from[i]);
}

/* RN of x. On the way to 16 bits the float is the odd one of x's two neighbours: the nearest would
 * make a tie of what is none, and x would be rounded twice. */
static float rounded(attnd_dtype dtype, double x)
{
    float f = (float)x;
    if (dtype == ATTND_DTYPE_F32)
        return f;
    uint32_t bits = cpu_bits(f);
    double rest = x - (double)f;
    if (rest != 0 && f != 0 && !(bits & 1))
        bits += (rest > 0) == (f > 0) ? 1 : -1u;
    f = cpu_float(bits);
    return dtype == ATTND_DTYPE_BF16 ? cpu_from_bf16(cpu_to_bf16(f)) : cpu_from_f16(cpu_to_f16(f));
}

void cpu_row_rotate(const ker_rope *rope, const float *cos_sin, attnd_dtype dtype, float *x)
{
    uint32_t half = rope->dim / 2;
    bool neox = rope->pairing == ATTND_ROPE_NEOX;
    for (uint32_t n = 0; n < half; n++) {
        float *first = x + (neox ? n : 2 * n), *second = x + (neox ? n + half : 2 * n + 1);
        double a = *first, b = *second, c = cos_sin[2 * n], s = cos_sin[2 * n + 1];
        *first = rounded(dtype, a * c - b * s);
        *second = rounded(dtype, b * c + a * s);
    }
}

const float *cpu_row_angles(const ker_plan *plan, const char *workspace, int64_t token)
{
    const ker_rope *rope = &plan->problem.rope;
    if (rope->pairing == ATTND_ROPE_NONE)
        return NULL;
    const float *all = rope->cos_sin ? rope->cos_sin : (const float *)workspace;
    return all + token * rope->dim;
}

void cpu_row_finish(const ker_problem *p, int64_t token, uint32_t head, float m, double l,
                    const float *o)
{
    float row[KER_MAX_DIM];
    /* Nothing seen: m and l say so, o is whatever was there. */
    bool empty = l == 0;
    double z = l;
    if (!empty && p->bias.sinks)
        z += exp((double)p->bias.sinks[head] - m);
    for (uint32_t d = 0; d < p->head_dim_v; d++)
        row[d] = empty ? 0 : o[d] / (float)z;
    cpu_row_store(ker_rows_dtype(p, &p->out), row, p->head_dim_v,
                  p->out.base + token * p->out.token_stride + head * p->out.head_stride);
    if (p->lse.base) {
        float lse = empty ? -INFINITY : (float)(m + log(l));
        memcpy(p->lse.base + token * p->lse.token_stride + head * p->lse.head_stride, &lse,
               sizeof lse);
    }
    if (p->stats.base) {
        float stats[2] = {empty ? -INFINITY : m, (float)l};
        memcpy(p->stats.base + token * p->stats.token_stride + head * p->stats.head_stride, stats,
               sizeof stats);
    }
}

/* ---- Append. ----------------------------------------------------------------------------------
 */

/* The sequence of a packed token: the last that starts at or before it and is not empty. */
static uint32_t seq_of(const ker_batch *batch, int64_t token)
{
    uint32_t low = 0, high = batch->n_seqs;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (batch->q_first[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void make_angles(const ker_problem *p, uint32_t seq, int64_t token, float *cos_sin)
{
    const ker_batch *batch = &p->batch;
    int64_t position = batch->positions ? batch->positions[token]
                                        : (int64_t)batch->kv_len[seq] - batch->q_len[seq] + token -
                                              batch->q_first[seq];
    if (batch->rope_delta)
        position += batch->rope_delta[seq];
    for (uint32_t n = 0; n < p->rope.dim / 2; n++) {
        double angle = (double)position * p->rope.freq[n], s, c;
        sincos(angle, &s, &c);
        cos_sin[2 * n] = (float)(c * p->rope.amplitude);
        cos_sin[2 * n + 1] = (float)(s * p->rope.amplitude);
    }
}

/* block·T + row of a new token, or -1. */
static int64_t slot_of(const ker_problem *p, uint32_t seq, int64_t token)
{
    const ker_batch *batch = &p->batch;
    if (p->append.slots)
        return p->append.slots[token];
    int64_t key = (int64_t)batch->kv_len[seq] - batch->q_len[seq] + token - batch->q_first[seq];
    int64_t block = batch->block_ids[batch->block_first[seq] + key / p->kv.block_size];
    return block * p->kv.block_size + key % p->kv.block_size;
}

/* Channels [first, n) of a row: the bytes as they are when the types agree. */
static void store(const ker_problem *p, const float *x, const char *from, uint32_t first,
                  uint32_t n, char *to)
{
    uint32_t size = attnd_dtype_bits(p->kv.dtype) / 8;
    if (p->kv.dtype == p->dtype)
        memcpy(to + (size_t)first * size, from + (size_t)first * size, (size_t)(n - first) * size);
    else
        cpu_row_store(p->kv.dtype, x + first, n - first, to + (size_t)first * size);
}

static void append_token(const ker_problem *p, int64_t token, int64_t slot, const float *angles)
{
    float x[KER_MAX_DIM];
    int64_t block = slot / p->kv.block_size, row = slot % p->kv.block_size;
    for (uint32_t g = 0; g < p->n_kv_heads; g++) {
        const ker_rows *rows[2] = {&p->append.k, &p->append.v};
        for (int plane = 0; plane < 2; plane++) {
            const char *from = rows[plane]->base + token * rows[plane]->token_stride +
                               g * rows[plane]->head_stride;
            char *to = p->kv.plane[plane] + block * p->kv.block_stride +
                       g * p->kv.head_stride[plane] + row * p->kv.token_stride[plane];
            uint32_t width = plane == 0 ? p->head_dim : p->head_dim_v, turned = 0;
            if ((plane == 0 && angles) || p->kv.dtype != p->dtype)
                cpu_row_load(p->dtype, from, width, x);
            if (plane == 0 && angles) {
                cpu_row_rotate(&p->rope, angles, p->dtype, x);
                turned = p->rope.dim;
                cpu_row_store(p->kv.dtype, x, turned, to);
            }
            store(p, x, from, turned, width, to);
        }
    }
}

void cpu_append_tokens(const ker_plan *plan, int64_t first, int64_t end, char *workspace)
{
    const ker_problem *p = &plan->problem;
    uint32_t seq = seq_of(&p->batch, first);
    for (int64_t token = first; token < end; token++) {
        while (token >= p->batch.q_first[seq] + p->batch.q_len[seq])
            seq++;
        if (ker_makes_angles(p))
            make_angles(p, seq, token, (float *)workspace + token * p->rope.dim);
        if (!p->append.k.base)
            continue;
        int64_t slot = slot_of(p, seq, token);
        if (slot >= 0)
            append_token(p, token, slot, cpu_row_angles(plan, workspace, token));
    }
}
