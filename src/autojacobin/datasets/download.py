"""Download the files of data sets with pooch, and unpack archives."""

from __future__ import annotations

import contextlib
import errno
import http.client
import io
import re
import shutil
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autojacobin.core.addresses import redacted_message
from autojacobin.core.files import clear_os_errors, os_reason, whole_folder, write_atomically
from autojacobin.core.parallel import Progress
from autojacobin.datasets.entries import RemoteFile
from autojacobin.datasets.formats.source import import_extra, shortened
from autojacobin.errors import AutoJacobinError, FormatError, StorageError

_BYTES_PER_READ = 2**16
_TRIES, _PAUSE, _TIMEOUT = 5, 1.0, 30.0  # the times are in seconds
_RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)  # after these the server may still send the file
_ERRNOS_OF_DAMAGE = (None, errno.EEXIST, errno.EINVAL, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR)
_REMEDY = "check that the folder exists and has room, and try again"


def fetch_file(remote: RemoteFile, folder: Path, progress: Progress | None = None) -> None:
    """Download a file into a folder, unless it is there already, check it, and unpack it if it is an archive.

    An archive ``NAME.zip`` or ``NAME.tar.gz`` becomes the folder ``NAME``, and is deleted then.

    Parameters
    ----------
    remote : RemoteFile
        What to download, and what is known of it.
    folder : Path
        Folder of the data set.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` in bytes; ``total`` is 0 where the server does not say.
    """
    target, unpacked = folder / remote.name, folder / remote.name.split(".", 1)[0]
    is_archive = remote.name.endswith((".zip", ".tar.gz"))
    if is_archive and unpacked.is_dir():
        return
    record = folder / f"{remote.name}.sha256"  # of the first download, where its owners publish no checksum
    checksum = remote.checksum or (record.read_text("utf-8", "replace").partition(" ")[0] if record.exists() else None)
    download(remote, target, checksum, progress)
    digest = import_extra("pooch", "downloading").file_hash(str(target)) if checksum is None else None
    if is_archive:
        unpack(target, unpacked, remote.most_bytes, progress)
    if digest is not None:  # not before the archive is known to be intact
        write_atomically(record, f"{digest}  {target.name}\n".encode())
    if is_archive:
        target.unlink(missing_ok=True)  # the unpacked vectors are there now, and the archive would take space again


def download(remote: RemoteFile, target: Path, checksum: str | None, progress: Progress | None = None) -> None:
    """Download a file to ``target``, where it appears when it is complete and its checksum is right.

    A file that is there already is checked and not downloaded.
    """
    pooch = import_extra("pooch", "downloading")
    pooch.get_logger().setLevel("WARNING")
    if target.is_file():
        method, _, expected = (checksum or "").rpartition(":")
        if checksum is not None and pooch.file_hash(str(target), method or "sha256") != expected:
            raise _wrong_checksum(remote, target, checksum, f"delete {target} and fetch it again")
        return
    for attempt in range(_TRIES):
        try:
            receive = partial(_receive, remote, progress)
            pooch.retrieve(remote.url, checksum, target.name, target.parent, downloader=receive)
            return
        except AutoJacobinError:
            raise
        except ValueError:  # pooch has deleted the file
            raise _wrong_checksum(remote, target, checksum, "the download was deleted, fetch it again") from None
        except (OSError, http.client.HTTPException) as error:
            inner = getattr(error, "reason", error)
            reason = str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
            reason = redacted_message(" ".join(reason.split()), remote.url)
            status = None
            if isinstance(error, urllib.error.HTTPError):
                status = error.code
                error.close()
            by_hand = f"look for {remote.name} by hand and put it at {target}"
            if status is None and isinstance(error, urllib.error.URLError) and "ftp error" not in reason:
                raise StorageError(
                    f"cannot reach {urlsplit(remote.url).hostname} ({reason}): there is no network, or the server is "
                    f"down; fetch {remote.url} by other means, put it at {target}, and run this again"
                ) from None
            if status is not None:
                reason = f"the server answered {status} {reason}"
            if re.search(r"ftp error.*\b5[0-9][0-9]\b", reason) or (status and status not in _RETRY_STATUSES):
                raise StorageError(
                    f"cannot fetch {remote.url}: {reason}; the file may have moved, so {by_hand}"
                ) from None
        time.sleep(_PAUSE * 2**attempt)
    raise StorageError(f"cannot fetch {remote.url}: {reason}, {_TRIES} times; run it again later, or {by_hand}")


def _wrong_checksum(remote: RemoteFile, target: Path, checksum: str | None, advice: str) -> FormatError:
    if remote.checksum is None:
        advice += f"; if its owners have changed the file, delete {target}.sha256 first, to accept the new one"
    return FormatError(
        f"{target.name} is damaged, or not the file at {remote.url}: its checksum is not {checksum!r}; {advice}"
    )


def _receive(remote: RemoteFile, progress: Progress | None, url: str, output: str, _pooch: Any) -> None:
    """Write the content of a URL to the path ``output``; pooch calls this."""
    request = urllib.request.Request(url, headers={"User-Agent": "autojacobin", "Accept-Encoding": "identity"})
    opener = urllib.request.build_opener(_SameServer)
    try:
        response = opener.open(request, timeout=_TIMEOUT)
    except ValueError as error:  # a redirect to what is no address
        raise http.client.HTTPException(str(error)) from None
    with response, open(output, "wb") as stream:
        length = response.headers.get("Content-Length") or ""
        done, total = 0, int(length) if length.isdecimal() else 0
        _check_size(remote, total, Path(output).parent)
        if progress is not None:
            progress(f"fetching {remote.name}", done, total)
        while piece := response.read(_BYTES_PER_READ):
            with clear_os_errors(f"write {output}", "make room there and run it again"):
                stream.write(piece)
            done += len(piece)
            _check_size(remote, done)
            if progress is not None:
                progress(f"fetching {remote.name}", done, total)
    if done < total:
        raise ConnectionError(f"the connection broke off at {done:,} of {total:,} bytes")


def _check_size(remote: RemoteFile, size: int, folder: Path | None = None) -> None:
    if size > remote.most_bytes:
        raise FormatError(
            f"the file at {remote.url} is not the right one: it has {size:,} bytes or more where at most "
            f"{remote.most_bytes:,} are expected; look for {remote.name} by hand"
        )
    if folder is not None and size > (free := shutil.disk_usage(folder).free):
        raise StorageError(
            f"cannot fetch {remote.name} into {folder}: {size:,} bytes are to come and {free:,} are free; make room "
            "there, or choose another folder"
        )


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one server, and never from https to http.

    A server on the network could otherwise make this machine send requests to servers that only it can reach.
    """

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.hostname != old.hostname or new.scheme not in (old.scheme, "https"):
            reason = f"and redirects to {newurl}, which is another server or not http or https"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def unpack(archive: Path, target: Path, most_bytes: int, progress: Progress | None = None) -> None:
    """Unpack a .tar.gz or .zip file, and each .tar.gz file in it, into the new folder ``target``.

    If ``target`` is there already, it stays. A damaged archive, one that holds more than ``most_bytes``, or one with a
    member that leads out of the folder is a FormatError, and nothing is unpacked then.
    """
    with contextlib.suppress(FileExistsError), whole_folder(target, _REMEDY) as folder, _clear_damage(archive):
        most_bytes -= _extract(archive, folder, most_bytes, progress)
        for nested in sorted(folder.rglob("*.tar.gz")):
            most_bytes -= _extract(nested, nested.parent, most_bytes, progress)
            nested.unlink()
        if not any(path.is_file() for path in folder.rglob("*")):
            raise ValueError("no files are in it")


def _extract(archive: Path, folder: Path, most_bytes: int, progress: Progress | None) -> int:
    """Extract all members, and return the sum of their sizes."""
    size = 0

    def checked(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        count(member.size)
        return tarfile.data_filter(member, path)

    def count(more: int) -> None:
        nonlocal size
        size += more + 512  # of a header, so that the number of empty members is limited too
        if size > most_bytes:
            raise ValueError(f"it unpacks to more than the {most_bytes:,} bytes expected of it")

    with io.BufferedReader(_Watched(archive, progress), _BYTES_PER_READ) as stream:
        if zipfile.is_zipfile(stream):
            with zipfile.ZipFile(stream) as container:
                for member in container.infolist():
                    count(member.file_size)
                container.extractall(folder)
        else:
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:gz") as tar:
                tar.extractall(folder, filter=checked)
    return size


class _Watched(io.FileIO):
    """A file that reports how far it was read."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        super().__init__(path)
        self._progress, self._size = progress, path.stat().st_size

    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer)
        if self._progress is not None:
            self._progress("unpacking", self.tell(), self._size)
        return count


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
