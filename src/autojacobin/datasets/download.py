"""Download files: resumed where they broke off, checked against a checksum, whole or not there."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from autojacobin.core.addresses import redacted_message
from autojacobin.core.files import write_atomically
from autojacobin.datasets.entries import Entry, RemoteFile
from autojacobin.datasets.network import Network, RedirectError
from autojacobin.datasets.partial import Part, open_part
from autojacobin.datasets.unpack import unpack
from autojacobin.errors import FormatError, StorageError

__all__ = ["download", "fetch", "first_checksum", "keep_checksum", "verify"]

_BYTES_HASHED_AT_ONCE = 2**20


def verify(
    remote: RemoteFile, path: Path, target: Path, progress: Callable[[str, int, int], None] | None = None
) -> None:
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


def keep_checksum(remote: RemoteFile, target: Path, progress: Callable[[str, int, int], None] | None = None) -> None:
    """Write ``NAME.sha256`` beside a file whose owners publish no checksum, if it is not there yet."""
    if remote.checksum is None and first_checksum(target) is None:
        write_atomically(_record(target), f"{_digest(target, 'sha256', progress)}  {target.name}\n".encode())


def _record(target: Path) -> Path:
    return target.with_name(f"{target.name}.sha256")


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


def _digest(path: Path, method: str, progress: Callable[[str, int, int], None] | None) -> str:
    digest = hashlib.new(method, usedforsecurity=False)  # against accidents: systems may forbid md5 for anything else
    size, done = path.stat().st_size, 0
    with path.open("rb") as stream:
        while piece := stream.read(_BYTES_HASHED_AT_ONCE):
            digest.update(piece)
            done += len(piece)
            if progress is not None:
                progress(f"checking {path.name.removesuffix('.part')}", done, size)
    return digest.hexdigest()


_BYTES_AT_ONCE = 2**16
_LATER = (408, 425, 429, 500, 502, 503, 504)  # answers after which a server may yet give the file
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,15})-[0-9]{1,15}/([0-9]{1,15}|\*)")


class _BrokenOffError(Exception):
    """The transfer ended early; to go on from where it is may help."""


class _UnreachableError(Exception):
    """There was no talking to the server at all."""


def download(
    remote: RemoteFile,
    target: Path,
    progress: Callable[[str, int, int], None] | None = None,
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
        Where it shall be, once it is whole and checked.
    progress : callable, optional
        Called as ``progress(stage, done, total)`` in bytes; ``total`` is 0 where the server does not say.
    tries : int
        Attempts in a row that get no further before it is given up.
    timeout : float
        Seconds without a byte after which a connection counts as broken.
    pause : float
        Seconds to wait before the next attempt; doubled for each one in a row that got no further.
    network : Network, optional
        What opens addresses.
    """
    _refuse_other_addresses(remote)
    with open_part(target) as part:
        transfer = _Transfer(remote, part, target, progress, timeout, network or Network())
        fruitless, furthest = 0, len(part)
        while True:
            try:
                transfer.attempt()
                break
            except _UnreachableError as error:
                reason: Exception = error
                if furthest == 0:
                    raise StorageError(_no_network(remote, target, error)) from None
            except _BrokenOffError as error:
                reason = error
            # measured from the furthest point, or a server that always starts over would be asked without end
            fruitless = 0 if len(part) > furthest else fruitless + 1
            furthest = max(furthest, len(part))
            if fruitless >= tries:
                raise StorageError(
                    f"cannot fetch {remote.shown}: {reason}, {tries} times without getting further; "
                    f"{len(part):,} bytes are kept, so run it again later, or put the file at {target} by hand"
                ) from None
            time.sleep(pause * 2**fruitless)
        part.sync()
        try:
            verify(remote, part.path, target, progress)
        except FormatError:
            part.discard()
            raise
        part.become(target)


class _Transfer:
    """Everything that stays the same from one attempt to the next."""

    def __init__(
        self,
        remote: RemoteFile,
        part: Part,
        target: Path,
        progress: Callable[[str, int, int], None] | None,
        timeout: float,
        network: Network,
    ) -> None:
        self._remote, self._part, self._target = remote, part, target
        self._progress, self._timeout, self._network = progress, timeout, network

    def attempt(self) -> None:
        """Ask for what is missing and write it down; returns when all of it is here."""
        validator = self._part.validator(self._remote.url)
        if not validator and self._remote.checksum is None:
            self._part.clear()  # nothing would tell if the rest were that of another file
        start = len(self._part)
        headers = {"User-Agent": "autojacobin", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
            if validator:
                headers["If-Range"] = validator
        try:
            answer = self._open(headers, start)
            if answer is not None:
                with answer:
                    self._receive(answer, start)
        except StorageError:
            raise
        except (http.client.HTTPException, OSError) as error:
            raise _BrokenOffError(f"the connection broke off ({self._reason(error)})") from None

    def _open(self, headers: dict[str, str], start: int) -> Any:
        """Give the answer of the server, or None if it says that all of the file is here."""
        try:
            request = urllib.request.Request(self._remote.url, headers=headers)
            return self._network.open(request, self._timeout)
        except RedirectError as error:
            raise StorageError(
                f"cannot fetch {self._remote.shown}: {error}; look for {self._remote.name} by hand and put it at "
                f"{self._target}"
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
        if error.code == 416:  # what is here is longer than the file: it is another one by now
            self._part.clear()
        elif error.code not in _LATER:
            raise StorageError(self._not_given(f"{error.code} {self._reason(error)}"))
        raise _BrokenOffError(f"the server answered {error.code} {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        inner = getattr(error, "reason", error)
        reason = str(getattr(inner, "strerror", None) or inner or type(inner).__name__)
        return redacted_message(" ".join(reason.split()), self._remote.url)

    def _not_given(self, answer: str) -> str:
        return (
            f"cannot fetch {self._remote.shown}: the server answered {answer}; the file may have moved, "
            f"so look for {self._remote.name} by hand and put it at {self._target}"
        )

    def _receive(self, answer: Any, start: int) -> None:
        partial = getattr(answer, "status", None) == 206
        announced = self._end_of_range(answer, start) if partial else _content_length(answer)
        if not partial:
            start = 0  # all of it comes: the file changed, or the server cannot do otherwise
        self._check_length(announced, start)
        if start == 0:
            self._part.begin(self._remote.url, answer.headers)
        total = announced or self._remote.size or 0
        done = start
        self._tell(done, total)
        while piece := answer.read(_BYTES_AT_ONCE):
            done += len(piece)
            if done > self._remote.most_bytes:
                self._refuse_length(done, f"at most {self._remote.most_bytes:,}")
            self._part.write(piece)
            self._tell(done, total)
        if done < total:
            raise _BrokenOffError(f"the connection broke off at {done:,} of {total:,} bytes")

    def _end_of_range(self, answer: Any, start: int) -> int:
        """Length of the whole file as told with a part of it, which must go on exactly where it was asked to."""
        given = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range") or "")
        if given is None or int(given[1]) != start or not self._part.belongs_to(answer.headers):
            self._part.clear()
            raise _BrokenOffError("the server went on with another part, or another file, than was asked for")
        return int(given[2]) if given[2] != "*" else start + _content_length(answer)

    def _check_length(self, announced: int, start: int) -> None:
        if announced and self._remote.size not in (None, announced):
            self._refuse_length(announced, f"exactly {self._remote.size:,}")
        if announced > self._remote.most_bytes:
            self._refuse_length(announced, f"at most {self._remote.most_bytes:,}")
        free = shutil.disk_usage(self._target.parent).free
        if announced - start > free:
            raise StorageError(
                f"cannot fetch {self._remote.name} into {self._target.parent}: {announced - start:,} bytes are to come "
                f"and {free:,} are free; make room there, or choose another folder"
            )

    def _refuse_length(self, got: int, expected: str) -> NoReturn:
        self._part.discard()
        raise FormatError(
            f"the file at {self._remote.shown} is not the right one: it has {got:,} bytes or more where {expected} are "
            f"expected; look for {self._remote.name} by hand and put it at {self._target}"
        )

    def _tell(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(f"fetching {self._remote.name}", done, total)


def _content_length(answer: Any) -> int:
    length = answer.headers.get("Content-Length") or ""
    return int(length) if re.fullmatch(r"[0-9]{1,15}", length) else 0


def _no_network(remote: RemoteFile, target: Path, error: Exception) -> str:
    return (
        f"cannot reach {urlsplit(remote.url).hostname} ({error}): there is no network, or the server is down; "
        f"fetch {remote.shown} by other means, put it at {target}, and run this again"
    )


def _refuse_other_addresses(remote: RemoteFile) -> None:
    try:
        parts = urlsplit(remote.url)
        _ = parts.port
        known = parts.scheme == "ftp" or (parts.scheme in ("http", "https") and "@" not in parts.netloc)
    except ValueError:  # which quotes a port that is none, and may be part of a password
        known = False
    if not known or not parts.hostname:
        raise StorageError(
            f"cannot fetch {remote.shown}: expected an address with http, https or ftp, without a user and a password"
        )


def fetch(
    entry: Entry,
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    tries: int = 5,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """Bring the files of a set into ``folder/NAME`` and give that folder.

    Files that are there already, also those that somebody put there by hand, are checked and not downloaded again.
    The other parameters are those of ``_download.download``.
    """
    home = folder / entry.name
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {home}: {error.strerror}; choose another one with --data or AUTOJACOBIN_DATA"
        ) from error
    for remote in entry.files:
        if _is_unpacked(home, remote):
            continue
        target = home / remote.name
        try:
            if remote.checksum is None:
                first_checksum(target)  # or a damaged one would be found out after hours of fetching
            if os.path.isfile(target):
                verify(remote, target, target, progress)
            else:
                download(remote, target, progress, tries=tries, timeout=timeout, pause=pause)
            if remote.unpacked_bytes is not None:
                unpack(target, _unpacked(home, remote), remote.unpacked_bytes, inner=remote.inner, progress=progress)
            keep_checksum(remote, target, progress)  # once it has shown to be whole
            if remote.unpacked_bytes is not None:
                target.unlink()  # its vectors are here now, and it would take their room once more
        except OSError as error:
            if not os.path.exists(target) and _is_unpacked(home, remote):
                continue  # another process did the same, and was faster to take the archive away
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"cannot read or keep {target}: {error.strerror or error}; check its permissions, or make room there"
            ) from error
    return home


def _is_unpacked(home: Path, remote: RemoteFile) -> bool:
    return remote.unpacked_bytes is not None and os.path.isdir(_unpacked(home, remote))


def _unpacked(home: Path, remote: RemoteFile) -> Path:
    return home / remote.name.split(".", 1)[0]
