"""Find how many candidates a search needs for a wanted recall.

A sample of queries with known true neighbours is searched. A search finds a true neighbour if it has more candidates
than there are codes nearer than that neighbour's code. The number of candidates is chosen so that a lower confidence
bound of the mean recall, and not just the mean over the sample, reaches the wanted recall.

The first few queries are compared with all vectors instead, because learning takes longer.

A search that names neither a recall nor candidates has the target that :func:`default_target` gives.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, DataTypeError
from autojacobin.index.filters import EXACT_UP_TO
from autojacobin.index.held_out import NOT_FOUND, HeldOut, Nearest
from autojacobin.index.metrics import EUCLIDEAN, Metric
from autojacobin.index.searching import MANY_QUERIES, PRODUCTS_BY_NUMPY
from autojacobin.index.segment import Segment
from autojacobin.search.arguments import default_candidates

__all__ = [
    "DEFAULT_RECALL", "Calibration", "Calibrator", "as_recall", "default_target", "recall_bound",
]  # fmt: skip

DEFAULT_RECALL = 0.95
"""The default recall of a search in an index with vectors. If there are up to 2,000 vectors, all are compared."""
_PRODUCTS_BEFORE_LEARNING = 2**29  # about a tenth of a second
_PRODUCTS_OF_MANY = 2**34  # about a second, by matrix products
_TIMES_BY_NUMPY = 8  # as long as a compiled kernel takes
_SMALLEST_DEFAULT_K = 10

_log = logging.getLogger("autojacobin.index")

_LARGEST_RECALL = 0.999
_FEWEST_QUERIES = 500
_QUERIES_PER_MISS = 6  # twice what a sample without a miss needs to show a recall
_DEVIATIONS = 1.645  # the bound holds for 95 samples in 100
_CHANGED_SHARE = 0.1
_MOST_KEPT = 1_000  # choices


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
    probes : int, optional
        How many lists to scan, for an index with lists.
    """

    k: int
    recall: float
    distance: str
    candidates: int
    seen: float
    at_least: float
    n_queries: int
    probes: int | None = None

    def __index__(self) -> int:
        return self.candidates


class Calibrator:
    """Finds numbers of candidates for an index, and keeps what it learned until a tenth of the index has changed.

    Several threads may search and change the index. One of them learns at a time, and the others do not wait for it
    unless they need what it learns.
    """

    def __init__(self) -> None:
        self.renew_lock()
        self._n_forgotten = 0  # how often everything was forgotten
        self._given: npt.NDArray[Any] | None = None
        self._n = 0
        self._changed = 0
        self._compared = 0
        self._samples: dict[int, HeldOut] = {}
        self._ranks: dict[tuple[int, tuple[str, int | None]], tuple[npt.NDArray[np.int64], int]] = {}
        self._chosen: dict[tuple[Any, ...], Calibration | None] = {}

    def renew_lock(self) -> None:
        """Make new locks in a forked child; another thread of the parent may have held the old ones."""
        self._lock = threading.RLock()  # is held for a moment
        self._learning = threading.RLock()  # is held for as long as learning takes

    def forget(self) -> None:
        """Forget everything that was learned."""
        with self._lock:
            self._n_forgotten += 1
            self._clear()

    def _clear(self) -> None:
        with self._lock:
            self._samples, self._ranks, self._chosen, self._changed, self._compared = {}, {}, {}, 0, 0

    def count_changes(self, changed: int) -> None:
        """Record that this number of vectors was added or removed."""
        with self._lock:
            self._changed += changed
            if self._samples and self._changed > _CHANGED_SHARE * self._n:
                self.forget()

    def affords(self, k: int, n_queries: int, products: int) -> bool:
        """Return whether to compare queries with all vectors, which takes this number of products of numbers.

        A first query is answered sooner in this way, because learning takes a second or more. The products are counted.
        When they have taken about as long as learning does, or when ``k`` was learned, the answer is no.
        """
        most = _PRODUCTS_BEFORE_LEARNING if n_queries < MANY_QUERIES else _PRODUCTS_OF_MANY
        if products <= PRODUCTS_BY_NUMPY:
            products *= _TIMES_BY_NUMPY
        with self._lock:
            if k in self._samples or self._compared + products > most:
                return False
            self._compared += products
            return True

    def ask_with(self, queries: npt.NDArray[Any], recall: float) -> None:
        """Learn from these queries from now on, instead of from stored vectors, if they are enough."""
        _check_enough(queries, recall)
        with self._lock:
            self._given = queries
            self.forget()

    def choose(
        self,
        segments: Sequence[Segment],
        k: int,
        recall: float,
        distance: str,
        nearest: Nearest,
        probes: int | None = None,
        deepest: int | None = None,
        metric: Metric = EUCLIDEAN,
    ) -> Calibration | None:
        """Choose the number of candidates; ``nearest(queries, k)`` searches the codes of the segments.

        If it searches only some ``probes`` of the lists, the result is None where no number of candidates up to
        ``deepest`` is enough.
        """
        n = sum(segment.n_live for segment in segments)
        wanted = (n, k, recall, distance, probes, deepest)
        with self._lock:
            if wanted in self._chosen:
                return self._chosen[wanted]
        with self._learning:
            with self._lock:
                if wanted in self._chosen:  # another thread has learned it meanwhile
                    return self._chosen[wanted]
                n_forgotten = self._n_forgotten
            chosen = self._choose(segments, *wanted, nearest, metric)
            with self._lock:
                if self._n_forgotten != n_forgotten:  # the index has changed meanwhile: this is used once
                    self._clear()
                else:
                    if len(self._chosen) >= _MOST_KEPT:
                        self._chosen.clear()
                    self._chosen[wanted] = chosen
            return chosen

    def _choose(
        self,
        segments: Sequence[Segment],
        n: int,
        k: int,
        recall: float,
        distance: str,
        probes: int | None,
        deepest: int | None,
        nearest: Nearest,
        metric: Metric,
    ) -> Calibration | None:
        ranks, candidates = self._ranks_for(segments, n, k, recall, (distance, probes), nearest, deepest, metric)
        if candidates is None:
            return None
        candidates = max(k, candidates)
        if candidates >= n:
            return Calibration(k, recall, distance, n, 1.0, 1.0, len(ranks), probes)
        seen, at_least = recall_bound(np.mean(ranks < candidates, axis=1))
        return Calibration(k, recall, distance, candidates, seen, at_least, len(ranks), probes)

    def _ranks_for(
        self,
        segments: Sequence[Segment],
        n: int,
        k: int,
        recall: float,
        how: tuple[str, int | None],
        nearest: Nearest,
        deepest: int | None,
        metric: Metric,
    ) -> tuple[npt.NDArray[np.int64], int | None]:
        """Ranks to a depth that shows the recall, and the number of candidates that it needs."""
        self._sample(segments, n, k, recall, metric)
        ranks, depth = self._ranks.get((k, how), (None, default_candidates(k)))
        while True:
            if ranks is None:
                if self._changed:  # true neighbours may have been removed, and would not be found at any depth
                    self._clear()
                ranks = self._sample(segments, n, k, recall, metric).ranks(nearest, min(depth, n))
                self._ranks[k, how] = ranks, depth
            candidates = _fewest(ranks, recall)
            if candidates is not None:
                return ranks, candidates
            if depth >= n or ranks.max() < NOT_FOUND:
                return ranks, n if deepest is None or ranks.max() < NOT_FOUND else None
            if deepest is not None and depth >= deepest:
                return ranks, None  # the others are most likely in other lists
            ranks, depth = None, 4 * depth

    def _sample(self, segments: Sequence[Segment], n: int, k: int, recall: float, metric: Metric) -> HeldOut:
        if self._given is not None:
            _check_enough(self._given, recall)
        size = min(n, max(_FEWEST_QUERIES, _enough_queries(recall)))
        sample = self._samples.get(k)
        if sample is None or (self._given is None and len(sample.queries) < size):
            if not self._samples:
                self._n, self._changed = n, 0
            given = self._given
            _log.info(
                "learning once from %s queries how many candidates a search for %s of %s vectors needs",
                size if given is None else len(given), k, n,
            )  # fmt: skip
            sample = HeldOut.stored(segments, size, k, metric) if given is None else HeldOut.given(segments, given, k)
            self._samples[k], self._chosen = sample, {}
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


def _check_enough(queries: npt.NDArray[Any], recall: float) -> None:
    fewest = 1 if recall == 1 else -(-_enough_queries(recall) // 2)  # for an exact search nothing is learned
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


def as_recall(recall: float) -> float:
    """Give a wanted recall as a float."""
    wanted = f"recall must be a number above 0 and at most {_LARGEST_RECALL}, such as 0.95, or 1 for an exact search"
    if not isinstance(recall, Real) or isinstance(recall, bool | np.bool_):
        raise DataTypeError(f"{wanted}, got {recall!r}")
    if not 0 < float(recall) <= _LARGEST_RECALL and float(recall) != 1:
        raise DataError(f"{wanted}, got {recall!r}")
    return float(recall)


def default_target(k: int, n: int) -> tuple[int, float]:
    """Return the k and the recall that a search for ``k`` of ``n`` vectors uses if it names no recall.

    What finds 10 neighbours also finds fewer, so k is rounded up to 10, 20, 50, 100, … Each of these is learned once.

    >>> default_target(1, 100_000), default_target(30, 100_000), default_target(10, 2_000)
    ((10, 0.95), (50, 0.95), (10, 1.0))
    """
    scale = 1
    while k > 5 * scale * _SMALLEST_DEFAULT_K:
        scale *= 10
    rounded = next(step for step in (1, 2, 5) if step * scale * _SMALLEST_DEFAULT_K >= k) * scale * _SMALLEST_DEFAULT_K
    return min(max(n, 1), rounded), 1.0 if n <= EXACT_UP_TO else DEFAULT_RECALL
