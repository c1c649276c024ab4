"""The contract of all engines: what each can do, the checks before it, and helpers for the adapters."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes, as_bit_order
from autojacobin.core.addresses import redacted_address
from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError, StorageError, reason_of
from autojacobin.index.names import as_ids, as_names, as_new_ids, as_new_names
from autojacobin.search.arguments import as_candidates, as_count, as_k
from autojacobin.search.euclidean import rerank

Ids = npt.NDArray[Any]
"""Integers, or objects that are strings."""
IdKind = Literal["integer", "string"]
Distances = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Hits = tuple[npt.NDArray[Any], Ids]
"""Distances and ids of the codes that were found."""

Self = TypeVar("Self", bound="Engine")
_MOST_HITS = 2**31 - 1  # what every engine takes as k, and more than it holds
_ADDRESS = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#@]*@)?(?:\[[0-9A-Fa-f:.]+\]|[\w.~%-]*)(?::[0-9]{0,5})?(?:[/?#]|$)"
)


class Engine(ABC):
    """A search engine outside this library that stores codes under ids and finds the nearest ones.

    Parameters
    ----------
    n_bits : int
        Length of the codes, at least 1.
    n_features : int, optional
        Dimension of the vectors that are stored with the codes, in single precision, for re-ranking. None stores none.
    bitorder : {"little", "big"}
        Order of the bits in the bytes that the engine stores, where it stores bytes: ``"little"``, least significant
        first, or ``"big"``, as ``np.packbits`` and sentence-transformers make them.
    id_kind : {"integer", "string"}
        What ids are, in engines that have keys of text: SQLite, LanceDB and PostgreSQL.
    """

    n_bits: int
    n_features: int | None
    bitorder: BitOrder

    _noun: ClassVar[str] = "the engine"
    """How messages refer to this engine: "the table", "the collection"."""
    _title: str
    """The same with its name, and where it is: "the table 'codes' of LanceDB at s3://bucket"."""
    _errors: tuple[type[Exception], ...]
    """What the package of the engine raises."""
    _remedies: ClassVar[Mapping[str, str]]
    """What to do about an error, by patterns of its message; the last one fits all."""

    def __init__(
        self,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        bitorder: BitOrder = "little",
        id_kind: IdKind = "integer",
    ) -> None:
        self.n_bits = as_count("n_bits", n_bits)
        self._n_bytes = -(-self.n_bits // 8)
        self.n_features = None if n_features is None else as_count("n_features", n_features)
        self.bitorder = as_bit_order(bitorder)
        if id_kind not in ("integer", "string"):
            raise DataError(f"id_kind must be 'integer' or 'string', got {id_kind!r}")
        self.id_kind = id_kind
        self._closed = False

    # What an adapter implements; these methods get checked arguments, and at least one code, query or id

    @abstractmethod
    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        """Insert codes, or replace those whose ids exist; all of them or, where possible, none."""

    @abstractmethod
    def _search(self, queries: Codes, k: int, effort: int | None) -> Iterable[Hits]:
        """The ``k`` nearest codes of each query, the nearest first; with an effort, by an index that may find fewer."""

    @abstractmethod
    def _delete(self, ids: Ids) -> None:
        """Delete codes by their ids, which exist, ascend and are unique."""

    @abstractmethod
    def _fetch(self, ids: Ids, column: str) -> tuple[Any, Any]:
        """Those of some unique ids that exist, in any order, and the ``code`` or the ``vector`` of each.

        Codes are packed in the bit order of the engine. With the column ``id``, the ids alone matter.
        """

    @abstractmethod
    def _count(self) -> int:
        """Number of codes."""

    def _search_vectors(self, queries: Codes, vectors: Floats, k: int, candidates: int) -> Iterable[Hits]:
        """Re-rank the ``candidates`` nearest codes; an engine that can re-rank by itself overrides this."""
        depth = min(candidates, max(k, self._count()))
        _, ids = self._stacked(self._search(queries, depth, None), depth)
        unique, places = np.unique(ids, return_inverse=True)
        distances, found = rerank(
            vectors, places.reshape(ids.shape), lambda some: self._values(unique[some], "vector", "re-ranked"), k
        )
        return zip(distances, unique[found], strict=True)

    def _close(self) -> None:  # noqa: B027  # many engines have nothing to release
        """Release files and connections."""

    # What every engine offers

    def write(self, codes: Codes, ids: npt.ArrayLike, vectors: Any = None) -> None:
        """Write codes; a code whose id exists already replaces the old one.

        Parameters
        ----------
        codes : Codes
            Codes of ``n_bits`` bits.
        ids : array of int, or list of str
            An id for each code, unique; integers are not negative.
        vectors : matrix of shape (n, n_features), optional
            The vectors of the codes, if the engine stores vectors.
        """
        self._check_open()
        checked = self._as_codes(codes, "codes")
        chosen = self._as_ids(ids, new=True)
        if len(chosen) != len(checked):
            raise DataError(f"there must be an id for every code, got {len(chosen)} ids for {len(checked)} codes")
        rows = self._as_vectors(vectors, len(checked), "codes")
        if len(checked):
            self._write(checked, chosen, rows)

    def search(self, queries: Codes, k: SupportsIndex) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query, exactly.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Hamming distances in ascending order; equal distances in the order of the engine.
        """
        return self._find(queries, k)

    def search_vectors(
        self, queries: Codes, vectors: Any, k: SupportsIndex, candidates: SupportsIndex | None = None
    ) -> tuple[npt.NDArray[np.float64], Ids]:
        """Find the nearest codes of each query, and keep the ``k`` whose vectors are nearest.

        Parameters
        ----------
        queries : Codes
            Codes of the queries.
        vectors : matrix of shape (n_queries, n_features)
            The queries themselves.
        k : int
            Neighbours per query, from 1 to ``count()``.
        candidates : int, optional
            How many of the nearest codes to re-rank, at least k; by default ten times k and no fewer than 100.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Euclidean distances in ascending order; equal distances in the order of the engine.
        """
        self._check_open()
        if self.n_features is None:
            raise DataError(f"{self._noun} keeps no vectors to re-rank by; use search, or open it with n_features")
        checked, wanted = self._as_queries(queries, k)
        rows = self._as_vectors(vectors, len(checked), "queries")
        number = as_candidates(candidates, wanted)
        if rows is None or not len(checked):
            return self._stacked([], wanted, np.float64)
        return self._stacked(self._search_vectors(checked, rows, wanted, number), wanted, np.float64)

    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete the codes with these ids, all of which must exist."""
        self._check_open()
        wanted = np.unique(self._as_ids(ids))
        if len(wanted):
            self._fetch_all(wanted, "id", "deleted")
            self._delete(wanted)

    def read(self, ids: npt.ArrayLike) -> Codes:
        """Codes with these ids, all of which must exist, in the order of ``ids``."""
        self._check_open()
        wanted = self._as_ids(ids)
        packed = self._values(wanted, "code", "read") if len(wanted) else np.empty((0, self._n_bytes), dtype=np.uint8)
        return Codes.from_packed(packed, self.n_bits, bitorder=self.bitorder)

    def count(self) -> int:
        """Number of codes."""
        self._check_open()
        return self._count()

    def close(self) -> None:
        """Release files and connections; the engine cannot be used afterwards.

        If this fails, for example because a file cannot be written, nothing is lost: fix the cause and close again.
        """
        if not self._closed:
            self._close()
            self._closed = True

    def __enter__(self: Self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"{type(self).__name__}(closed)"
        kept = "" if self.n_features is None else f" with vectors of {self.n_features}"
        return f"{type(self).__name__}(codes of {self.n_bits} bits{kept})"

    # Checks and conversions

    def _as_ids(self, ids: Any, *, new: bool = False) -> Ids:
        """Ids as an array; new ones are unique."""
        if self.id_kind == "integer":
            return as_new_ids(ids) if new else as_ids(ids)
        names = (as_new_names if new else as_names)(ids, "string")
        return self._id_array([name.decode() for name in names])

    def _id_array(self, ids: Any) -> Ids:
        return np.array(ids, dtype=np.int64 if self.id_kind == "integer" else object)

    def _as_queries(self, queries: Any, k: SupportsIndex) -> tuple[Codes, int]:
        self._check_open()
        return self._as_codes(queries, "queries"), min(as_count("k", k), _MOST_HITS)

    def _as_codes(self, codes: Any, name: str) -> Codes:
        if not isinstance(codes, Codes):
            raise DataTypeError(f"{name} must be Codes, got {type(codes).__name__}; use hasher.encode(X)")
        if codes.n_bits != self.n_bits:
            raise DataError(
                f"{name} must have the {self.n_bits} bits of {self._noun}, got {codes.n_bits} bits; use the same hasher"
            )
        return codes.to_device("cpu")

    def _as_vectors(self, vectors: Any, n: int, of: str) -> Floats | None:
        if self.n_features is None:
            if vectors is not None:
                raise DataError(f"{self._noun} keeps no vectors, got some; leave them out, or open it with n_features")
            return None
        if vectors is None:
            raise DataError(f"{self._noun} keeps vectors of {self.n_features} features, got none; pass vectors")
        matrix = to_host(as_matrix(vectors, type(self).__name__))
        if matrix.shape != (n, self.n_features):
            raise DataError(f"vectors of these {n} {of} must have shape {(n, self.n_features)}, got {matrix.shape}")
        with np.errstate(over="ignore"):  # what single precision cannot hold becomes Inf, which as_floats reports
            floats: Floats = as_floats(as_floats(matrix).astype(np.float32, copy=False))
        return floats

    def _fetch_all(self, ids: Ids, column: str, done: str) -> tuple[Ids, Any]:
        """Fetch unique ids, all of which must exist."""
        found, values = self._fetch(ids, column)
        known = self._id_array(found)
        if len(known) < len(ids):
            first = np.setdiff1d(ids, known).tolist()[0]
            raise DataError(
                f"only ids in {self._noun} can be {done}, got {first!r}, which is not; leave it out, or repeat the "
                "call if others are deleting"
            )
        return known, values

    def _values(self, ids: Ids, column: str, done: str) -> npt.NDArray[Any]:
        """Codes or vectors of ids that may repeat, in their order."""
        unique, inverse = np.unique(ids, return_inverse=True)
        found, values = self._fetch_all(unique, column, done)
        matrix = np.asarray(values, dtype=np.uint8 if column == "code" else np.float32)
        return matrix[np.argsort(found)][inverse]

    def _find(self, queries: Any, k: SupportsIndex, effort: int | None = None) -> Hits:
        """Search with an effort; queries for which the index gives fewer than ``k`` codes are searched exactly."""
        checked, wanted = self._as_queries(queries, k)
        hits = list(self._search(checked, wanted, effort)) if len(checked) else []
        short = [row for row, (_, ids) in enumerate(hits) if len(ids) < wanted]
        if short and effort is not None:
            for row, found in zip(short, self._search(checked[short], wanted, None), strict=True):
                hits[row] = found
        return self._stacked(hits, wanted)

    def _stacked(self, hits: Iterable[Hits], depth: int, dtype: Any = np.int32) -> Hits:
        """Hits of several queries as two matrices; an error if a query has fewer than ``depth``."""
        each = list(hits)
        if any(len(ids) != depth for _, ids in each):
            as_k(depth, self._count(), self._noun)
            raise StorageError(f"{self._noun} gave fewer than the {depth} codes it holds; search again if it changes")
        distances = np.array([distances for distances, _ in each], dtype=dtype)
        ids = self._id_array([ids for _, ids in each])
        return distances.reshape(-1, depth), ids.reshape(-1, depth)

    def _check_layout(self, found: str, expected: str, n_bits: int | None, bitorder: str | None) -> None:
        """Raise a DataError if there are other columns or codes; what the engine does not record counts as right."""
        layouts = (found, n_bits or self.n_bits, bitorder or self.bitorder), (expected, self.n_bits, self.bitorder)
        if layouts[0] != layouts[1]:
            got, wanted = (f"{columns} for codes of {n} bits in the order {order!r}" for columns, n, order in layouts)
            raise DataError(
                f"{self._title} has another layout, got {got}, expected {wanted}; open it with the n_bits, n_features "
                "and bitorder it has, or choose another name"
            )

    @contextmanager
    def _translated_errors(self, action: str) -> Iterator[None]:
        """Translate an error of the engine's own package within the block into one that names the action."""
        try:
            yield
        except self._errors as error:
            raise StorageError(f"cannot {action} {self._title}: {self._reason(error)}") from None

    def _reason(self, error: Exception) -> str:
        """What went wrong in one line without secrets, and how to fix it."""
        return self._with_remedy(reason_of(error))

    def _with_remedy(self, reason: str, details: str = "") -> str:
        """Add how to fix it to what went wrong, by the first pattern that the reason or its details have."""
        fitting = (remedy for signs, remedy in self._remedies.items() if re.search(signs, reason + details, re.I))
        return f"{reason}; {next(fitting)}"

    def _check_open(self) -> None:
        if self._closed:
            raise DataError(f"{self._noun} is closed; open it again")


def check_name(what: str, name: Any, pattern: str, letters: str) -> None:
    """Raise a DataError unless a name matches a pattern, which ``letters`` says in words."""
    if not isinstance(name, str) or not re.fullmatch(pattern, name):
        raise DataError(f"{what} must be a name of {letters}, got {name!r}; choose another")


def as_address(uri: Any, example: str) -> str:
    """Convert an address, or a path, to text; an error with an example if it is neither or empty."""
    try:
        address = os.fspath(uri)
    except TypeError:
        address = None
    if not isinstance(address, str) or not address:
        given = "nothing" if address == "" else type(uri).__name__
        raise DataTypeError(f"uri must be a path or text, got {given}; pass {example}")
    if "://" in address and not _ADDRESS.match(address):
        raise DataError(
            f"uri is not an address, got {redacted_address(address)!r}; pass {example}, with special characters of a "
            "user name or password percent-encoded"
        )
    return address
