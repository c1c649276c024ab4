"""The tie rule, over an engine that gives equal distances in an order of its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin import DataError
from autojacobin.engines.contract import by_lower_id


def stubborn(distances, ids, rng):
    """Answers with the nearest codes, those at equal distances in any order, and the whole in any order."""

    def ask(rows, depth):
        found = []
        for row in rows:
            order = np.lexsort((rng.random(len(ids)), distances[row]))[:depth]
            found.append(rng.permutation(order))
        chosen = np.array(found)
        return np.take_along_axis(distances[rows], chosen, axis=1), ids[chosen]

    return ask


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 5), st.data())
def test_lower_ids_come_first(count, n_queries, levels, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    k = data.draw(st.integers(1, count))
    distances, ids = rng.integers(0, levels, (n_queries, count)), rng.permutation(1000)[:count]
    order = np.stack([np.lexsort((ids, line)) for line in distances])[:, :k]
    found = by_lower_id(stubborn(distances, ids, rng), n_queries, k, count)
    np.testing.assert_array_equal(found[0], np.take_along_axis(distances, order, axis=1))
    np.testing.assert_array_equal(found[1], ids[order])
    assert found[0].dtype == np.int32
    assert found[1].dtype == np.int64


def test_only_queries_with_open_ties_are_repeated():
    asked, rng = [], np.random.default_rng(0)
    distances = np.stack([np.arange(1000), np.repeat([0, 1], 500)])
    answer = stubborn(distances, np.arange(1000), rng)

    def ask(rows, depth):
        asked.append((rows.tolist(), depth))
        return answer(rows, depth)

    _, ids = by_lower_id(ask, 2, 3, 1000)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 2]]
    assert asked == [([0, 1], 19), ([1], 76), ([1], 304), ([1], 1000)]


def test_results_are_requested_in_small_blocks(monkeypatch):
    monkeypatch.setattr("autojacobin.engines.contract._HITS_AT_ONCE", 100)
    asked, rng = [], np.random.default_rng(0)
    answer = stubborn(np.zeros((7, 90), dtype=int), np.arange(90), rng)

    def ask(rows, depth):
        asked.append((len(rows), depth))
        return answer(rows, depth)

    _, ids = by_lower_id(ask, 7, 2, 90)
    assert ids.tolist() == [[0, 1]] * 7
    assert asked == [(5, 18), (2, 18)] + [(1, 72)] * 7 + [(1, 90)] * 7


def test_an_engine_with_a_limit_reports_ties_beyond_it():
    rng = np.random.default_rng(0)
    ask = stubborn(np.zeros((1, 100), dtype=int), np.arange(100), rng)
    with pytest.raises(DataError, match="more than 50 codes are as near as neighbour 3 of query 0"):
        by_lower_id(ask, 1, 3, 100, most=50)
    with pytest.raises(DataError, match="k must be at most 50"):
        by_lower_id(ask, 1, 51, 100, most=50)
    assert by_lower_id(ask, 1, 3, 100, most=100)[1].tolist() == [[0, 1, 2]]
