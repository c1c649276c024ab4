"""Selection of the smallest, against sorting."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from autojacobin.search._heaps import select_nearest


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([np.float32, np.float64]))
@settings(deadline=None, max_examples=40)
def test_the_smallest_are_selected_in_order_of_id(seed, k, dtype):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(k, 900))
    squared = rng.integers(0, rng.integers(1, 500), (3, n)).astype(dtype)
    squared[rng.random((3, n)) < rng.choice([0, 0.1, 0.9])] = np.inf
    ids = np.array([rng.permutation(n) for _ in range(3)])
    near, near_ids = np.empty((3, k)), np.empty((3, k), dtype=np.int64)
    select_nearest(squared, ids, k, near, near_ids)
    order = np.lexsort((ids, squared), axis=1)[:, :k]
    assert np.array_equal(near, np.take_along_axis(squared, order, axis=1))
    assert np.array_equal(near_ids, np.take_along_axis(ids, order, axis=1))
