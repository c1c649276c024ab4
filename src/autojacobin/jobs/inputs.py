"""The files that a job reads, here or at addresses of fsspec, as one sequence of rows."""

from __future__ import annotations

import glob
import importlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.addresses import redacted_address, redacted_message, safe_cause
from autojacobin.datasets import Vectors, open_vectors
from autojacobin.datasets.formats.npy import npy_header, read_header
from autojacobin.datasets.formats.registry import by_name
from autojacobin.datasets.formats.source import Source, as_path
from autojacobin.errors import AutoJacobinError, DataError, FormatError, MissingExtraError, StorageError

__all__ = [
    "InputFile", "Inputs", "Patterns", "Piece", "describe", "expand", "fetched", "find_files", "is_remote", "naming",
    "opened", "survey",
]  # fmt: skip

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


Patterns = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A path, a pattern such as ``base/*.npy`` or ``s3://bucket/*.parquet``, or several of them."""

_FILES_AT_ONCE = 16  # a look at a header is a wait for a disk or for a network


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of a file."""

    path: str
    start: int
    stop: int

    def __str__(self) -> str:
        return redacted_address(self.path)

    def __repr__(self) -> str:  # which Dask writes into the logs of its workers
        return f"Piece({redacted_address(self.path)!r}, {self.start}, {self.stop})"


@dataclass(frozen=True)
class InputFile:
    """What is known of a file without reading its vectors; ``stamp`` changes when the file does."""

    path: str
    rows: int
    width: int
    dtype: str
    stamp: str

    def __str__(self) -> str:
        return redacted_address(self.path)

    def __repr__(self) -> str:
        return f"InputFile({redacted_address(self.path)!r}, {self.rows}, {self.width}, {self.dtype!r})"


@dataclass(frozen=True)
class Inputs:
    """Files one below the other, of one width; ``dtype`` is the one that holds the numbers of all of them."""

    files: tuple[InputFile, ...]
    width: int
    dtype: np.dtype[Any]
    offsets: npt.NDArray[np.int64] = field(compare=False)

    @property
    def rows(self) -> int:
        """Vectors in all files."""
        return int(self.offsets[-1])

    def pieces(self, start: int, stop: int) -> tuple[Piece, ...]:
        """Where the rows ``start`` to ``stop`` of the whole are."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        pieces = []
        for number in range(first, len(self.files)):
            offset, end = int(self.offsets[number]), int(self.offsets[number + 1])
            if offset >= stop:
                break
            pieces.append(Piece(self.files[number].path, max(start, offset) - offset, min(stop, end) - offset))
        return tuple(pieces)


def survey(patterns: Patterns) -> Inputs:
    """Look at every file that matches a pattern: its shape and type, from its header where the format has one.

    Parameters
    ----------
    patterns : path, pattern, or several of them
        Paths and patterns such as ``base/*.npy``, here or at an address of fsspec such as ``s3://bucket/*.parquet``.
        A file that matches several counts once.
    """
    paths = find_files(patterns)
    with ThreadPoolExecutor(min(_FILES_AT_ONCE, len(paths))) as pool:
        files = tuple(pool.map(_look_at, paths))
    for file in files:
        if file.width != files[0].width:
            raise DataError(
                f"all files must hold vectors of one dimension, got {file.width} in {file} and {files[0].width} "
                f"in {files[0]}; leave out what does not belong"
            )
    offsets = np.cumsum([0, *(file.rows for file in files)], dtype=np.int64)
    return Inputs(files, files[0].width, np.result_type(*{file.dtype for file in files}), offsets)


def find_files(patterns: Patterns) -> list[str]:
    """Paths of all files that match a pattern, each once and in order."""
    single = isinstance(patterns, str | bytes | os.PathLike) or not isinstance(patterns, Iterable)
    listed: list[Any] = [patterns] if single else list(patterns)  # type: ignore[arg-type]
    if not listed:
        raise DataError("there are no files to read, got an empty list; give at least one path or pattern")
    found: set[str] = set()
    for pattern in listed:
        if isinstance(pattern, str) and is_remote(pattern):
            matches = expand(pattern)
        else:
            matches = _here(os.fspath(as_path(_without_protocol(pattern))))
        if not matches:
            raise StorageError(
                f"no file matches {redacted_address(pattern)}, expected at least one; look at the spelling"
            )
        found.update(matches)
    return sorted(found)


def _without_protocol(pattern: Any) -> Any:
    if not isinstance(pattern, str):
        return pattern
    return pattern.removeprefix("file://").removeprefix("local://")


def _here(pattern: str) -> list[str]:
    # a name with brackets in it is a name if there is such a file
    named = os.path.exists(pattern) or not glob.has_magic(pattern)
    matches = [pattern] if named else glob.glob(pattern, recursive=True)
    return [os.path.abspath(match) for match in matches]  # workers have other working folders


def _look_at(path: str) -> InputFile:
    if is_remote(path):
        (rows, width), dtype, stamp = describe(path)
    else:
        with open_vectors(path) as vectors:
            (rows, width), dtype = vectors.shape, vectors.dtype
        status = os.stat(path)
        stamp = f"{status.st_size}-{status.st_mtime_ns}"
    return InputFile(path, rows, width, dtype.str, stamp)


@contextmanager
def opened(piece: Piece) -> Iterator[tuple[Callable[[Any], npt.NDArray[Any]], int]]:
    """Lend a function from rows (numbers, or a slice of them) to vectors, and the row of the file that is its row 0."""
    if is_remote(piece.path):
        with fetched(piece.path, piece.start, piece.stop) as (vectors, first):
            _refuse_shortened(piece, first + len(vectors))
            yield vectors.__getitem__, first
    else:
        with open_vectors(piece.path) as vectors:
            _refuse_shortened(piece, len(vectors))
            yield vectors.__getitem__, 0


def _refuse_shortened(piece: Piece, rows: int) -> None:
    if piece.stop > rows:
        raise FormatError(
            f"{piece} holds {rows} vectors, expected {piece.stop} or more as when the work began; leave the file "
            "alone meanwhile, and begin again"
        )


@contextmanager
def naming(piece: Piece) -> Iterator[None]:
    """Name the file in errors that speak of vectors and do not know where these come from."""
    try:
        yield
    except (FormatError, StorageError):
        raise  # which name their file
    except DataError as error:
        where = f"in rows {piece.start} to {piece.stop - 1} of {piece}"
        raise type(error)(f"{where}: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read {piece}: {(error.strerror or str(error)).lower()}") from error
