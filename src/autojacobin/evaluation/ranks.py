"""Ranks of the true neighbours in what a search found. Every measure is computed from them.

A true neighbour with ``before`` points strictly before it, in a group of ``size`` points at the same distance, has one
of the ranks before + 1 … before + size. In a list that a search returned, the size of every group is 1.

A search by codes has many ties: a code of 32 bits has only 33 possible distances, so a list of a thousand neighbours
ends in the middle of a large group of equal distances. What it finds there depends on the order of the base. Ranks with
ties describe all orders at once: every rank of the group is equally likely, so

    P(rank ≤ i) = (i − before) / size, clipped to [0, 1].

Both numbers come from a count of all distances, so no list is cut off and nothing is drawn at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.compilation import kernel, popcount, use_wide_registers
from autojacobin.core.parallel import run_tasks
from autojacobin.errors import DataError, DataTypeError
from autojacobin.search.arguments import as_count, check_codes
from autojacobin.search.tiles import code_words

_QUERIES_PER_TASK, _TIED_QUERIES_PER_TASK = 64, 16
_CODES_PER_BLOCK = 2048
_COUNTERS = 4
_MARK_BITS = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio


@dataclass(frozen=True)
class Ranks:
    """Ranks of the true neighbours of each query.

    Attributes
    ----------
    before, size : arrays of int64, shape (n_queries, k)
        How many points are strictly before a true neighbour, and the size of its group of equal distances. A neighbour
        that is not among the first ``depth`` points has ``before`` ≥ ``depth``.
    depth : int
        How many points were retrieved.
    """

    before: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    depth: int

    @property
    def k(self) -> int:
        """Number of true neighbours of each query."""
        return int(self.before.shape[1])


def ranks_in_list(ids: Any, truth: Any, k: SupportsIndex, depth: SupportsIndex | None = None) -> Ranks:
    """Ranks of the first ``k`` ids of each row of ``truth`` among the first ``depth`` of ``ids``, all by default.

    An id that occurs more than once in a row of ``ids`` has the rank of its first occurrence.
    """
    found, true = _as_ids(ids, "ids"), _as_ids(truth, "truth")
    if found.ndim != 2 or true.ndim != 2 or len(found) != len(true) or len(found) == 0:
        raise DataError(
            f"ids and truth must be matrices with a row for each of the same queries, got shapes {found.shape} and "
            f"{true.shape}; search with the queries that the truth was computed for"
        )
    true = _as_truth(true, k)
    within = found.shape[1] if depth is None else as_count("depth", depth, found.shape[1], "the columns of ids")
    before = np.full(true.shape, within, dtype=np.int64)
    tasks = [(found, within, true, *rows, before) for rows in _blocks(len(found), _QUERIES_PER_TASK)]
    run_tasks(_find, tasks)
    return Ranks(before, np.ones_like(before), within)


def ranks_with_ties(query_codes: Codes, base_codes: Codes, truth: Any, k: SupportsIndex) -> Ranks:
    """Ranks of the first ``k`` true neighbours of each query by Hamming distance, with their groups of ties."""
    check_codes(query_codes, base_codes)
    true = _as_truth(truth, k)
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
    blocks = _blocks(len(true), _TIED_QUERIES_PER_TASK)
    run_tasks(_count, [(queries, columns, base_codes.n_bits, true, *rows, before, size) for rows in blocks])
    return Ranks(before, size, len(base_codes))


def _blocks(n: int, rows: int) -> list[tuple[int, int]]:
    return [(start, min(start + rows, n)) for start in range(0, n, rows)]


def _as_truth(truth: Any, k: SupportsIndex) -> npt.NDArray[np.int64]:
    """Give the first ``k`` columns of a matrix of true neighbours. No row may hold an id twice."""
    true = _as_ids(truth, "truth")
    if true.ndim != 2:
        raise DataError(f"truth must be a matrix with a row for each query, got shape {true.shape}")
    k = as_count("k", k, true.shape[1], "the columns of truth")
    first = np.ascontiguousarray(true[:, :k], dtype=np.int64)
    ordered = np.sort(first, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    if twice.any():
        row = int(twice.argmax())
        again = int(ordered[row, 1:][ordered[row, 1:] == ordered[row, :-1]][0])
        raise DataError(
            f"the {k} true neighbours of a query must be different points, got {again} more than once in row {row} of "
            "truth; compute it with ground_truth"
        )
    return first


def _as_ids(values: Any, name: str) -> npt.NDArray[Any]:
    try:
        ids = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name} cannot be read as a matrix: {error}; pass rows of equal length") from error
    if ids.size and ids.dtype.kind not in "iu":
        raise DataTypeError(f"{name} must hold whole numbers, got {ids.dtype}; pass ids as a search returns them")
    return ids if ids.dtype in (np.int32, np.int64) else ids.astype(np.int64)


@kernel
def _find(ids: Any, depth: int, truth: Any, first: int, last: int, before: Any) -> None:
    """Write for each true neighbour how many ids are before it.

    Most ids are not true neighbours, and a lookup in a small bitmap dismisses nearly all of them. The others are
    looked up in a hash table with open addressing.
    """
    k = truth.shape[1]
    bits = 4
    while 1 << bits < 4 * k:
        bits += 1
    table = np.empty(1 << bits, dtype=np.int64)
    marks = np.zeros(1 << (bits + _MARK_BITS), dtype=np.uint8)
    for q in range(first, last):
        table[:] = -1
        for t in range(k):
            mark = _hash(truth[q, t], bits + _MARK_BITS)
            marks[mark] = 1
            slot = mark >> _MARK_BITS
            while table[slot] >= 0:
                slot = (slot + 1) & (table.shape[0] - 1)
            table[slot] = t
        missing = k
        for i in range(depth):
            mark = _hash(ids[q, i], bits + _MARK_BITS)
            if marks[mark]:
                slot = mark >> _MARK_BITS
                while table[slot] >= 0:
                    t = table[slot]
                    if truth[q, t] == ids[q, i]:
                        if before[q, t] == depth:
                            before[q, t] = i
                            missing -= 1
                        break
                    slot = (slot + 1) & (table.shape[0] - 1)
                if missing == 0:
                    break
        for t in range(k):
            marks[_hash(truth[q, t], bits + _MARK_BITS)] = 0


@kernel
def _hash(number: Any, bits: int) -> Any:
    """Hash a number to some bits. Close numbers and multiples of a power of two get different hashes."""
    return np.int64((np.uint64(np.int64(number)) * _GOLDEN) >> np.uint64(64 - bits))


@kernel
def _count(queries: Any, columns: Any, n_bits: int, truth: Any, first: int, last: int, before: Any, size: Any) -> None:
    """Count the codes at each distance from a query, and from that the codes before and beside each true neighbour."""
    n = columns.shape[1]
    # Successive codes often have the same distance. Several counters avoid waiting for the previous addition.
    counts = np.zeros((last - first, _COUNTERS, n_bits + 1), dtype=np.int64)
    distances = np.empty(_CODES_PER_BLOCK, dtype=np.uint64)
    for start in range(0, n, _CODES_PER_BLOCK):
        codes = min(_CODES_PER_BLOCK, n - start)
        for q in range(first, last):
            _distances(queries, q, columns, start, codes, distances)
            table = counts[q - first]
            for c in range(codes):
                table[c & (_COUNTERS - 1), np.int64(distances[c])] += 1
    for q in range(first, last):
        nearer = np.zeros(n_bits + 2, dtype=np.int64)
        for distance in range(n_bits + 1):
            nearer[distance + 1] = nearer[distance] + counts[q - first, :, distance].sum()
        for t in range(truth.shape[1]):
            own = np.int64(0)
            for w in range(columns.shape[0]):
                own += np.int64(popcount(columns[w, truth[q, t]] ^ queries[q, w]))
            before[q, t] = nearer[own]
            size[q, t] = nearer[own + 1] - nearer[own]


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
