"""The requests of a service: how each is made and its answer is read, for both the plain and the async client."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from autojacobin.codes import BitOrder, Codes
from autojacobin.core.addresses import redacted_address
from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_matrix
from autojacobin.errors import AutoJacobinError, DataError, StorageError
from autojacobin.service.access import Access
from autojacobin.service.responses import JSON, RAW, SHAPE, as_json_value

Reader = Callable[[bytes, Any], Any]  # of the body and the headers of an answer

_LONGEST_PAUSE = 30.0


class ServiceError(AutoJacobinError):
    """The service refused a request; ``status`` is the HTTP status, and ``kind`` the short name of the problem."""

    def __init__(self, detail: str, status: int, kind: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind


@dataclass(frozen=True)
class Call:
    """A request, what reads its answer, and whether a lost answer lets it be sent again."""

    method: str
    path: str
    read: Reader
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    repeatable: bool = True


class Calls:
    """The methods of both clients, which send a call in their own ways; those of ``AsyncClient`` are awaited."""

    _connect: Callable[[SplitResult, float], None]
    _send: Callable[[Call], Any]

    def __init__(
        self,
        address: str = "http://127.0.0.1:8571",
        *,
        token: str | None = None,
        timeout: float = 30.0,
        patience: float = 0.0,
    ) -> None:
        self._address, self._shown, self._patience = address, redacted_address(address), patience
        self._headers = {"Accept": "*/*"}
        if token is not None:
            Access(token)  # raises if no service can have this token
            self._headers["Authorization"] = f"Bearer {token}"
        try:
            parts = urlsplit(address)
            wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
        except ValueError:  # for a port that is not a number, or brackets without an address
            wrong = True
        if wrong:
            raise DataError(f"an address must look like http://127.0.0.1:8571, got {self._shown!r}")
        self._connect(parts, timeout)

    def search(
        self,
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
    ) -> Any:
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
            As in :meth:`autojacobin.Index.search`, with the same defaults; ``among`` takes ids, and ``where`` text.
        codes : Codes, or array of uint8 of shape (n_queries, bytes), optional
            Packed codes to search for, in an index of codes that were made elsewhere.
        bitorder : {"little", "big"}, optional
            Order of the bits in each byte of an array of codes; by default that of the index.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, min(k, vectors in the index))
            In order of distance; equal distances in order of id. Names are strings. Where a filter leaves fewer, the
            last ids are -1, or None if ids are names or there are columns and no neighbour at all; their
            distances are NaN.
        payload : list of lists of dicts
            If there are ``columns``: those of each neighbour of each query, and None where there is no neighbour.
        """
        if sum(given is not None for given in (vectors, codes, ids)) != 1:
            raise DataError("a search is for vectors, for codes or for ids, got several or none; pass one of them")
        matrix, bitorder = (None, None) if ids is not None else _matrix(vectors, codes, bitorder)
        options = {
            "index": index, "k": k, "candidates": candidates, "distance": distance, "rerank": rerank, "recall": recall,
            "probes": probes, "bitorder": bitorder,
        }  # fmt: skip
        filters = {"where": where, "among": _as_list(among), "columns": columns}
        if matrix is not None and all(one is None for one in filters.values()):
            return self._send(_raw_call("/v1/search", options, matrix, _read_neighbours))
        queries = {"ids": _as_list(ids)} if matrix is None else _as_field(matrix)
        return self._send(_json_call("POST", "/v1/search", {**options, **filters, **queries}, _read_neighbours))

    def encode(self, vectors: npt.ArrayLike, *, index: str | None = None) -> Any:
        """Give the codes of some vectors."""
        matrix, _ = _matrix(vectors, None, None)
        return self._send(_raw_call("/v1/encode", {"index": index}, matrix, _read_codes))

    def indexes(self) -> Any:
        """List what is served: name, vectors, bits, kind of ids, columns, distances and more of each."""
        return self._send(Call("GET", "/v1/indexes", lambda content, _: list(json.loads(content)["indexes"])))

    def add(
        self,
        vectors: npt.ArrayLike | None = None,
        ids: Any = None,
        payload: Any = None,
        *,
        index: str,
        codes: Any = None,
        bitorder: BitOrder | None = None,
    ) -> Any:
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
            ``index``, ``generation``, the number of ``vectors`` in the index now, how many were ``added``, and their
            ``ids`` if none were given.
        """
        # If the answer is lost, it is unknown whether the vectors were added, so that it cannot be sent again.
        return self._write("POST", index, _write_fields(vectors, ids, payload, codes, bitorder), repeatable=False)

    def upsert(
        self,
        vectors: npt.ArrayLike | None = None,
        ids: Any = None,
        payload: Any = None,
        *,
        index: str,
        codes: Any = None,
        bitorder: BitOrder | None = None,
    ) -> Any:
        """Add vectors to an index, or replace those with the same ids. Needs the token for writing.

        The parameters and the outcome are those of ``add``, with ``upserted``, and ``ids`` are required. Columns that
        ``payload`` does not have stay as they are.
        """
        return self._write("PUT", index, _write_fields(vectors, ids, payload, codes, bitorder))

    def remove(self, ids: Any, *, index: str) -> Any:
        """Remove vectors by their ids, all or none; the outcome has ``removed``. Needs the token for writing."""
        return self._write("DELETE", index, {"ids": _as_list(ids)}, repeatable=False)

    def _write(self, method: str, index: str, fields: dict[str, Any], *, repeatable: bool = True) -> Any:
        path = f"/v1/{quote(str(index), safe='')}/vectors"
        return self._send(_json_call(method, path, fields, lambda content, _: json.loads(content), repeatable))

    def _read(self, call: Call, status: int, headers: Any, content: bytes) -> Any:
        """Give the result of a call, or raise a ServiceError."""
        try:
            if status == 200:
                return call.read(content, headers)
            problem = json.loads(content)
            refusal = ServiceError(str(problem["detail"]), status, str(problem["type"]).rpartition(":")[2])
        except (ValueError, KeyError, TypeError):
            detail = f"the response of {self._shown}, {status}, is not one of an autojacobin service; check the address"
            raise ServiceError(detail, status) from None
        raise refusal

    def _unreachable(self, reason: str) -> StorageError:
        return StorageError(
            f"the service at {self._shown} cannot be reached: {reason}; start it with: autojacobin serve INDEX"
        )


def pause_before_next(status: int, headers: Any, seconds_left: float) -> float | None:
    """Seconds to wait before a busy service is asked again; None if the answer is final."""
    text = headers.get("Retry-After", "")
    pause = min(float(text), _LONGEST_PAUSE) if text.isascii() and text.isdigit() else 1.0
    return pause if status == 503 and pause <= seconds_left else None


def _raw_call(path: str, options: dict[str, Any], matrix: npt.NDArray[Any], read: Reader) -> Call:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    query = urlencode({name: word for name, word in words.items() if word is not None})
    headers = {"Content-Type": RAW, "Accept": RAW, SHAPE: f"{matrix.shape[0]},{matrix.shape[1]}"}
    return Call("POST", f"{path}?{query}", read, matrix.tobytes(), headers)


def _json_call(method: str, path: str, fields: dict[str, Any], read: Reader, repeatable: bool = True) -> Call:
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        body = json.dumps(given, allow_nan=False, default=as_json_value).encode()
    except (ValueError, TypeError) as error:
        raise DataError(f"a request must have numbers, text and lists that JSON has, got others: {error}") from error
    return Call(method, path, read, body, {"Content-Type": JSON, "Accept": RAW}, repeatable)


def _write_fields(vectors: Any, ids: Any, payload: Any, codes: Any, bitorder: BitOrder | None) -> dict[str, Any]:
    if (vectors is None) == (codes is None):
        raise DataError("either vectors or codes are added, got both or neither; pass exactly one of them")
    matrix, bitorder = _matrix(vectors, codes, bitorder)
    listed = _as_list(ids)
    kind = "uuid" if listed and isinstance(listed[0], uuid.UUID) else None
    rest = {"bitorder": bitorder, "ids": listed, "id_kind": kind, "payload": _plain_payload(payload)}
    return {**_as_field(matrix), **rest}


def _read_neighbours(content: bytes, headers: Any) -> Any:
    if headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        distances, ids = (np.frombuffer(content, dtype).reshape(2, *_shape(headers)) for dtype in ("<f8", "<i8"))
        return distances[0].astype(np.float64), ids[1].astype(np.int64)
    document = json.loads(content)
    distances = np.array(document["distances"], dtype=np.float64)  # null becomes NaN
    ids = np.array(document["ids"], dtype=object)
    if any(isinstance(id, int) for id in ids.flat):
        ids = np.where(ids == None, -1, ids).astype(np.int64)  # noqa: E711 (of each element)
    found = distances, ids.reshape(distances.shape)
    return (*found, document["payload"]) if "payload" in document else found


def _read_codes(content: bytes, headers: Any) -> Codes:
    n, n_bits = _shape(headers)
    return Codes(np.frombuffer(content, dtype=np.uint8).reshape(n, -(-n_bits // 8)), n_bits)


def _shape(headers: Any) -> tuple[int, int]:
    rows, _, columns = headers.get(SHAPE, "").partition(",")
    return int(rows), int(columns)


def _matrix(vectors: Any, codes: Any, bitorder: BitOrder | None) -> tuple[npt.NDArray[Any], BitOrder | None]:
    """Vectors as float32, or packed codes as bytes, and the bit order that codes have if it is known."""
    if codes is None:
        with np.errstate(over="ignore"):  # what does not fit becomes Inf, which the service refuses
            return to_host(as_matrix(vectors, "the service", "vectors")).astype("<f4", copy=False), None
    if isinstance(codes, Codes):
        return codes.to_packed("little"), "little"
    matrix = np.asarray(codes)
    if matrix.dtype != np.uint8 or matrix.ndim != 2:
        raise DataError(f"codes must be Codes or bytes, a row for each, got {matrix.dtype} of shape {matrix.shape}")
    return matrix, bitorder


def _as_field(matrix: npt.NDArray[Any]) -> dict[str, Any]:
    """Vectors or packed codes as a field of a JSON request."""
    if matrix.dtype != np.uint8:
        return {"vectors": matrix.tolist()}
    return {"codes": [base64.b64encode(code.tobytes()).decode("ascii") for code in matrix]}


def _as_list(ids: Any) -> Any:
    """A list of ids, also of one; None if there are none."""
    return None if ids is None else [ids] if isinstance(ids, str | int | uuid.UUID) else list(ids)


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
