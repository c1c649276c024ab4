"""Read requests and check every part of them: JSON, or raw float32 with its shape in a header."""

from __future__ import annotations

import asyncio
import json
import math
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError, MissingExtraError
from autojacobin.search.distances import DISTANCES
from autojacobin.service.access import Limits
from autojacobin.service.conditions import LONGEST_CONDITION, check_condition
from autojacobin.service.operations import Operation, Options
from autojacobin.service.problems import Problem, invalid
from autojacobin.service.registry import IndexRegistry, ServedIndex
from autojacobin.service.responses import JSON, RAW, SHAPE

__all__ = [
    "ClientGone", "check_cost", "client_gone", "find_index", "read_add_request", "read_body", "read_encode_request",
    "read_remove_request", "read_search_request",
]  # fmt: skip

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Matrix = npt.NDArray[np.float32]

_SHAPE_KEY = SHAPE.lower().encode()
_SHAPE_FORM = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_LARGEST_ID = 2**63 - 1
_ENCODINGS = ("base64", "hex")
_ID_WORDS = {"integer": "integers", "string": "non-empty strings", "uuid": "UUIDs"}
_MOST_PROBES = 2**20
_SEARCH_OPTIONS = ("index", "k", "candidates", "distance", "rerank", "recall", "probes")
_FILTERS = ("among", "where", "columns")  # of JSON requests


class ClientGone(Exception):  # noqa: N818 (nobody's error)
    """The client hung up, so nobody waits for a response."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limits: Limits) -> bytes:
    """Read a body to its end."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        detail = "a body must come as it is, got one with a Content-Encoding; leave the compression out"
        raise Problem(415, "unsupported-media-type", detail)
    if int(headers.get(b"content-length", b"0")) > limits.body_bytes:  # h11 has checked that it is a number
        raise _too_large(limits, expects_continue=b"expect" in headers)
    try:
        return await asyncio.wait_for(_read_parts(receive, limits), limits.body_seconds)
    except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
        detail = f"a body must arrive within {limits.body_seconds:g} s, got less than all of it; send it faster"
        raise Problem(408, "slow-body", detail, {"Connection": "close"}) from None


async def client_gone(receive: Receive) -> None:
    """Return when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


def read_search_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, registry: IndexRegistry, limits: Limits
) -> Operation:
    """Read a request for neighbours."""
    fields, raw = _read_fields(body, headers, query, _SEARCH_OPTIONS, ("vectors", "id", "ids", *_FILTERS))
    served = _find_index(fields, registry)
    options = _read_options(fields, served, limits)
    if raw:
        operation = Operation(served, _read_raw(body, headers, served, limits), None, options)
    else:
        vectors, ids = _read_rows(fields, served, limits, with_ids=True)
        n_queries = len(vectors if vectors is not None else ids or ())
        among = _read_among(fields["among"], n_queries, served) if "among" in fields else None
        operation = Operation(served, vectors, ids, options, among)
    return check_cost(operation, limits)


def read_add_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, served: ServedIndex, limits: Limits
) -> tuple[Matrix, list[Any] | None, dict[str, list[Any]] | None]:
    """Read vectors to add, their ids and the columns of their payload."""
    fields = _read_write_fields(body, headers, query, ("vectors", "ids", "payload"), "vectors")
    vectors = _read_matrix(fields["vectors"], served.n_features, limits.vectors)
    ids = payload = None
    if "ids" in fields:
        undecided = served.id_kind == "integer" and not len(served.index)
        ids = _read_ids("ids", fields["ids"], limits.vectors, None if undecided else served.id_kind)
        if len(ids) != len(vectors):
            raise invalid(f"ids must have one for each of the {len(vectors)} vectors, got {len(ids)}")
    if "payload" in fields:
        payload = _read_payload(fields["payload"], len(vectors))
    return vectors, ids, payload


def read_remove_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, served: ServedIndex, limits: Limits
) -> list[Any]:
    """Read the ids of vectors to remove."""
    fields = _read_write_fields(body, headers, query, ("ids",), "ids")
    return _read_ids("ids", fields["ids"], limits.vectors, served.id_kind)


def check_cost(operation: Operation, limits: Limits) -> Operation:
    """Refuse a search that would take too long."""
    if operation.cost > limits.work:
        raise invalid(
            f"vectors times candidates, or times k without re-ranking, may be {limits.work}, got {operation.cost}; "
            "send fewer vectors at once, or ask for fewer candidates"
        )
    return operation


def read_encode_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, registry: IndexRegistry, limits: Limits
) -> tuple[Operation, str]:
    """Read a request for codes, and the encoding that a JSON response has."""
    fields, raw = _read_fields(body, headers, query, ("index", "encoding"), ("vectors",))
    served = _find_index(fields, registry)
    encoding = _one_of("encoding", fields.get("encoding", "base64"), _ENCODINGS)
    if raw:
        return Operation(served, _read_raw(body, headers, served, limits)), encoding
    return Operation(served, *_read_rows(fields, served, limits, with_ids=False)), encoding


async def _read_parts(receive: Receive, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits, expects_continue=False)
        parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(limits: Limits, *, expects_continue: bool) -> Problem:
    detail = f"a body may have {limits.body_bytes} bytes, got more; send fewer vectors at once, or send them as float32"
    # A client that waits for "100 Continue" will not send its body, so the connection can be closed. For others it
    # stays open and discards the rest: a client that is cut off while it sends never sees the response.
    return Problem(413, "body-too-large", detail, {"Connection": "close"} if expects_continue else None)


def _read_fields(
    body: bytes, headers: dict[bytes, bytes], query: bytes, options: tuple[str, ...], contents: tuple[str, ...]
) -> tuple[Mapping[str, Any], bool]:
    """Give the fields by name, from a JSON body or from the query string of a raw body, and whether it is raw."""
    media = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
    if media == RAW:
        fields, expected = _read_query(query), options
        given = next((name for name in fields if name in _FILTERS and name in contents), None)
        if given is not None:
            raise invalid(f"{given} is for JSON requests, got it with a raw body; send the vectors as JSON")
    elif media == JSON:
        if query:
            raise invalid("a JSON request says all in its body, got a query string as well; put it into the body")
        if _SHAPE_KEY in headers:
            raise invalid(f"a JSON request says all in its body, got {SHAPE} as well; leave it out")
        fields, expected = _read_json(body), options + contents
    else:
        detail = f"Content-Type must be {JSON} or {RAW}, got {media[:80] or 'none'!r}; name the kind of body you send"
        raise Problem(415, "unsupported-media-type", detail)
    unknown = [name for name in fields if name not in expected]
    if unknown:
        raise invalid(f"there is no field {unknown[0][:80]!r}, expected {', '.join(expected)}; leave it out")
    return fields, media == RAW


def _read_write_fields(
    body: bytes, headers: dict[bytes, bytes], query: bytes, expected: tuple[str, ...], required: str
) -> Mapping[str, Any]:
    fields, raw = _read_fields(body, headers, query, (), expected)
    if raw:
        detail = f"Content-Type of a write must be {JSON}, got {RAW}; send {required} as JSON"
        raise Problem(415, "unsupported-media-type", detail)
    if required not in fields:
        raise invalid(f"a request must have {required}, got none; send for example {{{json.dumps(required)}: [...]}}")
    return fields


def _read_json(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body, parse_constant=_check_varies)
    except RecursionError:
        raise invalid("the body is nested too deeply, expected an object with lists of lists; flatten it") from None
    except ValueError as error:  # also for text that is not UTF-8
        what = str(error).partition("\n")[0][:120]
        raise invalid(f"the body must be a JSON object, got something else ({what}); see /openapi.json") from None
    if not isinstance(document, dict):
        raise invalid(f"the body must be a JSON object, got a {type(document).__name__}; see /openapi.json")
    return document


def _check_varies(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _read_query(query: bytes) -> dict[str, Any]:
    """Read a query string; numbers, true and false are read as in JSON."""
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=20)
    except ValueError:
        raise invalid("the query string cannot be read, expected for example ?k=10&distance=hamming") from None
    fields: dict[str, Any] = {}
    for name, text in pairs:
        if name in fields:
            raise invalid(f"{name[:80]!r} must be given once, got it twice; leave out one of them")
        fields[name] = text
        if name not in ("index", "distance", "encoding"):
            with suppress(ValueError, RecursionError):  # the check of the field refuses the text
                fields[name] = json.loads(text[:40])
    return fields


def _find_index(fields: Mapping[str, Any], registry: IndexRegistry) -> ServedIndex:
    names = list(registry)
    name = fields.get("index", names[0] if len(names) == 1 else None)
    if name is None:
        raise invalid(f"index must be named where several are served, got none, expected one of {', '.join(names)}")
    if not isinstance(name, str):
        raise invalid(f"index must be a name, got {_shown(name)}, expected one of {', '.join(names)}")
    return find_index(name, registry)


def find_index(name: str, registry: IndexRegistry) -> ServedIndex:
    """Find an index by its name."""
    if name not in registry.served:  # a dictionary: names never become paths
        detail = f"there is no index {_shown(name)}, expected one of {', '.join(registry)}; see /v1/indexes"
        raise Problem(404, "unknown-index", detail)
    return registry.served[name]


def _read_options(fields: Mapping[str, Any], served: ServedIndex, limits: Limits) -> Options:
    k = _as_int("k", fields.get("k", 10), 1, limits.k, "the limit of this service")
    candidates = fields.get("candidates")
    if candidates is not None:
        candidates = _as_int("candidates", candidates, 1, limits.candidates, "the limit of this service")
    rerank = fields.get("rerank", True)
    if not isinstance(rerank, bool):
        raise invalid(f"rerank must be true or false, got {_shown(rerank)}")
    recall = fields.get("recall")
    if recall is not None and (isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 < recall < 1):
        raise invalid(f"recall must be a number above 0 and below 1, got {_shown(recall)}")
    if recall is not None and (candidates is not None or not rerank):
        raise invalid("recall chooses the candidates to re-rank, got it with candidates or without re-ranking")
    distance = fields.get("distance")
    if distance is not None:
        distance = _one_of("distance", distance, tuple(DISTANCES))
    probes = fields.get("probes")
    if probes is not None:
        probes = _as_int("probes", probes, 1, _MOST_PROBES, "the most that any index has")
        if recall is not None:
            raise invalid("recall chooses how many lists to scan, got it with probes; leave out either")
    where = _read_where(fields["where"], served) if "where" in fields else None
    columns = _read_columns(fields["columns"], served) if "columns" in fields else None
    return Options(k, candidates, distance, rerank, None if recall is None else float(recall), probes, where, columns)


def _read_where(where: Any, served: ServedIndex) -> str:
    if not isinstance(where, str) or not 1 <= len(where) <= LONGEST_CONDITION:
        raise invalid(f"where must be a condition of 1 to {LONGEST_CONDITION} characters, got {_shown(where)}")
    _check_payload("where", served)
    try:
        check_condition(where)
    except (DataError, MissingExtraError) as error:
        raise invalid(str(error)) from error
    return where


def _read_columns(columns: Any, served: ServedIndex) -> tuple[str, ...]:
    if not isinstance(columns, list) or not columns or not all(isinstance(name, str) for name in columns):
        raise invalid(f"columns must be a list of 1 or more names, got {_shown(columns)}")
    known = _check_payload("columns", served)
    unknown = [name for name in columns if name not in known]
    if unknown:
        raise invalid(f"there is no column {_shown(unknown[0])} in {served.name}, expected some of {', '.join(known)}")
    return tuple(columns)


def _check_payload(field: str, served: ServedIndex) -> list[str]:
    """Give the columns of an index, which must have some."""
    known: list[str] = served.index.info()["columns"]
    if not known:
        raise invalid(f"{field} needs a payload, got a search of {served.name}, which has none; leave it out")
    return known


def _read_among(among: Any, n_queries: int, served: ServedIndex) -> list[Any]:
    """Read ids to search among, or one list of them for each query."""
    if not isinstance(among, list):
        raise invalid(f"among must be a list of ids, or one such list for each query, got {_shown(among)}")
    kind = served.id_kind
    if not any(isinstance(entry, list) for entry in among):
        return _read_ids("among", among, None, kind)
    if len(among) != n_queries:
        raise invalid(f"among must have one list for each of the {n_queries} queries, got {len(among)}")
    return [_read_ids("each list of among", entry, None, kind) for entry in among]


def _read_ids(name: str, ids: Any, most: int | None, kind: str | None) -> list[Any]:
    """Read ids of one kind: integer, string or uuid; of integers or strings if the kind is not decided yet."""
    if not isinstance(ids, list) or not (most is None or 1 <= len(ids) <= most):
        size = "" if most is None else f"1 to {most} "
        raise invalid(f"{name} must be a list of {size}{'ids' if kind is None else _ID_WORDS[kind]}, got {_shown(ids)}")
    if kind is None:
        kind = "string" if ids and isinstance(ids[0], str) else "integer"
    if kind == "integer":
        return [_as_int(name, id, 0, _LARGEST_ID, "the largest id") for id in ids]
    wrong = next((id for id in ids if not isinstance(id, str) or not id), None)
    if wrong is not None:
        raise invalid(f"{name} must be {_ID_WORDS[kind]}, as those of the index are, got {_shown(wrong)}")
    if kind == "string":
        return ids
    try:
        return [uuid.UUID(id) for id in ids]
    except ValueError:
        raise invalid(
            f"{name} must be UUIDs, as those of the index are, got something else; write them in full"
        ) from None


def _read_payload(payload: Any, n: int) -> dict[str, list[Any]]:
    """Give a payload as columns: an object of lists, or a list of objects, in which what is missing is null."""
    expected = f"payload must be a list of {n} objects, or an object with lists of {n} values"
    if isinstance(payload, dict):
        wrong = next(
            (name for name, column in payload.items() if not isinstance(column, list) or len(column) != n), None
        )
        if wrong is not None:
            raise invalid(f"{expected}, got {_shown(payload[wrong])} in {_shown(wrong)}")
        columns = payload
    elif isinstance(payload, list) and len(payload) == n and all(isinstance(row, dict) for row in payload):
        names = dict.fromkeys(name for row in payload for name in row)
        columns = {name: [row.get(name) for row in payload] for name in names}
    else:
        raise invalid(f"{expected}, got {_shown(payload)}")
    if not columns:
        raise invalid(f"{expected}, got one without a column; leave it out")
    return columns


def _read_rows(
    fields: Mapping[str, Any], served: ServedIndex, limits: Limits, *, with_ids: bool
) -> tuple[Matrix | None, list[Any] | None]:
    """Read the vectors or the ids of a JSON body."""
    given = [name for name in ("vectors", "id", "ids") if name in fields]
    if len(given) != 1:
        wanted = "one of vectors, id and ids" if with_ids else "vectors"
        raise invalid(f"a request must have {wanted}, got {' and '.join(given) or 'none'}; send exactly one")
    if given == ["vectors"]:
        return _read_matrix(fields["vectors"], served.n_features, limits.vectors), None
    ids = [fields["id"]] if given == ["id"] else fields["ids"]
    return None, _read_ids(given[0], ids, limits.vectors, served.id_kind)


def _read_raw(body: bytes, headers: dict[bytes, bytes], served: ServedIndex, limits: Limits) -> Matrix:
    """Read a raw body. The shape must be given, because two vectors of half the width would pass for one."""
    width, shape = served.n_features, headers.get(_SHAPE_KEY, b"").decode("latin-1")
    form = _SHAPE_FORM.fullmatch(shape)
    if form is None:
        raise invalid(
            f"a raw body must come with its shape in the header {SHAPE}: ROWS,COLUMNS, "
            f"got {_shown(shape) if shape else 'none'}; send for example {SHAPE}: 1,{width} with one vector"
        )
    rows, columns = int(form[1]), form[2]
    if int(columns) != width:
        raise invalid(
            f"vectors must have the {width} features of {served.name}, got {columns} in {SHAPE}; "
            "see /v1/indexes for what is served"
        )
    if not 1 <= rows <= limits.vectors:
        raise invalid(f"a raw body must have 1 to {limits.vectors} vectors, the limit of this service, got {rows}")
    if len(body) != 4 * rows * width:
        raise invalid(
            f"a raw body of {rows} vectors of {width} little-endian float32 numbers must have {4 * rows * width} "
            f"bytes, got {len(body)}; send all of the vectors, or the shape that they have"
        )
    # A copy, because a read-only array is another type to the compiler, which would compile the kernels twice.
    matrix = np.frombuffer(body, dtype="<f4").astype(np.float32, copy=True).reshape(rows, width)
    _check_finite(matrix)
    return matrix


def _read_matrix(value: Any, width: int, most: int) -> Matrix:
    """Read a list of lists of numbers."""
    if not isinstance(value, list) or not 1 <= len(value) <= most:
        shown = f"a list of {len(value)}" if isinstance(value, list) else _shown(value)
        raise invalid(f"vectors must be a list of 1 to {most} vectors, got {shown}")
    for row, vector in enumerate(value):
        expected = f"each of vectors must be a list of {width} numbers, got"
        if not isinstance(vector, list) or len(vector) != width:
            shown = f"a list of {len(vector)}" if isinstance(vector, list) else _shown(vector)
            raise invalid(f"{expected} {shown} in row {row}")
        if not set(map(type, vector)) <= {int, float}:
            wrong = next(column for column, number in enumerate(vector) if type(number) not in (int, float))
            raise invalid(f"{expected} {_shown(vector[wrong])} in row {row}, column {wrong}")
    try:
        with np.errstate(over="ignore"):  # what does not fit becomes Inf, which is refused below
            matrix = np.array(value, dtype=np.float64).astype(np.float32)
    except OverflowError:  # for integers beyond float64
        raise invalid("each number of vectors must fit into float32, got one that is too large; rescale it") from None
    _check_finite(matrix)
    return matrix


def _check_finite(matrix: Matrix) -> None:
    finite = np.isfinite(matrix)
    if not finite.all():
        row, column = divmod(int(np.argmin(finite)), matrix.shape[1])
        raise invalid(
            f"each number of vectors must be finite and fit into float32, got {matrix[row, column]} in row {row}, "
            f"column {column}; leave such vectors out, or rescale them"
        )


def _as_int(name: str, value: Any, least: int, most: int, what: str) -> int:
    """Give a JSON number as an integer within limits; 10.0 is the integer 10, as in JSON Schema."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise invalid(f"{name} must be an integer from {least} to {most}, {what}, got {_shown(value)}")
    return number


def _one_of(name: str, value: Any, expected: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in expected:
        raise invalid(f"{name} must be {' or '.join(map(repr, expected))}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) >= 2**64):
        return "a number that is too large"
    return repr(value)[:80]
