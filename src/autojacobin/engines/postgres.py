"""The connection to PostgreSQL, and the translation of its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.errors import DataError, DataTypeError, StorageError, import_extra

_SECONDS_TO_CONNECT = 10


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


def install_extension(connection: Any) -> None:
    """Make sure that the database has pgvector."""
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
    secrets = parts.get("password"), parts.get("sslpassword"), os.environ.get("PGPASSWORD")
    return redacted_message(text, secrets=secrets).rstrip(".")
