/* test_claims.c: a problem nobody serves is refused with every row's reason, and the reasons are
 * true: a problem that differs in nothing but what they name is served.
 */
#include "tests/kernels/rig.h"

/* One thing a problem may have that no row claims; `field` is what a reason calls it. */
typedef struct change {
    const char *field;
    void (*make)(ker_problem *p);
} change;

static const float half = 0.5f;
static char elsewhere[64];

#define CHANGES(X)                                                                                 \
    X(kind, "kind", p->kind = ATTND_LAYER_MLA)                                                     \
    X(dtype, "dtype", p->dtype = ATTND_DTYPE_E4M3)                                                 \
    X(kv, "kv.dtype", p->kv.dtype = ATTND_DTYPE_NVFP4)                                             \
    X(out, "out.dtype", p->out.dtype = ATTND_DTYPE_I32)                                            \
    X(q, "q.dtype", p->q.dtype = p->dtype == ATTND_DTYPE_F32 ? ATTND_DTYPE_F16 : ATTND_DTYPE_F32)  \
    X(head_dim, "head_dim", p->head_dim = 1u << 20)                                                \
    X(head_dim_v, "head_dim_v", p->head_dim_v = 1u << 20)                                          \
    X(mask, "mask", p->mask.kinds |= 1u << 30)                                                     \
    X(relative, "bias.relative", p->bias.relative = &half)                                         \
    X(append, "append.v", p->append.k.base = elsewhere)                                            \
    X(k_orig_quant, "quant.k_orig_quant", p->quant.k_orig_quant = 2)                               \
    X(v_orig_quant, "quant.v_orig_quant", p->quant.v_orig_quant = 2)                               \
    X(k_quant_orig, "quant.k_quant_orig", p->quant.k_quant_orig = &half)                           \
    X(v_quant_orig, "quant.v_quant_orig", p->quant.v_quant_orig = &half)                           \
    X(q_quant_orig, "quant.q_quant_orig", p->quant.q_quant_orig = 3)                               \
    X(out_orig_quant, "quant.out_orig_quant", p->quant.out_orig_quant = 3)                         \
    X(head_scales, "quant.stored_head_scales", p->quant.stored_head_scales = true)

#define X(name, field, change)                                                                     \
    static void change_##name(ker_problem *p)                                                      \
    {                                                                                              \
        change;                                                                                    \
    }
CHANGES(X)
#undef X

static const change changes[] = {
#define X(name, field, change) {field, change_##name},
    CHANGES(X)
#undef X
};

enum { N_CHANGES = sizeof changes / sizeof *changes };

static const rig_spec plain = {.name = "plain",
                               .align = 16, /* what any row asks for */
                               .n_heads = 4,
                               .n_kv_heads = 2,
                               .d = 64,
                               .n_seqs = 2,
                               .n_contexts = 1,
                               .q_len = {3, 1},
                               .kv_len = {20, 30},
                               .kinds = KER_MASK_CAUSAL,
                               .seed = 1};

/* The plain problem with the changes of a set. */
static ker_problem changed(const rig *x, uint32_t set)
{
    ker_problem p = x->problem;
    for (int i = 0; i < N_CHANGES; i++)
        if (set & 1u << i)
            changes[i].make(&p);
    return p;
}

/* Which change of the set the text starts with: "field = …: …". */
static int named(uint32_t set, const char *text)
{
    for (int i = 0; i < N_CHANGES; i++) {
        size_t n = strlen(changes[i].field);
        if (set & 1u << i && strncmp(text, changes[i].field, n) == 0 && text[n] == ' ')
            return i;
    }
    return -1;
}

/* Takes back what each refusal names, until the problem is served: nothing else stood in the way,
 * and each thing named did. */
static void takes_back(const rig *x, ker_device *device, ker_phase phase, uint32_t set)
{
    const ker_kernel *kernel;
    attnd_err err;
    while (set) {
        ker_problem p = changed(x, set);
        attnd_status status = ker_find(device, &p, phase, &kernel, &err);
        if (status == ATTND_OK)
            fail_msg("served in spite of %s", changes[__builtin_ctz(set)].field);
        assert_int_equal(err.reason, ATTND_UNSUPPORTED);
        assert_null(kernel);
        for (size_t row = 0; row < ker_n_kernels(); row++)
            if (rig_has_level(device, ker_kernel_at(row)) &&
                !strstr(err.text, ker_kernel_name(ker_kernel_at(row))) &&
                !strstr(err.text, "; and others: explain tells"))
                fail_msg("no word of %s: %s", ker_kernel_name(ker_kernel_at(row)), err.text);
        int i = named(set, err.text);
        if (i < 0)
            fail_msg("named nothing that was changed: %s", err.text);
        set &= ~(1u << i);
    }
    ker_problem p = changed(x, 0);
    assert_int_equal(ker_find(device, &p, phase, &kernel, &err), ATTND_OK);
}

static void a_refusal_names_what_stands_in_the_way(void **state)
{
    static const attnd_dtype dtypes[] = {ATTND_DTYPE_F32, ATTND_DTYPE_F16, ATTND_DTYPE_BF16};
    uint64_t random = 5;
    for (int t = 0; t < 3; t++) {
        rig_spec s = plain;
        rig x;
        s.dtype = dtypes[t];
        rig_make(&x, &s);
        EACH_DEVICE(d)
        for (int phase = 0; phase < 2; phase++) {
            for (int i = 0; i < N_CHANGES; i++)
                for (int j = i; j < N_CHANGES; j++)
                    takes_back(&x, rig_devices[d], (ker_phase)phase, 1u << i | 1u << j);
            for (int n = 0; n < 100; n++)
                takes_back(&x, rig_devices[d], (ker_phase)phase,
                           (uint32_t)rig_random(&random) & ((1u << N_CHANGES) - 1));
        }
        rig_free(&x);
    }
}

/* The verdict of one row about one change of a problem that the row serves. */
static void every_rows_own_reason_is_true(void **state)
{
    ker_verdict verdicts[64], before[64];
    rig_spec s = plain;
    rig x;
    assert_true(ker_n_kernels() <= 64);
    s.dtype = ATTND_DTYPE_BF16;
    rig_make(&x, &s);
    EACH_DEVICE(d)
    for (int phase = 0; phase < 2; phase++) {
        ker_judge(rig_devices[d], &x.problem, (ker_phase)phase, before);
        for (int i = 0; i < N_CHANGES; i++) {
            ker_problem p = changed(&x, 1u << i);
            ker_judge(rig_devices[d], &p, (ker_phase)phase, verdicts);
            for (size_t row = 0; row < ker_n_kernels(); row++) {
                if (!before[row].serves)
                    continue;
                assert_false(verdicts[row].serves);
                if (named(1u << i, verdicts[row].reason) != i)
                    fail_msg("%s, of %s: %s", ker_kernel_name(ker_kernel_at(row)), changes[i].field,
                             verdicts[row].reason);
            }
        }
    }
    rig_free(&x);
}

/* Of a row's own claims: what it leaves out it refuses, by that name. */
static void a_row_refuses_what_it_does_not_claim(void **state)
{
    static const char *const fields[] = {"bias.softcap", "bias.alibi", "bias.sinks",
                                         "mask",         "phase",      "kv.dtype"};
    for (size_t row = 0; row < ker_n_kernels(); row++) {
        ker_kernel less = *ker_kernel_at(row);
        uint32_t phase = less.rows & 1u << KER_CONTEXT ? KER_CONTEXT : KER_GENERATION;
        rig_spec s = plain;
        rig x;
        s.dtype = (attnd_dtype)__builtin_ctz(less.kv);
        s.alibi = less.extras & KER_EXTRA_ALIBI;
        s.sinks = less.extras & KER_EXTRA_SINKS;
        s.softcap = less.extras & KER_EXTRA_CAP ? 3 : 0;
        rig_make(&x, &s);
        const struct {
            uint32_t *claims, bit;
        } left_out[] = {{&less.extras, KER_EXTRA_CAP},   {&less.extras, KER_EXTRA_ALIBI},
                        {&less.extras, KER_EXTRA_SINKS}, {&less.masks, KER_MASK_CAUSAL},
                        {&less.rows, 1u << phase},       {&less.kv, 1u << s.dtype}};
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
            ker_reason reason;
            if (!(*left_out[i].claims & left_out[i].bit))
                continue;
            *left_out[i].claims &= ~left_out[i].bit;
            if (ker_kernel_serves(&less, less.needs, &x.problem, (ker_phase)phase, &reason))
                fail_msg("%s serves without %s", less.name, fields[i]);
            if (strncmp(reason.subject, fields[i], strlen(fields[i])) != 0)
                fail_msg("%s without %s: %s: %s", less.name, fields[i], reason.subject,
                         reason.wants);
            *left_out[i].claims |= left_out[i].bit;
            if (!ker_kernel_serves(&less, less.needs, &x.problem, (ker_phase)phase, &reason))
                fail_msg("%s: %s: %s", less.name, reason.subject, reason.wants);
        }
        rig_free(&x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_names_what_stands_in_the_way),
        cmocka_unit_test(every_rows_own_reason_is_true),
        cmocka_unit_test(a_row_refuses_what_it_does_not_claim),
    };
    return cmocka_run_group_tests_name("claims", tests, rig_open_devices, rig_close_devices);
}
