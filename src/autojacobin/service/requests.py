"""Read requests, and check every part of them: JSON, or raw float32 with its shape in a header."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from autojacobin.search.distances import DISTANCES
from autojacobin.service.access import Limits
from autojacobin.service.operations import Encoding, Options, Searching
from autojacobin.service.problems import Problem
from autojacobin.service.registry import IndexRegistry, ServedIndex
from autojacobin.service.responses import JSON, RAW, SHAPE

__all__ = ["ClientGone", "check_cost", "client_gone", "read_body", "read_encode_request", "read_search_request"]

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):  # noqa: N818 (nobody's error)
    """The other side hung up, so nobody waits for an answer."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limits: Limits) -> bytes:
    """Read a body to its end."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        detail = "a body must come as it is, got one with a Content-Encoding; leave the compression out"
        raise Problem(415, "unsupported-media-type", detail)
    if int(headers.get(b"content-length", b"0")) > limits.body_bytes:  # h11 has checked that it is a number
        raise _too_large(limits, asked_first=b"expect" in headers)
    try:
        return await asyncio.wait_for(_read(receive, limits), limits.body_seconds)
    except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
        detail = f"a body must arrive within {limits.body_seconds:g} s, got less than all of it; send it faster"
        raise Problem(408, "slow-body", detail, {"Connection": "close"}) from None


async def client_gone(receive: Receive) -> None:
    """Come back when the other side has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _read(receive: Receive, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits, asked_first=False)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limits: Limits, *, asked_first: bool) -> Problem:
    detail = f"a body may have {limits.body_bytes} bytes, got more; send fewer vectors at once, or send them as float32"
    # One who asked before sending will not send. Of others the connection stays open, and takes in and forgets the
    # rest: were it cut while they still send, they would never see the answer.
    return Problem(413, "body-too-large", detail, {"Connection": "close"} if asked_first else None)


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


_SHAPE_KEY = SHAPE.lower().encode()
_SHAPE_FORM = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_LARGEST_ID = 2**63 - 1
_ENCODINGS = ("base64", "hex")
_OPTIONS = ("k", "candidates", "distance", "rerank", "recall")


def read_search_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, registry: IndexRegistry, limits: Limits
) -> Searching:
    """Read a request for neighbours."""
    fields, raw = _fields(body, headers, query, ("index", *_OPTIONS), ("vectors", "id", "ids"))
    served = _served(fields, registry)
    options = _options(fields, limits)
    vectors, ids = _rows(fields, body if raw else None, headers, served, limits, with_ids=True)
    return check_cost(Searching(served, vectors, ids, options), limits)


def check_cost(work: Searching, limits: Limits) -> Searching:
    """Refuse what would take too long."""
    if work.cost > limits.work:
        raise _invalid(
            f"vectors times candidates, or times k without re-ranking, may be {limits.work}, got {work.cost}; "
            "send fewer vectors at once, or ask for fewer candidates"
        )
    return work


def read_encode_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, registry: IndexRegistry, limits: Limits
) -> tuple[Encoding, str]:
    """Read a request for codes, and how a JSON answer is to write them."""
    fields, raw = _fields(body, headers, query, ("index", "encoding"), ("vectors",))
    served = _served(fields, registry)
    encoding = _one_of("encoding", fields.get("encoding", "base64"), _ENCODINGS)
    vectors, _ = _rows(fields, body if raw else None, headers, served, limits, with_ids=False)
    return Encoding(served, vectors), encoding


def _fields(
    body: bytes, headers: dict[bytes, bytes], query: bytes, options: tuple[str, ...], contents: tuple[str, ...]
) -> tuple[Mapping[str, Any], bool]:
    """Fields of a request by name, whether they come in JSON or in the query string of a raw body."""
    media = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if media == RAW:
        fields, expected = _from_query(query), options
    elif media == JSON:
        if query:
            raise _invalid("a JSON request says all in its body, got a query string as well; put it into the body")
        if _SHAPE_KEY in headers:
            raise _invalid(f"a JSON request says all in its body, got {SHAPE} as well; leave it out")
        fields, expected = _from_json(body), options + contents
    else:
        detail = f"Content-Type must be {JSON} or {RAW}, got {media[:80] or 'none'!r}; name the kind of body you send"
        raise Problem(415, "unsupported-media-type", detail)
    unknown = [name for name in fields if name not in expected]
    if unknown:
        raise _invalid(f"there is no field {unknown[0][:80]!r}, expected {', '.join(expected)}; leave it out")
    return fields, media == RAW


def _from_json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError:
        raise _invalid("the body is nested too deeply, expected an object with lists of lists; flatten it") from None
    except ValueError as error:  # also of text that is no UTF-8
        what = str(error).partition("\n")[0][:120]
        raise _invalid(f"the body must be a JSON object, got something else ({what}); see /openapi.json") from None
    if not isinstance(document, dict):
        raise _invalid(f"the body must be a JSON object, got a {type(document).__name__}; see /openapi.json")
    return document


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _from_query(query: bytes) -> dict[str, Any]:
    """Options of a query string, which are read as the same words in JSON would be."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise _invalid("the query string cannot be read, expected for example ?k=10&distance=hamming") from None
    fields: dict[str, Any] = {}
    for name, text in pairs:
        if name in fields:
            raise _invalid(f"{name[:80]!r} must be given once, got it twice; leave out one of them")
        fields[name] = text if name in ("index", "distance", "encoding") else _word(text)
    return fields


def _word(text: str) -> Any:
    try:
        return json.loads(text[:40])
    except (ValueError, RecursionError):
        return text


def _served(fields: Mapping[str, Any], registry: IndexRegistry) -> ServedIndex:
    names = list(registry)
    name = fields.get("index", names[0] if len(names) == 1 else None)
    if name is None:
        raise _invalid(f"index must be named where several are served, got none, expected one of {', '.join(names)}")
    if not isinstance(name, str):
        raise _invalid(f"index must be a name, got {_shown(name)}, expected one of {', '.join(names)}")
    if name not in registry.served:  # a look into a dictionary: names never become paths
        detail = f"there is no index {_shown(name)}, expected one of {', '.join(names)}; see /v1/indexes"
        raise Problem(404, "unknown-index", detail)
    return registry.served[name]


def _options(fields: Mapping[str, Any], limits: Limits) -> Options:
    k = whole("k", fields.get("k", 10), 1, limits.k, "the limit of this service")
    candidates = fields.get("candidates")
    if candidates is not None:
        candidates = whole("candidates", candidates, 1, limits.candidates, "the limit of this service")
    rerank = fields.get("rerank", True)
    if not isinstance(rerank, bool):
        raise _invalid(f"rerank must be true or false, got {_shown(rerank)}")
    recall = fields.get("recall")
    if recall is not None and (isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 < recall < 1):
        raise _invalid(f"recall must be a number above 0 and below 1, got {_shown(recall)}")
    if recall is not None and (candidates is not None or not rerank):
        raise _invalid("recall chooses the candidates to re-rank, got it besides candidates or without re-ranking")
    distance = _one_of("distance", fields.get("distance", "hamming"), tuple(DISTANCES))
    return Options(k, candidates, distance, rerank, None if recall is None else float(recall))


def _raw_rows(body: bytes, headers: dict[bytes, bytes], served: ServedIndex, limits: Limits) -> npt.NDArray[np.float32]:
    """Vectors of a raw body. Its shape must be given, since two vectors of half the width would pass for one."""
    width, told = served.n_features, headers.get(_SHAPE_KEY, b"").decode("latin-1")
    form = _SHAPE_FORM.fullmatch(told)
    if form is None:
        got = _shown(told) if told else "none"
        raise _invalid(
            f"a raw body must come with its shape in the header {SHAPE}: ROWS,COLUMNS, got {got}; "
            f"send for example {SHAPE}: 1,{width} with one vector"
        )
    if int(form[2]) != width:
        raise _invalid(
            f"vectors must have the {width} features of {served.name}, got {form[2]} in {SHAPE}; "
            "see /v1/indexes for what is served"
        )
    return raw_matrix(body, int(form[1]), width, limits.vectors)


def _rows(
    fields: Mapping[str, Any],
    raw: bytes | None,
    headers: dict[bytes, bytes],
    served: ServedIndex,
    limits: Limits,
    *,
    with_ids: bool,
) -> tuple[npt.NDArray[np.float32] | None, npt.NDArray[np.int64] | None]:
    if raw is not None:
        return _raw_rows(raw, headers, served, limits), None
    given = [name for name in ("vectors", "id", "ids") if name in fields]
    if len(given) != 1:
        wanted = "one of vectors, id and ids" if with_ids else "vectors"
        raise _invalid(f"a request must have {wanted}, got {' and '.join(given) or 'none'}; send exactly one")
    if given == ["vectors"]:
        return matrix_of(fields["vectors"], served.n_features, limits.vectors), None
    asked = [fields["id"]] if given == ["id"] else fields["ids"]
    if not isinstance(asked, list) or not 1 <= len(asked) <= limits.vectors:
        raise _invalid(f"ids must be a list of 1 to {limits.vectors} integers, got {_shown(asked)}")
    return None, np.array([whole(given[0], id, 0, _LARGEST_ID, "the largest id") for id in asked], dtype=np.int64)


def _one_of(name: str, value: Any, expected: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in expected:
        raise _invalid(f"{name} must be {' or '.join(map(repr, expected))}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is too large"
    if isinstance(value, int) and abs(value) >= 2**64:
        return "a number that is too large"
    return repr(value)[:80]


def _invalid(detail: str) -> Problem:
    return Problem(400, "invalid-request", detail)
