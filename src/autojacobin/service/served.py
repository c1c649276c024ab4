"""The registry of served indexes: it finds an index by name, picks up new versions, and warms them up.

A new version is opened and warmed up beside the one in use, then replaces it in one assignment. Searches that run at
that time keep the old one, which is freed when the last of them ends. A write of the service itself changes the index
in use, so that the next search sees it.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import usable_cores
from autojacobin.errors import AutoJacobinError, DataError, DataTypeError
from autojacobin.hashers import OwnCodes
from autojacobin.index.index import Index
from autojacobin.index.manifest import MANIFEST_NAME
from autojacobin.search.arguments import default_candidates
from autojacobin.search.few import MOST_QUERIES
from autojacobin.service.access import VECTORS_TOGETHER, Limits

_log = logging.getLogger("autojacobin.service")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# Numbers of queries and candidates from which the library uses other kernels.
_SCANNED = MOST_QUERIES + 1
_SLICED = 32
_COLLECTED_PER_CORE = 64
_ESTIMATED_NUMBERS = 2**18
_COMPARISONS = 2**30  # of codes in one search, which take some tenths of a second
_ROWS_TO_LEARN_FROM, _NUMBERS_TO_LEARN_FROM = 10_000, 2**23  # more than one block of the exact search


class ServedIndex:
    """An index with a name. An index in a folder is replaced by its new versions; one in memory stays as it is."""

    def __init__(self, name: str, source: Index | str | os.PathLike[str], limits: Limits | None = None) -> None:
        self.name = name
        self._limits = limits or Limits()
        self._warm: set[Hashable] = set()
        self.refreshes = 0
        self.failed_refreshes = 0
        self._path: Path | None = None
        self._seen: Any = None
        self._reported: Any = ()
        self._writing = threading.Lock()
        self._n_writes = 0
        self._warm_again = False
        if isinstance(source, Index):
            self.index = source
        else:
            self._path = Path(source)
            self._seen = _version_of(self._path)  # before the index is opened, so that no version is missed
            self.index = Index.open(self._path)

    @property
    def own_codes(self) -> OwnCodes | None:
        """The substitute for a hasher, if the index holds codes that were made elsewhere."""
        hasher = self.index.hasher
        return hasher if isinstance(hasher, OwnCodes) else None

    @property
    def id_kind(self) -> str:
        """Which ids the vectors have: integer, string or uuid."""
        return str(self.index.info()["ids"])

    def write(self, change: Callable[[Index], object]) -> Index:
        """Change the index in use, one change at a time, and give it.

        An index that was opened from a folder gives its lock back afterwards, so that other processes can write to it
        between the writes of the service.
        """
        if self._path is not None and _version_of(self._path) != self._seen:
            self.refresh()  # the folder may be another one by now
        with self._writing:
            index = self.index
            try:
                change(index)
                self._n_writes += 1
                self._warm_again = True
                if self._path is not None:
                    self._seen = _version_of(self._path)  # while the lock is held, so that it is this change
            finally:
                if self._path is not None:
                    index.release()
        return index

    def warm(self, index: Index | None = None) -> None:
        """Search in every way that a request can ask for, so that no request waits for the compiler or the disk.

        If an earlier version needed the same kernels, this only reads the codes of the new one.
        """
        index = index or self.index
        if not len(index):
            return
        kind = kind_of(index)
        if kind not in self._warm:
            _log.info("%s is being warmed up; the first time, code is compiled for about a minute", self.name)
            warm_up(index, max_queries=max(self._limits.vectors, VECTORS_TOGETHER))
            self._warm.add(kind)
            _log.info("%s is warm", self.name)

    def refresh(self) -> bool:
        """Switch to the newest version if it can be opened; otherwise keep the one in use."""
        if self._warm_again:
            self._warm_again = False
            self.warm()
        if self._path is None:
            return False
        version, n_writes = _version_of(self._path), self._n_writes
        if version == self._seen:
            self._reported = ()
            return False
        try:
            newest = Index.open(self._path)
            self.warm(newest)
        except Exception as error:  # any error: the other indexes must still be refreshed
            if version != self._reported:  # once for each version, though refresh runs every second
                self.failed_refreshes += 1
                self._reported = version
                unexpected = None if isinstance(error, AutoJacobinError) else error
                text = "the new version of %s cannot be served, so the old one stays in use: %s"
                _log.warning(text, self.name, error, exc_info=unexpected)
            return False
        with self._writing:
            if self._n_writes != n_writes:  # a write has read this version already, and made the next one
                return False
            self.index, self._seen, self._reported = newest, version, ()
        self.refreshes += 1
        _log.info("%s is at generation %s", self.name, newest.info()["generation"])
        return True


class IndexRegistry(Mapping[str, Index]):
    """All served indexes; as a mapping, it gives the newest version of each. The limits decide what is warmed up."""

    def __init__(self, indexes: Mapping[str, Index | str | os.PathLike[str]], limits: Limits | None = None) -> None:
        if not indexes:
            raise DataError("there is nothing to serve, got no index; give at least one")
        for name, source in indexes.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise DataError(
                    f"the name of an index must be 1 to 64 letters, digits, dots, dashes or underscores, got {name!r}; "
                    "give it another with NAME=PATH"
                )
            if not isinstance(source, Index | str | os.PathLike):
                raise DataTypeError(f"{name} must be an Index or the path of one, got {type(source).__name__}")
        self.served = {name: ServedIndex(name, source, limits) for name, source in indexes.items()}
        self._refreshing = threading.Lock()

    def __getitem__(self, name: str) -> Index:
        return self.served[name].index

    def __iter__(self) -> Iterator[str]:
        return iter(self.served)

    def __len__(self) -> int:
        return len(self.served)

    def warm(self) -> None:
        """Warm every index."""
        for served in self.served.values():
            served.warm()

    def refresh(self) -> None:
        """Switch to the newest version of every index."""
        with self._refreshing:
            for served in self.served.values():
                served.refresh()


def named_paths(arguments: list[str]) -> dict[str, Path]:
    """Read ``PATH`` or ``NAME=PATH`` for each index; the default name is that of the folder."""
    found: dict[str, Path] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or not _NAME.fullmatch(name):
            name, path = Path(argument).resolve().name, argument
        if name in found:
            raise DataError(
                f"two indexes cannot have one name, got {name!r} for {found[name]} and {path}; "
                "name one of them with NAME=PATH"
            )
        found[name] = Path(path)
    return found


def _version_of(path: Path) -> Any:
    """Give what differs between versions of a folder, from the manifest's file status; None if there is no folder."""
    try:
        status = os.stat(path / MANIFEST_NAME)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def takes_codes(index: Index, distance: str | None) -> bool:
    """Whether queries for an index are packed codes; by asymmetric distance they are real values, one for each bit."""
    return isinstance(index.hasher, OwnCodes) and distance != "asymmetric"


def width_of(index: Index, distance: str | None = None) -> int:
    """Width of the queries that an index takes: numbers of a vector, or bytes of a code."""
    if isinstance(index.hasher, OwnCodes) and not takes_codes(index, distance):
        return int(index.hasher.n_bits)
    return int(index.info()["features"])


def kind_of(index: Index) -> Hashable:
    """Give what decides which kernels an index needs. This searches it once by each distance; it must not be empty."""
    figures = index.info()
    found = [
        index.search(_queries(index, 1, name), 1, distance=name, rerank=False)[1] for name in index.hasher.distances
    ]
    dtype = index.vectors(found[0][0]).dtype.str if figures["vectors_kept"] else None
    sizes = figures["bits"], figures["features"], figures["segments"] > 1, figures["vectors"].bit_length()
    return *sizes, figures["lists"] is not None, dtype, index.hasher.distances


def warm_up(index: Index, *, max_queries: int) -> None:
    """Search an index, which must not be empty, in every way that has kernels of its own.

    ``max_queries`` is the most vectors that one call searches for.
    """
    kept, distances = index.info()["vectors_kept"], index.hasher.distances
    for n_queries in _query_counts(len(index), max_queries):
        for distance in distances:
            index.search(_queries(index, n_queries, distance), 1, distance=distance, rerank=False)
            if kept:
                index.search(_queries(index, n_queries), 1, distance=distance, candidates=default_candidates(1))
    _warm_up_filters(index)
    if kept:
        _warm_up_measures(index)
        _warm_up_recall(index)
        index.search(_queries(index, 1), 1)  # learns, if the index has not


def _query_counts(n_vectors: int, max_queries: int) -> list[int]:
    """Give one number of queries for each set of kernels; fewer for a large index, where many queries take minutes."""
    collected = _COLLECTED_PER_CORE * usable_cores()
    most = min(max_queries, max(collected, _COMPARISONS // n_vectors))
    return sorted({1, *(n for n in (_SCANNED, _SLICED, collected) if n < most), most})


def _warm_up_filters(index: Index) -> None:
    """Search among one vector, and among half of them, which are different kernels."""
    candidates = default_candidates(1) if index.info()["vectors_kept"] else None
    masks = np.arange(len(index)) == 0, np.arange(len(index)) % 2 == 0
    for distance in index.hasher.distances:
        for n_queries in (1, _SCANNED, _SLICED):
            for mask in masks:
                asked = _queries(index, n_queries, distance)
                index.search(asked, 1, distance=distance, candidates=candidates, among=mask)


def _warm_up_measures(index: Index) -> None:
    """Re-rank enough candidates for estimates, and search for a query of the dtype of the index."""
    width = int(index.hasher.n_features_in_)
    candidates = min(len(index), max(default_candidates(1), -(-_ESTIMATED_NUMBERS // (_SLICED * width))))
    needed = -(-_ESTIMATED_NUMBERS // (candidates * width))
    n_queries = max(_SLICED, min(needed, _COLLECTED_PER_CORE * usable_cores() - 1))
    _, ids = index.search(_queries(index, n_queries), 1, candidates=candidates)
    index.search(index.vectors(ids[0]), 1, candidates=default_candidates(1))


def _warm_up_recall(index: Index) -> None:
    """Let a small index of the same kind learn about itself, as this one will when it is written to."""
    found = index.search(_queries(index, 1), 1, rerank=False)[1]
    dtype, width = index.vectors(found[0]).dtype, int(index.hasher.n_features_in_)
    rows = max(2, min(_ROWS_TO_LEARN_FROM, _NUMBERS_TO_LEARN_FROM // width))
    small = Index(index.hasher)
    small.add(np.random.default_rng(0).integers(0, 100, size=(rows, width)).astype(dtype))


def _queries(index: Index, n: int, distance: str | None = None) -> npt.NDArray[Any]:
    shape = n, width_of(index, distance)
    return np.zeros(shape, dtype=np.uint8) if takes_codes(index, distance) else np.full(shape, 0.5, dtype=np.float32)
