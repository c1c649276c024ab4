"""The OpenAPI 3.1 document of the service, which names its indexes and limits."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from autojacobin.index.conditions import LONGEST_CONDITION
from autojacobin.index.names import ID_KINDS
from autojacobin.search.distances import DISTANCES
from autojacobin.service.access import Limits
from autojacobin.service.problems import MEDIA_TYPE
from autojacobin.service.responses import GENERATION, JSON, RAW, SHAPE
from autojacobin.service.served import IndexRegistry, width_of

__all__ = ["openapi_document"]

_REFUSALS = {
    "400": "The request is malformed, or asks for something impossible.",
    "401": "A token is required.",
    "403": "The service is read-only.",
    "404": "There is no such index or id.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "409": "An id is in the index already.",
    "415": "The body is neither JSON nor raw float32.",
    "421": "The service does not answer to this host name.",
    "423": "Another process is writing to the index.",
    "500": "An error of the service.",
    "503": "The service is busy; try again after Retry-After.",
}


_READING = tuple(code for code in _REFUSALS if code not in ("403", "409", "423"))
_WRITING = tuple(code for code in _REFUSALS if code != "403")
_WHOLE_ID = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_NAME = {"type": "string", "minLength": 1}
_ENCODING = {"enum": ["base64", "hex"], "default": "base64"}
_BIT_ORDER = {"enum": ["little", "big"], "description": "Which bit of a byte comes first; by default as in the index."}


def openapi_document(registry: IndexRegistry, limits: Limits, *, writable: bool = False) -> dict[str, Any]:
    """Give the document for the indexes that are served and the limits of the service."""
    options = _options(registry, limits)
    writes = {"/v1/{index}/vectors": _vectors(registry, limits)} if writable else {}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "autojacobin",
            "version": version("autojacobin"),
            "summary": "Nearest neighbours by learned binary codes.",
            "license": {"name": "BSD-3-Clause"},
        },
        "paths": {
            "/v1/search": {"post": _search(registry, limits, options)},
            "/v1/encode": {"post": _encode(registry, limits, options["index"])},
            **writes,
            "/v1/indexes": {"get": _read("listIndexes", "What is served, and the limits.", JSON, "Indexes")},
            "/openapi.json": {"get": _read("describe", "This document.", JSON, None)},
            "/metrics": {"get": _read("metrics", "Counters for Prometheus.", "text/plain", None)},
            "/healthz": {"get": _probe("healthz", "Whether the process runs.", _refusals())},
            "/readyz": {"get": _probe("readyz", "Whether all indexes are ready.", _refusals("503"))},
        },
        "components": {
            "schemas": _schemas(),
            "responses": {code: _refusal(code, text) for code, text in _REFUSALS.items()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "writeToken": {"type": "http", "scheme": "bearer", "description": "The token for writing."},
            },
        },
        "security": [{"token": []}, {}],
    }


def _search(registry: IndexRegistry, limits: Limits, options: dict[str, Any]) -> dict[str, Any]:
    ids = _id({served.id_kind for served in registry.served.values()})
    content = {
        "vectors": _matrix(registry, limits),
        "codes": _codes(limits),
        "id": {**ids, "description": "Search for the neighbours of a vector in the index."},
        "ids": {"type": "array", "items": ids, "minItems": 1, "maxItems": limits.vectors},
    }
    filters = {
        "among": {
            "oneOf": [_list(ids), {**_list(_list(ids)), "minItems": 1}],
            "description": "Search among these ids alone; or one list for each query. Unknown ids do not matter.",
        },
        "where": {
            "type": "string",
            "minLength": 1,
            "maxLength": LONGEST_CONDITION,
            "description": "Search among vectors whose payload meets a condition, such as price < 10 and lang = 'de'.",
        },
        "columns": {**_list({"type": "string"}), "minItems": 1, "description": "Columns of the payload to return."},
    }
    return _operation(
        "search",
        "Find the k nearest vectors of each query. Equal distances are in order of id.",
        options,
        {
            **_object({**options, **content, "encoding": _ENCODING, **filters}),
            "oneOf": [{"required": [name]} for name in content],
        },
        "Neighbours",
        "All distances as float64, then all ids as int64, little-endian, row by row; for integer ids without columns. "
        "Where there are no more neighbours, NaN and -1.",
    )


def _vectors(registry: IndexRegistry, limits: Limits) -> dict[str, Any]:
    ids = {**_list(_id({"integer", "string"})), "minItems": 1, "maxItems": limits.vectors}
    column = {"type": "array", "minItems": 1, "maxItems": limits.vectors}
    payload = {
        "oneOf": [
            {**_list({"type": "object"}), "minItems": 1, "maxItems": limits.vectors},
            {"type": "object", "additionalProperties": column, "minProperties": 1},
        ],
        "description": "Columns beside the vectors: a list with an object for each, or an object of lists.",
    }
    content = {"vectors": _matrix(registry, limits), "codes": _codes(limits)}
    kind = {"enum": list(ID_KINDS), "description": "Kind of the ids of an index that is empty; UUIDs come as strings."}
    form = {"encoding": _ENCODING, "bitorder": _BIT_ORDER}
    added = {
        **_object({**content, **form, "ids": ids, "id_kind": kind, "payload": payload}),
        "oneOf": [{"required": [name]} for name in content],
    }
    name = {"name": "index", "in": "path", "required": True, "schema": {"type": "string", "enum": list(registry)}}
    return {
        "parameters": [name],
        "post": _write("addVectors", "Add vectors with new ids.", added, "Added"),
        "put": _write(
            "upsertVectors",
            "Add vectors, or replace those with the same ids. Columns that are not given stay.",
            {**added, "required": ["ids"]},
            "Upserted",
        ),
        "delete": _write("removeVectors", "Remove vectors, all or none.", _object({"ids": ids}, ["ids"]), "Removed"),
    }


def _write(name: str, summary: str, request: dict[str, Any], schema: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "security": [{"writeToken": []}],
        "requestBody": {"required": True, "content": {JSON: {"schema": request}}},
        "responses": {"200": {"description": summary, "content": {JSON: _schema(schema)}}, **_refusals(*_WRITING)},
    }


def _id(kinds: set[str]) -> dict[str, Any]:
    """Give the schema of an id of any of these kinds; a UUID is written as a string."""
    if kinds == {"integer"}:
        return _WHOLE_ID
    return {"oneOf": [_WHOLE_ID, _NAME]} if "integer" in kinds else _NAME


def _encode(registry: IndexRegistry, limits: Limits, index: dict[str, Any]) -> dict[str, Any]:
    order = {"enum": ["little", "big"], "default": "little", "description": "Which bit of a byte comes first."}
    options = {"index": index, "encoding": _ENCODING, "bitorder": order}
    return _operation(
        "encode",
        "Give the binary code of each vector: bit j is bit j % 8, least significant first, of byte j // 8.",
        options,
        _object({**options, "vectors": _matrix(registry, limits)}, ["vectors"]),
        "Codes",
        "The bytes of one code after the other.",
    )


def _options(registry: IndexRegistry, limits: Limits) -> dict[str, Any]:
    hint = "May be left out where one index is served."
    return {
        "index": {"type": "string", "enum": list(registry), "description": hint},
        "k": {"type": "integer", "minimum": 1, "maximum": limits.k, "default": 10},
        "candidates": {
            "type": "integer",
            "minimum": 1,
            "maximum": limits.candidates,
            "description": "How many of the nearest codes to re-rank, at least k; by default what the recall takes.",
        },
        "distance": {
            "type": "string",
            "enum": list(DISTANCES),
            "description": "; ".join(f"{name} compares {entry.summary}" for name, entry in DISTANCES.items())
            + "; by default the first that /v1/indexes names for the index",
        },
        "rerank": {
            "type": "boolean",
            "description": "Whether to order the candidates by the distance of the vectors; by default if it has any.",
        },
        "recall": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 0.999,
            "description": "The mean share of the true neighbours to find, instead of candidates; by default 0.95.",
        },
        "probes": {
            "type": "integer",
            "minimum": 1,
            "description": "How many lists to scan, for an index with inverted lists.",
        },
        "bitorder": _BIT_ORDER,
    }


def _matrix(registry: IndexRegistry, limits: Limits) -> dict[str, Any]:
    widths = [width_of(served.index, "asymmetric") for served in registry.served.values()]
    row = {"type": "array", "items": {"type": "number"}, "minItems": min(widths), "maxItems": max(widths)}
    return {"type": "array", "items": row, "minItems": 1, "maxItems": limits.vectors}


def _codes(limits: Limits) -> dict[str, Any]:
    return {
        **_list({"type": "string", "minLength": 1}),
        "minItems": 1,
        "maxItems": limits.vectors,
        "description": "Packed codes, for an index of codes that were made elsewhere.",
    }


def _operation(
    name: str, summary: str, options: dict[str, Any], request: dict[str, Any], schema: str, raw: str
) -> dict[str, Any]:
    success = {
        "description": "The response; raw if Accept names the raw type and not JSON.",
        "headers": {
            SHAPE: {"description": "Rows and columns of a raw response.", "schema": {"type": "string"}},
            GENERATION: {"description": "State of the index, for a raw response.", "schema": {"type": "integer"}},
        },
        "content": {JSON: _schema(schema), RAW: {"schema": {"description": raw}}},
    }
    hint = " (for a raw body; a JSON body says it itself)"
    shape = {
        "name": SHAPE,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "pattern": "^[0-9]{1,9},[0-9]{1,9}$"},
        "description": "ROWS,COLUMNS of a raw body, which is refused without it or if COLUMNS is not the number of "
        "features of the index; a JSON body must come without.",
    }
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [
            *(
                {"name": key, "in": "query", "required": False, "schema": schema, "description": key + hint}
                for key, schema in options.items()
            ),
            shape,
        ],
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": request},
                RAW: {
                    "schema": {
                        "description": "Little-endian float32 numbers, or bytes of packed codes, row by row; "
                        f"{SHAPE} says how many."
                    }
                },
            },
        },
        "responses": {"200": success, **_refusals(*_READING)},
    }


def _read(name: str, summary: str, media: str, schema: str | None) -> dict[str, Any]:
    content = {media: _schema(schema) if schema else {}}
    responses = {"200": {"description": summary, "content": content}, **_refusals("401", "421", "500")}
    return {"operationId": name, "summary": summary, "responses": responses}


def _probe(name: str, summary: str, refusals: dict[str, Any]) -> dict[str, Any]:
    success = {"description": summary, "content": {JSON: {"schema": _object({"status": {"type": "string"}})}}}
    return {"operationId": name, "summary": summary, "security": [], "responses": {"200": success, **refusals}}


def _schemas() -> dict[str, Any]:
    text, whole = {"type": "string"}, {"type": "integer"}
    state = {"index": text, "generation": {"type": ["integer", "null"]}}
    figures = {
        "name": text, "vectors": whole, "hasher": text, "bits": whole, "features": whole,
        "vectors_kept": {"type": "boolean"}, "metric": text, "generation": {"type": ["integer", "null"]},
        "ids": {"enum": ["integer", "string", "uuid"]}, "columns": _list(text), "lists": {"type": ["integer", "null"]},
        "trained_as": text, "bitorder": {"enum": ["little", "big", None]},
        "distances": {"type": "object", "additionalProperties": text},
    }  # fmt: skip
    limits = dict.fromkeys(("vectors", "k", "candidates", "work", "body_bytes"), whole)
    neighbours = {
        **state,
        "distances": _list(_list({"type": ["number", "null"]})),
        "ids": _list(_list({"type": ["integer", "string", "null"]})),
    }
    rows = _list(_list({"type": ["object", "null"]}))
    codes = {**state, "bits": whole, "encoding": {"enum": ["base64", "hex"]}, "codes": _list(text)}
    return {
        "Neighbours": _object({**neighbours, "payload": rows}, list(neighbours)),
        "Added": _object(
            {**state, "vectors": whole, "added": whole, "ids": _list(whole)}, [*state, "vectors", "added"]
        ),
        "Upserted": _object({**state, "vectors": whole, "upserted": whole}),
        "Removed": _object({**state, "vectors": whole, "removed": whole}),
        "Codes": _object(codes, list(codes)),
        "Indexes": _object({"indexes": _list(_object(figures, list(figures))), "limits": _object(limits)}),
        "Problem": _object({"type": text, "title": text, "status": whole, "detail": text}, ["type", "status"]),
    }


def _refusal(code: str, text: str) -> dict[str, Any]:
    refusal: dict[str, Any] = {"description": text, "content": {MEDIA_TYPE: _schema("Problem")}}
    if code == "503":
        refusal["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "required": True}}
    return refusal


def _refusals(*codes: str) -> dict[str, Any]:
    return {code: {"$ref": f"#/components/responses/{code}"} for code in codes}


def _schema(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/components/schemas/{name}"}}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    described: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return described if required is None else {**described, "required": required}
