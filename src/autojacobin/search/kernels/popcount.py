"""Distances of codes by counting bits, and the tiles that codes are stored in.

The spherical Hamming distance depends on two counts alone, and a table gives the *level* of each pair of counts
(``queries.Levels``). Levels are whole numbers in float32, because ``select_smallest`` needs an infinity for codes that
do not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, popcount, use_wide_registers
from autojacobin.core.parallel import run_tasks
from autojacobin.search.kernels.selection import select_smallest

_ZERO = np.uint64(0)


@kernel
def write_tiles(rows: Any, tiles: Any, first: int) -> None:
    """Write codes, given as rows of words, into tiles from position ``first`` on."""
    lanes = tiles.shape[2]
    codes = lanes * tiles.shape[3]
    steps = 64 // lanes
    groups = codes // 64
    for row in range(rows.shape[0]):
        position = first + row
        tile = position // codes
        inside = position - tile * codes
        group = inside // 64
        bit = inside - 64 * group
        lane = bit // steps
        column = (bit - lane * steps) * groups + group
        for w in range(rows.shape[1]):
            tiles[tile, w, lane, column] = rows[row, w]


@kernel
def row_distances(words: Any, query: Any, distances: Any) -> None:
    """Hamming distances of one query to codes that are given as rows of words."""
    for row in range(words.shape[0]):
        total = _ZERO
        for w in range(words.shape[1]):
            total += popcount(words[row, w] ^ query[w])
        distances[row] = total


@kernel
def table_sums(packed: Any, tables: Any, sums: Any) -> None:
    """For each packed code, add up the values that ``tables`` has for its bytes, in the order of the bytes."""
    for row in range(packed.shape[0]):
        total = 0.0
        for byte in range(packed.shape[1]):
            total += tables[byte, packed[row, byte]]
        sums[row] = total


def lowest_levels(
    words: npt.NDArray[np.uint64],
    n: int,
    queries: npt.NDArray[np.uint64],
    table: npt.NDArray[np.float32],
    k: int,
    allowed: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Levels and positions of the ``k`` nearest codes, or of all allowed ones if they are fewer.

    ``table`` gives the level for each pair of counts. The other arguments are those of ``topk`` in ``scan.py``.
    """
    removed = ~np.unpackbits(allowed, count=n, bitorder="little").view(np.bool_) if allowed.size else None
    found = min(k, n if removed is None else n - int(removed.sum()))
    nearest = np.empty((len(queries), found), dtype=np.float32)
    positions = np.empty((len(queries), found), dtype=np.int64)
    everywhere = np.arange(n, dtype=np.int64)[np.newaxis]

    def search(q: int) -> None:
        levels = np.empty((1, n), dtype=np.float32)
        _tile_levels(words, n, queries, q, table, levels[0])
        if removed is not None:
            levels[0, removed] = np.inf
        select_smallest(levels, everywhere, found, nearest[q : q + 1], positions[q : q + 1])

    if found:
        run_tasks(search, [(q,) for q in range(len(queries))])
    return nearest.astype(np.int32), positions


@kernel
def _tile_levels(words: Any, n: int, queries: Any, q: int, table: Any, levels: Any) -> None:
    """Write the levels of query ``q`` to all ``n`` codes of the tiles, in the order of their positions.

    ``table[differing, shared]`` is the level of codes that differ in ``differing`` bits and share ``shared`` ones.
    """
    use_wide_registers()
    n_words, lanes, columns = words.shape[1], words.shape[2], words.shape[3]
    groups, steps = lanes * columns // 64, 64 // lanes
    differing = np.empty(columns, dtype=np.uint64)
    shared = np.empty(columns, dtype=np.uint64)
    for t in range(words.shape[0]):
        for lane in range(lanes):
            differing[:] = _ZERO
            shared[:] = _ZERO
            for w in range(n_words):
                a = queries[q, w]
                for i in range(columns):
                    word = words[t, w, lane, i]
                    differing[i] += popcount(word ^ a)
                    shared[i] += popcount(word & a)
            first = t * lanes * columns + lane * steps  # the layout is described in tiles.py
            for step in range(steps):
                for g in range(groups):
                    position = first + 64 * g + step
                    if position < n:
                        i = step * groups + g
                        levels[position] = table[differing[i], shared[i]]
