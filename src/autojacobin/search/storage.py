"""The files an index is made of: arrays with a header and a checksum, in a folder under a manifest.

The formats are described in ``docs/storage.md``. What crash safety rests on: every file is written under a
name that was never used before and reaches the disk before the manifest that names it does, and the manifest is
replaced by a rename, which is atomic. A file is deleted only when no manifest on the disk names it.
"""

from __future__ import annotations

import os
import re
import secrets
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from autojacobin.errors import FormatError, StorageError
from autojacobin.search._checksum import Checksum
from autojacobin.search._lock import LOCK_NAME
from autojacobin.search.kernels.simd import empty_aligned

__all__ = [
    "FORMAT_VERSION", "MANIFEST_NAME", "ArrayFile", "Files", "Folder", "MemoryStore", "Store",
    "Stored", "Writer", "check_payload", "clear_os_errors", "damaged", "open_array", "too_new",
]  # fmt: skip

FORMAT_VERSION = 1
MANIFEST_NAME = "MANIFEST.json"
_MANIFEST_PART = MANIFEST_NAME + ".part"
_OWN_NAME = re.compile(r"(codes|ids|rows|vectors|dead)-[0-9a-f]{16}\.bin|hasher-[0-9a-f]{16}\.safetensors")

_MAGIC = b"\x89AJBin\r\n"
_HEADER_BYTES = 4096  # a page, so that what follows can be memory-mapped anywhere
_FIELDS = struct.Struct("<8sI8s8sI4QQ")
_SUM = struct.Struct("<Q")  # the last bytes of the page
_BLOCK_BYTES = 2**24


class Files:
    """The operations that crash safety rests on, all in one place, so that tests can make each of them fail."""

    def create(self, path: Path) -> int:
        """Open a new, empty file for writing."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def write(self, descriptor: int, content: memoryview, offset: int) -> None:
        """Write all of ``content`` at ``offset``."""
        while len(content):
            done = os.pwrite(descriptor, content, offset)
            content, offset = content[done:], offset + done

    def sync(self, descriptor: int) -> None:
        """Bring a file's content to the disk."""
        os.fsync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another's name, in one step."""
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        """Delete a file."""
        os.unlink(path)

    def sync_folder(self, path: Path) -> None:
        """Bring the names in a folder to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class ArrayFile:
    """What a manifest says of a file: its name, its size, and the checksum of its header, which has the payload's."""

    name: str
    size: int
    checksum: str


Stored = tuple[npt.NDArray[Any], ArrayFile | None]


class Writer(Protocol):
    """An array in the making."""

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows at the end."""

    def finish(self) -> Stored:
        """Give the whole array and, if it is in a file, its place in the manifest."""


class Store(Protocol):
    """Where the arrays of a segment go."""

    def start(self, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Writer:
        """Begin an array."""


class MemoryStore:
    """Keeps arrays in memory."""

    def start(self, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Writer:  # noqa: ARG002
        """Begin an array."""
        return _MemoryWriter()


class _MemoryWriter:
    def __init__(self) -> None:
        self._parts: list[npt.NDArray[Any]] = []

    def append(self, rows: npt.NDArray[Any]) -> None:
        self._parts.append(np.array(rows))  # a copy: the caller may reuse a buffer

    def finish(self) -> Stored:
        """Put the parts together at a whole cache line, so that a vector of 128 bytes lies on two and not on three."""
        first = self._parts[0]
        whole = empty_aligned((sum(map(len, self._parts)), *first.shape[1:]), first.dtype)
        return np.concatenate(self._parts, out=whole), None


class Folder:
    """The folder of an index: new arrays, the manifest, and deletion of what it no longer names."""

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self.path = path
        self.files = files or Files()
        self.settled = True  # whether it is known which manifest a power cut would leave

    def start(self, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Writer:
        """Begin an array in a new file."""
        return _FileWriter(self, kind, np.dtype(dtype), row_shape)

    def add_file(self, kind: str, suffix: str, content: bytes) -> ArrayFile:
        """Write a file that has a format of its own."""
        name = _new_name(kind, suffix)
        with clear_os_errors(self.path, "write to"):
            self._write_file(name, content)
        return ArrayFile(name, len(content), Checksum().update(content).hexdigest())

    def read_manifest(self) -> bytes | None:
        """Bytes of the manifest, or nothing if there is none."""
        try:
            return (self.path / MANIFEST_NAME).read_bytes()
        except FileNotFoundError:
            return None

    def commit(self, manifest: bytes) -> None:
        """Make ``manifest`` the state of the index: all of it, or, on any error, nothing of it.

        The new files' names reach the disk before the manifest can name them. If the disk fails at the rename
        or after it, the old manifest is put back, so that an error never goes with a change.
        """
        with clear_os_errors(self.path, "write to"):
            before = self.read_manifest()
            self._write_file(_MANIFEST_PART, manifest)
            self.files.sync_folder(self.path)
            self.settled = False
            try:
                self.files.rename(self.path / _MANIFEST_PART, self.path / MANIFEST_NAME)
                self.files.sync_folder(self.path)
            except BaseException:
                self._put_back(before)
                raise
            self.settled = True

    def _put_back(self, manifest: bytes | None) -> None:
        try:
            if manifest is None:
                with suppress(FileNotFoundError):
                    self.files.unlink(self.path / MANIFEST_NAME)
            else:
                self._write_file(_MANIFEST_PART, manifest)
                self.files.rename(self.path / _MANIFEST_PART, self.path / MANIFEST_NAME)
            self.files.sync_folder(self.path)
        except OSError as error:
            raise StorageError(
                f"the disk failed when a change of the index {self.path} was all but done, and again when it was taken "
                f"back ({error.strerror}); the index is whole, but open it again to see if it has the change"
            ) from error
        self.settled = True

    def _write_file(self, name: str, content: bytes) -> None:
        descriptor = self.files.create(self.path / name)
        try:
            self.files.write(descriptor, memoryview(content), 0)
            self.files.sync(descriptor)
        finally:
            os.close(descriptor)

    def sweep(self, named: set[str]) -> None:
        """Delete files of an index that are not among ``named``; those that cannot be deleted wait for the next time.

        Only for the holder of the lock, and only when the manifest with these names has reached the disk.
        """
        with suppress(OSError):
            for entry in sorted(self.path.iterdir()):
                if entry.name == _MANIFEST_PART or (_OWN_NAME.fullmatch(entry.name) and entry.name not in named):
                    with suppress(OSError):
                        self.files.unlink(entry)

    def foreign(self) -> list[str]:
        """Names in the folder that are not those of an index."""
        own = {MANIFEST_NAME, _MANIFEST_PART, LOCK_NAME}
        names = sorted(entry.name for entry in self.path.iterdir())
        return [name for name in names if name not in own and not _OWN_NAME.fullmatch(name)]


class _FileWriter:
    """Streams rows into a file; the header comes last, when the checksum is known."""

    def __init__(self, folder: Folder, kind: str, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self._folder, self._kind, self._dtype, self._row_shape = folder, kind, dtype, row_shape
        self._name = _new_name(kind, "bin")
        self._checksum = Checksum()
        self._rows = 0
        self._end = _HEADER_BYTES
        with clear_os_errors(folder.path, "write to"):
            os.close(folder.files.create(folder.path / self._name))

    def append(self, rows: npt.NDArray[Any]) -> None:
        content = np.ascontiguousarray(rows, dtype=self._dtype).reshape(-1).view(np.uint8)
        self._checksum.update(content)
        self._write(content.data, self._end)
        self._end += len(content)
        self._rows += len(rows)

    def finish(self) -> Stored:
        shape = (self._rows, *self._row_shape)
        header = _header(self._kind, self._dtype, shape, self._checksum.digest())
        self._write(memoryview(header), 0, sync=True)
        file = ArrayFile(self._name, self._end, f"{_SUM.unpack(header[-_SUM.size :])[0]:016x}")
        return open_array(self._folder.path, file, self._kind, shape, self._dtype), file

    def _write(self, content: memoryview, offset: int, *, sync: bool = False) -> None:
        with clear_os_errors(self._folder.path, "write to"):
            descriptor = os.open(self._folder.path / self._name, os.O_WRONLY)
            try:
                self._folder.files.write(descriptor, content, offset)
                if sync:
                    self._folder.files.sync(descriptor)
            finally:
                os.close(descriptor)


def open_array(
    folder: Path, file: ArrayFile, kind: str, shape: tuple[int, ...], dtype: npt.DTypeLike | None = None
) -> npt.NDArray[Any]:
    """Memory-map an array, after a check of everything but its payload.

    Bitmaps of dead positions are small and are read, payload checked. Codes are mapped as private pages that could be
    written: NumPy then calls the array writable as one in memory is, and the kernels need not be compiled twice.
    """
    path = folder / file.name
    found_dtype, found_shape, digest = _read_header(path, file, kind)
    if found_shape != shape or (dtype is not None and found_dtype != np.dtype(dtype)):
        raise damaged(path, f"{found_dtype} of shape {found_shape}")
    if kind == "dead":
        payload = np.fromfile(path, dtype=np.uint8, offset=_HEADER_BYTES)
        if Checksum().update(payload).digest() != digest:
            raise damaged(path, "a payload that does not go with its checksum")
        return payload
    mode: Any = "c" if kind == "codes" else "r"
    return np.asarray(np.memmap(path, dtype=found_dtype, mode=mode, offset=_HEADER_BYTES, shape=found_shape))


def check_payload(folder: Path, file: ArrayFile, kind: str) -> None:
    """Read all of a file and compare it with its checksums."""
    path = folder / file.name
    _, _, digest = _read_header(path, file, kind)
    found, buffer = Checksum(), bytearray(min(_BLOCK_BYTES, file.size))
    with open(path, "rb", buffering=0) as stream:
        stream.seek(_HEADER_BYTES)
        while count := stream.readinto(buffer):
            found.update(memoryview(buffer)[:count])
    if found.digest() != digest:
        raise damaged(path, "a payload that does not go with its checksum")


def _header(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...], digest: int) -> bytes:
    lengths = (*shape, 0, 0, 0, 0)[:4]
    fields = _FIELDS.pack(_MAGIC, FORMAT_VERSION, kind.encode(), dtype.str.encode(), len(shape), *lengths, digest)
    page = fields.ljust(_HEADER_BYTES - _SUM.size, b"\0")
    return page + _SUM.pack(Checksum().update(page).digest())


def _read_header(path: Path, file: ArrayFile, kind: str) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    with open(path, "rb") as stream:
        page, size = stream.read(_HEADER_BYTES), os.fstat(stream.fileno()).st_size
    if size != file.size:
        raise damaged(path, f"{size} bytes where the manifest says {file.size}")
    if not page.startswith(_MAGIC):
        raise damaged(path, "bytes that no file of an index starts with")
    # The checksum of the page stands at the same place in every version, so damage is told from news.
    if Checksum().update(page[: -_SUM.size]).digest() != _SUM.unpack(page[-_SUM.size :])[0]:
        raise damaged(path, "a header that does not go with its checksum")
    _, version, found_kind, dtype, n_dimensions, *lengths, digest = _FIELDS.unpack_from(page)
    if version > FORMAT_VERSION:
        raise too_new(path, version)
    if f"{_SUM.unpack(page[-_SUM.size :])[0]:016x}" != file.checksum or found_kind.rstrip(b"\0").decode() != kind:
        raise damaged(path, "another file than the manifest names")
    return np.dtype(dtype.rstrip(b"\0").decode()), tuple(lengths[:n_dimensions]), digest


def _new_name(kind: str, suffix: str) -> str:
    return f"{kind}-{secrets.token_hex(8)}.{suffix}"


@contextmanager
def clear_os_errors(path: Path, doing: str) -> Iterator[None]:
    """Tell what the operating system refuses in one sentence; ``doing`` is "read" or "write to"."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        where = f" at {Path(error.filename).name}" if isinstance(error.filename, str) else ""
        kept = "; nothing was changed; make room or mend the access, and repeat" if doing == "write to" else ""
        clear = StorageError(f"cannot {doing} the index {path}: {reason}{where}{kept}")
        clear.errno = error.errno
        raise clear from error


def damaged(path: Path, what: str) -> FormatError:
    """Error for a file that is not what was written."""
    return FormatError(
        f"{path} is damaged or is not part of this index, got {what}; restore it from a copy, "
        "or build the index again from the vectors"
    )


def too_new(path: Path, version: int) -> FormatError:
    """Error for a file of a later format."""
    return FormatError(
        f"{path} needs a newer library, got index format {version}, while this one reads formats up to "
        f"{FORMAT_VERSION}; upgrade with: pip install --upgrade autojacobin"
    )
