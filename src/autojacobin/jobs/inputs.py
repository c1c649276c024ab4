"""The files that a job reads, local or at addresses of fsspec, as one sequence of rows, cut into chunks.

Chunks begin where the blocks of a single machine do: equal codes need products of equally many rows.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.addresses import redacted_address, redacted_message
from autojacobin.core.counts import as_count
from autojacobin.core.files import as_path
from autojacobin.core.parallel import Progress
from autojacobin.core.sampling import as_random_state
from autojacobin.core.vectors import as_floats
from autojacobin.datasets import Vectors, open_vectors
from autojacobin.datasets.formats.flat import HEAD_BYTES, Layout, check_dimensions
from autojacobin.datasets.formats.source import clear_read_errors
from autojacobin.datasets.vector_files import by_name
from autojacobin.errors import AutoJacobinError, DataError, FormatError, StorageError, import_extra, reason_of
from autojacobin.index.segment import ROWS_PER_BLOCK

Patterns = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A path, a pattern such as ``base/*.npy`` or ``s3://bucket/*.parquet``, or several of them."""

ROWS_PER_CHUNK = 2**20
_BYTES_AT_A_TIME = 2**24
_FILES_AT_ONCE = 16  # reading a header is mostly waiting for a disk or a network
_CONTENT_FACTS = (  # by which the file systems of fsspec say that the content of a file is another one
    "size", "etag", "contentmd5", "md5hash", "digest", "crc", "hex", "blobid", "generation", "lastmodified", "mtime",
    "modified", "modify", "modificationtime", "updated", "created",
)  # fmt: skip


def survey(patterns: Patterns) -> Inputs:
    """Find the files that match patterns, each once, and read their shapes and types, from headers where possible."""
    paths = _find_files(patterns)
    with ThreadPoolExecutor(min(_FILES_AT_ONCE, len(paths))) as pool:
        files, widths, dtypes = zip(*pool.map(_inspect, paths), strict=True)
    for file, width in zip(files, widths, strict=True):
        if width != widths[0]:
            raise DataError(f"files must have one dimension, got {width} in {file} and {widths[0]} in {files[0]}")
    offsets = np.cumsum([0, *(file.stop for file in files)], dtype=np.int64)
    return Inputs(files, widths[0], np.result_type(*set(dtypes)), offsets)


def draw_sample(
    patterns: Patterns, n: SupportsIndex, *, random_state: Any = 0, progress: Progress | None = None
) -> npt.NDArray[Any]:
    """Draw ``n`` vectors from many files, uniformly and without replacement, in the order of the files and their rows.

    Each file is opened once. The sample has float32, or float64 if a file has them. ``progress`` counts files.
    """
    inputs = survey(patterns)
    wanted = as_count("n", n, inputs.rows, "the number of vectors in the files")
    rng = as_random_state(random_state)
    from sklearn.utils.random import sample_without_replacement  # only here: scikit-learn takes a second to load

    drawn = np.sort(sample_without_replacement(inputs.rows, wanted, random_state=rng).astype(np.int64))
    wide = inputs.dtype.kind == "f" and inputs.dtype.itemsize >= 8
    sample = np.empty((wanted, inputs.width), dtype=np.float64 if wide else np.float32)
    edges = np.searchsorted(drawn, inputs.offsets)
    for number, file in enumerate(inputs.files):
        here = slice(edges[number], edges[number + 1])
        rows = drawn[here] - inputs.offsets[number]
        if len(rows):
            with open_piece(replace(file, start=int(rows[0]), stop=int(rows[-1]) + 1)) as read:
                sample[here] = as_floats(read(rows).astype(inputs.dtype, copy=False))
        if progress is not None:
            progress("sampling", number + 1, len(inputs.files))
    return sample


@contextmanager
def open_piece(piece: Piece) -> Iterator[Callable[[Any], npt.NDArray[Any]]]:
    """Open the file of a piece; the block gets a function from ascending row numbers, or a slice, to vectors.

    A file that is another one than when it was first seen, before or after the block, is an error.
    """
    try:
        with _opened(piece.path) as (_, _, read):
            _check_same(piece)
            yield read
            _check_same(piece)
    except (FormatError, StorageError):
        raise  # these name their file
    except DataError as error:
        raise type(error)(f"in rows {piece.start} to {piece.stop - 1} of {piece}: {error}") from error
    except OSError as error:
        raise StorageError(f"cannot read {piece}: {(error.strerror or str(error)).lower()}") from error


@dataclass(frozen=True)
class Piece:
    """Rows ``start`` to ``stop`` of a file; Dask writes the others, but not its address, to the logs of its workers."""

    path: str = field(repr=False)
    start: int
    stop: int
    stamp: str  # changes when the file does

    def __str__(self) -> str:
        return redacted_address(self.path)


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows, in one file or over several, converted to ``dtype``, with ids from ``first_id`` on."""

    pieces: tuple[Piece, ...]
    first_id: int
    dtype: str
    digest: str  # differs if any of these does, or if a file has changed

    @property
    def rows(self) -> int:
        """Number of vectors."""
        return sum(piece.stop - piece.start for piece in self.pieces)

    def __str__(self) -> str:
        first, last = self.pieces[0], self.pieces[-1]
        return str(first) if len(self.pieces) == 1 else f"{first} to {last}"

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Read blocks of 65,536 rows, the last one shorter, across the borders of files."""
        kept: list[npt.NDArray[Any]] = []
        missing = ROWS_PER_BLOCK
        for piece in self.pieces:
            with open_piece(piece) as read:
                start = piece.start
                while start < piece.stop:
                    rows = read(slice(start, min(piece.stop, start + missing)))
                    kept.append(rows.astype(self.dtype, copy=False))
                    start, missing = start + len(rows), missing - len(rows)
                    if not missing:
                        yield kept[0] if len(kept) == 1 else np.concatenate(kept)
                        kept, missing = [], ROWS_PER_BLOCK
        if kept:
            yield np.concatenate(kept)


@dataclass(frozen=True)
class Inputs:
    """Files of one width as one matrix; ``dtype`` can represent the numbers of all of them."""

    files: tuple[Piece, ...]
    width: int
    dtype: np.dtype[Any]
    offsets: npt.NDArray[np.int64] = field(compare=False)

    @property
    def rows(self) -> int:
        """Number of vectors in all files."""
        return int(self.offsets[-1])

    def chunks(self, rows: int = ROWS_PER_CHUNK) -> list[Chunk]:
        """Cut the rows of all files into chunks of ``rows`` each, rounded up to whole blocks of 65,536."""
        step, chunks = -(-as_count("rows", rows) // ROWS_PER_BLOCK) * ROWS_PER_BLOCK, []
        for start in range(0, self.rows, step):
            first, last = np.searchsorted(self.offsets, [start, min(self.rows, start + step) - 1], side="right") - 1
            files = zip(self.files[first : last + 1], self.offsets[first : last + 1].tolist(), strict=True)
            pieces = tuple(
                replace(file, start=max(0, start - offset), stop=min(file.stop, start + step - offset))
                for file, offset in files
            )
            content = json.dumps([start, self.dtype.str, *map(astuple, pieces)])
            chunks.append(Chunk(pieces, start, self.dtype.str, hashlib.sha256(content.encode()).hexdigest()))
        return chunks


def _find_files(patterns: Patterns) -> list[str]:
    """Paths of all files that match a pattern, each once, sorted."""
    single = isinstance(patterns, str | bytes | os.PathLike) or not isinstance(patterns, Iterable)
    listed: list[Any] = [patterns] if single else list(patterns)  # type: ignore[arg-type]
    if not listed:
        raise DataError("there are no files to read, got an empty list; give at least one path or pattern")
    found: set[str] = set()
    for pattern in listed:
        matches = _matches(pattern)
        if not matches:
            raise StorageError(f"no file matches {redacted_address(pattern)}; check the spelling")
        found.update(matches)
    return sorted(found)


def _matches(pattern: Any) -> list[str]:
    """Addresses or paths of the files that match a pattern."""
    if isinstance(pattern, str) and _is_remote(pattern):
        with _translated_errors(pattern):
            system, path = _file_system(pattern)
            _, chain, outer = pattern.partition("::")  # zip://*.npy::s3://bucket/all.zip
            found = system.glob(path) if any(sign in path for sign in "*?[") else [path]
            return [system.unstrip_protocol(match) + chain + outer for match in found]
    if isinstance(pattern, str):
        pattern = pattern.removeprefix("file://").removeprefix("local://")
    path = os.fspath(as_path(pattern))
    # the name of an existing file is no pattern, even with brackets in it
    named = os.path.exists(path) or not glob.has_magic(path)
    matches = [path] if named else _globbed(path)
    return [os.path.abspath(match) for match in matches]  # workers have other working directories


def _globbed(pattern: str) -> Iterable[str]:
    """Paths that match a pattern; with ``**``, one for each file of each folder, whatever links lead there."""
    parts = pattern.split(os.sep)
    if "**" not in parts:
        return glob.glob(pattern)
    n = parts.index("**")
    head, tail = os.sep.join(parts[:n]), os.sep.join(parts[n + 1 :]) or "*"
    starts = glob.glob(f"{head}{os.sep}") if n else [f".{os.sep}"]
    folders = [folder for start in starts for folder in _folders_under(start)]
    found = [match for folder in folders for match in _globbed(os.path.join(glob.escape(folder), tail))]
    found.sort(key=lambda path: path.count(os.sep), reverse=True)  # of several paths a shortest one is kept
    return {(os.path.realpath(os.path.dirname(path)), os.path.basename(path)): path for path in found}.values()


def _folders_under(start: str) -> list[str]:
    """A folder and all in it but hidden ones, each once, by a path without links where there is one."""
    seen: set[str] = set()
    found, waiting = [], [start]
    while waiting:
        for path, names, _ in os.walk(waiting.pop(0)):
            real = os.path.realpath(path)
            names[:] = [] if real in seen else sorted(name for name in names if not name.startswith("."))
            if real not in seen:
                seen.add(real)
                found.append(path)
            waiting += [link for name in names if os.path.islink(link := os.path.join(path, name))]
    return found


def _inspect(path: str) -> tuple[Piece, int, np.dtype[Any]]:
    """All rows of a file, and the width and the type of its vectors."""
    stamp = _stamp(path)  # first, so that a file that is replaced meanwhile is not taken for the new one
    with _opened(path) as ((rows, width), dtype, _):
        return Piece(path, 0, rows, stamp), width, dtype


def _stamp(path: str) -> str:
    """What changes when a file does, equal on all machines: neither times of access nor the number of an inode."""
    if not _is_remote(path):
        with clear_read_errors(Path(path)):
            return "{0.st_size}-{0.st_mtime_ns}".format(os.stat(path))
    with _translated_errors(path):
        system, name = _file_system(path)
        system.invalidate_cache()  # of listings, which may be old
        facts = {re.sub("[-_]", "", str(key).lower()): value for key, value in system.info(name).items()}
    return "-".join(str(facts[key]) for key in _CONTENT_FACTS if facts.get(key) is not None)


def _check_same(piece: Piece) -> None:
    """Raise a StorageError if the file of a piece was changed or replaced since it was first seen."""
    if _stamp(piece.path) != piece.stamp:
        raise StorageError(f"{piece} was changed while the job ran, expected the file as it was before; begin again")


@contextmanager
def _opened(path: str) -> Iterator[tuple[tuple[int, int], np.dtype[Any], Callable[[Any], npt.NDArray[Any]]]]:
    """Open a file; the block gets the shape and the type of its vectors, and a function from rows to vectors."""
    layout = _remote_layout(path) if _is_remote(path) else None
    if layout is not None:
        yield (layout.rows, layout.width), layout.dtype, partial(_fetched_rows, path, layout)
        return
    with _copied(path) if _is_remote(path) else open_vectors(path) as vectors:
        yield vectors.shape, vectors.dtype, vectors.__getitem__


def _is_remote(path: str) -> bool:
    """Whether a path is an address for fsspec, such as ``s3://bucket/part-0.npy``."""
    return "://" in path and not path.startswith(("file://", "local://"))


def _remote_layout(url: str) -> Layout | None:
    """Layout of a file, or None if the whole file must be read because of its format or damage."""
    format, packed = by_name(Path(_name(url)))
    if packed or format is None or format.layout is None:
        return None
    with _translated_errors(url):
        system, path = _file_system(url)
        try:
            layout = format.layout(system.read_block(path, 0, HEAD_BYTES), int(system.size(path)))
        except ValueError:
            return None  # opening the whole file then reports what is wrong
    return None if layout.columns_first else layout


def _fetched_rows(url: str, layout: Layout, rows: Any) -> npt.NDArray[Any]:
    """Fetch some rows of a file, some megabytes at a time."""
    numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else np.asarray(rows)
    found = np.empty((len(numbers), layout.width), dtype=layout.dtype)
    step = max(1, _BYTES_AT_A_TIME // layout.stride)
    done = 0
    while done < len(numbers):
        first = int(numbers[done])
        here = slice(done, int(np.searchsorted(numbers, first + step)))
        n = int(numbers[here.stop - 1]) + 1 - first
        with _translated_errors(url):
            system, path = _file_system(url)
            content = system.read_block(path, layout.start + first * layout.stride, n * layout.stride)
        if len(content) != n * layout.stride:
            raise FormatError(f"{redacted_address(url)} was shortened while it was read; begin again")
        block, part = np.frombuffer(content, dtype=np.uint8), replace(layout, rows=n, start=0)
        if layout.lead:
            name = redacted_address(url)
            check_dimensions(name, "vecs", layout, np.arange(first, first + n), part.dimensions(block))
        found[here] = part.view(block)[numbers[here] - first]
        done = here.stop
    return found


def _name(url: str) -> str:
    """Name of the file, which determines its format, without the query, which may hold a signature."""
    path = url.partition("::")[0].partition("?")[0]
    return PurePosixPath(path.partition("#")[0] if path.startswith("http") else path).name


@contextmanager
def _copied(url: str) -> Iterator[Vectors]:
    """Copy a file that cannot be read in parts to a temporary folder, and open the copy."""
    with tempfile.TemporaryDirectory(prefix="autojacobin-") as folder:
        format, packed = by_name(Path(_name(url)))  # the name itself may contain a part of a password
        copy = Path(folder) / f"copy{format.extensions[0] if format else ''}{'.gz' if packed else ''}"
        with _translated_errors(url):
            system, path = _file_system(url)
            system.get_file(path, str(copy))
        try:
            with open_vectors(copy) as vectors:
                yield vectors
        except FormatError as error:
            raise FormatError(str(error).replace(str(copy), redacted_address(url))) from None


def _file_system(url: str) -> tuple[Any, str]:
    fsspec = import_extra("fsspec", "cluster", f"reading {redacted_address(url)}")
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


@contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """Translate the errors of a remote store; each store has its own exceptions, so all are caught."""
    shown = redacted_address(url)
    try:
        yield
    except AutoJacobinError:
        raise
    except FileNotFoundError:
        raise StorageError(f"cannot read {shown}: there is no such file; check the spelling") from None
    except Exception as error:
        reason = redacted_message(reason_of(error), url)
        raise StorageError(f"cannot read {shown}: {reason}; check the address and your permissions") from None
