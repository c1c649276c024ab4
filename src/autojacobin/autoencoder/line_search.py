"""Strong Wolfe line search, as in minFunc: bracket a step, then zoom in with cubic interpolation.

Nothing in this file knows about networks. A line is a function φ(t) with a slope φ'(0) < 0. The search looks for a step
t > 0 with

    φ(t) ≤ φ(0) + c1 t φ'(0)        (sufficient decrease)
    |φ'(t)| ≤ c2 |φ'(0)|            (curvature)

and returns the lowest point that it has evaluated if it does not find one. It never returns a point above φ(0).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_C1, _C2 = 1e-4, 0.9
_MOST_EVALUATIONS, _LEAST_DECREASE = 25, 1e-9


@dataclass(frozen=True)
class LinePoint:
    """A point of the line: the step ``t``, ``value`` φ(t), ``slope`` φ'(t), and a ``payload`` for the caller."""

    t: float
    value: float
    slope: float
    payload: Any = None

    @property
    def usable(self) -> bool:
        """Whether value and slope are both finite."""
        return math.isfinite(self.value) and math.isfinite(self.slope)


def strong_wolfe(line: Callable[[float], LinePoint], start: LinePoint, first_step: float) -> tuple[LinePoint, int]:
    """Find a step that meets the strong Wolfe conditions, and give the number of evaluations.

    ``line`` evaluates φ and φ' at a step; NaN and infinity mean that the step is too long. ``start`` is the point at t
    = 0, whose slope must be negative, and is the result if nothing lower is found. The search ends after 25 calls of
    ``line``, or when slope times width of the interval promises a decrease below 1e-9.
    """
    if not (start.usable and start.slope < 0 and first_step > 0 and math.isfinite(first_step)):
        return start, 0
    search = _Search(line, start)
    bracket = search.bracket(first_step)
    if bracket is not None:
        search.zoom(*bracket)
    return search.best, search.evaluations


class _Search:
    def __init__(self, line: Callable[[float], LinePoint], start: LinePoint) -> None:
        self.line, self.start, self.best, self.evaluations = line, start, start, 0

    def evaluate(self, t: float) -> LinePoint:
        point = self.line(t)
        self.evaluations += 1
        if point.usable and (point.value < self.best.value or self.accepts(point)):
            # An accepted point ends the search. It may replace a lower one that fails the curvature condition.
            self.best = point
        return point

    def decreases(self, point: LinePoint) -> bool:
        return point.value <= self.start.value + _C1 * point.t * self.start.slope

    def accepts(self, point: LinePoint) -> bool:
        flat_enough = abs(point.slope) <= _C2 * -self.start.slope
        return point.t > 0 and self.decreases(point) and flat_enough

    def bracket(self, t: float) -> tuple[LinePoint, LinePoint] | None:
        """Lengthen the step until a point is accepted (None) or an interval must contain such a point."""
        previous = self.start
        while self.evaluations < _MOST_EVALUATIONS:
            point = self.evaluate(t)
            if not point.usable:
                return previous, point
            if self.accepts(point):
                return None
            if not self.decreases(point) or (previous.t > 0 and point.value >= previous.value):
                return previous, point
            if point.slope >= 0:
                return point, previous
            low, high = point.t + 0.01 * (point.t - previous.t), 10 * point.t
            previous, t = point, _cubic_minimum(previous, point, low, high)
        return None

    def zoom(self, low: LinePoint, high: LinePoint) -> None:
        """Shrink the interval. ``low`` is the end with the lower value; φ decreases from there into the interval."""
        stalled = False
        while self.evaluations < _MOST_EVALUATIONS:
            left, right = sorted((low.t, high.t))
            width = right - left
            if not high.usable:
                t = 0.5 * (left + right)  # one end has no value to interpolate
            else:
                t = _cubic_minimum(low, high, left, right)
                # The second trial in a row next to an end, or one outside, is moved a tenth of the interval inwards.
                near = min(right - t, t - left) < 0.1 * width
                if near and (stalled or t >= right or t <= left):
                    t = right - 0.1 * width if abs(t - right) < abs(t - left) else left + 0.1 * width
                    near = False
                stalled = near
            if not left < t < right:
                return  # there is no floating-point number inside the interval
            point = self.evaluate(t)
            if self.accepts(point):
                return
            if not point.usable or not self.decreases(point) or point.value >= low.value:
                high = point
            else:
                if point.slope * (high.t - low.t) >= 0:
                    high = low
                low = point
            if low.t > 0 and abs(low.slope) * abs(high.t - low.t) < _LEAST_DECREASE:
                return


def _cubic_minimum(p: LinePoint, q: LinePoint, low: float, high: float) -> float:
    """Minimiser within [low, high] of the cubic that has the values and slopes of ``p`` and ``q``."""
    if p.t > q.t:
        p, q = q, p
    width = q.t - p.t
    middle = 0.5 * (low + high)
    if width <= 0:
        return middle
    bend = p.slope + q.slope - 3 * (q.value - p.value) / width
    square = bend * bend - p.slope * q.slope
    if not square >= 0 or not math.isfinite(square):
        return middle
    root = math.sqrt(square)
    denominator = q.slope - p.slope + 2 * root
    if denominator == 0:
        return middle
    t = q.t - width * ((q.slope + root - bend) / denominator)
    return min(max(t, low), high) if math.isfinite(t) else middle
