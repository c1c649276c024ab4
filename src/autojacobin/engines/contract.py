"""What every engine can do, and the checks that come before its own work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, SupportsIndex, TypeVar

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.index.changes import checked_ids, checked_new_ids
from autojacobin.search.arguments import checked_candidates, checked_count, checked_k
from autojacobin.search.euclidean import rerank

__all__ = ["Distances", "Engine", "Floats", "Ids", "by_lower_id"]

Rows = npt.NDArray[np.int64]
_GROWTH = 4
_HITS_AT_ONCE = 2**22  # a million equal codes and a thousand queries would not fit into memory


def by_lower_id(
    ask: Callable[[Rows, int], tuple[Any, Any]], n_queries: int, k: int, count: int, most: int | None = None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Distances and ids of the ``k`` nearest, equal distances in order of id, from an engine with other habits.

    All codes at the distance of the k-th have to be seen before the lower ids among them can be chosen. A query is
    settled when the last code that the engine gave is farther than the k-th, or when it gave all it has; the others
    are asked again for four times as many, in blocks whose answers stay small.

    Parameters
    ----------
    ask : callable
        ``ask(rows, depth)`` gives distances and ids, both of shape (len(rows), depth), of the ``depth`` nearest codes
        of the queries with these row numbers. Their order within a row does not matter.
    n_queries, k, count : int
        Number of queries, of neighbours for each, and of codes in the engine; k is at most count.
    most : int, optional
        The largest depth that the engine can be asked for, if it has a limit.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
    """
    limit = count if most is None else min(count, most)
    if k > limit:
        raise DataError(f"k must be at most {limit}, the most that this engine gives at once, got {k}; ask for fewer")
    distances = np.empty((n_queries, k), dtype=np.int32)
    ids = np.empty((n_queries, k), dtype=np.int64)
    pending = np.arange(n_queries, dtype=np.int64)
    depth = min(limit, max(2 * k, k + 16))
    while len(pending):
        unsettled = []
        step = max(1, _HITS_AT_ONCE // depth)
        for start in range(0, len(pending), step):
            rows = pending[start : start + step]
            found, names = (np.asarray(part) for part in ask(rows, depth))
            order = np.lexsort((names, found), axis=1)
            found, names = np.take_along_axis(found, order, axis=1), np.take_along_axis(names, order, axis=1)
            settled = (found[:, -1] > found[:, k - 1]) | (depth == count)
            distances[rows[settled]], ids[rows[settled]] = found[settled, :k], names[settled, :k]
            unsettled.append(rows[~settled])
        pending = np.concatenate(unsettled)
        if len(pending) and depth == limit:
            raise DataError(
                f"more than {limit} codes are as near as neighbour {k} of query {pending[0]}, and this engine gives no "
                "more at once, so the lowest ids among them cannot be told; use longer codes or a smaller k"
            )
        depth = min(limit, _GROWTH * depth)
    return distances, ids


Ids = npt.NDArray[np.int64]
Distances = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Self = TypeVar("Self", bound="Engine")


class Engine(ABC):
    """A place outside this library that keeps codes under ids and finds the nearest ones.

    Parameters
    ----------
    n_bits : int
        Length of the codes, at least 1.
    n_features : int, optional
        Width of the vectors that are kept beside the codes, in single precision, for re-ranking. None keeps none.
    """

    n_bits: int
    n_features: int | None

    _called: ClassVar[str] = "the engine"
    """What messages call this engine, with its article: "the table", "the collection"."""

    def __init__(self, n_bits: SupportsIndex, n_features: SupportsIndex | None = None) -> None:
        self.n_bits = checked_count("n_bits", n_bits)
        self.n_features = None if n_features is None else checked_count("n_features", n_features)
        self._closed = False

    # What an adapter has to supply

    @abstractmethod
    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        """Put at least one code under its id, in place of what is there; all of them or, where possible, none."""

    @abstractmethod
    def _search(self, queries: Codes, k: int) -> tuple[Any, Any]:
        """Distances and ids of the ``k`` nearest codes of each of at least one query, equal distances by lower id."""

    @abstractmethod
    def _delete(self, ids: Ids) -> None:
        """Delete at least one code; the ids are there, ascending, each once."""

    @abstractmethod
    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Say of each of at least one id whether it is there."""

    @abstractmethod
    def _read(self, ids: Ids) -> Codes:
        """Codes of at least one id, all of which are there, in the order of ``ids``, which may repeat."""

    @abstractmethod
    def _count(self) -> int:
        """Number of codes."""

    def _count_up_to(self, limit: int) -> int:  # noqa: ARG002
        """Number of codes, or ``limit`` if there are more; for engines that take their time to count."""
        return self._count()

    def _vectors(self, ids: Ids) -> Floats:
        """Vectors of ids that are there, ascending, each once; for engines that do not re-rank by themselves."""
        raise NotImplementedError

    def _search_vectors(self, queries: Codes, vectors: Floats, k: int, candidates: int) -> tuple[Any, Any]:
        """Euclidean order of the ``candidates`` nearest codes; an engine that can do it at its end overrides this."""
        _, ids = self._search(queries, candidates)
        return rerank(vectors, ids, self._vectors, k)

    def _close(self) -> None:  # noqa: B027  # many engines have nothing to let go of
        """Let go of files and connections."""

    # What every engine then can do

    def write(self, codes: Codes, ids: npt.ArrayLike, vectors: Any = None) -> None:
        """Write codes; those whose id is there already take its place.

        Parameters
        ----------
        codes : Codes
            Codes of ``n_bits`` bits.
        ids : array of int
            An id for each code, unique and not negative.
        vectors : matrix of shape (n, n_features), optional
            The vectors of the codes, if the engine keeps vectors. They are stored in single precision, or in what
            the engine was told to store.
        """
        self._refuse_closed()
        checked = self._checked_codes(codes, "codes")
        chosen = checked_new_ids(ids)
        if len(chosen) != len(checked):
            raise DataError(
                f"there must be an id for every code, got {len(chosen)} ids for {len(checked)} codes; give one each"
            )
        rows = self._checked_vectors(vectors, len(checked), "codes")
        if len(checked):
            self._write(checked, chosen, rows)

    def search(self, queries: Codes, k: SupportsIndex) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query, exactly.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Hamming distances in ascending order; equal distances in order of id.
        """
        checked, wanted = self._checked_queries(queries, k)
        if not len(checked):
            return np.empty((0, wanted), dtype=np.int32), np.empty((0, wanted), dtype=np.int64)
        distances, ids = self._search(checked, wanted)
        return np.asarray(distances, dtype=np.int32), np.asarray(ids, dtype=np.int64)

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
            Neighbours a query, from 1 to ``count()``.
        candidates : int, optional
            How many of the nearest codes to re-rank, at least k; by default ten times k and no fewer than 100.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Euclidean distances in ascending order; equal distances in order of id.
        """
        self._refuse_closed()
        if self.n_features is None:
            raise DataError(
                f"{self._called} keeps no vectors to re-rank by; use search, or open it with n_features and write "
                "the vectors too"
            )
        checked, wanted = self._checked_queries(queries, k)
        rows = self._checked_vectors(vectors, len(checked), "queries")
        number = checked_candidates(candidates, wanted)
        if rows is None or not len(checked):
            return np.empty((0, wanted)), np.empty((0, wanted), dtype=np.int64)
        distances, ids = self._search_vectors(checked, rows, wanted, min(number, self._count_up_to(number)))
        return np.asarray(distances, dtype=np.float64), np.asarray(ids, dtype=np.int64)

    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete the codes with these ids, all of which must be there."""
        self._refuse_closed()
        wanted = np.unique(checked_ids(ids))
        if len(wanted):
            self._refuse_unknown(wanted, "deleted")
            self._delete(wanted)

    def read(self, ids: npt.ArrayLike) -> Codes:
        """Codes with these ids, all of which must be there, in the order of ``ids``."""
        self._refuse_closed()
        wanted = checked_ids(ids)
        if not len(wanted):
            return Codes(np.empty((0, -(-self.n_bits // 8)), dtype=np.uint8), self.n_bits)
        self._refuse_unknown(wanted, "read")
        return self._read(wanted)

    def count(self) -> int:
        """Number of codes."""
        self._refuse_closed()
        return self._count()

    def close(self) -> None:
        """Let go of files and connections; the engine cannot be used afterwards.

        If that fails, because a file cannot be written say, nothing is lost yet: mend it and close again.
        """
        if not self._closed:
            self._close()
            self._closed = True

    def __enter__(self: Self) -> Self:
        self._refuse_closed()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return f"{type(self).__name__}(closed)"
        kept = "" if self.n_features is None else f" with vectors of {self.n_features}"
        return f"{type(self).__name__}(codes of {self.n_bits} bits{kept})"

    # How it is done

    def _checked_queries(self, queries: Any, k: SupportsIndex) -> tuple[Codes, int]:
        self._refuse_closed()
        checked = self._checked_codes(queries, "queries")
        sensible = isinstance(k, int | np.integer) and not isinstance(k, bool) and k >= 1
        return checked, checked_k(k, self._count_up_to(int(k)) if sensible else self._count(), self._called)

    def _checked_codes(self, codes: Any, name: str) -> Codes:
        if not isinstance(codes, Codes):
            raise DataTypeError(f"{name} must be Codes, got {type(codes).__name__}; use hasher.encode(X)")
        if codes.n_bits != self.n_bits:
            raise DataError(
                f"{name} must have the {self.n_bits} bits of {self._called}, got {codes.n_bits} bits; "
                "encode them with the same hasher"
            )
        return codes.to_device("cpu")

    def _checked_vectors(self, vectors: Any, n: int, of: str) -> Floats | None:
        if self.n_features is None:
            if vectors is not None:
                raise DataError(
                    f"{self._called} keeps no vectors, got some; leave them out, or open it with n_features"
                )
            return None
        if vectors is None:
            raise DataError(
                f"{self._called} keeps vectors of {self.n_features} features beside the codes, got none; pass vectors"
            )
        matrix = to_host(as_matrix(vectors, type(self).__name__))
        if matrix.shape != (n, self.n_features):
            raise DataError(
                f"vectors must have shape ({n}, {self.n_features}), a row for each of the {of}, got {matrix.shape}"
            )
        with np.errstate(over="ignore"):  # what single precision cannot hold becomes Inf, and is told as such
            floats: Floats = as_floats(as_floats(matrix).astype(np.float32, copy=False))
        return floats

    def _refuse_unknown(self, ids: Ids, done: str) -> None:
        known = self._known(ids)
        if not known.all():
            raise DataError(
                f"only ids in {self._called} can be {done}, got {ids[~known][0]}, which is not; leave it out"
            )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise DataError(f"{self._called} is closed; open it again")
