"""Write the bodies of responses: neighbours and codes, as JSON with exact and finite numbers, or as raw arrays.

Where a filter leaves fewer neighbours than were asked for, the rest is null.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes

__all__ = [
    "GENERATION", "JSON", "RAW", "SHAPE", "CodeForm", "Payload", "Result", "as_json_value", "codes_payload",
    "is_missing", "neighbours_payload", "wants_raw",
]  # fmt: skip

JSON = "application/json"
RAW = "application/octet-stream"
SHAPE = "Autojacobin-Shape"  # header of a raw body, in requests and responses: ROWS,COLUMNS
GENERATION = "Autojacobin-Generation"


@dataclass(frozen=True)
class Result:
    """Arrays with one row for each vector of the operation, and the state of the index that they come from.

    ``payload`` is an Arrow table with a row for each neighbour, if a search asked for columns.
    """

    generation: int | None
    n_bits: int
    arrays: tuple[npt.NDArray[Any], ...]
    payload: Any = None


Payload = tuple[bytes, str, dict[str, str]]  # body, media type, headers


def wants_raw(headers: dict[bytes, bytes]) -> bool:
    """Whether the client takes raw bytes and does not take JSON."""
    accepted = headers.get(b"accept", b"").decode("latin-1").lower()
    return RAW in accepted and JSON not in accepted


def is_missing(ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a search found no more neighbours: the id is -1, or None if ids are names."""
    missing: npt.NDArray[np.bool_] = ids == None if ids.dtype == object else ids < 0  # noqa: E711 (of each element)
    return missing


def as_json_value(value: Any) -> Any:
    """Convert a value of a payload to a value for JSON.

    Times become ISO 8601 text, bytes base64, and NaN and Inf null. Other types that JSON does not have become text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return as_json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): as_json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(part) for part in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat() if value == value else None  # NaT of pandas is not equal to itself
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


def neighbours_payload(name: str, result: Result, *, raw: bool) -> Payload:
    """Write distances, ids and the columns of the neighbours.

    Only integer ids without columns can be raw: all distances as float64, then all ids as int64, little-endian, row by
    row.
    """
    distances, ids = result.arrays
    if raw and ids.dtype != object and result.payload is None:
        body = distances.astype("<f8", copy=False).tobytes() + ids.astype("<i8", copy=False).tobytes()
        return body, RAW, _headers(result, ids.shape)
    missing = is_missing(ids)
    # Row by row, so that a large response does not block the interpreter, and with it all other requests.
    fields = {"distances": _rows(distances, missing), "ids": _rows(ids, missing)}
    if result.payload is not None:
        k = ids.shape[1]
        rows = (result.payload[row * k : row * k + k].to_pylist() for row in range(len(ids)))
        fields["payload"] = _list(
            json.dumps([None if gone else as_json_value(entry) for entry, gone in zip(entries, flags, strict=True)])
            for entries, flags in zip(rows, missing.tolist(), strict=True)
        )
    return _document(name, result, fields), JSON, {}


class CodeForm(NamedTuple):
    """How packed codes are written: as base64 or hex in JSON, and in which bit order."""

    encoding: str
    bitorder: BitOrder


def codes_payload(name: str, result: Result, form: CodeForm, *, raw: bool) -> Payload:
    """Write packed codes; raw: the bytes of one code after the other."""
    packed = Codes(result.arrays[0], result.n_bits).to_packed(form.bitorder)
    if raw:
        return packed.tobytes(), RAW, _headers(result, (len(packed), result.n_bits))
    write = bytes.hex if form.encoding == "hex" else (lambda code: base64.b64encode(code).decode("ascii"))
    codes = (json.dumps(write(row.tobytes())) for row in packed)
    fields = {"bits": str(result.n_bits), "encoding": json.dumps(form.encoding), "codes": _list(codes)}
    return _document(name, result, fields), JSON, {}


def _document(name: str, result: Result, fields: dict[str, str]) -> bytes:
    written = {"index": json.dumps(name), "generation": json.dumps(result.generation)} | fields
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in written.items()) + "}").encode("ascii")


def _rows(array: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> str:
    if array.dtype == object:
        texts = ([None if id is None else str(id) for id in row] for row in array)
        return _list(json.dumps(row) for row in texts)
    wide: npt.NDArray[Any] = array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
    if missing.any():
        wide = wide.astype(object)
        wide[missing] = None
    return _list(json.dumps(row.tolist(), allow_nan=False) for row in wide)


def _list(parts: Iterable[str]) -> str:
    return "[" + ", ".join(parts) + "]"


def _headers(result: Result, shape: tuple[int, ...]) -> dict[str, str]:
    headers = {SHAPE: ",".join(map(str, shape))}
    return headers if result.generation is None else headers | {GENERATION: str(result.generation)}
