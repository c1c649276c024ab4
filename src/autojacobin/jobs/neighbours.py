"""Jobs that search an index, or find true neighbours, with one task per segment or chunk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from autojacobin.core.arrays import to_host
from autojacobin.core.files import as_path
from autojacobin.core.parallel import Progress, slices
from autojacobin.core.vectors import as_floats, as_matrix
from autojacobin.errors import DataError, StorageError
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.calibration import learn
from autojacobin.index.changes import read_segments, read_state
from autojacobin.index.execution import list_search, measure_of, nearest_codes, prepared_for_lists, search_wider
from autojacobin.index.folder import Folder
from autojacobin.index.knowledge import Knowledge
from autojacobin.index.manifest import Manifest
from autojacobin.index.plan import checked_queries, make_plan
from autojacobin.index.segment import Segment
from autojacobin.index.state import State, fetch
from autojacobin.jobs.build import loaded
from autojacobin.jobs.inputs import ROWS_PER_CHUNK, Chunk, Patterns, open_piece, survey
from autojacobin.jobs.workers import Workers
from autojacobin.search.arguments import as_k
from autojacobin.search.distances import DISTANCES
from autojacobin.search.euclidean import measure_fetched
from autojacobin.search.kernels.selection import merge_topk
from autojacobin.search.prepared_search import Chosen, in_own_type
from autojacobin.search.probing import Probing
from autojacobin.search.queries import Queries
from autojacobin.search.truth import LARGEST_EXPONENT, exact_squared_distances, ground_truth

_BYTES_PER_RESULT = 2**26
_QUERIES_AT_ONCE = 2**13
_PAIRS_AT_ONCE = 2**16

Matrix = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Files = Sequence["SegmentFiles"]
Neighbours = tuple[Matrix, Ids]
"""Distances and ids, one row per query, sorted by distance and then by id."""


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
) -> tuple[Matrix, Matrix]:
    """Search an index with one task per segment; the result is that of ``Index.search``.

    Parameters
    ----------
    path : path
        Folder of an index on a path that every worker sees.
    workers : Workers
        From :func:`connect`.
    queries, k, candidates, recall, distance, rerank, probes
        As in :meth:`autojacobin.Index.search`. The calling process makes the plan. Where that is to compare all
        vectors, it does so itself.
    progress : callable, optional
        Called as ``progress("choosing candidates", 0, 0)``, ``progress("searching", done, total)`` and
        ``progress("re-ranking", done, total)``.

    Returns
    -------
    distances, ids : arrays of shape (n_queries, min(k, len(index)))
    """
    where = os.path.abspath(as_path(path))
    folder = Folder(where)
    state = folder.newest(partial(read_state, folder))
    hasher, manifest, segments = state.hasher, state.manifest, state.segments
    assert manifest is not None

    def know(distance: str) -> Knowledge:
        if progress is not None:
            progress("choosing candidates", 0, 0)
        stored: Knowledge | None = state.knowledge if distance == hasher.distances[0] else None
        return stored or learn(state, distance)

    plan = make_plan(state, know, k, candidates, recall, distance, rerank, probes)
    queries, matrix = checked_queries(state, queries)
    if plan.compares_all:
        distances, numbers = plan.run(state, matrix)
        return manifest.metric.values(queries, distances), state.shown_ids(numbers)
    depth = plan.k if plan.candidates is None else min(plan.candidates, state.n_live)
    files = [SegmentFiles(where, replace(manifest, segments=(record,))) for record in manifest.segments]

    def search(block: Matrix, probing: Probing | None) -> Neighbours:
        asked: Any = DISTANCES[plan.distance].queries(hasher, block) if probing is None else None
        if probing is not None:
            assert isinstance(hasher, ListHasher)
            prepared = prepared_for_lists(hasher, block, plan.distance)
            asked = block, list_search(state).chosen_lists(block, probing), prepared
        shared = workers.share(asked)
        calls = [(file, shared, depth) for file in files]
        found: Neighbours = workers.merged("searching", search_segment, calls, merge_topk, depth, progress)
        if probing is not None:
            found = in_own_type(found[0], plan.distance == "hamming"), found[1]
        if plan.rerank:
            found = _reranked(block, found[1], segments, files, plan.k, workers, progress)
        short = np.flatnonzero(found[1][:, -1] < 0)  # their lists hold fewer than k codes
        if len(short) and isinstance(hasher, ListHasher):
            found[0][short], found[1][short] = search(block[short], Probing(len(hasher.centres_)))
        return found

    results = [search(matrix[block], plan.probing) for block in _query_blocks(len(matrix), depth)]
    found = np.concatenate([part[0] for part in results]), np.concatenate([part[1] for part in results])
    if plan.wider is not None:
        found = search_wider(state, matrix, plan.distance, found, plan.wider)
    distances, numbers = found
    return manifest.metric.values(queries, distances) if plan.rerank else distances, state.shown_ids(numbers)


def true_neighbours(
    patterns: Patterns,
    queries: Any,
    k: SupportsIndex,
    workers: Workers,
    *,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    progress: Progress | None = None,
) -> Ids:
    """Find the exact Euclidean neighbours of queries among the vectors in many files.

    The result is that of :func:`~autojacobin.evaluation.ground_truth` over all files as one matrix. Ids are row numbers
    over all files in the order of their paths. Other parameters are those of :func:`build_index`.
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
    chunks = inputs.chunks(rows_per_chunk)
    ids = np.empty((len(matrix), wanted), dtype=np.int64)
    for block in _query_blocks(len(matrix), wanted):
        shared = workers.share(np.ascontiguousarray(matrix[block]))
        calls = [(chunk, shared, wanted) for chunk in chunks]
        ids[block] = workers.merged("ground truth", truth_chunk, calls, merge_topk, wanted, progress)[1]
    return ids


def _query_blocks(n: int, k: int) -> list[slice]:
    """Blocks of queries whose results over one segment stay small."""
    return slices(n, max(1, min(_QUERIES_AT_ONCE, _BYTES_PER_RESULT // (16 * k))))


def _reranked(
    queries: Matrix, ids: Ids, segments: Sequence[Segment], files: Files, k: int, workers: Workers, progress: Any
) -> Neighbours:
    """Sort candidates by Euclidean distances, which the tasks compute per segment."""
    dtypes = {segment.vectors.dtype for segment in segments}
    dtype = None if len(dtypes) == 1 else np.result_type(*dtypes).str
    shared = workers.share(queries)
    positions, calls = [], []
    for segment, file in zip(segments, files, strict=True):
        here, _ = segment.find(ids.ravel())
        if len(here):
            pairs = np.stack([here // ids.shape[1], ids.ravel()[here]], axis=1)
            positions.append(here)
            calls.append((file, shared, pairs, dtype))
    squared: Any = np.full(ids.size, np.inf)
    for number, distances in workers.each("re-ranking", measure_pairs, calls, progress):
        squared[positions[number]] = distances
    squared = squared.reshape(ids.shape)
    order = np.lexsort((ids, squared), axis=1)[:, :k]
    return np.sqrt(np.take_along_axis(squared, order, axis=1)), np.take_along_axis(ids, order, axis=1)


# Tasks


@dataclass(frozen=True)
class SegmentFiles:
    """A segment of an index on a path that every worker sees; the manifest names no other one."""

    folder: str
    manifest: Manifest

    def __str__(self) -> str:
        return self.folder

    def open(self) -> Segment:
        """Map the segment."""
        try:
            return read_segments(Folder(self.folder), self.manifest)[0]
        except FileNotFoundError as error:
            raise StorageError(
                f"{error.filename} cannot be found from here: the index was changed meanwhile, or is not on a path "
                "that every worker sees; search again, or put it on a shared path"
            ) from error


def search_segment(segment: SegmentFiles, asked: Queries | tuple[Matrix, Chosen, Queries | None], k: int) -> Neighbours:
    """The ``k`` nearest codes in one segment, or in lists that were chosen for the queries; -1 if these hold fewer."""
    found = segment.open()
    if not isinstance(asked, tuple):
        return nearest_codes(asked, (found,), min(k, found.n_live))
    hasher = loaded(os.path.join(segment.folder, segment.manifest.hasher.name))
    queries, chosen, prepared = asked
    state = State(hasher, segment.manifest.keep_vectors, (found,))
    return list_search(state).search_chosen(queries, k, chosen, prepared)


def measure_pairs(segment: SegmentFiles, queries: Matrix, pairs: Ids, dtype: str | None) -> npt.NDArray[np.float64]:
    """Squared distances of pairs (number of a query, id), in the common type of all segments if these differ."""
    here = (segment.open(),)
    converted = partial(measure_fetched, lambda ids: fetch(here, ids).astype(dtype))
    measure = measure_of(here) if dtype is None else converted
    squared = np.empty((len(pairs), 1))
    for block in slices(len(pairs), _PAIRS_AT_ONCE):
        measure(queries[pairs[block, 0]], pairs[block, 1:], squared[block])
    return squared[:, 0]


def truth_chunk(chunk: Chunk, queries: Matrix, k: int) -> Neighbours:
    """Squared distances and ids of the ``k`` nearest vectors in a chunk, or of all of them if there are fewer."""
    neighbours, first_id = [], chunk.first_id
    for piece in chunk.pieces:
        with open_piece(piece) as read:
            vectors = read(slice(piece.start, piece.stop)).astype(chunk.dtype, copy=False)
            rows = ground_truth(vectors, queries, min(k, len(vectors)))
            distances = [_squared_distances(vectors[near], query) for near, query in zip(rows, queries, strict=True)]
        neighbours.append((np.stack(distances), rows + first_id))
        first_id += len(vectors)
    return merge_topk(neighbours, k)


def _squared_distances(points: Matrix, query: Matrix) -> Matrix:
    """Squared distances exactly as ``ground_truth`` compares them, so that chunks can be merged by them."""
    if points.dtype.kind == "f" or query.dtype.kind == "f":
        # ground_truth divides larger numbers by a power of two, which would differ between chunks.
        largest = max(float(np.abs(points).max(initial=0.0)), float(np.abs(query).max(initial=0.0)))
        if abs(int(np.frexp(largest)[1])) > LARGEST_EXPONENT:
            raise DataError(f"ground truth takes numbers whose squares float64 holds, got {largest:.3g}; divide all")
    return exact_squared_distances(points, query)
