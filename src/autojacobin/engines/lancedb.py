"""LanceDB: codes in a table that is searched by Hamming distance."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar, SupportsIndex

import numpy as np

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.engines.contract import Engine, Floats, Hits, IdKind, Ids, as_address, check_name
from autojacobin.errors import DataError, import_extra, shortened
from autojacobin.search.arguments import as_count

_BIT_ORDERS = {"little": "least significant first in a byte", "big": "most significant first in a byte"}
_LONGEST_REASON = 300
_MOST_PROBES = 2**31 - 1


class LanceDB(Engine):
    """Codes in a table of LanceDB, which is made if it does not exist.

    The table has the columns ``id`` (int64 or string), ``code`` (a list of ``ceil(n_bits / 8)`` uint8) and, with
    ``n_features``, ``vector`` (a list of float32); its schema says how many bits a code has, and in which order. A
    write makes one new version of the table, or none if it fails. Reads and searches see the newest version.

    Parameters
    ----------
    uri : str or path
        A folder, which is made if it does not exist, or an address in object storage such as ``s3://bucket/folder``.
    table : str
        Name of the table: letters, digits, ``_``, ``-`` and ``.``.
    n_bits, n_features, bitorder, id_kind
        As in :class:`Engine`.
    storage_options : mapping of str to str, optional
        Settings of the object storage, as in ``lancedb.connect``: keys, region, endpoint.
    """

    _noun: ClassVar[str] = "the table"
    _remedies: ClassVar[Mapping[str, str]] = {
        "permission|denied|read-only|not permitted": "allow reading and writing there, or give another address",
        "conflict": "others write to the table at the same time; try again",
        "space": "make room, or give another address",
        "": "check the address, and that the table is intact",
    }

    def __init__(
        self,
        uri: str | os.PathLike[str],
        table: str,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        storage_options: Mapping[str, str] | None = None,
        bitorder: BitOrder = "little",
        id_kind: IdKind = "integer",
    ) -> None:
        super().__init__(n_bits, n_features, bitorder, id_kind)
        check_name("table", table, r"(?!\.\.?$)[A-Za-z0-9_.-]+", "letters, digits, '_', '-' and '.'")
        self._uri, self.table = as_address(uri, "a folder, or an address such as s3://bucket"), table
        self._title = f"the table {table!r} of LanceDB at {redacted_address(self._uri)}"
        self._options = None if storage_options is None else dict(storage_options)
        self._table = self._open()
        self._schema = self._table.schema

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, probes: SupportsIndex = 20
    ) -> Hits:
        """Find the ``k`` nearest codes of each query, as :meth:`Engine.search` does.

        With ``approximate``, the search looks into ``probes`` partitions of the index of :meth:`create_index`, if there
        is one. It is faster and misses some neighbours. An exact search reads every code, index or not.
        """
        return self._find(queries, k, min(as_count("probes", probes), _MOST_PROBES) if approximate else None)

    def create_index(self, partitions: SupportsIndex | None = None) -> None:
        """Index the codes for approximate searches (IVF_FLAT with Hamming distances); an old index is replaced.

        LanceDB chooses the number of partitions by default. Searches read the codes written later one by one; call this
        again when they have become many.
        """
        from lancedb.index import IvfFlat

        self._check_open()
        number = None if partitions is None else as_count("partitions", partitions)
        count = self._count()
        if not count or (number is not None and number > count):
            raise DataError(f"an index needs a code for each partition, got {count} codes for {number or 1} partitions")
        with self._translated_errors("index"):
            self._table.create_index("code", config=IvfFlat(distance_type="hamming", num_partitions=number))

    # What the contract requires

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        import pyarrow as pa

        columns = {"id": pa.array(ids), "code": _fixed_lists(codes.to_packed(self.bitorder))}
        if vectors is not None:
            columns["vector"] = _fixed_lists(np.ascontiguousarray(vectors))
        rows = pa.table(columns, schema=self._schema)
        with self._translated_errors("write"):
            self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def _search(self, queries: Codes, k: int, effort: int | None) -> Iterator[Hits]:
        for code in queries.to_packed(self.bitorder):
            with self._translated_errors("search"):
                query = self._table.search(code, vector_column_name="code").distance_type("hamming")
                query = query.bypass_vector_index() if effort is None else query.nprobes(effort)
                found = query.select(["id", "_distance"]).limit(k).to_arrow()
            yield found["_distance"].to_numpy(), found["id"].to_numpy()

    def _delete(self, ids: Ids) -> None:
        with self._translated_errors("delete"):
            self._table.delete(_among(ids))  # one statement, so that all or none are deleted

    def _fetch(self, ids: Ids, column: str) -> tuple[Any, Any]:
        with self._translated_errors("read"):
            query = self._table.search().where(_among(ids)).limit(len(ids))
            table = query.select(list({"id", column})).to_arrow()
        found, values = table["id"].to_numpy(), table[column].combine_chunks()
        return found, found if column == "id" else values.flatten().to_numpy().reshape(-1, values.type.list_size)

    def _count(self) -> int:
        with self._translated_errors("count"):
            return int(self._table.count_rows())

    def _close(self) -> None:
        self._table = None

    # Requests

    def _open(self) -> Any:
        """Open the table, or make it; a DataError if it has other columns than these codes and vectors need."""
        lancedb = import_extra("lancedb", "lancedb", "LanceDB")
        pyarrow = import_extra("pyarrow", "lancedb", "LanceDB")
        self._errors = RuntimeError, ValueError, OSError, OverflowError, pyarrow.ArrowException
        expected = _schema(self.n_bits, self.n_features, self.bitorder, self.id_kind)
        with self._translated_errors("open"):
            database = lancedb.connect(
                self._uri,
                read_consistency_interval=timedelta(0),  # every read looks for a newer version, as others may write
                storage_options=self._options,
            )
            try:
                table = database.open_table(self.table)
            except (ValueError, FileNotFoundError) as error:
                if "not found" not in str(error):
                    raise
                table = database.create_table(self.table, schema=expected, exist_ok=True)
            found = table.schema
        stored = {name.decode(): value.decode(errors="replace") for name, value in (found.metadata or {}).items()}
        n_bits, order = stored.get("n_bits", ""), stored.get("bit_order")
        names = {words: name for name, words in _BIT_ORDERS.items()}
        columns = _columns(found), _columns(expected)
        self._check_layout(*columns, int(n_bits) if n_bits.isdecimal() else None, names.get(order or "", order))
        return table

    def _reason(self, error: Exception) -> str:
        # the rest of the line is the location in LanceDB's own source
        reason = re.split(r", (?:location: )?/", (str(error).splitlines() or [""])[0])[0] or type(error).__name__
        keys = tuple((self._options or {}).values())
        return self._with_remedy(shortened(redacted_message(reason, self._uri, secrets=keys), _LONGEST_REASON))


def _fixed_lists(matrix: Any) -> Any:
    """Rows of a matrix as an Arrow array of lists of one length, without a copy."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def _among(ids: Ids) -> str:
    words = ("'" + id.replace("'", "''") + "'" if isinstance(id, str) else str(id) for id in ids.tolist())
    return f"id IN ({','.join(words)})"


def _schema(n_bits: int, n_features: int | None, bitorder: BitOrder, id_kind: IdKind) -> Any:
    import pyarrow as pa

    columns = {"id": pa.int64() if id_kind == "integer" else pa.string(), "code": pa.list_(pa.uint8(), -(-n_bits // 8))}
    if n_features is not None:
        columns["vector"] = pa.list_(pa.float32(), n_features)
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"n_bits": str(n_bits), "bit_order": _BIT_ORDERS[bitorder]})


def _columns(schema: Any) -> str:
    return ", ".join(sorted(f"{field.name} {field.type}" for field in schema))
