"""The IDX files of MNIST and Fashion-MNIST, compressed or not.

A file begins with two zero bytes, a byte for the type of the values, a byte for the number of axes, and the length of
each axis as a big-endian 32-bit integer; the values follow in C order.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import FormatError, StorageError

__all__ = ["read_idx"]

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_MOST_BYTES = 2**32  # no file of the family comes near; a header that asks for more is damaged
_BYTES_AT_ONCE = 2**20


def read_idx(path: Path) -> npt.NDArray[Any]:
    """Read an IDX file whole, in the byte order of the machine.

    The lengths in the header are checked against what the file holds before memory is taken for more than that.
    """
    with _opened(path) as stream:
        start = stream.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES or not 1 <= start[3] <= 8:
            raise FormatError(
                f"{path} is not an IDX file: it begins with the bytes {start.hex(' ') or '(none)'}, "
                "expected 00 00, a type from 08 to 0e and a number of axes from 1 to 8; fetch it anew"
            )
        axes = stream.read(4 * start[3])
        if len(axes) < 4 * start[3]:
            raise FormatError(f"{path} is cut off: it ends inside its header, at byte {4 + len(axes)}; fetch it anew")
        shape = tuple(int(length) for length in np.frombuffer(axes, dtype=">u4"))
        dtype = np.dtype(_TYPES[start[2]])
        wanted = math.prod(shape) * dtype.itemsize
        if not 0 < wanted <= _MOST_BYTES:
            raise FormatError(f"{path} is damaged: its header announces an array of shape {shape}; fetch it anew")
        content = _at_most(stream, wanted + 1)
    if len(content) != wanted:
        got = f"only {len(content):,}" if len(content) < wanted else "more"
        raise FormatError(
            f"{path} is damaged: expected {wanted:,} bytes of values after the header, got {got}; fetch it anew"
        )
    return np.frombuffer(content, dtype=dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _at_most(stream: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    # piece by piece, so that memory is taken for what is there, and not for what the header says
    pieces = []
    while most and (piece := stream.read(min(most, _BYTES_AT_ONCE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    try:
        with path.open("rb") as raw:
            compressed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if compressed:
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield stream
            else:
                yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"{path} cannot be unpacked: {error}; fetch it anew") from error
    except OSError as error:
        raise StorageError(
            f"cannot read {path}: {error.strerror or error}; check the path and its permissions"
        ) from error
