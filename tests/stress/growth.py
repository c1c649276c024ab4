"""Growth at its real size: a change that takes an index to 65,536 vectors makes its lists under every kind of fault."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import patch

import numpy as np

from autojacobin import BinaryAutoencoder, Hasher, Index, StorageError
from autojacobin.index import calibration, segment
from autojacobin.index import growth as library
from tests.stress.interrupts import Alarm
from tests.stress.kills import Process
from tests.stress.layer import folders_by
from tests.stress.model import (
    REAL_SIZES,
    Change,
    LostError,
    Report,
    State,
    content_of,
    content_on_disk,
    hasher,
    one_of,
    random_vectors,
)
from tests.stress.places import Quota
from tests.stress.power_cuts import Disk, Recorder, replay

BEFORE, ADDED = 65_500, 60
STATES, INSTANTS = 3, 0.3  # of a disk that are looked at: states of each instant, and the share of the instants


def growth(rng: np.random.Generator, folder: Path, report: Report, times: int) -> None:
    """Let changes make lists, some times under each kind of fault; the index beforehand is always the same."""
    with (
        patch.object(library, "_FEWEST_VECTORS", REAL_SIZES[0]),
        patch.object(segment, "_FEWEST_IN_LISTS", REAL_SIZES[1]),
        # centres and knowledge from so little are bad ones, and soon there
        patch.object(library, "_SAMPLE_PER_LIST", 2),
        patch.object(calibration, "_MOST_QUERIES", 20),
    ):
        _grow(rng, folder, report, times)


def _grow(rng: np.random.Generator, folder: Path, report: Report, times: int) -> None:
    base = folder / "index"
    vectors = random_vectors(rng, BEFORE)
    with Index.create(base, hasher() if rng.random() < 0.7 else _autoencoder(), partitions="auto") as index:
        index.add(vectors)
    state = State(dict(enumerate(vector.tobytes() for vector in vectors)), BEFORE)
    for name in ("first", "second"):  # the first loads compiled kernels
        seconds, size = _without_a_fault(rng, shutil.copytree(base, folder / name), state)
    alarm = Alarm()

    def interrupt(path: Path, change: Change) -> None:
        alarm.usual[change.name] = seconds
        _interrupt(rng, alarm, path, state, change, report)

    ways: list[Callable[[Path, Change], None]] = [
        interrupt,
        lambda path, change: _kill(rng.uniform(0, 1.2 * seconds), path, state, change, report),
        lambda path, change: _fill(int(rng.integers(size)), path, state, change, report),
        lambda path, change: _cut_power(rng, path, state, change, report),
    ]
    for number in range(times):
        for way in ways if number % 3 == 2 else ways[:-1]:  # a power cut leaves dozens of states to look at
            path = shutil.copytree(base, folder / "copy")
            way(path, _growing(rng, state))
            shutil.rmtree(path)


@cache
def _autoencoder() -> Hasher:
    some = random_vectors(np.random.default_rng(0), 500)
    return BinaryAutoencoder(8, effort=0, n_iterations=3, random_state=0).fit(some)


def _growing(rng: np.random.Generator, state: State) -> Change:
    """Draw a change after which an index needs lists."""
    vectors, way = random_vectors(rng, ADDED), str(rng.choice(["add", "add a stream", "upsert"]))
    ids = np.arange(BEFORE, BEFORE + ADDED)
    if way == "upsert":
        ids[:10] = rng.choice(BEFORE, 10, replace=False)
    after = State(state.vectors | dict(zip(ids.tolist(), (v.tobytes() for v in vectors), strict=True)), BEFORE + ADDED)

    def apply(index: Index) -> None:
        if way == "upsert":
            index.upsert(vectors, ids)
        else:
            index.add(vectors if way == "add" else iter(np.array_split(vectors, 3)))

    return Change(f"{way} that makes lists", apply, after)


def _without_a_fault(rng: np.random.Generator, path: Path, state: State) -> tuple[float, int]:
    """Give how long a change takes, and how many bytes it writes."""
    quota = Quota()
    with folders_by(quota.folder), Index.open(path) as index:
        free, start = quota.left, time.perf_counter()
        _growing(rng, state).apply(index)
        return time.perf_counter() - start, free - quota.left


def _look(index: Index, path: Path, allowed: list[State], where: str) -> State:
    """Compare the object and the disk with the allowed states, and give the one that was found."""
    found = one_of(content_of(index), allowed, where)
    return one_of(content_on_disk(path), [found], f"{where}, on the disk")


def _finish(index: Index, path: Path, found: State, change: Change) -> None:
    """Make the change, or what a fault has left of it; then there are lists."""
    if found is change.after:
        index.compact()  # a stream is written before its lists are made
    else:
        change.apply(index)
    _look(index, path, [change.after], change.name)
    if index.info()["lists"] is None:
        raise LostError(f"{change.name}: there are no lists")


def _interrupt(
    rng: np.random.Generator, alarm: Alarm, path: Path, state: State, change: Change, report: Report
) -> None:
    with Index.open(path) as index:
        rung = alarm.interrupt(change, index, rng)
        report.faults[f"interrupt during {change.name}"] += rung > 0
        report.note(change, index)
        if rung > 1:  # the second may have come while the state was read again: then it is read on request
            index.refresh()
        found = _look(index, path, [state, change.after] if rung else [change.after], change.name)
        _finish(index, path, found, change)


def _kill(seconds: float, path: Path, state: State, change: Change, report: Report) -> None:
    def work(say: Callable[[str], None], _: Callable[[], bool]) -> None:
        with Index.open(path) as index:
            say("begin")
            change.apply(index)
            say("end")

    process = Process(work)
    lines = process.lines()
    time.sleep(seconds)
    lines += process.end(kill=True)
    if lines not in (["begin"], ["begin", "end"]):
        raise LostError(f"kills: a writer got {lines}")
    report.faults[f"kill during {change.name}"] += len(lines) == 1
    with Index.open(path) as index:
        report.note(change, index)
        found = _look(index, path, [state, change.after][len(lines) - 1 :], change.name)
        _finish(index, path, found, change)


def _fill(room: int, path: Path, state: State, change: Change, report: Report) -> None:
    quota = Quota()
    with folders_by(quota.folder), Index.open(path) as index:
        quota.left, found = room, change.after
        try:
            change.apply(index)
        except StorageError as error:
            if "nothing was changed" not in str(error):
                raise LostError(f"full disk: {error}") from error
            found = _look(index, path, [state, change.after], change.name)
        report.faults[f"full disk during {change.name}"] += index.info()["lists"] is None or found is state
        quota.left = 10**9
        report.note(change, index)
        _finish(index, path, found, change)


def _cut_power(rng: np.random.Generator, path: Path, state: State, change: Change, report: Report) -> None:
    files = sorted(file for file in path.iterdir() if file.name != "LOCK")
    names = {file.name: -number for number, file in enumerate(files, 1)}
    disk = Disk(names, {-number: file.read_bytes() for number, file in enumerate(files, 1)})
    recorder = Recorder(path)
    with folders_by(recorder.at), Index.open(path) as index:
        change.apply(index)
        report.note(change, index)
        marks: list[tuple[int, list[State | None]]] = [(0, [state, change.after]), (len(recorder.log), [change.after])]
    replay(recorder, marks, rng, path.parent / "cut", report, f"power cut during {change.name}", disk, STATES, INSTANTS)
