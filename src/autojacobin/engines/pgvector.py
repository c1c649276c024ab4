"""PostgreSQL: a table of ``bit(n)`` codes, with pgvector or without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.engines.contract import Distances, Engine, Floats, Hits, Ids, blocks
from autojacobin.engines.postgres import (
    as_bit_array,
    as_codes,
    as_copy_rows,
    as_float_array,
    as_id_array,
    connect,
    psycopg_package,
    translated_errors,
)
from autojacobin.engines.postgres_table import Statements, Table
from autojacobin.errors import DataError, StorageError
from autojacobin.search.arguments import as_count

__all__ = ["PgVector"]

_QUERIES_AT_ONCE = 256
_HITS_AT_ONCE = 2**18
_ROWS_AT_ONCE = 2**16
_BYTES_AT_ONCE = 2**25
_LARGEST_EF_SEARCH = 1000


class PgVector(Engine):
    """Codes in a table of PostgreSQL, in a column of type ``bit(n)``, and their vectors in another.

    The table has the columns ``id bigint``, ``code bit(n)`` and, with vectors, ``vector``; it is made if it does
    not exist. You may add columns of your own that have defaults. Every call is a transaction. Several threads may
    share an engine; its connection serves one at a time.

    Parameters
    ----------
    dsn : str
        Address of the server: ``postgresql://user@host/database`` or ``host=… dbname=…``. Missing parts come from the
        environment variables of libpq, such as ``PGPASSWORD``; an empty string takes all of them from there.
    table : str
        Name of the table, or a schema and a name with a dot between them. Capital letters count.
    n_bits : int
        Length of the codes.
    n_features : int, optional
        Dimension of the vectors to store for re-ranking; None stores none.
    vector_type : {"vector", "halfvec"}
        Single precision, or half precision in half the space.
    plain : bool
        Whether to do without pgvector: distances are ``bit_count(a # b)``, of PostgreSQL 14 or newer, and vectors are
        ``real[]``.

    Examples
    --------
    >>> from autojacobin.engines import PgVector
    >>> PgVector("postgresql://localhost/shop", "items", n_bits=64)  # doctest: +SKIP
    PgVector(codes of 64 bits)
    """

    _noun: ClassVar[str] = "the table"

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
        self._connection = connect(dsn)
        try:
            with self._locked():
                self._table.prepare(self._connection)
            self._statements = Statements(self._table, self._connection)
        except BaseException:
            self._connection.close()
            raise

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, ef_search: SupportsIndex | None = None
    ) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query, exactly by default.

        Parameters
        ----------
        queries : Codes
        k : int
            Neighbours per query, from 1 to ``count()``.
        approximate : bool
            Whether to use the index of :meth:`create_index`, which is much faster and may miss some neighbours.
        ef_search : int, optional
            Length of the candidate list of the approximate search, from 1 to 1000; by default twice k and at least
            100.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Hamming distances in ascending order; equal distances in order of id.
        """
        if not approximate:
            if ef_search is not None:
                raise DataError(f"ef_search is for approximate searches, got {ef_search!r}; pass approximate=True")
            return super().search(queries, k)
        checked, wanted = self._as_queries(queries, k)
        if ef_search is None:
            effort = min(max(2 * wanted, 100), _LARGEST_EF_SEARCH)
        else:
            effort = as_count("ef_search", ef_search, _LARGEST_EF_SEARCH, "its limit")
        if not self._has_index():
            raise DataError(
                f"the table {self._table.name} has no index for approximate search; call create_index first"
            )
        if not len(checked):
            return super().search(checked, wanted)
        distances, ids = self._search_by_index(checked, wanted, effort)
        return np.asarray(distances, dtype=np.int32), ids

    def create_index(self, m: SupportsIndex = 16, ef_construction: SupportsIndex = 64) -> None:
        """Make an HNSW index over the codes, for approximate searches; does nothing if there is one.

        Write the codes first: that is quicker than updating the index with each write.

        Parameters
        ----------
        m : int
            Links per code, from 2 to 100.
        ef_construction : int
            Length of the candidate list while the index is made, from 2 m to 1000.
        """
        self._check_open()
        if self._table.plain:
            raise DataError("an index for approximate search needs pgvector, got plain=True; open the table without it")
        links = as_count("m", m, 100, "the limit of pgvector")
        effort = as_count("ef_construction", ef_construction, 1000, "the limit of pgvector")
        if links < 2 or effort < 2 * links:
            raise DataError(f"m must be at least 2 and ef_construction at least 2 m, got {links} and {effort}")
        if not self._has_index():
            with self._locked():
                self._connection.execute(self._statements.make_index(links, effort))

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        if vectors is not None and self._table.stored_as == "halfvec":
            _check_half_precision(vectors)
        with self._locked():
            try:
                self._copy(codes, ids, vectors)
            except psycopg_package().errors.UniqueViolation:  # another client wrote one of the ids just now
                self._copy(codes, ids, vectors, direct=False)

    def _search(self, queries: Codes, k: int) -> Hits:
        with self._locked():
            return self._hits(self._statements.nearest, queries, k)

    def _search_vectors(self, queries: Codes, vectors: Floats, k: int, candidates: int) -> Hits:
        with self._locked():
            return self._hits(self._statements.reranked, queries, k, vectors, candidates)

    def _delete(self, ids: Ids) -> None:
        with self._locked(), self._connection.transaction():
            if self._connection.execute(self._statements.delete, (as_id_array(ids),)).rowcount != len(ids):
                raise DataError("some of the ids were deleted by another client just now; nothing was deleted")

    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        found = self._fetched(self._statements.known, as_id_array(np.unique(ids)))
        return np.isin(ids, np.array(found, dtype=np.int64))

    def _read(self, ids: Ids) -> Codes:
        wanted = np.unique(ids)
        found = self._fetched(self._statements.read, as_id_array(wanted))
        if len(found) != len(wanted):
            raise DataError("some of the ids were deleted by another client just now; ask for the others")
        return as_codes([code for _, code in found], self.n_bits)[np.searchsorted(wanted, ids)]

    def _count(self) -> int:
        return int(self._fetched(self._statements.count)[0][0])

    def _count_up_to(self, limit: int) -> int:
        return int(self._fetched(self._statements.count_up_to, min(limit, 2**62))[0][0])

    def _close(self) -> None:
        self._connection.close()

    # Statements

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the connection, whose transactions threads would share otherwise, and translate its errors."""
        with self._lock, translated_errors(self._connection, self._dsn, self._table.name):
            yield

    def _fetched(self, statement: Any, *arguments: Any) -> list[tuple[Any, ...]]:
        with self._locked():
            rows: list[tuple[Any, ...]] = self._connection.execute(statement, arguments, binary=True).fetchall()
        return rows

    def _has_index(self) -> bool:
        return bool(self._fetched(self._statements.has_index))

    def _copy(self, codes: Codes, ids: Ids, vectors: Floats | None, direct: bool = True) -> None:
        """Copy rows into the table; by a temporary table, which takes three times as long, if some ids may exist."""
        statements, staged = self._statements, False
        per_row = 64 + self.n_bits // 8 + 8 * (self.n_features or 0)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for rows in blocks(len(ids), min(_ROWS_AT_ONCE, _BYTES_AT_ONCE // per_row)):
                limits = int(ids[rows].min()), int(ids[rows].max())
                is_new = direct and cursor.execute(statements.any_between, limits).fetchone() is None
                if not is_new:
                    cursor.execute(statements.empty_incoming if staged else statements.make_incoming)
                    staged = True
                with cursor.copy(statements.copy_in if is_new else statements.copy_incoming) as stream:
                    some = None if vectors is None else vectors[rows]
                    stream.write(as_copy_rows(ids[rows], codes[rows], some, self._table.stored_as))
                if not is_new:
                    cursor.execute(statements.replace)

    def _hits(self, statement: Any, queries: Codes, k: int, vectors: Floats | None = None, candidates: int = 0) -> Hits:
        distances, ids = [], []
        for block in blocks(len(queries), min(_QUERIES_AT_ONCE, _HITS_AT_ONCE // k)):
            arguments: dict[str, Any] = {"codes": as_bit_array(queries[block]), "k": k}
            if vectors is not None:
                arguments |= {"vectors": as_float_array(vectors[block]), "candidates": candidates}
            rows = self._connection.execute(statement, arguments, binary=True).fetchall()
            if len(rows) != len(queries[block]) * k:
                raise _TooFewError(f"the table {self._table.name} shrank while it was searched; search again")
            distances.append(np.array([row[1] for row in rows]).reshape(-1, k))
            ids.append(np.array([row[2] for row in rows], dtype=np.int64).reshape(-1, k))
        return np.concatenate(distances), np.concatenate(ids)

    def _search_by_index(self, queries: Codes, k: int, ef_search: int) -> Hits:
        try:
            with self._locked(), self._connection.transaction():
                self._connection.execute(self._statements.set_effort, {"ef_search": str(ef_search)})
                return self._hits(self._statements.nearest_by_index, queries, k)
        except _TooFewError:  # an older pgvector stops before it has found k neighbours
            return self._search(queries, k)


class _TooFewError(StorageError):
    pass


def _check_half_precision(vectors: Floats) -> None:
    with np.errstate(over="ignore"):
        held = np.isfinite(vectors.astype(np.float16)).all(axis=1)
    if not held.all():
        row = int(np.argmin(held))
        raise DataError(
            f"half precision holds numbers up to 65504, got {np.abs(vectors[row]).max():g} in row {row}; rescale the "
            "vectors, or use vector_type='vector'"
        )
