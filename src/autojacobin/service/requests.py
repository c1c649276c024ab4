"""Read requests and check every part of them: JSON, or raw float32 or packed codes with the shape in a header."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from autojacobin.codes import as_bit_order
from autojacobin.index.names import ID_KINDS
from autojacobin.search.distances import DISTANCES
from autojacobin.service.access import Limits
from autojacobin.service.fields import (
    as_int,
    as_packed,
    check_finite,
    one_of,
    read_among,
    read_codes,
    read_columns,
    read_ids,
    read_matrix,
    read_payload,
    read_where,
    shown_value,
)
from autojacobin.service.operations import Operation, Options, too_much
from autojacobin.service.problems import Problem, invalid
from autojacobin.service.responses import JSON, RAW, SHAPE, CodeForm
from autojacobin.service.served import IndexRegistry, ServedIndex, width_of

__all__ = [
    "ClientGone", "check_cost", "client_gone", "find_index", "read_add_request", "read_body", "read_encode_request",
    "read_remove_request", "read_search_request",
]  # fmt: skip

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_SHAPE_KEY = SHAPE.lower().encode()
_SHAPE_FORM = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_ENCODINGS = ("base64", "hex")
_MOST_PROBES = 2**20
_USUAL_K = 10
_BIT_ORDERS = ("little", "big")
_SEARCH_OPTIONS = ("index", "k", "candidates", "distance", "rerank", "recall", "probes", "bitorder")
_ROWS = ("vectors", "codes", "id", "ids")
_FILTERS = ("among", "where", "columns")  # of JSON requests


class ClientGone(Exception):  # noqa: N818 (nobody's error)
    """The client hung up, so nobody waits for a response."""


async def read_body(receive: Receive, headers: dict[bytes, bytes], limits: Limits) -> bytes:
    """Read a body to its end."""
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        detail = "a body must not be compressed, got one with a Content-Encoding; send it without"
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
    fields, raw = _read_fields(body, headers, query, _SEARCH_OPTIONS, (*_ROWS, "encoding", *_FILTERS))
    served = _find_index(fields, registry)
    options = _read_options(fields, served, limits)
    if raw:
        rows = _read_raw(body, headers, served, limits, options.distance, _read_bit_order(fields))
        operation = Operation(served, rows, None, options)
    else:
        vectors, ids = _read_rows(fields, served, limits, options.distance)
        n_queries = len(vectors if vectors is not None else ids or ())
        among = read_among(fields["among"], n_queries, served) if "among" in fields else None
        operation = Operation(served, vectors, ids, options, among)
    return check_cost(operation, limits)


def read_add_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, served: ServedIndex, limits: Limits
) -> tuple[npt.NDArray[Any], list[Any] | None, dict[str, list[Any]] | None]:
    """Read vectors or codes to add, their ids and the columns of their payload."""
    expected = ("vectors", "codes", "encoding", "bitorder", "ids", "id_kind", "payload")
    fields = _read_write_fields(body, headers, query, expected, ("vectors", "codes"))
    vectors = _read_vectors(fields, served, limits)
    ids = payload = None
    if "id_kind" in fields and "ids" not in fields:
        raise invalid("id_kind is the kind of the ids, got no ids; send them too, or leave it out")
    if "ids" in fields:
        ids = read_ids("ids", fields["ids"], limits.vectors, _read_id_kind(fields, served))
        if len(ids) != len(vectors):
            raise invalid(f"ids must have one for each of the {len(vectors)} vectors, got {len(ids)}")
    if "payload" in fields:
        payload = read_payload(fields["payload"], len(vectors))
    return vectors, ids, payload


def read_remove_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, served: ServedIndex, limits: Limits
) -> list[Any]:
    """Read the ids of vectors to remove."""
    fields = _read_write_fields(body, headers, query, ("ids",), ("ids",))
    return read_ids("ids", fields["ids"], limits.vectors, served.id_kind)


def check_cost(operation: Operation, limits: Limits) -> Operation:
    """Refuse a search that would take too long."""
    if operation.cost > limits.work:
        raise too_much(operation.cost, limits.work)
    return operation


def read_encode_request(
    body: bytes, headers: dict[bytes, bytes], query: bytes, registry: IndexRegistry, limits: Limits
) -> tuple[Operation, CodeForm]:
    """Read a request for codes, and the form that they have in the response."""
    fields, raw = _read_fields(body, headers, query, ("index", "encoding", "bitorder"), ("vectors",))
    served = _find_index(fields, registry)
    if served.own_codes is not None:
        raise invalid(f"{served.name} holds codes that were made elsewhere, so there is nothing to encode vectors with")
    form = CodeForm(_read_encoding(fields), as_bit_order(_read_bit_order(fields) or "little"))
    if raw:
        return Operation(served, _read_raw(body, headers, served, limits)), form
    _read_only_one(fields, ("vectors",))
    return Operation(served, _read_vectors(fields, served, limits)), form


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
            raise invalid("a JSON request has all fields in its body, got a query string as well; put it into the body")
        if _SHAPE_KEY in headers:
            raise invalid(f"a JSON request takes its shape from the body, got {SHAPE} as well; leave it out")
        fields, expected = _read_json(body), options + contents
    else:
        detail = f"Content-Type must be {JSON} or {RAW}, got {media[:80] or 'none'!r}; name the kind of body you send"
        raise Problem(415, "unsupported-media-type", detail)
    unknown = [name for name in fields if name not in expected]
    if unknown:
        near = get_close_matches(unknown[0][:80], expected, 1)
        advice = f"rename it to {near[0]!r}" if near and near[0] not in fields else "leave it out"
        raise invalid(f"there is no field {unknown[0][:80]!r}, expected {', '.join(expected)}; {advice}")
    return fields, media == RAW


def _read_write_fields(
    body: bytes, headers: dict[bytes, bytes], query: bytes, expected: tuple[str, ...], required: tuple[str, ...]
) -> Mapping[str, Any]:
    """Give the fields of a write, which must have exactly one of those that are required."""
    fields, raw = _read_fields(body, headers, query, (), expected)
    if raw:
        detail = f"Content-Type of a write must be {JSON}, got {RAW}; send {' or '.join(required)} as JSON"
        raise Problem(415, "unsupported-media-type", detail)
    _read_only_one(fields, required)
    return fields


def _read_only_one(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Give the name of the one field that a request must have of some."""
    given = [name for name in names if name in fields]
    if len(given) != 1:
        *most, last = names
        wanted = f"one of {', '.join(most)} and {last}" if most else last
        raise invalid(f"a request must have {wanted}, got {' and '.join(given) or 'none'}; send exactly one")
    return given[0]


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
    raise ValueError(f"{name} is not a number in JSON")


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
        if name not in ("index", "distance", "encoding", "bitorder"):
            with suppress(ValueError, RecursionError):  # the check of the field refuses the text
                fields[name] = json.loads(text[:40])
    return fields


def _find_index(fields: Mapping[str, Any], registry: IndexRegistry) -> ServedIndex:
    names = list(registry)
    name = fields.get("index", names[0] if len(names) == 1 else None)
    if name is None:
        raise invalid(f"index must be named where several are served, got none, expected one of {', '.join(names)}")
    if not isinstance(name, str):
        raise invalid(f"index must be a name, got {shown_value(name)}, expected one of {', '.join(names)}")
    return find_index(name, registry)


def find_index(name: str, registry: IndexRegistry) -> ServedIndex:
    """Find an index by its name."""
    if name not in registry.served:  # a dictionary: names never become paths
        detail = f"there is no index {shown_value(name)}, expected one of {', '.join(registry)}; see /v1/indexes"
        raise Problem(404, "unknown-index", detail)
    return registry.served[name]


def _read_options(fields: Mapping[str, Any], served: ServedIndex, limits: Limits) -> Options:
    usual = max(1, min(_USUAL_K, limits.k, len(served.index)))
    k = as_int("k", fields.get("k", usual), 1, limits.k, "the limit of this service")
    candidates = fields.get("candidates")
    if candidates is not None:
        candidates = as_int("candidates", candidates, 1, limits.candidates, "the limit of this service")
    rerank = fields.get("rerank", served.index.info()["vectors_kept"] or candidates is not None or "recall" in fields)
    if not isinstance(rerank, bool):
        raise invalid(f"rerank must be true or false, got {shown_value(rerank)}")
    if rerank and served.own_codes is not None:
        raise invalid(
            f"{served.name} holds codes alone, and no vectors to re-rank by; leave out rerank, candidates and recall"
        )
    recall = fields.get("recall")
    if recall is not None and (isinstance(recall, bool) or not isinstance(recall, int | float) or not 0 < recall <= 1):
        raise invalid(f"recall must be a number above 0 and at most 1, got {shown_value(recall)}")
    if recall is not None and (candidates is not None or not rerank):
        raise invalid("recall chooses the candidates to re-rank, got it with candidates or without re-ranking")
    distance = fields.get("distance")
    if distance is not None:
        distance = one_of("distance", distance, tuple(DISTANCES))
    probes = fields.get("probes")
    if probes is not None:
        probes = as_int("probes", probes, 1, _MOST_PROBES, "the most that any index has")
        if recall is not None:
            raise invalid("recall chooses how many lists to scan, got it with probes; leave out either")
    where = read_where(fields["where"], served) if "where" in fields else None
    columns = read_columns(fields["columns"], served) if "columns" in fields else None
    return Options(k, candidates, distance, rerank, None if recall is None else float(recall), probes, where, columns)


def _read_rows(
    fields: Mapping[str, Any], served: ServedIndex, limits: Limits, distance: str | None
) -> tuple[npt.NDArray[Any] | None, list[Any] | None]:
    """Read the vectors, the codes or the ids of a JSON body."""
    given = _read_only_one(fields, _ROWS)
    if given in ("vectors", "codes"):
        return _read_vectors(fields, served, limits, distance), None
    ids = [fields["id"]] if given == "id" else fields["ids"]
    return None, read_ids(given, ids, limits.vectors, served.id_kind)


def _read_vectors(
    fields: Mapping[str, Any], served: ServedIndex, limits: Limits, distance: str | None = None
) -> npt.NDArray[Any]:
    """Read vectors, or codes in the bit order of an index that has no hasher."""
    own = served.own_codes
    if own is None and "codes" in fields:
        raise invalid(f"{served.name} encodes vectors itself, got codes; send vectors")
    if own is None or distance == "asymmetric":
        if "vectors" not in fields:
            raise invalid(
                "the asymmetric distance compares codes with real values, got codes; send vectors, a value for each bit"
            )
        return read_matrix(fields["vectors"], width_of(served.index, distance), limits.vectors)
    if "codes" not in fields:
        raise invalid(
            f"{served.name} holds codes that were made elsewhere, got vectors; send codes, or search for real values, "
            "one for each bit, by the distance asymmetric"
        )
    return read_codes(fields["codes"], _read_encoding(fields), _read_bit_order(fields), own, limits.vectors)


def _read_encoding(fields: Mapping[str, Any]) -> str:
    return one_of("encoding", fields.get("encoding", "base64"), _ENCODINGS)


def _read_bit_order(fields: Mapping[str, Any]) -> str | None:
    return one_of("bitorder", fields["bitorder"], _BIT_ORDERS) if "bitorder" in fields else None


def _read_id_kind(fields: Mapping[str, Any], served: ServedIndex) -> str | None:
    """Give the kind of the ids that are added; None if the first of them decides it."""
    known = None if served.id_kind == "integer" and not len(served.index) else served.id_kind
    if "id_kind" not in fields:
        return known
    kind = one_of("id_kind", fields["id_kind"], ID_KINDS)
    if known not in (None, kind):
        raise invalid(f"the ids of {served.name} are of the kind {known}, got {kind!r}; leave id_kind out")
    return kind


def _read_raw(
    body: bytes,
    headers: dict[bytes, bytes],
    served: ServedIndex,
    limits: Limits,
    distance: str | None = None,
    bitorder: str | None = None,
) -> npt.NDArray[Any]:
    """Read a raw body. The shape must be given, because two vectors of half the width would pass for one."""
    own = served.own_codes if distance != "asymmetric" else None
    what, unit, size = ("vectors", "little-endian float32 numbers", 4) if own is None else ("codes", "bytes", 1)
    width, shape = width_of(served.index, distance), headers.get(_SHAPE_KEY, b"").decode("latin-1")
    form = _SHAPE_FORM.fullmatch(shape)
    if form is None:
        raise invalid(
            f"a raw body must come with its shape in the header {SHAPE}: ROWS,COLUMNS, "
            f"got {shown_value(shape) if shape else 'none'}; send for example {SHAPE}: 1,{width} with one of the {what}"
        )
    rows, columns = int(form[1]), form[2]
    if int(columns) != width:
        raise invalid(
            f"{what} must have the {width} {'features' if own is None else 'bytes'} of {served.name}, got {columns} in "
            f"{SHAPE}; see /v1/indexes for what is served"
        )
    if not 1 <= rows <= limits.vectors:
        raise invalid(f"a raw body must have 1 to {limits.vectors} {what}, the limit of this service, got {rows}")
    if len(body) != size * rows * width:
        raise invalid(
            f"a raw body of {rows} {what} of {width} {unit} must have {size * rows * width} bytes, got {len(body)}; "
            f"send all of the {what}, or the shape that they have"
        )
    if own is not None:
        return as_packed(np.frombuffer(body, dtype=np.uint8).reshape(rows, width).copy(), bitorder, own)
    # A copy, because a read-only array is another type to the compiler, which would compile the kernels twice.
    matrix = np.frombuffer(body, dtype="<f4").astype(np.float32, copy=True).reshape(rows, width)
    check_finite(matrix)
    return matrix
