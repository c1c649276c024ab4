"""Settings of all tests."""

import gc
import os
import random
import signal
import time
from functools import cache

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

gc.disable()  # until all tests are imported: nothing that is imported is garbage, and looking for some takes seconds

# A machine that is busy with other work is slow, which says nothing of the code.
# A fixture holds what all examples of a test may share.
allowed = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("thorough", deadline=None, suppress_health_check=allowed)
settings.register_profile("usual", settings.get_profile("thorough"), max_examples=15)
settings.load_profile("usual")  # make check asks for --hypothesis-profile=thorough

if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests may ignore it, and so would what they start


def pytest_xdist_auto_num_workers():
    """One process more than there are cores: some tests wait for the disk, or for processes that they start."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def time_is_short(config):
    """Return whether these are the rare tests, and no more may begin after a time, as .ci/run says."""
    return "UNTIL" in os.environ and config.option.markexpr.startswith("rare")


def pytest_collection_modifyitems(config, items):
    """Begin elsewhere in each run for which there may not be time enough, so that some runs see all rare tests."""
    if time_is_short(config):
        first = random.Random(os.environ["UNTIL"]).randrange(len(items) + 1)  # the same in all processes
        items[:] = items[first:] + items[:first]


def pytest_runtest_setup(item):
    if time_is_short(item.config) and time.time() > int(os.environ["UNTIL"]):
        pytest.skip(f"there is no time left for rare tests of {item.location[0]}")


@pytest.fixture(autouse=True, scope="module")
def _learn_from_few(request):
    """Let an index learn from 100 queries instead of 1,000, or from as many as a module that tests this says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autojacobin.index.calibration._MOST_QUERIES", getattr(request.module, "LEARNS_FROM", 100))
        yield


@pytest.fixture(autouse=True, scope="session")
def _make_commands_once():
    """Let typer make all commands once and not for each that is called, which would take most of the time of a test."""
    made = cache(typer.main.get_command)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", made)
        patch.setattr(typer.testing, "_get_command", made)
        yield
