"""The gate before every endpoint: who may come in, how many at once, and what every answer carries.

Plain ASGI, and the outermost layer, so that a request which is refused costs next to nothing: a service that is asked
for twice what it can do has to have its time left for the half it does.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from autojacobin.web.access import Access
from autojacobin.web.limits import Limits
from autojacobin.web.metrics import Metrics
from autojacobin.web.problems import MEDIA_TYPE, Problem, busy

__all__ = ["WORK_PATHS", "Gate"]

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]

WORK_PATHS = frozenset({"/v1/search", "/v1/encode"})
_COUNTED = WORK_PATHS | {"/explorer/ids", "/explorer/codes"}
_ENDPOINTS = WORK_PATHS | {"/v1/indexes", "/openapi.json", "/metrics", "/healthz", "/readyz", "/"}

_ALWAYS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# The page loads its own scripts, styles and pictures and nothing from elsewhere; an answer of the API loads nothing.
_PAGE_POLICY = b"default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
_PAGE_POLICY += b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_DATA_POLICY = b"default-src 'none'; frame-ancestors 'none'"


class Gate:
    """Middleware around the whole application.

    Parameters
    ----------
    app : ASGI application
        What is behind the gate.
    access : Access
        Who may come in.
    limits : Limits
        How many may be inside at once.
    metrics : Metrics
        Where each request is counted.
    """

    def __init__(self, app: Asgi, access: Access, limits: Limits, metrics: Metrics) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._metrics = metrics
        self.n_inside = 0

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, path, status = time.perf_counter(), scope["path"], 499  # 499: the other side hung up

        async def send_marked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_further_headers(message, path)]
            await send(message)

        counted = path in _COUNTED
        self.n_inside += counted
        try:
            self._check(scope, path, counted)
            await self._app(scope, receive, send_marked)
        except Problem as problem:
            await answer_with(problem, send_marked)
        finally:
            self.n_inside -= counted
            endpoint = path if path in _ENDPOINTS else "page" if path.startswith("/explorer/") else "other"
            self._metrics.request(endpoint, status, time.perf_counter() - start)

    def _check(self, scope: Any, path: str, counted: bool) -> None:
        self._access.check(path, dict(scope["headers"]))
        if counted and self.n_inside > self._limits.requests:
            raise busy(
                f"the service is busy, got {self._limits.requests} requests under way, as many as it takes; "
                "ask again after the time in Retry-After"
            )


async def answer_with(problem: Problem, send: Send) -> None:
    """Send a problem as the whole answer."""
    body = problem.body()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _further_headers(message: Message, path: str) -> list[tuple[bytes, bytes]]:
    present = {name for name, _ in message.get("headers", ())}
    page = path == "/" or path.startswith("/explorer")
    further = [*_ALWAYS, (b"content-security-policy", _PAGE_POLICY if page else _DATA_POLICY)]
    if not page:
        further.append((b"cache-control", b"no-store"))
    return [(name, value) for name, value in further if name not in present]
