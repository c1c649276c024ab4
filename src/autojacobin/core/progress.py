"""Progress of long work: one line that is rewritten in a terminal, elsewhere a line from time to time."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autojacobin.core.parallel import Progress

COMPILING = "compiling, once per machine, about 8 s for each kind of search or training"
NOT_KEPT = (
    "compiling, about 8 s for each kind of search or training, in each process again, because no cache can be written; "
    "set NUMBA_CACHE_DIR to a folder that can be written"
)

_SECONDS_BETWEEN_UPDATES = 1.0  # of the line in a terminal
_SECONDS_BETWEEN_LINES = 30.0  # of a log
_BLANK = "\r\x1b[2K"  # to the beginning of the line, and clear it
_log = logging.getLogger("autojacobin")
_listeners: list[Callable[[str], None]] = []
_announced = False


def compilation_begins(kept: bool = True) -> None:
    """Report once in this process that kernels are compiled: to all listeners, or without any to the log, as a warning.

    Python prints warnings to standard error, and the first call would wait for the compiler without a word. ``kept``
    says whether later processes will find the kernels in a cache.
    """
    global _announced
    if not _announced:
        _announced = True
        line = COMPILING if kept else NOT_KEPT
        for listener in list(_listeners):
            listener(line)
        _log.log(logging.INFO if _listeners else logging.WARNING, "autojacobin is %s", line)


@contextmanager
def on_compilation(listener: Callable[[str], None]) -> Iterator[None]:
    """Call ``listener`` with a line of text when kernels are compiled within the block."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def from_time_to_time(show: Callable[[], None], *, terminal: bool = False) -> Iterator[None]:
    """Call ``show`` from a thread until the block ends: every second for a terminal, or every 30 seconds."""
    finished = threading.Event()
    seconds = _SECONDS_BETWEEN_UPDATES if terminal else _SECONDS_BETWEEN_LINES

    def keep_showing() -> None:
        while not finished.wait(seconds):
            show()

    thread = threading.Thread(target=keep_showing, name="autojacobin-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


@contextmanager
def printed_progress(work: str, *, verbose: bool) -> Iterator[Progress]:
    """Provide a callback ``progress(stage, done, total)`` whose calls are printed to standard error, if ``verbose``.

    In a terminal it is one line, which is rewritten. Elsewhere a line is printed at the beginning, then every 30
    seconds, and at the end; a stage without a total is printed at once.
    """
    if not verbose or sys.stderr is None:
        yield lambda *_: None
        return
    start, news, terminal = time.perf_counter(), "", sys.stderr.isatty()

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal news
        if not total and not news.startswith(f": {stage}"):  # the next stage may replace it before a line is due
            show(f"{work}: {stage}")
        news = f": {stage}" + (f" {done:,} of {total:,}" if total else "")

    def show(line: str, *, last: bool = False) -> None:
        text = f"{_BLANK}{line}" if terminal else line
        print(text, file=sys.stderr, end="\n" if last or not terminal else "", flush=True)

    def show_news() -> None:
        show(f"{work}{news}, {time.perf_counter() - start:.0f} s")

    show(f"{work} …")
    try:
        with on_compilation(show), from_time_to_time(show_news, terminal=terminal):
            yield progress
    except BaseException:
        if terminal:
            print(file=sys.stderr, flush=True)  # so that what follows has a line of its own
        raise
    show(f"{work}: done in {time.perf_counter() - start:.1f} s", last=True)
