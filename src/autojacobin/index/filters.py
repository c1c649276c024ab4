"""Filters: search only some of the vectors.

A filter makes segments in which all other vectors count as removed, so that the kernels skip them. Where few vectors
are left, their codes are copied together, which makes a small segment that is searched faster.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.index.array_files import CheckedArray, SegmentLabel
from autojacobin.index.changes import State, as_ids
from autojacobin.index.comparisons import allowed_rows
from autojacobin.index.names import as_names
from autojacobin.index.payload import empty_like
from autojacobin.index.segment import Segment
from autojacobin.search.tiles import Tiles

__all__ = ["Mask", "allowed_positions", "filters_of_queries", "restricted", "widened"]

_COPIED_SHARE = 1 / 8  # of the codes of a segment
EXACT_UP_TO = 2_000  # vectors, all of which are compared
_LARGEST_WIDENING = 128

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def filters_of_queries(among: Any, n_queries: int) -> list[tuple[Any, npt.NDArray[np.int64]]] | None:
    """Filters with the rows of the queries that have each; None if there is one filter for all."""
    if not isinstance(among, list | tuple) or not among or not _is_filter(among[0]):
        return None
    if len(among) != n_queries:
        raise DataError(
            f"among must have one filter for each of the {n_queries} queries, got {len(among)}; or pass one for all"
        )
    rows: dict[Hashable, list[int]] = {}
    for row, filter in enumerate(among):
        rows.setdefault(_key(filter), []).append(row)
    return [(among[numbers[0]], np.array(numbers)) for numbers in rows.values()]


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
    return (
        value is None
        or isinstance(value, list | tuple | set | range)
        or (isinstance(value, np.ndarray) and value.ndim > 0)
    )


def restricted(state: State, among: Any = None, allowed: list[Mask] | None = None) -> State:
    """Give the state without the vectors that a filter leaves out.

    ``among`` holds ids, of which unknown ones do not matter, or a mask with an entry for each of ``Index.ids``.
    ``allowed`` has a mask for each segment, as :func:`allowed_positions` gives it.
    """
    chosen = [segment.live_positions() for segment in state.segments]
    if among is not None:
        chosen = _among(state, among, chosen)
    if allowed is not None:
        chosen = [kept[mask[kept]] for kept, mask in zip(chosen, allowed, strict=True)]
    pairs = zip(state.segments, chosen, strict=True)
    return replace(state, segments=tuple(_reduced(segment, kept) for segment, kept in pairs if len(kept)))


def widened(k: int, state: State, view: State) -> int | None:
    """How many of all neighbours to find so that about ``k`` of them pass the filter; None if all are compared."""
    if view.n_live <= EXACT_UP_TO:
        return None
    share = view.n_live / state.n_live
    return min(state.n_live, k << round(math.log2(min(1 / share, _LARGEST_WIDENING))))


def _among(state: State, among: Any, live: list[Positions]) -> list[Positions]:
    if isinstance(among, set | range):
        among = list(among)
    if _is_mask(among):
        mask = np.asarray(among)
        if mask.shape != (state.n_live,) or mask.dtype.kind != "b":
            raise DataError(
                f"a mask must have True or False for each of the {state.n_live} vectors, in the order of index.ids, "
                f"got {mask.dtype} of shape {mask.shape}"
            )
        pairs = list(zip(state.segments, live, strict=True))
        if len(pairs) == 1:
            return [live[0][mask]]
        ids = np.sort(np.concatenate([segment.ids_at(positions) for segment, positions in pairs]))[mask]
        return [np.sort(segment.find(ids)[1]) for segment in state.segments]
    if state.id_kind not in (None, "integer"):
        names = as_names(among, str(state.id_kind))
        return [_ascending(segment.find_names(names)[1], segment.n) for segment in state.segments]
    ids = as_ids(among)
    return [_ascending(segment.find(ids)[1], segment.n) for segment in state.segments]


def _ascending(positions: Positions, n: int) -> Positions:
    """Positions in order, each once. For many positions, a mask is much faster than sorting or hashing."""
    mask = np.zeros(n, dtype=bool)
    mask[positions] = True
    return np.flatnonzero(mask)


def _is_mask(among: Any) -> bool:
    if isinstance(among, list | tuple):
        return bool(among) and isinstance(among[0], bool | np.bool_)
    return getattr(getattr(among, "dtype", None), "kind", "") == "b"


def allowed_positions(state: State, where: Any) -> list[Mask]:
    """Give for each position of each segment whether its payload meets a condition."""
    if state.schema is None:
        raise DataError(f"this index has no payload for where={where!r:.60}; give one with index.add(…, payload=…)")
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
    allowed = np.zeros(segment.n, dtype=bool)
    allowed[kept] = True
    bitmap = np.packbits(~allowed, bitorder="little")
    arrays = segment.arrays | {"dead": CheckedArray(bitmap)}
    derived = {name: value for name, value in segment.derived.items() if name != "allowed"}
    return replace(segment, arrays=arrays, n_dead=segment.n - len(kept), derived=derived)


def _copy(segment: Segment, kept: Positions) -> Segment:
    """A segment in memory with the codes at some positions, and the same vectors."""
    codes = segment.tiles.take(kept)
    label = SegmentLabel.new(None, len(kept), codes.n_bits)
    arrays = {
        "codes": CheckedArray(Tiles.from_codes(codes).words),
        "ids": CheckedArray(segment.ids_at(kept)),
    }
    if segment.vectors is not None:
        rows = kept.astype(np.uint32) if segment.rows is None else segment.rows[kept]
        arrays |= {"rows": CheckedArray(rows), "vectors": segment.arrays["vectors"]}
    return Segment(label, arrays)
