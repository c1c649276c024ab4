"""Long work that no shutdown waits for: learning a recall, and warming up an index."""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

__all__ = ["BackgroundThread", "any_unfinished"]

P = ParamSpec("P")
T = TypeVar("T")

_threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


class BackgroundThread:
    """Runs calls one after another in a daemon thread.

    The interpreter does not wait for it when it exits, as it does for the threads of a ``ThreadPoolExecutor``.

    Parameters
    ----------
    name : str
        Name of the thread.
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
        """Call a function in the thread, and give the future of its result; :meth:`close` cancels it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._closed:
            future.cancel()
            return future
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)

        def call() -> None:
            answer: Any
            try:
                answer, failed = function(*args, **kwargs), False
            except BaseException as error:  # the thread must survive it
                answer, failed = error, True
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_deliver, future, answer, failed)

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
    """Tell whether a background thread of this process is in the middle of a call."""
    return any(thread.busy for thread in _threads)


def _deliver(future: asyncio.Future[Any], answer: Any, failed: bool) -> None:
    if future.done():  # nobody waits any more
        return
    if failed:
        future.set_exception(answer)
    else:
        future.set_result(answer)
