"""Recalls: how many candidates each index needs for a recall, learned once in a background thread.

Learning takes seconds, because it looks for exact neighbours. A client who waits too long for it has to repeat
the request later, when it is learned.
"""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np

from autojacobin.hashers import Hasher
from autojacobin.index.calibration import Calibration, default_target
from autojacobin.index.changes import live_numbers, n_changed
from autojacobin.index.index import Index
from autojacobin.service.problems import busy, invalid
from autojacobin.service.registry import ServedIndex

__all__ = ["BackgroundThread", "Recalls", "any_unfinished"]

P = ParamSpec("P")
T = TypeVar("T")

_MOST_LEARNED = 16  # values of k, each of which is learned separately
_LARGEST_RECALL = 0.999  # the largest that the library accepts
_CHANGED_SHARE = 0.1  # of the vectors, after which recalls are learned again, as in the library
_N_PROBES = 64

_Target = tuple[int, float, str | None]  # k, recall, distance
_threads: weakref.WeakSet[BackgroundThread] = weakref.WeakSet()


@dataclass
class _Learned:
    """Candidates for each target, and the version of the index on which they were learned."""

    index: Index
    hasher: Hasher
    live_numbers: dict[Any, int]
    n_lists: int | None
    candidates: dict[_Target, Calibration] = field(default_factory=dict)
    ks: set[int] = field(default_factory=set)

    @property
    def n_vectors(self) -> int:
        """Number of vectors in that version."""
        return sum(self.live_numbers.values())


class Recalls:
    """The candidates that were learned for each index."""

    def __init__(self) -> None:
        self._learned: dict[str, _Learned] = {}
        self._thread = BackgroundThread("autojacobin-recalls")

    def close(self) -> None:
        """Stop learning; requests that wait for it are refused as busy."""
        self._thread.close()

    async def candidates(
        self, served: ServedIndex, k: int, recall: float, distance: str | None, seconds: float
    ) -> Calibration:
        """Give the candidates and probes that a recall takes, and learn them first if needed."""
        if recall == 1:  # nothing has to be learned
            return served.index.calibrated(k, 1.0, distance=distance)
        # Rounded up to a thousandth, so that clients cannot fill the memory with recalls that hardly differ.
        target = (k, math.ceil(round(1000 * recall, 6)) / 1000 if recall <= _LARGEST_RECALL else recall, distance)
        known = self._known(served)
        if target in known.candidates:
            return known.candidates[target]
        if k != default_target(k, known.n_vectors)[0]:  # the values of k that default searches learn are few
            if len(known.ks | {k}) > _MOST_LEARNED:
                detail = f"recall is learned for at most {_MOST_LEARNED} values of k, got one more, {k}; "
                raise invalid(detail + "ask with candidates instead")
            known.ks.add(k)
        learning = self._thread.run(self._learn, known, target)
        done, _ = await asyncio.wait((learning,), timeout=seconds)
        if learning.cancelled():
            raise busy("the service is stopping and learns nothing new; try again when it is back")
        if not done:
            learning.add_done_callback(_forget_error)
            raise busy(f"how to reach a recall of {recall:g} is still being learned; ask again in some seconds")
        return learning.result()

    async def run_filtered(self, run: Callable[[], T], seconds: float) -> T:
        """Search with a filter and a recall in the background thread, because the library learns as it searches."""
        running = self._thread.run(run)
        done, _ = await asyncio.wait((running,), timeout=seconds)
        if running.cancelled():
            raise busy("the service is stopping and learns nothing new; try again when it is back")
        if not done:
            running.cancel()  # unless it has begun, in which case it learns for the next request
            raise busy("how to reach this recall with a filter is still being learned; ask again in some seconds")
        return running.result()

    def _known(self, served: ServedIndex) -> _Learned:
        index = served.index
        known = self._learned.get(served.name)
        if known is None or not _is_similar(known, index):
            known = _Learned(index, index.hasher, live_numbers(index._state.segments), index.info()["lists"])
            self._learned[served.name] = known
        known.index, known.hasher = index, index.hasher
        return known

    def _learn(self, known: _Learned, target: _Target) -> Calibration:
        if target not in known.candidates:  # an earlier call may have learned it
            k, recall, distance = target
            try:
                known.candidates[target] = known.index.calibrated(k, recall, distance=distance)
            except BaseException:
                if not any(learned[0] == k for learned in known.candidates):
                    known.ks.discard(k)
                raise
        return known.candidates[target]


def _is_similar(known: _Learned, index: Index) -> bool:
    """Return whether a new version has the same hasher, as many lists and nearly the same vectors."""
    before, now = known.hasher, index.hasher
    changed = n_changed(known.live_numbers, live_numbers(index._state.segments))
    if known.n_lists != index.info()["lists"] or changed > _CHANGED_SHARE * known.n_vectors:
        return False
    if before is now:
        return True
    if (before.n_features_in_, before.n_bits) != (now.n_features_in_, now.n_bits):
        return False
    probes = np.random.default_rng(0).normal(size=(_N_PROBES, now.n_features_in_)).astype(np.float32)
    return bool(before.encode(probes) == now.encode(probes))


def _forget_error(learning: asyncio.Future[Any]) -> None:
    learning.cancelled() or learning.exception()


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
