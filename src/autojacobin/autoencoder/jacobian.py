"""The Jacobian term Σᵢ ‖Jᵢ − TᵢTᵢ'‖², its value and its derivatives, without a D×D matrix for any point.

    ‖J − TT'‖² = ‖J‖² − 2 tr(J TT') + r

:func:`plain_jacobian` is the term as the paper prints it, to read first; the tests compare all others with it.
:func:`squared_norm` computes the first part and :func:`trace` the second. :class:`TraceAlongLine` computes the second
part faster where the weights move along a line, as they do in a step of training. ``docs/method.md`` derives the
formulas; ``docs/training.md`` says how the work is divided so that it fits the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from autojacobin.autoencoder.network import Activations, Network, Partials
from autojacobin.autoencoder.tangent import TangentSpaces
from autojacobin.core.arrays import free_gpu_memory, namespace
from autojacobin.core.parallel import map_points, slices

_POINTS_PER_TASK = 125
# Pairs of hidden units per panel in squared_norm, and numbers of the tangent bases per group in trace.
_PAIRS_PER_PANEL = 512
_NUMBERS_PER_GROUP = 2**16
# Both are limited by this instead on a GPU, which is fastest in few large steps.
_NUMBERS_PER_GPU_STEP = 2**28
# Most bytes for the matrices E of TraceAlongLine; on a GPU it is a quarter of the free memory instead.
_BYTES_FOR_LINE = 650_000_000


@dataclass(frozen=True)
class JacobianPart:
    """Value of ‖J‖² or tr(J TT'), summed over some points, and its derivatives.

    They are with respect to the slopes of tanh, g = 1 − Y² (s, d) and a = 1 − Z² (s, D), and to the weights W1 and W2.
    Along a line, those of the weights are None, and ``slope`` is the derivative with respect to the step t, with g and
    a held fixed.
    """

    value: float
    g: Any
    a: Any
    W1: Any = None
    W2: Any = None
    slope: float = 0.0


def plain_jacobian(network: Network, X: Any, bases: Any) -> float:
    """Σᵢ ‖Jᵢ − TᵢTᵢ'‖² with D×D matrices; the rows of ``bases[i]`` are the columns of the paper's Tᵢ."""
    value = 0.0
    for x, T in zip(X, bases, strict=True):
        y = np.tanh(network.W1 @ x + network.b1)
        z = np.tanh(network.W2 @ y + network.b2)
        J = network.W1.T @ (network.W2.T * np.outer(1 - y**2, 1 - z**2))
        value += ((J - T.T @ T) ** 2).sum()
    return value


def jacobian(
    network: Network,
    state: Activations,
    tangents: TangentSpaces,
    weight: float,
    partials: Partials,
    line: TraceAlongLine | None = None,
    t: float = 0.0,
) -> float:
    """Compute ``weight`` times Σᵢ ‖Jᵢ − TᵢTᵢ'‖², and add its derivatives to ``partials``.

    If ``network`` is the point at step ``t`` of a ``line``, the line computes the traces.
    """

    def work(points: slice) -> tuple[JacobianPart, JacobianPart]:
        g, a = state.g[points], state.a[points]
        norm = squared_norm(network, g, a)
        tr = trace(network, g, a, tangents[points]) if line is None else line(t, network, g, a, points)
        # g = 1 − Y² and a = 1 − Z², so the chain rule gives the factors −2Y and −2Z.
        partials.Y[points] -= (2 * weight) * state.Y[points] * (norm.g - 2 * tr.g)
        partials.Z[points] -= (2 * weight) * state.Z[points] * (norm.a - 2 * tr.a)
        return norm, tr

    value = float(tangents.ranks.sum())
    for norm, tr in map_points(work, state.Y, _points_per_task(state.Y)):
        value += norm.value - 2 * tr.value
        for part, factor in ((norm, weight), (tr, -2 * weight)):
            partials.slope += factor * part.slope
            if part.W1 is not None:
                partials.W1 += factor * part.W1
                partials.W2 += factor * part.W2
    return weight * value


def squared_norm(network: Network, g: Any, a: Any) -> JacobianPart:
    """Σᵢ ‖Jᵢ‖² = Σᵢ gᵢ' [(W1 W1') ∘ (W2' diag(aᵢ²) W2)] gᵢ.

    With one column for each pair of hidden units (n, m), the matrices W2' diag(aᵢ²) W2 of all points are one product
    of a² with the table W2ⱼₙ W2ⱼₘ. In the sum Σᵢⱼ aᵢⱼ² Σₙₘ Gₙₘ gᵢₙ gᵢₘ W2ⱼₙ W2ⱼₘ, points i with g and features j with
    W2 can be exchanged. The side with fewer rows is given the role that needs more work.
    """
    gram = network.W1 @ network.W1.T
    squares = a * a
    if len(g) < len(network.W2):
        per_a, per_g, per_W2, per_gram = _pair_sum(squares, g, network.W2, gram)
    else:
        per_a, per_W2, per_g, per_gram = _pair_sum(squares.T, network.W2, g, gram)
        per_a = per_a.T
    return JacobianPart(
        value=sum_in_double(squares * per_a),
        g=per_g,
        a=2 * a * per_a,
        W1=(per_gram + per_gram.T) @ network.W1,
        W2=per_W2,
    )


def _pair_sum(A: Any, R: Any, C: Any, G: Any) -> tuple[Any, Any, Any, Any]:
    """Derivatives of Σᵢⱼ Aᵢⱼ Σₙₘ Gₙₘ Rᵢₙ Rᵢₘ Cⱼₙ Cⱼₘ with respect to A, R, C and G."""
    xp = namespace(A)
    (rows, columns), d = A.shape, R.shape[1]
    per_A, per_R, per_C, per_G = xp.zeros_like(A), xp.zeros_like(R), xp.zeros_like(C), xp.zeros_like(G)
    on_gpu = min(64 * d, _NUMBERS_PER_GPU_STEP // max(rows, columns))
    height = max(1, (_PAIRS_PER_PANEL if xp is np else on_gpu) // d)
    for n in slices(d, height):  # the sum is symmetric, so a panel has a few n, and all m from the first of them on
        m = slice(n.start, None)
        counted = xp.full((n.stop - n.start, d - n.start), 2, dtype=R.dtype)  # the pair (n, m) also stands for (m, n)
        counted[:, : len(counted)] = 1
        weights = counted * G[n, m]
        table = (C[:, n, None] * C[:, None, m]).reshape(columns, -1)
        inner = (A @ table).reshape(rows, *counted.shape)
        per_G[n, m] += counted * (inner * R[:, n, None] * R[:, None, m]).sum(axis=0)
        _add_derivatives(per_R, inner * weights, R, n, m)
        pairs = (R[:, n, None] * R[:, None, m] * weights).reshape(rows, -1)
        per_A += pairs @ table.T
        _add_derivatives(per_C, (A.T @ pairs).reshape(columns, *counted.shape), C, n, m)
    return per_A, per_R, per_C, per_G


def _add_derivatives(sums: Any, panel: Any, rows: Any, n: slice, m: slice) -> None:
    """Add the derivatives of Σᵢₙₘ panelᵢₙₘ rowsᵢₙ rowsᵢₘ with respect to ``rows`` to ``sums``."""
    xp = namespace(rows)
    sums[:, n] += xp.matmul(panel, rows[:, m, None])[:, :, 0]
    sums[:, m] += xp.matmul(rows[:, None, n], panel)[:, 0]


def trace(network: Network, g: Any, a: Any, tangents: TangentSpaces, keep: Any = None) -> JacobianPart:
    """Σᵢ tr(Jᵢ TᵢTᵢ') = Σᵢ Σₙ gᵢₙ Σₖ Uᵢₖₙ Vᵢₖₙ with U = T' W1' and V = T' diag(a) W2, of shape r × d.

    The derivatives follow from Q = T U and (V diag(g))' T'. If ``keep`` (s, D, d) is given, Q is written to it.
    """
    xp = namespace(g)
    W1, W2 = xp.ascontiguousarray(network.W1.T), network.W2
    (s, D), d = a.shape, g.shape[1]
    per_g, per_a = xp.empty_like(g), xp.empty_like(a)
    per_W1, per_W2 = xp.zeros_like(network.W1), xp.zeros_like(W2)
    for points in slices(s, _group_size(tangents, d)):
        T = tangents.block(points)
        U, V = _multiplied(T, W1), _multiplied(T * a[points, None, :], W2)
        per_g[points] = (U * V).sum(axis=1)
        V *= g[points, None, :]
        per_W1 += V.reshape(-1, d).T @ T.reshape(-1, D)
        Q = xp.matmul(T.transpose(0, 2, 1), U)
        if keep is not None:
            keep[points] = Q
        Q *= g[points, None, :]
        per_a[points] = (Q * W2).sum(axis=2)
        Q *= a[points, :, None]
        per_W2 += Q.sum(axis=0)
    return JacobianPart(value=sum_in_double(per_g * g), g=per_g, a=per_a, W1=per_W1, W2=per_W2)


class LineBuffer:
    """Memory for the matrices E, reused from one line to the next: allocating it takes as long as filling it."""

    def __init__(self) -> None:
        self._E: Any = None
        self._n_requested = 0  # there may be memory for fewer points

    def take(self, ranks: Any, W2: Any) -> Any:
        """Memory (m, 3, D, d) for the points that have ``ranks``, or for as many whole tasks of them as fit."""
        n, per_task = len(ranks), _points_per_task(ranks)
        if self._E is None or self._n_requested < n or self._E.shape[2:] != W2.shape or self._E.dtype != W2.dtype:
            self._E, self._n_requested = None, n  # free the old memory before the new is allocated
            free = free_gpu_memory(W2)
            fitting = (_BYTES_FOR_LINE if free is None else free // 4) // (3 * W2.size * W2.dtype.itemsize)
            n_held = n if n <= fitting else fitting // per_task * per_task
            self._E = namespace(W2).empty((n_held, 3, *W2.shape), dtype=W2.dtype)
        return self._E[:n]


class TraceAlongLine:
    """The traces of a batch along a line of weights, where a step t needs no product with a tangent basis.

        tr(J TT') = a' E g,    E = W2 ∘ Q,    Q = TT' W1'

    Q is linear in W1. So along W1 + t S1, W2 + t S2 the D × d matrix E of each point is a polynomial in t:

        E(t) = (W2 + t S2) ∘ (Q + t R) = E₀ + t E₁ + t² E₂,    R = TT' S1'

    The gradient at t = 0 leaves Q behind, and R takes two products with T. After that each t takes two products of a
    matrix with a vector, E g and a' E, instead of four products with T. Points whose E do not fit into memory are
    evaluated in full at every t.
    """

    def __init__(self, start: Network, tangents: TangentSpaces, buffer: LineBuffer) -> None:
        self._start, self._tangents = start, tangents
        self._E = buffer.take(tangents.ranks, start.W2)
        self._direction: Network | None = None
        self._ready: set[int] = set()  # first points of the tasks whose coefficients are computed

    def set_direction(self, direction: Network) -> None:
        """Set S1 and S2; to be called once, after the evaluation at t = 0."""
        self._direction = direction

    def __call__(self, t: float, network: Network, g: Any, a: Any, points: slice) -> JacobianPart:
        """Trace part of a task's points at step ``t``, where ``network`` has the slopes of tanh g and a."""
        if points.stop > len(self._E):
            return trace(network, g, a, self._tangents[points])
        if self._direction is None:
            return trace(network, g, a, self._tangents[points], keep=self._E[points, 0])
        return self._along(t, g, a, points, self._direction)

    def _along(self, t: float, g: Any, a: Any, points: slice, direction: Network) -> JacobianPart:
        xp = namespace(g)
        (s, D), d = a.shape, g.shape[1]
        E, tangents = self._E[points], self._tangents[points]
        new = points.start not in self._ready
        S1 = xp.ascontiguousarray(direction.W1.T)
        per_row, per_g = xp.empty((s, 3, D), dtype=a.dtype), xp.empty_like(g)
        powers = xp.stack([a, t * a, t * t * a], axis=1)
        for group in slices(s, _group_size(tangents, d)):
            if new:  # computed here, so that E is still in the cache when it is used
                T = tangents.block(group)
                R = xp.matmul(T.transpose(0, 2, 1), _multiplied(T, S1))
                _write_coefficients(E[group], R, self._start.W2, direction.W2)
            rows = E[group].reshape(-1, 3 * D, d)
            per_row[group] = xp.matmul(rows, g[group, :, None]).reshape(-1, 3, D)
            per_g[group] = xp.matmul(powers[group].reshape(-1, 1, 3 * D), rows)[:, 0]
        self._ready.add(points.start)
        constant, linear, square = per_row[:, 0], per_row[:, 1], per_row[:, 2]
        per_a = constant + t * (linear + t * square)
        slope = sum_in_double(a * (linear + 2 * t * square))
        return JacobianPart(value=sum_in_double(a * per_a), g=per_g, a=per_a, slope=slope)


def _group_size(tangents: TangentSpaces, d: int) -> int:
    """How many points have temporaries that fit the cache, or a GPU."""
    _, r, D = tangents.stored.shape
    numbers = _NUMBERS_PER_GROUP if namespace(tangents.stored) is np else _NUMBERS_PER_GPU_STEP
    return max(1, numbers // (max(d, int(r)) * int(D)))


def _points_per_task(array: Any) -> int:
    return _POINTS_PER_TASK if namespace(array) is np else max(1, len(array))


def _multiplied(bases: Any, weights: Any) -> Any:
    """Multiply the basis (r, D) of every point by the same ``weights`` (D, d)."""
    if isinstance(bases, np.ndarray):
        # Point by point: OpenBLAS does not rearrange matrices as small as these, which makes it a quarter faster.
        return np.matmul(bases, weights)
    return (bases.reshape(-1, bases.shape[2]) @ weights).reshape(*bases.shape[:2], -1)


def sum_in_double(values: Any) -> float:
    """Sum in double precision: the line search compares costs that differ only in the last digits of a float32."""
    return float(values.sum(dtype="float64"))


def _write_coefficients(E: Any, R: Any, W2: Any, S2: Any) -> None:
    """Write E₀ = W2 ∘ Q, E₁ = S2 ∘ Q + W2 ∘ R and E₂ = S2 ∘ R to E (s, 3, D, d), which holds Q first; spoil R."""
    xp = namespace(E)
    Q, linear, square = E[:, 0], E[:, 1], E[:, 2]
    xp.multiply(R, S2, out=square)
    xp.multiply(Q, S2, out=linear)
    R *= W2
    linear += R
    Q *= W2
