"""Recall, precision, m-Recall and mean average precision, from the ranks of the true neighbours.

For a query with k true neighbours t, and P(rank ≤ i) as in ``ranks.py`` (0 or 1 where there are no ties):

    recall@i     = (1/k) Σ_t P(rank_t ≤ i)
    precision@i  = (1/i) Σ_t P(rank_t ≤ i)
    m-recall@K   = (1/K) Σ_{i=1…K} recall@i
    map@K        = (1/min(k, K)) Σ_{i=1…K} precision@i · [the i-th is a true neighbour]

The last one is divided by min(k, K), not by k, so that a perfect result has the value 1 even if it is shorter than k.

The functions with ``expected_`` in their names give the mean over all orders of equal Hamming distances, exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.errors import DataError, DataTypeError
from autojacobin.evaluation.ranks import Ranks, ranks_in_list, ranks_with_ties
from autojacobin.evaluation.statistics import Measured
from autojacobin.search import hamming_topk
from autojacobin.search.arguments import as_count
from autojacobin.search.truth import ground_truth

Values = npt.NDArray[np.float64]

_MOST_QUERIES = 1000


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
    return _evaluate(ranks_in_list(ids, truth, k), names, "the columns of ids")


def recall_curve(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> Values:
    """Recall@i for i = 1…depth: the share of the ``k`` true neighbours among the first i found, mean over queries.

        Recall@i = (1/Q) Σ_q |truth_q ∩ ids_q[:i]| / k

    Parameters
    ----------
    ids : array of int, shape (n_queries, ≥ depth)
        What a search found, best first.
    truth : array of int, shape (n_queries, ≥ k)
        True neighbours, nearest first.
    k : int
        How many of the true neighbours count.
    depth : int
        How far the curve goes.

    Examples
    --------
    >>> from autojacobin.evaluation import recall_curve
    >>> recall_curve([[7, 3, 5, 9]], [[3, 9]], k=2, depth=4)
    array([0. , 0.5, 0.5, 1. ])
    """
    ranks = ranks_in_list(ids, truth, k, depth)
    return _mean_recall(ranks, ranks.depth)


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


def expected_recall_curve(
    query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex, depth: SupportsIndex
) -> Values:
    """Recall@i for i = 1…depth of a Hamming search, in expectation over the order of equal distances.

    Parameters
    ----------
    query_codes, base_codes : Codes
        Codes of the same length.
    truth : array of int, shape (n_queries, ≥ k)
        True neighbours, rows of the base, nearest first.
    k : int
        How many of the true neighbours count.
    depth : int
        How far the curve goes, at most ``len(base_codes)``.

    Examples
    --------
    >>> from autojacobin import Codes
    >>> from autojacobin.evaluation import expected_recall_curve
    >>> base = Codes.from_bits([[0, 0], [0, 1], [1, 0]])  # at the distances 0, 1 and 1
    >>> expected_recall_curve(Codes.from_bits([[0, 0]]), base, [[2]], k=1, depth=3)
    array([0. , 0.5, 1. ])
    """
    ranks = ranks_with_ties(query_codes, base_codes, truth, k)
    return _mean_recall(ranks, as_count("depth", depth, ranks.depth, "the codes of the base"))


def expected_evaluate(
    query_codes: Codes, base_codes: Codes, truth: Any, names: Iterable[str], k: SupportsIndex
) -> dict[str, Measured]:
    """Measures by name, as in :func:`~autojacobin.evaluation.evaluate`, in expectation over the order of ties."""
    return _evaluate(ranks_with_ties(query_codes, base_codes, truth, k), names, "the codes of the base")


def _evaluate(ranks: Ranks, names: Iterable[str], limit: str) -> dict[str, Measured]:
    """Compute measures by name. ``limit`` says in messages what the depth of the ranks is."""
    if isinstance(names, str):
        raise DataTypeError(f"names must be a list of names, got the one name {names!r}; pass [{names!r}]")
    if not isinstance(names, Iterable):
        raise DataTypeError(f"names must be a list of names such as 'recall@100', got {type(names).__name__}")
    parsed = {name: _parse(name) for name in names}
    for name, (_, depth) in parsed.items():
        as_count(f"the number in {name!r}", depth, ranks.depth, limit)
    return {name: Measured(_MEASURES[kind](ranks, depth)) for name, (kind, depth) in parsed.items()}


def _mean_recall(ranks: Ranks, depth: int) -> Values:
    """Recall@i for i = 1…depth, mean over the queries."""
    n, k = ranks.before.shape
    near = ranks.before < depth
    before, size = ranks.before[near], ranks.size[near]
    if (size == 1).all():  # count in whole numbers until the division, so that a recall of 1 is exactly 1
        return np.asarray(np.cumsum(np.bincount(before, minlength=depth)) / (n * k))
    # A group adds 1/size at each of its ranks: the difference of two step functions.
    steps = np.bincount(before, 1 / size, minlength=depth + 1)
    steps -= np.bincount(np.minimum(before + size, depth), 1 / size, minlength=depth + 1)
    return np.clip(np.cumsum(np.cumsum(steps[:depth])) / (n * k), 0.0, 1.0)


def _recall(ranks: Ranks, i: int) -> Values:
    return np.clip((i - ranks.before) / ranks.size, 0.0, 1.0).mean(axis=1)


def _precision(ranks: Ranks, i: int) -> Values:
    return _recall(ranks, i) * ranks.k / i


def _m_recall(ranks: Ranks, depth: int) -> Values:
    # P grows by 1/size at each rank of the group up to the depth, and stays 1 after the group.
    inside = np.clip(depth - ranks.before, 0, ranks.size)
    after = np.maximum(depth - ranks.before - ranks.size, 0)
    return (inside * (inside + 1) / (2 * ranks.size) + after).mean(axis=1) / depth


def _average_precision(ranks: Ranks, depth: int) -> Values:
    """Sum, over the ranks up to ``depth``, the expected precision at those that hold a true neighbour.

    If r of the g points of a group are true neighbours, each of its ranks holds one with probability r/g. Given that it
    does, the j earlier ranks of the group hold j (r − 1)/(g − 1) others.
    """
    values = np.empty(len(ranks.before))
    for q, (before, size) in enumerate(zip(ranks.before, ranks.size, strict=True)):
        first, places, true = np.unique(before[before < depth], return_index=True, return_counts=True)
        group, earlier = size[before < depth][places], np.cumsum(true) - true
        shown = np.minimum(group, depth - first)
        j = np.arange(shown.sum()) - np.repeat(np.cumsum(shown) - shown, shown)
        others = np.repeat((true - 1) / np.maximum(group - 1, 1), shown)
        precisions = (np.repeat(earlier + 1, shown) + j * others) / (np.repeat(first + 1, shown) + j)
        values[q] = (np.repeat(true / group, shown) * precisions).sum()
    return values / min(ranks.k, depth)


_MEASURES: dict[str, Callable[[Ranks, int], Values]] = {
    "recall": _recall,
    "precision": _precision,
    "m-recall": _m_recall,
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
