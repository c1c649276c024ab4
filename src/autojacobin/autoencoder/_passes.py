"""What the Jacobian term does between its matrix products, in one pass over the temporaries each.

As array expressions these were two to four passes, and a third of an evaluation. On a GPU they stay array expressions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin._compile import kernel, use_wide_registers

__all__ = ["add_pairs", "close_trace", "fill_line", "follow_line", "make_pairs", "open_trace"]


def make_pairs(rows: Any, first: int, weights: Any, out: Any) -> None:
    """Write rowᵢₙ rowᵢₘ weightsₙₘ for a few hidden units n and all m, both from ``first`` on (s, height, width)."""
    if namespace(rows) is np:
        _make_pairs(rows, first, weights, out)
    else:
        height = weights.shape[0]
        namespace(rows).multiply(rows[:, first : first + height, None], rows[:, None, first:], out=out)
        out *= weights


def add_pairs(panel: Any, rows: Any, first: int, weights: Any, sums: Any, per_weight: Any = None) -> None:
    """Add Σₘ panelᵢₙₘ weightsₙₘ rowᵢₘ to sumsᵢₙ, and the same with n and m exchanged to sumsᵢₘ.

    ``per_weight`` (height, width) is given Σᵢ panelᵢₙₘ rowᵢₙ rowᵢₘ on top, if it is there.
    """
    height = weights.shape[0]
    if namespace(rows) is np:
        _add_pairs(
            panel, rows, first, weights, sums, np.empty((0, 0), rows.dtype) if per_weight is None else per_weight
        )
        return
    xp = namespace(rows)
    n, m = slice(first, first + height), slice(first, None)
    if per_weight is not None:
        per_weight += (panel * rows[:, n, None] * rows[:, None, m]).sum(axis=0)
    panel = panel * weights
    sums[:, n] += xp.matmul(panel, rows[:, m, None])[:, :, 0]
    sums[:, m] += xp.matmul(rows[:, None, n], panel)[:, 0]


def open_trace(U: Any, V: Any, g: Any, per_g: Any) -> None:
    """Write Σₖ Uᵢₖₙ Vᵢₖₙ to ``per_g``, and multiply V by g."""
    if namespace(U) is np:
        _open_trace(U, V, g, per_g)
    else:
        per_g[...] = (U * V).sum(axis=1)
        V *= g[:, None, :]


def close_trace(Q: Any, g: Any, a: Any, W2: Any, per_a: Any, per_W2: Any) -> None:
    """Write Σₙ Qᵢⱼₙ gᵢₙ W2ⱼₙ to ``per_a``, and add Σᵢ aᵢⱼ Qᵢⱼₙ gᵢₙ to ``per_W2``; Q may be lost."""
    if namespace(Q) is np:
        _close_trace(Q, g, a, W2, per_a, per_W2)
    else:
        Q *= g[:, None, :]
        per_a[...] = (Q * W2).sum(axis=2)
        Q *= a[:, :, None]
        per_W2 += Q.sum(axis=0)


def fill_line(E: Any, R: Any, W2: Any, S2: Any) -> None:
    """Write W2 ∘ Q, S2 ∘ Q + W2 ∘ R and S2 ∘ R to the parts of ``E``, the first of which holds Q; R may be lost."""
    if namespace(E) is np:
        _fill_line(E, R, W2, S2)
        return
    xp = namespace(E)
    Q, linear, square = E[:, 0], E[:, 1], E[:, 2]
    xp.multiply(R, S2, out=square)
    xp.multiply(Q, S2, out=linear)
    R *= W2
    linear += R
    Q *= W2


def follow_line(E: Any, g: Any, powers: Any, along: Any, per_g: Any) -> None:
    """Write E g to ``along`` and powers' E to ``per_g``, with the rows of the three parts of ``E`` taken together."""
    if namespace(E) is np:
        _follow_line(E, g, powers, along, per_g)
        return
    xp = namespace(E)
    rows = E.reshape(len(E), -1, E.shape[3])
    along[...] = xp.matmul(rows, g[:, :, None]).reshape(along.shape)
    per_g[...] = xp.matmul(powers.reshape(len(E), 1, -1), rows)[:, 0]


@kernel
def _make_pairs(rows: Any, first: int, weights: Any, out: Any) -> None:
    use_wide_registers()
    height, width = weights.shape
    for i in range(rows.shape[0]):
        row = rows[i, first:]  # a view, for an index with a sum in it may be negative, and is not vectorised
        for n in range(height):
            factor, weight, entries = row[n], weights[n], out[i, n]
            for m in range(width):
                entries[m] = factor * row[m] * weight[m]


@kernel(reassociate=True)
def _add_pairs(panel: Any, rows: Any, first: int, weights: Any, sums: Any, per_weight: Any) -> None:
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
def _open_trace(U: Any, V: Any, g: Any, per_g: Any) -> None:
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
def _close_trace(Q: Any, g: Any, a: Any, W2: Any, per_a: Any, per_W2: Any) -> None:
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
def _fill_line(E: Any, R: Any, W2: Any, S2: Any) -> None:
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
def _follow_line(E: Any, g: Any, powers: Any, along: Any, per_g: Any) -> None:
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
