"""Read requests: JSON, or raw float32 or packed codes with the shape in a header; and give what they ask for."""

from __future__ import annotations

import asyncio
import base64
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import ClientDisconnect, Request

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.vectors import check_finite
from autojacobin.service import messages
from autojacobin.service.access import Limits
from autojacobin.service.operations import Change, Operation, Options, too_much, write
from autojacobin.service.responses import JSON, RAW, SHAPE, Problem, hung_up, invalid
from autojacobin.service.served import IndexRegistry, ServedIndex, width_of

R = TypeVar("R", bound=messages.Request)
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

_SHAPE_KEY = SHAPE.lower().encode()
_SHAPE_FORM = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_USUAL_K = 10
_DEEPEST = 32  # lists and objects of a payload inside each other
_TEXTS = ("index", "distance", "encoding", "bitorder")  # in a query string, where other words are read as JSON
_WORDS = {
    "array": "a list", "bool": "a boolean", "float": "a number", "int": "an integer", "object": "an object",
    "str": "text",
}  # fmt: skip


class Received(NamedTuple):
    """A request as it came."""

    body: bytes
    headers: dict[bytes, bytes]
    query: bytes

    @property
    def wants_raw(self) -> bool:
        """Whether the client takes raw bytes and does not take JSON."""
        accepted = self.headers.get(b"accept", b"").decode("latin-1").lower()
        return RAW in accepted and JSON not in accepted


async def read_body(request: Request, limits: Limits) -> bytes:
    """Read a body to its end."""
    headers = request.headers
    if headers.get("content-encoding", "identity").lower() != "identity":
        detail = "a body must not be compressed, got one with a Content-Encoding; send it without"
        raise Problem(415, "unsupported-media-type", detail)
    if int(headers.get("content-length", 0)) > limits.body_bytes:  # h11 has checked that it is a number
        raise _too_large(limits, expects_continue="expect" in headers)
    try:
        return await asyncio.wait_for(_read_parts(request, limits), limits.body_seconds)
    except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
        detail = f"a body must arrive within {limits.body_seconds:g} s, got less than all of it; send it faster"
        raise Problem(408, "slow-body", detail, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise hung_up() from None


async def client_gone(receive: Receive) -> None:
    """Return when the client has hung up."""
    while (await receive())["type"] != "http.disconnect":
        pass


class Requests:
    """Reads the requests of one service."""

    def __init__(self, registry: IndexRegistry, limits: Limits) -> None:
        self._registry = registry
        self._limits = limits
        self._kinds = {kind: messages.limited(kind, limits, registry) for kind in messages.REQUESTS}

    def search(self, received: Received) -> Operation:
        """Read a request for neighbours."""
        request = self._read(received, messages.SearchRequest, messages.SearchOptions)
        served = self.find_index(request.index)
        options = _search_options(request, served, self._limits)
        if isinstance(request, messages.SearchRequest):
            ids = request.ids if request.id is None else [request.id]
            operation = Operation(
                served,
                self._rows(request, served, options.distance) if ids is None else None,
                None if ids is None else as_ids("ids", ids, served.index.id_kind),
                options,
                None if request.among is None else _read_among(request.among, served.index.id_kind),
            )
        else:
            rows = self._raw_rows(received, served, options.distance, request.bitorder)
            operation = Operation(served, rows, None, options)
        if operation.cost > self._limits.work:
            raise too_much(operation.cost, self._limits.work)
        return operation

    def encode(self, received: Received) -> tuple[Operation, messages.EncodeOptions]:
        """Read a request for codes, and the form that they have in the response."""
        request = self._read(received, messages.EncodeRequest, messages.EncodeOptions)
        served = self.find_index(request.index)
        if served.own_codes is not None:
            raise invalid(f"{served.name} holds codes that were made elsewhere, so it cannot encode vectors")
        if isinstance(request, messages.EncodeRequest):
            return Operation(served, _read_matrix(request.vectors, width_of(served.index))), request
        return Operation(served, self._raw_rows(received, served)), request

    def write(self, received: Received, served: ServedIndex, change: Change) -> Callable[[], messages.Written]:
        """Read vectors or codes to add or to put in the place of others, or ids to remove; give what does it."""
        if change == "remove":
            ids = self._read(received, messages.RemoveRequest).ids
            return partial(write, served, change, as_ids("ids", ids, served.index.id_kind))
        request = self._read(received, messages.AddRequest if change == "add" else messages.UpsertRequest)
        rows, ids = self._rows(request, served), request.ids
        known = None if served.index.id_kind == "integer" and not len(served.index) else served.index.id_kind
        if request.id_kind is not None and ids is None:
            raise invalid("id_kind is the kind of the ids, got no ids; send them too, or leave it out")
        if ids is not None:
            ids = as_ids("ids", ids, request.id_kind or known)
        _check_depth(request.payload)
        return partial(write, served, change, ids, rows, request.payload)

    def find_index(self, name: str | None) -> ServedIndex:
        """Find an index by its name, which may be left out if there is only one."""
        names = ", ".join(self._registry)
        if name is None:
            if len(self._registry) > 1:
                raise invalid(f"index must be named where several are served, got none, expected one of {names}")
            name = next(iter(self._registry))
        if name not in self._registry.served:  # a dictionary: names never become paths
            detail = f"there is no index {name[:80]!r}, expected one of {names}; see /v1/indexes"
            raise Problem(404, "unknown-index", detail)
        return self._registry.served[name]

    def _read(self, received: Received, kind: type[R], options: type[messages.Request] | None = None) -> Any:
        """Decode a JSON body; or the query string of a raw body, if the request can have one, as its options."""
        body, headers, query = received
        media = headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower()
        if media == RAW and options is not None:
            fields = _read_query(query)
            with _one_sentence(options):
                return msgspec.convert(fields, self._kinds[options])
        if media != JSON:
            expected = JSON if options is None else f"{JSON} or {RAW}"
            detail = f"Content-Type must be {expected}, got {media[:80] or 'none'!r}; name the kind of body you send"
            raise Problem(415, "unsupported-media-type", detail)
        if query:
            raise invalid("a JSON request has all fields in its body, got a query string as well; put it into the body")
        if _SHAPE_KEY in headers:
            raise invalid(f"a JSON request takes its shape from the body, got {SHAPE} as well; leave it out")
        with _one_sentence(kind):
            return msgspec.json.decode(body, type=self._kinds[kind])

    def _rows(
        self, request: messages.SearchRequest | messages.AddRequest, served: ServedIndex, distance: str | None = None
    ) -> npt.NDArray[Any]:
        """Read vectors, or codes in the bit order of an index that has no hasher."""
        own, vectors, codes = served.own_codes, request.vectors, request.codes
        if own is None and vectors is None:
            raise invalid(f"{served.name} encodes vectors itself, got codes; send vectors")
        if distance == "asymmetric" and vectors is None:
            raise invalid("the asymmetric distance is for real values, got codes; send vectors, a value for each bit")
        if vectors is not None and (own is None or distance == "asymmetric"):
            return _read_matrix(vectors, width_of(served.index, distance))
        if codes is None:
            raise invalid(
                f"{served.name} holds codes that were made elsewhere, got vectors; send codes, or search for real "
                "values, one for each bit, by the distance asymmetric"
            )
        assert own is not None
        return _in_order(_read_codes(codes, request.encoding, int(own.n_features_in_)), request.bitorder, served)

    def _raw_rows(
        self, received: Received, served: ServedIndex, distance: str | None = None, bitorder: BitOrder | None = None
    ) -> npt.NDArray[Any]:
        """Read a raw body. The shape must be given, because two vectors of half the width would pass for one."""
        own = served.own_codes if distance != "asymmetric" else None
        what, size = ("codes", 1) if own is not None else ("vectors", 4)
        width, most = width_of(served.index, distance), self._limits.vectors
        shape = received.headers.get(_SHAPE_KEY, b"").decode("latin-1")
        form = _SHAPE_FORM.fullmatch(shape)
        if form is None or int(form[2]) != width or not 1 <= int(form[1]) <= most:
            raise invalid(
                f"a raw body for {served.name} must have the header {SHAPE}: ROWS,{width} with 1 to {most} rows, got "
                f"{shape[:80] or 'none'!r}; see /v1/indexes for what is served"
            )
        rows = int(form[1])
        if len(received.body) != size * rows * width:
            unit = "bytes" if own is not None else "little-endian float32 numbers"
            raise invalid(
                f"a raw body of {rows} {what} of {width} {unit} must have {size * rows * width} bytes, got "
                f"{len(received.body)}; send all of the {what}, or the shape that they have"
            )
        if own is not None:
            packed = np.frombuffer(received.body, dtype=np.uint8).reshape(rows, width)
            return _in_order(packed, bitorder, served)
        # A copy, because a read-only array is another type to the compiler, which would compile the kernels twice.
        matrix = np.frombuffer(received.body, dtype="<f4").astype(np.float32, copy=True).reshape(rows, width)
        check_finite(matrix, argument="vectors")
        return matrix


def as_ids(name: str, ids: list[Any], kind: str | None) -> list[Any]:
    """Give ids of a kind, or of any if it is None; UUIDs come as text."""
    if kind is None:
        return ids
    wrong = next((id for id in ids if isinstance(id, int) != (kind == "integer")), None)
    if wrong is not None:
        raise invalid(f"{name} must be of the kind {kind}, got {str(wrong)[:80]!r}")
    if kind != "uuid":
        return ids
    try:
        return [uuid.UUID(id) for id in ids]
    except ValueError:
        raise invalid(f"{name} must be UUIDs, got something else; write them in full") from None


async def _read_parts(request: Request, limits: Limits) -> bytes:
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > limits.body_bytes:
            raise _too_large(limits, expects_continue=False)
        parts.append(part)
    return b"".join(parts)


def _too_large(limits: Limits, *, expects_continue: bool) -> Problem:
    detail = f"a body may have {limits.body_bytes} bytes, got more; send fewer vectors at once, or send them as float32"
    # A client that waits for "100 Continue" will not send its body, so the connection can be closed. For others it
    # stays open and discards the rest: a client that is cut off while it sends never sees the response.
    return Problem(413, "body-too-large", detail, {"Connection": "close"} if expects_continue else None)


@contextmanager
def _one_sentence(kind: type[messages.Request]) -> Iterator[None]:
    """Turn errors of msgspec into problems that name the field."""
    try:
        yield
    except RecursionError:
        raise invalid("the body is nested too deeply, expected an object with lists of lists; flatten it") from None
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = place.strip("`.") or "the body"
        known = kind.__struct_fields__
        if what.startswith("Object contains unknown field"):
            what = f"there is no field {what.split('`')[1][:80]!r}, expected {', '.join(known)}"
        elif what.startswith("Expected "):
            words = re.sub("`(.*?)`", lambda found: _in_words(found[1]), what.removeprefix("Expected "))
            what = f"{field} must be {words}"
        elif what.startswith("Object missing required field"):
            what = f"the field {what.split('`')[1]!r} is required, got none"
        elif place:  # such as: Number out of range
            what = f"{field} is not accepted: {what[0].lower()}{what[1:200]}; see /openapi.json"
        raise invalid(what) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise invalid(f"the body must be a JSON object, got something else ({error}); see /openapi.json") from None


def _in_words(types: str) -> str:
    return " or ".join(_WORDS[name] for name in types.split(" | ") if name in _WORDS) or types


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
        if name not in _TEXTS:
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):  # the check of the field refuses the text
                fields[name] = msgspec.json.decode(text[:40])
    return fields


def _search_options(request: messages.SearchOptions, served: ServedIndex, limits: Limits) -> Options:
    k = request.k or max(1, min(_USUAL_K, limits.k, len(served.index)))
    rerank = request.rerank
    if rerank is None:
        kept = bool(served.index.info()["vectors_kept"])
        rerank = kept or request.candidates is not None or request.recall is not None
    where = columns = None
    if isinstance(request, messages.SearchRequest):
        where, columns = request.where, None if request.columns is None else tuple(request.columns)
        if columns is not None and len(set(columns)) < len(columns):  # thousands of them would take seconds to write
            raise invalid(f"columns must be different, got {len(columns)} with repetitions; name each once")
    return Options(k, request.candidates, request.distance, rerank, request.recall, request.probes, where, columns)


def _read_among(among: list[Any], kind: str) -> list[Any]:
    """Read ids to search among, or one list of them for each query."""
    lists = [entry for entry in among if isinstance(entry, list)]
    if not lists:
        return as_ids("among", among, kind)
    if len(lists) < len(among):
        raise invalid("among must be a list of ids, or one such list for each query, got both")
    return [as_ids("among", entry, kind) for entry in lists]


def _check_depth(value: Any, left: int = _DEEPEST) -> None:
    """Refuse a payload that is nested so deeply that Arrow would take seconds for it, or fail."""
    if isinstance(value, list | dict):
        if not left:
            raise invalid(f"payload may have {_DEEPEST} lists and objects inside each other, got more; flatten it")
        for part in value.values() if isinstance(value, dict) else value:
            _check_depth(part, left - 1)


def _read_matrix(vectors: list[list[float]], width: int) -> npt.NDArray[np.float32]:
    for row, vector in enumerate(vectors):
        if len(vector) != width:
            raise invalid(f"vectors[{row}] must be a list of {width} numbers, got a list of {len(vector)}")
    with np.errstate(over="ignore"):  # what does not fit becomes Inf, which is refused below
        matrix = np.array(vectors, dtype=np.float64).astype(np.float32)
    check_finite(matrix, argument="vectors")
    return matrix


def _read_codes(codes: list[str], encoding: str, width: int) -> npt.NDArray[np.uint8]:
    """Read packed codes, each as text in base64 or hexadecimal digits."""
    rows = []
    for row, text in enumerate(codes):
        try:
            code = base64.b64decode(text, validate=True) if encoding == "base64" else bytes.fromhex(text)
        except ValueError:
            raise invalid(f"codes[{row}] must be text in {encoding}, got {text[:80]!r}") from None
        if len(code) != width:
            raise invalid(f"codes[{row}] must have {width} bytes, got {len(code)}")
        rows.append(code)
    return np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(-1, width)


def _in_order(packed: npt.NDArray[np.uint8], bitorder: BitOrder | None, served: ServedIndex) -> npt.NDArray[np.uint8]:
    """Give packed codes in the bit order of an index, which is also the one that they have by default."""
    own = served.own_codes
    assert own is not None
    return Codes.from_packed(packed, own.n_bits, bitorder=bitorder or own.bitorder).to_packed(own.bitorder)
