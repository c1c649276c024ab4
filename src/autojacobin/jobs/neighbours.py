"""Jobs that search an index, or find true neighbours, with one task per segment or chunk.

The results are those of a single machine, ties included, whatever runs the tasks and on however many workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.parallel import Progress
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.datasets.formats.source import as_path
from autojacobin.errors import DataError
from autojacobin.hashers.lists import ListHasher
from autojacobin.index.calibration import Calibrator
from autojacobin.index.changes import State, shown_ids
from autojacobin.index.folder import read_index
from autojacobin.index.partitions import QueriesInLists, as_probes, prepared_for_lists
from autojacobin.index.searcher import How, Searcher
from autojacobin.index.segment import Segment
from autojacobin.jobs.chunks import (
    ROWS_PER_CHUNK,
    Neighbours,
    SegmentFiles,
    cut_into_chunks,
    measure_chunk,
    search_chunk,
    search_lists_chunk,
    truth_chunk,
)
from autojacobin.jobs.inputs import Patterns, survey
from autojacobin.jobs.workers import Workers
from autojacobin.search.arguments import as_candidates, as_k
from autojacobin.search.distances import DISTANCES
from autojacobin.search.kernels.selection import merge_topk

_BYTES_PER_RESULT = 2**26
_QUERIES_AT_ONCE = 2**13


def search_index(
    path: str | os.PathLike[str],
    queries: Any,
    k: SupportsIndex,
    workers: Workers,
    *,
    candidates: SupportsIndex | None = None,
    recall: float | None = None,
    distance: str | None = None,
    rerank: bool | None = None,
    probes: SupportsIndex | str | None = None,
    progress: Progress | None = None,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Search an index with one task per segment; the result is that of ``Index.search`` in a new process.

    Parameters
    ----------
    path : path
        Folder of an index on a path that every worker sees.
    workers : Workers
        From :func:`connect`.
    queries, k, candidates, recall, distance, rerank, probes
        As in :meth:`autojacobin.Index.search`. The candidates for a recall are chosen by the calling process, which
        compares a few queries with all vectors itself.
    progress : callable, optional
        Called as ``progress("choosing candidates", 0, 0)``, ``progress("searching", done, total)`` and
        ``progress("re-ranking", done, total)``.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, k)
        The ids are names if those of the index are.
    """
    where = os.path.abspath(as_path(path))
    hasher, manifest, segments = read_index(where)
    state = State(hasher, manifest.keep_vectors, segments, id_kind=manifest.id_kind, metric=manifest.metric)
    how = How.checked(state, k, distance, rerank, candidates, recall, probes)
    matrix = to_host(as_matrix(manifest.metric.queries(queries), type(hasher).__name__))
    chosen, lists = how.candidates, as_probes(probes, hasher)
    if how.recall is not None:
        if progress is not None:
            progress("choosing candidates", 0, 0)
        searcher = Searcher(state, Calibrator())
        if searcher.affords_all(state, how.learned_k, len(matrix)):
            distances, numbers = searcher.nearest(matrix, how._replace(recall=1.0))
            return manifest.metric.values(queries, distances), shown_ids(state, numbers)
        calibration = searcher.chosen(how.learned_k, how.recall, how.distance)
        chosen, lists = calibration.candidates, calibration.probes
    depth = min(as_candidates(chosen, how.k), state.n_live) if how.rerank else how.k
    files = [
        SegmentFiles(
            where, segment.record, manifest.n_bits, manifest.n_features, manifest.keep_vectors, manifest.id_kind,
            manifest.hasher.name,
        )
        for segment in segments
    ]  # fmt: skip

    def search(block: npt.NDArray[Any], probed: int | None) -> Neighbours:
        prepared: Any = DISTANCES[how.distance].queries(hasher, block) if probed is None else None
        if isinstance(hasher, ListHasher) and probed is not None:
            asked = QueriesInLists.of(hasher, block, how.distance)
            prepared = prepared_for_lists(hasher, asked, segments, probed)
        shared, work = workers.share(prepared), search_chunk if probed is None else search_lists_chunk
        calls = [(file, shared, depth) for file in files]
        found: Neighbours = workers.merged("searching", work, calls, merge_topk, depth, progress)
        if probed is not None:
            found = prepared.real(found[0]), found[1]
        if how.rerank:
            found = _reranked(block, found[1], segments, files, how.k, workers, progress)
        short = np.flatnonzero(found[1][:, -1] < 0)  # their lists hold fewer than k codes
        if len(short):
            found[0][short], found[1][short] = search(block[short], as_probes("all", hasher))
        return found

    results = [search(matrix[block], lists) for block in _query_blocks(len(matrix), depth)]
    numbers = np.concatenate([part[1] for part in results])
    distances = np.concatenate([part[0] for part in results])
    return manifest.metric.values(queries, distances) if how.rerank else distances, shown_ids(state, numbers)


def true_neighbours(
    patterns: Patterns,
    queries: Any,
    k: SupportsIndex,
    workers: Workers,
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> npt.NDArray[np.int64]:
    """Find the exact Euclidean neighbours of queries among the vectors in many files.

    The result is that of :func:`~autojacobin.evaluation.ground_truth` over all files as one matrix.

    Parameters
    ----------
    patterns, workers, rows_per_chunk, progress
        As in :func:`build_index`.
    queries : matrix of shape (n_queries, n_features)
    k : int
        Neighbours per query, from 1 to the number of vectors.

    Returns
    -------
    ids : array of int64, shape (n_queries, k)
        Row numbers over all files in the order of their paths, nearest first.
    """
    inputs = survey(patterns)
    wanted = as_k(k, inputs.rows, "the base")
    matrix = to_host(as_matrix(queries, "true_neighbours"))
    if matrix.shape[1] != inputs.width:
        raise DataError(
            f"base and queries must have one dimension, got {inputs.width} in {inputs.files[0]} and "
            f"{matrix.shape[1]} in the queries; pass vectors of the same kind"
        )
    try:
        as_floats(matrix)
    except DataError as error:  # a worker would report it as a NaN in its chunk
        raise type(error)(f"in the queries: {error}") from error
    chunks = cut_into_chunks(inputs, rows_per_chunk)
    ids = np.empty((len(matrix), wanted), dtype=np.int64)
    for block in _query_blocks(len(matrix), wanted) if len(matrix) else ():
        shared = workers.share(np.ascontiguousarray(matrix[block]))
        calls = [(chunk, shared, wanted) for chunk in chunks]
        ids[block] = workers.merged("ground truth", truth_chunk, calls, merge_topk, wanted, progress)[1]
    return ids


def _query_blocks(n: int, k: int) -> Iterator[slice]:
    """Blocks of queries whose results over one segment stay small."""
    step = max(1, min(_QUERIES_AT_ONCE, _BYTES_PER_RESULT // (16 * k)))
    return (slice(start, start + step) for start in range(0, max(1, n), step))


def _reranked(
    queries: npt.NDArray[Any],
    ids: npt.NDArray[np.int64],
    segments: Sequence[Segment],
    files: Sequence[SegmentFiles],
    k: int,
    workers: Workers,
    progress: Progress | None,
) -> Neighbours:
    """Sort candidates by Euclidean distances, which the tasks compute per segment."""
    dtypes = {segment.vectors.dtype for segment in segments}
    dtype = None if len(dtypes) == 1 else np.result_type(*dtypes).str
    shared = workers.share(as_floats(queries))
    positions, calls = [], []
    for segment, file in zip(segments, files, strict=True):
        here, _ = segment.find(ids.ravel())
        if len(here):
            pairs = np.stack([here // ids.shape[1], ids.ravel()[here]], axis=1)
            positions.append(here)
            calls.append((file, shared, pairs, dtype))
    squared: Any = np.full(ids.size, np.inf)
    for number, distances in workers.each("re-ranking", measure_chunk, calls, progress):
        squared[positions[number]] = distances
    squared = squared.reshape(ids.shape)
    order = np.lexsort((ids, squared), axis=1)[:, :k]
    return np.sqrt(np.take_along_axis(squared, order, axis=1)), np.take_along_axis(ids, order, axis=1)
