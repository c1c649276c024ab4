"""Measures in expectation over the order of equal Hamming distances.

A code of 32 bits has 33 possible distances, so a list of a thousand neighbours ends in the middle of a large group of
equals, and what a search finds there depends on the order of the base. The measures here are the mean over all such
orders, exactly: a true neighbour at distance d stands with equal probability at each of the places of its group,

    P(place ≤ i) = (i − before) / size, cut off at 0 and 1,

with ``before`` the number of codes nearer than d and ``size`` the number of codes at d. Both come from a count of all
distances, so no list is cut and nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.compilation import kernel, popcount, use_wide_registers
from autojacobin.core.parallel import run_tasks
from autojacobin.errors import DataError
from autojacobin.evaluation.measures import evaluate_places, precision_of, recall_of
from autojacobin.evaluation.places import Places, checked_truth
from autojacobin.evaluation.statistics import Measured
from autojacobin.search.arguments import checked_codes, checked_count
from autojacobin.search.tiles import code_words

__all__ = ["expected_evaluate", "expected_m_recall", "expected_precision_curve", "expected_recall_curve", "tied_places"]

_QUERIES_PER_TASK = 16
_CODES_PER_BLOCK = 2048
_TABLES = 4


def expected_recall_curve(
    query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex, depth: SupportsIndex
) -> npt.NDArray[np.float64]:
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
    return recall_of(tied_places(query_codes, base_codes, truth, k), _depth(depth, base_codes))


def expected_precision_curve(
    query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex, depth: SupportsIndex
) -> npt.NDArray[np.float64]:
    """Precision@i for i = 1…depth of a Hamming search, in expectation over the order of equal distances."""
    return precision_of(tied_places(query_codes, base_codes, truth, k), _depth(depth, base_codes))


def expected_m_recall(
    query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex, depth: SupportsIndex
) -> float:
    """m-Recall of a Hamming search, in expectation over the order of equal distances."""
    return float(expected_recall_curve(query_codes, base_codes, truth, k, depth).mean())


def expected_evaluate(
    query_codes: Codes, base_codes: Codes, truth: Any, names: Iterable[str], k: SupportsIndex
) -> dict[str, Measured]:
    """Measures by name, as in :func:`~autojacobin.evaluation.evaluate`, in expectation over the order of ties."""
    return evaluate_places(tied_places(query_codes, base_codes, truth, k), names, "the codes of the base")


def tied_places(query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex) -> Places:
    """Groups of equal distance that the first ``k`` true neighbours of each query stand in."""
    checked_codes(query_codes, base_codes)
    true = checked_truth(truth, k)
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
    queries = code_words(query_codes.to_device("cpu"))
    columns = np.ascontiguousarray(code_words(base_codes.to_device("cpu")).T)
    before, size = np.empty_like(true), np.empty_like(true)

    def work(first: int, last: int) -> None:
        _count(queries, columns, base_codes.n_bits, true, first, last, before, size)

    n = len(true)
    run_tasks(work, [(start, min(start + _QUERIES_PER_TASK, n)) for start in range(0, n, _QUERIES_PER_TASK)])
    return Places(before, size, len(base_codes))


def _depth(depth: SupportsIndex, base: Codes) -> int:
    return checked_count("depth", depth, len(base), "the codes of the base")


@kernel
def _count(queries: Any, columns: Any, n_bits: int, truth: Any, first: int, last: int, before: Any, size: Any) -> None:
    n = columns.shape[1]
    # Neighbouring codes are often at one distance, and additions to one count would wait for each other.
    counts = np.zeros((last - first, _TABLES, n_bits + 1), dtype=np.int64)
    distances = np.empty(_CODES_PER_BLOCK, dtype=np.uint64)
    for start in range(0, n, _CODES_PER_BLOCK):
        codes = min(_CODES_PER_BLOCK, n - start)
        for q in range(first, last):
            _distances(queries, q, columns, start, codes, distances)
            table = counts[q - first]
            for c in range(codes):
                table[c & (_TABLES - 1), np.int64(distances[c])] += 1
    for q in range(first, last):
        nearer = np.zeros(n_bits + 2, dtype=np.int64)
        for distance in range(n_bits + 1):
            nearer[distance + 1] = nearer[distance] + counts[q - first, :, distance].sum()
        for t in range(truth.shape[1]):
            mine = np.int64(0)
            for w in range(columns.shape[0]):
                mine += np.int64(popcount(columns[w, truth[q, t]] ^ queries[q, w]))
            before[q, t] = nearer[mine]
            size[q, t] = nearer[mine + 1] - nearer[mine]


@kernel
def _distances(queries: Any, q: int, columns: Any, start: int, codes: int, distances: Any) -> None:
    use_wide_registers()
    for w in range(columns.shape[0]):
        word = queries[q, w]
        column = columns[w, start : start + codes]
        if w == 0:
            for c in range(column.shape[0]):
                distances[c] = popcount(column[c] ^ word)
        else:
            for c in range(column.shape[0]):
                distances[c] += popcount(column[c] ^ word)
