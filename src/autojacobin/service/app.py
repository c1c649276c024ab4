"""The endpoints of the service, put together as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from autojacobin.errors import DataError, MissingExtraError
from autojacobin.index.index import Index
from autojacobin.service import metrics as counting
from autojacobin.service.access import Access, Limits
from autojacobin.service.middleware import Asgi, MetricsMiddleware, QueueMiddleware, SecurityMiddleware, problem_app
from autojacobin.service.openapi import document
from autojacobin.service.operations import Answer, Batcher, Searching, Work, run_together
from autojacobin.service.problems import Problem, busy
from autojacobin.service.recalls import BackgroundThread, Recalls
from autojacobin.service.registry import IndexRegistry
from autojacobin.service.requests import (
    ClientGone,
    check_cost,
    client_gone,
    read_body,
    read_encode_request,
    read_search_request,
)
from autojacobin.service.responses import GENERATION, SHAPE, codes_response, neighbours_response, wants_raw

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import BaseRoute

__all__ = ["Pages", "create_app"]

Pages = Callable[[Mapping[str, Index]], "list[BaseRoute]"]

_log = logging.getLogger("autojacobin.service")
_NUMBERS_WRITTEN_AT_ONCE = 2**12  # a larger answer is written aside, while other requests go on


def create_app(
    indexes: Mapping[str, Index | str | os.PathLike[str]],
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    poll_seconds: float = 1.0,
    pages: Pages | None = None,
) -> Asgi:
    """Make the service as an ASGI application, for a server of one's own; :func:`serve` runs it with uvicorn.

    Parameters
    ----------
    indexes : mapping
        For each name an index, or the folder of one. Folders are watched, and their new versions picked up.
    access : Access, optional
        Who may ask; by default whoever reaches this machine by its own name.
    limits : Limits, optional
        How much may be asked.
    poll_seconds : float
        How often folders are looked at.
    pages : callable, optional
        Gives further routes for the served indexes, such as :func:`autojacobin.explorer.explorer_routes`.
    """
    return Service(indexes, access or Access(), limits or Limits(), poll_seconds, pages).app


class Service:
    """The search service. ``app`` is the ASGI application; a server that shuts down calls ``stop_waiting``."""

    def __init__(
        self,
        indexes: Mapping[str, Index | str | os.PathLike[str]],
        access: Access,
        limits: Limits,
        poll_seconds: float,
        pages: Pages | None = None,
    ) -> None:
        self._pages = pages
        self.registry = IndexRegistry(indexes, limits)
        self.limits = limits
        self.metrics = counting.Metrics()
        self._poll_seconds = poll_seconds
        self._batcher: Batcher | None = None
        self._recalls = Recalls()
        self._watcher = BackgroundThread("autojacobin-watcher")
        self._ready = False
        inner = problem_app(self.routes(), hint="see /openapi.json for what there is", lifespan=self.lifespan)
        self._queue = QueueMiddleware(inner, limits)
        self.app = _with_cors(MetricsMiddleware(SecurityMiddleware(self._queue, access), self.metrics), access)

    def stop_waiting(self) -> None:
        """Give up learning and warming up, so that a shutdown waits for nothing but searches."""
        self._ready = False
        self._recalls.close()
        self._watcher.close()

    def routes(self) -> list[BaseRoute]:
        try:
            from starlette.routing import Route
        except ImportError as error:
            raise MissingExtraError("starlette", "web", "the search service") from error
        found: list[BaseRoute] = [
            Route("/v1/search", self.search, methods=["POST"]),
            Route("/v1/encode", self.encode, methods=["POST"]),
            Route("/v1/indexes", self.indexes, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
            Route("/metrics", self.count, methods=["GET"]),
            Route("/healthz", self.healthy, methods=["GET"]),
            Route("/readyz", self.ready, methods=["GET"]),
        ]
        return found + (self._pages(self.registry) if self._pages is not None else [])

    @asynccontextmanager
    async def lifespan(self, _: Any) -> AsyncIterator[None]:
        """Begin with the thread that searches and the task that watches; at the end, finish what was begun."""
        self._batcher = Batcher(run_together, self.limits, self.metrics.batch)
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
                await self._watcher.run(self.registry.refresh if self._ready else self.registry.warm)
                self._ready = True
            except Exception:  # what fails once may work the next time, and until then all stays as it is
                _log.exception("warming the indexes or looking for new versions failed")
            await asyncio.sleep(self._poll_seconds)

    # Endpoints

    async def search(self, request: Request) -> Response:
        headers = dict(request.scope["headers"])
        try:
            body = await read_body(request.receive, headers, self.limits)
            work = read_search_request(body, headers, request.scope["query_string"], self.registry, self.limits)
            if work.options.recall is not None:
                work = await self._aimed(work, work.options.recall)
            answer = await self._answer(work, request.receive)
        except ClientGone:
            return _nothing()
        write = partial(neighbours_response, work.served.name, answer, raw=wants_raw(headers))
        return await _written(write, answer)

    async def encode(self, request: Request) -> Response:
        headers = dict(request.scope["headers"])
        try:
            body = await read_body(request.receive, headers, self.limits)
            work, encoding = read_encode_request(
                body, headers, request.scope["query_string"], self.registry, self.limits
            )
            answer = await self._answer(work, request.receive)
        except ClientGone:
            return _nothing()
        write = partial(codes_response, work.served.name, answer, encoding, raw=wants_raw(headers))
        return await _written(write, answer)

    async def indexes(self, _: Request) -> Response:
        described = [{"name": name, **_figures(index)} for name, index in self.registry.items()]
        limits = {name: getattr(self.limits, name) for name in ("vectors", "k", "candidates", "work", "body_bytes")}
        return _json({"indexes": described, "limits": limits})

    async def openapi(self, _: Request) -> Response:
        return _json(document(self.registry, self.limits))

    async def count(self, _: Request) -> Response:
        from starlette.responses import Response

        return Response(self.metrics.text(self._samples()), media_type=counting.MEDIA_TYPE)

    async def healthy(self, _: Request) -> Response:
        return _json({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        if not self._ready:
            raise busy("the service is starting or stopping; ask again after the time in Retry-After")
        return _json({"status": "ready"})

    # How it is done

    async def _aimed(self, work: Searching, recall: float) -> Searching:
        """Put the candidates that a recall takes in its place."""
        options, limit = work.options, self.limits.candidates
        try:
            candidates = await self._recalls.candidates(
                work.served, options.k, recall, options.distance, self.limits.request_seconds
            )
        except DataError as error:
            raise Problem(400, "invalid-request", str(error)) from error
        if candidates > limit:
            detail = f"a recall of {recall:g} takes {candidates} candidates here, expected at most {limit}, the limit "
            raise Problem(400, "invalid-request", detail + "of this service; ask for a lower recall or a smaller k")
        aimed = replace(options, candidates=candidates, recall=None)
        return check_cost(replace(work, options=aimed), self.limits)

    async def _answer(self, work: Work, receive: Any) -> Answer:
        """Wait for an answer, as long as the other side does and the time allows."""
        if self._batcher is None:
            raise busy("the service has not been started; run it with a server that knows the lifespan protocol")
        job = self._batcher.submit(work)
        listener: asyncio.Future[Any] = asyncio.ensure_future(client_gone(receive))
        try:
            await asyncio.wait(
                (job.future, listener), timeout=self.limits.request_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if job.future.done():
                return job.future.result()
            if listener.done():
                raise ClientGone
            raise busy(f"there was no answer within {self.limits.request_seconds:g} s; ask for less, or ask again")
        except DataError as error:
            raise Problem(400, "invalid-request", str(error)) from error
        finally:
            listener.cancel()
            self._batcher.drop(job)

    def _samples(self) -> list[counting.Sample]:
        waiting = self._batcher.waiting_vectors if self._batcher is not None else 0
        samples: list[counting.Sample] = [
            ("autojacobin_waiting_vectors", "gauge", "Vectors that wait for their turn.", (), waiting),
            (
                "autojacobin_requests_inside",
                "gauge",
                "Requests under way that need an index.",
                (),
                self._queue.n_inside,
            ),
        ]
        indexes = [((("index", name),), served) for name, served in self.registry.served.items()]
        samples += [
            ("autojacobin_index_vectors", "gauge", "Vectors in an index.", labels, len(served.index))
            for labels, served in indexes
        ]
        samples += [
            ("autojacobin_index_generation", "gauge", "State of an index.", labels, generation)
            for labels, served in indexes
            if (generation := served.index.info()["generation"]) is not None
        ]
        samples += [
            ("autojacobin_index_refreshes_total", "counter", "New versions picked up.", labels, served.refreshes)
            for labels, served in indexes
        ]
        name, what = "autojacobin_index_failed_refreshes_total", "New versions that could not be opened."
        samples += [(name, "counter", what, labels, served.failed_refreshes) for labels, served in indexes]
        return samples


def _figures(index: Index) -> dict[str, Any]:
    figures = index.info()
    return {key: figures[key] for key in ("vectors", "hasher", "bits", "features", "vectors_kept", "generation")}


async def _written(write: Callable[[], tuple[bytes, str, dict[str, str]]], answer: Answer) -> Response:
    from starlette.responses import Response

    small = answer.arrays[0].size <= _NUMBERS_WRITTEN_AT_ONCE
    body, media_type, headers = write() if small else await asyncio.to_thread(write)
    return Response(body, media_type=media_type, headers=headers)


def _json(content: Any) -> Response:
    from starlette.responses import Response

    return Response(json.dumps(content, allow_nan=False), media_type="application/json")


def _nothing() -> Response:
    from starlette.responses import Response

    return Response(status_code=499)  # nobody is there to see it, but it is counted


def _with_cors(app: Asgi, access: Access) -> Asgi:
    if not access.origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    return CORSMiddleware(
        app,
        allow_origins=access.origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type", SHAPE],
        expose_headers=[SHAPE, GENERATION, "Retry-After"],
    )
