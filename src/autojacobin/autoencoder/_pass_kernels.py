"""The passes of ``_passes.py`` for arrays on a CPU, compiled."""

from __future__ import annotations

from typing import Any

from autojacobin._compile import kernel, use_wide_registers

__all__ = ["add_pairs", "close_trace", "fill_line", "follow_line", "make_pairs", "open_trace"]


@kernel
def make_pairs(rows: Any, first: int, weights: Any, out: Any) -> None:
    use_wide_registers()
    height, width = weights.shape
    for i in range(rows.shape[0]):
        row = rows[i, first:]  # a view, for an index with a sum in it may be negative, and is not vectorised
        for n in range(height):
            factor, weight, entries = row[n], weights[n], out[i, n]
            for m in range(width):
                entries[m] = factor * row[m] * weight[m]


@kernel(reassociate=True)
def add_pairs(panel: Any, rows: Any, first: int, weights: Any, sums: Any, per_weight: Any) -> None:
    use_wide_registers()
    height, width = weights.shape
    for i in range(rows.shape[0]):
        row, sum_of_row = rows[i, first:], sums[i, first:]
        for n in range(height):
            factor, weight, entries = row[n], weights[n], panel[i, n]
            total = factor * 0
            for m in range(width):
                entry = entries[m] * weight[m]
                total += entry * row[m]
                sum_of_row[m] += entry * factor
            sum_of_row[n] += total
            if per_weight.shape[0] > 0:
                collected = per_weight[n]
                for m in range(width):
                    collected[m] += entries[m] * factor * row[m]


@kernel
def open_trace(U: Any, V: Any, g: Any, per_g: Any) -> None:
    use_wide_registers()
    for i in range(U.shape[0]):
        slopes, collected = g[i], per_g[i]
        collected[:] = 0
        for k in range(U.shape[1]):
            left, right = U[i, k], V[i, k]
            for n in range(U.shape[2]):
                entry = right[n]
                collected[n] += left[n] * entry
                right[n] = entry * slopes[n]


@kernel(reassociate=True)
def close_trace(Q: Any, g: Any, a: Any, W2: Any, per_a: Any, per_W2: Any) -> None:
    use_wide_registers()
    for i in range(Q.shape[0]):
        slopes = g[i]
        for j in range(Q.shape[1]):
            factor, entries, weight, collected = a[i, j], Q[i, j], W2[j], per_W2[j]
            total = factor * 0
            for n in range(Q.shape[2]):
                entry = entries[n] * slopes[n]
                total += entry * weight[n]
                collected[n] += factor * entry
            per_a[i, j] = total


@kernel
def fill_line(E: Any, R: Any, W2: Any, S2: Any) -> None:
    use_wide_registers()
    for i in range(E.shape[0]):
        for j in range(E.shape[2]):
            constant, linear, square, turned = E[i, 0, j], E[i, 1, j], E[i, 2, j], R[i, j]
            weight, step = W2[j], S2[j]
            for n in range(E.shape[3]):
                start, change = constant[n], turned[n]
                constant[n] = weight[n] * start
                linear[n] = step[n] * start + weight[n] * change
                square[n] = step[n] * change


@kernel(reassociate=True)
def follow_line(E: Any, g: Any, powers: Any, along: Any, per_g: Any) -> None:
    use_wide_registers()
    for i in range(E.shape[0]):
        slopes, collected = g[i], per_g[i]
        collected[:] = 0
        for part in range(3):
            for j in range(E.shape[2]):
                entries, factor = E[i, part, j], powers[i, part, j]
                total = factor * 0
                for n in range(E.shape[3]):
                    total += entries[n] * slopes[n]
                    collected[n] += factor * entries[n]
                along[i, part, j] = total
