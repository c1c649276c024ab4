"""Damaged copies: an error that names a file or the right answer, and a repair that saves all that is whole."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np

from autojacobin import FormatError, Index, StorageError
from tests.stress.layer import Repair, repair
from tests.stress.model import (
    LostError,
    Report,
    State,
    check_search,
    content_of,
    content_on_disk,
    created,
    random_change,
)


def damage(rng: np.random.Generator, folder: Path, report: Report, copies: int) -> None:
    """Damage copies of an index in random ways, ask them, and repair them."""
    state = State()
    with created(folder / "index") as index:
        for _ in range(6):
            change = random_change(rng, state)
            change.apply(index)
            state = change.after
        model = index._state.hasher  # with lists, if the index has made any
    for number in range(copies):
        path = Path(shutil.copytree(folder / "index", folder / f"copy-{number}"))
        names = sorted(entry.name for entry in path.iterdir() if entry.name != "LOCK")
        kinds = [
            _spoil(path / str(name), rng) for name in rng.choice(names, size=int(rng.integers(1, 3)), replace=False)
        ]
        report.faults.update(kinds)
        _ask(path, state, rng)
        found = repair(path, folder / f"repaired-{number}", model)
        report.operations["repair"] += 1
        with Index.open(folder / f"repaired-{number}") as repaired:
            only_codes = not repaired.info()["vectors_kept"]  # manifest and all files of vectors were damaged
        if not only_codes:
            _compare(content_on_disk(folder / f"repaired-{number}"), state, found, kinds)


def _spoil(file: Path, rng: np.random.Generator) -> str:
    content = bytearray(file.read_bytes())
    kind = str(
        rng.choice(
            ["flipped bit", "file cut short", "file gone", "file of zeros", "lost sector"], p=[0.6, 0.1, 0.1, 0.1, 0.1]
        )
    )
    if kind == "file gone":
        file.unlink()
        return kind
    place = int(rng.integers(len(content)))
    if kind == "flipped bit":
        content[place] ^= 1 << int(rng.integers(8))
    elif kind == "file cut short":
        del content[place:]
    elif kind == "file of zeros":
        content[:] = bytes(len(content))
    else:
        sector = content[place // 512 * 512 : place // 512 * 512 + 512]
        content[place // 512 * 512 : place // 512 * 512 + 512] = os.urandom(len(sector))
    file.write_bytes(content)
    return kind


def _ask(path: Path, state: State, rng: np.random.Generator) -> None:
    """A damaged index says so, or answers rightly because the damage is elsewhere."""
    try:
        with Index.open(path) as index:
            check_search(index, state.vectors, rng)
            if content_of(index) != state.vectors:
                raise LostError("a damaged index gave wrong vectors")
    except (FormatError, StorageError):
        pass
    try:
        Index.open(path).verify()
    except (FormatError, StorageError):
        return
    raise LostError("verify passed a damaged index")


def _compare(found: dict[int, bytes], state: State, report: Repair, kinds: list[str]) -> None:
    """What is missing was reported, and what is there was there."""
    missing = Counter(state.vectors.values()) - Counter(found.values())
    if missing.total() > report.lost:
        raise LostError(f"repair after {kinds} lost {missing.total()} vectors and reported {report.lost}")
    kept = {id: vector for id, vector in found.items() if id in state.vectors}
    wrong = sum(vector != state.vectors[id] for id, vector in kept.items())
    if wrong and not report.revived + report.renumbered and not any("MANIFEST" in line for line in report.problems):
        raise LostError(f"repair after {kinds} gave {wrong} ids to other vectors")
