"""Download files: resumed where they broke off, checked against a checksum, whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn
from urllib.parse import urlsplit

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.files import clear_os_errors, write_atomically
from autojacobin.core.parallel import Progress
from autojacobin.datasets.entries import RemoteFile
from autojacobin.datasets.network import Network, RedirectError
from autojacobin.errors import FormatError, StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["download", "first_checksum", "keep_checksum", "verify"]

_BYTES_PER_READ = 2**16
_BYTES_PER_HASH = 2**20
_RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)  # after these the server may still give the file
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15}|\*)")
_VALIDATORS = ("ETag", "Last-Modified")


def download(
    remote: RemoteFile,
    target: Path,
    progress: Progress | None = None,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
    network: Network | None = None,
) -> None:
    """Download a file to ``target``, or raise an error that says in one sentence what went wrong.

    Parameters
    ----------
    remote : RemoteFile
        What to download, and what is known of it.
    target : Path
        Path of the file, which appears when it is whole and checked.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` in bytes; ``total`` is 0 where the server does not say.
    tries : int
        Number of attempts in a row without progress after which it gives up.
    timeout : float
        Seconds without a byte after which a connection counts as broken.
    pause : float
        Seconds to wait before the next attempt, doubled after each attempt without progress.
    network : Network, optional
        Opens the addresses.
    """
    _check_address(remote)
    with _open_part(target) as part:
        transfer = _Transfer(remote, part, target, progress, timeout, network or Network())
        fruitless, furthest = 0, len(part)
        while True:
            try:
                transfer.attempt()
                break
            except _UnreachableError as error:
                reason: Exception = error
                if furthest == 0:
                    raise StorageError(
                        f"cannot reach {urlsplit(remote.url).hostname} ({error}): there is no network, or the server "
                        f"is down; fetch {remote.shown} by other means, put it at {target}, and run this again"
                    ) from None
            except _BrokenOffError as error:
                reason = error
            # counted from the furthest point: a server that always starts over must not be asked forever
            fruitless = 0 if len(part) > furthest else fruitless + 1
            furthest = max(furthest, len(part))
            if fruitless >= tries:
                raise StorageError(
                    f"cannot fetch {remote.shown}: {reason}, {tries} times without getting further; "
                    f"{len(part):,} bytes are kept, so run it again later, or put the file at {target} by hand"
                ) from None
            time.sleep(pause * 2**fruitless)
        try:
            verify(remote, part.path, target, progress)
        except FormatError:
            part.discard()
            raise
        part.become(target)


def verify(remote: RemoteFile, path: Path, target: Path, progress: Progress | None = None) -> None:
    """Compare the file at ``path`` with what is known of the one that belongs at ``target``."""
    size = path.stat().st_size
    wrong = accept = ""
    if remote.size is not None and size != remote.size:
        wrong = f"it has {size:,} bytes where {remote.size:,} are expected"
    elif remote.checksum is not None:
        method, expected = remote.checksum.split(":")
        got = _digest(path, method, progress)
        wrong = f"its {method} is {got} where {expected} is published" if got != expected else ""
    elif (first := first_checksum(target)) is not None:
        got = _digest(path, "sha256", progress)
        record = _record(target).name
        wrong = f"its sha256 is {got} where that of the first fetch was {first}, says {record}" if got != first else ""
        accept = f"; if its owners have changed the file, delete {_record(target)} first, to accept the new one"
    if wrong:
        advice = f"delete {target} and fetch it again" if path == target else "what came is deleted, fetch it again"
        raise FormatError(f"{target.name} is damaged, or not the file at {remote.shown}: {wrong}; {advice}{accept}")


def keep_checksum(remote: RemoteFile, target: Path, progress: Progress | None = None) -> None:
    """Write ``NAME.sha256`` beside a file whose owners publish no checksum, if it is not there yet."""
    if remote.checksum is None and first_checksum(target) is None:
        write_atomically(_record(target), f"{_digest(target, 'sha256', progress)}  {target.name}\n".encode())


def first_checksum(target: Path) -> str | None:
    """Give the SHA-256 of a file when it was first fetched, or None if it was not; a damaged record is refused."""
    record = _record(target)
    try:
        words = record.read_text(encoding="utf-8", errors="replace").split(maxsplit=1)
    except FileNotFoundError:
        return None
    if not words or not re.fullmatch("[0-9a-f]{64}", words[0]):
        raise FormatError(
            f"{record} is damaged, expected the SHA-256 of {target.name} as it was first fetched; delete it, and the "
            "next fetch is trusted"
        )
    return words[0]


class _BrokenOffError(Exception):
    """The transfer ended early; another attempt may continue it."""


class _UnreachableError(Exception):
    """No connection to the server could be made."""


@dataclass(frozen=True)
class _Transfer:
    """What all attempts to download one file share."""

    remote: RemoteFile
    part: _Part
    target: Path
    progress: Progress | None
    timeout: float
    network: Network

    def attempt(self) -> None:
        """Ask for the missing bytes and write them; returns when the file is complete."""
        validator = self.part.validator(self.remote.url)
        if not validator and self.remote.checksum is None:
            self.part.clear()  # nothing would show that the rest is from another file
        start = len(self.part)
        headers = {"User-Agent": "autojacobin", "Accept-Encoding": "identity"}
        if start:
            headers |= {"Range": f"bytes={start}-", **({"If-Range": validator} if validator else {})}
        try:
            with self._open(headers, start) or contextlib.nullcontext() as response:
                if response is not None:
                    self._receive(response, start)
        except StorageError:
            raise
        except (http.client.HTTPException, OSError) as error:
            raise _BrokenOffError(f"the connection broke off ({self._reason(error)})") from None

    def _open(self, headers: dict[str, str], start: int) -> Any:
        """Give the response of the server, or None if it says that the file is complete already."""
        try:
            return self.network.open(urllib.request.Request(self.remote.url, headers=headers), self.timeout)
        except RedirectError as error:
            raise StorageError(
                f"cannot fetch {self.remote.shown}: {error}; look for {self.remote.name} by hand and put it at "
                f"{self.target}"
            ) from None
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{start}":
                    return None
                self._refused(error)
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionResetError | BrokenPipeError):
                raise _BrokenOffError(f"the connection broke off ({self._reason(error)})") from None
            if re.search(r"ftp error.*\b5[0-9][0-9]\b", self._reason(error)):
                raise StorageError(self._not_given(self._reason(error))) from None
            raise _UnreachableError(self._reason(error)) from None

    def _refused(self, error: urllib.error.HTTPError) -> NoReturn:
        if error.code == 416:  # the part on the disk is longer than the file, which has changed
            self.part.clear()
        elif error.code not in _RETRY_STATUSES:
            raise StorageError(self._not_given(f"{error.code} {self._reason(error)}"))
        raise _BrokenOffError(f"the server answered {error.code} {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        inner = getattr(error, "reason", error)
        reason = str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
        return redacted_message(" ".join(reason.split()), self.remote.url)

    def _not_given(self, answer: str) -> str:
        return (
            f"cannot fetch {self.remote.shown}: the server answered {answer}; the file may have moved, "
            f"so look for {self.remote.name} by hand and put it at {self.target}"
        )

    def _receive(self, response: Any, start: int) -> None:
        partial = getattr(response, "status", None) == 206
        announced = self._end_of_range(response, start) if partial else _content_length(response)
        if not partial:
            start = 0  # the server sends the whole file: it has changed, or the server does not support ranges
        self._check_length(announced, start)
        if start == 0:
            self.part.begin(self.remote.url, response.headers)
        total, done = announced or self.remote.size or 0, start
        self._report(done, total)
        while piece := response.read(_BYTES_PER_READ):
            done += len(piece)
            if done > self.remote.most_bytes:
                self._refuse_length(done, f"at most {self.remote.most_bytes:,}")
            self.part.write(piece)
            self._report(done, total)
        if done < total:
            raise _BrokenOffError(f"the connection broke off at {done:,} of {total:,} bytes")

    def _end_of_range(self, response: Any, start: int) -> int:
        """Length of the whole file from the header of a range, which must begin where it was asked to."""
        given = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
        if given is None or int(given[1]) != start or not self.part.belongs_to(response.headers):
            self.part.clear()
            raise _BrokenOffError("the server went on with another part, or another file, than was asked for")
        return int(given[2]) if given[2] != "*" else start + _content_length(response)

    def _check_length(self, announced: int, start: int) -> None:
        if announced and self.remote.size not in (None, announced):
            self._refuse_length(announced, f"exactly {self.remote.size:,}")
        if announced > self.remote.most_bytes:
            self._refuse_length(announced, f"at most {self.remote.most_bytes:,}")
        free = shutil.disk_usage(self.target.parent).free
        if announced - start > free:
            raise StorageError(
                f"cannot fetch {self.remote.name} into {self.target.parent}: {announced - start:,} bytes are to come "
                f"and {free:,} are free; make room there, or choose another folder"
            )

    def _refuse_length(self, got: int, expected: str) -> NoReturn:
        self.part.discard()
        raise FormatError(
            f"the file at {self.remote.shown} is not the right one: it has {got:,} bytes or more where {expected} are "
            f"expected; look for {self.remote.name} by hand and put it at {self.target}"
        )

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(f"fetching {self.remote.name}", done, total)


class _Part:
    """The first bytes of a file in ``NAME.part``, with the ETag and time of the server in ``NAME.part.json``."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self.path = stream, path
        self._state = path.with_name(f"{path.name}.json")

    def __len__(self) -> int:
        return self._stream.seek(0, os.SEEK_END)

    def write(self, piece: bytes) -> None:
        with self._clear_errors():
            self._stream.write(piece)
            self._stream.flush()

    def begin(self, url: str, headers: Mapping[str, str]) -> None:
        """Empty the file, and keep what the server says about the file that now begins."""
        self.clear()
        known = {"url": redacted_address(url), **{name: headers[name] for name in _VALIDATORS if headers.get(name)}}
        with self._clear_errors():
            write_atomically(self._state, json.dumps(known).encode())

    def validator(self, url: str) -> str:
        """Give the value for If-Range: a strong ETag or a time, or empty text if there is neither."""
        known = self._known()
        etag = known.get("ETag", "")
        if known.get("url") != redacted_address(url):
            return ""
        return etag if etag and not etag.startswith("W/") else known.get("Last-Modified", "")

    def belongs_to(self, headers: Mapping[str, str]) -> bool:
        """Whether these headers can be those of the same file."""
        known = self._known()
        return all(not known.get(name) or not headers.get(name) or known[name] == headers[name] for name in _VALIDATORS)

    def clear(self) -> None:
        with self._clear_errors():
            self._stream.seek(0)
            self._stream.truncate()

    def discard(self) -> None:
        self.clear()
        with self._clear_errors():
            self.path.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)

    def become(self, target: Path) -> None:
        """Rename it to the finished file."""
        with self._clear_errors():
            os.fsync(self._stream.fileno())
            if fcntl is None:
                self._stream.close()  # Windows cannot rename an open file
            os.replace(self.path, target)
            self._state.unlink(missing_ok=True)

    def _clear_errors(self) -> contextlib.AbstractContextManager[None]:
        # a StorageError, because the download takes any other OSError for a problem of the network
        return clear_os_errors(f"write {self.path}", "make room there and run it again, to continue from what is there")

    def _known(self) -> dict[str, str]:
        try:
            known = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(key): str(value) for key, value in known.items()} if isinstance(known, dict) else {}


@contextlib.contextmanager
def _open_part(target: Path) -> Iterator[_Part]:
    """Open ``NAME.part`` of the file ``target``, locked against other processes that fetch the same file.

    The lock ends with the process, also when that is killed.
    """
    path = target.with_name(f"{target.name}.part")
    while True:
        with clear_os_errors(f"write {path}", "choose another folder"):
            stream = path.open("ab")
        with stream:
            _lock(stream, target)
            if not _is_at(stream, path):
                continue  # another process has finished and renamed the file that was opened here
            part = _Part(stream, path)
            try:
                yield part
            finally:
                if not stream.closed and _is_at(stream, path) and len(part) == 0:
                    part.discard()
            return


def _lock(stream: IO[bytes], target: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StorageError(
            f"{target.name} is being fetched into {target.parent} by another process; wait until that has ended"
        ) from None
    except OSError:
        pass  # a file system without locks: the last process to finish wins


def _is_at(stream: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _content_length(response: Any) -> int:
    length = response.headers.get("Content-Length") or ""
    return int(length) if re.fullmatch(r"[0-9]{1,15}", length) else 0


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
