"""Curves of recall and precision, m-Recall, and mAP of what a search found."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.errors import DataError
from autojacobin.evaluation.measures import average_precision_of, precision_of, recall_of
from autojacobin.evaluation.places import places_in_list
from autojacobin.search import hamming_topk
from autojacobin.search.arguments import checked_count
from autojacobin.search.truth import ground_truth

__all__ = ["leave_one_out_m_recall", "m_recall", "mean_average_precision", "precision_curve", "recall_curve"]

_MOST_QUERIES = 1000


def recall_curve(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> npt.NDArray[np.float64]:
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
    places = places_in_list(ids, truth, k, depth)
    return recall_of(places, places.depth)


def precision_curve(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> npt.NDArray[np.float64]:
    """Precision@i for i = 1…depth: the share of true neighbours among the first i found, mean over queries.

        Precision@i = (1/Q) Σ_q |truth_q ∩ ids_q[:i]| / i = Recall@i · k / i

    Examples
    --------
    >>> from autojacobin.evaluation import precision_curve
    >>> precision_curve([[7, 3, 5, 9]], [[3, 9]], k=2, depth=4)
    array([0.        , 0.5       , 0.33333333, 0.5       ])
    """
    places = places_in_list(ids, truth, k, depth)
    return precision_of(places, places.depth)


def m_recall(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> float:
    """Mean of Recall@i over i = 1…depth, the one number that the paper compares methods by."""
    return float(recall_curve(ids, truth, k, depth).mean())


def mean_average_precision(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex) -> float:
    """Mean over queries of the average precision within the first ``depth``, which is 1 for a perfect answer.

        AP = (1/min(k, depth)) Σ_{i ≤ depth} Precision@i · [ids_i is one of the k true neighbours]

    Examples
    --------
    >>> from autojacobin.evaluation import mean_average_precision
    >>> mean_average_precision([[7, 3, 5, 9]], [[3, 9]], k=2, depth=4)
    0.5
    """
    places = places_in_list(ids, truth, k, depth)
    return float(average_precision_of(places, places.depth).mean())


def leave_one_out_m_recall(vectors: Any, codes: Codes, *, k: int = 10, depth: int | None = None) -> float:
    """m-Recall of a set searched for its own points: each is a query against all the others.

    At most 1,000 of them, evenly spaced, are asked for. ``k`` and ``depth`` (ten times k by default) are cut
    down to the number of other points.
    """
    n = len(vectors)
    if n < 2:
        raise DataError(f"scoring needs at least 2 points to search among, got {n}; pass more held-out points")
    k = min(checked_count("k", k), n - 1)
    depth = min(10 * k if depth is None else checked_count("depth", depth), n - 1)
    asked = np.unique(np.linspace(0, n - 1, min(n, _MOST_QUERIES)).astype(np.int64))
    truth = _others(ground_truth(vectors, vectors[asked], k + 1), asked)
    _, ids = hamming_topk(codes[asked], codes, depth + 1)
    return m_recall(_others(ids, asked), truth, k, depth)


def _others(ids: npt.NDArray[np.int64], asked: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Take each query's own id out of its row, or, where duplicates crowd it out, the last id."""
    itself = ids == asked[:, None]
    itself[~itself.any(axis=1), -1] = True
    others: npt.NDArray[np.int64] = ids[~itself].reshape(len(ids), -1)
    return others
