"""Top-k of a block of queries over tiles, shared out over the cores.

With many queries, each task takes a block of queries over the whole base, tile by tile, so that a tile is read from
memory and sliced once for all of them. With few queries, each task takes a part of the base, and the results are
merged. With very few queries, tiles are not sliced; bits are counted instead. The results are the same either way, in
the same order.

Most tiles are dismissed as a whole, because no code in them is nearer than the radius of the query. For the others, a
bitmap tells which codes may be near, and only those are looked at one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, trailing_zeros, use_wide_registers
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.search.kernels.bitslice import can_be_sliced, mark_near, set_start, slice_chunk, slice_queries
from autojacobin.search.kernels.popcount import code_distance, near_bitmap, tile_distances
from autojacobin.search.kernels.selection import (
    BELOW,
    COUNT,
    RADIUS,
    Selection,
    admit,
    capacity_for,
    empty_selection,
    finish,
    merge_topk,
)
from autojacobin.search.kernels.simd import WORDS

_MOST_QUERIES_PER_TASK = 512
_FEWEST_QUERIES_TO_SLICE = 32
_FEWEST_QUERIES_PER_CORE = 256
_BYTES_PER_TASK = 2**24  # the system would have to map larger arrays anew each time, page by page
_TILES_PER_SAMPLE = 16
_FEWEST_TILES_PER_PART = 8

ALL_ALLOWED = np.empty(0, dtype=np.uint8)


class _Problem(NamedTuple):
    """Tiles with ``n`` codes, a block of queries, and the bitmap of positions that count (or an empty array).

    Compiled functions take it as a plain tuple, which numba unpacks faster.
    """

    words: npt.NDArray[np.uint64]
    n: int
    queries: npt.NDArray[np.uint64]
    planes: npt.NDArray[np.uint64]
    allowed: npt.NDArray[np.uint8]


def topk(
    words: npt.NDArray[np.uint64],
    n: int,
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    n_levels: int,
    k: int,
    allowed: npt.NDArray[np.uint8] = ALL_ALLOWED,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Distances and positions of the ``k`` nearest codes, or of all allowed ones if they are fewer.

    Parameters
    ----------
    words : array of uint64, shape (tiles, words, lanes, columns)
        Tiles.
    n : int
        Number of codes in the tiles.
    queries : array of uint64, shape (n_queries, words)
        Query codes.
    planes : array of uint64, shape (n_queries, planes, words)
        Weights of the bits as planes, for a weighted distance; empty for the Hamming distance.
    n_levels : int
        One more than the largest distance.
    k : int
        Neighbours of each query.
    allowed : array of uint8
        Bitmap of the positions that count; if it is empty, all do.
    """
    n_queries = len(queries)
    cores = usable_cores()
    affordable = max(1, _BYTES_PER_TASK // (10 * capacity_for(k) + 4 * n_levels))
    each = -(-n_queries // cores)
    # Slicing a tile pays off with the number of queries. Rather than a few queries each, all cores take all of them.
    per_task = min(_MOST_QUERIES_PER_TASK, affordable, each if each >= _FEWEST_QUERIES_PER_CORE else n_queries)
    blocks = [slice(start, start + per_task) for start in range(0, n_queries, per_task)]
    n_tiles = len(words)
    parts = 1 if len(blocks) >= cores else min(cores, max(1, n_tiles // _FEWEST_TILES_PER_PART))
    edges = [n_tiles * part // parts for part in range(parts + 1)]

    # of the positions that a filter allows, a sample tells too little
    if parts > 1 and len(blocks) == 1 and n_queries < _FEWEST_QUERIES_TO_SLICE and not allowed.size:
        nearest = _topk_of_few(_Problem(words, n, queries, planes, allowed), k, n_levels, edges)
        if nearest is not None:
            return nearest

    distances = np.empty((n_queries, k), dtype=np.int32)
    positions = np.empty((n_queries, k), dtype=np.int64)

    def scan(block: slice, first_tile: int, last_tile: int) -> tuple[Any, Any]:
        search = _Scan(_Problem(words, n, queries[block], planes[block], allowed), k, n_levels)
        return search.over(first_tile, last_tile, (distances[block], positions[block]) if parts == 1 else None)

    tasks = [(block, edges[part], edges[part + 1]) for block in blocks for part in range(parts)]
    results = run_tasks(scan, tasks)
    merged = [merge_topk(results[start : start + parts], k) for start in range(0, len(results), parts)]
    found = merged[0][0].shape[1]  # fewer than k if fewer are allowed, the same for all queries
    if parts > 1 or found < k:
        for block, (near, where) in zip(blocks, merged, strict=True):
            distances[block, :found], positions[block, :found] = near, where
    return distances[:, :found], positions[:, :found]


def _topk_of_few(
    problem: _Problem, k: int, n_levels: int, edges: list[int]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None:
    """Let each task scan the tiles between two edges, with one estimate of the radii for all of them.

    A task is then a single call of compiled code. With more calls, the threads of a search for one query waited for
    each other a third of the time, because only one can be in Python. Gives None if an estimate was too small.
    """
    searches = [_Scan(problem, k, n_levels) for _ in edges[1:]]
    radii = searches[0].estimate_radii(0, edges[-1], _TILES_PER_SAMPLE * len(searches))
    parts = run_tasks(_Scan.within, [(*part, radii) for part in zip(searches, edges[:-1], edges[1:], strict=True)])
    distances = np.empty((len(problem.queries), min(k, problem.n)), dtype=np.int32)
    positions = np.empty(distances.shape, dtype=np.int64)
    for q, (near, where) in enumerate(zip(distances, positions, strict=True)):
        counts = [part.counters[q, COUNT] for part in parts]
        if sum(counts) < len(near):
            return None
        found, at = (
            np.concatenate([getattr(part, name)[q, :count] for part, count in zip(parts, counts, strict=True)])
            for name in ("distances", "positions")
        )
        order = np.argsort(found, kind="stable")[: len(near)]  # each part comes in the order of its positions
        near[:], where[:] = found[order], at[order]
    return distances, positions


class _Scan:
    """A block of queries with the memory that is needed to scan tiles."""

    def __init__(self, problem: _Problem, k: int, n_levels: int) -> None:
        self.problem, self.k, self.n_levels = problem, k, n_levels
        _, _, lanes, columns = problem.words.shape
        self.codes_per_tile = lanes * columns
        lanes_per_word = 4 if problem.planes.size else lanes
        self.sums = np.empty(self.codes_per_tile // lanes_per_word, dtype=np.uint64)
        self.lanes = self.sums.view(np.uint8 if lanes_per_word == 8 else np.uint16)
        self.near = np.empty(self.codes_per_tile // 64, dtype=np.uint64)
        many = len(problem.queries) >= _FEWEST_QUERIES_TO_SLICE and can_be_sliced(problem.words)
        self.sliced = slice_queries(problem.queries, problem.planes, n_levels, self.codes_per_tile) if many else None
        # None instead of an empty array tells the compiler which distance is wanted
        self.words_problem = (*problem[:3], problem.planes if problem.planes.size else None, problem.allowed)

    def over(self, first_tile: int, last_tile: int, out: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
        """Nearest codes within some of the tiles, written to ``out`` if it is given and there are enough of them."""
        problem = self.problem
        radii = self.estimate_radii(first_tile, last_tile)
        selection = self.within(first_tile, last_tile, radii)
        # If an estimate was too small, fewer codes than wanted were found. Search again without it.
        for query in np.flatnonzero((selection.counters[:, RADIUS] == radii) & (radii < self.n_levels)):
            one = slice(query, query + 1)
            alone = problem._replace(queries=problem.queries[one], planes=problem.planes[one])
            again = empty_selection(1, self.k, self.n_levels)
            _Scan(alone, self.k, self.n_levels).scan(np.arange(first_tile, last_tile), self.k, again)
            for name in Selection._fields:
                getattr(selection, name)[query] = getattr(again, name)[0]
        wanted = min(self.k, int(selection.counters[0, COUNT]))  # fewer if fewer are allowed, the same for all queries
        if out is None or wanted < self.k:
            shape = (len(problem.queries), wanted)
            out = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int64)
        finish(wanted, tuple(selection), *out)
        return out

    def within(self, first_tile: int, last_tile: int, radii: Any) -> Selection:
        """Codes within the radii in some of the tiles, or the k nearest of them if they are more."""
        selection = empty_selection(len(self.problem.queries), self.k, self.n_levels)
        selection.counters[:, RADIUS] = radii
        self.scan(np.arange(first_tile, last_tile), self.k, selection)
        return selection

    def estimate_radii(self, first_tile: int, last_tile: int, tiles_per_sample: int = _TILES_PER_SAMPLE) -> Any:
        """Radius within which the k nearest codes of each query most likely are, from a sample of the tiles.

        With such a radius, few codes are accepted that are not among the nearest in the end.
        """
        problem = self.problem
        n_tiles = last_tile - first_tile
        sampled = n_tiles // tiles_per_sample
        share = self.k * sampled / max(1, n_tiles)
        rank = int(share + 4 * share**0.5 + 4)
        if sampled < 2 or rank * 4 > sampled * self.codes_per_tile:
            return np.full(len(problem.queries), self.n_levels)
        selection = empty_selection(len(problem.queries), rank, self.n_levels)
        # spread over the whole base, since its order often has a meaning
        sample = first_tile + np.arange(sampled) * n_tiles // sampled
        if rank <= self.codes_per_tile:  # otherwise all codes of the first tile are accepted
            _set_radii_by_tile(self.words_problem, sample[0], rank, self.sums, self.lanes, tuple(selection))
        self.scan(sample, rank, selection)
        return np.minimum(selection.counters[:, RADIUS] + 1, self.n_levels)

    def scan(self, tiles: Any, k: int, selection: Selection) -> None:
        """Add the codes of some tiles to a selection of the ``k`` nearest."""
        if self.sliced is None:
            _scan_words(self.words_problem, tiles, k, self.sums, self.lanes, self.near, tuple(selection))
        else:
            _scan_slices(tuple(self.problem), self.sliced, tiles, k, self.near, tuple(selection))


@kernel
def _set_radii_by_tile(problem: Any, t: int, rank: int, sums: Any, lanes: Any, selection: Any) -> None:
    """Set the radius of each query so that ``rank`` codes of tile ``t`` are within it."""
    words, _, queries, planes, _ = problem
    counters, counts, _, _ = selection
    for q in range(queries.shape[0]):
        tile_distances(words, t, queries, planes, q, sums, lanes, 0)
        for distance in lanes:
            counts[q, distance] += 1
        radius, below = 0, 0
        while below < rank:
            below += counts[q, radius]
            radius += 1
        for distance in range(counts.shape[1]):
            counts[q, distance] = 0
        counters[q, RADIUS] = radius


@kernel
def _scan_words(problem: Any, tiles: Any, k: int, sums: Any, lanes: Any, near: Any, selection: Any) -> None:
    words, n, queries, planes, allowed = problem
    counters, _, _, _ = selection
    codes = words.shape[2] * words.shape[3]
    for t in tiles:
        valid = min(codes, n - t * codes)
        for q in range(queries.shape[0]):
            radius = counters[q, RADIUS]
            if tile_distances(words, t, queries, planes, q, sums, lanes, radius):
                _offer_sums(sums, lanes, words.shape[2], near, t * codes, valid, allowed, k, q, selection)


@kernel(inline=True)
def _offer_sums(
    sums: Any, lanes: Any, tile_lanes: int, near: Any, first: int, valid: int, allowed: Any, k: int, q: int,
    selection: Any,
) -> None:  # fmt: skip
    """Offer the distances of one tile to query ``q``.

    ``sums`` and ``lanes`` are the same memory, as 64-bit words and as single distances. ``tile_lanes`` is the number of
    lanes that the tile is laid out for, ``near`` memory for a bitmap, ``first`` the position of the first code of the
    tile, and ``valid`` the number of codes in it.
    """
    counters, counts, distances, positions = selection
    per_word = lanes.shape[0] // sums.shape[0]
    groups = near.shape[0]
    steps = 64 // tile_lanes
    radius, below, count = counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT]
    near_bitmap(sums, lanes, tile_lanes, radius, near)
    for g in range(groups):
        bits = near[g]
        while bits:
            bit = np.int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            lane = bit // steps
            column = (bit - lane * steps) * groups + g
            if lane >= per_word:  # in the second half of sums
                lane -= per_word
                column += 8 * groups
            distance = np.int64(lanes[column * per_word + lane])
            p = 64 * g + bit
            if distance < radius and p < valid and _is_allowed(allowed, first + p):
                radius, below, count = admit(
                    distance, first + p, k, q, radius, below, count, counts, distances, positions
                )
    counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT] = radius, below, count


@kernel
def _scan_slices(problem: Any, sliced: Any, tiles: Any, k: int, near: Any, selection: Any) -> None:
    use_wide_registers()
    words, n, queries, _, _ = problem
    counters, _, _, _ = selection
    codes = words.shape[2] * words.shape[3]
    chunks = sliced.slices.shape[0]
    for q in range(queries.shape[0]):
        set_start(sliced, q, counters[q, RADIUS])
    for t in tiles:
        for c in range(chunks):
            slice_chunk(words, t, c, sliced, c)
        valid = min(codes, n - t * codes)
        for q in range(queries.shape[0]):
            marked = np.uint64(0)
            for c in range(chunks):
                marked |= mark_near(sliced, c, q, near) << np.uint64(WORDS * c)
            if marked:
                radius = counters[q, RADIUS]
                _offer_marked(problem, sliced.lists, t, near, marked, valid, k, q, selection)
                if counters[q, RADIUS] != radius:
                    set_start(sliced, q, counters[q, RADIUS])


@kernel(inner=True)
def _offer_marked(
    problem: Any, lists: Any, t: int, near: Any, marked: Any, valid: int, k: int, q: int, selection: Any
) -> None:
    """Offer the codes of tile ``t`` that are marked in ``near`` to query ``q``, and compute their distances.

    Bit g of ``marked`` tells whether word g of ``near`` has any marks. This is one flat loop, because the CPU
    mispredicts the end of most inner loops.
    """
    words, _, queries, planes, allowed = problem
    counters, counts, distances, positions = selection
    groups = near.shape[0]
    radius, below, count = counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT]
    while marked:
        g = np.int64(trailing_zeros(marked))
        bits = near[g]
        bit = np.int64(trailing_zeros(bits))
        bits &= bits - np.uint64(1)
        near[g] = bits
        marked = marked if bits else marked & (marked - np.uint64(1))
        p = 64 * g + bit
        distance = code_distance(words, t, g, bit, queries, planes, q, lists)
        position = 64 * groups * t + p
        if p < valid and distance < radius and _is_allowed(allowed, position):
            radius, below, count = admit(distance, position, k, q, radius, below, count, counts, distances, positions)
    counters[q, RADIUS], counters[q, BELOW], counters[q, COUNT] = radius, below, count


@kernel(inline=True)
def _is_allowed(allowed: Any, position: Any) -> Any:
    return allowed.shape[0] == 0 or (allowed[position >> 3] >> (position & 7)) & 1 > 0
