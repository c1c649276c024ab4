"""A connection to PostgreSQL whose troubles are told in a sentence, and never with the password."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.engines._pg_wire import BitArray, FloatArray, IdArray
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, MissingExtraError, StorageError

__all__ = ["connected", "psycopg_package", "told", "where"]

_SECONDS_TO_CONNECT = 10


def psycopg_package() -> Any:
    """Give the package ``psycopg``, or say how to install it."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("psycopg", "pgvector", "a table in PostgreSQL") from error
    return psycopg


def connected(dsn: str) -> Any:
    """Connect to a server; what the DSN leaves out comes from the variables and files that libpq knows."""
    psycopg = psycopg_package()
    given = _parts(dsn)
    timeout = {} if "connect_timeout" in given else {"connect_timeout": _SECONDS_TO_CONNECT}
    try:
        # statements that are prepared on the way do not get through poolers that share connections
        connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **timeout)
    except psycopg.Error as error:
        raise StorageError(
            f"cannot connect to PostgreSQL at {where(dsn)}: {_reason(error, given)}; check that the server runs there, "
            "and the user and the password"
        ) from None
    for kind in (BitArray, FloatArray, IdArray):
        connection.adapters.register_dumper(kind, _as_it_is(psycopg, kind.type_number))
    return connection


def where(dsn: str) -> str:
    """Say which server, database and user a DSN names, and leave out its password."""
    given = {name: redacted_address(part) for name, part in _parts(dsn).items()}  # a dbname may be a DSN itself
    host = given.get("host") or given.get("hostaddr") or os.environ.get("PGHOST") or "the default host"
    port = f":{given['port']}" if given.get("port") else ""
    user = f"{given['user']}@" if given.get("user") else ""
    return f"{user}{host}{port}/{given.get('dbname') or ''}".rstrip("/")


@contextmanager
def told(connection: Any, dsn: str, table: str) -> Iterator[None]:
    """Turn what PostgreSQL complains of into errors of this library."""
    psycopg = psycopg_package()
    try:
        yield
    except AutoJacobinError:
        raise
    except psycopg.errors.UndefinedTable as error:
        raise StorageError(f"the table {table} at {where(dsn)} is gone; open it again to make a new one") from _cause(
            error, dsn
        )
    except psycopg.errors.InsufficientPrivilege as error:
        raise StorageError(
            f"PostgreSQL at {where(dsn)} does not permit that: {_reason(error, _parts(dsn))}; ask its administrator to "
            "grant the right, or connect as another user"
        ) from _cause(error, dsn)
    except psycopg.errors.NotNullViolation as error:
        raise StorageError(
            f"the table {table} at {where(dsn)} has a column of its own that has to be filled: "
            f"{_reason(error, _parts(dsn))}; give that column a default and repeat the call, of which nothing was kept"
        ) from _cause(error, dsn)
    except psycopg.Error as error:
        if connection.closed:
            raise StorageError(
                f"the connection to PostgreSQL at {where(dsn)} is lost: {_reason(error, _parts(dsn))}; open it again "
                "and repeat the call"
            ) from _cause(error, dsn)
        raise StorageError(
            f"PostgreSQL at {where(dsn)} could not do that with the table {table}: {_reason(error, _parts(dsn))}; "
            "fix that and repeat the call, of which nothing was kept"
        ) from _cause(error, dsn)


def _parts(dsn: Any) -> dict[str, Any]:
    psycopg = psycopg_package()
    if not isinstance(dsn, str):
        raise DataTypeError(f"dsn must be a string such as 'postgresql://user@host/database', got {type(dsn).__name__}")
    unreadable = DataError(
        "dsn cannot be read; expected 'host=… port=… dbname=… user=…' or 'postgresql://host:5432/database', with "
        "special characters of an address percent-encoded"
    )
    # a zero would end the text, and libpq would take a part of a password with / or @ in it for the host, and show it
    place = re.sub("^postgres(?:ql)?://(?:[^@/]*@)?", "", dsn)
    if "\0" in dsn or (place != dsn and "@" in place.partition("?")[0]):
        raise unreadable
    try:
        parts: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError):  # its message repeats the DSN, password and all
        raise unreadable from None
    if not re.fullmatch("[0-9,]*", str(parts.get("port") or "")):
        raise unreadable  # a password without the @ after it
    return parts


def _reason(error: Any, given: dict[str, Any]) -> str:
    # of what the server says only the first part, for its details quote whole rows
    text = " ".join((error.diag.message_primary or str(error)).split()) or type(error).__name__
    return redacted_message(text, secrets=_secrets(given)).rstrip(".")


def _cause(error: BaseException, dsn: str) -> BaseException | None:
    return safe_cause(error, secrets=_secrets(_parts(dsn)))


def _secrets(given: dict[str, Any]) -> tuple[Any, ...]:
    return given.get("password"), given.get("sslpassword"), os.environ.get("PGPASSWORD")


def _as_it_is(psycopg: Any, number: int) -> Any:
    class AsItIs(psycopg.adapt.Dumper):
        format = psycopg.pq.Format.BINARY
        oid = number

        def dump(self, value: bytes) -> bytes:
            return value

    return AsItIs
