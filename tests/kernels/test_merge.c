/* test_merge.c: results over disjoint keys, merged on every device, against the oracle
 * (attention.md §12).
 *
 * The reference takes the parts as they are stored, so nothing but fp32 arithmetic and the rounding
 * of the output may differ.
 */
#include "tests/kernels/cover.h"
#include "tests/kernels/rig.h"

enum { MAX_PARTS = 40 };

typedef struct merge_spec {
    int64_t n_tokens;
    uint32_t n_heads, width, n_parts;
    attnd_dtype part, out;
    bool by_lse;     /* parts give LSE, not (m, l) */
    uint32_t n_full; /* only so many parts of a row saw a key; 0: about three of four */
    bool none;       /* no part did */
    uint64_t seed;
} merge_spec;

/* Parts and results as one image, as given and as it came back. */
typedef struct merging {
    merge_spec spec;
    ker_merge_part parts[MAX_PARTS];
    ker_merge_problem problem;
    char *given, *got;
    size_t bytes;
    ora_result want;
    double *m, *l, *o; /* of one row's parts */
} merging;

static char *row_at(const merging *x, char *image, const ker_rows *rows, int64_t t, uint32_t h)
{
    return image + (intptr_t)rows->base + t * rows->token_stride + h * rows->head_stride;
}

/* Rows at an offset of the image, with gaps of canaries. */
static ker_rows place(merging *x, attnd_dtype dtype, uint32_t width)
{
    int64_t size = (int64_t)rig_size(dtype), head = width * size + 3 * size;
    ker_rows rows = {(char *)(uintptr_t)x->bytes, x->spec.n_heads * head + 64, head, dtype};
    x->bytes += (size_t)(x->spec.n_tokens * rows.token_stride + RIG_EDGE);
    x->bytes = (x->bytes + 63) / 64 * 64;
    return rows;
}

/* One row of one part: what it holds, and what the oracle is told. */
static void fill_part(merging *x, uint32_t i, int64_t t, uint32_t h, uint64_t *random)
{
    const merge_spec *s = &x->spec;
    const ker_merge_part *part = &x->parts[i];
    bool sees = s->n_full ? (i + (uint64_t)t + h) % s->n_parts < s->n_full
                          : !s->none && rig_random(random) % 4 > 0;
    float pair[2] = {(float)(rig_random(random) % 1000) / 100 - 5,
                     s->by_lse ? 1 : (float)(rig_random(random) % 1000) / 300 + 0.3f};
    char *out = row_at(x, x->given, &part->out, t, h);
    if (!sees) {
        /* An m of its own must not matter where l says that nothing was seen. */
        pair[0] = s->by_lse || rig_random(random) % 2 ? -INFINITY : 80;
        pair[1] = s->by_lse ? 1 : 0;
        rig_fill(out, s->width * rig_size(s->part), s->part, NAN);
    } else {
        ora_generate(s->seed, "part", ((uint64_t)t * s->n_heads + h) * s->width + 1000003u * i,
                     s->width, 1, s->part, out);
    }
    memcpy(row_at(x, x->given, s->by_lse ? &part->lse : &part->stats, t, h), pair,
           s->by_lse ? 4 : 8);
    x->m[i] = sees ? (double)pair[0] : -INFINITY;
    x->l[i] = sees ? (double)pair[1] : 0;
    ora_decode(s->part, out, s->width, x->o + (size_t)i * s->width);
}

/* The oracle's row, from x->m, l and o. */
static void want_row(merging *x, int64_t t, uint32_t h)
{
    const merge_spec *s = &x->spec;
    size_t row = (size_t)t * s->n_heads + h;
    ora_merge(s->n_parts, x->m, x->l, x->o, s->width, &x->want.m[row], &x->want.l[row],
              x->want.out + row * s->width);
    x->want.lse[row] = x->want.m[row] + log(x->want.l[row]);
    x->want.n_visible[row] = 2;
    x->want.vmax[row] = 0;
    for (uint32_t i = 0; i < s->n_parts; i++)
        for (uint32_t d = 0; x->l[i] > 0 && d < s->width; d++)
            x->want.vmax[row] = fmax(x->want.vmax[row], fabs(x->o[(size_t)i * s->width + d]));
}

static void make(merging *x, const merge_spec *s)
{
    *x = (merging){.spec = *s, .bytes = RIG_EDGE};
    for (uint32_t i = 0; i < s->n_parts; i++) {
        x->parts[i].out = place(x, s->part, s->width);
        if (s->by_lse)
            x->parts[i].lse = place(x, ATTND_DTYPE_F32, 1);
        else
            x->parts[i].stats = place(x, ATTND_DTYPE_F32, 2);
    }
    x->problem = (ker_merge_problem){.n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .width = s->width,
                                     .parts = x->parts,
                                     .n_parts = s->n_parts,
                                     .out = place(x, s->out, s->width),
                                     .lse = place(x, ATTND_DTYPE_F32, 1),
                                     .stats = place(x, ATTND_DTYPE_F32, 2)};
    size_t rows = (size_t)s->n_tokens * s->n_heads;
    x->given = malloc(x->bytes);
    x->got = malloc(x->bytes);
    x->want = (ora_result){.n_tokens = s->n_tokens, .n_heads = s->n_heads, .head_dim_v = s->width};
    x->want.memory = calloc(rows * (s->width + 4), sizeof(double));
    x->want.n_visible = calloc(rows, sizeof *x->want.n_visible);
    x->m = calloc(MAX_PARTS, sizeof *x->m);
    x->l = calloc(MAX_PARTS, sizeof *x->l);
    x->o = calloc((size_t)MAX_PARTS * s->width, sizeof *x->o);
    assert_true(x->given && x->got && x->want.memory && x->want.n_visible && x->m && x->l && x->o);
    x->want.out = x->want.memory;
    x->want.lse = x->want.out + rows * s->width;
    x->want.m = x->want.lse + rows;
    x->want.l = x->want.m + rows;
    x->want.vmax = x->want.l + rows;
    memset(x->given, RIG_CANARY, x->bytes);
    uint64_t random = s->seed;
    for (int64_t t = 0; t < s->n_tokens; t++)
        for (uint32_t h = 0; h < s->n_heads; h++) {
            for (uint32_t i = 0; i < s->n_parts; i++)
                fill_part(x, i, t, h, &random);
            want_row(x, t, h);
        }
}

static void unmake(merging *x)
{
    free(x->given);
    free(x->got);
    free(x->m);
    free(x->l);
    free(x->o);
    ora_result_fini(&x->want);
}

/* On a device and back. */
static void run(merging *x, ker_device *device)
{
    ker_memory memory;
    ker_stream *stream;
    ker_merge_problem p = x->problem;
    ker_merge_part parts[MAX_PARTS];
    rig_alloc(device, "merge", x->bytes, &memory);
    rig_upload(device, memory.base, x->given, x->bytes);
    ker_rows *there[3 + 3 * MAX_PARTS] = {&p.out, &p.lse, &p.stats};
    size_t n = 3;
    for (uint32_t i = 0; i < p.n_parts; i++) {
        parts[i] = x->parts[i];
        there[n++] = &parts[i].out;
        there[n++] = x->spec.by_lse ? &parts[i].lse : &parts[i].stats;
    }
    while (n-- > 0)
        there[n]->base = (char *)memory.base + (intptr_t)there[n]->base;
    p.parts = parts;
    rig_wait wait = {.ticket.done = rig_done};
    pthread_mutex_init(&wait.lock, NULL);
    pthread_cond_init(&wait.rang, NULL);
    assert_int_equal(ker_stream_open(device, &stream, NULL), ATTND_OK);
    ker_launch_merge(device, stream, &p, &wait.ticket);
    rig_join(&wait);
    ker_stream_close(stream);
    rig_download(device, x->got, memory.base, x->bytes);
    ker_memory_free(device, &memory);
}

static ora_rows got_rows(merging *x, const ker_rows *rows)
{
    return (ora_rows){row_at(x, x->got, rows, 0, 0), rows->token_stride, rows->head_stride,
                      rows->dtype};
}

static void check(merging *x, int device)
{
    const merge_spec *s = &x->spec;
    const ker_merge_problem *p = &x->problem;
    near_report report;
    near_path path = near_path_for(s->out, s->out, s->out);
    ora_rows out = got_rows(x, &p->out), lse = got_rows(x, &p->lse), stats = got_rows(x, &p->stats);
    near_backend backend = strcmp(rig_device_names[device], "cuda") == 0 ? NEAR_GPU : NEAR_CPU;
    if (!near_out(&out, &x->want, path, 1, false, &report) ||
        !near_lse(&lse, &x->want, backend, &report) ||
        !near_stats(&stats, &x->want, backend, &report))
        fail_msg("%s, seed %llu: %s", rig_device_names[device], (unsigned long long)s->seed,
                 report.text);
    /* What is left once the results are taken back is what was given. */
    const struct {
        const ker_rows *rows;
        size_t bytes;
    } results[] = {{&p->out, s->width * rig_size(s->out)}, {&p->lse, 4}, {&p->stats, 8}};
    for (int i = 0; i < 3; i++)
        for (int64_t t = 0; t < s->n_tokens; t++)
            for (uint32_t h = 0; h < s->n_heads; h++)
                memcpy(row_at(x, x->got, results[i].rows, t, h),
                       row_at(x, x->given, results[i].rows, t, h), results[i].bytes);
    assert_memory_equal(x->got, x->given, x->bytes);
}

static void merges_conform(void **state)
{
    static const attnd_dtype dtypes[] = {ATTND_DTYPE_F32, ATTND_DTYPE_F16, ATTND_DTYPE_BF16};
    static const uint32_t parts[] = {1, 2, 3, 8, MAX_PARTS}, heads[] = {1, 5, 24},
                          widths[] = {1, 7, 64, 96, 192, 1024}, tokens[] = {1, 3, 20},
                          full[] = {0, 1, 2};
    const cover c = {.n_factors = 8, .n_levels = {5, 3, 6, 3, 3, 3, 2, 3}};
    cover_rows rows = cover_make(&c, 1);
    for (size_t n = 0; n < rows.n; n++) {
        const int *at = rows.row[n];
        merge_spec s = {.n_parts = parts[at[0]],
                        .n_heads = heads[at[1]],
                        .width = widths[at[2]],
                        .n_tokens = tokens[at[3]],
                        .part = dtypes[at[4]],
                        .out = dtypes[at[5]],
                        .by_lse = at[6],
                        .n_full = full[at[7]],
                        .seed = 500 + n};
        merging x;
        make(&x, &s);
        EACH_DEVICE(i)
        {
            run(&x, rig_devices[i]);
            check(&x, i);
        }
        unmake(&x);
    }
    cover_free(&rows);
}

/* B089: nobody saw a key. */
static void parts_of_nothing_merge_to_nothing(void **state)
{
    for (int by_lse = 0; by_lse < 2; by_lse++) {
        merge_spec s = {.n_parts = 4,
                        .n_heads = 2,
                        .width = 64,
                        .n_tokens = 3,
                        .part = ATTND_DTYPE_BF16,
                        .out = ATTND_DTYPE_BF16,
                        .by_lse = by_lse,
                        .none = true,
                        .seed = 89};
        merging x;
        make(&x, &s);
        assert_true(x.want.lse[0] == -INFINITY);
        EACH_DEVICE(i)
        {
            run(&x, rig_devices[i]);
            check(&x, i);
        }
        unmake(&x);
    }
}

/* B089: exactly one did, and its bits are the result's. B019: the same again, always. */
static void one_part_that_saw_keys_keeps_its_bits(void **state)
{
    for (uint32_t n = 0; n < 8; n++) {
        merge_spec s = {.n_parts = n & 1 ? 4 : MAX_PARTS,
                        .n_heads = 5,
                        .width = 192,
                        .n_tokens = 3,
                        .part = n & 2 ? ATTND_DTYPE_F32 : ATTND_DTYPE_F16,
                        .by_lse = n & 4,
                        .n_full = 1,
                        .seed = 19 + n};
        s.out = s.part;
        merging x;
        make(&x, &s);
        EACH_DEVICE(i)
        for (int times = 0; times < 10; times++) {
            run(&x, rig_devices[i]);
            for (int64_t t = 0; t < s.n_tokens; t++)
                for (uint32_t h = 0; h < s.n_heads; h++) {
                    uint32_t full =
                        (uint32_t)(s.n_parts - ((uint64_t)t + h) % s.n_parts) % s.n_parts;
                    assert_memory_equal(row_at(&x, x.got, &x.problem.out, t, h),
                                        row_at(&x, x.given, &x.parts[full].out, t, h),
                                        s.width * rig_size(s.part));
                }
        }
        unmake(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_conform),
        cmocka_unit_test(parts_of_nothing_merge_to_nothing),
        cmocka_unit_test(one_part_that_saw_keys_keeps_its_bits),
    };
    return cmocka_run_group_tests_name("merge", tests, rig_open_devices, rig_close_devices);
}
