"""The k nearest codes of tiles, on all cores.

*Few queries*, and queries of codes that cannot be sliced, are compared with blocks of 64 codes (``exhaustive.py``).

*Many queries* share the work of slicing a tile (``bitslice.py``). A radius is estimated for each query from a sample of
the codes. Codes within it are written down with their distances, and those beyond the k-th nearest are dropped at the
end. If an estimate is too large, the radius shrinks when the memory of the query is full; if it is too small, the query
is searched for again without one.

The distances to the sample are left as bit planes. The distance of a given rank is found bit by bit from the highest
plane down: count the codes that have the bit, and keep either those that have it or those that do not.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, popcount, trailing_zeros, use_wide_registers
from autojacobin.core.parallel import run_tasks, slices, usable_cores
from autojacobin.core.simd import WORDS, empty_aligned
from autojacobin.search.kernels.bitslice import (
    CODES_PER_CHUNK,
    SlicedQueries,
    can_be_sliced,
    empty_slices,
    mark_near,
    set_start,
    slice_chunk,
    slice_queries,
    write_margins,
)
from autojacobin.search.kernels.exhaustive import MISSING, scan_queries
from autojacobin.search.kernels.popcount import code_distance
from autojacobin.search.kernels.selection import keep_nearest, sort_nearest

ALL_ALLOWED = np.empty(0, dtype=np.uint8)

# What correctness needs
_MOST_CODES = 2**31  # of which slices give positions in 32 bits
_CODES_PER_WORD = 64
_HIGHEST_BIT = np.uint64(1 << 63)

# What tunes the search
_FEWEST_QUERIES_TO_SLICE = 32
_FEWEST_SLICED_PER_CORE, _FEWEST_PER_CORE = 64, 4  # queries; with fewer, each core searches a part of the tiles
_QUERIES_PER_TASK = 256
_FEWEST_TILES_PER_PART = 8
_BYTES_PER_TASK, _BYTES_PER_CODE = 2**24, 6  # a position and a distance for each code that is written down
_CHUNKS, _FEWEST_CHUNKS, _MOST_CHUNKS = 16, 4, 256  # of the sample that radii are estimated from
_DEVIATIONS = 3  # by which the sample may hold more of the k nearest than its share
_RANK_MARGIN = 4


def topk(
    words: npt.NDArray[np.uint64],
    n: int,
    queries: npt.NDArray[np.uint64],
    planes: npt.NDArray[np.uint64],
    n_levels: int,
    k: int,
    allowed: npt.NDArray[np.uint8] = ALL_ALLOWED,
    in_order: bool = True,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Distances and positions of the ``k`` nearest codes, or of all allowed ones if they are fewer.

    ``words`` are tiles with ``n`` codes. ``queries``, of shape (n_queries, words), are codes, and ``planes`` the
    weights of their bits, as :class:`~autojacobin.search.queries.Queries` has them. No distance reaches ``n_levels``.
    ``allowed`` is a bitmap of the positions that count; if it is empty, all do. If ``in_order``, the nearest come
    first, equal ones by position.
    """
    cores, most = usable_cores(), max(1, min(_QUERIES_PER_TASK, _BYTES_PER_TASK // (_BYTES_PER_CODE * _capacity(k))))
    sliced = min(len(queries), most) >= _FEWEST_QUERIES_TO_SLICE and can_be_sliced(words) and n < _MOST_CODES
    bitmap = _allowed_words(words, n, allowed) if sliced or allowed.size else ALL_ALLOWED.view(np.uint64)
    wanted = min(k, int(np.bitwise_count(bitmap).sum()) if allowed.size else n)
    if not (wanted and len(queries)):
        return np.empty((len(queries), wanted), dtype=np.int32), np.empty((len(queries), wanted), dtype=np.int64)
    per_task, parts = -(-len(queries) // (-(-len(queries) // (most * cores)) * cores)), 1
    if per_task < (_FEWEST_SLICED_PER_CORE if sliced else _FEWEST_PER_CORE):
        per_task, parts = min(most, len(queries)), min(cores, max(1, len(words) // _FEWEST_TILES_PER_PART))
    distances = np.empty((len(queries), parts * wanted), dtype=np.int32)
    positions = np.empty((len(queries), parts * wanted), dtype=np.int64)
    codes = words.shape[2] * words.shape[3]

    def search(block: slice, part: int, first: int, last: int) -> None:
        start, stop = codes * first, min(codes * last, n)
        here = words[first:last], stop - start, queries[block], planes[block], wanted
        if sliced:
            mask = bitmap[start // _CODES_PER_WORD : codes * last // _CODES_PER_WORD]
            near, where = _by_slices(*here, mask, n_levels)
        else:
            near, where = _by_words(*here, allowed[start // 8 :])
        columns = slice(part * wanted, (part + 1) * wanted)
        distances[block, columns], positions[block, columns] = near, where
        positions[block, columns] += start
        if parts == 1 and in_order:
            sort_nearest(distances[block], positions[block], sliced)

    edges = enumerate(pairwise(len(words) * part // parts for part in range(parts + 1)))
    blocks = slices(len(queries), per_task)
    run_tasks(search, [(block, part, *pair) for part, pair in edges for block in blocks])
    if parts > 1:
        blocks = slices(len(queries), -(-len(queries) // cores))
        run_tasks(sort_nearest, [(distances[block], positions[block], sliced) for block in blocks])
    return distances[:, :wanted], positions[:, :wanted]


def _by_words(words: Any, n: int, queries: Any, planes: Any, k: int, allowed: Any) -> tuple[Any, Any]:
    """Distances and positions of the nearest codes, in any order."""
    shape, kind = ((16 * words.shape[1], 16), np.uint8) if planes.size else ((1, words.shape[1]), np.uint64)
    found = np.empty((len(queries), k), dtype=np.int32), np.empty((len(queries), k), dtype=np.int64)
    scan_queries(words, n, allowed, queries, planes, np.empty((len(queries), *shape), kind), k, *found)
    return found


def _by_slices(
    words: Any, n: int, queries: Any, planes: Any, k: int, allowed: Any, n_levels: int, estimated: bool = True
) -> tuple[Any, Any]:
    """Distances and positions of the nearest codes, in the order of positions; ``allowed`` is a bitmap of all tiles."""
    codes = words.shape[2] * words.shape[3]
    sliced = slice_queries(queries, planes, n_levels, codes)
    radii = np.full(len(queries), n_levels, dtype=np.int64)
    if estimated:
        radii = _radius_estimates(words, n, sliced, allowed, n_levels, k)
    positions = np.empty((len(queries), _capacity(k) + _CODES_PER_WORD), dtype=np.int32)
    distances, counts = np.empty(positions.shape, dtype=np.uint16), np.zeros(len(queries), dtype=np.int64)
    memory = empty_aligned((codes // _CODES_PER_WORD,), np.uint64), np.empty(n_levels + 1, dtype=np.int32)
    _collect(words, allowed, queries, planes, sliced, radii, k, memory, positions, distances, counts)
    near, where = distances[:, :k], positions[:, :k]
    if counts.min() < k:
        near[np.arange(k) >= counts[:, None]] = MISSING
        again = np.flatnonzero((counts < k) & (radii < n_levels))  # the estimate was too small
        if len(again):
            weights = planes[again] if planes.size else planes
            near[again], where[again] = _by_slices(words, n, queries[again], weights, k, allowed, n_levels, False)
    return near, where


def _capacity(k: int) -> int:
    return 4 * k + 1024


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
    chunks, groups = sliced.slices.shape[0], near.shape[0]
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
        some = sliced._replace(slices=empty_slices(chunks, sliced.all_bits.shape[1], sliced.slices.shape[1]))
        _radii_of_sample(words, sample, mask, chosen, rank, n_levels, some, margins, radii)
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
