"""Queries as distances prepare them and tiles and lists search for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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

    The rank of a distance among all that codes of this length can have is ``table[differing, shared]``, with one row
    and one column for each number of bits and for 0. ``values`` has the distance of each rank, in ascending order.
    """

    table: npt.NDArray[np.float32]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Queries:
    """Queries as the kernels take them: a code each, and a weight for each bit.

    The distance of a query to a code is the sum of the weights of the bits in which they differ. Weights are whole
    numbers; ``scales`` turns the sums into real distances. With ``levels``, the whole numbers are ranks of distances.

    Plane t of a query marks the bits whose weight has 2^t in its binary form. If there are no planes, all bits have the
    weight 1, which is the Hamming distance.
    """

    words: npt.NDArray[np.uint64]  # codes, shape (n_queries, words)
    n_levels: int  # one more than the largest distance, which is at most ``LARGEST_DISTANCE``
    planes: npt.NDArray[np.uint64] = field(default_factory=lambda: _NO_PLANES)  # shape (n_queries, planes, words)
    scales: npt.NDArray[np.float64] | None = None  # the real distance that a weight of 1 stands for
    constants: npt.NDArray[np.float64] | None = None  # what is added to the real distances of a query
    levels: Levels | None = None  # for a distance that is no weighted sum

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Queries:
        scales, constants = (None if part is None else part[rows] for part in (self.scales, self.constants))
        planes = self.planes[rows] if len(self.planes) else self.planes
        return Queries(self.words[rows], self.n_levels, planes, scales, constants, self.levels)

    @staticmethod
    def concatenate(parts: Sequence[Queries]) -> Queries:
        """Join queries that were prepared in the same way."""
        first, *others = parts
        if not others:
            return first
        names = [name for name in ("words", "planes", "scales", "constants") if getattr(first, name) is not None]
        joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(first, **joined)

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

    The constant of a distance is ‖vector − start‖² + offset.
    """

    matrix: npt.NDArray[Any]  # shape (n_rows, n_features); the products of bits beyond its rows are zero
    start: npt.NDArray[Any]  # shape (n_features,)
    shift: npt.NDArray[Any]  # shape (n_bits,)
    n_level_bits: int = 0  # the last bits, if they are the number of a level
    offset: float = 0.0
