"""The library's tie rule for engines that break ties in their own way: ask for more until the answer is certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError

__all__ = ["by_lower_id"]

Rows = npt.NDArray[np.int64]
_GROWTH = 4
_HITS_AT_ONCE = 2**22  # a million equal codes and a thousand queries would not fit into memory


def by_lower_id(
    ask: Callable[[Rows, int], tuple[Any, Any]], n_queries: int, k: int, count: int, most: int | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Distances and ids of the ``k`` nearest, equal distances in order of id, from an engine with other habits.

    All codes at the distance of the k-th have to be seen before the lower ids among them can be chosen. A query is
    settled when the last code that the engine gave is farther than the k-th, or when it gave all it has; the others
    are asked again for four times as many, in blocks whose answers stay small.

    Parameters
    ----------
    ask : callable
        ``ask(rows, depth)`` gives distances and ids, both of shape (len(rows), depth), of the ``depth`` nearest codes
        of the queries with these row numbers. Their order within a row does not matter.
    n_queries, k, count : int
        Number of queries, of neighbours for each, and of codes in the engine; k is at most count.
    most : int, optional
        The largest depth that the engine can be asked for, if it has a limit.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
    """
    limit = count if most is None else min(count, most)
    if k > limit:
        raise DataError(f"k must be at most {limit}, the most that this engine gives at once, got {k}; ask for fewer")
    distances = np.empty((n_queries, k), dtype=np.int32)
    ids = np.empty((n_queries, k), dtype=np.int64)
    pending = np.arange(n_queries, dtype=np.int64)
    depth = min(limit, max(2 * k, k + 16))
    while len(pending):
        unsettled = []
        step = max(1, _HITS_AT_ONCE // depth)
        for start in range(0, len(pending), step):
            rows = pending[start : start + step]
            found, names = (np.asarray(part) for part in ask(rows, depth))
            order = np.lexsort((names, found), axis=1)
            found, names = np.take_along_axis(found, order, axis=1), np.take_along_axis(names, order, axis=1)
            settled = (found[:, -1] > found[:, k - 1]) | (depth == count)
            distances[rows[settled]], ids[rows[settled]] = found[settled, :k], names[settled, :k]
            unsettled.append(rows[~settled])
        pending = np.concatenate(unsettled)
        if len(pending) and depth == limit:
            raise DataError(
                f"more than {limit} codes are as near as neighbour {k} of query {pending[0]}, and this engine gives no "
                "more at once, so the lowest ids among them cannot be told; use longer codes or a smaller k"
            )
        depth = min(limit, _GROWTH * depth)
    return distances, ids
