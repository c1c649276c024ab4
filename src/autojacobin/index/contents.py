"""Read the contents of an index by ids: vectors, codes, names and payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autojacobin.codes import Codes
from autojacobin.index.payload import concatenate, empty_like
from autojacobin.index.segment import ROWS_PER_BLOCK, Part, Segment

Ids = npt.NDArray[np.int64]


def fetch(segments: Sequence[Segment], ids: Ids) -> npt.NDArray[Any]:
    """Vectors of some ids, all of which are in the segments, in the order of the ids."""
    dtypes = {segment.vectors.dtype for segment in segments}
    vectors = np.empty((len(ids), segments[0].vectors.shape[1]), dtype=np.result_type(*dtypes))
    for segment in segments:
        rows, positions = segment.find(ids)
        vectors[rows] = segment.vectors_at(positions)
    return vectors


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


def drawn(segments: Sequence[Segment], size: int, seed: int) -> Ids:
    """Ids of ``size`` random vectors, in ascending order."""
    edges = np.cumsum([0, *(segment.n_live for segment in segments)])
    numbers = np.sort(np.random.default_rng(seed).choice(int(edges[-1]), size, replace=False, shuffle=False))
    parts = []
    for segment, first, last in zip(segments, edges[:-1], edges[1:], strict=True):
        here = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, last)] - first
        parts.append(segment.ids_at(segment.live_positions()[here] if segment.n_dead else here))
    return np.sort(np.concatenate(parts))
