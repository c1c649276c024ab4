"""Check vectors before they are written, and convert them to the type of number that the file holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import adopt, to_host
from autojacobin.datasets.formats.readers import Vectors, rows_per_block, steps
from autojacobin.datasets.formats.source import spooled
from autojacobin.errors import DataError, DataTypeError

_EXACT_INTEGERS = 2**53  # up to here float64 holds every whole number


class Matrix:
    """Rows of one width and one little-endian type; ``rows`` is None for a stream of blocks, which has no known end."""

    def __init__(self, width: int, dtype: np.dtype[Any], rows: int | None, make: Callable[[], Iterator[Any]]) -> None:
        self.width, self.dtype, self.rows, self._make = width, dtype, rows, make

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Give contiguous blocks of the type; a number that does not fit it is an error that names its row."""
        row = 0
        for block in self._make():
            array = _as_block(block)
            if array.shape[1] != self.width:
                raise DataError(
                    f"all vectors must have one dimension, got {array.shape[1]} from row {row} on and {self.width} "
                    "before; write them to files of their own"
                )
            for start, stop in steps(len(array), rows_per_block(self.width, self.dtype)):
                yield _fitted(array[start:stop], self.dtype, row + start)
            row += len(array)

    def counted(self) -> Matrix:
        """Give the matrix with a known number of rows; a stream is written to a temporary file for that."""
        if self.rows is not None:
            return self
        rows = spooled(self.blocks(), "keep a stream of vectors").view(self.dtype).reshape(-1, self.width)
        return Matrix(self.width, self.dtype, len(rows), lambda: iter((rows,)))


def outgoing(vectors: Any, dtype: np.dtype[Any] | None) -> Matrix:
    """Convert what the caller wants to write: an array, ``Vectors``, or an iterator of blocks."""
    if isinstance(vectors, Iterator):
        first = next((array for array in map(_as_block, vectors) if len(array)), None)
        if first is None:
            raise DataError("there are no vectors to write, got an iterator without a block; pass at least one vector")
        blocks = itertools.chain((first,), vectors)
        return Matrix(first.shape[1], dtype or _storable(first.dtype), None, lambda: blocks)
    if isinstance(vectors, Vectors):
        n, width = vectors.shape
        return Matrix(width, dtype or _storable(vectors.dtype), n, vectors.blocks)
    array = _as_block(vectors)
    if not len(array):
        raise DataError(f"there are no vectors to write, got shape {array.shape}; pass at least one vector")
    return Matrix(array.shape[1], dtype or _storable(array.dtype), len(array), lambda: iter((array,)))


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Convert to a little-endian type of number that files can hold."""
    try:
        found: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    except (TypeError, ValueError):
        found = np.dtype(object)
    if found.kind not in "biuf" or found.itemsize > 8:
        raise DataTypeError(f"dtype must be a type of real numbers, got {dtype!r}; pass for example 'float32'")
    return found


def _as_block(block: Any) -> npt.NDArray[Any]:
    advice = "pass a matrix of real numbers with one vector per row"
    if hasattr(block, "toarray"):
        raise DataTypeError(f"vectors must be dense, got a sparse {type(block).__name__}; pass X.toarray()")
    try:
        array = np.asarray(to_host(adopt(block)))
    except (ValueError, TypeError) as error:
        raise DataTypeError(f"vectors cannot be read as an array: {error}; {advice}") from error
    if array.dtype.kind not in "biuf":
        raise DataTypeError(f"vectors must be numbers, got {array.dtype}; {advice}")
    if array.ndim != 2 or not array.shape[1]:
        raise DataError(f"vectors must be a matrix with one vector per row, got shape {array.shape}; {advice}")
    return array


def _storable(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Make a type little-endian, and a long double, which other machines do not have, a double."""
    return np.dtype("<f8") if dtype.kind == "f" and dtype.itemsize > 8 else dtype.newbyteorder("<")


def _fitted(block: npt.NDArray[Any], target: np.dtype[Any], first_row: int) -> npt.NDArray[Any]:
    """Convert a block; floats may be rounded to shorter floats, and no other number may change."""
    with np.errstate(all="ignore"):  # what cannot be converted is reported below
        converted = np.ascontiguousarray(block, dtype=target)
        kinds = block.dtype.kind, target.kind
        # NumPy says that 64-bit integers fit into a float64, which rounds those beyond 2^53
        rounds = kinds[1] == "f" and kinds[0] in "iu" and block.dtype.itemsize == 8
        if np.can_cast(block.dtype, target, "safe") and not rounds:
            return converted
        if kinds == ("f", "f"):
            wrong = np.isinf(converted) & np.isfinite(block)
        elif kinds[1] == "f":
            wide = block.astype(np.float64)
            wrong = (converted.astype(np.float64) != wide) | (block > _EXACT_INTEGERS) | (wide < -_EXACT_INTEGERS)
        else:
            wrong = (converted.astype(block.dtype) != block) | ((converted < 0) != (block < 0)) | (block >= 2.0**64)
            wrong |= (block >= 2.0**63) & (target == np.int64)
    if wrong.any():
        row, column = divmod(int(wrong.argmax()), block.shape[1])
        raise DataError(
            f"row {first_row + row}, column {column} holds {block[row, column]}, which cannot be stored as "
            f"{target.name}, so nothing was written; round or scale the vectors first, or choose a format for such "
            "numbers, as npy is for all"
        )
    return converted
