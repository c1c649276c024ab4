"""Download the files of data sets with pooch, and unpack archives."""

from __future__ import annotations

import contextlib
import errno
import ftplib
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from autojacobin.core.addresses import redacted_message
from autojacobin.core.files import os_reason, whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.datasets.entries import RemoteFile
from autojacobin.datasets.formats.source import shortened
from autojacobin.errors import FormatError, StorageError, import_extra

_RETRIES, _TIMEOUT = 2, 30.0  # seconds
_ERRNOS_OF_DAMAGE = (None, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
_REMEDY = "check that the folder exists and has room, and try again"


def fetch_file(remote: RemoteFile, folder: Path, progress: Progress | None = None) -> None:
    """Download a file into a folder, unless it is there already, check it, and unpack it if it is an archive.

    An archive ``NAME.zip`` or ``NAME.tar.gz`` becomes the folder ``NAME``, and is deleted then. ``progress`` is called
    as ``progress(stage, done, total)`` in bytes; ``total`` is 0 where it is not known.
    """
    target, unpacked = folder / remote.name, folder / remote.name.split(".", 1)[0]
    is_archive = remote.name.endswith((".zip", ".tar.gz"))
    if is_archive and unpacked.is_dir():
        return
    report = progress or (lambda *_: None)
    _download(remote, target, report)
    if is_archive:
        report("unpacking", 0, 0)
        if not unpacked.is_dir():  # another process may have been faster
            unpack(target, unpacked)
        target.unlink(missing_ok=True)  # the unpacked vectors are there now, and the archive would take space again


def _download(remote: RemoteFile, target: Path, progress: Progress) -> None:
    """Download a file to ``target``, where it appears when it is complete and its checksum is right.

    A file that is there already and has the right checksum is not downloaded.
    """
    pooch = import_extra("pooch", "data", "downloading")
    pooch.get_logger().setLevel("ERROR")
    registry = pooch.create(
        path=target.parent,
        base_url="",
        registry={target.name: remote.checksum},
        urls={target.name: remote.url},
        retry_if_failed=_RETRIES,
    )
    stage = f"fetching {remote.name}"
    progress(stage, 0, 0)
    if urlsplit(remote.url).scheme == "ftp":
        downloader = pooch.FTPDownloader(timeout=_TIMEOUT)
    else:
        downloader = pooch.HTTPDownloader(progressbar=_Bar(stage, progress), timeout=_TIMEOUT)
    try:
        registry.fetch(target.name, downloader=downloader)
    except (OSError, EOFError, ftplib.Error) as error:  # those of requests are OSErrors
        reason = redacted_message(" ".join(str(error).split()) or type(error).__name__, remote.url)
        raise StorageError(
            f"cannot fetch {remote.url}: {reason}; check the network and the free space, or put {remote.name} at "
            f"{target} by hand, and run this again"
        ) from None
    except ValueError:  # pooch has deleted the download
        raise FormatError(
            f"{target.name} is damaged, or not the file at {remote.url}: its checksum is not {remote.checksum!r}; "
            "fetch it again"
        ) from None


class _Bar:
    """What pooch takes for a progress bar."""

    total = 0

    def __init__(self, stage: str, progress: Progress) -> None:
        self._stage, self._progress, self._done = stage, progress, 0

    def update(self, count: int) -> None:
        """Report that more bytes have arrived."""
        self._done = min(self._done + count, self.total) if self.total else self._done + count
        self._progress(self._stage, self._done, self.total)

    def reset(self) -> None:
        """Begin again."""
        self._done = 0

    def close(self) -> None:
        """Do nothing."""


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .tar.gz or .zip file, and each .tar.gz file in it, into the new folder ``target``.

    If ``target`` is there already, it stays. A damaged archive, or one with a member that leads out of the folder, is a
    FormatError, and nothing is unpacked then.
    """
    with contextlib.suppress(FileExistsError), whole_folder(target, _REMEDY) as folder, _clear_damage(archive):
        _extract(archive, folder)
        for nested in sorted(folder.rglob("*.tar.gz")):
            _extract(nested, nested.parent)
            nested.unlink()
        if not any(path.is_file() for path in folder.rglob("*")):
            raise ValueError("no files are in it")


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as container:
            container.extractall(folder)
    else:
        with tarfile.open(archive, mode="r:gz") as tar:
            tar.extractall(folder, filter="data")


@contextlib.contextmanager
def _clear_damage(archive: Path) -> Iterator[None]:
    """Translate the errors that tarfile, zipfile and their decoders raise on a damaged archive."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno not in _ERRNOS_OF_DAMAGE:
            raise StorageError(f"cannot unpack {archive}: {os_reason(error)}; {_REMEDY}") from error
        reason = shortened(" ".join(str(error).split()) or type(error).__name__, 200)
        raise FormatError(
            f"the archive {archive} is damaged or not the expected one: {reason}; delete it and fetch it again"
        ) from error
