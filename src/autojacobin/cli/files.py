"""Files as the command line names them: a path, ``PATH::PART``, or ``-`` for the standard input or output.

Vectors have any format that the library reads; ids and columns have those of cli/columns.py. Codes and neighbours are
written in the format that the ending gives:

| ending | codes | neighbours |
|---|---|---|
| ``.npz`` | as ``Codes.load`` reads it | arrays ``ids`` and ``distances`` |
| ``.npy`` | the packed bytes | the ids |
| ``.parquet`` | column ``code``, lists of bytes | columns ``ids`` and ``distances`` and those of the payload, lists |
| ``.csv`` | ``row,code``, bytes as hexadecimal digits | ``query,rank,id,distance,…``, one line per neighbour |
| ``.jsonl`` | ``{"row": 0, "code": "0f…"}`` | ``{"query": 0, "ids": […], "distances": […], "payload": […]}`` |

The standard output gets JSON lines. Where a filter leaves fewer neighbours than were asked for, the rest is null in
Parquet and JSON lines, -1 (or an empty name) and NaN in npy and npz, and left out in CSV.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli.console import report_blocks
from autojacobin.cli.settings import settings_path
from autojacobin.codes import BitOrder, Codes
from autojacobin.core.addresses import redacted_address
from autojacobin.core.files import atomic_writer
from autojacobin.core.parallel import Progress
from autojacobin.errors import DataError, FormatError, MissingExtraError, StorageError

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.hashers import Hasher
    from autojacobin.index.index import Index
    from autojacobin.index.metrics import Metric

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


def names_in(names: list[str], format: str | None = None) -> list[str] | None:
    """Give the words before the vectors of some files, which can be ids; None if a file has none."""
    if STREAM in names:
        return None
    found: list[str] = []
    for name in names:
        with opened(name, format) as vectors:
            words = vectors.names
        if words is None:
            return None
        found += words
    return found


@contextmanager
def all_opened(names: list[str], format: str | None) -> Iterator[list[Vectors]]:
    """Open several files of vectors."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(name, format)) for name in names]


@contextmanager
def reading(
    files: list[Vectors], blocks_of: Callable[[Vectors], Iterator[npt.NDArray[Any]]]
) -> Iterator[Iterator[npt.NDArray[Any]]]:
    """Give the blocks of several files as one stream. An error in one of their rows names the file."""
    began = 0, files[0]  # the row at which the file that is being read begins

    def blocks() -> Iterator[npt.NDArray[Any]]:
        nonlocal began
        row = 0
        for file in files:
            began = row, file
            yield from blocks_of(file)
            row += len(file)

    try:
        yield blocks()
    except DataError as error:
        if len(files) == 1 or not {"row", "features"} & set(str(error).split()):
            raise
        row, file = began
        raise type(error)(f"{error} (row {row} is the first of {file.path})") from error


def add_files(
    index: Index,
    files: list[Vectors],
    ids: Any,
    payload: Any,
    progress: Progress,
    stage: str = "adding vectors",
    *,
    upsert: bool = False,
) -> None:
    """Add the rows of several files to an index."""
    n = sum(map(len, files))
    if ids is not None and len(ids) != n:
        raise DataError(f"there must be an id for every vector, got {len(ids)} ids for {n} vectors; give one each")
    with reading(files, partial(blocks_for, index.hasher)) as blocks:
        write = index.upsert if upsert else index.add
        write(report_blocks(blocks, n, progress, stage), ids, payload)


def blocks_for(hasher: Hasher, file: Vectors, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
    """Give the blocks of a file as an index with this hasher takes them.

    An index of codes that were made elsewhere takes packed bytes in its own bit order. Only a file that ``Codes.save``
    wrote has a bit order of its own, and gets that of the index.
    """
    from autojacobin.hashers import OwnCodes

    blocks = file.blocks(rows)
    n_bits = saved_bits(file) if isinstance(hasher, OwnCodes) else None
    if n_bits is None or not isinstance(hasher, OwnCodes):
        return blocks
    if n_bits != hasher.n_bits:
        raise DataError(
            f"the codes of the index have {hasher.n_bits} bits, got codes of {n_bits} bits in {file.path}; give others"
        )
    return (Codes(block, n_bits).to_packed(hasher.bitorder) for block in blocks)


def saved_bits(file: Vectors) -> int | None:
    """Give the length of the codes in a file that ``Codes.save`` wrote; None for any other file."""
    if file.format != "npz":
        return None
    with np.load(file.path, allow_pickle=False) as arrays:
        return int(arrays["n_bits"]) if {"packed", "n_bits", "format_version"} == set(arrays.files) else None


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

    if path.is_file():
        raise StorageError(
            f"{path} is a file, expected the folder of an index; give the index first, then vectors or queries"
        )
    return Index.open(path)


def metric_for(given: str | None, files: list[Vectors], hasher: Hasher) -> Metric:
    """Give the metric of a model for the vectors in some files; another one that is given is refused."""
    from autojacobin.index.metrics import Metric

    name = str(hasher.metric_)
    if given not in (None, name):
        raise DataError(
            f"the model was trained for the metric {name}, got --metric {given}; leave it out, or train a model with: "
            f"autojacobin train --metric {given}"
        )
    width, expected = files[0].shape[1], int(hasher.n_features_in_) - (name == "inner_product")
    if width != expected:
        raise DataError(
            f"the model takes vectors of {expected} numbers, got {width} in {files[0].path}; give vectors like those "
            "that it learned from"
        )
    with reading(files, lambda file: file.blocks()) as blocks:
        return Metric.of(name, blocks)


def is_stream(output: Path) -> bool:
    """Whether the output is the standard output."""
    return str(output) == STREAM


def check_output(
    output: Path,
    name: str,
    overwrite: bool,
    *,
    inputs: Iterable[str] = (),
    endings: Iterable[str] | None = _KINDS,
    settings: bool = True,
) -> None:
    """Raise BadParameter, before any work, if an output cannot be written or would replace a file.

    With ``overwrite`` it may replace any file but an input. ``endings`` are None if any name will do. ``settings`` says
    whether the settings of the run are written beside it.
    """
    hint = f"'{name}'"
    if is_stream(output):
        return
    if endings is not None and output.suffix.lower() not in tuple(endings):
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
    if output.exists() and not overwrite:
        raise typer.BadParameter(
            f"{output} exists already; give another path, or --overwrite to replace it", param_hint=hint
        )
    beside = settings_path(output)
    if settings and beside.exists() and not overwrite:
        raise typer.BadParameter(
            f"{beside}, where the settings of the run go, exists already; give another path, or --overwrite to "
            "replace it",
            param_hint=hint,
        )


def write_codes(output: Path, codes: Codes, bitorder: BitOrder = "little") -> None:
    """Write codes in the format that the ending gives; an npz file has a bit order of its own."""
    kind = "jsonl" if is_stream(output) else _KINDS[output.suffix.lower()]
    if kind == "npz":
        codes.save(output, overwrite=True)  # check_output has asked
    elif kind in ("csv", "jsonl"):
        _write_lines(output, _code_lines(codes.to_packed(bitorder), kind))
    else:
        from autojacobin.datasets import write_vectors

        write_vectors(output, codes.to_packed(bitorder), part="code" if kind == "parquet" else None, format=kind)


def write_neighbours(output: Path, distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any = None) -> None:
    """Write the result of a search in the format that the ending gives.

    ``payload`` is an Arrow table with a row for each neighbour, which CSV, JSON lines and Parquet can hold.
    """
    kind = "jsonl" if is_stream(output) else _KINDS[output.suffix.lower()]
    if kind == "csv":
        _write_lines(output, _csv_lines(distances, ids, payload))
    elif kind == "jsonl":
        _write_lines(output, _json_lines(distances, ids, payload))
    elif kind == "parquet":
        _write_parquet(output, distances, ids, payload)
    elif ids.dtype == object:  # names, which are no vectors
        names = np.array([["" if id is None else str(id) for id in row] for row in ids], dtype=np.str_)
        with atomic_writer(output) as stream:
            np.save(stream, names) if kind == "npy" else np.savez(stream, ids=names, distances=distances)
    else:
        from autojacobin.datasets import write_vectors

        write_vectors(output, ids if kind == "npy" else {"ids": ids, "distances": distances}, format=kind)


def _code_lines(packed: npt.NDArray[np.uint8], kind: str) -> Iterator[str]:
    if kind == "csv":
        yield "row,code"
    line = "{},{}" if kind == "csv" else '{{"row": {}, "code": "{}"}}'
    for row, code in enumerate(packed):
        yield line.format(row, code.tobytes().hex())


def _csv_lines(distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any) -> Iterator[str]:
    from autojacobin.service.responses import as_json_value, is_missing

    def line(*cells: Any) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        return text.getvalue()

    columns = [] if payload is None else payload.column_names
    yield line("query", "rank", "id", "distance", *columns)
    missing = is_missing(ids)
    for query, (near, far) in enumerate(zip(ids, distances, strict=True)):
        rows = _rows_of(payload, query, len(near))
        for rank, (id, distance) in enumerate(zip(near, far.astype(str), strict=True)):
            if not missing[query, rank]:
                values = map(as_json_value, rows[rank].values())
                cells = (json.dumps(value) if isinstance(value, list | dict) else value for value in values)
                yield line(query, rank + 1, id, distance, *cells)


def _json_lines(distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any) -> Iterator[str]:
    from autojacobin.service.responses import as_json_value, is_missing

    missing = is_missing(ids)
    for query, (near, far) in enumerate(zip(ids, distances, strict=True)):
        gone = missing[query].tolist()
        pairs = zip(near.tolist(), gone, strict=True)
        names = [None if lost else id if isinstance(id, int) else str(id) for id, lost in pairs]
        digits = far.astype(str)  # the shortest that give the number back, in float32 too
        shown = ", ".join("null" if lost else number for number, lost in zip(digits, gone, strict=True))
        text = f'{{"query": {query}, "ids": {json.dumps(names, ensure_ascii=False)}, "distances": [{shown}]'
        if payload is not None:
            rows = _rows_of(payload, query, len(near))
            entries = [None if lost else as_json_value(row) for row, lost in zip(rows, gone, strict=True)]
            text += f', "payload": {json.dumps(entries, ensure_ascii=False)}'
        yield text + "}"


def _rows_of(payload: Any, query: int, k: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{}] * k if payload is None else payload[query * k : query * k + k].to_pylist()
    return rows


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


def _write_parquet(output: Path, distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "data", "writing Parquet") from None
    from autojacobin.service.responses import is_missing

    missing, k = is_missing(ids).ravel(), ids.shape[1]
    plain = ids.ravel() if ids.dtype != object else [None if id is None else str(id) for id in ids.flat]
    columns = {
        "ids": pyarrow.array(plain, mask=missing if missing.any() and ids.dtype != object else None),
        "distances": pyarrow.array(distances.ravel(), mask=missing if missing.any() else None),
    }
    for name in () if payload is None else payload.column_names:
        columns[name] = payload.column(name).combine_chunks()
    lists = {name: pyarrow.FixedSizeListArray.from_arrays(column, k) for name, column in columns.items()}
    with atomic_writer(output) as stream:
        pyarrow.parquet.write_table(pyarrow.table(lists), stream, use_dictionary=False)
