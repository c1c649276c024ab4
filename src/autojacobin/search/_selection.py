"""Exact selection of the k nearest by counting, without a heap.

Candidates come in the order of their positions. Of every query it is known how many candidates lie at each distance, so
the distance of the k-th nearest so far, the radius, is known too. A later candidate counts only if it is strictly
nearer than the radius: at the same distance, the earlier position wins. Most tiles are dismissed as a whole (see
``_distances.py``); of the others, the layout gives a bitmap of the near codes in their order, and only those are
looked at.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, trailing_zeros, use_wide_registers
from autojacobin.search._distances import BYTES, SHORTS, distance_of

__all__ = ["BELOW", "COUNT", "RADIUS", "capacity_for", "finish", "new_state", "offer", "offer_marked", "put_together"]

# Columns of the per-query counters.
RADIUS, BELOW, COUNT = 0, 1, 2


def capacity_for(k: int) -> int:
    """Candidates that are kept before those that dropped out are cleared away."""
    return k + max(k, 1024)


def new_state(n_queries: int, k: int, n_levels: int) -> tuple[Any, Any, Any, Any]:
    """Counters (radius, number below it, number kept), counts by distance, and the kept distances and positions."""
    counters = np.zeros((n_queries, 3), dtype=np.int64)
    counters[:, RADIUS] = n_levels
    counts = np.zeros((n_queries, n_levels + 1), dtype=np.int32)
    distances = np.empty((n_queries, capacity_for(k)), dtype=np.uint16)
    positions = np.empty((n_queries, capacity_for(k)), dtype=np.int64)
    return counters, counts, distances, positions


@kernel
def map_near_bytes(sums: Any, radius: int, near: Any) -> None:
    """Bitmap of the codes of a tile nearer than ``radius``, from distances of one byte."""
    use_wide_registers()
    groups = near.shape[0]
    high = BYTES << np.uint64(7)
    limit = np.uint64(radius) * BYTES
    for g in range(groups):
        bits = np.uint64(0)
        for s in range(8):
            bits |= (~((sums[s * groups + g] | high) - limit) & high) >> np.uint64(7 - s)
        near[g] = bits


@kernel
def map_near_shorts(sums: Any, radius: int, near: Any) -> None:
    """Bitmap of the codes of a tile nearer than ``radius``, from distances of two bytes."""
    use_wide_registers()
    groups = near.shape[0]
    high = SHORTS << np.uint64(15)
    limit = np.uint64(radius) * SHORTS
    for g in range(groups):
        bits = np.uint64(0)
        for s in range(16):
            bits |= (~((sums[s * groups + g] | high) - limit) & high) >> np.uint64(15 - s)
        near[g] = bits


@kernel
def map_near_halves(sums: Any, radius: int, near: Any) -> None:
    """Bitmap for distances of two bytes over tiles that are laid out for one: lanes 0 to 3, and then 4 to 7."""
    use_wide_registers()
    groups = near.shape[0]
    high = SHORTS << np.uint64(15)
    limit = np.uint64(radius) * SHORTS
    for g in range(groups):
        low, top = np.uint64(0), np.uint64(0)
        for s in range(8):
            low |= (~((sums[s * groups + g] | high) - limit) & high) >> np.uint64(15 - s)
            top |= (~((sums[(8 + s) * groups + g] | high) - limit) & high) >> np.uint64(15 - s)
        # bits 16 j + s of each half belong at 8 j + s
        near[g] = _every_other_byte(low) | (_every_other_byte(top) << np.uint64(32))


@kernel(inline=True)
def _every_other_byte(word: Any) -> Any:
    word = (word | (word >> np.uint64(8))) & np.uint64(0x0000FFFF0000FFFF)
    return (word | (word >> np.uint64(16))) & np.uint64(0x00000000FFFFFFFF)


@kernel
def offer(
    sums: Any, lanes: Any, tile_lanes: int, near: Any, first: int, valid: int, dead: Any, k: int, q: int,
    counters: Any, counts: Any, kept: Any, ids: Any,
) -> None:  # fmt: skip
    """Offer the distances of one tile to query ``q``.

    ``sums`` and ``lanes`` are the same memory, as 64-bit words and as single distances; ``tile_lanes`` is what the tile
    is laid out for, ``near`` room for a bitmap. ``first`` is the position of the tile's first code, ``valid`` the
    number of codes in it, ``dead`` a bitmap of positions that do not count (or empty).
    """
    per_word = lanes.shape[0] // sums.shape[0]
    groups = near.shape[0]
    steps = 64 // tile_lanes
    radius, below, count = counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT]
    if radius > (128 if per_word == 8 else 32768):
        near[:] = np.uint64(0xFFFFFFFFFFFFFFFF)
    elif per_word == 8:
        map_near_bytes(sums, radius, near)
    elif tile_lanes == 8:
        map_near_halves(sums, radius, near)
    else:
        map_near_shorts(sums, radius, near)
    for g in range(groups):
        bits = near[g]
        while bits:
            place = np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            lane = place // steps
            column = (place - lane * steps) * groups + g
            if lane >= per_word:  # in the second half of sums
                lane -= per_word
                column += 8 * groups
            distance = np.int64(lanes[column * per_word + lane])
            p = 64 * g + place
            if distance >= radius or p >= valid:
                continue
            position = first + p
            if not is_dead(dead, position):
                radius, below, count = _admit(distance, position, k, q, radius, below, count, counts, kept, ids)
    counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT] = radius, below, count


@kernel
def offer_marked(
    words: Any, t: int, queries: Any, planes: Any, near: Any, marked: Any, valid: int, dead: Any, k: int, q: int,
    counters: Any, counts: Any, kept: Any, ids: Any,
) -> None:  # fmt: skip
    """Offer the codes of tile ``t`` that ``near`` marks to query ``q``; their distances are taken here.

    Bit g of ``marked`` says whether word g of ``near`` has any marks. One flat loop, because the end of every loop is
    a jump that the machine guesses wrong.
    """
    groups = near.shape[0]
    radius, below, count = counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT]
    while marked:
        g = np.int64(trailing_zeros(marked))
        bits = near[g]
        place = np.int64(trailing_zeros(bits))
        bits &= bits - np.uint64(1)
        near[g] = bits
        marked = marked if bits else marked & (marked - np.uint64(1))
        p = 64 * g + place
        distance = distance_of(words, t, g, place, queries, planes, q)
        position = 64 * groups * t + p
        if p < valid and distance < radius and not is_dead(dead, position):
            radius, below, count = _admit(distance, position, k, q, radius, below, count, counts, kept, ids)
    counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT] = radius, below, count


@kernel(inline=True)
def is_dead(dead: Any, position: Any) -> Any:
    """Tell whether a position is marked in a bitmap, which may be empty."""
    return dead.shape[0] > 0 and (dead[position >> 3] >> (position & 7)) & 1 > 0


@kernel(inline=True)
def _admit(
    distance: Any, position: Any, k: int, q: int, radius: int, below: int, count: int, counts: Any, kept: Any, ids: Any
) -> tuple[int, int, int]:
    """Take in a candidate that is nearer than the radius; gives the new radius, number below it, number kept."""
    if count == ids.shape[1]:
        count = _clear_away(k, radius, below, count, q, kept, ids)
    kept[q, count] = distance
    ids[q, count] = position
    counts[q, distance] += 1
    below += 1
    while below >= k:
        radius -= 1
        below -= counts[q, radius]
    return radius, below, count + 1


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
