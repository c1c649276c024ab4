"""PostgreSQL: a table of ``bit(n)`` codes, with pgvector or without it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np

from autojacobin.codes import Codes
from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.engines.contract import Distances, Engine, Floats, Hits, IdKind, Ids
from autojacobin.errors import DataError, DataTypeError, StorageError, import_extra
from autojacobin.search.arguments import as_count

_LARGEST_EF_SEARCH = 1000
_SECONDS_TO_CONNECT = 10
_LONGEST_NAME = 63
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod)
    FROM pg_attribute WHERE attrelid = to_regclass({table_name}) AND attnum > 0 AND NOT attisdropped
"""
_NEAREST = "SELECT {distance} AS distance, id FROM {table} ORDER BY distance LIMIT %(k)s"
_NEAREST_BY_INDEX = """
    SELECT (code <~> %(code)s)::integer, id FROM {table} ORDER BY code <~> %(code)s LIMIT %(k)s
"""
# In double precision, as everywhere in this library. The operator <-> of pgvector works in single precision, which
# changes the order of neighbours at nearly equal distances, and overflows where a square exceeds 10^38.
_RERANKED = """
    SELECT sqrt((SELECT sum((a::double precision - b) * (a::double precision - b))
        FROM unnest(c.vector::real[], %(vector)s::real[]) AS pairs (a, b))) AS distance, c.id
    FROM (SELECT id, vector FROM {table} ORDER BY {distance} LIMIT %(candidates)s) AS c ORDER BY distance LIMIT %(k)s
"""
_HAS_INDEX = """
    SELECT 1 FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = {table_name}::regclass AND i.indisvalid AND m.amname = 'hnsw' AND a.attname = 'code'
"""
# An index scan of pgvector 0.8 continues until it has found k neighbours; an older one may stop earlier.
_SET_EFFORT = """
    SELECT set_config('hnsw.ef_search', %s, true),
        CASE WHEN string_to_array(extversion, '.')::integer[] >= ARRAY[0, 8]
        THEN set_config('hnsw.iterative_scan', 'strict_order', true) END
    FROM pg_extension WHERE extname = 'vector'
"""
_REPLACE = """
    INSERT INTO {table} ({columns}) SELECT {columns} FROM pg_temp.autojacobin_incoming ORDER BY id
    ON CONFLICT (id) DO UPDATE SET {changes}
"""


class PgVector(Engine):
    """Codes in a table of PostgreSQL, in a column of type ``bit(n)``, and their vectors in another.

    The table has the columns ``id bigint`` or ``id text``, ``code bit(n)`` and, with vectors, ``vector``; it is made if
    it does not exist. You may add columns of your own that have defaults. Every call is a transaction. Several threads
    may share an engine; its connection serves one at a time.

    Parameters
    ----------
    dsn : str
        Address of the server: ``postgresql://user@host/database`` or ``host=… dbname=…``. Missing parts come from the
        environment variables of libpq, such as ``PGPASSWORD``; an empty string takes all of them from there.
    table : str
        Name of the table, or a schema and a name with a dot between them. Capital letters count.
    n_bits, n_features, id_kind
        As in :class:`Engine`.
    vector_type : {"vector", "halfvec"}
        Single precision, or half precision in half the space.
    plain : bool
        Whether to do without pgvector: distances are ``bit_count(a # b)``, of PostgreSQL 14 or newer, and vectors are
        ``real[]``.
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
        id_kind: IdKind = "integer",
    ) -> None:
        super().__init__(n_bits, n_features, id_kind=id_kind)
        _check_name(table)
        if vector_type not in ("vector", "halfvec"):
            raise DataError(f"vector_type must be 'vector' or 'halfvec', got {vector_type!r}")
        self.table, self._plain, self._vector_type = table, bool(plain), "real[]" if plain else vector_type
        self._columns = {"id": "bigint" if id_kind == "integer" else "text", "code": f"bit({self.n_bits})"}
        if self.n_features is not None:
            self._columns["vector"] = "real[]" if plain else f"{vector_type}({self.n_features})"
        psycopg, given = _psycopg(), _read_dsn(dsn)
        self._secrets = given.get("password"), given.get("sslpassword"), os.environ.get("PGPASSWORD")
        self._title = f"the table {table} of PostgreSQL at {redacted_address(dsn) or 'the default host'}"
        self._errors, self._lock = (psycopg.Error,), RLock()
        self._connection: Any = None
        timeout = {} if "connect_timeout" in given else {"connect_timeout": _SECONDS_TO_CONNECT}
        with self._translated_errors("open"):
            # prepared statements do not work through poolers that share connections
            self._connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **timeout)
        try:
            self._parts = self._statement_parts()
            with self._locked():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, ef_search: SupportsIndex | None = None
    ) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query, as :meth:`Engine.search` does.

        With ``approximate``, the index of :meth:`create_index` is used, which is much faster and may miss some
        neighbours. ``ef_search`` is the length of its candidate list, from 1 to 1000; by default twice k and at least
        100.
        """
        if not approximate:
            if ef_search is not None:
                raise DataError(f"ef_search is for approximate searches, got {ef_search!r}; pass approximate=True")
            return self._find(queries, k)
        if ef_search is None:
            ef_search = min(max(2 * as_count("k", k), 100), _LARGEST_EF_SEARCH)
        return self._find(queries, k, as_count("ef_search", ef_search, _LARGEST_EF_SEARCH, "its limit"))

    def create_index(self, m: SupportsIndex = 16, ef_construction: SupportsIndex = 64) -> None:
        """Make an HNSW index over the codes, for approximate searches; does nothing if there is one.

        Write the codes first: that is quicker than updating the index with each write. ``m`` is the number of links per
        code, from 2 to 100, and ``ef_construction`` the length of the candidate list, from 2 m to 1000.
        """
        self._check_open()
        if self._plain:
            raise DataError("an index for approximate search needs pgvector, got plain=True; open the table without it")
        links = as_count("m", m, 100, "the limit of pgvector", least=2)
        effort = as_count("ef_construction", ef_construction, 1000, "the limit of pgvector", least=2 * links)
        if not self._has_index():
            make = "CREATE INDEX ON {table} USING hnsw (code bit_hamming_ops) WITH "
            self._execute(f"{make}(m = {links:d}, ef_construction = {effort:d})")

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        from pgvector import HalfVector, Vector

        columns: list[Any] = [ids.tolist(), _as_bits(codes)]
        kinds = ["int8" if self.id_kind == "integer" else "text", "bit"]
        if vectors is not None and self._plain:
            columns.append(vectors.tolist())
            kinds.append("float4[]")
        elif vectors is not None:
            if self._vector_type == "halfvec":
                _check_half_precision(vectors)
            columns.append(map(HalfVector if self._vector_type == "halfvec" else Vector, vectors))
            kinds.append(self._vector_type)
        with self._locked(), self._connection.transaction(), self._connection.cursor() as cursor:
            self._execute("CREATE TEMP TABLE autojacobin_incoming ({layout}) ON COMMIT DROP")
            into = self._composed("COPY pg_temp.autojacobin_incoming ({columns}) FROM STDIN (FORMAT binary)")
            with cursor.copy(into) as stream:
                stream.set_types(kinds)
                for row in zip(*columns, strict=True):
                    stream.write_row(row)
            self._execute(_REPLACE)

    def _search(self, queries: Codes, k: int, effort: int | None) -> list[Hits]:
        if effort is None:
            return self._hits(_NEAREST, queries, k)
        if not self._has_index():
            raise DataError(f"the table {self.table} has no index for approximate search; call create_index first")
        with self._locked(), self._connection.transaction():
            self._execute(_SET_EFFORT, (str(effort),))
            return self._hits(_NEAREST_BY_INDEX, queries, k)

    def _search_vectors(self, queries: Codes, vectors: Floats, k: int, candidates: int) -> list[Hits]:
        return self._hits(_RERANKED, queries, k, vectors, candidates)

    def _delete(self, ids: Ids) -> None:
        with self._locked(), self._connection.transaction():
            deleted = self._execute("DELETE FROM {table} WHERE id = ANY(%s::{id_type}[])", (ids.tolist(),))
            if deleted.rowcount != len(ids):
                raise DataError("some of the ids were deleted by another client just now; nothing was deleted")

    def _fetch(self, ids: Ids, column: str) -> tuple[Any, Any]:
        select = f"SELECT id, {column}::text FROM {{table}} WHERE id = ANY(%s::{{id_type}}[])"
        rows = self._execute(select, (ids.tolist(),)).fetchall()
        found = [row[0] for row in rows]
        if column == "id":
            return found, []
        digits = np.frombuffer("".join(row[1] for row in rows).encode(), dtype=np.uint8)
        return found, Codes.from_bits(digits.reshape(-1, self.n_bits) - ord("0")).to_packed(self.bitorder)

    def _count(self) -> int:
        return int(self._execute("SELECT count(*) FROM {table}").fetchone()[0])

    def _close(self) -> None:
        self._connection.close()

    # Statements

    def _prepare(self) -> None:
        """Check the server and the table, whose other columns do not matter; make the table if it does not exist."""
        from pgvector.psycopg import register_vector
        from pgvector.psycopg.bit import register_bit_info

        if self._plain:
            bits = _psycopg().types.TypeInfo.fetch(self._connection, "bit")
            register_bit_info(self._connection, bits)
        else:
            self._install_extension()
            register_vector(self._connection)
        found = dict(self._execute(_COLUMNS).fetchall())
        if not found:
            self._execute("CREATE TABLE IF NOT EXISTS {table} ({layout}, PRIMARY KEY (id))")
            return
        there = {name: kind for name, kind in found.items() if name in ("id", "code", "vector")}
        if there != self._columns:
            raise DataError(
                f"{self._title} has another layout, got {_listed(there)}, expected {_listed(self._columns)}; open it "
                "as it was made, or choose another name"
            )

    def _install_extension(self) -> None:
        """Make sure that the database has pgvector; a reader may not be allowed to add it again."""
        if self._connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone() is None:
            try:
                self._connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except self._errors as error:
                raise StorageError(
                    f"this database has no pgvector, and it could not be added: {str(error).splitlines()[0]}; have an "
                    "administrator install it and run CREATE EXTENSION vector, or pass plain=True to do without"
                ) from error

    def _statement_parts(self) -> dict[str, Any]:
        """Give what the names in braces stand for in a statement."""
        sql = _psycopg().sql
        table, columns = sql.Identifier(*self.table.split(".")), [sql.Identifier(name) for name in self._columns]
        layout = (sql.SQL(f"{{}} {kind} NOT NULL").format(sql.Identifier(name)) for name, kind in self._columns.items())
        # Without the cast, the planner might use an approximate index for an exact search.
        distance = "bit_count(code # %(code)s)" if self._plain else "(code <~> %(code)s)::integer"
        return {
            "table": table,
            "table_name": sql.Literal(table.as_string(self._connection)),
            "columns": sql.SQL(", ").join(columns),
            "changes": sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in columns[1:]),
            "layout": sql.SQL(", ").join(layout),
            "distance": sql.SQL(distance),
            "id_type": sql.SQL(self._columns["id"]),
        }

    def _composed(self, statement: str) -> Any:
        return _psycopg().sql.SQL(statement).format(**self._parts)

    def _execute(self, statement: str, arguments: Any = None) -> Any:
        with self._locked():
            return self._connection.execute(self._composed(statement), arguments)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the connection, whose transactions threads would share otherwise, and translate its errors."""
        with self._lock, self._translated_errors("use"):
            yield

    def _reason(self, error: Any) -> str:
        # only the first part of the message, for the details quote whole rows
        text = " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
        text = redacted_message(text, secrets=self._secrets).rstrip(".")
        if self._connection is None:
            return f"{text}; check that the server runs there, and the user and the password"
        if self._connection.closed:
            return f"the connection is lost: {text}; open it again and repeat the call"
        return f"{text}; fix that and repeat the call, of which nothing was kept"

    def _has_index(self) -> bool:
        return bool(self._execute(_HAS_INDEX).fetchall())

    def _hits(
        self, statement: str, queries: Codes, k: int, vectors: Floats | None = None, candidates: int = 0
    ) -> list[Hits]:
        hits = []
        for row, code in enumerate(_as_bits(queries)):
            vector = None if vectors is None else vectors[row].tolist()
            arguments = {"code": code, "k": k, "vector": vector, "candidates": candidates}
            found = self._execute(statement, arguments).fetchall()
            hits.append((np.array([distance for distance, _ in found]), self._id_array([id for _, id in found])))
        return hits


def _check_name(table: Any) -> None:
    parts = table.split(".") if isinstance(table, str) else []
    fits = all(part and len(part.encode(errors="replace")) <= _LONGEST_NAME for part in parts)
    if len(parts) not in (1, 2) or not fits or re.search(r"[%\0\ud800-\udfff]", table):
        raise DataError(
            f"table must be a name of at most {_LONGEST_NAME} bytes without %, or a schema and a name with a dot "
            f"between them, got {table!r}"
        )


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none of the columns"


def _as_bits(codes: Codes) -> list[Any]:
    from pgvector import Bit

    return [Bit(bits) for bits in codes.to_bits().astype(bool)]


def _check_half_precision(vectors: Floats) -> None:
    largest = np.abs(vectors).max(axis=1)
    row = int(np.argmax(largest))
    if largest[row] > np.finfo(np.float16).max:
        raise DataError(f"half precision holds numbers up to 65504, got {largest[row]:g} in row {row}; rescale vectors")


def _psycopg() -> Any:
    import_extra("pgvector.psycopg", "pgvector", "a table in PostgreSQL")
    return import_extra("psycopg", "pgvector", "a table in PostgreSQL")


def _read_dsn(dsn: Any) -> dict[str, Any]:
    """Give the parts of a DSN; libpq reads missing ones from its environment variables and files."""
    psycopg = _psycopg()
    if not isinstance(dsn, str):
        raise DataTypeError(f"dsn must be a string such as 'postgresql://user@host/database', got {type(dsn).__name__}")
    unreadable = DataError(
        "dsn cannot be read; expected 'host=… port=… dbname=… user=…' or 'postgresql://host:5432/database', with "
        "special characters of an address percent-encoded"
    )
    # A NUL would end the text. With / or @ in a password, libpq would read a part of it as the host, and show it.
    host = re.sub("^postgres(?:ql)?://(?:[^@/]*@)?", "", dsn)
    if "\0" in dsn or (host != dsn and "@" in host.partition("?")[0]):
        raise unreadable
    try:
        parts: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError):  # its message quotes the DSN with the password
        raise unreadable from None
    if not re.fullmatch("[0-9,]*", str(parts.get("port") or "")):
        raise unreadable  # part of a password that no @ follows
    return parts
