"""Columns that belong to the vectors of an index, in one Arrow file for each segment.

Arrow cannot convert, take or join columns of all its types. :func:`stored_column` settles the type of a column: when it
comes in, and when it is read from a file, which an earlier version may have written.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.core.vectors import uneven_rows
from autojacobin.errors import DataError, DataTypeError, FormatError, import_extra, reason_of
from autojacobin.index.array_files import READ_AT_ONCE, SegmentLabel
from autojacobin.index.folder import Folder
from autojacobin.index.manifest import ArrayFile, damaged

if TYPE_CHECKING:
    import pyarrow

VECTOR_COLUMN = "vector"
_DEEPEST = 32  # lists and structs inside each other; Arrow writes no more than 63, and crashes at some thousands
_NESTED = (list, tuple, set, frozenset, dict, np.ndarray)
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
            table, wrong = self.intact_columns()
            if wrong:
                raise self._damaged(wrong[0])
            self._table = table
        return self._table

    def intact_columns(self) -> tuple[pyarrow.Table, list[str]]:
        """The columns that can be used, and what is wrong with the others."""
        table, wrong = self.read(), list[str]()
        kept: dict[str, Any] = {}
        fields = []
        for number, field in enumerate(table.schema):
            try:
                if field.name in kept:
                    raise DataError(f"the column {field.name!r:.60} is there twice")
                kept[field.name] = stored_column(field.name, table.column(number))
                same = kept[field.name].type == field.type  # and the name of a type that is not known here stays
                fields.append(field if same else arrow_package().field(field.name, kept[field.name].type))
            except DataError as error:
                wrong.append(str(error).partition(";")[0])
        return arrow_package().table(list(kept.values()), arrow_package().schema(fields)), wrong

    def read(self) -> pyarrow.Table:
        """Read the file as it is. Its columns are not checked yet, and a forged one may lead out of the file."""
        self._check(xxhash.xxh64(self._content.data))
        arrow = arrow_package()
        try:
            table = arrow.ipc.open_file(arrow.py_buffer(self._content)).read_all()
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise self._damaged(f"no Arrow file ({reason_of(error, 200)})") from error
        if self._n not in (None, table.num_rows):
            raise self._damaged(f"{table.num_rows} rows for {self._n} vectors")
        self.segment = (table.schema.metadata or {}).get(_SEGMENT, b"")
        return table.replace_schema_metadata(None)

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
    payload.read()
    return bytes.fromhex(payload.segment.decode()), file


# What comes in


def as_payload(payload: Any, n: int | None) -> pyarrow.Table | None:
    """Give columns as an Arrow table of ``n`` rows: a table, a data frame, a dict of columns or a list of dicts.

    Rows without any column are no payload, so None.
    """
    arrow = arrow_package()
    n_rows = None
    try:
        if isinstance(payload, arrow.RecordBatch):
            table = arrow.Table.from_batches([payload])
        elif isinstance(payload, arrow.Table):
            table = payload
        elif hasattr(payload, "to_arrow") and isinstance(table := payload.to_arrow(), arrow.Table):
            pass  # of polars, whose series give arrays
        elif hasattr(payload, "iloc") and hasattr(payload, "columns"):
            for _, column in payload.items():
                if column.dtype == object:
                    check_depth(column.tolist())
            table, n_rows = arrow.Table.from_pandas(payload, preserve_index=False), len(payload)
        elif isinstance(payload, Mapping):
            for name, column in payload.items():
                if isinstance(column, str | bytes):
                    wrong = f"the column {name!r:.60} of the payload must have a value for each vector"
                    raise DataError(f"{wrong}, got {column!r:.60}")
            columns = {str(name): list(one) if isinstance(one, Iterator) else one for name, one in payload.items()}
            check_depth(columns.values(), _DEEPEST + 1)
            table = arrow.table(columns)
        elif isinstance(payload, Sequence) and not isinstance(payload, str | bytes):
            rows = [dict(row) for row in payload]
            table, n_rows = table_of_rows(rows), len(rows)
        else:
            expected = "a table, data frame, dict of columns or list of dicts"
            raise DataTypeError(f"payload must be {expected}, got {type(payload).__name__}")
    except DataError:
        raise
    except (arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem = f"the payload cannot be made a table: {reason_of(error, 200)}"
        raise DataError(f"{problem}; give columns of one type and one length") from error
    n_rows = table.num_rows if n_rows is None else n_rows
    if n is not None and n_rows != n:
        raise DataError(f"the payload must have a row for each of the {n} vectors, got {n_rows} rows")
    if len(set(table.column_names)) != table.num_columns:
        raise DataError(f"the columns of a payload must have different names, got {', '.join(table.column_names)}")
    if not table.num_columns:
        return None
    columns = {name: stored_column(name, table.column(name)) for name in table.column_names}
    return _without_nan(arrow.table(columns))


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """Make a table of the columns of all rows; a row without one of them has null there."""
    names = dict.fromkeys(name for row in rows for name in row)  # of all rows; Arrow looks at the first alone
    columns = {str(name): [row.get(name) for row in rows] for name in names}
    check_depth(columns.values(), _DEEPEST + 1)
    return arrow_package().table(columns)


def check_depth(values: Any, left: int = _DEEPEST) -> None:
    """Refuse values that are nested so deeply that Arrow would fail, or end the process."""
    if not any(issubclass(kind, _NESTED) for kind in set(map(type, values))):  # faster than one by one
        return
    for value in values:
        if isinstance(value, _NESTED) and not (isinstance(value, np.ndarray) and value.dtype != object):
            if not left:
                raise _too_deep()
            check_depth(value.values() if isinstance(value, dict) else value, left - 1)


def _too_deep() -> DataError:
    return DataError(f"payload may have {_DEEPEST} lists and objects inside each other, got more; flatten it")


def stored_column(name: str, column: Any) -> Any:
    """Check every value of a column, and give it in the type that an index keeps.

    Categories become their values: each addition has others, and Arrow joins neither their tables nor their indices.
    """
    arrow = arrow_package()
    try:
        stored = _stored_type(column.type)
        column.validate(full=True)  # or a forged offset would lead out of the buffers
        if stored == column.type:
            return column
        decoded = arrow.chunked_array([_as_values(chunk, stored) for chunk in column.chunks], stored)
        decoded.validate()
        return decoded
    except DataError as error:
        raise DataError(f"the column {name!r:.60} ({column.type!s:.60}) cannot be kept: {error}") from error
    except (arrow.ArrowException, TypeError, ValueError, IndexError) as error:
        wrong = f"the column {name!r:.60} ({column.type!s:.60}) cannot be read: {reason_of(error, 200)}"
        raise DataError(f"{wrong}; convert it, or write it again") from error


def _as_values(chunk: Any, stored: Any) -> Any:
    """Decode an array whose type is not the one to store."""
    arrow, kind = arrow_package(), chunk.type
    try:
        if arrow.types.is_dictionary(kind):
            return _as_values(chunk.dictionary.take(chunk.indices), stored)
        if arrow.types.is_run_end_encoded(kind):
            return _as_values(arrow.compute.run_end_decode(chunk), stored)
        if kind == stored:
            return chunk
        if _can_cast(kind):
            return chunk.cast(stored)
    except arrow.ArrowNotImplementedError:  # of views, by some versions of Arrow
        pass
    return arrow.array(chunk.to_pylist(), stored)


def _can_cast(kind: Any) -> bool:
    """Whether Arrow decodes a type where it is inside another one."""
    types = arrow_package().types
    if types.is_dictionary(kind):
        return not types.is_nested(kind.value_type)
    inner = (kind.field(number).type for number in range(kind.num_fields))
    return not types.is_run_end_encoded(kind) and all(map(_can_cast, inner))


def _stored_type(kind: Any, left: int = _DEEPEST, encoded: bool = False) -> Any:
    """The type in which an index keeps the values of a type, which are perhaps those of an encoding already."""
    arrow, inner = arrow_package(), left - 1
    types = arrow.types
    if left < 0:
        raise _too_deep()
    if types.is_union(kind):
        raise DataError("its values have several types, expected one; convert it")
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        if encoded:  # Arrow may end the process
            raise DataError("its values are encoded twice, expected once; decode it")
        return _stored_type(kind.value_type, inner, encoded=True)
    if types.is_string_view(kind):
        return arrow.large_string()
    if types.is_binary_view(kind):
        return arrow.large_binary()
    if types.is_struct(kind):
        names = [field.name for field in kind]
        if len(set(names)) < len(names):
            raise DataError(f"its fields must have different names, got {', '.join(names)}; rename them")
        return arrow.struct([(field.name, _stored_type(field.type, inner, encoded)) for field in kind])
    if types.is_map(kind):
        return arrow.map_(_stored_type(kind.key_type, inner, encoded), _stored_type(kind.item_type, inner, encoded))
    if types.is_fixed_size_list(kind):
        return arrow.list_(_stored_type(kind.value_type, inner, encoded), kind.list_size)
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return arrow.large_list(_stored_type(kind.value_type, inner, encoded))
    if types.is_list(kind) or types.is_list_view(kind):
        return arrow.list_(_stored_type(kind.value_type, inner, encoded))
    if isinstance(kind, arrow.BaseExtensionType):
        stored = _stored_type(kind.storage_type, inner, encoded)
        return kind if stored == kind.storage_type else stored
    return kind


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
    for field in table.schema:
        if _has_null(field.type):
            raise DataError(f"the column {field.name!r} of the payload has no value yet; give a table with types")
    return table


def _has_null(kind: Any) -> bool:
    """Whether a type, or one inside it, has no value but null."""
    inner = [kind.field(number).type for number in range(kind.num_fields)]
    return bool(arrow_package().types.is_null(kind)) or any(map(_has_null, inner))


def from_frame(vectors: Any, ids: Any, payload: Any) -> tuple[Any, Any, Any]:
    """Take vectors, ids and payload out of a data frame, if ``ids`` is the name of a column of it."""
    if not isinstance(ids, str) or not hasattr(vectors, "columns"):
        return vectors, ids, payload
    if hasattr(vectors, "to_arrow"):  # of polars
        vectors = vectors.to_arrow()
    arrow = hasattr(vectors, "column_names")
    names = list(vectors.column_names if arrow else vectors.columns)
    if ids not in names:
        raise DataError(f"there is no column {ids!r} for the ids, expected one of {', '.join(map(str, names))}")
    if arrow:
        vectors = arrow_package().table({name: stored_column(name, vectors.column(name)) for name in names})
    found = vectors[ids].to_pylist() if arrow else vectors[ids].tolist()
    others = [name for name in names if name not in (ids, VECTOR_COLUMN)]
    rest = vectors.select(others) if arrow else vectors[others]
    if VECTOR_COLUMN not in names:
        return (rest.to_pandas() if arrow else rest), found, payload
    if payload is not None:
        raise DataError(f"the payload is in the data frame beside {VECTOR_COLUMN!r}, got another; leave it out")
    rows = vectors[VECTOR_COLUMN].to_numpy() if arrow else vectors[VECTOR_COLUMN]
    try:
        matrix = np.stack([np.asarray(row) for row in rows])
    except ValueError as error:
        found_rows = uneven_rows(rows) or "rows whose values have different lengths"
        raise DataError(f"the column {VECTOR_COLUMN!r} must hold vectors of one length, got {found_rows}") from error
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
        column = table.column(field.name)
        try:
            if lost := _lost_field(column.type, field.type):
                raise arrow.ArrowInvalid(f"{lost!r} has no place there")
            columns.append(column.cast(field.type))
        except arrow.ArrowException as error:
            raise DataError(
                f"the column {field.name!r} of the payload must be {field.type}, as in the index, got "
                f"{column.type}: {reason_of(error, 200)}; convert it"
            ) from error
    return arrow.Table.from_arrays(columns, schema=schema)


def _lost_field(given: Any, kept: Any) -> str | None:
    """A field of a struct that Arrow would leave out without a word when it converts one type to another."""
    inner = [[kind.field(number) for number in range(kind.num_fields)] for kind in (given, kept)]
    if arrow_package().types.is_struct(given):
        known = {field.name: field for field in inner[1]}
        lost = next((field.name for field in inner[0] if field.name not in known), None)
        if lost is not None:
            return str(lost)
        inner[1] = [known[field.name] for field in inner[0]]
    return next(filter(None, (_lost_field(one.type, other.type) for one, other in zip(*inner, strict=False))), None)


def widened(schema: pyarrow.Schema, table: pyarrow.Table) -> pyarrow.Schema:
    """A schema with the columns of a table that it does not have yet."""
    new = _as_first(table.select([name for name in table.column_names if name not in schema.names]))
    return arrow_package().schema([*schema, *new.schema])


def joint_schema(tables: Sequence[pyarrow.Table]) -> pyarrow.Schema | None:
    """All columns of some tables, each in the type of the first that has it; None if there are none."""
    fields = {field.name: field for table in reversed(tables) for field in reversed(list(table.schema))}
    return arrow_package().schema(list(reversed(fields.values()))) if fields else None


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
    columns = zip(names, table.filter(there).columns, strict=True)
    return frame.join(pandas.DataFrame({name: _as_series(pandas, column) for name, column in columns}))


def _as_series(pandas: Any, column: Any) -> Any:
    """A column for pandas; Python's values where Arrow cannot convert it."""
    try:
        return column.to_pandas()
    except arrow_package().ArrowException:
        return pandas.Series(column.to_pylist(), dtype=object)


@cache
def arrow_package() -> Any:
    """Import the package ``pyarrow``, or raise an error that says how to install it."""
    for module in ("pyarrow.ipc", "pyarrow.compute"):
        import_extra(module, "payload", "a payload")
    return import_extra("pyarrow", "payload", "a payload")
