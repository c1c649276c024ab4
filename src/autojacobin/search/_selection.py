"""Exact selection of the k nearest by counting, without a heap.

Candidates come in the order of their positions. Of every query it is known how many candidates lie at each distance, so
the distance of the k-th nearest so far, the radius, is known too. A later candidate counts only if it is strictly
nearer than the radius: at the same distance, the earlier position wins. Groups of candidates are dismissed at once, by
one subtraction for all the distances of a 64-bit word (see ``_distances.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.search._compile import kernel, trailing_zeros, use_wide_registers
from autojacobin.search._distances import BYTES, SHORTS

__all__ = ["BELOW", "COUNT", "RADIUS", "capacity_for", "finish", "new_state", "offer", "put_together"]

_WORDS_PER_GROUP = 16
# Columns of the per-query counters.
RADIUS, BELOW, COUNT = 0, 1, 2


def capacity_for(k: int) -> int:
    """Candidates that are kept before those that dropped out are cleared away."""
    return k + max(k, 4096)


def new_state(n_queries: int, k: int, n_levels: int) -> tuple[Any, Any, Any, Any]:
    """Counters (radius, number below it, number kept), counts by distance, and the kept distances and positions."""
    counters = np.zeros((n_queries, 3), dtype=np.int64)
    counters[:, RADIUS] = n_levels
    counts = np.zeros((n_queries, n_levels + 1), dtype=np.int32)
    distances = np.empty((n_queries, capacity_for(k)), dtype=np.uint16)
    positions = np.empty((n_queries, capacity_for(k)), dtype=np.int64)
    return counters, counts, distances, positions


@kernel
def offer(
    sums: Any, lanes: Any, first: int, valid: int, dead: Any, k: int, q: int, counters: Any, counts: Any, kept: Any,
    ids: Any,
) -> None:  # fmt: skip
    """Offer the distances of one tile to query ``q``.

    ``sums`` and ``lanes`` are the same memory, as 64-bit words and as single distances. ``first`` is the position of
    the tile's first code, ``valid`` the number of codes in it, ``dead`` a bitmap of positions that do not count (or
    empty).
    """
    use_wide_registers()
    per_word = lanes.shape[0] // sums.shape[0]
    width = 64 // per_word
    unit = BYTES if per_word == 8 else SHORTS
    high = unit << np.uint64(width - 1)
    radius, below, count = counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT]
    by_words = radius <= 1 << (width - 1)
    limit = np.uint64(radius) * unit if by_words else np.uint64(0)
    for group in range(0, sums.shape[0], _WORDS_PER_GROUP):
        if by_words:
            untouched = high
            for i in range(group, group + _WORDS_PER_GROUP):
                untouched &= (sums[i] | high) - limit
            if untouched == high:
                continue
        for i in range(group, group + _WORDS_PER_GROUP):
            near = ~((sums[i] | high) - limit) & high if by_words else high
            while near:
                p = i * per_word + np.int64(trailing_zeros(near)) // width
                near &= near - np.uint64(1)
                distance = np.int64(lanes[p])
                if distance >= radius or p >= valid:
                    continue
                position = first + p
                if dead.shape[0] and (dead[position >> 3] >> (position & 7)) & 1:
                    continue
                if count == ids.shape[1]:
                    count = _clear_away(k, radius, below, count, q, kept, ids)
                kept[q, count] = distance
                ids[q, count] = position
                count += 1
                counts[q, distance] += 1
                below += 1
                while below >= k:
                    radius -= 1
                    below -= counts[q, radius]
        if not by_words and radius <= 1 << (width - 1):
            by_words = True
        if by_words:
            limit = np.uint64(radius) * unit
    counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT] = radius, below, count


@kernel
def _clear_away(k: int, radius: int, below: int, count: int, q: int, kept: Any, ids: Any) -> int:
    """Keep what is nearer than the radius and, at the radius itself, the first ones that make up k."""
    room = k - below
    left = 0
    for c in range(count):
        at_radius = kept[q, c] == radius
        if kept[q, c] < radius or (at_radius and room > 0):
            kept[q, left] = kept[q, c]
            ids[q, left] = ids[q, c]
            left += 1
            if at_radius:
                room -= 1
    return left


@kernel
def finish(k: int, counters: Any, counts: Any, kept: Any, ids: Any, out_distances: Any, out_ids: Any) -> None:
    """Write the k nearest in order: by distance, equal ones by position. Sorts by counting; ``counts`` is used up."""
    for q in range(counters.shape[0]):
        count = _clear_away(k, counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT], q, kept, ids)
        counts[q, :] = 0
        for c in range(count):
            counts[q, kept[q, c]] += 1
        place = 0
        for distance in range(counts.shape[1]):
            here = counts[q, distance]
            counts[q, distance] = place
            place += here
        for c in range(count):
            place = counts[q, kept[q, c]]
            counts[q, kept[q, c]] += 1
            out_distances[q, place] = kept[q, c]
            out_ids[q, place] = ids[q, c]


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
