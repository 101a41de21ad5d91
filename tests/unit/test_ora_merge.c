/* test_ora_merge.c: partial results merge to the whole, empty ones weigh nothing. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#include <math.h>

#include "tests/oracle/oracle.h"

static void assert_near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-15 * fmax(1, fabs(want))))
        fail_msg("%.17g is not %.17g", got, want);
}

static void two_parts_weigh_by_their_sums(void **state)
{
    const double m[] = {0, log(3)}, l[] = {1, 1}, o[] = {2, 6};
    double m_all, l_all, o_all;
    ora_merge(2, m, l, o, 1, &m_all, &l_all, &o_all);
    assert_near(m_all, log(3));
    assert_near(l_all, 4.0 / 3);
    assert_near(o_all, 5);
    assert_near(m_all + log(l_all), log(4));
}

static void any_cut_of_equal_keys_gives_the_same(void **state)
{
    for (int cut = 0; cut <= 3136; cut += 98) {
        const double m[] = {cut ? 0 : -INFINITY, cut < 3136 ? 0 : -INFINITY};
        const double l[] = {cut, 3136 - cut};
        const double o[] = {cut > 3072 ? (cut - 3072.0) / cut : 0,
                            cut > 3072 ? (cut < 3136) : 64.0 / (3136 - cut)};
        double m_all, l_all, o_all;
        ora_merge(2, m, l, o, 1, &m_all, &l_all, &o_all);
        assert_near(o_all, 64.0 / 3136);
        assert_near(l_all, 3136);
    }
}

static void empty_parts_are_not_read(void **state)
{
    const double m[] = {-INFINITY, 1, 7, -INFINITY}, l[] = {0, 2, 0, 3};
    const double o[] = {NAN, NAN, 4, 5, NAN, NAN, NAN, NAN};
    double m_all, l_all, o_all[2];
    ora_merge(4, m, l, o, 2, &m_all, &l_all, o_all);
    assert_true(m_all == 1 && l_all == 2 && o_all[0] == 4 && o_all[1] == 5);
}

static void only_empty_parts_are_an_empty_row(void **state)
{
    const double m[] = {-INFINITY, -INFINITY}, l[] = {0, 0}, o[] = {NAN, NAN, NAN, NAN};
    double m_all, l_all, o_all[2];
    for (uint32_t n = 0; n <= 2; n++) {
        m_all = l_all = o_all[0] = o_all[1] = 9;
        ora_merge(n, m, l, o, 2, &m_all, &l_all, o_all);
        assert_true(m_all == -INFINITY && l_all == 0 && o_all[0] == 0 && o_all[1] == 0);
    }
}

static void a_sink_is_applied_once_at_the_end(void **state)
{
    double o[] = {2, -4};
    ora_apply_sink(0, 1, 0, o, 2);
    assert_true(o[0] == 1 && o[1] == -2);
    ora_apply_sink(5, 3, -INFINITY, o, 2);
    assert_true(o[0] == 1 && o[1] == -2);
    ora_apply_sink(5, 3, INFINITY, o, 2);
    assert_true(o[0] == 0 && o[1] == 0);
    o[0] = 0;
    ora_apply_sink(-INFINITY, 0, 3, o, 1);
    assert_true(o[0] == 0);
}

static void the_default_scale_is_one_over_the_root_of_the_width(void **state)
{
    assert_true(ora_sm_scale(0, 64) == 0.125);
    assert_true(ora_sm_scale(1, 64) == 0.125);
    assert_true(ora_sm_scale(2, 64) == 0.0625);
    assert_near(ora_sm_scale(0.5336594, 192), 1 / (0.5336594 * sqrt(192)));
    assert_true(fabs(ora_sm_scale(0.5336594, 192) - 0.1352338) < 1e-7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_parts_weigh_by_their_sums),
        cmocka_unit_test(any_cut_of_equal_keys_gives_the_same),
        cmocka_unit_test(empty_parts_are_not_read),
        cmocka_unit_test(only_empty_parts_are_an_empty_row),
        cmocka_unit_test(a_sink_is_applied_once_at_the_end),
        cmocka_unit_test(the_default_scale_is_one_over_the_root_of_the_width),
    };
    return cmocka_run_group_tests_name("ora_merge", tests, NULL, NULL);
}
