"""The k smallest of many distances; equal distances in the order of their ids.

*By heaps*, for real numbers. A pass without branches first takes the minimum of every so many values. The k-th smallest
of these minima is a limit that at least k values do not exceed, and few more do not.

*By halving* the range in which the k-th smallest is, and counting by whole vectors, for a few hundred numbers. This is
faster than moving them. Keys to sort by are 64-bit numbers: the bits of a distance, and a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, part_of_others, use_wide_registers

MOST_RANKED = 256  # keys; more are sorted faster in another way
_MOST_COUNTED = 128  # numbers wanted, up to which counting is faster than heaps
_STRIPES_PER_WANTED, _FEWEST_IN_STRIPE = 4, 2
LAST_ID = 2**63 - 1
_INFINITE_BITS = np.int32(0x7F800000)  # of float32
_DIGIT_BITS, _POSITION_BITS = 11, 44
_DIGIT = np.uint64(2**_DIGIT_BITS - 1)


@kernel
def sort_nearest(distances: Any, positions: Any, by_position: bool) -> None:
    """Sort the codes of each row by distance, equal ones by position, unless they are sorted ``by_position`` already.

    This is a radix sort, without the digits that are zero in all numbers.
    """
    n = distances.shape[1]
    keys, others, counts = (
        np.empty(n, dtype=np.uint64),
        np.empty(n, dtype=np.uint64),
        np.empty(2**_DIGIT_BITS + 1, dtype=np.int64),
    )
    for q in range(distances.shape[0]):
        used = np.uint64(0)
        for i in range(n):
            keys[i] = np.uint64(distances[q, i]) << np.uint64(_POSITION_BITS) | np.uint64(max(positions[q, i], 0))
            used |= keys[i]
        for shift in range(_POSITION_BITS if by_position else 0, 64, _DIGIT_BITS):
            if (used >> np.uint64(shift)) & _DIGIT:
                counts[:] = 0
                for i in range(n):
                    counts[((keys[i] >> np.uint64(shift)) & _DIGIT) + np.uint64(1)] += 1
                for value in range(2**_DIGIT_BITS):
                    counts[value + 1] += counts[value]
                for i in range(n):
                    digit = (keys[i] >> np.uint64(shift)) & _DIGIT
                    others[counts[digit]] = keys[i]
                    counts[digit] += 1
                keys, others = others, keys
        for i in range(n):
            distances[q, i] = keys[i] >> np.uint64(_POSITION_BITS)
            positions[q, i] = keys[i] & np.uint64((1 << _POSITION_BITS) - 1)


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
            limit = _upper_limit(values, q, k, out, out_ids)
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
def _upper_limit(values: Any, q: int, k: int, heap: Any, heap_ids: Any) -> Any:
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


_select_by_heaps = part_of_others(select_smallest)


# By halving


@kernel(inner=True)
def kth_smallest(values: Any, count: int, k: int) -> Any:
    """The ``k``-th smallest of the first ``count`` values, none below 0: halve the range, and count by whole vectors.

    The values after them are overwritten, up to a multiple of 64.
    """
    use_wide_registers()
    low, high = values[0], values[0]
    for i in range(count, (count + 63) & ~63):
        values[i] = np.iinfo(values.dtype).max
    for i in range(np.uint64(count)):
        low, high = min(low, values[i]), max(high, values[i])
    as_value = values.dtype.type
    while low < high:
        middle = as_value(low + ((high - low) >> 1))
        within = count_up_to(values, count, middle)
        enough = within >= k  # no branch: the CPU could not predict it
        low, high = as_value(low if enough else middle + 1), as_value(middle if enough else high)
        if within == k:
            break
    largest = low
    for i in range(np.uint64(count)):
        largest = max(largest, values[i] if values[i] <= high else low)
    return largest


@kernel(inline=True)
def count_up_to(values: Any, count: int, limit: Any) -> Any:
    """Count values up to ``limit``, in whole vectors; those after the first ``count`` are larger."""
    within = np.int32(0)
    for i in range((np.uint64(count) + np.uint64(63)) & ~np.uint64(63)):
        within = np.int32(within + np.int32(values[i] <= limit))
    return within


@kernel(inner=True)
def select_few(values: Any, ids: Any, k: int, out: Any, out_ids: Any) -> None:
    """Write what :func:`select_smallest` writes, for one row of numbers that are at least zero.

    A limit that few more than ``k`` numbers do not exceed is found by halving, as float32. The place of each of these
    is how many come before it, which whole vectors count.
    """
    use_wide_registers()
    n = values.shape[1]
    if k > _MOST_COUNTED:
        _select_by_heaps(values, ids, k, out, out_ids)
        return
    bits = np.full((n + 63) & ~63, np.iinfo(np.int32).max, dtype=np.int32)
    n_finite = 0
    for c in range(n):
        value = np.float32(values[0, c])
        bits[c] = value.view(np.int32) if value < np.inf else _INFINITE_BITS
        n_finite += int(value < np.inf)
    limit = limit_of(bits, k) if n_finite > k else np.float32(np.inf)
    chosen, names, count = np.empty(n), np.empty(n, dtype=np.int64), 0
    for c in range(n):
        # written in any case and then counted or not: the CPU would mispredict many branches
        chosen[count], names[count] = values[0, c], ids[0, c]
        count += int(np.float32(values[0, c]) <= limit)
    for i in range(np.uint64(count)):
        place = 0
        for j in range(np.uint64(count)):
            same = (names[j] < names[i]) | ((names[j] == names[i]) & (j < i))
            place += (chosen[j] < chosen[i]) | ((chosen[j] == chosen[i]) & same)
        if place < k:
            out[0, place], out_ids[0, place] = chosen[i], names[i]
    for place in range(count, k):
        out[0, place], out_ids[0, place] = np.inf, LAST_ID


@kernel(inline=True)
def _minima_of(bits: Any, stripes: int) -> Any:
    """Deal numbers out to stripes in turn, and give the smallest of each stripe.

    Few of the smallest numbers share a stripe, so these are nearly the smallest of all.
    """
    minima = bits[:stripes].copy()
    for first in range(stripes, bits.shape[0], stripes):
        for s in range(np.uint64(min(stripes, bits.shape[0] - first))):
            minima[s] = min(minima[s], bits[np.uint64(first) + s])
    return minima


@kernel(inline=True)
def limit_of(bits: Any, wanted: int) -> Any:
    """Limit that ``wanted`` estimates or a few more do not exceed; the largest of them if there are fewer.

    Estimates are given as their bits. Numbers of at least zero have the same order as their bits, so that the range of
    the bits can be halved.
    """
    stripes = _STRIPES_PER_WANTED * wanted
    if _FEWEST_IN_STRIPE * stripes <= bits.shape[0]:
        bits = _minima_of(bits, stripes)
    count = np.uint64(bits.shape[0])
    low, high = np.int32(_INFINITE_BITS - 1), np.int32(0)
    for c in range(count):
        low = min(low, bits[c])
        high = max(high, bits[c] if bits[c] < _INFINITE_BITS else np.int32(0))
    while low < high:
        middle = np.int32((np.int64(low) + np.int64(high)) >> 1)
        within = np.int32(0)
        for c in range(count):
            within = np.int32(within + np.int32(bits[c] <= middle))
        enough = within >= wanted  # no branch: the CPU could not predict it
        low, high = np.int32(low if enough else middle + 1), np.int32(middle if enough else high)
        if enough and within <= wanted + (wanted >> 3) + 2:
            break
    return np.int32(high).view(np.float32)


@kernel(inline=True)
def sort_keys(keys: Any, upper: Any, ordered: Any) -> Any:
    """Sort different keys: the place of each is how many are smaller, which whole vectors count.

    Their upper halves are compared. Where two of these are equal, the keys are sorted in another way. ``upper`` and
    ``ordered`` are memory for int32 and int64.
    """
    use_wide_registers()
    if len(keys) > MOST_RANKED:
        return _shell_sorted(keys)
    for i in range(np.uint64(len(keys))):
        upper[i], ordered[i] = np.int32(keys[i] >> 32), -1
    for i in range(np.uint64(len(keys))):
        place = np.int32(0)
        for j in range(np.uint64(len(keys))):
            place = np.int32(place + np.int32(upper[j] < upper[i]))
        if ordered[np.uint64(place)] >= 0:
            return _shell_sorted(keys)
        ordered[np.uint64(place)] = keys[i]
    return ordered[: len(keys)]


@kernel(inner=True)
def _shell_sorted(keys: Any) -> Any:
    """Sort numbers in place by Shell's method, which compiles in a fraction of the time of NumPy's sort."""
    gap = len(keys)
    while gap > 1:
        gap = max(1, 5 * gap // 11)
        for i in range(gap, len(keys)):
            key, place = keys[i], i
            while place >= gap and keys[place - gap] > key:
                keys[place] = keys[place - gap]
                place -= gap
            keys[place] = key
    return keys
