"""One file over a network that breaks off, lies and corrupts: whole and checked at its place, or not there at all.

What has arrived is gone on with, in this run or a later one, as long as the server says that the file is still the
same, by its ETag or its time, or there is a checksum to tell in the end. FTP, as urllib speaks it, starts over.
"""

from __future__ import annotations

import http.client
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
from autojacobin.datasets._checksums import verify
from autojacobin.datasets._entries import RemoteFile
from autojacobin.datasets._network import Network, RedirectError
from autojacobin.datasets._part import Part, open_part
from autojacobin.errors import FormatError, StorageError

__all__ = ["download"]

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
