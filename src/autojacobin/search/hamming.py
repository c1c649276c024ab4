"""Exact Hamming search: the k nearest codes, or all codes within a radius."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.codes import Codes
from autojacobin.core.arrays import device_of, namespace
from autojacobin.core.counts import as_count
from autojacobin.core.parallel import run_tasks
from autojacobin.errors import DataError
from autojacobin.search.arguments import as_subset, check_codes, search_rows
from autojacobin.search.gpu import DeviceQueries
from autojacobin.search.queries import LARGEST_DISTANCE, Queries
from autojacobin.search.tiles import code_words, tiles_of


def hamming_queries(codes: Codes) -> Queries | DeviceQueries:
    """Prepare codes as queries: all bits have the weight 1. Those of codes on a GPU are ``DeviceQueries``."""
    if namespace(codes.packed) is not np:
        return DeviceQueries.of_codes(codes)
    if codes.n_bits > LARGEST_DISTANCE:
        raise DataError(
            f"a Hamming search takes codes of at most {LARGEST_DISTANCE:,} bits, got {codes.n_bits:,}; "
            "use shorter codes"
        )
    # a copy, because a read-only array is another type to the compiler, and the kernels would be compiled twice
    return Queries(np.array(code_words(codes)), codes.n_bits + 1)


def hamming_topk(
    queries: Codes, base: Codes, k: SupportsIndex, *, subset: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Find the ``k`` codes of ``base`` nearest to each query in Hamming distance, exactly.

    Parameters
    ----------
    queries, base : Codes
        Codes of the same length, at most 32,767 bits. If those of the base are on a GPU, the search runs there, with at
        most 1,024 bits, and the result is in CuPy arrays.
    k : int
        Neighbours of each query, from 1 to ``len(base)``, or to the size of the subset.
    subset : array of int or mask, optional
        Rows of ``base`` to search among; the others do not count.

    Returns
    -------
    distances, ids : arrays of shape (len(queries), k)
        In order of distance; equal distances in order of id.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.search import hamming_topk
    >>> base = Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 1, 1]])
    >>> hamming_topk(Codes.from_bits([[0, 1, 0]]), base, k=2)
    (array([[1, 1]], dtype=int32), array([[0, 2]]))
    """
    check_codes(queries, base)
    asked = hamming_queries(queries.to_device(device_of(base.packed)))
    return search_rows(base, k, subset, lambda codes, wanted: tiles_of(codes).nearest(asked, wanted))


def hamming_radius(
    queries: Codes, base: Codes, radius: SupportsIndex, *, subset: npt.ArrayLike | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Find all codes of ``base`` whose Hamming distance to a query is at most ``radius``.

    Parameters
    ----------
    queries, base : Codes
        Codes of the same length.
    radius : int
        Largest distance, at least 0.
    subset : array of int or mask, optional
        Rows of ``base`` to search among; the others do not count.

    Returns
    -------
    limits : array of int64, shape (len(queries) + 1,)
        The results of query q are ``limits[q] : limits[q + 1]`` of the other two arrays.
    distances, ids : arrays
        For each query in order of distance; equal distances in order of id.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.search import hamming_radius
    >>> base = Codes.from_bits([[0, 0, 0], [1, 1, 1], [0, 1, 1]])
    >>> hamming_radius(Codes.from_bits([[0, 1, 0], [1, 0, 0]]), base, radius=1)
    (array([0, 2, 3]), array([1, 1, 1], dtype=int32), array([0, 2, 0]))
    """
    check_codes(queries, base)
    most = as_count("radius", radius, least=0)
    rows = None if subset is None else as_subset(subset, len(base))
    words = code_words(base if rows is None else base[rows])

    def search(query: Any) -> tuple[Any, Any]:
        distances = kernels.row_distances(words, query)
        found = np.flatnonzero(distances <= most)
        order = np.argsort(distances[found], kind="stable")
        return distances[found][order], found[order]

    results = run_tasks(search, [(query,) for query in code_words(queries)])
    limits = np.cumsum([0, *(len(part[0]) for part in results)], dtype=np.int64)
    distances = np.concatenate([np.empty(0, dtype=np.int32), *(part[0] for part in results)])
    ids = np.concatenate([np.empty(0, dtype=np.int64), *(part[1] for part in results)])
    return limits, distances, ids if rows is None else rows[ids]
