"""Measures in expectation against the mean over every order of the equals, and over random orders."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import Codes, DataError
from autojacobin.evaluation import (
    evaluate,
    expected_evaluate,
    expected_recall_curve,
    recall_curve,
)


def distances(query, base):
    return (query.to_bits() != base.to_bits()).sum(axis=1)


def all_orders(query, base):
    """Every answer that a search may give, in which equal distances come in any order."""
    apart = distances(query, base)
    groups = [permutations(np.flatnonzero(apart == d).tolist()) for d in np.unique(apart)]
    return np.array([sum(order, ()) for order in product(*groups)])


@given(st.integers(0, 2**32), st.integers(1, 6), st.integers(1, 3))
def test_equals_the_mean_over_every_order(seed, n, n_bits):
    rng = np.random.default_rng(seed)
    base = Codes.from_bits(rng.integers(0, 2, (n, n_bits)))
    query = Codes.from_bits(rng.integers(0, 2, (1, n_bits)))
    k, depth = (int(value) for value in rng.integers(1, n + 1, 2))
    truth = rng.permutation(n)[None]
    orders = all_orders(query, base)
    truths = np.repeat(truth, len(orders), axis=0)
    assert np.allclose(expected_recall_curve(query, base, truth, k, depth), recall_curve(orders, truths, k, depth))
    names = [f"{kind}@{depth}" for kind in ("recall", "precision", "m-recall", "map")]
    slow = evaluate(orders, truths, names, k)
    for name, measured in expected_evaluate(query, base, truth, names, k).items():
        assert measured.mean == pytest.approx(slow[name].mean), name


def test_equals_the_mean_over_random_orders_of_many_codes():
    rng = np.random.default_rng(0)
    base, queries = Codes.from_bits(rng.integers(0, 2, (400, 8))), Codes.from_bits(rng.integers(0, 2, (5, 8)))
    truth = np.array([rng.permutation(400)[:30] for _ in range(5)])
    names = ["recall@50", "m-recall@50", "map@50"]
    draws = {name: [] for name in names}
    for _ in range(800):
        shuffled = rng.random((5, 400))
        ids = np.array([np.lexsort((shuffled[q], distances(queries[q], base))) for q in range(5)])
        for name, measured in evaluate(ids, truth, names, 30).items():
            draws[name].append(measured.mean)
    for name, measured in expected_evaluate(queries, base, truth, names, 30).items():
        error = np.std(draws[name]) / np.sqrt(len(draws[name]))
        assert abs(measured.mean - np.mean(draws[name])) < 4 * error, name


def test_the_mean_of_every_query_is_the_curve():
    rng = np.random.default_rng(1)
    base, queries = Codes.from_bits(rng.integers(0, 2, (5000, 70))), Codes.from_bits(rng.integers(0, 2, (40, 70)))
    truth = np.array([rng.permutation(5000)[:10] for _ in range(40)])
    curve = expected_recall_curve(queries, base, truth, 10, 5000)
    found = expected_evaluate(queries, base, truth, ["recall@1", "recall@777", "m-recall@5000"], 10)
    assert found["recall@1"].mean == pytest.approx(curve[0])
    assert found["recall@777"].mean == pytest.approx(curve[776])
    assert found["m-recall@5000"].mean == pytest.approx(curve.mean())
    assert np.all(np.diff(curve) >= -1e-12)
    assert curve[-1] == pytest.approx(1)
    assert curve.max() <= 1


def test_without_ties_it_is_the_measure_itself():
    base = Codes.from_bits(np.tril(np.ones((9, 9), dtype=int)))  # at the distances 1 to 9 from zero
    query = Codes.from_bits(np.zeros((1, 9), dtype=int))
    truth = [[4, 0, 7]]
    assert np.array_equal(
        expected_recall_curve(query, base, truth, 3, 9), recall_curve(np.arange(9)[None], truth, 3, 9)
    )
    assert expected_evaluate(query, base, truth, ["map@6"], 3)["map@6"].mean == pytest.approx((1 + 2 / 5) / 3)


def test_values_worked_out_by_hand():
    # From 000, code 0 is at distance 0, codes 1 to 3 at 1, code 4 at 3; the true ones are 1, 2 and 4.
    base = Codes.from_bits([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 1, 1]])
    query, truth = Codes.from_bits([[0, 0, 0]]), [[1, 4, 2]]
    assert expected_recall_curve(query, base, truth, 3, 5).tolist() == pytest.approx([0, 2 / 9, 4 / 9, 2 / 3, 1])
    # The places 2, 3 and 4 hold two true ones in the orders TTF, TFT and FTT: AP = (sum of precisions) / 3.
    orders = [(1 / 2 + 2 / 3 + 3 / 5) / 3, (1 / 2 + 2 / 4 + 3 / 5) / 3, (1 / 3 + 2 / 4 + 3 / 5) / 3]
    assert expected_evaluate(query, base, truth, ["map@5"], 3)["map@5"].mean == pytest.approx(np.mean(orders))


BASE = Codes.from_bits(np.eye(4, dtype=int))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: expected_recall_curve(BASE, BASE[:3], [[3]] * 4, 1, 1), "rows of the base, from 0 to 2, got 3"),
        (lambda: expected_recall_curve(BASE, BASE, [[-1]] * 4, 1, 1), "from 0 to 3, got -1"),
        (lambda: expected_recall_curve(BASE, BASE, [[1]], 1, 1), "got 1 rows and 4 queries"),
        (lambda: expected_recall_curve(BASE[:0], BASE, np.empty((0, 1), int), 1, 1), "got 0 rows and 0 queries"),
        (lambda: expected_recall_curve(BASE, BASE, [1, 2, 3, 0], 1, 1), r"truth must be a matrix .* shape \(4,\)"),
        (lambda: expected_recall_curve(BASE, BASE, [[1]] * 4, 2, 1), "k must be an integer from 1 to 1"),
        (lambda: expected_recall_curve(BASE, BASE, [[1]] * 4, 1, 5), "from 1 to 4, the codes of the base, got 5"),
        (lambda: expected_recall_curve(np.eye(4), BASE, [[1]] * 4, 1, 1), "queries must be Codes, got ndarray"),
        (lambda: expected_evaluate(BASE, BASE, [[1]] * 4, ["map@9"], 1), "the number in 'map@9' must be"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(DataError, match=message):
        call()
