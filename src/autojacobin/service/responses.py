"""Write responses: neighbours and codes, as JSON with exact and finite numbers, or as raw arrays."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.service.operations import Answer

__all__ = ["GENERATION", "JSON", "RAW", "SHAPE", "codes_response", "neighbours_response", "wants_raw"]

JSON = "application/json"
RAW = "application/octet-stream"
SHAPE = "Autojacobin-Shape"  # of a raw body, in both directions: ROWS,COLUMNS

GENERATION = "Autojacobin-Generation"

Payload = tuple[bytes, str, dict[str, str]]


def wants_raw(headers: dict[bytes, bytes]) -> bool:
    """Whether the client takes raw bytes and does not take JSON."""
    accepted = headers.get(b"accept", b"").decode("latin-1").lower()
    return RAW in accepted and JSON not in accepted


def neighbours_response(name: str, answer: Answer, *, raw: bool) -> Payload:
    """Distances and ids; raw: all distances as float64, then all ids as int64, little-endian, row by row."""
    distances, ids = answer.arrays
    if raw:
        body = distances.astype("<f8", copy=False).tobytes() + ids.astype("<i8", copy=False).tobytes()
        return body, RAW, _described(answer, ids.shape)
    # Row by row, so that a large answer does not hold the interpreter, and with it every other request, in one piece.
    fields = {"distances": _rows(distances), "ids": _rows(ids)}
    return _document(name, answer, fields), JSON, {}


def codes_response(name: str, answer: Answer, encoding: str, *, raw: bool) -> Payload:
    """Packed codes; raw: the bytes of one code after the other."""
    (packed,) = answer.arrays
    if raw:
        return packed.tobytes(), RAW, _described(answer, (len(packed), answer.n_bits))
    write = bytes.hex if encoding == "hex" else (lambda code: base64.b64encode(code).decode("ascii"))
    codes = (json.dumps(write(row.tobytes())) for row in packed)
    fields = {"bits": str(answer.n_bits), "encoding": json.dumps(encoding), "codes": _list(codes)}
    return _document(name, answer, fields), JSON, {}


def _document(name: str, answer: Answer, fields: dict[str, str]) -> bytes:
    written = {"index": json.dumps(name), "generation": json.dumps(answer.generation)} | fields
    return ("{" + ", ".join(f'"{key}": {value}' for key, value in written.items()) + "}").encode("ascii")


def _rows(array: npt.NDArray[Any]) -> str:
    wide = array.astype(np.float64, copy=False) if array.dtype.kind == "f" else array
    return _list(json.dumps(row.tolist(), allow_nan=False) for row in wide)


def _list(parts: Iterable[str]) -> str:
    return "[" + ", ".join(parts) + "]"


def _described(answer: Answer, shape: tuple[int, ...]) -> dict[str, str]:
    described = {SHAPE: ",".join(map(str, shape))}
    return described if answer.generation is None else described | {GENERATION: str(answer.generation)}
