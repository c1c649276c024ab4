"""Write the bodies of responses: neighbours and codes, as JSON with exact and finite numbers, or as raw arrays."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from autojacobin.service.operations import Result

__all__ = ["GENERATION", "JSON", "RAW", "SHAPE", "Payload", "codes_payload", "neighbours_payload", "wants_raw"]

JSON = "application/json"
RAW = "application/octet-stream"
SHAPE = "Autojacobin-Shape"  # header of a raw body, in requests and responses: ROWS,COLUMNS
GENERATION = "Autojacobin-Generation"

Payload = tuple[bytes, str, dict[str, str]]  # body, media type, headers


def wants_raw(headers: dict[bytes, bytes]) -> bool:
    """Whether the client takes raw bytes and does not take JSON."""
    accepted = headers.get(b"accept", b"").decode("latin-1").lower()
    return RAW in accepted and JSON not in accepted


def neighbours_payload(name: str, result: Result, *, raw: bool) -> Payload:
    """Write distances and ids; raw: all distances as float64, then all ids as int64, little-endian, row by row."""
    distances, ids = result.arrays
    if raw:
        body = distances.astype("<f8", copy=False).tobytes() + ids.astype("<i8", copy=False).tobytes()
        return body, RAW, _headers(result, ids.shape)
    # Row by row, so that a large response does not hold the interpreter, and with it every other request, in one piece.
    fields = {"distances": _rows(distances), "ids": _rows(ids)}
    return _document(name, result, fields), JSON, {}


def codes_payload(name: str, result: Result, encoding: str, *, raw: bool) -> Payload:
    """Write packed codes; raw: the bytes of one code after the other."""
    (packed,) = result.arrays
    if raw:
        return packed.tobytes(), RAW, _headers(result, (len(packed), result.n_bits))
    write = bytes.hex if encoding == "hex" else (lambda code: base64.b64encode(code).decode("ascii"))
    codes = (json.dumps(write(row.tobytes())) for row in packed)
    fields = {"bits": str(result.n_bits), "encoding": json.dumps(encoding), "codes": _list(codes)}
    return _document(name, result, fields), JSON, {}


def _document(name: str, result: Result, fields: dict[str, str]) -> bytes:
    written = {"index": json.dumps(name), "generation": json.dumps(result.generation)} | fields
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in written.items()) + "}").encode("ascii")


def _rows(array: npt.NDArray[Any]) -> str:
    wide = array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
    return _list(json.dumps(row.tolist(), allow_nan=False) for row in wide)


def _list(parts: Iterable[str]) -> str:
    return "[" + ", ".join(parts) + "]"


def _headers(result: Result, shape: tuple[int, ...]) -> dict[str, str]:
    headers = {SHAPE: ",".join(map(str, shape))}
    return headers if result.generation is None else headers | {GENERATION: str(result.generation)}
