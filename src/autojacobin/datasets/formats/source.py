"""The bytes of a file: mapped where possible, unpacked where they are compressed, with errors in one sentence."""

from __future__ import annotations

import gzip
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import check_not_special, clear_os_errors, os_reason
from autojacobin.errors import AutoJacobinError, FormatError, reason_of

_BYTES_PER_READ = 2**20


@dataclass(frozen=True)
class Source:
    """Bytes of a file, with its path for the messages."""

    path: Path
    content: npt.NDArray[np.uint8]

    def head(self, count: int) -> bytes:
        """Give the first ``count`` bytes, or all if there are fewer."""
        return self.content[:count].tobytes()

    def __len__(self) -> int:
        return len(self.content)


def open_source(path: Path) -> Source:
    """Map a file of any size; its bytes are read when they are used."""
    with clear_read_errors(path):
        check_not_special(path, "read", "a file of vectors")
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise FormatError(f"{path} is empty (0 bytes), expected a file of vectors; write or fetch it again")
            return Source(path, _mapped(file))


def unpacked(source: Source) -> Source:
    """Decompress a gzip file."""
    content = spooled(_chunks(source), f"unpack {source.path}")
    if not len(content):
        raise FormatError(f"{source.path} is empty when unpacked, expected a file of vectors; write or fetch it again")
    return Source(source.path, content)


def spooled(chunks: Iterable[Any], doing: str) -> npt.NDArray[np.uint8]:
    """Map an unnamed temporary file of ``chunks``, bytes or arrays, whose space is free when the map is deleted."""
    advice = "make room there, or name another folder in the environment variable TMPDIR"
    with (
        clear_os_errors(f"{doing} in the temporary folder {tempfile.gettempdir()}", advice),
        tempfile.TemporaryFile() as file,
    ):
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        return _mapped(file) if file.tell() else np.empty(0, dtype=np.uint8)


def clear_read_errors(path: Path) -> AbstractContextManager[None]:
    """Translate errors of the operating system while a file is read into one sentence."""

    def explain(error: OSError) -> str:
        if isinstance(error, FileNotFoundError):
            return "there is no such file; check the spelling, or fetch it first"
        return f"{os_reason(error)}; check its permissions"

    return clear_os_errors(f"read {path}", explain)


@contextmanager
def clear_foreign_errors(path: Path, format: str) -> Iterator[None]:
    """Translate an error of another library about the content of a file into one sentence."""
    try:
        yield
    except AutoJacobinError:
        raise
    except Exception as error:  # on damaged files, readers raise errors of many kinds
        raise damaged(path, format, reason_of(error, 200)) from error


def damaged(path: Path, format: str, what: str) -> FormatError:
    """Make the error for a file whose bytes are not those of its format."""
    return FormatError(
        f"{path} is damaged or is not a {format} file, got {what}; write or fetch it again, "
        "or name its format, if it is another"
    )


def _chunks(source: Source) -> Iterator[bytes]:
    with clear_foreign_errors(source.path, "gzip"), gzip.open(source.path) as file:
        while chunk := file.read(_BYTES_PER_READ):
            yield chunk


def _mapped(file: BinaryIO) -> npt.NDArray[np.uint8]:
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
