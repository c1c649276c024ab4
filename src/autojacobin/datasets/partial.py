"""The beginning of a file that is being fetched, and what tells whether the rest on the server still belongs to it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from autojacobin.core.addresses import redacted_address
from autojacobin.core.files import write_atomically
from autojacobin.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["Part", "open_part"]

_VALIDATORS = ("ETag", "Last-Modified")


class Part:
    """``NAME.part``, open at its end, with the validators of the server beside it in ``NAME.part.json``."""

    def __init__(self, stream: IO[bytes], path: Path) -> None:
        self._stream, self.path = stream, path
        self._state = path.with_name(f"{path.name}.json")

    def __len__(self) -> int:
        return self._stream.seek(0, os.SEEK_END)

    def write(self, piece: bytes) -> None:
        """Add to the end; what does not fit on the disk is an error that says so."""
        with self._clear_errors():
            self._stream.write(piece)
            self._stream.flush()

    def begin(self, url: str, headers: Mapping[str, str]) -> None:
        """Forget what was there and remember what the server says of the file that now begins."""
        self.clear()
        known = {"url": redacted_address(url), **{name: headers[name] for name in _VALIDATORS if headers.get(name)}}
        with self._clear_errors():
            write_atomically(self._state, json.dumps(known).encode())

    def validator(self, url: str) -> str:
        """Give what If-Range can be asked with: a strong ETag or a time; empty if there is neither."""
        known = self._known()
        etag = known.get("ETag", "")
        if known.get("url") != redacted_address(url):
            return ""
        return etag if etag and not etag.startswith("W/") else known.get("Last-Modified", "")

    def belongs_to(self, headers: Mapping[str, str]) -> bool:
        """Whether nothing in these headers of a server speaks against this being the same file."""
        known = self._known()
        return all(not known.get(name) or not headers.get(name) or known[name] == headers[name] for name in _VALIDATORS)

    def clear(self) -> None:
        """Make it empty."""
        with self._clear_errors():
            self._stream.seek(0)
            self._stream.truncate()

    def discard(self) -> None:
        """Leave nothing of it."""
        self.clear()
        with self._clear_errors():
            self.path.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)

    def sync(self) -> None:
        """Bring it to the disk."""
        with self._clear_errors():
            os.fsync(self._stream.fileno())

    def become(self, target: Path) -> None:
        """Take its place as the finished file."""
        if fcntl is None:
            self._stream.close()  # Windows does not rename what is open
        with self._clear_errors():
            os.replace(self.path, target)
            self._state.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _clear_errors(self) -> Iterator[None]:
        # or else the download would take trouble with the disk for trouble with the network
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"cannot write {self.path}: {error.strerror or error}; "
                "make room there and run it again, which goes on from what is here"
            ) from error

    def _known(self) -> dict[str, str]:
        try:
            known = json.loads(self._state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(key): str(value) for key, value in known.items()} if isinstance(known, dict) else {}


@contextlib.contextmanager
def open_part(target: Path) -> Iterator[Part]:
    """Open ``NAME.part`` of the file ``target``, held against other processes that fetch the same one.

    The lock goes with the process that holds it, however that ends, so that nothing stands in the way of going on.
    """
    path = target.with_name(f"{target.name}.part")
    while True:
        try:
            stream = path.open("ab")
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}; choose another folder") from error
        with stream:
            _lock(stream, target)
            if not _is_at(stream, path):
                continue  # another process finished in between, and renamed the file that was opened here
            part = Part(stream, path)
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
        pass  # a file system without locks, where the last one to finish wins


def _is_at(stream: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
