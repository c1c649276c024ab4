"""What is learned for a recall is kept as long as it holds, and nothing is computed that nobody waits for."""

import asyncio
import threading

import numpy as np
import pytest

from autojacobin import LSH, Index
from autojacobin.service.problems import Problem
from autojacobin.service.recalls import BackgroundThread, Recalls
from autojacobin.service.registry import ServedIndex
from tests.service.conftest import WIDTH
from tests.waiting import run_async


def test_an_index_that_grows_in_place_is_learned_again(points):
    class Counted(Index):
        learned = 0

        def calibrated(self, *arguments, **options):
            self.learned += 1
            return super().calibrated(*arguments, **options)

    index = Counted(LSH(16, random_state=0).fit(points))
    index.add(points)
    served = ServedIndex("points", index)

    async def scenario():
        recalls, counts = Recalls(), []
        for n_more in (0, 10, 200, 0):  # a tenth of 500 is 50
            if n_more:
                index.add(np.random.default_rng(n_more).normal(size=(n_more, WIDTH)).astype(np.float32))
            await recalls.candidates(served, 3, 0.8, None, 600)
            counts.append(index.learned)
        recalls.close()
        return counts

    assert run_async(scenario()) == [1, 1, 2, 2]


def test_an_index_that_makes_lists_is_learned_again(points):
    index = Index(LSH(16, random_state=0).fit(points), partitions=16)
    index.add(points[:500])
    served = ServedIndex("points", index)

    async def scenario():
        recalls, probes = Recalls(), []
        for rows in (points[:0], points[:12]):  # lists are made of 512 vectors
            if len(rows):
                index.add(rows)
            probes.append((await recalls.candidates(served, 3, 0.8, None, 600)).probes)
        recalls.close()
        return probes

    without, within = run_async(scenario())
    assert without is None
    assert 1 <= within <= 16


def test_a_call_that_nobody_waits_for_is_not_begun():
    async def scenario():
        thread, let_go, called = BackgroundThread("test"), threading.Event(), []
        first = thread.run(let_go.wait)
        second, third = thread.run(called.append, 2), thread.run(called.append, 3)
        second.cancel()
        let_go.set()
        await asyncio.gather(first, third)
        thread.close()
        return called

    assert run_async(scenario()) == [3]


def test_a_filtered_search_that_takes_too_long_is_refused_as_busy():
    async def scenario():
        recalls, let_go = Recalls(), threading.Event()
        try:
            with pytest.raises(Problem, match="with a filter is still being learned") as caught:
                await recalls.run_filtered(let_go.wait, 0.01)
            assert caught.value.status == 503
        finally:
            let_go.set()
        recalls.close()
        with pytest.raises(Problem, match="the service is stopping"):
            await recalls.run_filtered(let_go.wait, 600)

    run_async(scenario())
