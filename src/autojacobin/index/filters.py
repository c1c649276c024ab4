"""Filters: search only some of the vectors.

Lists and tiles skip the codes that a filter does not allow. Where few vectors are left and many queries ask, their
codes are copied together, which makes a small segment that is searched faster.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.index.array_files import CheckedArray, SegmentLabel
from autojacobin.index.comparisons import allowed_rows
from autojacobin.index.payload import empty_like
from autojacobin.index.segment import Segment
from autojacobin.index.state import State, live_ids
from autojacobin.search.tiles import Tiles

_COPIED_SHARE = 1 / 8  # of the codes of a segment

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Allowed:
    """The vectors that a filter allows: a mask of the positions of each segment."""

    masks: tuple[Mask, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of vectors in each segment."""
        return tuple(int(np.count_nonzero(mask)) for mask in self.masks)

    @property
    def n(self) -> int:
        """Number of vectors."""
        return sum(self.counts)

    @cached_property
    def positions(self) -> tuple[Positions, ...]:
        """Positions in each segment, ascending."""
        return tuple(np.flatnonzero(mask) for mask in self.masks)


def allowed_by(
    state: State, among: Any = None, where: Any = None, n_queries: int = 1
) -> list[tuple[Positions, Allowed]]:
    """Give the rows of the queries that share a filter, and the vectors that it allows.

    ``among`` and ``where`` are those of :meth:`Index.search`; the condition is computed once.
    """
    none = (None,) * len(state.segments)
    met = none if where is None else _met(state, where)
    result: list[tuple[Positions, Allowed]] = []
    for rows, filter in _filters_of_queries(among, n_queries):
        named = none if filter is None else _among(state, filter)
        masks = [
            segment.live_mask() if positions is None else _mask(positions, segment.n)
            for segment, positions in zip(state.segments, named, strict=True)
        ]
        masks = [mask if holds is None else mask & holds for mask, holds in zip(masks, met, strict=True)]
        result.append((rows, Allowed(tuple(masks))))
    return result


def reduced(segments: Sequence[Segment], allowed: Allowed) -> tuple[Segment, ...]:
    """Give segments in which only the allowed vectors count."""
    pairs = zip(segments, allowed.positions, strict=True)
    return tuple(_reduced(segment, kept) for segment, kept in pairs if len(kept))


def _filters_of_queries(among: Any, n_queries: int) -> list[tuple[Positions, Any]]:
    """Filters, each with the rows of the queries that have it."""
    if not isinstance(among, list | tuple) or not among or not _is_filter(among[0]):
        return [(np.arange(n_queries), among)]
    if len(among) != n_queries:
        raise DataError(
            f"among must have one filter for each of the {n_queries} queries, got {len(among)}; or pass one for all"
        )
    rows: dict[Hashable, list[int]] = {}
    for row, filter in enumerate(among):
        rows.setdefault(_key(filter), []).append(row)
    return [(np.array(numbers), among[numbers[0]]) for numbers in rows.values()]


def _key(filter: Any) -> Hashable:
    """Equal for filters that are equal; True and 1 are not."""
    if isinstance(filter, np.ndarray):
        return filter.dtype, filter.shape, filter.tobytes()
    try:
        values = frozenset(filter) if isinstance(filter, set) else tuple(filter)
        hash(values)
        return type(filter), values, tuple(map(type, values))
    except TypeError:  # None, or a list of what has no hash
        return id(filter)


def _is_filter(value: Any) -> bool:
    """Whether this is a filter rather than an id; None is the filter that allows everything."""
    return isinstance(value, list | tuple | set | range | None) or (isinstance(value, np.ndarray) and value.ndim > 0)


def _among(state: State, among: Any) -> list[Positions]:
    """Positions of the vectors that a filter names, in any order."""
    if isinstance(among, set | range):
        among = list(among)
    kind = getattr(getattr(among, "dtype", None), "kind", "")
    if kind == "b" or (isinstance(among, list | tuple) and among and isinstance(among[0], bool | np.bool_)):
        mask = np.asarray(among)
        if mask.shape != (state.n_live,) or mask.dtype.kind != "b":
            raise DataError(
                f"a mask must have True or False for each of the {state.n_live} vectors, in the order of index.ids, "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        if len(state.segments) == 1:
            return [state.segments[0].live_positions()[mask]]
        ids = live_ids(state.segments)[mask]
        return [segment.find(ids)[1] for segment in state.segments]
    given = state.as_ids(among)
    return [given.find(segment)[1] for segment in state.segments]


def _mask(positions: Positions, n: int) -> Mask:
    mask = np.zeros(n, dtype=bool)
    mask[positions] = True
    return mask


def _met(state: State, where: Any) -> list[Mask]:
    """Give for each position of each segment whether its payload meets a condition."""
    if state.schema is None:
        raise DataError(f"this index has no payload for where={where!r:.60}; give one with payload= or --payload")
    tables = [empty_like(state.schema, one.n) if one.payload is None else one.payload.table for one in state.segments]
    if not tables:
        return []
    return np.split(allowed_rows(tables, where), np.cumsum([table.num_rows for table in tables])[:-1])


def _reduced(segment: Segment, kept: Positions) -> Segment:
    """The segment with only the codes at some positions, which ascend."""
    if len(kept) == segment.n_live:
        return segment
    if len(kept) <= _COPIED_SHARE * segment.n:
        return _copy(segment, kept)
    dead = np.packbits(~_mask(kept, segment.n), bitorder="little")
    return replace(segment, arrays=segment.arrays | {"dead": CheckedArray(dead)}, n_dead=segment.n - len(kept))


def _copy(segment: Segment, kept: Positions) -> Segment:
    """A segment in memory with the codes at some positions, and the same vectors."""
    codes = segment.tiles.take(kept)
    label = SegmentLabel.new(None, len(kept), codes.n_bits)
    arrays = {"codes": CheckedArray(Tiles.from_codes(codes).words), "ids": CheckedArray(segment.ids_at(kept))}
    if segment.vectors is not None:
        rows = kept.astype(np.uint32) if segment.rows is None else segment.rows[kept]
        arrays |= {"rows": CheckedArray(rows), "vectors": segment.arrays["vectors"]}
    return Segment(label, arrays)
