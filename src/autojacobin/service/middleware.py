"""Access, security headers, problems and metrics of a server: plain ASGI, so that a refusal costs almost no time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autojacobin.errors import DataError, IdExistsError, MissingExtraError, UnknownIdError
from autojacobin.service.access import Access, is_write_path
from autojacobin.service.responses import PROBLEM, SHAPE, Problem

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Send

_ENDPOINTS = {"/v1/search", "/v1/encode", "/v1/indexes", "/openapi.json", "/metrics", "/healthz", "/readyz", "/"}

# What decides about access or about how a body is read. h11 checks Host and Content-Length.
_GIVEN_ONCE = (
    b"authorization", b"content-type", b"content-encoding", b"transfer-encoding", b"expect", SHAPE.lower().encode(),
)  # fmt: skip

# Set on every response that does not set them itself. They suit data, which load nothing and must not be cached.
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
)

_PROBLEMS: dict[type, tuple[int, str]] = {UnknownIdError: (404, "unknown-id"), IdExistsError: (409, "id-exists")}


def page_policy(script_hash: str = "") -> str:
    """Give the Content-Security-Policy of a page: its own files alone, and one inline script with this hash."""
    scripts = f"script-src 'self' {script_hash}; " if script_hash else ""
    return (
        f"default-src 'self'; {scripts}img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


class SecurityMiddleware:
    """Refuses requests without access, sets headers, answers a ``Problem``, and calls ``count`` for each response."""

    def __init__(self, app: ASGIApp, access: Access, count: Callable[[str, int, float], None] | None = None) -> None:
        self._app = app
        self._access = access
        self._count = count

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, path, status = time.perf_counter(), scope["path"], 499  # 499: the client hung up

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, headers = message["status"], list(message.get("headers", ()))
                present = {name.lower() for name, _ in headers}
                message["headers"] = headers + [header for header in _HEADERS if header[0] not in present]
            await send(message)

        try:
            if not path.isprintable():  # a route would match "/v1/search\n", where checks of the path do not
                raise Problem(404, "not-found", f"there is nothing at {path[:80]!r}; look at the address")
            _check_head([name for name, _ in scope["headers"]])
            self._access.check(path, dict(scope["headers"]))
            await self._app(scope, receive, send_safely)
        except Problem as problem:
            await _response(problem)(scope, receive, send_safely)
        finally:
            if self._count is not None:
                self._count(_endpoint(path), status, time.perf_counter() - start)


def _check_head(names: list[bytes]) -> None:
    """Refuse a head that a proxy may read in another way than this service."""
    if b"content-length" in names and b"transfer-encoding" in names:
        detail = "a body has either a Content-Length or a Transfer-Encoding, got both; leave out one of them"
    elif twice := [name for name in _GIVEN_ONCE if names.count(name) > 1]:
        detail = f"the header {twice[0].decode().title()} must be given once, got it twice; leave out one of them"
    else:
        return
    raise Problem(400, "ambiguous-head", detail, {"Connection": "close"})


def _endpoint(path: str) -> str:
    if path in _ENDPOINTS:
        return path
    if is_write_path(path):
        return "/v1/{index}/vectors"
    return "page" if path.startswith("/explorer/") else "other"


def problem_app(routes: Sequence[BaseRoute], *, hint: str, lifespan: Callable[[Any], Any] | None = None) -> ASGIApp:
    """Make a Starlette application that answers errors with problem+json; ``hint`` ends that of an unknown path."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException

    async def answer(request: Request, error: Any) -> Response:
        path = request.scope["path"][:80]
        if isinstance(error, HTTPException) and error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            detail = f"{path} does not accept {request.method[:20]}, expected {allowed}; {hint}"
            error = Problem(405, "method-not-allowed", detail, error.headers)
        elif isinstance(error, HTTPException):
            error = Problem(404, "not-found", f"there is nothing at {path!r}; {hint}")
        elif isinstance(error, DataError | MissingExtraError):
            error = Problem(*_PROBLEMS.get(type(error), (400, "invalid-request")), str(error))
        elif not isinstance(error, Problem):  # Starlette raises it again, for the log
            detail = "the service failed, and its log says why; try again, and report it if it happens again"
            error = Problem(500, "internal", detail)
        return _response(error)

    handlers: Any = dict.fromkeys((Problem, HTTPException, DataError, MissingExtraError, Exception), answer)
    app = Starlette(routes=list(routes), exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False  # to an address that a proxy before the service may not have
    return app


def _response(problem: Problem) -> Response:
    from starlette.responses import Response

    return Response(problem.body(), problem.status, media_type=PROBLEM, headers=problem.headers)
