"""The k nearest codes where their order does not matter, because the vectors themselves will decide.

The search in order (``_topk.py``) takes the distance of every code that is near enough at once, to draw the radius in.
Here the radius is a guess from a sample (``_guess.py``) and stays: near codes are only noted down with their distances,
and what is too much is cut off at the end, at equal distances the later positions. It is the same set in half the time,
because the machine has fewer jumps to guess. Queries whose guess was bad are searched in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.search._adders import mark_near
from autojacobin.search._distances import distance_of
from autojacobin.search._guess import guessed_radii
from autojacobin.search._lines import empty_at_line
from autojacobin.search._registers import WORDS
from autojacobin.search._slices import SlicedQueries, can_be_sliced, set_seeds, slice_tile
from autojacobin.search._topk import NONE_DEAD, tiled_topk
from autojacobin.search.tiles import Tiles

__all__ = ["are_collected", "use_candidates"]

_QUERIES_PER_TASK = 256
_BYTES_PER_TASK, _BYTES_PER_CODE = 2**24, 6  # a position and a distance for each code noted down
_FEWEST_QUERIES = 64  # a core; fewer are better served by sharing out the base
_FEWEST_PER_TASK = 32  # fewer are not worth turning the tiles for
_MOST_CODES = 2**31  # positions are noted down in 32 bits
_CODES_PER_WORD = 64
_LAST = np.uint64(1 << 63)

# Takes a block of queries and the positions of the candidates of each.
Use = Callable[[slice, npt.NDArray[Any]], None]


def are_collected(n_queries: int, base: Tiles, k: int) -> bool:
    """Tell whether candidates are worth collecting: not for few queries, nor where so many that few fit a task."""
    enough = n_queries >= _FEWEST_QUERIES * usable_cores() and _most_per_task(k) >= _FEWEST_PER_TASK
    return enough and base.n < _MOST_CODES and can_be_sliced(base)


def _capacity(k: int) -> int:
    return 4 * k + 1024


def _most_per_task(k: int) -> int:
    return min(_QUERIES_PER_TASK, _BYTES_PER_TASK // (_BYTES_PER_CODE * _capacity(k)))


def use_candidates(
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    base: Tiles,
    k: int,
    use: Use,
    *,
    n_levels: int,
    dead: npt.NDArray[np.uint8] = NONE_DEAD,
) -> None:
    """Find the ``k`` nearest codes of each query, in any order, and ``use`` those of a block where they were found.

    The other arguments are those of ``tiled_topk``. Only for what :func:`are_collected` says.
    """
    capacity = _capacity(k)
    rounds = -(-len(queries) // (_most_per_task(k) * usable_cores()))
    per_task = -(-len(queries) // (rounds * usable_cores()))
    alive = _alive(base, dead)

    def work(start: int) -> None:
        block = slice(start, start + per_task)
        sliced = SlicedQueries.over(base, queries[block], planes[block])
        radii = guessed_radii(sliced, base, alive, k, n_levels, capacity // 2)
        if radii is None:
            use(block, tiled_topk(queries[block], planes[block], base, k, n_levels=n_levels, dead=dead)[1])
            return
        positions, missed = _collected(base, queries[block], planes[block], sliced, alive, radii, k, n_levels, capacity)
        if len(missed):
            rows = start + missed
            weights = planes[rows] if planes.size else planes
            positions[missed] = tiled_topk(queries[rows], weights, base, k, n_levels=n_levels, dead=dead)[1]
        use(block, positions)

    run_tasks(work, [(start,) for start in range(0, len(queries), per_task)])


def _alive(base: Tiles, dead: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Bitmap of the codes that count, over all that the tiles have room for."""
    room = len(base.words) * base.codes_per_tile
    flags = np.zeros(room // 8, dtype=np.uint8)
    flags[: base.n // 8] = 0xFF
    flags[base.n // 8 : -(-base.n // 8)] = (1 << base.n % 8) - 1
    flags[: len(dead)] &= ~dead
    return flags.view("<u8").astype(np.uint64, copy=False)


def _collected(
    base: Tiles, queries: Any, planes: Any, sliced: SlicedQueries, alive: Any, radii: Any, k: int, n_levels: int,
    capacity: int,
) -> tuple[Any, Any]:  # fmt: skip
    """Positions of the k nearest, and the queries for which fewer or far more than k codes were near."""
    found = np.empty((len(queries), capacity + _CODES_PER_WORD), dtype=np.int32)
    distances = np.empty(found.shape, dtype=np.uint16)
    counts = np.zeros(len(queries), dtype=np.int64)
    near = empty_at_line((base.codes_per_tile // _CODES_PER_WORD,), np.uint64)
    _collect(
        base.words, alive, queries, planes, sliced.rows, sliced.ends, sliced.origins, sliced.seeds, sliced.slices,
        sliced.every_row, sliced.lists, sliced.width, near, radii, found, distances, counts,
    )  # fmt: skip
    fitting = (counts >= k) & (counts <= capacity)
    _cut_off(found, distances, np.where(fitting, counts, 0), k, n_levels)
    return found[:, :k], np.flatnonzero(~fitting)


@kernel
def _collect(
    words: Any, alive: Any, queries: Any, planes: Any, rows: Any, ends: Any, origins: Any, seeds: Any, slices: Any,
    every_row: Any, lists: Any, width: Any, near: Any, radii: Any, found: Any, distances: Any, counts: Any,
) -> None:  # fmt: skip
    """Note down what is nearer than the radius of each query: positions and distances; beyond the room only how many.

    The distances are taken at once, while the tile is in the nearest cache, where it stays for all queries.
    """
    use_wide_registers()
    groups = near.shape[0]
    capacity = found.shape[1] - _CODES_PER_WORD
    for q in range(found.shape[0]):
        set_seeds(seeds, q, radii[q] + origins[q])
    for t in range(words.shape[0]):
        slice_tile(words, t, slices, every_row, lists, width)
        first = _CODES_PER_WORD * groups * t
        for q in range(found.shape[0]):
            marked = np.uint64(0)
            for c in range(slices.shape[0]):
                marked |= mark_near(slices, c, rows, ends, q, seeds, near, lists, width) << np.uint64(WORDS * c)
            count = counts[q]
            before = min(count, capacity)
            while marked:
                g = np.int64(trailing_zeros(marked))
                marked &= marked - np.uint64(1)
                bits = near[g] & alive[groups * t + g]
                if count <= capacity:
                    _note(bits, first + _CODES_PER_WORD * g, found, q, count)
                count += np.int64(popcount(bits))
            for c in range(before, min(count, capacity)):
                place = np.int64(found[q, c]) - first
                distances[q, c] = distance_of(words, t, place >> 6, place & 63, queries, planes, q)
            counts[q] = count


@kernel(inline=True)
def _note(bits: Any, first: int, found: Any, q: int, count: int) -> None:
    """Write the positions of the bits of a word. Most have one or two: so many are written whether there or not."""
    for _ in range(2):
        found[q, count] = first + np.int64(trailing_zeros(bits | _LAST))
        bits &= bits - np.uint64(1)
        count += 1
    while bits:
        found[q, count] = first + np.int64(trailing_zeros(bits))
        bits &= bits - np.uint64(1)
        count += 1


@kernel
def _cut_off(found: Any, distances: Any, counts: Any, k: int, n_levels: int) -> None:
    """Bring the k nearest of what was found to the front, at equal distances the first ones."""
    numbers = np.empty(n_levels + 1, dtype=np.int32)
    for q in range(found.shape[0]):
        if not counts[q]:
            continue
        numbers[:] = 0
        for c in range(counts[q]):
            numbers[distances[q, c]] += 1
        edge, below = 0, 0
        while below + numbers[edge] < k:
            below += numbers[edge]
            edge += 1
        room, kept = k - below, 0
        for c in range(counts[q]):
            # written in any case and kept or not, for half of all jumps here would be guessed wrong
            found[q, kept] = found[q, c]
            at_edge = distances[q, c] == edge
            kept += (distances[q, c] < edge) | (at_edge & (room > 0))
            room -= at_edge
