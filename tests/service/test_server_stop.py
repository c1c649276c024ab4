"""A service that is told to stop does not wait for a recall that is being learned, nor for an index to warm up.

Both never end here, on the thread that began them and on the threads of the library's pool. A service that waited for
them would never exit.
"""

import asyncio
import threading

import pytest

from autojacobin.service import Client, ServiceError
from autojacobin.service.recalls import BackgroundThread, any_unfinished
from tests.waiting import SECONDS, happens, joined, line_from, run_async

ENDLESS = """
import threading
from autojacobin.core.parallel import run_tasks
from autojacobin.index.index import Index

def never_end():
    print("begun", flush=True)
    run_tasks(threading.Event().wait, [(), (), ()])

"""
ENDLESS_LEARNING = (
    ENDLESS
    + """
calibrated = Index.calibrated
Index.calibrated = lambda self, k, *args, **kwargs: never_end() if k == 3 else calibrated(self, k, *args, **kwargs)
"""
)
ENDLESS_SEARCH = ENDLESS + "Index.search = lambda *args, **kwargs: never_end()\n"
TWO_CORES = {"OMP_NUM_THREADS": "2"}


def test_a_stop_does_not_wait_for_a_recall_that_is_being_learned(folder, points, start):
    service = start(
        folder / "points", "--port", 0, "--request-seconds", 10**6, environment=TWO_CORES, before=ENDLESS_LEARNING
    )
    assert service.wait_until_ready()
    refusals = []

    def ask():
        with Client(service.address, timeout=SECONDS) as client, pytest.raises(ServiceError) as caught:
            client.search(points[:1], 3, recall=0.9)
        refusals.append(caught.value)

    asking = threading.Thread(target=ask)
    asking.start()
    assert line_from(service.process.stdout) == "begun\n"
    with Client(service.address) as client:
        assert client.search(points[:1], 1)[1].tolist() == [[0]]  # others are answered meanwhile
    code, log = service.stop()
    joined(asking)
    assert code == 0
    assert "points is warm" in log
    assert "stopped; every request that was accepted has been answered" in log
    assert "Traceback" not in log
    assert [(error.status, error.kind) for error in refusals] == [(503, "busy")]
    assert "the service is stopping and learns nothing new" in str(refusals[0])


def test_a_stop_does_not_wait_for_an_index_that_is_being_warmed_up(folder, start):
    service = start(folder / "points", "--port", 0, environment=TWO_CORES, before=ENDLESS_SEARCH)
    assert line_from(service.process.stdout) == "begun\n"
    assert service.ask("GET", "/readyz")[0] == 503
    code, log = service.stop()
    assert code == 0
    assert "Traceback" not in log


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
