"""Tangent spaces of the data by local PCA.

The tangent space at a point is spanned by the leading principal directions of its nearest
neighbours: as many as keep a share ``energy`` of their variance, and never more than ``max_rank``.
The neighbours include the point itself, and their own mean is the centre of the local PCA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autojacobin._arrays import free_gpu_memory, namespace
from autojacobin._parallel import map_points
from autojacobin.autoencoder._local_pca import local_pca
from autojacobin.autoencoder._neighbors import Candidates

__all__ = ["TangentSpaces", "tangent_spaces"]

_POINTS_PER_TASK = 32
# Numbers of neighbourhoods that a GPU works on at once, if it has the memory, and bytes that all of it takes for each.
_NUMBERS_PER_GPU_TASK, _BYTES_PER_NUMBER = 2**29, 32
# Bases that would take more than this many bytes are held in 16 bits a number.
_BYTES_IN_FULL = 2_500_000_000
_LARGEST_INT16 = 32767


@dataclass(frozen=True)
class TangentSpaces:
    """A tangent space for each of n points.

    Attributes
    ----------
    held : array of shape (m, r, D)
        Orthonormal rows that span the space. A space of lower rank than r has rows of zeros at the
        end; they add nothing to T T' nor to any product with it, so no code has to look at the ranks.
    ranks : array of int, shape (n,)
        Dimension of each space.
    scales : array of shape (m, r), optional
        Where ``held`` is int16: what a row is to be multiplied by. The rounding turns a space by 4e-5.
    chosen : array of int, shape (n,), optional
        Rows of ``held`` that belong to the n points; all of them, in order, without it.
    shares : array of shape (m, r), optional
        Share of the local variance that the leading rows keep, by their number.
    cut : bool
        Whether ``held`` has rows beyond the ranks, which have to be left out.
    """

    held: Any
    ranks: Any
    scales: Any = None
    chosen: Any = None
    shares: Any = None
    cut: bool = False

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, points: Any) -> TangentSpaces:
        """Spaces of some of the points; nothing is copied, since the bases of a batch can take a gigabyte."""
        chosen = namespace(self.ranks).arange(len(self)) if self.chosen is None else self.chosen
        return replace(self, ranks=self.ranks[points], chosen=chosen[points])

    def only(self, points: Any) -> TangentSpaces:
        """The same; where spaces are estimated on demand, this is the part of them that waits for its batches."""
        return self[points]

    def at_energy(self, energy: float) -> TangentSpaces:
        """Spaces that keep a smaller share of the variance than these do; the bases are shared, not copied."""
        xp = namespace(self.ranks)
        shares = self.shares if self.chosen is None else self.shares[self.chosen]
        enough = shares >= energy - self.held.shape[2] * xp.finfo(shares.dtype).eps
        ranks = xp.where(enough.any(axis=1), enough.argmax(axis=1) + 1, enough.shape[1])
        return replace(self, ranks=xp.minimum(self.ranks, ranks).astype(self.ranks.dtype), cut=True)

    @property
    def bases(self) -> Any:
        """All bases as floats, shape (n, r, D)."""
        return self._floats(slice(None), self.held.shape[1])

    def block(self, points: slice) -> Any:
        """Bases of a few consecutive points as floats, without the rows that are zero for all of them."""
        on_host = isinstance(self.ranks, np.ndarray)  # a GPU would have to wait for the answer
        return self._floats(points, int(self.ranks[points].max()) if on_host else self.held.shape[1])

    def _floats(self, points: slice, r: int) -> Any:
        rows = points if self.chosen is None else self.chosen[points]
        if r == self.held.shape[1] and self.chosen is not None:
            bases = self.held.take(rows, axis=0)  # twice as fast as indexing, but it would copy a part first
        else:
            bases = self.held[:, :r][rows]
        if self.scales is not None:
            bases = bases * self.scales[:, :r][rows][:, :, None]
        if self.cut:
            bases = bases * (namespace(self.ranks).arange(r) < self.ranks[points][:, None])[:, :, None]
        return bases


def tangent_spaces(
    X: Any,
    n_neighbors: int,
    max_rank: int,
    energy: float,
    progress: Callable[[int, int], None] | None = None,
    *,
    among: Candidates | None = None,
    places: Any = None,
) -> TangentSpaces:
    """Estimate the tangent space at every row of ``X`` from its ``n_neighbors`` nearest rows.

    Parameters
    ----------
    X : array of shape (n, D)
    n_neighbors : int
        Number of neighbours, the point itself among them; at most the number of candidates.
    max_rank : int
        Largest dimension of a tangent space; at most D.
    energy : float
        Share of the local variance that a tangent space has to keep.
    progress : callable, optional
        Called with the number of points done and n.
    among : Candidates, optional
        Points among which the neighbours are looked for; the rows of ``X`` by default.
    places : array of int, shape (n,), optional
        Where the rows of ``X`` are in ``among``, if they are.
    """
    xp = namespace(X)
    n, D = X.shape
    if among is None:
        among, places = Candidates(X), xp.arange(n)
    compact = n * max_rank * D * X.dtype.itemsize > _BYTES_IN_FULL
    # pages of zeros that are never written to take no memory, so a low rank costs only what it needs
    held = xp.zeros((n, max_rank, D), dtype=xp.int16 if compact else X.dtype)
    scales = xp.zeros((n, max_rank), dtype=X.dtype) if compact else None
    ranks = xp.empty(n, dtype=xp.int32)
    shares = xp.empty((n, max_rank), dtype=xp.float32)

    def work(rows: slice) -> int:
        neighbors = among.nearest(X[rows], n_neighbors, None if places is None else places[rows])
        bases, ranks[rows], shares[rows] = local_pca(among, neighbors, max_rank, energy)
        if scales is not None:
            largest = xp.abs(bases).max(axis=2)
            scales[rows] = largest / _LARGEST_INT16
            bases *= xp.where(largest > 0, _LARGEST_INT16 / xp.where(largest > 0, largest, 1), 0)[:, :, None]
            bases = xp.rint(bases, out=bases)
        r = int(ranks[rows].max())
        held[rows, :r] = bases[:, :r]
        return int(rows.stop)

    for done in map_points(work, X, _points_per_task(X, n_neighbors)):
        if progress is not None:
            progress(done, n)
    return TangentSpaces(held, ranks, scales, shares=shares)


def _points_per_task(X: Any, n_neighbors: int) -> int:
    if namespace(X) is np:
        return _POINTS_PER_TASK
    free = free_gpu_memory(X)
    fitting = _NUMBERS_PER_GPU_TASK if free is None else min(_NUMBERS_PER_GPU_TASK, free // _BYTES_PER_NUMBER)
    D = int(X.shape[1])
    return max(1, fitting // (max(n_neighbors, D) * D))
