/* test_probes.c: what no tolerance hides (attention.md §1.1, §22.6): who sees what, and what must
 * not change a bit.
 *
 * Every probe runs on every device with every row of the table that serves it.
 */
#include "tests/kernels/rig.h"
#include "tests/support/oom.h"

OOM_INTERPOSE

static const attnd_dtype dtypes[] = {ATTND_DTYPE_F32, ATTND_DTYPE_F16, ATTND_DTYPE_BF16};

/* Every device and row that serves the rig. */
#define EACH_SERVING(i, row, x)                                                                    \
    EACH_ROW(i, row)                                                                               \
    if (rig_serves(x, rig_devices[i], ker_kernel_at(row)))

static const char *at(int device, size_t row, const char *what)
{
    static char text[160];
    snprintf(text, sizeof text, "%s on %s, %s", ker_kernel_name(ker_kernel_at(row)),
             rig_device_names[device], what);
    return text;
}

/* Runs both and compares their bits. */
static void same_bits_everywhere(rig *a, rig *b, uint32_t n_splits, const char *what)
{
    EACH_SERVING(i, row, a)
    {
        rig_run(a, rig_devices[i], n_splits, ker_kernel_at(row));
        rig_run(b, rig_devices[i], n_splits, ker_kernel_at(row));
        rig_same_bits(a, b, at(i, row, what));
    }
}

/* ---- Who sees what. ---------------------------------------------------------------------------
 */

/* attention.md §6, word by word. */
static bool sees(const rig *x, uint32_t b, int32_t i, int64_t j)
{
    const rig_spec *s = &x->spec;
    int64_t t = x->q_first[b] + i, a = (int64_t)s->kv_len[b] - s->q_len[b] + i;
    if (s->kinds & KER_MASK_VARIABLE)
        return j >= x->start[t] && j <= x->end[t];
    return (!(s->kinds & KER_MASK_CAUSAL) || j <= a) &&
           (!(s->kinds & KER_MASK_WINDOW) || j >= a - s->window + 1) &&
           (!(s->kinds & KER_MASK_CHUNK) || j >= s->chunk * (int64_t)floor((double)a / s->chunk));
}

/* K = 0 and V one-hot: channel j of the output is the weight of key j, 1/n or bitwise 0. */
static void probe(const rig_spec *s)
{
    rig x;
    rig_make(&x, s);
    for (uint32_t b = 0; b < s->n_seqs; b++)
        for (int64_t j = ker_mask_lowest_key(&x.problem.mask, s->q_len[b], s->kv_len[b]);
             j < s->kv_len[b]; j++) {
            rig_set_key(&x, b, j, 0);
            for (uint32_t g = 0; g < s->n_kv_heads; g++)
                rig_fill(rig_key(&x, x.given, 1, g, b, j) + 4 * j, 4, ATTND_DTYPE_F32, 1);
        }
    EACH_SERVING(d, row, &x)
    {
        rig_run(&x, rig_devices[d], (uint32_t)(s->seed % 4), ker_kernel_at(row));
        for (uint32_t b = 0; b < s->n_seqs; b++)
            for (int32_t i = 0; i < s->q_len[b]; i++) {
                int n = 0;
                for (int64_t j = 0; j < s->kv_len[b]; j++)
                    n += sees(&x, b, i, j);
                for (int64_t j = 0; j < s->dv; j++) {
                    float got;
                    memcpy(&got,
                           rig_token(&x, x.got, &x.problem.out, x.q_first[b] + i, s->n_heads - 1) +
                               4 * j,
                           4);
                    bool seen = j < s->kv_len[b] && sees(&x, b, i, j);
                    if (seen ? fabs((double)got * n - 1) > 1e-6 : got != 0)
                        fail_msg("%s: seed %llu, sequence %u, row %d, key %lld: weight %g of %d "
                                 "keys",
                                 at(d, row, s->name), (unsigned long long)s->seed, b, i,
                                 (long long)j, (double)got, n);
                }
                double lse = rig_lse_at(&x, x.q_first[b] + i, 0);
                assert_true(n ? fabs(lse - log(n)) < 1e-4 : lse == -INFINITY);
            }
    }
    rig_free(&x);
}

static void one_hot_values_show_who_sees_what(void **state)
{
    static const int32_t windows[] = {1, 7, 64, 65, 1000};
    static const int32_t chunks[] = {1, 16, 48, 64, 1000};
    static const uint32_t sizes[] = {16, 1, 64, 4};
    uint64_t seed = 300;
    for (uint32_t kinds = 0; kinds <= KER_MASK_BOUNDS; kinds++) {
        if (kinds & KER_MASK_VARIABLE && kinds != KER_MASK_VARIABLE)
            continue;
        bool has_numbers = kinds & (KER_MASK_WINDOW | KER_MASK_CHUNK);
        for (int n = 0; n < (has_numbers ? 5 : 2); n++, seed++) {
            rig_spec s = {.name = "one-hot",
                          .dtype = ATTND_DTYPE_F32,
                          .n_heads = 2,
                          .n_kv_heads = 1,
                          .d = 16,
                          .dv = 152,
                          .block_size = sizes[seed % 4],
                          .nhd = seed & 1,
                          .given = seed % 5 == 4,
                          .n_seqs = 4,
                          .n_contexts = (uint32_t)(seed % 3) * 2,
                          .q_len = {40, 5, 3, 1},
                          .kv_len = {150, 3, 130, 65},
                          .kinds = kinds,
                          .window = windows[n],
                          .chunk = chunks[(n + seed) % 5],
                          .poison = POISON_NAN,
                          .seed = seed};
            if (s.n_contexts < 2)
                s.kv_len[1] = 5; /* a generation sees its own tokens */
            probe(&s);
        }
    }
}

/* ---- What must not change a bit. --------------------------------------------------------------
 */

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

static const rig_spec some_keys = {.name = "blocks",
                                   .dtype = ATTND_DTYPE_BF16,
                                   .n_heads = 4,
                                   .n_kv_heads = 2,
                                   .d = 64,
                                   .n_seqs = 4,
                                   .n_contexts = 1,
                                   .q_len = {50, 1, 4, 1},
                                   .kv_len = {300, 1000, 77, 64},
                                   .kinds = KER_MASK_CAUSAL,
                                   .block_size = 16,
                                   .seed = 260};

static void blocks_in_another_order_give_the_same_bits(void **state)
{
    rig a, b;
    rig_spec s = some_keys;
    rig_make(&a, &s);
    for (s.order = 1; s.order <= 3; s.order++) {
        rig_make(&b, &s);
        assert_memory_not_equal(a.tables, b.tables, 64);
        same_bits_everywhere(&a, &b, (uint32_t)s.order, "another order of the blocks");
        rig_free(&b);
    }
    rig_free(&a);
}

/* Within the gate on every device; to the bit where one body reads every layout. */
static void other_blocks_and_layouts_give_the_same_rows(void **state)
{
    rig a, b;
    rig_make(&a, &some_keys);
    rig_judge(&a);
    for (uint32_t i = 0; i < 6; i++) {
        static const uint32_t sizes[] = {1, 128, 1024, 16, 4, 16};
        rig_spec s = some_keys;
        s.block_size = sizes[i];
        s.nhd = i & 1;
        s.gapped = i & 2;
        s.given = i == 5;
        s.rows = (rig_rows)(i % N_ROWS_LAYOUTS);
        rig_make(&b, &s);
        rig_judge(&b);
        EACH_SERVING(d, row, &a)
        {
            rig_run(&a, rig_devices[d], i % 4, ker_kernel_at(row));
            rig_run(&b, rig_devices[d], i % 4, ker_kernel_at(row));
            rig_check(&a, at(d, row, "as it was"));
            rig_check(&b, at(d, row, "another layout"));
            ker_device_info info;
            ker_device_describe(rig_devices[d], &info);
            if (strcmp(info.backend, "cpu") == 0)
                rig_same_bits(&a, &b, at(d, row, "another layout"));
        }
        rig_free(&b);
    }
    rig_free(&a);
}

static void a_window_as_long_as_the_keys_is_none(void **state)
{
    rig a, b;
    rig_spec s = some_keys;
    rig_make(&a, &s);
    s.kinds |= KER_MASK_WINDOW;
    s.window = 1000;
    rig_make(&b, &s);
    same_bits_everywhere(&a, &b, 0, "a window of all keys");
    rig_free(&a);
    rig_free(&b);
}

/* What a run stored, run again over it: the same bytes, the same bits. */
static void the_same_call_again_changes_nothing(void **state)
{
    rig_spec s = some_keys;
    s.append = true;
    s.rope = ATTND_ROPE_NEOX;
    s.rope_dim = 32;
    rig a, b;
    rig_make(&a, &s);
    rig_make(&b, &s);
    EACH_SERVING(d, row, &a)
    {
        rig_run(&a, rig_devices[d], 3, ker_kernel_at(row));
        memcpy(b.given + RIG_EDGE, a.got + RIG_EDGE, a.pool_bytes);
        rig_run(&b, rig_devices[d], 3, ker_kernel_at(row));
        assert_memory_equal(b.got + RIG_EDGE, a.got + RIG_EDGE, a.pool_bytes);
        rig_same_bits(&a, &b, at(d, row, "again"));
    }
    rig_free(&a);
    rig_free(&b);
}

static void repeats_and_threads_change_no_bit_of_a_plan(void **state)
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
    ker_device *one = rig_device(NULL, 1), *five = rig_device(NULL, 5);
    rig a, b;
    rig_make(&a, &s);
    rig_make(&b, &s);
    for (size_t row = 0; row < ker_n_kernels(); row++) {
        if (!rig_serves(&a, one, ker_kernel_at(row)))
            continue;
        rig_run(&a, one, 7, ker_kernel_at(row));
        for (int i = 0; i < 5; i++) {
            rig_run(&b, five, 7, ker_kernel_at(row));
            rig_same_bits(&a, &b, "5 threads");
        }
    }
    rig_free(&a);
    rig_free(&b);
    ker_device_close(one);
    ker_device_close(five);
}

/* ---- Company. ---------------------------------------------------------------------------------
 */

/* Sequence b of one rig becomes sequence c of another: keys and queries. */
static void copy_sequence(const rig *from, uint32_t b, rig *to, uint32_t c)
{
    const rig_spec *s = &from->spec;
    size_t size = rig_size(s->kv);
    for (int64_t j = 0; j < s->kv_len[b]; j++)
        for (uint32_t g = 0; g < s->n_kv_heads; g++)
            for (int plane = 0; plane < 2; plane++)
                memcpy(rig_key(to, to->given, plane, g, c, j),
                       rig_key(from, from->given, plane, g, b, j), s->d * size);
    for (int32_t i = 0; i < s->q_len[b]; i++)
        for (uint32_t h = 0; h < s->n_heads; h++)
            memcpy(rig_token(to, to->given, &to->problem.q, to->q_first[c] + i, h),
                   rig_token(from, from->given, &from->problem.q, from->q_first[b] + i, h),
                   s->d * size);
}

/* Row i of sequence b and row k of sequence c, all heads. */
static bool same_row(const rig *a, uint32_t b, int32_t i, const rig *o, uint32_t c, int32_t k)
{
    int64_t t = a->q_first[b] + i, u = o->q_first[c] + k;
    bool same = true;
    for (uint32_t h = 0; h < a->spec.n_heads; h++)
        same &= memcmp(rig_token(a, a->got, &a->problem.out, t, h),
                       rig_token(o, o->got, &o->problem.out, u, h),
                       a->spec.dv * rig_size(a->spec.out)) == 0 &&
                memcmp(rig_token(a, a->got, &a->problem.lse, t, h),
                       rig_token(o, o->got, &o->problem.lse, u, h), 4) == 0;
    return same;
}

/* Alone, then first, last and between in larger batches: near the oracle in each, and with
 * batch_invariant the same bits. */
static void a_row_in_any_company(void **state)
{
    static const struct {
        uint32_t n, at;
    } batches[] = {{2, 1}, {8, 0}, {32, 17}, {64, 63}};
    for (uint32_t i = 0; i < 8; i++) {
        bool is_context = i & 1, invariant = i & 2;
        rig_spec s = {.name = "alone",
                      .dtype = i & 4 ? ATTND_DTYPE_F32 : ATTND_DTYPE_BF16,
                      .n_heads = 8,
                      .n_kv_heads = 2,
                      .d = 64,
                      .n_seqs = 1,
                      .n_contexts = is_context,
                      .q_len = {is_context ? 70 : 3},
                      .kv_len = {is_context ? 200 : 2300},
                      .kinds = KER_MASK_CAUSAL,
                      .batch_invariant = invariant,
                      .seed = 280 + i};
        rig alone, many;
        rig_make(&alone, &s);
        rig_judge(&alone);
        for (int n = 0; n < 4; n++) {
            rig_spec m = s;
            m.n_seqs = batches[n].n;
            for (uint32_t b = 0; b < m.n_seqs; b++) {
                m.q_len[b] = b == batches[n].at ? s.q_len[0] : 1 + (int32_t)(b % 3);
                m.kv_len[b] = b == batches[n].at ? s.kv_len[0] : (int32_t)(b * 37 % 90) + 4;
            }
            m.n_contexts = is_context ? batches[n].at + 1 : batches[n].at;
            rig_make(&many, &m);
            copy_sequence(&alone, 0, &many, batches[n].at);
            rig_judge(&many);
            EACH_DEVICE(d)
            {
                rig_run(&alone, rig_devices[d], 0, NULL);
                rig_check(&alone, "alone");
                rig_run(&many, rig_devices[d], 0, NULL);
                rig_check(&many, "in company");
                for (int32_t r = 0; invariant && r < s.q_len[0]; r++)
                    if (!same_row(&alone, 0, r, &many, batches[n].at, r))
                        fail_msg("seed %llu: row %d has other bits as sequence %u of %u",
                                 (unsigned long long)s.seed, r, batches[n].at, m.n_seqs);
            }
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
        for (uint32_t h = 0; h < 4; h++)
            memcpy(rig_token(&chunk, chunk.given, &chunk.problem.q, t, h),
                   rig_token(&whole, whole.given, &whole.problem.q, t + 183, h), 32 * 4);
    EACH_DEVICE(d)
    {
        rig_run(&whole, rig_devices[d], 0, NULL);
        rig_run(&chunk, rig_devices[d], 0, NULL);
        for (int t = 0; t < 117; t++)
            assert_true(same_row(&whole, 0, t + 183, &chunk, 0, t));
    }
    rig_free(&whole);
    rig_free(&chunk);
}

/* ---- Edges of attention.md §1.1. --------------------------------------------------------------
 */

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
        double value = values[i / 3 % 3];
        rig_make(&plain, &s);
        rig_make(&strange, &s);
        size_t size = rig_size(s.dtype);
        /* Key 85 of sequence 0, kv head 1, is seen by its rows 15 .. 29; q of its row 3, head 0. */
        rig_fill(rig_key(&strange, strange.given, (int)(i & 1), 1, 0, 85) + 5 * size, size, s.dtype,
                 value);
        rig_fill(rig_token(&strange, strange.given, &strange.problem.q, 3, 0) + 2 * size, size,
                 s.dtype, value);
        EACH_SERVING(d, row, &plain)
        {
            rig_run(&plain, rig_devices[d], 2, ker_kernel_at(row));
            rig_run(&strange, rig_devices[d], 2, ker_kernel_at(row));
            for (int64_t t = 0; t < plain.n_tokens; t++)
                for (uint32_t h = 0; h < 4; h++) {
                    bool touched = (t == 3 && h == 0) || (t >= 15 && t < 30 && h >= 2);
                    if (!touched &&
                        memcmp(rig_token(&plain, plain.got, &plain.problem.out, t, h),
                               rig_token(&strange, strange.got, &strange.problem.out, t, h),
                               s.d * size) != 0)
                        fail_msg("%s: seed %llu, token %lld, head %u: another row's NaN or Inf",
                                 at(d, row, s.name), (unsigned long long)s.seed, (long long)t, h);
                    if (touched && isnan(value) && !isnan(rig_out_at(&strange, t, h, 5)))
                        fail_msg("%s: seed %llu, token %lld, head %u: NaN is lost",
                                 at(d, row, s.name), (unsigned long long)s.seed, (long long)t, h);
                }
        }
        rig_free(&plain);
        rig_free(&strange);
    }
}

static void infinite_sinks_are_none_or_all(void **state)
{
    rig none, low, high;
    rig_spec s = some_keys;
    rig_make(&none, &s);
    s.sinks = true;
    rig_make(&low, &s);
    rig_make(&high, &s);
    for (uint32_t h = 0; h < s.n_heads; h++) {
        low.sinks[h] = -INFINITY;
        high.sinks[h] = INFINITY;
    }
    for (uint32_t n = 0; n < 4; n += 3) {
        same_bits_everywhere(&none, &low, n, "sinks of -inf");
        EACH_SERVING(d, row, &none)
        {
            rig_run(&none, rig_devices[d], n, ker_kernel_at(row));
            rig_run(&high, rig_devices[d], n, ker_kernel_at(row));
            for (int64_t t = 0; t < high.n_tokens; t++)
                for (uint32_t h = 0; h < s.n_heads; h++) {
                    assert_true(rig_lse_at(&high, t, h) == rig_lse_at(&none, t, h));
                    for (uint32_t c = 0; c < s.d; c++)
                        assert_true(rig_out_at(&high, t, h, c) == 0);
                }
        }
    }
    rig_free(&none);
    rig_free(&low);
    rig_free(&high);
}

/* Every score is -inf: as if the row saw nothing. */
static void scores_of_minus_infinity_are_no_keys(void **state)
{
    rig_spec s = some_keys;
    rig x;
    rig_make(&x, &s);
    for (uint32_t b = 0; b < s.n_seqs; b++)
        for (int64_t j = 0; j < s.kv_len[b]; j++)
            for (uint32_t g = 0; g < s.n_kv_heads; g++)
                rig_fill(rig_key(&x, x.given, 0, g, b, j), 2, s.dtype, -INFINITY);
    for (int64_t t = 0; t < x.n_tokens; t++)
        for (uint32_t h = 0; h < s.n_heads; h++)
            rig_fill(rig_token(&x, x.given, &x.problem.q, t, h), 2, s.dtype, 1);
    rig_judge(&x);
    EACH_SERVING(d, row, &x)
    for (uint32_t n = 0; n < 4; n += 3) {
        rig_run(&x, rig_devices[d], n, ker_kernel_at(row));
        rig_check(&x, at(d, row, "scores of -inf"));
        assert_true(rig_lse_at(&x, 0, 0) == -INFINITY && rig_out_at(&x, 0, 0, 0) == 0);
    }
    rig_free(&x);
}

/* ---- Memory. ----------------------------------------------------------------------------------
 */

static void a_launch_allocates_nothing(void **state)
{
    EACH_DEVICE(d)
    if (strcmp(rig_device_names[d], "cuda") == 0) {
        print_message("# SKIP a GPU's driver allocates at any time, and is not told from ours\n");
        skip();
    }
    rig_spec s = some_keys;
    s.append = true;
    s.rope = ATTND_ROPE_GPTJ;
    s.rope_dim = 64;
    s.softcap = 30;
    s.alibi = s.sinks = true;
    rig x;
    rig_make(&x, &s);
    EACH_SERVING(d, row, &x)
    for (uint32_t n = 0; n < 4; n += 3) {
        void *memory;
        ker_stream *stream;
        rig_wait wait;
        rig_put(&x, rig_devices[d]);
        ker_plan *plan = rig_plan(rig_devices[d], &x.problem, n, &memory);
        for (int phase = 0; phase < 2; phase++)
            if (ker_kernel_at(row)->rows & 1u << phase)
                plan->part[phase].kernel = ker_kernel_at(row);
        assert_int_equal(ker_stream_open(rig_devices[d], &stream, NULL), ATTND_OK);
        oom_watch();
        for (int i = 0; i < 5; i++) {
            rig_launch(rig_devices[d], stream, plan, &wait);
            rig_join(&wait);
        }
        assert_int_equal(oom_watched(), 0);
        ker_stream_close(stream);
        free(memory);
    }
    rig_free(&x);
}

/* That the count counts. */
static void allocations_are_counted(void **state)
{
    oom_watch();
    char *volatile memory = malloc(10);
    free(memory);
    assert_int_equal(oom_watched(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_hot_values_show_who_sees_what),
        cmocka_unit_test(bytes_no_row_sees_change_no_bit),
        cmocka_unit_test(blocks_in_another_order_give_the_same_bits),
        cmocka_unit_test(other_blocks_and_layouts_give_the_same_rows),
        cmocka_unit_test(a_window_as_long_as_the_keys_is_none),
        cmocka_unit_test(the_same_call_again_changes_nothing),
        cmocka_unit_test(repeats_and_threads_change_no_bit_of_a_plan),
        cmocka_unit_test(a_row_in_any_company),
        cmocka_unit_test(a_batch_invariant_chunk_has_the_bits_of_the_whole),
        cmocka_unit_test(strange_numbers_stay_in_their_rows),
        cmocka_unit_test(infinite_sinks_are_none_or_all),
        cmocka_unit_test(scores_of_minus_infinity_are_no_keys),
        cmocka_unit_test(a_launch_allocates_nothing),
        cmocka_unit_test(allocations_are_counted),
    };
    return cmocka_run_group_tests_name("probes", tests, rig_open_devices, rig_close_devices);
}
