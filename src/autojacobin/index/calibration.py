"""How many candidates a wanted recall needs.

For queries whose true neighbours are known (``_held_out.py``), each true neighbour has a rank: the number of codes that
are nearer to the query. A search with more candidates than that finds it. The chosen number does not only reach the
wanted recall on the sample: a lower confidence bound of the mean over all such queries does.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, DataTypeError
from autojacobin.index.held_out import NOT_FOUND, HeldOut, Nearest
from autojacobin.index.segment import Segment
from autojacobin.search._arguments import default_candidates

__all__ = ["Calibration", "Calibrator", "checked_recall", "recall_bound"]

_LARGEST_RECALL = 0.999
_FEWEST_QUERIES = 500
_QUERIES_PER_MISS = 6  # twice what a sample without a miss needs to show a recall
_DEVIATIONS = 1.645  # the bound holds for 95 samples in 100
_CHANGED_SHARE = 0.1


@dataclass(frozen=True)
class Calibration:
    """A number of candidates and how it was found. It can be passed as ``candidates`` itself.

    Attributes
    ----------
    k : int
        Neighbours of each query.
    recall : float
        The wanted mean share of the k true neighbours that a search finds.
    distance : str
        How codes are compared.
    candidates : int
        How many of the nearest codes to re-rank.
    seen : float
        Recall on the sample with this number of candidates.
    at_least : float
        Lower confidence bound (95 %) of the recall; 1 if all vectors are re-ranked.
    n_queries : int
        Size of the sample.
    """

    k: int
    recall: float
    distance: str
    candidates: int
    seen: float
    at_least: float
    n_queries: int

    def __index__(self) -> int:
        return self.candidates


class Calibrator:
    """Finds numbers of candidates for an index, and keeps what it learned until a tenth of the index has changed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # several threads may search
        self._given: npt.NDArray[Any] | None = None
        self._n = 0
        self._changed = 0
        self._samples: dict[int, HeldOut] = {}
        self._ranks: dict[tuple[int, str], tuple[npt.NDArray[np.int64], int]] = {}

    def renew_lock(self) -> None:
        """Make a new lock in a forked child; another thread of the parent may have held the old one."""
        self._lock = threading.RLock()

    def forget(self) -> None:
        """Forget everything that was learned."""
        with self._lock:
            self._samples, self._ranks, self._changed = {}, {}, 0

    def count_changes(self, changed: int) -> None:
        """Record that this number of vectors was added or removed."""
        with self._lock:
            self._changed += changed
            if self._changed > _CHANGED_SHARE * self._n:
                self.forget()

    def ask_with(self, queries: npt.NDArray[Any], recall: float) -> None:
        """Learn from these queries from now on, instead of from stored vectors, if they are enough."""
        _refuse_too_few(queries, recall)
        with self._lock:
            self._given = queries
            self.forget()

    def choose(
        self, segments: Sequence[Segment], k: int, recall: float, distance: str, nearest: Nearest
    ) -> Calibration:
        """Choose the number of candidates; ``nearest(queries, k)`` searches the codes of the segments."""
        n = sum(segment.n_live for segment in segments)
        with self._lock:
            sample = self._sample(segments, n, k, recall)
            ranks, candidates = self._ranks_for(sample, n, k, recall, distance, nearest)
        candidates = max(k, candidates)
        if candidates >= n:
            return Calibration(k, recall, distance, n, 1.0, 1.0, len(ranks))
        seen, at_least = recall_bound(np.mean(ranks < candidates, axis=1))
        return Calibration(k, recall, distance, candidates, seen, at_least, len(ranks))

    def _ranks_for(
        self, sample: HeldOut, n: int, k: int, recall: float, distance: str, nearest: Nearest
    ) -> tuple[npt.NDArray[np.int64], int]:
        """Ranks to a depth that shows the recall, and the number of candidates that it needs."""
        ranks, depth = self._ranks.get((k, distance), (None, default_candidates(k)))
        while True:
            if ranks is None:
                ranks = sample.ranks(nearest, min(depth, n))
                self._ranks[k, distance] = ranks, depth
            candidates = _fewest(ranks, recall)
            if candidates is not None:
                return ranks, candidates
            if depth >= n or ranks.max() < NOT_FOUND:
                return ranks, n
            ranks, depth = None, 4 * depth

    def _sample(self, segments: Sequence[Segment], n: int, k: int, recall: float) -> HeldOut:
        if self._given is not None:
            _refuse_too_few(self._given, recall)
        size = min(n, max(_FEWEST_QUERIES, _enough_queries(recall)))
        sample = self._samples.get(k)
        if sample is None or (self._given is None and len(sample.queries) < size):
            if not self._samples:
                self._n, self._changed = n, 0
            given = self._given
            sample = HeldOut.stored(segments, size, k) if given is None else HeldOut.given(segments, given, k)
            self._samples[k] = sample
            self._ranks = {key: ranks for key, ranks in self._ranks.items() if key[0] != k}
        return sample


def recall_bound(shares: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Mean of the recalls of single queries, and its lower confidence bound.

    Queries are drawn at random, so the spread is the one between queries, whatever k is. The bound counts one more
    query that found nothing, so that a sample without a miss does not promise certainty.
    """
    with_a_miss = np.append(shares, 0.0)
    spread = float(with_a_miss.std()) / math.sqrt(len(shares))
    return float(shares.mean()), float(with_a_miss.mean()) - _DEVIATIONS * spread


def _enough_queries(recall: float) -> int:
    return math.ceil(round(_QUERIES_PER_MISS / (1 - recall), 6))


def _refuse_too_few(queries: npt.NDArray[Any], recall: float) -> None:
    fewest = -(-_enough_queries(recall) // 2)
    if len(queries) < fewest:
        raise DataError(
            f"a recall of {recall} needs at least {fewest} queries to learn from, got {len(queries)}; "
            "pass more of them, or ask for a lower recall"
        )


def _fewest(ranks: npt.NDArray[np.int64], recall: float) -> int | None:
    """Smallest number of candidates whose bound is at least ``recall``; None if no known rank is enough."""
    steps = np.unique(ranks[ranks < NOT_FOUND]) + 1
    low, high = 0, len(steps)
    while low < high:
        middle = (low + high) // 2
        met = recall_bound(np.mean(ranks < steps[middle], axis=1))[1] >= recall
        low, high = (low, middle) if met else (middle + 1, high)
    return int(steps[low]) if low < len(steps) else None


def checked_recall(recall: float) -> float:
    """Give a wanted recall as a float."""
    wanted = f"recall must be a number above 0 and at most {_LARGEST_RECALL}, such as 0.95"
    if not isinstance(recall, Real) or isinstance(recall, bool | np.bool_):
        raise DataTypeError(f"{wanted}, got {recall!r}")
    if not 0 < float(recall) <= _LARGEST_RECALL:
        raise DataError(f"{wanted}, got {recall!r}; candidates=len(index) finds every neighbour")
    return float(recall)
