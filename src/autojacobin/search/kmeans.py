"""The coarse quantiser of inverted lists: k-means.

All slices of the work have sizes that do not depend on the number of cores, so neither do the results.
"""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.core.parallel import Progress, one_blas_thread, run_tasks
from autojacobin.core.sampling import as_random_state
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.search.arguments import as_count
from autojacobin.search.centres import Centres, group_rows

_LISTS_PER_TASK = 64
_SAMPLE_PER_LIST = 128


def kmeans(
    X: Any,
    n_lists: SupportsIndex,
    *,
    sample: SupportsIndex | None = None,
    n_iterations: SupportsIndex = 10,
    random_state: Any = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Centres:
    """Find centres of vectors by k-means, on all cores or on a GPU.

    Parameters
    ----------
    X : matrix of shape (n, n_features)
        Vectors, in memory or in a memory map.
    n_lists : int
        Number of centres, at most ``n``.
    sample : int, optional
        Vectors to learn from, drawn at random; by default 128 for each centre, or all if there are fewer.
    n_iterations : int, default=10
        How often the centres move, at most.
    random_state : int, RandomState or None
        Draws the sample and the first centres.
    device : {"cpu", "cuda"}, default="cpu"
        Where to find the nearest centres, which is most of the work. ``"cuda"`` needs CuPy.
    progress : callable, optional
        Called as ``progress("partitioning", done, total)`` after each iteration.

    Returns
    -------
    Centres
        The same for the same seed, whatever the number of cores. The centre of a list that became empty is moved into
        the largest list.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from autojacobin.search.kmeans import kmeans
    >>> X = load_digits().data
    >>> centres = kmeans(X, 10, random_state=0)
    >>> len(centres), centres.assign(X).shape
    (10, (1797,))
    """
    vectors = as_matrix(X, "kmeans")
    wanted = as_count("n_lists", n_lists, len(vectors), "the number of vectors")
    iterations = as_count("n_iterations", n_iterations)
    size = _SAMPLE_PER_LIST * wanted if sample is None else as_count("sample", sample)
    rng = as_random_state(random_state)
    if max(size, wanted) < len(vectors):
        vectors = vectors[np.sort(rng.choice(len(vectors), max(size, wanted), replace=False))]
    if vectors.dtype not in (np.uint8, np.float32):
        vectors = as_floats(vectors).astype(np.float32, copy=False)
    chosen = np.sort(rng.choice(len(vectors), wanted, replace=False))
    centres = Centres(vectors[chosen].astype(np.float32))
    labels: npt.NDArray[np.int32] | None = None
    with one_blas_thread():
        for turn in range(iterations):
            before, labels = labels, centres.assign(vectors, device)
            if before is not None and np.array_equal(before, labels):
                break
            centres = _moved(centres, vectors, labels, rng)
            if progress is not None:
                progress("partitioning", turn + 1, iterations)
    return centres


def _moved(centres: Centres, X: npt.NDArray[Any], labels: npt.NDArray[np.int32], rng: Any) -> Centres:
    """Centres at the means of their lists; those of empty lists at vectors of the largest lists."""
    X = np.ascontiguousarray(X)
    bounds, order = group_rows(labels, len(centres))
    points = centres.points.copy()

    def work(first: int) -> None:
        kernels.write_means(X, order, bounds, first, min(first + _LISTS_PER_TASK, len(points)), points)

    run_tasks(work, [(first,) for first in range(0, len(points), _LISTS_PER_TASK)])
    sizes = np.diff(bounds)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        points[empty] = X[order[bounds[largest] + rng.randint(bounds[largest + 1] - bounds[largest])]]
        sizes[largest] -= sizes[largest] // 2
    return Centres(points)
