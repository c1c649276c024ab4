"""Messages of the service, which decode, check and describe themselves, and the OpenAPI document of them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from autojacobin.codes import BitOrder
from autojacobin.core.version import VERSION
from autojacobin.hashers import OwnCodes
from autojacobin.index.conditions import LONGEST_CONDITION
from autojacobin.index.index import Index
from autojacobin.search.distances import DISTANCES, distances_of
from autojacobin.service.access import Limits
from autojacobin.service.responses import JSON, PROBLEM, RAW, SHAPE, Result, is_missing
from autojacobin.service.served import ServedIndex, width_of

Id = Annotated[int, Meta(ge=0, le=2**63 - 1)] | Annotated[str, Meta(min_length=1)]
IdKind = Literal["integer", "string", "uuid"]
Distance = Annotated[str, Meta(extra_json_schema={"enum": list(DISTANCES)})]
Rows = Annotated[list[dict[str, Any]], Meta(min_length=1)] | Annotated[dict[str, list[Any]], Meta(min_length=1)]


class Request(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request. It must have exactly one of the fields in ``one_of``, if there are any."""

    one_of: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        given = [name for name in self.one_of if getattr(self, name) is not None]
        if self.one_of and len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"a request must have one of {', '.join(self.one_of)}, got {got}; send exactly one")


class SearchOptions(Request):
    """Options of a search.

    ``index`` may be left out where one is served. ``k`` is 10 by default. ``distance`` is by default the first that
    /v1/indexes names for the index. ``rerank`` says whether to order the candidates by the distance of the vectors.
    ``candidates`` is how many of the nearest codes to re-rank. Instead, ``recall`` is the mean share of the true
    neighbours to find, 0.95 by default. ``probes`` is how many lists to scan, of an index that has lists.
    ``bitorder`` is that of codes, by default as in the index.
    """

    index: str | None = None
    k: int | None = None
    candidates: int | None = None
    distance: Distance | None = None
    rerank: bool | None = None
    recall: Annotated[float, Meta(gt=0, le=1)] | None = None
    probes: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    bitorder: BitOrder | None = None


class SearchRequest(SearchOptions):
    """Options, queries and filters of a search.

    Queries are ``vectors``; or packed ``codes`` in base64, for an index of codes that were made elsewhere; or the
    ``id`` or the ``ids`` of vectors in the index. ``among`` are ids to search among, or one list of them for each
    query; unknown ids do not matter. ``where`` is a condition on the payload, such as ``price < 10 and lang = 'de'``.
    ``columns`` of the payload are returned.
    """

    one_of = ("vectors", "codes", "id", "ids")

    vectors: list[list[float]] | None = None
    codes: list[bytes] | None = None
    id: Id | None = None
    ids: list[Id] | None = None
    among: list[Id | list[Id]] | None = None
    where: Annotated[str, Meta(min_length=1, max_length=LONGEST_CONDITION)] | None = None
    columns: Annotated[list[str], Meta(min_length=1)] | None = None


class EncodeOptions(Request):
    """Which bit of a byte comes first in codes."""

    index: str | None = None
    bitorder: BitOrder = "little"


class EncodeRequest(EncodeOptions, kw_only=True):
    """Vectors to encode."""

    vectors: list[list[float]]


class AddRequest(Request):
    """Vectors or packed codes in base64 to add.

    ``ids`` are integers or strings. ``id_kind`` is their kind, if the index is empty; UUIDs come as strings.
    ``payload`` is a list with an object for each vector, or an object with a list for each column.
    """

    one_of = ("vectors", "codes")

    vectors: list[list[float]] | None = None
    codes: list[bytes] | None = None
    bitorder: BitOrder | None = None
    ids: list[Id] | None = None
    id_kind: IdKind | None = None
    payload: Rows | None = None


class UpsertRequest(AddRequest, kw_only=True):
    """Vectors or packed codes to add, or to put in the place of those with the same ids."""

    ids: list[Id]


class RemoveRequest(Request):
    """Vectors to remove, all or none."""

    ids: list[Id]


REQUESTS: tuple[type[Request], ...] = (
    SearchOptions, SearchRequest, EncodeOptions, EncodeRequest, AddRequest, UpsertRequest, RemoveRequest,
)  # fmt: skip


class Neighbours(Struct, omit_defaults=True):
    """Neighbours of each query in order of distance, null where a filter leaves too few; columns of their payload."""

    index: str
    generation: int | None
    distances: list[list[float | None]]
    ids: list[list[int | str | None]]
    payload: list[list[dict[str, Any] | None]] | UnsetType = UNSET

    @classmethod
    def of(cls, index: str, result: Result) -> Neighbours:
        """Give the neighbours that a search found."""
        distances, ids = result.arrays
        missing = is_missing(ids)
        payload: Any = UNSET if result.payload is None else list(_payload_rows(result.payload, missing))
        return cls(index, result.generation, _rows(distances, missing), _rows(ids, missing), payload)


class Encoded(Struct):
    """Packed codes in base64."""

    index: str
    generation: int | None
    bits: int
    codes: list[bytes]


class Written(Struct, omit_defaults=True):
    """What a write has done; ``ids`` are those of vectors that were added without any."""

    index: str
    generation: int | None
    vectors: Annotated[int, Meta(description="Vectors in the index now.")]
    added: int | UnsetType = UNSET
    upserted: int | UnsetType = UNSET
    removed: int | UnsetType = UNSET
    ids: list[int] | UnsetType = UNSET


class IndexFigures(Struct):
    """What is served."""

    name: str
    vectors: int
    hasher: str
    bits: int
    features: int
    vectors_kept: bool
    metric: str
    ids: IdKind
    columns: list[str] | None
    lists: int | None
    generation: int | None
    trained_as: str
    bitorder: BitOrder | None
    distances: dict[str, str]

    @classmethod
    def of(cls, name: str, index: Index) -> IndexFigures:
        """Give the figures of an index."""
        figures, hasher = index.info(), index.hasher
        shown = {key: value for key, value in figures.items() if key in cls.__struct_fields__}
        distances = {name: distance.summary for name, distance in distances_of(hasher).items()}
        bitorder = hasher.bitorder if isinstance(hasher, OwnCodes) else None
        return cls(name=name, **shown, trained_as=hasher.trained_as, bitorder=bitorder, distances=distances)


class Indexes(Struct):
    """All indexes, and the limits of the service."""

    indexes: list[IndexFigures]
    limits: dict[str, int]


class Status(Struct):
    """Whether the service runs, or is ready."""

    status: str


class Refusal(Struct):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


def as_json(message: Any) -> bytes:
    """Write a message. NaN is null, times are ISO 8601, bytes base64, and types that JSON does not have are text."""
    return msgspec.json.encode(message, enc_hook=str)


def _rows(array: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> Any:
    """Write row by row, so that a large response does not block the interpreter, and with it all other requests."""
    if array.dtype.kind == "f":
        array = array.astype(np.float64, copy=False)
    if missing.any():
        array = array.astype(object)
        array[missing] = None
    return [Raw(as_json(row.tolist())) for row in array]


def _payload_rows(table: Any, missing: npt.NDArray[np.bool_]) -> Iterator[Raw]:
    n, k = missing.shape
    for row in range(n):
        entries = table[row * k : row * k + k].to_pylist()
        yield Raw(as_json([None if gone else entry for entry, gone in zip(entries, missing[row], strict=True)]))


def limited(kind: type[Request], limits: Limits, indexes: Mapping[str, ServedIndex]) -> Any:
    """Give a kind of request whose fields have the limits of a service, and whose description names its indexes."""
    several = Meta(min_length=1, max_length=limits.vectors)
    widths = [width_of(served.index, "asymmetric") for served in indexes.values()]
    width = Meta(extra_json_schema={"minItems": min(widths), "maxItems": max(widths)})
    types: dict[str, Any] = {
        "index": Annotated[str, Meta(extra_json_schema={"enum": list(indexes)})],
        "k": Annotated[int, Meta(ge=1, le=limits.k)],
        "candidates": Annotated[int, Meta(ge=1, le=limits.candidates)],
        "vectors": Annotated[list[Annotated[list[float], width]], several],
        "codes": Annotated[list[Annotated[bytes, Meta(min_length=1)]], several],
        "ids": Annotated[list[Id], several],
    }
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if narrow := types.get(field.name):
            fields.append((field.name, narrow) if field.required else (field.name, narrow | None, None))
    made: Any = msgspec.defstruct(kind.__name__, fields, bases=(kind,), kw_only=True)
    made.__doc__ = cleandoc(kind.__doc__ or "")
    return made


_REFUSALS = {
    "400": "The request is malformed, or asks for something impossible.",
    "401": "A token is required.",
    "404": "There is no such index or id.",
    "408": "The body came too slowly.",
    "409": "An id is in the index already.",
    "413": "The body is too large.",
    "415": "The body is neither JSON nor raw float32.",
    "421": "The service does not answer to this host name.",
    "423": "Another process is writing to the index.",
    "500": "An error of the service.",
    "503": "The service is busy; try again after Retry-After.",
}
_RAW_BODY = f"Little-endian float32 numbers, or bytes of packed codes, row by row; {SHAPE} says how many."
_RAW_NEIGHBOURS = (
    "All distances as float64, then all ids as int64, little-endian, row by row; for integer ids without columns. "
    "Where a filter leaves too few neighbours, NaN and -1."
)


def openapi_document(indexes: Mapping[str, ServedIndex], limits: Limits, *, writable: bool = False) -> dict[str, Any]:
    """Describe all requests and responses of a service, with its indexes and limits."""
    messages = [limited(kind, limits, indexes) for kind in REQUESTS]
    responses = Neighbours, Encoded, Written, Indexes, Status, Refusal
    _, schemas = msgspec.json.schema_components([*messages, *responses], ref_template="#/components/schemas/{name}")
    for kind in REQUESTS:
        if kind.one_of:
            schemas[kind.__name__]["oneOf"] = [{"required": [name]} for name in kind.one_of]
    refusals: dict[str, Any] = {
        code: {"description": text, "content": {PROBLEM: _schema(Refusal)}} for code, text in _REFUSALS.items()
    }
    refusals["503"]["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "required": True}}
    search = _operation("search", "Find the k nearest vectors of each query.", Neighbours, SearchRequest)
    encode = _operation("encode", "Give the binary code of each vector.", Encoded, EncodeRequest)
    _allow_raw(search, schemas[SearchOptions.__name__], _RAW_NEIGHBOURS)
    _allow_raw(encode, schemas[EncodeOptions.__name__], "The bytes of one code after the other.")
    paths: dict[str, Any] = {
        "/v1/search": {"post": search},
        "/v1/encode": {"post": encode},
        "/v1/indexes": {"get": _operation("listIndexes", "What is served, and the limits.", Indexes)},
        "/openapi.json": {"get": _operation("describe", "This document.", None)},
        "/metrics": {"get": _operation("metrics", "Counters for Prometheus.", None, media="text/plain")},
        "/healthz": {"get": {**_operation("healthz", "Whether the process runs.", Status), "security": []}},
        "/readyz": {"get": {**_operation("readyz", "Whether all indexes are ready.", Status), "security": []}},
    }
    if writable:
        writes = {
            "post": _operation("addVectors", "Add vectors with new ids.", Written, AddRequest),
            "put": _operation("upsertVectors", "Add or replace vectors.", Written, UpsertRequest),
            "delete": _operation("removeVectors", "Remove vectors.", Written, RemoveRequest),
        }
        name = {"name": "index", "in": "path", "required": True, "schema": {"type": "string", "enum": list(indexes)}}
        secured = {method: {**write, "security": [{"writeToken": []}]} for method, write in writes.items()}
        paths["/v1/{index}/vectors"] = {"parameters": [name], **secured}
    token = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "autojacobin", "version": VERSION, "license": {"name": "BSD-3-Clause"}},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": refusals,
            "securitySchemes": {"token": token, "writeToken": {**token, "description": "The token for writing."}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(
    name: str, summary: str, response: type[Struct] | None, request: type[Request] | None = None, media: str = JSON
) -> dict[str, Any]:
    success = {"description": summary, "content": {media: {} if response is None else _schema(response)}}
    refused = {code: {"$ref": f"#/components/responses/{code}"} for code in _REFUSALS}
    described = {"operationId": name, "summary": summary, "responses": {"200": success, **refused}}
    if request is not None:
        described["requestBody"] = {"required": True, "content": {JSON: _schema(request)}}
    return described


def _allow_raw(operation: dict[str, Any], options: dict[str, Any], response: str) -> None:
    """Describe raw bodies: their options are in the query string, and their shape is in a header."""
    operation["requestBody"]["content"][RAW] = {"schema": {"description": _RAW_BODY}}
    success = operation["responses"]["200"]
    success["content"][RAW] = {"schema": {"description": response}}
    shape = {"type": "string", "pattern": "^[0-9]{1,9},[0-9]{1,9}$", "description": "ROWS,COLUMNS"}
    success["headers"] = {SHAPE: {"description": "Rows and columns of a raw response.", "schema": shape}}
    hint = "For a raw body; a JSON body says it itself."
    operation["parameters"] = [
        {"name": name, "in": "query", "required": False, "schema": schema, "description": hint}
        for name, schema in options["properties"].items()
    ] + [{"name": SHAPE, "in": "header", "required": False, "schema": shape, "description": hint}]


def _schema(message: type[Struct]) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{message.__name__}"}}
