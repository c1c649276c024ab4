"""SQLite with sqlite-vec: codes in a bit column of a table, in one file."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, SupportsIndex

import numpy as np

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.files import as_path
from autojacobin.engines.contract import Engine, Floats, Hits, IdKind, Ids, check_name
from autojacobin.errors import import_extra

_LAYOUTS = "autojacobin_layout"
_MOST_BY_INDEX = 256  # sqlite-vec's own search slows down with k; beyond this a sorted scan is faster
_MILLISECONDS_TO_WAIT = 10_000  # for another process that writes


class SQLite(Engine):
    """Codes in a table of `sqlite-vec <https://github.com/asg017/sqlite-vec>`_, which is made if it does not exist.

    The virtual table has the columns ``id`` (the primary key), ``code`` (``bit[n]``, with as many bits as fill whole
    bytes) and, with ``n_features``, ``vector`` (``float[n]``). The table ``autojacobin_layout`` holds the number of
    bits of each such table and their order. A write or a delete is one transaction. Several processes may use the file;
    one of them writes at a time. The package apsw contains a SQLite that can load extensions, which many Pythons lack.

    Parameters
    ----------
    path : path
        The database, which is made if it does not exist. It may hold other tables.
    table : str
        Name of the table: letters, digits and underscores.
    n_bits, n_features, bitorder, id_kind
        As in :class:`Engine`, with lengths up to 8192. ``vec_quantize_binary`` of sqlite-vec makes ``"little"``.
    """

    _noun: ClassVar[str] = "the table"
    _remedies: ClassVar[Mapping[str, str]] = {
        "locked|busy": "another program is writing to the file; try again when it is done",
        "not a database|malformed": "give the path of an intact SQLite database",
        "unable to open": "check that the folder exists and can be written to",
        "read-?only": "allow writing to the file and its folder",
        "full": "make room on the disk, and repeat the call, of which nothing was kept",
        "": "check that the table is one of sqlite-vec, and repeat the call, of which nothing was kept",
    }

    def __init__(
        self,
        path: str | os.PathLike[str],
        table: str,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        bitorder: BitOrder = "little",
        id_kind: IdKind = "integer",
    ) -> None:
        super().__init__(n_bits, n_features, bitorder, id_kind)
        letters = "letters, digits and underscores, the first not a digit"
        check_name("table", table, r"[A-Za-z_][A-Za-z0-9_]*", letters)
        self.table, self.path = table, as_path(path)
        self._title = f"the table {table!r} of SQLite in {self.path}"
        self._lock = threading.RLock()  # a connection answers one statement after the other
        # the error says how to install them
        apsw, vec = (import_extra(name, "sqlite", "a table of sqlite-vec") for name in ("apsw", "sqlite_vec"))
        self._errors = (apsw.Error,)
        with self._translated_errors("open"):
            self._connection = apsw.Connection(os.fspath(self.path))
        try:
            with self._translated_errors("open"):
                self._connection.set_busy_timeout(_MILLISECONDS_TO_WAIT)
                self._connection.enable_load_extension(True)
                self._connection.load_extension(vec.loadable_path())
                self._connection.enable_load_extension(False)
                with self._transaction():
                    self._open()
        except BaseException:
            self._connection.close()
            raise

    # What the contract requires

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        columns, values = "id, code", "?, vec_bit(?)"
        fields = [ids.tolist(), map(bytes, codes.to_packed(self.bitorder))]
        if vectors is not None:
            columns, values = f"{columns}, vector", f"{values}, ?"
            fields.append(map(bytes, vectors.astype("<f4", copy=False)))
        with self._translated_errors("write"), self._transaction():
            self._delete_rows(ids)  # sqlite-vec has no "insert or replace"
            self._connection.executemany(
                f"INSERT INTO {self.table}({columns}) VALUES ({values})", zip(*fields, strict=True)
            )

    def _search(self, queries: Codes, k: int, effort: int | None) -> Iterator[Hits]:  # noqa: ARG002
        if k <= _MOST_BY_INDEX:
            statement = f"SELECT distance, id FROM {self.table} WHERE code MATCH vec_bit(?) AND k = {k}"
        else:
            statement = (
                f"SELECT vec_distance_hamming(code, vec_bit(?)) AS distance, id FROM {self.table} "
                f"ORDER BY distance LIMIT {k}"
            )
        for code in queries.to_packed(self.bitorder):
            rows = self._all("search", statement, (code.tobytes(),))
            yield np.array([row[0] for row in rows]), self._id_array([row[1] for row in rows])

    def _delete(self, ids: Ids) -> None:
        with self._translated_errors("delete"), self._transaction():
            self._delete_rows(ids)

    def _fetch(self, ids: Ids, column: str) -> tuple[Any, Any]:
        wanted = json.dumps(ids.tolist())
        statement = f"SELECT id, {column} FROM {self.table} WHERE id IN (SELECT value FROM json_each(?))"
        rows = self._all("read", statement, (wanted,))
        dtype = "<f4" if column == "vector" else "u1"
        return [row[0] for row in rows], [] if column == "id" else [np.frombuffer(row[1], dtype) for row in rows]

    def _count(self) -> int:
        # this table of sqlite-vec has one row per code, and is counted a hundred times as fast as the virtual one
        return int(self._all("count", f"SELECT count(*) FROM {self.table}_rowids")[0][0])

    def _close(self) -> None:
        with self._lock, self._translated_errors("close"):
            self._connection.close()

    # Statements

    def _open(self) -> None:
        """Make the table, or raise a DataError if it has other columns than these codes and vectors need."""
        expected = f"id {'integer' if self.id_kind == 'integer' else 'text'} primary key"
        expected += f", code bit[{8 * self._n_bytes}]"
        if self.n_features is not None:
            expected += f", vector float[{self.n_features}]"
        execute = self._connection.execute
        execute(f"CREATE TABLE IF NOT EXISTS {_LAYOUTS}(name TEXT PRIMARY KEY, n_bits INTEGER, bitorder TEXT)")
        found = execute("SELECT sql FROM sqlite_master WHERE lower(name) = lower(?)", (self.table,)).fetchall()
        if not found:
            execute(f"CREATE VIRTUAL TABLE {self.table} USING vec0({expected})")
            execute(f"INSERT OR REPLACE INTO {_LAYOUTS} VALUES (?, ?, ?)", (self.table, self.n_bits, self.bitorder))
            return
        kinds = r"\bid \w+ primary key|\b\w+ (?:bit|float|int8)\[\d+\]"
        columns = ", ".join(re.findall(kinds, found[0][0] or "", flags=re.IGNORECASE))
        layout = execute(f"SELECT n_bits, bitorder FROM {_LAYOUTS} WHERE name = ?", (self.table,)).fetchall()
        n_bits, bitorder = layout[0] if layout else (None, None)
        self._check_layout(columns or "no vectors", expected, n_bits, bitorder)

    def _delete_rows(self, ids: Ids) -> None:
        self._connection.executemany(f"DELETE FROM {self.table} WHERE id = ?", ((id,) for id in ids.tolist()))

    def _all(self, action: str, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock, self._translated_errors(action):
            return self._connection.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Make what the block changes permanent, or, after an error, undo it."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")  # waits for another writer here, not in the middle
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
