"""What is run: the paper's methods, code lengths, numbers of neighbours and grids, limited to the data at hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autojacobin.datasets import VectorSet
from autojacobin.errors import DataError
from autojacobin.hashers import Hasher, find_method, methods
from autojacobin.search.arguments import as_count

COMPARED = ("LSH", "SpectralHashing", "ITQ", "OKMeans", "NOKMeans", "AutoJacoBin")
VARIANTS = ("AutoBin1", "AutoBin2", "DAutoBin", "CAutoBin")
CHOSEN = "AutoJacoBin (chosen)"
SHOWN = (*COMPARED, CHOSEN)
"""The methods in the recall curves, in figure 5 and in the explorer."""
EVERY = (CHOSEN, COMPARED[-1], *COMPARED[:-1], *VARIANTS)
"""Auto-JacoBin with chosen settings, then the ten methods with the paper's settings.

The columns of a wide table need scrolling, so the most important one comes first.
"""
ASYMMETRIC = ("ITQ", CHOSEN)
"""The methods whose codes are compared by the asymmetric distance as well."""
AUTOENCODER = "BinaryAutoencoder"
NEIGHBOUR = "NeighbourHashing"

_WEIGHTS = (0.01, 0.1, 1.0, 10.0)
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "AutoBin1": {"alpha": _WEIGHTS},
    "AutoBin2": {"alpha": _WEIGHTS},
    "DAutoBin": {"alpha": _WEIGHTS, "corruption": (0.01, 0.05, 0.1, 0.2)},
    "CAutoBin": {"alpha": _WEIGHTS, "contraction": _WEIGHTS},
}
"""Parameters that the paper searches for the variants of its method."""

_HIGH_DIMENSION = 256
_DEEPEST, _SHALLOWEST = 10_000, 1_000


def make_hasher(method: str, bits: int, seed: int, parameters: dict[str, Any]) -> Hasher:
    """Make an unfitted hasher by the name that its method has in the registry."""
    return find_method(method).make(bits, parameters, seed)


def every_method() -> tuple[str, ...]:
    """Names of all registered methods whose bits are signs of projections: those of ``EVERY``, then others."""
    others = (method for method in methods() if method.name not in EVERY)
    return (*EVERY, *(method.name for method in others if method.hasher.codes_are_signs))


@dataclass(frozen=True)
class Settings:
    """How much is run.

    Attributes
    ----------
    bits : tuple of int
        Lengths of the codes; the paper takes 64, 96, 128, and 64, 128, 256 for GIST. These, ``ks`` and ``alphas`` are
        sorted, and duplicates removed.
    ks : tuple of int
        Numbers of true neighbours.
    depth : int
        K, the number of points retrieved: the paper's 10,000 for a million points or more, else one in a hundred of
        the base, but at least 1,000.
    seeds : int
        Seeds 0 … seeds − 1 that the compared methods are averaged over. The grids over α and over the variants take
        seed 0 alone.
    training_points, queries, base : int or None
        Largest number of each. If there are more, the same random ones are always taken; None takes all.
    alphas : tuple of float
        Weights for figure 7.
    full_grids : bool
        Search the variants' whole grids, or only their weight α.
    """

    bits: tuple[int, ...] = (64, 96, 128)
    ks: tuple[int, ...] = (1, 5, 10, 50, 100)
    depth: int = _DEEPEST
    seeds: int = 3
    training_points: int | None = 10_000
    queries: int | None = 10_000
    base: int | None = None
    alphas: tuple[float, ...] = _WEIGHTS
    full_grids: bool = True

    def __post_init__(self) -> None:
        for name in ("bits", "ks", "alphas"):
            numbers = tuple(sorted(set(getattr(self, name))))
            if not numbers:
                raise DataError(f"{name} must hold at least one number, got none; leave it out for the paper's")
            object.__setattr__(self, name, numbers)
        for number in (*self.bits, *self.ks):
            as_count("every length of codes and every k", number)
        for name in ("depth", "seeds"):
            as_count(name, getattr(self, name))
        for name in ("training_points", "queries", "base"):
            if getattr(self, name) is not None:
                as_count(name, getattr(self, name))
        for alpha in self.alphas:
            if not 0 <= alpha < float("inf"):
                raise DataError(f"every alpha must be a number of at least 0, got {alpha!r}")

    def check_against(self, data: VectorSet) -> None:
        """Raise DataError if the set is too small for these settings."""
        dimension, n_base = int(data.train.shape[1]), min(len(data.base), self.base or len(data.base))
        if self.depth > n_base:
            raise DataError(
                f"depth must be from 1 to {n_base}, the size of the base, got {self.depth}; give another --depth"
            )
        if self.ks[-1] > n_base:
            raise DataError(
                f"every k must be from 1 to {n_base}, the size of the base, got {self.ks[-1]}; leave it out of ks"
            )
        if self.bits[-1] > dimension:
            raise DataError(
                f"bits must be from 1 to {dimension}, the dimension of {data.name}, where all methods are defined, "
                f"got {self.bits[-1]}; give other --bits"
            )

    @classmethod
    def for_set(
        cls,
        data: VectorSet,
        *,
        quick: bool = False,
        seeds: int | None = None,
        bits: tuple[int, ...] | None = None,
        depth: int | None = None,
        training_points: int | None = None,
    ) -> Settings:
        """Choose settings as in the paper for a set of this size; ``quick`` ones take about a minute."""
        dimension, n_base = int(data.train.shape[1]), len(data.base)
        if bits is None:
            usual = (64, 128, 256) if dimension >= _HIGH_DIMENSION else (64, 96, 128)
            bits = tuple(length for length in usual if length <= dimension) or (max(1, dimension // 2), dimension)
            bits = bits[:: max(1, len(bits) - 1)] if quick else bits
        base = min(n_base, 20_000) if quick else None
        n_base = base or n_base
        if depth is None:
            depth = min(_DEEPEST, max(_SHALLOWEST, n_base // 100), n_base)
        settings = cls(
            bits=bits,
            ks=tuple(k for k in cls.ks if k <= n_base),
            depth=depth,
            seeds=seeds if seeds is not None else 1 if quick else cls.seeds,
            training_points=training_points if training_points is not None else 2_000 if quick else cls.training_points,
            queries=300 if quick else cls.queries,
            base=base,
            full_grids=not quick,
        )
        settings.check_against(data)
        return settings


def cut(data: VectorSet, settings: Settings) -> VectorSet:
    """Take no more points of each part than the settings say."""
    train = _sample(len(data.train), settings.training_points)
    base = _sample(len(data.base), settings.base)
    queries = _sample(len(data.queries), settings.queries)
    return replace(
        data,
        train=np.asarray(data.train)[train],
        base=np.asarray(data.base)[base],
        queries=np.asarray(data.queries)[queries],
        truth=None,
        base_patches=None if data.base_patches is None else data.base_patches[base],
        query_patches=None if data.query_patches is None else data.query_patches[queries],
        base_places=None if data.base_places is None else data.base_places[base],
        query_places=None if data.query_places is None else data.query_places[queries],
    )


def _sample(n: int, most: int | None) -> Any:
    if most is None or n <= most:
        return slice(None)  # a memory map stays one
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))
