"""Search of codes in segments and of the vectors behind them, by one call of compiled code.

A search is prepared once for a state of an index: it holds all arrays that the kernels read, so that a query costs a
handful of Python calls. Many queries of lists are searched on all cores, which share them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autojacobin._native import kernels
from autojacobin.core.parallel import run_tasks, usable_cores
from autojacobin.core.vectors import check_finite
from autojacobin.search.centres import NO_SHARES, Centres, in_groups, rounding_of
from autojacobin.search.decoded import largest_weight
from autojacobin.search.euclidean import Measure, order_block
from autojacobin.search.kernels import segment_search
from autojacobin.search.kernels.parts import KINDS, MODEL, PART
from autojacobin.search.lists import AllowedCodes, Lists, OffsetGrid
from autojacobin.search.probing import NOT_WIDER, Probing, Wider
from autojacobin.search.queries import Projection, Queries
from autojacobin.search.tiles import Tiles

MOST_QUERIES = 8
"""So many queries are searched in the calling thread."""
_MOST_PER_BLOCK = 64  # queries
_BLOCKS_PER_CORE = 4  # or more, so that no core waits long for another
_SHARE_OF_ERROR = 0.15  # of the error of codes, which the distance of a list may err by
_LISTS_PER_CALL = 2**16  # or a few more; between two calls, Python can handle an interrupt
_MISSING = 2**31 - 1  # whole distance where there is no code
_NOT_CHOSEN = np.empty((0, 0), dtype=np.int32), np.empty((0, 0), dtype=np.float32)
_NOT_MARKED = np.empty(0, np.int64)
_NO_DOUBLES = np.empty((0, 0))
_NO_CODING = np.empty((0, 0), np.uint64), np.empty((0, 0, 0), np.uint64), np.empty(0), np.empty(0)

Chosen = tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]
"""Lists of each query, then -1, and the squared distances of their centres, then infinity."""


class Stored(NamedTuple):
    """A segment as a search reads it."""

    codes: Lists | Tiles
    first_id: int = 0  # number of the first code, if they are consecutive
    ids: npt.NDArray[np.int64] | None = None  # numbers of the codes otherwise, ascending
    vectors: Any = None  # that are read in place, in memory or in a memory map
    rows: npt.NDArray[np.uint32] | None = None  # of the vectors of codes, if they do not have the order of codes
    checked: npt.NDArray[np.bool_] | None = None  # which blocks of the vectors were checked; none need be by default
    block_bytes: int = 1  # of such a block, a power of two
    check: Callable[[npt.NDArray[np.int64]], None] | None = None  # checks the blocks of some rows
    allowed: Any = None  # codes that count: of lists as ``Lists.allow`` gives them, of tiles a bitmap of positions


class ResidualWeights(NamedTuple):
    """How queries are compared with codes of residuals: ``decoder`` and ``origin`` of a hasher, and its grid.

    ``error`` is the mean squared error of what codes decode to, beside which errors of distances to centres are small.
    """

    decoder: npt.NDArray[np.float32]
    origin: npt.NDArray[np.float32]
    grid: OffsetGrid
    error: float


class Found(NamedTuple):
    """What a search found; equal distances in the order of their numbers.

    Where there are too few, numbers are -1, and distances are infinite, or the largest of int32.
    """

    distances: npt.NDArray[Any]  # of vectors, or of codes, shape (n_queries, k)
    numbers: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, n: int, k: int) -> Found:
        """Memory for the results of ``n`` queries."""
        return cls(np.empty((n, k)), np.empty((n, k), np.int64))


class _Search:
    """The segments of a search as the kernels take them.

    ``measure`` measures vectors by their numbers, if they cannot be read in place, or have several types. ``in_place``
    says that there is none.
    """

    def __init__(self, segments: Sequence[Stored], measure: Measure | None) -> None:
        self._segments, self._measure, self.in_place = tuple(segments), measure, measure is None

    def _measured(self, queries: npt.NDArray[Any], k: int, candidates: Found) -> Found:
        """The nearest of some candidates by vectors that are measured by their numbers."""
        assert self._measure is not None
        found = Found.empty(len(queries), k)
        order_block(queries, candidates.numbers, self._measure, found.distances, found.numbers)
        return found

    def _check(self, doubtful: npt.NDArray[np.int64], n: int) -> None:
        """Check the first ``n`` of doubtful vectors before their distances are given to anyone."""
        for number, segment in enumerate(self._segments if n else ()):
            rows = doubtful[1, :n][doubtful[0, :n] == number]
            if len(rows):
                if segment.check is not None:
                    segment.check(rows)
                if segment.vectors.dtype.kind == "f":
                    check_finite(segment.vectors[rows], rows)


class ListSearch(_Search):
    """Search in inverted lists with these centres, of at least one segment.

    ``weights`` are for codes of residuals. Codes that are compared as without lists have none.
    """

    def __init__(
        self,
        centres: Centres,
        segments: Sequence[Stored],
        weights: ResidualWeights | None = None,
        measure: Measure | None = None,
    ) -> None:
        super().__init__(segments, measure)
        self._kept: list[Any] = []
        self._use(np.zeros(len(segments), dtype=PART), np.zeros(1, dtype=MODEL))
        vectors = None if measure is not None else segments[0].vectors
        self._put(self._model, kind=0 if vectors is None else KINDS.index(vectors.dtype.type))
        for part, segment in zip(self._parts, segments, strict=True):
            checked = segment.checked
            self._put(part, n=segment.codes.n, first_id=segment.first_id, ids=segment.ids)
            if vectors is not None:
                self._put(part, vectors=segment.vectors, n_vectors=len(segment.vectors), rows=segment.rows)
                self._put(part, checked=checked, n_checked=0 if checked is None else len(checked))
                self._put(part, row_bytes=segment.vectors.strides[0], block_shift=segment.block_bytes.bit_length() - 1)
        self._centres, self._all_usable = centres, False
        for part, segment in zip(self._parts, segments, strict=True):
            codes: Any = segment.codes
            self._put(part, codes=codes.blocks, offsets=codes.offsets, bounds=codes.bounds, positions=codes.positions)
        points, width = centres.points.shape
        self._put(self._model, width=width, bytes_per_code=codes.blocks.shape[1], n_lists=points, copies=codes.copies)
        self._put(self._model, tolerance=np.inf if weights is None else _SHARE_OF_ERROR * weights.error)
        if weights is not None:
            decoder, start = (np.array(part, dtype=np.float32, order="C") for part in weights[:2])
            step, largest = rounding_of(decoder)  # of as many features as the centres have, so as large
            self._put(self._model, matrix=in_groups(decoder, step, largest), matrix_step=step, start=start)
            self._put(self._model, n_rows=len(decoder))
            self._put(self._model, low=weights.grid.low, offset_step=weights.grid.step)
        self._allow([segment.allowed for segment in segments])
        self._live, self._shares = self._counts, NO_SHARES

    def _use(self, parts: npt.NDArray[Any], model: npt.NDArray[Any]) -> None:
        self._parts, self._model = parts, model
        self._addresses = np.array([parts.ctypes.data, len(parts), model.ctypes.data])

    def _put(self, record: Any, **fields: Any) -> None:
        """Set fields of a part or of the model to numbers, or to the addresses of arrays; None is 0."""
        for name, value in fields.items():
            if isinstance(value, np.ndarray):
                self._kept.append(value)
                value = value.ctypes.data
            record[name] = value or 0

    def restricted(self, allowed: Sequence[AllowedCodes | None]) -> ListSearch:
        """The same search with other codes that count, one entry for each segment; removed codes must not be allowed.

        Where an entry is None, all codes of the segment count.
        """
        other = copy.copy(self)
        other._kept = [*self._kept]
        other._use(self._parts.copy(), self._model.copy())
        other._allow(allowed)
        other._shares = other._counts / np.maximum(self._live, 1)
        return other

    def _allow(self, allowed: Sequence[AllowedCodes | None]) -> None:
        counts = []
        for part, segment, some in zip(self._parts, self._segments, allowed, strict=True):
            codes: Any = segment.codes
            bitmap, numbers = (None, None) if some is None else some
            self._put(part, allowed=bitmap, counts=numbers)
            counts.append(np.diff(codes.bounds) if numbers is None else numbers)
        self._counts = np.sum(counts, axis=0)
        usable = self._counts > 0
        if (all_usable := bool(usable.all())) and self._all_usable:
            return  # the centres are there already
        self._all_usable = all_usable
        points, origin, groups, order, norms, rounding, means, norms_of_means, in_cells = self._centres.arrays(
            None if all_usable else usable, exact=False
        )
        self._put(self._model, points=points, origin=origin, groups=groups, order=order, norms=norms)
        self._put(self._model, n_groups=len(groups), n_steps=groups.shape[1], means=means, n_means=len(means))
        self._put(self._model, norms_of_means=norms_of_means, in_cells=in_cells)
        self._put(self._model, step=rounding[0], largest=rounding[1], largest_norm=rounding[2])

    def search(
        self,
        queries: npt.NDArray[Any],
        k: int,
        candidates: int | None,
        probing: Probing,
        prepared: Queries | None = None,
        wider: Wider | None = None,
        unlike: npt.NDArray[np.int64] = _NOT_MARKED,
    ) -> Found:
        """Find the nearest vectors of queries, or the nearest codes.

        Parameters
        ----------
        queries : array of float32 or float64, shape (n_queries, n_features)
            They are compared with the centres in float32.
        k : int
            So many neighbours.
        candidates : int or None
            So many codes are ordered by the distances of their vectors. If it is None, codes are ordered.
        probing : Probing
            Which lists are scanned. A query for which they hold fewer than ``k`` codes is searched for in all lists.
        prepared : Queries, optional
            The queries as they are compared with codes that are not of residuals.
        wider : Wider, optional
            How to search for queries that are unlike others. Vectors that are measured by their numbers take none.
        unlike : array of int64, shape (n_queries,)
            Where ``wider`` is given, queries are marked here that are to be compared with all vectors.
        """
        measured = candidates is not None and self._measure is not None
        found = Found.empty(len(queries), candidates if candidates is not None and measured else k)
        n_short = self._run(queries, probing, None if measured else candidates, prepared, found, wider, unlike)
        if measured:
            found = self._measured(queries, k, found)
            n_short = int((found.numbers[:, -1] < 0).sum())
        if n_short and (probing.most < len(self._centres) or probing.weights is not None):
            few = found.numbers[:, -1] < 0
            if wider is not None and candidates is not None:
                few &= unlike == 0
                candidates = max(candidates, wider.candidates[0])
            short = np.flatnonzero(few)
            asked = None if prepared is None else prepared[short]
            again = self.search(queries[short], k, candidates, Probing(len(self._centres)), asked)
            found.distances[short], found.numbers[short] = again
        if candidates is not None:
            return found
        counted = prepared is not None and prepared.scales is None
        return found._replace(distances=in_own_type(found.distances, counted))

    def chosen_lists(self, queries: npt.NDArray[Any], probing: Probing) -> Chosen:
        """The lists that each query scans, nearest first; on all cores."""
        chosen = np.empty((len(queries), probing.most), np.int32), np.empty((len(queries), probing.most), np.float32)
        self._run(queries, probing, None, None, Found.empty(len(queries), 0), chosen=chosen)
        return chosen

    def search_chosen(
        self, queries: npt.NDArray[Any], k: int, chosen: Chosen, prepared: Queries | None = None
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Distances and numbers of the nearest codes in lists that were chosen before, for a merge over segments.

        Distances are in float64, in which different ones stay different. ``in_own_type`` converts those of the merge.
        """
        found, probing = Found.empty(len(queries), k), Probing(chosen[0].shape[1])
        self._run(queries, probing, None, prepared, found, chosen=chosen)
        return found

    def _run(
        self,
        queries: npt.NDArray[Any],
        probing: Probing,
        candidates: int | None,
        prepared: Queries | None,
        found: Found,
        wider: Wider | None = None,
        unlike: npt.NDArray[np.int64] = _NOT_MARKED,
        chosen: Chosen = _NOT_CHOSEN,
    ) -> int:
        """Search on all cores, if there are many queries; gives how many of these have too few results."""
        floats, doubles = _in_two_types(queries)
        n, n_candidates, wider = len(queries), candidates or 0, wider or NOT_WIDER
        in_one_thread = n <= MOST_QUERIES
        step, counter = n if in_one_thread else _block_size(n), np.zeros(1, np.int64)

        def search() -> int:
            most_doubtful = step * (n_candidates + max(wider.candidates))
            doubtful, total, more = np.empty((2, most_doubtful), np.int64), 0, True
            try:
                while more:
                    n_doubtful, n_short, more = segment_search.search_lists(
                        floats, doubles, self._addresses, _coding_of(prepared), probing.rule, self._shares,
                        probing.most, *chosen, n_candidates, wider.arguments, counter, step, _LISTS_PER_CALL, *found,
                        unlike, doubtful,
                    )  # fmt: skip
                    self._check(doubtful, n_doubtful)
                    total += n_short
            except BaseException:
                counter[0] = n  # other threads begin no block any more
                raise
            return total

        if in_one_thread:
            return search()
        return sum(run_tasks(search, [()] * min(usable_cores(), -(-n // step))))


class TileSearch(_Search):
    """Search among all codes of tiles, for up to eight queries, by the Hamming, asymmetric or decoded distance.

    ``projection`` says how vectors become queries. Without one, the queries must be prepared; ``projects`` says
    whether there is one.
    """

    def __init__(
        self,
        segments: Sequence[Stored],
        distance: str,
        projection: Projection | None = None,
        measure: Measure | None = None,
    ) -> None:
        super().__init__(segments, measure)
        self._distance, self.projects = distance, projection is not None
        self._projection = None
        if projection is not None:
            matrix, start, shift = (np.array(part, dtype=np.float32, order="C") for part in projection[:3])
            largest = 1 if distance == "hamming" else largest_weight(len(shift) - projection.n_level_bits, distance)
            self._projection = kernels.Projection(
                matrix, start, shift, projection.n_level_bits, projection.offset, largest
            )
        self._native_segments = [_native(segment, measure is None) for segment in segments]
        self._allow([segment.allowed for segment in segments])

    def restricted(self, allowed: Sequence[npt.NDArray[np.uint8] | None]) -> TileSearch:
        """The same search with other bitmaps of positions that count; removed codes must not be allowed."""
        other = copy.copy(self)
        other._allow(allowed)
        return other

    def _allow(self, allowed: Sequence[npt.NDArray[np.uint8] | None]) -> None:
        codes: list[Any] = [segment.codes for segment in self._segments]
        tiles = [kernels.TileCodes(some.words, some.n, bitmap) for some, bitmap in zip(codes, allowed, strict=True)]
        self._native = kernels.TileSearch(self._native_segments, tiles, self._distance, self._projection)

    def search(
        self, queries: npt.NDArray[Any], k: int, candidates: int | None, prepared: Queries | None = None
    ) -> Found:
        """Find the nearest vectors of queries, or the nearest codes, as :meth:`ListSearch.search` does.

        ``prepared`` are the queries as the distance takes them, if there is no projection.
        """
        if candidates is not None and self._measure is not None:
            return self._measured(queries, k, self.search(queries, candidates, None, prepared))
        asked = _as_asked(queries)
        coding = () if prepared is None else _coding_of(prepared)
        distances, numbers, doubtful = self._native.search(asked, k, candidates or 0, *coding)
        if doubtful is not None:
            self._check(doubtful, doubtful.shape[1])
        if candidates is None:
            distances = in_own_type(distances, self._distance == "hamming")
        return Found(distances, numbers)


def _native(segment: Stored, in_place: bool) -> kernels.Segment:
    """What a segment holds beside its codes, as the kernels take it."""
    ids = None if segment.ids is None else np.ascontiguousarray(segment.ids, np.int64)
    if not in_place or segment.vectors is None:
        return kernels.Segment(segment.codes.n, segment.first_id, ids, None, None, None, 1)
    return kernels.Segment(
        segment.codes.n, segment.first_id, ids, segment.vectors, segment.rows, segment.checked, segment.block_bytes
    )


def _as_asked(queries: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Queries in float32, or in float64 unless these are the same numbers."""
    return np.ascontiguousarray(queries, np.float32 if queries.dtype == np.float32 else np.float64)


def _in_two_types(queries: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Queries in float32, and in float64 unless these are the same numbers."""
    exact = _NO_DOUBLES if queries.dtype == np.float32 else np.ascontiguousarray(queries, np.float64)
    return np.ascontiguousarray(queries, np.float32), exact


def _coding_of(prepared: Queries | None) -> tuple[Any, ...]:
    """Queries as they are compared with codes that are not of residuals."""
    if prepared is None:
        return _NO_CODING
    scales = np.ones(len(prepared)) if prepared.scales is None else prepared.scales
    constants = np.zeros(len(prepared)) if prepared.constants is None else prepared.constants
    return prepared.words, prepared.planes, scales, constants


def in_own_type(distances: npt.NDArray[np.float64], counted: bool) -> npt.NDArray[Any]:
    """Distances of codes in their own type: whole numbers if they are counts."""
    if not counted:
        return distances.astype(np.float32)
    return np.where(np.isinf(distances), _MISSING, distances).astype(np.int32)


def _block_size(n: int) -> int:
    """Queries of a block, so that all cores are busy to the end."""
    return min(-(-n // (_BLOCKS_PER_CORE * usable_cores())), _MOST_PER_BLOCK)
