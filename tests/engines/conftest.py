"""One PostgreSQL for each process that runs tests."""

import pytest

from tests.engines import postgres


@pytest.fixture(scope="session")
def dsn():
    with postgres.server() as dsn:
        yield dsn
