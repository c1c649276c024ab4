"""A client of the service, which needs only the standard library and NumPy."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.addresses import redacted_address
from autojacobin.errors import AutoJacobinError, DataError, StorageError
from autojacobin.service.access import Access
from autojacobin.service.responses import JSON, RAW, SHAPE

__all__ = ["Client", "ServiceError"]

_LONGEST_PAUSE = 30.0


class ServiceError(AutoJacobinError):
    """The service refused a request; ``status`` is the HTTP status, and ``kind`` the short name of the problem."""

    def __init__(self, detail: str, status: int, kind: str = "") -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind


class Client:
    """A client of a running service, for one thread; it keeps one connection open.

    Parameters
    ----------
    address : str
        Such as ``http://127.0.0.1:8571``.
    token : str, optional
        Where the service requires one.
    timeout : float
        Seconds without a byte from the service after which a request fails.
    patience : float
        Seconds during which a request is sent again if the service is busy; with 0 it fails at once.

    Examples
    --------
    >>> from autojacobin.service import Client
    >>> with Client("http://127.0.0.1:8571") as client:  # doctest: +SKIP
    ...     distances, ids = client.search(queries, k=10)
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8571",
        *,
        token: str | None = None,
        timeout: float = 30.0,
        patience: float = 0.0,
    ) -> None:
        parts, port = _split(address)
        if token is not None:
            Access(token)  # raises if no service can have this token
        self._address = address
        self._prefix = parts.path.rstrip("/")
        self._patience = patience
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if parts.scheme == "https":
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                str(parts.hostname), port, timeout=timeout, context=ssl.create_default_context()
            )
        else:
            self._connection = http.client.HTTPConnection(str(parts.hostname), port, timeout=timeout)

    def search(
        self,
        vectors: npt.ArrayLike | None = None,
        k: int = 10,
        *,
        ids: npt.ArrayLike | None = None,
        index: str | None = None,
        candidates: int | None = None,
        distance: str | None = None,
        rerank: bool | None = None,
        recall: float | None = None,
        probes: int | None = None,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Find the ``k`` nearest vectors of each query, given as ``vectors`` or as ``ids`` in the index.

        Parameters
        ----------
        vectors : matrix of shape (n_queries, n_features), optional
            Queries; sent as float32.
        k : int
            Neighbours per query.
        ids : array of int, optional
            Search for the neighbours of these, instead of ``vectors``.
        index : str, optional
            Name of the index, where several are served.
        candidates, distance, rerank, recall, probes
            As in ``Index.search``, with the same defaults.

        Returns
        -------
        distances, ids : arrays of shape (n_queries, k)
            In order of distance; equal distances in order of id.
        """
        if (vectors is None) == (ids is None):
            raise DataError("a search is for vectors or for ids, got both or neither; pass exactly one of them")
        options = _without_none(
            index=index, k=k, candidates=candidates, distance=distance, rerank=rerank, recall=recall, probes=probes
        )
        if vectors is None:
            body = json.dumps({**options, "ids": np.atleast_1d(np.asarray(ids)).tolist()}).encode()
            content, headers = self._ask("POST", "/v1/search", body, {"Content-Type": JSON, "Accept": RAW})
        else:
            content, headers = self._ask_raw(_with_query("/v1/search", options), vectors)
        shape = _shape(headers)
        middle = 8 * shape[0] * shape[1]
        if len(content) != 2 * middle:
            raise _not_a_service(self._address)
        distances = np.frombuffer(content[:middle], dtype="<f8").reshape(shape).astype(np.float64)
        return distances, np.frombuffer(content[middle:], dtype="<i8").reshape(shape).astype(np.int64)

    def encode(self, vectors: npt.ArrayLike, *, index: str | None = None) -> Codes:
        """Give the codes of some vectors."""
        content, headers = self._ask_raw(_with_query("/v1/encode", _without_none(index=index)), vectors)
        n, n_bits = _shape(headers)
        if not n_bits or len(content) != n * -(-n_bits // 8):
            raise _not_a_service(self._address)
        return Codes(np.frombuffer(content, dtype=np.uint8).reshape(n, -(-n_bits // 8)), n_bits)

    def indexes(self) -> list[dict[str, Any]]:
        """List what is served: name, vectors, hasher, bits, features, vectors_kept, generation, distances of each."""
        content, _ = self._ask("GET", "/v1/indexes")
        try:
            found: list[dict[str, Any]] = json.loads(content)["indexes"]
        except (ValueError, KeyError, TypeError):
            raise _not_a_service(self._address) from None
        return found

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _ask_raw(self, path: str, vectors: npt.ArrayLike) -> tuple[bytes, http.client.HTTPMessage]:
        matrix = _floats(vectors)
        headers = {"Content-Type": RAW, "Accept": RAW, SHAPE: f"{matrix.shape[0]},{matrix.shape[1]}"}
        return self._ask("POST", path, matrix.tobytes(), headers)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[bytes, http.client.HTTPMessage]:
        deadline = time.monotonic() + self._patience
        while True:
            sent = {"Accept": "*/*", **self._headers, **(headers or {})}
            status, found, content = self._exchange(method, self._prefix + path, body, sent)
            if status == 200:
                return content, found
            pause = _pause(found.get("Retry-After", ""))
            if status != 503 or time.monotonic() + pause > deadline:
                raise _refusal(status, content, self._address)
            time.sleep(pause)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request and read the response; send it again if the service had closed the open connection."""
        kept_open = self._connection.sock is not None
        try:
            self._connection.request(method, path, body, headers)
            response = self._connection.getresponse()
            return response.status, response.headers, response.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            lost = isinstance(error, ConnectionError | http.client.RemoteDisconnected)
            if kept_open and lost:  # a request changes nothing, so it can be sent again
                return self._exchange(method, path, body, headers)
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StorageError(
                f"the service at {redacted_address(self._address)} cannot be reached: {reason}; "
                "start it with: autojacobin serve INDEX"
            ) from error


def _split(address: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts, parts.port
    except ValueError:  # for a port that is not a number, or brackets without an address
        pass
    raise DataError(f"an address must look like http://127.0.0.1:8571, got {redacted_address(address)!r}")


def _pause(retry_after: str) -> float:
    """Seconds to wait; a proxy may also name a date, or nothing."""
    return min(float(retry_after), _LONGEST_PAUSE) if retry_after.isascii() and retry_after.isdigit() else 1.0


def _floats(vectors: npt.ArrayLike) -> npt.NDArray[np.float32]:
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


def _without_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _with_query(path: str, options: dict[str, Any]) -> str:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in options.items()}
    return f"{path}?{urlencode(words)}" if words else path


def _shape(headers: http.client.HTTPMessage) -> tuple[int, int]:
    rows, _, columns = headers.get(SHAPE, "").partition(",")
    if not (rows.isdigit() and columns.isdigit()):
        raise _not_a_service("this address")
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


def _not_a_service(address: str) -> ServiceError:
    return ServiceError(
        f"{redacted_address(address)} answered what no service of autojacobin would; check the address", 200
    )
