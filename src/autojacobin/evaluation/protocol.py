"""The paper's protocol: learn on the training set, encode base and queries, search, count what was found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.base import clone

from autojacobin.datasets import VectorSet
from autojacobin.evaluation.recall import m_recall
from autojacobin.search import hamming_topk

__all__ = ["Trial", "run_trial"]


@dataclass(frozen=True)
class Trial:
    """Outcome of one method with one seed: m-Recall by k, and the seconds that the fit took."""

    m_recall: dict[int, float]
    fit_seconds: float


def run_trial(hasher: Any, data: VectorSet, truth: Any, ks: Sequence[int], depth: int) -> Trial:
    """Fit a clone of ``hasher`` and measure its m-Recall over the first ``depth`` points in Hamming order.

    ``truth`` holds the true neighbours of the queries, at least ``max(ks)`` of them.
    """
    fitted = clone(hasher)
    start = time.perf_counter()
    fitted.fit(data.train)
    seconds = time.perf_counter() - start
    _, ids = hamming_topk(fitted.encode(data.queries), fitted.encode(data.base), depth)
    return Trial({k: m_recall(ids, truth, k, depth) for k in ks}, seconds)
