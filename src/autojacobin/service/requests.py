"""Read requests: JSON, or raw float32 or packed codes with the shape in a header; and give what they ask for."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from autojacobin.codes import Codes
from autojacobin.core.vectors import check_finite
from autojacobin.hashers import OwnCodes
from autojacobin.index.names import as_uuid
from autojacobin.service import messages
from autojacobin.service.access import Limits
from autojacobin.service.operations import Change, Operation, Options, too_much, write
from autojacobin.service.responses import JSON, RAW, SHAPE, Problem, hung_up, invalid
from autojacobin.service.served import ServedIndex, takes_codes, width_of

_SHAPE_FORM = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_RAW_NUMBERS = {"codes": ("u1", "bytes"), "vectors": ("<f4", "little-endian float32 numbers")}
_USUAL_K = 10
_TEXTS = ("index", "distance", "bitorder")  # in a query string, where other words are read as JSON
_WORDS = {
    "array": "a list", "bool": "a boolean", "bytes": "text in base64", "float": "a number", "int": "an integer",
    "object": "an object", "str": "text",
}  # fmt: skip


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

    def __init__(self, served: Mapping[str, ServedIndex], limits: Limits) -> None:
        self._served = served
        self._limits = limits
        self._kinds = {kind: messages.limited(kind, limits, served) for kind in messages.REQUESTS}

    def search(self, sent: Request, body: bytes) -> Operation:
        """Read a request for neighbours."""
        request = self._read(sent, body, messages.SearchRequest, messages.SearchOptions)
        served = self.find_index(request.index)
        kind, ids, among = served.index.id_kind, None, None
        if isinstance(request, messages.SearchRequest):
            ids = request.ids if request.id is None else [request.id]
            among = None if request.among is None else _read_among(request.among, kind)
        operation = Operation(
            served,
            self._rows(sent, body, request, served) if ids is None else None,
            None if ids is None else as_ids("ids", ids, kind),
            _search_options(request, served, self._limits),
            among,
        )
        if operation.cost > self._limits.work:
            raise too_much(operation.cost, self._limits.work)
        return operation

    def encode(self, sent: Request, body: bytes) -> tuple[Operation, messages.EncodeOptions]:
        """Read a request for codes, and the form that they have in the response."""
        request = self._read(sent, body, messages.EncodeRequest, messages.EncodeOptions)
        served = self.find_index(request.index)
        if isinstance(served.index.hasher, OwnCodes):
            raise invalid(f"{served.name} holds codes that were made elsewhere, so it cannot encode vectors")
        return Operation(served, self._rows(sent, body, request, served)), request

    def write(self, sent: Request, body: bytes, served: ServedIndex, change: Change) -> Callable[[], messages.Written]:
        """Read vectors or codes to add or to put in the place of others, or ids to remove; give what does it."""
        if change == "remove":
            ids = self._read(sent, body, messages.RemoveRequest).ids
            return partial(write, served, change, as_ids("ids", ids, served.index.id_kind))
        request = self._read(sent, body, messages.AddRequest if change == "add" else messages.UpsertRequest)
        rows, ids = self._rows(sent, body, request, served), request.ids
        known = None if served.index.id_kind == "integer" and not len(served.index) else served.index.id_kind
        if request.id_kind is not None and ids is None:
            raise invalid("id_kind is the kind of the ids, got no ids; send them too, or leave it out")
        if ids is not None:
            ids = as_ids("ids", ids, request.id_kind or known)
        return partial(write, served, change, ids, rows, request.payload)

    def find_index(self, name: str | None) -> ServedIndex:
        """Find an index by its name, which may be left out if there is only one."""
        names = ", ".join(self._served)
        if name is None and len(self._served) > 1:
            raise invalid(f"index must be named where several are served, got none, expected one of {names}")
        name = next(iter(self._served)) if name is None else name
        if name not in self._served:  # a dictionary: names never become paths
            detail = f"there is no index {name[:80]!r}, expected one of {names}; see /v1/indexes"
            raise Problem(404, "unknown-index", detail)
        return self._served[name]

    def _read(self, sent: Request, body: bytes, kind: type[messages.Request], options: Any = None) -> Any:
        """Decode a JSON body; or the query string of a raw body, if the request can have one, as its options."""
        media = sent.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media == RAW and options is not None:
            fields = _read_query(sent.scope["query_string"])
            with _one_sentence(options):
                return msgspec.convert(fields, self._kinds[options])
        if media != JSON:
            expected = JSON if options is None else f"{JSON} or {RAW}"
            detail = f"Content-Type must be {expected}, got {media[:80] or 'none'!r}; name the kind of body you send"
            raise Problem(415, "unsupported-media-type", detail)
        if sent.scope["query_string"]:
            raise invalid("a JSON request has all fields in its body, got a query string as well; put it into the body")
        if SHAPE in sent.headers:
            raise invalid(f"a JSON request takes its shape from the body, got {SHAPE} as well; leave it out")
        with _one_sentence(kind):
            return msgspec.json.decode(body, type=self._kinds[kind])

    def _rows(self, sent: Request, body: bytes, request: Any, served: ServedIndex) -> npt.NDArray[Any]:
        """Read vectors, or codes in the bit order of an index that has no hasher, from JSON or from a raw body."""
        index, distance = served.index, getattr(request, "distance", None)
        codes, width = takes_codes(index, distance), width_of(index, distance)
        if not hasattr(request, "vectors"):
            rows = self._raw_rows(sent, body, served.name, width, "codes" if codes else "vectors")
        elif codes and request.codes is not None:
            rows = _read_codes(request.codes, width)
        elif not codes and request.vectors is not None:
            rows = _read_matrix(request.vectors, width)
        elif codes:
            raise invalid(
                f"{served.name} holds codes that were made elsewhere, got vectors; send codes, or search for real "
                "values, one for each bit, by the distance asymmetric"
            )
        elif distance == "asymmetric" and isinstance(index.hasher, OwnCodes):
            raise invalid("the asymmetric distance is for real values, got codes; send vectors, a value for each bit")
        else:
            raise invalid(f"{served.name} encodes vectors itself, got codes; send vectors")
        if isinstance(index.hasher, OwnCodes) and codes:
            order = index.hasher.bitorder
            return Codes.from_packed(rows, index.hasher.n_bits, bitorder=request.bitorder or order).to_packed(order)
        check_finite(rows, argument="vectors")
        return rows

    def _raw_rows(self, sent: Request, body: bytes, name: str, width: int, what: str) -> npt.NDArray[Any]:
        """Read a raw body. The shape must be given, because two vectors of half the width would pass for one."""
        shape, most = sent.headers.get(SHAPE, ""), self._limits.vectors
        form = _SHAPE_FORM.fullmatch(shape)
        if form is None or int(form[2]) != width or not 1 <= int(form[1]) <= most:
            raise invalid(
                f"a raw body for {name} must have the header {SHAPE}: ROWS,{width} with 1 to {most} rows, got "
                f"{shape[:80] or 'none'!r}; see /v1/indexes for what is served"
            )
        rows, (dtype, unit) = int(form[1]), _RAW_NUMBERS[what]
        expected = np.dtype(dtype).itemsize * rows * width
        if len(body) != expected:
            raise invalid(
                f"a raw body of {rows} {what} of {width} {unit} must have {expected} bytes, got {len(body)}; "
                f"send all of the {what}, or the shape that they have"
            )
        # A copy, because a read-only array is another type to the compiler, which would compile the kernels twice.
        return np.frombuffer(body, dtype).reshape(rows, width).astype(np.dtype(dtype).newbyteorder("="), copy=True)


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
        return [as_uuid(id) for id in ids]
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
    where, columns = getattr(request, "where", None), tuple(getattr(request, "columns", None) or ()) or None
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


def _read_matrix(vectors: list[list[float]], width: int) -> npt.NDArray[np.float32]:
    for row, vector in enumerate(vectors):
        if len(vector) != width:
            raise invalid(f"vectors[{row}] must be a list of {width} numbers, got a list of {len(vector)}")
    with np.errstate(over="ignore"):  # what does not fit becomes Inf, which is refused later
        return np.array(vectors, dtype=np.float64).astype(np.float32)


def _read_codes(codes: list[bytes], width: int) -> npt.NDArray[np.uint8]:
    for row, code in enumerate(codes):
        if len(code) != width:
            raise invalid(f"codes[{row}] must have {width} bytes, got {len(code)}")
    return np.frombuffer(b"".join(codes), dtype=np.uint8).reshape(-1, width)
