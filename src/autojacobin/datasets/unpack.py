"""Unpack archives that are not trusted: in bounded space, and never outside the folder."""

from __future__ import annotations

import contextlib
import errno
import gzip
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from autojacobin.core.files import os_reason, whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.datasets.formats.source import shortened
from autojacobin.errors import FormatError, StorageError

__all__ = ["unpack"]

_BYTES_PER_READ = 2**20
_MOST_MEMBERS = 100_000
_LONGEST_NAME = 1000  # bytes; a part of a path may have 255 on all systems
_ERRNOS_OF_DAMAGE = (None, errno.EINVAL)  # decoders raise them for damaged data
_LARGEST_READ = 2**26  # tarfile reads long names and extended headers at once, whatever size they claim


def unpack(
    archive: Path,
    target: Path,
    most_bytes: int,
    *,
    inner: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Unpack a .tar, .tar.gz, .zip or .gz file into the new folder ``target``.

    Parameters
    ----------
    archive, target : Path
        The archive, and the folder that appears when it is whole. If ``target`` is there already, it stays.
    most_bytes : int
        The most that all members may have together after unpacking.
    inner : str, optional
        Name of an archive among the members, which is unpacked in its place.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` with the unpacked bytes and ``most_bytes``.

    Raises
    ------
    FormatError
        If the archive is damaged, holds more than ``most_bytes``, or has a member that is a link or a device or whose
        path leads out of the folder; nothing is unpacked then.
    """
    budget = _Budget(archive, most_bytes, progress)
    # if another process is faster, its folder holds the same
    with (
        contextlib.suppress(FileExistsError),
        whole_folder(target, "make room there and try again") as folder,
        _clear_damage(archive),
    ):
        _extract(archive, folder, budget)
        for nested in sorted(folder.rglob(inner)) if inner is not None else ():
            _extract(nested, nested.parent, budget)
            nested.unlink()
        if not any(path.is_file() for path in folder.rglob("*")):
            raise ValueError("no files are in it")


@contextlib.contextmanager
def _clear_damage(archive: Path) -> Iterator[None]:
    """Translate the errors that tarfile, zipfile and their decoders raise on a damaged archive."""
    try:
        yield
    except (FormatError, StorageError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _ERRNOS_OF_DAMAGE:
            raise StorageError(f"cannot unpack {archive}: {os_reason(error)}; make room there and try again") from error
        reason = shortened(" ".join(str(error).split()) or type(error).__name__, 200)
        raise FormatError(f"the archive {archive} is damaged: {reason}; delete it and fetch it again") from error


class _Budget:
    """Counts the bytes and members that come out of an archive, and stops it at the limit."""

    def __init__(self, archive: Path, most_bytes: int, progress: Progress | None) -> None:
        self.archive, self._most, self._progress = archive, most_bytes, progress
        self._bytes = self._members = 0

    def spend(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._most:
            raise FormatError(
                f"the archive {self.archive} unpacks to more than the {self._most:,} bytes expected of it; "
                "it is not the file that it should be: delete it and fetch it again"
            )
        if self._progress is not None:
            self._progress("unpacking", self._bytes, self._most)

    def member(self) -> None:
        self._members += 1
        if self._members > _MOST_MEMBERS:
            raise FormatError(f"the archive {self.archive} has more than {_MOST_MEMBERS:,} members, which no set has")


def _extract(archive: Path, folder: Path, budget: _Budget) -> None:
    with archive.open("rb") as raw:
        magic = raw.read(262)
    if magic[:2] == b"PK":
        _extract_zip(archive, folder, budget)
    elif magic[:2] == b"\x1f\x8b":
        with gzip.open(archive) as stream:
            if archive.name.lower().endswith((".tar.gz", ".tgz")):
                _extract_tar(stream, folder, budget)
            else:
                _write(stream, _inside(folder, archive.name.removesuffix(".gz"), budget), budget)
    elif magic[257:] == b"ustar":
        with archive.open("rb") as raw:
            _extract_tar(raw, folder, budget)
    else:
        raise FormatError(
            f"{archive} is no archive: it begins with the bytes {magic[:4].hex(' ') or '(none)'}, expected those of "
            ".zip, .tar or .gz; delete it and fetch it again"
        )


def _extract_tar(stream: IO[bytes] | gzip.GzipFile, folder: Path, budget: _Budget) -> None:
    with tarfile.open(fileobj=_LimitedReads(stream, budget), mode="r:") as tar:  # type: ignore[call-overload]
        for member in tar:
            path = _inside(folder, member.name, budget)
            if member.isdir():
                _make_folder(path, budget)
            elif member.isreg() and not member.issparse():
                content = tar.extractfile(member)
                if content is None:
                    raise FormatError(
                        f"the archive {budget.archive} has no content for {_shown(member.name)}; fetch it again"
                    )
                if _write(content, path, budget) != member.size:
                    raise FormatError(
                        f"the archive {budget.archive} is cut off inside {_shown(member.name)}; fetch it again"
                    )
            else:
                _refuse(budget.archive, member.name, "is a link, a device or a sparse file")
    while piece := stream.read(_BYTES_PER_READ):  # to the end, where gzip has its checksum
        budget.spend(len(piece))


def _extract_zip(archive: Path, folder: Path, budget: _Budget) -> None:
    with zipfile.ZipFile(archive) as container:
        for member in container.infolist():
            path = _inside(folder, member.filename, budget)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                _refuse(archive, member.filename, "is a link or a device")
            if member.flag_bits & 1:
                _refuse(archive, member.filename, "is encrypted")
            if member.is_dir():
                _make_folder(path, budget)
            else:
                with container.open(member) as content:
                    _write(content, path, budget)


def _inside(folder: Path, name: str, budget: _Budget) -> Path:
    """Path of a member below ``folder``, by the same rules on all operating systems."""
    budget.member()
    windows = PureWindowsPath(name)
    if not name or "\0" in name or "\\" in name or name.startswith("/") or windows.drive or ".." in windows.parts:
        _refuse(budget.archive, name, "leads out of the folder")
    encoded = name.encode(errors="replace")
    if len(encoded) > _LONGEST_NAME or max(map(len, encoded.split(b"/"))) > 255:
        _refuse(budget.archive, name, "has a longer name than a file can have")
    return folder.joinpath(*PurePosixPath(name).parts)


def _shown(name: str) -> str:
    return repr(shortened(name, 100))


def _refuse(archive: Path, name: str, why: str) -> None:
    raise FormatError(
        f"the archive {archive} is refused: its member {_shown(name)} {why}, expected plain files below the folder; "
        "delete it, and do not trust where it came from"
    )


def _write(content: IO[bytes] | gzip.GzipFile, path: Path, budget: _Budget) -> int:
    _make_folder(path.parent, budget)
    written = 0
    try:
        with path.open("xb") as stream:
            while piece := content.read(_BYTES_PER_READ):
                budget.spend(len(piece))
                stream.write(piece)
                written += len(piece)
    except (FileExistsError, IsADirectoryError):
        _refuse(budget.archive, path.name, "comes twice")
    return written


def _make_folder(path: Path, budget: _Budget) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        _refuse(budget.archive, path.name, "is a file and a folder at once")


class _LimitedReads:
    """A stream for tarfile that refuses very large reads, which only a forged header can cause."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, budget: _Budget) -> None:
        self._stream, self._budget = stream, budget

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LARGEST_READ:
            raise FormatError(f"the archive {self._budget.archive} has a header of {size:,} bytes, which no set has")
        return self._stream.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._stream.seek(position, whence)

    def tell(self) -> int:
        return self._stream.tell()
