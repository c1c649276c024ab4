"""Several threads that share one index: writers take turns, readers are never wrong, close ends it cleanly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autojacobin import DataError, Index
from tests.stress.model import LostError, Report, content_of, content_on_disk, created, hasher, random_vectors
from tests.waiting import SECONDS, joined

STABLE = 30  # the first ids, which no thread touches


def threads(rng: np.random.Generator, folder: Path, report: Report, steps: int) -> None:
    """Writers with ids of their own, one without, and readers; in memory or in a folder."""
    in_memory = rng.random() < 0.3
    path = folder / "index"
    index = Index(hasher()) if in_memory else created(path)
    stable = random_vectors(rng, STABLE)
    index.add(stable)
    far = random_vectors(rng, 1)
    index.add(far, [10**9])  # so that ids that are counted on are above all others
    models: list[dict[int, bytes]] = [{}, {}]
    counted: list[bytes] = []
    done, errors = threading.Event(), []
    seeds = rng.integers(0, 2**32, 5)

    def write(number: int) -> None:
        own, model, first = np.random.default_rng(seeds[number]), models[number], 10**6 * (number + 1)
        for _ in range(steps):
            ids = first + own.permutation(200)[: int(own.integers(1, 20))]
            new = random_vectors(own, len(ids))
            index.upsert(new, ids)
            model.update(zip(ids.tolist(), (vector.tobytes() for vector in new), strict=True))
            gone = [id for id in model if own.random() < 0.2]
            index.remove(gone)
            for id in gone:
                del model[id]
            if own.random() < 0.3:
                index.compact()
            report.operations["change by one of several threads"] += 2

    def count_on() -> None:
        own = np.random.default_rng(seeds[2])
        for _ in range(steps):
            new = random_vectors(own, int(own.integers(1, 9)))
            index.add(new)
            counted.extend(vector.tobytes() for vector in new)
            report.operations["change by one of several threads"] += 1

    def read(seed: int) -> None:
        own = np.random.default_rng(seed)
        while not done.is_set():
            row = int(own.integers(STABLE))
            distances, ids = index.search(stable[row : row + 1], 3, candidates=10**6)
            if distances[0, 0] != 0 or len(set(ids[0].tolist())) < 3 or np.any(np.diff(distances[0]) < 0):
                raise LostError(f"a search beside writers found {ids} at {distances}")
            if index.vectors([row])[0].tobytes() != stable[row].tobytes() or row not in index or len(index) < STABLE:
                raise LostError("a vector that nobody touched has changed")
            if own.random() < 0.2:
                index.verify()
                index.refresh()
            report.operations["search beside writers"] += 1

    def guarded(work: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    writers = [guarded(write, 0), guarded(write, 1), guarded(count_on)]
    readers = [guarded(read, int(seed)) for seed in seeds[3:]]
    joined(*writers)
    done.set()
    joined(*readers)
    if errors:
        raise errors[0]
    found = content_of(index)
    expected = models[0] | models[1] | dict(enumerate(vector.tobytes() for vector in stable))
    expected[10**9] = far[0].tobytes()
    rest = [vector for id, vector in found.items() if id not in expected]
    if not expected.items() <= found.items() or sorted(rest) != sorted(counted):
        raise LostError(f"threads: {len(found)} vectors, expected {len(expected)} and {len(counted)}")
    _close_among_readers(index, stable, guarded, errors, report)
    if not in_memory and content_on_disk(path) != found:
        raise LostError("threads: another state on the disk than in memory")


def _close_among_readers(
    index: Index, stable: np.ndarray, guarded: Callable[..., threading.Thread], errors: list, report: Report
) -> None:
    """Readers answer rightly until they are refused, whenever the close comes."""
    ready = threading.Barrier(4)

    def read() -> None:
        ready.wait(SECONDS)
        try:
            while True:
                if len(index) < STABLE or 3 not in index or index.search(stable[:1], 1)[0][0, 0] != 0:
                    raise LostError("an answer from an index that was being closed is wrong")
                index.vectors([1])
                index.verify()
        except DataError as error:
            if "closed" not in str(error):
                raise

    readers = [guarded(read) for _ in range(3)]
    ready.wait(SECONDS)
    index.close()
    joined(*readers)
    if errors:
        raise errors[0]
    report.faults["close while threads read"] += 1
