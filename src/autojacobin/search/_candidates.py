"""The k nearest codes where their order does not matter, because the vectors themselves will decide.

The search in order (``_topk.py``) takes the distance of every code that is near enough at once, to draw the radius in.
Here the radius is a guess from a sample and stays: near codes are only noted down, all distances are taken together
afterwards, and what is too much is cut off, at equal distances the later positions. It is the same set in half to three
quarters of the time, because the machine has fewer jumps to guess. Queries whose guess was bad are searched in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._parallel import run_tasks, usable_cores
from autojacobin.search._adders import mark_near
from autojacobin.search._compile import kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.search._registers import WORDS
from autojacobin.search._selection import RADIUS, is_dead, new_state
from autojacobin.search._slices import set_seeds, slice_tile
from autojacobin.search._topk import NONE_DEAD, _radii_of_tile, _Search, tiled_topk
from autojacobin.search.tiles import Tiles

__all__ = ["tiled_candidates"]

_QUERIES_PER_TASK = 256
_BYTES_PER_TASK = 2**24
_FEWEST_QUERIES = 64  # a core; fewer are better served by sharing out the base
_FEWEST_TILES, _FEWEST_TILES_TO_SAMPLE = 5, 32
_MOST_CODES = 2**31  # positions are noted down in 32 bits


def tiled_candidates(
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    base: Tiles,
    k: int,
    *,
    n_levels: int,
    dead: npt.NDArray[np.uint8] = NONE_DEAD,
) -> npt.NDArray[np.int64]:
    """Positions of the ``k`` nearest codes of each query, in any order; arguments are those of ``tiled_topk``."""
    if len(queries) < _FEWEST_QUERIES * usable_cores() or base.n >= _MOST_CODES:
        return tiled_topk(queries, planes, base, k, n_levels=n_levels, dead=dead)[1]
    capacity = 4 * k + 1024
    per_task = min(_QUERIES_PER_TASK, max(1, _BYTES_PER_TASK // (4 * capacity)))
    positions = np.empty((len(queries), k), dtype=np.int64)

    def work(start: int) -> None:
        block = slice(start, start + per_task)
        search = _Search(base, queries[block], planes[block], k, n_levels, dead)
        missed = np.arange(len(search.queries))
        radii = _guessed_radii(search) if search.sliced is not None else np.array([n_levels])
        if np.all(radii < n_levels):
            missed = _collected(search, radii, capacity, positions[block])
        if len(missed):
            rows = start + missed
            weights = planes[rows] if planes.size else planes
            positions[rows] = tiled_topk(queries[rows], weights, base, k, n_levels=n_levels, dead=dead)[1]

    run_tasks(work, [(start,) for start in range(0, len(queries), per_task)])
    return positions


def _guessed_radii(search: _Search) -> Any:
    """Radius that most likely has the k nearest in it; in a small base from two tiles, where the other search has none.

    Noting down twice too many costs less here than taking all distances does there.
    """
    n_tiles = len(search.base.words)
    if n_tiles >= _FEWEST_TILES_TO_SAMPLE:
        return search.guess_radii(0, n_tiles)
    sample = np.array([n_tiles // 4, 3 * n_tiles // 4])
    share = search.k * len(sample) / n_tiles
    rank = int(share + 4 * share**0.5 + 4)
    if n_tiles < _FEWEST_TILES or rank > search.base.codes_per_tile // 2:
        return np.full(len(search.queries), search.n_levels)
    state = new_state(len(search.queries), rank, search.n_levels)
    _radii_of_tile(
        search.base.words, sample[0], search.queries, search.planes, rank, search.sums, search.lanes, state[1], state[0]
    )
    search.scan(sample, rank, *state)
    return np.minimum(state[0][:, RADIUS] + 1, search.n_levels)


def _collected(search: _Search, radii: Any, capacity: int, positions: Any) -> Any:
    """Write the positions; gives the queries for which fewer or far more than k codes were near."""
    sliced, base = search.sliced, search.base
    assert sliced is not None
    found = np.empty((len(search.queries), capacity), dtype=np.int32)
    counts = np.zeros(len(search.queries), dtype=np.int64)
    _collect(
        base.words, base.n, search.dead, sliced.rows, sliced.ends, sliced.origins, sliced.seeds, sliced.slices,
        sliced.every_row, sliced.lists, sliced.width, search.near, radii, found, counts,
    )  # fmt: skip
    planes = search.planes if search.planes.size else np.empty((len(search.queries), 0, 0), dtype=np.uint64)
    fitting = (counts >= search.k) & (counts <= capacity)
    _cut_off(base.words, search.queries, planes, found, counts, fitting, search.k, search.n_levels, positions)
    return np.flatnonzero(~fitting)


@kernel
def _collect(
    words: Any, n: int, dead: Any, rows: Any, ends: Any, origins: Any, seeds: Any, slices: Any, every_row: Any,
    lists: Any, width: Any, near: Any, radii: Any, found: Any, counts: Any,
) -> None:  # fmt: skip
    """Note down the positions nearer than the radius of each query; those beyond the room are only counted."""
    use_wide_registers()
    codes = words.shape[2] * words.shape[3]
    for q in range(found.shape[0]):
        set_seeds(seeds, q, radii[q] + origins[q])
    for t in range(words.shape[0]):
        slice_tile(words, t, slices, every_row, lists, width)
        valid = min(codes, n - t * codes)
        for q in range(found.shape[0]):
            marked = np.uint64(0)
            for c in range(slices.shape[0]):
                marked |= mark_near(slices, c, rows, ends, q, seeds, near, lists, width) << np.uint64(WORDS * c)
            count = counts[q]
            while marked:
                g = np.int64(trailing_zeros(marked))
                bits = near[g]
                place = 64 * g + np.int64(trailing_zeros(bits))
                bits &= bits - np.uint64(1)
                near[g] = bits
                marked = marked if bits else marked & (marked - np.uint64(1))
                position = codes * t + place
                if place < valid and not is_dead(dead, position):
                    if count < found.shape[1]:
                        found[q, count] = position
                    count += 1
            counts[q] = count


@kernel
def _cut_off(
    words: Any, queries: Any, planes: Any, found: Any, counts: Any, fitting: Any, k: int, n_levels: int, positions: Any
) -> None:
    """Keep the k nearest of what was found, at equal distances the first ones."""
    codes = words.shape[2] * words.shape[3]
    groups, steps = codes // 64, 64 // words.shape[2]
    distances = np.empty(found.shape[1], dtype=np.int32)
    numbers = np.empty(n_levels + 1, dtype=np.int32)
    for q in range(found.shape[0]):
        if not fitting[q]:
            continue
        numbers[:] = 0
        for c in range(counts[q]):
            t, place = divmod(np.uint32(found[q, c]), np.uint32(codes))
            lane, step = divmod(place & np.uint32(63), np.uint32(steps))
            column = step * np.uint32(groups) + (place >> np.uint32(6))
            distance = np.int64(0)
            for w in range(words.shape[1]):
                differing = words[t, w, lane, column] ^ queries[q, w]
                if planes.shape[1]:
                    for plane in range(planes.shape[1]):
                        distance += np.int64(popcount(differing & planes[q, plane, w])) << plane
                else:
                    distance += np.int64(popcount(differing))
            distances[c] = distance
            numbers[distance] += 1
        edge, below = 0, 0
        while below + numbers[edge] < k:
            below += numbers[edge]
            edge += 1
        room, kept = k - below, 0
        for c in range(counts[q]):
            at_edge = distances[c] == edge
            if distances[c] < edge or (at_edge and room > 0):
                positions[q, kept] = found[q, c]
                kept += 1
                if at_edge:
                    room -= 1
