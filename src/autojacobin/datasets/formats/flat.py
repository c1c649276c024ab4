"""Files of one binary matrix: npy, the fvecs, bvecs and ivecs of TEXMEX, the fbin, u8bin, i8bin and ibin of Big-ANN."""

from __future__ import annotations

import io
import struct
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.matrices import Matrix, Vectors
from autojacobin.datasets.formats.source import Source, clear_foreign_errors, damaged, open_source
from autojacobin.errors import DataError, FormatError

NPY_MAGIC = np.lib.format.MAGIC_PREFIX
HEAD_BYTES = 2**14  # enough for every header; NumPy refuses those of more than 10,000 bytes
LARGEST_DIMENSION = 2**20
# NumPy reads the header with Python's own parser. In Python 3.11 that may fail on a sound header if another thread
# parses at the same time (python/cpython#106905).
_PARSING = threading.Lock()
_DIMENSION = np.dtype("<i4")  # before each row of a TEXMEX file
_COUNTS = struct.Struct("<II")  # at the start of a Big-ANN file
_FEW_ROWS, _SAMPLE_ROWS = 2**14, 128  # of a TEXMEX file, whose dimensions are checked when it is opened


@dataclass(frozen=True)
class Layout:
    """Where the numbers of a file are.

    Row i begins at byte ``start + i * stride``, and its numbers ``lead`` bytes later. In a file with
    ``columns_first``, the numbers of the first column come first, and then those of the others.
    """

    rows: int
    width: int
    dtype: np.dtype[Any]
    start: int
    stride: int
    lead: int = 0
    columns_first: bool = False

    def view(self, content: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The matrix in the bytes of a file."""
        inside = content[self.start : self.start + self.rows * self.stride]
        if self.columns_first:
            return inside.view(self.dtype).reshape(self.width, self.rows).T
        return inside.reshape(self.rows, self.stride)[:, self.lead :].view(self.dtype)

    def dimensions(self, content: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """The dimension that is written before each row of a TEXMEX file."""
        inside = content[self.start : self.start + self.rows * self.stride].reshape(self.rows, self.stride)
        return inside[:, : self.lead].view(_DIMENSION)[:, 0]


ReadLayout = Callable[[bytes, int], Layout]
"""From the first bytes of a file and its size to its layout; a ValueError says what is wrong."""


def npy_layout(head: bytes, size: int) -> Layout:
    """Layout of a NumPy array that is a matrix of numbers."""
    stream = io.BytesIO(head)
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numbers of Python 2, and about damaged headers
        version = np.lib.format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"npy version {version}, expected 1.0 or 2.0")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, columns_first, dtype = read(stream)
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise ValueError(f"{dtype.name} of shape {shape}, expected a matrix of real numbers with one vector per row")
    start, (rows, width) = stream.tell(), map(int, shape)
    if min(rows, width) < 1:
        raise ValueError(f"no vectors in shape {shape}, expected at least one number")
    _check_size(size, start + rows * width * dtype.itemsize, rows, width)
    return Layout(rows, width, dtype, start, width * dtype.itemsize, columns_first=bool(columns_first))


def vecs_layout(head: bytes, size: int, dtype: np.dtype[Any]) -> Layout:
    """Layout of a TEXMEX file, which has its dimension before each row."""
    if size < _DIMENSION.itemsize:
        raise ValueError(f"{size} bytes, too few for the dimension of the first row")
    width = int.from_bytes(head[: _DIMENSION.itemsize], "little", signed=True)
    _check_dimension(width)
    stride = _DIMENSION.itemsize + width * dtype.itemsize
    rows, rest = divmod(size, stride)
    if rest or not rows:
        raise ValueError(f"{rest} bytes at the end, from byte {rows * stride} on, where a row has {stride}")
    return Layout(rows, width, dtype, 0, stride, _DIMENSION.itemsize)


def bigann_layout(head: bytes, size: int, dtype: np.dtype[Any]) -> Layout:
    """Layout of a Big-ANN file, which begins with the numbers of vectors and of dimensions."""
    if size < _COUNTS.size:
        raise ValueError(f"{size} bytes, too few for the header of {_COUNTS.size}")
    rows, width = _COUNTS.unpack_from(head)
    _check_dimension(width)
    if not rows:
        raise ValueError("no vectors by its header at byte 0, expected at least one")
    _check_size(size, _COUNTS.size + rows * width * dtype.itemsize, rows, width)
    return Layout(rows, width, dtype, _COUNTS.size, width * dtype.itemsize)


def _check_dimension(width: int) -> None:
    if not 1 <= width <= LARGEST_DIMENSION:
        raise ValueError(f"dimension {width} in its header, expected 1 to {LARGEST_DIMENSION}")


def _check_size(size: int, expected: int, rows: int, width: int) -> None:
    if size != expected:
        raise ValueError(f"{size} bytes, expected {expected} for the {rows} × {width} numbers of its header")


def open_flat(source: Source, name: str, read_layout: ReadLayout) -> Vectors:
    """Map the matrix of a file."""
    with clear_foreign_errors(source.path, name):
        layout = read_layout(source.head(HEAD_BYTES), len(source))
    if layout.lead:
        looked_at = layout.rows if layout.rows <= _FEW_ROWS else _SAMPLE_ROWS
        rows = np.linspace(0, layout.rows - 1, looked_at).astype(np.int64)
        check_dimensions(source.path, name, layout, rows, layout.dimensions(source.content)[rows])
    return Vectors(source.path, name, layout.view(source.content))


def check_dimensions(path: Any, name: str, layout: Layout, rows: Any, dimensions: npt.NDArray[Any]) -> None:
    """Raise a FormatError if one of the dimensions before these rows is not that of the first row."""
    wrong = np.flatnonzero(dimensions != layout.width)
    if len(wrong):
        row = int(rows[wrong[0]])
        what = f"dimension {dimensions[wrong[0]]} in row {row} at byte {row * layout.stride}"
        raise damaged(path, name, f"{what}, expected {layout.width} as in row 0")


def map_npy(path: Path) -> np.memmap[Any, Any]:
    """Map an array of any shape and type; a damaged file is a FormatError."""
    open_source(path)  # which reports a file that is missing or cannot be read
    with _PARSING, clear_foreign_errors(path, "npy"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.memmap):
        raise FormatError(f"{path} holds no array; write one there with numpy.save")
    return array


def npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Give a header that can be written again later: NumPy leaves room in it for any number of rows."""
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


def write_npy(stream: BinaryIO, matrix: Matrix) -> None:
    """Write the header and the numbers."""
    _write_counted(stream, matrix, lambda rows: npy_header((rows, matrix.width), matrix.dtype))


def write_bigann(stream: BinaryIO, matrix: Matrix) -> None:
    """Write the header and the numbers."""

    def header(rows: int) -> bytes:
        if rows >= 2**32:
            raise DataError("a big-ann file holds at most 4294967295 vectors, got more; write several files, or npy")
        return _COUNTS.pack(rows, matrix.width)

    _write_counted(stream, matrix, header)


def _write_counted(stream: BinaryIO, matrix: Matrix, header: Callable[[int], bytes]) -> None:
    """Write a header with the number of rows, which is filled in at the end of a stream of blocks."""
    stream.write(header(matrix.rows or 0))
    n = 0
    for block in matrix.blocks():
        n += len(block)
        stream.write(block.data)
    if matrix.rows is None:
        stream.seek(0)
        stream.write(header(n))


def write_vecs(stream: BinaryIO, matrix: Matrix) -> None:
    """Write rows with their dimensions."""
    row = np.dtype([("dimension", _DIMENSION), ("numbers", matrix.dtype, (matrix.width,))])
    for block in matrix.blocks():
        table = np.empty(len(block), dtype=row)
        table["dimension"] = matrix.width
        table["numbers"] = block
        stream.write(table.data)
