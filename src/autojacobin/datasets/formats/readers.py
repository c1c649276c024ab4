"""``Vectors``, a file of vectors that is used like an array, and the readers below it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import as_count
from autojacobin.datasets.formats.source import Source, spooled
from autojacobin.errors import DataError, DataTypeError, FormatError

_BYTES_PER_BLOCK = 2**24
_ROWS_PER_STEP = 2**12


class Reader:
    """An open file whose rows are stored as they are in memory; the caller has checked the row numbers."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    names: list[str] | None = None  # of all rows, if the file has them

    def __init__(self, array: npt.NDArray[Any], names: list[str] | None = None) -> None:
        self._array, self.names = array, names
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows from ``start`` to ``stop``."""
        return self._array[start:stop]

    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Rows in the order of ``ids``."""
        return self._array[ids]

    def whole(self) -> npt.NDArray[Any]:
        """All rows, mapped."""
        return self._array

    def close(self) -> None:
        """Close the file."""


class LazyReader(Reader):
    """Rows that have to be decoded.

    ``whole`` decodes all rows once into an unnamed temporary file, which is mapped. So they need not fit into memory,
    and are not decoded again.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._decoded: npt.NDArray[Any] | None = None
        self._lock = threading.RLock()  # the libraries do not support several threads in one file

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode rows from ``start`` to ``stop``."""
        raise NotImplementedError

    def _stream(self) -> Iterator[npt.NDArray[Any]]:
        """Decode all rows, block by block."""
        return (self._read(*span) for span in steps(self.shape[0], rows_per_block(self.shape[1], self.dtype)))

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows from ``start`` to ``stop``."""
        with self._lock:
            return self._read(start, stop) if self._decoded is None else self._decoded[start:stop]

    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Rows in the order of ``ids``."""
        with self._lock:
            if self._decoded is not None:
                return self._decoded[ids]
            found = np.empty((len(ids), self.shape[1]), dtype=self.dtype)
            order = np.argsort(ids, kind="stable")
            ascending = ids[order]
            step = min(_ROWS_PER_STEP, rows_per_block(self.shape[1], self.dtype))
            edges = np.flatnonzero(np.diff(ascending // step)) + 1
            for places, rows in zip(np.split(order, edges), np.split(ascending, edges), strict=True):
                if len(rows):
                    first = int(rows[0])
                    found[places] = self._read(first, int(rows[-1]) + 1)[rows - first]
            return found

    def whole(self) -> npt.NDArray[Any]:
        """All rows, mapped."""
        with self._lock:
            if self._decoded is None:
                content = spooled(map(np.ascontiguousarray, self._stream()), f"decode {self.path}")
                self._decoded = content.view(self.dtype).reshape(self.shape)
            return self._decoded


def rows_per_block(width: int, dtype: np.dtype[Any]) -> int:
    """How many rows make a block of some megabytes."""
    return max(1, _BYTES_PER_BLOCK // (width * dtype.itemsize))


def steps(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Spans (start, stop) of ``step`` rows that cover 0…n."""
    return ((start, min(n, start + step)) for start in range(0, n, step))


def chosen_part(source: Source, part: str | None, matrices: dict[str, str], what: str) -> str:
    """Name of the matrix to open in a file with several; ``matrices`` maps each name to a description."""
    listed = ", ".join(f"{name!r} ({shape})" for name, shape in list(matrices.items())[:20])
    listed += f" and {len(matrices) - 20} more" if len(matrices) > 20 else ""
    if part is not None:
        if part in matrices:
            return part
        raise DataError(
            f"{source.path} has no {what} called {part!r} with one vector per row, it has: {listed or 'none'}"
        )
    if not matrices:
        raise FormatError(
            f"{source.path} has no {what} of numbers with one vector per row; write one with write_vectors"
        )
    if len(matrices) == 1 or "train" in matrices:
        return "train" if "train" in matrices else next(iter(matrices))
    raise DataError(
        f"{source.path} has several {what}s, name one of them (part=, or PATH::PART in a command): {listed}"
    )


class RowError(DataError, IndexError):
    """A row or a column that a file does not have."""


class Vectors:
    """A file of vectors, opened by :func:`~autojacobin.datasets.open_vectors`; gives rows as NumPy arrays.

    Indexing works as with an array: a row number, a slice, a list of row numbers or a mask, and after a comma a column
    or a slice of columns. ``numpy.asarray`` gives all rows as a read-only map of the file, so that whatever takes
    an array takes a ``Vectors``. Formats that have to be decoded (chunked HDF5, Parquet, text) are then decoded once
    into an unnamed temporary file, which is mapped.

    Arrays that were returned stay valid after :meth:`close`. No other program may shorten the file while it is open;
    ``write_vectors`` replaces files as a whole, which is safe.

    Attributes
    ----------
    path : Path
    format : str
        Name of the format, such as ``"fvecs"``.
    shape : tuple of int
        Number of vectors and their dimension.
    dtype : numpy.dtype
    """

    def __init__(self, path: Path, format: str, reader: Reader) -> None:
        self.path, self.format = path, format
        self.shape, self.dtype = reader.shape, reader.dtype
        self._reader: Reader | None = reader

    @property
    def names(self) -> list[str] | None:
        """The word before each vector in a text file of word vectors; None in any other file."""
        return self._open_reader().names

    ndim = 2

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        n, dimension = self.shape
        return f"Vectors({n} × {dimension} {self.dtype}, {self.format} file {self.path})"

    def __getitem__(self, key: Any) -> Any:
        rows, columns = self._rows_and_columns(key)
        if isinstance(rows, slice):
            return self._slice(rows)[:, columns]
        if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
            n, row = len(self), int(rows)
            if not -n <= row < n:
                raise self._no_such_row(row)
            return self._open_reader().rows(row % n, row % n + 1)[0, columns]
        return self._open_reader().take(self._row_numbers(rows))[:, columns]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for block in self.blocks():
            yield from block

    def blocks(self, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """Walk over all vectors in blocks of ``rows`` rows, by default of some megabytes; the last may be shorter."""
        if rows is None:
            return self._walk(rows_per_block(self.shape[1], self.dtype))
        return self._walk(as_count("rows", rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self._open_reader().whole()
        if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
            raise DataError(f"{array.dtype} cannot be given as {np.dtype(dtype)} without a copy; leave copy=False out")
        return np.array(array, dtype=dtype) if copy else np.asarray(array, dtype=dtype)

    def close(self) -> None:
        """Close the file; arrays that were returned stay valid."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def __enter__(self) -> Vectors:
        self._open_reader()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_reader(self) -> Reader:
        if self._reader is None:
            raise DataError(f"the vectors of {self.path} are closed; open them again with open_vectors")
        return self._reader

    def _rows_and_columns(self, key: Any) -> tuple[Any, Any]:
        if not isinstance(key, tuple):
            return key, slice(None)
        if not 1 <= len(key) <= 2:
            raise RowError(f"vectors are indexed by rows, or by rows and columns, got {len(key)} indices")
        rows, columns = key if len(key) == 2 else (*key, slice(None))
        if isinstance(columns, bool) or not isinstance(columns, slice | int | np.integer):
            raise DataTypeError(f"columns must be a number or a slice, got {columns!r}; take them from vectors[rows]")
        width = self.shape[1]
        if not isinstance(columns, slice) and not -width <= columns < width:
            raise RowError(f"column {columns} is not in {self.path}, which has columns 0 to {width - 1}")
        return rows, columns

    def _walk(self, step: int) -> Iterator[npt.NDArray[Any]]:
        for start, stop in steps(len(self), step):
            yield self._open_reader().rows(start, stop)

    def _slice(self, key: slice) -> npt.NDArray[Any]:
        try:
            chosen = range(*key.indices(len(self)))
        except (TypeError, ValueError) as error:
            raise DataTypeError(f"a slice of vectors needs integers, got {key}: {error}") from None
        reader = self._open_reader()
        if not chosen:
            return np.empty((0, self.shape[1]), dtype=self.dtype)
        if abs(chosen.step) == 1:
            return reader.rows(min(chosen), max(chosen) + 1)[:: chosen.step]
        return reader.take(np.array(chosen, dtype=np.int64))

    def _row_numbers(self, rows: Any) -> npt.NDArray[np.int64]:
        n = len(self)
        array = np.asarray(rows)
        if array.dtype == np.bool_:
            if array.shape != (n,):
                raise RowError(f"a mask of rows must have shape ({n},), got {array.shape}")
            return np.flatnonzero(array).astype(np.int64)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise RowError(
                f"rows must be row numbers, a slice or a mask, got {array.dtype} of shape {array.shape}; "
                "convert them with np.asarray(rows, dtype=np.int64)"
            )
        wrong = np.flatnonzero((array < -n) | (array >= n))
        if wrong.size:
            raise self._no_such_row(array[wrong[0]])
        numbers = array.astype(np.int64)
        return np.where(numbers < 0, numbers + n, numbers)

    def _no_such_row(self, row: Any) -> RowError:
        return RowError(f"row {row} is not in {self.path}, which has rows 0 to {len(self) - 1}")
