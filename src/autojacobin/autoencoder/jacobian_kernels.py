"""What the Jacobian term computes between its matrix products, each step in one pass over memory.

Written as array expressions, each of these steps reads its temporaries two to four times, and together they take a
third of an evaluation. On a CPU they are therefore compiled. On a GPU they stay array expressions.

Indices: i is a point, j a feature, n and m are hidden units, k is a row of a tangent basis.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin.core.arrays import namespace
from autojacobin.core.compilation import kernel, use_wide_registers


def pair_products(rows: Any, first: int, weights: Any, out: Any) -> None:
    """Write rowsᵢₙ rowsᵢₘ weightsₙₘ to ``out`` (s, height, width).

    n takes ``height`` values and m takes ``width`` values, both counted from ``first``.
    """
    if namespace(rows) is np:
        _pair_products(rows, first, weights, out)
        return
    height = weights.shape[0]
    namespace(rows).multiply(rows[:, first : first + height, None], rows[:, None, first:], out=out)
    out *= weights


@kernel
def _pair_products(rows: Any, first: int, weights: Any, out: Any) -> None:
    use_wide_registers()
    height, width = weights.shape
    for i in range(rows.shape[0]):
        row = rows[i, first:]  # as a view: LLVM does not vectorise row[first + m], where the index might be negative
        for n in range(height):
            factor, weight, entries = row[n], weights[n], out[i, n]
            for m in range(width):
                entries[m] = factor * row[m] * weight[m]


def add_pair_derivatives(panel: Any, rows: Any, first: int, weights: Any, sums: Any, per_weight: Any = None) -> None:
    """Add the derivatives of Σᵢₙₘ panelᵢₙₘ weightsₙₘ rowsᵢₙ rowsᵢₘ with respect to ``rows`` to ``sums``.

    The derivatives with respect to ``weights`` are added to ``per_weight`` (height, width), if it is given.
    """
    if namespace(rows) is np:
        nothing = np.empty((0, 0), rows.dtype)
        _add_pair_derivatives(panel, rows, first, weights, sums, nothing if per_weight is None else per_weight)
        return
    xp = namespace(rows)
    n, m = slice(first, first + weights.shape[0]), slice(first, None)
    if per_weight is not None:
        per_weight += (panel * rows[:, n, None] * rows[:, None, m]).sum(axis=0)
    panel = panel * weights
    sums[:, n] += xp.matmul(panel, rows[:, m, None])[:, :, 0]
    sums[:, m] += xp.matmul(rows[:, None, n], panel)[:, 0]


@kernel(reassociate=True)
def _add_pair_derivatives(panel: Any, rows: Any, first: int, weights: Any, sums: Any, per_weight: Any) -> None:
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


def trace_hidden_derivatives(U: Any, V: Any, g: Any, per_g: Any) -> None:
    """Write Σₖ Uᵢₖₙ Vᵢₖₙ to ``per_g``, and multiply V by g in place."""
    if namespace(U) is np:
        _trace_hidden_derivatives(U, V, g, per_g)
        return
    per_g[...] = (U * V).sum(axis=1)
    V *= g[:, None, :]


@kernel
def _trace_hidden_derivatives(U: Any, V: Any, g: Any, per_g: Any) -> None:
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


def trace_output_derivatives(Q: Any, g: Any, a: Any, W2: Any, per_a: Any, per_W2: Any) -> None:
    """Write Σₙ Qᵢⱼₙ gᵢₙ W2ⱼₙ to ``per_a``, and add Σᵢ aᵢⱼ Qᵢⱼₙ gᵢₙ to ``per_W2``; Q may be overwritten."""
    if namespace(Q) is np:
        _trace_output_derivatives(Q, g, a, W2, per_a, per_W2)
        return
    Q *= g[:, None, :]
    per_a[...] = (Q * W2).sum(axis=2)
    Q *= a[:, :, None]
    per_W2 += Q.sum(axis=0)


@kernel(reassociate=True)
def _trace_output_derivatives(Q: Any, g: Any, a: Any, W2: Any, per_a: Any, per_W2: Any) -> None:
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


def line_coefficients(E: Any, R: Any, W2: Any, S2: Any) -> None:
    """Write E₀ = W2 ∘ Q, E₁ = S2 ∘ Q + W2 ∘ R and E₂ = S2 ∘ R to ``E`` (s, 3, D, d).

    On entry ``E[:, 0]`` holds Q. R may be overwritten.
    """
    if namespace(E) is np:
        _line_coefficients(E, R, W2, S2)
        return
    xp = namespace(E)
    Q, linear, square = E[:, 0], E[:, 1], E[:, 2]
    xp.multiply(R, S2, out=square)
    xp.multiply(Q, S2, out=linear)
    R *= W2
    linear += R
    Q *= W2


@kernel
def _line_coefficients(E: Any, R: Any, W2: Any, S2: Any) -> None:
    use_wide_registers()
    for i in range(E.shape[0]):
        for j in range(E.shape[2]):
            constant, linear, square, change_of_Q = E[i, 0, j], E[i, 1, j], E[i, 2, j], R[i, j]
            weight, step = W2[j], S2[j]
            for n in range(E.shape[3]):
                start, change = constant[n], change_of_Q[n]
                constant[n] = weight[n] * start
                linear[n] = step[n] * start + weight[n] * change
                square[n] = step[n] * change


def line_products(E: Any, g: Any, powers: Any, per_row: Any, per_g: Any) -> None:
    """Write E g to ``per_row`` (s, 3, D) and powers' E, summed over the three coefficients, to ``per_g`` (s, d)."""
    if namespace(E) is np:
        _line_products(E, g, powers, per_row, per_g)
        return
    xp = namespace(E)
    rows = E.reshape(len(E), -1, E.shape[3])
    per_row[...] = xp.matmul(rows, g[:, :, None]).reshape(per_row.shape)
    per_g[...] = xp.matmul(powers.reshape(len(E), 1, -1), rows)[:, 0]


@kernel(reassociate=True)
def _line_products(E: Any, g: Any, powers: Any, per_row: Any, per_g: Any) -> None:
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
                per_row[i, part, j] = total
