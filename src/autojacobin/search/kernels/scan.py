"""The k nearest codes of tiles, on all cores.

*Few queries*, and all queries of codes that cannot be sliced, are searched one by one (``exhaustive.py``). Each core
takes a query, or a part of the tiles.

*Many queries* share the work of slicing a tile (``bitslice.py``), which takes as long as a dozen queries. A radius is
estimated for each query from a sample of the codes. Codes within it are written down with their distances, and those
beyond the k-th nearest are dropped at the end; of equal distances the later positions. If an estimate is too large, the
radius shrinks when the memory of the query is full; if it is too small, the query is searched again without one.

The radius is estimated from the distances of some chunks, which are left as bit planes. The distance of a given rank is
found bit by bit from the highest plane down: count the codes that have the bit, and keep either those that have it or
those that do not. This takes the same time for any rank, and no distance is ever written out.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.search.kernels.bitslice import (
    CODES_PER_CHUNK,
    SlicedQueries,
    can_be_sliced,
    mark_near,
    set_start,
    slice_chunk,
    slice_queries,
    write_margins,
)
from autojacobin.search.kernels.exhaustive import MOST_WORDS, scan_tiles, write_query
from autojacobin.search.kernels.popcount import code_distance
from autojacobin.search.kernels.selection import keep_nearest, merge_topk
from autojacobin.search.kernels.simd import WORDS, empty_aligned

ALL_ALLOWED = np.empty(0, dtype=np.uint8)

# What correctness needs
_MOST_CODES = 2**31  # positions are stored in 32 bits
_MISSING = 2**31 - 1  # distance where there is no code
_CODES_PER_WORD = 64
_HIGHEST_BIT = np.uint64(1 << 63)

# What tunes the search
_FEWEST_QUERIES_TO_SLICE = 9
_FEWEST_QUERIES_PER_CORE = 64  # with fewer, each core searches a part of the base instead
_FEWEST_QUERIES_PER_TASK = 32
_QUERIES_PER_TASK = 256
_FEWEST_TILES_PER_PART = 8
_BYTES_PER_TASK, _BYTES_PER_CODE = 2**24, 6  # a position and a distance for each code that is written down
_NUMBERS_PER_BLOCK = 2**22
_CHUNKS, _FEWEST_CHUNKS, _MOST_CHUNKS = 16, 4, 256  # of the sample that radii are estimated from
_DEVIATIONS = 3  # by which the sample may hold more of the k nearest than its share
_RANK_MARGIN = 4

Use = Callable[[slice, npt.NDArray[Any], npt.NDArray[Any]], None]
"""Takes a block of queries, and distances and positions of the nearest codes of each, equal ones by position."""


def topk(
    words: npt.NDArray[np.uint64],
    n: int,
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    n_levels: int,
    k: int,
    allowed: npt.NDArray[np.uint8] = ALL_ALLOWED,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Distances and positions of the ``k`` nearest codes in order, or of all allowed ones if they are fewer.

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
    wanted = min(k, int(np.bitwise_count(_allowed_words(words, n, allowed)).sum()))
    distances = np.empty((len(queries), wanted), dtype=np.int32)
    positions = np.empty((len(queries), wanted), dtype=np.int64)

    def write(block: slice, near: npt.NDArray[Any], where: npt.NDArray[Any]) -> None:
        order = np.argsort(near, axis=1, kind="stable")
        distances[block] = np.take_along_axis(near, order, axis=1)
        positions[block] = np.take_along_axis(where, order, axis=1)

    if wanted and len(queries):
        collect(words, n, queries, planes, n_levels, wanted, write, allowed)
    return distances, positions


def are_collected(n_queries: int, words: npt.NDArray[np.uint64], n: int, k: int) -> bool:
    """Return whether blocks of queries are searched on one core each, unless very many candidates are wanted."""
    enough = n_queries >= _FEWEST_QUERIES_PER_CORE * usable_cores() and _most_per_task(k) >= _FEWEST_QUERIES_PER_TASK
    return enough and n < _MOST_CODES and can_be_sliced(words)


def collect(
    words: npt.NDArray[np.uint64],
    n: int,
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    n_levels: int,
    k: int,
    use: Use,
    allowed: npt.NDArray[np.uint8] = ALL_ALLOWED,
) -> None:
    """Find the ``k`` nearest codes of each query, and pass those of each block of queries to ``use``.

    ``use`` may be called on several threads, each with what it has just found. The other arguments are those of
    :func:`topk`; at least ``k`` codes must be allowed.
    """
    few = len(queries) < _FEWEST_QUERIES_TO_SLICE or _most_per_task(k) < _FEWEST_QUERIES_TO_SLICE
    if few or n >= _MOST_CODES or not can_be_sliced(words):
        per_block = max(1, _NUMBERS_PER_BLOCK // k)
        for block in _slices(len(queries), per_block):
            weights = planes[block] if planes.size else planes
            use(block, *_one_by_one(words, n, queries[block], weights, k, allowed))
        return
    most, cores = _most_per_task(k), usable_cores()
    rounds = -(-len(queries) // (most * cores))
    per_task, parts = -(-len(queries) // (rounds * cores)), 1
    if per_task < _FEWEST_QUERIES_PER_CORE:
        per_task, parts = min(most, len(queries)), min(cores, max(1, len(words) // _FEWEST_TILES_PER_PART))
    bitmap = _allowed_words(words, n, allowed)

    def search(block: slice, tiles: slice) -> tuple[Any, Any]:
        weights = planes[block] if planes.size else planes
        return _within(words, n, queries[block], weights, n_levels, k, bitmap, tiles)

    def search_all(block: slice) -> None:
        use(block, *search(block, slice(0, len(words))))

    blocks = _slices(len(queries), per_task)
    if parts == 1:
        run_tasks(search_all, [(block,) for block in blocks])
        return
    edges = [len(words) * part // parts for part in range(parts + 1)]
    for block in blocks:
        use(block, *merge_topk(run_tasks(search, [(block, slice(*pair)) for pair in pairwise(edges)]), k))


def _slices(n: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def _one_by_one(words: Any, n: int, queries: Any, planes: Any, k: int, allowed: Any) -> tuple[Any, Any]:
    """Distances and positions of the nearest codes in order; each core takes a query, or a part of the tiles."""
    codes = words.shape[2] * words.shape[3]
    parts = min(-(-usable_cores() // len(queries)), max(1, len(words) // _FEWEST_TILES_PER_PART))
    edges = [len(words) * part // parts for part in range(parts + 1)]
    distances = np.empty((parts, len(queries), k), dtype=np.int32)
    positions = np.empty((parts, len(queries), k), dtype=np.int64)
    counted = not planes.size and words.shape[1] <= MOST_WORDS

    def search(q: int, part: int) -> None:
        start, stop = codes * edges[part], min(codes * edges[part + 1], n)
        asked = np.empty((1, words.shape[1]), np.uint64) if counted else np.empty((16 * words.shape[1], 16), np.uint8)
        near, where = distances[part, q], positions[part, q]
        here = words[edges[part] : edges[part + 1]], stop - start, allowed[start // 8 :]
        _scan_one(*here, queries, planes, q, asked, k, near, where)
        near[where < 0] = _MISSING
        where[where >= 0] += start

    run_tasks(search, [(q, part) for q in range(len(queries)) for part in range(parts)])
    near, where = (np.concatenate(list(found), axis=1) for found in (distances, positions))
    order = np.lexsort((where, near), axis=1)[:, :k]
    return np.take_along_axis(near, order, axis=1), np.take_along_axis(where, order, axis=1)


@kernel
def _scan_one(
    words: Any, n: int, allowed: Any, queries: Any, planes: Any, q: int, asked: Any, k: int, found: Any, nearest: Any
) -> None:
    """Write distances and positions of the codes nearest to query ``q``, in any order."""
    n_bits = 64 * words.shape[1]
    sizes, tables = np.zeros(n_bits, dtype=np.int32), np.empty((n_bits // 4, 16), dtype=np.uint16)
    for b in range(n_bits):
        weight, shift = np.int64(0 if planes.shape[0] else 1), np.uint64(b & 63)
        for p in range(planes.shape[1]):
            weight += np.int64((planes[q, p, b >> 6] >> shift) & np.uint64(1)) << p
        sizes[b] = -weight if (queries[q, b >> 6] >> shift) & np.uint64(1) else weight
    write_query(sizes, tables, asked)
    scan_tiles(words, n, allowed, tables, asked, k, found, nearest)


def _within(
    words: Any, n: int, queries: Any, planes: Any, n_levels: int, k: int, bitmap: Any, tiles: slice
) -> tuple[Any, Any]:
    """Distances and positions of the nearest codes of some tiles, in the order of positions, then missing ones."""
    codes = words.shape[2] * words.shape[3]
    some, start = words[tiles], codes * tiles.start
    here, stop = bitmap[start // _CODES_PER_WORD : codes * tiles.stop // _CODES_PER_WORD], min(codes * tiles.stop, n)
    positions = np.empty((len(queries), _capacity(k) + _CODES_PER_WORD), dtype=np.int32)
    distances, counts = np.empty(positions.shape, dtype=np.uint16), np.zeros(len(queries), dtype=np.int64)
    near = empty_aligned((codes // _CODES_PER_WORD,), np.uint64)
    memory = near, np.empty(n_levels + 1, dtype=np.int32)

    def scan(rows: Any, radii: Any, sliced: SlicedQueries) -> None:
        weights = planes[rows] if planes.size else planes
        found = positions[rows], distances[rows], counts[rows]
        _collect(some, here, queries[rows], weights, sliced, radii, k, memory, *found)
        positions[rows], distances[rows], counts[rows] = found

    sliced = slice_queries(queries, planes, n_levels, codes)
    radii = _radius_estimates(some, stop - start, sliced, here, n_levels, k)
    scan(slice(None), radii, sliced)
    missed = np.flatnonzero((counts < k) & (radii < n_levels))
    if len(missed):
        counts[missed] = 0
        weights = planes[missed] if planes.size else planes
        unbounded = np.full(len(missed), n_levels, dtype=np.int64)
        scan(missed, unbounded, slice_queries(queries[missed], weights, n_levels, codes))
    if int(counts.min()) >= k and not start:
        return distances[:, :k], positions[:, :k]
    lacking, shifted = np.arange(k) >= counts[:, None], start + positions[:, :k].astype(np.int64)
    return np.where(lacking, np.int32(_MISSING), distances[:, :k]), np.where(lacking, -1, shifted)


def _capacity(k: int) -> int:
    return 4 * k + 1024


def _most_per_task(k: int) -> int:
    return min(_QUERIES_PER_TASK, _BYTES_PER_TASK // (_BYTES_PER_CODE * _capacity(k)))


def _allowed_words(words: npt.NDArray[np.uint64], n: int, allowed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Bitmap of the codes that count, with zeros up to the end of the last tile."""
    tiles, _, lanes, columns = words.shape
    bitmap = np.zeros(tiles * lanes * columns // 8, dtype=np.uint8)
    bitmap[: -(-n // 8)] = allowed[: -(-n // 8)] if len(allowed) else 0xFF
    bitmap[n // 8 : -(-n // 8)] &= (1 << n % 8) - 1
    return bitmap.view("<u8").astype(np.uint64, copy=False)


@kernel
def _collect(
    words: Any, allowed: Any, queries: Any, planes: Any, sliced: Any, radii: Any, k: int, memory: Any, positions: Any,
    distances: Any, counts: Any,
) -> None:  # fmt: skip
    """Write the ``k`` nearest of the codes below the radius of each query to the front, in the order of positions.

    If there are fewer, ``counts`` has their number. ``memory`` is space for the bitmap of a tile, and for a table of
    counts. Distances are computed at once, while the tile is in the nearest cache, where it stays for all queries.
    """
    use_wide_registers()
    near, table = memory
    chunks = sliced.slices.shape[0]
    groups = near.shape[0]
    capacity = positions.shape[1] - _CODES_PER_WORD
    for q in range(positions.shape[0]):
        set_start(sliced, q, radii[q])
    for t in range(words.shape[0]):
        for c in range(chunks):
            slice_chunk(words, t, c, sliced, c)
        first = _CODES_PER_WORD * groups * t
        for q in range(positions.shape[0]):
            marked = np.uint64(0)
            for c in range(chunks):
                marked |= mark_near(sliced, c, q, near) << np.uint64(WORDS * c)
            count = counts[q]
            measured = count
            while marked:
                g = np.int64(trailing_zeros(marked))
                marked &= marked - np.uint64(1)
                bits = near[g] & allowed[groups * t + g]
                _write_positions(bits, first + _CODES_PER_WORD * g, positions, q, count)
                count += np.int64(popcount(bits))
                if count > capacity:
                    _measure(words, t, queries, planes, sliced.lists, q, positions, first, measured, count, distances)
                    radius = keep_nearest(positions, distances, q, count, k, table)
                    set_start(sliced, q, radius)
                    count = measured = k
            _measure(words, t, queries, planes, sliced.lists, q, positions, first, measured, count, distances)
            counts[q] = count
    for q in range(positions.shape[0]):
        if counts[q] > k:
            keep_nearest(positions, distances, q, counts[q], k, table)


@kernel(inline=True)
def _measure(
    words: Any, t: int, queries: Any, planes: Any, lists: Any, q: int, positions: Any, first: int, start: int,
    end: int, distances: Any,
) -> None:  # fmt: skip
    """Write the distances of codes ``start`` to ``end`` of query ``q``, all of them in tile ``t``."""
    for c in range(start, end):
        p = np.int64(positions[q, c]) - first
        distances[q, c] = code_distance(words, t, p >> 6, p & 63, queries, planes, q, lists)


@kernel(inline=True)
def _write_positions(bits: Any, first: int, positions: Any, q: int, count: int) -> None:
    """Write the positions of the bits of a word. Most words have one or two, so two are written without a branch."""
    for _ in range(2):
        positions[q, count] = first + np.int64(trailing_zeros(bits | _HIGHEST_BIT))
        bits &= bits - np.uint64(1)
        count += 1
    while bits:
        positions[q, count] = first + np.int64(trailing_zeros(bits))
        bits &= bits - np.uint64(1)
        count += 1


def _radius_estimates(
    words: npt.NDArray[np.uint64],
    n: int,
    sliced: SlicedQueries,
    allowed: npt.NDArray[np.uint64],
    n_levels: int,
    k: int,
) -> npt.NDArray[np.int64]:
    """Radius for each query that leaves a few more than ``k`` codes; ``n_levels`` for a base that is too small."""
    radii = np.full(len(sliced.rows), n_levels, dtype=np.int64)
    chunks, rank = _sample_size(n, k, _capacity(k) // 2)
    if chunks:
        # spread over the whole base, since its order often has a meaning
        sample = np.arange(chunks) * (n // CODES_PER_CHUNK) // chunks
        mask = allowed.reshape(-1, WORDS)[sample].ravel()
        margins = empty_aligned((len(sliced.width), len(mask)), np.uint64)
        chosen = np.empty_like(mask)
        _radii_of_sample(words, sample, mask, chosen, rank, n_levels, sliced.with_chunks(chunks), margins, radii)
    return radii


def _sample_size(n: int, k: int, wanted: int) -> tuple[int, int]:
    """Chunks to sample, and the rank in the sample at which the radius is read off; no chunks if ``n`` is too small.

    The radius should leave no more than ``wanted`` codes. A small sample of a large base would leave more.
    """
    whole = n // CODES_PER_CHUNK
    chunks = min(_CHUNKS, whole // 4)
    if chunks < _FEWEST_CHUNKS:
        return 0, 0
    while 2 * chunks <= min(whole // 4, _MOST_CHUNKS) and _sample_rank(k, chunks, n) * whole > wanted * chunks:
        chunks *= 2
    rank = _sample_rank(k, chunks, n)
    return (chunks, rank) if rank <= chunks * CODES_PER_CHUNK // 4 else (0, 0)


def _sample_rank(k: int, chunks: int, n: int) -> int:
    """How many codes of the sample should be within the radius, so that k of all codes are."""
    share = k * chunks * CODES_PER_CHUNK / n
    return int(share + _DEVIATIONS * share**0.5 + _RANK_MARGIN)


@kernel
def _radii_of_sample(
    words: Any, sample: Any, allowed: Any, chosen: Any, rank: int, n_levels: int, sliced: Any, margins: Any, radii: Any
) -> None:
    use_wide_registers()
    chunks_per_tile = words.shape[2] * words.shape[3] // CODES_PER_CHUNK
    for slot in range(sample.shape[0]):
        t = sample[slot] // chunks_per_tile
        slice_chunk(words, t, sample[slot] - t * chunks_per_tile, sliced, slot)
    for q in range(radii.shape[0]):
        set_start(sliced, q, n_levels)
        for c in range(sample.shape[0]):
            write_margins(sliced, c, q, margins)
        radii[q] = n_levels - _largest(margins, allowed, rank, chosen)


@kernel(inner=True)
def _largest(margins: Any, allowed: Any, rank: int, chosen: Any) -> Any:
    """The ``rank``-th largest of the allowed numbers whose bits are the rows of ``margins``; none is negative."""
    use_wide_registers()
    for i in range(chosen.shape[0]):  # assigning the whole array would take longer to compile than all the rest
        chosen[i] = allowed[i]
    number, left = np.int64(0), np.int64(rank)
    for plane in range(margins.shape[0] - 2, -1, -1):
        count = np.uint64(0)
        for i in range(chosen.shape[0]):
            count += popcount(chosen[i] & margins[plane, i])
        enough = np.int64(count) >= left
        flip = np.uint64(0) if enough else ~np.uint64(0)
        for i in range(chosen.shape[0]):
            chosen[i] &= margins[plane, i] ^ flip
        number = 2 * number + (1 if enough else 0)
        left -= np.int64(0 if enough else count)
    return number
