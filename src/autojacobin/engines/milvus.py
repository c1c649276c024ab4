"""Milvus: codes in a BINARY_VECTOR field of a collection, in a file, on a server or on a cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.engines.contract import Distances, Engine, Floats, Hits, Ids, blocks
from autojacobin.engines.milvus_client import INDEXES, LISTS, Connection, check_index, check_layout, create_collection
from autojacobin.errors import DataError
from autojacobin.search.arguments import as_count

_BYTES_PER_REQUEST = 2**24  # well below the limit of gRPC, 64 MiB
_IDS_PER_REQUEST = 10_000
_HITS_PER_REQUEST = 2**19


class Milvus(Engine):
    """Codes in a collection of Milvus, which is made if it does not exist.

    The collection has the fields ``id`` (INT64, the primary key), ``code`` (BINARY_VECTOR) and, with ``n_features``,
    ``vector`` (FLOAT_VECTOR). By default bit ``j`` of a code is bit ``j % 8`` of byte ``j // 8``, least significant
    first, as in Milvus's own examples. The last byte is padded with zeros, which never count in a distance.
    Every read and search waits for what was written before it (consistency level Strong).

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
        if not isinstance(collection, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
            raise DataError(
                f"collection must be a name of at most 255 letters, digits and underscores, the first not a digit, "
                f"got {collection!r}; choose another"
            )
        if index is not None and index not in INDEXES:
            raise DataError(f"index must be 'BIN_FLAT' or 'BIN_IVF_FLAT', got {index!r}")
        self.collection, self._timeout = collection, timeout
        self._connection = Connection(uri, token)
        try:
            if index == "BIN_IVF_FLAT" and self._connection.is_file:
                raise DataError("a Milvus in a file has the index BIN_FLAT alone, got 'BIN_IVF_FLAT'; leave index out")
            self._open(index)
        except BaseException:
            self.close()
            raise

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, probes: SupportsIndex = 8
    ) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query.

        Parameters
        ----------
        queries, k
            As in :meth:`Engine.search`, as is what is returned; at most 16,384 neighbours, the limit of Milvus.
        approximate : bool
            Whether BIN_IVF_FLAT may look into ``probes`` of its 128 lists instead of all. It is faster and misses some
            neighbours. BIN_FLAT is exact either way.
        probes : int
            Lists that an approximate search looks into.
        """
        if not approximate:
            return super().search(queries, k)
        lists = as_count("probes", probes)
        checked, wanted = self._as_queries(queries, k)
        packed = self._to_bytes(checked)
        hits = list(self._nearest(packed, wanted, lists))
        short = [row for row, (_, ids) in enumerate(hits) if len(ids) < wanted]  # their lists hold fewer than k codes
        for row, found in zip(short, self._nearest(packed[short], wanted), strict=True):
            hits[row] = found
        return self._stacked(hits, wanted)

    # What the contract requires

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        packed = self._to_bytes(codes)
        bytes_per_row = packed.shape[1] + 8 + 4 * (self.n_features or 0)
        for block in blocks(len(ids), _BYTES_PER_REQUEST // bytes_per_row):
            entities = [
                {"id": id, "code": code.tobytes()} for id, code in zip(ids[block].tolist(), packed[block], strict=True)
            ]
            if vectors is not None:
                for entity, vector in zip(entities, vectors[block], strict=True):
                    entity["vector"] = vector
            self._call("upsert", entities)

    def _search(self, queries: Codes, k: int) -> Hits:
        return self._stacked(list(self._nearest(self._to_bytes(queries), k)), k)

    def _delete(self, ids: Ids) -> None:
        for block in blocks(len(ids), _IDS_PER_REQUEST):
            self._call("delete", ids=ids[block].tolist())

    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return np.isin(ids, np.array([row["id"] for row in self._rows(ids, "id")], dtype=np.int64))

    def _read(self, ids: Ids) -> Codes:
        def pairs(unique: Ids) -> Iterator[tuple[Any, Any]]:
            for row in self._rows(unique, "code"):
                code = row["code"] if isinstance(row["code"], bytes) else row["code"][0]  # a list in newer pymilvus
                yield row["id"], np.frombuffer(code, dtype=np.uint8)

        return self._from_bytes(self._in_order(ids, -(-self.n_bits // 8), np.uint8, pairs))

    def _vectors(self, ids: Ids) -> Floats:
        vectors: Floats = self._in_order(
            ids,
            self.n_features or 0,
            np.float32,
            lambda unique: ((row["id"], row["vector"]) for row in self._rows(unique, "vector")),
        )
        return vectors

    def _count(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def _close(self) -> None:
        self._connection.close()

    # Requests

    def _nearest(self, packed: npt.NDArray[np.uint8], depth: int, probes: int | None = None) -> Iterator[Hits]:
        """Distances and ids of the ``depth`` nearest codes of each query."""
        if depth > self._most_hits:
            raise DataError(
                f"Milvus finds at most {self._most_hits:,} neighbours, got k or candidates of {depth:,}; ask for fewer"
            )
        for block in blocks(len(packed), min(_HITS_PER_REQUEST // depth, self._most_hits)):
            yield from self._hits(packed[block], depth, probes)

    def _hits(self, packed: npt.NDArray[np.uint8], limit: int, probes: int | None = None) -> list[Hits]:
        responses = self._call(
            "search",
            data=[code.tobytes() for code in packed],
            anns_field="code",
            limit=limit,
            # a search of all inverted lists is exact
            search_params={"metric_type": "HAMMING", "params": {"nprobe": min(probes or self._lists, self._lists)}},
        )
        return [
            (
                np.array([hit["distance"] for hit in hits], dtype=np.int32),
                np.array([hit["id"] for hit in hits], dtype=np.int64),
            )
            for hits in responses
        ]

    def _rows(self, ids: Ids, field: str) -> Iterator[dict[str, Any]]:
        for block in blocks(len(ids), _IDS_PER_REQUEST):
            yield from self._call("query", ids=ids[block].tolist(), output_fields=["id", field])

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method in ("query", "search"):
            options["consistency_level"] = "Strong"
        action = "look for the collection" if method == "has_collection" else method.replace("_", " ")
        with self._connection.translated_errors(action):
            call = getattr(self._connection.client, method)
            return call(self.collection, *arguments, timeout=self._timeout, **options)

    def _open(self, index: str | None) -> None:
        if not self._call("has_collection"):
            create_collection(
                self._call, self._connection.client, self.n_bits, self.n_features, index or "BIN_FLAT", self.bitorder
            )
        check_layout(self.collection, self._call("describe_collection"), self.n_bits, self.n_features, self.bitorder)
        found = self._call("describe_index", "code") or {}
        check_index(self.collection, found, index)
        self.index = str(found["index_type"])
        self._lists = int(found.get("nlist", LISTS))
        self._call("load_collection")
