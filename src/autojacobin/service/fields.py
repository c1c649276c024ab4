"""Read single fields of requests, and check every part of them: vectors, ids, conditions, columns, numbers."""

from __future__ import annotations

import base64
import math
import uuid
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes, as_bit_order
from autojacobin.errors import DataError
from autojacobin.hashers import OwnCodes
from autojacobin.index.conditions import LONGEST_CONDITION, read_condition
from autojacobin.service.problems import invalid
from autojacobin.service.served import ServedIndex

__all__ = [
    "as_int", "as_packed", "check_finite", "one_of", "read_among", "read_codes", "read_columns", "read_ids",
    "read_matrix", "read_payload", "read_where", "shown_value",
]  # fmt: skip

Matrix = npt.NDArray[np.float32]
Packed = npt.NDArray[np.uint8]

_LARGEST_ID = 2**63 - 1
_ID_WORDS = {"integer": "integers", "string": "non-empty strings", "uuid": "UUIDs"}


def read_where(where: Any, served: ServedIndex) -> str:
    """Read a condition on the payload."""
    if not isinstance(where, str) or not 1 <= len(where) <= LONGEST_CONDITION:
        raise invalid(f"where must be a condition of 1 to {LONGEST_CONDITION} characters, got {shown_value(where)}")
    _check_payload("where", served)
    try:
        read_condition(where)
    except DataError as error:
        raise invalid(str(error)) from error
    return where


def read_columns(columns: Any, served: ServedIndex) -> tuple[str, ...]:
    """Read the names of columns, all of which the index must have."""
    if not isinstance(columns, list) or not columns or not all(isinstance(name, str) for name in columns):
        raise invalid(f"columns must be a list of 1 or more names, got {shown_value(columns)}")
    known = _check_payload("columns", served)
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise invalid(
            f"there is no column {shown_value(unknown[0])} in {served.name}, expected some of {', '.join(known)}"
        )
    return tuple(columns)


def _check_payload(field: str, served: ServedIndex) -> list[str]:
    """Give the columns of an index, which must have some."""
    known: list[str] | None = served.index.info()["columns"]
    if known is None:
        raise invalid(f"{field} needs the payload of {served.name}, which is damaged; leave it out")
    if not known:
        raise invalid(f"{field} needs a payload, got a search of {served.name}, which has none; leave it out")
    return known


def read_among(among: Any, n_queries: int, served: ServedIndex) -> list[Any]:
    """Read ids to search among, or one list of them for each query."""
    if not isinstance(among, list):
        raise invalid(f"among must be a list of ids, or one such list for each query, got {shown_value(among)}")
    kind = served.id_kind
    if not any(isinstance(entry, list) for entry in among):
        return read_ids("among", among, None, kind)
    if len(among) != n_queries:
        raise invalid(f"among must have one list for each of the {n_queries} queries, got {len(among)}")
    return [read_ids("each list of among", entry, None, kind) for entry in among]


def read_ids(name: str, ids: Any, most: int | None, kind: str | None) -> list[Any]:
    """Read ids of one kind: integer, string or uuid; of integers or strings if the kind is not decided yet."""
    if not isinstance(ids, list) or not (most is None or 1 <= len(ids) <= most):
        size = "" if most is None else f"1 to {most} "
        raise invalid(
            f"{name} must be a list of {size}{'ids' if kind is None else _ID_WORDS[kind]}, got {shown_value(ids)}"
        )
    if kind is None:
        kind = "string" if ids and isinstance(ids[0], str) else "integer"
    if kind == "integer":
        return [as_int(name, id, 0, _LARGEST_ID, "the largest id") for id in ids]
    wrong = next((id for id in ids if not isinstance(id, str) or not id), None)
    if wrong is not None:
        raise invalid(f"{name} must be {_ID_WORDS[kind]}, got {shown_value(wrong)}")
    if kind == "string":
        return ids
    try:
        return [uuid.UUID(id) for id in ids]
    except ValueError:
        raise invalid(f"{name} must be UUIDs, got something else; write them in full") from None


def read_payload(payload: Any, n: int) -> dict[str, list[Any]]:
    """Give a payload as columns: an object of lists, or a list of objects, in which what is missing is null."""
    expected = f"payload must be a list of {n} objects, or an object with lists of {n} values"
    if isinstance(payload, dict):
        wrong = next(
            (name for name, column in payload.items() if not isinstance(column, list) or len(column) != n), None
        )
        if wrong is not None:
            raise invalid(f"{expected}, got {shown_value(payload[wrong])} in {shown_value(wrong)}")
        columns = payload
    elif isinstance(payload, list) and len(payload) == n and all(isinstance(row, dict) for row in payload):
        names = dict.fromkeys(name for row in payload for name in row)
        columns = {name: [row.get(name) for row in payload] for name in names}
    else:
        raise invalid(f"{expected}, got {shown_value(payload)}")
    if not columns:
        raise invalid(f"{expected}, got one without a column; leave it out")
    return columns


def read_matrix(value: Any, width: int, most: int) -> Matrix:
    """Read a list of lists of numbers."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        shown = f"a list of {len(value)}" if isinstance(value, list) else shown_value(value)
        raise invalid(f"vectors must be a list of 1 to {most} vectors, got {shown}")
    for row, vector in enumerate(value):
        expected = f"each of vectors must be a list of {width} numbers, got"
        if not isinstance(vector, list) or len(vector) != width:
            shown = f"a list of {len(vector)}" if isinstance(vector, list) else shown_value(vector)
            raise invalid(f"{expected} {shown} in row {row}")
        if not set(map(type, vector)) <= {int, float}:
            wrong = next(column for column, number in enumerate(vector) if type(number) not in (int, float))
            raise invalid(f"{expected} {shown_value(vector[wrong])} in row {row}, column {wrong}")
    try:
        with np.errstate(over="ignore"):  # what does not fit becomes Inf, which is refused below
            matrix = np.array(value, dtype=np.float64).astype(np.float32)
    except OverflowError:  # for integers beyond float64
        raise invalid("each number of vectors must fit into float32, got one that is too large; rescale it") from None
    check_finite(matrix)
    return matrix


def read_codes(value: Any, encoding: str, bitorder: str | None, hasher: OwnCodes, most: int) -> Packed:
    """Read a list of packed codes, each as text in base64 or hexadecimal digits."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        shown = f"a list of {len(value)}" if isinstance(value, list) else shown_value(value)
        raise invalid(f"codes must be a list of 1 to {most} codes, got {shown}")
    width, rows = int(hasher.n_features_in_), []
    for row, text in enumerate(value):
        try:
            code = base64.b64decode(text, validate=True) if encoding == "base64" else bytes.fromhex(text)
        except (ValueError, TypeError):
            raise invalid(f"each of codes must be text in {encoding}, got {shown_value(text)} in row {row}") from None
        if len(code) != width:
            raise invalid(
                f"each of codes must have {width} bytes for {hasher.n_bits} bits, got {len(code)} in row {row}"
            )
        rows.append(code)
    return as_packed(np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, width), bitorder, hasher)


def as_packed(packed: Packed, bitorder: str | None, hasher: OwnCodes) -> Packed:
    """Give packed codes in the bit order of an index, which is also the one that they have by default."""
    order = hasher.bitorder if bitorder is None else as_bit_order(bitorder)
    try:
        codes = Codes.from_packed(packed, hasher.n_bits, bitorder=order)
    except DataError as error:
        raise invalid(str(error)) from error
    return codes.to_packed(hasher.bitorder)


def check_finite(matrix: Matrix) -> None:
    """Refuse a matrix with a number that is not finite, and name its place."""
    finite = np.isfinite(matrix)
    if not finite.all():
        row, column = divmod(int(np.argmin(finite)), matrix.shape[1])
        raise invalid(
            f"each number of vectors must be finite and fit into float32, got {matrix[row, column]} in row {row}, "
            f"column {column}; leave such vectors out, or rescale them"
        )


def as_int(name: str, value: Any, least: int, most: int, what: str) -> int:
    """Give a JSON number as an integer within limits; 10.0 is the integer 10, as in JSON Schema."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise invalid(f"{name} must be an integer from {least} to {most}, {what}, got {shown_value(value)}")
    return number


def one_of(name: str, value: Any, expected: tuple[str, ...]) -> str:
    """Give a text that must be one of those that are expected."""
    if not isinstance(value, str) or value not in expected:
        raise invalid(f"{name} must be {' or '.join(map(repr, expected))}, got {shown_value(value)}")
    return value


def shown_value(value: Any) -> str:
    """Format a value for a message, shortened if it is large."""
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= 2**64):
        return "a number that is too large"
    return repr(value)[:80]
