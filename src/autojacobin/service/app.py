"""The endpoints of the service as an ASGI application; it needs the extra ``web``, and the server imports it."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from autojacobin.codes import Codes
from autojacobin.errors import DataError, MissingExtraError
from autojacobin.hashers import OwnCodes
from autojacobin.index.index import Index
from autojacobin.search.distances import distances_of
from autojacobin.service.access import Access, Limits, is_write_path
from autojacobin.service.background import BackgroundThread
from autojacobin.service.messages import (
    Encoded,
    EncodeOptions,
    Indexes,
    IndexFigures,
    Neighbours,
    as_json,
    openapi_document,
)
from autojacobin.service.middleware import Asgi, MetricsMiddleware, QueueMiddleware, SecurityMiddleware, problem_app
from autojacobin.service.monitoring import MEDIA_TYPE, Metrics
from autojacobin.service.operations import Batcher, Operation, run_batch
from autojacobin.service.requests import ClientGone, Received, Requests, client_gone, read_body
from autojacobin.service.responses import (
    GENERATION,
    JSON,
    RAW,
    SHAPE,
    Problem,
    Result,
    busy,
    invalid,
    raw_headers,
    wants_raw,
)
from autojacobin.service.served import IndexRegistry
from autojacobin.service.writes import Writer

__all__ = ["Pages", "Service"]

Pages = Callable[[Mapping[str, Index]], list[BaseRoute]]

_log = logging.getLogger("autojacobin.service")
_LARGEST_WRITTEN_HERE = 2**12  # numbers; a thread writes larger responses, so that other requests go on


class Service:
    """The search service. ``app`` is the ASGI application; a server that shuts down calls ``stop_waiting``.

    The parameters are those of :func:`autojacobin.service.serve`.
    """

    def __init__(
        self,
        indexes: Mapping[str, Index | str | os.PathLike[str]],
        access: Access,
        limits: Limits,
        poll_seconds: float,
        pages: Pages | None = None,
    ) -> None:
        self._registry = IndexRegistry(indexes, limits)
        self._requests = Requests(self._registry, limits)
        self._limits = limits
        self._poll_seconds = poll_seconds
        self._batcher: Batcher | None = None
        self._watcher = BackgroundThread("autojacobin-watcher")
        self._ready = False
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
            *(pages(self._registry) if pages is not None else []),
        ]
        app = problem_app(routes, hint="see /openapi.json for what there is", lifespan=self._lifespan)
        queue = QueueMiddleware(app, limits)
        self._metrics = Metrics(
            self._registry,
            n_waiting=lambda: 0 if self._batcher is None else self._batcher.waiting_vectors,
            n_inside=lambda: queue.n_inside,
        )
        self._writer = Writer(self._metrics.count_write)
        self.app = _with_cors(MetricsMiddleware(SecurityMiddleware(queue, access), self._metrics), access)

    def stop_waiting(self) -> None:
        """Stop warming up, so that a shutdown waits only for searches."""
        self._ready = False
        self._watcher.close()

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        """Start the thread that searches and the task that watches the folders; at the end, finish what was begun."""
        self._batcher = Batcher(partial(run_batch, limits=self._limits), self._limits, self._metrics.count_batch)
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self.stop_waiting()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await asyncio.to_thread(self._batcher.close)

    async def _watch(self) -> None:
        while True:
            try:
                await self._watcher.run(self._registry.refresh if self._ready else self._registry.warm)
                self._ready = True
            except Exception:  # it may work the next time; until then, the versions in use stay
                _log.exception("warming the indexes or looking for new versions failed")
            await asyncio.sleep(self._poll_seconds)

    async def _search(self, request: Request) -> Response:
        try:
            received = await self._receive(request)
            operation = self._requests.search(received)
            result = await self._run(operation, request.receive)
        except ClientGone:
            return Response(status_code=499)  # nobody sees it, but it is counted
        return await _neighbours(operation.served.name, result, raw=wants_raw(received.headers))

    async def _encode(self, request: Request) -> Response:
        try:
            received = await self._receive(request)
            operation, form = self._requests.encode(received)
            result = await self._run(operation, request.receive)
        except ClientGone:
            return Response(status_code=499)
        return _codes(operation.served.name, result, form, raw=wants_raw(received.headers))

    async def _write(self, request: Request) -> Response:
        if not is_write_path(request.scope["path"]):  # or nobody has checked the right to write
            raise Problem(404, "not-found", "there is nothing at this address; see /openapi.json")
        served = self._requests.find_index(request.path_params["index"])
        try:
            received = await self._receive(request)
        except ClientGone:
            return Response(status_code=499)
        if request.method == "POST":
            return _json(await self._writer.add(served, *self._requests.add(received, served)))
        if request.method == "PUT":
            return _json(await self._writer.upsert(served, *self._requests.upsert(received, served)))
        return _json(await self._writer.remove(served, self._requests.remove(received, served)))

    async def _receive(self, request: Request) -> Received:
        headers = dict(request.scope["headers"])
        return Received(await read_body(request.receive, headers, self._limits), headers, request.scope["query_string"])

    async def _list_indexes(self, _: Request) -> Response:
        limits = {name: getattr(self._limits, name) for name in ("vectors", "k", "candidates", "work", "body_bytes")}
        return _json(Indexes([_figures(name, index) for name, index in self._registry.items()], limits))

    async def _openapi(self, _: Request) -> Response:
        return _json(openapi_document(self._registry, self._limits, writable=self._writable))

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
        if self._batcher is None:
            raise busy("the service has not been started; run it with a server that knows the lifespan protocol")
        job = self._batcher.submit(operation)
        gone: asyncio.Future[Any] = asyncio.ensure_future(client_gone(receive))
        seconds = self._limits.request_seconds
        try:
            await asyncio.wait((job.future, gone), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if job.future.done():
                return job.future.result()
            if gone.done():
                raise ClientGone
            raise busy(f"there was no answer within {seconds:g} s; ask for less, or try again")
        except (DataError, MissingExtraError) as error:
            raise invalid(str(error)) from error
        finally:
            gone.cancel()
            self._batcher.drop(job)


def _figures(name: str, index: Index) -> IndexFigures:
    figures, hasher = index.info(), index.hasher
    shown = {key: value for key, value in figures.items() if key in IndexFigures.__struct_fields__}
    distances = {name: distance.summary for name, distance in distances_of(hasher).items()}
    bitorder = hasher.bitorder if isinstance(hasher, OwnCodes) else None
    return IndexFigures(name=name, **shown, trained_as=hasher.trained_as, bitorder=bitorder, distances=distances)


async def _neighbours(name: str, result: Result, *, raw: bool) -> Response:
    """Write neighbours. Only integer ids without columns can be raw."""
    distances, ids = result.arrays
    if raw and ids.dtype != object and result.payload is None:
        body = distances.astype("<f8", copy=False).tobytes() + ids.astype("<i8", copy=False).tobytes()
        return Response(body, media_type=RAW, headers=raw_headers(result, ids.shape))
    if result.payload is None and ids.size <= _LARGEST_WRITTEN_HERE:
        return _json(Neighbours.of(name, result))
    return Response(await asyncio.to_thread(lambda: as_json(Neighbours.of(name, result))), media_type=JSON)


def _codes(name: str, result: Result, form: EncodeOptions, *, raw: bool) -> Response:
    packed = Codes(result.arrays[0], result.n_bits).to_packed(form.bitorder)
    if raw:
        return Response(packed.tobytes(), media_type=RAW, headers=raw_headers(result, (len(packed), result.n_bits)))
    write = bytes.hex if form.encoding == "hex" else (lambda code: base64.b64encode(code).decode("ascii"))
    codes = [write(row.tobytes()) for row in packed]
    return _json(Encoded(name, result.generation, result.n_bits, form.encoding, codes))


def _json(content: Any) -> Response:
    return Response(as_json(content), media_type=JSON)


def _with_cors(app: Asgi, access: Access) -> Asgi:
    if not access.origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=access.origins,
        allow_methods=["GET", "POST", "PUT", "DELETE"],
        allow_headers=["Authorization", "Content-Type", SHAPE],
        expose_headers=[SHAPE, GENERATION, "Retry-After"],
    )
