"""The indexes of a service: found by name, replaced by new versions, and warmed up.

A new version is opened and warmed up beside the one in use, which the searches that run then keep until they end.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.files import as_path
from autojacobin.core.parallel import Progress, usable_cores
from autojacobin.errors import AutoJacobinError, DataError, StorageError
from autojacobin.hashers import LSH, BinaryAutoencoder, Hasher, OwnCodes, Sign
from autojacobin.hashers.registry import Method, methods
from autojacobin.index.index import Index
from autojacobin.index.manifest import MANIFEST_NAME
from autojacobin.search.arguments import default_candidates
from autojacobin.search.prepared_search import MOST_QUERIES
from autojacobin.service.access import VECTORS_TOGETHER, Limits

_log = logging.getLogger("autojacobin.service")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# Numbers of queries and candidates from which the library uses other kernels.
_SCANNED = MOST_QUERIES + 1
_SLICED = 32
_COLLECTED_PER_CORE = 64
_ESTIMATED_NUMBERS = 2**18
_COMPARISONS = 2**30  # of codes in one search, which take some tenths of a second
_warm: set[Hashable] = set()  # kinds of indexes that this process has warmed up
_ROWS_TO_LEARN_FROM, _NUMBERS_TO_LEARN_FROM = 10_000, 2**23  # more than one block of the exact search


class ServedIndex:
    """An index with a name. An index in a folder is replaced by its new versions; one in memory stays as it is."""

    def __init__(
        self, name: str, source: Index | str | os.PathLike[str], limits: Limits | None = None, device: str = "cpu"
    ) -> None:
        self.name, self._device = name, device
        self._source = source if isinstance(source, Index) else as_path(source)
        self._limits = limits or Limits()
        self.refreshes = self.failed_refreshes = self._n_writes = 0
        self._reported: Any = ()
        self._writing = threading.Lock()
        self._warm_again = False
        self._seen = self._version()  # before the index is opened, so that no version is missed
        self.index = self._opened()

    def _opened(self) -> Index:
        index = self._source if isinstance(self._source, Index) else Index.open(self._source)
        return index if self._device == "cpu" else index.to(self._device)

    def _version(self) -> Any:
        """Give what differs between versions of a folder, from the file status of its manifest; None without one."""
        if isinstance(self._source, Index):
            return None
        try:
            status = os.stat(os.path.join(self._source, MANIFEST_NAME))
        except OSError:
            return None
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    @contextmanager
    def writing(self) -> Iterator[Index]:
        """Give the index in use to a block that changes it, one at a time; in between, other processes can write."""
        if self._version() != self._seen:
            self.refresh()  # the folder may be another one by now
        with self._writing:
            index = self.index
            try:
                yield index
                self._n_writes += 1
                self._warm_again = True
                self._seen = self._version()  # while the lock is held, so that it is this change
            finally:
                if not isinstance(self._source, Index):
                    index.release()

    def warm(self, index: Index | None = None) -> None:
        """Search in every way that a request can ask for, so that no request waits for the compiler or the disk."""
        index = (self.index if index is None else index)._frozen()  # since a request may change it meanwhile
        if len(index) and warm_up(index, max(self._limits.vectors, VECTORS_TOGETHER)):
            _log.info("%s is warm", self.name)

    def refresh(self) -> bool:
        """Switch to the newest version if it can be opened; otherwise keep the one in use."""
        if self._warm_again:
            self._warm_again = False
            self.warm()
        version, n_writes = self._version(), self._n_writes
        if version == self._seen:
            self._reported = ()
            return False
        try:
            newest = self._opened()
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
        _log.info("%s is at generation %s", self.name, newest.generation)
        return True


def open_indexes(
    indexes: Mapping[str, Index | str | os.PathLike[str]], limits: Limits | None = None, device: str = "cpu"
) -> dict[str, ServedIndex]:
    """Open all indexes of a service. The limits decide what is warmed up."""
    if not indexes:
        raise DataError("there is nothing to serve, got no index; give at least one")
    for name in indexes:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DataError(
                f"the name of an index must be 1 to 64 letters, digits, dots, dashes or underscores, got {name!r}; "
                "give it another with NAME=PATH"
            )
    return {name: ServedIndex(name, source, limits, device) for name, source in indexes.items()}


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


def takes_codes(index: Index, distance: str | None) -> bool:
    """Whether queries for an index are packed codes; by asymmetric distance they are real values, one for each bit."""
    return isinstance(index.hasher, OwnCodes) and distance != "asymmetric"


def width_of(index: Index, distance: str | None = None) -> int:
    """Width of the queries that an index takes: numbers of a vector, or bytes of a code."""
    if isinstance(index.hasher, OwnCodes) and not takes_codes(index, distance):
        return int(index.hasher.n_bits)
    return index.metric.width(int(index.hasher.n_features_in_))


def kind_of(index: Index) -> Hashable:
    """Give what decides which kernels an index needs. This searches it once by each distance; it must not be empty."""
    figures = index.info()
    found = [
        index.search(_queries(index, 1, name), 1, distance=name, rerank=False)[1] for name in index.hasher.distances
    ]
    dtype = index.vectors(found[0][0]).dtype.str if figures["vectors_kept"] else None
    sizes = figures["bits"], figures["features"], figures["segments"] > 1, figures["vectors"].bit_length()
    return *sizes, figures["lists"] is not None, dtype, index.hasher.distances


def warm_up(index: Index, max_queries: int) -> bool:
    """Search an index, which must not be empty, in every way that has kernels of its own, with up to ``max_queries``.

    Of a kind that this process has warmed up before, only the codes are read. Return whether it was another kind.
    """
    kind = kind_of(index), max_queries
    if kind in _warm:
        return False
    kept, places = index.info()["vectors_kept"], np.arange(len(index))
    many = default_candidates(1)
    ways: list[dict[str, Any]] = [{"k": 1, "rerank": False}, {"k": min(many, len(index)), "rerank": False}]
    for among in (None, places == 0, places % 2 == 0):  # one vector and half of them are filtered by other kernels
        ways.append({"k": 1, "candidates": many if kept else None, "among": among})
    # one number of queries for each set of kernels; fewer for a large index, where many queries take minutes
    collected = _COLLECTED_PER_CORE * usable_cores()
    most = min(max_queries, max(collected, _COMPARISONS // len(index)))
    for n_queries in sorted({1, *(n for n in (_SCANNED, _SLICED, collected) if n < most), most}):
        for distance in index.hasher.distances:
            for way in ways:
                index.search(_queries(index, n_queries, distance), distance=distance, **way)
    if kept:
        _warm_up_reranking(index)
    _warm.add(kind)
    return True


def compile_kernels(progress: Progress | None = None) -> None:
    """Fit every method and warm up small indexes of every kind, so that numba's cache holds all kernels."""
    from autojacobin.search.kernels.selection import select_smallest

    if select_smallest._cache.cache_path is None:  # type: ignore[attr-defined]
        raise StorageError(
            "compiled code cannot be kept: neither the folder of the library nor the user's cache can be written; "
            "set NUMBA_CACHE_DIR to a folder that can"
        )
    tasks = list(_tasks())
    with tempfile.TemporaryDirectory(prefix="autojacobin-") as home:
        for done, (stage, task) in enumerate(tasks):
            if progress is not None:
                progress(stage, done, len(tasks))
            task(Path(home) / str(done))


def _tasks() -> Iterator[tuple[str, Callable[[Path], object]]]:
    """What has kernels of its own: methods, lengths of codes, types of vectors, and kinds of lists."""
    for method in methods():
        yield f"compiling {method.label}", partial(_fit, method)
    for bits in (16, 64, 128, 256, 512):  # other lengths up to 512 need the kernels of one of these
        codes = partial(_build, LSH(bits, random_state=0), n=70_000, width=8)  # enough to estimate radii
        yield f"compiling searches among codes of {bits} bits", codes
    for dtype in ("float32", "float16", "uint8", "float64"):
        yield f"compiling searches among {dtype} vectors", partial(_build, LSH(64, random_state=0), dtype=dtype)
    yield "compiling the binary auto-encoder", partial(_build, BinaryAutoencoder(64, random_state=0))
    for hasher in (LSH(64, random_state=0), BinaryAutoencoder(64, random_state=0)):
        yield f"compiling inverted lists of {type(hasher).__name__}", partial(_build, hasher, partitions=8)


def _fit(method: Method, _: Path) -> None:
    rows = _vectors("float32", 400, 16)  # few, because some methods are fitted many times to choose their settings
    method.make(16 if method.hasher is Sign else 8, seed=0).fit(rows).encode(rows)


def _build(
    hasher: Hasher, folder: Path, dtype: str = "float32", *, n: int = 3_000, width: int = 32, **options: Any
) -> None:
    """Write an index of two segments, one of which has lost vectors, search it, and make one segment of them."""
    rows = _vectors(dtype, n + 100, width)
    with Index.create(folder, hasher.fit(rows[:1_000]), **options) as index:
        index.add(rows[100:])
        warm_up(index, max(Limits().vectors, VECTORS_TOGETHER))
        index.add(rows[:100])
        index.remove(index.ids[:10])
        warm_up(index, max(Limits().vectors, VECTORS_TOGETHER))
        index.compact()


def _vectors(dtype: Any, n: int, width: int) -> npt.NDArray[Any]:
    return np.random.default_rng(0).integers(0, 100, size=(n, width)).astype(dtype)


def _warm_up_reranking(index: Index) -> None:
    """Re-rank enough candidates for estimates, search for a query of the dtype of the index, and learn about recall."""
    width = int(index.hasher.n_features_in_)
    candidates = min(len(index), max(default_candidates(1), -(-_ESTIMATED_NUMBERS // (_SLICED * width))))
    needed = -(-_ESTIMATED_NUMBERS // (candidates * width))
    n_queries = max(_SLICED, min(needed, _COLLECTED_PER_CORE * usable_cores() - 1))
    _, ids = index.search(_queries(index, n_queries), 1, candidates=candidates)
    stored = index.vectors(ids[0])
    index.search(stored, 1, candidates=default_candidates(1))
    n = max(2, min(_ROWS_TO_LEARN_FROM, _NUMBERS_TO_LEARN_FROM // width))
    Index(index.hasher).add(_vectors(stored.dtype, n, width))  # learns, as this one will when it is written to
    index.search(_queries(index, 1), 1, recall=0.1)  # learns, if the index has not, and does not compare all vectors


def _queries(index: Index, n: int, distance: str | None = None) -> npt.NDArray[Any]:
    shape = n, width_of(index, distance)
    return np.zeros(shape, dtype=np.uint8) if takes_codes(index, distance) else np.full(shape, 0.5, dtype=np.float32)
