"""Calls in the background of the service: in turn, and none that nobody waits for."""

import asyncio
import threading

import pytest

from autojacobin.service.background import BackgroundThread, any_unfinished
from tests.waiting import happens, joined, run_async


def test_a_call_that_nobody_waits_for_is_not_begun():
    async def scenario():
        thread, let_go, called = BackgroundThread("test"), threading.Event(), []
        first = thread.run(happens, let_go)
        second, third = thread.run(called.append, 2), thread.run(called.append, 3)
        second.cancel()
        let_go.set()
        await asyncio.gather(first, third)
        thread.close()
        return called

    assert run_async(scenario()) == [3]


def test_calls_in_the_background_are_made_in_turn_and_given_up_at_the_end():
    begun, hold, made = threading.Event(), threading.Event(), []

    def wait():
        begun.set()
        happens(hold)
        made.append("waited")

    async def scenario():
        thread = BackgroundThread("test")
        assert await thread.run(pow, 2, 5) == 32
        with pytest.raises(ZeroDivisionError):
            await thread.run(divmod, 1, 0)
        waiting, next_one = thread.run(wait), thread.run(made.append, "next")
        await asyncio.to_thread(happens, begun)
        assert any_unfinished()
        thread.close()
        assert waiting.cancelled()
        assert next_one.cancelled()
        assert thread.run(made.append, "late").cancelled()
        hold.set()
        joined(thread._thread)
        assert not thread.busy

    run_async(scenario())
    assert made == ["waited"]
