"""Leading eigenvalues and eigenvectors of a symmetric tridiagonal matrix T, each by itself but all side by side.

The number of negative pivots of T − x is the number of eigenvalues below x, so each eigenvalue can be closed in upon by
halving an interval. An eigenvector then solves (T − λ) z = 0: eliminating from above down to a row k and from below up
to it leaves a single number γ there, and where that is smallest, z is 1 at k and follows from row to row on either
side. Its residual is γ / ‖z‖, and λ + γ / ‖z‖² is its Rayleigh quotient, a far better λ (Dhillon and Parlett's twisted
factorisation).

All of it runs in float64 whatever the matrix was reduced in. Then vectors are orthogonal to one another to about
residual over gap, with nothing done for it, where the gaps between eigenvalues are not tiny; where they are, the caller
is told so. Every step is done for all eigenvalues at once, which is what vector registers are for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._compile import kernel, use_wide_registers

__all__ = ["find_leading"]

_HALVINGS = 26
_MOST_REFINEMENTS = 4
_LARGEST_ANGLE = 1e-6
# Eigenvectors fade away from their twist, down to numbers so small that a processor takes ten times as long on them.
# What is written down ends earlier than what is followed: entries may pass near zero and grow again.
_SMALLEST_ENTRY, _SMALLEST_FOLLOWED = 1e-14, 1e-200


@kernel(divides_by_zero=True)
def _close_in(d: Any, squares: Any, bound: float, tiny: float, values: Any) -> None:
    """Write the largest eigenvalues, descending, to within 3e-8 of ``bound``, which none exceeds, or less."""
    use_wide_registers()
    n, r = d.shape[0], values.shape[0]
    low, high, x, pivots = np.full(r, -bound), np.full(r, bound), np.empty(r), np.empty(r)
    below = np.empty(r, dtype=np.int64)
    for halving in range(_HALVINGS):
        for j in range(r):
            # first a grid for all of them in common, denser where most eigenvalues are
            x[j] = bound * ((j + 1) / (r + 1)) ** 3 if halving == 0 else 0.5 * (low[j] + high[j])
            pivots[j] = d[0] - x[j]
            below[j] = 1 if pivots[j] < 0 else 0
        for i in range(1, n):
            for j in range(r):
                pivot = -tiny if abs(pivots[j]) < tiny else pivots[j]
                pivot = (d[i] - x[j]) - squares[i - 1] / pivot
                pivots[j] = pivot
                below[j] += 1 if pivot < 0 else 0
        for j in range(r):
            if halving == 0:
                for other in range(r):
                    if below[other] <= n - 1 - j:
                        low[j] = max(low[j], x[other])
                    else:
                        high[j] = min(high[j], x[other])
            elif below[j] <= n - 1 - j:
                low[j] = x[j]
            else:
                high[j] = x[j]
    for j in range(r):
        values[j] = 0.5 * (low[j] + high[j])


@kernel(divides_by_zero=True)
def _eigenvectors(
    d: Any, e: Any, tiny: float, values: Any, residuals: Any, vectors: Any, down: Any, up: Any, pivots: Any
) -> None:
    """Write an eigenvector for each of ``values``, which are refined, and its residual.

    ``pivots``, ``down`` and ``up`` (n, r) are room: for the elimination from above, and for the factors by which an
    entry follows from the one below it or above it.
    """
    use_wide_registers()
    n, r = vectors.shape
    left_over, gamma, entry, squared = np.empty(r), np.empty(r), np.empty(r), np.empty(r)
    twist = np.empty(r, dtype=np.int64)
    for j in range(r):
        pivots[0, j] = d[0] - values[j]
    for i in range(1, n):
        for j in range(r):
            pivot = -tiny if abs(pivots[i - 1, j]) < tiny else pivots[i - 1, j]
            down[i - 1, j] = e[i - 1] / pivot
            pivots[i, j] = (d[i] - values[j]) - e[i - 1] * down[i - 1, j]
    for j in range(r):
        left_over[j] = d[n - 1] - values[j]
        gamma[j] = pivots[n - 1, j]
        twist[j] = n - 1
    for i in range(n - 2, -1, -1):
        for j in range(r):
            pivot = -tiny if abs(left_over[j]) < tiny else left_over[j]
            up[i + 1, j] = e[i] / pivot
            through = e[i] * up[i + 1, j]
            left_over[j] = (d[i] - values[j]) - through
            at_twist = pivots[i, j] - through
            nearer = abs(at_twist) < abs(gamma[j])
            gamma[j] = at_twist if nearer else gamma[j]
            twist[j] = i if nearer else twist[j]
    for j in range(r):
        entry[j] = 1.0 if twist[j] == n - 1 else 0.0
        squared[j] = entry[j]
        vectors[n - 1, j] = entry[j]
    for i in range(n - 2, -1, -1):
        for j in range(r):
            z = -down[i, j] * entry[j]
            z = z if abs(z) > _SMALLEST_FOLLOWED else 0.0
            z = 1.0 if i == twist[j] else z  # entries below the twist are still 0 here
            entry[j] = z
            squared[j] += z * z
            vectors[i, j] = z if abs(z) > _SMALLEST_ENTRY else 0.0
    for j in range(r):
        entry[j] = 0.0
    for i in range(1, n):
        for j in range(r):
            z = -up[i, j] * (1.0 if i - 1 == twist[j] else entry[j])
            z = z if abs(z) > _SMALLEST_FOLLOWED else 0.0
            entry[j] = z
            squared[j] += z * z
            vectors[i, j] += z if abs(z) > _SMALLEST_ENTRY else 0.0
    for j in range(r):
        residuals[j] = abs(gamma[j]) / np.sqrt(squared[j])
        values[j] += gamma[j] / squared[j]
    for j in range(r):
        squared[j] = 1 / np.sqrt(squared[j])
    for i in range(n):
        for j in range(r):
            vectors[i, j] *= squared[j]


@kernel(divides_by_zero=True)
def find_leading(diagonal: Any, beside: Any, values: Any, vectors: Any) -> bool:
    """Write the largest eigenvalues, descending, and their eigenvectors as columns (n, r), as many as have room.

    Gives False where eigenvalues lie too close together to tell their eigenvectors apart.
    """
    n, r = vectors.shape
    d, e = diagonal.astype(np.float64), beside.astype(np.float64)
    bound = 0.0
    for i in range(n):
        outside = abs(d[i]) + (abs(e[i - 1]) if i > 0 else 0.0) + (abs(e[i]) if i < n - 1 else 0.0)
        if not np.isfinite(outside):
            return False
        bound = max(bound, outside * (1 + 1e-12))
    if bound == 0:
        return False
    rounding = bound * np.finfo(np.float64).eps
    tiny = rounding * np.finfo(np.float64).eps
    found, residuals = np.empty(r), np.empty(r)
    _close_in(d, e * e, bound, tiny, found)
    down, up, pivots = np.empty((n, r)), np.empty((n, r)), np.empty((n, r))
    for _ in range(_MOST_REFINEMENTS):
        _eigenvectors(d, e, tiny, found, residuals, vectors, down, up, pivots)
        apart = True
        for j in range(r):
            above = found[j - 1] - found[j] if j > 0 else np.inf
            below = found[j] - found[j + 1] if j < r - 1 else np.inf
            # what rounding alone may leave counts too: equal eigenvalues can have no residual at all
            apart = apart and residuals[j] + rounding <= _LARGEST_ANGLE * min(above, below)
        if apart:
            for j in range(r):
                values[j] = found[j]
            return True
    return False
