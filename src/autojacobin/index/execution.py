"""Search the segments of an index by codes or vectors, as a plan (``plan.py``) decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.core.arrays import adopt, device_of, free_gpu_memory, give_back, namespace, on_device, to_host
from autojacobin.core.parallel import slices
from autojacobin.core.vectors import as_floats
from autojacobin.errors import DataError
from autojacobin.hashers import OwnCodes, PartitionedAutoencoder, PartitionedHasher
from autojacobin.hashers.list_hasher import ListHasher
from autojacobin.index.filters import Allowed
from autojacobin.index.segment import ROWS_PER_BLOCK, Segment
from autojacobin.index.state import State, codes_at, fetch, ids_at, live_ids
from autojacobin.search import euclidean
from autojacobin.search.decoded import largest_weight
from autojacobin.search.distances import DISTANCES
from autojacobin.search.euclidean import Measure
from autojacobin.search.gpu import DeviceProjection, DeviceVectors, RerankedSearch, takes
from autojacobin.search.kernels.segment_search import mark_unlike
from autojacobin.search.kernels.selection import merge_topk, smallest
from autojacobin.search.lists import AllowedCodes
from autojacobin.search.prepared_search import MOST_QUERIES, ListSearch, ResidualWeights, Stored, TileSearch
from autojacobin.search.probing import Probing, Wider
from autojacobin.search.queries import Queries
from autojacobin.search.tiles import Tiles, tiles_of
from autojacobin.search.truth import ground_truth

_RESULTS_AT_ONCE = 8
_CANDIDATES_AT_ONCE = 2**24  # which take some hundred megabytes
_COPIED_SHARE = 1 / 8  # of the codes of a segment; fewer are copied together, and then searched faster
_MOST_BITS_BY_ONE_CALL = 2_048  # longer codes are searched on all cores, however few the queries are
_PRODUCTS_BY_NUMPY = 2**17  # up to this many, NumPy compares all vectors before compiled code is loaded
_NUMBERS_AT_ONCE = 2**24
_MANY_QUERIES = 64  # from here on, a matrix product compares all vectors faster than a pass over them for each query

_SHARE_FOR_VECTORS = 0.7  # of the memory that is free; the rest is for searches

Ids = npt.NDArray[np.int64]
Matrix = npt.NDArray[Any]
Found = tuple[Matrix, Ids]


def search_codes(
    state: State,
    queries: Matrix,
    distance: str,
    k: int,
    candidates: int | None,
    probing: Probing | None = None,
    allowed: Allowed | None = None,
    wider: Wider | None = None,
) -> Found:
    """Distances and numbers of the ``k`` nearest codes, or of the nearest vectors among the candidates; -1 if fewer.

    ``wider`` says how to search for queries that are unlike those that the index learned from.
    """
    if state.device is not None:
        found = state.device.search_codes(state, queries, distance, k, candidates, allowed)
    elif probing is not None:
        return _search_lists(state, queries, distance, k, candidates, probing, allowed, wider)
    else:
        found = _search_tiles(state, queries, distance, k, candidates, allowed)
    return found if wider is None else search_wider(state, queries, distance, found, wider)


def _search_lists(
    state: State,
    queries: Matrix,
    distance: str,
    k: int,
    candidates: int | None,
    probing: Probing,
    allowed: Allowed | None,
    wider: Wider | None,
) -> Found:
    hasher, in_lists = state.hasher, list_search(state)
    assert isinstance(hasher, ListHasher)
    if allowed is not None:
        parts = zip(state.segments, allowed.masks, allowed.counts, strict=True)
        codes = [
            _live_codes(segment, hasher) if count == segment.n_live else segment.lists(hasher).allow(mask)
            for segment, mask, count in parts
        ]
        in_lists = in_lists.restricted(codes)
    asked = prepared_for_lists(hasher, queries, distance)
    here = wider if in_lists.in_place else None
    unlike = np.zeros(0 if here is None else len(queries), np.int64)
    found = in_lists.search(queries, k, candidates, probing, asked, here, unlike)
    if wider is not None and here is None:
        return search_wider(state, queries, distance, found, wider)
    if len(rows := unlike.nonzero()[0]):  # np.flatnonzero takes 3 µs
        found.distances[rows], found.numbers[rows] = search_vectors(state, queries[rows], k)
    return found


def _search_tiles(
    state: State, queries: Matrix, distance: str, k: int, candidates: int | None, allowed: Allowed | None
) -> Found:
    hasher = state.hasher
    if len(queries) <= MOST_QUERIES and distance != "spherical" and hasher.n_bits <= _MOST_BITS_BY_ONE_CALL:
        tiles = _tile_search(state, distance)
        if allowed is not None:
            tiles = tiles.restricted([np.packbits(mask, bitorder="little") for mask in allowed.masks])
        prepared = None if tiles.projects else DISTANCES[distance].queries(hasher, queries)
        return tiles.search(queries, k, candidates, prepared)
    asked = DISTANCES[distance].queries(hasher, queries)
    if candidates is None:
        return nearest_codes(asked, state.segments, k, allowed)
    floats, measure = as_floats(queries, argument="queries"), measure_of(state.segments)
    distances, ids = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    for rows in slices(len(queries), max(1, _CANDIDATES_AT_ONCE // candidates)):
        near = nearest_codes(asked[rows], state.segments, candidates, allowed, in_order=False)[1]
        distances[rows], ids[rows] = euclidean.nearest_candidates(floats[rows], near, measure, k)
    return distances, ids


def search_wider(state: State, queries: Matrix, distance: str, found: Found, wider: Wider) -> Found:
    """Search again for queries that are unlike those that the index learned from."""
    unlike, k = np.empty(len(queries), dtype=np.int64), found[0].shape[1]
    if not mark_unlike(queries, wider.middle, found[0], wider.far, wider.central, unlike):
        return found
    ways = zip((1, 2, 3), (*wider.candidates, 0), (*(wider.probings or (None, None)), None), strict=True)
    for level, candidates, probing in ways:
        rows = np.flatnonzero(unlike == level)
        if not rows.size:
            continue
        if candidates:
            again = search_codes(state, queries[rows], distance, k, candidates, probing)
        else:
            again = search_vectors(state, queries[rows], k)
        found[0][rows], found[1][rows] = again
    return found


def prepared_for_lists(hasher: ListHasher, queries: Matrix, distance: str) -> Queries | None:
    """Queries as they are compared with codes in lists; None if the codes are of residuals."""
    if isinstance(hasher, PartitionedHasher):
        return DISTANCES[distance].queries(hasher.hasher_, queries)
    return None


def search_vectors(state: State, queries: Matrix, k: int, allowed: Allowed | None = None) -> Found:
    """Distances and numbers of the ``k`` nearest of all vectors, or of all that are allowed."""
    if state.device is not None:
        return state.device.search_vectors(state, queries, k, allowed)
    ids = live_ids(state.segments) if allowed is None else ids_at(state.segments, allowed.positions)
    if len(ids) * queries.size <= _PRODUCTS_BY_NUMPY:
        return _nearest_by_numpy(queries, state.segments, ids, k)
    if len(queries) >= _MANY_QUERIES:
        return nearest_by_products(queries, state.segments, ids, k)
    return euclidean.nearest_of_all(as_floats(queries, argument="queries"), ids, measure_of(state.segments), k)


# Lists and tiles as compiled code reads them, made once for each state


def list_search(state: State) -> ListSearch:
    """What searches the lists of a state, which has some."""
    kept: ListSearch | None = state.kept.get("lists")
    if kept is None:
        hasher = state.hasher
        assert isinstance(hasher, ListHasher)
        weights = None
        if isinstance(hasher, PartitionedAutoencoder):
            weights = ResidualWeights(hasher.decoder_, hasher.origin_, hasher.query_grid(), hasher.code_error())
        stored = [_stored(segment, segment.lists(hasher), _live_codes(segment, hasher)) for segment in state.segments]
        kept = state.kept["lists"] = ListSearch(hasher.search_centres(), stored, weights, _measure_if_needed(state))
    return kept


def _tile_search(state: State, distance: str) -> TileSearch:
    kept: TileSearch | None = state.kept.get(("tiles", distance))
    if kept is None:
        stored = [_stored(one, one.tiles, ~one.dead if one.n_dead else None) for one in state.segments]
        projection, measure = state.hasher.projection(distance), _measure_if_needed(state)
        kept = state.kept["tiles", distance] = TileSearch(stored, distance, projection, measure)
    return kept


def _measure_if_needed(state: State) -> Measure | None:
    """What measures vectors, if compiled code cannot read them where they are."""
    return measure_of(state.segments) if state.keep_vectors and not _in_place(state.segments) else None


def _stored(segment: Segment, codes: Any, allowed: Any) -> Stored:
    vectors = segment.arrays.get("vectors")
    first = 0 if segment.first_id is None else segment.first_id
    if vectors is None:
        return Stored(codes, first, segment.id_list, allowed=allowed)
    return Stored(codes, first, segment.id_list, vectors.array, segment.rows, *vectors.pending(), allowed)


def _live_codes(segment: Segment, hasher: ListHasher) -> AllowedCodes | None:
    """The codes of a segment that were not removed, kept until more are."""
    if not segment.n_dead:
        return None
    kept = segment.derived.get("allowed")
    if kept is None or kept[0] is not segment.dead:
        kept = segment.derived["allowed"] = segment.dead, segment.lists(hasher).allow(segment.live_mask())
    return kept[1]


def _in_place(segments: Sequence[Segment]) -> bool:
    """Return whether compiled code can read the vectors of all segments where they are."""
    return len({segment.vectors.dtype for segment in segments}) == 1 and euclidean.is_read_in_place(segments[0].vectors)


# Many queries over tiles


def nearest_codes(
    queries: Queries, segments: Sequence[Segment], k: int, allowed: Allowed | None = None, *, in_order: bool = True
) -> Found:
    """Distances and ids of the ``k`` nearest codes of all segments; equal distances in order of id."""
    results: list[tuple[Any, Any]] = []
    for number, segment in enumerate(segments):
        n = segment.n_live if allowed is None else allowed.counts[number]
        tiles, counted, kept = segment.tiles, ~segment.dead if segment.n_dead else None, None
        if allowed is not None and n <= _COPIED_SHARE * segment.n:
            kept = allowed.positions[number]
            tiles, counted = Tiles.from_codes(tiles.take(kept)), None
        elif allowed is not None and n < segment.n_live:
            counted = np.packbits(allowed.masks[number], bitorder="little")
        if n:
            distances, positions = tiles.nearest(queries, min(k, n), counted, in_order=in_order)
            results.append((distances, segment.ids_at(positions if kept is None else kept[positions])))
        if len(results) == _RESULTS_AT_ONCE:
            results = [merge_topk(results, k)]
    distances, ids = merge_topk(results, k)
    return queries.real(distances), ids


# All vectors


def nearest_by_products(queries: Matrix, segments: Sequence[Segment], ids: Ids, k: int) -> Found:
    """Distances and ids of the ``k`` nearest of the vectors with these ids, about as fast as a matrix product."""
    floats, measure = as_floats(queries), measure_of(segments)
    near = np.empty((len(queries), 0), dtype=np.int64)
    per_block = max(k, _NUMBERS_AT_ONCE // max(1, queries.shape[1]))
    for start in range(0, len(ids), per_block):
        block = ids[start : start + per_block]
        here = block[ground_truth(fetch(segments, block), queries, min(k, len(block)))]
        near = np.concatenate([near, here], axis=1)
        if near.shape[1] >= _RESULTS_AT_ONCE * k:
            near = euclidean.nearest_candidates(floats, near, measure, k)[1]
    return euclidean.nearest_candidates(floats, near, measure, k)


def _nearest_by_numpy(queries: Matrix, segments: Sequence[Segment], ids: Ids, k: int) -> Found:
    vectors = as_floats(fetch(segments, ids))
    gaps = (np.subtract(vectors, query, dtype=np.float64) for query in as_floats(queries, argument="queries"))
    found = [smallest(np.einsum("ij,ij->i", gap, gap), k) for gap in gaps]
    return np.sqrt(np.array([part[0] for part in found])), ids[np.array([part[1] for part in found])]


def measure_of(segments: Sequence[Segment]) -> Measure:
    """Give what measures the distances to vectors of these segments by their ids, in place if possible."""
    # The order of a sum depends on the dtype, so equal vectors of different dtypes would get different distances.
    if not _in_place(segments):
        return partial(euclidean.measure_fetched, partial(fetch, segments))

    def measure_here(queries: Matrix, ids: Ids, squared: npt.NDArray[np.float64], wanted: int | None = None) -> None:
        for segment in segments:
            rows = _rows_here(segment, ids, len(segments) == 1)
            segment.check_vectors(rows)
            euclidean.measure_in_place(segment.vectors, queries, rows, squared, wanted)

    return measure_here


def _rows_here(segment: Segment, ids: Ids, all_here: bool) -> Ids:
    """Row of each vector that is in the segment, and -1 for the others."""
    if all_here and segment.first_id is not None and segment.rows is None:
        return ids - segment.first_id
    columns, positions = segment.find(ids.ravel())
    rows = np.full(ids.size, -1, dtype=np.int64)
    rows[columns] = positions if segment.rows is None else segment.rows[positions]
    return rows.reshape(ids.shape)


# On a GPU


@dataclass(frozen=True)
class DeviceStore:
    """The live vectors of a state on a GPU, in order of id."""

    ids: npt.NDArray[np.int64]  # on the host
    codes: Codes | None  # None if they are in lists
    vectors: DeviceVectors | None  # None if there are none, or they do not fit: the host then re-ranks candidates
    searches: dict[str, RerankedSearch | None] = field(default_factory=dict)  # None if the hasher makes the queries

    @classmethod
    def copy(cls, state: State) -> DeviceStore:
        """Copy what a state holds, block by block, after a check that it is intact."""
        ids = live_ids(state.segments)
        blocks = slices(len(ids), ROWS_PER_BLOCK)
        n_bits = int(state.hasher.n_bits)
        packed = on_device(np.empty((len(ids), -(-n_bits // 8)), dtype=np.uint8), "cuda")
        in_lists = isinstance(state.hasher, ListHasher)
        for rows in [] if in_lists else blocks:
            packed[rows] = on_device(codes_at(state.segments, ids[rows], n_bits).packed, "cuda")
        codes = None if in_lists else Codes(packed, n_bits)
        if not state.keep_vectors or not len(ids):
            return cls(ids, codes, None)
        first = fetch(state.segments, ids[:1])
        if not takes(first.dtype):
            first = as_floats(first)
        free = free_gpu_memory(packed)
        if free is not None and first.nbytes * len(ids) > _SHARE_FOR_VECTORS * free:
            return cls(ids, codes, None)
        vectors = namespace(packed).empty((len(ids), first.shape[1]), dtype=first.dtype)
        for rows in blocks:
            vectors[rows] = on_device(fetch(state.segments, ids[rows]).astype(first.dtype, copy=False), "cuda")
        return cls(ids, codes, DeviceVectors(vectors))

    def search_codes(
        self, state: State, queries: Matrix, distance: str, k: int, candidates: int | None, allowed: Allowed | None
    ) -> Found:
        """See :func:`autojacobin.index.execution.search_codes`. All codes are compared, and no lists are looked at."""
        if self.codes is None:
            if candidates is None:
                raise DataError("an index with lists compares vectors on a GPU, not codes; leave rerank=False out")
            return self.search_vectors(state, queries, k, allowed)
        if allowed is None and candidates is not None and self.vectors is not None:
            search = self._reranked(state, distance)
            if search is not None:
                found = search.nearest(queries, candidates, k)
                return found[0], self.ids[found[1]]
        entry, codes, rows = DISTANCES[distance], self.codes, None
        if allowed is not None:
            rows = self._rows(state, allowed)
            codes = codes[rows]
        asked = queries if isinstance(state.hasher, OwnCodes) else on_device(queries, "cuda")
        distances, positions = entry.topk(entry.encode(state.hasher, asked), codes, candidates or k)
        positions = positions if rows is None else rows[positions]
        if candidates is not None and self.vectors is not None:
            distances, positions = self.vectors.among(queries, positions, k)
        numbers = self.ids[to_host(positions)]
        if candidates is not None and self.vectors is None:
            floats = as_floats(queries, argument="queries")
            return euclidean.nearest_candidates(floats, numbers, measure_of(state.segments), k)
        return to_host(distances), numbers

    def _reranked(self, state: State, distance: str) -> RerankedSearch | None:
        if distance not in self.searches:
            made = None if distance == "hamming" else state.hasher.projection(distance)
            self.searches[distance] = None
            if made is not None and self.codes is not None and self.vectors is not None:
                largest = largest_weight(len(made.shift) - made.n_level_bits, distance)
                projection = DeviceProjection(made, largest, distance == "decoded")
                self.searches[distance] = RerankedSearch(tiles_of(self.codes), self.vectors, projection)
        return self.searches[distance]

    def search_vectors(self, state: State, queries: Matrix, k: int, allowed: Allowed | None = None) -> Found:
        """See :func:`autojacobin.index.execution.search_vectors`."""
        if self.vectors is None:
            return search_vectors(replace(state, device=None), queries, k, allowed)
        rows = None if allowed is None else self._rows(state, allowed)
        distances, positions = self.vectors.nearest(as_floats(queries, argument="queries"), k, rows)
        return to_host(distances), self.ids[to_host(positions)]

    def _rows(self, state: State, allowed: Allowed) -> Any:
        """Rows of the vectors that a filter allows, on the GPU, in ascending order."""
        ids = ids_at(state.segments, allowed.positions)
        consecutive = self.ids[-1] - self.ids[0] + 1 == len(self.ids)
        return on_device(ids - self.ids[0] if consecutive else np.searchsorted(self.ids, ids), "cuda")


def in_kind(results: npt.NDArray[Any], queries: Any) -> Any:
    """Give results as the kind of array that the queries are, and where they are; names stay as they are."""
    return results if results.dtype == object else give_back(on_device(results, device_of(adopt(queries))), queries)
