"""Search over the segments of an index: codes first, then the vectors of the nearest codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.vectors import as_floats
from autojacobin.index.payload import concatenate, empty_like
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment
from autojacobin.search.euclidean import (
    Measure,
    is_read_in_place,
    measure_fetched,
    measure_in_place,
    nearest_candidates,
    nearest_of_all,
    order_block,
)
from autojacobin.search.kernels.selection import merge_topk, smallest
from autojacobin.search.queries import Queries
from autojacobin.search.truth import ground_truth

__all__ = [
    "MANY_QUERIES", "PRODUCTS_BY_NUMPY", "codes_at", "fetch", "in_id_order", "measure_of", "names_of", "nearest",
    "nearest_by_products", "nearest_vectors", "nearest_without_codes", "payload_of",
]  # fmt: skip

_RESULTS_AT_ONCE = 8
_CANDIDATES_AT_ONCE = 2**24
_QUERIES_TO_RERANK = 32
PRODUCTS_BY_NUMPY = 2**24
"""Up to this many products, NumPy compares all vectors, in about a tenth of a second."""
_ROWS_BY_NUMPY = 2**12
_NUMBERS_AT_ONCE = 2**24
MANY_QUERIES = 64
"""From this many queries on, a matrix product compares all vectors faster than one pass over them for each query."""

Ids = npt.NDArray[np.int64]


def nearest(queries: Queries, segments: Sequence[Segment], k: int) -> tuple[npt.NDArray[Any], Ids]:
    """Distances and ids of the ``k`` nearest codes of all segments; equal distances in order of id."""
    results: list[tuple[Any, Any]] = []
    for segment in segments:
        distances, positions = segment.tiles.nearest(queries, min(k, segment.n_live), _allowed(segment))
        results.append((distances, segment.ids_at(positions)))
        if len(results) == _RESULTS_AT_ONCE:
            results = [merge_topk(results, k)]
    distances, ids = merge_topk(results, k)
    return queries.real(distances), ids


def _allowed(segment: Segment) -> npt.NDArray[np.uint8] | None:
    """Bitmap of the positions of a segment that were not removed."""
    return ~segment.dead if segment.n_dead else None


def fetch(segments: Sequence[Segment], ids: Ids) -> npt.NDArray[Any]:
    """Vectors of some ids, all of which are in the segments, in the order of the ids."""
    dtypes = {segment.vectors.dtype for segment in segments}
    vectors = np.empty((len(ids), segments[0].vectors.shape[1]), dtype=np.result_type(*dtypes))
    for segment in segments:
        rows, positions = segment.find(ids)
        vectors[rows] = segment.vectors_at(positions)
    return vectors


def nearest_vectors(
    queries: npt.NDArray[Any], prepared: Queries, segments: Sequence[Segment], candidates: int, k: int
) -> tuple[npt.NDArray[np.float64], Ids]:
    """Distances and ids of the ``k`` nearest vectors among the nearest codes; ``queries`` are floats.

    Queries are searched in blocks, so that the candidates of any number of them take some hundred megabytes.
    """
    if len(segments) == 1 and segments[0].tiles.collects(len(queries), candidates):
        return _nearest_in_one(queries, prepared, segments[0], candidates, k)
    step = max(1, _CANDIDATES_AT_ONCE // candidates)
    if len(queries) <= step:
        ids = nearest(prepared, segments, candidates)[1]
        return nearest_candidates(queries, ids, measure_of(segments), k)
    blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
    results = [nearest_vectors(queries[block], prepared[block], segments, candidates, k) for block in blocks]
    return np.concatenate([part[0] for part in results]), np.concatenate([part[1] for part in results])


def nearest_without_codes(
    queries: npt.NDArray[Any], segments: Sequence[Segment], k: int
) -> tuple[npt.NDArray[np.float64], Ids]:
    """Distances and ids of the ``k`` nearest of all vectors; ``queries`` are floats.

    A little work is done by NumPy: compiled kernels take longer to load, and much longer to compile.
    """
    ids = np.sort(np.concatenate([segment.ids_at(segment.live_positions()) for segment in segments]))
    if len(ids) * queries.size > PRODUCTS_BY_NUMPY:
        if len(queries) >= MANY_QUERIES:
            return nearest_by_products(queries, segments, ids, k)
        return nearest_of_all(queries, ids, measure_of(segments), k)
    parts = []
    for start in range(0, len(ids), _ROWS_BY_NUMPY):
        block = ids[start : start + _ROWS_BY_NUMPY]
        vectors, wanted = as_floats(fetch(segments, block)), min(k, len(block))
        gaps = (np.subtract(vectors, query, dtype=np.float64) for query in queries)
        found = [smallest(np.einsum("ij,ij->i", gap, gap), wanted) for gap in gaps]
        parts.append((np.array([part[0] for part in found]), block[np.array([part[1] for part in found])]))
    squared, ids = merge_topk(parts, k)
    return np.sqrt(squared), ids


def nearest_by_products(
    queries: npt.NDArray[Any], segments: Sequence[Segment], ids: Ids, k: int
) -> tuple[npt.NDArray[np.float64], Ids]:
    """Distances and ids of the ``k`` nearest of the vectors with these ids, about as fast as a matrix product."""
    floats, measure = as_floats(queries), measure_of(segments)
    near = np.empty((len(queries), 0), dtype=np.int64)
    per_block = max(k, _NUMBERS_AT_ONCE // max(1, queries.shape[1]))
    for start in range(0, len(ids), per_block):
        block = ids[start : start + per_block]
        here = block[ground_truth(fetch(segments, block), queries, min(k, len(block)))]
        near = np.concatenate([near, here], axis=1)
        if near.shape[1] >= _RESULTS_AT_ONCE * k:
            near = nearest_candidates(floats, near, measure, k)[1]
    return nearest_candidates(floats, near, measure, k)


def _nearest_in_one(
    queries: npt.NDArray[Any], prepared: Queries, segment: Segment, candidates: int, k: int
) -> tuple[npt.NDArray[np.float64], Ids]:
    """Search and re-rank in one segment. The thread that finds candidates re-ranks them while they are in its cache."""
    distances, ids = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    measure = measure_of([segment])

    def rerank_block(block: slice, positions: npt.NDArray[Any]) -> None:
        for start in range(block.start, min(block.stop, len(queries)), _QUERIES_TO_RERANK):
            part = slice(start, min(start + _QUERIES_TO_RERANK, block.stop))
            found = segment.ids_at(positions[part.start - block.start : part.stop - block.start].astype(np.int64))
            order_block(queries[part], found, measure, distances[part], ids[part])

    segment.tiles.collect(prepared, candidates, rerank_block, _allowed(segment))
    return distances, ids


def measure_of(segments: Sequence[Segment]) -> Measure:
    """Give what measures the distances to vectors of these segments by their ids, in place if possible."""
    # The order of a sum depends on the dtype, so equal vectors of different dtypes would get different distances.
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
    """Row of each vector that is in the segment, and -1 for the others."""
    if all_here and segment.first_id is not None and segment.rows is None:
        return ids - segment.first_id
    columns, positions = segment.find(ids.ravel())
    rows = np.full(ids.size, -1, dtype=np.int64)
    rows[columns] = positions if segment.rows is None else segment.rows[positions]
    return rows.reshape(ids.shape)


def codes_at(segments: Sequence[Segment], ids: Ids, n_bits: int) -> Codes:
    """Codes of some ids, all of which are in the segments, in the order of the ids."""
    packed = np.empty((len(ids), -(-n_bits // 8)), dtype=np.uint8)
    for segment in segments:
        rows, positions = segment.find(ids)
        packed[rows] = segment.tiles.take(positions).packed
    return Codes(packed, n_bits)


def in_id_order(segments: Sequence[Segment]) -> Iterator[Part]:
    """Everything in the segments, in blocks in ascending order of id."""
    ids = np.concatenate([segment.ids_at(segment.live_positions()) for segment in segments])
    ids.sort()
    n_bits = segments[0].tiles.n_bits
    for start in range(0, len(ids), ROWS_PER_BLOCK):
        block = ids[start : start + ROWS_PER_BLOCK]
        yield Part(
            block,
            codes_at(segments, block, n_bits),
            None if segments[0].vectors is None else fetch(segments, block),
            names_of(segments, block) if "names" in segments[0].arrays else None,
            payload_of(segments, block),
        )


def names_of(segments: Sequence[Segment], ids: Ids) -> list[bytes]:
    """Names of some ids, all of which are in the segments, in the order of the ids; empty for -1."""
    names = [b""] * len(ids)
    for segment in segments:
        places, positions = segment.find(ids)
        for place, name in zip(places.tolist(), segment.names.at(positions), strict=True):
            names[place] = name
    return names


def payload_of(segments: Sequence[Segment], ids: Ids) -> Any:
    """Columns of some ids in the order of the ids, nulls for -1 and in segments without; None if no segment has any."""
    schema = next((segment.payload.table.schema for segment in segments if segment.payload is not None), None)
    if schema is None:
        return None
    tables, places = [empty_like(schema, 1)], np.zeros(len(ids), dtype=np.int64)
    row = 1
    for segment in segments:
        found, positions = segment.find(ids)
        if segment.payload is not None and len(found):
            tables.append(segment.payload.table.take(positions))
            places[found] = np.arange(row, row + len(found))
            row += len(found)
    return concatenate(tables).take(places)
