"""npz, NumPy's zip of npy files: what is stored plainly is mapped, what is deflated is unpacked once."""

from __future__ import annotations

import struct
import zipfile
from typing import BinaryIO

import numpy as np

from autojacobin.datasets._formats.npy import npy_header, open_npy, read_header
from autojacobin.datasets._formats.outgoing import Matrix
from autojacobin.datasets._formats.reader import Reader, chosen_part
from autojacobin.datasets._formats.source import DEFLATE_RATIO, Source, clear_foreign_errors, damaged, spooled
from autojacobin.errors import FormatError

__all__ = ["open_npz", "write_npz"]

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_BYTES_AT_A_TIME = 2**20


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
    """Write arrays plainly, so that they can be mapped."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for label, matrix in parts.items():
            counted = matrix.counted()
            # a ZipInfo of one's own has no time of the day in it: the same vectors give the same file
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
            raise _promised_too_much(source, info, name)
        return source.cut(start, start + info.file_size)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        what = f"the compression method {info.compress_type} in {info.filename!r}"
        raise damaged(source.path, name, f"{what}, expected 0 or 8, as numpy.savez and savez_compressed write")
    if info.compress_size > len(source) or info.file_size > DEFLATE_RATIO * info.compress_size + 1024:
        raise _promised_too_much(source, info, name)
    with archive.open(info) as member:
        if peek:
            return Source(source.path, np.frombuffer(member.read(2**17), dtype=np.uint8))
        return Source(source.path, spooled(iter(lambda: member.read(_BYTES_AT_A_TIME), b""), f"unpack {source.path}"))


def _data_start(source: Source, info: zipfile.ZipInfo, name: str) -> int:
    start = info.header_offset
    head = source.content[start : start + _LOCAL_HEADER.size].tobytes() if start >= 0 else b""
    if len(head) < _LOCAL_HEADER.size or not head.startswith(b"PK\x03\x04"):
        raise damaged(source.path, name, f"no member of a zip at byte {start}, where {info.filename!r} should be")
    _, name_length, extra_length = _LOCAL_HEADER.unpack(head)
    return int(start + _LOCAL_HEADER.size + name_length + extra_length)


def _promised_too_much(source: Source, info: zipfile.ZipInfo, name: str) -> FormatError:
    return damaged(
        source.path,
        name,
        f"{info.filename!r} of {info.file_size} bytes stored in {info.compress_size} at byte {info.header_offset}, "
        f"more than a file of {len(source)} bytes can hold",
    )
