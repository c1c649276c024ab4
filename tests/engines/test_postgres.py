"""The PostgreSQL of the tests ends with them, also when they are killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.engines import postgres
from tests.waiting import SECONDS, line_from, process, until

ROOT = Path(__file__).parents[2]
HOLDING = """
import time
import psycopg
from tests.engines import postgres

with postgres.server() as dsn, psycopg.connect(dsn) as connection:
    folder = connection.execute("SHOW data_directory").fetchone()[0]
    print(folder, flush=True)
    while True:
        time.sleep(1)
"""

pytestmark = pytest.mark.skipif("AUTOJACOBIN_TEST_DSN" in os.environ, reason="a server is given")


def servers_in(folder):
    """Processes of a server that has its data in the folder."""
    return [process for process in psutil.process_iter(["cmdline"]) if str(folder) in (process.info["cmdline"] or [])]


def wait_until_gone(folder):
    until(lambda: not servers_in(folder) and not Path(folder).exists(), f"the server in {folder} is gone", pause=0.05)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.rare)])
def test_a_killed_process_leaves_no_server_behind(number):
    command = [sys.executable, "-c", HOLDING]
    with process(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    ) as child:
        folder = line_from(child.stdout, "the server has started").strip()
        assert servers_in(folder)
        os.killpg(child.pid, number)  # as a terminal does
        child.wait(SECONDS)
    wait_until_gone(folder)
    assert not servers_in(folder)


def test_a_process_that_ends_while_the_server_starts_leaves_none_behind():
    folder = tempfile.mkdtemp(prefix="autojacobin-postgres-")
    with postgres.keeper(folder, stdout=subprocess.PIPE) as process:
        process.stdin.close()
        process.stdout.close()  # it starts up all the same, and finds that nobody is there
    assert process.returncode == 0
    assert not servers_in(folder)
    assert not Path(folder).exists()


def test_the_end_of_the_block_ends_the_server():
    with postgres.server() as dsn, psycopg.connect(dsn) as connection:
        folder = connection.execute("SHOW data_directory").fetchone()[0]
        assert servers_in(folder)
    assert not servers_in(folder)
    assert not Path(folder).exists()
