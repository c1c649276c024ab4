"""Euclidean order of the candidates that a search over codes found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin._parallel import run_tasks
from autojacobin.errors import DataError
from autojacobin.hashers._vectors import as_floats, as_matrix
from autojacobin.search._arguments import checked_k
from autojacobin.search._compile import kernel

__all__ = ["rerank"]

_NUMBERS_PER_BLOCK = 2**23


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
        The vectors that the ids are rows of, in memory or in a memory map; or a function that gives the vectors of
        ascending ids. Every block of queries reads each vector that it needs once, in ascending order.
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
    fetch = vectors if callable(vectors) else _rows_of(vectors, rows.shape[1], ids)
    per_block = max(1, _NUMBERS_PER_BLOCK // (ids.shape[1] * rows.shape[1]))

    def work(start: int) -> tuple[Any, Any]:
        block = slice(start, start + per_block)
        needed, places = np.unique(ids[block], return_inverse=True)
        found = as_floats(np.asarray(fetch(needed.astype(np.int64))))
        squared = np.empty(ids[block].shape)
        _squared_distances(rows[block], found, places.reshape(squared.shape), squared)
        order = np.lexsort((ids[block], squared), axis=1)[:, :wanted]
        return np.sqrt(np.take_along_axis(squared, order, axis=1)), np.take_along_axis(ids[block], order, axis=1)

    if not len(rows):
        return np.empty((0, wanted)), np.empty((0, wanted), dtype=np.int64)
    answers = run_tasks(work, [(start,) for start in range(0, len(rows), per_block)])
    return np.concatenate([part[0] for part in answers]), np.concatenate([part[1] for part in answers]).astype(np.int64)


def _rows_of(vectors: Any, width: int, ids: npt.NDArray[Any]) -> Callable[[npt.NDArray[np.int64]], Any]:
    matrix = as_matrix(vectors, "rerank")
    if matrix.shape[1] != width:
        raise DataError(f"vectors must have the {width} features of the queries, got {matrix.shape[1]}")
    if ids.size and not (ids.min() >= 0 and ids.max() < len(matrix)):
        wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
        raise DataError(f"candidates must be rows of vectors, from 0 to {len(matrix) - 1}, got {wrong}")
    return lambda chosen: matrix[chosen]


@kernel(reassociate=True)
def _squared_distances(queries: Any, vectors: Any, places: Any, squared: Any) -> None:
    for q in range(places.shape[0]):
        for c in range(places.shape[1]):
            row = places[q, c]
            total = 0.0
            for j in range(queries.shape[1]):
                gap = np.float64(queries[q, j]) - np.float64(vectors[row, j])
                total += gap * gap
            squared[q, c] = total
