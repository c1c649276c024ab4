"""Re-ranking against distances written out, from memory, from a memory map and through a function."""

import importlib
from fractions import Fraction

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.search import _estimates, _single_gaps, rerank
from autojacobin.search._byte_gaps import LONGEST
from autojacobin.search._estimates import are_estimated, estimate
from autojacobin.search._euclidean import measure
from autojacobin.search._heaps import select_nearest


def by_sorting(queries, candidates, vectors, k):
    rows = []
    for query, ids in zip(queries, candidates, strict=True):
        gaps = [(float(np.sum((query.astype(float) - vectors[i].astype(float)) ** 2)) ** 0.5, i) for i in ids]
        rows.append(sorted(gaps)[:k])
    return np.array([[d for d, _ in row] for row in rows]), np.array([[i for _, i in row] for row in rows])


@given(st.integers(0, 2**32), st.sampled_from([np.uint8, np.float16, np.float32, np.float64]), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_equals_sorting_with_ties_by_lower_id(seed, dtype, D):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 3, (40, D)).astype(dtype)  # few values: many equal distances
    queries = rng.integers(0, 3, (6, D)).astype(dtype)
    c = int(rng.integers(1, 41))
    candidates = np.array([rng.permutation(40)[:c] for _ in range(6)])
    k = int(rng.integers(1, c + 1))
    distances, ids = rerank(queries, candidates, vectors, k)
    expected, expected_ids = by_sorting(queries, candidates, vectors, k)
    assert np.allclose(distances, expected, rtol=1e-12)
    assert np.array_equal(ids, expected_ids)


def test_memory_map_function_and_blocks_give_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 20)).astype(np.float32)
    queries = rng.normal(size=(30, 20)).astype(np.float32)
    candidates = np.array([rng.permutation(500)[:50] for _ in range(30)])
    expected = rerank(queries, candidates, vectors, 10)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    asked = []

    def fetch(ids):
        asked.append(ids)
        return vectors[ids]

    module = importlib.import_module("autojacobin.search.rerank")
    monkeypatch.setattr(module, "_NUMBERS_PER_BLOCK", 50 * 20 * 4)  # four queries a block
    for source in (mapped, fetch):
        distances, ids = rerank(queries, candidates, source, 10)
        assert np.array_equal(distances, expected[0])
        assert np.array_equal(ids, expected[1])
    assert len(asked) == 8
    assert all(np.all(np.diff(ids) > 0) for ids in asked)  # each vector once, in the order of the file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.0, 1.0]], [[0, 3]], np.zeros((3, 2)), 1), "rows of vectors, from 0 to 2, got 3"),
        (([[0.0, 1.0]], [[-1, 1]], np.zeros((3, 2)), 1), "got -1"),
        (([[0.0, 1.0]], [[0, 1]], np.zeros((3, 5)), 1), "the 2 features of the queries, got 5"),
        (([[0.0, 1.0]], [0, 1], np.zeros((3, 2)), 1), "a row for each of the 1 queries"),
        (([[0.0, 1.0]], [[0.5, 1.0]], np.zeros((3, 2)), 1), "matrix of ids"),
        (([[0.0, 1.0]], [[0, 1]], np.zeros((3, 2)), 3), "from 1 to 2, the size of the candidates, got 3"),
        (([[0.0, np.nan]], [[0, 1]], np.zeros((3, 2)), 1), "contains NaN in row 0, column 1"),
        (([[0.0, 1.0]], [[0, 1]], np.full((3, 2), np.inf), 1), "contains inf"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(DataError, match=message):
        rerank(*arguments)


def test_no_queries_are_no_answers():
    distances, ids = rerank(np.empty((0, 2)), np.empty((0, 5), dtype=int), np.zeros((9, 2)), 3)
    assert distances.shape == ids.shape == (0, 3)


@given(st.integers(0, 2**32), st.integers(1, 70))
@settings(deadline=None, max_examples=40)
def test_halves_are_read_as_the_numbers_they_are(seed, D):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**16, (30, D)).astype(np.uint16)
    bits[(bits & 0x7C00) == 0x7C00] &= 0x83FF  # no infinities; what is left of them is subnormal
    vectors = bits.view(np.float16)
    queries = rng.normal(size=(4, D)).astype(np.float32)
    candidates = np.array([rng.permutation(30) for _ in range(4)])
    distances, ids = rerank(queries, candidates, vectors, 30)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 30)
    assert np.allclose(distances, expected, rtol=1e-12)
    assert np.array_equal(np.sort(ids, axis=1), np.sort(expected_ids, axis=1))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_named_by_their_row(dtype, wrong):
    vectors = np.zeros((9, 3), dtype=dtype)
    vectors[7, 1] = wrong
    with pytest.raises(DataError, match="in row 7, column 1"):
        rerank([[1.0, 2.0, 3.0]], [[1, 7, 2]], vectors, 2)
    assert rerank([[1.0, 2.0, 3.0]], [[1, 2, 3]], vectors, 2)[1].tolist() == [[1, 2]]


@pytest.mark.parametrize("dtype", [np.int32, np.int64, ">f4", np.bool_])
def test_other_numbers_and_orders_in_memory_are_converted(dtype):
    rng = np.random.default_rng(0)
    vectors = rng.integers(0, 2, (60, 11)).astype(dtype)
    queries = rng.normal(size=(5, 11)).astype(np.float32)
    candidates = np.array([rng.permutation(60)[:40] for _ in range(5)])
    for source in (vectors, np.asfortranarray(vectors), np.repeat(vectors, 2, axis=1)[:, ::2]):
        distances, ids = rerank(queries, candidates, source, 12)
        expected, expected_ids = by_sorting(queries, candidates, vectors.astype(np.float32), 12)
        assert np.allclose(distances, expected, rtol=1e-12)
        assert np.array_equal(distances, np.sort(distances, axis=1))
        assert [len(set(row)) for row in ids] == [12] * 5
        assert np.array_equal(ids[:, :3], expected_ids[:, :3])


def test_distances_beyond_float64_are_infinite_and_ordered_by_id():
    vectors = np.array([[1e200, 0.0], [0.0, 1.0], [-1e200, 0.0]])
    distances, ids = rerank([[0.0, 0.0]], [[2, 0, 1]], vectors, 3)
    assert distances.tolist() == [[1.0, np.inf, np.inf]]
    assert ids.tolist() == [[1, 0, 2]]


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 31, 32, 33, 63, 96, 127, 128, 129, 160, 300]))
@settings(deadline=None, max_examples=40)
def test_bytes_are_measured_exactly(seed, D):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 256, (50, D)).astype(np.uint8)
    queries = rng.integers(0, 256, (5, D)).astype(rng.choice([np.uint8, np.float32, np.float64]))
    vectors[:2], queries[0] = [[0], [255]], 255
    candidates = np.array([rng.permutation(50)[:40] for _ in range(5)])
    distances, ids = rerank(queries, candidates, vectors, 40)
    squared = ((queries.astype(np.int64)[:, None] - vectors[candidates].astype(np.int64)) ** 2).sum(axis=2)
    order = np.lexsort((candidates, squared), axis=1)
    assert np.array_equal(ids, np.take_along_axis(candidates, order, axis=1))
    assert np.array_equal(distances, np.sqrt(np.take_along_axis(squared, order, axis=1)))


@pytest.mark.parametrize("odd", [0.5, -1.0, 256.0, 1e9, -0.25])
def test_queries_that_are_not_bytes_are_not_taken_for_bytes(odd):
    rng = np.random.default_rng(0)
    vectors = rng.integers(0, 256, (30, 40)).astype(np.uint8)
    queries = rng.integers(0, 256, (3, 40)).astype(np.float32)
    queries[1, 17] = odd
    candidates = np.tile(np.arange(30), (3, 1))
    distances, ids = rerank(queries, candidates, vectors, 30)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 30)
    assert np.allclose(distances, expected, rtol=1e-14)
    assert np.array_equal(ids, expected_ids)


@pytest.mark.parametrize("D", [LONGEST, LONGEST + 1])
def test_long_vectors_of_bytes_do_not_overflow(D):
    vectors = np.array([[0], [255], [3]], dtype=np.uint8).repeat(D, axis=1)
    distances, ids = rerank(vectors[1:2], [[0, 1, 2]], vectors, 3)
    assert ids.tolist() == [[1, 2, 0]]
    assert np.array_equal(distances, [[0.0, np.sqrt(252**2 * D), np.sqrt(255**2 * D)]])


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_rows_below_zero_are_left_out(dtype):
    vectors = np.arange(12).reshape(4, 3).astype(dtype)
    squared = np.full((1, 4), 7.0)
    measure(np.zeros((1, 3), dtype=np.float32), vectors, np.array([[2, -1, 0, -1]]), squared)
    assert squared.tolist() == [[36.0 + 49 + 64, 7.0, 0.0 + 1 + 4, 7.0]]


@pytest.mark.parametrize("offset", [0, 1, 16, 63])
def test_vectors_may_begin_anywhere_in_memory(offset):
    rng = np.random.default_rng(0)
    room = rng.integers(0, 256, 70 * 45 + 64).astype(np.uint8)
    vectors = room[offset : offset + 70 * 45].reshape(70, 45)
    candidates = np.tile(np.arange(70), (2, 1))
    distances, ids = rerank(vectors[:2], candidates, vectors, 70)
    expected, expected_ids = by_sorting(vectors[:2], candidates, vectors, 70)
    assert np.array_equal(ids, expected_ids)
    assert np.allclose(distances, expected, rtol=1e-14)


def all_measured(queries, candidates, vectors, k):
    """Answer from the distances of all candidates, none of them estimated."""
    squared = np.empty(candidates.shape)
    measure(queries, vectors, candidates, squared)
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
@settings(deadline=None, max_examples=80)
def test_estimates_change_no_bit_of_the_answer(seed, dtype, query_dtype, D):
    rng = np.random.default_rng(seed)
    vectors, centre = hardly_apart(rng, dtype, 300, D)
    queries = (centre + rng.choice([0, 1e-6, 1], (6, 1)) * rng.normal(size=(6, D))).astype(query_dtype)
    candidates = np.array([rng.permutation(300)[:200] for _ in range(6)])
    k = int(rng.integers(1, 51))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_estimates, "_FEWEST_NUMBERS", 0)
        assert are_estimated(vectors, candidates, k)
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
    candidates = np.array([rng.permutation(2000)[:500] for _ in range(30)])
    squared = np.empty(candidates.shape)
    undecided = estimate(queries, vectors, candidates, 10, squared)
    assert np.all((undecided.rows >= 0).sum(axis=1) <= 20)
    distances, ids = rerank(queries, candidates, vectors, 10)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 10)
    assert np.array_equal(ids, expected_ids)
    assert np.allclose(distances, expected, rtol=1e-12)
    assert all(set(near) <= set(row) for near, row in zip(ids, undecided.rows, strict=True))


@given(st.integers(0, 2**32), st.sampled_from([1, 7, 64, 300]), st.sampled_from([-22, -18, -3, 0, 5, 16]))
@settings(deadline=None, max_examples=40)
def test_the_error_of_estimates_is_within_its_bound(seed, D, exponent):
    rng = np.random.default_rng(seed)
    vectors = (rng.normal(size=(20, D)) * 10.0 ** (exponent + rng.uniform(-1, 1, (20, D)))).astype(np.float32)
    queries = (rng.normal(size=(1, D)) * 10.0**exponent).astype(np.float32)
    rows, squared = np.arange(20)[None], np.empty((1, 20))
    estimate(queries, vectors, rows, 1, squared)
    for value, vector in zip(squared[0], vectors, strict=True):
        exact = sum((Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(queries[0], vector, strict=True))
        # half of what is allowed for: the rest is for the roundings of float64
        assert abs(Fraction(float(value)) - exact) <= Fraction((D + 8) * 2.0**-24) * exact + Fraction(D * 2.0**-126)


@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e-23, 3e-23, 1e-22, 1e-20, 1e18, 3e19, 1e38])
def test_squares_beyond_float32_are_measured_well(size):
    rng = np.random.default_rng(0)
    vectors = (rng.uniform(-3, 3, (600, 80)) * size).astype(np.float32)
    queries = vectors[:8] if size < 1 else vectors[:8] / 2
    candidates = np.array([rng.permutation(600)[:500] for _ in range(8)])
    assert are_estimated(vectors, candidates, 20)
    distances, ids = rerank(queries, candidates, vectors, 20)
    expected, expected_ids = by_sorting(queries, candidates, vectors, 20)
    assert np.allclose(distances, expected, rtol=1e-12, atol=0)
    assert np.array_equal(distances, all_measured(queries, candidates, vectors, 20)[0])
    assert np.array_equal(ids, all_measured(queries, candidates, vectors, 20)[1])
    if size > 1e-40:  # equal ones are in order of id here and there
        assert np.array_equal(ids, expected_ids)


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([np.float32, np.float64]))
@settings(deadline=None, max_examples=40)
def test_the_smallest_are_selected_in_order_of_id(seed, k, dtype):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(k, 900))
    squared = rng.integers(0, rng.integers(1, 500), (3, n)).astype(dtype)
    squared[rng.random((3, n)) < rng.choice([0, 0.1, 0.9])] = np.inf
    ids = np.array([rng.permutation(n) for _ in range(3)])
    near, near_ids = np.empty((3, k)), np.empty((3, k), dtype=np.int64)
    select_nearest(squared, ids, k, near, near_ids)
    order = np.lexsort((ids, squared), axis=1)[:, :k]
    assert np.array_equal(near, np.take_along_axis(squared, order, axis=1))
    assert np.array_equal(near_ids, np.take_along_axis(ids, order, axis=1))


def test_distances_at_the_end_of_float32_are_measured_well():
    rng = np.random.default_rng(0)
    end = float(np.finfo(np.float32).max)
    vectors = ((1.00000003 * end / 80) ** 0.5 * (1 + 1e-7 * rng.normal(size=(600, 80)))).astype(np.float32)
    queries = np.zeros((8, 80), dtype=np.float32)
    candidates = np.array([rng.permutation(600)[:500] for _ in range(8)])
    squared = np.empty(candidates.shape)
    estimate(queries, vectors, candidates, 125, squared)
    assert 0 < np.isfinite(squared[0]).sum() < 500
    distances, ids = rerank(queries, candidates, vectors, 125)
    expected, expected_ids = all_measured(queries, candidates, vectors, 125)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


def test_queries_between_the_numbers_of_float32_are_measured_from_where_they_are():
    rng = np.random.default_rng(0)
    vectors = (1000 + 1e-3 * rng.normal(size=(9000, 3))).astype(np.float32)  # some ten steps of float32 apart
    queries = 1000 + 1e-3 * rng.normal(size=(100, 3))
    candidates = np.array([rng.permutation(9000)[:2000] for _ in range(100)])
    assert are_estimated(vectors, candidates, 20)
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
    candidates = np.array([rng.permutation(600)[:500] for _ in range(8)])
    with np.errstate(all="raise"):
        distances, ids = rerank(queries, candidates, vectors, 20)
    expected, expected_ids = all_measured(queries, candidates, vectors, 20)
    assert np.array_equal(distances, expected)
    assert np.array_equal(ids, expected_ids)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_wrong_vector_among_many_is_named_by_its_row(dtype, wrong):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 80)).astype(dtype)
    vectors[417, 79] = wrong
    candidates = np.tile(rng.permutation(600), (8, 1))
    with pytest.raises(DataError, match="in row 417, column 79"):
        rerank(vectors[:8], candidates, vectors, 5)


def test_of_several_tables_each_measures_its_own_rows():
    rng = np.random.default_rng(0)
    tables = [rng.normal(size=(n, 80)).astype(np.float32) for n in (500, 3, 97)]
    whole, starts = np.concatenate(tables), (0, 500, 503)
    queries = rng.normal(size=(8, 80)).astype(np.float32)
    ids = np.array([rng.permutation(600) for _ in range(8)])
    squared = np.full(ids.shape, -1.0)
    for table, start in zip(tables, starts, strict=True):
        before = squared.copy()
        here = (ids >= start) & (ids < start + len(table))
        measure(queries, table, np.where(here, ids - start, -1), squared, 10)
        assert np.array_equal(squared[~here], before[~here])
    exact = np.empty(ids.shape)
    measure(queries, whole, ids, exact)
    order = np.argsort(exact, axis=1)[:, :10]
    assert np.array_equal(np.argsort(squared, axis=1)[:, :10], order)
    assert np.array_equal(np.take_along_axis(squared, order, axis=1), np.take_along_axis(exact, order, axis=1))
    assert np.any(squared != exact)


@pytest.mark.parametrize(
    ("dtype", "order", "there", "wanted", "expected"),
    [
        (np.float32, "C", 500, 10, True),
        (np.float16, "C", 500, 125, True),
        (np.float32, "C", 500, 126, False),  # too large a share is wanted
        (np.float32, "C", 30, 10, False),  # nearly all lie elsewhere
        (np.float64, "C", 500, 10, False),
        (np.float32, "F", 500, 10, False),
        (">f4", "C", 500, 10, False),
    ],
)
def test_estimates_are_made_where_they_can_be_and_help(dtype, order, there, wanted, expected):
    rows = np.tile(np.where(np.arange(500) < there, np.arange(500), -1), (40, 1))
    assert are_estimated(np.zeros((500, 80), dtype=dtype, order=order), rows, wanted) == expected
    assert not are_estimated(np.zeros((500, 4), dtype=dtype, order=order), rows, wanted)  # too little to do


@pytest.mark.parametrize("instruction", [False, True])
def test_every_half_is_subtracted_as_the_number_it_is(instruction, monkeypatch):
    if not instruction:
        monkeypatch.setattr(_single_gaps, "machine_has", lambda _: False)

    @numba.njit
    def gaps(singles, bits):
        found = np.empty(len(bits), dtype=np.float32)
        for i in range(len(bits)):
            found[i] = _single_gaps.single_gap(singles[i], bits[i])
        return found

    bits = np.arange(2**16).astype(np.uint16)
    numbers = bits.view(np.float16).astype(np.float32)
    singles = np.random.default_rng(0).normal(size=2**16).astype(np.float32)
    finite = np.isfinite(numbers)
    found = gaps(singles, bits)
    assert np.array_equal(found[finite], singles[finite] - numbers[finite])
    assert not np.isfinite(found[~finite]).any()
    assert np.array_equal(gaps(np.zeros(2**16, dtype=np.float32), bits)[finite], -numbers[finite])
