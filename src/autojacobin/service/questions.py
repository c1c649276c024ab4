"""What a request says, checked in every part: JSON, or raw float32 with the shape in a header and a query string."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt

from autojacobin.service.limits import Limits
from autojacobin.service.numbers import matrix_of, raw_matrix, whole
from autojacobin.service.problems import Problem
from autojacobin.service.shelf import ServedIndex, Shelf
from autojacobin.service.work import Encoding, Options, Searching

__all__ = ["JSON", "RAW", "SHAPE", "checked_work", "encoding_asked", "searching_asked"]

JSON = "application/json"
RAW = "application/octet-stream"
SHAPE = "Autojacobin-Shape"  # of a raw body, in both directions: ROWS,COLUMNS

_SHAPE_KEY = SHAPE.lower().encode()
_SHAPE_FORM = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")
_LARGEST_ID = 2**63 - 1
_ENCODINGS = ("base64", "hex")
_OPTIONS = ("k", "candidates", "distance", "rerank", "recall")


def searching_asked(body: bytes, headers: dict[bytes, bytes], query: bytes, shelf: Shelf, limits: Limits) -> Searching:
    """Read a request for neighbours."""
    fields, raw = _fields(body, headers, query, ("index", *_OPTIONS), ("vectors", "id", "ids"))
    served = _served(fields, shelf)
    options = _options(fields, limits)
    vectors, ids = _rows(fields, body if raw else None, headers, served, limits, with_ids=True)
    return checked_work(Searching(served, vectors, ids, options), limits)


def checked_work(work: Searching, limits: Limits) -> Searching:
    """Refuse what would take too long."""
    if work.cost > limits.work:
        raise _invalid(
            f"vectors times candidates, or times k without re-ranking, may be {limits.work}, got {work.cost}; "
            "send fewer vectors at once, or ask for fewer candidates"
        )
    return work


def encoding_asked(
    body: bytes, headers: dict[bytes, bytes], query: bytes, shelf: Shelf, limits: Limits
) -> tuple[Encoding, str]:
    """Read a request for codes, and how a JSON answer is to write them."""
    fields, raw = _fields(body, headers, query, ("index", "encoding"), ("vectors",))
    served = _served(fields, shelf)
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


def _served(fields: Mapping[str, Any], shelf: Shelf) -> ServedIndex:
    names = list(shelf)
    name = fields.get("index", names[0] if len(names) == 1 else None)
    if name is None:
        raise _invalid(f"index must be named where several are served, got none, expected one of {', '.join(names)}")
    if not isinstance(name, str):
        raise _invalid(f"index must be a name, got {_shown(name)}, expected one of {', '.join(names)}")
    if name not in shelf.served:  # a look into a dictionary: names never become paths
        detail = f"there is no index {_shown(name)}, expected one of {', '.join(names)}; see /v1/indexes"
        raise Problem(404, "unknown-index", detail)
    return shelf.served[name]


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
    distance = _one_of("distance", fields.get("distance", "hamming"), ("hamming", "asymmetric"))
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
