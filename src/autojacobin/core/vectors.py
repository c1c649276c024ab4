"""Check vectors that come from the caller, and convert them to matrices and blocks of floats."""

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from autojacobin.core.arrays import adopt, device_of, namespace
from autojacobin.core.counts import count_of
from autojacobin.errors import DataError, DataTypeError, shortened

LARGEST = 1e15
"""Largest absolute value of a number in vectors to learn from, to store and to search for.

The squares of such numbers, and sums of many squares, fit float32.
"""

_BYTES_PER_BLOCK = 2**21
_BYTES_PER_GPU_BLOCK = 2**28  # a GPU waits for each block to be prepared


def as_matrix(X: Any, name: str, argument: str = "X") -> Any:
    """Convert ``X`` to a matrix, without a copy if it is one; messages call it ``argument`` of ``name``."""
    sparse = sys.modules.get("scipy.sparse")  # a caller with a sparse matrix has loaded it
    if sparse is not None and (sparse.issparse(X) or isinstance(X, sparse.sparray)):
        raise DataTypeError(
            f"{name} takes dense vectors, got a sparse {type(X).__name__}; pass {argument}.toarray(), "
            "or reduce it first with sklearn.decomposition.TruncatedSVD"
        )
    array = adopt(X)
    if namespace(array) is np:
        array = _as_numpy(array, name, argument)
    if array.dtype.kind == "c":
        raise DataTypeError(f"Complex data not supported: {name} takes real numbers; pass {argument}.real")
    if array.ndim != 2:
        hint = f"{argument}.reshape(1, -1) if it is one vector, {argument}.reshape(-1, 1) if it is one feature"
        if array.ndim > 2:
            hint = f"{argument}.reshape(len({argument}), -1)"
        raise DataError(
            f"Expected 2D array, got {array.ndim}D array instead: {name} takes a matrix with one vector per row. "
            f"Reshape your data, with {hint}"
        )
    return array


def as_floats(array: Any, rows: Any = 0, argument: str = "X") -> Any:
    """Convert to float64 if ``array`` has that type, and to float32 otherwise; NaN and Inf are an error.

    ``rows`` is the number of the first row in the caller's data, or the numbers of all rows, and ``argument`` the name
    of the caller's data, for the message.
    """
    floats = _converted(array)
    if not math.isfinite(float(floats.sum(dtype="float64"))):  # one pass: the sum is finite only if all numbers are
        check_finite(floats, rows, argument)
    return floats


def check_finite(floats: Any, rows: Any = 0, argument: str = "X") -> None:
    """Raise a DataError that names the first NaN or Inf, if there is one; the rest is as in :func:`as_floats`."""
    xp = namespace(floats)
    wrong = ~xp.isfinite(floats)
    if bool(wrong.any()):
        row, column = divmod(int(wrong.argmax()), floats.shape[1])
        what, number = "NaN" if bool(xp.isnan(floats[row, column])) else "inf", row_number(rows, row)
        raise DataError(
            f"Input {argument} contains {what} in row {number}, column {column}, expected finite numbers; "
            "drop such rows, or fill them in with sklearn.impute.SimpleImputer"
        )


def check_size(array: Any, rows: Any = 0, argument: str = "X") -> None:
    """Raise a DataError that names the first number that is not finite or exceeds LARGEST, if there is one."""
    if not array.size or (array.dtype.kind in "biu" and array.dtype.itemsize <= 4):
        return
    if max(-float(array.min()), float(array.max())) <= LARGEST:
        return
    check_finite(array, rows, argument)
    xp = namespace(array)
    row, column = divmod(int((xp.abs(array.astype("float64")) > LARGEST).argmax()), array.shape[1])
    raise DataError(
        f"Input {argument} has {float(array[row, column]):.4g} in row {row_number(rows, row)}, column {column}, "
        f"expected numbers of up to {LARGEST:g} in absolute value; leave out such rows, or divide all vectors and "
        "queries by the same number"
    )


def row_number(rows: Any, row: int) -> int:
    """Give the number of a row in the caller's data; ``rows`` is as in :func:`as_floats`."""
    return int(rows + row if np.ndim(rows) == 0 else rows[row])


def float_blocks(array: Any, device: str = "cpu") -> Iterator[Any]:
    """Give a matrix in blocks of rows as floats, without a check for NaN and Inf.

    A memory map of any size passes through a buffer of some megabytes, or some hundred for a GPU. The size of the
    blocks depends on the width and on where they are used, not on the machine.
    """
    at_once = _BYTES_PER_BLOCK if device == device_of(array) == "cpu" else _BYTES_PER_GPU_BLOCK
    rows = max(1, at_once // (8 * max(1, array.shape[1])))
    for start in range(0, len(array), rows):
        yield _converted(array[start : start + rows])


def _converted(array: Any) -> Any:
    xp = namespace(array)
    wide = array.dtype.kind == "f" and array.dtype.itemsize >= 8
    with np.errstate(over="ignore"):  # what does not fit becomes Inf, which is reported later
        return xp.ascontiguousarray(array, dtype=xp.float64 if wide else xp.float32)


def uneven_rows(rows: Any) -> str:
    """Say how the lengths of rows differ; nothing if they are the same."""
    sizes = [count_of(len(row), "number") if hasattr(row, "__len__") else type(row).__name__ for row in rows]
    other = next((row for row, size in enumerate(sizes) if size != sizes[0]), None)
    return (
        "" if other is None else f"rows of different lengths, got {sizes[0]} in row 0 and {sizes[other]} in row {other}"
    )


def why_no_array(X: Any, error: Exception) -> str:
    """Say why NumPy made no array of something; of lists, which of them are uneven."""
    if isinstance(X, list | tuple):
        return f"holds {uneven_rows(X) or 'rows whose values have different lengths'}"
    return f"cannot be read as an array: {error}"


def _as_numpy(X: Any, name: str, argument: str) -> Any:
    advice = f"{name} takes a matrix of numbers with one vector per row"
    if isinstance(X, np.ma.MaskedArray) and np.any(X.mask):
        raise DataTypeError(
            f"the argument {argument} is an array with {int(np.sum(X.mask))} masked values, which have no number; "
            f"pass {argument}.filled(value), or leave out these rows"
        )
    if isinstance(X, Iterator):
        raise DataTypeError(f"the argument {argument} is an iterator; {advice}; pass np.stack(list({argument}))")
    try:
        array = np.asarray(X)
    except (ValueError, TypeError) as error:
        raise DataTypeError(f"the argument {argument} {why_no_array(X, error)}; {advice}") from error
    if array.dtype.kind == "O" and array.ndim == 1 and len(array) and np.ndim(array[0]) == 1:
        if uneven := uneven_rows(array):
            raise DataTypeError(f"the argument {argument} holds {uneven}; {advice}")
        raise DataTypeError(
            f"the argument {argument} is a column of {len(array)} arrays, where a matrix is expected; "
            f"pass np.stack({argument})"
        )
    if array.dtype.kind == "O" and array.ndim:
        lists = next((value for value in array.flat if isinstance(value, list | tuple | np.ndarray)), None)
        if lists is not None:
            raise DataTypeError(f"the argument {argument} holds lists where numbers are expected; {advice}")
        try:
            array = array.astype(np.float64)
        except (ValueError, TypeError) as error:
            raise DataTypeError(
                f"the argument {argument} holds values that are not numbers: {error}; {advice}"
            ) from error
    if array.dtype.kind not in "biufc":
        kind = "text" if array.dtype.kind in "US" else f"dtype {array.dtype}"
        raise DataTypeError(
            f"the argument {argument} holds {kind} where numbers are expected, got {shortened(repr(X), 40)}; {advice}"
        )
    return array
