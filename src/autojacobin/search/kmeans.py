"""The coarse quantiser of inverted lists: k-means, and the nearest of its centres.

Distances are taken from matrix products, ‖x − c‖² = ‖x‖² + ‖c‖² − 2 x·c, after the mean of the centres was subtracted
from both, so that little is lost by rounding. All slices of the work have sizes that do not depend on the number of
cores, so neither do the results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state

from autojacobin.core.parallel import Progress, one_blas_thread, run_tasks
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError
from autojacobin.search.arguments import as_count
from autojacobin.search.kernels.centres import (
    CENTRES_PER_GROUP,
    group_rows,
    nearest_centres,
    nearest_column,
    write_groups,
    write_means,
)
from autojacobin.search.kernels.simd import empty_aligned

__all__ = ["Centres", "kmeans"]

_PRODUCTS_PER_BLOCK = 2**21
_FEWEST_ROWS, _MOST_ROWS = 128, 1024  # of a block; each product packs all centres again, so it should have many rows
_BLOCKS_PER_TASK = 8
_QUERIES_PER_TASK = 64
_LISTS_PER_TASK = 64
_SAMPLE_PER_LIST = 128


@dataclass(frozen=True)
class Centres:
    """The centres of lists, shape (n_lists, n_features), of float32."""

    points: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def origin(self) -> npt.NDArray[np.float32]:
        """The mean of the centres."""
        mean: npt.NDArray[np.float32] = self.points.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean

    @cached_property
    def _shifted(self) -> npt.NDArray[np.float32]:
        return self.points - self.origin

    @cached_property
    def _norms(self) -> npt.NDArray[np.float32]:
        norms: npt.NDArray[np.float32] = np.einsum("ij,ij->i", self._shifted, self._shifted)
        return norms

    @cached_property
    def _padded_norms(self) -> npt.NDArray[np.float32]:
        norms = np.full(-(-len(self) // CENTRES_PER_GROUP) * CENTRES_PER_GROUP, np.inf, dtype=np.float32)
        norms[: len(self)] = self._norms
        return norms

    @cached_property
    def _rounding(self) -> tuple[float, int, float]:
        """How centres are rounded to whole numbers: what 1 stands for, the largest number, and the largest norm.

        The sum of products with a query that is rounded to numbers up to the largest must fit 32 bits.
        """
        largest = min(127, math.isqrt((2**31 - 1) // (2 * self.points.shape[1])))
        step = float(np.abs(self._shifted).max()) / largest or 1.0
        return step, largest, float(self._norms.max())

    @cached_property
    def _groups(self) -> npt.NDArray[np.uint8]:
        """The centres as bytes."""
        n_groups, n_features = -(-len(self) // CENTRES_PER_GROUP), self.points.shape[1]
        groups = empty_aligned((n_groups, -(-n_features // 4), 4, 16, 4), np.uint8)
        groups[:] = 0
        write_groups(self._shifted, *self._rounding[:2], groups)
        return groups

    def assign(self, X: Any) -> npt.NDArray[np.int32]:
        """Give the number of the nearest centre of each row of ``X``; of equally near ones the first."""
        vectors = self._as_vectors(X)
        labels = np.empty(len(vectors), dtype=np.int32)
        per_task = _BLOCKS_PER_TASK * self._rows_per_block

        def work(start: int) -> None:
            for rows, _, products in self._products(vectors, start, start + per_task):
                nearest_column(products, self._norms, labels[rows])

        with one_blas_thread():
            run_tasks(work, [(start,) for start in range(0, len(vectors), per_task)])
        return labels

    def nearest(
        self, X: Any, n: SupportsIndex, usable: npt.NDArray[np.bool_] | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Find the ``n`` nearest centres of each row of ``X``.

        Parameters
        ----------
        X : matrix of shape (n_queries, n_features)
        n : int
            From 1 to the number of centres.
        usable : mask of shape (n_lists,), optional
            The centres that count.

        Returns
        -------
        numbers, squared : arrays of shape (n_queries, n)
            Numbers of the centres and squared distances, in ascending order; of equal ones the first. Where fewer than
            ``n`` centres count, the number is -1 and the distance infinite.
        """
        vectors = as_floats(self._as_vectors(X)).astype(np.float32, copy=False)
        wanted = as_count("n", n, len(self), "the number of centres")
        numbers = np.empty((len(vectors), wanted), dtype=np.int32)
        squared = np.empty((len(vectors), wanted), dtype=np.float32)

        def work(start: int) -> None:
            rows = slice(start, start + _QUERIES_PER_TASK)
            self.write_nearest(vectors[rows], numbers[rows], squared[rows], usable)

        run_tasks(work, [(start,) for start in range(0, len(vectors), _QUERIES_PER_TASK)])
        return numbers, squared

    def write_nearest(
        self,
        vectors: npt.NDArray[np.float32],
        numbers: npt.NDArray[np.int32],
        squared: npt.NDArray[np.float32],
        usable: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Write what :meth:`nearest` gives for some vectors, which are not checked, in the calling thread."""
        norms = self._padded_norms
        if usable is not None:
            norms = norms.copy()
            norms[: len(self)][~usable] = np.inf
        nearest_centres(vectors, self.points, self.origin, self._groups, norms, self._rounding, numbers, squared)

    def _as_vectors(self, X: Any) -> npt.NDArray[Any]:
        vectors: npt.NDArray[Any] = as_matrix(X, type(self).__name__)
        if vectors.shape[1] != self.points.shape[1]:
            raise DataError(
                f"vectors must have the {self.points.shape[1]} features of the centres, got {vectors.shape[1]}; "
                "pass vectors like those that the centres were made from"
            )
        return vectors

    @property
    def _rows_per_block(self) -> int:
        return min(max(_PRODUCTS_PER_BLOCK // len(self), _FEWEST_ROWS), _MOST_ROWS)

    def _products(
        self, vectors: npt.NDArray[Any], start: int, end: int
    ) -> Iterator[tuple[slice, npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        """Give the rows from ``start`` to ``end`` in blocks, less the origin, and their products with the centres."""
        per_block, end = self._rows_per_block, min(end, len(vectors))
        memory = np.empty((min(per_block, end - start), len(self)), dtype=np.float32)
        for first in range(start, end, per_block):
            rows = slice(first, min(first + per_block, end))
            block = self._block(vectors, rows)
            yield rows, block, np.matmul(block, self._shifted.T, out=memory[: len(block)])

    def _block(self, vectors: npt.NDArray[Any], rows: slice) -> npt.NDArray[np.float32]:
        """Rows of vectors as float32, less the origin."""
        block: npt.NDArray[np.float32] = as_floats(vectors[rows], rows.start).astype(np.float32, copy=False)
        return block - self.origin


def kmeans(
    X: Any,
    n_lists: SupportsIndex,
    *,
    sample: SupportsIndex | None = None,
    n_iterations: SupportsIndex = 10,
    random_state: Any = None,
    progress: Progress | None = None,
) -> Centres:
    """Find centres of vectors by k-means, on all cores.

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
    rng = check_random_state(random_state)
    if max(size, wanted) < len(vectors):
        vectors = vectors[np.sort(rng.choice(len(vectors), max(size, wanted), replace=False))]
    if vectors.dtype not in (np.uint8, np.float32):
        vectors = as_floats(vectors).astype(np.float32, copy=False)
    chosen = np.sort(rng.choice(len(vectors), wanted, replace=False))
    centres = Centres(vectors[chosen].astype(np.float32))
    labels: npt.NDArray[np.int32] | None = None
    with one_blas_thread():
        for turn in range(iterations):
            before, labels = labels, centres.assign(vectors)
            if before is not None and np.array_equal(before, labels):
                break
            centres = _moved(centres, vectors, labels, rng)
            if progress is not None:
                progress("partitioning", turn + 1, iterations)
    return centres


def _moved(centres: Centres, X: npt.NDArray[Any], labels: npt.NDArray[np.int32], rng: Any) -> Centres:
    """Centres at the means of their lists; those of empty lists at vectors of the largest lists."""
    bounds, order = np.zeros(len(centres) + 1, dtype=np.int64), np.empty(len(X), dtype=np.int64)
    group_rows(labels, bounds, order)
    points = centres.points.copy()

    def work(first: int) -> None:
        write_means(X, order, bounds, first, min(first + _LISTS_PER_TASK, len(points)), points)

    run_tasks(work, [(first,) for first in range(0, len(points), _LISTS_PER_TASK)])
    sizes = np.diff(bounds)
    for empty in np.flatnonzero(sizes == 0):
        largest = int(np.argmax(sizes))
        points[empty] = X[order[bounds[largest] + rng.randint(bounds[largest + 1] - bounds[largest])]]
        sizes[largest] -= sizes[largest] // 2
    return Centres(points)
