"""Processes that are killed: several wait to write, one does and gets a SIGKILL, the next takes over; others read."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autojacobin import Index, IndexLockedError
from tests.stress.model import (
    LostError,
    Report,
    State,
    check_search,
    content_of,
    content_on_disk,
    created,
    hasher,
    random_change,
)
from tests.waiting import SECONDS, exit_status, read_from

WRITERS = 2
READERS = 2


class Process:
    """A forked child that writes lines to its parent, until it is killed or told to stop."""

    def __init__(self, work: Callable[[Callable[[str], None], Callable[[], bool]], None]) -> None:
        self.reading, writing = os.pipe()
        hear, self._stop = os.pipe()
        self._rest = b""
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work(
                    lambda line: os.write(writing, line.encode() + b"\n") and None,
                    lambda: bool(select.select([hear], [], [], 0)[0]),
                )
            except BaseException as error:
                os.write(writing, f"error {error!r}\n".encode())
            os._exit(0)
        os.close(writing)
        self._hear = hear  # stays open, so that a byte can be written after the child has ended

    def lines(self) -> list[str]:
        """What it has written since the last time; waits until there is something, or it has ended."""
        content = read_from(self.reading, 2**16)
        *whole, self._rest = (self._rest + content).split(b"\n")
        return [line.decode() for line in whole] if content else []

    def end(self, *, kill: bool) -> list[str]:
        """End the process, and give the last lines."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.write(self._stop, b"!")  # a close would not do: other children have a copy
        last: list[str] = []
        while more := self.lines():
            last += more
        exit_status(self.pid)
        os.close(self.reading)
        os.close(self._stop)
        os.close(self._hear)
        return last


def write(path: Path, seed: int, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Wait for the lock, then change the index for ever."""
    index = Index.open(path)
    while True:
        try:
            index.remove([])
            break
        except IndexLockedError:
            if stopped():
                return
            time.sleep(0.002)
    rng = np.random.default_rng(seed)
    state = State(content_of(index), json.loads((path / "MANIFEST.json").read_bytes())["next_id"])
    say(f"start {state.digest}")
    while True:
        change = random_change(rng, state, path.parent / "saved")
        say(f"begin {change.after.digest} {change.name}")
        change.apply(index)
        say("end")
        state = change.after


def read(path: Path, seed: int, say: Callable[[str], None], stopped: Callable[[], bool]) -> None:
    """Open, refresh, verify and search; report every state that is seen."""
    rng = np.random.default_rng(seed)
    seen: set[str] = set()
    while not stopped():
        with Index.open(path, check=bool(rng.random() < 0.7)) as index:
            for _ in range(5):
                found = content_of(index)
                digest = State(found).digest
                if digest not in seen:
                    say(f"saw {digest}")
                seen.add(digest)
                check_search(index, found, rng)
                index.verify()
                index.refresh()


def kills(rng: np.random.Generator, folder: Path, report: Report, number: int) -> None:
    """Kill whoever writes, at a random moment, and look what the next one finds."""
    path = folder / "index"
    created(path).close()
    Index(hasher()).save(folder / "saved")
    journal = Journal(report)

    def start(work: Callable[..., None]) -> Process:
        seed = int(rng.integers(2**32))
        return Process(lambda say, stopped: work(path, seed, say, stopped))

    readers = [start(read) for _ in range(READERS)]
    waiting = [start(write) for _ in range(WRITERS)]
    try:
        for _ in range(number):
            ready, _, _ = select.select([writer.reading for writer in waiting], [], [], SECONDS)
            if not ready:
                raise LostError(f"no writer got the lock within {SECONDS} s")
            writer = next(writer for writer in waiting if writer.reading in ready)
            journal.take(writer.lines())
            time.sleep(rng.uniform(0, 0.2))
            waiting.remove(writer)
            journal.take(writer.end(kill=True))
            journal.killed()
            waiting.append(start(write))
    finally:
        last = [writer.end(kill=True) for writer in waiting]
        seen = [line for reader in readers for line in reader.end(kill=False)]
    for lines in filter(None, last):  # of a writer that had begun by then, and of the next one after its end
        journal.take(lines)
        journal.killed()
    journal.look(seen)
    for left in (path, folder / "saved"):
        if State(content_on_disk(left)).digest not in journal.known:
            raise LostError(f"kills: {left.name} was left in a state that never was")


class Journal:
    """What the writers said, one after the other, and which states may be on the disk."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.known = {State().digest}
        self._allowed = {State().digest}
        self._begun: str | None = None
        self._name = ""

    def take(self, lines: list[str]) -> None:
        """Read on in what the writer says."""
        for line in lines:
            what, *rest = line.split(" ", 2)
            if what == "start":
                if rest[0] not in self._allowed:
                    raise LostError(
                        f"kills: after a kill during {self._name or 'nothing'}, a state that was never committed"
                    )
                self._allowed, self._name = {rest[0]}, ""
            elif what == "begin":
                self._begun, self._name = rest[0], rest[1]
                self.known.add(rest[0])
            elif what == "end":
                assert self._begun is not None
                self._allowed, self._begun = {self._begun}, None
                self._report.operations[f"{self._name} by a process"] += 1
                self._name = ""
            else:
                raise LostError(f"kills: a writer got {line}")

    def killed(self) -> None:
        """The writer is dead: what it had begun may be there or not."""
        if self._begun is not None:
            self._allowed, self._begun = self._allowed | {self._begun}, None
        self._report.faults[f"kill during {self._name}" if self._name else "kill between changes"] += 1

    def look(self, lines: list[str]) -> None:
        """Compare the states that readers saw with those that there were."""
        for line in lines:
            what, rest = line.split(" ", 1)
            if what != "saw":
                raise LostError(f"kills: a reader got {line}")
            self._report.operations["read by another process"] += 1
            if rest not in self.known:
                raise LostError("kills: a reader saw a state that never was")
