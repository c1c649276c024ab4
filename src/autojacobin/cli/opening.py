"""What commands read: vectors, models, indexes, ids and payloads."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.cli.console import numbered, report_blocks, wrong
from autojacobin.codes import Codes
from autojacobin.core.counts import typed_number
from autojacobin.core.parallel import Progress
from autojacobin.core.sampling import sample_of_blocks
from autojacobin.datasets import Vectors, open_vectors
from autojacobin.errors import DataError, FormatError, StorageError, import_extra, reason_of, shortened
from autojacobin.hashers import Hasher, OwnCodes

if TYPE_CHECKING:
    from autojacobin.index.index import Index
    from autojacobin.index.metric import Metric

STREAM = "-"
_PART_MARK = "::"
_TABLES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_TABLES |= {".arrow": "feather", ".feather": "feather"}

_LINES_AT_ONCE = 2**16

Ids = npt.NDArray[np.int64] | list[Any]


def split_part(name: str) -> tuple[str, str | None]:
    """Split ``PATH::PART`` into path and part, unless there is a file of this name."""
    path, mark, part = name.rpartition(_PART_MARK)
    plain = not mark or not path or "://" in part or os.path.exists(name)  # fsspec chains addresses by :: too
    return (name, None) if plain else (path, part)


@contextmanager
def opened(name: str, format: str | None = None) -> Iterator[Vectors]:
    """Open vectors. Those of the standard input are copied to a temporary file until the block ends."""
    path, part = split_part(name)
    with ExitStack() as stack:
        if path == STREAM:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="autojacobin-"))
            path = os.path.join(folder, "standard-input")
            with open(path, "wb") as file:
                shutil.copyfileobj(_standard_input().buffer, file)
        yield stack.enter_context(open_vectors(path, part=part, format=format))


def _standard_input() -> Any:
    if sys.stdin is None:
        raise StorageError("cannot read -: the standard input is closed; give a file, or pipe something into it")
    return sys.stdin


def check_streams(argument: str, *names: str | None) -> None:
    """Raise BadParameter for ``argument`` if more than one of the inputs is the standard input."""
    if names.count(STREAM) > 1:
        raise wrong(argument, "the standard input can be read once; give - once at most")


def names_of(files: list[Vectors]) -> list[str] | None:
    """Give the words before the vectors of some files, which can be ids; None if a file has none."""
    words = [file.names for file in files]
    return None if None in words else [word for some in words for word in some or ()]


@contextmanager
def all_opened(names: list[str], format: str | None) -> Iterator[list[Vectors]]:
    """Open several files of vectors."""
    with ExitStack() as stack:
        yield [stack.enter_context(opened(name, format)) for name in names]


@contextmanager
def reading(files: list[Vectors], hasher: Hasher | None = None) -> Iterator[Iterator[npt.NDArray[Any]]]:
    """Give the blocks of several files as one stream. An error in one of their rows names the file."""
    began = 0, files[0]  # the row at which the file that is being read begins

    def blocks() -> Iterator[npt.NDArray[Any]]:
        nonlocal began
        row = 0
        for file in files:
            began = row, file
            yield from blocks_for(hasher, file)
            row += len(file)

    try:
        yield blocks()
    except DataError as error:
        if len(files) == 1 or not {"row", "features"} & set(str(error).split()):
            raise
        row, file = began
        raise type(error)(f"{error} (row {row} is the first of {file.path})") from error


def add_files(
    index: Index, files: list[Vectors], ids: Any, payload: Path | None, progress: Progress, *, upsert: bool = False
) -> None:
    """Add the rows of several files to an index, with the columns in the file ``payload``."""
    n = sum(map(len, files))
    if ids is not None and len(ids) != n:
        raise DataError(f"there must be an id for every vector, got {len(ids)} ids for {n} vectors; give one each")
    table = None if payload is None else read_payload(payload, n)
    write = index.upsert if upsert else index.add
    with reading(files, index.hasher) as blocks:
        write(report_blocks(blocks, n, progress, "adding vectors"), ids, table)


def blocks_for(hasher: Hasher | None, file: Vectors, rows: int | None = None) -> Iterator[npt.NDArray[Any]]:
    """Give the blocks of a file as an index with this hasher takes them.

    An index of codes that were made elsewhere takes packed bytes in its own bit order. Only a file that ``Codes.save``
    wrote has a bit order of its own, and gets that of the index.
    """
    blocks = file.blocks(rows)
    if not isinstance(hasher, OwnCodes) or (n_bits := saved_bits(file)) is None:
        return blocks
    if n_bits != hasher.n_bits:
        raise DataError(f"the codes of the index have {hasher.n_bits} bits, got codes of {n_bits} bits in {file.path}")
    return (Codes(block, n_bits).to_packed(hasher.bitorder) for block in blocks)


def saved_bits(file: Vectors) -> int | None:
    """Give the length of the codes in a file that ``Codes.save`` wrote; None for any other file."""
    if file.format != "npz":
        return None
    with np.load(file.path, allow_pickle=False) as arrays:
        return int(arrays["n_bits"]) if {"packed", "n_bits", "format_version"} == set(arrays.files) else None


def open_index(path: Path) -> Index:
    """Open an index. It is imported only here, since loading numba takes a second."""
    from autojacobin.index.index import Index

    return Index.open(path)


def metric_for(given: str | None, files: list[Vectors], hasher: Hasher) -> Metric:
    """Give the metric of a model, or another one, for the vectors in some files."""
    from autojacobin.index.metric import Metric

    with reading(files) as blocks:
        return Metric.of(given or str(hasher.metric_), blocks)


def learn_hasher(files: list[Vectors], metric: str, partitions: int | str | None, progress: Progress) -> Hasher:
    """Choose and fit a hasher for the vectors in some files, from a sample of them; with lists if they pay."""
    from autojacobin.hashers.autoencoders.code_length import sample_size
    from autojacobin.index import growth
    from autojacobin.index.metric import Metric

    widths = [file.shape[1] for file in files]
    if len(set(widths)) > 1:
        raise DataError(f"the vectors of an index have one length, got {widths} in {len(files)} files; give others")
    with reading(files) as blocks:
        measure = Metric.of(metric, blocks)
    with reading(files) as blocks:
        n = sum(map(len, files))
        checked = report_blocks(_checked(blocks, measure), n, progress, "reading vectors")
        size = max(growth.MOST_TRAINING_POINTS, sample_size(widths[0]), growth.sample_for_lists(partitions, n))
        sample = sample_of_blocks(checked, size, np.random.RandomState(0))
    hasher = growth.chosen_hasher(sample, measure, progress).set_params(progress=progress)
    fitted = measure.fit(hasher, growth.training_sample(sample, hasher, partitions)[0], training_points=None)
    return growth.with_lists(fitted, measure, partitions, n, sample, progress)


def _checked(blocks: Iterator[Any], metric: Metric) -> Iterator[Any]:
    """The same blocks. A vector that the metric does not take is named by its row."""
    for row, block in numbered(blocks):
        metric.prepare(block, row)
        yield block


def as_ids(words: Sequence[str], kind: str | None) -> Ids:
    """Give ids, as they are typed, in the kind that an index has.

    Of a new index, whose kind is None, they are integers if all of them are whole numbers as they are usually written,
    and names otherwise, such as 007.
    """
    if kind is None:
        kind = "integer" if all(re.fullmatch("0|[1-9][0-9]*", word) for word in words) else "string"
    if kind == "string":
        return list(words)
    from autojacobin.index.names import as_uuid

    read, expected = (as_uuid, "UUIDs") if kind == "uuid" else (_whole_number, "whole numbers from 0 to 2^63 - 1")
    found: list[Any] = []
    for word in words:
        try:
            found.append(read(word))
        except ValueError:
            raise DataError(f"the ids of this index are {expected}, got {word!r:.60}; give ids of this kind") from None
    return found if kind == "uuid" else np.array(found, dtype=np.int64)


def _whole_number(word: str) -> int:
    number = typed_number(word)
    if number is None or number >= 2**63:
        raise ValueError
    return number


def read_ids(path: str, kind: str | None = None) -> Ids:
    """Read ids for an index whose ids are of this kind; None if it is a new one."""
    try:
        return _read_ids(path, kind)
    except DataError:
        raise
    except OSError as error:
        raise StorageError(f"cannot read the ids in {path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, OverflowError, EOFError) as error:
        expected = "one id per line, an npy file of whole numbers or strings, or a column of a Parquet file"
        raise FormatError(f"the ids in {path} cannot be read: {error}; expected {expected}") from None


def _read_ids(path: str, kind: str | None) -> Ids:
    file, column = split_part(path)
    if Path(file).suffix.lower() in (".parquet", ".pq"):
        found = _id_column(Path(file), column)
    elif path.endswith(".npy"):
        found = np.load(path, allow_pickle=False)
        if found.dtype.kind not in "iuU" or found.size != max(found.shape, default=0):
            raise DataError(
                f"the ids in {path} must be a row of whole numbers or strings, got {found.dtype} of shape {found.shape}"
            )
        found = found.reshape(-1)
    else:
        text = _standard_input().read() if path == STREAM else Path(path).read_text(encoding="utf-8-sig")
        lines = [line.strip() for line in text.rstrip().split("\n")] if text.strip() else []
        if "" in lines:
            raise DataError(f"the ids in {path} have an empty line, number {lines.index('') + 1}, expected an id each")
        return as_ids(lines, kind)
    if found.dtype.kind in "iu" and kind in (None, "integer"):
        return found
    words = [str(uuid.UUID(bytes=id) if kind == "uuid" and isinstance(id, bytes) else id) for id in found.tolist()]
    return as_ids(words, kind or "string")  # in a file with types, text is text, also if it consists of digits


def _id_column(path: Path, column: str | None) -> npt.NDArray[Any]:
    """Read a column of whole numbers or text; it need not be named if it is the only one."""

    def choose(names: list[str]) -> list[str]:
        if column in names:
            return [column]
        if column is None and len(names) == 1:
            return names
        what = f"got no column {column!r}" if column else "got none named"
        raise DataError(f"the ids must be one column, {what}, expected {path}::COLUMN with one of {', '.join(names)}")

    found = _read_table(path, choose).column(0)
    if found.null_count:
        raise DataError(f"every vector needs an id, got {found.null_count} nulls in {path}; fill them in")
    return found.to_numpy()


def read_payload(path: Path, n: int) -> Any:
    """Read the columns of ``n`` vectors as an Arrow table."""
    if path.suffix.lower() not in _TABLES:
        raise wrong("--payload", f"{path} must end in one of {', '.join(_TABLES)}, which gives its format")
    table = _read_table(path)
    # pandas writes its row numbers as a column of this name, or of none
    table = table.drop_columns([name for name in table.column_names if name == "" or name.startswith("__index_level_")])
    if not table.num_columns:
        raise DataError(f"the payload in {path} has no columns; add some, or leave out --payload")
    if table.num_rows != n:
        raise DataError(f"the payload in {path} must have one row for each of the {n} vectors, got {table.num_rows}")
    return table


def _read_table(path: Path, choose: Callable[[list[str]], list[str] | None] = lambda _: None) -> Any:
    """Read a table, or those of its columns that ``choose`` gives."""
    if not path.is_file():
        raise StorageError(f"cannot read {path}: there is no such file; look at the spelling")
    arrow, dataset = (import_extra(name, "payload", "reading a table") for name in ("pyarrow", "pyarrow.dataset"))
    try:
        if _TABLES[path.suffix.lower()] == "jsonl":
            return arrow.concat_tables(_json_tables(path), promote_options="permissive")
        table = dataset.dataset(path, format=_TABLES[path.suffix.lower()])
        return table.to_table(choose(table.schema.names))
    except (OSError, arrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{path} cannot be read: {reason_of(error)}; look at its format") from None


def _json_tables(path: Path) -> Iterator[Any]:
    """Tables of the rows of JSON lines. Arrow's own reader crashes, and knows the columns of the first lines alone."""
    from autojacobin.index.payload import check_depth, table_of_rows

    rows: list[dict[str, Any]] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
                if not isinstance(row, dict):
                    raise ValueError(f"got {shortened(json.dumps(row), 40)}")
                check_depth(row.values())
            except (ValueError, RecursionError) as error:
                what = (
                    f"line {number} of {path} is no JSON object of columns: {reason_of(error, 200).partition(';')[0]}"
                )
                raise FormatError(f'{what}; write lines such as {{"price": 3, "lang": "de"}}') from None
            rows.append(row)
            if len(rows) == _LINES_AT_ONCE:
                yield table_of_rows(rows)
                rows = []
    yield table_of_rows(rows)
