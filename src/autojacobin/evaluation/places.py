"""Places of the true neighbours in an answer, from which every measure follows.

A true neighbour that ``before`` points surely precede, in a group of ``size`` points at its distance, stands at one of
the places before + 1 … before + size. In a list that a search gave, size is 1. In expectation over the order of ties
(``ties.py``), each of these places is equally likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel
from autojacobin.core.parallel import run_tasks
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search.arguments import checked_count

__all__ = ["Places", "checked_truth", "places_in_list"]

_QUERIES_PER_TASK = 64
_MARK_BITS = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio


@dataclass(frozen=True)
class Places:
    """Where the true neighbours of each query stand.

    Attributes
    ----------
    before, size : arrays of int64, shape (n_queries, k)
        What surely comes first, and the size of the group of equals. One that is not within ``depth`` has ``before`` at
        or beyond it.
    depth : int
        How far the places are known.
    """

    before: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    depth: int

    @property
    def k(self) -> int:
        """True neighbours a query."""
        return int(self.before.shape[1])


def places_in_list(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex | None = None) -> Places:
    """Places of the first ``k`` ids of each row of ``truth`` among the first ``depth`` of ``ids``, all by default.

    An id that a row of ``ids`` holds more than once counts where it first stands.
    """
    found, true = _as_ids(ids, "ids"), _as_ids(truth, "truth")
    if found.ndim != 2 or true.ndim != 2 or len(found) != len(true) or len(found) == 0:
        raise DataError(
            f"ids and truth must be matrices with a row for each of the same queries, got shapes {found.shape} and "
            f"{true.shape}; search with the queries that the truth was computed for"
        )
    true = checked_truth(true, k)
    within = found.shape[1] if depth is None else checked_count("depth", depth, found.shape[1], "the columns of ids")
    before = np.full(true.shape, within, dtype=np.int64)

    def work(first: int, last: int) -> None:
        _find(found, within, true, first, last, before)

    n = len(found)
    run_tasks(work, [(start, min(start + _QUERIES_PER_TASK, n)) for start in range(0, n, _QUERIES_PER_TASK)])
    return Places(before, np.ones_like(before), within)


def checked_truth(truth: Any, k: SupportsIndex) -> npt.NDArray[np.int64]:
    """Give the first ``k`` columns of a matrix of true neighbours, none of which may name an id twice."""
    true = _as_ids(truth, "truth")
    if true.ndim != 2:
        raise DataError(f"truth must be a matrix with a row for each query, got shape {true.shape}")
    k = checked_count("k", k, true.shape[1], "the columns of truth")
    first = np.ascontiguousarray(true[:, :k], dtype=np.int64)
    ordered = np.sort(first, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        row = int(twice.argmax())
        again = int(ordered[row, 1:][ordered[row, 1:] == ordered[row, :-1]][0])
        raise DataError(
            f"the {k} true neighbours of a query must be different points, got {again} more than once in row {row} of "
            "truth; compute it with ground_truth"
        )
    return first


def _as_ids(values: Any, name: str) -> npt.NDArray[Any]:
    try:
        ids = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} cannot be read as a matrix: {error}; pass rows of equal length") from error
    if ids.size and ids.dtype.kind not in "iu":
        raise DataTypeError(f"{name} must hold whole numbers, got {ids.dtype}; pass ids as a search gives them")
    return ids if ids.dtype in (np.int32, np.int64) else ids.astype(np.int64)


@kernel
def _find(ids: Any, depth: int, truth: Any, first: int, last: int, before: Any) -> None:
    """Write for each true neighbour how many ids stand before it.

    Most ids are of no true neighbour, and one look at a small bitmap dismisses nearly all of them. The others
    are looked up in a table with open addresses.
    """
    k = truth.shape[1]
    bits = 4
    while 1 << bits < 4 * k:
        bits += 1
    table = np.empty(1 << bits, dtype=np.int64)
    marks = np.zeros(1 << (bits + _MARK_BITS), dtype=np.uint8)
    for q in range(first, last):
        table[:] = -1
        for t in range(k):
            mark = _scattered(truth[q, t], bits + _MARK_BITS)
            marks[mark] = 1
            slot = mark >> _MARK_BITS
            while table[slot] >= 0:
                slot = (slot + 1) & (table.shape[0] - 1)
            table[slot] = t
        missing = k
        for i in range(depth):
            mark = _scattered(ids[q, i], bits + _MARK_BITS)
            if marks[mark]:
                slot = mark >> _MARK_BITS
                while table[slot] >= 0:
                    t = table[slot]
                    if truth[q, t] == ids[q, i]:
                        if before[q, t] == depth:
                            before[q, t] = i
                            missing -= 1
                        break
                    slot = (slot + 1) & (table.shape[0] - 1)
                if missing == 0:
                    break
        for t in range(k):
            marks[_scattered(truth[q, t], bits + _MARK_BITS)] = 0


@kernel
def _scattered(number: Any, bits: int) -> Any:
    """Some bits of a number that tell near numbers, and multiples of a power of two, well apart."""
    return np.int64((np.uint64(np.int64(number)) * _GOLDEN) >> np.uint64(64 - bits))
