"""Rows that may be among the nearest, against a comparison of every column, at every level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st


def memory(n, capacity):
    return np.zeros((2, n, capacity), np.float32), np.zeros((n, capacity), np.int64), np.zeros(n, np.int64)


@given(
    seed=st.integers(0, 2**32), n=st.integers(1, 6), columns=st.integers(1, 300), capacity=st.integers(1, 100),
    far=st.sampled_from([-3, 0, 2, np.inf]),
)  # fmt: skip
def test_all_that_may_be_near_are_written_until_the_memory_is_full(kernels, seed, n, columns, capacity, far):
    rng = np.random.default_rng(seed)
    products = rng.normal(size=(n, columns)).astype(np.float32)
    lowered, spread = rng.random((2, columns)).astype(np.float32)
    lowered[rng.random(columns) < 0.05] = -np.inf
    slack = rng.random(n).astype(np.float32)
    limits = (far + rng.normal(size=n)).astype(np.float32)
    (low, high), ids, counts = memory(n, capacity)
    reached, queries = np.zeros(n, dtype=np.int64), np.flatnonzero(rng.random(n) < 0.8)
    found = [[] for _ in range(n)]
    for _ in range(1 + columns // capacity):
        kernels.keep_near(
            products, lowered, spread, 1000, queries, slack, limits, counts, low, high, ids, reached
        )  # fmt: skip
        for q in queries:
            found[q] += zip(low[q, : counts[q]], high[q, : counts[q]], ids[q, : counts[q]], strict=True)
            assert counts[q] == capacity or reached[q] == columns
        counts[:] = 0
    for q in range(n):
        values = lowered - products[q]
        near = np.flatnonzero(values <= limits[q]) if q in queries else []
        upper = np.where(values > -np.inf, values + (spread + slack[q]), np.float32(np.inf))
        assert found[q] == [(values[j], upper[j], 1000 + j) for j in near]


@pytest.mark.parametrize("place", [1, 2, 4, 5, 6, 7, 8, 9, 10, 11])
def test_arrays_that_do_not_fit_are_an_error(kernels, place):
    (low, high), ids, counts = memory(2, 9)
    floats = np.zeros(2, dtype=np.float32)
    good = [
        np.zeros((2, 3), np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32), 0, np.arange(2),
        floats, floats, counts, low, high, ids, np.zeros(2, np.int64),
    ]  # fmt: skip
    kernels.keep_near(*good)
    wrong = np.full(2, 2) if place == 4 else np.concatenate([good[place]] * 2)
    with pytest.raises(ValueError, match="wrong argument of a kernel"):
        kernels.keep_near(*good[:place], wrong, *good[place + 1 :])
