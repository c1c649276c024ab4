"""A service that stops answers what it has accepted, and does not wait for an index to warm up.

That never ends here, on the thread that began them and on the threads of the library's pool. A service that waited for
it would never exit.
"""

import os
import signal
import threading

import pytest

from tests.waiting import joined, line_from

ENDLESS = """
import threading
from autojacobin.core.parallel import run_tasks
from autojacobin.index.index import Index

def never_end():
    print("begun", flush=True)
    run_tasks(threading.Event().wait, [(), (), ()])

"""
ENDLESS_SEARCH = ENDLESS + "Index.search = lambda *args, **kwargs: never_end()\n"
TWO_CORES = {"OMP_NUM_THREADS": "2"}


def test_a_stop_does_not_wait_for_an_index_that_is_being_warmed_up(folder, start):
    service = start(folder / "points", "--port", 0, environment=TWO_CORES, before=ENDLESS_SEARCH)
    assert line_from(service.process.stdout) == "begun\n"
    assert service.ask("GET", "/readyz")[0] == 503
    code, log = service.stop()
    assert code == 0
    assert "Traceback" not in log


SLOW_SEARCH = """
import threading, time
from autojacobin.index.index import Index

search = Index.search

def search_slowly(self, *arguments, **options):
    if threading.current_thread().name.startswith("autojacobin-searches"):
        print("begun", flush=True)
        time.sleep(1.5)
    return search(self, *arguments, **options)

Index.search = search_slowly
"""


def stopped_while_it_searches(folder, start, *signals):
    """The answer of a request that was under way, or what went wrong with it, and the end of the service."""
    service = start(folder / "points", "--port", 0, "--limit", "request_seconds=600", before=SLOW_SEARCH)
    answers = []

    def ask():
        try:
            answers.append(service.post("/v1/search", {"vectors": [[0.0] * 8], "k": 2, "rerank": False})[0])
        except Exception as error:
            answers.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert line_from(service.process.stdout) == "begun\n"
    for number in signals[:-1]:
        service.process.send_signal(number)
        threading.Event().wait(0.4)  # two signals at once count as one
    code, log = service.stop(signals[-1])
    joined(asking)
    return answers[0], code, log


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_request_under_way_is_answered_before_the_service_stops(folder, start, number):
    answer, code, log = stopped_while_it_searches(folder, start, getattr(signal, number))
    assert (answer, code) == (200, 0)
    assert log.endswith("stopped; every request that was accepted has been answered\n")
    assert "Traceback" not in log


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_second_interrupt_does_not_wait_for_answers_and_says_so(folder, start):
    answer, code, log = stopped_while_it_searches(folder, start, signal.SIGINT, signal.SIGINT)
    assert answer != 200
    assert code == 0
    assert log.endswith("stopped; requests under way got no answer\n")
