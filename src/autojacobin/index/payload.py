"""Columns that belong to the vectors of an index, in one Arrow file for each segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.errors import DataError, DataTypeError, MissingExtraError
from autojacobin.index.array_files import ArrayFile, damaged
from autojacobin.index.files import Files

if TYPE_CHECKING:
    import pyarrow

__all__ = [
    "VECTOR_COLUMN", "Payload", "as_payload", "concatenate", "empty_like", "from_frame", "matching",
    "neighbours_frame", "replaced", "rows_where", "to_bytes",
]  # fmt: skip

VECTOR_COLUMN = "vector"


class Payload:
    """The columns of a segment, in the order of its positions; read and checked when they are first needed."""

    def __init__(self, table: Any, file: ArrayFile | None = None, files: Files | None = None) -> None:
        self._table, self.file, self._files = table, file, files

    @property
    def table(self) -> pyarrow.Table:
        """All columns."""
        if self._table is None:
            assert self.file is not None
            assert self._files is not None
            path = self._files.path / self.file.name
            with self._files.open(self.file.name) as stream:
                content = np.memmap(stream, dtype=np.uint8, mode="r") if self.file.size else np.empty(0, dtype=np.uint8)
            if len(content) != self.file.size or xxhash.xxh64_hexdigest(content.data) != self.file.checksum:
                raise damaged(path, "content that does not match its checksum")
            arrow = _arrow()
            self._table = arrow.ipc.open_file(arrow.py_buffer(content)).read_all()
        return self._table

    def verify(self) -> None:
        """Compare the file with its checksum, also if it was read before."""
        if self.file is not None and self._files is not None:
            Payload(None, self.file, self._files).table  # noqa: B018


def as_payload(payload: Any, n: int | None) -> pyarrow.Table:
    """Give columns as an Arrow table of ``n`` rows: a table, a data frame, a dict of columns or a list of dicts."""
    arrow = _arrow()
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
            table = arrow.table({str(name): column for name, column in payload.items()})
        elif isinstance(payload, Sequence) and not isinstance(payload, str | bytes):
            table = arrow.Table.from_pylist([dict(row) for row in payload])
        else:
            raise DataTypeError(
                f"payload must be a table, a data frame, a dict of columns or a list of dicts, got "
                f"{type(payload).__name__}"
            )
    except (arrow.ArrowInvalid, arrow.ArrowTypeError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"the payload cannot be made a table: {error}; give columns of one type each") from error
    if n is not None and table.num_rows != n:
        raise DataError(f"the payload must have a row for each of the {n} vectors, got {table.num_rows} rows")
    if len(set(table.column_names)) != table.num_columns:
        raise DataError(f"the columns of a payload must have different names, got {', '.join(table.column_names)}")
    return table.replace_schema_metadata(None)


def from_frame(vectors: Any, ids: Any, payload: Any) -> tuple[Any, Any, Any]:
    """Take vectors, ids and payload out of a data frame, if ``ids`` is the name of a column of it."""
    if not isinstance(ids, str) or not hasattr(vectors, "columns"):
        return vectors, ids, payload
    names = list(vectors.columns)
    if ids not in names:
        raise DataError(f"there is no column {ids!r} for the ids, expected one of {', '.join(map(str, names))}")
    found = vectors[ids].tolist() if hasattr(vectors[ids], "tolist") else vectors[ids].to_list()
    rest = vectors.drop(columns=[ids]) if hasattr(vectors, "iloc") else vectors.drop(ids)
    if VECTOR_COLUMN not in names:
        return rest, found, payload
    if payload is not None:
        raise DataError(f"the payload is in the data frame beside {VECTOR_COLUMN!r}, got another; leave it out")
    matrix = np.stack([np.asarray(row) for row in vectors[VECTOR_COLUMN]])
    others = rest.drop(columns=[VECTOR_COLUMN]) if hasattr(rest, "iloc") else rest.drop(VECTOR_COLUMN)
    return matrix, found, others if len(others.columns) else None


def replaced(table: pyarrow.Table, new: pyarrow.Table) -> pyarrow.Table:
    """A table with some of its columns replaced."""
    whole = matching(new, table.schema)
    for number, name in enumerate(table.column_names):
        if name not in new.column_names:
            whole = whole.set_column(number, table.schema.field(name), table.column(name))
    return whole


def matching(table: pyarrow.Table, schema: pyarrow.Schema) -> pyarrow.Table:
    """Give a table the columns of a schema: missing ones are null, and types are converted where nothing is lost."""
    arrow = _arrow()
    unknown = [name for name in table.column_names if name not in schema.names]
    if unknown:
        raise DataError(
            f"the payload has a column {unknown[0]!r} that the index does not have, expected some of "
            f"{', '.join(schema.names)}; leave it out, or build a new index with it"
        )
    columns = []
    for field in schema:
        if field.name not in table.column_names:
            columns.append(arrow.nulls(table.num_rows, field.type))
            continue
        try:
            columns.append(table.column(field.name).cast(field.type))
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError) as error:
            raise DataError(
                f"the column {field.name!r} of the payload must be {field.type}, as in the index, got "
                f"{table.column(field.name).type}: {error}"
            ) from error
    return arrow.Table.from_arrays(columns, schema=schema)


def empty_like(schema: pyarrow.Schema, n: int) -> pyarrow.Table:
    """``n`` rows of nulls."""
    arrow = _arrow()
    return arrow.Table.from_arrays([arrow.nulls(n, field.type) for field in schema], schema=schema)


def concatenate(tables: Sequence[pyarrow.Table]) -> pyarrow.Table:
    """Put tables of one schema together."""
    return _arrow().concat_tables(tables).combine_chunks()


def to_bytes(table: pyarrow.Table) -> bytes:
    """The Arrow file of a table."""
    arrow = _arrow()
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return content


def neighbours_frame(distances: Any, ids: Any, numbers: Any, table: Any) -> Any:
    """A data frame with a row for each neighbour."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError("pandas", "payload", "a table of neighbours") from error
    n, k = ids.shape
    there = numbers.ravel() >= 0
    frame = pandas.DataFrame(
        {
            "query": np.repeat(np.arange(n), k),
            "rank": np.tile(np.arange(1, k + 1), n),
            "id": ids.ravel(),
            "distance": np.asarray(distances).ravel(),
        }
    )
    if table is not None:
        frame = frame.join(table.to_pandas())
    return frame[there].reset_index(drop=True)


def rows_where(table: pyarrow.Table, where: Any) -> npt.NDArray[np.int64]:
    """Rows of a table for which a condition holds: a string of SQL, or an expression of ``pyarrow.compute``."""
    arrow = _arrow()

    numbered = table.append_column("__row", arrow.array(np.arange(table.num_rows)))
    if isinstance(where, arrow.compute.Expression):
        try:
            return _column(numbered.filter(where))
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, KeyError) as error:
            raise DataError(f"where cannot be computed: {_first_line(error)}; {_columns(table)}") from error
    if not isinstance(where, str):
        raise DataTypeError(
            f'where must be a condition such as "price < 10" or an expression of pyarrow.compute, got '
            f"{type(where).__name__}"
        )
    try:
        import duckdb
    except ImportError as error:
        raise MissingExtraError("duckdb", "payload", "a condition in words") from error
    with duckdb.connect(config={"enable_external_access": "false", "lock_configuration": "true"}) as connection:
        try:
            found = connection.from_arrow(numbered).filter(where).project("__row").to_arrow_table()
        except duckdb.Error as error:
            problem = f"where={where!r:.80} cannot be computed: {_first_line(error)}"
            raise DataError(f"{problem}; {_columns(table)}") from error
    return np.sort(_column(found))


def _column(table: pyarrow.Table) -> npt.NDArray[np.int64]:
    rows: npt.NDArray[np.int64] = table.column("__row").to_numpy()
    return rows


def _columns(table: pyarrow.Table) -> str:
    fields = [f"{field.name} ({field.type})" for field in table.schema if field.name != "__row"]
    return f"the columns are {', '.join(fields)}"


def _first_line(error: Exception) -> str:
    return str(error.args[0] if error.args else error).partition("\n")[0]


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError as error:
        raise MissingExtraError("pyarrow", "payload", "a payload") from error
    return pyarrow
