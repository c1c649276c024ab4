"""Exceptions from a signal handler at random moments; the same object goes on, also beside other threads."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from autojacobin import Index
from tests.stress.model import (
    Change,
    LostError,
    Report,
    State,
    check_search,
    content_of,
    content_on_disk,
    created,
    one_of,
    random_change,
)
from tests.waiting import joined


class Interrupt(BaseException):
    """What the signal handler raises."""


class Alarm:
    """Interrupts work after a random part of the time that work of its kind takes, sometimes several times."""

    def __init__(self) -> None:
        self._armed, self._rung = False, 0
        self.usual: defaultdict[str, float] = defaultdict(lambda: 0.003)
        signal.signal(signal.SIGALRM, self._ring)
        sys.unraisablehook = lambda _: None  # an exception in a finaliser is printed, and lost

    def _ring(self, *_: object) -> None:
        if self._armed:
            self._rung += 1
            raise Interrupt

    def interrupt(self, change: Change, index: Index, rng: np.random.Generator) -> int:
        """Do a change, and give the number of interrupts that came."""
        self._rung = 0
        again = 0.001 if rng.random() < 0.2 else 0.0  # also while the index puts its things in order
        start = time.perf_counter()
        try:
            try:
                self._armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1.2 * self.usual[change.name]), again)
                change.apply(index)
                self._armed = False
            finally:
                self._armed = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            self.usual[change.name] *= 1.1  # so that about every second change gets to its end
            return self._rung
        self.usual[change.name] = 0.5 * self.usual[change.name] + 0.5 * (time.perf_counter() - start)
        return 0  # one that came in a finaliser is lost


def interrupts(rng: np.random.Generator, folder: Path, report: Report, changes: int) -> None:
    """One object that is interrupted again and again, alone or beside threads that search, refresh and verify."""
    path = folder / "index"
    index, state, alarm = created(path), State(), Alarm()
    stop, errors = threading.Event(), []

    def read() -> None:
        try:
            while not stop.is_set():
                if len(index):
                    index.search(np.zeros((1, 8), dtype=np.float32), 1)
                index.refresh()
                index.verify()
        except Exception as error:
            errors.append(error)

    readers = [threading.Thread(target=read) for _ in range(int(rng.integers(0, 3)))]
    for reader in readers:
        reader.start()
    try:
        for _ in range(changes):
            change = random_change(rng, state, folder / "saved")
            interrupted = alarm.interrupt(change, index, rng)
            report.note(change, index)
            report.faults[f"interrupt during {change.name}"] += interrupted
            allowed = [state, change.after] if interrupted else [change.after]
            state = one_of(content_of(index), allowed, change.name)
            if interrupted > 1:  # the second may have come while the state was read again: then it is read on request
                index.refresh()
                state = one_of(content_of(index), allowed, change.name)
            if rng.random() < 0.3:
                one_of(content_on_disk(path), [state], "on disk")
                check_search(index, state.vectors, rng)
                report.operations["verify"] += 1
                report.operations["search"] += 1
    finally:
        stop.set()
        joined(*readers)
    if errors:
        raise LostError(f"a thread that reads got {errors[0]!r}") from errors[0]
    index.close()
    one_of(content_on_disk(path), [state], "after the close")
    with Index.open(path) as again:
        again.remove([])  # takes the lock, and deletes what interrupts have left
        if len(list(path.iterdir())) != again.info()["files"] + 2:
            raise LostError("files that nobody needs are left behind")
