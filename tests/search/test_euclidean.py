"""Re-ranking against distances written out, from memory, from a memory map and through a function."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.search import euclidean, rerank
from autojacobin.search.euclidean import squared_distances
from tests.search.candidates import by_sorting, drawn


@given(st.integers(0, 2**32), st.sampled_from([np.uint8, np.float16, np.float32, np.float64]), st.integers(1, 9))
def test_equals_sorting_with_ties_by_lower_id(seed, dtype, D):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 3, (40, D)).astype(dtype)  # few values: many equal distances
    queries = rng.integers(0, 3, (6, D)).astype(dtype)
    c = int(rng.integers(1, 41))
    candidates = drawn(rng, 40, c, 6)
    k = int(rng.integers(1, c + 1))
    distances, ids = rerank(queries, candidates, vectors, k)
    expected, expected_ids = by_sorting(queries, candidates, vectors, k)
    assert np.allclose(distances, expected, rtol=1e-12)
    assert np.array_equal(ids, expected_ids)


def test_memory_map_function_and_blocks_give_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 20)).astype(np.float32)
    queries = rng.normal(size=(30, 20)).astype(np.float32)
    candidates = drawn(rng, 500, 50, 30)
    expected = rerank(queries, candidates, vectors, 10)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    asked = []

    def fetch(ids):
        asked.append(ids)
        return vectors[ids]

    monkeypatch.setattr(euclidean, "_NUMBERS_PER_BLOCK", 50 * 20 * 4)  # four queries a block
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
def test_float16_is_read_exactly(seed, D):
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
    candidates = drawn(rng, 60, 40, 5)
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


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
def test_rows_below_zero_are_left_out(dtype):
    vectors = np.arange(12).reshape(4, 3).astype(dtype)
    squared = np.full((1, 4), 7.0)
    squared_distances(np.zeros((1, 3), dtype=np.float32), vectors, np.array([[2, -1, 0, -1]]), squared)
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_one_wrong_vector_among_many_is_named_by_its_row(dtype, wrong):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(600, 80)).astype(dtype)
    vectors[417, 79] = wrong
    candidates = np.tile(rng.permutation(600), (8, 1))
    with pytest.raises(DataError, match="in row 417, column 79"):
        rerank(vectors[:8], candidates, vectors, 5)
