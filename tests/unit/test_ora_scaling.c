/* test_ora_scaling.c: the frequencies, amplitudes, sections and tables of rotary embedding (§5). */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "tests/oracle/codec.h"
#include "tests/oracle/generate.h"
#include "tests/oracle/oracle.h"

enum { MAX_PAIRS = 64 };

static void assert_near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want)))
        fail_msg("%.17g is not %.17g", got, want);
}

typedef struct angles {
    double f[MAX_PAIRS], amplitude;
} angles;

static angles angles_of(const ora_rope *rope, int64_t kv_len)
{
    angles a;
    ora_rope_frequencies(rope, kv_len, a.f, &a.amplitude);
    return a;
}

/* ---- Scalings (§5.3) ---- */

static void no_scaling_is_a_power_of_theta(void **state)
{
    angles a = angles_of(&(ora_rope){.dim = 8, .theta = 10000}, 0);
    const double want[] = {1, 0.1, 0.01, 0.001};
    for (int n = 0; n < 4; n++)
        assert_near(a.f[n], want[n], 1e-15);
    assert_true(a.amplitude == 1);
}

static void dynamic_alpha_grows_theta(void **state)
{
    const ora_rope rope = {
        .dim = 8, .theta = 10000, .scaling = ORA_SCALING_DYNAMIC_ALPHA, .factor = 8};
    angles a = angles_of(&rope, 0);
    /* 10⁴·8^(8/6) = 16·10⁴ */
    for (int n = 0; n < 4; n++)
        assert_near(a.f[n], pow(160000, -n / 4.0), 1e-14);
    assert_true(a.amplitude == 1);
}

static void dynamic_ntk_grows_theta_with_the_sequence(void **state)
{
    const ora_rope rope = {.dim = 8,
                           .theta = 10000,
                           .scaling = ORA_SCALING_DYNAMIC_NTK,
                           .factor = 2,
                           .original_max = 100};
    for (int64_t kv_len = 0; kv_len <= 100; kv_len += 50)
        assert_near(angles_of(&rope, kv_len).f[1], 0.1, 1e-15);
    /* 2·450/100 - 1 = 8 */
    assert_near(angles_of(&rope, 450).f[1], pow(160000, -0.25), 1e-14);
    assert_near(angles_of(&rope, 101).f[3], pow(10000 * pow(1.02, 8.0 / 6), -0.75), 1e-14);
}

static void llama3_leaves_short_waves_and_divides_long_ones(void **state)
{
    const ora_rope rope = {.dim = 128,
                           .theta = 500000,
                           .scaling = ORA_SCALING_LLAMA3,
                           .factor = 8,
                           .low = 1,
                           .high = 4,
                           .original_max = 8192};
    angles a = angles_of(&rope, 0);
    int n_short = 0, n_long = 0;
    for (int n = 0; n < 64; n++) {
        double f = pow(500000, -n / 64.0), w = 2 * M_PI / f;
        if (w < 2048) {
            assert_near(a.f[n], f, 1e-15);
            n_short++;
        } else if (w > 8192) {
            assert_near(a.f[n], f / 8, 1e-15);
            n_long++;
        } else {
            double share = (8192 / w - 1) / 3;
            assert_near(a.f[n], f * (share + (1 - share) / 8), 1e-14);
        }
    }
    assert_int_equal(n_short, 29);
    assert_int_equal(n_long, 64 - 35);
    assert_true(a.amplitude == 1);
}

static const ora_rope YARN = {.dim = 64,
                              .theta = 10000,
                              .scaling = ORA_SCALING_YARN,
                              .factor = 40,
                              .original_max = 4096,
                              .beta_fast = 32,
                              .beta_slow = 1,
                              .mscale = 1};

static void yarn_ramps_from_pair_10_to_pair_23(void **state)
{
    angles a = angles_of(&YARN, 0);
    for (int n = 0; n < 32; n++) {
        double f = pow(10000, -n / 32.0);
        double ramp = n <= 10 ? 0 : n >= 23 ? 1 : (n - 10) / 13.0;
        assert_near(a.f[n], f * (1 - ramp) + f * ramp / 40, 1e-14);
    }
    assert_near(a.amplitude, 1.3688879, 1e-7);
    ora_rope both = YARN;
    both.mscale_all = 1;
    assert_true(angles_of(&both, 0).amplitude == 1);
    both.mscale = 0.5;
    assert_near(angles_of(&both, 0).amplitude, (1 + 0.05 * log(40)) / (1 + 0.1 * log(40)), 1e-15);
    both.factor = 1;
    assert_true(angles_of(&both, 0).amplitude == 1);
    /* The temperature of models that fold it into q_scaling. */
    double mu = angles_of(&YARN, 0).amplitude;
    assert_near(1 / (mu * mu), 0.5336594, 1e-7);
    assert_near(ora_sm_scale(1 / (mu * mu), 192), 0.1352338, 1e-6);
}

static void yarn_without_truncation_ramps_between_fractions(void **state)
{
    ora_rope rope = YARN;
    rope.no_truncate = true;
    angles a = angles_of(&rope, 0);
    double low = 64 * log(4096 / (2 * M_PI * 32)) / (2 * log(10000));
    double high = 64 * log(4096 / (2 * M_PI)) / (2 * log(10000));
    assert_true(low > 10 && low < 11 && high > 22 && high < 23);
    for (int n = 0; n < 32; n++) {
        double f = pow(10000, -n / 32.0), ramp = fmin(fmax((n - low) / (high - low), 0), 1);
        assert_near(a.f[n], f * (1 - ramp) + f * ramp / 40, 1e-14);
    }
    /* The upper end may lie behind the last pair, up to r - 1. */
    const double slow[] = {0.01, 1e-6}, end[] = {39, 63};
    for (int k = 0; k < 2; k++) {
        rope = YARN;
        rope.beta_slow = slow[k];
        a = angles_of(&rope, 0);
        for (int n = 10; n < 32; n++) {
            double f = pow(10000, -n / 32.0), ramp = (n - 10) / (end[k] - 10);
            assert_near(a.f[n], f * (1 - ramp) + f * ramp / 40, 1e-14);
        }
    }
    /* Both ends on pair 11: a step. */
    rope = YARN;
    rope.beta_fast = rope.beta_slow = 4096 / (2 * M_PI * pow(10000, 11 / 32.0));
    rope.no_truncate = true;
    a = angles_of(&rope, 0);
    assert_near(a.f[10], pow(10000, -10 / 32.0), 1e-14);
    assert_near(a.f[12], pow(10000, -12 / 32.0) / 40, 1e-14);
}

static void longrope_takes_the_table_of_the_layers_length(void **state)
{
    const double shorter[] = {1, 2, 3, 4}, longer[] = {5, 6, 7, 8};
    ora_rope rope = {.dim = 8,
                     .theta = 10000,
                     .scaling = ORA_SCALING_LONGROPE,
                     .original_max = 4096,
                     .max_positions = 4096,
                     .short_factors = shorter,
                     .long_factors = longer};
    angles a = angles_of(&rope, 100000);
    for (int n = 0; n < 4; n++)
        assert_near(a.f[n], pow(10000, -n / 4.0) / shorter[n], 1e-15);
    assert_true(a.amplitude == 1);
    rope.max_positions = 131072;
    a = angles_of(&rope, 1);
    for (int n = 0; n < 4; n++)
        assert_near(a.f[n], pow(10000, -n / 4.0) / longer[n], 1e-15);
    assert_near(a.amplitude, sqrt(1 + 5.0 / 12), 1e-15); /* ln 32 / ln 4096 */
    rope.long_amplitude = 1.25;
    rope.short_amplitude = 0.75;
    assert_true(angles_of(&rope, 0).amplitude == 1.25);
    rope.max_positions = 4096;
    assert_true(angles_of(&rope, 0).amplitude == 0.75);
    rope.max_positions = 0; /* not known */
    rope.long_amplitude = 0;
    a = angles_of(&rope, 0);
    assert_near(a.f[0], 0.2, 1e-15);
    assert_true(a.amplitude == 1);
}

static void the_amplitude_is_on_cosine_and_sine(void **state)
{
    ora_rope rope = YARN;
    rope.pairing = ATTND_ROPE_NEOX;
    double x[64] = {0};
    x[0] = 1;
    ora_rotate(&rope, 3, ATTND_DTYPE_F32, x);
    double a = 1 + 0.1 * log(40);
    assert_true(x[0] == (float)(a * cos(3)) && x[32] == (float)(a * sin(3)));
}

/* ---- Known answers ---- */

static void b077_a_partial_rotation_pairs_within_its_own_width(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_NEOX, .dim = 4, .theta = 10000};
    const double want[2][8] = {{-0.989992, 0, 0.141120}, {0, 0.999550, 0, 0.029996}};
    for (int channel = 0; channel < 2; channel++) {
        double x[8] = {0};
        x[channel] = 1;
        ora_rotate(&rope, 3, ATTND_DTYPE_F32, x);
        for (int d = 0; d < 8; d++)
            assert_true(want[channel][d] == 0 ? x[d] == 0 : fabs(x[d] - want[channel][d]) < 1e-6);
    }
}

static void b079_angles_hold_every_position(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_GPTJ, .dim = 8, .theta = 10000};
    double unit[8] = {1, 0};
    ora_rotate(&rope, 15962, ATTND_DTYPE_F32, unit);
    assert_near(unit[0], -0.908016, 1e-6);
    assert_near(unit[1], 0.418936, 1e-6);
    const int64_t positions[] = {255, 257, 15962, 1000003, (1 << 24) + 1};
    double first = 0;
    for (size_t n = 0; n < sizeof positions / sizeof positions[0]; n++) {
        double q[8], k[8], r = 0;
        for (uint64_t d = 0; d < 8; d++) {
            q[d] = ora_round(ATTND_DTYPE_BF16, ora_element(1, "q", d));
            k[d] = ora_round(ATTND_DTYPE_BF16, ora_element(1, "k", d));
        }
        ora_rotate(&rope, positions[n], ATTND_DTYPE_F32, q);
        ora_rotate(&rope, positions[n] - 5, ATTND_DTYPE_F32, k);
        for (int d = 0; d < 8; d++)
            r += q[d] * k[d];
        first = n == 0 ? r : first;
        assert_true(fabs(r - first) < 1e-5);
    }
}

/* ---- Rows of a call: positions, sections, tables ---- */

enum { D = 128 };

/* One new token at key index 5; what lies in the pool afterwards is its rotated key. */
typedef struct token {
    ora_problem p;
    int32_t q_len, kv_len, block;
    float k[D], pool[2][8][D];
} token;

static void token_open(token *x, const ora_rope *rope)
{
    *x = (token){.q_len = 1, .kv_len = 6};
    for (uint64_t d = 0; d < D; d++)
        x->k[d] = (float)ora_element(1, "k", d);
    x->p = (ora_problem){
        .n_heads = 1,
        .n_kv_heads = 1,
        .head_dim = D,
        .head_dim_v = D,
        .dtype = ATTND_DTYPE_F32,
        .n_seqs = 1,
        .q_len = &x->q_len,
        .kv_len = &x->kv_len,
        .block_ids = &x->block,
        .k = {x->k, sizeof x->k, 0, ATTND_DTYPE_F32},
        .v = {x->k, sizeof x->k, 0, ATTND_DTYPE_F32},
        .kv = {.plane = {x->pool[0], x->pool[1]},
               .token_stride = {sizeof x->k, sizeof x->k},
               .n_blocks = 1,
               .block_size = 8,
               .dtype = ATTND_DTYPE_F32},
        .rope = *rope,
    };
}

static void assert_turned(token *x, const ora_rope *rope, int64_t position)
{
    attnd_err err;
    if (ora_append(&x->p, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    double want[D];
    ora_decode(ATTND_DTYPE_F32, x->k, D, want);
    ora_rotate(rope, position, ATTND_DTYPE_F32, want);
    for (int d = 0; d < D; d++)
        assert_true(x->pool[0][5][d] == (float)want[d]);
    assert_memory_equal(x->pool[1][5], x->k, sizeof x->k);
}

static void positions_go_before_offsets_and_delta_comes_on_top(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000};
    token x;
    token_open(&x, &rope);
    assert_turned(&x, &rope, 5);
    const int32_t depth = 3, position = 40, delta = -7;
    const uint32_t words = 1;
    x.p.mask = (ora_mask){
        .kinds = ORA_MASK_TREE, .tree_words = &words, .tree_width = 1, .tree_depth = &depth};
    assert_turned(&x, &rope, 8);
    x.p.rope_delta = &delta;
    assert_turned(&x, &rope, 1);
    x.p.positions = &position;
    assert_turned(&x, &rope, 33);
    x.p.rope_delta = NULL;
    assert_turned(&x, &rope, 40);
}

static void dynamic_ntk_counts_the_sequences_keys(void **state)
{
    ora_rope rope = {.pairing = ATTND_ROPE_NEOX,
                     .dim = D,
                     .theta = 10000,
                     .scaling = ORA_SCALING_DYNAMIC_NTK,
                     .factor = 4,
                     .original_max = 6};
    token x;
    token_open(&x, &rope);
    assert_turned(&x, &(ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000}, 5);
    x.p.rope.original_max = 3; /* 4·6/3 - 3 = 5 */
    rope = (ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000 * pow(5, D / (D - 2.0))};
    assert_turned(&x, &rope, 5);
}

static void a_rotation_may_start_behind_the_latent_channels(void **state)
{
    const ora_rope rope = {.pairing = ATTND_ROPE_GPTJ, .dim = 64, .first = 64, .theta = 10000},
                   alone = {.pairing = ATTND_ROPE_GPTJ, .dim = 64, .theta = 10000};
    double x[D], tail[64];
    for (uint64_t d = 0; d < D; d++)
        x[d] = ora_element(1, "x", d);
    memcpy(tail, x + 64, sizeof tail);
    ora_rotate(&rope, 9, ATTND_DTYPE_BF16, x);
    ora_rotate(&alone, 9, ATTND_DTYPE_BF16, tail);
    assert_memory_equal(x + 64, tail, sizeof tail);
    for (uint64_t d = 0; d < 64; d++)
        assert_true(x[d] == ora_element(1, "x", d));
}

/* Which position turned each pair: p0 = 0 leaves it, p1 = 1 and p2 = 2 turn it. */
static void assert_sections(token *x, const uint32_t want[64])
{
    attnd_err err;
    if (ora_append(&x->p, &err) != ATTND_OK)
        fail_msg("%s", err.text);
    for (uint32_t n = 0; n < 64; n++) {
        double angle = want[n] * pow(10000, -2.0 * n / D);
        float c = (float)cos(angle), s = (float)sin(angle);
        double turned = (double)x->k[n] * c - (double)x->k[n + 64] * s;
        assert_true(x->pool[0][5][n] == (float)turned);
    }
}

static void sections_take_their_own_position(void **state)
{
    const ora_rope rope = {
        .pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000, .sections = {24, 20, 20}};
    const int32_t three[] = {0, 1, 2};
    uint32_t want[64];
    token x;
    token_open(&x, &rope);
    x.p.positions3 = three;
    for (uint32_t n = 0; n < 64; n++)
        want[n] = n < 24 ? 0 : n < 44 ? 1 : 2;
    assert_sections(&x, want);
    x.p.rope.interleaved = true;
    memset(want, 0, sizeof want);
    for (uint32_t n = 1; n <= 58; n += 3)
        want[n] = 1;
    for (uint32_t n = 2; n <= 59; n += 3)
        want[n] = 2;
    assert_sections(&x, want);
    const int32_t before[] = {-3, -2, -1}, delta = 3;
    x.p.positions3 = before;
    x.p.rope_delta = &delta;
    assert_sections(&x, want);
    /* Without positions of their own all sections are at the row's. */
    x.p.positions3 = NULL;
    x.p.rope_delta = NULL;
    assert_turned(&x, &(ora_rope){.pairing = ATTND_ROPE_NEOX, .dim = D, .theta = 10000}, 5);
}

static void uploaded_tables_are_taken_as_they_are(void **state)
{
    static float plain[7][32][2], duplicated[7][64][2];
    for (int p = 0; p < 7; p++)
        for (int n = 0; n < 64; n++)
            for (int k = 0; k < 2; k++) {
                plain[p][n % 32][k] = (float)(p * 100 + n % 32 + k * 0.5);
                duplicated[p][n][k] = plain[p][n % 32][k];
            }
    const ora_rope rope = {
        .pairing = ATTND_ROPE_NEOX, .dim = 64, .table = plain[0][0], .table_rows = 7};
    token x;
    attnd_err err;
    token_open(&x, &rope);
    float got[D];
    assert_int_equal(ora_append(&x.p, &err), ATTND_OK);
    for (int n = 0; n < 32; n++) {
        double c = plain[5][n][0], s = plain[5][n][1];
        assert_true(x.pool[0][5][n] == (float)(x.k[n] * c - x.k[n + 32] * s));
        assert_true(x.pool[0][5][n + 32] == (float)(x.k[n + 32] * c + x.k[n] * s));
    }
    memcpy(got, x.pool[0][5], sizeof got);
    x.p.rope.table = duplicated[0][0];
    x.p.rope.table_duplicated = true;
    assert_int_equal(ora_append(&x.p, &err), ATTND_OK);
    assert_memory_equal(x.pool[0][5], got, sizeof got);
    x.p.rope.table = NULL;
    x.p.rope.cos_sin = plain[5][0];
    assert_int_equal(ora_append(&x.p, &err), ATTND_OK);
    assert_memory_equal(x.pool[0][5], got, sizeof got);
}

/* ---- Refusals ---- */

static void refuses(const token *x, const char *text)
{
    attnd_err err = {0};
    float pool[2][8][D];
    memcpy(pool, x->pool, sizeof pool);
    assert_int_equal(ora_append(&x->p, &err), ATTND_INVALID_ARGUMENT);
    assert_int_equal(err.reason, ATTND_BAD_ROPE);
    assert_string_equal(err.text, text);
    assert_memory_equal(pool, x->pool, sizeof pool);
}

static void what_is_no_rotation_is_refused(void **state)
{
    const ora_rope plain = {.pairing = ATTND_ROPE_NEOX, .dim = 64, .theta = 10000};
    static const float table[5][32][2];
    const int32_t three[] = {0, 1, 2}, before = -1;
    const double factors[32] = {1};
    token x;
    token_open(&x, &plain);
#define WITH(change, text)                                                                         \
    x.p.rope = plain;                                                                              \
    x.p.positions3 = x.p.positions = NULL;                                                         \
    change;                                                                                        \
    refuses(&x, text)
    WITH(x.p.rope.first = 65, "rope.first = 65: 64 channels behind it, of 128");
    WITH(x.p.rope.sections[1] = 31, "rope.sections = 0, 31, 0: their sum is dim/2 = 32");
    WITH(x.p.positions3 = three, "positions3 = given: one position a token without rope.sections");
    WITH(x.p.rope.scaling = ORA_SCALING_LINEAR, "rope.factor = 0: above 0");
    WITH((x.p.rope.scaling = ORA_SCALING_DYNAMIC_NTK, x.p.rope.factor = 2),
         "rope.original_max = 0: above 0");
    WITH((x.p.rope.scaling = ORA_SCALING_LLAMA3, x.p.rope.factor = 2, x.p.rope.original_max = 9,
          x.p.rope.low = 4, x.p.rope.high = 4),
         "rope.high = 4: above low = 4, which is above 0");
    WITH((x.p.rope = YARN, x.p.rope.pairing = ATTND_ROPE_NEOX, x.p.rope.beta_slow = 0),
         "rope.beta_fast = 32: above 0, as beta_slow = 0 is to be");
    WITH((x.p.rope.scaling = ORA_SCALING_LONGROPE, x.p.rope.original_max = 9,
          x.p.rope.short_factors = factors),
         "rope.long_factors = none: longrope needs them");
    WITH((x.p.rope.scaling = ORA_SCALING_LONGROPE, x.p.rope.original_max = 9,
          x.p.rope.max_positions = 9, x.p.rope.long_factors = factors),
         "rope.short_factors = none: longrope needs them");
    WITH((x.p.rope.table = table[0][0], x.p.rope.table_rows = 5),
         "rope.table_rows = 5: row 0 of sequence 0 is at position 5");
    WITH((x.p.rope.table = table[0][0], x.p.rope.table_rows = 5, x.p.positions = &before),
         "rope.table_rows = 5: row 0 of sequence 0 is at position -1");
#undef WITH
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_scaling_is_a_power_of_theta),
        cmocka_unit_test(dynamic_alpha_grows_theta),
        cmocka_unit_test(dynamic_ntk_grows_theta_with_the_sequence),
        cmocka_unit_test(llama3_leaves_short_waves_and_divides_long_ones),
        cmocka_unit_test(yarn_ramps_from_pair_10_to_pair_23),
        cmocka_unit_test(yarn_without_truncation_ramps_between_fractions),
        cmocka_unit_test(longrope_takes_the_table_of_the_layers_length),
        cmocka_unit_test(the_amplitude_is_on_cosine_and_sine),
        cmocka_unit_test(b077_a_partial_rotation_pairs_within_its_own_width),
        cmocka_unit_test(b079_angles_hold_every_position),
        cmocka_unit_test(positions_go_before_offsets_and_delta_comes_on_top),
        cmocka_unit_test(dynamic_ntk_counts_the_sequences_keys),
        cmocka_unit_test(a_rotation_may_start_behind_the_latent_channels),
        cmocka_unit_test(sections_take_their_own_position),
        cmocka_unit_test(uploaded_tables_are_taken_as_they_are),
        cmocka_unit_test(what_is_no_rotation_is_refused),
    };
    return cmocka_run_group_tests_name("ora_scaling", tests, NULL, NULL);
}
