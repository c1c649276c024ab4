"""What commands write: codes and neighbours, in the format that the ending gives; ``-`` gets JSON lines."""

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli.console import check_standard_output, print_sentence, wrong
from autojacobin.cli.opening import STREAM, split_part
from autojacobin.cli.options import settings_path, write_settings
from autojacobin.codes import BitOrder, Codes
from autojacobin.core.files import atomic_writer, no_folder
from autojacobin.datasets import write_vectors
from autojacobin.errors import StorageError, import_extra
from autojacobin.service.responses import as_json_value, is_missing

_KINDS = {f".{kind}": kind for kind in ("npz", "npy", "parquet", "csv", "jsonl")}
_KINDS |= {".pq": "parquet", ".ndjson": "jsonl"}


def is_stream(output: Path) -> bool:
    """Whether the output is the standard output."""
    return str(output) == STREAM


def check_output(
    output: Path, name: str, overwrite: bool, *, inputs: Iterable[str] = (), endings: Iterable[str] | None = _KINDS
) -> None:
    """Raise BadParameter, before any work, if an output cannot be written or would replace a file.

    With ``overwrite`` it may replace any file but an input. ``endings`` are None if any name will do, and the settings
    of the run are not written beside it.
    """
    if is_stream(output):
        check_standard_output()
        return
    beside, problem, read = settings_path(output), "", [Path(split_part(given)[0]) for given in inputs]
    if endings is not None and output.suffix.lower() not in tuple(endings):
        problem = f"{output} must end in one of {', '.join(endings)}, which gives its format"
    elif output.is_dir():
        problem = f"{output} is a folder, expected the path of a file"
    elif missing := no_folder(output.parent):
        problem = missing
    elif not os.access(output.parent, os.W_OK):
        problem = f"nothing may be written to the folder {output.parent}"
    elif output.exists() and any(path.exists() and output.samefile(path) for path in read):
        problem = f"{output} is an input too; give another path"
    elif output.exists() and not overwrite:
        problem = f"{output} exists already; give another path, or --overwrite to replace it"
    elif endings is not None and beside.exists() and not overwrite:
        problem = f"{beside}, where the settings of the run go, exists already; give another path, or --overwrite"
    if problem:
        raise wrong(name, problem)


def check_new_folder(path: Path) -> None:
    """Raise StorageError, before any work, if an index cannot be made at a path."""
    target, beside = path.absolute(), settings_path(path)
    if os.path.lexists(target) and (not target.is_dir() or any(target.iterdir())):
        what = "a folder with something in it" if target.is_dir() else "a file"
        raise StorageError(f"cannot make {path}: it is {what}, expected a new path or an empty folder; give another")
    if problem := no_folder(path.parent):
        raise StorageError(f"cannot make {path}: {problem}")
    if beside.exists():
        raise StorageError(f"{beside}, where the settings of the run go, exists already; give another path")


def report_output(context: typer.Context, output: Path, sentence: str, facts: Mapping[str, Any]) -> None:
    """Write the settings of a run beside its output, and print what was done; neither if the output is a stream."""
    if not is_stream(output):
        write_settings(context, output)
        print_sentence(sentence, facts)


def write_codes(output: Path, codes: Codes, bitorder: BitOrder = "little") -> None:
    """Write codes; an npz file has a bit order of its own."""
    kind = _kind(output)
    packed = codes.to_packed(bitorder)
    if kind == "npz":
        codes.save(output, overwrite=True)  # check_output has asked
    elif kind in ("csv", "jsonl"):
        with _text(output) as stream:
            stream.write("row,code\n" if kind == "csv" else "")
            line = "{},{}\n" if kind == "csv" else '{{"row": {}, "code": "{}"}}\n'
            stream.writelines(line.format(row, code.tobytes().hex()) for row, code in enumerate(packed))
    else:
        write_vectors(output, packed, part="code" if kind == "parquet" else None, format=kind)


def write_neighbours(output: Path, distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any = None) -> None:
    """Write the result of a search; ``payload`` is an Arrow table with a row for each neighbour."""
    kind = _kind(output)
    if kind == "csv":
        with _text(output) as stream:
            rows = csv.writer(stream, lineterminator="\n")
            rows.writerow(["query", "rank", "id", "distance", *(payload.column_names if payload is not None else ())])
            for query, found in enumerate(_found(distances, ids, payload)):
                for rank, (id, distance, values) in enumerate(filter(None, found), 1):
                    cells = (json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in values.values())
                    rows.writerow([query, rank, id, distance, *cells])
    elif kind == "jsonl":
        names = ("ids", "distances") if payload is None else ("ids", "distances", "payload")
        with _text(output) as stream:
            for query, found in enumerate(_found(distances, ids, payload)):
                lists = {name: [one and one[place] for one in found] for place, name in enumerate(names)}
                stream.write(json.dumps({"query": query, **lists}, ensure_ascii=False) + "\n")
    elif kind == "parquet":
        _write_parquet(output, distances, ids, payload)
    elif ids.dtype == object:  # names, which are no vectors
        texts = np.array([["" if id is None else str(id) for id in row] for row in ids], dtype=np.str_)
        with atomic_writer(output) as file:
            np.save(file, texts) if kind == "npy" else np.savez(file, ids=texts, distances=distances)
    else:
        write_vectors(output, ids if kind == "npy" else {"ids": ids, "distances": distances}, format=kind)


def _kind(output: Path) -> str:
    return "jsonl" if is_stream(output) else _KINDS[output.suffix.lower()]


@contextmanager
def _text(output: Path) -> Iterator[TextIO]:
    with nullcontext(sys.stdout.buffer) if is_stream(output) else atomic_writer(output) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # and leave the stream open
        stream.flush()


def _found(
    distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any
) -> Iterator[list[tuple[Any, float, dict[str, Any]] | None]]:
    """For each query, the id, the distance and the columns of each neighbour; None where there are no more."""
    k, missing = ids.shape[1], is_missing(ids).tolist()
    for query, (near, far) in enumerate(zip(ids.tolist(), distances, strict=True)):
        # the shortest digits that give the number back, in float32 too
        numbers = [float(digits) for digits in far.astype(str)] if far.dtype.kind == "f" else far.tolist()
        rows = [{}] * k if payload is None else payload[query * k : query * k + k].to_pylist()
        yield [
            None if gone else (id if isinstance(id, int) else str(id), number, as_json_value(row))
            for id, number, row, gone in zip(near, numbers, rows, missing[query], strict=True)
        ]


def _write_parquet(output: Path, distances: npt.NDArray[Any], ids: npt.NDArray[Any], payload: Any) -> None:
    pyarrow, parquet = (import_extra(name, "data", "writing Parquet") for name in ("pyarrow", "pyarrow.parquet"))
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
        parquet.write_table(pyarrow.table(lists), stream, use_dictionary=False)
