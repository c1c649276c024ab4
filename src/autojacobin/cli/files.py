"""Files as the command line names them: a path, ``PATH::PART``, or ``-`` for the standard input or output.

Vectors have any format that the library reads. Codes and neighbours are written in the format that the ending gives:

| ending | codes | neighbours |
|---|---|---|
| ``.npz`` | as ``Codes.load`` reads it | arrays ``ids`` and ``distances`` |
| ``.npy`` | the packed bytes | the ids |
| ``.parquet`` | column ``code``, lists of bytes | columns ``ids`` and ``distances``, lists |
| ``.csv`` | ``row,code``, bytes as hexadecimal digits | ``query,rank,id,distance``, one line per neighbour |
| ``.jsonl`` | ``{"row": 0, "code": "0f…"}`` | ``{"query": 0, "ids": […], "distances": […]}`` |

The standard output gets JSON lines.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli.console import report_blocks
from autojacobin.codes import BitOrder, Codes
from autojacobin.core.addresses import redacted_address
from autojacobin.core.files import atomic_writer
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError, FormatError, MissingExtraError, StorageError

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.hashers import Hasher
    from autojacobin.index.index import Index

__all__ = [
    "STREAM", "chained", "check_output", "is_stream", "load_model", "open_index", "opened", "read_ids", "split_part",
    "write_codes", "write_neighbours",
]  # fmt: skip

STREAM = "-"
_PART_MARK = "::"
_KINDS = {f".{kind}": kind for kind in ("npz", "npy", "parquet", "csv", "jsonl")}
_KINDS |= {".pq": "parquet", ".ndjson": "jsonl"}
_LINES_PER_BATCH = 10_000


def split_part(name: str) -> tuple[str, str | None]:
    """Split ``PATH::PART`` into path and part, unless there is a file of this name."""
    path, mark, part = name.rpartition(_PART_MARK)
    plain = not mark or not path or "://" in part or os.path.exists(name)  # fsspec chains addresses by :: too
    return (name, None) if plain else (path, part)


@contextmanager
def opened(name: str, format: str | None = None) -> Iterator[Vectors]:
    """Open vectors. Those of the standard input are copied to a temporary file until the block ends."""
    from autojacobin.datasets import open_vectors

    path, part = split_part(name)
    if path != STREAM:
        with open_vectors(path, part=part, format=format) as vectors:
            yield vectors
        return
    with tempfile.TemporaryDirectory(prefix="autojacobin-") as folder:
        spooled = Path(folder) / "standard-input"
        with open(spooled, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            with open_vectors(spooled, part=part, format=format) as vectors:
                yield vectors
        except (DataError, FormatError, StorageError) as error:
            raise type(error)(str(error).replace(str(spooled), "the standard input")) from error


@contextmanager
def chained(
    names: list[str], format: str | None, progress: Progress, stage: str
) -> Iterator[tuple[Iterator[npt.NDArray[Any]], int]]:
    """Open several files, and give their vectors as one stream of blocks, and their number."""
    with ExitStack() as stack:
        files = [stack.enter_context(opened(name, format)) for name in names]
        total = sum(map(len, files))
        blocks = (block for file in files for block in file.blocks())
        yield report_blocks(blocks, total, progress, stage), total


def load_model(path: Path) -> Hasher:
    """Load a hasher, or raise StorageError if the path is not a file."""
    from autojacobin import load

    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise StorageError(f"cannot read the model {redacted_address(path)}: {what}; make one with: autojacobin train")
    return load(path)


def open_index(path: Path) -> Index:
    """Open an index. It is imported only here, since loading numba takes a second."""
    from autojacobin.index.index import Index

    return Index.open(path)


def read_ids(path: str) -> npt.NDArray[np.int64]:
    """Read ids from an npy file, or from text with one whole number per line."""
    shown = redacted_address(path)
    try:
        if path.endswith(".npy"):
            return _whole_numbers(shown, np.load(path, allow_pickle=False))
        text = sys.stdin.read() if path == STREAM else Path(path).read_text(encoding="utf-8")
        return np.array([int(word) for word in text.split()], dtype=np.int64)
    except OSError as error:
        raise StorageError(f"cannot read the ids in {shown}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, OverflowError, EOFError) as error:
        raise FormatError(
            f"the ids in {shown} cannot be read: {error}; expected whole numbers from 0 to 2^63 - 1, one per line, "
            "or an npy file of them"
        ) from None


def _whole_numbers(shown: str, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if array.dtype.kind not in "iu" or array.size != max(array.shape, default=0):
        raise DataError(f"the ids in {shown} must be a row of whole numbers, got {array.dtype} of shape {array.shape}")
    return array.reshape(-1)


def is_stream(output: Path) -> bool:
    """Whether the output is the standard output."""
    return str(output) == STREAM


def check_output(output: Path, name: str, *, inputs: Iterable[str] = (), endings: Iterable[str] = _KINDS) -> None:
    """Raise BadParameter, before any work, if an output cannot be written or would replace an input."""
    hint = f"'{name}'"
    if is_stream(output):
        return
    if output.suffix.lower() not in tuple(endings):
        expected = ", ".join(endings)
        raise typer.BadParameter(f"{output} must end in one of {expected}, which gives its format", param_hint=hint)
    if output.is_dir():
        raise typer.BadParameter(f"{output} is a folder, expected the path of a file", param_hint=hint)
    if not output.parent.is_dir():
        raise typer.BadParameter(f"the folder {output.parent} does not exist; make it first", param_hint=hint)
    if not os.access(output.parent, os.W_OK):
        raise typer.BadParameter(f"nothing may be written to the folder {output.parent}", param_hint=hint)
    for given in inputs:
        path = Path(split_part(given)[0])
        if output.exists() and path.exists() and path.samefile(output):
            raise typer.BadParameter(f"{output} is an input too; give another path", param_hint=hint)


def write_codes(output: Path, codes: Codes, bitorder: BitOrder = "little") -> None:
    """Write codes in the format that the ending gives; an npz file has a bit order of its own."""
    kind = "jsonl" if is_stream(output) else _KINDS[output.suffix.lower()]
    if kind == "npz":
        codes.save(output)
    elif kind in ("csv", "jsonl"):
        _write_lines(output, _code_lines(codes.to_packed(bitorder), kind))
    else:
        from autojacobin.datasets import write_vectors

        write_vectors(output, codes.to_packed(bitorder), part="code" if kind == "parquet" else None, format=kind)


def write_neighbours(output: Path, distances: npt.NDArray[Any], ids: npt.NDArray[np.int64]) -> None:
    """Write the result of a search in the format that the ending gives."""
    kind = "jsonl" if is_stream(output) else _KINDS[output.suffix.lower()]
    if kind in ("csv", "jsonl"):
        _write_lines(output, _neighbour_lines(distances, ids, kind))
    elif kind == "parquet":
        _write_parquet(output, {"ids": ids, "distances": distances})
    else:
        from autojacobin.datasets import write_vectors

        write_vectors(output, ids if kind == "npy" else {"ids": ids, "distances": distances}, format=kind)


def _code_lines(packed: npt.NDArray[np.uint8], kind: str) -> Iterator[str]:
    if kind == "csv":
        yield "row,code"
    line = "{},{}" if kind == "csv" else '{{"row": {}, "code": "{}"}}'
    for row, code in enumerate(packed):
        yield line.format(row, code.tobytes().hex())


def _neighbour_lines(distances: npt.NDArray[Any], ids: npt.NDArray[np.int64], kind: str) -> Iterator[str]:
    if kind == "csv":
        yield "query,rank,id,distance"
    for query, (near, far) in enumerate(zip(ids, distances, strict=True)):
        digits = far.astype(str)  # the shortest that give the number back, in float32 too
        if kind == "csv":
            for rank, (id, distance) in enumerate(zip(near, digits, strict=True), 1):
                yield f"{query},{rank},{id},{distance}"
        else:
            yield f'{{"query": {query}, "ids": {near.tolist()}, "distances": [{", ".join(digits)}]}}'


def _write_lines(output: Path, lines: Iterator[str]) -> None:
    if is_stream(output):
        _write_batches(sys.stdout.buffer, lines)
        sys.stdout.buffer.flush()
    else:
        with atomic_writer(output) as stream:
            _write_batches(stream, lines)


def _write_batches(stream: BinaryIO, lines: Iterator[str]) -> None:
    while batch := list(itertools.islice(lines, _LINES_PER_BATCH)):
        stream.write("".join(f"{line}\n" for line in batch).encode())


def _write_parquet(output: Path, columns: dict[str, npt.NDArray[Any]]) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data", "writing Parquet") from None
    lists = {
        name: pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(matrix.ravel()), matrix.shape[1])
        for name, matrix in columns.items()
    }
    with atomic_writer(output) as stream:
        pyarrow.parquet.write_table(pyarrow.table(lists), stream, use_dictionary=False)
