"""Inputs as the command line names them: a path, ``PATH::PART``, or ``-`` for the standard input."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autojacobin.cli.console import Progress, report_blocks
from autojacobin.core.addresses import redacted_address
from autojacobin.errors import DataError, FormatError, StorageError

if TYPE_CHECKING:
    from autojacobin.datasets import Vectors
    from autojacobin.hashers import Hasher
    from autojacobin.index.index import Index

__all__ = ["STREAM", "chained", "load_model", "open_index", "opened", "read_ids", "split_part"]

STREAM = "-"
_PART_MARK = "::"


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
