"""Clients of the service: ``Client`` needs only the standard library and NumPy, ``AsyncClient`` needs httpx."""

from __future__ import annotations

import asyncio
import http.client
import time
from typing import Any
from urllib.parse import SplitResult

from autojacobin.errors import import_extra
from autojacobin.service.calls import Call, Calls, pause_before_next


class Client(Calls):
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
    """

    def _connect(self, parts: SplitResult, timeout: float) -> None:
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(str(parts.hostname), parts.port, timeout=timeout)
        self._prefix = parts.path.rstrip("/")

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, call: Call) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            status, headers, content = self._exchange(call)
            pause = pause_before_next(status, headers, deadline - time.monotonic())
            if pause is None:
                return self._read(call, status, headers, content)
            time.sleep(pause)

    def _exchange(self, call: Call) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a request and read the response; send it again if the service had closed the open connection."""
        if not call.repeatable:
            self._connection.close()  # a new connection cannot have been closed meanwhile
        kept_open = self._connection.sock is not None
        path, headers = self._prefix + call.path, {**self._headers, **call.headers}
        try:
            self._connection.request(call.method, path, call.body, headers)
            response = self._connection.getresponse()
            return response.status, response.headers, response.read()
        except (http.client.HTTPException, OSError) as error:
            self._connection.close()
            lost = isinstance(error, ConnectionError | http.client.RemoteDisconnected)
            if kept_open and lost:
                return self._exchange(call)
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._unreachable(reason) from error


class AsyncClient(Calls):
    """A client of a running service for asyncio; many requests can be under way at once. It needs httpx.

    The parameters and the methods are those of :class:`Client`; the methods are awaited.
    """

    def _connect(self, _: SplitResult, timeout: float) -> None:
        httpx = import_extra("httpx", "client", "the async client")
        self._failures: type[Exception] = httpx.TransportError
        self._lost = httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError
        self._connections = httpx.AsyncClient(headers=self._headers, timeout=timeout)

    async def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        await self._connections.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, call: Call) -> Any:
        deadline = time.monotonic() + self._patience
        while True:
            response = await self._exchange(call, again=call.repeatable)
            status, headers = response.status_code, response.headers
            pause = pause_before_next(status, headers, deadline - time.monotonic())
            if pause is None:
                return self._read(call, status, headers, response.content)
            await asyncio.sleep(pause)

    async def _exchange(self, call: Call, *, again: bool) -> Any:
        """Send a request; send it again if the connection was lost, unless that could write twice."""
        address = self._address.rstrip("/") + call.path
        try:
            return await self._connections.request(call.method, address, content=call.body, headers=call.headers)
        except self._failures as error:
            if again and isinstance(error, self._lost):
                return await self._exchange(call, again=False)
            raise self._unreachable(str(error) or type(error).__name__) from error
