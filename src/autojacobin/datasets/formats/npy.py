"""NumPy's formats npy and npz."""

from __future__ import annotations

import io
import math
import struct
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.datasets.formats.source import (
    DEFLATE_RATIO,
    Source,
    clear_foreign_errors,
    damaged,
    open_source,
    spooled,
)
from autojacobin.datasets.formats.vectors import Reader, chosen_part
from autojacobin.datasets.formats.writing import Matrix
from autojacobin.errors import FormatError

__all__ = ["MAGIC", "Header", "map_npy", "npy_header", "open_npy", "open_npz", "read_header", "write_npy", "write_npz"]

MAGIC = np.lib.format.MAGIC_PREFIX
_LARGEST_HEADER = 10_000  # as in numpy.load: Python's parser may crash on a longer one
# NumPy reads the header with Python's own parser. In Python 3.11 that may fail on a sound header if another thread
# parses at the same time (python/cpython#106905).
_PARSING = threading.Lock()
_HEADER_LENGTH = 128
_ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")
_BYTES_PER_READ = 2**20

Header = tuple[tuple[int, ...], bool, np.dtype[Any], int]


def open_npy(source: Source, name: str = "npy") -> Reader:
    """Map an array in its own order of axes and bytes."""
    shape, columns_first, dtype, start = read_header(source, name)
    if len(shape) != 2 or dtype.kind not in "biuf":
        raise FormatError(
            f"{source.path} holds {_kind_of(dtype)} of shape {shape}, expected a matrix of real numbers with one "
            "vector per row; reshape or convert the array, and save it again"
        )
    if min(shape) < 1:
        raise FormatError(f"{source.path} holds no vectors, got shape {shape}, expected at least one number")
    return Reader(_viewed(source, (shape, columns_first, dtype, start), name))


def map_npy(path: Path) -> np.memmap[Any, Any]:
    """Map an array of real numbers of any shape; a damaged file is a FormatError."""
    source = open_source(path)
    shape, columns_first, dtype, start = header = read_header(source)
    if dtype.kind not in "biuf":
        raise FormatError(
            f"{path} holds {_kind_of(dtype)}, expected real numbers; convert the array, and save it again"
        )
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
    size = 2 * head[6]  # NumPy's reader would allocate any length that is written there
    length = int.from_bytes(head[8 : 8 + size], "little")
    start = 8 + size + length
    if length > _LARGEST_HEADER or start > len(source):
        limit = min(_LARGEST_HEADER, len(source))
        raise damaged(source.path, name, f"a header of {length} bytes at byte {source.start + 8}, expected <= {limit}")
    stream = io.BytesIO(source.head(start))
    read = np.lib.format.read_array_header_1_0 if head[6] == 1 else np.lib.format.read_array_header_2_0
    with _PARSING, clear_foreign_errors(source.path, name), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about numbers of Python 2, and about damaged headers
        np.lib.format.read_magic(stream)
        shape, columns_first, dtype = read(stream, max_header_size=_LARGEST_HEADER)
    if any(length < 0 for length in shape):
        raise damaged(source.path, name, f"shape {shape}, expected lengths of 0 or more")
    return tuple(map(int, shape)), bool(columns_first), dtype, start


def npy_header(rows: int, width: int, dtype: np.dtype[Any]) -> bytes:
    """Give a header whose length does not depend on the number of rows, so that it can be written again later."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    length = _HEADER_LENGTH - len(MAGIC) - 4
    return MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def write_npy(stream: BinaryIO, matrix: Matrix) -> None:
    """Write the header and the numbers; the number of rows of a stream is filled in at the end."""
    stream.write(npy_header(matrix.rows or 0, matrix.width, matrix.dtype))
    n = 0
    for block in matrix.blocks():
        n += len(block)
        stream.write(block.data)
    if matrix.rows is None:
        stream.seek(0)
        stream.write(npy_header(n, matrix.width, matrix.dtype))


def _kind_of(dtype: np.dtype[Any]) -> str:
    return {"O": "Python objects", "U": "text", "S": "text", "V": "records"}.get(dtype.kind, str(dtype))


def open_npz(source: Source, part: str | None, name: str = "npz") -> Reader:
    """Open one array of the archive."""
    with clear_foreign_errors(source.path, name), zipfile.ZipFile(source.path) as archive:
        arrays = (info for info in archive.infolist() if info.filename.endswith(".npy"))
        members = {info.filename.removesuffix(".npy"): info for info in arrays}
        if part in members:
            return open_npy(_member(source, archive, members[part], name), name)
        matrices = {}
        for label, info in members.items():
            shape, _, dtype, _ = read_header(_member(source, archive, info, name, peek=True), name)
            if len(shape) == 2 and dtype.kind in "biuf":
                matrices[label] = f"{dtype}, {shape[0]} × {shape[1]}"
        chosen = chosen_part(source, part, matrices, "array")
        return open_npy(_member(source, archive, members[chosen], name), name)


def write_npz(stream: BinaryIO, parts: dict[str, Matrix]) -> None:
    """Write arrays without compression, so that they can be mapped."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for label, matrix in parts.items():
            counted = matrix.counted()
            # a ZipInfo without a time: the same vectors give the same file
            with archive.open(zipfile.ZipInfo(f"{label}.npy"), "w", force_zip64=True) as member:
                member.write(npy_header(counted.rows or 0, counted.width, counted.dtype))
                for block in counted.blocks():
                    member.write(block.data)


def _member(
    source: Source, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, *, peek: bool = False
) -> Source:
    """Give the bytes of a member, or with ``peek`` enough of them for the header of its array."""
    if info.flag_bits & 1:
        raise FormatError(f"{source.path} is encrypted, expected a plain npz file; unpack it with its password first")
    if info.compress_type == zipfile.ZIP_STORED:
        start = _data_start(source, info, name)
        if info.compress_size != info.file_size or start + info.file_size > len(source):
            raise _too_large(source, info, name)
        return source.cut(start, start + info.file_size)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        what = f"the compression method {info.compress_type} in {info.filename!r}"
        raise damaged(source.path, name, f"{what}, expected 0 or 8, as numpy.savez and savez_compressed write")
    if info.compress_size > len(source) or info.file_size > DEFLATE_RATIO * info.compress_size + 1024:
        raise _too_large(source, info, name)
    with archive.open(info) as member:
        if peek:
            return Source(source.path, np.frombuffer(member.read(2**17), dtype=np.uint8))
        return Source(source.path, spooled(iter(lambda: member.read(_BYTES_PER_READ), b""), f"unpack {source.path}"))


def _data_start(source: Source, info: zipfile.ZipInfo, name: str) -> int:
    start = info.header_offset
    head = source.content[start : start + _ZIP_LOCAL_HEADER.size].tobytes() if start >= 0 else b""
    if len(head) < _ZIP_LOCAL_HEADER.size or not head.startswith(b"PK\x03\x04"):
        raise damaged(source.path, name, f"no member of a zip at byte {start}, where {info.filename!r} should be")
    _, name_length, extra_length = _ZIP_LOCAL_HEADER.unpack(head)
    return int(start + _ZIP_LOCAL_HEADER.size + name_length + extra_length)


def _too_large(source: Source, info: zipfile.ZipInfo, name: str) -> FormatError:
    return damaged(
        source.path,
        name,
        f"{info.filename!r} of {info.file_size} bytes stored in {info.compress_size} at byte {info.header_offset}, "
        f"more than a file of {len(source)} bytes can hold",
    )
