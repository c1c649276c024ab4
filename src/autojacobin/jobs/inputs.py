"""Many files of vectors as one matrix: found by patterns, counted by their headers, read by the number of a row.

The files stand one below the other in the order of their paths, so a vector has a row number, and thereby an id, that
depends on nothing but the files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.addresses import redacted_address
from autojacobin.datasets import open_vectors
from autojacobin.datasets._formats.source import as_path
from autojacobin.errors import DataError, FormatError, StorageError
from autojacobin.jobs.remote import describe, expand, fetched, is_remote

__all__ = ["InputFile", "Inputs", "Patterns", "Piece", "find_files", "naming", "opened", "survey"]

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
