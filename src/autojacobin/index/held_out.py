"""Queries with known true neighbours, by which an index learns how many candidates a recall needs.

Where the base is large, the true neighbours are those within a sample of it, with k reduced by the same share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel
from autojacobin.index.metrics import EUCLIDEAN, Metric
from autojacobin.index.searching import fetch, nearest_by_products
from autojacobin.index.segment import Segment

__all__ = ["NOT_FOUND", "HeldOut", "Nearest", "drawn"]

NOT_FOUND = np.iinfo(np.int64).max
_PRODUCTS = 2**33  # about a second of two cores
_MOST_PRODUCTS = 2**37  # where fewer would leave less than one neighbour for each query
_FEWEST_ROWS = 1_000
_IDS_PER_BLOCK = 2**23

Ids = npt.NDArray[np.int64]
Nearest = Callable[[Any, int], tuple[Any, Ids]]


@dataclass(frozen=True)
class HeldOut:
    """Queries and their true neighbours; ``own_ids`` are the ids of the queries themselves, or -1."""

    queries: npt.NDArray[Any]
    own_ids: Ids
    truth: Ids

    @classmethod
    def stored(cls, segments: Sequence[Segment], size: int, k: int, metric: Metric = EUCLIDEAN) -> HeldOut:
        """Take ``size`` stored vectors as queries, always the same ones; their neighbours are among the others."""
        ids = drawn(segments, size, seed=0)
        queries = metric.stored_as_queries(fetch(segments, ids))
        near = _true_neighbours(segments, queries, min(k + 1, _n_live(segments)), k)
        others = np.argsort(near == ids[:, np.newaxis], axis=1, kind="stable")[:, : max(1, near.shape[1] - 1)]
        return cls(queries, ids, np.take_along_axis(near, others, axis=1))

    @classmethod
    def given(cls, segments: Sequence[Segment], queries: npt.NDArray[Any], k: int) -> HeldOut:
        """Take the user's own queries."""
        return cls(queries, np.full(len(queries), -1, dtype=np.int64), _true_neighbours(segments, queries, k, k))

    def ranks(self, nearest: Nearest, depth: int) -> Ids:
        """Count the codes before each true neighbour, in ascending order; NOT_FOUND from ``depth`` on.

        ``nearest(queries, k)`` searches the codes, and may give fewer than k if there are fewer.
        """
        ranks = np.full(self.truth.shape, NOT_FOUND)
        step = max(1, _IDS_PER_BLOCK // (depth + 1))
        for start in range(0, len(ranks), step):
            block = slice(start, start + step)
            _, found = nearest(self.queries[block], depth + 1)  # one more, because the query itself may be found
            truth = np.sort(self.truth[block], axis=1)
            _write_ranks(found, self.own_ids[block], truth, ranks[block])
        ranks[ranks >= depth] = NOT_FOUND
        return np.sort(ranks, axis=1)


def drawn(segments: Sequence[Segment], size: int, seed: int) -> Ids:
    """Ids of ``size`` random vectors, in ascending order."""
    edges = np.cumsum([0, *(segment.n_live for segment in segments)])
    numbers = np.sort(np.random.default_rng(seed).choice(int(edges[-1]), size, replace=False, shuffle=False))
    parts = []
    for segment, first, last in zip(segments, edges[:-1], edges[1:], strict=True):
        here = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last)] - first
        parts.append(segment.ids_at(segment.live_positions()[here] if segment.n_dead else here))
    return np.sort(np.concatenate(parts))


def _n_live(segments: Sequence[Segment]) -> int:
    return sum(segment.n_live for segment in segments)


def _true_neighbours(segments: Sequence[Segment], queries: npt.NDArray[Any], most: int, k: int) -> Ids:
    """Ids of the ``most`` nearest stored vectors of each query, or of proportionally fewer in a sample."""
    n, size = _n_live(segments), len(queries) * queries.shape[1]
    enough = max(_PRODUCTS // size, min(-(-n // k), _MOST_PRODUCTS // size))
    rows = min(n, max(_FEWEST_ROWS, enough))
    wanted = min(math.ceil(k * rows / n) + most - k, rows)
    return nearest_by_products(queries, segments, drawn(segments, rows, seed=1), wanted)[1]


@kernel
def _write_ranks(found: Any, own: Any, truth: Any, ranks: Any) -> None:
    """Write the ranks of the true neighbours, whose ids ascend, in a list in which the query itself does not count.

    The ranks of those that are not in the list are left as they are.
    """
    k = truth.shape[1]
    for q in range(found.shape[0]):
        rank = 0
        for c in range(found.shape[1]):
            id = found[q, c]
            if id == own[q]:
                continue
            low, high = 0, k
            while low < high:
                middle = (low + high) >> 1
                if truth[q, middle] < id:
                    low = middle + 1
                else:
                    high = middle
            if low < k and truth[q, low] == id:
                ranks[q, low] = rank
            rank += 1
