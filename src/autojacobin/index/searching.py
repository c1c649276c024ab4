"""Several segments that answer as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import adopt, to_host
from autojacobin.core.parallel import one_blas_thread, run_tasks
from autojacobin.core.vectors import as_matrix
from autojacobin.hashers import Hasher
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment
from autojacobin.search._candidates import are_collected, use_candidates
from autojacobin.search._euclidean import is_read_in_place
from autojacobin.search._selection import put_together
from autojacobin.search._topk import NO_PLANES, tiled_topk
from autojacobin.search.asymmetric import asymmetric_topk, quantise
from autojacobin.search.hamming import hamming_topk
from autojacobin.search.rerank import Measure, measure_fetched, measure_in_place, nearest_candidates, order_block
from autojacobin.search.tiles import code_words

__all__ = [
    "Queries",
    "Search",
    "asymmetric_queries",
    "codes_at",
    "fetch",
    "hamming_queries",
    "in_id_order",
    "measure_of",
    "nearest",
    "nearest_vectors",
    "prepared_queries",
]

_MOST_LEVELS = 2**15  # the kernels keep a distance in 15 bits
_ANSWERS_AT_ONCE = 8
_CANDIDATES_AT_ONCE = 2**24
_QUERIES_TO_RERANK = 32
_QUERIES_PER_SLICE, _FEWEST_TO_SLICE = 512, 64

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Queries:
    """Queries as the kernels take them; ``scales`` turns whole distances into real ones, a factor a query."""

    words: npt.NDArray[np.uint64]
    planes: npt.NDArray[np.uint64]
    n_levels: int
    scales: npt.NDArray[np.float64] | None = None

    def __getitem__(self, rows: slice) -> Queries:
        scales = None if self.scales is None else self.scales[rows]
        return Queries(self.words[rows], self.planes[rows], self.n_levels, scales)

    @classmethod
    def concatenated(cls, parts: Sequence[Queries]) -> Queries:
        """Queries of several parts, all prepared alike, as one."""
        if len(parts) == 1:
            return parts[0]
        scales = [part.scales for part in parts if part.scales is not None]
        return cls(
            np.concatenate([part.words for part in parts]),
            np.concatenate([part.planes for part in parts]),
            parts[0].n_levels,
            np.concatenate(scales) if scales else None,
        )


# Codes too long for the kernels are searched by the functions for plain codes, which know what to do then.
Search = Callable[[Codes, int], tuple[Any, Any]]


def prepared_queries(hasher: Hasher, vectors: Any, distance: str) -> Queries | Search:
    """Vectors as queries by a distance; many of them in slices on all cores, each on one thread of BLAS.

    After a product on several threads those of OpenBLAS keep their cores busy with waiting while the search wants them.
    """
    prepare = hamming_queries if distance == "hamming" else asymmetric_queries
    if len(vectors) < _FEWEST_TO_SLICE or hasher._device() != "cpu":
        return prepare(hasher, vectors)
    # a data frame stays one, so that the hasher can compare the names of its columns
    rows = vectors.iloc if hasattr(vectors, "iloc") else as_matrix(vectors, type(hasher).__name__)
    starts = [(start,) for start in range(0, len(vectors), _QUERIES_PER_SLICE)]
    with one_blas_thread():
        parts = run_tasks(lambda start: prepare(hasher, rows[start : start + _QUERIES_PER_SLICE]), starts)
    whole = [part for part in parts if isinstance(part, Queries)]
    return Queries.concatenated(whole) if len(whole) == len(parts) else prepare(hasher, vectors)


def hamming_queries(hasher: Hasher, vectors: Any) -> Queries | Search:
    """Codes of the queries."""
    codes = hasher.encode(vectors)
    if codes.n_bits >= _MOST_LEVELS:
        return partial(hamming_topk, codes)
    return Queries(code_words(codes), NO_PLANES, codes.n_bits + 1)


def asymmetric_queries(hasher: Hasher, vectors: Any) -> Queries | Search:
    """Projections of the queries, quantised."""
    projections = to_host(adopt(hasher.project(vectors)))
    quantised = quantise(projections)
    if quantised.n_levels > _MOST_LEVELS:
        return partial(asymmetric_topk, projections)
    return Queries(quantised.words, quantised.planes, quantised.n_levels, quantised.scales)


def nearest(queries: Queries | Search, segments: Sequence[Segment], k: int) -> tuple[npt.NDArray[Any], Ids]:
    """Distances and ids of the ``k`` nearest of all that lives; equal distances in order of id."""
    answers: list[tuple[Any, Any]] = []
    for segment in segments:
        distances, positions = _nearest_here(queries, segment, min(k, segment.n_live))
        answers.append((distances, segment.ids_at(positions)))
        if len(answers) == _ANSWERS_AT_ONCE:
            answers = [put_together(answers, k)]
    distances, ids = put_together(answers, k)
    if isinstance(queries, Queries) and queries.scales is not None:
        # Within a query the scale is one number, so that the order of whole distances is that of the real ones.
        distances = (distances * queries.scales[:, np.newaxis]).astype(np.float32)
    return distances, ids


def _nearest_here(queries: Queries | Search, segment: Segment, k: int) -> tuple[Any, Any]:
    if isinstance(queries, Queries):
        return tiled_topk(queries.words, queries.planes, segment.tiles, k, n_levels=queries.n_levels, dead=segment.dead)
    live = segment.live_positions()
    distances, places = queries(segment.tiles.take(live), k)
    return distances, live[places]


def fetch(segments: Sequence[Segment], ids: Ids) -> npt.NDArray[Any]:
    """Vectors of some ids, all of which live, in the order of the ids."""
    dtypes = {segment.vectors.dtype for segment in segments}
    vectors = np.empty((len(ids), segments[0].vectors.shape[1]), dtype=np.result_type(*dtypes))
    for segment in segments:
        places, positions = segment.find(ids)
        vectors[places] = segment.vectors_at(positions)
    return vectors


def nearest_vectors(
    queries: npt.NDArray[Any], prepared: Queries | Search, segments: Sequence[Segment], candidates: int, k: int
) -> tuple[npt.NDArray[np.float64], Ids]:
    """Distances and ids of the ``k`` nearest vectors among the nearest codes; ``queries`` are floats.

    The queries go in blocks, so that however many there are, their candidates take some hundred megabytes.
    """
    if (
        isinstance(prepared, Queries)
        and len(segments) == 1
        and are_collected(len(queries), segments[0].tiles, candidates)
    ):
        return _nearest_vectors_here(queries, prepared, segments[0], candidates, k)
    step = max(1, _CANDIDATES_AT_ONCE // candidates)
    if not isinstance(prepared, Queries) or len(queries) <= step:
        ids = nearest(prepared, segments, candidates)[1]
        return nearest_candidates(queries, ids, measure_of(segments), k)
    blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
    answers = [nearest_vectors(queries[block], prepared[block], segments, candidates, k) for block in blocks]
    return np.concatenate([part[0] for part in answers]), np.concatenate([part[1] for part in answers])


def _nearest_vectors_here(
    queries: npt.NDArray[Any], prepared: Queries, segment: Segment, candidates: int, k: int
) -> tuple[npt.NDArray[np.float64], Ids]:
    """The same in one segment: candidates are re-ranked where they were found, before they leave the cache."""
    distances, ids = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    measure_block = measure_of([segment])

    def use(block: slice, positions: npt.NDArray[Any]) -> None:
        for start in range(block.start, min(block.stop, len(queries)), _QUERIES_TO_RERANK):
            part = slice(start, min(start + _QUERIES_TO_RERANK, block.stop))
            found = segment.ids_at(positions[part.start - block.start : part.stop - block.start].astype(np.int64))
            order_block(queries[part], found, measure_block, distances[part], ids[part])

    tiles, dead = segment.tiles, segment.dead
    use_candidates(prepared.words, prepared.planes, tiles, candidates, use, n_levels=prepared.n_levels, dead=dead)
    return distances, ids


def measure_of(segments: Sequence[Segment]) -> Measure:
    """What measures the distances to vectors of these segments by their ids, in place where that can be."""
    # Sums are taken in an order that depends on the dtype: equal vectors of several would get distances that differ.
    if len({segment.vectors.dtype for segment in segments}) > 1 or not is_read_in_place(segments[0].vectors):
        return partial(measure_fetched, partial(fetch, segments))

    def measure_here(
        queries: npt.NDArray[Any],
        ids: npt.NDArray[Any],
        squared: npt.NDArray[np.float64],
        wanted: int | None = None,
    ) -> None:
        for segment in segments:
            rows = _rows_here(segment, ids, len(segments) == 1)
            segment.check_vectors(rows)
            measure_in_place(segment.vectors, queries, rows, squared, wanted)

    return measure_here


def _rows_here(segment: Segment, ids: Ids, all_here: bool) -> Ids:
    """Row of each vector of the segment, and -1 for those that live elsewhere."""
    if all_here and segment.first_id is not None and segment.rows is None:
        return ids - segment.first_id
    places, positions = segment.find(ids.ravel())
    rows = np.full(ids.size, -1, dtype=np.int64)
    rows[places] = positions if segment.rows is None else segment.rows[positions]
    return rows.reshape(ids.shape)


def codes_at(segments: Sequence[Segment], ids: Ids, n_bits: int) -> Codes:
    """Codes of some ids, all of which live, in the order of the ids."""
    packed = np.empty((len(ids), -(-n_bits // 8)), dtype=np.uint8)
    for segment in segments:
        places, positions = segment.find(ids)
        packed[places] = segment.tiles.take(positions).packed
    return Codes(packed, n_bits)


def in_id_order(segments: Sequence[Segment]) -> Iterator[Part]:
    """All that lives in the segments, in blocks in ascending order of id."""
    ids = np.concatenate([segment.ids_at(segment.live_positions()) for segment in segments])
    ids.sort()
    n_bits = segments[0].tiles.n_bits
    for start in range(0, len(ids), ROWS_PER_BLOCK):
        block = ids[start : start + ROWS_PER_BLOCK]
        yield Part(
            block, codes_at(segments, block, n_bits), None if segments[0].vectors is None else fetch(segments, block)
        )
