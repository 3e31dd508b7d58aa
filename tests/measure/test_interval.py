"""Student's quantile and the interval of a mean, held to tables and to scipy where there is one."""

import math
import statistics

import pytest

from attnzoo.errors import RequestError
from attnzoo.measure.interval import interval_of_mean, interval_of_median, student_quantile

# scipy.stats.t.ppf(0.975, freedom)
TABLE = {
    1: 12.706204736174694, 2: 4.302652729749462, 3: 3.182446305283709, 4: 2.7764451051977934, 5: 2.570581835636315,
    15: 2.131449545559774, 16: 2.1199052992212546, 17: 2.1098155778333156, 18: 2.10092204024104, 29: 2.045229642132703,
    30: 2.0422724563012378, 99: 1.9842169515864165, 100: 1.9839715185235518, 1000: 1.9623390808264143,
}  # fmt: skip


@pytest.mark.parametrize("freedom", TABLE)
def test_student_quantile(freedom):
    assert student_quantile(freedom) == pytest.approx(TABLE[freedom], rel=1e-12)


def test_other_levels():
    assert student_quantile(1, 0.5) == pytest.approx(1.0)  # the quartile of a Cauchy variable
    assert student_quantile(5, 0.99) == pytest.approx(4.032142983557536)
    assert student_quantile(12, 0.9) == pytest.approx(1.7822875556493194)


def test_against_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy is no dependency")
    for freedom in range(1, 60):
        for level in (0.5, 0.9, 0.95, 0.999):
            assert student_quantile(freedom, level) == pytest.approx(stats.t.ppf((1 + level) / 2, freedom), rel=1e-9)


def test_interval_of_a_mean():
    values = [1.0, 2.5, 2.0, 4.0]
    half = TABLE[3] * statistics.stdev(values) / 2
    assert interval_of_mean(values) == pytest.approx((2.375, 2.375 - half, 2.375 + half))
    assert interval_of_mean([3.0, 3.0]) == (3.0, 3.0, 3.0)


def test_one_value_says_nothing_about_its_mean():
    assert interval_of_mean([7.0]) == (7.0, -math.inf, math.inf)
    with pytest.raises(RequestError, match="at least one value"):
        interval_of_mean([])


def test_the_interval_of_a_median_by_order_statistics():
    found = interval_of_median(list(range(1, 16)))  # 15 samples: the 4th from each end, 96.5 %
    assert (found.low, found.median, found.high) == (4, 8, 12)
    assert interval_of_median([1, 2, 9]).high == 9  # too few: the whole range
