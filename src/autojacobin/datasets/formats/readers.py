"""``Vectors``, a file of vectors that is used like an array, mapped or decoded when it is read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.counts import as_count
from autojacobin.datasets.formats.source import Source, spooled
from autojacobin.errors import DataError, FormatError

_BYTES_PER_BLOCK = 2**24


class Vectors:
    """A file of vectors, opened by :func:`~autojacobin.datasets.open_vectors`; gives rows as NumPy arrays.

    Indexing works as with an array. ``numpy.asarray`` gives all rows as a read-only map of the file, so that whatever
    takes an array takes a ``Vectors``. Chunked HDF5 and Parquet are read slice by slice. For anything else than a row
    or a slice they are decoded once into an unnamed temporary file, which is mapped.

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
    names : list of str or None
        The word before each vector in a text file of word vectors; None in any other file.
    """

    ndim = 2
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    names: list[str] | None = None
    _closed = False

    def __init__(self, path: Path, format: str, array: npt.NDArray[Any]) -> None:
        self.path, self.format, self._array = path, format, array
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype

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
        return self._take(key)

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
        self._closed, self._array = True, np.empty((0, 0))

    def __enter__(self) -> Vectors:
        self._check_open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise DataError(f"the vectors of {self.path} are closed; open them again with open_vectors")

    def _rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._array[start:stop]

    def _take(self, key: Any) -> npt.NDArray[Any]:
        return np.asarray(self._whole()[key])

    def _whole(self) -> npt.NDArray[Any]:
        return self._array


class DecodedVectors(Vectors):
    """Rows that have to be decoded.

    For anything else than slices, all rows are decoded once into an unnamed temporary file, which is mapped. So they
    need not fit into memory.
    """

    def __init__(self, path: Path, format: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.path, self.format, self.shape, self.dtype = path, format, shape, dtype
        self._decoded: npt.NDArray[Any] | None = None
        self._lock = threading.RLock()  # the libraries do not support several threads in one file

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode rows from ``start`` to ``stop``."""
        raise NotImplementedError

    def _rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        with self._lock:
            return self._read(start, stop) if self._decoded is None else self._decoded[start:stop]

    def _whole(self) -> npt.NDArray[Any]:
        with self._lock:
            if self._decoded is None:
                spans = steps(self.shape[0], rows_per_block(self.shape[1], self.dtype))
                blocks = (np.ascontiguousarray(self._read(*span)) for span in spans)
                self._decoded = spooled(blocks, f"decode {self.path}").view(self.dtype).reshape(self.shape)
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
