"""A thread in the background of the service, which warms up indexes and looks for new versions."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


class BackgroundThread:
    """Runs calls one after another in a daemon thread.

    The interpreter does not wait for it at exit, unlike for the threads of a ``ThreadPoolExecutor``.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: set[asyncio.Future[Any]] = set()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.busy = False
        _threads.add(self)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Call a function in the thread, and give the future of its result, which :meth:`close` cancels."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closed:
            future.cancel()
            return future
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)

        def call() -> None:
            if future.cancelled():  # nobody waits
                return
            result: Any
            try:
                result, failed = function(*args, **kwargs), False
            except BaseException as error:  # the thread must survive it
                result, failed = error, True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_deliver, future, result, failed)

        self._calls.put(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def close(self) -> None:
        """Start no more calls, and cancel all futures that are not done; call it from their event loop."""
        self._closed = True
        for future in list(self._waiting):
            future.cancel()
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if not self._closed:
                self.busy = True
                call()
                self.busy = False


def any_unfinished() -> bool:
    """Return whether a background thread of this process is running a call."""
    return any(thread.busy for thread in _threads)


def _deliver(future: asyncio.Future[Any], result: Any, failed: bool) -> None:
    if future.done():  # nobody waits any more
        return
    if failed:
        future.set_exception(result)
    else:
        future.set_result(result)
