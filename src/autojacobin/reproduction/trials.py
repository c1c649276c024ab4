"""Trials: which ones the tables and figures need, and how one is run.

In a trial a method is trained, base and queries are encoded, and the ranks of the true neighbours are found.
"""

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
from autojacobin.datasets import VectorSet
from autojacobin.evaluation.ranks import ranks_in_list
from autojacobin.hashers import Hasher
from autojacobin.reproduction.experiment import (
    ASYMMETRIC,
    AUTOENCODER,
    CHOSEN,
    COMPARED,
    NEIGHBOUR,
    SHOWN,
    VARIANTS,
    Settings,
    every_method,
    make_hasher,
)
from autojacobin.search import asymmetric_topk, rerank
from autojacobin.search.distances import DISTANCES

PAPER_ALPHA = 0.1
N_PICTURED = 99  # neighbours of a query in figure 5 of the paper
_SHARE_PICTURED = 10_000
_QUERIES_PER_BLOCK = 1000
_BYTES_PER_BLOCK = 2**24
_LONGEST_ROUNDED = 2_184  # bits of an asymmetric search with rounded weights


@dataclass(frozen=True)
class Trial:
    """A method with a code length, a seed, and the parameters that differ from its defaults.

    With ``pictured`` the points that figure 5 shows are kept for each query, with ``asymmetric`` the ranks by the
    asymmetric distance as well.
    """

    method: str
    bits: int
    seed: int
    parameters: tuple[tuple[str, float], ...] = ()
    pictured: bool = False
    asymmetric: bool = False

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
        flags = [self.pictured, self.asymmetric]
        named = [data, depth, k, self.method, sorted(parameters.items()), self.seed, *flags, __version__]
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
        gained: npt.NDArray[np.float64] = (self.depth - self.before[:, :k]).mean(axis=1) / self.depth
        return gained


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
        if trial.asymmetric:
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
    return ranks_in_list(ids, truth, truth.shape[1], depth).before.astype(np.int32)


def n_looked_at(n_base: int, depth: int) -> int:
    """Number of points from which the pictured ones are chosen: 0.01 % of the base, at least 99, at most ``depth``."""
    return min(max(N_PICTURED, n_base // _SHARE_PICTURED), depth)


def fingerprint(data: VectorSet) -> str:
    """Digest of all vectors of a set, so that work on one set is never used for another."""
    digest = hashlib.sha256()
    for part in (data.train, data.base, data.queries):
        digest.update(f"{part.shape} {part.dtype}".encode())
        rows = max(1, _BYTES_PER_BLOCK // max(1, part.shape[1] * part.dtype.itemsize))
        for start in range(0, len(part), rows):
            digest.update(np.ascontiguousarray(part[start : start + rows]).tobytes())
    return digest.hexdigest()[:32]


def compared_trials(settings: Settings) -> list[Trial]:
    """Trials of the compared methods with all lengths and seeds."""
    return _default_trials(COMPARED, settings)


def shown_trials(settings: Settings) -> list[Trial]:
    """Trials of the compared methods and of Auto-JacoBin with chosen settings."""
    return _default_trials(SHOWN, settings)


def every_trial(settings: Settings) -> list[Trial]:
    """Trials of all methods with their defaults."""
    others = tuple(method for method in every_method() if method not in SHOWN)
    return shown_trials(settings) + _default_trials(others, settings)


def distance_trials(settings: Settings) -> list[Trial]:
    """Trials for the comparison of distances."""
    return _default_trials(ASYMMETRIC, settings) + _default_trials((AUTOENCODER,), settings)


def _default_trials(methods: tuple[str, ...], settings: Settings) -> list[Trial]:
    """Trials with default parameters; figure 5 shows seed 0 with the longest codes."""
    return [
        Trial(
            method,
            bits,
            seed,
            pictured=method in SHOWN and seed == 0 and bits == longest_bits(settings),
            asymmetric=method in ASYMMETRIC,
        )
        for seed in range(settings.seeds)
        for bits in settings.bits
        for method in methods
    ]


def variant_trials(settings: Settings, chosen: dict[str, dict[str, float]]) -> list[Trial]:
    """Trials of the variants with the parameters chosen for them."""
    bits = longest_bits(settings)
    return [Trial(method, bits, 0, tuple(sorted(chosen[method].items()))) for method in VARIANTS]


def alpha_trials(settings: Settings) -> list[Trial]:
    """Trials for figure 7, with seed 0."""
    return [alpha_trial(bits, alpha, settings) for alpha in settings.alphas for bits in settings.bits]


def alpha_trial(bits: int, alpha: float, settings: Settings) -> Trial:
    """Trial of Auto-JacoBin with a weight α. That with the paper's α is one of the compared trials."""
    if alpha == PAPER_ALPHA:
        return next(c for c in compared_trials(settings) if (c.method, c.bits, c.seed) == ("AutoJacoBin", bits, 0))
    return Trial("AutoJacoBin", bits, 0, (("alpha", alpha),))


def longest_bits(settings: Settings) -> int:
    """Code length for figure 5 and for the variants: the paper's 128, or the longest."""
    return 128 if 128 in settings.bits else settings.bits[-1]


def first_seed(settings: Settings) -> list[Trial]:
    """Trials of the compared methods with seed 0."""
    return [trial for trial in compared_trials(settings) if trial.seed == 0]
