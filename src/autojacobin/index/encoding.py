"""Vectors and ids on their way into an index: checked, cut into blocks, encoded, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import map_points
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, DataTypeError
from autojacobin.hashers import Hasher
from autojacobin.hashers.base import non_empty as filled
from autojacobin.index.segment import ROWS_PER_BLOCK, Part

__all__ = ["checked_ids", "checked_new_ids", "encoded_parts"]

_LARGEST_ID = 2**63 - 1
_ROWS_PER_TASK = 2**15


def checked_ids(ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Give ids as an array of int64, none negative."""
    array = np.atleast_1d(np.asarray(ids))
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataTypeError(
            f"ids must be a list of integers, got {array.dtype} of shape {array.shape}; convert them with "
            "np.asarray(ids, dtype=np.int64)"
        )
    if array.size and (array.min() < 0 or array.max() > _LARGEST_ID):
        wrong = array.min() if array.min() < 0 else array.max()
        raise DataError(f"ids must be integers from 0 to 2^63 - 1, got {wrong}; give other ids")
    return array.astype(np.int64)


def checked_new_ids(ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Give ids as an array of int64, each once."""
    array = checked_ids(ids)
    ordered = np.sort(array)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(twice):
        raise DataError(f"ids must be unique, got {twice[0]} more than once; give every vector an id of its own")
    return array


def encoded_parts(
    hasher: Hasher, vectors: Any, ids: npt.NDArray[np.int64] | None, first_id: int, keep_vectors: bool
) -> Iterator[Part]:
    """Walk over vectors in blocks: their ids, which count up from ``first_id`` if none are given, codes, themselves."""
    name, row = type(hasher).__name__, 0
    if not isinstance(vectors, Iterator):
        n = len(hasher._checked(vectors))
        if ids is not None and n != len(ids):
            raise _wrong_length(len(ids), str(n))
    for block, codes in _encoded(hasher, _blocks(vectors, name)):
        end = row + len(codes)
        if ids is not None and end > len(ids):
            raise _wrong_length(len(ids), f"{end} or more")
        if first_id + end - 1 > _LARGEST_ID:
            raise DataError(f"there are no ids after {_LARGEST_ID}, the largest in use; give ids of your own")
        chosen = np.arange(first_id + row, first_id + end) if ids is None else ids[row:end]
        yield Part(chosen, codes, _storable(to_host(as_matrix(block, name))) if keep_vectors else None)
        row = end
    if ids is not None and row != len(ids):
        raise _wrong_length(len(ids), str(row))


def _blocks(vectors: Any, name: str) -> Iterator[Any]:
    for matrix in filled(vectors) if isinstance(vectors, Iterator) else (vectors,):
        # a data frame stays one, so that the hasher can compare the names of its columns
        rows = matrix.iloc if hasattr(matrix, "iloc") else as_matrix(matrix, name)
        for start in range(0, len(matrix), ROWS_PER_BLOCK):
            yield rows[start : start + ROWS_PER_BLOCK]


def _encoded(hasher: Hasher, blocks: Iterator[Any]) -> Iterator[tuple[Any, Codes]]:
    """Each block with its codes."""
    row = 0
    for block in blocks:
        try:
            codes = _codes_of(hasher, block)
        except DataError:
            as_floats(as_matrix(block, type(hasher).__name__), row)  # names a NaN's row, counted from the first block
            raise
        yield block, codes
        row += len(block)
    if not row:
        raise DataError("there are no vectors to add, got an iterator without a block; expected at least one matrix")


def _codes_of(hasher: Hasher, block: Any) -> Codes:
    if hasher._device() != "cpu":
        return hasher.encode(block)
    return Codes.concatenate(map_points(lambda rows: hasher.encode(block[rows]), block, _ROWS_PER_TASK))


def _storable(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Vectors as they are, but for what other machines would not read: booleans, long doubles, big-endian numbers."""
    if array.dtype.kind == "b":
        return array.view(np.uint8)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def _wrong_length(n_ids: int, n_vectors: str) -> DataError:
    return DataError(f"there must be an id for every vector, got {n_ids} ids for {n_vectors} vectors; give one each")
