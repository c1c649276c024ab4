"""Run ASGI applications with uvicorn: bind, announce the address, limit connections, stop gracefully."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from autojacobin.core.signals import stopping_signals
from autojacobin.errors import MissingExtraError, StorageError, import_extra
from autojacobin.service.access import Access, Limits

if TYPE_CHECKING:
    from autojacobin.index.index import Index
    from autojacobin.service.app import Pages

DEFAULT_PORT = 8571
_KEEP_ALIVE_SECONDS = 75  # longer than the usual 60 s of proxies, so that they close first
_BACKLOG = 256  # connections that asyncio accepts at once, before one can be refused
_SWITCH_SECONDS = 0.0005  # Python's 5 ms are longer than a search; requests should not wait that long for their turn
_LINGER_ZERO = struct.pack("ii" if os.name == "posix" else "hh", 1, 0)  # closes a socket at once
_LEAST_SHARE_READ = 0.1  # of a response, in each body_seconds
_MOST_UNREAD = 2**28  # bytes of all responses that clients have not read yet, if there are several
_AMBIGUOUS_LINE = re.compile(rb"(?<!\r)\n|\n[ \t]")


def serve(
    indexes: Mapping[str, Index | str | os.PathLike[str]],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    access: Access | None = None,
    limits: Limits | None = None,
    poll_seconds: float = 1.0,
    pages: Pages | None = None,
    device: str = "cpu",
    announce: Callable[[str], object] | None = None,
) -> bool:
    """Serve indexes over HTTP until the process gets a signal to stop; requests under way are finished.

    A second Ctrl-C meanwhile ends it at once. Return whether all requests that were accepted have been answered.

    Parameters
    ----------
    indexes : mapping
        For each name an index, or the folder of one. Folders are watched, and their new versions picked up.
    host, port : str, int
        Where to listen; a port of 0 is any that is free. Beyond this machine a token is required.
    access : Access, optional
        Who may send requests.
    limits : Limits, optional
        How much a request may ask for.
    poll_seconds : float
        How often to look for new versions.
    pages : callable, optional
        Gives further routes for the served indexes, such as :func:`autojacobin.explorer.explorer_routes`.
    device : {"cpu", "cuda"}
        Where to search. On ``"cuda"``, copies of the indexes are served, which requests cannot change.
    announce : callable, optional
        Called with the address as soon as the service listens.
    """
    switching = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        options = {"poll_seconds": poll_seconds, "pages": pages, "device": device}
        with _service_server(indexes, host, port, access, limits, **options) as server, server.ended_by_signals():
            if announce is not None:
                announce(server.address)
            server.run()
        return not server.was_forced
    finally:
        sys.setswitchinterval(switching)


@contextmanager
def serving(indexes: Mapping[str, Index | str | os.PathLike[str]], *, port: int = 0, **options: Any) -> Iterator[str]:
    """Serve indexes from a thread of this process while the block runs, and give the address; for notebooks and tests.

    The parameters are those of :func:`serve`, but for ``announce``.

    Examples
    --------
    >>> import numpy as np
    >>> from autojacobin import LSH, Index
    >>> from autojacobin.service import Client, serving
    >>> X = np.random.default_rng(0).normal(size=(1000, 16)).astype(np.float32)
    >>> index = Index(LSH(32, random_state=0).fit(X))
    >>> index.add(X)
    >>> with serving({"points": index}) as address, Client(address) as client:
    ...     distances, ids = client.search(X[:2], k=3)
    >>> ids[:, 0]
    array([0, 1])
    """
    with _service_server(indexes, port=port, **options) as server, server.running():
        yield server.address


def _service_server(
    indexes: Mapping[str, Index | str | os.PathLike[str]],
    host: str = "127.0.0.1",
    port: int = 0,
    access: Access | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> HttpServer:
    try:
        from autojacobin.service.app import Service
    except ImportError as error:
        raise MissingExtraError(error.name or "starlette", "web", "the search service") from error

    access, limits = access or Access(), limits or Limits()
    access.check_address(host)
    service = Service(indexes, access, limits, **options)
    return HttpServer(service.app, host, port, limits=limits, on_stop=service.stop_waiting, what="the search service")


def any_unfinished() -> bool:
    """Return whether a service of this process has stopped while an index was being warmed up, which goes on."""
    from autojacobin.service.app import WATCHER

    return any(thread.name == WATCHER for thread in threading.enumerate())


class HttpServer:
    """An ASGI application behind uvicorn. It listens as soon as it is made, and answers while it runs."""

    def __init__(
        self, app: Any, host: str, port: int, *, limits: Limits, what: str, on_stop: Callable[[], object] | None = None
    ) -> None:
        self._server = _uvicorn_server(app, limits, what, on_stop)
        self._listener = _bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._listener.getsockname()[1]}"

    @property
    def was_forced(self) -> bool:
        """Whether a second Ctrl-C ended it before all requests were answered."""
        return bool(self._server.force_exit)

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def run(self) -> None:
        """Answer until the process gets a signal to stop, which uvicorn raises again when it has finished."""
        self._server.run(sockets=[self._listener])

    @contextmanager
    def running(self) -> Iterator[None]:
        """Answer from a thread while the block runs."""
        thread = threading.Thread(target=self.run, name="autojacobin-service")
        thread.start()
        try:
            while not self._server.started and thread.is_alive():
                time.sleep(0.005)
            yield
        finally:
            self._server.should_exit = True
            thread.join()

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Make a signal to stop a normal end of the block, even if it comes before uvicorn handles signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(*_: Any) -> None:
            self._server.should_exit = True

        kept = {number: signal.signal(number, stop) for number in stopping_signals()}
        try:
            yield
        except (KeyboardInterrupt, asyncio.CancelledError):
            pass
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


def _uvicorn_server(app: Any, limits: Limits, what: str, on_stop: Callable[[], object] | None) -> Any:
    uvicorn = import_extra("uvicorn", "web", what)

    class Server(uvicorn.Server):  # type: ignore[name-defined]
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if on_stop is not None:
                on_stop()  # before it waits for the requests under way
            await super().shutdown(sockets)

    most = _max_connections()
    config = uvicorn.Config(
        app,
        http=_connection_class(replace(limits, connections=min(limits.connections, most))),
        ws="none",
        lifespan="on",
        log_config=None,  # logging belongs to the program; the command line configures it
        log_level=logging.ERROR,  # its warnings are about invalid requests, which anybody can send without end
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=min(_BACKLOG, max(most // 2, 1)),
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(limits.body_seconds + limits.request_seconds) + 1,
    )
    return Server(config)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches off Nagle's algorithm, which delays responses by 40 ms, only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # a restart need not wait until the last connections are forgotten
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # from now on, clients wait and are not refused
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(f"cannot listen on {host} port {port}: {reason}; give another host or port") from None
    return listener


def _max_connections() -> int:
    """Half of the files that this process may open; the other half is for those of the indexes."""
    try:
        import resource
    except ImportError:  # on Windows, where sockets are no files
        return sys.maxsize
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else max(files // 2, 1)


def _connection_class(limits: Limits) -> type[asyncio.Protocol]:
    """Make uvicorn's class of connections with limits: time to send a head and to read a response, and their number."""
    import h11
    from h11._receivebuffer import ReceiveBuffer
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class StrictBuffer(ReceiveBuffer):
        """Refuses heads that another server may read in another way: with a bare line feed, or with a folded line."""

        def _extract(self, count: int) -> bytearray:
            self._extracted = super()._extract(count)
            return self._extracted

        def maybe_extract_lines(self) -> list[bytearray] | None:
            lines = super().maybe_extract_lines()
            if lines is not None and _AMBIGUOUS_LINE.search(self._extracted):
                raise h11.RemoteProtocolError("a line of the head must end with CR LF and not begin with a space")
            return lines

    idle: dict[Any, None] = {}  # the one without a request for longest first
    half_sent: dict[Any, None] = {}  # the one that has sent nothing for longest first
    unread: dict[Any, None] = {}  # the one whose response has waited for its reader longest first
    most_half_sent = max(1, min(limits.requests, limits.connections // 2))

    class Connection(H11Protocol):
        """A connection that is closed when a head does not arrive or a response is not read in time."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.conn._receive_buffer = StrictBuffer()
            self._timers: dict[str, asyncio.TimerHandle] = {}
            self._start_timer("head", transport.close)
            idle[self] = None
            if len(self.connections) > limits.connections:
                next((other for other in chain(idle, half_sent) if other is not self), self)._make_room()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            half_sent.pop(self, None)
            if self._is_idle():
                if "head" not in self._timers:
                    self._start_timer("head", self.transport.close)
                return
            self._stop_timer("head")
            idle.pop(self, None)
            if self.conn.their_state is h11.SEND_BODY:
                half_sent[self] = None
                if len(half_sent) > most_half_sent:
                    next(iter(half_sent))._make_room()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._is_idle():  # and no other request came along with the first
                half_sent.pop(self, None)
                idle[self] = None

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            for name in list(self._timers):
                self._stop_timer(name)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            size = self.transport.get_write_buffer_size()
            self._start_timer("reader", self._check_reader, size, size)
            unread[self] = None
            while len(unread) > 1 and sum(one.transport.get_write_buffer_size() for one in unread) > _MOST_UNREAD:
                next(iter(unread))._make_room(discard=True)

        def resume_writing(self) -> None:
            self._stop_timer("reader")
            unread.pop(self, None)
            super().resume_writing()

        def _check_reader(self, whole: int, before: int) -> None:
            left = self.transport.get_write_buffer_size()
            if before - left < _LEAST_SHARE_READ * whole:
                self._make_room(discard=True)
            else:
                self._start_timer("reader", self._check_reader, whole, left)

        def _is_idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _make_room(self, *, discard: bool = False) -> None:
            """Close the connection; also discard what the client has not read, here and in the kernel."""
            if discard:
                self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            self._forget()  # now, because others may come before the connection is lost
            self.transport.abort()

        def _forget(self) -> None:
            for some in (idle, half_sent, unread):
                some.pop(self, None)

        def _start_timer(self, name: str, then: Callable[..., None], *arguments: Any) -> None:
            self._timers[name] = self.loop.call_later(limits.body_seconds, then, *arguments)

        def _stop_timer(self, name: str) -> None:
            if (timer := self._timers.pop(name, None)) is not None:
                timer.cancel()

    return Connection
