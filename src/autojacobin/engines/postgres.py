"""The connection to PostgreSQL, the translation of its errors, and the layout of a table of codes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.errors import DataError, DataTypeError, StorageError, import_extra

_SECONDS_TO_CONNECT = 10
_MOST_FEATURES = 16_000
_LONGEST_NAME = 63
_COLUMNS = """
    SELECT attname, format_type(atttypid, atttypmod)
    FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""


def psycopg_package() -> Any:
    """Import the package ``psycopg``, or raise an error that says how to install it."""
    psycopg = import_extra("psycopg", "pgvector", "a table in PostgreSQL")
    import_extra("pgvector.psycopg", "pgvector", "a table in PostgreSQL")
    return psycopg


def connect(dsn: str) -> Any:
    """Connect to a server; libpq reads missing parts of the DSN from its environment variables and files."""
    psycopg = psycopg_package()
    parts = _parts(dsn)
    timeout = {} if "connect_timeout" in parts else {"connect_timeout": _SECONDS_TO_CONNECT}
    try:
        # prepared statements do not work through poolers that share connections
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **timeout)
    except psycopg.Error as error:
        raise StorageError(
            f"cannot connect to PostgreSQL at {_server(dsn)}: {_reason(error, parts)}; check that the server runs "
            "there, and the user and the password"
        ) from None


@contextmanager
def translated_errors(connection: Any, dsn: str, table: str) -> Iterator[None]:
    """Translate errors of PostgreSQL within the block into errors of this library."""
    psycopg = psycopg_package()
    try:
        yield
    except psycopg.Error as error:
        parts = _parts(dsn)
        server, reason = _server(dsn), _reason(error, parts)
        if connection.closed:
            message = f"the connection to PostgreSQL at {server} is lost: {reason}; open it again and repeat the call"
        else:
            message = (
                f"PostgreSQL at {server} refused the operation on the table {table}: {reason}; fix that and repeat the "
                "call, of which nothing was kept"
            )
        raise StorageError(message) from None


@dataclass(frozen=True)
class TableLayout:
    """Columns id, code and, if vectors are kept, vector. Columns that the user adds are ignored."""

    name: str
    n_bits: int
    n_features: int | None
    vector_type: str
    plain: bool
    id_type: str = "bigint"

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
        columns = {"id": self.id_type, "code": f"bit({self.n_bits})"}
        if self.n_features is not None:
            columns["vector"] = self.stored_as if self.plain else f"{self.stored_as}({self.n_features})"
        return columns

    @property
    def identifier(self) -> Any:
        """The name, quoted."""
        return psycopg_package().sql.Identifier(*self.name.split("."))

    def prepare(self, connection: Any) -> None:
        """Check the server and the table; make the table if it does not exist."""
        from pgvector.psycopg import register_vector
        from pgvector.psycopg.bit import register_bit_info

        if self.plain:
            register_bit_info(connection, psycopg_package().types.TypeInfo.fetch(connection, "bit"))
        else:
            _install_extension(connection)
            register_vector(connection)
        found = dict(connection.execute(_COLUMNS, (self.identifier.as_string(connection),)).fetchall())
        if not found:
            make = psycopg_package().sql.SQL("CREATE TABLE IF NOT EXISTS {} ({}, PRIMARY KEY (id))")
            connection.execute(make.format(self.identifier, self.column_list()))
            return
        there = {name: kind for name, kind in found.items() if name in ("id", "code", "vector")}
        if there != self.columns:
            raise DataError(
                f"the table {self.name} has another layout, got {_listed(there)}, expected {_listed(self.columns)}; "
                "open it as it was made, or choose another name"
            )

    def column_list(self) -> Any:
        """Columns and their types, for a statement that makes a table."""
        sql = psycopg_package().sql
        columns = (sql.SQL(f"{{}} {kind} NOT NULL").format(sql.Identifier(name)) for name, kind in self.columns.items())
        return sql.SQL(", ").join(columns)


def _listed(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items()) or "none of the columns"


def _install_extension(connection: Any) -> None:
    if connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone() is None:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except psycopg_package().Error as error:
            raise StorageError(
                f"this database has no pgvector, and it could not be added: {str(error).splitlines()[0]}; have an "
                "administrator install it and run CREATE EXTENSION vector, or pass plain=True to do without"
            ) from error


def _server(dsn: str) -> str:
    """The user, server and database of a DSN, without its password."""
    given = {name: redacted_address(part) for name, part in _parts(dsn).items()}  # a dbname may be a DSN itself
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "the default host"
    port = f":{given['port']}" if given.get("port") else ""
    user = f"{given['user']}@" if given.get("user") else ""
    return f"{user}{host}{port}/{given.get('dbname') or ''}".rstrip("/")


def _parts(dsn: Any) -> dict[str, Any]:
    psycopg = psycopg_package()
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


def _reason(error: Any, parts: dict[str, Any]) -> str:
    # only the first part of the message, for the details quote whole rows
    text = " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
    return redacted_message(text, secrets=_secrets(parts)).rstrip(".")


def _secrets(parts: dict[str, Any]) -> tuple[Any, ...]:
    return parts.get("password"), parts.get("sslpassword"), os.environ.get("PGPASSWORD")
