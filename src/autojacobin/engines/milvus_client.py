"""The connection to Milvus, the translation of its errors, and the layout of a collection with codes."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autojacobin.codes import BitOrder
from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.engines.contract import as_address
from autojacobin.errors import DataError, DataTypeError, StorageError, import_extra

INDEXES = ("BIN_FLAT", "BIN_IVF_FLAT")
LISTS = 128  # inverted lists of BIN_IVF_FLAT, the default of Milvus

_SECONDS_TO_CONNECT = 10.0
_FIRST = {"little": "least", "big": "most"}  # which bit of a byte is the first of the code
_SCHEMES = ("http://", "https://", "tcp://", "unix:")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")  # the names that milvus-lite accepts
_REMEDIES = (
    (
        ("open local milvus failed",),
        "another process has the file open, or it is damaged or not one of Milvus; close it, or give another path",
    ),
    (("auth check", "unauthenticated", "permission", "privilege"), "check the token and what its user may do"),
    (("fail connecting", "unavailable", "deadline"), "check that the server runs and that the address is right"),
    (("invalid dimension",), "Milvus stores codes and vectors of at most 32,768 dimensions; use shorter ones"),
    (("multiple vector fields",), "vectors with codes need Milvus 2.4 or newer; leave n_features out"),
    (("binary", "bin_flat"), "this Milvus may not store binary vectors; the last milvus-lite that does is 2.5.1"),
    (("limit", "resource", "memory", "disk"), "give the server more room, or write and ask for less at once"),
)

_connections: dict[str, int] = {}  # the number of our connections to each server that we started for a file
_connections_lock = threading.Lock()


class Connection:
    """A client of pymilvus, which stops the server of a file when no other connection uses it."""

    def __init__(self, uri: str | os.PathLike[str], token: str | None = None) -> None:
        address = _as_uri(uri)
        if token is not None and not isinstance(token, str):
            raise DataTypeError(f"token must be text such as user:password, got {type(token).__name__}")
        self.is_file = address.endswith(".db")
        self._address, self._token = address, token
        self._shown = address if self.is_file else redacted_address(address)
        pymilvus = import_extra("pymilvus", "milvus", "Milvus")
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it raises its errors too
        self._file = _register(address) if self.is_file else None
        try:
            with self.translated_errors("connect"):
                self.client: Any = pymilvus.MilvusClient(uri=address, token=token or "", timeout=_SECONDS_TO_CONNECT)
        except BaseException:
            _unregister(self._file)
            raise

    @contextmanager
    def translated_errors(self, action: str) -> Iterator[None]:
        """Translate an error of pymilvus within the block into one of this library that names the action."""
        import grpc
        from pymilvus import MilvusException

        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            reason = redacted_message(_reason(error), self._address, secrets=(self._token,))
            raise StorageError(f"Milvus at {self._shown} failed to {action}, got: {reason}") from None

    def close(self) -> None:
        """Close the client, and stop the server if it was started for a file and no other connection uses it."""
        try:
            with self.translated_errors("close"):
                self.client.close()
        finally:
            _unregister(self._file)
            self._file = None


def create_collection(
    call: Callable[..., Any], client: Any, n_bits: int, n_features: int | None, index: str, bitorder: BitOrder
) -> None:
    """Make a collection; ``call(method, ...)`` calls a method of the client on it."""
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    indexes = client.prepare_index_params()
    schema.add_field("id", DataType.INT64, is_primary=True)
    description = f"{n_bits} bits, {_FIRST[bitorder]} significant first in a byte"
    schema.add_field("code", DataType.BINARY_VECTOR, dim=_padded(n_bits), description=description)
    lists = {"nlist": LISTS} if index == "BIN_IVF_FLAT" else {}
    indexes.add_index("code", index_name="code", index_type=index, metric_type="HAMMING", params=lists)
    if n_features is not None:
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=n_features)
        indexes.add_index("vector", index_name="vector", index_type="FLAT", metric_type="L2")
    call("create_collection", schema=schema, consistency_level="Strong")
    try:
        call("create_index", indexes, sync=False)  # an empty collection has no index to wait for
    except StorageError:
        call("drop_collection")
        raise


def check_layout(
    name: str, description: dict[str, Any], n_bits: int, n_features: int | None, bitorder: BitOrder
) -> None:
    """Raise a DataError if a collection has other fields than these codes and vectors need."""
    fields = {field["name"]: field for field in description["fields"]}
    found = {name: (field["type"].name, field["params"].get("dim")) for name, field in fields.items()}
    expected = {"id": ("INT64", None), "code": ("BINARY_VECTOR", _padded(n_bits))}
    if n_features is not None:
        expected["vector"] = ("FLOAT_VECTOR", n_features)
    stored = re.match(r"(\d+) bits(?:, (least|most) significant)?", fields.get("code", {}).get("description", ""))
    if found != expected or (stored and int(stored[1]) != n_bits):
        raise DataError(
            f"the collection {name!r} has another layout, got {_fields(found)}"
            f"{f' for codes of {stored[1]} bits' if stored else ''}, expected {_fields(expected)} for codes of "
            f"{n_bits} bits; open it with the n_bits and n_features it has, or choose another name"
        )
    if stored and stored[2] and stored[2] != _FIRST[bitorder]:
        raise DataError(
            f"the collection {name!r} holds codes in another bit order, got the {stored[2]} significant bit of a byte "
            f"first, expected the {_FIRST[bitorder]} significant; open it with the other bitorder, or choose another "
            "name"
        )


def check_index(name: str, found: dict[str, Any], index: str | None) -> None:
    """Raise a DataError if a collection has an index on its codes that was not asked for, or cannot be used."""
    kind, metric = found.get("index_type"), found.get("metric_type")
    if kind not in INDEXES or metric != "HAMMING" or (index is not None and kind != index):
        raise DataError(
            f"the collection {name!r} has another index on its codes, got {kind} with {metric}, expected "
            f"{index or ' or '.join(INDEXES)} with HAMMING; leave index out, or choose another name"
        )


def _padded(n_bits: int) -> int:
    return -(-n_bits // 8) * 8


def _fields(fields: dict[str, tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} {kind}" + (f"({dim})" if dim else "") for name, (kind, dim) in fields.items())


def _as_uri(uri: Any) -> str:
    address = as_address(uri, "'http://localhost:19530' or 'codes.db'")
    if address.lower().startswith(_SCHEMES):
        try:
            _ = urlsplit(address).port
        except ValueError:  # its message may quote a part of a password
            raise DataError(
                f"uri is not an address, got {redacted_address(address)!r}, expected a host and a port, with special "
                "characters of a password percent-encoded; try http://localhost:19530"
            ) from None
        return address
    path = Path(address).expanduser().absolute()
    if path.suffix != ".db" or not _FILE_NAME.fullmatch(path.name):
        raise DataError(
            "uri must be the address of a server, such as http://localhost:19530, or a file name of at most 36 "
            f"letters, digits, '.', '-' and '_' that ends in .db, got {redacted_address(address)!r}"
        )
    if not path.parent.is_dir():
        raise StorageError(f"cannot open {path}: the folder {path.parent} does not exist; make it first")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.R_OK | os.W_OK)):
        raise StorageError(f"cannot open {path}: no permission to read and write it; change its mode or its folder's")
    return str(path)


def _register(path: str) -> str | None:
    """Count a connection to the server of a file; None if a client outside this library started that server."""
    servers = _servers()
    name = str(Path(path).resolve())
    with _connections_lock:
        if name not in _connections and name in getattr(servers, "_servers", {}):
            return None
        _connections[name] = _connections.get(name, 0) + 1
    return name


def _unregister(name: str | None) -> None:
    if name is None:
        return
    servers = _servers()
    with _connections_lock:
        _connections[name] -= 1
        if not _connections[name]:
            del _connections[name]
            if name in getattr(servers, "_servers", {}):
                servers.release_server(name)


def _servers() -> Any:
    lite = import_extra("milvus_lite.server_manager", "milvus-lite", "a Milvus collection in a file", "milvus-lite")
    return lite.server_manager_instance


def _reason(error: Exception) -> str:
    """What went wrong in one line, and how to fix it."""
    details = getattr(error, "details", None)  # of a gRPC call, whose text is a page
    message = str(getattr(error, "message", "") or (details() if callable(details) else "") or error).strip()
    everything = " ".join([message, *_causes(error)]).lower()
    first = (message.splitlines() or [type(error).__name__])[0]
    for signs, remedy in _REMEDIES:
        if any(sign in everything for sign in signs):
            return f"{first}; {remedy}"
    return f"{first}; the log of the server may say more"


def _causes(error: BaseException) -> list[str]:
    """Messages of an error and its causes; pymilvus reports a wrong password only as a cause."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:  # pymilvus raises errors from themselves
        chain.append(cause)
    return [str(cause) for cause in chain]
