"""Files of codes and neighbours: npz, npy, Parquet, CSV or JSON lines by their ending, or the standard output.

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
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli.inputs import STREAM, split_part
from autojacobin.codes import Codes
from autojacobin.core.files import atomic_writer
from autojacobin.errors import MissingExtraError

__all__ = ["check_output", "is_stream", "write_codes", "write_neighbours"]

_KINDS = {f".{kind}": kind for kind in ("npz", "npy", "parquet", "csv", "jsonl")}
_KINDS |= {".pq": "parquet", ".ndjson": "jsonl"}
_LINES_PER_BATCH = 10_000


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


def write_codes(output: Path, codes: Codes) -> None:
    """Write codes in the format that the ending gives."""
    kind = "jsonl" if is_stream(output) else _KINDS[output.suffix.lower()]
    if kind == "npz":
        codes.save(output)
    elif kind in ("csv", "jsonl"):
        _write_lines(output, _code_lines(codes, kind))
    else:
        from autojacobin.datasets import write_vectors

        write_vectors(output, codes.packed, part="code" if kind == "parquet" else None, format=kind)


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


def _code_lines(codes: Codes, kind: str) -> Iterator[str]:
    if kind == "csv":
        yield "row,code"
    line = "{},{}" if kind == "csv" else '{{"row": {}, "code": "{}"}}'
    for row, code in enumerate(codes.packed):
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
