"""One service for all the tests that leave it as it was."""

import signal

import numpy as np
import pytest

from autojacobin import LSH
from autojacobin.index.index import Index
from tests.service.service_process import ServiceProcess

N, WIDTH = 500, 8


@pytest.fixture(scope="session")
def points():
    return np.random.default_rng(3).normal(size=(N, WIDTH)).astype(np.float32)


@pytest.fixture(scope="session")
def folder(points, tmp_path_factory):
    """Two indexes: `points` with vectors and ids of its own, `bare` with codes alone and another width."""
    home = tmp_path_factory.mktemp("served")
    with Index.create(home / "points", LSH(20, random_state=0).fit(points)) as index:
        index.add(points, ids=np.arange(N) * 3)
    narrow = points[:, :5]
    with Index.create(home / "bare", LSH(12, random_state=1).fit(narrow), keep_vectors=False) as index:
        index.add(narrow)
    return home


@pytest.fixture(scope="session")
def service(folder):
    limits = {"vectors": 64, "k": 50, "candidates": 500, "work": 20_000, "body_bytes": 2**16, "body_seconds": 1}
    words = [word for name, value in limits.items() for word in ("--limit", f"{name}={value}")]
    running = ServiceProcess(folder / "points", folder / "bare", "--port", 0, *words)
    assert running.wait_until_ready()
    yield running
    code, log = running.stop()
    assert code == 0
    assert "Traceback" not in log


@pytest.fixture(scope="session")
def index(folder):
    with Index.open(folder / "points") as opened:
        yield opened


@pytest.fixture(scope="session")
def bare(folder):
    with Index.open(folder / "bare") as opened:
        yield opened


@pytest.fixture
def start():
    """Start services that are gone after the test, however it ends."""
    started = []

    def begin(*arguments, **options):
        started.append(ServiceProcess(*arguments, **options))
        return started[-1]

    yield begin
    for running in started:
        running.stop(signal.SIGKILL)
