"""Ids and columns as the command line reads them from files, with one entry for each vector.

Ids are text with one per line, an npy file, or a column of a Parquet file (``PATH::COLUMN``). A payload is a Parquet,
CSV, JSON lines or Arrow file.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import typer

from autojacobin.cli.files import STREAM, split_part
from autojacobin.core.addresses import redacted_address
from autojacobin.errors import DataError, FormatError, MissingExtraError, StorageError

_PARQUET = (".parquet", ".pq")
_PAYLOADS = (*_PARQUET, ".csv", ".jsonl", ".ndjson", ".arrow", ".feather")

Ids = npt.NDArray[np.int64] | list[Any]


def as_ids(words: Sequence[str], kind: str | None) -> Ids:
    """Give ids, as they are typed, in the kind that an index has.

    Of a new index, whose kind is None, they are integers if all of them are whole numbers as they are usually written,
    and names otherwise, such as 007.
    """
    if kind is None:
        kind = "integer" if all(_is_usual_number(word) for word in words) else "string"
    if kind == "string":
        return list(words)
    read, expected = (uuid.UUID, "UUIDs") if kind == "uuid" else (_whole_number, "whole numbers from 0 to 2^63 - 1")
    found: list[Any] = []
    for word in words:
        try:
            found.append(read(word))
        except ValueError:
            raise DataError(f"the ids of this index are {expected}, got {word!r:.60}; give ids of this kind") from None
    return found if kind == "uuid" else np.array(found, dtype=np.int64)


def _is_usual_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and (word == "0" or word[0] != "0")


def _whole_number(word: str) -> int:
    number = int(word)
    if not 0 <= number < 2**63:
        raise ValueError
    return number


def read_ids(path: str, kind: str | None = None) -> Ids:
    """Read ids for an index whose ids are of this kind; None if it is a new one."""
    shown = redacted_address(path)
    try:
        return _read_ids(path, kind)
    except DataError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read the ids in {shown}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, OverflowError, EOFError) as error:
        expected = "one id per line, an npy file of whole numbers or strings, or a column of a Parquet file"
        raise FormatError(f"the ids in {shown} cannot be read: {error}; expected {expected}") from None


def _read_ids(path: str, kind: str | None) -> Ids:
    file, column = split_part(path)
    if file.lower().endswith(_PARQUET):
        found = _parquet_column(file, column)
    elif path.endswith(".npy"):
        found = np.load(path, allow_pickle=False)
        if found.dtype.kind not in "iuU" or found.size != max(found.shape, default=0):
            raise DataError(
                f"the ids in {redacted_address(path)} must be a row of whole numbers or strings, got {found.dtype} of "
                f"shape {found.shape}"
            )
        found = found.reshape(-1)
    else:
        text = sys.stdin.read() if path == STREAM else Path(path).read_text(encoding="utf-8-sig")
        return as_ids(_words(text, kind, redacted_address(path)), kind)
    if found.dtype.kind in "iu" and kind in (None, "integer"):
        return found
    words = [str(uuid.UUID(bytes=id) if kind == "uuid" and isinstance(id, bytes) else id) for id in found.tolist()]
    return as_ids(words, kind or "string")  # in a file with types, text is text, also if it consists of digits


def _words(text: str, kind: str | None, shown: str) -> list[str]:
    """Ids in a text: whole numbers, of which several may be on a line, or else lines."""
    words = text.split()
    if kind != "string" and all(word.isdigit() if kind == "integer" else _is_usual_number(word) for word in words):
        return words
    lines = [line.strip() for line in text.rstrip().split("\n")] if words else []
    if "" in lines:
        raise DataError(
            f"the ids in {shown} have an empty line, number {lines.index('') + 1}, expected an id on each; remove the "
            "line, or fill it in"
        )
    return lines


def _parquet_column(path: str, column: str | None) -> npt.NDArray[Any]:
    """Read a column of whole numbers or text; it need not be named if it is the only one."""
    parquet = _arrow("pyarrow.parquet", "reading Parquet")
    names = parquet.read_schema(path).names
    if column is None and len(names) == 1:
        column = names[0]
    if column not in names:
        what = f"got no column {column!r}" if column else "got none named"
        raise DataError(
            f"the ids must be one column of {redacted_address(path)}, {what}, expected PATH::COLUMN with one of "
            f"{', '.join(names)}"
        )
    found = parquet.read_table(path, columns=[column]).column(0)
    if found.null_count:
        raise DataError(
            f"every vector needs an id, got {found.null_count} nulls in the column {column!r}; fill them in"
        )
    array: npt.NDArray[Any] = found.to_numpy()
    return array


def read_payload(path: Path, n: int) -> Any:
    """Read the columns of ``n`` vectors as an Arrow table."""
    ending = path.suffix.lower()
    if ending not in _PAYLOADS:
        expected = ", ".join(_PAYLOADS)
        raise typer.BadParameter(
            f"{path} must end in one of {expected}, which gives its format", param_hint="'--payload'"
        )
    if not path.is_file():
        what = "it is a folder" if path.is_dir() else "there is no such file"
        raise StorageError(f"cannot read the payload {path}: {what}; look at the spelling")
    arrow = _arrow("pyarrow", "a payload")
    try:
        if ending in _PARQUET:
            table = _arrow("pyarrow.parquet", "a payload").read_table(path)
        elif ending == ".csv":
            table = _arrow("pyarrow.csv", "a payload").read_csv(path)
        elif ending in (".arrow", ".feather"):
            table = _arrow("pyarrow.feather", "a payload").read_table(path)
        else:
            table = _arrow("pyarrow.json", "a payload").read_json(path)
    except (OSError, arrow.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise FormatError(
            f"the payload {path} cannot be read: {reason}; give a file of the format that its ending names"
        ) from None
    # pandas writes its row numbers as a column of this name, or of none
    table = table.drop_columns([name for name in table.column_names if name == "" or name.startswith("__index_level_")])
    if table.num_rows != n:
        raise DataError(f"the payload in {path} must have one row for each of the {n} vectors, got {table.num_rows}")
    return table


def _arrow(module: str, purpose: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError("pyarrow", "payload", purpose) from None
