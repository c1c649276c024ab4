"""``Vectors``, a file of vectors that is used like an array, and ``Matrix``, vectors that are checked to be written."""

from __future__ import annotations

import itertools
import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import adopt, to_host
from autojacobin.core.counts import as_count
from autojacobin.core.vectors import why_no_array
from autojacobin.datasets.formats.source import Source, spooled
from autojacobin.errors import DataError, DataTypeError, FormatError

_BYTES_PER_BLOCK = 2**24
_EXACT_INTEGERS = 2**53  # up to here float64 holds every whole number


class Vectors:
    """A file of vectors, opened by :func:`~autojacobin.datasets.open_vectors`; gives rows as NumPy arrays.

    Indexing works as with an array. ``numpy.asarray`` gives all rows as a read-only map of the file, so that whatever
    takes an array takes a ``Vectors``. Chunked HDF5 and Parquet are read slice by slice. For anything else than a row
    or a slice they are decoded once into an unnamed temporary file, which is mapped.

    Arrays that were returned stay valid after :meth:`close`. No other program may shorten the file while it is open:
    that is a FormatError when rows are read next, but the end of a program that reads an array which it was given
    before. ``write_vectors`` replaces files as a whole, which is safe.

    Attributes
    ----------
    path : Path
    format : str
        Name of the format, such as ``"fvecs"``.
    shape : tuple of int
        Number of vectors and their dimension.
    dtype : numpy.dtype
    names : list of str or None
        The word before each vector in a text file of word vectors; None in any other file.
    """

    ndim = 2
    names: list[str] | None = None
    _closed = False

    def __init__(self, path: Path, format: str, rows: Any) -> None:
        # an array, or what has a shape and a dtype, decodes slices of rows, and can be closed
        self.path, self.format, self._source = path, format, rows
        self.shape, self.dtype = (int(rows.shape[0]), int(rows.shape[1])), rows.dtype
        self._array = rows if isinstance(rows, np.ndarray) else None
        self._map = _map_of(self._array)
        self._lock = threading.RLock()  # the libraries that decode do not support several threads in one file

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        n, dimension = self.shape
        return f"Vectors({n} × {dimension} {self.dtype}, {self.format} file {self.path})"

    def __getitem__(self, key: Any) -> Any:
        self._check_open()
        if isinstance(key, int | np.integer):
            row = range(len(self))[key]
            return self._rows(row, row + 1)[0]
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return self._rows(start, max(start, stop))
        return self._whole()[key]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for block in self.blocks():
            yield from block

    def blocks(self, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
        """Walk over all vectors in blocks of ``rows`` rows, by default of some megabytes; the last may be shorter."""
        step = rows_per_block(self.shape[1], self.dtype) if rows is None else as_count("rows", rows)
        return (self[start:stop] for start, stop in steps(len(self), step))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        self._check_open()
        return np.array(self._whole(), dtype=dtype, copy=copy)

    def close(self) -> None:
        """Close the file; arrays that were returned stay valid."""
        with self._lock:
            if not isinstance(self._source, np.ndarray):
                self._source.close()
            self._closed, self._source, self._array = True, np.empty((0, 0)), None

    def __enter__(self) -> Vectors:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DataError(f"the vectors of {self.path} are closed; open them again with open_vectors")

    def _rows(self, start: int, stop: int) -> Any:
        with self._lock:
            self._check_size()
            return (self._source if self._array is None else self._array)[start:stop]

    def _whole(self) -> npt.NDArray[Any]:
        with self._lock:
            if self._array is None:
                spans = steps(self.shape[0], rows_per_block(self.shape[1], self.dtype))
                blocks = (np.ascontiguousarray(self._rows(*span)) for span in spans)
                self._array = spooled(blocks, f"decode {self.path}").view(self.dtype).reshape(self.shape)
            self._check_size()
            return self._array

    def _check_size(self) -> None:
        """Raise a FormatError if the file was shortened: the system ends a process that reads the missing part."""
        if self._map is not None and (size := self._map.size()) < len(self._map):
            raise FormatError(
                f"{self.path} was shortened while it was open, to {size:,} of {len(self._map):,} bytes; read it again "
                "when it is complete, and replace files by renaming, as write_vectors does"
            )


def _map_of(array: Any) -> mmap.mmap | None:
    """The map of a file that an array is a view of."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array if isinstance(array, mmap.mmap) else None


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


class Matrix:
    """Rows of one width and one little-endian type; ``rows`` is None for a stream of blocks, which has no known end."""

    def __init__(self, width: int, dtype: np.dtype[Any], rows: int | None, make: Callable[[], Iterator[Any]]) -> None:
        self.width, self.dtype, self.rows, self._make = width, dtype, rows, make

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Give contiguous blocks of the type; a number that does not fit it is an error that names its row."""
        row = 0
        for block in self._make():
            array = _as_block(block)
            if array.shape[1] != self.width:
                raise DataError(
                    f"all vectors must have one dimension, got {array.shape[1]} from row {row} on and {self.width} "
                    "before; write them to files of their own"
                )
            for start, stop in steps(len(array), rows_per_block(self.width, self.dtype)):
                yield _fitted(array[start:stop], self.dtype, row + start)
            row += len(array)

    def counted(self) -> Matrix:
        """Give the matrix with a known number of rows; a stream is written to a temporary file for that."""
        if self.rows is not None:
            return self
        rows = spooled(self.blocks(), "keep a stream of vectors").view(self.dtype).reshape(-1, self.width)
        return Matrix(self.width, self.dtype, len(rows), lambda: iter((rows,)))


def outgoing(vectors: Any, dtype: np.dtype[Any] | None) -> Matrix:
    """Convert what the caller wants to write: an array, ``Vectors``, or an iterator of blocks."""
    if isinstance(vectors, Iterator):
        first = next((array for array in map(_as_block, vectors) if len(array)), None)
        if first is None:
            raise DataError("there are no vectors to write, got an iterator without a block; pass at least one vector")
        blocks = itertools.chain((first,), vectors)
        return Matrix(first.shape[1], dtype or _storable(first.dtype), None, lambda: blocks)
    held = vectors if isinstance(vectors, Vectors) else _as_block(vectors)
    if not len(held):
        raise DataError(f"there are no vectors to write, got shape {held.shape}; pass at least one vector")
    make = held.blocks if isinstance(held, Vectors) else lambda: iter((held,))
    return Matrix(held.shape[1], dtype or _storable(held.dtype), len(held), make)


def _as_block(block: Any) -> npt.NDArray[Any]:
    advice = "pass a matrix of real numbers with one vector per row"
    if hasattr(block, "toarray"):
        raise DataTypeError(f"vectors must be dense, got a sparse {type(block).__name__}; pass X.toarray()")
    try:
        array = np.asarray(to_host(adopt(block)))
    except (ValueError, TypeError) as error:
        raise DataTypeError(f"the argument vectors {why_no_array(block, error)}; {advice}") from error
    if array.dtype.kind not in "biuf":
        raise DataTypeError(f"vectors must be numbers, got {array.dtype}; {advice}")
    if array.ndim != 2 or not array.shape[1]:
        raise DataError(f"vectors must be a matrix with one vector per row, got shape {array.shape}; {advice}")
    return array


def _storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Make a type little-endian, and a long double, which other machines do not have, a double."""
    return np.dtype("<f8") if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("<")


def _fitted(block: npt.NDArray[Any], target: np.dtype[Any], first_row: int) -> npt.NDArray[Any]:
    """Convert a block; floats may be rounded to shorter floats, and no other number may change."""
    with np.errstate(all="ignore"):  # what cannot be converted is reported below
        converted = np.ascontiguousarray(block, dtype=target)
        kinds = block.dtype.kind, target.kind
        # NumPy says that 64-bit integers fit into a float64, which rounds those beyond 2^53
        rounds = kinds[1] == "f" and kinds[0] in "iu" and block.dtype.itemsize == 8
        if np.can_cast(block.dtype, target, "safe") and not rounds:
            return converted
        if kinds == ("f", "f"):
            wrong = np.isinf(converted) & np.isfinite(block)
        elif kinds[1] == "f":
            wide = block.astype(np.float64)
            wrong = (converted.astype(np.float64) != wide) | (block > _EXACT_INTEGERS) | (wide < -_EXACT_INTEGERS)
        else:
            wrong = (converted.astype(block.dtype) != block) | ((converted < 0) != (block < 0)) | (block >= 2.0**64)
            wrong |= (block >= 2.0**63) & (target == np.int64)
    if wrong.any():
        row, column = divmod(int(wrong.argmax()), block.shape[1])
        raise DataError(
            f"row {first_row + row}, column {column} holds {block[row, column]}, which cannot be stored as "
            f"{target.name}, so nothing was written; round or scale the vectors first, or choose a format for such "
            "numbers, as npy is for all"
        )
    return converted
