"""How rows come out of an open file: from a map as they are, or read and decoded when they are asked for."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.datasets._formats.source import Source, spooled
from autojacobin.errors import DataError, FormatError

__all__ = ["LazyReader", "MappedReader", "Reader", "chosen_part", "rows_per_block", "steps"]

_BYTES_PER_BLOCK = 2**24
_ROWS_PER_STEP = 2**12


class Reader(ABC):
    """An open file of vectors; ``rows`` and ``take`` get row numbers that exist."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]

    @abstractmethod
    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows from ``start`` to ``stop``."""

    @abstractmethod
    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Rows in the order of ``ids``."""

    @abstractmethod
    def whole(self) -> npt.NDArray[Any]:
        """All rows, mapped."""

    def close(self) -> None:  # noqa: B027
        """Let go of the file."""


class MappedReader(Reader):
    """Rows that lie in the file as they are in memory."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array
        self.shape, self.dtype = (array.shape[0], array.shape[1]), array.dtype

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._array[start:stop]

    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        return self._array[ids]

    def whole(self) -> npt.NDArray[Any]:
        return self._array


class LazyReader(Reader):
    """Rows that have to be decoded.

    Whoever asks for all of them gets them decoded once into an unnamed temporary file, which is mapped: no function
    that takes an array then needs the memory for a second copy, nor decodes again.
    """

    def __init__(self, path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.path, self.shape, self.dtype = path, shape, dtype
        self._decoded: MappedReader | None = None
        self._lock = threading.RLock()  # the libraries below are not made for several threads at one file

    @abstractmethod
    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Decode rows from ``start`` to ``stop``."""

    def _stream(self) -> Iterator[npt.NDArray[Any]]:
        """Decode all rows, block by block."""
        return (self._read(*span) for span in steps(self.shape[0], rows_per_block(self.shape[1], self.dtype)))

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        with self._lock:
            return self._decoded.rows(start, stop) if self._decoded is not None else self._read(start, stop)

    def take(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        with self._lock:
            if self._decoded is not None:
                return self._decoded.take(ids)
            found = np.empty((len(ids), self.shape[1]), dtype=self.dtype)
            order = np.argsort(ids, kind="stable")
            ascending = ids[order]
            step = min(_ROWS_PER_STEP, rows_per_block(self.shape[1], self.dtype))
            edges = np.flatnonzero(np.diff(ascending // step)) + 1
            for places, rows in zip(np.split(order, edges), np.split(ascending, edges), strict=True):
                if len(rows):
                    first = int(rows[0])
                    found[places] = self._read(first, int(rows[-1]) + 1)[rows - first]
            return found

    def whole(self) -> npt.NDArray[Any]:
        with self._lock:
            if self._decoded is None:
                content = spooled(map(np.ascontiguousarray, self._stream()), f"decode {self.path}")
                self._decoded = MappedReader(content.view(self.dtype).reshape(self.shape))
            return self._decoded.whole()


def rows_per_block(width: int, dtype: np.dtype[Any]) -> int:
    """How many rows make a block of some megabytes."""
    return max(1, _BYTES_PER_BLOCK // (width * dtype.itemsize))


def steps(n: int, step: int) -> Iterator[tuple[int, int]]:
    """Spans (start, stop) of ``step`` rows that cover 0…n."""
    return ((start, min(n, start + step)) for start in range(0, n, step))


def chosen_part(source: Source, part: str | None, matrices: dict[str, str], what: str) -> str:
    """Name of the matrix to open in a file with several; ``matrices`` maps each name to a word on its shape."""
    listed = ", ".join(f"{name!r} ({shape})" for name, shape in list(matrices.items())[:20])
    listed += f" and {len(matrices) - 20} more" if len(matrices) > 20 else ""
    if part is not None:
        if part in matrices:
            return part
        raise DataError(f"{source.path} has no {what} called {part!r} with a vector a row, it has: {listed or 'none'}")
    if not matrices:
        raise FormatError(f"{source.path} has no {what} of numbers with a vector a row; write one with write_vectors")
    if len(matrices) == 1 or "train" in matrices:
        return "train" if "train" in matrices else next(iter(matrices))
    raise DataError(f"{source.path} has several {what}s, expected part= to name one of them: {listed}")
