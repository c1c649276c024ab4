"""Exact Hamming search against sorting all distances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin import Codes, DataError
from autojacobin.search import hamming_topk


def by_sorting(queries, base, k):
    """All distances, a stable sort: equal distances stay in the order of their ids."""
    distances = (queries.to_bits()[:, None, :] != base.to_bits()[None, :, :]).sum(axis=2)
    ids = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(distances, ids, axis=1), ids


@given(st.integers(1, 300), st.integers(1, 60), st.integers(0, 5), st.floats(0, 1), st.data())
@settings(deadline=None)
def test_equals_brute_force(n_bits, n_base, n_queries, share_of_ones, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    base = Codes.from_bits(rng.random((n_base, n_bits)) < share_of_ones)  # near 0 or 1: heavy ties
    queries = Codes.from_bits((rng.random((n_queries, n_bits)) < share_of_ones).reshape(n_queries, n_bits))
    k = data.draw(st.integers(1, n_base))
    distances, ids = hamming_topk(queries, base, k)
    expected_distances, expected_ids = by_sorting(queries, base, k)
    assert distances.shape == ids.shape == (n_queries, k)
    assert np.array_equal(distances, expected_distances)
    assert np.array_equal(ids, expected_ids)


def test_all_codes_equal_come_in_the_order_of_their_ids():
    base = Codes.from_bits(np.ones((50, 70)))
    distances, ids = hamming_topk(Codes.from_bits(np.zeros((2, 70))), base, 50)
    assert np.all(distances == 70)
    assert np.array_equal(ids, np.tile(np.arange(50), (2, 1)))


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (0, "from 1 to 3, the size of the base, got 0"),
        (-1, "got -1"),
        (4, "got 4"),
        (1.5, "k must be an integer from 1 to 3, the size of the base, got 1.5"),
        ("2", "got '2'"),
    ],
)
def test_k_outside_the_base_is_named(k, message):
    codes = Codes.from_bits([[0, 1], [1, 1], [0, 0]])
    with pytest.raises(DataError, match=message):
        hamming_topk(codes, codes, k)


def test_codes_that_do_not_fit_are_named():
    codes = Codes.from_bits([[0, 1]])
    with pytest.raises(DataError, match="codes of one length, got 3 and 2 bits"):
        hamming_topk(Codes.from_bits([[0, 1, 1]]), codes, 1)
    with pytest.raises(DataError, match="queries must be Codes, got list"):
        hamming_topk([[0, 1]], codes, 1)
