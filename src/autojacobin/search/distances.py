"""The distances between queries and codes, in one table.

Everything that offers a choice of distances takes it from here: the index, the cluster jobs, the service, the command
line and the explorer. A new distance is one more entry.

The functions import the compiled searches when they are called, so that those who only need the names, such as the
command line, do not wait for numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from autojacobin.codes import Codes
from autojacobin.core.arrays import adopt, to_host
from autojacobin.errors import DataError

if TYPE_CHECKING:
    from autojacobin.search.queries import Queries

__all__ = ["DISTANCES", "CodeDistance", "Encoder", "check_distance"]


class Encoder(Protocol):
    """What a distance needs of a hasher."""

    def encode(self, X: Any) -> Codes:
        """Codes of vectors."""

    def project(self, X: Any) -> Any:
        """The real values whose signs are the bits."""


@dataclass(frozen=True)
class CodeDistance:
    """A distance between a query and a code.

    Attributes
    ----------
    name : str
        Its name.
    summary : str
        How codes are compared, for help texts.
    unit : str
        What the reported distances are.
    encode : callable
        ``encode(hasher, vectors)`` gives what the distance needs to know of the queries, such as their codes.
    prepare : callable
        ``prepare(encoded)`` gives the :class:`~autojacobin.search.queries.Queries` that any
        :class:`~autojacobin.search.queries.CodeStore` searches for.
    topk : callable
        ``topk(encoded, codes, k)`` searches :class:`~autojacobin.Codes`, on the GPU if they are there.
    """

    name: str
    summary: str
    unit: str
    encode: Callable[[Encoder, Any], Any]
    prepare: Callable[[Any], Queries]
    topk: Callable[[Any, Codes, int], tuple[Any, Any]]

    def queries(self, hasher: Encoder, vectors: Any) -> Queries:
        """Prepare vectors as queries."""
        return self.prepare(self.encode(hasher, vectors))


def _encode(hasher: Encoder, vectors: Any) -> Codes:
    return hasher.encode(vectors)


def _hamming_queries(codes: Codes) -> Queries:
    from autojacobin.search.hamming import hamming_queries

    return hamming_queries(codes)


def _hamming_topk(codes: Codes, base: Codes, k: int) -> tuple[Any, Any]:
    from autojacobin.search.hamming import hamming_topk

    return hamming_topk(codes, base, k)


def _project(hasher: Encoder, vectors: Any) -> Any:
    return to_host(adopt(hasher.project(vectors)))


def _asymmetric_queries(projections: Any) -> Queries:
    from autojacobin.search.asymmetric import asymmetric_queries

    return asymmetric_queries(projections)


def _asymmetric_topk(projections: Any, base: Codes, k: int) -> tuple[Any, Any]:
    from autojacobin.search.asymmetric import asymmetric_topk

    return asymmetric_topk(projections, base, k)


_TABLE = (
    CodeDistance(
        name="hamming",
        summary="bit by bit",
        unit="the number of bits that differ",
        encode=_encode,
        prepare=_hamming_queries,
        topk=_hamming_topk,
    ),
    CodeDistance(
        name="asymmetric",
        summary="with the real values of the query's projection",
        unit="the sum of |projection| over the bits that differ",
        encode=_project,
        prepare=_asymmetric_queries,
        topk=_asymmetric_topk,
    ),
)

DISTANCES: Mapping[str, CodeDistance] = MappingProxyType({entry.name: entry for entry in _TABLE})
"""The distances by name; the first one is the default."""


def check_distance(name: Any) -> None:
    """Raise a DataError if there is no distance of this name."""
    if not isinstance(name, str) or name not in DISTANCES:
        raise DataError(f"distance must be {' or '.join(map(repr, DISTANCES))}, got {name!r}")
