"""Which points may be among the k nearest: a matrix product in float32, with a bound on its error.

The squared distance of a query q to a point x is |q|² + 2 V, with V = |x|²/2 − q·x, so V orders the points. Its
float32 value errs by at most c (|x|² + |q|²), where c is about D·2⁻²⁴: each of the D products and sums is rounded once,
whatever their order, and |q·x| ≤ (|x|² + |q|²)/2. Kept of each point are

    low = |x|²/2 − c |x|² − q·x        and        high = low + 2 c |x|² + 2 c |q|²,

so that the k-th smallest ``high`` so far, the limit of the query, is a proof: a point whose ``low`` is above it has k
points strictly nearer. Points at or below the limit are candidates, to be measured again without error. Vectors of
small whole numbers make every sum exact in float32; then c is 0, and of points at the limit the first ones stay.

The bound is relative to the norms, so both sides are moved towards the origin first (:class:`Frame`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.compilation import kernel

__all__ = ["Candidates", "Frame", "error_factor", "keep_near"]

_UNIT = 2.0**-24  # the largest relative error of a rounding to float32
_EXACT_BELOW = 2.0**24  # whole numbers up to here are float32 numbers
_WILD_ABOVE = 2.0**100  # squared norms, in units of the frame; float32 ends at 2^128
_ROWS_SAMPLED = 2048


def error_factor(width: int) -> float:
    """Give c for vectors of ``width`` numbers, a tenth larger than the sum of all roundings."""
    roundings = (width + 16) * _UNIT
    return 1.1 * roundings / (1 - roundings)


@dataclass(frozen=True)
class Frame:
    """Where the screening puts its origin, and its unit of length: a power of two, so that scaling rounds nothing."""

    origin: npt.NDArray[Any]
    exponent: int
    whole: bool

    @classmethod
    def around(cls, base: Any, queries: Any) -> Frame:
        """Frame of a base: the mean and the size of a sample. Any frame gives the same answer, more or less fast."""
        sample = base[np.unique(np.linspace(0, len(base) - 1, min(len(base), _ROWS_SAMPLED)).astype(np.int64))]
        whole = sample.dtype.kind in "biu" and queries.dtype.kind in "biu"
        wide = max(_wide(sample), _wide(queries))
        with np.errstate(over="ignore", invalid="ignore"):
            mean = sample.mean(axis=0, dtype=np.float64)
            origin = np.rint(mean) if whole else mean
            origin = np.where(np.isfinite(origin), origin, 0.0).astype(np.float64 if wide else np.float32)
            largest = float(np.abs(sample.astype(np.float64) - origin).max(initial=0.0))
        usual = whole or largest == 0 or not np.isfinite(largest)
        return cls(origin, 0 if usual else -int(np.frexp(largest)[1]), whole)

    def place(self, vectors: Any) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Vectors and squared norms as float32; those too far out for it become zeros with an infinite norm."""
        with np.errstate(over="ignore", invalid="ignore", under="ignore"):
            placed = np.subtract(vectors, self.origin, dtype=self.origin.dtype)
            if self.exponent:
                placed = np.ldexp(placed, self.exponent)
            placed = np.ascontiguousarray(placed, dtype=np.float32)
            norms = np.einsum("ij,ij->i", placed, placed)
        wild = ~(norms <= _WILD_ABOVE)
        if wild.any():
            placed[wild], norms[wild] = 0, np.inf
        return placed, norms


def _wide(array: Any) -> bool:
    return bool(array.dtype.itemsize > (4 if array.dtype.kind == "f" else 2))


class Candidates:
    """Points that may be among the ``k`` nearest of each of some queries, in order of id."""

    def __init__(self, frame: Frame, queries: Any, k: int) -> None:
        self.queries, norms = frame.place(queries)
        self.k = k
        self.capacity = self.capacity_for(k)
        self.factor = error_factor(queries.shape[1])
        self.exact = frame.whole
        self.largest = float(norms.max(initial=0.0))
        # What underflows is lost in absolute terms, and far less than this.
        underflow = queries.shape[1] * 2.0**-140
        with np.errstate(over="ignore"):
            self.slack = (2.1 * self.factor * norms.astype(np.float64) + underflow).astype(np.float32)
        n = len(queries)
        self.limits = np.full(n, np.inf, dtype=np.float32)
        self.counts = np.zeros(n, dtype=np.int64)
        self.low = np.empty((n, self.capacity), dtype=np.float32)
        self.high = np.empty((n, self.capacity), dtype=np.float32)
        self.ids = np.empty((n, self.capacity), dtype=np.int64)

    @staticmethod
    def capacity_for(k: int) -> int:
        """Candidates of a query that there is room for: enough that clearing away is rare."""
        return 2 * k + 1024

    def bounds(self, norms: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Give, for points with these squared norms, low + q·x and the part of high − low that is theirs."""
        largest = float(norms.max(initial=0.0))
        if self.exact and not (largest + 2 * math.sqrt(largest) * math.sqrt(self.largest) <= _EXACT_BELOW):
            self._stop_being_exact()
        if self.exact:
            return norms * np.float32(0.5), np.zeros_like(norms)
        with np.errstate(over="ignore", invalid="ignore"):
            lowered = ((0.5 - self.factor) * norms.astype(np.float64)).astype(np.float32)
            spread = (2.1 * self.factor * norms.astype(np.float64)).astype(np.float32)
        lowered[np.isinf(norms)] = -np.inf  # too far out for float32: always a candidate, and never a proof
        return lowered, spread

    def of(self, row: int) -> npt.NDArray[np.int64]:
        """Ids of the candidates of a query, no more than are needed, in ascending order."""
        if self.counts[row] > self.k:
            self.limits[row], self.counts[row] = clear_away(
                self.k, self.exact, row, self.limits[row], self.counts[row], self.low, self.high, self.ids
            )
        ids: npt.NDArray[np.int64] = self.ids[row, : self.counts[row]]
        return ids

    def _stop_being_exact(self) -> None:
        self.exact = False
        with np.errstate(over="ignore", invalid="ignore"):  # what stands beyond the counts is not initialised
            self.high += self.slack[:, None]
        self.limits += self.slack


@kernel
def keep_near(
    dots: Any, lowered: Any, spread: Any, first: int, exact: bool, k: int, rows_from: int, rows_to: int,
    slack: Any, limits: Any, counts: Any, low: Any, high: Any, ids: Any, reached: Any,
) -> None:  # fmt: skip
    """Take the columns of ``dots`` that may be near into the candidates of the rows ``rows_from`` to ``rows_to``.

    ``first`` is the id of column 0. ``reached`` says at which column each row goes on, and afterwards how far it came:
    not to the end if more candidates remain than there is room for, all within the error of the limit.
    """
    columns = dots.shape[1]
    capacity = ids.shape[1]
    for q in range(rows_from, rows_to):
        limit, count, column = limits[q], counts[q], reached[q]
        stuck = False
        while column < columns and not stuck:
            end = min(column + 64, columns)
            near = False
            # Numba takes negative indices for counted from the end, and only unsigned ones leave a loop to vectorise.
            for j in range(np.uint64(column), np.uint64(end)):
                near |= lowered[j] - dots[q, j] <= limit
            if near:
                while column < end:
                    value = lowered[column] - dots[q, column]
                    if value < limit or (value == limit and not exact):
                        if count == capacity:
                            limit, count = clear_away(k, exact, q, limit, count, low, high, ids)
                            stuck = count > (k + capacity) // 2
                            if stuck:
                                break
                            continue  # the limit has moved, so the point is judged again
                        low[q, count] = value
                        high[q, count] = np.inf
                        if value > -np.inf:
                            high[q, count] = value if exact else value + (spread[column] + slack[q])
                        ids[q, count] = first + column
                        count += 1
                    column += 1
            else:
                column = end
        limits[q], counts[q], reached[q] = limit, count, column


@kernel
def clear_away(k: int, exact: bool, q: int, limit: Any, count: int, low: Any, high: Any, ids: Any) -> Any:
    """Lower the limit to the k-th smallest ``high``, and keep the candidates that may still be near, in their order."""
    limit = min(limit, np.partition(high[q, :count], k - 1)[k - 1])
    room = k
    if exact:
        for c in range(count):
            room -= low[q, c] < limit
    left = 0
    for c in range(count):
        if low[q, c] < limit or (low[q, c] == limit and (not exact or room > 0)):
            if exact and low[q, c] == limit:
                room -= 1
            low[q, left], high[q, left], ids[q, left] = low[q, c], high[q, c], ids[q, c]
            left += 1
    return limit, left
