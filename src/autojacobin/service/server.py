"""Runs the service, and the page of the explorer, with uvicorn: binds, announces, stops gracefully."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autojacobin.errors import MissingExtraError, StorageError
from autojacobin.service.access import Access
from autojacobin.service.limits import Limits

if TYPE_CHECKING:
    from autojacobin.index.index import Index
    from autojacobin.service.middleware import Asgi

__all__ = ["DEFAULT_PORT", "HttpServer", "serve", "serving"]

DEFAULT_PORT = 8571
_KEEP_ALIVE_SECONDS = 75  # longer than the 60 s of usual proxies, so that they are the ones to close
_BACKLOG = 256  # connections that asyncio takes in one go, before any of them can be turned away
_SWITCH_SECONDS = 0.0005  # Python's 5 ms are longer than a search; requests should not wait that long for their turn


def serve(
    indexes: Mapping[str, Index | str | os.PathLike[str]],
    *,
    host: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    access: Access | None = None,
    limits: Limits | None = None,
    poll_seconds: float = 1.0,
    announce: Callable[[str], object] | None = None,
) -> None:
    """Serve indexes over HTTP until the process is told to stop; what was begun by then is finished.

    Parameters
    ----------
    indexes : mapping
        For each name an index, or the folder of one. Folders are watched, and their new versions picked up.
    host, port : str, int
        Where to listen; a port of 0 is any that is free. Beyond this machine a token is required.
    access : Access, optional
        Who may ask.
    limits : Limits, optional
        How much may be asked.
    poll_seconds : float
        How often folders are looked at.
    announce : callable, optional
        Told the address as soon as the service can be asked.
    """
    switching = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with _service_server(indexes, host, port, access, limits, poll_seconds) as server, server.ended_by_signals():
            if announce is not None:
                announce(server.address)
            server.run()
    finally:
        sys.setswitchinterval(switching)


@contextmanager
def serving(
    indexes: Mapping[str, Index | str | os.PathLike[str]],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    access: Access | None = None,
    limits: Limits | None = None,
    poll_seconds: float = 1.0,
) -> Iterator[str]:
    """Serve indexes from a thread of this process while the block runs, and give the address; for notebooks and tests.

    The parameters are those of :func:`serve`.

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
    with (
        _service_server(indexes, host, port, access, limits, poll_seconds) as server,
        server.running(),
    ):
        yield server.address


def _service_server(
    indexes: Mapping[str, Index | str | os.PathLike[str]],
    host: str,
    port: int,
    access: Access | None,
    limits: Limits | None,
    poll_seconds: float,
) -> HttpServer:
    from autojacobin.service.app import Service

    access, limits = access or Access(), limits or Limits()
    access.check_place(host)
    service = Service(indexes, access, limits, poll_seconds)
    return HttpServer(service.app, host, port, limits=limits, on_stop=service.stop_waiting, what="the search service")


class HttpServer:
    """An ASGI application behind uvicorn. It listens as soon as it is made, and answers while it runs.

    Parameters
    ----------
    app : ASGI application
        Answers the requests.
    host, port : str, int
        Where to listen; a port of 0 is any that is free.
    limits : Limits
        How many connections there may be, and how long each may take.
    what : str
        What needs uvicorn, for the error message if it is missing.
    on_stop : callable, optional
        Called in the event loop when the server begins to stop, before it waits for what is under way.
    """

    def __init__(
        self,
        app: Asgi,
        host: str,
        port: int,
        *,
        limits: Limits,
        what: str,
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        self._server = _uvicorn_server(app, limits, what, on_stop)
        self._listener = _bound(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._listener.getsockname()[1]}"

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

        kept = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except (KeyboardInterrupt, asyncio.CancelledError):
            pass
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


def _uvicorn_server(app: Asgi, limits: Limits, what: str, on_stop: Callable[[], object] | None) -> Any:
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "web", what) from error
    from autojacobin.service.connection import connection_class

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if on_stop is not None:
                on_stop()
            await super().shutdown(sockets)

    most = _most_connections()
    config = uvicorn.Config(
        app,
        http=connection_class(replace(limits, connections=min(limits.connections, most))),
        ws="none",
        lifespan="on",
        log_config=None,  # the logs of a program are its own business; the command line sets them up
        log_level=logging.ERROR,  # its warnings are of requests that are none, which anybody can send without end
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=min(_BACKLOG, max(most // 2, 1)),
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(limits.body_seconds + limits.request_seconds) + 1,
    )
    return Server(config)


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because only then does asyncio switch off Nagle's algorithm, which delays answers by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # a restart need not wait until the last connections are forgotten
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # who comes from now on is kept waiting, not refused
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(f"cannot listen on {host} port {port}: {reason}; give another host or port") from None
    return listener


def _most_connections() -> int:
    """Half of the files that this process may open; the other half is for those of the indexes."""
    try:
        import resource
    except ImportError:  # on Windows, where sockets are no files
        return sys.maxsize
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if files == resource.RLIM_INFINITY else max(files // 2, 1)
