"""Search and ground truth over data that one machine does not hold: an answer a chunk, put together as a tree.

The answers are those of a single machine, to the last tie, whatever runs the tasks and on however many workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.datasets.formats.source import as_path
from autojacobin.errors import DataError
from autojacobin.index.index import Index
from autojacobin.index.segment import Segment
from autojacobin.jobs.chunks import (
    ROWS_PER_CHUNK,
    Answers,
    SegmentFiles,
    cut_into_chunks,
    measure_chunk,
    search_chunk,
    truth_chunk,
)
from autojacobin.jobs.executor import Executor, Progress, Task
from autojacobin.jobs.inputs import Patterns, survey
from autojacobin.search.arguments import checked_candidates, checked_k
from autojacobin.search.distances import DISTANCES, check_distance
from autojacobin.search.kernels.selection import merge_topk

__all__ = ["search_index", "true_neighbours"]

_BYTES_OF_ANSWERS = 2**26


def search_index(
    path: str | os.PathLike[str],
    queries: Any,
    k: SupportsIndex,
    executor: Executor,
    *,
    candidates: SupportsIndex | None = None,
    distance: str = "hamming",
    rerank: bool = True,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Search an index with a task for each of its segments; the answer is that of ``Index.search``.

    Parameters
    ----------
    path : path
        Folder of an index on a path that every worker sees.
    executor : Executor
        Where the work is done.
    queries, k, candidates, distance, rerank
        As in :meth:`autojacobin.Index.search`.
    progress : callable, optional
        Called as ``progress("searching", done, total)`` and ``progress("re-ranking", done, total)``.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
    """
    where = os.path.abspath(as_path(path))
    with Index.open(where) as index:
        wanted, number = _checked(index, k, candidates, distance, rerank)
        segments, hasher = index._state.segments, index.hasher
        files = [
            SegmentFiles(
                where, segment.record, int(hasher.n_bits), int(hasher.n_features_in_), index._state.keep_vectors
            )
            for segment in segments
        ]
        matrix = to_host(as_matrix(queries, type(hasher).__name__))
        answers = []
        for block in _query_blocks(len(matrix), number):
            shared = executor.share(DISTANCES[distance].queries(hasher, matrix[block]))
            tasks = [Task(search_chunk, (segment, shared, number), where) for segment in files]
            found = executor.merged("searching", tasks, merge_topk, number, progress)
            if rerank:
                found = _in_euclidean_order(matrix[block], found[1], segments, files, wanted, executor, progress)
            answers.append(found)
    return np.concatenate([part[0] for part in answers]), np.concatenate([part[1] for part in answers])


def true_neighbours(
    patterns: Patterns,
    queries: Any,
    k: SupportsIndex,
    executor: Executor,
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> npt.NDArray[np.int64]:
    """Exact Euclidean neighbours of queries among the vectors in many files.

    The answer is that of :func:`~autojacobin.evaluation.ground_truth` over all files one below the other.

    Parameters
    ----------
    patterns, executor, rows_per_chunk, progress
        As in :func:`build_index`.
    queries : matrix of shape (n_queries, n_features)
    k : int
        Neighbours a query, from 1 to the number of vectors.

    Returns
    -------
    ids : array of int64, shape (n_queries, k)
        Row numbers over all files in the order of their paths, nearest first.
    """
    inputs = survey(patterns)
    wanted = checked_k(k, inputs.rows, "the base")
    matrix = to_host(as_matrix(queries, "true_neighbours"))
    if matrix.shape[1] != inputs.width:
        raise DataError(
            f"base and queries must have one dimension, got {inputs.width} in {inputs.files[0]} and "
            f"{matrix.shape[1]} in the queries; pass vectors of the same kind"
        )
    try:
        as_floats(matrix)
    except DataError as error:  # told here, for a worker would take a NaN for one of its chunk
        raise type(error)(f"in the queries: {error}") from error
    chunks = cut_into_chunks(inputs, rows_per_chunk)
    ids = np.empty((len(matrix), wanted), dtype=np.int64)
    for block in _query_blocks(len(matrix), wanted) if len(matrix) else ():
        shared = executor.share(np.ascontiguousarray(matrix[block]))
        tasks = [Task(truth_chunk, (chunk, shared, wanted), str(chunk)) for chunk in chunks]
        ids[block] = executor.merged("ground truth", tasks, merge_topk, wanted, progress)[1]
    return ids


def _checked(index: Index, k: Any, candidates: Any, distance: Any, rerank: bool) -> tuple[int, int]:
    """Neighbours wanted, and how many codes to look for, as ``Index.search`` has them."""
    wanted = checked_k(k, len(index), "the index")
    check_distance(distance)
    if not rerank:
        if candidates is not None:
            raise DataError(f"candidates are for re-ranking, got {candidates!r} with rerank=False; leave out either")
        return wanted, wanted
    if not index.info()["vectors_kept"]:
        raise DataError("this index keeps no vectors to re-rank by; pass rerank=False, or build it with its vectors")
    return wanted, min(checked_candidates(candidates, wanted), len(index))


def _query_blocks(n: int, k: int) -> Iterator[slice]:
    """Blocks of queries whose answers over one segment stay small."""
    most = max(1, _BYTES_OF_ANSWERS // (16 * k))
    return (slice(start, start + most) for start in range(0, max(1, n), most))


def _in_euclidean_order(
    queries: npt.NDArray[Any],
    ids: npt.NDArray[np.int64],
    segments: Sequence[Segment],
    files: Sequence[SegmentFiles],
    k: int,
    executor: Executor,
    progress: Progress | None,
) -> Answers:
    """Order candidates by distances that are measured where their vectors are."""
    dtypes = {segment.vectors.dtype for segment in segments}
    dtype = None if len(dtypes) == 1 else np.result_type(*dtypes).str
    shared = executor.share(as_floats(queries))
    places, tasks = [], []
    for segment, file in zip(segments, files, strict=True):
        here, _ = segment.find(ids.ravel())
        if len(here):
            pairs = np.stack([here // ids.shape[1], ids.ravel()[here]], axis=1)
            places.append(here)
            tasks.append(Task(measure_chunk, (file, shared, pairs, dtype), file.folder))
    squared: Any = np.empty(ids.size)
    for number, measured in executor.each("re-ranking", tasks, progress):
        squared[places[number]] = measured
    squared = squared.reshape(ids.shape)
    order = np.lexsort((ids, squared), axis=1)[:, :k]
    return np.sqrt(np.take_along_axis(squared, order, axis=1)), np.take_along_axis(ids, order, axis=1)
