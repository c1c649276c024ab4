"""The distances between queries and codes, in one table, from which everything that offers a choice of them takes it.

The compiled searches are imported when they are called, so that those who only need the names, such as the command
line, do not wait for numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from autojacobin.codes import Codes
from autojacobin.core.arrays import adopt
from autojacobin.core.parallel import one_blas_thread, run_tasks, slices
from autojacobin.core.vectors import as_matrix
from autojacobin.errors import DataError
from autojacobin.search.queries import DistanceTerms, Queries

_QUERIES_PER_SLICE, _FEWEST_TO_SLICE = 512, 64


class Encoder(Protocol):
    """What a distance needs of a hasher."""

    @property
    def distances(self) -> tuple[str, ...]:
        """Names of the distances by which its codes can be compared, the best one first, which is the default."""

    def encode(self, X: Any) -> Codes:
        """Codes of vectors."""

    def project(self, X: Any) -> Any:
        """Real values, one for each bit."""

    def distance_terms(self, X: Any) -> DistanceTerms:
        """Terms of the distance to decoded codes; a DataError if codes cannot be decoded."""


@dataclass(frozen=True)
class CodeDistance:
    """A distance between a query and a code."""

    name: str
    summary: str  # how codes are compared, for help texts
    unit: str  # what the reported distances are
    dtype: type[np.int32] | type[np.float32]  # of these: whole numbers if they are counts
    encode: Callable[[Encoder, Any], Any]  # what it needs to know of vectors, such as their codes
    prepare: Callable[[Any], Queries]  # what ``Tiles`` search for, from what was encoded
    topk: Callable[[Any, Codes, int], tuple[Any, Any]]  # searches codes for what was encoded, where they are

    def queries(self, hasher: Encoder, vectors: Any) -> Queries:
        """Prepare vectors as queries; many of them in slices on all cores, each with one thread of BLAS.

        After a product on several threads, the threads of OpenBLAS keep spinning on the cores that the search needs.
        """
        if len(vectors) < _FEWEST_TO_SLICE or getattr(hasher, "device", "cpu") != "cpu":
            return self.prepare(self.encode(hasher, vectors))
        # a data frame stays one, so that the hasher can compare the names of its columns
        rows = vectors.iloc if hasattr(vectors, "iloc") else as_matrix(vectors, type(hasher).__name__)
        tasks = [(some,) for some in slices(len(vectors), _QUERIES_PER_SLICE)]
        with one_blas_thread():
            return Queries.concatenate(run_tasks(lambda some: self.prepare(self.encode(hasher, rows[some])), tasks))


def _function(module: str, name: str) -> Callable[..., Any]:
    """A function of this package, whose module is imported at the first call, because it loads numba."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"autojacobin.search.{module}"), name)(*arguments)

    return call


_TABLE = (
    CodeDistance(
        name="hamming",
        summary="bit by bit",
        unit="the number of bits that differ",
        dtype=np.int32,
        encode=lambda hasher, vectors: hasher.encode(vectors),
        prepare=_function("hamming", "hamming_queries"),
        topk=_function("hamming", "hamming_topk"),
    ),
    CodeDistance(
        name="asymmetric",
        summary="with the real values of the query's projection",
        unit="the sum of |projection| over the bits that differ",
        dtype=np.float32,
        encode=lambda hasher, vectors: adopt(hasher.project(vectors)),
        prepare=_function("asymmetric", "asymmetric_queries"),
        topk=_function("asymmetric", "asymmetric_topk"),
    ),
    CodeDistance(
        name="decoded",
        summary="with what the code decodes to, for codes of a binary auto-encoder",
        unit="the squared Euclidean distance to the decoded vector, plus a share of its error",
        dtype=np.float32,
        encode=lambda hasher, vectors: hasher.distance_terms(vectors),
        prepare=_function("decoded", "decoded_queries"),
        topk=_function("decoded", "decoded_topk"),
    ),
    CodeDistance(
        name="spherical",
        summary="by the bits that differ and the ones that are shared, for codes of spherical hashing",
        unit="the number of bits that differ, divided by the number of ones that both codes have",
        dtype=np.float32,
        encode=lambda hasher, vectors: hasher.encode(vectors),
        prepare=_function("spherical", "spherical_queries"),
        topk=_function("spherical", "spherical_topk"),
    ),
)

DISTANCES: Mapping[str, CodeDistance] = MappingProxyType({entry.name: entry for entry in _TABLE})
"""The distances by name."""


METRICS = ("euclidean", "cosine", "inner_product")
"""Names of the metrics by which an index compares vectors. ``DISTANCES`` compare codes."""


def distances_of(hasher: Encoder) -> dict[str, CodeDistance]:
    """Give the distances by which codes of a hasher can be compared, the default one first."""
    return {name: DISTANCES[name] for name in hasher.distances}


def as_distance(name: Any, allowed: Sequence[str]) -> str:
    """Give the name of one of the ``allowed`` distances, the first of them for None."""
    if name is None:
        return allowed[0]
    if not isinstance(name, str) or name not in allowed:
        *others, last = [repr(one) for one in allowed]
        choices = f"{', '.join(others)} or {last}" if others else last
        hint = "; this is how codes are compared, and for vectors an index is made with metric='cosine', for example"
        raise DataError(f"distance must be {choices}, got {name!r}{hint if name in METRICS else ''}")
    return name
