"""Tangent spaces of the data by local PCA.

The tangent space at a point is spanned by the leading principal directions of its nearest
neighbours: as many as keep a share ``energy`` of their variance, and never more than ``max_rank``.
The neighbours include the point itself, and their own mean is the centre of the local PCA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin._frames import centre
from autojacobin._parallel import map_points

__all__ = ["TangentSpaces", "nearest_neighbors", "tangent_spaces"]

_POINTS_PER_TASK = 32
_POINTS_PER_GPU_TASK = 2048
_DISTANCES_PER_BLOCK = 2**24


@dataclass(frozen=True)
class TangentSpaces:
    """A tangent space for each of n points.

    Attributes
    ----------
    bases : array of shape (n, r, D)
        Orthonormal rows that span the space. A space of lower rank than r has rows of zeros at the
        end; they add nothing to T T' nor to any product with it, so no code has to look at the ranks.
    ranks : array of int, shape (n,)
        Dimension of each space.
    """

    bases: Any
    ranks: Any

    def __len__(self) -> int:
        return len(self.bases)

    def __getitem__(self, points: Any) -> TangentSpaces:
        return TangentSpaces(self.bases[points], self.ranks[points])


def tangent_spaces(
    X: Any,
    n_neighbors: int,
    max_rank: int,
    energy: float,
    progress: Callable[[int, int], None] | None = None,
) -> TangentSpaces:
    """Estimate the tangent space at every row of ``X`` from its ``n_neighbors`` nearest rows.

    Parameters
    ----------
    X : array of shape (n, D)
    n_neighbors : int
        Number of neighbours, the point itself among them; at most n.
    max_rank : int
        Largest dimension of a tangent space; at most D.
    energy : float
        Share of the local variance that a tangent space has to keep.
    progress : callable, optional
        Called with the number of points done and n.
    """
    xp = namespace(X)
    n, D = X.shape
    bases = xp.empty((n, max_rank, D), dtype=X.dtype)
    ranks = xp.empty(n, dtype=xp.int32)
    neighbors = nearest_neighbors(X, n_neighbors)

    def work(rows: slice) -> int:
        bases[rows], ranks[rows] = _local_pca(X[neighbors[rows]], max_rank, energy)
        return int(rows.stop)

    for done in map_points(work, X, _POINTS_PER_TASK if xp is np else _POINTS_PER_GPU_TASK):
        if progress is not None:
            progress(done, n)
    return TangentSpaces(bases, ranks)


def nearest_neighbors(X: Any, n_neighbors: int) -> Any:
    """Row numbers of the ``n_neighbors`` rows nearest to each row of ``X``, itself included, in no order.

    Distances come from one matrix product a block, ‖x−y‖² = ‖x‖² − 2x'y + ‖y‖², of which ‖x‖² is the
    same for all candidates and left out.
    """
    xp = namespace(X)
    n = len(X)
    if n_neighbors >= n:
        return xp.broadcast_to(xp.arange(n), (n, n))
    _, centred = centre(X)  # distances stay, while the cancellation between large norms goes
    half_norms = 0.5 * (centred * centred).sum(axis=1)
    neighbors = xp.empty((n, n_neighbors), dtype=xp.int64)
    block = max(1, _DISTANCES_PER_BLOCK // n)
    for start in range(0, n, block):
        rows = slice(start, start + block)
        order = half_norms - centred[rows] @ centred.T
        # rounding must not push a point out of its own neighbourhood
        order[xp.arange(len(order)), xp.arange(start, start + len(order))] = -xp.inf
        neighbors[rows] = xp.argpartition(order, n_neighbors - 1, axis=1)[:, :n_neighbors]
    return neighbors


def _local_pca(clouds: Any, max_rank: int, energy: float) -> tuple[Any, Any]:
    """Bases and ranks for a stack of neighbourhoods (s, K, D)."""
    xp = namespace(clouds)
    means = clouds.mean(axis=1, keepdims=True)
    clouds = clouds - means
    values, vectors = xp.linalg.eigh(xp.matmul(clouds.transpose(0, 2, 1), clouds))
    values = xp.maximum(values[:, ::-1], 0)
    kept = xp.cumsum(values[:, :max_rank], axis=1)
    total = values.sum(axis=1, keepdims=True)
    # A sum of D eigenvalues is known to about D roundings; without that slack energy=1 would take noise along.
    slack = values.shape[1] * xp.finfo(values.dtype).eps
    enough = kept >= (energy - slack) * total
    ranks = xp.where(enough.any(axis=1), enough.argmax(axis=1) + 1, max_rank)
    # Equal points have no direction at all, but the rounding of their mean looks like one.
    digit = 4 * xp.finfo(values.dtype).eps * xp.abs(means).max(axis=(1, 2))
    rounding = clouds.shape[1] * clouds.shape[2] * digit**2
    ranks = xp.where(total[:, 0] > rounding, ranks, 0)
    bases = vectors.transpose(0, 2, 1)[:, ::-1][:, :max_rank].copy()
    bases[xp.arange(max_rank) >= ranks[:, None]] = 0
    return bases, ranks
