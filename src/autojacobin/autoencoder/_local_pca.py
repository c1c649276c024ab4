"""Principal directions of a neighbourhood, and how many of them make the tangent space."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.autoencoder._eigh import eigh

__all__ = ["local_pca"]


def local_pca(points: Any, neighbors: Any, max_rank: int, energy: float) -> tuple[Any, Any]:
    """Bases (s, max_rank, D) and ranks (s,) of the neighbourhoods ``points[neighbors]``, ``neighbors`` of shape (s, K).

    Rows of a basis beyond its rank are zero.
    """
    xp = namespace(points)
    values, bases, largest_mean = (_one_by_one if xp is np else _all_at_once)(points, neighbors, max_rank)
    values = xp.maximum(values, 0)
    kept = xp.cumsum(values[:, :max_rank], axis=1)
    total = values.sum(axis=1)
    # A sum of D eigenvalues is known to about D roundings; without that slack energy=1 would take noise along.
    slack = values.shape[1] * xp.finfo(values.dtype).eps
    enough = kept >= (energy - slack) * total[:, None]
    ranks = xp.where(enough.any(axis=1), enough.argmax(axis=1) + 1, max_rank)
    # Equal points have no direction at all, but the rounding of their mean looks like one.
    digit = 4 * xp.finfo(values.dtype).eps * largest_mean
    ranks = xp.where(total > neighbors.shape[1] * points.shape[1] * digit**2, ranks, 0)
    bases[xp.arange(max_rank) >= ranks[:, None]] = 0
    return bases, ranks


def _one_by_one(points: Any, neighbors: Any, max_rank: int) -> tuple[Any, Any, Any]:
    """Eigenvalues, leading eigenvectors and largest entry of the mean, on a CPU: a neighbourhood stays in the cache."""
    s, D = len(neighbors), points.shape[1]
    values = np.empty((s, D), dtype=points.dtype)
    bases = np.empty((s, max_rank, D), dtype=points.dtype)
    largest_mean = np.empty(s, dtype=points.dtype)
    cloud = np.empty((neighbors.shape[1], D), dtype=points.dtype)
    for i in range(s):
        np.take(points, neighbors[i], axis=0, out=cloud, mode="clip")  # any other mode would buffer the output
        mean = cloud.mean(axis=0)
        np.subtract(cloud, mean, out=cloud)
        ascending, vectors = eigh(cloud.T @ cloud)
        values[i] = ascending[::-1]
        bases[i] = vectors.T[::-1][:max_rank]
        largest_mean[i] = np.abs(mean).max()
    return values, bases, largest_mean


def _all_at_once(points: Any, neighbors: Any, max_rank: int) -> tuple[Any, Any, Any]:
    """The same on a GPU, which wants many small problems in one call."""
    xp = namespace(points)
    clouds = points[neighbors]
    means = clouds.mean(axis=1, keepdims=True)
    clouds -= means
    values, vectors = xp.linalg.eigh(xp.matmul(clouds.transpose(0, 2, 1), clouds))
    bases = vectors.transpose(0, 2, 1)[:, ::-1][:, :max_rank].copy()
    return values[:, ::-1], bases, xp.abs(means).max(axis=(1, 2))
