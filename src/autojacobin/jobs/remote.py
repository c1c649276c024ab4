"""Files of vectors that are not on this machine: counted by a look at their first bytes, fetched when rows are needed.

A stretch of a flat file (vecs, big-ann, npy) is again such a file but for its header, so only its bytes travel. Others
are fetched whole. What arrives lies in a temporary folder and is opened like any local file, with the same checks.
"""

from __future__ import annotations

import importlib
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.datasets import Vectors, open_vectors
from autojacobin.datasets._formats.npy import npy_header, read_header
from autojacobin.datasets._formats.registry import by_name
from autojacobin.datasets._formats.source import Source
from autojacobin.errors import AutoJacobinError, FormatError, MissingExtraError, StorageError

__all__ = ["describe", "expand", "fetched", "is_remote"]

_HEAD_BYTES = 2**17
_BYTES_AT_A_TIME = 2**24


def is_remote(path: str) -> bool:
    """Whether a path is an address for fsspec, such as ``s3://bucket/part-0.npy``."""
    return "://" in path and not path.startswith(("file://", "local://"))


def expand(pattern: str) -> list[str]:
    """Addresses of the files that match a pattern."""
    with _clear_errors(pattern):
        system, path = _file_system(pattern)
        _, chain, outer = pattern.partition("::")  # zip://*.npy::s3://bucket/all.zip
        found = system.glob(path) if any(sign in path for sign in "*?[") else [path]
        return [system.unstrip_protocol(match) + chain + outer for match in found]


def describe(url: str) -> tuple[tuple[int, int], np.dtype[Any], str]:
    """Shape and type of the vectors in a file, and a stamp that changes when the file does."""
    with _clear_errors(url):
        system, path = _file_system(url)
        size, stamp = int(system.size(path)), str(system.ukey(path))
        layout = _layout(url, system.read_block(path, 0, _HEAD_BYTES), size)
    if layout is not None:
        return (layout.rows, layout.width), layout.dtype, stamp
    with _opened(url, None, 0, 0) as vectors:
        return vectors.shape, vectors.dtype, stamp


@contextmanager
def fetched(url: str, start: int, stop: int) -> Iterator[tuple[Vectors, int]]:
    """Lend the vectors of a file with the number of its first row that is there; rows ``start`` to ``stop`` are."""
    with _clear_errors(url):
        system, path = _file_system(url)
        layout = _layout(url, system.read_block(path, 0, _HEAD_BYTES), int(system.size(path)))
    if layout is not None and stop > layout.rows:
        raise FormatError(
            f"{redacted_address(url)} has {layout.rows} vectors, expected at least {stop}; it was changed meanwhile"
        )
    with _opened(url, layout, start, stop) as vectors:
        yield vectors, 0 if layout is None else start


@dataclass(frozen=True)
class _Layout:
    """Where the rows of a flat file are, and the header of a file with some of them."""

    rows: int
    width: int
    dtype: np.dtype[Any]
    first_byte: int
    row_bytes: int
    header: Callable[[int], bytes]


def _layout(url: str, head: bytes, size: int) -> _Layout | None:
    """Layout of a file, unless it is one that has to be there whole to be read or even to be counted."""
    format, packed = by_name(Path(_name(url)))
    if packed or format is None:
        return None
    if format.name == "npy":
        shape, columns_first, dtype, start = read_header(_source(url, head))
        if columns_first or len(shape) != 2 or dtype.kind not in "biuf" or size != start + _bytes(shape, dtype):
            return None  # opened whole, which says what is wrong with it
        width = shape[1]
        return _Layout(shape[0], width, dtype, start, width * dtype.itemsize, lambda n: npy_header(n, width, dtype))
    if format.name in ("fvecs", "bvecs", "ivecs") and len(head) >= 4 and format.dtype is not None:
        width = struct.unpack_from("<i", head)[0]
        stride = 4 + width * format.dtype.itemsize
        if width < 1 or size % stride:
            return None
        return _Layout(size // stride, width, format.dtype, 0, stride, lambda _: b"")
    if format.name in ("fbin", "u8bin", "i8bin", "ibin") and len(head) >= 8 and format.dtype is not None:
        rows, width = struct.unpack_from("<II", head)
        if rows < 1 or width < 1 or size != 8 + _bytes((rows, width), format.dtype):
            return None
        stride = width * format.dtype.itemsize
        return _Layout(rows, width, format.dtype, 8, stride, lambda n: struct.pack("<II", n, width))
    return None


def _name(url: str) -> str:
    """Name of the file, which tells its format: without the query, where signatures are."""
    path = url.partition("::")[0].partition("?")[0]
    return PurePosixPath(path.partition("#")[0] if path.startswith("http") else path).name


def _source(url: str, head: bytes) -> Source:
    # the address is for messages, and a Path would eat a slash of it
    return Source(redacted_address(url), np.frombuffer(head, dtype=np.uint8))  # type: ignore[arg-type]


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return shape[0] * shape[1] * dtype.itemsize


@contextmanager
def _opened(url: str, layout: _Layout | None, start: int, stop: int) -> Iterator[Vectors]:
    with tempfile.TemporaryDirectory(prefix="autojacobin-") as folder:
        format, packed = by_name(Path(_name(url)))  # the name itself may have a part of a password in it
        copy = Path(folder) / f"copy{format.extensions[0] if format else ''}{'.gz' if packed else ''}"
        with _clear_errors(url):
            system, path = _file_system(url)
            if layout is None:
                system.get_file(path, str(copy))
            else:
                with open(copy, "wb") as stream:
                    stream.write(layout.header(stop - start))
                    at, end = (layout.first_byte + row * layout.row_bytes for row in (start, stop))
                    while at < end:
                        block = system.read_block(path, at, min(_BYTES_AT_A_TIME, end - at))
                        if not block:
                            raise FormatError(
                                f"{redacted_address(url)} ends at byte {at}, expected {end}; it was changed meanwhile"
                            )
                        stream.write(block)
                        at += len(block)
        where = redacted_address(url) + ("" if layout is None else f" (from row {start} on)")
        try:
            with open_vectors(copy) as vectors:
                yield vectors
        except FormatError as error:
            raise FormatError(str(error).replace(str(copy), where)) from safe_cause(error, url)


def _file_system(url: str) -> tuple[Any, str]:
    try:
        fsspec = importlib.import_module("fsspec")
    except ImportError:
        raise MissingExtraError("fsspec", "cluster", f"reading {redacted_address(url)}") from None
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


@contextmanager
def _clear_errors(url: str) -> Iterator[None]:
    """Tell in one sentence what a remote store says; each has errors of its own, so all are caught."""
    shown = redacted_address(url)
    try:
        yield
    except AutoJacobinError:
        raise
    except FileNotFoundError as error:
        cause = safe_cause(error, url)
        raise StorageError(f"cannot read {shown}: there is no such file; look at the spelling") from cause
    except Exception as error:
        reason = redacted_message(" ".join(str(error).split()), url) or type(error).__name__
        cause = safe_cause(error, url)
        raise StorageError(f"cannot read {shown}: {reason}; look at the address and at your rights to it") from cause
