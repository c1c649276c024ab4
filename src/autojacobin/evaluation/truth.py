"""Ground truth: exact Euclidean neighbours, about as fast as a matrix product.

A block of queries passes over the base block by block: a matrix product in float32 finds the points that may be near
(``_screening.py``), and only those are measured exactly (``_exact.py``). Memory stays at some hundred megabytes above
the base, which may be a memory map.

FAISS is not used even where it is installed: its answer alone, in float32 and with no proof, takes longer. For 1,000
queries over 300,000 vectors of 128 numbers and k = 100, the best of four runs in turn on two shared cores took 0.40 s
for the bare matrix products, 0.93 s (bytes) and 1.17 s (float32) here, and 2.80 s for ``faiss.knn``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.core.vectors import as_matrix, refuse_non_finite
from autojacobin.errors import DataError
from autojacobin.evaluation._exact import nearest_exactly, refuse_huge_integers
from autojacobin.evaluation._screening import Candidates, Frame, keep_near
from autojacobin.search._arguments import checked_k

__all__ = ["ground_truth"]

_DISTANCES_PER_BLOCK = 2**22
_NUMBERS_PER_BLOCK = 2**22
_MOST_QUERIES = 1024
_BYTES_OF_CANDIDATES = 2**27
_ROWS_PER_TASK = 64


def ground_truth(
    base: Any, queries: Any, k: SupportsIndex, *, progress: Callable[[str, int, int], None] | None = None
) -> npt.NDArray[np.int64]:
    """Ids of the ``k`` rows of ``base`` nearest to each query in Euclidean distance, equal distances by lower id.

    Whole numbers are compared without error; others by the float64 sum of their squared differences. The answer depends
    neither on the number of threads nor on the sizes of blocks.

    Parameters
    ----------
    base : matrix of shape (n, n_features)
        In memory or in a memory map, which is never copied as a whole.
    queries : matrix of shape (n_queries, n_features)
    k : int
        Neighbours a query, from 1 to ``len(base)``.
    progress : callable, optional
        Called as ``progress("ground truth", done, total)``.

    Returns
    -------
    ids : array of int64, shape (n_queries, k)
        Nearest first.

    Examples
    --------
    >>> from autojacobin.evaluation import ground_truth
    >>> ground_truth([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], [[0.0, 0.5]], k=2)
    array([[0, 2]])
    """
    base, queries = (to_host(as_matrix(matrix, "ground_truth")) for matrix in (base, queries))
    if base.shape[1] != queries.shape[1]:
        raise DataError(
            f"base and queries must be matrices of one width, got shapes {base.shape} and {queries.shape}; "
            "pass vectors of the same kind, a vector a row"
        )
    k = checked_k(k, len(base), "the base")
    for matrix in (base, queries):
        for start in range(0, len(matrix), rows := max(1, _NUMBERS_PER_BLOCK // max(1, matrix.shape[1]))):
            _refuse_unusable(matrix[start : start + rows], start)
    frame = Frame.around(base, queries)
    ids = np.empty((len(queries), k), dtype=np.int64)
    most = max(1, min(_MOST_QUERIES, _BYTES_OF_CANDIDATES // (16 * Candidates.capacity_for(k))))
    blocks = [slice(start, start + most) for start in range(0, len(queries), most)]
    for number, block in enumerate(blocks):
        search = _Search(base, queries[block], k, frame)
        for done, total in search.over_the_base():
            if progress is not None:
                progress("ground truth", number * total + done, len(blocks) * total)
        ids[block] = search.answer()
    return ids


def _refuse_unusable(block: Any, first_row: int) -> None:
    refuse_huge_integers(block)
    if block.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(block.sum(dtype=np.float64))
        if not np.isfinite(total):
            refuse_non_finite(block, first_row)


class _Search:
    """A block of queries on its way over the base."""

    def __init__(self, base: Any, queries: Any, k: int, frame: Frame) -> None:
        self.base, self.queries, self.k, self.frame = base, queries, k, frame
        self.found = Candidates(frame, queries, k)

    def over_the_base(self) -> Iterator[tuple[int, int]]:
        """Take all blocks of the base in, and tell after each how many of how many are done."""
        per_block = max(1, min(_DISTANCES_PER_BLOCK // len(self.queries), _NUMBERS_PER_BLOCK // self._width()))
        room = np.empty((len(self.queries), min(per_block, len(self.base))), dtype=np.float32)
        starts = range(0, len(self.base), per_block)
        for number, start in enumerate(starts, 1):
            placed, norms = self.frame.place(self.base[start : start + per_block])
            dots = np.matmul(self.found.queries, placed.T, out=room[:, : len(placed)])
            self._take_in(dots, norms, start)
            yield number, len(starts)

    def _width(self) -> int:
        return max(1, int(self.base.shape[1]))

    def _take_in(self, dots: npt.NDArray[np.float32], norms: npt.NDArray[np.float32], first: int) -> None:
        found = self.found
        lowered, spread = found.bounds(norms)
        reached = np.zeros(len(dots), dtype=np.int64)

        def work(rows_from: int, rows_to: int) -> None:
            keep_near(
                dots, lowered, spread, first, found.exact, self.k, rows_from, rows_to, found.slack, found.limits,
                found.counts, found.low, found.high, found.ids, reached,
            )  # fmt: skip

        tasks = [(start, min(start + _ROWS_PER_TASK, len(dots))) for start in range(0, len(dots), _ROWS_PER_TASK)]
        run_tasks(work, tasks)
        while len(stuck := np.flatnonzero(reached < dots.shape[1])):
            run_tasks(self._thin_out, [(row,) for row in stuck])
            run_tasks(work, [(row, row + 1) for row in stuck])

    def _thin_out(self, row: int) -> None:
        """Keep the k nearest of the candidates of a query, so that there is room for more."""
        found = self.found
        kept = np.sort(nearest_exactly(self.base, found.of(row), self.queries[row], self.k))
        for values in (found.low, found.high, found.ids):
            values[row, : self.k] = values[row, kept]
        found.counts[row] = self.k

    def answer(self) -> npt.NDArray[np.int64]:
        """The k nearest of each query, in order."""
        answers = np.empty((len(self.queries), self.k), dtype=np.int64)

        def work(rows_from: int, rows_to: int) -> None:
            for row in range(rows_from, rows_to):
                ids = self.found.of(row)
                answers[row] = ids[nearest_exactly(self.base, ids, self.queries[row], self.k)]

        per_task = max(1, -(-len(answers) // (4 * usable_cores())))
        run_tasks(work, [(s, min(s + per_task, len(answers))) for s in range(0, len(answers), per_task)])
        return answers
