"""The connection to PostgreSQL, the translation of its errors, and its binary formats."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.engines.contract import Floats, Ids
from autojacobin.errors import DataError, DataTypeError, MissingExtraError, StorageError

__all__ = [
    "as_bit_array", "as_codes", "as_copy_rows", "as_float_array", "as_id_array", "connect", "psycopg_package",
    "translated_errors",
]  # fmt: skip

_SECONDS_TO_CONNECT = 10
_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"
_FLOAT4 = 700


def psycopg_package() -> Any:
    """Import the package ``psycopg``, or raise an error that says how to install it."""
    try:
        import psycopg
    except ImportError as error:
        raise MissingExtraError("psycopg", "pgvector", "a table in PostgreSQL") from error
    return psycopg


def connect(dsn: str) -> Any:
    """Connect to a server; libpq reads missing parts of the DSN from its environment variables and files."""
    psycopg = psycopg_package()
    parts = _parts(dsn)
    timeout = {} if "connect_timeout" in parts else {"connect_timeout": _SECONDS_TO_CONNECT}
    try:
        # prepared statements do not work through poolers that share connections
        connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **timeout)
    except psycopg.Error as error:
        raise StorageError(
            f"cannot connect to PostgreSQL at {_server(dsn)}: {_reason(error, parts)}; check that the server runs "
            "there, and the user and the password"
        ) from None
    for kind in (_BitArray, _FloatArray, _IdArray):
        connection.adapters.register_dumper(kind, _dumper(psycopg, kind.type_number))
    return connection


@contextmanager
def translated_errors(connection: Any, dsn: str, table: str) -> Iterator[None]:
    """Translate errors of PostgreSQL within the block into errors of this library."""
    psycopg = psycopg_package()
    try:
        yield
    except psycopg.Error as error:
        parts = _parts(dsn)
        server, reason = _server(dsn), _reason(error, parts)
        if isinstance(error, psycopg.errors.UndefinedTable):
            message = f"the table {table} at {server} is gone; open it again to make a new one"
        elif isinstance(error, psycopg.errors.InsufficientPrivilege):
            message = (
                f"PostgreSQL at {server} denies permission: {reason}; ask its administrator to grant it, or "
                "connect as another user"
            )
        elif isinstance(error, psycopg.errors.NotNullViolation):
            message = (
                f"the table {table} at {server} has a column of its own that has to be filled: {reason}; give that "
                "column a default and repeat the call, of which nothing was kept"
            )
        elif connection.closed:
            message = f"the connection to PostgreSQL at {server} is lost: {reason}; open it again and repeat the call"
        else:
            message = (
                f"PostgreSQL at {server} refused the operation on the table {table}: {reason}; fix that and repeat the "
                "call, of which nothing was kept"
            )
        raise StorageError(message) from None


def as_copy_rows(ids: Ids, codes: Codes, vectors: Floats | None, vector_type: str) -> bytes:
    """Convert rows to the input of COPY (FORMAT binary): the columns id, code and, if there are vectors, vector."""
    columns: list[tuple[Any, ...]] = [("columns", ">i2"), ("id size", ">i4"), ("id", ">i8"), ("code size", ">i4")]
    columns.append(("code", _bits(codes.n_bits)))
    if vectors is not None:
        columns += [("vector size", ">i4"), ("vector", _vector(vectors.shape[1], vector_type))]
    rows = np.zeros(len(ids), dtype=columns)
    rows["columns"] = 2 if vectors is None else 3
    rows["id size"], rows["id"] = 8, ids
    rows["code size"] = rows.dtype["code"].itemsize
    rows["code"] = _as_bits(codes)
    if vectors is not None:
        rows["vector size"] = rows.dtype["vector"].itemsize
        _fill_vectors(rows["vector"], vectors)
    return _COPY_HEADER + rows.tobytes() + _COPY_TRAILER


def as_bit_array(codes: Codes) -> _BitArray:
    """Convert codes to a value of type ``bit(n)[]``."""
    return _BitArray(_as_array(1560, _as_bits(codes)))


def as_float_array(vectors: Floats) -> _FloatArray:
    """Convert vectors to one value of type ``real[]``, one vector after the other."""
    return _FloatArray(_as_array(_FLOAT4, vectors.ravel().astype(">f4")))


def as_id_array(ids: Ids) -> _IdArray:
    """Convert ids to a value of type ``bigint[]``."""
    return _IdArray(_as_array(20, ids.astype(">i8")))


def as_codes(values: list[bytes], n_bits: int) -> Codes:
    """Convert received values of type ``bit(n)`` to codes."""
    received = np.frombuffer(b"".join(values), dtype=_bits(n_bits))
    return Codes.from_packed(received["bits"], n_bits, bitorder="big")


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


def _dumper(psycopg: Any, number: int) -> Any:
    class Unchanged(psycopg.adapt.Dumper):
        format = psycopg.pq.Format.BINARY
        oid = number

        def dump(self, value: bytes) -> bytes:
            return value

    return Unchanged


# Values in the binary format of PostgreSQL, with the numbers of their types: bit(n)[], real[] and bigint[].


class _BitArray(bytes):
    type_number = 1561


class _FloatArray(bytes):
    type_number = 1021


class _IdArray(bytes):
    type_number = 1016


def _bits(n_bits: int) -> np.dtype[Any]:
    return np.dtype([("length", ">i4"), ("bits", np.uint8, (-(-n_bits // 8),))])


def _as_bits(codes: Codes) -> npt.NDArray[Any]:
    """Values of type ``bit(n)``: a length, and the bits with the most significant first in a byte."""
    values = np.empty(len(codes), dtype=_bits(codes.n_bits))
    values["length"], values["bits"] = codes.n_bits, codes.to_packed("big")
    return values


def _as_array(type_number: int, values: npt.NDArray[Any]) -> bytes:
    """An array of values of one type, each with its size before it."""
    items = np.empty(len(values), dtype=[("size", ">i4"), ("value", values.dtype)])
    items["size"], items["value"] = values.dtype.itemsize, values
    return _array_header(type_number, len(values)).tobytes() + items.tobytes()


def _vector(n_features: int, vector_type: str) -> np.dtype[Any]:
    if vector_type == "real[]":
        item = [("size", ">i4"), ("value", ">f4")]
        return np.dtype([("header", ">i4", (5,)), ("items", item, (n_features,))])
    value = ">f2" if vector_type == "halfvec" else ">f4"
    return np.dtype([("length", ">i2"), ("unused", ">i2"), ("values", value, (n_features,))])


def _fill_vectors(column: npt.NDArray[Any], vectors: Floats) -> None:
    names = column.dtype.names or ()
    if "header" in names:
        column["header"] = _array_header(_FLOAT4, vectors.shape[1])
        column["items"]["size"], column["items"]["value"] = 4, vectors
    else:
        column["length"], column["values"] = vectors.shape[1], vectors


def _array_header(type_number: int, length: int) -> npt.NDArray[Any]:
    """One dimension, no nulls, the type of the items, their number, and the first subscript."""
    return np.array([1, 0, type_number, length, 1], dtype=">i4")
