/* rig_make.c: a spec → images, problem and the oracle's problem. */
#include "tests/kernels/rig.h"

uint64_t rig_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

size_t rig_size(attnd_dtype dtype)
{
    return attnd_dtype_bits(dtype) / 8;
}

static void *take(size_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

void rig_fill(char *at, size_t bytes, attnd_dtype dtype, double value)
{
    size_t done = rig_size(dtype);
    if (bytes == 0)
        return;
    ora_encode(dtype, &value, 1, at);
    for (; done < bytes; done *= 2)
        memcpy(at + done, at, done < bytes - done ? done : bytes - done);
}

/* ---- Where things lie. ------------------------------------------------------------------------
 */

/* Keys of sequence b that lie in the pool before the call. */
static int32_t cached(const rig *x, uint32_t b)
{
    return x->spec.append ? x->spec.kv_len[b] - x->spec.q_len[b] : x->spec.kv_len[b];
}

/* Every third token of a rig that skips. */
static bool is_stored(const rig *x, int64_t token)
{
    return x->spec.append && !(x->spec.skips && token % 3 == 1);
}

char *rig_key(const rig *x, char *image, int plane, uint32_t g, uint32_t b, int64_t j)
{
    const ker_kv *kv = &x->problem.kv;
    char *at = image + RIG_EDGE + x->plane_at[plane] + g * kv->head_stride[plane];
    if (x->spec.given)
        return at + (x->kv_first[b] + j) * kv->token_stride[plane];
    int64_t block = x->tables[x->block_first[b] + j / kv->block_size];
    return at + block * kv->block_stride + j % kv->block_size * kv->token_stride[plane];
}

char *rig_token(const rig *x, char *image, const ker_rows *rows, int64_t token, uint32_t head)
{
    return image + (rows->base - x->base) + token * rows->token_stride + head * rows->head_stride;
}

/* A random order of 0 .. n-1. */
static int32_t *shuffled(int64_t n, uint64_t seed)
{
    int32_t *ids = take((size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++) {
        int64_t j = (int64_t)(rig_random(&seed) % (uint64_t)(i + 1));
        ids[i] = ids[j];
        ids[j] = i;
    }
    return ids;
}

/* The blocks of a far pool: the last ones, the first, and the rest anywhere between. */
static void spread_blocks(rig *x)
{
    ker_kv *kv = &x->problem.kv;
    int64_t n = x->n_tables, all = (int64_t)(x->spec.far_bytes / (size_t)kv->block_stride);
    assert_true(all > n && all < INT32_MAX);
    x->far_ids = take((size_t)n * sizeof *x->far_ids);
    x->far_tables = take((size_t)n * sizeof *x->far_tables);
    for (int64_t i = 0; i < n; i++)
        x->far_ids[i] = (int32_t)(all - 1 - i * (all - 1) / (n > 1 ? n - 1 : 1));
    for (int64_t i = 0; i < n; i++)
        x->far_tables[i] = x->far_ids[x->tables[i]];
    kv->n_blocks = all;
}

/* Strides of the planes, and the tables: ids in a random order, two of the pool's unused. */
static void lay_out_pool(rig *x)
{
    const rig_spec *s = &x->spec;
    ker_kv *kv = &x->problem.kv;
    size_t size = rig_size(s->kv);
    int64_t n_rows = 0;
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        x->kv_first[b] = n_rows;
        n_rows += s->kv_len[b];
        x->block_first[b] = x->n_tables;
        x->n_tables += (s->kv_len[b] + s->block_size - 1) / s->block_size;
    }
    int64_t widths[2] = {(int64_t)(s->d * size), (int64_t)(s->dv * size)};
    int64_t tokens = s->given ? n_rows : s->block_size, gap = s->gapped ? 64 * (int64_t)size : 0;
    int64_t end = 0;
    for (int plane = 0; plane < 2; plane++) {
        x->plane_at[plane] = end;
        kv->head_stride[plane] = s->nhd ? widths[plane] : tokens * widths[plane];
        kv->token_stride[plane] = s->nhd ? s->n_kv_heads * widths[plane] : widths[plane];
        end += tokens * s->n_kv_heads * widths[plane] + gap;
    }
    kv->block_size = s->block_size;
    kv->block_stride = end + 2 * gap;
    kv->n_blocks = s->given ? 1 : x->n_tables + (s->far_bytes ? 0 : 2);
    x->pool_bytes = (size_t)(kv->n_blocks * kv->block_stride);
    x->tables = s->given ? take(1) : shuffled(kv->n_blocks, s->seed + 99 + s->order);
    if (s->far_bytes)
        spread_blocks(x);
}

/* Puts rows at *at of an image: base is an offset as yet. */
static void lay_out_rows(const rig *x, ker_rows *rows, attnd_dtype dtype, uint32_t heads,
                         uint32_t width, size_t *at)
{
    int64_t size = (int64_t)rig_size(dtype), row = width * size, bytes;
    int64_t align = x->spec.align ? x->spec.align : 1, gap = (3 * size + align - 1) / align * align;
    if (x->spec.rows == ROWS_HEADS_FIRST) {
        rows->token_stride = row;
        rows->head_stride = x->n_tokens * row;
        bytes = heads * rows->head_stride;
    } else {
        bool is_packed = x->spec.rows == ROWS_PACKED;
        rows->head_stride = row + (is_packed ? 0 : gap);
        rows->token_stride = heads * rows->head_stride + (is_packed ? 0 : 64);
        bytes = x->n_tokens * rows->token_stride;
    }
    rows->dtype = dtype;
    rows->base = (char *)(uintptr_t)*at;
    *at = (*at + (size_t)bytes + RIG_EDGE + 63) / 64 * 64;
}

/* Lets every address of the problem begin at base instead. */
static void rebase(rig *x, char *base)
{
    ker_problem *p = &x->problem;
    ker_rows *rows[] = {&p->q, &p->append.k, &p->append.v, &p->out, &p->lse, &p->stats};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i]->base)
            rows[i]->base = base + (rows[i]->base - x->base);
    char *pool = x->far.base ? x->far.base : base + RIG_EDGE;
    for (int plane = 0; plane < 2; plane++)
        p->kv.plane[plane] = pool + x->plane_at[plane];
    x->base = base;
}

/* Three images of the same layout. */
static void make_images(rig *x)
{
    const rig_spec *s = &x->spec;
    ker_problem *p = &x->problem;
    size_t at = (RIG_EDGE + x->pool_bytes + RIG_EDGE + 63) / 64 * 64;
    lay_out_rows(x, &p->q, s->dtype, s->n_heads, s->d, &at);
    if (s->append) {
        lay_out_rows(x, &p->append.k, s->dtype, s->n_kv_heads, s->d, &at);
        lay_out_rows(x, &p->append.v, s->dtype, s->n_kv_heads, s->dv, &at);
    }
    lay_out_rows(x, &p->out, s->out, s->n_heads, s->dv, &at);
    lay_out_rows(x, &p->lse, ATTND_DTYPE_F32, s->n_heads, 1, &at);
    lay_out_rows(x, &p->stats, ATTND_DTYPE_F32, s->n_heads, 2, &at);
    x->bytes = at;
    x->given = take(at);
    x->want = take(at);
    x->got = take(at);
    memset(x->given, RIG_CANARY, at);
    x->base = NULL;
    rebase(x, x->given);
}

/* ---- What is in them. -------------------------------------------------------------------------
 */

static void fill_pool(rig *x)
{
    static const double poisons[] = {
        [POISON_ZERO] = 0, [POISON_NAN] = NAN, [POISON_INF] = INFINITY};
    const rig_spec *s = &x->spec;
    rig_fill(x->given + RIG_EDGE, x->pool_bytes, s->kv, poisons[s->poison]);
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        int64_t low = ker_mask_lowest_key(&x->problem.mask, s->q_len[b], s->kv_len[b]);
        for (int64_t j = low; j < s->kv_len[b]; j++) {
            if (j >= cached(x, b) && is_stored(x, x->q_first[b] + j - cached(x, b)))
                continue;
            for (uint32_t g = 0; g < s->n_kv_heads; g++) {
                uint64_t row = ((uint64_t)b << 40) + (uint64_t)j * s->n_kv_heads + g;
                ora_generate(s->seed, "k", row * s->d, s->d, 1, s->kv,
                             rig_key(x, x->given, 0, g, b, j));
                ora_generate(s->seed, "v", row * s->dv, s->dv, 1, s->kv,
                             rig_key(x, x->given, 1, g, b, j));
            }
        }
        /* Entries below the lowest key are never read. */
        for (int64_t n = 0; !s->given && !s->far_bytes && n < low / s->block_size; n++)
            x->tables[x->block_first[b] + n] = -1;
    }
}

static void fill_rows(rig *x, const ker_rows *rows, const char *name, uint32_t heads,
                      uint32_t width, double amplitude)
{
    for (int64_t t = 0; t < x->n_tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            ora_generate(x->spec.seed, name, ((uint64_t)t * heads + h) * width, width, amplitude,
                         x->spec.dtype, rig_token(x, x->given, rows, t, h));
}

/* ---- What comes beside them. ------------------------------------------------------------------
 */

static void make_mask(rig *x)
{
    const rig_spec *s = &x->spec;
    uint64_t state = s->seed + 7;
    x->start = take((size_t)x->n_tokens * sizeof *x->start);
    x->end = take((size_t)x->n_tokens * sizeof *x->end);
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int32_t i = 0; i < s->q_len[b]; i++) {
            int64_t t = x->q_first[b] + i, span = s->kv_len[b] + 4;
            x->start[t] = (int32_t)(rig_random(&state) % (uint64_t)span) - 2;
            x->end[t] = x->start[t] + (int32_t)(rig_random(&state) % (uint64_t)span) - 2;
        }
    x->problem.mask = (ker_mask){.kinds = s->kinds, .window = s->window, .chunk = s->chunk};
    if (s->kinds & KER_MASK_VARIABLE) {
        x->problem.mask.start = x->start;
        x->problem.mask.end = x->end;
    }
}

static void make_slots(rig *x)
{
    const rig_spec *s = &x->spec;
    const int32_t *tables = x->far_tables ? x->far_tables : x->tables;
    x->slots = take((size_t)x->n_tokens * sizeof *x->slots);
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int32_t i = 0; i < s->q_len[b]; i++) {
            int64_t t = x->q_first[b] + i, j = cached(x, b) + i;
            x->slots[t] = -1;
            if (j < 0 || !is_stored(x, t))
                continue;
            int64_t block = tables[x->block_first[b] + j / s->block_size];
            x->slots[t] = (int32_t)(block * s->block_size + j % s->block_size);
        }
    x->problem.append.slots = x->slots;
}

static int64_t position_of(const rig *x, uint32_t b, int32_t i)
{
    int64_t p = x->positions ? x->positions[x->q_first[b] + i]
                             : (int64_t)x->spec.kv_len[b] - x->spec.q_len[b] + i;
    return x->deltas ? p + x->deltas[b] : p;
}

static void make_rope(rig *x)
{
    const rig_spec *s = &x->spec;
    ker_problem *p = &x->problem;
    uint32_t half = s->rope_dim / 2;
    x->freq = take(half * sizeof *x->freq);
    for (uint32_t n = 0; n < half; n++)
        x->freq[n] = pow(10000, -2.0 * n / s->rope_dim);
    p->rope = (ker_rope){.pairing = s->rope, .dim = s->rope_dim, .freq = x->freq, .amplitude = 1};
    if (s->positions) {
        x->positions = take((size_t)x->n_tokens * sizeof *x->positions);
        for (int64_t t = 0; t < x->n_tokens; t++)
            x->positions[t] = (int32_t)(1000 * t % 7777);
    }
    if (s->deltas) {
        static const int32_t deltas[] = {5, 0, -3, 100000};
        x->deltas = take(s->n_seqs * sizeof *x->deltas);
        for (uint32_t b = 0; b < s->n_seqs; b++)
            x->deltas[b] = deltas[b % 4];
    }
    p->batch.positions = x->positions;
    p->batch.rope_delta = x->deltas;
    if (!s->cos_sin)
        return;
    x->cos_sin = take((size_t)x->n_tokens * s->rope_dim * sizeof *x->cos_sin);
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int32_t i = 0; i < s->q_len[b]; i++)
            for (uint32_t n = 0; n < half; n++) {
                float *at = x->cos_sin + (x->q_first[b] + i) * s->rope_dim + 2 * n;
                double angle = (double)position_of(x, b, i) * x->freq[n];
                at[0] = (float)cos(angle);
                at[1] = (float)sin(angle);
            }
    p->rope.cos_sin = x->cos_sin;
    p->rope.freq = NULL;
}

static void make_biases(rig *x)
{
    const rig_spec *s = &x->spec;
    x->slopes = take(s->n_heads * sizeof *x->slopes);
    x->sinks = take(s->n_heads * sizeof *x->sinks);
    for (uint32_t h = 0; h < s->n_heads; h++) {
        x->slopes[h] = (float)ora_alibi_slope(h, s->n_heads);
        x->sinks[h] = (float)ora_element(s->seed, "sinks", h);
    }
    x->problem.bias = (ker_bias){.softcap = (float)s->softcap,
                                 .alibi_slopes = s->alibi ? x->slopes : NULL,
                                 .sinks = s->sinks ? x->sinks : NULL};
}

/* ---- The oracle's words. ----------------------------------------------------------------------
 */

static ora_rows mirrored(const rig *x, char *image, const ker_rows *rows)
{
    return (ora_rows){rows->base ? rig_token(x, image, rows, 0, 0) : NULL, rows->token_stride,
                      rows->head_stride, rows->dtype};
}

static void mirror(rig *x)
{
    const ker_problem *p = &x->problem;
    const rig_spec *s = &x->spec;
    char *pool = x->want + RIG_EDGE;
    x->oracle = (ora_problem){
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->d,
        .head_dim_v = s->dv,
        .sm_scale = (double)p->sm_scale,
        .dtype = s->dtype,
        .n_seqs = s->n_seqs,
        .n_contexts = s->n_contexts,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .q_first = x->q_first,
        .kv_first = p->batch.kv_first,
        .block_ids = s->given ? NULL : x->tables,
        .block_first = p->batch.block_first,
        .positions = x->positions,
        .rope_delta = x->deltas,
        .q = mirrored(x, x->given, &p->q),
        .k = mirrored(x, x->given, &p->append.k),
        .v = mirrored(x, x->given, &p->append.v),
        .slots = p->append.slots,
        .kv = {.plane = {pool + x->plane_at[0], pool + x->plane_at[1]},
               .block_stride = p->kv.block_stride,
               .head_stride = {p->kv.head_stride[0], p->kv.head_stride[1]},
               .token_stride = {p->kv.token_stride[0], p->kv.token_stride[1]},
               .n_blocks = x->far_ids ? x->n_tables : p->kv.n_blocks,
               /* 0 tells the oracle that rows are not in blocks. */
               .block_size = s->given ? 0 : s->block_size,
               .dtype = s->kv},
        .rope = {.pairing = s->rope, .dim = s->rope_dim, .theta = 10000},
        .mask = {.kinds = s->kinds,
                 .window = s->window,
                 .chunk = s->chunk,
                 .start = p->mask.start,
                 .end = p->mask.end},
        .bias = {.softcap = s->softcap,
                 .alibi_slopes = p->bias.alibi_slopes,
                 .sinks = p->bias.sinks},
    };
}

/* ---- All of it. -------------------------------------------------------------------------------
 */

static void complete(rig_spec *s)
{
    s->kv = s->kv ? s->kv : s->dtype;
    s->out = s->out ? s->out : s->dtype;
    s->dv = s->dv ? s->dv : s->d;
    s->block_size = s->block_size ? s->block_size : 16;
    /* Slots of a far pool are those of its own blocks, not of the image's. */
    assert_false(s->far_bytes && (s->slots || s->given));
    assert_true(s->n_seqs <= RIG_MAX_SEQS);
}

void rig_make(rig *x, const rig_spec *spec)
{
    *x = (rig){.spec = *spec, .home.fd = -1, .far.fd = -1};
    rig_spec *s = &x->spec;
    complete(s);
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        x->q_first[b] = x->n_tokens;
        x->n_tokens += s->q_len[b];
    }
    ker_problem *p = &x->problem;
    *p = (ker_problem){
        .n_heads = s->n_heads,
        .n_kv_heads = s->n_kv_heads,
        .head_dim = s->d,
        .head_dim_v = s->dv,
        .sm_scale = (float)ora_sm_scale(0, s->d),
        .dtype = s->dtype,
        .kv = {.dtype = s->kv},
        .batch_invariant = s->batch_invariant,
    };
    lay_out_pool(x);
    p->batch = (ker_batch){
        .n_seqs = s->n_seqs,
        .n_contexts = s->n_contexts,
        .n_tokens = x->n_tokens,
        .q_len = s->q_len,
        .kv_len = s->kv_len,
        .q_first = x->q_first,
        .kv_first = s->given ? x->kv_first : NULL,
        .block_ids = s->given        ? NULL
                     : x->far_tables ? x->far_tables
                                     : x->tables,
        .block_first = s->given ? NULL : x->block_first,
    };
    make_images(x);
    make_mask(x);
    fill_pool(x);
    fill_rows(x, &p->q, "q", s->n_heads, s->d, s->amplitude > 0 ? s->amplitude : 1);
    if (s->append) {
        fill_rows(x, &p->append.k, "new_k", s->n_kv_heads, s->d, 1);
        fill_rows(x, &p->append.v, "new_v", s->n_kv_heads, s->dv, 1);
    }
    if (s->slots)
        make_slots(x);
    make_biases(x);
    if (s->rope)
        make_rope(x);
    mirror(x);
}

void rig_free(rig *x)
{
    void *all[] = {x->given,   x->want,      x->got,    x->tables, x->far_tables,
                   x->far_ids, x->slots,     x->start,  x->end,    x->slopes,
                   x->sinks,   x->positions, x->deltas, x->freq,   x->cos_sin};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    if (x->device) {
        ker_memory_free(x->device, &x->home);
        ker_memory_free(x->device, &x->far);
    }
    ora_result_fini(&x->want_rows);
}

void rig_set_key(rig *x, uint32_t b, int64_t j, double value)
{
    const rig_spec *s = &x->spec;
    for (uint32_t g = 0; g < s->n_kv_heads; g++) {
        rig_fill(rig_key(x, x->given, 0, g, b, j), s->d * rig_size(s->kv), s->kv, 0);
        rig_fill(rig_key(x, x->given, 1, g, b, j), s->dv * rig_size(s->kv), s->kv, value);
    }
}

void rig_set_positions(rig *x)
{
    const rig_spec *s = &x->spec;
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int64_t j = ker_mask_lowest_key(&x->problem.mask, s->q_len[b], s->kv_len[b]);
             j < s->kv_len[b]; j++)
            rig_set_key(x, b, j, (double)j);
}

/* ---- On the device. ---------------------------------------------------------------------------
 */

/* Block i of the image of a far pool, there and here. */
static char *far_block(const rig *x, int64_t i)
{
    return (char *)x->far.base + x->far_ids[i] * x->problem.kv.block_stride;
}

static char *near_block(const rig *x, char *image, int64_t i)
{
    return image + RIG_EDGE + i * x->problem.kv.block_stride;
}

void rig_put(rig *x, ker_device *device)
{
    if (x->device != device) {
        if (x->device) {
            ker_memory_free(x->device, &x->home);
            ker_memory_free(x->device, &x->far);
        }
        x->device = device;
        rig_alloc(device, "rig", x->bytes, &x->home);
        if (x->spec.far_bytes)
            rig_alloc(device, "far", x->spec.far_bytes, &x->far);
        rebase(x, x->home.base);
    }
    rig_upload(device, x->home.base, x->given, x->bytes);
    for (int64_t i = 0; x->far_ids && i < x->n_tables; i++)
        rig_upload(device, far_block(x, i), near_block(x, x->given, i),
                   (size_t)x->problem.kv.block_stride);
}

void rig_fetch(rig *x)
{
    rig_download(x->device, x->got, x->home.base, x->bytes);
    for (int64_t i = 0; x->far_ids && i < x->n_tables; i++)
        rig_download(x->device, near_block(x, x->got, i), far_block(x, i),
                     (size_t)x->problem.kv.block_stride);
}
