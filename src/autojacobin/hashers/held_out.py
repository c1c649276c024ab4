"""Held-out training points: some are queries in the rest, and the m-Recall of its codes there rates a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import namespace, to_host

__all__ = ["Found", "held_out_score", "m_recall_of_bits", "n_queries", "split"]

Model = TypeVar("Model")
Found = npt.NDArray[np.float64]  # m-Recall of each query

# One point in ten is a query, within the limits below. In small sets up to one in four is.
_POINTS_PER_QUERY, _FEWEST_POINTS_PER_QUERY = 10, 4
_ENOUGH_QUERIES, _MOST_QUERIES = 1000, 2000
_FEW_DISTANCES = 2**20  # takes as long as with kernels, which would have to be compiled first


def split(n: int, rng: np.random.RandomState) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Draw the rows that are queries, and return them and the rest.

    A tenth of the rows are queries, at most 2,000. In a small set up to a quarter are, because fewer than 1,000 queries
    can hardly distinguish candidates that differ by 0.01.
    """
    order = rng.permutation(n)
    return np.sort(order[: n_queries(n)]), np.sort(order[n_queries(n) :])


def n_queries(n: int) -> int:
    """How many of ``n`` points are queries."""
    return min(max(n // _POINTS_PER_QUERY, min(_ENOUGH_QUERIES, n // _FEWEST_POINTS_PER_QUERY)), _MOST_QUERIES)


def held_out_score(
    queries: Any,
    base: Any,
    k: int,
    depth: int | None,
    bits: Callable[[Model, Any], Any],
    originals: tuple[Any, Any] | None = None,
) -> Callable[[Model], Found]:
    """Return the function that rates a model: the m-Recall of each of ``queries`` in ``base``.

    ``bits`` gives the bits of points, given a model and the points.
    ``depth`` points are retrieved; by default one in a hundred of the base, and at least twice ``k``. If the points are
    coordinates in fewer dimensions, ``originals`` are the queries and the base in all dimensions, where the true
    neighbours are.
    """
    from autojacobin.evaluation import ground_truth, measure  # only here: loading numba takes a second
    from autojacobin.search import hamming_topk

    n = len(base)
    by_arrays = namespace(base) is not np or n * len(queries) <= _FEW_DISTANCES
    depth = min(n, max(2 * k, n // 100) if depth is None else depth)
    all_queries, all_base = originals or (queries, base)
    truth = ground_truth(to_host(all_base), to_host(all_queries), k)

    def score(model: Model) -> Found:
        query_bits, base_bits = (bits(model, points) for points in (queries, base))
        if by_arrays:
            return m_recall_of_bits(query_bits, base_bits, truth, depth)
        _, ids = hamming_topk(Codes.from_bits(query_bits), Codes.from_bits(base_bits), depth)
        return measure(f"m-recall@{depth}", ids, truth, k).values

    return score


def m_recall_of_bits(query_bits: Any, base_bits: Any, truth: npt.NDArray[np.int64], depth: int) -> Found:
    """m-Recall of each query from bits, in few large array operations, for a GPU or for few points.

    A point is found at the rank that counts the points that are nearer, or as near and have a lower number.
    """
    xp = namespace(base_bits)
    (n, d), rows = base_bits.shape, xp.arange(len(query_bits))
    products = (2 * query_bits - xp.float32(1)) @ (2 * base_bits - xp.float32(1)).T  # d − 2 × Hamming distance
    number = xp.int32 if 2 * (d + 1) * n < 2**31 else xp.int64
    order = (d - products).astype(number) * n + xp.arange(n, dtype=number)
    found = xp.zeros(len(rows), dtype=xp.int64)
    for neighbour in xp.asarray(truth).T:
        ranks = xp.count_nonzero(order < order[rows, neighbour][:, None], axis=1)
        found += xp.maximum(depth - ranks, 0)
    return np.asarray(to_host(found) / truth.shape[1] / depth)
