"""Euclidean order of the candidates that a search over codes found."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import run_tasks
from autojacobin.core.vectors import as_floats, as_matrix, refuse_non_finite
from autojacobin.errors import DataError
from autojacobin.search._arguments import checked_k
from autojacobin.search._euclidean import is_read_in_place, measure
from autojacobin.search._heaps import select_nearest

__all__ = ["Measure", "measure_fetched", "measure_in_place", "nearest_candidates", "order_block", "rerank"]

_NUMBERS_PER_BLOCK = 2**23


class Measure(Protocol):
    """What measures candidates by their vectors."""

    def __call__(
        self,
        queries: npt.NDArray[Any],
        ids: npt.NDArray[Any],
        squared: npt.NDArray[np.float64],
        wanted: int | None = None,
    ) -> None:
        """Write the squared distances of a block of queries, which are floats, to the candidates of each.

        Where only the ``wanted`` nearest of each query matter, something larger than their distances may be written
        for the others.
        """


def rerank(
    queries: Any,
    candidates: npt.ArrayLike,
    vectors: Any | Callable[[npt.NDArray[np.int64]], Any],
    k: SupportsIndex,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Put candidates into the order of their Euclidean distance to the query, and keep the ``k`` nearest.

    Parameters
    ----------
    queries : matrix of shape (n_queries, n_features)
    candidates : array of int, shape (n_queries, n_candidates)
        Ids of the candidates of each query, none of them twice.
    vectors : matrix or callable
        The vectors that the ids are rows of, in memory or in a memory map, read where they lie; or a function that
        gives the vectors of ascending ids. It is asked once for each block of queries, on several threads.
    k : int
        Neighbours a query, from 1 to ``n_candidates``.

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
    wanted = checked_k(k, ids.shape[1], "the candidates")
    return nearest_candidates(rows, ids, _measure_for(vectors, rows.shape[1], ids), wanted)


def nearest_candidates(
    queries: npt.NDArray[Any], ids: npt.NDArray[Any], measure_block: Measure, k: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Distances and ids of the ``k`` nearest candidates, block by block on all cores; the queries are floats."""
    distances, nearest = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    per_block = max(1, _NUMBERS_PER_BLOCK // max(1, ids.shape[1] * queries.shape[1]))

    def work(start: int) -> None:
        block = slice(start, start + per_block)
        order_block(queries[block], ids[block], measure_block, distances[block], nearest[block])

    run_tasks(work, [(start,) for start in range(0, len(queries), per_block)])
    return distances, nearest


def order_block(
    queries: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    measure_block: Measure,
    distances: npt.NDArray[np.float64],
    nearest: npt.NDArray[np.int64],
) -> None:
    """Write the distances and ids of the nearest candidates, as many as there is room for."""
    k, squared = nearest.shape[1], np.empty(ids.shape)
    measure_block(queries, ids, squared, k)
    select_nearest(squared, ids, k, distances, nearest)
    np.sqrt(distances, out=distances)


def measure_in_place(
    vectors: npt.NDArray[Any],
    queries: npt.NDArray[Any],
    rows: npt.NDArray[Any],
    squared: npt.NDArray[np.float64],
    wanted: int | None = None,
) -> None:
    """Measure the distances to ``rows`` of ``vectors`` where they lie; rows below 0 are left out."""
    measure(queries, vectors, rows, squared, wanted)
    if vectors.dtype.kind == "f" and not math.isfinite(squared.max(initial=0)):
        wrong = rows[~np.isfinite(squared) & (rows >= 0)]
        for row in wrong[:1]:  # finite numbers of float64 may be that far apart; others are told
            refuse_non_finite(vectors[row : row + 1], int(row))


def measure_fetched(
    fetch: Callable[[npt.NDArray[np.int64]], Any],
    queries: npt.NDArray[Any],
    ids: npt.NDArray[Any],
    squared: npt.NDArray[np.float64],
    wanted: int | None = None,
) -> None:
    """Measure the distances to vectors that a function gives; it is asked for each once, in ascending order."""
    needed, places = np.unique(ids, return_inverse=True)
    measure(queries, as_floats(np.asarray(fetch(needed.astype(np.int64)))), places.reshape(ids.shape), squared, wanted)


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
