"""Queries as distances prepare them and tiles and lists search for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

LARGEST_DISTANCE = 2**15 - 1  # the kernels keep a distance in 15 bits
_NO_PLANES = np.empty((0, 0, 0), dtype=np.uint64)


class DistanceTerms(NamedTuple):
    """Terms of the distance of queries to codes s ∈ {−1, 1}^n_bits, which is constant − weights·s.

    Attributes
    ----------
    weights : array of shape (n_queries, n_bits)
        A weight for each bit.
    constants : array of float64, shape (n_queries,)
        The part that is the same for all codes.
    n_level_bits : int
        The last bits of a code that are the number of a level. They may weigh much more than the others.
    """

    weights: npt.NDArray[Any]
    constants: npt.NDArray[np.float64]
    n_level_bits: int


@dataclass(frozen=True)
class Levels:
    """Distances that depend on how many bits of two codes differ and how many ones they share, and on nothing else.

    Attributes
    ----------
    table : array of float32, shape (n_bits + 1, n_bits + 1)
        ``table[differing, shared]`` is the rank of a distance among all that codes of this length can have.
    values : array of float32, shape (n_levels,)
        The distance of each rank, in ascending order.
    """

    table: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Queries:
    """Queries as the kernels take them: a code each, and a weight for each bit.

    The distance of a query to a code is the sum of the weights of the bits in which they differ. Weights are whole
    numbers; ``scales`` turns the sums into real distances. With ``levels``, the whole numbers are ranks of distances.

    Attributes
    ----------
    words : array of uint64, shape (n_queries, words)
        Codes of the queries.
    n_levels : int
        One more than the largest distance, which is at most ``LARGEST_DISTANCE``.
    planes : array of uint64, shape (n_queries, planes, words)
        Plane t marks the bits whose weight has 2^t in its binary form. The number of planes is a multiple of four. If
        it is empty, all bits have the weight 1, which is the Hamming distance.
    scales : array of float64, shape (n_queries,), optional
        The real distance that a weight of 1 stands for. If there are none, whole numbers are the distances.
    constants : array of float64, shape (n_queries,), optional
        What is added to the real distances of a query.
    levels : Levels, optional
        For a distance that is no weighted sum: its rank by the numbers of bits that differ and that are shared.
    """

    words: npt.NDArray[np.uint64]
    n_levels: int
    planes: npt.NDArray[np.uint64] = field(default_factory=lambda: _NO_PLANES)
    scales: npt.NDArray[np.float64] | None = None
    constants: npt.NDArray[np.float64] | None = None
    levels: Levels | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Queries:
        scales, constants = (None if part is None else part[rows] for part in (self.scales, self.constants))
        planes = self.planes[rows] if len(self.planes) else self.planes
        return Queries(self.words[rows], self.n_levels, planes, scales, constants, self.levels)

    @classmethod
    def concatenate(cls, parts: Sequence[Queries]) -> Queries:
        """Join queries that were prepared in the same way."""
        if len(parts) == 1:
            return parts[0]
        scales = [part.scales for part in parts if part.scales is not None]
        constants = [part.constants for part in parts if part.constants is not None]
        return cls(
            np.concatenate([part.words for part in parts]),
            parts[0].n_levels,
            np.concatenate([part.planes for part in parts]),
            np.concatenate(scales) if scales else None,
            np.concatenate(constants) if constants else None,
            parts[0].levels,
        )

    def real(self, distances: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Convert integer distances to real ones, one row per query.

        Scale and constant are one number for each query, so the order does not change.
        """
        if self.levels is not None:
            return self.levels.values[distances]
        if self.scales is None:
            return distances
        real = distances * self.scales[:, np.newaxis]
        if self.constants is not None:
            real += self.constants[:, np.newaxis]
        return real.astype(np.float32)


class Projection(NamedTuple):
    """How a vector becomes the weights of the bits of a code: 2 (vector − start)·matrix' + shift.

    Attributes
    ----------
    matrix : array of shape (n_rows, n_features)
        At most as many rows as bits; the products of the other bits are zero.
    start : array of shape (n_features,)
    shift : array of shape (n_bits,)
    n_level_bits : int
        The last bits, if they are the number of a level.
    offset : float
        The constant of a distance is ‖vector − start‖² + offset.
    """

    matrix: npt.NDArray[Any]
    start: npt.NDArray[Any]
    shift: npt.NDArray[Any]
    n_level_bits: int = 0
    offset: float = 0.0
