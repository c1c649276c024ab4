"""One trial: a method learns, base and queries are encoded and searched, and the places of the truth are noted."""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin import __version__
from autojacobin.datasets import VectorSet
from autojacobin.evaluation.ranks import ranks_in_list
from autojacobin.reproduction.settings import CHOSEN, make_hasher
from autojacobin.search import hamming_topk, rerank

__all__ = ["N_PICTURED", "Cell", "Outcome", "fingerprint", "n_looked_at", "run_cell"]

N_PICTURED = 99  # neighbours that the paper's picture of a query shows
_SHARE_PICTURED = 10_000
_QUERIES_PER_BLOCK = 1000
_BYTES_PER_BLOCK = 2**24


@dataclass(frozen=True)
class Cell:
    """What is tried: a method with a code length, a seed, and parameters other than its defaults.

    ``pictured`` also keeps what the method would show for each query, for figure 5.
    """

    method: str
    bits: int
    seed: int
    parameters: tuple[tuple[str, float], ...] = ()
    pictured: bool = False

    @property
    def cost(self) -> int:
        """How long it takes, roughly, so that a progress bar can tell the time left."""
        if self.method == CHOSEN:
            return 2 * self.bits
        return self.bits if self.method == "AutoJacoBin" else max(1, self.bits // 32)

    def __str__(self) -> str:
        given = "".join(f", {name}={value:g}" for name, value in self.parameters)
        return f"{self.method}, {self.bits} bits{given}, seed {self.seed}"

    def key(self, data: str, depth: int, k: int) -> str:
        """Name under which the outcome is kept; another set, depth, k or version of the library has another.

        So have other defaults of the method, since all its parameters are part of the name.
        """
        parameters = make_hasher(self.method, self.bits, self.seed, dict(self.parameters)).get_params()
        named = [data, depth, k, self.method, sorted(parameters.items()), self.seed, self.pictured, __version__]
        digest = hashlib.sha256(json.dumps(named, default=str).encode()).hexdigest()[:16]
        return f"{'-'.join(re.findall('[A-Za-z0-9]+', self.method))}-{self.bits}-{self.seed}-{digest}"


@dataclass(frozen=True, eq=False)
class Outcome:
    """What came of a trial; every measure of the paper follows from it.

    Attributes
    ----------
    before : array of int32, shape (n_queries, k)
        How many points were retrieved before each true neighbour; ``depth`` where it was not.
    depth : int
        Number of points retrieved.
    seconds : dict of float
        Time of ``fit``, ``encode`` (of the base) and ``search``.
    pictured : array of int32, shape (n_queries, 99), or None
        The 99 retrieved points nearest to each query.
    history : dict of arrays
        Cost and terms step by step, of the auto-encoders.
    warned : tuple of str
        What the fit warned of.
    """

    before: npt.NDArray[np.int32]
    depth: int
    seconds: dict[str, float]
    pictured: npt.NDArray[np.int32] | None = None
    history: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    warned: tuple[str, ...] = ()

    def recall_curve(self, k: int) -> npt.NDArray[np.float64]:
        """Recall@i for i = 1 … depth, mean over the queries."""
        found = self.before[:, :k]
        hits = np.bincount(found[found < self.depth], minlength=self.depth)
        return np.cumsum(hits) / found.size

    def m_recall(self, k: int) -> npt.NDArray[np.float64]:
        """m-Recall of each query: a neighbour found after b others counts in depth − b of the Recall@i."""
        gained: npt.NDArray[np.float64] = (self.depth - self.before[:, :k]).mean(axis=1) / self.depth
        return gained


def run_cell(cell: Cell, data: VectorSet, truth: npt.NDArray[np.int64], depth: int) -> Outcome:
    """Fit, encode, search."""
    hasher = make_hasher(cell.method, cell.bits, cell.seed, dict(cell.parameters))
    seconds = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        start = time.perf_counter()
        hasher.fit(data.train)
        seconds["fit"] = time.perf_counter() - start
    start = time.perf_counter()
    base = hasher.encode(data.base)
    seconds["encode"] = time.perf_counter() - start
    queries = hasher.encode(data.queries)
    looked_at = n_looked_at(len(base), depth)
    before, pictured, seconds["search"] = [], [], 0.0
    for first in range(0, len(queries), _QUERIES_PER_BLOCK):  # bounds the memory that deep answers take
        block = slice(first, first + _QUERIES_PER_BLOCK)
        start = time.perf_counter()
        _, ids = hamming_topk(queries[block], base, depth)
        seconds["search"] += time.perf_counter() - start
        before.append(ranks_in_list(ids, truth[block], truth.shape[1], depth).before.astype(np.int32))
        if cell.pictured and depth >= N_PICTURED:
            _, nearest = rerank(data.queries[block], ids[:, :looked_at], data.base, N_PICTURED)
            pictured.append(nearest.astype(np.int32))
    return Outcome(
        before=np.concatenate(before),
        depth=depth,
        seconds=seconds,
        pictured=np.concatenate(pictured) if pictured else None,
        history=dict(getattr(hasher, "history_", {})),
        warned=tuple(dict.fromkeys(str(warning.message) for warning in caught)),
    )


def n_looked_at(n_base: int, depth: int) -> int:
    """Points among which the pictured ones are the nearest: 0.01 % of the base, but 99 at least, and what there is."""
    return min(max(N_PICTURED, n_base // _SHARE_PICTURED), depth)


def fingerprint(data: VectorSet) -> str:
    """Tell sets apart by all their vectors, so that work done on one is never taken for that of another."""
    digest = hashlib.sha256()
    for part in (data.train, data.base, data.queries):
        digest.update(f"{part.shape} {part.dtype}".encode())
        rows = max(1, _BYTES_PER_BLOCK // max(1, part.shape[1] * part.dtype.itemsize))
        for start in range(0, len(part), rows):
            digest.update(np.ascontiguousarray(part[start : start + rows]).tobytes())
    return digest.hexdigest()[:32]
