"""The k nearest codes of tiles, on all cores.

*Few queries*, and queries of codes that cannot be sliced, are compared with blocks of 64 codes
(``native/codes/tile_scan.hpp``). *Many queries* share the work of slicing a tile (``native/codes/slice_scan.hpp``).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.core.parallel import run_tasks, slices, usable_cores
from autojacobin.search.kernels.selection import sort_nearest

ALL_ALLOWED = np.empty(0, dtype=np.uint8)

# What correctness needs
_MOST_CODES = 2**31  # of which slices give positions in 32 bits
_CODES_PER_WORD = 64

# What tunes the search
_FEWEST_QUERIES_TO_SLICE = 32
_FEWEST_SLICED_PER_CORE, _FEWEST_PER_CORE = 64, 4  # queries; with fewer, each core searches a part of the tiles
_QUERIES_PER_TASK = 256
_FEWEST_TILES_PER_PART = 8
_BYTES_PER_TASK, _BYTES_PER_CODE = 2**24, 6  # a position and a distance for each code that is written down


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
    sliced = min(len(queries), most) >= _FEWEST_QUERIES_TO_SLICE
    sliced = sliced and words.shape[1] <= kernels.MOST_SLICED_WORDS and n < _MOST_CODES
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
            near, where = kernels.scan_tiles(*here[:4], allowed[start // 8 :], wanted)
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


def _by_slices(words: Any, n: int, queries: Any, planes: Any, k: int, allowed: Any, n_levels: int) -> tuple[Any, Any]:
    """Distances and positions of the nearest codes, in the order of positions; ``allowed`` is a bitmap of all tiles."""
    radii = kernels.estimate_radii(words, n, queries, planes, n_levels, allowed, k, _capacity(k) // 2)
    return kernels.scan_slices(words, queries, planes, n_levels, allowed, radii, k)


def _capacity(k: int) -> int:
    """Codes that a query may write down before its radius shrinks."""
    return 4 * k + 1024


def _allowed_words(words: npt.NDArray[np.uint64], n: int, allowed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Bitmap of the codes that count, with zeros up to the end of the last tile."""
    tiles, _, lanes, columns = words.shape
    bitmap = np.zeros(tiles * lanes * columns // 8, dtype=np.uint8)
    bitmap[: -(-n // 8)] = allowed[: -(-n // 8)] if len(allowed) else 0xFF
    bitmap[n // 8 : -(-n // 8)] &= (1 << n % 8) - 1
    return bitmap.view("<u8").astype(np.uint64, copy=False)
