"""Recall, precision and their kin against slow, obvious versions and values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import ITQ, Codes, DataError
from autojacobin.evaluation import (
    evaluate,
    leave_one_out_m_recall,
    m_recall,
    measure,
    recall_curve,
)


def slow_measures(found, true, depth):
    """Recall, precision, m-Recall and average precision of one query, by their definitions with sets."""
    recalls = [len(set(true) & set(found[:i])) / len(true) for i in range(1, depth + 1)]
    precisions = [len(set(true) & set(found[:i])) / i for i in range(1, depth + 1)]
    at_hits = [precisions[i] for i in range(depth) if found[i] in true]
    return {
        f"recall@{depth}": recalls[-1],
        f"precision@{depth}": precisions[-1],
        f"m-recall@{depth}": sum(recalls) / depth,
        f"map@{depth}": sum(at_hits) / min(len(true), depth),
    }


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


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 30), st.sampled_from(["i4", "i8", "u2", "u8"]))
def test_values_of_every_query_are_the_definitions(seed, n_queries, n, dtype):
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 2**15, n + 5) * int(rng.choice([1, 4096])) % 2**16  # multiples that hash tables dislike
    names = np.unique(names)
    ids = np.array([rng.permutation(names) for _ in range(n_queries)]).astype(dtype)
    truth = np.array([rng.permutation(names) for _ in range(n_queries)])
    k, depth = (int(value) for value in rng.integers(1, len(names) + 1, 2))
    slow = [slow_measures(ids[q].tolist(), truth[q, :k].tolist(), depth) for q in range(n_queries)]
    found = evaluate(ids, truth, list(slow[0]), k)
    for name, measured in found.items():
        assert np.allclose(measured.values, [values[name] for values in slow]), name
        assert np.array_equal(measure(name, ids, truth, k).values, measured.values)


def test_the_mean_over_queries_is_the_curve():
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(500)[:200] for _ in range(150)])  # several tasks of queries
    truth = np.array([rng.permutation(500)[:20] for _ in range(150)])
    recall = recall_curve(ids, truth, 20, 200)
    for i in (1, 7, 200):
        assert measure(f"recall@{i}", ids, truth, 20).mean == pytest.approx(recall[i - 1])
        assert measure(f"precision@{i}", ids, truth, 20).mean == pytest.approx(recall[i - 1] * 20 / i)


def test_a_perfect_answer_has_recall_and_average_precision_one():
    truth = [[3, 1, 2]]
    for depth in (1, 2, 3):
        assert measure(f"map@{depth}", [[1, 2, 3]], truth, k=3).mean == pytest.approx(1)
    assert recall_curve([[1, 2, 3]], truth, k=3, depth=3)[-1] == 1.0


def test_an_id_found_twice_counts_once_and_fillers_do_not_count():
    assert recall_curve([[5, 5, -1, -1]], [[5, 6]], k=2, depth=4).tolist() == [0.5, 0.5, 0.5, 0.5]


def test_values_worked_out_by_hand():
    ids = [[4, 2, 9, 1], [5, 6, 7, 8]]
    truth = [[2, 1, 0], [5, 8, 3]]
    # query 0 finds its two neighbours at ranks 2 and 4, query 1 at ranks 1 and 4
    assert recall_curve(ids, truth, k=2, depth=4).tolist() == [0.25, 0.5, 0.5, 1.0]
    assert m_recall(ids, truth, k=2, depth=4) == 0.5625
    assert recall_curve(ids, truth, k=3, depth=1).tolist() == pytest.approx([1 / 6])
    assert measure("precision@3", ids, truth, k=2).values.tolist() == pytest.approx([1 / 3, 1 / 3])
    # average precision: (1/2 + 2/4) / 2 and (1/1 + 2/4) / 2
    assert measure("map@4", ids, truth, k=2).values.tolist() == [0.5, 0.75]
    # up to place 1: nothing, and 1/1 divided by min(2, 1)
    assert measure("map@1", ids, truth, k=2).values.tolist() == [0.0, 1.0]
    assert measure("m-recall@4", ids, truth, k=2).values.tolist() == [(0 + 0.5 + 0.5 + 1) / 4, (0.5 * 3 + 1) / 4]


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
        (lambda: recall_curve([[1.0, 2.0]], [[1]], k=1, depth=1), "ids must hold whole numbers, got float64"),
        (lambda: recall_curve([[1, 2]], [["a"]], k=1, depth=1), "truth must hold whole numbers, got <U1"),
        (lambda: recall_curve([[1, 2], [1]], [[1]], k=1, depth=1), "ids cannot be read as a matrix"),
        (lambda: recall_curve([[1, 2]], [[1, 7, 7]], k=3, depth=1), "got 7 more than once in row 0 of truth"),
        (lambda: recall_curve([[1, 2]], [[1]], k=1, depth=0), "depth must be an integer from 1 to 2"),
        (lambda: measure("recall@3", [[1, 2]], [[1]], k=1), "the number in 'recall@3' must be .* 1 to 2, the columns"),
        (lambda: measure("recall", [[1, 2]], [[1]], k=1), "'recall' is not the name of a measure, expected one of"),
        (lambda: measure("recall@0", [[1, 2]], [[1]], k=1), "'recall@0' is not the name of a measure"),
        (lambda: measure("recall@-1", [[1, 2]], [[1]], k=1), "'recall@-1' is not the name of a measure"),
        (lambda: measure("racall@1", [[1, 2]], [[1]], k=1), "recall@i, precision@i, m-recall@i, map@i, such as"),
        (lambda: measure(7, [[1, 2]], [[1]], k=1), "7 is not the name of a measure"),
        (lambda: evaluate([[1, 2]], [[1]], "recall@1", k=1), r"pass \['recall@1'\]"),
        (lambda: evaluate([[1, 2]], [[1]], 7, k=1), "names must be a list of names such as 'recall@100', got int"),
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
