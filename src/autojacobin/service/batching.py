"""A bounded queue and the one thread that works it off, taking what can be done together in one go.

One thread, because a search uses all cores by itself. While it is busy, requests gather behind it and are then answered
together; while it is idle, the next one is taken at once. So nothing ever waits for company, and the busier
the service, the larger and cheaper the batches.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autojacobin.service.limits import VECTORS_TOGETHER, Limits
from autojacobin.service.problems import busy
from autojacobin.service.work import Answer, Work

__all__ = ["Batcher", "Job"]

Run = Callable[[Sequence[Work]], list[Answer | Exception]]


@dataclass(eq=False)
class Job:
    """A work with the future of its answer, which belongs to an event loop."""

    work: Work
    future: asyncio.Future[Answer]
    loop: asyncio.AbstractEventLoop


class Batcher:
    """Works jobs off in a thread of its own.

    Parameters
    ----------
    run : callable
        Answers works of one key together.
    limits : Limits
        How many vectors may wait, and how large a batch may be.
    observe : callable, optional
        Told the vectors and the seconds of each batch.
    """

    def __init__(self, run: Run, limits: Limits, observe: Callable[[int, float], None] | None = None) -> None:
        self._run = run
        self._limits = limits
        self._observe = observe
        self._waiting: deque[Job] = deque()
        self._n_waiting = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work_off, name="autojacobin-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting_vectors(self) -> int:
        """Vectors that nobody has begun with."""
        return self._n_waiting

    def submit(self, work: Work) -> Job:
        """Put a work at the end of the queue; called from an event loop, on which the answer's future comes true."""
        loop = asyncio.get_running_loop()
        job = Job(work, loop.create_future(), loop)
        with self._changed:
            if self._closing:
                raise busy("the service is stopping and begins nothing new; ask again when it is back")
            if self._waiting and self._n_waiting + work.n_vectors > self._limits.waiting_vectors:
                raise busy(
                    f"the queue is full, got {self._n_waiting} vectors waiting of at most "
                    f"{self._limits.waiting_vectors}; ask again after the time in Retry-After, or send fewer at once"
                )
            self._waiting.append(job)
            self._n_waiting += work.n_vectors
            self._changed.notify()
        return job

    def drop(self, job: Job) -> None:
        """Forget a job whose answer nobody waits for, unless it has been begun."""
        job.future.cancel()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._n_waiting -= job.work.n_vectors

    def close(self) -> None:
        """Finish what is in the queue, take nothing more, and wait for the end of it."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _work_off(self) -> None:
        while jobs := self._next_batch():
            start = time.perf_counter()
            try:
                answers = self._run([job.work for job in jobs])
            except Exception as error:  # the thread has to outlive any mistake
                answers = [error] * len(jobs)
            if self._observe is not None:
                self._observe(sum(job.work.n_vectors for job in jobs), time.perf_counter() - start)
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Job, Answer | Exception]]] = {}
            for job, answer in zip(jobs, answers, strict=True):
                by_loop.setdefault(job.loop, []).append((job, answer))
            for loop, pairs in by_loop.items():
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_deliver, pairs)

    def _next_batch(self) -> list[Job]:
        """Wait for jobs, and take the oldest with all that go along with it; none at the end of the service."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting:
                return []
            first = self._waiting.popleft()
            batch, others = [first], deque[Job]()
            n_vectors, cost = first.work.n_vectors, first.work.cost
            for job in self._waiting:
                fits = n_vectors + job.work.n_vectors <= VECTORS_TOGETHER and cost + job.work.cost <= self._limits.work
                if fits and job.work.key == first.work.key:
                    batch.append(job)
                    n_vectors, cost = n_vectors + job.work.n_vectors, cost + job.work.cost
                else:
                    others.append(job)
            self._waiting = others
            self._n_waiting -= n_vectors
            return batch


def _deliver(pairs: list[tuple[Job, Answer | Exception]]) -> None:
    for job, answer in pairs:
        if job.future.done():  # nobody waits any more
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
