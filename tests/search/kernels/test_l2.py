"""Estimates in float32: no bit of an answer changes, and their errors stay within the bound that this rests on."""

from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.core.compilation import kernel
from autojacobin.search import rerank
from autojacobin.search.euclidean import squared_distances
from autojacobin.search.kernels import l2 as kernels
from tests.search.candidates import by_sorting, drawn

estimate_rows = kernel(kernels.estimate_rows)  # otherwise compiled as a part of other kernels only


def all_measured(queries, candidates, vectors, k):
    """Answer from the distances of all candidates, none of them estimated."""
    squared = np.full(candidates.shape, np.inf)
    squared_distances(queries, vectors, candidates, squared)
    order = np.lexsort((candidates, squared), axis=1)[:, :k]
    return np.sqrt(np.take_along_axis(squared, order, axis=1)), np.take_along_axis(candidates, order, axis=1)


def hardly_apart(rng, dtype, n, D):
    """Vectors at distances from a centre that float32 cannot tell apart, some of them twice."""
    centre = rng.normal(size=D) * 10.0 ** rng.integers(-3, 3)
    if dtype == np.uint8:
        return rng.integers(100, 102, (n, D)).astype(dtype), centre
    signs = rng.choice([-1, 1], (n, D))
    vectors = (centre + signs * (1 + 10.0 ** -rng.integers(3, 8) * rng.normal(size=(n, D)))).astype(dtype)
    vectors[::7] = vectors[0]
    return vectors, centre


@given(
    st.integers(0, 2**32),
    st.sampled_from([np.uint8, np.float16, np.float32]),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1, 3, 16, 40, 129]),
)
def test_estimates_change_no_bit_of_the_answer(seed, dtype, query_dtype, D):
    rng = np.random.default_rng(seed)
    vectors, centre = hardly_apart(rng, dtype, 300, D)
    queries = (centre + rng.choice([0, 1e-6, 1], (6, 1)) * rng.normal(size=(6, D))).astype(query_dtype)
    candidates = drawn(rng, 300, 200, 6)
    k = int(rng.integers(1, 51))
    distances, ids = rerank(queries, candidates, vectors, k)
    expected, expected_ids = all_measured(queries, candidates, vectors, k)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("query_dtype", [np.float32, np.float64])
def test_estimates_leave_hardly_more_than_is_wanted(dtype, query_dtype):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(2000, 96)) * 20 + 100).astype(dtype)
    queries = (rng.normal(size=(30, 96)) * 20 + 100).astype(query_dtype)
    candidates = drawn(rng, 2000, 500, 30)
    squared, exact = np.full((2, *candidates.shape), np.inf)
    squared_distances(queries, vectors, candidates, squared, 10)
    squared_distances(queries, vectors, candidates, exact)
    undecided = np.where(squared == exact, candidates, -1)
    assert np.all((undecided >= 0).sum(axis=1) <= 20)
    distances, ids = rerank(queries, candidates, vectors, 10)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 10)
    assert np.array_equal(ids, expected_ids)
    assert np.allclose(distances, expected, rtol=1e-12)
    assert all(set(near) <= set(row) for near, row in zip(ids, undecided, strict=True))


@given(st.integers(0, 2**32), st.sampled_from([1, 7, 64, 300]), st.sampled_from([-22, -18, -3, 0, 5, 16]))
def test_the_error_of_estimates_is_within_its_bound(seed, D, exponent):
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(20, D)) * 10.0 ** (exponent + rng.uniform(-1, 1, (20, D)))).astype(np.float32)
    queries = (rng.normal(size=(1, D)) * 10.0**exponent).astype(np.float32)
    rows, squared = np.arange(20)[None], np.empty((1, 20))
    estimate_rows(queries, vectors, rows, squared)
    for value, vector in zip(squared[0], vectors, strict=True):
        exact = sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(queries[0], vector, strict=True))
        # half of what is allowed for: the rest is for the roundings of float64
        assert abs(Fraction(float(value)) - exact) <= Fraction((D + 8) * 2.0**-24) * exact + Fraction(D * 2.0**-126)


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-23, 3e-23, 1e-22, 1e-20, 1e18, 3e19, 1e38])
def test_squares_beyond_float32_are_measured_well(size):
    rng = np.random.default_rng(0)
    vectors = (rng.uniform(-3, 3, (600, 80)) * size).astype(np.float32)
    queries = vectors[:8] if size < 1 else vectors[:8] / 2
    candidates = drawn(rng, 600, 500, 8)
    distances, ids = rerank(queries, candidates, vectors, 20)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 20)
    assert np.allclose(distances, expected, rtol=1e-12, atol=0)
    assert np.array_equal(distances, all_measured(queries, candidates, vectors, 20)[0])
    assert np.array_equal(ids, all_measured(queries, candidates, vectors, 20)[1])
    if size > 1e-40:  # equal ones are in order of id here and there
        assert np.array_equal(ids, expected_ids)


def test_distances_at_the_end_of_float32_are_measured_well():
    rng = np.random.default_rng(0)
    end = float(np.finfo(np.float32).max)
    vectors = ((1.00000003 * end / 80) ** 0.5 * (1 + 1e-7 * rng.normal(size=(600, 80)))).astype(np.float32)
    queries = np.zeros((8, 80), dtype=np.float32)
    candidates = drawn(rng, 600, 500, 8)
    squared = np.empty(candidates.shape)
    estimate_rows(queries, vectors, candidates, squared)
    assert 0 < np.isfinite(squared[0]).sum() < 500
    distances, ids = rerank(queries, candidates, vectors, 125)
    expected, expected_ids = all_measured(queries, candidates, vectors, 125)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


def test_queries_between_the_numbers_of_float32_are_measured_from_where_they_are():
    rng = np.random.default_rng(0)
    vectors = (1000 + 1e-3 * rng.normal(size=(9000, 3))).astype(np.float32)  # some ten steps of float32 apart
    queries = 1000 + 1e-3 * rng.normal(size=(10, 3))
    candidates = drawn(rng, 9000, 2000, 10)
    distances, ids = rerank(queries, candidates, vectors, 20)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 20)
    assert np.allclose(distances, expected, rtol=1e-12, atol=0)
    assert np.array_equal(ids, all_measured(queries, candidates, vectors, 20)[1])
    assert np.mean(ids == expected_ids) > 0.9  # equal vectors are in order of id in both


def test_queries_that_float32_cannot_hold_are_measured_well():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 80)).astype(np.float32)
    queries = rng.normal(size=(8, 80))
    queries[3, 5], queries[4] = 1e300, 1e-320
    queries[5] += 1e9  # rounding moves it as far as vectors are apart
    candidates = drawn(rng, 600, 500, 8)
    with np.errstate(all="raise"):
        distances, ids = rerank(queries, candidates, vectors, 20)
    expected, expected_ids = all_measured(queries, candidates, vectors, 20)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


def test_of_several_tables_each_measures_its_own_rows():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 80)).astype(np.float32) for n in (500, 3, 97)]
    whole, starts = np.concatenate(tables), (0, 500, 503)
    queries = rng.normal(size=(8, 80)).astype(np.float32)
    ids = np.array([rng.permutation(600) for _ in range(8)])
    squared = np.full(ids.shape, np.inf)
    for table, start in zip(tables, starts, strict=True):
        before = squared.copy()
        here = (ids >= start) & (ids < start + len(table))
        squared_distances(queries, table, np.where(here, ids - start, -1), squared, 10)
        assert np.array_equal(squared[~here], before[~here])
    exact = np.empty(ids.shape)
    squared_distances(queries, whole, ids, exact)
    order = np.argsort(exact, axis=1)[:, :10]
    assert np.array_equal(np.argsort(squared, axis=1)[:, :10], order)
    assert np.array_equal(np.take_along_axis(squared, order, axis=1), np.take_along_axis(exact, order, axis=1))
    assert np.any(squared != exact)


@pytest.mark.parametrize("instruction", [False, True])
def test_every_float16_is_decoded_as_the_number_it_is(instruction, monkeypatch):
    if not instruction:
        monkeypatch.setattr(kernels, "machine_has", lambda _: False)

    @numba.njit
    def decoded(bits):
        found = np.empty(len(bits), dtype=np.float32)
        for i in range(len(bits)):
            found[i] = kernels.decode_float16(bits[i])
        return found

    bits = np.arange(2**16).astype(np.uint16)
    with np.errstate(invalid="ignore"):  # some CPUs report signalling NaNs
        numbers = bits.view(np.float16).astype(np.float32)
    finite = np.isfinite(numbers)
    found = decoded(bits)
    assert np.array_equal(found[finite], numbers[finite])
    assert np.array_equal(np.signbit(found[finite]), np.signbit(numbers[finite]))
    assert not np.isfinite(found[~finite]).any()
