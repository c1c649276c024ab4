"""Power cuts: every operation on files is recorded, and every state that a disk may be left in is looked at.

The rules are those of POSIX and no more. What was written to a file since its last sync may be there, wholly, partly,
as zeros, or not at all. Of the creations, renames and deletions since the folder was last synced, any may have reached
the disk, whatever their order was.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autojacobin import Index, StorageError
from tests.stress.layer import Folder, folders_by
from tests.stress.model import (
    Change,
    LostError,
    Report,
    State,
    content_on_disk,
    created,
    hasher,
    one_of,
    random_change,
    random_vectors,
)

MOST_STATES = 24  # of a disk at one instant; more are sampled
KEPT = ("all", "none", "half", "zeros")


@dataclass
class Recorder:
    """All operations on the files of one folder, and the marks of begun and ended changes between them."""

    folder: Path
    log: list[tuple] = field(default_factory=list)
    _until_failure: int = 0  # operations until one fails, once; none fails at 0
    _n_files: int = 0
    _opened: dict[int, int] = field(default_factory=dict)  # which file a descriptor is of
    _named: dict[str, int] = field(default_factory=dict)

    def at(self, path: Path) -> Folder:
        """The layer for a folder; others than ours are not recorded."""
        return RecordingFolder(path, self) if Path(path) == self.folder else Folder(path)

    def fail_after(self, operations: int) -> None:
        """Let an operation fail later on."""
        self._until_failure = operations

    def fail_or_go_on(self) -> None:
        """Let the operation fail whose turn it is."""
        self._until_failure -= 1
        if self._until_failure == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def created(self, name: str, descriptor: int) -> None:
        self._n_files += 1
        self._opened[descriptor] = self._named[name] = self._n_files
        self.log.append(("create", name, self._n_files))

    def renamed(self, source: str, target: str) -> None:
        self._named[target] = self._named.pop(source)
        self.log.append(("rename", source, target, self._named[target]))

    def file_of(self, descriptor: int) -> int:
        return self._opened[descriptor]


class RecordingFolder(Folder):
    """The files of a folder, with a record of what is done to them."""

    def __init__(self, path: Path, recorder: Recorder) -> None:
        super().__init__(path)
        self._recorder = recorder

    def create(self, name: str) -> int:
        self._recorder.fail_or_go_on()
        descriptor = super().create(name)
        self._recorder.created(name, descriptor)
        return descriptor

    def write(self, descriptor: int, content: memoryview, offset: int) -> None:
        self._recorder.fail_or_go_on()
        self._recorder.log.append(("write", self._recorder.file_of(descriptor), offset, bytes(content)))
        super().write(descriptor, content, offset)

    def sync(self, descriptor: int) -> None:
        self._recorder.fail_or_go_on()
        self._recorder.log.append(("sync", self._recorder.file_of(descriptor)))

    def rename(self, source: str, target: str) -> None:
        self._recorder.fail_or_go_on()
        super().rename(source, target)
        self._recorder.renamed(source, target)

    def unlink(self, name: str) -> None:
        self._recorder.fail_or_go_on()
        super().unlink(name)
        self._recorder.log.append(("unlink", name))

    def sync_names(self) -> None:
        self._recorder.fail_or_go_on()
        self._recorder.log.append(("sync folder",))


@dataclass
class Disk:
    """What is on the disk for certain after some operations, and what may be."""

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytes] = field(default_factory=dict)
    loose_names: list[tuple] = field(default_factory=list)  # creations, renames, deletions since the last sync
    loose_writes: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)

    def do(self, operation: tuple) -> None:
        """Take note of an operation that was done."""
        what, *rest = operation
        if what == "create":
            self.contents.setdefault(rest[1], b"")
            self.loose_names.append(operation)
        elif what == "write":
            file, offset, content = rest
            self.loose_writes.setdefault(file, []).append((offset, content))
        elif what == "sync":
            for offset, content in self.loose_writes.pop(rest[0], []):
                self.contents[rest[0]] = _written(self.contents[rest[0]], offset, content)
        elif what in ("rename", "unlink"):
            self.loose_names.append(operation)
        elif what == "sync folder":
            for loose in self.loose_names:
                _apply(self.names, loose)
            self.loose_names = []

    def number_of_states(self) -> int:
        """How many states a power cut may leave now."""
        return 2 ** len(self.loose_names) * len(KEPT) ** sum(map(len, self.loose_writes.values()))

    def states(self, rng: np.random.Generator, most: int) -> Iterator[dict[str, bytes]]:
        """Files as a power cut may leave them: all possibilities, or some if there are too many."""
        writes = [(file, place) for file, all in self.loose_writes.items() for place in range(len(all))]
        if self.number_of_states() <= most:
            for kept_names in itertools.product([False, True], repeat=len(self.loose_names)):
                for kept in itertools.product(KEPT, repeat=len(writes)):
                    yield self._files(kept_names, dict(zip(writes, kept, strict=True)))
            return
        for number in range(most):
            share = [0.0, 1.0, 0.5][min(number, 2)]  # nothing of it, all of it, and then some of it
            kept_names = tuple(rng.random(len(self.loose_names)) < share)
            kept_writes = {write: str(rng.choice(KEPT)) if number > 1 else KEPT[1 - number] for write in writes}
            yield self._files(kept_names, kept_writes)

    def _files(self, kept_names: tuple[bool, ...], kept_writes: dict[tuple[int, int], str]) -> dict[str, bytes]:
        names, contents = dict(self.names), dict(self.contents)
        for operation, kept in zip(self.loose_names, kept_names, strict=True):
            if kept:
                _apply(names, operation)
        for (file, place), kept in kept_writes.items():
            offset, content = self.loose_writes[file][place]
            part = {"all": content, "none": b"", "half": content[: len(content) // 2], "zeros": bytes(len(content))}[
                kept
            ]
            if part:
                contents[file] = _written(contents[file], offset, part)
        return {name: contents[file] for name, file in names.items()}


def _apply(names: dict[str, int], operation: tuple) -> None:
    what, *rest = operation
    if what == "create":
        names[rest[0]] = rest[1]
    elif what == "rename":
        names.pop(rest[0], None)
        names[rest[1]] = rest[2]
    else:
        names.pop(rest[0], None)


def _written(before: bytes, offset: int, content: bytes) -> bytes:
    return before[:offset].ljust(offset, b"\0") + content + before[offset + len(content) :]


def power_cuts(rng: np.random.Generator, folder: Path, report: Report, changes: int) -> None:
    """Record some changes, one of which may fail, and cut the power at every instant."""
    recorder = Recorder(folder / "index")
    recorder.folder.mkdir()
    with folders_by(recorder.at):
        index, state = created(recorder.folder), State()
        # from which entry of the log on which states are allowed; None is no index at all
        marks: list[tuple[int, list[State | None]]] = [(0, [None, state]), (len(recorder.log), [state])]
        if rng.random() < 0.5:
            recorder.fail_after(int(rng.integers(1, 60)))
        for _ in range(changes):
            change = _replacement(rng, state) if rng.random() < 0.15 else random_change(rng, state)
            marks.append((len(recorder.log), [state, change.after]))
            try:
                if change.name == "save over it":
                    index.close()
                    change.apply(index)
                    index = Index.open(recorder.folder)
                else:
                    change.apply(index)
                state = change.after
            except StorageError as error:
                report.faults["error of the disk before a power cut"] += 1
                if "open it again" in str(error):
                    raise LostError(f"one error of the disk was more than an index could bear: {error}") from error
                if change.name == "save over it":
                    index = Index.open(recorder.folder)
            report.note(change, index)
            marks.append((len(recorder.log), [state]))
        index.close()
    replay(recorder, marks, rng, folder / "cut", report)


def _replacement(rng: np.random.Generator, state: State) -> Change:
    """Save another index in place of this one."""
    vectors = random_vectors(rng, 7)
    other = Index(hasher())
    other.add(vectors)
    after = State(dict(enumerate(vector.tobytes() for vector in vectors)), 7)
    return Change("save over it", lambda index: other.save(index.path, overwrite=True), after)


def replay(
    recorder: Recorder,
    marks: list[tuple[int, list[State | None]]],
    rng: np.random.Generator,
    cut: Path,
    report: Report,
    fault: str = "power cut",
    disk: Disk | None = None,
    most: int = MOST_STATES,
    share: float = 1.0,
) -> None:
    """Look at states, ``most`` of each instant, that a power cut leaves of ``disk``, at a share of the instants."""
    disk = disk or Disk()
    for number in range(len(recorder.log) + 1):
        allowed = [states for start, states in marks if start <= number][-1]
        if number:
            disk.do(recorder.log[number - 1])
        if rng.random() >= share:
            continue
        report.details["instants of a power cut"] += 1
        if disk.number_of_states() > most:
            report.details["instants with too many states, sampled"] += 1
        for files in disk.states(rng, most):
            report.faults[fault] += 1
            shutil.rmtree(cut, ignore_errors=True)
            cut.mkdir()
            for name, content in files.items():
                (cut / name).write_bytes(content)
            _look(cut, allowed, rng, f"{fault} after {number} of {len(recorder.log)} operations")


def _look(path: Path, allowed: list[State | None], rng: np.random.Generator, where: str) -> None:
    """What is there is a whole index in an allowed state, and can be written to."""
    try:
        found = content_on_disk(path)
    except StorageError as error:
        if None not in allowed or "there is no index" not in str(error):
            raise LostError(f"{where}: {error}") from error
        Index.create(path, hasher()).close()
        return
    state = one_of(found, [state for state in allowed if state is not None], where)
    if rng.random() < 0.1:
        with Index.open(path) as index:
            index.add(random_vectors(rng, 3))
        if len(content_on_disk(path)) != len(state.vectors) + 3:
            raise LostError(f"{where}: what was added afterwards is not there")
