"""Milvus: codes in a BINARY_VECTOR field of a collection, in a file, on a server or on a cluster."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.parallel import slices
from autojacobin.engines.contract import Distances, Engine, Floats, Hits, Ids, as_address, check_name
from autojacobin.errors import DataError, DataTypeError, StorageError, import_extra
from autojacobin.search.arguments import as_count

_BYTES_PER_REQUEST = 2**24  # well below the limit of gRPC, 64 MiB
_IDS_PER_REQUEST = 10_000
_HITS_PER_REQUEST = 2**19
INDEXES = ("BIN_FLAT", "BIN_IVF_FLAT")
LISTS = 128  # inverted lists of BIN_IVF_FLAT, the default of Milvus
_SECONDS_TO_CONNECT = 10.0
_FIRST = {"little": "least", "big": "most"}  # which bit of a byte is the first of the code
_SCHEMES = ("http://", "https://", "tcp://", "unix:")
_FILE_NAME = re.compile(r"[A-Za-z0-9._-]{1,36}")  # the names that milvus-lite accepts
_connections: Counter[str] = Counter()  # how many are ours, to each server that we started for a file
_connections_lock = threading.Lock()


class Milvus(Engine):
    """Codes in a collection of Milvus, which is made if it does not exist.

    The collection has the fields ``id`` (INT64, the primary key), ``code`` (BINARY_VECTOR) and, with ``n_features``,
    ``vector`` (FLOAT_VECTOR). Every read and search waits for what was written before it (consistency level Strong).

    Parameters
    ----------
    uri : str or path
        Address of a server or cluster, such as ``http://localhost:19530``; or a path that ends in ``.db``, for which
        milvus-lite starts a server that :meth:`close` stops. Only one process at a time can open the file.
    collection : str
        Name of the collection: letters, digits and underscores.
    n_bits, n_features, bitorder
        As in :class:`Engine`. Vectors with codes need Milvus 2.4 or newer.
    index : {"BIN_FLAT", "BIN_IVF_FLAT"}, optional
        Index of a new collection, by default BIN_FLAT, the only one in a file. An existing collection keeps its own.
    token : str, optional
        ``user:password``, or the key of a cloud service.
    timeout : float, optional
        Seconds to wait for a response of the server. None waits as long as pymilvus tries.
    """

    _noun: ClassVar[str] = "the collection"
    _remedies: ClassVar[Mapping[str, str]] = {
        "open local milvus failed": "another process has the file open, or it is damaged or not one of Milvus; close "
        "it, or give another path",
        "auth check|unauthenticated|permission|privilege": "check the token and what its user may do",
        "fail connecting|unavailable|deadline": "check that the server runs and that the address is right",
        "invalid dimension": "Milvus stores codes and vectors of at most 32,768 dimensions; use shorter ones",
        "multiple vector fields": "vectors with codes need Milvus 2.4 or newer; leave n_features out",
        "binary|bin_flat": "this Milvus may not store binary vectors; the last milvus-lite that does is 2.5.1",
        "limit|resource|memory|disk": "give the server more room, or write and ask for less at once",
        "": "the log of the server may say more",
    }
    _most_hits: ClassVar[int] = 16_384  # the limit of Milvus for one response

    def __init__(
        self,
        uri: str | os.PathLike[str],
        collection: str,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        index: Literal["BIN_FLAT", "BIN_IVF_FLAT"] | None = None,
        token: str | None = None,
        timeout: float | None = 120.0,
        bitorder: BitOrder = "little",
    ) -> None:
        super().__init__(n_bits, n_features, bitorder)
        letters = "at most 255 letters, digits and underscores, the first not a digit"
        check_name("collection", collection, r"[A-Za-z_][A-Za-z0-9_]{0,254}", letters)
        if index is not None and index not in INDEXES:
            raise DataError(f"index must be 'BIN_FLAT' or 'BIN_IVF_FLAT', got {index!r}")
        self.collection, self._timeout = collection, timeout
        self._fields = {"id": ("INT64", None), "code": ("BINARY_VECTOR", 8 * self._n_bytes)}
        if self.n_features is not None:
            self._fields["vector"] = ("FLOAT_VECTOR", self.n_features)
        if token is not None and not isinstance(token, str):
            raise DataTypeError(f"token must be text such as user:password, got {type(token).__name__}")
        self._address, self._token = _as_uri(uri), token or ""
        self._client: Any = None
        in_file = self._address.endswith(".db")
        shown = self._address if in_file else redacted_address(self._address)
        self._title = f"the collection {collection!r} of Milvus at {shown}"
        if index == "BIN_IVF_FLAT" and in_file:
            raise DataError("a Milvus in a file has the index BIN_FLAT alone, got 'BIN_IVF_FLAT'; leave index out")
        pymilvus, grpc = (import_extra(name, "milvus", "Milvus") for name in ("pymilvus", "grpc"))
        self._errors = pymilvus.MilvusException, grpc.RpcError, grpc.FutureTimeoutError
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it raises its errors too
        self._file = _register(self._address) if in_file else None
        try:
            with self._translated_errors("connect to"):
                self._client = pymilvus.MilvusClient(self._address, token=self._token, timeout=_SECONDS_TO_CONNECT)
            self._open(index)
        except BaseException:
            self.close()
            raise

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, probes: SupportsIndex = 8
    ) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query, as :meth:`Engine.search` does; at most 16,384, Milvus's limit.

        With ``approximate``, the index BIN_IVF_FLAT looks into ``probes`` of its 128 lists instead of all. It is faster
        and misses some neighbours. BIN_FLAT is exact either way.
        """
        return self._find(queries, k, as_count("probes", probes) if approximate else None)

    # What the contract requires

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        packed = codes.to_packed(self.bitorder)
        bytes_per_row = packed.shape[1] + 8 + 4 * (self.n_features or 0)
        for block in slices(len(ids), max(1, _BYTES_PER_REQUEST // bytes_per_row)):
            columns = [ids[block].tolist(), map(bytes, packed[block])]
            if vectors is not None:
                columns.append(vectors[block])
            self._call("upsert", [dict(zip(self._fields, row, strict=True)) for row in zip(*columns, strict=True)])

    def _search(self, queries: Codes, k: int, effort: int | None) -> Iterator[Hits]:
        if k > self._most_hits:
            raise DataError(f"Milvus finds at most {self._most_hits:,} neighbours, got k or candidates of {k:,}")
        packed = queries.to_packed(self.bitorder)
        for block in slices(len(packed), max(1, min(_HITS_PER_REQUEST // k, self._most_hits))):
            responses = self._call(
                "search",
                data=[code.tobytes() for code in packed[block]],
                anns_field="code",
                limit=k,
                # a search of all inverted lists is exact
                search_params={"metric_type": "HAMMING", "params": {"nprobe": min(effort or self._lists, self._lists)}},
            )
            for hits in responses:
                yield np.array([hit["distance"] for hit in hits]), np.array([hit["id"] for hit in hits])

    def _delete(self, ids: Ids) -> None:
        for block in slices(len(ids), _IDS_PER_REQUEST):
            self._call("delete", ids=ids[block].tolist())

    def _fetch(self, ids: Ids, column: str) -> tuple[Any, Any]:
        rows: list[dict[str, Any]] = []
        for block in slices(len(ids), _IDS_PER_REQUEST):
            rows += self._call("query", ids=ids[block].tolist(), output_fields=["id", column])
        values = [row[column] for row in rows]
        if column == "code":  # a list in newer pymilvus
            values = [np.frombuffer(code if isinstance(code, bytes) else code[0], dtype=np.uint8) for code in values]
        return [row["id"] for row in rows], values

    def _count(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def _close(self) -> None:
        try:
            if self._client is not None:
                with self._translated_errors("close"):
                    self._client.close()
        finally:
            if self._file is not None:
                _unregister(self._file)
            self._file = None

    # Requests

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method in ("query", "search"):
            options["consistency_level"] = "Strong"
        with self._translated_errors({"has_collection": "find"}.get(method) or method.partition("_")[0]):
            call = getattr(self._client, method)
            return call(self.collection, *arguments, timeout=self._timeout, **options)

    def _open(self, index: str | None) -> None:
        if not self._call("has_collection"):
            self._create(index or "BIN_FLAT")
        self._check_fields()
        found = self._call("describe_index", "code") or {}
        kind, metric = found.get("index_type"), found.get("metric_type")
        if kind not in INDEXES or metric != "HAMMING" or (index is not None and kind != index):
            raise DataError(
                f"the collection {self.collection!r} has another index on its codes, got {kind} with {metric}, "
                f"expected {index or ' or '.join(INDEXES)} with HAMMING; leave index out, or choose another name"
            )
        self.index, self._lists = str(kind), int(found.get("nlist", LISTS))
        self._call("load_collection")

    def _create(self, index: str) -> None:
        from pymilvus import DataType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        indexes = self._client.prepare_index_params()
        about = f"{self.n_bits} bits, {_FIRST[self.bitorder]} significant first in a byte"
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("code", DataType.BINARY_VECTOR, dim=8 * self._n_bytes, description=about)
        lists = {"nlist": LISTS} if index == "BIN_IVF_FLAT" else {}
        indexes.add_index("code", index_name="code", index_type=index, metric_type="HAMMING", params=lists)
        if self.n_features is not None:
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=self.n_features)
            indexes.add_index("vector", index_name="vector", index_type="FLAT", metric_type="L2")
        self._call("create_collection", schema=schema, consistency_level="Strong")
        try:
            self._call("create_index", indexes, sync=False)  # an empty collection has no index to wait for
        except StorageError:
            self._call("drop_collection")
            raise

    def _check_fields(self) -> None:
        """Raise a DataError if the collection has other fields than these codes and vectors need."""
        fields = {field["name"]: field for field in self._call("describe_collection")["fields"]}
        found = {name: (field["type"].name, field["params"].get("dim")) for name, field in fields.items()}
        stored = re.match(r"(\d+) bits(?:, (least|most) significant)?", fields.get("code", {}).get("description", ""))
        n_bits, first = (int(stored[1]), stored[2]) if stored else (None, None)
        order = {"least": "little", "most": "big", None: None}[first]
        self._check_layout(_fields(found), _fields(self._fields), n_bits, order)

    def _reason(self, error: Exception) -> str:
        details = getattr(error, "details", None)  # of a gRPC call, whose text is a page
        message = str(getattr(error, "message", "") or (details() if callable(details) else "") or error).strip()
        first = (message.splitlines() or [type(error).__name__])[0]
        causes: list[BaseException] = [error]  # pymilvus reports a wrong password only as a cause
        while (cause := causes[-1].__cause__) is not None and cause not in causes:  # it raises errors from themselves
            causes.append(cause)
        return redacted_message(self._with_remedy(first, f"{message} {causes}"), self._address, secrets=(self._token,))


def _fields(fields: dict[str, tuple[str, int | None]]) -> str:
    return ", ".join(f"{name} {kind}" + (f"({dim})" if dim else "") for name, (kind, dim) in fields.items())


def _as_uri(uri: Any) -> str:
    address = as_address(uri, "'http://localhost:19530' or 'codes.db'")
    if address.lower().startswith(_SCHEMES):
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
    name = str(Path(path).resolve())
    with _connections_lock:
        if not _connections[name] and name in _servers()._servers:
            return None
        _connections[name] += 1
    return name


def _unregister(name: str) -> None:
    with _connections_lock:
        _connections[name] -= 1
        if not _connections[name] and name in _servers()._servers:
            _servers().release_server(name)


def _servers() -> Any:
    lite = import_extra("milvus_lite.server_manager", "milvus-lite", "a Milvus collection in a file", "milvus-lite")
    return lite.server_manager_instance
