"""Ground truth and recall against slow, obvious versions and values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import ITQ, Codes, DataError
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
        (
            lambda: recall_curve([[1, 2]], [[1]], k=2, depth=1),
            "k must be an integer from 1 to 1, the columns of truth, got 2",
        ),
        (
            lambda: recall_curve([[1, 2]], [[1]], k=1, depth=3),
            "depth must be an integer from 1 to 2, the columns of ids, got 3",
        ),
        (lambda: recall_curve([[1, 2]], [[1], [2]], k=1, depth=1), r"got shapes \(1, 2\) and \(2, 1\)"),
        (lambda: recall_curve(np.empty((0, 3)), np.empty((0, 3)), k=1, depth=1), "for each of the same queries"),
        (lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 4)), 1), "matrices of one width"),
        (
            lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 2)), 4),
            "k must be an integer from 1 to 3, the size of the base, got 4",
        ),
        (lambda: ground_truth(np.zeros((3, 2)), np.zeros((3, 2)), 1.5), "an integer from 1 to 3, .*, got 1.5"),
        (lambda: ground_truth([[0.0, np.nan]], [[0.0, 0.0]], 1), "contains NaN in row 0, column 1"),
        (lambda: ground_truth([[0.0, 0.0]], [[0.0, 0.0], [np.inf, 0.0]], 1), "contains inf in row 1, column 0"),
        (lambda: leave_one_out_m_recall(np.zeros((3, 2)), None, k=0), "k must be an integer of at least 1, got 0"),
        (lambda: leave_one_out_m_recall(np.zeros((3, 2)), None, k=1, depth=2.5), "depth must be an integer"),
        (lambda: leave_one_out_m_recall(np.zeros((1, 2)), None), "at least 2 points"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()


def test_a_point_never_finds_itself_even_among_its_duplicates():
    # Four equal points: by the lower id, the last one stands behind the others even in its own list, at distance 0.
    X = np.array([[1.0], [1.0], [1.0], [1.0], [9.0]])
    codes = Codes.from_bits([[1], [1], [1], [1], [0]])
    # k = 2, depth = 2: query 0 finds 1, 2; query 1 finds 0, 2; queries 2, 3 and 4 find 0, 1: all of them true.
    # Recall@1 is then 1/2 and Recall@2 is 1 for every query.
    assert leave_one_out_m_recall(X, codes, k=2, depth=2) == pytest.approx(0.75)


def test_scores_ask_for_at_most_a_thousand_points():
    X = np.random.default_rng(0).normal(size=(3000, 4))
    hasher = ITQ(4, random_state=0).fit(X)
    asked = np.unique(np.linspace(0, 2999, 1000).astype(int))
    found = hasher.encode(X)
    distances = (found.to_bits()[asked][:, None] != found.to_bits()[None]).sum(axis=2).astype(float)
    distances[np.arange(len(asked)), asked] = np.inf
    ids = np.argsort(distances, axis=1, kind="stable")[:, :20]
    gaps = ((X[asked][:, None] - X[None]) ** 2).sum(axis=2)
    gaps[np.arange(len(asked)), asked] = np.inf
    truth = np.argsort(gaps, axis=1)[:, :2]
    assert hasher.score(X, k=2, depth=20) == pytest.approx(m_recall(ids, truth, 2, 20))


def test_a_trial_measures_a_clone_and_leaves_the_hasher_alone():
    data = load_set("digits")
    truth = ground_truth(data.base, data.queries, 10)
    hasher = ITQ(32, random_state=0)
    trial = run_trial(hasher, data, truth, ks=(1, 10), depth=50)
    assert not hasattr(hasher, "weights_")
    assert trial.fit_seconds > 0
    assert 0.5 < trial.m_recall[10] < trial.m_recall[1] < 1
