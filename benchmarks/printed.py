"""The Jacobian term and its gradient with D×D matrices, to compare with: as Appendix II prints it, and by hand.

Points come one at a time, in the precision of the input; errata of the appendix are mended (see ``docs/errata.md``).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def as_printed(network: Any, X: Any, bases: Any) -> tuple[float, Any, Any]:
    """Value and gradients with respect to W1 and W2 by the formulas of Appendix II, third-order arrays and all."""
    W1, W2 = network.W1, network.W2
    d, D = W1.shape
    one = W1.dtype.type(1)
    rows, columns = np.full((d, 1), one), np.full((D, 1), one)
    value, per_W1, per_W2 = 0.0, np.zeros_like(W1), np.zeros_like(W2)
    outer = np.einsum("ki,jk->ijk", W1, W2)
    for x, T in zip(X, bases, strict=True):
        x, A = x[:, None], T.T @ T
        y = np.tanh(W1 @ x + network.b1[:, None])
        z = np.tanh(W2 @ y + network.b2[:, None])
        a, g = one - z**2, (one - y**2) @ columns.T
        K = W1.T @ (W2.T * g)
        value += float((((columns @ a.T) * K - A) ** 2).sum())
        # ‖J‖²
        first = -4 * (W2.T * (rows @ (a**2 * z).T) * g * (rows @ (K**2).sum(axis=0, keepdims=True))) @ columns
        second = 2 * (W2.T @ (W1.T @ (W2.T * (rows @ (a**2).T) * g)).T) * g
        third = -4 * (((columns @ (a**2).T) * K)[:, :, None] * outer).sum(axis=(0, 1))[:, None] * (y - y**3)
        last = -4 * (a**2 * z) * (K**2).sum(axis=0)[:, None]
        per_W1 += first @ x.T + second + third @ x.T
        per_W2 += last @ y.T + 2 * (a**2 @ rows.T) * (K.T @ (W1 * g).T)
        # −2 tr(JA')
        first = -2 * (W2.T * (rows @ (z - z**3).T) * g * (rows @ (K * A).sum(axis=0, keepdims=True))) @ columns
        second = ((rows @ a.T) * (W2.T * g)) @ A.T
        third = -2 * (((columns @ a.T) * A)[:, :, None] * outer).sum(axis=(0, 1))[:, None] * (y - y**3)
        last = -2 * (z - z**3) * (K * A).sum(axis=0)[:, None]
        per_W1 -= 2 * (first @ x.T + second + third @ x.T)
        per_W2 -= 2 * (last @ y.T + (a @ rows.T) * ((W1 * g) @ A).T)
    return value, per_W1, per_W2


def by_hand(network: Any, X: Any, bases: Any) -> tuple[float, Any, Any]:
    """The same with one D×D Jacobian per point, but without third-order arrays."""
    W1, W2 = network.W1, network.W2
    value, per_W1, per_W2 = 0.0, np.zeros_like(W1), np.zeros_like(W2)
    for x, T in zip(X, bases, strict=True):
        y = np.tanh(W1 @ x + network.b1)
        z = np.tanh(W2 @ y + network.b2)
        g, a = 1 - y * y, 1 - z * z
        inner = (W2 * g) @ W1
        gap = a[:, None] * inner - T.T @ T
        value += float((gap * gap).sum())
        gap *= 2
        from_left, from_right = W2.T @ (a[:, None] * gap), a[:, None] * (gap @ W1.T)
        out = -2 * z * (gap * inner).sum(axis=1) * a
        hidden = (out @ W2 - 2 * y * (from_left * W1).sum(axis=1)) * g
        per_W1 += g[:, None] * from_left + np.outer(hidden, x)
        per_W2 += from_right * g + np.outer(out, y)
    return value, per_W1, per_W2
