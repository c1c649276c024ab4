"""Re-ranking against distances written out, from memory, from a memory map and through a function."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.search import rerank


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
