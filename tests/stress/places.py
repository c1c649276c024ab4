"""A full disk, a deleted LOCK, and a folder that another takes the place of."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from autojacobin import Index, StorageError
from tests.stress.layer import Folder, folders_by
from tests.stress.model import (
    LostError,
    Report,
    State,
    content_of,
    content_on_disk,
    created,
    hasher,
    one_of,
    random_change,
    random_vectors,
)

DISK_BYTES = 4_000_000


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system in memory, and say whether that was allowed."""
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES // 1024}k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, check=False, timeout=1200).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=1200)


class Quota:
    """A file layer on which some bytes can be written; then the disk is full, in the middle of a write."""

    def __init__(self) -> None:
        self.left = 10**9

    def folder(self, path: Path) -> Folder:
        quota = self

        class WithQuota(Folder):
            def write(self, descriptor: int, content: memoryview, offset: int) -> None:
                if len(content) > quota.left:
                    super().write(descriptor, content[: quota.left], offset)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                quota.left -= len(content)
                super().write(descriptor, content, offset)

        return WithQuota(path)


def full_disks(rng: np.random.Generator, folder: Path, report: Report, changes: int) -> None:
    """Changes on a disk that is full again and again; each of them happens or does not."""
    place = folder / "disk"
    place.mkdir()
    with small_disk(place) as mounted:
        quota = Quota()

        def fill() -> None:
            if mounted:
                room = os.statvfs(place)
                size = max(0, room.f_bavail * room.f_frsize - int(rng.integers(0, 60_000)))
                (place / "filler").write_bytes(bytes(size))
            else:
                quota.left = int(rng.integers(0, 60_000))

        def empty() -> None:
            quota.left = 10**9
            (place / "filler").unlink(missing_ok=True)

        with folders_by(quota.folder):
            kind = "full disk (a small file system)" if mounted else "full disk (a file layer with a quota)"
            _change_on_a_full_disk(rng, place, report, changes, kind, fill, empty)


def _change_on_a_full_disk(
    rng: np.random.Generator,
    place: Path,
    report: Report,
    changes: int,
    kind: str,
    fill: Callable[[], None],
    empty: Callable[[], None],
) -> None:
    path, state = place / "index", State()
    with created(path) as index:
        for _ in range(changes):
            change = random_change(rng, state, place / "saved")
            if rng.random() < 0.7:
                fill()
            try:
                change.apply(index)
                state = change.after
            except StorageError as error:
                if "nothing was changed" not in str(error):
                    raise LostError(f"full disk: {error}") from error
                report.faults[kind] += 1
            report.note(change, index)
            one_of(content_of(index), [state], f"full disk, {change.name}")
            one_of(content_on_disk(path), [state], f"full disk, {change.name}, on the disk")
            empty()
            if rng.random() < 0.3:
                index.compact()


def lost_places(rng: np.random.Generator, folder: Path, report: Report, times: int) -> None:
    """The lock is deleted or the folder replaced under a writer, before a change or in the middle of one."""
    for number in range(times):
        (folder / str(number)).mkdir()
        _lose_a_place(rng, folder / str(number), report, swap=number % 2 == 0)


def _lose_a_place(rng: np.random.Generator, folder: Path, report: Report, *, swap: bool) -> None:
    live, old, backup = folder / "live", folder / "old", folder / "backup"
    first = Index.create(live, hasher())
    change = random_change(rng, State())
    change.apply(first)
    state = change.after
    precious = random_vectors(rng, 9)
    with Index.create(backup, hasher()) as index:
        index.add(precious)

    def lose() -> None:
        if swap:
            live.rename(old)
            backup.rename(live)
        else:
            (live / "LOCK").unlink()

    second: list[Index] = []
    added = random_vectors(rng, 5)

    def blocks() -> Iterator[np.ndarray]:
        yield random_vectors(rng, 3)
        lose()
        if rng.random() < 0.7:  # somebody else writes at once
            second.append(Index.open(live))
            second[0].add(added)
        yield random_vectors(rng, 3)

    middle = bool(rng.random() < 0.6)
    if not middle:
        lose()
    report.faults["folder replaced under a writer" if swap else "LOCK deleted under a writer"] += 1
    for attempt in range(3):
        try:
            first.add(blocks() if middle and not attempt else random_vectors(rng, 2))
        except StorageError:
            report.operations["change that is refused"] += 1
        else:
            raise LostError("a writer that lost its place wrote on")
        if rng.random() < 0.5:
            first.refresh()
    expected = dict(enumerate(vector.tobytes() for vector in precious)) if swap else dict(state.vectors)
    if second:
        next_id = len(precious) if swap else state.next_id
        expected |= dict(enumerate((vector.tobytes() for vector in added), next_id))
        if content_of(second[0]) != expected:
            raise LostError("the second writer lost what it wrote")
    if content_on_disk(live) != expected:
        raise LostError(f"{'a replaced folder' if swap else 'a deleted LOCK'}: another state than the second writer's")
    if swap and content_on_disk(old) != state.vectors:
        raise LostError("the folder that was moved away has changed")
    for index in [first, *second]:
        index.close()
