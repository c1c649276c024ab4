"""LanceDB: codes in a table, searched by Hamming distance."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from inspect import signature
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.engines.contract import Distances, Engine, Floats, Ids, by_lower_id
from autojacobin.errors import DataError, DataTypeError, MissingExtraError, StorageError
from autojacobin.search.arguments import checked_count

__all__ = ["LanceDB", "checked_name", "checked_uri", "fixed_lists", "open_table", "told"]

_ADDRESS = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*://(?:[^\s/?#@]*@)?(?:\[[0-9A-Fa-f:.]+\]|[\w.~%-]*)(?::[0-9]{0,5})?(?:[/?#]|$)"
)
_LONGEST_LIST = 2**31 - 1
_LONGEST_REASON = 300


def checked_uri(uri: Any) -> str:
    """Give the folder or the address in object storage as text."""
    try:
        address = os.fspath(uri)
    except TypeError:
        address = None
    if not isinstance(address, str) or not address:
        given = "nothing" if address == "" else type(uri).__name__
        raise DataTypeError(
            f"uri must be a path or text, got {given}; pass a folder, or an address such as s3://bucket"
        )
    if "://" in address and not _ADDRESS.match(address):  # of which LanceDB would make a folder with this name
        raise DataError(
            f"uri is no address, got {redacted_address(address)!r}; write special characters of a user name and a "
            "password percent-encoded, or pass keys as storage_options"
        )
    return address


def checked_name(name: Any) -> str:
    """Give the name of a table if LanceDB can take it."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or name in (".", ".."):
        raise DataError(f"table must be a name of letters, digits, '_', '-' and '.', got {name!r}; choose another")
    return name


def open_table(
    uri: str, name: str, n_bits: int, n_features: int | None, storage_options: Mapping[str, str] | None
) -> Any:
    """Open the table, or make it; a DataError if it has other columns than codes and vectors like these need."""
    try:
        import lancedb
    except ImportError as error:
        raise MissingExtraError(error.name or "lancedb", "lancedb", "LanceDB") from None
    expected = _schema(n_bits, n_features)
    options = _checked_options(storage_options)
    with told(uri, name, "open", options):
        home = lancedb.connect(
            uri,
            read_consistency_interval=timedelta(0),  # every read looks for a newer version, as others may write
            storage_options=options,
        )
        try:
            table = home.open_table(name)
        except (ValueError, FileNotFoundError) as error:
            if "not found" not in str(error):
                raise
            table = home.create_table(name, schema=expected, exist_ok=True)
        found = table.schema
    _refuse_other_layout(name, found, expected)
    return table


def fixed_lists(matrix: Any) -> Any:
    """Rows of a matrix as an Arrow array of lists of one length, not copied."""
    import pyarrow as pa

    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


@contextmanager
def told(uri: str, name: str, doing: str, options: Mapping[str, str] | None = None) -> Iterator[None]:
    """Turn an error of LanceDB within the block into one of ours that says what was being done."""
    import pyarrow as pa

    keys = tuple((options or {}).values())
    try:
        yield
    except (RuntimeError, ValueError, OSError, OverflowError, pa.ArrowException) as error:
        # what follows is the place in LanceDB's own source
        reason = re.split(r", (?:location: )?/", (str(error).splitlines() or [""])[0])[0] or type(error).__name__
        reason = redacted_message(reason, uri, secrets=keys)
        reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
        raise StorageError(
            f"LanceDB at {redacted_address(uri)} failed to {doing} the table {name!r}, got: {reason}; "
            f"{_mend(reason.lower())}"
        ) from safe_cause(error, uri, secrets=keys)


def _checked_options(options: Any) -> dict[str, str] | None:
    if options is None:
        return None
    if not isinstance(options, Mapping) or not all(isinstance(part, str) for pair in options.items() for part in pair):
        raise DataTypeError(  # and not what they are, for keys are among them
            "storage_options must be a mapping of text to text, such as {'region': 'eu-west-1'}, got "
            f"{'other keys or values' if isinstance(options, Mapping) else type(options).__name__}"
        )
    return dict(options)


def _schema(n_bits: int, n_features: int | None) -> Any:
    import pyarrow as pa

    for name, number, most in (("n_bits", n_bits, 8 * _LONGEST_LIST), ("n_features", n_features or 1, _LONGEST_LIST)):
        if number > most:
            raise DataError(f"{name} must be at most {most}, the longest that a table of LanceDB keeps, got {number}")
    columns = {"id": pa.int64(), "code": pa.list_(pa.uint8(), -(-n_bits // 8))}
    if n_features is not None:
        columns["vector"] = pa.list_(pa.float32(), n_features)
    fields = [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
    return pa.schema(fields, metadata={"n_bits": str(n_bits), "bit_order": "least significant first in a byte"})


def _refuse_other_layout(name: str, found: Any, expected: Any) -> None:
    wanted = expected.metadata[b"n_bits"]
    said = (found.metadata or {}).get(b"n_bits", wanted)
    if {field.name: field.type for field in found} != {field.name: field.type for field in expected} or said != wanted:
        raise DataError(
            f"the table {name!r} has another layout, got {_in_words(found)} for codes of "
            f"{said.decode(errors='replace')} bits, expected {_in_words(expected)} for codes of {wanted.decode()}; "
            "open it with the n_bits and n_features it has, or choose another name"
        )


def _in_words(schema: Any) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _mend(reason: str) -> str:
    if any(sign in reason for sign in ("permission", "denied", "read-only", "not permitted")):
        return "allow reading and writing there, or give another place"
    if "conflict" in reason:
        return "others write to the table at the same time: try again"
    if "space" in reason:
        return "make room, or give another place"
    return "check the address, and that the table is whole"


_IDS_PER_REQUEST = 10_000
_MOST_PROBES = 2**31 - 1


class LanceDB(Engine):
    """Codes in a table of LanceDB, made if it is not there.

    The table has the columns ``id`` (int64), ``code`` (a list of ``ceil(n_bits / 8)`` uint8) and, with ``n_features``,
    ``vector`` (a list of float32); its schema says how many bits a code has. LanceDB defines no order of the bits in a
    byte: bit ``j`` of a code is bit ``j % 8`` of byte ``j // 8``, least significant first, and bits that fill up the
    last byte are zero. A write is one version of the table, all of it or nothing; every read and search sees the
    newest version, whoever wrote it.

    Parameters
    ----------
    uri : str or path
        A folder, made if it is not there, or an address in object storage such as ``s3://bucket/folder``.
    table : str
        Name of the table: letters, digits, ``_``, ``-`` and ``.``.
    n_bits : int
        Length of the codes.
    n_features : int, optional
        Width of the vectors kept beside the codes. None keeps none.
    storage_options : mapping of str to str, optional
        What the object storage asks for, as in ``lancedb.connect``: keys, region, endpoint.
    """

    _called: ClassVar[str] = "the table"

    def __init__(
        self,
        uri: str | os.PathLike[str],
        table: str,
        n_bits: SupportsIndex,
        n_features: SupportsIndex | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(n_bits, n_features)
        self._where = checked_uri(uri)
        self.table = checked_name(table)
        self._options = storage_options
        self._table = open_table(self._where, self.table, self.n_bits, self.n_features, storage_options)
        self._schema = self._table.schema

    def search(
        self, queries: Codes, k: SupportsIndex, *, approximate: bool = False, probes: SupportsIndex = 20
    ) -> tuple[Distances, Ids]:
        """Find the ``k`` nearest codes of each query.

        Parameters
        ----------
        queries : Codes
            Codes of the queries.
        k : int
            Neighbours a query, from 1 to ``count()``.
        approximate : bool
            Whether to use the index of :meth:`create_index`, if there is one. It is faster, misses some neighbours,
            and chooses among equal distances as LanceDB does. An exact search reads every code, index or not.
        probes : int
            Partitions of the index that an approximate search looks into.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            Hamming distances in ascending order; equal distances in order of id.
        """
        if not approximate:
            return super().search(queries, k)
        partitions = min(checked_count("probes", probes), _MOST_PROBES)
        checked, wanted = self._checked_queries(queries, k)
        distances = np.empty((len(checked), wanted), dtype=np.int32)
        ids = np.empty((len(checked), wanted), dtype=np.int64)
        for row, code in enumerate(checked.packed):
            found = self._nearest(code, wanted, partitions)
            if len(found[0]) < wanted:  # the partitions looked into hold fewer than k codes
                found = self._nearest(code, wanted)
            order = np.lexsort((found[1], found[0]))
            distances[row], ids[row] = found[0][order], found[1][order]
        return distances, ids

    def create_index(self, partitions: SupportsIndex | None = None) -> None:
        """Index the codes for approximate searches (IVF_FLAT with Hamming distances), in place of an index there was.

        Codes written later are found all the same, by reading them; call this again when they have become many.

        Parameters
        ----------
        partitions : int, optional
            Number of partitions. LanceDB chooses it by default.
        """
        from lancedb.index import IvfFlat

        self._refuse_closed()
        number = None if partitions is None else checked_count("partitions", partitions)
        count = self._count()
        if not count or (number is not None and number > count):
            raise DataError(
                f"an index needs at least one code for each partition, got {count} codes for {number or 1} partitions; "
                "write codes first, or ask for fewer partitions"
            )
        with self._told("index"):
            if "config" in signature(self._table.create_index).parameters:
                self._table.create_index("code", config=IvfFlat(distance_type="hamming", num_partitions=number))
            else:  # older versions of lancedb, which the newer ones warn about
                self._table.create_index(
                    metric="hamming", vector_column_name="code", index_type="IVF_FLAT", num_partitions=number
                )

    # What the contract asks for

    def _write(self, codes: Codes, ids: Ids, vectors: Floats | None) -> None:
        import pyarrow as pa

        columns = {"id": pa.array(ids), "code": fixed_lists(codes.packed)}
        if vectors is not None:
            columns["vector"] = fixed_lists(np.ascontiguousarray(vectors))
        rows = pa.table(columns, schema=self._schema)
        with self._told("write"):
            self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def _search(self, queries: Codes, k: int) -> tuple[Any, Any]:
        def ask(rows: npt.NDArray[np.int64], depth: int) -> tuple[Any, Any]:
            found = [self._nearest(queries.packed[row], depth) for row in rows]
            if any(len(ids) != depth for _, ids in found):
                raise StorageError(
                    f"{self._called} gave fewer than the {depth} codes it holds; search again if it changes"
                )
            return np.stack([distances for distances, _ in found]), np.stack([ids for _, ids in found])

        return by_lower_id(ask, len(queries), k, self._count())

    def _delete(self, ids: Ids) -> None:
        with self._told("delete"):
            self._table.delete(_among(ids))  # one statement, so that all go or none

    def _known(self, ids: Ids) -> npt.NDArray[np.bool_]:
        found = [_numbers(block["id"]) for block in self._rows(ids, [])]
        return np.isin(ids, np.concatenate(found))

    def _read(self, ids: Ids) -> Codes:
        return Codes(self._gathered(ids, "code", -(-self.n_bits // 8)), self.n_bits)

    def _vectors(self, ids: Ids) -> Floats:
        return self._gathered(ids, "vector", self.n_features or 0)

    def _count(self) -> int:
        with self._told("count"):
            return int(self._table.count_rows())

    def _close(self) -> None:
        self._table = None

    # Reading

    def _nearest(
        self, code: npt.NDArray[np.uint8], depth: int, partitions: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Distances and ids of the ``depth`` nearest codes, ties as LanceDB breaks them."""
        with self._told("search"):
            query = self._table.search(code, vector_column_name="code").distance_type("hamming")
            query = query.bypass_vector_index() if partitions is None else query.nprobes(partitions)
            found = query.select(["id", "_distance"]).limit(depth).to_arrow()
        return _numbers(found["_distance"]).astype(np.int32), _numbers(found["id"])

    def _gathered(self, ids: Ids, column: str, width: int) -> npt.NDArray[Any]:
        """Values of a column under these ids, in their order."""
        unique, places = np.unique(ids, return_inverse=True)
        values = np.zeros((len(unique), width), dtype=np.uint8 if column == "code" else np.float32)
        seen = 0
        for block in self._rows(unique, [column]):
            flat = _numbers(block[column].combine_chunks().flatten())
            values[np.searchsorted(unique, _numbers(block["id"]))] = flat.reshape(-1, width)
            seen += len(block)
        if seen != len(unique):
            raise StorageError(f"{self._called} lost ids while it was read; read again if it is changing")
        return values[places]

    def _rows(self, ids: Ids, columns: list[str]) -> Iterator[Any]:
        for start in range(0, len(ids), _IDS_PER_REQUEST):
            block = ids[start : start + _IDS_PER_REQUEST]
            with self._told("read"):
                found = self._table.search().where(_among(block)).select(["id", *columns]).limit(len(block)).to_arrow()
            yield found

    def _told(self, doing: str) -> AbstractContextManager[None]:
        return told(self._where, self.table, doing, self._options)


def _among(ids: Ids) -> str:
    return f"id IN ({','.join(map(str, ids.tolist()))})"


def _numbers(column: Any) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = column.to_numpy()
    return numbers
