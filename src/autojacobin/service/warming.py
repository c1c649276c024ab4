"""Compile ahead of time what a service or an image of one will need, so that no request and no start waits for it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.core.parallel import Progress
from autojacobin.errors import StorageError
from autojacobin.hashers import LSH, BinaryAutoencoder, Hasher, Sign
from autojacobin.hashers.registry import Method, methods
from autojacobin.index.index import Index
from autojacobin.service.access import VECTORS_TOGETHER, Limits
from autojacobin.service.served import warm_up

_DTYPES = ("float32", "float16", "uint8", "float64")
_BITS = (16, 64, 128, 256, 512)  # other lengths up to 512 need the kernels of one of these
_MANY = 70_000  # enough to estimate radii from a sample
_LISTS = 8

_Task = Callable[[Path], object]


def compile_kernels(progress: Progress | None = None) -> None:
    """Fit every method, and build and search indexes of every kind, on a few random vectors.

    What that compiles stays in numba's cache, from which later processes load it if they run on the same kind of CPU.

    Parameters
    ----------
    progress : callable, optional
        Called as ``progress(stage, done, total)``.
    """
    _check_cache()
    tasks = list(_tasks())
    with tempfile.TemporaryDirectory(prefix="autojacobin-") as home:
        for done, (stage, task) in enumerate(tasks):
            if progress is not None:
                progress(stage, done, len(tasks))
            task(Path(home) / str(done))


def _check_cache() -> None:
    from autojacobin.search.kernels.selection import select_smallest

    if select_smallest._cache.cache_path is None:  # type: ignore[attr-defined]
        raise StorageError(
            "compiled code cannot be kept: neither the folder of the library nor the user's cache can be written; "
            "set NUMBA_CACHE_DIR to a folder that can"
        )


def _tasks() -> Iterator[tuple[str, _Task]]:
    for method in methods():
        yield f"compiling {method.label}", partial(_fit, method)
    for bits in _BITS:
        yield f"compiling searches among codes of {bits} bits", partial(_search_codes, bits)
    for dtype in _DTYPES:
        for hasher in (LSH(64, random_state=0), BinaryAutoencoder(64, random_state=0)):
            yield f"compiling searches among {dtype} vectors", partial(_search, hasher, None, dtype)
            yield f"compiling inverted lists of {dtype} vectors", partial(_search, hasher, _LISTS, dtype)


def _fit(method: Method, _: Path) -> None:
    rows = _vectors("float32", 400, 16)  # few, because some methods are fitted many times to choose their settings
    method.make(16 if method.hasher is Sign else 8, seed=0).fit(rows).encode(rows)


def _search_codes(bits: int, folder: Path) -> None:
    rows = _vectors("float32", _MANY, 8)
    with Index.create(folder, LSH(bits, random_state=0).fit(rows[:1_000])) as index:
        index.add(rows)
    _warm_up(Index.open(folder))


def _search(hasher: Hasher, partitions: int | None, dtype: str, folder: Path) -> None:
    """Search an index in memory, and one on disk, of one segment and then of several."""
    rows = _vectors(dtype, 3_000, 32)
    in_memory = Index(hasher.fit(rows[:1_000]), partitions=partitions)
    in_memory.add(rows)
    _warm_up(in_memory)
    in_memory.save(folder)
    _warm_up(Index.open(folder))
    with Index.open(folder) as index:
        index.add(rows[:100], ids=np.arange(5_000, 5_100))
        index.remove(index.ids[:10])
        _warm_up(index)
        index.compact()


def _warm_up(index: Index) -> None:
    warm_up(index, max_queries=max(Limits().vectors, VECTORS_TOGETHER))


def _vectors(dtype: str, n: int, width: int) -> npt.NDArray[Any]:
    return np.random.default_rng(0).integers(0, 100, size=(n, width)).astype(dtype)
