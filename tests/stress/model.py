"""What an index must hold: a dict in memory, random changes of it, and the comparison with an index."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from autojacobin import LSH, Index
from autojacobin.index import growth, segment

N_FEATURES = 8
N_BITS = 16
LARGEST = 400  # vectors; more are soon removed
REAL_SIZES = growth._FEWEST_VECTORS, segment._FEWEST_IN_LISTS


def make_lists_early() -> None:
    """Make lists at 60 vectors instead of 65,536, and again at 128, so that faults come in the middle of it."""
    growth._FEWEST_VECTORS, segment._FEWEST_IN_LISTS = 60, 1


@dataclass(frozen=True)
class State:
    """Vectors by id as bytes, and the id that the next vector gets."""

    vectors: dict[int, bytes] = field(default_factory=dict)
    next_id: int = 0

    @property
    def digest(self) -> str:
        """A short name for what is in it."""
        content = hashlib.sha256()
        for id in sorted(self.vectors):
            content.update(id.to_bytes(8, "little") + self.vectors[id])
        return content.hexdigest()[:16]


@dataclass(frozen=True)
class Change:
    """Something to do to an index, and the state afterwards."""

    name: str
    apply: Callable[[Index], None]
    after: State


class LostError(AssertionError):
    """An index that does not hold what it must, or an answer that is wrong."""


@cache
def hasher() -> LSH:
    """Few bits, so that distances are often equal."""
    return LSH(N_BITS, random_state=0).fit(random_vectors(np.random.default_rng(0), 50))


def created(path: Path) -> Index:
    """Make an index that makes its own lists."""
    return Index.create(path, hasher(), partitions="auto")


def random_vectors(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(-9, 10, (n, N_FEATURES)).astype(np.float32)


def random_change(rng: np.random.Generator, state: State, saved: Path | None = None) -> Change:
    """Draw a change; a copy is saved to ``saved`` if that is given."""
    names = ["add", "upsert", "add a stream", "remove", "compact"]
    weights = [0.25, 0.25, 0.1, 0.2, 0.2]
    name = str(rng.choice(names, p=weights)) if saved is None or rng.random() > 0.1 else "save"
    if name == "remove" and not state.vectors:
        name = "add"
    if len(state.vectors) > LARGEST:
        name = "remove"
    n = int(rng.integers(1, 40)) if state.vectors else 70  # an empty index gets as many as call for lists
    vectors = random_vectors(rng, n)
    if rng.random() < 0.1:  # equal ones, or as large as they may be
        vectors[:] = vectors[0] * np.float32(rng.choice([1, 1e14, 1e-30]))
    if name in ("add", "add a stream"):
        blocks = np.array_split(vectors, 3) if name == "add a stream" else None
        added = dict(enumerate((vector.tobytes() for vector in vectors), state.next_id))
        after = State(state.vectors | added, state.next_id + n)
        return Change(name, lambda index: index.add(vectors if blocks is None else iter(blocks)), after)
    if name == "upsert":
        ids = rng.permutation(2 * LARGEST)[:n]
        added = dict(zip(ids.tolist(), (vector.tobytes() for vector in vectors), strict=True))
        after = State(state.vectors | added, max(state.next_id, int(ids.max()) + 1))
        return Change(name, lambda index: index.upsert(vectors, ids), after)
    if name == "remove":
        share = 0.9 if len(state.vectors) > LARGEST else 0.2
        gone = {id for id in state.vectors if rng.random() < share}
        left = {id: vector for id, vector in state.vectors.items() if id not in gone}
        return Change(
            name, lambda index: index.remove(np.array(sorted(gone), dtype=np.int64)), State(left, state.next_id)
        )
    if name == "compact":
        return Change(name, lambda index: index.compact(), state)
    return Change(name, lambda index: index.save(saved, overwrite=True), state)


def content_of(index: Index) -> dict[int, bytes]:
    """Vectors by id, read back from an index, after a check that its codes are theirs.

    Another thread may refresh the index meanwhile; then it is read once more.
    """
    for last in (False, True):
        found = _walked(index)
        if len(index) == len(found) and index.ids.tolist() == sorted(found):
            break
        if last:
            raise LostError("ids that are not those of the parts")
    return found


def _walked(index: Index) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for part in index.parts():
        if part.codes != index.hasher.encode(part.vectors):
            raise LostError("codes that are not those of the vectors")
        found |= dict(zip(part.ids.tolist(), (vector.tobytes() for vector in part.vectors), strict=True))
    return found


def content_on_disk(path: Path) -> dict[int, bytes]:
    """The same of an index that is opened anew and verified."""
    with Index.open(path) as index:
        index.verify()
        return content_of(index)


def check_search(index: Index, vectors: dict[int, bytes], rng: np.random.Generator) -> None:
    """Compare a search with brute force."""
    if not vectors:
        return
    k = int(rng.integers(1, min(10, len(vectors)) + 1))
    query = random_vectors(rng, 1)
    distances, ids = index.search(query, k, recall=1)
    all_ids = np.array(sorted(vectors))
    matrix = np.frombuffer(b"".join(vectors[id] for id in all_ids.tolist()), dtype=np.float32).reshape(-1, N_FEATURES)
    exact = np.sqrt(((matrix.astype(np.float64) - query) ** 2).sum(axis=1))
    order = np.argsort(exact, kind="stable")[:k]
    if not np.array_equal(ids[0], all_ids[order]) or not np.allclose(distances[0], exact[order]):
        raise LostError("a search that finds other neighbours than brute force")


def warm_up(folder: Path) -> None:
    """Compile everything before there are forks and interrupts."""
    rng, state = np.random.default_rng(0), State()
    with created(folder / "index") as index:
        for _ in range(20):
            change = random_change(rng, state, folder / "saved")
            change.apply(index)
            state = change.after
            check_search(index, state.vectors, rng)
    one_of(content_on_disk(folder / "index"), [state], "before any fault")


def one_of(found: dict[int, bytes], allowed: Iterable[State], where: str) -> State:
    """Give the allowed state that was found."""
    states = list(allowed)
    for state in states:
        if found == state.vectors:
            return state
    expected = " or ".join(str(len(state.vectors)) for state in states)
    raise LostError(f"{where}: {len(found)} vectors in a state that was never committed, expected that with {expected}")


@dataclass
class Report:
    """What was done, what was made to fail, and what was lost."""

    operations: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)

    def note(self, change: Change, index: Index) -> None:
        """Count a change, and whether the index has lists after it."""
        self.operations[change.name] += 1
        self.details["changes of an index with lists"] += index.info()["lists"] is not None

    def table(self) -> str:
        """All of it, to be printed."""
        lines = [f"{'operations':40s} {self.operations.total():>12,}"]
        lines += [f"  {name:38s} {number:12,}" for name, number in sorted(self.operations.items())]
        lines += [f"{'faults':40s} {self.faults.total():>12,}"]
        lines += [f"  {name:38s} {number:12,}" for name, number in sorted(self.faults.items())]
        lines += [f"{name:40s} {number:12,}" for name, number in sorted(self.details.items())]
        return "\n".join([*lines, f"{'losses':40s} {len(self.losses):12,}", *self.losses])
