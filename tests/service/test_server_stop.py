"""A service that is told to stop does not wait for an index to warm up.

That never ends here, on the thread that began them and on the threads of the library's pool. A service that waited for
it would never exit.
"""

from tests.waiting import line_from

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
