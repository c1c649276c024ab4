"""File operations in the folder of an index, in one place, so that tests can make each of them fail.

A writer holds a descriptor of the folder. Its operations go to that very folder, even if the folder is renamed
meanwhile or another one takes its path.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from autojacobin.core import files
from autojacobin.errors import StorageError

__all__ = ["Files", "clear_os_errors", "same_file"]

_BINARY = getattr(os, "O_BINARY", 0)
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)  # a pipe under the name of a file must not block the reader
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)  # a link could lead to any file of the machine
_LINK_ERRORS = (errno.ELOOP, errno.EMLINK)  # what systems say about a link then


class Files:
    """The files of one folder."""

    _folder: int | None = None  # its descriptor, if it is held

    def __init__(self, path: Path) -> None:
        self.path = path

    def hold(self) -> None:
        """Hold the folder that is at the path now, even if it is moved."""
        self.release()
        if files.HAS_FOLDER_DESCRIPTORS:
            self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def release(self) -> None:
        """Release the folder, and use the path again."""
        if self._folder is not None:
            descriptor, self._folder = self._folder, None
            os.close(descriptor)

    def __del__(self) -> None:
        self.release()

    # Operations that crash safety depends on

    def create(self, name: str) -> int:
        """Open a new, empty file for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY | _NO_LINKS
        return os.open(self._at(name), flags, 0o666, dir_fd=self._folder)

    def write(self, descriptor: int, content: memoryview, offset: int) -> None:
        """Write all of ``content`` at ``offset``."""
        while len(content):
            done = _write_at(descriptor, content, offset)
            content, offset = content[done:], offset + done

    def sync(self, descriptor: int) -> None:
        """Flush a file's content to disk."""
        files.sync(descriptor)

    def rename(self, source: str, target: str) -> None:
        """Rename a file over another one, atomically."""
        folder = self._folder
        files.patiently(lambda: os.replace(self._at(source), self._at(target), src_dir_fd=folder, dst_dir_fd=folder))

    def unlink(self, name: str) -> None:
        """Delete a file."""
        os.unlink(self._at(name), dir_fd=self._folder)

    def sync_folder(self) -> None:
        """Flush the names in the folder to disk."""
        if self._folder is not None:
            files.sync(self._folder)
        else:
            files.sync_folder(self.path)

    # Reading

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading, but no link."""

        def opener(path: str, flags: int) -> int:
            flags |= _NO_WAITING | _NO_LINKS
            return files.patiently(lambda: os.open(path, flags, dir_fd=self._folder))

        what = None
        try:
            if not _NO_LINKS and stat.S_ISLNK(self.status(name).st_mode):  # on Windows
                raise OSError(errno.ELOOP, "a link")
            stream = open(self._at(name), "rb", opener=opener)  # noqa: SIM115
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                stream.close()
                what = "not a file"
        except OSError as error:
            if error.errno not in _LINK_ERRORS:
                raise
            what = "a link"
        if what is not None:
            raise StorageError(
                f"{self.path / name} is {what}, expected a file of an index; put a copy of the file there"
            )
        return stream

    def read(self, name: str) -> bytes:
        """Read a whole file."""
        with self.open(name) as stream:
            return stream.read()

    def names(self) -> list[str]:
        """Names of all files in the folder, sorted."""
        return sorted(os.listdir(self.path if self._folder is None else self._folder))

    def status(self, name: str) -> os.stat_result:
        """Status of a file; of a symbolic link, that of the link."""
        return os.stat(self._at(name), dir_fd=self._folder, follow_symlinks=False)

    def _at(self, name: str) -> str:
        return os.path.join(self.path, name) if self._folder is None else name


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    """Whether two statuses are those of one file."""
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _write_at(descriptor: int, content: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, content, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows
    return os.write(descriptor, content)


def clear_os_errors(path: Path, doing: str) -> AbstractContextManager[None]:
    """Translate an error of the operating system into one sentence; ``doing`` is "read" or "write to"."""

    def explain(error: OSError) -> str:
        where = f" at {Path(error.filename).name}" if isinstance(error.filename, str) else ""
        advice = "; nothing was changed; make room or fix the access, and repeat" if doing == "write to" else ""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            advice = "; allow more with ulimit -n, and join the segments of the index with compact"
        return f"{files.os_reason(error)}{where}{advice}"

    return files.clear_os_errors(f"{doing} the index {path}", explain)
