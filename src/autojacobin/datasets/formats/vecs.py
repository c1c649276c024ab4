"""The formats fvecs, bvecs and ivecs of TEXMEX, and fbin, u8bin, i8bin and ibin of Big-ANN."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.source import Source, damaged
from autojacobin.datasets.formats.vectors import Reader, steps
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import DataError, FormatError

__all__ = ["LARGEST_DIMENSION", "open_bigann", "open_vecs", "write_bigann", "write_vecs"]

LARGEST_DIMENSION = 2**20
_HEAD = np.dtype("<i4")  # before each row of a TEXMEX file
_HEADER = struct.Struct("<II")  # at the start of a Big-ANN file
_SAMPLE_ROWS = 18
_ROWS_PER_CHECK = 2**16


def open_vecs(source: Source, dtype: np.dtype[Any], name: str) -> Reader:
    """Map a file after a check of its size and of some of its rows."""
    if len(source) < _HEAD.itemsize:
        raise damaged(source.path, name, f"{len(source)} bytes, too few for the dimension of the first row")
    dimension = int.from_bytes(source.head(_HEAD.itemsize), "little", signed=True)
    if not 1 <= dimension <= LARGEST_DIMENSION:
        raise damaged(source.path, name, f"dimension {dimension} at byte 0, expected 1 to {LARGEST_DIMENSION}")
    stride = _HEAD.itemsize + dimension * dtype.itemsize
    n, rest = divmod(len(source), stride)
    if n:
        table = source.content[: n * stride].reshape(n, stride)
        reader = _VecsReader(source, table, dtype, name)
        reader.check_sample()
        if not rest:
            return reader
    raise damaged(
        source.path,
        name,
        f"{rest} bytes at the end, from byte {n * stride} on, where row {n} should have {stride} "
        f"(4 for its dimension, {dimension} numbers of {dtype.itemsize}): the file was cut off",
    )


class _VecsReader(Reader):
    """A strided view of the file without the dimensions; the dimension of a row is checked before it is used."""

    def __init__(self, source: Source, table: npt.NDArray[np.uint8], dtype: np.dtype[Any], name: str) -> None:
        super().__init__(table[:, _HEAD.itemsize :].view(dtype))
        self._source, self._name, self._stride = source, name, table.shape[1]
        self._heads = table[:, : _HEAD.itemsize].view(_HEAD)[:, 0]
        self._all_checked = False

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        self._check(slice(start, stop))
        return super().rows(start, stop)

    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        self._check(ids)
        return super().take(ids)

    def whole(self) -> npt.NDArray[Any]:
        for start, stop in steps(self.shape[0], _ROWS_PER_CHECK):
            self._check(slice(start, stop))
        self._all_checked = True
        return super().whole()

    def check_sample(self) -> None:
        """Check the first, the last and some rows between; all rows of a large file would take too long."""
        self._check(np.linspace(0, self.shape[0] - 1, _SAMPLE_ROWS).astype(np.int64))

    def _check(self, rows: Any) -> None:
        if self._all_checked:
            return
        wrong = np.flatnonzero(self._heads[rows] != self.shape[1])
        if len(wrong):
            raise self._wrong_dimension(rows.start + int(wrong[0]) if isinstance(rows, slice) else int(rows[wrong[0]]))

    def _wrong_dimension(self, row: int) -> FormatError:
        return damaged(
            self._source.path,
            self._name,
            f"dimension {int(self._heads[row])} in row {row} at byte {row * self._stride}, "
            f"expected {self.shape[1]} as in row 0",
        )


def write_vecs(stream: BinaryIO, matrix: Matrix) -> None:
    """Write rows with their dimensions."""
    row = np.dtype([("dimension", _HEAD), ("numbers", matrix.dtype, (matrix.width,))])
    for block in matrix.blocks():
        table = np.empty(len(block), dtype=row)
        table["dimension"] = matrix.width
        table["numbers"] = block
        stream.write(table.data)


def open_bigann(source: Source, dtype: np.dtype[Any], name: str) -> Reader:
    """Map a file after a check that its size agrees with its header."""
    if len(source) < _HEADER.size:
        raise damaged(source.path, name, f"{len(source)} bytes, too few for the header of {_HEADER.size}")
    n, dimension = _HEADER.unpack(source.head(_HEADER.size))
    if not n or not 1 <= dimension <= LARGEST_DIMENSION:
        raise damaged(
            source.path,
            name,
            f"{n} vectors of dimension {dimension} in the header at byte 0, expected at least 1 vector of dimension "
            f"1 to {LARGEST_DIMENSION}",
        )
    expected = _HEADER.size + n * dimension * dtype.itemsize
    if len(source) != expected:
        row = (len(source) - _HEADER.size) // (dimension * dtype.itemsize)
        what = f"which break off in row {row}" if len(source) < expected else f"too many from byte {expected} on"
        raise damaged(
            source.path,
            name,
            f"{len(source)} bytes, {what}, expected {expected} for the {n} vectors of dimension {dimension} "
            "in its header",
        )
    return Reader(source.content[_HEADER.size :].view(dtype).reshape(n, dimension))


def write_bigann(stream: BinaryIO, matrix: Matrix) -> None:
    """Write the header and the numbers; the number of rows of a stream is filled in at the end."""
    stream.write(_HEADER.pack(matrix.rows or 0, matrix.width))
    n = 0
    for block in matrix.blocks():
        n += len(block)
        if n >= 2**32:
            raise DataError("a big-ann file holds at most 4294967295 vectors, got more; write several files, or npy")
        stream.write(block.data)
    if matrix.rows is None:
        stream.seek(0)
        stream.write(_HEADER.pack(n, matrix.width))
