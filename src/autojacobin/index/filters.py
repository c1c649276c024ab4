"""Filters: search only some of the vectors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.errors import DataError
from autojacobin.index.comparisons import allowed_rows
from autojacobin.index.payload import empty_like
from autojacobin.index.state import State, live_ids

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
    """Give the rows of the queries that share a filter of :meth:`Index.search`, and the vectors that it allows."""
    met = None if where is None else _met(state, where)
    result: list[tuple[Positions, Allowed]] = []
    for rows, filter in _filters_of_queries(among, n_queries):
        masks = [segment.live_mask() for segment in state.segments] if filter is None else _among(state, filter)
        if met is not None:
            masks = [mask & holds for mask, holds in zip(masks, met, strict=True)]
        result.append((rows, Allowed(tuple(masks))))
    return result


def _filters_of_queries(among: Any, n_queries: int) -> list[tuple[Positions, Any]]:
    """Filters, each with the rows of the queries that have it."""
    first = among[0] if isinstance(among, list | tuple) and among else 0
    if not isinstance(first, list | tuple | set | range | None) and not getattr(first, "ndim", 0):
        return [(np.arange(n_queries), among)]
    if len(among) != n_queries:
        raise DataError(f"among must have one filter for each of the {n_queries} queries, got {len(among)}; or be one")
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


def _among(state: State, among: Any) -> list[Mask]:
    """The vectors that a filter names, as a mask of the positions of each segment."""
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
            found = [state.segments[0].live_positions()[mask]]
        else:
            ids = live_ids(state.segments)[mask]
            found = [segment.find(ids)[1] for segment in state.segments]
    else:
        given = state.as_ids(among)
        found = [given.find(segment)[1] for segment in state.segments]
    masks = [np.zeros(segment.n, dtype=bool) for segment in state.segments]
    for here, positions in zip(masks, found, strict=True):
        here[positions] = True
    return masks


def _met(state: State, where: Any) -> list[Mask]:
    """Give for each position of each segment whether its payload meets a condition."""
    if state.schema is None:
        raise DataError(f"this index has no payload for where={where!r:.60}; give one with payload= or --payload")
    tables = [empty_like(state.schema, one.n) if one.payload is None else one.payload.table for one in state.segments]
    if not tables:
        return []
    return np.split(allowed_rows(tables, where), np.cumsum([table.num_rows for table in tables])[:-1])
