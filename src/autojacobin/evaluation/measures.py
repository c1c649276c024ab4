"""Recall, precision, m-Recall and mean average precision, from the ranks of the true neighbours.

For a query with k true neighbours t:

    recall@i     = (1/k) Σ_t [rank_t ≤ i]
    precision@i  = (1/i) Σ_t [rank_t ≤ i]
    m-recall@K   = (1/K) Σ_{i=1…K} recall@i
    map@K        = (1/min(k, K)) Σ_{i=1…K} precision@i · [the i-th is a true neighbour]

The last one is divided by min(k, K), not by k, so that a perfect result has the value 1 even if it is shorter than k.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.errors import DataError, DataTypeError
from autojacobin.evaluation.statistics import Measured
from autojacobin.search import hamming_topk
from autojacobin.search.arguments import as_count
from autojacobin.search.truth import ground_truth

Values = npt.NDArray[np.float64]

_MOST_QUERIES = 1000
_MARKS = 2**16


def measure(name: str, ids: Any, truth: Any, k: SupportsIndex) -> Measured:
    """Give one measure of every query, by a name such as ``"recall@100"``.

    Parameters
    ----------
    name : str
        ``"recall@i"``, ``"precision@i"``, ``"m-recall@i"`` or ``"map@i"``, with a number for i.
    ids : array of int, shape (n_queries, ≥ i)
        What a search found, best first.
    truth : array of int, shape (n_queries, ≥ k)
        True neighbours, nearest first.
    k : int
        How many of the true neighbours count.

    Examples
    --------
    >>> from autojacobin.evaluation import measure
    >>> found = measure("recall@2", ids=[[7, 3, 5], [1, 2, 3]], truth=[[3, 5], [2, 1]], k=2)
    >>> found.values
    array([0.5, 1. ])
    >>> found.mean, found.standard_error
    (0.75, 0.25)
    """
    return evaluate(ids, truth, [name], k)[name]


def evaluate(ids: Any, truth: Any, names: Iterable[str], k: SupportsIndex) -> dict[str, Measured]:
    """Give several measures of every query by their names; see :func:`measure`.

    Examples
    --------
    >>> from autojacobin.evaluation import evaluate
    >>> found = evaluate([[7, 3, 5]], [[3, 5]], ["m-recall@3", "map@3"], k=2)
    >>> {name: round(measured.mean, 3) for name, measured in found.items()}
    {'m-recall@3': 0.5, 'map@3': 0.583}
    """
    if isinstance(names, str):
        raise DataTypeError(f"names must be a list of names, got the one name {names!r}; pass [{names!r}]")
    if not isinstance(names, Iterable):
        raise DataTypeError(f"names must be a list of names such as 'recall@100', got {type(names).__name__}")
    before, parsed = ranks_in_list(ids, truth, k), {name: _parse(name) for name in names}
    for name, (_, depth) in parsed.items():
        as_count(f"the number in {name!r}", depth, np.shape(ids)[1], "the columns of ids")
    return {name: Measured(_MEASURES[kind](before, depth)) for name, (kind, depth) in parsed.items()}


def recall_curve(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> Values:
    """Recall@i for i = 1…depth: the share of the ``k`` true neighbours among the first i found, mean over queries.

        Recall@i = (1/Q) Σ_q |truth_q ∩ ids_q[:i]| / k

    ``ids``, with at least ``depth`` columns, ``truth`` and ``k`` are as in :func:`measure`.

    Examples
    --------
    >>> from autojacobin.evaluation import recall_curve
    >>> recall_curve([[7, 3, 5, 9]], [[3, 9]], k=2, depth=4)
    array([0. , 0.5, 0.5, 1. ])
    """
    before, depth = ranks_in_list(ids, truth, k, depth), int(depth)
    found = np.bincount(before[before < depth], minlength=depth)
    return np.asarray(np.cumsum(found) / before.size)


def m_recall(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> float:
    """Mean of Recall@i over i = 1…depth, the number by which the paper compares methods."""
    return float(recall_curve(ids, truth, k, depth).mean())


def leave_one_out_m_recall(
    vectors: Any,
    codes: Codes,
    *,
    k: int = 10,
    depth: int | None = None,
    topk: Callable[[npt.NDArray[np.int64], int], tuple[Any, Any]] | None = None,
) -> float:
    """m-Recall of a set searched for its own points: each is a query against all the others.

    At most 1,000 evenly spaced points are queries. ``k`` and ``depth`` (ten times k by default) are limited to the
    number of other points. ``topk(rows, k)`` finds the codes nearest to some rows, by default in Hamming distance.
    """
    n = len(vectors)
    if n < 2:
        raise DataError(f"scoring needs at least 2 points to search among, got {n}; pass more held-out points")
    k = min(as_count("k", k), n - 1)
    depth = min(10 * k if depth is None else as_count("depth", depth), n - 1)
    queries = np.unique(np.linspace(0, n - 1, min(n, _MOST_QUERIES)).astype(np.int64))
    truth = _without_query(ground_truth(vectors, vectors[queries], k + 1), queries)
    _, ids = hamming_topk(codes[queries], codes, depth + 1) if topk is None else topk(queries, depth + 1)
    return m_recall(_without_query(ids, queries), truth, k, depth)


def ranks_in_list(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex | None = None) -> npt.NDArray[np.int64]:
    """How many of the first ``depth`` of ``ids``, all by default, are before each of the first ``k`` true neighbours.

    A neighbour that is not among them has ``depth`` before it. An id that occurs more than once in a row of ``ids`` has
    the rank of its first occurrence.
    """
    found, true = _as_ids(ids, "ids"), _as_ids(truth, "truth")
    if found.ndim != 2 or true.ndim != 2 or len(found) != len(true) or len(found) == 0:
        raise DataError(
            f"ids and truth must be matrices with a row for each of the same queries, got shapes {found.shape} and "
            f"{true.shape}; search with the queries that the truth was computed for"
        )
    k = as_count("k", k, true.shape[1], "the columns of truth")
    true = np.ascontiguousarray(true[:, :k], dtype=np.int64)
    orders = np.argsort(true, axis=1)
    ordered = np.take_along_axis(true, orders, axis=1)
    again, places = np.nonzero(ordered[:, 1:] == ordered[:, :-1])
    if len(again):
        raise DataError(
            f"the {k} true neighbours of a query must be different points, got {ordered[again[0], places[0]]} more "
            f"than once in row {again[0]} of truth; compute it with ground_truth"
        )
    within = found.shape[1] if depth is None else as_count("depth", depth, found.shape[1], "the columns of ids")
    before = np.full(true.shape, within, dtype=np.int64)
    for ranks, order, row, listed in zip(before, orders, ordered, found[:, :within], strict=True):
        marked = np.zeros(_MARKS, dtype=bool)  # dismisses nearly all ids, which are no true neighbours
        marked[row & (_MARKS - 1)] = True
        places = np.flatnonzero(marked[listed & (_MARKS - 1)])[::-1]  # from the last on, so that the first one stays
        nearest = np.searchsorted(row[:-1], listed[places])
        is_true = row[nearest] == listed[places]
        ranks[order[nearest[is_true]]] = places[is_true]
    return before


def _average_precision(before: npt.NDArray[np.int64], depth: int) -> Values:
    ranks = np.sort(before, axis=1) + 1
    precisions = np.where(ranks <= depth, np.arange(1, ranks.shape[1] + 1) / ranks, 0.0)
    return np.asarray(precisions.sum(axis=1) / min(ranks.shape[1], depth))


# from the number of points before each true neighbour, and the depth
_MEASURES: dict[str, Callable[[npt.NDArray[np.int64], int], Values]] = {
    "recall": lambda before, i: (before < i).mean(axis=1),
    "precision": lambda before, i: (before < i).sum(axis=1) / i,
    "m-recall": lambda before, depth: np.maximum(depth - before, 0).mean(axis=1) / depth,
    "map": _average_precision,
}


def _parse(name: Any) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z-]+)@([1-9][0-9]*)", name) if isinstance(name, str) else None
    if match is None or match[1] not in _MEASURES:
        known = ", ".join(f"{kind}@i" for kind in _MEASURES)
        raise DataError(f"{name!r} is not the name of a measure, expected one of {known}, such as 'recall@100'")
    return match[1], int(match[2])


def _without_query(ids: npt.NDArray[np.int64], queries: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Remove each query's own id from its row, or the last id where duplicates have displaced it."""
    itself = ids == queries[:, None]
    itself[~itself.any(axis=1), -1] = True
    return ids[~itself].reshape(len(ids), -1)


def _as_ids(values: Any, name: str) -> npt.NDArray[Any]:
    try:
        ids = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} cannot be read as a matrix: {error}; pass rows of equal length") from error
    if ids.size and ids.dtype.kind not in "iu":
        raise DataTypeError(f"{name} must hold whole numbers, got {ids.dtype}; pass ids as a search returns them")
    return ids if ids.dtype in (np.int32, np.int64) else ids.astype(np.int64)
