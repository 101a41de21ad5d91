/* test_conformance.c: every row of kernels.def, on every device of this machine, against the oracle
 * at the gates of attention.md §22; and rows that lie are found out.
 *
 *   test_conformance [--kernel NAME] [--seed S] [--arrays N] [--case I]
 *
 * The problems are those of conform.h. --arrays runs so many covering arrays, of seeds S, S+1, …
 */
#include <getopt.h>

#include "tests/kernels/conform.h"

static struct {
    const char *kernel;
    uint64_t seed;
    long only;
    int n_arrays;
} options = {.seed = 1, .only = -1, .n_arrays = 1};

#define MAX_KERNELS 64
static conform_table tables[MAX_KERNELS][RIG_N_DEVICES];

static void conforms(void **state)
{
    size_t row = (size_t)*state;
    char text[CONFORM_TEXT];
    conform c;
    conform_make(&c, ker_kernel_at(row));
    for (int i = 0; i < options.n_arrays; i++)
        if (!conform_run(&c, options.seed + (uint64_t)i, options.only, tables[row], text))
            fail_msg("%s", text);
    EACH_DEVICE(i)
    if (rig_has_level(rig_devices[i], c.kernel) && tables[row][i].n_runs == 0)
        fail_msg("%s was not run on %s", c.kernel->name, rig_device_names[i]);
}

/* ---- Rows that claim what they do not do. -----------------------------------------------------
 */

/* What a liar's body leaves out of the problem it is given. Written by the test alone, while
 * nothing runs. */
static const ker_kernel *honest;
static void (*lie)(ker_problem *p);

static void run_lying(ker_worker *worker, const ker_plan *plan, const ker_item *item,
                      char *workspace)
{
    ker_plan other = *plan;
    lie(&other.problem);
    honest->run.item(worker, &other, item, workspace);
}

static void scale_off_by_a_tenth(ker_problem *p)
{
    p->sm_scale *= 1.1f;
}

static void no_causal(ker_problem *p)
{
    p->mask.kinds &= ~(uint32_t)KER_MASK_CAUSAL;
}

static void window_without_own_key(ker_problem *p)
{
    p->mask.window += 1;
}

static void no_chunk(ker_problem *p)
{
    p->mask.kinds &= ~(uint32_t)KER_MASK_CHUNK;
}

static void variable_as_full(ker_problem *p)
{
    p->mask.kinds &= ~(uint32_t)KER_MASK_VARIABLE;
}

static void no_cap(ker_problem *p)
{
    p->bias.softcap = 0;
}

static void no_alibi(ker_problem *p)
{
    p->bias.alibi_slopes = NULL;
}

static void no_sinks(ker_problem *p)
{
    p->bias.sinks = NULL;
}

static void first_given_key_of_all(ker_problem *p)
{
    static const int64_t zeros[RIG_MAX_SEQS];
    if (p->batch.kv_first)
        p->batch.kv_first = zeros;
}

static void strides_of_k_for_v(ker_problem *p)
{
    if (p->head_dim_v <= p->head_dim)
        p->kv.token_stride[1] = p->kv.token_stride[0];
}

static void one_kv_head(ker_problem *p)
{
    p->kv.head_stride[0] = p->kv.head_stride[1] = 0;
}

static void halves_are_bf16(ker_problem *p)
{
    if (p->kv.dtype == ATTND_DTYPE_F16)
        p->kv.dtype = ATTND_DTYPE_BF16;
}

static void output_is_bf16(ker_problem *p)
{
    p->out.dtype = ATTND_DTYPE_BF16;
}

static void q_is_not_rotated(ker_problem *p)
{
    p->rope.pairing = ATTND_ROPE_NONE;
}

static void pairs_of_the_other_kind(ker_problem *p)
{
    if (p->rope.pairing == ATTND_ROPE_GPTJ)
        p->rope.pairing = ATTND_ROPE_NEOX;
}

static void no_lse(ker_problem *p)
{
    p->lse.base = NULL;
}

static void no_stats(ker_problem *p)
{
    p->stats.base = NULL;
}

#define LIES(X)                                                                                    \
    X(scale_off_by_a_tenth)                                                                        \
    X(no_causal)                                                                                   \
    X(window_without_own_key)                                                                      \
    X(no_chunk)                                                                                    \
    X(variable_as_full)                                                                            \
    X(no_cap)                                                                                      \
    X(no_alibi)                                                                                    \
    X(no_sinks)                                                                                    \
    X(first_given_key_of_all)                                                                      \
    X(strides_of_k_for_v)                                                                          \
    X(one_kv_head)                                                                                 \
    X(halves_are_bf16)                                                                             \
    X(output_is_bf16)                                                                              \
    X(q_is_not_rotated)                                                                            \
    X(pairs_of_the_other_kind)                                                                     \
    X(no_lse)                                                                                      \
    X(no_stats)

static void a_row_that_does_not_do_what_it_claims_fails(void **state)
{
    static const struct {
        const char *name;
        void (*tell)(ker_problem *p);
    } lies[] = {
#define X(name) {#name, name},
        LIES(X)
#undef X
    };
    char text[CONFORM_TEXT];
    for (size_t row = 0; row < ker_n_kernels(); row++)
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            ker_kernel liar = *(honest = ker_kernel_at(row));
            conform c;
            /* Bodies that are launched whole cannot be told another problem. */
            if (liar.needs >= KER_N_CPU_LEVELS)
                continue;
            liar.run.item = run_lying;
            lie = lies[i].tell;
            conform_make(&c, &liar);
            if (conform_run(&c, options.seed, -1, NULL, text))
                fail_msg("%s with %s passes", liar.name, lies[i].name);
        }
}

/* Claims beyond what the registry lets a row serve, or the suite makes problems of. */
static void a_claim_that_is_not_kept_or_not_tested_fails(void **state)
{
    char text[CONFORM_TEXT];
    for (size_t row = 0; row < ker_n_kernels(); row++) {
        ker_kernel claims[3] = {*ker_kernel_at(row), *ker_kernel_at(row), *ker_kernel_at(row)};
        claims[0].masks |= 1u << 30;
        claims[1].kv |= 1u << ATTND_DTYPE_I32;
        claims[2].extras |= 1u << 30;
        for (int i = 0; i < 3; i++) {
            conform c;
            conform_make(&c, &claims[i]);
            assert_false(conform_run(&c, options.seed, -1, NULL, text));
            assert_non_null(strstr(text, "of which no problem is made"));
        }
    }
}

/* ---- What was run, and where. -----------------------------------------------------------------
 */

/* Of a device, or why there is none: what a skipped test is printed with. */
static char device_tests[RIG_N_DEVICES][ATTND_ERR_TEXT + 16];

static int open_devices(void **state)
{
    int failed = rig_open_devices(state);
    for (int i = 0; i < RIG_N_DEVICES; i++)
        snprintf(device_tests[i], sizeof device_tests[i], "%s%s%.400s", rig_device_names[i],
                 rig_devices[i] ? "" : ": ", rig_devices[i] ? "" : rig_device_missing[i]);
    return failed;
}

/* One test each, so that a missing device is counted as skipped. */
static void runs_here(void **state)
{
    int i = (int)(intptr_t)*state;
    if (!rig_devices[i])
        skip();
    ker_device_info info;
    ker_device_describe(rig_devices[i], &info);
    assert_true(strcmp(info.isa, rig_device_names[i]) == 0 ||
                strcmp(info.backend, rig_device_names[i]) == 0);
}

/* Lines: what the problems had; columns: kernels on devices; worst error over its gate. */
static void print_table(void)
{
    char line[2048];
    size_t n = (size_t)snprintf(line, sizeof line, "%-30s", "worst error / gate");
    for (size_t row = 0; row < ker_n_kernels(); row++)
        EACH_DEVICE(i)
    if (rig_has_level(rig_devices[i], ker_kernel_at(row))) {
        char name[64];
        snprintf(name, sizeof name, "%s@%s", ker_kernel_at(row)->name, rig_device_names[i]);
        n += (size_t)snprintf(line + n, sizeof line - n, " %25s", name);
    }
    print_message("# %s\n", line);
    for (int what = 0; what < CONFORM_N_LINES + 2; what++) {
        bool any = what >= CONFORM_N_LINES;
        const char *name = what < CONFORM_N_LINES    ? conform_line_name(what)
                           : what == CONFORM_N_LINES ? "problems, runs"
                                                     : "seconds of launches";
        n = (size_t)snprintf(line, sizeof line, "%-30s", name);
        for (size_t row = 0; row < ker_n_kernels(); row++)
            EACH_DEVICE(i)
        if (rig_has_level(rig_devices[i], ker_kernel_at(row))) {
            const conform_table *t = &tables[row][i];
            char cell[64] = "-";
            if (what == CONFORM_N_LINES)
                snprintf(cell, sizeof cell, "%llu, %llu", (unsigned long long)t->n_cases,
                         (unsigned long long)t->n_runs);
            else if (what > CONFORM_N_LINES)
                snprintf(cell, sizeof cell, "%.1f", t->seconds);
            else if (t->line[what].n_runs)
                snprintf(cell, sizeof cell, "%.2f in %llu", t->line[what].worst,
                         (unsigned long long)t->line[what].n_runs);
            any |= what < CONFORM_N_LINES && t->line[what].n_runs;
            n += (size_t)snprintf(line + n, sizeof line - n, " %25s", cell);
        }
        if (any)
            print_message("# %s\n", line);
    }
}

static int close_devices(void **state)
{
    print_table();
    return rig_close_devices(state);
}

static void read_options(int argc, char **argv)
{
    static const struct option known[] = {{"kernel", required_argument, NULL, 'k'},
                                          {"seed", required_argument, NULL, 's'},
                                          {"arrays", required_argument, NULL, 'n'},
                                          {"case", required_argument, NULL, 'c'},
                                          {0}};
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        if (o == 'k')
            options.kernel = optarg;
        else if (o == 's')
            options.seed = strtoull(optarg, NULL, 10);
        else if (o == 'n')
            options.n_arrays = atoi(optarg);
        else if (o == 'c')
            options.only = atol(optarg);
        else
            exit(2);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[RIG_N_DEVICES + MAX_KERNELS + 2];
    char names[MAX_KERNELS][80];
    size_t n = 0;
    read_options(argc, argv);
    for (int i = 0; i < RIG_N_DEVICES; i++)
        tests[n++] = (struct CMUnitTest){
            .name = device_tests[i], .test_func = runs_here, .initial_state = (void *)(intptr_t)i};
    for (size_t row = 0; row < ker_n_kernels() && row < MAX_KERNELS; row++) {
        const char *name = ker_kernel_at(row)->name;
        if (options.kernel && strcmp(options.kernel, name) != 0)
            continue;
        snprintf(names[row], sizeof names[row], "%s_conforms", name);
        tests[n++] = (struct CMUnitTest){
            .name = names[row], .test_func = conforms, .initial_state = (void *)row};
    }
    if (options.only < 0) {
        tests[n++] =
            (struct CMUnitTest)cmocka_unit_test(a_row_that_does_not_do_what_it_claims_fails);
        tests[n++] =
            (struct CMUnitTest)cmocka_unit_test(a_claim_that_is_not_kept_or_not_tested_fails);
    }
    return _cmocka_run_group_tests("conformance", tests, n, open_devices, close_devices);
}
