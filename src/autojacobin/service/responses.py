"""Media types, headers, results and problems. The clients use this file too, so it needs no more than NumPy."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

JSON = "application/json"
RAW = "application/octet-stream"
PROBLEM = "application/problem+json"
SHAPE = "Autojacobin-Shape"  # header of a raw body, in requests and responses: ROWS,COLUMNS

_RETRY_SECONDS = 1
_PHRASES = {499: "Client Closed Request"} | {status.value: status.phrase for status in HTTPStatus}


class Problem(Exception):  # noqa: N818 (RFC 9457 calls it so)
    """A refusal, as problem+json (RFC 9457): ``kind`` is for programs and never changes, ``detail`` for people."""

    def __init__(self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """Give the JSON document."""
        kind, title = f"urn:autojacobin:problem:{self.kind}", _PHRASES[self.status]
        fields = {"type": kind, "title": title, "status": self.status, "detail": self.detail}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", errors="replace")


def busy(detail: str) -> Problem:
    """Give the problem of a service that has no room for a request now."""
    return Problem(503, "busy", detail, {"Retry-After": str(_RETRY_SECONDS)})


def hung_up() -> Problem:
    """Give the problem of a client that does not wait for its response, which nobody sees, but which is counted."""
    return Problem(499, "hung-up", "the client has closed the connection")


def invalid(detail: str) -> Problem:
    """Give the problem of a request that is wrong or cannot be fulfilled."""
    return Problem(400, "invalid-request", detail)


@dataclass(frozen=True)
class Result:
    """The state of an index, distances and ids or codes of each vector, and a table of the neighbours' columns."""

    generation: int | None
    arrays: tuple[Any, ...]
    payload: Any = None


def is_missing(ids: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where a search found no more neighbours: the id is -1, or None if ids are names."""
    return ids == None if ids.dtype == object else ids < 0  # noqa: E711 (of each element)


def as_json_value(value: Any) -> Any:
    """Convert a value to one for JSON: times to ISO 8601, bytes to base64, NaN and Inf to null, other types to text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.generic | np.ndarray):
        return as_json_value(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): as_json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | range):
        return [as_json_value(part) for part in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat() if value == value else None  # NaT of pandas is not equal to itself
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)
