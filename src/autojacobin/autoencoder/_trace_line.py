"""The trace part of the Jacobian term along a line of weights, where a step needs no product with a tangent basis.

    tr(J TT') = a' E g,    E = W2 ∘ Q,    Q = TT' W1'

Q is linear in W1. So along W1 + t S1, W2 + t S2 the D × d matrix E of a point is a polynomial in t:

    E(t) = (W2 + t S2) ∘ (Q + t R) = E₀ + t E₁ + t² E₂,    R = TT' S1'

Q is left over from the gradient at t = 0, R takes two products with T, and every t that is tried after that takes
two products of a matrix with a vector, E g and a' E, in place of four with T.
"""

from __future__ import annotations

from typing import Any

from autojacobin._arrays import free_gpu_memory, namespace
from autojacobin.autoencoder._jacobian_part import JacobianPart, points_per_task, total
from autojacobin.autoencoder._passes import fill_line, follow_line
from autojacobin.autoencoder._trace import Room, groups, times_weights, trace
from autojacobin.autoencoder.network import Network
from autojacobin.autoencoder.tangent import TangentSpaces

__all__ = ["LineRoom", "TraceLine"]

# Points whose matrices E would take more bytes than this, or a quarter of a GPU, are evaluated in full instead.
_BYTES_HELD = 650_000_000


class LineRoom:
    """Memory for the matrices E, which one line after another may use: new memory costs as much as filling it."""

    def __init__(self) -> None:
        self._E: Any = None
        self._asked = 0  # points; there may be room for fewer

    def take(self, ranks: Any, W2: Any) -> Any:
        """Room (m, 3, D, d) for the points that ``ranks`` belong to, or for as many whole tasks as are held."""
        n, per_task = len(ranks), points_per_task(ranks)
        if self._E is None or self._asked < n or self._E.shape[2:] != W2.shape or self._E.dtype != W2.dtype:
            self._E, self._asked = None, n  # before the new memory is taken
            free = free_gpu_memory(W2)
            fitting = (_BYTES_HELD if free is None else free // 4) // (3 * W2.size * W2.dtype.itemsize)
            n_held = n if n <= fitting else fitting // per_task * per_task
            self._E = namespace(W2).empty((n_held, 3, *W2.shape), dtype=W2.dtype)
        return self._E[:n]


class TraceLine:
    """The trace part over a batch: at its start until :meth:`turn` gives a direction, and along that afterwards."""

    def __init__(self, start: Network, tangents: TangentSpaces, room: LineRoom) -> None:
        self._start, self._tangents = start, tangents
        self._E = room.take(tangents.ranks, start.W2)
        self._direction: Network | None = None
        self._filled: set[int] = set()  # first points of the tasks whose E is there

    def turn(self, direction: Network) -> None:
        """Say how the weights change with t; to be called once, after the start."""
        self._direction = direction

    def __call__(self, t: float, network: Network, g: Any, a: Any, points: slice) -> JacobianPart:
        """Trace part of a task's points at ``t``, where ``network`` is and the slopes of tanh are g and a."""
        if points.stop > len(self._E):
            return trace(network, g, a, self._tangents[points])
        if self._direction is None:
            return trace(network, g, a, self._tangents[points], keep=self._E[points, 0])
        return self._along(t, g, a, points, self._direction)

    def _along(self, t: float, g: Any, a: Any, points: slice, direction: Network) -> JacobianPart:
        xp = namespace(g)
        (s, D), d = a.shape, g.shape[1]
        E, tangents = self._E[points], self._tangents[points]
        fill = None if points.start in self._filled else _Filling(self._start, direction, tangents)
        along = xp.empty((s, 3, D), dtype=a.dtype)
        per_g = xp.empty_like(g)
        powers = xp.stack([a, t * a, t * t * a], axis=1)
        for group in groups(s, tangents, d):
            if fill is not None:
                fill(group, E[group])  # not before, since what is in the cache now is used now
            follow_line(E[group], g[group], powers[group], along[group], per_g[group])
        self._filled.add(points.start)
        constant, linear, square = along[:, 0], along[:, 1], along[:, 2]
        per_a = constant + t * (linear + t * square)
        return JacobianPart(value=total(a * per_a), g=per_g, a=per_a, slope=total(a * (linear + 2 * t * square)))


class _Filling:
    """Makes E₀, E₁ and E₂ out of the Q that the start has left in the place of E₀."""

    def __init__(self, start: Network, direction: Network, tangents: TangentSpaces) -> None:
        self._W2, self._S2 = start.W2, direction.W2
        self._S1 = namespace(direction.W1).ascontiguousarray(direction.W1.T)
        self._tangents = tangents
        self._room = Room(tangents, len(tangents), self._W2.shape[1])

    def __call__(self, points: slice, E: Any) -> None:
        xp = namespace(E)
        T = self._tangents.block(points)
        _, U, _, R = self._room.arrays(*T.shape[:2])
        times_weights(T, self._S1, U)
        xp.matmul(T.transpose(0, 2, 1), U, out=R)
        fill_line(E, R, self._W2, self._S2)
