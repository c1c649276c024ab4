"""The connection to Milvus: the client, its errors in one sentence, and the collection with codes."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.errors import DataError, DataTypeError, MissingExtraError, StorageError

__all__ = [
    "INDEXES",
    "LISTS",
    "Connection",
    "checked_features",
    "checked_name",
    "create",
    "refuse_other_index",
    "refuse_other_layout",
]  # fmt: skip

_SECONDS_TO_CONNECT = 10.0
_SCHEMES = ("http://", "https://", "tcp://", "unix:")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")  # what milvus-lite takes

_holders: dict[str, int] = {}  # how many connections of ours each server has that we started for a file
_holders_lock = threading.Lock()
_heard: ContextVar[list[str] | None] = ContextVar("what pymilvus logs while one of our calls runs", default=None)


class Connection:
    """A client of pymilvus, where it leads, and the right to stop the server behind it.

    Parameters
    ----------
    uri : str or path
        ``http://host:19530`` and the like, or a path that ends in ``.db``.
    token : str, optional
        ``user:password``, or the key of a cloud service.
    """

    def __init__(self, uri: str | os.PathLike[str], token: str | None = None) -> None:
        address = _checked_uri(uri)
        if token is not None and not isinstance(token, str):
            raise DataTypeError(f"token must be text such as user:password, got {type(token).__name__}")
        self.is_file = address.endswith(".db")
        self._address, self._token = address, token
        self.shown = address if self.is_file else redacted_address(address)
        try:
            from pymilvus import MilvusClient
        except ImportError:
            raise MissingExtraError("pymilvus", "milvus", "Milvus") from None
        self._file = _hold(address) if self.is_file else None
        try:
            with self.told("connect"):
                self.client: Any = MilvusClient(uri=address, token=token or "", timeout=_SECONDS_TO_CONNECT)
        except BaseException:
            _let_go(self._file)
            raise

    @contextmanager
    def told(self, doing: str) -> Iterator[None]:
        """Turn an error of pymilvus within the block into one of ours that says what was being done."""
        import grpc
        from pymilvus import MilvusException

        _install_listener()
        heard: list[str] = []
        before = _heard.set(heard)
        try:
            yield
        except (MilvusException, grpc.RpcError, grpc.FutureTimeoutError) as error:
            reason = redacted_message(_reason(error, heard), self._address, secrets=(self._token,))
            cause = safe_cause(error, self._address, secrets=(self._token,))
            raise StorageError(f"Milvus at {self.shown} failed to {doing}, got: {reason}") from cause
        finally:
            _heard.reset(before)

    def close(self) -> None:
        """Let go of the client, and stop the server if it was started for a file and nobody else holds it."""
        try:
            with self.told("close"):
                self.client.close()
        finally:
            _let_go(self._file)
            self._file = None


def _checked_uri(uri: Any) -> str:
    try:
        address = os.fspath(uri)
    except TypeError:
        address = None
    if not isinstance(address, str):
        raise DataTypeError(
            f"uri must be text or a path, got {type(uri).__name__}; pass 'http://localhost:19530' or 'codes.db'"
        )
    if address.lower().startswith(_SCHEMES):
        try:
            _ = urlsplit(address).port
        except ValueError:  # which quotes what may be part of a password
            raise DataError(
                f"uri is no address, got {redacted_address(address)!r}, expected a host and a port, with special "
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


# Servers of files


def _hold(path: str) -> str | None:
    """Count one more holder of the server of a file; nothing if somebody else's client started it in this process."""
    servers = _servers()
    name = str(Path(path).resolve())
    with _holders_lock:
        if name not in _holders and name in getattr(servers, "_servers", {}):
            return None
        _holders[name] = _holders.get(name, 0) + 1
    return name


def _let_go(name: str | None) -> None:
    if name is None:
        return
    servers = _servers()
    with _holders_lock:
        _holders[name] -= 1
        if not _holders[name]:
            del _holders[name]
            if name in getattr(servers, "_servers", {}):
                servers.release_server(name)


def _servers() -> Any:
    try:
        from milvus_lite.server_manager import server_manager_instance
    except ImportError:
        raise MissingExtraError("milvus-lite", "milvus-lite", "a Milvus collection in a file") from None
    return server_manager_instance


# Errors


class _Listener(logging.Filter):
    """Takes what is logged while one of our calls runs, since the error that we raise says it all."""

    def filter(self, record: logging.LogRecord) -> bool:
        heard = _heard.get()
        if heard is None:
            return True
        heard.append(record.getMessage())
        return False


_listener = _Listener()


def _install_listener() -> None:
    # milvus-lite writes to the root logger itself, and a filter there sees nothing of other loggers
    logging.getLogger().addFilter(_listener)
    for handler in logging.getLogger("pymilvus").handlers:
        handler.addFilter(_listener)


def _reason(error: Exception, heard: list[str]) -> str:
    """What went wrong in one line, and how to mend it."""
    details = getattr(error, "details", None)  # of a gRPC call, whose text is a page
    message = str(getattr(error, "message", "") or (details() if callable(details) else "") or error).strip()
    everything = " ".join([message, *heard, *_causes(error)]).lower()
    first = (message.splitlines() or [type(error).__name__])[0]
    for signs, mend in _MENDS:
        if any(sign in everything for sign in signs):
            return f"{first}; {mend}"
    return f"{first}; the log of the server may say more"


def _causes(error: BaseException) -> list[str]:
    """What lies behind an error; pymilvus says of a wrong password only that it cannot connect."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:  # pymilvus raises errors from themselves
        chain.append(cause)
    return [str(cause) for cause in chain]


_MENDS = (
    (("opened by another program",), "another process has the file open: close it there, or run a server for both"),
    (("start milvus-lite failed",), "the file is damaged or not one of Milvus; give another path"),
    (("auth check", "unauthenticated", "permission", "privilege"), "check the token and what its user may do"),
    (("fail connecting", "unavailable", "deadline"), "check that the server runs and that the address is right"),
    (("invalid dimension",), "Milvus keeps codes and vectors of no more than 32,768; use shorter ones"),
    (("multiple vector fields",), "vectors beside codes need Milvus 2.4 or newer; leave n_features out"),
    (("binary", "bin_flat"), "this Milvus may keep no binary vectors: of milvus-lite, 2.5.1 is the last that does"),
    (("limit", "resource", "memory", "disk"), "give the server more room, or write and ask for less at once"),
)


INDEXES = ("BIN_FLAT", "BIN_IVF_FLAT")
LISTS = 128  # of BIN_IVF_FLAT, which is Milvus's own default
_MOST_FEATURES = 32_768


def checked_name(name: Any) -> str:
    """Give the name of a collection if Milvus can take it."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", name):
        raise DataError(
            f"collection must be a name of at most 255 letters, digits and underscores, the first not a digit, "
            f"got {name!r}; choose another"
        )
    return name


def checked_features(n_features: int | None) -> None:
    """Check that Milvus can keep vectors of this width."""
    if n_features is not None and not 2 <= n_features <= _MOST_FEATURES:
        raise DataError(
            f"n_features must be from 2 to {_MOST_FEATURES:,}, the widths that Milvus keeps, got {n_features}; "
            "leave it out to keep codes alone"
        )


def create(call: Callable[..., Any], client: Any, n_bits: int, n_features: int | None, index: str) -> None:
    """Make a collection; ``call(method, ...)`` calls a method of the client on it."""
    from pymilvus import DataType

    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    indexes = client.prepare_index_params()
    schema.add_field("id", DataType.INT64, is_primary=True)
    description = f"{n_bits} bits, least significant first in a byte"
    schema.add_field("code", DataType.BINARY_VECTOR, dim=_whole_bytes(n_bits), description=description)
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


def refuse_other_layout(name: str, description: dict[str, Any], n_bits: int, n_features: int | None) -> None:
    """Raise a DataError if a collection has other fields than codes of this length and such vectors need."""
    fields = {field["name"]: field for field in description["fields"]}
    found = {name: (field["type"].name, field["params"].get("dim")) for name, field in fields.items()}
    expected: dict[str, tuple[str, int | None]] = {
        "id": ("INT64", None),
        "code": ("BINARY_VECTOR", _whole_bytes(n_bits)),
    }
    if n_features is not None:
        expected["vector"] = ("FLOAT_VECTOR", n_features)
    said = re.match(r"(\d+) bits", fields.get("code", {}).get("description", ""))
    if found != expected or (said and int(said[1]) != n_bits):
        raise DataError(
            f"the collection {name!r} has another layout, got {_in_words(found)}"
            f"{f' for codes of {said[1]} bits' if said else ''}, expected {_in_words(expected)} for codes of {n_bits} "
            "bits; open it with the n_bits and n_features it has, or choose another name"
        )


def refuse_other_index(name: str, made: dict[str, Any], index: str | None) -> None:
    """Raise a DataError if a collection has another index on its codes than was asked for, or than can be used."""
    kind, metric = made.get("index_type"), made.get("metric_type")
    if kind not in INDEXES or metric != "HAMMING" or (index is not None and kind != index):
        raise DataError(
            f"the collection {name!r} has another index on its codes, got {kind} with {metric}, expected "
            f"{index or ' or '.join(INDEXES)} with HAMMING; leave index out, or choose another name"
        )


def _whole_bytes(n_bits: int) -> int:
    return -(-n_bits // 8) * 8


def _in_words(fields: dict[str, tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} {kind}" + (f"({dim})" if dim else "") for name, (kind, dim) in fields.items())
