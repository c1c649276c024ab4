"""One PostgreSQL for all the tests of a process, started when the first of them asks for it."""

import pytest

from tests.engines import postgres


@pytest.fixture(scope="session")
def dsn():
    with postgres.server() as dsn:
        yield dsn
