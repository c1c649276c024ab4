"""What the Jacobian term does between its matrix products, in one pass over the temporaries each.

As array expressions these were two to four passes, and a third of an evaluation. On a GPU they stay array expressions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace

__all__ = ["add_pairs", "close_trace", "fill_line", "follow_line", "make_pairs", "open_trace"]


def make_pairs(rows: Any, first: int, weights: Any, out: Any) -> None:
    """Write rowᵢₙ rowᵢₘ weightsₙₘ for a few hidden units n and all m, both from ``first`` on (s, height, width)."""
    if namespace(rows) is np:
        _kernels().make_pairs(rows, first, weights, out)
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
        _kernels().add_pairs(
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
        _kernels().open_trace(U, V, g, per_g)
    else:
        per_g[...] = (U * V).sum(axis=1)
        V *= g[:, None, :]


def close_trace(Q: Any, g: Any, a: Any, W2: Any, per_a: Any, per_W2: Any) -> None:
    """Write Σₙ Qᵢⱼₙ gᵢₙ W2ⱼₙ to ``per_a``, and add Σᵢ aᵢⱼ Qᵢⱼₙ gᵢₙ to ``per_W2``; Q may be lost."""
    if namespace(Q) is np:
        _kernels().close_trace(Q, g, a, W2, per_a, per_W2)
    else:
        Q *= g[:, None, :]
        per_a[...] = (Q * W2).sum(axis=2)
        Q *= a[:, :, None]
        per_W2 += Q.sum(axis=0)


def fill_line(E: Any, R: Any, W2: Any, S2: Any) -> None:
    """Write W2 ∘ Q, S2 ∘ Q + W2 ∘ R and S2 ∘ R to the parts of ``E``, the first of which holds Q; R may be lost."""
    if namespace(E) is np:
        _kernels().fill_line(E, R, W2, S2)
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
        _kernels().follow_line(E, g, powers, along, per_g)
        return
    xp = namespace(E)
    rows = E.reshape(len(E), -1, E.shape[3])
    along[...] = xp.matmul(rows, g[:, :, None]).reshape(along.shape)
    per_g[...] = xp.matmul(powers.reshape(len(E), 1, -1), rows)[:, 0]


def _kernels() -> Any:
    from autojacobin.autoencoder import _pass_kernels  # not before a fit: loading numba takes a second

    return _pass_kernels
