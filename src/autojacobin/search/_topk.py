"""Top-k of a block of queries over tiles, shared out over the cores.

Many queries: every task takes a block of queries over the whole base, tile by tile, so that a tile is read from
memory once for all of them. Few queries: every task takes a part of the base, and the answers are put together. Either
way the answer is the same, to the last tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._parallel import run_tasks, usable_cores
from autojacobin.search._compile import kernel
from autojacobin.search._distances import hamming_bytes, hamming_shorts, weighted_shorts
from autojacobin.search._selection import capacity_for, finish, new_state, offer, put_together
from autojacobin.search.tiles import CODES_PER_TILE, Tiles

__all__ = ["tiled_topk"]

_MOST_QUERIES_PER_TASK = 64
_BYTES_PER_TASK = 2**26

NO_PLANES = np.empty((0, 0, 0), dtype=np.uint64)
NONE_DEAD = np.empty(0, dtype=np.uint8)


def tiled_topk(
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    base: Tiles,
    k: int,
    *,
    n_levels: int,
    dead: npt.NDArray[np.uint8] = NONE_DEAD,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Distances and positions of the ``k`` nearest codes, or of all there are if they are fewer.

    Parameters
    ----------
    queries : array of uint64, shape (n_queries, words)
        Query codes.
    planes : array of uint64, shape (n_queries, planes, words)
        Weights of the bits as planes, for a weighted distance; ``NO_PLANES`` for the Hamming distance.
    base : Tiles
        The codes.
    k : int
        Neighbours a query.
    n_levels : int
        One more than the largest distance.
    dead : array of uint8
        Bitmap of positions that do not count; there must be k others.
    """
    n_queries = len(queries)
    share = max(1, _BYTES_PER_TASK // (10 * capacity_for(k) + 4 * n_levels))
    per_task = min(_MOST_QUERIES_PER_TASK, share, max(1, -(-n_queries // usable_cores())))
    blocks = [slice(start, start + per_task) for start in range(0, n_queries, per_task)]
    n_tiles = len(base.words)
    parts = 1 if len(blocks) >= usable_cores() else min(usable_cores(), max(1, n_tiles // 8))
    edges = [n_tiles * part // parts for part in range(parts + 1)]

    def work(block: slice, first_tile: int, last_tile: int) -> tuple[Any, Any]:
        chosen = queries[block]
        counters, counts, kept, ids = new_state(len(chosen), k, n_levels)
        lanes_per_word = 4 if planes.size else base.words.shape[2]
        sums = np.empty(CODES_PER_TILE // lanes_per_word, dtype=np.uint64)
        lanes = sums.view(np.uint8 if lanes_per_word == 8 else np.uint16)
        _scan(
            base.words, base.n, first_tile, last_tile, chosen, planes[block], dead, k, sums, lanes,
            counters, counts, kept, ids,
        )  # fmt: skip
        wanted = min(k, int(counters[0, 2]))  # fewer where fewer are alive, for every query alike
        distances = np.empty((len(chosen), wanted), dtype=np.int32)
        positions = np.empty((len(chosen), wanted), dtype=np.int64)
        for query in range(len(chosen)):
            finish(wanted, counters[query], kept[query], ids[query], counts[query], distances[query], positions[query])
        return distances, positions

    tasks = [(block, edges[part], edges[part + 1]) for block in blocks for part in range(parts)]
    answers = run_tasks(work, tasks)
    merged = [put_together(answers[start : start + parts], k) for start in range(0, len(answers), parts)]
    return np.concatenate([part[0] for part in merged]), np.concatenate([part[1] for part in merged])


@kernel
def _scan(
    tiles: Any, n: int, first_tile: int, last_tile: int, queries: Any, planes: Any, dead: Any, k: int, sums: Any,
    lanes: Any, counters: Any, counts: Any, kept: Any, ids: Any,
) -> None:  # fmt: skip
    for t in range(first_tile, last_tile):
        first = t * CODES_PER_TILE
        valid = min(CODES_PER_TILE, n - first)
        for q in range(queries.shape[0]):
            if planes.shape[0]:
                weighted_shorts(tiles[t], queries[q], planes[q], sums)
            elif tiles.shape[2] == 8:
                hamming_bytes(tiles[t], queries[q], sums)
            else:
                hamming_shorts(tiles[t], queries[q], sums)
            offer(sums, lanes, first, valid, dead, k, counters[q], counts[q], kept[q], ids[q])
