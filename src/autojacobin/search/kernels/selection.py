"""The k smallest of many distances; equal distances in the order of their ids.

*By counting*, for distances between codes, which are small whole numbers. Codes arrive in the order of their positions.
For each query a table counts the codes at each distance, which gives the distance of the k-th nearest code so far, the
*radius*. A later code is accepted only if it is strictly nearer than the radius: at the same distance, the earlier
position wins. No heap is needed, and the final sort is a counting sort.

*By heaps*, for real numbers. A pass without branches first takes the minimum of every so many values. The k-th smallest
of these minima is a limit that at least k values do not exceed, and few more do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, use_wide_registers

RADIUS, BELOW, COUNT = 0, 1, 2  # columns of Selection.counters
_STRIPES_PER_WANTED = 4
LAST_ID = 2**63 - 1


class Selection(NamedTuple):
    """The nearest codes so far of a block of queries. Compiled functions take it as a plain tuple.

    Attributes
    ----------
    counters : array of int64, shape (n_queries, 3)
        The radius, the number of codes below it, and the number of codes kept.
    counts : array of int32, shape (n_queries, n_levels + 1)
        Number of accepted codes at each distance.
    distances, positions : arrays of shape (n_queries, capacity)
        The codes that are kept, in the order of their positions.
    """

    counters: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    distances: npt.NDArray[np.uint16]
    positions: npt.NDArray[np.int64]


def empty_selection(n_queries: int, k: int, n_levels: int) -> Selection:
    """Select the ``k`` nearest of codes whose distances are below ``n_levels``."""
    counters = np.zeros((n_queries, 3), dtype=np.int64)
    counters[:, RADIUS] = n_levels
    counts = np.zeros((n_queries, n_levels + 1), dtype=np.int32)
    distances = np.empty((n_queries, capacity_for(k)), dtype=np.uint16)
    positions = np.empty((n_queries, capacity_for(k)), dtype=np.int64)
    return Selection(counters, counts, distances, positions)


def capacity_for(k: int) -> int:
    """Codes that are kept before those that are no longer among the nearest are removed."""
    return k + max(k, 1024)


@kernel(inline=True)
def admit(
    distance: Any, position: Any, k: int, q: int, radius: int, below: int, count: int, counts: Any, distances: Any,
    positions: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Accept a code that is nearer than the radius; gives the new radius, number below it and number kept."""
    if count == positions.shape[1]:
        count = _remove_far(k, radius, below, count, q, distances, positions)
    distances[q, count] = distance
    positions[q, count] = position
    counts[q, distance] += 1
    below += 1
    while below >= k:
        radius -= 1
        below -= counts[q, radius]
    return radius, below, count + 1


@kernel(inner=True)
def _remove_far(k: int, radius: int, below: int, count: int, q: int, distances: Any, positions: Any) -> int:
    """Keep the codes below the radius and, at the radius itself, the first ones that are needed to make k."""
    missing = k - below
    left = 0
    for c in range(count):
        at_radius = distances[q, c] == radius
        if distances[q, c] < radius or (at_radius and missing > 0):
            distances[q, left] = distances[q, c]
            positions[q, left] = positions[q, c]
            left += 1
            if at_radius:
                missing -= 1
    return left


@kernel
def finish(k: int, selection: Any, out_distances: Any, out_positions: Any) -> None:
    """Write the ``k`` nearest in order of distance, equal ones by position. The table of counts is used up."""
    counters, counts, distances, positions = selection
    for q in range(counters.shape[0]):
        count = _remove_far(k, counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT], q, distances, positions)
        for distance in range(counts.shape[1]):
            counts[q, distance] = 0
        for c in range(count):
            counts[q, distances[q, c]] += 1
        rank = 0
        for distance in range(counts.shape[1]):
            here = counts[q, distance]
            counts[q, distance] = rank
            rank += here
        for c in range(count):
            place = counts[q, distances[q, c]]
            counts[q, distances[q, c]] += 1
            out_distances[q, place] = distances[q, c]
            out_positions[q, place] = positions[q, c]


@kernel(inner=True)
def keep_nearest(positions: Any, distances: Any, q: int, count: int, k: int, counts: Any) -> int:
    """Move the ``k`` nearest of ``count`` codes of query ``q`` to the front, in the order of their positions.

    At equal distances the first ones stay. Gives the distance of the k-th nearest. ``counts`` is memory for a table.
    """
    for distance in range(counts.shape[0]):
        counts[distance] = 0
    for c in range(count):
        counts[distances[q, c]] += 1
    radius, below = 0, 0
    while below + counts[radius] < k:
        below += counts[radius]
        radius += 1
    missing, kept = k - below, 0
    for c in range(count):
        # Written in any case and then counted or not: the CPU would mispredict half of the branches.
        positions[q, kept] = positions[q, c]
        here = distances[q, c]
        distances[q, kept] = here
        at_radius = here == radius
        kept += (here < radius) | (at_radius & (missing > 0))
        missing -= at_radius
    return radius


def merge_topk(parts: Sequence[tuple[Any, Any]], k: int) -> tuple[Any, Any]:
    """Merge (distances, ids) over several parts of a base: the ``k`` nearest, equal distances by the lower id."""
    if len(parts) == 1:
        return parts[0]
    distances = np.concatenate([part[0] for part in parts], axis=1)
    ids = np.concatenate([part[1] for part in parts], axis=1)
    if distances.dtype.kind == "O":  # Python integers, which lexsort does not take
        by_id = np.argsort(ids, axis=1)
        by_distance = np.argsort(np.take_along_axis(distances, by_id, axis=1), axis=1, kind="stable")
        order = np.take_along_axis(by_id, by_distance, axis=1)[:, :k]
    else:
        order = np.lexsort((ids, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(ids, order, axis=1)


def smallest(values: npt.NDArray[Any], k: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The ``k`` smallest of a list of values of any type, and their positions; equal values in order of position."""
    limit = np.partition(values, k - 1)[k - 1]
    near = np.flatnonzero(values <= limit)
    positions = near[np.argsort(values[near], kind="stable")[:k]]
    return values[positions], positions


@kernel
def select_smallest(values: Any, ids: Any, k: int, out: Any, out_ids: Any) -> None:
    """Write the ``k`` smallest values of each row and their ids in order; equal values in order of id.

    The rows of ``out`` serve as heaps with the largest value on top, which are then sorted in place.
    """
    use_wide_registers()
    for q in range(values.shape[0]):
        limit = np.inf
        if values.shape[1] > _STRIPES_PER_WANTED * k:
            limit = upper_limit(values, q, k, out, out_ids)
        for s in range(k):
            out[q, s], out_ids[q, s] = np.inf, LAST_ID
        for c in range(values.shape[1]):
            value = values[q, c]
            if value <= limit:
                id = np.int64(ids[q, c])
                if _is_before(value, id, out[q, 0], out_ids[q, 0]):
                    _replace_top(out, out_ids, q, k, value, id)
        for size in range(k - 1, 0, -1):
            value, id = out[q, size], out_ids[q, size]
            out[q, size], out_ids[q, size] = out[q, 0], out_ids[q, 0]
            _replace_top(out, out_ids, q, size, value, id)


@kernel(inline=True)
def upper_limit(values: Any, q: int, k: int, heap: Any, heap_ids: Any) -> Any:
    """Give a limit that ``k`` values of row ``q``, and few more, do not exceed; the row of ``heap`` is overwritten."""
    stripes = min(_STRIPES_PER_WANTED * k, values.shape[1])
    minima = np.empty(stripes, dtype=values.dtype)
    for s in range(stripes):
        minima[s] = np.inf
    for first in range(0, values.shape[1], stripes):
        for s in range(min(stripes, values.shape[1] - first)):
            value = values[q, first + s]
            minima[s] = value if value < minima[s] else minima[s]
    for s in range(k):
        heap[q, s], heap_ids[q, s] = np.inf, 0
    for s in range(stripes):
        if minima[s] < heap[q, 0]:
            _replace_top(heap, heap_ids, q, k, np.float64(minima[s]), 0)
    return heap[q, 0]


@kernel(inline=True)
def _is_before(value: Any, id: Any, other: Any, other_id: Any) -> Any:
    return value < other or (value == other and id < other_id)


@kernel(inline=True)
def _replace_top(heap: Any, heap_ids: Any, q: int, size: int, value: Any, id: Any) -> None:
    """Replace the top of a heap of ``size`` entries, and move the new entry down to where it belongs."""
    node = 0
    while True:
        child = 2 * node + 1
        if child >= size:
            break
        other = min(child + 1, size - 1)
        if _is_before(heap[q, child], heap_ids[q, child], heap[q, other], heap_ids[q, other]):
            child = other
        if not _is_before(value, id, heap[q, child], heap_ids[q, child]):
            break
        heap[q, node], heap_ids[q, node] = heap[q, child], heap_ids[q, child]
        node = child
    heap[q, node], heap_ids[q, node] = value, id
