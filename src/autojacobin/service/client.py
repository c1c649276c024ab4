"""Clients of the service: ``Client`` needs only the standard library and NumPy, ``AsyncClient`` needs httpx."""

from __future__ import annotations

import asyncio
import functools
import http.client
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import SplitResult, urlsplit

from autojacobin.core.addresses import redacted_address
from autojacobin.errors import DataError, StorageError, import_extra
from autojacobin.service import calls
from autojacobin.service.access import Access
from autojacobin.service.calls import Call, pause_before_next, read_answer

P = ParamSpec("P")
T = TypeVar("T")


def _sending(make: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """Make a method of the plain client from a function that makes calls."""

    @functools.wraps(make)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._send(make(*args, **kwargs))

    return method


def _awaiting(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    """Make a method of the async client from a function that makes calls."""

    @functools.wraps(make)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._send(make(*args, **kwargs))

    return method


class Client:
    """A client of a running service, for one thread; it keeps one connection open.

    Parameters
    ----------
    address : str
        Such as ``http://127.0.0.1:8571``.
    token : str, optional
        Where the service requires one; the token for writing also allows to read.
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
        self._address = address
        self._prefix = parts.path.rstrip("/")
        self._patience = patience
        self._headers = _token_headers(token)
        if parts.scheme == "https":
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                str(parts.hostname), port, timeout=timeout, context=ssl.create_default_context()
            )
        else:
            self._connection = http.client.HTTPConnection(str(parts.hostname), port, timeout=timeout)

    search = _sending(calls.search)
    encode = _sending(calls.encode)
    indexes = _sending(calls.indexes)
    add = _sending(calls.add)
    upsert = _sending(calls.upsert)
    remove = _sending(calls.remove)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call[T]) -> T:
        deadline = time.monotonic() + self._patience
        while True:
            status, headers, content = self._exchange(call)
            pause = pause_before_next(status, headers, deadline - time.monotonic())
            if pause is None:
                return read_answer(call, status, headers, content, self._address)
            time.sleep(pause)

    def _exchange(self, call: Call[T]) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request and read the response; send it again if the service had closed the open connection."""
        if not call.repeatable:
            self._connection.close()  # a new connection cannot have been closed meanwhile
        kept_open = self._connection.sock is not None
        headers = {"Accept": "*/*", **self._headers, **call.headers}
        try:
            self._connection.request(call.method, self._prefix + call.path, call.body, headers)
            response = self._connection.getresponse()
            return response.status, response.headers, response.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            lost = isinstance(error, ConnectionError | http.client.RemoteDisconnected)
            if kept_open and lost:
                return self._exchange(call)
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise _unreachable(self._address, reason) from error


class AsyncClient:
    """A client of a running service for asyncio; many requests can be under way at once. It needs httpx.

    The parameters and the methods are those of :class:`Client`; the methods are awaited.

    Examples
    --------
    >>> from autojacobin.service import AsyncClient
    >>> async def neighbours(queries):
    ...     async with AsyncClient("http://127.0.0.1:8571") as client:
    ...         return await client.search(queries, k=10)
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8571",
        *,
        token: str | None = None,
        timeout: float = 30.0,
        patience: float = 0.0,
    ) -> None:
        httpx = import_extra("httpx", "client", "the async client")
        _split(address)
        self._address = address
        self._patience = patience
        self._failures: type[Exception] = httpx.TransportError
        self._lost = httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError
        self._connections = httpx.AsyncClient(headers=_token_headers(token), timeout=timeout)

    search = _awaiting(calls.search)
    encode = _awaiting(calls.encode)
    indexes = _awaiting(calls.indexes)
    add = _awaiting(calls.add)
    upsert = _awaiting(calls.upsert)
    remove = _awaiting(calls.remove)

    async def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        await self._connections.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call[T]) -> T:
        deadline = time.monotonic() + self._patience
        while True:
            response = await self._exchange(call, again=call.repeatable)
            status, headers = response.status_code, response.headers
            pause = pause_before_next(status, headers, deadline - time.monotonic())
            if pause is None:
                return read_answer(call, status, headers, response.content, self._address)
            await asyncio.sleep(pause)

    async def _exchange(self, call: Call[T], *, again: bool) -> Any:
        """Send a request; send it again if the connection was lost, unless that could write twice."""
        address = self._address.rstrip("/") + call.path
        try:
            return await self._connections.request(call.method, address, content=call.body, headers=call.headers)
        except self._failures as error:
            if again and isinstance(error, self._lost):
                return await self._exchange(call, again=False)
            raise _unreachable(self._address, str(error) or type(error).__name__) from error


def _token_headers(token: str | None) -> dict[str, str]:
    if token is None:
        return {}
    Access(token)  # raises if no service can have this token
    return {"Authorization": f"Bearer {token}"}


def _unreachable(address: str, reason: str) -> StorageError:
    return StorageError(
        f"the service at {redacted_address(address)} cannot be reached: {reason}; "
        "start it with: autojacobin serve INDEX"
    )


def _split(address: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") and parts.hostname:
            return parts, parts.port
    except ValueError:  # for a port that is not a number, or brackets without an address
        pass
    raise DataError(f"an address must look like http://127.0.0.1:8571, got {redacted_address(address)!r}")
