"""The k smallest of each row against sorting, at every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

LAST_ID = 2**63 - 1


def by_sorting(values, ids, k):
    """The smallest values by sorting, equal ones by id; NaN is left out."""
    values, ids = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), LAST_ID, ids)
    more = max(0, k - values.shape[1])
    values = np.pad(values, ((0, 0), (0, more)), constant_values=np.inf)
    ids = np.pad(ids, ((0, 0), (0, more)), constant_values=LAST_ID)
    order = np.lexsort((ids, values))[:, :k]
    return np.take_along_axis(values, order, axis=1), np.take_along_axis(ids, order, axis=1)


def agree(kernels, values, ids, k):
    found, expected = kernels.select_smallest(values, ids, k), by_sorting(values, ids, k)
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@given(
    seed=st.integers(0, 2**32), n=st.integers(0, 3000), k=st.integers(1, 600), n_values=st.sampled_from([1, 3, 100, 0]),
    missing=st.sampled_from([0, 0.01, 0.5, 0.99]),
)  # fmt: skip
def test_the_smallest_are_those_of_sorting(kernels, seed, n, k, n_values, missing):
    rng = np.random.default_rng(seed)
    values = rng.random((3, n)) * 10.0 ** rng.integers(-50, 50, (3, n))
    if n_values:  # many equal ones
        values = rng.integers(0, n_values, (3, n)).astype(np.float64)
    values[rng.random((3, n)) < missing] = rng.choice([np.inf, np.nan])
    ids = rng.permuted(np.tile(np.arange(n) * 2**40, (3, 1)), axis=1)
    assert agree(kernels, values, ids, k)


@pytest.mark.parametrize("k", [1, 2, 15, 16, 17, 100, 191, 192, 193, 400])
def test_all_sizes_about_a_register_and_about_what_is_ranked(kernels, k):
    rng = np.random.default_rng(k)
    for n in {*range(1, 40), k - 1, k, k + 1, 8 * k - 1, 8 * k, 8 * k + 1} - {0}:
        values = rng.integers(0, 2 * n, (2, n)).astype(np.float64)
        assert agree(kernels, values, np.tile(np.arange(n)[::-1], (2, 1)).copy(), k)


def test_the_few_finite_numbers_may_share_a_stripe(kernels):
    values = np.full((1, 4000), np.inf)
    values[0, :4000:40] = np.arange(100)[::-1]
    assert agree(kernels, values, np.arange(4000)[None], 10)


def test_numbers_that_float32_cannot_tell_apart_are_in_order(kernels):
    rng = np.random.default_rng(0)
    values = 1 + rng.permutation(2000)[None] * 2.0**-50
    for k in (1, 30, 500):
        assert agree(kernels, values, np.arange(2000)[None], k)


def test_numbers_may_be_0_the_smallest_and_the_largest(kernels):
    values = np.array([[1e308, 0, 5e-324, np.inf, 3.5e38, 1e-40, np.nan, 0, np.inf, 1.7e308]])
    for k in range(1, 12):
        assert agree(kernels, values, np.arange(10)[::-1].copy()[None], k)
