"""The SQL of a table of codes.

One statement answers many queries, which come as one array: ``LATERAL`` runs the search for each of them.
"""

from __future__ import annotations

from typing import Any

from autojacobin.engines._pg_connection import psycopg_package
from autojacobin.engines._pg_table import Table

__all__ = ["Statements"]

_QUERIES = "unnest(%(codes)s::bit({n_bits})[]) WITH ORDINALITY AS q (code, place)"
_NEAREST = f"""
    SELECT q.place, r.distance, r.id FROM {_QUERIES}
    CROSS JOIN LATERAL (
        SELECT t.id, {{distance}} AS distance FROM {{table}} AS t ORDER BY distance, t.id LIMIT %(k)s
    ) AS r ORDER BY q.place, r.distance, r.id
"""
_NEAREST_BY_INDEX = f"""
    SELECT q.place, r.distance::integer, r.id FROM {_QUERIES}
    CROSS JOIN LATERAL (
        SELECT t.id, t.code <~> q.code AS distance FROM {{table}} AS t ORDER BY t.code <~> q.code LIMIT %(k)s
    ) AS r ORDER BY q.place, r.distance, r.id
"""
_RERANKED = f"""
    SELECT q.place, r.distance, r.id FROM {_QUERIES}
    CROSS JOIN LATERAL (
        SELECT c.id, {{euclidean}} AS distance FROM (
            SELECT t.id, t.vector FROM {{table}} AS t ORDER BY {{distance}}, t.id LIMIT %(candidates)s
        ) AS c ORDER BY distance, c.id LIMIT %(k)s
    ) AS r ORDER BY q.place, r.distance, r.id
"""
_ASKED = "(%(vectors)s::real[])[(q.place::integer - 1) * {n_features} + 1 : q.place::integer * {n_features}]"
# In double precision, as everywhere in this library. The operator <-> of pgvector works in single precision, which puts
# neighbours that are nearly as far into another order, and ends at 10^38, where a square overflows.
_EUCLIDEAN = f"""sqrt((SELECT sum((a::double precision - b) * (a::double precision - b))
    FROM unnest(c.vector::real[], {_ASKED}) AS pairs (a, b)))"""
_HAS_INDEX = """
    SELECT 1 FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_am AS m ON m.oid = c.relam
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
    WHERE i.indrelid = {table_name}::regclass AND i.indisvalid AND m.amname = 'hnsw' AND a.attname = 'code'
"""
# An index scan of pgvector 0.8 goes on when it has not found as many as are asked for; an older one stops.
_LOOK_FARTHER = """
    SELECT set_config('hnsw.ef_search', %(ef_search)s, true),
        CASE WHEN string_to_array(extversion, '.')::integer[] >= ARRAY[0, 8]
        THEN set_config('hnsw.iterative_scan', 'strict_order', true) END
    FROM pg_extension WHERE extname = 'vector'
"""
_REPLACE = """
    INSERT INTO {table} ({columns}) SELECT {columns} FROM pg_temp.autojacobin_incoming ORDER BY id
    ON CONFLICT (id) DO UPDATE SET {changes}
"""


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
        # Without the cast the planner might take an approximate index for an exact search.
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
        self.look_farther = self._sql.SQL(_LOOK_FARTHER)
        self.has_index = self._composed(_HAS_INDEX)

    def make_index(self, m: int, ef_construction: int) -> Any:
        """Give the statement that makes an HNSW index over the codes."""
        options = f"m = {m:d}, ef_construction = {ef_construction:d}"
        return self._composed(f"CREATE INDEX ON {{table}} USING hnsw (code bit_hamming_ops) WITH ({options})")

    def _composed(self, text: str) -> Any:
        return self._sql.SQL(text).format(**self._parts)
