"""Errors, spreads and the paired test against SciPy, enumeration and simulation."""

from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.evaluation import Measured, mean_and_error, over_seeds, paired_test

NUMBERS = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


@given(NUMBERS)
def test_mean_and_error_equal_scipy(values):
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(np.mean(values), abs=1e-12)
    assert error == pytest.approx(scipy.stats.sem(values), abs=1e-12)
    measured = Measured(np.array(values))
    assert (measured.mean, measured.standard_error, len(measured)) == (mean, error, len(values))
    seeds = over_seeds(values)
    assert seeds.spread == pytest.approx(error * np.sqrt(len(values)), abs=1e-12)
    assert (seeds.mean, seeds.n) == (mean, len(values))


def test_one_value_has_no_error():
    assert mean_and_error([0.25]) == (0.25, None)
    assert str(Measured(np.array([0.25]))) == "0.2500"
    assert str(Measured(np.array([0.0, 1.0]))) == "0.5000 ± 0.5000"
    seeds = over_seeds(iter([0.5]))
    assert (seeds.mean, seeds.spread, seeds.n, str(seeds)) == (0.5, None, 1, "0.500")


@given(st.integers(0, 2**32), st.integers(2, 9), st.booleans())
def test_prepared_queries_are_enumerated(seed, n, coarse):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(0, 4, (2, n)) / 10) if coarse else rng.random((2, n))
    gaps = a - b
    means = [abs(sum(s * g for s, g in zip(signs, gaps, strict=True))) for signs in product((1, -1), repeat=n)]
    expected = np.mean([value >= abs(gaps.sum()) - 1e-12 for value in means])
    assert paired_test(a, b).p_value == pytest.approx(expected)


def test_enumeration_agrees_with_scipy():
    a, b = np.random.default_rng(5).random((2, 8))
    slow = scipy.stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", n_resamples=np.inf,
        vectorized=True,
    )  # fmt: skip
    assert paired_test(a, b).p_value == pytest.approx(slow.pvalue)


@pytest.mark.parametrize("n", [17, 24, 31])
def test_random_signs_agree_with_all_signs(n):
    a, b = np.random.default_rng(n).random((2, n))
    gaps = a - b
    half = n // 2
    parts = [np.array(list(product((1, -1), repeat=len(part)))) @ part for part in (gaps[:half], gaps[half:])]
    ordered = np.sort(parts[1])
    reach = abs(gaps.sum()) - 1e-12  # counted are sums of both parts that are at least as far from 0
    above = len(ordered) - np.searchsorted(ordered, reach - parts[0], side="left")
    below = np.searchsorted(ordered, -reach - parts[0], side="right")
    expected = (above.sum() + below.sum()) / 2.0**n
    assert paired_test(a, b, n_resamples=40_000).p_value == pytest.approx(expected, abs=0.012)


def test_many_queries_agree_with_the_t_test():
    rng = np.random.default_rng(0)
    a = rng.random(200)
    b = a + rng.normal(0.012, 0.1, 200)
    test = paired_test(Measured(a), b, n_resamples=20000)
    classical = scipy.stats.ttest_rel(a, b)
    assert test.difference / test.standard_error == pytest.approx(classical.statistic)
    assert test.p_value == pytest.approx(classical.pvalue, abs=0.015)
    limits = classical.confidence_interval(0.95)
    assert test.interval() == pytest.approx((limits.low, limits.high))
    assert test.interval(0.01)[0] < test.interval(0.05)[0]


def test_the_interval_holds_the_truth_as_often_as_it_says_even_of_few_queries():
    rng = np.random.default_rng(0)
    trials, held = 2000, 0
    for _ in range(trials):
        low, high = paired_test(rng.normal(0.3, 1, 4), np.zeros(4)).interval()
        held += low <= 0.3 <= high
    assert abs(held / trials - 0.95) < 3.5 * np.sqrt(0.95 * 0.05 / trials)


def test_nothing_is_found_where_nothing_is_more_often_than_the_level_says():
    rng = np.random.default_rng(0)
    trials, level = 600, 0.1
    found = 0
    for _ in range(trials):
        a, b = rng.exponential(size=(2, 30)) * rng.random(30)  # neither normal nor of one variance
        found += paired_test(a, b, n_resamples=299, random_state=rng.integers(2**31)).verdict(level) != "no difference"
    allowed = 3.5 * np.sqrt(trials * level * (1 - level))
    assert abs(found - trials * level) < allowed


def test_a_clear_difference_is_found_either_way():
    rng = np.random.default_rng(0)
    easy = rng.random(500)
    better, worse = easy + rng.normal(0.02, 0.05, 500), easy
    assert paired_test(better, worse).verdict() == "a better"
    assert paired_test(worse, better).verdict() == "b better"
    assert paired_test(better, worse).p_value == 1 / 10000  # no draw of 9,999 comes near
    assert paired_test(worse, worse).verdict() == "no difference"
    assert paired_test(worse, worse).p_value == 1.0


def test_is_repeatable_and_symmetric():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 60))
    first = paired_test(a, b, random_state=3)
    assert paired_test(a, b, random_state=3) == first
    other_way = paired_test(b, a, random_state=3)
    assert (other_way.difference, other_way.p_value) == (-first.difference, first.p_value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_and_error([]), "at least one number"),
        (lambda: mean_and_error([[1.0]]), r"got an array of shape \(1, 1\)"),
        (lambda: mean_and_error([1.0, np.nan]), "finite numbers, got nan at position 1"),
        (lambda: mean_and_error(["a"]), "must be a list of numbers"),
        (lambda: over_seeds([]), "the values of the seeds must be a list of at least one number"),
        (lambda: over_seeds(0.5), r"the values of the seeds must be .* got an array of shape \(\)"),
        (lambda: paired_test([1.0, 2.0], [1.0, 1.0], random_state="x"), "random_state must be .* got 'x'"),
        (lambda: paired_test([1.0, 2.0], [1.0]), "got 2 and 1"),
        (lambda: paired_test([1.0], [1.0]), "at least 2 queries"),
        (lambda: paired_test([1.0, 2.0], [1.0, 1.0], n_resamples=0), "n_resamples must be"),
        (lambda: paired_test([1.0, 2.0], [1.0, 1.0]).verdict(5), "level must be a number between 0 and 1"),
        (lambda: paired_test([1.0, 2.0], [1.0, 1.0]).interval(1.0), "got 1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
