"""fbin, u8bin, i8bin and ibin, the files of big-ann-benchmarks: count and dimension as uint32, then all numbers."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import numpy as np

from autojacobin.datasets._formats.outgoing import Matrix
from autojacobin.datasets._formats.reader import MappedReader, Reader
from autojacobin.datasets._formats.source import Source, damaged
from autojacobin.datasets._formats.vecs import LARGEST_DIMENSION
from autojacobin.errors import DataError

__all__ = ["open_bigann", "write_bigann"]

_HEADER = struct.Struct("<II")


def open_bigann(source: Source, dtype: np.dtype[Any], name: str) -> Reader:
    """Map a file whose size is the one that its header promises."""
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
    return MappedReader(source.content[_HEADER.size :].view(dtype).reshape(n, dimension))


def write_bigann(stream: BinaryIO, matrix: Matrix) -> None:
    """Write the header and the numbers; the count of a stream of blocks is filled in at the end."""
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
