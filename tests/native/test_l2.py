"""Squared distances, and estimates of them: no bit of an answer changes, and errors stay within their bound."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.search.candidates import by_sorting, drawn

TYPES = [np.uint8, np.float16, np.float32, np.float64]


def measured(kernels, queries, rows, vectors, wanted=None):
    squared = np.full(rows.shape, np.inf)
    given = np.ascontiguousarray(queries, dtype=np.float64), vectors, np.ascontiguousarray(rows)
    kernels.measure_rows(*given, squared, rows.shape[1] if wanted is None else wanted)
    return squared


def nearest(kernels, queries, candidates, vectors, k):
    """Distances and ids of the nearest, with estimates."""
    squared = measured(kernels, queries, candidates, vectors, k)
    distances, ids = kernels.select_smallest(squared, candidates, k)
    return np.sqrt(distances), ids


def all_measured(kernels, queries, candidates, vectors, k):
    """Answer from the distances of all candidates, none of them estimated."""
    squared = measured(kernels, queries, candidates, vectors)
    order = np.lexsort((candidates, squared), axis=1)[:, :k]
    return np.sqrt(np.take_along_axis(squared, order, axis=1)), np.take_along_axis(candidates, order, axis=1)


def summed_in_order(query, row):
    """The squared distance, summed in 16 accumulators, which are added by halves."""
    squares = np.zeros(-(-len(query) // 16) * 16)
    squares[: len(query)] = (query.astype(np.float64) - row.astype(np.float64)) ** 2
    sums = np.zeros(16)
    for some in squares.reshape(-1, 16):
        sums += some
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    return sums[0]


@given(
    seed=st.integers(0, 2**32), dtype=st.sampled_from(TYPES), D=st.integers(1, 200), offset=st.integers(0, 7),
)  # fmt: skip
def test_sums_are_taken_in_one_order_at_every_level(kernels, seed, dtype, D, offset):
    """Whatever the width, and wherever the vectors begin; the last one ends where its memory ends."""
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=offset + 9 * D) * 20 + 100).astype(dtype)[offset:].reshape(9, D)
    queries = rng.normal(size=(3, D)) * 20 + 100
    rows = drawn(rng, 9, 9, 3)
    rows[0, 4] = -1
    squared = measured(kernels, queries, rows, vectors)
    assert squared[0, 4] == np.inf
    for q, c in np.argwhere(rows >= 0):
        assert squared[q, c] == summed_in_order(queries[q], vectors[rows[q, c]])


@given(seed=st.integers(0, 2**32), D=st.integers(1, 300), dtype=st.sampled_from(TYPES))
def test_whole_numbers_are_measured_without_error(kernels, seed, D, dtype):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 256, (40, D)).astype(dtype)
    queries = rng.integers(0, 256, (4, D)).astype(np.float64)
    vectors[:2], queries[0] = [[0], [255]], 255
    rows = drawn(rng, 40, 40, 4)
    expected = ((queries.astype(np.int64)[:, None] - vectors.astype(np.int64)[rows]) ** 2).sum(axis=2)
    assert np.array_equal(measured(kernels, queries, rows, vectors), expected)


@pytest.mark.parametrize("D", [33025, 33026, 70000])
def test_sums_of_many_bytes_fit(kernels, D):
    vectors = np.stack([np.zeros(D), np.full(D, 255)]).astype(np.uint8)
    assert measured(kernels, vectors[1:], np.array([[0, 1]]), vectors).tolist() == [[D * 255.0**2, 0]]


@pytest.mark.parametrize("odd", [0.5, -1.0, 256.0, 65536.0, 1e9, -0.25, 254.99999, 1e30])
def test_queries_that_are_not_bytes_are_not_taken_for_bytes(kernels, odd):
    vectors = np.random.default_rng(0).integers(0, 256, (30, 40)).astype(np.uint8)
    queries = vectors[:3].astype(np.float64)
    queries[1, 39] = odd
    squared = measured(kernels, queries, np.tile(np.arange(30), (3, 1)), vectors)
    assert squared[1, 5] == summed_in_order(queries[1], vectors[5])
    assert squared[1, 1] == (vectors[1, 39] - odd) ** 2


def test_what_is_no_row_or_no_type_is_an_error(kernels):
    rows, vectors = np.zeros((1, 2), dtype=np.int64), np.zeros((3, 4), dtype=np.float32)
    for wrong, message in [
        ((np.zeros((1, 4)), vectors, rows + 3), "rows of the vectors"),
        ((np.zeros((1, 5)), vectors, rows), "as wide as the queries"),
        ((np.zeros((2, 4)), vectors, rows), "a row for each query"),
        ((np.zeros((1, 4)), vectors.astype(np.int32), rows), "float16"),
    ]:
        with pytest.raises(ValueError, match=message):
            kernels.measure_rows(*wrong, np.empty((1, 2)), 2)


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
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([np.uint8, np.float16, np.float32]),
    query_dtype=st.sampled_from([np.float32, np.float64]),
    D=st.sampled_from([1, 3, 16, 40, 129]),
)
def test_estimates_change_no_bit_of_the_answer(kernels, seed, dtype, query_dtype, D):
    rng = np.random.default_rng(seed)
    vectors, centre = hardly_apart(rng, dtype, 300, D)
    queries = (centre + rng.choice([0, 1e-6, 1], (6, 1)) * rng.normal(size=(6, D))).astype(query_dtype)
    candidates = drawn(rng, 300, 200, 6)
    k = int(rng.integers(1, 51))
    distances, ids = nearest(kernels, queries, candidates, vectors, k)
    expected, expected_ids = all_measured(kernels, queries, candidates, vectors, k)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("query_dtype", [np.float32, np.float64])
def test_estimates_leave_hardly_more_than_is_wanted(kernels, dtype, query_dtype):
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(2000, 96)) * 20 + 100).astype(dtype)
    queries = (rng.normal(size=(30, 96)) * 20 + 100).astype(query_dtype)
    candidates = drawn(rng, 2000, 500, 30)
    squared = measured(kernels, queries, candidates, vectors, 10)
    exact = measured(kernels, queries, candidates, vectors)
    undecided = np.where(squared == exact, candidates, -1)
    assert np.all((undecided >= 0).sum(axis=1) <= 20)
    distances, ids = nearest(kernels, queries, candidates, vectors, 10)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 10)
    assert np.array_equal(ids, expected_ids)
    assert np.allclose(distances, expected, rtol=1e-12)
    assert all(set(near) <= set(row) for near, row in zip(ids, undecided, strict=True))


@given(
    seed=st.integers(0, 2**32), D=st.sampled_from([1, 7, 64, 300]), exponent=st.sampled_from([-22, -18, -3, 0, 5, 16])
)
def test_the_error_of_estimates_is_within_its_bound(kernels, seed, D, exponent):
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(20, D)) * 10.0 ** (exponent + rng.uniform(-1, 1, (20, D)))).astype(np.float32)
    queries = (rng.normal(size=(1, D)) * 10.0**exponent).astype(np.float32)
    vectors[0] = queries  # so that all others are only estimated, if float32 can do it
    squared = measured(kernels, queries, np.arange(20)[None], vectors, 1)
    for value, vector in zip(squared[0], vectors, strict=True):
        exact = sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(queries[0], vector, strict=True))
        # half of what is allowed for: the rest is for the roundings of float64
        assert abs(Fraction(float(value)) - exact) <= Fraction((D + 8) * 2.0**-24) * exact + Fraction(D * 2.0**-126)
    if exponent >= -3 and D > 1:
        assert np.any(squared != measured(kernels, queries, np.arange(20)[None], vectors))


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-23, 3e-23, 1e-22, 1e-20, 1e18, 3e19, 1e38])
def test_squares_beyond_float32_are_measured_well(kernels, size):
    rng = np.random.default_rng(0)
    vectors = (rng.uniform(-3, 3, (600, 80)) * size).astype(np.float32)
    queries = vectors[:8] if size < 1 else vectors[:8] / 2
    candidates = drawn(rng, 600, 500, 8)
    distances, ids = nearest(kernels, queries, candidates, vectors, 20)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 20)
    assert np.allclose(distances, expected, rtol=1e-12, atol=0)
    assert np.array_equal(distances, all_measured(kernels, queries, candidates, vectors, 20)[0])
    assert np.array_equal(ids, all_measured(kernels, queries, candidates, vectors, 20)[1])
    if size > 1e-40:  # equal ones are in order of id here and there
        assert np.array_equal(ids, expected_ids)


def test_distances_at_the_end_of_float32_are_measured_well(kernels):
    rng = np.random.default_rng(0)
    end = float(np.finfo(np.float32).max)
    vectors = ((1.00000003 * end / 80) ** 0.5 * (1 + 1e-7 * rng.normal(size=(600, 80)))).astype(np.float32)
    queries = np.zeros((8, 80), dtype=np.float32)
    candidates = drawn(rng, 600, 500, 8)
    assert 0 < np.sum((vectors.astype(np.float64) ** 2).sum(axis=1) < end) < 600
    distances, ids = nearest(kernels, queries, candidates, vectors, 125)
    expected, expected_ids = all_measured(kernels, queries, candidates, vectors, 125)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


def test_queries_between_the_numbers_of_float32_are_measured_from_where_they_are(kernels):
    rng = np.random.default_rng(0)
    vectors = (1000 + 1e-3 * rng.normal(size=(9000, 3))).astype(np.float32)  # some ten steps of float32 apart
    queries = 1000 + 1e-3 * rng.normal(size=(10, 3))
    candidates = drawn(rng, 9000, 2000, 10)
    distances, ids = nearest(kernels, queries, candidates, vectors, 20)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 20)
    assert np.allclose(distances, expected, rtol=1e-12, atol=0)
    assert np.array_equal(ids, all_measured(kernels, queries, candidates, vectors, 20)[1])
    assert np.mean(ids == expected_ids) > 0.9  # equal vectors are in order of id in both


def test_queries_that_float32_cannot_hold_are_measured_well(kernels):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 80)).astype(np.float32)
    queries = rng.normal(size=(8, 80))
    queries[3, 5], queries[4] = 1e300, 1e-320
    queries[5] += 1e9  # rounding moves it as far as vectors are apart
    candidates = drawn(rng, 600, 500, 8)
    with np.errstate(all="raise"):
        distances, ids = nearest(kernels, queries, candidates, vectors, 20)
    expected, expected_ids = all_measured(kernels, queries, candidates, vectors, 20)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


def test_of_several_tables_each_measures_its_own_rows(kernels):
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 80)).astype(np.float32) for n in (500, 3, 97)]
    whole, starts = np.concatenate(tables), (0, 500, 503)
    queries = rng.normal(size=(8, 80)).astype(np.float32)
    ids = np.array([rng.permutation(600) for _ in range(8)])
    squared = np.full(ids.shape, np.inf)
    for table, start in zip(tables, starts, strict=True):
        before = squared.copy()
        here = (ids >= start) & (ids < start + len(table))
        kernels.measure_rows(queries.astype(np.float64), table, np.where(here, ids - start, -1), squared, 10)
        assert np.array_equal(squared[~here], before[~here])
    exact = measured(kernels, queries, ids, whole)
    order = np.argsort(exact, axis=1)[:, :10]
    assert np.array_equal(np.argsort(squared, axis=1)[:, :10], order)
    assert np.array_equal(np.take_along_axis(squared, order, axis=1), np.take_along_axis(exact, order, axis=1))
    assert np.any(squared != exact)


def test_every_float16_is_decoded_as_the_number_it_is(kernels):
    bits = np.arange(2**16).astype(np.uint16)
    with np.errstate(invalid="ignore"):  # some CPUs report signalling NaNs
        numbers = bits.view(np.float16).astype(np.float64)
    finite = np.isfinite(numbers)
    for query in (0.0, 1.0):  # the second shows the sign
        squared = measured(kernels, [[query]], np.arange(2**16)[None], bits.view(np.float16)[:, None])[0]
        assert np.array_equal(squared[finite], (query - numbers[finite]) ** 2)
        assert not np.isfinite(squared[~finite]).any()
