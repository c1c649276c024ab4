"""Tangent spaces of more points than memory holds: estimated anew whenever a batch asks for its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autojacobin._arrays import namespace
from autojacobin.autoencoder._neighbors import Candidates
from autojacobin.autoencoder.tangent import TangentSpaces, tangent_spaces

__all__ = ["TangentsOnDemand", "tangents_for_training"]

# Tangent spaces that would take more bytes than this, held in 16 bits, are not held.
_BYTES_HELD = 5_000_000_000
_POINTS_AT_ONCE = 1000


def tangents_for_training(
    X: Any,
    n_neighbors: int,
    max_rank: int,
    energy: float,
    *,
    sample: int | None,
    rng: np.random.RandomState,
    progress: Callable[[int, int], None] | None = None,
) -> TangentSpaces | TangentsOnDemand:
    """Tangent spaces at all rows of ``X``, held where memory allows it and left for later where it does not.

    Parameters
    ----------
    X, n_neighbors, max_rank, energy, progress
        As in :func:`tangent_spaces`.
    sample : int or None
        Look for neighbours among this many rows, drawn at random; None, or no fewer than there are, takes all.
    rng : RandomState
        Draws the sample; left alone when there is nothing to draw.
    """
    xp = namespace(X)
    n, D = X.shape
    if sample is not None and sample < n:
        chosen = xp.asarray(np.sort(rng.choice(n, sample, replace=False)))
        among, places = Candidates(X[chosen]), None
    else:
        among, places = Candidates(X), xp.arange(n)
    if 2 * n * max_rank * D > _BYTES_HELD:
        return TangentsOnDemand(X, n_neighbors, max_rank, energy, among, places)
    return tangent_spaces(X, n_neighbors, max_rank, energy, progress, among=among, places=places)


class TangentsOnDemand:
    """Stands for the tangent spaces at all rows of ``X``; those of a batch are estimated when it asks for them."""

    def __init__(
        self, X: Any, n_neighbors: int, max_rank: int, energy: float, among: Candidates, places: Any = None
    ) -> None:
        self._X, self._among, self._places = X, among, places
        self._settings = (n_neighbors, max_rank, energy)
        self._ranks = namespace(X).full(len(X), -1, dtype="int32")

    def __len__(self) -> int:
        return len(self._X)

    def __getitem__(self, points: Any) -> TangentSpaces:
        """Estimate the spaces at the rows ``points``."""
        places = None if self._places is None else self._places[points]
        spaces = tangent_spaces(self._X[points], *self._settings, among=self._among, places=places)
        self._ranks[points] = spaces.ranks
        return spaces

    def only(self, points: Any) -> TangentsOnDemand:
        """Those at the rows ``points``, none of which is estimated yet."""
        places = None if self._places is None else self._places[points]
        return TangentsOnDemand(self._X[points], *self._settings, self._among, places)

    def at_energy(self, energy: float) -> TangentsOnDemand:
        """Spaces that keep another share of the variance."""
        n_neighbors, max_rank, _ = self._settings
        return TangentsOnDemand(self._X, n_neighbors, max_rank, energy, self._among, self._places)

    @property
    def ranks(self) -> Any:
        """Dimension of each space; points that no batch has asked about yet are looked at now."""
        missing = namespace(self._X).flatnonzero(self._ranks < 0)
        for first in range(0, len(missing), _POINTS_AT_ONCE):
            self[missing[first : first + _POINTS_AT_ONCE]]
        return self._ranks
