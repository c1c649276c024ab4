"""The centres of inverted lists, and the nearest of them.

Distances are taken from matrix products, ‖x − c‖² = ‖x‖² + ‖c‖² − 2 x·c, after the mean of the centres was subtracted
from both, so that little is lost by rounding. All slices of the work have sizes that do not depend on the number of
cores, so neither do the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.core.arrays import empty_aligned, namespace, on_device, to_host
from autojacobin.core.parallel import one_blas_thread, run_tasks, slices
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError
from autojacobin.search import gpu
from autojacobin.search.kernels.byte_products import CENTRES_PER_GROUP, STEPS_AT_ONCE, write_groups
from autojacobin.search.kernels.coarse_quantiser import FEWEST_IN_CELLS, cells_to_look_at, nearest_centres

_PRODUCTS_PER_BLOCK = 2**21
_PRODUCTS_ON_GPU = 2**27
_GPU_THREADS, _ROWS_PER_GPU_BLOCK = 256, 8  # a warp for each row
_FEWEST_ROWS, _MOST_ROWS = 128, 1024  # of a block; each product packs all centres again, so it should have many rows
_BLOCKS_PER_TASK = 8
_TURNS_PER_SPLIT = 8
_NEAR_CENTRES = 24  # of which the second is chosen
_ROWS_PER_TASK = 512
_TINY = 1e-37
NO_RULE, NO_SHARES = np.empty((0, 6)), np.empty(0)


@dataclass(frozen=True)
class Centres:
    """The centres of lists, shape (n_lists, n_features), of float32."""

    points: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def origin(self) -> npt.NDArray[np.float32]:
        """The mean of the centres."""
        return self.points.mean(axis=0, dtype=np.float64).astype(np.float32)

    @cached_property
    def _shifted(self) -> npt.NDArray[np.float32]:
        return self.points - self.origin

    @cached_property
    def _norms(self) -> npt.NDArray[np.float32]:
        return np.einsum("ij,ij->i", self._shifted, self._shifted)

    @cached_property
    def _rounding(self) -> tuple[float, int, float]:
        """How centres are rounded to whole numbers: what 1 stands for, the largest number, and the largest norm."""
        return *rounding_of(self._shifted), float(self._norms.max())

    @cached_property
    def order(self) -> npt.NDArray[np.int32]:
        """The centres as they are stored: cell after cell, if there are cells."""
        numbers = np.arange(len(self), dtype=np.int32)
        if len(self) < FEWEST_IN_CELLS:
            return numbers
        with one_blas_thread():
            return np.concatenate(_split(self._shifted, numbers))

    @cached_property
    def _groups(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """The centres as bytes, and their norms, in their order."""
        return self._written(self._shifted[self.order])

    @cached_property
    def _cells(self) -> npt.NDArray[np.float32]:
        """The means of the groups, less the origin."""
        starts = np.arange(0, len(self), CENTRES_PER_GROUP)
        sizes = np.diff([*starts, len(self)])
        return (np.add.reduceat(self._shifted[self.order], starts) / sizes[:, np.newaxis]).astype(np.float32)

    @cached_property
    def _means(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        """The means of the groups as bytes, and their norms."""
        return self._written(self._cells)

    def _written(self, points: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        groups = in_groups(points, *self._rounding[:2])
        norms = np.full(len(groups) * CENTRES_PER_GROUP, np.inf, dtype=np.float32)
        norms[: len(points)] = np.einsum("ij,ij->i", points, points)
        return groups, norms

    def assign(self, X: Any, device: str = "cpu") -> Any:
        """Give the number of the nearest centre of each row of ``X``; of equally near ones the first.

        On a GPU, numbers are rounded in another way, so of almost equally near centres it may be another. The numbers
        are where ``X`` is.
        """
        vectors = self._as_vectors(X)
        if device != "cpu" or namespace(X) is not np:
            (found,) = self._nearest_on_gpu(vectors, 1)
            return to_host(found) if namespace(X) is np else found
        per_block = min(max(_PRODUCTS_PER_BLOCK // len(self), _FEWEST_ROWS), _MOST_ROWS)
        per_task = _BLOCKS_PER_TASK * per_block
        labels = np.empty(len(vectors), dtype=np.int32)

        def work(start: int) -> None:
            end = min(start + per_task, len(vectors))
            memory = np.empty((min(per_block, end - start), len(self)), dtype=np.float32)
            for first in range(start, end, per_block):
                rows = slice(first, min(first + per_block, end))
                block = as_floats(vectors[rows], first).astype(np.float32, copy=False) - self.origin
                products = np.matmul(block, self._shifted.T, out=memory[: len(block)])
                labels[rows] = kernels.nearest_column(products, self._norms)

        with one_blas_thread():
            run_tasks(work, [(start,) for start in range(0, len(vectors), per_task)])
        return labels

    def _nearest_on_gpu(self, X: Any, n: int) -> Any:
        """The nearest centre of each row of ``X``, and a second one of all centres if ``n`` is 2, as rows.

        Products of directions in fp16 tell which few centres are in question, and the kernels compare these.
        """
        largest, more = np.float32(max(math.sqrt(self._norms.max()), _TINY)), -len(self) % 8
        norms = on_device(np.pad(self._norms, (0, more), constant_values=np.inf), "cuda")
        points, origin = on_device(np.pad(self._shifted, ((0, more), (0, 0))), "cuda"), on_device(self.origin, "cuda")
        xp, size = namespace(points), np.uint32(len(points))
        found, halves = xp.empty((n, len(X)), dtype=np.int32), (points / largest).T.astype(np.float16)

        def directions(rows: Any) -> tuple[Any, Any, Any]:
            lengths = xp.maximum(xp.sqrt((rows**2).sum(axis=1)), _TINY)
            unit = rows / lengths[:, None]
            return unit, lengths, unit.astype(np.float16) @ halves

        for rows in slices(len(X), max(1, _PRODUCTS_ON_GPU // len(self))):
            block = xp.ascontiguousarray(on_device(X[rows], "cuda").astype(np.float32) - origin)
            _, lengths, products = directions(block)
            n_rows, grid = np.uint32(len(block)), (-(-len(block) // _ROWS_PER_GPU_BLOCK),)
            given = block, points, np.int32(points.shape[1]), norms, n_rows, size, products, lengths * largest
            gpu.launch("first_centres", (), grid, _GPU_THREADS, (*given, found[0, rows]))
            if n == 2:
                left, _, along = directions(block - points[found[0, rows]])
                shifts = (left * block).sum(axis=1)
                second = left, along, largest, shifts, found[0, rows], found[1, rows]
                gpu.launch("second_centres", (), grid, _GPU_THREADS, (*given, *second))
        return found

    def nearest(
        self, X: npt.NDArray[Any], n: int, usable: npt.NDArray[np.bool_] | None = None, *, exact: bool = True
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Find the ``n`` nearest centres of each row of ``X``, in the calling thread, as a search finds them.

        If ``usable`` is given, only the centres in this mask count. Unless ``exact``, only those in the nearest cells
        are looked at where there are many, so that some may be missed. Gives numbers and squared distances, both of
        shape (n_queries, n), in ascending order; of equal ones the first. Where fewer than ``n`` centres count, the
        number is -1 and the distance infinite.
        """
        vectors = np.require(self._as_vectors(X), np.float32, ("C", "W"))  # or kernels would be compiled again
        numbers, squared = np.empty((len(vectors), n), np.int32), np.empty((len(vectors), n), np.float32)
        *arrays, rounding, means, norms_of_means, in_cells = self.arrays(usable, exact=exact)
        cells = means, norms_of_means, cells_to_look_at(len(self), n) if in_cells else 0
        nearest_centres(vectors, *arrays, (*rounding, 0.0), cells, NO_RULE, NO_SHARES, numbers, squared)  # type: ignore[call-arg]
        return numbers, squared

    def arrays(self, usable: npt.NDArray[np.bool_] | None = None, *, exact: bool = True) -> tuple[Any, ...]:
        """The centres as the kernels take them, less the number of cells to look at.

        Their last three are the means of the cells, the norms of these, and whether the cells may be used.
        """
        groups, norms = self._groups
        if usable is not None:
            norms = norms.copy()
            norms[: len(self)][~usable[self.order]] = np.inf
        in_cells = not exact and usable is None and len(self) >= FEWEST_IN_CELLS
        means = self._means if in_cells else self._groups
        return self.points, self.origin, groups, self.order, norms, self._rounding, *means, in_cells

    def ranks_of_cells(self, X: npt.NDArray[Any], numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Give for some centres of each row of ``X`` how many cells are nearer to it than the cell of the centre."""
        cell_of = np.empty(len(self), dtype=np.int32)
        cell_of[self.order] = np.arange(len(self)) // CENTRES_PER_GROUP
        cells, vectors = self._cells, self._as_vectors(X) - self.origin
        nearest = (np.einsum("ij,ij->i", cells, cells) - 2 * (vectors @ cells.T)).argsort(axis=1)
        ranks = np.empty(nearest.shape, dtype=np.int32)
        np.put_along_axis(ranks, nearest, np.arange(len(cells), dtype=np.int32)[np.newaxis], axis=1)
        return np.take_along_axis(ranks, cell_of[numbers], axis=1)

    def first_and_second(self, X: Any) -> tuple[Any, Any]:
        """Give the numbers of the nearest centre of each row of ``X``, and of a second one.

        Of some near centres c, the second has the smallest ‖x − c‖² + (component of x − c along r)², where r is what is
        left beside the first centre: it is near, and what is left points elsewhere. A GPU looks at all centres.
        """
        if namespace(X) is not np:
            return tuple(self._nearest_on_gpu(X, 2))
        first, second = np.empty((2, len(X)), dtype=np.int32)
        floats = np.require(X, np.float32, ("C", "W"))
        self.arrays()  # made once, before threads need them

        def work(rows: slice) -> None:
            numbers = self.nearest(floats[rows], min(_NEAR_CENTRES, len(self)))[0]
            first[rows], second[rows] = kernels.choose_first_and_second(floats[rows], self.points, numbers)

        run_tasks(work, [(rows,) for rows in slices(len(X), _ROWS_PER_TASK)])
        return first, second

    def _as_vectors(self, X: Any) -> npt.NDArray[Any]:
        vectors: npt.NDArray[Any] = as_matrix(X, type(self).__name__)
        if vectors.shape[1] != self.points.shape[1]:
            raise DataError(
                f"vectors must have the {self.points.shape[1]} features of the centres, got {vectors.shape[1]}; "
                "pass vectors like those that the centres were made from"
            )
        return vectors


def group_rows(labels: npt.NDArray[Any], n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give the rows of each of ``n`` labels, one label after another, in ascending order, and where each begins."""
    bounds = np.zeros(n + 1, dtype=np.int64)
    np.cumsum(np.bincount(labels, minlength=n), out=bounds[1:])
    short = labels.astype(np.uint16) if n <= 2**16 else labels  # NumPy sorts short numbers by their digits
    return bounds, np.argsort(short, kind="stable")


def rounding_of(rows: npt.NDArray[np.float32]) -> tuple[float, int]:
    """How rows are rounded to whole numbers: what 1 stands for, and the largest number.

    The sum of products with a query that is rounded to numbers up to the largest must fit 32 bits.
    """
    largest = min(127, math.isqrt((2**31 - 1) // (2 * rows.shape[1])))
    return float(np.abs(rows).max()) / largest or 1.0, largest


def in_groups(rows: npt.NDArray[np.float32], step: float, largest: int) -> npt.NDArray[np.uint8]:
    """Rows as bytes, as the kernels multiply them."""
    n_steps = -(-rows.shape[1] // (4 * STEPS_AT_ONCE)) * STEPS_AT_ONCE
    groups = empty_aligned((-(-len(rows) // CENTRES_PER_GROUP), n_steps, 4, 16, 4), np.uint8)
    groups[:] = 0
    write_groups(rows, step, largest, groups)
    return groups


def _split(points: npt.NDArray[np.float32], numbers: npt.NDArray[np.int32]) -> list[npt.NDArray[np.int32]]:
    """Halve points again and again, until there are cells of 64 near ones; the last cell may be smaller."""
    if len(numbers) <= CENTRES_PER_GROUP:
        return [numbers]
    some = points[numbers]
    some -= some.mean(axis=0)
    half = (-(-len(numbers) // CENTRES_PER_GROUP) + 1) // 2 * CENTRES_PER_GROUP
    along = some[:, np.argmax(np.einsum("ij,ij->j", some, some))]
    for _ in range(_TURNS_PER_SPLIT):  # k-means with two centres, whose cells have given sizes
        order = np.argsort(along, kind="stable")
        along = some @ (some[order[half:]].mean(axis=0) - some[order[:half]].mean(axis=0))
    order = np.argsort(along, kind="stable")
    return [*_split(points, numbers[order[:half]]), *_split(points, numbers[order[half:]])]
