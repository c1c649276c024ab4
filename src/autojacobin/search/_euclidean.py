"""Euclidean distances to vectors where they lie.

Vectors are read in place, whatever numbers they are kept as, and every sum is taken in float64 from the same float32
or float64 values, so the distances are those of converted copies. Where vectors and queries are whole numbers from 0 to
255 it is taken in whole numbers (``_byte_gaps.py``): float64 holds such sums exactly too, so it is the same one in a
quarter of the time. Where only the nearest are wanted, float32 tells which vectors need not be measured so well
(``_estimates.py``). The rows that come next are asked of the memory ahead of time: candidates lie anywhere, and waiting
for them took two thirds of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.compilation import kernel, use_wide_registers
from autojacobin.search._ahead import ask_ahead
from autojacobin.search._byte_gaps import BYTES_AT_ONCE, LONGEST, squared_gaps
from autojacobin.search._estimates import are_estimated, estimate

__all__ = ["is_read_in_place", "measure"]

_IN_PLACE = frozenset(np.dtype(name) for name in ("uint8", "float16", "float32", "float64"))
_HALF_UNIT = np.float32(2.0**112)  # from the exponents of float16, moved up by 13 bits, to those of float32


def is_read_in_place(vectors: Any) -> bool:
    """Tell whether :func:`measure` takes such vectors; others are converted first."""
    return bool(vectors.dtype in _IN_PLACE and vectors.dtype.isnative and vectors.flags.c_contiguous)


def measure(queries: Any, vectors: Any, rows: Any, squared: Any, wanted: int | None = None) -> None:
    """Write the squared distance of each query to each of its ``rows`` of ``vectors``; rows below 0 are left out.

    ``queries`` are float32 or float64, ``rows`` and ``squared`` have a row for each of them. Where only the ``wanted``
    nearest of each query matter, something larger than their distances may be written for the others.
    """
    if vectors.dtype == np.uint8 and queries.shape[1] <= LONGEST and _are_bytes(queries):
        _measure_bytes(queries.astype(np.int16), vectors, rows, squared)
    elif wanted is not None and are_estimated(vectors, rows, wanted):
        undecided = estimate(queries, vectors, rows, wanted, squared)
        exact = np.empty(undecided.rows.shape)
        _measure_floats(queries, vectors, undecided.rows, exact)
        undecided.put_back(exact, squared)
    else:
        _measure_floats(queries, vectors, rows, squared)


def _measure_floats(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    if vectors.dtype == np.float16:
        _measure_halves(queries, vectors.view(np.uint16), rows, squared)
    else:
        _measure(queries, vectors, rows, squared)


def _are_bytes(queries: Any) -> bool:
    """Tell whether floats are whole numbers from 0 to 255, as they are where the queries came as bytes."""
    return bool(np.all((queries >= 0) & (queries <= 255) & (queries == np.floor(queries))))


@kernel
def _measure_bytes(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    use_wide_registers()
    width = np.uint64(queries.shape[1])
    rest = width - width % np.uint64(BYTES_AT_ONCE)
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.int64(rows[q, c])
                total = np.int64(squared_gaps(queries, q, vectors, row))
                for j in range(rest, width):
                    gap = np.int64(queries[q, j]) - np.int64(vectors[np.uint64(row), j])
                    total += gap * gap
                squared[q, c] = total


@kernel(reassociate=True)
def _measure(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    use_wide_registers()
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.uint64(rows[q, c])  # numba need not look whether it counts from the end
                total = 0.0
                for j in range(queries.shape[1]):
                    gap = np.float64(queries[q, j]) - np.float64(vectors[row, j])
                    total += gap * gap
                squared[q, c] = total


@kernel(reassociate=True)
def _measure_halves(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    """Vectors of float16, given as their bits, for numba does not know these numbers."""
    use_wide_registers()
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.uint64(rows[q, c])
                total = 0.0
                for j in range(queries.shape[1]):
                    bits = np.uint32(vectors[row, j])
                    size = np.uint32((bits & np.uint32(0x7FFF)) << np.uint32(13)).view(np.float32) * _HALF_UNIT
                    size = size if size < np.float32(65536.0) else np.float32(np.inf)
                    value = -size if bits & np.uint32(0x8000) else size
                    gap = np.float64(queries[q, j]) - np.float64(value)
                    total += gap * gap
                squared[q, c] = total
