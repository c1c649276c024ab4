"""Calls of a service: how each request is made and its answer is read, for both the plain and the async client."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.addresses import redacted_address
from autojacobin.errors import AutoJacobinError, DataError
from autojacobin.service.responses import JSON, RAW, SHAPE, as_json_value

T = TypeVar("T")

_LONGEST_PAUSE = 30.0


class ServiceError(AutoJacobinError):
    """The service refused a request; ``status`` is the HTTP status, and ``kind`` the short name of the problem."""

    def __init__(self, detail: str, status: int, kind: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the function that reads its answer from the body and the headers.

    ``repeatable`` says whether a request whose answer was lost can be sent again.
    """

    method: str
    path: str
    read: Callable[[bytes, Any], T]
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True


def search(
    vectors: npt.ArrayLike | None = None,
    k: int = 10,
    *,
    ids: Any = None,
    index: str | None = None,
    candidates: int | None = None,
    distance: str | None = None,
    rerank: bool | None = None,
    recall: float | None = None,
    probes: int | None = None,
    among: Any = None,
    where: str | None = None,
    columns: Sequence[str] | None = None,
    codes: Any = None,
    bitorder: BitOrder | None = None,
) -> Call[Any]:
    """Find the ``k`` nearest vectors of each query, given as ``vectors``, as ``codes`` or as ``ids`` in the index.

    Parameters
    ----------
    vectors : matrix of shape (n_queries, n_features), optional
        Queries; sent as float32.
    ids : list of int, str or UUID, optional
        Search for the neighbours of these, which find themselves too.
    index : str, optional
        Name of the index, where several are served.
    k, candidates, distance, rerank, recall, probes, among, where, columns
        As in :meth:`autojacobin.Index.search`, with the same defaults; ``among`` takes ids alone, and ``where`` text.
    codes : Codes, or array of uint8 of shape (n_queries, bytes), optional
        Packed codes to search for, in an index of codes that were made elsewhere.
    bitorder : {"little", "big"}, optional
        Order of the bits in each byte of an array of codes; by default that of the index.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
        In order of distance; equal distances in order of id. Names are strings. Where a filter leaves fewer than k
        vectors, the last ids are -1, or None if ids are names or there are columns and no neighbour at all; their
        distances are NaN.
    payload : list of lists of dicts
        If there are ``columns``: those of each neighbour of each query, and None where there is no neighbour.
    """
    if sum(given is not None for given in (vectors, codes, ids)) != 1:
        raise DataError("a search is for vectors, for codes or for ids, got several or none; pass exactly one of them")
    packed, bitorder = (None, None) if codes is None else _packed(codes, bitorder)
    options = _without_none(
        index=index, k=k, candidates=candidates, distance=distance, rerank=rerank, recall=recall, probes=probes,
        bitorder=bitorder,
    )  # fmt: skip
    filters = _without_none(
        among=None if among is None else _as_list(among),
        where=where,
        columns=None if columns is None else list(columns),
    )
    if ids is None and not filters:
        matrix = _floats(vectors) if packed is None else packed
        return _raw_call(_with_query("/v1/search", options), matrix, _read_neighbours)
    queries = {"ids": _as_list(ids)} if ids is not None else _rows(vectors, packed)
    return _json_call("POST", "/v1/search", {**options, **filters, **queries}, _read_neighbours, accept=RAW)


def encode(vectors: npt.ArrayLike, *, index: str | None = None) -> Call[Codes]:
    """Give the codes of some vectors."""
    return _raw_call(_with_query("/v1/encode", _without_none(index=index)), _floats(vectors), _read_codes)


def indexes() -> Call[list[dict[str, Any]]]:
    """List what is served: name, vectors, bits, kind of ids, columns, distances and more of each."""
    return Call("GET", "/v1/indexes", lambda content, _: list(json.loads(content)["indexes"]))


def add(
    vectors: npt.ArrayLike | None = None,
    ids: Any = None,
    payload: Any = None,
    *,
    index: str,
    codes: Any = None,
    bitorder: BitOrder | None = None,
) -> Call[dict[str, Any]]:
    """Add vectors with new ids to an index. Needs the token for writing.

    Parameters
    ----------
    vectors : matrix of shape (n, n_features), optional
        Sent as float32. All are added, or none.
    ids : list of int, str or UUID, optional
        An id for each; by default the index counts on. The first ids decide which kind the index has.
    payload : list of dicts, dict of columns, data frame or Arrow table, optional
        Columns that belong to the vectors, a row for each.
    index : str
        Name of the index.
    codes, bitorder
        Packed codes instead of vectors, as in ``search``, for an index of codes that were made elsewhere.

    Returns
    -------
    outcome : dict
        ``index``, ``generation``, the number of ``vectors`` in the index now, how many were ``added``, and the ``ids``
        that they got if none were given.
    """
    # If the answer is lost, it is unknown whether the vectors were added, so that it cannot be sent again.
    fields = _write_fields(vectors, ids, payload, codes, bitorder)
    return _json_call("POST", _vectors_path(index), fields, _read_outcome, repeatable=False)


def upsert(
    vectors: npt.ArrayLike | None = None,
    ids: Any = None,
    payload: Any = None,
    *,
    index: str,
    codes: Any = None,
    bitorder: BitOrder | None = None,
) -> Call[dict[str, Any]]:
    """Add vectors to an index, or replace those with the same ids. Needs the token for writing.

    The parameters are those of ``add``, and ``ids`` are required. Columns that ``payload`` does not have stay as they
    are.

    Returns
    -------
    outcome : dict
        ``index``, ``generation``, the number of ``vectors`` in the index now, and how many were ``upserted``.
    """
    return _json_call("PUT", _vectors_path(index), _write_fields(vectors, ids, payload, codes, bitorder), _read_outcome)


def _write_fields(vectors: Any, ids: Any, payload: Any, codes: Any, bitorder: BitOrder | None) -> dict[str, Any]:
    if (vectors is None) == (codes is None):
        raise DataError("either vectors or codes are added, got both or neither; pass exactly one of them")
    packed, bitorder = (None, None) if codes is None else _packed(codes, bitorder)
    listed = None if ids is None else _as_list(ids)
    return _rows(vectors, packed) | _without_none(
        bitorder=bitorder,
        ids=listed,
        id_kind="uuid" if listed and isinstance(listed[0], uuid.UUID) else None,
        payload=None if payload is None else _plain_payload(payload),
    )


def remove(ids: Any, *, index: str) -> Call[dict[str, Any]]:
    """Remove vectors from an index by their ids, all of which must be in it. Needs the token for writing.

    Returns
    -------
    outcome : dict
        ``index``, ``generation``, the number of ``vectors`` in the index now, and how many were ``removed``.
    """
    return _json_call("DELETE", _vectors_path(index), {"ids": _as_list(ids)}, _read_outcome, repeatable=False)


def read_answer(call: Call[T], status: int, headers: Any, content: bytes, address: str) -> T:
    """Give the result of a call, or raise a ServiceError."""
    if status != 200:
        raise _refusal(status, content, address)
    try:
        return call.read(content, headers)
    except (ValueError, KeyError, TypeError):
        raise ServiceError(
            f"the response of {redacted_address(address)} is not one of an autojacobin service; check the address", 200
        ) from None


def pause_before_next(status: int, headers: Any, seconds_left: float) -> float | None:
    """Seconds to wait before a request to a busy service is repeated; None if the answer is final.

    A proxy may also name a date to come back at, or nothing.
    """
    text = headers.get("Retry-After", "")
    pause = min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 1.0
    return pause if status == 503 and pause <= seconds_left else None


def _raw_call(path: str, matrix: npt.NDArray[Any], read: Callable[[bytes, Any], T]) -> Call[T]:
    headers = {"Content-Type": RAW, "Accept": RAW, SHAPE: f"{matrix.shape[0]},{matrix.shape[1]}"}
    return Call("POST", path, read, matrix.tobytes(), headers)


def _json_call(
    method: str,
    path: str,
    fields: dict[str, Any],
    read: Callable[[bytes, Any], T],
    *,
    accept: str = JSON,
    repeatable: bool = True,
) -> Call[T]:
    try:
        body = json.dumps(fields, allow_nan=False, default=_plain).encode()
    except (ValueError, TypeError) as error:
        raise DataError(f"a request must have numbers, text and lists that JSON has, got others: {error}") from error
    return Call(method, path, read, body, {"Content-Type": JSON, "Accept": accept}, repeatable)


def _read_neighbours(content: bytes, headers: Any) -> Any:
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        shape = _shape(headers)
        distances, ids = np.frombuffer(content, dtype="<f8"), np.frombuffer(content, dtype="<i8")
        n = shape[0] * shape[1]
        if len(ids) != 2 * n:
            raise ValueError("the body does not have the size of its shape")
        return distances[:n].reshape(shape).astype(np.float64), ids[n:].reshape(shape).astype(np.int64)
    document = json.loads(content)
    distances = np.array(document["distances"], dtype=np.float64)  # null becomes NaN
    ids = np.array(document["ids"], dtype=object)
    if any(isinstance(id, int) for id in ids.flat):
        ids = np.where(ids == None, -1, ids).astype(np.int64)  # noqa: E711 (of each element)
    found = distances, ids.reshape(distances.shape)
    return (*found, document["payload"]) if "payload" in document else found


def _read_codes(content: bytes, headers: Any) -> Codes:
    n, n_bits = _shape(headers)
    if not n_bits or len(content) != n * -(-n_bits // 8):
        raise ValueError("the body does not have the size of its shape")
    return Codes(np.frombuffer(content, dtype=np.uint8).reshape(n, -(-n_bits // 8)), n_bits)


def _read_outcome(content: bytes, _: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = json.loads(content)
    outcome["generation"]  # raises if this is another document
    return outcome


def _shape(headers: Any) -> tuple[int, int]:
    rows, _, columns = headers.get(SHAPE, "").partition(",")
    return int(rows), int(columns)


def _refusal(status: int, content: bytes, address: str) -> ServiceError:
    try:
        problem = json.loads(content)
        kind = str(problem["type"]).rpartition(":")[2]
        return ServiceError(str(problem["detail"]), status, kind)
    except (ValueError, KeyError, TypeError):
        return ServiceError(
            f"{redacted_address(address)} answered {status} without a reason; is it a service of autojacobin?", status
        )


def _floats(vectors: Any) -> npt.NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # what does not fit becomes Inf, which the service refuses
            matrix: npt.NDArray[np.float32] = np.asarray(vectors, dtype="<f4")
    except (ValueError, TypeError) as error:
        raise DataError(f"vectors must be a matrix of numbers, got something else: {error}") from error
    if matrix.ndim != 2:
        raise DataError(
            f"vectors must be a matrix with one vector per row, got {matrix.ndim} dimension(s); "
            "reshape one vector with X.reshape(1, -1)"
        )
    return matrix


def _packed(codes: Any, bitorder: BitOrder | None) -> tuple[npt.NDArray[np.uint8], BitOrder | None]:
    """Give packed codes as a matrix of bytes, and the bit order that they have if it is known."""
    if isinstance(codes, Codes):
        return codes.to_packed("little"), "little"
    matrix = np.asarray(codes)
    if matrix.dtype != np.uint8 or matrix.ndim != 2:
        raise DataError(
            f"codes must be Codes, or bytes (uint8) with one code per row, got {matrix.dtype} of shape {matrix.shape}"
        )
    return matrix, bitorder


def _rows(vectors: Any, packed: npt.NDArray[np.uint8] | None) -> dict[str, Any]:
    """Convert vectors or packed codes to a field of a JSON request."""
    if packed is None:
        return {"vectors": _floats(vectors).tolist()}
    return {"codes": [base64.b64encode(code.tobytes()).decode("ascii") for code in packed]}


def _as_list(ids: Any) -> list[Any]:
    return [ids] if isinstance(ids, str | int | uuid.UUID) else list(ids)


def _plain(id: Any) -> Any:
    """Convert an id, or several, to values for JSON."""
    if isinstance(id, uuid.UUID):
        return str(id)
    if isinstance(id, set | range):
        return list(id)
    if isinstance(id, np.generic | np.ndarray):
        return id.tolist()
    raise TypeError(f"Object of type {type(id).__name__} is not JSON serializable")


def _plain_payload(payload: Any) -> Any:
    """Convert a payload to values for JSON: a list of objects, or an object of lists."""
    if hasattr(payload, "to_pydict"):  # an Arrow table
        payload = payload.to_pydict()
    elif hasattr(payload, "iloc"):
        payload = payload.to_dict(orient="list")
    elif hasattr(payload, "to_arrow"):
        payload = payload.to_arrow().to_pydict()
    if isinstance(payload, Mapping):
        payload = {name: list(column) for name, column in payload.items()}
    return as_json_value(payload)


def _vectors_path(index: str) -> str:
    return f"/v1/{quote(str(index), safe='')}/vectors"


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _with_query(path: str, options: dict[str, Any]) -> str:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    return f"{path}?{urlencode(words)}" if words else path
