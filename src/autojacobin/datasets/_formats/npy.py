"""NumPy's own files: npy."""

from __future__ import annotations

import io
import math
import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets._formats.outgoing import Matrix
from autojacobin.datasets._formats.reader import MappedReader, Reader
from autojacobin.datasets._formats.source import Source, clear_foreign_errors, damaged, open_source
from autojacobin.errors import FormatError

__all__ = ["MAGIC", "Header", "map_npy", "npy_header", "open_npy", "read_header", "write_npy"]

MAGIC = np.lib.format.MAGIC_PREFIX
_LARGEST_HEADER = 10_000  # as numpy.load has it: Python's parser, which reads it, may crash on a longer one
# NumPy reads the header by Python's own parser, which in Python 3.11 takes a sound one for a damaged one if another
# thread parses at the same time (python/cpython#106905).
_PARSING = threading.Lock()
_HEADER_LENGTH = 128

Header = tuple[tuple[int, ...], bool, np.dtype[Any], int]


def open_npy(source: Source, name: str = "npy") -> Reader:
    """Map an array, in the order and the byte order that it has."""
    shape, columns_first, dtype, start = read_header(source, name)
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise FormatError(
            f"{source.path} holds {_told(dtype)} of shape {shape}, expected a matrix of real numbers with a vector a "
            "row; reshape or convert the array, and save it again"
        )
    if min(shape) < 1:
        raise FormatError(f"{source.path} holds no vectors, got shape {shape}, expected at least one number")
    return MappedReader(_viewed(source, (shape, columns_first, dtype, start), name))


def map_npy(path: Path) -> np.memmap[Any, Any]:
    """Map an array of real numbers of any shape; of what ``numpy.load`` would stumble over, a FormatError is made."""
    source = open_source(path)
    shape, columns_first, dtype, start = header = read_header(source)
    if dtype.kind not in "biuf":
        raise FormatError(f"{path} holds {_told(dtype)}, expected real numbers; convert the array, and save it again")
    _viewed(source, header, "npy")
    return np.memmap(path, dtype, "r", start, shape, "F" if columns_first else "C")


def _viewed(source: Source, header: Header, name: str) -> npt.NDArray[Any]:
    shape, columns_first, dtype, start = header
    expected = math.prod(shape) * dtype.itemsize
    if len(source) - start != expected:
        what = f"{len(source) - start} bytes of data from byte {source.start + start} on"
        raise damaged(source.path, name, f"{what}, expected {expected} for {dtype} of shape {shape}")
    flat = source.content[start:].view(dtype)
    return flat.reshape(shape[::-1]).T if columns_first else flat.reshape(shape)


def read_header(source: Source, name: str = "npy") -> Header:
    """Give shape, whether columns come first, dtype and where the data begin."""
    head = source.head(12)
    if not head.startswith(MAGIC):
        raise damaged(source.path, name, f"{head[:6]!r} at byte {source.start}, expected {MAGIC!r}")
    if head[6:8] not in (b"\x01\x00", b"\x02\x00"):
        raise damaged(source.path, name, f"npy version {'.'.join(map(str, head[6:8]))}, expected 1.0 or 2.0")
    size = 2 * head[6]  # NumPy's reader would allocate whatever length stands there
    length = int.from_bytes(head[8 : 8 + size], "little")
    start = 8 + size + length
    if length > _LARGEST_HEADER or start > len(source):
        limit = min(_LARGEST_HEADER, len(source))
        raise damaged(source.path, name, f"a header of {length} bytes at byte {source.start + 8}, expected <= {limit}")
    stream = io.BytesIO(source.head(start))
    read = np.lib.format.read_array_header_1_0 if head[6] == 1 else np.lib.format.read_array_header_2_0
    with _PARSING, clear_foreign_errors(source.path, name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python 2's numbers, and of what mutated headers look like to Python
        np.lib.format.read_magic(stream)
        shape, columns_first, dtype = read(stream, max_header_size=_LARGEST_HEADER)
    if any(length < 0 for length in shape):
        raise damaged(source.path, name, f"shape {shape}, expected lengths of 0 or more")
    return tuple(map(int, shape)), bool(columns_first), dtype, start


def npy_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    """Give a header of a length that does not depend on the number of rows, so that it can be filled in later."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    length = _HEADER_LENGTH - len(MAGIC) - 4
    return MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def write_npy(stream: BinaryIO, matrix: Matrix) -> None:
    """Write the header and the numbers; the count of a stream of blocks is filled in at the end."""
    stream.write(npy_header(matrix.rows or 0, matrix.width, matrix.dtype))
    n = 0
    for block in matrix.blocks():
        n += len(block)
        stream.write(block.data)
    if matrix.rows is None:
        stream.seek(0)
        stream.write(npy_header(n, matrix.width, matrix.dtype))


def _told(dtype: np.dtype[Any]) -> str:
    return {"O": "Python objects", "U": "text", "S": "text", "V": "records"}.get(dtype.kind, str(dtype))
