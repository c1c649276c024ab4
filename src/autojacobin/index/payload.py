"""Columns that belong to the vectors of an index, in one Arrow file for each segment."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.errors import DataError, DataTypeError, FormatError, import_extra, reason_of
from autojacobin.index.array_files import READ_AT_ONCE, SegmentLabel
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import ArrayFile, damaged

if TYPE_CHECKING:
    import pyarrow

VECTOR_COLUMN = "vector"
_SEGMENT = b"autojacobin segment"  # key of the metadata of the files


class Payload:
    """The columns of a segment, in the order of its positions: a table, or a file that is checked at first need."""

    segment = b""  # hexadecimal, as the file says, once it is read

    def __init__(
        self, table: Any, file: ArrayFile | None = None, folder: Folder | None = None, n: int | None = None
    ) -> None:
        self._table, self.file, self._folder, self._n = table, file, folder, n
        if table is None and file is not None and folder is not None:
            with folder.open(file.name) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size != file.size:
                    raise self._damaged(f"{size} bytes, expected {file.size} by the manifest")
                small = size <= READ_AT_ONCE  # each map keeps a descriptor
                self._content = np.frombuffer(stream.read(), np.uint8) if small else np.memmap(stream, np.uint8, "r")

    @property
    def table(self) -> pyarrow.Table:
        """All columns."""
        if self._table is None:
            self._check(xxhash.xxh64(self._content.data))
            arrow = arrow_package()
            try:
                table = arrow.ipc.open_file(arrow.py_buffer(self._content)).read_all()
                table.validate(full=True)  # or a forged offset would lead out of the file
                self.segment = (table.schema.metadata or {}).get(_SEGMENT, b"")
                table = table.replace_schema_metadata(None)
            except (arrow.ArrowException, OSError, ValueError) as error:
                raise self._damaged(f"no Arrow file ({reason_of(error, 200)})") from error
            if self._n not in (None, table.num_rows):
                raise self._damaged(f"{table.num_rows} rows for {self._n} vectors")
            self._table = table
        return self._table

    def verify(self) -> None:
        """Compare the file with its checksum as it is on the disk, also if it was read before."""
        if self.file is not None and self._folder is not None:
            digest = xxhash.xxh64()
            with self._folder.open(self.file.name) as stream:  # not mapped: a bad sector would end the process
                while block := stream.read(READ_AT_ONCE):
                    digest.update(block)
            self._check(digest)

    def _check(self, digest: xxhash.xxh64) -> None:
        if self.file is not None and digest.hexdigest() != self.file.checksum:
            raise self._damaged("content that does not match its checksum")

    def _damaged(self, what: str) -> FormatError:
        assert self.file is not None
        assert self._folder is not None
        return damaged(self._folder.path / self.file.name, what)


def read_payload(folder: Folder, name: str) -> tuple[bytes, ArrayFile]:
    """Read which segment a file belongs to that no manifest names. Its name has its checksum."""
    file = ArrayFile(name, folder.status(name).st_size, name.partition("-")[2].partition(".")[0])
    payload = Payload(None, file, folder)
    payload.table  # noqa: B018
    return bytes.fromhex(payload.segment.decode()), file


def as_payload(payload: Any, n: int | None) -> pyarrow.Table:
    """Give columns as an Arrow table of ``n`` rows: a table, a data frame, a dict of columns or a list of dicts."""
    arrow = arrow_package()
    try:
        if isinstance(payload, arrow.RecordBatch):
            table = arrow.Table.from_batches([payload])
        elif isinstance(payload, arrow.Table):
            table = payload
        elif hasattr(payload, "to_arrow"):
            table = payload.to_arrow()
        elif hasattr(payload, "iloc"):
            table = arrow.Table.from_pandas(payload, preserve_index=False)
        elif isinstance(payload, Mapping):
            for name, column in payload.items():
                if isinstance(column, str | bytes):
                    wrong = f"the column {name!r:.60} of the payload must have a value for each vector"
                    raise DataError(f"{wrong}, got {column!r:.60}")
            table = arrow.table({str(name): column for name, column in payload.items()})
        elif isinstance(payload, Sequence) and not isinstance(payload, str | bytes):
            rows = [dict(row) for row in payload]
            names = dict.fromkeys(name for row in rows for name in row)  # of all rows; Arrow looks at the first alone
            table = arrow.table({str(name): [row.get(name) for row in rows] for name in names})
        else:
            expected = "a table, data frame, dict of columns or list of dicts"
            raise DataTypeError(f"payload must be {expected}, got {type(payload).__name__}")
    except DataError:
        raise
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem = f"the payload cannot be made a table: {reason_of(error, 200)}"
        raise DataError(f"{problem}; give columns of one type and one length") from error
    if n is not None and table.num_rows != n:
        raise DataError(f"the payload must have a row for each of the {n} vectors, got {table.num_rows} rows")
    if len(set(table.column_names)) != table.num_columns:
        raise DataError(f"the columns of a payload must have different names, got {', '.join(table.column_names)}")
    return _without_nan(table.replace_schema_metadata(None))


def _without_nan(table: pyarrow.Table) -> pyarrow.Table:
    """Make NaN null, as pandas means it. Otherwise a condition in words would find NaN above every number."""
    arrow = arrow_package()
    for number, field in enumerate(table.schema):
        if arrow.types.is_floating(field.type):
            values = table.column(number).to_numpy()
            if np.isnan(values).any():
                table = table.set_column(number, field, arrow.array(values, field.type, from_pandas=True))
    return table


def _as_first(table: pyarrow.Table) -> pyarrow.Table:
    """Check columns that decide those of an index."""
    arrow = arrow_package()
    for field in table.schema:
        if arrow.types.is_null(field.type):
            raise DataError(f"the column {field.name!r} of the payload has no value yet; give a table with types")
        try:
            arrow.nulls(1, field.type).take(arrow.array([0]))
        except arrow.ArrowException as error:
            raise DataError(f"no rows can be taken of the column {field.name!r} ({field.type}); convert it") from error
    return table


def from_frame(vectors: Any, ids: Any, payload: Any) -> tuple[Any, Any, Any]:
    """Take vectors, ids and payload out of a data frame, if ``ids`` is the name of a column of it."""
    if not isinstance(ids, str) or not hasattr(vectors, "columns"):
        return vectors, ids, payload
    arrow = hasattr(vectors, "column_names")
    names = list(vectors.column_names if arrow else vectors.columns)
    if ids not in names:
        raise DataError(f"there is no column {ids!r} for the ids, expected one of {', '.join(map(str, names))}")
    found = vectors[ids].to_pylist() if arrow else vectors[ids].tolist()
    others = [name for name in names if name not in (ids, VECTOR_COLUMN)]
    rest = vectors.select(others) if arrow else vectors[others]
    if VECTOR_COLUMN not in names:
        return (rest.to_pandas() if arrow else rest), found, payload
    if payload is not None:
        raise DataError(f"the payload is in the data frame beside {VECTOR_COLUMN!r}, got another; leave it out")
    rows = vectors[VECTOR_COLUMN].to_pylist() if arrow else vectors[VECTOR_COLUMN]
    try:
        matrix = np.stack([np.asarray(row) for row in rows])
    except ValueError as error:
        raise DataError(f"the column {VECTOR_COLUMN!r} must hold vectors of one length, got {error}") from error
    return matrix, found, rest if others else None


def replaced(table: pyarrow.Table | None, new: pyarrow.Table) -> pyarrow.Table:
    """Replace some columns of a table, which is None if there are no columns yet."""
    whole = matching(new, None if table is None else table.schema)
    if table is None:
        return whole
    for number, name in enumerate(table.column_names):
        if name not in new.column_names:
            whole = whole.set_column(number, table.schema.field(name), table.column(name))
    return whole


def matching(table: pyarrow.Table, schema: pyarrow.Schema | None) -> pyarrow.Table:
    """Give a table the columns of a schema, if there is one: missing ones are null, types are safely converted."""
    if schema is None:
        return _as_first(table)
    arrow = arrow_package()
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise DataError(
            f"the payload has a column {unknown[0]!r} that the index does not have, expected some of "
            f"{', '.join(schema.names)}; leave it out, or make the column with index.update"
        )
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(arrow.nulls(table.num_rows, field.type))
            continue
        try:
            columns.append(table.column(field.name).cast(field.type))
        except arrow.ArrowException as error:
            raise DataError(
                f"the column {field.name!r} of the payload must be {field.type}, as in the index, got "
                f"{table.column(field.name).type}: {reason_of(error, 200)}; convert it"
            ) from error
    return arrow.Table.from_arrays(columns, schema=schema)


def widened(schema: pyarrow.Schema, table: pyarrow.Table) -> pyarrow.Schema:
    """A schema with the columns of a table that it does not have yet."""
    new = _as_first(table.select([name for name in table.column_names if name not in schema.names]))
    return arrow_package().schema([*schema, *new.schema])


def empty_like(schema: pyarrow.Schema, n: int) -> pyarrow.Table:
    """Make a table with ``n`` rows of nulls."""
    arrow = arrow_package()
    return arrow.Table.from_arrays([arrow.nulls(n, field.type) for field in schema], schema=schema)


def schema_as_text(schema: pyarrow.Schema) -> str:
    """Columns for a manifest."""
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pyarrow.Schema:
    """Read what :func:`schema_as_text` gave."""
    arrow = arrow_package()
    try:
        return arrow.ipc.read_schema(arrow.py_buffer(base64.b64decode(text, validate=True)))
    except (arrow.ArrowException, OSError, ValueError) as error:
        wrong = f"the manifest of the index has columns that cannot be read ({reason_of(error, 200)})"
        raise FormatError(f"{wrong}; restore it from a copy") from error


def taken(table: pyarrow.Table, rows: npt.NDArray[np.int64], known: npt.NDArray[np.bool_]) -> pyarrow.Table:
    """Take some rows of a table; rows that are not ``known`` are null."""
    return table.take(arrow_package().array(rows, mask=~known))


def concatenate(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Put tables of one schema together."""
    arrow = arrow_package()
    try:
        return arrow.concat_tables(tables).combine_chunks()
    except arrow.ArrowInvalid as error:
        wrong = f"the segments of the index have different columns ({reason_of(error, 200)})"
        raise FormatError(f"{wrong}; use: autojacobin index repair") from error


def write_payload(folder: Folder | None, table: pyarrow.Table, label: SegmentLabel) -> Payload:
    """Write the columns of a segment to a file that has its checksum in its name, for ``repair``, or keep them."""
    if folder is None:
        return Payload(table)
    arrow = arrow_package()
    # the random label makes all names different
    labelled = table.replace_schema_metadata({_SEGMENT: label.segment.hex()})
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_file(sink, labelled.schema) as writer:
        writer.write_table(labelled.combine_chunks())
    content = sink.getvalue().to_pybytes()
    file = folder.add_file(f"payload-{xxhash.xxh64_hexdigest(content)}.arrow", content)
    return Payload(table, file, folder)


def neighbours_frame(distances: Any, ids: Any, numbers: Any, table: Any) -> Any:
    """Make a data frame with a row for each neighbour."""
    pandas = import_extra("pandas", "payload", "a table of neighbours")
    n, k = ids.shape
    there = numbers.ravel() >= 0
    frame = pandas.DataFrame(
        {
            "query": np.repeat(np.arange(n), k)[there],
            "rank": np.tile(np.arange(1, k + 1), n)[there],
            "id": ids.ravel()[there],
            "distance": np.asarray(distances).ravel()[there],
        }
    )
    if table is None:
        return frame
    names = [f"{name}_payload" if name in frame.columns else name for name in table.column_names]
    return frame.join(table.filter(there).rename_columns(names).to_pandas())


@cache
def arrow_package() -> Any:
    """Import the package ``pyarrow``, or raise an error that says how to install it."""
    for module in ("pyarrow.ipc", "pyarrow.compute"):
        import_extra(module, "payload", "a payload")
    return import_extra("pyarrow", "payload", "a payload")
