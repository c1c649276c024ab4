"""What requests ask of an index, and how several that ask the same are answered in one go.

The kernels are several times faster on 32 queries than on one, so requests that wait at the same time with the same
options are searched for together. An error of one of them stays its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.index.index import Index
from autojacobin.service.problems import Problem
from autojacobin.service.shelf import ServedIndex

__all__ = ["Answer", "Encoding", "Options", "Searching", "Work", "run_together"]


@dataclass(frozen=True)
class Options:
    """How to search; requests that agree in all of this can be answered together.

    A ``recall`` is replaced by the candidates that it takes before the search.
    """

    k: int
    candidates: int | None = None
    distance: str = "hamming"
    rerank: bool = True
    recall: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Keywords for ``Index.search``."""
        return {"candidates": self.candidates, "distance": self.distance, "rerank": self.rerank}


@dataclass(frozen=True)
class Answer:
    """Arrays with a row for each vector of the request, and the state of the index that they are from."""

    generation: int | None
    n_bits: int
    arrays: tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, eq=False)
class Work:
    """Vectors, or ids of vectors in the index, and the index."""

    served: ServedIndex
    vectors: npt.NDArray[np.float32] | None = None
    ids: npt.NDArray[np.int64] | None = None

    @property
    def key(self) -> Hashable:
        """Work with equal keys can be done together."""
        return type(self).__name__, self.served.name

    @cached_property
    def n_vectors(self) -> int:
        """Number of rows of the answer."""
        rows = self.vectors if self.vectors is not None else self.ids
        return 0 if rows is None else len(rows)

    @property
    def cost(self) -> int:
        """How much is to be done, as ``Limits.work`` counts it."""
        return self.n_vectors

    def rows(self, index: Index) -> npt.NDArray[np.float32]:
        """Vectors to work on."""
        if self.vectors is not None:
            width = int(index.hasher.n_features_in_)
            if self.vectors.shape[1] != width:  # the index was replaced by one of another width meanwhile
                raise DataError(
                    f"vectors must have the {width} features of the index, got {self.vectors.shape[1]}; "
                    "see /v1/indexes for what is served"
                )
            return self.vectors
        assert self.ids is not None
        try:
            return index.vectors(self.ids).astype(np.float32)
        except DataError as error:
            unknown = [int(id) for id in self.ids if id not in index]
            if not unknown:
                raise
            detail = f"there is no vector with the id {unknown[0]} in {self.served.name}; leave it out, or send vectors"
            raise Problem(404, "unknown-id", detail) from error

    def on(self, index: Index, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        """Arrays of the answer for some rows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Searching(Work):
    """Find neighbours."""

    options: Options = Options(1)

    @property
    def key(self) -> Hashable:
        """Work with equal keys can be done together."""
        return type(self).__name__, self.served.name, self.options

    @property
    def cost(self) -> int:
        """Vectors times what is looked at for each of them."""
        return self.n_vectors * candidates_of(self.options)

    def on(self, index: Index, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        """Distances and ids."""
        distances, ids = index.search(rows, self.options.k, **self.options.arguments())
        if not np.isfinite(distances).all():
            raise DataError("a distance is too large for a number, got vectors that are far apart; rescale the vectors")
        return distances, ids


@dataclass(frozen=True, eq=False)
class Encoding(Work):
    """Make codes."""

    def on(self, index: Index, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        """Packed codes."""
        return (index.hasher.encode(rows).packed,)


def candidates_of(options: Options) -> int:
    """Vectors that are looked at for a query, by the library's own default where none is given."""
    if not options.rerank:
        return options.k
    return max(10 * options.k, 100) if options.candidates is None else options.candidates


def run_together(works: Sequence[Work]) -> list[Answer | Exception]:
    """Answer works of one key with one call, or each alone where that call fails; errors are given, not raised."""
    index = works[0].served.index  # one version for all of them, whatever is swapped in meanwhile
    answers: list[Answer | Exception] = [LookupError("not answered yet")] * len(works)
    rows: dict[int, npt.NDArray[np.float32]] = {}
    for number, work in enumerate(works):
        try:
            rows[number] = work.rows(index)
        except Exception as error:
            answers[number] = error
    try:
        together = _answered(works[0], index, list(rows.values())) if rows else []
    except Exception as error:
        if len(rows) > 1:
            for number in rows:
                answers[number] = run_together([works[number]])[0]
            return answers
        together = [error]
    for number, answer in zip(rows, together, strict=True):
        answers[number] = answer
    return answers


def _answered(work: Work, index: Index, parts: list[npt.NDArray[np.float32]]) -> list[Answer | Exception]:
    arrays = work.on(index, parts[0] if len(parts) == 1 else np.concatenate(parts))
    generation, n_bits = index.info()["generation"], int(index.hasher.n_bits)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    return [Answer(generation, n_bits, tuple(array[rows] for array in arrays)) for rows in slices]
