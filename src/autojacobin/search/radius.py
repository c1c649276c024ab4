"""Exact search for all codes within a radius."""

from __future__ import annotations

import operator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.compilation import kernel, popcount
from autojacobin.core.parallel import run_tasks
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search._arguments import checked_codes, checked_subset
from autojacobin.search.tiles import code_words

__all__ = ["hamming_radius"]


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
        What was found for query q stands at ``limits[q] : limits[q + 1]`` of the other two.
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
    checked_codes(queries, base)
    try:
        most = operator.index(radius)
    except TypeError:
        raise DataTypeError(f"radius must be an integer of at least 0, got {radius!r}") from None
    if most < 0:
        raise DataError(f"radius must be an integer of at least 0, got {most}")
    rows = None if subset is None else checked_subset(subset, len(base))
    words = code_words(base if rows is None else base[rows])

    def work(query: Any) -> tuple[Any, Any]:
        distances = np.empty(len(words), dtype=np.int32)
        _all_distances(words, query, distances)
        found = np.flatnonzero(distances <= most)
        order = np.argsort(distances[found], kind="stable")
        return distances[found][order], found[order]

    answers = run_tasks(work, [(query,) for query in code_words(queries)])
    limits = np.cumsum([0, *(len(part[0]) for part in answers)], dtype=np.int64)
    distances = np.concatenate([np.empty(0, dtype=np.int32), *(part[0] for part in answers)])
    ids = np.concatenate([np.empty(0, dtype=np.int64), *(part[1] for part in answers)])
    return limits, distances, ids if rows is None else rows[ids]


@kernel
def _all_distances(words: Any, query: Any, distances: Any) -> None:
    for row in range(words.shape[0]):
        total = np.uint64(0)
        for w in range(words.shape[1]):
            total += popcount(words[row, w] ^ query[w])
        distances[row] = total
