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
from autojacobin.service.registry import warm_up

__all__ = ["compile_kernels"]

_ROWS, _WIDTH = 3_000, 32
_DTYPES = ("float32", "float16", "uint8", "float64")
_BITS = (16, 64)  # codes shorter than a word, and of whole words
_LISTS = 8

_Task = Callable[[Path], object]


def compile_kernels(progress: Progress | None = None) -> Path:
    """Fit every method, and build and search indexes of every kind, on a few random vectors.

    What that compiles stays in numba's cache, from which later processes load it if they run on the same kind of CPU.

    Parameters
    ----------
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Path
        The folder of the cache.
    """
    folder = _cache_folder()
    tasks = list(_tasks())
    with tempfile.TemporaryDirectory(prefix="autojacobin-") as home:
        for done, (stage, task) in enumerate(tasks):
            if progress is not None:
                progress(stage, done, len(tasks))
            task(Path(home) / str(done))
    return folder


def _cache_folder() -> Path:
    from autojacobin.search.kernels.selection import select_smallest

    path = select_smallest._cache.cache_path  # type: ignore[attr-defined]
    if path is None:
        raise StorageError(
            "what is compiled cannot be kept: neither the folder of the library nor the user's cache can be written; "
            "set NUMBA_CACHE_DIR to a folder that can"
        )
    return Path(path)


def _tasks() -> Iterator[tuple[str, _Task]]:
    for method in methods():
        yield f"compiling {method.label}", partial(_fit, method)
    for dtype in _DTYPES:
        for bits in _BITS:
            yield f"compiling searches among {dtype} vectors", partial(_serve, LSH(bits, random_state=0), dtype)
        learned = BinaryAutoencoder(_BITS[-1], random_state=0)
        yield f"compiling searches among {dtype} vectors", partial(_serve, learned, dtype)
        yield f"compiling inverted lists of {dtype} vectors", partial(_serve, learned, dtype, partitions=_LISTS)
    hasher = LSH(_BITS[-1], random_state=0)
    yield "compiling searches among codes", partial(_serve, hasher, _DTYPES[0], keep_vectors=False)


def _fit(method: Method, _: Path) -> None:
    rows = _vectors("float32")[:400, :16]  # few, because some methods are fitted many times to choose their settings
    method.make(rows.shape[1] if method.hasher is Sign else 8, seed=0).fit(rows).encode(rows)


def _serve(hasher: Hasher, dtype: str, folder: Path, **options: Any) -> None:
    """Build an index on disk, of one segment and then of several, and search it as a service does."""
    rows, limits = _vectors(dtype), Limits()
    with Index.create(folder, hasher.fit(rows[:1_000]), **options) as index:
        index.add(rows)
        for ids in (None, np.arange(5_000, 5_100)):
            with Index.open(folder) as served:
                warm_up(served, max_queries=max(limits.vectors, VECTORS_TOGETHER))
            index.add(rows[:100], ids=ids)
        index.remove(index.ids[:10])
        with Index.open(folder) as served:
            warm_up(served, max_queries=1)
        index.compact()


def _vectors(dtype: str) -> npt.NDArray[Any]:
    return np.random.default_rng(0).integers(0, 100, size=(_ROWS, _WIDTH)).astype(dtype)
