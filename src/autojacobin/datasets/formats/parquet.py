"""Parquet files, with pyarrow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.source import Source, clear_foreign_errors, damaged, import_extra
from autojacobin.datasets.formats.vectors import LazyReader, Reader, chosen_part, rows_per_block
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import FormatError

__all__ = ["MAGIC", "open_parquet", "write_parquet"]

MAGIC = b"PAR1"
_LARGEST_RATIO = 100_000  # decoded bytes per byte of the file; columns of zeros and ones reach a third of it
_LARGEST_GROUP_KEPT = 2**28  # bytes; files with larger groups are decoded to a temporary file, block by block


def open_parquet(source: Source, part: str | None, name: str = "Parquet") -> Reader:
    """Open one column of vectors."""
    if source.head(4) != MAGIC or source.content[-4:].tobytes() != MAGIC:
        what = f"{source.head(4)!r} at byte 0 and {source.content[-4:].tobytes()!r} at the end"
        raise damaged(source.path, name, f"{what}, expected {MAGIC!r} at both")
    arrow = import_extra("pyarrow", "reading Parquet")
    parquet = import_extra("pyarrow.parquet", "reading Parquet")
    with clear_foreign_errors(source.path, name):
        file = parquet.ParquetFile(source.path, memory_map=True)
        try:
            columns = {}
            for field in file.schema_arrow:
                if _number_type(arrow, field.type) is not None:
                    columns[field.name] = f"{field.type}, {file.metadata.num_rows} rows"
            return _ParquetReader(source, file, chosen_part(source, part, columns, "column"), name)
        except BaseException:
            file.close()
            raise


def write_parquet(stream: BinaryIO, parts: dict[str, Matrix]) -> None:
    """Write a column of fixed-size lists; each block of the matrix is a row group."""
    ((label, matrix),) = parts.items()
    arrow = import_extra("pyarrow", "writing Parquet")
    parquet = import_extra("pyarrow.parquet", "writing Parquet")
    schema = arrow.schema([(label, arrow.list_(arrow.from_numpy_dtype(matrix.dtype), matrix.width))])
    with parquet.ParquetWriter(stream, schema, use_dictionary=False) as writer:
        for block in matrix.blocks():
            numbers = arrow.array(block.ravel())
            lists = arrow.FixedSizeListArray.from_arrays(numbers, matrix.width)
            writer.write_table(arrow.Table.from_arrays([lists], schema=schema))


class _ParquetReader(LazyReader):
    """Reads row groups, and keeps the last one decoded."""

    def __init__(self, source: Source, file: Any, label: str, name: str) -> None:
        self._arrow = import_extra("pyarrow", "reading Parquet")
        self._file, self._label, self._name = file, label, name
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        self._starts = [0, *itertools.accumulate(group.num_rows for group in groups)]
        self._kept: tuple[int, npt.NDArray[Any] | None] = (-1, None)
        self._largest_group = max((group.num_rows for group in groups), default=0)
        n = self._starts[-1]
        if n < 1 or any(group.num_rows < 0 for group in groups):
            raise FormatError(f"{source.path} holds no vectors, got {n} rows; write it again")
        value = _number_type(self._arrow, file.schema_arrow.field(label).type)
        dtype = np.dtype(value.to_pandas_dtype())
        # the metadata of columns is not used here: pyarrow 26 ends the process if it is wrong
        if n * dtype.itemsize > max(_LARGEST_GROUP_KEPT, _LARGEST_RATIO * len(source)):
            what = f"{n} rows in a file of {len(source)} bytes"
            raise damaged(source.path, name, f"{what}, more than it can hold")
        super().__init__(source.path, (n, self._first_length(source)), dtype)

    def _first_length(self, source: Source) -> int:
        """Length of the first vector as it is stored; the schema may be wrong."""
        batches = self._file.iter_batches(batch_size=1, columns=[self._label], use_threads=False)
        first = next((_plain(self._arrow, batch.column(self._label)) for batch in batches if len(batch)), None)
        length = 0 if first is None or first.null_count else len(first.flatten())
        if length < 1:
            raise damaged(source.path, self._name, f"no number in row 0 of {self._label!r}, expected a vector")
        return length

    def _stream(self) -> Iterator[npt.NDArray[Any]]:
        rows = 0
        with clear_foreign_errors(self.path, self._name):
            step = rows_per_block(self.shape[1], self.dtype)
            for batch in self._file.iter_batches(batch_size=step, columns=[self._label], use_threads=False):
                block = self._decoded_lists([batch.column(self._label)], rows)
                rows += len(block)
                yield block
        if rows != self.shape[0]:
            raise damaged(self.path, self._name, f"{rows} rows, expected {self.shape[0]} as its footer says")

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        if self._largest_group * self.shape[1] * self.dtype.itemsize > _LARGEST_GROUP_KEPT:
            return self.whole()[start:stop]
        parts = []
        for number in range(int(np.searchsorted(self._starts, start, side="right")) - 1, len(self._starts) - 1):
            first = self._starts[number]
            if first >= stop:
                break
            parts.append(self._group(number)[max(0, start - first) : stop - first])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _group(self, number: int) -> npt.NDArray[Any]:
        kept, rows = self._kept
        if rows is None or kept != number:
            with clear_foreign_errors(self.path, self._name):
                table = self._file.read_row_group(number, columns=[self._label], use_threads=False)
                rows = self._decoded_lists(table.column(self._label).chunks, self._starts[number])
            expected = self._starts[number + 1] - self._starts[number]
            if len(rows) != expected:
                raise damaged(self.path, self._name, f"{len(rows)} rows in row group {number}, expected {expected}")
            self._kept = (number, rows)
        return rows

    def _decoded_lists(self, chunks: list[Any], first_row: int) -> npt.NDArray[Any]:
        width = self.shape[1]
        parts: list[npt.NDArray[Any]] = []
        for chunk in chunks:
            lists = _plain(self._arrow, chunk)
            row = first_row + sum(len(part) for part in parts)
            missing = np.flatnonzero(lists.is_null().to_numpy(zero_copy_only=False))
            if len(missing):
                raise self._wrong(row + int(missing[0]), "nothing")
            if not self._arrow.types.is_fixed_size_list(lists.type):
                lengths = np.diff(lists.offsets.to_numpy())
                ragged = np.flatnonzero(lengths != width)
                if len(ragged):
                    raise self._wrong(row + int(ragged[0]), f"{int(lengths[ragged[0]])} numbers")
            numbers = lists.flatten()
            if numbers.null_count:
                place = int(np.flatnonzero(numbers.is_null().to_numpy(zero_copy_only=False))[0])
                raise self._wrong(row + place // width, f"a null in place {place % width}")
            parts.append(numbers.to_numpy(zero_copy_only=False).reshape(-1, width))
        return np.concatenate(parts).astype(self.dtype, copy=False) if parts else np.empty((0, width), self.dtype)

    def _wrong(self, row: int, what: str) -> FormatError:
        return FormatError(
            f"{self.path} holds {what} in row {row} of {self._label!r}, expected {self.shape[1]} numbers as in every "
            "row; fill in or leave out that row, and write the file again"
        )

    def close(self) -> None:
        with self._lock:
            self._file.close()
            self._kept = (-1, None)


def _plain(arrow: Any, array: Any) -> Any:
    return array.storage if isinstance(array.type, arrow.BaseExtensionType) else array


def _number_type(arrow: Any, kind: Any) -> Any:
    """Type of the numbers in a list type, or None if it is no list of numbers."""
    kind, types = kind.storage_type if isinstance(kind, arrow.BaseExtensionType) else kind, arrow.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    value = kind.value_type
    return value if types.is_integer(value) or types.is_floating(value) or types.is_boolean(value) else None
