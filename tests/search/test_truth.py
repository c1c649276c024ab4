"""Ground truth against sorting all distances, where float32 products alone would go wrong."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth
from autojacobin.search import truth
from autojacobin.search.truth import error_factor


def slow_truth(base, queries, k):
    rows = []
    for query in queries:
        distances = [sum((int(a) - int(b)) ** 2 for a, b in zip(query, point, strict=True)) for point in base]
        rows.append(sorted(range(len(base)), key=lambda i: (distances[i], i))[:k])
    return np.array(rows).reshape(len(queries), k)


def sorted_truth(base, queries, k):
    gaps = queries[:, None].astype(np.float64) - base[None].astype(np.float64)
    return np.argsort((gaps * gaps).sum(axis=2), axis=1, kind="stable")[:, :k]


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 6), st.integers(1, 4))
def test_whole_numbers_equal_sorting_with_ties_by_lower_id(seed, n, D, levels):
    rng = np.random.default_rng(seed)
    base = rng.integers(0, levels, (n, D), dtype=np.uint8)  # few levels: many equal distances
    queries = rng.integers(0, levels, (3, D), dtype=np.uint8)
    k = int(rng.integers(1, n + 1))
    assert np.array_equal(ground_truth(base, queries, k), slow_truth(base, queries, k))


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32, np.float64])
def test_points_of_every_type_are_compared_without_error(dtype):
    rng = np.random.default_rng(0)
    base, queries = rng.integers(0, 4, (300, 5)).astype(dtype), rng.integers(0, 4, (20, 5)).astype(dtype)
    reported = []
    found = ground_truth(base, queries, 40, progress=lambda *step: reported.append(step))
    assert np.array_equal(found, slow_truth(base, queries, 40))
    assert reported == [("ground truth", 1, 1)]
    assert ground_truth(base, queries[:0], 40).shape == (0, 40)


VECTORS = {
    "normal": lambda rng, shape: rng.normal(size=shape).astype(np.float32),
    "half precision": lambda rng, shape: rng.normal(size=shape).astype(np.float16),
    "far from the origin": lambda rng, shape: (rng.normal(size=shape) + 1e4).astype(np.float32),
    "negative": lambda rng, shape: -50 - 10 * rng.random(shape),
    "closer than float32 tells": lambda rng, shape: 1 + 1e-12 * rng.normal(size=shape),
    "duplicates": lambda rng, shape: rng.normal(size=(3, shape[1]))[rng.integers(0, 3, shape[0])],
    "steps of a tenth": lambda rng, shape: 0.1 * rng.integers(0, 3, shape),
    "all magnitudes": lambda rng, shape: rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30, (shape[0], 1)),
    "truth values": lambda rng, shape: rng.random(shape) < 0.5,
    "small whole numbers as floats": lambda rng, shape: rng.integers(0, 4, shape).astype(np.float32),
    "constant": lambda rng, shape: np.full(shape, 7.5),
}


@pytest.mark.parametrize("kind", list(VECTORS))
@given(st.integers(0, 2**32), st.integers(1, 4000), st.integers(1, 20), st.integers(1, 40), st.integers(1, 4000))
@settings(max_examples=12)
def test_equals_sorting_float64_distances(kind, seed, n, D, k, per_block):
    rng = np.random.default_rng(seed)
    base = VECTORS[kind](rng, (n, D))
    near = rng.integers(0, n, 2)
    queries = np.concatenate([base[near], VECTORS[kind](rng, (2, D))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(truth, "_DISTANCES_PER_BLOCK", 4 * per_block)
        found = ground_truth(base, queries, min(k, n))
    assert np.array_equal(found, sorted_truth(base, queries, min(k, n)))


@pytest.mark.parametrize("reach", [2**7, 2**15, 2**31, 2**52])
def test_large_whole_numbers_are_compared_without_error(reach):
    rng = np.random.default_rng(reach)
    base = rng.integers(-reach, reach, (60, 5))
    base[30:] = base[:30, ::-1]  # the same distances from a query that reads the same backwards
    base[::7, 0] += 1
    queries = np.array([[1, 2, 3, 2, 1], [reach - 1, 0, 0, 0, reach - 1]])
    kind = np.int64 if reach > 2**31 else np.min_scalar_type(-reach)
    base = np.minimum(base, reach - 1).astype(kind)
    assert np.array_equal(ground_truth(base, queries.astype(kind), 60), slow_truth(base, queries, 60))


def test_small_whole_numbers_are_followed_by_large_ones(monkeypatch):
    rng = np.random.default_rng(0)
    base = rng.integers(0, 3, (3000, 4)).astype(np.int16)
    base[2000:] *= 3000  # squared norms above 2^24, which float32 rounds
    base[2500:] //= 3000
    queries = np.concatenate([base[:3], base[2100:2103]])
    monkeypatch.setattr(truth, "_DISTANCES_PER_BLOCK", 6 * 500)
    assert np.array_equal(ground_truth(base, queries, 20), sorted_truth(base, queries, 20))


@pytest.mark.parametrize("size", [1e-300, 1e-200, 1e200, 1e307])
def test_neither_overflow_nor_underflow(size):
    rng = np.random.default_rng(1)
    plain = rng.normal(size=(200, 6))
    base, queries = plain * size, plain[:5] * size
    assert np.array_equal(ground_truth(base, queries, 10), ground_truth(plain, plain[:5], 10))


def test_points_and_queries_beyond_float32_are_found():
    rng = np.random.default_rng(2)
    base = rng.normal(size=(5000, 4))
    base[4321] = 1e60
    base[[17, 4000]] = -1e45
    queries = np.concatenate([base[:2], [[2e60] * 4, [-1e44] * 4]])
    assert np.array_equal(ground_truth(base, queries, 7), sorted_truth(base, queries, 7))


def test_more_equal_points_than_there_is_memory_for():
    # Screening cannot tell these apart, so they are measured again and again.
    base = np.repeat(np.array([[0.1, 0.2], [0.3, 0.4]]), 5000, axis=0)[np.random.default_rng(0).permutation(10000)]
    queries = np.array([[0.1, 0.2], [0.3, 0.4]])
    assert np.array_equal(ground_truth(base, queries, 50), sorted_truth(base, queries, 50))


def test_mixed_kinds_of_numbers():
    rng = np.random.default_rng(3)
    base = rng.integers(0, 256, (500, 8), dtype=np.uint8)
    queries = rng.random((4, 8)) * 255
    assert np.array_equal(ground_truth(base, queries, 9), sorted_truth(base, queries, 9))
    assert np.array_equal(ground_truth(queries, base, 2), sorted_truth(queries, base, 2))


def test_any_blocks_give_the_same_answer(monkeypatch):
    X = load_set("digits").base
    whole = ground_truth(X, X[:50], 7)
    monkeypatch.setattr(truth, "_DISTANCES_PER_BLOCK", len(X) * 3)
    assert np.array_equal(ground_truth(X, X[:50], 7), whole)
    monkeypatch.setattr(truth, "_MOST_QUERIES", 7)
    monkeypatch.setattr(truth, "_NUMBERS_PER_BLOCK", 100 * X.shape[1])
    assert np.array_equal(ground_truth(X, X[:50], 7), whole)


def test_no_queries_and_all_of_the_base():
    base = np.arange(12.0).reshape(6, 2)
    assert ground_truth(base, base[:0], 3).shape == (0, 3)
    assert ground_truth(base, base[:1], 6).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_a_memory_map_is_not_copied(tmp_path):
    rng = np.random.default_rng(4)
    np.save(tmp_path / "base.npy", rng.integers(0, 256, (400_000, 128), dtype=np.uint8))
    base = np.load(tmp_path / "base.npy", mmap_mode="r")
    tracemalloc.start()
    found = ground_truth(base, base[:3], 4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(found[:, 0], [0, 1, 2])
    assert peak < 2 * base.nbytes  # as float32 it would be four times as large


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr(truth, "_MOST_QUERIES", 2)
    monkeypatch.setattr(truth, "_NUMBERS_PER_BLOCK", 20)
    reported = []
    ground_truth(np.eye(20), np.eye(20)[:3], 1, progress=lambda *step: reported.append(step))
    assert reported == [("ground truth", done, 40) for done in range(1, 41)]


@given(st.integers(0, 2**32), st.integers(1, 300), st.floats(-3, 3))
def test_products_in_float32_err_by_no_more_than_the_bound(seed, D, decades):
    rng = np.random.default_rng(seed)
    X, q = rng.normal(size=(50, D)), rng.normal(size=D) * 10**decades
    exact = (X * X).sum(axis=1) / 2 - X @ q
    x32, q32 = X.astype(np.float32), q.astype(np.float32)
    rough = np.einsum("ij,ij->i", x32, x32) / np.float32(2) - x32 @ q32
    assert np.all(np.abs(rough - exact) <= error_factor(D) * ((X * X).sum(axis=1) + q @ q))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 4)), 1), "matrices of one width"),
        (
            lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 2)), 4),
            "k must be an integer from 1 to 3, the size of the base, got 4",
        ),
        (lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 2)), 1.5), "an integer from 1 to 3, .*, got 1.5"),
        (lambda: ground_truth(np.zeros((0, 2)), np.zeros((3, 2)), 1), "the base is empty"),
        (lambda: ground_truth([[0.0, np.nan]], [[0.0, 0.0]], 1), "contains NaN in row 0, column 1"),
        (lambda: ground_truth([[0.0, 0.0]], [[0.0, 0.0], [np.inf, 0.0]], 1), "contains inf in row 1, column 0"),
        (lambda: ground_truth([[0, 2**60]], [[0, 0]], 1), "whole numbers from -2.52 to 2.52, got 1152921504606846976"),
        (lambda: ground_truth([[0, 0]], [[0, -(2**53)]], 1), "got -9007199254740992; subtract a constant"),
        (lambda: ground_truth([["a"]], [[0]], 1), "text where numbers are expected"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_whole_numbers_too_far_out_for_float32_meet_a_query_at_the_origin():
    base = np.array([[2**52, 2**52 - 1], [0, 3], [2**52, 2**52]], dtype=np.int64)
    assert ground_truth(base, np.zeros((1, 2), dtype=np.int64), 3).tolist() == [[1, 0, 2]]
