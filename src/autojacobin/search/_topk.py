"""Top-k of a block of queries over tiles, shared out over the cores.

Many queries: every task takes a block of queries over the whole base, tile by tile, so that a tile is read from
memory and turned into slices once for all of them. Few queries: every task takes a part of the base, and the answers
are put together. Very few: tiles are not turned, the bits are counted as they lie. Either way the answer is the same,
to the last tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, use_wide_registers
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.search._adders import mark_near
from autojacobin.search._distances import hamming_bytes, hamming_shorts, weighted_shorts
from autojacobin.search._registers import WORDS
from autojacobin.search._selection import (
    COUNT,
    RADIUS,
    capacity_for,
    finish,
    new_state,
    offer,
    offer_marked,
    put_together,
)
from autojacobin.search._slices import SlicedQueries, can_be_sliced, set_seeds, slice_tile
from autojacobin.search.tiles import Tiles

__all__ = ["NONE_DEAD", "NO_PLANES", "tiled_topk"]

_MOST_QUERIES_PER_TASK = 512
_FEWEST_QUERIES_TO_SLICE = 32
_QUERIES_WORTH_A_SHARE = 256
_BYTES_PER_TASK = 2**24  # larger arrays are taken from the system anew each time, page by page
_TILES_PER_SAMPLE = 16
_TILES_PER_PART = 8

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
    cores = usable_cores()
    share = max(1, _BYTES_PER_TASK // (10 * capacity_for(k) + 4 * n_levels))
    each = -(-n_queries // cores)
    # Turning a tile pays the more, the more queries look at it: rather than few each, all cores take all of them.
    per_task = min(_MOST_QUERIES_PER_TASK, share, each if each >= _QUERIES_WORTH_A_SHARE else n_queries)
    blocks = [slice(start, start + per_task) for start in range(0, n_queries, per_task)]
    n_tiles = len(base.words)
    parts = 1 if len(blocks) >= cores else min(cores, max(1, n_tiles // _TILES_PER_PART))
    edges = [n_tiles * part // parts for part in range(parts + 1)]

    distances = np.empty((n_queries, k), dtype=np.int32)
    positions = np.empty((n_queries, k), dtype=np.int64)

    def work(block: slice, first_tile: int, last_tile: int) -> tuple[Any, Any]:
        search = _Search(base, queries[block], planes[block], k, n_levels, dead)
        return search.over(first_tile, last_tile, (distances[block], positions[block]) if parts == 1 else None)

    tasks = [(block, edges[part], edges[part + 1]) for block in blocks for part in range(parts)]
    answers = run_tasks(work, tasks)
    merged = [put_together(answers[start : start + parts], k) for start in range(0, len(answers), parts)]
    found = merged[0][0].shape[1]  # fewer than k where fewer are alive, for every query alike
    if parts > 1 or found < k:
        for block, (near, places) in zip(blocks, merged, strict=True):
            distances[block, :found], positions[block, :found] = near, places
    return distances[:, :found], positions[:, :found]


class _Search:
    """A block of queries and what is needed to take them over tiles."""

    def __init__(self, base: Tiles, queries: Any, planes: Any, k: int, n_levels: int, dead: Any) -> None:
        self.base, self.queries, self.planes, self.n_levels, self.dead = base, queries, planes, n_levels, dead
        self.k = k
        lanes_per_word = 4 if planes.size else base.words.shape[2]
        self.sums = np.empty(base.codes_per_tile // lanes_per_word, dtype=np.uint64)
        self.lanes = self.sums.view(np.uint8 if lanes_per_word == 8 else np.uint16)
        self.near = np.empty(base.codes_per_tile // 64, dtype=np.uint64)
        many = len(queries) >= _FEWEST_QUERIES_TO_SLICE and can_be_sliced(base)
        self.sliced = SlicedQueries.over(base, queries, planes) if many else None

    def over(self, first_tile: int, last_tile: int, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """Nearest codes within some of the tiles, written to ``out`` if that is given and filled by them."""
        state = new_state(len(self.queries), self.k, self.n_levels)
        radii = self.guess_radii(first_tile, last_tile)
        state[0][:, RADIUS] = radii
        self.scan(np.arange(first_tile, last_tile), self.k, *state)
        # A guess that was too small left some query with fewer than there are; it is asked again without one.
        for query in np.flatnonzero((state[0][:, RADIUS] == radii) & (radii < self.n_levels)):
            one = slice(query, query + 1)
            again = _Search(self.base, self.queries[one], self.planes[one], self.k, self.n_levels, self.dead)
            alone = new_state(1, self.k, self.n_levels)
            again.scan(np.arange(first_tile, last_tile), self.k, *alone)
            for part, whole in zip(alone, state, strict=True):
                whole[query] = part[0]
        counters, counts, kept, ids = state
        wanted = min(self.k, int(counters[0, COUNT]))  # fewer where fewer are alive, for every query alike
        if out is None or wanted < self.k:
            shape = (len(self.queries), wanted)
            out = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int64)
        distances, positions = out
        finish(wanted, counters, counts, kept, ids, distances, positions)
        return distances, positions

    def guess_radii(self, first_tile: int, last_tile: int) -> Any:
        """Radius within which the k nearest of each query most likely lie, from a sample of the tiles.

        Starting with it, few candidates are taken that drop out again.
        """
        n_tiles = last_tile - first_tile
        sampled = n_tiles // _TILES_PER_SAMPLE
        share = self.k * sampled / max(1, n_tiles)
        rank = int(share + 4 * share**0.5 + 4)
        if sampled < 2 or rank * 4 > sampled * self.base.codes_per_tile:
            return np.full(len(self.queries), self.n_levels)
        state = new_state(len(self.queries), rank, self.n_levels)
        # spread over the whole, since the order of a base often means something
        sample = first_tile + np.arange(sampled) * n_tiles // sampled
        if rank <= self.base.codes_per_tile:  # without, all codes of the first tile would be taken in
            _radii_of_tile(
                self.base.words, sample[0], self.queries, self.planes, rank, self.sums, self.lanes, state[1], state[0]
            )
        self.scan(sample, rank, *state)
        return np.minimum(state[0][:, RADIUS] + 1, self.n_levels)

    def scan(self, tiles: Any, k: int, counters: Any, counts: Any, kept: Any, ids: Any) -> None:
        state = (counters, counts, kept, ids)
        if self.sliced is None:
            _scan(
                self.base.words, self.base.n, tiles, self.queries, self.planes, self.dead, k, self.sums, self.lanes,
                self.near, *state,
            )  # fmt: skip
        else:
            _scan_slices(
                self.base.words, self.base.n, tiles, self.queries, self.planes, self.dead, k, self.sliced.rows,
                self.sliced.ends, self.sliced.origins, self.sliced.seeds, self.sliced.slices, self.sliced.every_row,
                self.sliced.lists, self.sliced.width, self.near, *state,
            )  # fmt: skip


@kernel
def _radii_of_tile(
    words: Any, t: int, queries: Any, planes: Any, rank: int, sums: Any, lanes: Any, counts: Any, counters: Any
) -> None:
    """Set the radius of each query so that ``rank`` codes of tile ``t`` are within it."""
    for q in range(queries.shape[0]):
        _distances_to(words, t, queries, planes, q, sums, 0)
        for distance in lanes:
            counts[q, distance] += 1
        radius, below = 0, 0
        while below < rank:
            below += counts[q, radius]
            radius += 1
        counts[q, :] = 0
        counters[q, RADIUS] = radius


@kernel
def _distances_to(words: Any, t: int, queries: Any, planes: Any, q: int, sums: Any, radius: int) -> bool:
    if planes.shape[0]:
        return weighted_shorts(words, t, queries, planes, q, sums, radius)
    if words.shape[2] == 8:
        return hamming_bytes(words, t, queries, q, sums, radius)
    return hamming_shorts(words, t, queries, q, sums, radius)


@kernel
def _scan(
    words: Any, n: int, tiles: Any, queries: Any, planes: Any, dead: Any, k: int, sums: Any, lanes: Any,
    near: Any, counters: Any, counts: Any, kept: Any, ids: Any,
) -> None:  # fmt: skip
    codes = words.shape[2] * words.shape[3]
    for t in tiles:
        first = t * codes
        valid = min(codes, n - first)
        for q in range(queries.shape[0]):
            radius = counters[q, RADIUS]
            if _distances_to(words, t, queries, planes, q, sums, radius):
                offer(sums, lanes, words.shape[2], near, first, valid, dead, k, q, counters, counts, kept, ids)


@kernel
def _scan_slices(
    words: Any, n: int, tiles: Any, queries: Any, planes: Any, dead: Any, k: int, rows: Any, ends: Any, origins: Any,
    seeds: Any, slices: Any, every_row: Any, lists: Any, width: Any, near: Any, counters: Any, counts: Any, kept: Any,
    ids: Any,
) -> None:  # fmt: skip
    use_wide_registers()
    codes = words.shape[2] * words.shape[3]
    for q in range(queries.shape[0]):
        set_seeds(seeds, q, counters[q, RADIUS] + origins[q])
    for t in tiles:
        slice_tile(words, t, slices, every_row, lists, width)
        valid = min(codes, n - t * codes)
        for q in range(queries.shape[0]):
            marked = np.uint64(0)
            for c in range(slices.shape[0]):
                marked |= mark_near(slices, c, rows, ends, q, seeds, near, lists, width) << np.uint64(WORDS * c)
            if marked:
                radius = counters[q, RADIUS]
                offer_marked(words, t, queries, planes, near, marked, valid, dead, k, q, counters, counts, kept, ids)
                if counters[q, RADIUS] != radius:
                    set_seeds(seeds, q, counters[q, RADIUS] + origins[q])
