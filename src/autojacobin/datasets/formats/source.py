"""The bytes of a file: mapped where possible, unpacked where they are compressed, with errors in one sentence."""

from __future__ import annotations

import gzip
import mmap
import os
import re
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.core.addresses import redacted_address
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError, FormatError, StorageError

__all__ = [
    "DEFLATE_RATIO", "Source", "as_path", "clear_foreign_errors", "clear_os_errors", "damaged", "open_source",
    "refuse_special", "spooled", "unpacked",
]  # fmt: skip

_ADDRESS = re.compile("[A-Za-z][A-Za-z0-9+.-]+://")
DEFLATE_RATIO = 1032  # the most that deflate can shrink by; whoever promises more lies


@dataclass(frozen=True)
class Source:
    """Bytes of a file: where they come from, and where in the file they begin, for the messages."""

    path: Path
    content: npt.NDArray[np.uint8]
    start: int = 0

    def cut(self, start: int, stop: int) -> Source:
        """Give the bytes from ``start`` to ``stop``."""
        return replace(self, content=self.content[start:stop], start=self.start + start)

    def head(self, count: int) -> bytes:
        """Give the first ``count`` bytes, or all if there are fewer."""
        return self.content[:count].tobytes()

    def __len__(self) -> int:
        return len(self.content)


def as_path(path: Any) -> Path:
    """Give what the caller passed as a path."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise DataTypeError(
            f"path must be the path of a file or folder, got {type(path).__name__}; pass text or a Path"
        ) from None
    if "\0" in text:
        raise DataError(f"a path has no zero character in it, got {redacted_address(text)!r}; leave it out")
    if _ADDRESS.match(text) and not os.path.exists(text):
        raise DataError(
            f"a path on this machine is expected, got the address {redacted_address(text)}; fetch the file first, or "
            "read it with autojacobin.engines"
        )
    return Path(text)


def open_source(path: Path) -> Source:
    """Map a file, whatever its size; its bytes are read when they are looked at."""
    with clear_os_errors(path, "read"):
        if (what := _special(os.stat(path).st_mode)) is not None:
            raise StorageError(f"cannot read {path}: it is {what}, expected a file of vectors; give the path of a file")
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise FormatError(f"{path} is empty (0 bytes), expected a file of vectors; write or fetch it again")
            return Source(path, _mapped(file))


def refuse_special(path: Path) -> None:
    """Refuse to write over what is no file: a rename would put a plain file in the place of a device."""
    if os.path.exists(path) and (what := _special(os.stat(path).st_mode)) is not None:
        raise StorageError(f"cannot write {path}: it is {what}, expected a file or nothing; give the path of a file")


def _special(mode: int) -> str | None:
    if stat.S_ISREG(mode):
        return None
    return "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"


def spooled(chunks: Iterable[Any], doing: str) -> npt.NDArray[np.uint8]:
    """Map what ``chunks`` (bytes or contiguous arrays) amount to, kept in a temporary file that has no name any more.

    Memory stays bounded whatever comes, and the space is given back when nobody looks at the array any longer.
    ``doing`` is for the message when there is no room.
    """
    try:
        with tempfile.TemporaryFile() as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            return _mapped(file) if file.tell() else np.empty(0, dtype=np.uint8)
    except OSError as error:
        if isinstance(error, AutoJacobinError):
            raise
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot {doing} in the temporary folder {tempfile.gettempdir()}: {reason}; "
            "make room there, or name another folder in the environment variable TMPDIR"
        ) from error


def _mapped(file: BinaryIO) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


@contextmanager
def clear_os_errors(path: Path, doing: str) -> Iterator[None]:
    """Tell what the operating system refuses in one sentence; ``doing`` is "read" or "write"."""
    try:
        yield
    except OSError as error:
        if isinstance(error, AutoJacobinError):
            raise
        if isinstance(error, FileNotFoundError):
            missing = "there is no such file; look at the spelling, or fetch it first"
            reason = missing if error.strerror else str(error).removeprefix(f"cannot {doing} {path}: ")
        else:
            kept = "look at its permissions" if doing == "read" else "the path is as it was; mend this, and repeat"
            reason = f"{(error.strerror or str(error)).lower()}; {kept}"
        clear = StorageError(f"cannot {doing} {path}: {reason}")
        clear.errno = error.errno
        raise clear from error


@contextmanager
def clear_foreign_errors(path: Path, format: str) -> Iterator[None]:
    """Tell what another library thinks of the content of a file in one sentence.

    Their readers raise what they please on damaged files (ValueError, KeyError, OverflowError, RuntimeError, and
    errors of their own), so everything is caught.
    """
    try:
        yield
    except AutoJacobinError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise damaged(path, format, reason if len(reason) <= 200 else reason[:197] + "...") from error


def damaged(path: Path, format: str, what: str) -> FormatError:
    """Error for a file whose bytes are not those of its format."""
    return FormatError(
        f"{path} is damaged or is no {format} file, got {what}; write or fetch it again, "
        "or name its format if it is another (format=...)"
    )


_BYTES_AT_A_TIME = 2**20


def unpacked(source: Source) -> Source:
    """Give what is packed in a gzip file."""
    content = spooled(_chunks(source), f"unpack {source.path}")
    if not len(content):
        raise FormatError(f"{source.path} is empty when unpacked, expected a file of vectors; write or fetch it again")
    return Source(source.path, content)


def _chunks(source: Source) -> Iterator[bytes]:
    done = 0
    with clear_os_errors(source.path, "read"), open(source.path, "rb") as packed, gzip.GzipFile(fileobj=packed) as file:
        while True:
            try:
                chunk = file.read(_BYTES_AT_A_TIME)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                reason = "a stream that breaks off" if isinstance(error, EOFError) else str(error).lower()
                raise damaged(
                    source.path,
                    "gzip",
                    f"{reason} near byte {packed.tell()} of {len(source)}, {done} bytes into what is packed",
                ) from error
            if not chunk:
                return
            done += len(chunk)
            yield chunk
