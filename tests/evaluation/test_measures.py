"""Ground truth and recall against slow, obvious versions and values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import ITQ, DataError
from autojacobin.datasets import load_set
from autojacobin.evaluation import ground_truth, leave_one_out_m_recall, m_recall, recall_curve, run_trial


def slow_truth(base, queries, k):
    rows = []
    for query in queries:
        distances = [sum((int(a) - int(b)) ** 2 for a, b in zip(query, point, strict=True)) for point in base]
        rows.append(sorted(range(len(base)), key=lambda i: (distances[i], i))[:k])
    return np.array(rows).reshape(len(queries), k)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 6), st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_ground_truth_equals_sorting_with_ties_by_lower_id(seed, n, D, levels):
    rng = np.random.default_rng(seed)
    base = rng.integers(0, levels, (n, D), dtype=np.uint8)  # few levels: many equal distances
    queries = rng.integers(0, levels, (3, D), dtype=np.uint8)
    k = int(rng.integers(1, n + 1))
    assert np.array_equal(ground_truth(base, queries, k), slow_truth(base, queries, k))


def test_ground_truth_far_from_the_origin():
    rng = np.random.default_rng(0)
    base = (rng.normal(size=(500, 8)) + 1e4).astype(np.float32)
    queries = (rng.normal(size=(20, 8)) + 1e4).astype(np.float32)
    exact = np.argsort(((queries[:, None].astype(float) - base[None].astype(float)) ** 2).sum(axis=2), axis=1)
    assert np.array_equal(ground_truth(base, queries, 10), exact[:, :10])


def test_ground_truth_in_several_blocks(monkeypatch):
    X = load_set("digits").base
    whole = ground_truth(X, X[:50], 7)
    monkeypatch.setattr("autojacobin.evaluation.truth._DISTANCES_PER_BLOCK", len(X) * 3)
    assert np.array_equal(ground_truth(X, X[:50], 7), whole)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(2, 30))
def test_recall_curve_is_the_definition(seed, n_queries, n):
    rng = np.random.default_rng(seed)
    ids = np.array([rng.permutation(n) for _ in range(n_queries)])
    truth = np.array([rng.permutation(n) for _ in range(n_queries)])
    k, depth = int(rng.integers(1, n + 1)), int(rng.integers(1, n + 1))
    expected = [
        np.mean([len(set(truth[q, :k]) & set(ids[q, :i])) / k for q in range(n_queries)]) for i in range(1, depth + 1)
    ]
    curve = recall_curve(ids, truth, k, depth)
    assert np.allclose(curve, expected)
    assert np.all(np.diff(curve) >= 0)
    assert m_recall(ids, truth, k, depth) == pytest.approx(np.mean(expected))


def test_values_worked_out_by_hand():
    ids = [[4, 2, 9, 1], [5, 6, 7, 8]]
    truth = [[2, 1, 0], [5, 8, 3]]
    # query 0 finds its two neighbours at ranks 2 and 4, query 1 at ranks 1 and 4
    assert recall_curve(ids, truth, k=2, depth=4).tolist() == [0.25, 0.5, 0.5, 1.0]
    assert m_recall(ids, truth, k=2, depth=4) == 0.5625
    assert recall_curve(ids, truth, k=3, depth=1).tolist() == pytest.approx([1 / 6])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: recall_curve([[1, 2]], [[1]], k=2, depth=1), "k must be from 1 to 1, the columns of truth, got 2"),
        (lambda: recall_curve([[1, 2]], [[1]], k=1, depth=3), "depth must be from 1 to 2, the columns of ids, got 3"),
        (lambda: recall_curve([[1, 2]], [[1], [2]], k=1, depth=1), r"got shapes \(1, 2\) and \(2, 1\)"),
        (lambda: recall_curve(np.empty((0, 3)), np.empty((0, 3)), k=1, depth=1), "for each of the same queries"),
        (lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 4)), 1), "matrices of one width"),
        (lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 2)), 4), "k must be from 1 to 3"),
        (lambda: leave_one_out_m_recall(np.zeros((1, 2)), None), "at least 2 points"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_a_point_never_finds_itself_even_among_its_duplicates():
    X = np.repeat(np.arange(4.0)[:, None], 30, axis=0)  # each value thirty times
    hasher = ITQ(1, random_state=0).fit(X)
    score = leave_one_out_m_recall(X, hasher.encode(X), k=5, depth=20)
    assert 0 <= score <= 1


def test_a_trial_measures_a_clone_and_leaves_the_hasher_alone():
    data = load_set("digits")
    truth = ground_truth(data.base, data.queries, 10)
    hasher = ITQ(32, random_state=0)
    trial = run_trial(hasher, data, truth, ks=(1, 10), depth=50)
    assert not hasattr(hasher, "weights_")
    assert trial.fit_seconds > 0
    assert 0.5 < trial.m_recall[10] < trial.m_recall[1] < 1
