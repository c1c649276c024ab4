"""Ranks of the true neighbours in what a search found. Every measure is computed from them.

A true neighbour with ``before`` points strictly before it, in a group of ``size`` points at the same distance, has one
of the ranks before + 1 … before + size. In a list that a search returned, the size of every group is 1.

A search by codes has many ties: a code of 32 bits has only 33 possible distances, so a list of a thousand neighbours
ends in the middle of a large group of equal distances. What it finds there depends on the order of the base. Ranks with
ties describe all orders at once: every rank of the group is equally likely, so

    P(rank ≤ i) = (i − before) / size, clipped to [0, 1].

Both numbers come from a count of all distances, so no list is cut off and nothing is drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search.arguments import as_count, check_codes
from autojacobin.search.tiles import code_words

_MARKS = 2**16


@dataclass(frozen=True)
class Ranks:
    """Ranks of the true neighbours of each query, in lists of ``depth`` points.

    ``before`` and ``size`` (n_queries, k) say how many points are strictly before a true neighbour, and how many are in
    its group of equal distances. A neighbour that is not among the first ``depth`` points has ``before`` ≥ ``depth``.
    """

    before: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    depth: int

    @property
    def k(self) -> int:
        """Number of true neighbours of each query."""
        return int(self.before.shape[1])


def ranks_in_list(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex | None = None) -> Ranks:
    """Ranks of the first ``k`` ids of each row of ``truth`` among the first ``depth`` of ``ids``, all by default.

    An id that occurs more than once in a row of ``ids`` has the rank of its first occurrence.
    """
    found, true = _as_ids(ids, "ids"), _as_ids(truth, "truth")
    if found.ndim != 2 or true.ndim != 2 or len(found) != len(true) or len(found) == 0:
        raise DataError(
            f"ids and truth must be matrices with a row for each of the same queries, got shapes {found.shape} and "
            f"{true.shape}; search with the queries that the truth was computed for"
        )
    true = _as_truth(true, k)
    within = found.shape[1] if depth is None else as_count("depth", depth, found.shape[1], "the columns of ids")
    before = np.full(true.shape, within, dtype=np.int64)
    orders = np.argsort(true, axis=1)
    for ranks, order, row, listed in zip(before, orders, true, found[:, :within], strict=True):
        marked = np.zeros(_MARKS, dtype=bool)  # dismisses nearly all ids, which are no true neighbours
        marked[row & (_MARKS - 1)] = True
        places = np.flatnonzero(marked[listed & (_MARKS - 1)])[::-1]  # from the last on, so that the first one stays
        nearest = np.searchsorted(row[order][:-1], listed[places])
        is_true = row[order[nearest]] == listed[places]
        ranks[order[nearest[is_true]]] = places[is_true]
    return Ranks(before, np.ones_like(before), within)


def ranks_with_ties(query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex) -> Ranks:
    """Ranks of the first ``k`` true neighbours of each query by Hamming distance, with their groups of ties."""
    check_codes(query_codes, base_codes)
    true = _as_truth(truth, k)
    if len(true) != len(query_codes) or not len(true):
        raise DataError(
            f"truth must have a row for each query and there must be one, got {len(true)} rows and {len(query_codes)} "
            "queries; pass the codes of the queries that the truth was computed for"
        )
    least, most = int(true.min()), int(true.max())
    if least < 0 or most >= len(base_codes):
        raise DataError(
            f"truth must name rows of the base, from 0 to {len(base_codes) - 1}, got {least if least < 0 else most}; "
            "pass the codes of the base that the truth was computed for"
        )
    queries, base = (code_words(codes.to_device("cpu")) for codes in (query_codes, base_codes))
    before, size = np.empty_like(true), np.empty_like(true)
    for q, query in enumerate(queries):
        distances = np.bitwise_count(base ^ query).sum(axis=1, dtype=np.int64)
        counts = np.bincount(distances, minlength=base_codes.n_bits + 1)
        own = distances[true[q]]
        before[q], size[q] = (np.cumsum(counts) - counts)[own], counts[own]
    return Ranks(before, size, len(base_codes))


def _as_truth(truth: Any, k: SupportsIndex) -> npt.NDArray[np.int64]:
    """Give the first ``k`` columns of a matrix of true neighbours. No row may hold an id twice."""
    true = _as_ids(truth, "truth")
    if true.ndim != 2:
        raise DataError(f"truth must be a matrix with a row for each query, got shape {true.shape}")
    k = as_count("k", k, true.shape[1], "the columns of truth")
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
        raise DataTypeError(f"{name} must hold whole numbers, got {ids.dtype}; pass ids as a search returns them")
    return ids if ids.dtype in (np.int32, np.int64) else ids.astype(np.int64)
