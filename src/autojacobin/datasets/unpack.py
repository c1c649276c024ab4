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
_BYTES_PER_MEMBER = 512  # counted for each member, so that the number of empty members is limited too
_ERRNOS_OF_DAMAGE = (None, errno.EINVAL, errno.ENAMETOOLONG)  # raised for damaged data and impossible names
_REMEDY = "check that the folder exists and has room, and try again"


def unpack(
    archive: Path,
    target: Path,
    most_bytes: int,
    *,
    inner: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Unpack a .tar.gz or .zip file into the new folder ``target``.

    Parameters
    ----------
    archive, target : Path
        The archive, and the folder that appears when all of it is unpacked. If ``target`` is there already, it stays.
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
    unpacking = _Unpacking(archive, most_bytes, progress)
    # if another process is faster, its folder holds the same
    with (
        contextlib.suppress(FileExistsError),
        whole_folder(target, _REMEDY) as folder,
        _clear_damage(archive),
    ):
        unpacking.extract(archive, folder)
        for nested in sorted(folder.rglob(inner)) if inner is not None else ():
            unpacking.extract(nested, nested.parent)
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
            raise StorageError(f"cannot unpack {archive}: {os_reason(error)}; {_REMEDY}") from error
        reason = shortened(" ".join(str(error).split()) or type(error).__name__, 200)
        raise FormatError(f"the archive {archive} is damaged: {reason}; delete it and fetch it again") from error


class _Unpacking:
    """Writes members of an archive, counts their bytes, and stops at the limit."""

    def __init__(self, archive: Path, most_bytes: int, progress: Progress | None) -> None:
        self._archive, self._most, self._progress = archive, most_bytes, progress
        self._bytes = 0

    def extract(self, archive: Path, folder: Path) -> None:
        with archive.open("rb") as raw:
            magic = raw.read(4)
        if magic[:2] == b"PK":
            self._extract_zip(archive, folder)
        elif magic[:2] == b"\x1f\x8b":
            self._extract_tar(archive, folder)
        else:
            raise FormatError(
                f"{archive} is not an archive: it begins with the bytes {magic.hex(' ') or '(none)'}, expected those "
                "of .zip or .gz; delete it and fetch it again"
            )

    def _extract_tar(self, archive: Path, folder: Path) -> None:
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:
                    path = self._path(folder, member.name)
                    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
                    if member.isdir():
                        self._make_folder(path)
                    elif content is None:
                        raise self._refusal(member.name, "is a link, a device or a sparse file")
                    elif self._write(content, path) != member.size:
                        raise ValueError(f"it is cut off inside {shortened(member.name, 100)!r}")
            while piece := stream.read(_BYTES_PER_READ):  # to the end, where gzip has its checksum
                self._count(len(piece))

    def _extract_zip(self, archive: Path, folder: Path) -> None:
        with zipfile.ZipFile(archive) as container:
            for member in container.infolist():
                path = self._path(folder, member.filename)
                if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise self._refusal(member.filename, "is a link or a device")
                if member.flag_bits & 1:
                    raise self._refusal(member.filename, "is encrypted")
                if member.is_dir():
                    self._make_folder(path)
                else:
                    with container.open(member) as content:
                        self._write(content, path)

    def _path(self, folder: Path, name: str) -> Path:
        """Path of a member below ``folder``, by the same rules on all operating systems."""
        self._count(_BYTES_PER_MEMBER)
        windows = PureWindowsPath(name)
        if not name or "\0" in name or "\\" in name or name.startswith("/") or windows.drive or ".." in windows.parts:
            raise self._refusal(name, "leads out of the folder")
        return folder.joinpath(*PurePosixPath(name).parts)

    def _write(self, content: IO[bytes], path: Path) -> int:
        self._make_folder(path.parent)
        written = 0
        try:
            with path.open("xb") as stream:
                while piece := content.read(_BYTES_PER_READ):
                    self._count(len(piece))
                    written += stream.write(piece)
        except (FileExistsError, IsADirectoryError):
            raise self._refusal(path.name, "comes twice") from None
        return written

    def _make_folder(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise self._refusal(path.name, "is a file and a folder at once") from None

    def _count(self, count: int) -> None:
        self._bytes += count
        if self._bytes > self._most:
            raise FormatError(
                f"the archive {self._archive} unpacks to more than the {self._most:,} bytes expected of it; "
                "it is not the file that it should be: delete it and fetch it again"
            )
        if self._progress is not None:
            self._progress("unpacking", self._bytes, self._most)

    def _refusal(self, name: str, why: str) -> FormatError:
        return FormatError(
            f"the archive {self._archive} is refused: its member {shortened(name, 100)!r} {why}, expected plain files "
            "below the folder; delete it, and do not trust where it came from"
        )
