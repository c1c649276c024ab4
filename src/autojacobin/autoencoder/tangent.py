"""Tangent spaces of the data by local PCA.

The tangent space at a point is spanned by the leading principal directions of its nearest neighbours: as many as keep
a share ``energy`` of their variance, and never more than ``max_rank``. The point is one of its own neighbours, and the
mean of the neighbours is the centre of the local PCA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autojacobin.autoencoder.eigenvectors import block_size, leading_eigenvectors, leading_eigh
from autojacobin.core.arrays import free_gpu_memory, namespace
from autojacobin.core.linear_algebra import centre, principal_frame
from autojacobin.core.parallel import Progress, map_points, scipy_linalg, slices

_POINTS_PER_TASK = 32
_NUMBERS_IN_CACHE = 2**18
# On a GPU: numbers of all neighbourhoods in one step, and bytes of memory that each of them needs.
_NUMBERS_PER_GPU_TASK, _BYTES_PER_NUMBER = 2**29, 32
# On a GPU, from this many dimensions on, computing the leading eigenvectors is faster than computing all of them.
_FEWEST_DIMENSIONS_TO_ITERATE = 192
# Bases that would take more bytes than this are stored in 16 bits per number.
_BYTES_IN_FULL = 2_500_000_000
_LARGEST_INT16 = 32767
# Bases that would take more bytes than this in 16 bits are not stored, but estimated batch by batch.
_MOST_BYTES_STORED = 5_000_000_000


@dataclass(frozen=True)
class TangentSpaces:
    """A tangent space for each of n points.

    ``stored`` (m, r, D) holds orthonormal rows that span each space. A space of rank below r has rows of zeros at the
    end. They add nothing to TT' or to any product with it, so that most code can ignore the ``ranks``. With int16
    numbers, ``scales`` (m, r) has a factor for each row; this rounding turns a space by an angle of 4e-5. ``rows`` says
    which of the m stored spaces belong to the n points, by default all. ``shares`` (m, r) is the share of the local
    variance that the first 1, 2, … r rows keep. ``truncated`` says that rows beyond the ranks are not zero, and must be
    ignored.
    """

    stored: Any
    ranks: Any
    scales: Any = None
    rows: Any = None
    shares: Any = None
    truncated: bool = False

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, points: Any) -> TangentSpaces:
        """Spaces of some of the points. Nothing is copied, since the bases of a batch can take a gigabyte."""
        rows = namespace(self.ranks).arange(len(self)) if self.rows is None else self.rows
        return replace(self, ranks=self.ranks[points], rows=rows[points])

    def at_energy(self, energy: float) -> TangentSpaces:
        """Spaces that keep a smaller share of the variance. The bases are shared, not copied."""
        xp = namespace(self.ranks)
        shares = self.shares if self.rows is None else self.shares[self.rows]
        enough = shares >= energy - self.stored.shape[2] * xp.finfo(shares.dtype).eps
        ranks = xp.minimum(self.ranks, _fewest_directions(enough, enough.shape[1]))
        return replace(self, ranks=ranks.astype(self.ranks.dtype), truncated=True)

    @property
    def bases(self) -> Any:
        """All bases as floats, shape (n, r, D)."""
        return self._floats(slice(None), self.stored.shape[1])

    def block(self, points: slice) -> Any:
        """Bases of a few consecutive points as floats, without the rows that are zero for all of them."""
        on_host = isinstance(self.ranks, np.ndarray)  # on a GPU, reading the largest rank would wait for all work
        return self._floats(points, int(self.ranks[points].max()) if on_host else self.stored.shape[1])

    def _floats(self, points: slice, r: int) -> Any:
        rows = points if self.rows is None else self.rows[points]
        if r == self.stored.shape[1] and self.rows is not None:
            bases = self.stored.take(rows, axis=0)  # twice as fast as indexing, but only for whole bases
        else:
            bases = self.stored[:, :r][rows]
        if self.scales is not None:
            bases = bases * self.scales[:, :r][rows][:, :, None]
        if self.truncated:
            bases = bases * (namespace(self.ranks).arange(r) < self.ranks[points][:, None])[:, :, None]
        return bases


class TangentsOnDemand:
    """The tangent spaces at the rows of ``X``, each estimated when it is first asked for.

    A space is estimated from the ``n_neighbors`` nearest rows, including the row itself, and keeps a share ``energy``
    of their variance, in at most ``max_rank`` dimensions. Neighbours are searched among ``sample`` rows that ``rng``
    draws; None searches all of them. If all spaces fit into memory, they are kept, and ``progress("tangent spaces",
    done, n)`` counts them. Otherwise they are estimated anew whenever they are asked for.
    """

    def __init__(
        self,
        X: Any,
        n_neighbors: int,
        max_rank: int,
        energy: float,
        *,
        sample: int | None = None,
        rng: np.random.RandomState | None = None,
        progress: Progress | None = None,
    ) -> None:
        xp = namespace(X)
        n, D = X.shape
        self._X, self._progress, self._settings = X, progress, (n_neighbors, max_rank, energy)
        if sample is not None and rng is not None and sample < n:
            drawn = xp.asarray(np.sort(rng.choice(n, sample, replace=False)))
            self._candidates, self._own_rows = Candidates(X[drawn]), None
        else:
            self._candidates, self._own_rows = Candidates(X), xp.arange(n)
        self._ranks = {energy: xp.full(n, -1, dtype=xp.int32)}
        self._kept = self._empty(self._ranks[energy]) if 2 * n * max_rank * D <= _MOST_BYTES_STORED else None

    def __getitem__(self, points: Any) -> TangentSpaces:
        """Spaces at the rows ``points``."""
        return self.spaces(points, self._settings[2])

    def spaces(self, points: Any, energy: float) -> TangentSpaces:
        """Spaces at the rows ``points`` that keep a share ``energy`` of the variance, at most that of the settings."""
        largest = self._settings[2]
        if self._kept is None:
            xp = namespace(self._X)
            spaces = self._empty(xp.full(len(points), -1, dtype=xp.int32))
            self._estimate(points, spaces, xp.arange(len(points)))
        else:
            missing = points[self._kept.ranks[points] < 0]
            self._estimate(missing, self._kept, missing, self._progress)
            spaces = self._kept[points]
        if energy != largest:
            spaces = spaces.at_energy(energy)
        self.known_ranks(energy)[points] = spaces.ranks
        return spaces

    def known_ranks(self, energy: float) -> Any:
        """Dimension of each space that was asked for at this energy, −1 for the others."""
        if energy not in self._ranks:
            self._ranks[energy] = namespace(self._X).full_like(self._ranks[self._settings[2]], -1)
        return self._ranks[energy]

    def estimate_all(self) -> TangentSpaces | None:
        """Estimate all spaces that are missing, and return them; None if they are not kept."""
        if self._kept is not None:
            missing = namespace(self._X).flatnonzero(self._kept.ranks < 0)
            self._estimate(missing, self._kept, missing, self._progress)
        return self._kept

    def _empty(self, ranks: Any) -> TangentSpaces:
        """Memory for the spaces of some points, with an array for their ranks."""
        xp, dtype, shape = namespace(ranks), self._X.dtype, (len(ranks), self._settings[1], self._X.shape[1])
        compact = math.prod(shape) * dtype.itemsize > _BYTES_IN_FULL
        # Pages of zeros that are never written take no memory, so spaces of low rank take little.
        stored = xp.zeros(shape, dtype=xp.int16 if compact else dtype)
        scales = xp.zeros(shape[:2], dtype=dtype) if compact else None
        return TangentSpaces(stored, ranks, scales, shares=xp.zeros(shape[:2], dtype=xp.float32))

    def _estimate(self, rows: Any, spaces: TangentSpaces, places: Any, progress: Progress | None = None) -> None:
        """Estimate the spaces at ``rows``, and write them to ``places`` of some memory."""
        if not len(rows):
            return
        xp = namespace(self._X)
        if xp is np:
            scipy_linalg()  # its BLAS library must be there, and limited, before the workers begin
        n_neighbors, max_rank, energy = self._settings
        n_before, n = int((spaces.ranks >= 0).sum()), len(spaces)

        def work(part: slice) -> int:
            points, place = rows[part], places[part]
            own_rows = None if self._own_rows is None else self._own_rows[points]
            neighbors = self._candidates.nearest(self._X[points], n_neighbors, own_rows)
            bases, ranks, spaces.shares[place] = local_pca(self._candidates, neighbors, max_rank, energy)
            if spaces.scales is not None:
                largest = xp.abs(bases).max(axis=2)
                spaces.scales[place] = largest / _LARGEST_INT16
                bases *= xp.where(largest > 0, _LARGEST_INT16 / xp.where(largest > 0, largest, 1), 0)[:, :, None]
                bases = xp.rint(bases, out=bases)
            r = int(ranks.max())
            spaces.stored[place, :r] = bases[:, :r]
            spaces.ranks[place] = ranks
            return int(part.stop)

        for done in map_points(work, rows, _points_per_task(self._X, n_neighbors)):
            if progress is not None:
                progress("tangent spaces", n_before + done, n)


@dataclass(frozen=True)
class TangentsView:
    """Spaces of a :class:`TangentsOnDemand` at some rows, for a training on these alone; nothing is estimated yet."""

    source: TangentsOnDemand
    rows: Any
    energy: float

    def __getitem__(self, points: Any) -> TangentSpaces:
        """Spaces at the points with these numbers among ``rows``."""
        return self.source.spaces(self.rows[points], self.energy)


class Candidates:
    """Points among which nearest neighbours are searched.

    One matrix product per block gives the distances: ‖x−y‖² = ‖x‖² − 2x'y + ‖y‖². The first summand is left out,
    because it is the same for all candidates.
    """

    def __init__(self, points: Any) -> None:
        self.points = points
        # Centring leaves the distances unchanged, and the norms small, so that little is lost to cancellation.
        self._mean, self._centred = centre(points)
        self._half_norms = 0.5 * (self._centred * self._centred).sum(axis=1)
        self._frame: Any = None

    def __len__(self) -> int:
        return len(self.points)

    def frame(self, n_directions: int) -> Any:
        """Leading principal directions of all candidates, as orthonormal rows; computed once."""
        if self._frame is None or len(self._frame) != n_directions:
            self._frame = principal_frame(self.points, self._mean, n_directions)
        return self._frame

    def nearest(self, X: Any, n_neighbors: int, own_rows: Any = None) -> Any:
        """Row numbers of the ``n_neighbors`` candidates nearest to each row of ``X``, in no particular order.

        A point that is a candidate, with the number ``own_rows``, is its own neighbour, whatever rounding says.
        """
        xp = namespace(X)
        if n_neighbors >= len(self):
            return xp.broadcast_to(xp.arange(len(self)), (len(X), len(self)))
        order = (self._mean - X) @ self._centred.T
        order += self._half_norms
        if own_rows is not None:
            order[xp.arange(len(X)), own_rows] = -xp.inf
        return xp.argpartition(order, n_neighbors - 1, axis=1)[:, :n_neighbors]


def tangent_spaces(
    X: Any, n_neighbors: int, max_rank: int, energy: float, progress: Progress | None = None
) -> TangentSpaces:
    """Estimate the tangent space at every row of ``X``, as :class:`TangentsOnDemand` does."""
    spaces = TangentsOnDemand(X, n_neighbors, max_rank, energy, progress=progress)
    return spaces.spaces(namespace(X).arange(len(X)), energy)


def _points_per_task(X: Any, n_neighbors: int) -> int:
    if namespace(X) is np:
        return _POINTS_PER_TASK
    free = free_gpu_memory(X)
    fitting = _NUMBERS_PER_GPU_TASK if free is None else min(_NUMBERS_PER_GPU_TASK, free // _BYTES_PER_NUMBER)
    D = int(X.shape[1])
    return max(1, fitting // (max(n_neighbors, D) * D))


def local_pca(candidates: Candidates, neighbors: Any, max_rank: int, energy: float) -> tuple[Any, Any, Any]:
    """Tangent spaces from the neighbourhoods that ``neighbors`` (s, K) lists as row numbers of the candidates.

    Returns bases (s, max_rank, D) with zeros beyond the rank, ranks (s,), and the shares of the variance (s, max_rank)
    that the first 1, 2, … directions keep.
    """
    points = candidates.points
    xp = namespace(points)
    solve = _principal_directions_cpu if xp is np else _principal_directions_gpu
    values, bases, total, largest_mean = solve(candidates, neighbors, max_rank)
    kept = xp.cumsum(xp.maximum(values, 0), axis=1)
    # A sum of D eigenvalues is uncertain by about D roundings. Without this slack, energy=1 would include noise.
    slack = points.shape[1] * xp.finfo(values.dtype).eps
    ranks = _fewest_directions(kept >= (energy - slack) * total[:, None], min(max_rank, max(1, neighbors.shape[1] - 1)))
    # Equal points have no direction at all, but rounding their mean leaves differences that look like one.
    rounding = 4 * xp.finfo(values.dtype).eps * largest_mean
    ranks = xp.where(total > neighbors.shape[1] * points.shape[1] * rounding**2, ranks, 0)
    bases[xp.arange(max_rank) >= ranks[:, None]] = 0
    return bases, ranks, kept / xp.where(total > 0, total, 1)[:, None]


def _fewest_directions(enough: Any, otherwise: int) -> Any:
    """How many directions it takes until ``enough`` (s, r) is true; ``otherwise`` where it never is."""
    return namespace(enough).where(enough.any(axis=1), enough.argmax(axis=1) + 1, otherwise)


def _principal_directions_cpu(candidates: Candidates, neighbors: Any, max_rank: int) -> tuple[Any, Any, Any, Any]:
    """Leading eigenvalues and eigenvectors, total variance, and largest entry of the mean, for each neighbourhood."""
    points = candidates.points
    (s, K), D = neighbors.shape, points.shape[1]
    values = np.zeros((s, max_rank), dtype=points.dtype)
    bases = np.zeros((s, max_rank, D), dtype=points.dtype)
    r = min(max_rank, max(1, K - 1))  # K points span at most K − 1 directions
    total, largest_mean = np.empty((2, s), dtype=points.dtype)
    for few in slices(s, max(1, _NUMBERS_IN_CACHE // (max(K, D) * D))):  # which stay in the cache
        products, largest_mean[few] = _scatter(points, neighbors[few])
        total[few] = np.trace(products, axis1=1, axis2=2)
        values[few, :r], bases[few, :r] = leading_eigh(products, r)
    return values, bases, total, largest_mean


def _principal_directions_gpu(candidates: Candidates, neighbors: Any, max_rank: int) -> tuple[Any, Any, Any, Any]:
    """The same on a GPU, in one call for many small problems."""
    xp = namespace(candidates.points)
    products, largest_mean = _scatter(candidates.points, neighbors)
    block = block_size(max_rank)
    if products.shape[1] >= _FEWEST_DIMENSIONS_TO_ITERATE and 2 * block <= products.shape[1]:
        total = xp.trace(products, axis1=1, axis2=2)
        values, bases = leading_eigenvectors(products, max_rank, candidates.frame(block).T)
        return values, bases, total, largest_mean
    values, vectors = xp.linalg.eigh(products)
    bases = vectors.transpose(0, 2, 1)[:, ::-1][:, :max_rank].copy()
    return values[:, ::-1][:, :max_rank], bases, xp.maximum(values, 0).sum(axis=1), largest_mean


def _scatter(points: Any, neighbors: Any) -> tuple[Any, Any]:
    """Scatter matrices (s, D, D) of neighbourhoods around their means, and the largest entry of each mean."""
    xp = namespace(points)
    clouds = points.take(neighbors, axis=0)
    means = clouds.mean(axis=1, keepdims=True)
    clouds -= means
    return xp.matmul(clouds.transpose(0, 2, 1), clouds), xp.abs(means).max(axis=(1, 2))
