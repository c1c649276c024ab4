"""Load and fetch data sets by their names: the folder that they are kept in, downloads by pooch, and archives."""

from __future__ import annotations

import contextlib
import errno
import ftplib
import os
import shlex
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.files import as_path, clear_os_errors, os_reason, whole_folder
from autojacobin.core.parallel import Progress
from autojacobin.datasets.local import VectorSet, open_local
from autojacobin.datasets.prepared import cache_path
from autojacobin.datasets.sources import CATALOGUE, READERS, Entry, RemoteFile, find_files
from autojacobin.errors import DataError, FormatError, StorageError, import_extra, reason_of

_RETRIES, _TIMEOUT = 2, 30.0  # seconds
_ERRNOS_OF_DAMAGE = (None, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
_REMEDY = "check that the folder exists and has room, and try again"


def load_set(name: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> VectorSet:
    """Load a set by its name or by its path; its vectors are memory-mapped and not scaled.

    Parameters
    ----------
    name : str or path
        A name of the catalogue (``autojacobin data list``), the name of a folder or file in the data folder, or the
        path of one. A folder holds ``learn``, ``base``, ``query`` and perhaps ``groundtruth`` files in any format that
        :func:`open_vectors` reads; a single file is split, see ``docs/datasets.md``. A name of the catalogue
        comes first; ``./mnist`` is the path.
    folder : path, optional
        The data folder; by default that of :func:`data_folder`.

    Examples
    --------
    >>> from autojacobin.datasets import load_set
    >>> load_set("digits").base.shape
    (1497, 64)
    """
    text = str(as_path(name)) if not isinstance(name, str) else name
    if isinstance(name, str) and name in CATALOGUE:
        entry = CATALOGUE[name]
        files = _found(entry, folder)
        if files is None:
            raise StorageError(_missing(entry, folder))
        return READERS[entry.layout](entry, files)
    chosen = [data_folder(folder)] if folder is not None or os.environ.get("AUTOJACOBIN_DATA") else []
    for path in (*(data / text for data in chosen), Path(text)):
        if text and os.path.exists(path):  # unlike Path.exists, this takes any text
            return open_local(path)
    places = " or ".join(["here", *(f"in {data}" for data in chosen)])
    raise DataError(f"{_unknown(text)}; nor is there such a file or folder {places}")


def fetch_set(name: str, folder: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> VectorSet:
    """Download a set of the catalogue into the data folder, unless it is there already, and load it.

    ``progress`` is called as ``progress(stage, done, total)``, in bytes; ``total`` is 0 where it is not known.
    """
    if not is_here(name, folder):
        entry, target = CATALOGUE[name], data_folder(folder) / name
        if not entry.files:
            raise DataError(_missing(entry, folder))
        advice = "make room there, check its permissions, or choose another one with --data or AUTOJACOBIN_DATA"
        with clear_os_errors(f"keep the files of {name} in the folder {target}", advice):
            target.mkdir(parents=True, exist_ok=True)
            for remote in entry.files:
                fetch_file(remote, target, progress)
        if not is_here(name, folder):
            raise FormatError(
                f"the download of the set {name} lacks some of its files, expected {entry.by_hand}; "
                f"look into {target}, delete what is wrong there and fetch it again"
            )
    return load_set(name, folder)


def is_here(name: str, folder: str | os.PathLike[str] | None = None) -> bool:
    """Whether all files of a set in the catalogue are on this machine and can be read."""
    if not isinstance(name, str) or name not in CATALOGUE:
        raise DataError(_unknown(name))
    try:
        return _found(CATALOGUE[name], folder) is not None
    except StorageError:
        return False


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Give the folder that sets are kept in: ``folder``, or ``$AUTOJACOBIN_DATA``, or ``sets`` in the cache."""
    chosen = as_path(folder) if folder is not None else os.environ.get("AUTOJACOBIN_DATA", "")
    return Path(chosen).expanduser() if chosen else cache_path() / "sets"


def _unknown(name: object) -> str:
    shown = redacted_address(name) if isinstance(name, str) else name
    return f"no data set is called {shown!r}, expected one of: {', '.join(CATALOGUE)}"


def _found(entry: Entry, folder: str | os.PathLike[str] | None) -> dict[str, Path] | None:
    if entry.kind == "built in":
        return {}
    for path in (data_folder(folder) / entry.name, *map(Path, entry.elsewhere)):
        files = find_files(entry, path) if os.path.isdir(path) else None
        if files is not None:
            return files
    return None


def _missing(entry: Entry, folder: str | os.PathLike[str] | None) -> str:
    """Say that a set is not there, and how to get it."""
    path = data_folder(folder) / entry.name
    if not entry.files:
        return f"the set {entry.name} is not in {path} and cannot be fetched by a program; put there {entry.by_hand}"
    there = "" if folder is None else f" --data {shlex.quote(str(path.parent))}"
    return (
        f"the set {entry.name} is not in {path}; fetch it with: autojacobin data fetch {entry.name}{there}, "
        f"which downloads it, or unpacks what you have put there: {entry.by_hand}"
    )


def fetch_file(remote: RemoteFile, folder: Path, progress: Progress | None = None) -> None:
    """Download a file into a folder, unless it is there; an archive ``NAME.zip`` becomes the folder ``NAME``."""
    target, unpacked = folder / remote.name, folder / remote.name.split(".", 1)[0]
    is_archive = remote.name.endswith((".zip", ".tar.gz"))
    if is_archive and unpacked.is_dir():
        return
    progress = progress or (lambda *_: None)
    _download(remote, target, progress)
    if is_archive:
        progress("unpacking", 0, 0)
        if not unpacked.is_dir():  # another process may have been faster
            unpack(target, unpacked)
        target.unlink(missing_ok=True)  # the unpacked vectors are there now, and the archive would take space again


def _download(remote: RemoteFile, target: Path, progress: Progress) -> None:
    """Download a file, unless it is there already; it appears when it is complete and its checksum is right."""
    pooch = import_extra("pooch", "data", "downloading")
    pooch.get_logger().setLevel("ERROR")
    registry = pooch.create(
        path=target.parent,
        base_url="",
        registry={target.name: remote.checksum},
        urls={target.name: remote.url},
        retry_if_failed=_RETRIES,
    )
    stage, done = f"fetching {remote.name}", 0

    def update(count: int) -> None:
        nonlocal done
        done += count
        progress(stage, min(done, bar.total or done), bar.total)

    def reset() -> None:
        nonlocal done
        done = 0

    bar = SimpleNamespace(total=0, update=update, reset=reset, close=lambda: None)  # what pooch takes for one
    update(0)
    if urlsplit(remote.url).scheme == "ftp":
        downloader = pooch.FTPDownloader(timeout=_TIMEOUT)
    else:
        downloader = pooch.HTTPDownloader(progressbar=bar, timeout=_TIMEOUT)
    try:
        registry.fetch(target.name, downloader=downloader)
    except (OSError, EOFError, ftplib.Error) as error:  # those of requests are OSErrors
        reason = redacted_message(reason_of(error), remote.url)
        raise StorageError(
            f"cannot fetch {remote.url}: {reason}; check the network and the free space, or put {remote.name} at "
            f"{target} by hand, and run this again"
        ) from None
    except ValueError:  # pooch has deleted the download
        raise FormatError(
            f"{target.name} is damaged, or not the file at {remote.url}: its checksum is not {remote.checksum!r}; "
            "fetch it again"
        ) from None


def unpack(archive: Path, target: Path) -> None:
    """Unpack a .tar.gz or .zip file, and each .tar.gz file in it, into the folder ``target``, unless it exists.

    A damaged archive, or one with a member that leads out of the folder, is a FormatError, and nothing is unpacked.
    """
    with contextlib.suppress(FileExistsError), whole_folder(target, _REMEDY) as folder:
        try:
            _extract(archive, folder)
            for nested in sorted(folder.rglob("*.tar.gz")):
                _extract(nested, nested.parent)
                nested.unlink()
            if not any(path.is_file() for path in folder.rglob("*")):
                raise ValueError("no files are in it")
        except Exception as error:  # tarfile, zipfile and their decoders raise errors of many kinds
            if isinstance(error, OSError) and error.errno not in _ERRNOS_OF_DAMAGE:
                raise StorageError(f"cannot unpack {archive}: {os_reason(error)}; {_REMEDY}") from error
            raise FormatError(
                f"the archive {archive} is damaged or not the expected one: {reason_of(error, 200)}; delete it and "
                "fetch it again"
            ) from error


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as container:
            container.extractall(folder)
    else:
        with tarfile.open(archive, mode="r:gz") as tar:
            tar.extractall(folder, filter="data")
