"""Arrays in files: a header, the array itself, and a checksum for each block of it.

``docs/index-format.md`` describes the format. A block is compared with its checksum once, when it is first read.
Blocks are small, so a search that reads a few vectors checks little else.
"""

from __future__ import annotations

import math
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.core.arrays import empty_aligned
from autojacobin.index.folder import Folder, clear_os_errors
from autojacobin.index.manifest import FORMAT_VERSION, ArrayFile, damaged, new_name, other_format

BLOCK_BYTES = 2**14
_MAGIC = b"\x89AJBin\r\n"
_HEADER_BYTES = 4096  # a page, so that the array can be memory-mapped
_FIELDS = struct.Struct("<8sI8s8sI4QQ")  # magic, version, kind, dtype, dimensions, lengths, checksum
_LABEL = struct.Struct("<8sqQI")  # segment, first id, codes, bits; directly after the fields
_SUM = struct.Struct("<Q")  # the last bytes of the page
_DTYPES = {np.dtype(code).str.encode(): np.dtype(code) for code in "BHIQbhiqefd"}  # little-endian numbers
READ_AT_ONCE = 2**15  # bytes; larger files are mapped
_COPIED_AT_ONCE = 2**25
_READ_BY_KERNELS = ("codes", "blocks", "offsets", "bounds", "order")

Problem = Callable[[npt.NDArray[Any]], str | None]


@dataclass(frozen=True)
class SegmentLabel:
    """Which segment a file belongs to. ``repair`` reads it when the manifest is lost."""

    segment: bytes
    first_id: int | None
    n: int
    n_bits: int

    @classmethod
    def new(cls, first_id: int | None, n: int, n_bits: int) -> SegmentLabel:
        """Label the files of a new segment."""
        return cls(secrets.token_bytes(8), first_id, n, n_bits)


class CheckedArray:
    """An array, each block of which is compared with its checksum before it is first used, by any number of threads.

    ``array`` is unchecked: call a method before you read it. ``problem`` returns what is wrong with the whole array.
    """

    def __init__(
        self, array: npt.NDArray[Any], file: ArrayFile | None = None, label: SegmentLabel | None = None,
        path: Path = Path(), checksums: Any = (), check: bool = True, problem: Problem | None = None,
    ) -> None:  # fmt: skip
        self.array, self.file, self.label = array, file, label
        self.path, self._checksums, self._problem = path, np.asarray(checksums, dtype=np.uint64), problem
        self._checked = np.full(len(checksums), not check)
        self._all_checked = problem is None and bool(self._checked.all())

    def check(self) -> npt.NDArray[Any]:
        """Check what was not checked before, and return the array."""
        if not self._all_checked:
            self._check_blocks(np.flatnonzero(~self._checked))
            self._check_problem()
            self._all_checked = True
        return self.array

    def pending(self) -> tuple[npt.NDArray[np.bool_] | None, int, Callable[[npt.NDArray[Any]], None] | None]:
        """Which blocks were compared, the bytes of a block, and what compares rows; None if nothing is left to do."""
        if self._all_checked or not self.array.size:
            return None, 1, None
        return self._checked, BLOCK_BYTES, self.check_rows

    def check_rows(self, rows: npt.NDArray[Any]) -> None:
        """Check the blocks with some rows, none of which is beyond the array."""
        if self._all_checked or not self.array.size:
            return
        row_bytes = self.array.nbytes // len(self.array)
        starts = rows.ravel().astype(np.int64) * row_bytes  # row numbers in 32 bits would overflow
        first = starts // BLOCK_BYTES
        last = (starts + row_bytes - 1) // BLOCK_BYTES
        most_between = int((last - first).max(initial=0))
        if most_between > 1 or not (self._checked[first].all() and self._checked[last].all()):
            blocks = np.unique(np.concatenate([first + step for step in range(most_between + 1)]))
            blocks = blocks[blocks < len(self._checked)]
            self._check_blocks(blocks[~self._checked[blocks]])
            self._all_checked = self._problem is None and bool(self._checked.all())

    def verify(self, folder: Folder | None = None) -> None:
        """Check everything, also what was checked before: as it is mapped, or as it is in the file of a folder."""
        if folder is None:
            self._check_blocks(np.arange(len(self._checksums)))
        elif not all(whole for _, _, whole in self.blocks_of_file(folder)):
            raise damaged(self.path, "content that does not match its checksum or cannot be read")
        self._check_problem()

    def blocks_of_file(self, folder: Folder) -> Iterator[tuple[slice, BinaryIO, bool]]:
        """Yield each block of the file: its bytes in the array, the stream at its start, and whether it is intact."""
        if self.file is None or not len(self._checksums):
            return
        with folder.open(self.file.name) as stream:  # not mapped: a block that cannot be read would end the process
            for start, checksum in zip(range(0, self.array.nbytes, BLOCK_BYTES), self._checksums, strict=True):
                place, digest = slice(start, min(start + BLOCK_BYTES, self.array.nbytes)), xxhash.xxh64()
                with suppress(OSError):
                    stream.seek(_HEADER_BYTES + start)
                    digest.update(stream.read(place.stop - start))
                stream.seek(_HEADER_BYTES + start)
                yield place, stream, digest.intdigest() == checksum

    def _check_blocks(self, blocks: npt.NDArray[np.int64]) -> None:
        content, size = self.array.reshape(-1).view(np.uint8).data, BLOCK_BYTES
        hashes = (xxhash.xxh64_intdigest(content[start : start + size]) for start in (blocks * size).tolist())
        whole = np.fromiter(hashes, np.uint64, len(blocks)) == self._checksums[blocks]
        self._checked[blocks[whole]] = True
        if not whole.all():
            raise damaged(self.path, "content that does not match its checksum")

    def _check_problem(self) -> None:
        found = None if self._problem is None else self._problem(self.array)
        if found is not None:
            raise damaged(self.path, found)


def start_array(
    folder: Folder | None, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()
) -> _MemoryWriter | _FileWriter:
    """Begin an array in a new file of a folder, or in memory."""
    return _MemoryWriter() if folder is None else _FileWriter(folder, kind, np.dtype(dtype), row_shape)


def write_array(folder: Folder | None, kind: str, array: npt.NDArray[Any], label: SegmentLabel) -> CheckedArray:
    """Write a whole array to a new file of a folder, or copy it into memory."""
    writer = start_array(folder, kind, array.dtype, array.shape[1:])
    step = max(1, _COPIED_AT_ONCE // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        writer.append(array[start : start + step])
    return writer.finish(label)


class _MemoryWriter:
    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    def append(self, rows: npt.NDArray[Any]) -> None:
        self._parts.append(np.array(rows))  # a copy: the caller may reuse a buffer

    def finish(self, label: SegmentLabel) -> CheckedArray:  # noqa: ARG002
        """Join the parts at the start of a cache line, so that a vector of 128 bytes spans two lines and not three."""
        first = self._parts[0]
        whole = empty_aligned((sum(map(len, self._parts)), *first.shape[1:]), first.dtype)
        return CheckedArray(np.concatenate(self._parts, out=whole))


class _FileWriter:
    """Streams rows into a new file. One descriptor stays open until the sync, so that no write error is forgotten."""

    _descriptor: int | None = None

    def __init__(self, folder: Folder, kind: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self._folder, self._kind, self._dtype, self._row_shape = folder, kind, dtype, row_shape
        self._name = new_name(kind)
        self._checksums: list[int] = []
        self._digest, self._hashed = xxhash.xxh64(), 0  # of the block that is not complete, and its bytes so far
        self._rows = 0
        self._end = _HEADER_BYTES
        with clear_os_errors(folder.path, "write to"):
            self._descriptor = folder.create(self._name)

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Append rows."""
        content = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8).data
        self._hash(content)
        self._write(content, self._end)
        self._end += len(content)
        self._rows += len(rows)

    def finish(self, label: SegmentLabel) -> CheckedArray:
        """Write checksums and header, flush the file to disk, and map the array."""
        shape = (self._rows, *self._row_shape)
        if self._hashed:
            self._checksums.append(self._digest.intdigest())
        checksums = np.array(self._checksums, dtype="<u8")
        self._write(memoryview(checksums.tobytes()), self._end)
        header = _header(self._kind, self._dtype, shape, xxhash.xxh64_intdigest(checksums.tobytes()), label)
        self._write(memoryview(header), 0)
        with clear_os_errors(self._folder.path, "write to"):
            assert self._descriptor is not None
            self._folder.sync(self._descriptor)
            self._close()
            file = ArrayFile(self._name, self._end + checksums.nbytes, f"{_SUM.unpack(header[-_SUM.size :])[0]:016x}")
            return open_array(self._folder, file, self._kind, shape, self._dtype, check=False)

    def _hash(self, content: memoryview) -> None:
        while len(content):
            part = content[: BLOCK_BYTES - self._hashed]
            self._digest.update(part)
            self._hashed, content = self._hashed + len(part), content[len(part) :]
            if self._hashed == BLOCK_BYTES:
                self._checksums.append(self._digest.intdigest())
                self._digest, self._hashed = xxhash.xxh64(), 0

    def _write(self, content: memoryview, offset: int) -> None:
        with clear_os_errors(self._folder.path, "write to"):
            assert self._descriptor is not None
            self._folder.write(self._descriptor, content, offset)

    def _close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def __del__(self) -> None:
        self._close()


def open_array(
    folder: Folder, file: ArrayFile, kind: str, shape: tuple[int | None, ...], dtype: npt.DTypeLike | None = None,
    *, check: bool = True, problem: Problem | None = None,
) -> CheckedArray:  # fmt: skip
    """Map an array after a check of its header, its size and its checksums; None in a shape allows any length."""
    path = folder.path / file.name
    with folder.open(file.name) as stream:
        header = _read_header(stream.read(_HEADER_BYTES), path, file, kind)
        pairs = zip(shape, header.shape, strict=False)
        fits = len(shape) == len(header.shape) and all(length in (None, found) for length, found in pairs)
        if not fits or (dtype is not None and header.dtype != np.dtype(dtype)):
            raise damaged(path, f"{header.dtype} of shape {header.shape}, expected shape {shape}")
        size, expected = os.fstat(stream.fileno()).st_size, _HEADER_BYTES + header.n_bytes + 8 * header.n_blocks
        if size != file.size or size != expected:
            raise damaged(path, f"{size} bytes, expected {expected} by its header and {file.size} by the manifest")
        # copy-on-write where kernels read, which are compiled for writable arrays
        array, checksums = _content(stream, header, writable=kind in _READ_BY_KERNELS)
        if xxhash.xxh64_intdigest(checksums.data) != header.digest:
            raise damaged(path, "a table of checksums that does not match its own checksum")
    return CheckedArray(array, file, header.label, path, checksums, check, problem)


def salvage_array(
    folder: Folder, file: ArrayFile, kind: str, shape: tuple[int, ...], dtype: npt.DTypeLike | None
) -> CheckedArray:
    """Map an array whose header or table of checksums is damaged, unless it is another one or has lost a part."""
    path = folder.path / file.name
    with folder.open(file.name) as stream:
        page, size = stream.read(_HEADER_BYTES), os.fstat(stream.fileno()).st_size
        page_is_whole = xxhash.xxh64_intdigest(page[: -_SUM.size]).to_bytes(_SUM.size, "little") == page[-_SUM.size :]
        if page_is_whole:
            _read_header(page, path, file, kind)  # refuses another file
        dtype_name = _FIELDS.unpack_from(page.ljust(_HEADER_BYTES, b"\0"))[3]
        found = np.dtype(dtype) if dtype is not None else _DTYPES.get(dtype_name.rstrip(b"\0"))
        if found is None:
            raise damaged(path, "a header that cannot be read")
        header = _Header(found, shape, 0, SegmentLabel(b"", None, 0, 0))
        if size < _HEADER_BYTES + header.n_bytes:
            raise damaged(path, f"{size} bytes, which is less than its array has")
        array, checksums = _content(stream, header, writable=False)
    return CheckedArray(array, file, None, path, checksums)


def _content(stream: BinaryIO, header: _Header, *, writable: bool) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The array of a file, and the checksums of its blocks, zero where they are missing."""
    stream.seek(_HEADER_BYTES + header.n_bytes)
    table = stream.read(8 * header.n_blocks).ljust(8 * header.n_blocks, b"\0")
    checksums = np.frombuffer(table, dtype="<u8")
    if header.n_bytes <= READ_AT_ONCE:  # each map keeps a descriptor, and processes have a limit on these
        array = empty_aligned(header.shape, header.dtype)
        stream.seek(_HEADER_BYTES)
        content = np.frombuffer(stream.read(header.n_bytes), dtype=np.uint8)
        if len(content) != header.n_bytes:
            raise damaged(Path(stream.name), "fewer bytes than a moment ago")
        array.reshape(-1).view(np.uint8)[:] = content
        array.flags.writeable = writable
        return array, checksums
    mode: Any = "c" if writable else "r"
    mapped = np.memmap(stream, dtype=header.dtype, mode=mode, offset=_HEADER_BYTES, shape=header.shape)
    return np.asarray(mapped), checksums


def read_label(folder: Folder, name: str) -> tuple[SegmentLabel, ArrayFile]:
    """Read which segment an array belongs to that no manifest names."""
    with folder.open(name) as stream:
        page, size = stream.read(_HEADER_BYTES), os.fstat(stream.fileno()).st_size
    file = ArrayFile(name, size, page[-_SUM.size :][::-1].hex())
    return _read_header(page, folder.path / name, file, name.split("-")[0]).label, file


@dataclass(frozen=True)
class _Header:
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    digest: int
    label: SegmentLabel

    @property
    def n_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def n_blocks(self) -> int:
        return -(-self.n_bytes // BLOCK_BYTES)


def _header(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...], digest: int, label: SegmentLabel) -> bytes:
    lengths = (*shape, 0, 0, 0, 0)[:4]
    fields = _FIELDS.pack(_MAGIC, FORMAT_VERSION, kind.encode(), dtype.str.encode(), len(shape), *lengths, digest)
    first_id = -1 if label.first_id is None else label.first_id
    fields += _LABEL.pack(label.segment, first_id, label.n, label.n_bits)
    page = fields.ljust(_HEADER_BYTES - _SUM.size, b"\0")
    return page + _SUM.pack(xxhash.xxh64_intdigest(page))


def _read_header(page: bytes, path: Path, file: ArrayFile, kind: str) -> _Header:
    if not page.startswith(_MAGIC) or len(page) != _HEADER_BYTES:
        raise damaged(path, "bytes that no array file starts with")
    # The checksum of the page is at the same place in every version, so that damage is not taken for another version.
    (digest,) = _SUM.unpack(page[-_SUM.size :])
    if xxhash.xxh64_intdigest(page[: -_SUM.size]) != digest:
        raise damaged(path, "a header that does not match its checksum")
    _, version, found_kind, dtype, n_dimensions, *lengths, payload_digest = _FIELDS.unpack_from(page)
    if version != FORMAT_VERSION:
        raise other_format(path, version)
    if f"{digest:016x}" != file.checksum or found_kind.rstrip(b"\0") != kind.encode():
        raise damaged(path, "another file than the manifest names")
    known = _DTYPES.get(dtype.rstrip(b"\0"))
    if known is None or not 1 <= n_dimensions <= 4:
        raise damaged(path, f"dtype {dtype!r} and {n_dimensions} dimensions")
    segment, first_id, n, n_bits = _LABEL.unpack_from(page, _FIELDS.size)
    label = SegmentLabel(segment, None if first_id < 0 else first_id, n, n_bits)
    return _Header(known, tuple(lengths[:n_dimensions]), payload_digest, label)
