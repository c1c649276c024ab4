"""More than it can do, being stopped and being killed in the middle."""

import signal
import threading
import time
from collections import Counter

import numpy as np
import pytest

from autojacobin import LSH
from autojacobin.errors import StorageError
from autojacobin.index.index import Index
from autojacobin.service import Client, ServiceError
from tests.service.service_process import eventually
from tests.waiting import joined

N, WIDTH = 20_000, 16
TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An index on which the heaviest request takes some tenths of a second."""
    rows = np.random.default_rng(0).normal(size=(N, WIDTH)).astype(np.float32)
    path = tmp_path_factory.mktemp("load") / "large"
    with Index.create(path, LSH(64, random_state=0).fit(rows)) as index:
        index.add(rows)
    return path, rows


class Load:
    """Threads that ask all the time, check every answer, and note how each request ended."""

    def __init__(self, address, rows, n_threads, heavy):
        self.ends = Counter()
        self.wrong = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._rows, self._heavy = rows, heavy
        self._threads = [
            threading.Thread(target=self._ask, args=(address, number), daemon=True) for number in range(n_threads)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self):
        self._stop.set()
        joined(*self._threads)
        return self.ends

    def count(self, end):
        with self._lock:
            return self.ends[end]

    def _ask(self, address, number):
        rows = self._rows[number * 300 :][: 250 if self._heavy else 1]
        expected = np.arange(number * 300, number * 300 + len(rows))
        with Client(address, token=TOKEN) as client:
            while not self._stop.is_set():
                try:
                    _, ids = client.search(rows, 1, candidates=1000 if self._heavy else 100)
                    end = "answered"
                    if not np.array_equal(ids[:, 0], expected):
                        self.wrong.append(ids)
                except ServiceError as error:
                    end = error.kind
                    time.sleep(0.01)
                except StorageError:
                    end = "unreachable"
                    time.sleep(0.05)
                with self._lock:
                    self.ends[end] += 1


def test_a_life_under_load(large, tmp_path, start):
    path, rows = large
    (tmp_path / "token").write_text(TOKEN + "\n")
    service = start(path, "--port", 0)
    assert service.wait_until_ready()
    narrow = ("--limit", "requests=3", "--limit", "waiting_vectors=300", "--token-file", tmp_path / "token")
    service = _killed_and_restarted_under_load(service, rows, lambda port: start(path, "--port", port, *narrow))
    assert service.ask("GET", "/v1/indexes")[0] == 401
    _stopped_under_overload(service, rows)


def _killed_and_restarted_under_load(service, rows, restart):
    load = Load(service.address, rows, 3, heavy=False)
    assert eventually(lambda: load.count("answered") >= 30)
    assert service.stop(signal.SIGKILL)[0] == -signal.SIGKILL
    assert eventually(lambda: load.count("unreachable") >= 3)
    service = restart(service.port)  # at once, on the same port
    before = load.count("answered")
    assert eventually(lambda: load.count("answered") >= before + 30)
    assert set(load.stop()) == {"answered", "unreachable"}
    assert load.wrong == []
    return service


def _stopped_under_overload(service, rows):
    load = Load(service.address, rows, 8, heavy=True)
    assert eventually(lambda: load.count("answered") >= 5 and load.count("busy") >= 20)
    assert service.ask("GET", "/healthz")[0] == 200
    code, log = service.stop()  # in the middle of searches
    ends = load.stop()
    assert code == 0
    assert "Traceback" not in log
    assert TOKEN not in log + service.announced
    assert load.wrong == []
    # A request on its way when the doors close may find them closed; one that was let in is answered in full.
    assert set(ends) <= {"answered", "busy", "unreachable"}
