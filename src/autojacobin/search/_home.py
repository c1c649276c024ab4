"""The place where an index lives on the disk: who may write there, and which state is the newest."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from autojacobin.errors import FormatError, StorageError
from autojacobin.hashers import Hasher, load
from autojacobin.search._checksum import checksum
from autojacobin.search._lock import WriterLock
from autojacobin.search._manifest import Manifest
from autojacobin.search._segment import Segment, open_segment
from autojacobin.search.storage import (
    MANIFEST_NAME,
    ArrayFile,
    Folder,
    check_payload,
    clear_os_errors,
    damaged,
)

__all__ = ["Home"]

T = TypeVar("T")


class Home:
    """The folder of an index with its lock."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.folder = Folder(self.path)
        self.lock = WriterLock(self.path)

    def prepare(self) -> None:
        """Make the folder, unless it is there and is empty or holds an index; take the lock."""
        with clear_os_errors(self.path, "write to"):
            self._refuse_file()
            if not self.path.parent.is_dir():
                raise StorageError(
                    f"cannot make the index {self.path}: the folder {self.path.parent} does not exist; make it first"
                )
            if not self.path.is_dir():
                self.path.mkdir()
                self.folder.files.sync_folder(self.path.parent)
            foreign = self.folder.foreign()
            if foreign and self.folder.read_manifest() is None:
                raise StorageError(
                    f"cannot make the index {self.path}: the folder holds {foreign[0]}, which is no part of an index, "
                    "expected an empty folder or a new path; give another path"
                )
        self.take_lock()

    def take_lock(self) -> None:
        """Become the writer; what an earlier one left behind in a crash is removed."""
        with clear_os_errors(self.path, "write to"):
            self.lock.acquire()
            try:
                self.folder.files.sync_folder(self.path)  # a rename that a crash overtook reaches the disk now
                self._sweep()
            except BaseException:
                self.lock.release()
                raise

    def newest(self, work: Callable[[Manifest], T]) -> T:
        """Give ``work(manifest)`` for the newest manifest; again if a writer deletes files meanwhile."""
        with clear_os_errors(self.path, "read"):
            self._refuse_file()
            content = self.folder.read_manifest()
            while content is not None:
                try:
                    return work(Manifest.from_bytes(content, self.path / MANIFEST_NAME))
                except FileNotFoundError as error:
                    before, content = content, self.folder.read_manifest()
                    if content == before:
                        raise damaged(Path(str(error.filename)), "no file of that name") from error
        raise StorageError(f"there is no index at {self.path}: it has no {MANIFEST_NAME}; make one with Index.create")

    def read_hasher(self, manifest: Manifest) -> Hasher:
        """Load the hasher of a state."""
        path = self.path / manifest.hasher.name
        _check_whole(path, manifest.hasher)
        hasher = load(path)
        if (hasher.n_bits, hasher.n_features_in_) != (manifest.n_bits, manifest.n_features):
            raise damaged(path, f"{hasher.n_bits} bits and {hasher.n_features_in_} features")
        return hasher

    def read_segments(self, manifest: Manifest) -> tuple[Segment, ...]:
        """Map the segments of a state."""
        return tuple(
            open_segment(self.path, record, manifest.n_bits, manifest.n_features, manifest.keep_vectors)
            for record in manifest.segments
        )

    def verify(self, manifest: Manifest) -> None:
        """Read every byte of a state and compare it with its checksum."""
        _check_whole(self.path / manifest.hasher.name, manifest.hasher)
        for segment in manifest.segments:
            for kind, file in segment.files.items():
                check_payload(self.path, file, kind)

    def write_hasher(self, hasher: Hasher) -> ArrayFile:
        """Write a hasher's file."""
        with tempfile.TemporaryDirectory() as elsewhere:  # hashers write themselves, but not through our file layer
            copy = Path(elsewhere) / "hasher.safetensors"
            hasher.save(copy)
            content = copy.read_bytes()
        return self.folder.add_file("hasher", "safetensors", content)

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the state of the index, and delete what it no longer names."""
        self.folder.commit(manifest.to_bytes())
        self.folder.sweep(manifest.names())

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Delete what was written if the work is not finished, be it for bad data, a full disk or Ctrl-C."""
        try:
            yield
        except BaseException:
            if self.folder.settled:
                self._sweep()
            raise

    def _sweep(self) -> None:
        with suppress(OSError, FormatError):  # with a manifest that cannot be read, nothing is known to be superfluous
            content = self.folder.read_manifest()
            named = Manifest.from_bytes(content, self.path).names() if content is not None else set()
            self.folder.sweep(named)

    def _refuse_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StorageError(f"{self.path} is a file, expected the folder of an index; give the path of a folder")


def _check_whole(path: Path, file: ArrayFile) -> None:
    content = path.read_bytes()
    if len(content) != file.size or checksum(content) != file.checksum:
        raise damaged(path, "content that does not go with its checksum")
