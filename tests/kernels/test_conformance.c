/* test_conformance.c: every row of kernels.def, on every instruction set this CPU has, against the
 * oracle at the gates of attention.md §22.
 */
#include "tests/kernels/rig.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};
enum { N_ISAS = 3 };
static ker_device *devices[N_ISAS]; /* NULL: not on this CPU */
static uint32_t n_runs[N_ISAS][16]; /* by row */

static const uint32_t splits[] = {0, 1, 2, 7, 8};

/* Every row that serves, every instruction set, with these splits. */
static void conform(const rig_spec *spec, const uint32_t *n_splits, size_t n)
{
    rig x;
    char what[128];
    rig_make(&x, spec);
    rig_judge(&x);
    for (int isa = 0; isa < N_ISAS; isa++)
        for (size_t row = 0; devices[isa] && row < ker_n_kernels(); row++) {
            if (!rig_serves(&x, devices[isa], row))
                continue;
            const ker_kernel *kernel = ker_kernel_at(row);
            for (size_t i = 0; i < n; i++) {
                rig_run(&x, devices[isa], n_splits[i], kernel);
                snprintf(what, sizeof what, "%s, %s, %u splits", ker_kernel_name(kernel), isas[isa],
                         n_splits[i]);
                rig_check(&x, what);
                n_runs[isa][row]++;
            }
        }
    rig_free(&x);
}

static void conform_all_splits(const rig_spec *spec)
{
    conform(spec, splits, sizeof splits / sizeof *splits);
}

static const attnd_dtype dtypes[] = {ATTND_DTYPE_F32, ATTND_DTYPE_F16, ATTND_DTYPE_BF16};

/* Lengths around a tile, around a block, and thousands; one of nothing. */
static void lengths(rig_spec *s)
{
    static const int32_t kv_len[] = {0, 1, 15, 16, 17, 63, 64, 65, 127, 129, 1025, 2500};
    s->n_seqs = sizeof kv_len / sizeof *kv_len;
    for (uint32_t b = 0; b < s->n_seqs; b++) {
        s->kv_len[b] = kv_len[b];
        s->q_len[b] = 1;
    }
}

static void generations_of_any_length_and_type_conform(void **state)
{
    for (int t = 0; t < 3; t++) {
        rig_spec s = {.name = "decode",
                      .dtype = dtypes[t],
                      .n_heads = 8,
                      .n_kv_heads = 2,
                      .d = 64,
                      .kinds = KER_MASK_CAUSAL,
                      .seed = 1,
                      .poison = POISON_NAN};
        lengths(&s);
        conform_all_splits(&s);
        s.amplitude = 8;
        s.seed = 2;
        s.kinds = 0;
        conform(&s, splits, 3);
    }
}

static void contexts_of_any_length_and_type_conform(void **state)
{
    for (int t = 0; t < 3; t++) {
        rig_spec s = {.name = "prefill",
                      .dtype = dtypes[t],
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = 64,
                      .n_seqs = 7,
                      .n_contexts = 7,
                      .kinds = KER_MASK_CAUSAL,
                      .append = true,
                      .q_len = {1, 0, 15, 33, 65, 20, 130},
                      .kv_len = {1, 0, 15, 33, 65, 300, 517},
                      .seed = 3,
                      .poison = POISON_NAN};
        conform_all_splits(&s);
        s.kinds = 0;
        s.amplitude = 8;
        conform(&s, splits, 3);
    }
}

static void a_mixed_batch_conforms(void **state)
{
    rig_spec s = {.name = "mixed",
                  .dtype = ATTND_DTYPE_BF16,
                  .n_heads = 6,
                  .n_kv_heads = 2,
                  .d = 128,
                  .n_seqs = 6,
                  .n_contexts = 2,
                  .kinds = KER_MASK_CAUSAL,
                  .append = true,
                  .q_len = {70, 9, 1, 1, 4, 0},
                  .kv_len = {70, 200, 1, 513, 400, 12},
                  .seed = 4,
                  .poison = POISON_NAN};
    rig x;
    rig_make(&x, &s);
    rig_judge(&x);
    for (int isa = 0; isa < N_ISAS; isa++)
        for (size_t i = 0; devices[isa] && i < sizeof splits / sizeof *splits; i++) {
            rig_run(&x, devices[isa], splits[i], NULL);
            rig_check(&x, isas[isa]);
        }
    rig_free(&x);
}

static void any_group_conforms(void **state)
{
    static const uint32_t heads[][2] = {{1, 1},  {2, 1},  {3, 1}, {6, 2},  {5, 1},  {7, 1},
                                        {16, 2}, {16, 1}, {9, 1}, {71, 1}, {32, 4}, {130, 1}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        rig_spec s = {.name = "group",
                      .dtype = dtypes[i % 3],
                      .n_heads = heads[i][0],
                      .n_kv_heads = heads[i][1],
                      .d = 32,
                      .n_seqs = 3,
                      .kinds = KER_MASK_CAUSAL,
                      .q_len = {1, 3, 5},
                      .kv_len = {150, 77, 64},
                      .seed = 10 + i,
                      .poison = POISON_NAN};
        conform(&s, splits, 3);
        s.n_contexts = 3;
        conform(&s, splits, 2);
    }
}

static void any_head_width_conforms(void **state)
{
    static const uint32_t widths[][2] = {{1, 1},     {8, 8},     {71, 71},   {96, 96},
                                         {128, 128}, {40, 24},   {16, 80},   {192, 128},
                                         {3, 100},   {256, 256}, {576, 512}, {1024, 1024}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int t = 0; t < 3; t++) {
            rig_spec s = {.name = "width",
                          .dtype = dtypes[t],
                          .n_heads = 3,
                          .n_kv_heads = 1,
                          .d = widths[i][0],
                          .dv = widths[i][1],
                          .n_seqs = 2,
                          .kinds = KER_MASK_CAUSAL,
                          .q_len = {1, 4},
                          .kv_len = {100, 67},
                          .seed = 40 + i,
                          .poison = POISON_NAN};
            conform(&s, splits, 3);
            s.n_contexts = 2;
            conform(&s, splits, 2);
        }
}

static void any_block_size_and_layout_conforms(void **state)
{
    for (uint32_t size = 1, i = 0; size <= 1024; size *= 2, i++) {
        rig_spec s = {.name = "block",
                      .dtype = dtypes[i % 3],
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = 32,
                      .block_size = size,
                      .nhd = i % 2 == 0,
                      .append = true,
                      .n_seqs = 4,
                      .n_contexts = 1,
                      .kinds = KER_MASK_CAUSAL,
                      .q_len = {19, 1, 1, 2},
                      .kv_len = {150, 1200, 1, 1025},
                      .seed = 60 + i,
                      .poison = POISON_NAN};
        rig x;
        rig_make(&x, &s);
        rig_judge(&x);
        for (int isa = 0; isa < N_ISAS; isa++)
            if (devices[isa]) {
                rig_run(&x, devices[isa], 2, NULL);
                rig_check(&x, isas[isa]);
            }
        rig_free(&x);
    }
}

static void types_may_differ_between_rows_pool_and_output(void **state)
{
    for (int t = 0; t < 27; t++) {
        rig_spec s = {.name = "types",
                      .dtype = dtypes[t % 3],
                      .kv = dtypes[t / 3 % 3],
                      .out = dtypes[t / 9],
                      .n_heads = 4,
                      .n_kv_heads = 1,
                      .d = 48,
                      .append = true,
                      .n_seqs = 2,
                      .kinds = KER_MASK_CAUSAL,
                      .q_len = {1, 5},
                      .kv_len = {90, 200},
                      .seed = 80 + (uint64_t)t,
                      .poison = POISON_NAN};
        conform(&s, splits, 2);
        s.n_contexts = 2;
        conform(&s, splits, 2);
    }
}

static void every_kind_of_bounds_conforms(void **state)
{
    static const struct {
        uint32_t kinds;
        int32_t window, chunk;
    } masks[] = {
        {0, 0, 0},
        {KER_MASK_CAUSAL, 0, 0},
        {KER_MASK_CAUSAL | KER_MASK_WINDOW, 1, 0},
        {KER_MASK_CAUSAL | KER_MASK_WINDOW, 65, 0},
        {KER_MASK_CAUSAL | KER_MASK_WINDOW, 1000000, 0},
        {KER_MASK_WINDOW, 30, 0},
        {KER_MASK_CAUSAL | KER_MASK_CHUNK, 0, 100},
        {KER_MASK_CHUNK | KER_MASK_WINDOW | KER_MASK_CAUSAL, 20, 64},
        {KER_MASK_VARIABLE, 0, 0},
    };
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        rig_spec s = {.name = "mask",
                      .dtype = dtypes[i % 3],
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = 32,
                      .n_seqs = 5,
                      .n_contexts = 5,
                      .q_len = {90, 40, 1, 5, 64},
                      .kv_len = {90, 400, 300, 3, 0},
                      .kinds = masks[i].kinds,
                      .window = masks[i].window,
                      .chunk = masks[i].chunk,
                      .seed = 110 + i,
                      .poison = POISON_NAN};
        conform_all_splits(&s);
        s.n_contexts = 0;
        conform_all_splits(&s);
    }
}

static void cap_alibi_sinks_and_given_keys_conform(void **state)
{
    for (uint32_t i = 0; i < 16; i++) {
        rig_spec s = {.name = "extras",
                      .dtype = dtypes[i % 3],
                      .n_heads = 12,
                      .n_kv_heads = 4,
                      .d = 64,
                      .n_seqs = 4,
                      .n_contexts = 2,
                      .q_len = {33, 10, 1, 3},
                      .kv_len = {33, 200, 300, 0},
                      .kinds = KER_MASK_CAUSAL,
                      .softcap = i & 1 ? 20 : 0,
                      .alibi = (i & 2) != 0,
                      .sinks = (i & 4) != 0,
                      .given = (i & 8) != 0,
                      .amplitude = i & 1 ? 8 : 1,
                      .nhd = true,
                      .seed = 130 + i,
                      .poison = POISON_NAN};
        rig x;
        rig_make(&x, &s);
        rig_judge(&x);
        for (int isa = 0; isa < N_ISAS; isa++)
            for (uint32_t n = 0; devices[isa] && n < 4; n += 3) {
                rig_run(&x, devices[isa], n, NULL);
                rig_check(&x, isas[isa]);
            }
        rig_free(&x);
    }
}

static void rope_conforms(void **state)
{
    for (uint32_t i = 0; i < 12; i++) {
        rig_spec s = {.name = "rope",
                      .dtype = dtypes[i % 3],
                      .kv = dtypes[i / 4],
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = 64,
                      .n_seqs = 4,
                      .n_contexts = 1,
                      .q_len = {40, 1, 1, 4},
                      .kv_len = {60, 2000, 1, 77},
                      .kinds = KER_MASK_CAUSAL,
                      .append = true,
                      .seed = 150 + i,
                      .rope = i & 1 ? ATTND_ROPE_NEOX : ATTND_ROPE_GPTJ,
                      .rope_dim = i & 2 ? 64 : 24,
                      .poison = POISON_NAN};
        rig x;
        rig_make(&x, &s);
        int32_t positions[46], deltas[4] = {0, 5, -3, 100000};
        for (int t = 0; t < 46; t++)
            positions[t] = 1000 * t % 7777;
        if (i & 4)
            x.problem.batch.positions = x.oracle.positions = positions;
        x.problem.batch.rope_delta = x.oracle.rope_delta = deltas;
        rig_judge(&x);
        for (int isa = 0; isa < N_ISAS; isa++)
            for (uint32_t n = 0; devices[isa] && n < 4; n += 3) {
                rig_run(&x, devices[isa], n, NULL);
                rig_check(&x, isas[isa]);
            }
        rig_free(&x);
    }
}

static void angles_given_per_token_are_used(void **state)
{
    rig_spec s = {.name = "table",
                  .dtype = ATTND_DTYPE_F32,
                  .n_heads = 2,
                  .n_kv_heads = 1,
                  .d = 16,
                  .n_seqs = 1,
                  .q_len = {3},
                  .kv_len = {40},
                  .kinds = KER_MASK_CAUSAL,
                  .append = true,
                  .rope = ATTND_ROPE_NEOX,
                  .rope_dim = 16,
                  .seed = 170};
    rig x;
    float table[3 * 16];
    rig_make(&x, &s);
    for (int t = 0; t < 3; t++)
        for (int n = 0; n < 8; n++) {
            table[t * 16 + 2 * n] = (float)cos((37 + t) * x.freq[n]);
            table[t * 16 + 2 * n + 1] = (float)sin((37 + t) * x.freq[n]);
        }
    x.problem.rope.cos_sin = table;
    x.problem.rope.freq = NULL;
    rig_judge(&x);
    rig_run(&x, devices[0], 0, NULL);
    rig_check(&x, "table");
    rig_free(&x);
}

static void explicit_slots_store_or_not(void **state)
{
    rig_spec s = {.name = "slots",
                  .dtype = ATTND_DTYPE_F16,
                  .n_heads = 2,
                  .n_kv_heads = 1,
                  .d = 32,
                  .n_seqs = 3,
                  .n_contexts = 1,
                  .q_len = {20, 1, 4},
                  .kv_len = {50, 33, 64},
                  .kinds = KER_MASK_CAUSAL,
                  .append = true,
                  .slots = true,
                  .seed = 180,
                  .poison = POISON_ZERO};
    rig x;
    rig_make(&x, &s);
    x.slots[3] = x.slots[20] = x.slots[24] = -1; /* those keys stay what the pool held: zeros */
    rig_judge(&x);
    for (int isa = 0; isa < N_ISAS; isa++)
        if (devices[isa]) {
            rig_run(&x, devices[isa], 0, NULL);
            rig_check(&x, isas[isa]);
        }
    rig_free(&x);
}

/* ---- Bits. ------------------------------------------------------------------------------------
 */

static void same_bits(const rig *a, const rig *b, const char *what)
{
    if (memcmp(a->out, b->out, a->out_bytes) != 0 || memcmp(a->lse, b->lse, a->lse_bytes) != 0 ||
        memcmp(a->stats, b->stats, a->stats_bytes) != 0)
        fail_msg("%s, %s, seed %llu: other bits", a->spec.name, what,
                 (unsigned long long)a->spec.seed);
}

/* Runs both on every row and instruction set and compares. */
static void same_bits_everywhere(rig *a, rig *b, uint32_t n_splits, const char *what)
{
    char text[128];
    for (int isa = 0; isa < N_ISAS; isa++)
        for (size_t row = 0; devices[isa] && row < ker_n_kernels(); row++) {
            if (!rig_serves(a, devices[isa], row))
                continue;
            rig_run(a, devices[isa], n_splits, ker_kernel_at(row));
            rig_run(b, devices[isa], n_splits, ker_kernel_at(row));
            snprintf(text, sizeof text, "%s, %s, %s", what, ker_kernel_name(ker_kernel_at(row)),
                     isas[isa]);
            same_bits(a, b, text);
        }
}

static void bytes_no_row_sees_change_no_bit(void **state)
{
    for (uint32_t i = 0; i < 12; i++) {
        rig_spec s = {.name = "poison",
                      .dtype = dtypes[i % 3],
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = i & 1 ? 64 : 71,
                      .n_seqs = 5,
                      .n_contexts = i & 2 ? 5 : 0,
                      .q_len = {20, 3, 1, 1, 70},
                      .kv_len = {20, 90, 65, 1000, 129},
                      .kinds = KER_MASK_CAUSAL | (i & 4 ? KER_MASK_WINDOW : 0),
                      .window = 50,
                      .append = (i & 1) != 0,
                      .block_size = 32,
                      .seed = 200 + i};
        rig zero, nan, inf;
        rig_make(&zero, &s);
        s.poison = POISON_NAN;
        rig_make(&nan, &s);
        s.poison = POISON_INF;
        rig_make(&inf, &s);
        same_bits_everywhere(&zero, &nan, i % 4, "NaN");
        same_bits_everywhere(&zero, &inf, i % 4, "Inf");
        rig_free(&zero);
        rig_free(&nan);
        rig_free(&inf);
    }
}

/* A visible NaN or Inf, in q, k or v, stays in the rows and heads that use it. */
static void strange_numbers_stay_in_their_rows(void **state)
{
    static const double values[] = {NAN, INFINITY, -INFINITY};
    for (uint32_t i = 0; i < 18; i++) {
        rig_spec s = {.name = "strange",
                      .dtype = dtypes[i % 3],
                      .n_heads = 4,
                      .n_kv_heads = 2,
                      .d = 32,
                      .n_seqs = 2,
                      .n_contexts = i < 9 ? 2 : 0,
                      .q_len = {30, 5},
                      .kv_len = {100, 200},
                      .kinds = KER_MASK_CAUSAL,
                      .seed = 230 + i};
        rig plain, strange;
        rig_make(&plain, &s);
        rig_make(&strange, &s);
        size_t size = rig_size(s.dtype);
        char one[4];
        ora_encode(s.dtype, &values[i / 3 % 3], 1, one);
        /* Key 85 of sequence 0, kv head 1, is seen by its rows 15 .. 29; q of its row 3, head 0. */
        memcpy(rig_row(&strange, strange.pool, (int)(i & 1), 1, 0, 85) + 5 * size, one, size);
        ker_rows *q = &strange.problem.q;
        memcpy(q->base + 3 * q->token_stride + 2 * size, one, size);
        for (int isa = 0; isa < N_ISAS; isa++)
            for (size_t row = 0; devices[isa] && row < ker_n_kernels(); row++) {
                if (!rig_serves(&plain, devices[isa], row))
                    continue;
                rig_run(&plain, devices[isa], 2, ker_kernel_at(row));
                rig_run(&strange, devices[isa], 2, ker_kernel_at(row));
                for (int64_t t = 0; t < plain.n_tokens; t++)
                    for (uint32_t h = 0; h < 4; h++) {
                        const ker_rows *out = &plain.problem.out;
                        int64_t at = t * out->token_stride + h * out->head_stride;
                        bool touched = (t == 3 && h == 0) || (t >= 15 && t < 30 && h >= 2);
                        bool same = memcmp(plain.problem.out.base + at,
                                           strange.problem.out.base + at, s.d * size) == 0;
                        if (!touched && !same)
                            fail_msg("seed %llu, token %lld, head %u: another row's NaN or Inf",
                                     (unsigned long long)s.seed, (long long)t, h);
                        double value[32];
                        ora_decode(s.dtype, strange.problem.out.base + at, 32, value);
                        if (touched && isnan(values[i / 3 % 3]) && !isnan(value[5]))
                            fail_msg("seed %llu, token %lld, head %u: NaN is lost",
                                     (unsigned long long)s.seed, (long long)t, h);
                    }
            }
        rig_free(&plain);
        rig_free(&strange);
    }
}

static void other_blocks_with_the_same_keys_give_the_same_bits(void **state)
{
    rig_spec s = {.name = "blocks",
                  .dtype = ATTND_DTYPE_BF16,
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .d = 64,
                  .n_seqs = 3,
                  .q_len = {1, 4, 1},
                  .kv_len = {1000, 77, 64},
                  .kinds = KER_MASK_CAUSAL,
                  .block_size = 16,
                  .seed = 260};
    rig a, b;
    rig_make(&a, &s);
    s.block_size = 128;
    s.nhd = true;
    rig_make(&b, &s);
    same_bits_everywhere(&a, &b, 0, "block size 128, NHD");
    rig_free(&b);
    s.block_size = 1;
    rig_make(&b, &s);
    same_bits_everywhere(&a, &b, 0, "block size 1");
    rig_free(&b);
    s.given = true;
    rig_make(&b, &s);
    same_bits_everywhere(&a, &b, 0, "given keys");
    rig_free(&b);
    rig_free(&a);
}

static void the_number_of_threads_changes_no_bit_of_a_plan(void **state)
{
    rig_spec s = {.name = "threads",
                  .dtype = ATTND_DTYPE_F32,
                  .n_heads = 8,
                  .n_kv_heads = 2,
                  .d = 64,
                  .n_seqs = 4,
                  .n_contexts = 1,
                  .q_len = {100, 1, 1, 1},
                  .kv_len = {300, 3000, 10, 900},
                  .kinds = KER_MASK_CAUSAL,
                  .seed = 270};
    rig a, b;
    rig_make(&a, &s);
    rig_make(&b, &s);
    ker_device *one = rig_device(NULL, 1), *five = rig_device(NULL, 5);
    for (int i = 0; i < 4; i++) {
        rig_run(&a, one, 7, NULL);
        rig_run(&b, five, 7, NULL);
        same_bits(&a, &b, "5 threads");
    }
    ker_device_close(one);
    ker_device_close(five);
    rig_free(&a);
    rig_free(&b);
}

/* Row t of a and row u of b, all heads. */
static bool same_row(const rig *a, int64_t t, const rig *b, int64_t u)
{
    const ker_rows *x = &a->problem.out, *y = &b->problem.out;
    const ker_rows *x_lse = &a->problem.lse, *y_lse = &b->problem.lse;
    bool same = true;
    for (uint32_t h = 0; h < a->spec.n_heads; h++) {
        same &= memcmp(x->base + t * x->token_stride + h * x->head_stride,
                       y->base + u * y->token_stride + h * y->head_stride,
                       a->spec.dv * rig_size(a->spec.out)) == 0;
        same &= memcmp(x_lse->base + t * x_lse->token_stride + h * x_lse->head_stride,
                       y_lse->base + u * y_lse->token_stride + h * y_lse->head_stride, 4) == 0;
    }
    return same;
}

static void a_batch_invariant_row_has_its_bits_in_any_company(void **state)
{
    rig_spec s = {.name = "alone",
                  .dtype = ATTND_DTYPE_BF16,
                  .n_heads = 8,
                  .n_kv_heads = 2,
                  .d = 64,
                  .n_seqs = 1,
                  .q_len = {1},
                  .kv_len = {5000},
                  .kinds = KER_MASK_CAUSAL,
                  .batch_invariant = true,
                  .seed = 280};
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!devices[isa])
            continue;
        rig alone;
        s.n_seqs = 1;
        rig_make(&alone, &s);
        rig_run(&alone, devices[isa], 0, NULL);
        static const uint32_t sizes[] = {2, 8, 32, 64};
        for (int n = 0; n < 4; n++) {
            rig many;
            s.n_seqs = sizes[n];
            for (uint32_t b = 1; b < s.n_seqs; b++) {
                s.q_len[b] = 1 + (int32_t)(b % 3);
                s.kv_len[b] = (int32_t)(b * 37 % 500) + 4;
            }
            rig_make(&many, &s);
            rig_run(&many, devices[isa], 0, NULL);
            assert_true(same_row(&alone, 0, &many, 0));
            rig_free(&many);
        }
        rig_free(&alone);
    }
}

/* A chunk of a context is a context: its rows keep their bits, whatever came with them. */
static void a_batch_invariant_chunk_has_the_bits_of_the_whole(void **state)
{
    rig_spec s = {.name = "chunk",
                  .dtype = ATTND_DTYPE_F32,
                  .n_heads = 4,
                  .n_kv_heads = 2,
                  .d = 32,
                  .n_seqs = 1,
                  .n_contexts = 1,
                  .q_len = {300},
                  .kv_len = {300},
                  .kinds = KER_MASK_CAUSAL,
                  .batch_invariant = true,
                  .seed = 290};
    rig whole, chunk;
    rig_make(&whole, &s);
    s.q_len[0] = 117; /* the last rows, read from the same keys */
    rig_make(&chunk, &s);
    for (int t = 0; t < 117; t++)
        memcpy(chunk.problem.q.base + t * chunk.problem.q.token_stride,
               whole.problem.q.base + (t + 183) * whole.problem.q.token_stride,
               (size_t)chunk.problem.q.token_stride);
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!devices[isa])
            continue;
        rig_run(&whole, devices[isa], 0, NULL);
        rig_run(&chunk, devices[isa], 0, NULL);
        for (int t = 0; t < 117; t++)
            assert_true(same_row(&whole, t + 183, &chunk, t));
    }
    rig_free(&whole);
    rig_free(&chunk);
}

/* ---- Structure. -------------------------------------------------------------------------------
 */

/* Equal scores and a one-hot V read the visible set: p of key j is channel j of the output. */
static void one_hot_values_show_who_sees_what(void **state)
{
    static const uint32_t kinds[] = {0, KER_MASK_CAUSAL, KER_MASK_CAUSAL | KER_MASK_WINDOW,
                                     KER_MASK_CAUSAL | KER_MASK_CHUNK, KER_MASK_VARIABLE};
    for (uint32_t i = 0; i < 10; i++) {
        rig_spec s = {.name = "one-hot",
                      .dtype = ATTND_DTYPE_F32,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .d = 16,
                      .dv = 150,
                      .n_seqs = 1,
                      .n_contexts = i / 5,
                      .q_len = {40},
                      .kv_len = {150},
                      .kinds = kinds[i % 5],
                      .window = 33,
                      .chunk = 48,
                      .seed = 300 + i};
        rig x;
        rig_make(&x, &s);
        for (int64_t j = ker_mask_lowest_key(&x.problem.mask, 40, 150); j < 150; j++) {
            memset(rig_row(&x, x.pool, 0, 0, 0, j), 0, 16 * 4);
            float hot[150] = {0};
            hot[j] = 1;
            memcpy(rig_row(&x, x.pool, 1, 0, 0, j), hot, sizeof hot);
        }
        for (int isa = 0; isa < N_ISAS; isa++)
            for (size_t row = 0; devices[isa] && row < ker_n_kernels(); row++) {
                if (!rig_serves(&x, devices[isa], row))
                    continue;
                rig_run(&x, devices[isa], i % 3, ker_kernel_at(row));
                for (int t = 0; t < 40; t++) {
                    int32_t lo, hi;
                    float got[150];
                    ker_mask_bounds(&x.problem.mask, 40, 150, t, t, &lo, &hi);
                    memcpy(got, x.problem.out.base + t * x.problem.out.token_stride, sizeof got);
                    for (int j = 0; j < 150; j++) {
                        bool sees = j >= lo && j < hi;
                        if (sees ? fabs(got[j] * (hi - lo) - 1) > 1e-6 : got[j] != 0)
                            fail_msg("seed %llu, row %d, key %d: weight %g of %d keys",
                                     (unsigned long long)s.seed, t, j, (double)got[j], hi - lo);
                    }
                }
            }
        rig_free(&x);
    }
}

/* Blocks 0 and n-1 of a pool of more than 2^31 elements, most of it never touched. */
static void offsets_past_2_31_elements_are_reached(void **state)
{
    enum { BLOCK = 16, D = 128, N_BLOCKS = 600000, STRIDE = 2 * BLOCK * D * 2 };
    ker_memory memory;
    rig_spec s = {.name = "far",
                  .dtype = ATTND_DTYPE_BF16,
                  .n_heads = 2,
                  .n_kv_heads = 1,
                  .d = D,
                  .n_seqs = 1,
                  .q_len = {2},
                  .kv_len = {32},
                  .kinds = KER_MASK_CAUSAL,
                  .append = true,
                  .seed = 310};
    rig near, far;
    assert_int_equal(ker_memory_make(devices[0], "far", (size_t)N_BLOCKS * STRIDE, &memory, NULL),
                     ATTND_OK);
    rig_make(&near, &s);
    rig_make(&far, &s);
    int32_t ids[2] = {0, N_BLOCKS - 1};
    int64_t first = 0;
    for (int n = 0; n < 2; n++)
        memcpy((char *)memory.base + (int64_t)ids[n] * STRIDE,
               near.pool + (int64_t)near.tables[n] * STRIDE, STRIDE);
    far.problem.kv.plane[0] = memory.base;
    far.problem.kv.plane[1] = (char *)memory.base + BLOCK * D * 2;
    far.problem.kv.n_blocks = N_BLOCKS;
    far.problem.batch.block_ids = ids;
    far.problem.batch.block_first = &first;
    assert_int_equal(far.problem.kv.block_stride, STRIDE);
    for (int isa = 0; isa < N_ISAS; isa++) {
        if (!devices[isa])
            continue;
        for (size_t row = 0; row < ker_n_kernels(); row++) {
            rig_run(&near, devices[isa], 0, ker_kernel_at(row));
            rig_run(&far, devices[isa], 0, ker_kernel_at(row));
            same_bits(&near, &far, isas[isa]);
        }
        assert_memory_equal((char *)memory.base + (int64_t)ids[1] * STRIDE,
                            near.pool_run + (int64_t)near.tables[1] * STRIDE, STRIDE);
    }
    rig_free(&near);
    rig_free(&far);
    ker_memory_free(devices[0], &memory);
}

static void every_row_was_run_on_every_instruction_set(void **state)
{
    for (int isa = 0; isa < N_ISAS; isa++)
        for (size_t row = 0; devices[isa] && row < ker_n_kernels(); row++)
            if (n_runs[isa][row] < 20)
                fail_msg("%s on %s ran %u times", ker_kernel_name(ker_kernel_at(row)), isas[isa],
                         n_runs[isa][row]);
}

/* One test each, so that a missing instruction set is counted as skipped. */
static void has(int isa)
{
    if (!devices[isa]) {
        print_message("# SKIP this CPU has no %s\n", isas[isa]);
        skip();
    }
    ker_device_info info;
    ker_device_describe(devices[isa], &info);
    assert_string_equal(info.isa, isas[isa]);
}

static void portable_was_forced(void **state)
{
    has(0);
}

static void avx2_was_forced(void **state)
{
    has(1);
}

static void avx512_was_forced(void **state)
{
    has(2);
}

static int open_devices(void **state)
{
    for (int isa = 0; isa < N_ISAS; isa++)
        devices[isa] = rig_device(isas[isa], 2);
    return 0;
}

static int close_devices(void **state)
{
    for (int isa = 0; isa < N_ISAS; isa++)
        ker_device_close(devices[isa]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(portable_was_forced),
        cmocka_unit_test(avx2_was_forced),
        cmocka_unit_test(avx512_was_forced),
        cmocka_unit_test(generations_of_any_length_and_type_conform),
        cmocka_unit_test(contexts_of_any_length_and_type_conform),
        cmocka_unit_test(a_mixed_batch_conforms),
        cmocka_unit_test(any_group_conforms),
        cmocka_unit_test(any_head_width_conforms),
        cmocka_unit_test(any_block_size_and_layout_conforms),
        cmocka_unit_test(types_may_differ_between_rows_pool_and_output),
        cmocka_unit_test(every_kind_of_bounds_conforms),
        cmocka_unit_test(cap_alibi_sinks_and_given_keys_conform),
        cmocka_unit_test(rope_conforms),
        cmocka_unit_test(angles_given_per_token_are_used),
        cmocka_unit_test(explicit_slots_store_or_not),
        cmocka_unit_test(bytes_no_row_sees_change_no_bit),
        cmocka_unit_test(strange_numbers_stay_in_their_rows),
        cmocka_unit_test(other_blocks_with_the_same_keys_give_the_same_bits),
        cmocka_unit_test(the_number_of_threads_changes_no_bit_of_a_plan),
        cmocka_unit_test(a_batch_invariant_row_has_its_bits_in_any_company),
        cmocka_unit_test(a_batch_invariant_chunk_has_the_bits_of_the_whole),
        cmocka_unit_test(one_hot_values_show_who_sees_what),
        cmocka_unit_test(offsets_past_2_31_elements_are_reached),
        cmocka_unit_test(every_row_was_run_on_every_instruction_set),
    };
    return cmocka_run_group_tests_name("conformance", tests, open_devices, close_devices);
}
