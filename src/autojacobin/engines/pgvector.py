"""PostgreSQL as an engine: a table of ``bit(n)`` codes, with pgvector or without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.engines.contract import Distances, Engine, Floats, Ids
from autojacobin.engines.postgres import (
    bit_array,
    codes_from,
    connected,
    copied_rows,
    float_array,
    id_array,
    psycopg_package,
    told,
)
from autojacobin.engines.postgres_table import Statements, Table
from autojacobin.errors import DataError, StorageError
from autojacobin.search.arguments import checked_count

__all__ = ["PgVector"]

_QUERIES_AT_ONCE = 256
_HITS_AT_ONCE = 2**18
_ROWS_AT_ONCE = 2**16
_BYTES_AT_ONCE = 2**25
_LARGEST_EF_SEARCH = 1000


class PgVector(Engine):
    """Codes in a table of PostgreSQL, in a column of type ``bit(n)``, and their vectors beside them.

    The table has the columns ``id bigint``, ``code bit(n)`` and, with vectors, ``vector``; it is made if it is not
    there. You may add columns of your own that have defaults. Every call is a transaction, and
    several threads may share an engine: its connection serves one at a time.

    Parameters
    ----------
    dsn : str
        Where the server is: ``postgresql://user@host/database`` or ``host=… dbname=…``. What is left out comes from the
        variables that all programs for PostgreSQL read, such as ``PGPASSWORD``; an empty string leaves out all.
    table : str
        Name of the table, or a schema and a name with a dot between them. Capital letters count.
    n_bits : int
        Length of the codes.
    n_features : int, optional
        Width of the vectors to keep for re-ranking; None keeps none.
    vector_type : {"vector", "halfvec"}
        Single precision, or half of it for half the space.
    plain : bool
        Do without pgvector, on PostgreSQL 14 or newer: distances are ``bit_count(a # b)`` and vectors ``real[]``.

    Examples
    --------
    >>> from autojacobin.engines import PgVector
    >>> PgVector("postgresql://localhost/shop", "items", n_bits=64)  # doctest: +SKIP
    PgVector(codes of 64 bits)
    """

    _called: ClassVar[str] = "the table"

    def __init__(
        self,
        dsn: str,
        table: str,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        vector_type: Literal["vector", "halfvec"] = "vector",
        plain: bool = False,
    ) -> None:
        super().__init__(n_bits, n_features)
        self._table = Table(table, self.n_bits, self.n_features, vector_type, bool(plain))
        self._dsn, self._lock = dsn, RLock()
        self._connection = connected(dsn)
        try:
            with self._told():
                self._table.prepare(self._connection)
            self._statements = Statements(self._table, self._connection)
        except BaseException:
            self._connection.close()
            raise

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, ef_search: SupportsIndex | None = None
    ) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query, exactly unless told otherwise.

        Parameters
        ----------
        queries : Codes
        k : int
            Neighbours a query, from 1 to ``count()``.
        approximate : bool
            Use the index of :meth:`create_index`, which is much faster and may miss some.
        ef_search : int, optional
            How many codes the approximate search keeps in view, from 1 to 1000; by default twice k and no fewer
            than 100.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Hamming distances in ascending order; equal distances in order of id.
        """
        if not approximate:
            if ef_search is not None:
                raise DataError(f"ef_search is for approximate searches, got {ef_search!r}; pass approximate=True")
            return super().search(queries, k)
        checked, wanted = self._checked_queries(queries, k)
        limit = _LARGEST_EF_SEARCH
        effort = (
            max(2 * wanted, 100) if ef_search is None else checked_count("ef_search", ef_search, limit, "its limit")
        )
        if not self._has_index():
            raise DataError(
                f"the table {self._table.name} has no index for approximate search; call create_index first"
            )
        if not len(checked):
            return super().search(checked, wanted)
        distances, ids = self._searched_by_index(checked, wanted, min(effort, limit))
        return np.asarray(distances, dtype=np.int32), ids

    def create_index(self, m: SupportsIndex = 16, ef_construction: SupportsIndex = 64) -> None:
        """Make an HNSW index over the codes, for approximate searches; does nothing if there is one.

        It is quicker to make after the codes are written than to keep up while they are.

        Parameters
        ----------
        m : int
            Links of a code, from 2 to 100.
        ef_construction : int
            How many codes are kept in view while it is made, from 2 m to 1000.
        """
        self._refuse_closed()
        if self._table.plain:
            raise DataError("an index for approximate search needs pgvector, got plain=True; open the table without it")
        links = checked_count("m", m, 100, "the limit of pgvector")
        effort = checked_count("ef_construction", ef_construction, 1000, "the limit of pgvector")
        if links < 2 or effort < 2 * links:
            raise DataError(f"m must be at least 2 and ef_construction at least 2 m, got {links} and {effort}")
        if not self._has_index():
            with self._told():
                self._connection.execute(self._statements.make_index(links, effort))

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        if vectors is not None and self._table.stored_as == "halfvec":
            _refuse_what_half_precision_cannot_hold(vectors)
        with self._told():
            try:
                self._copy(codes, ids, vectors)
            except psycopg_package().errors.UniqueViolation:  # somebody else wrote one of the ids just now
                self._copy(codes, ids, vectors, direct=False)

    def _search(self, queries: Codes, k: int) -> tuple[Any, Any]:
        with self._told():
            return self._answers(self._statements.nearest, queries, k)

    def _search_vectors(self, queries: Codes, vectors: Floats, k: int, candidates: int) -> tuple[Any, Any]:
        with self._told():
            return self._answers(self._statements.reranked, queries, k, vectors, candidates)

    def _delete(self, ids: Ids) -> None:
        with self._told(), self._connection.transaction():
            if self._connection.execute(self._statements.delete, (id_array(ids),)).rowcount != len(ids):
                raise DataError("some of the ids were deleted by somebody else just now; nothing was deleted")

    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        found = self._fetched(self._statements.known, id_array(np.unique(ids)))
        return np.isin(ids, np.array(found, dtype=np.int64))

    def _read(self, ids: Ids) -> Codes:
        wanted = np.unique(ids)
        found = self._fetched(self._statements.read, id_array(wanted))
        if len(found) != len(wanted):
            raise DataError("some of the ids were deleted by somebody else just now; ask for the others")
        return codes_from([code for _, code in found], self.n_bits)[np.searchsorted(wanted, ids)]

    def _count(self) -> int:
        return int(self._fetched(self._statements.count)[0][0])

    def _count_up_to(self, limit: int) -> int:
        return int(self._fetched(self._statements.count_up_to, min(limit, 2**62))[0][0])

    def _close(self) -> None:
        self._connection.close()

    # How it is done

    @contextmanager
    def _told(self) -> Iterator[None]:
        # a transaction belongs to the connection, so threads that share it would be in each other's
        with self._lock, told(self._connection, self._dsn, self._table.name):
            yield

    def _fetched(self, statement: Any, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._told():
            rows: list[tuple[Any, ...]] = self._connection.execute(statement, arguments, binary=True).fetchall()
        return rows

    def _has_index(self) -> bool:
        return bool(self._fetched(self._statements.has_index))

    def _copy(self, codes: Codes, ids: Ids, vectors: Floats | None, direct: bool = True) -> None:
        """Copy rows into the table; by way of another, which takes three times as long, if some may be there."""
        statements, staged = self._statements, False
        per_row = 64 + self.n_bits // 8 + 8 * (self.n_features or 0)
        at_once = max(1, min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // per_row))
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for start in range(0, len(ids), at_once):
                rows = slice(start, start + at_once)
                limits = int(ids[rows].min()), int(ids[rows].max())
                straight = direct and cursor.execute(statements.any_between, limits).fetchone() is None
                if not straight:
                    cursor.execute(statements.empty_incoming if staged else statements.make_incoming)
                    staged = True
                with cursor.copy(statements.copy_in if straight else statements.copy_incoming) as stream:
                    some = None if vectors is None else vectors[rows]
                    stream.write(copied_rows(ids[rows], codes[rows], some, self._table.stored_as))
                if not straight:
                    cursor.execute(statements.replace)

    def _answers(
        self, statement: Any, queries: Codes, k: int, vectors: Floats | None = None, candidates: int = 0
    ) -> tuple[npt.NDArray[Any], Ids]:
        distances, ids = [], []
        at_once = max(1, min(_QUERIES_AT_ONCE, _HITS_AT_ONCE // k))
        for start in range(0, len(queries), at_once):
            block = slice(start, start + at_once)
            asked: dict[str, Any] = {"codes": bit_array(queries[block]), "k": k}
            if vectors is not None:
                asked |= {"vectors": float_array(vectors[block]), "candidates": candidates}
            rows = self._connection.execute(statement, asked, binary=True).fetchall()
            if len(rows) != len(queries[block]) * k:
                raise _TooFewError(f"the table {self._table.name} shrank while it was searched; search again")
            distances.append(np.array([row[1] for row in rows]).reshape(-1, k))
            ids.append(np.array([row[2] for row in rows], dtype=np.int64).reshape(-1, k))
        return np.concatenate(distances), np.concatenate(ids)

    def _searched_by_index(self, queries: Codes, k: int, ef_search: int) -> tuple[Any, Any]:
        try:
            with self._told(), self._connection.transaction():
                self._connection.execute(self._statements.look_farther, {"ef_search": str(ef_search)})
                return self._answers(self._statements.nearest_by_index, queries, k)
        except _TooFewError:  # the graph gives up before it has found many neighbours
            return self._search(queries, k)


class _TooFewError(StorageError):
    pass


def _refuse_what_half_precision_cannot_hold(vectors: Floats) -> None:
    with np.errstate(over="ignore"):
        held = np.isfinite(vectors.astype(np.float16)).all(axis=1)
    if not held.all():
        row = int(np.argmin(held))
        raise DataError(
            f"half precision holds numbers up to 65504, got {np.abs(vectors[row]).max():g} in row {row}; rescale the "
            "vectors, or use vector_type='vector'"
        )
