"""The folder of an index: its files, who may write to it, and which state is the newest.

This is why an index survives crashes: every file is written under a new name, and is on disk before the manifest that
names it; and the manifest is replaced by a rename, which is atomic. A file is deleted only when no manifest on the disk
names it. docs/storage.md describes the files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import xxhash

from autojacobin.core import files
from autojacobin.core.lock import LOCK_NAME, WriterLock
from autojacobin.errors import FormatError, StorageError
from autojacobin.index.manifest import MANIFEST_NAME, ArrayFile, Manifest, damaged, kind_of

_MANIFEST_PART = MANIFEST_NAME + ".part"
_UNFINISHED = "UNFINISHED"  # there while the first state of an index is being written
_BINARY = getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # a pipe under the name of a file must not block the reader
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # a link could lead to any file of the machine

T = TypeVar("T")


class Folder:
    """The folder of an index with its lock.

    A writer holds a descriptor of the folder, to which its operations go even if another folder takes its path.
    ``settled`` is False while the newest state on disk may differ from the one in memory. Then the next change begins
    by reading the state.
    """

    _descriptor: int | None = None  # of the folder, if it is held

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # absolute, so that the folder stays the same when the process changes its own
        self.path = Path(os.path.abspath(files.as_path(path)))
        self.lock = WriterLock(self.path)
        self.settled = True

    def __del__(self) -> None:
        self._let_go()

    # Operations that crash safety depends on: tests make each of them fail

    def create(self, name: str) -> int:
        """Open a new, empty file for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY | _NO_LINKS
        return os.open(self._at(name), flags, 0o666, dir_fd=self._descriptor)

    def write(self, descriptor: int, content: memoryview, offset: int) -> None:
        """Write all of ``content`` at ``offset``."""
        while len(content):
            os.lseek(descriptor, offset, os.SEEK_SET)
            done = os.write(descriptor, content)
            content, offset = content[done:], offset + done

    def sync(self, descriptor: int) -> None:
        """Flush a file's content to disk."""
        files.sync(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename a file over another one, atomically."""
        held = self._descriptor
        files.patiently(lambda: os.replace(self._at(source), self._at(target), src_dir_fd=held, dst_dir_fd=held))

    def unlink(self, name: str) -> None:
        """Delete a file."""
        os.unlink(self._at(name), dir_fd=self._descriptor)

    def sync_names(self) -> None:
        """Flush the names in the folder to disk."""
        if self._descriptor is not None:
            files.sync(self._descriptor)
        else:
            files.sync_folder(self.path)

    # Files

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading, but no link."""
        mode = self.status(name).st_mode
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "not a file"
            raise StorageError(f"{self.path / name} is {what}, expected a file; put a copy of the file there")

        def opener(path: str, flags: int) -> int:
            flags |= _NO_WAITING | _NO_LINKS
            return files.patiently(lambda: os.open(path, flags, dir_fd=self._descriptor))

        return open(self._at(name), "rb", opener=opener)

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with self.open(name) as stream:
            return stream.read()

    def read_checked(self, file: ArrayFile) -> bytes:
        """Read a whole file, and compare it with its checksum."""
        content = self.read(file.name)
        if len(content) != file.size or xxhash.xxh64_hexdigest(content) != file.checksum:
            raise damaged(self.path / file.name, "content that does not match its checksum")
        return content

    def names(self) -> list[str]:
        """Names of all files in the folder, sorted."""
        return sorted(os.listdir(self.path if self._descriptor is None else self._descriptor))

    def status(self, name: str) -> os.stat_result:
        """Status of a file; of a symbolic link, that of the link."""
        return os.stat(self._at(name), dir_fd=self._descriptor, follow_symlinks=False)

    def add_file(self, name: str, content: bytes) -> ArrayFile:
        """Write a whole file, which nothing names yet."""
        with clear_os_errors(self.path, "write to"):
            self._write_file(name, content)
        return ArrayFile(name, len(content), xxhash.xxh64_hexdigest(content))

    def _write_file(self, name: str, content: bytes) -> None:
        descriptor = self.create(name)
        try:
            self.write(descriptor, memoryview(content), 0)
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name) if self._descriptor is None else name

    # The right to write

    def take_lock(self) -> None:
        """Become the writer. The state in the folder may be a new one, so it is not settled."""
        with clear_os_errors(self.path, "write to"):
            self.settled = False
            self.lock.acquire()
            try:
                self._let_go()
                if files.HAS_FOLDER_DESCRIPTORS:
                    self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                self.check_writable()
            except BaseException:
                self.release()
                raise

    def release(self) -> None:
        """Give up the right to write."""
        try:
            self.lock.release()
        finally:
            self._let_go()

    def check_writable(self) -> None:
        """Refuse to write if the folder was moved or replaced, or its lock deleted, since it was locked."""
        with clear_os_errors(self.path, "write to"):
            try:
                seen = self.status(LOCK_NAME)
            except FileNotFoundError:
                seen = os.stat_result([0] * 10)  # that of no file
            self.lock.check(seen)

    def _let_go(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    # States

    def read_manifest(self) -> bytes | None:
        """Bytes of the manifest, or nothing if there is none."""
        try:
            return self.read(MANIFEST_NAME)
        except FileNotFoundError:
            return None

    def manifest(self) -> Manifest | None:
        """The manifest, or None if there is none."""
        content = self.read_manifest()
        return None if content is None else Manifest.from_bytes(content, self.path / MANIFEST_NAME)

    def newest(self, work: Callable[[Manifest], T]) -> T:
        """Give ``work(manifest)`` for the newest manifest; again if a writer deletes files meanwhile."""
        with clear_os_errors(self.path, "read"):
            self._check_no_file()
            manifest = self.manifest()
            while manifest is not None:
                try:
                    return work(manifest)
                except FileNotFoundError as error:
                    before, manifest = manifest, self.manifest()
                    if manifest == before:
                        missing = self.path / Path(str(error.filename)).name
                        raise damaged(missing, "no file of that name") from error
            if self.path.is_dir():
                self._check_not_lost()
            below = sorted(self.path.glob(f"*/{MANIFEST_NAME}"))
            if below:
                raise StorageError(f"there is no index at {self.path}, but one at {below[0].parent}; give that path")
        remedy = "make one with Index.create or `autojacobin index build`"
        raise StorageError(f"there is no index at {self.path}: it has no {MANIFEST_NAME}; {remedy}")

    def commit(self, manifest: Manifest) -> None:
        """Make ``manifest`` the state of the index, if the folder is still the one that was locked.

        If the disk fails at the rename or after it, the old manifest is put back. Any other exception may come before
        the change or after it: read the manifest to know.
        """
        with clear_os_errors(self.path, "write to"):
            before = self.read_manifest()
            self._write_file(_MANIFEST_PART, manifest.to_bytes())
            self.sync_names()  # before the manifest can name the new files
            self.check_writable()
            try:
                self.rename(_MANIFEST_PART, MANIFEST_NAME)
                self.sync_names()
            except OSError:
                self._put_back(before)
                raise

    def _put_back(self, manifest: bytes | None) -> None:
        try:
            if manifest is None:
                with suppress(FileNotFoundError):
                    self.unlink(MANIFEST_NAME)
            elif self.read_manifest() != manifest:
                self._write_file(_MANIFEST_PART, manifest)
                self.rename(_MANIFEST_PART, MANIFEST_NAME)
            self.sync_names()
        except OSError as error:
            raise StorageError(
                f"the disk failed when a change of the index {self.path} was almost finished, and again when it was "
                f"taken back ({error.strerror}); the index is intact, but open it again to see if it has the change"
            ) from error

    def write_whole(self, make: Callable[[], Manifest]) -> Manifest:
        """Write a whole state and commit it; if that fails, delete what was written."""
        self.settled = False
        try:
            manifest = make()
            self.commit(manifest)
            self.sweep(manifest)
            with suppress(OSError):
                self.sync_names()  # or the mark of an unfinished index could return after a power cut
            self.settled = True
        except BaseException:
            with suppress(OSError):
                self.settle()
            raise
        return manifest

    def settle(self) -> None:
        """Flush the state in the folder to disk, then delete the files that it does not name."""
        self.sync_names()  # a rename that was interrupted reaches the disk now
        self.check_writable()  # without the lock, these may be the files that another writer is about to commit
        with suppress(FormatError):  # with a manifest that cannot be read, nothing is known to be superfluous
            manifest = self.manifest()
            if manifest is None:
                if not self._lost_parts():
                    self._delete_all_but(set())
            elif manifest.names() <= set(self.names()):  # else it may be an old one that somebody restored
                self._delete_all_but(manifest.names())
        self.settled = True

    def sweep(self, manifest: Manifest) -> None:
        """Delete what a committed manifest does not name; what cannot be deleted waits for the next time."""
        with suppress(OSError):
            self.check_writable()
            self._delete_all_but(manifest.names())

    def _delete_all_but(self, named: set[str]) -> None:
        """Delete files of an index. Only for the holder of the lock, when the manifest of ``named`` is on the disk."""
        with suppress(OSError):
            own = [name for name in self.names() if kind_of(name) is not None]
            # the mark last: as long as there are files without a manifest, it says that they may be deleted
            for name in [*(name for name in own if name not in named), _MANIFEST_PART, _UNFINISHED]:
                with suppress(OSError):
                    self.status(name)
                    self.unlink(name)

    # A new index

    def prepare(self) -> None:
        """Make the folder if there is none, and take its lock, which the caller releases in any case."""
        with clear_os_errors(self.path, "write to"):
            self._check_no_file()
            if problem := files.no_folder(self.path.parent):
                raise StorageError(f"cannot make the index {self.path}: {problem}")
            if not self.path.is_dir():
                self.path.mkdir()
            with suppress(PermissionError):  # the parent of a folder that was there need not be readable
                files.sync_folder(self.path.parent)
            self._check_content()
            self.take_lock()
            self.settle()
            if self.read_manifest() is None:
                self._check_content()  # once more, now that nobody else writes here
                self._write_file(_UNFINISHED, b"")  # until there is a manifest, the files here are not an index
                self.sync_names()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder if it does not exist, and hold its lock within the block."""
        try:
            self.prepare()
            yield
        finally:
            self.release()

    def check_vacant(self, instead: str) -> None:
        """Raise if the folder holds an index; ``instead`` is the advice that comes before "or give another path"."""
        if self.read_manifest() is not None:
            raise StorageError(f"{self.path} holds an index already; {instead}, or give another path")

    def check_new(self, instead: str) -> None:
        """Raise if an index cannot be made here, because of what is here already; as :meth:`check_vacant`."""
        with clear_os_errors(self.path, "write to"):
            self._check_no_file()
            if self.path.is_dir():
                self.check_vacant(instead)
                self._check_content()

    def _check_no_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StorageError(f"{self.path} is a file, expected the folder of an index; give the path of a folder")

    def _check_content(self) -> None:
        own = (MANIFEST_NAME, _MANIFEST_PART, LOCK_NAME, _UNFINISHED)
        foreign = [name for name in self.names() if name not in own and kind_of(name) is None]
        if foreign and self.read_manifest() is None:
            raise StorageError(f"{self.path} holds {foreign[0]}, which is no part of an index; give another path")
        self._check_not_lost()

    def _check_not_lost(self) -> None:
        lost = self._lost_parts()
        if lost:
            raise StorageError(
                f"{self.path} has lost its {MANIFEST_NAME}, but holds {lost[0]} and other parts of an index; restore "
                f"{MANIFEST_NAME} from a copy, or save the vectors with: "
                f"autojacobin index repair {self.path} NEW_FOLDER"
            )

    def _lost_parts(self) -> list[str]:
        """Parts of an index in a folder without a manifest, unless they are the rest of one that was never finished."""
        names = self.names()
        if MANIFEST_NAME in names or _UNFINISHED in names:
            return []
        return [name for name in names if kind_of(name) is not None]


def clear_os_errors(path: Path, doing: str) -> AbstractContextManager[None]:
    """Translate an error of the operating system into one sentence; ``doing`` is "read" or "write to"."""

    def explain(error: OSError) -> str:
        where = f" at {Path(error.filename).name}" if isinstance(error.filename, str) else ""
        advice = "; nothing was changed; make room or fix the access, and repeat" if doing == "write to" else ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "; allow more with ulimit -n, and join the segments of the index with compact"
        return f"{files.os_reason(error)}{where}{advice}"

    return files.clear_os_errors(f"{doing} the index {path}", explain)
