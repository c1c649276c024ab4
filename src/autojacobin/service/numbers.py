"""Numbers out of requests: whole ones within limits, and matrices of finite float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.service.problems import Problem

__all__ = ["matrix_of", "raw_matrix", "whole"]

Matrix = npt.NDArray[np.float32]


def whole(name: str, value: Any, least: int, most: int, what: str) -> int:
    """Give a JSON number as an integer within limits; 10.0 is the integer 10, as JSON Schema has it."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise _invalid(f"{name} must be an integer from {least} to {most}, {what}, got {_shown(value)}")
    return number


def raw_matrix(body: bytes, rows: int, columns: int, most: int) -> Matrix:
    """Read little-endian float32 numbers, a vector after the other."""
    if not 1 <= rows <= most:
        raise _invalid(f"a raw body must have 1 to {most} vectors, the limit of this service, got {rows}")
    if len(body) != 4 * rows * columns:
        raise _invalid(
            f"a raw body of {rows} vectors of {columns} little-endian float32 numbers must have {4 * rows * columns} "
            f"bytes, got {len(body)}; send all of the vectors, or tell the shape that they have"
        )
    # Copied, because a read-only array is another type to the compiler, and the kernels would be compiled twice.
    matrix = np.frombuffer(body, dtype="<f4").astype(np.float32, copy=True).reshape(rows, columns)
    _refuse_non_finite(matrix)
    return matrix


def matrix_of(value: Any, width: int, most: int) -> Matrix:
    """Read a list of lists of numbers."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        shown = f"a list of {len(value)}" if isinstance(value, list) else _shown(value)
        raise _invalid(f"vectors must be a list of 1 to {most} vectors, got {shown}")
    for row, vector in enumerate(value):
        if not isinstance(vector, list) or len(vector) != width:
            shown = f"a list of {len(vector)}" if isinstance(vector, list) else _shown(vector)
            raise _invalid(f"each of vectors must be a list of {width} numbers, got {shown} in row {row}")
        kinds = set(map(type, vector))
        if not kinds <= {int, float}:
            wrong = next(column for column, number in enumerate(vector) if type(number) not in (int, float))
            raise _invalid(
                f"each of vectors must be a list of {width} numbers, got {_shown(vector[wrong])} in row {row}, "
                f"column {wrong}"
            )
    try:
        with np.errstate(over="ignore"):  # what does not fit becomes Inf, and is told as such
            matrix = np.array(value, dtype=np.float64).astype(np.float32)
    except OverflowError:  # of integers beyond float64
        raise _invalid("each number of vectors must fit into float32, got one that is too large; rescale it") from None
    _refuse_non_finite(matrix)
    return matrix


def _refuse_non_finite(matrix: Matrix) -> None:
    finite = np.isfinite(matrix)
    if not finite.all():
        row, column = divmod(int(np.argmin(finite)), matrix.shape[1])
        raise _invalid(
            f"each number of vectors must be finite and fit into float32, got {matrix[row, column]} in row {row}, "
            f"column {column}; leave such vectors out, or rescale them"
        )


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__}"
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number that is too large"
    return repr(value)[:80]


def _invalid(detail: str) -> Problem:
    return Problem(400, "invalid-request", detail)
