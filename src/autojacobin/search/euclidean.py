"""Re-ranking: the Euclidean order of the candidates that a search over codes found.

Vectors are read in place, whatever their type, and every sum is taken in float64, so the distances are those of
converted copies (``native/vectors/l2.hpp``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.core.parallel import run_tasks
from autojacobin.core.vectors import as_floats, as_matrix, check_finite
from autojacobin.errors import DataError
from autojacobin.search.arguments import as_k
from autojacobin.search.kernels.selection import merge_topk

# What tunes the search
_NUMBERS_PER_BLOCK = 2**23
_QUERIES_AT_ONCE = 32
_PAIRS_PER_BLOCK = 2**16

# What correctness needs
_IN_PLACE = frozenset(np.dtype(name) for name in ("uint8", "float16", "float32", "float64"))


class Measure(Protocol):
    """Measures the squared distances of queries to their candidates."""

    def __call__(
        self,
        queries: npt.NDArray[Any],
        ids: npt.NDArray[Any],
        squared: npt.NDArray[np.float64],
        wanted: int | None = None,
    ) -> None:
        """Write the squared distances of a block of queries, which are floats, to the candidates of each.

        ``squared`` holds infinity at first. If only the ``wanted`` nearest of each query matter, anything larger than
        their distances may be written for the others.
        """


def rerank(
    queries: Any,
    candidates: npt.ArrayLike,
    vectors: Any | Callable[[npt.NDArray[np.int64]], Any],
    k: SupportsIndex,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Sort candidates by their Euclidean distance to the query, and keep the ``k`` nearest.

    Parameters
    ----------
    queries : matrix of shape (n_queries, n_features)
    candidates : array of int, shape (n_queries, n_candidates)
        Ids of the candidates of each query, none of them twice.
    vectors : matrix or callable
        The vectors whose row numbers the ids are, in memory or in a memory map, read in place; or a function that
        gives the vectors for ascending ids. It is called once for each block of queries, on several threads.
    k : int
        Neighbours of each query, from 1 to ``n_candidates``.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
        Euclidean distances in ascending order, computed in double precision; equal distances in order of id.

    Examples
    --------
    >>> from autojacobin.search import rerank
    >>> rerank([[0.0, 0.0]], [[0, 1, 2]], [[3.0, 4.0], [0.0, 1.0], [1.0, 0.0]], k=2)
    (array([[1., 1.]]), array([[1, 2]]))
    """
    rows = as_floats(as_matrix(queries, "rerank"))
    ids = np.asarray(candidates)
    if ids.ndim != 2 or len(ids) != len(rows) or (ids.dtype.kind not in "iu" and ids.size):
        raise DataError(
            f"candidates must be a matrix of ids with a row for each of the {len(rows)} queries, got {ids.dtype} of "
            f"shape {ids.shape}; pass the ids of hamming_topk"
        )
    wanted = as_k(k, ids.shape[1], "the candidates")
    return nearest_candidates(rows, ids, _measure_for(vectors, rows.shape[1], ids), wanted)


def _measure_for(vectors: Any, width: int, ids: npt.NDArray[Any]) -> Measure:
    if callable(vectors):
        return partial(measure_fetched, vectors)
    matrix = as_matrix(vectors, "rerank")
    if matrix.shape[1] != width:
        raise DataError(f"vectors must have the {width} features of the queries, got {matrix.shape[1]}")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(matrix)):
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise DataError(f"candidates must be rows of vectors, from 0 to {len(matrix) - 1}, got {wrong}")
    if is_read_in_place(matrix):
        return lambda queries, ids, squared, wanted=None: measure_in_place(
            matrix, queries, ids.astype(np.int64), squared, wanted
        )
    return partial(measure_fetched, lambda chosen: matrix[chosen])


def nearest_candidates(
    queries: npt.NDArray[Any], ids: npt.NDArray[Any], measure: Measure, k: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Distances and ids of the ``k`` nearest candidates, block by block on all cores; the queries are floats."""
    distances, nearest = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    per_block = max(1, _NUMBERS_PER_BLOCK // max(1, ids.shape[1] * queries.shape[1]))

    def order(start: int) -> None:
        block = slice(start, start + per_block)
        order_block(queries[block], ids[block], measure, distances[block], nearest[block])

    run_tasks(order, [(start,) for start in range(0, len(queries), per_block)])
    return distances, nearest


def nearest_of_all(
    queries: npt.NDArray[Any], ids: npt.NDArray[np.int64], measure: Measure, k: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Distances and ids of the ``k`` nearest, where every query, which are floats, has all ``ids`` as candidates."""
    squared, nearest = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        some = queries[start : start + _QUERIES_AT_ONCE]
        per_block = max(k, _PAIRS_PER_BLOCK // len(some))

        def compare(first: int, some: Any = some, per_block: int = per_block) -> tuple[Any, Any]:
            block = np.repeat(ids[np.newaxis, first : first + per_block], len(some), axis=0)
            wanted, measured = min(k, block.shape[1]), np.full(block.shape, np.inf)
            measure(some, block, measured, wanted)
            return kernels.select_smallest(measured, block, wanted)

        parts = run_tasks(compare, [(first,) for first in range(0, len(ids), per_block)])
        squared[start : start + len(some)], nearest[start : start + len(some)] = merge_topk(parts, k)
    return np.sqrt(squared), nearest


def order_block(
    queries: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    measure: Measure,
    distances: npt.NDArray[np.float64],
    nearest: npt.NDArray[np.int64],
) -> None:
    """Write the distances and ids of the nearest candidates, as many as the last two arrays have columns.

    A candidate of -1 is missing, and its distance is infinite.
    """
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    k, squared = nearest.shape[1], np.full(ids.shape, np.inf)
    missing = ids < 0
    if missing.any():
        known = ids[~missing]
        if len(known):
            measure(queries, np.where(missing, known[0], ids), squared)
        squared[missing] = np.inf
    else:
        measure(queries, ids, squared, k)
    smallest, nearest[:] = kernels.select_smallest(squared, ids, k)
    np.sqrt(smallest, out=distances)


def measure_in_place(
    vectors: npt.NDArray[Any],
    queries: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    squared: npt.NDArray[np.float64],
    wanted: int | None = None,
) -> None:
    """Measure the distances to ``rows`` of ``vectors`` in place; rows below 0 are left out."""
    squared_distances(queries, vectors, rows, squared, wanted)
    if vectors.dtype.kind == "f" and not math.isfinite(squared.max(initial=0)):
        wrong = rows[~np.isfinite(squared) & (rows >= 0)]
        for row in wrong[:1]:  # finite numbers of float64 may be that far apart; NaN and Inf are an error
            check_finite(vectors[row : row + 1], int(row))


def measure_fetched(
    fetch: Callable[[npt.NDArray[np.int64]], Any],
    queries: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    squared: npt.NDArray[np.float64],
    wanted: int | None = None,
) -> None:
    """Measure the distances to vectors that a function gives; it is called once, with ascending ids."""
    needed, rows = np.unique(ids, return_inverse=True)
    vectors = as_floats(np.asarray(fetch(needed.astype(np.int64))))
    squared_distances(queries, vectors, rows.reshape(ids.shape), squared, wanted)


def is_read_in_place(vectors: Any) -> bool:
    """Return whether :func:`squared_distances` takes such vectors; others are converted first."""
    return bool(vectors.dtype in _IN_PLACE and vectors.dtype.isnative and vectors.flags.c_contiguous)


def squared_distances(queries: Any, vectors: Any, rows: Any, squared: Any, wanted: int | None = None) -> None:
    """Write the squared distance of each query to each of its ``rows`` of ``vectors``; rows below 0 are left out.

    ``rows`` and ``squared`` have a row for each of the queries, and ``squared`` holds infinity, or what was measured
    before. If only the ``wanted`` nearest of each query matter, anything larger than their distances may be written for
    the others.
    """
    wanted = rows.shape[1] if wanted is None else wanted
    doubles, rows = np.ascontiguousarray(queries, dtype=np.float64), np.ascontiguousarray(rows, dtype=np.int64)
    kernels.measure_rows(doubles, np.ascontiguousarray(vectors), rows, squared, wanted)
