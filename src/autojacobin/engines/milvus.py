"""Milvus: codes in a BINARY_VECTOR field, in a file, on a server or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.engines.contract import Distances, Engine, Floats, Ids, by_lower_id
from autojacobin.engines.milvus_client import (
    INDEXES,
    LISTS,
    Connection,
    checked_features,
    checked_name,
    create,
    refuse_other_index,
    refuse_other_layout,
)
from autojacobin.errors import DataError, StorageError
from autojacobin.search.arguments import checked_count

__all__ = ["Milvus"]

_BYTES_PER_REQUEST = 2**24  # well below the 64 MiB that gRPC carries
_IDS_PER_REQUEST = 10_000
_HITS_PER_REQUEST = 2**19
_LARGEST_ID = 2**63 - 1
_LONGEST_TIMEOUT = 365 * 24 * 3600.0

_DOING = {"has_collection": "look for the collection"}  # what a call does, where its name does not say it in a sentence

Answer = tuple[Distances, Ids]


class Milvus(Engine):
    """Codes in a collection of Milvus, made if it is not there.

    The collection has the fields ``id`` (INT64, the primary key), ``code`` (BINARY_VECTOR) and, with ``n_features``,
    ``vector`` (FLOAT_VECTOR). Bit ``j`` of a code is bit ``j % 8`` of byte ``j // 8``, least significant first, as
    in Milvus's own examples; a length that fills no byte is filled up with zeros, which never count in a distance.
    Every read and search waits for what was written before it (consistency level Strong).

    Parameters
    ----------
    uri : str or path
        Address of a server or cluster, such as ``http://localhost:19530``; or a path that ends in ``.db``, for which
        milvus-lite starts a server that :meth:`close` stops. One process at a time has the file.
    collection : str
        Name of the collection: letters, digits and underscores.
    n_bits : int
        Length of the codes.
    n_features : int, optional
        Width of the vectors kept beside the codes, which takes Milvus 2.4 or newer. None keeps none.
    index : {"BIN_FLAT", "BIN_IVF_FLAT"}, optional
        Index of a new collection, by default BIN_FLAT, the only one in a file. An existing one keeps its own.
    token : str, optional
        ``user:password``, or the key of a cloud service.
    timeout : float, optional
        Seconds after which a request to the server is given up. None waits as long as pymilvus tries.
    """

    _called: ClassVar[str] = "the collection"
    _most_hits: ClassVar[int] = 16_384  # that Milvus gives in one answer

    def __init__(
        self,
        uri: str | os.PathLike[str],
        collection: str,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        index: Literal["BIN_FLAT", "BIN_IVF_FLAT"] | None = None,
        token: str | None = None,
        timeout: float | None = 120.0,
    ) -> None:
        super().__init__(n_bits, n_features)
        checked_features(self.n_features)
        self.collection = checked_name(collection)
        if index is not None and index not in INDEXES:
            raise DataError(f"index must be 'BIN_FLAT' or 'BIN_IVF_FLAT', got {index!r}")
        if timeout is not None and (
            isinstance(timeout, bool) or not (isinstance(timeout, int | float) and 0 < timeout <= _LONGEST_TIMEOUT)
        ):
            raise DataError(f"timeout must be a positive number of seconds up to a year, or None, got {timeout!r}")
        self._timeout = timeout
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
        queries : Codes
            Codes of the queries.
        k : int
            Neighbours a query, from 1 to ``count()``. More than 16,384, which Milvus gives in one answer, are put
            together from several.
        approximate : bool
            Whether BIN_IVF_FLAT may look into ``probes`` of its 128 lists instead of all. It is faster, misses some
            neighbours, and chooses among equal distances as Milvus does. BIN_FLAT is exact either way.
        probes : int
            Lists that an approximate search looks into.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Hamming distances in ascending order; equal distances in order of id.
        """
        if not approximate:
            return super().search(queries, k)
        lists = checked_count("probes", probes)
        checked, wanted = self._checked_queries(queries, k)
        if wanted > self._most_hits:
            raise DataError(
                f"k of an approximate search must be at most {self._most_hits:,}, got {wanted}; ask for fewer"
            )
        answers = list(self._answers(checked.packed, wanted, lists))
        # the lists that were looked into may hold fewer than k codes
        short = [row for row, (_, ids) in enumerate(answers) if len(ids) < wanted]
        for row, answer in zip(short, self._answers(checked.packed[short], wanted), strict=True):
            answers[row] = answer
        distances, ids = _stacked(answers, wanted)
        order = np.lexsort((ids, distances), axis=1)
        return np.take_along_axis(distances, order, axis=1), np.take_along_axis(ids, order, axis=1)

    # What the contract asks for

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        bytes_per_row = codes.packed.shape[1] + 8 + 4 * (self.n_features or 0)
        rows = max(1, _BYTES_PER_REQUEST // bytes_per_row)
        for start in range(0, len(ids), rows):
            block = slice(start, start + rows)
            entities = [
                {"id": id, "code": code.tobytes()}
                for id, code in zip(ids[block].tolist(), codes.packed[block], strict=True)
            ]
            if vectors is not None:
                for entity, vector in zip(entities, vectors[block], strict=True):
                    entity["vector"] = vector
            self._call("upsert", entities)

    def _search(self, queries: Codes, k: int) -> tuple[Any, Any]:
        def ask(rows: npt.NDArray[np.int64], depth: int) -> tuple[Any, Any]:
            return _stacked(list(self._answers(queries.packed[rows], depth)), depth)

        return by_lower_id(ask, len(queries), k, self._count())

    def _delete(self, ids: Ids) -> None:
        for block in _blocks(ids):
            self._call("delete", ids=block)

    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        found = [row["id"] for row in self._rows(ids, "id")]
        return np.isin(ids, np.array(found, dtype=np.int64))

    def _read(self, ids: Ids) -> Codes:
        packed = self._gathered(ids, "code", np.uint8, -(-self.n_bits // 8))
        return Codes(packed, self.n_bits)

    def _vectors(self, ids: Ids) -> Floats:
        return self._gathered(ids, "vector", np.float32, self.n_features or 0)

    def _count(self) -> int:
        return int(self._call("query", filter="", output_fields=["count(*)"])[0]["count(*)"])

    def _close(self) -> None:
        self._connection.close()

    # Searching

    def _answers(self, packed: npt.NDArray[np.uint8], depth: int, probes: int | None = None) -> Iterator[Answer]:
        """Distances and ids of the ``depth`` nearest codes of each query, ties as Milvus breaks them."""
        if depth > self._most_hits:
            for code in packed:
                yield self._beyond_one_answer(code, depth, 0, _LARGEST_ID)
            return
        step = max(1, min(_HITS_PER_REQUEST // depth, self._most_hits))
        for start in range(0, len(packed), step):
            yield from self._hits(packed[start : start + step], depth, probes=probes)

    def _beyond_one_answer(self, code: npt.NDArray[np.uint8], depth: int, low: int, high: int) -> Answer:
        """Give the nearest codes with ids from ``low`` to ``high``, halved until one answer holds all of a part."""
        [(distances, ids)] = self._hits(code[np.newaxis], self._most_hits, f"id >= {low} and id <= {high}")
        if len(ids) == self._most_hits and high > low:
            middle = int(np.sort(ids)[(len(ids) - 1) // 2])
            halves = [
                self._beyond_one_answer(code, depth, low, middle),
                self._beyond_one_answer(code, depth, middle + 1, high),
            ]
            distances, ids = (np.concatenate(part) for part in zip(*halves, strict=True))
        order = np.lexsort((ids, distances))[:depth]
        return distances[order], ids[order]

    def _hits(
        self, packed: npt.NDArray[np.uint8], limit: int, where: str = "", probes: int | None = None
    ) -> list[Answer]:
        answers = self._call(
            "search",
            data=[code.tobytes() for code in packed],
            anns_field="code",
            limit=limit,
            filter=where,
            # looking into every list is what makes the inverted file exact
            search_params={"metric_type": "HAMMING", "params": {"nprobe": min(probes or self._lists, self._lists)}},
        )
        return [
            (
                np.array([hit["distance"] for hit in hits], dtype=np.int32),
                np.array([hit["id"] for hit in hits], dtype=np.int64),
            )
            for hits in answers
        ]

    # Reading

    def _gathered(self, ids: Ids, field: str, dtype: Any, width: int) -> npt.NDArray[Any]:
        """Values of a field under these ids, in their order."""
        unique, places = np.unique(ids, return_inverse=True)
        values, seen = np.zeros((len(unique), width), dtype=dtype), 0
        for row in self._rows(unique, field):
            value = row[field]
            if field == "code":  # comes as bytes, in newer versions of pymilvus in a list
                value = np.frombuffer(value if isinstance(value, bytes) else value[0], dtype=np.uint8)
            values[np.searchsorted(unique, row["id"])] = value
            seen += 1
        if seen != len(unique):
            raise StorageError(f"{self._called} lost ids while it was read; read again if it is changing")
        return values[places]

    def _rows(self, ids: Ids, field: str) -> Iterator[dict[str, Any]]:
        for block in _blocks(ids):
            yield from self._call("query", ids=block, output_fields=["id", field])

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        if method in ("query", "search"):
            options["consistency_level"] = "Strong"
        with self._connection.told(_DOING.get(method, method.replace("_", " "))):
            return getattr(self._connection.client, method)(
                self.collection, *arguments, timeout=self._timeout, **options
            )

    def _open(self, index: str | None) -> None:
        if not self._call("has_collection"):
            create(self._call, self._connection.client, self.n_bits, self.n_features, index or "BIN_FLAT")
        refuse_other_layout(self.collection, self._call("describe_collection"), self.n_bits, self.n_features)
        made = self._call("describe_index", "code") or {}
        refuse_other_index(self.collection, made, index)
        self.index = str(made["index_type"])
        self._lists = int(made.get("nlist", LISTS))
        self._call("load_collection")


def _blocks(ids: Ids) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), _IDS_PER_REQUEST):
        yield ids[start : start + _IDS_PER_REQUEST].tolist()


def _stacked(answers: list[Answer], depth: int) -> tuple[Any, Any]:
    if any(len(ids) != depth for _, ids in answers):
        raise StorageError(f"the collection gave fewer than the {depth} codes it holds; search again if it is changing")
    distances = np.array([distances for distances, _ in answers], dtype=np.int32)
    ids = np.array([ids for _, ids in answers], dtype=np.int64)
    return distances.reshape(-1, depth), ids.reshape(-1, depth)
