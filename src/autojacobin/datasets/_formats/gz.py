"""gzip around a file: unpacked once, in bounded memory, to a temporary file that is mapped in its place."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator

from autojacobin.datasets._formats.source import Source, clear_os_errors, damaged, spooled
from autojacobin.errors import FormatError

__all__ = ["unpacked"]

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
