"""The Jacobian term, Σᵢ ‖Jᵢ − TᵢTᵢ'‖², as matrix products over groups of points, without a D×D matrix for any.

    ‖J − TT'‖² = ‖J‖² − 2 tr(J TT') + r

The derivation stands in ``docs/method.md``, how it is cut into pieces that fit the cache in ``docs/training.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin._parallel import map_points
from autojacobin.autoencoder.network import Activations, Network, Partials
from autojacobin.autoencoder.tangent import TangentSpaces

__all__ = ["jacobian"]

_POINTS_PER_TASK = 125
# Columns of the table of pairs of hidden units that are worked on at once, and numbers of the tangent bases.
_PAIRS_PER_PANEL = 1024
_NUMBERS_PER_GROUP = 2**16
# A GPU wants few large steps instead.
_NUMBERS_PER_GPU_STEP = 2**28


def jacobian(network: Network, state: Activations, tangents: TangentSpaces, weight: float, partials: Partials) -> float:
    """Σᵢ ‖Jᵢ − TᵢTᵢ'‖² = Σᵢ ‖Jᵢ‖² − 2 tr(Jᵢ TᵢTᵢ') + rᵢ: the network should do to first order what f does."""
    g, a = state.g, state.a

    def work(points: slice) -> tuple[_JacobianPart, _JacobianPart]:
        norm = _squared_norm(network, g[points], a[points])
        trace = _trace(network, g[points], a[points], tangents[points])
        # g = 1 − Y² and a = 1 − Z², so a derivative with respect to g costs a factor −2Y, to a one of −2Z.
        partials.Y[points] -= (2 * weight) * state.Y[points] * (norm.g - 2 * trace.g)
        partials.Z[points] -= (2 * weight) * state.Z[points] * (norm.a - 2 * trace.a)
        return norm, trace

    value = float(tangents.ranks.sum())
    per_task = _POINTS_PER_TASK if namespace(g) is np else len(g)
    for norm, trace in map_points(work, state.Y, per_task):
        value += norm.value - 2 * trace.value
        partials.W1 += weight * (norm.W1 - 2 * trace.W1)
        partials.W2 += weight * (norm.W2 - 2 * trace.W2)
    return weight * value


@dataclass(frozen=True)
class _JacobianPart:
    """Value of a part of the Jacobian term over a group of points, and its derivatives."""

    value: float
    g: Any
    a: Any
    W1: Any
    W2: Any


def _squared_norm(network: Network, g: Any, a: Any) -> _JacobianPart:
    """Σᵢ ‖Jᵢ‖² = Σᵢ gᵢ' [(W1 W1') ∘ (W2' diag(aᵢ²) W2)] gᵢ.

    With the pairs of hidden units (n, m) laid out as columns, W2' diag(aᵢ²) W2 for all points is one
    product of a² with the table of W2ⱼₙ W2ⱼₘ. It is symmetric: a panel of the table has a few n, and all
    m from the first of them on.
    """
    xp = namespace(g)
    W1, W2 = network.W1, network.W2
    (s, D), d = a.shape, g.shape[1]
    gram = W1 @ W1.T
    squares = a * a
    row_norms = xp.zeros_like(a)  # of the rows of W2 diag(g) W1, squared
    per_g, per_gram, per_W2 = xp.zeros_like(g), xp.zeros_like(gram), xp.zeros_like(W2)
    height = max(1, (_PAIRS_PER_PANEL if xp is np else min(64 * d, _NUMBERS_PER_GPU_STEP // max(s, D))) // d)
    for first in range(0, d, height):
        n, m = slice(first, min(first + height, d)), slice(first, d)
        shape = (n.stop - first, d - first)
        counted = xp.ones(shape, dtype=g.dtype)
        counted[:, shape[0] :] = 2  # these pairs stand for (m, n) as well
        weights = counted * gram[n, m]
        table = (W2[:, n, None] * W2[:, None, m]).reshape(D, -1)
        pairs = g[:, n, None] * g[:, None, m]
        weighted = (pairs * weights).reshape(s, -1)
        row_norms += weighted @ table.T
        inner = (squares @ table).reshape(s, *shape)
        pairs *= inner
        per_gram[n, m] += counted * pairs.sum(axis=0)
        inner *= weights
        _add_products(per_g, inner, g, n, m)
        _add_products(per_W2, (squares.T @ weighted).reshape(D, *shape), W2, n, m)
    return _JacobianPart(
        value=_total(squares * row_norms),
        g=per_g,
        a=2 * a * row_norms,
        W1=(per_gram + per_gram.T) @ W1,
        W2=per_W2,
    )


def _add_products(total: Any, panels: Any, rows: Any, n: slice, m: slice) -> None:
    """Add to each row of ``total`` what its panel gives with the same row of ``rows``, from either side."""
    xp = namespace(panels)
    total[:, n] += xp.matmul(panels, rows[:, m, None])[:, :, 0]
    total[:, m] += xp.matmul(rows[:, None, n], panels)[:, 0]


def _trace(network: Network, g: Any, a: Any, tangents: TangentSpaces) -> _JacobianPart:
    """Σᵢ tr(Jᵢ TᵢTᵢ') = Σᵢ Σₙ gᵢₙ Σₖ Uᵢₖₙ Vᵢₖₙ with U = T' W1' and V = T' diag(a) W2, of shape r × d.

    The derivatives need no more than T (U diag(g)) and (V diag(g))' T'.
    """
    xp = namespace(g)
    W1, W2 = network.W1, network.W2
    (s, D), d = a.shape, g.shape[1]
    per_g, per_a = xp.empty_like(g), xp.empty_like(a)
    per_W1, per_W2 = xp.zeros_like(W1), xp.zeros_like(W2)
    numbers = _NUMBERS_PER_GROUP if xp is np else _NUMBERS_PER_GPU_STEP
    per_group = max(1, numbers // (max(d, tangents.held.shape[1]) * D))
    group = _Group(xp, min(s, per_group), tangents.held.shape[1], D, d, g.dtype)
    for first in range(0, s, per_group):
        points = slice(first, min(first + per_group, s))
        T = tangents.block(points)
        scaled, U, V, back = group.arrays(*T.shape[:2])
        rows = T.reshape(-1, D)
        xp.matmul(rows, W1.T, out=U.reshape(-1, d))
        xp.multiply(T, a[points, None, :], out=scaled)
        xp.matmul(scaled.reshape(-1, D), W2, out=V.reshape(-1, d))
        per_g[points] = xp.einsum("ikn,ikn->in", U, V)
        U *= g[points, None, :]
        V *= g[points, None, :]
        per_W1 += V.reshape(-1, d).T @ rows
        xp.matmul(T.transpose(0, 2, 1), U, out=back)
        per_a[points] = xp.einsum("ijn,jn->ij", back, W2)
        back *= a[points, :, None]
        per_W2 += back.sum(axis=0)
    return _JacobianPart(value=_total(per_g * g), g=per_g, a=per_a, W1=per_W1, W2=per_W2)


class _Group:
    """Room for the temporaries of a group of points, taken once: new memory costs as much as the sums in it."""

    def __init__(self, xp: Any, size: int, r: int, D: int, d: int, dtype: Any) -> None:
        self._scaled = xp.empty(size * r * D, dtype=dtype)
        self._U, self._V = (xp.empty(size * r * d, dtype=dtype) for _ in range(2))
        self._back = xp.empty((size, D, d), dtype=dtype)

    def arrays(self, size: int, r: int) -> tuple[Any, Any, Any, Any]:
        """Give T diag(a), U, V and T U for ``size`` points of rank up to ``r``."""
        _, D, d = self._back.shape
        scaled = self._scaled[: size * r * D].reshape(size, r, D)
        U, V = (side[: size * r * d].reshape(size, r, d) for side in (self._U, self._V))
        return scaled, U, V, self._back[:size]


def _total(values: Any) -> float:
    # summed in double precision: the line search compares costs that differ in the last digits of a float32
    return float(values.sum(dtype="float64"))
