"""Operations that requests ask for, search, encode and write, and the worker whose thread runs them.

The kernels are several times faster on 32 queries than on one, so operations that wait at the same time with the same
options run in one call. An error of one of them does not affect the others.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from autojacobin.errors import DataError, IndexLockedError
from autojacobin.index.index import Index
from autojacobin.search.arguments import default_candidates
from autojacobin.service.access import VECTORS_TOGETHER, Limits
from autojacobin.service.messages import Written
from autojacobin.service.responses import Problem, Result, busy, invalid, is_missing
from autojacobin.service.served import ServedIndex, takes_codes, width_of

T = TypeVar("T")

_DONE = {"add": "added", "upsert": "upserted", "remove": "removed"}


@dataclass(frozen=True)
class Options:
    """Options of a search.

    Without a recall, candidates or probes, a search with re-ranking has the default recall of the library.
    """

    k: int
    candidates: int | None = None
    distance: str | None = None
    rerank: bool = True
    recall: float | None = None
    probes: int | None = None
    where: str | None = None
    columns: tuple[str, ...] | None = None

    @property
    def chooses_candidates(self) -> bool:
        """Whether a recall, given or by default, decides how many candidates there are."""
        return self.rerank and self.candidates is None and self.probes is None


@dataclass(frozen=True, eq=False)
class Operation:
    """A search for the neighbours of vectors, or of ids in the index; without options, vectors to encode.

    ``vectors`` are float32, or uint8 if they are packed codes in the bit order of an index that has no hasher.
    ``among`` holds the ids to search among, or one list of ids for each query.
    """

    served: ServedIndex
    vectors: npt.NDArray[Any] | None = None
    ids: Sequence[Any] | None = None
    options: Options | None = None
    among: list[Any] | None = None

    @property
    def key(self) -> Hashable:
        """Operations with equal keys can run together; one with ids to search among runs alone."""
        return self.served.name, self.options, None if self.among is None else id(self)

    @property
    def is_filtered(self) -> bool:
        """Whether this searches among some of the vectors only."""
        return self.among is not None or (self.options is not None and self.options.where is not None)

    @cached_property
    def n_vectors(self) -> int:
        """Number of rows of the result."""
        rows = self.vectors if self.vectors is not None else self.ids
        return 0 if rows is None else len(rows)

    @property
    def cost(self) -> int:
        """How much work this is: vectors times candidates, or times k without re-ranking, as ``Limits.work`` counts."""
        if self.options is None:
            return self.n_vectors
        k, candidates = self.options.k, self.options.candidates
        if not self.options.rerank:
            return self.n_vectors * k
        if self.options.recall == 1 and not self.is_filtered:  # all are compared
            return self.n_vectors * len(self.served.index)
        if candidates is None:  # a recall chooses them later, and then they are counted again
            candidates = k if self.options.chooses_candidates else default_candidates(k)
        return self.n_vectors * candidates

    def within(self, index: Index, limits: Limits) -> Operation:
        """Give the operation if it compares no more than the service allows.

        A recall that the client asks for and that takes more is refused. The default recall gets fewer candidates.
        """
        options = self.options
        if options is None or not options.chooses_candidates:
            return self  # what was asked for was counted when the request was read
        work, n = limits.work, len(index)
        if n * self.n_vectors <= work and n <= limits.candidates:
            return self
        cost = most = 0
        for filter, n_queries in self._filters():
            plan = index.plan(
                options.k, recall=options.recall, distance=options.distance, among=filter, where=options.where
            )
            number = plan.candidates or 0
            cost += n_queries * number
            most = max(most, 0 if plan.compares_all else number)
        if cost <= work and most <= limits.candidates:
            return self
        if options.recall is None:
            fewer = max(options.k, min(limits.candidates, work // self.n_vectors))
            return replace(self, options=replace(options, candidates=fewer))
        if cost > work:
            raise too_much(cost, work)
        raise invalid(
            f"a recall of {options.recall:g} needs {most} candidates here, expected at most {limits.candidates}, the "
            "limit of this service; ask for a lower recall or a smaller k"
        )

    def _filters(self) -> list[tuple[Any, int]]:
        """Different filters, and how many queries have each."""
        if not self.among or not isinstance(self.among[0], list | None):
            return [(self.among, self.n_vectors)]
        numbers = Counter(None if one is None else tuple(one) for one in self.among)
        return [(None if ids is None else list(ids), number) for ids, number in numbers.items()]

    def rows(self, index: Index) -> npt.NDArray[Any]:
        """Give the vectors or codes, which are read from the index if the operation has ids."""
        distance = None if self.options is None else self.options.distance
        codes = takes_codes(index, distance)
        if self.vectors is not None:
            width = width_of(index, distance)
            # an index of another width or kind may have replaced the earlier one
            if self.vectors.shape[1] != width or (self.vectors.dtype == np.uint8) != codes:
                raise DataError(
                    f"vectors must have the {width} features of the index, got {self.vectors.shape[1]}; "
                    "see /v1/indexes for what is served"
                )
            return self.vectors
        assert self.ids is not None
        try:
            stored = index.queries(self.ids, distance)
            return stored if codes else stored.astype(np.float32)
        except DataError as error:
            raise _unknown_id(index, self.ids, self.served.name, "leave it out, or send vectors") or error from error

    def run(self, index: Index, rows: npt.NDArray[Any]) -> tuple[tuple[npt.NDArray[Any], ...], Any]:
        """Give distances and ids for these rows, or their packed codes; and the payload of all neighbours, if any."""
        if self.options is None:
            return (index.hasher.encode(index.metric.queries(rows)).packed,), None
        distances, ids, *payload = index.search(rows, among=self.among, **vars(self.options))
        if not (np.isfinite(distances) | is_missing(ids)).all():
            raise DataError("a distance is too large for a number, got vectors that are far apart; rescale the vectors")
        return (distances, ids), payload[0] if payload else None


def _unknown_id(index: Index, ids: Sequence[Any], name: str, fix: str) -> Problem | None:
    """Give the problem of the first id that is not in an index; None if all are."""
    for id in ids:
        if id not in index:
            return Problem(404, "unknown-id", f"there is no vector with the id {_shown_id(id)} in {name}; {fix}")
    return None


def _shown_id(id: Any) -> str:
    """Give an id for a message."""
    return str(id) if isinstance(id, int) else repr(str(id)[:80])


def too_much(cost: int, work: int) -> Problem:
    """Give the problem of a search that would take too long."""
    return invalid(
        f"vectors times candidates, or times k without re-ranking, may be {work}, got {cost}; "
        "send fewer vectors at once, or ask for fewer candidates"
    )


def run_batch(operations: Sequence[Operation], limits: Limits) -> list[Result | Exception]:
    """Run operations with equal keys in one call, or each alone if that call fails; errors are returned, not raised."""
    index = operations[0].served.index  # one version for all of them, even if a new one replaces it now
    results: list[Result | Exception] = [LookupError("not run yet")] * len(operations)
    rows: dict[int, npt.NDArray[Any]] = {}
    for number, operation in enumerate(operations):
        try:
            vectors = operation.rows(index)
            allowed = operation.within(index, limits)
            if allowed is operation:
                rows[number] = vectors
            else:
                results[number] = _run_rows(allowed, index, [vectors])[0]
        except Exception as error:
            results[number] = error
    try:
        found = _run_rows(operations[0], index, list(rows.values())) if rows else []
    except Exception as error:
        if len(rows) > 1:
            for number in rows:
                results[number] = run_batch([operations[number]], limits)[0]
            return results
        found = [error]
    for number, result in zip(rows, found, strict=True):
        results[number] = result
    return results


def _run_rows(operation: Operation, index: Index, parts: list[npt.NDArray[Any]]) -> list[Result | Exception]:
    arrays, payload = operation.run(index, parts[0] if len(parts) == 1 else np.concatenate(parts))
    generation, n_bits, k = index.generation, int(index.hasher.n_bits), arrays[-1].shape[1]
    results: list[Result | Exception] = []
    start = 0
    for part in parts:
        stop = start + len(part)
        columns = None if payload is None else payload[start * k : stop * k]
        results.append(Result(generation, n_bits, tuple(array[start:stop] for array in arrays), columns))
        start = stop
    return results


@dataclass(eq=False)
class Write:
    """A change of an index: vectors to add, or to put in the place of others; without vectors, ids to remove."""

    served: ServedIndex
    change: Literal["add", "upsert", "remove"]
    ids: list[Any] | None
    vectors: npt.NDArray[Any] | None = None
    payload: Any = None

    @property
    def n_vectors(self) -> int:
        """How many vectors are written."""
        return len(self.vectors if self.vectors is not None else set(self.ids or ()))

    def run(self) -> Written:
        """Change the index, and describe the outcome. If vectors came without ids, it holds the ids that they got."""
        given: Any = UNSET
        name = self.served.name
        try:
            with self.served.writing() as index, self._explained(index):
                if self.change == "remove":
                    index.remove(self.ids)
                elif self.change == "upsert":
                    index.upsert(self.vectors, self.ids, self.payload)
                else:
                    with index.exclusive():  # so that no other thread adds before the ids are read
                        index.add(self.vectors, self.ids, self.payload)
                        if self.ids is None:
                            given = list(range(index.next_id - self.n_vectors, index.next_id))
            figures = index.info()
        except IndexLockedError as error:
            detail = f"another process is writing to {name}; try again when it has finished"
            raise Problem(423, "locked", detail) from error
        except OverflowError as error:  # for integers beyond 64 bits
            raise invalid(str(error)) from error
        done: dict[str, Any] = {_DONE[self.change]: self.n_vectors}
        return Written(name, figures["generation"], figures["vectors"], **done, ids=given)

    @contextmanager
    def _explained(self, index: Index) -> Iterator[None]:
        """Raise the problem of an id that is in the index already, or is not, if that is why the block fails."""
        ids, name = self.ids or [], self.served.name
        try:
            yield
        except DataError as error:
            if self.change == "remove":
                raise _unknown_id(index, ids, name, "leave it out; nothing was removed") or error from error
            known = [id for id in ids if id in index]
            if self.change == "upsert" or not known or len(set(ids)) < len(ids):
                raise
            detail = f"there is a vector with the id {_shown_id(known[0])} in {name} already; nothing was added; "
            raise Problem(409, "id-exists", detail + "send PUT to replace it, or leave it out") from error


class _Job(NamedTuple):
    work: Any  # an operation, or a function
    future: asyncio.Future[Any]
    n_vectors: int = 0
    cost: int = 0

    def runs_with(self, other: _Job) -> bool:
        one, two = self.work, other.work
        return isinstance(one, Operation) and isinstance(two, Operation) and one.key == two.key


class Worker:
    """A thread with a queue: it runs calls in turn, and operations that wait together with equal keys in one call.

    Its futures belong to the event loop that makes it; a job whose future is cancelled is not begun. The interpreter
    does not wait for the thread at exit. ``observe`` is called with the vectors and the seconds of each batch.
    """

    def __init__(
        self, name: str, limits: Limits | None = None, observe: Callable[[int, float], None] | None = None
    ) -> None:
        self._limits = limits or Limits()
        self._observe = observe
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def waiting_vectors(self) -> int:
        """Vectors in the queue, without those of the batch that runs."""
        return sum(job.n_vectors for job in list(self._waiting) if not job.future.cancelled())

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Call a function in the thread."""
        return self._submit(_Job(function, self._loop.create_future()))

    def submit(self, operation: Operation) -> asyncio.Future[Result]:
        """Run an operation, if the queue has room for it."""
        return self._submit(_Job(operation, self._loop.create_future(), operation.n_vectors, operation.cost))

    def close(self, *, wait: bool = True) -> None:
        """Take no more jobs, and wait until those in the queue are finished; or begin no more, and do not wait."""
        with self._changed:
            self._closed = True
            if not wait:
                for job in self._waiting:
                    job.future.cancel()
            self._changed.notify()
        if wait:
            self._thread.join()

    def _submit(self, job: _Job) -> asyncio.Future[Any]:
        most = self._limits.waiting_vectors
        with self._changed:
            if self._closed:
                raise busy("the service is stopping and begins nothing new; try again when it is back")
            waiting = self.waiting_vectors
            if waiting and waiting + job.n_vectors > most:
                raise busy(
                    f"the queue is full, got {waiting} vectors waiting of at most {most}; try again after the time in "
                    "Retry-After, or send fewer at once"
                )
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def _work(self) -> None:
        while (jobs := self._next_batch()) is not None:
            start, results = time.perf_counter(), list[Any]()
            operations = [job.work for job in jobs if isinstance(job.work, Operation)]
            try:
                results = run_batch(operations, self._limits) if operations else [jobs[0].work()]
            except Exception as error:  # the thread has to survive any error
                results = [error] * len(jobs)
            if self._observe is not None:
                self._observe(sum(job.n_vectors for job in jobs), time.perf_counter() - start)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                self._loop.call_soon_threadsafe(_deliver, jobs, results)

    def _next_batch(self) -> list[_Job] | None:
        """Wait for jobs, and take the oldest with all that can run with it; None when the queue is closed and empty."""
        with self._changed:
            while True:
                batch: list[_Job] = []
                others: deque[_Job] = deque()
                n_vectors = cost = 0
                for job in self._waiting:
                    if job.future.cancelled():  # nobody waits for it
                        continue
                    more, total = n_vectors + job.n_vectors, cost + job.cost
                    small = more <= VECTORS_TOGETHER and total <= self._limits.work
                    if not batch or (small and job.runs_with(batch[0])):
                        batch.append(job)
                        n_vectors, cost = more, total
                    else:
                        others.append(job)
                self._waiting = others
                if batch or self._closed:
                    return batch or None
                self._changed.wait()


def _deliver(jobs: list[_Job], results: list[Any]) -> None:
    for job, result in zip(jobs, results, strict=True):
        if job.future.done():  # nobody waits any more
            continue
        if isinstance(result, Exception):
            job.future.set_exception(result)
        else:
            job.future.set_result(result)
