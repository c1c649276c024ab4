"""Download files: interrupted downloads are resumed, and a file gets its final name when its checksum is right."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urljoin, urlsplit

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.files import clear_os_errors, write_atomically
from autojacobin.core.parallel import Progress
from autojacobin.datasets.entries import RemoteFile
from autojacobin.errors import FormatError, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["download", "first_checksum", "keep_checksum", "verify"]

_BYTES_PER_READ = 2**16
_BYTES_PER_HASH = 2**20
_RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)  # after these the server may still send the file
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15}|\*)")


def download(
    remote: RemoteFile,
    target: Path,
    progress: Progress | None = None,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> None:
    """Download a file to ``target``, or raise an error that says in one sentence what went wrong.

    What has arrived is kept in ``NAME.part``. A later call requests the rest, if the finished file can be checked.

    Parameters
    ----------
    remote : RemoteFile
        What to download, and what is known of it.
    target : Path
        Path of the file, which appears when it is complete and checked.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` in bytes; ``total`` is 0 where the server does not say.
    tries : int
        Number of attempts in a row without progress after which it gives up.
    timeout : float
        Seconds without a byte after which a connection counts as broken.
    pause : float
        Seconds to wait before the next attempt, doubled after each attempt without progress.
    """
    _check_address(remote)
    with _open_part(target) as part:
        transfer = _Transfer(remote, part, target, progress, timeout)
        fruitless, furthest = 0, _length(part)
        while True:
            try:
                transfer.attempt()
                break
            except _BrokenOffError as error:
                reason = error
            if furthest == 0 and isinstance(reason, _UnreachableError):
                raise StorageError(
                    f"cannot reach {urlsplit(remote.url).hostname} ({reason}): there is no network, or the server "
                    f"is down; fetch {remote.shown} by other means, put it at {target}, and run this again"
                )
            # counted from the furthest point: a server that always starts over must not be asked forever
            fruitless = 0 if _length(part) > furthest else fruitless + 1
            furthest = max(furthest, _length(part))
            if fruitless >= tries:
                raise StorageError(
                    f"cannot fetch {remote.shown}: {reason}, {tries} times without getting further; "
                    f"{_length(part):,} bytes are kept, so run it again later, or put the file at {target} by hand"
                )
            time.sleep(pause * 2**fruitless)
        try:
            verify(remote, Path(part.name), target, progress)
        except FormatError:
            transfer.clear()
            raise
        transfer.finish()


def verify(remote: RemoteFile, path: Path, target: Path, progress: Progress | None = None) -> None:
    """Compare the file at ``path`` with the checksum of the one that belongs at ``target``."""
    if remote.checksum is not None:
        method, expected = remote.checksum.split(":")
        origin, accept = "is published", ""
    elif (first := first_checksum(target)) is not None:
        method, expected = "sha256", first
        origin = f"was that of the first fetch, says {_record(target).name}"
        accept = f"; if its owners have changed the file, delete {_record(target)} first, to accept the new one"
    else:
        return
    got = _digest(path, method, progress)
    if got != expected:
        advice = f"delete {target} and fetch it again" if path == target else "the download was deleted, fetch it again"
        raise FormatError(
            f"{target.name} is damaged, or not the file at {remote.shown}: its {method} is {got} where {expected} "
            f"{origin}; {advice}{accept}"
        )


def keep_checksum(remote: RemoteFile, target: Path, progress: Progress | None = None) -> None:
    """Write ``NAME.sha256`` beside a file whose owners publish no checksum, if it is not there yet."""
    if remote.checksum is None and first_checksum(target) is None:
        write_atomically(_record(target), f"{_digest(target, 'sha256', progress)}  {target.name}\n".encode())


def first_checksum(target: Path) -> str | None:
    """Read the SHA-256 of the first download of a file; None if there is no record. A damaged one is an error."""
    record = _record(target)
    try:
        words = record.read_text(encoding="utf-8", errors="replace").split(maxsplit=1)
    except FileNotFoundError:
        return None
    if not words or not re.fullmatch("[0-9a-f]{64}", words[0]):
        raise FormatError(
            f"{record} is damaged, expected the SHA-256 of the first download of {target.name}; delete it, and the "
            "next fetch is trusted"
        )
    return words[0]


class _BrokenOffError(Exception):
    """The transfer ended early; another attempt may continue it."""


class _UnreachableError(_BrokenOffError):
    """No connection to the server could be made."""


@dataclass(frozen=True)
class _Transfer:
    """What all attempts to download one file share."""

    remote: RemoteFile
    part: IO[bytes]
    target: Path
    progress: Progress | None
    timeout: float

    def attempt(self) -> None:
        """Request the missing bytes and write them; returns when the file is complete."""
        if not self.remote.resumable:
            self.clear()
        start = _length(self.part)
        headers = {"User-Agent": "autojacobin", "Accept-Encoding": "identity"}
        request = urllib.request.Request(self.remote.url, headers=headers)
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            with urllib.request.build_opener(_Redirects).open(request, timeout=self.timeout) as response:
                self._receive(response, start)
        except StorageError:
            raise
        except urllib.error.HTTPError as error:
            with error:
                self._check_answer(error, start)
        except (http.client.HTTPException, OSError) as error:
            reason = self._reason(error)
            if re.search(r"ftp error.*\b5[0-9][0-9]\b", reason):
                raise self._not_given(reason) from None
            reset = isinstance(getattr(error, "reason", None), ConnectionResetError | BrokenPipeError)
            if isinstance(error, urllib.error.URLError) and not reset:
                raise _UnreachableError(reason) from None
            raise _BrokenOffError(f"the connection broke off ({reason})") from None

    def clear(self) -> None:
        """Delete what has arrived."""
        with self._clear_errors():
            self.part.truncate(0)

    def finish(self) -> None:
        """Rename what has arrived to the finished file."""
        with self._clear_errors():
            os.fsync(self.part.fileno())
            if fcntl is None:
                self.part.close()  # Windows cannot rename an open file
            os.replace(self.part.name, self.target)

    def _check_answer(self, error: urllib.error.HTTPError, start: int) -> None:
        """Return if the answer means that the file is complete already, and raise an error otherwise."""
        answer = f"{error.code} {self._reason(error)}"
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{start}":
            return
        if error.code == 416:  # the part on the disk is longer than the file, which has changed
            self.clear()
        elif error.code not in _RETRY_STATUSES:
            raise self._not_given(answer)
        raise _BrokenOffError(f"the server answered {answer}")

    def _receive(self, response: Any, start: int) -> None:
        length = response.headers.get("Content-Length") or ""
        total = int(length) if re.fullmatch(r"[0-9]{1,15}", length) else 0
        if getattr(response, "status", None) == 206:
            given = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
            if given is None or int(given[1]) != start:
                self.clear()
                raise _BrokenOffError("the server continued with another part than was asked for")
            total = int(given[2]) if given[2] != "*" else start + total
        else:
            start = 0  # the server sends the whole file
            self.clear()
        self._check_room(total, start)
        done = start
        self._report(done, total)
        while piece := response.read(_BYTES_PER_READ):
            done += len(piece)
            self._check_room(done, done)
            with self._clear_errors():
                self.part.write(piece)
                self.part.flush()
            self._report(done, total)
        if done < total:
            raise _BrokenOffError(f"the connection broke off at {done:,} of {total:,} bytes")

    def _check_room(self, total: int, done: int) -> None:
        if total > self.remote.most_bytes:
            self.clear()
            raise FormatError(
                f"the file at {self.remote.shown} is not the right one: it has {total:,} bytes or more where at most "
                f"{self.remote.most_bytes:,} are expected; look for {self.remote.name} by hand and put it at "
                f"{self.target}"
            )
        if total > done and total - done > (free := shutil.disk_usage(self.target.parent).free):
            raise StorageError(
                f"cannot fetch {self.remote.name} into {self.target.parent}: {total - done:,} bytes are to come "
                f"and {free:,} are free; make room there, or choose another folder"
            )

    def _reason(self, error: Exception) -> str:
        inner = getattr(error, "reason", error)
        reason = str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
        return redacted_message(" ".join(reason.split()), self.remote.url)

    def _not_given(self, answer: str) -> StorageError:
        return StorageError(
            f"cannot fetch {self.remote.shown}: the server answered {answer}; the file may have moved, "
            f"so look for {self.remote.name} by hand and put it at {self.target}"
        )

    def _clear_errors(self) -> contextlib.AbstractContextManager[None]:
        # a StorageError, because the download takes any other OSError for a problem of the network
        advice = "make room there and run it again, to continue from what is there"
        return clear_os_errors(f"write {self.part.name}", advice)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(f"fetching {self.remote.name}", done, total)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects within one server, and never from https to http.

    A server on the network could otherwise make this machine send requests to servers that only it can reach.
    """

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        location = headers.get("Location") or ""
        try:
            old, new = urlsplit(req.full_url), urlsplit(urljoin(req.full_url, location))
            allowed = new.hostname == old.hostname and new.scheme in (old.scheme, "https")
        except ValueError:  # an address that cannot be parsed
            allowed = False
        if not allowed:
            reason = f"and redirects to {redacted_address(location)}, which is another server or not http or https"
            raise urllib.error.HTTPError(req.full_url, code, reason, headers, fp)
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


@contextlib.contextmanager
def _open_part(target: Path) -> Iterator[IO[bytes]]:
    """Open ``NAME.part`` of the file ``target``, locked against other processes that fetch the same file.

    The lock ends with the process, also when that is killed. An empty file is removed at the end.
    """
    path = target.with_name(f"{target.name}.part")
    while True:
        with clear_os_errors(f"write {path}", "choose another folder"):
            part = path.open("ab")
        with part:
            _lock(part, target)
            if not _is_at(part, path):
                continue  # another process has finished and renamed the file that was opened here
            try:
                yield part
            finally:
                if not part.closed and _is_at(part, path) and _length(part) == 0:
                    path.unlink()
            return


def _lock(part: IO[bytes], target: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"{target.name} is being fetched into {target.parent} by another process; wait until that has ended"
        ) from None
    except OSError:
        pass  # a file system without locks: the last process to finish wins


def _is_at(part: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(part.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _length(part: IO[bytes]) -> int:
    return os.fstat(part.fileno()).st_size


def _check_address(remote: RemoteFile) -> None:
    try:
        parts = urlsplit(remote.url)
        _ = parts.port
        known = parts.scheme == "ftp" or (parts.scheme in ("http", "https") and "@" not in parts.netloc)
    except ValueError:  # its message quotes a wrong port, which may be part of a password
        known = False
    if not known or not parts.hostname:
        raise StorageError(
            f"cannot fetch {remote.shown}: expected an address with http, https or ftp, without a user and a password"
        )


def _record(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


def _digest(path: Path, method: str, progress: Progress | None) -> str:
    digest = hashlib.new(method, usedforsecurity=False)  # some systems forbid md5 for security
    size, done = path.stat().st_size, 0
    with path.open("rb") as stream:
        while piece := stream.read(_BYTES_PER_HASH):
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(f"checking {path.name.removesuffix('.part')}", done, size)
    return digest.hexdigest()
