"""The connection to PostgreSQL, and values in the form in which it reads and writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.engines.contract import Floats, Ids
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, MissingExtraError, StorageError

__all__ = [
    "BitArray", "FloatArray", "IdArray", "bit_array", "codes_from", "connected", "copied_rows", "float_array",
    "id_array", "psycopg_package", "told", "where",
]  # fmt: skip

_COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_COPY_TRAILER = b"\xff\xff"
_FLOAT4 = 700
_EVERY_BYTE = np.arange(256, dtype=np.uint8)[:, np.newaxis]
_TURNED = np.packbits(np.unpackbits(_EVERY_BYTE, axis=1, bitorder="little"), axis=1)[:, 0]


class BitArray(bytes):
    """A value of type ``bit(n)[]`` as it is sent."""

    type_number = 1561


class FloatArray(bytes):
    """A value of type ``real[]`` as it is sent."""

    type_number = 1021


class IdArray(bytes):
    """A value of type ``bigint[]`` as it is sent."""

    type_number = 1016


def copied_rows(ids: Ids, codes: Codes, vectors: Floats | None, vector_type: str) -> bytes:
    """Give what COPY (FORMAT binary) takes for the columns id, code and, if there are vectors, vector."""
    columns: list[tuple[Any, ...]] = [("columns", ">i2"), ("id size", ">i4"), ("id", ">i8"), ("code size", ">i4")]
    columns.append(("code", _bits(codes.n_bits)))
    if vectors is not None:
        columns += [("vector size", ">i4"), ("vector", _vector(vectors.shape[1], vector_type))]
    rows = np.zeros(len(ids), dtype=columns)
    rows["columns"] = 2 if vectors is None else 3
    rows["id size"], rows["id"] = 8, ids
    rows["code size"] = rows.dtype["code"].itemsize
    _fill_bits(rows["code"], codes)
    if vectors is not None:
        rows["vector size"] = rows.dtype["vector"].itemsize
        _fill_vectors(rows["vector"], vectors)
    return _COPY_HEADER + rows.tobytes() + _COPY_TRAILER


def bit_array(codes: Codes) -> BitArray:
    """Give codes as a value of type ``bit(n)[]``."""
    items = np.zeros(len(codes), dtype=[("size", ">i4"), ("code", _bits(codes.n_bits))])
    items["size"] = items.dtype["code"].itemsize
    _fill_bits(items["code"], codes)
    return BitArray(_array_header(1560, len(items)).tobytes() + items.tobytes())


def float_array(vectors: Floats) -> FloatArray:
    """Give vectors as one value of type ``real[]``, one after the other."""
    items = np.zeros(vectors.size, dtype=[("size", ">i4"), ("value", ">f4")])
    items["size"], items["value"] = 4, vectors.ravel()
    return FloatArray(_array_header(_FLOAT4, vectors.size).tobytes() + items.tobytes())


def id_array(ids: Ids) -> IdArray:
    """Give ids as a value of type ``bigint[]``."""
    items = np.zeros(len(ids), dtype=[("size", ">i4"), ("value", ">i8")])
    items["size"], items["value"] = 8, ids
    return IdArray(_array_header(20, len(ids)).tobytes() + items.tobytes())


def codes_from(values: list[bytes], n_bits: int) -> Codes:
    """Codes from values of type ``bit(n)`` as they are received."""
    received = np.frombuffer(b"".join(values), dtype=_bits(n_bits))
    return Codes(_TURNED[received["bits"]], n_bits)


def _bits(n_bits: int) -> np.dtype[Any]:
    return np.dtype([("length", ">i4"), ("bits", np.uint8, (-(-n_bits // 8),))])


def _fill_bits(column: npt.NDArray[Any], codes: Codes) -> None:
    column["length"] = codes.n_bits
    column["bits"] = _TURNED[codes.packed]


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
    """One dimension, no nulls, the type of the items, how many there are, counted from 1."""
    return np.array([1, 0, type_number, length, 1], dtype=">i4")


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
