"""Exact selection of the k nearest by counting, without a heap.

Candidates come in the order of their positions. Of every query it is known how many candidates lie at each distance, so
the distance of the k-th nearest so far, the radius, is known too. A later candidate counts only if it is strictly
nearer than the radius: at the same distance, the earlier position wins. Most groups of candidates are dismissed
at once, by one subtraction over a 64-bit word of distances each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.search._compile import kernel, trailing_zeros, use_wide_registers

__all__ = ["capacity_for", "finish", "new_state", "offer", "put_together"]

_WORDS_PER_GROUP = 32
# Columns of the per-query counters.
_RADIUS, _BELOW, _COUNT = 0, 1, 2


def capacity_for(k: int) -> int:
    """Candidates that are kept before those that dropped out are cleared away."""
    return k + max(k, 2 * 2048)


def new_state(n_queries: int, k: int, n_levels: int) -> tuple[Any, Any, Any, Any]:
    """Counters (radius, number below it, number kept), counts by distance, and the kept distances and positions."""
    counters = np.zeros((n_queries, 3), dtype=np.int64)
    counters[:, _RADIUS] = n_levels
    counts = np.zeros((n_queries, n_levels + 1), dtype=np.int32)
    distances = np.empty((n_queries, capacity_for(k)), dtype=np.uint16)
    positions = np.empty((n_queries, capacity_for(k)), dtype=np.int64)
    return counters, counts, distances, positions


@kernel
def offer(
    sums: Any, lanes: Any, first: int, valid: int, dead: Any, k: int, counters: Any, counts: Any, kept: Any, ids: Any
) -> None:
    """Offer the distances of one tile to one query.

    ``sums`` and ``lanes`` are the same memory, as 64-bit words and as single distances. ``first`` is the position of
    the tile's first code, ``valid`` the number of codes in it, ``dead`` a bitmap of positions that do not count (or
    empty).
    """
    use_wide_registers()
    per_word = lanes.shape[0] // sums.shape[0]
    width = 64 // per_word
    unit = np.uint64(0x0101010101010101) if per_word == 8 else np.uint64(0x0001000100010001)
    high = unit << np.uint64(width - 1)
    radius = counters[_RADIUS]
    # A lane of (d | high) − radius keeps its high bit if d ≥ radius, so one subtraction looks at a whole word. A
    # distance that has the high bit itself may lose it, and is then looked at for nothing; no near one is missed.
    by_words = radius <= 1 << (width - 1)
    limit = np.uint64(radius) * unit if by_words else np.uint64(0)
    if by_words:
        untouched = high
        for i in range(sums.shape[0]):
            untouched &= (sums[i] | high) - limit
        if untouched == high:
            return
    for group in range(0, sums.shape[0], _WORDS_PER_GROUP):
        if by_words:
            untouched = high
            for i in range(group, group + _WORDS_PER_GROUP):
                untouched &= (sums[i] | high) - limit
            if untouched == high:
                continue
        for i in range(group, group + _WORDS_PER_GROUP):
            near = high if not by_words else ~((sums[i] | high) - limit) & high
            while near:
                p = i * per_word + np.int64(trailing_zeros(near)) // width
                near &= near - np.uint64(1)
                _accept(p, first, valid, lanes, dead, k, counters, counts, kept, ids)


@kernel
def _accept(
    p: int, first: int, valid: int, lanes: Any, dead: Any, k: int, counters: Any, counts: Any, kept: Any, ids: Any
) -> None:
    """Take one candidate if it is alive and nearer than the radius, which then may shrink."""
    distance = np.int64(lanes[p])
    if distance >= counters[_RADIUS] or p >= valid:
        return
    position = first + p
    if dead.shape[0] and (dead[position >> 3] >> (position & 7)) & 1:
        return
    if counters[_COUNT] == ids.shape[0]:
        counters[_COUNT] = _clear_away(k, counters[_RADIUS], counters[_BELOW], ids.shape[0], kept, ids)
    count = counters[_COUNT]
    kept[count] = distance
    ids[count] = position
    counters[_COUNT] = count + 1
    counts[distance] += 1
    below = counters[_BELOW] + 1
    radius = counters[_RADIUS]
    while below >= k:
        radius -= 1
        below -= counts[radius]
    counters[_BELOW] = below
    counters[_RADIUS] = radius


@kernel
def _clear_away(k: int, radius: int, below: int, count: int, kept: Any, ids: Any) -> int:
    """Keep what is nearer than the radius and, at the radius itself, the first ones that make up k."""
    room = k - below
    left = 0
    for c in range(count):
        at_radius = kept[c] == radius
        if kept[c] < radius or (at_radius and room > 0):
            kept[left] = kept[c]
            ids[left] = ids[c]
            left += 1
            if at_radius:
                room -= 1
    return left


@kernel
def finish(k: int, counters: Any, kept: Any, ids: Any, counts: Any, out_distances: Any, out_ids: Any) -> None:
    """Write the k nearest in order: by distance, equal ones by position. Sorts by counting; ``counts`` is used up."""
    count = _clear_away(k, counters[_RADIUS], counters[_BELOW], counters[_COUNT], kept, ids)
    counts[:] = 0
    for c in range(count):
        counts[kept[c]] += 1
    place = 0
    for distance in range(counts.shape[0]):
        here = counts[distance]
        counts[distance] = place
        place += here
    for c in range(count):
        place = counts[kept[c]]
        counts[kept[c]] += 1
        out_distances[place] = kept[c]
        out_ids[place] = ids[c]


def put_together(parts: list[tuple[Any, Any]], k: int) -> tuple[Any, Any]:
    """Merge the answers over several parts of a base: by distance, equal ones by id.

    Every part is (distances, ids), each sorted that way.
    """
    if len(parts) == 1:
        return parts[0]
    distances = np.concatenate([part[0] for part in parts], axis=1)
    ids = np.concatenate([part[1] for part in parts], axis=1)
    order = np.lexsort((ids, distances), axis=1)[:, :k]
    return np.take_along_axis(distances, order, axis=1), np.take_along_axis(ids, order, axis=1)
