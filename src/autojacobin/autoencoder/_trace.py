"""The second part of the Jacobian term, Σᵢ tr(Jᵢ TᵢTᵢ'), as thin products of tangent bases with the weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.autoencoder._jacobian_part import JacobianPart, total
from autojacobin.autoencoder._passes import close_trace, open_trace
from autojacobin.autoencoder.network import Network
from autojacobin.autoencoder.tangent import TangentSpaces

__all__ = ["Room", "groups", "times_weights", "trace"]

# Numbers of the tangent bases that are worked on at once.
_NUMBERS_PER_GROUP = 2**16
# A GPU wants few large steps instead.
_NUMBERS_PER_GPU_STEP = 2**28


def trace(network: Network, g: Any, a: Any, tangents: TangentSpaces, keep: Any = None) -> JacobianPart:
    """Σᵢ tr(Jᵢ TᵢTᵢ') = Σᵢ Σₙ gᵢₙ Σₖ Uᵢₖₙ Vᵢₖₙ with U = T' W1' and V = T' diag(a) W2, of shape r × d.

    The derivatives need no more than Q = T U and (V diag(g))' T'. Where ``keep`` (s, D, d) is given, Q is left there.
    """
    xp = namespace(g)
    W1, W2 = xp.ascontiguousarray(network.W1.T), network.W2
    (s, D), d = a.shape, g.shape[1]
    per_g, per_a = xp.empty_like(g), xp.empty_like(a)
    per_W1, per_W2 = xp.zeros_like(network.W1), xp.zeros_like(W2)
    room = Room(tangents, s, d)
    for points in groups(s, tangents, d):
        T = tangents.block(points)
        scaled, U, V, Q = room.arrays(*T.shape[:2])
        times_weights(T, W1, U)
        xp.multiply(T, a[points, None, :], out=scaled)
        times_weights(scaled, W2, V)
        open_trace(U, V, g[points], per_g[points])
        per_W1 += V.reshape(-1, d).T @ T.reshape(-1, D)
        xp.matmul(T.transpose(0, 2, 1), U, out=Q)
        if keep is not None:
            keep[points] = Q
        close_trace(Q, g[points], a[points], W2, per_a[points], per_W2)
    return JacobianPart(value=total(per_g * g), g=per_g, a=per_a, W1=per_W1, W2=per_W2)


def groups(n: int, tangents: TangentSpaces, d: int) -> Iterator[slice]:
    """Cut n points into groups whose temporaries fit the cache, or a GPU."""
    size = _group_size(tangents, d)
    return (slice(first, min(first + size, n)) for first in range(0, n, size))


def _group_size(tangents: TangentSpaces, d: int) -> int:
    _, r, D = tangents.held.shape
    numbers = _NUMBERS_PER_GROUP if namespace(tangents.held) is np else _NUMBERS_PER_GPU_STEP
    return max(1, numbers // (max(d, int(r)) * int(D)))


def times_weights(bases: Any, weights: Any, out: Any) -> None:
    """Multiply the basis (r, D) of every point by the same ``weights`` (D, d)."""
    xp = namespace(bases)
    if xp is np:
        # Point by point, since OpenBLAS is a quarter faster on matrices so small that it need not rearrange them.
        np.matmul(bases, weights, out=out)
    else:
        xp.matmul(bases.reshape(-1, bases.shape[2]), weights, out=out.reshape(-1, out.shape[2]))


class Room:
    """Room for the temporaries of a group of points, taken once: new memory costs as much as the sums in it."""

    def __init__(self, tangents: TangentSpaces, n: int, d: int) -> None:
        xp = namespace(tangents.held)
        _, r, D = tangents.held.shape
        size = min(n, _group_size(tangents, d))
        dtype = tangents.held.dtype if tangents.scales is None else tangents.scales.dtype
        self._scaled = xp.empty(size * r * D, dtype=dtype)
        self._U, self._V = (xp.empty(size * r * d, dtype=dtype) for _ in range(2))
        self._Q = xp.empty((size, D, d), dtype=dtype)

    def arrays(self, size: int, r: int) -> tuple[Any, Any, Any, Any]:
        """Give T diag(a), U, V and T U for ``size`` points of rank up to ``r``."""
        _, D, d = self._Q.shape
        scaled = self._scaled[: size * r * D].reshape(size, r, D)
        U, V = (side[: size * r * d].reshape(size, r, d) for side in (self._U, self._V))
        return scaled, U, V, self._Q[:size]
