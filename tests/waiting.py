"""Waits of tests: each has a limit, and says what it waited for. The limit is for a run that is broken."""

import asyncio
import os
import select
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

SECONDS = 600


def until(condition, what, seconds=SECONDS, pause=0.02):
    """Wait until a condition holds; ``what`` is what it says."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {what}"
        time.sleep(pause)
    return found


def happens(event, what="another thread comes that far"):
    """Wait for an event."""
    assert event.wait(SECONDS), f"waited {SECONDS} s in vain until {what}"


def joined(*threads):
    """Wait for the end of threads."""
    deadline = time.monotonic() + SECONDS
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
        assert not thread.is_alive(), f"waited {SECONDS} s in vain for the end of {thread.name}"


def run_async(coroutine):
    """Run a coroutine to its end."""
    return asyncio.run(asyncio.wait_for(coroutine, SECONDS))


def exit_status(pid, what="a forked child"):
    """Wait for the end of a child by its number, and give its status; one that does not end is killed."""
    try:
        return until(lambda: _ended(pid), f"{what}, process {pid}, ends", pause=0.005)[1]
    except AssertionError:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise


def _ended(pid):
    found = os.waitpid(pid, os.WNOHANG)
    return found if found[0] else None


def read_from(descriptor, size, what="the other process writes something"):
    """Read what comes through a pipe; empty at its end."""
    assert select.select([descriptor], [], [], SECONDS)[0], f"waited {SECONDS} s in vain until {what}"
    return os.read(descriptor, size)


def line_from(stream, what="the process prints a line"):
    """Read a line of a process; empty at its end."""
    lines = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), name=f"reader until {what}", daemon=True)
    reader.start()
    joined(reader)
    return lines[0]


def with_signals():
    """Options of a process that is to be sent a signal.

    A shell that starts the tests in the background ignores SIGINT for them, and children inherit that.
    """
    return {"preexec_fn": _with_usual_signals} if os.name == "posix" else {}


def _with_usual_signals():
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def process(command, *, finishes=False, **options):
    """Start a process that listens to signals, and wait for its end after the block.

    After an error it is killed, unless it ``finishes`` something when its input is closed.
    """
    started = subprocess.Popen(command, **with_signals(), **options)
    failed = True
    try:
        yield started
        failed = False
    finally:
        if failed and not finishes:
            started.kill()
        for stream in (started.stdin, started.stdout, started.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            started.wait(SECONDS)  # its error names the command
        finally:
            started.kill()
