"""Operations that requests ask for, search, encode and write, and the worker whose thread runs them.

The kernels are several times faster on 32 queries than on one, so what waits with the same options runs in one call.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from autojacobin.errors import DataError, IndexLockedError
from autojacobin.index.index import Index
from autojacobin.search.arguments import default_candidates
from autojacobin.service.access import VECTORS_TOGETHER, Limits
from autojacobin.service.messages import Written
from autojacobin.service.responses import Problem, Result, busy, invalid
from autojacobin.service.served import ServedIndex, takes_codes, width_of

_Job = tuple["Operation", "asyncio.Future[Result]"]
Change = Literal["add", "upsert", "remove"]
DONE: dict[Change, str] = {"add": "added", "upsert": "upserted", "remove": "removed"}


@dataclass(frozen=True)
class Options:
    """Options of a search, as ``Index.search`` has them."""

    k: int
    candidates: int | None = None
    distance: str | None = None
    rerank: bool = True
    recall: float | None = None
    probes: int | None = None
    where: str | None = None
    columns: tuple[str, ...] | None = None


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

    @cached_property
    def n_vectors(self) -> int:
        """Number of rows of the result."""
        return len(self.vectors if self.vectors is not None else self.ids or ())

    @cached_property
    def cost(self) -> int:
        """Vectors times candidates, or times k without re-ranking; if a recall chooses them, ``within`` counts them."""
        if self.options is None:
            return self.n_vectors
        k, candidates = self.options.k, self.options.candidates
        if candidates is None and self.options.rerank and self.options.probes is not None:
            candidates = default_candidates(k)
        return self.n_vectors * (candidates or k)

    def within(self, index: Index, limits: Limits) -> Operation:
        """Give the operation; if it would take too much, refuse a given recall, and let the default one have less."""
        options = self.options
        if options is None or not options.rerank or options.candidates is not None or options.probes is not None:
            return self  # no recall chooses the candidates, so they were counted when the request was read
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
        if not self.among or not isinstance(self.among[0], list):
            return [(self.among, self.n_vectors)]
        return [(list(ids), number) for ids, number in Counter(map(tuple, self.among)).items()]

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
        stored = index.queries(self.ids, distance)
        return stored if codes else stored.astype(np.float32)


def too_much(cost: int, work: int) -> Problem:
    """Give the problem of a search that would take too long."""
    return invalid(
        f"vectors times candidates, or times k without re-ranking, may be {work}, got {cost}; "
        "send fewer vectors at once, or ask for fewer candidates"
    )


def run_batch(operations: Sequence[Operation], limits: Limits) -> list[Result | Exception]:
    """Run operations with equal keys in one call, or in two halves if one cannot run with the others; return errors."""
    index = operations[0].served.index._frozen()  # one version for all of them, even if it is written to now
    try:
        rows = [operation.rows(index) for operation in operations]
        allowed = [operation.within(index, limits) for operation in operations]
        if len(operations) == 1 or all(map(operator.is_, allowed, operations)):
            return _run_rows(allowed[0], index, rows)
    except Exception as error:
        if len(operations) == 1:
            return [error]
    half = len(operations) // 2
    return run_batch(operations[:half], limits) + run_batch(operations[half:], limits)


def _run_rows(operation: Operation, index: Index, parts: list[npt.NDArray[Any]]) -> list[Result | Exception]:
    """Give distances, ids and payload for each part of the rows, or the codes of each."""
    rows = np.concatenate(parts)
    if operation.options is None:
        arrays, payload, k = (index.hasher.encode(index.metric.queries(rows)),), None, 0
    else:
        found = index.search(rows, among=operation.among, **vars(operation.options))
        arrays, payload, k = found[:2], None if operation.options.columns is None else found[2], found[1].shape[1]
    results: list[Result | Exception] = []
    for part, stop in zip(parts, accumulate(map(len, parts)), strict=True):
        start = stop - len(part)
        columns = None if payload is None else payload[start * k : stop * k]
        results.append(Result(index.generation, tuple(array[start:stop] for array in arrays), columns))
    return results


def write(
    served: ServedIndex, change: Change, ids: list[Any] | None, vectors: Any = None, payload: Any = None
) -> Written:
    """Add vectors, replace some or remove some; the outcome has the ids of vectors that came without."""
    n = len(vectors if vectors is not None else set(ids or ()))
    given: Any = UNSET
    try:
        with served.writing() as index, index.exclusive():  # so that no other thread adds before the ids are read
            arguments = (ids,) if change == "remove" else (vectors, ids, payload)
            getattr(index, change)(*arguments)
            if ids is None:
                given = list(range(index.next_id - n, index.next_id))
        figures = index.info()
    except IndexLockedError as error:
        detail = f"another process is writing to {served.name}; try again when it has finished"
        raise Problem(423, "locked", detail) from error
    except OverflowError as error:  # for integers beyond 64 bits
        raise invalid(str(error)) from error
    return Written(served.name, figures["generation"], figures["vectors"], **{DONE[change]: n}, ids=given)


class Worker:
    """A queue of operations of one event loop, and the thread that runs those that wait with equal keys in one call."""

    def __init__(self, limits: Limits | None = None, observe: Callable[[int, float], None] | None = None) -> None:
        self._limits = limits or Limits()
        self._observe = observe
        self._waiting: list[_Job] = []
        self._thread = ThreadPoolExecutor(1, "autojacobin-searches")
        self._working: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting_vectors(self) -> int:
        """Vectors in the queue, without those of the batch that runs."""
        return sum(job.n_vectors for job, future in self._waiting if not future.cancelled())

    def submit(self, operation: Operation) -> asyncio.Future[Result]:
        """Run an operation, if the queue has room for it."""
        if self._closed:
            raise busy("the service is stopping and begins nothing new; try again when it is back")
        waiting, most = self.waiting_vectors, self._limits.waiting_vectors
        if waiting and waiting + operation.n_vectors > most:
            raise busy(
                f"the queue is full, got {waiting} vectors waiting of at most {most}; try again after the time in "
                "Retry-After, or send fewer at once"
            )
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, future))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return future

    async def close(self) -> None:
        """Take no more operations, and wait until those in the queue are finished."""
        self._closed = True
        if self._working is not None:
            await self._working
        self._thread.shutdown()

    async def _work(self) -> None:
        while jobs := self._next_batch():
            start, operations = time.perf_counter(), [operation for operation, _ in jobs]
            run = asyncio.get_running_loop().run_in_executor
            try:
                results = await run(self._thread, run_batch, operations, self._limits)
            except Exception as error:  # the others have to run after any error
                results = [error] * len(jobs)
            if self._observe is not None:
                self._observe(sum(operation.n_vectors for operation in operations), time.perf_counter() - start)
            for (_, future), result in zip(jobs, results, strict=True):
                if future.done():  # nobody waits any more
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def _next_batch(self) -> list[_Job]:
        """Take the oldest job from the queue, with all that can run with it."""
        batch, others = list[_Job](), list[_Job]()
        n_vectors = cost = 0
        for operation, future in self._waiting:
            if future.cancelled():  # nobody waits for it
                continue
            more, total = n_vectors + operation.n_vectors, cost + operation.cost
            small = more <= VECTORS_TOGETHER and total <= self._limits.work
            if not batch or (small and operation.key == batch[0][0].key):
                batch.append((operation, future))
                n_vectors, cost = more, total
            else:
                others.append((operation, future))
        self._waiting = others
        return batch
