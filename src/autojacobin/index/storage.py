"""Where the arrays of an index are kept: in memory, or in a folder under a manifest.

This is why an index survives crashes: every file is written under a new name, and is on disk before the manifest that
names it; and the manifest is replaced by a rename, which is atomic. A file is deleted only when no manifest on the disk
names it. docs/storage.md describes the files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import xxhash

from autojacobin.errors import StorageError
from autojacobin.index.array_files import ArrayFile, ArrayFileWriter, CheckedArray, SegmentLabel, new_name
from autojacobin.index.files import Files, clear_os_errors
from autojacobin.index.lock import LOCK_NAME
from autojacobin.index.payload import Payload, to_bytes
from autojacobin.search.kernels.simd import empty_aligned

MANIFEST_NAME = "MANIFEST.json"
_MANIFEST_PART = MANIFEST_NAME + ".part"
_UNFINISHED = "UNFINISHED"  # there while the first state of an index is being written
_KINDS = "codes|ids|rows|vectors|dead|blocks|offsets|bounds|order|names|ends|hashes|places"
_ARRAY_NAME = re.compile(rf"({_KINDS})-[0-9a-f]{{16}}\.bin")
_PAYLOAD_NAME = re.compile(r"payload-[0-9a-f]{16}\.arrow")
_HASHER_NAME = re.compile(r"hasher-[0-9a-f]{16}\.safetensors")
_KNOWLEDGE_NAME = re.compile(r"knowledge-[0-9a-f]{16}\.safetensors")


class Writer(Protocol):
    """An array that is being written."""

    def append(self, rows: npt.NDArray[Any]) -> None:
        """Add rows at the end."""

    def finish(self, label: SegmentLabel) -> CheckedArray:
        """Give the whole array."""


class Store(Protocol):
    """Where the arrays of a segment go."""

    def add_payload(self, table: Any, label: SegmentLabel) -> Payload:
        """Keep the columns of a segment."""

    def start(self, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Writer:
        """Begin an array."""


class MemoryStore:
    """Keeps arrays in memory."""

    def add_payload(self, table: Any, label: SegmentLabel) -> Payload:  # noqa: ARG002
        """Keep the columns of a segment."""
        return Payload(table)

    def start(self, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Writer:  # noqa: ARG002
        """Begin an array."""
        return _MemoryWriter()


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


class FolderStore:
    """The folder of an index: new arrays, the manifest, and deletion of what it no longer names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = Files(path)

    def start(self, kind: str, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> Writer:
        """Begin an array in a new file."""
        return ArrayFileWriter(self.files, kind, np.dtype(dtype), row_shape)

    def add_payload(self, table: Any, label: SegmentLabel) -> Payload:
        """Write the columns of a segment to a file that has its checksum in its name, for ``repair``.

        No two files have the same name, because the random label is part of the content.
        """
        content = to_bytes(table, label)
        return Payload(table, self._added(f"payload-{xxhash.xxh64_hexdigest(content)}.arrow", content), self.files)

    def add_file(self, kind: str, suffix: str, content: bytes) -> ArrayFile:
        """Write a file whose format is its own, such as a hasher's."""
        return self._added(new_name(kind, suffix), content)

    def _added(self, name: str, content: bytes) -> ArrayFile:
        with clear_os_errors(self.path, "write to"):
            self._write_file(name, content)
        return ArrayFile(name, len(content), xxhash.xxh64_hexdigest(content))

    def read_manifest(self) -> bytes | None:
        """Bytes of the manifest, or nothing if there is none."""
        try:
            return self.files.read(MANIFEST_NAME)
        except FileNotFoundError:
            return None

    def commit(self, manifest: bytes, check: Callable[[], None]) -> None:
        """Make ``manifest`` the state of the index; after a disk error, the old state remains.

        The new files' names reach the disk before the manifest can name them. ``check`` is called last before the
        rename. If the disk fails at the rename or after it, the old manifest is put back, so that nothing has changed
        if there is a disk error. Any other exception may come before the change or after it: read the manifest to know.
        """
        with clear_os_errors(self.path, "write to"):
            before = self.read_manifest()
            self._write_file(_MANIFEST_PART, manifest)
            self.files.sync_folder()
            check()
            try:
                self.files.rename(_MANIFEST_PART, MANIFEST_NAME)
                self.files.sync_folder()
            except OSError:
                self._put_back(before)
                raise

    def _put_back(self, manifest: bytes | None) -> None:
        try:
            if manifest is None:
                with suppress(FileNotFoundError):
                    self.files.unlink(MANIFEST_NAME)
            elif self.read_manifest() != manifest:
                self._write_file(_MANIFEST_PART, manifest)
                self.files.rename(_MANIFEST_PART, MANIFEST_NAME)
            self.files.sync_folder()
        except OSError as error:
            raise StorageError(
                f"the disk failed when a change of the index {self.path} was almost finished, and again when it was "
                f"taken back ({error.strerror}); the index is intact, but open it again to see if it has the change"
            ) from error

    def _write_file(self, name: str, content: bytes) -> None:
        descriptor = self.files.create(name)
        try:
            self.files.write(descriptor, memoryview(content), 0)
            self.files.sync(descriptor)
        finally:
            os.close(descriptor)

    def mark_unfinished(self) -> None:
        """Write a mark which says that the files here are not an index until there is a manifest."""
        self._write_file(_UNFINISHED, b"")
        self.files.sync_folder()

    def may_be_lost(self) -> list[str]:
        """Parts of an index in a folder without a manifest, unless they are the rest of one that was never finished."""
        names = self.files.names()
        if MANIFEST_NAME in names or _UNFINISHED in names:
            return []
        return [name for name in names if is_own_name(name)]

    def sweep(self, named: set[str]) -> None:
        """Delete files of an index that are not among ``named``; those that cannot be deleted wait for the next time.

        Only for the holder of the lock, and only when the manifest with these names has reached the disk.
        """
        with suppress(OSError):
            own = [name for name in self.files.names() if is_own_name(name)]
            # the mark last: as long as there are files without a manifest, it says that they may be deleted
            for name in [*(name for name in own if name not in named), _MANIFEST_PART, _UNFINISHED]:
                with suppress(OSError):
                    self.files.status(name)
                    self.files.unlink(name)

    def foreign(self) -> list[str]:
        """Names in the folder that are not those of an index."""
        own = {MANIFEST_NAME, _MANIFEST_PART, LOCK_NAME, _UNFINISHED}
        return [name for name in self.files.names() if name not in own and not is_own_name(name)]


def is_array_name(name: str, kind: str | None = None) -> bool:
    """Whether a name is that of an array file, of one kind or of any."""
    found = _ARRAY_NAME.fullmatch(name)
    return found is not None and kind in (None, found.group(1))


def is_part_name(name: str, kind: str | None = None) -> bool:
    """Whether a name is that of a file of a segment, of one kind or of any."""
    return is_array_name(name, kind) or (kind in (None, "payload") and _PAYLOAD_NAME.fullmatch(name) is not None)


def is_hasher_name(name: str) -> bool:
    """Whether a name is that of a hasher's file."""
    return _HASHER_NAME.fullmatch(name) is not None


def is_knowledge_name(name: str) -> bool:
    """Whether a name is that of the file of what an index knows about itself."""
    return _KNOWLEDGE_NAME.fullmatch(name) is not None


def is_own_name(name: str) -> bool:
    """Whether a name is that of any file that a manifest names."""
    return is_part_name(name) or is_hasher_name(name) or is_knowledge_name(name)
