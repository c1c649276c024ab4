"""Which of the candidates may be among the k nearest: squared distances in float32, with a bound on their error.

An estimate is a sum of D squares, none below zero. Each difference and each square is rounded once and then takes part
in at most D - 1 sums, whatever their order, so the estimate errs by about (D + 2) 2⁻²⁴ of the distance itself at most.
Twice that is allowed for, which covers the roundings of float64 too, and something tiny for squares below the smallest
numbers of float32. Queries of float64 are moved to the nearest float32 numbers first; no distance changes by more than
the query moves. So the k-th smallest estimate proves that k vectors are within some reach, and a vector whose estimate
is above the limit that follows from it is strictly farther than these. All others are to be measured again. Estimates
that are not finite say nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel, use_wide_registers
from autojacobin.search._ahead import ask_ahead, ask_for_row
from autojacobin.search._heaps import upper_limit
from autojacobin.search._single_gaps import SINGLES_AT_ONCE, single_gap, single_squares

__all__ = ["Undecided", "are_estimated", "estimate"]

_NARROW = frozenset(np.dtype(name) for name in ("uint8", "float16", "float32"))
_FEWEST_PER_WANTED = 4  # where a larger share is wanted, little is left to be saved
_FEWEST_NUMBERS = 2**18  # less is measured sooner than it is sifted
_ROOM_PER_WANTED = 2
_LONGEST = 2**20  # numbers a vector, up to which the bound stays below an eighth
_UNIT, _TINY = 2.0**-24, 2.0**-120


@dataclass(frozen=True)
class Undecided:
    """Candidates that may be among the nearest: their rows, filled up with -1, and their places among all."""

    rows: npt.NDArray[np.int64]
    places: npt.NDArray[np.int32]

    def put_back(self, values: npt.NDArray[np.float64], squared: npt.NDArray[np.float64]) -> None:
        """Write what was measured of ``rows`` over their estimates."""
        _put_back(values, self.rows, self.places, squared)


def are_estimated(vectors: Any, rows: Any, wanted: int) -> bool:
    """Tell whether estimates can be had of such vectors, and are worth it for the ``wanted`` nearest of ``rows``."""
    width = vectors.shape[1]
    if vectors.dtype not in _NARROW or not vectors.flags.c_contiguous or width > _LONGEST or wanted > rows.shape[1]:
        return False
    there = np.count_nonzero(rows >= 0)
    return bool(there >= _FEWEST_PER_WANTED * wanted * len(rows) and there * width >= _FEWEST_NUMBERS)


def estimate(queries: Any, vectors: Any, rows: Any, wanted: int, squared: Any) -> Undecided:
    """Write estimates of the squared distances to ``rows``, and give those of which ``wanted`` are the nearest.

    The estimates of all others are larger than ``wanted`` of the distances. Rows below 0 are left out.
    """
    singles, moved = _as_singles(queries)
    numbers = vectors.view(np.uint16) if vectors.dtype == np.float16 else vectors
    _estimate(singles, numbers, rows, squared)
    error, tiny = 2 * (vectors.shape[1] + 8) * _UNIT, (vectors.shape[1] + 8) * _TINY
    room, most = 0, _ROOM_PER_WANTED * wanted
    while most > room:  # a second time only where very many are equally far
        room = min(most, rows.shape[1])
        chosen, places = np.full((len(rows), room), -1, dtype=np.int64), np.empty((len(rows), room), dtype=np.int32)
        most = _sift(numbers, rows, squared, moved, error, tiny, wanted, chosen, places)
    return Undecided(chosen, places)


def _as_singles(queries: Any) -> tuple[Any, Any]:
    """Queries as float32, and how far each of them moved at most."""
    if queries.dtype == np.float32:
        return np.ascontiguousarray(queries), np.zeros(len(queries))
    with np.errstate(all="ignore"):  # what is beyond float32 moves by infinity
        singles = np.ascontiguousarray(queries, dtype=np.float32)
        return singles, np.sqrt(np.square(queries - singles).sum(axis=1)) * (1 + 2.0**-20)


@kernel
def _estimate(queries: Any, vectors: Any, rows: Any, squared: Any) -> None:
    use_wide_registers()
    width = np.uint64(queries.shape[1])
    rest = width - width % np.uint64(SINGLES_AT_ONCE)
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            ask_ahead(vectors, rows, q, c)
            if rows[q, c] >= 0:
                row = np.int64(rows[q, c])
                total = single_squares(queries, q, vectors, row)
                for j in range(rest, width):
                    gap = single_gap(queries[q, j], vectors[np.uint64(row), j])
                    total += gap * gap
                squared[q, c] = total


@kernel
def _sift(
    vectors: Any, rows: Any, squared: Any, moved: Any, error: float, tiny: float, wanted: int, chosen: Any, places: Any
) -> int:
    """Write the candidates that may be among the wanted, as far as there is room, and ask the memory for their rows.

    Gives the most that a query has.
    """
    use_wide_registers()
    near, near_places = np.empty((1, wanted)), np.empty((1, wanted), dtype=np.int64)
    values = np.empty((1, rows.shape[1]), dtype=np.float32)
    most = 0
    for q in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            values[0, c] = squared[q, c] if rows[q, c] >= 0 else np.inf
        reach = math.sqrt(upper_limit(values, 0, wanted, near, near_places) * (1 + error) + tiny)
        limit = ((reach + 2 * moved[q]) ** 2 + tiny) / (1 - error)
        count = 0
        for c in range(rows.shape[1]):
            value = np.float64(values[0, c])
            if (value <= limit or not value < np.inf) and rows[q, c] >= 0:
                if count < chosen.shape[1]:
                    chosen[q, count], places[q, count] = rows[q, c], c
                    ask_for_row(vectors, rows[q, c])
                count += 1
        most = max(most, count)
    return most


@kernel
def _put_back(values: Any, rows: Any, places: Any, squared: Any) -> None:
    for q in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            if rows[q, i] >= 0:
                squared[q, places[q, i]] = values[q, i]
