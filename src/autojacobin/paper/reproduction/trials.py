"""What is run: methods, settings and grids of the paper, the trials that they make, and how one of these is run."""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin import __version__
from autojacobin.autoencoder import batches_per_epoch
from autojacobin.datasets import VectorSet
from autojacobin.errors import DataError
from autojacobin.evaluation.measures import ranks_in_list
from autojacobin.hashers import Hasher, find_method, methods
from autojacobin.search import asymmetric_topk, rerank
from autojacobin.search.arguments import as_count
from autojacobin.search.distances import DISTANCES

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
PAPER_ALPHA, _PAPER_EPOCHS, _PAPER_STEPS, _PAPER_POINTS, _PAPER_BATCH = 0.1, 5, 50, 10_000, 1000
N_PICTURED = 99  # neighbours of a query in figure 5 of the paper
_SHARE_PICTURED = 10_000
_QUERIES_PER_BLOCK = 1000
_LONGEST_ROUNDED = 2_184  # bits of an asymmetric search with rounded weights


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
    methods : tuple of str
        Names of the methods in tables and recall curves, in place of the usual ones; what needs others is left out.
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
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("bits", "ks", "alphas"):
            numbers = tuple(sorted(set(getattr(self, name))))
            if not numbers:
                raise DataError(f"{name} must hold at least one number, got none; leave it out for the paper's")
            object.__setattr__(self, name, numbers)
        object.__setattr__(self, "methods", tuple(find_method(name).name for name in dict.fromkeys(self.methods)))
        for number in (*self.bits, *self.ks):
            as_count("every length of codes and every k", number)
        for name in ("depth", "seeds", "training_points", "queries", "base"):
            if getattr(self, name) is not None:
                as_count(name, getattr(self, name))

    @property
    def compared(self) -> tuple[str, ...]:
        """The methods of Table II."""
        return self.methods or COMPARED

    @property
    def shown(self) -> tuple[str, ...]:
        """The methods in the recall curves and in figure 5."""
        return self.methods or SHOWN

    @property
    def every(self) -> tuple[str, ...]:
        """The methods of the table of all of them."""
        return self.methods or every_method()

    def check_against(self, data: VectorSet) -> None:
        """Raise DataError if the set is too small for these settings."""
        dimension, n_base = int(data.train.shape[1]), min(len(data.base), self.base or len(data.base))
        as_count("depth", self.depth, n_base, "the size of the base")
        as_count("every k", self.ks[-1], n_base, "the size of the base")
        as_count("bits", self.bits[-1], dimension, f"the dimension of {data.name}, where all methods are defined")

    @classmethod
    def for_set(cls, data: VectorSet, *, quick: bool = False, **given: Any) -> Settings:
        """Choose settings as in the paper for a set of this size; ``quick`` ones take about a minute.

        Other settings may be given by name, such as ``bits``; None stands for the choice.
        """
        dimension, n_base = int(data.train.shape[1]), len(data.base)
        usual = (64, 128, 256) if dimension >= _HIGH_DIMENSION else (64, 96, 128)
        bits = tuple(length for length in usual if length <= dimension) or (max(1, dimension // 2), dimension)
        chosen: dict[str, Any] = {"bits": bits}
        if quick:
            n_base = min(n_base, 20_000)
            chosen = {"bits": bits[:: max(1, len(bits) - 1)], "seeds": 1, "training_points": 2_000, "queries": 300}
            chosen |= {"base": n_base, "full_grids": False}
        chosen["ks"] = tuple(k for k in cls.ks if k <= n_base)
        chosen["depth"] = min(_DEEPEST, max(_SHALLOWEST, n_base // 100), n_base)
        settings = cls(**chosen | {name: value for name, value in given.items() if value is not None})
        settings.check_against(data)
        return settings


def cut(data: VectorSet, settings: Settings) -> VectorSet:
    """Take no more points of each part than the settings say."""
    most = {"train": settings.training_points, "base": settings.base, "queries": settings.queries}
    rows = {part: _sample(len(getattr(data, part)), number) for part, number in most.items()}
    parts = {part: np.asarray(getattr(data, part))[rows[part]] for part in most}
    for part, name in (("base", "base"), ("queries", "query")):
        for beside in (f"{name}_patches", f"{name}_places"):
            held = getattr(data, beside)
            parts[beside] = None if held is None else held[rows[part]]
    return replace(data, truth=None, **parts)


def _sample(n: int, most: int | None) -> Any:
    if most is None or n <= most:
        return slice(None)  # a memory map stays one
    return np.sort(np.random.default_rng(0).choice(n, most, replace=False))


@dataclass(frozen=True)
class Trial:
    """A method with a code length, a seed, and the parameters that differ from its defaults."""

    method: str
    bits: int
    seed: int
    parameters: tuple[tuple[str, float], ...] = ()
    pictured: bool = False  # whether the points that figure 5 shows are kept

    @property
    def cost(self) -> int:
        """Rough duration in arbitrary units, for the progress bar."""
        slow = {CHOSEN: 2 * self.bits, "AutoJacoBin": self.bits, NEIGHBOUR: self.bits}
        return slow.get(self.method, max(1, self.bits // 32))

    def __str__(self) -> str:
        given = "".join(f", {name}={value:g}" for name, value in self.parameters)
        return f"{self.method}, {self.bits} bits{given}, seed {self.seed}"

    def key(self, data: str, depth: int, k: int) -> str:
        """Name under which the outcome is kept.

        It depends on the set, the depth, k, all parameters of the method, and the version of the library.
        """
        parameters = make_hasher(self.method, self.bits, self.seed, dict(self.parameters)).get_params()
        named = [data, depth, k, self.method, sorted(parameters.items()), self.seed, self.pictured, __version__]
        digest = hashlib.sha256(json.dumps(named, default=str).encode()).hexdigest()[:16]
        return f"{'-'.join(re.findall('[A-Za-z0-9]+', self.method))}-{self.bits}-{self.seed}-{digest}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """Outcome of a trial. Every measure of the paper is computed from it."""

    # of shape (n_queries, k): how many points were retrieved before each true neighbour, ``depth`` if it was not found
    before: npt.NDArray[np.int32]
    depth: int  # number of points retrieved
    seconds: dict[str, float]  # of ``fit``, ``encode`` (of the base) and ``search``
    pictured: npt.NDArray[np.int32] | None = None  # the 99 retrieved points nearest to each query
    history: dict[str, npt.NDArray[Any]] = field(default_factory=dict)  # cost and its terms at each step
    warned: tuple[str, ...] = ()  # warnings of the fit
    asymmetric: npt.NDArray[np.int32] | None = None  # as ``before``, by the asymmetric distance
    trained_as: str = ""  # with the settings that the method chose for itself
    hasher: Hasher | None = field(default=None, repr=False)  # kept only if the run was asked for this model

    def by_asymmetric(self) -> Outcome | None:
        """Give the outcome by the asymmetric distance, if that was searched as well."""
        return None if self.asymmetric is None else replace(self, before=self.asymmetric, asymmetric=None)

    def recall_curve(self, k: int) -> npt.NDArray[np.float64]:
        """Recall@i for i = 1 … depth, mean over the queries."""
        found = self.before[:, :k]
        hits = np.bincount(found[found < self.depth], minlength=self.depth)
        return np.cumsum(hits) / found.size

    def m_recall(self, k: int) -> npt.NDArray[np.float64]:
        """m-Recall of each query: a neighbour found after b others counts in depth − b of the Recall@i."""
        return (self.depth - self.before[:, :k]).mean(axis=1) / self.depth


def run_trial(trial: Trial, data: VectorSet, truth: npt.NDArray[np.int64], depth: int) -> Outcome:
    """Fit the method, encode base and queries, and search."""
    hasher = make_hasher(trial.method, trial.bits, trial.seed, dict(trial.parameters))
    seconds = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        hasher.fit(data.train, training_points=None)
        seconds["fit"] = time.perf_counter() - start
    start = time.perf_counter()
    base = hasher.encode(data.base)
    seconds["encode"] = time.perf_counter() - start
    distance, looked_at = DISTANCES[hasher.score_distance], n_looked_at(len(base), depth)
    before, asymmetric, pictured, seconds["search"] = [], [], [], 0.0
    for first in range(0, len(data.queries), _QUERIES_PER_BLOCK):  # limits the memory for deep results
        block = slice(first, first + _QUERIES_PER_BLOCK)
        queries = data.queries[block]
        encoded = distance.encode(hasher, queries)
        start = time.perf_counter()
        _, ids = distance.topk(encoded, base, depth)
        seconds["search"] += time.perf_counter() - start
        before.append(_ranks(ids, truth[block], depth))
        if trial.pictured and depth >= N_PICTURED:
            _, nearest = rerank(queries, ids[:, :looked_at], data.base, N_PICTURED)
            pictured.append(nearest.astype(np.int32))
        if trial.method in ASYMMETRIC:
            _, ids = asymmetric_topk(hasher.project(queries), base, depth, exact=trial.bits > _LONGEST_ROUNDED)
            asymmetric.append(_ranks(ids, truth[block], depth))
    return Outcome(
        before=np.concatenate(before),
        depth=depth,
        seconds=seconds,
        pictured=np.concatenate(pictured) if pictured else None,
        history=dict(getattr(hasher, "history_", {})),
        warned=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
        asymmetric=np.concatenate(asymmetric) if asymmetric else None,
        trained_as=hasher.trained_as,
        hasher=hasher,
    )


def _ranks(ids: npt.NDArray[np.int64], truth: npt.NDArray[np.int64], depth: int) -> npt.NDArray[np.int32]:
    return ranks_in_list(ids, truth, truth.shape[1], depth).astype(np.int32)


def n_looked_at(n_base: int, depth: int) -> int:
    """Number of points from which the pictured ones are chosen: 0.01 % of the base, at least 99, at most ``depth``."""
    return min(max(N_PICTURED, n_base // _SHARE_PICTURED), depth)


def fingerprint(data: VectorSet) -> str:
    """Digest of all vectors of a set, so that work on one set is never used for another."""
    digest = hashlib.sha256()
    for part in (data.train, data.base, data.queries):
        digest.update(f"{part.shape} {part.dtype}".encode())
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32]


def default_trials(methods: tuple[str, ...], settings: Settings) -> list[Trial]:
    """Trials with default parameters and all lengths and seeds; figure 5 shows seed 0 with the longest codes."""
    return [
        Trial(method, bits, seed, pictured=method in settings.shown and seed == 0 and bits == longest_bits(settings))
        for seed in range(settings.seeds)
        for bits in settings.bits
        for method in methods
    ]


def variant_trials(settings: Settings, chosen: dict[str, dict[str, float]]) -> list[Trial]:
    """Trials of the variants with the parameters chosen for them."""
    bits = longest_bits(settings)
    return [Trial(method, bits, 0, tuple(sorted(chosen[method].items()))) for method in VARIANTS]


def own_trial(bits: int, settings: Settings, alpha: float = PAPER_ALPHA, n_epochs: int = _PAPER_EPOCHS) -> Trial:
    """Trial of Auto-JacoBin with seed 0. That with the paper's parameters is one of the compared trials."""
    given = (("alpha", alpha, PAPER_ALPHA), ("n_epochs", n_epochs, _PAPER_EPOCHS))
    if parameters := tuple((name, value) for name, value, usual in given if value != usual):
        return Trial("AutoJacoBin", bits, 0, parameters)
    return next(trial for trial in default_trials(("AutoJacoBin",), settings) if trial.bits == bits)


def cost_trial(settings: Settings) -> Trial:
    """Trial of figure 6: the shortest codes, and as many epochs as it takes for the paper's 50 steps."""
    per_epoch = batches_per_epoch(settings.training_points or _PAPER_POINTS, _PAPER_BATCH)
    return own_trial(settings.bits[0], settings, n_epochs=max(_PAPER_EPOCHS, -(-_PAPER_STEPS // per_epoch)))


def longest_bits(settings: Settings) -> int:
    """Code length for figure 5 and for the variants: the paper's 128, or the longest."""
    return 128 if 128 in settings.bits else settings.bits[-1]
