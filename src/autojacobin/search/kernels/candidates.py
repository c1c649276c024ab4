"""The k nearest codes in any order, for re-ranking.

The search in order (``scan.py``) computes the distance of each code that is near enough at once, in order to shrink the
radius. Here the radius is estimated from a sample and stays. Near codes are only written down with their distances, and
those beyond the k-th nearest are dropped at the end; of equal distances the later positions. This gives the same set in
half the time, because the CPU has fewer branches to predict. If an estimate is too large, the radius shrinks when the
memory of the query is full; if it is too small, the query is searched in order.

The radius is estimated from the distances of some chunks, which are left as bit planes (``bitslice.py``). The distance
of a given rank is found bit by bit from the highest plane down: count the codes that have the bit, and keep either
those that have it or those that do not. This takes the same time for any rank, and no distance is ever written out.
"""

from __future__ import annotations

from collections.abc import Callable
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
from autojacobin.search.kernels.popcount import code_distance
from autojacobin.search.kernels.scan import ALL_ALLOWED, topk
from autojacobin.search.kernels.selection import keep_nearest
from autojacobin.search.kernels.simd import WORDS, empty_aligned

_QUERIES_PER_TASK = 256
_BYTES_PER_TASK, _BYTES_PER_CODE = 2**24, 6  # a position and a distance for each code that is written down
_FEWEST_QUERIES_PER_CORE = 64  # with fewer, each core searches a part of the base instead
_FEWEST_QUERIES_PER_TASK = 32  # fewer are not worth slicing the tiles for
_MOST_CODES = 2**31  # positions are stored in 32 bits
_CODES_PER_WORD = 64
_HIGHEST_BIT = np.uint64(1 << 63)

# The sample that radii are estimated from.
_CHUNKS, _FEWEST_CHUNKS, _MOST_CHUNKS = 16, 4, 256
_DEVIATIONS = 3  # by which the sample may hold more of the k nearest than its share
_RANK_MARGIN = 4

Use = Callable[[slice, npt.NDArray[Any]], None]
"""Takes a block of queries and the positions of the candidates of each."""


def are_collected(n_queries: int, words: npt.NDArray[np.uint64], n: int, k: int) -> bool:
    """Return whether :func:`collect` is faster, as it is with many queries unless very many candidates are wanted."""
    enough = n_queries >= _FEWEST_QUERIES_PER_CORE * usable_cores() and _most_per_task(k) >= _FEWEST_QUERIES_PER_TASK
    return enough and n < _MOST_CODES and can_be_sliced(words)


def _capacity(k: int) -> int:
    return 4 * k + 1024


def _most_per_task(k: int) -> int:
    return min(_QUERIES_PER_TASK, _BYTES_PER_TASK // (_BYTES_PER_CODE * _capacity(k)))


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
    """Find the ``k`` nearest codes of each query, in any order, and pass those of each block of queries to ``use``.

    ``use`` is called on the thread that found them, while they are in its cache. The other arguments are those of
    ``topk``; at least ``k`` codes must be allowed, and :func:`are_collected` must hold.
    """
    rounds = -(-len(queries) // (_most_per_task(k) * usable_cores()))
    per_task = -(-len(queries) // (rounds * usable_cores()))
    bitmap = _allowed_words(words, n, allowed)

    def search(start: int) -> None:
        block = slice(start, start + per_task)
        sliced = slice_queries(queries[block], planes[block], n_levels, words.shape[2] * words.shape[3])
        radii = _radius_estimates(words, n, sliced, bitmap, n_levels, k)
        positions = np.empty((len(radii), _capacity(k) + _CODES_PER_WORD), dtype=np.int32)
        counts = np.zeros(len(radii), dtype=np.int64)
        near = empty_aligned((words.shape[2] * words.shape[3] // _CODES_PER_WORD,), np.uint64)
        distances = np.empty(positions.shape, dtype=np.uint16)
        table = np.empty(n_levels + 1, dtype=np.int32)
        memory = near, distances, table
        _collect(words, bitmap, queries[block], planes[block], sliced, radii, k, memory, positions, counts)
        found = positions[:, :k]
        missed = np.flatnonzero(counts < k)
        if len(missed):
            rows = start + missed
            weights = planes[rows] if planes.size else planes
            found[missed] = topk(words, n, queries[rows], weights, n_levels, k, allowed)[1]
        use(block, found)

    run_tasks(search, [(start,) for start in range(0, len(queries), per_task)])


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
    counts: Any,
) -> None:  # fmt: skip
    """Write the ``k`` nearest of the codes below the radius of each query to the front of ``positions``.

    If there are fewer, ``counts`` has their number. ``memory`` is space for the bitmap of a tile, for the
    distances of the positions and for a table of their counts. Distances are computed at once, while the tile is in
    the nearest cache, where it stays for all queries.
    """
    use_wide_registers()
    near, distances, table = memory
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
