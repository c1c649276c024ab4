"""A table of codes in PostgreSQL: its layout, and the statements that search and change it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from autojacobin.engines.postgres import psycopg_package
from autojacobin.errors import DataError, DataTypeError, StorageError

__all__ = ["Statements", "Table"]

_QUERIES = "unnest(%(codes)s::bit({n_bits})[]) WITH ORDINALITY AS q (code, number)"
_NEAREST = f"""
    SELECT q.number, r.distance, r.id FROM {_QUERIES}
    CROSS JOIN LATERAL (
        SELECT t.id, {{distance}} AS distance FROM {{table}} AS t ORDER BY distance, t.id LIMIT %(k)s
    ) AS r ORDER BY q.number, r.distance, r.id
"""
_NEAREST_BY_INDEX = f"""
    SELECT q.number, r.distance::integer, r.id FROM {_QUERIES}
    CROSS JOIN LATERAL (
        SELECT t.id, t.code <~> q.code AS distance FROM {{table}} AS t ORDER BY t.code <~> q.code LIMIT %(k)s
    ) AS r ORDER BY q.number, r.distance, r.id
"""
_RERANKED = f"""
    SELECT q.number, r.distance, r.id FROM {_QUERIES}
    CROSS JOIN LATERAL (
        SELECT c.id, {{euclidean}} AS distance FROM (
            SELECT t.id, t.vector FROM {{table}} AS t ORDER BY {{distance}}, t.id LIMIT %(candidates)s
        ) AS c ORDER BY distance, c.id LIMIT %(k)s
    ) AS r ORDER BY q.number, r.distance, r.id
"""
_QUERY_VECTOR = "(%(vectors)s::real[])[(q.number::integer - 1) * {n_features} + 1 : q.number::integer * {n_features}]"
# In double precision, as everywhere in this library. The operator <-> of pgvector works in single precision, which
# changes the order of neighbours at nearly equal distances, and overflows where a square exceeds 10^38.
_EUCLIDEAN = f"""sqrt((SELECT sum((a::double precision - b) * (a::double precision - b))
    FROM unnest(c.vector::real[], {_QUERY_VECTOR}) AS pairs (a, b)))"""
_HAS_INDEX = """
    SELECT 1 FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = {table_name}::regclass AND i.indisvalid AND m.amname = 'hnsw' AND a.attname = 'code'
"""
# An index scan of pgvector 0.8 continues until it has found k neighbours; an older one may stop earlier.
_SET_EFFORT = """
    SELECT set_config('hnsw.ef_search', %(ef_search)s, true),
        CASE WHEN string_to_array(extversion, '.')::integer[] >= ARRAY[0, 8]
        THEN set_config('hnsw.iterative_scan', 'strict_order', true) END
    FROM pg_extension WHERE extname = 'vector'
"""
_REPLACE = """
    INSERT INTO {table} ({columns}) SELECT {columns} FROM pg_temp.autojacobin_incoming ORDER BY id
    ON CONFLICT (id) DO UPDATE SET {changes}
"""
_OLDEST_SERVER = 140_000  # the first with bit_count
_OLDEST_EXTENSION = (0, 7)  # the first with distances of bits
_MOST_FEATURES = 16_000
_LONGEST_NAME = 63
_RELATION = "SELECT oid, relkind::text FROM pg_class WHERE oid = to_regclass(%s)"
_TABLES = ("r", "p")  # ordinary and partitioned ones; views, sequences and indexes are other relations
_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull
    FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_UNIQUE_ID = """
    SELECT 1 FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = %s AND i.indisunique AND i.indnkeyatts = 1 AND i.indpred IS NULL AND a.attname = 'id'
"""


@dataclass(frozen=True)
class Table:
    """Columns id, code and, if vectors are kept, vector. Columns that the user adds are ignored."""

    name: str
    n_bits: int
    n_features: int | None
    vector_type: str
    plain: bool

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise DataTypeError(f"table must be a string, got {type(self.name).__name__}")
        parts = self.name.split(".")
        fits = all(part and len(part.encode(errors="replace")) <= _LONGEST_NAME for part in parts)
        if len(parts) > 2 or not fits or re.search(r"[%\0\ud800-\udfff]", self.name):
            raise DataError(
                f"table must be a name of at most {_LONGEST_NAME} bytes without %, or a schema and a name with a dot "
                f"between them, got {self.name!r}"
            )
        if self.vector_type not in ("vector", "halfvec"):
            raise DataError(f"vector_type must be 'vector' or 'halfvec', got {self.vector_type!r}")
        if self.n_features is not None and not self.plain and self.n_features > _MOST_FEATURES:
            raise DataError(
                f"a {self.vector_type} of pgvector has at most {_MOST_FEATURES} features, got {self.n_features}; "
                "leave the vectors out, or pass plain=True, which keeps them in arrays"
            )

    @property
    def stored_as(self) -> str:
        """Type of the column of vectors, without its length."""
        return "real[]" if self.plain else self.vector_type

    @property
    def columns(self) -> dict[str, str]:
        """Type of each column, as PostgreSQL writes it."""
        columns = {"id": "bigint", "code": f"bit({self.n_bits})"}
        if self.n_features is not None:
            columns["vector"] = self.stored_as if self.plain else f"{self.stored_as}({self.n_features})"
        return columns

    @property
    def identifier(self) -> Any:
        """The name, quoted."""
        return psycopg_package().sql.Identifier(*self.name.split("."))

    def prepare(self, connection: Any) -> None:
        """Check the server and the table; make the table if it does not exist."""
        _check_version(connection)
        if not self.plain:
            _install_extension(connection)
        found = connection.execute(_RELATION, (self.identifier.as_string(connection),)).fetchone()
        if found is None:
            self._make(connection)
            return
        number, kind = found
        if kind not in _TABLES:
            raise DataError(f"{self.name} is not a table, expected one, or a name that is free; choose another name")
        self._check_layout(connection, number)

    def column_list(self) -> Any:
        """Columns and their types, for a statement that makes a table."""
        sql = psycopg_package().sql
        columns = (sql.SQL(f"{{}} {kind} NOT NULL").format(sql.Identifier(name)) for name, kind in self.columns.items())
        return sql.SQL(", ").join(columns)

    def _make(self, connection: Any) -> None:
        make = psycopg_package().sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY (id))")
        connection.execute(make.format(self.identifier, self.column_list()))

    def _check_layout(self, connection: Any, number: int) -> None:
        found = {name: (kind, filled) for name, kind, filled in connection.execute(_COLUMNS, (number,)).fetchall()}
        there = {name: kind for name, (kind, _) in found.items() if name in ("id", "code", "vector")}
        if there != self.columns:
            raise DataError(
                f"the table {self.name} has another layout, got {_listed(there)}, expected {_listed(self.columns)}; "
                "open it as it was made, or choose another name"
            )
        loose = [name for name in self.columns if not found[name][1]]
        if loose or connection.execute(_UNIQUE_ID, (number,)).fetchone() is None:
            lacks = f"NOT NULL on {', '.join(loose)}" if loose else "a unique index on id"
            raise DataError(f"the table {self.name} lacks {lacks}, without which an id could not be replaced; add it")


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none of the columns"


def _check_version(connection: Any) -> None:
    version = connection.info.server_version
    if version < _OLDEST_SERVER:
        raise StorageError(f"PostgreSQL 14 or newer is needed, got {version // 10_000}; upgrade the server")


def _install_extension(connection: Any) -> None:
    select = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    found = connection.execute(select).fetchone()
    if found is None:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg_package().Error as error:
            raise StorageError(
                f"this database has no pgvector, and it could not be added: {str(error).splitlines()[0]}; have an "
                "administrator install it and run CREATE EXTENSION vector, or pass plain=True to do without"
            ) from error
        found = connection.execute(select).fetchone()
    version = tuple(int(part) for part in re.findall(r"\d+", found[0])[:2])
    if version < _OLDEST_EXTENSION:
        raise StorageError(
            f"pgvector 0.7 or newer is needed to compare bits, got {found[0]}; run ALTER EXTENSION vector UPDATE, or "
            "pass plain=True to do without"
        )


class Statements:
    """Statements for one table, composed once."""

    def __init__(self, table: Table, connection: Any) -> None:
        sql = self._sql = psycopg_package().sql
        columns = [sql.Identifier(name) for name in table.columns]
        changed = [sql.SQL("{0} = EXCLUDED.{0}").format(column) for column in columns[1:]]
        self._parts = {
            "table": table.identifier,
            "table_name": sql.Literal(table.identifier.as_string(connection)),
            "columns": sql.SQL(", ").join(columns),
            "changes": sql.SQL(", ").join(changed),
            "layout": table.column_list(),
            "n_bits": sql.Literal(table.n_bits),
            "n_features": sql.Literal(table.n_features),
        }
        # Without the cast, the planner might use an approximate index for an exact search.
        operator = "bit_count(t.code # q.code)" if table.plain else "(t.code <~> q.code)::integer"
        self.nearest = self._composed(_NEAREST.replace("{distance}", operator))
        self.nearest_by_index = self._composed(_NEAREST_BY_INDEX)
        self.reranked = self._composed(_RERANKED.replace("{distance}", operator).replace("{euclidean}", _EUCLIDEAN))
        self.count = self._composed("SELECT count(*) FROM {table}")
        self.count_up_to = self._composed("SELECT count(*) FROM (SELECT FROM {table} LIMIT %s) AS first")
        self.known = self._composed("SELECT id FROM {table} WHERE id = ANY(%s)")
        self.read = self._composed("SELECT id, code FROM {table} WHERE id = ANY(%s) ORDER BY id")
        self.delete = self._composed("DELETE FROM {table} WHERE id = ANY(%s)")
        self.any_between = self._composed("SELECT 1 FROM {table} WHERE id BETWEEN %s AND %s LIMIT 1")
        self.copy_in = self._composed("COPY {table} ({columns}) FROM STDIN (FORMAT binary)")
        self.make_incoming = self._composed("CREATE TEMP TABLE autojacobin_incoming ({layout}) ON COMMIT DROP")
        self.copy_incoming = self._composed("COPY pg_temp.autojacobin_incoming ({columns}) FROM STDIN (FORMAT binary)")
        self.replace = self._composed(_REPLACE)
        self.empty_incoming = self._composed("TRUNCATE pg_temp.autojacobin_incoming")
        self.set_effort = self._sql.SQL(_SET_EFFORT)
        self.has_index = self._composed(_HAS_INDEX)

    def make_index(self, m: int, ef_construction: int) -> Any:
        """Give the statement that makes an HNSW index over the codes."""
        options = f"m = {m:d}, ef_construction = {ef_construction:d}"
        return self._composed(f"CREATE INDEX ON {{table}} USING hnsw (code bit_hamming_ops) WITH ({options})")

    def _composed(self, text: str) -> Any:
        return self._sql.SQL(text).format(**self._parts)
