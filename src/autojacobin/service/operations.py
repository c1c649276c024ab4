"""What requests ask of an index, and how several that ask the same are answered in one call.

The kernels are several times faster on 32 queries than on one, so requests that wait at the same time with the same
options are searched for together. An error of one of them stays its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.index.index import Index
from autojacobin.service.access import VECTORS_TOGETHER, Limits
from autojacobin.service.problems import Problem, busy
from autojacobin.service.registry import ServedIndex

__all__ = ["Answer", "Batcher", "Encoding", "Job", "Options", "Searching", "Work", "run_together"]


@dataclass(frozen=True)
class Options:
    """How to search; requests that agree in all of this can be answered together.

    A ``recall`` is replaced by the candidates that it takes before the search.
    """

    k: int
    candidates: int | None = None
    distance: str = "hamming"
    rerank: bool = True
    recall: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Keywords for ``Index.search``."""
        return {"candidates": self.candidates, "distance": self.distance, "rerank": self.rerank}


@dataclass(frozen=True)
class Answer:
    """Arrays with a row for each vector of the request, and the state of the index that they are from."""

    generation: int | None
    n_bits: int
    arrays: tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, eq=False)
class Work:
    """Vectors, or ids of vectors in the index, and the index."""

    served: ServedIndex
    vectors: npt.NDArray[np.float32] | None = None
    ids: npt.NDArray[np.int64] | None = None

    @property
    def key(self) -> Hashable:
        """Work with equal keys can be done together."""
        return type(self).__name__, self.served.name

    @cached_property
    def n_vectors(self) -> int:
        """Number of rows of the answer."""
        rows = self.vectors if self.vectors is not None else self.ids
        return 0 if rows is None else len(rows)

    @property
    def cost(self) -> int:
        """How much is to be done, as ``Limits.work`` counts it."""
        return self.n_vectors

    def rows(self, index: Index) -> npt.NDArray[np.float32]:
        """Vectors to work on."""
        if self.vectors is not None:
            width = int(index.hasher.n_features_in_)
            if self.vectors.shape[1] != width:  # the index was replaced by one of another width meanwhile
                raise DataError(
                    f"vectors must have the {width} features of the index, got {self.vectors.shape[1]}; "
                    "see /v1/indexes for what is served"
                )
            return self.vectors
        assert self.ids is not None
        try:
            return index.vectors(self.ids).astype(np.float32)
        except DataError as error:
            unknown = [int(id) for id in self.ids if id not in index]
            if not unknown:
                raise
            detail = f"there is no vector with the id {unknown[0]} in {self.served.name}; leave it out, or send vectors"
            raise Problem(404, "unknown-id", detail) from error

    def on(self, index: Index, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        """Arrays of the answer for some rows."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Searching(Work):
    """Find neighbours."""

    options: Options = Options(1)

    @property
    def key(self) -> Hashable:
        """Work with equal keys can be done together."""
        return type(self).__name__, self.served.name, self.options

    @property
    def cost(self) -> int:
        """Vectors times what is looked at for each of them."""
        return self.n_vectors * candidates_of(self.options)

    def on(self, index: Index, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        """Distances and ids."""
        distances, ids = index.search(rows, self.options.k, **self.options.arguments())
        if not np.isfinite(distances).all():
            raise DataError("a distance is too large for a number, got vectors that are far apart; rescale the vectors")
        return distances, ids


@dataclass(frozen=True, eq=False)
class Encoding(Work):
    """Make codes."""

    def on(self, index: Index, rows: npt.NDArray[np.float32]) -> tuple[npt.NDArray[Any], ...]:
        """Packed codes."""
        return (index.hasher.encode(rows).packed,)


def candidates_of(options: Options) -> int:
    """Vectors that are looked at for a query, by the library's own default where none is given."""
    if not options.rerank:
        return options.k
    return max(10 * options.k, 100) if options.candidates is None else options.candidates


def run_together(works: Sequence[Work]) -> list[Answer | Exception]:
    """Answer works of one key with one call, or each alone where that call fails; errors are given, not raised."""
    index = works[0].served.index  # one version for all of them, whatever is swapped in meanwhile
    answers: list[Answer | Exception] = [LookupError("not answered yet")] * len(works)
    rows: dict[int, npt.NDArray[np.float32]] = {}
    for number, work in enumerate(works):
        try:
            rows[number] = work.rows(index)
        except Exception as error:
            answers[number] = error
    try:
        together = _answered(works[0], index, list(rows.values())) if rows else []
    except Exception as error:
        if len(rows) > 1:
            for number in rows:
                answers[number] = run_together([works[number]])[0]
            return answers
        together = [error]
    for number, answer in zip(rows, together, strict=True):
        answers[number] = answer
    return answers


def _answered(work: Work, index: Index, parts: list[npt.NDArray[np.float32]]) -> list[Answer | Exception]:
    arrays = work.on(index, parts[0] if len(parts) == 1 else np.concatenate(parts))
    generation, n_bits = index.info()["generation"], int(index.hasher.n_bits)
    ends = np.cumsum([len(part) for part in parts]).tolist()
    slices = [slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)]
    return [Answer(generation, n_bits, tuple(array[rows] for array in arrays)) for rows in slices]


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
