"""The smallest of many distances, kept in heaps with the largest on top.

Few of many are found fastest by first looking at the smallest of every so many, which takes no jumps: the k-th smallest
of these is a limit that k are sure to keep, and hardly more do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, use_wide_registers

__all__ = ["select_nearest", "upper_limit"]

_STRIPES_PER_WANTED = 4


@kernel
def select_nearest(squared: Any, ids: Any, k: int, near: Any, near_ids: Any) -> None:
    """Write the ``k`` smallest of each row of ``squared`` and their ids, in order; equal ones in order of id.

    The rows of ``near`` serve as heaps with the farthest on top, and are then taken apart from the top.
    """
    use_wide_registers()
    for q in range(squared.shape[0]):
        limit = upper_limit(squared, q, k, near, near_ids)
        count = 0
        for c in range(squared.shape[1]):
            distance = squared[q, c]
            if distance <= limit:
                id = np.int64(ids[q, c])
                if count < k:
                    _rise(near, near_ids, q, count, distance, id)
                    count += 1
                elif _is_before(distance, id, near[q, 0], near_ids[q, 0]):
                    _sink(near, near_ids, q, k, distance, id)
        for size in range(k - 1, 0, -1):
            distance, id = near[q, size], near_ids[q, size]
            near[q, size], near_ids[q, size] = near[q, 0], near_ids[q, 0]
            _sink(near, near_ids, q, size, distance, id)


@kernel(inline=True)
def upper_limit(values: Any, q: int, k: int, near: Any, near_ids: Any) -> Any:
    """Give what at least ``k`` values of row ``q`` do not exceed, and few more; row ``q`` of ``near`` is for notes."""
    stripes = min(_STRIPES_PER_WANTED * k, values.shape[1])
    smallest = np.full(stripes, np.inf, dtype=values.dtype)
    for first in range(0, values.shape[1], stripes):
        for s in range(min(stripes, values.shape[1] - first)):
            value = values[q, first + s]
            smallest[s] = value if value < smallest[s] else smallest[s]
    for s in range(k):
        _rise(near, near_ids, q, s, smallest[s], s)
    for s in range(k, stripes):
        if smallest[s] < near[q, 0]:
            _sink(near, near_ids, q, k, smallest[s], s)
    return near[q, 0]


@kernel(inline=True)
def _is_before(distance: Any, id: Any, other: Any, other_id: Any) -> Any:
    return distance < other or (distance == other and id < other_id)


@kernel(inline=True)
def _rise(near: Any, near_ids: Any, q: int, place: int, distance: Any, id: Any) -> None:
    """Put an entry at ``place``, the end of a heap, and let it rise to where it belongs."""
    while place > 0:
        above = (place - 1) >> 1
        if not _is_before(near[q, above], near_ids[q, above], distance, id):
            break
        near[q, place], near_ids[q, place] = near[q, above], near_ids[q, above]
        place = above
    near[q, place], near_ids[q, place] = distance, id


@kernel(inline=True)
def _sink(near: Any, near_ids: Any, q: int, size: int, distance: Any, id: Any) -> None:
    """Put an entry in place of the top of a heap of ``size``, and let it sink to where it belongs."""
    place = 0
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = min(below + 1, size - 1)
        if _is_before(near[q, below], near_ids[q, below], near[q, other], near_ids[q, other]):
            below = other
        if not _is_before(distance, id, near[q, below], near_ids[q, below]):
            break
        near[q, place], near_ids[q, place] = near[q, below], near_ids[q, below]
        place = below
    near[q, place], near_ids[q, place] = distance, id
