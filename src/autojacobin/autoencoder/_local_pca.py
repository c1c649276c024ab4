"""Principal directions of a neighbourhood, and how many of them make the tangent space."""

from __future__ import annotations

from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.autoencoder._leading import block_size, leading_eigenvectors
from autojacobin.autoencoder._neighbors import Candidates

__all__ = ["local_pca"]

_NUMBERS_IN_CACHE = 2**18
_WIDE = 192  # dimensions from which the leading eigenvectors alone are sooner had than all of them


def local_pca(candidates: Candidates, neighbors: Any, max_rank: int, energy: float) -> tuple[Any, Any, Any]:
    """Bases (s, max_rank, D) and ranks (s,) of the neighbourhoods that ``neighbors`` (s, K) names among the candidates.

    Rows of a basis beyond its rank are zero. The third array (s, max_rank) has the share of the variance that the
    leading directions keep, by their number.
    """
    points = candidates.points
    xp = namespace(points)
    if xp is np:
        values, bases, total, largest_mean = _few_at_once(points, neighbors, max_rank)
    else:
        values, bases, total, largest_mean = _all_at_once(candidates, neighbors, max_rank)
    kept = xp.cumsum(xp.maximum(values, 0), axis=1)
    # A sum of D eigenvalues is known to about D roundings; without that slack energy=1 would take noise along.
    slack = points.shape[1] * xp.finfo(values.dtype).eps
    enough = kept >= (energy - slack) * total[:, None]
    most = min(max_rank, max(1, neighbors.shape[1] - 1))
    ranks = xp.where(enough.any(axis=1), enough.argmax(axis=1) + 1, most)
    # Equal points have no direction at all, but the rounding of their mean looks like one.
    digit = 4 * xp.finfo(values.dtype).eps * largest_mean
    ranks = xp.where(total > neighbors.shape[1] * points.shape[1] * digit**2, ranks, 0)
    bases[xp.arange(max_rank) >= ranks[:, None]] = 0
    return bases, ranks, kept / xp.where(total > 0, total, 1)[:, None]


def _few_at_once(points: Any, neighbors: Any, max_rank: int) -> tuple[Any, Any, Any, Any]:
    """Leading eigenvalues and eigenvectors, total variance, largest entry of the mean; on a CPU.

    A few neighbourhoods at a time, since they stay in the cache.
    """
    from autojacobin.autoencoder._eigh import leading_eigh  # not before a fit: loading numba takes a second

    (s, K), D = neighbors.shape, points.shape[1]
    values = np.zeros((s, max_rank), dtype=points.dtype)
    bases = np.zeros((s, max_rank, D), dtype=points.dtype)
    r = min(max_rank, max(1, K - 1))  # K points have no more directions than that
    total, largest_mean = np.empty((2, s), dtype=points.dtype)
    at_once = min(s, max(1, _NUMBERS_IN_CACHE // (max(K, D) * D)))
    room = np.empty((at_once, K, D), dtype=points.dtype)
    for first in range(0, s, at_once):
        few = slice(first, min(first + at_once, s))
        clouds = room[: few.stop - first]
        np.take(points, neighbors[few], axis=0, out=clouds, mode="clip")  # any other mode would buffer the output
        means = clouds.mean(axis=1, keepdims=True)
        clouds -= means
        largest_mean[few] = np.abs(means).max(axis=(1, 2))
        products = np.matmul(clouds.transpose(0, 2, 1), clouds)
        total[few] = np.trace(products, axis1=1, axis2=2)
        values[few, :r], bases[few, :r] = leading_eigh(products, r)
    return values, bases, total, largest_mean


def _all_at_once(candidates: Candidates, neighbors: Any, max_rank: int) -> tuple[Any, Any, Any, Any]:
    """The same on a GPU, which wants many small problems in one call."""
    xp = namespace(candidates.points)
    clouds = candidates.points[neighbors]
    means = clouds.mean(axis=1, keepdims=True)
    clouds -= means
    largest_mean = xp.abs(means).max(axis=(1, 2))
    products = xp.matmul(clouds.transpose(0, 2, 1), clouds)
    block = block_size(max_rank)
    if products.shape[1] >= _WIDE and 2 * block <= products.shape[1]:
        total = xp.trace(products, axis1=1, axis2=2)
        values, bases = leading_eigenvectors(products, max_rank, candidates.frame(block).T)
        return values, bases, total, largest_mean
    values, vectors = xp.linalg.eigh(products)
    bases = vectors.transpose(0, 2, 1)[:, ::-1][:, :max_rank].copy()
    return values[:, ::-1][:, :max_rank], bases, xp.maximum(values, 0).sum(axis=1), largest_mean
