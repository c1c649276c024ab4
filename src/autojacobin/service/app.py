"""The endpoints of the service as an ASGI application; it needs the extra ``web``, and the server imports it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import numpy.typing as npt
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from autojacobin.index.index import Index
from autojacobin.service import messages
from autojacobin.service.access import Access, Limits, is_write_path
from autojacobin.service.middleware import SecurityMiddleware, problem_app
from autojacobin.service.monitoring import MEDIA_TYPE, Metrics
from autojacobin.service.operations import DONE, Change, Operation, Worker
from autojacobin.service.requests import Requests, client_gone, read_body
from autojacobin.service.responses import JSON, RAW, SHAPE, Problem, Result, busy, hung_up
from autojacobin.service.served import ServedIndex, open_indexes

Pages = Callable[[Mapping[str, ServedIndex]], list[BaseRoute]]

WATCHER = "autojacobin-watcher"  # the name of the thread that warms indexes up and looks for new versions

_log = logging.getLogger("autojacobin.service")
_CHANGES: dict[str, Change] = {"POST": "add", "PUT": "upsert", "DELETE": "remove"}
_LARGEST_WRITTEN_HERE = 2**12  # numbers; a thread writes larger responses, so that other requests go on


class Service:
    """The search service, with the parameters of ``serve``; ``app`` is the ASGI application."""

    def __init__(
        self,
        indexes: Mapping[str, Index | str | os.PathLike[str]],
        access: Access,
        limits: Limits,
        poll_seconds: float = 1.0,
        pages: Pages | None = None,
        device: str = "cpu",
    ) -> None:
        self._served = open_indexes(indexes, limits, device)
        self._requests = Requests(self._served, limits)
        self._limits = limits
        self._poll_seconds = poll_seconds
        self._n_inside = 0
        self._ready, self._stopping = False, threading.Event()
        # one for each index that is written to, so that searches go on
        self._writers = {name: ThreadPoolExecutor(1, "autojacobin-writer") for name in self._served}
        self._writable = access.write_token is not None
        routes: list[BaseRoute] = [
            Route("/v1/search", self._search, methods=["POST"]),
            Route("/v1/encode", self._encode, methods=["POST"]),
            Route("/v1/{index}/vectors", self._write, methods=["POST", "PUT", "DELETE"]),
            Route("/v1/indexes", self._list_indexes, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/metrics", self._write_metrics, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
            Route("/readyz", self._readyz, methods=["GET"]),
            *(self._queued(route) for route in (pages(self._served) if pages is not None else [])),
        ]
        app = problem_app(routes, hint="see /openapi.json for what there is", lifespan=self._lifespan)
        self._metrics = Metrics(
            self._served, n_waiting=lambda: self._searches.waiting_vectors, n_inside=lambda: self._n_inside
        )
        self.app: ASGIApp = SecurityMiddleware(app, access, self._metrics.count_request)
        if access.origins:
            self.app = CORSMiddleware(
                self.app,
                allow_origins=access.origins,
                allow_methods=["GET", "POST", "PUT", "DELETE"],
                allow_headers=["Authorization", "Content-Type", SHAPE],
                expose_headers=[SHAPE, "Retry-After"],
            )

    def stop_waiting(self) -> None:
        """Stop warming up, so that a shutdown waits only for searches and writes."""
        self._stopping.set()
        self._ready = False

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        """Start the threads that search and that watch the folders; at the end, finish what was begun."""
        self._searches = Worker(self._limits, self._metrics.count_batch)
        threading.Thread(target=self._watch, name=WATCHER, daemon=True).start()
        try:
            yield
        finally:
            self.stop_waiting()
            await self._searches.close()
            for writer in self._writers.values():
                await asyncio.to_thread(writer.shutdown)

    def _watch(self) -> None:
        """Warm all indexes up, and then look for new versions from time to time."""
        while not self._stopping.is_set():
            try:
                for served in self._served.values():
                    (served.refresh if self._ready else served.warm)()
                self._ready = not self._stopping.is_set()
            except Exception:  # it may work the next time; until then, the versions in use stay
                _log.exception("warming the indexes or looking for new versions failed")
            self._stopping.wait(self._poll_seconds)

    def _check_room(self) -> None:
        most = self._limits.requests
        if self._n_inside >= most:
            detail = f"the service is busy, got {most} requests under way, its limit; try again after the time in "
            raise busy(detail + "Retry-After")

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Take a place among the requests that need an index, of which there is a limited number."""
        self._check_room()
        self._n_inside += 1
        try:
            yield
        finally:
            self._n_inside -= 1

    def _queued(self, route: Any) -> BaseRoute:
        """Let the requests of a page take places too."""
        app = route.app

        async def with_place(scope: Any, receive: Any, send: Any) -> None:
            with self._place():
                await app(scope, receive, send)

        route.app = with_place
        return route

    async def _search(self, request: Request) -> Response:
        body = await self._receive(request)
        with self._place():
            operation = self._requests.search(request, body)
            result = await self._run(operation, request.receive)
            return await _neighbours(operation.served.name, result, raw=_wants_raw(request))

    async def _encode(self, request: Request) -> Response:
        body = await self._receive(request)
        with self._place():
            operation, form = self._requests.encode(request, body)
            result = await self._run(operation, request.receive)
            return _codes(operation.served.name, result, form, raw=_wants_raw(request))

    async def _write(self, request: Request) -> Response:
        """Answer when the write is done, however long that takes: a client who repeats it would write twice."""
        if not is_write_path(request.scope["path"]):  # or nobody has checked the right to write
            raise Problem(404, "not-found", "there is nothing at this address; see /openapi.json")
        served, change = self._requests.find_index(request.path_params["index"]), _CHANGES[request.method]
        body = await self._receive(request)
        with self._place():
            write = self._requests.write(request, body, served, change)
            loop = asyncio.get_running_loop()
            written = await loop.run_in_executor(self._writers[served.name], write)
        self._metrics.count_write(served.name, change, getattr(written, DONE[change]))
        return _json(written)

    async def _receive(self, request: Request) -> bytes:
        """Read a body, if there is room. It takes its place afterwards, so that slow senders keep nobody out."""
        self._check_room()
        return await read_body(request, self._limits)

    async def _list_indexes(self, _: Request) -> Response:
        limits = {name: getattr(self._limits, name) for name in ("vectors", "k", "candidates", "work", "body_bytes")}
        figures = [messages.IndexFigures.of(served.name, served.index) for served in self._served.values()]
        return _json(messages.Indexes(figures, limits))

    async def _openapi(self, _: Request) -> Response:
        return _json(messages.openapi_document(self._served, self._limits, writable=self._writable))

    async def _write_metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), media_type=MEDIA_TYPE)

    async def _healthz(self, _: Request) -> Response:
        return _json({"status": "ok"})

    async def _readyz(self, _: Request) -> Response:
        if not self._ready:
            raise busy("the service is starting or stopping; try again after the time in Retry-After")
        return _json({"status": "ready"})

    async def _run(self, operation: Operation, receive: Any) -> Result:
        """Wait for a result, as long as the client does and the time allows."""
        found = self._searches.submit(operation)
        gone: asyncio.Future[Any] = asyncio.ensure_future(client_gone(receive))
        seconds = self._limits.request_seconds
        try:
            await asyncio.wait((found, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if found.done():
                return found.result()
            if gone.done():
                raise hung_up()
            raise busy(f"there was no answer within {seconds:g} s; ask for less, or try again")
        finally:
            gone.cancel()
            found.cancel()


def _wants_raw(request: Request) -> bool:
    """Whether the client takes raw bytes and does not take JSON."""
    accepted = request.headers.get("accept", "").lower()
    return RAW in accepted and JSON not in accepted


async def _neighbours(name: str, result: Result, *, raw: bool) -> Response:
    """Write neighbours. Only integer ids without columns can be raw."""
    distances, ids = result.arrays
    if raw and ids.dtype != object and result.payload is None:
        return _raw(ids.shape, distances.astype("<f8", copy=False), ids.astype("<i8", copy=False))
    if result.payload is None and ids.size <= _LARGEST_WRITTEN_HERE:
        return _json(messages.Neighbours.of(name, result))
    return await asyncio.to_thread(lambda: _json(messages.Neighbours.of(name, result)))


def _codes(name: str, result: Result, form: messages.EncodeOptions, *, raw: bool) -> Response:
    [codes] = result.arrays
    packed = codes.to_packed(form.bitorder)
    if raw:
        return _raw((len(codes), codes.n_bits), packed)
    return _json(messages.Encoded(name, result.generation, codes.n_bits, [row.tobytes() for row in packed]))


def _raw(shape: tuple[int, ...], *arrays: npt.NDArray[Any]) -> Response:
    headers = {SHAPE: ",".join(map(str, shape))}
    return Response(b"".join(array.tobytes() for array in arrays), media_type=RAW, headers=headers)


def _json(content: Any) -> Response:
    return Response(messages.as_json(content), media_type=JSON)
