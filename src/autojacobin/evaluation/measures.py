"""Recall, m-Recall, precision and average precision of each query, from the places of its true neighbours; by name.

With P(place ≤ i) as in ``places.py``, 0 or 1 where there are no ties, and k true neighbours t of a query:

    recall@i     = (1/k) Σ_t P(place_t ≤ i)
    precision@i  = (1/i) Σ_t P(place_t ≤ i)
    m-recall@K   = (1/K) Σ_{i=1…K} recall@i
    map@K        = (1/min(k, K)) Σ_{i=1…K} precision@i · [the i-th is a true neighbour]

The last is divided by min(k, K) and not by k, so that a perfect answer has the value 1 even if it is shorter than k.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel
from autojacobin.errors import DataError, DataTypeError
from autojacobin.evaluation.places import Places, places_in_list
from autojacobin.evaluation.statistics import Measured
from autojacobin.search.arguments import checked_count

__all__ = ["average_precision_of", "evaluate", "evaluate_places", "measure", "precision_of", "recall_of"]

Values = npt.NDArray[np.float64]


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
    return evaluate_places(places_in_list(ids, truth, k), names, "the columns of ids")


def evaluate_places(places: Places, names: Iterable[str], limit: str) -> dict[str, Measured]:
    """Measures by name from places that are known up to a depth, which ``limit`` names in messages."""
    if isinstance(names, str):
        raise DataTypeError(f"names must be a list of names, got the one name {names!r}; pass [{names!r}]")
    if not isinstance(names, Iterable):
        raise DataTypeError(f"names must be a list of names such as 'recall@100', got {type(names).__name__}")
    asked = {name: _parsed(name) for name in names}
    for name, (_, depth) in asked.items():
        checked_count(f"the number in {name!r}", depth, places.depth, limit)
    return {name: Measured(_VALUES[kind](places, depth)) for name, (kind, depth) in asked.items()}


def recall_of(places: Places, depth: int) -> Values:
    """Recall@i for i = 1…depth, mean over the queries."""
    n, k = places.before.shape
    near = places.before < depth
    before, size = places.before[near], places.size[near]
    if (size == 1).all():  # whole numbers up to the last division, so that 1 is 1
        return np.asarray(np.cumsum(np.bincount(before, minlength=depth)) / (n * k))
    # A group adds 1/size at each of its places: the difference of two steps.
    steps = np.bincount(before, 1 / size, minlength=depth + 1)
    steps -= np.bincount(np.minimum(before + size, depth), 1 / size, minlength=depth + 1)
    curve: Values = np.clip(np.cumsum(np.cumsum(steps[:depth])) / (n * k), 0.0, 1.0)
    return curve


def precision_of(places: Places, depth: int) -> Values:
    """Precision@i for i = 1…depth, mean over the queries."""
    return recall_of(places, depth) * places.k / np.arange(1, depth + 1)


def _recall(places: Places, i: int) -> Values:
    values: Values = np.clip((i - places.before) / places.size, 0.0, 1.0).mean(axis=1)
    return values


def _precision(places: Places, i: int) -> Values:
    return _recall(places, i) * places.k / i


def _m_recall(places: Places, depth: int) -> Values:
    # P grows by 1/size over the places of the group within the depth, and is 1 behind it.
    inside = np.clip(depth - places.before, 0, places.size)
    behind = np.maximum(depth - places.before - places.size, 0)
    values: Values = (inside * (inside + 1) / (2 * places.size) + behind).mean(axis=1) / depth
    return values


def average_precision_of(places: Places, depth: int) -> Values:
    """Average precision of each query within the first ``depth``."""
    values = np.empty(len(places.before))
    order = np.argsort(places.before, axis=1)
    before, size = (np.take_along_axis(array, order, axis=1) for array in (places.before, places.size))
    _sum_precisions(before, size, depth, values)
    return values / min(places.k, depth)


_VALUES: dict[str, Callable[[Places, int], Values]] = {
    "recall": _recall,
    "precision": _precision,
    "m-recall": _m_recall,
    "map": average_precision_of,
}


def _parsed(name: Any) -> tuple[str, int]:
    match = re.fullmatch(r"([a-z-]+)@([1-9][0-9]*)", name) if isinstance(name, str) else None
    if match is None or match[1] not in _VALUES:
        known = ", ".join(f"{kind}@i" for kind in _VALUES)
        raise DataError(f"{name!r} is not the name of a measure, expected one of {known}, such as 'recall@100'")
    return match[1], int(match[2])


@kernel
def _sum_precisions(before: Any, size: Any, depth: int, values: Any) -> None:
    """Sum, over the places up to ``depth``, the expectation of precision there times being a true neighbour.

    ``before`` ascends in each row. If r of the g equals of a group are true neighbours, each place of it holds one with
    probability r/g; and if it does, the j − 1 places before it in the group hold (j − 1)(r − 1)/(g − 1) of the others.
    """
    k = before.shape[1]
    for q in range(before.shape[0]):
        total = 0.0
        t = 0
        while t < k and before[q, t] < depth:
            ahead, group, earlier = before[q, t], size[q, t], t
            while t < k and before[q, t] == ahead:
                t += 1
            true = t - earlier
            others = (true - 1) / max(group - 1, 1)
            share = true / group
            for j in range(min(group, depth - ahead)):
                total += share * (earlier + 1 + j * others) / (ahead + j + 1)
        values[q] = total
