"""Selection of the smallest, against sorting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.core.compilation import kernel
from autojacobin.search.kernels.selection import (
    LAST_ID,
    merge_topk,
    select_few,
    select_smallest,
    smallest,
    sort_nearest,
)

# otherwise compiled as parts of other kernels only
compiled_select_few = kernel(select_few)


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([np.float32, np.float64]))
def test_the_smallest_are_selected_in_order_of_id(seed, k, dtype):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(k, 900))
    values = rng.integers(0, rng.integers(1, 500), (3, n)).astype(dtype)
    values[rng.random((3, n)) < rng.choice([0, 0.1, 0.9])] = np.inf
    ids = np.array([rng.permutation(n) for _ in range(3)])
    near, near_ids = np.empty((3, k)), np.empty((3, k), dtype=np.int64)
    select_smallest(values, ids, k, near, near_ids)
    order = np.lexsort((ids, values), axis=1)[:, :k]
    assert np.array_equal(near, np.take_along_axis(values, order, axis=1))
    assert np.array_equal(near_ids, np.take_along_axis(ids, order, axis=1))


@given(st.integers(0, 2**32), st.integers(1, 150), st.booleans())
def test_the_smallest_of_a_few_are_selected_in_order_of_id(seed, k, close):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 300))
    values = rng.integers(0, rng.integers(1, 500), (1, n)).astype(np.float64)
    if close:  # float32 does not tell them apart
        values = 1e6 + values * 1e-3
    kind = rng.random((1, n))
    share = rng.choice([0, 0.1, 0.9])
    values[kind < share], values[kind > 1 - share / 2] = np.inf, np.nan
    ids = rng.integers(-1, n, (1, n))  # candidates that there are not are all called -1
    near, near_ids = np.empty((1, k)), np.empty((1, k), dtype=np.int64)
    compiled_select_few(values, ids, k, near, near_ids)
    order = np.lexsort((ids[0], values[0]))
    order = order[~np.isnan(values[0][order])][:k]
    missing = k - len(order)
    assert np.array_equal(near[0], np.append(values[0][order], [np.inf] * missing))
    assert np.array_equal(near_ids[0], np.append(ids[0][order], [LAST_ID] * missing))


@given(st.integers(0, 2**32), st.integers(1, 60), st.sampled_from([np.int64, np.float64, object]))
def test_the_smallest_of_a_list_in_order_of_position(seed, k, dtype):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 20, int(rng.integers(k, 200)))
    scale = 2**62 if dtype is object else 1
    found, positions = smallest(values.astype(dtype) * scale, k)
    assert np.array_equal(positions, np.argsort(values, kind="stable")[:k])
    assert np.array_equal(found, values[positions].astype(dtype) * scale)


@given(st.integers(0, 2**32), st.integers(1, 300), st.booleans(), st.sampled_from([40, 32768]))
def test_codes_are_sorted_by_distance_and_then_by_position(seed, k, by_position, n_levels):
    rng = np.random.default_rng(seed)
    distances = rng.integers(0, n_levels, (3, k)).astype(np.int32)
    positions = np.sort(rng.integers(0, 2**33, (3, k)), axis=1)
    if not by_position:
        rng.shuffle(positions, axis=1)
    order = np.lexsort((positions, distances), axis=1)
    expected = np.take_along_axis(distances, order, axis=1), np.take_along_axis(positions, order, axis=1)
    sort_nearest(distances, positions, by_position)
    assert np.array_equal(distances, expected[0])
    assert np.array_equal(positions, expected[1])


@pytest.mark.parametrize("dtype", [np.int32, np.float32, object])
def test_results_over_parts_are_merged_by_distance_and_id(dtype):
    rng = np.random.default_rng(0)
    distances, ids = rng.integers(0, 6, (4, 90)).astype(dtype), np.array([rng.permutation(90) for _ in range(4)])
    parts = [(distances[:, start : start + 30], ids[:, start : start + 30]) for start in (0, 30, 60)]
    found, found_ids = merge_topk(parts, 25)
    order = np.lexsort((ids, distances.astype(float)), axis=1)[:, :25]
    assert np.array_equal(found, np.take_along_axis(distances, order, axis=1))
    assert np.array_equal(found_ids, np.take_along_axis(ids, order, axis=1))
    assert merge_topk(parts[:1], 25)[1] is parts[0][1]
