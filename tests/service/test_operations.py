"""The queue: what gathers is taken together, nothing waits for company, nothing is begun that nobody waits for."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autojacobin.errors import DataError, UnknownIdError
from autojacobin.service import operations
from autojacobin.service.access import Limits
from autojacobin.service.operations import Operation, Options, Worker, run_batch
from autojacobin.service.responses import Problem, Result
from autojacobin.service.served import ServedIndex
from tests.service.conftest import WIDTH
from tests.waiting import run_async


@pytest.fixture(scope="module")
def served(index):
    return ServedIndex("points", index)


class Stopped:
    """Runs works for real, after it was let go; notes which came together."""

    def __init__(self):
        self.together = []
        self.begun = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, works, limits):
        self.together.append([work.n_vectors for work in works])
        self.begun.set()
        assert self.let_go.wait(20)
        return run_batch(works, limits)


@pytest.fixture
def run(monkeypatch):
    stopped = Stopped()
    monkeypatch.setattr(operations, "run_batch", stopped)
    return stopped


def searching(served, n, k=2):
    vectors = np.random.default_rng(n).normal(size=(n, WIDTH)).astype(np.float32)
    return Operation(served, vectors, None, Options(k))


async def begun(run):
    assert await asyncio.to_thread(run.begun.wait, 20)


def test_waiting_operations_run_together_in_order(served, run):
    async def scenario():
        worker = Worker()
        works = [searching(served, 1)]
        found = [worker.submit(works[0])]
        await begun(run)  # an idle service begins at once, without waiting for more
        works += [searching(served, n, k) for n, k in ((2, 2), (3, 5), (4, 2), (510, 2), (20, 2))]
        found += [worker.submit(work) for work in works[1:]]
        run.let_go.set()
        for work, answer in zip(works, await asyncio.gather(*found), strict=True):
            expected = served.index.search(work.vectors, work.options.k)
            np.testing.assert_array_equal(answer.arrays[1], expected[1])
        await worker.close()

    run_async(scenario())
    assert run.together == [[1], [2, 4, 20], [3], [510]]


def test_a_full_queue_refuses_at_once_and_has_room_again_later(served, run):
    async def scenario():
        worker = Worker(Limits(waiting_vectors=10))
        found = [worker.submit(searching(served, 1))]
        await begun(run)
        found.append(worker.submit(searching(served, 11)))  # larger than the queue, but nobody waits
        with pytest.raises(Problem, match="the queue is full, got 11 vectors waiting of at most 10") as caught:
            worker.submit(searching(served, 1))
        assert caught.value.headers == {"Retry-After": "1"}
        assert caught.value.status == 503
        run.let_go.set()
        await asyncio.gather(*found)
        assert worker.waiting_vectors == 0
        await worker.submit(searching(served, 1))
        await worker.close()
        with pytest.raises(Problem, match="is stopping"):
            worker.submit(searching(served, 1))

    run_async(scenario())


def test_what_nobody_waits_for_is_not_run(served, run):
    async def scenario():
        worker = Worker()
        kept = [worker.submit(searching(served, 1))]
        await begun(run)
        dropped = worker.submit(searching(served, 7))
        kept.append(worker.submit(searching(served, 2)))
        dropped.cancel()
        kept[0].cancel()  # begun already: its answer is thrown away
        assert worker.waiting_vectors == 2
        run.let_go.set()
        await kept[1]
        await worker.close()
        assert kept[0].cancelled()

    run_async(scenario())
    assert run.together == [[1], [2]]


def test_closing_finishes_what_waits(served):
    async def scenario():
        worker = Worker()
        found = [worker.submit(searching(served, n, k=n)) for n in (1, 2, 3)]
        await worker.close()
        assert [answer.arrays[1].shape for answer in await asyncio.gather(*found)] == [(1, 1), (2, 2), (3, 3)]

    run_async(scenario())


def test_the_thread_outlives_a_mistake(served, monkeypatch):
    async def scenario():
        worker = Worker()
        with monkeypatch.context() as patch:
            patch.setattr(operations, "run_batch", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await worker.submit(searching(served, 1))
        answer = await worker.submit(searching(served, 1))
        await worker.close()
        return answer.arrays[0].shape

    assert run_async(scenario()) == (1, 2)


@given(kinds=st.lists(st.sampled_from(["good", "huge", "unknown id", "id", "narrow"]), min_size=1, max_size=6))
def test_an_error_stays_with_the_one_who_made_it(served, kinds):
    rng = np.random.default_rng(0)
    works = []
    for kind in kinds:
        width = WIDTH - 1 if kind == "narrow" else WIDTH
        vectors = rng.normal(size=(2, width)).astype(np.float32) * (np.float32(1e38) if kind == "huge" else 1)
        ids = np.array([3 if kind == "id" else 4]) if "id" in kind else None
        works.append(Operation(served, None if ids is not None else vectors, ids, Options(3)))
    for kind, work, answer in zip(kinds, works, run_batch(works, Limits()), strict=True):
        if kind in ("good", "id"):
            expected = served.index.search(work.rows(served.index), 3)
            assert isinstance(answer, Result)
            np.testing.assert_array_equal(answer.arrays[0], expected[0])
            np.testing.assert_array_equal(answer.arrays[1], expected[1])
        else:
            assert isinstance(answer, UnknownIdError if kind == "unknown id" else DataError)


def test_codes_and_neighbours_are_not_mixed(served):
    vectors = np.zeros((1, WIDTH), dtype=np.float32)
    keys = {Operation(served, vectors).key, searching(served, 1).key, searching(served, 1, k=3).key}
    assert len(keys) == 3
    assert searching(served, 1).key == searching(served, 9).key


@pytest.mark.parametrize("wrong", [{"k": 0}, {"vectors": 1.5}, {"requests": True}, {"body_seconds": float("nan")}])
def test_limits_are_checked(wrong):
    with pytest.raises(DataError, match=f"{next(iter(wrong))} must be"):
        Limits(**wrong)
